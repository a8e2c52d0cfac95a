"""Ways round the guard to the raw share. Each returns what it read there, or raises OSError.

Standard library only: they are tried in a guest too.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.raw_calls import (
    MNT_DETACH,
    MS_BIND,
    MS_MOVE,
    MS_REC,
    mount,
    name_to_handle,
    open_by_handle,
    umount,
)

SPOT = Path("/media")
"""A directory of root's on which a namespace of the agent's can mount."""


@dataclass
class Share:
    """A raw share with a repository, and a guard over it."""

    raw: Path
    view: Path
    config: str = ".git/config"
    """The path of the repository's config below ``raw``."""
    daemons: tuple[int, ...] = ()
    tag: str = ""
    transport: str = ""


Way = Callable[[Share], bytes]


def by_path(share: Share) -> bytes:
    return (share.raw / share.config).read_bytes()


def by_listing(share: Share) -> bytes:
    return str(os.listdir(share.raw)).encode() if os.listdir(share.raw) else b""


def by_symlink_in_the_view(share: Share) -> bytes:
    link = share.view / f"way-{os.getpid()}"
    link.symlink_to(share.raw)  # the guard refuses one that names .git
    try:
        return (link / share.config).read_bytes()
    finally:
        link.unlink()


def by_root_of_the_daemon(share: Share) -> bytes:
    return _first(Path(f"/proc/{pid}/root{share.raw}/{share.config}") for pid in share.daemons)


def by_directory_of_the_daemon(share: Share) -> bytes:
    way = Path(*[".."] * 8, str(share.raw).lstrip("/"), share.config)
    return _first(Path(f"/proc/{pid}/cwd") / way for pid in share.daemons)


def by_descriptors_of_the_daemon(share: Share) -> bytes:
    return _first(
        Path(f"/proc/{pid}/fd/{name}/{share.config}")
        for pid in share.daemons
        for name in os.listdir(f"/proc/{pid}/fd")
    )


def by_the_memory_of_the_daemon(share: Share) -> bytes:
    return _first(Path(f"/proc/{pid}/mem") for pid in share.daemons)


def by_writing(share: Share) -> bytes:
    (share.raw / "planted").write_text("planted")
    (share.raw / "planted").unlink()
    return b"planted"


def by_unmounting(share: Share) -> bytes:
    umount(share.raw)
    return by_path(share)


def by_detaching(share: Share) -> bytes:
    umount(share.raw, MNT_DETACH)
    return by_path(share)


def by_binding_the_parent(share: Share) -> bytes:
    """A bind mount that leaves out what is mounted on top."""
    mount(str(share.raw.parent), SPOT, flags=MS_BIND)
    return (SPOT / share.raw.name / share.config).read_bytes()


def by_binding_the_parent_with_all(share: Share) -> bytes:
    mount(str(share.raw.parent), SPOT, flags=MS_BIND | MS_REC)
    return (SPOT / share.raw.name / share.config).read_bytes()


def by_binding_all_and_unmounting(share: Share) -> bytes:
    mount("/", SPOT, flags=MS_BIND | MS_REC)
    umount(SPOT / str(share.raw).lstrip("/"), MNT_DETACH)
    return (SPOT / str(share.raw).lstrip("/") / share.config).read_bytes()


def by_moving_the_seal(share: Share) -> bytes:
    mount(str(share.raw), SPOT, flags=MS_MOVE)
    return by_path(share)


def by_an_overlay(share: Share) -> bytes:
    mount("overlay", SPOT, "overlay", data=f"lowerdir={share.raw}:/usr/share,userxattr")
    return (SPOT / share.config).read_bytes()


def by_an_overlay_of_the_parent(share: Share) -> bytes:
    mount("overlay", SPOT, "overlay", data=f"lowerdir={share.raw.parent}:/usr/share,userxattr")
    return (SPOT / share.raw.name / share.config).read_bytes()


def by_mounting_the_tag_again(share: Share) -> bytes:
    mount(share.tag, SPOT, share.transport, data="trans=virtio" if share.transport == "9p" else "")
    return (SPOT / share.config).read_bytes()


def by_file_handle(share: Share) -> bytes:
    number, data = name_to_handle(share.view)
    anchor = os.open(share.raw, os.O_RDONLY | os.O_DIRECTORY)
    found = open_by_handle(anchor, number, data, os.O_RDONLY | os.O_DIRECTORY)
    return os.read(os.open(share.config, os.O_RDONLY, dir_fd=found), 4096)


def _first(paths: Iterator[Path]) -> bytes:
    refusal = OSError(errno.ESRCH, "there is no daemon")
    for path in paths:
        try:
            with open(path, "rb") as file:
                if data := file.read(4096):
                    return data
        except OSError as error:
            refusal = error
    raise refusal


READING: tuple[Way, ...] = (by_path, by_listing, by_symlink_in_the_view)
BY_DAEMON: tuple[Way, ...] = (
    by_root_of_the_daemon,
    by_directory_of_the_daemon,
    by_descriptors_of_the_daemon,
)
BINDING: tuple[Way, ...] = (
    by_binding_the_parent,
    by_binding_the_parent_with_all,
    by_an_overlay_of_the_parent,
)
WAYS: tuple[Way, ...] = (
    *READING,
    *BY_DAEMON,
    *BINDING,
    by_the_memory_of_the_daemon,
    by_writing,
    by_unmounting,
    by_detaching,
    by_binding_all_and_unmounting,
    by_moving_the_seal,
    by_an_overlay,
    by_mounting_the_tag_again,
    by_file_handle,
)


def opens(way: Way, share: Share) -> str:
    """Return the beginning of what a way has read; "" if it was refused or has read nothing."""
    try:
        got = way(share)
    except OSError:
        return ""
    return repr(got[:80]) if got else ""
