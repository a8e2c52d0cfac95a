"""The oldest system that is supported: pyfuse3 3.2, trio 0.22, Python 3.11, kernel 6.1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base import installation
from tests.guest import image as images
from tests.guest.channel import Done
from tests.guest.crashes import comes_back
from tests.guest.machine import Machine, Share
from tests.guest.packaged import DIST, VERSIONS, build
from tests.guest.setting_up import (
    AGENT,
    commit_in_private,
    guard,
    import_once,
    install,
    mounted,
    vm_mount,
)
from tests.guest.sieges import SOME, Case, Siege
from tests.guest.world import CHECKOUT, PHASES, Guard, checkout, make_demo, phase, take_checkout
from tests.support.mounting import area, until
from tests.support.repos import HOST_GID, HOST_UID, git

OLD = (Guard("9p", "systemd"), Guard("virtiofs", "fstab"))
EACH = pytest.mark.parametrize("each", OLD, ids=str)


@pytest.fixture(scope="module")
def old_checkout() -> Iterator[Path]:
    """A copy of the checkout for the guest."""
    with area() as place:
        yield checkout(place / "checkout")


@pytest.fixture(scope="module")
def old(
    tmp_path_factory: pytest.TempPathFactory, old_checkout: Path
) -> Iterator[tuple[Machine, dict[str, Path]]]:
    with phase("image, Debian 12"):
        image = images.obtain(images.DEBIAN_12)
    with area() as place:
        at = {each.tag: place / each.tag for each in OLD}
        for path in at.values():
            path.mkdir()
            os.chown(path, HOST_UID, HOST_GID)
            make_demo(path / "demo")
        shares = [Share(each.tag, at[each.tag], each.transport) for each in OLD]
        shares.append(Share("checkout", old_checkout, read_only=True))
        machine = Machine(image, tmp_path_factory.mktemp("debian12"), shares)
        try:
            machine.start()
            take_checkout(machine)
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
    assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]
    machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")


@pytest.fixture(scope="module")
def sieges(old: Old) -> dict[str, Siege]:
    machine, at = old
    found = {each.tag: Siege(at[each.tag], SOME) for each in OLD}
    with phase("Debian 12: attacks"):
        for each in OLD:
            found[each.tag].carry_out(machine, each.view)
    return found


@EACH
@pytest.mark.parametrize("case", SOME, ids="-".join)
def test_is_refused(sieges: dict[str, Siege], each: Guard, case: Case) -> None:
    sieges[each.tag].check(case)


@EACH
def test_a_killed_daemon_comes_back_with_the_agent_inside(old: Old, each: Guard) -> None:
    comes_back(old[0], each, 9)


def test_doctor_finds_nothing(old: Old) -> None:
    done = old[0].run(
        ["gitguard", "doctor", OLD[1].view, "--user", "agent"], timeout=1200, forked=True
    )
    assert done.rc == 0, str(done)
    assert "attacks not tried" in done.stdout and "finding " not in done.stdout


def test_the_agent_has_a_git_of_its_own(old: Old) -> None:
    machine, at = old
    each = OLD[1]
    machine.run(vm_mount(each, git="private"), forked=True).ok()
    host, view = at[each.tag] / "demo", f"{each.view}/demo"
    commit_in_private(machine, view, host)
    git(host, "commit", "--quiet", "--allow-empty", "--message=of the human")

    def is_told() -> bool:
        machine.sh("git fetch host", cwd=view, uid=AGENT)
        return machine.sh("git log -1 --format=%s host/main", cwd=view, uid=AGENT) == "of the human"

    until(is_told, "the agent is told")


# The package, in the place of install.sh. The tests stand in the order of its life.

UNIT = "/usr/lib/systemd/system/gitguardfs@.service"
HIDING = "/etc/systemd/system/gitguardfs@.service"
NOT_INSTALLED = (
    "gitguardfs-test-agent",
    "/etc/fstab.before-gitguardfs",
    "/var/cache/",
    "/var/lib/gitguardfs-git",  # the agents' work
    "/var/log/",
)
"""Parts of paths that contain our name and belong to no installation."""
PACKAGED = OLD[0]


@pytest.fixture(scope="module")
def cleared(old: Old) -> Machine:
    """A machine from which vm-mount and install.sh have taken all that was theirs."""
    machine, _ = old
    for each in OLD:
        machine.run(vm_mount(each, "--remove")).ok()
    machine.run(["./guest-setup/install.sh", "--uninstall"], cwd=CHECKOUT).ok()
    return machine


@pytest.fixture(scope="module")
def packaged(cleared: Machine, old_checkout: Path) -> Machine:
    with phase("Debian 12: the package is built"):
        build(old_checkout)
    # What keeps the image small would leave the manual pages out.
    cleared.sh("rm -f /etc/dpkg/dpkg.cfg.d/*mmdebstrap*")
    with phase("Debian 12: the package is installed"):
        install_package(cleared, VERSIONS[0])
    return cleared


def install_package(machine: Machine, version: str) -> str:
    package = f"{CHECKOUT}/{DIST}/gitguardfs_{version}_all.deb"
    return machine.sh(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", package]
    )


def own_files(machine: Machine) -> list[str]:
    """Return the files with our name, except those of the tests and copies for the user."""
    found = machine.sh(
        "find / -xdev -name '*gitguard*' -not -path '/root/*' -not -path '/opt/*'"
        " -not -path '/tmp/*'"
    )
    return [p for p in found.splitlines() if not any(part in p for part in NOT_INSTALLED)]


def test_install_sh_takes_away_what_it_brought(cleared: Machine) -> None:
    assert own_files(cleared) == []


def test_the_package_brings_programs_pages_completion_and_unit(packaged: Machine) -> None:
    for program in ("gitguardfs", "gitguard", "vm-mount"):
        assert packaged.sh(f"command -v {program}") == f"/usr/bin/{program}"
        assert VERSIONS[0] in packaged.sh([program, "--version"], uid=AGENT, cwd="/home/agent")
    listed = packaged.sh("dpkg -L gitguardfs | while read f; do test -f $f && echo $f; done; true")
    for path in (
        "/usr/sbin/umount.fuse.gitguardfs", UNIT, "/usr/share/man/man1/gitguardfs.1.gz",
        "/usr/share/man/man1/gitguard-vm-up.1.gz", "/usr/share/man/man8/vm-mount.8.gz",
        "/usr/share/man/man8/umount.fuse.gitguardfs.8.gz",
        "/usr/share/bash-completion/completions/gitguard",
        "/usr/share/zsh/vendor-completions/_gitguard",
        "/usr/share/fish/vendor_completions.d/gitguard.fish",
        *(f"/usr/share/gitguardfs/guest-setup/{name}" for name in installation.SCRIPT_NAMES),
    ):  # fmt: skip
        assert path in listed.splitlines()
    assert packaged.sh("dpkg --verify gitguardfs") == ""
    compiled = packaged.sh("ls /usr/share/gitguardfs/gitguardfs/base/__pycache__")
    assert "errors.cpython-311.pyc" in compiled


def test_vm_mount_uses_the_packages_unit(packaged: Machine, old: Old) -> None:
    packaged.run(vm_mount(PACKAGED)).ok()
    assert mounted(packaged, PACKAGED.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(packaged, PACKAGED.raw) == [PACKAGED.transport, "ramfs"]
    packaged.run(f"cat {PACKAGED.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    assert packaged.run(["test", "-e", HIDING]).rc == 1
    service = packaged.sh(["systemd-escape", "-p", "--template=gitguardfs@.service", PACKAGED.view])
    said = packaged.sh(["systemctl", "show", "-P", "FragmentPath", "-P", "ExecStart", service])
    assert UNIT.removeprefix("/usr") in said and "path=/usr/bin/gitguardfs" in said
    assert packaged.sh(["systemctl", "is-enabled", service]) == "enabled"
    again = packaged.run(vm_mount(PACKAGED)).ok()
    assert "Nothing to do" in again.stdout


def test_an_upgrade_leaves_a_view_to_its_daemon(packaged: Machine) -> None:
    daemon = packaged.sh("pgrep -f 'bin/gitguardfs -o'")
    said = install_package(packaged, VERSIONS[1])
    assert "still served by the previous version" in said
    assert packaged.sh("pgrep -f 'bin/gitguardfs -o'") == daemon
    assert VERSIONS[1] in packaged.sh(["gitguardfs", "--version"])
    packaged.sh("echo upgraded >upgraded", cwd=f"{PACKAGED.view}/demo", uid=AGENT)
    packaged.sh("systemctl restart 'gitguardfs@*'")
    assert packaged.sh("pgrep -f 'bin/gitguardfs -o'") != daemon
    assert mounted(packaged, PACKAGED.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(packaged, PACKAGED.raw) == [PACKAGED.transport, "ramfs"]
    assert packaged.sh(f"cat {PACKAGED.view}/demo/upgraded", uid=AGENT) == "upgraded"


def remove(machine: Machine, how: str = "remove") -> Done:
    return machine.run(
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", how, "-y", "gitguardfs"]
    )


def test_what_guards_at_boot_is_not_removed(packaged: Machine) -> None:
    remove(packaged).failed("vm-mount --remove first")
    assert packaged.sh("dpkg-query -W -f '${db:Status-Status}' gitguardfs") == "installed"
    packaged.run(f"cat {PACKAGED.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    packaged.run(["/usr/bin/gitguardfs", "--version"]).ok()


def test_what_serves_a_view_is_not_removed(packaged: Machine) -> None:
    packaged.run(vm_mount(PACKAGED, "--remove")).ok()
    packaged.sh("mkdir -p /srv/source /srv/view && gitguardfs --seal /srv/source /srv/view")
    remove(packaged).failed("/srv/view", "umount them first")
    assert mounted(packaged, "/srv/source") == ["ramfs"]
    packaged.sh("umount /srv/view")
    assert mounted(packaged, "/srv/source") == []


def test_a_purge_leaves_nothing(packaged: Machine) -> None:
    remove(packaged, "purge").ok()
    assert own_files(packaged) == []
    assert packaged.sh("systemctl --failed --no-legend --plain; true") == ""
