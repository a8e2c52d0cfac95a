"""A developer's home with a shared directory in it, for tests of ``gitguard audit``."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitguardfs.host.audit import fixes
from gitguardfs.host.commands.audit import command

PATH = "/usr/local/bin:/usr/bin:/bin"
GUARD = "guard it with "


@dataclass(frozen=True)
class World:
    """``home/share/project`` is a repository; the agent's programs make ``ran`` when they run."""

    home: Path

    @property
    def share(self) -> Path:
        return self.home / "share"

    @property
    def project(self) -> Path:
        return self.share / "project"

    @property
    def ran(self) -> Path:
        return self.home / "ran"

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.home}/bin:{PATH}",
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSH_VARIANT": "simple",
        }

    def git(
        self, *arguments: str | Path, at: Path | None = None, check: bool = True, said: str = ""
    ) -> str:
        """Run git as the developer does."""
        done = subprocess.run(
            ["git", "-C", str(at or self.project), *map(str, arguments)],
            env=self.environment(), input=said, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def sh(self, command: str, at: Path) -> None:
        """Run a command of a shell as the developer does."""
        subprocess.run(
            ["bash", "-ec", command],
            cwd=at,
            env=self.environment(),
            check=True,
            capture_output=True,
        )

    def script(self, path: Path, more: str = "") -> Path:
        """Write a program of the agent's to ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n: > {shlex.quote(str(self.ran))}\n{more}")
        path.chmod(0o755)
        return path

    def has_run(self) -> bool:
        """Return whether a program of the agent's has run since the last call."""
        if not self.ran.exists():
            return False
        self.ran.unlink()
        return True

    def audit(self, *options: str, at: Path | None = None) -> list[dict[str, Any]]:
        """Audit, assert that nothing was run and the status is right, and return the rows."""
        runner = CliRunner()
        arguments = [str(at or self.share), "--json", *options]
        done = runner.invoke(
            command, arguments, env={"HOME": str(self.home)}, standalone_mode=False
        )
        assert done.exception is None, done.exception
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        assert done.return_value == any(row["severity"] in ("medium", "high") for row in rows)
        assert not self.has_run(), "the audit ran a program of the agent's"
        return rows

    def findings(self, id: str, *options: str, at: Path | None = None) -> list[dict[str, Any]]:
        """Return the findings of one kind."""
        rows = self.audit(*options, at=at)
        return [row for row in rows if row["id"] == id and row["status"] == "finding"]


def new(home: Path) -> World:
    """Make a world in which the user has made the recommended settings."""
    world = World(home)
    world.project.mkdir(parents=True)
    world.git("config", "--global", "safe.bareRepository", "explicit")
    world.git("config", "--global", "user.name", "me")
    world.git("config", "--global", "user.email", "me@example.org")
    world.git("config", "--global", "init.defaultBranch", "main")
    world.git("init", "-q")
    (world.project / "file").write_text("one\n")
    world.git("add", "file")
    world.git("commit", "-qm", "one")
    return world


@pytest.fixture
def fixture(tmp_path: Path) -> World:
    return new(tmp_path / "home")


def ways(finding: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the commands and the rules for the guard that a finding suggests."""
    every = str(finding["hint"]).split(fixes.OR)
    rules = [way.removeprefix(GUARD) for way in every if way.startswith(GUARD)]
    return [way for way in every if not way.startswith(GUARD)], rules


def carry_out(world: World, way: str) -> None:
    """Run a command as it was printed, in the shell that developers have."""
    done = subprocess.run(
        ["bash", "-c", way], env=world.environment(), cwd="/", capture_output=True, text=True
    )
    assert done.returncode == 0, (way, done.stderr)


def words(rule: str) -> Sequence[str]:
    """Return a printed rule as arguments."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {rule}"], capture_output=True, check=True, env=os.environ
    )
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def check_fixes(world: World, id: str, severity: str, said: str) -> None:
    """Assert that there is one such finding, and that each suggested rule and command fixes it."""
    found = [row for row in world.findings(id) if said in row["detail"]]
    assert [row["severity"] for row in found] == [severity], world.findings(id)
    commands, rules = ways(found[0])

    def is_there(*options: str) -> bool:
        rows = world.findings(id, *options)
        return any(row["detail"] == found[0]["detail"] for row in rows)

    assert commands or rules
    for rule in rules:
        assert not is_there(*words(rule)), rule
    for way in commands[:1]:
        carry_out(world, way)
        assert not is_there(), way
