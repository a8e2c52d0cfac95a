"""A root file system of Debian 13 in which vm-setup.sh has been run, and ways to work in it.

Two layers are cached, as with the guest images. The first holds the packages of the smallest
Debian, by a hash of their list; the second that system after the first run of vm-setup.sh, by a
hash of the scripts' text. Tests see the second one through an overlay, whose upper directory holds
their changes. Beside what the scripts install, it has the files of the packages that our Debian
package depends on: apt installs them in a test, without a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.guest import image as images
from tests.support import leftovers, raw_calls
from tests.support.mounting import REPOSITORY

SETUP = REPOSITORY / "guest-setup"
MINIMAL = images.Recipe("desktop", "trixie", ("ca-certificates",))
DEBS = images.CACHE / "desktop-debs"
"""Packages that were fetched once; a change of the scripts need not fetch them again."""
AGENT = 1000
USER = "agent"
HOME = Path("home", USER)
FIRST_RUNS = (
    ("first-run.log", ("vm-setup.sh", "-y", "--user", USER)),
    ("apps-run.log", ("vm-apps.sh", "-y", "--user", USER, "--only", "ghostty", "lf", "fzf")),
)
SETUP_INSIDE = Path("usr/local/src/guest-setup")
"""Where the root file system shows the scripts of this checkout."""
CONTROL = REPOSITORY / "packaging/debian/control"
ARCHIVES = Path("var/cache/dependencies")
"""Where the root file system has what our Debian package depends on, as packages."""
FROM_ARCHIVES = f"--option=Dir::Cache::archives=/{ARCHIVES}"


@dataclass(frozen=True)
class Prepared:
    """The cached system, which is never written to."""

    root: Path
    first_run: str
    """The output of the first run of vm-setup.sh."""
    apps_run: str
    """The output of the first run of vm-apps.sh, with the steps for the distribution's packages."""


def prepare() -> Prepared:
    """Return the root file system, from the cache or newly made. Raises RuntimeError."""
    images.CACHE.mkdir(parents=True, exist_ok=True)
    packages = images.hash_of(MINIMAL.suite, *MINIMAL.packages)
    archive = images.CACHE / f"desktop-{packages}.tar"
    place = images.CACHE / f"desktop-{images.hash_of(packages, *_texts())}"
    with images.locked(MINIMAL.name):
        if not archive.exists():
            images.build_archive(MINIMAL, archive)
        if not place.exists():
            _build(archive, place)
        images.use(MINIMAL, place, archive, DEBS)
    return Prepared(place / "root", *((place / name).read_text() for name, _ in FIRST_RUNS))


def _texts() -> list[str]:
    """The texts that the second layer is made by."""
    paths = [SETUP / name for name in ("common.sh", "steps.sh", "vm-setup.sh", "vm-apps.sh")]
    paths += sorted((SETUP / "awesome").glob("*.lua"))
    return [Path(__file__).read_text(), *(path.read_text() for path in paths), *_dependencies()]


def _dependencies() -> list[str]:
    """Return the names of the packages that our Debian package depends on."""
    (text,) = re.findall(r"^Depends:\n((?: .*\n)+)", CONTROL.read_text(), re.MULTILINE)
    return re.findall(r"^ ([a-z0-9.+-]+)", text, re.MULTILINE)


def _build(archive: Path, place: Path) -> None:
    images.say("desktop: running vm-setup.sh in Debian 13 (1-2 minutes) ...")
    started = time.monotonic()
    DEBS.mkdir(exist_ok=True)
    with leftovers.directory(images.NEW, images.CACHE) as work:
        new = work / "image"
        root = new / "root"
        root.mkdir(parents=True)
        images.run(["tar", "-xpf", str(archive), "-C", str(root)])
        images.run(
            ["chroot", str(root), "useradd", "-m", "-u", str(AGENT), "-s", "/bin/bash", USER]
        )
        (root / "etc/dpkg/dpkg.cfg.d/tests").write_text("force-unsafe-io\n")
        with System.entered(root, (str(DEBS), "var/cache/apt/archives")) as system:
            for log, command in FIRST_RUNS:
                done = system.run_script(*command)
                if done.returncode != 0:
                    raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
                (new / log).write_text(done.stdout + done.stderr)
            (root / ARCHIVES).mkdir()
            fetch = ["apt-get", "install", "-y", "--download-only", FROM_ARCHIVES]
            done = system.run(*fetch, *_dependencies())
            if done.returncode != 0:
                raise RuntimeError(f"{fetch}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        new.rename(place)
    images.say(f"desktop: it is there after {time.monotonic() - started:.0f} s")


@dataclass(frozen=True)
class System:
    """A root file system with /proc, /dev and the scripts in it."""

    root: Path

    @classmethod
    @contextmanager
    def entered(cls, root: Path, *binds: tuple[str, str]) -> Iterator[System]:
        """Mount what programs in ``root`` need, and ``binds``, for as long as the context is."""
        # Copied, not mounted: name servers are the machine's.
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        (root / SETUP_INSIDE).mkdir(parents=True, exist_ok=True)
        mounts = [
            ("/proc", "proc", "", raw_calls.MS_BIND | raw_calls.MS_REC, ""),
            ("/dev", "dev", "", raw_calls.MS_BIND, ""),
            ("devpts", "dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620"),
            (str(root / "dev/pts/ptmx"), "dev/ptmx", "", raw_calls.MS_BIND, ""),
            ("tmpfs", "run", "tmpfs", 0, "mode=755"),
            ("tmpfs", "tmp", "tmpfs", 0, "mode=1777"),
            (str(SETUP), str(SETUP_INSIDE), "", raw_calls.MS_BIND, ""),
            *((source, target, "", raw_calls.MS_BIND, "") for source, target in binds),
        ]
        done: list[Path] = []
        try:
            for source, target, kind, flags, data in mounts:
                raw_calls.mount(source, root / target, kind, flags, data)
                done.append(root / target)
            yield cls(root)
        finally:
            for path in reversed(done):
                raw_calls.umount(path, raw_calls.MNT_DETACH)

    def run_script(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script of guest-setup/ as root, without a terminal to ask questions on."""
        return self.run("bash", f"/{SETUP_INSIDE}/{name}", *arguments)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as root and return what it printed."""
        return subprocess.run(
            ["chroot", str(self.root), *command],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                 "HOME": "/root", "LC_ALL": "C.UTF-8", **_proxies()},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def as_user(self, command: Sequence[str], **environment: str) -> list[str]:
        """Return the command line that runs ``command`` as the desktop's user, at home."""
        known = {"HOME": f"/{HOME}", "USER": USER, "LANG": "C.UTF-8", **environment}
        settings = [f"{name}={value}" for name, value in known.items()]
        return [
            "chroot", str(self.root), "setpriv", f"--reuid={AGENT}", f"--regid={AGENT}",
            "--init-groups", "env", "-i", "-C", f"/{HOME}", *settings, *command,
        ]  # fmt: skip


def _proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


@contextmanager
def overlaid(lower: Path, work: Path) -> Iterator[tuple[Path, Path]]:
    """Mount a writable view of ``lower``; yield it and the directory with what is changed in it."""
    upper, inner, merged = work / "upper", work / "work", work / "root"
    for path in (upper, inner, merged):
        path.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={inner}"
    raw_calls.mount("overlay", merged, "overlay", 0, f"{layers},redirect_dir=on")
    try:
        yield merged, upper
    finally:
        raw_calls.umount(merged, raw_calls.MNT_DETACH)
