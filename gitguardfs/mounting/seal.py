"""The seal: an empty, unreadable mount over the raw share while its guarded view is up.

It is a ramfs of mode 000, read-only, called gitguardfs-seal. The daemon holds a lock on it, so
that a seal without its daemon, after a crash, can be told from one that is in use. Only root's
word takes a seal off: a signal or the umount helper to its daemon, or umount(8) of a seal without
a daemon. However else a daemon or a view ends, or a guard fails to start, the seal stays.

A seal protects what it lies directly on. A mount of a user's between it and the share would let
that user take both off, so the kernel's table is compared with the directory that was checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from stat import S_IXGRP, S_IXOTH, S_IXUSR

from gitguardfs.errors import Exit, UserError, os_error
from gitguardfs.linux import mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo

NAME = "gitguardfs-seal"
FSTYPE = "ramfs"
"""Not tmpfs: systemd orders whatever has one on it after swap.target, and once the seal is off it
forgets that and never goes on with stopping that target, so the machine would not go down."""
_FSTYPES = (FSTYPE, "tmpfs")
"""What a seal may be: a daemon of an earlier version has put on the second."""
_ATTRIBUTES = (
    syscalls.MOUNT_ATTR_RDONLY
    | syscalls.MOUNT_ATTR_NOSUID
    | syscalls.MOUNT_ATTR_NODEV
    | syscalls.MOUNT_ATTR_NOEXEC
)
_OPTIONS = {"mode": "000", "ro": ""}
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOCK = fcntl.LOCK_EX | fcntl.LOCK_NB


class Seal:
    """A seal that is on; the lock goes with the process."""

    def __init__(self, source: str, source_fd: int) -> None:
        """Cover a directory, or take over the seal of a daemon that died.

        ``source_fd`` is of the directory to cover, or of the root of that seal; ``source`` is its
        name in errors. Raises OSError: EWOULDBLOCK if a daemon holds the seal, ESTALE if another
        mount is between the seal and the directory, which is then as it was.
        """
        self._source = source
        seal = sealing(source_fd)
        if seal is not None:
            self.covers = seal.parent_id
            """The number of the mount that it lies on."""
            self._lock = os.open(f"/proc/self/fd/{source_fd}", _READ)
        else:
            self.covers = mountinfo.number_of(source_fd)
            self._lock = _put_on(source_fd)
        try:
            fcntl.flock(self._lock, _LOCK)
            self.check()
        except BaseException:
            if seal is None:
                with suppress(OSError):
                    self.lift()
            else:
                self.leave()
            raise

    def check(self) -> None:
        """Raise OSError(ESTALE) unless the seal lies on what it covers, with nothing above it."""
        number = mountinfo.number_of(self._lock)
        if _listed(number).parent_id != self.covers or _is_covered(number):
            raise OSError(errno.ESTALE, "another mount came between", self._source)

    def lift(self) -> None:
        """Take the seal off: this very mount, by its own descriptor. Raises OSError."""
        try:
            if _is_covered(mountinfo.number_of(self._lock)):  # that would be unmounted instead
                raise OSError(errno.EBUSY, "something is mounted over the seal", self._source)
            syscalls.umount(b"/proc/self/fd/%d" % self._lock, syscalls.MNT_DETACH)
        finally:
            os.close(self._lock)

    def leave(self) -> None:
        """Leave it on, as a crash does, for the next daemon to take over."""
        os.close(self._lock)


def _put_on(directory: int, beneath: bool = False) -> int:
    """Mount a seal on a directory; return a descriptor of the seal's own root, locked."""
    seal = syscalls.new_mount(FSTYPE, NAME, _ATTRIBUTES, _OPTIONS)
    try:
        root = os.open(f"/proc/self/fd/{seal}", _READ)
        try:
            fcntl.flock(root, _LOCK)
            syscalls.attach_tree(seal, directory, beneath)
        except BaseException:
            os.close(root)
            raise
    finally:
        os.close(seal)
    return root


