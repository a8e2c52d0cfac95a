"""Reads text of a shell and finds the files that its commands run. Pure.

It knows a few rules, not the language: variables that are set to a path, ``cd``, and the ways in
which an interpreter is given a file. A file that no rule can name is a ``Run`` without a path.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gitguardfs.audit.shell_words import (
    BEFORE_PROGRAMS,
    Command,
    command_words,
    file_run_by,
    is_started,
    runs_input,
    split_commands,
    substituted,
    takes_code,
    unquoted,
)

RELATIVE = re.compile(r"(?!refs/|git-[\w-]+$)[\w.@+-]+(/[\w.@+-]+)*")
"""A relative path without variables and wildcards; neither a reference nor a script of git's."""
_READERS = frozenset({"cat", "tac", "head", "tail", "zcat", "bzcat", "xzcat", "base64", "sort"})
"""Programs that print files, which all their arguments name."""
_FILTERS = frozenset({"sed", "awk", "gawk", "grep", "egrep", "fgrep", "jq", "yq", "perl"})
"""Programs that print parts of files; their first argument is a pattern or a program."""
_PRINTERS = frozenset({"echo", "printf", ":"})
_DECLARES = frozenset({"export", "local", "readonly", "declare", "typeset"})
_EXECS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""Options of find(1) that a command follows."""
_XARGS_VALUE = re.compile(r"-[IJnPLsdaE]")
"""An option of xargs(1) whose value is the next word."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+|0%/\*)\})")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_TOP = re.compile(
    r"\$\(\s*git\b[^()`]*--show-(?:toplevel|cdup)[^()`]*\)"
    r"|`\s*git\b[^()`]*--show-(?:toplevel|cdup)[^()`]*`"
)
_HERE = re.compile(
    r"(?:\$\(|`)\s*dirname\s+(?:--\s+)?[\"']?\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)[\"']?\s*[)`]"
)
_WORKING = re.compile(r"\$\(\s*pwd\b[^()`]*\)|`\s*pwd\b[^()`]*`")
_ABSOLUTE = re.compile(r"\$\(\s*cd\s+(?:--\s+)?[\"']?([^\s\"'();&|]+)[\"']?[^()]*\bpwd\b[^()]*\)")
_IN_TREE, _BESIDE_SCRIPT = "\0", "\1"
"""Stand for the top of the work tree, and for the script's directory, at the start of a path."""
_UNKNOWN_PART = re.compile(r"[*?\[$`]")
"""Where a path has a wildcard or a variable whose value is not known."""
_LONG = 4096
"""No path is longer (PATH_MAX)."""
_MANY = 64
"""The most values of a variable, and the deepest nesting of commands, that are followed."""


@dataclass(frozen=True)
class Run:
    """A file that a command runs."""

    path: str | None
    """Relative to the top of the work tree, absolute, or with ``~``; None if it is not known."""
    word: str = ""
    """How the command names it, with the values of variables put in."""
    is_directory: bool = False
    """Whether the path is a directory, and the command runs files in it."""


_UNKNOWN = Run(None)


