"""A world for each test, which has to leave no descriptor behind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.sessions.pyfuse3_session.handlers import Handlers
from tests.adapter.world import World, later, open_descriptors, stand_ins
from tests.support.kernel_client import KernelClient

__all__ = ["later", "make_world", "world"]

MakeWorld = Callable[..., World]


KERNEL_ONLY = {"test_kernel_calls", "test_kernel_requests", "test_kernel_serving"}
"""Modules about the kernel's session itself."""
PYFUSE3_ONLY = {
    "test_internals", "test_io_thread", "test_listing", "test_blocking", "test_read_interrupter",
    "test_session",
}  # fmt: skip
"""Modules about pyfuse3's session itself, or about what it does with replies."""
TESTS_OF_PYFUSE3 = {
    "test_who_waits_for_a_repository_keeps_nobody_else_waiting",
    "test_unsupported_handlers_are_pyfuse3_s_own",
}
"""Tests of pyfuse3's session in other modules."""
SESSIONS = {"pyfuse3": Handlers, "kernel": KernelClient}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that makes worlds once with each session: pyfuse3's has the lean methods."""
    if "session" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        is_only = module in PYFUSE3_ONLY or metafunc.function.__name__ in TESTS_OF_PYFUSE3
        names = ["pyfuse3"] if is_only else [*SESSIONS]
        names = ["kernel"] if module in KERNEL_ONLY else names
        metafunc.parametrize("session", [SESSIONS[name] for name in names], ids=names)


@pytest.fixture
def make_world(tmp_path: Path, session: Any) -> Iterator[MakeWorld]:
    """Make a world over ``tmp_path/source``; options are those of World."""
    source = tmp_path / "source"
    source.mkdir()
    made: list[World] = []

    def make(**options: Any) -> World:
        is_lean = session is not KernelClient
        made.append(World(source, **{"session": session, "is_lean": is_lean, **options}))
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
