"""A guest for vm-mount in a directory: real files, real guards; the share is a tmpfs called 9p."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gitguardfs.commands import vm_mount
from gitguardfs.guest.facts import SystemPaths
from gitguardfs.guest.run import Arguments, remove
from gitguardfs.linux import mountinfo as mounts
from gitguardfs.linux.mountinfo import MountInfo
from tests.support.mounting import AREAS, REPOSITORY, unmount
from tests.support.people import AGENT, as_user

OWNER = (501, 20)
FOREIGN = b"# my fstab\nUUID=ab-cd / ext4 errors=remount-ro 0 1\n/swap none swap sw 0 0"

GITGUARDFS = """\
#!/bin/sh
[ -e {area}/broken ] && echo "gitguardfs: out of order" >&2 && exit 32
PYTHONPATH={repository} exec {python} -m gitguardfs "$@"
"""

# Does what mount(8) does with our lines, with a tmpfs for a share.
MOUNT = """\
#!{python}
import os, subprocess, sys
sys.path.insert(0, "{repository}")
from gitguardfs.options import fstab_entries
from gitguardfs.guest import fstab
args = sys.argv[1:]
if args[0] == "--fstab":
    for entry in fstab_entries.entries(open(args[1], "rb").read()):
        if entry.target == args[-1]:
            options = ",".join(entry.options)
            command = ["{area}/gitguardfs", "-o", options, "--", entry.source, entry.target]
            sys.exit(subprocess.run(command).returncode)
kind, tag, target = args[1], *args[-2:]
if kind == "virtiofs":
    open("{area}/kmsg", "a").write(f"6,339,5140900,-;virtio-fs: tag <{{tag}}> not found\\n")
if kind != "9p" or "access=0" not in args[3]:
    sys.exit("mount: wrong fs type")
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", tag, target], check=True)
os.makedirs(target + "/project/.git")
open(target + "/project/.git/config", "w").write("secret")
open(target + "/project/hello.c", "w").write("int main;")
for where, _, files in os.walk(target):
    for name in (".", *files):
        os.chown(os.path.join(where, name), {uid}, {gid})
"""

# Does what systemctl(1) does with our units.
SYSTEMCTL = """\
#!{python}
import os, subprocess, sys
sys.path.insert(0, "{repository}")
from gitguardfs.guest import facts
from gitguardfs.guest import systemd
words = [word for word in sys.argv[1:] if word != "--quiet"]
open("{area}/systemctl.log", "a").write(" ".join(words) + "\\n")
verb, unit = words[0], words[-1]
units = facts._units("{area}/units")
link = "{area}/units/multi-user.target.wants/" + unit
path = next((p for p in systemd.guards(units) if systemd.service_name(p) == unit), None)
running = path and os.path.exists("{area}/running")
if verb == "is-active":
    sys.exit(0 if running else 3)
elif verb == "enable":
    os.makedirs(os.path.dirname(link), exist_ok=True)
    os.symlink("{area}/units/" + systemd.TEMPLATE, link)
elif verb == "disable":
    os.unlink(link)
elif verb in ("start", "restart"):
    text = units[systemd.drop_in_name(path)].decode()
    options = text.partition("GITGUARDFS_OPTIONS=")[2].partition('"')[0]
    command = ["{area}/gitguardfs", "-o", options, "--", systemd.guards(units)[path], path]
    code = subprocess.run(command).returncode
    if code == 0:
        open("{area}/running", "w").close()
    sys.exit(code)
elif verb == "stop":
    os.path.exists("{area}/running") and os.unlink("{area}/running")
    subprocess.run(["umount", path])
