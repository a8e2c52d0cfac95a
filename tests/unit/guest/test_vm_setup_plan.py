"""vm-setup.sh and vm-apps.sh: their options, and what they would do on each distribution."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.guest.test_guest_setup import DEBIAN, FEDORA, UBUNTU, Guest, packages

SETUP, APPS = "vm-setup.sh", "vm-apps.sh"
BOTH = pytest.mark.parametrize("script", [SETUP, APPS])


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    """A pretended system with a user named me, whose home is there."""
    guest = Guest(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    guest.tool(
        "getent",
        f'case "$2" in me | 1000) echo "me:x:1000:1000::{home}:/bin/bash" ;;'
        ' root) echo "root:x:0:0::/root:/bin/bash" ;;'
        ' homeless) echo "homeless:x:1001:1001::/no/such/home:/bin/bash" ;; *) exit 2 ;; esac',
    )
    return guest


def steps_of(plan: str) -> list[str]:
    """The steps of a plan, by their headings."""
    return re.findall(r"^([a-z]+): ", plan, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--only", "files"], ["files"]),
        (["--only", "files", "basics", "files"], ["basics", "files"]),
        (["--only", "login,files"], ["files", "login"]),
        (["--only", "login", "--only", "xorg"], ["xorg", "login"]),
    ],
)
def test_only_chosen_steps_are_planned(guest: Guest, words: list[str], steps: list[str]) -> None:
    assert steps_of(guest.plan(SETUP, "--user", "me", *words)) == steps
    assert steps_of(guest.plan(SETUP, *words, "--user", "me")) == steps


@BOTH
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "nonsense"], "there is no step nonsense: --list names them"),
        (["--only"], "--only needs steps"),
        (["--only", "--dry-run"], "--only needs steps"),
        (["--user"], "--user needs a name"),
        (["--frobnicate"], "--frobnicate"),
        (["stray"], "stray"),
        (["--dry-run", "--user", "nobody-here"], "there is no user nobody-here"),
        (["--dry-run", "--user", "root"], "not for root"),
        (["--dry-run", "--user", "homeless"], "/no/such/home is missing"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_done(
    guest: Guest, script: str, words: list[str], message: str
) -> None:
    done = guest.run(script, *words)
    assert done.returncode == (1 if "homeless" in words else 2)
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not guest.changes.exists()


@BOTH
def test_without_a_terminal_nothing_is_done_unasked(guest: Guest, script: str) -> None:
    guest.tool("id", "case $1 in -un) echo me ;; *) echo 1000 ;; esac")
    done = guest.run(script, "--user", "me")
    assert done.returncode == 1
    # vm-setup.sh needs root, and says that first.
    assert "-y" in done.stderr or "sudo" in done.stderr
    assert not guest.changes.exists()


@pytest.mark.parametrize("system", [DEBIAN, UBUNTU])
def test_the_desktop_on_debian_and_ubuntu(guest: Guest, system: str) -> None:
    guest.system(system)
    wanted = packages(guest.plan(SETUP, "--user", "me"), "apt-get")
    for package in ("git", "xserver-xorg-core", "xinit", "polkitd", "libpam-systemd", "awesome",
                    "fonts-dejavu-core", "thunar", "xfce4-terminal"):  # fmt: skip
        assert package in wanted
    assert not {"sudo", "lightdm", "xserver-xorg-legacy"} & set(wanted)


def test_the_desktop_on_fedora(guest: Guest) -> None:
    guest.system(FEDORA)
    plan = guest.plan(SETUP, "--user", "me")
    wanted = packages(plan, "dnf")
    for package in ("git", "xorg-x11-server-Xorg", "xorg-x11-xinit", "polkit", "awesome",
                    "dejavu-sans-fonts", "Thunar", "xfce4-terminal"):  # fmt: skip
        assert package in wanted
    assert "apt-get" not in plan


def test_tools_are_installed_as_the_user_or_by_the_distribution(guest: Guest) -> None:
    guest.tool("apt-cache", """
if [ "${2:-}" = ghostty ]; then exit; fi
if [ $# -eq 1 ]; then echo ' 500 http://deb.example.org stable/main amd64 Packages'; exit; fi
printf '%s:\\n  Installed: (none)\\n  Candidate: 1.0\\n' "$2"
""")  # fmt: skip
    plan = guest.plan(APPS, "--user", "me")
    assert plan.count("would, as me: ") == 3
    assert "no package of Ghostty" in plan and "ghostty.org" in plan
    wanted = packages(plan, "apt-get")
    assert {"curl", "python3", "lf", "fzf"} <= set(wanted) and "ghostty" not in wanted


def test_ghostty_is_installed_where_it_is_packaged(guest: Guest) -> None:
    assert "ghostty" in packages(guest.plan(APPS, "--user", "me", "--only", "ghostty"), "apt-get")
    guest.system(FEDORA)
    assert "ghostty" in packages(guest.plan(APPS, "--user", "me", "--only", "ghostty"), "dnf")


def test_hosts_are_those_of_the_chosen_steps(guest: Guest) -> None:
    guest.tool(
        "apt-get", "printf 'http://deb.example.org/debian/\\nhttps://sec.example.org:8/x\\n'"
    )

    def hosts(*words: str) -> list[str]:
        done = guest.run(APPS, "--hosts", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert hosts("--only", "go") == ["dl.google.com", "go.dev"]
    assert hosts("--only", "claude") == ["registry.npmjs.org"]
    assert hosts("--only", "fzf") == ["deb.example.org", "sec.example.org:8"]
    assert set(hosts()) > {"nodejs.org", "github.com", "codeload.github.com", "deb.example.org"}
    done = guest.run(SETUP, "--hosts")
    assert done.stdout.splitlines() == ["deb.example.org", "sec.example.org:8"]
