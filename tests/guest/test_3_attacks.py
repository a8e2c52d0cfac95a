"""Every attack of the doctor's table and some more, over each transport."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.doctor.attacks import ROOT
from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, spare_view
from tests.guest.sieges import CASES, Case, Siege
from tests.guest.world import GUARDS, HOST_GUARDED, TESTS, TRANSPORTS, Guard, World, phase, spare
from tests.support.attacks import ROWS
from tests.support.repos import as_host, git, make_project, metadata

EACH = pytest.mark.parametrize("each", GUARDS, ids=str)
ON = {transport: next(g for g in GUARDS if g.transport == transport) for transport in TRANSPORTS}
RACE_ROUNDS = 12
HOST_MOUNT = "/root/host-guarded"
ON_HOST = tuple(row for row in ROWS if row not in ("P1", "P4", "G4", "N", "V4", "U1", "U3"))
"""Attacks by root of the guest on a share that is guarded on the host: the mount tier tries the
others on that guard, and 9p has no file handles."""

UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errnos of calls that 9p does not have: no guard is asked."""


@pytest.fixture(scope="module")
def sieges(spares: World) -> Iterator[dict[str, Siege]]:
    """All attacks, carried out over each transport, and on a share that the host guards."""
    machine = spares.machine
    machine.sh(f"mkdir -p {HOST_MOUNT} && mount -t 9p {HOST_GUARDED} {HOST_MOUNT}")
    views = {transport: ON[transport].view for transport in TRANSPORTS} | {HOST_GUARDED: HOST_MOUNT}
    with phase("attacks: copies of the project"):
        found = {
            transport: Siege(spares.at[ON[transport].tag], cases)
            for transport, cases in CASES.items()
        }
        on_host = [case for case in CASES["virtiofs"] if case[0] in ON_HOST]
        found[HOST_GUARDED] = Siege(spares.at[HOST_GUARDED], on_host)
    for name, siege in found.items():
        with phase(f"attacks: {name}"):
            siege.carry_out(machine, views[name])
    yield found
    for siege in found.values():
        siege.remove()


@pytest.mark.parametrize(
    ("transport", "case"),
    [
        pytest.param(transport, case, id=f"{'-'.join(case)}-{transport}")
        for transport, cases in CASES.items()
        for case in cases
    ],
)
def test_is_refused(sieges: dict[str, Siege], transport: str, case: Case) -> None:
    sieges[transport].check(case)


@pytest.mark.parametrize("row", ON_HOST)
def test_is_refused_to_root_of_the_guest_by_a_guard_on_the_host(
    sieges: dict[str, Siege], row: str
) -> None:
    sieges[HOST_GUARDED].check((row, ROOT), also=UNSUPPORTED)


def test_with_the_guard_on_the_host_root_of_the_guest_works_as_usual(
    sieges: dict[str, Siege], spares: World
) -> None:
    view, host = f"{HOST_MOUNT}/demo", spares.at[HOST_GUARDED] / "demo"
    spares.machine.sh("echo x >new && mv new newer && mkdir d && cat README && ls -la", cwd=view)
    assert (host / "newer").read_text() == "x\n"
    for command in ("cat .git/config", "ls .git", "mkdir d/.git", "mv .git x", "touch .git/x"):
        spares.machine.run(command, cwd=view).failed()


# ------------------------------------------------------------------------- the raw share


@pytest.mark.parametrize("actor", ["agent", "fake root"])
@EACH
def test_the_raw_share_is_out_of_reach(guest: Machine, each: Guard, actor: str) -> None:
    words = ["python3", "-m", "tests.guest.inside.raw_share", each.raw, each.view, each.tag,
             each.transport, actor]  # fmt: skip
    assert json.loads(guest.sh(words, cwd=TESTS, forked=True)) == {}


