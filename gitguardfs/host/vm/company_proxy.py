"""Remembers `vm up --upstream-proxy`, and the password of the proxy's user."""

from __future__ import annotations

import os
import sys
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

from gitguardfs.base.errors import UserError, shown, warn
from gitguardfs.host.credentials import store
from gitguardfs.host.egress import upstream_proxy, urls
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy
from gitguardfs.host.vm import keyboard
from gitguardfs.host.vm.state import State
from gitguardfs.options import config_files


def prepare(state: State, given: str | None) -> None:
    """Remember the proxy that was given, ask for its password, and let downloads go through it.

    None stands for the one that is remembered. "" forgets that, with its password and that of the
    environment's proxy. Raises UserError if no proxy can be used that is set, here or in the
    environment; OSError.
    """
    files = state.files
    if given is not None:
        _remember(files, upstream_proxy.setting(given) if given else None)
    proxy = upstream_proxy.chosen(files)
    if proxy is not None and proxy.user and proxy.password is None:
        if given == "":
            _forget_password(proxy)
        if os.isatty(0) and store.read(proxy.key) is None:
            _ask_password(proxy)
    _use_for_downloads(upstream_proxy.with_password(proxy))


def _remember(files: StateFiles, new: UpstreamProxy | None) -> None:
    """Replace the setting, and forget the password that only the old one needs."""
    if new is not None and new.user:
        _ask_password(new)
    path = str(files.upstream_proxy)
    old = None
    if config_files.read(path) is not None:
        with suppress(UserError):  # damaged: it names no password
            old = upstream_proxy.chosen(files)
    config_files.put(path, None if new is None else f"{new.setting}\n")
    if old is not None and old.user and (new is None or new.key != old.key):
        _forget_password(old)


def _forget_password(proxy: UpstreamProxy) -> None:
    """Delete a password; warn if it stays."""
    try:
        store.delete(proxy.key)
    except (UserError, OSError) as error:
        where = store.name_in_keyring(proxy.key)
        warn(f"the password of {proxy.setting} (in a keyring: {where}) was not deleted: {error}")


def _ask_password(proxy: UpstreamProxy) -> None:
    """Ask at the terminal, or read the first line of another standard input, and keep it."""
    if os.isatty(0):
        password = keyboard.hidden_line(f"Password of {shown(proxy.user)} at {proxy.url}: ")
    else:
        password = _first_line()
    if not password or not password.isprintable():
        raise UserError("that is no password: it is empty, or has control characters")
    place = store.write(proxy.key, password)
    print(f"the password is kept in {shown(place)}", file=sys.stderr)


def _first_line() -> str:
    """Return the first line of standard input, and leave the rest to the command for the guest."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode(errors="surrogateescape")


class _CompanyProxy(urllib.request.BaseHandler):
    """Sends the requests of urllib through a proxy.

    urllib's own handler gives the password to each server to which a request is redirected.
    """

    handler_order = 100
    """Before the handlers that connect."""

    def __init__(self, proxy: UpstreamProxy) -> None:
        self._proxy = proxy

    def http_open(self, request: urllib.request.Request) -> None:
        """Change the request if it goes through the proxy; others connect."""
        target = urlsplit(request.full_url)
        port = target.port or urls.DEFAULT_PORTS[target.scheme]
        if self._proxy.leads_to(target.hostname or "", port):
            request.set_proxy(urls.authority("", self._proxy.host, self._proxy.port), "http")
            if self._proxy.authorization:
                request.add_unredirected_header("Proxy-Authorization", self._proxy.authorization)

    https_open = http_open


def _use_for_downloads(proxy: UpstreamProxy | None) -> None:
    """Let urllib use the proxy, in this process, and no other."""
    handlers = [] if proxy is None else [_CompanyProxy(proxy)]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    urllib.request.install_opener(opener)
