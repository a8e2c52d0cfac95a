"""``gitguard fetch`` in daily use: what comes, where it goes, and what is said."""

import grp
import json
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.audit.git_config import Git
from gitguardfs.host.fetch import git as fetch_git
from gitguardfs.host.fetch import summary
from gitguardfs.host.fetch.git import find_repository
from tests.support import fetch_world
from tests.support.fetch_world import World

world = fetch_world.fixture


NOTHING = b"# v2 git bundle\n\n"
"""What the agent's hook writes once the human has all."""


def refs(world: World, at: Path | None = None) -> dict[str, str]:
    listed = world.git(at or world.host, "for-each-ref", "--format=%(refname) %(objectname)")
    return dict(line.split() for line in listed.split("\n") if "agent" in line)


def test_branches_and_tags_come_and_go(world: World) -> None:
    first = world.commit({"x": "x"})
    world.git(world.agent, "tag", "v1")
    world.git(world.agent, "tag", "-a", "-m", "v2", "v2")
    world.git(world.agent, "checkout", "-q", "-b", "topic/x")
    second = world.commit({"y": "y"})
    world.publish()
    report = world.fetched()
    tag = world.git(world.agent, "rev-parse", "v2")
    everything = {
        "refs/remotes/agent/main": first, "refs/remotes/agent/topic/x": second,
        "refs/agent/tags/v1": first, "refs/agent/tags/v2": tag,
    }  # fmt: skip
    assert refs(world) == everything
    assert {one["name"]: one["before"] for one in report["branches"]} == {
        "main": None, "topic/x": None
    }  # fmt: skip
    assert report["tags"] == {"v1": first, "v2": tag} and report["removed"] == {}
    world.git(world.agent, "branch", "-m", "topic/x", "topic")
    world.git(world.agent, "tag", "-d", "v1")
    world.publish()
    report = world.fetched(".", "main")
    assert refs(world) == everything and report["removed"] == {}  # with names nothing goes
    report = world.fetched()
    assert report["removed"] == {"refs/remotes/agent/topic/x": second, "refs/agent/tags/v1": first}
    assert set(refs(world)) == {
        "refs/remotes/agent/main", "refs/remotes/agent/topic", "refs/agent/tags/v2"
    }  # fmt: skip
    assert world.git(world.host, "tag") == ""


def test_only_branches_that_are_named(world: World) -> None:
    for name in ("one", "two", "three"):
        world.git(world.agent, "checkout", "-q", "-b", name, "host/main")
        world.commit({name: name})
    world.git(world.agent, "tag", "v1")
    world.publish()
    report = world.fetched(".", "one", "two")
    assert set(refs(world)) == {"refs/remotes/agent/one", "refs/remotes/agent/two"}
    assert {one["name"] for one in report["branches"]} == {"one", "two"}
    done = world.fetch(".", "fuor")
    assert done.returncode == 3 and "no branch fuor" in done.stderr
    assert "there is one, three, two" in done.stderr
    done = world.fetch("one")
    assert done.returncode == 2 and "gitguard fetch --project . one" in done.stderr


def test_the_summary(world: World) -> None:
    world.commit({"a.txt": "one\ntwo\n", "bin": "\0"}, message="Change a\n\nbody")
    world.publish()
    world.commit({"own": "x"}, world.host)
    (branch,) = world.fetched()["branches"]
    assert (branch["ahead"], branch["behind"], branch["base"]) == (1, 1, "main")
    assert branch["commits"] == [
        {"id": branch["commit"], "author": "Agent", "subject": "Change a"}
    ]  # fmt: skip
    assert branch["files"] == [
        {"path": "a.txt", "added": 2, "deleted": 21},
        {"path": "bin", "added": None, "deleted": None},
    ]
    done = world.fetch()
    assert "agent/main: " in done.stdout and "as at the last fetch" in done.stdout
    assert "1 commit that main does not have, 1 behind" in done.stdout
    assert "    a.txt  +2 -21\n    bin    binary\n" in done.stdout