def test_the_ways_to_the_raw_share_are_real(spares: World) -> None:
    """The probes work: root, which has access, reaches the share."""
    machine, tag = spares.machine, spare("virtiofs")
    words = ["python3", "-m", "tests.guest.inside.raw_share", f"/mnt/raw/{tag}",
             spare_view("virtiofs"), tag, "virtiofs", "root"]  # fmt: skip
    found = json.loads(machine.sh(["unshare", "-m", *words], cwd=TESTS))
    assert {"by_path", "by_symlink_in_the_view", "by_descriptors_of_the_daemon"} <= set(found)


# ------------------------------------------------------------------ two at once, and names


@pytest.fixture(scope="module", params=TRANSPORTS)
def race(request: pytest.FixtureRequest, spares: World) -> Iterator[dict[str, object]]:
    project = spares.at[spare(request.param)] / "race"
    make_project(project)
    view = f"{spare_view(request.param)}/race"
    second = f"{spare_view(request.param, '--allow-suid')}/race"
    words = ["python3", "-m", "tests.guest.inside.races", view, second, str(RACE_ROUNDS),
             request.param]  # fmt: skip
    with phase(f"races over {request.param}"):
        done = spares.machine.run(words, cwd=TESTS, timeout=600, forked=True).ok()
    yield json.loads(done.stdout)


def test_two_processes_never_assemble_a_repository(race: dict[str, object]) -> None:
    assert race["both"] == []
    assert race["heads"] and race["others"], "one side was always the first: that is no race"


def test_a_directory_that_becomes_a_symlink_leads_nowhere(race: dict[str, object]) -> None:
    assert race["leaks"] == 0


def test_ordinary_names_stay_usable(race: dict[str, object]) -> None:
    assert race["refused"] == []


@EACH
def test_a_directory_that_the_host_renames_to_git_is_closed(guarded: World, each: Guard) -> None:
    place = guarded.at[each.tag] / "t1"
    with as_host():
        (place / "becomes").mkdir(parents=True)
        (place / "becomes/config").write_text("secret")
    reading = guarded.machine.channel.start(
        # By its path: QEMU's 9p knows what is open by path, and the working directory is gone.
        f"cd {each.view}/t1/becomes && cat config && touch ../ready && while ! "
        f"test -e {each.view}/t1/go; do sleep 0.2; done; ls -la {each.view}/t1 >&2; cat config",
        uid=AGENT,
    )
    while not (place / "ready").exists():
        assert not reading.done(), str(reading.result())
        time.sleep(0.1)
    os.rename(place / "becomes", place / ".git")
    with as_host():
        (place / "go").write_text("")
    done = guarded.machine.channel.finish("reading", reading, 60)
    assert done.stdout == "secret", str(done)
    assert done.rc != 0


TRY = """
for name, way in ways.items():
    try:
        way()
        print(name, "has worked")
    except OSError as error:
        print(name, error)
"""

REOPEN = """
import os, sys
os.makedirs("t2/mid/repo.git")
fd = os.open("t2/mid/repo.git/config", os.O_RDWR | os.O_CREAT)
os.unlink("t2/mid/repo.git/config")
os.removedirs("t2/mid/repo.git")
os.rename("top", "t2")
again = f"/proc/self/fd/{fd}"
ways = {
    "read": lambda: print(open(again).read()),
    "write": lambda: open(again, "r+").write("[core]"),
    "truncate": lambda: os.truncate(again, 0),
    "chmod": lambda: os.chmod(again, 0o777),
}
"""


@EACH
def test_an_open_file_is_no_way_to_what_has_come_to_its_path(guarded: World, each: Guard) -> None:
    """QEMU's 9p server keeps the path of an open file, even if the file is removed."""
    machine, host = guarded.machine, guarded.at[each.tag]
    with as_host():
        (host / "top/mid").mkdir(parents=True)
    git(host, "init", "--quiet", "--bare", "top/mid/repo.git")
    before = metadata(host / "top/mid/repo.git")
    seen = machine.sh(f"python3 -c '{REOPEN}{TRY}'", cwd=each.view, uid=AGENT)
    assert "repositoryformatversion" not in seen
    where = host / "t2/mid/repo.git"
    assert where.exists(), "the attack was not carried out"
    assert metadata(where) == before, seen


