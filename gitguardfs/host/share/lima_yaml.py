"""The file of a Lima instance (https://lima-vm.io) that guards a project. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from gitguardfs.base.constants import AGENT, AGENT_HOME, HOLDER, NOT_PROXIED, PROJECT_SHARE
from gitguardfs.base.errors import UserError
from gitguardfs.host.share import yaml
from gitguardfs.host.share.virtiofsd import QUEUE_SIZE
from gitguardfs.host.share.yaml import Value
from gitguardfs.options.guarded_share import check_guard_options
from gitguardfs.options.parsing import quote_o

SETUP = f"{HOLDER}/setup"
HEADER = "# Written by gitguardfs (gitguard lima).\n"
"""The first line, which marks the file as ours."""
LEAST_VERSION = "2.1.3"
"""Earlier ones let any guest user become root by the guest agent's socket (CVE-2026-53657)."""

_NAME = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
NAME_LIMIT = 32
"""Bytes of an instance's name: macOS allows 103 for the path of a socket in its directory."""
LEAST_MEMORY = 512
"""MiB: with less, no cloud image boots."""

_NOTES = f"""\
# The project is mounted below {HOLDER}, which only root enters, and sealed there.
# The user {AGENT} has no sudo and sees the project by gitguardfs alone: .git is out of reach.
# Lima's own user has sudo without a password: it is yours, not the agent's.
# Lima cannot restrict its network: the guest reaches the internet and your local network.
"""


class Distribution(StrEnum):
    """The distribution of the guest."""

    UBUNTU = "ubuntu"
    FEDORA = "fedora"


class Tool(StrEnum):
    """A program that can be installed in the guest besides gitguardfs."""

    CLAUDE = "claude"
    NODE = "node"
    PYTHON = "python"
    DOTNET = "dotnet"


_UBUNTU = "https://cloud-images.ubuntu.com/releases/noble"
_FEDORA = "https://download.fedoraproject.org/pub/fedora/linux/releases/44/Cloud"
IMAGES: Mapping[Distribution, tuple[tuple[str, str, str | None], ...]] = {
    Distribution.UBUNTU: (
        (
            f"{_UBUNTU}/release-20260705/ubuntu-24.04-server-cloudimg-amd64.img",
            "x86_64",
            "ffe6203da54deeb6db5d2a98a83f9ec8e55f149d3f7ba622e1abe5fa966ee3d6",
        ),
        (
            f"{_UBUNTU}/release-20260705/ubuntu-24.04-server-cloudimg-arm64.img",
            "aarch64",
            "7df0201546f75b8bcc1044594c806c35749421ad3c9bc1be2a3ab806cfae39cc",
        ),
        # Dated images are deleted after some months; these stay, but change.
        (f"{_UBUNTU}/release/ubuntu-24.04-server-cloudimg-amd64.img", "x86_64", None),
        (f"{_UBUNTU}/release/ubuntu-24.04-server-cloudimg-arm64.img", "aarch64", None),
    ),
    Distribution.FEDORA: (
        (
            f"{_FEDORA}/x86_64/images/Fedora-Cloud-Base-Generic-44-1.7.x86_64.qcow2",
            "x86_64",
            "28680fe5b371a5a82ebf43a31926e086a168e59949d03969c5093e7071f90b7f",
        ),
        (
            f"{_FEDORA}/aarch64/images/Fedora-Cloud-Base-Generic-44-1.7.aarch64.qcow2",
            "aarch64",
            "55c60a3b80d3616a08705afd0459e75fe9f03c54aba7a46e4002a41a72fa0d5b",
        ),
    ),
}
"""By distribution: location, architecture, SHA-256. Lima takes the first that it can fetch."""


@dataclass(frozen=True)
class LimaSpec:
    """A project and the machine for it. Raises UserError for what Lima cannot carry."""

    project: str
    """The project's absolute path on the host."""
    name: str
    setup: str
    """The host's directory that holds the package and its installer."""
    cpus: int = 4
    memory: int = 8192
    """MiB, like ``disk``."""
    disk: int = 61440
    distribution: Distribution = Distribution.UBUNTU
    transport: str = "9p"
    is_mac: bool = False
    tools: tuple[Tool, ...] = ()
    proxy: str | None = None
    options: tuple[str, ...] = ()
    """Further options of the guard."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > NAME_LIMIT:
            raise UserError(
                f"{self.name!r} cannot be the name of an instance",
                f"letters and digits, with single . _ - between, {NAME_LIMIT} at most",
            )
        if self.cpus < 1:
            raise UserError(f"--cpus {self.cpus} is too little", "at least 1")
        if self.memory < LEAST_MEMORY:
            raise UserError(f"--memory {self.memory}M is too little", f"at least {LEAST_MEMORY}M")
        for path in (self.project, self.setup):
            self._check_location(path)
        if self.proxy is not None:
            _check_proxy(self.proxy)
        check_guard_options(self.options)

    def _check_location(self, path: str) -> None:
        try:
            path.encode()
        except UnicodeEncodeError:
            hint = "rename the directory"
            raise UserError(f"Lima cannot read a path that is not UTF-8: {path}", hint) from None
        if "{{" in path:
            raise UserError(f"Lima takes the {{{{ in {path} for a template", "rename the directory")
        if self.transport == "9p" and "," in path:
            raise UserError(
                f"Lima cannot share {path} over 9p, since there is a comma in it",
                "rename the directory, or --transport virtiofs",
            )

    @property
    def view(self) -> str:
        """Return the path of the guarded view in the guest."""
        return f"{AGENT_HOME}/{directory_name(self.project)}"


def directory_name(project: str) -> str:
    """Return the project's name in a guest: its own, with unusual characters replaced by ``_``."""
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", project.rpartition("/")[2])
    return name if name.strip(".") and not name.startswith("-") else f"project{name}"


