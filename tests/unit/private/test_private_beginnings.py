"""A host's repository that is not finished yet, or that another one has taken the place of."""

import errno
import fcntl
import json
import os
import select
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
from click.testing import CliRunner

from gitguardfs.base import store_directory
from gitguardfs.commands.private import command
from gitguardfs.private import reader, store
from gitguardfs.private import repositories as private_repositories
from gitguardfs.private.host_repository import HostRepository
from gitguardfs.private.reader import Source
from tests.support.mounting import until
from tests.support.people import AGENT, as_user
from tests.support.private_world import World, made_project
from tests.support.raw_calls import MNT_DETACH, mount, umount
from tests.support.repos import as_host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")


project = made_project


# The first open comes too early


def begin(project: World, how: str) -> Path:
    """Take the repository away, and leave what git clone, git init or cp has made so far."""
    dotgit, kept = project.project / ".git", project.area / "kept"
    dotgit.rename(kept)
    if how == "init":
        project.host("init", "--quiet", "--template=", "--initial-branch=master")
    elif how == "tags first":
        shutil.copytree(kept, dotgit)
        (dotgit / "HEAD").write_text("ref: refs/heads/master\n")
        (dotgit / "refs/heads/main").unlink()
        os.chown(dotgit, 501, 20)
    elif how == "no HEAD":
        (dotgit / "refs").mkdir(parents=True)
    elif how == "no objects":
        shutil.copytree(kept, dotgit)
        shutil.rmtree(dotgit / "objects")
        (dotgit / "objects").mkdir()
    return kept


def finish(project: World, kept: Path) -> None:
    shutil.rmtree(project.project / ".git")
    kept.rename(project.project / ".git")


EARLY = ["init", "tags first", "no HEAD", "no objects"]


@pytest.mark.parametrize("how", EARLY)
def test_an_open_during_a_clone_makes_no_lasting_difference(project: World, how: str) -> None:
    kept = begin(project, how)
    project.prepare()
    project.show()
    project.agent("status")
    project.agent("fetch", "host")
    finish(project, kept)
    project.prepare()
    project.show()
    assert project.agent("status", "--short", "--branch") == "## main...host/main"
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    assert project.agent("tag") == "v1"
    assert "started empty" not in (project.mine / "GITGUARD").read_text()
    names = {path.name for path in project.directory.iterdir()}
    assert names == {"agent", "host.git", "host.path", "host.state"}


USES = {
    "index": ("add", "a"),
    "commit": ("commit", "--quiet", "--allow-empty", "--message", "mine"),
    "branch": ("switch", "--quiet", "--create", "own"),
    "setting": ("config", "user.name", "Agent"),
    "object": ("hash-object", "-w", "a"),
    "hook": ("-c", 'alias.use=!: >"$(git rev-parse --git-dir)"/hooks/pre-commit', "use"),
    "exclude": ("-c", 'alias.use=!echo x >>"$(git rev-parse --git-dir)"/info/exclude', "use"),
    "description": ("-c", 'alias.use=!: >"$(git rev-parse --git-dir)"/description', "use"),
}


