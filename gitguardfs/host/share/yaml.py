"""YAML text of plain values: mappings, lists, strings, numbers, truth values. Pure.

A string with several lines becomes a literal block. One that no reader can take for anything else
stays bare. All others get double quotes and JSON's escapes, which are valid YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*|[0-9]+[a-z]+")
_RESERVED = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
# Not printable in YAML (its specification, 5.1), or a line break there.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_BLOCK = re.compile(r"(?!\s)[\t\n\x20-\x7e\xa0-\u2027]+(?<!\n)\n")


def render(value: Mapping[str, Value]) -> str:
    """Return the document."""
    return "\n".join(_mapping(value)) + "\n"


def _mapping(value: Mapping[str, Value]) -> Iterator[str]:
    for key, inner in value.items():
        yield from _under(f"{scalar(key)}:", inner)


def _list(value: Sequence[Value]) -> Iterator[str]:
    for inner in value:
        if isinstance(inner, Mapping) and inner:
            first, *rest = _mapping(inner)
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in rest)
        else:
            yield from _under("-", inner)


def _under(start: str, value: Value) -> Iterator[str]:
    """Yield the lines of a value after ``start``: on the same line, or indented below it."""
    if isinstance(value, str) and value.count("\n") > 1 and _BLOCK.fullmatch(value):
        yield f"{start} |"
        lines: Iterator[str] = iter(value.removesuffix("\n").split("\n"))
    elif isinstance(value, (str, int)):
        yield f"{start} {scalar(value)}"
        return
    elif not value:
        yield f"{start} {'{}' if isinstance(value, Mapping) else '[]'}"
        return
    else:
        yield start
        lines = _mapping(value) if isinstance(value, Mapping) else _list(value)
    yield from (f"  {line}" if line else "" for line in lines)


def scalar(value: str | int) -> str:
    """Return one value as it is written within a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _BARE.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda m: f"\\u{ord(m[0]):04x}", quoted)
