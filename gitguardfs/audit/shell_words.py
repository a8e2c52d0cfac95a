"""Splits text of a shell into commands, and says how one starts an interpreter. Pure.

It knows words, quotes, pipes and redirections, not the language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

INTERPRETERS = re.compile(r"(.*/)?(sh|bash|dash|zsh|ksh|fish|python[\d.]*|perl|ruby|node|php)")
_SHELLS = re.compile(r"\.|source|(.*/)?(sh|bash|dash|zsh|ksh|fish)")
SEPARATOR = re.compile(r"""[;&|()<>`"'{}\n]""")
"""Characters that end a word or a command in a shell, beside blanks."""
BEFORE_PROGRAMS = frozenset(
    {"exec", "then", "do", "else", "if", "elif", "while", "until", "!", "{", "command", "builtin",
     "env", "time", "timeout", "nice", "ionice", "nohup", "setsid", "stdbuf", "xargs", "sudo"}
)  # fmt: skip
"""Words of a shell, and programs, after which the name of a program follows."""
_THEIR_OPTION = re.compile(r"-\S*|\d[\d.]*[smhd]?")
"""An option of one of these programs, or a number that belongs to one."""
_TOKEN = re.compile(
    r"""(?P<operator>&>>?|\d*(?:[<>]&[\d-]?|<<<|<<-?|>>|>\||[<>](?!\())
        |&&|\|\|?&?|;;|[;&()])
    |(?P<word>(?:<\([^()]*\) | \$\([^()]*\) | `[^`]*` | \\.
        |'[^']*' | "(?:[^"\\]|\\.)*" | [^\s;&|()<>'"`\\] | ["'`\\])+)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"\\(.)|[\"']", re.DOTALL)
_SUBSTITUTION = re.compile(r"[$<]\(([^()]*)\)|`([^`]*)`")
"""A command whose output takes its place."""


@dataclass
class Command:
    """A simple command: its words without operators and redirections."""

    words: list[str] = field(default_factory=list)
    input: str | None = None
    """The file that is its standard input, or None."""
    text: str = ""
    """Its here-string."""
    before: Command | None = None
    """The command whose output it reads through a pipe."""


def command_words(part: str | Sequence[str]) -> list[str]:
    """Return a program's name and its arguments in a part of a shell command, or nothing."""
    words = part.split() if isinstance(part, str) else part
    words = [word for word in words if not re.match(r"\w+=", word)]
    is_after = False
    while words and (
        words[0] in BEFORE_PROGRAMS or (is_after and _THEIR_OPTION.fullmatch(words[0]))
    ):
        is_after = True
        words.pop(0)
    return words


def file_run_by(part: str | Sequence[str]) -> str:
    """Return the file that a part of a shell command runs, as it is written there.

    This is the program if it has a ``/``, or the script of an interpreter. Returns "/" for another
    program, and for code in the command itself.
    """
    program, *arguments = command_words(part) or [""]
    if "/" in program and not (program.startswith("/") and INTERPRETERS.fullmatch(program)):
        return program
    if program not in (".", "source") and not INTERPRETERS.fullmatch(program):
        return "/"
    code = "c" if _SHELLS.fullmatch(program) else "cemr"
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            return argument
        if argument in ("-W", "-X"):  # of Python; what follows belongs to it
            next(rest, "")
        if not argument.startswith("--") and any(letter in argument for letter in code):
            return "/"
    return "/"


def split_commands(text: str) -> Iterator[Command | str]:
    """Yield the simple commands of a text, and ``(`` and ``)``."""
    command = Command()
    redirects = ""
    for token in _TOKEN.finditer(text):
        operator, word = token["operator"], token["word"]
        if word is not None:
            if redirects == "<":
                command.input = word
            elif redirects == "<<<":
                command.text = word
            elif not redirects:
                command.words.append(word)
            redirects = ""
        elif "<" in operator or ">" in operator:
            redirects = "" if re.search(r"&[\d-]", operator) else operator.lstrip("0123456789")
        else:
            yield command
            command = Command(before=command if operator in ("|", "|&") else None)
            redirects = ""
            if operator in "()":
                yield operator
    yield command


def unquoted(word: str) -> str:
    """Return a word without its quotes and backslashes."""
    return _QUOTED.sub(lambda found: found[1] or "", word)


def substituted(text: str) -> list[str]:
    """Return the commands whose output is put into a text."""
    return [one or other for one, other in _SUBSTITUTION.findall(text)]


def takes_code(program: str, arguments: Sequence[str]) -> bool:
    """Return whether a command is a shell with ``-c``."""
    options = (word for word in arguments if re.fullmatch(r"-\w*c\w*", word))
    return _SHELLS.fullmatch(program) is not None and next(options, None) is not None


def runs_input(program: str, arguments: Sequence[str]) -> bool:
    """Return whether a command runs its standard input, or the output of ``<(...)``."""
    if program in (".", "source"):
        return arguments[:1] == ["/dev/stdin"] or "".join(arguments[:1]).startswith("<(")
    if not INTERPRETERS.fullmatch(program):
        return False
    is_shell = _SHELLS.fullmatch(program) is not None
    for argument in arguments:
        if argument in ("-", "/dev/stdin") or (is_shell and re.fullmatch(r"-\w*s\w*", argument)):
            return True
        if not argument.startswith("-"):
            return argument.startswith("<(")
        code = r"-\w*c" if is_shell else r"-\w*[cemrpn]|--(eval|print)"
        if re.match(code, argument):
            return False
    return True


def is_started(words: Sequence[str], replaced: str) -> bool:
    """Return whether a command runs files that are put in for ``replaced``, or added to it."""
    program, *arguments = command_words(words) or [""]
    if replaced and replaced in program:
        return True
    if not INTERPRETERS.fullmatch(program):
        return False
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is None:
        return not replaced and runs_input(program, arguments)
    return replaced != "" and replaced in first