def test_many_branches_and_commits_are_listed_in_part(world: World) -> None:
    for number in range(summary.MAX_COMMITS + 5):
        world.git(world.agent, "commit", "-q", "--allow-empty", "-m", f"number {number}")
    for number in range(summary.MAX_BRANCHES + 5):
        world.git(world.agent, "branch", f"b{number}")
    world.publish()
    report = world.fetched()
    assert len(report["branches"]) == summary.MAX_BRANCHES + 6 == len(refs(world))
    assert len([one for one in report["branches"] if one["left_out"]]) == 6
    assert report["branches"][0]["name"] == "main"  # others do not hide it
    text = world.fetch().stdout
    assert "and 5 commits before" in text and "too many branches" in text


def test_the_commands_work_when_pasted(world: World) -> None:
    world.commit({"x": "x"})
    place = world.home / "my 'project'"
    world.host.rename(place)
    world.publish(place)
    world.git(place, "branch", "agent/main")
    world.git(place, "tag", "main")
    report = world.fetched(place, at=world.home)
    look, diff, take, reset = report["commands"]
    assert look.startswith("git -C ") and "'\"'\"'" in look
    for line in (look, diff, reset):
        done = subprocess.run(["bash", "-ec", line], cwd=world.home, check=True, text=True,
                              capture_output=True, env=world.environment())  # fmt: skip
        assert "ambiguous" not in done.stderr and (line is reset or "+x" in done.stdout)
    world.fetched(*shlex.split(take)[2:], at=world.home)


def test_nothing_is_new(world: World) -> None:
    first = world.commit({"x": "x"})
    world.git(world.agent, "tag", "v1")
    world.git(world.agent, "checkout", "-q", "-b", "topic")
    second = world.commit({"y": "y"})
    world.publish()
    world.fetched("--merge", "main")
    world.write(NOTHING)  # as the agent's hook does once the human has all
    kept = {"refs/remotes/agent/topic": second, "refs/agent/tags/v1": first}
    for words in ([], [world.host]):
        report = world.fetched(*words)
        assert report["bundle"]["size"] == len(NOTHING)
        assert report["branches"] == [] and refs(world) == kept
        assert "no commit that you do not have" in report["notes"][0]
        assert "agent/topic stays" in report["notes"][1] and "--drop" in report["notes"][1]
        assert report["removed"] == ({} if words else {"refs/remotes/agent/main": first})
    done = world.fetch("--project", ".", "topic")
    assert done.returncode == 3 and "the agent has no branch topic" in done.stderr
    done = world.fetch("--merge", "topic")
    assert done.returncode == 3 and "the agent has no branch topic" in done.stderr
    world.bundle.unlink()
    assert world.fetch().returncode == 3 and refs(world) == kept
    world.fetched("--drop")
    assert refs(world) == {}
    world.write(b"# v3 git bundle\n@object-format=sha1\n\n")
    assert world.fetch().stdout.count("\n") == 2
    old = time.time() - 3700
    os.utime(world.bundle, (old, old))
    assert "husky" in world.fetch().stdout and "git sync" in world.fetched()["notes"][1]


def test_commits_that_the_agents_new_repository_could_not_take_over(world: World) -> None:
    world.write(NOTHING)
    (world.bundle.parent / "former-1.bundle").write_text("x")
    report = world.fetched()
    assert "1 file .gitguard/former-" in report["notes"][0]
    assert "no commit that you do not have" not in "".join(report["notes"])
    world.commit({"x": "x"})
    world.publish()
    assert "1 file .gitguard/former-" in world.fetch().stdout


