"""Finds the placeholders of secrets in a request, and puts the values in their places. Pure.

A placeholder counts only in a place of its secret: by https, for that host and port, once, and as
the whole value. Anywhere else in the URL or the header the request is refused. So whoever controls
the request can send the value to no other host, and not where its server would publish it. In a
body a placeholder is text like any other.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gitguardfs.host.credentials.secrets import PLACEHOLDER, Kind, Place, Secret
from gitguardfs.host.egress import requests
from gitguardfs.host.egress.requests import CheckedRequest

MAX_ESCAPED = 3
"""The number of times that a text is unescaped to look for a placeholder in it."""
_BASE64_RUN = re.compile(rb"[A-Za-z0-9+/_-]{11,}")
"""Characters that can hold MIN_VALUE bytes, or more, in base64."""
_JSON_ESCAPE = re.compile(rb'\\(?:(?:u00|x)([0-9A-Fa-f]{2})|(["/\\]))')
"""An escape of JSON, or of a program's text, that stands for one byte."""
_LONGEST_ESCAPE = 6
"""Bytes of the longest form of one byte with one escape."""
_MARK = re.compile(PLACEHOLDER.pattern.encode(), re.IGNORECASE)
_AUTHORIZATION = b"authorization"


class MisplacedError(Exception):
    """A placeholder, or a value, that must not leave with a request; the text says why."""


class Head(NamedTuple):
    """The beginning of a request: its target, and its header fields."""

    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]


class Use(NamedTuple):
    """A placeholder that stands in a place of its secret."""

    secret: Secret
    place: Place

    def put(self, head: Head, value: bytes) -> Head:
        """Return the head with ``value`` instead of the placeholder."""
        return _put(head, self.place, self.secret.placeholder.encode(), value) or head


def uses(request: CheckedRequest, head: Head, secrets: Sequence[Secret]) -> list[Use]:
    """Return the placeholders of an allowed request. Raises MisplacedError.

    ``head`` is what would be sent to the server.
    """
    found: list[Use] = []
    left = head
    for secret in secrets:
        for place in secret.places:
            if (request.scheme, request.host, request.port) != ("https", place.host, place.port):
                continue
            without = _put(left, place, secret.placeholder.encode(), b"")
            if without is not None:
                found.append(Use(secret, place))
                left = without
                break
    _check_none(left, secrets)
    return found


class BodySearch:
    """Searches a body, part by part, for words in any case, also in escapes of URLs and JSON."""

    def __init__(self, words: Mapping[str, Collection[bytes]]) -> None:
        """Search for ``words``, which are in lower case. Those with one name count as the same."""
        self._words = words
        lengths = [len(word) for some in words.values() for word in some]
        self._overlap = _LONGEST_ESCAPE * max(lengths, default=0)
        self._end = b""

    def found(self, part: bytes) -> set[str]:
        """Return the names of words in the next part; a word may have begun in the last one."""
        text = self._end + part
        self._end = text[-self._overlap :] if self._overlap else b""
        forms = [
            form.lower()
            for one in dict.fromkeys((text, urllib.parse.unquote_to_bytes(text)))
            for form in (one, _without_json(one))
        ]
        return {
            name
            for name, some in self._words.items()
            if any(word in form for form in dict.fromkeys(forms) for word in some)
        }


def is_in(head: Head, words: Collection[bytes]) -> bool:
    """Return whether one of ``words``, in lower case, is in a head: in any form, in any case."""
    return any(
        word in form.lower() for _, text in _texts(head) for form in _forms(text) for word in words
    )


def without_secrets(text: str) -> str:
    """Return a text for the agent without placeholders, which it could quote in its next URL."""
    return PLACEHOLDER.sub("(a placeholder)", text)


def url_without_secrets(url: str) -> str:
    """Return a URL without placeholders: with ``*`` in the query, as a line would allow it.

    In a path no line can allow one, and a ``*`` would be a wildcard that the client has chosen.
    """
    path, mark, query = url.partition("?")
    return without_secrets(path) + mark + PLACEHOLDER.sub("*", query)


