"""The seal: an empty, unreadable mount over the raw share while its guarded view is mounted.

It is a read-only ramfs of mode 000, named gitguardfs-seal. The daemon holds a lock on it, which
distinguishes a seal in use from one that a crashed daemon left.

Only root removes a seal: by a signal to its daemon, by the umount helper, or by umount(8) of a seal
without a daemon. The seal stays if a daemon or a view ends in another way, or if a guard fails to
start.

A seal protects only the mount directly below it. A user's mount between the seal and the share
would let that user unmount both. So mountinfo is compared with the directory that was checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
from contextlib import suppress
from stat import S_IXGRP, S_IXOTH, S_IXUSR

from gitguardfs.base.constants import SHARE_TYPES
from gitguardfs.base.errors import Exit, UserError, os_error
from gitguardfs.linux import descriptor_limit, mountinfo, safe_open, syscalls
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import covers, guards, utab

NAME = "gitguardfs-seal"
_CHECKED = "noatime"
"""Mount option that records, in the kernel, that ``bypasses`` has found nothing at this seal."""
_LOCK = fcntl.LOCK_EX | fcntl.LOCK_NB


class Seal:
    """A mounted seal, locked by this process until the process ends."""

    def __init__(self, source: str, source_fd: int) -> None:
        """Cover a directory, or take over the seal of a daemon that died.

        ``source_fd`` is a descriptor of the directory to cover, or of the seal's root;
        ``source`` is its name in errors. Raises OSError: EWOULDBLOCK if a daemon holds the seal,
        ESTALE if another mount is between the seal and the directory. A new seal is then removed.
        """
        self._source = source
        seal = sealing(source_fd)
        if seal is not None:
            self.covers = seal.parent_id
            """The mnt_id of the mount that the seal lies on."""
            self._lock = os.open(f"/proc/self/fd/{source_fd}", covers.READ)
        else:
            self.covers = mountinfo.number_of(source_fd)
            self._lock = covers.mount(NAME, source_fd, lock=_lock)
        try:
            _lock(self._lock)
            self.check_position()
        except BaseException:
            if seal is None:
                with suppress(OSError):
                    self.remove()
            else:
                self.keep()
            raise
        with suppress(OSError):  # root has unmounted one of them since
            seal = covers.listed(mountinfo.number_of(self._lock))
            utab.add_cover(covers.listed(self.covers), seal)

    @property
    def root(self) -> int:
        """A descriptor of the seal's root."""
        return self._lock

    def check_position(self) -> None:
        """Raise OSError(ESTALE) if the seal is not on ``covers``, or a mount is on top of it."""
        number = mountinfo.number_of(self._lock)
        if covers.listed(number).parent_id != self.covers or covers.is_covered(number):
            raise OSError(
                errno.ESTALE, "another mount is directly below or above the seal", self._source
            )

    @property
    def is_checked(self) -> bool:
        """Whether ``bypasses`` has found nobody who reaches the source past this seal."""
        return _CHECKED in covers.listed(mountinfo.number_of(self._lock)).options.split(",")

    def note_checked(self) -> None:
        """Note ``is_checked`` as an option of the mount, which stays with it. Raises OSError."""
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
        flags |= syscalls.MS_NODEV | syscalls.MS_NOEXEC | syscalls.MS_NOATIME
        syscalls.mount("none", f"/proc/self/fd/{self._lock}", flags=flags)

    def remove(self) -> None:
        """Remove the seal: unmount exactly this mount, by its descriptor. Raises OSError."""
        try:
            covers.unmount(self._lock)
        finally:
            os.close(self._lock)

    def keep(self) -> None:
        """Keep the seal on but release its lock, so that the next daemon takes it over."""
        os.close(self._lock)


def _lock(root: int) -> None:
    fcntl.flock(root, _LOCK)


def is_seal(mount: MountInfo) -> bool:
    """Return whether a mount is a seal, with or without a daemon."""
    return mount.fstype == covers.FSTYPE and mount.source == NAME


def sealing(fd: int) -> MountInfo | None:
    """Return the seal whose root ``fd`` is; None if ``fd`` is in another mount."""
    return covers.top_of(fd, is_seal)


def fail_closed(source: str, wanted: bool | None, error: UserError) -> UserError:
    """As root, seal ``source`` after mounting failed; return ``error`` with that in its hint.

    ``wanted`` says whether a seal was asked for; None means one for the root of a share. If a seal
    is needed and cannot be put on, the hint says so. Without a seal, ``error`` is returned as is.
    """
    if os.geteuid() != 0 or wanted is False:
        return error
    descriptor_limit.use_all()
    try:
        if not _seal_if_needed(source, bool(wanted)):
            return error
        said = remark(source)
    except (FileNotFoundError, NotADirectoryError):
        return error
    except (OSError, UserError) as failure:
        why = failure.message if isinstance(failure, UserError) else str(failure.strerror)
        said = _remark_unsealed(source, bool(wanted), why)
        if not said:
            return error
    return UserError(error.message, f"{error.hint}; {said}".removeprefix("; "), error.code)


