"""vm-mount as root on paths that the agent bends meanwhile: it is never led anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gitguardfs.errors import UserError
from tests.support.bending import exchanged_in_a_loop
from tests.support.people import AGENT
from tests.support.vm_world import World, mountinfo


@contextmanager
def bent(world: World, place: Path) -> Iterator[Path]:
    """``place`` is now the agent's directory, now his symlink to a directory of the system."""
    victim = world.area / "sbin"
    victim.mkdir()
    if not place.exists():
        place.mkdir()
        os.chown(place, AGENT, AGENT)
    link = place.with_name("link")
    link.symlink_to(victim)
    os.chown(link, AGENT, AGENT, follow_symlinks=False)
    with exchanged_in_a_loop(place, link):
        yield victim


ATTEMPTS = 40
"""Seen before paths were walked by descriptors: one in eight was led."""


@pytest.mark.parametrize("bent_part", ["home/me/projects", "home/me/src"])
def test_no_exchanged_symlink_leads_the_view_to_a_directory_of_the_system(
    world: World, bent_part: str
) -> None:
    view = world.area / "home/me/projects"
    if bent_part.endswith("src"):
        view = world.area / "home/me/src/projects"
    with bent(world, world.area / bent_part) as victim:
        came_up = 0
        for _ in range(ATTEMPTS):
            with suppress(UserError):
                world.bring(map_mount=str(view))
                came_up += 1
            assert os.listdir(victim) == []
            assert [line for line in mountinfo() if line.startswith(str(victim))] == []
            assert os.fsencode(victim) not in world.fstab()
            if came_up:
                break
