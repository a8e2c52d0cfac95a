"""The records by which a guard's daemon is found, and the spelling of its options."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.base.constants import FSTYPE
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards
from gitguardfs.options.parsing import merge, parse_o, quote_o, spelled

VIEW = MountInfo(device="0:77", mount_point=b"/view", fstype=FSTYPE, source="/source", mnt_id=5)


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guards, "RECORDS", str(tmp_path / "records"))
    return tmp_path / "records"


def test_a_running_daemon_is_found_by_its_mount_until_it_removes_its_record(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guards.daemon_of(VIEW) is None
    record = guards.Record(VIEW, "/source", ["map=1:2", "hide=a,b\udcff"])
    assert records.stat().st_mode & 0o777 == 0o700
    daemon = guards.daemon_of(VIEW)
    assert daemon is not None and daemon.pid == os.getpid()
    assert (daemon.source, daemon.options) == ("/source", ("map=1:2", "hide=a,b\udcff"))
    # In another mount namespace, a living view has another number.
    monkeypatch.setattr(mountinfo, "listed", lambda: [replace(VIEW, mnt_id=9)])
    assert guards.orphan_of("/source") is None
    monkeypatch.setattr(mountinfo, "listed", list)
    assert guards.orphan_of("/source") == daemon and guards.orphan_of("/other") is None
    record.remove()
    assert guards.servers() == () and list(records.iterdir()) == []


def test_the_record_of_a_daemon_that_was_killed_counts_no_longer_and_is_removed(
    records: Path,
) -> None:
    code = f"""
import os, signal
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import guards
guards.RECORDS = {str(records)!r}
guards.Record(MountInfo(device="0:77", mount_point=b"/view", fstype="x", source="s"), "/s", [])
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    [left] = records.iterdir()
    assert guards.servers() == ()
    record = guards.Record(VIEW, "/source", [])
    assert not left.exists()
    record.remove()


@pytest.mark.parametrize(
    "given",
    ["", "git=off,ro", "map=1:2,map=3:4,hide=a\\,b,deny=x", "no-seal,noatime,dev,noexec",
     "cache-timeout=0,xattr=rw,create-as-mounter,user=1", "rw,fsname=x,allow-holders"],
)  # fmt: skip
def test_options_are_read_back_as_they_were_given(given: str) -> None:
    parsed = merge(parse_o([given]), {"nonempty": True})
    assert parse_o([",".join(map(quote_o, spelled(parsed)))]) == parsed
