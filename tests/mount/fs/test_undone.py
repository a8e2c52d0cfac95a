"""A change that turns out to be forbidden is undone, whatever the source answers meanwhile.

The views have no kernel, and their shares are test servers: one folds names in an unforeseen way;
two show one directory, as to two guests.
"""

import errno
import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyfuse3 import FUSEError

from gitguardfs.base.protocol import RENAME_EXCHANGE, Caller, RequestError
from gitguardfs.fs.nodes import ROOT_ID
from tests.adapter.world import World, open_descriptors, refused, stand_ins
from tests.support.errorfs import CHANGING, READING, Fault, Share, errorfs
from tests.support.mounting import area, until

ODD = "．ｇｉｔ"
"""To the share the same as .git."""
ROOT = Caller(0, 0)


@pytest.fixture(scope="module")
def shares() -> Iterator[tuple[Share, Share, Share]]:
    """One that folds names, and two over one directory."""
    with (
        area() as path,
        errorfs(path / "odd", path / "folding", path / "c0", fold=True) as folding,
        errorfs(path / "host", path / "first", path / "c1") as first,
        errorfs(path / "host", path / "second", path / "c2") as second,
    ):
        yield folding, first, second


@pytest.fixture
def folding(shares: tuple[Share, Share, Share]) -> Share:
    return shares[0].emptied()


@pytest.fixture
def pair(shares: tuple[Share, Share, Share]) -> tuple[Share, Share]:
    return shares[1].emptied(), shares[2].emptied()


@contextmanager
def guarding(*shares: Share, **options: Any) -> Iterator[list[World]]:
    with stand_ins():
        before = open_descriptors()
        worlds = [World(share.path, **options) for share in shares]
        try:
            yield worlds
        finally:
            for share, world in zip(shares, worlds, strict=True):
                share.clear()
                world.close()
        assert open_descriptors() == before


# ------------------------------------------------------------- An unforeseen folding of names

NAME = os.fsencode(ODD)
Making = Callable[[World], Awaitable[Any]]


async def _link(world: World) -> None:
    await world.ops.link(await world.id("file"), ROOT_ID, NAME, world.ctx)


MAKING: dict[str, tuple[str, Making]] = {
    "mkdir": ("MKDIR", lambda w: w.ops.mkdir(ROOT_ID, NAME, 0o755, w.ctx)),
    "create": ("CREATE", lambda w: w.create(ROOT_ID, NAME)),
    "mknod": ("MKNOD", lambda w: w.ops.mknod(ROOT_ID, NAME, stat.S_IFREG | 0o644, 0, w.ctx)),
    "symlink": ("SYMLINK", lambda w: w.ops.symlink(ROOT_ID, NAME, b"elsewhere", w.ctx)),
    "link": ("LINK", _link),
    "rename": ("RENAME", lambda w: w.rename("file", ODD)),
    "rename a directory": ("RENAME", lambda w: w.rename("d", ODD)),
    "exchange": ("RENAME", lambda w: w.rename("file", "odd/" + ODD, RENAME_EXCHANGE)),
}


def furnish(share: Share) -> list[str]:
    share.emptied()
    (share.host / "d/hooks").mkdir(parents=True)
    (share.host / "odd").mkdir()
    (share.host / "file").write_text("gitdir: evil\n")
    return sorted(os.listdir(share.host))


@pytest.mark.parametrize("how", [name for name in MAKING if name != "exchange"])
async def test_nothing_becomes_git_while_git_does_not_answer(folding: Share, how: str) -> None:
    before = furnish(folding)
    with guarding(folding) as [world]:
        with folding.failing(Fault(("LOOKUP",), ".git")):
            await refused(MAKING[how][1](world), errno.EIO)
        assert sorted(os.listdir(folding.host)) == before
        await refused(MAKING[how][1](world))
    assert sorted(os.listdir(folding.host)) == before


