"""What makes a directory a repository, and which names must not be added to a directory."""

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from stat import S_IFDIR, S_IFLNK, S_IFREG, S_ISDIR, S_ISLNK

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.doctor import search
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.source import Source
from gitguardfs.host.audit.share import looks_like_repository
from gitguardfs.host.share.directory import existing_directory
from gitguardfs.mounting.preflight import check_no_repository
from gitguardfs.names import repository
from gitguardfs.names.repository import is_repository, would_complete
from gitguardfs.names.rules import GuardRules

FILE, DIRECTORY, LINK = S_IFREG | 0o644, S_IFDIR | 0o755, S_IFLNK | 0o777

HEAD, REFS, OBJECTS, HOOKS = (
    {b"HEAD": FILE},
    {b"refs": DIRECTORY},
    {b"objects": DIRECTORY},
    b"hooks",
)
CONFIG = {b"config": FILE}

IS_REPOSITORY: list[tuple[dict[bytes, int], bool]] = [
    ({}, False),
    (HEAD, False),
    (HEAD | OBJECTS | CONFIG, False),
    (REFS | OBJECTS | CONFIG, False),
    (HEAD | REFS, True),
    (HEAD | {b"refs": FILE}, True),
    ({b"HEAD": LINK} | REFS, True),
    ({b"HEAD": DIRECTORY} | REFS, False),
    (HEAD | {b"commondir": FILE}, True),
    (HEAD | {b"commondir": DIRECTORY}, True),
]


@pytest.mark.parametrize(("present", "answer"), IS_REPOSITORY, ids=str)
def test_what_a_repository_is(present: dict[bytes, int], answer: bool) -> None:
    assert is_repository(present.get) is answer


def _is_refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except UserError as error:
        assert "looks like a git repository itself" in error.message
        return True
    return False


def _held(path: str) -> bool:
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        return Source(DescriptorCache(8, fd), lambda _: True).holds_repository(fd)
    finally:
        os.close(fd)


CALLERS: dict[str, Callable[[str], bool]] = {
    "the daemon": _held,
    "its start": lambda path: _is_refused(lambda: check_no_repository(path, path, GuardRules())),
    "the doctor": search.holds_repository,
    "share": lambda path: _is_refused(lambda: existing_directory(path)),
    "the audit": looks_like_repository,
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("present", "answer"), IS_REPOSITORY, ids=str)
def test_all_who_ask_are_told_the_same(
    present: dict[bytes, int], answer: bool, caller: str, tmp_path: Path
) -> None:
    for name, mode in present.items():
        path = tmp_path / os.fsdecode(name)
        if S_ISDIR(mode):
            path.mkdir()
        elif S_ISLNK(mode):
            path.symlink_to("refs/heads/main")
        else:
            path.touch()
    assert CALLERS[caller](str(tmp_path)) is answer


COMPLETES: list[tuple[bytes, bool, dict[bytes, int], bool]] = [
    # name, is it a directory, what is there, must it be refused
    (b"HEAD", False, {}, False),
    (b"HEAD", False, OBJECTS, False),
    (b"HEAD", False, REFS, True),
    (b"HEAD", False, {b"refs": FILE}, True),
    (b"HEAD", False, {b"commondir": DIRECTORY}, True),
    (b"HEAD", False, CONFIG, True),
    (b"HEAD", False, {b"config": LINK}, True),
    (b"HEAD", False, {b"config": DIRECTORY}, False),
    (b"HEAD", False, {b"config.worktree": FILE}, True),
    (b"HEAD", False, {HOOKS: DIRECTORY}, True),
    (b"HEAD", False, {HOOKS: LINK}, True),
    (b"HEAD", True, REFS | CONFIG, False),
    (b"head", False, REFS, True),
    ("H\u200dEAD".encode(), False, REFS, True),
    (b"HEADS", False, REFS, False),
    (b"refs", True, {}, False),
    (b"refs", True, HEAD, True),
    (b"refs", False, HEAD, True),
    (b"Refs", True, HEAD, True),
    (b"refs", True, {b"HEAD": DIRECTORY}, False),
    (b"refs", True, OBJECTS, False),
    (b"refs", True, CONFIG, False),
    (b"refs", True, OBJECTS | CONFIG, True),
    (b"refs", True, OBJECTS | {HOOKS: DIRECTORY}, True),
    (b"refs", True, OBJECTS | {b"config": DIRECTORY}, False),
    (b"objects", True, HEAD | CONFIG, True),
    (b"objects", True, HEAD, False),
    (b"objects", True, REFS, False),
    (b"objects", True, REFS | CONFIG, True),
    (b"objects", False, REFS | CONFIG, True),
    (b"objects", True, REFS | {HOOKS: FILE}, True),
    (b"config", False, {}, False),
    (b"config", False, OBJECTS, False),
    (b"config", False, REFS, False),
    (b"config", False, REFS | OBJECTS, True),
    (b"CONFIG ", False, REFS | OBJECTS, True),
    ("con\ufb01g".encode(), False, REFS | OBJECTS, True),
    (b"config", True, HEAD, False),
    (b"config", False, HEAD, True),
    (b"config.worktree", False, HEAD, True),
    (b"config.worktree", True, HEAD, False),
    (b"config.py", False, HEAD | REFS | OBJECTS, False),
    (b"hooks", True, HEAD, True),
    (b"hooks", False, HEAD, True),
    ("hoo\u212as".encode(), True, HEAD, True),
    (b"hooks", True, REFS | OBJECTS, True),
    (b"hooks", True, REFS, False),
    (b"commondir", False, {}, True),
    (b"commondir", True, {}, False),
    (b"commondir", True, HEAD, True),
    (b"COMMONDIR.", False, {}, True),
    (b"main.c", False, HEAD | REFS | OBJECTS | CONFIG, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "is_directory", "present", "answer"), COMPLETES, ids=str)
