"""Guest images made of the distribution's packages, cached by a hash of what they are made of."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.guest import initrd, selinux
from tests.support import leftovers

CACHE = Path(os.environ.get("GITGUARDFS_TEST_CACHE", "/var/cache/gitguardfs-tests"))
NEW = ".new-"
"""The beginning of the names of directories in which something for the cache is made."""
AGENT_FILE = Path(__file__).parent / "inside/agent.py"

_BOOT = (
    "linux-image-amd64", "systemd", "systemd-sysv", "udev", "dbus", "libpam-systemd", "login",
    "passwd", "mount", "util-linux", "kmod", "procps", "findutils", "busybox-static",
)  # fmt: skip
_GITGUARDFS = ("fuse3", "python3", "python3-pyfuse3", "python3-trio", "python3-click")
_TOOLS = (
    "git", "gcc", "make", "libc6-dev", "sqlite3", "ripgrep", "python3-pip", "python3-venv",
    "sudo", "attr",
)  # fmt: skip

_LEFT_OUT = (
    "usr/share/man", "usr/share/doc", "usr/share/locale", "usr/share/info",
    *(f"{lib}/modules/*/kernel/{part}" for lib in ("lib", "usr/lib") for part in (
        "sound", "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/infiniband",
        "drivers/staging", "drivers/iio", "drivers/scsi", "drivers/net/ethernet", "drivers/usb",
        "drivers/hwmon", "drivers/input", "drivers/hid", "drivers/video", "drivers/bluetooth",
    )),
)  # fmt: skip
"""Paths that no guest of ours reads; without them the packages unpack in half the time."""

MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "fstrim.timer", "ldconfig.service", "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service", "systemd-firstboot.service", "getty@tty1.service",
    "getty-static.service", "systemd-pcrphase.service", "systemd-pcrphase-sysinit.service",
    "systemd-pcrmachine.service", "systemd-tpm2-setup.service", "systemd-random-seed.service",
    "systemd-tpm2-setup-early.service", "systemd-journal-flush.service",
    "systemd-networkd.service", "systemd-networkd.socket", "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
    "dev-hugepages.mount", "dev-mqueue.mount", "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path", "systemd-update-utmp.service",
)  # fmt: skip
"""Units that cost time under emulation and have nothing to do with mounts."""

_CMDLINE = (
    "root=/dev/vda rw quiet mitigations=off {security} tsc=unstable "
    "systemd.show_status=error random.trust_cpu=on "
    # udev would load them for parts of the emulated machine that no test uses.
    "module_blacklist=libata,kvm,kvm_amd,iTCO_wdt,i2c_i801,lpc_ich,powernow_k8,efi_pstore"
)
"""Kernel arguments beside the console's: an emulated kernel has enough to do."""
_SECURITY_OFF = "audit=0 apparmor=0 selinux=0"
_ENFORCING = (
    "apparmor=0 security=selinux selinux=1 enforcing=1 "
    # The kernel's log has every denial.
    "sysctl.kernel.printk_ratelimit=0 log_buf_len=4M"
)

AGENT_UNIT = """[Unit]
Description=Runs commands for the tests
DefaultDependencies=no
# Neither waits for anything nor ends before the machine does: tests look at both ends of a boot.

[Service]
ExecStart=/usr/bin/python3 -I /usr/local/lib/gitguardfs-test-agent.py
Restart=always
StandardOutput=journal+console
KillMode=process

[Install]
WantedBy=sysinit.target
"""

AS_A_LOGIN = """[Service]
SELinuxContext=unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023
"""
"""Commands have the context that a login gives to users who are not confined (seusers(5))."""


@dataclass(frozen=True)
class Recipe:
    """One guest system."""

    name: str
    """The beginning of the names of its files in the cache; no other guest has it."""
    suite: str
    packages: tuple[str, ...]
    disk_mib: int = 3072
    is_cloud: bool = False
    """Set up by cloud-init, as users' images are: it holds none of our files."""
    has_selinux: bool = False
    """SELinux is enforcing at the first boot; the files are labelled when the image is made."""

    @property
    def cmdline(self) -> str:
        """Kernel arguments beside the console's."""
        return _CMDLINE.format(security=_ENFORCING if self.has_selinux else _SECURITY_OFF)


