"""The guard on the host, for ``--guard host``: the guest gets guarded views of directories."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gitguardfs.base import walk
from gitguardfs.base.errors import UserError, failing, shown, warn
from gitguardfs.base.paths import checksum
from gitguardfs.host.share import share_settings
from gitguardfs.host.share.share_spec import GuardPlacement, Hypervisor, ShareSpec, Transport
from gitguardfs.host.share.this_host import this_host
from gitguardfs.host.vm import trusted_programs
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import Share


def programs(settings: Settings) -> tuple[str, ...]:
    """Return the programs that the guard on the host needs, if it is there."""
    return ("fusermount3",) if settings.guard == GuardPlacement.HOST else ()


@contextmanager
def exported(settings: Settings, name: str) -> Iterator[tuple[Share, ...]]:
    """Yield the shares: of the directories, or with ``--guard host`` of views of them.

    Unmounts the views at the end. Raises UserError.
    """
    if settings.guard != GuardPlacement.HOST:
        yield settings.shares
        return
    project, *others = settings.shares
    with ExitStack() as stack:
        # Another VM may share the same directories.
        names = [name, *(f"{checksum(project.directory)}-{one.tag}" for one in others)]
        yield tuple(
            dataclasses.replace(one, directory=stack.enter_context(_view(settings, one, own)))
            for one, own in zip((project, *others), names, strict=True)
        )


@contextmanager
def _view(settings: Settings, share: Share, name: str) -> Iterator[str]:
    """Yield the mount point of a guarded view of a share's directory. Raises UserError."""
    spec = ShareSpec(
        directory=share.directory,
        tag=name,
        transport=Transport.P9,
        hypervisor=Hypervisor.QEMU,
        guard=GuardPlacement.HOST,
        host=this_host(),
        disk=os.devnull,
        hiding=_hiding(settings),
    )
    unmount, *arguments = share_settings.stop_on_host(spec)
    trusted_programs.check(settings, unmount)
    from gitguardfs.host.share import start_guard  # Linux only; ShareSpec has refused a Mac

    with failing(f"cannot share {shown(share.directory)}"):
        held = walk.open_directory(share.directory)
    try:
        start_guard.start(spec)
        try:
            # The agent of another VM could have exchanged it for a symlink since it was checked.
            if os.stat(spec.mountpoint).st_ino != os.fstat(held).st_ino:
                raise UserError(f"{shown(share.directory)} was exchanged meanwhile", "find out why")
            yield spec.mountpoint
        finally:
            command = [trusted_programs.path_of(unmount), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                warn(f"cannot unmount the view {spec.mountpoint}: {done.stderr.strip()}")
    finally:
        os.close(held)


def _hiding(settings: Settings) -> tuple[str, ...]:
    """Return the options with which the guard hides names from the guest's root, too."""
    showing = settings.show if settings.hide_secrets else ()
    return (
        *(f"--hide={name}" for name in settings.hide),
        *(["--hide-secrets"] if settings.hide_secrets else []),
        *(f"--show={name}" for name in showing),
    )
