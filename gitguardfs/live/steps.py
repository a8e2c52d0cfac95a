"""The calls by which the helper repeats a change: one for a name, several for some renames."""

from __future__ import annotations

import errno
import os
from stat import S_IFDIR, S_IFLNK, S_IFMT
from typing import NamedTuple

from gitguardfs.fs.nodes import Directory, Node, ancestors
from gitguardfs.live import helper

REQUESTS = {
    helper.UNLINK: "unlink", helper.RMDIR: "rmdir", helper.MKNOD: "mknod", helper.MKDIR: "mkdir",
    helper.SYMLINK: "symlink", helper.RENAME: "rename", helper.TOUCH: "setattr",
    helper.SET_TIMES: "setattr",
}  # fmt: skip
"""The request that a call leads to."""


class Step(NamedTuple):
    """A call to be made."""

    call: int
    parent: Directory
    name: bytes
    node: Node | None = None
    """The node that the kernel finds at the name before the call; None for nothing."""
    st: os.stat_result | None = None
    """The object that is there after the call, if the name is there."""
    to: Directory | None = None
    new_name: bytes = b""
    replaced: Node | None = None
    """Of RENAME: where the object goes, and the node that the kernel finds there before."""
    at: tuple[Directory, bytes] | None = None
    """Where the object that is added is by now, if not at the name."""
    tries: int = 2
    """Of RENAME: how often it is made again if a program has looked at a name meanwhile."""
    forgets: bool = False
    """Whether the kernel knows the name as it will be, and has to forget that first."""


def removal(parent: Directory, name: bytes, node: Node | None) -> Step:
    """Return the step that removes a name; nobody knows of what type an unknown one was."""
    is_directory = node is not None and node.file_type == S_IFDIR
    return Step(helper.RMDIR if is_directory else helper.UNLINK, parent, name, node)


def addition(parent: Directory, name: bytes, st: os.stat_result, forgets: bool) -> Step:
    """Return the step that adds a name."""
    calls = {S_IFDIR: helper.MKDIR, S_IFLNK: helper.SYMLINK}
    call = calls.get(S_IFMT(st.st_mode), helper.MKNOD)
    return Step(call, parent, name, st=st, forgets=forgets)


def otherwise(step: Step, number: int) -> list[Step]:
    """Return the steps in place of a RENAME that has failed."""
    assert step.st is not None and step.to is not None
    if step.tries and number not in (errno.ETIMEDOUT, errno.EPIPE):
        again = step._replace(tries=step.tries - 1, replaced=None, forgets=True)
        if step.node is not None:
            return [again]
        at = step.to, step.new_name
        return [addition(step.parent, step.name, step.st, forgets=True)._replace(at=at), again]
    is_directory = S_IFMT(step.st.st_mode) == S_IFDIR
    return [
        Step(helper.RMDIR if is_directory else helper.UNLINK, step.parent, step.name),
        addition(step.to, step.new_name, step.st, forgets=True),
    ]


def may_be_unasked(step: Step) -> bool:
    """Return whether the kernel may know that a name is gone, so that it does not ask."""
    return step.call in (helper.UNLINK, helper.RMDIR) and not step.forgets


def path_of(directory: Directory) -> bytes:
    """Return the path of a directory below the view's root."""
    names = [each.name for each in ancestors(directory) if each.parent is not None]
    return b"/".join(reversed(names)) or b"."
