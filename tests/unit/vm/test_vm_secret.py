"""``gitguard vm secret``: what it keeps and where, what it refuses, and what the guest gets."""

import itertools
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keyring
import pytest
from click.testing import CliRunner, Result

from gitguardfs.base.constants import SYSTEM_PATH
from gitguardfs.base.errors import UserError
from gitguardfs.base.questions import OneByOne
from gitguardfs.host.commands.vm.group import command
from gitguardfs.host.credentials import secrets, store, suspended
from gitguardfs.host.credentials.presets import PRESETS
from gitguardfs.host.credentials.secrets import Kind
from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.vm import (
    guest_files,
    guest_secrets,
    provision,
    running,
    secret_changes,
    tell_guest,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.guest_files import GuestFile
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from tests.support import keyring_in_file

VALUE = "the-value-itself"
BEARER = ("--host", "api.example.org", "--bearer")


@pytest.fixture(autouse=True)
def own_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(keyring_in_file.VARIABLE, str(tmp_path / "keyring"))
    monkeypatch.setattr(store, "_QUESTIONS", OneByOne())
    keyring.set_keyring(keyring_in_file.Keyring())
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv("XDG_STATE_HOME", short)
        yield tmp_path / "keyring"


@pytest.fixture
def vm(tmp_path: Path) -> State:
    (tmp_path / "project").mkdir()
    return states.state_of(str(tmp_path / "project"))


def run(vm: State, *words: str, value: str | bytes = VALUE) -> Result:
    store._QUESTIONS = OneByOne()  # each command is a process of its own
    return CliRunner().invoke(command, ["secret", *words, "--project", vm.project], input=value)


def done(vm: State, *words: str, value: str | bytes = VALUE) -> str:
    result = run(vm, *words, value=value)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(vm: State, *words: str, value: str | bytes = VALUE) -> str:
    result = run(vm, *words, value=value)
    assert result.exit_code != 0
    assert not isinstance(result.exception, KeyError)
    said = f"{result.output}{result.exception}"
    assert VALUE not in said
    return said


def loaded(vm: State) -> tuple[secrets.Secret, ...]:
    return secrets.load(Path(vm.directory))


def value(vm: State, name: str) -> str | None:
    return store.read(secrets.key(Path(vm.directory), name))


def test_a_secret_is_kept_in_the_keyring_and_recorded_without_its_value(
    vm: State, own_keyring: Path
) -> None:
    said = done(vm, "set", "TOKEN", *BEARER, value=f"{VALUE}\n")
    assert value(vm, "TOKEN") == VALUE
    (secret,) = loaded(vm)
    assert re.fullmatch(r"gitguard-secret-TOKEN-[0-9a-f]{32}", secret.placeholder)
    for text in (said, done(vm, "list")):
        assert "the keyring (test keyring)" in text
        assert "api.example.org" in text
        assert "Authorization: Bearer" in text
        assert VALUE not in text
    record = Path(vm.path(secrets.FILE))
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert VALUE not in record.read_text()


def test_a_vm_that_has_only_a_secret_is_listed_with_its_project(vm: State) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    (listed,) = json.loads(CliRunner().invoke(command, ["list", "--json"]).output)
    assert (listed["project"], listed["state"]) == (vm.project, "none")


def test_rotating_changes_the_value_and_removing_deletes_it(vm: State) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    before = loaded(vm)
    done(vm, "rotate", "TOKEN", value="another-value")
    assert loaded(vm) == before
    assert value(vm, "TOKEN") == "another-value"
    done(vm, "remove", "TOKEN")
    assert loaded(vm) == ()
    assert value(vm, "TOKEN") is None
    assert "no secrets" in done(vm, "list")
    for word in ("rotate", "remove"):
        assert "no secret TOKEN" in refused(vm, word, "TOKEN")


class Gate(keyring_in_file.Keyring):
    """A keyring that does nothing for its first user before another has come so far."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_answer = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.is_asked.set()
        self.may_answer.wait(10)

    def set_password(self, service: str, username: str, password: str) -> None:
        self.wait()
        super().set_password(service, username, password)

    def delete_password(self, service: str, username: str) -> None:
        self.wait()
        super().delete_password(service, username)


def at_once(first: Callable[[], object], second: Callable[[], object]) -> list[str]:
    """Let the keyring keep the first waiting until the second waits too; return what failed."""
    gate = Gate()
    keyring.set_keyring(gate)
    failed: list[str] = []

    def attempt(what: Callable[[], object]) -> None:
        try:
            what()
        except UserError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=attempt, args=(what,)) for what in (first, second)]
    threads[0].start()
    assert gate.is_asked.wait(10)
    threads[1].start()
    threads[1].join(0.3)  # as far as it gets
    gate.may_answer.set()
    for thread in threads:
        thread.join()
    return failed


def test_of_two_secrets_with_one_name_the_second_is_refused(vm: State) -> None:
    def add(host: str) -> None:
        where = secret_changes.place(host, True, None, None, None)
        secret_changes.add(vm, "TOKEN", (where,), "", f"value-of-{host}")

    failed = at_once(lambda: add("one.test"), lambda: add("two.test"))
    assert len(failed) == 1
    assert "has a secret TOKEN" in failed[0]
    assert [secret.hosts for secret in loaded(vm)] == [("one.test",)]
    assert value(vm, "TOKEN") == "value-of-one.test"


def test_what_is_rotated_while_it_is_removed_leaves_no_value(vm: State) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    failed = at_once(
        lambda: secret_changes.remove(vm, "TOKEN"),
        lambda: secret_changes.rotate(vm, "TOKEN", "new-value"),
    )
    assert len(failed) == 1
    assert "no secret TOKEN" in failed[0]
    assert loaded(vm) == ()
    assert value(vm, "TOKEN") is None


def test_a_secret_that_is_set_during_a_reset_is_whole_or_not_there(vm: State) -> None:
    where = secret_changes.place("a.test", True, None, None, None)
    for first, second in itertools.permutations(
        (lambda: secret_changes.add(vm, "TOKEN", (where,), "", VALUE), lambda: running.reset(vm))
    ):
        done(vm, "set", "OLD", *BEARER)
        assert at_once(first, second) == []
        assert (value(vm, "TOKEN") == VALUE) == (vm.exists and bool(loaded(vm)))
        assert not vm.exists or stat.S_IMODE(os.stat(vm.directory).st_mode) == 0o700
    assert value(vm, "OLD") is None


def test_each_preset_has_its_usual_variable(vm: State) -> None:
    for name, preset in PRESETS.items():
        assert preset.variable in done(vm, "set", "--preset", name)
    done(vm, "set", "WORK_TOKEN", "--preset", "github")
    assert [secret.name for secret in loaded(vm)] == [
        *(preset.variable for preset in PRESETS.values()), "WORK_TOKEN",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        (("--bearer",), Kind.BEARER, "Bearer"), (("--basic", "me"), Kind.BASIC, "me"),
        (("--header", "X-Key"), Kind.HEADER, "X-Key"), (("--query", "key"), Kind.QUERY, "key"),
    ],
)  # fmt: skip
def test_a_place_is_named_by_one_option(
    vm: State, options: tuple[str, ...], kind: Kind, word: str
) -> None:
    done(vm, "set", "TOKEN", "--host", "API.example.org:8443", *options)
    (place,) = loaded(vm)[0].places
    assert (place.host, place.port, place.kind, place.word) == (
        "api.example.org", 8443, kind, word,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("anthropic",), "--host"),
        ((), "--preset, or NAME"),
        (("TOKEN",), "--host"),
        (("TOKEN", "--host", "a.test"), "--bearer, --basic USER"),
        (("TOKEN", "--host", "a.test", "--bearer", "--query", "q"), "one of --bearer"),
        (("TOKEN", "--preset", "github", "--bearer"), "no others"),
        (("TOKEN", "--preset", "github", "--host", "a.test"), "no others"),
        (("github-token", *BEARER), "cannot be the name"),
        (("1TOKEN", *BEARER), "cannot be the name"),
        (("A" * 65, *BEARER), "cannot be the name"),
        (("TOKEN", "--host", "https://a.test/", "--bearer"), "leave out https://"),
        (("TOKEN", "--host", "*.a.test", "--bearer"), "not a host name"),
        (("TOKEN", "--host", "me@a.test", "--bearer"), "user name"),
        (("TOKEN", "--host", "a.test:0", "--bearer"), "port"),
        (("TOKEN", "--host", "gitguard.invalid", "--bearer"), "the proxy answers it"),
        (("TOKEN", "--host", "a.test", "--basic", "a:b"), "--basic"),
        (("TOKEN", "--host", "a.test", "--header", "Host"), "--header"),
        (("TOKEN", "--host", "a.test", "--header", "Content-Length"), "--header"),
        (("TOKEN", "--host", "a.test", "--header", "Content-Encoding"), "--header"),
        (("TOKEN", "--host", "a.test", "--header", "X Key"), "--header"),
        (("TOKEN", "--host", "a.test", "--header", "X-Original-URL"), "--header"),
        (("TOKEN", "--host", "a.test", "--header", "x_host"), "--header"),
        (("TOKEN", "--host", "a.test", "--query", "a&b"), "--query"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_is_kept(
    vm: State, words: tuple[str, ...], why: str
) -> None:
    assert why in refused(vm, "set", *words)
    assert not vm.exists or loaded(vm) == ()


@pytest.mark.parametrize(
    "name",
    ["PATH", "path", "HOME", "LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "GIT_SSH_COMMAND",
     "SHELLOPTS", "PROMPT_COMMAND", "JAVA_HOME", "CARGO_HOME", "NODE_PATH", "LESSOPEN", "BROWSER",
     "OPENSSL_CONF", "MAKEFLAGS", "GOPROXY", "NPM_CONFIG_REGISTRY", "npm_config_x",
     *guest_files.environment()],
)  # fmt: skip
def test_a_variable_that_the_guest_needs_is_no_name(vm: State, name: str) -> None:
    assert "programs in the guest need" in refused(vm, "set", name, *BEARER)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"), ("\n", "empty"), ("short12", "7 characters"), ("x" * 4097, "characters"),
        ("1" * 15, "only 15 digits"),
        ("two\nlines of it\n", "several lines"), ("with a\x1b[31m", "control character"),
        ("with a\x00null", "control character"), ("pässword", "not ASCII"),
        ("€uropean-value", "not ASCII"), (b"\xff\xfe-no-text-at-all", "not ASCII"),
        (" blank-at-the-start", "blank"), ("blank-at-the-end ", "blank"),
        ("gitguard-secret-TOKEN-" + "0" * 32, "placeholder"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_sent_is_refused_and_not_named(
    vm: State, text: str | bytes, why: str
) -> None:
    done(vm, "set", "OLD", *BEARER)
    for words in (("set", "TOKEN", *BEARER), ("rotate", "OLD")):
        said = refused(vm, *words, value=text)
        assert why in said
        assert not text.strip() or str(text) not in said
    assert value(vm, "TOKEN") is None
    assert value(vm, "OLD") == VALUE


def test_removing_counts_also_if_the_value_cannot_be_deleted(vm: State, own_keyring: Path) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    saved = own_keyring.read_text()
    own_keyring.write_text(keyring_in_file.LOCKED)
    for _ in range(2):
        said = refused(vm, "remove", "TOKEN")
        (name,) = json.loads(saved)
        assert name.removeprefix(f"{store.SERVICE} ") in said
        assert "was not deleted" in said
        assert "secret remove TOKEN tries again" in said
        assert loaded(vm) == ()
    own_keyring.write_text(saved)
    done(vm, "remove", "TOKEN")
    assert VALUE not in own_keyring.read_text()
    assert "no secret TOKEN" in refused(vm, "remove", "TOKEN")


@pytest.mark.parametrize("how", ["remove", "reset", "set"])
def test_a_value_that_a_killed_process_has_kept_can_be_deleted(
    vm: State, own_keyring: Path, how: str
) -> None:
    code = (
        "import os, signal, sys; from gitguardfs.host.credentials import secrets;"
        " from gitguardfs.host.commands.vm.group import command;"
        " secrets.save = lambda *_: os.kill(os.getpid(), signal.SIGKILL); command(sys.argv[1:])"
    )
    words = ["secret", "set", "TOKEN", *BEARER, "--project", vm.project]
    environment = {**os.environ, "PYTHON_KEYRING_BACKEND": keyring_in_file.BACKEND}
    killed = subprocess.run(
        [sys.executable, "-c", code, *words], input=VALUE.encode(), env=environment
    )
    assert killed.returncode == -9
    assert VALUE in own_keyring.read_text()
    if how == "reset":
        assert running.reset(vm) == []
    else:
        done(vm, how, "TOKEN", *(BEARER if how == "set" else ()), value="another-value")
    assert VALUE not in own_keyring.read_text()
    assert (value(vm, "TOKEN") is None) == (how != "set")


def test_a_closed_terminal_leaves_nothing_of_a_secret(vm: State, own_keyring: Path) -> None:
    own_keyring.write_text(keyring_in_file.SILENT)
    words = ["vm", "secret", "set", "TOKEN", *BEARER, "--project", vm.project]
    code = "import sys; from gitguardfs.commands.gitguard import main; main()"
    environment = {**os.environ, "PYTHON_KEYRING_BACKEND": keyring_in_file.BACKEND}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    process.stdin.write(VALUE.encode())
    process.stdin.close()
    while not own_keyring.with_suffix(".asked").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 128 + signal.SIGHUP
    assert store.keys("") == []
    assert not vm.exists


def test_who_waits_for_another_command_is_told(
    vm: State, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_changes, "PATIENCE", 0.1)
    with (
        secret_changes.changing(vm),
        pytest.raises(UserError, match="another gitguard vm command"),
        secret_changes.changing(vm),
    ):
        pass
    assert "waiting for another command" in capfd.readouterr().err


def test_a_reset_deletes_the_values(vm: State, own_keyring: Path) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    done(vm, "set", "OTHER", *BEARER)
    assert running.reset(vm) == []
    assert value(vm, "TOKEN") is None
    assert VALUE not in own_keyring.read_text()
    assert not vm.exists


def test_a_reset_says_which_values_remain(vm: State, own_keyring: Path) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    saved = own_keyring.read_text()
    own_keyring.write_text(keyring_in_file.LOCKED)
    result = CliRunner().invoke(command, ["reset", "-y", "--project", vm.project])
    assert result.exit_code == 0
    assert f"vm/{vm.name}/TOKEN in /" in result.output
    assert not vm.exists
    own_keyring.write_text(saved)
    done(vm, "remove", "TOKEN")
    assert VALUE not in own_keyring.read_text()


def test_a_guest_that_was_told_of_secrets_takes_its_next_seed(tmp_path: Path) -> None:
    """Otherwise a secret that is removed while the VM is off would stay in its environment."""
    for name in ("seed", "files"):
        (tmp_path / name).write_text("as of the last start")
    file = GuestFile(str(tmp_path / "environment"), "TOKEN=x\n", 0o600)
    subprocess.run(["sh", "-s"], input=tell_guest.script([file], str(tmp_path)), text=True,
                   check=True)  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]
    assert (tmp_path / "environment").read_text() == "TOKEN=x\n"


@pytest.mark.parametrize("text", ["", "{", "{}x", '["a"]', '[{"name": "A"}]', "[[]]", "null", "1"])
def test_a_damaged_record_is_an_error(vm: State, text: str) -> None:
    states.create(vm)
    Path(vm.path(secrets.FILE)).write_text(text)
    assert "damaged" in refused(vm, "list")


def test_two_secrets_of_one_name_are_damage(vm: State) -> None:
    """They would share a value, which each could send to its own host."""
    done(vm, "set", "TOKEN", *BEARER)
    file = Path(vm.path(secrets.FILE))
    file.write_text(json.dumps(2 * json.loads(file.read_text())))
    assert "damaged" in refused(vm, "list")


def typed(vm: State, keys: str) -> tuple[int, str]:
    """Set TOKEN at a terminal; return the exit status, and what was on the screen."""
    code = "import sys; from gitguardfs.commands.gitguard import main; main()"
    words = ["vm", "secret", "set", "TOKEN", *BEARER, "--project", vm.project]
    environment = {**os.environ, "PYTHON_KEYRING_BACKEND": keyring_in_file.BACKEND}
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code, *words], environment)
    said = b""
    while b"not shown" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, keys.encode())
    try:
        while part := os.read(terminal, 1000):
            said += part
    except OSError:  # the end of a terminal
        pass
    os.close(terminal)
    return os.waitpid(pid, 0)[1], said.decode()


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        (f"{VALUE}\n", VALUE), (f"wrong\x15{VALUE}x\x7f\r", VALUE),
        ("y" * secrets.MAX_VALUE + "\n", "y" * secrets.MAX_VALUE),
    ],
    ids=["plain", "edited", "long"],
)  # fmt: skip
def test_the_prompt_does_not_show_the_value(vm: State, keys: str, kept: str) -> None:
    status, said = typed(vm, keys)
    assert status == 0, said
    assert kept not in said
    assert value(vm, "TOKEN") == kept


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("first-line\nsecond-line\n", "several lines"),
        ("z" * (secrets.MAX_VALUE + 1) + "\n", "characters"), ("\n", "empty"),
    ],
    ids=["lines", "too long", "empty"],
)  # fmt: skip
def test_of_what_is_pasted_at_the_prompt_no_part_is_kept(vm: State, keys: str, why: str) -> None:
    status, said = typed(vm, keys)
    assert status != 0
    assert why in said
    assert value(vm, "TOKEN") is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("ghp_abcdefgh12345678", "--preset", "github"), "x"),
        (("github_pat_11ABCDEFG0", "--preset", "github"), "x"),
        (("sk-ant-api03-abcdef", "--preset", "anthropic"), "x"),
        (("npm_abcdefgh12345678", *BEARER), "x"),
        (("abcdefgh12345678", *BEARER), "abcdefgh12345678"),
        (("TOKEN", "--host", "a.test", "--basic", "abcdefgh12345678"), "abcdefgh12345678"),
        (("TOKEN", "--host", "a.test", "--header", "abcdefgh12345678"), "abcdefgh12345678"),
        (("TOKEN", "--host", "a.test", "--query", "abcdefgh12345678"), "abcdefgh12345678"),
        (("TOKEN", "--host", "sk-ant-api03-abcdef", "--bearer"), VALUE),
        (("TOKEN", "--host", "a.test", "--basic", "ghp_abcdefgh12345678"), VALUE),
    ],
)  # fmt: skip
def test_a_token_in_place_of_a_name_is_refused_and_not_shown(
    vm: State, words: tuple[str, ...], text: str
) -> None:
    said = refused(vm, "set", *words, value=text)
    assert "others may have seen it" in said
    assert not [word for word in words if len(word) > 15 and word in said]
    assert not vm.exists


@pytest.mark.parametrize(
    ("option", "word", "before"),
    [
        ("--basic", "me", "Basic "), ("--basic", "me", "me:"), ("--basic", "me", "Authorization:"),
        ("--header", "X-Api-Key", "x-api-key: "), ("--query", "key", "key="),
    ],
)  # fmt: skip
def test_a_value_with_what_programs_send_before_it_is_refused(
    vm: State, option: str, word: str, before: str
) -> None:
    words = ("set", "TOKEN", "--host", "a.test", option, word)
    assert "the value begins with" in refused(vm, *words, value=before + VALUE)
    assert not vm.exists


# What the guest gets


def files_of(vm: State) -> dict[str, str]:
    certificate = ca_certificate(Path(vm.directory))
    found = provision.guest_files(Settings(vm.project), certificate, loaded(vm))
    return {file.path: file.content for file in found if isinstance(file.content, str)}


def test_the_guest_has_placeholders_only(vm: State) -> None:
    before = files_of(vm)
    for name in PRESETS:
        done(vm, "set", "--preset", name)
    after = files_of(vm)
    assert {path for path in after if after[path] != before[path]} == set(guest_secrets.FILES)
    assert not [path for path, text in after.items() if VALUE in text]
    variables = dict(
        re.fullmatch(r'(\w+)="(.*)"', line).groups()
        for line in after["/etc/environment"].splitlines()
    )
    for secret in loaded(vm):
        assert variables[secret.name] == secret.placeholder
    assert variables["TWINE_USERNAME"] == "__token__"
    assert variables["TWINE_PASSWORD"] == variables["UV_PUBLISH_TOKEN"] == variables["PYPI_TOKEN"]
    assert variables["PATH"] == SYSTEM_PATH


def test_git_gets_the_placeholder_for_github_and_for_no_other_host(
    vm: State, tmp_path: Path
) -> None:
    done(vm, "set", "--preset", "github")
    (secret,) = loaded(vm)
    config = tmp_path / "gitconfig"
    config.write_text(files_of(vm)["/etc/gitconfig"])

    def asked(host: str, **more: str) -> str:
        environment = {
            "PATH": os.environ["PATH"], "GIT_CONFIG_SYSTEM": str(config), "HOME": str(tmp_path),
            "GIT_TERMINAL_PROMPT": "0", **more,
        }  # fmt: skip
        return subprocess.run(
            ["git", "credential", "fill"], input=f"protocol=https\nhost={host}\n\n",
            env=environment, capture_output=True, text=True,
        ).stdout  # fmt: skip

    said = asked("github.com", GITHUB_TOKEN=secret.placeholder)
    assert f"username=x-access-token\npassword={secret.placeholder}\n" in said
    assert asked("example.org", GITHUB_TOKEN=secret.placeholder) == ""
    assert asked("github.com") == ""


def test_a_running_guest_gets_the_same_files_as_at_its_start(vm: State, tmp_path: Path) -> None:
    for name in PRESETS:
        done(vm, "set", "--preset", name)
    found = files_of(vm)
    files = [
        guest_files.GuestFile(f"{tmp_path}/{Path(path).name}", found[path])
        for path in guest_secrets.FILES
    ]
    Path(files[0].path).write_text("old")
    subprocess.run(["sh", "-s"], input=tell_guest.script(files), text=True, check=True)
    for file in files:
        assert Path(file.path).read_text() == file.content
        assert stat.S_IMODE(Path(file.path).stat().st_mode) == 0o644
    missing = guest_files.GuestFile(f"{tmp_path}/none/x", "x")
    script = tell_guest.script([missing, files[0]])
    failed = subprocess.run(["sh", "-s"], input=script, text=True, stderr=subprocess.DEVNULL)
    assert failed.returncode != 0


def test_a_guest_that_does_not_run_is_told_at_its_next_start(vm: State) -> None:
    states.create(vm)
    assert tell_guest.tell_guest(vm) == ""
    assert "next gitguard vm up" in done(vm, "set", "TOKEN", *BEARER)


@pytest.mark.parametrize(
    "word", ["keep-alive", "Application/JSON", "api.example.org", "example.org", "secret-TOKEN-",
             "gitguard", "password", "--------"],
)  # fmt: skip
def test_a_value_that_ordinary_requests_hold_is_refused(vm: State, word: str) -> None:
    assert "ordinary requests" in refused(vm, "set", "TOKEN", *BEARER, value=word)


def test_a_suspended_secret_is_shown_until_it_has_another_value(vm: State) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    done(vm, "set", "OTHER", "--host", "b.example.org", "--bearer", value="another-value")
    assert "suspended" not in done(vm, "list")
    directory = Path(vm.directory)
    assert suspended.suspend(secrets.key(directory, "TOKEN"), VALUE)
    assert not suspended.suspend(secrets.key(directory, "TOKEN"), VALUE)
    assert done(vm, "list").count("is suspended") == 1
    assert secrets.suspended_names(directory) == {"TOKEN"}
    assert VALUE not in (suspended.path()).read_text()
    assert "held this value" in refused(vm, "rotate", "TOKEN")
    assert "held this value" in refused(vm, "rotate", "OTHER")
    done(vm, "rotate", "TOKEN", value="a-new-value")
    assert "suspended" not in done(vm, "list")
    done(vm, "remove", "TOKEN")
    assert "held this value" in refused(vm, "set", "TOKEN", *BEARER)


def test_a_suspension_that_cannot_be_read_is_none_that_is_over(vm: State, tmp_path: Path) -> None:
    done(vm, "set", "TOKEN", *BEARER)
    file = suspended.path()
    for bad in ("{", "[]", '{"salt": "x", "found": {}}', '{"salt": "", "found": {"a": [1]}}', "1"):
        file.write_text(bad)
        for use in (suspended.keys, lambda: suspended.is_suspended("key", "value")):
            with pytest.raises(UserError, match="damaged"):
                use()
    file.unlink()
    file.symlink_to(tmp_path / "none")
    with pytest.raises(UserError, match="not a regular file of yours"):
        suspended.keys()
