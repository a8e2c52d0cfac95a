"""A service manager that keeps descriptors for the next process of a service, as systemd does.

It is a process of its own: one that has files of a view open could start no process while nobody
serves the view, since the child closes its copies of them.
"""

import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.mounting import LIMIT, REPOSITORY, command, unmount

_LAUNCH = """
import os, sys
count, *fds = map(int, sys.argv[1].split())
fds = [os.dup2(fd, 1000 + number) for number, fd in enumerate(fds)]
os.closerange(3, 1000)
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
    os.close(fd)
pid = str(os.getpid())
os.environ["SYSTEMD_EXEC_PID"] = pid
if count:
    os.environ.update(LISTEN_PID=pid, LISTEN_FDS=str(count), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


class _Manager:
    def __init__(self, here: Path, arguments: list[str]) -> None:
        self._log = open(here / "log", "ab")  # noqa: SIM115
        self._address = str(here / "notify")
        self._command = command(here / "source", here / "view")[1:]
        self._arguments = arguments
        self._kept: dict[str, int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._address)
        self._socket.settimeout(LIMIT)

    def start(self) -> None:
        fds = list(self._kept.values())
        given = " ".join(map(str, (len(fds), *fds))), ":".join(self._kept)
        launch = [sys.executable, "-S", "-c", _LAUNCH, *given, *self._command, *self._arguments]
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": self._address,
            "PYTHONPATH": str(REPOSITORY),
        }
        self._process = subprocess.Popen(
            launch, env=environment, cwd=REPOSITORY, pass_fds=fds, stdout=self._log,
            stderr=self._log,
        )  # fmt: skip
        while not self._receive():
            pass

    def _receive(self) -> bool:
        """Take one message; return whether it says that the service is ready."""
        text, fds, _, _ = socket.recv_fds(self._socket, 4096, 16)
        lines = dict(line.partition("=")[::2] for line in text.decode().splitlines())
        if "FDSTORE" in lines:
            self._kept[lines["FDNAME"]], *fds = fds
        elif "FDSTOREREMOVE" in lines:
            os.close(self._kept.pop(lines["FDNAME"]))
        for fd in fds:  # BARRIER
            os.close(fd)
        return "READY" in lines

    def stop(self, number: int) -> None:
        """Send a signal and wait for the end; it may have ended by itself."""
        ended = os.pidfd_open(self._process.pid)  # a zombie at least
        self._process.send_signal(number)
        numbers = [self._socket.fileno(), ended]
        while numbers[0] in (ready := select.select(numbers, [], [], LIMIT)[0]):
            self._receive()
        os.close(ended)
        if not ready:
            self._process.kill()
        self._process.wait()
        while select.select([self._socket], [], [], 0)[0]:
            self._receive()

    def serve(self) -> None:
        """Obey the lines from standard input."""
        while True:
            while self._socket in select.select([sys.stdin, self._socket], [], [])[0]:
                self._receive()
            word, *rest = sys.stdin.readline().split() or ("",)
            if not word:
                break
            if word == "start":
                self.start()
            elif word == "options":
                self._arguments = rest
            elif word == "discard":
                self.discard()
            elif word == "stop":
                self.stop(int(*rest))
            kept = self._kept if word == "stop" else ()
            print(self._process.returncode, *kept, flush=True)
        if self._process.poll() is None:
            self.stop(signal.SIGTERM)
        self.discard()

    def discard(self) -> None:
        while self._kept:
            os.close(self._kept.popitem()[1])


class Service:
    """A service, and the manager that runs it."""

    def __init__(self, here: Path, arguments: tuple[str, ...]) -> None:
        self.log = here / "log"
        words = [sys.executable, "-m", "tests.support.manager", str(here), *arguments]
        self._manager = subprocess.Popen(
            words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> list[str]:
        """Give the manager a line; return the exit code of the service and what is kept."""
        assert self._manager.stdin is not None and self._manager.stdout is not None
        self._manager.stdin.write(line + "\n")
        self._manager.stdin.flush()
        answer = self._manager.stdout.readline().split()
        assert answer, self.log.read_text()
        return answer

    def stop(self) -> list[str]:
        """End the service as for a restart; return the names of what is kept."""
        code, *kept = self.tell(f"stop {int(signal.SIGUSR2)}")
        assert code == "0", self.log.read_text()
        return kept

    def limit_descriptors(self, most: int) -> None:
        """Let the processes of the service have fewer descriptors from its next start on."""
        resource.prlimit(self._manager.pid, resource.RLIMIT_NOFILE, (most, most))

    def restart(self, *options: str) -> None:
        """Restart the service as ``systemctl restart`` does, perhaps with other options."""
        assert self.stop()
        if options:
            self.tell(" ".join(("options", *options)))
        assert self.tell("start") == ["None"], self.log.read_text()

    def end(self) -> None:
        """Stop the service as ``systemctl stop`` does."""
        assert self._manager.stdin is not None and self._manager.stdout is not None
        with suppress(BrokenPipeError):
            self._manager.stdin.close()
        self._manager.wait(2 * LIMIT)
        self._manager.stdout.close()


@contextmanager
def service(here: Path, *options: str) -> Iterator[Service]:
    """Run ``gitguardfs OPTIONS here/source here/view`` as a service; end it on the way out."""
    (here / "view").mkdir()
    running = Service(here, options)
    try:
        assert running.tell("start") == ["None"], running.log.read_text()
        yield running
    finally:
        running.end()
        unmount(here / "view")


if __name__ == "__main__":
    _Manager(Path(sys.argv[1]), sys.argv[2:]).serve()
