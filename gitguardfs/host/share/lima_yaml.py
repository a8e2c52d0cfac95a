"""The file of a Lima instance (https://lima-vm.io) that guards a project, from ``lima.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from gitguardfs.base import installation, quote
from gitguardfs.base.constants import AGENT_HOME, NOT_PROXIED
from gitguardfs.base.errors import UserError
from gitguardfs.base.paths import slug
from gitguardfs.options.guarded_share import check_guard_options
from gitguardfs.options.parsing import quote_o

HEADER = "# Written by gitguardfs (gitguard lima).\n"
"""The first line, which marks the file as ours."""
LEAST_MEMORY = 512
"""MiB: with less, no cloud image boots."""
NAME_LIMIT = 32
"""Bytes of an instance's name: macOS allows 103 for the path of a socket in its directory."""
_NAME = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")


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


@dataclass(frozen=True)
class LimaSpec:
    """A project and the machine for it. Raises UserError for a value that Lima cannot carry."""

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
        if not path.isprintable():
            hint = "rename the directory"
            raise UserError(f"Lima cannot read a path that is not UTF-8: {path!r}", hint)
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
    return f"  project: {quote.yaml(project)}\n"


def instance_name(project: str) -> str:
    """Return a name for the instance of a project."""
    return f"agent-{slug(project, NAME_LIMIT)}"[:NAME_LIMIT].rstrip("-")


def render(spec: LimaSpec) -> str:
    """Return the instance's file: ``lima.yaml`` with the values of ``spec``."""
    text = installation.text("host/share/files/lima.yaml")
    is_vz = spec.is_mac and spec.transport == "virtiofs"
    values = {
        "vmType": "vz" if is_vz else "qemu",
        "cpus": str(spec.cpus),
        "memory": f"{spec.memory}MiB",
        "disk": f"{spec.disk}MiB",
        "mountType": spec.transport,
        "project": quote.yaml(spec.project),
        "setup": quote.yaml(spec.setup),
        "name": quote.yaml(directory_name(spec.project)),
        "options": quote.yaml(",".join(map(quote_o, spec.options))),
        "tools": quote.yaml(" ".join(spec.tools)),
    }
    for key, value in values.items():
        before, found, after = re.split(rf"(?m)^( {{0,2}}{key}: ).*$", text)
        text = f"{before}{found}{value}{after}"
    if spec.distribution is Distribution.FEDORA:
        text = text.partition("images:\n")[0] + installation.text(
            "host/share/files/lima_fedora.yaml"
        )
    return HEADER + text + _environment(spec.proxy)


def _environment(proxy: str | None) -> str:
    if proxy is None:
        return ""
    lower = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": NOT_PROXIED}
    both = lower | {name.upper(): value for name, value in lower.items()}
    return "env:\n" + "".join(f"  {name}: {quote.yaml(value)}\n" for name, value in both.items())


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
