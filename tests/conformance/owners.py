"""chown: who may, what it clears, which stamps it moves."""

import os
from functools import partial

from tests.conformance.tools import (
    ALICE,
    MAKERS,
    NOBODY,
    ROOT,
    User,
    call,
    calls,
    descriptor,
    equal,
    file,
    make,
    mode_of,
    owner_of,
    remove,
    stamps,
)

BIG = 0xFFFFFFF0
"""Ids are 32 bits wide; only -1 means "leave"."""


def check_root_sets_any_owner(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}")
        for uid, gid, want in (
            (123, 456, (123, 456)),
            (-1, 7, (123, 7)),
            (8, -1, (8, 7)),
            (-1, -1, (8, 7)),
            (BIG, BIG, (BIG, BIG)),
            (65534, 65533, (65534, 65533)),
            (0, 0, (0, 0)),
        ):
            os.lchown(path, uid, gid)
            equal(f"{kind} chown {uid}:{gid}", owner_of(path), want)


def check_chown_follows_and_lchown_does_not(d: str) -> None:
    file(f"{d}/target")
    os.symlink("target", f"{d}/link")
    os.chown(f"{d}/link", 1000, 1001)
    equal("target", owner_of(f"{d}/target"), (1000, 1001))
    equal("link", owner_of(f"{d}/link"), (0, 0))
    os.lchown(f"{d}/link", 65534, 65533)
    equal("target", owner_of(f"{d}/target"), (1000, 1001))
    equal("link", owner_of(f"{d}/link"), (65534, 65533))


def check_chown_clears_set_id_bits(d: str) -> None:
    """An executable loses set-uid and set-gid, whoever changes its owner; a directory keeps them.

    Set-gid without group execution is not cleared for root or a member of the group.
    """
    member = User(1000, 1000, (1001,))
    for kind, mode, user, uid, gid, want in (
        ("regular", 0o6555, member, -1, 1001, 0o555),
        ("regular", 0o6777, member, 1000, 1001, 0o777),
        ("regular", 0o4755, member, -1, 1001, 0o755),
        ("regular", 0o2755, member, 1000, -1, 0o755),
        ("regular", 0o2711, ALICE, -1, 1000, 0o711),
        ("regular", 0o7755, member, -1, 1001, 0o1755),
        ("regular", 0o6555, ROOT, 65534, 65533, 0o555),
        ("regular", 0o4755, ROOT, 0, 0, 0o755),
        ("regular", 0o6755, ROOT, -1, -1, 0o755),
        ("regular", 0o6755, ALICE, -1, -1, 0o755),
        ("regular", 0o2644, ROOT, 65534, 65533, 0o2644),
        ("regular", 0o6444, ROOT, 65534, 65533, 0o2444),
        ("regular", 0o0755, ROOT, 65534, 65533, 0o755),
        ("dir", 0o6755, ROOT, 65534, 65533, 0o6755),
        ("dir", 0o6755, member, -1, 1001, 0o6755),
        ("dir", 0o7777, ALICE, 1000, 1000, 0o7777),
    ):
        path = make(kind, f"{d}/object", ALICE, mode)
        calls(call("ok", os.chown, path, uid, gid), by=user)
        equal(f"{kind} {mode:o} chown {uid}:{gid} by {user}", oct(mode_of(path)), oct(want))
        remove(path)


def check_chown_stamps(d: str) -> None:
    for kind in MAKERS:
        path = make(kind, f"{d}/{kind}", ALICE)
        for uid, gid in ((1000, 1000), (65534, -1), (-1, 65533), (0, 0), (-1, -1)):
            stamps(
                f"chown {kind} {uid}:{gid}", partial(os.lchown, path, uid, gid), {path: "c", d: ""}
            )


def check_fchown(d: str) -> None:
    path = file(f"{d}/file", 0o6755, ALICE)
    with descriptor(path) as fd:
        os.fchown(fd, 65534, 65533)
        equal("by path", owner_of(path), (65534, 65533))
        equal("by descriptor", owner_of(fd), (65534, 65533))
        equal("mode", mode_of(fd), 0o755)
        calls(call("EPERM", os.fchown, fd, 1000, 1000), by=ALICE)
        os.fchown(fd, -1, 1000)
        equal("group alone", owner_of(path), (65534, 1000))
    with descriptor(path, os.O_PATH) as fd:
        calls(call("EBADF", os.fchown, fd, 0, 0))


def _append(path: str) -> None:
    with descriptor(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"x")


def _truncate_on_open(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def check_writing_clears_set_id_bits(d: str) -> None:
    """Every way to change the data of a file clears the bits, unless root does it."""
    for action in (_append, lambda path: os.truncate(path, 1), _truncate_on_open):
        for mode, user, want in (
            (0o4777, NOBODY, 0o777),
            (0o2777, NOBODY, 0o777),
            (0o6777, NOBODY, 0o777),
            (0o7777, NOBODY, 0o1777),
            (0o6777, ALICE, 0o777),
            (0o6777, ROOT, 0o6777),
            (0o0777, NOBODY, 0o777),
        ):
            path = file(f"{d}/file", mode, ALICE, b"some text")
            calls(call("ok", action, path), by=user)
            label = f"{getattr(action, '__name__', '?')} of {mode:o} by {user.uid}"
            equal(label, oct(mode_of(path)), oct(want))
            os.unlink(path)
