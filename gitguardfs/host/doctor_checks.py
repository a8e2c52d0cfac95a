"""Checks of a shared directory on the host: SELinux label, git's trust in bare repositories.

``gitguard audit`` checks the repositories in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EIO

from gitguardfs.base import quote
from gitguardfs.base.constants import SELINUX_LABEL, SYSTEM_PATH
from gitguardfs.base.findings import Result, Row
from gitguardfs.base.walk import Unread
from gitguardfs.host.audit import rows, trust
from gitguardfs.host.audit.git_config import Git
from gitguardfs.host.share import selinux
from gitguardfs.options import accounts

LABELS = frozenset({selinux.LABEL, "svirt_image_t", "virt_content_t", "container_file_t"})
"""Types that a QEMU confined by libvirt may use."""


AsUser = Callable[..., str]
"""Calls a function with arguments as the directory's user. Raises its OSError, Unread."""


def check(directory: str | None, uid: int, as_user: AsUser) -> list[Result]:
    """Run all checks of the host: of a shared directory, and of its user's git."""
    results = [_bare(uid, as_user)]
    if directory is not None:
        results.insert(0, judge_label(directory, _enforcing(), _label(directory)))
    return results


# SELinux


def _enforcing() -> bool | None:
    try:
        with open(selinux.ENFORCE) as file:
            return file.read().strip() == "1"
    except OSError:
        return None


def _label(path: str) -> str:
    try:
        return os.getxattr(path, SELINUX_LABEL).rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def judge_label(directory: str, enforcing: bool | None, label: str) -> Result:
    """Judge whether a QEMU confined by SELinux may use the directory."""
    row = Row(
        "host.selinux",
        f"SELinux lets virtual machines use {directory}",
        f"SELinux may keep virtual machines from {directory}",
    )
    if enforcing is None:
        return row.ok("SELinux is off")
    kind = ([*label.split(":"), "", "", ""])[2]
    if kind in LABELS:
        return row.ok(label)
    commands = " && ".join(quote.shell(words) for words in selinux.label(directory))
    hint = f"{commands}, if libvirt runs QEMU"
    mode = "enforcing" if enforcing else "permissive"
    return row.note(f"its label is {kind or 'missing'}, SELinux is {mode}", hint, row.failed)


# git


def _bare(uid: int, as_user: AsUser) -> Result:
    # Another user's environment says nothing of this user's git.
    environment = os.environ if uid == os.geteuid() else {}
    home = accounts.find(str(uid)).home
    git = Git.installed(environment, home if home.startswith("/") else "/", SYSTEM_PATH)
    if git is None:
        return rows.TRUST.ok("git is not installed")
    try:
        return trust.judge(as_user(bare_repositories, git))
    except (Unread, OSError) as error:
        return rows.TRUST.unknown(error, "git config --global --list")


def bare_repositories(git: Git) -> str:
    """Return the user's safe.bareRepository; git never reads it from a repository. OSError."""
    try:
        return git.bare_repositories()
    except Unread as error:
        raise OSError(EIO, str(error)) from None
