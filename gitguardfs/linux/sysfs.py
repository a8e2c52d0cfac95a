"""Reads the size of block devices from sysfs."""

from __future__ import annotations

import os

SECTOR = 512
"""Bytes: the unit of /sys/dev/block/*/size, whatever the device's own sector size is."""


def device_size(number: int) -> int:
    """Return the size of a block device in bytes, by its device number; 0 if it is unknown."""
    path = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size"
    try:
        with open(path) as file:
            return int(file.read()) * SECTOR
    except (OSError, ValueError):
        return 0
