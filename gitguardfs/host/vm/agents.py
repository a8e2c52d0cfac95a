"""Agents: the needs of each, from a small TOML file, so that it starts at the first prompt.

Files of ours are in guest-setup/agents, where vm-apps.sh reads them too; a user can write others.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gitguardfs.base import installation
from gitguardfs.base.errors import UserError, shown
from gitguardfs.base.similar import did_you_mean
from gitguardfs.host.credentials.presets import PRESETS
from gitguardfs.host.credentials.secrets import NAME
from gitguardfs.host.vm import images, secret_changes, settings
from gitguardfs.host.vm.ports import HIGHEST, Port
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.up_options import NO_AGENT, allowed
from gitguardfs.options import config_files

PROGRAM = "/usr/local/bin/gitguard-agent"
"""The guest's program that installs, prepares and starts the agent, as the agent's user."""
CONFIG = "/etc/gitguard-vm/agent.json"
"""The file with the agent's settings, which that program reads."""
INSTALL_DIRECTORY = "/etc/gitguard-vm/agents"
"""The guest's directory with the file that vm-apps reads."""
MAX_FILE = 64 << 10
"""Bytes of an agent's file."""
HELLO = f"{PROGRAM} hello"
"""The line for the guest's shell before a shell of the user's: it says how the agent starts."""
PREPARE = f'PATH="$HOME/.local/bin:$PATH"; export PATH; {PROGRAM} prepare'
"""The line before a command, which finds the agent as a login shell does."""
_RUN = (PROGRAM, "run")
_NEEDS = {"node": ("node", "npm"), "uv": ("uv",)}
"""By tool, the presets of the allowlist by which vm-apps installs it and an agent's packages. A new
allowlist has PyPI."""
_DEBIAN_PACKAGES = {"node": ("libatomic1", "xz-utils")}
"""By tool, the packages of Debian that it does not start or unpack without."""
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_COMMAND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PACKAGE = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._/@=+-]*")
_PYTHON = re.compile(r"3(?:\.[0-9]+){1,2}")


@dataclass(frozen=True)
class Install:
    """The part of an agent that a ready disk holds."""

    about: str
    command: str
    """The name of the program that starts it, in ~/.local/bin."""
    needs: str = ""
    """``node`` or ``uv``, by which its packages are installed; "" if nothing is."""
    packages: tuple[str, ...] = ()
    """The packages: with uv, the first one's program, and what else is put beside it."""
    python: str = ""
    """The version of Python that uv installs for it; "" for any."""

    @property
    def text(self) -> str:
        """The lines that vm-apps.sh reads, in its form."""
        listed = ", ".join(f'"{package}"' for package in self.packages)
        return (
            f'about = "{self.about}"\ncommand = "{self.command}"\nneeds = "{self.needs}"\n'
            f'packages = [{listed}]\npython = "{self.python}"\n'
        )

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets of the allowlist by which it is installed."""
        return _NEEDS.get(self.needs, ())

    @property
    def debian_packages(self) -> tuple[str, ...]:
        """The packages of Debian that a ready disk needs for it."""
        return _DEBIAN_PACKAGES.get(self.needs, ())


@dataclass(frozen=True)
class Agent:
    """An agent that a VM can have."""

    name: str
    install: Install
    allow: tuple[str, ...] = ()
    """Presets and lines of the allowlist, for its work."""
    keys: tuple[str, ...] = ()
    """Presets of secrets; one of them is enough."""
    login: str = ""
    """For the user: how to log in without a key."""
    login_port: int = 0
    """The port at which a login in the user's browser comes back to it; 0 if it does not."""
    rules: str = ""
    """The path below the home at which it reads AGENTS.md, if the guest has none there already."""
    prepare: str = ""
    """Lines for sh, which run before each session."""
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Settings, by paths below the home. @PROJECT@ and @END:VARIABLE@ stand for the project's
    path and for the variable's last 20 characters."""

    @property
    def for_ready_disk(self) -> Agent | None:
        """The agent without what needs no new ready disk; None if nothing is left."""
        return Agent(self.name, self.install) if self.install.packages else None

    def login_ports(self, variables: Iterable[str]) -> tuple[Port, ...]:
        """The ports that its login needs in a VM whose secrets are in these variables."""
        has_key = {PRESETS[key].variable for key in self.keys} & {*variables}
        port = self.login_port
        return (Port(port, port),) if port and not has_key else ()

    def guest_files(self, view: str) -> dict[str, tuple[str, int]]:
        """Return contents and modes of its files in the guest, by path. Raises OSError."""
        config = {
            "name": self.name,
            "about": self.install.about,
            "command": self.install.command,
            "steps": [self.install.needs, self.name] if self.install.packages else [],
            "variables": [PRESETS[key].variable for key in self.keys],
            "keys": self.keys,
            "login": self.login,
            "rules": self.rules,
            "prepare": self.prepare,
            "files": dict(self.files),
            "project": view,
        }
        return {
            f"{INSTALL_DIRECTORY}/{self.name}.toml": (self.install.text, 0o644),
            CONFIG: (json.dumps(config, indent=2) + "\n", 0o644),
            PROGRAM: (installation.text("host/vm/files/agent.py"), 0o755),
        }


