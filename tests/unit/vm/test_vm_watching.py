"""What the proxy blocks is shown as it comes, and one key allows the line that was shown."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.credentials import secrets, suspended
from gitguardfs.host.credentials.secrets import Kind, Place, Secret, new_placeholder
from gitguardfs.host.egress import allowlist_lock, blocked, files
from gitguardfs.host.egress.allowlist import BlockKind
from gitguardfs.host.egress.blocked import BlockedLog, BlockedRequest
from gitguardfs.host.egress.digest import MAX_AT_ONCE, Digest
from gitguardfs.host.vm import keyboard, watching
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.state import State
from tests.support.terminal import Terminal, running

GITGUARD = "import sys; from gitguardfs.commands.gitguard import main; main()"
KEYS = f"{watching.KEYS}\n"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:  # the path of a socket is limited
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        os.mkdir(f"{short}/p")
        state = states.state_of(f"{short}/p")
        states.create(state)
        Path(state.path("allowlist.txt")).write_text("GET https://old.test/\n")
        yield state


def block(
    state: State,
    *urls: str,
    method: str = "GET",
    kind: BlockKind = BlockKind.RULE,
    reason: str = "no line of the allowlist allows it",
) -> None:
    log = BlockedLog(Path(state.path("blocked.jsonl")))
    for url in urls:
        log.add(method, url, reason, kind)


def allowed(state: State) -> list[str]:
    return Path(state.path("allowlist.txt")).read_text().splitlines()[1:]


def words(state: State) -> list[str]:
    return [sys.executable, "-P", "-c", GITGUARD, "vm", "watch", "--project", state.project]


@contextmanager
def watched(state: State, size: tuple[int, int] = (24, 80)) -> Iterator[Terminal]:
    with running(words(state), size) as terminal:
        terminal.until("q quits\n")
        yield terminal


def quiet(terminal: Terminal) -> str:
    """Return what is printed in some rounds of the program."""
    return terminal.read(4 * watching.LOOK_EVERY)


# What is offered, and what a key allows


def test_one_key_allows_the_line_that_is_shown(state: State) -> None:
    block(state, "https://a.test/before")
    with watched(state) as terminal:
        assert "before" not in quiet(terminal)
        block(state, "https://a.test/one", "https://a.test/one")
        said = terminal.until(KEYS)
        assert "blocked GET https://a.test/one (2 times)\n" in said
        assert "    GET https://a.test/one\n" in said
        terminal.type(b"a")
        assert "GET https://a.test/one\nwas added to" in terminal.until("next request on")
        assert allowed(state) == ["GET https://a.test/one"]
        block(state, "https://a.test/two")
        terminal.until(KEYS)
        terminal.type(b"s")
        terminal.until("skipped")
        terminal.type(b"q")
        assert terminal.ended() == 0
        assert terminal.modes == terminal.modes_before
    assert allowed(state) == ["GET https://a.test/one"]


def test_what_comes_meanwhile_does_not_replace_the_line_on_offer(state: State) -> None:
    with watched(state) as terminal:
        block(state, "https://a.test/good")
        terminal.until(KEYS)
        for number in range(3):
            block(state, f"https://evil.test/{number}", method="POST")
            said = terminal.until(KEYS)  # shown again, below what is new
            assert f"blocked POST https://evil.test/{number}\n" in said
            assert said.endswith(f"    GET https://a.test/good\n{KEYS}")
        terminal.type(b"a")
        terminal.until("next request on")
        assert allowed(state) == ["GET https://a.test/good"]
        terminal.until(KEYS)


def test_a_key_pressed_before_an_offer_does_not_answer_it(state: State) -> None:
    with watched(state) as terminal:
        os.kill(terminal.process.pid, signal.SIGSTOP)
        terminal.type(b"aaa")
        block(state, "https://a.test/x")
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.until(KEYS)
        quiet(terminal)
        assert allowed(state) == []


@contextmanager
def watcher_of(state: State) -> Iterator[tuple[watching.Watcher, keyboard.Keyboard, int]]:
    """Yield a watcher in this process, its keys, and the descriptor by which they are typed."""
    master, slave = os.openpty()
    try:
        with keyboard.opened(slave) as keys, watching.Watcher(state) as watcher:
            yield watcher, keys, master
    finally:
        os.close(master)
        os.close(slave)


def test_a_key_pressed_while_an_offer_is_printed_does_not_answer_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUIET", 0.0)
    with watcher_of(state) as (watcher, keys, master):
        block(state, "https://a.test/x")
        watcher.step(keys, b"")
        os.write(master, b"a")  # after the last look at the keys
        watcher.step(keys, b"")
        assert keys.pressed(0) == b""
        watcher.step(keys, b"a")
    assert allowed(state) == ["GET https://a.test/x"]


def test_a_key_does_not_allow_a_line_that_has_just_come(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUIET", 60.0)
    with watcher_of(state) as (watcher, keys, _):
        block(state, "https://a.test/x")
        for typed in (b"", b"", b"a", b"a"):
            watcher.step(keys, typed)
        assert allowed(state) == []


@pytest.mark.parametrize("first", [0.02, 0.25, 0.5, 0.66, 0.9])
def test_a_key_that_is_held_down_answers_one_offer(state: State, first: float) -> None:
    """A keyboard repeats it after ``first`` seconds, and then all the time."""
    with watched(state) as terminal:
        block(state, "https://a.test/1", "https://a.test/2", "https://a.test/3")
        terminal.until(KEYS)
        terminal.type(b"a")
        terminal.read(first)
        for _ in range(60):
            terminal.type(b"a")
            terminal.read(0.033)
        terminal.until(KEYS)  # once it is released
        assert allowed(state) == ["GET https://a.test/3"]


def test_only_the_key_itself_allows_and_no_other_skips(state: State) -> None:
    """Terminals send some keys as an escape sequence that ends in an ``a``."""
    with watched(state) as terminal:
        block(state, "https://a.test/x")
        for typed in (b"\x1b[a", b"A", b"\r", b"aq", b"\x1a", b"\xff", b"S"):
            assert "skipped" not in terminal.until(KEYS)
            terminal.type(typed)
        terminal.until(KEYS)
        assert allowed(state) == []
        terminal.type(b"a")
        terminal.until("next request on")
        assert allowed(state) == ["GET https://a.test/x"]


def test_the_rest_of_a_sequence_is_no_key(state: State) -> None:
    """A slow line brings it in two parts."""
    with watcher_of(state) as (watcher, keys, _):
        block(state, "https://a.test/x")
        watcher.step(keys, b"")
        watcher._quiet_since = float("-inf")
        watcher.step(keys, b"")
        watcher.step(keys, b"\x1b[")
        watcher.step(keys, b"a")
        assert allowed(state) == []


def test_what_was_skipped_is_not_offered_again(state: State) -> None:
    with watched(state) as terminal:
        block(state, "https://a.test/x?1")
        terminal.until(KEYS)
        terminal.type(b"s")
        terminal.until("skipped")
        block(state, "https://a.test/x?2", "https://old.test/")  # the other is allowed meanwhile
        assert KEYS not in quiet(terminal)


@pytest.mark.parametrize(
    ("url", "method", "note"),
    [
        ("https://a.test/s", "WS", "a WebSocket is not seen"),
        ("https://a.test/?1 https://a.test/?2", "GET", "allows any query"),
    ],
)
def test_the_warning_of_a_line_is_shown_with_it(
    state: State, url: str, method: str, note: str
) -> None:
    with watched(state, (24, 200)) as terminal:
        block(state, *url.split(), method=method)
        assert note in terminal.until(KEYS)


def test_a_line_that_cannot_be_shown_whole_is_not_offered(state: State) -> None:
    with watched(state, (10, 60)) as terminal:
        block(state, f"https://a.test/{'x' * watching.MAX_OFFERED}")
        terminal.until("too long for this")
        assert KEYS not in quiet(terminal)
    with watched(state, (3, 80)) as terminal:
        block(state, "https://a.test/x")
        terminal.until("too long for this")
    url = f"https://a.test/{'y' * 100}"
    with watched(state, (10, 40)) as terminal:
        block(state, url)
        said = terminal.until(KEYS)
        offered = said.partition("would allow it:\n")[2].removesuffix(KEYS)
        assert "".join(offered.split()) == f"GET{url}"
        assert max(map(len, said.splitlines())) < 40
        assert all(line.startswith("    ") for line in offered.splitlines())


@pytest.mark.parametrize("size", [(24, 50), (4, 80), (24, 1)])
def test_a_line_that_is_no_longer_whole_on_the_screen_is_not_allowed(
    state: State, size: tuple[int, int]
) -> None:
    url = f"https://a.test/{'y' * 100}"
    with watched(state) as terminal:
        block(state, url)
        terminal.until(KEYS)
        os.kill(terminal.process.pid, signal.SIGSTOP)
        terminal.resize(size)
        terminal.type(b"a")
        os.kill(terminal.process.pid, signal.SIGCONT)
        if size == (24, 50):
            terminal.until(KEYS)  # the same anew
            assert allowed(state) == []
            terminal.type(b"a")
            terminal.until("next request on")
            assert allowed(state) == [f"GET {url}"]
        else:
            terminal.until("too long for this")
            assert allowed(state) == []


def test_a_host_in_the_users_network_is_named_as_such(state: State) -> None:
    with watched(state, (24, 200)) as terminal:
        block(state, "https://a.test/x", kind=BlockKind.ADDRESS, reason="a.test is at 10.0.0.1")
        said = terminal.until(KEYS)
        assert "https://a.test/x: a.test is at 10.0.0.1\n" in said
        assert "    GET https://a.test/x private-address\n  It leads to a host in your own" in said


def test_no_key_allows_a_public_host_whose_name_leads_astray(state: State) -> None:
    with watched(state, (24, 200)) as terminal:
        block(state, "https://a.com/x", kind=BlockKind.MISLED, reason="a DNS block?")
        assert "https://a.com/x: a DNS block?\n" in terminal.until("gitguard vm blocked says")
        block(state, "https://a.test/y")
        terminal.until(KEYS)
        terminal.type(b"a")
        terminal.until("next request on")
        quiet(terminal)
    assert allowed(state) == ["GET https://a.test/y"]


# What the agent chooses


HOSTILE = (
    "https://a.test/\x1b[2J\x1b[H\x1b]0;title\x07",
    "https://a.test/x\n    GET https://good.test/\n  a allows this line",
    "https://a.test/\r  this line would allow it:",
    "https://a.test/" + " " * 60 + "    GET https://good.test/",
    "https://a.test/\u202e\u2066/moc.doog",
    "https://a.test/" + "\uff37" * 50,
    "https://a.test/e\u0301\u200b\U0001f600",
    "https://" + "a" * 20_000,
)


def test_no_text_of_the_agents_begins_a_row_or_acts_on_the_terminal(state: State) -> None:
    with watched(state) as terminal:
        for url in HOSTILE:
            block(state, url, method="GET")
            block(state, url, method="G\x1b[31m \n", kind=BlockKind.REQUEST)
        terminal.until("blocked")
        said = quiet(terminal)
        terminal.type(b"q")
        terminal.ended()
    rows = terminal.said.splitlines()
    assert all(row.isascii() and row.isprintable() and len(row) < 80 for row in rows[1:]), said
    assert not any(row.strip().startswith("GET https://good") for row in rows)


def test_a_storm_is_a_few_rows(state: State) -> None:
    with watched(state) as terminal:
        block(state, *(["https://a.test/same"] * 5_000))
        block(state, *(f"https://a.test/{number}" for number in range(5_000)))
        terminal.until(KEYS)
        quiet(terminal)
        assert terminal.said.count("blocked GET https://a.test/same") <= 3
        assert terminal.said.count(" blocked GET ") < 3 * MAX_AT_ONCE
        assert "other requests: gitguard vm blocked" in terminal.said


def test_a_suspended_secret_is_told_in_a_storm_too(state: State) -> None:
    directory = Path(state.directory)
    places = (Place("api.test", 443, Kind.BEARER, "Bearer"),)
    for name in ("TOKEN", "OTHER"):
        found = Secret(name, new_placeholder(name), places)
        secrets.save(directory, [*secrets.load(directory), found])
    suspended.suspend(secrets.key(directory, "OTHER"), "another value")
    with watched(state) as terminal:
        terminal.until("gitguard vm secret rotate OTHER")
        block(state, *(f"https://a.test/{number}" for number in range(5_000)))
        suspended.suspend(secrets.key(directory, "TOKEN"), "the value itself")
        terminal.until("gitguard vm secret rotate TOKEN")
        quiet(terminal)
        assert terminal.said.count("is suspended") == 2


def others(digest: Digest) -> int:
    """Return how many requests the digest says that it has left out."""
    return sum(int(row.split()[1]) for row in digest.rows([], 200))


def test_a_digest_counts_all_and_forgets_what_it_does_not_need() -> None:
    digest, shown, left_out = Digest(), 0, 0
    for second in range(100):
        entries = [
            BlockedRequest("", "GET", f"https://a.test/{number % (second + 1)}", "r",
                           BlockKind.RULE)
            for number in range(500)
        ]  # fmt: skip
        groups = digest.add(entries, float(second))
        assert len(groups) <= MAX_AT_ONCE
        assert len(digest._shown) <= 4 * MAX_AT_ONCE
        shown += sum(group.count for group in groups)
        left_out += others(digest)
    for second in (200, 300):
        shown += sum(group.count for group in digest.add([], float(second)))
        left_out += others(digest)
    assert shown + left_out == 100 * 500


# The log


def test_a_log_that_begins_anew_is_read_to_its_end(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy renames it when it is too large."""
    with watched(state) as terminal:
        block(state, "https://a.test/1")
        terminal.until("https://a.test/1\n")
        os.kill(terminal.process.pid, signal.SIGSTOP)
        block(state, "https://a.test/2")
        monkeypatch.setattr(blocked, "MAX_BYTES", 1)
        block(state, "https://a.test/3")
        os.kill(terminal.process.pid, signal.SIGCONT)
        said = terminal.until("https://a.test/3\n")
        assert "https://a.test/2\n" in said


