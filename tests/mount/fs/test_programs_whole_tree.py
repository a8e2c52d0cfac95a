"""Programs that read or watch a whole tree, and what they say of a repository in it."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.fs.test_programs import PATH, Desk, desk, needs
from tests.support.mounting import LIMIT, REPOSITORY, gitguardfs, until
from tests.support.people import AGENT, as_user, reachable_python
from tests.support.repos import MAP, as_host

__all__ = ["desk"]


@contextmanager
def other_view(desk: Desk, *options: str) -> Iterator[Desk]:
    """Show the same project in another view as well."""
    stores = (f"--private-store={desk.place}/store", f"--local-store={desk.place}/local")
    with gitguardfs(desk.host, desk.place / "other", "--map", MAP, *stores, *options) as mounted:
        yield dataclasses.replace(desk, guest=mounted.path, mounted=mounted)


# ---------------------------------------------------------------------------- Reading

READERS = {
    "tar": "tar -cf $out/archive .",
    "cp": "cp -a . $out/copy",
    "rsync": "rsync -a . $out/copy/",
    "du": "du -s .",
    "grep": "grep -r first .",
    "find": "find . -type f",
    "rg": "rg --hidden first",
    "chmod": "chmod -R u+rw .",
    "zip": "python3 -m zipfile -c $out/archive .",
}


@pytest.mark.parametrize("program", READERS)
def test_a_program_that_reads_a_whole_tree_meets_no_repository(desk: Desk, program: str) -> None:
    needs(READERS[program].partition(" ")[0])
    done = desk.run("sh", "-c", READERS[program], out=str(desk.place / "elsewhere"))
    assert done.stderr == ""
    assert os.lstat(desk.guest / ".git"), "it is there for a program that asks"


@pytest.mark.parametrize("program", sorted(READERS.keys() - {"chmod"}))
def test_a_program_that_reads_a_whole_tree_meets_a_file_with_private(
    desk: Desk, program: str
) -> None:
    needs(READERS[program].partition(" ")[0])
    with other_view(desk, "--git=private") as view:
        done = view.run("sh", "-c", READERS[program], out=str(desk.place / "elsewhere"))
    assert done.stderr == ""


# ---------------------------------------------------------------------------- Watching


@contextmanager
def running(desk: Desk, *command: str | Path, **more: str) -> Iterator[Path]:
    """Run a program beside the test; yields the file that its output goes to."""
    said = desk.place / "said"
    with open(said, "wb") as output:
        program = subprocess.Popen(
            command, cwd=desk.guest, env=desk.environment(**more), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, user=AGENT, group=AGENT, extra_groups=[],
            start_new_session=True,
        )  # fmt: skip
    try:
        yield said
        assert program.poll() is None, said.read_text()
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(LIMIT)


def tells_of_changes(desk: Desk, said: Path, what: str, *, by_host: bool, name: str) -> None:
    """Append to a file, again and again, until the program tells of that."""

    def append() -> bool:
        if by_host:
            with as_host(), open(desk.host / name, "a") as file:
                file.write("\n")
        else:
            with open(desk.guest / name, "a") as file:
                file.write("\n")
        subprocess.run(["sleep", "0.3"], check=True)  # some merge changes that come too fast
        return re.search(what, said.read_text()) is not None

    try:
        until(append, what)
    except AssertionError:
        raise AssertionError(said.read_text()) from None


CHOKIDAR = """
const watcher = require(process.argv[1]).watch('.', {interval: 50});
watcher.on('change', path => console.log('changed', path));
"""


@pytest.mark.parametrize("polls", [False, True], ids=["events", "polling"])
@pytest.mark.parametrize("version", ["chokidar3", "chokidar4"])
def test_chokidar_watches(desk: Desk, node_modules: Path, version: str, polls: bool) -> None:
    words = ("-e", CHOKIDAR, node_modules / version)
    with running(desk, needs("node"), *words, CHOKIDAR_USEPOLLING=str(int(polls))) as said:
        tells_of_changes(desk, said, "changed README", by_host=polls, name="README")


@pytest.mark.parametrize("polls", [False, True], ids=["events", "polling"])
def test_watchfiles_watches(desk: Desk, polls: bool) -> None:
    polling = str(polls).lower()
    with reachable_python() as python:
        words = ("-m", "watchfiles", "echo ran")
        with running(desk, python, *words, WATCHFILES_FORCE_POLLING=polling) as said:
            tells_of_changes(desk, said, r"(?s)ran\n.*ran\n", by_host=polls, name="README")


@pytest.mark.parametrize("polls", [False, True], ids=["events", "polling"])
def test_uvicorn_reloads(desk: Desk, polls: bool) -> None:
    as_user((desk.guest / "app.py").write_text, "async def app(scope, receive, send): ...\n")
    polling = str(polls).lower()
    with reachable_python() as python:
        words = ("-m", "uvicorn", "--reload", "--port=0", "app:app")
        with running(desk, python, *words, WATCHFILES_FORCE_POLLING=polling) as said:
            tells_of_changes(desk, said, "Reloading", by_host=polls, name="app.py")


def test_jest_watches(desk: Desk, node_modules: Path) -> None:
    as_user((desk.guest / "package.json").write_text, "{}\n")
    as_user((desk.guest / "one.test.js").write_text, "test('one', () => {});\n")
    jest = (needs("node"), node_modules / "jest/bin/jest.js")
    with running(desk, *jest, "--watchAll") as said:
        again = r"(?s)Ran all test suites.*Ran all test suites"
        tells_of_changes(desk, said, again, by_host=False, name="one.test.js")


def test_tail_follows_what_the_host_appends(desk: Desk) -> None:
    with running(desk, needs("tail"), "-f", "README") as said:
        tells_of_changes(desk, said, r"first\n\n", by_host=True, name="README")


# ---------------------------------------------------------------------------- Messages

LIST, XATTR, PRIVATE = ("--git=list",), ("--xattr=ro",), ("--git=private",)
LOCAL = ("--local=deps",)
COMMIT = "git -c user.name=a -c user.email=a commit --allow-empty -m x"
MESSAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fatal: not a git repository (or any parent up to mount point …)": ("git status", ()),
    "…/.git: Permission denied": ("git init new", ()),
    "fatal: could not open '…/.git' for writing: Permission denied": (
        "git worktree add inside", PRIVATE
    ),
    "fatal: unable to access '…/.git/config': Permission denied": ("git init", ()),
    "fatal: 'you-cannot-push-but-commit-and-the-human-runs-gitguard-fetch' does not appear to be"
    " a git repository": ("git push", PRIVATE),
    "gitguard: your commits are safe here, and not yet in .gitguard/agent.bundle": (
        f"touch .gitguard; {COMMIT}", PRIVATE
    ),
    "gitguard: your commits are safe here, and not published: git sync in the project does it": (
        f"git_dir=$(cut -c9- .git); cd /; GIT_DIR=$git_dir {COMMIT}", PRIVATE
    ),
    "gitguard: refs/heads/größe is not published, since …: git branch -m …": (
        f"{COMMIT}; git branch größe", PRIVATE
    ),
    "fatal: your current branch 'empty-git-sync-says-why' does not have any commits yet": (
        "cd hello; git log", PRIVATE
    ),
    "sync: the human's repository was not fetched: …": ("cd hello; git sync", PRIVATE),
    "sync: core.hooksPath is .husky/_: git sync publishes your commits, git commit does not": (
        "git config core.hooksPath .husky/_; git sync >&2", PRIVATE
    ),
    "sync: changes are staged, and main stays where it is: …": (
        "git update-ref -d HEAD; touch new; git add new; git sync", PRIVATE
    ),
    ".gitguard/.gitignore already exists, no checkout": (
        f"{COMMIT}; git stash push --all -- .gitguard; {COMMIT}; git stash pop --quiet", PRIVATE
    ),
    "Author identity unknown": ("git commit --allow-empty -m x", PRIVATE),
    "ls: .git: Permission denied": ("ls -ld .git", XATTR),
    "grep: ./.git: Permission denied": ("grep -r first .", LIST),
    "find: './.git': Permission denied": ("find .", LIST),
    "tar: ./.git: Cannot open": ("tar -cf $out/archive .", LIST),
    "Error: EACCES: permission denied, watch '.git'": (
        """node -e "require('$modules/chokidar4').watch('.')" """, LIST
    ),
    "rm: cannot remove 'hello': Directory not empty": ("rm -rf hello", ()),
    "rm: cannot remove 'hello/.git': Permission denied": ("rm -rf hello", PRIVATE),
    "chmod: changing permissions of './.git': Permission denied": ("chmod -R u+rw .", PRIVATE),
    "mv: cannot move 'hello' …: Permission denied": ("mv hello hello2", ()),
    "mkdir: cannot create directory 'refs': Permission denied": (
        "mkdir fixture; cd fixture; echo x > HEAD; mkdir objects refs", ()
    ),
    "Invalid cross-device link": (
        """ln -s ../README src/link; python3 -c "import os; os.rename('src/link', 'link')" """, ()
    ),
    "ln: failed to create hard link 'y' => 'node_modules/x': Invalid cross-device link": (
        "mkdir node_modules; touch node_modules/x; ln node_modules/x y", LOCAL
    ),
    "ln: failed to create symbolic link 'node_modules': File exists": (
        "cd hello; ln -s ../src node_modules", LOCAL
    ),
    "--watch is not supported without git/hg, please use --watchAll": (
        "echo {} > package.json; node $modules/jest/bin/jest.js --watch", ()
    ),
    "NotFoundError: Could not find …": (
        """node -e "require('$modules/isomorphic-git').log({fs, dir: '.'})" """, PRIVATE
    ),
    "error: no VCS found for this package": (
        "cargo init --quiet --offline --vcs none --name x .; cargo fix --offline", PRIVATE
    ),
    "npm error An unknown git error occurred": ("npm init -y; npm version patch", ()),
}  # fmt: skip
"""What docs/agents.md explains: a command that says it, and the options of the view."""


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_explained_is_given(desk: Desk, node_modules: Path, message: str) -> None:
    script, options = MESSAGES[message]
    with as_host():
        (desk.host / "hello/.git").mkdir(parents=True)
        (desk.host / "hello/node_modules").mkdir()
    with other_view(desk, "--cache-timeout=0", *options) as view:
        view.mounted.expected.append("hello: the human's repository was not fetched")  # it is empty
        done = view.run(
            "sh", "-c", script, ok=False, LANG="C", out=str(desk.place / "elsewhere"),
            modules=str(node_modules), PATH=PATH,
        )  # fmt: skip
    assert re.search(".*".join(map(re.escape, message.split("…"))), done.stderr), done.stderr


def test_each_message_that_is_explained_was_tried() -> None:
    text = (REPOSITORY / "docs/agents.md").read_text()
    _, _, table = text.partition("\n## Messages\n")
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    told = {message for row in rows for message in re.findall("`([^`]+)`", row.split("|")[1])}
    assert told == set(MESSAGES)


def test_npm_counts_a_version_up(desk: Desk) -> None:
    npm = needs("npm")
    desk.run(npm, "init", "--yes", "--silent")
    desk.run(npm, "version", "patch", "--no-git-tag-version")
    assert '"version": "1.0.1"' in (desk.host / "package.json").read_text()


def test_jest_asks_git_for_changes_with_private(desk: Desk, node_modules: Path) -> None:
    as_user((desk.guest / "package.json").write_text, "{}\n")
    as_user((desk.guest / "one.test.js").write_text, "test('one', () => {});\n")
    jest = (needs("node"), node_modules / "jest/bin/jest.js")
    with other_view(desk, "--git=private") as view, running(view, *jest, "--watch") as said:
        tells_of_changes(view, said, r"1 passed", by_host=False, name="one.test.js")
