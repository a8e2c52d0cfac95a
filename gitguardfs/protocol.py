"""What a request is answered with beside its reply. No I/O."""

from __future__ import annotations


class Later(Exception):  # noqa: N818  # what the session is to do, not that something broke
    """Nothing was changed; the session makes the same call again and serves others meanwhile.

    Times are seconds of time.monotonic. A call that still raises this at ``deadline`` fails
    with EBUSY.
    """

    def __init__(self, why: str, ask_again_at: float, deadline: float) -> None:
        super().__init__(why)
        self.why = why
        self.ask_again_at = ask_again_at
        self.deadline = deadline
