"""docs/recipes.md: its commands, carried out by a shell as they stand there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[3] / "docs" / "recipes.md"


def section(title: str) -> str:
    """The text of a section."""
    return RECIPES.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(title: str) -> str:
    """The shell code of a section."""
    found = re.findall(r"^```sh\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    assert found
    return "".join(found)


class Project:
    """A repository with one commit, and work that was not committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sh("git init -q -b main && mkdir src && echo 1 > src/parser.c")
        self.sh("echo build > .gitignore && git add . && git commit -qm first")
        self.sh("echo 2 > src/parser.c && echo new > untracked && mkdir build && echo o > build/o")

    def sh(self, code: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code], cwd=self.path, input=stdin, check=False,
            capture_output=True, text=True,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.path.parent),
                 "LC_ALL": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1",
                 **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER")
                    for what in ("NAME", "EMAIL")}},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "hello").mkdir()
    return Project(tmp_path / "hello")


def snapshot(project: Project) -> None:
    project.sh(blocks("Before a session") + "snapshot before-parser")


def test_a_snapshot_holds_untracked_files_and_disturbs_nothing(project: Project) -> None:
    project.sh("git add src && echo 3 > src/parser.c")
    before = project.sh("git status --porcelain && git diff && git diff --cached && git stash list")
    snapshot(project)
    after = project.sh("git status --porcelain && git diff && git diff --cached && git stash list")
    assert after == before
    held = project.sh("git ls-tree -r --name-only refs/snapshots/before-parser").split()
    assert held == [".gitignore", "src/parser.c", "untracked"]
    assert project.sh("git show refs/snapshots/before-parser:src/parser.c") == "3\n"
    assert project.sh("ls .git").count("index") == 1


def test_undo_brings_back_what_the_agent_changed_and_removed(project: Project) -> None:
    snapshot(project)
    project.sh("echo evil > src/parser.c && rm untracked && echo left > left-behind")
    said = project.sh(blocks("Undo"))
    assert (project.path / "src/parser.c").read_text() == "2\n"
    assert (project.path / "untracked").read_text() == "new\n"
    assert "Would remove left-behind" in said
    assert (project.path / "left-behind").exists()
    assert project.sh("git diff --cached --name-only") == ""


def test_review_starts_no_program_of_the_tree_and_shows_what_hides(project: Project) -> None:
    """With drivers that would run a file of the agent's, were they asked."""
    (project.path / "run").write_text('#!/bin/sh\ntouch ran\ncat "$1" 2>/dev/null || true\n')
    (project.path / "run").chmod(0o755)
    project.sh(
        "git config diff.mine.command ./run && git config diff.mine.textconv ./run"
        " && git config core.fsmonitor ./run && echo '*.c diff=mine' > .gitattributes"
        " && git config core.hooksPath . && cp run post-index-change"
        " && ln -s /etc/passwd link && chmod +x src/parser.c"
        " && printf 'a \\342\\200\\256 b\\n' > bidi && printf '\\033[2J' > escape"
    )
    said = project.sh(blocks("Review"))
    assert not (project.path / "ran").exists()
    for shown in ("mode change 100644 => 100755 src/parser.c", "untracked", "build/",
                  "./link -> /etc/passwd", "bidi:1:", "escape:1:"):  # fmt: skip
        assert shown in said, shown


def test_a_commit_runs_no_hook_of_the_tree(project: Project) -> None:
    hooks = project.path / ".husky"
    hooks.mkdir()
    names = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit")
    for name in (*names, "reference-transaction", "post-index-change"):
        (hooks / name).write_text("#!/bin/sh\ntouch ran-$(basename $0)\n")
        (hooks / name).chmod(0o755)
    project.sh("git config core.hooksPath .husky")
    look = blocks("Review").splitlines()[0]
    project.sh(f"{look}\n{blocks('Commit')}", stdin="y\n")
    assert project.sh("git log --format=%s -1") == "Parse dates with a time zone\n"
    assert not list(project.path.glob("ran-*"))


def test_two_snapshots_show_what_the_agent_did_also_before_the_first_commit(
    project: Project,
) -> None:
    """With a hook and an fsmonitor that would run a file of the agent's."""
    project.sh("rm -rf .git && git init -q -b main && git config core.fsmonitor ./run")
    project.sh("git config core.hooksPath . && printf '#!/bin/sh\\ntouch ran\\n' > run")
    project.sh("chmod +x run && cp run reference-transaction && cp run post-index-change")
    snapshot(project)
    project.sh("echo evil > src/parser.c && rm untracked && echo left > left-behind")
    compare = re.findall(r"^    (.*)$", section("Review"), re.MULTILINE)
    assert compare[0] == "snapshot after-parser"
    look = blocks("Review").split("\n\n")[0]
    said = project.sh("\n".join([blocks("Before a session"), look, *compare]))
    for shown in ("-2\n+evil", "-new", "+left"):
        assert shown in said, said
    assert not (project.path / "ran").exists()
    project.sh(blocks("Undo"))
    assert (project.path / "src/parser.c").read_text() == "2\n"
    assert (project.path / "untracked").read_text() == "new\n"
    assert (project.path / "left-behind").exists()
