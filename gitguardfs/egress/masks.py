"""Hides the values of secrets in what servers answer, and in the proxy's log.

The guest must not see a value that a server repeats in a header field. mitmproxy quotes what it
cannot read in its log and in its error pages.
"""

from __future__ import annotations

import base64
import urllib.parse

from gitguardfs.credentials.secrets import Kind
from gitguardfs.egress.exchange import Use


class Masks:
    """Values that the proxy has put into requests, in the forms in which they can come back."""

    def __init__(self) -> None:
        self._placeholders: dict[bytes, bytes] = {}

    def add(self, use: Use, value: str) -> None:
        """Hide a value from now on; its secret's placeholder stands in its place."""
        placeholder = use.secret.placeholder.encode()
        forms = [value, repr(value)[1:-1], urllib.parse.quote(value, safe="")]
        for form in sorted(forms, key=len, reverse=True):
            self._placeholders[form.encode()] = placeholder
        if use.place.kind is Kind.BASIC:
            user = use.place.word.encode()
            pairs = [user + b":" + text for text in (value.encode(), placeholder)]
            self._placeholders[base64.b64encode(pairs[0])] = base64.b64encode(pairs[1])

    def masked(self, data: bytes) -> bytes:
        """Return ``data`` with placeholders instead of values."""
        for form, placeholder in self._placeholders.items():
            data = data.replace(form, placeholder)
        return data

    def masked_fields(
        self, fields: tuple[tuple[bytes, bytes], ...]
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Return header fields with placeholders instead of values."""
        return tuple((self.masked(name), self.masked(value)) for name, value in fields)

    def masked_text(self, text: str) -> str:
        """Return ``text`` with placeholders instead of values."""
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


MASKS = Masks()
"""The values that this process has put into requests."""
