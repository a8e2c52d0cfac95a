"""A source that takes names for a repository's parts by a folding that no rule of names knows."""

import errno
import os
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names.links import neutral
from gitguardfs.names.rules import GuardRules
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, count_calls, mkdir, refused, remove, symlink, touch

PARTS = {
    "HEAD": "\u029cEAD",
    "refs": "\u0280efs",
    "objects": "\u1d0fbjects",
    "config": "\u1d04onfig",
}
"""By git's spelling: one in small capitals, which no normalization of Unicode changes."""

ODD = [{name} for name in PARTS] + [{*PARTS}]
"""Which of the parts are spelled oddly."""

SMALL_CAPITALS = str.maketrans("\u0280\u1d0f\u1d04\u029c", "roch")


def folded(name: bytes) -> str:
    text = unicodedata.normalize("NFKC", os.fsdecode(name))
    return text.translate(SMALL_CAPITALS).casefold()


def spelled(dir_fd: int, name: bytes) -> bytes:
    """Return the name in the directory that the source takes ``name`` for."""
    names = os.listdir(b"/proc/self/fd/%d" % dir_fd)
    return next((other for other in names if folded(other) == folded(name)), name)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let the source fold names; return how often each question was asked."""
    count: Counter[str] = Counter()

    def fold(method: str) -> None:
        call = getattr(Source, method)

        def folding(self: Source, fd: int, name: bytes, *rest: Any) -> Any:
            count[method] += 1
            return call(self, fd, spelled(fd, name), *rest)

        monkeypatch.setattr(Source, method, folding)

    for method in ("stat_at", "find_at", "open_node", "remove"):
        fold(method)
    return count


async def make(world: World, path: str) -> None:
    is_directory = folded(os.fsencode(path.rpartition("/")[2])) in ("refs", "objects")
    await (mkdir if is_directory else touch)(world, path)


async def move(world: World, path: str) -> None:
    await make(world, f"spare/{path.rpartition('/')[2]}")
    name = os.listdir(world.source / "spare")[0]
    try:
        await world.rename(f"spare/{name}", path)
    finally:
        left = world.source / "spare" / name
        if left.is_dir():
            left.rmdir()
        left.unlink(missing_ok=True)


def is_repository(path: Path) -> bool:
    """Return whether git would take the directory for a repository, or may complete it."""
    names = {folded(os.fsencode(name)) for name in os.listdir(path)}
    return (
        {"head", "refs"} <= names
        or {"head", "config"} <= names
        or {"refs", "objects", "config"} <= names
    )


@pytest.mark.parametrize("add", [make, move])
async def test_no_order_and_no_spelling_makes_a_repository(
    world: World, add: Callable[[World, str], Awaitable[None]]
) -> None:
    (world.source / "spare").mkdir()
    spellings = [[PARTS[one] if one in odd else one for one in PARTS] for odd in ODD]
    orders = [order for names in spellings for order in permutations(names)]
    for number, names in enumerate(orders):
        top = world.source / f"d{number}"
        await mkdir(world, top.name)
        done: list[str] = []
        for name in names:
            refusals = world.audit.refused.total()
            try:
                await add(world, f"{top.name}/{name}")
                done.append(name)
            except Exception:
                assert world.audit.refused.total() == refusals + 1, (names, name)
        assert len(done) < len(names), names
        assert sorted(os.listdir(top)) == sorted(done)
        assert not is_repository(top), names


@pytest.mark.parametrize("name", ["\u00e9t\u00e9", "\u6f22\u5b57", "@types", "x~", "a b"])
async def test_other_names_are_free(world: World, name: str) -> None:
    """Also beside parts of the host's that may not be made through the view."""
    (world.source / "d/hooks").mkdir(parents=True)
    (world.source / "d/HEAD").touch()
    await mkdir(world, f"d/{name}")
    await touch(world, f"d/{name}/{name}")
    await world.rename(f"d/{name}/{name}", f"d/{name}2")
    await mkdir(world, f"d/{name}/objects")
    await touch(world, f"d/{name}/config")


