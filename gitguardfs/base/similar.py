"""Offers for a word that is misspelled."""

from __future__ import annotations

from collections.abc import Iterable

ALIKE = 0.65
"""How like two words must be for one to be offered for the other: 0.67 for npn and npm."""


def similar(word: str, words: Iterable[str], alike: float = ALIKE) -> list[str]:
    """Return those of ``words`` that are spelled nearly like ``word``, the most similar first."""
    import difflib  # large: a daemon that starts after a crash does not need it

    return difflib.get_close_matches(word, list(words), cutoff=alike)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a question that offers the most similar of ``words``; "" if none is similar."""
    near = similar(word, words)
    return f"did you mean {near[0]}?" if near else ""
