"""Users' processes and mount namespaces that reach the raw share from before the seal."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gitguardfs.linux import mountinfo, processes
from gitguardfs.mounting import bypasses, seal
from tests.support.mounting import area, command, gitguardfs, run_to_end, unmount, until
from tests.support.own_mounts import AS_AGENT
from tests.support.people import AGENT

DEEP = "a directory deeper than a path is long"
_HOLD = """
import ctypes, mmap, os, socket, sys
source, what = sys.argv[1:]
def from_a_namespace(path):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        assert ctypes.CDLL(None).unshare(0x10020000) == 0  # CLONE_NEWUSER, CLONE_NEWNS
        socket.send_fds(theirs, [b"x"], [os.open(path, os.O_PATH)])
        os._exit(0)
    os.waitpid(child, 0)
    return socket.recv_fds(ours, 1, 1)[1][0]
if what == "its working directory":
    os.chdir(source + "/sub")
elif what == "a descriptor":
    kept = os.open(source + "/sub", os.O_PATH)
elif "a mapped file" in what:
    fd = os.open(source + "/file", os.O_RDONLY)
    kept = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.closerange(fd, fd + 10)  # mmap has made a copy of it
elif what == "a descriptor from a namespace that is gone":
    kept = from_a_namespace(source + "/sub")
elif what == "a file from a namespace that is gone":
    kept = from_a_namespace(source + "/file")
elif what == "its working directory in a namespace of its own":
    assert ctypes.CDLL(None).unshare(0x10020000) == 0
    os.chdir(source + "/sub")
elif what == "its root directory":
    outside = os.open("/", os.O_PATH)
    assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
    os.chroot(source)
    os.fchdir(outside)
    os.close(outside)
elif what == "a directory deeper than a path is long":
    os.chdir(source)
    while os.path.isdir("d" * 200):
        os.chdir("d" * 200)
    kept = os.open(".", os.O_PATH)
elif what == "a thread's directory":
    import threading
    ready = threading.Event()
    def stay():
        assert ctypes.CDLL(None).unshare(0x200) == 0  # CLONE_FS
        os.chdir(source)
        ready.set()
        threading.Event().wait()
    threading.Thread(target=stay, daemon=True).start()
    ready.wait()
def stay_to_the_end():
    ctypes.CDLL(None).prctl(15, b"na\\033[2Jme", 0, 0, 0)
    print("holds", flush=True)
    sys.stdin.read()
    os._exit(0)
if what == "a mapped file without its first thread":
    import threading
    ctypes.CDLL(None).prctl(15, b"na\\033[2Jme", 0, 0, 0)
    threading.Thread(target=stay_to_the_end).start()
    ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread alone