STAY = """
import os, sys, time
from pathlib import Path
place = Path(sys.argv[1])
os.chdir(place / "d")
Path("config").write_text("[user]\\n")
config = os.open("config", os.O_PATH)
again = f"/proc/self/fd/{config}"
os.chmod(again, 0o600)
(place / "ready").touch()
while not (place / "go").exists():
    time.sleep(0.2)
time.sleep(1.2)
ways = {
    "list": lambda: print(os.listdir(".")),
    "read": lambda: print(Path("config").read_text()),
    "write": lambda: Path("config").write_text("[core]"),
    "create": lambda: Path("hooks/post-update").write_text("#!/bin/sh"),
    "mkdir": lambda: os.mkdir("new"),
    "move": lambda: os.rename("HEAD", "TAIL"),
    "truncate": lambda: os.truncate(again, 0),
    "chmod": lambda: os.chmod(again, 0o777),
    "touch": lambda: os.utime(again, (1, 1)),
}
"""


@pytest.mark.parametrize("how", ["made around it", "put in its place"])
@EACH
def test_who_stays_in_a_directory_does_not_get_at_a_repository_there(
    guarded: World, each: Guard, how: str
) -> None:
    """The kernel never asks for the directory that a process is in."""
    machine = guarded.machine
    # Not removed: over 9p a name and a number that are used again may be stale for a while.
    name = f"stay-{how.replace(' ', '-')}"
    place = guarded.at[each.tag] / name
    with as_host():
        (place / "d").mkdir(parents=True)
        (place / "script.py").write_text(STAY + TRY)
    staying = machine.channel.start(
        # The guest may cache for a second that it does not exist.
        f"cd {each.view}; until test -e {name}/script.py; do sleep 0.2; done; "
        f"exec python3 {name}/script.py {each.view}/{name}",
        uid=AGENT,
        timeout=300,
    )
    while not (place / "ready").exists():
        assert not staying.done(), str(staying.result())
        time.sleep(0.1)
    if how == "put in its place":
        os.rename(place / "d", place / "old")
    with as_host():
        (place / "d").mkdir(exist_ok=True)
    git(place, "init", "--quiet", "--bare", "d")
    before = metadata(place / "d")
    with as_host():
        (place / "go").touch()
    done = machine.channel.finish("staying", staying, 60)
    after = metadata(place / "d")
    assert done.rc == 0, str(done)
    assert "repositoryformatversion" not in done.stdout
    assert after == before, done.stdout
    if how == "made around it":
        assert "worked" not in done.stdout


def start_holding(machine: Machine, each: Guard, place: Path) -> Future[dict[str, Any]]:
    """Start the script in a directory of the share as the agent; wait until it is ready."""
    holding = machine.channel.start(
        f"cd {each.view}; until cd {place.name}; do sleep 0.2; done; exec python3 script.py",
        uid=AGENT,
        timeout=300,
    )
    while not (place / "ready").exists():
        assert not holding.done(), str(holding.result())
        time.sleep(0.1)
    return holding


HELD = """
import os, sys, time
held = os.open("held", os.O_PATH)
again = f"/proc/self/fd/{held}"
os.chmod(again, 0o600)
open("ready", "x").close()
while not os.path.exists("other"):
    time.sleep(0.1)
ways = {
    "truncate": lambda: os.truncate(again, 0),
    "chmod": lambda: os.chmod(again, 0o777),
    "touch": lambda: os.utime(again, (1, 1)),
}
"""


