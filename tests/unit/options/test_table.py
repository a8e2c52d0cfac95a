"""The table of options: complete, consistent, and the same everywhere it shows."""

import re
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.options.mount_options import build
from gitguardfs.options.parsing import parse_o
from gitguardfs.options.table import BY_NAME, OPTIONS, Option

# bindfs(1), version 1.18: every option, and those of its --help.
BINDFS_LONG = [
    "force-user", "force-group", "user", "owner", "group", "perms", "mirror", "mirror-only",
    "map", "map-passwd", "map-group", "map-passwd-rev", "map-group-rev", "uid-offset",
    "gid-offset", "create-as-user", "create-as-mounter", "create-for-user", "create-for-group",
    "create-with-perms", "chown-normal", "chown-ignore", "chown-deny", "chgrp-normal",
    "chgrp-ignore", "chgrp-deny", "chmod-normal", "chmod-ignore", "chmod-deny", "chmod-filter",
    "chmod-allow-x", "xattr-none", "xattr-ro", "xattr-rw", "delete-deny", "rename-deny",
    "read-rate", "write-rate", "hide-hard-links", "resolve-symlinks",
    "resolved-symlink-deletion", "no-allow-other", "realistic-permissions", "ctime-from-mtime",
    "enable-lock-forwarding", "disable-lock-forwarding", "enable-ioctl",
    "block-devices-as-files", "multithreaded", "forward-odirect", "direct-io", "no-direct-io",
]  # fmt: skip
BINDFS_SHORT = {
    "-u": "force-user", "-g": "force-group", "-p": "perms", "-m": "mirror", "-M": "mirror-only",
    "-n": "no-allow-other", "-s": "single-threaded", "-r": "read-only",
    "-d": "debug", "-f": "foreground",
}  # fmt: skip

VALUES = {
    "force-user": "0", "user": "0", "owner": "0", "force-group": "0", "group": "0",
    "perms": "a-w:0644", "mirror": "0:@0", "mirror-only": "0", "map": "1/2:@3/@4",
    "uid-offset": "-3", "gid-offset": "4", "create-for-user": "0", "create-for-group": "0",
    "create-with-perms": "g+rD", "chmod-filter": "g-w", "read-rate": "1.5M", "write-rate": "500k",
    "resolved-symlink-deletion": "target-first", "forward-odirect": "512", "git": "off",
    "deny": "x", "protect": "x", "hide": "x", "show": "x", "audit-log": "/x", "xattr": "rw",
    "private-store": "/x",
    "repository": "/x",
    "local": "deps",
    "local-store": "/x",
    "links": "raw", "cache-timeout": "0", "fsname": "x", "mountpoint": "/x", "source-owner": "0",
    "session": "kernel",
}  # fmt: skip


def words(option: Option, tmp_path: Path) -> str:
    if not option.metavar:
        return option.name
    if option.metavar == "FILE" and option.name.startswith("map-"):
        (tmp_path / "ids").write_text("root:x:7:8\n\n# no line\n")
        return f"{option.name}={tmp_path}/ids"
    return f"{option.name}={VALUES[option.name]}"


def test_every_option_of_bindfs_is_there() -> None:
    assert set(BINDFS_LONG) <= set(BY_NAME)
    shorts = {option.short: option.name for option in OPTIONS if option.short}
    assert shorts == BINDFS_SHORT


