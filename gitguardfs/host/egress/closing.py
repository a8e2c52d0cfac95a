"""Closes both sides of a connection when mitmproxy or an addon raises an exception for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mitmproxy.addonmanager import AddonManager
from mitmproxy.connection import Client
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import Hook
from mitmproxy.master import Master
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator, Layer
from mitmproxy.proxy.server import ConnectionHandler


def close_on_error(handler: ConnectionHandler, close: Callable[[], None]) -> None:
    """Call ``close`` if mitmproxy raises an exception while it handles this connection.

    mitmproxy alone would log the exception, and leave the client and the server waiting.
    """
    # Only its method handle_event() is called.
    handler.layer = _ClosingLayer(handler.layer, close)  # type: ignore[assignment]


def close_on_hook_error(master: Master, close: Callable[[str], None]) -> None:
    """Call ``close`` with a client's id if an addon's hook raises an exception about that client.

    mitmproxy alone would log the exception, and go on without what the hook has not done. To be
    called before addons are added.
    """
    master.addons = _ClosingAddonManager(master, close)


class _ClosingLayer:
    def __init__(self, layer: Layer, close: Callable[[], None]) -> None:
        self._layer = layer
        self._close = close

    def handle_event(self, event: Event) -> CommandGenerator[None]:
        """Yield mitmproxy's commands for an event."""
        try:
            yield from self._layer.handle_event(event)
        except Exception:
            self._close()
            raise


class _ClosingAddonManager(AddonManager):
    def __init__(self, master: Master, close: Callable[[str], None]) -> None:
        super().__init__(master)  # type: ignore[no-untyped-call]
        self._close_client = close

    async def invoke_addon(self, addon: object, event: Hook) -> None:
        """Call an addon's hook for an event."""
        try:
            await super().invoke_addon(addon, event)
        except AddonHalt:
            raise
        except Exception:
            for client in _clients_of(event):
                self._close_client(client.id)
            raise


def _clients_of(event: Hook) -> Iterator[Client]:
    """Yield the client that an event is about, if it is about one."""
    for subject in event.args():
        for about in (subject, getattr(subject, "context", None)):
            for found in (about, *(getattr(about, n, None) for n in ("client", "client_conn"))):
                if isinstance(found, Client):
                    yield found