def test_a_tag_stays_when_the_human_has_taken_its_commit(world: World) -> None:
    first = world.commit({"x": "x"})
    for words in (["v1"], ["v2"], ["-m", "v3", "v3"]):
        world.git(world.agent, "tag", *words)
    world.publish()
    world.fetched("--merge", "main")
    for more in ("y", "z"):  # without what the human has, as the hook writes it
        world.commit({more: more})
        world.git(world.agent, "tag", "-f", more)
        words = ("bundle", "create", "-q", "b", "main", f"refs/tags/{more}", f"^{first}")
        world.git(world.agent, *words)
        world.write((world.agent / "b").read_bytes())
        removed = set(world.fetched()["removed"])
        assert removed == {"refs/agent/tags/v3" if more == "y" else "refs/agent/tags/y"}
    found = refs(world)
    assert found["refs/agent/tags/v1"] == found["refs/agent/tags/v2"] == first
    world.git(world.agent, "tag", "-d", "v1")
    world.git(world.agent, "tag", "v1/x")
    words = ("bundle", "create", "-q", "b", "main", "refs/tags/v1/x", f"^{first}")
    world.git(world.agent, *words)
    world.write((world.agent / "b").read_bytes())
    world.fetched()  # what is in the way of another one is gone
    assert "refs/agent/tags/v1/x" in refs(world) and "refs/agent/tags/v1" not in refs(world)
    assert refs(world)["refs/agent/tags/v2"] == first  # and it takes no other one with it


def test_what_the_human_has_is_taken_again(world: World) -> None:
    first = world.commit({"x": "x"})
    world.publish()
    world.fetched("--merge", "main")
    world.git(world.host, "branch", "other", "HEAD~")
    world.git(world.agent, "checkout", "-q", "-b", "topic", "host/main")
    world.commit({"y": "y"})
    world.git(world.agent, "branch", "-D", "main")
    for write in (world.publish, lambda: world.write(NOTHING)):
        write()
        for words in ([], ["--expect", first], ["--expect", first.upper()]):
            done = world.fetch("--merge", "main", *words)
            assert done.returncode == 0 and "main has all of agent/main already" in done.stdout
        done = world.fetch(".", "main")
        assert done.returncode == 0 and "nothing new: " in done.stdout
        done = world.fetch("--merge", "main", "--expect", "0" * 40)
        assert done.returncode == 3 and "no branch main" in done.stderr
    world.git(world.host, "checkout", "-q", "other")
    for words in ([], ["--expect", first]):
        done = world.fetch("--merge", "main", *words)  # the human has it, and here it is not
        assert done.returncode == 3 and "no branch main" in done.stderr
    assert world.git(world.host, "rev-parse", "HEAD~") != first


def test_nothing_is_published(world: World) -> None:
    def said() -> str:
        done = world.fetch()
        assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1
        assert "nothing is published here: " in done.stderr and "git sync" in done.stderr
        return done.stderr

    assert f"there is no {world.bundle}" in said() and "--git private" in said()
    world.commit({"x": "x"})
    world.publish()
    for suffix in (".new.12", ".new.12.lock"):
        place = world.bundle.rename(f"{world.bundle}{suffix}")
        assert "agent.bundle is being written" in said()
        place.rename(world.bundle)
    world.fetched("--drop")
    assert f"there is no {world.bundle}" in said()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="other disks store no such time")
def test_a_time_that_is_no_date(world: World) -> None:
    world.commit({"x": "x"})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        host = shutil.copytree(world.host, Path(directory, "host"))
        world.publish(host)
        place = host / fetch_world.BUNDLE
        for seconds, age in ((-62_200_000_000, "days ago"), (253_402_300_800, "in the future")):
            os.utime(place, (seconds, seconds))
            assert place.stat().st_mtime == seconds
            bundle = world.fetched(at=host)["bundle"]
            assert bundle["written"] is None and age in bundle["age"]
            assert "None" not in world.fetch(at=host).stdout


def test_a_branch_in_the_way_of_one_that_is_named(world: World) -> None:
    world.git(world.agent, "checkout", "-q", "-b", "feat")
    world.commit({"x": "x"})
    world.publish()
    world.fetched()
    world.git(world.agent, "branch", "-m", "feat", "feat/x")
    world.publish()
    done = world.fetch(".", "feat/x")
    assert done.returncode == 3 and "gitguard fetch without BRANCH removes" in done.stderr
    world.fetched()
    assert set(refs(world)) == {"refs/remotes/agent/feat/x"}


