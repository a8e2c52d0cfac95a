"""Attacks by kept descriptors, by a second mount of the source, and by guessed node ids.

And two that are not about git: set-id bits and floods.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.fs.revalidation import VERDICT_TTL
from tests.support.mounting import area, bindfs, gitguardfs
from tests.support.people import as_user
from tests.support.raw_calls import name_to_handle, open_by_handle, open_guessed_node, read_at
from tests.support.repos import HOST_GID, HOST_UID, MAP, SECRET, as_host, check_git_works, metadata
from tests.support.siege import Siege, act

# ------------------------------------------------------------ A directory becomes ``.git``


def _read_from(directory: int) -> bytes:
    os.fchdir(directory)
    return Path("config").read_bytes()


def _relative_reads(directory: int) -> dict[str, Callable[[], object]]:
    """Return attempts to open files by a descriptor that was opened before, by their titles."""
    return {
        "open a file below it": lambda: read_at(directory, "config"),
        "reopen and list it": lambda: os.listdir(
            os.open(f"/proc/self/fd/{directory}", os.O_RDONLY | os.O_DIRECTORY)
        ),
        "reopen it by dot": lambda: os.listdir(
            os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        ),
        "read by a path through proc": lambda: Path(
            f"/proc/self/fd/{directory}/config"
        ).read_bytes(),
        "read from it as working directory": lambda: _read_from(directory),
    }


def _relative_writes(directory: int) -> dict[str, Callable[[], object]]:
    return {
        "open a file in it for writing": lambda: os.open("config", os.O_WRONLY, dir_fd=directory),
        "create in it": lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=directory),
        "make a directory in it": lambda: os.mkdir("new.d", dir_fd=directory),
        "make a symlink in it": lambda: os.symlink("target", "new.l", dir_fd=directory),
        "link within it": lambda: os.link(
            "config", "new.h", src_dir_fd=directory, dst_dir_fd=directory
        ),
        "change the mode of a file": lambda: os.chmod("config", 0o777, dir_fd=directory),
        "set the times of a file": lambda: os.utime("config", (1, 1), dir_fd=directory),
        "rename within it": lambda: os.rename(
            "config", "new.r", src_dir_fd=directory, dst_dir_fd=directory
        ),
        "remove a file": lambda: os.unlink("new.h", dir_fd=directory),
    }


def _attempt(directory: int) -> dict[str, int | None]:
    """Try every step; the errno of each, None where it went through."""
    outcomes: dict[str, int | None] = {}
    for name, step in {**_relative_reads(directory), **_relative_writes(directory)}.items():
        try:
            step()
        except OSError as error:
            outcomes[name] = error.errno
        else:
            outcomes[name] = None
    return outcomes


def _becomes_git(project: Path) -> None:
    os.rename(project / "src/d", project / "src/.git")


def _becomes_bare(project: Path) -> None:
    (project / "src/d/refs").mkdir()
    (project / "src/d/HEAD").write_text("ref: refs/heads/main\n")


GUARDINGS = {"rename to .git": (_becomes_git, ".git"), "HEAD and refs": (_becomes_bare, "d")}


def _prepare_directory(project: Path) -> None:
    with as_host():
        (project / "src/d/sub/deeper").mkdir(parents=True)
        for place in ("d", "d/sub", "d/sub/deeper"):
            (project / "src" / place / "config").write_text(f"{SECRET}\n")


@pytest.mark.parametrize("held", ["d", "d/sub", "d/sub/deeper"])
def test_descriptors_from_before_are_a_real_way(field: Siege, held: str) -> None:
    project = field.project()
    _prepare_directory(project)
    view = field.through_guard(project, "--git=off", "--allow-bare")
    directory = os.open(view / "src" / held, os.O_PATH | os.O_DIRECTORY)
    try:
        _becomes_git(project)
        assert ".git" in os.listdir(view / "src")
        outcomes = as_user(_attempt, directory)
    finally:
        os.close(directory)
    assert {name: number for name, number in outcomes.items() if number is not None} == {}


@pytest.mark.parametrize("actor", ["agent", "fake root", "root"])
@pytest.mark.parametrize("held", ["d", "d/sub", "d/sub/deeper"])
@pytest.mark.parametrize(
    ("guarding", "shown_by", "options"),
    [
        ("rename to .git", "lookup", ()),
        ("rename to .git", "listing", ()),
        ("rename to .git", "lookup", ("--cache-timeout=0",)),
        ("rename to .git", "listing", ("--cache-timeout=0",)),
        # The name stays the same: while it is cached, a lookup does not come to the daemon.
        ("HEAD and refs", "listing", ()),
        ("HEAD and refs", "lookup", ("--cache-timeout=0",)),
        ("HEAD and refs", "listing", ("--cache-timeout=0",)),
        ("HEAD and refs", "time alone", ()),
        ("HEAD and refs", "time alone", ("--cache-timeout=60",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value) or "cached",
)
def test_no_new_open_by_a_kept_descriptor(
    field: Siege, guarding: str, held: str, shown_by: str, options: tuple[str, ...], actor: str
) -> None:
    project = field.project()
    _prepare_directory(project)
    view = field.through_guard(project, *options)
    directory = os.open(view / "src" / held, os.O_PATH | os.O_DIRECTORY)
    try:
        as_user(os.listdir, view / "src" / held)
        becomes, name = GUARDINGS[guarding]
        with as_host():
            becomes(project)
        if shown_by == "time alone":
            time.sleep(VERDICT_TTL)
        elif shown_by == "lookup":
            assert stat.S_IMODE(os.lstat(view / "src" / name).st_mode) == 0
        else:
            with os.scandir(view / "src") as entries:
                found = {entry.name for entry in entries}
            assert (name in found) == (name != ".git"), "a guarded .git is looked at, not listed"
        before = metadata(project)
        outcomes = act(actor, _attempt, directory)
    finally:
        os.close(directory)
    allowed = {errno.EACCES, errno.ESTALE}
    if actor != "root":
        allowed.add(errno.EPERM)  # the kernel, of chmod and utimens by another than the owner
    assert {step: number for step, number in outcomes.items() if number not in allowed} == {}
    assert metadata(project) == before


def test_an_open_file_keeps_working_but_no_new_one(field: Siege) -> None:
    """As documented, a descriptor that was open for writing before can still write."""
    project = field.project()
    _prepare_directory(project)
    view = field.through_guard(project)
    descriptor = os.open(view / "src/d/config", os.O_WRONLY)
    try:
        _becomes_git(project)
        assert ".git" not in os.listdir(view / "src"), "it is looked at all the same"
        assert os.pwrite(descriptor, b"still here\n", 0) == 11
        assert (project / "src/.git/config").read_bytes().startswith(b"still here\n")
        for actor in ("agent", "root"):
            with pytest.raises(OSError) as refused:
                act(actor, os.open, f"/proc/self/fd/{descriptor}", os.O_WRONLY)
            assert refused.value.errno in {errno.EACCES, errno.ESTALE}
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- Two mounts of one source


def _replace_by_symlink(first: Path, second: Path, crowd: int) -> bytes:
    """Keep a directory open in one mount, replace it by a symlink to .git in the other."""
    (first / "d").mkdir()
    held = os.open(first / "d", os.O_PATH | os.O_DIRECTORY)
    for number in range(crowd):
        os.close(os.open(first / f"crowd{number}", os.O_CREAT | os.O_WRONLY))
    (second / "d").rename(second / "d2")
    (second / "d").symlink_to(".git")
    return read_at(held, "config")


def _replace_file_by_symlink(first: Path, second: Path, crowd: int) -> bytes:
    (first / "f").write_text("ordinary\n")
    held = os.open(first / "f", os.O_PATH)
    for number in range(crowd):
        os.close(os.open(first / f"crowd{number}", os.O_CREAT | os.O_WRONLY))
    (second / "f").rename(second / "f2")
    (second / "f").symlink_to(".git/config")
    return read_at(os.open("/proc/self/fd", os.O_PATH), str(held))


SWAPS = (_replace_by_symlink, _replace_file_by_symlink)


@pytest.mark.parametrize("swap", SWAPS)
def test_a_second_mount_is_a_real_way(
    field: Siege, swap: Callable[[Path, Path, int], bytes]
) -> None:
    project = field.project()
    with bindfs(field.hidden / "all", field.place / "second", f"--map={MAP}") as second:
        first = field.through_bindfs(project)
        assert SECRET.encode() in as_user(swap, first, second / project.name, 0)


@pytest.mark.parametrize("actor", ["agent", "root"])
@pytest.mark.parametrize("crowd", [0, 600], ids=["", "evicted"])
@pytest.mark.parametrize("swap", SWAPS)
def test_two_guards_do_not_help_each_other(
    field: Siege, swap: Callable[[Path, Path, int], bytes], crowd: int, actor: str
) -> None:
    project = field.project()
    before = metadata(project)
    second = field.through_guard(project, "--cache-timeout=0")
    with gitguardfs(
        field.hidden / "all", field.place / "few", "--map", MAP, limit_nofile=256 if crowd else None
    ) as few:
        try:
            read = act(actor, swap, few.path / project.name, second, crowd)
        except OSError as error:
            # ESTALE: the object held is not the one that its name now leads to.
            assert error.errno in {errno.EACCES, errno.ENOENT, errno.ESTALE}
        else:
            assert read == b"ordinary\n"
    assert metadata(project) == before
    check_git_works(project)


# -------------------------------------------------------------------- Guessed node ids


def _open_own_handle(view: Path) -> bytes:
    kind, data = name_to_handle(view / "README.md")
    anchor = os.open(view, os.O_RDONLY | os.O_DIRECTORY)
    return os.read(open_by_handle(anchor, kind, data), 100)


def _guess(view: Path, nodes: list[int]) -> dict[int, int | None]:
    outcomes: dict[int, int | None] = {}
    for node in nodes:
        try:
            os.close(open_guessed_node(view, node))
        except OSError as error:
            outcomes[node] = error.errno
        else:
            outcomes[node] = None
    return outcomes


def test_guessed_node_ids_reach_nothing(field: Siege) -> None:
    """Node ids are the source's inode numbers, so that those below .git can be guessed."""
    project = field.project()
    view = field.through_guard(project)
    assert act("root", _open_own_handle, view), "file handles do not work here at all"
    os.lstat(view / ".git")
    nodes = {os.lstat(path).st_ino for path in [project / ".git", *(project / ".git").rglob("*")]}
    nodes |= {os.lstat(view / ".git").st_ino, os.lstat(view / "split/.git").st_ino}
    nodes |= set(range(1 << 62, (1 << 62) + 50))
    refused = {errno.EACCES, errno.ESTALE, errno.EOPNOTSUPP}
    outcomes = act("root", _guess, view, sorted(nodes))
    opened = {node: number for node, number in outcomes.items() if number not in refused}
    assert opened == {}
    outcomes = as_user(_guess, view, sorted(nodes)[:20])
    assert set(outcomes.values()) == {errno.EPERM}