def test_names_are_unique_and_flags_say_what_they_mean() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert option.help or option.in_o_only or option.hidden, option.name
        assert not (option.metavar and option.const is not True), option.name


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_is_taken_by_both_names_and_comes_to_the_same(
    option: Option, tmp_path: Path
) -> None:
    word = words(option, tmp_path)
    given = parse_o([word])
    assert parse_o([word.replace("-", "_", word.partition("=")[0].count("-"))]) == given
    assert option.key in given
    build("/s", "/m", given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["uid-offset=1", "map=1:2"], "cannot be combined"),
        (["gid-offset=x"], "gid-offset: 'x' is not a whole number"),
        (["map=auto", "uid-offset=1"], "cannot be combined"),
        (["mirror=0", "mirror-only=0"], "cannot be combined"),
        (["local=deps", "resolve-symlinks"], "cannot be combined"),
        (["mirror=:"], "names no user"),
        (["mirror=@nosuchgroup"], "no such group"),
        (["force-user=nosuchuser"], "no such user"),
        (["force-user=4294967295"], "out of range"),
        (["create-for-group=99999999999"], "out of range"),
        (["perms=u"], "perms: 'u' is not a rule"),
        (["create-with-perms=8"], "create-with-perms: '8'"),
        (["read-rate=0"], "read-rate: '0'"),
        (["write-rate=5X"], "write-rate: '5X'"),
        (["read-rate=-1"], "read-rate"),
        (["read-rate=1e3"], "read-rate"),
        (["forward-odirect=0"], "forward-odirect: 0"),
        (["resolved-symlink-deletion=all"], "one of deny, symlink-only"),
        (["map-passwd=/no/where"], "cannot read /no/where"),
    ],
)
def test_wrong_values_are_one_line(given: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as error:
        build("/s", "/m", parse_o(given))
    assert len(str(error.value).splitlines()) == 1


def test_files_that_number_users_are_read_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ids").write_text("root:x:123:456:,,,:/tmp:/bin/false\nnobody-knows:x:7\n")
    path = tmp_path / "ids"
    assert build("/s", "/m", parse_o([f"map-passwd={path}"])).map.uids == ((123, 0),)
    assert build("/s", "/m", parse_o([f"map-group-rev={path}"])).map.gids == ((0, 123),)
    assert "line 2 is left out: no such user: nobody-knows" in capsys.readouterr().err
    (tmp_path / "ids").write_text("root:x\n")
    with pytest.raises(UserError, match=r"line 1 is not name:password:id"):
        build("/s", "/m", parse_o([f"map-passwd={path}"]))


def test_map_goes_before_the_files(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("root:x:7\n")
    for own in ("7/5", "8/0"):
        built = build("/s", "/m", parse_o([f"map={own},map-passwd={tmp_path}/ids"]))
        assert built.map.uids == (tuple(map(int, own.split("/"))),)


def test_libfuse_s_names_for_what_there_is() -> None:
    built = build("/s", "/m", parse_o(["attr_timeout=5,entry_timeout=0.5,uid=7,gid=8"]))
    assert (built.cache_timeout, built.overrides.force_user, built.overrides.force_group) == (
        0.5,
        7,
        8,
    )
    assert build("/s", "/m", parse_o(["attr_timeout=0,cache_timeout=3"])).cache_timeout == 3
    with pytest.raises(UserError, match="cache-timeout: 'x'"):
        parse_o(["attr_timeout=x"])


def test_without_the_guard_it_is_plain_bindfs() -> None:
    plain = build("/s", "/m", parse_o(["git=off"]))
    assert plain.allow_suid and plain.policy.xattr.value == "rw"
    guarded = build("/s", "/m", {})
    assert not guarded.allow_suid and guarded.policy.xattr.value == "none"
    assert build("/s", "/m", parse_o(["git=off,xattr-none"])).policy.xattr.value == "none"


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        (["dev"], True), (["dev,nosuid"], True), (["dev,suid"], False), (["rw,dev,suid"], False),
        (["dev,nodev"], False), (["nodev,dev"], True), (["suid"], False), ([], False),
    ],
)  # fmt: skip
def test_devices_are_wanted_by_who_wrote_dev(words: list[str], devices: bool) -> None:
    assert ("dev" in build("/s", "/m", parse_o(words)).kernel) == devices


def test_the_last_of_several_counts() -> None:
    built = build("/s", "/m", parse_o(["chown-deny,perms=0,chown-ignore", "perms=7"]))
    assert (built.policy.chown.value, built.overrides.perms.text) == ("ignore", "7")  # type: ignore[union-attr]
