"""The doctor's table of attacks on the project of ``repos.make_project``.

Nothing here knows of pytest or of the mount under attack, so that the attacks can run on a plain
directory, on a mount and inside a virtual machine.
"""

import errno
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gitguardfs.doctor.attacks import ACTORS, EARLY, LACKING, ROOT, TABLE, VERBS, Attack
from tests.support.raw_calls import name_to_handle, open_by_handle, read_at

LIMIT = 120
"""Seconds after which an attack is taken to hang."""
OBJECTS = {
    "directory": (".git",),
    "file": ("split/.git",),
    "symlink": ("symlinked/.git",),
    "empty": ("hollow/.git",),
    "root": ("nested", "split", "hollow", "symlinked", "attic"),
    "bare": ("attic/bare.git", "store"),
    "half": ("half", "begun"),
    "nothing": ("",),
}
"""What the project has of each form."""


def _open_handle(path: str, parent: str, flags: str) -> None:
    kind, data = name_to_handle(Path(path))
    anchor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    read_at(open_by_handle(anchor, kind, data, getattr(os, flags) | os.O_DIRECTORY), "config")


VERBS["handle"] = _open_handle
EARLY["handle"] = frozenset({errno.EPERM, errno.ESTALE})
"""Without privileges EPERM; root of a mount namespace gets ESTALE for what the kernel cannot show
to lie below its own mounts."""
BY_HANDLE = tuple(
    Attack("U3", "directory", ("handle", "{g}", "{parent}", flags), (ROOT, *ACTORS[:2]))
    for flags in ("O_RDONLY", "O_PATH")
)
ALL = (*TABLE, *BY_HANDLE, Attack("R2a", "file", ("exchange", "{g}", "{parent}/../linked/.git")))
ROWS = tuple(dict.fromkeys(attack.row for attack in ALL))
UNSERVED = LACKING.keys() - {"exchange", "noreplace", "assemble"}
"""Verbs that a mount answers by itself, or does not serve by default (--xattr)."""


@dataclass(frozen=True)
class Strike:
    """An attack on one object of a project."""

    attack: int
    """Its index in ALL."""
    object: str

    @property
    def name(self) -> str:
        attack = ALL[self.attack]
        return f"{attack.row}: {attack.name} ({self.object})" if self.object else attack.name


def strikes(attacks: Iterable[Attack]) -> list[Strike]:
    return [Strike(ALL.index(one), name) for one in attacks for name in OBJECTS[one.on]]


def carry_out(view: str, strikes: Iterable[Strike]) -> list[tuple[int | None, str]]:
    """Carry out attacks on a project one after the other, each with a directory of its own.

    Returns the errno and the text of each; 0 if it succeeded, None for another error.
    """
    outcomes: list[tuple[int | None, str]] = []
    for number, strike in enumerate(strikes):
        os.chdir("/")
        os.umask(0o022)
        signal.alarm(LIMIT)
        guarded = os.path.join(view, strike.object) if strike.object else ""
        try:
            ALL[strike.attack].carry_out(guarded.rstrip("/"), f"{view}/attack{number}")
        except OSError as error:
            outcomes.append((error.errno, str(error)))
        except Exception as error:
            outcomes.append((None, f"{type(error).__name__}: {error}"))
        else:
            outcomes.append((0, "not refused"))
    return outcomes


def wrong(
    strikes: list[Strike],
    outcomes: list[tuple[int | None, str]],
    actor: str,
    also: Iterable[int] = (),
    serves: Iterable[str] = (),
) -> list[str]:
    """Return the attacks that a guard has not refused as it must; the mount ``serves`` verbs."""
    found = []
    for strike, (number, text) in zip(strikes, outcomes, strict=True):
        verb = ALL[strike.attack].words[0]
        allowed = {errno.EACCES, *also}
        if actor != ROOT:
            allowed |= EARLY[verb]
        if verb in UNSERVED and verb not in serves:
            allowed |= LACKING[verb]
        if number not in allowed:
            found.append(f"{strike.name} as {actor}: {text}")
    return found
