"""Ready disks: a guest that was set up once, over which the disks of VMs lie.

Setting a guest up takes minutes, and is the same for all VMs of one image and one gitguardfs. So it
is done on a disk of its own, which belongs to no VM and never changes after that: a VM's disk is an
overlay over it. A ready disk is a directory with the disk and a record of what it was made from.
The directory gets its name, a digest of all its parts, only when it is complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gitguardfs
from gitguardfs.base import config_files
from gitguardfs.base.config_files import make_private_directory
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.egress import proxy as egress
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.vm import fetching, images, keys, logs, provision, running, seed, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.launch import Launch, boot
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

PREFIX, BUILD = "ready-", "build-"
"""Beginnings of the names of ready disks, and of the directories in which they are made."""
_NAME = re.compile(f"{PREFIX}[0-9a-f]{{16}}-*")
DISK, RECORD = "disk.qcow2", "made-from.json"
MIN_FREE_BYTES = 3 << 30
"""Bytes that must be free to make a ready disk: it takes up to 2 GiB, and then a VM needs some."""
SHUTDOWN_LIMIT = 180.0
"""Seconds that the guest has to shut down once it is set up."""
MOST_MEMORY, MOST_CPUS = 2048, 4
"""MiB and processors that setting up needs at most: a VM's own size may be one that fails."""
FORMAT = b"2"
"""Raise it when a ready disk is made in another way, and no part of its key shows that."""


class Part(NamedTuple):
    """A file of a ready disk, or of the image below it, as it was when the disk was made."""

    path: str
    stamp: tuple[int, int, int]
    """Size, and the times of the last change of its content and of its inode."""
    sha256: str

    def unchanged(self, path: str) -> Part | None:
        """Return this part as it is now at ``path``; None if it has other content. Raises OSError.

        The content is read only if another stamp tells nothing: a restored backup has new times.
        """
        stamp = _stamp(path)  # before reading: what is written meanwhile has another one
        if stamp == self.stamp or _sha256(path) == self.sha256:
            return self._replace(stamp=stamp)
        return None


@dataclass(frozen=True)
class ReadyDisk:
    """A complete ready disk."""

    directory: str
    wanted: str
    """The setting ``image`` for which it was made."""
    source: str
    """The same, but for a name in images.PINNED what it stood for."""
    image: Image
    own: Part
    """The disk itself."""
    parts: tuple[Part, ...]
    """The image's files."""

    @property
    def disk(self) -> str:
        """The path of the disk."""
        return os.path.join(self.directory, DISK)

    @property
    def name(self) -> str:
        """The name in listings."""
        return os.path.basename(self.directory)


@dataclass(frozen=True)
class Builder:
    """What the machine that makes a ready disk needs, besides the image."""

    settings: Settings
    authority: bytes | None
    """Certificate authorities to trust for package servers, besides the system's."""
    upstream_proxy: bytes | None = None
    """The file with the setting of the company's proxy."""
    allowed: tuple[str, ...] = ()
    """Lines to add to the default allowlist, such as those for a mirror of packages."""


def at(directory: str) -> ReadyDisk | None:
    """Return the ready disk in this directory; None if it is gone or damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.path.join(directory, RECORD)) as file:
            made = json.load(file)
        os.stat(os.path.join(directory, DISK))
        own, *parts = (
            Part(str(path), (int(size), int(modified), int(changed)), str(digest))
            for path, (size, modified, changed), digest in (made["disk"], *made["parts"])
        )
        image = Image(**made["image"])
        wanted, source = str(made["wanted"]), str(made["source"])
        return ReadyDisk(directory, wanted, source, image, own, tuple(parts))
    return None


def disk_for(state: State, builder: Builder, cache: str) -> tuple[Image, bool]:
    """Make the VM's disk if it has none; return its image, and whether a ready disk is between.

    A new disk lies over a ready disk, which is made if there is none. An existing one keeps what it
    lies over, also a disk that an older version made directly over the image. Raises UserError.
    """
    images.refuse_cache_around_project(cache, state.project)
    wanted = builder.settings.image
    exists = os.path.exists(state.disk)
    base = images.backing_of(state.disk) if exists else None
    if base is not None:  # QEMU follows this name, which may be another than those below
        images.refuse_in_project("the image", base, state.project)
    kept = None if base is None else _below(base)
    if kept is not None and kept.wanted == wanted and images.is_fetched(wanted):
        image = kept.image  # a newer gitguardfs may pin another, or the cache be another by now
        if not os.path.exists(image.disk):
            images.obtain(kept.source, platform.machine(), os.path.dirname(image.disk))
    else:
        old = images.used_by(wanted, state.disk) if kept is None else None
        image = old or images.obtain(wanted, platform.machine(), cache)
    images.refuse_image_in_project(image, state.project)
    if kept is not None:
        kept = _checked(kept, image)
        image = kept.image
        images.refuse_image_in_project(image, state.project)
    elif not exists:
        settings.save_image(state, wanted)
        kept = ensure(image, builder, cache)
    if kept is not None:
        own = kept.own.unchanged(kept.disk)
        if own is None:
            raise UserError(
                f"the ready disk {shown(kept.directory)} has changed since it was made",
                "put it back; or delete the VMs that use it (gitguard vm images list), then the"
                " ready disk: gitguard vm images prune",
                Exit.SYSTEM,
            )
        _note_stamps(dataclasses.replace(kept, own=own))
    images.ensure_overlay(image, state.disk, None if kept is None else kept.disk)
    return image, kept is not None


def _note_stamps(kept: ReadyDisk) -> None:
    """Record what the files' stamps are now: otherwise each start would read the files again."""
    path = os.path.join(kept.directory, RECORD)
    with suppress(OSError, UserError, ValueError, TypeError):  # the next start can do it
        made = json.loads(config_files.read(path) or b"")
        text = _text({**made, "disk": kept.own, "parts": kept.parts})
        config_files.write(config_files.plan(path, text))


