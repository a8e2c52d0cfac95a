"""Attacks on git on the host: while it works, while it makes a repository, and by names that it
restores later.

Each is first carried out where the guard is off, and has to succeed there.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import attacks_host_git as attacks
from tests.support.attacks import HEAD_TEXT
from tests.support.mounting import LIMIT, Mounted, area, gitguardfs, until
from tests.support.people import as_user
from tests.support.raw_calls import MNT_DETACH, umount
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host, copy_project, git, git_environment
from tests.support.siege import mount_memory

FILES = 600
"""Files of the tracked directory: with so many, git is slow enough to be raced."""

ATTEMPTS = 15
OFF = ("--git=off", "--allow-bare")

pytestmark = pytest.mark.every_processor


@dataclass
class Ground:
    """Projects of the host's, and two views of all of them."""

    place: Path
    guarded: Mounted
    unguarded: Mounted
    original: Path
    copies: int = 0

    def project(self) -> Path:
        self.copies += 1
        return copy_project(self.original, self.guarded.source / str(self.copies))

    def view(self, project: Path, guarded: bool) -> Path:
        return (self.guarded if guarded else self.unguarded).path / project.name


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with area() as place, ExitStack() as mounts:
        (place / "all").mkdir()
        (place / "outside").mkdir()
        if mount_memory(place / "all"):
            mounts.callback(umount, place / "all", MNT_DETACH)
        for path in (place / "all", place / "outside"):
            os.chown(path, HOST_UID, HOST_GID)
        original = _make_original(place / "original")
        (place / "marks").mkdir(mode=0o777)
        (place / "marks").chmod(0o777)
        with (
            gitguardfs(place / "all", place / "guarded", "--map", MAP) as guarded,
            gitguardfs(place / "all", place / "off", "--map", MAP, *OFF) as unguarded,
        ):
            guarded.expected.append("git on the host is at work")
            yield Ground(place, guarded, unguarded, original)


def _make_original(path: Path) -> Path:
    path.mkdir()
    os.chown(path, HOST_UID, HOST_GID)
    git(path, "init", "--quiet", "--template=", "--initial-branch=main")
    git(path, "init", "--quiet", "--template=", "--bare", "store.git")
    with as_host():
        (path / "p/d").mkdir(parents=True)
        for number in range(FILES):
            (path / f"p/d/a{number:04}").write_text("text\n")
        (path / "p/d/post-checkout").write_text('#!/bin/sh\ntouch "$MARK"\n')
        (path / "p/d/post-checkout").chmod(0o755)
        (path / ".git/hooks").mkdir()
        (path / "store.git/hooks").mkdir()
        (path / "meta").symlink_to(".git")
        (path / ".gitignore").write_text("/*\n!/p/\n")
    git(path, "add", "-f", "p")
    git(path, "commit", "--quiet", "--message=first")
    return path


