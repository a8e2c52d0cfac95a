"""One project and one VM for the whole tier; the modules are numbered because they share it."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.guest import image as images
from tests.guest.world import KEPT, show_phases
from tests.vm.world import PHASES, Session, World, console, world

OPTIONS = ("--memory", "1G", "--cpus", "1")
"""One processor: with two, an emulated kernel panics now and then."""

_worlds: list[World] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show the end of the guest's console after a failure, and keep the logs."""
    report = yield
    if report.failed:
        for each in _worlds:
            kept = KEPT / "vm"
            kept.mkdir(parents=True, exist_ok=True)
            for log in [*each.place.glob("*.log"), *each.place.glob("home/s/**/*.log")]:
                shutil.copy(log, kept)
            report.sections.append((f"guest console ({kept})", console(each)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    show_phases(terminalreporter, PHASES)


@pytest.fixture(scope="session")
def host() -> Iterator[World]:
    """A host on which nothing was started yet."""
    image = images.obtain(images.DEBIAN_CLOUD)
    with world(image.disk.parent) as made:
        _worlds.append(made)
        yield made
        _worlds.remove(made)


@pytest.fixture(scope="session")
def published() -> int:
    """A port that leads to the guest's port 3001 in each session: the option is remembered."""
    # The kernel gives none of these to a connection, and another run looks elsewhere.
    for port in range(20_000 + os.getpid() % 9000, 30_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="session")
def first(host: World, published: int) -> Session:
    """The first `vm up`: everything is made and set up."""
    certificate = str(host.registry.certificate)
    return host.up(
        *OPTIONS, "--image", str(host.image), "--upstream-ca", certificate,
        "--publish", f"{published}:3001", what="first boot",
    )  # fmt: skip


@pytest.fixture
def vm(host: World, first: Session) -> World:
    """The host while its VM runs."""
    assert first.process.poll() is None, first.said()
    return host


@pytest.fixture(scope="session")
def listening() -> Iterator[int]:
    """A port of the host that answers on every address."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        stopped = threading.Event()
        server.settimeout(0.5)

        def serve() -> None:
            while not stopped.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.sendall(b"HOST\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        stopped.set()
        thread.join()
