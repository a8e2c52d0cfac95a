"""The two sides of the guest tests: what the host shares, and how the guest guards it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gitguardfs.base import installation
from tests.guest import image as images
from tests.guest.machine import Machine, Share
from tests.support.mounting import REPOSITORY, area, gitguardfs
from tests.support.repos import HOST_GID, HOST_UID, as_host, git

CHECKOUT = "/root/checkout"  # out of the agent's reach: it is a raw share too
TESTS = "/opt/tests"
"""Where the guest has a copy of the project, as a user has it, and the tests' own programs."""

KEPT = images.CACHE / "failed"
"""Where consoles and logs of a failed run stay."""

PHASES: list[tuple[str, float]] = []
"""Phases and their seconds, for the summary."""


@contextmanager
def phase(name: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        PHASES.append((name, time.monotonic() - started))


@dataclass(frozen=True)
class Guard:
    """One share as the guest's user asks for it with vm-mount."""

    transport: Literal["9p", "virtiofs"]
    style: Literal["fstab", "systemd"]

    @property
    def tag(self) -> str:
        return f"{self.transport}-{self.style}"

    @property
    def raw(self) -> str:
        return f"/mnt/raw/{self.tag}"

    @property
    def view(self) -> str:
        return f"/home/agent/{self.tag}"

    def __str__(self) -> str:
        return self.tag


GUARDS = (Guard("9p", "fstab"), Guard("virtiofs", "systemd"))
"""Each transport and each style once; the guest-old tier has the other two pairs."""

TRANSPORTS = ("9p", "virtiofs")
HOST_GUARDED = "host-guarded"
BY_HAND = "projects"
"""Tags: the share with its guard on the host, and the one that is entered into fstab by hand."""
LIMA, LIMA_SETUP = "lima-project", "lima-setup"
"""Tags: what an instance of Lima's is given."""


@dataclass
class World:
    """A host with its shares and the guest that uses them."""

    place: Path
    machine: Machine
    at: dict[str, Path] = field(default_factory=dict)
    """What the host shares, by tag; for HOST_GUARDED what lies below the guard."""


@contextmanager
def world(work: Path) -> Iterator[World]:
    """Make the shares and boot the guest; at the end nothing of it is left."""
    with area() as place, ExitStack() as stack:
        at = {guard.tag: _share_root(place / guard.tag) for guard in GUARDS}
        shares = [Share(guard.tag, at[guard.tag], guard.transport) for guard in GUARDS]
        for transport in ("9p", "virtiofs"):
            tag = spare(transport)
            at[tag] = _share_root(place / tag)
            shares.append(Share(tag, at[tag], "9p" if transport == "9p" else "virtiofs"))
        at[BY_HAND] = _share_root(place / BY_HAND)
        shares.append(Share(BY_HAND, at[BY_HAND]))
        at[HOST_GUARDED] = _share_root(place / HOST_GUARDED)
        guarded = stack.enter_context(
            gitguardfs(at[HOST_GUARDED], place / "view", expected=("stays open to other",))
        )
        shares.append(Share(HOST_GUARDED, guarded.path))
        shares.append(Share("checkout", checkout(place / "checkout"), read_only=True))
        at[LIMA] = _share_root(place / LIMA)
        shares.append(Share(LIMA, at[LIMA]))
        installation.copy_to(str(place / LIMA_SETUP))
        shares.append(Share(LIMA_SETUP, place / LIMA_SETUP, read_only=True))
        for tag in at:
            make_demo(at[tag] / "demo")
        with phase("image, Debian 13"):
            image = images.obtain(images.DEBIAN_13)
        machine = Machine(image, work, shares)
        try:
            machine.start()
            take_checkout(machine)
            yield World(place, machine, at)
        finally:
            PHASES.extend((f"Debian 13: {what}", seconds) for what, seconds in machine.boots)
            machine.kill()


def spare(transport: str) -> str:
    """Return the tag of the share that vm-mount does not guard; other mounts use it."""
    return f"{transport}-spare"


def _share_root(path: Path) -> Path:
    path.mkdir()
    os.chown(path, HOST_UID, HOST_GID)
    return path


def checkout(path: Path) -> Path:
    """A copy of the working tree, of the tests only what runs in the guest."""
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("gitguardfs", "guest-setup", "tests/conformance", "tests/support",
                 "tests/guest/inside"):  # fmt: skip
        shutil.copytree(REPOSITORY / name, path / name, ignore=no_caches)
    for name in ("pyproject.toml", "tests/__init__.py", "tests/guest/__init__.py"):
        shutil.copy(REPOSITORY / name, path / name)
    return path


def take_checkout(machine: Machine) -> None:
    """Mount what the host shares by the tag "checkout", and copy the tests out of it."""
    machine.sh(f"mkdir -p {CHECKOUT} && mount -t 9p -o ro,trans=virtio checkout {CHECKOUT}")
    # The helpers of other tiers import pytest, which is not in the guest, to skip.
    machine.sh(
        f"mkdir {TESTS} && cp -r {CHECKOUT}/tests {CHECKOUT}/gitguardfs {TESTS}"
        f" && >{TESTS}/pytest.py"
    )


def make_demo(path: Path) -> None:
    """A small project with a history, as the host's user has it."""
    path.mkdir()
    os.chown(path, HOST_UID, HOST_GID)
    git(path, "init", "--quiet", "--template=", "--initial-branch=main")
    with as_host():
        (path / "hello.c").write_text(
            '#include <stdio.h>\nint main(void) { puts("hello from the host"); return 0; }\n'
        )
        (path / "Makefile").write_text("hello: hello.o\n\t$(CC) -o $@ $<\n")
        (path / "README").write_text("a small project\n")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "--message=first")


def keep(machine: Machine, name: str) -> Path:
    """Copy the machine's logs to where they stay; returns the directory."""
    KEPT.mkdir(parents=True, exist_ok=True)
    target = KEPT / name
    target.mkdir(exist_ok=True)
    for log in machine.work.glob("*.log"):
        shutil.copy(log, target)
    return target


def show_phases(terminalreporter: Any, phases: Sequence[tuple[str, float]]) -> None:
    """Print the seconds of each phase of a machine."""
    if phases:
        terminalreporter.section("guest: seconds of each phase")
        for name, seconds in phases:
            terminalreporter.line(f"{seconds:7.1f}  {name}")
