"""Looks up users and groups of this system, by name or number. No other module does.

A user database may be on the network: a number is looked up only if more than the number is
needed. Files like /etc/passwd of other systems are read here as well.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gitguardfs.base.constants import MAX_ID
from gitguardfs.base.errors import UserError

ELSEWHERE = "use its number if it exists elsewhere"


class UnknownAccountError(UserError):
    """Raised for a name that no user or group has."""


class OutOfRangeError(UserError):
    """Raised for a number that is too large for an id."""


@dataclass(frozen=True)
class Account:
    """A user, with or without an account."""

    uid: int
    gid: int
    """The user's primary group; without an account, the group of the same number."""
    name: str
    home: str = ""
    """The home directory of the user database; empty without an account."""
    exists: bool = True
    """Whether the user has an account."""


def is_number(text: str) -> bool:
    """Return whether ``text`` is a number and not a name."""
    return text.isascii() and text.isdigit()


def number(text: str, kind: str = "user") -> int:
    """Return the id that ``text`` spells in decimal. Raises OutOfRangeError."""
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
    except (KeyError, ValueError):  # ValueError: a NUL in the name
        raise _unknown("user", name) from None


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)


def _unknown(kind: str, name: str) -> UnknownAccountError:
    said = repr(name) if "\0" in name else name
    return UnknownAccountError(f"no such {kind}: {said}", ELSEWHERE)


def user_id(name: str) -> int:
    """Return a user's id by number or name; a number needs no account. Raises UserError."""
    return number(name) if is_number(name) else find(name).uid


def group_id(name: str) -> int:
    """Return a group's id by number or name. Raises UserError for an unknown name."""
    if is_number(name):
        return number(name, "group")
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):
        raise _unknown("group", name) from None


def group_name(gid: int) -> str:
    """Return the name of a group; its number as text if it has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def groups_of(uid: int) -> list[int]:
    """Return the ids of all groups of a user; empty for a user without an account."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def is_alone_in(gid: int) -> bool:
    """Return whether a group is this user's own, as systems have it on which the umask is 002."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == gid)}
    # Directories of users do not list all of them: the name says for whom it was made.
    return user.pw_gid == gid and group.gr_name == user.pw_name and members <= {user.pw_name}


def owner_of_home(path: str) -> Account | None:
    """Return the user whose home contains ``path``; None if no home does. The innermost counts.

    Root's home does not count, nor does a home that its user does not own. Homes are resolved by
    descriptors, so that a user whose home is a symlink does not get another user's files.
    """
    homes = [(home, _account(entry)) for entry in pwd.getpwall() if (home := _home_of(entry))]
    for home, account in sorted(homes, key=lambda found: len(found[0]), reverse=True):
        if path.startswith(f"{home}/"):
            return account
    return None


def named_by_home(path: str) -> Account | None:
    """Return the user whose home, by the user database alone, is ``path`` or contains it.

    That home need not exist. Root's does not count.
    """
    for entry in pwd.getpwall():
        home = entry.pw_dir.rstrip("/")
        if entry.pw_uid != 0 and home and f"{path}/".startswith(f"{home}/"):
            return _account(entry)
    return None


def _home_of(entry: pwd.struct_passwd) -> str | None:
    from gitguardfs.linux import safe_open  # Linux only; users are looked up on a Mac too

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


def ids_in(path: str) -> Iterator[tuple[int, str, int]]:
    """Yield line number, name and id of each line of a file like /etc/passwd or /etc/group.

    Raises UserError for a file that cannot be read, and for a line that is not
    ``name:password:id``. Root reads only a file that no other user can have put there.
    """
    from gitguardfs.linux import safe_open  # Linux only, as is mounting

    try:
        fd = safe_open.open_file(path, os.geteuid() == 0, os.O_RDONLY)
        with open(fd, errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line_number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split(":")
        if len(fields) < 3 or not re.fullmatch("[0-9]{1,20}", fields[2]):
            raise UserError(f"{path}, line {line_number} is not name:password:id")
        yield line_number, fields[0], int(fields[2])
