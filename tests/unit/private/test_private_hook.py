"""The agent's commits are published by the hook or `git sync`, or the agent is told why not."""

import fcntl
import io
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gitguardfs.host.fetch import bundle
from gitguardfs.host.fetch.bundle import Refused
from tests.support.people import AGENT
from tests.support.private_world import World, shown_project, world
from tests.support.repos import git

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")
HEADS = "refs/heads/"


project = shown_project


@pytest.fixture
def home(project: World) -> Path:
    """A directory of the agent's outside of the project."""
    made = project.area / "home"
    made.mkdir()
    os.chown(made, AGENT, AGENT)
    return made


def published(project: World) -> dict[str, str]:
    """Return the branches and tags in the bundle, as gitguard fetch reads them."""
    try:
        content = (project.view / bundle.PATH).read_bytes()
    except FileNotFoundError:
        return {}
    return bundle.parse(io.BytesIO(content)).refs


def commit(project: World, *words: str, directory: Path | None = None) -> str:
    """Commit as the agent; return what git said."""
    words = ("commit", "--quiet", "--allow-empty", "--message", "mine", *words)
    return project.agent(*words, directory=directory)


# Names


def test_a_name_that_fetch_refuses_is_left_out_and_said(project: World) -> None:
    commit(project)
    said = project.agent("branch", "größe")
    assert "git branch -m -- 'größe' NEW" in said and "refs/heads/größe is not" in said
    assert set(published(project)) == {"refs/heads/main"}
    for name in ("-x", "head", "x.LOCK", "MAIN", "main/x".title(), "a" * 190):
        said = project.agent("update-ref", HEADS + name, "HEAD")
        assert f"{HEADS}{name} is not published" in said
        assert set(published(project)) == {"refs/heads/main"}
        project.agent("update-ref", "-d", HEADS + name)
    project.agent("branch", "x/y")
    assert f"{HEADS}X is not published" in project.agent("branch", "X")
    assert set(published(project)) == {"refs/heads/main", "refs/heads/x/y"}
    project.agent("branch", "-D", "X", "x/y")
    assert "git tag NEW 'ä'" in project.agent("tag", "ä")
    project.agent("tag", "-d", "ä")
    project.agent("branch", "-m", "--", "größe", "size")
    project.agent("sync")
    assert set(published(project)) == {"refs/heads/main", "refs/heads/size"}
    assert commit(project) == ""
    said = project.agent("update-ref", f"{HEADS}it's", "HEAD").partition(": ")[2]
    _, _, mend = said.rpartition(": ")
    assert mend.endswith(" NEW && git sync")
    done = subprocess.run(["sh", "-c", f"echo {mend.removesuffix(' && git sync')}"], text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert done.stdout == "git branch -m -- it's NEW\n"


def test_what_leads_to_no_commit_is_left_out_and_said(project: World) -> None:
    project.host("tag", "theirs", "HEAD^{tree}")
    project.prepare()
    project.agent("fetch", "--quiet", "--tags", "host")
    (project.view / "a").write_text("mine\n")
    commit(project, "--all")
    project.agent("tag", "-m", "mine", "commit")
    project.agent("tag", "-m", "mine", "nested", "commit")
    for words in (["tree", "HEAD^{tree}"], ["-m", "x", "blob", "HEAD:a"]):
        said = project.agent("tag", *words)
        name = words[-2]
        assert f"refs/tags/{name} is not published, since it leads to no commit" in said
        assert set(published(project)) == {
            "refs/heads/main", "refs/tags/commit", "refs/tags/nested"
        }  # fmt: skip
        project.agent(*said.rpartition(": git ")[2].replace("'", "").split())
    assert commit(project) == ""


def test_a_branch_that_is_renamed_stays_published(project: World) -> None:
    project.agent("switch", "--quiet", "--create", "old")
    commit(project)
    project.agent("branch", "-m", "new")
    assert set(published(project)) == {"refs/heads/old"}  # git runs no hook for the new one
    commit(project, "--amend")
    assert set(published(project)) == {"refs/heads/new"}


def names(project: World) -> set[str]:
    """Return many names that git takes, of which some cannot be beside each other."""
    chosen = random.Random(37)
    letters = [*"abB1_-.@+=#//é$%!'\"{", ".lock", ".LOCK", "head", "HEAD", "\u0430"]
    wanted = {"".join(chosen.choices(letters, k=chosen.randint(1, 5))) for _ in range(900)}
    taken = subprocess.run(
        ["sh", "-c", 'for one; do git check-ref-format "refs/heads/$one" && echo "$one"; done',
         "sh", *sorted(wanted)],
        capture_output=True, text=True, check=False,
    ).stdout.split("\n")  # fmt: skip
    return {one for one in taken if one and not any(other.startswith(f"{one}/") for other in taken)}


def test_what_is_published_is_what_fetch_takes(project: World) -> None:
    commit(project)
    value = project.agent("rev-parse", "HEAD")
    wanted = names(project)
    assert len(wanted) > 200
    lines = "".join(f"create {HEADS}{name} {value}\n" for name in wanted)
    project.agent("update-ref", "--stdin", given=lines)
    found = {name.removeprefix(HEADS) for name in published(project)} - {"main"}  # all is well
    fits = set()
    for name in wanted:
        try:
            bundle.parse(io.BytesIO(f"# v2 git bundle\n{value} {HEADS}{name}\n\n".encode()))
            fits.add(name)
        except Refused:
            pass
    assert 40 < len(found) < len(fits) < len(wanted) - 100
    assert found < fits
    for name in fits - found:  # each would be one too many
        with pytest.raises(Refused, match="it has both"):
            bundle._check_apart(dict.fromkeys([HEADS + one for one in (*found, name)], value))


def test_of_more_branches_than_fetch_takes_the_others_come(project: World) -> None:
    commit(project)
    value = project.agent("rev-parse", "HEAD")
    lines = "".join(f"create {HEADS}b{number} {value}\n" for number in range(bundle.MAX_REFS + 9))
    said = project.agent("update-ref", "--stdin", given=lines)
    assert "and 5 more are not published" in said and said.count("\n") == 5
    assert len(published(project)) == bundle.MAX_REFS


# HEAD, and other work trees


def test_a_commit_on_no_branch_has_one_in_the_bundle(project: World, home: Path) -> None:
    project.agent("switch", "--quiet", "--detach")
    assert published(project) == {}
    commit(project)
    assert project.agent("worktree", "add", "--quiet", "--detach", str(home / "same")) == ""
    value = project.agent("rev-parse", "HEAD")
    assert published(project) == {f"refs/heads/detached-{value[:10]}": value}
    refs = project.agent("for-each-ref", "--format=%(refname)")
    assert "detached" not in refs
    project.agent("worktree", "remove", str(home / "same"))
    project.agent("switch", "--quiet", "--create", "own")
    assert published(project) == {"refs/heads/own": value}
    project.agent("switch", "--quiet", "--detach", "HEAD~")
    assert published(project) == {"refs/heads/own": value}
    project.agent("branch", "--force", "own", "HEAD")
    assert (project.view / bundle.PATH).exists() and published(project) == {}


def test_a_rebase_that_stops_is_published(project: World) -> None:
    for message in ("first", "second"):
        project.agent("commit", "--quiet", "--allow-empty", "--message", message)
    old = project.agent("rev-parse", "HEAD")
    editor = "sequence.editor=sed -i 1s/pick/edit/"
    words = ("rebase", "--quiet", "--interactive", "--keep-empty", "HEAD~2")
    project.agent("-c", editor, *words, check=False)
    project.agent("commit", "--quiet", "--amend", "--allow-empty", "--message", "changed")
    value = project.agent("rev-parse", "HEAD")
    assert published(project) == {
        "refs/heads/main": old, f"refs/heads/detached-{value[:10]}": value
    }  # fmt: skip
    project.agent("rebase", "--continue")
    assert published(project) == {"refs/heads/main": project.agent("rev-parse", "main")}


def test_the_first_commit_is_made_in_another_work_tree(project: World, home: Path) -> None:
    where = home / "wt"
    project.agent("worktree", "add", "--quiet", "--detach", str(where))
    commit(project, directory=where)
    value = project.agent("rev-parse", "HEAD", directory=where)
    assert published(project) == {f"refs/heads/detached-{value[:10]}": value}
    commit(project, "-m", "another")  # that of the other work tree stays
    assert f"refs/heads/detached-{value[:10]}" in published(project)
    project.agent("switch", "--quiet", "--create", "topic", directory=where)
    assert set(published(project)) == {"refs/heads/main", "refs/heads/topic"}


def test_where_nothing_can_be_published_a_command_says_so_once(project: World, home: Path) -> None:
    git_dir = f"--git-dir={project.mine}"
    words = (git_dir, "commit", "--allow-empty", "--quiet", "--message", "mine")
    said = project.agent(*words, directory=home)
    assert "not published: git sync in the project" in said and said.count("\n") == 0
    for number in range(3):
        project.agent(git_dir, "commit", "--allow-empty", "-m", str(number), directory=home)
    words = (git_dir, "cherry-pick", "--allow-empty", "HEAD~3..HEAD")
    assert project.agent(*words, directory=home).count("gitguard: ") == 1
    assert "your commits are in .gitguard/agent.bundle" in project.agent("sync")
    assert set(published(project)) == {"refs/heads/main"}
    assert project.agent(git_dir, "branch", "later", directory=home) == ""
    assert set(published(project)) == {"refs/heads/main", "refs/heads/later"}


def test_a_failure_leaves_what_was_published(project: World) -> None:
    commit(project)
    before = published(project)
    directory = project.view / ".gitguard"
    directory.chmod(0o555)
    said = commit(project, "--amend", "-m", "changed")
    assert "not yet in .gitguard/agent.bundle" in said and published(project) == before
    assert "not yet" in project.agent("reset", "--soft", "HEAD~") and published(project) == before
    directory.chmod(0o755)
    project.agent("sync")
    assert published(project) == {}


@pytest.mark.parametrize("how", ["no object", "empty object", "empty ref"])
def test_a_branch_that_is_damaged_takes_no_other_with_it(project: World, how: str) -> None:
    for name in ("zzz", "aaa"):
        project.agent("switch", "--quiet", "--create", name, "main")
        commit(project, "-m", name)
    value = project.agent("rev-parse", "zzz")
    place = project.mine / "objects" / value[:2] / value[2:]
    if how == "empty ref":
        place = project.mine / HEADS / "zzz"
    place.unlink()
    if how != "no object":
        place.touch()
    assert f"{HEADS}zzz" in commit(project)
    assert published(project) == {f"{HEADS}aaa": project.agent("rev-parse", "aaa")}
    project.agent("switch", "--quiet", "--detach", "main")
    commit(project)
    value = project.agent("rev-parse", "HEAD")
    before = published(project)
    assert before[f"{HEADS}detached-{value[:10]}"] == value
    project.agent("update-ref", "--no-deref", "HEAD", "main")
    said = project.agent("update-ref", f"{HEADS}aaa", "main")
    assert f"{HEADS}zzz" in said and "not yet in .gitguard/agent.bundle" in said
    assert published(project)  # what was there: nothing says that the human has zzz
    project.agent("update-ref", "-d", f"{HEADS}zzz", check=False)
    (project.mine / HEADS / "zzz").unlink(missing_ok=True)
    project.agent("sync", check=False)
    assert (project.view / bundle.PATH).exists() and published(project) == {}


def test_a_head_that_is_damaged_takes_no_branch_with_it(project: World, home: Path) -> None:
    project.agent("worktree", "add", "--quiet", "--detach", str(home / "wt"))
    commit(project, directory=home / "wt")
    value = project.agent("rev-parse", "HEAD", directory=home / "wt")
    (project.mine / "objects" / value[:2] / value[2:]).unlink()
    said = commit(project, "-m", "another")
    assert value in said and set(published(project)) == {f"{HEADS}main"}


def test_nothing_is_new_in_a_guest_of_another_language(project: World) -> None:
    german = ("-c", "alias.de=!LC_ALL=C.UTF-8 LANGUAGE=de git", "de")
    if "fatal: " in project.agent(*german, "rev-parse", "--verify", "none", check=False):
        pytest.skip("git's messages in German are not installed")
    commit(project)
    project.agent(*german, "reset", "--quiet", "HEAD~")
    assert (project.view / bundle.PATH).exists() and published(project) == {}


def test_a_hook_that_is_stopped_holds_no_command_up(project: World) -> None:
    commit(project)
    before = published(project)
    with (project.mine / "gitguard-lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "not yet in .gitguard/agent.bundle" in commit(project)
    assert published(project) == before
    assert commit(project) == "" and published(project) != before


@pytest.mark.parametrize("how", ["fetch", "sync"])
def test_a_shallow_repository_of_the_human_has_other_ends(how: str) -> None:
    with world() as project:
        shallow, origin = project.project, project.project.rename(project.share / "origin")
        git(project.share, "clone", "--quiet", "--depth=1", origin.as_uri(), shallow.name)
        project.prepare()
        project.show()
        project.project = origin
        for number in range(2):
            project.commit("more", {"more": str(number)})
        project.project = shallow
        project.host("fetch", "--quiet", "--depth=1")
        project.host("reset", "--quiet", "--hard", "origin/main")
        project.prepare()
        words = ["fetch", "host"] if how == "fetch" else ["sync"]
        project.agent(*words, check=False)  # there is no common history: sync says so
        assert project.agent("log", "--format=%s", "host/main") == "more"
        project.agent("reset", "--quiet", "host/main")
        commit(project)
        assert set(published(project)) == {"refs/heads/main"}
        assert project.agent("fsck") == ""


# The file of an earlier repository


def move(project: World) -> None:
    """Move the project as the human: the agent gets a new repository."""
    moved = project.share / "moved"
    project.project = project.project.rename(moved)
    project.name = moved.name
    project.prepare()
    project.show()


def test_what_was_published_before_the_project_moved_stays_published(project: World) -> None:
    commit(project)
    project.agent("tag", "mine")
    before = published(project)
    move(project)
    commit(project, "--message", "at the new place")
    now = published(project)
    assert now["refs/heads/former/main"] == before["refs/heads/main"] != now["refs/heads/main"]
    assert now["refs/tags/former/mine"] == before["refs/tags/mine"]


def test_a_file_that_cannot_be_taken_over_is_kept_and_said(project: World) -> None:
    commit(project)
    [place] = (project.view / ".gitguard").glob("*.bundle")
    place.write_bytes(was := b"damaged")
    shutil.rmtree(project.mine / "gitguard-published")
    assert "is kept as .gitguard/former-" in commit(project)
    assert [path.read_bytes() for path in place.parent.glob("former-*.bundle")] == [was]
    assert set(published(project)) == {"refs/heads/main"}
    place.write_bytes(was)
    shutil.rmtree(project.mine / "gitguard-published")
    project.agent("reset", "--quiet", "host/main")
    assert place.exists() and published(project) == {}  # nothing is new


def test_a_file_is_taken_over_although_its_branches_have_no_place(project: World) -> None:
    commit(project)
    before = published(project)
    move(project)
    project.agent("-c", "core.hooksPath=/dev/null", "branch", "former")
    assert commit(project, "-m", "anew") == ""
    assert before[f"{HEADS}main"] in published(project).values()
    assert not list((project.view / ".gitguard").glob("former-*.bundle"))


def test_a_file_that_cannot_be_taken_over_now_is_taken_over_later(project: World) -> None:
    commit(project)
    before = published(project)
    move(project)
    packs = project.mine / "objects/pack"
    packs.chmod(0o555)
    assert "not yet in .gitguard/agent.bundle" in commit(project, "-m", "anew")
    assert published(project) == before
    packs.chmod(0o755)
    project.agent("sync")
    assert published(project)[f"{HEADS}former/main"] == before[f"{HEADS}main"]


# git sync


def test_sync_publishes_where_the_hook_is_switched_off(project: World) -> None:
    project.agent("config", "core.hooksPath", ".husky/_")
    commit(project)
    assert published(project) == {}
    said = project.agent("sync")
    assert "sync: your commits are in .gitguard/agent.bundle" in said
    assert "core.hooksPath is .husky/_" in said
    assert set(published(project)) == {"refs/heads/main"}
    project.agent("config", "--unset", "core.hooksPath")
    project.agent("switch", "--quiet", "--create", "own")
    assert "host/own" not in commit(project)
    assert "your commits are in" in project.agent("sync", check=False)  # the human has no such one
    project.agent("update-ref", f"{HEADS}größe", "HEAD")
    assert project.agent("sync", check=False).count("größe") == 2  # in one line


@pytest.mark.parametrize("how", ["changed", "added", "removed", "to be added"])
def test_sync_does_not_lose_what_is_staged(project: World, how: str) -> None:
    project.commit("three", {"b": "3\n"})
    project.prepare()
    project.show()
    (project.view / "a").write_text("agent\n")
    (project.view / "new").write_text("agent\n")
    words = {"changed": ["add", "a"], "added": ["add", "new"], "removed": ["rm", "--cached", "a"],
             "to be added": ["add", "-N", "new"]}[how]  # fmt: skip
    project.agent(*words)
    before = project.agent("ls-files", "--stage"), project.agent("rev-parse", "HEAD")
    said = project.agent("sync", check=False)
    assert "changes are staged" in said and "git commit" in said
    assert before == (project.agent("ls-files", "--stage"), project.agent("rev-parse", "HEAD"))
    project.agent("reset", "--quiet")
    assert "main is at host/main" in project.agent("sync")


def test_sync_takes_what_the_human_has_committed_of_it(project: World) -> None:
    (project.view / "a").write_text("3\n")
    project.agent("add", "a")
    assert project.agent("sync") == "sync: main is at host/main"  # there is nothing to do
    assert project.agent("diff", "--cached", "--name-only") == "a"
    project.commit("three", {"a": "3\n"})
    project.prepare()
    assert project.agent("sync") == "sync: main is at host/main"
    assert project.agent("status", "--short") == ""
