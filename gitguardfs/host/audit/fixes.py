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
    words = ["git", "config", "--file", entry.origin]
    if entry.value is None:
        return shell_printable([*words, "--unset-all", entry.key])
    return shell_printable([*words, "--fixed-value", "--unset-all", entry.key, entry.value])


def set_value(entry: ConfigEntry, value: str) -> str:
    """Return the command that replaces all values of a key by ``value``."""
    words = ["git", "config", "--file", entry.origin, "--replace-all", entry.key, value]
    return shell_printable(words)


def remove(*paths: str) -> str:
    """Return the command that removes files or symlinks."""
    return shell_printable(["rm", "-f", "--", *paths])


def remove_tree(path: str) -> str:
    """Return the command that removes a directory."""
    return shell_printable(["rm", "-rf", "--", path])


def copy(path: str) -> str:
    """Return the command that replaces a file by a copy, which has no other name."""
    copied = f"{path}.copy"
    replace = shell_printable(["mv", "-f", "--", copied, path])
    return f"{shell_printable(['cp', '-p', '--', path, copied])} && {replace}"


def chmod(change: str, path: str) -> str:
    """Return the command that changes permissions."""
    return shell_printable(["chmod", change, "--", path])


def point_to(gitfile: str, git_directory: str) -> str:
    """Return the command that makes a ``.git`` file name its directory by an absolute path."""
    line = shell_printable(["printf", r"gitdir: %s\n", git_directory])
    return f"{line} > {shell_printable([gitfile])}"


def move_in(git_directory: str, place: str) -> str:
    """Return the command that replaces what leads to a git directory by that directory."""
    return f"{remove(place)} && {shell_printable(['mv', '--', git_directory, place])}"


def either(*fixes: str) -> str:
    """Return alternative fixes as one text, without the empty ones."""
    return OR.join(filter(None, fixes))


def edit(origin: str) -> str:
    """Return the command that opens a configuration file in the user's editor."""
    return shell_printable(["git", "config", "--file", origin, "--edit"])


def unshare(git_directory: str, alternates: str) -> str:
    """Return the command that copies the objects of alternates, then removes the alternates."""
    repack = ["git", f"--git-dir={git_directory}", "repack", "-a", "-d", "-q"]
    return f"{shell_printable(repack)} && {remove(alternates)}"
