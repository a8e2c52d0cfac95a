"""``gitguard fetch --merge``: history and index move, and no file of the work tree is written."""

import json
import shlex
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.fetch import merging
from gitguardfs.host.fetch.git import find_repository
from tests.support import fetch_world
from tests.support.fetch_world import World

world = fetch_world.fixture


def files(world: World, at: Path | None = None) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in (at or world.host).rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def status(world: World) -> str:
    return world.git(world.host, "status", "--porcelain")


def parents(world: World) -> list[str]:
    return world.git(world.host, "rev-list", "--parents", "--max-count=1", "HEAD").split()[1:]


def test_a_fast_forward_with_the_files_there_already(world: World) -> None:
    commit = world.commit({"a.txt": "changed\n", "new/c.txt": "new\n"})
    world.git(world.agent, "rm", "-q", "src/b.txt")
    commit = world.commit({})
    world.publish()
    world.share_files()
    assert status(world)
    world.git(world.host, "fetch", "-q", ".gitguard/agent.bundle", "main")
    world.git(world.host, "merge", "FETCH_HEAD", check=False)  # git alone refuses
    assert world.git(world.host, "rev-parse", "HEAD") != commit
    before = files(world)
    report = world.fetched("--merge", "main")
    assert report["merge"] == {
        "branch": "main", "into": "main", "outcome": "fast-forward", "commit": commit,
        "conflicts": [], "unsigned": False,
    }  # fmt: skip
    assert world.git(world.host, "rev-parse", "main", "HEAD").split() == [commit, commit]
    assert status(world) == "" and files(world) == before
    assert "gitguard fetch --merge main" in world.git(world.host, "reflog")
    assert world.fetched("--merge", "main")["merge"]["outcome"] == "up to date"


def test_other_changes_of_the_human_stay_changes(world: World) -> None:
    world.commit({"a.txt": "changed\n"})
    world.publish()
    world.share_files()
    (world.host / "src/b.txt").write_text("the human's, not committed\n")
    (world.host / "a.txt").write_text("changed\nand more by the human\n")
    (world.host / "untracked").write_text("x")
    before = files(world)
    world.fetched("--merge", "main")
    assert files(world) == before
    assert status(world).split("\n") == [" M a.txt", " M src/b.txt", "?? untracked"]


def test_both_have_committed(world: World) -> None:
    theirs = world.commit({"src/b.txt": "the agent's\n", "c.txt": "c\n"})
    world.publish()
    ours = world.commit({"a.txt": "the human's\n"}, world.host)
    world.share_files()
    (world.host / "a.txt").write_text("the human's\n")
    before = files(world)
    report = world.fetched("--merge", "main")
    assert report["merge"]["outcome"] == "merged" and parents(world) == [ours, theirs]
    assert files(world) == before and status(world) == ""
    words = world.git(world.host, "log", "-1", "--format=%an|%s")
    assert words == "Human|Merge agent/main into main"
    world.git(world.host, "fsck", "--strict")


def test_a_merge_that_is_not_signed_says_so(world: World) -> None:
    world.git(world.host, "config", "commit.gpgSign", "true")
    world.commit({"c.txt": "c\n"})
    world.publish()
    world.git(world.host, "-c", "commit.gpgSign=false", "commit", "-q", "--allow-empty", "-m", "x")
    assert "the merge is not signed" in world.fetch("--merge", "main").stdout


def diverged(world: World) -> str:
    """Let both change one line; return the human's commit."""
    world.commit({"a.txt": "the agent's\n", "c.txt": "c\n"})
    world.publish()
    ours = world.commit({"a.txt": "the human's\n"}, world.host)
    world.share_files()
    return ours


def run_lines(world: World, lines: list[str]) -> None:
    code = "\n".join(line for line in lines if line.startswith("  "))
    subprocess.run(["bash", "-exc", code], cwd=world.host, check=True, capture_output=True,
                   env={**world.environment(), "GIT_EDITOR": "true"})  # fmt: skip


def test_a_conflict_changes_nothing_and_says_how_by_hand(world: World) -> None:
    ours = diverged(world)
    before, index = files(world), (world.host / ".git/index").read_bytes()
    done = world.fetch("--merge", "main")
    assert done.returncode == 1 and done.stderr == ""
    assert "conflicts, and nothing was changed\n  a.txt\n" in done.stdout
    assert world.git(world.host, "rev-parse", "HEAD") == ours
    assert files(world) == before and (world.host / ".git/index").read_bytes() == index
    # The first way: the files as they are.
    _, _, rest = done.stdout.partition("To take them as they are:\n")
    first, _, second = rest.partition("To merge the commits instead")
    run_lines(world, first.split("\n"))
    theirs = world.git(world.host, "rev-parse", "agent/main")
    assert parents(world) == [ours, theirs] and status(world) == ""
    assert files(world) == before
    assert world.git(world.host, "show", "HEAD:a.txt") == "the agent's"
    assert "git merge agent/main" in second