def test_work_trees_of_one_repository_have_an_agent_each(world: World) -> None:
    tree = world.home / "it's a tree"
    world.git(world.host, "worktree", "add", "-q", "-b", "topic", str(tree))
    world.commit({"x": "x"})
    world.git(world.agent, "tag", "v1")
    world.publish()
    world.fetched()
    kept = refs(world)
    world.git(world.agent, "checkout", "-q", "-b", "own", "host/main")
    own = world.commit({"y": "y"})
    world.git(world.agent, "branch", "-D", "main")
    world.git(world.agent, "tag", "-f", "v1")
    world.publish(tree)
    report = world.fetched(at=tree)
    name = "agent-" + Path(world.git(tree, "rev-parse", "--git-dir")).name
    assert report["agent"] == name and report["removed"] == {}
    theirs = {f"refs/remotes/{name}/own": own, f"refs/{name}/tags/v1": own}
    assert refs(world) == kept | theirs
    assert f"{name}/own: " in world.fetch(at=tree).stdout
    world.fetched()
    assert refs(world) == kept | theirs
    log, _, take, _ = report["commands"]
    done = subprocess.run(["bash", "-ec", log], cwd=tree, check=True, text=True,
                          capture_output=True, env=world.environment())  # fmt: skip
    assert "+y" in done.stdout
    world.fetched(*shlex.split(take)[2:], at=tree)
    world.fetched("--drop", at=tree)
    assert refs(world) == kept
    world.git(world.host, "config", f"remote.{name}.url", "elsewhere")
    world.fetched()
    world.publish(tree)
    assert "git remote rename" in world.fetch(at=tree).stderr


def test_drop(world: World) -> None:
    commit = world.commit({"x": "x"})
    world.git(world.agent, "tag", "v1")
    world.publish()
    world.fetched()
    world.git(world.host, "update-ref", "refs/remotes/other/main", "HEAD")
    report = world.fetched("--drop")
    assert report["removed"] == {"refs/remotes/agent/main": commit, "refs/agent/tags/v1": commit}
    assert refs(world) == {} and not world.bundle.exists()
    assert world.git(world.host, "rev-parse", "refs/remotes/other/main")
    assert world.fetched("--drop")["removed"] == {}  # nothing is there, nothing is wrong
    assert world.fetch(".", "main", "--drop").returncode == 2


@pytest.mark.parametrize("how", ["a directory", "a symlink"])
def test_a_bundle_that_cannot_be_removed_keeps_no_ref(world: World, how: str) -> None:
    world.commit({"x": "x"})
    world.publish()
    world.fetched()
    shutil.rmtree(world.bundle.parent)
    if how == "a directory":
        world.bundle.mkdir(parents=True)
    else:
        world.bundle.parent.symlink_to(world.home)
    done = world.fetch("--drop")
    assert done.returncode == 3 and refs(world) == {}
    assert "removed refs/remotes/agent/main" in done.stdout
    assert f"{world.bundle} stays: " in done.stdout


def test_drop_reaches_the_branches_of_work_trees_that_are_gone(world: World) -> None:
    world.commit({"x": "x"})
    world.git(world.agent, "tag", "v1")
    for name in ("gone", "kept"):
        tree = world.home / name
        world.git(world.host, "worktree", "add", "-q", "-b", name, str(tree))
        world.publish(tree)
        world.fetched(at=tree)
    world.git(world.host, "worktree", "remove", "--force", str(world.home / "gone"))
    world.git(world.host, "update-ref", "refs/remotes/agent-own/main", "HEAD")
    world.git(world.host, "config", "remote.agent-own.url", "elsewhere")
    removed = set(world.fetched("--drop")["removed"])
    assert removed == {"refs/remotes/agent-gone/main", "refs/agent-gone/tags/v1"}
    assert {"refs/remotes/agent-kept/main", "refs/remotes/agent-own/main"} <= set(refs(world))
    world.fetched("--drop", at=world.home / "kept")
    assert set(refs(world)) == {"refs/remotes/agent-own/main"}


