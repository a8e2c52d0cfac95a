"""Elements of libvirt's domain XML (https://libvirt.org/formatdomain.html#filesystems)."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from gitguardfs.host.share.share_spec import ShareSpec, Transport
from gitguardfs.host.share.virtiofsd import QUEUE_SIZE


def filesystem(spec: ShareSpec) -> str:
    """Return the element that goes below ``<devices>``."""
    if spec.transport is Transport.VIRTIOFS:
        element = ET.Element("filesystem", type="mount", accessmode="passthrough")
        ET.SubElement(element, "driver", type="virtiofs", queue=str(QUEUE_SIZE))
    else:
        # squash is QEMU's security_model=none.
        element = ET.Element("filesystem", type="mount", accessmode="squash", multidevs="remap")
    ET.SubElement(element, "source", dir=spec.exported)
    ET.SubElement(element, "target", dir=spec.tag)
    return _text(element)


def memory_backing(spec: ShareSpec) -> str | None:
    """Return the element that goes directly below ``<domain>``; None for 9p, which needs none."""
    if spec.transport is Transport.P9:
        return None
    element = ET.Element("memoryBacking")
    ET.SubElement(element, "source", type="memfd")
    ET.SubElement(element, "access", mode="shared")
    return _text(element)


def _text(element: ET.Element) -> str:
    ET.indent(element)
    return ET.tostring(element, encoding="unicode")