DEBIAN_13 = Recipe("debian13", "trixie", (*_BOOT, *_GITGUARDFS, *_TOOLS))
DEBIAN_CLOUD = Recipe(
    "cloud13", "trixie",
    (*_BOOT, *_GITGUARDFS, "cloud-init", "openssh-server", "sudo", "ca-certificates", "curl",
     "e2fsprogs", "netplan.io", "systemd-resolved", "git", "python3-pip", "python3-venv",
     "iproute2", "ripgrep"),
    is_cloud=True,
)  # fmt: skip
DEBIAN_DOCKER = replace(
    DEBIAN_CLOUD, name="docker13",
    packages=(*DEBIAN_CLOUD.packages, "docker.io", "docker-cli", "docker-buildx", "iptables"),
)  # fmt: skip
DEBIAN_12 = Recipe("debian12", "bookworm", (*_BOOT, *_GITGUARDFS, "git"), disk_mib=2048)
DEBIAN_SELINUX = Recipe(
    "selinux13", "trixie",
    (*_BOOT, *_GITGUARDFS, "git", "attr", "selinux-policy-default", "policycoreutils",
     "selinux-utils"),
    disk_mib=2048, has_selinux=True,
)  # fmt: skip


@dataclass(frozen=True)
class Image:
    """The files that QEMU boots; ``disk`` is never written to."""

    recipe: Recipe
    kernel: Path
    initrd: Path
    disk: Path


