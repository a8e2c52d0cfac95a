"""The policies: what each allows and refuses; the rules on repositories."""

import errno
import os
import unicodedata
from stat import S_IFREG, S_IMODE
from typing import Literal

import pytest

from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE
from gitguardfs.fs.nodes import ROOT_ID
from gitguardfs.fs.source import Source
from gitguardfs.names.rules import GitMode, GuardRules
from tests.adapter.conftest import MakeWorld
from tests.adapter.world import World, mkdir, refused, touch

CREATE = os.O_RDWR | os.O_EXCL


async def change_everything(world: World, path: str, is_directory: bool) -> None:
    """Try every change to what lies at ``path``; each has to be refused."""
    parent_path, _, text = path.rpartition("/")
    parent, name, ctx = await world.id(parent_path), os.fsencode(text), world.ctx
    node = await world.id(path)
    calls = [
        world.setattr(node, mode=0o777), world.setattr(node, uid=1),
        world.setattr(node, mtime_ns=1),
        world.ops.rename(parent, name, ROOT_ID, b"elsewhere", 0, ctx),
        world.ops.rename(parent, name, ROOT_ID, b"plain", RENAME_EXCHANGE, ctx),
        world.ops.rename(ROOT_ID, b"plain", parent, name, 0, ctx),
        world.ops.setxattr(node, b"user.a", b"v", ctx), world.ops.removexattr(node, b"user.a", ctx),
        world.ops.access(node, os.W_OK, ctx),
    ]  # fmt: skip
    if is_directory:
        calls += [
            world.ops.rmdir(parent, name, ctx), world.ops.mkdir(node, b"new", 0o755, ctx),
            world.ops.create(node, b"new", 0o644, CREATE, ctx),
            world.ops.symlink(node, b"new", b"x", ctx),
            world.ops.rename(ROOT_ID, b"plain", node, b"new", 0, ctx),
        ]  # fmt: skip
    else:
        calls += [
            world.ops.unlink(parent, name, ctx), world.ops.link(node, ROOT_ID, b"copy", ctx),
            world.setattr(node, size=0), world.ops.open(node, os.O_WRONLY, ctx),
            world.ops.open(node, os.O_RDWR, ctx), world.ops.open(node, os.O_TRUNC, ctx),
        ]  # fmt: skip
    for call in calls:
        await refused(call)


async def test_readonly_lets_all_be_read_and_nothing_changed(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(git=GitMode.READONLY, protect=("*.lock",)))
    (world.source / "plain").touch()
    for top in (".git", "x.lock"):
        (world.source / top / "sub").mkdir(parents=True)
        (world.source / top / "sub/config").write_text("text")
        (world.source / top / "link").symlink_to("sub")
        (world.source / top / "sub/config").chmod(0o666)
        config = await world.entry(f"{top}/sub/config")
        assert (S_IMODE(config.st_mode), config.st_uid) == (0o444, os.geteuid())
        handle = await world.open(f"{top}/sub/config")
        assert await world.ops.read(handle, 0, 10) == b"text"
        await world.ops.release(handle)
        assert set(await world.list(top)) == {b"sub", b"link"}
        assert await world.ops.readlink(await world.id(f"{top}/link"), world.ctx) == b"sub"
        assert await world.ops.access(config.st_ino, os.R_OK, world.ctx)
        for path, is_directory in ((top, True), (f"{top}/sub", True), (f"{top}/sub/config", False)):
            await change_everything(world, path, is_directory)
        assert (world.source / top / "sub/config").read_text() == "text"
    assert sorted(os.listdir(world.source)) == [".git", "plain", "x.lock"]


