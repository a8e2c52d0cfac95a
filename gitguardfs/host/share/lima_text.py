"""The text that ``gitguard lima`` prints: commands to run, and what stays open."""

from __future__ import annotations

from collections.abc import Iterator

from gitguardfs.base import quote
from gitguardfs.base.constants import AGENT
from gitguardfs.host.share import selinux
from gitguardfs.host.share.lima_yaml import LEAST_VERSION, LimaSpec
from gitguardfs.host.share.share_text import Section


def start(spec: LimaSpec, file: str) -> list[str]:
    """Return the command that creates the machine and starts it."""
    return ["limactl", "start", f"--name={spec.name}", "--tty=false", file]


def enter(spec: LimaSpec) -> list[str]:
    """Return the command that opens a shell as the agent's user."""
    return ["limactl", "shell", spec.name, "sudo", "-iu", AGENT]


def check(spec: LimaSpec) -> list[str]:
    """Return the command that checks the guard by attacks, as the agent's user."""
    doctor = ["sudo", "gitguard", "doctor", spec.view, "--user", AGENT, "--attack"]
    return ["limactl", "shell", "--workdir", "/", spec.name, *doctor]


def render(spec: LimaSpec, file: str, *, labels: bool) -> str:
    """Return all sections; ``labels`` says whether this host has SELinux on."""
    return "\n".join(section.render() for section in _sections(spec, file, labels))


def _sections(spec: LimaSpec, file: str, labels: bool) -> Iterator[Section]:
    if labels:
        yield Section(
            "SELinux, once",
            tuple(quote.shell(words) for words in selinux.label(spec.project)),
            ("For a QEMU that is confined, as libvirt's is; the one that Lima starts is not.",),
        )
    yield Section(
        f"Make the machine and start it (Lima {LEAST_VERSION} or later)",
        (quote.shell(start(spec, file)),),
        (
            f"It shares {spec.project}, and of this gitguardfs its own code, read-only; nothing",
            "  else of your home. Later: limactl start " + spec.name,
        ),
    )
    yield Section(
        "Enter it as the agent",
        (quote.shell(enter(spec)),),
        (
            f"The project is {spec.view}. {AGENT} has no sudo; Lima's own user, who has it without",
            "  a password, is for you: never start the agent by limactl shell alone.",
        ),
    )
    yield Section(
        "Is it safe?",
        (quote.shell(check(spec)),),
    )
    yield Section("The network", notes=_network(spec))


def _network(spec: LimaSpec) -> tuple[str, ...]:
    open_to_all = (
        "Lima cannot restrict its network: the guest reaches the internet, your local network and",
        "what listens on this machine's 127.0.0.1, which it sees as host.lima.internal.",
    )
    if spec.proxy is None:
        return (*open_to_all, "--proxy URL sets a proxy for its programs; it cannot enforce one.")
    return (
        *open_to_all,
        f"Its programs are set to use {spec.proxy}. This setting enforces nothing: a program",
        "that ignores it gets out. docs/lima.md names machines whose network can be closed.",
    )
