"""The lines of a start's phases, and the screen before the shell."""

import re
import sys
import textwrap
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.vm import boot, phases, welcome
from gitguardfs.host.vm.settings import Settings
from tests.support import terminal

HOSTILE = (
    b"\x1b]0;title\x07\x1b[2J\x9b31m\xc2\x9b5n\xe2\x80\xaeword\r\x08\x00\nlast \x1b[5m\xff\n\n"
)
"""Titles, colours, a C1 control as a byte and as UTF-8, and a bidirectional control."""


def in_terminal(body: str, columns: int = 80) -> str:
    """Return what a program prints in a terminal, whose rows are that wide."""
    program = f"import time\nfrom gitguardfs.host.vm.phases import Phase\n{textwrap.dedent(body)}"
    with terminal.running([sys.executable, "-c", program], (24, columns)) as run:
        run.ended()
        return run.said


def rows(said: str) -> list[str]:
    """Return what a terminal shows in the end: of a row, what came after it was cleared."""
    return [row.rpartition("\r\x1b[K")[2] for row in said.removesuffix("\n").split("\n")]


@pytest.mark.parametrize("columns", [80, 30])
def test_a_phase_is_one_row_with_a_bar_and_in_the_end_its_time(columns: int) -> None:
    said = in_terminal(
        """
        with Phase("Guest image") as phase:
            for part in range(5):
                phase.show("400 MiB", part / 4)
                time.sleep(0.11)
        """,
        columns,
    )
    assert [re.sub(r"\d+ s", "0 s", row) for row in rows(said)] == ["Guest image ... 0 s"]
    seen = said.split("\r\x1b[K")
    assert max(map(len, seen)) < columns
    if columns == 80:
        bar = f"{'#' * 12}{'-' * 12}"
        assert f"Guest image  [{bar}]  50 %  400 MiB  0 s" in seen
        assert any("] 100 %" in row for row in seen)


def test_outside_of_a_terminal_a_phase_has_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with phases.Phase("Guest image") as phase:
        for part in range(50):
            phase.show("400 MiB", part / 49)
        phase.show("checksum")
        phase.say("a line of its own")
    assert capsys.readouterr().err.splitlines() == [
        "Guest image ...", "Guest image: 400 MiB ...", "Guest image: checksum ...",
        "a line of its own", "Guest image ... 0 s",
    ]  # fmt: skip


def test_a_phase_that_fails_quotes_its_log_with_nothing_that_acts(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(b"early\n" * phases.QUOTED + HOSTILE + b"x" * 500)
    said = in_terminal(
        f"""
        with Phase("Boot", {str(log)!r}):
            raise ValueError
        """
    )
    shown = rows(said.partition("Traceback")[0])
    assert shown[0] == "Boot ... failed after 0 s" and str(log) in "".join(shown)
    quoted = shown[-phases.QUOTED :]
    assert quoted[-3].endswith("\\u202eword") and quoted[-2] == "  last \\ufffd"
    assert quoted[-1] == f"  {'x' * 77}"
    assert all(row.startswith("  ") and row.isascii() and row.isprintable() for row in quoted)


@pytest.mark.parametrize("error", [UserError("no"), KeyboardInterrupt()], ids=repr)
def test_a_log_is_quoted_only_where_a_phase_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    (tmp_path / "log").write_text("why\n")
    for raised in (None, error):
        try:
            with phases.Phase("Boot", str(tmp_path / "log")):
                if raised:
                    raise raised
        except (UserError, KeyboardInterrupt):
            pass
    first, ended, again, stopped, *quoted = capsys.readouterr().err.splitlines()
    assert first == again == "Boot ..." and ended == "Boot ... 0 s"
    how, lines = ("failed", 2) if isinstance(error, UserError) else ("stopped", 0)
    assert stopped == f"Boot ... {how} after 0 s" and len(quoted) == lines


def test_the_guest_tells_the_steps_that_the_host_knows() -> None:
    program = Path(boot.__file__).with_name("guest.sh").read_text()
    told = re.findall(r"^ +tell step (\w+)$", program, re.MULTILINE)
    assert sorted(told) == sorted(boot.STEPS)


def test_the_screen_before_the_shell_is_short() -> None:
    ordinary = Settings("/home/me/src/hello")
    allowed = Allowlist.parse("GET https://a.test/*\nGET https://b.test/*\n")
    said = welcome.lines(ordinary, allowed, 80)
    assert len(said) == 5 and all(len(line) <= 80 for line in said)
    assert said[0].endswith("/home/me/src/hello is ~/projects/hello in the guest")
    assert said[1].endswith("environment files and keys") and "2 lines" in said[2]
    many = Settings(
        "/home/me/src/a\x1b[1m", hide=tuple(f"*.{n}" for n in range(30)), git="readonly",
        share=tuple(f"/srv/{n}:ro" for n in range(9)), hide_secrets=False,
    )  # fmt: skip
    said = welcome.lines(many, allowed, 80)
    assert len(said) <= 8 and all(len(line) <= 80 and line.isprintable() for line in said)
    text = " ".join(said)
    assert "7 more" in text and "27 more" in text and "/srv/0 is ~/projects/0" in text
    assert "to be read" in text and "fetch" not in text and "environment" not in text
