"""Takes a VM's first start back that has failed: a guest that never was ready is no VM."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gitguardfs.base.errors import UserError
from gitguardfs.host.credentials import secrets
from gitguardfs.host.egress.allowlist import CREATED_TEXT
from gitguardfs.host.egress.files import read_allowlist, without_blocks
from gitguardfs.host.vm import keys, logs, secret_changes, settings
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State, remove


@contextmanager
def undone_if_it_fails(state: State) -> Iterator[None]:
    """Delete what a first start has made, if it fails before the guest was ready.

    What the user has chosen stays for the next start, which must not share or allow more; and the
    logs stay. The caller holds the VM's locks, also while the context ends.
    """
    is_first, image = not state.has_disk, settings.load(state).image
    try:
        yield
    except BaseException:
        # An error here must not hide the one that ended the start.
        with suppress(OSError, UserError):
            if is_first and not os.path.exists(state.ready):
                _undo(state, image)
        raise


def _undo(state: State, image: str) -> None:
    for path in (state.disk, f"{state.disk}.new", state.seed):
        with suppress(FileNotFoundError):
            os.unlink(path)
    shutil.rmtree(state.path(keys.DIRECTORY), ignore_errors=True)
    settings.save_image(state, image)
    with secret_changes.changing(state):
        if not _has_choices(state) and not logs.delete_others(state):
            remove(state)


def _has_choices(state: State) -> bool:
    """Return whether the user has chosen what the next start must know. UserError, OSError."""
    files = state.files
    # Names to show may be those that git tracks; the next start asks it again.
    remembered = dataclasses.replace(settings.load_saved(state).remembered, show=())
    return (
        remembered != Settings(state.project)
        or any(os.path.lexists(path) for path in (files.upstream_ca, files.upstream_proxy))
        or (files.allowlist.exists() and without_blocks(read_allowlist(files)) != CREATED_TEXT)
        or bool(secrets.load(files.directory))
    )  # fmt: skip
