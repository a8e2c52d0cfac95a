"""What vm-mount finds in the guest: mounts, tags, files, users. Reads, and changes nothing."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass, field

from gitguardfs import mounts, writer
from gitguardfs.errors import Exit, UserError
from gitguardfs.fuse import seal
from gitguardfs.fuse.preflight import DEAD, SYSTEM_PATH
from gitguardfs.guest import running
from gitguardfs.mounts import Mount
from gitguardfs.render import systemd

Ids = tuple[int, int]
"""uid and gid."""

ENVIRONMENT = {"PATH": SYSTEM_PATH, "LC_ALL": "C"}
"""Of every program that is run here: root's environment may be the caller's."""


@dataclass(frozen=True)
class System:
    """Where things are on this machine, and the programs to use."""

    fstab: str = "/etc/fstab"
    units: str = "/etc/systemd/system"
    shares: str = "/var/lib/gitguardfs/shares"
    """Default mount points of raw shares; a directory of root's, mode 0700."""
    sys: str = "/sys"
    booted_systemd: str = "/run/systemd/system"
    """Is there if systemd runs this machine (sd_booted(3))."""
    mount: str = "mount"
    systemctl: str = "systemctl"
    guard: str | None = None
    """The program gitguardfs; None is the one that is installed."""


@dataclass(frozen=True)
class Tags:
    """The mount tags that the kernel tells; virtiofs's are None before Linux 6.9."""

    p9: tuple[str, ...] = ()
    virtiofs: tuple[str, ...] | None = None
    has_virtiofs_device: bool = False

    def kinds_of(self, tag: str) -> tuple[str, ...]:
        """The types to try for a tag, virtiofs first; none if it cannot be there."""
        kinds = []
        if self._may_be_virtiofs(tag):
            kinds.append("virtiofs")
        if tag in self.p9:
            kinds.append("9p")
        return tuple(kinds)

    def _may_be_virtiofs(self, tag: str) -> bool:
        return self.has_virtiofs_device if self.virtiofs is None else tag in self.virtiofs

    def listing(self) -> str:
        """The tags as a user is told them."""
        known = [f"{tag} (virtiofs)" for tag in self.virtiofs or ()]
        known += [f"{tag} (9p)" for tag in self.p9]
        if self.virtiofs is None and self.has_virtiofs_device:
            known.append("a virtiofs one, whose tag this kernel does not tell")
        return ", ".join(known) or "none"


@dataclass(frozen=True)
class Step:
    """One directory on the way to a path."""

    path: str
    uid: int
    mode: int

    @property
    def is_roots(self) -> bool:
        """Whether only root can change what is in it."""
        return self.uid == 0 and not self.mode & 0o022


@dataclass(frozen=True)
class Way:
    """How far a path exists, from / on; ``path`` has no symlinks in it as far as it exists."""

    path: str
    steps: tuple[Step, ...]
    missing: tuple[str, ...] = ()
    """Its directories that are to be made, outermost first."""
    is_empty: bool = True

    @property
    def parents(self) -> tuple[Step, ...]:
        """The existing directories above it."""
        return tuple(step for step in self.steps if step.path != self.path)


