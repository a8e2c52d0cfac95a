"""Which devices count as local: only those that are known to be."""

import errno
import os
from pathlib import Path

import pytest

from gitguardfs.linux import local_devices, mountinfo
from gitguardfs.linux.local_devices import LocalDevices

Table = list[tuple[str, str, str, str]]
"""Device, path, type and options of each mount."""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    rows: Table = []

    def listed() -> list[mountinfo.MountInfo]:
        return [
            mountinfo.MountInfo(
                device=device,
                mount_point=os.fsencode(path),
                fstype=fstype,
                source="",
                mnt_id=1,
                super_options=options,
            )
            for device, path, fstype, options in rows
        ]

    monkeypatch.setattr(mountinfo, "listed", listed)
    return rows


def _device(number: str) -> int:
    return os.makedev(*map(int, number.split(":")))


def test_each_device_is_asked_for(table: Table) -> None:
    table += [
        ("8:1", "/", "ext4", ""), ("0:40", "/src", "virtiofs", ""),
        ("0:41", "/src/cache", "tmpfs", ""), ("0:42", "/src/nfs", "nfs4", ""),
        ("0:43", "/src/vbox", "vboxsf", ""),
    ]  # fmt: skip
    local = LocalDevices("/src")
    found = {number: local(_device(number)) for number, *_ in table}
    assert found == {"8:1": True, "0:40": False, "0:41": True, "0:42": False, "0:43": False}
    assert not local(_device("0:99")), "it is not known"


def test_a_device_number_that_is_given_out_again_is_asked_for_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(local_devices, "monotonic", lambda: clock[0])
    table.append(("0:40", "/src", "tmpfs", ""))
    local = LocalDevices("/src")
    assert local(_device("0:40"))
    table[:] = [("0:40", "/src", "nfs4", "")]
    clock[0] += local_devices.VALID_FOR
    assert not local(_device("0:40"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_without_descriptors_the_last_answer_counts(
    table: Table, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    clock = [100.0]
    monkeypatch.setattr(local_devices, "monotonic", lambda: clock[0])
    table.append(("0:40", "/src", "tmpfs", ""))
    local = LocalDevices("/src")
    assert local(_device("0:40"))

    def fail() -> list[mountinfo.MountInfo]:
        raise OSError(number, "")

    with monkeypatch.context() as patch:
        patch.setattr(mountinfo, "listed", fail)
        assert local(_device("0:40"))
        clock[0] += 2 * local_devices.VALID_FOR
        if number == errno.EIO:
            with pytest.raises(OSError, match="Errno 5"):
                local(_device("0:40"))
        else:
            assert local(_device("0:40"))
            assert not local(_device("0:41")), "it was never known"
    table[:] = [("0:40", "/src", "nfs4", "")]
    clock[0] += local_devices.VALID_FOR
    assert not local(_device("0:40")), "it is asked for again"


@pytest.mark.parametrize(
    ("path", "expected"), [("/", True), ("/src", True), ("/src/sub", True), ("/other", False)]
)
def test_a_subvolume_has_a_device_that_is_not_listed(
    table: Table, path: str, expected: bool
) -> None:
    table += [("8:1", "/", "ext4", ""), ("0:30", path, "btrfs", "")]
    assert LocalDevices("/src")(_device("0:31")) == expected


def test_what_is_not_listed_in_a_share_beside_a_subvolume_is_not_local(table: Table) -> None:
    table += [("0:30", "/", "btrfs", ""), ("0:40", "/src", "virtiofs", "")]
    assert not LocalDevices("/src")(_device("0:31"))


@pytest.mark.parametrize("fstype", ["nfs4", "vboxsf", "fuse.sshfs", "prl_fs"])
@pytest.mark.parametrize(
    ("path", "matters"), [("/src/deep/down", True), ("/srcs", False), ("/", False)]
)
def test_all_are_local_if_all_below_the_source_are(
    table: Table, fstype: str, path: str, matters: bool
) -> None:
    table += [("0:50", path, fstype, ""), ("8:1", "/src", "ext4", "")]
    assert LocalDevices("/src").all_are(_device("8:1")) == (not matters)
    assert not LocalDevices("/src").all_are(_device("0:50"))


def test_an_overlay_is_local_if_all_its_layers_are(table: Table, tmp_path: Path) -> None:
    layer = tmp_path / "with:colon"
    layer.mkdir()
    mine = os.stat(layer).st_dev
    escaped = str(layer).replace(":", "\\:")
    mine_text = f"{os.major(mine)}:{os.minor(mine)}"
    for options, expected in (
        (f"lowerdir={escaped}:/nowhere,upperdir={escaped}", False),
        (f"lowerdir={escaped},upperdir={escaped},workdir=/nowhere", True),
        (f"lowerdir+={escaped},datadir+={escaped}", True),
        (f"lowerdir={escaped},upperdir=relative", False),
        ("", False),
    ):
        for fstype in ("ext4", "nfs4"):
            table[:] = [(mine_text, "/", fstype, ""), ("0:60", "/src", "overlay", options)]
            local = LocalDevices("/src")
            assert local(_device("0:60")) == (expected and fstype == "ext4"), (options, fstype)


def test_this_machine_s_own_list_is_read(tmp_path: Path) -> None:
    assert not LocalDevices("/")(os.stat("/proc").st_dev)
