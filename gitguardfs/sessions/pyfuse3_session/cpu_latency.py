"""A PM QoS request that keeps processors from halting while one request follows another.

A program that waits for an answer leaves its processor idle for some microseconds. In a virtual
machine with the idle driver "haltpoll", an idle processor is handed to the hypervisor. It takes
several times as long to come back as a small request takes.

A write to /dev/cpu_dma_latency limits that time (Documentation/power/pm_qos_interface.rst); 0 makes
idle processors poll. The kernel drops the limit when our descriptor is closed, even by a crash.
The limit is for the whole machine, so it is set only with ``--no-cpu-idle``. Without the right to
open the device, requests are slower and nothing else differs.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

LIMIT = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
PROCESSORS = 8
"""With more processors, too many would poll for the sake of one: no limit is set."""

AT_ONCE, WHENEVER = (struct.pack("i", microseconds) for microseconds in (0, 2_000_000_000))


class Awake:
    """The limit on how long an idle processor may take to come back."""

    def __init__(self, is_wanted: bool) -> None:
        """Open the device if ``is_wanted`` (``--no-cpu-idle``) and the idle driver is haltpoll."""
        self.held = False
        self._fd = -1
        if not is_wanted or (os.cpu_count() or 1) > PROCESSORS:
            return
        with suppress(OSError):
            if "haltpoll" in DRIVER.read_text():
                self._fd = os.open(LIMIT, os.O_RDWR | os.O_CLOEXEC)

    def hold(self) -> bool:
        """Keep processors from halting. Returns whether the limit was set by this call."""
        if self.held or self._fd < 0:
            return False
        self.held = self._limit(AT_ONCE)
        return self.held

    def let_go(self) -> bool:
        """Allow processors to halt. Returns whether a limit was dropped by this call."""
        if not self.held:
            return False
        self._limit(WHENEVER)
        self.held = False
        return True

    def _limit(self, value: bytes) -> bool:
        with suppress(OSError):
            return os.write(self._fd, value) == len(value)
        return False
