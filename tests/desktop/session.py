"""A session of the desktop: an X server, a message bus, and Awesome, asked by awesome-client."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.desktop.root import AGENT, System
from tests.support import raw_calls
from tests.support.mounting import until

RUNTIME = Path("run/user", str(AGENT))
STAND_INS = Path("opt/stand-ins")
"""First on the session's PATH."""

AS_JSON = r"""
local function quoted(text)
    return '"' .. text:gsub('[%c"\\]', function(c) return ('\\u%04x'):format(c:byte()) end) .. '"'
end
local function walk(entries)
    local out = {}
    for _, entry in ipairs(entries) do
        local below = type(entry[2]) == "table" and walk(entry[2]) or "null"
        table.insert(out, ("[%s,%s]"):format(quoted(entry[1]), below))
    end
    return "[" .. table.concat(out, ",") .. "]"
end
return walk(require("menu").entries())
"""

CHOOSE = """
local entries = require("menu").entries()
for name in ("%s"):gmatch("[^/]+") do
    local found
    for _, entry in ipairs(entries) do
        if entry[1] == name then found = entry[2] end
    end
    assert(found, "no entry " .. name)
    entries = found
end
entries()
"""


@dataclass
class Session:
    """Awesome, run by the agent in the root file system."""

    system: System
    awesome: subprocess.Popen[bytes]
    log: Path
    environment: dict[str, str]

    def ask(self, code: str) -> str:
        """Run Lua in Awesome and return the text that it returns. Raises AssertionError."""
        done = subprocess.run(
            self.system.as_user(["awesome-client", code], **self.environment),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        said = done.stdout.strip()
        assert done.returncode == 0 and not said.startswith('string "Error'), said + done.stderr
        return said.removeprefix("string ").removeprefix('"').removesuffix('"')

    def menu(self) -> dict[str, object]:
        """Return the entries of the menu: each name with what is below it, None for a command."""
        return _named(json.loads(self.ask(AS_JSON)))

    def applications(self) -> dict[str, str]:
        """Return the names of the applications, each with its group."""
        groups = self.menu()["Applications"]
        assert isinstance(groups, dict)
        return {name: group for group, entries in groups.items() for name in entries}

    def choose(self, *path: str) -> None:
        """Choose an entry, as a click does."""
        self.ask(CHOOSE % "/".join(path))

    def notifications(self) -> list[str]:
        """Return the texts of the notifications that are shown."""
        shown = self.ask("""
            local texts = {}
            for _, s in pairs(require("naughty").notifications) do
                for _, list in pairs(s) do
                    for _, n in ipairs(list) do table.insert(texts, n.textbox.text) end
                end
            end
            return table.concat(texts, "\\1")""")
        return [text for text in shown.split("\1") if text]


def _named(entries: list[list[object]]) -> dict[str, object]:
    names = [name for name, _ in entries]
    assert len(names) == len(set(map(str, names)))
    return {str(name): _named(below) if isinstance(below, list) else None
            for name, below in entries}  # fmt: skip


@contextmanager
def started(system: System, work: Path) -> Iterator[Session]:
    """Start the session, and end it with the context."""
    with ExitStack() as stack:
        number = _start_x(stack, work)
        sockets = system.root / "tmp/.X11-unix"
        sockets.mkdir(mode=0o1777)
        raw_calls.mount("/tmp/.X11-unix", sockets, flags=raw_calls.MS_BIND)
        stack.callback(raw_calls.umount, sockets, raw_calls.MNT_DETACH)
        runtime = system.root / RUNTIME
        runtime.mkdir(parents=True)
        os.chown(runtime, AGENT, AGENT)
        runtime.chmod(0o700)
        environment = {
            "PATH": f"/{STAND_INS}:/usr/local/bin:/usr/bin:/bin",
            "DISPLAY": f":{number}",
            "XDG_RUNTIME_DIR": f"/{RUNTIME}",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path=/{RUNTIME}/bus",
        }
        bus = ["dbus-daemon", "--session", "--nofork", f"--address=unix:path=/{RUNTIME}/bus"]
        _start(stack, system.as_user(bus, **environment), work / "bus.log")
        until((runtime / "bus").exists, "the message bus")
        log = work / "awesome.log"
        awesome = _start(stack, system.as_user(["awesome"], **environment), log)
        session = Session(system, awesome, log, environment)
        until(lambda: _answers(session), "Awesome's answer", limit=120.0)
        yield session


def _answers(session: Session) -> bool:
    assert session.awesome.poll() is None, session.log.read_text()
    try:
        return session.ask('return "here"') == "here"
    except AssertionError:
        return False


def _start(
    stack: ExitStack, command: list[str], log: Path, pass_fds: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, pass_fds=pass_fds
        )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start_x(stack: ExitStack, work: Path) -> str:
    """Start an X server on a display that is free, and return its number."""
    read, write = os.pipe()
    words = ["-screen", "0", "1280x800x24", "-ac", "-nolisten", "tcp"]
    _start(stack, ["Xvfb", "-displayfd", str(write), *words], work / "x.log", (write,))
    os.close(write)
    with open(read) as file:
        number = file.readline().strip()
    assert number, (work / "x.log").read_text()
    return number
