"""Block devices."""

from __future__ import annotations

import os

SECTOR = 512
"""The unit of /sys/dev/block/*/size, whatever the device's own sectors are."""


def device_size(number: int) -> int:
    """The bytes of a block device, by its device number; 0 if there is none."""
    path = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size"
    try:
        with open(path) as file:
            return int(file.read()) * SECTOR
    except (OSError, ValueError):
        return 0
