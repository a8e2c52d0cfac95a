"""Access lists (acl(5)) that programs set: their permissions are, as a mode."""

import errno
import stat
import struct
from typing import Any

import pytest

from gitguardfs.names.rules import GuardRules
from gitguardfs.options.change_policy import ChangePolicy, ChangeRule, XattrPolicy
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import Context, refused

ACCESS, DEFAULT = b"system.posix_acl_access", b"system.posix_acl_default"


def access_list(*entries: tuple[int, int, int], version: int = 2) -> bytes:
    return struct.pack("<I", version) + b"".join(struct.pack("<HHI", *one) for one in entries)


OWNER, USER, GROUP, MASK, OTHERS = (1, 6, 0), (2, 7, 1000), (4, 5, 0), (16, 6, 0), (32, 1, 0)


@pytest.mark.parametrize("policy", [XattrPolicy.NONE, XattrPolicy.RW])
async def test_an_access_list_sets_the_mode(make_world: MakeWorld, policy: XattrPolicy) -> None:
    """Nobody gets more than the list gives."""
    world = make_world(xattr=policy, allow_suid=True)
    (world.source / "f").touch()
    (world.source / "f").chmod(0o4777)
    node, ctx = await world.id("f"), world.ctx
    world.invalidated.clear()
    await world.ops.setxattr(node, ACCESS, access_list(OWNER, USER, GROUP, MASK, OTHERS), ctx)
    assert (await world.ops.getattr(node, ctx)).st_mode & 0o7777 == 0o4641
    assert world.invalidated == [node]
    await world.ops.setxattr(node, ACCESS, access_list(OWNER, GROUP, OTHERS), ctx)
    assert (await world.ops.getattr(node, ctx)).st_mode & 0o7777 == 0o4651
    await world.ops.setxattr(node, DEFAULT, access_list(OWNER, GROUP, OTHERS), ctx)
    for name in (ACCESS, DEFAULT):
        await world.ops.removexattr(node, name, ctx)
    for wrong in (b"", b"\2", access_list(), access_list(OWNER, GROUP), b"\2\0\0\0x",
                  access_list(OWNER, GROUP, OTHERS, version=3)):  # fmt: skip
        await refused(world.ops.setxattr(node, ACCESS, wrong, ctx), errno.EINVAL)
    other = Context(uid=ctx.uid + 1)
    for name in (ACCESS, DEFAULT):
        changed = access_list(OWNER, GROUP, OTHERS)
        await refused(world.ops.setxattr(node, name, changed, other), errno.EPERM)
        await refused(world.ops.removexattr(node, name, other), errno.EPERM)
    assert stat.S_IMODE((world.source / "f").stat().st_mode) == 0o4651


@pytest.mark.parametrize("options", [
    {"read_only": True}, {"rules": GuardRules(protect=("f",))},
    {"xattr": XattrPolicy.RO}, {"policy": ChangePolicy(chmod=ChangeRule.DENY)},
])  # fmt: skip
async def test_an_access_list_is_refused_as_a_mode_is(
    make_world: MakeWorld, options: dict[str, Any]
) -> None:
    world = make_world(**options)
    (world.source / "f").touch(0o600)
    node, ctx = await world.id("f"), world.ctx
    changed = access_list(OWNER, GROUP, OTHERS)
    await refused(
        world.ops.setxattr(node, ACCESS, changed, ctx), errno.EROFS, errno.EACCES, errno.EPERM
    )
    assert stat.S_IMODE((world.source / "f").stat().st_mode) == 0o600
