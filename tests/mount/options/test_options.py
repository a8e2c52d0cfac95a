"""Each option has its effect on a real mount, on the command line and through -o."""

import errno
import json
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import Mounted, area, bindfs, gitguardfs, until
from tests.support.people import AGENT, as_user
from tests.support.repos import MAP

HOST_UID, HOST_GID = 501, 20

OTHER = 2000
"""A second ordinary user of the guest, whose id no map mentions."""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        source = path / "source"
        source.mkdir()
        os.chown(source, HOST_UID, HOST_GID)
        yield path


@contextmanager
def _mounted(here: Path, *options: str, **more: Any) -> Iterator[Mounted]:
    with gitguardfs(here / "source", here / "view", *options, **more) as mounted:
        yield mounted


def _host_file(here: Path, name: str, text: str = "text", mode: int = 0o644) -> Path:
    path = here / "source" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, HOST_UID, HOST_GID)
    return path


def _fails(number: int, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    with pytest.raises(OSError) as caught:
        function(*arguments, **named)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


def _ids(path: Path) -> tuple[int, int]:
    st = path.lstat()
    return st.st_uid, st.st_gid


# ------------------------------------------------------------------------------ Read-only


@pytest.mark.parametrize("options", [("-r",), ("--read-only",), ("-o", "ro")])
def test_read_only_lets_nobody_change_anything(here: Path, options: tuple[str, ...]) -> None:
    _host_file(here, "file")
    with _mounted(here, *options) as mounted:
        file = mounted.path / "file"
        assert file.read_text() == "text"
        _fails(errno.EROFS, file.write_text, "x")
        _fails(errno.EROFS, (mounted.path / "new").touch)
        _fails(errno.EROFS, (mounted.path / "new").mkdir)
        _fails(errno.EROFS, (mounted.path / "new").symlink_to, "file")
        _fails(errno.EROFS, file.unlink)
        _fails(errno.EROFS, file.rename, mounted.path / "other")
        _fails(errno.EROFS, file.chmod, 0o600)
        _fails(errno.EROFS, os.chown, file, 0, 0)
        _fails(errno.EROFS, os.utime, file)
        _fails(errno.EROFS, os.truncate, file, 0)
        _fails(errno.EROFS, os.link, file, mounted.path / "link")
        assert os.access(file, os.R_OK)
        assert not os.access(file, os.W_OK)


# -------------------------------------------------------------------- Extended attributes

XATTRS_OFF = errno.EOPNOTSUPP


def _listed_xattrs(path: Path) -> list[str]:
    """Return the names; no attributes can be an empty list or an error."""
    try:
        return os.listxattr(path)
    except OSError as error:
        assert error.errno == XATTRS_OFF
        return []


CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
ACL = bytes.fromhex("02000000 01000600ffffffff 04000400ffffffff 20000400ffffffff")


@pytest.mark.parametrize("policy", ["none", "ro", "rw"])
def test_other_attributes_never_get_in_or_out(here: Path, policy: str) -> None:
    """Not even for root: they carry ids, capabilities and labels of the share."""
    file = _host_file(here, "file")
    os.setxattr(file, "trusted.known", b"value")
    os.setxattr(file, "security.capability", CAPABILITY)
    before = sorted(os.listxattr(file))
    with _mounted(here, "--xattr", policy) as mounted:
        seen = mounted.path / "file"
        for name, value in (
            ("security.capability", CAPABILITY),
            ("security.evil", b"x"),
            ("trusted.known", b"x"),
            ("trusted.new", b"x"),
        ):
            with pytest.raises(OSError):
                os.setxattr(seen, name, value)
            with pytest.raises(OSError):
                os.getxattr(seen, name)
            with pytest.raises(OSError):
                os.removexattr(seen, name)
        for name in ("system.posix_acl_access", "system.posix_acl_default"):
            # It sets a mode; of a file, the kernel refuses the list for new files.
            with pytest.raises(OSError) if policy == "ro" else suppress(OSError):
                os.setxattr(seen, name, ACL)
            with pytest.raises(OSError):
                os.getxattr(seen, name)
        assert _listed_xattrs(seen) == []
    assert sorted(os.listxattr(file)) == before
    assert os.getxattr(file, "trusted.known") == b"value"
    assert os.getxattr(file, "security.capability") == CAPABILITY


# ------------------------------------------------------------------------------ Audit log


def _refused(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_each_refusal_is_a_line_of_the_audit_log(here: Path) -> None:
    (here / "source").chmod(0o777)
    (here / "source/sub").mkdir()
    (here / "source/sub").chmod(0o777)
    log = here / "audit.log"
    options = ("--deny", "*.pem", "--audit-log", str(log))
    with _mounted(here, *options) as mounted:
        _fails(errno.EACCES, as_user, os.mkdir, str(mounted.path / "sub/.git"))
        _fails(errno.EACCES, as_user, _refused, str(mounted.path / "key.PEM"))
        _fails(errno.EACCES, os.mkdir, mounted.path / ".GIT ")
        until(lambda: len(_lines(log)) == 3, "three lines")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    planted, key, spaced = _lines(log)
    assert planted["operation"] == "mkdir"
    assert planted["path"] == "sub/.git"
    assert planted["rule"] == "git"
    assert planted["uid"] == AGENT
    assert planted["pid"] > 0
    assert planted["time"].startswith("20")
    assert planted["time"].endswith("Z")
    assert (key["operation"], key["path"], key["rule"]) == ("create", "key.PEM", "--deny *.pem")
    assert (spaced["uid"], spaced["pid"]) == (0, os.getpid())
    assert spaced["command"] == Path("/proc/self/comm").read_text().rstrip("\n")


def test_a_flood_of_refusals_neither_fills_the_log_nor_stops_the_mount(here: Path) -> None:
    log = here / "audit.log"
    expected = ("the audit log is short of",)
    with _mounted(here, "--audit-log", str(log), expected=expected) as mounted:
        for _ in range(20_000):
            with suppress(PermissionError):
                os.mkdir(mounted.path / ".git")
        _host_file(here, "file")
        assert (mounted.path / "file").read_text() == "text"
        written = log.read_text().splitlines()
        assert 100 <= len(written) < 5000, "limited, and yet not silent"

        def told() -> bool:
            with suppress(PermissionError):
                os.mkdir(mounted.path / ".git")
            return any("dropped" in line for line in _lines(log))

        until(told, "what was left out is told of by a number")
    lines = _lines(log)
    dropped = sum(line.get("dropped", 0) for line in lines)
    assert dropped + len(lines) <= 30_000
    assert dropped >= 15_000


def test_a_full_disk_under_the_audit_log_hurts_nobody(here: Path) -> None:
    expected = ("audit log: No space left",)
    disk = here / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "full", disk], check=True)
    try:
        (disk / "fills it").write_bytes(bytes(4096))
        with _mounted(here, "--audit-log", str(disk / "log"), expected=expected) as mounted:
            for _ in range(10):
                _fails(errno.EACCES, os.mkdir, mounted.path / ".git")
            _host_file(here, "file")
            assert (mounted.path / "file").read_text() == "text"
    finally:
        subprocess.run(["umount", disk], check=True)


