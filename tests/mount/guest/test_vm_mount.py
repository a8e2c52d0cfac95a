"""vm-mount with real files, a real guard, real unmounts; a tmpfs stands in for a 9p share."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import click
import pytest

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.commands import vm_mount
from gitguardfs.guest import facts, guard
from gitguardfs.guest.changes import Changes
from gitguardfs.linux import mountinfo as mounts
from gitguardfs.linux import syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards
from gitguardfs.mounting import unmount as unmounting
from gitguardfs.options import fstab_entries
from gitguardfs.options.config_files import BACKUP_SUFFIX
from tests.support.mounting import LIMIT, unmount
from tests.support.people import AGENT, as_user
from tests.support.vm_world import FOREIGN, World, is_guarded, mountinfo

# ------------------------------------------------------------------------------------- fstab


def test_one_command_guards_a_share_and_writes_it_down(world: World) -> None:
    world.install()
    is_guarded(world)
    text = world.fstab().decode()
    assert text.startswith(FOREIGN.decode() + "\n")
    assert f"projects {world.raw} 9p trans=virtio," in text
    both_ways = "map=501/1000:1000/501:@20/@1000:@1000/@20"
    assert f"{world.raw} {world.view} fuse.gitguardfs {both_ways}," in text
    assert Path(f"{world.system.fstab}{BACKUP_SUFFIX}").read_bytes() == FOREIGN
    assert os.stat(world.area / "shares").st_mode & 0o777 == 0o700
    assert os.stat(world.raw.parent).st_uid == 0


def test_the_mount_point_that_is_made_is_the_users(world: World) -> None:
    world.install(persist=False, map_mount=f"{world.area}/home/me/a/b")
    unmount(Path(f"{world.area}/home/me/a/b"))
    for name in ("a", "a/b"):
        assert os.stat(world.area / "home/me" / name).st_uid == AGENT
    assert world.fstab() == FOREIGN


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_second_run_changes_nothing_and_says_so(
    systemd_world: World, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    systemd_world.install(style=style)
    before = systemd_world.state()
    capsys.readouterr()
    systemd_world.install(style=style)
    assert capsys.readouterr().out.startswith("Nothing to do:")
    assert systemd_world.state() == before


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_removal_leaves_what_was_there_before(
    systemd_world: World, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = systemd_world
    before = world.state()
    world.install(style=style)
    world.remove()
    after = world.state()
    assert after["mounts"] == before["mounts"] == []
    assert world.fstab().rstrip(b"\n") == FOREIGN
    assert [p for p in (world.area / "units").rglob("*") if not p.is_dir()] == []
    assert not world.raw.exists()
    capsys.readouterr()
    world.remove()
    assert capsys.readouterr().out == "Nothing to remove.\n"


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_second_run_keeps_what_mounts_the_view_at_boot(systemd_world: World, style: str) -> None:
    world = systemd_world
    world.install(style=style)
    world.install(style=None, options=("git=hide",))
    assert (b"git=hide" in world.fstab()) == (style == "fstab")
    units = [p for p in (world.area / "units").rglob("*") if not p.is_dir()]
    assert bool(units) == (style == "systemd")


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_changed_option_replaces_entry_and_view(systemd_world: World, style: str) -> None:
    world = systemd_world
    world.install(style=style)
    world.install(style=style, options=("hide=hello.c",))
    assert as_user(os.path.lexists, world.view / "project/.git")
    assert len([line for line in mountinfo() if str(world.view) in line]) == 2
    written = world.fstab() + b"".join(p.read_bytes() for p in world.area.glob("units/*.d/*"))
    assert written.count(b"hide=hello.c") == 1
    assert written.count(b"map=") == 1


@pytest.mark.parametrize(("first", "second"), [("fstab", "systemd"), ("systemd", "fstab")])
def test_the_other_style_takes_the_place_of_the_first(
    systemd_world: World, first: str, second: str
) -> None:
    world = systemd_world
    world.install(style=first)
    world.install(style=second)
    is_guarded(world)
    assert (b"x-gitguardfs" in world.fstab()) == (second == "fstab")
    units = [p.name for p in (world.area / "units").rglob("*") if not p.is_dir()]
    assert bool(units) == (second == "systemd")


# --------------------------------------------------------------------------------- faults


def break_guard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.area / "broken").touch()


def break_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "out of order")

    monkeypatch.setattr(os, "replace", fail)


def break_planning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise UserError("out of order")

    monkeypatch.setattr(facts, "owner_of_share", fail)


@pytest.mark.parametrize("break_it", [break_guard, break_write, break_planning])
def test_a_failure_puts_everything_back(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[World, pytest.MonkeyPatch], None],
) -> None:
    before = world.state()
    with monkeypatch.context() as broken:
        break_it(world, broken)
        with pytest.raises((UserError, OSError), match="out of order"):
            world.install()
    (world.area / "broken").unlink(missing_ok=True)
    after = world.state()
    after.pop(f"{world.system.fstab}{BACKUP_SUFFIX}", None)
    assert after == before
    world.install()
    is_guarded(world)


def test_a_service_that_does_not_start_takes_its_units_along(systemd_world: World) -> None:
    world = systemd_world
    before = world.state()
    (world.area / "broken").touch()
    with pytest.raises(UserError, match="out of order"):
        world.install(style="systemd")
    (world.area / "broken").unlink()
    (world.area / "units/multi-user.target.wants").rmdir()
    assert world.state() == before
    assert (world.area / "systemctl.log").read_text().endswith("daemon-reload\n")


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_change_that_fails_brings_the_old_view_back(
    systemd_world: World, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = systemd_world
    world.install(style=style)
    before = world.state()
    with monkeypatch.context() as broken:
        break_write(world, broken)
        with pytest.raises(OSError, match="out of order"):
            world.install(style=style, options=("hide=hello.c",))
    assert world.state() == before
    is_guarded(world)


@pytest.mark.parametrize("change", [True, False], ids=["change", "remove"])
def test_a_busy_view_is_not_forced_and_its_user_is_named(world: World, change: bool) -> None:
    world.install()
    before = world.state()
    with subprocess.Popen(["sleep", "60"], cwd=world.view) as busy:
        with pytest.raises(UserError, match=rf"busy \(end these first: .*sleep \({busy.pid}\)"):
            world.install(options=("git=hide",)) if change else world.remove()
        busy.kill()
    assert world.state() == before
    is_guarded(world)


def unmount_by_hand(world: World) -> None:
    """Unmount the view, and wait for its daemon's end."""
    daemon = guards.daemon_of(guard_of(world))
    assert daemon is not None
    process = os.pidfd_open(daemon.pid)
    subprocess.run(["umount", world.view], check=True)
    assert select.select([process], [], [], LIMIT)[0]
    os.close(process)


