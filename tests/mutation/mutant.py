"""One small fault, put into the code on purpose."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """``old``, which stands exactly once in ``file``, is replaced by ``new``."""

    name: str
    breaks: str
    """What no longer holds with the fault."""
    file: str
    """Below gitguardfs/, or one of the tests' own, which begins with tests/."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Below tests/, as pytest takes them: the tests that should notice it."""
    survives: str = ""
    """Why no test notices it, where that is known and accepted."""

    @property
    def path(self) -> str:
        """The file, below the checkout."""
        return self.file if self.file.startswith("tests/") else f"gitguardfs/{self.file}"
