"""Which changes the policies allow, and in what form."""

import errno

import pytest

from gitguardfs.options.change_policy import ChangePolicy
from gitguardfs.options.idmap import IdMap


def outcome(call: object, *args: object) -> object:
    try:
        return call(*args)  # type: ignore[operator]
    except OSError as error:
        return error.errno


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
