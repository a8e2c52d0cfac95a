"""The table of what crosses the border, and the same as JSON."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import UserError
from gitguardfs.host.commands.vm.group import command
from gitguardfs.host.credentials import secrets, suspended
from gitguardfs.host.credentials.secrets import Kind, Place, Secret, new_placeholder
from gitguardfs.host.egress import usage
from gitguardfs.host.egress.usage import UsageLog
from gitguardfs.host.vm import ports, settings, status_text
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.ports import FORWARD, Port
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts

USED, UNUSED, SOCKET = "GET https://a.test/used", "GET https://a.test/not", "WS https://a.test/ws"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        Path(short, "p").mkdir()
        state = states.state_of(f"{short}/p")
        states.create(state)
        own = Settings(state.project, hide=(".env",), publish=("3000", "8080:80"))
        settings.save(state, own)
        Path(state.path("allowlist.txt")).write_text(
            f"{UNUSED}\n{USED}\n{SOCKET}\nGET https://b.test/\nHEAD https://b.test/\nGET nowhere\n"
        )
        UsageLog(Path(state.path("usage.json"))).note(USED)
        place = Place("api.test", 443, Kind.BEARER, "Bearer")
        secrets.save(Path(state.directory), [Secret("TOKEN", new_placeholder("TOKEN"), (place,))])
        yield state


def status(state: State, *words: str) -> str:
    done = CliRunner().invoke(command, ["status", *words, "--project", state.project])
    assert done.exit_code == 0, done.output
    return done.output


KEYS: dict[str, Any] = {
    "vm": {"name", "project", "directory", "state", "process", "proxy_process", "watcher"},
    "settings": {
        "project", "image", "memory", "cpus", "guard", "git", "hide", "hide_secrets",
        "show", "local", "hardened",
        "publish", "share", "package", "watch", "git_name", "git_email", "agent",
    },
    "border": {"settings_error", "shares", "ports", "ports_error", "secrets", "secrets_error",
               "allowlist", "openings", "upstream_proxy"},
}  # fmt: skip
KEYS_WITHIN = {
    "shares": {
        "host",
        "guest",
        "writable",
        "guard",
        "git",
        "hidden",
        "local",
        "hides_secrets",
        "shown",
    },
    "ports": {"host_port", "guest_port", "by", "open"},
    "secrets": {"name", "hosts", "where", "suspended"},
    "openings": {"name", "direction", "host", "guest", "what"},
}


def test_the_keys_of_the_json(state: State) -> None:
    found = json.loads(status(state, "--json"))
    assert {name: set(value) for name, value in found.items()} == KEYS
    for name, keys in KEYS_WITHIN.items():
        assert found["border"][name], name
        assert all(set(entry) == keys for entry in found["border"][name])
    allowlist = found["border"]["allowlist"]
    assert set(allowlist) == {"error", "since", "lines", "ignored"}
    assert all(set(line) == {"line", "last_used", "content_seen"} for line in allowlist["lines"])
    assert all(set(line) == {"number", "text", "why"} for line in allowlist["ignored"])


def test_the_json_says_what_there_is(state: State) -> None:
    with ports.noted(state, Port(8080, 80), FORWARD):
        found = json.loads(status(state, "--json"))["border"]
    assert found["shares"][0]["guest"] == "/home/agent/projects/p"
    assert found["shares"][0]["git"] == "private"
    assert found["ports"] == [
        {"host_port": 8080, "guest_port": 80, "by": "vm forward", "open": True},
        {"host_port": 3000, "guest_port": 3000, "by": "--publish", "open": False},
    ]
    (secret,) = found["secrets"]
    assert (secret["name"], secret["hosts"]) == ("TOKEN", ["api.test"])
    lines = {one["line"]: one for one in found["allowlist"]["lines"]}
    assert list(lines)[:3] == [UNUSED, USED, SOCKET]
    datetime.fromisoformat(lines[USED]["last_used"])
    assert lines[UNUSED]["last_used"] is None
    assert (lines[SOCKET]["content_seen"], lines[USED]["content_seen"]) == (False, True)
    assert found["allowlist"]["ignored"][0]["number"] == 6
    assert [one["name"] for one in found["openings"]] == [
        "proxy", "ssh", "session", "progress", "changes", "console", "logs", "random", "seed",
        "image", "disk",
    ]  # fmt: skip
    assert "gitguard-secret" not in json.dumps(found)


def test_a_suspended_secret_is_told_with_what_helps(state: State) -> None:
    suspended.suspend(secrets.key(Path(state.directory), "TOKEN"), "the-value-itself")
    assert json.loads(status(state, "--json"))["border"]["secrets"][0]["suspended"]
    assert "gitguard vm secret rotate TOKEN" in status(state)
    suspended.path().write_text("{")
    assert "is damaged" in json.loads(status(state, "--json"))["border"]["secrets_error"]
    assert "suspended-secrets.json is damaged" in status(state)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_terminal_breaks_no_row_and_loses_nothing(state: State, width: int) -> None:
    found = facts(state)
    wide, narrow = (
        status_text.text(found, columns).partition("\n\n")[2] for columns in (10_000, width)
    )
    assert max(map(len, narrow.splitlines())) <= width
    assert "".join(narrow.split()) == "".join(wide.split())


def test_no_text_of_others_makes_a_row_of_its_own(state: State) -> None:
    settings.save(state, Settings("/srv/a\x1b[31m\nport  127.0.0.1:1", hide=(".env",)))
    for width in (60, 10_000):
        text = status_text.text(facts(state), width)
        assert text.replace("\n", "").isprintable()
        assert not any(line.startswith("port  127") for line in text.splitlines())


def test_one_damaged_file_does_not_hide_the_rest(state: State) -> None:
    Path(state.path("secrets.json")).write_text("[[")
    os.unlink(state.path("usage.json"))
    for name in ("usage.json", "proxy.json"):
        os.mkfifo(state.path(name))
    said = status(state)
    assert "secret not known " in " ".join(said.split())
    assert said.count("use not recorded") == 4
    found = json.loads(status(state, "--json"))["border"]
    assert found["secrets"] == [] and "is damaged" in found["secrets_error"]
    assert found["allowlist"]["since"] is None


@pytest.mark.parametrize("kind", ["loop", "file"])
@pytest.mark.parametrize(
    ("name", "key"),
    [("secrets.json", "secrets_error"), ("settings.json", "settings_error"),
     ("ports", "ports_error"), ("upstream-proxy", "upstream_proxy"), ("lock", ""),
     ("session.lock", "")],
)  # fmt: skip
def test_one_file_that_cannot_be_read_does_not_hide_the_rest(
    state: State, name: str, key: str, kind: str
) -> None:
    path = Path(state.path(name))
    path.unlink(missing_ok=True)
    if kind == "loop":
        path.symlink_to(name)
    else:
        path.write_text("[[")
    said = " ".join(status(state).split())
    found = json.loads(status(state, "--json"))
    assert USED in said and [one["line"] for one in found["border"]["allowlist"]["lines"]]
    if key:
        assert str(path) in said and str(path) in found["border"][key]
    elif kind == "loop":
        assert (found["vm"]["state"] == "not known") == (name == "lock")
    assert (found["settings"] is None) == (name == "settings.json")
    assert ("share not known" in said) == (name == "settings.json")


@pytest.mark.parametrize(
    "change",
    [{"memory": 1}, {"memory": "8G"}, {"cpus": []}, {"hide": [1]}, {"publish": ["x"]},
     {"project": 7}, {"guard": "none"}, {"git": "none"}, {"git_name": 7}, {"hide": None}],
    ids=str,
)  # fmt: skip
def test_damaged_settings_are_said_to_be_damaged(state: State, change: dict[str, Any]) -> None:
    path = Path(state.path("settings.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=r"settings.json is damaged"):
        settings.load(state)
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"is damaged"):
        settings.load(state)


def test_before_the_first_start_nothing_is_said_to_have_failed(state: State) -> None:
    Path(state.path("allowlist.txt")).unlink()
    said = status(state)
    assert re.match(r"VM +none yet: gitguard vm up makes it\n", said)
    assert "cannot read" not in said and "the first gitguard vm up makes the allowlist" in said


def test_an_allowlist_that_cannot_be_read_allows_nothing(state: State) -> None:
    Path(state.path("allowlist.txt")).unlink()
    Path(state.disk).touch()
    said = status(state)
    assert "allowed nothing " in " ".join(said.split())
    found = json.loads(status(state, "--json"))["border"]["allowlist"]
    assert found["lines"] == [] and "cannot read" in found["error"]


def test_what_the_proxy_says_of_itself_is_shown_only_while_it_runs(state: State) -> None:
    path = state.path("proxy.json")
    Path(path).write_text('{"pid": 1, "port": 7, "through": "by http://proxy.test:1"}')
    assert "127.0.0.1:7 " not in status_text.text(facts(state), 10_000)
    fd = states.take(path)
    try:
        said = status_text.text(facts(state), 10_000)
        assert "127.0.0.1:7 <-- 10.0.2.100:8080" in said
        assert "by http://proxy.test:1" in said
    finally:
        assert fd is not None
        os.close(fd)


# Which lines were used


def test_use_is_remembered_from_one_proxy_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    UsageLog(path).note(USED)
    before = usage.read(path)
    assert before is not None and list(before.used) == [USED]
    UsageLog(path).note(UNUSED)
    after = usage.read(path)
    assert after is not None and after.since == before.since
    assert list(after.used) == [USED, UNUSED]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_is_used_all_the_time_is_written_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = UsageLog(tmp_path / "usage.json")
    log.note(USED)
    path = tmp_path / "usage.json"
    path.unlink()
    log.note(USED)
    assert not path.exists()
    monkeypatch.setattr(usage, "WRITE_EVERY", 0.0)
    log.note(USED)
    assert path.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"since": "x", "used": {}}', '{"since": "2026-11-26", "used": []}',
             '{"since": "2026-11-26", "used": {"a": "\\n"}}',
             '{"since": "9999-12-31T23:59:59+00:00", "used": {"a": "0001-01-01T00:00:00+23:00"}}',
             "[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "usage.json"
    path.write_text(text)
    assert usage.read(path) is None
    UsageLog(path).note(USED)
    assert usage.read(path) is not None
