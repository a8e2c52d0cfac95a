"""Programs that make, copy and move links work in the view as in any directory.

Each is run in a plain directory and in the view. It has to leave the same there, texts and sizes of
links included. On the source every link is contained or leads nowhere.
"""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.mount.fs.test_programs import Desk, desk, needs
from tests.support.contained import leading_out, links, told
from tests.support.mounting import LIMIT, REPOSITORY
from tests.support.people import as_user
from tests.support.repos import HOST_GID, HOST_UID, as_host, git, git_environment

__all__ = ["desk"]

Work = Callable[[Desk, Path], None]
"""Work that is done in a directory."""


def _run(desk: Desk, place: Path, *command: str | Path) -> str:
    return desk.run(*command, cwd=place, PWD=str(place)).stdout


def _modes(top: Path) -> dict[str, str]:
    """Return the type and mode of everything below a directory."""
    return {
        str(path.relative_to(top)): stat.filemode(path.lstat().st_mode) for path in top.rglob("*")
    }


def _works_as_elsewhere(desk: Desk, work: Work) -> None:
    """Do the work in a plain directory and in the view, and compare what it leaves."""
    plain, view = desk.place / "elsewhere/work", desk.guest / "work"
    for place in (plain, view):
        as_user(os.mkdir, place)
        work(desk, place)
    wanted = {name: text.replace(str(plain), str(view)) for name, text in told(plain).items()}
    assert told(view) == wanted
    assert _modes(view) == _modes(plain)
    assert leading_out(desk.host) == []
    _run(desk, desk.guest, "rm", "-r", "work")
    assert not (desk.host / "work").exists()


# ---------------------------------------------------------------------------- Python


def _virtual_environment(desk: Desk, place: Path) -> None:
    _run(desk, place, "/usr/bin/python3", "-m", "venv", "--without-pip", ".venv")
    code = "import sys; print(sys.prefix)"
    assert _run(desk, place, ".venv/bin/python", "-c", code) == f"{place}/.venv\n"
    _run(desk, place, "mv", ".venv", "moved")
    _run(desk, place, "moved/bin/python", "-c", "")
    _run(desk, place, "mkdir", "deep")
    _run(desk, place, "mv", "moved", "deep/er")
    _run(desk, place, "deep/er/bin/python3", "-c", "")


def test_a_virtual_environment_is_made_and_moved(desk: Desk) -> None:
    _works_as_elsewhere(desk, _virtual_environment)


def _uv(desk: Desk, place: Path) -> None:
    uv = desk.place / "uv"
    if not uv.exists():
        shutil.copy(find_uv_bin(), uv)
    quiet = ("--quiet", "--offline", "--no-config")
    _run(desk, place, uv, "venv", *quiet, "--python", "/usr/bin/python3", ".venv")
    _run(desk, place, uv, "venv", *quiet, "--python", "/usr/bin/python3", "--clear", ".venv")
    _run(desk, place, ".venv/bin/python", "-c", "")
    _run(desk, place, ".venv/bin/python3", "-c", "")


def test_uv_makes_a_virtual_environment(desk: Desk) -> None:
    _works_as_elsewhere(desk, _uv)


# ---------------------------------------------------------------------------- JavaScript


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _write_packages(place: Path) -> None:
    """A package with a command, and a workspace of two that needs it."""
    tool = {"name": "tool", "version": "1.0.0", "bin": {"tool": "cli.js"}}
    _write_json(place / "tool/package.json", tool)
    (place / "tool/cli.js").write_text("#!/usr/bin/env node\nconsole.log('tool works')\n")
    (place / "tool/cli.js").chmod(0o755)
    for name, needed in (("one", {}), ("two", {"one": "1.0.0"})):
        where = place / f"app/packages/{name}"
        package = {"name": name, "version": "1.0.0", "dependencies": needed}
        _write_json(where / "package.json", package)
        (where / "index.js").write_text(f"module.exports = '{name}'\n")
    app = {"name": "app", "version": "1.0.0", "dependencies": {"tool": "file:../tool"}}
    _write_json(place / "app/package.json", {**app, "workspaces": ["packages/*"]})


NPM = ("--offline", "--silent", "--no-audit", "--no-fund")


def _npm(desk: Desk, place: Path) -> None:
    as_user(_write_packages, place)
    app = place / "app"
    for _ in range(2):
        _run(desk, app, "npm", "install", *NPM)
    assert _run(desk, app, "node_modules/.bin/tool") == "tool works\n"
    assert _run(desk, app, "node", "-p", "require('two') + require('one')") == "twoone\n"
    _run(desk, app, "npm", "install", *NPM, "--install-links", "../tool")
    assert _run(desk, app, "node_modules/.bin/tool") == "tool works\n"
    _run(desk, app, "npm", "uninstall", *NPM, "tool")
    _run(desk, app, "npm", "install", *NPM, "../tool")
    _run(desk, place, "mv", "app", "moved")
    assert _run(desk, place / "moved", "node_modules/.bin/tool") == "tool works\n"


