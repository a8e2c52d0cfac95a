"""Secrets: their values get to their places in requests to their hosts, and nowhere else."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import keyring
import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.base.questions import OneByOne
from gitguardfs.host.credentials import secrets, store, suspended
from gitguardfs.host.credentials.presets import PRESETS
from gitguardfs.host.credentials.secrets import Kind, Place, Secret
from gitguardfs.host.egress import reports
from gitguardfs.host.egress.clients import MAX_KEPT
from gitguardfs.host.vm import guest_secrets
from tests.egress.bypasses import head
from tests.egress.upstream import LATER, WEBSOCKET_KEY, FakeDns, Upstream
from tests.egress.world import LIMIT, Answer, World, running
from tests.support import keyring_in_file

HOST = "allowed.test"
PLACES = {
    "BEARER": Place(HOST, 443, Kind.BEARER, "Bearer"),
    "BASIC": Place(HOST, 443, Kind.BASIC, "me"),
    "HEADER": Place(HOST, 443, Kind.HEADER, "X-Api-Key"),
    "QUERY": Place(HOST, 443, Kind.QUERY, "key"),
}
LINES = [
    f"{method} {scheme}://{where}/*"
    for method in ("GET", "POST", "PUT")
    for scheme, where in (
        ("https", HOST), ("http", HOST), ("https", f"{HOST}:8443"), ("https", "other.test"),
        ("https", f"{HOST}:444"), ("https", f"{HOST}:447"),
    )
] + [f"WS https://{HOST}/ws/*"]  # fmt: skip


def value(name: str) -> str:
    """Characters that are written in another way in a URL, in a log, in HTML and in base64."""
    return rf"the value's <{name}>\&+/%"


class Secrets:
    """A proxy whose VM has a secret for each place."""

    def __init__(self, world: World, keyring_file: Path) -> None:
        self.world = world
        self.keyring = keyring_file
        self.directory = world.directory

    def record(self, places: dict[str, tuple[Place, ...]]) -> None:
        kept = "the keyring"
        found = [
            Secret(name, secrets.new_placeholder(name), where, kept, preset_of(name))
            for name, where in places.items()
        ]
        secrets.save(self.directory, found)
        self.keyring.write_text("{}")
        for name in places:
            store.write(secrets.key(self.directory, name), value(name))

    def silence(self) -> None:
        """Let the keyring answer no more."""
        self.keyring.with_suffix(".asked").unlink(missing_ok=True)
        self.keyring.write_text(keyring_in_file.SILENT)

    def wait_until_asked(self) -> None:
        """Wait for a question to the silent keyring."""
        self.world.wait_until(self.keyring.with_suffix(".asked").exists)

    def placeholder(self, name: str) -> str:
        return {s.name: s.placeholder for s in secrets.load(self.directory)}[name]

    def get(self, url: str = f"https://{HOST}/ok", *fields: str, **more) -> Answer:
        return self.world.get(url, headers="".join(f"{field}\r\n" for field in fields), **more)

    def is_refused_as_suspended(self, answer: Answer) -> bool:
        """Whether a request was refused since HEADER is suspended, and nothing of it was sent."""
        assert "the secret HEADER is suspended" in answer.body.decode(), answer
        assert "HEADER is suspended" in self.world.log
        return self.is_refused(answer, "HEADER")

    def is_refused(self, answer: Answer, name: str = "BEARER") -> bool:
        """Whether a request was answered with 418, logged, and nothing of it was sent on."""
        assert answer.status == 418, answer
        assert name in answer.body.decode()
        assert self.placeholder(name) not in answer.body.decode()
        assert [entry["kind"] for entry in self.world.blocked] == ["secret"]
        assert value(name) not in json.dumps(self.world.blocked)
        return self.world.upstream.raw == b""


def preset_of(name: str) -> str:
    return next((preset for preset, it in PRESETS.items() if it.variable == name), "")


@pytest.fixture(scope="module")
def _shared(
    upstream: Upstream, dns: FakeDns, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secrets]:
    directory = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory / "s"))
        patch.setenv(keyring_in_file.VARIABLE, str(directory / "keyring"))
        patch.setenv("PYTHON_KEYRING_BACKEND", keyring_in_file.BACKEND)
        patch.setattr(store, "_QUESTIONS", OneByOne())
        keyring.set_keyring(keyring_in_file.Keyring())
        with running(directory / "state", upstream, dns) as world:
            yield Secrets(world, directory / "keyring")


@pytest.fixture
def vm(_shared: Secrets) -> Secrets:
    assert _shared.world.proxy.process.poll() is None
    _shared.record({name: (place,) for name, place in PLACES.items()})
    _shared.world.allow(*LINES)
    return _shared


@pytest.fixture
def vm_alone(vm: Secrets, upstream: Upstream, dns: FakeDns, tmp_path: Path) -> Iterator[Secrets]:
    """One with a proxy of its own: after a keyring has refused, a proxy does not ask it at once."""
    with running(tmp_path / "alone", upstream, dns) as world:
        own = Secrets(world, vm.keyring)
        own.record({name: (place,) for name, place in PLACES.items()})
        world.allow(*LINES)
        yield own


def basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_each_value_gets_to_its_place(vm: Secrets) -> None:
    for name, give in {
        "BEARER": lambda text: ((f"https://{HOST}/ok/1", f"Authorization: Bearer {text}")),
        "BASIC": lambda text: ((f"https://{HOST}/ok/2", basic("me", text))),
        "HEADER": lambda text: ((f"https://{HOST}/ok/3", f"x-api-key: {text}")),
        "QUERY": lambda text: ((f"https://{HOST}/ok/4?a=b&key={text}", "X: y")),
    }.items():
        vm.world.forget()
        assert vm.get(*give(vm.placeholder(name))).status == 200
        raw = vm.world.upstream.raw.decode()
        text = quote(value(name), safe="") if name == "QUERY" else value(name)
        url, field = give(text)
        target = url.removeprefix(f"https://{HOST}")
        assert raw == f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\n{field}\r\n\r\n"
    assert vm.world.blocked == []


def test_two_placeholders_each_in_its_place(vm: Secrets) -> None:
    fields = (
        f"Authorization: Bearer {vm.placeholder('BEARER')}",
        f"X-Api-Key: {vm.placeholder('HEADER')}",
    )
    assert vm.get(f"https://{HOST}/ok", *fields).status == 200
    raw = vm.world.upstream.raw.decode()
    assert f"Authorization: Bearer {value('BEARER')}\r\nX-Api-Key: {value('HEADER')}\r\n" in raw


def test_a_placeholder_in_a_wrong_place_is_418_and_nothing_leaves(vm: Secrets) -> None:
    p = vm.placeholder("BEARER")
    right = f"Authorization: Bearer {p}"
    ok = f"https://{HOST}/ok"
    for url, *fields in (
        ("https://other.test/ok", right),
        (f"https://{HOST}:8443/ok", right),
        (f"http://{HOST}/ok", right),
        (ok, f"Authorization: {p}"),
        (ok, f"Authorization: Bearer {p}x"),
        (ok, f"X-Api-Key: {p}"),
        (ok, f"Cookie: a={p}"),
        (ok, basic("me", p)),
        (ok, basic("x", p)),
        (ok, right, right),
        (ok, right, f"Referer: https://{HOST}/{p}"),
        (f"{ok}/{p}", "X: y"),
        (f"{ok}?key={p}", "X: y"),
        (f"{ok}?q={p.replace('-', '%2D')}", "X: y"),
        (f"{ok}?q={p.replace('-', '%2D')}", right),
        (ok, right, f"X-Api-Key: {vm.placeholder('BASIC')}"),
    ):
        vm.world.forget()
        name = "BASIC" if "BASIC" in "".join(fields) else "BEARER"
        assert vm.is_refused(vm.get(url, *fields), name), (url, fields)


def test_a_request_that_no_line_allows_is_told_what_would_allow_it(vm: Secrets) -> None:
    vm.world.allow()
    bearer, key = vm.placeholder("BEARER"), vm.placeholder("QUERY")
    for url, field, line in (
        (f"https://{HOST}/ok", f"Authorization: Bearer {bearer}", f"GET https://{HOST}/ok"),
        (f"https://{HOST}/ok?key={key}&a=b", "X: y", f"GET https://{HOST}/ok?key=*&a=b"),
    ):
        answer = vm.get(url, field)
        assert answer.status == 418
        assert f"gitguard vm allow '{line}'" in answer.body.decode()
        assert ("can carry any data out" in answer.body.decode()) == ("*" in line)
        assert vm.world.upstream.raw == b""
        assert f"gitguard vm allow '{line}'" in reports.blocked_text(vm.directory)
        vm.world.allow(line)
        assert vm.get(url, field).status == 200
        vm.world.allow()


def test_no_refusal_repeats_a_placeholder(vm: Secrets) -> None:
    vm.world.allow()
    p = vm.placeholder("BEARER")
    for url, fields, method in (
        (f"https://{HOST}/{p}", (), "GET"),
        (f"https://{HOST}/{p.upper()}?q={p}", (), "POST"),
        (f"https://{HOST}/?a=../{p}#{p}", (), "GET"),
        (f"https://{HOST}/ok", (f"X-Original-{p}: x",), "GET"),
        (f"https://{HOST}/ok", (), p.replace("-", "")),
        (f"https://{HOST}/ok", (), f"{p}"),
        (f"http://{p}.test/{p}", (), "GET"),
    ):
        vm.world.forget()
        answer = vm.get(url, *fields, method=method)
        assert answer.status == 418, url
        for text in (answer.body.decode(), json.dumps(vm.world.blocked)):
            assert p.lower() not in text.lower()
        if p in url.partition("?")[0]:  # the client must not choose where a line has its *
            assert b"gitguard vm allow" not in answer.body
    assert vm.world.upstream.raw == b""


@pytest.mark.parametrize("is_right", [True, False])
def test_a_placeholder_in_a_body_passes_as_it_is_and_is_logged(vm: Secrets, is_right: bool) -> None:
    """As of an agent that has printed its environment: each of its requests quotes it."""
    word = vm.placeholder("BEARER")
    body = json.dumps({"said": f"BEARER={word}", "more": "x" * 100}).encode()
    fields = [f"Authorization: Bearer {word}"] * is_right
    for host in ("other.test", HOST)[is_right:]:
        said = f"the placeholder $BEARER is in the body of a request to {host}"
        before = vm.world.log.count(said)
        assert vm.get(f"https://{host}/post", *fields, method="POST", body=body).status == 200
        assert vm.world.upstream.raw.endswith(body)
        chunked = [*fields, "Transfer-Encoding: chunked"]
        with vm.world.client() as client:
            client.tunnel(f"{host}:443")
            client.send(head("POST /post", *chunked, host=host))
            for part in (body[:40], body[40:], b""):
                client.send(b"%x\r\n%s\r\n" % (len(part), part))
            assert client.answer("POST").status == 200
        assert vm.world.log.count(said) == before + 2
    assert vm.world.blocked == []
    assert vm.world.upstream.raw.decode().count(value("BEARER")) == 2 * is_right


def test_a_short_body_arrives_whole(vm: Secrets) -> None:
    for size in (1, MAX_KEPT - 1, MAX_KEPT, MAX_KEPT + 1, 1 << 20):
        vm.world.forget()
        body = os.urandom(size)
        fields = (
            f"Authorization: Bearer {vm.placeholder('BEARER')}", f"Content-Length: {size}",
            "Expect: 100-continue",
        )  # fmt: skip
        with vm.world.client() as client:
            client.tunnel()
            client.send(head("POST /post", *fields))
            assert b" 100 " in client.anything(5)
            client.send(body)
            assert client.answer().status == 200
        start, _, rest = vm.world.upstream.raw.partition(b"\r\n\r\n")
        assert value("BEARER").encode() in start
        assert rest == body


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [("the line", 418, "rule"), ("the secret", 418, "secret"), ("the value", 200, "")],
)
def test_what_counts_is_what_holds_when_a_short_body_is_complete(
    vm: Secrets, change: str, status: int, kind: str
) -> None:
    with vm.world.client() as client:
        client.tunnel()
        right = f"Authorization: Bearer {vm.placeholder('BEARER')}"
        client.send(head("POST /post", right, "Content-Length: 10", "Expect: 100-continue"))
        assert b" 100 " in client.anything(5)
        client.send(b"12345")
        if change == "the line":
            vm.world.allow()
        elif change == "the secret":
            left = [secret for secret in secrets.load(vm.directory) if secret.name != "BEARER"]
            secrets.save(vm.directory, left)
        else:
            store.write(secrets.key(vm.directory, "BEARER"), "the-new-value")
        client.send(b"67890")
        assert client.answer("POST").status == status
    assert [entry["kind"] for entry in vm.world.blocked] == [kind] * bool(kind)
    raw = vm.world.upstream.raw
    assert value("BEARER").encode() not in raw
    assert (b"the-new-value" in raw, raw == b"") == (status == 200, status == 418)


def test_pipelined_requests_are_decided_one_by_one(vm: Secrets) -> None:
    right = f"Authorization: Bearer {vm.placeholder('BEARER')}"
    first = f"GET /ok/1 HTTP/1.1\r\nHost: {HOST}\r\n{right}\r\n\r\n"
    second = f"GET /ok/2 HTTP/1.1\r\nHost: {HOST}\r\nX: {right}\r\n\r\n"
    third = f"GET /ok/3 HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
    with vm.world.client() as client:
        client.tunnel()
        client.send((first + second + third).encode())
        assert client.answer().status == 200
    assert vm.world.upstream.raw.decode().count(value("BEARER")) == 1
    assert vm.placeholder("BEARER") not in vm.world.upstream.raw.decode()
    with vm.world.client() as client:
        client.tunnel()
        client.send((third + first + third).encode())
        vm.world.wait_until(lambda: vm.world.upstream.raw.count(b"GET /ok/3") == 2)
    assert vm.world.upstream.raw.decode().count(value("BEARER")) == 2


def test_a_websocket_gets_the_value_in_its_header_and_a_frame_does_not(vm: Secrets) -> None:
    placeholder = vm.placeholder("BEARER").encode()
    fields = (
        "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {WEBSOCKET_KEY}",
        "Sec-WebSocket-Version: 13",
    )  # fmt: skip
    with vm.world.client() as client:
        client.tunnel()
        client.send(head("GET /ws/a", *fields, f"Authorization: Bearer {placeholder.decode()}"))
        assert b" 101 " in client.anything(5)
        client.send(b"\x81" + bytes([0x80 | len(placeholder)]) + b"\0\0\0\0" + placeholder)
        assert placeholder in client.anything(5)
    assert vm.world.upstream.raw.count(value("BEARER").encode()) == 1
    vm.world.forget()
    assert vm.is_refused(vm.get(f"https://{HOST}/ws/a", *fields, f"Origin: {placeholder.decode()}"))


# The store


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (keyring_in_file.LOCKED, "KeyringLocked"), ("{}", "there is no value"),
        ("no json", "the keyring failed"),
    ],
)  # fmt: skip
def test_without_a_value_nothing_is_sent(vm_alone: Secrets, text: str, why: str) -> None:
    vm = vm_alone
    vm.keyring.write_text(text)
    answer = vm.get(f"https://{HOST}/ok", f"Authorization: Bearer {vm.placeholder('BEARER')}")
    assert vm.is_refused(answer)
    assert why in answer.body.decode()
    assert vm.get("https://other.test/ok").status == 200  # requests to other hosts go on
    vm.world.forget()
    # to this host none does: a guess of the value could be in it
    assert vm.get().status == 418
    assert vm.world.upstream.raw == b""


def test_a_keyring_whose_user_cancels_opens_few_windows(vm_alone: Secrets) -> None:
    vm_alone.keyring.write_text(keyring_in_file.LOCKED)
    asked = vm_alone.keyring.with_suffix(".refused")
    asked.unlink(missing_ok=True)
    for name in 20 * ["BEARER", "BASIC"]:
        vm_alone.world.forget()
        assert vm_alone.get("https://allowed.test/ok", f"X: {name}").status == 418
    assert asked.read_text() == "x"
    assert "asked again after a pause" in json.dumps(vm_alone.world.blocked)


def test_a_keyring_that_does_not_answer_stops_no_other_request(vm: Secrets) -> None:
    kept = vm.keyring.read_text()
    vm.silence()
    right = f"Authorization: Bearer {vm.placeholder('BEARER')}"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(vm.world.client()) for _ in range(40)]
        for client in clients:
            client.tunnel()
            client.send(head("GET /ok", right))
        assert vm.get("https://other.test/ok").status == 200
        vm.keyring.write_text(kept)
        assert [client.answer().status for client in clients] == [200] * len(clients)


def test_a_value_in_the_file_does_not_wait_for_the_keyring(vm: Secrets) -> None:
    other = Place("other.test", 443, Kind.HEADER, "X-Api-Key")
    vm.record({"BEARER": (PLACES["BEARER"],), "HEADER": (other,)})
    kept = vm.keyring.read_text()
    file = Path(os.environ["XDG_STATE_HOME"], "gitguardfs", store.FILE)
    values = json.loads(file.read_text())
    values[secrets.key(vm.directory, "HEADER")] = value("HEADER")
    file.write_text(json.dumps(values))
    vm.silence()
    own = f"X-Api-Key: {vm.placeholder('HEADER')}"
    with vm.world.client() as client:
        client.tunnel()
        client.send(head("GET /ok", f"Authorization: Bearer {vm.placeholder('BEARER')}"))
        vm.wait_until_asked()
        assert vm.get("https://other.test/ok", own).status == 200
        vm.keyring.write_text(kept)
        assert client.answer().status == 200
    store.delete(secrets.key(vm.directory, "HEADER"))


def test_the_proxy_ends_while_the_keyring_does_not_answer(
    vm: Secrets, upstream: Upstream, dns: FakeDns, tmp_path: Path
) -> None:
    with running(tmp_path / "state", upstream, dns) as world:
        own = Secrets(world, vm.keyring)
        own.record({"BEARER": (PLACES["BEARER"],)})
        world.allow(*LINES)
        vm.silence()
        with world.client() as client:
            client.tunnel()
            client.send(head("GET /ok", f"Authorization: Bearer {own.placeholder('BEARER')}"))
            vm.wait_until_asked()
            os.kill(world.pid, signal.SIGTERM)
            assert world.proxy.process.wait(LIMIT) == 128 + signal.SIGTERM


@pytest.mark.parametrize("bad", ["", "x", "a\r\nX-Injected: yes", "a\nbcdefgh", "ünïcödé-text"])
def test_a_value_that_was_put_into_the_keyring_by_others_is_checked(vm: Secrets, bad: str) -> None:
    store.write(secrets.key(vm.directory, "BEARER"), bad)
    answer = vm.get(f"https://{HOST}/ok", f"Authorization: Bearer {vm.placeholder('BEARER')}")
    assert vm.is_refused(answer)


def test_a_rotated_value_counts_at_the_next_request_and_a_removed_secret_no_more(
    vm: Secrets,
) -> None:
    right = f"Authorization: Bearer {vm.placeholder('BEARER')}"
    with vm.world.client() as client:
        client.tunnel()
        for text in (value("BEARER"), "a-rotated-value"):
            store.write(secrets.key(vm.directory, "BEARER"), text)
            client.send(head("GET /ok", right))
            assert client.answer().status == 200
            assert text in vm.world.upstream.raw.decode()
        left = [secret for secret in secrets.load(vm.directory) if secret.name != "BEARER"]
        secrets.save(vm.directory, left)
        vm.world.forget()
        client.send(head("GET /ok", right))
        assert client.answer().status == 418
    assert vm.world.upstream.raw == b""
    assert vm.world.blocked[0]["kind"] == "secret"


def test_with_a_damaged_record_every_request_is_blocked(vm: Secrets) -> None:
    (vm.directory / secrets.FILE).write_text("{")
    answer = vm.get()
    assert answer.status == 418
    assert b"damaged" in answer.body
    assert vm.world.upstream.raw == b""
    (vm.directory / secrets.FILE).unlink()
    assert vm.get().status == 200


# What comes back, and what is written down


def test_what_a_server_repeats_in_its_header_is_masked(vm: Secrets) -> None:
    for name, give in {
        "BEARER": lambda text: f"Authorization: Bearer {text}",
        "BASIC": lambda text: basic("me", text),
        "HEADER": lambda text: f"X-Api-Key: {text}",
    }.items():
        answer = vm.get(f"https://{HOST}/echo", give(vm.placeholder(name)))
        assert answer.status == 302
        assert answer.headers["X-Sent-0"] == give(vm.placeholder(name))
    with vm.world.client() as client:
        client.tunnel()
        client.send(head("GET /echo", f"X-Api-Key: {vm.placeholder('HEADER')}"))
        said = client.anything(5).decode()
    assert said.startswith(f"HTTP/1.1 302 Found, X-Api-Key: {vm.placeholder('HEADER')}\r\n")
    answer = vm.get(f"https://{HOST}/echo?key={vm.placeholder('QUERY')}")
    assert answer.headers["Location"] == f"https://other.test/?key={vm.placeholder('QUERY')}"
    vm.world.forget()
    answer = vm.get(answer.headers["Location"])
    assert vm.is_refused(answer, "QUERY")


# Guesses of a value


GUESSED = itertools.count()


class Guessed:
    """A secret whose value an attacker guesses: a new one each time, since it ends suspended."""

    def __init__(self, vm: Secrets) -> None:
        self.vm = vm
        self.value = f"{next(GUESSED) + 0xB0B0_0000:08x}"
        self.set(self.value)

    def set(self, text: str) -> None:
        store.write(secrets.key(self.vm.directory, "HEADER"), text)

    def ask(self, guesses: str, *more: str, host: str = HOST, path: str = "/echo") -> Answer:
        """Send guesses with the placeholder if it is the secret's host; it repeats them."""
        own = [f"X-Api-Key: {self.vm.placeholder('HEADER')}"] * (host == HOST)
        return self.vm.get(f"https://{host}{path}?q={guesses}", *own, *more)

    @property
    def is_suspended(self) -> bool:
        return secrets.suspended_names(self.vm.directory) == {"HEADER"}


