"""Ready disks: guests that were set up once, over which the disks of VMs lie.

Setting a guest up takes minutes, and is the same for all VMs of one image and one gitguardfs. A
ready disk is a directory with the disk and a record of its image. The directory gets its name, a
digest of all that the disk is made of, only when it is complete. After that nobody writes it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import gitguardfs
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.files import StateFiles, create_files, read_allowlist
from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.egress.start import StartedProxy
from gitguardfs.host.vm import (
    agents,
    fetching,
    images,
    keys,
    logs,
    provision,
    running,
    seed,
    settings,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.agents import Agent
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.launch import Launch, boot
from gitguardfs.host.vm.phases import Phase
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.options import config_files
from gitguardfs.options.config_files import make_private_directory

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
FORMAT = b"3"
"""Raise it when a ready disk is made in another way, and no part of its key shows that."""
_RESET = "put the old one back, or delete the VM: gitguard vm reset"

Stamps = dict[str, list[int]]
"""Sizes of files, and the times when they were last changed, in nanoseconds."""


@dataclass(frozen=True)
class ReadyDisk:
    """A complete ready disk."""

    directory: str
    wanted: str
    """The setting ``image`` for which it was made."""
    source: str
    """The image's URL or path, with a pinned name already resolved."""
    image: Image
    stamps: Stamps
    """The stamps of the disk and of the image's files when the disk was made."""
    agent: str = ""
    """The installed part of an agent, as Install.text; "" for none."""

    @property
    def command(self) -> str:
        """The command of its agent; "" for none."""
        found = re.search(r'^command = "(.*)"$', self.agent, re.MULTILINE)
        return found[1] if found else ""

    @property
    def disk(self) -> str:
        """The path of the disk."""
        return os.path.join(self.directory, DISK)

    @property
    def name(self) -> str:
        """The name in listings."""
        return os.path.basename(self.directory)


