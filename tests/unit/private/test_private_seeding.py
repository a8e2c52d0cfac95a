"""The agent's own repository: what is in it, and what of the host's is not."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gitguardfs.private.repositories import PrivateRepositories
from tests.support.people import AGENT, as_user
from tests.support.private_world import World, made_project, world
from tests.support.repos import HOST_GID, HOST_UID, SECRET, as_host, differences, git, metadata

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a store for others is root's")


project = made_project


def test_the_agent_has_branches_tags_log_and_a_clean_status(project: World) -> None:
    project.host("config", "user.name", "Human")
    project.prepare()
    project.show()
    status = project.agent("status", "--porcelain=v2", "--branch")
    assert "# branch.upstream host/main" in status and "# branch.ab +0 -0" in status
    assert [line for line in status.splitlines() if not line.startswith("#")] == []
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    assert project.agent("branch", "--all", "--format=%(refname)").split() == [
        "refs/heads/main", "refs/remotes/host/main", "refs/remotes/host/topic",
    ]  # fmt: skip
    assert project.agent("tag").split() == ["v1"]
    assert project.agent("config", "user.name", check=False) == "", "it commits as itself"
    assert project.agent("fsck") == ""
    assert "git fetch host" in (project.mine / "GITGUARD").read_text()
    project.agent("switch", "topic")
    assert project.agent("rev-parse", "topic@{upstream}") == project.host("rev-parse", "topic")[:40]


def test_the_first_status_reads_no_file(project: World) -> None:
    """The host's sizes and times are in the index: a file of that size and time is not read."""
    os.utime(project.project / "b", ns=(10**18, 10**18))  # else it is as new as the index
    project.host("update-index", "--refresh")
    project.prepare()
    project.show()
    changed = project.view / "b"
    before = changed.stat()
    changed.write_text("9\n")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert project.agent("status", "--short") == ""


def test_a_change_in_the_same_second_as_the_hosts_index_is_seen(project: World) -> None:
    long_ago = (10**18, 10**18)
    os.utime(project.project / "b", ns=long_ago)
    project.host("update-index", "--refresh")
    project.write({"b": "9\n"})
    for name in ("b", ".git/index"):
        os.utime(project.project / name, ns=long_ago)
    project.prepare()
    project.show()
    assert project.agent("status", "--short") == "M b"


@pytest.mark.parametrize("how", ["split", "torn", "absent", "staged", "unmerged", "sparse"])
def test_an_index_of_any_kind_gives_the_status_of_the_work_tree(project: World, how: str) -> None:
    index = project.project / ".git/index"
    if how == "split":
        project.host("update-index", "--split-index")
    elif how == "torn":
        index.write_bytes(index.read_bytes()[:-30])
    elif how == "absent":
        index.unlink()
    elif how == "staged":
        project.write({"a": "staged\n", "new": "new\n"})
        project.host("add", "--all")
    elif how == "unmerged":
        blob = project.host("rev-parse", "HEAD:b").strip()
        lines = "".join(f"100644 {blob} {stage}\ta\n" for stage in (1, 2, 3))
        subprocess.run(
            ["git", "-c", "safe.directory=*", "update-index", "--index-info"],
            input=f"0 {'0' * 40}\ta\n{lines}", text=True, check=True, cwd=project.project,
        )  # fmt: skip
    else:
        project.host("sparse-checkout", "set", "--cone", "--sparse-index", "dir")
    project.prepare()
    project.show()
    status = project.agent("status", "--short")
    assert status.split("\n") == {"staged": ["M a", "?? new"]}.get(how, [""])
    assert project.agent("diff") == "" or how == "staged"
    project.agent("commit", "--quiet", "--all", "--allow-empty", "--message", "agent")


def test_a_sparse_checkout_of_the_hosts_goes_on_beside_directories_of_the_guests_own(
    project: World,
) -> None:
    project.commit("dependencies", {"dir/node_modules/x": "1\n", "other/x": "1\n"})
    project.host("sparse-checkout", "set", "--cone", "dir")
    project.prepare(project.daemon("deps"))
    shutil.rmtree(project.project / "dir/node_modules")
    project.show()
    assert project.agent("status", "--porcelain") == ""
    project.agent("checkout", "--quiet", "HEAD~")
    project.agent("checkout", "--quiet", "main")
    assert not (project.view / "other").exists()
    assert not (project.view / "dir/node_modules").exists()


