"""The ways round the guard, as small functions that make the real system calls.

Each takes the directory through which a project (see repos.make_project) is seen, and the
shell command that it wants git on the host to run. The steps under ``preparing()`` are
ordinary work that has to succeed everywhere; what follows is the attack. It raises OSError
where it is refused and returns what it read, if reading was the point.

Standard library only, and nothing that knows of pytest or of the mount under attack, so that
the same functions can run on a plain directory, on a mount and inside a virtual machine.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.raw_calls import (
    MNT_DETACH,
    MS_BIND,
    MS_REC,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    RENAME_WHITEOUT,
    inotify,
    linkat_by_proc,
    linkat_empty_path,
    mount,
    name_to_handle,
    open_by_handle,
    read_at,
    renameat2,
    umount,
)

ACTORS = ("agent", "fake root", "root")
"""An unprivileged user; the same as root of a user and mount namespace; real root."""

Strike = Callable[[Path, str], object]


@dataclass(frozen=True)
class Attack:
    """One attack, and how to see that it works where nothing prevents it."""

    row: str
    """The threat's id: of TITLES in gitguardfs/doctor/attack_checks.py, or U3, file handles."""
    name: str
    strike: Strike
    runs: str | None
    """The directory in which git status on the host then runs the command."""
    reads: bool
    """It returns bytes that hold the secret."""
    refused: frozenset[int]
    """The errnos with which a guard may answer."""
    early: frozenset[int]
    """More errnos for the unprivileged: the kernel refuses before it asks the filesystem."""
    actors: tuple[str, ...]
    options: tuple[str, ...]
    """Options that the guarded mount needs for the attack to make sense."""
    plain: str
    """Where it is shown to work: "bindfs", or "directory" for calls that the distribution's bindfs
    lacks: renames with flags and O_TMPFILE."""
    unguarded: bool
    """It also works through the mount itself when that guards nothing."""

    @property
    def id(self) -> str:
        return f"{self.row}-{self.name}"


ATTACKS: list[Attack] = []


def attack(
    row: str,
    *,
    name: str | None = None,
    runs: str | None = None,
    reads: bool = False,
    refused: tuple[int, ...] = (errno.EACCES,),
    early: tuple[int, ...] = (),
    actors: tuple[str, ...] = ACTORS,
    options: tuple[str, ...] = (),
    plain: str = "bindfs",
    unguarded: bool = True,
    table: list[Attack] = ATTACKS,
) -> Callable[[Strike], Strike]:
    """Enter a function into the table; without ``runs`` or ``reads`` it changes metadata."""

    def enter(strike: Strike) -> Strike:
        title = name or strike.__name__
        table.append(
            Attack(
                row,
                title,
                strike,
                runs,
                reads,
                frozenset(refused),
                frozenset(early),
                actors,
                options,
                plain,
                unguarded,
            )
        )
        return strike

    return enter


@contextmanager
def preparing() -> Iterator[None]:
    """Steps that a guard must allow."""
    try:
        yield
    except OSError as error:
        raise AssertionError(f"an ordinary step was refused: {error}") from error


HEAD_TEXT = "ref: refs/heads/main\n"


def half_repository(path: Path, command: str, worktree: str | None = None) -> Path:
    """Make the parts of a repository that runs ``command``, except for HEAD and the config.

    The config has a name that a guard must allow.
    """
    for part in ("objects", "refs"):
        (path / part).mkdir(parents=True)
    write_config(path / "config.later", command, worktree)
    return path


def write_config(path: Path, command: str, worktree: str | None = None) -> None:
    place = f"\tworktree = {worktree}\n" if worktree else ""
    path.write_text(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        f'{place}\tfsmonitor = "{command};:"\n'
    )


def complete(path: Path) -> None:
    (path / "HEAD").write_text(HEAD_TEXT)
    add_config(path)


def add_config(path: Path) -> None:
    (path / "config.later").rename(path / "config")


# ------------------------------------------------------------------ R: rename and exchange


@attack("R1", runs="")
def move_git_away_edit_and_return(view: Path, command: str) -> None:
    (view / ".git").rename(view / "x")
    write_config(view / "x/config", command)
    (view / "x").rename(view / ".git")


@attack("R1")
def move_git_into_a_subdirectory(view: Path, command: str) -> None:
    (view / ".git").rename(view / "src/git")


