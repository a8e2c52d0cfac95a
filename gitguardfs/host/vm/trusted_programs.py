"""Finds the programs that run on the host; refuses those in the project, where the agent writes.

A program is looked up in PATH once, and run by the absolute path that was checked. So what the
agent puts into a directory of PATH later is not run.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys

import gitguardfs
from gitguardfs.base import installation
from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.base.paths import lies_in
from gitguardfs.host.share.packages import not_installed
from gitguardfs.host.vm.settings import Settings

SSH, SSH_KEYGEN, QEMU_IMG = "ssh", "ssh-keygen", "qemu-img"
PROGRAMS = (QEMU_IMG, SSH, SSH_KEYGEN)
"""Programs that are needed besides QEMU."""
_EDITABLE_HOOK = ".__path_hook__"
"""The end of the entry that setuptools adds for an editable install, which is not a directory."""
INSTALL = "install gitguardfs outside of the project: pipx install '.[vm]' in a checkout"


def path_of(name: str) -> str:
    """Return the absolute path of the program ``name``, looked up once. Raises UserError."""
    found = _found(name, os.environ.get("PATH", os.defpath))
    if found is None:
        raise not_installed(name)
    return found


@functools.cache
def _found(name: str, directories: str) -> str | None:
    found = shutil.which(name, path=directories)
    return None if found is None else os.path.abspath(found)


_VARIABLES = re.compile(
    r"(?:LD|DYLD|OPENSSL)_.*|PYTHON.*|SSL_CERT_(?:FILE|DIR)|GCONV_PATH|QEMU_MODULE_DIR"
)
"""Environment variables by which programs find code, or the authorities that they trust."""
_PATH_VARIABLES = (
    "PATH", "HOME", "BASE", "PREFIX", "DIR", "FILE", "CONF", "MODULES", "ENGINES",
)  # fmt: skip
"""Ends of the names of those whose values are paths, also without a ``/``."""

_BETWEEN = {"LD_PRELOAD": "[: ]", "LD_LIBRARY_PATH": "[:;]"}
"""Separators of the paths in a value (ld.so(8)), if not only a colon."""


def check(own: Settings, *names: str) -> None:
    """Raise UserError if gitguardfs, Python or a program of ``names`` lies where the agent writes.

    The agent could change such a program, which then would run on the host. The same holds for what
    environment variables name. Directories in the VM's settings are resolved.
    """
    _check(own.project, "the project", names)
    for directory in own.others_writable:
        where = f"the share {shown(directory)}"
        _check(directory, where, names)
        for entry in os.get_exec_path():
            if lies_in(entry, directory):  # the user would run more than these programs there
                raise UserError(
                    f"PATH leads into {where} ({shown(entry)}), where the agent could change what"
                    " you run",
                    "share it with :ro, or remove that directory from PATH",
                    Exit.SYSTEM,
                )


def _check(directory: str, where: str, names: tuple[str, ...]) -> None:
    _check_environment(directory, where)
    for what, path in (
        ("gitguardfs", os.path.dirname(os.path.abspath(gitguardfs.__file__))),
        ("gitguardfs", installation.PACKAGE_PARENT),
        *([("gitguard", sys.argv[0])] if os.path.isfile(sys.argv[0]) else []),
        ("Python", sys.executable),
        ("Python", sys.prefix),
        ("Python", sys.base_prefix),
        *(
            ("Python's search path", entry)
            for entry in sys.path
            if not entry.endswith(_EDITABLE_HOOK)
        ),
    ):
        if lies_in(path, directory):
            raise UserError(
                f"{what} lies in {where} ({shown(path or '.')}), where the agent could"
                " change it, and it runs on the host",
                INSTALL,
                Exit.SYSTEM,
            )
    for name in names:
        if lies_in(path_of(name), directory):
            raise UserError(
                f"{name} lies in {where} ({shown(path_of(name))}), where the agent could"
                " change it, and it runs on the host",
                "remove that directory from PATH",
                Exit.SYSTEM,
            )


def _check_environment(directory: str, where: str) -> None:
    for name, value in os.environ.items():
        if not value or not _VARIABLES.fullmatch(name):
            continue
        for path in re.split(_BETWEEN.get(name, ":"), value):
            is_path = "/" in path or name.endswith(_PATH_VARIABLES)
            if is_path and lies_in(path, directory):
                raise UserError(
                    f"{name} leads into {where} ({shown(path or '.')}), where the agent could"
                    " change what programs on the host use",
                    f"unset {name}",
                    Exit.SYSTEM,
                )