def wrong(number: int) -> str:
    return "".join(f"{n:08x}" for n in range(0xA000_0000, 0xA000_0000 + number))


def test_one_right_guess_among_many_ends_the_secret_and_does_not_say_which(vm: Secrets) -> None:
    guessed = Guessed(vm)
    for _ in range(2):
        answer = guessed.ask(wrong(900))
        assert answer.headers["Location"].endswith(wrong(900))  # what is wrong is not masked
    vm.world.forget()
    many = wrong(450) + guessed.value + wrong(450)
    answer = guessed.ask(many)
    assert vm.is_refused_as_suspended(answer)
    assert guessed.value not in answer.body.decode().replace(many, "")
    assert guessed.is_suspended
    # Nothing depends on a guess any more: each half is answered in the same way.
    for half in (many[:3600], many[3600:], guessed.value, wrong(1)):
        vm.world.forget()
        assert vm.is_refused_as_suspended(guessed.ask(half))
        for host in ("other.test", HOST):
            answer = vm.get(f"https://{host}/echo?q={half}")
            assert answer.headers["Location"].endswith(half)
    for path in (vm.directory.parent, Path(os.environ["XDG_STATE_HOME"])):
        for file in [one for one in path.rglob("*.json") if one.name != store.FILE]:
            assert guessed.value not in file.read_text()


