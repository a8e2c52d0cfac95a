"""Who may remove and rename in a directory with the sticky bit, and without."""

import os
from itertools import product

from tests.conformance.tools import (
    ALICE,
    BOB,
    NOBODY,
    OTHER,
    RENAME_EXCHANGE,
    ROOT,
    User,
    call,
    calls,
    equal,
    folder,
    make,
    remove,
    renameat2,
)

KINDS = ("regular", "dir", "symlink")
"""The kernel's rule knows two: directories, whose ".." may change, and all others."""


def _allowed(user: User, directory_owner: User, owner: User) -> bool:
    return user in (ROOT, directory_owner, owner)


def check_removal(d: str) -> None:
    for kind, sticky, directory_owner, owner in product(
        KINDS, (True, False), (ROOT, ALICE), (ALICE, BOB)
    ):
        remover = os.rmdir if kind == "dir" else os.unlink
        for user in (NOBODY, ALICE, BOB):
            parent = folder(f"{d}/parent", 0o1777 if sticky else 0o777, directory_owner)
            path = make(kind, f"{parent}/object", owner)
            want = "ok" if not sticky or _allowed(user, directory_owner, owner) else "EPERM"
            label = f"{kind} of {owner.uid} in {'sticky ' * sticky}{directory_owner.uid}"
            calls(call(want, remover, path), by=user, label=label)
            equal(f"there after removal: {label}", os.path.lexists(path), want != "ok")
            if want != "ok":
                os.lchown(path, 0, 0)
                remove(path)
            os.rmdir(parent)


def check_renaming_over(d: str) -> None:
    """The sticky bit of the directory in which an entry is replaced."""
    for kind, directory_owner, owner in product(KINDS, (ROOT, ALICE), (ALICE, BOB)):
        source = folder(f"{d}/source", 0o777, ROOT)
        target = folder(f"{d}/target", 0o1777, directory_owner)
        for user in (OTHER, ALICE, BOB):
            path = make(kind, f"{source}/new", user)
            over = make(kind, f"{target}/old", owner)
            inode = os.lstat(path).st_ino
            want = "ok" if _allowed(user, directory_owner, owner) else "EPERM"
            label = f"{kind} over {owner.uid} in sticky {directory_owner.uid}"
            calls(call(want, os.rename, path, over), by=user, label=label)
            equal(f"replaced: {label}", os.lstat(over).st_ino == inode, want == "ok")
            if want != "ok":
                remove(path)
            remove(over)
        os.rmdir(source)
        os.rmdir(target)


def check_exchange(d: str) -> None:
    """Both ends of an exchange are removed from their directories."""
    parent = folder(f"{d}/parent", 0o1777, ROOT)
    mine, theirs = (
        make("regular", f"{parent}/mine", ALICE),
        make("regular", f"{parent}/theirs", BOB),
    )
    own = make("regular", f"{parent}/own", ALICE)
    calls(
        call("EPERM", renameat2, mine, theirs, RENAME_EXCHANGE),
        call("EPERM", renameat2, theirs, mine, RENAME_EXCHANGE),
        call("ok", renameat2, mine, own, RENAME_EXCHANGE),
        by=ALICE,
    )
    calls(call("ok", renameat2, mine, theirs, RENAME_EXCHANGE))