@pytest.mark.parametrize("option", ["deny", "protect", "hide"])
async def test_a_short_name_is_no_way_round_a_rule(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """FAT and NTFS find ``.env.local`` by a second name, which no listing shows."""
    world = make_world(rules=GuardRules(**{option: (".env*",)}))
    (world.source / ".env.local").write_text("secret")
    (world.source / "ENV~2.LOC").write_text("ordinary")
    for method in ("stat_at", "find_at", "open_node", "open_file_at"):
        call = getattr(Source, method)

        def by_short_name(self: Source, fd: int, name: bytes, *rest: Any, call: Any = call) -> Any:
            return call(self, fd, b".env.local" if name == b"ENV~1.LOC" else name, *rest)

        monkeypatch.setattr(Source, method, by_short_name)
    numbers = (errno.EACCES, errno.ENOENT) if option == "hide" else (errno.EACCES,)
    if option != "protect":
        await refused(world.open("ENV~1.LOC"), *numbers)
    await refused(world.open("ENV~1.LOC", os.O_WRONLY), *numbers)
    await refused(remove(world, "ENV~1.LOC"), *numbers)
    await refused(world.rename("ENV~1.LOC", "other"), *numbers)
    await refused(world.rename("ENV~2.LOC", "ENV~1.LOC"), *numbers)
    assert (world.source / ".env.local").read_text() == "secret"
    await world.open("ENV~2.LOC", os.O_WRONLY)


@pytest.mark.parametrize("target", [b"HUSKY~1", b"../src/HUSKY~1/_"])
async def test_a_symlink_is_no_way_round_by_a_short_name(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, target: bytes
) -> None:
    world = make_world(rules=GuardRules(protect=(".husky*",)))
    (world.source / "src/.husky.local/_").mkdir(parents=True)
    (world.source / "src/HUSKY~2/_").mkdir(parents=True)
    for method in ("stat_at", "find_at", "open_node"):
        call = getattr(Source, method)

        def by_short_name(self: Source, fd: int, name: bytes, *rest: Any, call: Any = call) -> Any:
            return call(self, fd, b".husky.local" if name == b"HUSKY~1" else name, *rest)

        monkeypatch.setattr(Source, method, by_short_name)
    await symlink(world, "src/link", target)
    assert os.readlink(os.fsencode(world.source / "src/link")) == neutral(target)
    ordinary = target.replace(b"~1", b"~2").decode()
    await symlink(world, "src/other", ordinary.encode())
    assert os.readlink(world.source / "src/other") == ordinary


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("there", [(), ("1",), ("1", "Other"), ("HEAD",)])
async def test_the_kernel_remembers_no_missing_name(
    make_world: MakeWorld, there: tuple[str, ...], is_local: bool
) -> None:
    """What is made as "Missing" is there as "missing" at once."""
    world = make_world(is_local=is_local)
    for name in there:
        (world.source / name).touch()
    for _ in range(2):
        await refused(world.ops.lookup(ROOT_ID, b"missing", world.ctx), errno.ENOENT)
    await touch(world, "Missing")
    assert (await world.entry("missing")).st_ino == (await world.entry("Missing")).st_ino


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_directory_of_names_without_letters_is_seldom_listed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    world = make_world(is_local=is_local)
    (world.source / "1").touch()
    listed = count_calls(monkeypatch, Source, "some_names")
    for _ in range(31):
        await refused(world.ops.lookup(ROOT_ID, b"missing", world.ctx), errno.ENOENT)
    assert len(listed) == 5, "at the calls 1, 2, 4, 8 and 16"
    (world.source / "Name").touch()
    for _ in range(100):
        await refused(world.ops.lookup(ROOT_ID, b"missing", world.ctx), errno.ENOENT)
    assert len(listed) == 6, "it is known now that these are one name"
