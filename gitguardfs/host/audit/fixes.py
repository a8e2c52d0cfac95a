"""Fixes for findings: commands for a shell, and rules for the guard. Pure.

Each text has printable characters alone, so that it can be copied from a terminal to a shell.
"""

from __future__ import annotations

import glob
import os
import re

from gitguardfs.base import secret_names
from gitguardfs.base.quote import shell_printable
from gitguardfs.host.audit.git_config import ConfigEntry

_COMMON = re.compile(r"python[\d.]*|node|(package|settings|config)\.json|src|bin|lib|index\.js")
"""Names that a guard should not make read-only everywhere: the agent's own work needs them."""
OR = "; or: "
"""Stands between two alternative fixes."""


def rule(option: str, *names: str) -> str:
    """Return the advice to give the guard a rule (--protect, --hide) for each of these names."""
    words = [f"{option}={glob.escape(name)}" for name in dict.fromkeys(names)]
    return f"guard it with {shell_printable(words)}"


def protect(*paths: str) -> str:
    """Return the advice to protect these files; empty if a rule would also cover ordinary ones."""
    names = [os.path.basename(path) for path in paths]
    if not names or any(map(_COMMON.fullmatch, names)) or any(map(is_published, paths)):
        return ""
    return rule("--protect", *names)


def is_published(path: str) -> bool:
    """Return whether a path lies in a directory of published packages."""
    return not secret_names.DEPENDENCIES.isdisjoint(path.split("/"))


def unset(entry: ConfigEntry) -> str:
    """Return the command that removes one value from its configuration file.

    For a value from the environment, returns which variables to look at.
    """
    if not entry.origin:
        return "remove it from the environment: GIT_CONFIG_COUNT, _KEY_n, _VALUE_n or _PARAMETERS"
    words = ("git", "config", "--file", entry.origin)
    if entry.value is None:
        return command(*words, "--unset-all", entry.key)
    return command(*words, "--fixed-value", "--unset-all", entry.key, entry.value)


def remove(*paths: str) -> str:
    """Return the command that removes files or symlinks."""
    return command("rm", "-f", "--", *paths)


def command(*words: str) -> str:
    """Return a command."""
    return shell_printable(list(words))


def either(*fixes: str) -> str:
    """Return alternative fixes as one text, without the empty ones."""
    return OR.join(filter(None, fixes))