@pytest.mark.parametrize("how", [name for name in MAKING if name != "exchange"])
async def test_nor_by_one_request_that_fails(folding: Share, how: str) -> None:
    """Each request fails in turn, once not done and once done."""
    for done in (False, True):
        for nth in range(1, 200):
            before = furnish(folding)
            with guarding(folding) as [world]:
                hits = len(folding.hits())
                with folding.failing(Fault(READING + CHANGING, nth=nth, done=done)):
                    with pytest.raises(FUSEError):
                        await MAKING[how][1](world)
                    met = len(folding.hits()) > hits
            assert sorted(os.listdir(folding.host)) == before, (nth, done, folding.hits()[-1:])
            if not met:
                break


async def test_the_host_s_own_is_not_taken_for_ours(folding: Share) -> None:
    """A file that existed before is never removed, although the call failed."""
    (folding.host / ".git").write_text("gitdir: elsewhere\n")
    with guarding(folding) as [world]:
        with folding.failing(Fault(("CREATE", "MKNOD", "LINK", "SYMLINK"), ODD)):
            for how in ("create", "mknod", "symlink"):
                await refused(MAKING[how][1](world), errno.EIO, errno.EEXIST, errno.ESTALE)
    assert (folding.host / ".git").read_text() == "gitdir: elsewhere\n"


async def test_an_odd_spelling_completes_no_repository(folding: Share) -> None:
    (folding.host / "d/refs").mkdir(parents=True)
    with guarding(folding) as [world]:
        d = await world.id("d")
        await refused(world.create(d, "ＨＥＡＤ".encode()))
        handle, _ = await world.create(d, "ＨＥＡＤ2".encode())
        await world.ops.release(handle)
    assert sorted(os.listdir(folding.host / "d")) == ["refs", "ＨＥＡＤ2"]


# -------------------------------------------------------------- Two guards over one directory

Way = Callable[[Any, int, bytes], Any]


def _moved(operations: Any, parent: int, name: bytes) -> None:
    """From a directory beside it, where something of each type lies ready."""
    kind = b"d" if name == b"refs" else b"f"
    spare = operations.lookup(ROOT, ROOT_ID, b"spare")
    operations.rename(ROOT, spare.node, kind, parent, name, 0)


def _linked(operations: Any, parent: int, name: bytes) -> None:
    spare = operations.lookup(ROOT, ROOT_ID, b"spare")
    file = operations.lookup(ROOT, spare.node, b"f")
    operations.link(ROOT, file.node, parent, name)


def _created(operations: Any, parent: int, name: bytes) -> None:
    opened, _ = operations.create(ROOT, parent, name, 0o644, os.O_RDWR)
    operations.release(opened.handle)


WAYS: dict[str, tuple[str, Way]] = {
    "create": ("CREATE", _created),
    "mknod": ("MKNOD", lambda t, d, n: t.mknod(ROOT, d, n, stat.S_IFREG | 0o644, 0)),
    "symlink": ("SYMLINK", lambda t, d, n: t.symlink(ROOT, d, n, b"refs/heads/main")),
    "link": ("LINK", _linked),
    "rename": ("RENAME", _moved),
    "mkdir": ("MKDIR", lambda t, d, n: t.mkdir(ROOT, d, n, 0o755)),
}
HEADS = ["create", "mknod", "symlink", "link", "rename"]
COUNTERPARTS = [
    (b"refs", "mkdir"), (b"refs", "rename"), (b"refs", "symlink"), (b"commondir", "mkdir"),
    (b"config", "link"),
]  # fmt: skip


def _parent(world: World) -> int:
    return world.requests.lookup(ROOT, ROOT_ID, b"d").node


