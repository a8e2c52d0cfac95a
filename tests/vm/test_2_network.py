"""Packages through the proxy leave the guest, and nothing else does."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.probes import probe
from tests.vm.world import LARGE, World, command

PROXY_MEMORY_KIB = 160_000
"""More memory than the proxy needs, and less than it would need for a large answer."""


@pytest.fixture(scope="module")
def open_registry(host: World, first: object) -> World:
    """Allow requests to the registry by lines of the allowlist."""
    registry = host.registry
    for path in ("simple/*", "files/*", "small", "large"):
        done = host.vm("allow", f"GET {registry.url}/{path}", "private-address")
        assert done.returncode == 0, done.stderr
    return host


@pytest.fixture(scope="module")
def restarted(open_registry: World) -> Iterator[World]:
    """The proxy was killed, and another was started by hand."""
    host = open_registry
    old = json.loads((host.state / "proxy.json").read_text())["pid"]
    subprocess.run(["kill", "-9", str(old)], check=True)
    answer = host.ssh("curl -sS -m 60 -o - http://example.org/")
    assert "gitguard vm proxy" in answer.stdout
    assert "not running" in host.vm("status").stdout
    process = host.popen(command("proxy"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    for _ in range(600):
        if "running, process" in host.vm("status").stdout:
            break
    yield host
    process.terminate()
    process.communicate(timeout=60)


def test_a_killed_proxy_closes_the_way_out_and_another_takes_its_place(restarted: World) -> None:
    assert "running, process" in restarted.vm("status").stdout


def test_pip_installs_through_the_proxy(restarted: World) -> None:
    index = f"{restarted.registry.url}/simple/"
    restarted.sh(f"pip install -q --no-deps --target ~/lib --index-url {index} sample")
    said = restarted.sh("PYTHONPATH=~/lib python3 -c 'import sample; print(sample.WORDS)'")
    assert said == "from the registry"


def test_what_is_not_allowed_is_refused_and_never_leaves(restarted: World) -> None:
    url = f"{restarted.registry.url}/elsewhere?data=carried-out"
    before = list(restarted.registry.seen)
    said = restarted.sh(f"curl -sS -i '{url}'")
    assert re.search(r"^HTTP/1.1 418 ", said, re.MULTILINE)
    assert "ask" in said.lower()
    assert restarted.registry.seen == before
    last = json.loads((restarted.state / "blocked.jsonl").read_text().splitlines()[-1])
    assert (last["method"], last["url"]) == ("GET", url)
    listed = restarted.vm("blocked").stdout
    assert "/elsewhere" in listed
    assert "gitguard vm allow" in listed
    told = restarted.sh("gitguard-blocked")
    assert "/elsewhere?*" in told
    assert "carried-out" not in told


def test_a_line_that_is_added_holds_at_once(restarted: World) -> None:
    url = f"{restarted.registry.url}/now"
    status = f"curl -sS -o /dev/null -w '%{{http_code}}' '{url}'"
    assert restarted.sh(status) == "418"
    restarted.vm("allow", f"GET {url}", "private-address")
    assert restarted.sh(status) == "404"  # the registry's own answer
    assert "GET /now HTTP/1.1" in restarted.registry.seen


def test_a_secret_gets_to_its_host_and_is_never_in_the_guest(restarted: World) -> None:
    url, value = restarted.registry.url, "the-real-key"
    place = ("--host", url.removeprefix("https://"), "--query", "key")
    done = restarted.vm("secret", "set", "SAMPLE_KEY", *place, typed=f"{value}\n")
    assert "New shells in the guest have" in done.stdout, done.stderr
    restarted.vm("allow", f"GET {url}/keyed?key=*", "private-address")
    status = "curl -sS -o /dev/null -w '%{http_code}'"
    assert restarted.sh(f'{status} "{url}/keyed?key=$SAMPLE_KEY"') == "404"  # the registry's own
    assert f"GET /keyed?key={value} HTTP/1.1" in restarted.registry.seen
    assert restarted.sh(f'{status} -H "X: $SAMPLE_KEY" {url}/small') == "418"
    places = "/etc /var/log /var/lib/cloud /proc/[0-9]*/environ"
    assert restarted.sh(f"grep -rlsI {value} {places} || true", root=True) == ""


def test_a_post_with_data_does_not_leave(restarted: World) -> None:
    before = list(restarted.registry.seen)
    said = restarted.sh(f"curl -sS -i -d @README.md '{restarted.registry.url}/small'")
    assert " 418 " in said
    assert restarted.registry.seen == before


def test_twenty_downloads_at_once(restarted: World) -> None:
    line = (
        f"seq 20 | xargs -P 20 -I N curl -sS -m 240 -o /tmp/part-N {restarted.registry.url}/small"
        " && cat /tmp/part-* | wc -c"
    )
    assert restarted.sh(line) == str(20 * 100_000)


def test_a_large_download_does_not_fill_the_proxys_memory(restarted: World) -> None:
    pid = json.loads((restarted.state / "proxy.json").read_text())["pid"]
    count = restarted.sh(f"curl -sS -m 240 {restarted.registry.url}/large | wc -c")
    assert count == str(LARGE)
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    assert int(found[1]) < PROXY_MEMORY_KIB


# Isolation


def test_only_the_proxy_answers(vm: World, listening: int) -> None:
    for root in (False, True):
        answers = probe(vm, listening, root)
        assert answers == {"proxy"}, answers


def test_there_is_no_name_server_and_no_route(vm: World) -> None:
    assert vm.sh("ip -4 route show default; ip -6 route show default") == ""
    assert vm.ssh("getent ahosts deb.debian.org").returncode != 0
