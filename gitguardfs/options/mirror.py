"""Users who see every file as their own (bindfs's ``--mirror``)."""

from __future__ import annotations

from collections.abc import Callable, Collection

GroupsOf = Callable[[int], Collection[int]]
"""The ids of all groups of a user, by the user's id; none if there is no such user."""


class Mirror:
    """The users who are mirrored: by id, or as members of groups.

    Memberships are cached until ``reread``: asking the user database for every request would be
    slow, and the database may be on the network.
    """

    def __init__(
        self, users: frozenset[int], groups: frozenset[int], only: bool, groups_of: GroupsOf
    ) -> None:
        """Keep the users. ``only`` shows no permissions to others, except root."""
        self.users = users
        self.groups = groups
        self.only = only
        self._groups_of = groups_of
        self._members: dict[int, bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mirror) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def _value(self) -> tuple[frozenset[int], frozenset[int], bool]:
        return self.users, self.groups, self.only

    def reread(self) -> None:
        """Forget the cached memberships."""
        self._members.clear()

    def shows(self, uid: int) -> bool:
        """Return whether the user sees every file as their own."""
        if uid in self.users:
            return True
        if not self.groups:
            return False
        member = self._members.get(uid)
        if member is None:
            member = self._members[uid] = self._is_member(uid)
        return member

    def _is_member(self, uid: int) -> bool:
        return not self.groups.isdisjoint(self._groups_of(uid))
