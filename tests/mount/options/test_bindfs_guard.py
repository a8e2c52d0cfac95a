"""No option of bindfs opens .git, least of all symlinks that are resolved."""

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from tests.support.likeness import (
    OTHER,
    Note,
    failure,
    guarded,
    listed,
    read,
    seen,
    touch,
    write,
)  # fmt: skip
from tests.support.mounting import area
from tests.support.people import AGENT, as_user

SECRET = b"url = https://user:SECRET@host/repository\n"
DELETIONS = ("deny", "symlink-only", "symlink-first", "target-first")

LINKS = {
    "to-git": ".git",
    "to-config": ".git/config",
    "to-hooks": ".git/hooks",
    "to-hook": "./.git//hooks/pre-commit",
    "capital": ".GIT/config",
    "absolute": "{source}/.git/config",
    "absolute-dots": "{source}/src/../.git/config",
    "chain": "to-config",
    "chain2": "src/up-config",
    "through-link": "to-git/config",
    "src/up": "../.git",
    "src/up-config": "../.git/config",
    "src/down-and-up": "deep/../../.git/config",
    "src/deep/by-above": "../../to-above/.git/config",
    "to-above": "src/..",
    "nested": "module/.git/config",
    "gitfile": "work/.git",
    "bare": "store/repository/config",
    "bare-head": "store/repository/HEAD",
    "in-bare": "store/repository/hooks",
    "out-and-in": "../source/.git/config",
    "by-proc": "/proc/self/root{source}/.git/config",
    "denied": "secrets.env",
    "to-broken-git": ".git/nothing",
}
"""Ways to what is guarded, made by the host."""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        _repository(path / "source")
        yield path


def _repository(source: Path) -> None:
    for directory in ("src/deep", ".git/hooks", ".git/refs", "module/.git", "work",
                      "store/repository/refs", "store/repository/hooks"):  # fmt: skip
        (source / directory).mkdir(parents=True)
    files = {
        ".git/config": SECRET, ".git/hooks/pre-commit": SECRET, ".git/HEAD": b"ref: SECRET\n",
        "module/.git/config": SECRET, "work/.git": b"gitdir: /SECRET\n",
        "store/repository/HEAD": b"ref: SECRET\n", "store/repository/config": SECRET,
        "secrets.env": SECRET, "src/main.py": b"print()\n", "plain": b"plain\n",
    }  # fmt: skip
    for name, data in files.items():
        (source / name).write_bytes(data)
    for name, target in LINKS.items():
        (source / name).symlink_to(target.format(source=source))
    (source / "good").symlink_to("src/main.py")
    (source / "good-dir").symlink_to("src")
    for path in [source, *source.rglob("*")]:
        os.chown(path, AGENT, AGENT, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o777)


def _git(source: Path) -> dict[str, object]:
    """Everything in the repositories, with modes and owners."""
    roots = (".git", "module/.git", "work/.git", "store/repository")
    inside = [source / root for root in roots]
    inside += [path for root in inside for path in root.rglob("*")]
    return {str(path): (seen(path), path.read_bytes() if path.is_file() else None)
            for path in inside} | {"env": read(source / "secrets.env")}  # fmt: skip


def _attack(path: Path) -> dict[str, str]:
    """Return the result of each way to use ``path``; called as a user."""
    note = Note()
    calls = [
        ("read", read, path), ("list", listed, path), ("write", write, path),
        ("append", _append, path), ("cut", os.truncate, path, 0), ("chmod", os.chmod, path, 0o666),
        ("times", os.utime, path, (0, 0)), ("config", read, path / "config"),
        ("make below", touch, path / "new"), ("link", os.link, path, path.parent / "gained"),
        ("xattr", os.setxattr, path, "user.x", b""), ("new", touch, path),
        ("directory", os.mkdir, path), ("chdir", os.chdir, path),
        ("replace", os.rename, path.parent / "plain", path),
        ("scan below", listed, path / "hooks"), ("readlink", os.readlink, path),
    ]  # fmt: skip
    note.by(calls)
    return {label: str(result) for label, result in note.results.items()}


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


WORKED = ("None",)


