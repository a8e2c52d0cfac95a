"""The users and groups of this system: the one look-up, by name or by number.

A user database may be on the network: a number is not looked up where only the number is needed.
"""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass

from gitguardfs.constants import MAX_ID
from gitguardfs.errors import UserError

ELSEWHERE = "use its number if it exists elsewhere"


class UnknownAccountError(UserError):
    """There is no user or group of that name."""


class OutOfRangeError(UserError):
    """No user or group can have that number."""


@dataclass(frozen=True)
class Account:
    """A user, maybe one who has only a number."""

    uid: int
    gid: int
    """The user's own group; that of the same number where there is no account."""
    name: str
    home: str = ""
    """As the user database has it; empty without an account."""
    exists: bool = True
    """Whether there is an account."""


def is_number(text: str) -> bool:
    """Return whether a user or group is given by number."""
    return text.isascii() and text.isdigit()


def number(text: str, kind: str = "user") -> int:
    """Return the number that ``text`` is. Raises OutOfRangeError."""
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MAX_ID)) or int(digits) > MAX_ID:
        raise OutOfRangeError(f"{kind} id {text} is out of range (0 to {MAX_ID})")
    return int(digits)


def find(name: str) -> Account:
    """Return a user by name or number. Raises UnknownAccountError, OutOfRangeError."""
    if is_number(name):
        uid = number(name)
        try:
            return _account(pwd.getpwuid(uid))
        except KeyError:
            return Account(uid, uid, str(uid), exists=False)
    try:
        return _account(pwd.getpwnam(name))
    except (KeyError, ValueError):  # a name with a NUL is none
        raise _unknown("user", name) from None


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)


def _unknown(kind: str, name: str) -> UnknownAccountError:
    said = repr(name) if "\0" in name else name
    return UnknownAccountError(f"no such {kind}: {said}", ELSEWHERE)


def user_id(name: str) -> int:
    """Return a user's id by number or name; a number need not have an account. UserError."""
    return number(name) if is_number(name) else find(name).uid


def group_id(name: str) -> int:
    """Return a group's id by number or name; UserError if there is no such group."""
    if is_number(name):
        return number(name, "group")
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise _unknown("group", name) from None


def group_name(gid: int) -> str:
    """Return the name of a group; its number if it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def groups_of(uid: int) -> list[int]:
    """Return the ids of all groups of a user, by the user database; none for an unknown user."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def owner_of_home(path: str) -> Account | None:
    """Return the user in whose home ``path`` lies; the innermost home counts. None if in none.

    Root's home is none, nor is a directory that is not the user's own. Each home is walked by
    descriptors: nobody gets another one's files by a symlink for a home.
    """
    homes = [(home, _account(entry)) for entry in pwd.getpwall() if (home := _home_of(entry))]
    for home, account in sorted(homes, key=lambda found: len(found[0]), reverse=True):
        if path.startswith(f"{home}/"):
            return account
    return None


def _home_of(entry: pwd.struct_passwd) -> str | None:
    from gitguardfs.linux import safe_open  # of Linux, while users are looked up elsewhere too

    if entry.pw_uid == 0 or not entry.pw_dir.strip("/"):
        return None
    try:
        fd = safe_open.open_directory(entry.pw_dir, True)
    except (OSError, UserError):
        return None
    try:
        is_own = os.fstat(fd).st_uid == entry.pw_uid
        return safe_open.path_of(fd) if is_own else None
    except OSError:
        return None
    finally:
        os.close(fd)