def _remark_unsealed(source: str, wanted: bool, why: str) -> str:
    """Return the remark on a ``source`` that could not be sealed; "" if it needs no seal."""
    try:
        listed = [m for m in mountinfo.listed() if m.mount_point == os.fsencode(source)]
    except OSError:
        return f"it is not known whether {source} is sealed: {why}"
    top = mountinfo.top_at(source, listed)
    if top is not None and is_seal(top):  # a former daemon's
        return remark(source)
    if not (wanted or any(m.fstype in SHARE_TYPES for m in listed)):
        return ""
    said = f"{source} is NOT sealed, users can reach it: {why}"
    if listed:
        times = f", {len(listed)} times," if len(listed) > 1 else ""
        said += f"; umount -i -l {shlex.quote(source)}{times} unmounts what is there"
    return said


def remark(source: str) -> str:
    """Return the remark that ``fail_closed`` adds to an error when it has sealed ``source``."""
    return f"{source} is sealed until it is guarded; umount {shlex.quote(source)} opens it"


def _seal_if_needed(source: str, wanted: bool) -> bool:
    """Seal ``source`` if asked to. Returns whether a seal that no daemon holds is on it.

    Raises OSError and UserError if the seal cannot be put on.
    """
    fd = -1
    try:
        try:
            fd = safe_open.open_directory(source, True)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (safe_open.ForeignMountError, OSError):  # it need not answer to be sealed
            fd = covers.open_top(source)
        if sealing(fd) is None:
            if not (wanted or is_share(fd)):
                return False
            if any(map(safe_open.is_foreign, mountinfo.stack_of(fd))):
                _seal_beneath(fd)
            else:
                Seal(source, fd).keep()
        try:
            check_unlocked(fd, source)
        except UserError:  # a daemon holds it
            return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def _seal_beneath(fd: int) -> None:
    """Put a seal between a user's mount and the mount below it.

    A seal on top would go when the user unmounts theirs. Raises UserError if the kernel cannot
    mount beneath, or if there are several mounts of users; OSError.
    """
    top, *below = mountinfo.stack_of(fd)
    if any(map(safe_open.is_foreign, below)):
        raise UserError("several users' mounts are on top of it")
    try:
        root = covers.mount(NAME, fd, beneath=True, lock=_lock)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(
            "a user's mount is on top of it, and Linux before 6.5 cannot mount beneath it"
        ) from None
    try:
        # If another mount came between, the seal is left: unmounting it would unmount that one.
        if covers.listed(mountinfo.number_of(root)).parent_id != top.parent_id:
            raise UserError("another mount is between the seal and the directory")
    finally:
        os.close(root)


def is_sealed(source: str) -> bool:
    """Return whether a seal, with or without a daemon, is on ``source``."""
    top = mountinfo.top_at(source)
    return top is not None and is_seal(top)


def check_free(source: str) -> None:
    """Raise UserError if a living daemon holds the seal of ``source``."""
    if not is_sealed(source):
        return
    fd = covers.open_top(source)
    try:
        check_unlocked(fd, source)
    finally:
        os.close(fd)


def check_unlocked(fd: int, source: str) -> None:
    """Raise UserError if ``fd`` is the root of a seal and a daemon holds that."""
    if sealing(fd) is None:
        return
    try:
        lock = os.open(f"/proc/self/fd/{fd}", covers.READ)
    except PermissionError:
        raise UserError(f"{source} is sealed", "only root can guard it again", Exit.MOUNT) from None
    try:
        _lock(lock)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        orphan = guards.orphan_of(source)
        hint = "unmount its view" if orphan is None else f"kill -USR2 {orphan.pid}"
        raise UserError(f"{source} is guarded already and sealed", hint, Exit.MOUNT) from None
    finally:
        os.close(lock)


def remove_stale(source: str) -> None:
    """Remove the seals of ``source``; ``check_free`` has found no daemon. Raises OSError."""
    while is_sealed(source):
        top = mountinfo.top_at(source)
        if top is None or not mountinfo.detach(top):
            raise os_error(errno.ESTALE)


def is_share(fd: int) -> bool:
    """Return whether a share is mounted at ``fd``, maybe below other mounts."""
    path = os.fsencode(safe_open.path_of(fd))
    return any(m.fstype in SHARE_TYPES and m.mount_point == path for m in mountinfo.stack_of(fd))


def is_reachable_by_others(source: str, uid: int) -> bool:
    """Return whether a user other than ``uid`` and root can open ``source`` by its path."""
    if not is_passable(source, uid):
        return False
    st = os.stat(source)
    return bool(st.st_mode & 0o007) or st.st_uid not in (0, uid)


def is_passable(source: str, uid: int) -> bool:
    """Return whether a user other than ``uid`` and root can reach the parent of ``source``."""
    return closed_above(source, uid) is None


def closed_above(source: str, uid: int) -> str | None:
    """Return the nearest directory above ``source`` that only ``uid`` and root enter; or None."""
    path = source
    while path != "/":
        path = os.path.dirname(path)
        st = os.stat(path)
        passable = bool(st.st_mode & S_IXOTH)
        passable |= st.st_gid != 0 and uid == 0 and bool(st.st_mode & S_IXGRP)
        # An access list has its mask in the place of the group's bits.
        passable |= bool(st.st_mode & S_IXGRP) and _has_access_list(path)
        passable |= st.st_uid not in (0, uid) and bool(st.st_mode & S_IXUSR)
        if not passable:
            return path
    return None


def _has_access_list(path: str) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError as error:
        return error.errno != errno.ENOTSUP
