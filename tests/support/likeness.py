"""Run a script of system calls on a bindfs mount and on a gitguardfs mount, and compare.

Both get the same source tree at the same paths, one after the other. A script notes what each
of its calls gave: a value, or the name of the errno.

bindfs 1.14.7 lets the kernel remember names and attributes for a second: what a script changes
on the source itself has to be done before it looks at that through the view.
"""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support import mounting
from tests.support.people import as_user

FOREIGN = (501, 20)
OTHER = 1001
"""The second ordinary user of the scripts, beside AGENT."""

MODES = (0o000, 0o001, 0o010, 0o100, 0o111, 0o222, 0o400, 0o444, 0o600, 0o640, 0o644, 0o666,
         0o700, 0o755, 0o777, 0o1644, 0o1777, 0o2755, 0o2644, 0o4755, 0o6711, 0o7777)  # fmt: skip

OWNERS = {
    "root": (0, 0), "agent": (1000, 1000), "other": (1001, 1001), "foreign": FOREIGN,
    "mixed": (501, 1000), "games": (5, 60),
}  # fmt: skip

_TYPES = {
    stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo",
    stat.S_IFCHR: "char", stat.S_IFBLK: "block", stat.S_IFSOCK: "socket",
}  # fmt: skip

Differences = Mapping[str, tuple[Any, Any, str]]
"""By label: bindfs's result, ours, and why that is meant."""


class Note:
    """The results of a script's calls, by label."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}

    def __call__(
        self,
        label: str,
        function: Callable[..., Any],
        *args: Any,
        uid: int = 0,
        gid: int | None = None,
        groups: Sequence[int] = (),
        umask: int = 0o022,
        **named: Any,
    ) -> Any:
        """Note what ``function`` gives to the user ``uid``, and return it."""
        self.by([(label, function, *args)], uid=uid, gid=gid, groups=groups, umask=umask, **named)
        return self.results[label]

    def by(
        self,
        calls: Sequence[tuple[Any, ...]],
        *,
        uid: int = 0,
        gid: int | None = None,
        groups: Sequence[int] = (),
        umask: int = 0o022,
        **named: Any,
    ) -> None:
        """Note what several calls of one user give: (label, function, *arguments)."""
        if (uid, gid or 0) == (0, 0) and umask == 0o022:
            results = _called(calls, named)
        else:
            results = as_user(_called, calls, named, uid=uid, gid=gid, groups=groups, umask=umask)
        for (label, *_call), result in zip(calls, results, strict=True):
            assert label not in self.results, f"{label} is noted twice"
            self.results[label] = result

    def see(self, label: str, path: Path, **who: Any) -> None:
        """Note how an object looks."""
        self(f"{label} looks", seen, path, **who)

    def see_all(self, label: str, directory: Path, **who: Any) -> None:
        """Note how everything in a directory looks, without going down."""
        found = self(f"{label} lists", listed, directory, **who)
        for name in found if isinstance(found, list) else []:
            self.see(f"{label} {name}", directory / name, **who)


Script = Callable[[Path, Path, Note], None]
"""Gets the view, the source, and a Note for the results."""


def _called(calls: Sequence[tuple[Any, ...]], named: dict[str, Any]) -> list[Any]:
    results = []
    for _label, function, *args in calls:
        try:
            results.append(function(*args, **named))
        except OSError as error:
            results.append(errno.errorcode[error.errno or 0])
    return results


def seen(path: Path) -> str:
    """Type, permissions, owner, links and (of a file) size, without following a link."""
    st = path.lstat()
    kind = _TYPES[stat.S_IFMT(st.st_mode)]
    size = f" {st.st_size} bytes" if kind == "file" else ""
    links = "" if kind == "dir" else f" x{st.st_nlink}"
    return f"{kind} {stat.S_IMODE(st.st_mode):04o} {st.st_uid}:{st.st_gid}{links}{size}"


def listed(path: Path) -> list[str]:
    """The sorted names in a directory."""
    return sorted(os.listdir(path))


def read(path: Path) -> bytes:
    """All bytes of a file."""
    return path.read_bytes()


def write(path: Path, text: str = "new") -> None:
    """Write to a file, which is made if it is not there."""
    path.write_text(text)


def touch(path: Path, mode: int = 0o666) -> None:
    """Make a file that is not there."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def make_tree(source: Path) -> None:
    """The source tree of most scripts."""
    source.mkdir()
    source.chmod(0o777)
    for mode in MODES:
        _file(source / f"f{mode:04o}", mode, (1000, 1000))
        (source / f"d{mode:04o}").mkdir()
        os.chown(source / f"d{mode:04o}", 1000, 1000)
        (source / f"d{mode:04o}").chmod(mode)
    for name, owner in OWNERS.items():
        _file(source / f"of-{name}", 0o644, owner)
        (source / f"dir-of-{name}").mkdir()
        os.chown(source / f"dir-of-{name}", *owner)
    (source / "full").mkdir()
    os.chown(source / "full", 1000, 1000)
    _file(source / "full/inner", 0o640, (1000, 1000))
    for name, mode in (("setgid", 0o2777), ("sticky", 0o1777)):
        (source / name).mkdir()
        os.chown(source / name, 0, 4444)
        (source / name).chmod(mode)
    _file(source / "sticky/mine", 0o644, (1000, 1000))
    _file(source / "sticky/yours", 0o644, (1001, 1001))
    _file(source / "linked", 0o644, (1000, 1000))
    os.link(source / "linked", source / "linked2")
    for name, target in {
        "l-relative": "of-agent", "l-absolute": f"{source}/of-agent", "l-broken": "nowhere",
        "l-outside": "/etc/hostname", "l-directory": "full", "l-chain": "l-relative",
        "l-loop": "l-loop", "l-above": ".", "l-deep": "full/../full/inner",
    }.items():  # fmt: skip
        (source / name).symlink_to(target)
        os.chown(source / name, 1000, 1000, follow_symlinks=False)
    os.mkfifo(source / "fifo", 0o640)
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _file(path: Path, mode: int, owner: tuple[int, int]) -> None:
    path.write_text(path.name)
    os.chown(path, *owner)
    path.chmod(mode)


