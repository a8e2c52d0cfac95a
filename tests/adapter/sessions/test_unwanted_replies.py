"""The records of pyfuse3 about failed replies that are dropped."""

import errno
import logging
import os

import pytest

from gitguardfs.sessions.pyfuse3_session.internals import LOG, UnwantedReplies

FAILED = "fuse_release(): fuse_reply_* failed with %s"


def _said(caplog: pytest.LogCaptureFixture, has_ended: bool, message: str, *values: str) -> bool:
    replies = UnwantedReplies(lambda: has_ended)
    LOG.addFilter(replies)
    try:
        LOG.error(message, *values)
    finally:
        LOG.removeFilter(replies)
    return bool(caplog.records)


def test_a_reply_that_nobody_waits_for_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert not _said(caplog, True, FAILED, os.strerror(errno.ENOENT))


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("number", [errno.ENOENT, errno.EINVAL, errno.ENODEV, errno.ENOMEM])
def test_a_reply_that_failed_is_an_error(
    caplog: pytest.LogCaptureFixture, number: int, has_ended: bool
) -> None:
    if has_ended and number == errno.ENOENT:
        return
    assert _said(caplog, has_ended, FAILED, os.strerror(number))


def test_all_else_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert _said(caplog, True, "fuse_session_receive_buf failed with %s", "a reason")
    assert _said(caplog, True, os.strerror(errno.ENOENT))


def test_nothing_is_dropped_once_it_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    assert not _said(caplog, True, FAILED, os.strerror(errno.ENOENT))
    logging.getLogger("pyfuse3").error(FAILED, os.strerror(errno.ENOENT))
    assert caplog.records