@dataclass(frozen=True)
class Facts:
    """A look at the machine."""

    mounts: tuple[Mount, ...] = ()
    tags: Tags = field(default_factory=Tags)
    fstab: bytes = b""
    units: dict[str, bytes] = field(default_factory=dict)
    """Files of the directory of units that may be ours, by name."""
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    """Mount points whose service runs."""
    dead: frozenset[str] = frozenset()
    """Mount points of guards whose daemon is gone."""
    has_systemd: bool = False
    foreign: frozenset[int] = frozenset()
    """Numbers of FUSE mounts that are not root's: any user may call one gitguardfs."""
    running: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the daemons of the guards were started with, by mount point, as far as it is known."""

    def share_at(self, path: str) -> Mount | None:
        """The share that is mounted at ``path``, also below a seal."""
        return next((m for m in self.shares() if os.fsdecode(m.path) == path), None)

    def shares(self) -> list[Mount]:
        """Every share that is mounted."""
        return [m for m in self.mounts if m.fstype in mounts.SHARE_TYPES]

    def guard_at(self, path: str) -> Mount | None:
        """The guard that is mounted at ``path`` and answers."""
        return None if path in self.dead else self.any_guard_at(path)

    def any_guard_at(self, path: str) -> Mount | None:
        """The guard that is mounted at ``path``, dead or alive."""
        return next((m for m in self.guards() if os.fsdecode(m.path) == path), None)

    def guards(self) -> list[Mount]:
        """Every gitguardfs of root's that is mounted."""
        ours = (m for m in self.mounts if m.fstype == mounts.FSTYPE)
        return [m for m in ours if m.number not in self.foreign]

    def is_sealed(self, path: str) -> bool:
        """Whether a seal is on what is mounted at ``path``."""
        top = self.top_at(path)
        return top is not None and _is_seal(top)

    def cover_of(self, share: Mount) -> Mount | None:
        """What is mounted over a share and is no seal; None if there is nothing like that."""
        stack = [m for m in self.mounts if m.path == share.path]
        above = stack[stack.index(share) + 1 :]
        return next((m for m in above if not _is_seal(m)), None)

    def top_at(self, path: str) -> Mount | None:
        """What is mounted on top of ``path``."""
        return next((m for m in reversed(self.mounts) if os.fsdecode(m.path) == path), None)


def _is_seal(mount: Mount) -> bool:
    return (mount.fstype, mount.source) == ("tmpfs", seal.NAME)


def gather(system: System) -> Facts:
    """Look around. OSError if a file cannot be read."""
    found = tuple(mounts.listed())
    foreign = running.foreign()
    ours = [m for m in found if m.fstype == mounts.FSTYPE and m.number not in foreign]
    options = {os.fsdecode(m.path): running.options_of(m) for m in ours}
    units = _units(system.units)
    guarded = systemd.guards(units)
    has_systemd = os.path.isdir(system.booted_systemd)
    return Facts(
        mounts=found,
        tags=tags(system.sys),
        fstab=writer.read(system.fstab) or b"",
        units=units,
        enabled=frozenset(path for path in guarded if _is_enabled(system.units, path)),
        active=frozenset(p for p in guarded if has_systemd and _is_active(system, p)),
        dead=frozenset(os.fsdecode(m.path) for m in ours if running.is_dead(m.path)),
        has_systemd=has_systemd,
        foreign=foreign,
        running={path: known for path, known in options.items() if known is not None},
    )


def tags(sys: str) -> Tags:
    """The mount tags below ``sys``, where sysfs is mounted."""
    p9 = _texts(f"{sys}/bus/virtio/drivers/9pnet_virtio/*/mount_tag")
    known = os.path.isdir(f"{sys}/fs/virtiofs")
    devices = glob.glob(f"{sys}/bus/virtio/drivers/virtiofs/virtio*")
    return Tags(p9, _texts(f"{sys}/fs/virtiofs/*/tag") if known else None, bool(devices))


def _texts(pattern: str) -> tuple[str, ...]:
    found = []
    for path in sorted(glob.glob(pattern)):
        # mount_tag ends with a NUL, tag with a newline.
        text = os.fsdecode((writer.read(path) or b"").rstrip(b"\0\n"))
        if text and text not in found:
            found.append(text)
    return tuple(found)


def _units(directory: str) -> dict[str, bytes]:
    patterns = ("*.mount", systemd.TEMPLATE, "gitguardfs@*.service.d/share.conf")
    paths = [p for pattern in patterns for p in glob.glob(f"{glob.escape(directory)}/{pattern}")]
    return {os.path.relpath(path, directory): writer.read(path) or b"" for path in sorted(paths)}


