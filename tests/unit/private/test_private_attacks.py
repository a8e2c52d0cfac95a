"""A host's repository that is hostile, damaged or special; a full disk; kill -9."""

import errno
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.base.store_directory import remove_tree
from gitguardfs.private import git, host_repository, seeding, store
from tests.support.own_mounts import own_mount, unmount_own
from tests.support.private_world import World, made_project
from tests.support.raw_calls import MNT_DETACH, mount, umount
from tests.support.repos import HOST_GID, HOST_UID, as_host, differences, metadata
from tests.support.repos import git as host_git

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")


project = made_project


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)


def device(path: Path) -> None:
    os.mknod(path, 0o020644, os.makedev(1, 5))  # /dev/zero, which never ends


def elsewhere(project: World) -> Path:
    """Another repository, outside of the share, with a commit that must not come over."""
    other = project.area / "outside"
    other.mkdir(exist_ok=True)
    os.chown(other, 501, 20)
    host_git(other, "init", "--quiet", "--template=", "--initial-branch=main")
    host_git(other, "commit", "--quiet", "--allow-empty", "--message", "outside")
    return other


# What the host's repository may name

PROGRAM = """#!/bin/sh
: >{}
cat 2>/dev/null
"""


def test_nothing_that_the_hosts_repository_names_is_run_or_read(project: World) -> None:
    ran = project.area / "ran"
    program = project.project / "program"
    program.write_text(PROGRAM.format(ran))
    program.chmod(0o755)
    project.area.chmod(0o1777)
    for key in (
        "core.fsmonitor", "core.sshCommand", "core.editor", "core.pager", "core.askPass",
        "core.alternateRefsCommand", "core.gitProxy", "uploadpack.packObjectsHook",
        "filter.x.clean", "filter.x.process", "gpg.program", "credential.helper",
        "remote.origin.uploadpack", "hook.x.command", "gc.recentObjectsHook", "alias.fetch",
        "alias.upload-pack", "diff.external",
    ):  # fmt: skip
        project.host("config", key, str(program))
    for key, value in (
        ("core.hooksPath", str(project.project)), ("include.path", str(project.area / "included")),
        ("core.worktree", str(project.area)), ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"), ("remote.origin.url", f"ext::{program}"),
        ("url.ext::x.insteadOf", "."), ("transfer.hideRefs", "refs/heads"),
        ("uploadpack.hideRefs", "refs/heads"), ("core.attributesFile", str(program)),
        ("pack.packSizeLimit", "1"),
    ):  # fmt: skip
        project.host("config", key, value)
    (project.area / "included").write_text(
        f"[user]\n\tname = included\n[core]\n\teditor = {program}\n"
    )
    hooks = project.project / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "pre-auto-gc", "reference-transaction", "post-index-change"):
        shutil.copy(program, hooks / name)
    with (project.project / ".git/config").open("a") as file:
        file.write("[core]\n\tcompression = no number\n\trepositoryFormatVersion = 1\n")
        file.write("[extensions]\n\tunknown = true\n")
    project.prepare()
    assert not ran.exists()
    project.show()
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    assert project.agent("config", "user.name", check=False) == ""
    assert str(program) not in (project.mine / "config").read_text()
    assert not ran.exists()


def test_only_values_of_a_known_form_are_taken_over(project: World) -> None:
    (project.project / ".git/config").write_text(
        '[core]\n\tignorecase = true\n\teol = "lf\\n[alias]\\n x = !y"\n\tautocrlf = input\n'
        "[i18n]\n\tcommitEncoding = latin1\n\tlogOutputEncoding = a b\n"
        "[user]\n\tname = human\n\temail = human@example.org\n"
        '[filter "lfs"]\n\tclean = evil %f\n'
    )
    project.prepare()
    project.show()
    listed = project.agent("config", "--local", "--list").split("\n")
    for line in ("core.ignorecase=true", "core.autocrlf=input", "i18n.commitencoding=latin1"):
        assert line in listed
    for key in (
        "core.eol",
        "user.name",
        "user.email",
        "i18n.logoutputencoding",
        "alias.x",
        "filter.lfs.clean",
    ):
        assert not [line for line in listed if line.startswith(f"{key}=")]


def test_replaced_and_grafted_commits_are_the_original_ones(project: World) -> None:
    commit, parent = project.host("rev-parse", "HEAD", "HEAD~").split()
    other = project.host("commit-tree", "-m", "other", f"{parent}^{{tree}}").strip()
    project.host("replace", commit, other)
    with as_host():
        (project.project / ".git/info").mkdir(exist_ok=True)
        (project.project / ".git/info/grafts").write_text(f"{commit}\n")
    project.prepare()
    project.show()
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    assert other not in project.objects()