def is_seal(mount: MountInfo) -> bool:
    """Return whether a mount is a seal, of a daemon dead or alive."""
    return mount.fstype in _FSTYPES and mount.source == NAME


def sealing(fd: int) -> MountInfo | None:
    """Return the seal that a descriptor is of; None if it is of something else."""
    top = next(iter(mountinfo.stack_of(fd)), None)
    return top if top is not None and is_seal(top) else None


def fail_closed(source: str, wanted: bool | None, error: UserError) -> UserError:
    """``error``, which kept ``source`` from being guarded, after it was sealed, if root asks.

    ``wanted`` is what was asked for: a seal, none, or (None) one for the root of a share. Where
    there should be one and none could be put on, that is said as well.
    """
    if os.geteuid() != 0 or wanted is False:
        return error
    try:
        if not _close(source, bool(wanted)):
            return error
        said = f"{source} is sealed until it is guarded; umount {source} opens it"
    except (FileNotFoundError, NotADirectoryError):
        return error
    except (OSError, UserError) as failure:
        listed = [m for m in mountinfo.listed() if m.mount_point == os.fsencode(source)]
        if not (wanted or any(m.fstype in mountinfo.SHARE_TYPES for m in listed)):
            return error
        why = failure.message if isinstance(failure, UserError) else failure.strerror
        said = f"{source} is NOT sealed, users may get at it: {why}"
        if listed:
            times = f", {len(listed)} times," if len(listed) > 1 else ""
            said += f"; umount -i -l {source}{times} takes away what is mounted there"
    return UserError(error.message, f"{error.hint}; {said}".removeprefix("; "), error.code)


def _close(source: str, wanted: bool) -> bool:
    """Put a seal on, if one is wanted and there is none; whether there is one that no guard has.

    Raises OSError and UserError if it cannot be put on.
    """
    fd = -1
    try:
        try:
            fd = safe_open.open_directory(source, True)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (safe_open.ForeignMountError, OSError):  # it need not answer to be covered
            fd = _open_top(source)
        if sealing(fd) is None:
            if not (wanted or is_share(fd)):
                return False
            if any(map(safe_open.is_foreign, mountinfo.stack_of(fd))):
                _close_beneath(fd)
            else:
                Seal(source, fd).leave()
        try:
            check_unlocked(fd, source)
        except UserError:  # a daemon has it
            return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def _open_top(path: str) -> int:
    """Return a descriptor of what is mounted at ``path``, which a user may refuse to show."""
    directory, name = os.path.split(path.rstrip("/"))
    parent = safe_open.open_directory(directory or ".", os.geteuid() == 0)
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


def _close_beneath(fd: int) -> None:
    """Put a seal between a user's mount, which is left alone, and what that covers.

    Above the user's mount a seal would go with it. Raises UserError if the kernel cannot do that,
    or if there are several such mounts; OSError.
    """
    top, *below = mountinfo.stack_of(fd)
    if any(map(safe_open.is_foreign, below)):
        raise UserError("several mounts of users lie over it")
    try:
        root = _put_on(fd, beneath=True)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(
            "a user's mount lies over it, and Linux before 6.5 puts none below"
        ) from None
    try:
        # If another one came meanwhile, this seal is left: unmounting it would take that off.
        if _listed(mountinfo.number_of(root)).parent_id != top.parent_id:
            raise UserError("another mount came between")
    finally:
        os.close(root)


def _is_covered(number: int) -> bool:
    return any(mount.parent_id == number for mount in mountinfo.listed())


def _listed(number: int) -> MountInfo:
    """Return a mount by its number. Raises OSError(ESTALE) if it is gone."""
    found = next((m for m in mountinfo.listed() if m.mnt_id == number), None)
    if found is None:
        raise os_error(errno.ESTALE)
    return found


def is_sealed(source: str) -> bool:
    """Whether a seal, of a daemon dead or alive, is on ``source``."""
    top = mountinfo.top_at(source)
    return top is not None and is_seal(top)


def check_free(source: str) -> None:
    """Raise UserError if the daemon that sealed ``source`` is alive."""
    if not is_sealed(source):
        return
    fd = _open_top(source)
    try:
        check_unlocked(fd, source)
    finally:
        os.close(fd)


