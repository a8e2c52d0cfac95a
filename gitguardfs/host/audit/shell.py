"""Splits text of a shell into simple commands. Pure.

It knows words, quotes and the language's own words, but no values: each part of a word that only
the shell would know is ``UNKNOWN``. Commands in functions, conditions and substitutions count too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

UNKNOWN = "\0"
"""Stands in a word for what is not known: a variable, or the output of a command."""
TOP = "."
"""Stands for the top of the work tree, where git starts hooks and commands."""
SEARCHED = frozenset(
    {"PATH", "PYTHONPATH", "NODE_PATH", "PERL5LIB", "PERLLIB", "RUBYLIB", "CLASSPATH", "LUA_PATH",
     "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "BASH_ENV",
     "ENV", "PYTHONHOME", "PYTHONSTARTUP", "GIT_EXEC_PATH", "GIT_DIR", "GIT_COMMON_DIR",
     "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_TEMPLATE_DIR", "HOME", "XDG_CONFIG_HOME",
     "ZDOTDIR", "LD_AUDIT", "GNUPGHOME"}
)  # fmt: skip
"""Variables with files that programs run or obey, or with directories that they search for such."""
_VALUES = {"PWD": TOP, "GIT_WORK_TREE": TOP, "HOME": "~", "PATH": "/usr/bin"}
"""What variables stand for; PATH before the text sets it is judged elsewhere."""
_TOP = re.compile(r"\s*(git\s+rev-parse\s+--show-(toplevel|cdup)|pwd(\s+-[LP])?)\s*")
_RESERVED = frozenset({"then", "do", "else", "if", "elif", "while", "until", "!", "{", "}", "fi",
                       "done", "coproc"})  # fmt: skip
_ANY = re.compile(r"(?s:.)")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)*(#[^\n]*)?")
_LINES = re.compile(r"(?:\s|\\\n|#.*)*")
_OPERATOR = re.compile(r"(?!&>)(?:;;&|;[;&]?|&&?|\|[|&]?)")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>>|>\||>&|<&|&>>?|<(?!\()|>(?!\())")
_ESAC = re.compile(r"esac\b")
_ESCAPED = re.compile(r"\\(?s:.)?")
_TO_QUOTE = re.compile(r"[^']*'")
_TO_BACKQUOTE = re.compile(r"(?s:[^`\\]|\\.)*`")
_NAME = re.compile(r"\w+|[@*#?$!-]")
_ARRAY = re.compile(r"\w+(\[[^]]*\])?\+?=")
_MANY = 40
"""The deepest nesting that is followed: nobody writes that, and each level takes stack."""


class NotUnderstood(Exception):  # noqa: N818  # what happened
    """The text is not in the language, or nested too deeply."""


@dataclass
class Command:
    """A simple command: its words without quotes, operators and redirections."""

    line: int
    words: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    """The files that it writes."""
    input: str | None = None
    """The file that is its standard input, or None."""
    text: str | None = None
    """Its here-document or here-string, or None."""
    is_moved: bool = False
    """Whether ``cd`` has led elsewhere before, so that relative paths are not known."""


class Script:
    """One text: its commands, and the functions that it defines, once it was read."""

    def __init__(self, text: str, outer: Script | None = None) -> None:
        self._text = text
        self._at = 0
        self._line: int = 1 if outer is None else outer._line
        self._depth: int = 0 if outer is None else outer._depth
        self._is_moved: bool = outer is not None and outer._is_moved
        self._waiting: list[tuple[Command, str, bool, bool]] = []
        """Here-documents whose text begins after the line."""
        self.commands: list[Command] = [] if outer is None else outer.commands
        self.functions: set[str] = set() if outer is None else outer.functions

    def read(self, end: str = "") -> None:
        """Read commands up to the character ``end``, and pass that. Raises NotUnderstood."""
        cases, command = 0, self._new()
        while (c := self._next()) not in (end, ""):
            if c == "\n":
                command = self._finish(command)
                self._end_line()
            elif operator := self._take(_OPERATOR):
                command = self._finish(command)
                if cases and operator in (";;", ";&", ";;&"):
                    cases -= self._pattern()
            elif c == "(":
                if command.words and self._peek(2) == "()":
                    self.functions.add(command.words[-1])
                    command, self._at = self._new(), self._at + 2
                elif command.words in ([], ["for"]) and self._peek(2) == "((":
                    self._at += 1
                    self._pass(")")
                else:
                    command, self._at = self._finish(command), self._at + 1
                    with self._inside():
                        self.read(")")
            elif c == ")":
                raise self._not_understood(c)
            elif redirection := self._take(_REDIRECTION):
                self._redirect(command, redirection.lstrip("0123456789"))
            else:
                self._add_word(command)
                if command.words[0] in _RESERVED and len(command.words) == 1:
                    command = self._new()
                elif command.words == ["[["]:
                    self._pass("]]")
                elif command.words[:1] == ["case"] and command.words[2:] == ["in"]:
                    command, cases = self._new(), cases + 1
                    cases -= self._pattern()
                elif command.words == ["esac"]:
                    command, cases = self._new(), max(0, cases - 1)
        self._finish(command)
        if c != end:
            raise self._not_understood(f"no {end}")
        self._at += len(end)

    def _new(self) -> Command:
        return Command(self._line, is_moved=self._is_moved)

    def _finish(self, command: Command) -> Command:
        """Note a command if it has words, and return the next."""
        words = command.words
        if words[:1] == ["function"]:
            self.functions.update(words[1:2])
            words[:2] = []
        if words or command.text is not None:
            self.commands.append(command)
        places = {*words[1:]} - {TOP, "--", "./", "./."} or not words[1:]  # the home directory
        if words[:1] in (["cd"], ["pushd"]) and places:
            self._is_moved = True
        return self._new()

    def _peek(self, number: int = 1) -> str:
        return self._text[self._at : self._at + number]

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Pass a text that matches, and return it; empty if there is none."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        self._line += match[0].count("\n")
        return match[0]

    def _next(self) -> str:
        """Pass blanks and a comment; return the character after them."""
        self._take(_BLANKS)
        return self._peek()

    def _not_understood(self, what: str) -> NotUnderstood:
        return NotUnderstood(f"line {self._line}: {what}")

    def _end_line(self) -> None:
        """Pass a newline, and the here-documents that begin after it."""
        self._at += 1
        self._line += 1
        for command, end, is_indented, is_plain in self._waiting:
            tabs = r"\t*" if is_indented else ""
            ending = re.compile(rf"(?m)^{tabs}{re.escape(end)}$\n?").search(self._text, self._at)
            stop, after = ending.span() if ending else [len(self._text)] * 2
            text = self._text[self._at : stop]
            self._line += self._text.count("\n", self._at, after)
            self._at = after
            command.text = text if is_plain else Script(text, self)._quoted("")
        self._waiting.clear()

    def _redirect(self, command: Command, operator: str) -> None:
        self._take(_BLANKS)
        start = self._at
        word = self._word()
        if operator in ("<<", "<<-"):
            is_plain = bool(re.search(r"['\"\\]", self._text[start : self._at]))
            self._waiting.append((command, word, operator == "<<-", is_plain))
            command.text = ""
        elif operator == "<<<":
            command.text = word
        elif operator == "<":
            command.input = word
        elif ">" in operator:
            command.outputs.append(word)

    def _add_word(self, command: Command) -> None:
        start = self._at
        command.line = command.line if command.words else self._line
        word = self._word()
        if self._peek() == "(" and _ARRAY.fullmatch(self._text[start : self._at]):
            self._at += 1
            self._pass(")")
            word += UNKNOWN
        if self._at == start:
            raise self._not_understood(self._peek())
        command.words.append(word)

    def _pass(self, end: str) -> None:
        """Pass words and operators up to ``end``, and read what the words substitute."""
        while c := self._next():
            if c not in "\n;&|()<>" or self._peek(2) in ("<(", ">("):
                if self._word() == end:
                    return
                continue
            self._take(_ANY)
            if c == end:
                return
            if c == "(":
                with self._inside():
                    self._pass(")")
        raise self._not_understood(f"no {end}")

    def _pattern(self) -> int:
        """Pass a pattern of ``case`` up to its ``)``; return 1 if ``esac`` stands there instead."""
        self._take(_LINES)
        if self._take(_ESAC):
            return 1
        self._at += self._peek() == "("
        self._pass(")")
        return 0

    def _word(self) -> str:
        found = []
        while (c := self._peek()) and (c not in " \t\r\n;&|()<>" or self._peek(2) in ("<(", ">(")):
            found.append(self._part())
        return "".join(found)

    def _part(self) -> str:
        """Return the meaning of a character, or of what begins with it."""
        if escaped := self._take(_ESCAPED):
            return escaped[1:].removeprefix("\n")
        c = self._take(_ANY)
        if c == "'":
            text = self._take(_TO_QUOTE)
            if not text:
                raise self._not_understood("no '")
            return text[:-1]
        if c == '"':
            return self._quoted('"')
        if c == "`":
            return self._backquoted()
        if c in "<>":
            self._at += 1
            with self._inside():
                self.read(")")
            return UNKNOWN
        return self._expansion() if c == "$" else c

    def _quoted(self, end: str) -> str:
        """Return a text in which only ``$``, backquotes and backslashes mean something."""
        found = []
        while (c := self._peek()) != end:
            if c == "":
                raise self._not_understood(f"no {end}")
            if c in "$`" or (c == "\\" and self._peek(2)[1:] in ("$", "`", '"', "\\", "\n")):
                found.append(self._part())
            else:
                found.append(self._take(_ANY))
        self._at += len(end)
        return "".join(found)

    def _backquoted(self) -> str:
        line = self._line
        code = self._take(_TO_BACKQUOTE)
        if not code:
            raise self._not_understood("no `")
        code = code[:-1]
        after, self._line = self._line, line
        with self._inside():
            Script(re.sub(r"\\([$`\\])", r"\1", code), self).read()
        self._line = after
        return TOP if _TOP.fullmatch(code) else UNKNOWN

    def _expansion(self) -> str:
        c = self._peek()
        if c == "'":
            text = self._part()
            return UNKNOWN if "\\" in text else text
        if self._peek(2) == "((":
            self._at += 1
            self._pass(")")
            return UNKNOWN
        start = self._at + 1
        if c == "(":
            self._at = start
            with self._inside():
                self.read(")")
            return TOP if _TOP.fullmatch(self._text[start : self._at - 1]) else UNKNOWN
        if c == "{":
            self._at = start
            with self._inside():
                while (c := self._peek()) != "}":
                    if c == "":
                        raise self._not_understood("no }")
                    self._part()
            self._at += 1
            return _VALUES.get(self._text[start : self._at - 1], UNKNOWN)
        name = self._take(_NAME)
        return _VALUES.get(name, UNKNOWN) if name else "$"

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Read a deeper level, where ``cd`` holds until its end."""
        is_moved, waiting = self._is_moved, self._waiting
        self._depth += 1
        if self._depth > _MANY:
            raise self._not_understood("nested too deeply")
        self._waiting = []
        yield
        self._depth -= 1
        self._is_moved, self._waiting = is_moved, waiting
