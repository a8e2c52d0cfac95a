"""Checks of a shared directory on the host: SELinux label, git's trust in bare repositories.

``gitguard audit`` checks the repositories in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from errno import EIO

from gitguardfs.base import quote
from gitguardfs.base.constants import SELINUX_LABEL, SYSTEM_PATH
from gitguardfs.base.findings import Result, Row
from gitguardfs.base.walk import Unread
from gitguardfs.host.audit import rows, trust
from gitguardfs.host.audit.git_config import Git
from gitguardfs.host.share import selinux
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User
from gitguardfs.options import accounts

LABELS = frozenset({selinux.LABEL, "svirt_image_t", "virt_content_t", "container_file_t"})
"""Types that a QEMU confined by libvirt may use."""


@dataclass(frozen=True)
class HostContext:
    """The input of the checks: a shared directory of the host, and its user."""

    user: User
    directory: str | None = None
    search_path: str = SYSTEM_PATH


def check(context: HostContext) -> list[Result]:
    """Run all checks of the host."""
    results = [_bare(context)]
    if context.directory is not None:
        results.insert(0, judge_label(context.directory, _enforcing(), _label(context.directory)))
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


def _bare(context: HostContext) -> Result:
    user = context.user
    # Another user's environment says nothing of this user's git.
    environment = os.environ if user.uid == os.geteuid() else {}
    git = Git.installed(environment, home_of(user), context.search_path)
    if git is None:
        return rows.TRUST.ok("git is not installed")
    try:
        return trust.judge(run_as.run_as(bare_repositories, git, user=user))
    except (NoAnswer, OSError) as error:
        return rows.TRUST.unknown(error, "git config --global --list")


def home_of(user: User) -> str:
    """Return the user's home, for git's configuration."""
    home = accounts.find(str(user.uid)).home
    return home if home.startswith("/") else "/"


def bare_repositories(git: Git) -> str:
    """Return the user's safe.bareRepository; git never reads it from a repository. OSError."""
    try:
        return git.bare_repositories()
    except Unread as error:
        raise OSError(EIO, str(error)) from None
