"""What the user is shown of a real proxy: what it blocks, as it comes, and which lines it used."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from gitguardfs.host.credentials import secrets
from gitguardfs.host.credentials.secrets import Kind, Place, Secret
from gitguardfs.host.egress import usage
from gitguardfs.host.vm import state as states
from tests.egress.upstream import FakeDns, Upstream
from tests.egress.world import World, running
from tests.support.terminal import running as terminal_of

GITGUARD = "import sys; from gitguardfs.commands.gitguard import main; main()"
KEYS = "a allows this line, s skips, q quits\n"


def test_one_key_lets_the_next_request_out(
    upstream: Upstream, dns: FakeDns, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        os.mkdir(f"{short}/p")
        state = states.state_of(f"{short}/p")
        os.makedirs(os.path.dirname(state.directory))
        words = [sys.executable, "-P", "-c", GITGUARD, "vm", "watch", "--project", state.project]
        with running(Path(state.directory), upstream, dns) as world, terminal_of(words) as shown:
            shown.until("q quits\n")
            for _ in range(3):
                assert world.get("https://allowed.test/new").status == 418
            said = shown.until(KEYS)
            assert "blocked GET https://allowed.test/new" in said
            assert "    GET https://allowed.test/new\n" in said
            world.get("https://other.test/x\x1b[2J\r\n  this line would allow it:")
            shown.type(b"a")
            shown.until("next request on")
            assert world.get("https://allowed.test/new").status == 200
            shown.type(b"q")
            assert shown.ended() == 0
            assert "\x1b" not in shown.said


def lines_used(world: World) -> list[str]:
    found = usage.read(world.directory / "usage.json")
    assert found is not None
    return list(found.used)


def test_the_proxy_notes_the_line_that_allowed_a_request(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    used = "GET https://allowed.test/yes*"
    with running(state, upstream, dns) as world:
        assert lines_used(world) == []
        world.allow(used, "GET https://allowed.test/never", "POST https://allowed.test/yes")
        for path in ("yes", "yes?q", "no", "never/"):
            world.get(f"https://allowed.test/{path}")
        world.get("https://other.test/yes")
        assert lines_used(world) == [used]
        assert (state / "usage.json").stat().st_mode & 0o777 == 0o600


def test_a_request_that_is_refused_for_its_secret_is_no_use(
    upstream: Upstream, dns: FakeDns, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(state.parent / "s"))  # here no secret has a value
    secret = Secret(
        "TOKEN", secrets.new_placeholder("TOKEN"),
        (Place("allowed.test", 443, Kind.BEARER, "Bearer"),),
    )  # fmt: skip
    with running(state, upstream, dns) as world:
        world.allow("GET https://allowed.test/yes")
        secrets.save(state, [secret])
        field = f"Authorization: Bearer {secret.placeholder}\r\n"
        assert world.get("https://allowed.test/yes", headers=field).status == 418
        assert lines_used(world) == []


def test_a_request_is_let_out_if_its_use_cannot_be_noted(
    upstream: Upstream, dns: FakeDns, state: Path
) -> None:
    with running(state, upstream, dns) as world:
        world.allow("GET https://allowed.test/yes")
        (state / "usage.json").unlink()
        (state / "usage.json").mkdir()
        assert world.get("https://allowed.test/yes").status == 200
        assert "cannot write" in world.log
