"""vm-mount has the agent's repositories made, with a line for each."""

from __future__ import annotations

import socket
from pathlib import Path

from gitguardfs.guest.seeding import seed


def test_two_levels_are_looked_at_and_no_symlink_is_followed(tmp_path: Path) -> None:
    view = tmp_path / "projects"
    for name in ("", "one", "team/two", "team/too/deep"):
        (view / name).mkdir(parents=True, exist_ok=True)
        (view / name / ".git").touch()
    (view / "closed/.git").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/.git").touch()
    (view / "link").symlink_to("../elsewhere")
    said = [line.removeprefix("Preparing the agent's repository of ") for line in seed(str(view))]
    assert sorted(said) == ["one.", "projects.", "team/two."]


def test_one_that_fails_is_named_and_the_next_is_made(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with socket.socket(socket.AF_UNIX) as file:
            file.bind(str(tmp_path / name / ".git"))
    said = list(seed(str(tmp_path)))
    assert len(said) == 4
    assert sum("tries again" in line for line in said) == 2
