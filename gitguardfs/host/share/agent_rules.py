"""The rules of a guarded tree for agents: the text of AGENTS.md, by the options of the guard."""

from __future__ import annotations

import os
import textwrap

from gitguardfs.base import installation
from gitguardfs.host.share.template import fill
from gitguardfs.names.local_names import DEPS, DIRECTORIES
from gitguardfs.names.rules import GitMode

_LINE = 99
"""Characters of a line of the text, at most."""
_CLOSED = (GitMode.DENY, GitMode.LIST, GitMode.HIDE)
_DEPS = [os.path.join(one.below, name).decode() for name, one in DIRECTORIES.items()]


def text(mode: GitMode, local: tuple[str, ...]) -> str:
    """Return the text for a view with a mode for .git and with values of ``--local``."""
    facts = {"closed" if mode in _CLOSED else mode.value} | ({"local"} if local else set())
    template = installation.text("host/share/files/AGENTS.md")
    return fill(template, facts, {"local": about_local(local)})


def about_local(globs: tuple[str, ...]) -> str:
    """Return the paragraph about the directories that are the guest's own."""
    names: list[str] = []
    for glob in globs:
        names += _DEPS if glob == DEPS else [glob]
    listed = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
    paragraph = (
        f"Directories called {listed} are this machine's own: install dependencies and build here;"
        " those of the human are not shown, and yours are not on the human's disk."
    )
    return textwrap.fill(paragraph, _LINE, break_on_hyphens=False, break_long_words=False)
