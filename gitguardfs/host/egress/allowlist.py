"""The allowlist: what its lines mean, and whether they allow a request. Pure.

A line is ``METHOD https://host[:port]/path``. It is compared exactly, but ``*`` in the path stands
for any run of characters. ``WS`` instead of the method allows a WebSocket. A line that cannot be
read allows nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gitguardfs.base.errors import UserError, shown
from gitguardfs.host.egress import requests, urls
from gitguardfs.host.egress.addresses import PRIVATE_WORD
from gitguardfs.host.egress.requests import BadRequestError, CheckedRequest, ProxyRequest
from gitguardfs.host.egress.urls import BadUrlError

EXAMPLE = "GET https://example.com/path/*"


class BlockKind(Enum):
    """The kind of reason that blocked a request: ``kind`` in blocked.jsonl."""

    RULE = "rule"
    """No line allows it."""
    REQUEST = "request"
    """No line can allow it."""
    ADDRESS = "address"
    """Its host has no public address."""
    MISLED = "misled"
    """A host's name of the public DNS leads to a private address: no line should be needed."""
    SINKHOLE = "sinkhole"
    """A host's name of the public DNS leads to an address that no line can allow."""
    ALLOWLIST = "allowlist"
    """The allowlist cannot be read."""
    PLACEHOLDER = "secret"
    """A placeholder stands in a wrong part of it, or its secret has no value."""
    BUSY = "busy"
    """Too many connections were open."""
    FAULT = "fault"
    """The proxy itself failed."""


class BadLineError(ValueError):
    """A line that cannot be read; the text says why."""


class Rule(NamedTuple):
    """One line of the allowlist."""

    method: str
    scheme: str
    host: str
    port: int
    pieces: tuple[str, ...]
    """The normal path and query, split where a ``*`` stands."""
    is_private_allowed: bool = False

    @property
    def line(self) -> str:
        """The line in normal form."""
        where = urls.authority(self.scheme, self.host, self.port)
        end = f" {PRIVATE_WORD}" if self.is_private_allowed else ""
        return f"{self.method} {self.scheme}://{where}{'*'.join(self.pieces)}{end}"

    def allows(self, request: CheckedRequest) -> bool:
        """Return whether this line allows the request."""
        ours = (self.method, self.scheme, self.host, self.port)
        theirs = (request.method, request.scheme, request.host, request.port)
        return ours == theirs and _matches(self.pieces, request.target)

    def covers(self, other: Rule) -> bool:
        """Return whether this line allows all that another one allows.

        The other is one that is proposed: a ``*`` is at its end, or nowhere.
        """
        first, *end = other.pieces
        ends_open = len(self.pieces) > 1 and self.pieces[-1] == ""
        return self == other or (
            self[:4] == other[:4]
            and self.is_private_allowed >= other.is_private_allowed
            and (not end or (end == [""] and ends_open))
            and _matches(self.pieces, first)
        )


class LineError(NamedTuple):
    """A line that is ignored."""

    number: int
    text: str
    why: str


