"""QEMU's and ssh's command lines, and which accelerator is tried."""

import os
import platform
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.host.share import kvm
from gitguardfs.host.vm import accelerators, keys, ssh
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.ports import Port
from gitguardfs.host.vm.qemu_command import Machine, command
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

MACHINE = Machine(
    state=State("/srv/p", "/home/me/.local/state/gitguardfs/vm/p-1"),
    image=Image("/cache/base.qcow2"),
    exported=Settings("/srv/p").shares,
    settings=Settings("/srv/p"),
    accelerator="kvm",
    relay=("/usr/bin/python3", "-I", "-S", "/lib/relay.py", "/state"),
    channel=7,
)


def values(machine: Machine, option: str) -> list[str]:
    words = command(machine)
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_the_network_is_closed_but_for_ssh_and_the_proxy() -> None:
    (netdev,) = values(MACHINE, "-netdev")
    *options, relay = netdev.split(",")
    assert options == ["user", "id=net", "restrict=on", "ipv6=off", "hostfwd=tcp:127.0.0.1:0-:22"]
    assert relay.endswith(":8080-cmd:/usr/bin/python3 -I -S /lib/relay.py /state")
    words = " ".join(command(MACHINE))
    assert "-nic" not in words
    assert words.count("-netdev") == 1
    assert "smb=" not in words
    assert "tftp=" not in words


def test_each_share_is_a_device_and_qemu_refuses_to_write_to_one_for_reading() -> None:
    own = Settings("/srv/p", share=("/srv/a:ro", "/srv/b"))
    machine = replace(MACHINE, exported=own.shares)
    shares = [share.split(",") for share in values(machine, "-virtfs")]
    assert [share[1] for share in shares] == ["path=/srv/p", "path=/srv/a", "path=/srv/b"]
    assert ["readonly=on" in share for share in shares] == [False, True, False]
    for word in ("id=", "mount_tag="):
        assert len({part for share in shares for part in share if part.startswith(word)}) == 3


def test_a_port_tells_of_changes_unless_nobody_would_read_it() -> None:
    assert any("name=org.gitguardfs.changes" in one for one in values(MACHINE, "-device"))
    (socket,) = [one for one in values(MACHINE, "-chardev") if "changes.sock" in one]
    assert socket.endswith("/p-1/changes.sock,server=on,wait=off")
    for own in (Settings("/srv/p", watch=False), Settings("/srv/p", guard="host")):
        assert "changes" not in " ".join(command(replace(MACHINE, settings=own)))
    assert "changes" not in " ".join(command(replace(MACHINE, exported=())))  # sets a disk up