# ----------------------------------------------------------------------- Set-id bits


def _set_bits(view: Path) -> None:
    (view / "chmod").write_text("")
    (view / "chmod").chmod(0o6755)
    os.umask(0)
    os.close(os.open(view / "open", os.O_CREAT | os.O_WRONLY, 0o6755))
    os.mknod(view / "mknod", stat.S_IFREG | 0o6755)
    held = os.open(view / "fchmod", os.O_CREAT | os.O_WRONLY, 0o755)
    os.fchmod(held, 0o6755)


def _bits(project: Path) -> dict[str, int]:
    names = ("chmod", "open", "mknod", "fchmod")
    return {name: stat.S_IMODE(os.lstat(project / name).st_mode) for name in names}


def test_set_id_bits_work_without_the_guard(field: Siege) -> None:
    project = field.project()
    as_user(_set_bits, field.through_bindfs(project))
    bits = _bits(project)
    assert (bits["chmod"], bits["fchmod"]) == (0o6755, 0o6755)


@pytest.mark.parametrize("actor", ["agent", "fake root", "root"])
def test_set_id_bits_are_stripped(field: Siege, actor: str) -> None:
    project = field.project()
    act(actor, _set_bits, field.through_guard(project))
    assert set(_bits(project).values()) == {0o755}


