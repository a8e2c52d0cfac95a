"""The proxy's files in a VM's state directory, and changes of the allowlist."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.egress import allowlist_lock
from gitguardfs.host.egress.allowlist import CREATED_TEXT, Allowlist, parse_line, validate_line
from gitguardfs.host.egress.allowlist_lock import AllowlistLock
from gitguardfs.host.egress.presets import PRESETS
from gitguardfs.options import config_files

MAX_ALLOWLIST = 1 << 20
"""Bytes. The proxy reads the allowlist at every request, so its size is bounded."""


class StateFiles:
    """The paths of the files in a state directory. The older part of a log ends in ``.1``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.allowlist = directory / "allowlist.txt"
        self.blocked = directory / "blocked.jsonl"  # blocked requests, a JSON object a line
        self.usage = directory / "usage.json"  # when each line of the allowlist was used last
        self.log = directory / "mitmdump.log"
        self.proxy = directory / "proxy.json"  # the running proxy's pid, port, company proxy
        self.ca_directory = directory / "mitmproxy"  # the proxy's own authority, with its key
        self.ca_certificate = self.ca_directory / "mitmproxy-ca-cert.pem"
        self.upstream_ca = directory / "upstream-ca.pem"  # authorities that the user trusts
        self.upstream_proxy = directory / "upstream-proxy"  # the company proxy's URL, no password
        # All authorities that are trusted for servers; written when the proxy starts.
        self.upstream_trust = self.ca_directory / "upstream-trust.pem"


def create_files(
    state_dir: Path,
    added: Sequence[str] = (),
    of_config: Sequence[str] | None = None,
    of_agent: Sequence[str] | None = None,
) -> None:
    """Create the directory and the allowlist if they are missing, and append what is ``added``.

    That are names of presets, and lines in normal form. A block whose first line is in the file
    already is not appended again, nor is such a line. What gitguard.toml and the agent allow,
    ``of_config`` and ``of_agent``, replaces what each allowed before; None leaves that. Raises
    UserError if an editor changes the file meanwhile; OSError.
    """
    path = StateFiles(state_dir).allowlist
    config_files.make_private_directory(state_dir)
    with allowlist_lock.held(state_dir):
        before, text = _old_text(path)
        blocks = []
        for source, wanted in ((_CONFIG, of_config), (_AGENT, of_agent)):
            text, old = _without_block(text, source)
            blocks.append(old if wanted is None else _block(wanted, source))
        for name in added:
            if name not in PRESETS:
                if parse_line(name) not in Allowlist.parse(text).rules:
                    text = f"{_ended(text)}{name}\n"
                continue
            heading = f"# Preset: {name}"
            if heading not in text.split("\n"):
                gap = "\n" if text.endswith("\n") or not text else "\n\n"
                text += f"{gap}{heading}\n{PRESETS[name]}"
        for block in filter(None, blocks):
            text = f"{_ended(text)}{block}"
        _write(path, before, text)


class _Source(NamedTuple):
    """The first and the last line of a part of the allowlist that each start writes anew."""

    begin: str
    end: str


_CONFIG = _Source(
    """
# From gitguard.toml: gitguard vm up writes these lines anew, gitguard vm config edit changes them.
""",
    "# End of the lines from gitguard.toml.\n",
)
_AGENT = _Source(
    """
# For the agent: gitguard vm up writes these lines anew, --agent none or another one changes them.
""",
    "# End of the lines for the agent.\n",
)


def _block(wanted: Sequence[str], source: _Source) -> str:
    """Return the part of the allowlist with these presets and lines; "" for none."""
    parts = (f"# {name}\n{PRESETS[name]}" if name in PRESETS else f"{name}\n" for name in wanted)
    return f"{source.begin}{''.join(parts)}{source.end}" if wanted else ""


def _without_block(text: str, source: _Source) -> tuple[str, str]:
    """Return an allowlist's text without the part from a source, and that part.

    Without its last line, which the user may have deleted, nothing tells where it ends: then its
    lines are the user's.
    """
    before, begin, rest = text.partition(source.begin)
    inside, end, after = rest.partition(source.end)
    return (before + after, begin + inside + end) if end else (before + rest, "")


def without_blocks(text: str) -> str:
    """Return an allowlist's text without the parts that each start writes anew."""
    for source in (_CONFIG, _AGENT):
        text, _ = _without_block(text, source)
    return text


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def allow(state_dir: Path, line: str, lock: AllowlistLock | None = None) -> str:
    """Add a line to the allowlist atomically; return the text for the user.

    ``lock`` is that of the VM that is meant. Raises UserError for a line that would be ignored, if
    the VM was deleted, or if an editor changes the file meanwhile; OSError.
    """
    normal = validate_line(line)
    path = StateFiles(state_dir).allowlist
    with lock.held() if lock else allowlist_lock.held(state_dir):
        before, text = _old_text(path)
        if parse_line(normal) in Allowlist.parse(text).rules:
            return f"{normal}\nis already in {path}."
        _write(path, before, f"{_ended(text)}{normal}\n")
    return f"{normal}\nwas added to {path}; it counts from the next request on."


def _old_text(path: Path) -> tuple[bytes | None, str]:
    """Return the allowlist's content, and the text to append to. The caller holds the lock."""
    before = config_files.read(str(path))
    return before, CREATED_TEXT if before is None else before.decode(errors="surrogateescape")


def _write(path: Path, before: bytes | None, text: str) -> None:
    """Replace the allowlist atomically. Raises UserError if its content is no longer ``before``."""
    after = text.encode(errors="surrogateescape")
    config_files.write(config_files.FileChange(str(path), before, after, 0o600))


def read_allowlist(files: StateFiles) -> str:
    """Return the text of the allowlist. Raises UserError if it cannot be read.

    A line that is not UTF-8 cannot be read; the other lines hold.
    """
    path = files.allowlist
    try:
        # O_NONBLOCK: a FIFO in its place must not keep the proxy waiting.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path} is not a regular file", "move it away", Exit.SYSTEM)
            content = file.read(MAX_ALLOWLIST + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"cannot read {path}: {why}", code=Exit.SYSTEM) from None
    if len(content) > MAX_ALLOWLIST:
        raise UserError(f"{path} is larger than 1 MiB", "shorten it", Exit.SYSTEM)
    return content.decode(errors="surrogateescape")
