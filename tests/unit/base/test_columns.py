"""Tables keep to a width, and what is in them stays whole."""

import io

from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base import columns
from gitguardfs.base.findings import Result, Severity, Status, as_text

CELLS = st.lists(st.tuples(*[st.text("ab/", min_size=1, max_size=40)] * 4), max_size=5)


@given(CELLS, st.integers(44, 120))
def test_a_table_keeps_to_its_width_and_leaves_no_cell_out(
    rows: list[tuple[str, ...]], width: int
) -> None:
    lines = columns.table(rows, width)
    assert all(len(line) <= width for line in lines)
    assert [cell for line in lines for cell in line.split()] == [c for row in rows for c in row]


def test_cells_stand_below_one_another_where_there_is_room() -> None:
    assert columns.table([("a", "bb"), ("ccc", "d")], 80) == ["a    bb", "ccc  d"]
    assert columns.table([("a", "bb" * 9)], 12) == ["a", f"    {'bb' * 9}"]
    assert columns.table([], 80) == []


def test_what_is_piped_keeps_to_100_columns() -> None:
    assert columns.width_of(io.StringIO()) == 100
    words = "word " * 40
    text = as_text([Result("a.b", Status.FINDING, words, words, "x " * 47, Severity.HIGH)])
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(text.split()).count("word") == 80 and "[high]" in text


def test_a_command_to_paste_is_one_line() -> None:
    command = "gitguard " + "x" * 90 + " --user agent"
    text = as_text([Result("a.b", Status.FINDING, "title", "detail", command)])
    assert f"  -> {command}" in text.splitlines()
