"""Collects what is written to the seed, from which the guest is set up and prepared.

A VM's own seed has the VM's keys, authority and settings. The seed of a disk that VMs will share
has none of a VM or user: its keys and authority are made for it, and end with it.
"""

from __future__ import annotations

import functools
import io
import itertools
import tarfile
from collections.abc import Iterable

from gitguardfs.base import installation
from gitguardfs.guest import systemd
from gitguardfs.host.credentials.secrets import Secret
from gitguardfs.host.vm import agents, seed
from gitguardfs.host.vm.agents import Agent
from gitguardfs.host.vm.guest_files import AUTHORIZED_KEYS, GuestFile, files
from gitguardfs.host.vm.keys import ADMIN, HOST, Keys
from gitguardfs.host.vm.keys import AGENT as AGENT_KEY
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import PROJECT_TAG, Share
from gitguardfs.options.guarded_share import GuardedShare, owner_map, with_local

Ids = tuple[int, int]
"""A user's id and a group's."""
AGENT_IDS: Ids = (1000, 1000)
"""The ids of the agent's user, which cloud-init makes."""
TRANSPORT = "9p"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
"""The path of the guest's host key."""


def content(
    name: str, own: list[GuestFile], keys: Keys, ca: str, agent: Agent | None = None
) -> dict[str, bytes]:
    """Return the files of the seed for the VM ``name``, with which each of its starts begins.

    ``own`` has the files that ``guest_files`` returns. Raises UserError, OSError.
    """
    archive = _archive([*own, *_login_files(name, keys)])
    return {
        "files.tar": archive,
        "files.digest": seed.digest({"": archive}),
        **_for_setup(ca, shared_content(agent.for_ready_disk if agent else None)),
    }


def disk_content(
    name: str, keys: Keys, ca: str, shared: dict[str, bytes], agent: Agent | None = None
) -> dict[str, bytes]:
    """Return the files of the seed for a disk that VMs will share. Raises OSError."""
    return {
        "is-shared": b"yes\n",
        **_for_setup(ca, shared),
        **seed.cloud_init_files(name, _login(keys), _shared_files(agent)),
    }


@functools.cache
def shared_content(agent: Agent | None = None) -> dict[str, bytes]:
    """Return the files of a setup that no VM with this agent, of a ready disk, differs in.

    They have the same bytes each time. Raises OSError.
    """
    return {"files": _archive(_shared_files(agent)), seed.PAYLOAD: installation.bundle()}


def _login(keys: Keys) -> seed.GuestKeys:
    return seed.GuestKeys(
        agent_public=keys.public_text(AGENT_KEY),
        admin_public=keys.public_text(ADMIN),
        host_private=keys.private_text(HOST),
        host_public=keys.public_text(HOST),
    )


def _for_setup(ca: str, shared: dict[str, bytes]) -> dict[str, bytes]:
    return {
        "ca.pem": ca.encode(),
        seed.PAYLOAD: shared[seed.PAYLOAD],
        "gitguardfs.digest": seed.digest({"": shared[seed.PAYLOAD]}),
        "shared.digest": seed.digest({"": shared["files"]}),
    }


def guest_files(
    settings: Settings,
    ca: str,
    secrets: tuple[Secret, ...] = (),
    owners: Iterable[Ids] = (),
    repository: Share | None = None,
) -> list[GuestFile]:
    """Return the files of a VM's guest but for those with keys.

    ``owners`` has user and group of each shared directory; ``repository`` is what the machine has
    as the project's. Raises UserError, OSError.
    """
    units: dict[str, str] = {}
    for share, owner in zip(settings.shares, owners or itertools.repeat(AGENT_IDS), strict=False):
        more: tuple[str, ...] = ()
        if repository is not None and share.tag == PROJECT_TAG:
            more = (f"repository={repository.mount}",)
        units |= systemd.files(_guarded_share(settings, share, owner, more))
    if repository is not None:
        unit = systemd.raw_unit(repository.tag, TRANSPORT, repository.mount)
        units[systemd.mount_name(repository.mount)] = unit
    services = [systemd.service_name(share.view) for share in settings.shares]
    return files(settings, units, ca, services, secrets, agents.of(settings))


def _shared_files(agent: Agent | None) -> list[GuestFile]:
    settings = Settings("/project")
    (share,) = settings.shares
    units = systemd.files(_guarded_share(settings, share, AGENT_IDS))
    del units[systemd.drop_in_name(share.view)]
    return files(settings, units, agent=agent)


def _guarded_share(
    settings: Settings, share: Share, owner: Ids, more: tuple[str, ...] = ()
) -> GuardedShare:
    """Return a share and its guard. Raises UserError for a view with too long a path.

    The numbers of ``owner`` are the same in the guest, since 9p passes them through.
    """
    return GuardedShare(
        tag=share.tag,
        transport=TRANSPORT,
        mount=share.mount,
        map_mount=share.view,
        map=owner_map(owner, AGENT_IDS),
        options=(*mount_options(settings, share.is_writable), *more),
    )


def _login_files(name: str, keys: Keys) -> list[GuestFile]:
    return [
        GuestFile("/etc/hostname", f"{name}\n"),
        GuestFile(HOST_KEY, keys.private_text(HOST), 0o600),
        GuestFile(f"{HOST_KEY}.pub", f"{keys.public_text(HOST)}\n"),
        GuestFile(f"{AUTHORIZED_KEYS}/agent", f"{keys.public_text(AGENT_KEY)}\n"),
        GuestFile(f"{AUTHORIZED_KEYS}/root", f"{keys.public_text(ADMIN)}\n"),
    ]


def mount_options(settings: Settings, is_writable: bool = True) -> tuple[str, ...]:
    """Return the options of a share's guard, unquoted."""
    options = [f"git={settings.git_mode}", *(f"hide={name}" for name in settings.hide)]
    if settings.hide_secrets:
        options += ["hide-secrets", *(f"show={name}" for name in settings.show)]
    if not is_writable:  # QEMU refuses changes too; directories of the guest's own would stay empty
        return (*options, "read-only")
    return with_local(tuple(options), settings.local)


def _archive(guest_files: list[GuestFile]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in guest_files:
            member = tarfile.TarInfo(file.path.lstrip("/"))
            member.size, member.mode = len(file.data), file.mode
            tar.addfile(member, io.BytesIO(file.data))
    return buffer.getvalue()
