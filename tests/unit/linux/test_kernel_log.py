"""Reading the kernel's messages from now on."""

from contextlib import closing
from pathlib import Path

from gitguardfs.linux.kernel_log import KernelLog


def test_only_what_comes_from_now_on_is_given_and_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,2,-;before\n")
    with closing(KernelLog(str(path))) as log:
        assert log.lines() == []
        with path.open("a") as file:
            file.write("6,339,5140900,-;virtio-fs: tag <a;b> not found\n SUBSYSTEM=virtio\n")
        assert log.lines() == ["virtio-fs: tag <a;b> not found"]
        assert log.lines() == []


def test_a_log_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    with closing(KernelLog(str(tmp_path / "none"))) as log:
        assert log.lines() == []
    assert log.lines() == []
