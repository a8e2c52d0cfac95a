"""Attempts to bypass the allowlist: none reaches a server, and no name is resolved."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.egress.bypasses import ALLOWED, BYPASSES, Bypass, leaked
from tests.egress.upstream import FakeDns, Upstream
from tests.egress.world import World, running

NAIVE = Path(__file__).with_name("naive_proxy.py")
FENCE = "http://allowed.test/ok/fence"


def gets_out(world: World, bypass: Bypass) -> bool:
    """Carry a bypass out and return whether it leaked. A later, allowed request ends the wait."""
    world.forget()
    with world.client() as client:
        bypass.attempt(client)
        assert world.get(FENCE).status == 200
        return leaked(world.upstream, world.dns.asked)


@pytest.mark.parametrize("bypass", BYPASSES, ids=lambda bypass: bypass.name)
def test_nothing_of_it_leaves(world: World, bypass: Bypass) -> None:
    world.allow(*ALLOWED)
    assert not gets_out(world, bypass)
    assert world.proxy.process.poll() is None


def test_with_a_naive_rule_they_do_get_out(upstream: Upstream, dns: FakeDns, state: Path) -> None:
    """This shows that the tests above can fail."""
    with running(state, upstream, dns, [sys.executable, str(NAIVE)]) as world:
        world.allow(*ALLOWED)
        seen = {bypass.name for bypass in BYPASSES if bypass.is_seen}
        assert {b.name for b in BYPASSES if b.is_seen and gets_out(world, b)} == seen
