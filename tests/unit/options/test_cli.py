"""The command: precedence, exit codes, and errors of one line. Nothing here mounts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gitguardfs.base.errors import Exit
from gitguardfs.commands import gitguardfs as cli
from gitguardfs.names.rules import GitMode, GuardRules, LinkMode
from gitguardfs.options.change_policy import ChangePolicy, XattrPolicy
from gitguardfs.options.id_maps import IdMapSpec
from gitguardfs.options.mount_options import MountOptions

REPOSITORY = Path(cli.__file__).parents[2]


def run(*arguments: str | bytes | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("NOTIFY_SOCKET", None)
    return subprocess.run(
        [sys.executable, "-m", "gitguardfs", *arguments], capture_output=True, check=False,
        env=environment, cwd="/", timeout=30, encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


USAGE = [
    [],
    ["/tmp"],
    ["a", "b", "c"],
    ["a", "b", "--bogus"],
    ["a", "b", "--git"],
    ["a", "b", "--git", "perhaps"],
    ["a", "b", "-o", "bogus"],
    ["a", "b", "-o", "remount,ro"],
    ["a", "b", "-o", "cache_timeout=soon"],
    ["a", "b", "--cache-timeout", "nan"],
    ["a", "b", "--map", "1000"],
    ["a", "b", "--map", "1:2", "-o", "map=1:3"],
    ["a", "b", "--map", "auto", "-o", "map=1:3"],
    ["a", "b", "--deny", "a/b"],
    ["a", "b", "--hide", ""],
    ["a", "b", "-o", "protect=a/b"],
    ["a", "b", "--no-seal", "-o", "seal"],
    ["a", "b", "--umask=022"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_one_line_and_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gitguardfs", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert int(str(ended.value.code)) == Exit.USAGE
    assert said.out == ""
    assert said.err.startswith("gitguardfs: ") and said.err.count("\n") == 1, said.err


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--uid=3", "write --force-user"), ("--ro", "write --read-only"), ("--rw", "write -o rw"),
        ("--create_for_user=3", "write --create-for-user"), ("--noatime", "write -o noatime"),
        ("--fsname=x", "write -o fsname=..."), ("--allow_root", "the mounting user only"),
    ],
)  # fmt: skip
def test_an_option_of_o_alone_is_answered_with_its_spelling(word: str, hint: str) -> None:
    done = run("a", "b", word)
    assert done.returncode == Exit.USAGE
    assert hint in done.stderr and done.stderr.count("\n") == 1
    spelled = re.findall("write (.*)\\)$", done.stderr)
    if spelled and "..." not in spelled[0]:
        value = [word.partition("=")[2]] if "=" in word else []
        assert "no such mount point" in run("a", "b", *spelled[0].split(), *value).stderr


@pytest.mark.parametrize("name", ["deny", "protect", "hide", "audit-log", "fsname"])
def test_an_empty_value_is_an_error_that_says_so(name: str) -> None:
    for words in (["-o", f"{name}="], [f"--{name}="])[: 1 if name == "fsname" else 2]:
        done = run("a", "b", *words)
        assert done.returncode == Exit.USAGE
        assert done.stderr == (
            f"gitguardfs: {name} has an empty value (give one, or leave the option out)\n"
        )


needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse")


def _one_line(done: subprocess.CompletedProcess[str], code: Exit, *mentions: str) -> None:
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if "warning:" not in line]
    assert len(errors) == 1 and errors[0].startswith("gitguardfs: "), done.stderr
    for text in mentions:
        assert text in errors[0]


@needs_fuse
def test_places_that_cannot_be_mounted_are_32_or_1(tmp_path: Path) -> None:
    (tmp_path / "src/inside").mkdir(parents=True)
    (tmp_path / "mnt").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "repo/.git/x").mkdir(parents=True)
    source, mountpoint = tmp_path / "src", tmp_path / "mnt"
    _one_line(run(tmp_path / "none", mountpoint), Exit.MOUNT, "none", "no such source")
    _one_line(run(source, tmp_path / "none"), Exit.MOUNT, "no such mount point", "mkdir")
    _one_line(run(tmp_path / "file", mountpoint), Exit.MOUNT, "not a directory")
    _one_line(run(source, tmp_path / "file"), Exit.MOUNT, "not a directory")
    _one_line(run(source, source / "inside"), Exit.USAGE, "inside one another")
    _one_line(run(tmp_path / "repo/.git/x", mountpoint), Exit.USAGE, ".git")


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> MountOptions:
    """Return the options that a command line leads to, without mounting."""
    found: list[MountOptions] = []

    def note(options: MountOptions) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(cli, "_run", note)
    assert cli.command.main(["/s", "/m", *arguments], standalone_mode=False) == 0
    return found[0]


def test_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch) == MountOptions("/s", "/m")


def test_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    by_option = options_of(
        monkeypatch, "--map", "1:2", "--git", "hide", "--deny", "a", "--deny", "b",
        "--protect", "c", "--hide", "d", "--allow-bare", "--allow-suid", "--cache-timeout", "0",
        "--links", "raw",
        "--xattr", "ro", "--audit-log", "/l", "--seal", "-r", "-f", "-d",
    )  # fmt: skip
    assert by_option == MountOptions(
        "/s", "/m", IdMapSpec(((1, 2),), ((1, 2),)),
        GuardRules(GitMode.HIDE, True, LinkMode.RAW, ("a", "b"), ("c",), ("d",)),
        ChangePolicy(xattr=XattrPolicy.RO), allow_suid=True, cache_timeout=0.0, audit_log="/l",
        seal=True, read_only=True, foreground=True, debug=True,
    )  # fmt: skip
    by_o = options_of(
        monkeypatch, "-o", "map=1:2,git=hide,deny=a,deny=b,protect=c,hide=d,allow_bare,allow_suid",
        "-o", "links=raw",
        "-o", "cache_timeout=0,xattr=ro,audit_log=/l,seal,ro,foreground,debug",
    )  # fmt: skip
    assert by_o == by_option


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--git", "hide", "-o", "git=off"], "git", GitMode.HIDE),
        (["--git", "deny", "-o", "git=off"], "git", GitMode.DENY),
        (["-o", "git=off"], "git", GitMode.OFF),
        (["--cache-timeout", "1", "-o", "cache_timeout=5"], "cache_timeout", 1.0),
        (["--xattr", "none", "-o", "xattr=rw"], "xattr", XattrPolicy.NONE),
        (["-r", "-o", "rw"], "read_only", True),
        (["-o", "ro"], "read_only", True),
        (["--seal", "-o", "no-seal"], "seal", True),
        (["-o", "no-seal"], "seal", False),
        (["--no-seal"], "seal", False),
        (["--map", "1:2", "-o", "map=3:4"], "map", IdMapSpec(((1, 2), (3, 4)), ((1, 2), (3, 4)))),
        (["--deny", "a", "-o", "deny=b"], "deny", ("a", "b")),
        (["-o", "fsname=x"], "fsname", "x"),
        (["-o", "noatime,sync"], "kernel", ("noatime", "sync")),
    ],
)
def test_the_command_line_goes_before_o_and_lists_add_up(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], field: str, value: object
) -> None:
    options = options_of(monkeypatch, *arguments)
    holders = {"git": options.rules, "deny": options.rules, "xattr": options.policy}
    holder = holders.get(field, options)
    assert getattr(holder, field) == value
