"""Where a VM's state lies, and the locks: with real processes."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.host.vm import running, settings, state

HOLDER = """
import subprocess, sys, time
from gitguardfs.host.vm.state import take
fd = take(sys.argv[1])
quiet = {"stdout": subprocess.DEVNULL, "pass_fds": (fd,)}
child = subprocess.Popen(["sleep", "1000"], **quiet) if len(sys.argv) > 2 else None
print(child.pid if child else 0, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setattr(state, "SOCKET_PATH_BYTES", 200)  # pytest's paths are long
    return tmp_path


@pytest.fixture
def project(home: Path) -> Path:
    path = home / "My Project!"
    path.mkdir()
    return path


def test_the_name_is_readable_and_differs_for_equal_basenames() -> None:
    one, other = state.name_of("/a/My Project!"), state.name_of("/b/My Project!")
    assert one != other
    assert one.startswith("my-project-")


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_becomes_one_that_can_be_a_host_name(name: str) -> None:
    found = state.name_of(f"/srv/{name}")
    assert len(found) <= 29
    assert all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in found)
    assert not found.startswith("-")
    assert "--" not in found


def test_a_symlink_to_the_project_is_the_same_vm(home: Path, project: Path) -> None:
    (home / "link").symlink_to(project)
    assert state.state_of(str(home / "link")) == state.state_of(str(project))


@pytest.mark.parametrize("where", ["", "s", "s/gitguardfs", "s/gitguardfs/vm/x"])
def test_the_state_may_not_lie_in_the_share_nor_the_share_in_the_state(
    home: Path, where: str
) -> None:
    with pytest.raises(UserError, match=r"the agent could change it"):
        state.state_of(str(home / where))


def test_the_state_is_the_users_alone(project: Path) -> None:
    os.umask(0)
    try:
        made = state.state_of(str(project))
        state.create(made)
        state.create(made)
    finally:
        os.umask(0o022)
    path = Path(made.directory)
    assert [p.stat().st_mode & 0o777 for p in (path, path.parent, path.parent.parent)] == [
        0o700
    ] * 3


def test_a_symlink_in_place_of_the_state_is_not_followed(home: Path, project: Path) -> None:
    made = state.state_of(str(project))
    state.create(made)
    os.rmdir(made.directory)
    (home / "elsewhere").mkdir(mode=0o755)
    os.symlink(home / "elsewhere", made.directory)
    with pytest.raises(OSError):
        state.create(made)
    assert (home / "elsewhere").stat().st_mode & 0o777 == 0o755


def test_a_directory_above_that_has_a_vm_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = project / "src/deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert state.find(None).project == str(below)
    above = state.state_of(str(project))
    state.create(above)
    assert state.find(None).project == str(below), "a failed start has left the directory"
    Path(above.disk).touch()
    assert state.find(None).project == str(project)
    assert state.find(str(below)).project == str(below)


def test_a_path_that_is_too_long_for_a_socket_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SOCKET_PATH_BYTES", 103)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ("x" * 80)))
    with pytest.raises(UserError, match=r"too long for a socket"):
        state.state_of("/srv/project")


# The lock


@pytest.fixture
def lock(project: Path) -> str:
    made = state.state_of(str(project))
    state.create(made)
    return made.lock


def holder(lock: str, *more: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, lock, *more], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.fixture
def held(lock: str) -> Iterator[subprocess.Popen[str]]:
    process, _ = holder(lock)
    yield process
    process.kill()
    process.communicate()


def test_a_lock_stays_with_whoever_has_inherited_it(lock: str) -> None:
    process, child = holder(lock, "with a child")
    process.kill()
    process.communicate()
    try:
        assert state.is_held(lock)
    finally:
        os.kill(child, signal.SIGKILL)
    fd = state.take(lock, patience=20)
    assert fd is not None
    os.close(fd)


