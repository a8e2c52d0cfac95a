"""Attacks on git and other programs on the host: by links, by halves of repositories, by FIFOs.

Each is first carried out where the guard is off, and has to succeed there. No attack depends on
who is faster: git on the host waits where the attacker needs it to.
"""

import errno
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import attacks_host_git as attacks
from tests.support.contained import leading_out
from tests.support.mounting import LIMIT, Mounted, area, gitguardfs, until
from tests.support.people import as_user
from tests.support.raw_calls import MNT_DETACH, umount
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host, copy_project, git, git_environment
from tests.support.siege import mount_memory

OFF = ("--git=off", "--allow-bare")
OF_THE_HOST = ("ext", "meta")
"""Links in the project that the host has made: the guard leaves them alone."""


@dataclass
class Ground:
    """Projects of the host's, and two views of all of them."""

    place: Path
    guarded: Mounted
    unguarded: Mounted
    original: Path
    copies: int = 0

    def project(self) -> Path:
        """Make a copy of the project on the source, and a directory outside of it."""
        self.copies += 1
        project = copy_project(self.original, self.guarded.source / str(self.copies))
        with as_host():
            (self.outside(project) / "new/.git").mkdir(parents=True)
            for name in ("precious", "new/keep", "new/.git/config"):
                (self.outside(project) / name).write_text("text\n")
            (project / "ext").symlink_to(self.outside(project))
        return project

    def outside(self, project: Path) -> Path:
        return self.place / f"outside/{project.name}"

    def view(self, project: Path, guarded: bool) -> Path:
        return (self.guarded if guarded else self.unguarded).path / project.name

    def mark(self, project: Path) -> Path:
        return self.place / f"marks/{project.name}"


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with area() as place, ExitStack() as mounts:
        for name in ("all", "outside", "subsource"):
            (place / name).mkdir()
            if name == "all" and mount_memory(place / name):
                mounts.callback(umount, place / name, MNT_DETACH)
            os.chown(place / name, HOST_UID, HOST_GID)
        original = _make_original(place)
        (place / "marks").mkdir(mode=0o777)
        (place / "marks").chmod(0o777)
        with (
            gitguardfs(place / "all", place / "guarded", "--map", MAP) as guarded,
            gitguardfs(place / "all", place / "off", "--map", MAP, *OFF) as unguarded,
        ):
            yield Ground(place, guarded, unguarded, original)


WAIT = 'touch "$READY"; while ! [ -e "$GO" ]; do sleep 0.01; done; '
"""What git on the host runs in the middle of its work, so that the attacker has time enough."""


def _make_original(place: Path) -> Path:
    path, subsource = place / "original", place / "subsource"
    path.mkdir()
    os.chown(path, HOST_UID, HOST_GID)
    init = ("init", "--quiet", "--template=", "--initial-branch=main")
    for repository in (path, subsource):
        git(repository, *init)
    with as_host():
        (subsource / "tracked").write_text("text\n")
        (place / "subsource/.git/upload-pack").write_text(
            f'#!/bin/sh\n{WAIT}exec git-upload-pack "$@"\n'
        )
        (place / "subsource/.git/upload-pack").chmod(0o755)
        (path / "p/d").mkdir(parents=True)
        for name in ("a", "b"):
            (path / "p/d" / name).write_text("text\n")
        (path / "p/d/post-checkout").write_text('#!/bin/sh\ntouch "$MARK"\n')
        (path / "p/d/post-checkout").chmod(0o755)
        (path / "meta").symlink_to(".git")
        (path / ".gitignore").write_text("/*\n!/p/\n")
    git(subsource, "add", ".")
    git(subsource, "commit", "--quiet", "--message=first")
    git(path, *init, "--bare", "store.git")
    local = ("-c", "protocol.file.allow=always")
    git(path, *local, "submodule", "--quiet", "add", "--force", str(subsource), "libs/sub")
    git(path, "add", "-f", "p")
    git(path, "commit", "--quiet", "--message=first")
    git(path, "config", "filter.wait.smudge", f"{WAIT}cat")
    with as_host():
        for repository in (".git", "store.git"):
            (path / repository / "hooks").mkdir()
        (path / ".git/info").mkdir(exist_ok=True)
        (path / ".git/info/attributes").write_text("/p/d/a filter=wait\n")
    return path


def _started(
    directory: Path, *command: str, stderr: int = subprocess.DEVNULL, **environment: str
) -> subprocess.Popen[bytes]:
    """Start a command of the host's user with git's environment."""
    return subprocess.Popen(
        command,
        cwd=directory,
        env=git_environment() | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        user=HOST_UID,
        group=HOST_GID,
        extra_groups=[],
    )


def _run(directory: Path, *command: str) -> None:
    """Run a command of the host's, which may fail and waits for nobody."""
    _started(directory, *command, READY="/dev/null", GO="/").wait(LIMIT)


def _tree(top: Path) -> dict[str, str]:
    """Return all files and directories below ``top``, with their texts."""
    return {str(it): it.read_text() if it.is_file() else "" for it in top.rglob("*")}


