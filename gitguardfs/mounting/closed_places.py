"""The seal and the lid of one view: what keeps its source and its place closed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from gitguardfs.base.errors import Exit, UserError, failing, warn
from gitguardfs.linux import mountinfo
from gitguardfs.mounting import bypasses, covers, lid, old_views, preflight, seal
from gitguardfs.options.mount_options import MountOptions

log = logging.getLogger(__name__)


def recognized(fd: int) -> bytes:
    """Return a text by which the next daemon recognizes a source's root."""
    st = os.fstat(fd)
    return b"%d:%d" % (st.st_dev, st.st_ino)


def wants_seal(options: MountOptions, paths: preflight.MountPaths) -> bool:
    """Return whether a source is to be sealed. Raises UserError."""
    is_root = os.geteuid() == 0
    if options.seal and not is_root:
        raise UserError("--seal needs root", "it mounts over the source")
    if options.seal is not None:
        return options.seal
    # A seal is there only if a daemon left it: that source was to be sealed, unless the seal took
    # the place of a lid.
    fd = paths.source_fd
    was_sealed = seal.sealing(fd) is not None and not paths.covers_itself
    return is_root and (was_sealed or seal.is_share(fd))


def warn_if_reachable(given: str, source: str) -> None:
    """Warn if other users reach a source that is not sealed; ``given`` is its name as given."""
    if seal.is_reachable_by_others(source, os.geteuid()):
        warn(
            f"{given} stays open to other users, without the guard"
            " (--seal, or keep it below a directory of mode 0700)"
        )


@dataclass
class ClosedPlaces:
    """The seal and the lid of one view. Users have neither; a view over its source has no lid."""

    seal: seal.Seal | None
    was_sealed: bool
    """Whether an earlier daemon left the seal."""
    lid: mountinfo.MountInfo | None
    """None before the view is mounted, unless an earlier daemon left it; and once it is removed."""
    target_fd: int
    """The directory to mount the view on; the lid, if an earlier daemon left one."""
    _lock: Lock = field(default_factory=Lock)

    def end(self, *, keep_seal: bool, keep_lid: bool) -> None:
        """Leave seal and lid to the next daemon, or remove them."""
        if self.seal is not None and keep_seal:
            self.seal.keep()
        elif self.seal is not None:
            try:
                self.seal.remove()
            except OSError as error:
                log.error("a seal stays: %s", error)
        if not keep_lid:
            self.open_place()

    def open_place(self) -> None:
        """Remove the lid, once: another view's lid may get its mnt_id later. On any thread."""
        with self._lock:
            removed, self.lid = self.lid, None
            try:
                if removed is not None:
                    lid.remove(removed)
            except OSError as error:
                log.error("a lid stays: %s", error)


def close(paths: preflight.MountPaths, target_fd: int, seal_it: bool) -> ClosedPlaces:
    """Put on the seal, or take over a former daemon's seal and lid. Raises UserError, OSError."""
    was_sealed = seal.sealing(paths.source_fd) is not None
    if os.geteuid() == 0 and paths.covers_itself:
        # The place of view and source is one: a seal closes both.
        sealed = _seal(paths)
        return ClosedPlaces(sealed, was_sealed, None, sealed.root)
    sealed_source = _seal(paths) if seal_it else None
    if sealed_source is None:
        seal.remove_stale(paths.source)
    return ClosedPlaces(sealed_source, was_sealed, lid.lid_of(target_fd), target_fd)


def take_over(
    paths: preflight.MountPaths, seal_it: bool, below_view: mountinfo.MountInfo | None
) -> ClosedPlaces:
    """Take over a former daemon's seal, and the lid below its view. Raises UserError, OSError."""
    return ClosedPlaces(_seal(paths) if seal_it else None, seal_it, below_view, -1)


def open_covered(path: str, root: int, is_cover: Callable[[mountinfo.MountInfo], bool]) -> int:
    """Return a descriptor of the directory below a seal or lid. Raises UserError."""
    needs = "this needs mount namespaces: CAP_SYS_ADMIN and CAP_SYS_CHROOT"
    with failing(f"cannot reach {path} below its seal or lid", needs):
        return covers.open_covered(path, root, is_cover)


def _seal(paths: preflight.MountPaths) -> seal.Seal:
    with failing(f"cannot seal {paths.source}", "the option no-seal leaves it open", Exit.MOUNT):
        return seal.Seal(paths.source, paths.source_fd)


def check_seal(
    options: MountOptions, paths: preflight.MountPaths, sealed: seal.Seal, device: int
) -> None:
    """Raise UserError if a process reaches the source past its seal, or a mount lies on the seal.

    A seal is searched for bypasses once. ``device`` is the st_dev of the source below the seal.
    """
    if not sealed.is_checked and _check_holders(
        options, *bypasses.describe(paths.source, sealed.covers, device)
    ):
        sealed.note_checked()
    with failing(f"cannot seal {paths.source}", code=Exit.MOUNT):
        sealed.check_position()  # a fusermount3 that was started below can mount over the seal


def check_old_views(options: MountOptions, access: old_views.Access, closed: ClosedPlaces) -> None:
    """Raise UserError if a process uses files of an ended view that had other rules.

    Where users can open the source itself, nothing is searched.
    """
    if closed.seal is not None or not seal.is_reachable_by_others(access.source, 0):
        _check_holders(options, *old_views.describe(access))


def _check_holders(options: MountOptions, text: str, hint: str) -> bool:
    """Return whether nobody was found. Raises UserError if that is not allowed."""
    if text and not options.allow_holders:
        raise UserError(text, hint, Exit.MOUNT)
    if text:
        log.warning("%s", text)
    return not text
