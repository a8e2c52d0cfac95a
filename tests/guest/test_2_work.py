"""Everyday work in the guarded directory, and what the host sees of it."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.guest.machine import Machine
from tests.guest.setting_up import AGENT, are_modules_kept, make_modules
from tests.guest.world import GUARDS, Guard, World
from tests.support.mounting import until
from tests.support.repos import HOST_GID, HOST_UID, as_host, git

EACH = pytest.mark.parametrize("each", GUARDS, ids=str)
HOST = (HOST_UID, HOST_GID)

CACHE_TIMEOUT = 1.0
MARGIN = 4.0
"""Seconds on top of the cache timeout: an emulated guest on a busy machine."""


def owner(path: Path) -> tuple[int, int]:
    state = os.lstat(path)
    return state.st_uid, state.st_gid


@EACH
def test_what_the_agent_makes_is_the_hosts(guarded: World, each: Guard) -> None:
    guarded.machine.sh(
        "mkdir -p new/deep && echo text >new/deep/file && ln -s file new/deep/link && "
        "ln new/deep/file new/deep/hard && chmod 640 new/deep/file",
        cwd=each.view,
        uid=AGENT,
    )
    host = guarded.at[each.tag] / "new"
    for name in ("", "deep", "deep/file", "deep/link", "deep/hard"):
        assert owner(host / name) == HOST, name
    assert (host / "deep/file").read_text() == "text\n"
    assert (host / "deep/file").stat().st_mode & 0o7777 == 0o640
    assert (host / "deep/file").stat().st_nlink == 2
    assert os.readlink(host / "deep/link") == "file"


@EACH
def test_what_the_host_makes_is_the_agents(guarded: World, each: Guard) -> None:
    with as_host():
        (guarded.at[each.tag] / "from-host").mkdir(mode=0o700)
        (guarded.at[each.tag] / "from-host/file").write_text("text\n")
    seen = guarded.machine.sh(
        "stat -c %u:%g from-host from-host/file; cat from-host/file; rm -r from-host",
        cwd=each.view,
        uid=AGENT,
    )
    assert seen.split() == ["1000:1000", "1000:1000", "text"]
    assert not (guarded.at[each.tag] / "from-host").exists()


@EACH
def test_root_of_the_guest_can_work_there_too(guarded: World, each: Guard) -> None:
    guarded.machine.sh("echo x >by-root && chown 1000:1000 by-root", cwd=each.view)
    assert owner(guarded.at[each.tag] / "by-root") == HOST
    guarded.machine.sh("rm by-root", cwd=each.view, uid=AGENT)


@EACH
def test_the_host_commits_what_the_agent_wrote(guarded: World, each: Guard) -> None:
    host = guarded.at[each.tag] / "demo"
    guarded.machine.sh(
        "sed -i s/host/agent/ hello.c && mkdir lib && "
        "printf 'int x;\\n' >lib/x.c && mv README README.md",
        cwd=f"{each.view}/demo",
        uid=AGENT,
    )
    status = git(host, "status", "--short").splitlines()
    assert {" M hello.c", " D README", "?? README.md", "?? lib/"} <= set(status)
    git(host, "add", "--all")
    git(host, "commit", "--quiet", "--message=by the agent")
    assert git(host, "status", "--short") == ""
    assert git(host, "fsck", "--strict") == ""
    assert "hello from the agent" in git(host, "show", "HEAD:hello.c")
    guarded.machine.run("git log", cwd=f"{each.view}/demo", uid=AGENT).failed("fatal")


@EACH
def test_host_and_agent_each_have_their_own_dependencies(guarded: World, each: Guard) -> None:
    host = guarded.at[each.tag] / "node_modules"
    with as_host():
        host.mkdir()
        (host / "the-hosts").touch()
    make_modules(guarded.machine, each)
    seen = guarded.machine.sh(
        "set -e; ls node_modules; cd node_modules; mkdir a; ln -s ../demo/Makefile link; ln x hard;"
        " mv hard a; head -n1 link; pwd -P; if mv --no-copy a ..; then exit 1; fi; mkdir a/.git;"
        " rm -r a",
        cwd=each.view,
        uid=AGENT,
    )
    assert seen.split("\n") == ["x", "hello: hello.o", f"{each.view}/node_modules"]
    assert os.listdir(host) == ["the-hosts"]
    shutil.rmtree(host)
    are_modules_kept(guarded.machine, each, host.parent)


# ---------------------------------------------------------------------------- coherence


@EACH
def test_a_file_opened_after_an_edit_on_the_host_is_fresh(guarded: World, each: Guard) -> None:
    path = guarded.at[each.tag] / "fresh"
    for number in range(15):
        text = f"version {number} " + "x" * (number * 700)
        with as_host():
            path.write_text(text)
        assert guarded.machine.sh(["cat", f"{each.view}/fresh"], uid=AGENT) == text


@EACH
def test_an_edit_of_the_same_size_is_fresh_too(guarded: World, each: Guard) -> None:
    path = guarded.at[each.tag] / "same"
    for number in range(10, 20):
        with as_host():
            path.write_text(f"version {number}")
        assert guarded.machine.sh(["cat", f"{each.view}/same"], uid=AGENT) == f"version {number}"


@EACH
def test_names_and_attributes_show_within_the_cache_timeout(guarded: World, each: Guard) -> None:
    machine, host = guarded.machine, guarded.at[each.tag]

    def within(condition: str, what: str) -> None:
        started = time.monotonic()
        until(
            lambda: machine.run(condition, cwd=each.view, uid=AGENT).rc == 0,
            what,
            CACHE_TIMEOUT + MARGIN,
        )
        assert time.monotonic() - started < CACHE_TIMEOUT + MARGIN

    machine.run("ls soon", cwd=each.view, uid=AGENT).failed("soon")
    with as_host():
        (host / "soon").write_text("x")
    within("test -e soon && ls | grep -qx soon", "a new name")
    (host / "soon").chmod(0o600)
    within("test $(stat -c %a soon) = 600", "a new mode")
    with as_host():
        (host / "soon").rename(host / "later")
    within("test -e later && ! test -e soon", "a name that moved")
    (host / "later").unlink()
    within("! test -e later && ! ls | grep -q later", "a name that is gone")


USED_AGAIN = 12


@EACH
def test_what_the_host_moves_can_be_used_where_it_is_then(guarded: World, each: Guard) -> None:
    """The guest has descriptors of all of it, and 9p's server knows those by their old paths."""
    machine, host = guarded.machine, guarded.at[each.tag]
    machine.sh(
        "mkdir -p before/in && echo text >before/in/file && chmod 600 before/in/file && "
        "ls -l before before/in && exec 3<before/in && stat before/in/file",
        cwd=each.view,
        uid=AGENT,
    )
    with as_host():
        (host / "before").rename(host / "after")
    time.sleep(CACHE_TIMEOUT + 0.5)
    seen = machine.sh(
        "cat in/file && chmod 644 in/file && echo more >>in/file && touch in/y && "
        "mkdir in/z && mv in/y in/z && mv in/file . && cat file && rm -r in file",
        cwd=f"{each.view}/after",
        uid=AGENT,
    )
    assert seen.split() == ["text", "text", "more"]
    assert os.listdir(host / "after") == []


