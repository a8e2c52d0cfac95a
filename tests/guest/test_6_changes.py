"""Changes of the host's are events in the guest."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gitguardfs.base import installation
from tests.guest.machine import Machine
from tests.guest.world import GUARDS, Guard, World
from tests.support.repos import as_host

LIMIT = 120.0
SEEN = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
names = {0x2: "MODIFY", 0x4: "ATTRIB", 0x40: "MOVED_FROM", 0x80: "MOVED_TO", 0x100: "CREATE",
         0x200: "DELETE"}
libc.inotify_add_watch(fd, b".", sum(names))
for name in os.listdir("."):
    os.stat(name)
open("/tmp/watching", "w").close()
while True:
    data = os.read(fd, 4096)
    while data:
        _, mask, _, size = struct.unpack_from("iIII", data)
        name, data = data[16:16 + size].rstrip(b"\\0").decode(), data[16 + size:]
        if name == "end":
            sys.exit()
        print(names[mask & 0xFFF], name, flush=True)
"""
"""Prints the events of the working directory until something is called "end"."""


@contextmanager
def told(world: World) -> Iterator[None]:
    """Tell the guest of the host's changes, as the host's user does."""
    shares = [f"{each.tag}={world.at[each.tag]}" for each in GUARDS]
    words = installation.command(
        "watch", *shares, f"--to={world.machine.changes}", program="gitguard"
    )
    process = subprocess.Popen(words, stdout=sys.stderr)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def await_in_guest(machine: Machine, condition: str) -> None:
    machine.sh(f"for i in $(seq 100); do {condition} && exit; sleep 0.3; done; exit 1")


@pytest.fixture(scope="module")
def machine(guarded: World) -> Iterator[Machine]:
    """The guest, told of changes in both shares."""
    machine = guarded.machine
    with told(guarded):
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            done = machine.run("gitguard changes-in --status --json")
            views = {one["mountpoint"]: one for one in json.loads(done.stdout or "[]")}
            if all(views[each.view]["whole"] for each in GUARDS if each.view in views):
                break
            time.sleep(1)
        said = machine.run(
            "journalctl --no-pager -n 30 -u gitguardfs-changes; ls /dev/virtio-ports"
        )
        assert all(views[each.view]["arrives"] for each in GUARDS), f"{views}\n{said}"
        yield machine


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_the_hosts_changes_are_events(guarded: World, machine: Machine, guard: Guard) -> None:
    top = guarded.at[guard.tag] / "live"
    with as_host():
        top.mkdir()
        (top / "file").write_text("one\n")
    machine.sh("rm -f /tmp/watching")
    seen = machine.channel.start(
        ["python3", "-c", SEEN], cwd=f"{guard.view}/live", uid=1000, timeout=LIMIT
    )
    await_in_guest(machine, "test -e /tmp/watching")
    with as_host():
        (top / "file").write_text("one and two\n")
        time.sleep(0.5)
        (top / "new").write_text("x")
        (top / ".new").write_text("saved\n")
        (top / ".new").rename(top / "file")
        # Over virtiofs the guest's kernel takes the old file for the one that is there, for 1 s.
        await_in_guest(machine, f"grep -q saved {guard.view}/live/file")
        time.sleep(3)
        (top / "new").rename(top / "moved")
        (top / "moved").unlink()
        (top / "end").touch()
    lines = machine.channel.finish("events", seen, LIMIT).ok().stdout.splitlines()
    assert lines[0] == "MODIFY file"
    assert "CREATE new" in lines
    assert {"MOVED_TO file", "CREATE file"} & set(lines)
    assert "DELETE moved" in lines or "DELETE new" in lines
    assert machine.sh(f"ls -A {guard.view}/live") == "end\nfile"
