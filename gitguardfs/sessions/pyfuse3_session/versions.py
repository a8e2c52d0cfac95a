"""The versions of what carries a mount."""

from __future__ import annotations

import ctypes

import pyfuse3


def text() -> str:
    """libfuse's version, as it says itself (fuse_pkgversion), and pyfuse3's."""
    library = ctypes.CDLL("libfuse3.so.3")
    library.fuse_pkgversion.restype = ctypes.c_char_p
    return f"libfuse {library.fuse_pkgversion().decode()}, pyfuse3 {pyfuse3.__version__}"
