"""Options that show links, devices and times differently, as in bindfs."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.likeness import (
    OTHER,
    Note,
    alike,
    listed,
    make_tree,
    read,
    seen,
    touch,
    write,
)  # fmt: skip
from tests.support.mounting import area
from tests.support.people import AGENT

DELETIONS = ("deny", "symlink-only", "symlink-first", "target-first")


def test_hard_links_are_hidden() -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        note.see_all("all", view)
        note("link", os.link, view / "of-agent", view / "another")
        for name in ("of-agent", "another", "linked", "linked2"):
            note.see(f"{name} later", view / name)
        note("directory", lambda: (view / "full").stat().st_nlink)
        note("remove", os.unlink, view / "linked")
        note.see("linked2 at last", view / "linked2")
        note.see("source", source / "linked2")

    alike(script, "--hide-hard-links")
    alike(script, "-o", "hide-hard-links")


def test_ctime_is_the_time_of_content() -> None:
    def build(source: Path) -> None:
        make_tree(source)
        for name in ("of-agent", "full", "l-broken"):
            os.utime(source / name, ns=(10**18, 10**18 + 7), follow_symlinks=False)

    def script(view: Path, source: Path, note: Note) -> None:
        for name in ("of-agent", "full", "l-broken"):
            note(f"{name} ctime", lambda name=name: (view / name).lstat().st_ctime_ns)
        os.chmod(view / "of-agent", 0o600)
        note("after chmod", lambda: (view / "of-agent").stat().st_ctime_ns)
        os.utime(view / "of-agent", ns=(1, 2 * 10**18))
        note("after utime", lambda: (view / "of-agent").stat().st_ctime_ns)
        note("source", lambda: (source / "of-agent").stat().st_ctime_ns > 2 * 10**18)

    alike(script, "--ctime-from-mtime", build=build)
    alike(script, "-o", "ctime-from-mtime", build=build)


# ------------------------------------------------------------------- Symlinks that are resolved


def with_links(source: Path) -> None:
    """Symlinks of all kinds but out of the source."""
    make_tree(source)
    for name in ("l-outside", "l-absolute", "l-above", "l-loop"):
        (source / name).unlink()
    (source / "empty").mkdir()
    for name, target in {
        "to-empty": "empty", "to-dir": "full", "to-dir-slash": "full/", "to-fifo": "fifo",
        "to-dangling": "l-broken", "to-private": "f0000",
        "to-executable": "f0755", "chain2": "l-chain", "by-dots": "./full/../of-root",
        "full/up": "../of-other", "absolute": f"{source}/full/inner",
    }.items():  # fmt: skip
        (source / name).symlink_to(target)
        os.chown(source / name, 1000, 1000, follow_symlinks=False)


def resolving(view: Path, source: Path, note: Note) -> None:
    """Note the attributes of links, and the calls that work through them."""
    note.see_all("all", view)
    links = [name for name in sorted(os.listdir(source)) if (source / name).is_symlink()]
    for uid in (0, AGENT, OTHER):
        calls = [
            *((f"{uid}: {name}", seen, view / name) for name in links),
            *((f"{uid}: readlink {name}", os.readlink, view / name) for name in links),
            *((f"{uid}: reads {name}", read, view / name) for name in links if name != "to-fifo"),
            *((f"{uid}: lists {name}", listed, view / name) for name in links),
            (f"{uid}: new symlink", os.symlink, "of-agent", view / f"new{uid}"),
            (f"{uid}: symlink over", os.symlink, "of-agent", view / "l-relative"),
            (f"{uid}: writes", write, view / "l-chain"),
            (f"{uid}: chmods", os.chmod, view / "l-relative", 0o604),
            (f"{uid}: cuts", os.truncate, view / "chain2", 2),
            (f"{uid}: makes", touch, view / f"to-dir/made{uid}"),
            (f"{uid}: makes a directory", os.mkdir, view / f"to-dir/dir{uid}"),
            (f"{uid}: makes over", touch, view / "l-relative"),
            (f"{uid}: inner", read, view / "to-dir/inner"),
            (f"{uid}: up", read, view / "to-dir/up"),
        ]
        note.by(calls, uid=uid)
        note(f"{uid}: full has", listed, source / "full")
        note.see(f"{uid}: target", source / "of-agent")
    note("chown", os.chown, view / "l-relative", 1001, 1001)
    note.see("target at last", source / "of-agent")
    note.see("link at last", source / "l-relative")


def test_resolved_symlinks() -> None:
    alike(resolving, "--resolve-symlinks", build=with_links)


@pytest.mark.parametrize("options", [
    ("-o", "resolve-symlinks"), ("--resolve-symlinks", "-p", "0600,a+X"),
    ("--resolve-symlinks", "-u", "1000", "--hide-hard-links"),
])  # fmt: skip
def test_resolved_symlinks_with_other_options(options: tuple[str, ...]) -> None:
    alike(resolving, *options, build=with_links)


NAMES = ("l-relative", "l-chain", "to-dir", "to-empty", "l-broken", "to-fifo",
         "full/up", "absolute")  # fmt: skip


def removing(view: Path, source: Path, note: Note) -> None:
    """unlink and rmdir of links and what is left."""
    for name in NAMES:
        for way in (os.unlink, os.rmdir):
            for uid in (OTHER, AGENT):
                note(f"{way.__name__} {name} by {uid}", way, view / name, uid=uid)
            note(f"link {name} after {way.__name__}", os.path.lexists, source / name)
    note("full", listed, source / "full")


RIGHTS = "who removes a link's target must be allowed to write the directory where that stands"
RMDIR = "bindfs would unlink(2) the directory that the link leads to, which never works"


@pytest.mark.parametrize("deletion", DELETIONS)
def test_removing_resolved_symlinks(deletion: str) -> None:
    rights = {
        "unlink absolute by 1001": (None, "EACCES", RIGHTS),
        "unlink absolute by 1000": ("ENOENT", None, RIGHTS),
    }
    rmdir = {
        "rmdir to-dir by 1001": ("EISDIR", "ENOTEMPTY", RMDIR),
        "rmdir to-dir by 1000": ("EISDIR", "ENOTEMPTY", RMDIR),
        "rmdir to-empty by 1001": ("EISDIR", None, RMDIR),
        "rmdir to-empty by 1000": ("EISDIR", "ENOENT", RMDIR),
        "link to-empty after rmdir": (True, False, RMDIR),
    }
    options = ("--resolve-symlinks", f"--resolved-symlink-deletion={deletion}")
    differs = {"target-first": {**rights, **rmdir}, "symlink-first": rights}.get(deletion)
    alike(removing, *options, build=with_links, differs=differs)


def test_removing_with_other_options() -> None:
    options = ("-o", "resolve-symlinks,resolved-symlink-deletion=target-first")
    alike(removing, *options, "--delete-deny", build=with_links)
    alike(removing, "--resolve-symlinks", "--rename-deny", build=with_links)


@pytest.mark.parametrize("deletion", ["deny", "target-first"])
def test_renaming_resolved_symlinks(deletion: str) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        moves = [("l-relative", "moved"), ("to-dir", "d0777/moved-dir"), ("moved", "full/again"),
                 ("of-other", "l-chain"), ("f0644", "to-executable"), ("l-broken", "broken2"),
                 ("to-empty", "f0444"), ("d0700", "to-dir-slash")]  # fmt: skip
        for old, new in moves:
            note(f"{old} to {new}", os.rename, view / old, view / new, uid=AGENT)
            for name in (old, new):
                note.see(f"{old} to {new}: {name}", source / name)
        note("left", listed, source)

    options = ("--resolve-symlinks", f"--resolved-symlink-deletion={deletion}")
    alike(script, *options, build=with_links)


SHOWN = {"l-loop": "link 0777 1000:1000 x1", "through-file": "link 0777 0:0 x1"}


def test_symlinks_that_lead_nowhere() -> None:
    """They stay symlinks. bindfs does not show those that no call could follow, nor remove them."""

    def build(source: Path) -> None:
        make_tree(source)
        (source / "through-file").symlink_to("of-agent/x")

    def script(view: Path, source: Path, note: Note) -> None:
        for name in ("l-broken", "l-loop", "through-file"):
            note.see(name, view / name)
            note(f"{name} reads", read, view / name)
            note(f"{name} goes", os.unlink, view / name)

    why = "a symlink that leads nowhere is shown as such, also where it turns in a circle"
    alike(script, "--resolve-symlinks", build=build, differs={
        f"{name} {what}": (fails, ours, why)
        for name, fails in (("l-loop", "ELOOP"), ("through-file", "ENOTDIR"))
        for what, ours in (("looks", SHOWN[name]), ("goes", None))
    })  # fmt: skip


UP = "a directory cannot have a second name inside itself: the kernel would see a tree of no depth"


def test_links_to_directories_above_them() -> None:
    """Shown as symlinks here; bindfs shows a tree without end, which find(1) never leaves."""

    def build(source: Path) -> None:
        make_tree(source)
        (source / "full/parent").symlink_to("..")
        (source / "full/self").symlink_to(".")

    def script(view: Path, source: Path, note: Note) -> None:
        for name in ("l-above", "full/parent", "full/self"):
            note.see(name, view / name)
            note(f"{name} leads", read, view / name / "of-agent")

    alike(script, "--resolve-symlinks", build=build, differs={
        "l-above looks": ("dir 0777 0:0", "link 0777 1000:1000 x1", UP),
        "full/parent looks": ("dir 0777 0:0", "link 0777 0:0 x1", UP),
        "full/self looks": ("dir 0755 1000:1000", "link 0777 0:0 x1", UP),
    })  # fmt: skip


def test_links_out_of_the_source() -> None:
    """bindfs follows them, with root's rights; here the view ends where the source does."""

    def build(source: Path) -> None:
        make_tree(source)
        (source / "out").symlink_to("/etc/passwd")
        (source / "up").symlink_to("../outside")
        (source / "down").symlink_to("../source/of-agent")
        (source.parent / "outside").write_text("secret")

    def script(view: Path, source: Path, note: Note) -> None:
        for name in ("out", "up", "down"):
            note(f"{name} is", lambda name=name: stat.filemode((view / name).lstat().st_mode))
            note(f"{name} reads", lambda name=name: len(read(view / name)) > 0, uid=AGENT)
            note(f"{name} tells", os.readlink, view / name)
            note(f"{name} can be written", write, view / name, uid=AGENT)

    why = "out of SOURCE, even if it leads back"
    found: dict[str, tuple[object, object, str]] = {}
    for name in ("out", "up", "down"):
        found[f"{name} is"] = ("-rw-r--r--", "l---------", why)
        found[f"{name} reads"] = (True, "EACCES", why)
        found[f"{name} tells"] = ("EINVAL", "EACCES", why)
    found["down can be written"] = (None, "EACCES", why)
    alike(script, "--resolve-symlinks", build=build, differs=found)