@pytest.mark.parametrize("who", [AGENT, 0])
@pytest.mark.parametrize("deletion", DELETIONS)
def test_resolved_links_lead_nowhere_guarded(here: Path, who: int, deletion: str) -> None:
    before = _git(here / "source")
    options = ("--resolve-symlinks", f"--resolved-symlink-deletion={deletion}", "--xattr=rw",
               "--deny=*.env", "-p", "a+rwx")  # fmt: skip
    with guarded(here, *options) as view:
        assert as_user(read, view / "good") == b"print()\n", "allowed links are resolved"
        assert as_user(listed, view / "good-dir/deep") == ["by-above"]
        for name in LINKS:
            if name in ("to-above", "to-broken-git"):
                continue
            given = as_user(_attack, view / name, uid=who)
            assert not {way: got for way, got in given.items() if got in WORKED}, (name, given)
            assert "SECRET" not in str(given), name
            looks = as_user(seen, view / name, uid=who)
            assert looks.split(" ")[1:3] in (["0000", "0:0"], ["0000", "0:0"]), (name, looks)
        assert _git(here / "source") == before
        for directory in ("to-above", "to-broken-git", "src/up"):
            for below in (".git/config", "config", "../.git/config", "../config"):
                got = failure(read, view / directory / below, uid=who)
                assert got in ("EACCES", "ENOENT", "ENOTDIR"), (directory, below, got)
        _remove_all(view, who)
        assert _git(here / "source") == before


def _remove_all(view: Path, who: int) -> None:
    for name in LINKS:
        for way in (os.unlink, os.rmdir):
            failure(way, view / name, uid=who)


@pytest.mark.parametrize("deletion", DELETIONS)
def test_renaming_over_a_link_to_the_config_is_refused(here: Path, deletion: str) -> None:
    options = ("--resolve-symlinks", f"--resolved-symlink-deletion={deletion}")
    before = _git(here / "source")
    with guarded(here, *options) as view:
        for name in ("to-config", "absolute", "chain2", "src/up-config", "nested", "bare"):
            for who in (AGENT, 0):
                assert failure(os.rename, view / "plain", view / name, uid=who) == "EACCES"
                assert failure(os.link, view / "plain", view / name, uid=who) in (
                    "EACCES", "EEXIST")  # fmt: skip
        assert read(view / "plain") == b"plain\n"
    assert _git(here / "source") == before


def test_a_link_that_is_moved_does_not_come_to_lead_into_git(here: Path) -> None:
    """A relative target means something else elsewhere; it is judged where the link is."""
    source = here / "source"
    (source / "src/deep/config-of").symlink_to("../.git/config")
    (source / "src/sibling").symlink_to("git-like/config")
    with guarded(here, "--resolve-symlinks") as view:
        for old, new in (("src/deep/config-of", "src/config-of"), ("src/sibling", "sibling")):
            failure(os.rename, view / old, view / new, uid=AGENT)
            assert failure(read, view / new, uid=AGENT) in ("EACCES", "ENOENT")
        failure(os.rename, view / "src/deep", view / "deep", uid=AGENT)
        for name in ("deep/by-above", "deep/config-of"):
            assert failure(read, view / name, uid=AGENT) in ("EACCES", "ENOENT")


@pytest.mark.every_processor
def test_links_that_the_host_retargets_meanwhile(here: Path) -> None:
    """At any moment a reader gets the plain file or nothing."""
    source = here / "source"
    (source / "flip").symlink_to("plain")
    (source / "flip-dir").symlink_to("src")
    (source / "src/config").write_bytes(b"plain\n")
    stop = threading.Event()

    def retarget() -> None:
        targets = ("plain", ".git/config", f"{source}/.git/config", "src/config", "to-config")
        directories = ("src", ".git", f"{source}/.git", "module/.git", "to-git")
        for number in count():
            if stop.is_set():
                return
            for name, all_of in (("flip", targets), ("flip-dir", directories)):
                (source / ".new-link").symlink_to(all_of[number % len(all_of)])
                (source / ".new-link").rename(source / name)

    before = _git(source)
    host = threading.Thread(target=retarget)
    host.start()
    try:
        with guarded(here, "--resolve-symlinks", "--cache-timeout=0") as view:
            found = as_user(_read_for_a_second, view)
    finally:
        stop.set()
        host.join()
    assert found["plain"] > 10, found
    assert found["secret"] == 0, found
    assert _git(source) == before