@attack("R1")
def move_git_file_away(view: Path, command: str) -> None:
    (view / "split/.git").rename(view / "split/x")


@attack("R1")
def move_object_out_of_git(view: Path, command: str) -> None:
    (view / ".git/config").rename(view / "config")


@attack("R1")
def move_object_into_git(view: Path, command: str) -> None:
    with preparing():
        write_config(view / "prepared", command)
    (view / "prepared").rename(view / ".git/config")


@attack("R2a", runs="", plain="directory")
def exchange_prepared_directory_with_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    renameat2(prepared, view / ".git", RENAME_EXCHANGE)
    complete(view / ".git")


@attack("R2a", runs="", plain="directory")
def exchange_git_with_prepared_directory(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "src/prepared", command)
    renameat2(view / ".git", prepared, RENAME_EXCHANGE)
    complete(view / ".git")


@attack("R2a", runs="split", plain="directory")
def exchange_prepared_file_with_git_file(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
        (view / "pointer").write_text("gitdir: ../prepared\n")
    renameat2(view / "pointer", view / "split/.git", RENAME_EXCHANGE)
    complete(prepared)


@attack("R2a", plain="directory")
def exchange_two_git_files(view: Path, command: str) -> None:
    renameat2(view / "split/.git", view / "linked/.git", RENAME_EXCHANGE)


@attack("R3a", runs="", plain="directory")
def move_git_away_without_replacing(view: Path, command: str) -> None:
    renameat2(view / ".git", view / "x", RENAME_NOREPLACE)
    write_config(view / "x/config", command)
    renameat2(view / "x", view / ".git", RENAME_NOREPLACE)


@attack("R3a", plain="directory", unguarded=False)
def move_git_away_leaving_a_whiteout(view: Path, command: str) -> None:
    renameat2(view / ".git", view / "x", RENAME_WHITEOUT)


@attack("R3a", plain="directory", unguarded=False)
def whiteout_over_git_file(view: Path, command: str) -> None:
    with preparing():
        (view / "pointer").write_text("gitdir: ../prepared\n")
    renameat2(view / "pointer", view / "split/.git", RENAME_WHITEOUT)


@attack("R4", runs="evil/inner")
def move_git_file_to_another_directory(view: Path, command: str) -> None:
    with preparing():
        (view / "evil/inner").mkdir(parents=True)
        store = half_repository(view / "evil/store", command)
    (view / "split/.git").rename(view / "evil/inner/.git")
    complete(store)


@attack("R5", runs="src")
def rename_prepared_directory_to_absent_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    prepared.rename(view / "src/.git")
    complete(view / "src/.git")


@attack("R5", runs="src", plain="directory")
def rename_noreplace_to_absent_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "src/prepared", command)
    renameat2(prepared, view / "src/.git", RENAME_NOREPLACE)
    complete(view / "src/.git")


@attack("R5", runs="src")
def rename_prepared_file_to_absent_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
        (view / "pointer").write_text("gitdir: ../prepared\n")
    (view / "pointer").rename(view / "src/.git")
    complete(prepared)