@EACH
def test_what_the_host_puts_in_the_place_of_another_is_not_mistaken(
    guarded: World, each: Guard
) -> None:
    """As builds replace their results; the object that is removed then is the old one."""
    machine, host = guarded.machine, guarded.at[each.tag]
    machine.sh(
        "mkdir -p dist/assets coming/assets && touch dist/assets/gone coming/assets/live && "
        "ls -lR dist coming",
        cwd=each.view,
        uid=AGENT,
    )
    with as_host():
        (host / "dist").rename(host / "former")
        (host / "coming").rename(host / "dist")
    time.sleep(CACHE_TIMEOUT + 0.5)
    seen = machine.sh(
        "ls former former/assets && rm -r former && ls dist/assets", cwd=each.view, uid=AGENT
    )
    assert seen.split() == ["former:", "assets", "former/assets:", "gone", "live"]
    assert (host / "dist/assets/live").exists()
    assert not (host / "former").exists()


@EACH
def test_inode_numbers_that_the_host_frees_are_not_mistaken(guarded: World, each: Guard) -> None:
    """A file system gives the number of what was removed to what is made next."""
    machine, host = guarded.machine, guarded.at[each.tag]

    def fill(path: str) -> str:  # with few processes: each takes a tenth of a second to start
        make = f"mkdir -p {path}/{{1..{USED_AGAIN}}}/in"
        return f"set -e; {make}; cd {path}; for n in *; do echo $n >$n/in/f; done; ls -lR"

    machine.sh(fill("first"), cwd=each.view, uid=AGENT)
    with as_host():
        shutil.rmtree(host / "first")
    machine.sh(fill("second"), cwd=each.view, uid=AGENT)
    # The kernel's 9p client takes what is still open for the new file of the same number.
    time.sleep(CACHE_TIMEOUT)
    with as_host():
        shutil.rmtree(host / "second")
        for number in range(USED_AGAIN):
            (host / f"third/{number}/in").mkdir(parents=True)
            (host / f"third/{number}/in/f").write_text(f"{number}\n")
    seen = machine.sh(
        "set -e; cd third; cat */in/f; for n in *; do echo $n >>$n/in/f; on+=($n/in/on); done; "
        "mkdir ${on[@]}; cat */in/f | wc -l; cd ..; rm -r third",
        cwd=each.view,
        uid=AGENT,
    ).split()
    assert sorted(seen[:-1], key=int) == [str(number) for number in range(USED_AGAIN)]
    assert seen[-1] == str(2 * USED_AGAIN)