def test_a_suspended_value_stays_so_until_there_is_another(
    vm: Secrets, upstream: Upstream, dns: FakeDns, tmp_path: Path
) -> None:
    guessed = Guessed(vm)
    assert vm.is_refused_as_suspended(guessed.ask(guessed.value))
    with pytest.raises(UserError, match="held this value"):
        guessed.set(guessed.value)
    shutil.copy(vm.directory / secrets.FILE, tmp_path / "record")
    with running(tmp_path / vm.directory.name, upstream, dns) as world:  # a proxy that starts anew
        own = Secrets(world, vm.keyring)
        shutil.copy(tmp_path / "record", own.directory / secrets.FILE)
        world.allow(*LINES)
        field = f"X-Api-Key: {own.placeholder('HEADER')}"
        assert own.is_refused_as_suspended(own.get(f"https://{HOST}/ok", field))
    guessed.set("another-value")
    assert not guessed.is_suspended
    vm.world.forget()
    assert guessed.ask("x").status == 302
    assert "X-Api-Key: another-value" in vm.world.upstream.raw.decode()
    store.delete(secrets.key(vm.directory, "HEADER"))
    with pytest.raises(UserError, match="held this value"):
        guessed.set(guessed.value)


@pytest.mark.parametrize("where", [store.FILE, "the keyring"])
def test_another_vm_with_the_same_value_does_not_help_to_guess(
    vm: Secrets, upstream: Upstream, dns: FakeDns, tmp_path: Path, where: str
) -> None:
    guessed = Guessed(vm)
    with running(tmp_path / "second", upstream, dns) as world:
        second = Secrets(world, vm.keyring)
        secrets.save(
            second.directory,
            [Secret("HEADER", secrets.new_placeholder("HEADER"), (PLACES["HEADER"],), where)],
        )
        key = secrets.key(second.directory, "HEADER")
        store.write(key, guessed.value)
        if where == store.FILE:
            file = Path(os.environ["XDG_STATE_HOME"], "gitguardfs", store.FILE)
            file.write_text(json.dumps({**json.loads(file.read_text()), key: guessed.value}))
        world.allow(*LINES)
        field = f"X-Api-Key: {second.placeholder('HEADER')}"
        assert second.get(f"https://{HOST}/echo?q={wrong(9)}", field).status == 302
        world.forget()
        assert vm.is_refused_as_suspended(guessed.ask(wrong(9) + guessed.value))
        for half in (wrong(9), guessed.value):
            answer = second.get(f"https://{HOST}/echo?q={half}", field)
            assert second.is_refused_as_suspended(answer)
            answer = second.get(f"https://other.test/echo?q={half}")
            assert answer.headers["Location"].endswith(half)
            world.forget()
        assert secrets.suspended_names(second.directory) == {"HEADER"}
        store.delete(key)


