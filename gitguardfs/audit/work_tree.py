"""Checks files of the work tree that configure hooks or submodules."""

from __future__ import annotations

import json
import os
import re
from stat import S_IFREG

from gitguardfs.audit import fixes, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.config_check import hidden, when_allowed
from gitguardfs.audit.programs import SUBMODULE_URL, external_command
from gitguardfs.audit.walk import FileTooLong, ScannedDirectory, Unread, read_file
from gitguardfs.findings import Severity

TOOLS = {
    ".pre-commit-config.yaml": "pre-commit",
    ".pre-commit-config.yml": "pre-commit",
    **{
        f"{dot}lefthook{local}.{suffix}": "lefthook"
        for dot in ("", ".")
        for local in ("", "-local")
        for suffix in ("yml", "yaml", "toml", "json")
    },
    ".husky": "husky",
    ".huskyrc": "husky",
    ".githooks": "a core.hooksPath that is set by convention",
    ".overcommit.yml": "overcommit",
    ".simple-git-hooks.json": "simple-git-hooks",
}
"""Files that define what hooks do, and the program that reads each."""
_SCRIPTS = ("preinstall", "install", "postinstall", "prepare")
"""The "scripts" of package.json that npm runs at an install in the work tree."""
_INSTALLS_HOOKS = re.compile(r"husky|lefthook|git-?hooks|hookspath|pre-commit", re.IGNORECASE)


def check(audit: Audit, directory: ScannedDirectory, managers: set[str]) -> None:
    """Add findings for a directory of the work tree.

    ``managers`` are the programs that have put hooks into its repository.
    """
    for name, file_type in directory.entries.items():
        path = os.path.join(directory.path, name)
        if name in TOOLS and (places := audit.share.agents_places(path)):
            _note_tool(audit, path, TOOLS[name], places, is_installed=TOOLS[name] in managers)
        elif name == "package.json" and file_type == S_IFREG and not _is_kept(audit, path):
            _check_package(audit, directory, path)
        elif name == ".gitmodules" and file_type == S_IFREG and not _is_kept(audit, path):
            _check_submodules(audit, directory, path)


def _is_kept(audit: Audit, path: str) -> bool:
    return audit.share.is_kept(audit.share.parts(path))


def _note_tool(audit: Audit, path: str, reader: str, places: list[str], is_installed: bool) -> None:
    fix = fixes.rule("--protect", *map(os.path.basename, places))
    if is_installed:
        detail = f"{path}: git runs {reader}, which obeys this file"
        audit.results.append(rows.TOOLS.finding(detail, fix))
    else:
        detail = f"{path}: {reader} obeys this file once it is installed"
        audit.results.append(rows.TOOLS.finding(detail, fix, Severity.LOW))


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
        fix = fixes.rule("--protect", "package.json")
        audit.results.append(rows.TOOLS.finding(detail, fix, Severity.LOW))


def _check_submodules(audit: Audit, directory: ScannedDirectory, path: str) -> None:
    detail = f"{path}: git submodule sync takes addresses from it"
    audit.results.append(
        rows.SUBMODULES.finding(detail, fixes.rule("--protect", ".gitmodules"), Severity.LOW)
    )
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
        audit.results.append(rows.SUBMODULES.finding(detail, fixes.unset(entry), Severity.MEDIUM))
