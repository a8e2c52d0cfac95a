"""Serves one mount by reading /dev/fuse: one thread serves, and others make calls that may wait.

The serving thread alone uses the tables. While it waits for requests alone, it sits in read(2).
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from struct import unpack_from
from typing import Any

from gitguardfs.base.protocol import Caller, GuestGid, GuestUid, RequestError, make
from gitguardfs.fs.blocking import Blocking
from gitguardfs.sessions.base import MountFailed
from gitguardfs.sessions.kernel_session import abi
from gitguardfs.sessions.kernel_session.abi import RESENT, Opcode
from gitguardfs.sessions.kernel_session.connection import Connection, expiring, invalidating
from gitguardfs.sessions.kernel_session.late_signals import nudged
from gitguardfs.sessions.kernel_session.listings import Listings
from gitguardfs.sessions.kernel_session.open_files import OpenFiles
from gitguardfs.sessions.kernel_session.outliving import Outliving
from gitguardfs.sessions.kernel_session.replies import Answer, failed, passed_through
from gitguardfs.sessions.kernel_session.requests import FORMS
from gitguardfs.sessions.kernel_session.under_way import UnderWay, Waiting
from gitguardfs.view.view import View

log = logging.getLogger(__name__)

SPARE_BUFFERS = 2
"""Buffers that are kept for the next writes with helpers; each has room for the longest request."""
QUICK_LIMIT = 500e-6
"""Seconds for which other requests wait for a call that is expected to be quick."""
OPEN, CREATE, TMPFILE, RELEASE, FSYNC, SETXATTR, SETLKW = map(int, (
    Opcode.OPEN, Opcode.CREATE, Opcode.TMPFILE, Opcode.RELEASE, Opcode.FSYNC, Opcode.SETXATTR,
    Opcode.SETLKW,
))  # fmt: skip
_WITH_MORE = {OPEN, CREATE, RELEASE, SETXATTR, TMPFILE}
"""The requests of which the session has to know more than the reply."""
_WITHOUT_IOCTL = {opcode: form for opcode, form in FORMS.items() if opcode != Opcode.IOCTL}
_FREES_LOCKS = {Opcode.SETLK, Opcode.SETLKW, Opcode.FLUSH, Opcode.RELEASE}
"""The requests after which a lock may be free."""
_TAKEN_BACK = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
_ENDED = (errno.ENODEV, errno.ECONNABORTED)


def _debug(text: str, *values: object) -> None:
    with suppress(Exception):  # even if a log handler fails, the request is answered
        log.debug(text, *values)


def _named(opcode: int) -> str:
    return Opcode(opcode).name if opcode in Opcode._value2member_map_ else str(opcode)


def _new_buffer() -> mmap.mmap:
    """Return a buffer that takes memory only as far as requests reach."""
    return mmap.mmap(-1, abi.BUFFER_SIZE)


class KernelSession:
    """One mount's connection to the kernel, by /dev/fuse itself; see ``base.Session``.

    It needs root, and Linux 5.17 or later.
    """

    def __init__(
        self,
        view: View,
        shows_set_id: bool = False,
        lends_files: bool = True,
        serves_ioctl: bool = False,
    ) -> None:
        """``shows_set_id`` says that the guest's kernel sees set-id bits, and clears them.

        ``lends_files`` says that the kernel may read and write open files by itself, and
        ``serves_ioctl`` that the view answers ioctl(2).
        """
        self._view = view
        forms = FORMS if serves_ioctl else _WITHOUT_IOCTL
        self._listings = Listings(view, self._drop_listing)
        self._forms = self._listings.forms(forms)
        self._connection = Connection(shows_set_id)
        self._open_files = OpenFiles(self._connection)
        self.outliving = Outliving(self._connection, view, self._open_files, self.call_soon)
        self._lends_files = lends_files
        self._logs_requests = log.isEnabledFor(logging.DEBUG)
        self._ready: Callable[[], None] = lambda: None
        self._calls: deque[Callable[[], None]] = deque()
        self._is_between_requests = False
        self._is_ending = False
        self._buffers: list[mmap.mmap] = []
        """Buffers that no request uses."""
        self._buffer = _new_buffer()
        self._under_way = UnderWay(self._connection)
        self._own: dict[int, Callable[[int, int], None]] = {
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget_many,
            Opcode.INIT: self._init,
            Opcode.INTERRUPT: self._interrupt,
            # Python's open() asks TCGETS of each file, and the kernel forgets what the answer was.
            Opcode.IOCTL: lambda unique, node: self._send(unique, failed(unique, errno.ENOTTY)),
            Opcode.DESTROY: lambda unique, node: self._connection.send(unique, failed(unique, 0)),
        }
        """The requests that the view does not serve, by opcode; IOCTL only with the option."""
        self.answers = 0
        """How many requests were answered. The number only grows."""

    def mount(self, path: str, directory: int, options: set[str]) -> None:
        """Mount on the directory behind a descriptor. Raises MountFailed."""
        if os.geteuid() != 0:
            raise MountFailed("the kernel's session needs root")
        self._connection.mount(directory, options)

    def serve(self, ready: Callable[[], None]) -> None:
        """Serve until the mount is unmounted or ``stop`` is called."""
        self._ready = ready
        gc.collect()
        gc.freeze()
        try:
            if self.outliving.is_taken_over:  # the kernel sends no INIT again
                self._forms = self.outliving.reopening(self._forms)
                self._begin_to_serve()
            with nudged():
                self._serve()
            self._under_way.drop_readers()
            while self._under_way:
                self._under_way.wait(-1, self._is_ending)
                self._take_returned()
        finally:
            self._under_way.shut_down()

    def _serve(self) -> None:
        fd = self._connection.fd
        read = io.FileIO(fd, "rb", closefd=False).readinto
        while not self._is_ending:
            self._is_between_requests = True
            if self._calls:
                self._make_calls()
            try:
                if self._under_way:
                    self._under_way.wait(fd, self._is_ending)
                    self._is_between_requests = False
                    self._under_way.call_readers()
                    if self._calls:  # of a signal that came meanwhile
                        continue
                    self._is_between_requests = True
                size = read(self._buffer)
            except OSError as error:
                if error.errno in _ENDED:
                    self._is_between_requests = False
                    self._is_ending = True  # nobody waits for answers that are held back
                    return
                if error.errno not in _TAKEN_BACK:
                    raise
                size = None
            self._is_between_requests = False
            if size:
                self._serve_one(size)
            if self._under_way:
                self._take_returned()

    # Between two requests

    def stop(self) -> None:
        """Finish the requests under way, and take no more. May be called in a signal handler."""
        self._is_ending = True
        # The read(2) that this may have interrupted returns, with a request if it has one.
        os.set_blocking(self._connection.fd, False)
        self._under_way.wake()

    def call_soon_from_thread(self, call: Callable[[], None]) -> None:
        """Make a call between two requests, if there is a reader; for other threads."""
        self._calls.append(call)
        self._under_way.wake()

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """Make a call between two requests each time when a descriptor can be read."""
        self._under_way.add_reader(fd, call)

    def remove_reader(self, fd: int) -> None:
        """Undo ``add_reader``, if it was called for the descriptor."""
        self._under_way.remove_reader(fd)
        self._block_if_idle()

    def _block_if_idle(self) -> None:
        """Let the thread wait in read(2) if nothing is under way."""
        if not (self._under_way or self._is_ending):
            os.set_blocking(self._connection.fd, True)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Make a call between two requests. May be called in a signal handler."""
        self._calls.append(call)
        if self._is_between_requests:  # Python calls the handler within read(2) or poll(2)
            self._make_calls()

    def _make_calls(self) -> None:
        while self._calls:
            self._is_between_requests = False
            if self._calls:  # a signal before the line above had them made
                self._calls.popleft()()
            self._is_between_requests = True

    # One request

    def _serve_one(self, size: int) -> None:
        length, opcode, unique, node, uid, gid, pid = abi.IN.unpack_from(self._buffer)
        if self._logs_requests:
            _debug("unique: %d, opcode: %s, node: %d", unique, _named(opcode), node)
        form = self._forms.get(opcode)
        if form is None:
            return self._serve_own(opcode, unique, node)
        request, read, least, has_caller = form
        caller = make(Caller, (uid, gid, pid)) if has_caller else None
        try:
            if length != size or size < least:
                raise ValueError(f"a request of {length} bytes has {size}, and needs {least}")
            pack, arguments = read(node, self._buffer, size)
            is_noted = opcode in self.outliving.once and self.outliving.begins(
                opcode, unique, self._buffer, arguments[0]
            )
            if unique < RESENT:
                reply = self._view.serve(request, caller, *arguments)
            else:
                reply = self.outliving.serve_again(unique, request, caller, *arguments)
            if type(reply) is Blocking:
                if opcode == FSYNC and self._open_files.is_passed_through(node):
                    reply.runs_inline = False  # the view has not seen how much was written
                    with suppress(OSError):  # a mapping may have moved its mtime
                        self.invalidate(node)
                return self._begin(Waiting(unique, request, caller, pack, reply, None, is_noted))
            if is_noted:
                self.outliving.done(unique, reply)
            answer = pack(unique, reply)
            if opcode in _WITH_MORE:
                answer = self._do_more(opcode, unique, node, reply, answer)
        except Exception as error:
            number = self._view.errno_of(error, request, caller)
            if opcode == SETLKW and number == errno.EAGAIN:
                attempt = partial(self._try_lock, unique, arguments)
                return self._under_way.try_later(unique, node, attempt)
            answer = failed(unique, number)
        self._send(unique, answer)
        if opcode in _FREES_LOCKS:
            self._under_way.try_now(node)

    def _do_more(self, opcode: int, unique: int, node: int, reply: Any, answer: Answer) -> Answer:
        """Do what a request asks for beside the view's reply; return the answer."""
        if opcode == RELEASE:
            (handle,) = abi.QWORD.unpack_from(self._buffer, abi.BODY)
            self.outliving.close_file(handle, node)
            return answer
        if opcode == SETXATTR or (opcode == OPEN and reply.attributes_changed):
            with suppress(OSError):  # an access list changes the mode
                self.invalidate(node)
        if opcode == SETXATTR:
            return answer
        if opcode in (CREATE, TMPFILE):
            reply, (node, *_) = reply
        backing = self.outliving.open_file(
            unique, self._buffer, node, reply.handle, reply.backing_fd
        )
        assert isinstance(answer, bytes)
        return passed_through(answer, backing) if backing else answer

    def _send(self, unique: int, answer: Answer) -> None:
        self.answers += 1
        if self._logs_requests:
            number = abi.OUT.unpack_from(answer if isinstance(answer, bytes) else answer[0])[1]
            result = os.strerror(-number) if number else "success"
            _debug("unique: %d, result: %s", unique, result)
        self._connection.send(unique, answer)

    def _serve_own(self, opcode: int, unique: int, node: int) -> None:
        own = self._own.get(opcode)
        if own is None:
            return self._send(unique, failed(unique, errno.ENOSYS))
        try:
            own(unique, node)
        except Exception as error:
            self._view.errno_of(error, _named(opcode))

    def _try_lock(self, unique: int, arguments: tuple[Any, ...]) -> bool:
        """Answer a request for a lock, unless that is still in another's hands."""
        number = 0
        try:
            self._view.serve("setlk", None, *arguments)
        except Exception as error:
            number = self._view.errno_of(error, "setlk")
        if number != errno.EAGAIN:
            self._send(unique, failed(unique, number))
        return number != errno.EAGAIN

    def _interrupt(self, _unique: int, _node: int) -> None:
        """Answer a request that waits for a lock. Any other that is under way is finished."""
        (target,) = abi.QWORD.unpack_from(self._buffer, abi.BODY)
        if self._under_way.give_up(target):
            self._send(target, failed(target, errno.EINTR))
            self._take_returned()

    def _init(self, unique: int, _node: int) -> None:
        _, minor, readahead, offered, more = abi.INIT_IN.unpack_from(self._buffer, abi.BODY)
        wanted = abi.WANTED | abi.LOCKS * self._view.forwards_locks
        flags, more = (
            wanted & offered | abi.INIT_EXT,
            (abi.PASSTHROUGH * self._lends_files | abi.HAS_RESEND) & more,
        )
        passes_through = self._open_files.passes_through = bool(more & abi.PASSTHROUGH)
        self.outliving.asks_again = bool(more & abi.HAS_RESEND)
        answer = abi.OUT_INIT.pack(
            abi.OUT_INIT.size, 0, unique, abi.MAJOR, min(minor, abi.MINOR), readahead, flags,
            abi.MAX_BACKGROUND, abi.CONGESTION, abi.MAX_WRITE, abi.TIME_GRANULARITY, abi.MAX_PAGES,
            0, more, abi.STACK_DEPTH * passes_through,
        )  # fmt: skip
        self._send(unique, answer)
        self._begin_to_serve()

    def _begin_to_serve(self) -> None:
        with suppress(RequestError):  # the kernel is connected now; does the source answer?
            self._view.serve("statfs", Caller(GuestUid(0), GuestGid(0)))
        self._make_calls()  # what a signal has asked for meanwhile comes before that it is ready
        self._is_between_requests = False
        if self._is_ending:
            return
        try:
            self._ready()
        except Exception:
            log.exception("the view is mounted, but reporting that failed; it stays mounted")

    def _forget(self, _unique: int, node: int) -> None:
        self._forget_one(node, *abi.QWORD.unpack_from(self._buffer, abi.BODY))

    def _forget_many(self, _unique: int, _node: int) -> None:
        for index in range(*unpack_from("I", self._buffer, abi.BODY)):
            start = abi.BODY + 8 + index * abi.LIST_FORGET.size
            self._forget_one(*abi.LIST_FORGET.unpack_from(self._buffer, start))

    def _forget_one(self, node: int, times: int) -> None:
        with suppress(Exception):  # it has no reply
            self._view.serve("forget", None, node, times)

    @property
    def device(self) -> int:
        """The connection's descriptor."""
        return self._connection.fd

    def expiring(self, parent: int, name: bytes) -> bytes:
        """Return the notification after which the kernel looks a name up again."""
        return expiring(parent, name)

    def invalidating(self, node: int) -> bytes:
        """Return the notification that makes the kernel drop the attributes of a node."""
        return invalidating(node, abi.ATTRIBUTES_ONLY)

    def invalidate(self, node: int) -> None:
        """Make the kernel drop the cached attributes of a node. Raises OSError."""
        self._connection.invalidate_attributes(node)

    def keep_listings(self) -> bool:
        """Let the kernel keep listings; return whether this session can."""
        self._listings.are_kept = True
        return True

    def _drop_listing(self, node: int) -> None:
        with suppress(OSError):
            self._connection.invalidate(node)

    # Calls that may wait

    def _begin(self, waiting: Waiting) -> None:
        blocking = waiting.blocking
        blocking.__enter__()
        if blocking.runs_inline:
            return self._finish(waiting, blocking.run)
        call = self._under_way.submit(blocking)
        if blocking.likely_quick and blocking.queue is None and not self._under_way.with_helpers:
            wait([call], QUICK_LIMIT)
            if call.done():
                return self._finish(waiting, call.result)
        if waiting.request == "write":
            waiting = waiting._replace(buffer=self._buffer)
            self._buffer = self._buffers.pop() if self._buffers else _new_buffer()
        self._under_way.add(waiting, call)

    def _take_returned(self) -> None:
        """Answer the requests whose calls have returned, and those whose answers are due."""
        for waiting, call in self._under_way.returned():
            if waiting.buffer is not None and len(self._buffers) < SPARE_BUFFERS:
                self._buffers.append(waiting.buffer)
            self._finish(waiting, call.result)
        for unique, answer in self._under_way.due(self._is_ending):
            self._send(unique, answer)
        self._under_way.try_again()
        for unique in self._under_way.give_up_all() if self._is_ending else ():
            self._send(unique, failed(unique, errno.EINTR))
        self._block_if_idle()

    def _finish(self, waiting: Waiting, result: Callable[[], Any]) -> None:
        """Answer a request with the result of its call, or hold the answer back."""
        unique, request, caller, pack, blocking, _, is_noted = waiting
        delay = 0.0
        try:
            try:
                returned = result()
            finally:
                blocking.__exit__()
            reply = blocking.finish(returned)
            if is_noted:
                self.outliving.done(unique, reply)
            answer = pack(unique, reply)
            delay = blocking.delay(reply)
        except Exception as error:
            answer = failed(unique, self._view.errno_of(error, request, caller))
        if not delay or self._is_ending:
            return self._send(unique, answer)
        self._under_way.hold_back(unique, answer, delay)

    def close(self, unmount: bool = False) -> None:
        """Close the connection, and unmount nothing: ``mounting.view`` unmounts root's views."""
        self._connection.close()
        self._under_way.close()
        self.outliving.close()
