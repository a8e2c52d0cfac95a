"""The rights of the calling thread (capabilities(7), setfsuid(2))."""

from __future__ import annotations

from gitguardfs.linux import syscalls

CAP_FSETID = 4
CAP_SYS_RESOURCE = 24
NOBODY = 65534


class Without:
    """A context in which the calling thread lacks rights that it has before and after.

    The thread is one of root's. Others can use the context at the same time.
    """

    def __init__(self, *capabilities: int, fsuid: int = 0) -> None:
        """Prepare for threads with the capabilities of this one. Raises OSError.

        ``fsuid`` is the user by whom the kernel then takes it for file systems.
        """
        self._all, self._without = syscalls.capget(), syscalls.capget()
        for number in capabilities:
            self._without.drop(number)
        self._fsuid = fsuid

    def __enter__(self) -> None:
        if self._fsuid:
            syscalls.setfsuid(self._fsuid)  # this takes capabilities too, which the next call sets
        syscalls.capset(self._without)

    def __exit__(self, *_: object) -> None:
        if self._fsuid:
            syscalls.setfsuid(0)
        syscalls.capset(self._all)
