"""A VM's settings: given to `vm up`, saved for the next one, deleted by `vm reset`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gitguardfs.base.errors import UserError, shown
from gitguardfs.host.vm import ports, shares
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.shares import Share
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.up_options import NO_AGENT
from gitguardfs.names.rules import HIDE, GuardRules, RuleSet
from gitguardfs.options import config_files
from gitguardfs.options.guarded_share import DEFAULT_GIT, DEFAULT_LOCAL

FILE = "settings.json"
_GITS = (None, "deny", "readonly", "private")
MIN_MEMORY_MIB = 512
"""With less, cloud-init does not complete a boot."""
MOST_CPUS = 4
"""A guest has as many processors as the host by default, but not more than this."""


@dataclass(frozen=True)
class Settings:
    """One VM's settings. Raises UserError for an invalid value."""

    project: str
    image: str = "debian-13"
    memory: int = 8192
    """MiB."""
    cpus: int = field(default_factory=lambda: min(MOST_CPUS, os.cpu_count() or 1))
    guard: str = "guest"
    """``guest`` or ``host``: where .git is guarded."""
    git: str | None = None
    """``deny``, ``readonly`` or ``private``: what the agent has of git; None for the default."""
    hide: tuple[str, ...] = ()
    """Patterns of names that are hidden from the agent."""
    hide_secrets: bool = True
    """Whether names of environment files and keys are hidden from the agent too."""
    show: tuple[str, ...] = ()
    """Patterns of names that are shown in spite of ``hide_secrets``."""
    local: tuple[str, ...] = DEFAULT_LOCAL
    """Patterns of the names of directories that are kept on the guest's own disk."""
    hardened: bool = False
    """QEMU may start no program; the guest reaches the proxy by a reverse SSH tunnel."""
    publish: tuple[str, ...] = ()
    """Ports that lead into the guest while the VM runs, as ports.parsed() reads them."""
    share: tuple[str, ...] = ()
    """Directories that are shared besides the project, as shares.parsed() reads them."""
    package: tuple[str, ...] = ()
    """Packages of the guest's distribution that a start installs."""
    git_name: str = "AI Agent"
    git_email: str = "agent@internal.sandbox"
    watch: bool = True
    """Whether the guest is told at once of what changes in the shares."""
    agent: str = NO_AGENT
    """The name of the agent that it has, or the path of a file of the user's that describes one."""

    def __post_init__(self) -> None:
        if self.memory < MIN_MEMORY_MIB:
            raise UserError(
                f"--memory {self.memory}M is too little", f"give at least {MIN_MEMORY_MIB}M"
            )
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little", "give at least 1")
        if self.guard not in ("guest", "host") or self.git not in _GITS:
            raise UserError(f"--guard {self.guard} and --git {self.git} are not possible")
        if self.guard == "host" and self.git_mode != "deny":
            why = ": the agent's repository must lie in the guest" * (self.git == "private")
            raise UserError(
                f"--guard host and --git {self.git} exclude each other{why}",
                "--git deny, or --guard guest",
            )
        given = (("--hide", self.hide), ("--show", self.show), ("--local", self.local))
        for option, names in given:
            for name in names:
                if not name.isprintable() or not re.fullmatch(r"[^/,\\]+", name):
                    raise UserError(
                        f"{option} {name!r} is not the name of a file", "use no /, \\ or comma"
                    )
        for name in self.package:
            if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name):
                raise UserError(
                    f"--package {name!r} is not the name of a package",
                    "small letters, digits, and . + - between, as in apt install NAME",
                )
        ports.merged((), self.publish)
        shares.merged((), self.share)
        for value in (self.git_name, self.git_email):
            if not value.strip() or not value.isprintable():
                raise UserError(f"{value!r} cannot be a name or address for git")

    @property
    def git_mode(self) -> str:
        """The agent's access to git: ``deny``, ``readonly`` or ``private``."""
        return self.git or ("deny" if self.guard == "host" else DEFAULT_GIT.value)

    @property
    def tells_changes(self) -> bool:
        """Whether the guest is told of changes: a guard on the host is no process of the guest."""
        return self.watch and self.guard == "guest"

    @property
    def shares(self) -> tuple[Share, ...]:
        """All directories that are shared, the project first."""
        return shares.of_vm(self.project, self.share)

    @property
    def others_writable(self) -> tuple[str, ...]:
        """The directories besides the project in which the agent may write."""
        return tuple(one.directory for one in self.shares[1:] if one.is_writable)

    def hides(self, name: str) -> bool:
        """Return whether files and directories of this name are hidden from the agent."""
        return self._rules.verdict_of_name(os.fsencode(name))[0] is HIDE

    @functools.cached_property
    def _rules(self) -> RuleSet:
        return RuleSet(GuardRules(hide=self.hide, hide_secrets=self.hide_secrets, show=self.show))


@dataclass(frozen=True)
class Saved:
    """The record of a VM's last start."""

    settings: Settings
    """The settings of that start."""
    remembered: Settings
    """The settings that the options of all starts have given, without those of gitguard.toml."""
    file_keys: tuple[str, ...] = ()
    """Names of the options that gitguard.toml gave."""


def load(state: State) -> Settings:
    """Return the VM's saved settings, or the defaults. Raises UserError if the file is damaged."""
    return load_saved(state).settings


