"""The attacks on ``.git``: one table, for ``gitguard doctor`` and for the tests.

A line of ``TABLE_TEXT`` is ``THREAT FORM [ACTORS]: ATTACK; ATTACK...``: ACTORS try each attack (all
three if none is named) on an object of the FORM (``Attack.on``). An attack is a verb of ``VERBS``
and its arguments, for example ``rename {g} {w}/x``::

    !  does harm if it succeeds: only tests try it. All others undo their change at once.
    {g} {parent} {name} {relative}  the guarded object, its directory, name, and path from {w}
    {w}  a new empty directory in the view
    {o}  a new one beside it, with {o}/file, a gitfile, and {o}/dir, which has objects and refs
    {x}  AWAY, a name that shows where it comes from if it is left behind

A verb prepares in ``preparing()``, where a failure is no refusal, and reverts in ``undoing()``.
``EARLY`` and ``LACKING`` have the errnos, by verb, that say nothing about the guard.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EINVAL, ENOENT, EOPNOTSUPP, EPERM, EROFS
from functools import partial

from gitguardfs.base.constants import PERMISSION_BITS
from gitguardfs.base.errors import os_error
from gitguardfs.base.protocol import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from gitguardfs.linux import syscalls
from gitguardfs.linux.run_as import preparing, undoing
from gitguardfs.linux.syscalls import MNT_DETACH, MS_BIND, MS_REC, rename_path

AGENT, FAKE_ROOT, ROOT = ACTORS = ("agent", "fake root", "root")
"""The agent's user; that user as root of new user and mount namespaces; root itself."""
AWAY = ".gitguard-doctor"
TABLE_TEXT = """
R1 directory: rename {g} {g}{x}; rename {g} {w}/x; rename {g}/config {w}/x;
    !rename {o}/file {g}/config
R1 file: rename {g} {g}{x}
R2a directory: exchange {o}/dir {g}; exchange {g} {o}/dir
R2a file: exchange {o}/file {g}; exchange {g} {o}/file; exchange {o}/dir {g}
R3a directory: noreplace {g} {g}{x}; !whiteout {g} {w}/x
R3a file: noreplace {g} {g}{x}; !whiteout {o}/file {g}
R3a nothing: noreplace {o}/dir {w}/.git; whiteout {o}/file {w}/.git
R4 file: rename {g} {w}/.git
R5 nothing: rename {o}/dir {w}/.git; rename {o}/file {w}/.git
R6 directory: rename {o}/dir {g}
R6 empty: !rename {o}/dir {g}
R6 file: !rename {o}/file {g}
R7 root: rename {g} {g}{x}; rename {g} {w}/x; noreplace {g} {g}{x}; !whiteout {g} {w}/x;
    exchange {o}/dir {g}; exchange {g} {o}/dir
C1 nothing: open {w}/.git CREAT|RDWR; open {w}/.git CREAT|RDWR|TRUNC; create {w}/.git;
    mkdir {w}/.git; mkfifo {w}/.git; mknod {w}/.git; symlink target {w}/.git;
    link {o}/file {w}/.git; socket {w} .git
C1 nothing root: device {w}/.git
C2 directory: rmdir {g}; create {g}/{x}; write-through {g}/{x} {w}/x; !unlink {g}/index;
    !rmdir {g}/refs/tags; !rmtree {g}
C2 empty: !rmdir {g}; !mkdir {g}/objects
C2 file: !unlink {g}
C2 symlink: !unlink {g}
C3 nothing: tmpfile {w} {w}/.git; link-proc {o}/file {w}/.git
C3 directory: !tmpfile {g} {g}/x
L1 directory: link {g}/config {w}/x
L1 file: link {g} {w}/x; link-empty-path {g} {w}/x; link-proc {g} {w}/x
L1 symlink: link {g} {w}/x
M1 directory: chown {g}; chown-nothing {g}; chmod {g}; utimens {g}; !touch {g}; setxattr {g};
    removexattr {g}; open {g}/config WRONLY|APPEND; chown {g}/config; chmod {g}/config;
    utimens {g}/config; !touch {g}/config; !truncate {g}/config; !open {g}/config WRONLY|TRUNC
M1 file: chown {g}; chown-nothing {g}; chmod {g}; utimens {g}; !touch {g}; !truncate {g};
    !open {g} WRONLY|TRUNC
M1 symlink: chown {g}; chown-nothing {g}; utimens {g}
M2 directory: list {g}; read {g}/config; stat {g}/config; read-at {g} config; read-proc {g};
    read-proc {g} /config; read-reopened {g} config; chdir {g}; chdir {g} config; watch {g};
    listxattr {g}
M2 file: read {g}; read-proc {g}; open-proc {g}
M2 symlink: readlink {g}; readlink-at {g}
U1 directory fake root: list {g}; read {g}/config
U1 file fake root: read {g}
U2 directory fake root, root: bind {g} {w} /config; bind {g}/config {o}/file;
    bind {parent} {w} /{name}/config; chroot {g}
U2 directory fake root: overlay {parent} {w} /{name}/config
U2 nothing fake root: !overlay-upper {o}/dir {w}
S1 directory: follow {g} {w}/x /config; follow {relative} {w}/x /config; follow {g}/config {w}/x
P4 bare: read {g}/config; create {g}/{x}; rename {g} {g}{x}; rename {g}/HEAD {g}/H;
    rename {g}/HEAD {w}/x; exchange {g} {o}/dir; exchange {o}/dir {g}; chmod {g};
    open {g}/config WRONLY|APPEND; !open {g}/HEAD WRONLY|TRUNC; !truncate {g}/config;
    !mkdir {g}/hooks; !create {g}/config.worktree; !unlink {g}/config; !unlink {g}/HEAD;
    !rmdir {g}/refs/tags
P4 half: !open {g}/config WRONLY|TRUNC; !truncate {g}/config; !chmod {g}/config; !unlink {g}/config;
    !rename {g}/config {g}/c; !rename {o}/file {g}/config; !link {g}/config {w}/x;
    !exchange {o}/file {g}/config; !create {g}/commondir; !open {g}/config.worktree WRONLY|TRUNC;
    !link {o}/file {g}/commondir; !symlink ../own {g}/commondir; !rename {g}/hooks {g}/h;
    !exchange {g}/hooks {o}/dir; !chmod {g}/hooks; !create {g}/hooks/x;
    !rename {o}/file {g}/hooks/x; !link {o}/file {g}/hooks/x; !symlink ../own {g}/hooks/x;
    !mkdir {g}/hooks/x; !mknod {g}/hooks/x; !open {g}/hooks/post-update WRONLY|TRUNC;
    !chmod {g}/hooks/post-update; !unlink {g}/hooks/post-update; !rmdir {g}/hooks/old;
    !rename {g}/hooks/pre-push.sample {g}/hooks/pre-push; !link {g}/hooks/post-update {w}/x
F1 nothing: create {w}/.git; rename {o}/file {w}/.git
F1 file: open {g} WRONLY|APPEND; open {g} RDWR
N nothing: rename {o}/file {w}/.GIT; rename {o}/file {w}/.git.; rename {o}/file {w}/git~1;
    rename {o}/file {w}/.g\u200cit
"""
SPELLINGS = (
    # any case; NTFS: trailing dots and spaces, streams, short names, backslashes
    ".git", ".GIT", ".Git", ".giT", ".git.", ".git ", ".git . .", ".git...", ".GIT. ", ".git:",
    ".git::$INDEX_ALLOCATION", ".git:stream", ".git:x", ".git .:x", ".git\\", ".git\\config",
    ".git. \\config", "git~1", "GIT~1", "Git~1", "git~1.", "git~1 ", "git~1::$INDEX_ALLOCATION",
    "GIT~1::$DATA", "git~1\\config", "foo\\.git", "foo\\GIT~1", "foo\\GIT~1 ",
    "foo\\bar\\.git. .", "\\.git", "foo\\.git\\config",
    # HFS+: ignorable code points and malformed UTF-8
    ".g\u200cit", ".g\u200cit.", "\u200d.git", ".git\u200e", ".g\u200fi\u202at", ".\u202bgit",
    ".gi\u202et", "\u206a.GIT", ".gi\u206ft", ".git\u206f", "\ufeff.git", ".git\ufeff",
    ".git\udcff", ".GIT\udc80abc", ".g\u200cit\udcff",
    # ext4 and f2fs with case folding: all default-ignorable code points
    ".g\u00adit", ".git\u00ad", ".gi\u034ft", ".git\u061c", "\u180b.git", ".g\u180eit",
    ".g\u200bit", ".git\u2060", ".g\u2064it", ".git\ufe0f", ".g\ufe0fit", ".\ufe00git",
    ".gi\U000e0001t", ".git\U000e0fff",
)  # fmt: skip
"""Names that a host's file system treats as ``.git``."""
ORDINARY = (
    ".gitignore", ".gitattributes", ".gitmodules", ".gitkeep", ".gitconfig", ".github",
    ".gitlab-ci.yml", ".git2", ".git_", ".git-x", ".git~", ".git~1", ".git.x", ".git.bak",
    ".git x", ".gitt", ".gi", "git", "git.", "git~0", "git~2", "git~10", "git~1x", "repo.git",
    "..git", "...git", ".gi t", " .git", ".git\t", "foo\\.gitx", ".g\u0131t",
    "\uff0e\uff47\uff49\uff54", ".\uff27\uff29\uff34",
)  # fmt: skip
"""Names that must stay usable; a guard that refuses them breaks projects."""
FOLDED = (
    ("head", "refs"), ("HEAD", "Refs"), ("Head", "REFS"), ("hEAD", "commonDir"),
    ("HEAD", "re\u200bfs"), ("H\u00adEAD", "refs"), ("HEAD", "refs."), ("HEAD", "refs::$DATA"),
    ("HEAD", "\uff52efs"), ("\uff28EAD", "refs"),
)  # fmt: skip
"""Pairs that form a repository on a host whose file system folds names."""


