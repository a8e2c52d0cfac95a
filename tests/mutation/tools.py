"""Faults in root's tools: vm-mount, its plans and steps, and the writer of files."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

PLAN = ("unit/test_vm_mount_plan.py",)
WRITER = ("unit/test_config_files.py",)


def vm_mount(*names: str) -> tuple[str, ...]:
    """Tests of vm-mount on real mounts, after those of its plans."""
    return (*PLAN, *(f"mount/test_vm_mount.py::{name}" for name in names))


def vm_mount_paths(*names: str) -> tuple[str, ...]:
    """Tests of vm-mount on paths that the agent redirects by symlinks."""
    return tuple(f"mount/test_vm_mount_paths.py::{name}" for name in names)


DOCTOR = "mount/test_doctor.py"
MUTANTS = (
    Mutant(
        "command-takes-empty-values",
        "vm reset -y --project '' deletes the VM of the current directory",
        "command_line.py",
        'if ctx.params.get(param.name or "") == "":',
        'if ctx.params.get(param.name or "") is param:',
        ("unit/test_commands.py",),
    ),
    Mutant(
        "group-takes-a-path-for-help",
        "mount -t fuse.gitguard succeeds, and mounts nothing",
        "command_line.py",
        "if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:",
        "if ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:",
        ("unit/test_commands.py",),
    ),
    Mutant(
        "doctor-forgets-environment",
        "GIT_CONFIG_COUNT can hide that git trusts bare repositories",
        "doctor/host_checks.py",
        "environment = os.environ if user.uid == os.geteuid() else {}",
        "environment: dict[str, str] = {}",
        ("unit/test_doctor_verdicts.py",),
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
        "doctor/on_repository.py",
        'return replace(attack, on="file", refused=attack.refused | {ENOTDIR})',
        "return attack",
        (f"{DOCTOR}::test_the_agents_own_repository_is_no_hole_and_nothing_is_below_the_hosts",),
    ),
    Mutant(
        "doctor-first-option-counts",
        "links=raw that a later option takes back is a finding",
        "doctor/link_checks.py",
        "return values[-1] if values",
        "return values[0] if values",
        ("unit/test_doctor_verdicts.py",),
    ),
    Mutant(
        "doctor-seal-hides-symlinks",
        "below a seal a guard that stores symlinks as given is not noticed",
        "doctor/link_checks.py",
        "    if was_moved:",
        "    if False:",
        ("unit/test_doctor_verdicts.py",),
    ),
    Mutant(
        "package-template-hidden",
        "vm-mount writes its own template over a package's",
        "vm_mount/plan_boot.py",
        "            del wanted[systemd.TEMPLATE]",
        "            pass",
        PLAN,
    ),
    Mutant(
        "package-template-stays-hidden",
        "an older template of ours goes on hiding a package's",
        "vm_mount/plan_boot.py",
        "        gone.add(systemd.TEMPLATE)  # it would",
        "        pass  # it would",
        PLAN,
    ),
    Mutant(
        "foreign-template-taken",
        "an administrator's own template beside a package's is taken away",
        "vm_mount/plan_boot.py",
        "is_kept = facts.has_packaged_template and not",
        "is_kept = False and not",
        PLAN,
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
        "plan-group-passable-is-private",
        "without a seal a parent that a group may pass counts as private",
        "vm_mount/plan_share.py",
        "any(not above.mode & 0o011 for above",
        "any(not above.mode & 0o001 for above",
        PLAN,
    ),
    Mutant(
        "plan-share-of-another-guard",
        "the unit of a share goes although another guard needs it",
        "vm_mount/plan_boot.py",
        "    shares -= {source for path, source in guards.items() if path not in map_mounts}\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-fstab-although-selinux-confines-it",
        "fstab is written although SELinux keeps the guard from coming back by it",
        "vm_mount/plan_boot.py",
        "        _check_not_confined(facts)\n",
        "",
        PLAN,
    ),
    Mutant(
        "selinux-other-capabilities",
        "another capability than the one that is asked for counts",
        "linux/selinux.py",
        '1 << int(_read(f"{capability}/perms/{name}")) - 1',
        '1 << int(_read(f"{capability}/perms/{name}"))',
        ("unit/test_selinux.py",),
    ),
    Mutant(
        "plan-dead-guard-in-the-way",
        "a dead guard at another place keeps the share from being guarded",
        "vm_mount/plan_guard.py",
        "where != map_mount and guard.source == mount and where not in facts.dead:",
        "where != map_mount and guard.source == mount:",
        PLAN,
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
        "steps-written-stays",
        "a file that was written before its step failed is not put back",
        "vm_mount/steps_files.py",
        "                undo()  # written, and something failed after that",
        "                pass",
        (*PLAN, *WRITER),
    ),
    Mutant(
        "steps-chown-follows",
        "a symlink in the place of a new directory gives its target away",
        "vm_mount/steps_files.py",
        'os.chown(f"/proc/self/fd/{here}", *self.owner)',
        "os.chown(self.paths[-1], *self.owner)",
        PLAN,
    ),
    Mutant(
        "steps-unrestartable-leaves-open",
        "where a guard cannot be brought back, the raw share is not closed",
        "vm_mount/steps_mount.py",
        'raise UserError(f"{why}; {seal_or_unmount(self.source)}", code=Exit.SYSTEM) from None',
        'raise UserError(f"{why}; ", code=Exit.SYSTEM) from None',
        PLAN,
    ),
    Mutant(
        "steps-undo-stops-halfway",
        "what cannot be undone keeps the rest from being undone",
        "vm_mount/transaction.py",
        '                self._report_safely(f"could not undo: {what}: {error}")',
        "                raise",
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
        ("unit/test_safe_open.py",),
    ),
    Mutant(
        "resolve-follows-link-in-a-users-directory",
        "a symlink of root's that a user has moved is followed",
        "linux/safe_open.py",
        "elif directory is None or directory.st_uid != 0 or directory.st_mode & 0o022:",
        "elif directory is None:",
        ("unit/test_safe_open.py",),
    ),
    Mutant(
        "plan-covers-the-system",
        "a view is mounted over a directory of the system",
        "vm_mount/plan_share.py",
        "        check_not_of_the_system(self.map_mount.path)\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-raw-share-in-a-users-directory",
        "a raw share is mounted on a directory that a user can mount over as well",
        "vm_mount/plan_share.py",
        "    _check_closed(mount, request.mount.components)\n",
        "",
        PLAN,
    ),
    Mutant(
        "plan-guards-nothing-unasked",
        "-o git=off guards nothing without the flag of its own",
        "vm_mount/plan_share.py",
        "if self.policy is GitMode.OFF and not self.git_off:",
        "if False:",
        PLAN,
    ),
    Mutant(
        "names-reach-the-terminal-raw",
        "control characters in names reach root's terminal",
        "errors.py",
        "c if c.isprintable() or c in keep else _escaped(c)",
        "c",
        ("unit/test_errors.py",),
    ),
    Mutant(
        "umount-names-as-text",
        "a process whose name is no UTF-8 ends vm-mount",
        "mounting/unmount.py",
        'name = shown(file.read().removesuffix(b"\\n"))',
        "name = file.read().decode().strip()",
        (
            "mount/test_vm_mount.py::"
            "test_a_process_with_any_name_is_named_and_writes_nothing_to_the_terminal",
        ),
    ),
    Mutant(
        "vm-mount-refuses-late",
        "what the guard's plan refuses is found out after the share is mounted",
        "vm_mount/command.py",
        "    spec, second = _foresee(system, state, request, first, program)\n"
        "    if arguments.dry_run or arguments.asks:\n",
        "    if arguments.dry_run or arguments.asks:\n"
        "        spec, second = _foresee(system, state, request, first, program)\n",
        ("mount/test_vm_mount.py::test_what_is_refused_is_refused_before_anything_is_done",),
    ),
    Mutant(
        "doctor-child-can-be-traced",
        "what tries as the user can be traced by that user",
        "linux/run_as.py",
        '        if file.read().strip() == "1":',
        '        if file.read().strip() == "x":',
        ("mount/test_doctor_disturbed.py",),
    ),
)
