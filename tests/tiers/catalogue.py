"""The tiers: what each runs, how long that takes, and what the machine must have for it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.guest import image as images

REPOSITORY = Path(__file__).resolve().parents[2]
ISOLATED = REPOSITORY / "tests/support/isolated.py"


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class Tier:
    """One part of the tests."""

    name: str
    about: str
    command: Sequence[str]
    seconds: float
    """About how long it takes on one of two processors, beside other tiers."""
    is_pytest: bool = True
    has_workers: bool = False
    """Whether its modules are distributed to workers that have mounts and processes of their own.

    A module stays with one worker: its tests share mounts.
    """
    is_short: bool = False
    """Short tiers run one after the other, beside the others and on any processor."""
    alone: float | None = None
    """About how long it takes without virtual machines beside it, if that is known."""
    image: images.Recipe | None = None
    """The image that it boots."""
    lacks: Callable[[], str] = _nothing
    """What the machine lacks for it; "" if nothing."""
    count: str = ""
    """Without pytest: a line of the output that stands for one check."""


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "tests.tiers.events", *arguments]


def _missing(*programs: str) -> Callable[[], str]:
    def lacks() -> str:
        missing = [program for program in programs if shutil.which(program) is None]
        return f"not installed: {', '.join(missing)}" if missing else ""

    return lacks


GUEST_PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs")
PACKAGE_PROGRAMS = ("dpkg-buildpackage", "dh", "dh_python3")
LINT = """set -e
"$1/ruff" check .
"$1/ruff" format --check .
"$1/mypy"
find . -name .venv -prune -o -name '*.sh' -print0 | xargs -0 shellcheck -x .ci/run
"""


def _guest(
    name: str,
    about: str,
    seconds: float,
    image: images.Recipe,
    *chosen: str,
    needs: Sequence[str] = (),
) -> Tier:
    """A virtual machine of its own, for the tests that are chosen."""
    lacks = _missing(*GUEST_PROGRAMS, *needs)
    return Tier(name, about, _pytest(*chosen), seconds, image=image, lacks=lacks)


OLDEST = "tests/guest/test_8_debian12.py"
VM_FAULTS = "tests/vm/test_3_faults.py"
VM_DOCKER = "tests/vm/test_5_docker.py"
VM_PROGRAMS = (*GUEST_PROGRAMS, "ssh", "openssl", "curl")
SELINUX = "tests/guest/test_9_selinux.py"

TIERS = (
    _guest(
        "guest", "Debian 13 in a virtual machine with real 9p and virtiofs shares", 900,
        images.DEBIAN_13, "tests/guest", f"--ignore={OLDEST}", f"--ignore={SELINUX}",
    ),
    Tier(
        "lint", "ruff, mypy, shellcheck",
        ["sh", "-c", LINT, "lint", str(Path(sys.executable).parent)],
        seconds=20, alone=10, is_pytest=False, is_short=True, lacks=_missing("shellcheck"),
    ),
    Tier("mount", "real mounts: conformance, attacks, faults, programs",
         _pytest("tests/mount"), seconds=800, has_workers=True, alone=470,
         lacks=_missing("bindfs", "fusermount3")),
    Tier(
        "quickstart", "guest-setup/quickstart.sh, on the distribution's own packages",
        # Isolated: tiers that start at the same moment would copy its mounts and so hold its share.
        # Below a lock: a run beside this one would change what is installed.
        ["flock", "--no-fork", "/opt",
         sys.executable, str(ISOLATED), "./guest-setup/quickstart.sh"],
        seconds=10, is_pytest=False, is_short=True, count="ok", lacks=_missing("flock"),
    ),
    Tier("packaging", "the source distribution and its own tests, the wheel, the packages' files",
         _pytest("tests/packaging"), seconds=75, is_short=True),
    Tier(
        "egress", "the allowlist proxy, before servers that record what they are sent",
        _pytest("tests/egress"), seconds=210, is_short=True, lacks=_missing("ip", "ss"),
    ),
    Tier(
        "desktop", "Debian 13: vm-setup.sh and its desktop under Xvfb; the Debian package",
        _pytest("tests/desktop"), seconds=60, is_short=True,
        lacks=_missing("mmdebstrap", "Xvfb", *PACKAGE_PROGRAMS),
    ),
    Tier(
        "vm", "gitguard vm from nothing: the guard, the proxy, isolation; stop, up again, reset",
        _pytest("tests/vm", f"--ignore={VM_FAULTS}", f"--ignore={VM_DOCKER}"), seconds=450,
        image=images.DEBIAN_CLOUD, lacks=_missing(*VM_PROGRAMS),
    ),
    Tier(
        "vm-faults", "gitguard vm: what kill -9 leaves, a panic, the hardened VM, a control run",
        _pytest(VM_FAULTS), seconds=320, image=images.DEBIAN_CLOUD,
        lacks=_missing(*VM_PROGRAMS),
    ),
    Tier("unit", "pure parts, no mount",
         _pytest("tests/unit"), seconds=300, has_workers=True, alone=130),
    _guest(
        "guest-selinux", "Debian 13 with SELinux enforcing", 280, images.DEBIAN_SELINUX, SELINUX,
    ),
    _guest(
        "guest-old", "Debian 12 in another one, the oldest system that is supported", 200,
        images.DEBIAN_12, OLDEST, needs=PACKAGE_PROGRAMS,
    ),
    Tier(
        "vm-docker", "docker build in the guest of gitguard vm",
        _pytest(VM_DOCKER), seconds=200, image=images.DEBIAN_DOCKER,
        lacks=_missing(*VM_PROGRAMS),
    ),
    Tier("adapter", "request handlers, no mount",
         _pytest("tests/adapter"), seconds=40, has_workers=True, alone=20),
)  # fmt: skip
"""In the order in which they start: the longest first, so that all end at about the same time."""
QUICK = ("lint", "unit", "adapter")
"""The tiers of --quick."""