def test_npm_installs_workspaces_and_local_packages(desk: Desk) -> None:
    needs("npm")
    _works_as_elsewhere(desk, _npm)


def _npm_link(desk: Desk, place: Path) -> None:
    as_user(_write_packages, place)
    _run(desk, place, "mkdir", "-p", "global/lib")
    as_user(_write_json, place / "user/package.json", {"name": "user", "version": "1.0.0"})
    prefix = str(place / "global")
    desk.run("npm", "link", *NPM, cwd=place / "tool", NPM_CONFIG_PREFIX=prefix)
    desk.run("npm", "link", *NPM, "tool", cwd=place / "user", NPM_CONFIG_PREFIX=prefix)
    as_user(os.symlink, "..", place / "user/node_modules/self")
    for program in ("global/bin/tool", "user/node_modules/self/node_modules/.bin/tool"):
        assert _run(desk, place, place / program) == "tool works\n"


def test_npm_links_a_package(desk: Desk) -> None:
    needs("npm")
    _works_as_elsewhere(desk, _npm_link)


def _program(desk: Desk, name: str, script: str) -> tuple[str | Path, ...]:
    """Return the words that run a program of npm's, which the guest's user could not reach."""
    source = REPOSITORY / ".venv/node/node_modules" / name
    if not source.is_dir():
        pytest.skip(f"{name} is not installed")
    copy = desk.place / name
    if not copy.exists():
        shutil.copytree(source, copy, symlinks=True)
    return needs("node"), copy / script


def _pnpm(desk: Desk, place: Path) -> None:
    as_user(_write_packages, place)
    as_user((place / "app/pnpm-workspace.yaml").write_text, "packages: ['packages/*']\n")
    two = {"name": "two", "version": "1.0.0", "dependencies": {"one": "workspace:*"}}
    as_user(_write_json, place / "app/packages/two/package.json", two)
    quiet = ("--offline", "--silent", "--store-dir", place / "store", "--no-frozen-lockfile")
    pnpm = _program(desk, "pnpm", "bin/pnpm.cjs")
    for _ in range(2):
        _run(desk, place / "app", *pnpm, "install", *quiet)
    assert _run(desk, place / "app", "node_modules/.bin/tool") == "tool works\n"
    found = _run(desk, place / "app/packages/two", "node", "-p", "require('one')")
    assert found == "one\n"
    _run(desk, place, "rm", "-r", "store", "app/node_modules/.modules.yaml")  # these have times


def test_pnpm_installs_workspaces_and_local_packages(desk: Desk) -> None:
    _works_as_elsewhere(desk, _pnpm)


def _yarn(desk: Desk, place: Path) -> None:
    as_user(_write_packages, place)
    app = {"name": "app", "version": "1.0.0", "private": True, "workspaces": ["packages/*"]}
    as_user(
        _write_json, place / "app/package.json", {**app, "dependencies": {"tool": "link:../tool"}}
    )
    yarn = _program(desk, "yarn", "bin/yarn.js")
    for _ in range(2):
        _run(
            desk, place / "app", *yarn, "install", "--offline", "--silent", "--cache-folder",
            place / "cache",
        )  # fmt: skip
    assert _run(desk, place / "app", "node", "-p", "require('two') + require('one')") == "twoone\n"
    assert _run(desk, place / "app", "node", "node_modules/tool/cli.js") == "tool works\n"
    _run(desk, place, "rm", "-rf", "cache", "app/node_modules/.yarn-integrity")


def test_yarn_installs_workspaces_and_linked_packages(desk: Desk) -> None:
    _works_as_elsewhere(desk, _yarn)


# ------------------------------------------------------------------------------- Rust


def _cargo(desk: Desk, place: Path) -> None:
    cargo = needs("cargo")
    _run(
        desk, place, cargo, "init", "--quiet", "--offline", "--vcs", "none", "--name", "hello", "."
    )
    for _ in range(2):
        _run(desk, place, cargo, "build", "--quiet", "--offline")
    assert _run(desk, place, "target/debug/hello") == "Hello, world!\n"
    _run(desk, place, "rm", "-r", "target", "Cargo.lock")  # names in it are made of the path


def test_cargo_builds_and_runs_a_program(desk: Desk) -> None:
    _works_as_elsewhere(desk, _cargo)


# ---------------------------------------------------------------------- Archives and copies