@pytest.mark.parametrize("host", [b"", b"*.log", b"*.log\n"])
def test_work_trees_of_the_agents_are_no_submodules(project: World, host: bytes) -> None:
    """If their directories are the guest's own: ``git add .`` leaves them out."""
    (project.project / ".git/info").mkdir(exist_ok=True)
    (project.project / ".git/info/exclude").write_bytes(host)
    project.prepare(project.daemon("deps"))
    project.show()
    for place in (".worktrees/a", "dir/.claude/worktrees/b", ".claude/worktrees/c"):
        project.agent("worktree", "add", "--quiet", place)
    (project.view / ("x.log" if host else "dir/.claude/x")).write_text("")
    status = project.agent("status", "--short", "--untracked-files=all")
    assert status == ("" if host else "?? dir/.claude/x")


def test_nothing_unreachable_and_no_secret_of_the_hosts_comes_over(project: World) -> None:
    host = project.host
    host("config", "remote.origin.url", f"https://u:{SECRET}@example.org/x")
    host("config", "http.extraHeader", f"Authorization: {SECRET}")
    lost = project.commit("lost", {"lost": f"lost {SECRET}\n"})
    host("reset", "--quiet", "--hard", "HEAD~")
    project.write({"a": f"stash {SECRET}\n"})
    host("stash")
    stash = host("rev-parse", "refs/stash").strip()
    project.write({"a": f"staged {SECRET}\n"})
    host("add", "a")
    staged = host("rev-parse", ":a").strip()
    host("update-ref", "refs/secret/x", lost)
    host("notes", "add", "--message", SECRET)
    hook = project.project / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n# {SECRET}\n")
    project.prepare()
    assert not {lost, stash, staged} & project.objects()
    reachable = host("rev-list", "--objects", "--branches", "--tags").split("\n")
    assert project.objects() == {line.split()[0] for line in reachable if line}
    for path in project.directory.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert not list(project.copy.glob("hooks/*"))


def test_the_hosts_repository_stays_as_it_is(project: World) -> None:
    before = metadata(project.project)
    project.prepare()
    project.show()
    project.agent("commit", "--quiet", "--allow-empty", "--message", "agent")
    project.agent("sync")
    assert differences(before, metadata(project.project)) == []
    project.commit("three", {"a": "3\n"})
    before = metadata(project.project)
    project.prepare()
    assert differences(before, metadata(project.project)) == []


def test_a_branch_of_any_name_has_its_upstream(project: World) -> None:
    project.host("switch", "--quiet", "--create", 'say-"hi"]-#1')
    project.prepare()
    project.show()
    assert project.agent("status", "-sb") == '## say-"hi"]-#1...host/say-"hi"]-#1'


@pytest.mark.parametrize("form", ["sha256", "detached", "unborn", "shallow", "packed"])
def test_repositories_of_other_forms(form: str) -> None:
    with world() as made:
        if form == "detached":
            made.host("switch", "--quiet", "--detach")
            commit = made.commit("on no branch", {"a": "3\n"})
        elif form == "packed":
            made.host("gc", "--quiet")
            made.host("pack-refs", "--all")
        elif form == "shallow":
            (made.project / ".git/shallow").write_text(made.host("rev-parse", "HEAD"))
        else:
            subprocess.run(["rm", "-r", made.project / ".git"], check=True)
            kind = "sha256" if form == "sha256" else "sha1"
            made.host("init", "--quiet", f"--object-format={kind}", "--initial-branch=trunk")
            if form == "sha256":
                made.commit("one", {})
        made.prepare()
        made.show()
        status = made.agent("status", "--short", "--branch")
        if form == "unborn":
            assert status.startswith("## No commits yet on trunk")
        elif form == "detached":
            assert status == "## HEAD (no branch)"
            assert made.agent("rev-parse", "HEAD") == commit
        else:
            branch = "trunk" if form == "sha256" else "main"
            assert status == f"## {branch}...host/{branch}"
        count = {"sha256": 1, "detached": 3, "unborn": 0, "shallow": 1, "packed": 2}[form]
        assert len(made.agent("log", "--format=%s", check=False).split("\n")) == count or not count
        made.agent("commit", "--quiet", "--allow-empty", "--message", "agent")
        assert made.agent("fsck", "--connectivity-only") == ""


