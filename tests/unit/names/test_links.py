"""Which texts of symlinks are contained: a table, properties, and a model that resolves paths."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitguardfs.names import links
from tests.unit.names.test_dotgit import GUARDED, ORDINARY

CONTAINED = [
    # the text, and the least depth below the root at which it is contained
    (b"a", 0), (b"a/b", 0), (b"a//b/", 0), (b"./a", 0), (b"a/.", 0), (b"...", 0), (b"..a", 0),
    (b".", 1), (b"./", 1), (b"", 1), (b"./.", 1),
    (b"../a", 1), (b"./../a", 1), (b".././/a/", 1), (b"..//a", 1),
    (b"..", 2), (b"../", 2), (b".././.", 2), (b"../../a", 2), (b"../..", 3),
    (b"a\xff/\n", 0), (b" ..", 0), (b".gitignore", 0), (b"a/.github/b", 0),
]  # fmt: skip

NEVER = [
    b"/", b"/a", b"//a", b"/..", b"a/..", b"a/../b", b"../a/..",
    b"a/./../../b", b".git", b"a/.git",
    b"../.git", b".git/hooks", b"a/.GIT/config", b"git~1", b"./.git", b".git/", b"a\\.git",
    links.NEUTRAL, links.NEUTRAL + b"a",
]  # fmt: skip

DEPTHS = st.integers(0, 6)
PARTS = st.sampled_from([b"", b".", b"..", b"a", b"b", b".git", b"GIT~1"])
TEXTS = st.one_of(
    st.lists(PARTS, max_size=8).map(b"/".join),
    st.tuples(
        st.integers(0, 5).map(lambda up: b"../" * up),
        st.lists(st.sampled_from([b"a", b"b", b".", b""]), max_size=3).map(b"/".join),
    ).map(b"".join),
    st.binary(max_size=12),
)


def is_contained(text: bytes, depth: int) -> bool:
    """Return whether ``text`` is contained, in a directory ``depth`` levels below the root."""
    steps = links.steps_of(text)
    if steps is None or steps.up > depth:
        return False
    return steps.up < depth or bool(steps.down)


@pytest.mark.parametrize(("text", "least"), CONTAINED)
def test_contained_from_a_depth_on(text: bytes, least: int) -> None:
    assert [is_contained(text, depth) for depth in range(5)] == [
        depth >= least for depth in range(5)
    ]


@pytest.mark.parametrize("text", NEVER)
def test_contained_nowhere(text: bytes) -> None:
    assert links.steps_of(text) is None
    assert not any(is_contained(text, depth) for depth in range(9))


@given(TEXTS, DEPTHS)
def test_what_is_contained_is_so_further_down(text: bytes, depth: int) -> None:
    if is_contained(text, depth):
        assert is_contained(text, depth + 1)


@given(st.binary())
@example(links.NEUTRAL)
@example(links.NEUTRAL * 2)
@example(links.NEUTRAL[:-1])
def test_a_stored_text_is_shown_as_it_was_given(text: bytes) -> None:
    assert links.shown(links.neutral(text)) == text
    assert links.is_neutral(links.neutral(text))


def test_the_docs_name_how_a_text_is_stored() -> None:
    assert links.neutral(b"/usr/bin/python3") == b"/.gitguardfs-guest//usr/bin/python3"
    assert links.neutral(b"../x") == b"/.gitguardfs-guest/.../x"


@given(TEXTS)
@example(b"..")
@example(b".../..../.a/a./a..b")
@example(b"../..\n/..")
def test_so_is_one_with_dots(text: bytes) -> None:
    assert links.shown(links.neutral(text)) == text


@given(TEXTS)
@example(b"../../etc/passwd")
@example(b"/../etc/passwd")
@example(b"..")
def test_a_program_that_resolves_texts_gets_nowhere_either(text: bytes) -> None:
    """``Path.resolve`` of Python, and ``path.resolve`` of Node, go back by ``..`` unseen."""
    normal = os.path.normpath(links.neutral(text))
    assert (normal + b"/").startswith(links.NEUTRAL)


@given(st.binary(), DEPTHS)
def test_what_is_neutral_is_contained_nowhere(text: bytes, depth: int) -> None:
    stored = links.neutral(text)
    assert links.steps_of(stored) is None
    assert not is_contained(stored, depth)


@given(st.binary())
def test_a_contained_text_is_shown_as_it_is_stored(text: bytes) -> None:
    if links.steps_of(text) is not None:
        assert not links.is_neutral(text) and links.shown(text) == text


@pytest.mark.parametrize("name", [name for name in GUARDED if b"/" not in name])
@pytest.mark.parametrize("form", [b"%s", b"%s/x", b"a/%s", b"../%s", b"./a/%s/.", b"../../%s/b/c"])
def test_no_spelling_of_git_is_contained(name: bytes, form: bytes) -> None:
    assert not is_contained(form % name, 9)


@pytest.mark.parametrize("name", ORDINARY)
def test_other_names_are(name: bytes) -> None:
    if name in (b"", b".", b".."):
        return
    assert is_contained(name, 0) and is_contained(b"../a/" + name, 1)


# A model of path resolution, which knows nothing of the rule

Place = tuple[bytes, ...]
"""Names from the root down; the root is ()."""


def resolved(links_at: dict[Place, bytes], start: Place, text: bytes) -> list[Place] | None:
    """Return all places on the way, as a kernel goes; None if that leaves the root."""
    place = start
    passed = [place]
    rest = text.split(b"/")[::-1]
    if text.startswith(b"/"):
        return None
    for _ in range(200):
        if not rest:
            return passed
        part = rest.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not place:
                return None
            place = place[:-1]
        elif (*place, part) in links_at:
            target = links_at[*place, part]
            if target.startswith(b"/"):
                return None
            rest += target.split(b"/")[::-1]
            continue
        else:
            place = (*place, part)
        passed.append(place)
    return [(b"loop",)]


@given(TEXTS, DEPTHS)
def test_alone_it_ends_below_the_root(text: bytes, depth: int) -> None:
    start = (b"d",) * depth
    way = resolved({}, start, text)
    if is_contained(text, depth):
        assert way is not None and way[-1] != ()
        assert not any(b".git" in place for place in way)


PLACES = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4).map(tuple)


@given(st.lists(st.tuples(PLACES, TEXTS), max_size=8))
def test_chains_end_below_the_root(made: list[tuple[Place, bytes]]) -> None:
    """Each symlink is contained from its own directory; none lies below another."""
    links_at: dict[Place, bytes] = {}
    for place, text in made:
        is_below = any(place[: len(one)] == one or one[: len(place)] == place for one in links_at)
        if not is_below and is_contained(text, len(place) - 1):
            links_at[place] = text
    for place in links_at:
        way = resolved(links_at, place[:-1], place[-1])
        assert way is not None and way[-1] != ()
        assert not any(b".git" in step for step in way)
