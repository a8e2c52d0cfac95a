"""The company's proxy: its URL, who names it, what is reached through it, and its password."""

import base64
import contextlib
import fcntl
import os
import pty
import subprocess
import sys
import termios
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import keyring
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyring.backends import fail

from gitguardfs.base.errors import UserError
from gitguardfs.base.questions import OneByOne
from gitguardfs.host.credentials import store
from gitguardfs.host.egress import upstream_proxy
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.egress.upstream_proxy import OPTION, VARIABLE, UpstreamProxy, parsed
from gitguardfs.host.vm import company_proxy
from gitguardfs.host.vm.state import State
from tests.support import keyring_in_file

PREPARE = """
import os, sys
from gitguardfs.host.vm import company_proxy
from gitguardfs.host.vm.state import State
company_proxy.prepare(State("/srv/p", sys.argv[1]), *(sys.argv[2:] or [None]))
os.execvp("cat", ["cat"])
"""
URL = "http://me@proxy.corp:8080"
KEY = "upstream-proxy/me@proxy.corp:8080"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A VM's state, an empty store of passwords, and an environment without proxies."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setattr(store, "_QUESTIONS", OneByOne())
    keyring.set_keyring(fail.Keyring())
    (tmp_path / "state").mkdir()
    return State("/srv/p", str(tmp_path / "state"))


@pytest.fixture
def files(state: State) -> StateFiles:
    return StateFiles(Path(state.directory))


@pytest.mark.parametrize(
    ("text", "host", "port", "user", "password"),
    [
        ("http://proxy.corp:8080", "proxy.corp", 8080, "", None),
        ("http://proxy.corp:8080/", "proxy.corp", 8080, "", None),
        ("HTTP://Proxy.Corp", "proxy.corp", 80, "", None),
        ("proxy.corp:8080", "proxy.corp", 8080, "", None),
        ("me:pw@10.0.0.1:8080", "10.0.0.1", 8080, "me", "pw"),
        ("http://[fd00::1]:3128", "fd00::1", 3128, "", None),
        ("http://corp%5Cme@proxy", "proxy", 80, "corp\\me", None),
        ("http://me:@proxy", "proxy", 80, "me", ""),
        ("http://me:p@ss:word@proxy", "proxy", 80, "me", "p@ss:word"),
    ],
)
def test_a_url_of_a_proxy(text: str, host: str, port: int, user: str, password: str | None) -> None:
    found = parsed(text, VARIABLE)
    assert found == UpstreamProxy(host, port, VARIABLE, user, password)


