"""gitguard.toml: the options of a project's `vm up`, in the user's configuration directory.

It is never read from the project, where the agent could give itself more.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

from gitguardfs.base.errors import UserError, shown
from gitguardfs.base.installation import AGENT_NAMES
from gitguardfs.base.similar import did_you_mean
from gitguardfs.host.egress import upstream_proxy
from gitguardfs.host.vm import agents, images, ready, settings, shares
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.up_options import BY_KEY, UP_OPTIONS, Kind, UpOption, from_toml, of_key
from gitguardfs.options import config_files

EDIT = "gitguard vm config edit"
_FIELDS = {one.name for one in fields(Settings)}
_AN_OPTION = re.compile(rf"(?<!vm up )--({'|'.join(BY_KEY)})\b")
_SYNTAX_ERROR = re.compile(r"(.*) \(at (?:line (\d+), .*|end of document)\)")
"""The text of tomllib's errors; before Python 3.14 they have no other sign of the line."""


@dataclass(frozen=True)
class ConfigFile:
    """The content of a project's gitguard.toml, checked; nothing if there is no such file."""

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    """The values by the names of UpOption, as the command line gives them."""
    lines: dict[str, int] = field(default_factory=dict)
    """The number of each value's line, by the same names."""


def of_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the values of options that are fields of Settings."""
    return {name: value for name, value in values.items() if name in _FIELDS}


def read(state: State) -> ConfigFile:
    """Return the project's gitguard.toml. Raises UserError, which names the line; OSError."""
    path = state.config
    images.refuse_in_project("gitguard.toml", path, state.project)
    content = config_files.read(path) or b""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{shown(path)}:{line}: not UTF-8", f"{EDIT} opens it") from None
    found = ConfigFile(path)
    for key, (line, value) in _parsed(path, text).items():
        with _located(path, line):
            option = of_key(key)
            found.values[option.name] = _checked(state, option, from_toml(option, value))
            found.lines[option.name] = line
    merged(found, Settings(state.project))
    return found


def merged(file: ConfigFile, remembered: Settings, own: dict[str, Any] | None = None) -> Settings:
    """Return the settings of a start; ``own`` are those of the command line.

    Raises UserError, which names the first line with which the values contradict each other.
    ``remembered`` and ``own`` do not.
    """
    layers = of_settings(file.values), own or {}
    try:
        return settings.merged(remembered, *layers)
    except UserError:
        given: dict[str, Any] = {}
        for name, line in file.lines.items():
            given[name] = file.values[name]
            with _located(file.path, line):
                settings.merged(remembered, of_settings(given), layers[1])
        raise


def not_read(state: State) -> str:
    """Return a line for the user whose project holds a gitguard.toml; "" if it holds none."""
    path = os.path.join(state.project, os.path.basename(state.config))
    if not os.path.lexists(path):
        return ""
    return f"{shown(path)} is not read: the agent could change it; {EDIT} opens the one that is"


def _checked(state: State, option: UpOption, value: Any) -> Any:
    """Return a value that means the same wherever `vm up` is run. Raises UserError."""
    if option.key == "upstream-proxy":
        proxy = upstream_proxy.parsed(value, upstream_proxy.OPTION)
        if proxy.password is not None:
            raise UserError(
                "upstream-proxy has a password in it",
                "leave it out: gitguard vm up asks for it once, and keeps it in your keyring",
            )
        return proxy.setting
    if option.kind is Kind.DIRECTORIES:
        others = settings.load(state).others_writable
        return shares.resolved((_absolute(option, one) for one in value), state.project, *others)
    if (
        option.kind is Kind.FILE
        or (option.key == "image" and not images.is_fetched(value))
        or (option.key == "agent" and agents.is_path(value))
    ):
        path = _absolute(option, value)
        if not os.path.exists(path):
            raise UserError(
                f"{option.key} {path!r} does not exist", "correct the path, or take the key out"
            )
        if option.key == "image" and not state.has_disk:
            ready.check_image(state, path)
        if option.key == "agent":
            agents.load(path, state.project)
        return path
    return value


def _absolute(option: UpOption, value: str) -> str:
    """Return an absolute path, or one below the home. Raises UserError for another."""
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        names, others = {
            "image": (images.NAMES, ", name or URL of one"),
            "agent": ([*AGENT_NAMES], ", and no name of one"),
        }.get(option.key, ([], ""))
        raise UserError(
            f"{option.key} {value!r} is no absolute path{others}",
            did_you_mean(value, names) or f"begin it with / or ~/, for example {option.line}",
        )
    return path