@EACH
def test_a_reader_follows_a_file_that_grows_on_the_host(guarded: World, each: Guard) -> None:
    path = guarded.at[each.tag] / "log"
    with as_host():
        path.write_text("line 0\n")
    following = guarded.machine.channel.start(
        f"timeout 20 sh -c 'tail -n +1 -s 0.2 ---disable-inotify -f {each.view}/log | head -n 3'",
        uid=AGENT,
    )
    for number in (1, 2):
        time.sleep(0.5)
        with as_host(), open(path, "a") as file:
            file.write(f"line {number}\n")
    time.sleep(3)
    with as_host(), open(path, "a") as file:
        file.write("end\nend\n")  # head is gone: lets tail end
    done = guarded.machine.channel.finish("tail", following, 30)
    assert done.stdout.splitlines() == ["line 0", "line 1", "line 2"], str(done)


@EACH
def test_lines_that_both_append_are_all_there(guarded: World, each: Guard) -> None:
    path = guarded.at[each.tag] / "both"
    with as_host():
        path.write_text("")
    writing = guarded.machine.channel.start(
        f"for i in $(seq 40); do echo guest $i >>{each.view}/both; done", uid=AGENT
    )
    for number in range(40):
        with as_host(), open(path, "a") as file:
            file.write(f"host {number}\n")
        time.sleep(0.01)
    guarded.machine.channel.finish("appending", writing, 60).ok()
    lines = path.read_text().splitlines()
    assert sum(line.startswith("guest") for line in lines) == 40
    assert sum(line.startswith("host") for line in lines) == 40


# ----------------------------------------------------------------------------- programs


@pytest.fixture(params=GUARDS, ids=str)
def desk(request: pytest.FixtureRequest, guarded: World) -> tuple[Machine, str, Path]:
    """An empty directory of the agent's: the guest, its path there, its path on the host."""
    each, name = request.param, request.node.originalname
    guarded.machine.sh(f"mkdir {each.view}/{name}", uid=AGENT)
    return guarded.machine, f"{each.view}/{name}", guarded.at[each.tag] / name


@pytest.mark.parametrize(
    ("desk", "journal"), [*zip(GUARDS, ("delete", "wal"), strict=True)], indirect=["desk"], ids=str
)
def test_sqlite_keeps_its_promises(desk: tuple[Machine, str, Path], journal: str) -> None:
    machine, view, host = desk
    machine.sh(
        f'set -e -o pipefail; sqlite3 t.db "pragma journal_mode={journal}; '
        "create table t(i integer primary key, x text); begin; "
        "insert into t(x) select hex(randomblob(50)) from generate_series(1,500); commit; "
        "update t set x='y' where i%2; pragma integrity_check;\" | tail -1 | grep -qx ok; "
        "for p in 1 2 3; do (for i in 1 2 3; do sqlite3 -cmd '.timeout 20000' t.db "
        "\"insert into t(x) values('process $p');\" || exit 1; done) & done; wait; "
        "test $(sqlite3 t.db \"select count(*) from t where x like 'process%'\") = 9",
        cwd=view,
        uid=AGENT,
        timeout=180,
    )
    assert (host / "t.db").read_bytes().startswith(b"SQLite format 3")


def test_large_files_come_through_whole(desk: tuple[Machine, str, Path]) -> None:
    machine, view, host = desk
    sums = machine.sh(
        "dd if=/dev/urandom of=big bs=1M count=3 status=none && sha256sum <big && "
        "truncate -s 2000001 big && dd if=big bs=4321 status=none | sha256sum",
        cwd=view,
        uid=AGENT,
        timeout=180,
    )
    assert len((host / "big").read_bytes()) == 2_000_001
    assert hashlib.sha256((host / "big").read_bytes()).hexdigest() == sums.split()[2]


def test_names_of_every_kind_reach_the_host(desk: tuple[Machine, str, Path]) -> None:
    machine, view, host = desk
    names = [
        "ä ö",
        "-rf",
        "new\nline",
        "quote'\"",
        "b\\s",
        "x" * 255,
        "日本",
        "a,b:c",
        "\udcff\udcfe",
    ]
    script = (
        "import sys, os, base64\n"
        "for each in sys.argv[1:]: open(base64.b64decode(each), 'x').close()\n"
    )
    words = [base64.b64encode(os.fsencode(name)).decode() for name in names]
    machine.run(["python3", "-c", script, *words], cwd=view, uid=AGENT).ok()
    assert sorted(os.listdir(host)) == sorted(names)
