"""Functions that run in a child process: their results, and what is left after a failure."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.errors import Exit, UserError, os_error
from gitguardfs.base.findings import Result, Status
from gitguardfs.commands import doctor
from gitguardfs.doctor import attack_checks, policy_checks, search, writable_checks
from gitguardfs.doctor.context import CheckedSystem, find_user
from gitguardfs.doctor.search import SearchResult
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, SetupFailed, SwitchUserFailed, UndoFailed, User
from tests.support.trees import nested

ME = User(os.getuid(), os.getgid(), tuple(os.getgroups()), "me")


def fail(number: int) -> None:
    raise os_error(number)


def test_what_a_function_returns_or_raises_comes_back() -> None:
    assert run_as.run_as(lambda: {"a": [1, "\udcff"]}) == {"a": [1, "\udcff"]}
    with pytest.raises(OSError) as refused:
        run_as.run_as(fail, errno.EACCES)
    assert refused.value.errno == errno.EACCES
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_as.run_as(lambda: 1 // 0)


def test_a_step_that_prepares_is_told_from_the_attack() -> None:
    def prepare() -> None:
        with run_as.preparing():
            fail(errno.ENOSPC)

    with pytest.raises(SetupFailed):
        run_as.run_as(prepare)


def test_a_user_that_cannot_be_become_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(user: User) -> None:
        fail(errno.EPERM)

    monkeypatch.setattr(run_as, "switch_user", refused)
    with pytest.raises(SwitchUserFailed, match="switching to me: Operation not permitted"):
        run_as.run_as(lambda: 1, user=ME)
    host = doctor.examine_host("/", str(ME.uid), None)
    assert [(r.id, r.status) for r in host] == [("run.user", Status.FINDING)]
    assert "could not be checked" in host[0].detail


def test_a_child_that_hangs_or_dies_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(NoAnswer):
        run_as.run_as(lambda: time.sleep(60), limit=0.2)
    with pytest.raises(NoAnswer):
        run_as.run_as(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert time.monotonic() - began < 20
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_answer_that_is_not_ours_is_no_answer() -> None:
    for data in (b"", b"not json", b"[]", b"{}", b'"x"', b'["returned"]', b"[1, 2", b'["oserror"]'):
        with pytest.raises(NoAnswer):
            run_as._answer(data, 1)
    assert run_as._answer(b'["returned", 5]', 1) == 5
    for status in (-1, 0, 2):
        with pytest.raises(NoAnswer):
            run_as._answer(b'["returned", 5]', status)


def test_what_worked_is_undone_whatever_signal_comes(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()

    def move() -> None:
        with run_as.undoing(lambda: os.rename(new, old), "it is moved"):
            os.rename(old, new)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(NoAnswer):
        run_as.run_as(move)
    assert old.exists() and not new.exists()


def test_what_was_refused_is_not_undone_and_what_cannot_be_is_said() -> None:
    undone = []
    with pytest.raises(PermissionError):
        with run_as.undoing(lambda: undone.append(1), "x"):
            fail(errno.EACCES)
    assert not undone
    with pytest.raises(UndoFailed, match="it is now there"):
        with run_as.undoing(lambda: fail(errno.EACCES), "it is now there"):
            pass


# ------------------------------------------------------------------------------- the search


def make_tree(top: Path) -> None:
    (top / "a/repo/.git").mkdir(parents=True)
    (top / "b").mkdir()
    (top / "b/.git").write_text("gitdir: x\n")
    (top / "c").mkdir()
    (top / "c/.git").symlink_to("x")
    (top / "bare.git/refs").mkdir(parents=True)
    (top / "bare.git/HEAD").write_text("ref: refs/heads/main\n")


def test_the_search_finds_each_form_of_repository(tmp_path: Path) -> None:
    make_tree(tmp_path)
    found = search.SearchResult(**search.search(str(tmp_path)))
    assert found.directory == str(tmp_path / "a/repo/.git")
    assert found.file == str(tmp_path / "b/.git")
    assert found.symlink == str(tmp_path / "c/.git")
    assert found.bare == str(tmp_path / "bare.git")
    assert found.root in {str(tmp_path / name) for name in ("a/repo", "b", "c")}
    assert found.writable == str(tmp_path) and found.complete


def test_the_search_is_bounded(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"d{number}/inner").mkdir(parents=True)
    found = search.SearchResult(**search.search(str(tmp_path), entries=10))
    assert not found.complete and found.searched <= 11
    assert not search.SearchResult(**search.search(str(tmp_path), seconds=-1.0)).complete


def test_removing_the_scratch_directory_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    scratch = search.make_scratch(str(tmp_path))
    assert os.path.basename(scratch).startswith("gitguard-doctor-")
    Path(scratch, "deep").mkdir()
    Path(scratch, "deep/way").symlink_to(tmp_path / "kept")
    assert search.remove_scratch(scratch)
    assert (tmp_path / "kept/file").exists()


@pytest.fixture
def handled() -> Iterator[None]:
    """The command's signal handlers."""
    leave = doctor.Leaving()
    before = {number: signal.signal(number, leave) for number in attack_checks.STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.one_thread
@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("number", sorted(attack_checks.STOPPING))
@pytest.mark.parametrize("stopped_before", [False, True])
def test_no_signal_ends_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, stopped_before: bool
) -> None:
    remove = search.remove_scratch

    def remove_slowly(scratch: str) -> bool:
        for _ in range(3):
            os.kill(os.getppid(), number)
            time.sleep(0.05)
        return remove(scratch)

    def attack(scratch: str) -> list[Result]:
        assert os.listdir(tmp_path) == [os.path.basename(scratch)]
        if stopped_before:
            os.kill(os.getpid(), signal.SIGTERM)
        return []

    monkeypatch.setattr(search, "remove_scratch", remove_slowly)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        attack_checks._in_scratch(ME, str(tmp_path), attack)
    assert os.listdir(tmp_path) == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_only_the_first_signal_ends_the_command() -> None:
    for first, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGHUP, SystemExit)):
        leave = doctor.Leaving()
        with pytest.raises(raised):
            leave(first, None)
        for number in attack_checks.STOPPING:
            leave(number, None)