def _write(path: str, text: str = "", flags: int = os.O_CREAT | os.O_EXCL) -> None:
    fd = os.open(path, flags | os.O_WRONLY | os.O_NONBLOCK, 0o755)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _open(path: str, flags: str) -> None:
    number = sum(getattr(os, f"O_{name}") for name in flags.split("|"))
    os.close(os.open(path, number | os.O_NONBLOCK, 0o644))


def _read(path: str, at: int | None = None) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=at))


def _hold(path: str) -> int:
    with preparing():
        return os.open(path, os.O_PATH | os.O_NOFOLLOW)


def _reach(path: str, rest: str = "") -> str:
    return f"/proc/self/fd/{_hold(path)}{rest}"


def _rename(flags: int, old: str, new: str) -> None:
    with undoing(lambda: rename_path(new, old, flags & RENAME_EXCHANGE), f"{old} is now {new}"):
        rename_path(old, new, flags)


def _create(new: str, make: Callable[[str], object] = _write) -> None:
    with undoing(lambda: os.unlink(new), f"{new} was left"):
        make(new)


def _bind_socket(directory: str, name: str) -> None:
    with preparing():
        os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(name)


def _rmdir(path: str) -> None:
    mode = os.lstat(path).st_mode & PERMISSION_BITS
    with undoing(lambda: os.mkdir(path, mode), f"the empty {path} was removed"):
        os.rmdir(path)  # without a guard most fail with ENOTEMPTY