def kill_daemon(world: World) -> None:
    """Kill this world's daemon, and wait until its view is dead."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[-3:-1] == [os.fsencode(world.raw), os.fsencode(world.view)]:
                os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not guards.is_dead(os.fsencode(world.view)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_dead_view_is_replaced(world: World) -> None:
    world.install()
    kill_daemon(world)
    world.install()
    is_guarded(world)
    assert len([line for line in mountinfo() if line.split()[0] == str(world.raw)]) == 2


def test_a_dead_view_and_its_seal_can_be_removed(world: World) -> None:
    world.install()
    kill_daemon(world)
    world.remove()
    assert world.state()["mounts"] == []


def test_a_mount_point_through_a_users_symlink_is_refused(world: World) -> None:
    link = world.area / "home/me/link"
    link.symlink_to("/etc")
    os.chown(link, AGENT, AGENT, follow_symlinks=False)
    before = world.state()
    with pytest.raises(UserError, match="symlink that is not root's"):
        world.install(map_mount=f"{link}/x")
    assert world.state() == before
    assert not os.path.exists("/etc/x")


def test_without_a_seal_the_raw_share_must_be_in_a_private_place(world: World) -> None:
    with pytest.raises(UserError, match="without a seal everybody"):
        world.install(mount=f"{world.area}/raw", options=("no-seal",))
    world.install(options=("no-seal",))
    is_guarded(world)


# --------------------------------------------------------------- the options of the running daemon


def daemon_of(world: World) -> tuple[str, ...] | None:
    """Return the arguments of the view's daemon; None if there is none."""
    look = facts.gather(world.system)
    return look.running.get(str(world.view))


