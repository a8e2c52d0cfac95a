"""The text of ``vm status``, from the facts that ``--json`` prints. Pure."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from gitguardfs.base.errors import counted, shown
from gitguardfs.host.credentials.secrets import why_suspended
from gitguardfs.host.egress.reports import ignored_text
from gitguardfs.host.vm.running import DISK_IS_FULL
from gitguardfs.host.vm.status import BOTH, TO_HOST
from gitguardfs.host.vm.up_options import NO_AGENT

HEADING = "What crosses the border: on the left this machine, on the right the guest"
LEGEND = "<-- and --> show who opens a connection, or which way data goes; <-> is both ways"
_ARROWS = {BOTH: "<->", TO_HOST: "<--"}
_GAP = "  "
_STATES = {
    "none": "none yet: gitguard vm up makes it",
    "changing": "starting or stopping",
    "paused": f"paused ({DISK_IS_FULL})",
}


class Row(NamedTuple):
    """One thing that crosses the border."""

    what: str
    where: str
    """This machine's end, an arrow, the guest's end."""
    how: str


def text(facts: dict[str, Any], width: int) -> str:
    """Return the text for a terminal of ``width`` columns."""
    border = facts["border"]
    rows = _head(facts)
    longest = max(map(len, rows))
    lines = [f"{name:<{longest}}  {shown(value)}" for name, value in rows.items()]
    path = os.path.join(facts["vm"]["directory"], "allowlist.txt")
    lines += [ignored_text(path, **line) for line in border["allowlist"]["ignored"]]
    runs = facts["vm"]["state"] not in ("none", "not running")
    return "\n".join([*lines, "", *_table(border, width, runs)]) + "\n"


def _head(facts: dict[str, Any]) -> dict[str, str]:
    vm, own, through = facts["vm"], facts["settings"], facts["border"]["upstream_proxy"]
    state, process = vm["state"], vm["process"]
    word = _STATES.get(state, state)
    if state not in ("none", "not running", "not known"):
        word += f", started by process {process}" if process else ", left by a killed vm up"
    proxy = "not running" + (f"; the next one: {through}" if through else "")
    if vm["proxy_process"]:
        proxy = f"running, process {vm['proxy_process']}" + (f", {through}" if through else "")
    missing = "" if os.path.isdir(vm["project"]) else " (missing)"
    rows = {"VM": word, "proxy": proxy, "project": vm["project"] + missing}
    if own is None:
        rows["settings"] = f"not known: {facts['border']['settings_error']}"
    else:
        hardened = ", hardened" if own["hardened"] else ""
        rows["image"] = own["image"]
        if own["agent"] != NO_AGENT:
            rows["agent"] = own["agent"]
        rows["machine"] = f"{counted(own['cpus'], 'processor')}, {own['memory']} MiB{hardened}"
        rows["changes"] = _changes(facts)
    return {**rows, "state": vm["directory"]}


def _changes(facts: dict[str, Any]) -> str:
    """Return whether the guest is told of changes in the shares."""
    own, vm = facts["settings"], facts["vm"]
    found = vm["watcher"]
    if not own["watch"] or own["guard"] == "host":
        return f"not told to the guest: {'--guard host' if own['watch'] else '--no-watch'}"
    if found is None:
        log = os.path.join(vm["directory"], "watch.log")
        runs = vm["state"] not in ("none", "not running")
        return f"not told to the guest: {log} says why" if runs else "told to the guest"
    trees = found["directories"]
    number = sum(tree["watched"] for tree in trees)
    last = max(filter(None, (tree["last_change"] for tree in trees)), default=None)
    words = [
        "told to the guest" if found["read"] else "not told: the guest does not read them",
        f"{number} directories watched",
        f"the last one {_time(last)}" if last else "none yet",
        *(f"not all of {tree['path']}: {tree['why']}" for tree in trees if not tree["whole"]),
    ]
    return ", ".join(words)


def _table(border: dict[str, Any], width: int, runs: bool) -> list[str]:
    """Return the table of what crosses the border; a row that is too wide goes on below."""
    rows = [Row(*map(shown, row)) for row in _rows(border, runs)]
    first = max(len(row.what) for row in rows)
    second = max(len(row.where) for row in rows)
    is_aligned = all(first + second + len(row.how) + 2 * len(_GAP) <= width for row in rows)
    heading = HEADING + ("" if runs else ", while it runs")
    lines = textwrap.wrap(heading, width) + textwrap.wrap(LEGEND, width)
    indent = " " * (first + len(_GAP))
    for row in rows:
        begin = f"{row.what:<{first}}{_GAP}"
        whole = f"{begin}{row.where:<{second if is_aligned else 0}}{_GAP}{row.how}"
        if len(whole) <= width:
            lines.append(whole)
            continue
        for part in (row.where, row.how):
            lines += textwrap.wrap(
                part, width, initial_indent=begin, subsequent_indent=f"{indent}  ",
                break_on_hyphens=False,
            )  # fmt: skip
            begin = indent
    return lines


def _rows(border: dict[str, Any], runs: bool) -> Iterator[Row]:
    yield from _allowed(border["allowlist"])  # first: the others are few, and stay on the screen
    for what, name in (("share", "settings"), ("port", "ports"), ("secret", "secrets")):
        if error := border[f"{name}_error"]:
            yield Row(what, "not known", error)
    for share in border["shares"]:
        words = [
            "writable" if share["writable"] else "read-only",
            f"guarded {'on the host' if share['guard'] == 'host' else 'in the guest'}",
            f".git: {share['git']}",
            *([f"hidden: {' '.join(share['hidden'])}"] if share["hidden"] else []),
            *(["environment files and keys hidden"] if share["hides_secrets"] else []),
            *(
                [f"but not {' '.join(share['shown'])}"]
                if share["hides_secrets"] and share["shown"]
                else []
            ),
            *([f"guest's own: {' '.join(share['local'])}"] if share["local"] else []),
        ]
        yield Row("share", f"{share['host']} <-> {share['guest']}", ", ".join(words))
    for port in border["ports"]:
        where = f"127.0.0.1:{port['host_port']} --> port {port['guest_port']}"
        how = port["by"]
        if not port["open"]:
            how += ", not open now" if runs else ", while the VM runs"
        yield Row("port", where, f"{how}; what you open of it in a browser can reach the internet")
    for secret in border["secrets"]:
        where = f"{', '.join(secret['hosts'])} <-- ${secret['name']}"
        how = f"the proxy puts its value in: {secret['where']}"
        yield Row("secret", where, why_suspended(secret["name"]) if secret["suspended"] else how)
    for opening in border["openings"]:
        arrow = _ARROWS.get(opening["direction"], "-->")
        host = opening["host"].rpartition("/")[2]  # the state directory is in a row above
        yield Row(opening["name"], f"{host} {arrow} {opening['guest']}", opening["what"])
    if border["upstream_proxy"]:
        yield Row("servers", border["upstream_proxy"], "all that the allowlist allows")


def _allowed(allowlist: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each URL: those that were used first."""
    if allowlist["error"]:
        yield Row("allowed", "nothing", f"all requests are blocked: {allowlist['error']}")
    since = _time(allowlist["since"])
    never = f"not used since {since}" if since else "use not recorded"
    methods: dict[tuple[str, str], list[str]] = {}
    for line in sorted(allowlist["lines"], key=lambda line: line["last_used"] is None):
        method, _, url = line["line"].partition(" ")
        last = _time(line["last_used"])
        how = f"last used {last}" if last else never
        how += "" if line["content_seen"] else ", what passes is not seen"
        methods.setdefault((url, how), []).append(method)
    for (url, how), names in methods.items():
        yield Row("allowed", f"{', '.join(names)} {url}", how)


def _time(moment: str | None) -> str:
    """Return a time of the log as local time, to the minute; "" for None."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}" if moment else ""
