"""Finds out which file systems are local: they wait for no server, and close(2) reports no errors.

A device is local if mountinfo lists it with a type of ``mountinfo.LOCAL_TYPES``. An unknown one
counts as remote, which costs time and loses nothing.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from time import monotonic

from gitguardfs.linux import mountinfo

VALID_FOR = 1.0
"""Seconds for which an answer is reused before mountinfo is read again, since mounts change."""
MAX_LAYERS = 4
"""Overlays on overlays that are followed; the kernel stacks no more than two."""

_LAYER = re.compile(r"(?:lowerdir\+?|upperdir|datadir\+?)=((?:\\.|[^,\\])*)")


class LocalDevices:
    """Answers whether a device is local, by its st_dev."""

    def __init__(self, source: str) -> None:
        """Answer for the source at ``source``, a path without symlinks."""
        self._path = os.fsencode(source)
        self._answers: dict[int, bool] = {}
        self._former: dict[int, bool] = {}
        """The last answer for each device, however old."""
        self._read_at = -VALID_FOR

    def __call__(self, device: int) -> bool:
        """Return whether the file system with this st_dev is local."""
        now = monotonic()
        if now - self._read_at >= VALID_FOR:
            self._answers.clear()
            self._read_at = now
        answer = self._answers.get(device)
        if answer is None:
            answer = self._answers[device] = self._ask_with_room(device)
        return answer

    def _ask_with_room(self, device: int) -> bool:
        """Return ``_ask``; without descriptors left, the last answer, and remote if there is none.

        The error would be blamed on a process that has enough of them.
        """
        try:
            answer = self._former[device] = self._ask(device)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return self._former.get(device, False)
        return answer

    def all_are(self, device: int) -> bool:
        """Return whether ``device``, the source's, and all mounts below the source are local."""
        return self(device) and all(_is_local(mount) for mount in self._below())

    def _ask(self, device: int) -> bool:
        mount = mountinfo.of_device(device)
        if mount is not None:
            return _is_local(mount)
        # btrfs gives each of its subvolumes a device of its own, which is not listed.
        return any(each.fstype == "btrfs" for each in (*self._around(), *self._below()))

    def _below(self) -> list[mountinfo.MountInfo]:
        return [each for each in mountinfo.listed() if _is_in(each.mount_point, self._path)]

    def _around(self) -> list[mountinfo.MountInfo]:
        """Return the mounts at the nearest mount point at or above the source."""
        above = [
            e
            for e in mountinfo.listed()
            if e.mount_point == self._path or _is_in(self._path, e.mount_point)
        ]
        nearest = max((len(each.mount_point) for each in above), default=0)
        return [each for each in above if len(each.mount_point) == nearest]


def _is_in(path: bytes, directory: bytes) -> bool:
    return path.startswith(directory.rstrip(b"/") + b"/") and path != directory


def _is_local(mount: mountinfo.MountInfo, layers: int = MAX_LAYERS) -> bool:
    if mount.fstype != "overlay":
        return mount.is_local
    # Local only if all its layers are; in a container their paths lead nowhere.
    paths = [
        re.sub(r"\\(.)", r"\1", part)
        for found in _LAYER.findall(mount.super_options)
        for part in re.split(r"(?<!\\):+", found)
    ]
    return bool(paths) and layers > 0 and all(_is_local_layer(path, layers - 1) for path in paths)


def _is_local_layer(path: str, layers: int) -> bool:
    with suppress(OSError):
        mount = mountinfo.of_device(os.stat(path).st_dev) if path.startswith("/") else None
        return mount is not None and _is_local(mount, layers)
    return False