@pytest.mark.parametrize(
    "text",
    [
        "https://proxy", "socks5://proxy", "ftp://proxy", "//proxy", "http:proxy", "http://", "http:///",
        "http://proxy:", "http://proxy:0", "http://proxy:65536", "http://proxy:8080/path", "",
        "http://proxy?x", "http://proxy#x", "http://proxy//", "http://a b", "http://proxy\n",
        "http://proxy.", "http://127.1", "http://0x7f000001", "http://[fe80::1%25eth0]",
        "http://[proxy]", "http://@proxy", "http://:pw@proxy", "http://me:p/w@proxy",
        "http://evil#@proxy", "http://m%3Ae:pw@proxy", "http://me:%0d%0aX@proxy",
        "http://me:%00@proxy", "http://me:%ff@proxy", "http://mé:pw@proxy", "http://höst",
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_proxy(text: str) -> None:
    with pytest.raises(UserError, match=VARIABLE):
        parsed(text, VARIABLE)


@given(st.text(min_size=1), st.text())
def test_a_login_is_read_whole_and_shown_nowhere(user: str, password: str) -> None:
    try:
        login = f"{quote(user, safe='')}:{quote('SECRET' + password, safe='')}"
    except UnicodeEncodeError:
        return
    try:
        found = parsed(f"http://{login}@proxy:1", VARIABLE)
    except UserError as error:
        assert ":" in user or not (user + password).isprintable()
        assert "SECRET" not in str(error)
        return
    assert (found.user, found.password) == (user, "SECRET" + password)
    sent = base64.b64decode(found.authorization.removeprefix("Basic ")).decode()
    assert sent == f"{user}:SECRET{password}"
    shown = f"{found!r} {found.text} {found.url} {found.setting} {found.key}"
    assert "SECRET" not in shown.replace(quote(user, safe=""), "").replace(repr(user), "")
    assert parsed(found.setting, OPTION).user == user


def test_a_password_in_the_option_is_refused(state: State, files: StateFiles) -> None:
    for text in ("http://me:hunter@proxy", "me:@proxy"):
        with pytest.raises(UserError, match="leave the password out") as caught:
            company_proxy.prepare(state, text)
        assert "hunter" not in str(caught.value)
    assert not files.upstream_proxy.exists()


def test_hosts_that_are_reached_directly() -> None:
    proxy = UpstreamProxy(
        "proxy", 1, VARIABLE, exceptions="corp.test, .dev.test,10.1.2.3,[fd00::1], FD00:0::3 "
    )
    for host in ("corp.test", "a.corp.test", "b.dev.test", "10.1.2.3", "fd00::1", "fd00::3"):
        assert not proxy.leads_to(host, 443)
    for host in ("fd00::13", "evilcorp.test", "corp.test.evil", "10.1.2.4", "fd00::2", "test"):
        assert proxy.leads_to(host, 443)
    alone = UpstreamProxy("proxy", 1, VARIABLE)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1"):
        assert not alone.leads_to(host, 80)  # there, they would be other machines
    for host in ("localhost", "10.0.0.1", "fd00::1", "11.22.33.44"):
        assert alone.leads_to(host, 80)
    assert not UpstreamProxy("proxy", 1, VARIABLE, exceptions="*").leads_to("a.test", 443)


def started(
    state: State, stdin: int, *words: str, is_terminal: bool = False
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, state.directory, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if is_terminal else None,
    )


def test_a_password_is_read_once_from_a_terminal_without_an_echo(
    state: State, files: StateFiles
) -> None:
    password = b"hunter2" * 700  # a terminal itself keeps 4,095 characters of a line
    controller, terminal = pty.openpty()
    process = started(state, terminal, URL, is_terminal=True)
    assert process.stderr is not None
    said = b""
    while not said.endswith(b"Password of me at http://proxy.corp:8080: "):
        said += os.read(process.stderr.fileno(), 1024)
    os.write(controller, password + b"\n")
    while b"the password is kept in" not in said:
        said += os.read(process.stderr.fileno(), 1024)
    os.write(controller, b"\x04")
    assert process.communicate()[0] == b""
    os.set_blocking(controller, False)
    assert b"hunter2" not in said
    with contextlib.suppress(BlockingIOError):
        assert b"hunter2" not in os.read(controller, 1024)
    assert store.read(KEY) == password.decode()
    assert files.upstream_proxy.read_text() == f"{URL}\n"
    assert oct(files.upstream_proxy.stat().st_mode & 0o777) == "0o600"
    process = started(state, subprocess.DEVNULL)  # not again
    assert process.communicate() == (b"", b"")
    os.close(controller)
    os.close(terminal)


def test_a_password_is_the_first_line_of_another_input(state: State, files: StateFiles) -> None:
    process = started(state, subprocess.PIPE, URL)
    out, error = process.communicate(b"hunter 2\nfor the guest\n")
    assert (out, process.returncode) == (b"for the guest\n", 0), error
    assert store.read(KEY) == "hunter 2"
    process = started(state, subprocess.PIPE)  # kept: the whole input is the guest's
    assert process.communicate(b"all of it")[0] == b"all of it"
    process = started(state, subprocess.PIPE, URL)  # it was wrong, or has changed
    assert process.communicate(b"hunter 3\nfor the guest\n")[0] == b"for the guest\n"
    assert store.read(KEY) == "hunter 3"
    company_proxy.prepare(state, "")
    assert store.read(KEY) is None
    for typed in (b"", b"\n", b"a\0b\n", b"\xff\n"):
        process = started(state, subprocess.PIPE, URL)
        assert b"that is no password" in process.communicate(typed)[1]
    assert not files.upstream_proxy.exists()
    files.upstream_proxy.write_text(URL)  # remembered, but the keyring has lost it
    process = started(state, subprocess.PIPE)
    out, error = process.communicate(b"for the guest")
    assert b"no password is kept for me at http://proxy.corp:8080" in error
    assert b"gitguard vm up --upstream-proxy http://me@proxy.corp:8080 asks for it" in error


def test_the_password_of_the_variables_proxy_can_be_changed(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", URL)
    store.write(KEY, "wrong")
    process = started(state, subprocess.PIPE, "")
    assert b"no password is kept for me at" in process.communicate(b"for the guest\n")[1]
    assert store.read(KEY) is None
    started(state, subprocess.PIPE, URL).communicate(b"right\n")
    started(state, subprocess.PIPE, URL).communicate(b"right\n")
    assert store.read(KEY) == "right"


def test_a_password_goes_with_the_setting_that_needs_it(state: State, files: StateFiles) -> None:
    other, other_key = URL.replace("me@", "you@"), KEY.replace("me@", "you@")
    started(state, subprocess.PIPE, URL).communicate(b"hunter1\n")
    started(state, subprocess.PIPE, other).communicate(b"hunter2\n")
    assert (store.read(KEY), store.read(other_key)) == (None, "hunter2")
    started(state, subprocess.PIPE, URL).communicate(b"\n")  # that is no password: nothing changes
    assert (store.read(KEY), store.read(other_key)) == (None, "hunter2")
    assert files.upstream_proxy.read_text() == f"{other}\n"
    company_proxy.prepare(state, "http://another.proxy:1")
    assert (store.read(KEY), store.read(other_key)) == (None, None)


@pytest.mark.parametrize("new", ["", "http://direct:3128"])
@pytest.mark.parametrize("why", ["this session has none", "KeyringLocked"])
def test_a_password_that_cannot_be_deleted_is_named_and_the_setting_changes(
    state: State, files: StateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], new: str, why: str,
) -> None:  # fmt: skip
    kept = tmp_path / "keyring"
    monkeypatch.setenv(keyring_in_file.VARIABLE, str(kept))
    keyring.set_keyring(keyring_in_file.Keyring())
    files.upstream_proxy.write_text(URL)
    store.write(KEY, "hunter2")
    saved = kept.read_text()
    if why == "KeyringLocked":
        kept.write_text(keyring_in_file.LOCKED)
    else:
        keyring.set_keyring(fail.Keyring())
    company_proxy.prepare(state, new)
    assert upstream_proxy.status(files.directory) == (f"through {new} ({OPTION})" if new else "")
    said = capfd.readouterr().err
    assert why in said
    assert f"{KEY} in /" in said
    assert "hunter2" in saved
    assert store.keys("upstream-proxy/") == [KEY]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[str]]]:
    """A proxy's port, and the requests that it gets. It is a server too, to which it redirects."""
    got: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.note()
            self.send_response(302 if self.path.endswith("/moved") else 204)
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/here")
            self.end_headers()

        def do_CONNECT(self) -> None:
            self.note()
            self.send_error(502)

        def note(self) -> None:
            got.append(f"{self.command} {self.path} {self.headers['Proxy-Authorization']}")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(urllib.request, "_opener", None)  # what is installed ends with the test
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, got
    server.shutdown()
    server.server_close()