def test_a_change_that_fails_without_an_entry_brings_the_old_view_back(world: World) -> None:
    world.install(persist=False, options=("hide=other*",))
    before, told = world.state(), daemon_of(world)
    with pytest.raises(UserError, match="audit log"):
        world.install(persist=False, options=(f"audit-log={world.area}/missing/x",))
    assert world.state() == before
    assert daemon_of(world) == told and told is not None
    is_guarded(world)


def test_a_view_that_cannot_be_brought_back_leaves_the_share_closed_and_says_so(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.install(persist=False)
    (world.area / "broken").touch()
    with pytest.raises(UserError, match="out of order"):
        world.install(persist=False, options=("git=hide",))
    said = capsys.readouterr().out
    assert f"{world.view} is no longer guarded: gitguardfs: out of order" in said
    assert "undone" not in said
    with pytest.raises(PermissionError):
        as_user(os.listdir, world.raw)
    assert list(world.raw.iterdir()) == []  # not even for root
    (world.area / "broken").unlink()
    world.install(persist=False)
    is_guarded(world)


@pytest.mark.parametrize("persist", [True, False])
def test_a_view_that_was_mounted_otherwise_by_hand_is_put_right(
    world: World, persist: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    world.install(persist=persist)
    unmount_by_hand(world)
    command = [world.system.guard, world.raw, world.view, "--git=off", "--no-seal", "--map", "1:1"]
    subprocess.run([str(word) for word in command], check=True, stderr=subprocess.DEVNULL)
    assert daemon_of(world) == ("git=off", "no-seal", "map=1:1")
    world.install(persist=persist)
    said = capsys.readouterr().out
    assert "Nothing to do" not in said
    assert "No longer in force, since it was not given again: -o git=off" in said
    is_guarded(world)


@contextmanager
def fake_view(world: World) -> Iterator[None]:
    """A mount by fusermount3, which claims to be the guard and answers only the agent."""
    world.view.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    try:
        data = f"fd={device},rootmode=40000,user_id={AGENT},group_id={AGENT}"
        syscalls.mount(str(world.raw), os.fsencode(world.view), "fuse.gitguardfs", 0, data)
        yield
        assert mounted_in(world) == [f"{world.view} fuse.gitguardfs"]
    finally:
        os.close(device)


def mounted_in(world: World) -> list[str]:
    return [line for line in mountinfo() if str(world.area) in line]


def test_a_users_fake_at_the_place_of_the_view_is_called_what_it_is(world: World) -> None:
    with fake_view(world):
        guards = facts.gather(world.system).guards()
        assert [g for g in guards if g.path == os.fsencode(world.view)] == []
        with pytest.raises(UserError, match="FUSE file system that is not root's"):
            world.install()


def test_a_users_fake_elsewhere_is_in_nobodys_way(world: World) -> None:
    with fake_view(world):
        world.install(map_mount=f"{world.view}2")
        assert len(mounted_in(world)) == 5
        world.remove()


def test_a_fake_over_the_view_is_not_unmounted_in_its_place(world: World) -> None:
    world.install()
    subprocess.run(["mount", "-t", "tmpfs", "fake", world.view], check=True)
    before = world.state()
    with pytest.raises(UserError, match="covered by another mount"):
        world.remove()
    assert world.state() == before
    subprocess.run(["umount", world.view], check=True)
    is_guarded(world)


def test_an_unmount_is_not_led_elsewhere_by_what_the_agent_puts_in_its_way(world: World) -> None:
    world.install(persist=False)
    look = facts.gather(world.system)
    victim = world.area / "victim/projects"
    victim.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "victim", victim], check=True)
    (world.area / "home/me").rename(world.area / "home/old")
    (world.area / "home/me").symlink_to(victim.parent)
    guard.stop(Changes(print), world.system, look, str(world.raw), str(world.view))
    kinds = [line for line in world.state()["mounts"] if "fuse" in line]  # type: ignore[attr-defined]
    assert kinds == []
    assert os.path.ismount(victim)