# -------------------------------------------------------------------------- Cache timeout


def test_cache_timeout_says_how_long_names_are_remembered(here: Path) -> None:
    _host_file(here, "other")  # it shows that case matters there
    with _mounted(here, "--cache-timeout", "3600") as mounted:
        assert not (mounted.path / "file").exists()
        _host_file(here, "file")
        assert not (mounted.path / "file").exists(), "remembered"
    with _mounted(here, "--cache-timeout", "0") as mounted:
        assert (mounted.path / "file").exists()
        (here / "source/file").unlink()
        assert not (mounted.path / "file").exists()


# -------------------------------------------------------------------- More guarded names


def test_deny_shows_a_name_and_refuses_its_use(here: Path) -> None:
    _host_file(here, "sub/.env", "secret")
    _host_file(here, "sub/file")
    options = ("--deny", ".env", "--deny", "*.pem")
    with _mounted(here, *options) as mounted:
        env = mounted.path / "sub/.env"
        assert sorted(os.listdir(mounted.path / "sub")) == [".env", "file"]
        assert stat.S_IMODE(env.lstat().st_mode) == 0
        assert _ids(env) == (0, 0)
        _fails(errno.EACCES, env.read_text)
        _fails(errno.EACCES, env.write_text, "x")
        _fails(errno.EACCES, env.unlink)
        _fails(errno.EACCES, env.rename, mounted.path / "sub/x")
        _fails(errno.EACCES, (mounted.path / "sub/file").rename, mounted.path / "sub/A.PEM")
        _fails(errno.EACCES, (mounted.path / "new.pem").touch)
        (mounted.path / "new.pem.txt").touch()
    assert (here / "source/sub/.env").read_text() == "secret"