def test_what_must_not_be_added(
    name: bytes, is_directory: bool, present: dict[bytes, int], answer: bool
) -> None:
    assert would_complete(name, is_directory, present.get) is answer


def forbidden(present: dict[bytes, int]) -> bool:
    """Return whether a directory with these names is forbidden: the rule in other words."""
    files = {name for name, mode in present.items() if mode != DIRECTORY}
    payload = {b"config", b"config.worktree"} & files or {b"hooks"} & present.keys()
    head = b"HEAD" in files
    return (
        (head and bool({b"refs", b"commondir"} & present.keys()))
        or (head and bool(payload))
        or ({b"refs", b"objects"} <= present.keys() and bool(payload))
        or b"commondir" in files
    )


def test_every_way_to_a_forbidden_state_ends_before_it() -> None:
    """From each state that is allowed, a name may be added exactly if that stays allowed."""
    kinds = (None, FILE, DIRECTORY)
    for chosen in product(kinds, repeat=len(repository.PARTS)):
        state = {name: mode for name, mode in zip(repository.PARTS, chosen, strict=True) if mode}
        if forbidden(state):
            continue
        for name, mode in product(repository.PARTS - state.keys(), kinds[1:]):
            refused = would_complete(name, mode == DIRECTORY, state.get)
            assert refused == forbidden(state | {name: mode}), (state, name, mode)
            assert not refused or {name, *state} & {*repository.NEEDED}, (state, name)


@pytest.mark.parametrize(
    ("name", "meanings"),
    [
        (b"HEAD", {b"HEAD"}),
        (b"HeAd. ", {b"HEAD"}),
        (b"HEAD::$DATA", {b"HEAD"}),
        ("HE\u200cAD".encode(), {b"HEAD"}),
        (b"HEAD\xff", {b"HEAD"}),
        (b"x\\HEAD", {b"HEAD"}),
        (b"HEAD2", set()),
        ("re\u00adfs".encode(), {b"refs"}),
        ("ref\u017f".encode(), {b"refs"}),  # a long s: casefold directories and APFS fold it
        ("\uff52efs".encode(), {b"refs"}),  # wide letters: ZFS with normalization=formKC
        ("\U0001d407EAD\uff0e".encode(), {b"HEAD"}),
        ("x\uff3cco\u200bnfi\u24d6".encode(), {b"config"}),
        ("\uff48ooks".encode() + b"\xff", {b"hooks"}),
        ("r\u00e9fs".encode(), set()),
        ("\u6f22\u5b57".encode(), set()),
        ("\uff52efs2".encode(), set()),
        (b"commondirs", set()),
        (b"HEAD.lock", set()),
        (b"config.worktree", {b"config.worktree"}),
        (b"config.h", set()),
    ],
)
def test_names_as_file_systems_fold_them(name: bytes, meanings: set[bytes]) -> None:
    assert repository.parts(name) == meanings


HALVES: list[tuple[dict[bytes, int], bool]] = [
    ({}, False),
    (HEAD, False),
    (REFS, False),
    (OBJECTS, False),
    (HEAD | REFS, True),
    (HEAD | OBJECTS, True),
    (REFS | OBJECTS, True),
    ({b"HEAD": LINK} | OBJECTS, True),
    ({b"HEAD": DIRECTORY} | OBJECTS, False),
    (CONFIG | REFS | {b"hooks": DIRECTORY}, False),
]


@pytest.mark.parametrize(("present", "answer"), HALVES, ids=str)
def test_what_half_a_repository_is(present: dict[bytes, int], answer: bool) -> None:
    assert repository.is_half_repository(present.get) is answer


@pytest.mark.parametrize(
    "name", [b"config", b"CONFIG", b"config.worktree", b"commondir", b"Hooks."]
)
def test_what_is_closed_in_half_a_repository(name: bytes) -> None:
    assert repository.is_payload(name)
    assert repository.is_hooks(name) == (name == b"Hooks.")


@pytest.mark.parametrize("name", [b"HEAD", b"refs", b"objects", b"config.h", b"hooks.d", b"src"])
def test_what_is_not(name: bytes) -> None:
    assert not repository.is_payload(name)
    assert not repository.is_hooks(name)