def test_a_hardened_machine_starts_no_program() -> None:
    hardened = replace(MACHINE, settings=Settings("/srv/p", hardened=True))
    assert "cmd:" not in " ".join(command(hardened))
    (sandbox,) = values(hardened, "-sandbox")
    for part in ("spawn=deny", "elevateprivileges=deny", "resourcecontrol=deny", "obsolete=deny"):
        assert part in sandbox
    (plain,) = values(MACHINE, "-sandbox")
    assert "obsolete=deny" in plain
    assert "elevateprivileges" not in plain  # it kills the relays


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(
        lambda n: "/" not in n
    )
)
def test_any_path_gets_through_qemus_commas(name: str) -> None:
    state = State("/p", f"/state/{name}")
    machine = replace(MACHINE, exported=Settings(f"/srv/{name}").shares, state=state)
    (share,) = values(machine, "-virtfs")
    assert share.replace(",,", "\0").split(",")[1].replace("\0", ",") == f"path=/srv/{name}"
    disk = values(machine, "-drive")[0]
    assert disk.replace(",,", "\0").split(",")[0].replace("\0", ",") == (
        f"file=/state/{name}/disk.qcow2"
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_the_relays_words_survive_qemu_and_its_shell_parsing(words: list[str]) -> None:
    machine = replace(MACHINE, relay=tuple(words))
    (netdev,) = values(machine, "-netdev")
    _, _, target = netdev.partition("-cmd:")
    assert shlex.split(target.replace(",,", ",")) == words


# ssh

GUEST = ssh.SshGuest(keys.Keys("/state/keys"), 40000, "/home/agent/projects/my project")


def options_of(words: list[str]) -> dict[str, str]:
    pairs = [words[i + 1] for i, word in enumerate(words) if word == "-o"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_nothing_of_the_hosts_user_goes_along() -> None:
    words = ssh.command(GUEST, keys.AGENT)
    assert words[1:3] == ["-F", "/dev/null"]
    options = options_of(words)
    assert options["IdentityAgent"] == "none"
    assert options["IdentitiesOnly"] == "yes"
    assert options["ForwardAgent"] == "no"
    assert options["ForwardX11"] == "no"
    assert "SendEnv" not in options


def test_ssh_asks_nobody_but_a_user_at_a_terminal() -> None:
    for words in (
        ssh.command(GUEST, keys.ADMIN),
        ssh.session(GUEST, (), False, keys.AGENT),
        ssh.forward(GUEST, [Port(1, 2)]),
        ssh.tunnel(GUEST, "10.0.2.100", 8080, 1),
    ):
        assert options_of(words)["BatchMode"] == "yes"
    shell = options_of(ssh.session(GUEST, (), True, keys.AGENT))
    assert shell["BatchMode"] == "no"
    assert shell["PasswordAuthentication"] == shell["KbdInteractiveAuthentication"] == "no"


def test_the_guests_key_is_pinned() -> None:
    options = options_of(ssh.command(GUEST, keys.AGENT))
    assert options["StrictHostKeyChecking"] == "yes"
    assert options["UserKnownHostsFile"] == "/state/keys/known_hosts"
    assert options["GlobalKnownHostsFile"] == "/dev/null"
    assert options["HostKeyAlias"] == keys.HOST_ALIAS


def test_several_words_are_a_command_and_one_is_a_line() -> None:
    def remote(*words: str) -> str:
        begin = f"cd {shlex.quote(GUEST.view)} && "
        return ssh.session(GUEST, words, False, keys.AGENT)[-1].partition(begin)[2]

    assert remote("ls", "a b") == "ls 'a b'"
    assert remote("make && ls") == "make && ls"


def test_paths_with_blanks_and_percents_survive_sshs_own_parsing() -> None:
    odd = replace(GUEST, keys=keys.Keys("/my state/100%"))
    assert options_of(ssh.command(odd, keys.AGENT))["IdentityFile"] == '"/my state/100%%/agent"'
    assert '    IdentityFile "/my state/100%%/agent"' in ssh.config(odd, "x").splitlines()


# Accelerators


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State("/srv/p", str(tmp_path))


def test_kvm_that_failed_is_not_tried_again_with_this_kernel(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    monkeypatch.setattr(kvm, "KVM_DEVICE", str(device))
    assert accelerators.candidates(state, "Linux") == ["tcg"]
    device.touch()
    assert accelerators.candidates(state, "Linux") == ["kvm", "tcg"]
    accelerators.remember_failure(state, "kvm")
    assert accelerators.candidates(state, "Linux") == ["tcg"]
    monkeypatch.setattr(platform, "release", lambda: "another kernel")
    assert accelerators.candidates(state, "Linux") == ["kvm", "tcg"]
    assert accelerators.candidates(state, "Darwin") == ["hvf", "tcg"]


def test_without_kvm_a_line_says_why_the_vm_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = tmp_path / "kvm"
    monkeypatch.setattr(kvm, "KVM_DEVICE", str(device))
    accelerators.warn_without_kvm("Linux")
    assert "firmware" in capsys.readouterr().err
    device.touch()
    with monkeypatch.context() as closed:
        closed.setattr(os, "access", lambda *_: False)
        accelerators.warn_without_kvm("Linux")
    assert "usermod -aG kvm" in capsys.readouterr().err
    accelerators.warn_without_kvm("Linux")
    accelerators.warn_without_kvm("Darwin")
    assert capsys.readouterr().err == ""
