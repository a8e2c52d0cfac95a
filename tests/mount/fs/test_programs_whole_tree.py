"""Programs that read or watch a whole tree, and what they say of a repository in it."""

import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.fs.test_programs import Desk, desk, needs
from tests.support.mounting import LIMIT, gitguardfs, until
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


def test_tail_follows_what_the_host_appends(desk: Desk) -> None:
    with running(desk, needs("tail"), "-f", "README") as said:
        tells_of_changes(desk, said, r"first\n\n", by_host=True, name="README")


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
