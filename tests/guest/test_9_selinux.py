"""SELinux enforcing, with Debian's policy: a share of each transport, attacks, boots, and a
confined user. docs/selinux.md says which of it holds for Fedora, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.guest import image as images
from tests.guest import selinux
from tests.guest.crashes import pids_of
from tests.guest.machine import Machine, Share
from tests.guest.setting_up import AGENT, MAP, commit_in_private, guard, install, mounted, vm_mount
from tests.guest.sieges import SOME, Case, Siege
from tests.guest.world import PHASES, Guard, checkout, make_demo, phase, take_checkout
from tests.support.mounting import area
from tests.support.repos import HOST_GID, HOST_UID, git

BY_SYSTEMD = (Guard("9p", "systemd"), Guard("virtiofs", "systemd"))
BY_FSTAB = Guard("virtiofs", "fstab")
"""Entered into fstab by hand: vm-mount refuses it."""
EACH = pytest.mark.parametrize("each", BY_SYSTEMD, ids=str)

LIMIT = 1200.0

FSTAB_LINES = f"""\
{BY_FSTAB.tag} {BY_FSTAB.raw} virtiofs _netdev,nofail 0 0
{BY_FSTAB.raw} {BY_FSTAB.view} fuse.gitguardfs map={MAP},mountpoint={BY_FSTAB.view},\
_netdev,nofail,x-systemd.requires-mounts-for={BY_FSTAB.raw} 0 0
"""

# As comm(5) has them, cut off after 15 characters.
PROGRAMS = {"git", "gitguardfs", "gitguard", "vm-mount", "umount.fuse.git", "mount", "umount"}
FILE_SYSTEMS = {"fusefs_t", "nfs_t", "virtiofs_t", "ramfs_t", "unlabeled_t"}
"""Types of the views, the shares and the seals, and of a file system without a label."""

LOGIN = "/etc/systemd/system/serial-getty@ttyS0.service.d/agent.conf"
LOGIN_TEXT = """[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin agent -o "-f agent" --noclear ttyS0 linux
"""
SAID = "/home/agent/said"
PROFILE = f"""\
exec >{SAID}.new 2>&1
id -Z
cd {BY_SYSTEMD[1].view}/demo || exit
try() {{ word=$1; shift; if "$@"; then echo "$word: yes"; else echo "$word: no"; fi; }}
try read grep -q main hello.c
try write cp /bin/true confined
try run ./confined
try remove rm confined
try guarded cat .git/config
mv {SAID}.new {SAID}
"""


@dataclass(frozen=True)
class Denial:
    """One access that SELinux did not allow, from the kernel's log."""

    program: str
    permissions: str
    source: str
    target: str
    kind: str


_DENIAL = re.compile(
    r'avc:  denied  \{ (?P<permissions>[^}]*) \} .*comm="(?P<program>[^"]*)".*'
    r" scontext=[^:]*:[^:]*:(?P<source>[^: ]*)\S* tcontext=[^:]*:[^:]*:(?P<target>[^: ]*)\S*"
    r" tclass=(?P<kind>\S*)"
)


def denials(machine: Machine) -> set[Denial]:
    """Return what was denied since the boot to our programs, and to all on views, shares and seals.

    Other denials do not concern gitguardfs. restorecon asks each labelled file system for its
    size: that of a lid has a view on top, which answers nobody of that domain. libfuse runs
    mount(8) for a record that we write ourselves; where lid and view are made, mount(8) gets no
    domain of its own.
    """
    found = {Denial(**m.groupdict()) for m in _DENIAL.finditer(machine.sh("dmesg"))}
    asked = Denial("restorecon", "getattr", "setfiles_t", "fusefs_t", "filesystem")
    recorded = Denial(
        "gitguardfs", "nosuid_transition", "unconfined_t", "unconfined_mount_t", "process2"
    )
    return {
        d for d in found - {asked, recorded} if d.program in PROGRAMS or d.target in FILE_SYSTEMS
    }


@dataclass
class World:
    machine: Machine
    at: dict[str, Path]


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with phase("image, SELinux"):
        image = images.obtain(images.DEBIAN_SELINUX)
    with area() as place:
        guards = (*BY_SYSTEMD, BY_FSTAB)
        at = {each.tag: place / each.tag for each in guards}
        for path in at.values():
            path.mkdir()
            os.chown(path, HOST_UID, HOST_GID)
            make_demo(path / "demo")
        shares = [Share(each.tag, at[each.tag], each.transport) for each in guards]
        shares.append(Share("checkout", checkout(place / "checkout"), read_only=True))
        machine = Machine(image, tmp_path_factory.mktemp("selinux"), shares)
        try:
            machine.start()
            take_checkout(machine)
            with phase("SELinux: install.sh and vm-mount, twice"):
                done = install(machine)
                assert "umount does not call" not in done.stdout + done.stderr, str(done)
                for each in BY_SYSTEMD:
                    guard(machine, each)
            yield World(machine, at)
        finally:
            PHASES.extend((f"SELinux: {what}", seconds) for what, seconds in machine.boots)
            machine.kill()


@pytest.fixture(autouse=True)
def always_enforcing(enforcing: World) -> Iterator[None]:
    assert enforcing.machine.sh("getenforce") == "Enforcing"
    yield
    assert enforcing.machine.sh("getenforce") == "Enforcing"


def domain_of(machine: Machine, view: str) -> str:
    """Return the type that the daemon of the guard at ``view`` runs in."""
    contexts = machine.sh(f"ps -eo label=,args= | grep -e '[g]itguardfs.* {view}'").splitlines()
    (found,) = {line.split()[0].split(":")[2] for line in contexts}
    return found


def type_of(machine: Machine, path: str) -> str:
    label = machine.sh(f"getfattr --absolute-names --only-values -n security.selinux {path}")
    return label.split(":")[2]


def settle(machine: Machine) -> list[str]:
    """Wait until the boot is over; returns the units that failed."""
    machine.run("systemctl is-system-running --wait")
    return machine.sh("systemctl --failed --no-legend --plain").splitlines()


# --------------------------------------------------------------------------- the first boot


def test_commands_are_run_as_from_an_unconfined_login(enforcing: World) -> None:
    context = enforcing.machine.sh("id -Z")
    assert context == "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023"


def test_what_was_installed_and_written_has_the_labels_of_its_places(enforcing: World) -> None:
    machine = enforcing.machine
    assert type_of(machine, "/usr/local/bin/gitguardfs") == "bin_t"
    assert machine.sh("restorecon -n -v -R /usr/local /sbin/umount.* /etc /var/lib") == ""


@EACH
def test_the_share_is_guarded(enforcing: World, each: Guard) -> None:
    machine = enforcing.machine
    assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]
    machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")


