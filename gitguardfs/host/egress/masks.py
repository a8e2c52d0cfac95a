"""Hides the values of secrets in the answers to the requests that hold them. Pure.

The guest must not see a value that a server repeats in a header field, such as Location. Answers to
other requests stay as they are: a mask there would tell the guest that a guess was right.
A request that brings a guess of its own is not sent when the guess is right (request_secrets).
"""

from __future__ import annotations

import base64
import re
import urllib.parse

from gitguardfs.host.credentials.secrets import Kind, Place, Secret
from gitguardfs.host.egress.exchange import Use
from gitguardfs.host.egress.requests import Fields

_KEPT = frozenset((b"content-length", b"transfer-encoding"))
"""Fields that say how the message is read; a value that looks like one must not change them."""
_KEPT_WORDS = {b"connection": (b"keep-alive", b"close", b"upgrade"), b"upgrade": (b"websocket",)}
"""Fields that may have these words, also if one looks like a value."""


class Masks:
    """Values that were put into one request, in the forms in which they can come back."""

    def __init__(self) -> None:
        self._placeholders: dict[bytes, bytes] = {}

    def add(self, use: Use, value: str) -> None:
        """Hide a value from now on; its secret's placeholder stands in its place."""
        self._placeholders |= _masking(use.secret, use.place, value)

    def masked(self, data: bytes) -> bytes:
        """Return ``data`` with placeholders instead of values."""
        for form in sorted(self._placeholders, key=len, reverse=True):  # one may begin another
            data = data.replace(form, self._placeholders[form])
        return data

    def masked_fields(self, fields: Fields) -> Fields:
        """Return header fields with placeholders instead of values."""
        return tuple(
            (name, value)
            if _is_kept(name.lower(), value)
            else (self.masked(name), self.masked(value))
            for name, value in fields
        )


def forms(secret: Secret, value: str) -> frozenset[bytes]:
    """Return a value in all forms that are masked, in lower case."""
    found = [_masking(secret, place, value) for place in secret.places]
    return frozenset(form.lower() for one in found for form in one)


def _masking(secret: Secret, place: Place, value: str) -> dict[bytes, bytes]:
    """Return the masking text for each form of a value."""
    placeholder = secret.placeholder.encode()
    escaped = [
        quote(value, safe=safe)
        for quote in (urllib.parse.quote, urllib.parse.quote_plus)
        for safe in ("", "/", "!'()*/", "!#$&'()*+,/:;=?@")  # as of programs in use
    ]
    lowered = [re.sub("%..", lambda escape: escape[0].lower(), form) for form in escaped]
    found = {form.encode(): placeholder for form in (value, *escaped, *lowered)}
    if place.kind is Kind.BASIC:
        pairs = [f"{place.word}:{text}".encode() for text in (value, secret.placeholder)]
        found[base64.b64encode(pairs[0])] = base64.b64encode(pairs[1])
    return found


def _is_kept(name: bytes, value: bytes) -> bool:
    return name in _KEPT or value.lower() in _KEPT_WORDS.get(name, ())
