"""The proxy with a fault put into its addon: ``faulty_proxy.py FAULT STATE_DIR [--port N]``."""

from __future__ import annotations

import sys

from gitguardfs.egress import addon, clients, proxy
from gitguardfs.egress.allowlist import Allowlist


def broken(*_: object) -> None:
    raise RuntimeError("broken on purpose")


def main() -> int:
    fault = sys.argv.pop(1)
    if fault == "judge":
        Allowlist.judge = broken  # type: ignore[assignment, method-assign]
    elif fault == "requestheaders":
        whole = addon.Gate.requestheaders

        def now_and_then(self, flow) -> None:
            if "BROKEN" in flow.request.path:
                broken()
            whole(self, flow)

        addon.Gate.requestheaders = now_and_then  # type: ignore[method-assign]
    elif fault == "all-but-server_connect":
        addon.Gate.requestheaders = broken  # type: ignore[assignment, method-assign]
        addon.Gate.request = broken  # type: ignore[assignment, method-assign]
        del proxy._Loop.getaddrinfo
        del proxy._Loop.sock_connect
    elif fault == "server_connect":
        addon.Gate.server_connect = broken  # type: ignore[assignment, method-assign]
    elif fault == "impatient":
        clients.FIRST_REQUEST_LIMIT, clients.IDLE_LIMIT = 2.0, 4.0
    elif fault == "log":
        addon.BlockedLog.add = broken  # type: ignore[assignment, method-assign]
    else:
        raise AssertionError(fault)
    return proxy.main()


if __name__ == "__main__":
    sys.exit(main())
