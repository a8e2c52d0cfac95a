"""Every attack of ``tests/support/attacks.py``, on repositories that exist already.

Each attack is first shown to work where no guard prevents it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.attacks import ATTACKS, Attack
from tests.support.people import as_user
from tests.support.raw_calls import RENAME_EXCHANGE, RENAME_WHITEOUT, renameat2
from tests.support.repos import check_git_works, git
from tests.support.siege import Siege, act


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_is_real(field: Siege, attack: Attack) -> None:
    field.succeeds(attack)


@pytest.mark.parametrize(
    "attack", [attack for attack in ATTACKS if attack.unguarded], ids=lambda attack: attack.id
)
def test_works_with_the_guard_off(field: Siege, attack: Attack) -> None:
    field.succeeds_unguarded(attack)


@pytest.mark.parametrize(
    ("attack", "actor"),
    [
        pytest.param(attack, actor, id=f"{attack.id}-{actor}")
        for attack in ATTACKS
        for actor in attack.actors
    ],
)
def test_is_refused(field: Siege, attack: Attack, actor: str) -> None:
    field.is_refused(attack, actor)


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
