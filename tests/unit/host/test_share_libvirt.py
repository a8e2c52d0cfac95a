"""The XML for libvirt: valid by libvirt's own schema, and read back by a parser."""

import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings

from gitguardfs.host.share.share_settings import settings as share_settings
from gitguardfs.host.share.share_spec import GuardPlacement, Hypervisor, ShareSpec, Transport
from tests.unit.host.test_share import NAMES, TAGS, made

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
AWKWARD = "/home/me/a, \"b\" 'c' <d> & é %$\\"

needs_schema = pytest.mark.skipif(
    not SCHEMA.exists(), reason="libvirt's schemas are not installed (libvirt0, libvirt-common)"
)
needs_xmllint = pytest.mark.skipif(
    shutil.which("xmllint") is None, reason="xmllint is not installed (libxml2-utils)"
)


def shared(directory: str = AWKWARD, tag: str = "projects", **given: Any) -> ShareSpec:
    return made(directory, tag, hypervisor=Hypervisor.LIBVIRT, **given)


def domain(*, memory: str, filesystem: str) -> str:
    return (
        "<domain type='qemu'><name>x</name><memory>262144</memory>"
        f"{memory}<os><type>hvm</type></os><devices>{filesystem}</devices></domain>"
    )


def validate(path: Path, xml: str) -> subprocess.CompletedProcess[str]:
    path.write_text(xml)
    return subprocess.run(
        ["xmllint", "--noout", "--nonet", "--relaxng", SCHEMA, path], capture_output=True, text=True
    )


@needs_schema
@needs_xmllint
@pytest.mark.parametrize("guard", list(GuardPlacement))
@pytest.mark.parametrize("transport", list(Transport))
def test_libvirts_schema_takes_the_elements(
    tmp_path: Path, transport: Transport, guard: GuardPlacement
) -> None:
    spec = shared(transport=transport, guard=guard)
    text = share_settings(spec)
    memory, filesystem = text["memory_backing"], text["filesystem"]
    done = validate(tmp_path / "domain.xml", domain(memory=memory, filesystem=filesystem))
    assert done.returncode == 0, done.stderr
    broken = domain(memory=memory, filesystem=filesystem.replace("accessmode", "mode"))
    assert validate(tmp_path / "domain.xml", broken).returncode != 0


@settings(deadline=None)
@given(NAMES, TAGS)
def test_a_parser_reads_back_path_and_tag(name: str, tag: str) -> None:
    if ".git" in tag or tag in (".", ".."):
        return
    for transport in Transport:
        element = ET.fromstring(
            share_settings(shared(f"/x/{name}", tag, transport=transport))["filesystem"]
        )
        source, target = element.find("source"), element.find("target")
        assert source is not None and source.attrib == {"dir": f"/x/{name}"}
        assert target is not None and target.attrib == {"dir": tag}
