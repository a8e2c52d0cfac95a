"""Make the picture of docs/desktop.md: ``python -m tests.desktop.picture FILE.png``, as root."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.desktop.root import AGENT, HOME, System, overlaid, prepare
from tests.desktop.session import Session, started
from tests.support.isolated import private_mounts
from tests.support.mounting import area, until

OPEN = """
local run = require("menu").run
run({ "thunar", os.getenv("HOME") .. "/projects" })
run({ "xfce4-terminal", "--disable-server", "--title", "Terminal", "--geometry", "74x22",
      "--working-directory", os.getenv("HOME") .. "/projects/hello", "-x", "bash", "--norc", "-c",
      "ls -la; exec bash --norc" })
"""
ARRANGE = """
for _, c in ipairs(client.get()) do
    local left = c.name == "Terminal"
    c:geometry({ x = left and 40 or 560, y = left and 330 or 90, width = 680, height = 440 })
    if left then client.focus = c c:raise() end
end
"""
SHOW_MENU = """
local entries = require("menu").entries()
local shown = require("awful").menu({ items = entries, theme = { width = 220 } })
shown:show({ coords = { x = 0, y = 32 } })
shown:exec(1)
shown.child[1]:exec(#entries[1][2])
"""


def main(path: Path) -> None:
    """Start the desktop, open two windows and the menu, and write what is on the screen."""
    private_mounts()
    with (
        area() as work,
        overlaid(prepare().root, work) as (root, _),
        System.entered(root) as system,
    ):
        project = root / HOME / "projects/hello"
        project.mkdir(parents=True)
        (project / "hello.c").write_text("int main(void) { return 0; }\n")
        (project / "Makefile").write_text("hello: hello.c\n")
        for path in (project.parent, project, *project.iterdir()):
            os.chown(path, AGENT, AGENT)
        with started(system, work) as session:
            session.ask(OPEN)
            until(lambda: session.ask("return tostring(#client.get())") == "2", "two windows")
            session.ask(ARRANGE)
            _settle(session)
            session.ask(SHOW_MENU)
            _settle(session)
            path.write_bytes(session.frame().png())


def _settle(session: Session) -> None:
    """Wait until the screen is the same for two seconds: no event says that a window has drawn."""
    last, since = b"", time.monotonic()
    while time.monotonic() - since < 2:
        if (now := session.dump.read_bytes()) != last:
            last, since = now, time.monotonic()
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