class Decision(NamedTuple):
    """Whether a request is allowed. ``checked`` is None if no line can allow it."""

    reason: str
    """The reason why the request is blocked; "" if it is allowed."""
    kind: BlockKind | None = None
    checked: CheckedRequest | None = None
    rule: Rule | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether a line allows the request."""
        return self.rule is not None and self.checked is not None and not self.reason


@dataclass(frozen=True)
class Allowlist:
    """The rules of one allowlist, and the lines that cannot be read."""

    rules: tuple[Rule, ...] = ()
    errors: tuple[LineError, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Allowlist:
        """Read an allowlist. Lines that cannot be read are in ``errors`` and allow nothing."""
        rules: dict[Rule, None] = {}
        errors: list[LineError] = []
        for number, line in enumerate(text.split("\n"), 1):
            if not _without_comment(line):
                continue
            try:
                rules[parse_line(line)] = None
            except BadLineError as error:
                errors.append(LineError(number, line.strip(), str(error)))
        return cls(tuple(rules), tuple(errors))

    def decide(self, request: ProxyRequest) -> Decision:
        """Decide on a request as the client sent it."""
        try:
            checked = requests.check_request(request)
        except BadRequestError as error:
            return Decision(str(error), BlockKind.REQUEST)
        rule = self.rule_for(checked)
        if rule is None:
            return Decision("no line of the allowlist allows it", BlockKind.RULE, checked)
        return Decision("", None, checked, rule)

    def rule_for(self, request: CheckedRequest) -> Rule | None:
        """Return a line that allows the request; None if there is none.

        A line with PRIVATE_WORD takes precedence.
        """
        found = [rule for rule in self.rules if rule.allows(request)]
        return max(found, key=lambda rule: rule.is_private_allowed, default=None)

    def covers(self, line: str) -> bool:
        """Return whether a line that is proposed would allow nothing new."""
        proposed = parse_line(line)
        return any(rule.covers(proposed) for rule in self.rules)


def parse_line(line: str) -> Rule:
    """Read one line, which may end in a comment. Raises BadLineError."""
    if len(line) > 2 * urls.MAX_TARGET:
        raise BadLineError("the line is too long")
    words = _without_comment(line).split()
    if len(words) not in (2, 3):
        raise BadLineError(f"a line is METHOD URL, as in: {EXAMPLE}")
    method, url, *end = words
    if method not in (*requests.METHODS, requests.WEBSOCKET):
        raise BadLineError(
            f"the method must be one of {', '.join(requests.METHODS)}, or {requests.WEBSOCKET} for"
            " a WebSocket: one in each line"
        )
    if end and end != [PRIVATE_WORD]:
        raise BadLineError(f"after the URL only {PRIVATE_WORD} is possible")
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in urls.DEFAULT_PORTS:
        raise BadLineError(
            "the URL must begin with https:// or http://"
            + (", also for a WebSocket" if scheme in ("wss", "ws") else "")
        )
    where, slash, path = rest.partition("/")
    if "*" in where:
        raise BadLineError("a * is possible in the path only")
    if not slash:
        raise BadLineError(
            "the URL has no path: end it with / for that page, /* for all of the host"
        )
    try:
        host, port = urls.split_authority(where)
        target = urls.normal_target(f"/{path}", is_pattern=True)
        number = urls.normal_port(port, scheme)
    except BadUrlError as error:
        raise BadLineError(str(error)) from None
    if host == urls.OWN_HOST:
        raise BadLineError(f"the proxy answers {host} itself, and sends nothing there")
    return Rule(method, scheme, host, number, tuple(re.split(r"\*+", target)), bool(end))


def validate_line(line: str) -> str:
    """Return a line in normal form. Raises UserError for one that would be ignored."""
    try:
        return parse_line(line).line
    except BadLineError as error:
        raise UserError(f"not a line of an allowlist: {shown(line.strip())}", str(error)) from None


def _without_comment(line: str) -> str:
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip()


def _matches(pieces: tuple[str, ...], target: str) -> bool:
    """Return whether ``target`` is the pieces in their order, with any text between them.

    Only a ``*`` at the end spans the ``?`` before a query. What follows another ``*`` must be in
    the path: a client must not be able to move it into a query. The time is linear in the target's
    length, so a client cannot make the proxy slow by its choice.
    """
    first, *others = pieces
    if not others:
        return target == first
    *middle, last = others
    at, end = len(first), len(target) - len(last)
    if not target.startswith(first) or end < at or not target.endswith(last):
        return False
    for piece in middle:
        found = target.find(piece, at, end)
        if found < 0 or _crosses_query(target, at, found):
            return False
        at = found + len(piece)
    return last == "" or not _crosses_query(target, at, end)


def _crosses_query(target: str, begin: int, end: int) -> bool:
    """Return whether the ``?`` that begins the query lies between two positions."""
    return begin <= target.find("?") < end


CREATED_TEXT = f"""\
# What may leave the sandbox, one line for each kind of request. Read at every request.
#
#   METHOD https://host[:port]/path
#
# Method, http or https, host, port and path are compared exactly; in the path, case matters. A * in
# the path stands for any run of characters. At the end of a line it spans / and ?, so also a query;
# elsewhere it spans / but not ?. So a line without a * at its end allows no query but its own.
# A line that cannot be read is ignored; `gitguard vm status` names it.
# {requests.WEBSOCKET} instead of METHOD allows a WebSocket. What passes in it is not seen.
#
# `gitguard vm blocked` shows blocked requests, with the line that would allow each.
# `gitguard vm allow LINE` adds a line here.
#
# Before you add one:
# - Be specific. An agent that follows injected instructions can use whatever a line allows.
# - Put a * behind a prefix that ends with /: https://example.com/me* allows /me-and-others as well.
# - Reading is GET and HEAD. Add POST, PUT, PATCH or DELETE for one path at a time.
# - A GET can carry data out: in the path, the query and the headers. Whoever can read these on the
#   host (a paste site, an issue tracker, the server's logs) can receive the data.
# - Where a host serves many people's data (a bucket, a gist, raw files), write a path that says
#   whose.
#
# A host without a public address is blocked, unless its line ends with `{PRIVATE_WORD}`: for
# example a registry in your own network. A name never leads to a loopback or link-local address,
# not even with that word; for that, write the address itself as the host.
#
# Examples:
#   GET https://docs.python.org/3/*
#   GET https://raw.githubusercontent.com/OWNER/REPOSITORY/*
#   POST https://api.example.com/v1/messages
#   GET https://registry.corp.example:8443/simple/* {PRIVATE_WORD}

# Packages of Debian, Ubuntu and PyPI, for reading. Delete what you do not want.
GET https://deb.debian.org/debian/*
HEAD https://deb.debian.org/debian/*
GET https://deb.debian.org/debian-security/*
HEAD https://deb.debian.org/debian-security/*
GET https://security.debian.org/debian-security/*
HEAD https://security.debian.org/debian-security/*
GET https://archive.ubuntu.com/ubuntu/*
HEAD https://archive.ubuntu.com/ubuntu/*
GET http://archive.ubuntu.com/ubuntu/*
HEAD http://archive.ubuntu.com/ubuntu/*
GET https://security.ubuntu.com/ubuntu/*
HEAD https://security.ubuntu.com/ubuntu/*
GET http://security.ubuntu.com/ubuntu/*
HEAD http://security.ubuntu.com/ubuntu/*
GET http://ports.ubuntu.com/ubuntu-ports/*
HEAD http://ports.ubuntu.com/ubuntu-ports/*
GET https://pypi.org/simple/*
HEAD https://pypi.org/simple/*
GET https://pypi.org/pypi/*
HEAD https://pypi.org/pypi/*
GET https://files.pythonhosted.org/packages/*
HEAD https://files.pythonhosted.org/packages/*
"""
