"""vm-setup.sh, run for real in Debian 13: what it leaves, and that it may be run again."""

import os
import shutil

import pytest

from tests.desktop.conftest import Desktop
from tests.desktop.root import AGENT, HOME, SETUP, SETUP_INSIDE, USER

CONFIG = HOME / ".config/awesome"
PROFILE = "etc/profile.d/gitguardfs-desktop.sh"
PROGRAMS = (
    "git",
    "Xorg",
    "startx",
    "awesome",
    "awesome-client",
    "thunar",
    "xfce4-terminal",
    "tmux",
)
STEPS = ("basics", "xorg", "awesome", "files", "terminal", "login")


def test_the_first_run_installs_everything(desktop: Desktop) -> None:
    for step in STEPS:
        assert f"\n{step}: " in desktop.first_run
    assert f"Log in as {USER}" in desktop.first_run
    for program in PROGRAMS:
        assert desktop.system.run("sh", "-c", f"command -v {program}").returncode == 0, program


def test_the_configuration_is_the_users(desktop: Desktop) -> None:
    for source in (SETUP / "awesome").glob("*.lua"):
        path = desktop.system.root / CONFIG / source.name
        assert path.read_text() == source.read_text()
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (AGENT, AGENT, 0o644)
    assert (desktop.system.root / HOME / ".config").stat().st_uid == AGENT


def test_a_second_run_changes_nothing(desktop: Desktop) -> None:
    before = desktop.changed()
    done = desktop.system.run_script("vm-setup.sh", "-y", "--user", USER)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert desktop.changed() == before
    assert done.stdout.count("installed already") == 5
    assert "wrote" not in done.stdout and "apt" not in done.stdout.lower()


def test_the_distributions_tools_are_installed_and_what_it_has_not_is_said(
    desktop: Desktop,
) -> None:
    """vm-apps.sh as root; what it fetches from elsewhere is tested in the unit tier."""
    assert "This distribution has no package of Ghostty" in desktop.apps_run
    for program in ("lf", "fzf"):
        assert desktop.system.run("sh", "-c", f"command -v {program}").returncode == 0
    before = desktop.changed()
    done = desktop.system.run_script("vm-apps.sh", "-y", "--user", USER, "--only", "lf", "fzf")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("installed already") == 2
    assert desktop.changed() == before


def test_the_login_starts_the_desktop_for_its_user_alone(desktop: Desktop) -> None:
    """The file that a login shell reads, with startx and id as stand-ins."""
    root = desktop.system.root
    stand_ins = root / "opt/login"
    stand_ins.mkdir(parents=True)
    for name, text in (("startx", 'echo "started $*"'), ("id", 'echo "$UID_SAID"')):
        (stand_ins / name).write_text(f"#!/bin/sh\n{text}\n")
        (stand_ins / name).chmod(0o755)

    def login(uid: int, **environment: str) -> str:
        shell = ["env", "-i", "PATH=/opt/login:/usr/bin:/bin", f"UID_SAID={uid}"]
        shell += [f"{name}={value}" for name, value in environment.items()]
        return desktop.system.run(*shell, "sh", "-eu", "-c", f". /{PROFILE}; echo shell").stdout

    assert login(AGENT, XDG_VTNR="1") == "started /usr/bin/awesome\n"
    assert login(AGENT, XDG_VTNR="2") == login(AGENT) == "shell\n"
    assert login(AGENT, XDG_VTNR="1", DISPLAY=":0") == "shell\n"
    assert login(AGENT + 1, XDG_VTNR="1") == "shell\n"
    (stand_ins / "startx").write_text("#!/bin/sh\nexit 1\n")
    assert login(AGENT, XDG_VTNR="1") == "shell\n"


def test_a_graphical_login_that_is_there_is_left_alone(desktop: Desktop) -> None:
    manager = desktop.system.root / "etc/systemd/system/display-manager.service"
    manager.symlink_to("/nowhere")
    profile = desktop.system.root / PROFILE
    profile.unlink()
    done = desktop.system.run_script("vm-setup.sh", "-y", "--user", USER, "--only", "login")
    assert "choose the session awesome" in done.stdout
    assert not profile.exists()
    assert (desktop.system.root / "usr/share/xsessions/awesome.desktop").exists()
    manager.unlink()
    assert "xorg" not in done.stdout.split("The desktop")[0]
    assert desktop.system.run_script("vm-setup.sh", "-y", "--user", USER).returncode == 0
    assert profile.exists()