def test_protect_lets_a_name_be_read_and_not_changed(here: Path) -> None:
    _host_file(here, ".husky/pre-commit", "hook")
    (here / "source/sub").mkdir()
    with _mounted(here, "--protect", ".husky") as mounted:
        husky = mounted.path / ".husky"
        hook = husky / "pre-commit"
        assert os.listdir(husky) == ["pre-commit"]
        assert hook.read_text() == "hook"
        for change in (
            lambda: hook.write_text("x"),
            lambda: hook.unlink(),
            lambda: hook.chmod(0o777),
            lambda: os.truncate(hook, 0),
            lambda: os.utime(hook),
            lambda: (husky / "new").touch(),
            lambda: husky.rename(mounted.path / "husky"),
            lambda: (mounted.path / "sub/.husky").mkdir(),
        ):
            _fails(errno.EACCES, change)
    assert (here / "source/.husky/pre-commit").read_text() == "hook"


def test_hide_makes_a_name_invisible_and_unusable(here: Path) -> None:
    _host_file(here, "secrets/key", "secret")
    _host_file(here, "file")
    with _mounted(here, "--hide", "secret*") as mounted:
        assert os.listdir(mounted.path) == ["file"]
        _fails(errno.ENOENT, (mounted.path / "secrets").lstat)
        _fails(errno.ENOENT, (mounted.path / "secrets/key").read_text)
        with pytest.raises(OSError):
            (mounted.path / "Secrets2").mkdir()
        with pytest.raises(OSError):
            (mounted.path / "file").rename(mounted.path / "secrets")
    assert sorted(os.listdir(here / "source")) == ["file", "secrets"]


def test_git_policies(here: Path) -> None:
    _host_file(here, ".git/config", "config")
    with _mounted(here, "--git", "readonly") as mounted:
        assert (mounted.path / ".git/config").read_text() == "config"
        _fails(errno.EACCES, (mounted.path / ".git/config").write_text, "x")
    with _mounted(here, "--git", "hide") as mounted:
        assert os.listdir(mounted.path) == []
        _fails(errno.ENOENT, (mounted.path / ".git/config").read_text)
    with _mounted(here, "--git", "off") as mounted:
        (mounted.path / ".git/config").write_text("changed")
    assert (here / "source/.git/config").read_text() == "changed"


def test_allow_suid_keeps_what_is_stripped_otherwise(here: Path) -> None:
    file = _host_file(here, "file", mode=0o6755)
    with _mounted(here) as mounted:
        assert stat.S_IMODE((mounted.path / "file").stat().st_mode) == 0o755
        (mounted.path / "file").chmod(0o4755)
        assert stat.S_IMODE(file.stat().st_mode) == 0o755
    file.chmod(0o6755)
    with _mounted(here, "--allow-suid") as mounted:
        assert stat.S_IMODE((mounted.path / "file").stat().st_mode) == 0o6755
        (mounted.path / "file").chmod(0o2755)
    assert stat.S_IMODE(file.stat().st_mode) == 0o2755


def test_fsname_is_what_the_mount_table_shows(here: Path) -> None:
    with _mounted(here, "-o", r"fsname=my\,projects") as mounted:
        line = _mount_line(mounted.path)
        assert line.split(" - ")[1].split()[:2] == ["fuse.gitguardfs", "my,projects"]


@pytest.mark.parametrize("option", ["noatime", "noexec", "sync", "dirsync"])
def test_kernel_options_reach_the_kernel(here: Path, option: str) -> None:
    with _mounted(here, "-o", option) as mounted:
        line = _mount_line(mounted.path)
        assert option in line.replace(" - ", ",").replace(" ", ",").split(",")


@pytest.mark.parametrize("options", [(), ("noatime",)])
def test_noatime_leaves_the_access_times_of_the_source(here: Path, options: tuple[str]) -> None:
    """Without it, the source decides: here it notes each first access after a change."""
    file = _host_file(here, "d/file")
    for path in (file, file.parent):
        os.utime(path, (1, time.time()))
    with _mounted(here, *(["-o", *options] if options else [])) as mounted:
        with (mounted.path / "d/file").open("r+") as opened:
            assert opened.read() == "text"
        assert (mounted.path / "d/file").read_text() == "text"
        assert os.listdir(mounted.path / "d") == ["file"]
        with os.scandir(mounted.path / "d") as entries:
            assert [entry.is_file() for entry in entries] == [True]
    for path in (file, file.parent):
        assert (path.stat().st_atime == 1) is bool(options), path


def _mount_line(view: Path) -> str:
    """Return the line of mountinfo for the view, and not for the lid below it."""
    table = Path("/proc/self/mountinfo").read_text()
    return [line for line in table.splitlines() if f" {view} " in line][-1]


