"""The limit on CPU latency is set while it is wanted, on machines that have it."""

import os
import struct
from pathlib import Path

import pytest

from gitguardfs.sessions.pyfuse3_session import cpu_latency
from gitguardfs.sessions.pyfuse3_session.cpu_latency import CpuLatencyRequest

NONE, DEFAULT = 0, 2_000_000_000


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the kernel's; what is written to it is appended."""
    device, driver = tmp_path / "cpu_dma_latency", tmp_path / "current_driver"
    device.touch()
    driver.write_text("haltpoll\n")
    monkeypatch.setattr(cpu_latency, "DEVICE", device)
    monkeypatch.setattr(cpu_latency, "DRIVER", driver)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return device


def said(limit: Path) -> list[int]:
    """The limits that were set, in microseconds."""
    return [value for (value,) in struct.iter_unpack("i", limit.read_bytes())]


def test_it_is_said_once_and_taken_back_once(limit: Path) -> None:
    processors = CpuLatencyRequest(True)
    assert said(limit) == []
    processors.release()
    assert said(limit) == []
    for _ in range(3):
        processors.acquire()
        assert processors.held
    assert said(limit) == [NONE]
    for _ in range(3):
        processors.release()
        assert not processors.held
    assert said(limit) == [NONE, DEFAULT]


def test_idle_processors_that_are_not_handed_to_a_hypervisor_are_left_alone(limit: Path) -> None:
    cpu_latency.DRIVER.write_text("intel_idle\n")
    processors = CpuLatencyRequest(True)
    processors.acquire()
    assert not processors.held
    assert said(limit) == []


def test_many_processors_are_not_kept_awake_for_one(
    limit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpu_latency.PROCESSORS + 1)
    processors = CpuLatencyRequest(True)
    processors.acquire()
    assert not processors.held
    assert said(limit) == []


def test_a_limit_that_is_not_taken_is_not_believed(
    limit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_latency, "DEVICE", Path("/dev/full"))
    processors = CpuLatencyRequest(True)
    processors.acquire()
    assert not processors.held
