"""Keeping processors from being halted while one request follows another.

A program that waits for an answer leaves its processor idle for some microseconds. In a virtual
machine with the idle driver "haltpoll" an idle processor is handed to the hypervisor, and takes
several times as long to come back as a small request takes. The kernel can be told how long that
may take at most (Documentation/power/pm_qos_interface.rst); 0 makes idle processors poll. That
ends with our descriptor, however we end. It concerns the whole machine, so it is done only with
``--no-cpu-idle``. Without the right to it nothing is different but slower.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

LIMIT = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
PROCESSORS = 8
"""With more than these, too many would poll for the sake of one."""

AT_ONCE, WHENEVER = (struct.pack("i", microseconds) for microseconds in (0, 2_000_000_000))


class Awake:
    """The limit on how long an idle processor may take to come back."""

    def __init__(self, is_wanted: bool) -> None:
        """Open the device if ``is_wanted`` (``--no-cpu-idle``) and it makes a difference here."""
        self.held = False
        self._fd = -1
        if not is_wanted or (os.cpu_count() or 1) > PROCESSORS:
            return
        with suppress(OSError):
            if "haltpoll" in DRIVER.read_text():
                self._fd = os.open(LIMIT, os.O_RDWR | os.O_CLOEXEC)

    def hold(self) -> bool:
        """No processor is to be halted from now on; whether that is new."""
        if self.held or self._fd < 0:
            return False
        self.held = self._limit(AT_ONCE)
        return self.held

    def let_go(self) -> bool:
        """Processors may be halted; whether that is new."""
        if not self.held:
            return False
        self._limit(WHENEVER)
        self.held = False
        return True

    def _limit(self, value: bytes) -> bool:
        with suppress(OSError):
            return os.write(self._fd, value) == len(value)
        return False
