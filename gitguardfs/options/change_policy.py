"""bindfs's policies: the changes that a mount allows, ignores or denies. The default allows all.

A denied change is OSError(EPERM), as in bindfs. The guard is asked first and refuses with EACCES.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum
from stat import S_ISREG

from gitguardfs.base.constants import PERMISSION_BITS
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import GuestGid, GuestUid
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.permissions import Perms

X_BITS = 0o111


class ChangeRule(Enum):
    """What a mount does with a kind of change: make it, ignore it or deny it."""

    NORMAL = "normal"
    IGNORE = "ignore"
    DENY = "deny"


class XattrPolicy(Enum):
    """The value of ``--xattr``: extended attributes of the user namespace."""

    NONE = "none"
    RO = "ro"
    RW = "rw"


class Deletion(Enum):
    """What is removed with a resolved symlink (``--resolved-symlink-deletion``)."""

    DENY = "deny"
    SYMLINK_ONLY = "symlink-only"
    SYMLINK_FIRST = "symlink-first"
    TARGET_FIRST = "target-first"


@dataclass(frozen=True)
class SymlinkPolicy:
    """The policy of a mount that resolves symlinks."""

    deletion: Deletion = Deletion.SYMLINK_ONLY


@dataclass(frozen=True)
class ChangePolicy:
    """The policies of one mount."""

    create_as_mounter: bool = False
    create_for_user: int | None = None
    create_for_group: int | None = None
    create_with_perms: Perms | None = None
    chown: ChangeRule = ChangeRule.NORMAL
    chgrp: ChangeRule = ChangeRule.NORMAL
    chmod: ChangeRule = ChangeRule.NORMAL
    chmod_filter: Perms | None = None
    chmod_allow_x: bool = False
    delete_deny: bool = False
    rename_deny: bool = False
    xattr: XattrPolicy = XattrPolicy.NONE

    def new_owner(
        self, idmap: IdMap, uid: GuestUid, gid: GuestGid, inherits_group: bool
    ) -> tuple[int, int]:
        """Return the (user, group) of a new object, in share ids; the caller's are guest ids.

        -1 leaves what the file system sets: the daemon's id or, if ``inherits_group`` (a set-gid
        directory), the directory's group. An object of a root without a share id belongs to the
        daemon: root can use it in any case. Raises OSError(EOVERFLOW) for any other caller
        without a share id.
        """
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

    def owners(
        self, uid: GuestUid | None, gid: GuestGid | None
    ) -> tuple[GuestUid | None, GuestGid | None]:
        """Return the ids that a chown sets; None leaves one. Raises OSError(EPERM) if denied."""
        denies_user = uid is not None and self.chown is ChangeRule.DENY
        if denies_user or (gid is not None and self.chgrp is ChangeRule.DENY):
            raise os_error(errno.EPERM)
        return (
            None if self.chown is ChangeRule.IGNORE else uid,
            None if self.chgrp is ChangeRule.IGNORE else gid,
        )

    def mode(self, old: int, new: int) -> int | None:
        """Return the mode that a chmod to ``new`` sets; None leaves it. Raises OSError(EPERM).

        ``old`` and ``new`` are modes in the share, with the type of the object.
        """
        if self.chmod is ChangeRule.NORMAL:
            return new if self.chmod_filter is None else self.chmod_filter.apply(new)
        if self.chmod_allow_x and S_ISREG(old):
            changed = (old ^ new) & PERMISSION_BITS
            if self.chmod is ChangeRule.IGNORE:
                return old ^ changed & X_BITS
            if not changed & ~X_BITS:
                return new
        if self.chmod is ChangeRule.DENY:
            raise os_error(errno.EPERM)
        return None
