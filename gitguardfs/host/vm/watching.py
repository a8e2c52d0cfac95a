"""Reports of blocked requests as they come: for ``vm up`` and ``vm watch``.

``vm watch`` also offers the line that would allow a request, for one key. The agent chooses what it
asks for, and when. So the line that a key allows is the line that was on the screen before the key
was pressed: it is shown whole and for a while, nothing replaces it, and keys that were typed
earlier do not count.
"""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self, TextIO

from gitguardfs.base.errors import UserError, counted, shown, warn
from gitguardfs.host.credentials import secrets
from gitguardfs.host.egress import blocked, files, reports
from gitguardfs.host.egress.allowlist import Allowlist, parse_line
from gitguardfs.host.egress.allowlist_lock import AllowlistLock
from gitguardfs.host.egress.blocked import Group, Key
from gitguardfs.host.egress.digest import Digest
from gitguardfs.host.egress.files import StateFiles, read_allowlist
from gitguardfs.host.egress.tail import Tail
from gitguardfs.host.vm import keyboard, running
from gitguardfs.host.vm.keyboard import Keyboard
from gitguardfs.host.vm.state import State

LOOK_EVERY = 0.3
"""Seconds between two looks at the log: Linux and macOS have no common way to wait for a file."""
LONGEST = 1 << 20
"""Bytes of a line of blocked.jsonl; the proxy writes no longer ones."""
QUIET = 1.0
"""Seconds without a key before a line is put on offer, and again before a key can allow it. A
keyboard repeats a key that is held after at most one second."""
MAX_OFFERED = 200
"""Characters of a line that one key can allow: the user has to read all of them."""
MAX_WAITING = 20
"""Offers that wait while another one is on the screen, the latest."""
ALLOW, SKIP, QUIT = b"a", b"s", b"q"
KEYS = "  a allows this line, s skips, q quits"


def watch(state: State) -> None:
    """Print blocked requests as they come, and offer lines if it has a terminal. Never ends.

    Only the key `q` and the end of the terminal make it return. Raises UserError if the VM is
    deleted; OSError.
    """
    with Watcher(state) as watcher:
        if not running.is_running(state):
            print("the VM is not running; this waits for gitguard vm up", file=sys.stderr)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            while True:
                watcher.print_new()
                sys.stdout.flush()
                time.sleep(LOOK_EVERY)
        with keyboard.opened(sys.stdin.fileno()) as keys:
            print(f"watching what is blocked in the VM of {shown(state.project)}; q quits")
            while (typed := keys.pressed(LOOK_EVERY)) is not None and typed != QUIT:
                watcher.step(keys, typed)