# --------------------------------------------------------------------------- Devices and O_DIRECT


@contextmanager
def loop_device(image: Path) -> Iterator[str]:
    """A block device over a file; a reason to skip where there is none."""
    done = subprocess.run(
        ["losetup", "--find", "--show", image], capture_output=True, check=False, text=True
    )
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def test_block_devices_as_files() -> None:
    with area() as here:
        (here / "image").write_bytes(bytes(65536))
        with loop_device(here / "image") as device:
            number = os.stat(device).st_rdev

            def build(source: Path) -> None:
                make_tree(source)
                Path(device).write_bytes(b"0123456789abcdef" * 4096)
                os.mknod(source / "disk", stat.S_IFBLK | 0o640, number)
                os.chown(source / "disk", 1000, 1000)

            def script(view: Path, source: Path, note: Note) -> None:
                path = view / "disk"
                note.see("disk", path)
                note.see("null", view / "null")
                note("blocks", lambda: path.stat().st_blocks)
                note("reads", read, path, uid=AGENT)
                note("others read", read, path, uid=OTHER)
                note("writes", _overwrite, path, 5, b"changed", uid=AGENT)
                note("reads again", lambda: read(path)[:20])
                note("at the end", _overwrite, path, 65536, b"x")
                note("source", lambda: stat.S_ISBLK((source / "disk").stat().st_mode))

            blocks = {"blocks": (0, 128, "du(1) counts blocks, and they belong to the size")}
            for options in (("--block-devices-as-files",),
                            ("-o", "block-devices-as-files", "-p", "a+r")):  # fmt: skip
                alike(script, *options, build=build, differs=blocks)


def _overwrite(path: Path, offset: int, data: bytes) -> int:
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def test_devices_work_where_they_are_wanted() -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        note("reads", read, view / "null", uid=AGENT)
        note("mknod", os.mknod, view / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        note("reads what was made", lambda: _start(view / "zero"))
        note.see("null", view / "null")

    alike(script, "-o", "dev")
    alike(script)
    alike(script, "-o", "nodev")


def _start(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(4) or b""
