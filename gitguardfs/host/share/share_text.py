"""The text that ``gitguard share`` prints: sections of commands to copy, with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gitguardfs.base import quote
from gitguardfs.base.constants import AGENT, AGENT_HOME, UTM_TAG
from gitguardfs.host.share import guard_commands, libvirt, qemu, selinux, utm, virtiofsd
from gitguardfs.host.share.share_spec import (
    GuardPlacement,
    Hypervisor,
    MachineNetwork,
    ShareSpec,
    Transport,
)

INDENT = "    "
SETUP_TAG = "setup"
"""The tag of a second share, by which a file gets into the guest."""


@dataclass(frozen=True)
class Section:
    """A heading, blocks to copy, and notes about them."""

    title: str
    blocks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the section as text."""
        parts = [f"== {self.title}"]
        parts += ["\n".join(INDENT + line for line in b.split("\n")) for b in self.blocks]
        parts += ["\n".join(self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"


def render(spec: ShareSpec, running: bool, git: str | None = None) -> str:
    """Return all sections, in the order in which the user works through them.

    ``git`` is a line on the host's git, which comes last.
    """
    sections = [section.render() for section in _sections(spec, running)]
    return "\n".join([*sections, *([f"{git}\n"] if git else [])])


def _sections(spec: ShareSpec, running: bool) -> Iterator[Section]:
    if spec.guard is GuardPlacement.HOST:
        yield _guard(spec, running)
    if spec.hypervisor is not Hypervisor.UTM and spec.host.selinux:
        yield _selinux(spec)
    yield from {Hypervisor.QEMU: _qemu, Hypervisor.LIBVIRT: _libvirt, Hypervisor.UTM: _utm}[
        spec.hypervisor
    ](spec)
    yield from _guest(spec)


def _guard(spec: ShareSpec, running: bool) -> Section:
    who = "root" if spec.host.is_root else "you"
    other = (
        "another user's QEMU must be let into the directory above it (mode 0700)."
        if spec.host.is_root
        else "for another user's QEMU let root do this, or allow_other (fuse.conf(5))."
    )
    commands = [quote.shell(words) for words in guard_commands.start_on_host(spec)]
    return Section(
        "The guard on the host: it is running" if running else "The guard on the host: start it",
        tuple(commands),
        (
            "Why here: root of the guest cannot bypass it, and reaches only what is exported.",
            f"QEMU must run as {who}; {other}",
            f"Stop it after the machine: {quote.shell(guard_commands.stop_on_host(spec))}",
        ),
    )


def _selinux(spec: ShareSpec) -> Section:
    return Section(
        "SELinux, once",
        tuple(quote.shell(words) for words in selinux.commands(spec)),
        ("For a QEMU that is confined, as libvirt's is; one that you start yourself is not.",),
    )


def _qemu(spec: ShareSpec) -> Iterator[Section]:
    yield Section(
        "The guest's disk, once",
        (quote.shell(qemu.create_disk(spec)),),
    )
    yield Section(
        f"Install the guest, once: replace {qemu.INSTALLER} by your image",
        (quote.shell_lines(qemu.install(spec)),),
    )
    if spec.transport is Transport.VIRTIOFS:
        yield from _virtiofsd(spec)
    yield Section(
        "Start the guest",
        (quote.shell_lines(qemu.run(spec)),),
        (*_network_notes(spec), *_machine_notes(spec)),
    )
    yield Section(
        "Log in to the guest, if it has an ssh server",
        (quote.shell(qemu.login()),),
        (f"If QEMU says that port {qemu.SSH_PORT} is taken, choose another in both commands.",),
    )
    yield Section(
        "The share alone, for a command line of your own",
        (quote.shell_lines(qemu.share(spec)),),
        _share_notes(spec),
    )


def _network_notes(spec: ShareSpec) -> tuple[str, ...]:
    if spec.network is MachineNetwork.RESTRICTED:
        return (
            "restrict=on: the guest reaches nothing, neither the internet nor this machine's",
            "  services; an agent that works by a network service cannot work there either.",
            "The installer's machine above has an open network: let the agent in only now.",
        )
    return (
        "-nic user: the guest reaches the internet, your local network and, at 10.0.2.2, whatever",
        "  listens on this machine's own 127.0.0.1: databases, development servers, debuggers.",
        "  --network restricted leaves only a way in, by ssh.",
    )


def _machine_notes(spec: ShareSpec) -> Iterator[str]:
    accelerator = "hvf" if spec.host.is_mac else "kvm"
    yield f"-accel {accelerator} -accel tcg: hardware virtualisation, or without it slow emulation."
    if not spec.host.is_mac:
        yield "If QEMU aborts although there is a /dev/kvm, leave -accel kvm out."
    if spec.host.is_arm and spec.host.firmware is None:
        yield f"If QEMU does not find {qemu.FIRMWARE}: Debian's package is qemu-efi-aarch64,"
        yield "  Fedora's edk2-aarch64; replace it by the path of their QEMU_EFI.fd."


def _share_notes(spec: ShareSpec) -> tuple[str, ...]:
    if spec.transport is Transport.P9:
        return (
            "security_model=none: files stay plain ones, which you edit and commit here as well;",
            "  mapped-xattr would hide owners and symlinks from the programs of the host.",
            "multidevs=remap: no two files get one number, even with mounts in the directory.",
        )
    return (
        "memory-backend-memfd, share=on: virtiofsd reads and writes the guest's memory.",
        f"size={spec.memory}M: always the same as -m.",
    )


def _virtiofsd(spec: ShareSpec) -> Iterator[Section]:
    notes = ["--cache=auto: what you change here shows in the guest within a second."]
    is_in_c = spec.host.virtiofsd == virtiofsd.PROGRAM_IN_C
    if is_in_c:
        notes = ["cache=auto: what you change here shows in the guest within a second."]
    elif not spec.host.is_root:
        notes += [
            "--translate-…=squash-guest: it runs as you, so all that the guest makes is yours.",
            "  Older than 1.13 (Ubuntu 24.04): leave these two out, run it with sudo and add",
            f"  {quote.shell([f'--socket-group={spec.host.group}'])}",
        ]
    yield Section(
        "The share's daemon: in a terminal of its own, before each start of the guest",
        (quote.shell_lines(virtiofsd.command(spec)),),
        tuple(notes),
    )
    other = virtiofsd.alternative(spec)
    if other is not None:
        yield Section(
            "Instead of it on Debian 12, where the daemon is in qemu-system-common",
            (quote.shell_lines(other),),
        )


def _libvirt(spec: ShareSpec) -> Iterator[Section]:
    memory = libvirt.memory_backing(spec)
    if memory is not None:
        yield Section(
            "libvirt: virsh edit DOMAIN, directly below <domain>",
            (memory,),
            ("virtiofsd, which libvirt starts, reads and writes the guest's memory.",),
        )
        notes: tuple[str, ...] = ("With qemu:///session it needs libvirt 10 or later.",)
    else:
        notes = (
            "accessmode='squash': files stay plain ones, which you edit and commit here as well.",
            "multidevs='remap': no two files get one number, even with mounts in the directory.",
            "For qemu:///session, where QEMU runs as you; with qemu:///system use virtiofs.",
        )
    yield Section("libvirt: virsh edit DOMAIN, below <devices>", (libvirt.filesystem(spec),), notes)
    yield Section(
        "libvirt: the network",
        notes=(
            "libvirt's default network lets the guest reach the internet, your local network and",
            "what listens on all addresses of this machine (192.168.122.1); the user network of",
            "qemu:///session also what listens on its 127.0.0.1 alone (10.0.2.2). A machine",
            "without an <interface> reaches nothing: virsh console is the way in then.",
        ),
    )


def _utm(spec: ShareSpec) -> Iterator[Section]:
    width = max(len(place) for place, _ in utm.settings(spec))
    lines = [f"{place.ljust(width)}  {value}" for place, value in utm.settings(spec)]
    notes = ["A Mac's files usually belong to 501:20; vm-mount finds it out (by hand: --map auto)."]
    if spec.transport is Transport.VIRTIOFS:
        notes.append(
            "The share holds the directory under its name: "
            f"{AGENT_HOME}/{utm.GUEST_NAME}/{spec.name}"
        )
    yield Section(f"UTM, backend {utm.BACKENDS[spec.transport]}", ("\n".join(lines),), tuple(notes))
    yield Section("UTM: the network", notes=utm.network(spec))


def _guest(spec: ShareSpec) -> Iterator[Section]:
    yield Section(
        "gitguardfs itself, for the guest: once, here",
        (
            quote.shell(guard_commands.pack()),
            quote.shell(guard_commands.copy_to_guest(spec)),
        ),
        _second_share(spec),
    )
    yield Section(
        "In the guest, once: install it",
        tuple(quote.shell(words) for words in guard_commands.install_in_guest()),
        (
            "It fetches fuse3, python3-pyfuse3, python3-trio and python3-click. In a guest without",
            "  a network install these with the system. With one, a clone will do as well, or",
            "  the Debian package: sudo apt install ./gitguardfs_*_all.deb",
        ),
    )
    yield Section(
        "In the guest, once: a user of the agent's own, without sudo",
        (quote.shell(guard_commands.make_user()),),
        (
            f"If there is none yet. Start the agent as this user (sudo -iu {AGENT}), never as your",
            "  own: who can become root can get round a guard in the guest.",
        ),
    )
    why = (
        "It maps the owners; .git is guarded on the host already."
        if spec.guard is GuardPlacement.HOST
        else "It maps the owners, guards .git and mounts both again at each boot."
    )
    yield Section(
        "In the guest, once: the share",
        (quote.shell(guard_commands.start_in_guest(spec)),),
        (
            why,
            "With --local deps, node_modules, .venv, target and the like stay on the guest's own",
            "  disk: that is faster, and what the agent installs never lies here.",
        ),
    )


def _second_share(spec: ShareSpec) -> tuple[str, ...]:
    """Return how the packed gitguardfs gets into a guest that ssh does not lead into."""
    if spec.hypervisor is Hypervisor.UTM:
        return (
            "Without ssh: put it into a directory of its own, share that before the project, and",
            f"  in the guest {_mount(spec, UTM_TAG)}",
        )
    return (
        f"Without ssh: put it into a directory of its own, share that too, with --tag {SETUP_TAG},",
        f"  and in the guest {_mount(spec, SETUP_TAG)}",
    )


def _mount(spec: ShareSpec, tag: str) -> str:
    options = ["-o", "trans=virtio,version=9p2000.L"] if spec.transport is Transport.P9 else []
    return quote.shell(["sudo", "mount", "-t", spec.transport.value, *options, tag, "/mnt"])
