"""Collects what the guest is set up with: this gitguardfs, and the script that installs it."""

from __future__ import annotations

import io
import os
import re
import tarfile

from gitguardfs import installation
from gitguardfs.constants import AGENT_HOME
from gitguardfs.credentials.secrets import Secret
from gitguardfs.render.guarded_share import with_local
from gitguardfs.vm import seed
from gitguardfs.vm.guest_files import GuestFile, GuestSettings, files
from gitguardfs.vm.keys import ADMIN, HOST, Keys
from gitguardfs.vm.keys import AGENT as AGENT_KEY
from gitguardfs.vm.settings import Settings

_LEFT_OUT = frozenset(("__pycache__",))


def content(
    name: str, settings: Settings, keys: Keys, ca: str, secrets: tuple[Secret, ...] = ()
) -> dict[str, bytes]:
    """Return the files of the seed for the VM ``name``, except meta-data. Raises OSError."""
    login = seed.GuestKeys(
        agent_public=keys.public_text(AGENT_KEY),
        admin_public=keys.public_text(ADMIN),
        host_private=keys.private_text(HOST),
        host_public=keys.public_text(HOST),
    )
    return seed.files(name, login, guest_files(settings, ca, secrets), payload())


def guest_files(settings: Settings, ca: str, secrets: tuple[Secret, ...] = ()) -> list[GuestFile]:
    """Return the files that cloud-init writes before provisioning. Raises OSError."""
    guest = GuestSettings(
        ca=ca,
        view=view_of(settings.project),
        git=settings.git_mode,
        local=settings.local,
        mount_options=mount_options(settings),
        git_name=settings.git_name,
        git_email=settings.git_email,
        provision=installation.text("vm/provision.sh"),
        secrets=secrets,
    )
    return files(guest, seed.PROVISION)


def view_of(project: str) -> str:
    """Return the view's path in the guest: the project's name, with unusual characters replaced.

    Every tool that handles the path would have to quote control characters and the like.
    """
    name = re.sub(r"[^\w.+@ -]", "_", os.path.basename(project)).strip()
    if not name.strip(".") or name.startswith("-"):
        name = f"project{name}"
    return f"{AGENT_HOME}/projects/{name}"


def mount_options(settings: Settings) -> str:
    """Return the value of vm-mount's ``-o``."""
    options = (f"git={settings.git_mode}", *(f"hide={name}" for name in settings.hide))
    return ",".join(with_local(options, settings.local))


def payload() -> bytes:
    """Return this installation's package and scripts as a tar archive.

    The bytes are the same each time. Raises UserError if the installation has no scripts, OSError.
    """
    scripts = installation.script_directory()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for directory, below, names in os.walk(installation.PACKAGE_DIRECTORY):
            below[:] = sorted(name for name in below if name not in _LEFT_OUT)
            for name in sorted(names):
                path = os.path.join(directory, name)
                _add(tar, path, os.path.relpath(path, installation.PACKAGE_PARENT))
        for name in installation.SCRIPT_NAMES:
            _add(tar, os.path.join(scripts, name), f"{installation.SCRIPTS}/{name}")
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = os.path.getsize(path)
    member.mode = 0o644
    with open(path, "rb") as file:
        tar.addfile(member, file)