@pytest.mark.parametrize("counterpart", COUNTERPARTS, ids=str)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("head_is_late", [True, False])
def test_two_guards_make_no_repository_between_them(
    pair: tuple[Share, Share], head: str, counterpart: tuple[bytes, str], head_is_late: bool
) -> None:
    """One request is held back by the server while the other name is made."""
    steps = [(b"HEAD", head), counterpart]
    late, quick = steps if head_is_late else steps[::-1]
    host = pair[0].host
    (host / "d").mkdir()
    (host / "spare/d").mkdir(parents=True)
    (host / "spare/f").write_text("ref: refs/heads/main\n")
    with guarding(*pair) as [first, second]:
        slow, fast = _parent(first), _parent(second)
        request, way = WAYS[late[1]]
        path = f"d/{late[0].decode()}"
        outcome: list[BaseException | None] = []

        def add() -> None:
            try:
                way(first.requests, slow, late[0])
                outcome.append(None)
            except RequestError as error:
                outcome.append(error)

        (held,) = pair[0].add(Fault((request,), path, 0, held=True))
        maker = threading.Thread(target=add)
        maker.start()
        try:
            until(lambda: pair[0].hits(held), "it is on its way")
            WAYS[quick[1]][1](second.requests, fast, quick[0])
        finally:
            pair[0].remove(held)
            maker.join()
        assert isinstance(outcome[0], RequestError), outcome
        assert outcome[0].errno == errno.EACCES
    assert os.listdir(host / "d") == [quick[0].decode()]
    if late[1] == "rename":
        assert sorted(os.listdir(host / "spare"))[-1] in "df"


@pytest.mark.parametrize("fault", [
    Fault(("OPENDIR",), "d", nth=2), Fault(("READDIR",), "d", errno.ESTALE, nth=3),
], ids=lambda fault: fault.requests[0])  # fmt: skip
def test_a_second_look_that_fails_undoes_as_well(pair: tuple[Share, Share], fault: Fault) -> None:
    (pair[0].host / "d").mkdir()
    with guarding(pair[0]) as [world]:
        parent = _parent(world)
        with pair[0].failing(fault):
            with pytest.raises(RequestError) as error:
                _created(world.requests, parent, b"HEAD")
        assert error.value.errno == fault.error
        assert os.listdir(pair[0].host / "d") == []
        _created(world.requests, parent, b"HEAD")


@pytest.mark.parametrize("way", WAYS)
def test_so_does_a_call_that_was_done_and_failed(pair: tuple[Share, Share], way: str) -> None:
    (pair[0].host / "d").mkdir()
    (pair[0].host / "spare/d").mkdir(parents=True)
    (pair[0].host / "spare/f").write_text("text")
    name = b"refs" if way == "mkdir" else b"HEAD"
    with guarding(pair[0]) as [world]:
        parent = _parent(world)
        request, add = WAYS[way]
        fault = Fault((request,), f"d/{name.decode()}", errno.ETIMEDOUT, done=True, nth=1)
        with pair[0].failing(fault):
            with pytest.raises(RequestError):
                add(world.requests, parent, name)
    assert os.listdir(pair[0].host / "d") == []
    assert (pair[0].host / "spare/f").read_text() == "text"


# ----------------------------------------------------------------------------- All or nothing


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ESTALE])
async def test_a_new_file_that_cannot_be_given_away_does_not_stay(
    pair: tuple[Share, Share], number: int
) -> None:
    with guarding(pair[0]) as [world]:
        world.ctx.uid = world.ctx.gid = 1000
        with pair[0].failing(Fault(("SETATTR",), "file", number)):
            await refused(world.create(ROOT_ID, b"file"), number)
        assert os.listdir(pair[0].host) == []
        with pair[0].failing(Fault(("SETATTR",), "file", errno.EPERM)):  # one owner for all
            handle, _ = await world.create(ROOT_ID, b"file")
        await world.ops.release(handle)


async def test_a_name_that_is_in_doubt_is_not_taken_for_free(pair: tuple[Share, Share]) -> None:
    """A rename looks at what it replaces: an error there is not "nothing is there"."""
    host: Path = pair[0].host
    (host / "d").mkdir()
    (host / "d/f").touch()
    (host / "g").touch()
    with guarding(pair[0]) as [world]:
        await world.id("d/f")
        with pair[0].failing(Fault(("LOOKUP",), "g", errno.EIO)):
            await refused(world.rename("d/f", "g"), errno.EIO)
    assert os.listdir(host / "d") == ["f"]