def _is_enabled(directory: str, path: str) -> bool:
    link = f"{directory}/multi-user.target.wants/{systemd.service_name(path)}"
    return os.path.lexists(link)


def _is_active(system: System, path: str) -> bool:
    command = [system.systemctl, "is-active", "--quiet", systemd.service_name(path)]
    return subprocess.run(command, check=False, env=ENVIRONMENT).returncode == 0


def owner_of_share(path: str) -> Ids:
    """Who owns the root of the share that is mounted at ``path``, below its seal if it has one."""
    if not seal.is_sealed(path):
        st = os.stat(path)
        return st.st_uid, st.st_gid
    # In a child: it changes the mount namespace for a moment, which a thread must not see.
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            st = os.fstat(seal.open_below(path))
            os.write(writable, f"{st.st_uid} {st.st_gid}".encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read().split()
    os.waitpid(child, 0)
    if len(answer) != 2:
        raise UserError(f"cannot look below the seal of {path}", code=Exit.SYSTEM)
    return int(answer[0]), int(answer[1])


def way(path: str) -> Way:
    """Resolve ``path`` as far as it exists. UserError if a symlink on it is not root's."""
    real = _resolve(os.path.abspath(path))
    steps, missing = [], []
    for part in _prefixes(real):
        try:
            st = os.lstat(part)
        except FileNotFoundError:
            missing.append(part)
            continue
        except PermissionError:  # root, and refused: a FUSE mount for one user alone
            raise not_ours(part) from None
        except OSError as error:
            if error.errno not in DEAD:
                raise
            continue
        if not stat.S_ISDIR(st.st_mode):
            raise UserError(f"{part} is not a directory")
        steps.append(Step(part, st.st_uid, stat.S_IMODE(st.st_mode)))
    return Way(real, tuple(steps), tuple(missing), _is_empty(real))


def not_ours(path: str) -> UserError:
    """What to say of a FUSE mount of a user's that is in the way."""
    return UserError(
        f"a FUSE file system that is not root's is mounted at {path}, whatever it calls itself",
        f"see findmnt {path}; umount -l {path} takes it off",
        Exit.MOUNT,
    )


def _resolve(path: str) -> str:
    for part in _prefixes(path):
        if os.path.islink(part) and os.lstat(part).st_uid != 0:
            raise UserError(
                f"{part} is a symlink that is not root's", "give the directory itself instead"
            )
    return os.path.realpath(path)


def _prefixes(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)) if parts[n])]


def _is_empty(path: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except OSError:
        return True


def target_user(map_mount: str, user: str | None) -> Ids:
    """Who is to own what is seen at ``map_mount``: ``user``, or the owner of the home it is in."""
    if user is not None:
        return account(user)
    homes = [
        entry
        for entry in pwd.getpwall()
        if entry.pw_uid != 0
        and entry.pw_dir.strip("/")
        and map_mount.startswith(os.path.realpath(entry.pw_dir) + "/")
    ]
    for entry in sorted(homes, key=lambda e: len(e.pw_dir), reverse=True):
        if os.path.isdir(entry.pw_dir) and os.stat(entry.pw_dir).st_uid == entry.pw_uid:
            return entry.pw_uid, entry.pw_gid
    raise UserError(f"{map_mount} is in nobody's home", "say whose it is to be: --user NAME")


def account(user: str) -> Ids:
    """A user's ids, by name, number, or UID:GID; UserError if there is no such user."""
    uid, colon, gid = user.partition(":")
    if uid.isdecimal() and gid.isdecimal():
        return int(uid), int(gid)
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        hint = "" if colon else "a user without an account: UID:GID"
        raise UserError(f"no such user: {user}", hint) from None
    return entry.pw_uid, entry.pw_gid


def guard_command(system: System) -> str | None:
    """The installed gitguardfs, by its absolute path; None if there is none."""
    return system.guard or shutil.which(mounts.SUBTYPE, path=SYSTEM_PATH)
