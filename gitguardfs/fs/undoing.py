"""Undoing a change of the source after a later check of it failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger(__name__)


def undo_or_log(undo: Callable[[], None], path: Callable[[], bytes]) -> None:
    """Call ``undo``, and once more if it fails; log the second error. Raises no OSError.

    ``path`` returns the path of what was changed, for the log.
    """
    for is_last in (False, True):
        try:
            undo()
            return
        except OSError as error:
            if is_last:
                where = os.fsdecode(path())
                log.error(
                    "a change of %r could not be undone: %s; check it on the host",
                    where,
                    error.strerror,
                )
