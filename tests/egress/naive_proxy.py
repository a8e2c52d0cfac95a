"""A proxy as one would write it first: mitmproxy with an fnmatch of the URL that it shows.

It shows that the attempts of bypasses.py get out where nothing stops them.
Takes the arguments of gitguardfs.host.egress.proxy.
"""

from __future__ import annotations

import asyncio
import sys
from fnmatch import fnmatch
from pathlib import Path

from mitmproxy import http
from mitmproxy.options import Options
from mitmproxy.tools.dump import DumpMaster

from gitguardfs.host.egress import proxy
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.egress.start import LISTENING


class Naive:
    def __init__(self, files: StateFiles, master: DumpMaster) -> None:
        self._files = files
        self._master = master

    def running(self) -> None:
        ((host, port, *_),) = self._master.addons.get("proxyserver").listen_addrs()
        print(f"{LISTENING}{host}:{port}", flush=True)

    def request(self, flow: http.HTTPFlow) -> None:
        for line in self._files.allowlist.read_text().splitlines():
            method, pattern = line.split()[:2]
            if flow.request.method == method and fnmatch(flow.request.pretty_url, pattern):
                return
        flow.response = http.Response.make(418)


async def serve(directory: Path) -> None:
    files = StateFiles(directory)
    proxy.ca_certificate(directory)
    options = {"listen_host": proxy.HOST, "listen_port": 0, "confdir": str(files.ca_directory)}
    master = DumpMaster(Options(**options), with_termlog=False, with_dumper=False)
    master.addons.add(Naive(files, master))
    master.options.update(**proxy.upstream_trust(files))
    await master.run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
