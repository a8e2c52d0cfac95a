"""Chooses the session that serves mounts."""

from __future__ import annotations

from gitguardfs.sessions.base import SessionFactory
from gitguardfs.sessions.pyfuse3_session.session import Pyfuse3SessionFactory


def session_factory(no_cpu_idle: bool = False) -> SessionFactory:
    """Return what makes the session of a mount.

    ``no_cpu_idle`` keeps processors from halting while requests come in a row.
    """
    return Pyfuse3SessionFactory(no_cpu_idle)
