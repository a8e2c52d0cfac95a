"""How a view ends, and what is left of its seal and its lid: the table in docs/internals.md."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gitguardfs.linux import mountinfo
from gitguardfs.mounting.signals import HELPER_LIMIT
from tests.mount.mounting.test_lid import LID, VIEW, mounts_at
from tests.support.mounting import LIMIT, area, command, daemons, gitguardfs, unmount, until

SEAL = "gitguardfs-seal"
WITHOUT_HELPER = ("umount", "-i")
"""What umount(8) does where no helper is installed."""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        for name in ("source", "view", "second"):
            (path / name).mkdir()
        (path / "source/file").write_text("text")
        (path / "source").chmod(0o700)
        try:
            yield path
        finally:
            for pid in daemons(path):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not daemons(path), "all daemons end")
            for name in ("second", "view", "source"):
                unmount(path / name)


def _start(here: Path, *options: str) -> int:
    """Start a daemon in the background; return its pid."""
    _mount(here / "source", here / "view", *options)
    _keeper, pid = daemons(here)
    return pid


def _mount(*arguments: str | Path) -> None:
    subprocess.run(command(*arguments), check=True, capture_output=True, timeout=LIMIT)


# ------------------------------------------------------------------------- A view without a seal

WAYS = [
    ("umount",), WITHOUT_HELPER, ("umount", "-l"), ("umount", "-i", "-l"),
    ("fusermount3", "-u"), ("fusermount3", "-u", "-z"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_an_unsealed_view_that_is_unmounted_leaves_nothing(here: Path, way: Sequence[str]) -> None:
    """As with bindfs. Its daemon does not wait for a word of the umount helper."""
    _start(here)
    since = time.monotonic()
    subprocess.run([*way, here / "view"], check=True)
    until(lambda: mounts_at(here / "view") == [], "its place is open")
    until(lambda: not daemons(here), "daemon and keeper end")
    assert time.monotonic() - since < HELPER_LIMIT
    (here / "view").rmdir()


@pytest.mark.parametrize("way", [WITHOUT_HELPER, ("fusermount3", "-u")], ids=" ".join)
def test_that_is_no_error(here: Path, way: Sequence[str]) -> None:
    with gitguardfs(here / "source", here / "view") as mounted:
        subprocess.run([*way, here / "view"], check=True)
        assert mounted.process.wait(LIMIT) == 0
        assert "unmounted" in mounted.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_a_daemon_in_the_foreground_leaves_nothing(
    here: Path, number: signal.Signals
) -> None:
    with gitguardfs(here / "source", here / "view") as mounted:
        mounted.process.send_signal(number)
        assert mounted.process.wait(LIMIT) == 0
        assert mounts_at(here / "view") == []


@pytest.mark.parametrize("way", [("umount", "-l"), ("umount", "-i", "-l")], ids=" ".join)
def test_programs_that_use_it_do_not_keep_its_place_closed(here: Path, way: Sequence[str]) -> None:
    _start(here)
    with open(here / "view/file") as file:
        subprocess.run([*way, here / "view"], check=True)
        until(lambda: mounts_at(here / "view") == [], "its place is open")
        assert file.read() == "text"
    until(lambda: not daemons(here), "daemon and keeper end")


def test_a_view_whose_connection_was_aborted_leaves_its_lid(here: Path) -> None:
    """The dead mount is still there. The keeper then mounts it again."""
    former = _start(here)
    view = mountinfo.top_at(str(here / "view"))
    assert view is not None
    with _control() as connections:
        (connections / view.device.partition(":")[2] / "abort").write_text("1")
    until(lambda: daemons(here)[1:] not in ([], [former]), "another daemon")
    until(lambda: os.access(here / "view/file", os.F_OK), "it is back")
    assert mounts_at(here / "view") == [LID, VIEW]


class _control:  # a context manager
    def __enter__(self) -> Path:
        path = Path("/sys/fs/fuse/connections")
        self._mounted = not any(path.iterdir())
        if self._mounted:
            subprocess.run(["mount", "-n", "-t", "fusectl", "none", path], check=True)
        return path

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", "-n", "/sys/fs/fuse/connections"], check=True)


# ------------------------------------------------------------------------------- A sealed view


@pytest.mark.parametrize("end", ["helper", signal.SIGTERM])
def test_root_s_way_opens_everything(here: Path, end: str | signal.Signals) -> None:
    pid = _start(here, "--seal")
    if isinstance(end, str):
        subprocess.run(["umount", here / "view"], check=True)
    else:
        os.kill(pid, end)
    until(lambda: not daemons(here), "daemon and keeper end")
    assert mounts_at(here / "view") == mounts_at(here / "source") == []


@pytest.mark.parametrize("way", [WITHOUT_HELPER, ("fusermount3", "-u")], ids=" ".join)
def test_another_way_leaves_seal_and_lid_and_nothing_is_mounted_again(
    here: Path, way: Sequence[str]
) -> None:
    """A user may have raced fusermount3. One command of root's then opens both."""
    _start(here, "--seal")
    subprocess.run([*way, here / "view"], check=True)
    until(lambda: not daemons(here), "daemon and keeper end")
    assert (mounts_at(here / "view"), mounts_at(here / "source")) == ([LID], [SEAL])
    subprocess.run(["umount", here / "source", here / "view"], check=True)
    assert mounts_at(here / "view") == mounts_at(here / "source") == []
    (here / "view").rmdir()


