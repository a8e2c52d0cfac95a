"""The page on which the proxy tells its VM what it has blocked, and the guest's program for it."""

import os
import subprocess
from pathlib import Path

import pytest

from gitguardfs.host.egress.urls import BLOCKED_URL, OWN_HOST
from gitguardfs.host.vm import guest_files, provision
from gitguardfs.host.vm.settings import Settings
from tests.egress.bypasses import head
from tests.egress.upstream import FakeDns, Upstream
from tests.egress.world import World, running


def gitguard_blocked(world: World, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the guest's program, with settings of a user who wants everything to go elsewhere."""
    (program,) = [
        file
        for file in provision.guest_files(Settings("/srv/p"), world.ca)
        if file.path == guest_files.BLOCKED_PROGRAM
    ]
    assert program.mode == 0o755
    path = home / "gitguard-blocked"
    path.write_text(
        program.data.decode().replace(guest_files.PROXY, f"http://127.0.0.1:{world.port}")
    )
    (home / ".curlrc").write_text("proxy = http://127.0.0.1:1\n")
    environment = {**os.environ, "HOME": str(home), "NO_PROXY": "*", "no_proxy": "*"}
    return subprocess.run(
        ["sh", path], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_guest_is_told_what_was_blocked_and_what_to_ask_for(
    upstream: Upstream, dns: FakeDns, state: Path, tmp_path: Path
) -> None:
    with running(state, upstream, dns) as world:
        world.allow("GET https://allowed.test/yes")
        assert world.get("https://allowed.test/yes").status == 200
        done = gitguard_blocked(world, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "othing was blocked" in done.stdout

        for query in ("?token=SECRET1", "?token=SECRET2", ""):
            world.get(f"https://allowed.test/it's{query}")
        world.get("https://other.test/x/../\x1b[31m?SECRET3#SECRET4", "DELETE")
        with world.client() as client:
            client.send(head("CONNECT user:SECRET5@a.test:443"))
            client.anything()
        done = gitguard_blocked(world, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "SECRET" not in done.stdout
        lines = [line.strip() for line in done.stdout.splitlines()]
        assert "GET https://allowed.test/it's?*" in lines
        assert "gitguard vm allow 'GET https://allowed.test/it'\\''s?*'" in lines
        assert "gitguard vm allow 'GET https://allowed.test/it'\\''s'" in lines
        assert any(line.startswith("DELETE https://other.test/x/../") for line in lines)
        assert "ask your human" in done.stdout
        assert done.stdout.replace("\n", "").isprintable()
        assert gitguard_blocked(world, tmp_path).stdout == done.stdout  # asking adds nothing

        (world.directory / "allowlist.txt").unlink()
        done = gitguard_blocked(world, tmp_path)
        assert done.returncode != 0
        assert "the allowlist on the host cannot be read" in done.stdout
        assert world.log.count(" ERROR ") == 0
    done = gitguard_blocked(world, tmp_path)
    assert (done.returncode, done.stdout) == (7, "")
    assert "connect" in done.stderr


def test_a_vm_is_told_nothing_of_another(
    upstream: Upstream, dns: FakeDns, state: Path, tmp_path: Path
) -> None:
    with (
        running(state, upstream, dns) as one,
        running(state.with_name("another"), upstream, dns) as another,
    ):
        one.get("https://other.test/of-this-vm")
        assert b"of-this-vm" in one.get(BLOCKED_URL).body
        assert b"of-this-vm" not in another.get(BLOCKED_URL).body


LINES = tuple(
    f"{method} {scheme}://{OWN_HOST}{port}/* private-address"
    for method in ("GET", "HEAD", "POST")
    for scheme, port in (("http", ""), ("https", ""), ("http", ":81"))
)


@pytest.mark.parametrize(
    "request_",
    [
        head(f"HEAD {BLOCKED_URL}", host=OWN_HOST),
        head(f"POST {BLOCKED_URL}", "Content-Length: 0", host=OWN_HOST),
        head(f"GET {BLOCKED_URL}", "Content-Length: 1", host=OWN_HOST) + b"x",
        head(f"GET {BLOCKED_URL}", "Upgrade: websocket", host=OWN_HOST),
        head(f"GET {BLOCKED_URL}?q", host=OWN_HOST),
        head(f"GET {BLOCKED_URL}/", host=OWN_HOST),
        head(f"GET {BLOCKED_URL}/../x", host=OWN_HOST),
        head(f"GET http://{OWN_HOST}/", host=OWN_HOST),
        head(f"GET http://{OWN_HOST}:81/blocked", host=f"{OWN_HOST}:81"),
        head(f"GET http://{OWN_HOST}./blocked", host=f"{OWN_HOST}."),
        head(f"GET {BLOCKED_URL}", host="allowed.test"),
        head(f"GET https://{OWN_HOST}/blocked", host=OWN_HOST),
        head("GET http://allowed.test/blocked", host=OWN_HOST),
        head(f"CONNECT {OWN_HOST}:443", host=OWN_HOST),
        head(f"CONNECT {OWN_HOST}:80", host=OWN_HOST),
        head(f"CONNECT {OWN_HOST.upper()}:80", host=OWN_HOST),
    ],
    ids=lambda data: data.decode().replace("\r\n", " "),
)
def test_no_other_request_for_the_name_is_answered_or_sent_on(
    world: World, request_: bytes
) -> None:
    world.get("https://other.test/recent")
    world.allow(*LINES, "GET http://allowed.test/*")
    with world.client() as client:
        client.send(request_)
        said = client.anything(10)
    assert said.startswith(b"HTTP/1.1 4"), said
    assert b"/recent" not in said
    assert world.upstream.connections == []
    assert world.dns.asked == []


def test_within_a_tunnel_to_another_host_the_name_leads_nowhere(world: World) -> None:
    world.allow(*LINES, "GET http://allowed.test/*", "GET https://allowed.test/*")
    for target, sni in (("allowed.test:80", None), ("allowed.test:443", "allowed.test")):
        for first in ("GET /blocked", f"GET {BLOCKED_URL}"):
            with world.client() as client:
                client.tunnel(target, sni)
                client.send(head(first, host=OWN_HOST))
                assert client.answer().status == 418
    assert world.upstream.connections == []
    assert world.dns.asked == []


def test_programs_that_show_the_status_line_alone_name_the_program(world: World) -> None:
    with world.client() as client:
        client.send(head("GET http://other.test/", host="other.test"))
        status_line = client.anything().partition(b"\r\n")[0]
    assert status_line.startswith(b"HTTP/1.1 418 ")
    assert b"gitguard-blocked" in status_line
