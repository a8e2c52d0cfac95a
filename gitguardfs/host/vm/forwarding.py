"""Ports of this machine's 127.0.0.1 that lead into the VM, to servers that the agent starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from gitguardfs.base import quote
from gitguardfs.base.errors import Exit, GitguardExit, UserError, shown
from gitguardfs.host.egress import die_with_parent
from gitguardfs.host.vm import ending, ports, running, settings, ssh
from gitguardfs.host.vm.ports import Port
from gitguardfs.host.vm.state import State

_FIRST = 1024
"""The lowest port that every user may open."""


def check_free(wanted: Sequence[Port]) -> None:
    """Raise UserError if a port to publish is taken.

    The hint is no whole command: that would have to name all options again that are not yet saved.
    """
    for port in wanted:
        others = [_another(port, wanted) if one == port else one for one in wanted]
        options = [word for value in ("", *others) for word in ("--publish", str(value))]
        _check_free(port, f"give the same command these ports instead: {quote.shell(options)}")


@contextmanager
def published(state: State, guest: ssh.SshGuest, wanted: Sequence[Port]) -> Iterator[None]:
    """Let ports lead into the guest until the context ends. Raises UserError."""
    if not wanted:
        yield
        return
    with _opened(state, guest, wanted, ports.PUBLISH) as process:
        if not _is_listening(process):
            raise UserError(
                "ssh did not open the ports of --publish", "its message is above", Exit.SYSTEM
            )
        try:
            yield
        finally:
            if process.poll() is not None:
                print("ssh ended, and closed the ports of --publish", file=sys.stderr)


def publish(state: State, texts: Sequence[str]) -> None:
    """Open more ports of a VM that runs, until it stops, and remember them for its next start.

    A port that --publish has opened already stays as it is. Raises UserError, OSError.
    """
    guest = running.guest(state)
    wanted = [ports.parsed(text) for text in ports.merged((), texts)]
    opened = {one.port for one in ports.opened(state) if one.by == ports.PUBLISH}
    new = [port for port in wanted if port not in opened]
    for port in new:
        words = ["gitguard", "vm", "up", "--project", state.project]
        others = [str(_another(port, wanted) if one == port else one) for one in wanted]
        publishing = [word for value in others for word in ("--publish", value)]
        _check_free(port, f"use another one: {quote.shell([*words, *publishing])}")
    if new:
        _open_until_it_stops(state, guest, new)
    settings.remember_ports(state, texts)
    for port in wanted:
        print(f"http://127.0.0.1:{port.here}/ is port {port.there} of the VM", file=sys.stderr)
    print("also at its next start; gitguard vm up --publish '' forgets that", file=sys.stderr)


def _open_until_it_stops(state: State, guest: ssh.SshGuest, wanted: Sequence[Port]) -> None:
    """Start ssh, which outlives this process and ends with its connection to the guest.

    Raises UserError if it does not open the ports.
    """
    with _noted(state, wanted, ports.PUBLISH) as notes:
        process = subprocess.Popen(
            # ssh closes the notes; the shell keeps them, and ends with it.
            ["/bin/sh", "-c", '"$@"; exit', "sh", *ssh.forward(guest, wanted)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, pass_fds=notes, cwd=state.directory, env=_environment(),
        )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        if not _is_listening(process):
            said = process.stderr.read().decode(errors="replace").strip()
            raise UserError("ssh did not open the ports of --publish", shown(said), Exit.SYSTEM)
    except BaseException:  # also Ctrl-C
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        process.stdout.close()
        process.stderr.close()


@contextmanager
def for_login(state: State, guest: ssh.SshGuest, wanted: Sequence[Port]) -> Iterator[None]:
    """Let a login in this machine's browser come back to the agent, until the context ends.

    A port that is taken is only said: an agent that is logged in needs none. Raises OSError.
    """
    free = []
    for port in wanted:
        if port in (one.port for one in ports.opened(state)):
            continue  # by another session of the agent
        if (why := _why_taken(port)) is None:
            free.append(port)
        else:
            print(
                f"port {port.here} of this machine: {why}; a login in your browser cannot come"
                " back to the VM",
                file=sys.stderr,
            )
    if not free:
        yield
        return
    with _opened(state, guest, free, ports.LOGIN) as process:
        _is_listening(process)
        yield


def run(state: State, guest: ssh.SshGuest, port: Port) -> int:
    """Forward until Ctrl-C or until the VM stops; return ssh's status. Raises UserError."""
    words = ["gitguard", "vm", "forward", "--project", state.project, str(_another(port))]
    _check_free(port, f"use another one: {quote.shell(words)}")
    opened = _opened(state, guest, [port], ports.FORWARD)
    with ending.by_exception(), suppress(KeyboardInterrupt), opened as process:
        if _is_listening(process):
            print(
                f"http://127.0.0.1:{port.here}/ is port {port.there} of the VM; Ctrl-C ends it",
                file=sys.stderr,
            )
        return process.wait()
    return GitguardExit.OK


@contextmanager
def _opened(
    state: State, guest: ssh.SshGuest, wanted: Sequence[Port], by: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ssh, which ends with the context, and with this process however that ends."""
    with _noted(state, wanted, by) as notes:
        process = subprocess.Popen(
            die_with_parent.command(ssh.forward(guest, wanted)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=notes,
            env=_environment(),
        )
    # From here on only what keeps ssh holds the notes: they end with it.
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


@contextmanager
def _noted(state: State, wanted: Sequence[Port], by: str) -> Iterator[list[int]]:
    """Note that ports are open, until all copies of the yielded descriptors are closed."""
    with ExitStack() as stack:
        yield [stack.enter_context(ports.noted(state, port, by)) for port in wanted]


def _environment() -> dict[str, str]:
    """Return ssh's environment: its shell writes the line that _is_listening waits for."""
    return {**os.environ, "SHELL": "/bin/sh"}


def _is_listening(process: subprocess.Popen[bytes]) -> bool:
    """Wait until ssh says that it listens on all ports; return False if it has ended."""
    assert process.stdout is not None
    return process.stdout.read(1) != b""


def _check_free(port: Port, hint: str) -> None:
    if (why := _why_taken(port)) is not None:
        raise UserError(
            f"cannot listen on port {port.here} of this machine: {why}", hint, Exit.SYSTEM
        )


def _another(port: Port, wanted: Sequence[Port] = ()) -> Port:
    """Return a port like this one that is free, and that every user may open."""
    taken = {one.here for one in wanted}
    others = (*range(max(port.here, _FIRST), ports.HIGHEST + 1), *range(_FIRST, ports.HIGHEST))
    return next(
        other
        for here in others
        if here not in taken and _why_taken(other := Port(here, port.there)) is None
    )


def _why_taken(port: Port) -> str | None:
    """Return why no process can listen on the port; None if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port.here))
        except OSError as error:
            return error.strerror or str(error)
    return None
