"""Runs commands of gitguardfs and of the tests by forking a process that has imported them."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

SOCKET = "/run/gitguardfs-tests-forks"
INSTALLED = "/usr/local/lib/gitguardfs/lib"
"""Where install.sh puts the package."""

COMMANDS = {
    "gitguardfs": "gitguardfs.commands.gitguardfs",
    "gitguard": "gitguardfs.commands.gitguard",
    "vm-mount": "gitguardfs.commands.vm_mount",
}
IMPORTED = (
    *COMMANDS.values(),
    "gitguardfs.mounting.run",
    "gitguardfs.sessions.pyfuse3_session.session",
    "gitguardfs.commands.doctor",
    "tests.conformance.__main__",
    "tests.guest.inside.kill_daemon",
    "tests.guest.inside.races",
    "tests.guest.inside.raw_share",
    "tests.guest.inside.siege",
)
REQUEST_SIZE = 1 << 20


def serve(listening: socket.socket) -> None:
    """Answer requests for ever."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    """By pidfd: the command and the connection that asked for it."""
    asking: dict[int, int] = {}
    """By connection: the command."""
    while True:
        for fd, _ in poll.poll():
            if fd == listening.fileno():
                connection, _ = listening.accept()
                data, descriptors, _, _ = socket.recv_fds(connection, REQUEST_SIZE, 3)
                if (pid := os.fork()) == 0:
                    go_on_as(json.loads(data), descriptors)
                for each in descriptors:
                    os.close(each)
                pidfd = os.pidfd_open(pid)
                running[pidfd], asking[connection.fileno()] = (pid, connection), pid
                poll.register(pidfd, select.POLLIN)
                poll.register(connection, select.POLLIN)
            elif fd in running:
                pid, connection = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if asking.pop(connection.fileno(), None) is not None:
                    poll.unregister(connection)
                    connection.send(b"%d\n" % code)
                connection.close()
            elif fd in asking:  # its client has closed the connection
                poll.unregister(fd)
                os.killpg(asking.pop(fd), signal.SIGKILL)


def go_on_as(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Become the command; does not return."""
    code: object = 70
    try:
        os.setsid()
        for number, fd in enumerate(descriptors):
            os.dup2(fd, number)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        os.environ.clear()
        os.environ.update(request["env"])
        os.setgroups(request["groups"])
        os.setresgid(*[request["gid"]] * 3)
        os.setresuid(*[request["uid"]] * 3)
        os.chdir(request["cwd"])
        words = request["argv"]
        module = COMMANDS.get(words[0]) or words[2]  # python3 -m MODULE
        module += ".__main__" * (module == "tests.conformance")
        sys.argv = words if words[0] in COMMANDS else words[2:]
        code = importlib.import_module(module).main()
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)


def main() -> None:
    sys.path.insert(0, INSTALLED)
    for name in IMPORTED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(SOCKET)
        listening.listen(64)
        serve(listening)


if __name__ == "__main__":
    main()
