"""readdir: completeness, offsets, types and inode numbers; statvfs."""

import os
import stat

from tests.conformance.tools import (
    MAKERS,
    Entry,
    User,
    call,
    calls,
    descriptor,
    equal,
    file,
    folder,
    getdents,
    make,
    run,
)

MANY = 2_000


def _read_all(fd: int, size: int = 32768) -> list[Entry]:
    found: list[Entry] = []
    while entries := getdents(fd, size):
        found += entries
    return found


def _names(entries: list[Entry]) -> list[bytes]:
    return sorted(entry.name for entry in entries if entry.name not in (b".", b".."))


def _fill(d: str, count: int) -> list[bytes]:
    names = [b"entry-%05d" % number for number in range(count)]
    with descriptor(d, os.O_DIRECTORY) as parent:
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
    return names


def check_many_entries(d: str) -> None:
    names = _fill(d, MANY)
    equal("listdir", sorted(os.listdir(os.fsencode(d))), names)
    with descriptor(d) as fd:
        for size in (32768, 1024, 200_000):
            os.lseek(fd, 0, os.SEEK_SET)
            equal(f"getdents in {size} bytes", _names(_read_all(fd, size)), names)
            equal("stays at the end", getdents(fd), [])
    with os.scandir(d) as entries:
        kinds = {(entry.is_file(follow_symlinks=False), entry.is_dir()) for entry in entries}
    equal("kinds", kinds, {(True, False)})
    for name in os.listdir(d)[::50]:
        calls(call("ok", os.lstat, f"{d}/{name}"))


def check_seeking(d: str) -> None:
    """Every offset that was returned leads back to what followed it."""
    _fill(d, 300)
    with descriptor(d) as fd:
        entries = _read_all(fd)
        equal("offsets differ", len({entry.offset for entry in entries}), len(entries))
        for at in (0, 1, 2, 7, 150, 250, len(entries) - 2, len(entries) - 1):
            os.lseek(fd, entries[at].offset, os.SEEK_SET)
            equal(f"after entry {at}", _read_all(fd), entries[at + 1 :])
        os.lseek(fd, 0, os.SEEK_SET)
        first = getdents(fd, 300)
        equal("in small steps", first + _read_all(fd, 300), entries)


def check_rewinding_shows_changes(d: str) -> None:
    file(f"{d}/old")
    with descriptor(d) as fd:
        equal("first", _names(_read_all(fd)), [b"old"])
        file(f"{d}/new")
        os.unlink(f"{d}/old")
        os.lseek(fd, 0, os.SEEK_SET)
        equal("rewound", _names(_read_all(fd)), [b"new"])
    equal("opened again", os.listdir(d), ["new"])


def check_removal_while_reading(d: str) -> None:
    """rm -r: what stays is listed exactly once, whatever is removed meanwhile."""
    for step in (1, 2, 7):
        names = _fill(d, 500)
        seen: list[bytes] = []
        with descriptor(d) as fd:
            while entries := getdents(fd, 1024):
                for number, name in enumerate(_names(entries)):
                    seen.append(name)
                    if number % step == 0:
                        os.unlink(os.fsencode(d) + b"/" + name)
        equal(f"every {step}. removed", sorted(seen), names)
        for left in os.listdir(d):
            os.unlink(f"{d}/{left}")


def check_creation_while_reading(d: str) -> None:
    names = _fill(d, 500)
    seen: list[bytes] = []
    made = 0
    with descriptor(d) as fd:
        while entries := getdents(fd, 2048):
            seen += _names(entries)
            file(f"{d}/made-{made}")
            made += 1
    old = [name for name in seen if name.startswith(b"entry")]
    equal("those from before", sorted(old), names)
    equal("no name twice", len(set(seen)), len(seen))


def check_dots(d: str) -> None:
    parent = folder(f"{d}/parent")
    for kind in (0, 3):
        for number in range(kind):
            file(f"{parent}/{number}")
        with descriptor(parent) as fd:
            found = {entry.name: entry for entry in _read_all(fd)}
        equal("dots", {b".", b".."} <= set(found), True)
        equal("types of the dots", (found[b"."].kind, found[b".."].kind), (4, 4))
        equal("number of .", found[b"."].inode, os.stat(parent).st_ino)
        equal("number of ..", found[b".."].inode, os.stat(d).st_ino)
    equal(". and .. resolve", os.stat(f"{parent}/..").st_ino, os.stat(d).st_ino)
    equal(". and .. resolve", os.stat(f"{parent}/.").st_ino, os.stat(parent).st_ino)


def check_types_and_numbers(d: str) -> None:
    for kind in MAKERS:
        make(kind, f"{d}/{kind}")
    os.link(f"{d}/regular", f"{d}/hard-link")
    with descriptor(d) as fd:
        for entry in _read_all(fd):
            if entry.name in (b".", b".."):
                continue
            found = os.lstat(os.fsencode(d) + b"/" + entry.name)
            equal(f"d_ino of {entry.name!r}", entry.inode, found.st_ino)
            equal(f"d_type of {entry.name!r}", entry.kind, stat.S_IFMT(found.st_mode) >> 12)


def check_numbers_are_unique_and_stay(d: str) -> None:
    _fill(d, 200)
    os.makedirs(f"{d}/a/b")
    before = {name: os.lstat(f"{d}/{name}").st_ino for name in os.listdir(d)}
    equal("unique", len(set(before.values())), len(before))
    devices = {os.lstat(f"{d}/{name}").st_dev for name in before} | {os.stat(d).st_dev}
    equal("one device", len(devices), 1)
    os.rename(f"{d}/a", f"{d}/aa")
    equal("after a rename", os.lstat(f"{d}/aa").st_ino, before["a"])
    after = {name: os.lstat(f"{d}/{name}").st_ino for name in os.listdir(d)}
    equal("stay", {**before, "aa": before["a"]}, {**after, "a": after["aa"]})


def check_attributes_from_a_listing(d: str) -> None:
    """Attributes that a listing brought into the kernel's cache are those of stat."""
    for number in range(50):
        file(f"{d}/{number}", 0o600 + number, User(1000 + number, 2000 + number), b"x" * number)
    os.listdir(d)
    with os.scandir(d) as entries:
        for entry in entries:
            number = int(entry.name)
            found = entry.stat(follow_symlinks=False)
            equal("size", found.st_size, number)
            equal("mode", stat.S_IMODE(found.st_mode), 0o600 + number)
            equal("owner", (found.st_uid, found.st_gid), (1000 + number, 2000 + number))
            equal("inode", entry.inode(), found.st_ino)


def check_statvfs(d: str) -> None:
    for found in (os.statvfs(d), run(User(1000, 1000), os.statvfs, d), _fstatvfs(d)):
        equal("block size", found.f_bsize > 0 and found.f_frsize > 0, True)
        equal("blocks", found.f_blocks >= found.f_bfree >= found.f_bavail >= 0, True)
        equal("space", found.f_blocks > 0, True)
        equal("files", found.f_files >= found.f_ffree >= 0, True)
        equal("names", found.f_namemax, 255)


def _fstatvfs(d: str) -> os.statvfs_result:
    with descriptor(d) as fd:
        return os.fstatvfs(fd)
