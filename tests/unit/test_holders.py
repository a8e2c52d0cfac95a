"""Whose mount namespaces keep a guard from starting."""

from __future__ import annotations

import pytest

from gitguardfs.linux.namespaces import MountNamespace
from gitguardfs.mounting import holders


@pytest.mark.parametrize(
    ("process", "uids", "makers", "expected"),
    [
        ("/proc/7", {0}, set(), False),
        ("/proc/7", {0, 1000}, set(), True),
        ("/proc/7", {0}, {1000}, True),
        ("/proc/7", {1000}, None, True),
        ("", {0}, None, True),
        # As the first process of a container is, if it has more rights than root there.
        ("/proc/1", {0}, None, False),
    ],
)
def test_a_namespace_counts_if_a_user_can_get_into_it(
    process: str, uids: set[int], makers: set[int] | None, expected: bool
) -> None:
    known = None if makers is None else frozenset(makers)
    space = MountNamespace((4, 7), "/x", "x", process, frozenset(uids), known)
    assert holders._is_users(space) is expected