def _setxattr(path: str, name: str = f"user{AWAY}") -> None:
    with undoing(lambda: os.removexattr(path, name), f"{path} has an attribute {name}"):
        os.setxattr(path, name, b"")


def _listxattr(path: str) -> None:
    if not os.listxattr(path):
        raise os_error(EOPNOTSUPP)  # a mount that serves no attributes may show none


def _read_in(enter: Callable[[str], None], path: str, name: str = ".") -> None:
    enter(path)
    _read(name)


def _write_through(file: str, link: str) -> None:
    os.symlink(file, link)
    _create(file, lambda _: _write(link, flags=os.O_CREAT))


def _use_mount(target: str, use: Callable[[], object]) -> None:
    try:
        use()
    finally:
        syscalls.umount(target, MNT_DETACH)


def _bind(source: str, target: str, rest: str = "") -> None:
    syscalls.mount(source, target, flags=MS_BIND | MS_REC)
    _use_mount(target, lambda: _read(target + rest))


def _overlay(lower: str, target: str, rest: str) -> None:
    # An overlay needs a second layer; one with mounts in it would be locked.
    data = f"lowerdir={lower.replace(':', chr(92) + ':')}:/usr/share,userxattr"
    with preparing():
        syscalls.mount("overlay", target, "overlay", data=data)
    _use_mount(target, lambda: _read(target + rest))


