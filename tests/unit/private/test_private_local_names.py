"""Which directories of a tree a view with ``--local`` does not show."""

import pytest

from gitguardfs.names.local_names import LocalNames
from gitguardfs.private.sparse import directories_of


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([b"node_modules/a/node_modules/b", b"x"], {b"node_modules"}),
        ([b"a/.venv/x", b"a/.venvs/x"], {b"a/.venv"}),
        ([b"node_modules", b"target/x"], set()),
        ([b"target/a/x", b"Cargo.toml", b"sub/target/x"], {b"target"}),
        ([b"sub/target/x", b"sub/pom.xml"], {b"sub/target"}),
        ([b"venv/x"], set()),
        ([b"venv/bin/x", b"venv/pyvenv.cfg"], {b"venv"}),
        ([b"build-1/x", b"build/x"], {b"build-1"}),
        ([b".uv_cache/x", b"a/.uv-cache/x"], {b".uv_cache", b"a/.uv-cache"}),
        ([b".worktrees/a/x", b"a/.claude/worktrees/b/x"], {b".worktrees", b"a/.claude/worktrees"}),
        (
            [b"src/worktrees/x", b"worktrees/x", b".claude/a/worktrees/x", b"x.claude/worktrees/x"],
            set(),
        ),
        ([b"\xff/.tox/\n"], {b"\xff/.tox"}),
    ],
)
def test_directories_of(files: list[bytes], found: set[bytes]) -> None:
    assert directories_of(LocalNames(("deps", "build-*")), files) == found
