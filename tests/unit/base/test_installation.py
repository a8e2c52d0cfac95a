"""A guest gets the files of this installation, wherever that is."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gitguardfs.base import installation

REPOSITORY = Path(__file__).parents[3]


def test_a_checkout_is_copied_without_what_is_made_of_it(tmp_path: Path) -> None:
    target = tmp_path / "files"
    assert installation.copy_to(str(target)) is True
    assert sorted(os.listdir(target)) == ["gitguardfs", "guest-setup"]
    copied = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    expected = {
        path.relative_to(REPOSITORY)
        for path in (REPOSITORY / "gitguardfs").rglob("*")
        if path.is_file() and not {"__pycache__", "host"} & set(path.parts)
    }
    scripts = {Path("guest-setup", name) for name in installation.SCRIPT_NAMES}
    assert copied == expected | scripts
    assert (target / "gitguardfs/commands/gitguardfs.py").read_bytes() == (
        REPOSITORY / "gitguardfs/commands/gitguardfs.py"
    ).read_bytes()
    assert os.listdir(tmp_path) == ["files"]


def test_a_wheel_has_what_a_guest_needs() -> None:
    """``pip`` puts data-files below the prefix; package data goes with the package."""
    tool = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    expected: dict[str, list[str]] = {}
    for name in installation.SCRIPT_NAMES:
        path = f"{installation.SCRIPTS}/{name}"
        expected.setdefault(f"share/{installation.PACKAGE}/{os.path.dirname(path)}", []).append(
            path
        )
    assert tool["data-files"] == expected
    package = REPOSITORY / "gitguardfs"
    listed = {
        path for pattern in tool["package-data"]["gitguardfs"] for path in package.glob(pattern)
    }
    others = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others <= listed


def test_it_is_brought_up_to_date_and_otherwise_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "files"
    installation.copy_to(str(target))
    before = target.stat().st_ino
    assert installation.copy_to(str(target)) is False
    assert target.stat().st_ino == before
    for spoil in ("gitguardfs/commands/gitguardfs.py", "guest-setup/install.sh"):
        (target / spoil).write_text("")
        assert installation.copy_to(str(target)) is True
    (target / "gitguardfs/fs/more.py").write_text("")
    assert installation.copy_to(str(target)) is True
    assert not (target / "gitguardfs/fs/more.py").exists()
    assert os.listdir(tmp_path) == ["files"]


def test_what_is_packed_is_the_same_however_it_was_installed(tmp_path: Path) -> None:
    """As by the package: other owners, modes and times, scripts elsewhere, and compiled files."""
    here = installation.bundle()
    prefix = tmp_path / "usr"
    holder = prefix / "lib/python3/dist-packages"
    shutil.copytree(REPOSITORY / "gitguardfs", holder / "gitguardfs")
    shutil.copytree(REPOSITORY / "guest-setup", prefix / "share/gitguardfs/guest-setup")
    for path in prefix.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o640)
        os.utime(path, (1, 1))
    (holder / "gitguardfs/__pycache__/x.pyc").parent.mkdir(exist_ok=True)
    for stray in ("__pycache__/x.pyc", "notes.env", "host/.x.py.swp"):
        (holder / "gitguardfs" / stray).touch()
    assert installation.bundle(str(holder)) == here


def test_what_is_packed_is_unpacked_in_one_directory(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(installation.bundle())
    done = subprocess.run(
        ["tar", "-xvf", "b.tar"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "" and "gitguardfs/guest-setup/install.sh" in done.stdout.splitlines()
    assert os.listdir(tmp_path / "gitguardfs") and len(os.listdir(tmp_path)) == 2
    assert os.access(tmp_path / "gitguardfs/guest-setup/install.sh", os.X_OK)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guest's copy, which has none of the host's tools."""
    target = tmp_path_factory.mktemp("guest") / "copy"
    installation.copy_to(str(target))
    return target


def in_guest(copy: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = f"import sys; sys.path.insert(0, {str(copy)!r}); {code}"
    command = [sys.executable, "-I", "-c", line, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=copy.parent)


GITGUARD = "from gitguardfs.commands.gitguard import main; main()"


@pytest.mark.parametrize("name", ["share", "audit", "fetch", "lima", "krun", "vm"])
def test_commands_of_the_host_say_so_in_a_guest(copy: Path, name: str) -> None:
    for words in ((name, "--help"), (name, "x")):
        done = in_guest(copy, GITGUARD, *words)
        assert done.returncode == 3 and done.stdout == ""
        said = f"gitguard: {name} runs on the host, and this is the copy of gitguardfs for guests"
        assert done.stderr == f"{said} (run gitguard {name} on the host)\n"
    assert f"  {name} " not in in_guest(copy, GITGUARD, "--help").stdout


def test_the_host_s_side_is_not_checked_in_a_guest(copy: Path) -> None:
    done = in_guest(copy, GITGUARD, "doctor", "--host")
    assert done.returncode == 3 and "doctor --host runs on the host" in done.stderr


def test_all_of_a_guests_copy_can_be_imported(copy: Path) -> None:
    names = [
        ".".join(path.relative_to(copy).with_suffix("").parts)
        for path in sorted(copy.glob("gitguardfs/**/*.py"))
        if path.name not in ("__main__.py", "__init__.py")
    ]
    done = in_guest(
        copy, "import importlib; [importlib.import_module(n) for n in sys.argv[1:]]", *names
    )
    assert done.returncode == 0, done.stderr