class Reader:
    """Reads the lines of one script in their order."""

    def __init__(self, here: str | None = None) -> None:
        self.directory = "."
        """Where a relative path starts, seen from the top of the work tree."""
        self._values = {"GIT_WORK_TREE": [_IN_TREE], "HOME": ["~"]}
        self._places = {_IN_TREE: "."}
        if here is not None:
            self._values["0%/*"] = [_BESIDE_SCRIPT]
            self._places[_BESIDE_SCRIPT] = here
        self._contents: dict[str, list[Run]] = {}
        """The files whose content a variable holds."""

    def read(self, line: str) -> list[Run]:
        """Return what the commands of a line run.

        ``cd`` holds until the end of its line or subshell. At the very start of a line, it holds
        for the following lines too, if it leads to a directory of the work tree.
        """
        start = self.directory
        line = _WORKING.sub("$PWD", _HERE.sub("${0%/*}", _TOP.sub("$GIT_WORK_TREE", line)))
        found = self._read(_ABSOLUTE.sub(r"\1", line), 0)
        if not line.startswith("cd ") or self.directory.startswith(("/", "~", "..")):
            self.directory = "." if line.startswith("cd ") else start
        return found

    def _read(self, text: str, depth: int) -> list[Run]:
        found: list[Run] = []
        outer: list[str] = []
        for command in split_commands(text):
            if command == "(":
                outer.append(self.directory)
            elif command == ")":
                self.directory = outer.pop() if outer else self.directory
            elif isinstance(command, Command) and depth < _MANY:
                found += self._run(command, depth + 1)
        return found

    def _run(self, command: Command, depth: int) -> list[Run]:
        """Return what a command runs; note the variables that it sets, and ``cd``."""
        words = [unquoted(word) for word in command.words]
        found = [
            run for word in command.words for code in substituted(word)
            for run in self._inside(code, depth)
        ]  # fmt: skip
        self._learn(command.words)
        program, *arguments = command_words(words) or [""]
        if "xargs" in itertools.takewhile(lambda word: word != program, words):
            return found + self._run_by_xargs(command, words, depth)
        named = [word for word in arguments if not word.startswith("-")]
        if program == "cd":
            self.directory = next(map(self._joined, self._expanded((named or ["~"])[0])), ".")
        elif program == "run-parts":
            found += self._at(named[-1], is_directory=True) if named else []
        elif program == "find":
            found += self._run_by_find(command.words, depth)
        elif program == "eval":
            found += self._fed(" ".join(arguments), depth)
        elif takes_code(program, arguments):
            found += self._fed((named or [""])[0], depth)
        elif runs_input(program, arguments):
            found += self._contents_of(command)
        elif program and program not in _PRINTERS:
            found += self._file(file_run_by([program, *arguments]))
        return found

    def _inside(self, code: str, depth: int) -> list[Run]:
        directory = self.directory
        found = self._read(code, depth)
        self.directory = directory
        return found

    def _learn(self, words: Sequence[str]) -> None:
        """Note the values that a command gives to variables."""
        words = list(itertools.dropwhile(BEFORE_PROGRAMS.__contains__, words))
        if words[:1] == ["for"] and words[2:3] == ["in"]:
            for word in words[3:]:
                self._set(words[1], word)
            return
        is_declared = words[:1] != [] and words[0] in _DECLARES
        for word in words[1:] if is_declared else words:
            assigned = _ASSIGNMENT.fullmatch(word)
            if assigned is not None:
                self._set(assigned[1], assigned[2])
            elif not is_declared:
                return

    def _set(self, name: str, word: str) -> None:
        """Add a value of a variable; which one holds at a later line is not looked at."""
        values = self._values.setdefault(name, [])
        values += [one for one in self._expanded(word) if one not in values][: _MANY - len(values)]
        contents = self._contents.setdefault(name, [])
        contents += [run for run in self._outputs(word) if run not in contents]

    def _expanded(self, word: str) -> list[str]:
        """Return what a word may stand for; nothing if its start is not known."""
        found, end = [""], 0
        word = unquoted(word)
        for variable in _VARIABLE.finditer(word):
            name = variable[1] or variable[2]
            values = self._values.get(name, [])
            if name == "PWD":
                is_inside = not self.directory.startswith(("/", "~"))
                values = [f"{_IN_TREE}/{self.directory}" if is_inside else self.directory]
            before = word[end : variable.start()]
            found = [a + before + b for a in found for b in values or [variable[0]]]
            found = [one for one in found if len(one) < _LONG][:_MANY]
            end = variable.end()
        return [one + word[end:] for one in found if not (one + word[end:]).startswith(("$", "`"))]

    def _joined(self, path: str) -> str:
        if path[:1] in self._places:
            return os.path.normpath(self._places[path[0]] + path[1:])
        if path.startswith("~"):
            return path
        if self.directory.startswith("~"):
            return f"{self.directory}/{path}"
        return os.path.normpath(os.path.join(self.directory, path))

    def _at(self, word: str, *, is_directory: bool = False) -> list[Run]:
        """Return a file that a word names, or that it is not known.

        For a path that is known only in part, this is the directory up to there.
        """
        found = []
        for value in self._expanded(word):
            known = _UNKNOWN_PART.split(value)[0]
            if known == value:
                found.append(Run(self._joined(value), value, is_directory))
            else:
                directory = known.rpartition("/")[0] or "."
                found.append(Run(self._joined(directory), value, is_directory=True))
        return found or [_UNKNOWN]

    def _file(self, word: str) -> list[Run]:
        """Return the file that is run by its name, if the start of its path is known."""
        if word == "/":
            return []
        if word.startswith(("$", "./", "../", "~/")):
            return [run for run in self._at(word) if run.path is not None and "/" in run.word]
        start = _UNKNOWN_PART.split(word)[0].rstrip("/")
        return self._at(word) if RELATIVE.fullmatch(start) else []

    def _run_by_find(self, words: Sequence[str], depth: int) -> list[Run]:
        arguments = [unquoted(word) for word in words]
        arguments = arguments[arguments.index("find") + 1 :]
        found: list[Run] = []
        rest = list(words[len(words) - len(arguments) :])
        while rest:
            if rest.pop(0) not in _EXECS:
                continue
            ends = (index for index, word in enumerate(rest) if unquoted(word) in (";", "+"))
            end = next(ends, len(rest))
            started, rest = rest[:end], rest[end:]
            if is_started([unquoted(word) for word in started], "{}"):
                found += self._roots(arguments)
            elif depth < _MANY:
                found += self._run(Command(started), depth + 1)
        return found

    def _roots(self, arguments: Sequence[str]) -> list[Run]:
        """Return the directories in which find(1) looks."""
        ends = (n for n, word in enumerate(arguments) if word[:1] in ("-", "(", "!"))
        roots = arguments[: next(ends, len(arguments))]
        return [run for root in roots or ["."] for run in self._at(root, is_directory=True)]

    def _run_by_xargs(self, command: Command, words: Sequence[str], depth: int) -> list[Run]:
        start = words.index("xargs") + 1
        replaced = ""
        while start < len(words) and words[start].startswith("-"):
            if words[start].startswith("-I"):
                replaced = words[start][2:] or "".join(words[start + 1 : start + 2])
            start += 2 if _XARGS_VALUE.fullmatch(words[start]) else 1
        if not is_started(words[start:], replaced):
            inner = Command(command.words[start:])
            return self._run(inner, depth + 1) if inner.words and depth < _MANY else []
        source = command.before
        while source is not None and source.before is not None:
            source = source.before
        names = [unquoted(word) for word in source.words] if source is not None else []
        return self._roots(names[1:]) if names[:1] == ["find"] else [_UNKNOWN]

    def _fed(self, code: str, depth: int) -> list[Run]:
        """Return what a text runs that a shell reads as commands."""
        return self._inside(code, depth) + self._outputs(code)

    def _outputs(self, text: str) -> list[Run]:
        """Return the files whose content is put into a text."""
        found = [run for name in _VARIABLE.findall(text) for run in self._contents.get(name[0], [])]
        for code in substituted(text):
            commands = [one for one in split_commands(code) if isinstance(one, Command)]
            found += self._printed(commands[-1]) if commands else []
        return found

    def _contents_of(self, command: Command) -> list[Run]:
        """Return the files whose content is the input of a command, or its here-string."""
        found = self._outputs(command.text)
        for word in command.words:
            found += self._outputs(word) if word.startswith("<(") else []
        if command.input is not None:
            return found + self._at(command.input)
        return found + (self._printed(command.before) if command.before is not None else [])

    def _printed(self, command: Command) -> list[Run]:
        """Return the files from which a pipe's output comes, up to this command."""
        program, *arguments = command_words([unquoted(word) for word in command.words]) or [""]
        named = [word for word in arguments if not re.match(r"[-+]|\d+$", word)]
        found: list[Run] = []
        if program in _PRINTERS:
            found += self._outputs(" ".join(command.words))
        elif program in _READERS or program in _FILTERS:
            for word in named[1:] if program in _FILTERS else named:
                found += self._at(word)
        if command.input is not None and (program == "" or program not in _PRINTERS):
            found += self._at(command.input)
        return found + (self._printed(command.before) if command.before is not None else [])