def test_a_replaced_file_is_never_taken_for_another_with_its_number(guarded: World) -> None:
    """Over 9p, an object of which the daemon holds a descriptor keeps its number for the kernel."""
    machine, each = guarded.machine, ON["9p"]
    place = guarded.at[each.tag] / "numbers"
    with as_host():
        place.mkdir()
        (place / "held").write_text("before")
        (place / "script.py").write_text(HELD + TRY)
    holding = start_holding(machine, each, place)
    with as_host():
        number = (place / "held").stat().st_ino
        (place / "new").write_text("after")
        os.replace(place / "new", place / "held")
        for attempt in range(6000):  # ext4 and xfs give out the lowest number that is free
            other = place / f"other-{attempt}"
            other.write_text("another file")
            if other.stat().st_ino == number:
                break
        before = other.stat()
        other.rename(place / "other")
    done = machine.channel.finish("holding", holding, 60)
    assert done.rc == 0, str(done)
    after = (place / "other").stat()
    assert "worked" not in done.stdout
    assert (after.st_mode, after.st_size, after.st_mtime_ns) == (
        before.st_mode,
        before.st_size,
        before.st_mtime_ns,
    )
    assert (place / "held").read_text() == "after"


REPLACED = """
import os, sys, time
from pathlib import Path
os.makedirs("b/HEAD")
Path("b/HEAD/f").write_text("f")
Path("c").write_text("f")
held = [open("b/HEAD/f"), open("c")]
Path("ready").touch()
while not os.path.exists("go"):
    time.sleep(0.1)
time.sleep(1.2)
ways = {
    "list": lambda: print(os.listdir("b")),
    "read": lambda: print(Path("b/config").read_text()),
    "write": lambda: Path("b/config").write_text("[core]"),
    "create": lambda: Path("b/hooks/post-update").write_text("#!/bin/sh"),
    "mkdir": lambda: os.mkdir("b/new"),
    "move": lambda: os.rename("c", "d"),
}
"""


@EACH
def test_a_repository_in_the_place_of_what_is_held_is_closed(guarded: World, each: Guard) -> None:
    """Over 9p, a name that is held keeps its type for the kernel: HEAD a directory, "c" a file."""
    machine = guarded.machine
    name = f"replaced-{each.tag}"
    place = guarded.at[each.tag] / name
    with as_host():
        place.mkdir()
        (place / "script.py").write_text(REPLACED + TRY)
    holding = start_holding(machine, each, place)
    with as_host():
        shutil.rmtree(place / "b")
        (place / "c").unlink()
    git(place, "init", "--quiet", "--bare", "b")
    git(place, "init", "--quiet", "c")
    before = metadata(place / "b")
    with as_host():
        (place / "go").touch()
    done = machine.channel.finish("holding", holding, 60)
    assert done.rc == 0, str(done)
    assert "worked" not in done.stdout
    assert "repositoryformatversion" not in done.stdout
    assert metadata(place / "b") == before, done.stdout
    assert (place / "c/.git/HEAD").exists(), done.stdout


@EACH
def test_set_id_bits_are_dropped(guarded: World, each: Guard) -> None:
    guarded.machine.sh(
        "cp /bin/true t && chmod 6755 t; test $(stat -c %a t) = 755", cwd=each.view, uid=AGENT
    )
    assert (guarded.at[each.tag] / "t").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("each", GUARDS[:1], ids=str)
def test_a_flood_of_names_ends_neither_the_daemon_nor_the_guard(
    guarded: World, each: Guard
) -> None:
    script = (
        "import os\n"
        "os.mkdir('flood'); os.chdir('flood')\n"
        "for i in range(100): open(f'{i:0255d}', 'x').close()\n"
        "for i in range(30): os.mkdir('deep'); os.chdir('deep')\n"
        "print(len(os.listdir('/proc/self/fd')))\n"
    )
    guarded.machine.run(["python3", "-c", script], cwd=each.view, uid=AGENT).ok()
    assert guarded.machine.sh(f"ls {each.view}/flood | wc -l", uid=AGENT) == "101"
    guarded.machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