def _read_for_a_second(view: Path) -> dict[str, int]:
    found = {"plain": 0, "secret": 0, "refused": 0}
    end = monotonic() + 1.0
    paths = [view / "flip", view / "flip-dir/config"]
    while monotonic() < end:
        for path in paths:
            try:
                data = read(path)
            except OSError:
                found["refused"] += 1
                continue
            found["secret" if b"SECRET" in data else "plain"] += 1
            try:
                with path.open("ab") as file:
                    file.write(b"")
                os.chmod(path, 0o777)
            except OSError:
                found["refused"] += 1
    return found


OPENING = (
    ("-p", "0777"), ("-p", "a+rwx", "-u", "1000", "-g", "1000"), ("-m", "1000:1001"),
    ("-M", "1000"), ("-M", "1000", "-p", "0777"), ("--map=501/0:1000/1001",), ("-u", "0"),
    ("--uid-offset=10",), ("--block-devices-as-files",), ("--realistic-permissions",),
    ("--hide-hard-links", "--ctime-from-mtime"), ("--xattr-rw",), ("-o", "dev"),
    ("--create-for-user=1000", "--create-with-perms=0777"), ("--chmod-filter=0777",),
    ("--chown-ignore", "--chgrp-ignore", "--chmod-ignore", "--chmod-allow-x"),
    ("--read-rate=100M", "--write-rate=100M"), ("--multithreaded",), ("--forward-odirect=512",),
    ("--resolve-symlinks", "-m", "1000", "-p", "0777"),
)  # fmt: skip


@pytest.mark.parametrize("options", OPENING, ids=" ".join)
def test_no_option_makes_git_usable(here: Path, options: tuple[str, ...]) -> None:
    """It shows its type and name, mode 000, owner 0:0, and every access is refused."""
    before = _git(here / "source")
    with guarded(here, *options) as view:
        for who in (AGENT, OTHER, 0):
            for name, kind in ((".git", "dir"), ("work/.git", "file"), ("module/.git", "dir")):
                looks = failure(seen, view / name, uid=who)
                if who == OTHER and "-M" in options:
                    continue
                assert looks.startswith(f"{kind} 0000 0:0"), looks
                given = as_user(_attack, view / name, uid=who)
                if who == 0:
                    assert given.pop("chdir"), "the kernel lets root in, which gains nothing"
                assert not {way: got for way, got in given.items() if got in WORKED}, given
                assert "SECRET" not in str(given)
            for name in (".git/config", ".git/hooks/pre-commit", "store/repository/config"):
                assert failure(read, view / name, uid=who) == "EACCES"
            for way in (os.mkdir, touch):
                assert failure(way, view / "src/.git", uid=who) == "EACCES"
            assert failure(os.rename, view / "plain", view / "src/.git", uid=who) == "EACCES"
            assert failure(os.rename, view / ".git", view / "git", uid=who) == "EACCES"
    assert _git(here / "source") == before


def test_block_devices_within_git_stay_closed(here: Path) -> None:
    """One that is named .git itself is shown as a file, too."""
    os.mknod(here / "source/src/.git2", stat.S_IFBLK | 0o666, os.makedev(7, 7))
    os.rename(here / "source/src/.git2", here / "source/src/.git")
    with guarded(here, "--block-devices-as-files", "-p", "0777", "-u", "1000") as view:
        for who in (AGENT, 0):
            assert as_user(seen, view / "src/.git", uid=who).split(" ")[1:3] == ["0000", "0:0"]
            assert failure(read, view / "src/.git", uid=who) == "EACCES"
            assert failure(os.unlink, view / "src/.git", uid=who) == "EACCES"


def test_git_itself_being_a_symlink(here: Path) -> None:
    """The symlink is denied; its target is guarded by its own name or by its contents."""
    source = here / "source"
    subprocess.run(["mv", source / ".git", source / "src/real"], check=True)
    (source / ".git").symlink_to("src/real")
    with guarded(here, "--resolve-symlinks", "-p", "0777") as view:
        for who in (AGENT, 0):
            assert as_user(seen, view / ".git", uid=who).split(" ")[1:3] == ["0000", "0:0"]
            for name in (".git", ".git/config", "to-config", "to-git/config", "src/real/config"):
                assert failure(read, view / name, uid=who) in ("EACCES", "ELOOP"), name
            assert failure(os.unlink, view / ".git", uid=who) == "EACCES"
    assert read(source / "src/real/config") == SECRET