def _text(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=2) + "\n"


def _below(base: str) -> ReadyDisk | None:
    """Return the ready disk whose file is ``base``, if it is one. Raises UserError if damaged.

    It may be in another cache: VMs keep theirs when XDG_CACHE_HOME is set, or set anew.
    """
    directory, name = os.path.split(base)
    if not _NAME.fullmatch(os.path.basename(directory)) or name != DISK:
        return None
    found = at(directory)
    if found is None:
        raise UserError(
            f"the ready disk {shown(directory)}, from which this VM was made, is gone or damaged",
            "put it back, or delete the VM: gitguard vm reset",
            Exit.SYSTEM,
        )
    return found


def _checked(ready: ReadyDisk, image: Image) -> ReadyDisk:
    """Return the ready disk with the stamps that the image's files have now.

    Raises UserError if the image is another than the one that the ready disk lies over.
    """
    if os.path.realpath(image.disk) != os.path.realpath(ready.image.disk):
        raise UserError(
            f"this VM was made from {shown(ready.image.disk)}",
            "leave --image out, or delete the VM first: gitguard vm reset",
        )
    if _resolved(image) != _resolved(ready.image):
        raise UserError(
            f"what belongs to the image {shown(image.disk)} has changed since this VM was made from"
            " it: its kernel, initrd or cmdline",
            "put the old ones back, or delete the VM: gitguard vm reset",
        )
    parts = []
    for part in ready.parts:
        try:
            now = part.unchanged(part.path)
        except OSError as error:
            raise UserError(
                f"the image {shown(part.path)} is gone: {error.strerror}",
                "put it back, or delete the VM: gitguard vm reset",
            ) from None
        if now is None:
            raise UserError(
                f"the image {shown(part.path)} has changed since this VM was made from it",
                "put the old one back, or delete the VM: gitguard vm reset",
            )
        parts.append(now)
    return dataclasses.replace(ready, parts=tuple(parts))


def _resolved(image: Image) -> tuple[str, ...]:
    paths = (image.disk, image.kernel, image.initrd)
    return (*(os.path.realpath(path) if path else "" for path in paths), image.append)


def key(image: Image, shared: dict[str, bytes]) -> str:
    """Return the name of the ready disk of this image and what it is set up with. OSError."""
    parts = {
        **shared,
        "image": json.dumps([dataclasses.asdict(image), _stamps(image)]).encode(),
        "user-data": seed.user_data("", seed.GuestKeys("", "", "", ""), []).encode(),
        "network": seed.network_config().encode(),
        "format": FORMAT,
    }
    return PREFIX + seed.digest(parts).decode()[:16]


def _stamps(image: Image) -> list[Any]:
    return [(path, _stamp(path)) for path in images.files_of(image)]