def test_set_id_bits_stay_with_allow_suid(field: Siege) -> None:
    project = field.project()
    as_user(_set_bits, field.through_guard(project, "--allow-suid"))
    assert _bits(project) == dict.fromkeys(_bits(project), 0o6755)


def _set_bits_of_directory(view: Path) -> int:
    (view / "shared").mkdir()
    (view / "shared").chmod(0o2775)
    return stat.S_IMODE((view / "shared").stat().st_mode)


def test_directories_keep_set_gid(field: Siege) -> None:
    project = field.project()
    assert as_user(_set_bits_of_directory, field.through_guard(project)) == 0o2775


# ------------------------------------------------------------------------------ Floods

FLOOD_NAMES = 20_000
FLOOD_DEPTH = 300
MEMORY_LIMIT = 400 << 20
"""The limit of the daemon's memory with 20,000 names; a leak per request would exceed it."""


def _flood(view: Path) -> None:
    (view / "many").mkdir()
    os.chdir(view / "many")
    for number in range(FLOOD_NAMES):
        os.close(os.open(f"{number}", os.O_CREAT | os.O_WRONLY, 0o644))
    assert len(os.listdir(".")) == FLOOD_NAMES
    with os.scandir(".") as entries:
        assert sum(entry.stat().st_size for entry in entries) == 0


