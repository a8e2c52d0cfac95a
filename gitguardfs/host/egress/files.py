"""The proxy's files in a VM's state directory: their names, and how they are made and read."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gitguardfs.base import config_files
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.egress import allowlist_lock
from gitguardfs.host.egress.allowlist import CREATED_TEXT
from gitguardfs.host.egress.presets import PRESETS

MAX_ALLOWLIST = 1 << 20
"""Bytes. The proxy reads the allowlist at every request, so its size is bounded."""


@dataclass(frozen=True)
class StateFiles:
    """The names of the files in one state directory."""

    directory: Path

    @property
    def allowlist(self) -> Path:
        """The allowlist."""
        return self.directory / "allowlist.txt"

    @property
    def blocked(self) -> Path:
        """Blocked requests, one JSON object a line. The older part's name ends in ``.1``."""
        return self.directory / "blocked.jsonl"

    @property
    def usage(self) -> Path:
        """When each line of the allowlist was used last, as JSON."""
        return self.directory / "usage.json"

    @property
    def log(self) -> Path:
        """The proxy's log. The older part's name ends in ``.1``."""
        return self.directory / "mitmdump.log"

    @property
    def proxy(self) -> Path:
        """Process id and port of the running proxy, as JSON."""
        return self.directory / "proxy.json"

    @property
    def ca_directory(self) -> Path:
        """The certificate authority of this proxy, with its key."""
        return self.directory / "mitmproxy"

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which the guest must trust."""
        return self.ca_directory / "mitmproxy-ca-cert.pem"

    @property
    def upstream_ca(self) -> Path:
        """Authorities that the user trusts for servers, besides those of the system."""
        return self.directory / "upstream-ca.pem"

    @property
    def upstream_proxy(self) -> Path:
        """The URL of the company's proxy that the user has set, without its password."""
        return self.directory / "upstream-proxy"

    @property
    def upstream_trust(self) -> Path:
        """All authorities that are trusted for servers; written when the proxy starts."""
        return self.ca_directory / "upstream-trust.pem"


def create_files(state_dir: Path, presets: Sequence[str] = ()) -> None:
    """Create the directory and the allowlist if they are missing, and append preset blocks.

    A block whose first line is in the file already is not appended again. Raises UserError for an
    unknown preset, or if an editor changes the file meanwhile; OSError.
    """
    for name in presets:
        if name not in PRESETS:
            known = ", ".join(PRESETS)
            raise UserError(f"there is no preset {name}", f"the presets are {known}")
    files = StateFiles(state_dir)
    config_files.make_private_directory(state_dir)
    with allowlist_lock.held(state_dir):
        before, text = old_allowlist(files)
        for name in presets:
            if _heading(name) not in text.split("\n"):
                gap = "\n" if text.endswith("\n") or not text else "\n\n"
                text += f"{gap}{_heading(name)}\n{PRESETS[name]}"
        write(files.allowlist, before, text)


def old_allowlist(files: StateFiles) -> tuple[bytes | None, str]:
    """Return the content of the allowlist, and the text to add to. The caller holds the lock."""
    before = config_files.read(str(files.allowlist))
    return before, CREATED_TEXT if before is None else before.decode(errors="surrogateescape")


def _heading(preset: str) -> str:
    return f"# Preset: {preset}"


def write(path: Path, before: bytes | None, text: str) -> None:
    """Replace a file atomically. Raises UserError if it no longer has the content ``before``."""
    after = text.encode(errors="surrogateescape")
    config_files.write(config_files.FileChange(str(path), before, after, 0o600))


def read_allowlist(files: StateFiles) -> str:
    """Return the text of the allowlist. Raises UserError if it cannot be read.

    A line that is not UTF-8 cannot be read; the other lines hold.
    """
    try:
        # O_NONBLOCK: a FIFO in its place must not keep the proxy waiting.
        with open(os.open(files.allowlist, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                raise UserError(
                    f"{files.allowlist} is not a regular file", "move it away", Exit.SYSTEM
                )
            content = f.read(MAX_ALLOWLIST + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"cannot read {files.allowlist}: {why}", code=Exit.SYSTEM) from None
    if len(content) > MAX_ALLOWLIST:
        raise UserError(f"{files.allowlist} is larger than 1 MiB", "shorten it", Exit.SYSTEM)
    return content.decode(errors="surrogateescape")
