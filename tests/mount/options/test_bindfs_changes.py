"""What may be changed, as in bindfs: owners, attributes, names."""

import errno
import os
from itertools import product
from pathlib import Path

import pytest

from gitguardfs.base import protocol
from gitguardfs.linux import syscalls
from tests.support import mounting
from tests.support.likeness import OTHER, Note, alike, listed, make_tree, seen, write
from tests.support.mounting import area, gitguardfs
from tests.support.people import AGENT

RULES = ("normal", "ignore", "deny")


def owning(view: Path, source: Path, note: Note) -> None:
    """User, group and both, of files, directories and links, by root, the owner and others."""
    for uid, groups in ((0, ()), (AGENT, (1002,)), (OTHER, ())):
        for name in ("of-agent", "dir-of-agent", "l-broken", "linked"):
            for new in ((1001, -1), (-1, 1002), (1003, 1004), (-1, -1), (1000, 1000)):
                what = f"{uid}: {name} to {new}"
                note(what, os.chown, view / name, *new, uid=uid, groups=groups,
                     follow_symlinks=False)  # fmt: skip
                note.see(f"{what}, view", view / name)
                note.see(f"{what}, source", source / name)


@pytest.mark.parametrize(("chown", "chgrp"), [*product(RULES, RULES)])
def test_chown_and_chgrp(chown: str, chgrp: str) -> None:
    alike(owning, f"--chown-{chown}", f"--chgrp-{chgrp}")


@pytest.mark.parametrize("options", [
    ("-o", "chown-deny,chgrp-ignore"), ("--chown-deny", "--chown-normal"),
    ("-u", "1000", "-g", "1000", "--chown-ignore"),
    ("-u", "1000", "-g", "1000", "--chgrp-deny"),
])  # fmt: skip
def test_chown_in_other_spellings_and_under_forced_owners(options: tuple[str, ...]) -> None:
    alike(owning, *options)


KEPT = "a chown that is denied changes nothing; the kernel asks for both at once"


def test_chown_takes_set_id_bits_with_it() -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        for uid, name in ((0, "f6711"), (AGENT, "f4755"), (AGENT, "f7777")):
            note(f"{name}", os.chown, view / name, -1, 1000, uid=uid)
            note.see(f"{name}", source / name)

    alike(script)
    alike(script, "--chown-ignore", "--chgrp-ignore")
    lost = {"f6711": ("0711", "6711"), "f4755": ("0755", "4755"), "f7777": ("1777", "7777")}
    alike(script, "--chgrp-deny", differs={
        f"{name} looks": (
            f"file {theirs} 1000:1000 x1 5 bytes", f"file {ours} 1000:1000 x1 5 bytes", KEPT)
        for name, (theirs, ours) in lost.items()
    })  # fmt: skip


def attributes(view: Path, source: Path, note: Note) -> None:
    """Extended attributes of the user namespace, by root, the owner and others."""
    for uid in (0, AGENT, OTHER):
        for name in ("of-agent", "dir-of-agent", "f0600", "f0444"):
            path, what = view / name, f"{uid} {name}:"
            calls = [
                (f"{what} get", os.getxattr, path, "user.there"),
                (f"{what} get none", os.getxattr, path, "user.none"),
                (f"{what} list", lambda path=path: sorted(os.listxattr(path))),
                (f"{what} set", os.setxattr, path, "user.new", b"value"),
                (f"{what} get new", os.getxattr, path, "user.new"),
                (f"{what} set empty", os.setxattr, path, "user.empty", b""),
                (f"{what} set large", os.setxattr, path, "user.large", b"x" * 3000),
                (f"{what} get large", os.getxattr, path, "user.large"),
                (f"{what} create", os.setxattr, path, "user.there", b"", os.XATTR_CREATE),
                (f"{what} replace", os.setxattr, path, "user.no", b"", os.XATTR_REPLACE),
                (f"{what} list all", lambda path=path: sorted(os.listxattr(path))),
                (f"{what} remove", os.removexattr, path, "user.new"),
                (f"{what} remove none", os.removexattr, path, "user.new"),
            ]
            note.by(calls, uid=uid)
            note(f"{what} source", lambda name=name: sorted(os.listxattr(source / name)))


def with_attributes(source: Path) -> None:
    """The usual tree with an attribute on each file and directory."""
    make_tree(source)
    for name in os.listdir(source):
        if name.startswith(("of-", "dir-", "f0")):
            os.setxattr(source / name, "user.there", b"is")


