"""Where symlinks may stand, and how their texts are stored (rule G6)."""

import errno
import os
from pathlib import Path

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE
from gitguardfs.fs import link_check
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names import links
from gitguardfs.names.rules import GitMode, GuardRules, LinkMode
from gitguardfs.options.change_policy import SymlinkPolicy
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import (
    World,
    count_calls,
    mkdir,
    open_descriptors,
    refused,
    remove,
    symlink,
)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return planted(make_world())


def planted(world: World) -> World:
    """A work tree with another one in it, and directories beside it."""
    for path in ("r/.git/hooks", "r/d/e", "r/f", "r/n/.git", "r/n/d", "x/y/z", "x/w"):
        (world.source / path).mkdir(parents=True)
    return world


def stored(world: World, path: str) -> bytes:
    return os.readlink(os.fsencode(world.source / path))


async def text_of(world: World, path: str) -> bytes:
    """Return a symlink's text in the view; all that tell its length must tell that of the text."""
    node = await world.id(path)
    text = bytes(await world.ops.readlink(node, world.ctx))
    above, _, name = path.rpartition("/")
    entries = (
        await world.entry(path),
        await world.ops.getattr(node, world.ctx),
        (await world.list(above))[name.encode()],
    )
    assert {entry.st_size for entry in entries} == {len(text)}
    return text


AS_GIVEN = [
    ("r/l", b"d"), ("r/l", b"nothing/at/all"), ("r/l", b"f/../x"[:1]), ("r/d/l", b"../f"),
    ("r/d/l", b"."), ("r/d/e/l", b".."), ("r/d/e/l", b"../../f"), ("r/n/d/l", b"../x"),
    ("l", b"x"), ("l", b"r/d"), ("x/l", b"../r/d"), ("x/y/l", b".."), ("x/l", b"./y//z/"),
    ("r/l", b"x" * 300), ("r/l", b"d/\xff\n"), ("r/l", b"user@host.123:456"), ("l", b"x/file/y"),
]  # fmt: skip

NOWHERE = [
    ("r/l", b"/usr/bin/python3"), ("r/l", b".."), ("r/l", b"."), ("r/l", b"../x"), ("r/l", b"./"),
    ("r/d/l", b".."), ("r/d/l", b"../.."), ("r/d/l", b"../../x"), ("r/d/l", b"e/.."),
    ("r/l", b"d/../f"), ("r/l", b".git"), ("r/d/l", b"../.git/hooks"), ("r/l", b".GIT/x"),
    ("r/l", b"git~1"), ("r/n/l", b".."), ("r/n/d/l", b".."), ("r/n/d/l", b"../../d"),
    ("l", b"."), ("l", b".."), ("l", b"../x"), ("x/l", b".."), ("x/y/l", b"../../../x"),
    # what is there now is a work tree, or leads out by the human's symlinks
    ("l", b"r"), ("r/l", b"n"), ("r/d/l", b"../n/"), ("x/l", b"../r"), ("x/l", b"../out/file"),
    ("x/l", b"../up/x"), ("x/l", b"../on/file"), ("r/l", b"meta/hooks"),
    ("r/l", b"meta"), ("r/d/l", b"../top"),
    # a text of the daemon's own making is another text
    ("r/l", b"/.gitguardfs-guest/x"), ("r/l", b"/.gitguardfs-guest/"), ("r/l", b"/.gitguardfs"),
]  # fmt: skip


def add_human_links(world: World) -> None:
    (world.source / "x/file").touch()
    for path, text in (
        ("out", "/etc"),
        ("on", "out"),
        ("up", ".."),
        ("r/meta", ".git"),
        ("r/top", "."),
    ):
        (world.source / path).symlink_to(text)


@pytest.mark.parametrize(("path", "text"), AS_GIVEN)
async def test_a_contained_text_is_stored_as_given(world: World, path: str, text: bytes) -> None:
    add_human_links(world)
    await symlink(world, path, text)
    assert stored(world, path) == text
    assert await text_of(world, path) == text


@pytest.mark.parametrize(("path", "text"), NOWHERE)
async def test_any_other_leads_nowhere_and_is_shown_as_given(
    world: World, path: str, text: bytes
) -> None:
    add_human_links(world)
    await symlink(world, path, text)
    assert stored(world, path) == links.neutral(text)
    assert await text_of(world, path) == text


async def test_a_symlink_to_a_symlink_of_the_view_that_leads_nowhere(world: World) -> None:
    await symlink(world, "r/python", b"/usr/bin/python3")
    await symlink(world, "r/d/python", b"../python")
    assert stored(world, "r/d/python") == b"../python"