def _put(head: Head, place: Place, old: bytes, new: bytes) -> Head | None:
    """Return the head with ``new`` instead of ``old`` in a place; None if ``old`` is not there."""
    if place.kind is Kind.QUERY:
        target = _in_query(head.target, place.word.encode(), old, new)
        return None if target is None else head._replace(target=target)
    name = place.word.lower().encode() if place.kind is Kind.HEADER else _AUTHORIZATION
    at = [number for number, field in enumerate(head.fields) if field[0].lower() == name]
    if len(at) != 1:
        return None
    own, value = head.fields[at[0]]
    changed = _IN_FIELD[place.kind](value, place.word.encode(), old, new)
    if changed is None:
        return None
    fields = (*head.fields[: at[0]], (own, changed), *head.fields[at[0] + 1 :])
    return head._replace(fields=fields)


def _in_query(target: bytes, name: bytes, old: bytes, new: bytes) -> bytes | None:
    path, mark, query = target.partition(b"?")
    parameters = query.split(b"&")
    at = [n for n, one in enumerate(parameters) if one.partition(b"=")[0] == name]
    if len(at) != 1 or parameters[at[0]] != name + b"=" + old:
        return None
    parameters[at[0]] = name + b"=" + urllib.parse.quote_from_bytes(new, safe="").encode()
    return path + mark + b"&".join(parameters)


def _in_bearer(value: bytes, word: bytes, old: bytes, new: bytes) -> bytes | None:
    own, blank, token = value.partition(b" ")
    return own + blank + new if own.lower() == word.lower() and token == old else None


def _in_basic(value: bytes, user: bytes, old: bytes, new: bytes) -> bytes | None:
    own, blank, token = value.partition(b" ")
    if own.lower() != b"basic" or token != base64.b64encode(user + b":" + old):
        return None
    return own + blank + base64.b64encode(user + b":" + new)


def _in_header(value: bytes, _: bytes, old: bytes, new: bytes) -> bytes | None:
    return new if value == old else None


_IN_FIELD: dict[Kind, Callable[[bytes, bytes, bytes, bytes], bytes | None]] = {
    Kind.BEARER: _in_bearer,
    Kind.BASIC: _in_basic,
    Kind.HEADER: _in_header,
}


def _check_none(head: Head, secrets: Sequence[Secret]) -> None:
    """Raise MisplacedError if there is a placeholder, of any VM's secret, in any form."""
    by_word = {secret.placeholder.lower().encode(): secret for secret in secrets}
    for where, text in _texts(head):
        for form in _forms(text):
            if mark := _MARK.search(form):
                secret = by_word.get(mark[0].lower())
                if secret is None:
                    raise MisplacedError(
                        f"{where} there is the placeholder of a secret that this VM does not have;"
                        " gitguard vm secret list names those that it has"
                    )
                raise MisplacedError(_why(secret, where))


def _texts(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yield where a text is, and the text."""
    yield "in the URL", head.target
    for name, value in head.fields:
        shown = without_secrets(name.decode("latin-1"))
        yield f"in the field {requests.field_name(shown)}", name + b": " + value


def _why(secret: Secret, where: str) -> str:
    return (
        f"the placeholder of the secret {secret.name} is {where}. It belongs only in requests to"
        f" https://{' or https://'.join(secret.hosts)}, and there only once and whole, in"
        f" {secret.where}"
    )


def _forms(text: bytes) -> Iterator[bytes]:
    """Yield a text as it is, unescaped, and decoded from base64 that begins anywhere in it."""
    for _ in range(MAX_ESCAPED):
        yield text
        yield _without_json(text)
        for run in _BASE64_RUN.findall(text):
            yield from (_decoded(run[at:]) for at in range(4))
        unescaped = urllib.parse.unquote_to_bytes(text)
        if unescaped == text:
            return
        text = unescaped
    yield text


def _without_json(text: bytes) -> bytes:
    return _JSON_ESCAPE.sub(lambda found: found[2] or bytes.fromhex(found[1].decode()), text)


def _decoded(run: bytes) -> bytes:
    whole = run[: len(run) - (len(run) % 4 == 1)].translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return base64.b64decode(whole + b"=" * (-len(whole) % 4))
    except binascii.Error:
        return b""
