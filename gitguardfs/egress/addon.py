"""The proxy's decisions, as an addon of mitmproxy: nothing goes out but what was approved.

Two places must agree before a byte leaves: ``requestheaders`` approves a request by the
allowlist, and ``server_connect`` opens connections only to what was just approved for that
client. An exception in any of them leaves the request without approval, and so denied.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

from mitmproxy import dns, http, tcp, udp
from mitmproxy.connection import Client
from mitmproxy.proxy import server_hooks
from mitmproxy.proxy.server import ConnectionHandler

from gitguardfs.egress import addresses, blocked, requests, urls
from gitguardfs.egress.allowlist import Allowlist, BlockKind, Decision
from gitguardfs.egress.blocked import BlockedLog
from gitguardfs.egress.clients import MAX_CONNECTIONS, Clients
from gitguardfs.egress.files import StateFiles, read_allowlist
from gitguardfs.egress.reports import allow_command, error_text, query_note
from gitguardfs.egress.requests import Request
from gitguardfs.errors import UserError, shown

log = logging.getLogger("gitguardfs.egress")

DNS_PORTS = (53, 5353)
"""mitmproxy would take what comes through a tunnel to them for DNS."""
_APPROVED = "gitguardfs-approved"


class Approval(NamedTuple):
    """Where the request that a client has under way may be sent."""

    host: str
    port: int
    is_tls: bool
    is_private_allowed: bool
    method: str
    url: str


class ResolvedHost(NamedTuple):
    """The addresses that a host has, each of which was found to be admissible."""

    address: tuple[str, int]
    answers: list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]


RESOLVED: ContextVar[ResolvedHost | None] = ContextVar("resolved", default=None)
"""Of the connection that is being opened; the event loop connects to these, or to nothing."""


class AllowlistAddon:
    """Lets out what the allowlist admits."""

    def __init__(
        self, files: StateFiles, connections: Mapping[tuple[str, int] | str, ConnectionHandler]
    ) -> None:
        self._files = files
        self._connections = connections
        self._log = BlockedLog(files.blocked)
        self._clients = Clients(self._close)
        self._approvals: dict[str, Approval] = {}
        self._tunnels: dict[str, tuple[str, int]] = {}
        self._private: dict[str, set[tuple[str, int]]] = {}
        """Hosts and ports to which a client has a connection by the word ``private-address``."""

    def client_connected(self, client: Client) -> None:
        """Close a connection at once if there are too many that are in use."""
        if not self._clients.add(client.id):
            client.error = "too many connections at a time"
            log.warning("refused a connection: there are %d already", MAX_CONNECTIONS)

    def client_disconnected(self, client: Client) -> None:
        """Forget a client."""
        self._clients.remove(client.id)
        self._approvals.pop(client.id, None)
        self._tunnels.pop(client.id, None)
        self._private.pop(client.id, None)

    def _close(self, client: str) -> None:
        """Close a client's connection, as mitmproxy itself does after its own, longer limit."""
        handler = self._connections.get(client)
        io = handler.transports.get(handler.client) if handler else None
        if io is not None and io.handler is not None:
            io.handler.cancel("idle")
        elif io is not None and io.writer is not None:  # it is not read from yet
            io.writer.close()

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Agree to a tunnel, which ends here: what comes through it is judged, not its target."""
        data = flow.request.data
        try:
            if data.method != b"CONNECT":
                raise urls.BadUrlError("the method is not in capital letters")
            if requests.has_body(data.headers.fields):
                raise urls.BadUrlError("a body with CONNECT")
            host = urls.normal_host(flow.request.host)
            if not data.port or data.port in DNS_PORTS:
                raise urls.BadUrlError("a port that is not for HTTP")
        except urls.BadUrlError as error:
            target = data.authority.decode("latin-1")
            self._block(flow, "CONNECT", target, Decision(str(error), BlockKind.REQUEST))
            return
        data.host = host
        self._tunnels[flow.client_conn.id] = (host, data.port)

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Approve a request, or answer it with 418."""
        client = flow.client_conn.id
        self._approvals.pop(client, None)
        self._clients.set_idle(client)
        try:
            request = self._request(flow)
            decision = self._decide(flow, request)
        except Exception:
            log.exception("a request could not be judged")
            self._block(
                flow, "?", "?", Decision("a fault in the proxy; see its log", BlockKind.FAULT)
            )
            return
        checked, rule = decision.checked, decision.rule
        method = request.method.decode("latin-1")
        if not decision.is_allowed or checked is None or rule is None:
            self._block(flow, method, checked.url if checked else request.url, decision)
            return
        if not rule.is_private_allowed and (checked.host, checked.port) in self._private.get(
            client, ()
        ):  # the line's own connection would have been refused
            reason = f"{checked.host} was reached at a private address by another line"
            self._block(flow, method, checked.url, Decision(reason, BlockKind.ADDRESS))
            return
        log.info("allowed %s %s", method, checked.url)
        self._clients.set_busy(client)
        for name in requests.HOP_BY_HOP_FIELDS:
            flow.request.headers.pop(name, None)
        flow.request.data.host = checked.host
        flow.request.headers["Host"] = checked.authority
        flow.metadata[_APPROVED] = True
        self._approvals[client] = Approval(
            checked.host, checked.port, checked.scheme == "https", rule.is_private_allowed,
            checked.method, checked.url,
        )  # fmt: skip
        flow.request.stream = True  # the last: it is sent as it comes, with no further question

    def _request(self, flow: http.HTTPFlow) -> Request:
        data = flow.request.data
        client = flow.client_conn
        return Request(
            data.method, data.scheme.decode("latin-1"), data.host, data.port, data.path,
            data.headers.fields, data.http_version, bool(client.tls), client.sni,
            self._tunnels.get(client.id), data.authority,
        )  # fmt: skip

    def _decide(self, flow: http.HTTPFlow, request: Request) -> Decision:
        if flow.error is not None:  # mitmproxy refuses it already
            return Decision(flow.error.msg, BlockKind.REQUEST)
        try:
            text = read_allowlist(self._files)
        except UserError as error:
            return Decision(f"every request is denied: {error}", BlockKind.ALLOWLIST)
        return _parsed(text, self._files).decide(request)

    def _block(self, flow: http.HTTPFlow, method: str, url: str, decision: Decision) -> None:
        """Answer with 418 and note it; a long body is not waited for, its connection is closed."""
        kind = decision.kind or BlockKind.FAULT
        method, url = method[: blocked.MAX_URL], url[: blocked.MAX_URL]
        reason = decision.reason[: blocked.MAX_URL]
        log.info("denied %s %s: %s", method, url, reason)
        if flow.killable and requests.has_long_body(flow.request.headers.fields):
            flow.kill()
        elif flow.killable:
            text = explanation(method, url, reason, kind)
            flow.response = http.Response.make(
                418,
                "" if flow.request.method == "HEAD" else text,
                {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"},
            )
            if kind is not BlockKind.RULE:  # what else it has sent may not be what it seems
                flow.response.headers["Connection"] = "close"
        self._record(method, url, reason, kind)

    def _record(self, method: str, url: str, reason: str, kind: BlockKind) -> None:
        try:
            self._log.add(method, url, reason, kind)
        except OSError as error:
            log.error("cannot write %s: %s", self._files.blocked, error.strerror)

    def request(self, flow: http.HTTPFlow) -> None:
        """Kill a request without a decision: an idle connection would take it out."""
        if _APPROVED not in flow.metadata and flow.response is None and flow.killable:
            flow.kill()

    async def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        """Allow a connection for the request that was just approved, and find its addresses."""
        server = data.server
        server.error = "the proxy has approved no request for this connection"
        approval = self._approvals.get(data.client.id)
        if approval is None or server.via is not None or server.transport_protocol != "tcp":
            return
        if (server.address, server.tls) != ((approval.host, approval.port), approval.is_tls):
            return
        try:
            RESOLVED.set(await self._resolve(approval, data.client.id))
        except OSError as error:
            server.error = str(error.strerror or error)
            log.info("no connection for %s: %s", approval.url, server.error)
            return
        server.sni = approval.host
        server.error = None

    async def _resolve(self, approval: Approval, client: str) -> ResolvedHost:
        """Return the addresses of a host that may be used, for a connection of a client's.

        Raises OSError if there is none.
        """
        host, port = approval.host, approval.port
        try:
            answers = await asyncio.to_thread(
                socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
        except OSError as error:
            raise OSError(f"cannot find the address of {host}: {error.strerror}") from None
        usable = []
        refusals = []
        kind = BlockKind.REQUEST
        for answer in answers:
            address = addresses.parsed(str(answer[4][0]))
            why = "no address" if address is None else addresses.why_blocked(
                address, host, approval.is_private_allowed
            )  # fmt: skip
            if why:
                refusals.append(f"{host} has the address {answer[4][0]}: {why}")
                if address is not None and not addresses.why_blocked(address, host, True):
                    kind = BlockKind.ADDRESS
            else:
                usable.append((*answer[:4], answer[4]))
                if address is not None and addresses.why_blocked(address, host, False):
                    self._private.setdefault(client, set()).add((host, port))
        if not usable:
            reason = refusals[0] if refusals else f"{host} has no address"
            self._record(approval.method, approval.url, reason, kind)
            raise OSError(reason)
        return ResolvedHost((host, port), usable)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Pass a response on as it comes; end a connection that would become another protocol."""
        response = flow.response
        if response is None or _APPROVED not in flow.metadata:
            return
        if response.status_code < 200:
            log.info("%s answers %d: closed", flow.request.host, response.status_code)
            flow.kill()
        else:
            response.stream = True

    def response(self, flow: http.HTTPFlow) -> None:
        """Note that an answer is complete."""
        if _APPROVED in flow.metadata:
            self._clients.set_idle(flow.client_conn.id)

    def error(self, flow: http.HTTPFlow) -> None:
        """Note that there will be no answer but the proxy's own."""
        self.response(flow)

    def tcp_start(self, flow: tcp.TCPFlow) -> None:
        """Refuse what is no HTTP."""
        flow.kill()

    def udp_start(self, flow: udp.UDPFlow) -> None:
        """Refuse what is no HTTP."""
        flow.kill()

    def dns_request(self, flow: dns.DNSFlow) -> None:
        """Refuse what is no HTTP."""
        flow.kill()


@lru_cache(maxsize=1)
def _parsed(text: str, files: StateFiles) -> Allowlist:
    """Parse an allowlist and log its bad lines, once for each version of it."""
    found = Allowlist.parse(text)
    for error in found.errors:
        log.warning("%s", error_text(files.allowlist, error))
    return found


def explanation(method: str, url: str, reason: str, kind: BlockKind) -> str:
    """Return the body of a refusal: what an agent must ask its human for."""
    about = (
        "The sandbox's proxy did not let this request out, and nothing of it has left the host:\n\n"
        f"  {shown(method)} {shown(url)}\n\nReason: {reason}.\n"
    )
    line = blocked.line_for(method, url)[0] if kind is BlockKind.RULE else ""
    if line:
        note = query_note(line)
        return (
            f"{about}\nThe allowlist is on the host and cannot be changed from in here. If the"
            " request is needed, stop and ask your human to run this on the host:\n\n"
            f"  {allow_command(line)}\n" + (f"\n{note}\n" if note else "")
        )
    if kind is BlockKind.ALLOWLIST:
        return f"{about}\nTell your human: the allowlist on the host has to be mended.\n"
    return f"{about}\nNo line of the allowlist can admit a request like this one.\n"
