"""The human moves on; the agent commits; repositories are reset and removed."""

import json
import os
import random
import shutil
import string
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import UserError
from gitguardfs.commands import private as private_command
from gitguardfs.commands.private import command
from gitguardfs.options import accounts
from gitguardfs.private import store
from gitguardfs.private.repositories import PrivateRepositories
from tests.support.own_mounts import own_mount, unmount_own
from tests.support.people import AGENT
from tests.support.private_world import WorkTree, World, shown_project
from tests.support.repos import as_host, git

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")


project = shown_project


def refreshed(project: World) -> set[str]:
    """Return the branches and tags of the copy after another look at the host."""
    project.prepare()
    words = ("-c", "safe.directory=*", f"--git-dir={project.copy}", "for-each-ref")
    return set(project.agent(*words, "--format=%(refname)").split())


def test_what_the_host_commits_is_behind_host_main(project: World) -> None:
    project.commit("three", {"b": "3\n"})
    project.prepare()
    project.show()
    project.agent("fetch", "--quiet", "host")
    status = project.agent("status", "--short", "--branch")
    assert status.split("\n") == ["## main...host/main [behind 1]", " M b"]
    assert project.agent("sync") == "sync: main is at host/main"
    assert project.agent("status", "--short", "--branch") == "## main...host/main"
    assert project.agent("log", "--format=%s").split() == ["three", "two", "one"]
    assert "nothing new" not in project.agent("sync")


def test_sync_leaves_commits_of_the_agents_alone(project: World) -> None:
    (project.view / "b").write_text("agent\n")
    project.agent("commit", "--quiet", "--all", "--message", "mine")
    assert "your commits are on top" in project.agent("sync")
    project.commit("three", {"a": "3\n"})
    project.prepare()
    project.show()
    (project.view / "b").write_text("agent\n")
    said = project.agent("sync", check=False)
    assert "git rebase --autostash host/main" in said
    project.agent("rebase", "--quiet", "--autostash", "host/main")
    assert project.agent("log", "--format=%s").split() == ["mine", "three", "two", "one"]
    assert project.agent("status", "--short") == ""
    assert (project.view / "a").read_text() == "3\n"
    project.agent("switch", "--quiet", "--create", "own")
    assert "has no branch own" in project.agent("sync", check=False)
    project.agent("switch", "--quiet", "--detach")
    assert "git switch" in project.agent("sync", check=False)


def test_the_copy_follows_branches_tags_and_head(project: World) -> None:
    old = project.host("rev-parse", "HEAD").strip()
    project.host("branch", "--move", "topic", "topic/deeper")
    project.host("tag", "v2")
    assert refreshed(project) == {
        "refs/heads/main", "refs/heads/topic/deeper", "refs/tags/v1", "refs/tags/v2",
    }  # fmt: skip
    project.host("tag", "--delete", "v2")
    project.host("switch", "--quiet", "topic/deeper")
    project.host("branch", "--force", "main", "v1")
    project.host("reflog", "expire", "--expire=now", "--all")
    project.host("gc", "--quiet", "--prune=now")
    assert refreshed(project) == {"refs/heads/main", "refs/heads/topic/deeper", "refs/tags/v1"}
    assert (project.copy / "HEAD").read_text() == "ref: refs/heads/topic/deeper\n"
    assert old in project.objects()  # the agent may use it
    assert project.agent("fsck") == ""
    project.agent("fetch", "--quiet", "host")
    listed = project.agent("branch", "--remotes", "--format=%(refname:short)")
    assert listed.split() == ["host/main", "host/topic/deeper"]


def test_a_look_without_news_fetches_nothing(project: World) -> None:
    before = project.copy.stat().st_mtime_ns, (project.copy / "HEAD").stat().st_ino
    project.prepare()
    assert before == (project.copy.stat().st_mtime_ns, (project.copy / "HEAD").stat().st_ino)
    project.write({"a": "not committed\n"})
    project.prepare()
    assert before == (project.copy.stat().st_mtime_ns, (project.copy / "HEAD").stat().st_ino)