@EACH
def test_the_daemon_is_in_the_domain_of_services_and_its_view_has_the_label_of_fuse(
    enforcing: World, each: Guard
) -> None:
    assert domain_of(enforcing.machine, each.view) == "initrc_t"
    assert type_of(enforcing.machine, f"{each.view}/demo/README") == "fusefs_t"


@EACH
def test_the_host_commits_what_the_agent_wrote(enforcing: World, each: Guard) -> None:
    share = enforcing.at[each.tag] / "demo"
    enforcing.machine.sh(
        # -a and --preserve=context ask for labels, which a view does not keep.
        "cp -a /etc/hostname copied && cp --preserve=mode,context /etc/hostname again &&"
        " touch /var/tmp/moved && mv /var/tmp/moved . && mv README README.md",
        cwd=f"{each.view}/demo",
        uid=AGENT,
    )
    git(share, "add", "--all")
    git(share, "commit", "--quiet", "--message=by the agent")
    assert git(share, "fsck", "--strict") == ""
    owner = os.stat(share / "moved")
    assert (owner.st_uid, owner.st_gid) == (HOST_UID, HOST_GID)


@EACH
@pytest.mark.parametrize("uid", [AGENT, 0])
def test_labels_cannot_be_changed_through_the_view(enforcing: World, each: Guard, uid: int) -> None:
    for name in ("hello.c", ".git"):
        done = enforcing.machine.run(f"chcon -t user_home_t {each.view}/demo/{name}", uid=uid)
        assert done.rc != 0, str(done)
    assert type_of(enforcing.machine, f"{each.view}/demo/hello.c") == "fusefs_t"


@EACH
def test_doctor_finds_nothing(enforcing: World, each: Guard) -> None:
    attack = ["--attack"] if each is BY_SYSTEMD[0] else []
    command = ["gitguard", "doctor", each.view, "--user", "agent", *attack]
    done = enforcing.machine.run(command, timeout=LIMIT)
    assert done.rc == 0 and "no findings" in done.stdout, str(done)
    assert ("attacks not tried" in done.stdout) != bool(attack)


def test_unmounting_takes_the_seal_off_and_a_start_puts_it_on(enforcing: World) -> None:
    machine, each = enforcing.machine, BY_SYSTEMD[0]
    machine.sh(["umount", each.view])
    assert mounted(machine, each.raw) == [each.transport]
    machine.sh(["systemctl", "start", service_of(machine, each)])
    assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"]
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]