class Watcher:
    """Prints blocked requests, and has at most one line on offer."""

    def __init__(self, state: State) -> None:
        self._directory = state.files.directory
        self._lock = AllowlistLock(self._directory)
        self._tail = Tail(str(StateFiles(self._directory).blocked), LONGEST, only_new=True)
        self._digest = Digest()
        self._waiting: dict[Key, Group] = {}
        self._skipped: set[Key] = set()
        self._suspended: set[str] = set()
        self._offered: Group | None = None
        self._size = _size(sys.stdout)
        """The terminal's when the line on offer was printed."""
        self._takes_keys = False
        """Whether KEYS are below the line on offer."""
        self._quiet_since = float("-inf")

    def __enter__(self) -> Self:
        """Return the watcher."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close its files."""
        self._tail.close()
        self._lock.close()

    def step(self, keys: Keyboard, typed: bytes) -> None:
        """Obey a key, print new requests, and put a line on offer if there is none."""
        if self._offered is not None and self._size != _size(sys.stdout):  # it may not be whole now
            self._wait_with(self._offered)
            self._offered, self._takes_keys = None, False
        if typed:
            self._quiet_since = time.monotonic()
        if typed and self._offered is not None and self._takes_keys:
            self._takes_keys = False  # also after any other key: it may be the start of a sequence
            if typed in (ALLOW, SKIP):
                offered, self._offered = self._offered, None
                self._decide(offered, typed)
        if self.print_new() and self._offered is not None:  # the same again, below what is new
            self._print_offer(self._offered)
            if self._takes_keys:
                print(KEYS)
        # A key that is held down, or pressed twice, must not answer the next offer.
        if time.monotonic() - self._quiet_since >= QUIET:
            self._go_on(keys)
        sys.stdout.flush()

    def _go_on(self, keys: Keyboard) -> None:
        """Put a line on offer, or take keys for the one that was read meanwhile."""
        if self._offered is None:
            self._offered = self._next()
            if self._offered is not None:
                self._print_offer(self._offered)
                self._quiet_since = time.monotonic()
        elif not self._takes_keys:
            keys.forget()
            print(KEYS)
            self._takes_keys = True

    def print_new(self) -> bool:
        """Print the requests blocked since the last call; return whether there were any.

        Raises UserError if the VM was deleted, OSError.
        """
        self._lock.check_not_deleted()
        groups = self._digest.add(blocked.parsed(self._tail.new_lines()), time.monotonic())
        before, self._suspended = self._suspended, secrets.suspended_names(self._directory)
        found = [secrets.why_suspended(name) for name in sorted(self._suspended - before)]
        found += self._digest.rows(groups, _size(sys.stdout).columns)
        for row in found:
            print(row)
        for group in groups:
            if group.is_misled:
                print("  a line is not offered for that: gitguard vm blocked says what to do")
            elif group.line and _key(group) not in self._skipped:
                self._wait_with(group)
        return bool(found)

    def _wait_with(self, group: Group) -> None:
        """Make a group the next one whose line is offered."""
        self._waiting.pop(_key(group), None)
        self._waiting[_key(group)] = group
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def _print_offer(self, group: Group) -> None:
        print("\n".join(_offer(group.line, self._size)))

    def _next(self) -> Group | None:
        """Remove the latest group whose line can be offered, and return it."""
        if not self._waiting:
            return None
        try:
            text = read_allowlist(StateFiles(self._directory))
        except UserError as error:
            self._waiting.clear()
            print(f"every request is blocked: {error}")
            return None
        allowlist = Allowlist.parse(text)
        self._size = _size(sys.stdout)
        while self._waiting:
            _, group = self._waiting.popitem()
            if allowlist.covers(group.line):
                continue
            if is_readable(group.line, self._size):
                return group
            print("  the line that would allow it is too long for this: see gitguard vm blocked")
        return None

    def _decide(self, offered: Group, typed: bytes) -> None:
        if typed == ALLOW:
            try:
                print(files.allow(self._directory, offered.line, self._lock))
            except (UserError, OSError) as error:
                print(f"not allowed: {shown(str(error))}")
            return
        self._skipped.add(_key(offered))
        print("skipped; gitguard vm blocked shows it again")


def _key(group: Group) -> Key:
    return group.last.method, group.last.url.partition("?")[0]


def is_readable(line: str, size: os.terminal_size) -> bool:
    """Return whether a line can be shown whole, and says nothing but what it allows."""
    is_plain = line.isascii() and line.isprintable() and len(line) <= MAX_OFFERED
    has_room = len(KEYS) < size.columns and len(_offer(line, size)) + 1 < size.lines
    return is_plain and has_room and parse_line(line).line == line


def _offer(line: str, size: os.terminal_size) -> list[str]:
    """Return the rows of an offer. None of a line's begins at the left."""
    width = max(size.columns, len(KEYS)) - 1
    rows = ["  this line would allow it:"]
    rows += textwrap.wrap(
        line, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    if note := reports.line_note(line):
        rows += textwrap.wrap(note, width, initial_indent="  ", subsequent_indent="  ")
    return rows


def _size(file: TextIO) -> os.terminal_size:
    """Return the size of a terminal; the usual one if it does not tell. A file has no limit."""
    if not file.isatty():
        return os.terminal_size((sys.maxsize, sys.maxsize))
    with suppress(OSError, ValueError):
        size = os.get_terminal_size(file.fileno())
        if all(size):
            return size
    return os.terminal_size((80, 24))


@contextmanager
def reported(state: State, *, at_once: bool) -> Iterator[None]:
    """Report blocked requests on standard error: each ``at_once``, and their number at the end."""
    ended = threading.Event()
    number = 0
    tail = Tail(str(state.files.blocked), LONGEST, only_new=True)

    def look() -> None:
        nonlocal number
        digest = Digest()
        is_last = False
        while not is_last:
            is_last = ended.wait(LOOK_EVERY)
            with suppress(OSError):  # the log, or a closed terminal
                found = list(blocked.parsed(tail.new_lines()))
                number += len(found)
                groups = digest.add(found, time.monotonic())
                for row in digest.rows(groups, _size(sys.stderr).columns) if at_once else ():
                    print(row, file=sys.stderr, flush=True)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tail.close()
        with suppress(OSError, UserError):  # a closed terminal
            if number:
                requests = counted(number, "request")
                print(
                    f"blocked in this session: {requests}; gitguard vm blocked shows them",
                    file=sys.stderr,
                )
            for name in sorted(secrets.suspended_names(state.files.directory)):
                warn(secrets.why_suspended(name))
