"""The oldest system that is supported: pyfuse3 3.2, trio 0.22, Python 3.11, kernel 6.1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.guest import image as images
from tests.guest.machine import Machine, Share
from tests.guest.setting_up import AGENT, guard, import_once, install, mounted
from tests.guest.sieges import CASES, Siege, carry_out
from tests.guest.world import CHECKOUT, PHASES, TESTS, Guard, checkout, make_demo, phase
from tests.support.attacks import Attack
from tests.support.mounting import area
from tests.support.repos import HOST_GID, HOST_UID, git

OLD = (Guard("9p", "systemd"), Guard("virtiofs", "fstab"))
EACH = pytest.mark.parametrize("each", OLD, ids=str)
SOME = tuple(case for case in CASES["9p"] if not case[0].options and case[0].row != "P4")[::4]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, dict[str, Path]]]:
    with phase("image, Debian 12"):
        image = images.obtain(images.DEBIAN_12)
    with area() as place:
        at = {each.tag: place / each.tag for each in OLD}
        for path in at.values():
            path.mkdir()
            os.chown(path, HOST_UID, HOST_GID)
            make_demo(path / "demo")
        shares = [Share(each.tag, at[each.tag], each.transport) for each in OLD]
        shares.append(Share("checkout", checkout(place / "checkout"), read_only=True))
        machine = Machine(image, tmp_path_factory.mktemp("debian12"), shares)
        try:
            machine.start()
            machine.sh(f"mkdir -p {CHECKOUT} && mount -t 9p -o ro,trans=virtio checkout {CHECKOUT}")
            machine.sh(f"mkdir {TESTS} && cp -r {CHECKOUT}/tests {TESTS} && >{TESTS}/pytest.py")
            with phase("Debian 12: install.sh and vm-mount, twice"):
                install(machine)
                import_once(machine)
                for each in OLD:
                    guard(machine, each)
            yield machine, at
        finally:
            PHASES.extend((f"Debian 12: {what}", seconds) for what, seconds in machine.boots)
            machine.kill()


Old = tuple[Machine, dict[str, Path]]


def test_the_versions_are_the_old_ones(old: Old) -> None:
    versions = old[0].sh(
        "python3 -c 'import pyfuse3, trio, sys; "
        "print(pyfuse3.__version__, trio.__version__, sys.version_info[:2])'; uname -r"
    )
    assert versions.startswith("3.2") and "(3, 11)" in versions and "\n6.1." in versions


@EACH
def test_the_share_is_guarded(old: Old, each: Guard) -> None:
    machine, _ = old
    assert mounted(machine, each.view) == ["fuse.gitguardfs"]
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]
    machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")


@EACH
def test_the_host_commits_what_the_agent_wrote(old: Old, each: Guard) -> None:
    machine, at = old
    machine.sh("echo text >new && mv README README.md", cwd=f"{each.view}/demo", uid=AGENT)
    git(at[each.tag] / "demo", "add", "--all")
    git(at[each.tag] / "demo", "commit", "--quiet", "--message=by the agent")
    assert git(at[each.tag] / "demo", "fsck", "--strict") == ""
    owner = os.stat(at[each.tag] / "demo/new")
    assert (owner.st_uid, owner.st_gid) == (HOST_UID, HOST_GID)


@pytest.fixture(scope="module")
def sieges(old: Old) -> dict[str, Siege]:
    machine, at = old
    found = {each.tag: Siege(at[each.tag], SOME) for each in OLD}

    def view_of(each: Guard, attack: Attack) -> str:
        return each.view

    with phase(f"Debian 12: {len(SOME) * len(OLD)} attacks"):
        carry_out(machine, [(found[each.tag], partial(view_of, each)) for each in OLD])
    return found


@EACH
@pytest.mark.parametrize("case", SOME, ids=[f"{attack.id}-{actor}" for attack, actor in SOME])
def test_is_refused(sieges: dict[str, Siege], each: Guard, case: tuple[Attack, str]) -> None:
    sieges[each.tag].check(f"{case[0].id}-{case[1]}")


def test_doctor_finds_nothing(old: Old) -> None:
    done = old[0].run(
        ["gitguard", "doctor", OLD[1].view, "--user", "agent"], timeout=1200, forked=True
    )
    assert done.rc == 0, str(done)
    assert "attacks not tried" in done.stdout and "finding " not in done.stdout
