"""Comparison of paths as text. Pure."""

from __future__ import annotations

import os


def is_inside(path: str, directory: str) -> bool:
    """Return whether an absolute path is ``directory`` or lies below it."""
    return os.path.commonpath([path, directory]) == directory