def in_forms(text: str) -> dict[str, tuple[str, str]]:
    """A guess in a URL, and in a field."""
    pair = base64.b64encode(f"me:{text}".encode()).decode()
    return {
        "the path": (f"/{text}", "X: y"), "the query": (f"?a={text}&b", "X: y"),
        "escaped": ("?" + "".join(f"%{ord(c):02x}" for c in text), "X: y"),
        "escaped twice": ("?" + "".join(f"%25{ord(c):02x}" for c in text), "X: y"),
        "a field": ("", f"X: a{text}b"), "a field's name": ("", f"X-{text}: y"),
        "basic": ("", basic("me", text)), "capital letters": ("", f"X: {text.upper()}"),
        "a pair in base64": (f"?{pair}", "X: y"),
        "base64": (f"?{base64.b64encode(text.encode()).decode()}", "X: y"),
    }  # fmt: skip


@pytest.mark.parametrize("form", in_forms("guess"))
@pytest.mark.parametrize("host", [HOST, "other.test"])
def test_a_guess_is_found_in_each_form_that_a_server_could_repeat(
    vm: Secrets, form: str, host: str
) -> None:
    guessed = Guessed(vm)
    assert guessed.ask("x").status == 302  # the proxy has read the value now
    vm.world.forget()
    end, field = in_forms(guessed.value)[form]
    assert vm.is_refused_as_suspended(vm.get(f"https://{host}/echo{end}", field))


