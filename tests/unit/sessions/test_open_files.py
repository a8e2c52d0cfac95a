"""All who have a file open have it in one way, whatever the kernel refuses, and nothing is kept."""

import errno
from random import Random
from typing import cast

import pytest

from gitguardfs.fs.nodes import LOCAL_NUMBERS
from gitguardfs.sessions.kernel_session.connection import Connection
from gitguardfs.sessions.kernel_session.open_files import OpenFiles


class Kernel:
    """The kernel's side of lent files; ``refusal`` is the errno of the next, or 0."""

    def __init__(self) -> None:
        self.lent: dict[int, bool] = {}
        """Whether a file is on a disk of the guest's own, by number."""
        self.refusal = 0
        self._last = 0

    def backing_open(self, fd: int, is_on_own_disk: bool) -> int:
        if self.refusal:
            raise OSError(self.refusal, "refused")
        self._last += 1
        self.lent[self._last] = is_on_own_disk
        return self._last

    def backing_close(self, number: int) -> None:
        del self.lent[number]
        if self.refusal:
            raise OSError(self.refusal, "refused")


@pytest.mark.parametrize("seed", range(20))
def test_one_way_for_all_who_have_a_file_open(seed: int) -> None:
    random, kernel = Random(seed), Kernel()
    files = OpenFiles(cast("Connection", kernel))
    files.passes_through = True
    opened: dict[int, list[int]] = {}
    for _ in range(500):
        kernel.refusal = random.choice((0, 0, errno.ENOMEM, errno.EPERM, errno.ELOOP))
        node = random.randrange(5) + random.choice((0, LOCAL_NUMBERS.offset))
        numbers = opened.setdefault(node, [])
        if random.random() < 0.5:
            numbers.append(files.open(node, random.choice((-1, 7))))
        elif numbers:
            numbers.pop()
            files.close(node)
        assert len({*numbers}) <= 1
        assert files.is_passed_through(node) == (bool(numbers) and numbers[0] > 0)
        assert kernel.lent == {
            numbers[0]: bool(node >= LOCAL_NUMBERS.offset)
            for node, numbers in opened.items()
            if numbers and numbers[0]
        }
    for node, numbers in opened.items():
        for _ in numbers:
            files.close(node)
    assert not kernel.lent


def test_nothing_is_lent_to_a_kernel_that_does_not_offer_it() -> None:
    kernel = Kernel()
    files = OpenFiles(cast("Connection", kernel))
    assert (files.open(1, 7), kernel.lent) == (0, {})