def test_without_a_terminal_it_only_prints(state: State, tmp_path: Path) -> None:
    with open(tmp_path / "said", "wb") as file:
        for how, url in (
            ({"stdin": subprocess.DEVNULL}, "https://a.test/x"),
            ({"stdout": file}, f"https://a.test/{'x' * 200}"),
        ):
            with running(words(state), **how) as terminal:
                said = ""
                while f"blocked GET {url}" not in said:  # only what is new is shown
                    block(state, url)
                    said = terminal.read(0.2) or (tmp_path / "said").read_text()
                terminal.type(b"a")
                assert KEYS not in quiet(terminal) + (tmp_path / "said").read_text()
                assert allowed(state) == []
                terminal.process.send_signal(signal.SIGINT)
                assert terminal.ended() == 0


# The VM's end


def test_it_ends_with_the_vm_and_brings_no_allowlist_back(state: State) -> None:
    for makes_another in (False, True):
        states.create(state)
        Path(state.path("allowlist.txt")).write_text("")
        with watched(state) as terminal:
            block(state, "https://a.test/x")
            terminal.until(KEYS)
            os.kill(terminal.process.pid, signal.SIGSTOP)
            terminal.type(b"a")
            states.remove(state)
            if makes_another:
                states.create(state)
            os.kill(terminal.process.pid, signal.SIGCONT)
            terminal.until("the VM was deleted")
            assert terminal.ended() != 0
        assert os.path.exists(state.directory) == makes_another
        assert not os.path.exists(state.path("allowlist.txt"))


