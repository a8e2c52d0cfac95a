"""Settings of the guest for toolchains that the usual variables are not enough for.

Pure. Node before 22.21 knows no proxy, Java has a trust store of its own, Yarn has variables of its
own, and git may be asked for SSH, which has no way out.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import struct

from gitguardfs.base import installation
from gitguardfs.base.constants import NOT_PROXIED
from gitguardfs.host.vm.qemu_command import PROXY_ADDRESS, PROXY_PORT

PROXY = f"http://{PROXY_ADDRESS}:{PROXY_PORT}"
JAVA_TRUST = "/etc/gitguard-vm/java-trust.jks"
"""The trust store of every Java in the guest; a JDK from a tarball has another of its own."""
NODE_PROXY = "/etc/gitguard-vm/node-proxy.cjs"
"""The file that each Node in the guest loads first."""

_SSH_HOSTS = (
    "github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "git.sr.ht", "gitea.com",
    "salsa.debian.org", "gitlab.freedesktop.org", "gitlab.gnome.org", "invent.kde.org",
)  # fmt: skip
"""Hosts whose ``git@HOST:PATH`` is ``https://HOST/PATH`` too. Git replaces only the beginning of an
address, so each host needs a rule of its own, and each port; ``ssh://`` alone does not."""
_SSH_BY_443 = {"github.com": "ssh.github.com", "gitlab.com": "altssh.gitlab.com",
               "bitbucket.org": "altssh.bitbucket.org"}  # fmt: skip
"""The names by which these hosts serve SSH at port 443."""
_CHECKED_WITH = "changeit"
"""The password in a trust store's digest: keytool's usual one. Java needs none to read it."""


def environment() -> dict[str, str]:
    """Return variables by which more tools find the proxy and trust its certificates."""
    java = {
        "http.proxyHost": PROXY_ADDRESS, "http.proxyPort": PROXY_PORT,
        "https.proxyHost": PROXY_ADDRESS, "https.proxyPort": PROXY_PORT,
        "http.nonProxyHosts": "localhost|127.*|[::1]",
        "javax.net.ssl.trustStore": JAVA_TRUST, "javax.net.ssl.trustStoreType": "JKS",
    }  # fmt: skip
    return {
        # Java names the variable on stderr. So it does with JDK_JAVA_OPTIONS, which fewer programs
        # read.
        "JAVA_TOOL_OPTIONS": " ".join(f"-D{name}={value}" for name, value in java.items()),
        "NODE_USE_ENV_PROXY": "1",
        "NODE_OPTIONS": f"--require={NODE_PROXY}",
        "YARN_HTTP_PROXY": PROXY,
        "YARN_HTTPS_PROXY": PROXY,
        "CARGO_NET_GIT_FETCH_WITH_CLI": "true",  # its own git does not know /etc/gitconfig's rules
    }


def files(ca: str | None) -> dict[str, str | bytes]:
    """Return more files for the guest by path. ``ca`` is the proxy's authority as PEM, or None.

    Raises ValueError if it is not PEM; OSError.
    """
    docker = {"httpProxy": PROXY, "httpsProxy": PROXY, "noProxy": NOT_PROXIED}
    return {
        **({} if ca is None else {JAVA_TRUST: java_trust_store(ca)}),
        NODE_PROXY: installation.text("host/vm/files/node-proxy.cjs"),
        # The agent gets a copy, which docker login may write to.
        "/etc/skel/.docker/config.json": json.dumps({"proxies": {"default": docker}}) + "\n",
    }


def git_rules() -> str:
    """Return the part of /etc/gitconfig by which git uses HTTPS where it is asked for SSH."""
    rules = {"": [f"{scheme}://{user}" for scheme in ("ssh", "git+ssh", "ssh+git")
                  for user in ("git@", "")]}  # fmt: skip
    for host in _SSH_HOSTS:
        rules[f"{host}/"] = [f"git@{host}:", f"ssh://git@{host}:22/"]
    for host, other in _SSH_BY_443.items():
        rules[f"{host}/"].append(f"ssh://git@{other}:443/")
    return "".join(
        f'[url "https://{to}"]\n' + "".join(f"\tinsteadOf = {address}\n" for address in addresses)
        for to, addresses in rules.items()
    )


def java_trust_store(ca: str) -> bytes:
    """Return a trust store (JKS) with one authority, given as PEM. Raises ValueError.

    Java has read this format since 1.2, and without a password. One authority is enough: every
    connection ends at the proxy.
    """
    certificate = ssl.PEM_cert_to_DER_cert(ca)
    made = 0  # the time of the entry: the same bytes each time
    entry = struct.pack(">I", 2) + _utf("gitguard-vm") + struct.pack(">Q", made)
    entry += _utf("X.509") + struct.pack(">I", len(certificate)) + certificate
    data = struct.pack(">III", 0xFEEDFEED, 2, 1) + entry
    salted = _CHECKED_WITH.encode("utf-16-be") + b"Mighty Aphrodite" + data
    return data + hashlib.sha1(salted, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    """Return a text as Java's DataOutput writes it."""
    return struct.pack(">H", len(text)) + text.encode()
