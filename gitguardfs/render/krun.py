"""A microVM of podman and krun whose agent sees a project through the guard. Pure.

One description gives the arguments of podman and the compose file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gitguardfs.errors import UserError
from gitguardfs.options.parsing import quote_o
from gitguardfs.render import yaml
from gitguardfs.render.guarded_share import check_guard_options
from gitguardfs.render.yaml import Value

RUNTIME = "krun"
SHARE = "/var/lib/gitguardfs/shares/project"
"""Where the microVM has the raw project, below a directory that only root enters."""
HOME = "/home/agent"
COMPOSE_HEADER = """\
# Written by gitguardfs (gitguard krun init).
# podman-compose run --rm agent does what gitguard krun run does.
"""
LEAST_MEMORY = 512
"""MiB; a shell and gitguardfs take a third of it."""

_PATH = re.compile(r"[^\x00-\x1f\x7f:]+")


class Network(StrEnum):
    """What the microVM reaches."""

    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True)
class KrunSpec:
    """A project and the microVM for it. Raises UserError for what podman cannot carry."""

    project: str
    """Absolute path on the host."""
    uid: int
    gid: int
    """Of the host's user, whose the agent's files are."""
    cpus: int = 4
    memory: int = 8192
    """MiB."""
    network: Network = Network.OPEN
    options: tuple[str, ...] = ()
    """Further options of the guard."""

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.project):
            raise UserError(
                f"podman cannot mount {self.project!r}",
                "no colons or control characters in it: rename the directory",
            )
        if self.uid == 0:
            raise UserError("the agent would have root's id", "run it as an ordinary user")
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little")
        if self.memory < LEAST_MEMORY:
            raise UserError(f"--memory {self.memory}M is too little", f"at least {LEAST_MEMORY}M")
        check_guard_options(self.options)

    @property
    def name(self) -> str:
        """What image and volumes are called after."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.project.rpartition("/")[2].lower())[:40].strip("-")
        return f"gitguard-{slug or 'project'}-{mark(self.project)}"

    @property
    def image(self) -> str:
        """The image's name; localhost/ keeps podman from asking a registry for it."""
        return f"localhost/{self.name}"


def mark(project: str) -> str:
    """Return what tells projects of one name apart: a few digits of the path's checksum."""
    return hashlib.sha256(os.fsencode(project)).hexdigest()[:8]


def _size(spec: KrunSpec) -> dict[str, str]:
    """Return the annotations for krun. The runtime alone names the handler: both is an error."""
    return {"krun.cpus": str(spec.cpus), "krun.ram_mib": str(spec.memory)}


def volumes(spec: KrunSpec) -> dict[str, str]:
    """Return the named volumes by where they are mounted."""
    return {f"{HOME}/.venv": f"{spec.name}-venv", f"{HOME}/.claude": f"{spec.name}-config"}


def _mounts(spec: KrunSpec) -> list[str]:
    # z: a label that containers may use, which SELinux asks for.
    named = [f"{name}:{place}" for place, name in volumes(spec).items()]
    return [f"{spec.project}:{SHARE}:z", *named]


def _build_arguments(spec: KrunSpec) -> dict[str, str]:
    return {"AGENT_UID": str(spec.uid), "AGENT_GID": str(spec.gid)}


def environment(spec: KrunSpec) -> dict[str, str]:
    """Return what the entrypoint goes by."""
    options = ",".join(map(quote_o, spec.options))
    return {"GITGUARD_OPTIONS": options} if options else {}


def build(spec: KrunSpec, directory: str) -> list[str]:
    """Return the command that builds the image."""
    arguments = [f"--build-arg={name}={value}" for name, value in _build_arguments(spec).items()]
    return ["podman", "build", f"--tag={spec.image}", *arguments, directory]


def run(spec: KrunSpec, command: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the command that runs ``command`` in a microVM, or a shell if it is empty."""
    return [
        *("podman", "run", "--rm", "--interactive"),
        *(("--tty",) if terminal else ()),
        f"--runtime={RUNTIME}",
        *(f"--annotation={name}={value}" for name, value in _size(spec).items()),
        # The host user's files are the agent's; the file server acts for all ids of the guest.
        "--userns=keep-id",
        "--user=0:0",
        *_network(spec),
        *(f"--volume={mount}" for mount in _mounts(spec)),
        *(f"--env={name}={value}" for name, value in environment(spec).items()),
        spec.image,
        *command,
    ]


def _network(spec: KrunSpec) -> Iterator[str]:
    if spec.network is Network.NONE:
        yield "--network=none"


def compose(spec: KrunSpec) -> str:
    """Return the compose file."""
    service: dict[str, Value] = {
        "image": spec.image,
        "build": {"context": ".", "dockerfile": "Dockerfile", "args": _build_arguments(spec)},
        "runtime": RUNTIME,
        "annotations": _size(spec),
        "userns_mode": "keep-id",
        "user": "0:0",
        **({"network_mode": "none"} if spec.network is Network.NONE else {}),
        "volumes": [_uninterpolated(mount) for mount in _mounts(spec)],
        **(
            {"environment": {n: _uninterpolated(v) for n, v in environment(spec).items()}}
            if environment(spec)
            else {}
        ),
        "stdin_open": True,
        "tty": True,
    }
    # By these very names, which the commands above use as well.
    named: dict[str, Value] = {name: {"name": name} for name in volumes(spec).values()}
    # podman-compose would make a pod, and podman refuses ids of a container's own within one.
    apart: dict[str, Value] = {"in_pod": False}
    return COMPOSE_HEADER + yaml.render(
        {"x-podman": apart, "services": {"agent": service}, "volumes": named}
    )


def _uninterpolated(text: str) -> str:
    """Return a value in which compose finds no variable."""
    return text.replace("$", "$$")
