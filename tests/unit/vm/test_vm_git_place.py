"""The line before a start that says where the agent's git lacks the user's repository."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gitguardfs.host.vm import git_place
from gitguardfs.host.vm.settings import Settings
from tests.support.repos import git_environment

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="not installed: git")
NONE = "not all of which is shared: the agent's git has no history there"
UP = "gitguard vm up --project"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("CONFIG", "STATE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setattr("gitguardfs.host.vm.state.SOCKET_PATH_BYTES", 200)
    path = tmp_path / "me"
    for name in ("src/shop/pkg/inner", "wt"):
        (path / name).mkdir(parents=True)
    git(path / "src/shop", "init", "-q")
    git(path / "src/shop", "commit", "-q", "--allow-empty", "-m", "first")
    return path


def git(directory: Path, *words: str) -> None:
    environment = {**git_environment(), "GIT_ALLOW_PROTOCOL": "file"}
    subprocess.run(["git", *words], cwd=directory, env=environment, check=True)


def line(project: Path, *share: str, mode: str = "private") -> str:
    return git_place.line(Settings(os.path.realpath(project), git=mode, share=share))


def repository(project: Path, *share: str, mode: str = "private") -> str:
    found = git_place.repository(Settings(os.path.realpath(project), git=mode, share=share))
    return "" if found is None else found.directory


def test_an_ordinary_repository_is_not_worth_a_line(home: Path) -> None:
    assert line(home / "src/shop") == ""
    assert line(home / "src/shop/pkg", mode="deny") == ""
    (home / "src/shop/.git").rename(home / "src/shop/metadata.git")
    (home / "src/shop/.git").write_text("gitdir: metadata.git\n")
    assert line(home / "src/shop") == ""


def test_a_directory_in_a_repository_lacks_what_is_above(home: Path) -> None:
    shop = home / "src/shop"
    for project in (shop / "pkg", shop / "pkg/inner"):
        said = f"git: {project} lies in the repository {shop}, {NONE}; with it: {UP} {shop}"
        assert line(project) == line(project, mode="readonly") == said
    (shop / "pkg/.git").mkdir()  # git passes over one that is no repository
    assert line(shop / "pkg").startswith(f"git: {shop}/pkg lies in the repository {shop}")


def test_a_linked_work_tree_lacks_its_main_one(home: Path) -> None:
    shop = home / "src/shop"
    for place in (home / "src/topic", home / "wt/topic", shop / "inside"):
        git(shop, "worktree", "add", "-q", "--detach", str(place))
    begin = f"is a linked work tree of {shop}, {NONE}"
    beside, far, inside = map(line, (home / "src/topic", home / "wt/topic", shop / "inside"))
    for place, said in (("src/topic", beside), ("wt/topic", far), ("src/shop/inside", inside)):
        assert said == f"git: {home}/{place} {begin}; with it: gitguard vm up --share {shop}:ro"
    (home / "wt/topic/sub").mkdir()
    assert line(home / "wt/topic/sub").startswith(
        f"git: {home}/wt/topic/sub lies in {home}/wt/topic, a linked work tree of {shop}"
    )


def test_a_share_that_has_all_of_it_is_where_git_works(home: Path) -> None:
    git(home / "src/shop", "worktree", "add", "-q", "--detach", str(home / "src/topic"))
    topic = line(home / "src/topic", str(home / "src"), mode="readonly")
    assert NONE.partition(": ")[2] in topic
    pkg = line(home / "src/shop/pkg", str(home / "wt"), f"{home}/src/shop:ro")
    assert pkg.endswith(": the agent's git works in /home/agent/projects/shop/pkg")


def test_a_git_directory_elsewhere_is_shared_with_what_it_lies_in(home: Path) -> None:
    topic, shop = home / "wt/topic", home / "src/shop"
    git(shop, "worktree", "add", "-q", "--detach", str(topic))
    for share in (str(shop), f"{shop}:ro", str(home / "src")):
        assert line(topic, share) == ""
        assert repository(topic, share) == f"{shop}/.git"
    assert repository(topic) == repository(topic, str(shop), mode="readonly") == ""
    assert repository(topic, str(home / "src/other")) == ""
    assert repository(shop) == repository(shop / "pkg") == ""
    (shop / ".git").rename(shop / "metadata")
    (shop / ".git").write_text(f"gitdir: {shop}/metadata\n")
    assert repository(shop) == f"{shop}/metadata"  # the guard does not know where the share lies
    (shop / ".git").write_text("gitdir: metadata\n")
    assert repository(shop) == ""


def test_a_submodule_lacks_the_project_around_it(home: Path) -> None:
    outer = home / "src/outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
        str(home / "src/shop"), "libs/shop")  # fmt: skip
    said = line(outer / "libs/shop")
    assert said == (
        f"git: {outer}/libs/shop is a submodule of {outer}, {NONE}; with it:"
        f" gitguard vm up --share {outer}:ro"
    )


@pytest.mark.parametrize("is_link", [False, True])
def test_a_git_directory_may_lie_beside_the_project(home: Path, is_link: bool) -> None:
    shop, elsewhere = home / "src/shop", home / "src/of-git/shop.git"
    elsewhere.parent.mkdir()
    (shop / ".git").rename(elsewhere)
    if is_link:
        (shop / ".git").symlink_to(elsewhere)
    else:
        (shop / ".git").write_text(f"gitdir: {elsewhere}\n")
    said = f"git: {shop} belongs to {elsewhere}, {NONE}; with it: "
    assert line(shop) == f"{said}gitguard vm up --share {home}/src/of-git:ro"
    end = f"{UP} {home}/src, and a relative path in {shop}/.git"
    assert line(shop, mode="readonly") == f"{said}{end}"
    assert repository(shop, f"{home}/src/of-git:ro") == str(elsewhere)


def test_a_path_of_this_machine_leads_nowhere_in_a_guest(home: Path) -> None:
    shop = home / "src/shop"
    git(shop, "worktree", "add", "-q", "--detach", str(home / "src/topic"))
    topic = home / "src/topic"
    end = f"; with it: {UP} {home}/src, and a relative path in {topic}/.git"
    assert line(topic, mode="readonly").endswith(end)
    (shop / ".git").rename(shop / "metadata")
    (shop / ".git").write_text(f"gitdir: {shop}/metadata\n")
    assert line(shop, mode="readonly") == (
        f"git: {shop} belongs to {shop}/metadata, by a path that only this machine has:"
        f" the agent's git has no history there; with it: a relative path in {shop}/.git"
    )


def test_a_directory_above_repositories_names_some(home: Path) -> None:
    for name in ("b", "a", "group/c", "group/deep/d", "e"):
        (home / "src" / name).mkdir(parents=True)
        (home / "src" / name / ".git").mkdir()
    assert line(home / "src") == (
        f"git: {home}/src is in no repository; the agent's git works in a, b, e and 2 more."
        f" To share one alone: {UP} {home}/src/a"
    )
    assert line(home / "wt") == ""


def test_a_home_that_is_a_repository_is_not_offered(home: Path) -> None:
    git(home, "init", "-q")
    assert line(home / "wt") == f"git: {home}/wt lies in the repository {home}, {NONE}"


@pytest.mark.parametrize("text", [b"", b"gitdir: \0", b"gitdir: nowhere\n", b"\xff" * 2_000_000])
def test_whatever_is_in_the_file_it_is_one_line(home: Path, text: bytes) -> None:
    (home / "wt/.git").write_bytes(text)
    said = line(home / "wt")
    assert said.isprintable()
    assert said == "" or said.startswith(f"git: {home}/wt belongs to ")
    (home / "wt/.git").unlink()
    os.mkfifo(home / "wt/.git")
    assert line(home / "wt").isprintable()


def test_names_do_no_harm_to_a_terminal(home: Path) -> None:
    project = home / "src/shop/pkg\x1b[31m\n'"
    project.mkdir()
    (home / "src/shop").rename(home / "src/sh\u202eop")
    assert line(home / "src/sh\u202eop" / project.name).isprintable()