def test_it_is_an_error_that_names_that_command(here: Path) -> None:
    """A service manager then starts another daemon."""

    def take_away() -> None:
        with gitguardfs(here / "source", here / "view", "--seal") as mounted:
            subprocess.run([*WITHOUT_HELPER, here / "view"], check=True)
            mounted.process.wait(LIMIT)

    opens = f"umount {here}/source {here}/view opens it"
    with pytest.raises(AssertionError, match=f"(?s)ended with 2.*not by root.*{opens}"):
        take_away()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2], ids=lambda n: n.name)
@pytest.mark.parametrize("options", [("--seal",), ("--no-seal",)], ids=" ".join)
def test_a_crash_and_a_restart_leave_the_lid(
    here: Path, options: Sequence[str], number: signal.Signals
) -> None:
    _start(here, *options)
    for pid in daemons(here):
        os.kill(pid, number)
    until(lambda: not daemons(here), "daemon and keeper end")
    assert mounts_at(here / "view")[0] == LID
    assert (mounts_at(here / "source") == [SEAL]) == (options == ("--seal",))


# ---------------------------------------------------------------------------- Two views at once


def test_a_view_in_a_view_is_unmounted_with_it(here: Path) -> None:
    (here / "source/inner").mkdir()
    _start(here)
    _mount(here / "second", here / "view/inner")
    subprocess.run(["umount", "-i", "-l", here / "view"], check=True)
    until(lambda: mounts_at(here / "view") == [], "its place is open")
    until(lambda: not daemons(here), "all daemons end")


def test_a_view_of_a_view_goes_on_when_that_is_unmounted_lazily(here: Path) -> None:
    _start(here)
    _mount(here / "view", here / "second")
    subprocess.run(["umount", "-i", "-l", here / "view"], check=True)
    until(lambda: mounts_at(here / "view") == [], "its place is open")
    assert (here / "second/file").read_text() == "text"
    subprocess.run([*WITHOUT_HELPER, here / "second"], check=True)
    until(lambda: mounts_at(here / "second") == [], "its place is open")
    until(lambda: not daemons(here), "all daemons end")


# --------------------------------------------------------------------------------- The beginning


_LOOKS = """
import os, sys
from gitguardfs.commands.gitguardfs import main
from gitguardfs.sessions.kernel_session.session import KernelSession
def mount(self, *given, mount=KernelSession.mount):
    mount(self, *given)
    seen = open(sys.argv.pop()).read()
    print("lid" if "gitguardfs-lid" in seen else "nothing", flush=True)
KernelSession.mount = mount
main()
"""


def test_lid_and_view_appear_at_once(here: Path) -> None:
    """Who waits for a mount there then meets the view: no lid is seen before it."""
    program = _LOOKS.replace("sys.argv.pop()", f'"/proc/{os.getpid()}/mountinfo"')
    done = subprocess.run(
        [sys.executable, "-c", program, here / "source", here / "view"],
        capture_output=True, text=True, check=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.stdout == "nothing\n"
    assert mounts_at(here / "view") == [LID, VIEW]
