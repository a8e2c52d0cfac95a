"""Arguments of podman, and a compose file, for a microVM that guards a project. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gitguardfs.base import installation, quote
from gitguardfs.base.constants import AGENT_HOME, LOCAL_STORE, PRIVATE_STORE, PROJECT_SHARE
from gitguardfs.base.errors import UserError
from gitguardfs.base.paths import checksum, slug
from gitguardfs.host.share.template import fill
from gitguardfs.names.rules import GitMode
from gitguardfs.options.guarded_share import (
    check_guard_options,
    git_mode,
    local_globs,
    with_git_mode,
)
from gitguardfs.options.parsing import quote_o

RUNTIME = "krun"
LEAST_MEMORY = 512
"""MiB: a shell and gitguardfs take a third of it."""

_PATH = re.compile(r"[^\x00-\x1f\x7f:]+")


class ContainerNetwork(StrEnum):
    """What the microVM may reach: the container network, or nothing."""

    OPEN = "open"
    NONE = "none"


@dataclass(frozen=True)
class KrunSpec:
    """A project and the microVM for it. Raises UserError for a value that podman cannot carry."""

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
        return f"gitguard-{slug(self.project, 40) or 'project'}-{checksum(self.project)}"

    @property
    def image(self) -> str:
        """Return the image's name; localhost/ keeps podman from asking a registry for it."""
        return f"localhost/{self.name}"


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
    named = [f"{name}:{point}" for point, name in volumes(spec).items()]
    return [f"{spec.project}:{PROJECT_SHARE}:z", *named]


def guard_options(spec: KrunSpec) -> str:
    """Return the options of the guard, which the entrypoint reads from GITGUARD_OPTIONS."""
    return ",".join(map(quote_o, with_git_mode(spec.options)))


def build(spec: KrunSpec, directory: str) -> list[str]:
    """Return the command that builds the image."""
    ids = (f"--build-arg=AGENT_UID={spec.uid}", f"--build-arg=AGENT_GID={spec.gid}")
    return ["podman", "build", f"--tag={spec.image}", *ids, directory]


def run(spec: KrunSpec, command: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the command that runs ``command`` in a microVM, or a shell if it is empty."""
    return [
        *("podman", "run", "--rm", "--interactive"),
        *(("--tty",) if terminal else ()),
        # It selects krun: the annotation run.oci.handler as well would be an error.
        f"--runtime={RUNTIME}",
        f"--annotation=krun.cpus={spec.cpus}",
        f"--annotation=krun.ram_mib={spec.memory}",
        # keep-id: the host user's files belong to the agent. 0:0: the file server acts for all ids.
        "--userns=keep-id",
        "--user=0:0",
        *(("--network=none",) if spec.network is ContainerNetwork.NONE else ()),
        *(f"--volume={mount}" for mount in _mounts(spec)),
        f"--env=GITGUARD_OPTIONS={guard_options(spec)}",
        spec.image,
        *command,
    ]


def compose(spec: KrunSpec) -> str:
    """Return the compose file."""
    conditions = {
        "closed": spec.network is ContainerNetwork.NONE,
        "private": PRIVATE_STORE in volumes(spec),
        "local": LOCAL_STORE in volumes(spec),
    }
    facts = [fact for fact, holds in conditions.items() if holds]
    values = {
        **vars(spec),
        "name": spec.name,
        "image": spec.image,
        "project": _for_compose(_mounts(spec)[0]),
        "options": _for_compose(guard_options(spec)),
    }
    return fill(installation.text("host/share/files/compose.yaml"), facts, values)


def _for_compose(text: str) -> str:
    """Return a YAML string in which compose substitutes no variable."""
    return quote.yaml(text.replace("$", "$$"))