def test_a_file_of_the_users_own_is_kept(desktop: Desktop) -> None:
    config = desktop.system.root / CONFIG / "rc.lua"
    ours = config.read_text()
    for number in (1, 2):
        config.write_text(f"-- my own {number}\n")
        done = desktop.system.run_script("vm-setup.sh", "-y", "--user", USER, "--only", "awesome")
        assert done.returncode == 0
        assert "rc.lua.~1~" in done.stdout
        assert config.read_text() == ours
        kept = config.with_name(f"rc.lua.~{number}~")
        assert kept.read_text() == f"-- my own {number}\n"
    assert not list(config.parent.glob("rc.lua.??????"))


def test_a_file_of_somebody_elses_in_etc_is_left_alone(desktop: Desktop) -> None:
    profile = desktop.system.root / PROFILE
    profile.write_text("# mine\n")
    done = desktop.system.run_script("vm-setup.sh", "-y", "--user", USER, "--only", "login")
    assert done.returncode == 1
    assert (
        done.stderr
        == f"vm-setup.sh: /{PROFILE} was not written by this script: move it away first\n"
    )
    assert profile.read_text() == "# mine\n"
    profile.unlink()


@pytest.mark.parametrize("planted", [".config/awesome", ".config", ".config/awesome/rc.lua"])
def test_root_follows_no_symlink_of_the_users(desktop: Desktop, planted: str) -> None:
    """A symlink could redirect a write by root to any directory."""
    home = desktop.system.root / HOME
    roots = desktop.system.root / "etc/cron.d"
    roots.mkdir(exist_ok=True)
    (roots / "awesome").mkdir(exist_ok=True)
    victim = roots / "rc.lua"
    victim.write_text("root's\n")
    before = sorted(str(path) for path in roots.rglob("*"))
    path = home / planted
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to("/etc/cron.d/rc.lua" if planted.endswith(".lua") else "/etc/cron.d")
    os.chown(path, AGENT, AGENT, follow_symlinks=False)
    done = desktop.system.run_script("vm-setup.sh", "-y", "--user", USER, "--only", "awesome")
    assert sorted(str(path) for path in roots.rglob("*")) == before
    assert victim.read_text() == "root's\n"
    if planted.endswith(".lua"):
        assert done.returncode == 0
        assert not path.is_symlink() and path.stat().st_uid == AGENT
        assert (path.parent / "rc.lua.~3~").is_symlink()
    else:
        assert done.returncode == 1
        assert "Permission denied" in done.stderr
        path.unlink()
        aside.rename(path)
    shutil.rmtree(roots)


def test_what_runs_as_the_user_has_no_terminal_of_roots_and_gains_no_rights(
    desktop: Desktop,
) -> None:
    script = desktop.system.root / "opt/shows.sh"
    script.write_text(
        f". /{SETUP_INSIDE}/common.sh; . /{SETUP_INSIDE}/steps.sh; user={USER}; find_user\n"
        "shows() { echo $(id -u) $(id -G) $(ps -o sid= -p $BASHPID) $(ps -o tty= -p $BASHPID)"
        " $HOME ${SECRET-none} ${https_proxy-none}; grep NoNewPrivs /proc/self/status; }\n"
        "as_user shows; ps -o sid= -p $BASHPID\n"
    )
    done = desktop.system.run("env", "SECRET=x", "https_proxy=http://p", "bash", "/opt/shows.sh")
    first, privileges, own = done.stdout.splitlines()
    uid, gid, session, terminal, home, secret, proxy = first.split()
    assert (uid, gid, home) == (str(AGENT), str(AGENT), f"/{HOME}")
    assert session != own.strip() and terminal == "?"
    assert (secret, proxy) == ("none", "http://p")
    assert privileges.split()[1] == "1"
