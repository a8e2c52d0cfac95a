"""The proxy with a fault put into its addon: ``faulty_proxy.py FAULT STATE_DIR``.

A fault can name the most connections: "trailers of 8".
"""

import asyncio
import gc
import logging
import sys

from gitguardfs.host.egress import addon, clients, closing, http1, proxy, tunnel
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.blocked import BlockedLog
from gitguardfs.host.egress.upstream_proxy import UpstreamProxy


def broken(*_: object) -> None:
    raise RuntimeError("broken on purpose")


def main() -> int:
    fault, _, most = sys.argv.pop(1).partition(" of ")
    clients.MAX_CONNECTIONS = int(most or clients.MAX_CONNECTIONS)
    if fault == "judge":
        Allowlist.decide = broken  # type: ignore[assignment, method-assign]
    elif fault == "requestheaders":
        whole = addon.AllowlistAddon.requestheaders

        async def now_and_then(self, flow) -> None:
            if "BROKEN" in flow.request.path:
                broken()
            await whole(self, flow)

        addon.AllowlistAddon.requestheaders = now_and_then  # type: ignore[method-assign]
    elif fault == "all-but-server_connect":
        addon.AllowlistAddon.requestheaders = broken  # type: ignore[assignment, method-assign]
        addon.AllowlistAddon.request = broken  # type: ignore[assignment, method-assign]
        closing.close_on_hook_error = lambda *_: None
        del proxy._ApprovedAddressLoop.getaddrinfo
        del proxy._ApprovedAddressLoop.sock_connect
    elif fault == "server_connect":
        addon.AllowlistAddon.server_connect = broken  # type: ignore[assignment, method-assign]
    elif fault == "impatient":
        clients.FIRST_REQUEST_LIMIT, clients.IDLE_LIMIT, clients.STALL_LIMIT = 2.0, 4.0, 2.0
    elif fault == "hasty tunnels":
        tunnel.LIMIT, proxy.CONNECT_LIMIT = 2.0, 0.5
    elif fault == "patient":
        tunnel.LIMIT, proxy.CONNECT_LIMIT = 1000.0, 1000.0
    elif fault == "past the company's proxy":
        proxy._ApprovedAddressLoop.create_connection = (  # type: ignore[method-assign]
            asyncio.SelectorEventLoop.create_connection
        )
    elif fault == "no company's proxy":
        UpstreamProxy.leads_to = lambda *_: False  # type: ignore[assignment, method-assign]
    elif fault == "no automatic collection":
        gc.disable()
    elif fault.startswith("port "):
        proxy.OPTIONS["listen_port"] = int(fault.removeprefix("port "))
    elif fault == "trailers":
        http1.install = lambda: None
    elif fault.startswith("hook "):
        setattr(addon.AllowlistAddon, fault.removeprefix("hook "), broken)
    elif fault.startswith("busy"):

        def busy(*_: object) -> None:
            logging.getLogger().warning("busy from now on")
            while True:
                if fault == "busy in C":  # it lets no other thread run
                    pow(3, 10**10)

        addon.AllowlistAddon.requestheaders = busy  # type: ignore[assignment, method-assign]
    elif fault == "log":
        BlockedLog.add = broken  # type: ignore[assignment, method-assign]
    else:
        raise AssertionError(fault)
    return proxy.main()


if __name__ == "__main__":
    sys.exit(main())
