"""What runs on the host for a VM. None of it may lie in the project: the agent writes there.

Programs are looked for in PATH once, and run by the absolute path that was found and checked. What
the agent puts into a directory of PATH later is never run.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys

import gitguardfs
from gitguardfs import program
from gitguardfs.errors import Exit, UserError, shown

SSH, SSH_KEYGEN, QEMU_IMG = "ssh", "ssh-keygen", "qemu-img"
PACKAGES = {QEMU_IMG: "qemu-utils", SSH: "openssh-client", SSH_KEYGEN: "openssh-client"}
"""What is needed besides QEMU, and the Debian package that has it."""
_EDITABLE_HOOK = ".__path_hook__"
"""How setuptools ends an entry for what is installed editable, which stands for no directory."""
INSTALL = "install gitguardfs outside of the project: pipx install 'gitguardfs[vm]'"


def path_of(name: str) -> str:
    """Return the absolute path of the program ``name``, the same each time. Raises UserError."""
    found = _found(name, os.environ.get("PATH", os.defpath))
    if found is None:
        raise UserError(f"{name} is not installed", code=Exit.SYSTEM)
    return found


@functools.cache
def _found(name: str, directories: str) -> str | None:
    found = shutil.which(name, path=directories)
    return None if found is None else os.path.abspath(found)


def check(project: str, *names: str) -> None:
    """Raise UserError if this very program lies in the project, or one of ``names`` in PATH.

    ``project`` is resolved. The agent could change what lies there, and what it has changed
    would run on the host.
    """
    for what, path in (
        ("gitguardfs", os.path.dirname(os.path.abspath(gitguardfs.__file__))),
        ("gitguardfs", program.HOLDER),
        ("Python", sys.executable),
        ("Python", sys.prefix),
        ("Python", sys.base_prefix),
        *(
            ("Python's search path", entry)
            for entry in sys.path
            if not entry.endswith(_EDITABLE_HOOK)
        ),
    ):
        if lies_in(path, project):
            raise UserError(
                f"{what} lies in the project ({shown(path or '.')}), where the agent could"
                " change it, and it runs on the host",
                INSTALL,
                Exit.SYSTEM,
            )
    for name in names:
        if lies_in(path_of(name), project):
            raise UserError(
                f"{name} lies in the project ({shown(path_of(name))}), where the agent could"
                " change it, and it runs on the host",
                "take that directory out of PATH",
                Exit.SYSTEM,
            )


def lies_in(path: str, project: str) -> bool:
    """Return whether ``path``, or what it leads to, lies in the resolved ``project``."""
    absolute = os.path.abspath(path)
    places = (absolute, os.path.realpath(os.path.dirname(absolute)), os.path.realpath(absolute))
    return any(os.path.commonpath([place, project]) == project for place in places)
