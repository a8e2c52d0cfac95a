"""The secrets of the VM at the time of one request: finds their placeholders, puts the values in.

A value in a keyring, which may ask its user, comes from a thread that nothing else waits for.

A request that brings a value itself is not sent, and the value is suspended: a guest could put
thousands of guesses into one request, and its answer would show which of them is masked. Only the
first such request, of all VMs, is refused for its value. A suspended value affects no answer, so no
further request narrows it down.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from gitguardfs.base.errors import UserError
from gitguardfs.base.questions import asked_once
from gitguardfs.host.credentials import secrets, store, suspended
from gitguardfs.host.credentials.secrets import Secret
from gitguardfs.host.egress import exchange, masks, requests
from gitguardfs.host.egress.exchange import BodySearch, Head, MisplacedError
from gitguardfs.host.egress.masks import Masks
from gitguardfs.host.egress.requests import CheckedRequest

log = logging.getLogger("gitguardfs.host.egress")

_last_values: dict[str, str] = {}
"""The values last read from keyrings, by the store's key. A request to a host without secrets is
compared with them, and does not ask the keyring."""


class RequestSecrets:
    """The secrets in a request that the allowlist allows."""

    def __init__(self, state_dir: Path, checked: CheckedRequest, head: Head) -> None:
        """Look for placeholders in the head to be sent. Raises MisplacedError."""
        self._state_dir = state_dir
        self._checked = checked
        self._all = _load(state_dir)
        self._head = head
        self._uses = exchange.uses(checked, head, self._all)
        self._values: dict[str, str] = {}
        self._search = BodySearch({})
        self._placeholders: set[str] = set()
        self._noted: set[str] = set()
        self.masks = Masks()
        """Hide the values of ``with_values`` in the response."""

    async def with_values(self, body: bytes) -> Head:
        """Return the head with values. ``body`` is the part of the body that was read, or empty.

        Raises MisplacedError if the store cannot give a value, or the request brings one itself.
        """
        for secret in self._all:
            if (value := await self._value(secret)) is not None:
                self._values[secret.name] = value
        # From here on without a pause: of two requests at a time, one is the first.
        self._check_suspended()
        words = {
            secret.name: masks.forms(secret, self._values[secret.name])
            for secret in self._all
            if secret.name in self._values
        }
        placeholders = {f"${s.name}": (s.placeholder.lower().encode(),) for s in self._all}
        self._placeholders |= placeholders.keys()
        self._search = BodySearch({**words, **placeholders})
        found = {name for name, some in words.items() if exchange.is_in(self._head, some)}
        found |= self._search.found(body)
        if why := self._why_refused(found):
            raise MisplacedError(why)
        if found & words.keys():  # then another VM's request was the first
            self._check_suspended()
        head = self._head
        for use in self._uses:
            value = self._values[use.secret.name]
            self.masks.add(use, value)
            head = use.put(head, value.encode("ascii"))
        return head

    def why_refused(self, part: bytes) -> str:
        """Return why a body with this next part must not leave; "" if it may."""
        return self.why_ended() or self._why_refused(self._search.found(part))

    def why_ended(self) -> str:
        """Return why this request must not go on; "" if it may.

        A value in it may have been suspended since. Its masks would confirm further guesses.
        """
        try:
            self._check_suspended()
        except MisplacedError as error:
            return str(error)
        return ""

    async def _value(self, secret: Secret) -> str | None:
        """Return a secret's value; None if it is unknown and this request can go without it."""
        key = secrets.key(self._state_dir, secret.name)
        is_needed = self._checked.host in {place.host for place in secret.places}
        try:
            if not store.is_in_keyring(key):
                return secrets.value_of(self._state_dir, secret)
            if is_needed:
                _last_values[key] = await asked_once(secrets.value_of, self._state_dir, secret)
            return _last_values.get(key)
        except (UserError, OSError) as error:
            if not is_needed:
                return None
            raise MisplacedError(
                f"the value of the secret {secret.name} cannot be read: {error}"
            ) from None

    def _check_suspended(self) -> None:
        """Forget the values that are suspended. Raises MisplacedError if one of them is used."""
        used = {use.secret.name for use in self._uses}
        for name, value in list(self._values.items()):
            try:
                is_suspended = suspended.is_suspended(secrets.key(self._state_dir, name), value)
            except (UserError, OSError) as error:
                raise _blocked(error) from None
            if is_suspended and name in used:
                raise MisplacedError(secrets.why_suspended(name))
            if is_suspended:
                del self._values[name]

    def _why_refused(self, found: Iterable[str]) -> str:
        """Suspend the values that were found in this request; return why it must not leave."""
        first = [name for name in sorted(found) if name in self._values and self._suspend(name)]
        if first:
            return "; ".join(map(secrets.why_suspended, first))
        for name in sorted(self._placeholders.intersection(found) - self._noted):
            self._noted.add(name)
            log.info(
                "the placeholder %s is in the body of a request to %s, which is sent as it is",
                name, self._checked.authority,
            )  # fmt: skip
        return ""

    def _suspend(self, name: str) -> bool:
        """Suspend a value; return whether this request is the first that holds it."""
        try:
            is_first = suspended.suspend(secrets.key(self._state_dir, name), self._values[name])
        except (UserError, OSError) as error:
            log.error("cannot write down that a secret is suspended: %s", error)
            is_first = True
        if is_first:
            log.warning("%s", secrets.why_suspended(name))
        return is_first

    @property
    def is_body_awaited(self) -> bool:
        """Whether the body is to be searched whole before anything leaves: there is a short one."""
        fields = self._head.fields
        return bool(self._all) and requests.has_body(fields) and not requests.has_long_body(fields)


def _load(state_dir: Path) -> Sequence[Secret]:
    try:
        return secrets.load(state_dir)
    except (UserError, OSError) as error:
        raise _blocked(error) from None


def _blocked(error: UserError | OSError) -> MisplacedError:
    why = str(error) if isinstance(error, UserError) else f"{error.filename}: {error.strerror}"
    return MisplacedError(f"every request is blocked: {why}")
