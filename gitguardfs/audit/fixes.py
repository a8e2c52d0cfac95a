"""What to do about a finding: commands for a shell, and rules for the guard. Pure.

Every text is of printable characters alone, so that what is shown can be copied to a shell.
"""

from __future__ import annotations

import glob

from gitguardfs.audit.git_config import Entry
from gitguardfs.render.quote import shell_printable

OR = "; or: "
"""Between two ways to mend a finding."""


def rule(option: str, *names: str) -> str:
    """Return the advice to give the guard a rule (--protect, --hide) for each of these names."""
    words = [f"{option}={glob.escape(name)}" for name in dict.fromkeys(names)]
    return f"guard it with {shell_printable(words)}"


def unset(entry: Entry) -> str:
    """Return the command that takes one value out of its file of configuration."""
    words = ["git", "config", "--file", entry.origin]
    if entry.value is None:
        return shell_printable([*words, "--unset-all", entry.key])
    return shell_printable([*words, "--fixed-value", "--unset-all", entry.key, entry.value])


def set_value(entry: Entry, value: str) -> str:
    """Return the command that puts ``value`` in the place of all that a key has."""
    words = ["git", "config", "--file", entry.origin, "--replace-all", entry.key, value]
    return shell_printable(words)


def remove(path: str) -> str:
    """Return the command that removes a file or a symlink."""
    return shell_printable(["rm", "-f", "--", path])


def remove_tree(path: str) -> str:
    """Return the command that removes a directory."""
    return shell_printable(["rm", "-rf", "--", path])


def chmod(change: str, path: str) -> str:
    """Return the command that changes permissions."""
    return shell_printable(["chmod", change, "--", path])


def point_to(gitfile: str, git_directory: str) -> str:
    """Return the command that makes a ``.git`` file name its directory by an absolute path."""
    line = shell_printable(["printf", r"gitdir: %s\n", git_directory])
    return f"{line} > {shell_printable([gitfile])}"


def move_in(git_directory: str, place: str) -> str:
    """Return the command that puts a git directory into the place of what leads to it."""
    return f"{remove(place)} && {shell_printable(['mv', '--', git_directory, place])}"


def either(*ways: str) -> str:
    """Return several ways to mend a finding as one text."""
    return OR.join(ways)


def edit(origin: str) -> str:
    """Return the command that opens a file of configuration in the user's editor."""
    return shell_printable(["git", "config", "--file", origin, "--edit"])


def unshare(git_directory: str, alternates: str) -> str:
    """Return the command that copies what a repository takes from others, and ends that."""
    repack = ["git", f"--git-dir={git_directory}", "repack", "-a", "-d", "-q"]
    return f"{shell_printable(repack)} && {remove(alternates)}"
