"""Git directories in odd places, bare repositories, and directories that could become one."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from gitguardfs.base.walk import ScannedDirectory
from gitguardfs.host.audit import repository
from gitguardfs.host.audit.audit import Audit
from tests.support import audit_world
from tests.support.audit_world import World, check_fixes

world = audit_world.fixture


def evil_config(world: World) -> str:
    evil = world.script(world.share / "evil")
    return f"[core]\n\trepositoryFormatVersion = 0\n\tfsmonitor = {evil}\n"


def status_runs(world: World, at: Path | None = None) -> bool:
    world.git("status", at=at, check=False)
    return world.has_run()


# ------------------------------------------------------------------------- separate directories


def test_a_git_file_that_leads_to_where_the_agent_may_make_a_repository(world: World) -> None:
    place = world.share / "pointer"
    place.mkdir()
    (place / ".git").write_text("gitdir: ../store\n")
    found = world.findings("git.directory")
    assert "could make a repository" in found[0]["detail"]
    world.git("init", "-q", "--bare", world.share / "store")
    (world.share / "store/config").write_text(evil_config(world))
    world.git("config", "--global", "core.bare", "false")
    assert status_runs(world, place)
    shutil.rmtree(world.share / "store")
    check_fixes(world, "git.directory", "medium", "pointer/.git leads to")


@pytest.mark.parametrize("form", ["file", "symlink"])
def test_a_git_directory_in_the_share_that_is_called_otherwise(world: World, form: str) -> None:
    place, store = world.share / "pointer", world.share / "store"
    world.git("init", "-q", "--separate-git-dir", store, place)
    if form == "symlink":
        (place / ".git").unlink()
        (place / ".git").symlink_to("../store")
    with (store / "config").open("a") as file:
        file.write(evil_config(world))
    assert status_runs(world, place)
    (store / "config").write_text("")
    check_fixes(world, "git.directory", "medium", "pointer/.git leads to")
    assert (place / ".git").is_dir()
    world.git("status", at=place)


def test_a_blank_at_the_end_of_a_path_belongs_to_it(world: World) -> None:
    place, store = world.share / "pointer", world.share / "store"
    world.git("init", "-q", "--separate-git-dir", f"{store} ", place)
    world.git("init", "-q", "--bare", store)
    assert (place / ".git").read_text() == f"gitdir: {store} \n"
    world.git("config", "core.pager", "./x", at=place)
    assert f"(in {store} /config)" in world.findings("git.config")[0]["detail"]


def test_work_trees_of_a_bare_repository_in_the_share(world: World) -> None:
    world.git("clone", "-q", "--bare", world.project, world.share / "all.git")
    git_dir = f"--git-dir={world.share}/all.git"
    world.git(git_dir, "worktree", "add", "-q", world.share / "tree")
    check_fixes(world, "git.directory", "medium", "tree/.git leads to")


def test_a_relative_way_out_of_the_share_leads_elsewhere_when_a_directory_moves(
    world: World,
) -> None:
    place = world.share / "a/b"
    world.git("init", "-q", "--separate-git-dir", world.home / "apart", place)
    (place / ".git").write_text("gitdir: ../../../apart\n")
    evil = world.share / "apart"
    world.git("init", "-q", "--bare", evil)
    (evil / "config").write_text(evil_config(world))
    (world.share / "x").mkdir()
    (world.share / "a").rename(world.share / "x/a")
    assert status_runs(world, world.share / "x/a/b")
    (world.share / "x/a").rename(world.share / "a")
    check_fixes(world, "git.directory", "medium", "a/b/.git leads to")
    (world.share / "a").rename(world.share / "x/a")
    assert not status_runs(world, world.share / "x/a/b")


def test_a_common_directory_of_the_agents(world: World) -> None:
    meta, git = world.share / "meta", world.project / ".git"
    for name in ("objects", "refs"):
        shutil.copytree(git / name, meta / name)
    (meta / "config").write_text(evil_config(world))
    (git / "commondir").write_text("../../meta\n")
    assert status_runs(world)
    check_fixes(world, "git.directory", "high", "commondir leads to")
    assert not status_runs(world)


def test_parts_of_a_git_directory_that_lead_to_the_agent(world: World) -> None:
    (world.project / "cfg").write_text(evil_config(world))
    (world.project / ".git/config").unlink()
    (world.project / ".git/config").symlink_to("../cfg")
    assert status_runs(world)
    check_fixes(world, "git.directory", "high", ".git/config leads to")
    assert not status_runs(world)


def test_a_common_directory_by_a_symlink_is_not_taken_for_none(world: World) -> None:
    (world.home / "common").write_text("../../meta\n")
    (world.project / ".git/commondir").symlink_to(world.home / "common")
    assert world.findings("audit.read")


def test_a_submodule_that_is_not_there_now_is_read(world: World) -> None:
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q")
    world.git("clone", "-q", world.project, world.home / "other")
    world.git(*add, world.home / "other", "deep/sub")
    evil = world.script(world.share / "evil")
    sub = world.project / ".git/modules/deep/sub"
    (sub / "hooks/post-checkout").symlink_to(evil)
    world.git("config", "core.pager", evil, at=world.project / "deep/sub")
    world.git("submodule", "--quiet", "deinit", "-f", "deep/sub")
    world.git("submodule", "--quiet", "update", "--init")
    assert world.has_run()
    world.git("submodule", "--quiet", "deinit", "-f", "deep/sub")
    assert f"(in {sub}/config)" in world.findings("git.config")[0]["detail"]
    check_fixes(world, "git.hook", "high", f"{sub}/hooks/post-checkout leads to {evil}")
    world.git("submodule", "update", "-q", "--init")
    assert not world.has_run()


def test_the_configuration_of_a_work_tree_elsewhere_is_read(world: World) -> None:
    tree = world.home / "tree"
    world.git("worktree", "add", "-q", tree)
    world.git("config", "extensions.worktreeConfig", "true")
    world.git("config", "--worktree", "core.fsmonitor", world.script(world.share / "evil"), at=tree)
    assert status_runs(world, tree)
    check_fixes(world, "git.config", "high", ".git/worktrees/tree/config.worktree")
    assert not status_runs(world, tree)


def test_a_configuration_elsewhere_is_read_where_it_is(world: World) -> None:
    (world.project / ".git/config").rename(world.home / "cfg")
    (world.project / ".git/config").symlink_to(world.home / "cfg")
    assert not world.findings("git.directory")
    world.git("config", "--file", world.home / "cfg", "core.pager", "./x")
    assert world.findings("git.config")


def test_objects_from_where_the_agent_writes(world: World) -> None:
    shutil.copytree(world.project / ".git/objects", world.share / "objects")
    world.git("init", "-q", "../taker")
    taker = world.share / "taker"
    (taker / ".git/objects/info/alternates").write_text("../../../objects\n")
    head = world.git("rev-parse", "HEAD").strip()
    world.git("update-ref", "refs/heads/main", head, at=taker)
    world.git("cat-file", "-e", head, at=taker)
    check_fixes(world, "git.alternates", "medium", "taker/.git takes objects from")
    shutil.rmtree(world.share / "objects")
    world.git("fsck", "--strict", at=taker)


def test_objects_over_another_repository(world: World) -> None:
    cache, objects = world.home / "cache", world.share / "objects"
    shutil.copytree(world.project / ".git/objects", objects)
    world.git("init", "-q", "--bare", cache)
    (cache / "objects/info/alternates").write_text(f"{objects}\n{cache}/objects\n")
    world.git("init", "-q", "../taker")
    taker = world.share / "taker"
    (taker / ".git/objects/info/alternates").write_text(f"{cache}/objects\n")
    head = world.git("rev-parse", "HEAD").strip()
    world.git("update-ref", "refs/heads/main", head, at=taker)
    world.git("cat-file", "-e", head, at=taker)
    check_fixes(world, "git.alternates", "medium", f"taker/.git takes objects from {objects}")


def test_objects_from_another_repository_are_free(world: World) -> None:
    world.git("clone", "-q", "--shared", world.project, world.share / "second")
    assert (world.share / "second/.git/objects/info/alternates").exists()
    assert not world.findings("git.alternates")


def test_a_repository_that_is_moved_away_meanwhile_is_a_finding(world: World) -> None:
    real = repository.examine

    def moving(audit: Audit, directory: ScannedDirectory, name: str) -> None:
        (world.project / ".git").rename(world.home / "away")
        return real(audit, directory, name)

    with patch.object(repository, "examine", moving):
        (found,) = world.findings("audit.read")
    assert found["detail"] == f"{world.project}/.git: No such file or directory"


# ------------------------------------------------------------------------------ bare and prepared


def test_a_bare_repository_within_a_work_tree(world: World) -> None:
    bare = world.project / "fixtures/b"
    world.git("init", "-q", "--bare", bare)
    assert not world.findings("git.bare"), "git does not trust it"
    (bare / "config").write_text(f"[core]\n\tworktree = .\n{evil_config(world)}")
    world.git("config", "--global", "safe.bareRepository", "all")
    assert status_runs(world, bare)
    found = {row["severity"]: row for row in world.findings("git.bare")}
    assert found.keys() == {"high", "medium"}
    assert "core.fsmonitor" in found["high"]["detail"]
    check_fixes(world, "git.bare", "high", "core.fsmonitor")
    check_fixes(world, "git.bare", "medium", "in a work tree")


def test_what_is_in_a_bare_repository_is_not_the_agents(world: World) -> None:
    world.git("init", "-q", "--bare", world.share / "b.git")
    world.git("config", "core.hooksPath", world.share / "b.git/hooks")
    assert not world.findings("git.config")
    (world.share / "b.git/HEAD").unlink()
    assert world.findings("git.config")


def test_hooks_of_a_bare_repository(world: World) -> None:
    bare = world.share / "b.git"
    world.git("init", "-q", "--bare", bare)
    world.script(bare / "hooks/post-update")
    world.git("push", "-q", bare, "HEAD:refs/heads/x")
    assert world.has_run()
    check_fixes(world, "git.bare", "medium", "hooks/post-update")
    world.git("push", "-q", bare, "HEAD:refs/heads/y")
    assert not world.has_run()


@pytest.mark.parametrize("option", ["--bare", "--separate-git-dir"])
def test_what_was_put_into_a_repository_while_git_made_it(world: World, option: str) -> None:
    """The guard cannot hold it: git keeps what is there (docs/security.md)."""
    store, place = world.share / "store", world.share / "place"
    world.script(store / "hooks/post-update")
    (store / "config").write_text(f"{evil_config(world)}\tsshCommand = {world.share}/evil\n")
    world.git("init", "-q", option, *[store, place][: 1 if option == "--bare" else 2])
    world.git("push", "-q", store, "HEAD:refs/heads/x")
    assert world.has_run()
    for planted in ("hooks/post-update", "core.fsmonitor", "core.sshcommand"):
        check_fixes(world, "git.bare", "medium", planted)
    world.git("push", "-q", store, "HEAD:refs/heads/y")
    assert not world.has_run()


def test_a_work_tree_out_of_the_share_that_was_put_into_a_repository(world: World) -> None:
    store, place, own = world.share / "store", world.share / "place", world.home / "own"
    own.mkdir()
    store.mkdir()
    (store / "config").write_text("[core]\n\tworktree = ../../own\n")
    (found,) = world.findings("git.prepared")
    assert f"would run in {own} (core.worktree" in found["detail"]
    world.git("init", "-q", "--separate-git-dir", store, place)
    (own / "file").write_text("")
    world.git("clean", "-qfd", at=place)
    assert not (own / "file").exists(), "git works there"
    check_fixes(world, "git.bare", "medium", "core.worktree")


@pytest.mark.parametrize("more", ["", "README", "config"])
def test_what_is_prepared_is_found_however_it_is_covered(world: World, more: str) -> None:
    future = world.share / "future.git"
    world.script(future / "hooks/post-update")
    covers = evil_config(world) + "#" * (1 << 20) + "\n" if more == "config" else "text"
    if more:
        (future / more).write_text(covers)
    world.git("init", "-q", "--bare", future)
    world.git("push", "-q", future, "HEAD:refs/heads/x")
    assert world.has_run()
    shutil.rmtree(future / "refs")
    for name in ("HEAD", "description", *([] if more == "config" else ["config"])):
        (future / name).unlink()
    check_fixes(world, "git.prepared", "medium", "hooks/post-update")
    if more == "config":
        check_fixes(world, "git.prepared", "medium", "config says, which was not read")


@pytest.mark.parametrize("missing", ["HEAD", "refs"])
def test_a_repository_with_one_part_missing(world: World, missing: str) -> None:
    lib = world.project / "lib"
    world.git("init", "-q", "--bare", lib)
    (lib / "config").write_text(f"[core]\n\tworktree = .\n{evil_config(world)}")
    world.git("config", "--global", "safe.bareRepository", "all")
    assert status_runs(world, lib)
    part = lib / missing
    part.rename(world.home / missing)
    assert not status_runs(world, lib)
    check_fixes(world, "git.prepared", "high", "core.fsmonitor")
    (world.home / missing).rename(part)
    assert not status_runs(world, lib)


@pytest.mark.parametrize("own", ["refs", "objects"])
@pytest.mark.parametrize("how", ["switch", "stash"])
def test_what_a_checkout_completes_is_found_before_and_after(
    world: World, own: str, how: str
) -> None:
    """The guard cannot know what is in a branch or a stash; the limit stands in security.md."""
    fixture, other = world.project / "fixture", {"refs": "objects", "objects": "refs"}[own]
    (fixture / other).mkdir(parents=True)
    (fixture / other / "x").write_text("text\n")
    (fixture / "HEAD").write_text("ref: refs/heads/main\n")
    if how == "switch":
        world.git("switch", "-qc", "feature")
        world.git("add", "fixture")
        world.git("commit", "-qm", "fixture")
        world.git("switch", "-q", "-")
    else:
        world.git("stash", "-qu", "--", "fixture")
    assert not fixture.exists()
    (fixture / own).mkdir(parents=True)
    (fixture / "README").write_text("text\n")
    config = f"{evil_config(world)}\tbare = false\n\tworktree = .\n"
    (fixture / "config").write_text(config)
    assert [row["severity"] for row in world.findings("git.prepared")] == ["medium"]
    world.git(*(["switch", "-q", "feature"] if how == "switch" else ["stash", "pop", "-q"]))
    assert not status_runs(world, fixture), "git does not trust it"
    world.git("config", "--global", "safe.bareRepository", "all")
    assert status_runs(world, fixture)
    check_fixes(world, "git.bare", "high", "core.fsmonitor")
    assert not status_runs(world, fixture)


def test_a_git_directory_that_waits_to_be_one(world: World) -> None:
    place = world.share / "later"
    world.script(place / ".git/hooks/post-commit")
    world.git("init", "-q", at=place)
    world.git("commit", "--allow-empty", "-qm", "x", at=place)
    assert world.has_run()
    for name in ("HEAD", "config", "description", "index"):
        (place / ".git" / name).unlink()
    for name in ("refs", "objects"):
        shutil.rmtree(place / ".git" / name)
    check_fixes(world, "git.prepared", "medium", "hooks/post-commit")


def test_ordinary_directories_are_not_prepared(world: World) -> None:
    for path in ("a/config", "b/refs/x", "b/objects/y", "c/HEAD", "d/hooks/useState.ts",
                 "e/config", "e/hooks/index.js", "e/index", "f/commondir"):  # fmt: skip
        (world.project / path).parent.mkdir(parents=True, exist_ok=True)
        (world.project / path).write_text("text\n")
    world.script(world.project / "g/hooks/pre-commit.sample")
    world.script(world.project / "g/hooks/deploy")
    assert not world.findings("git.prepared")
    world.script(world.project / "tools/hooks/pre-commit")
    (world.project / "tools/README").write_text("")
    assert [row["severity"] for row in world.findings("git.prepared")] == ["low"]
    (world.project / "tools/README").unlink()
    assert [row["severity"] for row in world.findings("git.prepared")] == ["low"]


@pytest.mark.parametrize("what", ["hooks", "config"])
def test_what_was_planted_among_other_files_long_before_is_found(world: World, what: str) -> None:
    place, kept = world.share / "place", world.home / "kept"

    def init_runs() -> bool:
        world.git("init", "-q", "--bare", place)
        if what == "hooks":
            world.git("push", "-q", place, "HEAD:refs/heads/x")
        else:
            world.git("fetch", "ssh://localhost/x", at=place, check=False)
        return world.has_run()

    place.mkdir()
    (place / "notes").write_text("text\n")
    if what == "hooks":
        world.script(place / "hooks/post-update")
    else:
        (world.home / "bin").mkdir()
        (world.home / "bin/ssh").symlink_to("/bin/false")
        evil = world.script(world.share / "evil")
        (place / "config").write_text(f"[core]\n\tsshCommand = {evil}\n")
    (found,) = world.findings("git.prepared")
    assert f"{place}: after git init --bare here git would run" in found["detail"]
    shutil.copytree(place, kept)
    world.git("config", "--global", "safe.bareRepository", "all")
    assert init_runs()
    world.git("config", "--global", "safe.bareRepository", "explicit")
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    check_fixes(world, "git.prepared", "low", "after git init --bare here")
    world.git("config", "--global", "safe.bareRepository", "all")
    assert not init_runs()


def test_a_configuration_among_other_files_is_one_finding(world: World) -> None:
    config = world.project / "git/config"
    config.parent.mkdir()
    (config.parent / "ignore").write_text("*.o\n")
    config.write_text("[core]\n\teditor = vim\n\tpager = delta\n[alias]\n\tx = !x\n")
    (found,) = world.findings("git.prepared")
    assert "core.editor = vim" in found["detail"] and found["severity"] == "low"
    assert not world.findings("git.prepared", "--protect", "config")


def test_an_address_that_is_a_command_waits_in_a_configuration(world: World) -> None:
    (world.share / "future.git").mkdir()
    (world.share / "future.git/config").write_text('[remote "a"]\n\turl = ext::sh -c x\n')
    check_fixes(world, "git.prepared", "medium", "remote.a.url = ext::sh -c x")


def test_what_is_no_repository_is_none(world: World) -> None:
    (world.share / "empty/.git").mkdir(parents=True)
    (world.share / "stale").mkdir()
    (world.share / "stale/.git").write_text("gitdir: /nowhere\n")
    (world.share / "text").mkdir()
    (world.share / "text/.git").write_text("text\n")
    assert all(row["status"] != "finding" for row in world.audit())


# -------------------------------------------------------------------------------- second names


@pytest.mark.parametrize("where", [".git", "outside"])
def test_a_hook_that_the_agent_had_linked_before_it_became_one(world: World, where: str) -> None:
    tool, other = world.project / "hook.sh", world.project / "build's/.cache"
    tool.write_text("#!/bin/sh\n")
    other.parent.mkdir()
    other.hardlink_to(tool)
    hook = world.project / ".git/hooks/post-commit"
    if where == ".git":
        tool.rename(hook)
    else:
        (world.home / "tools").mkdir()
        tool.rename(world.home / "tools/hook.sh")
        hook.symlink_to(world.home / "tools/hook.sh")
    world.script(other)
    world.git("commit", "--allow-empty", "-qm", "x")
    assert world.has_run()
    other.write_text("#!/bin/sh\n")
    check_fixes(world, "git.linked", "medium", "has 2 hard links")
    world.script(other)
    world.git("commit", "--allow-empty", "-qm", "x")
    assert not world.has_run()


@pytest.mark.parametrize("place", [".git/config", ".git/config.worktree", "../b.git/config",
                                   "../b.git/hooks/post-update", ".git/modules/sub/config",
                                   ".git/worktrees/tree/config.worktree"])  # fmt: skip
def test_a_second_name_of_any_file_that_git_obeys(world: World, place: str) -> None:
    world.git("init", "-q", "--bare", "../b.git")
    world.git("init", "-q", "--bare", ".git/modules/sub")
    world.git("worktree", "add", "-q", world.share / "tree")
    path = world.project / place
    path.write_text(path.read_text() if path.exists() else "")
    assert not world.findings("git.linked")
    (world.share / "it's $(this)").hardlink_to(path)
    check_fixes(world, "git.linked", "medium", f"{path.resolve()} has 2 hard links")


def test_samples_and_files_of_others_may_have_second_names(world: World) -> None:
    (world.project / "other").hardlink_to(world.project / ".git/hooks/pre-commit.sample")
    store = world.home / "store"
    store.mkdir()
    world.script(store / "pre-commit")
    (store / "other").hardlink_to(store / "pre-commit")
    world.git("config", "--global", "core.hooksPath", store)
    assert world.findings("git.linked")
    with patch("gitguardfs.host.commands.audit.os.geteuid", return_value=12345):
        assert not world.findings("git.linked")


# -------------------------------------------------------------------------------- no false alarms


def test_ordinary_projects_give_no_findings(world: World) -> None:
    world.git("clone", "-q", world.project, world.share / "clone")
    world.git("worktree", "add", "-q", world.share / "tree")
    world.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", world.project, "sub")
    world.git("init", "-q", "--separate-git-dir", world.home / "apart", world.share / "pointer")
    for key in ("clean", "smudge"):
        world.git("config", "--global", f"filter.lfs.{key}", f"git-lfs {key} -- %f")
    world.git("config", "--global", "filter.lfs.process", "git-lfs filter-process")
    world.git("config", "--global", "core.pager", "delta")
    world.git("config", "--global", "alias.lg", "log --graph")
    world.git("config", "--global", "credential.helper", "store")
    (world.project / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (world.project / ".pre-commit-config.yaml").write_text("repos: []\n")
    (world.project / ".husky").mkdir()
    (world.project / "package.json").write_text('{"scripts": {"prepare": "husky"}}')
    (world.project / ".env.example").write_text("TOKEN=\n")
    (world.project / "venv/bin").mkdir(parents=True)
    (world.project / "venv/bin/python").symlink_to("/usr/bin/python3")
    (world.project / "venv/lib64").symlink_to("lib")
    (world.project / "node_modules/.bin").mkdir(parents=True)
    (world.project / "node_modules/.bin/x").symlink_to("../x/cli.js")
    loud = [row for row in world.audit() if row["severity"] in ("medium", "high")]
    assert not loud