def _overlay_upper(upper: str, target: str) -> None:
    data = f"lowerdir=/usr/share,upperdir={upper}/objects,workdir={upper}/refs,userxattr"
    syscalls.mount("overlay", target, "overlay", data=data)
    _use_mount(target, lambda: os.mkdir(f"{target}/.git"))


def _add(path: str, part: str) -> None:
    """Make a part of a repository at a path: a directory, or a file with its text."""
    kind = part.lower()
    if kind.startswith("re") or kind in ("objects", "hooks"):
        os.mkdir(path)
    else:
        _write(path, {"head": "ref: refs/heads/main\n", "commondir": "../common\n"}.get(kind, ""))


WAYS: dict[str, Callable[[str, str, str], object]] = {
    "make": lambda spare, path, kind: _add(path, kind),
    "creat": lambda spare, path, kind: _write(path, flags=os.O_CREAT),
    "mknod": lambda spare, path, kind: os.mknod(path, stat.S_IFREG | 0o755),
    "dangling": lambda spare, path, kind: os.symlink("refs/heads/x", path),
    "symlink": lambda spare, path, kind: os.symlink(spare, path),
    "link": lambda spare, path, kind: os.link(spare, path),
    "rename": lambda spare, path, kind: os.rename(spare, path),
    "noreplace": lambda spare, path, kind: rename_path(spare, path, RENAME_NOREPLACE),
    "exchange": lambda spare, path, kind: rename_path(spare, path, RENAME_EXCHANGE),
    "exchange-back": lambda spare, path, kind: rename_path(path, spare, RENAME_EXCHANGE),
    "rmdir-rename": lambda spare, path, kind: os.rename(spare, path),
}
"""Ways to bring a part of a repository to a path; the last three replace a harmless directory."""


def _assemble(workdir: str, spare: str, way: str, kind: str, *parts: str) -> None:
    """Make the parts of a repository, the last one by a way; the guard may refuse any."""
    *first, last = parts
    with preparing():
        os.mkdir(f"{workdir}/trap")
    for part in first:
        _add(f"{workdir}/trap/{part}", part)
    with preparing():
        _add(spare, kind)
        if way in list(WAYS)[-3:]:
            os.mkdir(f"{workdir}/trap/{last}")
        if way == "rmdir-rename":
            os.rmdir(f"{workdir}/trap/{last}")
    WAYS[way](spare, f"{workdir}/trap/{last}", kind)


