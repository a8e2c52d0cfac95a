"""Teaches mitmproxy to pass on a WebSocket without a look at its frames, and to stop a body.

mitmproxy alone reads and keeps the frames of a WebSocket, or passes on any protocol that a server
chooses.
"""

from __future__ import annotations

import base64
import hashlib

from mitmproxy.http import HTTPFlow
from mitmproxy.proxy import events, layers
from mitmproxy.proxy.events import Event
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import ResponseEndOfMessage

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PASSED = "gitguardfs-websocket"


def is_accepted(flow: HTTPFlow) -> bool:
    """Return whether a response of status 101 answers the key of the request, as in RFC 6455.

    So its server has read the request as one for a WebSocket.
    """
    assert flow.response is not None
    key = flow.request.headers["Sec-WebSocket-Key"].encode("utf-8", "surrogateescape")
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    answers = flow.response.headers.get_all("Sec-WebSocket-Accept")
    return answers == [base64.b64encode(digest).decode()]


def pass_frames(flow: HTTPFlow) -> None:
    """Let everything after this flow's response pass, both ways, until one side closes."""
    flow.metadata[_PASSED] = True


def is_passed(flow: HTTPFlow) -> bool:
    """Return whether ``pass_frames`` was called for a flow."""
    return _PASSED in flow.metadata


class _Stream(http.HttpStream):
    """A request, its response, and the frames after it."""

    def state_stream_request_body(self, event: Event) -> CommandGenerator[None]:
        """Send a part of the body on, or its end; nothing of it once an addon has killed the flow.

        mitmproxy alone looks for that when it has sent the end.
        """
        if not (yield from self.check_killed(False)):
            yield from super().state_stream_request_body(event)

    def flow_done(self) -> CommandGenerator[None]:
        """Go on as mitmproxy does, but with the bytes of a WebSocket unseen."""
        if not is_passed(self.flow):
            yield from super().flow_done()
            return
        self.child_layer = layers.TCPLayer(self.context, ignore=True)
        self._handle_event = self.passthrough
        yield from self.child_layer.handle_event(events.Start())
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)


def install() -> None:
    """Make mitmproxy use the class of this module, for all connections of this process."""
    http.HttpStream = _Stream  # type: ignore[misc]
