"""The share that answers errors does so, and nothing else: what is seen over it can be believed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.errorfs import Fault, Share, errorfs
from tests.support.mounting import area, until


@pytest.fixture
def share() -> Iterator[Share]:
    with area() as path, errorfs(path / "host", path / "share", path / "control") as made:
        (made.host / "d").mkdir()
        (made.host / "d/f").write_text("text")
        yield made


def test_what_the_host_does_is_seen_at_once(share: Share) -> None:
    assert (share.path / "d/f").read_text() == "text"
    (share.host / "d/f").rename(share.host / "d/g")
    assert os.listdir(share.path / "d") == ["g"]
    assert not (share.path / "d/f").exists()
    (share.path / "d/new").write_text("of a client")
    assert (share.host / "d/new").read_text() == "of a client"


def test_a_fault_lasts_while_it_is_in_force(share: Share) -> None:
    with share.failing(Fault(("LOOKUP",), "f", errno.ESTALE)):
        for _ in range(2):
            with pytest.raises(OSError) as error:
                os.stat(share.path / "d/f")
            assert error.value.errno == errno.ESTALE
        assert os.listdir(share.path / "d") == ["f"]
    assert os.stat(share.path / "d/f").st_size == 4


def test_it_may_be_the_second_request_alone(share: Share) -> None:
    with share.failing(Fault(("OPEN",), "d/f", nth=2)):
        (share.path / "d/f").read_text()
        with pytest.raises(OSError):
            (share.path / "d/f").read_text()
        (share.path / "d/f").read_text()
    assert share.hits() == [("OPEN", "f")]


def test_what_is_asked_may_be_done_and_answered_with_an_error(share: Share) -> None:
    with share.failing(Fault(("MKDIR",), "new", errno.ETIMEDOUT, done=True)):
        with pytest.raises(OSError) as error:
            os.mkdir(share.path / "new")
    assert error.value.errno == errno.ETIMEDOUT
    assert (share.host / "new").is_dir()


def test_what_is_asked_may_be_held_back(share: Share) -> None:
    (held,) = share.add(Fault(("MKDIR",), "new", 0, held=True))
    maker = threading.Thread(target=os.mkdir, args=(share.path / "new",))
    maker.start()
    until(lambda: share.hits(held), "the request has come")
    assert not (share.host / "new").exists()
    share.remove(held)
    maker.join()
    assert (share.host / "new").is_dir()


def test_names_may_be_folded_as_nobody_foresaw() -> None:
    with (
        area() as path,
        errorfs(path / "host", path / "share", path / "control", fold=True) as share,
    ):
        odd: Path = share.path / "．ＧＩＴ"
        odd.mkdir()
        assert (share.path / ".git").is_dir()
        assert os.listdir(share.path) == [odd.name]