def test_a_signal_while_the_view_comes_up_leaves_no_view_behind(world: World) -> None:
    before = world.state()
    script = (world.area / "gitguardfs").read_text().split("\n")
    script.insert(1, "kill -TERM $PPID")
    (world.area / "gitguardfs").write_text("\n".join(script))
    old = signal.signal(signal.SIGTERM, vm_mount._leave)
    try:
        with pytest.raises(UserError, match="ended by SIGTERM"):
            world.install()
    finally:
        signal.signal(signal.SIGTERM, old)
    after = world.state()
    del before[f"{world.area}/gitguardfs"], after[f"{world.area}/gitguardfs"]
    assert after == before


def test_what_mount_resolved_to_another_place_is_refused(world: World) -> None:
    world.install()
    (entry,) = [e for e in fstab_entries.entries(world.fstab()) if e.is_guard]
    unmount_by_hand(world)
    victim = world.area / "victim"
    victim.mkdir()
    # mount(8) hands on what the agent's symlink led to.
    command = [str(world.system.guard), str(world.raw), str(victim), "-o", ",".join(entry.options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (32, 1)
    assert f"the mount point must be {world.view}, but {victim} was given" in done.stderr
    assert not os.path.ismount(victim)
    command[2] = str(world.view)
    assert subprocess.run(command).returncode == 0
    is_guarded(world)


# --------------------------------------------------------------------- the raw share is never open


@contextmanager
def nobody_gets_in(path: Path) -> Iterator[None]:
    """Assert that the agent, which tries to enter a raw share in a loop, never succeeds."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.setgroups([])
        os.setresgid(AGENT, AGENT, AGENT)
        os.setresuid(AGENT, AGENT, AGENT)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        os.write(write_end, b"s")
        while True:
            with suppress(OSError):
                os.stat(path / "project/hello.c")
                os.write(write_end, b"!")
                os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        assert pipe.read(1) == b"s"
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
        assert pipe.read() == b"", f"the agent got into {path}"


@pytest.mark.parametrize("style", ["fstab", "systemd"])
@pytest.mark.every_processor
def test_the_raw_share_is_never_open_while_it_is_set_up_or_changed(
    systemd_world: World, style: str
) -> None:
    world = systemd_world
    raw = world.area / "mnt/projects"
    raw.parent.mkdir()
    with nobody_gets_in(raw):
        world.install(mount=str(raw), style=style)
        world.install(mount=str(raw), style=style, options=("hide=hello.c",))
        assert os.stat(raw.parent).st_mode & 0o777 == 0o755
    assert as_user(os.path.lexists, world.view / "project/.git")
    with nobody_gets_in(raw):
        (world.area / "broken").touch()
        with pytest.raises(UserError, match="out of order"):
            world.install(mount=str(raw), style=style)
        (world.area / "broken").unlink()
        world.install(mount=str(raw), style=style)
    assert mounted_in(world) == [
        f"{raw} tmpfs", f"{raw} ramfs", f"{world.view} ramfs", f"{world.view} fuse.gitguardfs",
    ]  # fmt: skip


def test_a_share_that_cannot_be_sealed_is_not_mounted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(1, "no seals today")

    monkeypatch.setattr("gitguardfs.mounting.seal.Seal", refuse)
    before = world.state()
    with pytest.raises(UserError, match="no seals today"):
        world.install()
    assert world.state() == before


def test_a_question_stands_before_anything_is_mounted(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = world.state()
    said = []

    def refuse() -> None:
        assert world.state() == before
        said.append(capsys.readouterr().out)
        raise click.Abort

    with pytest.raises(click.Abort):
        world.install(confirm=refuse)
    assert world.state() == before
    assert f"-- projects {world.raw}" in said[0] and "fuse.gitguardfs map=" in said[0]
    world.install(confirm=lambda: None)
    is_guarded(world)


class ClosedPipe(io.StringIO):
    """Standard output whose reader is gone after the first line."""

    def write(self, text: str) -> int:
        if self.tell():
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


def test_a_reader_who_leaves_changes_nothing_of_what_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.state()
    with monkeypatch.context() as broken:
        broken.setattr(sys, "stdout", ClosedPipe())
        (world.area / "broken").touch()
        with pytest.raises(UserError, match="out of order"):
            world.install()
        (world.area / "broken").unlink()
        assert world.state() == before
        world.install()
        world.install(options=("hide=*.c",))
        assert daemon_of(world) is not None and "hide=*.c" in str(daemon_of(world))
        with pytest.raises(PermissionError):
            as_user(os.listdir, world.raw)
        world.remove()
    assert mounted_in(world) == []
    assert b"x-gitguardfs" not in world.fstab()


def guard_of(world: World) -> MountInfo:
    found = facts.gather(world.system).guard_at(str(world.view))
    assert found is not None
    return found


# ------------------------------------------------------ copies of mounts in the agent's namespaces


@contextmanager
def copies() -> Iterator[None]:
    """Keep a mount namespace of the agent's, which has copies of all mounts."""
    command = ["unshare", "-Urm", "sh", "-c", "echo ready; exec sleep 120"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, user=AGENT, group=AGENT, extra_groups=[]
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@pytest.mark.every_processor
@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_copy_of_the_view_in_the_agents_namespace_locks_nobody_out(
    systemd_world: World, style: str
) -> None:
    world = systemd_world
    world.install(style=style)
    daemon = guards.daemon_of(guard_of(world))
    assert daemon is not None
    with copies():
        subprocess.run(["umount", "-i", world.view], check=True)
        with nobody_gets_in(world.raw):
            world.install(style=style)
        is_guarded(world)
        assert daemon not in guards.servers()
    with copies():
        subprocess.run(["umount", "-i", world.view], check=True)
        world.remove()
    assert mounted_in(world) == []


def test_a_daemon_that_has_a_view_is_not_taken_for_a_forgotten_one(world: World) -> None:
    world.install()
    daemon = guards.daemon_of(guard_of(world))
    assert daemon is not None and guards.orphan_of(str(world.raw)) is None
    unmounting.stop_orphan(str(world.raw))
    with pytest.raises(UserError, match="guarded already"):
        unmounting.remove_seals(str(world.raw))
    is_guarded(world)


@pytest.mark.every_processor
def test_an_earlier_daemon_at_the_place_of_the_view_is_not_taken_for_its_daemon(
    world: World,
) -> None:
    source = world.area / "source"
    source.mkdir()
    world.view.mkdir()
    os.chown(world.view, AGENT, AGENT)
    command = [str(world.system.guard), "--no-seal", str(source), str(world.view)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    earlier = guards.daemon_of(guard_of(world))
    assert earlier is not None
    with copies():
        subprocess.run(["umount", "-i", world.view], check=True)
        world.install()
        daemon = guards.daemon_of(guard_of(world))
        assert daemon is not None and daemon != earlier
        with nobody_gets_in(world.raw):
            world.install(options=("hide=hello.c",))
        assert earlier in guards.servers()
        assert as_user(os.path.lexists, world.view / "project/.git")


def test_a_guard_over_the_view_is_named_as_its_user(world: World) -> None:
    world.install()
    other = world.area / "other"
    other.mkdir()
    command = [str(world.system.guard), "--no-seal", str(world.view), str(other)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(UserError, match=r"busy \(end these first: \S+ \(\d+\)\)"):
            world.remove()
        is_guarded(world)
    finally:
        unmount(other)


# ------------------------------------------------------------------------------ mounts of others


def test_what_somebody_mounted_over_the_share_is_not_taken_for_its_seal(world: World) -> None:
    world.install()
    kill_daemon(world)
    subprocess.run(["mount", "-t", "ramfs", "precious", world.raw], check=True)
    (world.raw / "file").write_text("kept")
    before = world.state()
    for act in (world.install, world.remove):
        with pytest.raises(UserError, match=r"ramfs \(precious\) is mounted over the share"):
            act()
    assert world.state() == before
    assert (world.raw / "file").read_text() == "kept"


def test_a_mount_that_took_over_the_number_of_another_stays(world: World) -> None:
    world.install()
    disk = world.area / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "disk", disk], check=True)
    (number,) = [m.mnt_id for m in mounts.listed() if m.mount_point == os.fsencode(disk)]
    # The examined mount is gone, and the kernel has given its number to the disk.
    gone = replace(guard_of(world), mnt_id=number)
    unmounting.unmount(gone)
    unmounting.unmount_share(gone)
    assert not unmounting.stop_keeping_seal(gone, str(world.raw))
    assert os.path.ismount(disk)
    is_guarded(world)


def test_a_share_that_is_mounted_elsewhere_as_well_is_refused(world: World) -> None:
    world.install()
    other = world.area / "other"
    other.mkdir()
    unmount_by_hand(world)
    subprocess.run(["mount", "--bind", world.raw, other], check=True)
    with pytest.raises(UserError, match=f"mounted at {other} already"):
        world.install()


def test_a_share_that_others_mount_stays_and_is_said_to_be_open(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = world.area / "mnt/projects"
    raw.mkdir(parents=True)
    line = f"projects {raw} 9p access=0 0 0"
    Path(world.system.fstab).write_bytes(FOREIGN + b"\n" + line.encode() + b"\n")
    subprocess.run([world.system.mount, "-t", "9p", "-o", "access=0", "projects", raw], check=True)
    world.install(mount=str(raw))
    with pytest.raises(PermissionError):
        as_user(os.listdir, raw)
    capsys.readouterr()
    world.remove()
    assert mounted_in(world) == [f"{raw} tmpfs"]
    assert as_user(os.listdir, raw) == ["project"]
    said = capsys.readouterr().out.splitlines()[-1]
    assert f"stays mounted at {raw}, open now" in said and "line 4 of fstab mounts it" in said


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_seal_that_is_undone_is_not_spoken_of(systemd_world: World, style: str) -> None:
    world = systemd_world
    raw = world.area / "mnt/projects"
    raw.mkdir(parents=True)
    subprocess.run([world.system.mount, "-t", "9p", "-o", "access=0", "projects", raw], check=True)
    with pytest.raises(UserError) as said:
        world.install(mount=str(raw), style=style, options=(f"audit-log={world.area}/missing/x",))
    assert "cannot write the audit log" in str(said.value)
    assert "seal" not in str(said.value) and "opens it" not in str(said.value)
    assert as_user(os.listdir, raw) == ["project"]
    assert mounted_in(world) == [f"{raw} tmpfs"]


def test_a_guard_line_without_its_share_is_taken_out(world: World) -> None:
    world.install()
    unmount_by_hand(world)
    subprocess.run(["umount", world.raw], check=True)
    lines = world.fstab().split(b"\n")
    left = b"\n".join(line for line in lines if not line.startswith(b"projects "))
    Path(world.system.fstab).write_bytes(left)
    world.remove()
    assert world.fstab().rstrip(b"\n") == FOREIGN


def test_a_process_with_any_name_is_named_and_writes_nothing_to_the_terminal(world: World) -> None:
    """A process chooses its name, in bytes: PR_SET_NAME."""
    world.install(persist=False)
    code = (
        "import ctypes, time\n"
        "ctypes.CDLL(None).prctl(15, b'\\xff\\x1b[2J\\n\\xe2\\x80\\xae', 0, 0, 0)\n"
        "print(flush=True); time.sleep(120)"
    )
    command = ["/usr/bin/python3", "-c", code]
    with subprocess.Popen(command, cwd=world.view, stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None and busy.stdout.read(1) == b"\n"
            with pytest.raises(UserError) as said:
                world.remove()
        finally:
            busy.kill()
    assert rf"end these first: \xff\x1b[2J\n\u202e ({busy.pid})" in str(said.value)
    assert str(said.value).isprintable()
    is_guarded(world)


# ------------------------------------------------------------------------------- refusals


def full_view(world: World) -> None:
    world.view.mkdir()
    (world.view / "thesis").write_text("mine")
    os.chown(world.view, AGENT, AGENT)


def test_only_nonempty_covers_what_is_in_a_directory(world: World) -> None:
    full_view(world)
    before = world.state()
    with pytest.raises(UserError, match="is not empty"):
        world.install()
    assert world.state() == before
    world.install(options=("nonempty",), persist=False)
    is_guarded(world)
    # The files below the view count, not the ones in it.
    with pytest.raises(UserError, match="is not empty"):
        world.install(persist=False, options=("git=hide",))
    world.install(persist=False, options=("git=hide", "nonempty"))
    kill_daemon(world)
    with pytest.raises(UserError, match="is not empty"):
        world.install(persist=False)
    world.remove()
    assert (world.view / "thesis").read_text() == "mine"


def in_fstab(world: World) -> dict[str, object]:
    Path(world.system.fstab).write_bytes(f"/dev/sdb1 {world.view} ext4\n".encode())
    return {}


def not_empty(world: World) -> dict[str, object]:
    full_view(world)
    return {}


def of_somebody_else(world: World) -> dict[str, object]:
    return {"user": "7:7"}


def inside(world: World) -> dict[str, object]:
    return {"mount": f"{world.area}/x", "map_mount": f"{world.area}/x/y"}


@pytest.mark.parametrize("refused", [in_fstab, not_empty, of_somebody_else, inside])
def test_what_is_refused_is_refused_before_anything_is_done(
    world: World,
    capsys: pytest.CaptureFixture[str],
    refused: Callable[[World], dict[str, object]],
) -> None:
    asked = refused(world)
    before = world.state()
    with pytest.raises(UserError):
        world.install(**asked)
    assert capsys.readouterr().out == ""  # no step was begun
    assert world.state() == before


def test_a_view_without_a_guard_is_asked_for_and_called_so(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="--git-off"):
        world.install(persist=False, options=("git=off",))
    for _ in range(2):
        world.install(persist=False, git_off=True)
        assert "NOT guarded" in capsys.readouterr().out.splitlines()[-1]


def test_directories_of_the_guests_own_stay_when_options_change_and_when_the_view_goes(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    store = world.area / "store"
    own = ("local=deps", f"local-store={store}")
    world.install(options=own)
    made = world.view / "project/node_modules"
    as_user(os.mkdir, made)
    world.install(options=(*own, "hide=x"))
    assert made.is_dir()
    capsys.readouterr()
    world.install(options=("hide=x",))
    assert "No longer in force" in (said := capsys.readouterr().out) and "local=deps" in said
    assert not made.exists()
    world.install(options=own)
    capsys.readouterr()
    world.remove()
    assert f"stays in {store}." in capsys.readouterr().out
    assert list(store.glob("*/tree/+project/=node_modules"))
    world.install(options=own)
    assert made.is_dir()


def test_a_wrong_virtiofs_tag_is_named_as_the_kernel_names_it(world: World) -> None:
    """Before Linux 6.9 no virtiofs tag is known, and mount(8) reports a bad superblock."""
    (world.area / "sys/bus/virtio/drivers/virtiofs/virtio2").mkdir(parents=True)
    before = world.state()
    for transport in (None, "virtiofs"):
        with pytest.raises(UserError, match=r"tag 'other', says the kernel \(dmesg") as said:
            world.install(tag="other", transport=transport)
        assert said.value.code == Exit.MOUNT
        assert "superblock" not in str(said.value) and "earlier" not in str(said.value)
    assert world.state() == before
