"""The secrets of the VM at the time of one request: finds their placeholders, puts the values in.

A value in a keyring, which may ask its user, comes from a thread that nothing else waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gitguardfs.credentials import secrets, store
from gitguardfs.credentials.secrets import Secret
from gitguardfs.egress import exchange, requests
from gitguardfs.egress.exchange import BodySearch, Head, MisplacedError, Use
from gitguardfs.egress.masks import Masks
from gitguardfs.egress.requests import CheckedRequest
from gitguardfs.egress.shared import shared
from gitguardfs.errors import UserError


class RequestSecrets:
    """What a request that the allowlist allows has to do with secrets."""

    def __init__(self, state_dir: Path, checked: CheckedRequest, head: Head) -> None:
        """Look for placeholders in what would be sent. Raises MisplacedError."""
        self._state_dir = state_dir
        self._all = _load(state_dir)
        self._head = head
        self._uses = exchange.uses(checked, head, self._all)
        self.masks = Masks()
        """Hide the values of ``with_values`` in the response."""

    async def with_values(self) -> Head:
        """Return what to send: with values. Raises MisplacedError if the store cannot give one."""
        head = self._head
        for use in self._uses:
            head = use.put(head, await self._value(use))
        return head

    async def _value(self, use: Use) -> bytes:
        try:
            if store.is_in_keyring(secrets.key(self._state_dir, use.secret.name)):
                value = await shared(secrets.value_of, self._state_dir, use.secret)
            else:
                value = secrets.value_of(self._state_dir, use.secret)
        except (UserError, OSError) as error:
            raise MisplacedError(
                f"the value of the secret {use.secret.name} cannot be read: {error}"
            ) from None
        self.masks.add(use, value)
        return value.encode("ascii")

    @property
    def body(self) -> BodySearch:
        """A search for the body of this request."""
        return BodySearch(self._all)

    def check_body(self, body: bytes) -> None:
        """Raise MisplacedError if there is a placeholder in a whole body."""
        if why := self.body.why_refused(body):
            raise MisplacedError(why)

    @property
    def is_body_awaited(self) -> bool:
        """Whether the body is to be searched whole before anything leaves: there is a short one."""
        fields = self._head.fields
        return bool(self._all) and requests.has_body(fields) and not requests.has_long_body(fields)


def _load(state_dir: Path) -> Sequence[Secret]:
    try:
        return secrets.load(state_dir)
    except UserError as error:
        raise MisplacedError(f"every request is blocked: {error}") from None
    except OSError as error:
        raise MisplacedError(
            f"every request is blocked: {error.filename}: {error.strerror}"
        ) from None
