"""The same work in a virtual machine, over 9p and over virtiofs.

The machine is that of tests/guest, with its cached image. bindfs is not in that image: the
host's program and its library are copied into the guest.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from benchmarks import about, depth, fixtures
from benchmarks.options import Options
from benchmarks.results import Part, Results
from benchmarks.rounds import Outcome, Say
from benchmarks.views import REPOSITORY
from gitguardfs.base import installation

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mmdebstrap", "mke2fs")
TRANSPORTS: tuple[Literal["9p", "virtiofs"], ...] = ("9p", "virtiofs")
LIMIT = 1500.0
"""Seconds for one transport."""
PROGRESS = "progress.log"
HOME = "/opt/benchmarks"


def run(options: Options, say: Say) -> Results:
    """Boot the guest, compare on both transports, and take the guest down."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        sys.exit(f"benchmarks: not installed: {', '.join(missing)} (run.sh --guest installs them)")
    # Imported here: only this function needs the package of the tests.
    from tests.guest import emulator, image
    from tests.guest.machine import Machine, Share
    from tests.guest.setting_up import install
    from tests.guest.world import CHECKOUT, checkout

    results = Results(about.describe(options.scale, options.rounds, options.place), guest=True)
    with tempfile.TemporaryDirectory(prefix="gitguardfs-bench-", dir=options.place) as name:
        work = Path(name)
        work.chmod(0o755)
        for transport in TRANSPORTS:
            (work / transport).mkdir()
            fixtures.make_source(work / transport, options.scale)
            depth.make(work / transport)
        shared = checkout(work / "checkout")
        shutil.copytree(
            REPOSITORY / "benchmarks", shared / "benchmarks",
            ignore=shutil.ignore_patterns("__pycache__", "results"),
        )  # fmt: skip
        _bring_bindfs(shared / "bindfs")
        shares = [Share(transport, work / transport, transport) for transport in TRANSPORTS]
        say("obtaining the image of the guest")
        obtained = image.obtain(image.DEBIAN_13)
        (work / "machine").mkdir()
        machine = Machine(
            obtained, work / "machine", [*shares, Share("checkout", shared, read_only=True)], cpus=2
        )
        try:
            say("booting the guest")
            machine.start()
            results.about["kernel"] = machine.sh("uname -r")
            results.about["Python"] = machine.sh("python3 -V").removeprefix("Python ")
            results.about["pyfuse3"] = "Debian 13's"
            version = emulator.version_of(emulator.directory() / emulator.NAME)
            results.about["QEMU"] = ".".join(map(str, version))
            results.about["machine"] = f"emulated, {machine.cpus} cores, {machine.memory_mib} MiB"
            machine.sh(f"mkdir -p {CHECKOUT} && mount -t 9p -o ro,trans=virtio checkout {CHECKOUT}")
            say("installing gitguardfs and bindfs in the guest")
            install(machine)
            machine.sh(
                f"cd {CHECKOUT}/bindfs && cp bindfs /usr/local/bin && cp lib* /usr/local/lib && "
                f"ldconfig && bindfs --version && mkdir {HOME} && cp -r ../benchmarks {HOME}"
            )
            for transport in TRANSPORTS:
                results.parts.append(_compare(machine, transport, work / transport, options, say))
        finally:
            machine.kill()
    return results


def _bring_bindfs(target: Path) -> None:
    """Copy the program and its FUSE library; the C library has to be no newer than the guest's."""
    target.mkdir()
    program = shutil.which("bindfs")
    assert program is not None
    shutil.copy(program, target)
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"=> (\S*libfuse\S*)", listing):
        shutil.copy(library, target)


def _compare(machine: Any, transport: str, shared: Path, options: Options, say: Say) -> Part:
    raw = f"/mnt/raw/{transport}"
    how = "-o trans=virtio,msize=262144" if transport == "9p" else ""
    machine.sh(f"mkdir -p {raw} && mount -t {transport} {how} {transport} {raw}")
    only = [word for name in options.only for word in ("--only", f"'{name}'")]
    command = (
        f"cd {HOME} && python3 -m benchmarks.inside --title {transport} --source {raw} "
        f"--scale {options.scale.name} --rounds {options.rounds} {' '.join(only)} "
        f"2>{raw}/{PROGRESS}"
    )
    watch = installation.command(
        "watch", f"{transport}={shared}", f"--to={machine.changes}", program="gitguard"
    )
    watching = subprocess.Popen(watch)
    try:
        answer = machine.channel.start(command, timeout=LIMIT)
        _tell(answer, shared / PROGRESS, transport, say)
        done = machine.channel.finish(command, answer, LIMIT)
    finally:
        watching.terminate()
        watching.wait()
    if done.rc != 0:
        words = (shared / PROGRESS).read_text(errors="replace")[-2000:]
        raise RuntimeError(f"in the guest, over {transport}: {words}")
    found = json.loads(done.stdout)
    return Part(
        found["title"], found["views"], [Outcome(**each) for each in found["outcomes"]],
        found["left_out"], [Outcome(**each) for each in found["by_depth"]],
        found["local"], found["live"],
    )  # fmt: skip


def _tell(answer: Future[dict[str, Any]], log: Path, transport: str, say: Say) -> None:
    """Print the guest's progress until it is done."""
    told = 0
    while True:
        try:
            answer.exception(timeout=1.0)
            ended = True
        except TimeoutError:
            ended = False
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        for line in lines[told:]:
            say(f"{transport}: {line}")
        told = len(lines)
        if ended:
            return
