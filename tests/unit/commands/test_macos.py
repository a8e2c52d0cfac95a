"""Host commands on macOS: run here without anything that only Linux has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs
from gitguardfs.base.installation import PACKAGE_PARENT, bundle
from tests.support import fetch_world

# Modules that macOS lacks, or that do not work there: fcntl without leases, ctypes without
# renameat2.
LIKE_MACOS = """
import importlib.abc, os, platform, sys, types

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyfuse3", "trio", "ctypes", "_ctypes", "fcntl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in ("pyfuse3", "trio", "ctypes", "fcntl"):
    assert name not in sys.modules, name
LACKING = (
    "O_PATH O_TMPFILE O_DIRECT O_NOATIME O_RSYNC setxattr getxattr listxattr removexattr "
    "memfd_create pidfd_open posix_fadvise posix_fallocate copy_file_range splice eventfd "
    "setresuid setresgid getresuid getresgid getrandom pipe2 sched_setaffinity sched_getaffinity"
)
for name in LACKING.split():
    delattr(os, name)
for name in ("shutil", "tempfile"):  # ask at their import which of them there are
    sys.modules.pop(name, None)
for name in ("unshare", "setns"):  # since Python 3.12
    os.__dict__.pop(name, None)

def refuse(event, arguments):
    if event != "open" or isinstance(arguments[0], int):
        return
    path = os.fsdecode(arguments[0])
    if path.startswith(("/proc/", "/sys/")) or path == "/etc/os-release":
        raise FileNotFoundError(2, "No such file or directory", path)

sys.addaudithook(refuse)
sys.platform = "darwin"
platform.system = lambda: "Darwin"
platform.machine = lambda: "arm64"
"""
PACKAGE = Path(gitguardfs.__file__).parent
MAIN = "from gitguardfs.commands.{} import main; main()"


def run(*arguments: str | Path, program: str = "gitguard") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT, "COLUMNS": "80"}
    environment.pop("XDG_RUNTIME_DIR", None)
    return subprocess.run(
        [sys.executable, "-c", LIKE_MACOS + MAIN.format(program), *map(str, arguments)],
        capture_output=True, text=True, env=environment, cwd="/",
    )  # fmt: skip


@pytest.mark.parametrize("part", ["host/audit", "host/fetch", "host/share", "options", "names"])
def test_nothing_that_a_mac_needs_loads_what_only_linux_has(part: str) -> None:
    names = sorted(path.stem for path in (PACKAGE / part).glob("*.py") if path.stem != "__init__")
    assert names
    imports = "\n".join(f"import gitguardfs.{part.replace('/', '.')}.{name}" for name in names)
    done = subprocess.run(
        [sys.executable, "-c", f"{LIKE_MACOS}\n{imports}"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PACKAGE_PARENT}, cwd="/",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("transport", ["9p", "virtiofs"])
def test_share_describes_utm(tmp_path: Path, transport: str) -> None:
    done = run("share", tmp_path, "--for", "utm", "--transport", transport)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(tmp_path) in done.stdout and "share (always)" in done.stdout
    said = json.loads(run("share", tmp_path, "--for", "utm", "--json").stdout)
    assert said["utm"]["backend"] == "QEMU" and said["selinux"] == []


def test_share_prints_the_command_for_a_macs_qemu(tmp_path: Path) -> None:
    done = run("share", tmp_path, "--network", "restricted")
    assert (done.returncode, done.stderr) == (0, "")
    assert "qemu-system-aarch64 -machine virt" in done.stdout and "-accel hvf" in done.stdout
    for words in (["--transport", "virtiofs"], ["--guard", "host"]):
        refused = run("share", tmp_path, *words)
        assert refused.returncode != 0 and len(refused.stderr.splitlines()) == 1


def test_what_a_guest_installs_is_packed(tmp_path: Path) -> None:
    done = run("share", "--bundle", tmp_path / "b.tar")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "b.tar").read_bytes() == bundle()


def test_units_prints_and_writes_what_the_guest_needs(tmp_path: Path) -> None:
    words = ["units", "share", "-m", "/mnt/share", "-mm", "/home/me/src", "-o", "git=readonly"]
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fuse.gitguardfs" in done.stdout
    written = run(*words, "--output", tmp_path)
    assert (written.returncode, written.stderr) == (0, "")
    (found,) = tmp_path.iterdir()
    assert found.read_text() == done.stdout
    assert run(*words, "--output", tmp_path, "--check").returncode == 0


def test_lima_writes_an_instance_for_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "state"))
    (tmp_path / "shop").mkdir()
    done = run("lima", "--project", tmp_path / "shop")
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "state/gitguardfs/lima/agent-shop.yaml").read_text()
    assert "\nvmType: vz\n" in text and "\nmountType: virtiofs\n" in text


def test_what_needs_linux_says_so_in_one_line() -> None:
    done = run("doctor")
    assert done.returncode == 3 and "Linux" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run("/a", "/b", program="gitguardfs")
    assert done.returncode == 2 and "gitguard share runs here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_shared_directory_is_audited(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "share/project"], check=True)
    config = tmp_path / "share/project/.git/config"
    config.write_text(f"{config.read_text()}[core]\n\tpager = ./x\n")
    (tmp_path / "share/.env").write_text("A=b\n")
    os.mkfifo(tmp_path / "share/id_rsa")
    done = run("audit", tmp_path / "share", "--json")
    assert done.returncode == 1, done.stderr
    found = {row["detail"] for row in json.loads(done.stdout) if row["status"] == "finding"}
    assert f"core.pager = ./x (in {config})" in found
    assert f"{tmp_path}/share/.env can be read by everyone" in found


def test_what_an_agent_committed_is_fetched_and_merged() -> None:
    with fetch_world.world() as world:
        commit = world.commit({"x": "x"})
        world.publish()
        done = run("fetch", world.host, "--merge", "main", "--drop")
        assert (done.returncode, done.stderr) == (0, "")
        assert world.git(world.host, "rev-parse", "main") == commit
