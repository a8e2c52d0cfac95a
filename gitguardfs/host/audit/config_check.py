"""Checks a repository's configuration: programs, includes and credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import Unread, read_path, resolved
from gitguardfs.host.audit import fixes, programs, rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.git_config import FILES, VARIABLES, ConfigEntry

NOT_HOME = "share a directory of projects, not the one with your configuration"
KEEP_OUT = "keep directories of the share, and relative ones, out of PATH"
TOKEN = re.compile(
    r"(?<![\w-])(gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|(AKIA|ASIA)[0-9A-Z]{16}|sk-(?=[\w-]*\d)[\w-]{20,}|npm_\w{30,}|pypi-[\w-]{30,}"
    r"|AIza[\w-]{30,}|[rs]k_live_\w{20,}|hf_\w{30,}|dckr_pat_[\w-]{20,}|shpat_\w{30,}"
    r"|AGE-SECRET-KEY-1\w{50,}|SG\.[\w-]{20,}\.[\w-]{20,})"
)
"""Tokens of services that give theirs a prefix by which they can be recognised."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]{0,40}://)(?P<who>[^/\s]+)@(?P<rest>.*)", re.DOTALL)
_NAMES_URL = re.compile(
    rf"{programs.ADDRESSES.pattern}|remote\..+\.proxy|lfs\.(push)?url|http\.(.+\.)?proxy", re.DOTALL
)
_HEADER = re.compile(r"http\.(.+\.)?extraheader", re.DOTALL)


def check(audit: Audit, own: Sequence[ConfigEntry], worktree: str | None) -> list[ConfigEntry]:
    """Add findings for the entries of a repository's own files.

    Returns these entries and those of the files that they include.
    """
    entries = list(own)
    try:
        entries = audit.git.with_included(own, audit.share.is_agents)
    except Unread as error:
        audit.unread(own[0].origin if own else "", error)
    for origin in dict.fromkeys(entry.origin for entry in entries):
        if origin and audit.share.is_agents(origin):
            audit.report(rows.CONFIG, f"git reads {origin}", fixes.remove(origin))
    for entry in entries:
        severity = audit.judge.severity(entry, worktree)
        if severity is not None:
            where = entry.origin or "the environment"
            detail = f"{entry.key} = {hidden(entry.value or '')} (in {where})"
            if programs.external_command(entry.key, entry.value or "") is not None:
                detail += f": {when_allowed(entry.key)}"
            elif entry.key in programs.TRUSTED:
                detail += ": it says which signatures are good"
            elif severity is Severity.MEDIUM:
                detail += f" {programs.UNFOLLOWED}"
            audit.report(rows.CONFIG, detail, _fix(audit, entry), severity)
        if audit.share.holds(entry.origin):
            _check_credentials(audit, entry)
    return entries


def check_environment(audit: Audit) -> None:
    """Add findings for variables that name what the agent can write, and for the user's own files.

    ``check`` adds the finding for a configuration file with entries.
    """
    for path in audit.git.users_files:
        if audit.share.is_agents(path) and not _has_entries(audit, path):
            detail = f"git reads {path}, which the agent can make or write"
            audit.report(rows.CONFIG, detail, NOT_HOME)
    for name, value in audit.git.programs.items():
        if name == "PATH":
            if any(audit.judge.places(path or ".", None) for path in value.split(":")):
                detail = f"{name}={value}: git looks for programs where the agent can write"
                audit.report(rows.CONFIG, detail, KEEP_OUT)
        elif audit.judge.severity(ConfigEntry("", VARIABLES[name], value), None) is Severity.HIGH:
            detail = f"{name}={hidden(value)}: git runs what the agent can write"
            audit.report(rows.CONFIG, detail, f"unset {name}")
    for name in FILES:
        path = audit.git.settings.get(name, "")
        if path and not path.startswith("/"):
            detail = f"{name}={path}: git takes that from the directory in which it is started"
            audit.report(rows.CONFIG, detail, f"unset {name}")
        elif path and audit.share.is_agents(path) and not _has_entries(audit, path):
            detail = f"{name}={path}: the agent can make that file"
            audit.report(rows.CONFIG, detail, f"unset {name}")


def _has_entries(audit: Audit, path: str) -> bool:
    """Return whether a configuration file has an entry, for which ``check`` adds a finding."""
    try:
        return audit.git.entries_of(read_path(resolved(path)), path) != []
    except (OSError, Unread):
        return False


def when_allowed(key: str) -> str:
    """Return under which setting git runs the command of an ``ext::`` address in a key."""
    needed = "always" if programs.SUBMODULE_URL.fullmatch(key) else "user or always"
    return f"git runs it only if protocol.ext.allow, or protocol.allow, is {needed}"


def _fix(audit: Audit, entry: ConfigEntry) -> str:
    """Return the fix for an entry that leads to a file that the agent can write."""
    unset = fixes.unset(entry)
    if programs.external_command(entry.key, entry.value or "") is not None:
        return unset
    words = (entry.value or "").removeprefix("!").split()
    is_hooks = entry.key == "core.hookspath"
    if len(words) != 1 or not (is_hooks or entry.key in programs.TRUSTED or "/" in words[0]):
        return unset
    if words[0].startswith(("/", "~")) and not audit.share.holds(audit.git.path(words[0], "/")):
        return unset  # a symlink that the agent can change leads there
    names = [part for part in words[0].split("/") if part not in ("", ".", "..", "~")]
    # For .husky/_ protect .husky, which holds the hooks themselves.
    kept = [name for name in names if is_hooks and name.startswith(".")][:1] or names[-1:]
    return fixes.either(unset, fixes.protect(*kept))


def hidden(text: str) -> str:
    """Return a value with each password and token replaced by ``***``."""
    match = _URL.search(text)
    if match is not None and _is_secret(match["who"]):
        text = text[: match.start("who")] + "***" + text[match.end("who") :]
    return TOKEN.sub("***", text)


def _is_secret(userinfo: str) -> bool:
    _, colon, password = userinfo.partition(":")
    return (colon != "" and password != "") or TOKEN.search(userinfo) is not None


def _check_credentials(audit: Audit, entry: ConfigEntry) -> None:
    value = entry.value or ""
    if _HEADER.fullmatch(entry.key) and "authorization" in value.lower():
        bare = ConfigEntry(entry.origin, entry.key, None)
        detail = f"{hidden(entry.key)} has an Authorization header (in {entry.origin})"
        audit.report(rows.CREDENTIALS, detail, fixes.unset(bare), Severity.MEDIUM)
        return
    if entry.key.startswith("url.") and hidden(entry.key) != entry.key:
        detail = f"{hidden(entry.key)} (in {entry.origin})"
        fix = fixes.command("git", "config", "--file", entry.origin, "--edit")
        audit.report(rows.CREDENTIALS, detail, fix, Severity.MEDIUM)
        return
    match = _URL.fullmatch(value)
    if _NAMES_URL.fullmatch(entry.key) is None or match is None or not _is_secret(match["who"]):
        return
    user = match["who"].partition(":")[0]
    kept = f"{user}@" if not TOKEN.search(user) and ":" in match["who"] else ""
    detail = f"{entry.key} = {hidden(value)} (in {entry.origin})"
    fixed = f"{match['scheme']}{kept}{match['rest']}"
    fix = fixes.command("git", "config", "--file", entry.origin, "--replace-all", entry.key, fixed)
    audit.report(rows.CREDENTIALS, detail, fix, Severity.MEDIUM)
