"""The guest's Docker builds images, and reaches what the allowlist allows and nothing else."""

from collections.abc import Iterator

import pytest

from tests.guest import image as images
from tests.vm.conftest import OPTIONS
from tests.vm.world import World, world

BUILD = """
set -e
mkdir ~/build
cd ~/build
mkdir -p root/bin root/etc/ssl/certs root/tmp
cp /bin/busybox root/bin/sh
cp --parents -L /usr/bin/curl $(ldd /usr/bin/curl | grep -o '/[^ ]*') root
cp /etc/ssl/certs/ca-certificates.crt root/etc/ssl/certs
cat >Dockerfile <<END
FROM scratch
COPY root /
RUN /usr/bin/curl -sS -f -o /fetched %(url)s/small
RUN /usr/bin/curl -sS %(url)s/other
RUN /usr/bin/curl -sS --noproxy '*' --max-time 10 %(url)s/small || echo "no way out: $?"
END
docker build --progress=plain -t built . 2>&1
docker run --rm built /bin/sh -c 'wc -c </fetched'
"""


@pytest.fixture(scope="module")
def host() -> Iterator[World]:
    """A host whose image has Docker."""
    with world(images.obtain(images.DEBIAN_DOCKER).disk.parent) as made:
        yield made


@pytest.fixture(scope="module")
def vm(host: World) -> World:
    """The host while its VM runs; the agent may use Docker from its first session on."""
    certificate = str(host.registry.certificate)
    session = host.up(*OPTIONS, "--image", str(host.image), "--upstream-ca", certificate,
                      what="first boot with Docker")  # fmt: skip
    assert host.vm("allow", f"GET {host.registry.url}/small private-address").returncode == 0
    host.sh("usermod -aG docker agent", root=True)
    assert session.process.poll() is None
    return host


def test_a_build_fetches_what_the_allowlist_allows_and_nothing_else(vm: World) -> None:
    said = vm.sh(BUILD % {"url": vm.registry.url})
    assert "GET /small HTTP/1.1" in vm.registry.seen
    assert f"gitguard vm allow 'GET {vm.registry.url}/other" in said
    assert not any("/other" in line for line in vm.registry.seen)
    assert "no way out" in said
    assert said.endswith("100000")


def test_the_engine_itself_asks_the_proxy_for_images(vm: World) -> None:
    done = vm.ssh("docker pull registry.test/image:1")
    assert done.returncode != 0
    assert "gitguard vm allow 'GET https://registry.test/v2/" in done.stdout + done.stderr
