"""The table of `vm status` that shows what crosses the border. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from gitguardfs.errors import shown
from gitguardfs.vm.border import BOTH, TO_HOST

HEADING = "What crosses the border between this machine and the guest"
_ARROWS = {BOTH: "<->", TO_HOST: "<--"}
_GAP = "  "


class Row(NamedTuple):
    """One thing that crosses the border."""

    what: str
    where: str
    """This machine's end, an arrow, the guest's end."""
    how: str


def text(border: dict[str, Any], width: int) -> str:
    """Return the table; if it is wider than ``width``, a row goes on in further lines."""
    rows = [Row(*map(shown, row)) for row in (Row("what", "host, guest", "how"), *_rows(border))]
    first = max(len(row.what) for row in rows)
    second = max(len(row.where) for row in rows)
    is_wide = all(first + second + len(row.how) + 2 * len(_GAP) <= width for row in rows)
    lines = [HEADING]
    for row in rows:
        if is_wide:
            lines.append(f"{row.what:<{first}}{_GAP}{row.where:<{second}}{_GAP}{row.how}")
            continue
        indent = " " * (first + len(_GAP))
        for number, part in enumerate((row.where, row.how)):
            begin = indent if number else f"{row.what:<{first}}{_GAP}"
            lines += textwrap.wrap(
                part, width, initial_indent=begin, subsequent_indent=f"{indent}  ",
                break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _rows(border: dict[str, Any]) -> Iterator[Row]:
    for share in border["shares"]:
        facts = [
            "writable" if share["writable"] else "read-only",
            f"guarded {'on the host' if share['guard'] == 'host' else 'in the guest'}",
            f".git: {share['git']}",
            *([f"hidden: {' '.join(share['hidden'])}"] if share["hidden"] else []),
            *([f"guest's own: {' '.join(share['local'])}"] if share["local"] else []),
        ]
        yield Row("share", f"{share['host']} <-> {share['guest']}", ", ".join(facts))
    for port in border["ports"]:
        where = f"127.0.0.1:{port['host_port']} --> port {port['guest_port']}"
        yield Row("port", where, port["by"] + ("" if port["open"] else ", while the VM runs"))
    for secret in border["secrets"]:
        where = f"{', '.join(secret['hosts'])} <-- ${secret['name']}"
        yield Row("secret", where, f"the proxy puts its value in: {secret['where']}")
    for opening in border["openings"]:
        arrow = _ARROWS.get(opening["direction"], "-->")
        yield Row(opening["name"], f"{opening['host']} {arrow} {opening['guest']}", opening["what"])
    allowlist = border["allowlist"]
    since = _time(allowlist["since"])
    for line in sorted(allowlist["lines"], key=lambda line: line["last_used"] is None):
        last = _time(line["last_used"])
        how = f"last used {last}" if last else f"unused since {since}" if since else "not used yet"
        yield Row("allowed", line["line"], how + ("" if line["content_seen"] else ", not seen"))
    if allowlist["error"]:
        yield Row("allowed", "nothing", allowlist["error"])


def _time(moment: str | None) -> str:
    """Return a time of the log as local time, to the minute; "" for None."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}" if moment else ""
