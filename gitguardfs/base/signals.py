"""The signals by which root controls a daemon."""

from __future__ import annotations

import signal

STOP_KEEP_SEAL = signal.SIGUSR2
"""Ends the daemon but keeps the seal, which the next daemon takes over."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP_KEEP_SEAL)
UNMOUNTED = signal.SIGRTMIN
"""Root's umount helper has unmounted the view; processes may still use it. Only it sends this."""
CHANGES = signal.SIGRTMAX
"""A process of root's waits at the daemon's socket, to tell it of the host's changes."""
REREAD = signal.SIGUSR1
"""The group memberships of users must be read again."""


def leave_to_main_thread() -> None:
    """Block the signals that end the daemon in the calling thread.

    The kernel delivers a signal to any thread that does not block it. The thread that watches the
    end of the daemon (``daemon.drain``) sees only signals that no thread has taken. It must see
    them while the main thread waits for the source.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
