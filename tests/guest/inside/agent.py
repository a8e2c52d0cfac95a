"""Runs commands for the host: JSON lines come in over a virtio-serial port and go out again.

Started by systemd before everything else and left alone until the machine goes down, so that
the host can ask at any time. Requests are answered as they end, each with its own ``id``:

    -> {"id": 1, "argv": ["id", "-u"], "uid": 1000, "timeout": 60, ...}
    <- {"id": 1, "rc": 0, "stdout": "1000\\n", "stderr": "", "seconds": 0.1}

The first line after each boot is ``{"hello": BOOT_ID}``. Standard library only; one file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

PORT = "gitguardfs.agent"
"""Name of the port, as the host gives it to QEMU."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FORKS = "/run/gitguardfs-tests-forks"
"""Where inside/forks.py listens, if it runs."""
TIMED_OUT = 124
"""Exit status of a command that was ended for taking too long, as of timeout(1)."""


def find_port() -> str:
    """Wait for the port; udev, which would make a link by its name, may not run yet."""
    root = "/sys/class/virtio-ports"
    while True:
        for entry in os.listdir(root) if os.path.isdir(root) else []:
            with open(f"{root}/{entry}/name") as name:
                if name.read().strip() == PORT:
                    return f"/dev/{entry}"
        time.sleep(0.05)


def run(request: dict[str, Any]) -> dict[str, Any]:
    uid, gid = request.get("uid", 0), request.get("gid", request.get("uid", 0))
    home = "/root" if uid == 0 else "/home/agent"
    environment = {"PATH": PATH, "HOME": home, "LC_ALL": "C.UTF-8", **request.get("env", {})}
    started = time.monotonic()
    if request.get("forked") and os.path.exists(FORKS):
        status, out, err = fork({**request, "uid": uid, "gid": gid, "env": environment})
        return answer_of(status, out, err, started)
    process = subprocess.Popen(
        request["argv"],
        cwd=request.get("cwd", "/"),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        user=uid,
        group=gid,
        extra_groups=request.get("groups", []),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(
            request.get("stdin", "").encode(errors="surrogateescape"), request.get("timeout", 60)
        )
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = TIMED_OUT
    return answer_of(status, out, err, started)


def fork(request: dict[str, Any]) -> tuple[int, bytes, bytes]:
    """Have a command forked; returns its exit status and what it wrote."""
    wanted = {
        "argv": request["argv"], "env": request["env"], "cwd": request.get("cwd", "/"),
        "uid": request["uid"], "gid": request["gid"], "groups": request.get("groups", []),
    }  # fmt: skip
    with (
        socket.socket(socket.AF_UNIX) as asked,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(request.get("stdin", "").encode(errors="surrogateescape"))
        stdin.seek(0)
        asked.settimeout(request.get("timeout", 60))
        asked.connect(FORKS)
        files = [stdin.fileno(), stdout.fileno(), stderr.fileno()]
        socket.send_fds(asked, [json.dumps(wanted).encode()], files)
        try:
            status = int(asked.recv(64))
        except TimeoutError:  # hanging up ends it
            status = TIMED_OUT
        stdout.seek(0)
        stderr.seek(0)
        return status, stdout.read(), stderr.read()


def answer_of(status: int, out: bytes, err: bytes, started: float) -> dict[str, Any]:
    return {
        "rc": status,
        "stdout": out.decode(errors="surrogateescape"),
        "stderr": err.decode(errors="surrogateescape"),
        "seconds": round(time.monotonic() - started, 3),
    }


def main() -> None:
    port = os.open(find_port(), os.O_RDWR)
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(port, data) :]

    def answer(request: dict[str, Any]) -> None:
        try:
            result = run(request)
        except Exception as error:
            result = {"rc": 127, "stdout": "", "stderr": f"agent: {error}", "seconds": 0}
        send({"id": request["id"], **result})

    with open("/proc/sys/kernel/random/boot_id") as boot:
        hello = boot.read().strip()
    os.write(port, b"\n")  # ends what a previous boot may have left unfinished
    send({"hello": hello})
    pending = b""
    while True:
        data = os.read(port, 65536)
        if not data:  # the host is not connected (yet)
            time.sleep(0.1)
            continue
        *lines, pending = (pending + data).split(b"\n")
        for line in filter(None, lines):
            request = json.loads(line)
            threading.Thread(target=answer, args=(request,), daemon=True).start()


if __name__ == "__main__":
    main()
