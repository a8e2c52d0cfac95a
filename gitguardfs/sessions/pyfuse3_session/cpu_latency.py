"""A PM QoS request that keeps processors from halting while one request follows another.

A program that waits for an answer leaves its processor idle for some microseconds. In a virtual
machine with the idle driver "haltpoll", an idle processor is handed to the hypervisor. Getting it
back takes several times as long as a small request.

A write to /dev/cpu_dma_latency limits that time (Documentation/power/pm_qos_interface.rst); 0 makes
idle processors poll. The kernel drops the limit when our descriptor is closed, even by a crash.
The limit holds for the whole machine, so it is set only with ``--no-cpu-idle``. Without permission
to open the device, requests are slower and nothing else differs.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
PROCESSORS = 8
"""Processors at most: on a larger machine no limit is set, since all of them would poll."""

NO_LATENCY, ANY_LATENCY = (struct.pack("i", microseconds) for microseconds in (0, 2_000_000_000))


class CpuLatencyRequest:
    """The limit on how long an idle processor may take to wake up."""

    def __init__(self, is_wanted: bool) -> None:
        """Open the device if ``is_wanted`` (``--no-cpu-idle``) and the idle driver is haltpoll."""
        self.held = False
        self._fd = -1
        if not is_wanted or (os.cpu_count() or 1) > PROCESSORS:
            return
        with suppress(OSError):
            if "haltpoll" in DRIVER.read_text():
                self._fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)

    def acquire(self) -> bool:
        """Keep processors from halting. Returns whether this call set the limit."""
        if self.held or self._fd < 0:
            return False
        self.held = self._set_limit(NO_LATENCY)
        return self.held

    def release(self) -> bool:
        """Let processors halt. Returns whether this call dropped the limit."""
        if not self.held:
            return False
        self._set_limit(ANY_LATENCY)
        self.held = False
        return True

    def _set_limit(self, value: bytes) -> bool:
        with suppress(OSError):
            return os.write(self._fd, value) == len(value)
        return False
