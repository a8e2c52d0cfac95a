"""Attempts to bypass the allowlist: none reaches a server, and no name is resolved."""

import pytest

from tests.egress.bypasses import ALLOWED, BYPASSES, Bypass, leaked
from tests.egress.world import World

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
