"""Gathers the state of the guest: mounts, mount tags, files, users. Changes nothing."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field

from gitguardfs.base import installation
from gitguardfs.base.constants import CHANGES_PORT, SHARE_TYPES, SHARES, SUBTYPE, SYSTEM_PATH
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.guest import systemd
from gitguardfs.linux import kernel_log, mountinfo, safe_open, selinux
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.programs import ENVIRONMENT, Ids
from gitguardfs.linux.run_as import NoAnswer, run_as
from gitguardfs.mounting import covers, guards, lid, seal
from gitguardfs.options import accounts, config_files

WITHOUT_ACCOUNT = "a user without an account: UID:GID"


@dataclass(frozen=True)
class SystemPaths:
    """Paths of this machine, and the programs to run."""

    fstab: str = "/etc/fstab"
    units: str = "/etc/systemd/system"
    packaged_units: str = "/usr/lib/systemd/system"
    """Where a package installs its units; one of the same name in ``units`` overrides it."""
    shares: str = SHARES
    """Holds the default mount points of raw shares; owned by root, mode 0700."""
    sys: str = "/sys"
    booted_systemd: str = "/run/systemd/system"
    """Exists if systemd is the init system (sd_booted(3))."""
    kernel_log: str = kernel_log.DEVICE
    changes_port: str = f"/dev/virtio-ports/{CHANGES_PORT}"
    mount: str = "mount"
    systemctl: str = "systemctl"
    guard: str | None = field(default_factory=lambda: shutil.which(SUBTYPE, path=SYSTEM_PATH))
    """The installed program gitguardfs; None if there is none."""

    @property
    def guard_command(self) -> tuple[str, ...]:
        """Command that runs gitguardfs: the installed program, or else this code."""
        return (self.guard,) if self.guard else tuple(installation.command())


@dataclass(frozen=True)
class Tags:
    """The mount tags that the kernel lists; None for virtiofs before Linux 6.9."""

    p9: tuple[str, ...] = ()
    virtiofs: tuple[str, ...] | None = None
    has_virtiofs_device: bool = False

    @property
    def may_have_unknown(self) -> bool:
        """Whether there may be a tag that the kernel does not list."""
        return self.virtiofs is None and self.has_virtiofs_device

    def transports_of(self, tag: str, only: str | None = None) -> list[str]:
        """Return the transports to try for a tag, virtiofs first; or ``only`` the one.

        Raises UserError if no device can have the tag.
        """
        found = {"virtiofs": self.may_have_unknown or tag in (self.virtiofs or ())}
        found["9p"] = tag in self.p9
        transports = [name for name, is_there in found.items() if is_there and only in (None, name)]
        if not transports:
            of_type = f" of type {only}" if only else ""
            raise UserError(
                f"there is no share {tag!r}{of_type}; the kernel sees: {self.listing()}",
                self.hint(),
            )
        return transports

    def listing(self) -> str:
        """Return the tags as text for a message."""
        known = [f"{tag} (virtiofs)" for tag in self.virtiofs or ()]
        known += [f"{tag} (9p)" for tag in self.p9]
        if self.may_have_unknown:
            known.append("one of virtiofs, whose tag this kernel does not report")
        return ", ".join(known) or "none"

    def hint(self) -> str:
        """Return how to name a share, or how to have one."""
        if self.listing() != "none":
            return "--tag TAG"
        return "start the VM with a share; gitguard share, on the host, prints how"


@dataclass(frozen=True)
class Facts:
    """The state of the machine at one moment."""

    mounts: tuple[MountInfo, ...] = ()
    tags: Tags = field(default_factory=Tags)
    fstab: bytes = b""
    units: dict[str, bytes] = field(default_factory=dict)
    """Unit files that vm-mount may have written, by name."""
    has_packaged_template: bool = False
    """Whether a package has installed the template of the guard's service."""
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    """Mount points whose service runs."""
    dead: frozenset[str] = frozenset()
    """Mount points of guards whose daemon is gone."""
    has_systemd: bool = False
    has_changes_port: bool = False
    """Whether the host can tell of its changes."""
    takes_changes: bool = False
    """Whether the unit that takes them in is enabled."""
    running: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The options that the daemons were started with, by mount point, where they are known."""
    confined: selinux.Confined | None = None
    """Why SELinux would stop a guard that fstab mounts at boot; None if it would not."""
    has_git: bool = True
    """Whether git is installed, without which the daemon takes ``deny`` for ``private``."""

    def share_at(self, path: str) -> MountInfo | None:
        """Return the share that is mounted at ``path``, also below a seal."""
        return next((m for m in self.shares() if m.path == path), None)

    def shares(self) -> list[MountInfo]:
        """Return every mounted share."""
        return [m for m in self.mounts if m.fstype in SHARE_TYPES]

    def guard_at(self, path: str) -> MountInfo | None:
        """Return the guard at ``path`` whose daemon answers; None if there is none."""
        return None if path in self.dead else self.any_guard_at(path)

    def any_guard_at(self, path: str) -> MountInfo | None:
        """Return the guard at ``path``, whether or not its daemon runs; None if there is none."""
        return next((m for m in self.guards() if m.path == path), None)

    def guards(self) -> list[MountInfo]:
        """Return every gitguardfs mount of root."""
        return [m for m in self.mounts if guards.is_guard(m)]

    def has_lid(self, path: str) -> bool:
        """Return whether a lid is mounted at ``path``, with or without a view on it."""
        return any(lid.is_lid(m) and m.path == path for m in self.mounts)

    def is_sealed(self, path: str) -> bool:
        """Return whether a seal is on top of the mounts at ``path``."""
        top = mountinfo.top_at(path, self.mounts)
        return top is not None and seal.is_seal(top)


def gather(system: SystemPaths) -> Facts:
    """Gather the facts. Raises OSError if a file cannot be read."""
    found = tuple(mountinfo.listed())
    ours = [m for m in found if guards.is_guard(m)]
    servers = tuple(guards.servers()) if ours else ()
    daemons = {m.path: guards.daemon_of(m, servers) for m in ours}
    units = _units(system.units)
    guarded = systemd.guards(units)
    has_systemd = os.path.isdir(system.booted_systemd)
    return Facts(
        mounts=found,
        tags=tags(system.sys),
        fstab=config_files.read(system.fstab) or b"",
        units=units,
        has_packaged_template=os.path.exists(f"{system.packaged_units}/{systemd.TEMPLATE}"),
        enabled=frozenset(path for path in guarded if _is_enabled(system.units, path)),
        active=frozenset(p for p in guarded if has_systemd and _is_active(system, p)),
        dead=frozenset(m.path for m in ours if guards.is_dead(m.mount_point)),
        has_systemd=has_systemd,
        has_changes_port=os.path.exists(system.changes_port),
        takes_changes=os.path.lexists(_wanted(system.units, systemd.CHANGES)),
        running={
            path: daemon.options
            for path, daemon in daemons.items()
            if daemon is not None and daemon.options is not None
        },
        confined=_confined(system),
        has_git=shutil.which("git", path=SYSTEM_PATH) is not None,
    )


def _confined(system: SystemPaths) -> selinux.Confined | None:
    programs = (shutil.which(system.mount, path=SYSTEM_PATH), system.guard)
    return selinux.confined_at_boot(system.sys, [program for program in programs if program])


def tags(sys: str) -> Tags:
    """Return the mount tags listed in sysfs, which is mounted at ``sys``."""
    p9 = _texts(f"{sys}/bus/virtio/drivers/9pnet_virtio/*/mount_tag")
    known = os.path.isdir(f"{sys}/fs/virtiofs")
    devices = glob.glob(f"{sys}/bus/virtio/drivers/virtiofs/virtio*")
    return Tags(p9, _texts(f"{sys}/fs/virtiofs/*/tag") if known else None, bool(devices))


def _texts(pattern: str) -> tuple[str, ...]:
    found = []
    for path in sorted(glob.glob(pattern)):
        # mount_tag ends with a NUL, tag with a newline.
        text = os.fsdecode((config_files.read(path) or b"").rstrip(b"\0\n"))
        if text and text not in found:
            found.append(text)
    return tuple(found)


def _units(directory: str) -> dict[str, bytes]:
    patterns = ("*.mount", systemd.TEMPLATE, systemd.CHANGES, "gitguardfs@*.service.d/share.conf")
    paths = [p for pattern in patterns for p in glob.glob(f"{glob.escape(directory)}/{pattern}")]
    return {
        os.path.relpath(path, directory): config_files.read(path) or b"" for path in sorted(paths)
    }


def _is_enabled(directory: str, path: str) -> bool:
    return os.path.lexists(_wanted(directory, systemd.service_name(path)))


def _wanted(directory: str, unit: str) -> str:
    return f"{directory}/multi-user.target.wants/{unit}"


def _is_active(system: SystemPaths, path: str) -> bool:
    command = [system.systemctl, "is-active", "--quiet", systemd.service_name(path)]
    return subprocess.run(command, check=False, env=ENVIRONMENT).returncode == 0


def owner_of_share(state: Facts, path: str) -> Ids:
    """Return (uid, gid) of the root of the share at ``path``, below its seal if it has one."""
    if not state.is_sealed(path):
        st = os.stat(path)
        return st.st_uid, st.st_gid
    try:
        uid, gid = run_as(_owner_below_seal, path)  # a child: it changes its mount namespace
    except (OSError, NoAnswer):
        raise UserError(f"cannot look below the seal of {path}", code=Exit.SYSTEM) from None
    return uid, gid


def _owner_below_seal(path: str) -> Ids:
    st = os.fstat(covers.open_covered(path, safe_open.open_directory(path, True), seal.is_seal))
    return st.st_uid, st.st_gid


def owner_of_view(map_mount: str, user: str | None) -> Ids:
    """Return (uid, gid) to show files as: ``user``, or the owner of the home of ``map_mount``.

    ``user`` is a name, a number or UID:GID. Raises UserError.
    """
    if user is None:
        owner = accounts.owner_of_home(map_mount)
        if owner is None:
            raise _without_owner(map_mount)
        return owner.uid, owner.gid
    uid, colon, gid = user.partition(":")
    if accounts.is_number(uid) and accounts.is_number(gid):
        return accounts.number(uid), accounts.number(gid, "group")
    try:
        found = accounts.find(user)
    except accounts.UnknownAccountError as error:
        raise UserError(error.message, "" if colon else WITHOUT_ACCOUNT) from None
    if not found.exists:
        raise UserError(f"no such user: {user}", WITHOUT_ACCOUNT)
    return found.uid, found.gid


def _without_owner(map_mount: str) -> UserError:
    """Return the error for a view that is in no user's home, with what is likely to help."""
    hint = "name the owner to show: --user NAME"
    user = accounts.named_by_home(map_mount)
    if user is not None:
        what = f"{user.home} is the home of {user.name}"
        path = shlex.quote(user.home)
        if map_mount == user.home:
            return UserError(
                f"{what}, which a mount would hide", f"choose a directory in it: {path}/projects"
            )
        if os.path.lexists(user.home):
            return UserError(f"{what}, but does not belong to {user.name}", hint)
        make = f"sudo install -d -o {user.uid} -g {user.gid} -m 700 {path}"
        return UserError(f"{what}, but does not exist", f"{make}; or {hint}")
    if below_home := re.match("/(?:var/)?home/([a-z_][a-z0-9_-]*)/", map_mount):
        name = below_home[1]
        return UserError(
            f"there is no user {name}", f"sudo useradd -m -s /bin/bash {name}; or {hint}"
        )
    return UserError(f"{map_mount} is in no user's home", hint)
