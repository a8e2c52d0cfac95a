"""Texts for the user about blocked requests and the allowlist, and adding a line to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gitguardfs.base.errors import shown, word
from gitguardfs.host.egress import allowlist_lock, blocked, requests
from gitguardfs.host.egress.allowlist import (
    Allowlist,
    BlockKind,
    LineError,
    parse_line,
    validate_line,
)
from gitguardfs.host.egress.allowlist_lock import AllowlistLock
from gitguardfs.host.egress.blocked import BlockedRequest, Group
from gitguardfs.host.egress.files import StateFiles, old_allowlist, read_allowlist, write

MAX_SHOWN = 200
"""Characters of a URL or a line that are shown."""
MAX_METHOD = 40
"""Characters of a method that are shown; no method that can be allowed has more."""
MAX_GROUPS = 50
"""Groups of blocked requests that are shown, the latest: a client may ask for thousands of URLs."""
MAX_RECENT_GROUPS = 10
"""Groups that the guest is shown, the latest: an agent reads all of the text."""


def blocked_text(state_dir: Path) -> str:
    """Return what ``gitguard vm blocked`` prints. Raises OSError, UserError."""
    files = StateFiles(state_dir)
    groups = blocked.grouped(blocked.read(files.blocked))
    if not groups:
        return "Nothing was blocked."
    text = read_allowlist(files) if files.allowlist.exists() else ""
    allowlist = Allowlist.parse(text)
    texts = [_group_text(group, allowlist) for group in groups[-MAX_GROUPS:]]
    if earlier := len(groups) - len(texts):
        texts.append(f"{earlier} more, which are older, are in {shown(str(files.blocked))}")
    return "\n\n".join(texts)


def recent_text(state_dir: Path, entries: Iterable[BlockedRequest]) -> str:
    """Return what ``gitguard-blocked`` prints in the guest. Raises UserError.

    Queries are left out, since they may hold secrets: every user of the guest can read this text,
    and so can those of the host, by the proxy's port.
    """
    public = [
        BlockedRequest(
            entry.time, entry.method[:MAX_METHOD], _public(entry.url), entry.reason[:MAX_SHOWN],
            entry.kind,
        )
        for entry in entries
    ]  # fmt: skip
    groups = blocked.grouped(public, MAX_RECENT_GROUPS)
    if not groups:
        return "Nothing was blocked since this VM was started.\n"
    allowlist = Allowlist.parse(read_allowlist(StateFiles(state_dir)))
    texts = [_group_text(group, allowlist) for group in groups]
    return "\n\n".join((_RECENT_INTRODUCTION, *texts, _RECENT_ADVICE))


_RECENT_INTRODUCTION = """\
The last requests that the sandbox's proxy blocked, the latest at the end. It has sent on none of
them. Times are in UTC, and a query is shown as ?*"""
_RECENT_ADVICE = """\
The allowlist is on the host and cannot be changed from in here. If one of these requests is needed,
try it once more. If it is still blocked, stop and ask your human to run its line, which begins with
`gitguard vm allow`, on the host. There `gitguard vm blocked` shows the whole URLs. Do not look for
another way out.
"""


def _public(url: str) -> str:
    """Return a URL with what may be secret in it replaced by ``*``: the query, a password."""
    return re.sub(r"^([^/]*//)?[^/]*@", r"\1*@", re.sub(r"(?s)[?#].*", "?*", url))


def _group_text(group: Group, allowlist: Allowlist) -> str:
    url = word(group.url)
    url = url if len(url) <= MAX_SHOWN else f"{url[:MAX_SHOWN]}..."
    times = "once" if group.count == 1 else f"{group.count} times"
    text = (
        f"{word(group.method)[:MAX_METHOD]} {url}\n"
        f"  blocked {times}, last {shown(group.last)}: {shown(group.reason)[:MAX_SHOWN]}"
    )
    if not group.line:
        return f"{text}\n  {shown(group.why_none)}"
    if allowlist.covers(group.line):
        return f"{text}\n  allowed meanwhile"
    note = line_note(group.line)
    return f"{text}\n  {allow_command(group.line)}" + (f"\n  {note}" if note else "")


def allow_command(line: str) -> str:
    """Return the command that adds a line. The only quote that a normal line can hold is ``'``."""
    quoted = line.replace("'", "'\\''")
    return f"gitguard vm allow '{quoted}'"


