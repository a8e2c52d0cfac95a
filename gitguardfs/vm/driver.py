"""`vm up` from its first check to its last: what is started in which order, and ended in reverse.

Whatever ends it (the shell, an error, a signal) goes the same way back. What a `kill -9` leaves
behind is mended by the next start: the locks tell what is still alive.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gitguardfs import writer
from gitguardfs.egress import proxy as egress
from gitguardfs.egress.files import StateFiles
from gitguardfs.egress.presets import PRESETS
from gitguardfs.errors import Exit, GitguardExit, UserError
from gitguardfs.host.directory import existing_directory
from gitguardfs.vm import (
    accelerators,
    host_guard,
    images,
    keys,
    provision,
    qmp,
    running,
    seed,
    settings,
    ssh,
)
from gitguardfs.vm import state as states
from gitguardfs.vm.boot import Boot, BootError, Progress
from gitguardfs.vm.images import Image
from gitguardfs.vm.keys import Keys
from gitguardfs.vm.qemu_command import PROXY_ADDRESS, PROXY_PORT, Machine, command
from gitguardfs.vm.settings import Settings
from gitguardfs.vm.state import State

ATTEMPTS = 2
"""Boots that are tried with one accelerator: under emulation a kernel panics now and then."""
LEAST_ROOM = 1 << 30
"""Bytes: a guest that is set up takes less, and a full disk would stop it halfway."""
PROGRAMS = {
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}
"""What is needed besides QEMU, and the Debian package that has it."""
TUNNEL_IS_UP = (
    f"for i in $(seq 60); do (: </dev/tcp/{PROXY_ADDRESS}/{PROXY_PORT}) 2>/dev/null && exit;"
    " sleep 0.5; done; exit 1"
)
"""For root's shell, which is bash: waits for it, 30 seconds at most."""
FIRMWARE = (
    "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
    "/usr/share/edk2/aarch64/QEMU_EFI.fd",
    "/opt/homebrew/share/qemu/edk2-aarch64-code.fd",
)


class Stopped(BaseException):
    """A signal asked this command to end."""


@dataclass(frozen=True)
class Wish:
    """What `vm up` was asked for."""

    settings: Settings
    presets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """The command to run instead of a shell."""
    upstream_ca: str | None = None
    """A file with certificates that servers may be signed by, beside those the system trusts."""
    restricted: bool = True
    """False is for tests alone, see qemu_command.Machine."""


def up(state: State, wish: Wish) -> int:
    """Start the VM, run a shell or a command in it, and stop it. Returns that one's exit status.

    Raises UserError.
    """
    check_programs()
    existing_directory(state.project)
    with ExitStack() as stack:
        states.create(state)
        stack.enter_context(_session(state))
        lock = running.take_lock(state)
        stack.callback(os.close, lock)
        states.remove_leftovers()
        _check_room(state)
        image = images.obtain(wish.settings.image, platform.machine(), states.cache_directory())
        images.ensure_overlay(image, state.disk)
        settings.save(state, wish.settings)
        pairs = keys.ensure(state)
        files = Path(state.directory)
        _say_what_is_allowed(files, wish.presets)
        if wish.upstream_ca is not None:
            with open(wish.upstream_ca, "rb") as certificate:
                text = certificate.read()
            writer.apply(writer.planned(str(StateFiles(files).upstream_ca), text, 0o600))
        ca = egress.ca_certificate(files)
        instance = seed.instance(state)
        content = provision.content(state.name, wish.settings, pairs, ca, instance)
        seed.write(state.seed, content)
        exported = stack.enter_context(host_guard.exported(wish.settings, state.name))
        proxy = egress.start_proxy(files)
        stack.callback(proxy.stop)
        guest = _boot(stack, state, wish, image, pairs, exported, lock, proxy.port)
        seed.keep_instance(state, instance)
        with open(state.ready, "wb"):
            pass
        return _session_in(state, guest, wish.words)


def _check_room(state: State) -> None:
    free = shutil.disk_usage(state.directory).free
    if free < LEAST_ROOM:
        raise UserError(
            f"{state.directory} has {free >> 20} MiB free, and the VM's disk grows",
            f"make room: {LEAST_ROOM >> 20} MiB at least",
            Exit.SYSTEM,
        )


def _say_what_is_allowed(files: Path, presets: tuple[str, ...]) -> None:
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
    qemu = "qemu-system-aarch64" if _is_arm() else "qemu-system-x86_64"
    package = "qemu-system-arm" if _is_arm() else "qemu-system-x86"
    for program, holder in {qemu: package, **PROGRAMS}.items():
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