def test_a_killed_daemon_comes_back_in_its_domain(enforcing: World) -> None:
    machine, each = enforcing.machine, BY_SYSTEMD[1]
    machine.sh(["kill", "-9", pids_of(machine, each)[1]])
    machine.sh(f"until test -e {each.view}/demo; do sleep 0.5; done")
    assert mounted(machine, each.raw) == [each.transport, "ramfs"]
    assert domain_of(machine, each.view) == "initrc_t"


def test_the_agent_has_a_git_of_its_own(enforcing: World) -> None:
    """The daemon runs git: what is denied to it shows in the log, which a later test reads."""
    machine, each = enforcing.machine, BY_FSTAB
    words = [*vm_mount(each, git="private"), "--style", "systemd"]
    machine.run(words).ok()
    try:
        commit_in_private(machine, f"{each.view}/demo", enforcing.at[each.tag] / "demo")
    finally:
        machine.run([*words, "--remove"]).ok()


def service_of(machine: Machine, each: Guard) -> str:
    return machine.sh(["systemd-escape", "-p", "--template=gitguardfs@.service", each.view])


# A user who is confined


def said_at_login(machine: Machine) -> dict[str, str]:
    """Log the agent in on the console; returns what the profile says, with the context."""
    machine.sh(f"rm -f {SAID} && systemctl restart serial-getty@ttyS0")
    machine.sh(f"until test -e {SAID}; do sleep 0.5; done")
    context, *lines = machine.sh(f"cat {SAID}").splitlines()
    answers = dict(line.split(": ") for line in lines if re.fullmatch(r"\w+: (yes|no)", line))
    return {"context": context, **answers}


@pytest.fixture
def confined(enforcing: World) -> Iterator[Machine]:
    """The agent is confined when logging in, as user_u."""
    machine = enforcing.machine
    seusers, profile = "/etc/selinux/default/seusers", "/home/agent/.profile"
    machine.sh(f"cp -a {seusers} /root/seusers && echo agent:user_u:s0 >>{seusers}")
    machine.run(f"cat >{profile} && chcon -u user_u -t user_home_t {profile}", stdin=PROFILE).ok()
    machine.sh(f"chown agent: {profile} && chcon -u user_u /home/agent")
    machine.run(f"mkdir -p {os.path.dirname(LOGIN)} && cat >{LOGIN}", stdin=LOGIN_TEXT).ok()
    machine.sh("systemctl daemon-reload")
    try:
        yield machine
    finally:
        machine.sh(f"rm {LOGIN} {profile} && mv /root/seusers {seusers}")
        machine.sh("systemctl daemon-reload && systemctl restart serial-getty@ttyS0")


def test_a_confined_user_needs_booleans_to_work_and_the_guard_holds_with_them(
    confined: Machine,
) -> None:
    user = {"context": "user_u:user_r:user_t:s0", "read": "yes", "guarded": "no"}
    assert said_at_login(confined) == {**user, "write": "no", "run": "no", "remove": "no"}
    assert {(d.source, d.target) for d in denials(confined)} == {("user_t", "fusefs_t")}
    confined.sh("setsebool user_rw_noexattrfile on")
    assert said_at_login(confined) == {**user, "write": "yes", "run": "no", "remove": "yes"}
    confined.sh("setsebool user_exec_noexattrfile on")
    assert said_at_login(confined) == {**user, "write": "yes", "run": "yes", "remove": "yes"}


# Attacks, the last of this boot: they leave copies of a project


@pytest.fixture(scope="module")
def sieges(enforcing: World) -> dict[str, Siege]:
    found = {each.tag: Siege(enforcing.at[each.tag], SOME) for each in BY_SYSTEMD}
    with phase("SELinux: attacks"):
        for each in BY_SYSTEMD:
            found[each.tag].carry_out(enforcing.machine, each.view)
    return found


@EACH
@pytest.mark.parametrize("case", SOME, ids="-".join)
def test_is_refused(sieges: dict[str, Siege], each: Guard, case: Case) -> None:
    sieges[each.tag].check(case)


def test_nothing_of_ours_was_denied(enforcing: World) -> None:
    assert {d for d in denials(enforcing.machine) if d.source != "user_t"} == set()


# --------------------------------------------------------------------------- fstab, and boots


