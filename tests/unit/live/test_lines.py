"""Lines from the host: what is none is refused by ValueError alone, and paths stay inside."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.live import lines
from gitguardfs.live.lines import Line, parse

KEYS = ["gitguard-changes", "beat", "whole", "why", "watched", "in", "shares", "moved", "made",
        "gone", "brief", "changed", "attributes", "again", "listing"]  # fmt: skip
names = st.sampled_from(["a", "b", "..", ".", "", "\0", "\udcff", "\ud800", "é", "a" * 256])
paths = st.lists(names, max_size=4).map("/".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | paths,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(paths, each, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3)


def as_line(found: object) -> bytes:
    return json.dumps(found).encode()


@given(st.binary() | objects.map(as_line) | values.map(as_line))
def test_a_line_is_taken_or_refused(text: bytes) -> None:
    try:
        line = parse(text)
    except ValueError:
        return
    assert line.kind in KEYS
    for path in (line.path, line.new_path):
        assert len(b"/".join(path)) <= lines.LONGEST_PATH
        for name in path:
            assert name not in (b"", b".", b"..") and not set(name) & set(b"/\0")
            assert len(name) <= lines.LONGEST_NAME
    assert bool(line.path) or line.kind not in (lines.MADE, lines.GONE, lines.MOVED)
    assert line.why.isprintable()


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4))
def test_names_are_bytes(parts: list[bytes]) -> None:
    path = tuple(part.translate(None, b"/\0") + b"a" for part in parts)
    text = as_line({"made": os.fsdecode(b"/".join(path))})
    assert parse(text) == Line(lines.MADE, path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"gitguard-changes": 1, "shares": ["a"]}', Line("gitguard-changes")),
        ('{"beat": 3, "watched": {"a": 1, "b": 2, "c": "x"}}', Line("beat")),
        ('{"in": "a", "again": ""}', Line("again")),
        ('{"moved": ["a/b", "c"]}', Line("moved", (b"a", b"b"), (b"c",))),
        ('{"whole": true}', Line("whole", is_true=True)),
        ('{"whole": 1, "why": "a\\nb\\u001b"}', Line("whole", why="a?b?")),
    ],
)
def test_lines(text: str, line: Line) -> None:
    assert parse(text.encode()) == line
