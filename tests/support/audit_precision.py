"""Counts what ``gitguard audit`` finds of the ways in ``audit_ways``, and writes the table.

``python -m tests.support.audit_precision`` writes it into docs/audit.md.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import audit_ways, audit_world
from tests.support.audit_world import World

DOCUMENT = Path(__file__).parents[2] / "docs/audit.md"
MARKS = ("<!-- precision: python -m tests.support.audit_precision -->\n", "<!-- end -->\n")
FILE = "tools/x"
FOUND = ("high", "medium", "low", "nothing")


@dataclass(frozen=True)
class Way:
    """One repository: what is put into it."""

    kind: str
    hook: str = ""
    setting: tuple[str, str] | None = None
    shell: str = ""
    is_clean: bool = False
    runs: bool = False
    """Whether a commit there runs FILE, with the programs of any machine."""

    def __str__(self) -> str:
        if self.setting is not None:
            return " = ".join(self.setting)
        return filled(self.hook or self.shell, {"file": FILE}).replace("\n", "; ")

    def plant(self, world: World, project: Path) -> None:
        """Put it into a repository."""
        words = {"project": str(project), "file": FILE, "name": project.name}
        if self.hook:
            hook = project / ".git/hooks/post-commit"
            hook.parent.mkdir()
            hook.write_text(f"#!/bin/bash\n{filled(self.hook, words)}\n")
            hook.chmod(0o755)
        if self.setting is not None:
            world.git("config", self.setting[0], filled(self.setting[1], words), at=project)
        if self.shell:
            world.sh(filled(self.shell, words), project)


def filled(text: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", value)
    return text.replace("{{", "{").replace("}}", "}")


def ways() -> Iterator[Way]:
    """Yield all of them, by kind."""
    for kind, hooks in audit_ways.RUN_BY_GIT.items():
        yield from (Way(f"hook: {kind}", hook=text, runs=True) for text in hooks)
    for kind, hooks in audit_ways.OF_OTHER_PROGRAMS.items():
        yield from (Way(f"hook: {kind}", hook=text) for text in hooks)
    yield from (Way("a setting", setting=one) for one in audit_ways.SETTINGS)
    yield from (Way("an odd place, a link", shell=text) for text in audit_ways.PLACES)
    for text in audit_ways.CLEAN_HOOKS:
        yield Way("a hook", hook=text, is_clean=True)
    for one in audit_ways.CLEAN_SETTINGS:
        yield Way("a setting", setting=one, is_clean=True)
    for text in audit_ways.CLEAN_TREES:
        yield Way("a tree", shell=text, is_clean=True)


def judged(world: World) -> list[tuple[Way, str]]:
    """Return each way and the highest severity that is found, ``nothing`` if nothing is."""
    every = list(ways())
    template = world.home / "template"
    world.git("init", "-q", "--template=", template)
    for number, way in enumerate(every):
        project = world.share / f"r{number:03}"
        shutil.copytree(template, project)
        way.plant(world, project)
    found = dict.fromkeys(range(len(every)), "nothing")
    rows = [row for row in world.audit() if row["status"] == "finding"]
    for severity in FOUND[2::-1]:
        for row in (row for row in rows if row["severity"] == severity):
            for number in found:
                if f"/share/r{number:03}" in row["detail"]:
                    found[number] = severity
    return [(way, found[number]) for number, way in enumerate(every)]


def table(results: Sequence[tuple[Way, str]]) -> str:
    """Return the table as Markdown, and a list of what is missed."""
    lines = ["| | number | high | medium | low | no finding |", "|---|---|---|---|---|---|"]
    for is_clean, title in ((False, "planted"), (True, "clean")):
        own = [(way, found) for way, found in results if way.is_clean is is_clean]
        for kind in [*dict.fromkeys(way.kind for way, _ in own), "all"]:
            counts = Counter(found for way, found in own if kind in (way.kind, "all"))
            cells = [counts.total(), *(counts[one] for one in FOUND)]
            lines.append(f"| {title}: {kind} | {' | '.join(map(str, cells))} |")
    wrong = [
        f"- {'clean, and a finding' if way.is_clean else 'missed'}: `{way}`"
        for way, found in results
        if way.is_clean is (found in ("high", "medium"))
    ]
    return "\n".join([*lines, "", *(wrong or ["No planted way is missed."]), ""])


def main() -> None:
    """Write the table into the document."""
    with tempfile.TemporaryDirectory() as home:
        new = table(judged(audit_world.new(Path(home) / "home")))
    before, _, rest = DOCUMENT.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    DOCUMENT.write_text(f"{before}{MARKS[0]}{new}{MARKS[1]}{after}")
    print(new)


if __name__ == "__main__":
    main()
