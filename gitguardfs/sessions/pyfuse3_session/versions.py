"""The versions of libfuse and pyfuse3."""

from __future__ import annotations

import ctypes

import pyfuse3


def text() -> str:
    """Return the versions of libfuse (fuse_pkgversion) and pyfuse3 as text."""
    library = ctypes.CDLL("libfuse3.so.3")
    library.fuse_pkgversion.restype = ctypes.c_char_p
    return f"libfuse {library.fuse_pkgversion().decode()}, pyfuse3 {pyfuse3.__version__}"