@pytest.mark.parametrize("options", [
    (), ("--xattr-none",), ("--xattr-rw",), ("--xattr-rw", "-p", "0600"), ("-o", "xattr-none"),
])  # fmt: skip
def test_extended_attributes(options: tuple[str, ...]) -> None:
    alike(attributes, *options, build=with_attributes)


@pytest.mark.parametrize("options", [("--xattr-ro",), ("-o", "xattr-ro")])
def test_extended_attributes_that_may_only_be_read(options: tuple[str, ...]) -> None:
    """pyfuse3 looks for the attribute by itself when it is to be new or to be there."""
    if mounting.SESSION != "pyfuse3":
        return alike(attributes, *options, build=with_attributes)
    why = "both fail; what is wrong first is found first"
    changeable = [(0, "f0444"), *product((0, AGENT), ("of-agent", "dir-of-agent", "f0600"))]
    alike(attributes, *options, build=with_attributes, differs={
        f"{uid} {name}: {what}": ("EACCES", ours, why)
        for uid, name in changeable
        for what, ours in (("create", "EEXIST"), ("replace", "ENODATA"))
    })  # fmt: skip


def removing(view: Path, source: Path, note: Note) -> None:
    """Removing, moving and replacing, by root, the owner and others."""
    for uid in (OTHER, AGENT, 0):
        calls = [
            ("file", os.unlink, view / "of-agent"),
            ("link", os.unlink, view / "l-relative"),
            ("fifo", os.unlink, view / "fifo"),
            ("full directory", os.rmdir, view / "full"),
            ("empty directory", os.rmdir, view / f"d0{uid % 7}00"),
            ("directory as file", os.unlink, view / "full"),
            ("file as directory", os.rmdir, view / "of-other"),
            ("what is not there", os.unlink, view / "nothing"),
            ("in a sticky directory", os.unlink, view / "sticky/mine"),
            ("of others there", os.unlink, view / "sticky/yours"),
            ("rename", os.rename, view / "linked", view / f"renamed{uid}"),
            ("rename over", os.rename, view / "f0600", view / "f0640"),
            ("rename a directory", os.rename, view / "dir-of-other", view / f"moved{uid}"),
            ("rename over a full one", os.rename, view / "dir-of-root", view / "full"),
            ("rename a link", os.rename, view / "l-broken", view / f"broken{uid}"),
            ("move", os.rename, view / f"renamed{uid}", view / "full/moved"),
            ("move back", os.rename, view / "full/moved", view / f"renamed{uid}"),
            ("sticky", os.rename, view / "sticky/mine", view / "sticky/renamed"),
            ("write", write, view / "f0644"),
            ("cut", os.truncate, view / "f0666", 3),
        ]
        note.by([(f"{uid}: {label}", *call) for label, *call in calls], uid=uid)
        note(f"{uid}: left", listed, source)
        note(f"{uid}: left in sticky", listed, source / "sticky")
        note(f"{uid}: left in full", listed, source / "full")


@pytest.mark.parametrize("options", [
    (), ("--delete-deny",), ("--rename-deny",), ("-o", "delete-deny,rename-deny"),
    ("-u", "1000"), ("-p", "0777"), ("-r",), ("-o", "ro"),
])  # fmt: skip
def test_removing_and_renaming(options: tuple[str, ...]) -> None:
    alike(removing, *options)


def _exchange(a: Path, b: Path, flags: int) -> None:
    directory = os.open(a.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        syscalls.renameat2(directory, os.fsencode(a.name), directory, os.fsencode(b.name), flags)
    finally:
        os.close(directory)


def test_names_are_not_exchanged_where_renaming_is_denied() -> None:
    """bindfs 1.14.7 uses libfuse 2, which knows no flags of renameat2(2)."""
    with area() as here:
        make_tree(here / "source")
        options = ("--git=off", "--rename-deny")
        with gitguardfs(here / "source", here / "view", *options) as mounted:
            with pytest.raises(OSError) as caught:
                _exchange(mounted.path / "of-agent", mounted.path / "of-root",
                          protocol.RENAME_EXCHANGE)  # fmt: skip
            assert caught.value.errno == errno.EPERM
            assert seen(here / "source/of-agent") == "file 0644 1000:1000 x1 8 bytes"
