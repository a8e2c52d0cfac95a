"""Arguments of podman, and a compose file, for a microVM that guards a project. Pure."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gitguardfs.base.constants import AGENT_HOME, LOCAL_STORE, PRIVATE_STORE, PROJECT_SHARE
from gitguardfs.base.errors import UserError
from gitguardfs.host.share import yaml
from gitguardfs.host.share.yaml import Value
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import (
    check_guard_options,
    git_mode,
    local_globs,
    with_git_mode,
)
from gitguardfs.options.parsing import quote_o

RUNTIME = "krun"
COMPOSE_HEADER = """\
# Written by gitguardfs (gitguard krun init).
# podman-compose run --rm agent does what gitguard krun run does.
"""
LEAST_MEMORY = 512
"""MiB: a shell and gitguardfs take a third of it."""

_PATH = re.compile(r"[^\x00-\x1f\x7f:]+")


class ContainerNetwork(StrEnum):
    """What the microVM may reach: the container network, or nothing."""

    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True)
class KrunSpec:
    """A project and the microVM for it. Raises UserError for what podman cannot carry."""

    project: str
    """The project's absolute path on the host."""
    uid: int
    gid: int
    """The ids of the host's user, who owns the files that the agent makes."""
    cpus: int = 4
    memory: int = 8192
    """MiB."""
    network: ContainerNetwork = ContainerNetwork.OPEN
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
            raise UserError(f"--cpus {self.cpus} is too little", "at least 1")
        if self.memory < LEAST_MEMORY:
            raise UserError(f"--memory {self.memory}M is too little", f"at least {LEAST_MEMORY}M")
        check_guard_options(self.options)

    @property
    def name(self) -> str:
        """Return the name from which the names of image and volumes are made."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.project.rpartition("/")[2].lower())[:40].strip("-")
        return f"gitguard-{slug or 'project'}-{mark(self.project)}"

    @property
    def image(self) -> str:
        """Return the image's name; localhost/ keeps podman from asking a registry for it."""
        return f"localhost/{self.name}"


def mark(project: str) -> str:
    """Return eight digits of the path's checksum, which distinguish projects of the same name."""
    return hashlib.sha256(os.fsencode(project)).hexdigest()[:8]


def _size(spec: KrunSpec) -> dict[str, str]:
    """Return the annotations for krun: processors and memory.

    ``--runtime`` selects krun; the annotation run.oci.handler as well would be an error.
    """
    return {"krun.cpus": str(spec.cpus), "krun.ram_mib": str(spec.memory)}


def volumes(spec: KrunSpec) -> dict[str, str]:
    """Return the names of the volumes, by their mount points."""
    found = {
        f"{AGENT_HOME}/.venv": f"{spec.name}-venv",
        f"{AGENT_HOME}/.claude": f"{spec.name}-config",
    }
    if git_mode(spec.options) is GitMode.PRIVATE:
        found[PRIVATE_STORE] = f"{spec.name}-git"
    if local_globs(spec.options):
        found[LOCAL_STORE] = f"{spec.name}-local"
    return found


def _mounts(spec: KrunSpec) -> list[str]:
    # z: podman gives the directory the SELinux label that all containers may use.
    named = [f"{name}:{place}" for place, name in volumes(spec).items()]
    return [f"{spec.project}:{PROJECT_SHARE}:z", *named]


def _build_arguments(spec: KrunSpec) -> dict[str, str]:
    return {"AGENT_UID": str(spec.uid), "AGENT_GID": str(spec.gid)}


def environment(spec: KrunSpec) -> dict[str, str]:
    """Return the environment variables that the entrypoint reads."""
    return {"GITGUARD_OPTIONS": ",".join(map(quote_o, with_git_mode(spec.options)))}


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
        # keep-id: the host user's files belong to the agent. 0:0: the file server acts for all ids.
        "--userns=keep-id",
        "--user=0:0",
        *_network(spec),
        *(f"--volume={mount}" for mount in _mounts(spec)),
        *(f"--env={name}={value}" for name, value in environment(spec).items()),
        spec.image,
        *command,
    ]


def _network(spec: KrunSpec) -> Iterator[str]:
    if spec.network is ContainerNetwork.NONE:
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
        **({"network_mode": "none"} if spec.network is ContainerNetwork.NONE else {}),
        "volumes": [_uninterpolated(mount) for mount in _mounts(spec)],
        "environment": {n: _uninterpolated(v) for n, v in environment(spec).items()},
        "stdin_open": True,
        "tty": True,
    }
    # Explicit names: compose would add a prefix, and `run` uses the same volumes.
    named: dict[str, Value] = {name: {"name": name} for name in volumes(spec).values()}
    # podman-compose would make a pod, and podman refuses --userns for a container in a pod.
    apart: dict[str, Value] = {"in_pod": False}
    return COMPOSE_HEADER + yaml.render(
        {"x-podman": apart, "services": {"agent": service}, "volumes": named}
    )


def _uninterpolated(text: str) -> str:
    """Escape a value so that compose substitutes no variable in it."""
    return text.replace("$", "$$")
