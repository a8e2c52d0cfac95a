"""The host's side of a shared directory: what QEMU needs, and whether git trusts what is in it.

What its repositories lead to is for ``gitguard audit``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from errno import EIO

from gitguardfs import accounts
from gitguardfs.audit import rows
from gitguardfs.audit.git_config import Git
from gitguardfs.audit.walk import Unread
from gitguardfs.constants import SYSTEM_PATH
from gitguardfs.doctor import run_as
from gitguardfs.doctor.run_as import Lost, User
from gitguardfs.findings import Result, Row, Severity
from gitguardfs.render import quote

SELINUX = "/sys/fs/selinux/enforce"
LABELS = frozenset({"svirt_home_t", "svirt_image_t", "virt_content_t", "container_file_t"})
"""Types that a QEMU confined by libvirt may use."""
QEMU = ("qemu-system-x86_64", "qemu-system-aarch64", "qemu-kvm", "/usr/libexec/qemu-kvm")
VIRTIOFSD = ("virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd")
SECONDS = 20
BARE = rows.TRUST


@dataclass(frozen=True)
class HostCase:
    """The host, seen for one shared directory and its user."""

    user: User
    directory: str | None = None
    search_path: str = SYSTEM_PATH


def check(case: HostCase) -> list[Result]:
    """All of them."""
    results = [
        judge_versions("qemu", _versions(case, QEMU)),
        judge_versions("virtiofsd", _versions(case, VIRTIOFSD)),
        _bare(case),
    ]
    if case.directory is not None:
        results.insert(0, judge_label(case.directory, _enforcing(), _label(case.directory)))
    return results


# SELinux


def _enforcing() -> bool | None:
    try:
        with open(SELINUX) as file:
            return file.read().strip() == "1"
    except OSError:
        return None


def _label(path: str) -> str:
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def judge_label(directory: str, enforcing: bool | None, label: str) -> Result:
    """Whether a confined QEMU may use the directory."""
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
    pattern = f"{quote.file_context(directory)}(/.*)?"
    label_it = quote.shell(["semanage", "fcontext", "-a", "-t", "svirt_home_t", pattern])
    hint = f"{label_it} && {quote.shell(['restorecon', '-R', directory])}, if libvirt runs QEMU"
    mode = "enforcing" if enforcing else "permissive"
    return row.note(f"it is labelled {kind or 'nothing'}, SELinux is {mode}", hint, row.failed)


# Programs


def _versions(case: HostCase, programs: tuple[str, ...]) -> dict[str, str]:
    """The first line of what each program that is there says to --version."""
    found: dict[str, str] = {}
    for name in programs:
        path = shutil.which(name, path=case.search_path)
        if path is None or os.path.realpath(path) in found:
            continue
        said = _run(case.user, [path, "--version"])[1]
        found[os.path.realpath(path)] = said.strip().partition("\n")[0]
    return found


def judge_versions(what: str, versions: dict[str, str]) -> Result:
    """What versions of QEMU or virtiofsd there are."""
    row = Row(f"host.{what}", f"{what} is installed", f"{what} is not installed")
    if not versions:
        wanted = "for virtiofs shares" if what == "virtiofsd" else "for virtual machines"
        return row.note(f"it is needed {wanted}", title=row.failed)
    said = "; ".join(f"{path}: {parse_version(text)}" for path, text in versions.items())
    old = [path for path in versions if path.startswith("/usr/lib/qemu/")]
    if what == "virtiofsd" and old:
        hint = "the C virtiofsd of old QEMU releases: its options differ (-o source=...)"
        return row.note(said, hint)
    return row.ok(said)


def parse_version(text: str) -> str:
    """The version in what a program says about itself; what it said if there is none."""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", text)
    return match[1] if match else text or "unknown"


# git


def _bare(case: HostCase) -> Result:
    program = shutil.which("git", path=case.search_path)
    if program is None:
        return BARE.ok("no git here")
    git = Git(program, home_of(case.user))
    try:
        return judge_bare(run_as.apart(bare_repositories, git, user=case.user))
    except (Lost, OSError) as error:
        return BARE.unknown(error, "git config --global --list")


def home_of(user: User) -> str:
    """Return the user's home, for git's configuration."""
    home = accounts.find(str(user.uid)).home
    return home if home.startswith("/") else "/"


def bare_repositories(git: Git) -> str:
    """Return the user's safe.bareRepository, which git takes from no repository. Raises OSError."""
    try:
        return git.bare_repositories()
    except Unread as error:
        raise OSError(EIO, str(error)) from None


def _run(user: User, arguments: list[str]) -> tuple[int, str]:
    try:
        code, said = run_as.apart(_call, arguments, home_of(user), user=user, limit=SECONDS + 5)
    except (Lost, OSError):
        return 127, ""
    return int(code), str(said)


def _call(arguments: list[str], home: str) -> tuple[int, str]:
    done = subprocess.run(
        arguments,
        env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "HOME": home},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="surrogateescape")


def judge_bare(value: str) -> Result:
    """Whether git runs what a bare repository inside a project says."""
    if value == "explicit":
        return BARE.ok("safe.bareRepository = explicit")
    hint = "git config --global safe.bareRepository explicit"
    said = f"safe.bareRepository is {value or 'not set'}"
    return BARE.finding(said, hint, Severity.LOW)
