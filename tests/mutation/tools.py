"""Faults in root's tools: vm-mount, its plans and steps, and the writer of files."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

PLAN = ("unit/guest/test_vm_mount_plan.py",)
WRITER = ("unit/base/test_config_files.py",)
DISTURBED = ("mount/doctor/test_doctor_disturbed.py",)


def vm_mount(*names: str) -> tuple[str, ...]:
    """Tests of vm-mount on real mounts, after those of its plans."""
    return (*PLAN, *(f"mount/guest/test_vm_mount.py::{name}" for name in names))


def vm_mount_paths(*names: str) -> tuple[str, ...]:
    """Tests of vm-mount on paths that the agent redirects by symlinks."""
    return tuple(f"mount/guest/test_vm_mount_paths.py::{name}" for name in names)


DOCTOR = "mount/doctor/test_doctor.py"
MUTANTS = (
    Mutant(
        "command-takes-empty-values",
        "vm reset -y --project '' deletes the VM of the current directory",
        "command_line.py",
        'if ctx.params.get(param.name or "") == "":',
        'if ctx.params.get(param.name or "") is param:',
        ("unit/commands/test_commands.py",),
    ),
    Mutant(
        "group-takes-a-path-for-help",
        "mount -t fuse.gitguard succeeds, and mounts nothing",
        "command_line.py",
        "if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:",
        "if ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:",
        ("unit/commands/test_commands.py",),
    ),
    Mutant(
        "doctor-forgets-environment",
        "GIT_CONFIG_COUNT can hide that git trusts bare repositories",
        "host/doctor_checks.py",
        "environment = os.environ if user.uid == os.geteuid() else {}",
        "environment: dict[str, str] = {}",
        ("unit/doctor/test_doctor_verdicts.py",),
    ),
    Mutant(
        "doctor-takes-any-readable-file-for-private",
        "a .git file of the host's that can be read passes for the agent's own",
        "doctor/policy_checks.py",
        "st.st_dev != view and os.path.isabs(path)",
        "True",
        (
            f"{DOCTOR}::test_only_a_file_that_leads_out_of_the_view_to_the_users_own_directory_is_private",
        ),
    ),
    Mutant(
        "doctor-tries-nothing-below-a-file",
        "with --git=private nothing is tried below the file that stands for .git",
        "doctor/attack_checks.py",
        'on_file = policy == "private" and attack.on == "directory"',
        "on_file = False",
        (f"{DOCTOR}::test_the_agents_own_repository_is_no_hole_and_nothing_is_below_the_hosts",),
    ),
    Mutant(
        "doctor-first-option-counts",
        "links=raw that a later option takes back is a finding",
        "doctor/context.py",
        "return values[-1] if values",
        "return values[0] if values",
        ("unit/doctor/test_doctor_verdicts.py",),
    ),
    Mutant(
        "doctor-seal-hides-symlinks",
        "below a seal a guard that stores symlinks as given is not noticed",
        "doctor/link_checks.py",
        "    if was_moved:",
        "    if False:",
        ("unit/doctor/test_doctor_verdicts.py",),
    ),
    Mutant(
        "written-files-overwrites-others",
        "a file that somebody changed meanwhile is overwritten",
        "config_files.py",
        "if place.content() != change.before:",
        "if False:",
        WRITER,
    ),
    Mutant(
        "written-files-leaves-temporary",
        "a write that fails leaves its temporary file",
        "config_files.py",
        "                os.unlink(temporary, dir_fd=here)",
        "                pass",
        WRITER,
    ),
    Mutant(
        "written-files-follows-foreign-symlink",
        "a symlink of another user's is followed",
        "config_files.py",
        "if not _may_follow(place):",
        "if False:",
        WRITER,
    ),
    Mutant(
        "written-files-forgets-owner",
        "a file that is replaced becomes root's",
        "config_files.py",
        "        os.fchown(descriptor, st.st_uid, st.st_gid)\n",
        "",
        WRITER,
    ),
    Mutant(
        "written-files-second-backup",
        "a second change overwrites the backup of what was there first",
        "config_files.py",
        "if not saved.exists():",
        "if True:",
        WRITER,
    ),
    Mutant(
        "selinux-other-capabilities",
        "another capability than the one that is asked for counts",
        "linux/selinux.py",
        '1 << int(_read(f"{capability}/perms/{name}")) - 1',
        '1 << int(_read(f"{capability}/perms/{name}"))',
        ("unit/linux/test_selinux.py",),
    ),
    Mutant(
        "plan-foreign-mount-is-a-guard",
        "a user's mount that calls itself gitguardfs counts as a guard",
        "mounting/guards.py",
        "return mount.fstype == FSTYPE and mount.owner == 0",
        "return mount.fstype == FSTYPE",
        PLAN,
    ),
    Mutant(
        "umount-follows",
        "a symlink in the place of a mount point leads the unmount elsewhere",
        "mounting/unmount.py",
        "flags | syscalls.UMOUNT_NOFOLLOW)",
        "flags)",
        vm_mount_paths("test_a_symlink_in_the_place_of_a_mount_point_leads_no_unmount_elsewhere"),
    ),
    Mutant(
        "umount-overlooks-copies",
        "who uses a copy of the view in another namespace loses it without being named",
        "mounting/unmount.py",
        "    if _users_of(mount, daemon.pid):\n        raise _busy(mount, daemon.pid)",
        "    pass",
        vm_mount_paths("test_who_uses_a_copy_of_the_view_in_another_namespace_is_named"),
    ),
    Mutant(
        "umount-busy-share-stays-open",
        "a share that could not be unmounted is left without its seal",
        "mounting/unmount.py",
        "        if was_sealed:\n            seal_or_unmount(path)\n",
        "",
        vm_mount_paths("test_a_share_that_is_used_is_sealed_again"),
    ),
    Mutant(
        "umount-signals-any-process",
        "a process that has the number of a daemon that ended gets its signal",
        "mounting/unmount.py",
        "        if not is_it():",
        "        if False:",
        PLAN,
    ),
    Mutant(
        "resolve-follows-link-of-a-user",
        "a symlink of a user's on the way is followed",
        "linux/safe_open.py",
        "if link.st_uid != 0:",
        "if False:",
        ("unit/linux/test_safe_open.py",),
    ),
    Mutant(
        "resolve-follows-link-in-a-users-directory",
        "a symlink of root's that a user has moved is followed",
        "linux/safe_open.py",
        "elif directory is None or directory.st_uid != 0 or directory.st_mode & 0o022:",
        "elif directory is None:",
        ("unit/linux/test_safe_open.py",),
    ),
    Mutant(
        "names-reach-the-terminal-raw",
        "control characters in names reach root's terminal",
        "errors.py",
        "c if c.isprintable() or c in keep else _escaped(c)",
        "c",
        ("unit/base/test_errors.py",),
    ),
    Mutant(
        "umount-names-as-text",
        "a process whose name is no UTF-8 ends vm-mount",
        "mounting/unmount.py",
        'name = shown(file.read().removesuffix(b"\\n"))',
        "name = file.read().decode().strip()",
        (
            "mount/guest/test_vm_mount.py::"
            "test_a_process_with_any_name_is_named_and_writes_nothing_to_the_terminal",
        ),
    ),
    Mutant(
        "doctor-child-can-be-traced",
        "what tries as the user can be traced by that user",
        "linux/run_as.py",
        '        if file.read().strip() == "1":',
        '        if file.read().strip() == "x":',
        ("mount/doctor/test_doctor_disturbed.py",),
    ),
    Mutant(
        "doctor-users-mounts",
        "the doctor says nothing of a user's FUSE mount below the seal",
        "doctor/other_mounts.py",
        "        if seen.owner not in (None, 0) and seen != context.guard\n",
        "        if False\n",
        (
            "mount/doctor/test_doctor.py::test_a_fuse_mount_of_the_agents_is_found_below_the_seal_and_in_the_view",
        ),
    ),
    Mutant(
        "doctor-forged-answer-counts",
        "the doctor takes an answer that the agent has written",
        "linux/run_as.py",
        "if KINDS.index(kind) + 1 != status:",
        "if False:",
        DISTURBED,
    ),
    Mutant(
        "doctor-stopped-child-counts",
        "the doctor takes the answer of a child that the agent has stopped",
        "linux/run_as.py",
        "            _check_never_stopped(pid)\n            return data",
        "            return data",
        DISTURBED,
    ),
    Mutant(
        "doctor-prints-paths-as-they-are",
        "a command of the doctor's means other files if a path has blanks",
        "doctor/local_checks.py",
        "quoted = shlex.quote(tree)",
        "quoted = tree",
        ("mount/view/test_local_command.py::test_the_doctor_finds_a_store_that_is_open",),
    ),
)
