"""``gitguard share``: what it refuses, and that text and JSON say the same, for any name."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gitguardfs.base import installation
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.commands import share
from gitguardfs.host.share import share_settings, start_guard
from gitguardfs.host.share.share_spec import (
    GuardPlacement,
    Host,
    Hypervisor,
    MachineNetwork,
    ShareSpec,
    Transport,
)

USER = Host(uid=1000, gid=100, group="users", runtime="/run/user/1000")
ROOT = Host(uid=0, gid=0, group="root", runtime="/run")
FEDORA = Host(uid=1000, gid=1000, group="me", runtime="/run/user/1000", selinux=True)

AWKWARD = " ,'\"$%\\`!#;=&|<>()[]{}*?~^+-.é日\u00a0🙂aB1"
NAMES = st.text(st.sampled_from(AWKWARD), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
TAGS = NAMES.filter(
    lambda tag: (
        len(tag.encode()) <= 31
        and tag == tag.strip()
        and tag[0] not in "-#"
        and not tag.endswith("\\")
    )
)
HOSTS = st.sampled_from([USER, ROOT, FEDORA])


def made(directory: str = "/home/me/projects", tag: str = "share", **given: Any) -> ShareSpec:
    spec: dict[str, Any] = {
        "transport": Transport.P9,
        "hypervisor": Hypervisor.QEMU,
        "guard": GuardPlacement.GUEST,
        "host": USER,
        **given,
    }
    return ShareSpec(directory=directory, tag=tag, **spec)


def gitguard_share(*arguments: str | Path) -> str:
    done = CliRunner().invoke(share.command, [str(a) for a in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == 0
    return done.output


def test_the_current_directory_is_shared_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    expected = gitguard_share(tmp_path / "project")
    assert str(tmp_path / "project") in expected
    assert gitguard_share() == expected
    assert gitguard_share("--project", ".") == expected


# What is refused

VIRTIOFS, LIBVIRT, ON_HOST = Transport.VIRTIOFS, Hypervisor.LIBVIRT, GuardPlacement.HOST
LONG = replace(USER, runtime="/run/" + "x" * 100)
MAC = replace(USER, is_mac=True)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tag": ""}, "empty"),
        ({"tag": "a" * 32}, "longer than 31 bytes"),
        ({"tag": "é" * 16}, "longer than 31 bytes"),
        ({"tag": "a\nb"}, "control characters"),
        ({"tag": "\udcff"}, "control characters"),
        ({"tag": "\ufffe"}, "cannot be a mount tag"),
        ({"tag": "a/b"}, "no /"),
        ({"tag": ".."}, "no /"),
        ({"tag": "-r"}, "no - at the start"),
        ({"tag": "git~1"}, ".git"),
        ({"tag": "projects", "hypervisor": Hypervisor.UTM}, "UTM's tag is always share"),
        ({"directory": "/a\nb"}, "cannot be printed"),
        ({"directory": "/a\udcff"}, "cannot be printed"),
        ({"directory": "/a\ufffe"}, r"U\+FFFE"),
        ({"directory": "relative"}, "not an absolute path"),
        ({"disk": "/home/me/projects/x/agent.qcow2"}, "disk"),
        ({"directory": "/"}, "disk"),
        ({"directory": "/run", "guard": ON_HOST, "hypervisor": LIBVIRT}, "itself"),
        ({"guard": ON_HOST, "hypervisor": Hypervisor.UTM}, "not on a Mac"),
        ({"guard": ON_HOST, "host": MAC}, "not on a Mac"),
        ({"transport": VIRTIOFS, "host": MAC}, "virtiofsd runs on Linux"),
        ({"memory": 0}, "too little"),
        ({"cpus": 0}, "too little"),
        ({"transport": VIRTIOFS, "host": LONG}, "107 bytes"),
    ],
)
def test_what_cannot_be_carried_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why) as refusal:
        made(**given)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("hypervisor", ["libvirt", "utm"])
def test_options_of_a_machine_are_refused_where_qemu_is_not_started(
    tmp_path: Path, hypervisor: str
) -> None:
    with pytest.raises(UserError, match="--for qemu"):
        gitguard_share(tmp_path, "--for", hypervisor, "--network", "restricted")


def test_without_a_runtime_directory_all_is_printed_and_only_a_start_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    monkeypatch.setattr(share, "secrets_in", lambda _: [])
    warning = "/run/user/54321 does not exist yet: log in as this user, or set XDG_RUNTIME_DIR"
    for options, place in (
        (("--transport", "virtiofs"), "/run/user/54321/gitguardfs-share.sock"),
        (("--guard", "host"), "/run/user/54321/gitguardfs/share"),
    ):
        said = gitguard_share(tmp_path, *options)
        assert place in said and warning in said
    for options in ((), ("--transport", "virtiofs", "--for", "libvirt")):
        assert warning not in gitguard_share(tmp_path, *options)
    with pytest.raises(UserError, match=r"there is no /run/user/54321 .*at your login"):
        gitguard_share(tmp_path, "--guard", "host", "--run")


def test_the_command_line_keeps_a_path_with_quotes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = '/srv/it\'s "here" \\n'
    monkeypatch.setattr(installation, "PACKAGE_PARENT", holder)
    interpreter, isolated, _, code, *rest = installation.command("a b", "c")
    assert (interpreter, isolated, rest) == (sys.executable, "-I", ["a b", "c"])
    path: list[str] = []
    exec(code.partition("from gitguardfs")[0].replace("sys.path", "path"), {"path": path})
    assert path == [holder]


def start(tmp_path: Path) -> None:
    host = Host(uid=os.geteuid(), gid=os.getegid(), group="g", runtime=str(tmp_path))
    start_guard.start(made(str(tmp_path / "p"), "t", guard=GuardPlacement.HOST, host=host))


def test_a_guard_that_did_not_come_up_is_not_called_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "command", lambda *arguments: ["true"])
    with pytest.raises(UserError, match="not started") as refusal:
        start(tmp_path)
    assert refusal.value.code == Exit.MOUNT


def test_the_directory_of_the_views_is_closed_also_if_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "command", lambda *arguments: ["false"])
    (tmp_path / "gitguardfs").mkdir(mode=0o755)
    (tmp_path / "gitguardfs").chmod(0o755)
    with pytest.raises(UserError):
        start(tmp_path)
    assert S_IMODE((tmp_path / "gitguardfs").stat().st_mode) == 0o700
    (tmp_path / "gitguardfs/t").rmdir()
    (tmp_path / "gitguardfs").rmdir()
    (tmp_path / "gitguardfs").symlink_to("/tmp")
    with pytest.raises(UserError, match="move it away"):
        start(tmp_path)


def test_the_printed_commands_close_a_directory_that_is_there(tmp_path: Path) -> None:
    parent = tmp_path / "it's/gitguardfs"
    parent.mkdir(parents=True)
    parent.chmod(0o755)
    host = Host(uid=1, gid=1, group="g", runtime=str(parent.parent))
    spec = made(guard=GuardPlacement.HOST, tag="t", host=host)
    *make, _ = share_settings.commands(share_settings.settings(spec)["start"])
    for _ in range(2):
        for words in make:
            subprocess.run(words, check=True)
    assert S_IMODE(parent.stat().st_mode) == 0o700 and (parent / "t").is_dir()


@pytest.mark.parametrize(
    "arguments", [["absent"], [".", "--tag", ""], [".", "--transport", "nfs"], ["--elsewhere"]]
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [
            sys.executable, "-c", "from gitguardfs.commands.gitguard import main; main()",
            "share", *arguments,
        ],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(share.__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("gitguard")


# What is printed


def commands_of(text: str) -> list[list[str]]:
    """Return the commands in the blocks of a text, split as a shell does."""
    # No path holds a newline: a backslash before one always continues the line.
    lines = text.replace("\\\n", "").split("\n")
    return [shlex.split(line) for line in lines if line.startswith("    ")]


def lists_of(value: Any) -> list[list[str]]:
    """The commands in an object, wherever they are."""
    if isinstance(value, dict):
        return [found for item in value.values() for found in lists_of(item)]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [value]
    return [found for item in value for found in lists_of(item)] if isinstance(value, list) else []


@settings(deadline=None)
@given(
    NAMES,
    TAGS,
    HOSTS,
    st.sampled_from(Transport),
    st.sampled_from(GuardPlacement),
    st.sampled_from(MachineNetwork),
)
@example(
    'my, "pro\'jects" $(id) é', "a,b 'c'", FEDORA, Transport.VIRTIOFS, GuardPlacement.HOST, "open"
)
def test_a_shell_takes_from_the_text_what_json_says(
    name: str,
    tag: str,
    host: Host,
    transport: Transport,
    guard: GuardPlacement,
    network: MachineNetwork,
) -> None:
    if tag in (".", "..") or ".git" in tag:
        return
    spec = made(
        f"/home/me/{name}", tag, host=host, transport=transport, guard=guard,
        network=MachineNetwork(network),
    )  # fmt: skip
    said = share_settings.as_object(spec, running=False)
    assert json.loads(json.dumps(said)) == said
    text = share_settings.as_text(spec, running=False)
    stop = hostguard_stop(said)
    copied = [words for words in lists_of(said) if words != stop]
    assert sorted(commands_of(text)) == sorted(copied)
    assert not stop or shlex.join(stop) in text


def hostguard_stop(said: dict[str, Any]) -> list[str] | None:
    stop: list[str] | None = said["guard"]["stop"]
    return stop


KEYS = {
    "format", "directory", "exported", "tag", "transport", "for", "guard", "selinux", "qemu",
    "virtiofsd", "libvirt", "utm", "bundle", "user", "guest", "git", "watch", "warnings",
}  # fmt: skip


@pytest.mark.parametrize("hypervisor", list(Hypervisor))
@pytest.mark.parametrize("transport", list(Transport))
def test_json_always_has_the_same_keys(
    tmp_path: Path, hypervisor: Hypervisor, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    output = gitguard_share(tmp_path, "--for", hypervisor, "--transport", transport, "--json")
    said = json.loads(output)
    assert set(said) == KEYS and said["format"] == 1
    assert said["directory"] == said["exported"] == str(tmp_path)
    assert (said["for"], said["transport"], said["tag"]) == (hypervisor, transport, "share")
    assert [said[t] is not None for t in Hypervisor] == [t is hypervisor for t in Hypervisor]
    assert said["guard"] == {
        "on": "guest", "mountpoint": None, "start": [], "stop": None, "running": False,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["explicit", "all", ""])
def test_whether_git_trusts_bare_repositories_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "project").mkdir()
    (tmp_path / ".gitconfig").write_text(f"[safe]\n\tbareRepository = {value}\n" * bool(value))
    *_, line = gitguard_share(tmp_path / "project").splitlines()
    assert f"safe.bareRepository is {value or 'not set'}" in line
    assert ("(git config --global safe.bareRepository explicit)" in line) == (value != "explicit")
    said = json.loads(gitguard_share(tmp_path / "project", "--json"))
    assert said["git"] == line and not said["warnings"]
    said, _ = json.JSONDecoder().raw_decode(gitguard_share("/home/x/y", "--elsewhere", "--json"))
    assert said["git"] is None, "that machine has a git of its own"


def test_a_guard_on_the_host_is_what_is_shared() -> None:
    said: Any = share_settings.as_object(made(guard=GuardPlacement.HOST, tag="work"), running=True)
    view = "/run/user/1000/gitguardfs/work"
    assert said["exported"] == said["guard"]["mountpoint"] == view
    assert said["guard"]["start"][-1] == [
        "gitguardfs", "--no-seal", "/home/me/projects", view,
    ]  # fmt: skip
    assert said["guard"]["stop"] == ["fusermount3", "-u", view]
    assert f"path={view}," in said["qemu"]["arguments"][1]
    assert "/home/me/projects" not in " ".join(said["qemu"]["arguments"])
    text = share_settings.as_text(made(guard=GuardPlacement.HOST), running=True)
    assert "root of the guest cannot bypass it" in text and "it is running" in text


def test_a_users_virtiofsd_makes_all_files_his() -> None:
    said: Any = share_settings.as_object(made(transport=Transport.VIRTIOFS), running=False)
    assert "--translate-uid=squash-guest:0:1000:4294967295" in said["virtiofsd"]["command"]
    assert "--translate-gid=squash-guest:0:100:4294967295" in said["virtiofsd"]["command"]
    assert "--socket-group=users" in said["virtiofsd"]["debian12"]
    said = share_settings.as_object(made(transport=Transport.VIRTIOFS, host=ROOT), running=False)
    assert not [a for a in said["virtiofsd"]["command"] if "translate" in a]
    assert said["virtiofsd"]["debian12"][0] == "/usr/lib/qemu/virtiofsd"


# What --bundle writes


@pytest.mark.parametrize("more", [["."], ["--json"], [".", "--tag", "x"], ["--for", "qemu"]])
def test_a_bundle_is_written_alone(tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(UserError, match="alone"):
        gitguard_share("--bundle", tmp_path / "b.tar", *more)
    assert os.listdir(tmp_path) == []


def test_a_bundle_takes_the_place_of_one_and_of_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UserError, match="is no tar"):
        gitguard_share("--bundle", tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
    for _ in range(2):
        said = gitguard_share("--bundle", tmp_path / "my b.tar")
        assert "tar -xf 'my b.tar'" in said
    (tmp_path / "my b.tar").write_bytes(installation.bundle().replace(b"2026", b"2025"))
    gitguard_share("--bundle", tmp_path / "my b.tar")
    assert (tmp_path / "my b.tar").read_bytes() == installation.bundle()


# The network


def test_a_restricted_network_has_one_way_in_and_none_out() -> None:
    spec = made(network=MachineNetwork.RESTRICTED)
    said: Any = share_settings.as_object(spec, running=False)
    (nic,) = [words for words in said["qemu"]["run"] if words.startswith("user,")]
    assert nic.split(",")[2:] == ["restrict=on", "ipv6=off", "hostfwd=tcp:127.0.0.1:2222-:22"]
    assert "restrict=on" not in " ".join(said["qemu"]["install"])  # the installer fetches packages
    text = share_settings.as_text(spec, running=False)
    assert "reaches nothing" in text and "let the agent in only now" in text


# Other hosts


def test_a_host_with_arm_processors_gets_their_machine() -> None:
    host = replace(USER, is_arm=True, firmware="/usr/share/a,b/QEMU_EFI.fd")
    said: Any = share_settings.as_object(made(host=host), running=False)
    assert said["qemu"]["run"][:5] == [
        "qemu-system-aarch64", "-machine", "virt", "-bios", "/usr/share/a,b/QEMU_EFI.fd",
    ]  # fmt: skip
    assert "-boot" not in said["qemu"]["install"] and "-cdrom" in said["qemu"]["install"]
    assert "Debian's package" not in share_settings.as_text(made(host=host), running=False)
    text = share_settings.as_text(made(host=replace(host, firmware=None)), running=False)
    assert "-bios edk2-aarch64-code.fd" in text and "qemu-efi-aarch64" in text


def test_the_virtiofsd_that_is_there_is_the_one_that_is_run() -> None:
    def of(place: str | None, **more: Any) -> Any:
        spec = made(transport=Transport.VIRTIOFS, host=replace(USER, virtiofsd=place), **more)
        return share_settings.as_object(spec, running=False)["virtiofsd"], share_settings.as_text(
            spec, running=False
        )

    said, text = of("/usr/lib/virtiofsd")
    assert said["command"][0] == "/usr/lib/virtiofsd" and said["debian12"] is None
    said, text = of("/usr/lib/qemu/virtiofsd")
    assert said["command"][:2] == ["sudo", "/usr/lib/qemu/virtiofsd"]
    assert "source=/home/me/projects" in said["command"] and said["debian12"] is None
    assert "translate" not in text and "Instead of it" not in text
    with pytest.raises(UserError, match="--transport 9p"):
        of("/usr/lib/qemu/virtiofsd", guard=GuardPlacement.HOST)
    said, text = of(None)
    assert said["command"][0] == "/usr/libexec/virtiofsd" and "Instead of it on Debian 12" in text


# SELinux


def test_fedora_is_told_how_to_label_the_directory() -> None:
    said: Any = share_settings.as_object(made("/home/me/a.b c", host=FEDORA), running=False)
    assert said["selinux"] == [
        ["sudo", "semanage", "fcontext", "-a", "-t", "svirt_home_t", r"/home/me/a\.b\sc(/.*)?"],
        ["sudo", "restorecon", "-R", "/home/me/a.b c"],
    ]
    assert share_settings.as_object(made(host=USER), running=False)["selinux"] == []


def test_a_fuse_mount_has_no_label_of_its_own() -> None:
    said: Any = share_settings.as_object(
        made(host=FEDORA, guard=GuardPlacement.HOST), running=False
    )
    assert said["selinux"] == [["sudo", "setsebool", "-P", "virt_use_fusefs", "on"]]
