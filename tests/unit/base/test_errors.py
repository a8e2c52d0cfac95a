"""Messages on root's terminal: names that others have chosen are escaped."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import shown

RAW = ["\x1b[2J", "\n", "\r", "\x07", "\x9b31m", "\u202e", "\u2066", "\u200f", "\u2028", "\u00ad"]


@pytest.mark.parametrize("raw", RAW)
def test_what_alters_a_terminal_is_escaped(raw: str) -> None:
    assert shown(f"a{raw}b").isprintable()
    assert raw not in shown(f"a{raw}b")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("café 漢", "café 漢"),
        ("a\x1b]0;b\x07", "a\\x1b]0;b\\x07"),
        ("a\nb", "a\\nb"),
        ("\u202egit", "\\u202egit"),
        (b"sh\xff\xfe", "sh\\xff\\xfe"),
        ("sh\udcff", "sh\\xff"),
        ("\ud800", "\\ud800"),
        (b"caf\xc3\xa9", "café"),
        ("a b c", "a b c"),
        ("a   b", "a \\x20\\x20b"),
        ("a\u2800\u3164b", "a\\u2800\\u3164b"),
    ],
)
def test_a_name_is_shown(name: str | bytes, said: str) -> None:
    assert shown(name) == said


@given(st.text(alphabet=st.characters(exclude_categories=())) | st.binary())
def test_every_name_can_be_shown_and_encoded(name: str | bytes) -> None:
    assert shown(name).isprintable()
    shown(name).encode()


def test_what_is_to_be_kept_is() -> None:
    assert shown("a\tb\n\x1b", keep="\n\t") == "a\tb\n\\x1b"


@pytest.mark.parametrize("program", ["commands.gitguard", "commands.vm_mount"])
def test_an_error_of_a_command_is_one_printable_line(program: str) -> None:
    code = f"import sys; from gitguardfs.{program} import main; main()"
    evil = "--no-such\x1b[2J\u202e\nvm-mount: all is well\udcff"
    done = subprocess.run(
        [sys.executable, "-c", code, evil], capture_output=True, text=True, errors="surrogateescape"
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.endswith("\n") and done.stderr[:-1].isprintable()
