"""Tries every way round the mount to the raw share; prints those that are open, as JSON.

``python -m tests.guest.inside.raw_share RAW VIEW TAG TYPE ACTOR``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.raw_calls import (
    MNT_DETACH,
    MS_BIND,
    MS_REC,
    mount,
    name_to_handle,
    open_by_handle,
    umount,
)
from tests.support.siege import act

CONFIG = "demo/.git/config"
MS_MOVE = 0x2000
SPOT = Path("/media")
"""A directory of root's on which a namespace of the agent's can mount."""


def daemons() -> Iterator[int]:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/gitguardfs") for word in words):
            yield int(entry)


def by_path(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    return (raw / CONFIG).read_bytes()


def by_listing(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    return str(os.listdir(raw)).encode() if os.listdir(raw) else b""


def by_symlink_in_the_view(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    link = view / f"way-{os.getpid()}"
    link.symlink_to(raw)
    try:
        return (link / CONFIG).read_bytes()
    finally:
        link.unlink()


def by_root_of_the_daemon(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    return _first(Path(f"/proc/{pid}/root{raw}/{CONFIG}") for pid in daemons())


def by_directory_of_the_daemon(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    return _first(Path(f"/proc/{pid}/cwd{raw}/{CONFIG}") for pid in daemons())


def by_descriptors_of_the_daemon(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    for pid in daemons():
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                return Path(f"/proc/{pid}/fd/{name}/{CONFIG}").read_bytes()
            except OSError:
                continue
    return b""


def by_the_memory_of_the_daemon(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    return _first(Path(f"/proc/{pid}/mem") for pid in daemons())


def by_unmounting(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    umount(raw)
    return (raw / CONFIG).read_bytes()


def by_detaching(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    umount(raw, MNT_DETACH)
    return (raw / CONFIG).read_bytes()


def by_binding_the_parent(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    mount(str(raw.parent), SPOT, flags=MS_BIND)
    return (SPOT / raw.name / CONFIG).read_bytes()


def by_binding_all(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    mount("/", SPOT, flags=MS_BIND | MS_REC)
    umount(SPOT / str(raw).lstrip("/"), MNT_DETACH)
    return (SPOT / str(raw).lstrip("/") / CONFIG).read_bytes()


def by_moving_the_seal(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    mount(str(raw), SPOT, flags=MS_MOVE)
    return (raw / CONFIG).read_bytes()


def by_an_overlay(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    mount("overlay", SPOT, "overlay", data=f"lowerdir={raw}:/usr/share,userxattr")
    return (SPOT / CONFIG).read_bytes()


def by_mounting_the_tag_again(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    mount(tag, SPOT, kind, data="trans=virtio" if kind == "9p" else "")
    return (SPOT / CONFIG).read_bytes()


def by_file_handle(raw: Path, view: Path, tag: str, kind: str) -> bytes:
    number, data = name_to_handle(view)
    anchor = os.open(raw, os.O_RDONLY | os.O_DIRECTORY)
    found = open_by_handle(anchor, number, data, os.O_RDONLY | os.O_DIRECTORY)
    return os.read(os.open(CONFIG, os.O_RDONLY, dir_fd=found), 4096)


def _first(paths: Iterator[Path]) -> bytes:
    for path in paths:
        try:
            with open(path, "rb") as file:
                if data := file.read(4096):
                    return data
        except OSError:
            continue
    return b""


Way = Callable[[Path, Path, str, str], bytes]
WAYS: tuple[Way, ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("by_")
)


def opens(way: Way, raw: str, view: str, tag: str, kind: str) -> str:
    try:
        got = way(Path(raw), Path(view), tag, kind)
    except OSError:
        return ""
    return repr(got[:80]) if got else ""


def main() -> None:
    raw, view, tag, kind, actor = sys.argv[1:]
    found = {way.__name__: act(actor, opens, way, raw, view, tag, kind) for way in WAYS}
    print(json.dumps({name: got for name, got in found.items() if got}))


if __name__ == "__main__":
    main()
