"""Ready disks: made once, shared, never half; and which of them may be deleted.

The machine that sets a guest up is left out here, and only here: tests/vm boots it.
"""

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import UserError
from gitguardfs.host.commands.vm import group as command
from gitguardfs.host.egress.files import StateFiles
from gitguardfs.host.vm import agents, image_store, images, ready, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.fetching import RemoteFile
from gitguardfs.host.vm.images import Image
from gitguardfs.host.vm.launch import Launch
from gitguardfs.host.vm.ready import ReadyDisk
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.options import config_files
from tests.support.boot_sector import BOOTS
from tests.support.mounting import until

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="not installed: qemu-img")


SET_UP = ready._set_up


class Host:
    """A user's cache, state and image. ``set_up`` stands for the machine that sets a guest up."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.image = place / "image.img"
        self.image.write_bytes(BOOTS)
        self.cache = states.cache_directory()
        self.builds = 0

    def set_up(self, state: State, image: Image, *_: object) -> None:
        self.builds += 1
        images.ensure_overlay(image, state.disk)

    def settings(self, wanted: str | None = None) -> Settings:
        return Settings("/srv/p", image=wanted or str(self.image))

    def ensure(self, allowlist: str = "") -> ReadyDisk:
        files = StateFiles(self.place / "files")
        files.directory.mkdir(exist_ok=True)
        files.allowlist.write_text(allowlist)
        return ready.ensure(Image(str(self.image)), self.settings(), files, self.cache)

    def vm(self, name: str) -> State:
        """Return the state of a new project's VM, without a disk."""
        (self.place / name).mkdir()
        state = states.state_of(str(self.place / name))
        states.create(state)
        return state

    def disk_for(self, state: State, wanted: str | None = None) -> Image:
        return ready.disk_for(state, self.settings(wanted), self.cache)

    def names(self) -> set[str]:
        os.makedirs(self.cache, exist_ok=True)
        return {name for name in os.listdir(self.cache) if not name.endswith("lock")}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 1000)  # pytest's directories have long names
    made = Host(tmp_path)
    monkeypatch.setattr(ready, "_set_up", made.set_up)
    return made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is printed of a lock that is waited for; a captured stream can lose a thread's line."""
    lines: list[str] = []
    monkeypatch.setattr(click, "echo", lambda text, **_: lines.append(text))
    return lines


# Its name


def test_whatever_a_disk_is_made_of_is_in_its_name(host: Host) -> None:
    shared = {"files": b"a", "gitguardfs.tar": b"b"}
    image = Image(str(host.image))
    names = [
        ready.key(image, shared),
        ready.key(image, {**shared, "files": b"x"}),
        ready.key(image, {**shared, "gitguardfs.tar": b"x"}),
        ready.key(Image(str(host.image), append="quiet"), shared),
    ]
    os.utime(host.image, ns=(1, 1))
    names.append(ready.key(image, shared))
    host.image.write_bytes(bytes(1 << 21))
    os.utime(host.image, ns=(1, 1))
    names.append(ready.key(image, shared))
    assert len(set(names)) == len(names)
    assert ready.key(image, dict(reversed(shared.items()))) == names[-1]


def test_an_agent_has_a_ready_disk_of_its_own_and_a_vm_over_it_has_the_agent(host: Host) -> None:
    host.ensure()
    wanted = dataclasses.replace(host.settings(), agent="codex")
    state = host.vm("p")
    codex, claude = (agents.load(name, state.project) for name in ("codex", "claude"))
    assert codex is not None and claude is not None
    assert ready.has_agent(state, claude)  # it will get it so
    ready.disk_for(state, wanted, host.cache)
    assert host.builds == 2 and len(host.names()) == 2
    assert (ready.has_agent(state, codex), ready.has_agent(state, claude)) == (True, False)
    shutil.rmtree(os.path.dirname(images.backing_of(state.disk)))
    assert not ready.has_agent(state, codex)


def test_a_disk_of_a_version_without_agents_goes_on_without_one(host: Host) -> None:
    disk = host.ensure()
    record = Path(disk.directory, ready.RECORD)
    made = json.loads(record.read_text())
    del made["agent"]
    record.chmod(0o600)
    record.write_text(json.dumps(made))
    assert ready.at(disk.directory) == disk and disk.agent == ""