# What lies outside of the share


@pytest.mark.parametrize("how", ["absolute", "made by the agent", "relative", "http", "symlink"])
def test_alternates_that_lead_out_are_not_followed(project: World, how: str) -> None:
    other = elsewhere(project)
    commit = host_git(other, "rev-parse", "HEAD").strip()
    dotgit = project.project / ".git"
    (dotgit / "objects/info").mkdir(exist_ok=True)
    name = "http-alternates" if how == "http" else "alternates"
    text = {
        "relative": "../../../../outside/.git/objects", "symlink": "../../../way",
        "made by the agent": "/home/human/planted/objects",
    }  # fmt: skip
    if how == "symlink":
        (project.share / "way").symlink_to(other / ".git/objects")
    elif how == "made by the agent":  # the guard refuses it a HEAD and refs beside them
        shutil.copytree(other / ".git/objects", project.share / "planted/objects")
    (dotgit / "objects/info" / name).write_text(text.get(how, f"{other}/.git/objects") + "\n")
    (dotgit / "refs/heads/main").write_text(f"{commit}\n")
    project.prepare()
    assert project.mine.is_dir() and commit not in project.objects()


@pytest.mark.parametrize(
    "how", ["gitfile", "absolute", "gitfile by a symlink", "symlink", "commondir", "objects",
            "pack", "loose", "refs", "HEAD", "packed-refs", "config", "index", "shallow"],
)  # fmt: skip
def test_no_way_out_of_the_share_is_taken(project: World, how: str) -> None:
    other = elsewhere(project)
    host_git(other, "repack", "-adq")
    commit = host_git(other, "rev-parse", "HEAD").strip()
    dotgit = project.project / ".git"
    if how == "gitfile":
        replaced(dotgit, lambda path: path.write_text("gitdir: ../../outside/.git\n"))
    elif how == "absolute":
        replaced(dotgit, lambda path: path.write_text(f"gitdir: {other}/.git\n"))
    elif how == "gitfile by a symlink":
        (project.share / "way").symlink_to(other)
        replaced(dotgit, lambda path: path.write_text("gitdir: ../way/.git\n"))
    elif how == "symlink":
        replaced(dotgit, lambda path: path.symlink_to(other / ".git"))
    elif how == "commondir":
        (dotgit / "commondir").write_text("../../../outside/.git\n")
    elif how == "loose":
        shutil.rmtree(dotgit / "objects")
        (dotgit / "objects").mkdir()
        (dotgit / "objects" / commit[:2]).symlink_to(other / ".git/objects" / commit[:2])
    else:
        name = {"pack": "objects/pack", "refs": "refs/heads"}.get(how, how)
        if how == "pack":
            (dotgit / "refs/heads/main").write_text(f"{commit}\n")
        replaced(dotgit / name, lambda path: path.symlink_to(other / ".git" / name))
    project.prepare()
    assert commit not in project.objects()
    project.show()
    project.agent("status", "--short")
    if how in ("index", "shallow", "refs"):
        return
    assert "started empty" in (project.mine / "GITGUARD").read_text()


def test_an_absolute_path_leads_to_no_other_repository_of_the_share(project: World) -> None:
    """Its end may fit another repository: only that of a worktree names the worktree in turn."""
    other = World(project.area, "other")
    other.project.mkdir()
    os.chown(other.project, 501, 20)
    (other.project / ".git").write_text("gitdir: /home/human/proj/.git\n")
    other.prepare()
    assert "not known to be in this share" in (other.mine / "GITGUARD").read_text()
    assert other.objects() == set()


# Special files and damage: a result in bounded time, and an empty repository that says why


@pytest.mark.parametrize("kind", [os.mkfifo, device], ids=["fifo", "device"])
@pytest.mark.parametrize(
    "name", [".git", "HEAD", "config", "packed-refs", "refs/heads/main", "commondir", "index",
             "objects", "objects/pack/pack-12.pack", "objects/info/alternates", "LOOSE", "shallow",
             "info/exclude"],
)  # fmt: skip
def test_special_files_never_block(
    project: World, name: str, kind: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "SECONDS", 20.0)  # would be reached by git, waiting for a FIFO
    dotgit = project.project / ".git"
    if name == "LOOSE":
        commit = project.host("rev-parse", "HEAD").strip()
        name = f"objects/{commit[:2]}/{commit[2:]}"
    replaced(dotgit if name == ".git" else dotgit / name, kind)
    project.prepare()
    project.show()
    project.agent("status", "--short")
    is_needed = name not in ("index", "info/exclude", "refs/heads/main")
    assert is_needed == ("started empty" in (project.mine / "GITGUARD").read_text())


