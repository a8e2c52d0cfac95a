"""Random changes of the host's, told as a watcher tells them: the view ends as the source is."""

import os
import random
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.live.test_events import tree
from tests.support.live import AGAIN, WHOLE, Beats, Host, Watch, kept_files, watched
from tests.support.mounting import Mounted, empty_view, until

STEPS = 250
NAMES = "abcdef"
QUIET = ("quiet", "quiet directory")
"""Names that nobody changes: no event is about them."""
Line = dict[str, object]


class Model:
    """A source that changes at random, and the lines that wait to be told."""

    def __init__(self, source: Path, rng: random.Random) -> None:
        self.source = source
        self.rng = rng
        self.lines: list[Line] = []

    def _directories(self) -> list[str]:
        found = [""]
        for top in found:  # grows meanwhile
            for entry in os.scandir(self.source / top):
                if entry.is_dir(follow_symlinks=False) and entry.name in NAMES:
                    found.append(f"{top}{entry.name}/")
        return found

    def name(self) -> str:
        """Return a name that may be there or not, in a directory that is."""
        return self.rng.choice(self._directories()) + self.rng.choice(NAMES)

    def change(self) -> None:
        """Make a change and note its line."""
        name = self.name()
        path = self.source / name
        kind = stat.S_IFMT(path.lstat().st_mode) if os.path.lexists(path) else 0
        if not kind:
            self._make(name, path)
        elif self.rng.random() < 0.35:
            self._move(name, path, kind)
        elif kind == stat.S_IFDIR:
            with suppress(OSError):  # it is not empty
                if self.rng.random() < 0.5:
                    path.rmdir()
                    return self.lines.append({"gone": name})
            path.chmod(self.rng.choice((0o700, 0o755)))
            self.lines.append({"attributes": name})
        elif kind == stat.S_IFLNK or self.rng.random() < 0.3:
            path.unlink()
            self.lines.append({"gone": name})
        else:
            self._write(name, path)

    def _make(self, name: str, path: Path) -> None:
        call = self.rng.randrange(5)
        if call == 0 and name.count("/") < 3:
            path.mkdir()
        elif call == 1:
            path.symlink_to(self.rng.choice(NAMES))
        else:
            path.write_bytes(self.rng.randbytes(self.rng.choice((0, 10, 5000, 70_000))))
        self.lines.append({"made": name})

    def _move(self, name: str, path: Path, kind: int) -> None:
        new = self.name()
        if new.startswith(f"{name}/") or new == name:
            return
        with suppress(OSError):  # it is a directory, or there is a full one
            path.rename(self.source / new)
            self.lines.append({"moved": [name, new]})

    def _write(self, name: str, path: Path) -> None:
        call = self.rng.randrange(4)
        if call == 0:
            path.chmod(self.rng.choice((0o600, 0o644)))
            return self.lines.append({"attributes": name})
        if call == 1:
            os.truncate(path, self.rng.randrange(2 * path.stat().st_size + 1))
        elif call == 2:
            with path.open("r+b") as file:
                file.write(self.rng.randbytes(3))
        else:
            with path.open("ab") as file:
                file.write(self.rng.randbytes(20))
        self.lines.append({"changed": name})


def look(model: Model, view: Path) -> None:
    """Look at something in the view, as programs of the guest do all the time."""
    path = view / model.name()
    with suppress(OSError):
        path.lstat()
        if path.is_symlink():
            path.readlink()
        elif path.is_dir():
            os.listdir(path)
        else:
            path.read_bytes()


def all_names(top: Path) -> dict[str, object]:
    """Return ``tree``, and that absent names are absent."""
    found = tree(top)
    for directory in [
        top,
        *(path for path in top.rglob("*") if stat.S_ISDIR(path.lstat().st_mode)),
    ]:
        for name in NAMES:
            path = directory / name
            if not os.path.lexists(path):
                found[str(path.relative_to(top))] = None
            elif path.is_symlink():
                found[str(path.relative_to(top))] = os.readlink(path)
    return found