@pytest.mark.one_thread
@pytest.mark.usefixtures("handled")
def test_a_signal_that_comes_up_as_others_are_held_ends_no_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = signal.pthread_sigmask
    calls: list[int] = []

    def stop_at_the_second(how: int, mask: Any) -> Any:
        calls.append(how)
        if how == signal.SIG_BLOCK and calls.count(how) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return held(how, mask)

    monkeypatch.setattr(signal, "pthread_sigmask", stop_at_the_second)
    with pytest.raises(SystemExit):
        attack_checks._in_scratch(ME, str(tmp_path), lambda scratch: [])
    assert os.listdir(tmp_path) == []


def policy_of(**found: Path) -> str:
    paths = {form: str(path) for form, path in found.items()}
    return policy_checks.policy_by_reading(ME, SearchResult(**paths))  # type: ignore[arg-type]


def test_only_a_git_that_is_shown_as_open_counts_as_open(tmp_path: Path) -> None:
    """A .git that is shown as closed but can be listed, here by root, is a hole, no policy."""
    git = tmp_path / ".git"
    git.mkdir()
    assert policy_of(directory=git) == "off"
    git.chmod(0)
    assert policy_of(directory=git) == "deny"
    assert policy_of() == "unknown"
    assert policy_of(directory=git / "x/y") == "unsure"
    assert policy_checks.report_policy("/m", "unknown").status is Status.NOTE


# --------------------------------------------------------------------------- user and place


def test_a_user_is_found_by_name_and_number() -> None:
    assert find_user("root").uid == 0
    assert find_user("0").name == "root"
    unknown = find_user("987654", lambda name, gid: [gid, 7])
    assert (unknown.uid, unknown.gid, unknown.groups) == (987654, 987654, (987654, 7))
    with pytest.raises(UserError, match="no such user"):
        find_user("nobody-of-that-name")


@pytest.mark.parametrize("number", ["4294967295", "9" * 23, "9" * 5000])
def test_a_number_that_no_user_can_have_is_refused(number: str) -> None:
    """4294967295 is -1, with which setresuid(2) changes nothing."""
    with pytest.raises(UserError, match="no user can have the number") as refused:
        find_user(number, lambda name, gid: [gid])
    assert refused.value.code == Exit.USAGE
    for host in (False, True):
        with pytest.raises(UserError, match="no user can have the number"):
            (doctor.examine_host if host else doctor.examine)("/", number, None)
    assert find_user("4294967294", lambda name, gid: [gid]).uid == 4294967294
    assert find_user("0" * 20).uid == 0


def test_the_user_is_the_one_asked_for_or_the_owner_or_the_caller() -> None:
    def chosen(name: str | None, caller: str | None, owner: str | None) -> int | None:
        user = doctor.choose_user(name, caller, owner, True, CheckedSystem())
        return None if user is None else user.uid

    assert chosen("4001", "4002", "4003") == 4001
    assert chosen(None, "4002", "4003") == 4003
    assert chosen(None, "4002", None) == 4002
    assert chosen(None, "0", None) is None
    assert chosen(None, None, None) is None
    with pytest.raises(UserError, match="by design"):
        chosen("root", None, None)


def test_only_root_can_become_another_user() -> None:
    other = str(os.geteuid() + 1)
    with pytest.raises(UserError) as refused:
        doctor.choose_user(other, None, None, False, CheckedSystem())
    assert refused.value.code == Exit.SYSTEM


# ---------------------------------------------------------------------- files and host, for real


def test_what_a_user_could_write_or_replace_is_found(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").touch()
    (tmp_path / "launcher").symlink_to("package/module.py")
    found, unfinished = writable_checks.writable_among([str(tmp_path / "launcher")])
    assert unfinished == []
    assert {str(tmp_path / "package/module.py"), str(tmp_path / "package")} <= set(found)
    assert (
        str(tmp_path / "package/module.py")
        in writable_checks.writable_among([str(tmp_path / "package")])[0]
    )
    assert writable_checks.writable_among([str(tmp_path / "absent")]) == ([], [])


def test_a_directory_with_too_much_in_it_is_named_and_not_called_sound(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}").touch()
    assert writable_checks.writable_among([str(tmp_path)], limit=4)[1] == []
    assert writable_checks.writable_among([str(tmp_path)], limit=3)[1] == [str(tmp_path)]


def test_a_deep_tree_is_searched(tmp_path: Path) -> None:
    with nested(tmp_path, 1_200):
        found, unfinished = writable_checks.writable_among([str(tmp_path / "d")])
    assert f"{tmp_path}/{'/'.join('d' * 1_200)}" in found
    assert unfinished == []


def test_what_a_library_of_the_daemon_imports_is_looked_at() -> None:
    libraries = writable_checks._libraries(CheckedSystem())
    assert any(path.endswith(("/outcome", "/outcome.py")) for path in libraries)


def test_a_sticky_directory_keeps_only_what_belongs_to_others(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert not search.is_kept(str(tmp_path / "x"), ME.uid + 1)
    tmp_path.chmod(0o1777)
    assert search.is_kept(str(tmp_path / "x"), ME.uid + 1)
    assert not search.is_kept(str(tmp_path / "x"), ME.uid)
