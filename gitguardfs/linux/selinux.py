"""Queries of SELinux's policy by selinuxfs: which domain a program gets, and its capabilities.

A query is written to a file, and the answer is read from the same descriptor, as libselinux does
(security_compute_create(3), security_compute_av(3)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gitguardfs.base.constants import SELINUX_LABEL

Ask = Callable[[str, str], str]
"""Sends a query to a file of selinuxfs and returns the answer. Raises OSError."""

NEEDED = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "mknod", "setgid", "setuid",
    "sys_admin", "sys_chroot", "sys_ptrace",
)  # fmt: skip
"""The capabilities that a guard's daemon has by its systemd unit, by SELinux's names."""

INIT_CONTEXT = "/proc/1/attr/current"

_ANSWER_BYTES = 4096
_PERMISSIVE = 1
"""AVD_FLAGS_PERMISSIVE: the kernel only logs what the policy does not allow the domain."""


@dataclass(frozen=True)
class Confined:
    """A domain in which a guard's daemon cannot work."""

    domain: str
    missing: tuple[str, ...]
    """Capabilities that the policy does not give it."""


def confined_at_boot(sys: str, programs: Sequence[str], ask: Ask | None = None) -> Confined | None:
    """Return the domain and missing capabilities of the last of ``programs``, started by init.

    Init runs the first program, and each runs the next. Returns None if no capability is missing,
    if SELinux is off or permissive, or if the policy cannot be asked. ``sys`` is where sysfs is.
    """
    directory = f"{sys}/fs/selinux"
    ask = ask or (lambda name, question: _ask(f"{directory}/{name}", question))
    try:
        if _read(f"{directory}/enforce") != "1":
            return None
        process = _read(f"{directory}/class/process/index")
        context = _read(INIT_CONTEXT)
        for program in programs:
            # Without a transition rule, a program stays in the domain that runs it.
            context = ask("create", f"{context} {_label(program)} {process}").strip("\0\n")
        missing = _missing(directory, context, ask)
    except (OSError, ValueError, IndexError):
        return None
    return Confined(context.split(":")[2], missing) if missing else None


def _missing(directory: str, context: str, ask: Ask) -> tuple[str, ...]:
    capability = f"{directory}/class/capability"
    answer = ask("access", f"{context} {context} {_read(f'{capability}/index')}").split()
    allowed, flags = int(answer[0], 16), int(answer[5], 16)
    if flags & _PERMISSIVE:
        return ()
    bits = {name: 1 << int(_read(f"{capability}/perms/{name}")) - 1 for name in NEEDED}
    return tuple(name for name, bit in bits.items() if not allowed & bit)


def _label(path: str) -> str:
    return os.getxattr(path, SELINUX_LABEL).rstrip(b"\0").decode()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip("\0\n")


def _ask(path: str, question: str) -> str:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(fd, question.encode())
        return os.read(fd, _ANSWER_BYTES).decode()
    finally:
        os.close(fd)
