"""One guest for the whole tier: it boots when the first test asks for it.

The modules are numbered because they share that guest: what ends things comes last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import guard, import_once, install, mount_spares
from tests.guest.world import GUARDS, PHASES, World, keep, phase, show_phases, world

_machines: list[Machine] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the end of the guest's console after a failure, and keep its logs."""
    report = yield
    if report.failed:
        for machine in _machines:
            kept = keep(machine, machine.image.recipe.name)
            report.sections.append((f"guest console ({kept})", machine.tail()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    show_phases(terminalreporter, PHASES)


@pytest.fixture(scope="session")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The host's shares and the guest, nothing installed in it yet."""
    with world(tmp_path_factory.mktemp("guest")) as made:
        _machines.append(made.machine)
        try:
            yield made
        finally:
            _machines.remove(made.machine)


@pytest.fixture(scope="session")
def installed(booted: World) -> World:
    with phase("install.sh"):
        install(booted.machine)
    return booted


@pytest.fixture(scope="session")
def guarded(installed: World) -> World:
    """Guard every share as a user does, by vm-mount."""
    with phase("imports"):
        import_once(installed.machine)
    with phase("vm-mount, twice"):
        for each in GUARDS:
            guard(installed.machine, each)
    return installed


@pytest.fixture(scope="session")
def spares(guarded: World) -> World:
    """Mount a share of each transport with every option that a test needs."""
    with phase("more mounts"):
        mount_spares(guarded.machine, {(), ("--allow-suid",)})
    return guarded


@pytest.fixture
def guest(guarded: World) -> Machine:
    return guarded.machine
