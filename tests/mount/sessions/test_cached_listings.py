"""What the kernel's session lets the kernel keep of listings, and for how long."""

import os
import time
from collections.abc import Iterator

import pytest

from tests.support.mounting import Mounted, empty_view

TIMEOUT = 1.0
"""Seconds for which the kernel may cache names (--cache-timeout, the default)."""


@pytest.fixture(scope="module")
def mounted() -> Iterator[Mounted]:
    with empty_view("-d") as mounted:
        yield mounted


@pytest.fixture
def directory(mounted: Mounted, request: pytest.FixtureRequest) -> str:
    """The name of a directory with two files."""
    name = str(request.node.name)
    (mounted.source / name).mkdir()
    for file in ("a", "b"):
        (mounted.source / name / file).touch()
    return name


def listings(mounted: Mounted) -> int:
    """Return how many requests for entries the daemon has had."""
    return mounted.requests().count("READDIRPLUS")


def test_a_second_listing_is_the_kernel_s(mounted: Mounted, directory: str) -> None:
    assert sorted(os.listdir(mounted.path / directory)) == ["a", "b"]
    before = listings(mounted)
    for _ in range(5):
        assert sorted(os.listdir(mounted.path / directory)) == ["a", "b"]
    assert listings(mounted) == before
    time.sleep(TIMEOUT)
    os.listdir(mounted.path / directory)
    assert listings(mounted) > before


@pytest.mark.parametrize("puts_mtime_back", [False, True])
def test_a_name_that_the_host_adds_is_listed_at_the_next_opening(
    mounted: Mounted, directory: str, puts_mtime_back: bool
) -> None:
    source = mounted.source / directory
    os.listdir(mounted.path / directory)
    before = source.stat()
    time.sleep(0.02)  # a tick of the source's clock
    (source / "c").touch()
    if puts_mtime_back:
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sorted(os.listdir(mounted.path / directory)) == ["a", "b", "c"]


def test_a_change_through_the_view_is_listed_at_once(mounted: Mounted, directory: str) -> None:
    view = mounted.path / directory
    for number in range(50):
        os.listdir(view)
        (view / f"new{number}").touch()
        assert f"new{number}" in os.listdir(view)
        (view / f"new{number}").unlink()
        assert sorted(os.listdir(view)) == ["a", "b"]


def test_a_listing_read_again_is_as_old_as_names_may_be(mounted: Mounted, directory: str) -> None:
    """By a directory that stays open (rewinddir(3))."""
    fd = os.open(mounted.path / directory, os.O_RDONLY | os.O_DIRECTORY)
    assert sorted(os.listdir(fd)) == ["a", "b"]
    (mounted.source / directory / "c").touch()
    time.sleep(TIMEOUT + 0.1)
    assert sorted(os.listdir(fd)) == ["a", "b", "c"]
    os.close(fd)


def test_without_cached_names_no_listing_is_cached() -> None:
    with empty_view("-d", "--cache-timeout=0") as mounted:
        os.listdir(mounted.path)
        seen = listings(mounted)
        os.listdir(mounted.path)
        assert listings(mounted) > seen