@contextmanager
def _located(path: str, line: int) -> Iterator[None]:
    """Name the line in a UserError of the body, and keys instead of options."""
    try:
        yield
    except UserError as error:
        message, hint = (_AN_OPTION.sub(r"\1", text) for text in (error.message, error.hint))
        raise UserError(f"{shown(path)}:{line}: {message}", hint, error.code) from None


def _parsed(path: str, text: str) -> dict[str, tuple[int, Any]]:
    """Return each top-level key's line and value, in the file's order. Raises UserError."""
    lines, unfinished = _lines_of_keys(text)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _SYNTAX_ERROR.fullmatch(str(error))
        what, line = match.groups() if match else (str(error), None)
        if line is None:  # at the end of the document
            last = text.rstrip().count("\n") + 1
            what, line = (what, last) if unfinished > last else ("value without end", unfinished)
        raise UserError(
            f"{shown(path)}:{line}: {what}", f"a line is KEY = VALUE, as in {BY_KEY['memory'].line}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number or a nesting without end
        raise UserError(f"{shown(path)}:{unfinished}: {error}", f"{EDIT} opens it") from None
    # Others are in a table, which is a key that does not exist.
    return {key: (line, values[key]) for key, line in lines.items() if key in values}


def _lines_of_keys(text: str) -> tuple[dict[str, int], int]:
    """Return the line in which each key begins, and the line from which on TOML is not complete.

    tomllib tells no lines of values, but whether some lines are whole statements.
    """
    found: dict[str, int] = {}
    begin, lines = 0, text.split("\n")
    for end in range(1, len(lines) + 1):
        with suppress(ValueError, RecursionError):  # a value that goes on in the next line
            keys = tomllib.loads("\n".join(lines[begin:end]))
            found |= dict.fromkeys(keys.keys() - found, begin + 1)
            begin = end
    return found, begin + 1


def kept(state: State, name: str) -> str | None:
    """Return the value of an option that the VM keeps in a file of its own; None without one."""
    if name == "upstream_ca" and state.files.upstream_ca.exists():
        return str(state.files.upstream_ca)
    if name == "upstream_proxy" and (setting := config_files.read(str(state.files.upstream_proxy))):
        return setting.decode(errors="replace").strip()
    return None


def new_content(state: State) -> str:
    """Return the content of a new gitguard.toml: every key, with its help, as a comment."""
    head = (
        f"# Options of gitguard vm up for the project {shown(state.project)}.\n"
        "# An option on the command line counts before its key here, and a key before what earlier"
        "\n# options have set. gitguard vm config show prints the result.\n"
    )
    parts = []
    for option in UP_OPTIONS:
        rows = textwrap.wrap(option.file_help, 88)
        rows += [f"Default: {option.default}"] if option.default else []
        parts.append("".join(f"# {row}\n" for row in rows) + f"#{option.line}\n")
    return "\n".join((head, *parts))


def text(state: State) -> str:
    """Return the options of the next `vm up`, as TOML; a comment says where a value is from.

    Raises UserError, OSError.
    """
    file = read(state)
    saved = settings.load_saved(state)
    result = merged(file, saved.remembered)
    plain = Settings(state.project)
    rows = []
    for option in UP_OPTIONS:
        name = option.name
        if name in _FIELDS:
            value = getattr(result, name)
            is_remembered = getattr(saved.remembered, name) != getattr(plain, name)
            if name == "git":
                value = result.git_mode
        else:
            remembered = kept(state, name) if name not in saved.file_keys else None
            value, is_remembered = file.values.get(name, remembered), remembered is not None
        if value is None:
            continue
        sources = [f"line {file.lines[name]}"] if name in file.lines else []
        if is_remembered and (option.adds or not sources):
            sources.append("remembered")
        if option.kind is Kind.SIZE:
            value = f"{value // 1024}G" if value % 1024 == 0 else f"{value}M"
        rows.append((f"{option.key} = {_toml(value)}", " and ".join(sources) or "default"))
    width = max(len(row) for row, _ in rows)
    where = shown(file.path)
    if not os.path.lexists(file.path):
        where += f" does not exist; {EDIT} makes it"
    listed = "".join(f"{row:<{width}}  # {source}\n" for row, source in rows)
    return f"# {where}\n# The next gitguard vm up of {shown(state.project)} starts with\n{listed}"


def _toml(value: object) -> str:
    """Return a value as TOML. Its strings are those of JSON."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return shown(json.dumps(value, ensure_ascii=False), keep=" ")