def test_vm_mount_refuses_what_would_not_come_back(enforcing: World) -> None:
    machine = enforcing.machine
    done = machine.run(vm_mount(BY_FSTAB))
    done.failed("SELinux", "mount_t", "sys_ptrace", "--style systemd")
    assert done.stderr.count("\n") == 1, str(done)
    assert mounted(machine, BY_FSTAB.raw) == mounted(machine, BY_FSTAB.view) == []


@pytest.fixture(scope="module")
def rebooted(enforcing: World) -> World:
    """Booted again, with a guard entered into fstab by hand."""
    machine = enforcing.machine
    machine.sh(f"install -d -o agent -g agent {BY_FSTAB.view} && mkdir -p {BY_FSTAB.raw}")
    machine.run("cat >>/etc/fstab", stdin=FSTAB_LINES).ok()
    machine.sh(f"systemctl daemon-reload && mount {BY_FSTAB.raw} && mount {BY_FSTAB.view}")
    assert mounted(machine, BY_FSTAB.view) == ["ramfs", "fuse.gitguardfs"]
    assert domain_of(machine, BY_FSTAB.view) == "unconfined_mount_t"
    machine.sh("sync")
    machine.reboot()
    return enforcing


def test_a_reboot_brings_back_what_systemd_starts(rebooted: World) -> None:
    machine = rebooted.machine
    failed = settle(machine)
    for each in BY_SYSTEMD:
        assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"], str(failed)
        assert mounted(machine, each.raw) == [each.transport, "ramfs"]
        assert domain_of(machine, each.view) == "initrc_t"
        assert machine.sh(f"stat -c %u:%g {each.view}/demo/hello.c", uid=AGENT) == "1000:1000"
        machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")


def test_where_mount_is_confined_what_fstab_mounts_stays_closed(rebooted: World) -> None:
    machine = rebooted.machine
    (failed,) = settle(machine)
    assert failed.split()[0] == machine.sh(
        ["systemd-escape", "-p", "--suffix=mount", BY_FSTAB.view]
    )
    assert mounted(machine, BY_FSTAB.view) == []
    assert mounted(machine, BY_FSTAB.raw) == ["virtiofs", "ramfs"]
    machine.run(["ls", BY_FSTAB.raw], uid=AGENT).failed("Permission denied")


def test_what_is_denied_at_boot_is_denied_to_mount_alone(rebooted: World) -> None:
    """The log shows denials, so that an empty log in the other tests means something."""
    found = denials(rebooted.machine)
    assert {d.source for d in found} == {"mount_t"}
    assert Denial("gitguardfs", "search", "mount_t", "sysctl_vm_t", "dir") in found


@pytest.fixture(scope="module")
def with_unconfined_mount(rebooted: World) -> World:
    """Boot the same disk again with mount_t unconfined, as in Fedora's policy."""
    machine = rebooted.machine
    machine.sh(f"cp {selinux.MOUNT_UNCONFINED} /etc/selinux/default/policy/policy.* && sync")
    machine.stop()
    machine.start("boot with mount_t unconfined")
    return rebooted


def test_where_mount_is_unconfined_fstab_brings_its_guard_back(
    with_unconfined_mount: World,
) -> None:
    machine = with_unconfined_mount.machine
    assert settle(machine) == []
    for each in (*BY_SYSTEMD, BY_FSTAB):
        assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"]
        assert mounted(machine, each.raw) == [each.transport, "ramfs"]
        machine.run(f"cat {each.view}/demo/.git/config", uid=AGENT).failed("Permission denied")
    assert domain_of(machine, BY_FSTAB.view) == "mount_t"


def test_vm_mount_does_fstab_then(with_unconfined_mount: World) -> None:
    machine = with_unconfined_mount.machine
    machine.sh(["umount", BY_FSTAB.view])
    machine.sh(f"umount {BY_FSTAB.raw} && sed -i '/{BY_FSTAB.tag}/d' /etc/fstab")
    done = machine.run(vm_mount(BY_FSTAB)).ok()
    assert "at boot: by fstab" in done.stdout, str(done)


def test_nothing_of_ours_is_denied_then(with_unconfined_mount: World) -> None:
    assert denials(with_unconfined_mount.machine) == set()


@EACH
def test_remove_takes_away_what_a_boot_has_mounted(
    with_unconfined_mount: World, each: Guard
) -> None:
    machine = with_unconfined_mount.machine
    assert mounted(machine, each.view) == ["ramfs", "fuse.gitguardfs"]
    machine.run(vm_mount(each, "--remove")).ok()
    assert mounted(machine, each.view) == []
    assert mounted(machine, each.raw) == []
    assert machine.run(f"grep -rl -- 'What={each.tag}$' /etc/systemd/system").stdout == ""