@pytest.mark.parametrize("use", USES)
def test_what_the_agent_has_begun_stays(
    project: World, use: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept = begin(project, "init")
    project.prepare()
    project.show()
    project.agent(*USES[use])
    before = project.mine.stat().st_ino
    finish(project, kept)
    project.prepare()
    assert project.mine.stat().st_ino == before
    assert f"gitguard private reset {project.directory}" in caplog.text
    caplog.clear()
    project.prepare()
    assert not caplog.text
    project.agent("fetch", "--quiet", "host")
    assert project.agent("log", "-1", "--format=%s", "host/main") == "two"


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(f"{path}.real")
    path.symlink_to(f"{path}.real")


@pytest.mark.parametrize("make", [_fifo, _link])
@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs"])
def test_whatever_the_agent_makes_of_it_is_looked_at_without_harm(
    project: World, name: str, make: Callable[[Path], None]
) -> None:
    kept = begin(project, "init")
    project.prepare()
    as_user(make, project.mine / name)
    before = project.mine.stat().st_ino
    finish(project, kept)
    project.prepare()
    assert project.mine.stat().st_ino == before


@pytest.mark.parametrize("name", [".", "refs/heads"])
def test_a_file_system_of_the_agents_in_an_unused_one_stops_nobody(
    project: World, name: str
) -> None:
    kept = begin(project, "init")
    project.prepare()
    finish(project, kept)
    device = os.open("/dev/fuse", os.O_RDWR)
    # What fusermount does where the system lets users show their file systems to others.
    options = f"fd={device},rootmode=40000,user_id={AGENT},group_id={AGENT},allow_other"
    mount("own", project.mine / name, "fuse", data=options)
    try:
        project.prepare()
        assert project.objects()
    finally:
        umount(project.mine / name, MNT_DETACH)
        os.close(device)


@pytest.mark.parametrize("what", ["HEAD", "objects"])
def test_a_host_that_changes_meanwhile_makes_no_empty_repository(project: World, what: str) -> None:
    objects = project.project / ".git/objects"
    objects.rename(project.area / "kept")
    objects.mkdir()
    places = [objects / f"{number:02x}" for number in range(256)]
    ended = threading.Event()

    def change() -> None:
        last = places[-1]
        last.mkdir()
        for place in cycle(places):
            if ended.is_set():
                break
            if what == "HEAD":
                os.utime(project.project / ".git/HEAD")
            else:
                place.mkdir()
                last.rmdir()
                last = place
        last.rmdir()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with pytest.raises(OSError) as caught:
            project.prepare()
    finally:
        ended.set()
        thread.join()
    assert caught.value.errno == errno.EAGAIN
    assert not project.mine.exists()
    objects.rmdir()
    (project.area / "kept").rename(objects)
    project.prepare()
    project.show()
    assert project.agent("status", "--short", "--branch") == "## main...host/main"


def packs_meanwhile(project: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the human's git pack the objects anew, once, after a look at them."""
    pack = project.project / ".git/objects/pack"
    former = [*pack.iterdir()]
    look = reader.source_of

    def source_of(host: HostRepository, scratch: str) -> Source:
        source = look(host, scratch)
        monkeypatch.setattr(private_repositories, "source_of", look)
        if former:
            for path in former:
                path.rename(pack / f"pack-{'0' * 40}{path.suffix}")
        else:
            project.host("repack", "-adq")
        return source

    monkeypatch.setattr(private_repositories, "source_of", source_of)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_first_open_while_the_humans_git_packs_has_all(
    project: World, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_packed:
        project.host("repack", "-adq")
    packs_meanwhile(project, monkeypatch)
    project.prepare()
    project.show()
    assert project.agent("status", "--short", "--branch") == "## main...host/main"


def test_a_reset_while_the_humans_repository_cannot_be_used(project: World) -> None:
    project.prepare()
    head, kept = project.project / ".git/HEAD", project.area / "HEAD"
    head.rename(kept)
    run(project, "reset", "proj", "--yes")
    project.prepare()
    project.show()
    assert project.agent("status", "--short", "--branch") == "## main...host/main"
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    assert "started empty" not in (project.mine / "GITGUARD").read_text()
    before = project.mine.stat().st_ino
    kept.rename(head)
    commit = project.commit("three", {})
    project.prepare()
    assert commit in project.objects() and project.mine.stat().st_ino == before


# Another project at the same path


def run(project: World, *words: str) -> str:
    done = CliRunner().invoke(command, [*words, "--store", str(project.store)])
    assert done.exit_code == 0, done.output
    return done.stdout


def listed(project: World) -> list[tuple[str, bool]]:
    found = json.loads(run(project, "list", "--json"))
    return [(one["directory"], one["former"]) for one in found]


def other_project(project: World) -> None:
    """Put another project there, as rm and git clone do; what is published goes as well."""
    shutil.rmtree(project.project)
    project.project.mkdir()
    os.chown(project.project, 501, 20)
    project.host("init", "--quiet", "--template=", "--initial-branch=main")
    project.commit("other", {"x": "x\n"})


@pytest.fixture
def used(project: World) -> World:
    """A project in whose agent's repository there is a commit."""
    project.prepare()
    project.show()
    project.agent("commit", "--quiet", "--allow-empty", "--message", "mine")
    return project


def test_another_project_has_a_repository_of_its_own(
    used: World, caplog: pytest.LogCaptureFixture
) -> None:
    old = used.directory
    other_project(used)
    used.prepare()
    assert used.directory != old and str(old) in caplog.text
    used.show()
    assert used.agent("status", "--short", "--branch") == "## main...host/main"
    assert used.agent("log", "--all", "--format=%s") == "other"
    used.agent("commit", "--quiet", "--allow-empty", "--message", "new")
    heads = used.agent("bundle", "list-heads", ".gitguard/agent.bundle")
    assert heads.split()[1:] == ["refs/heads/main"]
    # The old one is whole, and the agent is told where it is.
    assert str(old / "agent") in (used.mine / "GITGUARD").read_text()
    assert used.agent(f"--git-dir={old}/agent", "log", "--format=%s").split() == [
        "mine", "two", "one",
    ]  # fmt: skip
    assert used.agent(f"--git-dir={old}/agent", "fsck") == ""
    assert listed(used) == [(str(used.directory), False), (str(old), True)]
    assert run(used, "list").count("(former)") == 1


def test_former_ones_are_removed_by_their_directory_only(used: World) -> None:
    old = used.directory
    other_project(used)
    used.prepare()
    new = used.directory
    run(used, "reset", "proj", "--yes")
    assert (old / "agent").exists() and not (new / "agent").exists()
    used.prepare()
    run(used, "remove", str(old), "--yes")
    assert listed(used) == [(str(new), False)]
    used.prepare()
    assert used.directory == new and used.mine.exists()
    run(used, "remove", "proj", "--yes")
    used.prepare()
    assert listed(used) == [(str(new), False)]


def rewrite(project: World) -> None:
    """Write all commits anew, the first one too, and lead no name to the old ones."""
    parent: tuple[str, ...] = ()
    for line in project.host("log", "--reverse", "--format=%T %s").splitlines():
        tree, text = line.split()
        parent = ("-p", project.host("commit-tree", "-m", f"new-{text}", *parent, tree).strip())
    project.host("update-ref", "refs/heads/main", parent[1])
    project.host("branch", "--delete", "--force", "topic")
    project.host("tag", "--delete", "v1")


def test_a_rewrite_of_the_whole_history_keeps_the_agents_commits(used: World) -> None:
    old = used.directory
    rewrite(used)
    used.host("gc", "--quiet", "--prune=now")
    used.prepare()
    used.show()
    assert used.directory != old
    assert used.agent("log", "--format=%s").split() == ["new-two", "new-one"]
    assert used.agent(f"--git-dir={old}/agent", "log", "-1", "--format=%s") == "mine"
    # What was done there can be taken over.
    used.agent("fetch", "--quiet", f"{old}/agent", "main")
    used.agent("cherry-pick", "--allow-empty", "FETCH_HEAD")
    assert used.agent("log", "--format=%s").split() == ["mine", "new-two", "new-one"]


def only_main(project: World) -> None:
    project.host("branch", "--delete", "topic")
    project.host("tag", "--delete", "v1")
    project.host("repack", "-adq")


@pytest.mark.parametrize("how", ["amended", "cloned anew", "rewritten and kept", "ahead"])
def test_the_same_project_keeps_its_repository(used: World, how: str) -> None:
    old = used.directory
    if how == "amended":
        only_main(used)
        used.prepare()
        used.host("commit", "--quiet", "--amend", "--message", "changed")
        used.host("reflog", "expire", "--expire=now", "--all")
        used.host("gc", "--quiet", "--prune=now")
    elif how == "cloned anew":
        used.commit("three", {})
        used.host("clone", "--quiet", "--no-local", "--no-tags", ".", "../new")
        shutil.rmtree(used.project / ".git")
        (used.share / "new/.git").rename(used.project / ".git")
    elif how == "rewritten and kept":
        rewrite(used)
    else:
        used.commit("three", {})
    commit = used.host("rev-parse", "HEAD").strip()
    used.prepare()
    assert used.directory == old and commit in used.objects()
    assert listed(used) == [(str(old), False)]


def test_a_project_whose_objects_are_packed_meanwhile_is_the_same(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_main(project)
    project.prepare()
    old = project.directory
    commit = project.commit("three", {})
    packs_meanwhile(project, monkeypatch)
    monkeypatch.setattr(private_repositories, "LOOK_SECONDS", 0.0)
    daemon = project.daemon()
    project.prepare(daemon)
    assert listed(project) == [(str(old), False)]
    project.prepare(daemon)  # looks again soon
    assert commit in project.objects()


@pytest.mark.parametrize("how", ["unreadable", "damaged"])
def test_packs_that_cannot_be_read_are_not_another_project(project: World, how: str) -> None:
    only_main(project)
    text = project.prepare_own()
    project.commit("three", {})
    packs = list((project.project / ".git/objects/pack").glob("*.idx"))
    for path in packs:
        path.chmod(0o000 if how == "unreadable" else 0o644)
        if how == "damaged":
            path.write_bytes(b"damaged")
    assert project.prepare_own() == text


def test_a_first_open_of_packs_that_cannot_be_read_makes_nothing(project: World) -> None:
    project.host("repack", "-adq")
    packs = list((project.project / ".git/objects/pack").glob("*.pack"))
    for path in packs:
        path.chmod(0)
    with pytest.raises(AssertionError, match="Permission denied"):
        project.prepare_own()
    for path in packs:
        path.chmod(0o444)
    text = project.prepare_own()
    done = project.host(f"--git-dir={text.split()[1]}", "log", "--format=%s")
    assert done.split() == ["two", "one"]


def test_a_repository_without_a_branch_says_nothing_yet(used: World) -> None:
    """It may be the same project, which is being cloned anew."""
    old, kept = used.directory, used.area / "kept"
    (used.project / ".git").rename(kept)
    used.host("init", "--quiet", "--template=")
    used.prepare()
    assert used.directory == old
    finish(used, kept)
    used.prepare()
    assert listed(used) == [(str(old), False)]
    assert used.agent("log", "-1", "--format=%s") == "mine"


def test_a_damaged_repository_is_not_another_project(used: World) -> None:
    old = used.directory
    shutil.rmtree(used.project / ".git/objects")
    (used.project / ".git/objects").mkdir()
    used.host("update-ref", "--no-deref", "-d", "refs/heads/topic")
    (used.project / ".git/refs/heads/main").write_text("1" * 40 + "\n")
    (used.project / ".git/refs/tags/v1").unlink()
    used.prepare()
    assert listed(used) == [(str(old), False)]


# A fetch that takes long


def fetches_into(place: Path) -> bool:
    """Whether git is fetching there."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if b"fetch" in words and os.readlink(f"/proc/{name}/cwd") == str(place):
                return True
    return False


def big(project: World) -> str:
    with as_host():
        (project.project / "big").write_bytes(os.urandom(8 << 20))
    return project.commit("big", {})


def test_an_open_does_not_wait_for_a_long_fetch_which_goes_on(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.prepare()
    commit = big(project)
    monkeypatch.setattr(private_repositories, "WAIT_SECONDS", 0.0)
    daemon = project.daemon()
    for _ in range(3):
        project.prepare(daemon)
    assert commit not in project.objects()
    until(lambda: commit in project.objects(), "the fetch is done")


@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), 9)])
def test_a_fetch_ends_with_the_daemon(
    project: World, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.prepare()
    commit = big(project)
    with monkeypatch.context() as patch:
        patch.setattr(private_repositories, "WAIT_SECONDS", 0.0)
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                project.prepare()
                until(lambda: fetches_into(project.copy), "git fetches")
                end()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 1
    assert commit not in project.objects()
    until(lambda: not fetches_into(project.copy), "git has ended")
    assert commit not in project.objects()
    project.prepare()
    assert commit in project.objects()


# What was left


@contextmanager
def never_answering(path: Path) -> Iterator[None]:
    """Mount a FUSE file system of the agent's that takes requests, and answers the first only."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={AGENT},group_id={AGENT},allow_other"
    mount("own", path, "fuse", data=options)
    first = os.read(device, 1 << 20)
    protocol = struct.pack("<4I2H2I", 7, 31, 1 << 16, 0, 12, 9, 1 << 17, 1).ljust(64, b"\0")
    os.write(device, struct.pack("<IiQ", 80, 0, *struct.unpack_from("<Q", first, 8)) + protocol)
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            if select.select([device], [], [], 0.05)[0]:
                os.read(device, 1 << 20)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(device)  # ends what waits for it


def test_a_file_system_that_never_answers_stops_no_removal_and_no_start(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.prepare()
    monkeypatch.setattr(store, "TIDY_SECONDS", 0.3)
    with never_answering(project.mine / "hooks"):
        store_directory.remove_tree(str(project.mine), 0.3)
        (gone,) = set(os.listdir(project.directory)) - store.KEPT
        project.prepare()
        assert set(os.listdir(project.directory)) - store.KEPT == {gone}
        assert project.mine.exists()
    umount(project.directory / gone / "hooks", MNT_DETACH)
    project.daemon()
    assert set(os.listdir(project.directory)) <= store.KEPT


def test_what_a_killed_daemon_left_goes_at_the_next_start(project: World) -> None:
    project.prepare()
    other = World(project.area, "other")
    left = [
        Path(f"{directory}.{ending}")
        for directory in (project.directory, other.directory)
        for ending in ("new", "refs", "gone-12345678", "new.gone-12345678")
    ]
    left += [project.directory / name for name in ("agent.new", "agent.gone-12345678", "reader")]
    for path in left:
        (path / "deep").mkdir(parents=True)
    part = project.directory / "host.state.part"
    part.write_text("")
    lock = os.open(f"{other.directory}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    project.daemon()
    stays = [path for path in [*left, part] if path.exists()]
    assert stays == left[4:8], "what another daemon is making"
    os.close(lock)
    project.daemon()
    assert not any(path.exists() for path in left)
    project.show()
    assert project.agent("log", "-1", "--format=%s") == "two"