@pytest.fixture
def mounted() -> Iterator[Mounted]:
    with empty_view("--session=kernel", expected=("WARNING .*has ended",)) as mounted:
        (mounted.source / QUIET[0]).write_text("quiet")
        (mounted.source / QUIET[1]).mkdir()
        for name in NAMES[::2]:
            (mounted.source / name).mkdir()
        yield mounted


@pytest.fixture
def watch(mounted: Mounted) -> Iterator[Watch]:
    watch = Watch()
    watch.add(mounted.path)
    yield watch
    watch.close()


@pytest.mark.parametrize("way", ["at once", "late", "lost"])
@pytest.mark.parametrize("seed", range(2))
def test_the_view_ends_as_the_source_is(
    mounted: Mounted, watch: Watch, way: str, seed: int
) -> None:
    """Lines come at once or late, or get lost with their connection."""
    rng = random.Random(f"{seed} {way}")
    model = Model(mounted.source, rng)
    before = set(os.listdir(mounted.source))
    events: list[str] = []
    assert all_names(mounted.path) == all_names(mounted.source)
    host = Host(mounted.process.pid)
    host.tell(WHOLE)
    beats = Beats(host)
    for step in range(STEPS):
        model.change()
        look(model, mounted.path)
        if way == "lost" and rng.random() < 0.03:
            model.lines.clear()
            beats.stop()
            host.close()
            host = Host(mounted.process.pid)
            host.tell(AGAIN, WHOLE)
            beats = Beats(host)
        if way == "at once" or rng.random() < 0.1 or step == STEPS - 1:
            host.tell(*model.lines)
            model.lines.clear()
        events += watch.read()
    (mounted.source / "end").mkdir()
    host.tell({"made": "end"})
    events += watch.until("CREATE/ end")
    becomes_right(mounted)
    if way != "lost":
        tell_all(watch, before, events, mounted)
    beats.stop()
    host.close()
    assert not [event for event in events if "quiet" in event]


@pytest.mark.parametrize("seed", range(2))
def test_with_gitguard_watch_the_view_ends_as_the_source_is(
    mounted: Mounted, watch: Watch, seed: int
) -> None:
    rng = random.Random(seed)
    model = Model(mounted.source, rng)
    before = set(os.listdir(mounted.source))
    events: list[str] = []
    with watched(mounted.source, mounted.path):
        until(lambda: kept_files(mounted.path), "the kernel caches for long")
        assert all_names(mounted.path) == all_names(mounted.source)
        watch.read()
        for _ in range(STEPS):
            model.change()
            look(model, mounted.path)
            if rng.random() < 0.05:
                time.sleep(0.05)  # that lines come meanwhile
            events += watch.read()
        (mounted.source / "end").mkdir()
        events += watch.until("CREATE/ end")
        becomes_right(mounted)
        tell_all(watch, before, events, mounted)
    assert not [event for event in events if "quiet" in event]


def becomes_right(mounted: Mounted) -> None:
    def is_right() -> bool:
        with suppress(OSError):  # the last lines are still being repeated
            return all_names(mounted.path) == all_names(mounted.source)
        return False

    with suppress(AssertionError):
        until(is_right, "", 10)
    assert all_names(mounted.path) == all_names(mounted.source)


def tell_all(watch: Watch, before: set[str], events: list[str], mounted: Mounted) -> None:
    """Wait until events have told which names are there."""
    there = set(os.listdir(mounted.source))

    def is_told() -> bool:
        events.extend(watch.read())
        return there_after(before, events) == there

    with suppress(AssertionError):
        until(is_told, "", 5)
    wrong = there_after(before, events) ^ there
    about = {name: [event for event in events if name in event.split()] for name in wrong}
    assert not wrong, about


def there_after(names: set[str], events: list[str]) -> set[str]:
    """Return the names that are there after some events, for a program that knows no more."""
    there = set(names)
    for event in events:
        kind, _, name = event.partition(" ")
        if kind.startswith(("CREATE", "MOVED_TO")):
            there.add(name)
        elif kind.startswith(("DELETE", "MOVED")) and name:
            old, _, new = name.partition(" > ")
            there.discard(old)
            there |= {new} - {""}
    return there
