"""Lines from the host on their way to the guards."""

import json
from collections.abc import Callable

import pytest

from gitguardfs.guest import host_lines
from gitguardfs.live.lines import LONGEST

NOWHERE = "/nowhere/mounted"


def reader(*parts: bytes) -> Callable[[], bytes]:
    left = list(parts)
    return lambda: left.pop(0) if left else b""


def test_lines_before_the_first_one_are_dropped() -> None:
    taken: list[bytes] = []
    begin = b'{"gitguard-changes": 1}'
    stream = b'tail of a line"}\n{"gone": "a"}\n' + begin + b'\n{"gone": "b"}\n{"gone"'
    cut = [stream[at : at + 7] for at in range(0, len(stream), 7)]
    host_lines.read_lines(reader(*cut), taken.append)
    assert taken == [begin, b'{"gone": "b"}']


def test_a_line_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        host_lines.read_lines(reader(*[b"a" * LONGEST] * 9), lambda _: None)


@pytest.mark.parametrize("version", ["2", "0", '"1"', "null", '"' + "x" * 500 + '"'])
def test_another_version_is_named(version: str) -> None:
    bridge = host_lines.Bridge((NOWHERE,))
    with pytest.raises(ValueError, match=r"version .{1,20}, .* version 1$"):
        bridge.take(f'{{"gitguard-changes": {version}}}'.encode())


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"5", b"\xff", b"{", b"{}", b'{"made": "a"}', b'{"in": 5, "made": "a"}',
     b'{"in": "a", "made": "' + b"a" * LONGEST + b'"}', b"[" * 60_000],
)  # fmt: skip
def test_what_is_no_line_is_refused(line: bytes) -> None:
    bridge = host_lines.Bridge((NOWHERE,))
    bridge.take(b'{"gitguard-changes": 1}')
    with pytest.raises(ValueError, match=r"."):
        bridge.take(line)


REPLACED = {"whole": False, "why": "the directory, or one above it, is another one now"}


@pytest.mark.parametrize("watched", [5, {"a": "b"}, {"a": 1, "b": None}, None])
def test_a_beat_is_taken_whatever_it_counts(watched: object) -> None:
    host_lines.Bridge((NOWHERE,)).take(json.dumps({"beat": 1, "watched": watched}).encode())


@pytest.mark.parametrize(
    ("line", "inside"),
    [
        ({"made": "app/src/a"}, {"made": "a"}),
        ({"gone": "app/src/a/b"}, {"gone": "a/b"}),
        ({"brief": "app/src/a"}, {"brief": "a"}),
        ({"changed": "app/srcs"}, None),
        ({"attributes": "app/src"}, {"attributes": ""}),
        ({"listing": "app/src"}, {"listing": ""}),
        ({"made": "app/src"}, REPLACED),
        ({"gone": "app"}, REPLACED),
        ({"moved": ["app", "other"]}, REPLACED),
        ({"moved": ["other", "app/src"]}, REPLACED),
        ({"moved": ["app/src/a", "app/src/b"]}, {"moved": ["a", "b"]}),
        ({"moved": ["app/src/a", "app/b"]}, {"gone": "a"}),
        ({"moved": ["a", "app/src/b"]}, {"made": "b"}),
        ({"moved": ["a", "b"]}, None),
        ({"again": ""}, {"again": ""}),
        ({"again": "app"}, {"again": ""}),
        ({"again": "app/src"}, {"again": ""}),
        ({"again": "app/src/a"}, {"again": "a"}),
        ({"again": "app/other"}, None),
        ({"whole": False, "why": "a limit"}, {"whole": False, "why": "a limit"}),
        ({"moved": 5}, None),
        ({"made": ["a"]}, None),
        ({}, None),
    ],
)
def test_a_view_of_a_directory_gets_the_lines_about_it(
    line: dict[str, object], inside: dict[str, object] | None
) -> None:
    assert host_lines._inside(line, "app/src") == inside
    assert host_lines._inside(line, "") == line