def test_a_partial_clone_stays_partial(project: World) -> None:
    project.commit("old", {"a": "of old\n"})
    old = project.host("rev-parse", "HEAD:a").strip()
    project.commit("new", {"a": "new\n"})
    project.host("config", "uploadpack.allowFilter", "true")
    project.host("clone", "--quiet", "--no-local", "--filter=blob:none", ".", "../part")
    part = World(project.area, "part")
    assert "?" + old in part.host("rev-list", "--objects", "--missing=print", "--all")
    before = metadata(part.project)
    part.prepare()
    assert differences(before, metadata(part.project)) == []
    part.show()
    assert part.agent("status", "--short", "--branch") == "## main...host/main"
    (part.view / "a").write_text("9\n")
    assert "+9" in part.agent("diff") and old not in part.objects()
    part.agent("commit", "--quiet", "--all", "--message", "agent")
    part.agent("fsck", "--no-dangling")
    commit = part.commit("three", {"b": "3\n"})
    part.prepare()
    part.agent("fetch", "--quiet", "host")
    assert part.agent("rev-parse", "host/main") == commit
    assert "+3" in part.agent("show", "host/main")
    assert len(list(part.copy.glob("objects/pack/*.pack"))) == 2
    part.host("reset", "--quiet", "--hard", "HEAD~")
    part.host("reflog", "expire", "--expire=now", "--all")
    part.host("gc", "--quiet", "--prune=now")
    part.prepare()
    part.agent("fetch", "--quiet", "host")
    assert part.agent("rev-parse", "host/main") == part.host("rev-parse", "HEAD").strip()


@pytest.mark.parametrize("has_worktree", [False, True])
def test_branches_in_tables(project: World, has_worktree: bool) -> None:
    """reftable, which the guest's git may know or not."""
    try:
        project.host("refs", "migrate", "--ref-format=reftable")
    except AssertionError:
        project.host("config", "core.repositoryFormatVersion", "1")
        project.host("config", "extensions.refStorage", "reftable")
        project.prepare()
        assert "git reads since 2.45" in (project.mine / "GITGUARD").read_text()
        return
    name = "main"
    if has_worktree:
        project.host("worktree", "add", "--quiet", "../other", "topic")
        (project.share / "other/.git").write_text("gitdir: ../proj/.git/worktrees/other\n")
        project, name = World(project.area, "other"), "topic"
    project.prepare()
    project.show()
    assert project.agent("status", "--short", "--branch") == f"## {name}...host/{name}"
    assert project.agent("branch", "--remotes", "--format=%(refname:short)").split() == [
        "host/main", "host/topic",
    ]  # fmt: skip
    project.host("switch", "--quiet", "--create", "new")
    project.commit("three", {"b": "3\n"})
    project.prepare()
    project.agent("fetch", "--quiet", "host")
    assert project.agent("log", "-1", "--format=%s", "host/new") == "three"
    project.host("switch", "--quiet", "--detach")
    project.prepare()
    assert (project.copy / "HEAD").read_text() == project.host("rev-parse", "HEAD")


@pytest.mark.parametrize("layout", ["relative", "absolute", "submodule", "symlink", ".bare"])
def test_a_repository_elsewhere_in_the_share(project: World, layout: str) -> None:
    main = project.project
    if layout in ("submodule", "symlink"):
        project.host("clone", "--quiet", "--separate-git-dir=../store.git", ".", "../other")
        shutil.rmtree(project.share / "store.git/refs/remotes")
        dotgit = project.share / "other/.git"
        if layout == "submodule":
            dotgit.write_text("gitdir: ../store.git\n")
        else:
            dotgit.unlink()
            dotgit.symlink_to("../store.git")
    elif layout == ".bare":
        project.host("clone", "--quiet", "--bare", ".", "../around/.bare")
        around = project.share / "around"
        with as_host():
            (around / ".git").write_text("gitdir: ./.bare\n")
        git(around, "worktree", "add", "--quiet", "../other", "topic")
    else:
        project.host("worktree", "add", "--quiet", "../other", "topic")
        if layout == "relative":
            (project.share / "other/.git").write_text("gitdir: ../proj/.git/worktrees/other\n")
        else:  # the paths of another machine
            (project.share / "other/.git").write_text("gitdir: /h/u/src/proj/.git/worktrees/other")
            (main / ".git/worktrees/other/gitdir").write_text("/h/u/src/other/.git\n")
    other = _other(project)
    assert other.directory != project.directory
    branch = "main" if layout in ("submodule", "symlink") else "topic"
    assert other.agent("status", "--short", "--branch") == f"## {branch}...host/{branch}"
    assert other.agent("fsck") == ""


