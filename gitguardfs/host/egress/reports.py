"""Texts about blocked requests and the allowlist, for the user and for the agent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gitguardfs.base.errors import shown, word
from gitguardfs.host.egress import blocked, requests
from gitguardfs.host.egress.allowlist import Allowlist, BlockKind, parse_line
from gitguardfs.host.egress.blocked import BlockedRequest, Group
from gitguardfs.host.egress.files import StateFiles, read_allowlist

MAX_SHOWN = 200
"""Characters of a URL or a line that are shown."""
MAX_METHOD = 40
"""Characters of a method that are shown; no method that can be allowed has more."""
MAX_GROUPS = 50
"""Groups of blocked requests that are shown, the latest: a client may ask for thousands of URLs."""
MAX_RECENT_GROUPS = 10
"""Groups that the guest is shown, the latest: an agent reads all of the text."""


def blocked_text(state_dir: Path) -> str:
    """Return the text of ``gitguard vm blocked``. Raises OSError, UserError."""
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
    """Return the text of ``gitguard-blocked`` in the guest. Raises UserError.

    Queries are left out, since they may hold secrets: every user of the guest can read this text,
    and so can those of the host, by the proxy's port.
    """
    public = (
        entry._replace(
            method=entry.method[:MAX_METHOD], url=_public(entry.url),
            reason=entry.reason[:MAX_SHOWN],
        )
        for entry in entries
    )  # fmt: skip
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
    """Return a URL with ``*`` for its query and its password, which may be secret."""
    return re.sub(r"^([^/]*//)?[^/]*@", r"\1*@", re.sub(r"(?s)[?#].*", "?*", url))


def _group_text(group: Group, allowlist: Allowlist) -> str:
    last = group.last
    url = word(last.url)
    url = url if len(url) <= MAX_SHOWN else f"{url[:MAX_SHOWN]}..."
    times = "once" if group.count == 1 else f"{group.count} times"
    text = (
        f"{word(last.method)[:MAX_METHOD]} {url}\n"
        f"  blocked {times}, last {shown(last.time)}: {shown(last.reason)[:MAX_SHOWN]}"
    )
    if not group.line:
        return f"{text}\n  {shown(group.why_none)}"
    if allowlist.covers(group.line):
        return f"{text}\n  allowed meanwhile"
    note = line_note(group.line)
    if group.is_misled:
        text += f"\n  {blocked.MISLED_ADVICE}\n  Only if you know that it is in your own network:"
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
    what = ""
    if not after and before.endswith("?"):
        what = "any query"
    elif "*" in rule.line.partition("?")[2]:
        what = "any text for the * in its query"
    if rule.method == requests.WEBSOCKET:
        notes.append(
            "What passes in a WebSocket is not seen: by it, any data can go out and come in."
        )
    elif what:
        notes.append(
            f"This line allows {what}, which can carry any data out;"
            " to allow less, write a line for each query."
        )
    return " ".join(notes)


def ignored_text(path: str, number: int, text: str, why: str) -> str:
    """Return one line about a line of the allowlist that is ignored, and why."""
    return f"{path}:{number}: ignored: {shown(text[:MAX_SHOWN])} ({why})"


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