@pytest.mark.parametrize("generic", ["suid,dev", "defaults", "suid,dev,exec,rw,relatime"])
def test_the_view_is_always_nosuid_nodev_and_checks_permissions(here: Path, generic: str) -> None:
    """mount.fuse3 adds suid and dev on its own."""
    with _mounted(here, "-o", generic) as mounted:
        line = _mount_line(mounted.path)
        for option in ("nosuid", "nodev", "default_permissions", "allow_other"):
            assert option in line.replace(" ", ",").split(",")


# ------------------------------------------------------------------------------- Id maps


def _show(here: Path, *options: str) -> dict[str, tuple[int, int]]:
    with _mounted(here, *options) as mounted:
        return {name: _ids(mounted.path / name) for name in os.listdir(mounted.path)}


@pytest.mark.parametrize("option", ["map=501/1000:@20/@1000", r"map=501/1000\,@20:@1000"])
def test_a_map_shows_the_owners_that_it_names_and_all_others_as_they_are(
    here: Path, option: str
) -> None:
    _host_file(here, "mapped")
    os.chown(_host_file(here, "unmapped"), 77, 88)
    assert _show(here, "-o", option) == {"mapped": (1000, 1000), "unmapped": (77, 88)}


def test_map_auto_shows_the_owner_of_the_source_as_that_of_the_mount_point(here: Path) -> None:
    _host_file(here, "file")
    os.chown(_host_file(here, "other"), 77, 88)
    (here / "view").mkdir()
    os.chown(here / "view", AGENT, 1001)
    assert _show(here, "--map", "auto") == {"file": (AGENT, 1001), "other": (77, 88)}


# -------------------------------------------------------------------------------- Creation


def _touch(path: str, mode: int = 0o666) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _make_all(directory: str) -> None:
    _touch(f"{directory}/file")
    os.mkdir(f"{directory}/directory")
    os.mkfifo(f"{directory}/fifo")
    os.symlink("file", f"{directory}/link")
    os.mknod(f"{directory}/node", stat.S_IFREG | 0o644)


# -------------------------------------------------- A daemon that cannot change the owners


@pytest.mark.usefixtures("ordinary_users_can_mount")
def test_run_by_a_user_what_is_made_is_his_and_giving_away_is_refused(here: Path) -> None:
    os.chown(here / "source", AGENT, AGENT)
    (here / "view").mkdir()
    os.chown(here / "view", AGENT, AGENT)
    with _mounted(here, uid=AGENT) as mounted:
        as_user(_make_all, str(mounted.path))
        for name in ("file", "directory", "fifo", "link", "node"):
            assert _ids(here / "source" / name) == (AGENT, AGENT), name
        file = str(mounted.path / "file")
        _fails(errno.EPERM, as_user, os.chown, file, OTHER, -1)
        _fails(errno.EPERM, as_user, os.chown, file, -1, OTHER)


# As QEMU's security_model=none: everything belongs to the user that QEMU runs as.
ONE_OWNER = (
    f"--force-user={HOST_UID}", f"--force-group={HOST_GID}", f"--create-for-user={HOST_UID}",
    f"--create-for-group={HOST_GID}", "--chown-deny", "--chgrp-deny",
)  # fmt: skip


@contextmanager
def _over_bindfs(here: Path, *options: str) -> Iterator[Mounted]:
    (here / "raw").mkdir()
    os.chown(here / "raw", HOST_UID, HOST_GID)
    (here / "raw").chmod(0o777)
    with bindfs(here / "raw", here / "source", *options):
        with _mounted(here, "--map", MAP) as mounted:
            yield mounted


def test_a_share_with_one_owner_for_all_can_be_written_to(here: Path) -> None:
    with _over_bindfs(here, *ONE_OWNER) as mounted:
        as_user(_make_all, str(mounted.path))
        for name in ("file", "directory", "fifo", "link", "node"):
            assert _ids(mounted.path / name) == (1000, 1000), name
        with open(mounted.path / "file", "w") as file:
            file.write("text")
        assert (here / "raw/file").read_text() == "text"


def test_what_would_get_the_wrong_owner_is_not_made(here: Path) -> None:
    """The share refuses it: it is not reported as done, and nothing incomplete is left."""
    with _over_bindfs(here, "--chown-deny", "--chgrp-deny") as mounted:
        path = str(mounted.path)
        _fails(errno.EPERM, as_user, _touch, f"{path}/file")
        _fails(errno.EPERM, as_user, os.mkdir, f"{path}/directory")
        _fails(errno.EPERM, as_user, os.mkfifo, f"{path}/fifo")
        _fails(errno.EPERM, as_user, os.symlink, "x", f"{path}/link")
        assert os.listdir(path) == []
        _fails(errno.EPERM, os.chown, mounted.path, OTHER, OTHER)
    assert os.listdir(here / "raw") == []