def test_a_lock_that_was_deleted_while_it_was_waited_for_is_not_taken(
    lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes the VM anew would not see it, and two commands would start it."""
    before = state.take(lock)
    assert before is not None
    os.close(before)
    old = os.stat(lock).st_ino
    spare = os.open(lock, os.O_RDONLY)  # so that no new file gets its number
    flock = fcntl.flock

    def deleted(fd: int, how: int) -> None:
        flock(fd, how)
        if os.fstat(fd).st_ino == old:
            os.unlink(lock)

    monkeypatch.setattr(fcntl, "flock", deleted)
    fd = state.take(lock)
    assert fd is not None
    assert os.path.samestat(os.fstat(fd), os.stat(lock)) and state.is_held(lock)
    os.close(fd)
    os.close(spare)


def test_reset_is_refused_while_the_vm_runs(project: Path, lock: str) -> None:
    made = state.state_of(str(project))
    process, _ = holder(lock)
    try:
        with pytest.raises(UserError, match=r"gitguard vm stop"):
            running.reset(made)
    finally:
        process.kill()
        process.communicate()
    assert made.exists
    running.reset(made)
    assert not made.exists
    assert os.listdir(os.path.dirname(made.directory)) == []


def test_what_an_interrupted_reset_has_left_goes_with_the_next_start(project: Path) -> None:
    made = state.state_of(str(project))
    state.create(made)
    left = Path(f"{made.directory}.removed-12345678")
    left.mkdir()
    (left / "disk.qcow2").write_text("x")
    state.remove_leftovers()
    assert os.listdir(os.path.dirname(made.directory)) == [made.name]


def test_what_cannot_be_deleted_stops_no_other_vm(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of root's, which a command run with sudo can leave."""
    whole = shutil.rmtree

    def denied(path: str) -> None:
        if "stays" in path:
            raise PermissionError(13, "Permission denied", "3000")  # as rmtree names it
        whole(path)

    monkeypatch.setattr(shutil, "rmtree", denied)
    made = state.state_of(str(project))
    state.create(made)
    left = Path(made.directory).with_name(f"stays{state._REMOVED}1")
    left.mkdir()
    (said,) = running.reset(made)
    assert not made.exists
    assert str(left) in said and "Permission denied" in said
    assert os.listdir(left.parent) == [left.name]


def test_a_vm_that_does_not_run_cannot_be_logged_in_to(project: Path) -> None:
    made = state.state_of(str(project))
    state.create(made)
    with pytest.raises(UserError, match=r"is not running .gitguard vm up"):
        running.guest(made)
    running.stop(made)  # safe to repeat


# Settings


def test_settings_are_remembered(project: Path) -> None:
    made = state.state_of(str(project))
    state.create(made)
    assert settings.load(made) == settings.Settings(str(project))
    given_now = settings.merged(settings.load(made), {"memory": 2048, "hide": (".env",)})
    settings.save(made, given_now)
    again = settings.merged(settings.load(made), {"memory": None, "cpus": 2, "hide": ()})
    assert again == settings.Settings(str(project), memory=2048, cpus=2, hide=(".env",))
    assert os.stat(made.path(settings.FILE)).st_mode & 0o777 == 0o600


def test_names_to_hide_are_added_to_those_that_are_hidden() -> None:
    """The command that `up` prints to hide a new secret keeps the others hidden."""
    old = settings.Settings("/srv/p", hide=(".env", "*.pem"))
    more = settings.merged(old, {"hide": ("x.key", ".env")})
    assert more.hide == (".env", "*.pem", "x.key")
    assert settings.merged(old, {"hide": ("",)}).hide == ()
    assert settings.merged(old, {"hide": ("", "x.key")}).hide == ("x.key",)
    with pytest.raises(UserError):
        settings.merged(old, {"hide": ("a/b",)})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"projekt": 1}', '{"project": "/x"}'])
def test_damaged_settings_are_one_line(project: Path, text: str) -> None:
    made = state.state_of(str(project))
    state.create(made)
    Path(made.path(settings.FILE)).write_text(text)
    with pytest.raises(UserError, match=r"damaged"):
        settings.load(made)


def test_the_guard_on_the_host_leaves_the_agent_without_git() -> None:
    assert settings.Settings("/srv/p").git_mode == "private"
    assert settings.merged(settings.Settings("/srv/p"), {"guard": "host"}).git_mode == "deny"
    with pytest.raises(UserError, match=r"must lie in the guest .--git deny, or --guard guest"):
        settings.merged(settings.Settings("/srv/p", git="private"), {"guard": "host"})
    assert (
        settings.merged(settings.Settings("/srv/p", git="deny"), {"hide": ("x",)}).git_mode
        == "deny"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 100},
        {"local": ("a/b",)},
        {"local": ("a,b",)},
        {"local": ("",)},
        {"local": ("a\\b",)},
        {"cpus": 0},
        {"hide": ("a/b",)},
        {"hide": ("a,b",)},
        {"hide": ("",)},
        {"hide": ("a\nb",)},
        {"git_name": " "},
        {"git_email": "a\nb"},
        {"guard": "host", "git": "readonly"},
        {"guard": "host", "git": "private"},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        settings.Settings("/srv/project", **wrong)  # type: ignore[arg-type]


def test_a_directory_of_the_agents_does_not_get_the_vm_of_another_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent can find a path in its project with the same checksum: there are 2**32."""
    own = state.state_of(str(project))
    state.create(own)
    settings.save(own, settings.Settings(own.project))
    same = project.parent / "other" / project.name
    same.mkdir(parents=True)
    mark = own.name[-8:]
    monkeypatch.setattr(state, "checksum", lambda _: mark)
    found = state.state_of(str(same))
    assert found.directory == own.directory
    with pytest.raises(UserError, match=f"is that of {project}"):
        settings.load(found)
    assert settings.load(state.all_states()[0]).project == own.project
