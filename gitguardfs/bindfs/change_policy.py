"""What changes are let through, and as what: bindfs's policies. The default lets all through.

Refused here is EPERM, as in bindfs; what the guard refuses is refused before, with EACCES.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum
from stat import S_ISREG

from gitguardfs.bindfs.idmap import GuestGid, GuestUid, IdMap
from gitguardfs.bindfs.permissions import Perms
from gitguardfs.errors import os_error

X_BITS = 0o111
PERMISSION_BITS = 0o7777


class Rule(Enum):
    """What becomes of a request to change something."""

    NORMAL = "normal"
    IGNORE = "ignore"
    DENY = "deny"


class XattrPolicy(Enum):
    """The value of ``--xattr``: extended attributes of the user namespace."""

    NONE = "none"
    RO = "ro"
    RW = "rw"


class Deletion(Enum):
    """What removing a resolved symlink removes (``--resolved-symlink-deletion``)."""

    DENY = "deny"
    SYMLINK_ONLY = "symlink-only"
    SYMLINK_FIRST = "symlink-first"
    TARGET_FIRST = "target-first"


@dataclass(frozen=True)
class LinkPolicy:
    """That symlinks are resolved, and what removing one does."""

    deletion: Deletion = Deletion.SYMLINK_ONLY


def _denied() -> OSError:
    return os_error(errno.EPERM)


@dataclass(frozen=True)
class Policy:
    """The policies of one mount."""

    create_as_mounter: bool = False
    create_for_user: int | None = None
    create_for_group: int | None = None
    create_with_perms: Perms | None = None
    chown: Rule = Rule.NORMAL
    chgrp: Rule = Rule.NORMAL
    chmod: Rule = Rule.NORMAL
    chmod_filter: Perms | None = None
    chmod_allow_x: bool = False
    delete_deny: bool = False
    rename_deny: bool = False
    xattr: XattrPolicy = XattrPolicy.NONE

    def new_owner(
        self, caller: tuple[int, int], inherits_group: bool, idmap: IdMap
    ) -> tuple[int, int]:
        """The share's (user, group) of an object that ``caller`` (guest ids) makes.

        -1 leaves one as the file system made it: the daemon's, or for ``inherits_group`` (a
        set-gid directory) the directory's. OSError(EOVERFLOW) for a caller without a share id;
        what root makes, who can use it in any case, is then the daemon's.
        """
        uid, gid = GuestUid(caller[0]), GuestGid(caller[1])
        if self.create_for_user is not None:
            user: int | None = self.create_for_user
        elif self.create_as_mounter or (uid == 0 and not idmap.can_store_uid(uid)):
            user = idmap.mapped_uid(uid)
        else:
            user = idmap.share_uid(uid)
        if self.create_for_group is not None:
            group: int | None = self.create_for_group
        elif inherits_group:
            group = None
        elif self.create_as_mounter or (uid == 0 and not idmap.can_store_gid(gid)):
            group = idmap.mapped_gid(gid)
        else:
            group = idmap.share_gid(gid)
        return -1 if user is None else user, -1 if group is None else group

    def new_mode(self, mode: int) -> int:
        """The mode, with its type, of an object that is asked for with ``mode``."""
        return mode if self.create_with_perms is None else self.create_with_perms.apply(mode)

    def owners(self, uid: int | None, gid: int | None) -> tuple[int | None, int | None]:
        """What a chown to ``uid`` and ``gid`` may change; OSError(EPERM) if that is denied."""
        denies_user = uid is not None and self.chown is Rule.DENY
        if denies_user or (gid is not None and self.chgrp is Rule.DENY):
            raise _denied()
        return (
            None if self.chown is Rule.IGNORE else uid,
            None if self.chgrp is Rule.IGNORE else gid,
        )

    def mode(self, old: int, new: int) -> int | None:
        """The mode to set where ``new`` is asked for; None to leave it; OSError(EPERM).

        Both are the share's, with the type of the object.
        """
        if self.chmod is Rule.NORMAL:
            return new if self.chmod_filter is None else self.chmod_filter.apply(new)
        if self.chmod_allow_x and S_ISREG(old):
            changed = (old ^ new) & PERMISSION_BITS
            if self.chmod is Rule.IGNORE:
                return old ^ changed & X_BITS
            if not changed & ~X_BITS:
                return new
        if self.chmod is Rule.DENY:
            raise _denied()
        return None

    def may_remove(self) -> None:
        """OSError(EPERM) if nothing may be removed."""
        if self.delete_deny:
            raise _denied()

    def may_rename(self) -> None:
        """OSError(EPERM) if nothing may be renamed."""
        if self.rename_deny:
            raise _denied()
