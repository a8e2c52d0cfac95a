"""The signals by which root tells a daemon what to do."""

from __future__ import annotations

import signal

HAND_OVER = signal.SIGUSR2
"""Ends it like the others, but for the seal, which stays for the next daemon to take over."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, HAND_OVER)
UNMOUNTED = signal.SIGRTMIN
"""Root's umount helper has unmounted the view, which may be used on. Nothing else sends this."""
REREAD = signal.SIGUSR1
"""Who is in which group is to be found out anew."""


def leave_to_main_thread() -> None:
    """Keep signals off the calling thread.

    The kernel gives them to any thread that takes them, and if the main one waits for the source
    that would hide them from ``drain``, which sees only those that nobody has taken.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