def _dig(view: Path) -> None:
    os.chdir(view)
    for _ in range(FLOOD_DEPTH):
        os.mkdir("down")
        os.chdir("down")
    Path("bottom").write_text("bottom\n")
    assert Path("bottom").read_text() == "bottom\n"
    with pytest.raises(PermissionError):
        os.mkdir(".git")


def _long_names(view: Path) -> list[int | None]:
    outcomes: list[int | None] = []
    for name in ("x" * 255, "x" * 256, ".git" + " " * 251, ".git" + "\u200c" * 83, "\xff" * 127):
        try:
            (view / name).mkdir()
        except OSError as error:
            outcomes.append(error.errno)
        else:
            outcomes.append(None)
    return outcomes


@pytest.mark.every_processor
def test_floods_leave_the_daemon_up(field: Siege) -> None:
    project = field.project()
    os.mkfifo(project / "src/HEAD")
    (project / "src/refs").mkdir()
    for name in ("HEAD", "refs"):
        os.chown(project / "src" / name, HOST_UID, HOST_GID)
    with area() as place, gitguardfs(project, place / "view", "--map", MAP, limit_nofile=1024) as m:
        with pytest.raises(PermissionError):
            as_user((m.path / "src/main.py").read_bytes)
        as_user(_flood, m.path)
        as_user(_dig, m.path)
        assert as_user(_long_names, m.path) == [
            None,
            errno.ENAMETOOLONG,
            errno.EACCES,
            errno.EACCES,
            None,
        ]
        assert m.alive()
        assert as_user((m.path / "README.md").read_bytes)
        pages = int(Path(f"/proc/{m.process.pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") < MEMORY_LIMIT
        assert m.descriptors() < 1024