def _make_links(place: Path) -> None:
    """Links of all kinds, at several depths."""
    for depth in ("", "one", "one/two", "one/two/three"):
        here = place / "tree" / depth
        here.mkdir(exist_ok=True)
        (here / "file").write_text(f"{depth}\n")
        texts = (
            "file", "./file", "one/file", "..", ".", "../file", "../../file", "../../../file",
            "../../../../../../file", "one/../file", "/usr/bin/python3", "/", "no/where",
            "/no/where", "user@host.1234:56789", ".gitignore", "x" * 255, "/" + "y/" * 500,
            str(place / "tree/one/file"), ".git", "../.git/hooks",
        )  # fmt: skip
        for number, text in enumerate(texts):
            (here / f"link{number}").symlink_to(text)
        os.link(here / "link3", here / "twin", follow_symlinks=False)
    for path in links(place / "tree"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)


def _copied(place: Path, copy: str) -> None:
    """Assert that a copy of the tree is equal to the tree."""
    assert told(place / copy) == told(place / "tree")
    assert _modes(place / copy) == _modes(place / "tree")
    for path in links(place / copy):
        assert path.lstat().st_mtime == 10**9, path


def _copy_by_tar(desk: Desk, place: Path) -> None:
    as_user(_make_links, place)
    _run(desk, place, "tar", "-cf", "archive.tar", "-C", "tree", ".")
    _run(desk, place, "mkdir", "copy")
    for _ in range(2):  # the second time there is something to replace
        _run(desk, place, "tar", "-C", "copy", "-xf", "archive.tar")
        _copied(place, "copy")
    _run(desk, place, "tar", "--compare", "-C", "copy", "-f", "archive.tar")
    _run(desk, place, "rm", "archive.tar")


def _copy_by_rsync(desk: Desk, place: Path) -> None:
    as_user(_make_links, place)
    _run(desk, place, "rsync", "-aH", "tree/", "copy/")
    _copied(place, "copy")
    assert _run(desk, place, "rsync", "-aH", "--checksum", "-i", "tree/", "copy/") == ""
    _run(desk, place, "rsync", "-aH", "--delete", "tree/one/", "copy/one/two/")
    _run(desk, place, "rsync", "-aH", "--delete", "tree/", "copy/")
    _copied(place, "copy")


def _copy_by_cp(desk: Desk, place: Path) -> None:
    as_user(_make_links, place)
    _run(desk, place, "cp", "-a", "tree", "copy")
    _copied(place, "copy")
    _run(desk, place, "cp", "-a", "--remove-destination", "tree/.", "copy")
    _copied(place, "copy")
    _run(desk, place, "cp", "-al", "tree/one/two", "tree/one/linked")
    assert told(place / "tree/one/linked") == told(place / "tree/one/two")


def _move_about(desk: Desk, place: Path) -> None:
    as_user(_make_links, place)
    _run(desk, place, "cp", "-a", "tree", "copy")
    for step in ("one/two up", "up one/two", "one/two/three one/up", "one/up one/two/three"):
        old, new = step.split()
        _run(desk, place / "copy", "mv", "-T", old, new)
    _copied(place, "copy")
    _run(desk, place, "mkdir", "-p", "far/away")
    _run(desk, place, "mv", "-T", "copy", "far/away/copy")
    _copied(place, "far/away/copy")
    _run(desk, place / "far/away", "mv", "copy/one/two/three/link7", "copy/link7 of three")
    _run(desk, place / "far/away", "mv", "copy/link7 of three", "copy/one/two/three/link7")
    _run(desk, place, "mv", "-T", "far/away/copy", "copy")
    _copied(place, "copy")
    _run(desk, place, "ln", "-sfn", "/usr", "copy/current")
    _run(desk, place, "ln", "-sfn", "one", "copy/current")


COPYING = (_copy_by_tar, _copy_by_rsync, _copy_by_cp, _move_about)


@pytest.mark.parametrize("work", COPYING, ids=lambda work: work.__name__.strip("_"))
def test_links_of_all_kinds_are_copied_and_moved(desk: Desk, work: Work) -> None:
    needs("rsync")
    _works_as_elsewhere(desk, work)


# ------------------------------------------------------------- git with its repository elsewhere


