"""Says before a shell in the guest what the agent has there, and how to go on. One short screen."""

from __future__ import annotations

from gitguardfs.base import columns
from gitguardfs.base.constants import AGENT_HOME
from gitguardfs.base.errors import ascii_shown, counted
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.vm.settings import Settings

MOST = 3
"""Shares, and names to hide, that are listed."""


def lines(own: Settings, allowlist: Allowlist, width: int) -> list[str]:
    """Return the lines for a terminal of ``width`` columns."""
    hidden = [*(["environment files and keys"] if own.hide_secrets else []), *own.hide]
    rules = counted(len(allowlist.rules), "line")
    commits = "gitguard fetch takes them over" if own.git_mode == "private" else ""
    rows = [
        *(("" if number else "shared", text) for number, text in enumerate(_shared(own))),
        ("hidden", ", ".join(_first(hidden)) or "nothing"),
        ("allowed", f"{rules} of the allowlist; gitguard vm blocked shows what was blocked"),
        *([("commits", commits)] if commits else []),
        ("exit", "stops the VM; gitguard vm ssh opens another shell"),
    ]
    return [line for name, text in rows for line in columns.hanging(f"{name:<9}", text, width)]


def _shared(own: Settings) -> list[str]:
    return _first(
        [
            f"{one.directory} is ~{one.view.removeprefix(AGENT_HOME)} in the guest"
            + ("" if one.is_writable else ", to be read")
            for one in own.shares
        ]
    )


def _first(items: list[str]) -> list[str]:
    more = len(items) - MOST
    end = [f"{more} more (gitguard vm status)"] if more > 0 else []
    return [*map(ascii_shown, items[:MOST]), *end]
