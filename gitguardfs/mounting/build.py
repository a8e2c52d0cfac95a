"""Builds the objects that serve a mount from its options."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import replace

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import UserError, failing, warn
from gitguardfs.base.paths import is_inside
from gitguardfs.fs.attributes import Override
from gitguardfs.fs.audit_log import AuditLog
from gitguardfs.fs.lean.changes import tree_of
from gitguardfs.fs.nodes import LOCAL_NUMBERS
from gitguardfs.fs.parts import SourceTraits
from gitguardfs.linux import descriptor_limit, mountinfo
from gitguardfs.linux.local_devices import LocalDevices
from gitguardfs.linux.sysfs import device_size
from gitguardfs.local import store as local_store
from gitguardfs.mounting.preflight import MountPaths
from gitguardfs.names.local_names import LocalNames
from gitguardfs.names.rules import GitMode, GuardRules, LinkMode
from gitguardfs.options.id_maps import IdMapSpec
from gitguardfs.options.idmap import MapError
from gitguardfs.options.mount_options import MountOptions
from gitguardfs.options.overrides import AttributeOverrider, DaemonRights, Overrides
from gitguardfs.private.repositories import PrivateRepositories
from gitguardfs.private.store import default as default_store
from gitguardfs.view.git_files import GitFiles
from gitguardfs.view.own_directories import OwnDirectories
from gitguardfs.view.view import View

RESERVED_DESCRIPTORS = 64
"""Descriptors left for Python, the session, worker threads and the log."""
LOCAL_TIMEOUT = 3600.0
"""Seconds for which the kernel keeps names and attributes of the guest's own directories: only the
view changes them."""
CACHED_DESCRIPTORS = 8192
"""O_PATH descriptors that are cached at most: each pins an inode of the source in the kernel."""


def assemble(
    options: MountOptions,
    paths: MountPaths,
    audit: AuditLog,
    root_fd: int,
    reports_names_only: bool,
) -> tuple[ExitStack, View]:
    """Return the tables to close at the end, and the view of the directory of ``root_fd``.

    ``reports_names_only`` says that the session can report entries without attributes. Raises
    UserError.
    """
    options = replace(options, source=paths.source)
    repositories = _repositories(options, paths, root_fd)
    if repositories is None and options.rules.git is GitMode.PRIVATE:
        warn("git is not installed here: .git stays closed, as with --git deny")
        options = replace(options, rules=replace(options.rules, git=GitMode.DENY))
    tables = ExitStack()
    with failing(f"source {options.source}"):
        traits = traits_of(options, paths, root_fd)
        share = tree_of(options, traits, reports_names_only)
    tables.callback(share.close)
    own = None
    if options.local:
        store = local_store.open_for(
            options.local_store, _name(paths, root_fd).removesuffix(" /"), paths.mountpoint
        )
        tables.callback(store.close)
        own_options = _local_options(options)
        local = tree_of(own_options, _local_traits(traits, store.root), reports_names_only)
        tables.callback(local.close)
        own = OwnDirectories(share, local, LocalNames(options.local))
    git_files = None if repositories is None else GitFiles(share, repositories)
    return tables, View(share, audit, own, git_files)


def _local_options(options: MountOptions) -> MountOptions:
    """Return the options of the guest's own directories: ids as they are, and no guard."""
    rules = GuardRules(git=GitMode.OFF, links=LinkMode.RAW)
    policy = replace(
        options.policy, create_as_mounter=False, create_for_user=None, create_for_group=None
    )
    return replace(
        options, map=IdMapSpec(), rules=rules, policy=policy, overrides=Overrides(), symlinks=None,
        cache_timeout=LOCAL_TIMEOUT, read_rate=None, write_rate=None,
    )  # fmt: skip


def _local_traits(share: SourceTraits, root_fd: int) -> SourceTraits:
    """Return the traits of the guest's own directories.

    They answer FLUSH as the share does: the kernel asks no more for either after one ENOSYS.
    """
    return SourceTraits(
        root_fd, IdMapSpec().resolve((0, 0), (0, 0)), share.descriptor_limit // 2,
        share.can_chown, closes_late=share.closes_late, numbers=LOCAL_NUMBERS, is_exclusive=True,
    )  # fmt: skip


def _repositories(
    options: MountOptions, paths: MountPaths, root_fd: int
) -> PrivateRepositories | None:
    """Return the agent's own repositories; None without ``--git=private``, or without git."""
    is_private = options.rules.git is GitMode.PRIVATE
    if not is_private or shutil.which("git", path=SYSTEM_PATH) is None:
        return None
    local = LocalNames(options.local) if options.local else None
    store = options.private_store or default_store()
    name = _name(paths, root_fd)
    return PrivateRepositories(store, name, os.dup(root_fd), local, options.repository)


def _name(paths: MountPaths, root_fd: int) -> str:
    """Return a name of the source: the share's tag and the place in it.

    The guest may mount the share elsewhere tomorrow.
    """
    share = mountinfo.of_device(os.fstat(root_fd).st_dev)
    if share is not None and is_inside(paths.source, share.path):
        inside = os.path.join(os.fsdecode(share.root), os.path.relpath(paths.source, share.path))
        return f"{share.source} {os.path.normpath(inside)}"
    return paths.source


def traits_of(options: MountOptions, paths: MountPaths, root_fd: int) -> SourceTraits:
    """Return the traits of the source behind ``root_fd``.

    Raises UserError for a bad map, OSError.
    """
    source, mountpoint = os.fstat(root_fd), os.fstat(paths.mountpoint_fd)
    where = mountinfo.of_device(source.st_dev)
    is_local = LocalDevices(paths.source)
    owners = (source.st_uid, source.st_gid), (mountpoint.st_uid, mountpoint.st_gid)
    try:
        idmap = options.map.resolve(*owners)
    except MapError as error:
        raise UserError(f"contradictory --map: {error}") from None
    if options.map.auto and mountpoint.st_uid == 0 != source.st_uid:
        warn(
            f"--map auto: {options.mountpoint} is root's, so all files are shown as root's"
            " (chown it to the user who works there, or --map HOST:GUEST)"
        )
    if missing := options.map.missing:
        warn(
            "--map shows two ids of the share as one, since an id without a rule keeps its number"
            f" (to keep them apart, add --map {missing}; with -o and in fstab, add one more option:"
            f" map={missing})"
        )
    return SourceTraits(
        root_fd,
        idmap,
        descriptor_limit=_descriptor_budget(),
        can_chown=os.geteuid() == 0,
        is_local=is_local,
        is_ninep=where is not None and where.is_ninep,
        closes_late=not is_local.all_are(source.st_dev),
        override=_override(options.overrides, root_fd),
    )


def _override(overrides: Overrides, root_fd: int) -> Override | None:
    if overrides == Overrides():
        return None
    read_only = bool(os.fstatvfs(root_fd).f_flag & os.ST_RDONLY)
    rights = DaemonRights(os.geteuid(), frozenset((os.getegid(), *os.getgroups())), read_only)
    return AttributeOverrider(overrides, rights, device_size).apply


def _descriptor_budget() -> int:
    """Let this process use all its descriptors; return how many may be cached."""
    usable = descriptor_limit.use_all()
    return min((usable - RESERVED_DESCRIPTORS) // 2, CACHED_DESCRIPTORS)