def _own_git(desk: Desk, place: Path) -> None:
    """The agent's own git, whose repository is outside of the view, checks out links."""
    as_user(_make_links, place)
    _run(desk, place / "tree", "find", ".", "-name", "link19", "-delete")
    _run(desk, place / "tree", "find", ".", "-name", "link20", "-delete")  # they lead to .git
    repository = desk.place / f"elsewhere/{place.name}.git"

    def own(*arguments: str) -> str:
        where = (f"--git-dir={repository}", f"--work-tree={place}/tree")
        who = ("-c", "user.name=Agent", "-c", "user.email=agent@example.org")
        return _run(desk, place / "tree", "git", *where, *who, *arguments)

    own("init", "--quiet", "--initial-branch=main")
    own("add", "--force", ".")
    own("commit", "--quiet", "--message=links")
    before = told(place / "tree")
    own("rm", "-r", "--quiet", "--force", ".")
    own("checkout", "--quiet", "HEAD", ".")
    assert told(place / "tree") == before
    assert own("status", "--porcelain") == ""
    _run(desk, place / "tree", "mv", "one/two", "up")
    own("add", "--all", "--force", ".")
    own("stash", "--quiet")
    own("stash", "pop", "--quiet", "--index")
    own("reset", "--quiet", "--hard")
    assert own("status", "--porcelain") == ""
    assert told(place / "tree") == before


def test_git_of_the_agent_s_own_checks_out_links(desk: Desk) -> None:
    needs("git")
    _works_as_elsewhere(desk, _own_git)


def test_git_on_the_host_shows_a_tracked_link_that_leads_out(desk: Desk) -> None:
    with as_host():
        for name in ("contained", "out"):
            (desk.host / name).symlink_to("README" if name == "contained" else "/etc/passwd")
    git(desk.host, "add", ".")
    git(desk.host, "commit", "--quiet", "--message=links")
    _run(desk, desk.guest, "cp", "-a", "out", "contained", "src/")
    _run(desk, desk.guest, "rm", "out", "contained")
    _run(desk, desk.guest, "mv", "src/out", "src/contained", ".")
    assert {it: os.readlink(desk.guest / it) for it in ("out", "contained")} == {
        "out": "/etc/passwd",
        "contained": "README",
    }
    assert git(desk.host, "status", "--porcelain") == " M out\n"
    git(desk.host, "checkout", "--quiet", ".")
    assert git(desk.host, "status", "--porcelain") == ""


# ----------------------------------------------------------------------- What never waits


def _make_modules(top: Path) -> None:
    for number in range(1500):
        here = top / f"{number:04}"
        (here / "hooks").mkdir(parents=True)
        (here / "config").touch()
        (here / ("refs", "HEAD", "objects")[number % 3]).mkdir()


def test_any_number_of_names_that_git_knows_is_removed(desk: Desk) -> None:
    with as_host():
        _make_modules(desk.host / "node_modules")
    _run(desk, desk.guest, "rm", "-r", "node_modules")
    assert not (desk.host / "node_modules").exists()


def _use(place: Path) -> None:
    os.mkdir(place / "hooks")
    (place / "config").touch()
    (place / "link").symlink_to("config")
    place.rename(f"{place}-moved")
    shutil.rmtree(f"{place}-moved")


def test_a_directory_that_the_host_has_just_made_is_used_at_once(desk: Desk) -> None:
    """So many that a second for each would be taken for a hang."""
    for number in range(2 * int(LIMIT)):
        with as_host():
            (desk.host / f"new{number}").mkdir()
        as_user(_use, desk.guest / f"new{number}")


def test_a_lock_that_git_has_left_behind_is_in_nobody_s_way(desk: Desk) -> None:
    with as_host():
        (desk.host / ".git/index.lock").touch()
    _run(desk, desk.guest, "ln", "-s", "README", "link")
    _run(desk, desk.guest, "mv", "link", "src/link")
    _run(desk, desk.guest, "mv", "src", "moved")
    assert os.readlink(desk.host / "moved/link") == "README"


def _build(place: Path, rounds: int) -> None:
    for number in range(rounds):
        out = place / f"out{number}"
        (out / "tmp").mkdir(parents=True)
        for name in ("a.o", "b.o", "config"):
            (out / "tmp" / name).write_text("object\n")
        (out / "tmp").rename(out / "done")
        (out / "latest").symlink_to("done/a.o")
        (out / "latest").rename(out / "link")


@pytest.mark.every_processor
def test_a_build_works_while_the_host_switches_branches(desk: Desk) -> None:
    git(desk.host, "switch", "--quiet", "--orphan", "other")
    with as_host():
        (desk.host / "config").write_text("other\n")
        (desk.host / "src").symlink_to("config")
    git(desk.host, "add", ".")
    git(desk.host, "commit", "--quiet", "--message=other")
    stop = desk.place / "stop"
    script = f"while ! [ -e {stop} ]; do git switch -q main && git switch -q other || exit 1; done"
    switching = subprocess.Popen(
        ["sh", "-c", script], cwd=desk.host, env=git_environment(),
        user=HOST_UID, group=HOST_GID, extra_groups=[],
    )  # fmt: skip
    try:
        as_user(_build, desk.guest, 40)
    finally:
        stop.touch()
        assert switching.wait(LIMIT) == 0