def test_a_conflict_is_resolved_in_a_directory_of_its_own(world: World) -> None:
    ours = diverged(world)
    report = json.loads(world.fetch("--merge", "main", "--json").stdout)
    assert report["merge"]["outcome"] == "conflict" and report["merge"]["conflicts"] == ["a.txt"]
    lines = report["commands"]
    start = next(n for n, line in enumerate(lines) if "directory of its own" in line)
    code = "\n".join(lines[start + 1 :])
    resolve = "|| { echo both >a.txt; git add a.txt; git commit -q --no-edit; }"
    code = code.replace("    # resolve, git add, git commit", resolve)
    run_lines(world, code.split("\n"))
    theirs = world.git(world.host, "rev-parse", "agent/main")
    assert parents(world) == [ours, theirs]
    assert world.git(world.host, "show", "HEAD:a.txt") == "both"
    assert status(world) == "M a.txt".rjust(8)  # the file is as it was
    assert "prunable" not in world.git(world.host, "worktree", "list", "--porcelain")


def test_what_is_staged_is_refused(world: World) -> None:
    world.commit({"a.txt": "changed\n"})
    world.publish()
    for words in (["add", "new"], ["add", "-N", "new"], ["rm", "-q", "--cached", "a.txt"]):
        (world.host / "new").write_text("new\n")
        world.git(world.host, *words)
        world.refused("changes are staged", words=["--merge", "main"])
        world.git(world.host, "reset", "-q")
    (world.host / "new").unlink()
    assert world.fetched("--merge", "main")["merge"]["outcome"] == "fast-forward"


def begin(world: World, operation: str) -> None:
    world.git(world.host, "checkout", "-q", "-b", "other", "HEAD~")
    world.commit({"a.txt": "other\n"}, world.host)
    words = {
        "a merge": ["merge", "main"],
        "a rebase": ["rebase", "main"],
        "a rebase or git am": ["rebase", "--apply", "main"],
        "a cherry-pick": ["cherry-pick", "main"],
        "a revert": ["revert", "--no-edit", "main~"],
        "a bisect": ["bisect", "start"],
    }[operation]
    world.git(world.host, *words, check=False)
    # Resolved, so that only the operation is in the way.
    world.git(world.host, "reset", "-q", "HEAD", "--", ".")


@pytest.mark.parametrize(
    "operation",
    ["a merge", "a rebase", "a rebase or git am", "a cherry-pick", "a revert", "a bisect"],
)
def test_an_operation_under_way_is_refused(world: World, operation: str) -> None:
    world.commit({"c.txt": "c\n"})
    world.publish()
    begin(world, operation)
    world.refused(f"{operation} is under way", words=["--merge", "main"])
    assert world.fetch().returncode == 0  # fetching alone disturbs nothing


def test_a_locked_index_changes_nothing(world: World) -> None:
    world.commit({"c.txt": "c\n"})
    world.publish()
    world.fetched()
    before = world.git(world.host, "rev-parse", "HEAD")
    (world.host / ".git/index.lock").write_text("")
    done = world.fetch("--merge", "main")
    assert done.returncode == 3 and "index.lock" in done.stderr
    assert world.git(world.host, "rev-parse", "HEAD") == before and status(world) == ""


def test_a_locked_branch_gives_the_index_back(world: World) -> None:
    world.commit({"c.txt": "c\n"})
    world.publish()
    world.fetched()
    (world.host / ".git/refs/heads/main.lock").write_text("")
    done = world.fetch("--merge", "main")
    assert done.returncode == 3 and "main.lock" in done.stderr
    (world.host / ".git/refs/heads/main.lock").unlink()
    assert status(world) == ""


@pytest.mark.parametrize("at", ["reset", "update-ref"])
def test_another_branch_is_checked_out_meanwhile(world: World, at: str) -> None:
    theirs = world.commit({"c.txt": "c\n"})
    world.publish()
    world.fetched()
    world.git(world.host, "branch", "other")
    before = world.git(world.host, "rev-parse", "HEAD")
    git = world.home / "git"  # which is git, and the human at the same time
    git.write_text(
        "#!/bin/sh\nfor one; do\n"
        f'  [ "$one" != {at} ] || git -C {world.host} symbolic-ref HEAD refs/heads/other\n'
        'done\nexec git "$@"\n'
    )
    git.chmod(0o755)
    found = find_repository(str(world.host), world.environment())
    slow = replace(
        found,
        git=replace(found.git, program=str(git)),
        users_git=replace(found.users_git, program=str(git)),
    )
    with suppress(UserError):
        merging.merge(slow, "main", theirs)
    assert world.git(world.host, "rev-parse", "other") == before
    assert world.git(world.host, "symbolic-ref", "HEAD") == "refs/heads/other"
    assert status(world) == "" or at == "update-ref"
    if at == "reset":  # before anything has moved
        assert world.git(world.host, "rev-parse", "main") == before


