"""Writes the seed: NoCloud data on a small ISO image, which cloud-init reads in the guest.

PyYAML writes all of it, since names of projects come from users, and keys have newlines.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
from dataclasses import dataclass
from typing import Any

import pycdlib
import yaml

from gitguardfs.base.constants import AGENT
from gitguardfs.host.vm.guest_files import AUTHORIZED_KEYS, PROGRAM, GuestFile
from gitguardfs.host.vm.qemu_command import GUEST_ADDRESS

LABEL = "cidata"
"""The label by which cloud-init finds the image."""
PAYLOAD = "gitguardfs.tar"
"""The file with this installation of gitguardfs."""


@dataclass(frozen=True)
class GuestKeys:
    """The guest's SSH keys: public keys that may log in, and its own host key."""

    agent_public: str
    admin_public: str
    host_private: str
    host_public: str


def user_data(name: str, login: GuestKeys, files: list[GuestFile]) -> str:
    """Return cloud-init's user-data for a guest with the host name ``name``."""
    data: dict[str, Any] = {
        "hostname": name,
        "users": [
            {
                "name": AGENT,
                "gecos": "Agent",
                "shell": "/bin/bash",
                "uid": 1000,
                "lock_passwd": True,
            }
        ],
        "disable_root": False,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": login.host_private,
            "ed25519_public": login.host_public,
        },
        "ssh": {"emit_keys_to_console": False},
        # To print them, root would read ~/.ssh/authorized_keys, which may be a FIFO of the agent's.
        "no_ssh_fingerprints": True,
        # No updates: they would delay the first boot.
        "package_update": False,
        "package_upgrade": False,
        "apt": {"preserve_sources_list": True},
        "write_files": [
            {"path": file.path, "content": file.content, "permissions": f"{file.mode:04o}"}
            for file in [*_authorized_keys(login), *files]
        ],
        "runcmd": [["sh", "-c", f"{PROGRAM} setup || {PROGRAM} end"]],
    }
    return "#cloud-config\n" + yaml.safe_dump(data, sort_keys=False, width=10_000)


def _authorized_keys(login: GuestKeys) -> list[GuestFile]:
    """Return the files with the keys that may log in.

    They lie where root alone writes. In the agent's home, cloud-init's root would follow a symlink
    of the agent's whenever it sets the guest up again.
    """
    keys = {AGENT: login.agent_public, "root": login.admin_public}
    return [GuestFile(f"{AUTHORIZED_KEYS}/{user}", f"{key}\n") for user, key in keys.items()]


def meta_data(name: str, instance: str) -> str:
    """Return cloud-init's meta-data. With a new instance-id, cloud-init sets the guest up again."""
    return yaml.safe_dump({"instance-id": instance, "local-hostname": name})


def network_config() -> str:
    """Return the network settings: an address, but no route and no name server."""
    card = {
        "match": {"driver": "virtio_net"}, "addresses": [f"{GUEST_ADDRESS}/24"],
        "dhcp4": False, "dhcp6": False, "accept-ra": False, "link-local": [],
    }  # fmt: skip
    return yaml.safe_dump({"version": 2, "ethernets": {"net": card}})


def cloud_init_files(name: str, login: GuestKeys, guest_files: list[GuestFile]) -> dict[str, bytes]:
    """Return the files of the seed that cloud-init reads.

    Cloud-init does each step once for an instance-id, even if the step was interrupted. So the id
    is another each time.
    """
    return {
        "user-data": user_data(name, login, guest_files).encode(),
        "meta-data": meta_data(name, f"{name}-{secrets.token_hex(8)}").encode(),
        "network-config": network_config().encode(),
    }


def digest(content: dict[str, bytes]) -> bytes:
    """Return a line that differs if a name or content differs."""
    found = hashlib.sha256()
    for part in (word for name in sorted(content) for word in (name.encode(), content[name])):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest().encode() + b"\n"


def write(path: str, content: dict[str, bytes]) -> None:
    """Write an ISO image with these files to ``path`` atomically. Raises OSError.

    It begins with the digest of its content, where the format leaves room: so the guest sees
    without mounting it that it has all of that already.
    """
    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=LABEL)
    for number, (name, data) in enumerate(content.items()):
        iso.add_fp(
            io.BytesIO(data), len(data), f"/FILE{number}.;1", rr_name=name, joliet_path=f"/{name}"
        )
    new = f"{path}.new"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w+b") as file:
        iso.write_fp(file)
        file.seek(0)
        file.write(digest(content))
    iso.close()
    os.rename(new, path)