def _boot(
    stack: ExitStack,
    state: State,
    wish: Wish,
    image: Image,
    pairs: Keys,
    exported: str,
    lock: int,
    proxy_port: int,
) -> ssh.Guest:
    """Boot with the first accelerator that works; what was started ends with ``stack``."""
    progress = Progress()
    left = accelerators.candidates(state, platform.system())
    attempts = 0
    while True:
        machine = _machine(state, wish, image, exported, left[0])
        with ExitStack() as attempt:
            qemu = _start(machine, lock)
            attempt.callback(_end, state, qemu)
            boot = Boot(state, qemu, progress)
            try:
                guest = ssh.Guest(
                    pairs, boot.await_monitor(), provision.view_of(wish.settings.project)
                )
                boot.await_ssh(guest.port)
                if wish.settings.hardened:
                    attempt.enter_context(_tunnel(guest, proxy_port))
                boot.await_ready(guest)
            except BootError as failure:
                attempts += 1
                if failure.is_accelerator and len(left) > 1:
                    accelerators.note_failure(state, left.pop(0))
                    attempts = 0
                elif failure.is_accelerator or attempts >= ATTEMPTS:
                    raise UserError(
                        str(failure), "gitguard vm logs shows the console", Exit.SYSTEM
                    ) from None
                else:
                    print(f"{failure}: trying once more", file=sys.stderr)
                qemu.kill()
                qemu.wait()
                continue
            finally:
                progress.end()
            stack.push(attempt.pop_all())
            return guest


def _machine(state: State, wish: Wish, image: Image, exported: str, accelerator: str) -> Machine:
    relay = os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")
    return Machine(
        state=state,
        image=image,
        exported=exported,
        memory=wish.settings.memory,
        cpus=wish.settings.cpus,
        accelerator=accelerator,
        processor=platform.machine(),
        relay=(sys.executable, "-I", "-S", relay, state.directory),
        hardened=wish.settings.hardened,
        is_mac=platform.system() == "Darwin",
        firmware=next(filter(os.path.exists, FIRMWARE), "edk2-aarch64-code.fd"),
        restricted=wish.restricted,
    )


def _start(machine: Machine, lock: int) -> subprocess.Popen[bytes]:
    """Start QEMU, which inherits the lock, and hears nothing of the terminal's signals."""
    state = machine.state
    for left in (state.console, state.ready):  # the last boot's must not be taken for this one's
        with suppress(FileNotFoundError):
            os.unlink(left)
    with open(state.qemu_log, "wb") as log:
        return subprocess.Popen(
            command(machine),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            cwd=state.directory,  # it would take firmware from there, and the agent writes here
        )


def _end(state: State, qemu: subprocess.Popen[bytes]) -> None:
    """Let the guest go down, and end QEMU; a Ctrl-C meanwhile makes it shorter."""
    if qemu.poll() is not None:
        return
    try:
        print("stopping the VM", file=sys.stderr)
        with suppress(qmp.NoAnswerError, subprocess.TimeoutExpired):
            qmp.press_power_button(state)
            qemu.wait(running.DOWN_LIMIT)
            return
        with suppress(qmp.NoAnswerError, subprocess.TimeoutExpired):
            qmp.end(state)
            qemu.wait(running.QUIT_LIMIT)
    finally:
        if qemu.poll() is None:
            qemu.kill()
        qemu.wait()


@contextmanager
def _tunnel(guest: ssh.Guest, proxy_port: int) -> Iterator[None]:
    """Give the guest the proxy by a reverse tunnel, at the address where it would be otherwise."""
    _as_root(guest, f"ip address replace {PROXY_ADDRESS}/32 dev lo")
    process = subprocess.Popen(
        ssh.tunnel(guest, PROXY_ADDRESS, PROXY_PORT, proxy_port),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _as_root(guest, TUNNEL_IS_UP)
        yield
    finally:
        process.terminate()
        process.wait()


def _as_root(guest: ssh.Guest, line: str) -> None:
    """Run a line in the guest as root. Raises BootError if it fails."""
    words = ssh.command(guest, keys.ADMIN, remote=line)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise BootError("the tunnel to the proxy does not come up")


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
        print("the VM was stopped", file=sys.stderr)
        return GitguardExit.FAILED
    return status


def _answers(state: State) -> bool:
    try:
        return qmp.status(state) == "running"
    except qmp.NoAnswerError:
        return False


def _is_arm() -> bool:
    return platform.machine() in ("aarch64", "arm64")