stay_to_the_end()
"""


@pytest.fixture
def here() -> Iterator[Path]:
    with area() as path:
        (path / "source/sub").mkdir(parents=True)
        (path / "source/file").write_text("text")
        (path / "view").mkdir()
        (path / "beside").mkdir()
        try:
            yield path
        finally:
            unmount(path / "view")
            unmount(path / "source")


@contextmanager
def _held(place: Path, what: str) -> Iterator[int]:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", _HOLD, place, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **AS_AGENT,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"holds\n"
        yield process.pid
    finally:
        process.communicate()


def _run(here: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(here / "source", here / "view", "--seal", *options)


def _is_sealed(here: Path) -> bool:
    top = mountinfo.top_at(str(here / "source"))
    return top is not None and seal.is_seal(top)


def _dig(place: Path) -> None:
    fd = os.open(place, os.O_PATH)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.parametrize(
    "what",
    [
        "its working directory",
        "its root directory",
        "a descriptor",
        "a mapped file",
        "a mapped file without its first thread",
        "a thread's directory",
        "a descriptor from a namespace that is gone",
        "a file from a namespace that is gone",
        "its working directory in a namespace of its own",
        DEEP,
    ],
)
def test_who_holds_the_share_is_named_and_keeps_the_guard_from_starting(
    here: Path, what: str
) -> None:
    if what == DEEP:
        _dig(here / "source")
    with _held(here / "source", what) as pid:
        for _ in range(2):  # the second one takes the first one's seal over
            done = _run(here)
            assert done.returncode == 32, done.stderr
            assert f"{pid} (na\\x1b[2Jme): " in done.stderr, done.stderr
            assert "then start again" in done.stderr
            assert _is_sealed(here)
            assert not os.path.ismount(here / "view")
    done = _run(here)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def _found(source: Path) -> list[str]:
    mount = mountinfo.top_at(str(source))
    assert mount is not None
    return bypasses.find(str(source), mount.mnt_id, mount.st_dev)


@pytest.mark.parametrize("what", ["its working directory", "a mount namespace"])
def test_who_goes_on_in_a_child_is_found(
    here: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The first listing has the parent alone, which ends before it is looked at."""
    with subprocess.Popen(["true"], **AS_AGENT) as parent:
        pass
    first = [[f"/proc/{parent.pid}/task/{parent.pid}"]]
    name = "tasks"
    if what == "its working directory":
        first, name = [[str(parent.pid)]], "pids"
        monkeypatch.setattr(bypasses, "_namespaces", dict)
    list_now = getattr(processes, name)
    monkeypatch.setattr(processes, name, lambda: first.pop() if first else list_now())
    source = here / "source"
    subprocess.run(["mount", "-t", "tmpfs", "t", source], check=True)
    (source / "sub").mkdir()
    try:
        with _held(source, what) if name == "pids" else keeping("process") as pid:
            found = _found(source)
    finally:
        subprocess.run(["umount", "-l", source], check=True)
    assert any(one.startswith(f"{pid} (") and what in one for one in found), found


def test_a_search_that_comes_to_no_end_fails(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1 << 22)  # no process has so large a one
    monkeypatch.setattr(processes, "pids", lambda: [str(next(numbers))])
    subprocess.run(["mount", "-t", "tmpfs", "t", here / "source"], check=True)
    try:
        with pytest.raises(BlockingIOError):
            _found(here / "source")
    finally:
        subprocess.run(["umount", "-l", here / "source"], check=True)


def test_what_is_beside_the_share_or_in_a_view_of_it_does_not_count(here: Path) -> None:
    with gitguardfs(
        here / "source", here / "beside", "--git=off", expected=(r"stays open",)
    ) as beside:
        with _held(beside.path, "a descriptor"), _held(here, "none"):
            # Descriptors that it inherits may be of mounts that this namespace does not show.
            null = subprocess.DEVNULL
            with subprocess.Popen(
                ["sleep", "600"], cwd=here, user=1000, stdout=null, stderr=null
            ) as process:
                done = _run(here)
                process.kill()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize(("opened", "status"), [("beside/file", 0), ("source/file", 32)])
def test_a_descriptor_of_another_namespace_s_mount_counts_by_where_it_leads(
    here: Path, opened: str, status: int
) -> None:
    """For example the output of a service in a mount namespace, inherited from outside of it."""
    (here / "beside/file").write_text("text")
    root_s = ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo ready; read line"]
    pipe = subprocess.PIPE
    with subprocess.Popen(root_s, stdin=pipe, stdout=pipe) as around:
        assert around.stdout is not None
        assert around.stdout.readline() == b"ready\n"
        with (
            open(f"/proc/{around.pid}/root{here / opened}", "rb") as file,
            subprocess.Popen(
                ["sleep", "600"], stdin=file, stdout=pipe, stderr=pipe, **AS_AGENT
            ) as process,
        ):
            done = _run(here)
            process.kill()
        around.communicate(b"\n")
    assert done.returncode == status, done.stderr
    assert (f"{process.pid} (sleep): descriptor 0" in done.stderr) == (status != 0)


