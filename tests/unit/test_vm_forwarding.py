"""A port that leads into the VM ends with the command that opened it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gitguardfs.installation import PACKAGE_PARENT

FORWARD = """
import sys
sys.path.insert(0, sys.argv[1])
from gitguardfs.vm import forwarding, ssh
ssh.forward = lambda *_: ["sh", "-c", "echo opened; exec sleep 600"]
sys.exit(forwarding.run(None, 1, 1))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_ends_its_ssh(number: signal.Signals) -> None:
    words = [sys.executable, "-c", FORWARD, PACKAGE_PARENT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        process.send_signal(number)
        assert process.stdout.read() == b""  # its end: no process has it open any more
        assert process.wait() == 128 + signal.SIGTERM


EARLY = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from gitguardfs.vm import forwarding, ssh
ssh.forward = lambda *_: ["sh", "-c", "echo opened; exec sleep 600"]
whole = subprocess.Popen.__init__

def told_meanwhile(self, *words, **how):
    whole(self, *words, **how)
    os.kill(os.getpid(), int(sys.argv[2]))

subprocess.Popen.__init__ = told_meanwhile
sys.exit(forwarding.run(None, 1, 1))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_ssh_is_started_ends_it_as_well(number: signal.Signals) -> None:
    words = [sys.executable, "-c", EARLY, PACKAGE_PARENT, str(int(number))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.wait(60) == 128 + signal.SIGTERM
        assert process.stdout.read() in (b"", b"opened\n")