@attack("R6", runs="split")
def rename_prepared_file_over_git_file(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
        (view / "pointer").write_text("gitdir: ../prepared\n")
    (view / "pointer").rename(view / "split/.git")
    complete(prepared)


@attack("R6", runs="hollow")
def rename_prepared_directory_over_empty_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    prepared.rename(view / "hollow/.git")
    complete(view / "hollow/.git")


# With --allow-bare only the rule about repository roots prevents these.
for _options in ((), ("--allow-bare",)):
    _suffix = "".join(_options)

    @attack("R7", runs="evil/split", name=f"move_worktree_root{_suffix}", options=_options)
    def move_worktree_root(view: Path, command: str) -> None:
        with preparing():
            store = half_repository(view / "evil/store", command)
        (view / "split").rename(view / "evil/split")
        complete(store)

    @attack(
        "R7",
        runs="evil/split",
        name=f"exchange_worktree_root{_suffix}",
        options=_options,
        plain="directory",
    )
    def exchange_worktree_root(view: Path, command: str) -> None:
        with preparing():
            store = half_repository(view / "evil/store", command)
            (view / "evil/split").mkdir()
        renameat2(view / "evil/split", view / "split", RENAME_EXCHANGE)
        complete(store)

    @attack(
        "R7",
        runs="evil/split",
        name=f"exchange_with_worktree_root{_suffix}",
        options=_options,
        plain="directory",
    )
    def exchange_with_worktree_root(view: Path, command: str) -> None:
        with preparing():
            store = half_repository(view / "evil/store", command)
            (view / "evil/split").mkdir()
        renameat2(view / "split", view / "evil/split", RENAME_EXCHANGE)
        complete(store)


@attack("R7")
def move_repository_root(view: Path, command: str) -> None:
    (view / "nested").rename(view / "src/nested")


@attack("R7", plain="directory")
def rename_repository_root_in_place(view: Path, command: str) -> None:
    renameat2(view / "nested", view / "renamed", RENAME_NOREPLACE)


@attack("R7", plain="directory", refused=(errno.EACCES, errno.EINVAL), unguarded=False)
def move_repository_root_leaving_a_whiteout(view: Path, command: str) -> None:
    renameat2(view / "nested", view / "renamed", RENAME_WHITEOUT)


@attack("R7")
def move_parent_of_hollow_git(view: Path, command: str) -> None:
    (view / "hollow").rename(view / "renamed")


@attack("R7")
def move_parent_of_git_symlink(view: Path, command: str) -> None:
    (view / "symlinked").rename(view / "renamed")


@attack("R7")
def move_parent_of_bare_repository(view: Path, command: str) -> None:
    (view / "attic").rename(view / "renamed")


# ------------------------------------------------------------- C: create, remove, recreate


@attack("C1")
def create_git_file(view: Path, command: str) -> None:
    os.close(os.open(view / "src/.git", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


@attack("C1")
def create_git_file_without_excl(view: Path, command: str) -> None:
    os.close(os.open(view / "src/.git", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644))


@attack("C1", runs="src")
def make_git_directory(view: Path, command: str) -> None:
    (view / "src/.git").mkdir()
    complete(half_repository(view / "src/.git", command))


@attack("C1")
def make_git_fifo(view: Path, command: str) -> None:
    os.mkfifo(view / "src/.git")


@attack("C1")
def make_git_node(view: Path, command: str) -> None:
    os.mknod(view / "src/.git", stat.S_IFREG | 0o644)


@attack("C1", actors=("root",))
def make_git_device(view: Path, command: str) -> None:
    os.mknod(view / "src/.git", stat.S_IFCHR | 0o644, os.makedev(1, 3))


@attack("C1", runs="src")
def make_git_symlink(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    (view / "src/.git").symlink_to("../prepared")
    complete(prepared)


@attack("C1", runs="src")
def link_to_git(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
        (view / "pointer").write_text("gitdir: ../prepared\n")
    (view / "src/.git").hardlink_to(view / "pointer")
    complete(prepared)


@attack("C1")
def bind_socket_as_git(view: Path, command: str) -> None:
    with preparing():
        os.chdir(view / "src")
        bound = socket.socket(socket.AF_UNIX)
    with bound:
        bound.bind(".git")


@attack("C2", runs="split")
def unlink_git_file_and_recreate(view: Path, command: str) -> None:
    with preparing():
        prepared = half_repository(view / "prepared", command)
    (view / "split/.git").unlink()
    (view / "split/.git").write_text("gitdir: ../prepared\n")
    complete(prepared)


@attack("C2", runs="hollow")
def remove_empty_git_and_recreate(view: Path, command: str) -> None:
    (view / "hollow/.git").rmdir()
    complete(half_repository(view / "hollow/.git", command))


@attack("C2")
def unlink_git_symlink(view: Path, command: str) -> None:
    (view / "symlinked/.git").unlink()


@attack("C2")
def unlink_index(view: Path, command: str) -> None:
    (view / ".git/index").unlink()


@attack("C2")
def remove_directory_of_git(view: Path, command: str) -> None:
    (view / ".git/refs/tags").rmdir()


@attack("C2")
def remove_whole_git(view: Path, command: str) -> None:
    shutil.rmtree(view / ".git")


@attack("C2", runs="hollow")
def fill_empty_git(view: Path, command: str) -> None:
    complete(half_repository(view / "hollow/.git", command))


# libfuse's daemons do not serve O_TMPFILE; the call then ends in EOPNOTSUPP.
_NO_TMPFILE = (errno.EACCES, errno.EOPNOTSUPP)


@attack("C3", plain="directory", refused=_NO_TMPFILE, unguarded=False)
def link_anonymous_file_as_git(view: Path, command: str) -> None:
    descriptor = os.open(view / "src", os.O_TMPFILE | os.O_WRONLY, 0o644)
    os.write(descriptor, b"gitdir: ../prepared\n")
    linkat_by_proc(descriptor, view / "src/.git")


@attack("C3", plain="directory", refused=_NO_TMPFILE, unguarded=False)
def make_anonymous_file_in_git(view: Path, command: str) -> None:
    descriptor = os.open(view / ".git", os.O_TMPFILE | os.O_WRONLY, 0o644)
    linkat_by_proc(descriptor, view / ".git/planted")


@attack("C3")
def link_open_file_as_git(view: Path, command: str) -> None:
    with preparing():
        descriptor = os.open(view / "pointer", os.O_CREAT | os.O_WRONLY, 0o644)
    linkat_by_proc(descriptor, view / "src/.git")


# --------------------------------------------------------------------------- L: hard links

# fs.protected_hardlinks: EPERM for a file that the caller could not write. Without
# CAP_DAC_READ_SEARCH linkat(AT_EMPTY_PATH) is ENOENT unless the same credentials opened it.
_LINK_EARLY = (errno.EPERM,)


@attack("L1", reads=True)
def link_config_elsewhere(view: Path, command: str) -> bytes:
    (view / "stolen").hardlink_to(view / ".git/config")
    return (view / "stolen").read_bytes()


@attack("L1", early=_LINK_EARLY)
def link_git_file_elsewhere(view: Path, command: str) -> None:
    (view / "stolen").hardlink_to(view / "split/.git")
    with (view / "stolen").open("a") as file:
        file.write("edited\n")


@attack("L1", early=(*_LINK_EARLY, errno.ENOENT))
def link_git_file_by_empty_path(view: Path, command: str) -> None:
    descriptor = os.open(view / "split/.git", os.O_PATH)
    linkat_empty_path(descriptor, view / "stolen")


@attack("L1", early=_LINK_EARLY)
def link_git_file_by_proc(view: Path, command: str) -> None:
    descriptor = os.open(view / "split/.git", os.O_PATH)
    linkat_by_proc(descriptor, view / "stolen")


@attack("L1", early=_LINK_EARLY)
def link_git_symlink_elsewhere(view: Path, command: str) -> None:
    os.link(view / "symlinked/.git", view / "stolen", follow_symlinks=False)


# -------------------------------------------------------- M: attributes and kept references

# The kernel refuses chmod, chown and explicit times to those who do not own the object.
_NOT_OWNER = (errno.EPERM,)

for _name in (".git", "split/.git", ".git/config"):

    @attack("M1", name=f"chmod {_name}", early=_NOT_OWNER)
    def change_mode(view: Path, command: str, _name: str = _name) -> None:
        (view / _name).chmod(0o777)

    @attack("M1", name=f"chown {_name}", early=_NOT_OWNER)
    def change_owner(view: Path, command: str, _name: str = _name) -> None:
        os.chown(view / _name, os.getuid(), os.getgid())

    @attack("M1", name=f"utimens {_name}", early=_NOT_OWNER)
    def change_times(view: Path, command: str, _name: str = _name) -> None:
        os.utime(view / _name, (1, 1), follow_symlinks=False)

    @attack("M1", name=f"touch {_name}", early=_NOT_OWNER)
    def touch(view: Path, command: str, _name: str = _name) -> None:
        os.utime(view / _name)


@attack("M1", name="utimens of a .git symlink", early=_NOT_OWNER)
def change_times_of_symlink(view: Path, command: str) -> None:
    os.utime(view / "symlinked/.git", (1, 1), follow_symlinks=False)


@attack("M1", name="chown of a .git symlink", early=_NOT_OWNER)
def change_owner_of_symlink(view: Path, command: str) -> None:
    os.lchown(view / "symlinked/.git", os.getuid(), os.getgid())


for _name in ("split/.git", ".git/config"):

    @attack("M1", name=f"truncate {_name}")
    def truncate(view: Path, command: str, _name: str = _name) -> None:
        os.truncate(view / _name, 0)

    @attack("M1", name=f"open with O_TRUNC {_name}")
    def open_truncating(view: Path, command: str, _name: str = _name) -> None:
        os.close(os.open(view / _name, os.O_WRONLY | os.O_TRUNC))

    @attack("M1", name=f"append to {_name}")
    def append(view: Path, command: str, _name: str = _name) -> None:
        descriptor = os.open(view / _name, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"# appended\n")
        os.close(descriptor)


# With extended attributes served, and by default, without them.
for _options, _refused in (
    (("--xattr=rw",), (errno.EACCES,)),
    ((), (errno.EACCES, errno.EOPNOTSUPP)),
):
    _suffix = "".join(_options)

    @attack(
        "M1",
        name=f"setxattr{_suffix}",
        options=_options,
        refused=_refused,
        unguarded=bool(_options),
    )
    def set_attribute(view: Path, command: str) -> None:
        os.setxattr(view / ".git", "user.planted", b"value")

    @attack(
        "M1",
        name=f"removexattr{_suffix}",
        options=_options,
        refused=_refused,
        unguarded=bool(_options),
    )
    def remove_attribute(view: Path, command: str) -> None:
        os.removexattr(view / ".git", "user.known")

    @attack(
        "M2",
        name=f"listxattr{_suffix}",
        reads=True,
        options=_options,
        refused=_refused,
        unguarded=bool(_options),
    )
    def list_attributes(view: Path, command: str) -> bytes:
        names = os.listxattr(view / ".git")
        if not names:
            raise OSError(errno.EOPNOTSUPP, "nothing is served")
        return " ".join(names).encode()


@attack("M2", reads=True)
def read_config(view: Path, command: str) -> bytes:
    return (view / ".git/config").read_bytes()


@attack("M2", reads=True)
def list_git(view: Path, command: str) -> bytes:
    return repr(os.listdir(view / ".git")).encode() + (view / ".git/config").read_bytes()


@attack("M2", reads=True)
def openat_below_path_descriptor(view: Path, command: str) -> bytes:
    with preparing():
        directory = os.open(view / ".git", os.O_PATH | os.O_DIRECTORY)
    return read_at(directory, "config")


@attack("M2", reads=True)
def reopen_path_descriptor(view: Path, command: str) -> bytes:
    with preparing():
        directory = os.open(view / ".git", os.O_PATH | os.O_DIRECTORY)
    again = os.open(f"/proc/self/fd/{directory}", os.O_RDONLY | os.O_DIRECTORY)
    return read_at(again, "config")


@attack("M2", reads=True)
def read_below_proc_descriptor(view: Path, command: str) -> bytes:
    with preparing():
        directory = os.open(view / ".git", os.O_PATH | os.O_DIRECTORY)
    return Path(f"/proc/self/fd/{directory}/config").read_bytes()


@attack("M2")
def reopen_git_file_for_writing(view: Path, command: str) -> None:
    with preparing():
        held = os.open(view / "split/.git", os.O_PATH)
    again = os.open(f"/proc/self/fd/{held}", os.O_WRONLY)
    os.write(again, b"gitdir: ../evil!\n")


@attack("M2", reads=True)
def change_directory_and_read(view: Path, command: str) -> bytes:
    os.chdir(view / ".git")
    return Path("config").read_bytes()


@attack("M2", reads=True)
def change_root_and_read(view: Path, command: str) -> bytes:
    os.chdir(view / ".git")
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    return read_at(descriptor, "config")


@attack("M2")
def watch_git(view: Path, command: str) -> None:
    """Only real root passes inotify_add_watch; then it must not be able to cause an event."""
    watch = inotify(view / ".git")
    (view / ".git/config").open("a").close()
    write_config(view / ".git/config", command)
    assert select.select([watch], [], [], 0)[0], "no event although the file was opened"


@attack("M2", reads=True)
def read_git_symlink(view: Path, command: str) -> bytes:
    return os.fsencode(os.readlink(view / "symlinked/.git"))


@attack("M2", reads=True)
def read_git_symlink_by_descriptor(view: Path, command: str) -> bytes:
    with preparing():
        held = os.open(view / "symlinked/.git", os.O_PATH | os.O_NOFOLLOW)
    return os.readlink(b"", dir_fd=held)


@attack("M2", reads=True)
def stat_below_git(view: Path, command: str) -> bytes:
    os.stat(view / ".git/config")
    return (view / ".git/config").read_bytes()


# -------------------------------------------------- U: user namespaces, mounts, file handles


@attack("U1", reads=True, actors=("fake root",))
def read_config_as_fake_root(view: Path, command: str) -> bytes:
    return (view / ".git/config").read_bytes()


@attack("U2", reads=True, actors=("fake root", "root"))
def bind_git_elsewhere_and_read(view: Path, command: str) -> bytes:
    with preparing():
        spot = view / "spot"
        spot.mkdir()
    mount(str(view / ".git"), spot, flags=MS_BIND)
    try:
        return (spot / "config").read_bytes()
    finally:
        umount(spot, MNT_DETACH)


@attack("U2", reads=True, actors=("fake root", "root"))
def bind_git_file_over_another_and_read(view: Path, command: str) -> bytes:
    with preparing():
        (view / "spot").write_text("")
    mount(str(view / ".git/config"), view / "spot", flags=MS_BIND)
    try:
        return (view / "spot").read_bytes()
    finally:
        umount(view / "spot", MNT_DETACH)


@attack("U2", reads=True, actors=("fake root", "root"))
def bind_project_elsewhere_and_read(view: Path, command: str) -> bytes:
    with preparing():
        spot = view / "spot"
        spot.mkdir()
        mount(str(view), spot, flags=MS_BIND | MS_REC)
    try:
        return (spot / ".git/config").read_bytes()
    finally:
        umount(spot, MNT_DETACH)


# overlayfs does not take a filesystem for an upper layer that lacks what it needs.
_NO_UPPER = (errno.EACCES, errno.EINVAL, errno.EROFS, errno.EPERM)


@attack("U2", reads=True, actors=("fake root",))
def overlay_project_and_read(view: Path, command: str) -> bytes:
    with preparing():
        spot = view / "spot"
        spot.mkdir()
        mount("tmpfs", spot, "tmpfs")
        for name in ("upper", "work", "merged"):
            (spot / name).mkdir()
        layers = f"lowerdir={view},upperdir={spot}/upper,workdir={spot}/work,userxattr"
        mount("overlay", spot / "merged", "overlay", data=layers)
    return (spot / "merged/.git/config").read_bytes()


@attack("U2", actors=("fake root",), plain="directory", refused=_NO_UPPER, unguarded=False)
def write_through_overlay_with_the_project_as_upper_layer(view: Path, command: str) -> None:
    with preparing():
        for name in ("upper", "work", "merged"):
            (view / name).mkdir()
    layers = f"lowerdir=/usr/share,upperdir={view}/upper,workdir={view}/work,userxattr"
    mount("overlay", view / "merged", "overlay", data=layers)
    (view / "merged/.git").mkdir()


@attack("U2", reads=True, actors=("fake root", "root"))
def chroot_into_git(view: Path, command: str) -> bytes:
    os.chroot(view / ".git")
    return Path("/config").read_bytes()


# open_by_handle_at is EPERM without privileges; root of a mount namespace may try what lies
# below its own mounts, and gets ESTALE for what the kernel cannot show to lie there.
_NO_HANDLES = (errno.EPERM, errno.ESTALE)
_ROOT_FIRST = ("root", "agent", "fake root")


@attack("U3", reads=True, early=_NO_HANDLES, actors=_ROOT_FIRST, unguarded=False)
def open_handle_of_git_and_read(view: Path, command: str) -> bytes:
    kind, data = name_to_handle(view / ".git")
    anchor = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    return read_at(open_by_handle(anchor, kind, data, os.O_RDONLY | os.O_DIRECTORY), "config")


@attack("U3", reads=True, early=_NO_HANDLES, actors=_ROOT_FIRST, unguarded=False)
def open_path_handle_of_git_and_read(view: Path, command: str) -> bytes:
    kind, data = name_to_handle(view / ".git")
    anchor = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    return read_at(open_by_handle(anchor, kind, data, os.O_PATH | os.O_DIRECTORY), "config")


# ------------------------------------------------------------------------- S: symbolic links


@attack("S1", reads=True)
def read_through_relative_symlink(view: Path, command: str) -> bytes:
    (view / "way").symlink_to(".git")
    return (view / "way/config").read_bytes()


@attack("S1", reads=True)
def read_through_absolute_symlink(view: Path, command: str) -> bytes:
    (view / "src/way").symlink_to(view / ".git")
    return (view / "src/way/config").read_bytes()


@attack("S1", reads=True)
def read_through_symlink_to_file(view: Path, command: str) -> bytes:
    (view / "src/way").symlink_to("../src/../.git/config")
    return (view / "src/way").read_bytes()


@attack("S1")
def write_through_symlink(view: Path, command: str) -> None:
    (view / "way").symlink_to(".git/planted")
    (view / "way").write_text("planted\n")
