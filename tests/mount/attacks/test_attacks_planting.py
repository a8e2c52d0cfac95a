"""What is a repository and what is not: races for one, and other spellings of ``.git``."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from gitguardfs.doctor.attacks import ORDINARY, SPELLINGS
from tests.support.errorfs import errorfs
from tests.support.exploits import HEAD_TEXT, half_repository, write_config
from tests.support.mounting import area, gitguardfs
from tests.support.people import AGENT, as_user
from tests.support.races import exchange_race, race
from tests.support.repos import HOST_GID, HOST_UID, check_git_works, differences, git, metadata
from tests.support.siege import Siege, act

RACE_ROUNDS = 250


# ------------------------------------------------------------------------ What stays allowed


def _add_both(directory: Path, head: str, other: str) -> None:
    directory.mkdir()
    (directory / head).write_text("text\n")
    (directory / other).mkdir()


def _assemble_in_wide_letters(place: Path, command: str) -> None:
    trap = half_repository(place / "trap", command, worktree="..")
    (trap / "refs").rmdir()
    (trap / "\uff52efs").mkdir()
    write_config(trap / "\uff43onfig", command, worktree="..")
    (trap / "HEAD").write_text(HEAD_TEXT)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_server_that_folds_names_makes_no_repository_of_others(guarded: bool) -> None:
    with (
        area() as place,
        errorfs(place / "host", place / "share", place / "control", fold=True) as share,
    ):
        place.chmod(0o777)
        os.chown(share.host, HOST_UID, HOST_GID)
        mark = place / "mark"
        options = ["--no-seal", f"--map={HOST_UID}:{AGENT}"]
        options += [] if guarded else ["--git=off"]
        with gitguardfs(share.path, place / "view", *options) as mounted:
            with pytest.raises(PermissionError) if guarded else nullcontext():
                as_user(_assemble_in_wide_letters, mounted.path, f"touch {mark}")
        with suppress(AssertionError):
            git(share.path / "trap", "status")
        assert mark.exists() is not guarded


def _make_ordinary_trees(view: Path) -> None:
    (view / "a").mkdir()
    (view / "a/HEAD").write_text("")
    (view / "a/objects").mkdir()
    (view / "b").mkdir()
    (view / "b/refs").mkdir()
    (view / "b/objects").mkdir()
    (view / "c").mkdir()
    (view / "c/HEAD").mkdir()
    (view / "c/refs").mkdir()
    (view / "c/HEADS").write_text("")
    (view / "c/refs.txt").write_text("")
    (view / "c/HEAD.md").write_text("")
    # When one is removed, the other may be made.
    (view / "a/HEAD").unlink()
    (view / "a/refs").mkdir()
    (view / "b/refs").rmdir()
    (view / "b/HEAD").write_text("")
    (view / "b/HEAD").rename(view / "b/head")


def test_ordinary_trees_are_not_hurt(field: Siege) -> None:
    project = field.project()
    as_user(_make_ordinary_trees, field.through_guard(project))


@pytest.mark.parametrize("actor", ["agent", "root"])
def test_allow_bare_lifts_the_rule(field: Siege, actor: str) -> None:
    project = field.project()
    view = field.through_guard(project, "--allow-bare")
    act(actor, _add_both, view / "trap", "HEAD", "refs")
    assert act(actor, (view / "attic/bare.git/config").read_bytes)
    with pytest.raises(PermissionError):
        act(actor, (view / ".git/config").read_bytes)


def _look(path: Path) -> tuple[int, int, int]:
    state = os.lstat(path)
    return state.st_mode, state.st_uid, state.st_gid


@pytest.mark.parametrize("name", ["attic/bare.git", "store", ".git", "split/.git", "hollow/.git"])
def test_repositories_are_shown_guarded(field: Siege, name: str) -> None:
    project = field.project()
    kind = os.lstat(project / name).st_mode & 0o170000
    for actor in ("agent", "fake root", "root"):
        # In a user namespace root itself is not mapped and shows as the overflow id.
        owner = 65534 if actor == "fake root" else 0
        view = field.through_guard(project)
        assert act(actor, _look, view / name) == (kind, owner, owner)
        is_listed = Path(name).name in act(actor, os.listdir, (view / name).parent)
        assert is_listed == (Path(name).name != ".git")


def test_a_bare_repository_made_by_the_host_is_guarded_at_once(field: Siege) -> None:
    """The guest has the directory cached as an ordinary one; still no new open succeeds."""
    project = field.project()
    view = field.through_guard(project, "--cache-timeout=0")
    as_user((view / "src/main.py").read_bytes)
    git(project / "src", "init", "--quiet", "--bare", ".")
    for name in ("config", "main.py"):
        with pytest.raises(PermissionError) as refused:
            as_user((view / "src" / name).read_bytes)
        assert refused.value.errno == errno.EACCES


@pytest.mark.parametrize("actor", ["agent", "root"])
@pytest.mark.parametrize("two_guards", [False, True], ids=["one guard", "two guards"])
@pytest.mark.every_processor
def test_two_processes_never_get_both(field: Siege, actor: str, two_guards: bool) -> None:
    project = field.project()
    bare = field.project()
    _, _, both = act("host", race, bare, bare, 60)
    assert both, "without a guard the race has to end with both"
    view = field.through_guard(project)
    second = field.through_guard(project, "--cache-timeout=0") if two_guards else view
    heads, others, both = act(actor, race, view, second, RACE_ROUNDS)
    assert both == []
    came_through = heads + others
    # Two guards may each see the other's name, and both take back their own.
    assert came_through > RACE_ROUNDS / 2 if two_guards else came_through == RACE_ROUNDS


@pytest.mark.parametrize("actor", ["agent", "root"])
@pytest.mark.every_processor
def test_what_is_moved_to_head_cannot_be_exchanged_in_time(field: Siege, actor: str) -> None:
    """A directory may be called HEAD, but it could be replaced by a file just before the rename."""
    project = field.project()
    planted = field.project()
    assert act("host", exchange_race, planted, planted, 400 * RACE_ROUNDS)
    view = field.through_guard(project)
    second = field.through_guard(project, "--cache-timeout=0")
    assert not act(actor, exchange_race, view, second, 4 * RACE_ROUNDS)
    assert sorted(os.listdir(project / "race")) == ["directory", "file", "refs"]


# ---------------------------------------------------------------------------------- Other spellings

GIT_NAMES = tuple(map(os.fsencode, SPELLINGS))
ORDINARY_NAMES = tuple(map(os.fsencode, ORDINARY))


def _mkdir(spot: bytes, name: bytes) -> None:
    os.mkdir(spot + b"/" + name)


def _create(spot: bytes, name: bytes) -> None:
    os.close(os.open(spot + b"/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _rename_directory(spot: bytes, name: bytes) -> None:
    os.rename(spot + b"/directory", spot + b"/" + name)


def _rename_file(spot: bytes, name: bytes) -> None:
    os.rename(spot + b"/file", spot + b"/" + name)


def _link(spot: bytes, name: bytes) -> None:
    os.link(spot + b"/file", spot + b"/" + name)


def _symlink(spot: bytes, name: bytes) -> None:
    os.symlink(b"file", spot + b"/" + name)


def _mkfifo(spot: bytes, name: bytes) -> None:
    os.mkfifo(spot + b"/" + name)


MAKING = (_mkdir, _create, _rename_directory, _rename_file, _link, _symlink, _mkfifo)


STOP_GIT = {
    (b".gitignore", "_mkfifo"),
    (b".gitattributes", "_mkfifo"),
    (b".gitmodules", "_mkfifo"),
    (b".gitmodules", "_symlink"),
}
"""Names that git on the host would open and wait for."""


def _try_each(
    spot: Path, names: tuple[bytes, ...], ways: tuple[Callable[[bytes, bytes], None], ...]
) -> list[tuple[bytes, str, int | None]]:
    """Make each name in each way. Returns the errno of each, None if it was made."""
    outcomes: list[tuple[bytes, str, int | None]] = []
    for way in ways:
        place = bytes(spot) + b"/" + way.__name__.encode()
        for number, name in enumerate(names):
            own = place + b"%d" % number
            os.mkdir(own)
            os.mkdir(own + b"/directory")
            os.close(os.open(own + b"/file", os.O_CREAT | os.O_WRONLY))
            try:
                way(own, name)
            except OSError as error:
                outcomes.append((name, way.__name__, error.errno))
            else:
                assert name in os.listdir(own), (name, way.__name__)
                outcomes.append((name, way.__name__, None))
    return outcomes


def test_n_every_spelling_can_be_made_without_the_guard(field: Siege) -> None:
    spot = field.through_bindfs(field.project()) / "src"
    outcomes = as_user(_try_each, spot, GIT_NAMES, MAKING)
    assert [made for made in outcomes if made[2] is not None] == []


@pytest.mark.parametrize("actor", ["agent", "fake root", "root"])
def test_n_no_spelling_can_be_made(field: Siege, actor: str) -> None:
    project = field.project()
    spot = field.through_guard(project) / "src"
    outcomes = act(actor, _try_each, spot, GIT_NAMES, MAKING)
    assert [made for made in outcomes if made[2] != errno.EACCES] == []
    left = {tuple(sorted(os.listdir(place))) for place in (project / "src").glob("_*")}
    assert left == {("directory", "file")}


@pytest.mark.parametrize("actor", ["agent", "root"])
def test_n_ordinary_names_stay_usable(field: Siege, actor: str) -> None:
    spot = field.through_guard(field.project()) / "src"
    outcomes = act(actor, _try_each, spot, ORDINARY_NAMES, MAKING)
    assert {made[:2] for made in outcomes if made[2] is not None} == STOP_GIT


def _reach(directory: bytes, name: bytes) -> list[int | None]:
    """Try to reach a directory ``name`` that holds a file ``inner``."""
    path = directory + b"/" + name

    def read() -> None:
        with open(path + b"/inner") as file:
            file.read()

    def write() -> None:
        with open(path + b"/new", "w") as file:
            file.write("new")

    def rename() -> None:
        os.rename(path, directory + b"/away")

    outcomes: list[int | None] = []
    for step in (lambda: os.listdir(path), read, write, rename):
        try:
            step()
        except OSError as error:
            outcomes.append(error.errno)
        else:
            outcomes.append(None)
    return outcomes


@pytest.mark.parametrize("actor", ["agent", "fake root", "root"])
def test_n_spellings_made_by_the_host_are_guarded(field: Siege, actor: str) -> None:
    project = field.project()
    for number, name in enumerate(GIT_NAMES):
        place = bytes(project) + b"/%d/" % number + name
        os.makedirs(place)
        with open(place + b"/inner", "w") as file:
            file.write("inside")
        for path in (os.path.dirname(place), place, place + b"/inner"):
            os.chown(path, 501, 20)
    view = bytes(field.through_guard(project))
    wrong = {}
    for number, name in enumerate(GIT_NAMES):
        outcomes = act(actor, _reach, view + b"/%d" % number, name)
        if outcomes != [errno.EACCES] * 4:
            wrong[name] = outcomes
    assert wrong == {}


@pytest.mark.parametrize("actor", ["agent", "fake root", "root"])
def test_n_another_name_of_the_same_object_is_guarded(field: Siege, actor: str) -> None:
    """The host's ``.git`` file has a second link; git would not look at it, but it is the same."""
    project = field.project()
    (project / "split/alias").hardlink_to(project / "split/.git")
    before = metadata(project)
    plain = field.through_bindfs(project)
    assert b"gitdir" in as_user((plain / "split/alias").read_bytes)
    view = field.through_guard(project)
    for step in (
        (view / "split/alias").read_bytes,
        (view / "split/alias").unlink,
        lambda: (view / "split/alias").rename(view / "alias"),
        lambda: os.truncate(view / "split/alias", 0),
    ):
        with pytest.raises(PermissionError) as refused:
            act(actor, step)
        assert refused.value.errno == errno.EACCES
    assert differences(before, metadata(project)) == []
    check_git_works(project)
