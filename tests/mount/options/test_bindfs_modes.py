"""Options that change permissions, as in bindfs: its permission language and chmod."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.likeness import (
    MODES,
    OTHER,
    Note,
    alike,
    listed,
    read,
    seen,
    touch,
    write,
)  # fmt: skip
from tests.support.mounting import area, bindfs, command
from tests.support.people import AGENT

PERMS = (
    "0", "7", "0644", "644", "00755", "0777", "0644,a+X", "0000,u=rD", "0000:u+rD",
    "u=rwx", "u=", "g=", "a=", "=r", "+w", "-x", "a+rwx", "a-rwx", "ug+w", "ugo-r", "go=rx",
    "og-x:og+rD:u=rwX:g+rw", "og-rwx:gd=u", "a+X", "a+D", "g=rD", "a-X", "u-D", "a=X",
    "ud-w", "uf-w", "ad=rx,af=r", "adf+w", "duo+x", "fgo=", "d+x", "f-r", "df=rwx",
    "g=u", "o=g", "u=o", "ug+o", "a-g", "g=u,u=o", "u=g,g=o,o=u", "a=rs", "u+t,g+s",
    "u+x,a-X", "a-x,a+X", "0600,u+X", "a-x,o=u", "0,g=u", "u=rwX,go=rX,o-r", "ug=ugo", "gd=uX",
)  # fmt: skip
REFUSED_BY_BOTH = ("rwx", "z+r", "u+z", "u~r", "01777", "u+r u+w", ",a+r", "a+r,,g+w", "go=u-",
                   "u+r+w")  # fmt: skip
REFUSED_HERE = ("0888", "8", "u", "")
"""bindfs accepts them, and shows files with permissions that nobody can have meant."""


def everything(view: Path, source: Path, note: Note) -> None:
    """Note the permissions of files, directories, links and others."""
    note.see_all("all", view)
    note.see("inner", view / "full/inner")
    note.see("root", view)


@pytest.mark.parametrize("perms", PERMS)
def test_perms(perms: str) -> None:
    alike(everything, "-p", perms)


@pytest.mark.parametrize("options", [("--perms=0640,a+X",), ("-o", "perms=0640:a+X"), ("-pa-w",)])
def test_each_spelling_of_perms(options: tuple[str, ...]) -> None:
    alike(everything, *options)


@pytest.mark.parametrize("perms", [*REFUSED_BY_BOTH, *REFUSED_HERE])
def test_malformed_perms_are_refused(perms: str) -> None:
    with area() as here:
        (here / "source").mkdir()
        (here / "view").mkdir()
        options = ("-p", perms, here / "source", here / "view")
        done = subprocess.run(command(*options), capture_output=True, check=False, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "perms" in done.stderr
        if perms in REFUSED_BY_BOTH:
            assert subprocess.run(["bindfs", *options], capture_output=True).returncode == 1
        else:
            with bindfs(here / "source", here / "view", "-p", perms):
                pass


def permitted(view: Path, source: Path, note: Note) -> None:
    """Note what users can do with the permissions that they see."""
    for uid in (AGENT, OTHER):
        names = [f"{mode:04o}" for mode in MODES]
        calls = [
            *((f"{uid}: reads f{name}", read, view / f"f{name}") for name in names),
            *((f"{uid}: writes f{name}", write, view / f"f{name}", "x") for name in names),
            *((f"{uid}: lists d{name}", listed, view / f"d{name}") for name in names),
            *((f"{uid}: makes in d{name}", touch, view / f"d{name}/{uid}") for name in names),
            *((f"{uid}: runs f{name}", os.access, view / f"f{name}", os.X_OK) for name in names),
        ]
        note.by(calls, uid=uid)


@pytest.mark.parametrize("perms", ["0777", "0700", "a-w", "o=u", "0000", "u=rX:go="])
def test_what_is_shown_is_what_counts(perms: str) -> None:
    alike(permitted, "-p", perms)


ASKED = (0o000, 0o400, 0o644, 0o666, 0o755, 0o777, 0o1755, 0o2755, 0o4755, 0o7777, 0o111, 0o5644)


def chmods(view: Path, source: Path, note: Note) -> None:
    """chmod of files and directories by root, the owner and somebody else."""
    names = ["f0644", "f4755", "f0000", "d0755", "d1777", "d2755", "setgid", "fifo", "full/inner"]
    for uid in (0, AGENT, OTHER):
        for mode in ASKED:
            what = f"{uid}: {mode:04o}"
            calls: list[tuple[Any, ...]] = [
                (f"{what} {name}", os.chmod, view / name, mode) for name in names
            ]
            calls += [(f"{what} {name}, seen", seen, view / name) for name in names]
            note.by(calls, uid=uid)
            for name in names:
                note(f"{what} {name}, source", seen, source / name)


CHMODS = {
    "default": (),
    "normal": ("--chmod-normal",),
    "ignore": ("--chmod-ignore",),
    "deny": ("--chmod-deny",),
    "ignore but x": ("--chmod-ignore", "--chmod-allow-x"),
    "deny but x": ("--chmod-deny", "--chmod-allow-x"),
    "x alone": ("--chmod-allow-x",),
    "filter": ("--chmod-filter=g-w,o-rwx",),
    "filter octal": ("--chmod-filter=0640,a+X",),
    "filter X": ("--chmod-filter=a+X:gd=u",),
    "filter and ignore": ("--chmod-filter=a+x", "--chmod-ignore"),
    "filter and deny but x": ("--chmod-filter=a+x", "--chmod-deny", "--chmod-allow-x"),
    "by -o": ("-o", "chmod-deny,chmod-allow-x"),
    "the last one counts": ("--chmod-deny", "--chmod-ignore"),
    "under perms": ("-p", "a+rX", "--chmod-filter=a-w"),
    "ignore but x under perms": ("-p", "0666,a+X", "--chmod-ignore", "--chmod-allow-x"),
    "forced owner": ("-u", "1001", "--chmod-normal"),
}


@pytest.mark.parametrize("options", CHMODS.values(), ids=CHMODS.keys())
def test_chmod(options: tuple[str, ...]) -> None:
    alike(chmods, *options)


def test_realistic_permissions_of_root() -> None:
    """Root may do all but run what nobody may run."""
    alike(everything, "--realistic-permissions")
    alike(everything, "-o", "realistic-permissions", "-p", "0777")


@pytest.mark.usefixtures("ordinary_users_can_mount")
@pytest.mark.parametrize("options", [(), ("-p", "0777"), ("-p", "a+rwx,o-x", "-u", "1000")])
def test_realistic_permissions_of_an_ordinary_user(options: tuple[str, ...]) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        names = [name for name in sorted(os.listdir(source)) if name != "null"]
        note.by([(name, seen, view / name) for name in names], uid=AGENT)

    alike(script, "--no-allow-other", "--realistic-permissions", *options, uid=AGENT)
