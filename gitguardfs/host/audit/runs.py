"""Says what commands of a shell run, as far as their words tell. Pure.

It knows how shells, interpreters and git are given a program, which programs run what files of the
work tree define, and which do nothing of the kind. Everything else is noted as not followed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gitguardfs.host.audit import known
from gitguardfs.host.audit.git_config import VARIABLES
from gitguardfs.host.audit.shell import SEARCHED, UNKNOWN, Command, NotUnderstood, Script

_ASSIGNMENT = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
_VARIES = re.compile(rf"[*?\[{{{UNKNOWN}]")
"""What makes a word stand for something that is not known."""
_MANY = 20
"""How many commands may stand in each other's words: nobody writes that."""


@dataclass
class Runs:
    """What a text of a shell runs. Paths are absolute, with ``~``, or relative to where it runs."""

    files: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    """Directories of which it runs files, or in which it looks for programs."""
    settings: list[tuple[str, str]] = field(default_factory=list)
    """Keys and values that it passes to git."""
    tools: list[str] = field(default_factory=list)
    """Which of ``known.RUNNERS`` it runs."""
    imports: bool = False
    """Whether it starts Python so that it looks for modules in the working directory first."""
    unfollowed: list[str] = field(default_factory=list)
    """What is not followed: a line, and its command."""
    others: list[str] = field(default_factory=list)
    """The same for programs that are only not known."""
    arguments: list[str] = field(default_factory=list)
    """Paths that these are given."""
    finds_git: bool = False
    """Whether a path that is not known may lie in the git directory."""

    def read(self, text: str, depth: int = 0) -> Runs:
        """Add what a text runs; return this object."""
        try:
            script = Script(text)
            script.read()
            if depth > 9:
                raise NotUnderstood("nested too deeply")
        except NotUnderstood as error:
            self.unfollowed.append(str(error))
            return self
        self.finds_git |= known.FINDS_GIT.search(text) is not None
        for command in script.commands:
            _Reader(self, command, script.functions, depth).run(command.words)
        return self


