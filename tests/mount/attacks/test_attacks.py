"""Every attack of the doctor's table, and some more, as each actor that can try it."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.doctor.attacks import ACTORS
from tests.support.attacks import ALL, ROWS, UNSERVED
from tests.support.exploits import EXPLOITS
from tests.support.people import as_user
from tests.support.raw_calls import RENAME_EXCHANGE, RENAME_WHITEOUT, renameat2
from tests.support.repos import check_git_works, git, metadata
from tests.support.siege import Siege, act

OFF = ("--allow-bare", "--git=off", "--xattr=rw")
XATTRS = ("setxattr", "removexattr", "listxattr")
BY_ROW = {row: [attack for attack in ALL if attack.row == row] for row in ROWS}
EACH = pytest.mark.parametrize("row", ROWS)


@EACH
def test_is_real(field: Siege, row: str) -> None:
    field.check_real(BY_ROW[row])


@EACH
def test_works_with_the_guard_off(field: Siege, row: str) -> None:
    served = [a for a in BY_ROW[row] if a.words[0] not in {*UNSERVED, "handle"}]
    served += [a for a in BY_ROW[row] if a.words[0] in XATTRS]
    field.check_real(served, OFF)


@pytest.mark.parametrize("actor", ACTORS)
@EACH
def test_is_refused(field: Siege, row: str, actor: str) -> None:
    field.check_refused(BY_ROW[row], actor)


@pytest.mark.parametrize("actor", ACTORS)
def test_attributes_are_refused_where_others_are_served(field: Siege, actor: str) -> None:
    attacks = [attack for attack in ALL if attack.words[0] in XATTRS]
    field.check_refused(attacks, actor, "--xattr=rw", serves=XATTRS)


@pytest.mark.parametrize("actor", ACTORS)
def test_roots_are_kept_where_bare_repositories_are_allowed(field: Siege, actor: str) -> None:
    roots = [attack for attack in BY_ROW["R7"] if attack.on == "root"]
    field.check_refused(roots, actor, "--allow-bare", without=("attic",))


# --------------------------------------------------------------- git on the host runs something

exploits = pytest.mark.parametrize(
    ("exploit", "runs"), EXPLOITS.items(), ids=[it.__name__.strip("_") for it in EXPLOITS]
)
Exploit = Callable[[Path, str], None]


def _ran(field: Siege, exploit: Exploit, runs: str, *options: str) -> bool:
    project = field.project()
    before = metadata(project)
    mark, command = field.mark()
    view = field.through_guard(project, *options)
    if "--git=off" in options:
        as_user(exploit, view, command)
    else:
        with pytest.raises(PermissionError):
            as_user(exploit, view, command)
        assert metadata(project) == before
    with suppress(AssertionError, NotADirectoryError, FileNotFoundError):
        git(project / runs, "status")
    return mark.exists()


@exploits
def test_git_on_the_host_runs_a_command_without_the_guard(
    field: Siege, exploit: Exploit, runs: str
) -> None:
    assert _ran(field, exploit, runs, *OFF)


@exploits
def test_git_on_the_host_runs_nothing(field: Siege, exploit: Exploit, runs: str) -> None:
    assert not _ran(field, exploit, runs)


# ------------------------------------------------------------------------- what stays allowed


def _move_directories(view: Path) -> None:
    (view / "deep").rename(view / "deeper")
    (view / "deeper/pkg").rename(view / "src/pkg")
    renameat2(view / "src", view / "deeper", RENAME_EXCHANGE)


@pytest.mark.parametrize("actor", ["agent", "root"])
def test_directories_with_repositories_further_down_may_move(field: Siege, actor: str) -> None:
    project = field.project()
    view = field.through_guard(project)
    with pytest.raises(PermissionError):
        act(actor, (view / "deep/pkg/inner").rename, view / "inner")
    act(actor, _move_directories, view)
    assert os.path.isdir(project / "deeper/pkg/inner/.git")
    git(project / "deeper/pkg/inner", "status")


def test_whiteouts_are_not_made_anywhere(field: Siege) -> None:
    """A whiteout leaves a device behind; the mount does not support the flag."""
    project = field.project()
    view = field.through_guard(project)
    with pytest.raises(OSError) as refused:
        as_user(renameat2, view / "src/main.py", view / "src/moved", RENAME_WHITEOUT)
    assert refused.value.errno == errno.EINVAL
    check_git_works(project)