def test_drop_after_a_conflict_drops_nothing(world: World) -> None:
    world.commit({"a.txt": "agent\n"})
    world.publish()
    world.commit({"a.txt": "human\n"}, world.host)
    assert world.fetch("--merge", "main", "--drop").returncode == 1
    assert refs(world) and world.bundle.exists()


def test_drop_follows_no_symlink(world: World) -> None:
    elsewhere = world.home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "agent.bundle").write_text("x")
    (world.host / ".gitguard").symlink_to(elsewhere)
    assert world.fetch("--drop").returncode == 3
    (world.host / ".gitguard").unlink()
    (world.host / ".gitguard").mkdir()
    world.bundle.symlink_to(elsewhere / "agent.bundle")
    assert world.fetch("--drop").returncode == 0
    assert (elsewhere / "agent.bundle").exists() and not world.bundle.is_symlink()


def test_a_subdirectory_a_worktree_and_a_submodule(world: World) -> None:
    commit = world.commit({"src/x": "x"})
    world.publish()
    world.fetched(at=world.host / "src")
    world.git(world.host, "worktree", "add", "-q", "-b", "topic", "../tree", "main")
    tree = world.home / "tree"
    world.publish(tree)
    report = world.fetched("--merge", "main", at=tree)
    assert report["repository"] == str(tree) and report["merge"]["into"] == "topic"
    assert world.git(world.host, "rev-parse", "topic") == commit
    outer = world.home / "outer"
    world.git(world.home, "init", "-q", "outer")
    world.git(
        outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../host", "m"
    )
    world.publish(outer / "m")
    report = world.fetched("--merge", "main", at=outer / "m")
    assert report["repository"] == str(outer / "m")
    assert world.git(outer / "m", "rev-parse", "HEAD") == commit
    assert refs(world, outer / "m") and not refs(world, outer)


@pytest.mark.parametrize("words", [["--depth", "1"], ["--depth", "1", "--no-single-branch"]])
def test_a_shallow_clone(world: World, words: list[str]) -> None:
    shallow = world.home / "shallow"
    world.git(world.home, "clone", "-q", *words, world.host.as_uri(), "shallow")
    commit = world.commit({"x": "x"})
    world.publish(shallow)
    world.commit({"y": "y"}, shallow)
    (branch,) = world.fetched(at=shallow)["branches"]
    assert (branch["ahead"], branch["behind"], branch["changed"]) == (1, 1, 1)
    world.git(shallow, "reset", "-q", "--hard", "HEAD~")
    world.fetched("--merge", "main", at=shallow)
    assert world.git(shallow, "rev-parse", "HEAD") == commit
    world.git(shallow, "fsck", "--strict")


def test_settings_of_the_human_that_would_change_a_fetch(world: World) -> None:
    world.git(world.host, "tag", "mine")
    for key, value in {
        "fetch.prune": "true", "fetch.pruneTags": "true", "fetch.recurseSubmodules": "true",
        "submodule.recurse": "true", "protocol.allow": "never", "fetch.writeCommitGraph": "true",
        "transfer.fsckObjects": "false", "fetch.unpackLimit": "1000", "diff.renames": "copies",
        "log.showSignature": "true", "core.quotePath": "true", "diff.noprefix": "true",
        "core.abbrev": "4", "core.logAllRefUpdates": "always",
    }.items():  # fmt: skip
        world.git(world.host, "config", key, value)
    commit = world.commit({"x": "x"})
    world.publish()
    world.fetched("--merge", "main")
    assert world.git(world.host, "rev-parse", "HEAD") == commit
    assert world.git(world.host, "tag") == "mine"
    assert not (world.host / ".git/FETCH_HEAD").exists()


def test_a_remote_called_agent(world: World) -> None:
    world.git(world.host, "remote", "add", "agent", "https://example.org/")
    world.commit({"x": "x"})
    world.publish()
    world.refused("has a remote called agent", "git remote rename agent OTHER")


