"""The options of `vm up`: one table for the command line and for the keys of gitguard.toml."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from gitguardfs.base.errors import UserError
from gitguardfs.base.installation import AGENT_NAMES
from gitguardfs.base.secret_names import HIDDEN_TEXT
from gitguardfs.base.similar import did_you_mean
from gitguardfs.base.size import mebibytes
from gitguardfs.host.egress.allowlist import validate_line
from gitguardfs.host.egress.presets import PRESETS
from gitguardfs.options.guarded_share import LOCAL_HELP


class Kind(Enum):
    """The kind of an option's value; the text names it in errors."""

    TEXT = "a text"
    FILE = "the path of a file"
    SIZE = "a size"
    NUMBER = "a number"
    FLAG = "true or false"
    CHOICE = "one of some words"
    LIST = "a list of texts"
    DIRECTORIES = "a list of directories"
    ALLOWED = "a list of presets, and of lines of an allowlist"


LISTS = (Kind.LIST, Kind.DIRECTORIES, Kind.ALLOWED)
"""Kinds of options that can be repeated on the command line."""
_ADDS = "Adds to the remembered ones"


@dataclass(frozen=True)
class UpOption:
    """An option of `vm up`: ``--key`` on the command line, ``key`` in gitguard.toml."""

    key: str
    help: str
    example: str
    """Its value in gitguard.toml, for errors and for a new file."""
    metavar: str = ""
    kind: Kind = Kind.TEXT
    default: str = ""
    """The text about its default value."""
    choices: tuple[str, ...] = ()
    adds: bool = False
    """Whether its values are added to the remembered ones."""
    on_command_line: str = ""
    """The end of its help there."""
    in_file: str = ""
    """The end of its help in gitguard.toml."""

    @property
    def name(self) -> str:
        """The name of its field in Settings, if it has one there."""
        return self.key.replace("-", "_")

    @property
    def command_help(self) -> str:
        """Its help on the command line, with its default in click's manner."""
        repeatable = "Repeatable." if self.kind in LISTS else ""
        added = f"{_ADDS}; '' clears those." if self.adds else ""
        default = f" [default: {self.default}]" if self.default else ""
        return " ".join(filter(None, (self.help, repeatable, added, self.on_command_line, default)))

    @property
    def file_help(self) -> str:
        """Its help in gitguard.toml, without its default."""
        added = f"{_ADDS}." if self.adds else ""
        return " ".join(filter(None, (self.help, added, self.in_file)))

    @property
    def line(self) -> str:
        """An example of its line in gitguard.toml."""
        return f"{self.key} = {self.example}"


NO_AGENT = "none"
"""The value of ``--agent`` for none."""