LOGIN = f"Basic {base64.b64encode(b'me:p@:/w').decode()}"


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        ("http://me@127.0.0.1:PORT", "http://127.0.0.1:1"),
        ("", "http://me@127.0.0.1:PORT"),
        ("", "http://me:p%40%3A%2Fw@127.0.0.1:PORT"),
    ],
)
def test_downloads_go_through_the_proxy_too(
    state: State, files: StateFiles, asked: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch,
    setting: str, variable: str,
) -> None:  # fmt: skip
    port, got = asked
    monkeypatch.setenv("https_proxy", variable.replace("PORT", str(port)))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    if setting:
        files.upstream_proxy.write_text(setting.replace("PORT", str(port)))
    store.write(f"upstream-proxy/me@127.0.0.1:{port}", "p@:/w")
    company_proxy.prepare(state, None)
    with urllib.request.urlopen("http://images.test/disk", timeout=20) as answer:
        assert answer.status == 204
    with pytest.raises(urllib.error.URLError, match="502"):
        urllib.request.urlopen("https://images.test/disk", timeout=20)
    assert got == [f"GET http://images.test/disk {LOGIN}", f"CONNECT images.test:443 {LOGIN}"]


def test_a_server_to_which_a_download_is_redirected_gets_no_password(
    state: State, files: StateFiles, asked: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, got = asked
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    store.write(f"upstream-proxy/me@127.0.0.1:{port}", "p@:/w")
    files.upstream_proxy.write_text(f"http://me@127.0.0.1:{port}")
    company_proxy.prepare(state, None)
    urllib.request.urlopen("http://images.test/moved", timeout=20).close()
    assert got == [f"GET http://images.test/moved {LOGIN}", "GET /here None"]
