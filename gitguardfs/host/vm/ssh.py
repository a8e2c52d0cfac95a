"""Command lines of ssh(1) for a VM, with its own keys and its own known_hosts.

They use neither the user's configuration nor an ssh agent, and send no environment variables: the
guest must get nothing of the host's user.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gitguardfs.base import quote
from gitguardfs.host.vm import keys as names
from gitguardfs.host.vm.keys import HOST_ALIAS, Keys
from gitguardfs.host.vm.ports import Port
from gitguardfs.host.vm.trusted_programs import SSH, path_of

CONNECT_LIMIT = 20
"""Seconds for a connection: an emulated guest takes several for the key exchange."""
FAILED = 255
"""ssh's exit status if ssh itself failed; any other status is the command's."""

_IN_STEP = (
    "i=0; until [ $(date +%s) -ge {} ]; do [ $((i += 1)) -le 25 ] && sleep 0.2 ||"
    ' {{ echo "the clock of the VM is behind" >&2; exit; }}; done'
)
"""A script for sh in the guest: waits until it is that time there, 5 seconds at most. After a pause
root sets the clock (files/clock.sh)."""
_CLOCK_TOLERANCE = 2
"""Seconds: the clock is set to whole seconds."""

_FIRST = "    # Before any Host *, which could forward your SSH agent: ssh takes the first value."
"""A comment in each block for the user's own configuration."""
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ExitOnForwardFailure=yes")


@dataclass(frozen=True)
class SshGuest:
    """The facts by which ssh reaches a running guest."""

    keys: Keys
    port: int
    """The port on 127.0.0.1."""
    view: str
    """The directory in which sessions begin: the guarded project."""


def options(guest: SshGuest, user: str, is_batch: bool = True) -> dict[str, str]:
    """Return ssh's options for ``user``: names.AGENT or names.ADMIN."""
    to_port = {"HostName": "127.0.0.1", "Port": str(guest.port)}
    return {**to_port, **_login_options(guest.keys, user, is_batch)}


def _login_options(keys: Keys, user: str, is_batch: bool = True) -> dict[str, str]:
    return {
        "BatchMode": "yes" if is_batch else "no",
        "User": user,
        "IdentityFile": keys.private(user),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "HostKeyAlias": HOST_ALIAS,
        "UserKnownHostsFile": keys.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        # The connection leaves no machine. The default resists quantum computers, and takes longer.
        "KexAlgorithms": "^curve25519-sha256",
        "ConnectTimeout": str(CONNECT_LIMIT),
        "LogLevel": "ERROR",
    }


def command(
    guest: SshGuest,
    user: str,
    *more: str,
    remote: str | None = None,
    is_batch: bool = True,
    local: str | None = None,
) -> list[str]:
    """Return ``ssh MORE… HOST REMOTE``; ``remote`` is a line for the guest's shell.

    ``local`` is one for the user's shell here, once ssh is connected and listens on its ports.
    """
    words = [path_of(SSH), "-F", "/dev/null"]
    chosen = options(guest, user, is_batch)
    if local is not None:
        chosen |= {"PermitLocalCommand": "yes", "LocalCommand": local}
    for name, value in chosen.items():
        words += ["-o", f"{name}={_config_value(value)}"]
    return [*words, *more, HOST_ALIAS, *([] if remote is None else [remote])]


def session(
    guest: SshGuest,
    words: tuple[str, ...],
    terminal: bool,
    user: str,
    first: str = "",
    login: str = "",
) -> list[str]:
    """Return the command for a shell in the project, or for ``words`` there.

    A single word is a line for the guest's shell, as for ssh; several are a command with arguments.
    It begins once the guest's clock is not behind that of this machine, with the line ``first``.
    ``login`` is the path of a socket of ``login``'s command, whose connection it is to use.
    """
    in_step = shlex.quote(_IN_STEP.format(int(time.time()) - _CLOCK_TOLERANCE))
    where = f"cd {shlex.quote(guest.view)}" if user == names.AGENT else "cd"
    line = words[0] if len(words) == 1 else shlex.join(words)
    remote = f"{where} && {line}" if words else f'{where} && exec "$SHELL" -l'
    remote = "; ".join(filter(None, (f"sh -c {in_step}", first, remote)))
    more = ("-t" if terminal else "-T", *(("-S", _literal(login)) if login else ()))
    return command(guest, user, *more, remote=remote, is_batch=not terminal)


def login(guest: SshGuest, path: str) -> list[str]:
    """Return the command that logs in as the agent, and shares that by a socket at ``path``.

    It prints a newline once sessions can use it.
    """
    return command(guest, names.AGENT, "-N", "-M", "-S", _literal(path), local="echo")


def forward(guest: SshGuest, wanted: Sequence[Port]) -> list[str]:
    """Return the command that forwards ports of this machine's 127.0.0.1 into the guest.

    There ``localhost`` is 127.0.0.1 or ::1, whichever the server listens on. It prints a newline
    once it listens on all of them.
    """
    targets = [f"127.0.0.1:{port.here}:localhost:{port.there}" for port in wanted]
    options = [word for target in targets for word in ("-L", target)]
    return command(guest, names.AGENT, "-N", *_ALIVE, *options, local="echo")


def tunnel(guest: SshGuest, address: str, port: int, proxy_port: int) -> list[str]:
    """Return the command that forwards the guest's ``address``:``port`` to the proxy here."""
    target = f"{address}:{port}:127.0.0.1:{proxy_port}"
    return command(guest, names.ADMIN, "-N", *_ALIVE, "-R", target)


def config(guest: SshGuest, host: str) -> str:
    """Return a block for an ssh_config(5) file, which holds until the VM stops."""
    return _block(host, options(guest, names.AGENT))


def stable_config(keys: Keys, host: str, words: list[str], seconds: int) -> str:
    """Return a block for an ssh_config(5) file, in which a command connects to the VM's sshd.

    ``seconds``: how long a connection may take.
    """
    chosen = _login_options(keys, names.AGENT) | {"ConnectTimeout": str(seconds)}
    # ssh passes the rest of the line to a shell, and there % begins a token.
    line = quote.shell_printable(words).replace("%", "%%")
    return f"{_block(host, chosen)}    ProxyCommand {line}\n"


def _block(host: str, chosen: dict[str, str]) -> str:
    lines = [f"    {name} {_config_value(value)}" for name, value in chosen.items()]
    return "\n".join([f"Host {host}", _FIRST, *lines, ""])


def _config_value(value: str) -> str:
    """Return a value quoted for ssh_config(5)."""
    escaped = _literal(value)
    return f'"{escaped}"' if " " in escaped else escaped


def _literal(value: str) -> str:
    """Return a value in which no % begins a token of ssh."""
    return value.replace("%", "%%")