def at(directory: str) -> ReadyDisk | None:
    """Return the ready disk in a directory; None if it is gone or damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(os.path.join(directory, RECORD)) as file:
            made = json.load(file)
        os.stat(os.path.join(directory, DISK))
        image = Image(**made["image"])
        return ReadyDisk(
            directory, str(made["wanted"]), str(made["source"]), image, dict(made["stamps"]),
            str(made.get("agent", "")),  # none in a disk of an older version
        )  # fmt: skip
    return None


def check_image(state: State, wanted: str) -> None:
    """Raise UserError for a local image that cannot be used, before anything is made of it."""
    if not images.is_fetched(wanted):
        image = images.obtain(wanted, platform.machine(), "")
        images.refuse_image_in_project(image, state.project)
        images.check_boots(image)


def disk_for(state: State, wanted: Settings, cache: str) -> Image:
    """Make the VM's disk if it has none; return its image.

    A new disk lies over a ready disk, which is made if there is none. Its image is saved once that
    has booted. Raises UserError, OSError.
    """
    images.refuse_cache_around_project(cache, state.project)
    others = wanted.others_writable
    if os.path.exists(state.disk):
        ready = _below(state, others)
        image = _unchanged_image(ready, wanted.image)
        images.refuse_image_in_project(image, state.project, *others)
    else:
        image = images.obtain(wanted.image, platform.machine(), cache)
        images.refuse_image_in_project(image, state.project, *others)
        ready = ensure(image, wanted, state.files, cache)
        settings.save_image(state, wanted.image)
    if _stamp(ready.disk) != ready.stamps.get(DISK):
        raise UserError(
            f"the ready disk {shown(ready.directory)} has changed since it was made",
            "put it back; or delete the VMs that use it (gitguard vm images list), then the"
            " ready disk: gitguard vm images prune",
            Exit.SYSTEM,
        )
    images.ensure_overlay(image, state.disk, ready.disk)
    return image


def has_agent(state: State, agent: Agent) -> bool:
    """Return whether the VM has this agent from its ready disk, or will get it so."""
    if not os.path.exists(state.disk) or not agent.install.packages:
        return True
    try:
        return _below(state).agent == agent.install.text
    except UserError:
        return False  # the start will say what is wrong


def _below(state: State, others: tuple[str, ...] = ()) -> ReadyDisk:
    """Return the ready disk below a VM's disk. Raises UserError if it is gone or damaged.

    It may be in another cache: a VM keeps its ready disk when XDG_CACHE_HOME is another. The agent
    writes in the project and in ``others``.
    """
    base = images.backing_of(state.disk)
    # QEMU follows just this name.
    images.refuse_in_project("the image", base, state.project, *others)
    directory, name = os.path.split(base)
    found = at(directory) if name == DISK and _NAME.fullmatch(os.path.basename(directory)) else None
    if found is None:
        raise UserError(
            f"the ready disk {shown(base)}, from which this VM was made, is gone or damaged",
            "put it back, or delete the VM: gitguard vm reset",
            Exit.SYSTEM,
        )
    return found


def _unchanged_image(ready: ReadyDisk, wanted: str) -> Image:
    """Return the image below a ready disk; fetch it if it is gone from the cache.

    Raises UserError if it has changed, or if ``wanted`` is another.
    """
    if os.path.realpath(wanted) != os.path.realpath(ready.wanted):
        raise UserError(
            f"this VM was made from {shown(ready.wanted)}",
            "leave --image out, and image in gitguard.toml; or delete the VM first: gitguard vm"
            " reset",
        )
    image, machine = ready.image, platform.machine()
    if images.is_fetched(wanted):  # its checksum says what it is
        if not os.path.exists(image.disk):
            images.obtain(ready.source, machine, os.path.dirname(image.disk))
        return image
    stamps = {DISK: ready.stamps.get(DISK), **_stamps(image)}
    if images.obtain(ready.wanted, machine, "") != image or stamps != ready.stamps:
        raise UserError(
            f"the image {shown(image.disk)} has changed since this VM was made from it, or its"
            " kernel, initrd or cmdline",
            _RESET,
        )
    return image


def key(image: Image, shared: dict[str, bytes]) -> str:
    """Return the name of the ready disk of an image and the content of its seed. OSError."""
    parts = {
        **shared,
        "image": json.dumps([dataclasses.asdict(image), _stamps(image)]).encode(),
        "user-data": seed.user_data("", seed.GuestKeys("", "", "", ""), []).encode(),
        "network": seed.network_config().encode(),
        "format": FORMAT,
    }
    return PREFIX + seed.digest(parts).decode()[:16]


def _stamps(image: Image) -> Stamps:
    try:
        return {path: _stamp(path) for path in images.files_of(image)}
    except FileNotFoundError as error:
        raise UserError(f"the image {shown(error.filename)} is gone", _RESET) from None


def _stamp(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


def ensure(image: Image, size: Settings, files: StateFiles, cache: str) -> ReadyDisk:
    """Return the ready disk of an image; make it if there is none. Raises UserError, OSError.

    If another command is making it, wait for that.
    """
    loaded = agents.of(size)
    agent = loaded.for_ready_disk if loaded else None
    shared = provision.shared_content(agent)
    directory = os.path.join(cache, key(image, shared))
    while (found := at(directory)) is None and os.path.lexists(directory):
        directory += "-"  # the one of that name is damaged, and VMs may use it
    if found is None:
        make_private_directory(os.path.realpath(cache))
        with fetching.locked(f"{directory}.lock", "another command is setting up this guest"):
            if not os.path.lexists(directory):
                _make(image, size, files, shared, directory, agent)
        found = at(directory)
    if found is None:
        raise UserError(
            f"the ready disk {shown(directory)} is damaged",
            "gitguard vm images prune deletes it, if no VM uses it",
            Exit.SYSTEM,
        )
    return found


def _make(
    image: Image,
    size: Settings,
    files: StateFiles,
    shared: dict[str, bytes],
    directory: str,
    agent: Agent | None,
) -> None:
    """Set a guest up, and give the result its name. The caller holds the lock of that name."""
    images.check_boots(image)
    cache, name = os.path.split(directory)
    state = State("/", os.path.join(cache, BUILD + name.removeprefix(PREFIX)[:8]))
    states.check_socket(state, "XDG_CACHE_HOME")
    clear(state)
    fetching.require_room(cache, MIN_FREE_BYTES, "setting the guest up may take")
    which = f", gitguardfs and {agent.name}" if agent else " and gitguardfs"
    print(f"the guest is set up once for this image{which}; this can take minutes", file=sys.stderr)
    stamps = _stamps(image)
    make_private_directory(state.files.directory)
    try:
        _set_up(state, image, size, files, shared, agent)
    except UserError as error:
        with suppress(OSError):
            logs.delete_others(state)
        raise UserError(
            error.message,
            f"{shown(state.directory)} has the logs of guest, QEMU and proxy",
            error.code,
        ) from None
    except BaseException:
        states.delete(state.directory)
        raise
    if _stamps(image) != stamps:
        raise UserError(f"the image {shown(image.disk)} was changed meanwhile", "try again")
    done = state.path("done")
    os.mkdir(done, 0o700)
    os.chmod(state.disk, 0o400)
    os.rename(state.disk, os.path.join(done, DISK))
    made: dict[str, Any] = {
        "wanted": size.image,
        "source": images.source(size.image, platform.machine()),
        "image": dataclasses.asdict(image),
        "stamps": {DISK: _stamp(os.path.join(done, DISK)), **stamps},
        "gitguardfs": gitguardfs.__version__,
        "agent": agent.install.text if agent else "",
    }
    text = json.dumps(made, indent=2) + "\n"
    config_files.put(os.path.join(done, RECORD), text, 0o400)
    os.sync()  # a power failure must not leave a complete name on half a disk
    os.rename(done, directory)
    shutil.rmtree(state.directory)


def _set_up(
    state: State,
    image: Image,
    size: Settings,
    files: StateFiles,
    shared: dict[str, bytes],
    agent: Agent | None,
) -> None:
    """Boot a machine without the project, whose guest sets itself up and shuts down. UserError.

    It has keys and an authority of its own. Its proxy reaches servers as that of ``files`` does,
    and allows packages, what the agent is installed from, and what ``files`` allows to read.
    """
    with ExitStack() as stack:
        lock = running.take_lock(state)
        stack.callback(os.close, lock)
        pairs = keys.ensure(state)
        own = state.files
        create_files(own.directory, agent.install.presets if agent else ())
        rules = Allowlist.parse(read_allowlist(files)).rules
        with own.allowlist.open("a") as allowlist:
            allowlist.writelines(f"{r.line}\n" for r in rules if r.method in ("GET", "HEAD"))
        for theirs, path in (
            (files.upstream_ca, own.upstream_ca),
            (files.upstream_proxy, own.upstream_proxy),
        ):
            config_files.put(path, config_files.read(str(theirs)))
        ca = ca_certificate(own.directory)
        proxy = StartedProxy(own.directory)
        stack.callback(proxy.stop)
        stack.enter_context(logs.size_limited(state.console))

        def prepare() -> None:
            with suppress(FileNotFoundError):
                os.unlink(state.disk)
            images.ensure_overlay(image, state.disk)
            seed.write(state.seed, provision.disk_content(state.name, pairs, ca, shared, agent))

        small = dataclasses.replace(
            size, memory=min(size.memory, MOST_MEMORY), cpus=min(size.cpus, MOST_CPUS)
        )
        launch = Launch(state, small, image, pairs, (), lock, proxy, prepare=prepare)
        with Phase("Guest setup", state.console) as phase:
            phase.show("booting", 0.0)
            _, qemu = boot(stack, launch, phase)
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
