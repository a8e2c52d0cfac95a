"""Who may remove and rename in a directory with the sticky bit, and without."""

from __future__ import annotations

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
    mode_of,
    remove,
    renameat2,
)

KINDS = ("regular", "dir", "symlink")
"""The kernel's rule knows two: directories, whose ".." may change, and all others."""
MEMBER = User(65534, 65534, (1001,))


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


def check_renaming_away(d: str) -> None:
    """The sticky bit of the directory that an entry is moved out of."""
    for kind, sticky, directory_owner, owner in product(
        KINDS, (True, False), (ROOT, ALICE), (ALICE, BOB)
    ):
        source = folder(f"{d}/source", 0o1777 if sticky else 0o777, directory_owner)
        target = folder(f"{d}/target", 0o777, ROOT)
        path = make(kind, f"{source}/object", owner)
        for user in (NOBODY, ALICE, BOB):
            ok = not sticky or _allowed(user, directory_owner, owner)
            want = "ok" if ok else "EPERM"
            if kind == "dir" and ok and user != owner:
                want = "EACCES"  # its ".." is written, and it is 0755
            label = f"{kind} of {owner.uid} in {'sticky ' * sticky}{directory_owner.uid}"
            calls(call(want, os.rename, path, f"{target}/object"), by=user, label=label)
            if want == "ok":
                os.rename(f"{target}/object", path)
        remove(path)
        os.rmdir(source)
        os.rmdir(target)


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


def check_renaming_within(d: str) -> None:
    for directory_owner, owner in product((ROOT, ALICE), (ALICE, BOB)):
        parent = folder(f"{d}/parent", 0o1777, directory_owner)
        for kind in ("regular", "dir"):
            path = make(kind, f"{parent}/object", owner, 0o777)
            for user in (NOBODY, ALICE, BOB, ROOT):
                ok = _allowed(user, directory_owner, owner)
                want = "ok" if ok else "EPERM"
                calls(call(want, os.rename, path, f"{parent}/renamed"), by=user)
                if ok:
                    os.rename(f"{parent}/renamed", path)
            remove(path)
        os.rmdir(parent)


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


def check_group_members_are_not_spared(d: str) -> None:
    parent = folder(f"{d}/parent", 0o1775, User(0, 1001))
    path = make("regular", f"{parent}/object", ALICE, 0o666)
    calls(
        call("EPERM", os.unlink, path),
        call("EPERM", os.rename, path, f"{parent}/new"),
        call("ok", os.open, path, os.O_RDWR | os.O_TRUNC),
        call("ok", os.mkdir, f"{parent}/made"),
        call("ok", os.rmdir, f"{parent}/made"),
        by=MEMBER,
    )
    calls(call("EACCES", os.unlink, path), by=ALICE, label="may not write the directory")


def check_who_sets_the_bit(d: str) -> None:
    for kind, mode in product(("regular", "dir"), (0o1777, 0o1755)):
        path = make(kind, f"{d}/object", ALICE)
        calls(call("ok", os.chmod, path, mode), by=ALICE)
        equal(f"sticky on {kind}", mode_of(path), mode)
        calls(call("EPERM", os.chmod, path, 0o777), by=NOBODY)
        remove(path)


def check_moving_a_directory_needs_its_write_permission(d: str) -> None:
    """Only into another directory: its ".." changes then."""
    one, two = folder(f"{d}/one", 0o777), folder(f"{d}/two", 0o777)
    for mode, owner, want in (
        (0o755, ALICE, "ok"),
        (0o555, ALICE, "EACCES"),
        (0o777, BOB, "ok"),
        (0o755, BOB, "EACCES"),
    ):
        path = make("dir", f"{one}/child", owner, mode)
        calls(call("ok", os.rename, path, f"{one}/renamed"), by=ALICE)
        calls(call(want, os.rename, f"{one}/renamed", f"{two}/moved"), by=ALICE)
        remove(f"{two}/moved" if want == "ok" else f"{one}/renamed")
