"""Fills in template files. Pure.

Lines after ``%if WORD !WORD`` are kept if the facts hold WORD and do not hold !WORD, up to the next
``%if`` or ``%end``. In kept lines ``$NAME`` stands for a value. A value of several lines is
indented like the line that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Template


def fill(text: str, facts: Collection[str], values: Mapping[str, object]) -> str:
    """Return a template's text for these facts and values. Raises KeyError for an unknown $NAME."""
    lines = []
    is_kept = True
    for line in text.splitlines():
        word, *conditions = line.split() or [""]
        if word in ("%if", "%end"):
            is_kept = all((c.lstrip("!") in facts) != c.startswith("!") for c in conditions)
        elif is_kept:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(Template(line).substitute(values).replace("\n", f"\n{indent}"))
    return "".join(f"{line}\n" for line in lines)
