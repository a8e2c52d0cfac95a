"""The capabilities of the calling thread (capabilities(7))."""

from __future__ import annotations

from gitguardfs.linux import syscalls

CAP_FSETID = 4


class Without:
    """A context in which the calling thread lacks a capability that it has before and after."""

    def __init__(self, number: int) -> None:
        """Prepare for a thread with the capabilities of this one. Raises OSError."""
        self._all = syscalls.capget()
        effective, permitted, inheritable = self._all
        self._without = effective & ~(1 << number), permitted, inheritable

    def __enter__(self) -> None:
        syscalls.capset(self._without)

    def __exit__(self, *_: object) -> None:
        syscalls.capset(self._all)