async def test_hide_shows_nothing_and_still_lets_nothing_be_made(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(git=GitMode.HIDE, hide=("secret*",)))
    (world.source / "sub/.git").mkdir(parents=True)
    (world.source / "sub/secrets").touch()
    (world.source / "sub/plain").touch()
    parent = await world.id("sub")
    assert set(await world.list("sub")) == {b"plain"}
    for name in (b".git", b"secrets", b"SECRETS", b".GIT"):
        assert (await world.ops.lookup(parent, name, world.ctx)).st_ino == 0
        await refused(world.ops.create(parent, name, 0o644, CREATE, world.ctx))
        await refused(world.ops.unlink(parent, name, world.ctx))
        await refused(world.ops.rename(parent, b"plain", parent, name, 0, world.ctx))
    await refused(world.rename("sub", "elsewhere"))
    (world.source / "h").mkdir()
    (world.source / "h/secret").touch()
    await refused(world.ops.rmdir(ROOT_ID, b"h", world.ctx), errno.ENOTEMPTY)


@pytest.mark.parametrize("names_only", [True, False])
async def test_hidden_secrets_are_in_no_listing_and_cannot_be_made(
    make_world: MakeWorld, names_only: bool
) -> None:
    rules = GuardRules(hide_secrets=True, show=("dev.env",))
    world = make_world(rules=rules, reports_names_only=names_only)
    assert world.tree.can_list_names_only is names_only
    shown, hidden = {b".env.example", b"dev.env", b"plain"}, (b".env", b"id_rsa", b".env.local")
    for name in (*shown, *hidden[:2]):
        (world.source / os.fsdecode(name)).touch()
    for _ in range(2):
        assert set(await world.list("")) == shown
    for name in hidden:
        assert (await world.ops.lookup(ROOT_ID, name, world.ctx)).st_ino == 0
        await refused(world.ops.create(ROOT_ID, name, 0o644, CREATE, world.ctx))
        await refused(world.ops.mkdir(ROOT_ID, name, 0o755, world.ctx))
        await refused(world.ops.rename(ROOT_ID, b"plain", ROOT_ID, name, 0, world.ctx))
    await world.open("dev.env", os.O_WRONLY)


async def test_denied_globs_are_as_closed_as_git(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(git=GitMode.OFF, deny=(".env", "*.pem")))
    (world.source / "plain").touch()
    (world.source / ".ENV").write_text("secret")
    (world.source / "a.pem").mkdir()
    for name, is_directory in ((".ENV", False), ("a.pem", True)):
        entry = await world.entry(name)
        assert (S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) == (0, 0, 0)
        await change_everything(world, name, is_directory)
    await refused(world.open(".ENV"))
    await refused(world.list("a.pem"))
    assert (world.source / ".ENV").read_text() == "secret"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("other", ["NFC", "NFD"])
async def test_rules_hold_in_every_normal_form(
    make_world: MakeWorld, form: Literal["NFC", "NFD"], other: Literal["NFC", "NFD"]
) -> None:
    """APFS and HFS+ take both forms for one name; here the object is there in one of them."""
    key, summer, hidden = (unicodedata.normalize(form, name) for name in ("clé.pem", "été", "ñ"))
    rules = GuardRules(deny=(key,), protect=(summer,), hide=(f"{hidden}*",))
    world = make_world(rules=rules)
    key, summer, hidden = (unicodedata.normalize(other, name) for name in ("clé.pem", "Été", "ñ1"))
    (world.source / "plain").touch()
    (world.source / key).write_text("secret")
    (world.source / hidden).touch()
    (world.source / summer).mkdir()
    assert set(await world.list("")) == {b"plain", key.encode(), summer.encode()}
    await refused(world.open(key))
    await change_everything(world, key, is_directory=False)
    await change_everything(world, summer, is_directory=True)
    await refused(touch(world, hidden))
    assert (world.source / key).read_text() == "secret"


