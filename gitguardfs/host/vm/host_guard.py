"""The guard on the host, for ``--guard host``: the guest gets a guarded view of the project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gitguardfs.base.errors import warn
from gitguardfs.host.share import share_settings
from gitguardfs.host.share.share_spec import GuardPlacement, Hypervisor, ShareSpec, Transport
from gitguardfs.host.share.this_host import this_host
from gitguardfs.host.vm import trusted_programs
from gitguardfs.host.vm.settings import Settings


@contextmanager
def exported(settings: Settings, name: str) -> Iterator[str]:
    """Yield the directory to share: the project, or with ``--guard host`` a view of it.

    Unmounts the view at the end. Raises UserError.
    """
    if settings.guard != GuardPlacement.HOST:
        yield settings.project
        return
    spec = ShareSpec(
        directory=settings.project,
        tag=name,
        transport=Transport.P9,
        hypervisor=Hypervisor.QEMU,
        guard=GuardPlacement.HOST,
        host=this_host(),
        disk=os.devnull,
    )
    unmount, *arguments = share_settings.stop_on_host(spec)
    trusted_programs.check(settings.project, unmount)
    from gitguardfs.host.share import start_guard  # Linux only; ShareSpec has refused a Mac

    start_guard.start(spec)
    try:
        yield spec.mountpoint
    finally:
        command = [trusted_programs.path_of(unmount), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            warn(f"cannot unmount the view {spec.mountpoint}: {done.stderr.strip()}")