@pytest.mark.parametrize("name", ["HEAD", "config", "packed-refs", "pack", "loose", "index", "ref"])
def test_damage_gives_an_empty_repository_that_says_why(project: World, name: str) -> None:
    dotgit = project.project / ".git"
    if name in ("pack", "packed-refs"):
        project.host("gc", "--quiet")
    commit = project.host("rev-parse", "HEAD").strip()
    path = {
        "pack": next(dotgit.glob("objects/pack/*.pack"), dotgit),
        "loose": dotgit / "objects" / commit[:2] / commit[2:],
        "ref": dotgit / "refs/heads/main",
    }.get(name, dotgit / name)
    path.chmod(0o644)
    path.write_bytes(b"\x00\xff[ damaged" * 9)
    project.prepare()
    project.show()
    project.agent("status", "--short")
    notes = (project.mine / "GITGUARD").read_text()
    assert ("started empty" in notes) == (name in ("HEAD", "config", "pack", "loose"))


def test_too_much_is_refused(project: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_repository, "MAX_LOOSE_REFS", 3)
    for number in range(4):
        project.host("branch", f"b{number}")
    project.prepare()
    assert "more than 3 branches" in (project.mine / "GITGUARD").read_text()


def test_of_a_large_repository_the_last_commits_come(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.host("gc", "--quiet")
    monkeypatch.setattr(seeding, "PACKS_BYTES", 0)
    monkeypatch.setattr(seeding, "DEPTH", 1)
    project.prepare()
    project.show()
    assert project.agent("log", "--format=%s").split() == ["two"]
    assert "only the last 1 commits" in (project.mine / "GITGUARD").read_text()
    project.commit("three", {"a": "3\n"})
    project.prepare()
    project.show()
    assert project.agent("sync") == "sync: main is at host/main"
    assert project.agent("log", "--format=%s").split() == ["three", "two"]
    assert project.agent("fsck", "--no-dangling") == ""


def test_git_is_ended_at_its_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError) as caught:
        git.run(("config", "--file", str(tmp_path / "fifo"), "--list"), limit=0.5)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_work_tree_that_the_host_moves_is_not_looked_for_where_it_was(project: World) -> None:
    """From there its gitfile would lead to another repository."""
    deep = World(project.area, "x/y/sub")
    with as_host():
        deep.project.mkdir(parents=True)
        (deep.project / ".git").write_text("gitdir: ../outside/.git\n")
    elsewhere(project)
    fd = os.open(deep.project, os.O_PATH)
    (project.share / "x/y/sub").rename(project.share / "sub")
    with pytest.raises(OSError) as caught:
        deep.daemon().prepare(deep.place, fd)
    os.close(fd)
    assert caught.value.errno == errno.ESTALE
    assert not deep.mine.exists()


def test_a_host_that_replaces_its_repository_meanwhile(project: World) -> None:
    """By a symlink to a repository outside of the share, again and again."""
    other = elsewhere(project)
    commit = host_git(other, "rev-parse", "HEAD").strip()
    dotgit, kept = project.project / ".git", project.project / "kept"
    ended = threading.Event()

    def replace() -> None:
        while not ended.is_set():
            dotgit.rename(kept)
            dotgit.symlink_to(other / ".git")
            dotgit.unlink()
            kept.rename(dotgit)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(15):
            with suppress(OSError):  # gone, or a symlink, between two looks
                project.prepare()
            if project.copy.exists():
                assert commit not in project.objects()
            shutil.rmtree(project.directory, ignore_errors=True)
    finally:
        ended.set()
        thread.join()


def test_a_file_system_of_the_agents_over_its_repository_stops_nobody(project: World) -> None:
    """Nothing looks at it: it may never answer."""
    project.prepare()
    with own_mount(project.mine):
        try:
            commit = project.commit("three", {"a": "3\n"})
            project.prepare()
            assert commit in project.objects()
            assert [one.is_reset for one in store.entries(str(project.store))] == [False]
            with pytest.raises(OSError) as caught:
                remove_tree(str(project.mine))
            assert caught.value.errno == errno.EBUSY
        finally:
            unmount_own(project.mine).wait()
    project.show()
    assert project.agent("sync") == "sync: main is at host/main"


# The disk


