"""A world for each test, which has to leave no descriptor behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.world import World, open_descriptors, stand_ins

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    """Make a world over ``tmp_path/source``; options are those of World."""
    source = tmp_path / "source"
    source.mkdir()
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(World(source, **options))
        return made[-1]

    with stand_ins():
        before = open_descriptors()
        yield make
        for world in made:
            world.close()
        assert open_descriptors() == before, "descriptors were left open"


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()
