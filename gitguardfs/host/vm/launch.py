"""Starts QEMU with the first accelerator that works, waits for the guest, and stops both."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from gitguardfs.base import installation, walk
from gitguardfs.base.errors import Exit, UserError, failing, shown
from gitguardfs.host.egress import die_with_parent
from gitguardfs.host.egress.start import StartedProxy
from gitguardfs.host.vm import accelerators, keys, qmp, running, ssh, trusted_programs
from gitguardfs.host.vm.boot import LOGS, STEPS, Boot, BootError
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.keys import Keys
from gitguardfs.host.vm.phases import Phase
from gitguardfs.host.vm.qemu_command import IS_MAC, PROXY_ADDRESS, PROXY_PORT, Machine, command
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import Share
from gitguardfs.host.vm.state import State

ATTEMPTS = 2
"""Boots to try with one accelerator: an emulated kernel panics now and then."""
TUNNEL_IS_UP = (
    f"for i in $(seq 60); do (: </dev/tcp/{PROXY_ADDRESS}/{PROXY_PORT}) 2>/dev/null && exit;"
    " sleep 0.5; done; exit 1"
)
"""A script for root's shell in the guest (bash): waits for the tunnel, 30 seconds at most."""


@dataclass(frozen=True)
class Launch:
    """The needs of one start of a VM."""

    state: State
    settings: Settings
    image: Image
    keys: Keys
    exported: tuple[Share, ...]
    """The shared directories; none while a disk is made that VMs will share."""
    lock: int
    """The descriptor of the VM's lock, which QEMU inherits."""
    proxy: StartedProxy
    restricted: bool = True
    """False only in tests; see qemu_command.Machine."""
    prepare: Callable[[], None] = lambda: None
    """Called before each attempt to boot."""


def boot(
    stack: ExitStack, launch: Launch, phase: Phase
) -> tuple[ssh.SshGuest, subprocess.Popen[bytes]]:
    """Boot with the first accelerator that works; return the guest, once it is ready, and QEMU.

    The proxy may start meanwhile, which takes seconds. When ``stack`` closes, all that was started
    is stopped. Raises UserError.
    """
    state = launch.state
    steps = () if launch.exported else tuple(STEPS)
    left = accelerators.candidates(state, platform.system())
    attempts = 0
    while True:
        launch.prepare()
        with ExitStack() as attempt:
            here, there = socket.socketpair()
            attempt.enter_context(here)
            with there, opened(launch) as (exported, fds):
                machine = _machine(launch, left[0], there.fileno(), exported)
                qemu = _start(machine, launch.lock, *fds)
            attempt.callback(_end if launch.exported else _kill, state, qemu)
            wait = Boot(state, qemu, phase, here, steps=steps)
            try:
                _ = launch.proxy.port  # its error is the first to say what is wrong
                view = launch.settings.shares[0].view
                guest = ssh.SshGuest(launch.keys, wait.await_monitor(), view)
                if launch.settings.hardened:
                    wait.await_ssh(guest.port)
                    attempt.enter_context(_tunnel(wait, guest, launch))
                wait.await_ready()
            except BootError as failure:
                attempts += 1
                if failure.is_accelerator and len(left) > 1:
                    phase.clear()
                    accelerators.remember_failure(state, left.pop(0))
                    attempts = 0
                elif failure.is_accelerator or attempts >= ATTEMPTS:
                    raise UserError(str(failure), LOGS, Exit.SYSTEM) from None
                else:
                    phase.say(f"{failure}: trying again")
                qemu.kill()
                qemu.wait()
                continue
            stack.push(attempt.pop_all())
            return guest, qemu


