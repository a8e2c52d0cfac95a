"""Missing programs: all at once, with the packages of this machine's distribution."""

import platform
from pathlib import Path

import pytest

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.share import packages

DEBIAN = {"ID": "debian"}
MINT = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
FEDORA = {"ID": "fedora"}
ARCH = {"ID": "arch"}


@pytest.mark.parametrize(
    ("os_release", "hint"),
    [
        (DEBIAN, "sudo apt install podman qemu-utils; krun is crun 1.27 built with libkrun: .*"),
        (MINT, "sudo apt install podman qemu-utils; krun is .*"),
        (FEDORA, "sudo dnf install podman crun-krun qemu-img"),
        (ARCH, "install the package that holds podman; krun is .*; .* holds qemu-img"),
    ],
    ids=lambda value: value["ID"] if isinstance(value, dict) else "",
)
def test_the_hint_names_packages_of_this_distribution_only(
    os_release: dict[str, str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: os_release)
    with pytest.raises(
        UserError, match=rf"^podman, krun and qemu-img are not installed \({hint}\)$"
    ) as error:
        packages.check_installed("podman", "krun", "qemu-img")
    assert error.value.code is Exit.SYSTEM


def test_a_mac_gets_one_package_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(UserError, match=r"not installed \(brew install qemu\)$"):
        packages.check_installed("qemu-system-aarch64", "qemu-img")


def test_what_is_installed_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "podman"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    packages.check_installed("podman")
    with pytest.raises(UserError, match=r"^krun is not installed"):
        packages.check_installed("podman", "krun")
