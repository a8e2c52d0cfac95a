"""Images that a VM starts from: a cloud image pinned by its checksum, or the user's own files.

An image is never written to: a VM's disk is an overlay over it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.paths import is_inside, lies_in
from gitguardfs.base.similar import did_you_mean
from gitguardfs.host.vm import fetching, trusted_programs
from gitguardfs.host.vm.fetching import RemoteFile

DISK_SIZE = 20 << 30
"""Bytes that a VM's disk may grow to; a qcow2 file takes up only what is used."""
_DEBIAN = "https://cloud.debian.org/images/cloud/trixie"

# Not "genericcloud": its kernel has no 9p. Debian keeps dated directories for some years.
PINNED = {
    ("debian-13", "x86_64"): RemoteFile(
        f"{_DEBIAN}/20260914-2601/debian-13-generic-amd64-20260914-2601.qcow2",
        "a733e7d49442a03e70d03e4eb5aaf3967f3efc69ef70952f9bb10fc1ee2c4876"
        "eb95956b5ad2d31350e5fada768feb651352535fb8cd1233f61998a5a7d2e93c",
    ),
    ("debian-13", "aarch64"): RemoteFile(
        f"{_DEBIAN}/20260831-2587/debian-13-generic-arm64-20260831-2587.qcow2",
        "27287048285224e662722b54c77849c9bd1a2fd60ccea5f2e75c644fbd638fad"
        "7e32a97e8e3d628c8bbfdb9cf757951c8300f3c21758647c8906359d9c892b42",
    ),
}
"""Images by name and processor."""
NAMES = sorted({name for name, _ in PINNED})

SELF_CONTAINED = ("raw", "qcow2")
"""Formats of images that are one file unless they say otherwise. Others can be lists of files."""
_START = 40 << 10
"""Bytes at the start of an image that are looked at: a CD has its mark at 32 KiB."""
_UNPACK = "it is compressed, unpack it first"
_NO_DISKS = (
    ("it is a CD, such as an installer", 32769, b"CD001"),
    (_UNPACK, 0, b"\xfd7zXZ\0"), (_UNPACK, 0, b"\x1f\x8b"), (_UNPACK, 0, b"\x28\xb5\x2f\xfd"),
    (_UNPACK, 0, b"BZh"), (_UNPACK, 0, b"PK\3\4"), (_UNPACK, 0, b"7z\xbc\xaf\x27\x1c"),
)  # fmt: skip
"""Why a file is no disk, the place of the mark that shows it, and the mark."""
_BASE = "full-backing-filename"
"""qemu-img's word for the file below a disk."""
_DISKS = ("disk.qcow2", "disk.img")
_CHECK = "check the image, or use another: --image FILE"
APPEND = "root=/dev/vda rw"
"""Kernel arguments for a local image without a cmdline: the whole disk is the root."""


@dataclass(frozen=True)
class Image:
    """Files that a VM starts from. QEMU boots the kernel if there is one, otherwise the disk."""

    disk: str
    kernel: str | None = None
    initrd: str | None = None
    append: str = APPEND


def obtain(wanted: str, machine: str, cache: str) -> Image:
    """Return the image ``wanted``; fetch it into the directory ``cache`` if it is not local.

    ``wanted`` is a name in PINNED, ``URL#sha512=HEX``, the file of a disk, or a directory with a
    disk and its kernel. ``machine`` is the processor as platform.machine() says. Raises UserError.
    """
    remote = _remote(wanted, "aarch64" if machine == "arm64" else machine)
    if remote is not None:
        return Image(fetching.fetch(remote, cache))
    path = os.path.abspath(wanted)
    if os.path.isdir(path):
        return _directory(path)
    if os.path.isfile(path):
        return Image(path)
    raise UserError(
        f"there is no image {shown(wanted)}",
        did_you_mean(os.path.basename(wanted), NAMES)
        or "use a file, a directory with disk.img, vmlinuz, initrd and cmdline, URL#sha512=HEX, or"
        f" one of: {', '.join(NAMES)}",
    )


def files_of(image: Image) -> list[str]:
    """Return the paths of the image's files."""
    return [path for path in (image.disk, image.kernel, image.initrd) if path]


