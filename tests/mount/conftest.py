"""Fixtures that several modules of this tier use."""

from tests.support.vm_world import systemd_world, world

__all__ = ["systemd_world", "world"]