async def test_read_only_is_erofs_and_the_guard_still_eacces(make_world: MakeWorld) -> None:
    world = make_world(read_only=True)
    (world.source / "f").write_text("x")
    (world.source / ".git").mkdir()
    node, ctx = await world.id("f"), world.ctx
    for call in (
        world.ops.mkdir(ROOT_ID, b"d", 0o755, ctx), world.ops.unlink(ROOT_ID, b"f", ctx),
        world.ops.create(ROOT_ID, b"g", 0o644, CREATE, ctx), world.setattr(node, mode=0o600),
        world.ops.open(node, os.O_WRONLY, ctx), world.ops.link(node, ROOT_ID, b"l", ctx),
        world.rename("f", "g"), world.ops.setxattr(node, b"user.a", b"v", ctx),
    ):  # fmt: skip
        await refused(call, errno.EROFS)
    handle = await world.open("f")
    assert await world.ops.read(handle, 0, 10) == b"x"
    await world.ops.release(handle)
    await refused(world.list(".git"))


# No directory may come to hold HEAD beside refs or commondir

HEADS = ["HEAD", "head", "HEAD.", "HE\u200dAD"]
REFS = ["refs", "Refs", "commondir", "COMMONDIR:x", "ref\u00ads"]


async def _bring(world: World, how: str, path: str) -> None:
    parent, _, name = path.rpartition("/")
    place, raw, ctx = await world.id(parent), os.fsencode(name), world.ctx
    match how:
        case "create":
            await touch(world, path)
        case "symlink":
            await world.ops.symlink(place, raw, b"x", ctx)
        case "mknod":
            await world.ops.mknod(place, raw, S_IFREG | 0o644, 0, ctx)
        case "link":
            await world.ops.link(await world.id("plain"), place, raw, ctx)
        case "rename":
            await world.rename("plain", path)
        case "noreplace":
            await world.rename("plain", path, RENAME_NOREPLACE)
        case "within":
            await world.rename(f"{parent}/other", path)
        case "exchange":
            await touch(world, f"{parent}/x")
            await world.rename("plain", f"{parent}/x")
            await world.rename(f"{parent}/x", path)
        case "mkdir":
            await mkdir(world, path)


@pytest.mark.parametrize(
    "how", ["create", "symlink", "mknod", "link", "rename", "noreplace", "within", "exchange"]
)
@pytest.mark.parametrize(
    ("there", "added"),
    [*((ref, "HEAD") for ref in REFS), *((ref, head) for ref in REFS[:1] for head in HEADS),
     *(("HEAD", ref) for ref in REFS)],
)  # fmt: skip
async def test_the_last_step_to_a_repository_fails(
    world: World, how: str, there: str, added: str
) -> None:
    (world.source / "d").mkdir()
    for path in ("d/objects", "d/config", "d/other", f"d/{there}", "plain"):
        (world.source / path).touch()
    await refused(_bring(world, how, f"d/{added}"))
    assert os.fsencode(added) not in os.listdir(os.fsencode(world.source / "d"))


@pytest.mark.parametrize("name", ["refs", "commondir"])
async def test_directories_complete_one_too(world: World, name: str) -> None:
    (world.source / "d").mkdir()
    (world.source / "d/HEAD").touch()
    (world.source / "made").mkdir()
    await refused(mkdir(world, f"d/{name}"))
    await refused(world.rename("made", f"d/{name}"))


