"""An error of the source is not absence: what cannot be classified is refused, nothing else.

The source is a share of our own making, the view most often one without a kernel, so that each
request of the daemon can be made to fail, one after the other.
"""

import errno
import os
import subprocess
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pyfuse3 import FUSEError

from gitguardfs.base.errors import Exit
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.mounting import seal
from gitguardfs.names.rules import GitMode, GuardRules
from tests.adapter.world import Later, World, open_descriptors, refused, stand_ins
from tests.support.errorfs import ERRNOS, READING, ROOT, Fault, Share, errorfs
from tests.support.mounting import area, command, gitguardfs

NAMES = {number: errno.errorcode[number] for number in ERRNOS}
DENIALS = (errno.EACCES, errno.EPERM)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Share, Share]]:
    """Two shares; the second one folds names in an unforeseen way."""
    with (
        area() as path,
        errorfs(path / "host", path / "share", path / "control") as plain,
        errorfs(path / "host2", path / "share2", path / "control2", fold=True) as folding,
    ):
        yield plain, folding


@pytest.fixture
def share(served: tuple[Share, Share]) -> Share:
    return served[0].emptied()


@pytest.fixture
def folding(served: tuple[Share, Share]) -> Share:
    return served[1].emptied()


@contextmanager
def guarding(share: Share, **options: Any) -> Iterator[World]:
    """A guard over the share; all that it opens is closed again."""
    with stand_ins():
        before = open_descriptors()
        world = World(share.path, **options)
        try:
            yield world
        finally:
            share.clear()
            world.close()
        assert open_descriptors() == before


def make_bare(path: Path, second: str = "refs") -> Path:
    (path / second).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text("[core]\n")
    (path / "hooks").mkdir()
    return path


# ------------------------------------------------------------ Directories that may be repositories


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
@pytest.mark.parametrize("request_", ["LOOKUP", "GETATTR"])
@pytest.mark.parametrize("second", ["refs", "commondir"])
async def test_a_repository_is_never_open_because_it_does_not_answer(
    share: Share, number: int, request_: str, second: str
) -> None:
    make_bare(share.host / "b", second)
    with guarding(share) as world:
        for name in ("HEAD", second):
            with share.failing(Fault((request_,), f"b/{name}", number)):
                try:
                    b = await world.id("b")
                except FUSEError as error:
                    assert error.errno == number
                else:
                    assert number in DENIALS
                    await refused(world.ops.lookup(b, b"config", world.ctx))
                    await refused(world.ops.opendir(b, world.ctx))
                    await refused(world.create(b, b"new"))
        assert (await world.entry("b")).st_mode & 0o777 == 0


async def test_one_request_that_fails_opens_no_repository(share: Share) -> None:
    """Each request fails in turn."""
    make_bare(share.host / "b")
    for nth in range(1, 100):
        with guarding(share) as world:
            with share.failing(Fault(READING, nth=nth)):
                hits = len(share.hits())
                try:
                    b = await world.id("b")
                    await world.create(await world.id("b/hooks"), b"post-update")
                except FUSEError:
                    pass
                else:
                    raise AssertionError(f"a hook was planted, request {nth}")
                met = len(share.hits()) > hits
            b = await world.id("b")
            await refused(world.ops.opendir(b, world.ctx))
        if not met:
            break
    assert os.listdir(share.host / "b/hooks") == []


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
@pytest.mark.parametrize("path", ["D/HEAD", "D/b", "D/b/HEAD"])
async def test_a_directory_moves_only_if_no_repository_is_in_it(
    share: Share, path: str, number: int
) -> None:
    make_bare(share.host / "D/b")
    with guarding(share) as world:
        with share.failing(Fault(("LOOKUP",), path, number)):
            wanted = errno.EACCES if number in DENIALS else number
            await refused(world.rename("D", "E"), wanted)
    assert os.listdir(share.host) == ["D"]


async def test_a_directory_moves_although_the_host_removes_one_in_it(share: Share) -> None:
    """It is removed between the look at its name and the listing."""
    for name in ("in", "there"):
        (share.host / name / "D/gone/deeper").mkdir(parents=True)
        (share.host / name / "D/stays/HEAD").mkdir(parents=True)
    with guarding(share) as world:
        with share.failing(Fault(("OPENDIR",), "gone", errno.ENOENT)):
            await world.rename("in/D", "D")
        with share.failing(Fault(("OPENDIR",), "gone", errno.EIO)):
            await refused(world.rename("there/D", "E"), errno.EIO)
    assert sorted(os.listdir(share.host)) == ["D", "in", "there"]


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
async def test_who_is_in_a_repository_gets_nothing_while_it_does_not_answer(
    share: Share, later: Later, number: int
) -> None:
    (share.host / "b/hooks").mkdir(parents=True)
    with guarding(share) as world:
        hooks = await world.id("b/hooks")
        (share.host / "b/refs").mkdir()
        (share.host / "b/HEAD").write_text("ref: refs/heads/main\n")
        later()
        with share.failing(Fault(("LOOKUP",), "b/HEAD", number)):
            for _ in range(2):
                wanted = errno.EACCES if number in DENIALS else number
                await refused(world.create(hooks, b"post-update"), wanted)
        await refused(world.create(hooks, b"post-update"))
    assert os.listdir(share.host / "b/hooks") == []