@pytest.mark.parametrize("layout", ["worktree", "submodule", "symlink"])
def test_a_repository_outside_of_the_share(project: World, layout: str) -> None:
    """Its .git leads to where it is on the host; in the guest it is elsewhere."""
    guest, outside = project.area / "guest", project.area / "mounted"
    tree, branch = guest / "share", "topic" if layout == "worktree" else "main"
    tree.mkdir(parents=True)
    os.chown(tree, HOST_UID, HOST_GID)
    project.host("worktree", "add", "--quiet", str(tree), "topic")
    (project.project / ".git").rename(outside)
    if layout != "worktree":
        (tree / ".git").unlink()
    if layout == "submodule":
        (tree / ".git").write_text("gitdir: ../.git/modules/share\n")
    elif layout == "symlink":
        (tree / ".git").symlink_to(project.project / ".git")
    other = World(guest, ".")

    def prepare(name: str) -> None:
        other.repositories = PrivateRepositories(
            str(other.store), name, other.root, repository=str(outside)
        )
        other.prepare(other.repositories)

    prepare("there")
    other.show()
    status = other.agent("status", "--short", "--branch").splitlines()
    assert status[0] == f"## {branch}...host/{branch}"
    assert layout != "worktree" or len(status) == 1
    assert other.agent("fsck") == ""
    outside.rename(outside.with_name("gone"))
    prepare("not mounted")
    assert f"is not at {outside}" in (other.mine / "GITGUARD").read_text()


def _other(project: World) -> World:
    other = World(project.area, "other")
    other.view = project.area / "other-view"
    other.prepare()
    other.show()
    return other


@pytest.mark.parametrize("of", ["a repository", "a worktree", "a bare one with alternates"])
@pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
def test_objects_elsewhere_in_the_share(project: World, of: str, is_relative: bool) -> None:
    """As git clone --shared and --reference name them, on a host where the share is elsewhere."""
    given = "."
    if of == "a worktree":
        given = "../tree"
        project.host("worktree", "add", "--quiet", "--detach", given)
    elif of == "a bare one with alternates":
        given = "../between.git"
        project.host("clone", "--quiet", "--bare", "--shared", ".", given)
    project.host("clone", "--quiet", "--shared", given, "../other")
    shutil.rmtree(project.share / "other/.git/refs/remotes")
    own = project.share / "other/.git/objects/info/alternates"
    for alternates in (own, project.share / "between.git/objects/info/alternates"):
        if alternates.exists():
            text = alternates.read_text()
            assert text.startswith(f"{project.share}/")
            up = "../../.." if alternates == own else "../.."
            alternates.write_text(text.replace(str(project.share), up if is_relative else "/h/u"))
    other = _other(project)
    assert other.agent("status", "--short", "--branch") == "## main...host/main"
    assert other.agent("fsck") == ""


def test_a_bare_repository_beside_its_work_trees_is_bare_for_the_agent(project: World) -> None:
    """As on the host: git status there would call every file deleted, and commit -a delete it."""
    around = World(project.area, "around")
    project.host("clone", "--quiet", "--bare", ".", "../around/.bare")
    with as_host():
        (around.project / ".git").write_text("gitdir: ./.bare\n")
    around.view = project.area / "around-view"
    around.prepare()
    around.show()
    assert "must be run in a work tree" in around.agent("status", check=False)
    assert around.agent("log", "--format=%s").split() == ["two", "one"]
    commit = project.commit("three", {"a": "3\n"})
    git(around.project / ".bare", "fetch", "--quiet", "../../proj", "main:main")
    around.prepare()
    assert around.agent("sync").endswith("sync: main is at host/main")
    assert around.agent("rev-parse", "main") == commit


@pytest.mark.parametrize("way", ["alternates", "symlink", "gitfile"])
def test_git_says_why_a_repository_is_empty(project: World, way: str) -> None:
    outside = project.area / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    project.host("clone", "--quiet", "--bare", ".", str(outside / "main.git"))
    project.host("clone", "--quiet", "--shared", str(outside / "main.git"), "../other")
    dotgit = project.share / "other/.git"
    if way != "alternates":
        shutil.rmtree(dotgit)
        if way == "symlink":
            dotgit.symlink_to(outside / "main.git")
        else:
            dotgit.write_text(f"gitdir: {outside}/main.git\n")
    other = _other(project)
    assert "branch 'empty-git-sync-says-why' does not have" in other.agent("log", check=False)
    said = other.agent("sync", check=False)
    assert "sync: the human's repository was not fetched: it " in said, said
    assert "in this share" in said
    if way != "alternates":
        assert ("ln -s" if way == "symlink" else "gitdir: ../") in said
        return
    advised = "git repack -a -d && rm .git/objects/info/alternates"
    assert advised in said
    other.host("repack", "-a", "-d")
    (dotgit / "objects/info/alternates").unlink()
    other.prepare()
    other.show()
    assert other.agent("status", "--short", "--branch") == "## main...host/main"
    assert "not fetched" not in other.agent("sync")