"""


@dataclass
class World:
    """A guest with one share, in a directory of its own."""

    area: Path
    system: SystemPaths

    @property
    def view(self) -> Path:
        return self.area / "home/me/projects"

    @property
    def raw(self) -> Path:
        return self.area / "shares/projects"

    def arguments(self, **changed: object) -> Arguments:
        """Return the command line; it has .git closed, unless it says something of git."""
        given = replace(
            Arguments(tag="projects", map_mount=str(self.view), user="1000:1000", style="fstab"),
            **changed,  # type: ignore[arg-type]
        )
        if given.git_off or any(option.startswith("git=") for option in given.options):
            return given
        return replace(given, options=("git=deny", *given.options))

    def install(self, **changed: object) -> None:
        vm_mount.install(self.system, self.arguments(**changed))

    def remove(self, **changed: object) -> None:
        remove(self.system, replace(Arguments(tag="projects"), **changed))  # type: ignore[arg-type]

    def fstab(self) -> bytes:
        return Path(self.system.fstab).read_bytes()

    def state(self) -> dict[str, object]:
        """Return all that vm-mount may change: files, directories, mounts."""
        found: dict[str, object] = {}
        for where, directories, files in os.walk(self.area):
            # The contents of mounts and the notes of our stand-ins are no configuration.
            directories[:] = [d for d in directories if not os.path.ismount(f"{where}/{d}")]
            for name in files:
                path = Path(where, name)
                if name not in ("systemctl.log", "running", "kmsg") and not path.is_symlink():
                    found[str(path)] = path.read_bytes()
            found[where] = os.stat(where).st_mode
        found["mounts"] = [line for line in mountinfo() if str(self.area) in line]
        return found


def mountinfo() -> list[str]:
    """Path and type of each mount."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"{line.split()[4]} {line.partition(' - ')[2].split()[0]}" for line in lines]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # Not in /var/tmp: a share may only lie below directories that nobody else can change.
    # Not in /run: that is the system's.
    area = Path(tempfile.mkdtemp(prefix="ggfs-", dir="/srv"))
    area.chmod(0o755)
    AREAS.append(str(area))
    (area / "home/me").mkdir(parents=True)
    os.chown(area / "home/me", AGENT, AGENT)
    (area / "fstab").write_bytes(FOREIGN)
    (area / "kmsg").write_text("6,1,2,-;virtio-fs: tag <earlier> not found\n")
    (area / "units").mkdir()
    tags = area / "sys/bus/virtio/drivers/9pnet_virtio/virtio0"
    tags.mkdir(parents=True)
    (tags / "mount_tag").write_bytes(b"projects\0")
    words = {
        "area": area, "python": sys.executable, "repository": REPOSITORY,
        "uid": OWNER[0], "gid": OWNER[1],
    }  # fmt: skip
    for name, text in (("gitguardfs", GITGUARDFS), ("mount", MOUNT), ("systemctl", SYSTEMCTL)):
        (area / name).write_text(text.format(**words))
        (area / name).chmod(0o755)
    listed = mounts.listed

    def renamed(*process: str) -> list[MountInfo]:
        return [
            replace(m, fstype="9p") if (m.fstype, m.source) == ("tmpfs", "projects") else m
            for m in listed(*process)
        ]

    monkeypatch.setattr(mounts, "listed", renamed)
    found = World(
        area,
        SystemPaths(
            fstab=f"{area}/fstab", units=f"{area}/units", packaged_units=f"{area}/packaged",
            shares=f"{area}/shares",
            sys=f"{area}/sys", kernel_log=f"{area}/kmsg",
            booted_systemd=f"{area}/booted", mount=f"{area}/mount",
            systemctl=f"{area}/systemctl", guard=f"{area}/gitguardfs",
        ),
    )  # fmt: skip
    try:
        yield found
    finally:
        unmount(found.view)
        time.sleep(0.2)
        for line in reversed(mountinfo()):
            if line.startswith(f"{area}/"):
                subprocess.run(["umount", "-l", line.split()[0]], check=False)
        shutil.rmtree(area)


@pytest.fixture
def systemd_world(world: World) -> World:
    (world.area / "booted").mkdir()
    return world


def is_guarded(world: World) -> None:
    """Assert that the agent has the files, and neither .git nor the raw share."""

    def look() -> tuple[str, int]:
        return (world.view / "project/hello.c").read_text(), os.stat(world.view / "project").st_uid

    assert as_user(look) == ("int main;", AGENT)
    for path in (world.view / "project/.git/config", world.raw / "project/hello.c"):
        with pytest.raises(PermissionError):
            as_user(path.read_text)
    assert as_user(lambda: (world.view / "new").write_text("x")) == 1