def test_a_full_disk_is_enospc_and_tried_again(project: World) -> None:
    with as_host():
        (project.project / "big").write_bytes(os.urandom(3 << 20))
    project.commit("big", {})
    shutil.rmtree(project.store)
    project.store.mkdir()
    mount("tmpfs", project.store, "tmpfs", data="mode=711,size=2m")
    try:
        with pytest.raises(OSError) as caught:
            project.prepare()
        assert caught.value.errno == errno.ENOSPC
        left = {path.suffix for path in project.store.iterdir()}
        assert left == {"", ".lock"} and not project.mine.exists()
        subprocess.run(["mount", "-o", "remount,size=64m", project.store], check=True)
        project.repositories = project.daemon()
        project.prepare()
        project.show()
        assert project.agent("status", "--short", "--branch") == "## main...host/main"
    finally:
        umount(project.store, MNT_DETACH)


def test_what_the_disk_reserves_for_root_is_left_for_root(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(project.store)
    project.host("repack", "-a", "-d", "-q")
    packs = sum(path.stat().st_size for path in project.project.glob(".git/objects/pack/*.pack"))
    statvfs = os.statvfs

    def leave_free(blocks: int) -> None:
        def almost_full(path: str) -> os.statvfs_result:
            return os.statvfs_result([*statvfs(path)[:4], blocks, *statvfs(path)[5:10]])

        monkeypatch.setattr(os, "statvfs", almost_full)

    for blocks in (0, packs // statvfs("/").f_frsize):
        leave_free(blocks)
        with pytest.raises(OSError) as caught:
            project.prepare()
        assert caught.value.errno == errno.ENOSPC
        assert not project.copy.exists()
    leave_free(1 << 30)
    project.prepare()


# kill -9

STEPS = (
    (store, "write"), (store, "sync"), (os, "rename"), (os, "mkdir"), (os, "chown"), (os, "chmod"),
    (git, "run"),
)  # fmt: skip


def killed(project: World, step: int) -> bool:
    """Prepare in a process that is killed at a step; return whether there is such a step."""
    left = step

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for module, name in STEPS:
                setattr(module, name, counted(getattr(module, name)))
            project.prepare()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_after_kill_9_a_repository_is_whole_or_not_there(project: World) -> None:
    before = metadata(project.project)
    step, seen = 0, set()
    while killed(project, step):
        seen.add(project.mine.exists())
        if project.mine.exists():
            project.show()
            assert project.agent("status", "--short", "--branch") == "## main...host/main"
            assert project.agent("fsck") == ""
        elif step % 2:  # also upon what several killed ones have left
            shutil.rmtree(project.directory, ignore_errors=True)
        step += 7
    assert seen == {True, False} or step > 50
    project.show()
    assert project.agent("status", "--short", "--branch") == "## main...host/main"
    assert project.agent("fsck") == ""
    names = {path.name for path in project.directory.iterdir()}
    assert names == {"agent", "host.git", "host.path", "host.state"}
    assert differences(before, metadata(project.project)) == []


def test_after_kill_9_while_git_fetches_the_next_one_fetches(project: World) -> None:
    project.prepare()
    project.show()
    project.commit("three", {"b": "3\n"})
    step = 0
    while killed(project, step):
        project.agent("fsck", "--no-dangling")
        step += 3
    project.show()
    project.agent("fetch", "--quiet", "host")
    assert "[behind 1]" in project.agent("status", "--short", "--branch")


@pytest.mark.parametrize("gitfile", ["/outside/main/.git/worktrees/wt", "../wt"])
def test_a_git_directory_of_the_agents_is_not_the_hosts(project: World, gitfile: str) -> None:
    """The main repository of a worktree is elsewhere; its path ends with the work tree's name."""
    secret = project.share / "secret"
    git_made(secret)
    commit = host_git(secret, "rev-parse", "HEAD").strip()
    work_tree = project.share / "wt"
    as_host_write(work_tree / ".git", f"gitdir: {gitfile}\n")
    for name, text in {
        "gitdir": "/outside/main/.git/worktrees/wt/.git\n",
        "HEAD": "ref: refs/heads/stolen\n",
        "packed-refs": f"{commit} refs/heads/stolen\n",
        "objects/info/alternates": "../../secret/.git/objects\n",
    }.items():
        as_host_write(work_tree / name, text)
    other = World(project.area, "wt")
    other.prepare()
    assert not list(other.copy.rglob("*.pack"))
    assert b"stolen" not in (other.copy / "HEAD").read_bytes()


def git_made(path: Path) -> None:
    path.mkdir()
    os.chown(path, HOST_UID, HOST_GID)
    host_git(path, "init", "--quiet", "--template=", "--initial-branch=main")
    host_git(path, "commit", "--quiet", "--allow-empty", "-m", "secret")


def as_host_write(path: Path, text: str) -> None:
    with as_host():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
