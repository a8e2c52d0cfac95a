"""The descriptor cache on a real directory: bounded, and never the wrong object."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.fs.ninep import NinepDescriptors
from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import Node
from gitguardfs.names.rules import Verdict

FEW = 16
"""Descriptors that are cached."""


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@dataclass
class Directory:
    """A source directory with its nodes."""

    path: Path
    cache: DescriptorCache
    nodes: NodeTable

    def of(self, node: Node) -> int:
        """A descriptor that is asked for in a request of its own."""
        self.cache.request += 1
        return self.cache.of(node)

    def node(self, relative: str) -> Node:
        """The node of a path, made on the way as lookups would."""
        parent = self.nodes.root
        for part in Path(relative).parts:
            known = os.stat(self.path / relative[: relative.index(part) + len(part)],
                            follow_symlinks=False)  # fmt: skip
            parent = self.nodes.get_or_add(
                parent, os.fsencode(part), known, Verdict.ALLOW, "", is_same=lambda *_: False
            )
            parent.lookup_count += 1
        return parent


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Directory]:
    before = open_fds()
    nodes = NodeTable(os.stat(tmp_path))
    nodes.root.fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    cache = DescriptorCache(FEW, nodes.root.fd)
    yield Directory(tmp_path, cache, nodes)
    cache.close_all()
    os.close(nodes.root.fd)
    assert open_fds() == before


def same(fd: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))


def test_the_cache_is_bounded_and_evicted_nodes_come_back(place: Directory) -> None:
    for number in range(5 * FEW):
        (place.path / f"f{number}").touch()
    nodes = [place.node(f"f{number}") for number in range(5 * FEW)]
    before = len(open_fds())
    for _ in range(2):
        for number, node in enumerate(nodes):
            assert same(place.of(node), place.path / f"f{number}")
            assert len(place.cache) <= FEW
            assert len(open_fds()) - before == len(place.cache)
    assert sum(node.fd >= 0 for node in nodes) == FEW


def test_a_descriptor_in_use_outlives_those_that_are_not(place: Directory) -> None:
    (place.path / "kept").touch()
    kept = place.node("kept")
    os.set_inheritable(place.of(kept), True)  # marks this descriptor
    for number in range(3 * FEW):
        (place.path / f"f{number}").touch()
        place.of(place.node(f"f{number}"))
        assert os.get_inheritable(place.of(kept))


def test_a_node_with_another_one_s_number_has_a_descriptor_of_its_own(place: Directory) -> None:
    """A host reuses inode numbers while the kernel still knows a file of the old directory."""
    (place.path / "old").mkdir()
    (place.path / "new").mkdir()
    old, new = place.node("old"), place.node("new")
    assert same(place.cache.of(old), place.path / "old")
    new.id = old.id
    assert same(place.cache.of(new), place.path / "new")
    assert len(place.cache) == 2
    place.cache.close(old)
    assert (old.fd, len(place.cache)) == (-1, 1)
    assert same(new.fd, place.path / "new")
    place.cache.close_all()
    assert new.fd == -1


def test_what_a_request_has_asked_for_stays_until_its_end(place: Directory) -> None:
    for number in range(3 * FEW):
        (place.path / f"f{number}").touch()
    nodes = [place.node(f"f{number}") for number in range(3 * FEW)]
    leased = [place.cache.of(node) for node in nodes]
    for fd, node in zip(leased, nodes, strict=True):
        assert same(fd, place.path / os.fsdecode(node.name))
    place.cache.close_unleased()
    assert [node.fd for node in nodes] == leased
    (place.path / "next").touch()
    place.of(place.node("next"))
    assert len(place.cache) == FEW


def _replaced_by_file(path: Path) -> None:
    (path / "a/f").rename(path / "kept")
    (path / "a/f").write_text("another")


def _replaced_by_symlink(path: Path) -> None:
    (path / "a/f").rename(path / "kept")
    (path / "a/f").symlink_to(path / "kept")


def _directory_swapped_for_symlink(path: Path) -> None:
    (path / "a").rename(path / "other")
    (path / "a").symlink_to("other")


def _directory_swapped_for_another(path: Path) -> None:
    (path / "a").rename(path / "other")
    (path / "a").mkdir()
    os.link(path / "other/f", path / "a/f")


def _directory_swapped_for_file(path: Path) -> None:
    (path / "a").rename(path / "other")
    (path / "a").touch()


def _gone(path: Path) -> None:
    (path / "a/f").unlink()


@pytest.mark.parametrize(
    "change",
    [
        _replaced_by_file, _replaced_by_symlink, _directory_swapped_for_symlink,
        _directory_swapped_for_another, _directory_swapped_for_file, _gone,
    ],
)  # fmt: skip
def test_what_is_not_the_same_object_is_stale(place: Directory, change: object) -> None:
    (place.path / "a").mkdir()
    (place.path / "a/f").touch()
    node = place.node("a/f")
    assert callable(change)
    change(place.path)
    before = open_fds()
    with pytest.raises(OSError) as error:
        place.cache.of(node)
    assert error.value.errno in (errno.ESTALE, errno.ENOTDIR)
    assert open_fds() == before


def test_a_ring_of_places_is_stale(place: Directory) -> None:
    (place.path / "a/b").mkdir(parents=True)
    inner = place.node("a/b")
    assert inner.parent is not None
    inner.parent.parent = inner
    with pytest.raises(OSError) as error:
        place.cache.of(inner)
    assert error.value.errno == errno.ESTALE


def test_a_pinned_descriptor_is_never_evicted(place: Directory) -> None:
    (place.path / "gone").touch()
    node = place.node("gone")
    fd = place.cache.of(node)
    (place.path / "gone").unlink()
    place.cache.pin(node)
    for number in range(3 * FEW):
        (place.path / f"f{number}").touch()
        place.of(place.node(f"f{number}"))
    assert place.of(node) == fd and os.fstat(fd).st_nlink == 0
    place.cache.close(node)
    assert node.fd == -1
    with pytest.raises(OSError):
        os.fstat(fd)


def test_where_descriptors_hold_paths_what_is_removed_is_known_by_its_open_file(
    place: Directory,
) -> None:
    (place.path / "f").touch()
    node = place.node("f")
    cache = NinepDescriptors(FEW, place.nodes.root.fd)
    with open(place.path / "f") as opened:
        node.open_fds = (opened.fileno(),)
        assert cache.of(node) == node.fd
        assert node.fd != opened.fileno()
        node.parent = None
        assert cache.of(node) == opened.fileno()
    node.open_fds = ()
    with pytest.raises(OSError) as error:
        cache.of(node)
    assert error.value.errno == errno.ESTALE
    cache.close_all()


LOW_LIMIT = """
import errno, os, resource, sys
from gitguardfs.fs.descriptors import DescriptorCache
from gitguardfs.names.rules import Verdict
from gitguardfs.fs.node_table import NodeTable

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
root = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
nodes = NodeTable(os.fstat(root))
nodes.root.fd = root
cache = DescriptorCache(10_000, root)
for number in range(300):
    name = b"f%d" % number
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=root)) \\
        if number < 10 else cache.with_room(lambda: os.mknod(name, 0o600, dir_fd=root))
    st = os.stat(name, dir_fd=root)
    node = nodes.get_or_add(
        nodes.root, name, st, Verdict.ALLOW, "", is_same=lambda *_: False
    )
    cache.request += 1
    assert os.path.samestat(os.fstat(cache.of(node)), st)
assert len(cache) < 64

held = []
try:
    while True:
        held.append(cache.open(os.O_RDONLY | os.O_CLOEXEC, b"f0", root))
except OSError as error:
    assert error.errno == errno.ENFILE, error
assert len(held) > 64 - 10, "cached descriptors make room for open files"
assert len(cache) <= 1, "only the last one is leased"
"""


def test_out_of_descriptors_the_cache_makes_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOW_LIMIT, str(tmp_path)], capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