def _stamp(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(path: str) -> Part:
    return Part(path, _stamp(path), _sha256(path))


def ensure(image: Image, builder: Builder, cache: str) -> ReadyDisk:
    """Return the ready disk of this image; make it if there is none. Raises UserError, OSError.

    If another command is making it, wait for that.
    """
    shared = provision.shared_content()
    name = key(image, shared)
    place = os.path.join(cache, name)
    while (found := at(place)) is None and os.path.lexists(place):
        place += "-"  # that one is damaged, and VMs may use it
    if found is None:
        make_private_directory(os.path.realpath(cache))
        with fetching.locked(f"{place}.lock", "another command is setting up this guest"):
            if not os.path.lexists(place):
                _make(image, builder, shared, place)
        found = at(place)
    if found is None:
        raise UserError(
            f"the ready disk {shown(place)} is damaged",
            "gitguard vm images prune deletes it, if no VM uses it",
            Exit.SYSTEM,
        )
    return found


def _make(image: Image, builder: Builder, shared: dict[str, bytes], place: str) -> None:
    """Set a guest up, and give the result its name. Below the lock of that name."""
    cache, name = os.path.split(place)
    state = State("/", os.path.join(cache, BUILD + name.removeprefix(PREFIX)[:8]))
    states.check_socket(state, "XDG_CACHE_HOME")
    clear(state)
    free = shutil.disk_usage(cache).free
    if free < MIN_FREE_BYTES:
        raise UserError(
            f"{cache} has only {free >> 20} MiB free, and setting the guest up may take"
            f" {MIN_FREE_BYTES >> 20}",
            "make room, or set another XDG_CACHE_HOME",
            Exit.SYSTEM,
        )
    print(
        "setting up the guest: this is done once for this image and this version of gitguardfs",
        file=sys.stderr,
    )
    images.self_contained(image.disk)
    parts = [_part(path) for path in images.files_of(image)]
    make_private_directory(Path(state.directory))
    try:
        _set_up(state, image, builder, shared)
    except UserError as error:
        raise UserError(
            error.message,
            f"{shown(state.directory)} has the logs of guest, QEMU and proxy",
            error.code,
        ) from None
    if any(_stamp(part.path) != part.stamp for part in parts):
        raise UserError(f"the image {shown(image.disk)} was changed meanwhile", "try again")
    done = state.path("done")
    os.mkdir(done, 0o700)
    os.chmod(state.disk, 0o400)
    os.rename(state.disk, os.path.join(done, DISK))
    made = {
        "wanted": builder.settings.image,
        "source": images.source(builder.settings.image, platform.machine()),
        "image": dataclasses.asdict(image),
        "disk": _part(os.path.join(done, DISK)),
        "parts": parts,
        "gitguardfs": gitguardfs.__version__,
    }
    config_files.write(config_files.plan(os.path.join(done, RECORD), _text(made), 0o400))
    os.sync()  # a power failure must not leave a complete name on half a disk
    os.rename(done, place)
    shutil.rmtree(state.directory)


def _set_up(state: State, image: Image, builder: Builder, shared: dict[str, bytes]) -> None:
    """Boot a machine without the project, whose guest sets itself up and shuts down. UserError.

    Its keys and its proxy's authority are made for it. The proxy allows packages, and what
    the VM's user lets its agent read.
    """
    with ExitStack() as stack:
        lock = running.take_lock(state)
        stack.callback(os.close, lock)
        pairs = keys.ensure(state)
        files = Path(state.directory)
        egress.create_files(files)
        with StateFiles(files).allowlist.open("a") as allowlist:
            allowlist.writelines(f"{line}\n" for line in builder.allowed)
        for path, text in (
            (StateFiles(files).upstream_ca, builder.authority),
            (StateFiles(files).upstream_proxy, builder.upstream_proxy),
        ):
            config_files.write(config_files.plan(str(path), text, 0o600))
        ca = egress.ca_certificate(files)
        proxy = egress.begin_proxy(files)
        stack.callback(proxy.stop)
        stack.enter_context(logs.size_limited(state.console))

        def prepare() -> None:
            with suppress(FileNotFoundError):
                os.unlink(state.disk)
            images.ensure_overlay(image, state.disk)
            seed.write(state.seed, provision.disk_content(state.name, pairs, ca, shared))

        size = dataclasses.replace(
            builder.settings,
            memory=min(builder.settings.memory, MOST_MEMORY),
            cpus=min(builder.settings.cpus, MOST_CPUS),
        )
        launch = Launch(state, size, image, pairs, None, lock, proxy, prepare=prepare)
        qemu = boot(stack, launch).qemu
        try:
            status = qemu.wait(SHUTDOWN_LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            raise UserError("the guest did not shut down after its setup", code=Exit.SYSTEM)


def clear(state: State) -> None:
    """Delete what a build that was killed has left; stop its QEMU. Raises UserError, OSError."""
    if os.path.isdir(state.directory):
        lock = running.take_lock(state, shuts_down=False)
        try:
            states.delete(state.directory)
        finally:
            os.close(lock)