class _Reader:
    def __init__(self, runs: Runs, command: Command, functions: set[str], depth: int) -> None:
        self._runs = runs
        self._command = command
        self._functions = functions
        self._depth = depth
        self._commands = 0

    def run(self, words: Sequence[str]) -> None:
        """Add what a command runs, of which others may be parts."""
        words = list(words)
        self._commands += 1
        if self._commands > _MANY:
            return self._unfollowed()
        written = words[-1:] if words[:1] and words[0] in known.WRITERS else []
        if any(map(self._is_in_git, self._command.outputs + written)):
            self._unfollowed()
        while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
            self._assign(*assigned.groups())
            words.pop(0)
        if not words:
            return None
        program, *arguments = words
        if "/" in program or _VARIES.search(program.strip("[")):
            self._file(program, is_script=False)
        if (not _VARIES.search(program.strip("[")) and program[:1] != ".") or program == ".":
            self._named(program, arguments)
        return None

    def _is_in_git(self, path: str) -> bool:
        """Say whether a file that is written may lie in the git directory."""
        is_known = not self._command.is_moved or re.fullmatch(r"[\d-]+|[/~].*", path)
        varies = UNKNOWN in path or not is_known
        return bool(known.IN_GIT.search(path)) or (self._runs.finds_git and varies)

    def _named(self, program: str, arguments: list[str]) -> None:
        name = posixpath.basename(program)
        if "/" in program and not program.startswith(("/", "~")):
            return
        if program in self._functions and self._commands == 1:
            if program in known.COMMANDS - known.HARMLESS or known.PYTHON.fullmatch(program):
                self._unfollowed()  # who calls it may mean the program
            return
        if name in ("eval", "trap") and arguments[:1] == ["--"]:
            arguments = arguments[1:]
        if name in known.SHELLS:
            self._shell(arguments)
        elif name in (".", "source"):
            for file in arguments[:1]:
                if file not in ("git-sh-setup", "git-sh-i18n"):  # git's own, found by PATH
                    self._file(file)
        elif name in ("eval", "trap"):
            self._code(" ".join(arguments) if name == "eval" else "".join(arguments[:1]).strip("-"))
        elif known.PYTHON.fullmatch(name):
            self._python(arguments)
        elif name in known.INTERPRETERS:
            self._script(arguments)
        elif name in known.AWK:
            if known.AWK_RUNS.search("\n".join(arguments).replace("||", "")):
                self._unfollowed()
        elif name == "sed":
            self._sed(arguments)
        elif name == "find":
            self._find(arguments)
        elif name == "run-parts":
            self._directory(arguments[-1] if arguments else UNKNOWN)
        elif name == "git":
            self._git(arguments)
        elif name in known.WRAPPERS:
            self._wrapped(name, arguments)
        elif name in known.DECLARES:
            for word in arguments:
                assigned = _ASSIGNMENT.fullmatch(word)
                if assigned is not None:
                    self._assign(*assigned.groups())
                elif UNKNOWN in word:
                    self._unfollowed()
        elif name in known.RUNNERS:
            self._runs.tools.append(name)
        elif name not in known.HARMLESS:
            self._other(arguments)
        elif any(
            (word in SEARCHED and name not in ("unset", "echo"))  # read PATH, for PATH in
            or ((long := re.match(r"--(\w[\w-]*)", word)) and f" {long[1]}" in known.STARTING)
            or known.STARTING_SHORT.fullmatch(f"{name} {word}")
            or (name in known.WRITERS and known.IN_GIT.search(word))
            for word in arguments
        ):
            self._unfollowed()

    def _said(self) -> str:
        command = " ".join(self._command.words).replace(UNKNOWN, "…")
        return f"line {self._command.line}: {command[:60]}"

    def _unfollowed(self) -> None:
        self._runs.unfollowed.append(self._said())

    def _other(self, arguments: Sequence[str] = ()) -> None:
        """Add a program that is not known, and paths that it is given."""
        self._runs.others.append(self._said())
        for before, word in zip(["", *arguments], arguments, strict=False):
            value = word.rpartition("=")[2]
            is_path = "=" in word and "/" in value and "://" not in value  # -o ProxyCommand=a/b
            is_path |= value.startswith(("./", "../", "/", "~"))
            if is_path or known.FILE_OPTION.fullmatch(before):
                self._runs.arguments.append(value)

    def _file(self, word: str, is_script: bool = True) -> None:
        is_known = word.startswith(("/", "~")) or not self._command.is_moved
        varies = _VARIES.search(word)
        if varies or not is_known:
            self._unfollowed()
            known = word[: varies.start()] if varies and is_known else ""
            if "/" in known.lstrip("/"):
                self._runs.directories.append(posixpath.dirname(known))
        else:
            self._runs.files.append(word)
            if word.startswith("../") or ".git/" in word or (is_script and word[:1] in ("/", "~")):
                self._other()  # it is not read

    def _directory(self, word: str) -> None:
        if _VARIES.search(word) or (self._command.is_moved and word[:1] not in ("/", "~")):
            self._unfollowed()
        else:
            self._runs.directories.append(word or ".")

    def _assign(self, name: str, value: str) -> None:
        if name in SEARCHED:
            for part in value.split(":"):
                self._directory(part)
            if name == "HOME":  # ~ is known no more
                self._unfollowed()
        elif name in VARIABLES and value:
            if UNKNOWN in value:
                self._unfollowed()
            self._runs.settings.append((VARIABLES[name], value))
        elif known.OPTIONS.fullmatch(name):
            self._unfollowed()

    def _code(self, code: str) -> None:
        if UNKNOWN in code:
            self._unfollowed()
        else:
            self._runs.read(code, self._depth + 1)

    def _input(self, is_shell: bool = False) -> None:
        if self._command.input is not None:
            self._file(self._command.input)
        elif is_shell and self._command.text is not None:
            self._code(self._command.text)
        else:
            self._unfollowed()

    def _shell(self, arguments: list[str]) -> None:
        rest = list(arguments)
        while rest and rest[0][:1] in ("-", "+") and len(rest[0]) > 1:
            option = rest.pop(0)
            if not option.startswith("--") and "c" in option:
                return self._code("".join(rest[:1]))
            if re.fullmatch(r"[-+]\w*[oO]|--(rcfile|init-file)", option):
                value = "".join(rest[:1])
                rest[:1] = []
                if option.startswith("--"):
                    self._file(value)
            elif not option.startswith("--") and "s" in option:
                return self._input(is_shell=True)
        if rest and rest[0] != "-":
            return self._file(rest[0])
        return self._input(is_shell=True)

    def _script(self, arguments: list[str]) -> None:
        """Read how an interpreter is given its program; its options are not known."""
        if not arguments or arguments[0] == "-":
            self._input()
        elif arguments[0].startswith("-"):
            if arguments != ["--version"]:
                self._unfollowed()
        else:
            self._file(arguments[0])

    def _python(self, arguments: list[str]) -> None:
        text = " ".join(arguments)
        found = re.match(r"((?:-[XW] ?\S+ |-[^\WcmXW]+ )*)(-[^\WcmXW]*[cm]|-(?!\S)|$)?", text)
        assert found is not None
        if found[2] is None:
            return self._script(text[found.end() :].split(" "))
        is_isolated = re.search(r"-\w*[IP]", re.sub(r"-[XW] ?\S+", "", found[0]))
        if is_isolated and found[0].endswith("m"):
            self._other()
        elif is_isolated or self._command.is_moved:
            self._unfollowed()
        else:
            self._runs.imports = True
        return None

    def _sed(self, arguments: list[str]) -> None:
        words, programs, others = iter(arguments), [], []
        for word in words:
            if re.fullmatch(r"-[nErsuz]*e", word):
                programs.append(next(words, ""))
            elif not word.startswith("-"):
                others += [word] * bool(word)
            elif not known.SED_OPTION.fullmatch(word):
                return self._unfollowed()
        if not all(map(known.SED.fullmatch, programs or others[:1])):
            self._unfollowed()
        return None

    def _find(self, arguments: list[str]) -> None:
        rest = list(arguments)
        while rest:
            if rest.pop(0) in ("-exec", "-execdir", "-ok", "-okdir"):
                end = next((n for n, word in enumerate(rest) if word in (";", "+")), len(rest))
                self.run(rest[:end])
                rest = rest[end:]

    def _wrapped(self, name: str, arguments: list[str]) -> None:
        rest = list(arguments)
        is_optional = name == "flock"
        flags = rf"\d.*|--?|--[\w-]+=.*|-[A-Za-z]\d+|-I\{{\}}|-[{known.FLAGS.get(name, '-')}]+"
        while rest and (rest[0][:1] == "-" or re.match(r"\d", rest[0])):
            if name == "command" and rest[0] in ("-v", "-V"):
                return
            if name == "env" and rest[0].startswith(("-S", "--split")):
                return self._unfollowed()
            is_optional = True
            option = rest.pop(0)
            if re.match(r"[^\W\d]|\W*[./~]", "".join(rest[:1])) and not re.fullmatch(flags, option):
                self._unfollowed()  # is the next word the value of the option, or the command?
        while (
            is_optional
            and len(rest) > 1
            and rest[0] not in known.COMMANDS
            and rest[0] not in self._functions
            and not re.search(r"[/=]", rest[0])
            and (name == "xargs" or rest[0] != "{}")
        ):
            rest.pop(0)  # perhaps the value of an option
        if rest:
            self.run([*rest, UNKNOWN] if name == "xargs" else rest)

    def _git(self, arguments: list[str]) -> None:
        rest = list(arguments)
        while rest and rest[0].startswith("-"):
            option, _, value = rest.pop(0).partition("=")
            if option in ("-c", "-C", "--git-dir", "--work-tree", "--config-env") and not value:
                value = "".join(rest[:1])
                rest[:1] = []
            if option in ("-c", "--config-env"):
                self._setting(*value.partition("=")[::2])
            elif option in ("--git-dir", "--exec-path") and value:
                self._directory(value)
        if not rest:
            return
        name, *rest = rest
        if name == "config":
            named = [word for word in rest if not word.startswith("-")]
            if len(named) > 1 and named[0] not in ("get", "list"):
                self._setting(*named[-2:])
        self._git_starts(name, rest)

    def _git_starts(self, name: str, rest: list[str]) -> None:
        """Add what one of git's commands starts by its options and addresses."""
        starts = known.STARTED_BY_GIT.get(name, known.STARTED)
        longs = [long for long in known.LONG if re.fullmatch(starts, long)]
        longs += ["--template", *["--config"] * (name == "clone")]
        for number, word in enumerate(rest):
            short, equals, value = word.partition("=")
            if re.match(r"--\w", short):
                full = next((long for long in longs if long.startswith(short)), short)
                rest[number] = full + equals + value
        for number, word in enumerate(rest):
            if word.startswith("ext::"):
                self._code(word.removeprefix("ext::"))
            if word.startswith("--template"):
                self._directory(word.partition("=")[2] or UNKNOWN)
            if rest[number - 1] in ("-c", "--config") and name == "clone":
                self._setting(*word.partition("=")[::2])
            if word.startswith("--config=") and name == "clone":
                self._setting(*word.removeprefix("--config=").partition("=")[::2])
            found = re.fullmatch(rf"({starts})(?:=?(.+))?", word, re.DOTALL)
            if found is not None:
                words = rest[number + 1 :] if word in ("run", "foreach") else rest[number + 1 :][:1]
                self._code(re.sub(r"^(-\S+ )+", "", found[2] or " ".join(words)))
            elif word.startswith("--") and known.IN_GIT.search(word):
                self._unfollowed()

    def _setting(self, key: str, value: str) -> None:
        if UNKNOWN in key or UNKNOWN in value:
            self._unfollowed()
        self._runs.settings.append((key.lower(), value))