def test_many_fetches_leave_few_packs(project: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from gitguardfs.private import seeding

    monkeypatch.setattr(seeding, "MANY_PACKS", 2)
    for number in range(6):
        project.commit(f"commit {number}", {"a": f"{number}\n"})
        project.prepare()
        assert len(list(project.copy.glob("objects/pack/*.pack"))) <= 3
        assert not list(project.copy.glob("objects/??")), "small fetches are packs as well"
    project.agent("fsck", "--no-dangling")
    assert project.host("rev-parse", "HEAD").strip() in project.objects()


def disk_bytes(path: Path) -> int:
    """Return what a directory takes on the disk; a file with several names once."""
    found = {st.st_ino: st.st_blocks * 512 for st in map(os.lstat, path.rglob("*"))}
    return sum(found.values())


def test_a_project_that_is_moved_takes_room_for_its_objects_once(project: World) -> None:
    """Each copy is whole: it goes on when the others change or are removed."""
    project.write({"large": "".join(random.Random(1).choices(string.printable, k=2_000_000))})
    project.host("add", "large")
    project.commit("large", {})
    project.prepare()
    copies, once = [project.copy], disk_bytes(project.store)
    for number in range(5):
        project.name = f"moved{number}"
        project.project = project.project.rename(project.share / project.name)
        commit = project.commit(f"commit {number}", {"a": f"{number}\n"})
        project.prepare()
        assert project.copy not in copies
        assert commit in project.objects()
        copies.append(project.copy)
    assert disk_bytes(project.store) < 1.5 * once
    for copy in copies[:-1]:
        shutil.rmtree(copy.parent)
    project.show()
    assert project.agent("status", "--porcelain") == ""
    project.agent("fsck", "--no-dangling")
    assert project.host("rev-parse", "HEAD~4").strip() in project.objects()


@pytest.mark.parametrize("how", ["another agent", "another share", "damaged", "used"])
def test_a_copy_that_cannot_be_shared_is_made_anew(project: World, how: str) -> None:
    project.prepare()
    (pack,) = project.copy.glob("objects/pack/*.pack")
    former, repositories = project.directory, project.daemon()
    if how == "damaged":
        (project.copy / "packed-refs").write_text("damaged\n")
    if how == "another share":
        project.repositories = repositories = PrivateRepositories(
            str(project.store), "others", project.root
        )
    place = WorkTree(b"proj", AGENT + 1, AGENT) if how == "another agent" else project.place
    if how in ("damaged", "used"):
        project.name = "moved"
        project.project = project.project.rename(project.share / "moved")
        place = project.place
    fd = os.open(project.project, os.O_PATH)
    try:
        with store.locked(str(former), 0.0) if how == "used" else nullcontext():
            repositories.prepare(place, fd)
    finally:
        os.close(fd)
    text = os.fsdecode(repositories.text(place).removeprefix(b"gitdir: ").strip())
    (other,) = (Path(text).parent / "host.git/objects/pack").glob("*.pack")
    assert pack.stat().st_ino != other.stat().st_ino
    assert pack.stat().st_nlink == 1


def test_an_open_goes_on_if_the_fetch_fails(
    project: World, caplog: pytest.LogCaptureFixture
) -> None:
    project.host("branch", "tmp_x")
    project.prepare()
    commit = project.commit("three", {"b": "3\n"})
    (project.project / ".git/objects" / commit[:2] / commit[2:]).write_bytes(b"")
    daemon = project.daemon()
    project.prepare(daemon)
    project.prepare(daemon)
    assert len(caplog.records) == 1 and "proj: the human's repository" in caplog.text
    assert (project.copy / "refs/heads/tmp_x").exists()
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    shutil.rmtree(project.project / ".git")
    (project.project / ".git").write_text("gitdir: nowhere\n")
    project.prepare()
    assert "gitdir" not in project.agent("status", "--short")


# The agent's commits


def bundle(project: World) -> Path:
    return project.view / ".gitguard/agent.bundle"


def heads(project: World) -> set[str]:
    lines = project.agent("bundle", "list-heads", str(bundle(project))).splitlines()
    return {line.split()[1] for line in lines}


def test_the_bundle_holds_what_the_human_has_not(project: World) -> None:
    project.agent("commit", "--quiet", "--allow-empty", "--message", "mine")
    project.agent("branch", "own")
    project.agent("tag", "agents")
    assert heads(project) == {"refs/heads/main", "refs/heads/own", "refs/tags/agents"}
    # The human rewrites what the commit is based on, and forgets the old commits.
    project.host("commit", "--quiet", "--amend", "--message", "rewritten")
    project.prepare()
    project.agent("fetch", "--quiet", "host")
    project.host("clone", "--quiet", "--no-local", ".", "../forgetful")
    kept = project.share / "forgetful"
    shutil.copy(bundle(project), kept / "agent.bundle")
    git(kept, "fetch", "--quiet", "agent.bundle", "main:agent")
    assert git(kept, "log", "--format=%s", "agent").split() == ["mine", "two", "one"]
    # Nothing is left once the agent gives its commits up.
    project.agent("tag", "--delete", "agents")
    project.agent("branch", "--delete", "--force", "own")
    project.agent("reset", "--quiet", "--mixed", "host/main")
    assert heads(project) == set()


def test_what_a_killed_fetch_left_stops_nothing(project: World) -> None:
    for name in ("refs/heads/main.lock", "packed-refs.lock", "objects/pack/tmp_pack_x"):
        (project.copy / name).write_text("")
    project.commit("three", {"b": "3\n"})
    project.prepare()
    project.agent("fetch", "--quiet", "host")
    assert "three" in project.agent("log", "-1", "--format=%s", "host/main")
    assert not [path for path in project.copy.rglob("*") if path.suffix == ".lock"]
    assert not (project.copy / "objects/pack/tmp_pack_x").exists()


def test_a_tree_of_any_depth_is_deleted(project: World) -> None:
    """Deeper than Python recurses, and than a path may be long."""
    code = "import os\nfor _ in range(1100): os.mkdir('deep'); os.chdir('deep')"
    subprocess.run(["/usr/bin/python3", "-c", code], cwd=project.mine, check=True)
    run(project, "reset", str(project.directory), "--yes")
    assert not [name for name in os.listdir(project.directory) if "gone" in name]


# Reset and remove


def run(project: World, *words: str) -> str:
    done = CliRunner().invoke(command, [*words, "--store", str(project.store)])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("how", ["path in the share", "directory"])
def test_reset_gives_the_agent_a_new_repository(project: World, how: str) -> None:
    project.agent("commit", "--quiet", "--allow-empty", "--message", "mine")
    project.commit("three", {"b": "3\n"})
    path = {"directory": project.directory}.get(how, Path("proj"))
    copied = (project.copy / "HEAD").stat().st_ino
    (project.mine / "trap").symlink_to(project.project)
    run(project, "reset", str(path), "--yes")
    assert not project.mine.exists() and (project.project / "a").exists()
    assert json.loads(run(project, "list", "--json"))[0]["reset"]
    project.prepare()
    project.show()
    assert project.agent("log", "--format=%s").split() == ["three", "two", "one"]
    assert project.agent("status", "--short", "--branch") == "## main...host/main"
    assert (project.copy / "HEAD").stat().st_ino != copied  # fetched, not made anew
    assert project.agent("fsck") == ""


def test_remove_leaves_nothing_and_a_daemon_makes_it_anew(project: World) -> None:
    daemon = project.daemon()
    project.prepare(daemon)
    run(project, "remove", str(project.directory), "--yes")
    assert not project.directory.exists() and run(project, "list") == ""
    project.prepare(daemon)
    assert project.agent("status", "--short", "--branch") == "## main...host/main"


def test_a_reset_while_a_daemon_fetches_says_so(
    project: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_command, "LOCK_SECONDS", 0.0)
    with (
        store.locked(str(project.directory), 0.0),
        pytest.raises(UserError, match=r"fetching into .* \(try again"),
    ):
        run(project, "reset", "proj", "--yes")
    assert project.mine.exists()


@pytest.mark.parametrize("what", ["reset", "remove"])
@pytest.mark.parametrize("where", [".", "objects/pack"])
def test_a_file_system_that_the_agent_has_mounted_is_named(
    project: World, what: str, where: str
) -> None:
    place = project.mine / where
    with own_mount(place):
        try:
            with pytest.raises(UserError) as caught:
                run(project, what, "proj", "--yes")
        finally:
            unmount_own(place).wait()
    name = accounts.find(str(AGENT)).name
    assert str(caught.value) == (
        f"{name} has a file system (fuse.own) mounted at {place} (umount -i -l {place})"
    )
    run(project, what, "proj", "--yes")
    assert not project.mine.exists()


def test_a_path_of_no_repository_and_of_two(project: World) -> None:
    with pytest.raises(UserError, match="has no repository of /etc"):
        run(project, "remove", "/etc", "--yes")
    os.mkfifo(project.view / "dir/.git")
    with pytest.raises(UserError, match="has no repository"):
        run(project, "remove", str(project.view / "dir"), "--yes")
    fd = os.open(project.project, os.O_PATH | os.O_DIRECTORY)
    project.daemon().prepare(project.place._replace(uid=AGENT + 1), fd)
    os.close(fd)
    with pytest.raises(UserError, match="has several repositories"):
        run(project, "remove", "proj", "--yes")
    assert len(json.loads(run(project, "list", "--json"))) == 2


def test_an_ordinary_users_own_store(project: World) -> None:
    """A daemon that an ordinary user starts has its store in the user's state directory."""
    text = project.prepare_own()
    home = project.area / "home"
    assert text.startswith(f"gitdir: {home}/.local/state/gitguardfs-git/")
    assert (home / ".local").stat().st_mode & 0o777 == 0o700
    git(project.project, "clone", "--quiet", "--no-checkout", ".", "../mine")
    shutil.rmtree(project.share / "mine/.git")
    with as_host():
        (project.share / "mine/.git").write_text(text)
    assert git(project.share / "mine", "log", "--format=%s").split() == ["two", "one"]