VERBS: dict[str, Callable[..., object]] = {
    "rename": partial(_rename, 0),
    "exchange": partial(_rename, RENAME_EXCHANGE),
    "noreplace": partial(_rename, RENAME_NOREPLACE),
    "whiteout": lambda old, new: rename_path(old, new, RENAME_WHITEOUT),
    "create": _create,
    "open": _open,
    "open-proc": lambda path: _write(_reach(path), flags=os.O_APPEND),
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod": lambda path: os.mknod(path, stat.S_IFREG | 0o644),
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, 3)),
    "symlink": os.symlink,
    "socket": _bind_socket,
    "tmpfile": lambda directory, new: syscalls.linkat_by_proc(
        os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o644), new
    ),
    "link": lambda old, new: _create(new, lambda path: os.link(old, path, follow_symlinks=False)),
    "link-empty-path": lambda old, new: _create(
        new, lambda path: syscalls.linkat_empty_path(_hold(old), path)
    ),
    "link-proc": lambda old, new: _create(
        new, lambda path: syscalls.linkat_by_proc(_hold(old), path)
    ),
    "unlink": os.unlink,
    "rmdir": _rmdir,
    "rmtree": shutil.rmtree,
    "truncate": lambda path: os.truncate(path, 0),
    "chown": lambda path: os.chown(path, os.getuid(), -1, follow_symlinks=False),
    "chown-nothing": lambda path: os.chown(path, -1, -1, follow_symlinks=False),
    "chmod": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)),
    "utimens": lambda path: os.utime(
        path, ns=(os.lstat(path).st_atime_ns, os.lstat(path).st_mtime_ns), follow_symlinks=False
    ),
    "touch": os.utime,
    "setxattr": _setxattr,
    "removexattr": lambda path: os.removexattr(path, f"user{AWAY}"),
    "listxattr": _listxattr,
    "list": os.listdir,
    "stat": os.stat,
    "read": _read,
    "read-at": lambda path, name: _read(name, _hold(path)),
    "read-proc": lambda *path: _read(_reach(*path)),
    "read-reopened": lambda path, name: _read(name, os.open(_reach(path), os.O_DIRECTORY)),
    "readlink": os.readlink,
    "readlink-at": lambda path: os.readlink(b"", dir_fd=_hold(path)),
    "chdir": partial(_read_in, os.chdir),
    "watch": lambda path: _read_in(syscalls.watch, path, f"{path}/config"),  # root may watch
    "bind": _bind,
    "overlay": _overlay,
    "chroot": partial(_read_in, os.chroot, name="/config"),
    "follow": lambda text, link, rest="": _read_in(
        lambda path: os.symlink(text, path), link, link + rest
    ),
    "overlay-upper": _overlay_upper,
    "write-through": _write_through,
    "assemble": _assemble,
}
EARLY: defaultdict[str, frozenset[int]] = defaultdict(frozenset)
"""By verb, errnos of the kernel, which does not ask the guard if the caller is not the owner, may
not write (fs.protected_hardlinks), uses a descriptor of other credentials, or may not mount."""
EARLY |= dict.fromkeys(("link", "link-empty-path", "link-proc"), frozenset({EPERM, ENOENT}))
EARLY |= dict.fromkeys(
    ("chown", "chown-nothing", "chmod", "utimens", "touch", "setxattr", "removexattr", "bind",
     "overlay", "overlay-upper", "chroot"), frozenset({EPERM}),
)  # fmt: skip
READING = frozenset(
    ("list", "stat", "read", "read-at", "read-proc", "read-reopened", "readlink", "readlink-at",
     "listxattr", "chdir", "watch", "bind", "overlay", "chroot", "follow")
)  # fmt: skip
"""Verbs that only read, which --git=readonly allows."""
READING_A_FILE = (("read", "{g}"), ("read-proc", "{g}"), ("listxattr", "{g}"))
LACKING: defaultdict[str, frozenset[int]] = defaultdict(frozenset)
"""By verb, errnos of a mount or a source that has no such call."""
LACKING |= dict.fromkeys(("exchange", "noreplace", "assemble"), frozenset({EINVAL}))
LACKING |= dict.fromkeys(
    ("whiteout", "tmpfile", "setxattr", "removexattr", "listxattr", "overlay-upper"),
    frozenset({EINVAL, EOPNOTSUPP, EROFS}),
)