# Making it


def test_a_disk_is_made_once_and_nobody_writes_it(host: Host) -> None:
    made = host.ensure()
    assert host.ensure() == made
    assert host.builds == 1
    assert host.names() == {made.name}
    assert os.stat(made.disk).st_mode & 0o777 == 0o400
    assert os.stat(host.cache).st_mode & 0o777 == 0o700
    assert (made.image, made.wanted) == (Image(str(host.image)), str(host.image))
    assert images.backing_of(made.disk) == str(host.image)


def test_two_that_need_a_disk_make_it_once(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    both = threading.Event()

    def set_up(*arguments: object) -> None:
        assert both.wait(30)
        host.set_up(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ready, "_set_up", set_up)
    found: list[ReadyDisk] = []
    threads = [threading.Thread(target=lambda: found.append(host.ensure())) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: bool(said), "one waits")
    both.set()
    for thread in threads:
        thread.join()
    assert said == ["another command is setting up this guest; waiting for it"]
    assert host.builds == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("moment", ["mkdir", "set up", "chmod", "record", "rename"])
def test_a_build_that_is_killed_leaves_nothing_that_counts(
    host: Host, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            _die_at(moment, host, monkeypatch)
            host.ensure()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert [name for name in host.names() if name.startswith(ready.PREFIX)] == []
    made = host.ensure()
    assert host.builds == 1
    assert host.names() == {made.name}


def _die_at(moment: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if moment == "set up":
                real(*arguments, **named)
            os.kill(os.getpid(), 9)
            return None

        return call

    where, name, real = {
        "mkdir": (os, "mkdir", os.mkdir),
        "set up": (ready, "_set_up", host.set_up),
        "chmod": (os, "chmod", os.chmod),
        "record": (config_files, "write", config_files.write),
        "rename": (os, "sync", os.sync),
    }[moment]
    monkeypatch.setattr(where, name, dying(real))


def test_a_setup_that_fails_leaves_its_logs_and_no_disk(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_up(state: State, *_: object) -> None:
        Path(state.console).write_text("why\n")
        raise UserError("no packages")

    monkeypatch.setattr(ready, "_set_up", set_up)
    with pytest.raises(UserError, match=r"no packages") as error:
        host.ensure()
    (left,) = host.names()
    assert left in (error.value.hint or "")
    assert (Path(host.cache) / left / "console.log").read_text() == "why\n"


def test_a_full_disk_is_one_line(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(UserError, match=r"MiB free, .*make room"):
        host.ensure()
    assert host.builds == 0


@pytest.mark.parametrize("part", [ready.RECORD, ready.DISK])
def test_a_damaged_disk_keeps_no_other_vm_from_starting(host: Host, part: str) -> None:
    """It stays for the VM that uses it: the user may put it back."""
    state, other = host.vm("one"), host.vm("other")
    host.disk_for(state)
    made = host.ensure()
    os.rename(os.path.join(made.directory, part), host.place / "away")
    assert host.ensure() == host.ensure() != made
    host.disk_for(other)
    assert host.builds == 2
    with pytest.raises(UserError, match=r"gone or damaged"):
        host.disk_for(state)
    os.rename(host.place / "away", os.path.join(made.directory, part))
    host.disk_for(state)
    states.remove(state)
    assert [one.name for one in image_store.prune(host.cache)] == [made.name]
    host.disk_for(other)


def test_setting_a_guest_up_can_use_the_users_mirror(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "GET https://mirror.corp.example/debian/* private-address"
    seen: list[str] = []

    def boot(_: object, start: Launch, __: object) -> None:
        seen.extend(Path(start.state.path("allowlist.txt")).read_text().split("\n"))
        raise UserError("far enough")

    monkeypatch.setattr(ready, "_set_up", SET_UP)
    monkeypatch.setattr(ready, "boot", boot)
    with pytest.raises(UserError, match="far enough"):
        host.ensure(f"{line}\nPOST https://api.example.org/x\n")
    assert line in seen and "GET https://deb.debian.org/debian/*" in seen
    assert "POST https://api.example.org/x" not in seen


# A VM's disk


def test_vms_of_one_image_share_a_ready_disk(host: Host) -> None:
    first, second = host.vm("one"), host.vm("two")
    for state in (first, second):
        assert host.disk_for(state) == Image(str(host.image))
    (name,) = host.names()
    assert images.backing_of(first.disk) == images.backing_of(second.disk)
    assert images.backing_of(first.disk) == os.path.join(host.cache, name, ready.DISK)
    assert int(images.described(first.disk)["virtual-size"]) == images.DISK_SIZE
    assert host.builds == 1


def test_an_image_is_remembered_once_it_has_booted(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the start ends before the VM has its disk; not if the guest was never set up."""
    state = host.vm("one")
    before = settings.load(state).image
    with pytest.raises(UserError, match=r"there is no image"):
        host.disk_for(state, str(host.place / "mistyped"))
    with monkeypatch.context() as patched:
        patched.setattr(ready, "_set_up", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            host.disk_for(state)
    assert settings.load(state).image == before
    host.ensure()
    monkeypatch.setattr(images, "ensure_overlay", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        host.disk_for(state)
    assert settings.load(state).image == str(host.image)


def raising(error: BaseException) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


def test_a_file_that_is_no_disk_is_not_waited_for(host: Host) -> None:
    """Also one that was fetched, and is what its checksum says."""
    host.image.write_bytes(bytes(1 << 20))
    with pytest.raises(UserError, match=r"is no disk that can boot"):
        host.ensure()
    assert host.builds == 0 and host.names() == set()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no packages")], ids=repr)
def test_a_setup_that_fails_leaves_its_logs_alone(
    host: Host, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Who has interrupted it needs no logs."""

    def set_up(state: State, *_: object) -> None:
        for name in ("disk.qcow2", "seed.iso", "lock", "console.log", "console.log.1"):
            Path(state.path(name)).write_text(name)
        (Path(state.directory) / "keys").mkdir()
        raise error

    monkeypatch.setattr(ready, "_set_up", set_up)
    with pytest.raises(type(error)):
        host.ensure()
    left = {path.name for path in Path(host.cache).glob(f"{ready.BUILD}*/*")}
    assert left == ({"console.log", "console.log.1"} if isinstance(error, UserError) else set())
    assert len(host.names()) == len(left) // 2


def test_a_vm_keeps_its_ready_disk_when_a_newer_one_is_made(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = host.vm("old"), host.vm("new")
    host.disk_for(old)
    before = images.backing_of(old.disk)
    monkeypatch.setattr(ready, "FORMAT", b"another")
    host.disk_for(new)
    host.disk_for(old)
    assert images.backing_of(old.disk) == before != images.backing_of(new.disk)


def test_a_pinned_image_that_is_gone_is_fetched_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another is pinned by now: a user who cleans his caches keeps his VMs."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(host.place))

        def log_message(self, *_: object) -> None:
            pass

    state = host.vm("one")
    sha512 = hashlib.sha512(host.image.read_bytes()).hexdigest()
    name = ("debian-13", platform.machine())
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,))
        serving.start()
        url = f"http://127.0.0.1:{server.server_port}/image.img"
        try:
            monkeypatch.setattr(images, "PINNED", {name: RemoteFile(url, sha512)})
            image = host.disk_for(state, "debian-13")
            os.unlink(image.disk)
            monkeypatch.setattr(images, "PINNED", {name: RemoteFile("http://127.0.0.1:1/", "0")})
            assert host.disk_for(state, "debian-13") == image
        finally:
            server.shutdown()
            serving.join()
    assert Path(image.disk).read_bytes() == host.image.read_bytes()
    assert host.builds == 1


def test_another_image_is_refused(host: Host) -> None:
    state = host.vm("one")
    host.disk_for(state)
    other = host.place / "other.img"
    other.write_bytes(bytes(1 << 20))
    with pytest.raises(UserError, match=r"was made from .*image\.img"):
        host.disk_for(state, str(other))


def test_an_image_that_has_changed_below_a_vm_is_refused(host: Host) -> None:
    state = host.vm("one")
    host.disk_for(state)
    host.image.write_bytes(b"another")
    with pytest.raises(UserError, match=r"image\.img has changed"):
        host.disk_for(state)
    host.image.unlink()
    with pytest.raises(UserError, match=r"there is no image|is gone"):
        host.disk_for(state)


@pytest.mark.parametrize("name", ["initrd", "cmdline"])
def test_a_new_part_of_an_image_below_a_vm_is_refused(host: Host, name: str) -> None:
    place = host.place / "image"
    place.mkdir()
    host.image.rename(place / "disk.img")
    (place / "vmlinuz").touch()
    state = host.vm("one")
    host.disk_for(state, str(place))
    (place / name).write_text("quiet")
    with pytest.raises(UserError, match=r"kernel, initrd or cmdline"):
        host.disk_for(state, str(place))


def test_the_cache_may_be_a_link_to_a_bigger_disk(host: Host) -> None:
    (host.place / "bigger").mkdir()
    os.makedirs(os.path.dirname(host.cache))
    os.symlink(host.place / "bigger", host.cache)
    state = host.vm("one")
    with image_store.in_use(host.cache):
        host.disk_for(state)
    assert list(image_store.prune(host.cache)) == []
    assert host.disk_for(state) == Image(str(host.image))
    assert (host.place / "bigger").stat().st_mode & 0o777 == 0o700
    states.remove(state)
    (one,) = image_store.prune(host.cache)
    assert one.kind == "ready"


def test_a_vm_starts_by_another_name_of_the_cache(host: Host) -> None:
    base = fetched(host, "0123456789ab-debian-13-base.qcow2")
    state = host.vm("one")
    host.disk_for(state, str(base))
    (host.place / "link").symlink_to(host.cache)
    host.cache = str(host.place / "link")
    assert host.disk_for(state, os.path.join(host.cache, base.name)) == Image(str(base))


def test_another_name_of_the_cache_in_the_project_is_refused(host: Host) -> None:
    """QEMU would follow a link that the agent can replace."""
    state = host.vm("one")
    host.disk_for(state)
    (host.place / "one/link").symlink_to(host.cache)
    name = host.place / "one/link" / os.path.relpath(host.ensure().disk, host.cache)
    subprocess.run(["qemu-img", "rebase", "-u", "-F", "qcow2", "-b", name, state.disk], check=True)
    with pytest.raises(UserError, match=r"the image .*link/.* lies in the project"):
        host.disk_for(state)


def test_a_vm_keeps_its_ready_disk_in_another_cache(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fetched(host, "0123456789ab-debian-13-base.qcow2")
    state = host.vm("one")
    monkeypatch.setattr(images, "obtain", lambda *_: Image(str(base)))
    host.disk_for(state, "debian-13")
    monkeypatch.setattr(images, "obtain", lambda *_: pytest.fail("fetched again"))
    host.cache = str(host.place / "other cache")
    assert host.disk_for(state, "debian-13") == Image(str(base))


@pytest.mark.parametrize(
    "options",
    [
        ["-f", "qcow2", "-F", "raw", "-b", "SECRET", "DISK"],
        ["-f", "qcow2", "-o", "data_file=SECRET,data_file_raw=on", "DISK", "1M"],
        ["-f", "raw", "DISK", "1M"],
    ],
    ids=["backing file", "data file", "raw"],
)
@pytest.mark.parametrize("is_made_first", [False, True])
def test_a_ready_disk_that_leads_to_other_files_is_refused(
    host: Host, options: list[str], is_made_first: bool
) -> None:
    """The whole chain of a VM's disk is looked at, at each start."""
    secret = host.place / "secret"
    secret.write_bytes(b"secret" * 100_000)
    disk = host.ensure().disk
    state = host.vm("one")
    if is_made_first:
        host.disk_for(state)
    os.unlink(disk)
    words = [word.replace("SECRET", str(secret)).replace("DISK", disk) for word in options]
    subprocess.run(["qemu-img", "create", "-q", *words], check=True)
    record = Path(disk).with_name(ready.RECORD)
    made = json.loads(record.read_text())
    made["stamps"][ready.DISK] = ready._stamp(disk)  # as if it had been so
    record.chmod(0o600)
    record.write_text(json.dumps(made))
    with pytest.raises(UserError, match=r"ready disk .* is damaged"):
        host.disk_for(state)
    assert os.path.exists(state.disk) == is_made_first


@pytest.mark.parametrize("way", ["written", "another file"])
@pytest.mark.parametrize("is_made_first", [False, True])
def test_a_ready_disk_that_has_changed_is_refused(
    host: Host, way: str, is_made_first: bool
) -> None:
    state, disk = host.vm("one"), host.ensure().disk
    if is_made_first:
        host.disk_for(state)
    content = bytearray(Path(disk).read_bytes())
    content[-1] ^= 1
    if way == "another file":
        os.unlink(disk)
    else:
        os.chmod(disk, 0o600)
    Path(disk).write_bytes(content)
    with pytest.raises(UserError, match=r"the ready disk .* has changed"):
        host.disk_for(state)
    assert os.path.exists(state.disk) == is_made_first


@pytest.mark.parametrize(
    "project", [".", "c", "c/gitguardfs", "c/gitguardfs/images", "c/gitguardfs/images/ready-x", "l"]
)
def test_a_cache_in_the_project_is_refused_before_anything_is_made(
    host: Host, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    inside = host.place / "c/gitguardfs/images/ready-x"
    inside.mkdir(parents=True)
    (host.place / "l").mkdir()
    (host.place / "l/link").symlink_to(host.place / "c")
    if project == "l":  # a link that the agent can replace
        host.cache = str(host.place / "l/link/gitguardfs/images")
    state = State(str((host.place / project).resolve()), str(host.place / "vm"))
    monkeypatch.setattr(images, "obtain", lambda *_: pytest.fail("fetched"))
    with pytest.raises(UserError, match=r"would lie in the project .*another XDG_CACHE_HOME"):
        host.disk_for(state)
    assert host.builds == 0


def test_an_image_in_the_project_is_refused_before_and_after(host: Host) -> None:
    state = host.vm("one")
    inside = host.place / "one/image.img"
    inside.write_bytes(bytes(1 << 20))
    with pytest.raises(UserError, match=r"lies in the project"):
        host.disk_for(state, str(inside))
    assert host.builds == 0
    host.disk_for(state)
    inside.unlink()
    host.image.rename(inside)
    host.image.symlink_to(inside)
    with pytest.raises(UserError, match=r"lies in the project"):
        host.disk_for(state)


# The cache


def fetched(host: Host, name: str) -> Path:
    path = Path(host.cache) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BOOTS)
    return path


def test_the_list_shows_what_each_vm_uses(host: Host) -> None:
    base = fetched(host, "0123456789ab-base.qcow2")
    state = host.vm("one")
    host.disk_for(state, str(base))
    (made, found), _ = image_store.stored(host.cache)
    assert (made.kind, made.users, made.made_from) == ("ready", (state.name,), str(base))
    assert (found.kind, found.name) == ("base", base.name)
    assert found.users == (state.name,)
    said = CliRunner().invoke(command.command, ["images", "list"]).output
    assert made.name in said and base.name in said and state.name in said


def test_the_list_shows_which_agent_a_ready_disk_is_for(host: Host) -> None:
    wanted = host.settings(str(fetched(host, "0123456789ab-base.qcow2")))
    ready.disk_for(host.vm("one"), dataclasses.replace(wanted, agent="codex"), host.cache)
    (made, _), _ = image_store.stored(host.cache)
    assert made.agent == "codex"
    assert ", with codex" in CliRunner().invoke(command.command, ["images", "list"]).output


def test_only_what_no_vm_uses_is_deleted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    used, unused = (fetched(host, f"0123456789a{n}-base.qcow2") for n in "bd")
    fetched(host, "0123456789ae-base.qcow2.part")
    state, gone = host.vm("one"), host.vm("gone")
    host.disk_for(state, str(used))
    monkeypatch.setattr(ready, "FORMAT", b"another")
    host.disk_for(gone, str(used))
    states.remove(gone)
    for left in ("build-01234567", "removed-0123"):
        (Path(host.cache) / left).mkdir()
    made = os.path.basename(os.path.dirname(images.backing_of(state.disk)))
    said = CliRunner().invoke(command.command, ["images", "prune"]).output
    assert host.names() == {made, used.name}
    assert unused.name in said and said.count("deleted") == 5
    assert host.disk_for(state, str(used)) == Image(str(used))
    said = CliRunner().invoke(command.command, ["images", "prune"]).output
    assert "nothing to delete" in said


def test_nothing_is_deleted_while_a_disk_is_made(host: Host, said: list[str]) -> None:
    """A ready disk that was found for a new VM is used by none yet."""
    made = host.ensure()
    with image_store.in_use(host.cache), image_store.in_use(host.cache):
        pruning = threading.Thread(target=lambda: list(image_store.prune(host.cache)))
        pruning.start()
        until(lambda: bool(said) or not pruning.is_alive(), "it waits")
        assert os.path.exists(made.disk)
    pruning.join()
    assert said == ["another command is starting a VM; waiting for it"]
    assert host.names() == set()


@pytest.mark.parametrize("damage", ["version", "short", "zeroed", "over nothing", "FIFO", "below"])
def test_nothing_is_deleted_if_a_vms_disk_cannot_be_read(host: Host, damage: str) -> None:
    made = host.ensure()
    state = host.vm("one")
    host.disk_for(state)
    disk = Path(state.disk if damage != "below" else made.disk)
    content = disk.read_bytes()
    disk.unlink()
    if damage == "FIFO":
        os.mkfifo(disk)
    elif damage == "over nothing":
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "1M"], check=True)
    else:
        starts = {"version": b"QFI\xfb\0\0\0\x63", "short": b"QFI\xfbx"}
        disk.write_bytes(starts.get(damage, bytes(4096) + content[4096:]))
    with pytest.raises(UserError, match=rf"the VM {state.name} .*disk\.qcow2"):
        list(image_store.prune(host.cache))
    assert os.path.exists(made.disk)
    said = CliRunner().invoke(command.command, ["images", "list"])
    assert made.name in said.output  # what can be said is said
    assert isinstance(said.exception, UserError) or said.exit_code != 0


@pytest.mark.parametrize("new", ["link", "bind"])
def test_what_a_vm_uses_by_another_name_is_kept(
    host: Host, monkeypatch: pytest.MonkeyPatch, new: str
) -> None:
    base = fetched(host, "0123456789ab-base.qcow2")
    state = host.vm("one")
    host.disk_for(state, str(base))
    before = host.names()
    if new == "link":
        (host.place / new).symlink_to(host.place / "c")
    else:  # another way to the same files, which no symlink shows
        for path in Path(host.cache).rglob("*"):
            there = host.place / new / path.relative_to(host.place / "c")
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                os.link(path, there)
    monkeypatch.setenv("XDG_CACHE_HOME", str(host.place / new))
    stored, _ = image_store.stored(states.cache_directory())
    assert [one.users for one in stored] == [(state.name,)] * 2
    assert list(image_store.prune(states.cache_directory())) == []
    assert host.names() == before


@pytest.mark.parametrize("damage", ["no json", "a newer version's", "gone"])
def test_a_ready_disk_that_a_vm_uses_is_kept_whatever_its_record_says(
    host: Host, damage: str
) -> None:
    base = fetched(host, "0123456789ab-base.qcow2")
    state, gone = host.vm("one"), host.vm("gone")
    host.disk_for(state, str(base))
    directory = os.path.dirname(images.backing_of(state.disk))
    record = Path(directory) / ready.RECORD
    made = json.loads(record.read_text())
    record.unlink()
    if damage == "a newer version's":
        record.write_text(json.dumps({**made, "image": {**made["image"], "firmware": "x"}}))
    elif damage == "no json":
        record.write_text("{")
    host.disk_for(gone)  # over another image
    Path(os.path.dirname(images.backing_of(gone.disk)), ready.RECORD).unlink()
    states.remove(gone)
    said = CliRunner().invoke(command.command, ["images", "prune"]).output
    assert host.names() == {os.path.basename(directory), base.name}
    assert said.count("deleted ready-") == 1 and "(damaged, " in said
