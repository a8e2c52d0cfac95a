"""A YAML reader gets the values that were written as YAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.host.share import yaml

# A surrogate is no character: what is rendered goes into a file as UTF-8.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
LINES = st.lists(TEXT, max_size=4).map("\n".join)
SCALARS = st.one_of(TEXT, LINES, LINES.map(lambda text: f"{text}\n"), st.integers(), st.booleans())
VALUES: Any = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4))
def test_a_reader_finds_what_was_written(value: dict[str, Any]) -> None:
    text = yaml.render(value)
    assert pyyaml.safe_load(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    ["yes", "No", "null", "~", "1", "0x10", "1e3", ".5", "12:30:00", "2026-01-01", "- a", "a: b",
     "a #b", "'", '"', "", " a", "a ", "*a", "&a", "!a", "%a", "@a", "`a", "{{.Home}}", "\u2028",
     "\x85", "\x7f", "\ufeff", "9p", "=", "<<", "on", "1_000", "0b1", "0o7", "1.5", "inf", ".inf"],
)  # fmt: skip
def test_a_string_stays_a_string(text: str) -> None:
    assert pyyaml.safe_load(yaml.render({text: [text, {"a": text}]})) == {text: [text, {"a": text}]}


@pytest.mark.parametrize(
    "script",
    ["#!/bin/sh\nif a; then\n\tb\nfi\n", "a\n\n  b\n", "a\n\n\n", " a\nb\n", "a\nb", "\na\n"],
)
def test_lines_stay_lines(script: str) -> None:
    for value in ({"script": script}, {"list": [{"script": script, "x": 1}]}):
        assert pyyaml.safe_load(yaml.render(value)) == value


def test_a_script_can_be_read_as_it_stands() -> None:
    text = yaml.render({"provision": [{"mode": "system", "script": "#!/bin/bash\necho 'a b'\n"}]})
    assert text == (
        "provision:\n  - mode: system\n    script: |\n      #!/bin/bash\n      echo 'a b'\n"
    )