def check_unlocked(fd: int, source: str) -> None:
    """Raise UserError if a daemon holds the seal that ``fd`` is of; nothing if it is of none."""
    if sealing(fd) is None:
        return
    try:
        lock = os.open(f"/proc/self/fd/{fd}", _READ)
    except PermissionError:
        raise UserError(f"{source} is sealed", "only root can guard it again", Exit.MOUNT) from None
    try:
        fcntl.flock(lock, _LOCK)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        raise UserError(
            f"{source} is guarded already and sealed",
            f"unmount that view; where there is none any more: kill -USR2 {holder(lock)}",
            Exit.MOUNT,
        ) from None
    finally:
        os.close(lock)


def holder(lock: int) -> str:
    """The process that has locked what ``lock`` is open on (proc(5), /proc/locks)."""
    st = os.fstat(lock)
    where = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino}"
    with open("/proc/locks") as file:
        held = [line.split() for line in file]
    return next((f[4] for f in held if len(f) > 5 and f[1] == "FLOCK" and f[5] == where), "?")


def lift_stale(source: str) -> None:
    """Take off what ``check_free`` has found to be nobody's, where no seal is wanted any more."""
    while is_sealed(source):
        top = mountinfo.top_at(source)
        if top is None or not mountinfo.detach(top):
            raise os_error(errno.ESTALE)


def open_below(source: str, seal_fd: int) -> int:
    """Return an O_PATH descriptor of what lies below a seal, of which ``seal_fd`` is the root.

    A seal is not taken off for that, not for a moment: whoever opened the raw share in that
    moment would have it for good. It is taken off in a mount namespace that nobody else sees,
    and what lies below is copied from there. Must be called before any thread is started.
    Raises OSError, ESTALE if ``source`` leads elsewhere by now.
    """
    here = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.unshare_mounts()
    try:
        return _copy_below(source, seal_fd)
    finally:
        syscalls.enter_mounts(here)
        os.close(here)


def _copy_below(source: str, seal_fd: int) -> int:
    expected = os.fstat(seal_fd)
    while True:
        fd = safe_open.open_directory(source, True)
        try:
            seal = sealing(fd)
            if seal is None or not os.path.samestat(os.fstat(fd), expected):
                raise os_error(errno.ESTALE)
            syscalls.umount(b"/proc/self/fd/%d" % fd, syscalls.MNT_DETACH)
        finally:
            os.close(fd)
        below = _open_top(source)
        if mountinfo.number_of(below) != seal.parent_id:
            os.close(below)
            raise os_error(errno.ESTALE)
        if sealing(below) is None:
            break
        expected = os.fstat(below)
        os.close(below)
    try:
        return syscalls.clone_tree(b"/proc/self/fd/%d" % below)
    finally:
        os.close(below)


def is_share(fd: int) -> bool:
    """Return whether a 9p or virtiofs share is mounted just there, maybe below other mounts."""
    path = os.fsencode(safe_open.path_of(fd))
    return any(
        m.fstype in mountinfo.SHARE_TYPES and m.mount_point == path for m in mountinfo.stack_of(fd)
    )


def is_reachable_by_others(source: str, uid: int) -> bool:
    """Whether a user other than ``uid`` and root can get to ``source`` by its path."""
    if not is_passable(source, uid):
        return False
    st = os.stat(source)
    return bool(st.st_mode & 0o007) or st.st_uid not in (0, uid)


def is_passable(source: str, uid: int) -> bool:
    """Whether a user other than ``uid`` and root can get as far as the directory of ``source``."""
    path = source
    while path != "/":
        path = os.path.dirname(path)
        st = os.stat(path)
        passable = bool(st.st_mode & S_IXOTH)
        passable |= st.st_gid != 0 and uid == 0 and bool(st.st_mode & S_IXGRP)
        passable |= st.st_uid not in (0, uid) and bool(st.st_mode & S_IXUSR)
        if not passable:
            return False
    return True