async def test_the_walk_follows_no_more_symlinks_than_the_kernel(world: World) -> None:
    (world.source / "x/a").symlink_to("b")
    (world.source / "x/b").symlink_to("a")
    await symlink(world, "x/l", b"a")
    assert stored(world, "x/l") == b"a"


async def test_the_walk_leaves_no_descriptors(world: World) -> None:
    add_human_links(world)
    before = None
    for number, text in enumerate((b"y/z/none", b"y/z", b"w/../y", b"../r/top", b"../r/meta") * 2):
        await symlink(world, f"x/l{number}", text)
        reply = await world.entry(f"x/l{number}")
        await world.ops.forget([(reply.st_ino, 2)])
        before = before or open_descriptors()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "rules",
    [
        GuardRules(protect=("f",)), GuardRules(deny=("f",)), GuardRules(hide=("f",)),
        GuardRules(git=GitMode.READONLY, protect=("f",)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("text", [b"../f", b"../f/inner", b"../by/inner", b"../bare", b"../bare/x"])
async def test_what_a_rule_guards_is_not_led_to(
    make_world: MakeWorld, rules: GuardRules, text: bytes
) -> None:
    world = planted(make_world(rules=rules))
    (world.source / "r/f/inner").touch()
    (world.source / "r/by").symlink_to("f")
    (world.source / "r/bare/refs").mkdir(parents=True)
    (world.source / "r/bare/HEAD").write_text("ref: refs/heads/x")
    await symlink(world, "r/d/l", text)
    assert stored(world, "r/d/l") == links.neutral(text)
    assert await text_of(world, "r/d/l") == text


async def test_nor_what_it_will_guard_once_it_is_there(make_world: MakeWorld) -> None:
    world = planted(make_world(rules=GuardRules(deny=("secret*",))))
    for number, text in enumerate((b"secret", b"secret.d/x", b"none/Secrets", b"../d/secret")):
        await symlink(world, f"r/d/l{number}", text)
        assert stored(world, f"r/d/l{number}") == links.neutral(text)
    await symlink(world, "r/d/l", b"no-secret")
    assert stored(world, "r/d/l") == b"no-secret"


OFF = [GuardRules(links=LinkMode.RAW), GuardRules(git=GitMode.OFF)]


@pytest.mark.parametrize("rules", OFF, ids=["links=raw", "git=off"])
async def test_where_it_is_off_nothing_is_changed_or_refused(
    make_world: MakeWorld, rules: GuardRules
) -> None:
    world = planted(make_world(rules=rules))
    for number, text in enumerate((b"/etc/passwd", b"..", links.neutral(b"../x"), b"../" * 30)):
        path = f"x/y/z/l{number}"
        await symlink(world, path, text)
        assert stored(world, path) == text
        assert await text_of(world, path) == text
    await world.ops.link(await world.id("x/y/z/l1"), ROOT_ID, b"l", world.ctx)
    await world.rename("x/y/z", "r/z")
    assert stored(world, "r/z/l0") == b"/etc/passwd"


# Lengths


@pytest.mark.parametrize("length", [17, 18, 19, 20, 21, 22, 300])
@pytest.mark.parametrize("first", [b"/", b"x"])
async def test_lengths_are_those_of_the_text(world: World, length: int, first: bytes) -> None:
    text = (first + b"y/" * length)[:length]
    reply = await world.ops.symlink(ROOT_ID, b"l", text, world.ctx)
    assert reply.st_size == length
    reply = await world.ops.link(reply.st_ino, ROOT_ID, b"l2", world.ctx)
    assert reply.st_size == length
    assert await text_of(world, "l") == await text_of(world, "l2") == text
    await world.rename("l", "l3")
    assert await text_of(world, "l3") == text


async def test_the_longest_texts(world: World) -> None:
    contained = b"/".join([b"x" * 255] * 16)[:4090]
    await symlink(world, "l", contained)
    assert stored(world, "l") == contained
    outside = b"/" + contained[1:]
    await refused(symlink(world, "m", outside), errno.ENAMETOOLONG)
    outside = outside[: 4095 - len(links.NEUTRAL)]
    await symlink(world, "m", outside)
    assert await text_of(world, "m") == outside
    await refused(symlink(world, "o", b"/../" + outside[4:]), errno.ENAMETOOLONG)
    assert not os.path.lexists(world.source / "o")


# Links and moves


SOURCES = {"local": {}, "share": {"is_local": False}, "9p": {"is_local": False, "is_ninep": True}}
PLACES = [
    # a text, where it is made, and where it may not, and where it may come to stand
    (b"../x", "r/d/e/l", ["r/l", "r/n/l", "l"], ["r/f/l", "r/d/l", "r/d/e/m", "x/l", "x/y/l"]),
    (b"../../x", "r/d/e/l", ["r/d/l", "r/f/l", "r/n/d/l", "x/l"], ["r/d/e/m", "x/y/l"]),
    (b"..", "r/d/e/l", ["r/d/l", "r/l", "x/l"], ["x/y/l"]),
    (b".", "r/d/l", ["r/l", "l"], ["r/d/e/l", "r/n/d/l", "x/l"]),
    (b"d", "r/l", [], ["r/d/l", "l", "x/l"]),
    (b"/etc", "r/l", [], ["l", "r/d/l", "x/l"]),
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", ["rename", "link", "exchange"])
@pytest.mark.parametrize(("text", "first", "not_here", "here"), PLACES)
async def test_it_stands_only_where_it_fits(
    make_world: MakeWorld, source: str, way: str, text: bytes, first: str, not_here: list[str],
    here: list[str],
) -> None:  # fmt: skip
    world = planted(make_world(**SOURCES[source]))

    async def bring(place: str) -> None:
        if way == "link":
            above, _, name = place.rpartition("/")
            node = await world.id(first)
            await world.ops.link(node, await world.id(above), name.encode(), world.ctx)
        elif way == "exchange":
            (world.source / place).touch()
            await world.rename(first, place, RENAME_EXCHANGE)
        else:
            await world.rename(first, place)

    await symlink(world, first, text)
    for place in not_here:
        await refused(bring(place), errno.EXDEV)
        assert not (world.source / place).is_symlink()
        assert (world.source / first).is_symlink()
    for place in here:
        await bring(place)
        assert await text_of(world, place) == text
        assert stored(world, place) == (links.neutral(text) if text.startswith(b"/") else text)
        if way == "link":
            await remove(world, place)
        else:
            await world.rename(place, first, RENAME_EXCHANGE * (way == "exchange"))


@pytest.mark.parametrize("call", ["link", "rename", "exchange", "exchange with it"])
async def test_it_does_not_even_come_there_for_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (world.source / "r/file").touch()
    await symlink(world, "r/d/l", b"../f")
    node, to = await world.id("r/d/l"), await world.id("r")
    calls = [count_calls(monkeypatch, Source, name) for name in ("link", "rename")]
    match call:
        case "link":
            request = world.ops.link(node, to, b"l", world.ctx)
        case "rename":
            request = world.rename("r/d/l", "r/l")
        case "exchange":
            request = world.rename("r/d/l", "r/file", RENAME_EXCHANGE)
        case _:
            request = world.rename("r/file", "r/d/l", RENAME_EXCHANGE)
    await refused(request, errno.EXDEV)
    assert calls == [[], []]


@pytest.mark.parametrize("text", ["/etc", "../../x", ".git/hooks", "../top"])
async def test_the_human_s_symlinks_are_shown_and_stay_where_they_are(
    world: World, text: str
) -> None:
    add_human_links(world)
    (world.source / "r/d/h").symlink_to(text)
    assert await text_of(world, "r/d/h") == text.encode()
    for place in ("r/d/i", "r/h"):
        await refused(world.rename("r/d/h", place), errno.EXDEV)
        above, _, name = place.rpartition("/")
        to = await world.id(above)
        node = await world.id("r/d/h")
        await refused(world.ops.link(node, to, name.encode(), world.ctx), errno.EXDEV)
        assert not os.path.lexists(world.source / place)
    await remove(world, "r/d/h")
    assert not os.path.lexists(world.source / "r/d/h")


async def test_what_the_host_has_changed_since_the_check_is_seen_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The human makes a repository while the symlink is made, linked or moved."""

    def then_git(name: str) -> pytest.MonkeyPatch:
        original = getattr(Source, name)

        def call(self: Source, *arguments: object) -> None:
            original(self, *arguments)
            (world.source / "x/.git").mkdir()

        patch = pytest.MonkeyPatch()
        patch.setattr(Source, name, call)
        return patch

    await symlink(world, "x/y/z/l", b"../../k")
    await symlink(world, "x/y/k", b"../../k"[3:])
    for name, place in (("symlink", "x/w/l"), ("link", "x/w/l"), ("rename", "x/w/k")):
        patch = then_git(name)
        try:
            if name == "symlink":
                await refused(symlink(world, place, b"../../k"), errno.EXDEV)
            elif name == "link":
                await world.id("x/w")
                (world.source / "x/y/far").symlink_to("../../k")
                node, to = await world.id("x/y/far"), await world.id("x/w")
                await refused(world.ops.link(node, to, b"l", world.ctx), errno.EXDEV)
            else:
                await refused(world.rename("x/y/far", place), errno.EXDEV)
        finally:
            patch.undo()
        assert not os.path.lexists(world.source / place)
        (world.source / "x/.git").rmdir()
    assert (world.source / "x/y/far").is_symlink()


# Directories with symlinks in them


async def test_a_directory_that_stays_as_deep_is_not_searched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await symlink(world, "r/d/e/l", b"../../f")
    searches = count_calls(monkeypatch, Source, "readlink")
    await world.rename("r/d/e", "r/d/g")
    await world.rename("r/d/g", "r/f/g")
    await world.rename("r/f", "r/d/f")
    assert stored(world, "r/d/f/g/l") == b"../../f"
    assert not searches


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize(
    ("moved", "place", "inside", "outside"),
    [
        ("r/d/e", "r/e", [b"g", b".", b"/etc", b"h/l", b"../x"], [b"..", b"../n"]),
        ("x/y/z", "z", [b"g", b"."], [b"..", b"../../x"]),
        ("x/y/z", "r/z", [b"g", b"../w"], [b"../../w", b".."]),
        ("x/y", "r/d/y", [b"z", b"../w"], []),
        ("x/y", "r/y", [b"z"], [b"../../q"]),
        ("r/d", "x/y/z/d", [b"e", b"../f"], []),
        ("r/d", "r/n/d/d", [b"e", b"../f"], []),
        ("r/n/d", "r/f/d", [b".", b"../x"], []),
    ],
)
async def test_one_that_comes_nearer_to_its_root_or_to_another_is_searched(
    make_world: MakeWorld, is_local: bool, exchange: bool, moved: str, place: str,
    inside: list[bytes], outside: list[bytes],
) -> None:  # fmt: skip
    world = planted(make_world(is_local=is_local))
    if exchange:
        (world.source / place).mkdir()
    flags = RENAME_EXCHANGE * exchange
    for text in outside:
        await symlink(world, f"{moved}/l", text)
        for ends in ((moved, place), (place, moved))[: 1 + exchange]:
            await refused(world.rename(*ends, flags), errno.EXDEV)
        assert stored(world, f"{moved}/l") == text
        await remove(world, f"{moved}/l")
    for text in inside:
        await symlink(world, f"{moved}/l", text)
        await world.rename(moved, place, flags)
        assert await text_of(world, f"{place}/l") == text
        await remove(world, f"{place}/l")
        (world.source / place).rename(world.source / "back")
        if exchange:
            (world.source / moved).rename(world.source / place)
        (world.source / "back").rename(world.source / moved)


async def test_symlinks_further_down_count_from_where_they_are(world: World) -> None:
    await mkdir(world, "x/y/z/k")
    await symlink(world, "x/y/z/k/l", b"../../z/other"[:5])
    await symlink(world, "x/y/z/k/m", b"..")
    await refused(world.rename("x/y/z/k", "k"), errno.EXDEV)
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)
    await remove(world, "x/y/z/k/l")
    await refused(world.rename("x/y/z/k", "k"), errno.EXDEV)
    await world.rename("x/y/z", "z")
    assert stored(world, "z/k/m") == b".."


@pytest.mark.parametrize("text", ["/etc", "../../..", ".git"])
async def test_the_human_s_symlinks_keep_their_directory_from_moving_up(
    world: World, text: str
) -> None:
    (world.source / "x/y/z/h").symlink_to(text)
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)
    assert (world.source / "x/y/z/h").is_symlink()
    await world.rename("x/y/z", "x/w/z")


async def test_a_large_directory_is_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_check, "MAX_DIRECTORIES", 4)
    for name in ("one", "two", "three"):
        (world.source / "x/y/z" / name).mkdir()
    (world.source / "x/y/z/file").touch()
    await world.rename("x/y/z", "z")
    await world.rename("z", "x/y/z")
    (world.source / "x/y/z/two/four").mkdir()
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)
    await world.rename("x/y/z", "x/w/z")


async def test_a_directory_of_many_names_is_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_check, "MAX_ENTRIES", 4)
    for name in ("one", "two", "three", "four"):
        (world.source / "x/y/z" / name).touch()
    await world.rename("x/y/z", "z")
    await world.rename("z", "x/y/z")
    (world.source / "x/y/z/five").touch()
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)


async def test_a_directory_is_copied_if_descriptors_run_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.source / "x/y/z/inner").mkdir()
    source = world.tree.source
    open_node = source.open_node

    def full(dir_fd: int, name: bytes) -> int:
        if name == b"inner":
            raise OSError(errno.ENFILE, "full")
        return open_node(dir_fd, name)

    before = open_descriptors()
    await world.id("x/y/z")
    monkeypatch.setattr(source, "open_node", full)
    monkeypatch.setattr(source, "is_repository_at", lambda *_: False)
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)
    assert (world.source / "x/y/z/inner").is_dir()
    world.tree.descriptors.request += 1
    world.tree.descriptors.close_unleased()
    assert len(open_descriptors()) <= len(before)


async def test_a_symlink_in_the_place_of_a_listed_directory_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the move, which is then undone. Before it, the search after it would see that."""
    (world.source / "x/y/z/inner").mkdir()
    inner = world.source / "z/inner"
    source = world.tree.source
    listing = source.typed_names

    def replacing(fd: int) -> dict[bytes, tuple[int, int]]:
        found = listing(fd)
        if b"inner" in found and inner.is_dir():
            inner.rmdir()
            inner.symlink_to("../../../out")
        return found

    monkeypatch.setattr(source, "is_repository_at", lambda *_: False)
    monkeypatch.setattr(source, "typed_names", replacing)
    await refused(world.rename("x/y/z", "z"), errno.EXDEV)
    assert not (world.source / "z").exists()
    assert (world.source / "x/y/z/inner").is_symlink()


async def test_a_text_through_many_directories_is_stored_neutral(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them takes requests to the source; names that are not there take one."""
    monkeypatch.setattr(link_check, "MAX_STEPS", 4)
    (world.source / "r/m/m/m/m/m").mkdir(parents=True)
    for name, text, is_contained in (
        ("a", b"m/m/m/m", True),
        ("b", b"m/m/m/m/m", False),
        ("c", b"/".join([b"none"] * 99), True),
        ("m/m/m/d", b"../../../m/m", False),
    ):
        await symlink(world, f"r/{name}", text)
        assert stored(world, f"r/{name}") == (text if is_contained else links.neutral(text))


@pytest.mark.parametrize("levels", [255, 256])
async def test_a_deep_directory_is_copied(world: World, levels: int) -> None:
    before = os.getcwd()
    os.chdir(world.source / "x/y/z")
    try:
        for _ in range(levels):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(before)
    call = world.rename("x/y/z", "z")
    if levels < link_check.MAX_DEPTH:
        await call
    else:
        await refused(call, errno.EXDEV)


async def test_what_vanishes_during_the_search_does_not_matter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed_names = Source.typed_names

    def then_removed(self: Source, fd: int) -> object:
        top = world.source / ("z" if (world.source / "z").exists() else "x/y/z")
        (top / "gone").mkdir()
        (top / "l").symlink_to("../..")
        listed = typed_names(self, fd)
        (top / "gone").rmdir()
        (top / "l").unlink()
        return listed

    monkeypatch.setattr(Source, "typed_names", then_removed)
    before = open_descriptors()
    await world.rename("x/y/z", "z")
    assert (world.source / "z").is_dir()
    assert len(open_descriptors()) <= len(before) + 4


async def test_an_error_of_the_source_fails_the_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "")

    await symlink(world, "x/y/z/l", b"k")
    with monkeypatch.context() as patch:
        patch.setattr(Source, "readlink", broken)
        await refused(world.rename("x/y/z", "z"), errno.EIO)
        await refused(world.rename("x/y/z/l", "x/y/l"), errno.EIO)
    assert (world.source / "x/y/z/l").is_symlink()


# Symlinks that are resolved


async def test_a_resolved_symlink_has_the_text_as_given(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """A mount without ``--resolve-symlinks`` has stored it; text and target are the view's."""
    plain = planted(make_world())
    (plain.source / "r/d/file").write_text("content")
    (plain.source / "x/file").write_text("other")
    await symlink(plain, "r/abs", os.fsencode(plain.source) + b"/r/d/file")
    await symlink(plain, "r/out", b"../x/file")
    await symlink(plain, "r/nowhere", b"/usr/none")
    world = make_world(symlinks=SymlinkPolicy())
    for name, target in (("r/abs", "r/d/file"), ("r/out", "x/file")):
        assert stored(world, name).startswith(links.NEUTRAL)
        assert await world.id(name) == await world.id(target)
    await refused(world.ops.symlink(ROOT_ID, b"l", b"x", world.ctx), errno.EPERM)
