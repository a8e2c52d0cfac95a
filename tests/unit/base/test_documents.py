"""The documents: their links, and the commands, options, paths and modules that they name."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gitguardfs.host.share.packages import PACKAGES
from gitguardfs.names import local_names
from tests.support.commands import PROGRAMS, NamedCommand, every_command
from tests.support.documents import broken_links

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "packaging/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it names what older versions had
)
COMMANDS = {one.words: one for one in every_command()}
SCRIPTS: dict[str, str] = {}
"""The text of each script by its name; two are called run.sh."""
for folder in ("guest-setup", "tests", "benchmarks"):
    for path in ROOT.glob(f"{folder}/*.sh"):
        SCRIPTS[path.name] = SCRIPTS.get(path.name, "") + path.read_text()

REPLACED = frozenset(("-mm", "-l", "--label", "--type"))
"""Spellings that vm-mount, gitguard share and gitguard units replace before click sees them."""
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


@EACH
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def code(text: str) -> Iterator[str]:
    """Yield the code of a document: its blocks' lines and what stands between backticks."""
    prose = []
    for line in re.sub(r" \\\n +", " ", text).split("\n"):
        if re.match(r" {4}", line):
            yield line
        else:
            prose.append(line)
    parts = re.split(r"^ *```.*$", "\n".join(prose), flags=re.MULTILINE)
    for block in parts[1::2]:
        yield from block.split("\n")
    for part in parts[::2]:
        for span in re.findall(r"`([^`]+)`", part):
            yield " ".join(span.replace("\\|", "|").split())


def calls(line: str) -> Iterator[list[str]]:
    """Yield the words of each call of a program of ours, or of one of our scripts, in a line."""
    names = "|".join(map(re.escape, [*sorted(PROGRAMS, key=len, reverse=True), *SCRIPTS]))
    for found in re.finditer(rf"(?:^|[\s/$(])((?:{names})(?: .*)?)$", line):
        text = re.split(r" #|[|;&)>]|  +(?=[a-z])| -- |…|\.\.\.", found[1])[0]
        try:
            yield shlex.split(text)
        except ValueError:  # prose that happens to begin with the name
            continue


def command_of(words: list[str]) -> tuple[NamedCommand, list[str]]:
    """Return the command that words call, and its arguments."""
    known = max(
        (tuple(words[:end]) for end in range(1, len(words) + 1) if tuple(words[:end]) in COMMANDS),
        key=len,
    )
    return COMMANDS[known], words[len(known) :]


def spellings(one: NamedCommand) -> set[str]:
    """Return all spellings of a command's options."""
    options = [param for param in one.command.get_params(one.context)
               if isinstance(param, click.Option)]  # fmt: skip
    found = {spelling for option in options for spelling in (*option.opts, *option.secondary_opts)}
    return found | REPLACED if "--tag" in found else found


def unknown_options(line: str) -> list[str]:
    """Return the options in a line that the programs they are given to do not have."""
    unknown = []
    for words in calls(line):
        options = [word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-zA-Z]", word)]
        if words[0] in SCRIPTS:
            text = SCRIPTS[words[0]] + SCRIPTS["steps.sh"]
            missing = [option for option in options if not re.search(rf"{option}\b", text)]
        else:
            known = spellings(command_of(words)[0])
            missing = [option for option in options if option not in known]
        unknown += [f"{' '.join(words)}: {option}" for option in missing]
    return unknown


@EACH
def test_the_options_of_commands_exist(document: Path) -> None:
    assert [one for line in code(document.read_text()) for one in unknown_options(line)] == []


@pytest.mark.parametrize("one", COMMANDS.values(), ids=lambda one: " ".join(one.words))
def test_the_options_in_the_examples_of_help_exist(one: NamedCommand) -> None:
    lines = (one.command.epilog or "").split("\n") + (one.command.help or "").split("\n")
    assert [found for line in lines for found in unknown_options(line)] == []


@EACH
def test_paths_of_the_repository_exist(document: Path) -> None:
    tracked = "docs|tests|gitguardfs|guest-setup|packaging|benchmarks|systemd|\\.ci"
    paths = [
        found
        for line in code(document.read_text())
        for found in re.findall(rf"(?:^|\s|\./)((?:{tracked})/[\w./-]*\w)", line)
    ]
    generated = {"benchmarks/results", "gitguardfs/guest-setup/install.sh"}
    assert [path for path in paths if path not in generated and not (ROOT / path).exists()] == []


def test_the_table_of_deps_is_the_one_that_decides() -> None:
    text = (ROOT / "docs/local-directories.md").read_text()
    _, _, table = text.partition("| directory | is the guest's own |")
    rows = [line.split("|")[1:3] for line in table.strip().split("\n\n")[0].splitlines()[1:]]
    told = {name.strip(" `"): frozenset(re.findall("`([^`]+)`", when)) for name, when in rows}
    assert told == {
        name.decode(): frozenset(
            each.decode() for each in (*one.beside, one.inside, one.below) if each
        )
        for name, one in local_names.DIRECTORIES.items()
    }


@pytest.mark.parametrize("changed", [False, True], ids=["clean", "with changes"])
def test_the_lines_for_undoing_bring_tracked_files_back(tmp_path: Path, changed: bool) -> None:
    text = (ROOT / "docs/vm.md").read_text()
    keep, undo = re.findall(r"^    (.*refs/before-agent.*?) +#", text, re.MULTILINE)

    def sh(line: str) -> None:
        identity = "-c user.name=me -c user.email=me@example.org"
        subprocess.run(["sh", "-ec", line.replace("git stash", f"git {identity} stash")],
                       cwd=tmp_path, check=True, capture_output=True)  # fmt: skip

    sh("git init -q && mkdir sub && echo 1 >a && echo 1 >sub/b && git add . && "
       "git -c user.name=me -c user.email=me@example.org commit -qm first")  # fmt: skip
    if changed:
        sh("echo 2 >a && echo 3 >c && git add c")
    sh(keep)
    sh("rm a && echo agent >sub/b && echo agent >new")
    sh(undo)
    sh(f"test $(cat a) = {1 + changed} && test $(cat sub/b) = 1 && test -e new")
    sh("test $(cat c) = 3" if changed else "test ! -e c")


def test_one_command_of_the_readme_installs_all_that_a_fresh_host_needs() -> None:
    """With what pip builds pyfuse3 with, where the distribution has none."""
    build = re.findall(r"BUILD_FEDORA=\(fuse3 (.*)\)", SCRIPTS["install.sh"])
    for family, manager, pyfuse3 in (
        ("debian", "apt", ["python3-pyfuse3", "python3-trio"]),
        ("fedora", "dnf", build[0].split()),
    ):
        [line] = re.findall(
            rf"^    sudo .*\b{manager} install -y [^\\\n]*\\\n(.*)", README, re.MULTILINE
        )
        programs = ("qemu-system-x86_64", "qemu-img", "ssh", "fusermount3")
        needed = {PACKAGES[name][family] for name in programs}
        assert set(line.split()) == {"git", "pipx", *pyfuse3, *needed}
