"""The host's side of a shared directory: what QEMU needs, and what protects git there."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from gitguardfs.guest import probes
from gitguardfs.guest.checks import SEARCH_PATH, Result, finding, note, ok
from gitguardfs.guest.probes import Lost, User

SELINUX = "/sys/fs/selinux/enforce"
LABELS = frozenset({"svirt_home_t", "svirt_image_t", "virt_content_t", "container_file_t"})
"""Types that a QEMU confined by libvirt may use."""
QEMU = ("qemu-system-x86_64", "qemu-system-aarch64", "qemu-kvm", "/usr/libexec/qemu-kvm")
VIRTIOFSD = ("virtiofsd", "/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd")
REPOSITORIES = 50
"""How many repositories of the shared directory are asked for their hooks."""
ENTRIES = 20_000
SECONDS = 20


@dataclass(frozen=True)
class HostCase:
    """The host, seen for one shared directory and its user."""

    user: User
    directory: str | None = None
    search_path: str = SEARCH_PATH


def check(case: HostCase) -> list[Result]:
    """All of them."""
    results = [
        judge_versions("qemu", _versions(case, QEMU)),
        judge_versions("virtiofsd", _versions(case, VIRTIOFSD)),
        judge_bare(_git_config(case, None, "safe.bareRepository")),
    ]
    if case.directory is not None:
        results.insert(0, judge_label(case.directory, _enforcing(), _label(case.directory)))
    results.append(_hooks(case))
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
    id, title = "host.selinux", f"SELinux lets virtual machines use {directory}"
    if enforcing is None:
        return ok(id, title, "SELinux is off")
    kind = ([*label.split(":"), "", "", ""])[2]
    if kind in LABELS:
        return ok(id, title, label)
    hint = (
        f"semanage fcontext -a -t svirt_home_t '{directory}(/.*)?' && restorecon -R {directory}, "
        "if libvirt runs QEMU"
    )
    mode = "enforcing" if enforcing else "permissive"
    return note(id, title, f"it is labelled {kind or 'nothing'}, SELinux is {mode}", hint)


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
    id = f"host.{what}"
    if not versions:
        wanted = "for virtiofs shares" if what == "virtiofsd" else "for virtual machines"
        return note(id, f"{what} is installed", f"not found: it is needed {wanted}")
    said = "; ".join(f"{path}: {parse_version(text)}" for path, text in versions.items())
    old = [path for path in versions if path.startswith("/usr/lib/qemu/")]
    if what == "virtiofsd" and old:
        hint = "the C virtiofsd of old QEMU releases: its options differ (-o source=...)"
        return note(id, f"{what} is installed", said, hint)
    return ok(id, f"{what} is installed", said)


def parse_version(text: str) -> str:
    """The version in what a program says about itself; what it said if there is none."""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", text)
    return match[1] if match else text or "unknown"


# git


def _git_config(case: HostCase, repository: str | None, key: str) -> str:
    git = shutil.which("git", path=case.search_path)
    if git is None:
        return ""
    place = ["-C", repository] if repository is not None else []
    code, said = _run(case.user, [git, *place, "config", "--get", key])
    return said.rstrip("\n") if code == 0 else ""


def _run(user: User, arguments: list[str]) -> tuple[int, str]:
    try:
        code, said = probes.apart(_call, arguments, home_of(user), user=user, limit=SECONDS + 5)
    except (Lost, OSError):
        return 127, ""
    return int(code), str(said)


def _call(arguments: list[str], home: str) -> tuple[int, str]:
    done = subprocess.run(
        arguments,
        env={"PATH": SEARCH_PATH, "LC_ALL": "C", "HOME": home},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="surrogateescape")


def home_of(user: User) -> str:
    """The user's home, for git's configuration."""
    home = os.path.expanduser(f"~{user.name}")
    return home if home.startswith("/") else "/"


def judge_bare(value: str) -> Result:
    """Whether git runs what a bare repository inside a project says."""
    id, title = "host.bare", "git trusts no bare repository that it comes across"
    if value == "explicit":
        return ok(id, title, "safe.bareRepository = explicit")
    hint = "git config --global safe.bareRepository explicit"
    return note(id, title, f"safe.bareRepository is {value or 'not set'}", hint)


def _hooks(case: HostCase) -> Result:
    id, title = "host.hooks", "git takes its hooks from where the agent cannot write"
    found: dict[str, str] = {}
    everywhere = _git_config(case, None, "core.hooksPath")
    repositories: list[str] = []
    if case.directory is not None:
        try:
            repositories = probes.apart(_repositories, case.directory, user=case.user)
        except (Lost, OSError) as error:
            return note(id, title, f"{case.directory} was not searched: {error}")
    if not repositories:
        repositories = [case.directory] if case.directory else []
    for place in repositories:
        value = _git_config(case, place, "core.hooksPath") or everywhere
        if value and in_work_tree(value, place, case.directory or place, home_of(case.user)):
            found[place] = value
    if not repositories and everywhere and not everywhere.startswith(("/", "~")):
        found["every repository"] = everywhere
    return judge_hooks(found)


def judge_hooks(found: dict[str, str]) -> Result:
    """Repositories and the hooks directories in the work tree that they use."""
    id, title = "host.hooks", "git takes its hooks from where the agent cannot write"
    if not found:
        return ok(id, title)
    said = ", ".join(f"{place}: core.hooksPath = {value}" for place, value in found.items())
    hint = "git config --unset core.hooksPath, or guard the directory with --protect"
    return finding(id, title, said, hint)


def in_work_tree(value: str, repository: str, shared: str, home: str) -> bool:
    """Whether core.hooksPath leads into the shared directory, but not into a ``.git`` there."""
    if value == "~" or value.startswith("~/"):
        value = home + value[1:]
    path = os.path.normpath(os.path.join(repository, value))
    shared = os.path.normpath(shared)
    if os.path.commonpath([path, shared]) != shared:
        return False
    return ".git" not in os.path.relpath(path, shared).split("/")


def _repositories(top: str) -> list[str]:
    """Directories below ``top`` with a ``.git``, as far as a bounded search gets."""
    found: list[str] = []
    queue = [top]
    looked = 0
    while queue and looked < ENTRIES and len(found) < REPOSITORIES:
        directory = queue.pop(0)
        if os.path.lexists(os.path.join(directory, ".git")):
            found.append(directory)
        for entry in sorted(glob.glob(f"{glob.escape(directory)}/*/")):
            looked += 1
            if not os.path.islink(entry.rstrip("/")):
                queue.append(entry.rstrip("/"))
    return found