def is_pinned(wanted: str) -> bool:
    """Return whether ``wanted`` is a name in PINNED."""
    return wanted in NAMES


def is_fetched(wanted: str) -> bool:
    """Return whether ``wanted`` is no path of this machine."""
    return is_pinned(wanted) or "://" in wanted


def resolved(wanted: str) -> str:
    """Return ``wanted`` for the settings: a path is made absolute."""
    return wanted if is_fetched(wanted) else os.path.abspath(wanted)


def source(wanted: str, machine: str) -> str:
    """Return ``wanted``; for a name in PINNED, the ``URL#sha512=HEX`` that it stands for."""
    remote = _remote(wanted, "aarch64" if machine == "arm64" else machine)
    return wanted if remote is None else f"{remote.url}#sha512={remote.sha512}"


def _remote(wanted: str, machine: str) -> RemoteFile | None:
    if is_pinned(wanted):
        found = PINNED.get((wanted, machine))
        if found is None:
            raise UserError(
                f"there is no image {wanted} for {machine}",
                "use your own: --image FILE",
                Exit.SYSTEM,
            )
        return found
    if "://" not in wanted:
        return None
    url, _, fragment = wanted.partition("#")
    checksum = re.fullmatch(r"sha512=([0-9a-fA-F]{128})", fragment, re.ASCII)
    if not re.match(r"(?i)https?://[^/]", url) or checksum is None:
        raise UserError(
            f"--image {shown(wanted)} has no checksum", "write https://…/image.qcow2#sha512=HEX"
        )
    return RemoteFile(url, checksum[1].lower())


def _directory(path: str) -> Image:
    disks = [os.path.join(path, name) for name in _DISKS if _is_file(path, name)]
    if not disks:
        raise UserError(f"{path} holds neither {' nor '.join(_DISKS)}", "use another: --image FILE")
    if not _is_file(path, "vmlinuz"):
        return Image(disks[0])
    initrd = os.path.join(path, "initrd") if _is_file(path, "initrd") else None
    append = APPEND
    if _is_file(path, "cmdline"):
        with open(os.path.join(path, "cmdline")) as file:
            append = " ".join(file.read().split())
    return Image(disks[0], os.path.join(path, "vmlinuz"), initrd, append)


def _is_file(directory: str, name: str) -> bool:
    return os.path.isfile(os.path.join(directory, name))


def refuse_in_project(what: str, path: str, project: str, *others: str) -> None:
    """Raise UserError if ``path``, or what it leads to, lies in the project or in ``others``.

    The agent could change the file there. ``what`` begins the message, such as "the image".
    """
    for directory in (project, *others):
        if lies_in(path, directory):
            where = "the project" if directory == project else f"the share {shown(directory)}"
            raise UserError(
                f"{what} {shown(path)} lies in {where}, where the agent could change it",
                f"move it out of {where}",
            )


def refuse_image_in_project(image: Image, project: str, *others: str) -> None:
    """Raise UserError if a file of the image lies in the project or in ``others``.

    The agent could write it, and so choose the guest's kernel or disk. Root of such a guest reaches
    the raw share.
    """
    for path in files_of(image):
        refuse_in_project("the image", path, project, *others)


def refuse_cache_around_project(cache: str, project: str) -> None:
    """Raise UserError if the cache lies in the project, or the project in the cache.

    The agent could change what every VM starts from.
    """
    if lies_in(cache, project) or is_inside(project, os.path.realpath(cache)):
        raise UserError(
            f"the images in {shown(cache)} would lie in the project {shown(project)}, where the"
            " agent could change them",
            "choose a directory further down as the project, or set another XDG_CACHE_HOME",
        )


def ensure_overlay(image: Image, disk: str, over: str | None = None) -> None:
    """Make a disk over the image, or over the ready disk ``over`` of it, if there is none.

    Raises UserError if QEMU would follow one of them to files that were not checked.
    """
    found = _checked(image, over)
    if os.path.exists(disk):
        return
    size = max(DISK_SIZE, int(found["virtual-size"]))
    base, new = over or image.disk, f"{disk}.new"
    _qemu_img("create", "-q", "-f", "qcow2", "-F", found["format"], "-b", base, new, str(size))
    os.rename(new, disk)


