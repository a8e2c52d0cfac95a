"""The company's proxy: where it is, who says so, and which hosts are reached through it.

It is the setting of `vm up --upstream-proxy`, in a file of the state directory, or else that of the
environment variable HTTPS_PROXY. Nothing here prints a password, or a value that may hold one.
"""

from __future__ import annotations

import base64
import dataclasses
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.egress import addresses, urls
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.options import config_files

OPTION, VARIABLE = "--upstream-proxy", "HTTPS_PROXY"
_HINTS = {
    OPTION: "write http://HOST:PORT or http://USER@HOST:PORT",
    VARIABLE: f"write http://HOST:PORT, or unset it; {OPTION} URL counts before it",
}


@dataclass(frozen=True)
class UpstreamProxy:
    """A proxy, and its user if it has some. Not every host is reached through it."""

    host: str
    port: int
    source: str
    """OPTION or VARIABLE."""
    user: str = ""
    password: str | None = field(default=None, repr=False)
    exceptions: str = ""
    """Hosts that are reached directly, as NO_PROXY has them."""

    @property
    def url(self) -> str:
        """The proxy's URL, without user and password."""
        return f"http://{urls.authority('', self.host, self.port)}"

    @property
    def setting(self) -> str:
        """The proxy's URL as it is kept: with the user, without the password."""
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        return f"http://{user}{urls.authority('', self.host, self.port)}"

    @property
    def key(self) -> str:
        """The store's key of its password."""
        return self.setting.replace("http://", "upstream-proxy/", 1)

    @property
    def text(self) -> str:
        """The text for the user about the hosts that are reached through it."""
        but = f", but directly to {shown(self.exceptions)} (NO_PROXY)" if self.exceptions else ""
        return f"through {self.url} ({self.source}){but}"

    @property
    def authorization(self) -> str:
        """The value of the field Proxy-Authorization; "" without a user."""
        if not self.user:
            return ""
        both = f"{self.user}:{self.password or ''}".encode()
        return f"Basic {base64.b64encode(both).decode()}"

    def leads_to(self, host: str, port: int) -> bool:
        """Return whether a host is reached through the proxy.

        An address of the loopback or the own link would mean another machine there.
        """
        address = addresses.parsed(host)
        if address is not None and addresses.is_near(address):
            return False
        direct = (name.strip().strip("[]") for name in self.exceptions.split(","))
        if address is not None and address in map(addresses.parsed, direct):
            return False
        where = urls.authority("", host, port)
        bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
        return not bypass(where, {"no": self.exceptions})


def parsed(text: str, source: str) -> UpstreamProxy:
    """Return the proxy that a URL names. Raises UserError, which does not quote the URL."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", text
    if scheme.lower() != "http":
        raise UserError(f"{source}: only a proxy with http:// can be used", _HINTS[source])
    login, at, where = rest.removesuffix("/").rpartition("@")
    user, colon, password = login.partition(":")
    try:
        if not all("!" <= character <= "~" for character in text) or set("/?#") & {*login, *where}:
            raise urls.BadUrlError("a blank, / or another character that must be written as %XX")
        host, port = urls.split_authority(where)
        number = urls.normal_port(port, "http")
        user, password = (unquote(part, errors="strict") for part in (user, password))
        if (at and not user) or ":" in user or not (user + password).isprintable():
            raise urls.BadUrlError("no user before the @, or one that cannot be sent")
    except ValueError as error:
        why = error if isinstance(error, urls.BadUrlError) else "not UTF-8"
        raise UserError(f"{source} is not the URL of a proxy: {why}", _HINTS[source]) from None
    return UpstreamProxy(host, number, source, user, password if colon else None)


def setting(text: str) -> UpstreamProxy:
    """Return the proxy that the option names. Raises UserError, also if a password is in it."""
    proxy = parsed(text, OPTION)
    if proxy.password is not None:
        raise UserError(
            f"{OPTION} with a password in it: other users can read the command line",
            "leave the password out: gitguard vm up asks for it, and keeps it in your keyring",
        )
    return proxy


def chosen(files: StateFiles) -> UpstreamProxy | None:
    """Return the proxy to use: that of the setting, else of the environment; None if there is none.

    Its password is missing if it is in the store. Raises UserError for a URL that cannot be used:
    nothing may go directly then; OSError.
    """
    named = urllib.request.getproxies_environment()
    kept = config_files.read(str(files.upstream_proxy))
    if kept is not None:
        try:
            proxy = setting(kept.decode().removesuffix("\n"))
        except (UserError, UnicodeDecodeError):
            raise UserError(
                f"{files.upstream_proxy} is damaged", f"give {OPTION} URL again, or {OPTION} ''",
                Exit.SYSTEM,
            ) from None  # fmt: skip
    elif "https" in named:
        proxy = parsed(named["https"], VARIABLE)
    else:
        return None
    return dataclasses.replace(proxy, exceptions=named.get("no", ""))


def with_password(proxy: UpstreamProxy | None) -> UpstreamProxy | None:
    """Add the password from the store, if the proxy has a user and no password.

    Raises UserError if the store has none, or cannot be used; OSError.
    """
    if proxy is None or not proxy.user or proxy.password is not None:
        return proxy
    from gitguardfs.host.credentials import store  # it needs platformdirs, of the extra ``vm``

    password = store.read(proxy.key)
    if password is None:
        raise UserError(
            f"no password is kept for {shown(proxy.user)} at {proxy.url}",
            f"gitguard vm up {OPTION} {proxy.setting} asks for it", Exit.SYSTEM,
        )  # fmt: skip
    return dataclasses.replace(proxy, password=password)


def status(directory: Path) -> str:
    """Return the text of `vm status` about the next proxy's way; "" if it goes directly.

    Raises OSError.
    """
    try:
        proxy = chosen(StateFiles(directory))
    except UserError as error:
        return str(error)
    return proxy.text if proxy else ""
