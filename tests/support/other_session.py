"""A session without pyfuse3: it shows that ``View`` needs only its own types.

It finds the method for a request by its name in ``GUARDED_BY``, as one that speaks to the kernel
itself would by the opcode, and answers with objects that look like pyfuse3's to the tests.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import trio

from gitguardfs.base.protocol import Caller, DirEntry, EntryReply, OpenReply, RequestError, SetAttr
from gitguardfs.fs.blocking import Blocking
from gitguardfs.view.view import View
from tests.support.request_table import GUARDED_BY, GuardedBy


class OtherSession:
    """The requests of one mount, with the arguments that the tests give to pyfuse3's handlers."""

    def __init__(self, view: View, invalidate: Callable[[int], None]) -> None:
        self._view = view
        self._invalidate = invalidate

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if GUARDED_BY.get(name, GuardedBy.UNSUPPORTED) is GuardedBy.UNSUPPORTED:
            raise AttributeError(name)
        return partial(self._ask, name)

    async def forget(self, forgotten: list[tuple[int, int]]) -> None:
        for node, times in forgotten:
            self._view.serve("forget", None, node, times)

    async def _ask(self, name: str, *args: Any) -> Any:
        reply = self._view.serve(name, *arguments_of(name, args))
        if type(reply) is Blocking:
            try:
                return _answer(await _wait(reply))
            except Exception as error:
                number = self._view.errno_of(error, name)
            raise RequestError(number)
        is_changed = type(reply) is OpenReply and reply.attributes_changed
        if is_changed or name == "setxattr":
            with suppress(OSError):
                self._invalidate(args[0])
        return name == "access" or _answer(reply)


async def _wait(reply: Blocking[Any]) -> Any:
    with reply:
        if reply.runs_inline:
            result = reply.run()
        else:
            result = await trio.to_thread.run_sync(reply.run)
    answer = reply.finish(result)
    await trio.sleep(reply.delay(answer))
    return answer


def arguments_of(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "readdir":
        handle, offset, token = args
        return None, handle, offset, partial(_add, token)
    if GUARDED_BY[name] in (GuardedBy.HANDLE, GuardedBy.OPEN_NODE):
        return None, *args
    *rest, ctx = args
    if name == "setattr":
        node, attributes, fields, handle = rest
        rest = [node, _changes(attributes, fields), handle]
    return Caller(ctx.uid, ctx.gid, ctx.pid), *rest


def _changes(attributes: Any, fields: Any) -> SetAttr:
    given = {
        name: getattr(attributes, f"st_{name}")
        for name in SetAttr._fields
        if getattr(fields, f"update_{name.removesuffix('_ns')}")
    }
    return SetAttr(**given)


def _add(token: Any, entry: DirEntry) -> bool:
    if len(token.entries) >= token.room:
        return False
    if entry.reply is None:
        told = SimpleNamespace(st_ino=0, st_mode=entry.file_type)
    else:
        told = _answer(entry.reply)
    token.entries.append((entry.name, told, entry.offset))
    return True


def _answer(reply: Any) -> Any:
    match reply:
        case EntryReply(_, None):
            return SimpleNamespace(st_ino=0, entry_timeout=reply.entry_timeout)
        case EntryReply(_, attributes):
            named = {f"st_{name}": value for name, value in attributes._asdict().items()}
            timeouts = {"entry_timeout": reply.entry_timeout, "attr_timeout": reply.attr_timeout}
            return SimpleNamespace(**named, **timeouts)
        case OpenReply():
            return SimpleNamespace(fh=reply.handle, **reply._asdict())
        case (OpenReply() as opened, EntryReply() as entry):
            return _answer(opened), _answer(entry)
    return reply
