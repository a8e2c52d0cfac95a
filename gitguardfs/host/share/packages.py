"""Names the packages of missing programs, as the distribution of this machine calls them."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping

from gitguardfs.base.errors import Exit, UserError

DEBIAN, FEDORA, MAC = "debian", "fedora", "mac"
_INSTALL = {DEBIAN: "sudo apt install", FEDORA: "sudo dnf install", MAC: "brew install"}
"""The command that installs packages, by family; Ubuntu and Mint are of Debian's, for example."""

_OPENSSH = {DEBIAN: "openssh-client", FEDORA: "openssh-clients", MAC: "openssh"}
PACKAGES: dict[str, Mapping[str, str]] = {
    "qemu-system-x86_64": {DEBIAN: "qemu-system-x86", FEDORA: "qemu-system-x86", MAC: "qemu"},
    "qemu-system-aarch64": {DEBIAN: "qemu-system-arm", FEDORA: "qemu-system-aarch64", MAC: "qemu"},
    "qemu-img": {DEBIAN: "qemu-utils", FEDORA: "qemu-img", MAC: "qemu"},
    "ssh": _OPENSSH,
    "ssh-keygen": _OPENSSH,
    "podman": {DEBIAN: "podman", FEDORA: "podman"},
    "krun": {FEDORA: "crun-krun"},
    "fusermount3": {DEBIAN: "fuse3", FEDORA: "fuse3"},
}
"""By program and family, the package that holds the program, if it has one."""
_BY_HAND = {"krun": "krun is crun 1.27 built with libkrun: see docs/krun.md of the source"}
"""By program, the hint where no package has it."""


def check_installed(*programs: str) -> None:
    """Raise UserError, which names all of ``programs`` that are missing and their packages."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise not_installed(*missing)


def not_installed(*programs: str) -> UserError:
    """Return the error that names all missing programs, and the command that installs them."""
    mine = family()
    packages = {name: PACKAGES.get(name, {}).get(mine) for name in programs}
    found = [package for package in dict.fromkeys(packages.values()) if package is not None]
    hints = [" ".join([_INSTALL[mine], *found])] if found else []
    for name, package in packages.items():
        if package is None:
            hints.append(_BY_HAND.get(name, f"install the package that holds {name}"))
    *first, last = programs
    names = f"{', '.join(first)} and {last} are" if first else f"{last} is"
    return UserError(f"{names} not installed", "; ".join(hints), Exit.SYSTEM)


def family() -> str:
    """Return the family of this machine's distribution, or "" if it is not known."""
    if platform.system() == "Darwin":
        return MAC
    return next((name for name in (FEDORA, DEBIAN) if name in kin(os_release())), "")


def kin(found: Mapping[str, str]) -> set[str]:
    """Return the names of a distribution and of those that it derives from (os-release(5))."""
    return {found.get("ID", ""), *found.get("ID_LIKE", "").split()}


def os_release() -> Mapping[str, str]:
    """Return the content of os-release(5); empty if there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