@dataclass(frozen=True)
class Attack:
    """One attack; a guard refuses it with EACCES."""

    row: str
    """The threat's id."""
    on: str
    """The form of ``{g}``: a ``.git`` that is a "directory", "file", "symlink" or "empty"; "root",
    a directory that holds one; "bare"; "half", with two parts of a repository; or "nothing"."""
    words: tuple[str, ...]
    actors: tuple[str, ...] = ACTORS
    harms: bool = False

    @property
    def name(self) -> str:
        """The verb and its paths, for people."""
        fields = {key: key.upper() for key in ("parent", "name", "relative")}
        git = self.on.upper() if self.on in ("root", "bare", "half") else ".git"
        return ascii(" ".join(self.words).format(g=git, w="DIR", o="OWN", x=AWAY, **fields))[1:-1]

    @property
    def reads(self) -> bool:
        """Whether it only reads."""
        return self.words[0] in READING

    def carry_out(self, guarded: str, work: str) -> None:
        """Carry it out with the new directory ``work``. Raises OSError if it is refused."""
        own, words = f"{work}-own", " ".join(self.words)
        with preparing():
            os.mkdir(work, 0o755)
            if "{o}" in words:
                os.mkdir(own, 0o755)
                os.makedirs(f"{own}/dir/objects")
                os.mkdir(f"{own}/dir/refs")
                _write(f"{own}/file", "gitdir: ../nowhere\n")
        parent, name = os.path.split(guarded)
        fields = {"g": guarded, "w": work, "o": own, "x": AWAY, "parent": parent, "name": name}
        fields["relative"] = os.path.relpath(guarded or "/", work)
        VERBS[self.words[0]](*(word.format_map(fields) for word in self.words[1:]))


def _written() -> Iterator[Attack]:
    for line in TABLE_TEXT.replace(";\n   ", ";").strip().split("\n"):
        head, _, attacks = line.partition(": ")
        row, form, *actors = head.split(" ", 2)
        for attack in attacks.split("; "):
            yield Attack(
                row, form, tuple(attack.lstrip("!").split()),
                tuple(actors[0].split(", ")) if actors else ACTORS, attack.startswith("!"),
            )  # fmt: skip


def _assembling(
    row: str, *parts: str, way: str = "make", kind: str = "", spare: str = "{o}/spare"
) -> Attack:
    return Attack(row, "nothing", ("assemble", "{w}", spare, way, kind or parts[-1], *parts))


def _assembled() -> Iterator[Attack]:
    head, refs = ("objects", "refs", "HEAD"), ("objects", "HEAD", "refs")
    yield from (_assembling("P1", *head, way=way) for way in WAYS)
    yield from (_assembling("P1", *refs, kind="HEAD", way=way) for way in list(WAYS)[:-3])
    for parts in (head, refs):
        yield _assembling("P1", *parts, kind="HEAD", way="rename", spare="{w}/trap/spare")
        yield _assembling("P1", *parts, kind="HEAD", way="rename", spare="{o}/" + parts[-1])
    yield _assembling("P1", *head, way="exchange", spare="{w}/trap/spare")
    # A directory HEAD and a file refs form no repository before that.
    yield _assembling("P1", "HEAD", way="exchange", spare="{w}/trap/refs")
    yield from (_assembling("P1", *refs, way=way) for way in ("make", "rename"))
    yield _assembling("P1", "objects", "refs", "notes", "HEAD")
    for one, other in FOLDED:
        yield _assembling("P1", "objects", other, one)
        yield _assembling("P1", one, other, kind="refs")
    for way in ("make", "creat", "mknod", "link", "rename", "noreplace"):
        yield _assembling("P2", "HEAD", "commondir", way=way)
    yield _assembling("P2", "HEAD", "commondir", way="rename", spare="{w}/trap/spare")
    yield from (_assembling("P2", "commondir", "HEAD"), _assembling("V4", "commondir"))
    for payload in ("config", "config.worktree", "hooks"):
        yield _assembling("V4", "refs", payload, "objects")
        for part in ("HEAD", "refs"):
            yield _assembling("V4", "objects", payload, part)
    for part, payload, way in itertools.product(
        ("HEAD", "refs"), ("config", "config.worktree", "commondir", "hooks"),
        ("make", "rename", "symlink", "link"),
    ):  # fmt: skip
        if (payload, way) != ("hooks", "link"):
            yield _assembling("G4", "objects", part, payload, way=way)


TABLE = (
    *_written(),
    *_assembled(),
    *(Attack("N", "nothing", ("mkdir", f"{{w}}/{name}")) for name in SPELLINGS),
)
