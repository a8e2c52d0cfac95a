"""``gitguard local`` in the guest: real stores, real views."""

import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.findings import Result, Severity, Status
from gitguardfs.commands import doctor
from gitguardfs.doctor import local_checks
from gitguardfs.doctor.context import CheckedSystem
from gitguardfs.guest import local_changing as changing
from gitguardfs.guest import local_listing as listing
from gitguardfs.guest.local_listing import State
from gitguardfs.mounting import guards
from tests.support.mounting import (
    LIMIT,
    REPOSITORY,
    Mounted,
    area,
    command,
    daemons,
    gitguardfs,
    until,
)
from tests.support.people import AGENT, as_user
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host

CODE = "from gitguardfs.commands.gitguard import main; main()"


@dataclass
class World:
    """A share of the host's, ``app`` in it, and the agent's view of it with ``--local=deps``."""

    here: Path

    @property
    def source(self) -> Path:
        return self.here / "source"

    @property
    def view(self) -> Path:
        return self.here / "view"

    @property
    def store(self) -> Path:
        return self.here / "its store"

    @contextmanager
    def mounted(self, *options: str, view: str = "view") -> Iterator[Mounted]:
        local = options or ("--local=deps",)
        with gitguardfs(
            self.source, self.here / view, "--map", MAP, "--cache-timeout=0",
            f"--local-store={self.store}", *local,
        ) as mounted:  # fmt: skip
            yield mounted

    def install(self, *places: str) -> None:
        """The agent makes node_modules at these places, with a file and its second name in it."""
        for place in places:
            path = self.view / place / "node_modules"
            as_user(os.mkdir, path)
            as_user((path / "a.js").write_bytes, b"x" * 100_000)
            as_user(os.link, path / "a.js", path / "b.js")

    def host(self, *words: str) -> None:
        """Run a command as the host's user, in the share."""
        subprocess.run(words, cwd=self.source, check=True, user=HOST_UID, group=HOST_GID)

    def run(self, *words: str | Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", CODE, "local", *words, "--local-store", self.store],
            cwd=self.here, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True,
            text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert (done.returncode == 0) is ok, (words, done)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def listed(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run("list", "--json").stdout)
        return rows

    def states(self) -> dict[str, str]:
        return {os.path.relpath(row["path"], self.view): row["state"] for row in self.listed()}

    def kept(self) -> list[str]:
        """What is in the store's trees: the directories that stand for places, and the guest's."""
        [tree] = self.store.glob("*/tree")
        mine = ("-mindepth", "1", "-not", "-name", "[+=]*", "-prune", "-o", "-printf", "%P\\n")
        done = subprocess.run(["find", tree, *mine], capture_output=True, text=True, check=True)
        return sorted(done.stdout.splitlines())


@pytest.fixture
def world() -> Iterator[World]:
    with area() as here:
        (here / "source").mkdir()
        os.chown(here / "source", HOST_UID, HOST_GID)
        with as_host():
            (here / "source/app/packages/one").mkdir(parents=True)
            (here / "source/README").write_text("first\n")
        (here / "view").mkdir()
        os.chown(here / "view", AGENT, AGENT)
        yield World(here)


# ---------------------------------------------------------------------------- list


def test_each_directory_is_listed_with_what_it_takes(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one")
        first, second = world.listed()
        text = world.run("list").stdout
    assert first["path"] == f"{world.view}/app/node_modules"
    assert first["view"] == str(world.view) and first["state"] == second["state"] == "in_use"
    assert first["share"].endswith("source")
    assert Path(first["store"]).is_relative_to(world.store)
    [own] = world.store.glob("*/tree/+app/=node_modules")
    du = subprocess.run(["du", "-s", "-B1", own], capture_output=True, text=True, check=True)
    assert first["bytes"] == int(du.stdout.split()[0]) < 200_000, "one file with two names"
    assert first["used"] == second["used"] >= "2026"
    assert "in use  " + first["path"] in text and "2 directories, " in text


def test_the_states_are_those_of_the_view(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one", ".")
        as_user(os.mkdir, world.view / "app/.venv")
        with as_host():
            shutil.move(world.source / "app/packages", world.source / "app/libs")
            (world.source / "app/.venv").symlink_to("/usr")
        assert world.states() == {
            "app/node_modules": "in_use", "app/packages/one/node_modules": "gone",
            "node_modules": "in_use", "app/.venv": "hidden",
        }  # fmt: skip
    assert set(world.states().values()) == {"unmounted"}
    with world.mounted("--local=.venv"):
        assert world.states() == {
            "app/node_modules": "unnamed", "app/packages/one/node_modules": "gone",
            "node_modules": "unnamed", "app/.venv": "hidden",
        }  # fmt: skip


@pytest.mark.parametrize("option", ["--hide=app", "--local=app"])
def test_what_an_option_covers_is_not_gone(world: World, option: str) -> None:
    with world.mounted():
        world.install("app")
    with world.mounted("--local=node_modules", option):
        assert world.states() == {"app/node_modules": "closed"}
        world.run("prune", "--yes")
    assert world.kept() == ["+app", "+app/=node_modules"]


def test_a_symlink_above_is_no_place(world: World) -> None:
    with world.mounted():
        world.install("app")
        world.host("mv", "app", "shop")
        world.host("ln", "-s", "shop", "app")
        assert world.states() == {"app/node_modules": "gone"}


def test_a_share_that_shows_nothing_says_nothing(world: World) -> None:
    with world.mounted():
        world.install("app", ".")
        with as_host():
            for name in ("app", "README"):
                (world.source / name).rename(world.here / "source" / f".{name}")
        assert world.states()["app/node_modules"] == "gone"
        for name in (".app", ".README"):
            (world.source / name).rename(world.here / name)
        assert world.states() == {"app/node_modules": "empty", "node_modules": "in_use"}
        done = world.run("prune", "--yes")
        assert "host's directory is there" in done.stderr
        assert "+app/=node_modules" in world.kept()


def test_another_view_over_it_is_not_asked(world: World) -> None:
    with world.mounted():
        world.install("app")
        (world.here / "other").mkdir()
        (world.here / "other/file").touch()
        other = world.here / "other-view"
        with gitguardfs(world.here / "other", other):
            subprocess.run(["mount", "--move", other, world.view], check=True)
            try:
                assert world.states() == {"app/node_modules": "unmounted"}
            finally:
                subprocess.run(["mount", "--move", world.view, other], check=True)
        assert world.states() == {"app/node_modules": "in_use"}


def test_names_cannot_deceive_the_reader(world: World) -> None:
    name = "a\n\x1b[2K  9.9 GiB  in use  "
    with world.mounted():
        as_user(os.mkdir, world.view / name)
        world.install(name)
        text = world.run("list").stdout
        rows = world.listed()
    _, place, _ = text.splitlines()
    assert place.startswith(f"    {world.view}/a\\n") and "\x1b" not in text
    assert rows[0]["path"] == f"{world.view}/{name}/node_modules"


def test_whatever_the_agent_puts_there_is_counted_and_removed(world: World) -> None:
    with world.mounted():
        world.install("app")
        own = world.view / "app/node_modules"
        as_user(os.mkfifo, own / "fifo")
        as_user(os.symlink, "/", own / "root")
        as_user(os.mkdir, own / "+app")
        as_user(os.mkdir, own / "=node_modules")
        as_user(_nest, own, 500)
        assert len(world.listed()) == 1
        world.host("mv", "app", "shop")
        world.run("prune", "--yes")
    assert world.kept() == []
    assert os.listdir(Path(str(next(world.store.iterdir())))) != []


def _nest(place: Path, depth: int) -> None:
    os.chdir(place)
    for _ in range(depth):
        os.mkdir("deep" * 10)
        os.chdir("deep" * 10)


def test_a_place_of_any_depth_is_found(world: World) -> None:
    with world.mounted():
        as_user(_install_deep, world.view / "app")
        [row] = world.listed()
        assert row["state"] == "in_use" and len(row["path"]) > 4096
        world.host("mv", "app", "shop")
        assert world.run("move", "app", "shop").stdout.startswith("moved 1 directory")
        [row] = world.listed()
        assert row["state"] == "in_use"
        world.host("mv", "shop", "app")
        world.run("prune", "--yes")
    assert world.kept() == []


def _install_deep(place: Path) -> None:
    _nest(place, 150)
    os.mkdir("node_modules")


def test_a_list_bears_what_the_agent_does_meanwhile(world: World) -> None:
    script = """
        while :; do
            mkdir -p node_modules/a/b/c; touch node_modules/a/b/c/f node_modules/a/g
            mv node_modules/a node_modules/x; ln -s x node_modules/a
            rm -rf node_modules
        done
    """
    with world.mounted(), ExitStack() as stack:
        world.install("app/packages/one")
        working = subprocess.Popen(
            ["sh", "-c", script], cwd=world.view / "app", user=AGENT, group=AGENT
        )
        stack.callback(working.wait)
        stack.callback(working.kill)
        [share] = listing.shares(stack, str(world.store))
        seen = set()
        for _ in range(30):
            seen |= {
                (own.above[-1], own.state, listing.size_of(own, set()) > 0)
                for own in listing.owns(share)
            }
        assert (b"one", State.IN_USE, True) in seen
        assert (b"app", State.IN_USE, True) in seen
        assert not [each for each in seen if each[1] in (State.GONE, State.UNKNOWN)], seen


@pytest.mark.parametrize("what", ["symlink", "file", "nothing"])
def test_a_directory_that_is_replaced_while_it_is_counted_leads_nowhere(
    world: World, what: str
) -> None:
    def replace(*_: object) -> None:
        if not moved.exists():
            as_user(os.rename, inner, moved)
            if what == "symlink":
                as_user(os.symlink, "/usr", inner)
            elif what == "file":
                as_user(inner.touch)

    with world.mounted(), ExitStack() as stack:
        world.install("app")
        inner, moved = (world.view / "app/node_modules" / name for name in ("inner", "moved"))
        as_user(os.mkdir, inner)
        [share] = listing.shares(stack, str(world.store))
        [own] = listing.owns(share)
        assert 100_000 < listing.size_of(own, set(), replace) < 200_000
        assert moved.exists()


def test_only_root_sees_the_store(world: World) -> None:
    with pytest.raises(AssertionError, match="only root"):
        as_user(_list_as_user, world.store)


def _list_as_user(place: Path) -> None:
    from click.testing import CliRunner

    from gitguardfs.commands.local import command

    done = CliRunner().invoke(command, ["list", "--local-store", str(place)])
    raise AssertionError(str(done.exception))


def test_a_store_that_another_could_have_made_is_none(world: World) -> None:
    world.store.mkdir()
    os.chown(world.store, AGENT, AGENT)
    assert "is no store" in world.run("list", ok=False).stderr


def test_what_is_mounted_in_the_store_stops_everything(world: World) -> None:
    with world.mounted():
        world.install("app")
        [own] = world.store.glob("*/tree/+app/=node_modules")
        subprocess.run(["mount", "-t", "tmpfs", "none", own], check=True)
        try:
            assert "is mounted in the store" in world.run("list", ok=False).stderr
        finally:
            subprocess.run(["umount", own], check=True)


# ---------------------------------------------------------------------------- prune


def test_prune_removes_what_is_gone_and_nothing_else(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one", ".")
        world.host("rm", "-r", "app/packages")
        done = world.run("prune", ok=False)
        assert "app/packages/one/node_modules" in done.stdout
        assert "--yes" in done.stderr and done.returncode == 3
        assert world.states()["app/packages/one/node_modules"] == "gone"
        done = world.run("prune", "--yes")
        assert done.stdout.endswith(f"removed {world.view}/app/packages/one/node_modules\n")
        assert world.states() == {"app/node_modules": "in_use", "node_modules": "in_use"}
        assert world.kept() == ["+app", "+app/=node_modules", "=node_modules"]
        assert as_user((world.view / "app/node_modules/a.js").read_bytes) == b"x" * 100_000
        world.host("mkdir", "-p", "app/packages/one")
        assert as_user(os.listdir, world.view / "app/packages/one") == []
        world.install("app/packages/one")
        assert world.states()["app/packages/one/node_modules"] == "in_use"


@pytest.mark.parametrize("case", ["y", "n", "put back"])
def test_prune_asks_on_a_terminal(world: World, case: str) -> None:
    """What the host puts back during the question stays."""
    with world.mounted():
        world.install("app")
        world.host("mv", "app", "away")
        ours, theirs = pty.openpty()
        words = [sys.executable, "-c", CODE, "local", "prune", "--local-store", world.store]
        asking = subprocess.Popen(
            words, cwd=REPOSITORY, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True
        )
        said = b""
        while b"Remove 1 directory? [y/N]" not in said:
            said += os.read(ours, 1024)
        if case == "put back":
            world.host("mv", "away", "app")
        os.write(ours, b"n\n" if case == "n" else b"y\n")
        out, _ = asking.communicate(timeout=LIMIT)
        os.close(ours)
        os.close(theirs)
        assert asking.returncode == (3 if case == "n" else 0)
        assert ("removed" in out) == (case == "y")
        assert world.kept() == ([] if case == "y" else ["+app", "+app/=node_modules"])


def test_without_a_view_prune_removes_only_what_is_named(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one")
    done = world.run("prune", "--yes")
    assert "the view is not mounted" in done.stderr and len(world.listed()) == 2
    world.run("prune", "--yes", "app/packages")
    assert world.kept() == ["+app", "+app/=node_modules"]
    world.run("prune", "--yes", world.view / "app/node_modules")
    assert world.kept() == []
    world.run("prune", "--yes", "app", ok=False)


def test_what_is_in_use_is_not_removed_though_it_is_named(world: World) -> None:
    with world.mounted():
        world.install("app")
        done = world.run("prune", "--yes", "app", ok=False)
    assert f"rm -rf {world.view}/app/node_modules" in done.stderr
    assert world.kept() == ["+app", "+app/=node_modules"]


def test_what_an_interrupted_removal_has_left_is_removed_with_the_next(world: World) -> None:
    with world.mounted():
        world.install("app")
        world.host("rm", "-r", "app")
        [place] = world.store.iterdir()
        (place / "removed.gone-0badcafe/x").mkdir(parents=True)
        world.run("prune", "--yes")
    assert sorted(os.listdir(place)) == ["lock", "tree", "view"]


# ---------------------------------------------------------------------------- move


def test_move_brings_all_of_a_directory_that_the_host_has_renamed(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one")
        world.host("mkdir", "sub")
        world.host("mv", "app", "sub/shop")
        done = world.run("move", "app", "sub/shop")
        assert done.stdout == f"moved 2 directories: {world.view}/app -> {world.view}/sub/shop\n"
        for place in ("sub/shop", "sub/shop/packages/one"):
            own = world.view / place / "node_modules"
            assert as_user((own / "a.js").read_bytes) == b"x" * 100_000
            as_user((own / "new").touch)
        assert set(world.states().values()) == {"in_use"}
        assert world.kept() == [
            "+sub", "+sub/+shop", "+sub/+shop/+packages", "+sub/+shop/+packages/+one",
            "+sub/+shop/+packages/+one/=node_modules", "+sub/+shop/=node_modules",
        ]  # fmt: skip
        as_user(shutil.rmtree, world.view / "sub/shop/node_modules")
        world.install("sub/shop")


def test_move_brings_one_directory(world: World) -> None:
    with world.mounted():
        world.install("app", "app/packages/one")
        world.host("mv", "app", "shop")
        world.install("shop")
        done = world.run("move", "app", "shop", ok=False)
        assert f"rm -rf {world.view}/shop" in done.stderr
        one = "packages/one/node_modules"
        world.run("move", f"{world.view}/app/{one}", f"{world.view}/shop/{one}")
        assert world.states() == {
            "app/node_modules": "gone", f"shop/{one}": "in_use", "shop/node_modules": "in_use"
        }  # fmt: skip


REFUSED = {
    "in use": (["mv", "app/packages", "elsewhere"], "app", "elsewhere", "in use (mv in the view"),
    "no place": (["mv", "app", "shop"], "app", "missing", "there is no such directory"),
    "nothing": (["mv", "app", "shop"], "apple", "shop", "no directory of its own"),
    "a name": (["mv", "app", "shop"], "app/node_modules", "shop/.venv", "not the same name"),
    "outside": (["mv", "app", "shop"], "app", "../..", "no path below"),
    "the root": (["mv", "app", "shop"], "app", ".", "no path below"),
    "a file": (["mv", "app", "shop"], "app", "README", "there is no such directory"),
    "the guest's": (
        ["mv", "app", "shop"], "app", "node_modules/x", "an option of the view covers its place"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_move_refuses(world: World, case: str) -> None:
    command, old, new, said = REFUSED[case]
    with world.mounted():
        world.install("app", ".")
        as_user(os.mkdir, world.view / "node_modules/x")
        world.host(*command)
        before = world.kept()
        assert said in world.run("move", old, new, ok=False).stderr
        assert world.kept() == before


def test_move_needs_the_view(world: World) -> None:
    with world.mounted():
        world.install("app")
    world.host("mv", "app", "shop")
    assert "mount the view first" in world.run("move", "app", "shop", ok=False).stderr


def test_a_hidden_directory_can_be_moved_away(world: World) -> None:
    with world.mounted():
        world.install("app")
        world.host("ln", "-s", "/usr", "app/node_modules")
        world.run("move", "app/node_modules", "app/packages/node_modules")
        assert world.states() == {"app/packages/node_modules": "in_use"}


def test_the_first_one_below_the_root_is_seen(world: World) -> None:
    """The view has listed its store before, and nothing stood in for a directory of the share."""
    with world.mounted():
        world.install("")
        world.host("ln", "-s", "/usr", "node_modules")
        assert os.listdir(world.view / "app") == ["packages"]
        world.run("move", "node_modules", "app/node_modules")
        assert sorted(os.listdir(world.view / "app")) == ["node_modules", "packages"]
        assert (world.view / "app/node_modules/a.js").exists()


def test_a_process_in_a_moved_directory_goes_on(world: World) -> None:
    with world.mounted():
        world.install("app")
        fd = os.open(world.view / "app/node_modules/a.js", os.O_RDWR)
        world.host("mv", "app", "shop")
        world.run("move", "app", "shop")
        try:
            assert os.pread(fd, 3, 0) == b"xxx"
            os.pwrite(fd, b"new", 0)
        finally:
            os.close(fd)
        assert (world.view / "shop/node_modules/b.js").read_bytes()[:4] == b"newx"


# ---------------------------------------------------------------------------- gitguard doctor


def _doctor(world: World, attack: bool = False) -> dict[str, Result]:
    system = CheckedSystem(search_path="/nonexistent", doas_files=())
    results = doctor.examine(str(world.view), str(AGENT), None, system, attack)
    print(*results, sep="\n")
    assert len({result.id for result in results}) == len(results)
    return {result.id: result for result in results}


def test_the_doctor_finds_nothing_where_all_is_well(world: World) -> None:
    world.source.chmod(0o700)
    with world.mounted():
        world.install("app")
        rows = _doctor(world, attack=True)
    own = {"local.path", "local.disk", "local.left"}
    assert {rows[name].status for name in own} == {Status.OK}
    assert [row.id for row in rows.values() if row.status is Status.FINDING] == []
    assert str(world.source) in rows["share.path"].title, "the store is no share"


def test_the_doctor_tells_what_was_left_behind(world: World) -> None:
    with world.mounted():
        world.install("app", ".")
        world.host("mv", "app", "shop")
        row = _doctor(world)["local.left"]
    assert row.status is Status.NOTE and row.detail.startswith("1 directory of ")
    assert "gitguard local prune" in row.hint


@pytest.mark.parametrize("mode", [0o701, 0o755])
def test_the_doctor_finds_a_store_that_is_open(world: World, mode: int) -> None:
    with world.mounted():
        world.install("app")
        [tree] = world.store.glob("*/tree")
        tree.chmod(mode)
        row = _doctor(world)["local.path"]
        assert row.severity is Severity.HIGH
        subprocess.run(["sh", "-c", row.hint], check=True)
        assert _doctor(world)["local.path"].status is Status.OK


def test_the_doctor_tries_as_the_agent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were root's look at the modes wrong, the attempt would tell."""
    with world.mounted():
        for path in (world.store, *world.store.glob("*"), *world.store.glob("*/tree")):
            path.chmod(0o755)
        monkeypatch.setattr(local_checks, "_is_roots_alone", lambda _: True)
        row = _doctor(world)["local.path"]
    assert "reaches" in row.detail


# ---------------------------------------------------------------------------- the parts


def test_a_move_is_whole_or_nothing(world: World) -> None:
    with world.mounted():
        world.install("app")
        world.host("mv", "app", "shop")
        world.install("shop")
    with ExitStack() as stack:
        [share] = listing.shares(stack, str(world.store))
        before = world.kept()
        for old, new, is_own in (
            ((b"app",), (b"shop",), False),
            ((b"app", b"node_modules"), (b"shop", b"node_modules"), True),
            ((b"missing",), (b"new", b"place"), False),
        ):
            with pytest.raises(OSError) as refused:
                changing.move(share, old, new, is_own)
            assert refused.value.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)
            assert world.kept() == before


def test_a_daemon_in_the_background_is_found_also_after_a_crash(world: World) -> None:
    options = ("--map", MAP, "--local=deps", f"--local-store={world.store}")
    words = command(world.source, world.view, *options)
    subprocess.run(words, check=True, cwd=REPOSITORY, capture_output=True)
    try:
        world.install("app")
        assert world.states() == {"app/node_modules": "in_use"}
        os.kill(daemons(world.here)[-1], signal.SIGKILL)
        until(lambda: world.states() == {"app/node_modules": "in_use"}, "a new daemon")
    finally:
        subprocess.run(["umount", world.view], check=True)
        until(lambda: not daemons(world.here), "all have ended")


def test_a_view_that_does_not_answer_gives_no_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.mounted() as mounted:
        world.install("app")
        monkeypatch.setattr(guards, "ANSWER_LIMIT", 0.5)
        os.kill(mounted.process.pid, signal.SIGSTOP)
        try:
            with ExitStack() as stack:
                [share] = listing.shares(stack, str(world.store))
                assert [own.state for own in listing.owns(share)] == [State.UNKNOWN]
        finally:
            os.kill(mounted.process.pid, signal.SIGCONT)
