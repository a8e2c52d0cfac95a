"""Faults in root's tools: vm-mount, its plans and steps, and the writer of files."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

PLAN = ("unit/test_vm_mount_plan.py",)
WRITER = ("unit/test_writer.py",)
MADE_WHERE_THE_WALK_WAS = (
    "mount/test_vm_mount_ways.py::"
    "test_what_is_made_is_made_where_the_walk_was_whatever_the_path_leads_to_by_now"
)


def vm_mount(*names: str) -> tuple[str, ...]:
    """Tests of vm-mount on real mounts, after those of its plans."""
    return (*PLAN, *(f"mount/test_vm_mount.py::{name}" for name in names))


MUTANTS = (
    Mutant(
        "writer-overwrites-others",
        "a file that somebody changed meanwhile is overwritten",
        "writer.py",
        "if place.content() != change.before:",
        "if False:",
        WRITER,
    ),
    Mutant(
        "writer-leaves-temporary",
        "a write that fails leaves its temporary file",
        "writer.py",
        "                os.unlink(temporary, dir_fd=here)",
        "                pass",
        WRITER,
    ),
    Mutant(
        "writer-follows-foreign-symlink",
        "a symlink of another user's is followed",
        "writer.py",
        "if not _may_follow(place):",
        "if False:",
        WRITER,
    ),
    Mutant(
        "writer-forgets-owner",
        "a file that is replaced becomes root's",
        "writer.py",
        "        os.fchown(descriptor, st.st_uid, st.st_gid)\n",
        "",
        WRITER,
    ),
    Mutant(
        "writer-second-backup",
        "a second change overwrites the backup of what was there first",
        "writer.py",
        "if not saved.exists():",
        "if True:",
        WRITER,
    ),
    Mutant(
        "plan-group-passable-is-private",
        "without a seal a parent that a group may pass counts as private",
        "guest/plan.py",
        "any(not above.mode & 0o011 for above",
        "any(not above.mode & 0o001 for above",
        vm_mount("test_without_a_seal_the_raw_share_must_be_in_a_private_place"),
    ),
    Mutant(
        "plan-share-of-another-guard",
        "the unit of a share goes although another guard needs it",
        "guest/plan_boot.py",
        "    shares -= {source for path, source in guards.items() if path not in map_mounts}\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-dead-guard-in-the-way",
        "a dead guard at another place keeps the share from being guarded",
        "guest/plan_guard.py",
        "where != map_mount and guard.source == mount and where not in facts.dead:",
        "where != map_mount and guard.source == mount:",
        PLAN,
    ),
    Mutant(
        "plan-foreign-mount-is-a-guard",
        "a user's mount that calls itself gitguardfs counts as a guard",
        "guest/facts.py",
        "return [m for m in ours if m.number not in self.foreign]",
        "return list(ours)",
        PLAN,
    ),
    Mutant(
        "steps-written-stays",
        "a file that was written before its step failed is not put back",
        "guest/steps.py",
        "                undo()  # written, and something failed after that",
        "                pass",
        (*PLAN, *WRITER),
    ),
    Mutant(
        "steps-chown-follows",
        "a symlink in the place of a new directory gives its target away",
        "guest/steps.py",
        'os.chown(f"/proc/self/fd/{here}", *self.owner)',
        "os.chown(self.paths[-1], *self.owner)",
        (*vm_mount("test_the_mount_point_that_is_made_is_the_users"), MADE_WHERE_THE_WALK_WAS),
    ),
    Mutant(
        "steps-unrestartable-leaves-open",
        "where a guard cannot be brought back, the raw share is not closed",
        "guest/steps_mount.py",
        'raise UserError(f"{why}; {close_off(self.source)}", code=Exit.SYSTEM) from None',
        'raise UserError(f"{why}; ", code=Exit.SYSTEM) from None',
        vm_mount("test_a_view_that_cannot_be_brought_back_leaves_the_share_closed_and_says_so"),
    ),
    Mutant(
        "steps-undo-stops-halfway",
        "what cannot be undone keeps the rest from being undone",
        "guest/runner.py",
        '                self._say(f"could not undo: {what}: {error}")',
        "                raise",
        PLAN,
    ),
    Mutant(
        "umount-follows",
        "a symlink in the place of a mount point leads the unmount elsewhere",
        "guest/unmounting.py",
        "flags | syscalls.UMOUNT_NOFOLLOW)",
        "flags)",
        vm_mount("test_an_unmount_is_not_led_elsewhere_by_what_the_agent_puts_in_its_way"),
    ),
    Mutant(
        "umount-overlooks-copies",
        "who uses a copy of the view in another namespace loses it without being named",
        "guest/unmounting.py",
        "    if _users_of(mount, daemon.pid):\n        raise _busy(mount, daemon.pid)",
        "    pass",
        vm_mount(
            "test_a_busy_view_is_not_forced_and_its_user_is_named",
            "test_a_copy_of_the_view_in_the_agents_namespace_locks_nobody_out",
        ),
    ),
    Mutant(
        "umount-busy-share-stays-open",
        "a share that could not be unmounted is left without its seal",
        "guest/unmounting.py",
        "        if was_sealed:\n            close_off(path)\n",
        "",
        vm_mount("test_removal_leaves_what_was_there_before"),
    ),
    Mutant(
        "umount-signals-any-process",
        "a process that has the number of a daemon that ended gets its signal",
        "guest/unmounting.py",
        "        if not is_it():",
        "        if False:",
        vm_mount("test_a_changed_option_replaces_entry_and_view"),
    ),
)
