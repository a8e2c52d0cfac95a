"""The clients' connections: which of them the proxy serves, and what it may send on for each."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mitmproxy.connection import Client
from mitmproxy.proxy.server import ConnectionHandler

from gitguardfs.host.egress import exchange, replies, requests, urls
from gitguardfs.host.egress.allowlist import BlockKind
from gitguardfs.host.egress.clients import (
    MAX_CONNECTIONS,
    TOO_MANY,
    Clients,
    LimitedReader,
    limit_client,
)
from gitguardfs.host.egress.closing import close_on_error

log = logging.getLogger("gitguardfs.host.egress")

COLLECT_AFTER = 32
"""Connections that ended, after which memory is collected. Each may have left some MiB."""
Record = Callable[[str, str, str, BlockKind], None]
"""Logs a blocked request: its method, its URL, the reason, and the reason's kind."""


class Approval(NamedTuple):
    """The target to which the current request of a client may be sent."""

    host: str
    port: int
    is_tls: bool
    is_private_allowed: bool
    method: str
    url: str


@dataclass
class Connection:
    """A client's connection."""

    reader: LimitedReader
    tunnel: tuple[str, int] | None = None
    """Host and port of its CONNECT."""
    approval: Approval | None = None
    private: set[tuple[str, int]] = field(default_factory=set)
    """Hosts and ports to which it has a connection by a line with ``private-address``."""


class Connections(dict[str, Connection]):
    """The connections that are served, by the client's id."""

    def __init__(
        self, handlers: Mapping[tuple[str, int] | str, ConnectionHandler], record: Record
    ) -> None:
        super().__init__()
        self._handlers = handlers
        self._record = record
        self.clients = Clients(self.close)
        self._uncollected = 0

    async def open(self, client: Client) -> None:
        """Serve a connection; if there are too many, let it wait, or refuse it with status 503."""
        handler = self._handlers[client.id]
        io = handler.transports[client]
        assert isinstance(io.reader, asyncio.StreamReader)
        assert isinstance(io.writer, asyncio.StreamWriter)
        limit_client(io.writer.get_extra_info("socket"))
        if not await self.clients.add(client.id):
            log.warning("refused a connection: there are %d already", MAX_CONNECTIONS)
            client.error = TOO_MANY
            method, url = await replies.first_words(io.reader)
            self._record(method, exchange.url_without_secrets(url), TOO_MANY, BlockKind.BUSY)
            io.writer.write(replies.busy(TOO_MANY))
            return
        reader = LimitedReader(io.reader)
        self[client.id] = Connection(reader)
        io.reader = reader  # type: ignore[assignment]  # only read() is called
        close_on_error(handler, partial(self.close, client.id))

    def forget(self, client: Client) -> None:
        """Forget a client. mitmproxy's own objects of it are in cycles, until a collection."""
        self.clients.remove(client.id)
        connection = self.pop(client.id, None)
        if b"h2" in client.alpn_offers and b"http/1.1" not in client.alpn_offers:
            tunnel = connection.tunnel if connection else None
            where = urls.authority("", *(tunnel or ("?", 443)))
            self._record("CONNECT", where, requests.ONLY_HTTP_2, BlockKind.REQUEST)
        self._uncollected += 1
        if self._uncollected >= COLLECT_AFTER:
            self._uncollected = 0
            gc.collect()

    def close(self, client: str) -> None:
        """Close a client's connection, and those to servers that it uses.

        mitmproxy's own time limit, which is longer, closes connections in the same way.
        """
        self.clients.remove(client)
        handler = self._handlers.get(client)
        io = handler.transports.get(handler.client) if handler else None
        if io is not None and io.handler is not None:
            io.handler.cancel("closed by the addon")
        elif io is not None and io.writer is not None:  # mitmproxy does not read from it yet
            io.writer.close()
