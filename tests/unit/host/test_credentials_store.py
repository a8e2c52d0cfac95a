"""The store of secret values: a keyring if there is a real one, else one file."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import keyring
import pytest
from keyring.backends import fail
from keyring.errors import KeyringLocked

from gitguardfs.base.errors import UserError
from gitguardfs.base.questions import OneByOne, PausedError
from gitguardfs.host.credentials import store
from tests.support import keyring_in_file

KEY = "vm/hello-1234/TOKEN"


@pytest.fixture(autouse=True)
def no_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv(keyring_in_file.VARIABLE, str(tmp_path / "keyring"))
    monkeypatch.setattr(store, "_QUESTIONS", OneByOne())
    keyring.set_keyring(fail.Keyring())


@pytest.fixture
def real_keyring(no_keyring: None, tmp_path: Path) -> Path:
    keyring.set_keyring(keyring_in_file.Keyring())
    return tmp_path / "keyring"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gitguardfs" / store.FILE


def test_a_keyring_keeps_the_value_and_the_file_does_not(real_keyring: Path, file: Path) -> None:
    assert store.write(KEY, "the-value") == "the keyring (test keyring)"
    assert store.read(KEY) == "the-value"
    assert "the-value" not in file.read_text()
    assert store.delete(KEY)
    assert "the-value" not in real_keyring.read_text()
    assert not file.exists()
    assert store.read(KEY) is None
    assert not store.delete(KEY)


def test_without_a_keyring_one_file_of_the_user_keeps_all(file: Path) -> None:
    assert store.write(KEY, "value") == str(file)
    assert store.write("other", "ö") == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert (store.read(KEY), store.read("other"), store.read("none")) == ("value", "ö", None)
    assert store.delete(KEY)
    assert store.read(KEY) is None
    assert store.delete("other")
    assert not file.exists()


def test_a_value_stays_where_it_is_when_it_changes(real_keyring: Path, file: Path) -> None:
    keyring.set_keyring(fail.Keyring())
    store.write(KEY, "first")
    keyring.set_keyring(keyring_in_file.Keyring())
    assert store.write(KEY, "second") == str(file)  # a proxy without a keyring needs it there
    keyring.set_keyring(fail.Keyring())
    assert store.read(KEY) == "second"
    assert store.delete(KEY)
    assert not file.exists()


def test_a_value_in_a_keyring_gets_no_second_one_in_the_file(
    real_keyring: Path, file: Path
) -> None:
    store.write(KEY, "first")
    keyring.set_keyring(fail.Keyring())
    for use in (store.read, lambda key: store.write(key, "second")):
        with pytest.raises(UserError, match="this session has none"):
            use(KEY)
    assert "second" not in file.read_text()
    with pytest.raises(UserError, match="this session has none"):
        store.delete(KEY)
    assert store.keys("vm/") == [KEY]  # it is still there
    keyring.set_keyring(keyring_in_file.Keyring())
    assert "first" in real_keyring.read_text()
    store.write(KEY, "third")
    assert store.delete(KEY)
    assert real_keyring.read_text() == "{}"


def test_what_a_killed_process_has_left_is_deleted(file: Path) -> None:
    code = (
        "import os, signal; from gitguardfs.host.credentials import store;"
        " os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL);"
        f" store.write({KEY!r}, 'the-value')"
    )
    environment = {**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == -9
    assert [path for path in file.parent.iterdir() if "the-value" in path.read_text()]
    assert not store.delete(KEY)
    assert list(file.parent.iterdir()) == []


def test_a_locked_keyring_is_an_error_that_does_not_name_the_value(
    real_keyring: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(KEY, "another")
    real_keyring.write_text(keyring_in_file.LOCKED)
    with pytest.raises(UserError, match="KeyringLocked"):
        store.write("new", "the value")
    for use in (store.read, store.delete, lambda key: store.write(key, "the value")):
        monkeypatch.setattr(store, "_QUESTIONS", OneByOne())
        with pytest.raises(UserError, match=r"KeyringLocked.*unlock") as caught:
            use(KEY)
        assert "the value" not in str(caught.value)
    # the user is not surprised by a value in plain text
    assert json.loads(file.read_text()) == {KEY: None}


class Hanging(keyring_in_file.Keyring):
    """A keyring that never answers what it is asked while ``hangs`` is set."""

    hangs = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.hangs:
            threading.Event().wait()
        return super().get_password(service, username)


def test_a_question_that_is_never_answered_is_given_up(
    real_keyring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging()
    keyring.set_keyring(hanging)
    monkeypatch.setattr(store, "READ_LIMIT", 0.05)
    store.write(KEY, "value")
    hanging.hangs = True
    threads = threading.active_count()
    for _ in range(100):
        with pytest.raises(UserError, match="did not answer"):
            store.read(KEY)
        time.sleep(0.01)
    assert threading.active_count() <= threads + 6
    hanging.hangs = False
    for _ in range(200):
        with contextlib.suppress(UserError):
            assert store.read(KEY) == "value"
            break
        time.sleep(0.05)
    else:
        pytest.fail("the question is never given up")
    assert store.read(KEY) == "value"


def test_while_a_question_is_overdue_others_are_not_asked(
    real_keyring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(KEY, "value")
    monkeypatch.setattr(store, "READ_LIMIT", 0.1)
    real_keyring.write_text(keyring_in_file.SILENT)
    threads = threading.active_count()
    with pytest.raises(UserError, match="did not answer"):
        store.read(KEY)
    monkeypatch.setattr(store, "READ_LIMIT", 1e6)  # fails at once, or never
    with pytest.raises(UserError, match="did not answer"):
        store.read(KEY)
    assert threading.active_count() == threads + 1


def test_after_a_refusal_the_pause_doubles_until_there_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_by_one, clock, asked = OneByOne(), [0], []

    def question() -> None:
        asked.append(clock[0])
        if clock[0] != 310:
            raise KeyringLocked

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for clock[0] in range(400):
        with contextlib.suppress(PausedError, KeyringLocked):
            one_by_one.ask(question, 10)
    assert asked == [0, 10, 30, 70, 150, 310, 311, 321, 341, 381]


def test_what_could_not_be_deleted_can_be_deleted_later(
    real_keyring: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(KEY, "value")
    saved = real_keyring.read_text()
    real_keyring.write_text(keyring_in_file.LOCKED)
    with pytest.raises(UserError, match="KeyringLocked"):
        store.delete(KEY)
    with pytest.raises(UserError, match="after a pause"):
        store.delete(KEY)
    real_keyring.write_text(saved)
    monkeypatch.setattr(store, "_QUESTIONS", OneByOne())  # of another process
    assert store.keys("vm/hello-1234/") == [KEY]
    assert store.delete(KEY)
    store.write(KEY, "value")
    file.unlink()  # moved away
    assert store.delete(KEY)
    assert real_keyring.read_text() == "{}"


@pytest.mark.parametrize("what", ["symlink", "directory", "fifo"])
def test_what_is_no_regular_file_is_refused(what: str, file: Path, tmp_path: Path) -> None:
    file.parent.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text("{}")
    if what == "symlink":
        file.symlink_to(target)
    elif what == "directory":
        file.mkdir()
    else:
        os.mkfifo(file)
    for use in (store.read, store.delete, lambda key: store.write(key, "value")):
        with pytest.raises(UserError, match="not a regular file"):
            use(KEY)
    assert target.read_text() == "{}"


def test_a_symlink_in_place_of_the_directory_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file.parent.parent.mkdir()
    file.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        store.write(KEY, "value")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{", '{"a": "b"'])
def test_a_damaged_file_is_named_and_kept(text: str, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    for use in (store.read, store.delete, lambda key: store.write(key, "value")):
        with pytest.raises(UserError, match=r"secret-values.json is damaged"):
            use(KEY)
    assert file.read_text() == text


def test_processes_that_write_at_a_time_lose_nothing(file: Path) -> None:
    code = (
        "import sys; from gitguardfs.host.credentials import store; store.write(sys.argv[1], 'v')"
    )
    environment = {**os.environ, "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    started = [
        subprocess.Popen([sys.executable, "-c", code, f"key{number}"], env=environment)
        for number in range(6)
    ]
    assert [process.wait() for process in started] == [0] * 6
    assert [store.read(f"key{number}") for number in range(6)] == ["v"] * 6