def _led_out(ground: Ground, project: Path) -> list[str]:
    return leading_out(ground.guarded.source / project.name, [project / it for it in OF_THE_HOST])


# ------------------------------------------------------- Links in the place of what git uses

Host = Callable[[Ground, Path, Callable[[], None]], None]
"""What the host does; it lets the agent attack by the function at the end, at the right moment."""


def _after(directory: str, *command: str) -> Host:
    """Run a command once the attack is over."""

    def run(ground: Ground, project: Path, strike: Callable[[], None]) -> None:
        strike()
        _run(project / directory, *command)

    return run


def clone_and_interrupt(ground: Ground, project: Path, strike: Callable[[], None]) -> None:
    """Git then removes what it has made, by its path."""
    repository, mark = ground.place / "subsource", ground.mark(project)
    ready, go = mark.with_suffix(".ready"), mark.with_suffix(".go")
    command = ("git", "clone", "-u", f"{repository}/.git/upload-pack", str(repository), "libs/new")
    ended, held = os.pipe()
    process = _started(project, *command, stderr=held, READY=str(ready), GO=str(go))
    os.close(held)
    try:
        until(ready.exists, "git clones")
        strike()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT)
        go.touch()
        with open(ended, "rb") as rest:
            rest.read()  # until what it has started has ended too


def unpack(ground: Ground, project: Path, strike: Callable[[], None]) -> None:
    """The archive was made before, and names a file and no directory."""
    with as_host():
        (project / "libs/unpacked").touch()
    _run(project, "tar", "-cf", "archive", "libs/unpacked")
    strike()
    _run(project, "tar", "-xf", "archive")


PARENT: dict[str, Host] = {
    "git worktree add": _after("", "git", "worktree", "add", "--detach", "libs/added"),
    "git clone": clone_and_interrupt,
    "rsync": _after("", "rsync", "-a", "--delete", "p/d/", "libs/new/"),
    "cp": _after("", "cp", "-r", "p/d", "libs/"),
    "tar": unpack,
}
"""What the host runs that leads below ``libs``."""

WORK_TREE: dict[str, Host] = {
    "git checkout": _after("libs2/sub", "git", "checkout", "-f"),
    "git reset": _after("libs2/sub", "git", "reset", "--hard"),
    "git clean": _after("libs2/sub", "git", "clean", "-ffdx"),
}
"""What the host runs in ``libs/sub``, whose repository has it as core.worktree. The working
directory of the host's terminal is libs2/sub then: the agent has moved it."""

OUT: dict[str, Callable[[Path, int], str]] = {
    "an absolute path": lambda outside, depth: str(outside),
    "a path that climbs": lambda outside, depth: "../" * (depth + 2) + f"outside/{outside.name}",
    "a link of the host's": lambda outside, depth: "../" * depth + "ext",
}
"""Texts of links that lead out, for one in a directory that is so deep in the project."""

ABSOLUTE, CLIMBING, _ = OUT
Strike = Callable[[Path, str], None]
LED: list[tuple[str, Host, Strike, str]] = [
    *((name, host, attacks.lead_parent, ABSOLUTE) for name, host in PARENT.items()),
    *((name, host, attacks.lead_work_tree, ABSOLUTE) for name, host in WORK_TREE.items()),
    *(
        ("git clean", WORK_TREE["git clean"], strike, text)
        for text in OUT
        for strike in (
            attacks.lead_work_tree,
            attacks.move_up_a_link,
            attacks.move_up_a_directory_with_a_link,
        )
        if (strike, text) != (attacks.lead_work_tree, ABSOLUTE)
        and (text == CLIMBING or strike is attacks.lead_work_tree)
    ),
    ("git clean", WORK_TREE["git clean"], attacks.lead_work_tree_in_two_steps, ABSOLUTE),
]
led = pytest.mark.parametrize(
    ("host", "strike", "text"),
    [case[1:] for case in LED],
    ids=[f"{name}-{strike.__name__}-{text}" for name, _, strike, text in LED],
)


def _is_led_out(ground: Ground, host: Host, strike: Strike, text: str, guarded: bool) -> bool:
    """Attack one program of the host's. Returns whether it has changed anything outside."""
    project = ground.project()
    outside, view = ground.outside(project), ground.view(project, guarded)
    before = _tree(outside)
    goal = OUT[text](outside, 0 if strike is attacks.lead_parent else 1)
    refused: list[int | None] = []

    def attack() -> None:
        try:
            as_user(strike, view, goal)
        except OSError as error:
            refused.append(error.errno)

    host(ground, project, attack)
    moves = strike in (attacks.move_up_a_link, attacks.move_up_a_directory_with_a_link)
    assert refused == ([errno.EXDEV] if guarded and moves else [])
    changed = _tree(outside) != before
    assert changed or not guarded or _led_out(ground, project) == []
    return changed