def alike(
    script: Script,
    *options: str,
    differs: Differences | None = None,
    build: Callable[[Path], None] = make_tree,
    uid: int = 0,
    ours: Sequence[str] = (),
) -> None:
    """The script gives the same results on bindfs as on gitguardfs with ``--git=off``.

    ``differs`` declares differences; one that is declared and does not occur is a failure, too.
    ``uid`` is the user that mounts, ``ours`` are options for gitguardfs alone.
    """
    with mounting.area() as here:
        theirs = recorded(here, script, build, lambda: _bindfs(here, options, uid))
        mine = recorded(here, script, build, lambda: _gitguardfs(here, (*options, *ours), uid))
    expected = {
        label: (a, b)
        for label in sorted(theirs.keys() | mine.keys())
        if (a := theirs.get(label, "-")) != (b := mine.get(label, "-"))
    }
    declared = {label: (a, b) for label, (a, b, _why) in (differs or {}).items()}
    lines = [
        f"{label}: bindfs {pair[0]!r}, gitguardfs {pair[1]!r}"
        for label, pair in expected.items()
        if declared.get(label) != pair
    ]
    lines += [f"{label}: declared, not so" for label in declared if label not in expected]
    assert not lines, "\n".join([f"with {' '.join(options)}:", *lines])
    assert theirs, "a script that notes nothing compares nothing"


def recorded(
    here: Path, script: Script, build: Callable[[Path], None], mounted: Callable[[], Any]
) -> dict[str, Any]:
    """Return the results of a script on one mount over a new tree."""
    source, view = here / "source", here / "view"
    build(source)
    view.mkdir()
    try:
        note = Note()
        with mounted():
            script(view, source, note)
        return note.results
    finally:
        shutil.rmtree(source)
        view.rmdir()


@contextmanager
def _bindfs(here: Path, options: Sequence[str], uid: int) -> Iterator[None]:
    with ExitStack() as stack:
        stack.callback(mounting.unmount, here / "view")
        if uid:
            os.chown(here / "view", uid, uid)
        done = subprocess.run(
            ["bindfs", *options, here / "source", here / "view"],
            capture_output=True,
            check=False,
            text=True,
            user=uid or None,
            group=uid or None,
            extra_groups=[] if uid else None,
        )
        assert done.returncode == 0, done.stderr
        yield


@contextmanager
def _gitguardfs(here: Path, options: Sequence[str], uid: int) -> Iterator[None]:
    if uid:
        os.chown(here / "view", uid, uid)
    with mounting.gitguardfs(here / "source", here / "view", "--git=off", *options, uid=uid):
        yield


@contextmanager
def guarded(here: Path, *options: str) -> Iterator[Path]:
    """The view of ``here/source`` with the guard on."""
    with mounting.gitguardfs(here / "source", here / "view", *options) as mounted:
        yield mounted.path


def failure(function: Callable[..., Any], *args: Any, **who: Any) -> str:
    """Return the name of a call's errno, or its result if it did not fail."""
    note = Note()
    return str(note("it", function, *args, **who))
