"""`vm up` from its first check to its last: what is started in which order, and ended in reverse.

Whatever ends it (the shell, an error, a signal) goes the same way back. What a `kill -9` leaves
behind is mended by the next start: the locks tell what is still alive.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import ssl as tls
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gitguardfs import config_files
from gitguardfs.egress import proxy as egress
from gitguardfs.egress.files import StateFiles
from gitguardfs.egress.presets import PRESETS
from gitguardfs.errors import Exit, GitguardExit, UserError, shown
from gitguardfs.host.directory import existing_directory
from gitguardfs.vm import (
    host_guard,
    images,
    keys,
    logs,
    provision,
    qmp,
    running,
    seed,
    settings,
    ssh,
    trusted_programs,
)
from gitguardfs.vm import state as states
from gitguardfs.vm.boot import has_panicked
from gitguardfs.vm.launch import Launch, boot
from gitguardfs.vm.settings import Settings
from gitguardfs.vm.state import State

MIN_FREE_BYTES = 1 << 30
"""Bytes: a guest that is set up takes less, and a full disk would stop it halfway."""


class Stopped(BaseException):
    """A signal asked this command to end."""


@dataclass(frozen=True)
class UpArguments:
    """What `vm up` was asked for."""

    settings: Settings
    presets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """The command to run instead of a shell."""
    upstream_ca: str | None = None
    """A file with certificates that servers may be signed by, beside those the system trusts."""
    restricted: bool = True
    """False is for tests alone, see qemu_command.Machine."""


def up(state: State, arguments: UpArguments) -> int:
    """Start the VM, run a shell or a command in it, and stop it. Returns that one's exit status.

    Raises UserError.
    """
    check_programs()
    existing_directory(state.project)
    trusted_programs.check(state.project, _qemu(), *trusted_programs.PACKAGES)
    authority = _authority(arguments, state.project)
    with ExitStack() as stack:
        states.create(state)
        stack.enter_context(_session(state))
        lock = running.take_lock(state)
        stack.callback(os.close, lock)
        states.remove_leftovers()
        _check_room(state)
        wanted, cache = arguments.settings.image, states.cache_directory()
        image = images.used_by(wanted, state.disk, cache) or images.obtain(
            wanted, platform.machine(), cache
        )
        images.refuse_image_in_project(image, state.project)
        images.ensure_overlay(image, state.disk)
        settings.save(state, settings.before_start(settings.load(state), arguments.settings))
        pairs = keys.ensure(state)
        files = Path(state.directory)
        _ensure_allowlist(files, arguments.presets)
        if authority is not None:
            config_files.apply(
                config_files.planned(str(StateFiles(files).upstream_ca), authority, 0o600)
            )
        ca = egress.ca_certificate(files)
        content = provision.content(state.name, arguments.settings, pairs, ca)
        instance = seed.instance(state, content)
        meta_data = seed.meta_data(state.name, instance).encode()
        seed.write(state.seed, {**content, "meta-data": meta_data})
        exported = stack.enter_context(host_guard.exported(arguments.settings, state.name))
        proxy = egress.start_proxy(files)
        stack.callback(proxy.stop)
        launch = Launch(
            state, arguments.settings, image, pairs, exported, lock, proxy, arguments.restricted
        )
        stack.enter_context(logs.size_limited(state.console))
        guest = boot(stack, launch)
        settings.save(state, arguments.settings)
        seed.save_instance(state, instance)
        with open(state.ready, "wb"):
            pass
        return _session_in(state, guest, arguments.words)


def _authority(arguments: UpArguments, project: str) -> bytes | None:
    """Return the certificates that were given. UserError if they cannot be used, OSError."""
    if arguments.upstream_ca is None:
        return None
    images.refuse_in_project("the authority", arguments.upstream_ca, project)
    with open(arguments.upstream_ca, "rb") as certificate:
        text = certificate.read()
    try:
        tls.SSLContext(tls.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (tls.SSLError, ValueError) as error:
        raise UserError(f"{shown(arguments.upstream_ca)} holds no certificate: {error}") from None
    return text


def _check_room(state: State) -> None:
    free = shutil.disk_usage(state.directory).free
    if free < MIN_FREE_BYTES:
        raise UserError(
            f"{state.directory} has {free >> 20} MiB free, and the VM's disk grows",
            f"make room: {MIN_FREE_BYTES >> 20} MiB at least",
            Exit.SYSTEM,
        )


def _ensure_allowlist(files: Path, presets: tuple[str, ...]) -> None:
    """Make the allowlist, or add the presets to it; say so if the agent cannot reach its model."""
    is_new = not StateFiles(files).allowlist.exists()
    egress.create_files(files, presets)
    if is_new and not presets:
        print(
            "the agent reaches packages of Debian, Ubuntu and PyPI, and no model: stop it and add,"
            f" for example, --allow anthropic; there are: {', '.join(PRESETS)}",
            file=sys.stderr,
        )


def check_programs() -> None:
    """Raise UserError for a program that is missing, with the package that has it."""
    package = "qemu-system-arm" if _is_arm() else "qemu-system-x86"
    for program, holder in {_qemu(): package, **trusted_programs.PACKAGES}.items():
        if shutil.which(program) is None:
            install = "brew install qemu" if sys.platform == "darwin" else f"apt install {holder}"
            raise UserError(f"{program} is not installed", install, Exit.SYSTEM)


@contextmanager
def _session(state: State) -> Iterator[None]:
    """Hold the session's lock, and turn the signals that ask for an end into Stopped."""
    fd = states.take(state.session_lock)
    if fd is None:
        pid = running.session_pid(state)
        raise UserError(
            f"the VM is in use already (by process {pid})" if pid else "the VM is in use already",
            "gitguard vm ssh opens another session, gitguard vm stop ends it",
            Exit.SYSTEM,
        )
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        with _signals():
            yield
    finally:
        os.close(fd)


@contextmanager
def _signals() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: what follows is the way back
        raise Stopped

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped:
        raise UserError("stopped", code=Exit.SYSTEM) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_root() -> None:
    """Raise UserError for root, whose rights QEMU and the share would have."""
    if os.geteuid() == 0:
        raise UserError(
            "gitguard vm up does not run as root: QEMU and its share would be root's",
            "run it as the project's user",
            Exit.SYSTEM,
        )


def _session_in(state: State, guest: ssh.Guest, words: tuple[str, ...]) -> int:
    """Run the shell or the command; return its exit status."""
    terminal = sys.stdin.isatty() and (not words or sys.stdout.isatty())
    process = subprocess.Popen(ssh.session(guest, words, terminal, keys.AGENT))
    try:
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if status == ssh.FAILED and not _answers(state):
        if has_panicked(state):
            print("the guest's kernel panicked; gitguard vm logs shows it", file=sys.stderr)
        else:
            print("the VM was stopped", file=sys.stderr)
        return GitguardExit.FAILED
    return status


def _answers(state: State) -> bool:
    try:
        return qmp.status(state) == "running"
    except qmp.NoAnswerError:
        return False


def _qemu() -> str:
    return "qemu-system-aarch64" if _is_arm() else "qemu-system-x86_64"


def _is_arm() -> bool:
    return platform.machine() in ("aarch64", "arm64")