def obtain(recipe: Recipe) -> Image:
    """Return the image, from the cache or newly built. Raises CalledProcessError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    archive, place = _places(recipe)
    image = Image(recipe, place / "vmlinuz", place / "initrd", place / "disk.img")
    with locked(recipe.name):
        if not archive.exists():
            build_archive(recipe, archive)
        if not place.exists():
            _build_disk(recipe, archive, place)
        use(recipe, place, archive)
    return image


def use(recipe: Recipe, place: Path, *kept: Path) -> None:
    """Hold the directory that is booted until this process ends; remove those of earlier texts."""
    _held.append(leftovers.hold(place))
    for old in CACHE.glob(f"{recipe.name}-*"):
        if old in (place, *kept):
            continue
        if old.is_dir():
            leftovers.remove_unless_held(old)
        else:
            old.unlink()


_held: list[int] = []
"""Descriptors of the directories that this process uses."""


def _places(recipe: Recipe) -> tuple[Path, Path]:
    """Return the paths of the two layers: the packages, and the directory that is booted."""
    packages = hash_of(recipe.suite, *sorted(recipe.packages), *_left_out(recipe))
    cmdline = (recipe.cmdline,) if recipe.is_cloud else ()
    policy = selinux.TEXTS if recipe.has_selinux else ()
    layer = hash_of(packages, str(recipe.disk_mib), *(text for _, text in _files(recipe)),
                  *_masked(recipe), *cmdline, *policy,
                  Path(initrd.__file__).read_text(), _PREPARE_VERSION)  # fmt: skip
    return CACHE / f"{recipe.name}-{packages}.tar", CACHE / f"{recipe.name}-{layer}"


def overlay(image: Image, path: Path) -> None:
    """A disk at ``path`` that starts as the image's and keeps what is written to itself."""
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, path],
        check=True,
    )


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep other runs from making what is called ``name``."""
    with open(CACHE / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    print(f"[guest image] {text}", file=sys.__stderr__, flush=True)


def build_archive(recipe: Recipe, archive: Path) -> None:
    started = time.monotonic()
    say(f"{recipe.name}: fetching and unpacking packages of {recipe.suite} (1-2 minutes) ...")
    new = archive.with_suffix(".new.tar")
    excludes = [f"--dpkgopt=path-exclude=/{path}/*" for path in _left_out(recipe)]
    run(
        ["mmdebstrap", "--quiet", "--variant=minbase", *excludes,
         f"--include={','.join(recipe.packages)}", recipe.suite, str(new)],
        # Its initrd is not used and takes half a minute to make (initramfs-tools(7)).
        env={**os.environ, "INITRD": "No"},
    )  # fmt: skip
    new.rename(archive)
    say(f"{recipe.name}: packages are there after {time.monotonic() - started:.0f} s")


def _build_disk(recipe: Recipe, archive: Path, place: Path) -> None:
    started = time.monotonic()
    say(f"{recipe.name}: making the disk ...")
    with leftovers.directory(NEW, CACHE) as work:
        root, new = work / "root", work / "image"
        root.mkdir()
        new.mkdir()
        run(["tar", "-xpf", str(archive), "-C", str(root)])
        _prepare(root, recipe)
        (kernel,) = (root / "boot").glob("vmlinuz-*")
        shutil.copy(kernel, new / "vmlinuz")
        (new / "initrd").write_bytes(initrd.render(root))
        (new / "cmdline").write_text(f"{recipe.cmdline}\n")
        if recipe.has_selinux:
            selinux.prepare(root, run)
        with open(new / "disk.img", "wb") as disk:
            disk.truncate(recipe.disk_mib << 20)
        run(["mke2fs", "-q", "-t", "ext4", "-O", "^metadata_csum", "-d", str(root),
              str(new / "disk.img")])  # fmt: skip
        new.rename(place)
    say(f"{recipe.name}: the disk is there after {time.monotonic() - started:.0f} s")


_PREPARE_VERSION = "1"
"""Raise it when ``_prepare`` changes and the list of files does not."""


def _left_out(recipe: Recipe) -> tuple[str, ...]:
    if not recipe.is_cloud:
        return _LEFT_OUT
    # A guest that is to go down by its power button must have evdev to hear it.
    return tuple(path for path in _LEFT_OUT if not path.endswith("/drivers/input"))


def _masked(recipe: Recipe) -> tuple[str, ...]:
    if not recipe.is_cloud:
        return MASKED
    return tuple(unit for unit in MASKED if "networkd" not in unit)


def _files(recipe: Recipe) -> list[tuple[str, str]]:
    """Our own files, by their path in the guest."""
    if recipe.is_cloud:
        return [
            ("etc/fstab", "# <what> <where> <type> <options> <dump> <pass>\n"),
            ("etc/hostname", "localhost\n"),
            ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
        ]
    # Four times as long as usual, so that no mount fails by the limit when the machine is busy.
    limits = "DefaultTimeoutStopSec=20s\nDefaultTimeoutStartSec=360s\n"
    also = []
    if recipe.has_selinux:
        also = [("etc/systemd/system/gitguardfs-test-agent.service.d/login.conf", AS_A_LOGIN)]
    return [
        *also,
        ("usr/local/lib/gitguardfs-test-agent.py", AGENT_FILE.read_text()),
        ("etc/systemd/system/gitguardfs-test-agent.service", AGENT_UNIT),
        ("etc/hostname", "guest\n"),
        ("etc/hosts", "127.0.0.1 localhost guest\n"),
        ("etc/fstab", "# <what> <where> <type> <options> <dump> <pass>\n"),
        ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
        ("etc/modules-load.d/shares.conf", "9pnet_virtio\n9p\nvirtiofs\nfuse\n"),
        ("etc/systemd/system.conf.d/tests.conf", f"[Manager]\n{limits}"),
    ]


def _prepare(root: Path, recipe: Recipe) -> None:
    for name, text in _files(recipe):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    units = root / "etc/systemd/system"
    for unit in _masked(recipe):
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    # systemd compares these with /usr to find out whether it has just been installed.
    for name in ("etc/.updated", "var/.updated"):
        (root / name).touch()
    if not recipe.is_cloud:
        _add_agent(root)


def _add_agent(root: Path) -> None:
    wants = root / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "gitguardfs-test-agent.service").symlink_to("../gitguardfs-test-agent.service")
    with open(root / "etc/passwd", "a") as passwd:
        passwd.write("agent:x:1000:1000:Agent:/home/agent:/bin/bash\n")
    with open(root / "etc/group", "a") as group:
        group.write("agent:x:1000:\n")
    with open(root / "etc/shadow", "a") as shadow:
        shadow.write("agent:*:20000:0:99999:7:::\n")
    home = root / "home/agent"
    home.mkdir(mode=0o755)
    os.chown(home, 1000, 1000)


def run(command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command quietly. Raises RuntimeError with the end of what it wrote, if it fails."""
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
