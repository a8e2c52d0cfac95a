"""Completion as bash, zsh and fish themselves do it, with the scripts that we install."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from gitguardfs.base.installation import PACKAGE_PARENT
from gitguardfs.commands import completion
from gitguardfs.commands.gitguard import COMMANDS
from gitguardfs.commands.programs import PROGRAMS, every_command
from gitguardfs.host.egress.presets import PRESETS
from tests.support.mounting import area

LIMIT = 60.0
GIT = ["deny", "list", "readonly", "hide", "private", "off"]
FREE = {"GLOB", "N", "PERMS", "SECONDS", "ALIGNMENT", "TAG", "UID:GID", "MIB", "NAME", "SIZE",
        "URL", "MAIL", "LINE", "HOST", "FIELD",
        "BRANCH", "BRANCH...", "COMMIT",
        "PORT[:GUEST_PORT", "COMMAND...", "-- COMMAND..."}  # fmt: skip
"""Metavars of values that only the user knows, or that another program completes."""

ANSWERS = [
    ("gitguardfs --git=", GIT),
    ("gitguardfs --git=r", ["readonly"]),
    ("gitguardfs --git re", ["readonly"]),
    ("gitguardfs --xattr=r", ["ro", "rw"]),
    ("gitguardfs -o git=", GIT),
    ("gitguardfs -o ro,map=1000:1000,git=h", ["hide"]),
    ("gitguardfs -o map=a", ["auto"]),
    ("gitguardfs -o allow-b", ["allow-bare"]),
    ("gitguardfs -o ro,allow-b", ["ro,allow-bare"]),
    ("gitguardfs --resolved", ["--resolved-symlink-deletion"]),
    ("gitguardfs --map ", ["auto"]),
    ("gitguard ", list(COMMANDS)),
    ("gitguard vm s", ["secret", "ssh", "ssh-config", "status", "stop"]),
    ("gitguard vm up --allow ", list(PRESETS)),
    ("gitguard vm up --allow=go", ["google", "go"]),
    ("gitguard vm up --project '/tmp/a b' --allow gi", ["github-read"]),
    ("gitguard share --for ", ["qemu", "libvirt", "utm"]),
    ("gitguard krun init -o git=r", ["readonly"]),
    ("vm-mount --style s", ["systemd"]),
    ("vm-mount --user roo", ["root"]),
    ("vm-mount --tag projects -o git=o", ["off"]),
]  # fmt: skip
DIRECTORIES = [
    "gitguardfs --seal ", "gitguardfs /usr ", "vm-mount -mm ", "vm-mount --map-mount=",
    "gitguard share ", "gitguard audit ", "gitguard units --output ", "gitguard vm up --project ",
    "gitguard doctor --attack ", "gitguardfs -o ro,mountpoint=",
]  # fmt: skip
FILES = [
    "gitguardfs --audit-log ", "gitguardfs --map-passwd=", "gitguard vm up --upstream-ca ",
    "gitguardfs -o ro,audit-log=", "gitguard krun init -o audit-log=/va",
]  # fmt: skip


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture(scope="module")
def share() -> Iterator[Path]:
    """Write our files as below /usr/share, and the programs into a directory ``bin``."""
    with area() as place:
        completion.write(str(place))
        (place / "bin").mkdir()
        for program in PROGRAMS:
            code = f"import sys; sys.path.insert(0, {PACKAGE_PARENT!r}); "
            code += f"from gitguardfs.commands.{program.replace('-', '_')} import main; main()"
            path = place / "bin" / program
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "{code}" "$@"\n')
            path.chmod(0o755)
        (place / "a directory").mkdir()
        (place / "a file").touch()
        yield place


def environment(share: Path) -> dict[str, str]:
    path = f"{share}/bin:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(share), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def test_there_is_a_script_for_each_program_and_shell(share: Path) -> None:
    for shell, pattern in completion.FILES.items():
        for program in PROGRAMS:
            text = (share / pattern.format(program)).read_text()
            assert program in text and f"{shell}_complete" in text


@pytest.mark.parametrize("shell", completion.FILES)
def test_a_program_prints_its_script_where_none_is_installed(share: Path, shell: str) -> None:
    done = subprocess.run(
        [share / "bin/gitguard"], capture_output=True, text=True, check=True,
        env={**environment(share), "_GITGUARD_COMPLETE": f"{shell}_source"},
    )  # fmt: skip
    assert done.stdout == completion.script(shell, "gitguard")


@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_scripts_pass_shellcheck(share: Path, program: str) -> None:
    path = share / completion.FILES["bash"].format(program)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_value_can_be_completed_or_only_the_user_knows_it() -> None:
    for one in every_command():
        for param in one.command.params:
            if isinstance(param, click.Option) and (param.is_flag or param.count):
                continue
            if isinstance(param.type, click.Choice | click.Path):
                continue
            metavar = completion.metavar_of(param)
            assert "|" in metavar or metavar in {*completion.VALUES, *FREE}, (one.words, param.opts)


# bash

ASK = r"""
. "$1"
compopt() { printf 'compopt %s\n' "$*"; }
COMP_LINE=$2 COMP_POINT=${#2}
read -ra words < <(complete -p "${2%% *}")
# What bash takes for the word: what is behind the last character at which it breaks words.
"${words[4]}" "${2%% *}" "${2##*[ :=]}" ""
((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}"
"""


def ask_bash(share: Path, line: str) -> list[str]:
    script = share / completion.FILES["bash"].format(line.split()[0])
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", script, line],
        env=environment(share), capture_output=True, text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "expected"), ANSWERS, ids=lambda value: str(value)[:60])
def test_bash_is_told_the_words(share: Path, line: str, expected: list[str]) -> None:
    assert ask_bash(share, line) == expected


@pytest.mark.parametrize("line", DIRECTORIES)
def test_bash_is_to_complete_directories_itself(share: Path, line: str) -> None:
    assert ask_bash(share, line) == ["compopt -o dirnames"]


@pytest.mark.parametrize("line", FILES)
def test_bash_is_to_complete_files_itself(share: Path, line: str) -> None:
    assert ask_bash(share, line) == ["compopt -o default"]


def test_a_name_that_wants_a_value_is_followed_by_no_space(share: Path) -> None:
    assert ask_bash(share, "gitguardfs -o cache") == ["compopt -o nospace", "cache-timeout="]


# Typed at a terminal

TYPED = [
    ("gitguardfs --git=rea", "--git=readonly"),
    ("gitguardfs --audit-log=a\\ f", "--audit-log=a file"),
    ("gitguardfs --seal a\\ d", "a directory/"),
    ("gitguardfs -o map=1000:1000,git=hi", "map=1000:1000,git=hide"),
    ("gitguardfs -o ro,audit-log=a\\ f", "ro,audit-log=a file"),
    ("gitguardfs -o force-user=daem", "force-user=daemon"),
    ("gitguardfs -o ro,mirror=root:@daem", "ro,mirror=root:@daemon"),
    ("gitguardfs --force-user=daem", "--force-user=daemon"),
    ("gitguardfs --mirror root:@daem", "root:@daemon"),
    ("gitguard vm up --allow cra", "crates"),
    ("gitguard vm up --git=pri", "--git=private"),
    ("vm-mount -o ro,git=pri", "ro,git=private"),
    ("vm-mount --map-mount=a\\ d", "--map-mount=a directory/"),
    ("vm-mount -mm a\\ d", "a directory/"),
]
"""The text before the tab key, and the last word after it."""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"],
             'for f in "$HOME"/bash-completion/completions/*; do . "$f"; done'),
    "zsh": (["zsh", "-f", "-i"],
            "fpath=($HOME/zsh/site-functions $fpath); autoload -Uz compinit; "
            "compinit -u -d $HOME/zcompdump"),
}  # fmt: skip


PROMPT = "what next? "


class Terminal:
    """An interactive shell at a terminal, in the directory with our files."""

    def __init__(self, command: list[str], start: str, share: Path) -> None:
        self.result = share / "result"
        self.said = b""
        last_word = share / "bin/last-word"
        # Renamed into its place, so that it is there as a whole.
        last_word.write_text(
            '#!/bin/sh\nfor word; do :; done\nprintf %s "$word" >"$HOME/new"\n'
            'mv "$HOME/new" "$HOME/result"\n'
        )
        last_word.chmod(0o755)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(share)
            os.execvpe(command[0], command, {**environment(share), "PS1": PROMPT})
        self._type(f"{start}; last-word ready\r")

    def complete(self, typed: str) -> str:
        """Press the tab key after ``typed``; return the last word as a program gets it."""
        # What comes before the prompt would be taken by the terminal, with its own special keys.
        self._until(lambda: re.search(rb"next\? (\x1b\[\?2004h)?$", self.said) is not None)
        self.said = b""
        # Ctrl-A leads to the line's beginning, where a program is put that writes down the last.
        return self._type(f"{typed}\t\x01last-word \r")

    def _type(self, keys: str) -> str:
        self.result.unlink(missing_ok=True)
        os.write(self.fd, keys.encode())
        self._until(self.result.exists)
        return self.result.read_text()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.said
            if select.select([self.fd], [], [], 0.02)[0]:
                self.said += os.read(self.fd, 65536)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture(scope="module")
def terminals(share: Path) -> Iterator[dict[str, Terminal]]:
    found = {
        shell: Terminal(command, start, share)
        for shell, (command, start) in SHELLS.items()
        if shutil.which(shell)
    }
    yield found
    for terminal in found.values():
        terminal.close()


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in SHELLS])
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_the_tabulator_completes(
    terminals: dict[str, Terminal], shell: str, typed: str, expected: str
) -> None:
    # zsh takes the slash behind a directory away again where nothing follows it.
    assert terminals[shell].complete(typed).removesuffix("/") == expected.removesuffix("/")


# fish

FISH_ANSWERS = [
    *(answer for answer in ANSWERS if "=" not in answer[0]),
    ("gitguardfs --git=", [f"--git={word}" for word in GIT]),
    ("gitguardfs -o ro,git=h", ["ro,git=hide"]),
    ("gitguardfs --seal a", ["a directory/"]),
    ("gitguardfs --audit-log=a\\ f", ["--audit-log=a file"]),
    ("gitguardfs -o ro,audit-log=a\\ f", ["ro,audit-log=a file"]),
    ("gitguardfs -o force-user=daem", ["force-user=daemon"]),
    ("gitguardfs --force-user=daem", ["--force-user=daemon"]),
    ("vm-mount --map-mount=a", ["--map-mount=a directory/"]),
    ("gitguardfs --mirror root:@daem", ["root:@daemon"]),
]


@needs("fish")
def test_fish_completes(share: Path) -> None:
    """All in one: fish takes its time to start."""
    program = "for f in $HOME/fish/vendor_completions.d/*; source $f; end; "
    program += "for line in $argv; complete -C $line; echo; end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", program, *(line for line, _ in FISH_ANSWERS)],
        env=environment(share), cwd=share, capture_output=True, text=True, timeout=LIMIT,
        check=True,
    )  # fmt: skip
    assert done.stderr == ""
    said = [
        sorted(line.partition("\t")[0] for line in part.splitlines() if line)
        for part in re.split(r"(?m)^\n", done.stdout)
    ]
    for (line, expected), found in zip(FISH_ANSWERS, said, strict=False):
        assert found == sorted(expected), line
    assert len(said) == len(FISH_ANSWERS) + 1
