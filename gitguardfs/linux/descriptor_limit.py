"""The limit of this process's descriptors: users of a view leave some to the end of its daemon."""

from __future__ import annotations

import resource

SPARED = 300
"""Descriptors that users leave: 200 are handed over at most, and the end itself needs a few."""


def spare() -> None:
    """Spare descriptors, from now on until ``use_all``: users have files opened."""
    hard = use_all()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard - SPARED, hard // 2), hard))


def use_all() -> int:
    """Let this process use all its descriptors; return how many. May be called on any thread."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