def _checked(image: Image, over: str | None) -> dict[str, Any]:
    """Describe the file below a disk. Raises UserError if QEMU would follow it elsewhere."""
    found = self_contained(image.disk)
    if over is None:
        return found
    found = described(over)
    leads_to = [name for name in (found.get(_BASE), _data_file(found)) if name]
    if found["format"] != "qcow2" or leads_to != [image.disk]:
        raise UserError(
            f"the ready disk {shown(over)} is damaged: it does not lie over {shown(image.disk)}",
            "delete the VM: gitguard vm reset",
            Exit.SYSTEM,
        )
    return found


def backing_of(disk: str) -> str:
    """Return the file that a VM's disk lies over. Raises UserError if that cannot be read."""
    return next(below(disk))


def below(disk: str) -> Iterator[str]:
    """Yield the files below a VM's disk, from the top. Raises UserError if that is not known.

    A format is never guessed: a disk with a damaged header would count as one over no other.
    """
    try:
        found = described(disk, "qcow2")
        if _BASE not in found:
            raise UserError("it lies over no image")
    except UserError as error:
        raise UserError(
            f"the disk {shown(disk)} is damaged, or cannot be read: {error.message}",
            "put it back, or delete it: gitguard vm reset",
            Exit.SYSTEM,
        ) from None
    while _BASE in found:
        yield str(found[_BASE])
        found = described(found[_BASE], found.get("backing-filename-format"))


def self_contained(disk: str) -> dict[str, Any]:
    """Describe an image; raise UserError if it names other files or servers, which QEMU would open.

    They may lie in the project, or be any file of the user's, which the guest could then read.
    """
    found = described(disk)
    other = found.get("backing-filename") or _data_file(found)
    if other is not None or found["format"] not in SELF_CONTAINED:
        what = f"leads to {shown(other)}" if other else f"has the format {shown(found['format'])}"
        raise UserError(
            f"the image {shown(disk)} {what}",
            f"make one file of it: qemu-img convert -O qcow2 {shown(shlex.quote(disk))} NEW.qcow2",
        )
    return found


def check_boots(image: Image) -> None:
    """Raise UserError if the image is no disk that a machine can start from, as far as seen.

    A qcow2 is not looked into, nor a disk that comes with its kernel, which may be one filesystem.
    """
    with open(image.disk, "rb") as file:
        start = file.read(_START)
    kind = next((kind for kind, at, magic in _NO_DISKS if start[at:].startswith(magic)), "")
    if not kind:
        found = self_contained(image.disk)
        boots = start[510:512] == b"\x55\xaa"  # the end of a boot sector; a GPT begins with one
        if found["format"] != "raw" or boots or image.kernel:
            return
        kind = "it has neither a partition table nor a boot sector"
    raise UserError(
        f"the image {shown(image.disk)} is no disk that can boot: {kind}",
        "use --image FILE with a cloud image, qcow2 or raw; or --image debian-13",
    )


def _data_file(described: dict[str, Any]) -> str | None:
    found = described.get("format-specific", {}).get("data", {}).get("data-file")
    return None if found is None else str(found)


def described(disk: str, kind: str | None = None) -> dict[str, Any]:
    """Return qemu-img's facts about a disk of this format, without the disks below it.

    Without ``kind`` it guesses the format. Raises UserError.
    """
    if not os.path.isfile(disk):  # qemu-img would wait for a FIFO
        raise UserError(f"{shown(disk)} is no file", _CHECK, Exit.SYSTEM)
    # -U: do not wait for the lock of a running QEMU. This only reads the header.
    how = ["-f", kind] if kind else []
    answer = json.loads(_qemu_img("info", "-U", "--output=json", *how, disk))
    assert isinstance(answer, dict)
    return answer


def _qemu_img(*arguments: str) -> str:
    done = subprocess.run(
        [trusted_programs.path_of(trusted_programs.QEMU_IMG), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UserError(shown(done.stderr.strip()), _CHECK, Exit.SYSTEM)
    return done.stdout
