"""The owners and permissions of new files, as in bindfs."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.likeness import OTHER, Note, alike, make_tree, seen, touch, write
from tests.support.people import AGENT

PLACES = ("", "setgid/", "sticky/", "full/")


def link(path: Path) -> None:
    """A symlink to something."""
    path.symlink_to("target")


def device(path: Path) -> None:
    """A character device."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def regular(path: Path) -> None:
    """A file, made by mknod(2)."""
    os.mknod(path, stat.S_IFREG | 0o664)


def listening(path: Path) -> None:
    """A socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: dict[str, Callable[..., Any]] = {
    "file": touch, "written": write, "dir": os.mkdir, "fifo": os.mkfifo, "link": link,
    "device": device, "regular": regular, "socket": listening,
}  # fmt: skip


def making(view: Path, source: Path, note: Note) -> None:
    """All kinds of objects in all kinds of directories, by root and by users."""
    for uid, groups in ((0, ()), (AGENT, ()), (OTHER, (1000, 4444))):
        made = {f"{place}{kind}-{uid}": KINDS[kind] for place in PLACES for kind in KINDS}
        calls = [
            *((f"{uid} makes {name}", make, view / name) for name, make in made.items()),
            *((f"{uid} sees {name}", seen, view / name) for name in made),
            (f"{uid} links", os.link, view / f"file-{uid}", view / f"sticky/linked-{uid}"),
        ]
        note.by(calls, uid=uid, groups=groups)
        for name in (*made, f"sticky/linked-{uid}"):
            note(f"source has {name}", seen, source / name)


CREATES = {
    "default": (),
    "as user": ("--create-as-user",),
    "as mounter": ("--create-as-mounter",),
    "the last one counts": ("--create-as-mounter", "--create-as-user"),
    "for user": ("--create-for-user=1001",),
    "for group": ("--create-for-group=1001",),
    "for both": ("--create-for-user=501", "--create-for-group=20"),
    "for names": ("--create-for-user=games", "--create-for-group=www-data"),
    "for user, as mounter": ("--create-for-user=1001", "--create-as-mounter"),
    "for group, as mounter": ("--create-as-mounter", "--create-for-group=20"),
    "by -o": ("-o", "create-for-user=501,create-for-group=20"),
    "under a forced owner": ("-u", "1000", "-g", "1000", "--create-for-user=1001"),
    "under a mirror": ("-m", "1000", "--create-as-mounter"),
}


@pytest.mark.parametrize("options", CREATES.values(), ids=CREATES.keys())
def test_who_owns_what_is_made(options: tuple[str, ...]) -> None:
    alike(making, *options)


@pytest.mark.parametrize("options", [
    ("--create-for-user=1001",), ("--create-for-group=1001",), ("--create-as-mounter",),
    ("--create-as-mounter", "--create-for-group=7"),
])  # fmt: skip
def test_who_owns_what_is_made_under_a_map(options: tuple[str, ...]) -> None:
    """The options for new files take precedence over the map."""

    def script(view: Path, source: Path, note: Note) -> None:
        for uid in (0, AGENT, OTHER):
            for kind, make in KINDS.items():
                note(f"{uid} {kind}", make, view / f"{kind}-{uid}", uid=uid)
                note.see(f"{uid} {kind}, view", view / f"{kind}-{uid}")
                note.see(f"{uid} {kind}, source", source / f"{kind}-{uid}")

    alike(script, "--map=501/1000:@20/@1000", *options)


MODES = (0o000, 0o600, 0o666, 0o755, 0o777)


def opened(path: Path, mode: int) -> None:
    """A file, made by open(2)."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))


def node(path: Path, mode: int) -> None:
    """A file, made by mknod(2)."""
    os.mknod(path, stat.S_IFREG | mode)


def moding(view: Path, source: Path, note: Note) -> None:
    """Every mode, asked for in every way, with and without a umask."""
    makers = {"open": opened, "mkdir": os.mkdir, "mkfifo": os.mkfifo, "mknod": node}
    for umask in (0, 0o077):
        for uid in (0, AGENT):
            named = {
                f"{place}{name}-{mode:04o}-{umask:03o}-{uid}": (make, mode)
                for place in ("", "setgid/")
                for name, make in makers.items()
                for mode in MODES
            }
            calls = [(f"make {n}", make, view / n, mode) for n, (make, mode) in named.items()]
            note.by(calls, uid=uid, umask=umask)
            for name in named:
                note(f"view {name}", seen, view / name)
                note(f"source {name}", seen, source / name)
    note("link", os.symlink, "target", view / "newlink")
    note("source link", seen, source / "newlink")


CREATE_PERMS = (
    "", "--create-with-perms=0640", "--create-with-perms=0640,a+X", "--create-with-perms=a+X",
    "--create-with-perms=og-rwx:gd=u", "--create-with-perms=u+rwD:go-w",
    "--create-with-perms=ud+x,uf-x,o=", "--create-with-perms=g=u,o=g",
    "--create-with-perms=0777 -p 0700", "-o create-with-perms=a-w", "-p a+rwx",
    "--create-with-perms=0600 --chmod-deny",
)  # fmt: skip


@pytest.mark.parametrize("options", CREATE_PERMS)
def test_permissions_of_what_is_made(options: str) -> None:
    alike(moding, *options.split())


def test_files_in_a_directory_that_their_maker_may_not_change() -> None:
    def build(source: Path) -> None:
        make_tree(source)
        source.chmod(0o755)

    def script(view: Path, source: Path, note: Note) -> None:
        for uid in (AGENT, OTHER):
            for kind, make in KINDS.items():
                note(f"{uid} {kind}", make, view / f"{kind}-{uid}", uid=uid)
        note("source", lambda: sorted(os.listdir(source)))

    alike(script, "--create-as-mounter", build=build)
    alike(script, "--create-for-user=1000", build=build)
