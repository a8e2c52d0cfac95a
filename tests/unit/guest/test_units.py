"""`gitguard units`, and what systemd itself makes of the units."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.commands import units as units_command
from gitguardfs.commands.units import command
from gitguardfs.guest import fstab, systemd
from gitguardfs.options.guarded_share import GuardedShare
from gitguardfs.options.parsing import parse_o, quote_o
from tests.support.mounting import PLACE
from tests.unit.guest.test_fstab import NAME, PATH, spec

MANAGER = "/usr/lib/systemd/systemd"
SYSTEM_UNITS = "/usr/lib/systemd/system"
NOBODY = 65534

needs_systemd = pytest.mark.skipif(not os.path.exists(MANAGER), reason="needs systemd")


def units(*arguments: str) -> Result:
    base = ["projects", "--mount", "/mnt/projects", "--map-mount", "/home/user/projects"]
    return CliRunner().invoke(command, [*base, *arguments], standalone_mode=False)


def said(result: Result) -> str:
    assert isinstance(result.exception, UserError | click.UsageError)
    return str(result.exception)


# ------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--label", "x"], "mount tag once"),
        (["--check"], "--output"),
        (["--user", "root", "--map", "1:2"], "contradict"),
        (["--user", "no-such-user"], "no such user"),
        (["--owner", "501", "--user", "root"], "UID:GID"),
        (["--map", "1:2:3"], "malformed"),
        (["--mount", "mnt"], "not an absolute path"),
        (["--mount", "/mnt/../etc"], "not a plain path"),
        (["--mount", "/a\nb"], "cannot be written"),
        (["--mount", "/home/user/projects/raw"], "inside one another"),
        (["-o", "gti=hide"], "gti"),
        (["-o", "git=maybe"], "git=maybe"),
        (["--local", "a/b"], "--local 'a/b'"),
        (["--local", "deps", "-o", "local-store=here"], "not an absolute path"),
        (["-o", "cache-timeout=x"], "cache-timeout"),
        (["-o", "user"], "let others mount"),
        (["-o", "map=1:2"], "--map"),
        (["-o", "foreground"], "foreground"),
        (["--type", "nfs"], "nfs"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], fault: str) -> None:
    assert fault in said(units(*arguments))


@pytest.mark.parametrize(
    "tag", ["a" * 32, "é" * 16, "UUID=1", "label=x", "/x", "#x", " x", "a\nb", "x\\"]
)
def test_a_tag_that_no_file_of_mounts_can_carry_is_refused(tag: str) -> None:
    with pytest.raises(UserError, match="tag"):
        spec(tag=tag)


def test_written_files_are_found_equal_and_a_changed_one_is_named(tmp_path: Path) -> None:
    arguments = ["--style", "systemd", "--output", str(tmp_path)]
    assert units(*arguments, "--check").return_value == 1
    assert units(*arguments).return_value == 0
    assert units(*arguments, "--check").return_value == 0
    (tmp_path / "mnt-projects.mount").write_text("changed")
    result = units(*arguments, "--check")
    assert (result.return_value, result.output) == (1, f"{tmp_path}/mnt-projects.mount: differs\n")
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
        "gitguardfs-changes.service", "gitguardfs@.service", "mnt-projects.mount", "share.conf",
    ]  # fmt: skip


def test_fstab_in_etc_is_never_the_output(tmp_path: Path) -> None:
    (tmp_path / "fstab").write_text("mine")
    assert units("--output", str(tmp_path)).return_value == 0
    assert (tmp_path / "fstab").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a directory of another user's")
@pytest.mark.parametrize("more", [[], ["--check"]], ids=["write", "check"])
def test_what_root_writes_and_reads_is_led_nowhere_by_another_user(
    tmp_path: Path, more: list[str]
) -> None:
    theirs, roots = tmp_path / "home", tmp_path / "etc"
    theirs.mkdir()
    roots.mkdir()
    (theirs / "units").symlink_to(roots)
    os.chown(theirs, NOBODY, NOBODY)
    os.lchown(theirs / "units", NOBODY, NOBODY)
    for output in (theirs / "units", theirs / "units/below"):
        assert "leads to" in said(units("--output", str(output), *more))
    assert list(roots.iterdir()) == []


@pytest.mark.parametrize(
    ("holder", "program"),
    [("/usr/share/gitguardfs", "/usr/bin/gitguardfs"),
     ("/usr/lib64/gitguardfs", "/usr/bin/gitguardfs"),
     ("/usr/local/lib/gitguardfs/lib", "/usr/local/bin/gitguardfs"),
     ("/home/me/.local/share/pipx/venvs/x/lib/python3/site-packages", "/usr/local/bin/gitguardfs")],
)  # fmt: skip
def test_a_package_prints_units_for_the_packages_program(holder: str, program: str) -> None:
    assert units_command._guard_command(holder) == program


def test_a_name_too_long_for_systemd_is_said_to_be() -> None:
    with pytest.raises(UserError, match="--style fstab"):
        systemd.files(spec(map_mount="/" + "é" * 60))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--label", "t"], ["--tag", "t"]),
        (["--label=t"], ["--tag", "t"]),
        (["-l", "t"], ["--tag", "t"]),
        (["-lt"], ["--tag", "t"]),
        (["--tag", "t", "--type", "virtiofs"], ["--tag", "t", "--transport", "virtiofs"]),
        (["--tag", "t", "-mm", "/v"], ["--tag", "t", "--map-mount", "/v"]),
        (["--tag", "t", "-mm/v"], ["--tag", "t", "--map-mount", "/v"]),
        (["--tag", "t", "-mm=/v"], ["--tag", "t", "--map-mount", "/v"]),
    ],
)
def test_old_and_short_spellings_mean_the_same(old: list[str], new: list[str]) -> None:
    base = ["--mount", "/mnt/t", "--map-mount", "/home/me/t"]
    wanted, found = (
        CliRunner().invoke(command, [*base, *words], standalone_mode=False) for words in (new, old)
    )
    assert wanted.exception is None and wanted.output
    assert found.output == wanted.output


# ------------------------------------------------------------------ the units as systemd reads them


def put(files: dict[str, str], directory: Path) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def systemd_reads(files: dict[str, str], unit: str) -> list[str]:
    """Return how a service manager reads the unit and those it needs (``systemd --test``)."""
    with tempfile.TemporaryDirectory(dir=PLACE) as name:
        directory = Path(name)
        put(files, directory)
        os.chmod(directory, 0o755)
        run = directory / "run"
        run.mkdir()
        ids: dict[str, Any] = {}
        if os.geteuid() == 0:  # only as a user does it not ask for a cgroup of its own
            os.chown(run, NOBODY, NOBODY)
            ids = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        done = subprocess.run(
            [MANAGER, "--user", "--test", f"--unit={unit}"],
            env={
                "HOME": str(run), "XDG_RUNTIME_DIR": str(run), "SYSTEMD_LOG_TARGET": "console",
                "SYSTEMD_UNIT_PATH": f"{directory}:{SYSTEM_UNITS}",
            },
            capture_output=True, text=True, check=False, cwd="/", **ids,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    start = lines.index(f"-> Unit {unit}:")
    rest = lines[start + 1 :]
    end = next((i for i, line in enumerate(rest) if line.startswith("-> Unit ")), len(rest))
    return rest[:end]


NASTY_SPECS = [
    spec(),
    spec(transport="virtiofs", mount="/mnt/a b,c", map_mount="/home/user/é漢"),
    spec(
        tag="a%n $HOME \\x41 é",
        mount='/mnt/q"q %i ${HOME} \\x41 #;',
        map_mount="/home/u/$HOME ${X} %% \"'",
        options=("deny=a,b", 'hide="$X" %i', "protect=\\\\x41"),
    ),
]


@needs_systemd
@pytest.mark.parametrize("wanted", NASTY_SPECS, ids=["plain", "spaces", "nasty"])
def test_systemd_reads_back_every_path_tag_and_option(wanted: GuardedShare) -> None:
    files = systemd.files(wanted, "/bin/true")
    service = systemd_reads(files, systemd.service_name(wanted.map_mount))
    assert f"Environment: GITGUARDFS_MOUNTPOINT={wanted.map_mount}" in service
    assert f"Environment: GITGUARDFS_SOURCE={wanted.mount}" in service
    start = "Environment: GITGUARDFS_OPTIONS="
    (options,) = [line.removeprefix(start) for line in service if line.startswith(start)]
    expected = parse_o([quote_o(option) for option in wanted.options])
    assert parse_o([options]) == {
        "map": [wanted.map], "seal": True, "git": "private", **expected,
    }  # fmt: skip
    assert f"RequiresMountsFor: {wanted.mount} (origin-file)" in service
    share = systemd_reads(files, systemd.mount_name(wanted.mount))
    assert f"Where: {wanted.mount}" in share
    assert f"What: {wanted.tag}" in share
    assert f"Options: {','.join(wanted.share_options)}" in share
    assert f"File System Type: {wanted.transport}" in share


@needs_systemd
def test_the_share_comes_first_and_a_boot_without_it_reaches_a_login() -> None:
    files = systemd.files(spec(), "/bin/true")
    service = systemd_reads(files, "gitguardfs@home-user-projects.service")
    assert "Requires: mnt-projects.mount (origin-path)" in service
    assert "After: mnt-projects.mount (origin-path)" in service
    share = systemd_reads(files, "mnt-projects.mount")
    assert not [line for line in share if line.startswith(("RequiredBy: local", "Before: local"))]
    assert not [line for line in share if line.startswith("Requires: ") and ".target" in line]
    # Wanted, never required: whatever fails here does not fail the boot.
    assert re.findall(r"(?m)^\[Install\]\n(.*)$", files[systemd.TEMPLATE]) == [
        "WantedBy=multi-user.target"
    ]


@needs_systemd
def test_the_hardening_makes_no_mount_namespace_and_stays_on() -> None:
    service = systemd_reads(
        systemd.files(spec(), "/bin/true"), "gitguardfs@home-user-projects.service"
    )
    for line in ("PrivateTmp: no", "PrivateDevices: no", "ProtectSystem: no", "ProtectHome: no",
                 "ProtectProc: default", "ProtectKernelTunables: no", "PrivateNetwork: no",
                 "MemoryDenyWriteExecute: yes", "RestrictRealtime: yes", "DevicePolicy: closed",
                 "Type: notify", "Restart: on-failure", "KeyringMode: private",
                 # A stop by systemd itself is not root's; only root's takes the seal off.
                 "TimeoutStartFailureMode: kill", "OOMPolicy: continue"):  # fmt: skip
        assert line in service
    (capabilities,) = [line for line in service if line.startswith("CapabilityBoundingSet:")]
    assert sorted(capabilities.split()[1:]) == sorted(
        f"cap_{name}" for name in (
            "sys_admin", "sys_chroot", "dac_override", "dac_read_search", "chown", "fowner",
            "fsetid", "setuid", "setgid", "mknod", "sys_ptrace",
        )
    )  # fmt: skip
    (calls,) = [line for line in service if line.startswith("SystemCallFilter:")]
    needed = {"unshare", "setns", "open_tree", "mount", "umount2", "renameat2", "statx", "flock",
              "fsopen", "fsconfig", "fsmount", "move_mount"}  # fmt: skip
    assert needed <= set(calls.split())
    assert not {"ptrace", "reboot", "init_module", "bpf"} & set(calls.split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("wanted", NASTY_SPECS, ids=["plain", "spaces", "nasty"])
def test_systemd_finds_nothing_to_complain_about(wanted: GuardedShare, tmp_path: Path) -> None:
    files = systemd.files(wanted, "/bin/true")
    put(files, tmp_path)
    for name in (systemd.mount_name(wanted.mount), systemd.service_name(wanted.map_mount)):
        if name not in files:
            shutil.copy(tmp_path / systemd.TEMPLATE, tmp_path / name)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", tmp_path / name],
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:{SYSTEM_UNITS}"},
            capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@given(tag=NAME, mount=PATH, map_mount=PATH)
def test_what_is_installed_is_read_back_from_the_units(
    tag: str, mount: str, map_mount: str
) -> None:
    try:
        files = systemd.files(spec(tag=tag, mount=mount, map_mount=map_mount))
    except UserError:
        return
    found = {name: text.encode() for name, text in files.items()}
    assert systemd.shares(found) == {mount: tag}
    assert systemd.guards(found) == {map_mount: mount}
    foreign = {name: text.partition(b"\n")[2] for name, text in found.items()}
    assert (systemd.shares(foreign), systemd.guards(foreign)) == ({}, {})


@given(st.text(max_size=20))
def test_no_text_breaks_out_of_its_line(text: str) -> None:
    for key, value in (
        ("tag", text), ("mount", text), ("map_mount", f"/{text}"), ("options", (text,)),
    ):  # fmt: skip
        try:
            wanted = spec(**{key: value})
            lines = fstab.render(wanted).split("\n")
            files = systemd.files(wanted)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        assert len(lines) == 3
        for line in (line for unit in files.values() for line in unit.split("\n")):
            assert re.match(r"#|\[|[A-Z]\w+=|$", line)


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_somebody_elses_file_is_not_overwritten(tmp_path: Path, style: str) -> None:
    out = ("--output", str(tmp_path), "--style", style)
    name = "gitguardfs.fstab" if style == "fstab" else "mnt-projects.mount"
    theirs = tmp_path / name
    theirs.write_text("[Mount]\nWhat=/dev/vdb\n")
    assert "was not written by gitguardfs" in said(units(*out))
    assert os.listdir(tmp_path) == [name]
    assert theirs.read_text() == "[Mount]\nWhat=/dev/vdb\n"
    assert units(*out, "--check").return_value == 1
    theirs.unlink()
    assert units(*out).return_value == 0
    assert units(*out, "-o", "git=hide").return_value == 0  # our own file may be changed
