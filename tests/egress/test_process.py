"""The proxy as a process: how it starts, what it leaves, and how it ends."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress.proxy import ca_certificate
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import running_proxy
from tests.egress.bypasses import head
from tests.egress.test_refusals import FAULTY
from tests.egress.upstream import FakeDns, Upstream
from tests.egress.world import LIMIT, pid_of, running, start_proxy
from tests.support.mounting import until

STARTER = """
import sys, time
from pathlib import Path
from gitguardfs.host.egress.start import StartedProxy
print(StartedProxy(Path(sys.argv[1])).port, flush=True)
time.sleep(600)
"""


def wait_until_gone(pid: int) -> None:
    until(lambda: not os.path.exists(f"/proc/{pid}"), "it is gone")


def test_it_starts_stops_and_starts_again(state: Path) -> None:
    proxy = start_proxy(state)
    try:
        assert proxy.process.poll() is None
        found = json.loads((state / "proxy.json").read_text())
        assert found == {"pid": pid_of(state), "port": proxy.port, "through": ""}
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
        assert stat.S_IMODE(state.stat().st_mode) == modes["mitmproxy"] == 0o700
        assert modes["allowlist.txt"] == modes["mitmdump.log"] == 0o600
        key = state / "mitmproxy/mitmproxy-ca.pem"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        listening = subprocess.run(
            ["ss", "-Hltnp"], capture_output=True, text=True, check=True
        ).stdout
        ours = [line for line in listening.splitlines() if f"pid={found['pid']}," in line]
        assert [line.split()[3] for line in ours] == [f"127.0.0.1:{proxy.port}"]
    finally:
        proxy.stop()
    assert running_proxy(State("/srv/p", str(state))) is None
    before = ca_certificate(state)
    again = start_proxy(state)
    again.stop()
    assert ca_certificate(state) == before


def test_it_ends_with_the_process_that_started_it(state: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, state], stdout=subprocess.PIPE)
    try:
        assert starter.stdout is not None
        starter.stdout.readline()
        pid = pid_of(state)
        starter.kill()
        wait_until_gone(pid)
    finally:
        starter.kill()
        starter.communicate()
    assert running_proxy(State("/srv/p", str(state))) is None


def test_what_keeps_it_from_starting_is_one_line(state: Path) -> None:
    state.mkdir()
    (state / "upstream-ca.pem").write_text("nothing")
    with pytest.raises(UserError, match=r"upstream-ca\.pem holds no certificate"):
        start_proxy(state)
    (state / "upstream-ca.pem").unlink()
    (state / "mitmproxy").mkdir(exist_ok=True)
    (state / "mitmproxy/mitmproxy-ca.pem").write_text("nothing")
    with pytest.raises(UserError, match=r"cannot read the proxy's authority in .*"):
        start_proxy(state)


def test_a_start_that_was_killed_leaves_nothing_in_the_way(state: Path) -> None:
    state.mkdir()
    (state / ".mitmproxy-abc").mkdir()
    (state / ".mitmproxy-abc/mitmproxy-ca.pem").write_text("half")
    (state / "proxy.json").write_text('{"pid": 1, "port": 1}')
    (state / "proxy.new").write_text("{")
    proxy = start_proxy(state)
    pid = pid_of(state)
    found = running_proxy(State("/srv/p", str(state)))
    assert found is not None and found["pid"] == pid
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    proxy.stop()
    with socket.create_server(("127.0.0.1", proxy.port)):  # another program has the port now
        assert running_proxy(State("/srv/p", str(state))) is None
    again = start_proxy(state)
    again.stop()
    kept = "allowlist.lock allowlist.txt mitmdump.log mitmproxy proxy.json usage.json"
    assert {path.name for path in state.iterdir()} == set(kept.split())


def test_a_proxy_that_says_nothing_is_reported(state: Path) -> None:
    with pytest.raises(UserError, match="did not start: exit status 3"):
        start_proxy(state, [sys.executable, "-c", "raise SystemExit(3)"])


def test_ctrl_c_at_the_terminal_does_not_end_it_and_sigterm_does(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with running(state, upstream, dns) as world:
        assert os.getpgid(world.pid) != os.getpgid(0)
        assert os.getsid(world.pid) != os.getsid(0)
        with world.client() as client:  # an open connection does not keep it
            client.send(b"GET http")
            os.kill(world.pid, signal.SIGTERM)
            assert world.proxy.process.wait(LIMIT) == 128 + signal.SIGTERM


@pytest.mark.parametrize("how", ["SIGTERM", "its parent's end"])
@pytest.mark.parametrize("fault", ["busy", "busy in C"])
def test_it_ends_whatever_it_is_doing(
    upstream: Upstream, dns: FakeDns, state: Path, fault: str, how: str
) -> None:
    with running(state, upstream, dns, [sys.executable, str(FAULTY), fault]) as world:
        with world.client() as client:
            client.send(head("GET http://allowed.test/ok"))
            world.wait_until(lambda: "busy from now on" in world.log)
            if how == "SIGTERM":
                os.kill(world.pid, signal.SIGTERM)
            else:
                assert world.proxy.process.stdin is not None
                world.proxy.process.stdin.close()
            pid = world.pid
            assert world.proxy.process.wait(LIMIT) >= 0
            wait_until_gone(pid)


def test_the_systems_trust_is_what_openssl_says(
    upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(UserError, match=r"SSL_CERT_FILE names /nowhere\.pem"):
        start_proxy(state)
    monkeypatch.setenv("SSL_CERT_FILE", str(upstream.ca["ca"]))
    with running(state.with_name("other"), upstream, dns) as world:
        world.allow("GET https://allowed.test/ok")
        world.proxy.stop()
        (world.directory / "upstream-ca.pem").unlink()
        world.proxy = start_proxy(world.directory)
        world.port = world.proxy.port
        assert world.get("https://allowed.test/ok").status == 200
