"""Checks files of the work tree that configure hooks or submodules."""

from __future__ import annotations

import json
import os
import re
from stat import S_IFREG
from typing import NamedTuple

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import FileTooLong, ScannedDirectory, Unread, read_file
from gitguardfs.host.audit import fixes, rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.config_check import hidden, when_allowed
from gitguardfs.host.audit.programs import SUBMODULE_URL, external_command


class Manager(NamedTuple):
    """A program that puts hooks into repositories."""

    mark: str
    """How to recognise its hooks: a regular expression."""
    files: tuple[str, ...]
    """What it obeys, at the top of the work tree."""
    rule: str = ""
    """The advice to protect all of them, if not with a rule for each."""


MANAGERS = {
    "prek": Manager(r"\bprek\b", (".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml",
                                  ".prek.toml")),
    "pre-commit": Manager(r"hook-impl --config|pre[-_]commit(\s+run|\.com)",
                          (".pre-commit-config.yaml",)),
    "lefthook": Manager(
        r"\blefthook\b",
        tuple(f"{dot}lefthook{local}.{end}" for local in ("", "-local") for dot in ("", ".")
              for end in ("yml", "yaml", "toml", "json")),
        "guard it with --protect='*lefthook*'"),
    "husky": Manager(r"\bhusky\b", (".husky", ".huskyrc")),
    "hk": Manager(r"\bhk\s+run\b", ("hk.pkl",)),
    "overcommit": Manager(r"(?i)\bovercommit\b", (".overcommit.yml",)),
    "captainhook": Manager(r"(?i)captainhook", ("captainhook.json",)),
    "rusty-hook": Manager(r"rusty[-_]hook", (".rusty-hook.toml", "rusty-hook.toml")),
    "simple-git-hooks": Manager(r"(?i)simple[-_]git[-_]hooks", (".simple-git-hooks.json",)),
}  # fmt: skip
TOOLS = {file: name for name, one in MANAGERS.items() for file in one.files} | {
    ".githooks": "a core.hooksPath that is set by convention"
}  # fmt: skip
"""Files that define what hooks do, and the program that reads each."""
OTHERS = {".hg": "Mercurial", ".jj": "Jujutsu", ".sl": "Sapling", ".repo": "repo"}
"""Repositories of other programs, which no guard of ``.git`` protects."""
_JUDGED = {*TOOLS, *OTHERS, "package.json", ".gitmodules"}
_SCRIPTS = ("preinstall", "install", "postinstall", "prepare")
"""The "scripts" of package.json that npm runs at an install in the work tree."""
_INSTALLS_HOOKS = re.compile(r"husky|lefthook|git-?hooks|hookspath|pre-commit", re.IGNORECASE)


def check(audit: Audit, directory: ScannedDirectory) -> None:
    """Add findings for a directory of the work tree; published packages install no hooks here."""
    if fixes.is_published(directory.path):
        return
    for name in sorted(directory.entries.keys() & _JUDGED):
        path, file_type = os.path.join(directory.path, name), directory.entries[name]
        if audit.share.is_kept(audit.share.parts(path)):
            continue
        if name in TOOLS:
            detail = f"{path}: {TOOLS[name]} obeys this file once it is installed"
            fix = fixes.protect(path)
            audit.report(rows.TOOLS, detail, fix, Severity.LOW)
        elif name in OTHERS:
            detail = f"{path} can name programs that {OTHERS[name]} runs"
            audit.report(rows.OTHERS, detail, fixes.protect(path), Severity.MEDIUM)
        elif name == "package.json" and file_type == S_IFREG:
            _check_package(audit, directory, path)
        elif name == ".gitmodules" and file_type == S_IFREG:
            _check_submodules(audit, directory, path)


def _check_package(audit: Audit, directory: ScannedDirectory, path: str) -> None:
    try:
        package = json.loads(read_file(directory.fd, "package.json"))
        scripts = package["scripts"]
        installing = [
            name for name in _SCRIPTS if _INSTALLS_HOOKS.search(str(scripts.get(name, "")))
        ]
    except FileTooLong as error:
        audit.unread(path, error)
        return
    except (OSError, Unread, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # npm reads no such file either
    if installing:
        detail = f'{path}: npm install runs "{installing[0]}", which puts hooks into the repository'
        fix = "npm config set ignore-scripts true"
        audit.report(rows.TOOLS, detail, fix, Severity.LOW)


def _check_submodules(audit: Audit, directory: ScannedDirectory, path: str) -> None:
    detail = f"{path}: git submodule sync takes addresses from it"
    audit.report(rows.SUBMODULES, detail, fixes.rule("--protect", ".gitmodules"), Severity.LOW)
    try:
        content = read_file(directory.fd, ".gitmodules")
        entries = audit.git.entries_of(content, path)
    except FileTooLong as error:
        audit.unread(path, error)
        return
    except (OSError, Unread):
        return  # git reads no such file either
    for entry in entries:
        value = entry.value or ""
        if not SUBMODULE_URL.fullmatch(entry.key) or external_command(entry.key, value) is None:
            continue
        detail = f"{path}: {entry.key} = {hidden(value)}: {when_allowed(entry.key)}"
        audit.report(rows.SUBMODULES, detail, fixes.unset(entry), Severity.MEDIUM)