UP_OPTIONS = (
    UpOption("agent", f"An agent at the prompt: {', '.join(AGENT_NAMES)} or {NO_AGENT}; or a file "
             "of your own that says what one needs.", '"claude"', "AGENT", default=NO_AGENT,
             choices=(*AGENT_NAMES, NO_AGENT)),
    UpOption("image", "A name (debian-13), a qcow2 or raw file, a directory with a kernel, or "
             "URL#sha512=HEX.", '"~/my-image.qcow2"', "IMAGE", default="debian-13"),
    UpOption("memory", "The guest's memory, such as 8G or 4096M.", '"8G"', "SIZE", Kind.SIZE,
             default="8G"),
    UpOption("cpus", "The guest's processors.", "4", "N", Kind.NUMBER,
             default="this machine's, 4 at most"),
    UpOption("guard", "Where .git is guarded.", '"guest"', kind=Kind.CHOICE, default="guest",
             choices=("guest", "host")),
    UpOption("git", "private gives the agent a repository of its own, readonly lets it read .git, "
             "deny closes .git.", '"private"', kind=Kind.CHOICE,
             default="private; with --guard host, deny", choices=("private", "readonly", "deny")),
    UpOption("share", "Share another directory too, guarded alike; :ro lets the agent only read "
             "it.", '["~/lib:ro", "~/data"]', "DIR[:ro]", Kind.DIRECTORIES, adds=True),
    UpOption("hide", "Hide files and directories of such a name.", '["*.pem", "data"]', "GLOB",
             Kind.LIST, adds=True),
    UpOption("hide-secrets", f"Hide {HIDDEN_TEXT}. Names that git tracks at the first start are "
             "shown.", "false", kind=Kind.FLAG,
             default="true for a new VM"),
    UpOption("show", "Show such a name in spite of --hide-secrets, and of an earlier --hide of "
             "the same.", '[".env.test"]', "GLOB", Kind.LIST, adds=True),
    UpOption("local", LOCAL_HELP, '["deps", ".cache"]', "GLOB", Kind.LIST, default="deps",
             in_file="[] keeps all in the project."),
    UpOption("watch", "Tell the guest at once of changes in the shared directories, so that its "
             "programs see them (inotify). Not with --guard host.", "false", kind=Kind.FLAG,
             default="true"),
    UpOption("hardened", "Do not let QEMU start programs; an SSH tunnel leads to the proxy.",
             "true", kind=Kind.FLAG),
    UpOption("publish", "Let a port of this machine's 127.0.0.1 lead into the guest while the VM "
             "runs.", '["3000", "8080:3000"]', "PORT[:GUEST_PORT]", Kind.LIST, adds=True),
    UpOption("package", "Install this package of the guest's distribution at its next start.",
             '["jq", "postgresql-client"]', "NAME", Kind.LIST, adds=True),
    UpOption("allow", f"Add a service's lines to the allowlist: {', '.join(PRESETS)}; or a line "
             "of your own: 'METHOD URL'.",
             '["anthropic", "npm", "GET https://docs.example.org/*"]', "PRESET|LINE", Kind.ALLOWED),
    UpOption("upstream-ca", "Also trust this certificate authority (PEM) for servers.",
             '"~/company-ca.pem"', "FILE", Kind.FILE),
    UpOption("upstream-proxy", "Reach servers through your company's proxy, "
             "http://[USER@]HOST:PORT.", '"http://me@proxy.corp:8080"', "URL",
             default="$HTTPS_PROXY", on_command_line="'' forgets it."),
    UpOption("git-name", "The agent's name in git.", '"AI Agent"', "NAME", default="AI Agent"),
    UpOption("git-email", "The agent's address in git.", '"agent@internal.sandbox"', "MAIL",
             default="agent@internal.sandbox"),
)  # fmt: skip
"""Every option of `vm up` but ``--project``, in the order of the help."""
BY_KEY = {option.key: option for option in UP_OPTIONS}


def of_key(key: str) -> UpOption:
    """Return the option of a key in gitguard.toml. Raises UserError for an unknown one."""
    if key not in BY_KEY:
        near = did_you_mean(key, BY_KEY)
        raise UserError(f"unknown key {key!r}", near or f"the keys are {', '.join(BY_KEY)}")
    return BY_KEY[key]


def from_toml(option: UpOption, value: Any) -> Any:
    """Return a value of gitguard.toml as the command line gives it. Raises UserError."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if option.kind in LISTS and isinstance(value, list):
        # A port is a number to its user.
        texts = tuple(str(part) if type(part) is int else part for part in value)
        if all(isinstance(part, str) and part for part in texts):
            is_allowed = option.kind is Kind.ALLOWED
            return tuple(map(allowed, texts)) if is_allowed else texts
    elif option.kind is Kind.SIZE and (is_number or isinstance(value, str)):
        return mebibytes(str(value), option.key)
    elif (option.kind is Kind.NUMBER and is_number) or (
        option.kind is Kind.FLAG and isinstance(value, bool)
    ):
        return value
    elif option.kind is Kind.CHOICE:
        if value in option.choices:
            return value
        what = " or ".join(f'"{choice}"' for choice in option.choices)
        raise UserError(f"{option.key} must be {what}", did_you_mean(str(value), option.choices))
    elif option.kind in (Kind.TEXT, Kind.FILE) and isinstance(value, str) and value:
        return value
    raise UserError(f"{option.key} must be {option.kind.value}", f"for example {option.line}")


def allowed(text: str) -> str:
    """Return a preset's name, or a line of an allowlist in normal form. Raises UserError."""
    if " " in text:
        return validate_line(text)
    if text not in PRESETS:
        near = did_you_mean(text, PRESETS)
        presets = f"the presets are {', '.join(PRESETS)}; a line is METHOD URL"
        raise UserError(f"unknown preset {text!r}", near or presets)
    return text