@contextmanager
def opened(launch: Launch) -> Iterator[tuple[tuple[Share, ...], tuple[int, ...]]]:
    """Yield the shares by paths of descriptors, and the descriptors, which QEMU is to inherit.

    QEMU would follow a symlink by which the agent of another VM has replaced a directory since it
    was checked. Raises UserError if there is one.
    """
    with ExitStack() as stack:
        exported, fds = [], []
        for share in launch.exported:
            path = share.directory
            if launch.settings.guard == "host":  # a view of ours, in a directory of the user's
                path = os.path.realpath(path)
            with failing(f"cannot share {shown(path)}", "if it leads elsewhere now, find out why"):
                fd = walk.open_directory(path)
            stack.callback(os.close, fd)
            if not IS_MAC:  # which opens no directory by a descriptor's path
                share = replace(share, directory=f"/proc/self/fd/{fd}")  # noqa: PLW2901
            exported.append(share)
            fds.append(fd)
        yield tuple(exported), tuple(fds)


def _machine(
    launch: Launch, accelerator: str, channel: int, exported: tuple[Share, ...]
) -> Machine:
    relay = os.path.join(installation.PACKAGE_DIRECTORY, "host/vm/relay.py")
    words = (sys.executable, "-I", "-S", relay, launch.state.directory)
    return Machine(
        launch.state, launch.image, exported, launch.settings, accelerator, words, channel,
        launch.restricted,
    )  # fmt: skip


def _start(machine: Machine, lock: int, *fds: int) -> subprocess.Popen[bytes]:
    """Start QEMU. It inherits the lock and ``fds``, and gets no signals of the terminal."""
    state = machine.state
    words = command(machine)
    # Those of the last boot must not be taken for this one's.
    with suppress(FileNotFoundError):
        os.unlink(state.ready)
    with suppress(FileNotFoundError):
        os.rename(state.console, f"{state.console}.1")
    with open(state.qemu_log, "wb") as log:
        return subprocess.Popen(
            words,
            executable=trusted_programs.path_of(words[0]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock, machine.channel, *fds),
            start_new_session=True,
            cwd=state.directory,  # not the project, where QEMU would take the agent's firmware
        )


def _end(state: State, qemu: subprocess.Popen[bytes]) -> None:
    """Shut the guest down, then end QEMU. Ctrl-C meanwhile kills QEMU at once."""
    if qemu.poll() is not None:
        return
    try:
        # A closed terminal must not keep the guest from shutting down.
        with suppress(OSError):
            print("stopping the VM", file=sys.stderr)
        with suppress(qmp.NoAnswerError, subprocess.TimeoutExpired):
            qmp.power_down(state)
            qemu.wait(running.POWERDOWN_LIMIT)
            return
        with suppress(qmp.NoAnswerError, subprocess.TimeoutExpired):
            qmp.quit(state)
            qemu.wait(running.QUIT_LIMIT)
    finally:
        if qemu.poll() is None:
            qemu.kill()
        qemu.wait()


def _kill(_: State, qemu: subprocess.Popen[bytes]) -> None:
    """End QEMU at once: what is on its disk is of no use if the guest did not shut down."""
    qemu.kill()
    qemu.wait()


@contextmanager
def _tunnel(wait: Boot, guest: ssh.SshGuest, launch: Launch) -> Iterator[None]:
    """Connect the guest to the proxy by a reverse SSH tunnel, at the usual address.

    The tunnel ends when the proxy or this process ends: any other program could get the proxy's
    port after that. A guest that shares nothing shuts down by itself, and ssh is to be quiet about
    that. Raises as Boot.run.
    """
    _as_root(wait, guest, f"ip address replace {PROXY_ADDRESS}/32 dev lo")
    process = subprocess.Popen(
        die_with_parent.command(ssh.tunnel(guest, PROXY_ADDRESS, PROXY_PORT, launch.proxy.port)),
        stdin=subprocess.PIPE,
        stderr=None if launch.exported else subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    end = process.stdin.close

    def end_with_proxy() -> None:
        launch.proxy.process.wait()
        end()

    try:
        threading.Thread(target=end_with_proxy, daemon=True).start()
        _as_root(wait, guest, TUNNEL_IS_UP)
        yield
    finally:
        end()
        process.wait()


def _as_root(wait: Boot, guest: ssh.SshGuest, line: str) -> None:
    wait.run(ssh.command(guest, keys.ADMIN, remote=line), "cannot set up the tunnel to the proxy")