@pytest.mark.parametrize("length", ["Content-Length", "chunked"])
def test_a_guess_in_a_body_is_found_before_the_body_is_complete(vm: Secrets, length: str) -> None:
    guessed = Guessed(vm)
    own = f"X-Api-Key: {vm.placeholder('HEADER')}"
    body = f"{wrong(9)}{guessed.value}{wrong(9)}".encode()
    if length == "Content-Length":
        answer = vm.get(f"https://{HOST}/post", own, method="POST", body=body)
        assert vm.is_refused_as_suspended(answer)
    else:
        with vm.world.client() as client:
            client.tunnel()
            chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:75], body[75:], b"")]
            client.send(head("POST /post", own, "Transfer-Encoding: chunked") + b"".join(chunks))
            assert client.answer("POST").status == 0
        raw = vm.world.upstream.raw.replace(b"\r\n", b"").partition(b"chunked")[2]
        assert guessed.value.encode() not in raw.replace(b"4b", b"").replace(b"51", b"")
        assert not vm.world.upstream.raw.endswith(b"0\r\n\r\n")
        assert [entry["kind"] for entry in vm.world.blocked] == ["secret"]
    assert guessed.is_suspended


def test_a_body_of_more_than_a_mebibyte_ends_before_it_is_complete(vm: Secrets) -> None:
    guessed = Guessed(vm)
    body = b"x" * (3 << 20) + guessed.value.encode()
    assert vm.get(f"https://{HOST}/post", method="POST", body=body[:-1]).status == 200
    vm.world.forget()
    vm.get(f"https://{HOST}/post", method="POST", body=body)
    assert guessed.value.encode() not in vm.world.upstream.raw
    assert [entry["kind"] for entry in vm.world.blocked] == ["secret"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_error_page_quotes_none_of_the_bytes_that_mitmproxy_quotes() -> None:
    from gitguardfs.host.egress import http1

    for message in ("HTTP/1 protocol error: bad: b'a-value'", "Received b'a-value', refusing it"):
        assert b"a-value" not in http1._error_page(502, message)


def test_a_request_under_way_confirms_no_guess_when_its_value_is_suspended(vm: Secrets) -> None:
    """Its server could repeat in its answer what other requests, or its own body, have told it."""
    guessed = Guessed(vm)
    own = f"X-Api-Key: {vm.placeholder('HEADER')}"
    LATER.clear()
    with vm.world.client() as waiting, vm.world.client() as sending:
        for client in (waiting, sending):
            client.tunnel()
        waiting.send(head("GET /echo/later", own))
        sending.send(head("POST /post", own, "Transfer-Encoding: chunked") + b"1\r\nx\r\n")
        vm.world.wait_until(lambda: vm.world.upstream.raw.count(guessed.value.encode()) == 2)
        assert b"HEADER is suspended" in guessed.ask(guessed.value).body
        LATER.set()
        sending.send(b"1\r\nx\r\n0\r\n\r\n")
        assert [client.answer().status for client in (waiting, sending)] == [0, 0]
    assert not vm.world.upstream.raw.endswith(b"0\r\n\r\n")


def test_guesses_that_were_sent_before_the_value_was_read_are_found_too(vm: Secrets) -> None:
    """A server could repeat them later, in the answer to a request with the placeholder."""
    guessed = Guessed(vm)
    assert vm.is_refused_as_suspended(vm.get(f"https://{HOST}/ok?q={guessed.value}"))


def test_what_cannot_be_written_down_is_suspended_too(vm: Secrets) -> None:
    guessed = Guessed(vm)
    file = Path(os.environ["XDG_STATE_HOME"], "gitguardfs", suspended.FILE)
    kept = file.read_bytes() if file.exists() else b""
    file.unlink(missing_ok=True)
    temporary = file.with_name(f".{file.name}.full")  # a directory: as if the disk were full
    temporary.mkdir()
    assert vm.is_refused_as_suspended(guessed.ask(guessed.value))
    assert "cannot write down" in vm.world.log
    for half in (guessed.value, wrong(1)):
        vm.world.forget()
        assert vm.is_refused_as_suspended(guessed.ask(half))
        assert vm.get(f"https://other.test/echo?q={half}").status == 302
    assert not file.exists()
    temporary.rmdir()
    vm.world.forget()
    assert vm.is_refused_as_suspended(guessed.ask(wrong(1)))  # it is written down now
    assert guessed.is_suspended
    file.write_text("{")
    vm.world.forget()
    assert b"damaged" in vm.get().body
    assert vm.world.upstream.raw == b""
    file.write_bytes(kept) if kept else file.unlink()


@pytest.mark.parametrize("where", ["name", "coding"])
def test_the_page_about_a_wrong_answer_does_not_quote_it(vm: Secrets, where: str) -> None:
    store.write(secrets.key(vm.directory, "HEADER"), "a-value-to-guess")
    answer = vm.get(f"https://{HOST}/echo/{where}", f"X-Api-Key: {vm.placeholder('HEADER')}")
    assert answer.status == 502
    assert b"a-value" not in answer.body
    assert "a-value" not in vm.world.log


def forms(name: str) -> list[str]:
    """A value as it could be written down."""
    text = value(name)
    return [
        text, quote(text, safe=""), repr(text)[1:-1], repr(text.encode())[2:-1],
        repr(f'"{text}')[2:-1], repr(text[: len(text) // 2].encode())[2:-1],
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;"),
        base64.b64encode(f"me:{text}".encode()).decode(), base64.b64encode(text.encode()).decode(),
    ]  # fmt: skip


def test_no_value_is_in_a_file_a_log_an_error_page_or_a_process_list(vm: Secrets) -> None:
    pages = b""
    for name, give in {
        "BEARER": lambda text: ("", f"Authorization: Bearer {text}"),
        "BASIC": lambda text: ("", basic("me", text)),
        "HEADER": lambda text: ("", f"X-Api-Key: {text}"),
        "QUERY": lambda text: (f"?key={text}", "X: y"),
    }.items():
        query, field = give(vm.placeholder(name))
        for where in ("", "/broken", "/cut", "/field", "/status", "/more"):
            for other in ("X: y", 'X: "y"'):  # quoted in another way
                answer = vm.get(f"https://{HOST}/echo{where}{query}", field, other)
                pages += answer.body + str(answer.headers).encode()
        vm.get(f"https://other.test/ok{query}", field)
        vm.get(f"https://{HOST}:444/ok{query}", field)
        # No server: the connection is refused after the value is in the request.
        vm.record({n: (Place(HOST, 447, p.kind, p.word),) for n, p in PLACES.items()})
        query, field = give(vm.placeholder(name))
        answer = vm.get(f"https://{HOST}:447/ok{query}", field)
        assert answer.status == 502
        pages += answer.body
        vm.record({n: (Place(HOST, 444, p.kind, p.word),) for n, p in PLACES.items()})
        query, field = give(vm.placeholder(name))
        # A certificate that is not trusted.
        pages += vm.get(f"https://{HOST}:444/ok{query}", field).body
        vm.record({n: (p,) for n, p in PLACES.items()})
    assert b"502 Bad Gateway" in pages
    vm.world.wait_until(lambda: "Unexpected data from server" in vm.world.log)
    process = Path(f"/proc/{vm.world.pid}")
    written = {str(path): path.read_bytes() for path in vm.directory.rglob("*") if path.is_file()}
    assert str(vm.directory / "mitmdump.log") in written
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            written[str(entry)] = entry.read_bytes()
        except OSError:
            continue
    written["environ"] = (process / "environ").read_bytes()
    written["pages"] = pages
    found = [
        (where, name)
        for where, text in written.items()
        for name in PLACES
        for form in forms(name)
        if form.encode() in text
    ]
    assert found == []


# Real clients


def run(vm: Secrets, tmp_path: Path, *words: str, **environment: str) -> str:
    """Run a program as the guest would: by the proxy, with its authority and the variables."""
    (tmp_path / "ca.pem").write_text(vm.world.ca)
    ca, proxy = str(tmp_path / "ca.pem"), f"http://127.0.0.1:{vm.world.port}"
    found = secrets.load(vm.directory)
    (tmp_path / "gitconfig").write_text(guest_secrets.git(found))
    (tmp_path / "npmrc").write_text(guest_secrets.npm(found))
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "https_proxy": proxy,
            "HTTPS_PROXY": proxy, "SSL_CERT_FILE": ca, "CURL_CA_BUNDLE": ca, "PIP_CERT": ca,
            "NODE_EXTRA_CA_CERTS": ca, "GIT_SSL_CAINFO": ca, "REQUESTS_CA_BUNDLE": ca,
            "GIT_CONFIG_SYSTEM": str(tmp_path / "gitconfig"), "GIT_TERMINAL_PROMPT": "0",
            "NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "npmrc"),
            **guest_secrets.variables(found), **environment,
        },
    )  # fmt: skip
    return done.stdout + done.stderr


def preset(vm: Secrets, name: str) -> str:
    """Give the VM a preset's secret; return its variable."""
    variable = PRESETS[name].variable
    vm.record({variable: PRESETS[name].places})
    hosts = {place.host for place in PRESETS[name].places}
    vm.world.allow(*(f"{method} https://{host}/*" for method in ("GET", "POST") for host in hosts))
    return variable


def test_curl_and_where_it_is_redirected_to(vm: Secrets, tmp_path: Path) -> None:
    bearer = f"Authorization: Bearer {vm.placeholder('BEARER')}"
    url = f"https://{HOST}/redirect"
    said = run(vm, tmp_path, "curl", "-sSL", "--http2", "-H", bearer, url)
    assert said == "xx"  # curl does not send the field to another host
    assert vm.world.upstream.raw.decode().count(value("BEARER")) == 1
    vm.world.forget()
    key = f"X-Api-Key: {vm.placeholder('HEADER')}"
    for words in (("-H", key), ("--location-trusted", "-u", f"me:{vm.placeholder('BASIC')}")):
        vm.world.forget()
        said = run(vm, tmp_path, "curl", "-sSL", *words, url)
        assert "It belongs only in requests to https://allowed.test" in said
        assert len(vm.world.upstream.connections) == 1
        assert b"other.test" not in vm.world.upstream.raw


def test_git_over_https(vm_alone: Secrets, tmp_path: Path) -> None:
    vm = vm_alone
    name = preset(vm, "github")
    said = run(vm, tmp_path, "git", "ls-remote", "https://github.com/private/repo")
    assert said == f"{'1' * 40}\tHEAD\n"
    assert basic("x-access-token", value(name)) in vm.world.upstream.raw.decode()
    assert vm.placeholder(name) not in vm.world.upstream.raw.decode()
    vm.keyring.write_text(keyring_in_file.LOCKED)
    assert "418" in run(vm, tmp_path, "git", "ls-remote", "https://github.com/private/repo")


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_npm(vm: Secrets, tmp_path: Path) -> None:
    name = preset(vm, "npm")
    run(vm, tmp_path, "npm", "view", "a-package", "--fetch-retries=0")
    assert f"authorization: Bearer {value(name)}" in vm.world.upstream.raw.decode()


def test_pip_with_a_password_in_the_url(vm: Secrets, tmp_path: Path) -> None:
    url = f"https://me:{vm.placeholder('BASIC')}@{HOST}/simple/"
    words = ("-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--retries=0")
    run(vm, tmp_path, sys.executable, *words, "-i", url, "a-package")
    raw = vm.world.upstream.raw.decode()
    assert "GET /simple/a-package/ " in raw
    assert basic("me", value("BASIC")) in raw
    assert vm.placeholder("BASIC") not in raw


def test_uv_publishes_with_its_variable(vm: Secrets, tmp_path: Path) -> None:
    name = preset(vm, "pypi")
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("no uv")
    run(vm, tmp_path, sys.executable, "-c", MAKE_WHEEL)
    wheel = "a_package-1-py3-none-any.whl"
    said = run(vm, tmp_path, str(uv), "publish", "--trusted-publishing=never", wheel)
    raw = vm.world.upstream.raw.decode(errors="replace").lower()
    assert "post /legacy/ " in raw, said
    assert basic("__token__", value(name)).lower() in raw


MAKE_WHEEL = """
import zipfile
with zipfile.ZipFile("a_package-1-py3-none-any.whl", "w") as wheel:
    own = "a_package-1.dist-info"
    wheel.writestr(f"{own}/METADATA", "Metadata-Version: 2.1\\nName: a-package\\nVersion: 1\\n")
    wheel.writestr(f"{own}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
    wheel.writestr(f"{own}/RECORD", "")
"""