def location_of(project: str) -> str:
    """Return the line of an instance's file that names its project."""
    return yaml.render({"location": project}).strip() + "\n"


def instance_name(project: str) -> str:
    """Return a name for the instance of a project."""
    slug = re.sub(r"[^a-z0-9]+", "-", project.rpartition("/")[2].lower()).strip("-")
    return f"agent-{slug}"[:NAME_LIMIT].rstrip("-")


def scripts(spec: LimaSpec, files: Mapping[str, str]) -> list[str]:
    """Return the provisioning scripts in their order; ``files`` has their texts, by name."""
    names = ["lima_guard.sh", *(f"lima_tool_{tool.value}.sh" for tool in _with_needed(spec.tools))]
    return [_with_settings(files[name], spec) for name in names]


def _with_needed(tools: tuple[Tool, ...]) -> list[Tool]:
    """Return each tool once, after those that it needs."""
    needed = {Tool.CLAUDE: (Tool.NODE,)}
    return list(dict.fromkeys(one for tool in tools for one in (*needed.get(tool, ()), tool)))


def _with_settings(script: str, spec: LimaSpec) -> str:
    every = {
        "HOLDER": HOLDER,
        "SETUP": SETUP,
        "SHARE": PROJECT_SHARE,
        "VIEW": spec.view,
        "AGENT": AGENT,
        "OPTIONS": ",".join(map(quote_o, spec.options)),
    }
    used = {name: text for name, text in every.items() if f"${name}" in script}
    lines = [f"{name}={shlex.quote(text)}" for name, text in used.items()]
    return script.replace("#settings\n", "".join(f"{line}\n" for line in lines), 1)


def instance(spec: LimaSpec, files: Mapping[str, str]) -> dict[str, Value]:
    """Return the fields of the instance's file."""
    return {
        "minimumLimaVersion": LEAST_VERSION,
        "vmType": "vz" if _is_vz(spec) else "qemu",
        "images": [_image(*image) for image in IMAGES[spec.distribution]],
        "cpus": spec.cpus,
        "memory": f"{spec.memory}MiB",
        "disk": f"{spec.disk}MiB",
        "mountType": spec.transport,
        "mounts": [
            _mount(spec, spec.project, PROJECT_SHARE, writable=True),
            _mount(spec, spec.setup, SETUP, writable=False),
        ],
        # Lima would otherwise forward each port that the agent opens to the host's 127.0.0.1.
        "portForwards": [{"guestIP": "0.0.0.0", "proto": "any", "ignore": True}],  # noqa: S104
        "ssh": {"loadDotSSHPubKeys": False, "forwardAgent": False, "forwardX11": False},
        "containerd": {"system": False, "user": False},
        "propagateProxyEnv": False,
        **({"env": _environment(spec.proxy)} if spec.proxy else {}),
        "provision": [{"mode": "system", "script": script} for script in scripts(spec, files)],
        "probes": [
            {
                "mode": "readiness",
                "description": "the guarded project",
                "script": _probe(spec.view),
                "hint": "See /var/log/cloud-init-output.log in the guest for what failed.",
            }
        ],
    }


def render(spec: LimaSpec, files: Mapping[str, str]) -> str:
    """Return the instance's file."""
    return HEADER + _NOTES + yaml.render(instance(spec, files))


def _is_vz(spec: LimaSpec) -> bool:
    return spec.is_mac and spec.transport == "virtiofs"


def _image(location: str, arch: str, digest: str | None) -> dict[str, Value]:
    found: dict[str, Value] = {"location": location, "arch": arch}
    return {**found, "digest": f"sha256:{digest}"} if digest else found


def _mount(spec: LimaSpec, location: str, point: str, *, writable: bool) -> dict[str, Value]:
    how: dict[str, Value] = {"location": location, "mountPoint": point, "writable": writable}
    if spec.transport == "9p":
        # securityModel none: plain files on the host. cache none: the guest sees changes at once.
        how["9p"] = {
            "securityModel": "none",
            "protocolVersion": "9p2000.L",
            "msize": "256KiB",
            "cache": "none",
        }
    elif not _is_vz(spec):
        how["virtiofs"] = {"queueSize": QUEUE_SIZE}
    return how


def _environment(proxy: str) -> dict[str, Value]:
    lower = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": NOT_PROXIED}
    return {**lower, **{name.upper(): value for name, value in lower.items()}}


def _probe(view: str) -> str:
    return (
        "#!/bin/bash\n"
        f'timeout 30 bash -c \'until grep -q " {view} fuse.gitguardfs " /proc/mounts;'
        " do sleep 1; done'\n"
    )


def _check_proxy(url: str) -> None:
    hint = "--proxy http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UserError(f"{url!r} is not the URL of a proxy", hint) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
        raise UserError(f"{url!r} is not the URL of a proxy", hint)
    # pam_env(8) and boot scripts parse it as a line of /etc/environment.
    if not re.fullmatch(r"[!-~]+", url) or re.search(r"[\"'#$\\`{}]", url):
        raise UserError(f"{url!r} cannot be written into /etc/environment", hint)
    if parts.username is not None or parts.password is not None:
        raise UserError("the proxy's URL holds credentials, which the agent could read", hint)
