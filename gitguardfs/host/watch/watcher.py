"""The loop of ``gitguard watch``: events in, lines out, and a beat twice a second."""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack, suppress
from itertools import count

from gitguardfs.base.errors import UserError
from gitguardfs.host.watch.output import Ended, Output
from gitguardfs.host.watch.status import StatusFile
from gitguardfs.host.watch.tree import Tree

BEAT = 0.5
"""Seconds between two beats. The guard ends long caching 1.5 s after the last one."""


def watch(directories: dict[str, str], target: str, without: tuple[str, ...]) -> None:
    """Send changes in directories, by tag, until the reader of standard output has gone.

    Raises UserError if a directory is deleted or moved, OSError.
    """
    trees: list[Tree] = []

    def present() -> list[dict[str, object]]:
        return [line for tree in trees for line in (tree.again(), tree.state())]

    with ExitStack() as stack:
        output = Output(target, {"gitguard-changes": 1, "shares": list(directories)}, lambda: [])
        for tag, path in directories.items():
            trees.append(Tree(tag, path, without, output.tell))
            stack.callback(trees[-1].close)
        output.present = present
        for line in present():
            output.tell(line)
        status = StatusFile()
        stack.callback(status.close)
        try:
            _run(trees, output, status, target)
        except Ended:
            return
        except UserError:
            with suppress(Ended):
                output.write()  # the reader hears why
            raise


def _run(trees: list[Tree], output: Output, status: StatusFile, target: str) -> None:
    beats = count(1)
    next_beat = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= next_beat:
            next_beat = now + BEAT
            output.connect()
            output.begin_if_asked()
            is_read = output.is_read
            watched = {tree.tag: tree.watched for tree in trees}
            output.beat({"beat": next(beats), "watched": watched})
            output.write()
            status.write(_status(trees, is_read and not output.is_waiting, target))
        for tree in trees:
            tree.step()
        output.write()
        now = time.monotonic()
        waits = [tree.wait(now) for tree in trees]
        seconds = min(next_beat - now, *(each for each in waits if each is not None), BEAT)
        poller = select.poll()
        for tree in trees:
            poller.register(tree.fileno(), select.POLLIN)
        if output.fd is not None:
            poller.register(output.fd, output.events)
        for fd, events in poller.poll(max(0.0, seconds) * 1000):
            if fd == output.fd and events & (select.POLLERR | select.POLLHUP):
                output.disconnect()
            elif fd == output.fd and events & select.POLLIN:
                output.take_request()


def _status(trees: list[Tree], is_read: bool, target: str) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "to": target,
        "read": is_read,
        "directories": [
            {
                "tag": tree.tag, "path": tree.path, "watched": tree.watched,
                "whole": not tree.why, "why": tree.why, "last_change": tree.last_change,
            }
            for tree in trees
        ],
    }  # fmt: skip
