"""The links of a source that lead the host out of their work tree.

A link may lead strictly below the nearest directory above it that holds a ``.git``, or below the
share if there is none. Otherwise its text begins so that it leads nowhere on the host.
"""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from gitguardfs.names.dotgit import is_dotgit

NOWHERE = b"/.gitguardfs-guest/"
"""What a text begins with on the source if it would lead out."""


def stored(text: bytes) -> bytes:
    """Return how a text is stored that would lead out.

    Programs that resolve ``..`` in texts, without a look at what is there, are led nowhere as well.
    """
    parts = text.split(b"/")
    return NOWHERE + b"/".join(it + b"." if it[1:] and not it.strip(b".") else it for it in parts)


def as_given(text: bytes) -> bytes:
    """Return the text that the view shows for one on the source."""
    if not text.startswith(NOWHERE):
        return text
    parts = text.removeprefix(NOWHERE).split(b"/")
    return b"/".join(it[:-1] if it[1:] and not it.strip(b".") else it for it in parts)


def links(top: Path) -> Iterator[Path]:
    """Yield every symlink below a directory, without following any."""
    for directory, directories, files in os.walk(top):
        for name in (*directories, *files):
            path = Path(directory) / name
            if path.is_symlink():
                yield path


def leading_out(share: Path, ignored: Collection[Path] = ()) -> list[str]:
    """Name the links of a source that lead the host out of their work tree."""
    return [
        f"{path.relative_to(share)} -> {os.readlink(path)}"
        for path in links(share)
        if path not in ignored and not _is_contained(share, path)
    ]


def _is_contained(share: Path, path: Path) -> bool:
    text = os.readlink(os.fsencode(path))
    if text.startswith(NOWHERE):
        return (os.path.normpath(text) + b"/").startswith(NOWHERE)
    above = (place for place in path.parents if os.path.lexists(place / ".git") or place == share)
    root = os.fsencode(next(above))
    parts = [part for part in text.split(b"/") if part not in (b"", b".")]
    names = parts[next((n for n, part in enumerate(parts) if part != b".."), len(parts)) :]
    here = os.fsencode(path.parent)
    led = [os.path.normpath(os.path.join(here, text))]
    if path.exists():
        led.append(os.path.realpath(os.path.join(here, text)))
    return (
        not text.startswith(b"/")
        and b".." not in names
        and not any(is_dotgit(name) for name in names)
        and all(place.startswith(root + b"/") for place in led)
    )


def told(view: Path) -> dict[str, str]:
    """Return the texts of all symlinks below a directory, whose sizes must be theirs."""
    found = {}
    for path in links(view):
        text = os.readlink(path)
        state = path.lstat()
        assert stat.S_ISLNK(state.st_mode)
        assert state.st_size == len(os.fsencode(text)), f"{path}: {state.st_size}, {text!r}"
        found[str(path.relative_to(view))] = text
    return found
