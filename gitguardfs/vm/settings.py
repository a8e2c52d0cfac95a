"""How a VM is set up: given to `vm up`, remembered for the next one, forgotten by `vm reset`."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from gitguardfs import config_files
from gitguardfs.errors import UserError
from gitguardfs.vm.state import State

FILE = "settings.json"
MIN_MEMORY_MIB = 512
"""MiB below which cloud-init does not get through a boot."""


@dataclass(frozen=True)
class Settings:
    """One VM's settings. Raises UserError for what makes no sense."""

    project: str
    image: str = "debian-13"
    memory: int = 8192
    """MiB."""
    cpus: int = 4
    guard: str = "guest"
    """``guest`` or ``host``: where .git is guarded."""
    git: str = "deny"
    """``deny`` or ``readonly``: what the agent may do with .git."""
    hide: tuple[str, ...] = ()
    """Names that the agent is not shown."""
    hardened: bool = False
    """QEMU may start no program; the proxy is reached through a reverse SSH tunnel."""
    git_name: str = "AI Agent"
    git_email: str = "agent@internal.sandbox"

    def __post_init__(self) -> None:
        if self.memory < MIN_MEMORY_MIB:
            raise UserError(f"--memory {self.memory}M is too little", f"at least {MIN_MEMORY_MIB}M")
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little", "at least 1")
        if self.guard == "host" and self.git != "deny":
            raise UserError("the guard on the host denies .git", "leave --git or --guard host out")
        for name in self.hide:
            if not name or "/" in name or not name.isprintable() or re.search(r"[,\\]", name):
                raise UserError(f"--hide {name!r} is not the name of a file", "no / and no comma")
        for value in (self.git_name, self.git_email):
            if not value.strip() or not value.isprintable():
                raise UserError(f"{value!r} is no name for git")


def load(state: State) -> Settings:
    """Return what is remembered of the VM, or the defaults. UserError if it cannot be read."""
    path = state.path(FILE)
    content = config_files.read(path)
    if content is None:
        return Settings(state.project)
    try:
        fields = json.loads(content)
        known = {field.name for field in dataclasses.fields(Settings)}
        if not isinstance(fields, dict) or not fields.keys() <= known:
            raise ValueError
        fields["hide"] = tuple(fields["hide"])
        return Settings(**fields)
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is damaged", "delete it, and give the settings again") from None


def save(state: State, settings: Settings) -> None:
    """Remember the settings. OSError."""
    text = json.dumps(dataclasses.asdict(settings), indent=2) + "\n"
    config_files.apply(config_files.planned(state.path(FILE), text, 0o600))


def before_start(old: Settings, new: Settings) -> Settings:
    """Return what is remembered of ``new`` before the VM has come up with it.

    A size that QEMU cannot start with must not fail the next start as well. What protects the
    project is remembered at once: the next start must not be one with less.
    """
    return dataclasses.replace(new, memory=old.memory, cpus=old.cpus)


def merged(old: Settings, given: dict[str, Any]) -> Settings:
    """Return ``old`` with what was given now; None is not given. UserError.

    Names to hide are added to those that were hidden: one more must not show the others. An empty
    name clears what was hidden.
    """
    wanted = {name: value for name, value in given.items() if value is not None}
    names = wanted.get("hide", ())
    before = () if "" in names else old.hide
    wanted["hide"] = tuple(dict.fromkeys((*before, *filter(None, names))))
    return dataclasses.replace(old, **wanted)
