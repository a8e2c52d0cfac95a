"""The human's clone is partial: what its objects are missing for does not take files away."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitguardfs.base.findings import Result, Status
from gitguardfs.doctor import partial_checks
from gitguardfs.doctor.context import Context
from gitguardfs.mounting.guards import GuardDaemon
from gitguardfs.private import partial
from tests.support.private_world import World, world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")
SHARED = {"a": "main\n", "only-main": "1\n", "dir/c": "main\n"}


@pytest.fixture
def part() -> Iterator[World]:
    """A partial clone, in which main is checked out, and the files of topic and of old are not."""
    with world() as made:
        made.commit("old", {"a": "old\n", "dir/c": "old\n"})
        made.host("branch", "old")
        made.host("switch", "--quiet", "--force-create", "topic")
        made.commit("topic", {"a": "topic\n", "dir/c": "topic\n", "only-topic": "1\n"})
        made.host("switch", "--quiet", "main")
        made.commit("main", SHARED)
        made.host("config", "uploadpack.allowFilter", "true")
        made.host("clone", "--quiet", "--no-local", "--filter=blob:none", ".", "../part")
        found = World(made.area, "part")
        found.host("branch", "topic", "origin/topic")
        yield found


def files(tree: Path) -> dict[str, str]:
    return {
        str(path.relative_to(tree)): path.read_text()
        for path in tree.rglob("*")
        if path.is_file() and not {".git", ".gitguard"} & set(path.parts)
    }


def doctor(part: World) -> list[Result]:
    options = ("git=private", f"private-store={part.store}")
    daemon = GuardDaemon(1, (1, "", "", ""), "/source", options)
    return partial_checks.check(Context("/view", None, True, daemons=(daemon,)))


def test_no_file_goes_because_an_object_is_missing(
    part: World, caplog: pytest.LogCaptureFixture
) -> None:
    alone = World(part.area, "alone")
    part.host("clone", "--quiet", "--no-local", "--filter=blob:none", "../proj", "../alone")
    before = files(alone.project)
    alone.host("config", "remote.origin.url", "nowhere")
    with pytest.raises(AssertionError):
        alone.host("switch", "topic")
    assert files(alone.project) != before  # what git does without the guard
    part.prepare()
    assert partial.COMMAND in caplog.text
    part.show()
    assert partial.COMMAND in part.agent("sync")
    (note,) = doctor(part)
    assert note.status is Status.NOTE and partial.COMMAND in note.hint and "part" in note.detail
    before = files(part.view)
    assert part.agent("status", "--short", "--branch") == "## main...host/main"
    assert len(part.agent("log", "--format=%s").split()) == 4
    for words in (
        ["switch", "topic"], ["checkout", "topic"], ["checkout", "--force", "HEAD~"],
        ["reset", "--hard", "host/topic"], ["checkout", "HEAD~", "--", "."],
        ["restore", "--source=topic", "."], ["merge", "host/topic"], ["rebase", "host/topic"],
        ["cherry-pick", "host/topic"], ["revert", "HEAD~"], ["read-tree", "-u", "--reset", "HEAD~"],
    ):  # fmt: skip
        part.agent(*words, check=False)
        part.agent(words[0], "--quit", check=False)
        assert files(part.view) == before, words
        assert part.agent("status", "--short", "--branch").split("\n")[0].startswith("## main")
    # Its own work goes on.
    (part.view / "a").write_text("mine\n")
    part.agent("switch", "--quiet", "--create", "mine")
    part.agent("commit", "--quiet", "--all", "--message", "mine")
    part.agent("switch", "--quiet", "main")
    assert files(part.view) == before
    part.agent("fsck", "--no-dangling")
    # The host's command brings all.
    part.host("-c", "gc.autoDetach=false", *partial.COMMAND.split()[1:])
    part.prepare()
    assert doctor(part) == [] and partial.COMMAND not in part.agent("sync")
    part.agent("switch", "--quiet", "topic")
    assert (part.view / "a").read_text() == "topic\n"
    assert part.agent("status", "--short") == ""
    part.agent("fsck", "--no-dangling")


def test_what_the_human_commits_in_a_partial_clone_comes_over(
    part: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    part.prepare()
    part.show()
    for number in range(5):
        part.commit("more", {"a": f"{number}\n"})
    part.prepare()
    read, seen = partial._read, list[set[bytes]]()

    def noting(ask: partial.Ask, roots: set[bytes]) -> dict[bytes, partial.Tree | None]:
        seen.append(roots)
        return read(ask, roots)

    monkeypatch.setattr(partial, "_read", noting)
    for number in range(3):
        part.commit("more", {"a": f"{number}\n"})
    part.prepare()
    assert 3 <= len(seen[0]) <= 5, "the new commits, and those that lack files; not all"
    part.agent("fetch", "--quiet", "host")
    assert "+2" in part.agent("diff", "host/main~", "host/main")
    part.agent("switch", "--quiet", "--detach", "host/main~2")
    assert (part.view / "a").read_text() == "0\n"


def test_a_shallow_clone_has_all_files_of_the_commits_that_it_has(part: World) -> None:
    shallow = World(part.area, "shallow")
    url = f"file://{part.project.parent / 'proj'}"  # from a path alone git clones all
    part.host("clone", "--quiet", "--depth=1", "--no-single-branch", url, "../shallow")
    shallow.host("branch", "topic", "origin/topic")
    shallow.prepare()
    shallow.show()
    before = files(shallow.view)
    for beyond in (["switch", "--detach", "HEAD~"], ["reset", "--hard", "HEAD~"]):
        shallow.agent(*beyond, check=False)
        assert files(shallow.view) == before, beyond
    shallow.agent("switch", "--quiet", "--create", "topic", "host/topic")
    assert files(shallow.view)["a"] == "topic\n"
    shallow.agent("switch", "--quiet", "main")
    assert files(shallow.view) == before
    assert "partial" not in shallow.agent("sync")


def test_directories_of_any_size_do_not_fill_the_memory(
    part: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "MAX_BYTES", 300)
    part.view = part.area / "part-view"
    part.prepare()
    part.show()
    assert f"too large directories for a partial clone: {partial.COMMAND}" in part.agent(
        "sync", check=False
    )
    part.host("fetch", "--quiet", "--refetch", "--no-filter")
    part.prepare()
    part.show()
    assert part.agent("status", "--short", "--branch") == "## main...host/main"


def test_a_clone_that_becomes_partial_takes_no_file_away(part: World) -> None:
    source = World(part.area, "proj")
    whole = World(part.area, "whole")
    whole.view = part.area / "whole-view"
    source.host("clone", "--quiet", ".", "../whole")
    whole.prepare()
    whole.show()
    source.host("switch", "--quiet", "--create", "side")
    source.commit("side", {"a": "side\n", "dir/c": "side\n"})
    whole.host("fetch", "--quiet", "--filter=blob:none", f"file://{source.project}", "side:side")
    whole.prepare()
    assert "the human's clone is partial" in whole.agent("sync")
    before = files(whole.view)
    assert before
    whole.agent("switch", "side", check=False)
    assert files(whole.view) == before
    assert whole.agent("status", "--short", "--branch") == "## main...host/main"