def _started(directory: Path, *command: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command of the host's user with git's environment."""
    return subprocess.Popen(
        command,
        cwd=directory,
        env=git_environment() | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=HOST_UID,
        group=HOST_GID,
        extra_groups=[],
    )


@contextmanager
def host_when_ready(project: Path, mark: Path, *command: str) -> Iterator[None]:
    """Run git on the host as soon as there is a file called ready in the project."""
    script = 'while ! [ -e ready ]; do sleep 0.01; done; exec git "$@"'
    process = _started(project, "sh", "-c", script, "sh", *command, MARK=str(mark))
    try:
        yield
    finally:
        process.wait(LIMIT)


# ------------------------------------------------------------------- While git writes

TARGETS: dict[str, Callable[[Path, Path], str]] = {
    "by its name": lambda project, outside: "../.git/hooks",
    "by its path on the host": lambda project, outside: f"{project}/.git/hooks",
    "through a link of the host's": lambda project, outside: "../meta/hooks",
    "a bare repository": lambda project, outside: "../store.git/hooks",
    "a bare repository, by its path": lambda project, outside: f"{project}/store.git/hooks",
    "by a link that comes later": lambda project, outside: "../later/store.git/hooks",
}
OUT_OF_THE_SHARE: dict[str, Callable[[Path, Path], str]] = {
    "an absolute path": lambda project, outside: str(outside),
    "a path that climbs out": lambda project, outside: f"../../../outside/{outside.name}",
}
CASES = [
    *((target, text, attacks.by_two_renames) for target, text in TARGETS.items()),
    *(
        (target, text, swap)
        for target, text in OUT_OF_THE_SHARE.items()
        for swap in attacks.SWAPS
        if swap is attacks.by_two_renames or target == "an absolute path"
    ),
]
cases = pytest.mark.parametrize(
    ("target", "text", "swap"), CASES, ids=lambda it: getattr(it, "__name__", it)
)


def _led_elsewhere(
    ground: Ground, text: Callable[[Path, Path], str], swap: attacks.Swap, guarded: bool
) -> bool:
    """Attack one checkout. Returns whether git wrote or ran what it must not."""
    project, mark = ground.project(), ground.place / f"marks/{ground.copies}"
    outside = ground.place / f"outside/{ground.copies}"
    with as_host():
        outside.mkdir()
    with host_when_ready(project, mark, "checkout", "."):
        as_user(
            attacks.swap_while_git_writes,
            ground.view(project, guarded),
            text(project, outside),
            swap,
            LIMIT,
        )
    places = (outside, project / ".git/hooks", project / "store.git/hooks")
    led = mark.exists() or any(os.listdir(place) for place in places)
    shutil.rmtree(project)
    return led


@cases
def test_git_is_led_elsewhere_without_the_guard(
    ground: Ground, target: str, text: Callable[[Path, Path], str], swap: attacks.Swap
) -> None:
    assert any(_led_elsewhere(ground, text, swap, guarded=False) for _ in range(ATTEMPTS))


@cases
def test_git_is_not_led_elsewhere(
    ground: Ground, target: str, text: Callable[[Path, Path], str], swap: attacks.Swap
) -> None:
    assert not any(_led_elsewhere(ground, text, swap, guarded=True) for _ in range(2))


def _swap_and_back(view: Path) -> list[int | None]:
    outcomes: list[int | None] = []
    os.symlink("/nowhere", view / "link")
    for step in (
        lambda: attacks.by_exchange(view / "p/d", view / "link"),
        lambda: attacks.by_exchange(view / "link", view / "p/d"),
    ):
        try:
            step()
        except OSError as error:
            outcomes.append(error.errno)
        else:
            outcomes.append(None)
    return outcomes


def test_a_symlink_and_a_directory_are_never_exchanged(ground: Ground) -> None:
    view = ground.view(ground.project(), guarded=True)
    assert as_user(_swap_and_back, view) == [errno.EACCES, errno.EACCES]


def _link_where_it_was_moved(view: Path) -> int | None:
    os.chdir(view / "p/d")
    os.listdir()  # the view keeps it open from now on
    (view / "ready").touch()
    while not (view / "moved").exists():
        os.stat(view)
    try:
        os.symlink("../meta/hooks", "link")
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("guarded", [False, True])
def test_who_stays_in_a_moved_directory_makes_no_link_into_git(
    ground: Ground, guarded: bool
) -> None:
    """From the directory's old place, the link would lead nowhere."""
    project = ground.project()
    script = "while ! [ -e ready ]; do sleep 0.01; done; mv p/d elsewhere && touch moved"
    with as_host():
        host = subprocess.Popen(["sh", "-c", script], cwd=project)
    try:
        told = as_user(_link_where_it_was_moved, ground.view(project, guarded))
    finally:
        assert host.wait(LIMIT) == 0
    assert told == (errno.EACCES if guarded else None)
    assert (project / "elsewhere/link").is_symlink() is not guarded


# ---------------------------------------------------------- While git makes a repository

MAKING = {
    "init": ("init", "--quiet", "--bare", "new"),
    "clone": ("clone", "--quiet", "--bare", ".", "new"),
    "separate": ("init", "--quiet", "--separate-git-dir=new", "tree"),
}


def _template(ground: Ground) -> Path:
    """A template so large that making a repository is slow enough to be raced."""
    template = ground.place / "template"
    if not template.exists():
        (template / "hooks").mkdir(parents=True)
        for number in range(300):
            (template / f"hooks/h{number}.sample").write_text("text\n")
    return template


def _plants_a_hook(ground: Ground, command: tuple[str, ...], guarded: bool) -> bool:
    """Attack the making of one repository. Returns whether git keeps the agent's hook."""
    project, mark = ground.project(), ground.place / f"marks/{ground.copies}"
    command = (command[0], f"--template={_template(ground)}", *command[1:])
    with host_when_ready(project, mark, *command):
        as_user(
            attacks.plant_while_git_makes,
            ground.view(project, guarded),
            "new",
            f"touch {mark}",
            LIMIT,
        )
    assert (project / "new/HEAD").exists()
    if not (project / "new/hooks/post-update").exists():
        return False
    git(project, "push", "--quiet", "./new", "HEAD:refs/heads/pushed")
    return mark.exists()


@pytest.mark.parametrize("way", MAKING)
def test_a_repository_that_is_made_is_poisoned_without_the_guard(ground: Ground, way: str) -> None:
    assert any(_plants_a_hook(ground, MAKING[way], guarded=False) for _ in range(ATTEMPTS))


@pytest.mark.parametrize("way", MAKING)
def test_a_repository_that_is_made_is_not_poisoned(ground: Ground, way: str) -> None:
    assert not any(_plants_a_hook(ground, MAKING[way], guarded=True) for _ in range(2))


def _poisons_under_a_reused_number(ground: Ground, guarded: bool) -> bool:
    """Attack a new directory whose inode number an empty one of the agent's had before.

    Which number it gets is up to the file system. So the host moves the agent's directory there.
    """
    project, mark = ground.project(), ground.place / f"marks/{ground.copies}"
    view = ground.view(project, guarded)
    as_user(os.mkdir, view / "mine")
    with as_host():
        (project / "mine").rename(project / "new")
    with host_when_ready(project, mark, "init", "--quiet", "--bare", "new"):
        as_user(attacks.plant_after_a_chmod, view, "new", f"touch {mark}")
    assert (project / "new/HEAD").exists()
    git(project, "push", "--quiet", "./new", "HEAD:refs/heads/pushed")
    return mark.exists()


def test_a_chmod_makes_no_directory_the_agent_s(ground: Ground) -> None:
    assert _poisons_under_a_reused_number(ground, guarded=False)
    assert not _poisons_under_a_reused_number(ground, guarded=True)


ABOVE = (attacks.by_exchange, attacks.by_two_renames)


def _goes_on_elsewhere(
    ground: Ground, swap: attacks.Swap, guarded: bool, others: int = 0
) -> tuple[bool, int | None]:
    """Attack the making of ``p/new``. Returns whether git ran the hook, and the agent's errno.

    ``others`` is the number of directories in a directory beside it.
    """
    project, mark = ground.project(), ground.place / f"marks/{ground.copies}"
    with as_host():
        for number in range(others):
            (project / f"p/more/{number}").mkdir(parents=True)
    command = ("init", f"--template={_template(ground)}", "--quiet", "--bare", "p/new")
    with host_when_ready(project, mark, *command):
        told = as_user(
            attacks.swap_above_what_git_makes,
            ground.view(project, guarded),
            swap,
            f"touch {mark}",
            LIMIT,
        )
    if (project / "p/new/HEAD").exists():
        git(project, "push", "--quiet", "./p/new", "HEAD:refs/heads/pushed")
    return mark.exists(), told


def test_git_goes_on_in_a_prepared_directory_without_the_guard(ground: Ground) -> None:
    """Only by an exchange: between two renames git mostly finds nothing, and ends."""
    swap = attacks.by_exchange
    assert any(_goes_on_elsewhere(ground, swap, guarded=False)[0] for _ in range(ATTEMPTS))


@pytest.mark.parametrize("swap", ABOVE)
def test_what_is_above_a_repository_that_is_made_stays(ground: Ground, swap: attacks.Swap) -> None:
    for _ in range(2):
        assert _goes_on_elsewhere(ground, swap, guarded=True) == (False, errno.EACCES)


@pytest.mark.parametrize("swap", ABOVE)
def test_so_it_does_where_there_is_too_much_to_be_looked_through(
    ground: Ground, swap: attacks.Swap
) -> None:
    """It is never exchanged; if it is moved away, the next rename waits for git to end."""
    poisoned, told = _goes_on_elsewhere(ground, swap, guarded=True, others=1000)
    assert not poisoned
    assert told == errno.EACCES or (told is None and swap is attacks.by_two_renames)


# ------------------------------------------------------- While git uses a repository by its path

EDITOR = "touch editing; while ! [ -e edited ]; do sleep 0.01; done; echo text >>"
"""What ``git commit`` starts, in the work tree, while it keeps the path of its repository."""


def _runs_a_hook_elsewhere(
    ground: Ground, swap: Callable[[Path], None], guarded: bool, pads: bool
) -> tuple[bool, bool]:
    """Attack a commit in ``tree``, whose repository is ``top/p/x/real``.

    Returns whether git ran the agent's hook, and whether the agent was refused.
    """
    project, mark = ground.project(), ground.place / f"marks/{ground.copies}"
    with as_host():
        (project / "top/p/x").mkdir(parents=True)
    git(project, "init", "--quiet", "--template=", "--separate-git-dir=top/p/x/real", "tree")
    command = ("git", "commit", "--quiet", "--allow-empty")
    process = _started(project / "tree", *command, GIT_EDITOR=EDITOR)
    view, refused = ground.view(project, guarded), False
    try:
        until(lambda: (project / "tree/editing").exists(), "git starts the editor")
        as_user(attacks.lead_git_elsewhere, view, swap, f"touch {mark}", pads)
    except PermissionError:
        refused = True
    finally:
        with as_host():
            (project / "tree/edited").touch()
        process.wait(LIMIT)
    return mark.exists(), refused


ways_to_lead = pytest.mark.parametrize("swap", attacks.LEADING, ids=lambda one: one.__name__)


@ways_to_lead
def test_git_is_led_to_hooks_without_the_guard(
    ground: Ground, swap: Callable[[Path], None]
) -> None:
    assert _runs_a_hook_elsewhere(ground, swap, guarded=False, pads=False) == (True, False)


@ways_to_lead
@pytest.mark.parametrize("pads", [False, True], ids=["small", "large"])
def test_git_is_not_led_to_hooks(ground: Ground, swap: Callable[[Path], None], pads: bool) -> None:
    """If the directory is too large to be searched, it may move; only the symlink is refused."""
    assert _runs_a_hook_elsewhere(ground, swap, guarded=True, pads=pads) == (False, True)


def test_a_symlink_takes_the_place_of_a_large_directory_without_repository(ground: Ground) -> None:
    view = ground.view(ground.project(), guarded=True)
    as_user(attacks.replace_large_by_symlink, view)
    assert (view / "modules").is_symlink()


# ------------------------------------------------------------------ Names that git restores

RESTORED: list[tuple[Callable[[Path, str], None], tuple[str, ...]]] = [
    (attacks.remove_refs, ("lib/refs/keep",)),
    (attacks.remove_head, ("lib/HEAD",)),
    (attacks.remove_head_and_keep_objects, ("lib/HEAD", "lib/objects/keep")),
    (attacks.move_head_away, ("lib/HEAD", "lib/objects/keep")),
    (attacks.replace_head_and_remove_it, ("lib/HEAD", "lib/objects/keep")),
    (attacks.move_the_directory_away, ("lib/HEAD", "lib/objects/keep")),
    (attacks.move_the_parent_away, ("deep/lib/HEAD", "deep/lib/objects/keep")),
    (attacks.move_a_prepared_directory_there, ("lib/HEAD", "lib/objects/keep")),
    (attacks.exchange_it_with_a_prepared_parent, ("deep/lib/HEAD", "deep/lib/objects/keep")),
    (attacks.move_a_large_prepared_parent_there, ("deep/lib/HEAD", "deep/lib/objects/keep")),
    (attacks.add_commondir, ("lib/HEAD",)),
]
restored = pytest.mark.parametrize(
    ("strike", "tracked"), RESTORED, ids=[strike.__name__ for strike, _ in RESTORED]
)


def _with_tracked(ground: Ground, tracked: tuple[str, ...]) -> Path:
    project = ground.project()
    with as_host():
        for name in tracked:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(HEAD_TEXT)
    git(project, "add", "-f", *tracked)
    git(project, "commit", "--quiet", "--message=more")
    return project


def _restore_and_look(ground: Ground, project: Path, top: str, *restore: str) -> bool:
    """Let git restore tracked files and run there. Returns whether it ran the agent's command."""
    git(project, *restore)
    subprocess.run(
        ["git", "status"],
        cwd=project / top,
        env=git_environment(),
        capture_output=True,
        user=HOST_UID,
        group=HOST_GID,
        extra_groups=[],
        timeout=LIMIT,
    )
    return (ground.place / f"marks/{project.name}").exists()


def _top(tracked: tuple[str, ...]) -> str:
    return tracked[0].partition("lib/")[0] + "lib"


@restored
def test_git_completes_a_repository_without_the_guard(
    ground: Ground, strike: Callable[[Path, str], None], tracked: tuple[str, ...]
) -> None:
    project = _with_tracked(ground, tracked)
    view = ground.view(project, guarded=False)
    as_user(strike, view, f"touch {ground.place}/marks/{project.name}")
    assert _restore_and_look(ground, project, _top(tracked), "checkout", ".")


@restored
def test_nothing_is_left_for_git_to_complete(
    ground: Ground, strike: Callable[[Path, str], None], tracked: tuple[str, ...]
) -> None:
    project = _with_tracked(ground, tracked)
    view = ground.view(project, guarded=True)
    with pytest.raises(PermissionError) as refused:
        as_user(strike, view, f"touch {ground.place}/marks/{project.name}")
    assert refused.value.errno == errno.EACCES
    assert not _restore_and_look(ground, project, _top(tracked), "checkout", ".")


@pytest.mark.parametrize("guarded", [False, True])
def test_what_was_committed_meanwhile_is_restored_as_well(ground: Ground, guarded: bool) -> None:
    """The attacker made the names, and the host has found nothing wrong with them."""
    project = ground.project()
    view = ground.view(project, guarded)
    as_user(attacks.make_head_and_objects, view)
    git(project, "add", "-f", "lib")
    git(project, "commit", "--quiet", "--message=more")
    command = f"touch {ground.place}/marks/{project.name}"
    if guarded:
        with pytest.raises(PermissionError):
            as_user(attacks.remove_head_and_keep_objects, view, command)
    else:
        as_user(attacks.remove_head_and_keep_objects, view, command)
    assert _restore_and_look(ground, project, "lib", "checkout", ".") is not guarded


@pytest.mark.parametrize("guarded", [False, True])
def test_another_branch_completes_nothing(ground: Ground, guarded: bool) -> None:
    project = _with_tracked(ground, ("lib/refs/keep", "lib/objects/keep"))
    git(project, "switch", "--quiet", "--detach", "HEAD~")
    view = ground.view(project, guarded)
    command = f"touch {ground.place}/marks/{project.name}"
    if guarded:
        with pytest.raises(PermissionError):
            as_user(attacks.add_to_another_branch, view, command)
    else:
        as_user(attacks.add_to_another_branch, view, command)
    ran = _restore_and_look(ground, project, "lib", "switch", "--quiet", "main")
    assert ran is not guarded


# ------------------------------------------------------- Special files that git waits for

OPENED_BY = {
    "p/HEAD": "status",
    ".gitignore": "status",
    "p/.gitattributes": "status",
    ".mailmap": "log",
    ".gitmodules": "fetch",
}
STOPS = [
    *((name, stop) for name in OPENED_BY for stop in attacks.STOPPED_BY),
    (".gitmodules", attacks.by_a_symlink_to_a_fifo),
]
stops = pytest.mark.parametrize(("name", "stop"), STOPS, ids=lambda it: getattr(it, "__name__", it))


def _is_stopped(project: Path, name: str) -> bool:
    """Run git on the host. Returns whether it waits for a writer of the FIFO of that name."""
    process = _started((project / name).parent, "git", OPENED_BY[name])
    try:
        while process.poll() is None:
            with suppress(OSError):  # ENXIO: nobody reads it
                os.close(os.open(project / name, os.O_WRONLY | os.O_NONBLOCK))
                return not stat.S_ISREG((project / name).stat().st_mode)
        return False
    finally:
        process.kill()
        process.wait(LIMIT)


@stops
def test_git_waits_for_ever_without_the_guard(
    ground: Ground, name: str, stop: Callable[[Path], None]
) -> None:
    project = ground.project()
    (project / ".gitignore").unlink()
    as_user(stop, ground.view(project, guarded=False) / name)
    assert _is_stopped(project, name)


@stops
def test_git_never_waits(ground: Ground, name: str, stop: Callable[[Path], None]) -> None:
    project = ground.project()
    (project / ".gitignore").unlink()
    with pytest.raises(PermissionError) as refused:
        as_user(stop, ground.view(project, guarded=True) / name)
    assert refused.value.errno == errno.EACCES
    assert not _is_stopped(project, name)


# ---------------------------------------------------------------------- What still works


def _links(view: Path) -> None:
    (view / "node_modules/.bin").mkdir(parents=True)
    (view / "node_modules/tool/hooks").mkdir(parents=True)
    (view / "node_modules/tool/cli.js").write_text("")
    (view / "node_modules/tool/config").write_text("")
    (view / "node_modules/.bin/tool").symlink_to("../tool/cli.js")
    (view / "node_modules/linked").symlink_to("../../../../elsewhere/package")
    store = view / "node_modules/.pnpm/tool@1/node_modules"
    store.mkdir(parents=True)
    (store / "tool").symlink_to("../../../tool")
    os.link(view / "node_modules/tool/cli.js", store / "cli.js")
    (view / "node_modules/.tool-x1").mkdir()
    (view / "node_modules/.tool-x1/config").write_text("")
    (view / "node_modules/.tool-x1").rename(view / "node_modules/renamed")
    (view / "current").symlink_to("p")
    for target in ("node_modules", "p/d", "nothing/there"):
        subprocess.run(["ln", "-sfn", target, view / "current"], check=True)
    (view / "python").symlink_to("/usr/bin/python3")
    (view / ".#lock").symlink_to("user@host.1234:56789")
    os.link(view / "python", view / "python3", follow_symlinks=False)
    (view / "python3").rename(view / "p/python3")
    for name in ("api/refs", "api/objects", "src/objects", "src/hooks"):
        (view / name).mkdir(parents=True)
    (view / "src/config").write_text("")
    (view / "src/HEAD.md").write_text("")


def test_ordinary_links_and_trees_are_not_hurt(ground: Ground) -> None:
    as_user(_links, ground.view(ground.project(), guarded=True))


def _venv(view: Path) -> None:
    python = f"/usr/bin/python3.{sys.version_info[1]}"
    if not os.path.exists(python):
        python = "/usr/bin/python3"
    subprocess.run([python, "-m", "venv", "--without-pip", view / "venv"], check=True)
    subprocess.run([view / "venv/bin/python", "-c", ""], check=True)


def test_a_virtual_environment_can_be_made(ground: Ground) -> None:
    view = ground.view(ground.project(), guarded=True)
    as_user(_venv, view)
    assert as_user(os.readlink, view / "venv/lib64") == "lib"


def _add_sources(view: Path) -> None:
    for number in range(20):
        (view / f"src/new{number}").write_text("")
        (view / f"src/objects/new{number}").write_text("")
        (view / f"api/refs/new{number}.json").write_text("")


def test_trees_of_the_host_s_that_resemble_a_repository_are_not_hurt(ground: Ground) -> None:
    project = ground.project()
    with as_host():
        for name in ("src/objects", "api/refs", "api/objects"):
            (project / name).mkdir(parents=True)
        for name in ("src/main.c", "api/index.html", "src/objects/a.o"):
            (project / name).write_text("")
    as_user(_add_sources, ground.view(project, guarded=True))


def _build(view: Path, rounds: int) -> None:
    for number in range(rounds):
        out = view / f"out{number}"
        (out / "tmp").mkdir(parents=True)
        for name in ("a.o", "b.o", "config"):
            (out / "tmp" / name).write_text("object\n")
        (out / "tmp").rename(out / "done")
        (out / "latest").symlink_to("done/a.o")
        (out / "latest").rename(out / "link")


def test_a_build_works_while_the_host_switches_branches(ground: Ground) -> None:
    project = ground.project()
    git(project, "switch", "--quiet", "--orphan", "other")
    with as_host():
        (project / "p").mkdir(exist_ok=True)
        (project / "p/config").write_text("other\n")
    git(project, "add", "-f", "p/config")
    git(project, "commit", "--quiet", "--message=other")
    script = "while ! [ -e stop ]; do git switch -q main && git switch -q other || exit 1; done"
    switching = _started(project, "sh", "-c", script)
    try:
        as_user(_build, ground.view(project, guarded=True), 40)
    finally:
        (project / "stop").touch()
        assert switching.wait(LIMIT) == 0


def _make_link(view: Path) -> int | None:
    try:
        (view / "link").symlink_to("p")
    except OSError as error:
        return error.errno
    return None


def test_a_lock_that_is_left_behind_is_named_and_then_fails_at_once(ground: Ground) -> None:
    project = ground.project()
    with as_host():
        (project / ".git/index.lock").touch()
    view = ground.view(project, guarded=True)
    assert as_user(_make_link, view) == errno.EBUSY
    assert as_user(_make_link, view) == errno.EBUSY
    told = f"the lock of {project.name}/.git is"
    lines = [line for line in ground.guarded.log.read_text().splitlines() if told in line]
    assert len(lines) == 1
    assert f"rm {project.name}/.git/index.lock" in lines[0]
    (project / ".git/index.lock").unlink()
    assert as_user(_make_link, view) is None