def load_saved(state: State) -> Saved:
    """Return the record of the last start, or the defaults. Raises UserError if it is damaged."""
    path = state.path(FILE)
    content = config_files.read(path)
    if content is None:
        return Saved(Settings(state.project), Settings(state.project))
    try:
        # A VM that is older than these settings goes on without them.
        newer = {"hide_secrets": False, "agent": NO_AGENT, "watch": True}
        newer |= {name: [] for name in ("show", "share", "package")}
        fields = {**newer, **json.loads(content)}
        file_keys = tuple(map(str, fields.pop("file_keys", ())))
        without_file = {**fields, **fields.pop("without_file", {})}
        without_file.pop("without_file", None)
        found = Saved(_settings(fields), _settings(without_file), file_keys)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UserError):
        raise UserError(
            f"{path} is damaged", "delete it, and give --hide, --git and all other settings again"
        ) from None
    of = found.settings.project
    if state.project not in ("/", of):  # names end in a checksum of 32 bits, and the agent can try
        raise UserError(
            f"the VM {state.name} is that of {shown(of)}", f"rename {shown(state.project)}"
        )
    return found


def _settings(fields: dict[str, Any]) -> Settings:
    """Return settings of these fields. Raises TypeError, KeyError, UserError."""
    for name, default in dataclasses.asdict(Settings("")).items():
        value = fields[name]
        if isinstance(default, tuple):
            value = fields[name] = tuple(value)
            value = default if all(isinstance(part, str) for part in value) else None
        if not isinstance(value, (str, type(None)) if name == "git" else type(default)):
            raise TypeError(name)
    return Settings(**fields)


def refuse_led_project(path: str) -> None:
    """Raise UserError if the agent of a VM could have led an absolute path to another project."""
    places = set()
    for state in states.all_states():
        with suppress(UserError, OSError):  # of a VM that is damaged nothing is known
            own = load(state)
            places |= {own.project, *own.others_writable}
    shares.refuse_led(f"the project {shown(path)}", path, sorted(places))


def save(
    state: State,
    settings: Settings,
    remembered: Settings | None = None,
    file_keys: tuple[str, ...] = (),
) -> None:
    """Save the settings of a start; ``remembered`` and ``file_keys`` as in Saved. OSError."""
    fields = dataclasses.asdict(settings)
    others = dataclasses.asdict(remembered or settings).items()
    fields["without_file"] = {name: value for name, value in others if value != fields[name]}
    fields["file_keys"] = file_keys
    config_files.put(state.path(FILE), json.dumps(fields, indent=2) + "\n")


def before_start(old: Settings, new: Settings) -> Settings:
    """Return the part of ``new`` to save before the VM has started with it.

    What protects the project is saved at once: no later start may have less. The rest is saved
    only after the start: a size, an image, a port, a package or a directory with which no VM starts
    must not make the next start fail too.
    """
    package = tuple(name for name in new.package if name in old.package)
    publish = tuple(port for port in new.publish if port in old.publish)
    return dataclasses.replace(
        new, memory=old.memory, cpus=old.cpus, image=old.image, publish=publish,
        package=package,
        share=shares.kept(old.share, new.share),
    )  # fmt: skip


def save_image(state: State, image: str) -> None:
    """Save an image that has booted, before the disk of a new VM is made from it. OSError.

    It is remembered also if gitguard.toml named it: the disk stays one of that image.
    """
    saved = load_saved(state)
    new, remembered = (
        dataclasses.replace(one, image=image) for one in (saved.settings, saved.remembered)
    )
    save(state, new, remembered, saved.file_keys)


def remember_ports(state: State, publish: Sequence[str]) -> None:
    """Save ports that a VM which runs has published. Raises UserError, OSError."""
    saved = load_saved(state)
    new, remembered = (
        merged(one, {"publish": tuple(publish)}) for one in (saved.settings, saved.remembered)
    )
    save(state, new, remembered, saved.file_keys)


def merged(old: Settings, *layers: dict[str, Any]) -> Settings:
    """Return ``old`` with the values in ``layers`` that are not None. Raises UserError.

    A later layer counts before an earlier one. Names to hide or to show, packages, ports to publish
    and directories to share are added to those before; an empty one clears those. A name to hide is
    no longer one to show, and the other way round.
    """
    wanted: dict[str, Any] = {}
    hide, show, publish, share = old.hide, old.show, old.publish, old.share
    package = old.package
    showing = []  # what each layer shows, and what is hidden then: a later one may hide more
    for layer in layers:
        given = {name: value for name, value in layer.items() if value is not None}
        hidden, shown = given.pop("hide", ()), given.pop("show", ())
        hide, show = _added(hide, hidden, shown), _added(show, shown, hidden)
        showing.append((shown, hide))
        package = _added(package, given.pop("package", ()), ())
        published = given.pop("publish", ())
        publish = ports.merged(() if "" in published else publish, filter(None, published))
        directories = given.pop("share", ())
        share = shares.merged(() if "" in directories else share, filter(None, directories))
        wanted |= given
    for shown, hidden in showing:
        patterns = tuple(name for name in hide if name in hidden)
        by_user = Settings(old.project, hide=patterns, hide_secrets=False)
        for name in filter(by_user.hides, (name for name in shown if name in show)):
            raise UserError(
                f"--show {name}, but --hide hides that name: {' '.join(patterns)}",
                "leave one of them out; gitguard vm up --hide '' clears the remembered ones",
            )
    return dataclasses.replace(
        old, hide=hide, show=show, publish=publish, share=share, package=package, **wanted
    )


def _added(
    old: tuple[str, ...], new: tuple[str, ...], opposite: tuple[str, ...]
) -> tuple[str, ...]:
    """Return ``old`` without ``opposite``, and with ``new``; an empty one there clears ``old``."""
    kept = () if "" in new else (name for name in old if name not in opposite)
    return tuple(dict.fromkeys((*kept, *filter(None, new))))