def test_sync_says_why_nothing_new_was_fetched(project: World) -> None:
    project.prepare()
    project.show()
    config = project.project / ".git/config"
    text = config.read_text()
    config.write_text(text + "[extensions]\n\trefStorage = unknown\n")
    with as_host():
        (project.project / ".git/logs").mkdir(exist_ok=True)
        (project.project / ".git/logs/HEAD").write_text("changed\n")
    project.prepare()
    assert "was not fetched: it keeps its branches in the format 'unknown'" in project.agent("sync")
    config.write_text(text)
    project.prepare()
    assert project.agent("sync") == "sync: main is at host/main"


def test_the_copy_is_the_store_owners_and_the_rest_the_agents(project: World) -> None:
    project.prepare()
    project.show()
    for path in (project.copy, *project.copy.rglob("*")):
        assert (path.stat().st_uid, path.stat().st_mode & 0o022) == (0, 0), path
    for path in (project.mine, *project.mine.rglob("*")):
        assert (path.stat().st_uid, path.stat().st_gid) == (AGENT, AGENT), path
    assert sorted(path.name for path in project.directory.iterdir()) == [
        "agent", "host.git", "host.path", "host.state",
    ]  # fmt: skip
    for path in (project.copy / "HEAD", project.copy / "config", project.directory / "host.path"):
        with pytest.raises(PermissionError):
            as_user(path.write_text, "x")
    for name in ("agent", "host.git"):
        with pytest.raises(PermissionError):
            as_user(os.rename, project.directory / name, project.directory / "moved")
    assert "you-cannot-push" in project.agent("push", check=False)
    assert "you-cannot-push" in project.agent("push", "host", "main:x", check=False)


@pytest.mark.parametrize("mask", [0, 0o077])
def test_the_modes_do_not_depend_on_the_daemons_umask(project: World, mask: int) -> None:
    shutil.rmtree(project.store)
    before = os.umask(mask)
    try:
        project.repositories = project.daemon()
        project.prepare()
    finally:
        os.umask(before)
    project.show()
    assert project.agent("log", "--format=%s").split() == ["two", "one"]
    project.agent("fetch", "host")
    for path in (project.store, *project.store.rglob("*")):
        assert path.stat().st_mode & 0o022 == 0, path
    with pytest.raises(PermissionError):
        as_user((project.store / "key").read_bytes)


def test_another_user_gets_nowhere(project: World) -> None:
    project.prepare()
    for path in (project.store, project.mine):
        with pytest.raises(PermissionError):
            as_user(os.listdir, path, uid=AGENT + 1)
    with pytest.raises(PermissionError):
        as_user((project.store / "key").read_bytes)
    other = project.place._replace(uid=AGENT + 1)
    assert project.repositories.text(other) != project.repositories.text(project.place)
    assert World(project.area, "other").directory != project.directory
    with pytest.raises(PermissionError):  # not even with the name of the directory
        as_user((project.copy / "HEAD").read_bytes, uid=AGENT + 1)
    assert as_user((project.copy / "HEAD").read_bytes) == b"ref: refs/heads/main\n"
    (project.area / "elsewhere").mkdir()
    elsewhere = World(project.area / "elsewhere")  # another store, with another key
    elsewhere.share = project.share
    assert elsewhere.directory.name != project.directory.name


def test_a_store_that_others_can_change_is_refused(project: World) -> None:
    from gitguardfs.base.errors import UserError

    project.store.chmod(0o777)
    with pytest.raises(UserError, match="alone can change"):
        project.daemon()
    project.store.chmod(0o711)
    (project.area / "of-agent").mkdir()
    os.chown(project.area / "of-agent", AGENT, AGENT)
    with pytest.raises(UserError, match=r"others can replace .*of-agent/store"):
        PrivateRepositories(str(project.area / "of-agent/store"), "projects", project.root)


def test_callers_at_once_do_the_work_once(project: World) -> None:
    """From the threads of a daemon, and from two daemons."""
    code = (
        "import sys; from tests.support.private_world import World; from pathlib import Path;"
        "World(Path(sys.argv[1])).prepare()"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", code, project.area], cwd=Path(__file__).parents[3])
        for _ in range(2)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: project.prepare(project.repositories), range(8)))
    first = project.mine.stat().st_ino
    assert [other.wait() for other in others] == [0, 0]
    assert project.mine.stat().st_ino == first
    assert len(list(project.copy.glob("objects/pack/*.pack"))) == 1