def test_a_process_that_has_ended_does_not_count(here: Path) -> None:
    """Its parent has not waited for it: /proc still lists it, and links that lead nowhere."""
    with subprocess.Popen(["true"], **AS_AGENT) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        done = _run(here)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_what_is_deep_elsewhere_does_not_count(here: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", here / "beside"], check=True)
    try:
        _dig(here / "beside")
        with _held(here / "beside", DEEP):
            done = _run(here)
    finally:
        subprocess.run(["umount", "-l", here / "beside"], check=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_root_s_own_processes_do_not_count_and_others_can_be_allowed(here: Path) -> None:
    with subprocess.Popen(["sleep", "600"], cwd=here / "source/sub") as process:
        done = _run(here)
        process.kill()
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    subprocess.run(["umount", here / "view"], check=True)
    with _held(here / "source", "a descriptor") as pid:
        done = _run(here, "--allow-holders")
        assert done.returncode == 0
        assert f"{pid} (" in done.stderr


_KEEP = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None)
def make(flags=0x10020000):  # CLONE_NEWUSER, CLONE_NEWNS
    uid = os.geteuid()
    assert libc.unshare(flags) == 0
    if flags & 0x10000000 and sys.argv[1] != "subordinate":
        open("/proc/self/setgroups", "w").write("deny")
        for name in ("uid_map", "gid_map"):
            open("/proc/self/" + name, "w").write(f"0 {uid} 1")
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC, MS_PRIVATE
def space(prepare=lambda: None, *flags):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        make(*flags)
        prepare()
        socket.send_fds(theirs, [b"x"], [os.open("/proc/self/ns/mnt", os.O_RDONLY)])
        os._exit(0)
    theirs.close()
    fd = socket.recv_fds(ours, 1, 1)[1][0]
    os.waitpid(child, 0)
    return fd
def on_each_processor(prepare, *flags):
    for number in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {number})
        yield space(prepare, *flags)
def bind():
    # Only younger ones can be mounted, and each processor counts them for itself (Linux 6.18).
    assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
    open("/tmp/space", "w").close()
    inner = list(on_each_processor(lambda: None, 0x20000))
    ways = [b"/proc/self/fd/%d" % fd for fd in inner]
    assert any(libc.mount(way, b"/tmp/space", None, 0x1000, None) == 0 for way in ways)  # MS_BIND
    for fd in inner:
        os.close(fd)
if sys.argv[1] == "descriptor":
    kept = space()
elif sys.argv[1] == "process":
    make()
elif sys.argv[1] == "process with a root of its own":
    make()
    kept = os.open("/", os.O_PATH)
    os.chroot("/usr")
elif sys.argv[1] == "thread":
    import threading
    assert libc.unshare(0x10000000) == 0  # a process of one thread only may do that
    def stay():
        make(0x20000)
        print("kept", flush=True)
        sys.stdin.read()
    threading.Thread(target=stay).start()
    threading.Event().wait()
elif sys.argv[1] == "detached tree":
    def clone():
        tree = libc.syscall(428, -100, b"/", 0x8001)  # open_tree: OPEN_TREE_CLONE, AT_RECURSIVE
        socket.send_fds(theirs, [b"x"], [tree])
    ours, theirs = socket.socketpair()
    os.close(space(clone))
    kept = socket.recv_fds(ours, 1, 1)[1][0]
elif sys.argv[1] == "mount":
    make()
    bind()
elif sys.argv[1] == "mount in a descriptor":
    kept = space(bind)
elif sys.argv[1] == "subordinate":
    assert libc.unshare(0x10000000) == 0
    print("unshared", flush=True)
    sys.stdin.readline()
    os.setresgid(1, 1, 1)
    os.setresuid(1, 1, 1)
    libc.prctl(4, 1, 0, 0, 0)  # dumpable again, so that it may write its own map
    make()