def line_note(line: str) -> str:
    """Return a warning for a line that lets out more than one may expect; "" for other lines."""
    rule = parse_line(line)
    notes = []
    if rule.is_private_allowed:
        notes.append("It leads to a host in your own network, or to this machine.")
    *_, before, after = ("", *rule.pieces)
    if rule.method == requests.WEBSOCKET:
        notes.append(
            "What passes in a WebSocket is not seen: by it, any data can go out and come in."
        )
    elif what := _free_query(rule.line, ends_open=not after and before.endswith("?")):
        notes.append(
            f"This line allows {what}, which can carry any data out;"
            " to allow less, write a line for each query."
        )
    return " ".join(notes)


def _free_query(line: str, ends_open: bool) -> str:
    """Return what a line allows of a query besides what it spells out; "" if nothing."""
    if ends_open:
        return "any query"
    return "any text for the * in its query" if "*" in line.partition("?")[2] else ""


def allow(state_dir: Path, line: str, lock: AllowlistLock | None = None) -> str:
    """Add a line to the allowlist atomically; return what to tell the user.

    ``lock`` is that of the VM that is meant. Raises UserError for a line that would be ignored, if
    the VM was deleted, or if an editor changes the file meanwhile; OSError.
    """
    normal = validate_line(line)
    rule = parse_line(normal)
    files = StateFiles(state_dir)
    with lock.held() if lock else allowlist_lock.held(state_dir):
        before, text = old_allowlist(files)
        if rule in Allowlist.parse(text).rules:
            return f"{normal}\nis already in {files.allowlist}."
        gap = "" if text.endswith("\n") or not text else "\n"
        write(files.allowlist, before, f"{text}{gap}{normal}\n")
    return f"{normal}\nwas added to {files.allowlist}; it counts from the next request on."


def errors_text(state_dir: Path) -> str:
    """Return one line of text for each line of the allowlist that is ignored; "" if none is.

    Raises UserError if the allowlist cannot be read.
    """
    files = StateFiles(state_dir)
    errors = Allowlist.parse(read_allowlist(files)).errors
    return "\n".join(error_text(files.allowlist, error) for error in errors)


def unseen_text(state_dir: Path) -> str:
    """Return one line of text with the WebSockets that the allowlist allows; "" if none.

    Raises UserError if the allowlist cannot be read.
    """
    rules = Allowlist.parse(read_allowlist(StateFiles(state_dir))).rules
    lines = [rule.line for rule in rules if rule.method == requests.WEBSOCKET]
    return f"allowed, with content that the proxy does not see: {', '.join(lines)}" if lines else ""


def error_text(path: Path, error: LineError) -> str:
    """Return one line that says which line is ignored, and why."""
    return f"{path}:{error.number}: ignored: {shown(error.text[:MAX_SHOWN])} ({error.why})"


def explanation(method: str, url: str, reason: str, kind: BlockKind) -> str:
    """Return the text for the agent: what was blocked, why, and what to ask its human for."""
    about = (
        "The sandbox's proxy blocked this request; `gitguard-blocked` prints the last ones again."
        " Nothing of it has left the host:\n\n"
        f"  {word(method)} {word(url)}\n\nReason: {reason}.\n"
    )
    line = blocked.line_for(method, url)[0] if kind is BlockKind.RULE else ""
    if line:
        note = line_note(line)
        instead = (
            "\nWebSockets are not allowed here, but HTTP works: use the service by HTTP requests.\n"
            if method == requests.WEBSOCKET
            else ""
        )
        return (
            f"{about}{instead}\nThe allowlist is on the host and cannot be changed from in here. If"
            " the request is needed, stop and ask your human to run this on the host:\n\n"
            f"  {allow_command(line)}\n" + (f"\n{note}\n" if note else "")
        )
    if kind is BlockKind.ALLOWLIST:
        return (
            f"{about}\nTell your human: the allowlist on the host cannot be read;"
            " `gitguard vm status` says why.\n"
        )
    if kind is BlockKind.PLACEHOLDER:
        return f"{about}\n{blocked.PLACEHOLDER_ADVICE}\n"
    return f"{about}\nNo line of the allowlist can allow a request like this one.\n"