def test_what_is_staged_meanwhile_stays_staged(world: World) -> None:
    theirs = world.commit({"c.txt": "c\n"})
    world.publish()
    world.fetched()
    (world.host / "a.txt").write_text("staged\n")
    git = world.home / "git"
    git.write_text(
        f'#!/bin/sh\ncase "$*" in *merge-base*) git -C {world.host} add a.txt ;; esac\n'
        'exec git "$@"\n'
    )
    git.chmod(0o755)
    found = find_repository(str(world.host), world.environment())
    slow = replace(found, git=replace(found.git, program=str(git)))
    with pytest.raises(UserError, match="changes are staged"):
        merging.merge(slow, "main", theirs)
    assert world.git(world.host, "diff", "--cached", "--name-only") == "a.txt"


def test_a_repository_without_a_commit(world: World) -> None:
    host = world.home / "empty"
    world.git(world.home, "init", "-q", "empty")
    world.git(world.agent, "bundle", "create", "-q", "b", "main")
    world.write((world.agent / "b").read_bytes(), host)
    report = world.fetched("--merge", "main", at=host)
    assert report["merge"]["outcome"] == "fast-forward"
    assert world.git(host, "ls-files").split() == ["a.txt", "src/b.txt"]
    assert world.git(host, "log", "--format=%s").split() == ["second", "first"]


def test_histories_without_a_common_commit(world: World) -> None:
    world.git(world.agent, "checkout", "-q", "--orphan", "own")
    world.commit({"c.txt": "c\n"})
    world.publish()
    assert world.fetched()["branches"][0]["ahead"] == 1
    done = world.fetch("--merge", "own")
    assert done.returncode == 3 and "unrelated" in done.stderr


def test_only_the_commit_that_was_looked_at(world: World) -> None:
    looked_at = world.commit({"c.txt": "c\n"})
    world.publish()
    before = world.git(world.host, "rev-parse", "HEAD")
    command = world.fetched()["commands"][2]
    assert command == f"gitguard fetch --merge main --expect {looked_at}"
    world.commit({"d.txt": "d\n"})
    world.publish()
    world.refused("agent/main is", words=shlex.split(command)[2:])
    world.refused("agent/main is", words=["--merge", "main", "--expect", "x" * 40])
    for short in (looked_at[:10], looked_at[:39]):  # another commit may have the same digits
        done = world.fetch("--merge", "main", "--expect", short)
        assert done.returncode == 2 and "the whole id" in done.stderr
    assert world.git(world.host, "rev-parse", "HEAD") == before
    world.git(world.agent, "reset", "-q", "--hard", looked_at)
    world.publish()
    world.fetched(*shlex.split(command)[2:])
    assert world.git(world.host, "rev-parse", "HEAD") == looked_at


def test_git_reset_is_the_same_by_git_alone(world: World) -> None:
    commit = world.commit({"a.txt": "changed\n"})
    world.publish()
    world.share_files()
    *_, command = world.fetched()["commands"]
    assert command == "git reset agent/main"
    world.git(world.host, *shlex.split(command)[1:])
    assert world.git(world.host, "rev-parse", "main") == commit and status(world) == ""
    world.commit({"x": "x"}, world.host)
    assert "reset" not in "".join(world.fetched()["commands"])  # it would drop the human's commit


def test_git_reset_is_not_proposed_for_another_branch(world: World) -> None:
    world.git(world.host, "branch", "topic")
    world.commit({"x": "x"}, world.host)
    world.git(world.agent, "fetch", "-q", "host")
    world.git(world.agent, "checkout", "-q", "-b", "topic", "host/topic")
    world.commit({"a.txt": "changed\n"})
    world.publish()
    assert "agent/topic" in "".join(found := world.fetched()["commands"])
    assert "reset" not in "".join(found)  # it would take the human's commit off main
    world.git(world.agent, "checkout", "-q", "-b", "new", "host/main")
    world.git(world.agent, "branch", "-D", "topic")
    world.commit({"b.txt": "changed\n"})
    world.publish()
    assert world.fetched()["commands"][-1] == "git reset agent/new"  # it has all of main


def test_a_sparse_checkout_stays_sparse(world: World) -> None:
    assert status(world) == ""
    world.git(world.host, "sparse-checkout", "set", "--no-cone", "/a.txt")
    assert not (world.host / "src").exists()
    world.commit({"src/b.txt": "changed\n", "src/c.txt": "c\n"})
    world.publish()
    world.fetched("--merge", "main")
    assert status(world) == "" and not (world.host / "src").exists()
