"""An addon of mitmproxy that sends on only the requests that the allowlist allows.

Two hooks must agree before a byte leaves the host. ``requestheaders`` approves a request by the
allowlist. ``server_connect`` opens a connection only for the request that was just approved for
that client. A hook that raises an exception approves nothing, so the request is blocked.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import lru_cache, partial

from mitmproxy import http, tcp
from mitmproxy.connection import Client
from mitmproxy.proxy import server_hooks
from mitmproxy.proxy.server import ConnectionHandler

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress import blocked, exchange, replies, reports, requests, urls, websocket
from gitguardfs.host.egress.allowlist import Allowlist, BlockKind, Decision
from gitguardfs.host.egress.blocked import BlockedLog
from gitguardfs.host.egress.clients import MAX_KEPT, MAX_WHOLE
from gitguardfs.host.egress.connections import Approval, Connection, Connections
from gitguardfs.host.egress.exchange import Head, MisplacedError
from gitguardfs.host.egress.files import StateFiles, read_allowlist
from gitguardfs.host.egress.request_secrets import RequestSecrets
from gitguardfs.host.egress.requests import ProxyRequest
from gitguardfs.host.egress.resolved import (
    RESOLVED,
    BlockedAddressError,
    ResolvedHost,
    answers_of,
    usable_answers,
)
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy
from gitguardfs.host.egress.usage import UsageLog

log = logging.getLogger("gitguardfs.host.egress")

DNS_PORTS = (53, 5353)
"""Ports to which mitmproxy would read a tunnel as DNS."""
_APPROVED, _AWAITED, _SECRETS = (f"gitguardfs-{name}" for name in ("ok", "wait", "secrets"))
_QUESTION = ("GET", urls.BLOCKED_URL)
"""The request that the proxy answers itself."""


class AllowlistAddon:
    """Answers or sends on each request, as the allowlist says."""

    def __init__(
        self,
        files: StateFiles,
        handlers: Mapping[tuple[str, int] | str, ConnectionHandler],
        upstream: UpstreamProxy | None = None,
    ) -> None:
        self._files = files
        self._upstream = upstream
        self._log = BlockedLog(files.blocked)
        self._usage = UsageLog(files.usage)
        self._connections = Connections(handlers, self._record)
        self._clients = self._connections.clients
        self.close = self._connections.close

    async def client_connected(self, client: Client) -> None:
        """Serve a connection, or refuse it."""
        await self._connections.open(client)

    def client_disconnected(self, client: Client) -> None:
        """Forget a connection."""
        self._connections.forget(client)

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Accept a CONNECT. The tunnel ends here; each request in it is decided on by itself."""
        data = flow.request.data
        try:
            if data.method != b"CONNECT":
                raise urls.BadUrlError("the method is not in capital letters")
            if requests.has_body(data.headers.fields):
                raise urls.BadUrlError("a body with CONNECT")
            host = urls.normal_host(flow.request.host)
            if not data.port or data.port in DNS_PORTS:
                raise urls.BadUrlError("port 53 or 5353, or no port")
            if host == urls.OWN_HOST:
                raise urls.BadUrlError(f"the proxy answers only {urls.BLOCKED_URL}, by http://")
        except urls.BadUrlError as error:
            target = data.authority.decode("latin-1")
            self._block(flow, "CONNECT", target, Decision(str(error), BlockKind.REQUEST))
            return
        data.host = host
        self._connections[flow.client_conn.id].tunnel = (host, data.port)

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Begin with a request; decide on it, unless its body is to be read first."""
        flow.client_conn.alpn_offers = ()  # whatever it has offered, it speaks HTTP/1
        connection = self._connections[flow.client_conn.id]
        connection.approval = None
        connection.reader.permit(MAX_WHOLE)
        await self._approve(flow, None)

    async def request(self, flow: http.HTTPFlow) -> None:
        """Decide on a request whose body was read first; kill one that nothing has decided on."""
        if flow.metadata.pop(_AWAITED, False):
            await self._approve(flow, flow.request.raw_content or b"")
        if _APPROVED not in flow.metadata and flow.response is None and flow.killable:
            flow.kill()

    async def _approve(self, flow: http.HTTPFlow, body: bytes | None) -> None:
        """Approve a request, or answer it with status 418 or 426.

        ``body`` is None before it was read. A request whose body must be searched whole is not
        approved then: its client could hold the body back until the line or the value is gone.
        """
        client = flow.client_conn.id
        connection = self._connections.get(client)
        if connection is None:  # it has hung up meanwhile
            return
        self._clients.set_idle(client)
        try:
            fields = flow.request.data.headers.fields
            flow.request.data.headers.fields = requests.without_h2c(fields)
            request = _as_sent(flow, connection.tunnel)
            decision = self._decide(flow, request)
            if decision.checked and (decision.checked.method, decision.checked.url) == _QUESTION:
                recent = reports.recent_text(self._files.directory, self._log.recent)
                flow.response = replies.text(200, recent)
                return
        except Exception:
            log.exception("no decision on a request, because of a fault")
            fault = Decision("a fault in the proxy; mitmdump.log has it", BlockKind.FAULT)
            self._block(flow, "?", "?", fault)
            return
        checked, rule = decision.checked, decision.rule
        method = checked.method if checked else request.method.decode("latin-1")
        if not decision.is_allowed or checked is None or rule is None:
            self._block(flow, method, checked.url if checked else request.url, decision)
            return
        where = (checked.host, checked.port)
        if not rule.is_private_allowed and where in connection.private:
            # this line alone would not have allowed the open connection
            reason = f"{checked.host} was connected to at a private address, by another line"
            self._block(flow, method, checked.url, Decision(reason, BlockKind.ADDRESS))
            return
        data = flow.request.data
        for name in requests.HOP_BY_HOP_FIELDS:
            flow.request.headers.pop(name, None)
        data.host = checked.host
        flow.request.headers["Host"] = checked.authority
        try:
            secrets = RequestSecrets(
                self._files.directory, checked, Head(data.path, data.headers.fields)
            )
            self._clients.set_busy(client)  # its body may be slow, and the keyring may ask its user
            if body is None and secrets.is_body_awaited:
                flow.metadata[_AWAITED] = True
                return
            # Nothing from here on may log what is in the request.
            data.path, data.headers.fields = await secrets.with_values(body or b"")
            log.info("allowed %s %s", method, checked.url)
        except MisplacedError as error:
            self._clients.set_idle(client)
            self._block(flow, method, checked.url, Decision(str(error), BlockKind.PLACEHOLDER))
            return
        if client not in self._connections:  # it has hung up meanwhile
            return
        self._usage.note(rule.line)
        flow.metadata[_APPROVED], flow.metadata[_SECRETS] = checked.method, secrets
        connection.approval = Approval(
            checked.host, checked.port, checked.scheme == "https", rule.is_private_allowed,
            checked.method, exchange.url_without_secrets(checked.url),
        )  # fmt: skip
        if body is not None:
            return
        connection.reader.permit(MAX_KEPT)
        # last: mitmproxy sends the body as it arrives, and asks no more
        flow.request.stream = partial(self._pass_on, flow, connection)

    def _decide(self, flow: http.HTTPFlow, request: ProxyRequest) -> Decision:
        if flow.error is not None:  # mitmproxy itself has found it invalid
            return Decision(requests.why_invalid(request), BlockKind.REQUEST)
        try:
            text = read_allowlist(self._files)
        except UserError as error:
            return Decision(f"every request is blocked: {error}", BlockKind.ALLOWLIST)
        return _parsed(text, self._files).decide(request)

    def _block(self, flow: http.HTTPFlow, method: str, url: str, decision: Decision) -> None:
        """Answer with a refusal and log it; close the connection if there is a long body."""
        kind = decision.kind or BlockKind.FAULT
        url = exchange.url_without_secrets(url)[: blocked.MAX_URL]
        method, reason = (
            exchange.without_secrets(text)[: blocked.MAX_URL] for text in (method, decision.reason)
        )
        log.info("blocked %s %s: %s", method, url, reason)
        if flow.killable and requests.has_long_body(flow.request.headers.fields):
            flow.kill()
        elif flow.killable:
            is_head = flow.request.method == "HEAD"
            flow.response = replies.refusal(method, url, reason, kind, is_head=is_head)
        self._record(method, url, reason, kind)

    def _record(self, method: str, url: str, reason: str, kind: BlockKind) -> None:
        try:
            self._log.add(method, url, reason, kind)
        except OSError as error:
            log.error("cannot write %s: %s", self._files.blocked, error.strerror)

    def _pass_on(
        self, flow: http.HTTPFlow, connection: Connection, part: bytes
    ) -> bytes | list[bytes]:
        """Return a part of a request's body, for the server, to which a connection is now open.

        After the last part, which is empty, the client's further bytes wait for the response. If
        a part completes a secret's value, the connection closes: the server gets no whole request.
        """
        connection.reader.permit(MAX_KEPT)
        why = flow.metadata[_SECRETS].why_refused(part)
        if not why:
            return part
        approval, connection.approval = connection.approval, None
        assert approval is not None
        self._block(flow, approval.method, approval.url, Decision(why, BlockKind.PLACEHOLDER))
        self.close(flow.client_conn.id)
        return []

    async def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        """Permit a connection for the request that was just approved; resolve its host."""
        server = data.server
        server.error = "the proxy has approved no request for this connection"
        connection = self._connections.get(data.client.id)
        approval = connection.approval if connection else None
        if (
            connection is None
            or approval is None
            or server.via is not None
            or server.transport_protocol != "tcp"
        ):
            return
        if (server.address, server.tls) != ((approval.host, approval.port), approval.is_tls):
            return
        try:
            RESOLVED.set(await self._resolve(approval, connection))
        except OSError as error:
            server.error = str(error.strerror or error)
            log.info("no connection for %s: %s", approval.url, server.error)
            return
        server.sni = approval.host
        server.alpn_offers = (b"http/1.1",)  # else those of the client, any text
        server.error = None

    async def _resolve(self, approval: Approval, connection: Connection) -> ResolvedHost:
        """Return the addresses of the approved host to which the proxy may connect.

        Raises OSError if there is none.
        """
        host, port = approval.host, approval.port
        try:
            usable, is_private = await usable_answers(
                host, port, is_private_allowed=approval.is_private_allowed
            )
        except BlockedAddressError as error:
            self._record(approval.method, approval.url, str(error), error.kind)
            raise
        if is_private:
            connection.private.add((host, port))
        proxy = self._upstream
        if proxy is None or not proxy.leads_to(host, port):
            return ResolvedHost((host, port), usable)
        found = await answers_of("the company proxy", proxy.host, proxy.port)
        return ResolvedHost((host, port), usable, (proxy, found))

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Stream a response; kill one that switches to another protocol than a WebSocket's."""
        response = flow.response
        if response is None or _APPROVED not in flow.metadata:
            return
        secrets: RequestSecrets = flow.metadata[_SECRETS]
        if secrets.why_ended():
            flow.kill()
            return
        response.data.headers.fields = secrets.masks.masked_fields(response.data.headers.fields)
        response.data.reason = secrets.masks.masked(response.data.reason)
        if response.status_code >= 200:  # of the others, http1 drops all but 101
            response.stream = True
        elif flow.metadata[_APPROVED] == requests.WEBSOCKET and websocket.is_accepted(flow):
            log.info("a WebSocket with %s is open: its frames are not seen", flow.request.host)
            websocket.pass_frames(flow)
        else:
            log.info("%s answers %d: closed", flow.request.host, response.status_code)
            flow.kill()

    def response(self, flow: http.HTTPFlow) -> None:
        """Note that the response is complete: the connection is idle, unless it is a WebSocket."""
        connection = self._connections.get(flow.client_conn.id)
        if _APPROVED not in flow.metadata or connection is None:
            return
        if websocket.is_passed(flow):
            connection.reader.permit(sys.maxsize)  # mitmproxy waits for its server
        else:
            self._clients.set_idle(flow.client_conn.id)

    def error(self, flow: http.HTTPFlow) -> None:
        """Note that the request has failed: the connection is idle."""
        self.response(flow)

    def tcp_start(self, flow: tcp.TCPFlow) -> None:
        """Kill a connection that is not HTTP."""
        flow.kill()

    udp_start = dns_request = tcp_start


def _as_sent(flow: http.HTTPFlow, tunnel: tuple[str, int] | None) -> ProxyRequest:
    """Return a request as its client sent it, after a CONNECT for ``tunnel``."""
    data, client = flow.request.data, flow.client_conn
    return ProxyRequest(
        data.method, data.scheme.decode("latin-1"), data.host, data.port, data.path,
        data.headers.fields, data.http_version, bool(client.tls), client.sni, tunnel,
        data.authority,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _parsed(text: str, files: StateFiles) -> Allowlist:
    """Parse an allowlist and log its bad lines, once for each version of it."""
    found = Allowlist.parse(text)
    for error in found.errors:
        log.warning("%s", reports.ignored_text(str(files.allowlist), *error))
    return found