async def test_an_ordinary_directory_is_open_again_when_the_source_answers(
    share: Share, later: Later
) -> None:
    (share.host / "d/e").mkdir(parents=True)
    (share.host / "d/HEAD").write_text("a text\n")
    with guarding(share) as world:
        e = await world.id("d/e")
        for name in ("HEAD", "refs"):
            later()
            with share.failing(Fault(("LOOKUP",), f"d/{name}")):
                await refused(world.create(e, b"new"), errno.EIO)
                await refused(world.entry("d"), errno.EIO)
            handle, _ = await world.create(e, f"after {name}".encode())
            await world.ops.release(handle)


async def test_looks_that_fail_leave_no_descriptors(share: Share) -> None:
    (share.host / "d").mkdir()
    with guarding(share) as world, share.failing(Fault(("LOOKUP",), "d/HEAD")):
        before = open_descriptors()
        for _ in range(200):
            await refused(world.entry("d"), errno.EIO)
        assert open_descriptors() == before


@pytest.mark.parametrize("number", DENIALS, ids=NAMES.get)
async def test_a_directory_that_nobody_may_enter_is_shown(share: Share, number: int) -> None:
    """For example a database's, over a server that is not root."""
    (share.host / "database").mkdir(mode=0o700)
    (share.host / "database/f").touch()
    os.chown(share.host / "database", 999, 999)
    with guarding(share) as world:
        with share.failing(Fault(("LOOKUP",), "database/HEAD", number)):
            entry = await world.entry("database")
            assert (entry.st_mode & 0o777, entry.st_uid) == (0o700, 999)
            assert entry.entry_timeout == 0
            assert (await world.list(""))[b"database"].st_mode == entry.st_mode
            await refused(world.ops.lookup(entry.st_ino, b"f", world.ctx))
            await refused(world.ops.rmdir(ROOT_ID, b"database", world.ctx))
            await refused(world.rename("database", "elsewhere"))
        # asked again at each use, by the same node
        assert (await world.ops.lookup(entry.st_ino, b"f", world.ctx)).st_ino
        assert (await world.entry("database")).entry_timeout > 0


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
@pytest.mark.parametrize("name", ["d/HEAD", "d", ".git"])
async def test_a_listing_drops_no_name(share: Share, number: int, name: str) -> None:
    (share.host / "d").mkdir()
    (share.host / "f").touch()
    (share.host / ".git").mkdir()
    with guarding(share, rules=GuardRules(GitMode.LIST)) as world:
        with share.failing(Fault(("LOOKUP",), name, number)):
            assert set(await world.list("")) == {b"d", b"f", b".git"}
        (share.host / "f").unlink()
        assert set(await world.list("")) == {b"d", b".git"}


def test_a_tool_that_copies_is_told_of_what_it_leaves_out(share: Share) -> None:
    (share.host / "tree/d").mkdir(parents=True)
    (share.host / "tree/f").write_text("text")
    with area() as here:
        here.chmod(0o700)
        with gitguardfs(share.path, here / "view", "--cache-timeout", "0") as mounted:
            with (
                share.failing(Fault(("LOOKUP",), "d/HEAD")),
                share.failing(Fault(("LOOKUP",), "tree/d/HEAD")),
            ):
                assert sorted(os.listdir(mounted.path / "tree")) == ["d", "f"]
                done = subprocess.run(
                    ["cp", "-r", mounted.path / "tree", here / "copy"], capture_output=True
                )
                assert done.returncode != 0
                assert b"Input/output error" in done.stderr
            assert (here / "copy/f").read_text() == "text"


# ------------------------------------------------------------------------- Second names of .git


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
async def test_a_second_name_of_a_git_file_stays_one(share: Share, number: int) -> None:
    (share.host / "d").mkdir()
    (share.host / "d/.git").write_text("gitdir: ../r\n")
    os.link(share.host / "d/.git", share.host / "d/x")
    with guarding(share) as world:
        with share.failing(Fault(("LOOKUP",), ".git", number)):
            await refused(world.entry("d/x"), number)
        assert (await world.entry("d/x")).st_mode & 0o777 == 0


