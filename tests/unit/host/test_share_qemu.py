"""The printed arguments work with a real QEMU and a real virtiofsd; the machine does not run."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.host.share import qemu, share_settings
from gitguardfs.host.share.share_spec import Host, MachineNetwork, ShareSpec, Transport
from gitguardfs.host.share.this_host import first_of
from tests.support.mounting import PLACE
from tests.unit.host.test_share import made

AWKWARD = "a, b=c,,d \"e\" 'f' é $x %y\\z"
TAGS = ["projects", "a,b", "my share", "é=1"]
LIMIT = 60.0

PROGRAM = qemu.program(made().host.is_arm)
pytestmark = pytest.mark.skipif(
    shutil.which(PROGRAM) is None, reason=f"{PROGRAM} is not installed (qemu-system-x86)"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ggfs-", dir=PLACE) as path:
        yield Path(path)


def shared(place: Path, tag: str = "projects", **given: Any) -> ShareSpec:
    (place / AWKWARD).mkdir(exist_ok=True)
    host = Host(uid=os.geteuid(), gid=os.getegid(), group="root", runtime=str(place))
    host = replace(host, virtiofsd=first_of(share_settings.VIRTIOFSD_PLACES))
    given = {"host": host, "memory": 256, "disk": str(place / f"{AWKWARD}.qcow2"), **given}
    return made(str(place / AWKWARD), tag, **given)


def words(name: str, spec: ShareSpec) -> list[str]:
    """Return the words of a printed command."""
    return share_settings.commands(share_settings.settings(spec)[name])[0]


def created(spec: ShareSpec) -> ShareSpec:
    subprocess.run(words("create_disk", spec), check=True, capture_output=True)
    return spec


def human(line: str) -> dict[str, Any]:
    return {"execute": "human-monitor-command", "arguments": {"command-line": line}}


def stopped_machine(
    arguments: list[str], place: Path, asking: Sequence[dict[str, Any]] = ()
) -> subprocess.CompletedProcess[str]:
    """Start QEMU with these arguments, the processors halted; ask for its devices; end it."""
    kvm = arguments.index("kvm")
    # Where there is a /dev/kvm that does not work, QEMU aborts instead of going on to tcg.
    arguments = [*arguments[: kvm - 1], *arguments[kvm + 1 :]]
    # Any free port: the printed one may be taken on this machine.
    arguments = [word.replace(":2222-", ":0-") for word in arguments]
    asked: list[dict[str, Any]] = [{"execute": "qmp_capabilities"}]
    asked += [
        {"execute": "qom-get", "arguments": {"path": f"{ANONYMOUS}/device[{i}]", "property": name}}
        for i in range(4)
        for name in ("mount_tag", "tag")
    ]
    asked += [*asking, {"execute": "query-block"}, {"execute": "quit"}]
    return subprocess.run(
        [*arguments, "-S", "-display", "none", "-monitor", "none", "-qmp", "stdio"],
        input=" ".join(map(json.dumps, asked)),
        capture_output=True, text=True, cwd=place, timeout=LIMIT,
    )  # fmt: skip


ANONYMOUS = "/machine/peripheral-anon"


def answers(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line).get("return") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("tag", TAGS)
def test_qemu_takes_the_command_line_for_9p(place: Path, tag: str) -> None:
    spec = created(shared(place, tag))
    found = answers(stopped_machine(words("run", spec), place))
    assert tag in found
    (disks,) = [a for a in found if isinstance(a, list)]
    assert spec.disk_path in [d["inserted"]["file"] for d in disks if "inserted" in d]


def test_qemu_opens_the_very_directory(place: Path) -> None:
    spec = created(shared(place))
    Path(spec.directory).rename(f"{spec.directory}2")
    done = stopped_machine(words("run", spec), place)
    assert done.returncode != 0
    assert f"failed to open '{spec.directory}': No such file" in done.stderr


def test_qemu_takes_several_shares_at_once(place: Path) -> None:
    spec = created(shared(place, "a,b"))
    second = shared(place, "a,c")
    found = answers(stopped_machine([*words("run", spec), *words("arguments", second)], place))
    assert {"a,b", "a,c"} <= {answer for answer in found if isinstance(answer, str)}


def test_qemu_takes_the_installers_command_line(place: Path) -> None:
    spec = created(shared(place))
    (place / "installer.iso").write_bytes(bytes(1 << 16))
    found = answers(stopped_machine(words("install", spec), place))
    (disks,) = [a for a in found if isinstance(a, list)]
    assert "installer.iso" in [d["inserted"]["file"] for d in disks if "inserted" in d]


@pytest.mark.parametrize("network", list(MachineNetwork))
def test_qemu_takes_the_network_and_opens_one_port_on_the_loopback(
    place: Path, network: MachineNetwork
) -> None:
    spec = created(shared(place, network=network))
    run = words("run", spec)
    found = answers(stopped_machine(run, place, asking=[human("info usernet")]))
    (said,) = [text for text in found if isinstance(text, str) and "HOST_FORWARD" in text]
    forwards = [line.split() for line in said.splitlines() if "HOST_FORWARD" in line]
    assert [(fields[2], fields[4:6]) for fields in forwards] == [("127.0.0.1", ["10.0.2.15", "22"])]
    broken = [word.replace("hostfwd=", "restricted=on,hostfwd=") for word in run]
    assert "restricted" in stopped_machine(broken, place).stderr


# virtiofs


@contextmanager
def daemon(spec: ShareSpec) -> Iterator[Path]:
    """This system's virtiofsd, started as printed; yields its log."""
    if spec.host.virtiofsd is None:
        pytest.skip("virtiofsd is not installed (virtiofsd, or qemu-system-common)")
    in_c = spec.host.virtiofsd == share_settings.VIRTIOFSD_IN_C
    arguments = words("virtiofsd_in_c" if in_c else "virtiofsd", spec)
    log = Path(spec.socket).with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(arguments, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + LIMIT
        while not Path(spec.socket).exists():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield log
    finally:
        process.kill()
        process.wait()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for virtiofsd")


@needs_root
@pytest.mark.parametrize("tag", TAGS)
def test_qemu_and_virtiofsd_take_their_command_lines(place: Path, tag: str) -> None:
    spec = created(shared(place, tag, transport=Transport.VIRTIOFS))
    with daemon(spec) as log:
        found = answers(stopped_machine(words("run", spec), place))
        assert tag in found
        assert "onnect" in log.read_text()
