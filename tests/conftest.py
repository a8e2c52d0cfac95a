"""Rules for all tiers: mounts are the test process's own, none stays, nothing is skipped in CI."""

import os
import shutil
import signal
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import raw_calls
from tests.support.isolated import private_mounts
from tests.support.mounting import AREAS, REPOSITORY
from tests.support.people import as_user

# A shell starts background jobs with SIGINT ignored; programs of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup(1): we ignore it, our children do not
    signal.signal(signal.SIGHUP, lambda *_: None)

settings.register_profile("untimed", settings(), deadline=None)  # machines are busy
settings.load_profile("untimed")

IN_CI = os.environ.get("CI") == "true"
FUSE_DEVICE = Path("/dev/fuse")
OWN_DEVICES = Path("/mnt")
"""Where a tmpfs with our own device is mounted, until the device is mounted elsewhere."""
_MACHINE = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs")
_PACKAGE = ("dpkg-buildpackage", "dh", "dh_python3")
NEEDED = {
    "mount/": ("bindfs", "fusermount3"),
    "egress/": ("ip", "ss"),
    "desktop/": ("mmdebstrap", "Xvfb", *_PACKAGE),
    "guest/": _MACHINE,
    "guest/test_8_debian12.py": _PACKAGE,
    "vm/": (*_MACHINE, "ssh", "ssh-keygen", "openssl", "curl"),
}
"""Tests that need root, and their programs."""
MADE_FIRST = ("desktop/", "guest/", "vm/")
"""Tests whose system is made by the first one that needs it."""
MAKING_LIMIT = 3600
"""Seconds for such a test, on a machine four times slower."""
_skipped: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Root's tests see mounts of their own, so that a fault in unmounting harms no machine.

    Each worker has its own namespace, and so has a pytest that is started by hand.
    """
    if os.geteuid() == 0:
        private_mounts()
        if FUSE_DEVICE.exists():
            _own_fuse_device()


def _own_fuse_device() -> None:
    """Mount a FUSE device that all users may open, as udev's rules make it, over the machine's."""
    number = os.stat(FUSE_DEVICE).st_rdev
    raw_calls.mount("tmpfs", OWN_DEVICES, "tmpfs")
    own = OWN_DEVICES / "fuse"
    os.mknod(own, stat.S_IFCHR | 0o666, number)
    own.chmod(0o666)
    raw_calls.mount(str(own), FUSE_DEVICE, flags=raw_calls.MS_BIND)
    raw_calls.umount(OWN_DEVICES, raw_calls.MNT_DETACH)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked ``one_thread`` in a child process, which has one.

    A signal for a process goes to any thread that does not block it, and a worker of pytest-xdist
    has a second thread, for its messages.
    """
    if pyfuncitem.get_closest_marker("one_thread") is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    as_user(lambda: pyfuncitem.obj(**arguments), uid=os.geteuid(), gid=os.getegid())
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of tiers that this machine cannot run; in CI a skip is a failure."""
    for item in items:
        path = str(item.path.relative_to(REPOSITORY / "tests"))
        if path.startswith(MADE_FIRST):
            item.add_marker(pytest.mark.timeout(MAKING_LIMIT))
        needed = [NEEDED[tier] for tier in NEEDED if path.startswith(tier)]
        missing = [name for names in needed for name in names if shutil.which(name) is None]
        if needed and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root, for mounts and several users"))
        elif missing:
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, make a module that skips itself an error; pytest-xdist reports nothing else of it."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"in CI nothing may be skipped: {collector.nodeid}: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if IN_CI and _skipped:
        print(f"\nin CI nothing may be skipped: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted() -> Iterator[None]:
    """A test that leaves a mount behind is a failure of the run."""
    yield
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    left = [line.split()[4] for line in lines if any(area in line for area in AREAS)]
    assert not left, f"still mounted: {left}"