def is_path(setting: str) -> bool:
    """Return whether a setting ``agent`` names a file of the user's."""
    return setting != NO_AGENT and setting not in installation.AGENT_NAMES


def resolved(word: str) -> str:
    """Return the setting ``agent`` for a word of the command line. Raises UserError."""
    if not is_path(word):
        return word
    if os.path.isfile(word):
        return os.path.abspath(word)
    near = did_you_mean(word, (*installation.AGENT_NAMES, NO_AGENT))
    names = ", ".join((*installation.AGENT_NAMES, NO_AGENT))
    raise UserError(f"unknown agent {word!r}", near or f"the agents are {names}, or a file")


def run_words(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command in the guest that starts the agent. The second word makes it no line."""
    return (*_RUN, *arguments)


def is_run(words: tuple[str, ...]) -> bool:
    """Return whether a command in the guest starts the agent."""
    return words[: len(_RUN)] == _RUN


def check_is_in(state: State, word: str) -> None:
    """Raise UserError unless the running VM has the agent that a word names. OSError."""
    own = settings.load(state).agent
    if word != os.path.basename(own).removesuffix(".toml") and resolved(word) != own:
        has = "no agent" if own == NO_AGENT else f"the agent {shown(own)}"
        raise UserError(
            f"the running VM has {has}",
            f"gitguard vm stop; then gitguard vm run {shown(word)} starts it with that one",
        )


def of(own: Settings) -> Agent | None:
    """Return the agent that the settings name; None for none. Raises UserError, OSError."""
    return load(own.agent, own.project, *own.others_writable)


def load(setting: str, project: str, *others: str) -> Agent | None:
    """Return the agent that a setting names; None for none.

    A file in the project or in ``others``, where the agent writes, is refused: it could allow
    itself more. Raises UserError, OSError.
    """
    if setting == NO_AGENT:
        return None
    path = setting
    if not is_path(setting):
        path = os.path.join(installation.script_directory(), "agents", f"{setting}.toml")
    else:
        images.refuse_in_project("the agent's file", path, project, *others)
    content = config_files.read(path)
    if content is None:
        raise UserError(f"the agent's file {shown(path)} is gone", "give --agent again")
    try:
        return _parsed(os.path.basename(path).removesuffix(".toml"), content)
    except UserError as error:
        raise UserError(f"{shown(path)}: {error.message}", error.hint) from None


def _parsed(name: str, content: bytes) -> Agent:
    """Return the agent of a file's content. Raises UserError, which does not name the file."""
    if not _NAME.fullmatch(name):
        raise UserError("an agent's name has small letters, digits and -", "rename the file")
    if len(content) > MAX_FILE:
        raise UserError(f"it is larger than {MAX_FILE >> 10} KiB")
    try:
        table = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise UserError("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:  # also a number or a nesting without end
        raise UserError(str(error)) from None
    for key in table:
        if key not in _KINDS:
            near = did_you_mean(key, _KINDS)
            raise UserError(f"unknown key {key!r}", near or f"the keys are {', '.join(_KINDS)}")
    found = {key: _value(key, table[key]) for key in _KINDS if key in table}
    if "command" not in found:
        raise UserError("it has no command", 'for example command = "claude"')
    needs, packages = found.get("needs", ""), found.get("packages", ())
    if bool(needs) != bool(packages):
        raise UserError("needs and packages go together", 'for example needs = "node"')
    if found.get("python") and needs != "uv":
        raise UserError('python goes with needs = "uv"')
    about = found.pop("about", name)
    parts = {key: found.pop(key) for key in ("needs", "packages", "python") if key in found}
    return Agent(name, Install(about, found.pop("command"), **parts), **found)


def _value(key: str, value: Any) -> Any:
    """Return a key's value: a number, a text, or a tuple of texts or pairs. Raises UserError."""
    kind, check = _KINDS[key]
    if kind is int:
        if type(value) is not int or not check(value):
            raise UserError(f"{key} must be a number from 1 to {HIGHEST}")
        return value
    parts: list[Any]
    if kind is str:
        parts = [value]
    elif kind is list and isinstance(value, list):
        parts = value
    elif kind is dict and isinstance(value, dict):
        parts = [*value.values()]
    else:
        parts = [None]
    if not all(isinstance(part, str) for part in parts):
        what = {"list": "a list of texts", "dict": "a table of texts"}.get(kind.__name__, "a text")
        raise UserError(f"{key} must be {what}")
    if kind is dict:
        for name, text in value.items():
            check(name)
            _check_holds_no_key(f"{key} {name}", text)
            if not (_is_value(text) if key == "environment" else _is_text(text)):
                raise UserError(f"{key} {name} has a character that cannot be there")
        return tuple(value.items())
    checked = tuple(_checked(key, part, check) for part in parts)
    return checked if kind is list else checked[0]


def _checked(key: str, text: str, check: Callable[[str], Any]) -> str:
    """Return a text, or its normal form if ``check`` returns one. Raises UserError."""
    _check_holds_no_key(key, text)
    result = check(text)
    if not result:
        raise UserError(f"{key} cannot be {text!r}")
    return result if isinstance(result, str) else text


def _check_holds_no_key(where: str, text: str) -> None:
    """Raise UserError for a text with what looks like a key: keys never enter the guest."""
    if secret_changes.holds_key(text):
        raise UserError(
            f"{where} holds what looks like a key or token, and goes into the guest",
            "take it out; gitguard vm secret set keeps it on this machine",
        )


def _is_text(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def _is_line(text: str) -> bool:
    return text.isprintable() and not set(text) & set('"\\')


def _is_value(text: str) -> bool:
    """Return whether pam_env(8) and a shell read a text alike, within double quotes."""
    return text.isprintable() and not set(text) & set('"\\$`')


def _is_preset(name: str) -> bool:
    if name in PRESETS:
        return True
    near = did_you_mean(name, PRESETS)
    raise UserError(f"unknown key {name!r}", near or f"the presets are {', '.join(PRESETS)}")


def _check_variable(name: str) -> None:
    """Raise UserError for a variable that is a secret's, or that the guest needs itself."""
    for preset, one in PRESETS.items():
        if one.variable == name:
            raise UserError(
                f"environment {name} would hold a key, and goes into the guest",
                f'write keys = ["{preset}"]; gitguard vm secret set --preset {preset} asks for it',
            )
    if not NAME.fullmatch(name) or secret_changes.is_reserved(name):
        raise UserError(f"environment {name!r} cannot be a variable there", "choose another name")


def _check_path(path: str) -> bool:
    """Return True for a path below the home. Raises UserError for another."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or not path.isprintable():
        raise UserError(f"{path!r} is no path below the home", 'write ".config/mine/settings.json"')
    return True


_KINDS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "about": (str, _is_line),
    "command": (str, _COMMAND.fullmatch),
    "needs": (str, lambda text: text in _NEEDS),
    "packages": (list, _PACKAGE.fullmatch),
    "python": (str, _PYTHON.fullmatch),
    "allow": (list, allowed),
    "keys": (list, _is_preset),
    "login": (str, str.isprintable),
    "login_port": (int, range(1, HIGHEST + 1).__contains__),
    "rules": (str, _check_path),
    "prepare": (str, _is_text),
    "environment": (dict, _check_variable),
    "files": (dict, _check_path),
}
"""By key, the kind of its value, and a check of each text in it; of each name in a table."""