print("kept", flush=True)
sys.stdin.read()
"""


@contextmanager
def keeping(what: str) -> Iterator[int]:
    """A process of the agent's that keeps a mount namespace; its number."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", _KEEP, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        user=AGENT, group=AGENT, extra_groups=[], bufsize=0,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            if what == "subordinate":
                assert process.stdout.readline() == b"unshared\n"
                for name in ("uid_map", "gid_map"):
                    text = f"0 {AGENT} 1\n1 100000 1\n"
                    Path(f"/proc/{process.pid}/{name}").write_text(text)
                process.stdin.write(b"\n")
            assert process.stdout.readline() == b"kept\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.every_processor
@pytest.mark.parametrize(
    "what",
    [
        "process",
        "process with a root of its own",
        "descriptor",
        "mount",
        "mount in a descriptor",
        "thread",
        "detached tree",
        "subordinate",
    ],
)
def test_a_guard_does_not_start_while_a_namespace_shows_the_share(here: Path, what: str) -> None:
    # A file system of its own, as a share is: what else they hold is not on its device.
    subprocess.run(["mount", "-t", "tmpfs", "t", here / "source"], check=True)
    try:
        with keeping(what) as pid:
            for _ in range(2):  # the second one takes the first one's seal over
                done = _run(here)
                assert done.returncode == 32, done.stderr
                found = "descriptor" if what == "detached tree" else "a mount namespace"
                assert found in done.stderr, done.stderr
                assert f"{pid} (python3): " in done.stderr
                assert _is_sealed(here)
        done = _run(here)
        assert done.returncode == 0, done.stderr
    finally:
        unmount(here / "view")
        subprocess.run(["umount", "-l", here / "source"], check=True)


def test_who_came_after_the_check_keeps_no_guard_from_starting(here: Path) -> None:
    """The seal itself says that it was checked: a sandbox of the agent's has copies of both."""
    daemon = subprocess.Popen(
        [*command(here / "source", here / "view", "--seal"), "-f"], stderr=subprocess.DEVNULL
    )
    until(lambda: (here / "view/file").exists(), "the view answers")
    with keeping("process"):
        daemon.kill()
        daemon.wait()
        done = _run(here)
        assert done.returncode == 0, done.stderr


def test_where_only_root_gets_to_the_share_no_namespace_shows_it(here: Path) -> None:
    here.chmod(0o700)
    with keeping("process"):
        done = _run(here)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["process", "process with a root of its own", "descriptor"])
def test_nor_while_one_shows_it_from_another_place_where_it_was_before(
    here: Path, what: str
) -> None:
    """Mounted twice, a virtiofs share is one file system; a bind mount stands in for that."""
    before = here / "before"
    before.mkdir()
    (here / "closed/source").mkdir(parents=True)
    (here / "closed").chmod(0o700)
    place = here / "closed/source"
    subprocess.run(["mount", "-t", "tmpfs", "t", before], check=True)
    try:
        with keeping(what) as pid:
            subprocess.run(["mount", "--bind", before, place], check=True)
            subprocess.run(["umount", before], check=True)
            done = run_to_end(place, here / "view", "--seal")
            assert done.returncode == 32, done.stderr
            assert f"{pid} (python3): " in done.stderr
        done = run_to_end(place, here / "view", "--seal")
        assert done.returncode == 0, done.stderr
    finally:
        unmount(here / "view")
        while place.is_mount() or before.is_mount():
            left = place if place.is_mount() else before
            subprocess.run(["umount", "-l", left], check=True)


@pytest.mark.parametrize("mounts_it", [True, False], ids=["a share", "a directory"])
def test_a_copy_of_a_closed_place_is_closed_in_each_namespace(here: Path, mounts_it: bool) -> None:
    place = here / "closed/source"
    place.mkdir(parents=True)
    (here / "closed").chmod(0o700)
    if mounts_it:
        subprocess.run(["mount", "-t", "tmpfs", "t", place], check=True)
    try:
        with keeping("process"):
            done = run_to_end(place, here / "view", "--seal")
            assert done.returncode == 0, done.stderr
    finally:
        unmount(here / "view")
        while place.is_mount():
            subprocess.run(["umount", "-l", place], check=True)