def test_a_place_that_is_not_a_checkout(world: World) -> None:
    done = world.fetch(world.home)
    assert done.returncode == 3 and "not a git repository" in done.stderr
    world.git(world.home, "init", "-q", "--bare", "bare.git")
    done = world.fetch(world.home / "bare.git")
    assert done.returncode == 3 and "bare" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a project of another user")
def test_a_project_of_another_user(world: World) -> None:
    for path in (world.host, world.host / ".git"):
        os.chown(path, 1234, 1234)
    done = world.fetch()
    assert done.returncode == 3 and "as the user who owns the project" in done.stderr
    assert "name the project" not in done.stderr


def test_an_old_git_hides_no_newer_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old = world.home / "old/git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho git version 2.20.1\n")
    old.chmod(0o755)
    monkeypatch.setattr(fetch_git, "SEARCH_PATH", str(old.parent))
    real = os.path.realpath(shutil.which("git") or "git")
    environment = {**world.environment(), "PATH": os.path.dirname(real)}
    assert find_repository(str(world.host), environment).git.program == real
    with pytest.raises(UserError, match=r"version 2\.20\.1"):
        find_repository(str(world.host), {**environment, "PATH": ""})


def test_a_git_that_is_in_path_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = world.home / "store/git-2/bin/git"
    real.parent.mkdir(parents=True)
    shutil.copy(shutil.which("git") or "git", real)
    profile = world.home / "profile"
    profile.mkdir(mode=0o755)
    (profile / "git").symlink_to(real)
    tree = world.home / "tree"
    world.git(world.host, "worktree", "add", "-q", str(tree))

    def found(path: Path | str, project: Path = world.host) -> str | None:
        environment = {"PATH": f"nowhere:/nonexistent:{path}"}
        git = next(Git.candidates(environment, str(project), "/nonexistent"), None)
        return git.program if git else None

    assert found(profile) == found(profile, world.home) == str(real)  # as with Nix
    for inside in (world.host / "bin", world.host / "src/deep"):
        inside.mkdir()
        shutil.copy(real, inside)
        outside = world.home / f"to-{inside.name}"
        outside.symlink_to(inside)
        for project in (world.host, world.host / "src", tree):
            assert found(inside, project) is None and found(outside, project) is None
    (world.home / "into").mkdir()
    (world.home / "into/git").symlink_to(world.host / "bin/git")
    assert found(world.home / "into") is None
    assert found(os.path.relpath(profile)) is None and found("") is None
    user = pwd.getpwuid(os.geteuid())
    for path in (profile, real, real.parent):
        path.chmod(0o757)
        assert found(profile) is None
        path.chmod(0o775)
        if os.geteuid() == 0:
            os.chown(path, -1, 1234)
            assert found(profile) is None
            os.chown(path, -1, user.pw_gid)
        for others, is_found in ([], True), ([user.pw_name], True), (["other"], False):
            own = grp.struct_group((user.pw_name, "x", user.pw_gid, others))
            monkeypatch.setattr(grp, "getgrgid", lambda _, own=own: own)
            assert bool(found(profile)) == is_found
        monkeypatch.undo()
        path.chmod(0o755)
    assert found(profile)
    if os.geteuid() == 0:
        os.chown(real, 1234, 0)
        assert found(profile) is None
        os.chown(real, 0, 0)
    real.rename(real.with_name("mise"))  # which chooses a git by a file of the project
    real.symlink_to("mise")
    assert found(profile) is None
    real.unlink()
    real.write_text("#!/bin/sh\nexec asdf exec git\n")
    real.chmod(0o755)
    assert found(profile) is None


def test_wrong_usage(world: World) -> None:
    for words in (["--expect", "1234567890"], ["--limit", "x"], ["--merge", ""], ["--bogus"]):
        done = world.fetch(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, words


def test_json_is_one_object_and_refusals_print_none(world: World) -> None:
    world.commit({"x": "x"})
    world.publish()
    assert set(json.loads(world.fetch("--json").stdout)) == {
        "repository", "agent", "bundle", "branches", "tags", "removed", "merge", "commands", "notes"
    }  # fmt: skip
    world.write(b"x")
    assert world.fetch("--json").stdout == ""
