"""A network of our own, servers in it, and the proxy that stands before them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.egress.upstream import FakeDns, Upstream, own_network
from tests.egress.world import World, running


@pytest.fixture(scope="package", autouse=True)
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with own_network(tmp_path_factory.mktemp("network")), pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="package")
def upstream(network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    server = Upstream(tmp_path_factory.mktemp("upstream"))
    yield server
    server.close()


@pytest.fixture(scope="package")
def dns(network: None) -> Iterator[FakeDns]:
    server = FakeDns()
    yield server
    server.close()


@pytest.fixture(scope="package")
def _shared(
    upstream: Upstream, dns: FakeDns, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with running(tmp_path_factory.mktemp("proxy") / "state", upstream, dns) as world:
        yield world


@pytest.fixture
def world(_shared: World) -> World:
    """The proxy that most tests share, with an empty allowlist."""
    assert _shared.proxy.process.poll() is None
    _shared.allow()
    return _shared


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The name of a state directory that is not there yet."""
    return tmp_path / "state"
