"""Which changes the policies allow, and in what form."""

from __future__ import annotations

import errno
from stat import S_IFDIR, S_IFREG

import pytest

from gitguardfs.options.change_policy import ChangePolicy, ChangeRule
from gitguardfs.options.idmap import IdMap
from gitguardfs.options.permissions import Perms

NORMAL, IGNORE, DENY = ChangeRule.NORMAL, ChangeRule.IGNORE, ChangeRule.DENY
DENIED = errno.EPERM
FILE, DIRECTORY = S_IFREG, S_IFDIR


def outcome(call: object, *args: object) -> object:
    try:
        return call(*args)  # type: ignore[operator]
    except OSError as error:
        return error.errno


@pytest.mark.parametrize(
    ("chown", "chgrp", "user", "group", "both"),
    [
        (NORMAL, NORMAL, (7, None), (None, 8), (7, 8)),
        (NORMAL, IGNORE, (7, None), (None, None), (7, None)),
        (NORMAL, DENY, (7, None), DENIED, DENIED),
        (IGNORE, NORMAL, (None, None), (None, 8), (None, 8)),
        (IGNORE, IGNORE, (None, None), (None, None), (None, None)),
        (IGNORE, DENY, (None, None), DENIED, DENIED),
        (DENY, NORMAL, DENIED, (None, 8), DENIED),
        (DENY, IGNORE, DENIED, (None, None), DENIED),
        (DENY, DENY, DENIED, DENIED, DENIED),
    ],
)
def test_chown_and_chgrp(
    chown: ChangeRule, chgrp: ChangeRule, user: object, group: object, both: object
) -> None:
    policy = ChangePolicy(chown=chown, chgrp=chgrp)
    assert outcome(policy.owners, 7, None) == user
    assert outcome(policy.owners, None, 8) == group
    assert outcome(policy.owners, 7, 8) == both
    assert policy.owners(None, None) == (None, None)


@pytest.mark.parametrize(
    ("policy", "old", "new", "found"),
    [
        (ChangePolicy(), FILE | 0o600, FILE | 0o4755, FILE | 0o4755),
        (ChangePolicy(chmod_allow_x=True), FILE | 0o600, FILE | 0o666, FILE | 0o666),
        (ChangePolicy(chmod_filter=Perms("g-w,o-rwx")), FILE, FILE | 0o666, FILE | 0o640),
        (ChangePolicy(chmod_filter=Perms("a+D")), DIRECTORY, DIRECTORY, DIRECTORY | 0o111),
        (ChangePolicy(chmod=IGNORE), FILE | 0o600, FILE | 0o777, None),
        (ChangePolicy(chmod=DENY), FILE | 0o600, FILE | 0o600, DENIED),
        (
            ChangePolicy(chmod=IGNORE, chmod_allow_x=True),
            FILE | 0o1700,
            FILE | 0o077,
            FILE | 0o1611,
        ),
        (ChangePolicy(chmod=IGNORE, chmod_allow_x=True), DIRECTORY | 0o700, DIRECTORY | 0o77, None),
        (ChangePolicy(chmod=DENY, chmod_allow_x=True), FILE | 0o700, FILE | 0o700, FILE | 0o700),
        (ChangePolicy(chmod=DENY, chmod_allow_x=True), FILE | 0o700, FILE | 0o611, FILE | 0o611),
        (ChangePolicy(chmod=DENY, chmod_allow_x=True), FILE | 0o700, FILE | 0o777, DENIED),
        (ChangePolicy(chmod=DENY, chmod_allow_x=True), FILE | 0o700, FILE | 0o1700, DENIED),
        (
            ChangePolicy(chmod=DENY, chmod_allow_x=True),
            DIRECTORY | 0o700,
            DIRECTORY | 0o700,
            DENIED,
        ),
        (ChangePolicy(chmod=DENY, chmod_filter=Perms("a=")), FILE, FILE | 0o7, DENIED),
    ],
)
def test_chmod(policy: ChangePolicy, old: int, new: int, found: object) -> None:
    assert outcome(policy.mode, old, new) == found


MAP = IdMap([(501, 1000)], [(20, 1000)])
SHIFTED = IdMap([(501, 1000)], [(20, 1000)], uid_offset=10, gid_offset=20)


@pytest.mark.parametrize(
    ("policy", "caller", "inherits", "idmap", "owner"),
    [
        (ChangePolicy(), (1000, 1000), False, MAP, (501, 20)),
        (ChangePolicy(), (7, 8), False, MAP, (7, 8)),
        (ChangePolicy(), (1000, 1000), True, MAP, (501, -1)),
        (ChangePolicy(), (501, 8), False, MAP, errno.EOVERFLOW),
        (ChangePolicy(create_as_mounter=True), (7, 8), False, MAP, (-1, -1)),
        (ChangePolicy(create_as_mounter=True), (1000, 1000), False, MAP, (501, 20)),
        (ChangePolicy(create_as_mounter=True), (1000, 1000), True, MAP, (501, -1)),
        (ChangePolicy(create_for_user=3), (1000, 1000), False, MAP, (3, 20)),
        (ChangePolicy(create_for_user=3, create_as_mounter=True), (7, 8), False, MAP, (3, -1)),
        (ChangePolicy(create_for_group=4), (1000, 1000), True, MAP, (501, 4)),
        (ChangePolicy(create_for_user=3, create_for_group=4), (501, 20), False, MAP, (3, 4)),
        (ChangePolicy(create_as_mounter=True), (1010, 1020), False, SHIFTED, (501, 20)),
        (ChangePolicy(create_as_mounter=True), (1000, 1000), False, SHIFTED, (-1, -1)),
        (ChangePolicy(), (10, 30), False, IdMap(uid_offset=2, gid_offset=20), (8, 10)),
        (ChangePolicy(), (0, 0), False, IdMap(uid_offset=2, gid_offset=20), (-1, -1)),
        (ChangePolicy(), (1, 30), False, IdMap(uid_offset=2, gid_offset=20), errno.EOVERFLOW),
        (ChangePolicy(), (0, 0), False, IdMap(uid_offset=-2), (2, 0)),
    ],
)
def test_new_owner(
    policy: ChangePolicy, caller: tuple[int, int], inherits: bool, idmap: IdMap, owner: object
) -> None:
    assert outcome(policy.new_owner, idmap, *caller, inherits) == owner
