"""Programs that run on the host must be where the agent cannot write."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs
from gitguardfs.base import installation
from gitguardfs.base.errors import UserError
from gitguardfs.host.vm import driver, keys, ssh, trusted_programs
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings

PACKAGE = Path(gitguardfs.__file__).parent
GITGUARD = "from gitguardfs.commands.gitguard import main; main()"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    (tmp_path / "project/bin").mkdir(parents=True)
    return str(tmp_path / "project")


def program_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\ntouch "$0.ran"\n')
    path.chmod(0o755)
    return path


def test_an_installation_elsewhere_is_taken(project: str) -> None:
    trusted_programs.check(Settings(project), trusted_programs.SSH)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSL_CERT_FILE", "PROJECT/ca.pem"), ("SSL_CERT_DIR", "/etc/ssl/certs:certs"),
        ("LD_PRELOAD", "/lib/a.so PROJECT/b.so"), ("LD_LIBRARY_PATH", "/usr/lib:"),
        ("LD_LIBRARY_PATH", "/usr/lib;PROJECT/lib"), ("OPENSSL_MODULES", "lib"),
        ("LD_AUDIT", "./audit.so"), ("PYTHONPYCACHEPREFIX", "LINK/cache"), ("PYTHONPATH", "src"),
        ("PYTHONHOME", "PROJECT"), ("OPENSSL_CONF", "PROJECT/openssl.cnf"),
    ],
)  # fmt: skip
def test_no_variable_may_lead_into_the_project(
    project: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Path(project).parent / "link"
    link.symlink_to(project)
    monkeypatch.chdir(project)
    monkeypatch.setenv(name, value.replace("PROJECT", project).replace("LINK", str(link)))
    with pytest.raises(UserError, match=rf"{name} leads into the project .*unset {name}"):
        trusted_programs.check(Settings(project))


def test_variables_that_lead_elsewhere_or_nowhere_are_taken(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for name, value in (
        ("SSL_CERT_FILE", "/etc/ssl/cert.pem"), ("LD_BIND_NOW", "1"), ("PYTHONUNBUFFERED", "1"),
        ("PYTHONIOENCODING", "utf-8"), ("LD_LIBRARY_PATH", ""), ("LD_PRELOAD", "libm.so.6"),
        ("VIRTUAL_ENV", f"{project}/.venv"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    trusted_programs.check(Settings(project))


@pytest.mark.parametrize(
    ("where", "name"),
    [(installation, "PACKAGE_PARENT"), (sys, "executable"), (sys, "prefix"), (sys, "base_prefix")],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.parametrize("by_link", [False, True])
def test_this_very_program_may_not_lie_in_the_project(
    project: str, where: object, name: str, by_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = program_at(Path(project) / ".venv/bin/python")
    if by_link:
        link = Path(project).parent / "link"
        link.symlink_to(inside)
        inside = link
    monkeypatch.setattr(where, name, str(inside))
    with pytest.raises(UserError, match=r"lies in the project .*pipx install '\.\[vm\]'"):
        trusted_programs.check(Settings(project))


def test_an_interpreter_of_the_project_that_is_a_link_to_the_systems_is_refused(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each virtual environment has one."""
    link = Path(project) / "bin/python"
    link.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(link))
    with pytest.raises(UserError, match=r"Python lies in the project"):
        trusted_programs.check(Settings(project))


@pytest.mark.parametrize("words", [["up"], ["proxy"], ["ssh"], ["forward", "80"], ["ssh-config"]],
                         ids=lambda words: words[0])  # fmt: skip
@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="no qemu-system-x86_64")
def test_modules_are_not_taken_from_the_project(
    project: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package may be elsewhere and still load a module from the project."""
    state = states.state_of(project)
    states.create(state)
    Path(state.disk).touch()
    code = f"import os, sys; os.geteuid = lambda: 1000; sys.path.append({project + '/lib'!r});"
    code += f" from gitguardfs.host.vm import state; state.SOCKET_PATH_BYTES = 200; {GITGUARD}"
    done = subprocess.run(
        [sys.executable, "-c", code, "vm", words[0], "--project", project, *words[1:]],
        capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "search path lies in the project" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", [*trusted_programs.PROGRAMS, "qemu-system-x86_64"])
@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="no qemu-system-x86_64")
def test_no_program_is_taken_from_the_project(
    project: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a virtual environment of the project is in PATH."""
    inside = program_at(Path(project) / "bin" / name)
    monkeypatch.setenv("PATH", f"{inside.parent}:{os.environ['PATH']}")
    state = states.state_of(project)
    with pytest.raises(UserError, match=rf"^{name} lies in the project .*from PATH"):
        driver.up(state, driver.UpArguments(Settings(project)))
    assert not state.exists
    assert not inside.with_name(f"{name}.ran").exists()


def test_what_the_agent_puts_into_path_later_is_not_run(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = Path(project) / "bin"
    monkeypatch.setenv("PATH", f"{inside}:{os.environ['PATH']}")
    trusted_programs.check(Settings(project), *trusted_programs.PROGRAMS)
    for name in trusted_programs.PROGRAMS:
        program_at(inside / name)
    guest = ssh.SshGuest(keys.Keys("/none"), 1, "/v")
    subprocess.run([*ssh.command(guest, keys.AGENT), "-V"], capture_output=True)
    state = states.state_of(project)
    states.create(state)
    keys.ensure(state)
    assert sorted(os.listdir(inside)) == sorted(trusted_programs.PROGRAMS)


def test_a_relative_directory_of_path_is_made_absolute(
    project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_at(Path(project) / "bin/ssh")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"bin:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"ssh lies in the project"):
        trusted_programs.check(Settings(project), "ssh")


def test_a_program_is_not_found_by_a_symlink_of_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's link leads to one in the project, which leads to the program, today."""
    for name in ("bin", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/tool").symlink_to(tmp_path / "project/tool")
    (tmp_path / "project/tool").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(UserError, match="tool lies in the project"):
        trusted_programs.check(Settings(str(tmp_path / "project")), "tool")
