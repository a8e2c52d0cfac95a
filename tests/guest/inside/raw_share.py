"""Tries every way round the mount to the raw share; prints those that are open, as JSON.

``python -m tests.guest.inside.raw_share RAW VIEW TAG TYPE ACTOR``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.raw_share import WAYS, Share, opens
from tests.support.siege import act


def daemons() -> Iterator[int]:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/gitguardfs") for word in words):
            yield int(entry)


def main() -> None:
    raw, view, tag, transport, actor = sys.argv[1:]
    share = Share(Path(raw), Path(view), "demo/.git/config", tuple(daemons()), tag, transport)
    found = {way.__name__: act(actor, opens, way, share) for way in WAYS}
    print(json.dumps({name: got for name, got in found.items() if got}))


if __name__ == "__main__":
    main()
