"""Changes that are taken back because a look at what came of them failed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger(__name__)


def surely(undo: Callable[[], None], path: Callable[[], bytes]) -> None:
    """Undo something, and try again if that fails; an error is for the log.

    ``path`` returns where that was, for people.
    """
    for is_last in (False, True):
        try:
            undo()
            return
        except OSError as error:
            if is_last:
                where = os.fsdecode(path())
                log.error(
                    "%r could not be undone: %s; look at it on the host", where, error.strerror
                )