def test_a_vm_is_not_deleted_while_a_line_is_added(state: State) -> None:
    with allowlist_lock.held(Path(state.directory)):
        deleting = threading.Thread(target=states.remove, args=(state,))
        deleting.start()
        deleting.join(4 * watching.LOOK_EVERY)
        assert os.path.exists(state.directory)
    deleting.join()
    assert not os.path.exists(state.directory)
    with pytest.raises(UserError, match=r"deleted"):
        files.allow(Path(state.directory), "GET https://a.test/x")
    assert not os.path.exists(state.directory)


# The terminal


@pytest.mark.parametrize("number", keyboard.ENDING, ids=lambda number: number.name)
def test_a_signal_leaves_the_terminal_as_it_was(state: State, number: signal.Signals) -> None:
    with watched(state) as terminal:
        assert terminal.modes != terminal.modes_before
        for _ in range(3):
            terminal.process.send_signal(number)
        assert terminal.ended() == (0 if number == signal.SIGINT else 128 + number)
        assert terminal.modes == terminal.modes_before
        assert "Traceback" not in terminal.said


# vm up


TOLD = """
import sys
from pathlib import Path
from gitguardfs.host.egress.allowlist import BlockKind
from gitguardfs.host.egress.blocked import BlockedLog
from gitguardfs.host.vm import driver, watching, ssh, state
where = state.State("/p", sys.argv[1])
ssh.session = lambda guest, words, *_: ["sh", "-c", words[0]]
sys.exit(driver._session_in(where, None, tuple(sys.argv[2:])))
"""


def session(state: State, *line: str, **how: Any) -> AbstractContextManager[Terminal]:
    """Run a session of `vm up` whose command runs on the host."""
    return running([sys.executable, "-P", "-c", TOLD, state.directory, *line], **how)


def test_a_command_without_a_terminal_tells_what_is_blocked_at_once(state: State) -> None:
    path = state.path("blocked.jsonl")
    block(state, "https://a.test/before")
    block(state, "https://a.test/\x1b[31m")
    entry = Path(path).read_text().splitlines()[-1]
    line = f"echo {shlex.quote(entry)} >>{shlex.quote(path)}; read go; exit 7"
    for how, at_once in (({"stdout": subprocess.DEVNULL, "size": (24, 200)}, True), ({}, False)):
        with session(state, line, **how) as terminal:
            if at_once:
                said = terminal.until("blocked GET https://a.test/\\x1b[31m: ")
                assert "before" not in said
            terminal.type(b"\n")
            assert terminal.ended() == 7
        assert ("blocked GET" in terminal.said) == at_once
        assert "blocked in this session: 1 request; gitguard vm blocked" in terminal.said
    with session(state, "true") as terminal:
        assert terminal.ended() == 0
        assert "blocked" not in terminal.said