async def test_a_listed_part_counts_although_it_seems_to_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may take a name for missing for a second; a listing asks the server."""
    (world.source / "d/refs").mkdir(parents=True)
    find = Source.find_at
    monkeypatch.setattr(
        Source, "find_at", lambda self, fd, name: None if name == b"refs" else find(self, fd, name)
    )
    await refused(touch(world, "d/HEAD"))


@pytest.mark.parametrize("file_first", [True, False])
@pytest.mark.parametrize("file", ["HEAD", "head"])
async def test_of_two_spellings_one_file_is_enough(
    world: World, file: str, file_first: bool
) -> None:
    """Whichever of them a file system without case keeps, in whatever order they are listed."""
    (world.source / "d").mkdir()
    for is_file in (file_first, not file_first):
        path = world.source / "d" / (file if is_file else file.swapcase())
        path.touch() if is_file else path.mkdir()
    await refused(mkdir(world, "d/refs"))


async def test_exchanges_are_checked_on_both_sides(world: World) -> None:
    (world.source / "d/HEAD").mkdir(parents=True)
    (world.source / "d/refs").mkdir()
    for path in ("file", "d/x", "d/y"):
        (world.source / path).touch()
    await refused(world.rename("d/HEAD", "file", RENAME_EXCHANGE))
    await refused(world.rename("file", "d/HEAD", RENAME_EXCHANGE))
    await refused(world.rename("d/HEAD", "d/x", RENAME_EXCHANGE))
    await refused(world.rename("d/x", "d/HEAD", RENAME_EXCHANGE))
    await world.rename("d/x", "d/y", RENAME_EXCHANGE)


async def test_a_name_that_leaves_in_the_same_step_does_not_count(world: World) -> None:
    await mkdir(world, "d")
    await touch(world, "d/HEAD")
    await world.rename("d/HEAD", "d/refs")
    await world.rename("d/refs", "d/HEAD")
    assert os.listdir(world.source / "d") == ["HEAD"]


# What looks like a repository is treated as one


def bare(world: World, path: str, second: str = "refs") -> None:
    (world.source / path / "objects").mkdir(parents=True)
    (world.source / path / "HEAD").write_text("ref: refs/heads/main\n")
    (world.source / path / second).touch()
    (world.source / path / "config").write_text("[core]\n")


@pytest.mark.parametrize("second", ["refs", "commondir"])
async def test_a_repository_that_is_there_is_closed(world: World, second: str) -> None:
    bare(world, "x/repo.git", second)
    (world.source / "plain").touch()
    assert S_IMODE((await world.entry("x/repo.git")).st_mode) == 0
    assert S_IMODE((await world.list("x"))[b"repo.git"].st_mode) == 0
    await refused(world.id("x/repo.git/config"))
    await change_everything(world, "x/repo.git", is_directory=True)


async def test_a_directory_that_the_host_makes_a_repository_closes(world: World) -> None:
    (world.source / "d/sub").mkdir(parents=True)
    (world.source / "d/sub/f").touch()
    directory, below = await world.id("d"), await world.id("d/sub/f")
    bare(world, "d")
    await world.id("d")
    await refused(world.ops.lookup(directory, b"config", world.ctx))
    await refused(world.ops.open(below, os.O_RDONLY, world.ctx))


async def test_allow_bare_turns_both_rules_off_and_nothing_else(make_world: MakeWorld) -> None:
    world = make_world(rules=GuardRules(allow_bare=True))
    bare(world, "repo.git")
    await touch(world, "repo.git/new")
    for name in ("HEAD", "refs", "commondir"):
        await touch(world, name)
    await refused(touch(world, ".git"))


# A repository's root stays where it is


@pytest.mark.parametrize("entry", [".git", "GIT~1", ".g\u200cit"])
@pytest.mark.parametrize("is_file", [False, True])
async def test_a_directory_that_holds_git_does_not_move(
    world: World, entry: str, is_file: bool
) -> None:
    (world.source / "outer/repo").mkdir(parents=True)
    (world.source / "other").mkdir()
    git = world.source / "outer/repo" / entry
    git.write_text("gitdir: ../x") if is_file else git.mkdir()
    for flags in (0, RENAME_NOREPLACE):
        await refused(world.rename("outer/repo", "moved", flags))
        await refused(world.rename("outer/repo", "outer/moved", flags))
    await refused(world.rename("outer/repo", "other", RENAME_EXCHANGE))
    await refused(world.rename("other", "outer/repo", RENAME_EXCHANGE))
    await world.rename("outer", "further")
    assert (world.source / "further/repo" / entry).exists()


async def test_a_second_name_of_git_is_git(world: World) -> None:
    """A hard link of a .git file is known by its inode number."""
    (world.source / ".git").write_text("gitdir: x")
    os.link(world.source / ".git", world.source / "alias")
    assert S_IMODE((await world.entry("alias")).st_mode) == 0
    await refused(world.open("alias"))
    await refused(world.ops.unlink(ROOT_ID, b"alias", world.ctx))