@led
def test_the_host_is_led_out_without_the_guard(
    ground: Ground, host: Host, strike: Strike, text: str
) -> None:
    assert _is_led_out(ground, host, strike, text, guarded=False)


@led
def test_the_host_is_not_led_out(ground: Ground, host: Host, strike: Strike, text: str) -> None:
    assert not _is_led_out(ground, host, strike, text, guarded=True)


# ------------------------------------------------------------------- While git writes

TARGETS: dict[str, str] = {
    "by its name": "../.git/hooks",
    "by its path on the host": "{project}/.git/hooks",
    "through a link of the host's": "../meta/hooks",
    "a bare repository": "../store.git/hooks",
    "a bare repository, by its path": "{project}/store.git/hooks",
    "by a link that comes later": "../later/store.git/hooks",
    **{name: "{" + name.replace(" ", "_") + "}" for name in ("out of the share", "by climbing")},
}
WRITERS = {"checkout": ("checkout", "."), "without a lock": ("checkout-index", "--all", "--force")}
writes = pytest.mark.parametrize(
    ("target", "swap", "writer"),
    [
        (target, swap, writer)
        for target in TARGETS
        for swap in attacks.SWAPS
        for writer in WRITERS
        if swap is attacks.by_two_renames or (target == "out of the share" and writer == "checkout")
    ],
    ids=lambda it: getattr(it, "__name__", it),
)


def _led_elsewhere(
    ground: Ground, target: str, swap: attacks.Swap, writer: str, guarded: bool
) -> bool:
    """Attack one checkout. Returns whether git wrote or ran what it must not."""
    project = ground.project()
    outside, mark = ground.outside(project), ground.mark(project)
    places = (outside, project / ".git/hooks", project / "store.git/hooks")
    before = [_tree(place) for place in places]
    text = TARGETS[target].format(
        project=project, out_of_the_share=outside, by_climbing=f"../../../outside/{outside.name}"
    )
    with as_host():
        shutil.rmtree(project / "p/d")
        (project / "p/d").mkdir()
    ready, go = mark.with_suffix(".ready"), mark.with_suffix(".go")
    environment = {"READY": str(ready), "GO": str(go), "MARK": str(mark)}
    process = _started(project, "git", *WRITERS[writer], **environment)
    try:
        until(ready.exists, "git writes")
        as_user(attacks.lead_by, ground.view(project, guarded), "p/d", text, swap)
    finally:
        go.touch()
        process.wait(LIMIT)
    changed = mark.exists() or [_tree(place) for place in places] != before
    assert changed or not guarded or _led_out(ground, project) == []
    return changed


@writes
def test_git_is_led_elsewhere_without_the_guard(
    ground: Ground, target: str, swap: attacks.Swap, writer: str
) -> None:
    assert _led_elsewhere(ground, target, swap, writer, guarded=False)


@writes
def test_git_is_not_led_elsewhere(
    ground: Ground, target: str, swap: attacks.Swap, writer: str
) -> None:
    assert not _led_elsewhere(ground, target, swap, writer, guarded=True)


# ------------------------------------------------ Repositories that are not complete yet

PARTS = ("HEAD", "refs", "objects")


@pytest.mark.parametrize("last", PARTS[::2])
@pytest.mark.parametrize("guarded", [False, True])
def test_what_the_host_copies_is_not_changed_before_it_is_whole(
    ground: Ground, last: str, guarded: bool
) -> None:
    """As soon as there are two of the three parts: HEAD with refs is a repository already."""
    project = ground.project()
    git(project, "init", "--quiet", "--bare", "full")
    with as_host():
        (project / "full/hooks").mkdir(exist_ok=True)
        (project / "full/hooks/post-update").write_text("#!/bin/sh\n")
        shutil.copytree(
            project / "full", project / "new", ignore=lambda _, names: {last} & {*names}
        )
    view, mark = ground.view(project, guarded), ground.mark(project)
    try:
        as_user(attacks.plant_payload, view / "new", f"touch {mark}")
    except PermissionError as error:
        assert guarded and error.errno == errno.EACCES
    else:
        assert not guarded
    _run(project, "cp", "-r", f"full/{last}", "new/")
    _run(project / "new", "git", "status")
    ran = mark.exists()
    mark.unlink(missing_ok=True)
    git(project, "push", "--quiet", "./new", "HEAD:refs/heads/pushed")
    assert (ran, mark.exists()) == (not guarded, not guarded)


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


def _remove_opened(project: Path) -> None:
    for name in OPENED_BY:
        (project / name).unlink(missing_ok=True)


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
    _remove_opened(project)
    as_user(stop, ground.view(project, guarded=False) / name)
    assert _is_stopped(project, name)


@stops
def test_git_never_waits(ground: Ground, name: str, stop: Callable[[Path], None]) -> None:
    project = ground.project()
    _remove_opened(project)
    with pytest.raises(PermissionError) as refused:
        as_user(stop, ground.view(project, guarded=True) / name)
    assert refused.value.errno == errno.EACCES
    assert not _is_stopped(project, name)
