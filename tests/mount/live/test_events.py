"""A change that the host tells of: a program in the guest gets the events that it stands for."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.support.live import Host, Watch
from tests.support.mounting import Mounted, empty_view, until

NUMBERS = count()
LARGE = 65 * 1024
"""Bytes of a file that the kernel reads by itself, also one that is open to be read only."""
Line = dict[str, object]


@dataclass
class Place:
    """A directory of its own, and a watch on it in the guest."""

    name: str
    source: Path
    view: Path
    host: Host
    watch: Watch

    def tell(self, *lines: Line) -> None:
        """Tell of changes; paths are relative to this directory."""
        self.host.tell(*({key: self._path(path) for key, path in line.items()} for line in lines))

    def _path(self, path: object) -> object:
        if isinstance(path, list):
            return [self._path(each) for each in path]
        return f"{self.name}/{path}"

    def events(self) -> list[str]:
        """Return the events so far, when all that was told has been served."""
        end = f"end{next(NUMBERS)}"
        (self.source / end).mkdir()
        self.tell({"made": end})
        return [event for event in self.watch.until(f"CREATE/ {end}") if end not in event]


@pytest.fixture(scope="module", params=["kernel", "pyfuse3"])
def told(request: pytest.FixtureRequest) -> Iterator[tuple[Mounted, Host]]:
    with empty_view("--session", request.param) as mounted:
        host = Host(mounted.process.pid)
        yield mounted, host
        host.close()


@pytest.fixture
def place(told: tuple[Mounted, Host]) -> Iterator[Place]:
    mounted, host = told
    name = f"d{next(NUMBERS)}"
    source, view = mounted.source / name, mounted.path / name
    (source / "sub").mkdir(parents=True)
    (source / "file").write_text("one\n")
    (source / "other").write_text("other\n")
    watch = Watch()
    watch.add(view)
    yield Place(name, source, view, host, watch)
    watch.close()


def append(path: Path, text: str = "two\n") -> None:
    with path.open("a") as file:
        file.write(text)


def replace_by_directory(directory: Path) -> None:
    (directory / "file").unlink()
    (directory / "file").mkdir()


Change = Callable[[Path], object]
HOST: dict[str, tuple[Change, Line, list[str]]] = {
    "content": (
        lambda d: append(d / "file"), {"changed": "file"}, ["MODIFY file", "CLOSE_WRITE file"],
    ),
    "new file": (
        lambda d: (d / "new").write_text("new"), {"made": "new"}, ["CREATE new", "CLOSE_WRITE new"],
    ),
    "new directory": (lambda d: (d / "new").mkdir(), {"made": "new"}, ["CREATE/ new"]),
    "new symlink": (lambda d: (d / "new").symlink_to("file"), {"made": "new"}, ["CREATE new"]),
    "new FIFO": (lambda d: os.mkfifo(d / "new"), {"made": "new"}, ["CREATE new"]),
    "removal": (lambda d: (d / "file").unlink(), {"gone": "file"}, ["DELETE file"]),
    "removed directory": (lambda d: (d / "sub").rmdir(), {"gone": "sub"}, ["DELETE/ sub"]),
    "other type": (
        replace_by_directory, {"made": "file"}, ["DELETE file", "CREATE/ file"],
    ),
    "rename": (
        lambda d: (d / "file").rename(d / "new"), {"moved": ["file", "new"]}, ["MOVED file > new"],
    ),
    "rename over another": (
        lambda d: (d / "file").rename(d / "other"), {"moved": ["file", "other"]},
        ["MOVED file > other"],
    ),
    "renamed directory": (
        lambda d: (d / "sub").rename(d / "new"), {"moved": ["sub", "new"]}, ["MOVED/ sub > new"],
    ),
    "chmod": (lambda d: (d / "file").chmod(0o600), {"attributes": "file"}, ["ATTRIB file"]),
    "chmod of a directory": (
        lambda d: (d / "sub").chmod(0o700), {"attributes": "sub"}, ["ATTRIB/ sub"],
    ),
}  # fmt: skip
"""Changes of known names: the call, its line, and its events."""


def tree(path: Path) -> dict[str, object]:
    """Return names with kinds, modes and contents."""
    return {
        str(each.relative_to(path)): (
            each.lstat().st_mode,
            each.read_bytes() if stat.S_ISREG(each.lstat().st_mode) else b"",
        )
        for each in path.rglob("*")
    }


@pytest.mark.parametrize("change", HOST)
def test_a_change_fires_its_events_once(place: Place, change: str) -> None:
    make, line, events = HOST[change]
    assert sorted(tree(place.view)) == ["file", "other", "sub"], "the kernel knows the names"
    make(place.source)
    place.tell(line, line)
    assert place.events() == events
    assert tree(place.view) == tree(place.source)
    place.tell(line, line)
    assert place.events() == []


@pytest.mark.parametrize("kind", ["unknown", "seen gone"])
def test_a_removal_fires_though_the_kernel_does_not_know_the_name(
    place: Place, kind: str, request: pytest.FixtureRequest
) -> None:
    (place.source / "file").unlink()
    if kind == "seen gone":
        assert not (place.view / "file").exists()
        if request.node.callspec.params["told"] == "pyfuse3":
            time.sleep(1.1)  # a name expires by itself there
    place.tell({"gone": "file"})
    assert place.events() == ["DELETE file"]


def test_a_new_file_fires_though_the_kernel_knows_the_name(place: Place) -> None:
    """A program has looked for it between its creation and the line."""
    (place.source / "new").write_text("new")
    assert (place.view / "new").read_text() == "new"
    place.tell({"made": "new"})
    assert place.events() == ["CREATE new", "CLOSE_WRITE new"]


def test_an_editor_s_save_by_rename(place: Place) -> None:
    """Over a file that is open in the guest, and watched itself."""
    with (place.view / "file").open() as file:
        place.watch.add(place.view / "file", "itself")
        (place.source / ".file.swp").write_text("saved\n")
        (place.source / ".file.swp").rename(place.source / "file")
        place.tell({"moved": [".file.swp", "file"]})
        assert place.events() == [
            "CREATE .file.swp", "CLOSE_WRITE .file.swp", "MOVED .file.swp > file", "ATTRIB itself",
        ]  # fmt: skip
        assert (place.view / "file").read_text() == "saved\n"
        assert file.read() == "one\n"
    until(lambda: "DELETE_SELF itself" in place.watch.read(), "its last descriptor is closed")


def guest_appends(directory: Path) -> None:
    with (directory / "file").open("a") as file:
        file.write("two\n")
        file.flush()
        file.write("three\n")


OWN: dict[str, tuple[Change, list[Line]]] = {
    "create": (lambda d: (d / "new").write_text("new"), [{"made": "new"}, {"changed": "new"}]),
    "write": (guest_appends, [{"changed": "file"}]),
    "truncate": (lambda d: os.truncate(d / "file", 1), [{"changed": "file"}]),
    "rename": (lambda d: (d / "file").rename(d / "new"), [{"moved": ["file", "new"]}]),
    "replace": (lambda d: (d / "file").rename(d / "other"), [{"moved": ["file", "other"]}]),
    "unlink": (lambda d: (d / "file").unlink(), [{"gone": "file"}]),
    "mkdir": (lambda d: (d / "new").mkdir(), [{"made": "new"}]),
    "rmdir": (lambda d: (d / "sub").rmdir(), [{"gone": "sub"}]),
    "chmod": (lambda d: (d / "file").chmod(0o600), [{"attributes": "file"}]),
    "symlink": (lambda d: (d / "new").symlink_to("file"), [{"made": "new"}]),
    "link": (
        lambda d: (d / "new").hardlink_to(d / "file"), [{"made": "new"}, {"attributes": "file"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", OWN)
def test_the_guest_s_own_change_fires_once(place: Place, change: str) -> None:
    make, lines = OWN[change]
    make(place.view)
    assert place.watch.read(), "the kernel's own events"
    place.tell(*lines)
    assert place.events() == []
    assert tree(place.view) == tree(place.source)


def test_a_host_s_change_after_the_guest_s_own_fires(place: Place) -> None:
    append(place.view / "file")
    place.tell({"changed": "file"})
    assert place.events() == ["MODIFY file", "CLOSE_WRITE file"], "those of the guest"
    append(place.source / "file")
    place.tell({"changed": "file"})
    assert place.events() == ["MODIFY file", "CLOSE_WRITE file"]
    (place.view / "file").unlink()
    (place.source / "file").write_text("host's")
    place.tell({"made": "file"})
    assert place.events() == ["DELETE file", "CREATE file", "CLOSE_WRITE file"]


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_content_is_fresh_through_descriptors_from_before(
    place: Place, size: int, mode: str
) -> None:
    (place.source / "file").write_bytes(b"a" * size)
    with (place.view / "file").open(mode, buffering=0) as file:
        assert file.read() == b"a" * size
        for content in (b"b" * size, b"c" * (size + 1), b"d" * 3):  # same size, longer, shorter
            (place.source / "file").write_bytes(content)
            place.tell({"changed": "file"})
            place.events()
            assert os.pread(file.fileno(), 2 * LARGE, 0) == content
            assert os.fstat(file.fileno()).st_size == len(content)
            assert (place.view / "file").read_bytes() == content
