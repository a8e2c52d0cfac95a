"""Rows in shared memory: what another process reads of them at any moment."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.linux import shared_rows
from gitguardfs.linux.shared_rows import Row, SharedRows, rows_in

VALUES = st.none() | st.integers(0, 2**64 - 1) | st.binary(max_size=30) | st.booleans()
ROWS = st.lists(st.lists(VALUES, max_size=5).map(tuple), max_size=10)


@pytest.fixture
def rows() -> Iterator[SharedRows]:
    made = SharedRows(lambda: None)
    yield made
    made.close()


@given(ROWS, ROWS, ROWS)
def test_the_last_replacement_holds_with_what_came_after_it(
    before: list[Row], all_of_them: list[Row], after: list[Row]
) -> None:
    rows = SharedRows(lambda: None)
    for row in before:
        rows.add(row)
    assert list(rows_in(rows.fd)) == before
    for _ in range(2):  # in each of the two areas
        rows.replace(all_of_them)
    for row in after:
        rows.add(row)
    assert list(rows_in(rows.fd)) == all_of_them + after
    rows.close()


def test_a_replacement_that_was_broken_off_has_not_been(rows: SharedRows) -> None:
    def broken() -> Iterator[Row]:
        yield (3,)
        raise OSError

    rows.add((1,))
    with pytest.raises(OSError):
        rows.replace(broken())
    rows.add((2,))
    assert list(rows_in(rows.fd)) == [(1,), (2,)]


def test_it_says_when_rows_are_many_and_gives_the_memory_back() -> None:
    said: list[None] = []
    rows = SharedRows(lambda: said.append(None))
    row = (b"x" * 1000,)
    while not said:
        rows.add(row)
    rows.add(row)
    grown = os.fstat(rows.fd).st_blocks
    assert grown * 512 >= shared_rows.SHORT
    rows.replace([row])
    assert os.fstat(rows.fd).st_blocks < grown / 10
    for _ in range(100):
        rows.add(row)
    assert len(said) == 1
    rows.close()


def test_without_room_there_are_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows, "AREA", 1 << 12)
    monkeypatch.setattr(shared_rows, "SHORT", 1 << 10)
    rows = SharedRows(lambda: None)
    for _ in range(100):
        rows.add((b"x" * 100,))
    rows.add((1,))
    with pytest.raises(ValueError, match="no room"):
        list(rows_in(rows.fd))
    rows.replace([(1,)])
    assert list(rows_in(rows.fd)) == [(1,)]
    rows.replace([(b"x" * 100,)] * 100)
    with pytest.raises(ValueError, match="no room"):
        list(rows_in(rows.fd))
    rows.close()