@pytest.mark.parametrize("number", ERRNOS, ids=NAMES.get)
async def test_so_does_a_spelling_that_nobody_foresaw(folding: Share, number: int) -> None:
    (folding.host / ".git/hooks").mkdir(parents=True)
    with guarding(folding) as world:
        with folding.failing(Fault(("LOOKUP",), ".git", number)):
            await refused(world.entry(".ｇｉｔ"), number)
        assert (await world.entry(".ｇｉｔ")).st_mode & 0o777 == 0
        await refused(world.entry(".ｇｉｔ/hooks"))


async def test_a_rule_holds_in_the_spellings_of_other_systems(folding: Share) -> None:
    """The share takes ``.env.`` for ``.env``, as FAT does."""
    (folding.host / ".env").write_text("secret")
    (folding.host / "env").write_text("ordinary")
    with guarding(folding, rules=GuardRules(deny=(".env",))) as world:
        assert (await world.entry("ENV.")).st_size == len("ordinary")
        for name in (".env", ".ENV", ".env.", ".Env. ."):
            assert (await world.entry(name)).st_mode & 0o777 == 0
            await refused(world.open(name))
            await refused(world.create(ROOT_ID, name.encode()))


async def test_a_rule_holds_in_both_normal_forms_of_a_name(folding: Share) -> None:
    """The share takes them for one name, as APFS and HFS+ do."""
    (folding.host / "clé.pem").write_text("secret")
    (folding.host / ".été").mkdir()
    (folding.host / ".été/f").write_text("theirs")
    with guarding(folding, rules=GuardRules(deny=("clé.pem",), protect=(".été",))) as world:
        forms: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
        for form in forms:
            key, summer = (unicodedata.normalize(form, name) for name in ("clé.pem", ".été"))
            await refused(world.open(key))
            await refused(world.open(f"{summer}/f", os.O_WRONLY))
            await refused(world.create(await world.id(summer), b"new"))
    assert (folding.host / ".été/f").read_text() == "theirs"


async def test_a_git_file_in_such_a_spelling_is_one_too(folding: Share) -> None:
    (folding.host / ".git").write_text("gitdir: elsewhere\n")
    with guarding(folding) as world:
        assert (await world.entry(".ｇｉｔ")).st_mode & 0o777 == 0
        await refused(world.open(".ｇｉｔ"))
        await refused(world.ops.unlink(ROOT_ID, ".ｇｉｔ".encode(), world.ctx))
    assert (folding.host / ".git").exists()


# ------------------------------------------------------------------ Directories above, evicted


@pytest.mark.parametrize("below", ["hooks", "info"])
async def test_a_server_that_does_not_know_a_directory_any_more(
    share: Share, later: Later, below: str
) -> None:
    """The directory above has lost its descriptor, and is made a repository."""
    (share.host / "A" / below).mkdir(parents=True)
    with guarding(share) as world:
        inside = await world.id(f"A/{below}")
        world.tree.descriptors.close(world.tree.nodes.get(await world.id("A")))
        (share.host / "A/refs").mkdir()
        (share.host / "A/HEAD").write_text("ref: refs/heads/main\n")
        later()
        with share.failing(Fault(("LOOKUP", "GETATTR"), "A", errno.ESTALE)):
            await refused(world.create(inside, b"post-update"), errno.ESTALE)
        await refused(world.create(inside, b"post-update"))
    assert os.listdir(share.host / "A" / below) == []


# ------------------------------------------------------------------------------------ The start


@pytest.mark.parametrize("source", ["b", "b/hooks"])
def test_a_source_that_may_be_a_repository_is_not_served(share: Share, source: str) -> None:
    make_bare(share.host / "b")
    with area() as here:
        (here / "view").mkdir()
        with share.failing(Fault(("LOOKUP",), "HEAD")):
            done = subprocess.run(
                command(share.path / source, here / "view", "-f"),
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "cannot tell whether" in done.stderr
    assert "Input/output error" in done.stderr


def test_a_source_that_does_not_answer_is_closed_and_said_in_one_line(share: Share) -> None:
    with area() as here:
        (here / "view").mkdir()
        try:
            with share.failing(Fault(("GETATTR",), ROOT)):
                done = subprocess.run(
                    command(share.path, here / "view", "-f", "--seal"),
                    capture_output=True, text=True, timeout=60,
                )  # fmt: skip
            assert seal.is_sealed(str(share.path))
        finally:
            if seal.is_sealed(str(share.path)):
                subprocess.run(["umount", "-i", share.path], check=True)
    said = done.stderr.splitlines()
    assert len(said) == 1, done.stderr
    assert f"source {share.path}: Input/output error" in said[0]
    assert "is sealed until it is guarded" in said[0]
    assert done.returncode in (Exit.SYSTEM, Exit.MOUNT)
