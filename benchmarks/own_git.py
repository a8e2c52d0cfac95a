"""Times git on the agent's own repository (``--git private``), beside ``readonly`` and no view.

The agent is an ordinary user that owns the files; the host's repository has a thousand commits.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rounds import FORGOTTEN, Say
from benchmarks.views import PLAIN, View, mounted

AGENT = 1000
COMMITS = 1000
FILES_IN_A_DIRECTORY = 100
LOGGED = 300


def measure(
    gitguardfs: tuple[str, ...], work: Path, files: int, rounds: int, say: Say
) -> Mapping[str, Mapping[str, float]]:
    """Return the seconds of each command by view; the views take turns."""
    place = work / "own-git"
    source = place / "source"
    (source / "project").mkdir(parents=True)
    say(f"making a repository of {files:,} files and {COMMITS:,} commits")
    _make(source / "project", files)
    for directory in (place, source):
        directory.chmod(0o755)
    subprocess.run(["chown", "-R", f"{AGENT}:{AGENT}", source], check=True)
    ours = (*gitguardfs, "-f", "--no-seal")
    private = (*ours, "--git", "private", "--private-store", str(place / "store"))
    views = [
        View(PLAIN, "plain"),
        View("private", "--git private", private),
        View("readonly", "--git readonly", (*ours, "--git", "readonly")),
    ]
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        tops = {PLAIN: source / "project"}
        for view in views[1:]:
            daemon = mounted(view, source, place / view.key, place / f"{view.key}.log")
            tops[view.key] = stack.enter_context(daemon).path / "project"

        def note(name: str, key: str, *arguments: str) -> None:
            found.setdefault(name, {}).setdefault(key, []).append(_git(tops[key], *arguments))

        started = time.perf_counter()
        _as_agent(["cat", tops["private"] / ".git"])
        found["first open of .git"] = {"private": [time.perf_counter() - started]}
        for key in tops:
            note("git status, first", key, "status")
        for _ in range(rounds):
            for key in tops:
                time.sleep(FORGOTTEN)  # else the kernel still knows what the last round asked for
                note("git status, later", key, "status")
                note(f"git log --stat of {LOGGED} commits", key, "log", "--stat", f"-n{LOGGED}")
        for number in range(rounds):
            for key in (PLAIN, "private"):
                say(f"commit {number + 1} of {rounds}: {key}")
                (tops[key] / "d0/f0").write_text(f"{key} {number}\n")
                note("git commit -a", key, "commit", "--quiet", "-am", "one more")
    return {
        name: {key: statistics.median(times) for key, times in by_view.items()}
        for name, by_view in found.items()
    }


def _make(project: Path, files: int) -> None:
    directories = files // FILES_IN_A_DIRECTORY
    for number in range(directories):
        (project / f"d{number}").mkdir()
        for each in range(FILES_IN_A_DIRECTORY):
            (project / f"d{number}/f{each}").write_text(f"{number} {each}\n" * 20)
    for words in (["init", "-q", "-b", "main"], ["config", "user.name", "Host"],
                  ["config", "user.email", "host@example.org"], ["config", "gc.auto", "0"],
                  ["add", "-A"], ["commit", "-qm", "first"]):  # fmt: skip
        _host_git(project, *words)
    stream = []
    for number in range(COMMITS):
        text, message = f"line {number}\n" * 50, f"commit {number}"
        come_from = "from refs/heads/main^0\n" if number == 0 else ""
        stream.append(
            f"commit refs/heads/main\ncommitter Host <host@example.org> {1700000000 + number} "
            f"+0000\ndata {len(message)}\n{message}\n{come_from}M 100644 inline "
            f"d{number % directories}/g{number}\ndata {len(text)}\n{text}\n"
        )
    _host_git(project, "fast-import", "--quiet", given="".join(stream))
    _host_git(project, "reset", "-q", "--hard")
    _host_git(project, "gc", "-q")


def _host_git(project: Path, *arguments: str, given: str = "") -> None:
    subprocess.run(
        ["git", *arguments], cwd=project, input=given, text=True, check=True, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


def _git(top: Path, *arguments: str) -> float:
    started = time.perf_counter()
    identity = ("-c", "user.name=Agent", "-c", "user.email=agent@example.org")
    _as_agent(["git", "-C", top, *identity, *arguments])
    return time.perf_counter() - started


def _as_agent(command: list[str | Path]) -> None:
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env=_environment(), user=AGENT,
        group=AGENT, extra_groups=[],
    )  # fmt: skip
