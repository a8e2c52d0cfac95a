"""Says what commands of a shell run, as far as their words tell. Pure.

It knows how shells, interpreters and git are given a program, which programs run what files of the
work tree define, and which do nothing of the kind. Everything else is noted as not followed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gitguardfs.audit.git_config import VARIABLES
from gitguardfs.audit.shell import SEARCHED, UNKNOWN, Command, NotUnderstood, Script

RUNNERS = frozenset(
    {"make", "gmake", "just", "task", "rake", "bundle", "npm", "npx", "yarn", "pnpm", "pnpx",
     "bun", "bunx", "deno", "composer", "cargo", "tox", "nox", "pytest", "poetry", "pipenv",
     "pip", "pip3", "uv", "uvx", "gradle", "gradlew", "mvn", "sbt", "dotnet", "go", "overcommit",
     "yorkie", "simple-git-hooks", "lint-staged", "commitlint", "eslint", "prettier", "stylelint",
     "jest", "vitest", "turbo", "nx", "lerna", "gulp", "grunt", "pre-commit", "prek", "husky",
     "lefthook", "hk", "rusty-hook", "captainhook", "treefmt", "trunk", "mypy", "pylint",
     "flake8", "hatch", "pdm", "rubocop", "rspec", "phpstan", "phpunit", "mix", "Rscript",
     "cmake", "ninja", "meson", "ant", "bazel", "docker", "docker-compose", "nix", "nix-shell",
     "direnv", "mise", "devenv", "moon"}
)  # fmt: skip
"""Programs that run what files of the work tree define."""
HARMLESS = frozenset(
    {":", "true", "false", "test", "[", "[[", "echo", "printf", "cd", "pushd", "popd", "pwd",
     "exit", "return", "break", "continue", "shift", "set", "unset", "umask", "wait", "kill",
     "let", "read", "mapfile", "getopts", "type", "which", "times", "ulimit", "shopt", "cat", "for",
     "select", "tac", "head", "tail", "cut", "sort", "uniq", "tr", "wc", "grep", "egrep", "fgrep",
     "zgrep", "rg", "sed", "diff", "cmp", "comm", "paste", "join", "fold", "fmt", "nl", "od", "xxd",
     "hexdump", "base64", "md5sum", "sha1sum", "sha256sum", "sha512sum", "shasum", "cksum",
     "date", "hostname", "uname", "whoami", "id", "groups", "logname", "tty", "basename",
     "dirname", "realpath", "readlink", "mktemp", "touch", "mkdir", "rmdir", "rm", "cp", "mv",
     "ln", "install", "chmod", "chown", "chgrp", "ls", "stat", "file", "du", "df", "tee", "yes",
     "seq", "sleep", "tput", "stty", "clear", "expr", "bc", "jq", "column", "rev", "shuf",
     "split", "truncate", "ps", "pgrep", "printenv", "getent", "locale", "logger", "notify-send",
     "curl", "wget", "gpg", "gzip", "gunzip", "zcat", "zip", "unzip", "bzip2", "xz", "gitk",
     "git-lfs", "gitleaks", "shellcheck", "shfmt", "gofmt", "clang-format", "black", "ruff",
     "isort", "codespell", "typos", "actionlint", "hadolint", "yamllint"}
)  # fmt: skip
"""Programs and commands of the shell that run nothing which files of the work tree define."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_INTERPRETERS = frozenset({"perl", "ruby", "node", "nodejs", "php", "lua", "luajit", "tsx", "java",
                           "ts-node", "osascript", "tclsh", "guile", "swift"})  # fmt: skip
_AWK = frozenset({"awk", "gawk", "mawk", "nawk"})
_AWK_RUNS = re.compile(
    r"(?m)system|getline|@|(?<!^-F)\|(?!\Z)|^(-[fEil]|--(file|exec|include|load))"
)
"""Where a program of awk can run others or comes from a file."""
_SED = re.compile(
    r"(?:[\s;{}!$,~+\ddDpPnNgGhHxlqiIM=]|/(?:\\.|[^/\\])*/"
    r"|[sy]([^\w\s\\])(?:(?:\\.|(?!\1)[^\\])*\1){2})*",
    re.DOTALL,
)
"""A program of sed that runs and writes nothing."""
_SED_OPTION = re.compile(r"-[nErsuz]*(i.*)?|--(quiet|silent|regexp-extended|null-data)")
_WRAPPERS = frozenset(
    {"exec", "command", "builtin", "env", "time", "timeout", "nice", "ionice", "nohup", "setsid",
     "stdbuf", "xargs", "sudo", "doas", "flock", "unshare", "setarch", "fakeroot", "strace",
     "chronic", "caffeinate", "busybox", "xvfb-run"}
)  # fmt: skip
"""Commands after which another one follows."""
_FLAGS = {
    "env": "iv0", "exec": "cl", "command": "p", "time": "pv", "timeout": "v", "xargs": "0rtpx",
    "sudo": "nEHSbkA", "setsid": "cfw", "flock": "sxneuo",
}  # fmt: skip
"""By wrapper, its options without a value."""
_KNOWN = HARMLESS | RUNNERS | _SHELLS | _INTERPRETERS | _WRAPPERS | _AWK | {
    ".", "source", "eval", "git", "find", "python", "python3", UNKNOWN
}  # fmt: skip
_DECLARES = frozenset({"export", "local", "readonly", "declare", "typeset"})
_OPTIONS = re.compile(
    r"(PERL5|RUBY|NODE_|_?JAVA_|JDK_JAVA_).*|GIT_CONFIG(_.*)?"
    r"|RIPGREP_CONFIG_PATH|WGETRC|ZIPOPT|LESSOPEN|LESSCLOSE|SUDO_ASKPASS|SHELL|BROWSER|PS4|PROMPT_COMMAND"
)
"""Variables that change what programs do in ways that are not followed."""
_ASSIGNMENT = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
_VARIES = re.compile(rf"[*?\[{{{UNKNOWN}]")
"""What makes a word stand for something that is not known."""
_STARTED_BY_GIT = {
    "rebase": r"-\w*?x|--exec", "difftool": r"-x|--extcmd", "grep": r"-O|--open-files-in-pager",
    "clone": r"-u|--upload-pack", "push": r"--receive-pack|--exec",
    "send-email": r"--\w+-cmd|--smtp-server=(?=.*/)", "filter-branch": r"--\w+-filter",
    "bisect": "run", "submodule": "foreach",
}  # fmt: skip
"""By command of git, the words after which a command of a shell stands; others use these, too:"""
_STARTED = r"--upload-pack|--receive-pack|--exec"
_LONG = ("--exec", "--extcmd", "--open-files-in-pager", "--upload-pack", "--receive-pack",
         "--to-cmd", "--cc-cmd", "--header-cmd", "--sendmail-cmd")  # fmt: skip
"""Those of which git takes the beginning, too."""
_FILE_OPTION = re.compile(r"-[FfSul]|--(config|rcfile|load|require|include)(=.*)?")
"""Options of many programs whose value is a file that says what to run."""
_STARTING = (
    "compress-program", "filter", "pre", "use-askpass", "options", "homedir", "config-file",
    "unzip-command", "hostname-bin", "agent-program", "photo-viewer", "execute", "config-path",
)  # fmt: skip
_STARTING_SHORT = re.compile(r"zip -\w*TT.*|curl -\w*K.*|wget -\w*e.*|mapfile -\w*C.*")
"""Options by which a harmless program starts another, or reads which one it starts."""
_IN_GIT = re.compile(r"\.git/|(^|/)hooks\b")
_FINDS_GIT = re.compile(
    r"\$0(?![ :])|\$\{0|BASH_SOURCE|(?<!unset )GIT_DIR|--git-(dir|path|common-dir)|cd \S*\.git\b"
)
"""By what a hook finds its git directory."""
_WRITERS = frozenset({"cp", "mv", "ln", "install", "tee", "unzip"})
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
    """Which of RUNNERS it runs."""
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
        self.finds_git |= _FINDS_GIT.search(text) is not None
        for command in script.commands:
            _Reader(self, command, script.functions, depth).run(command.words)
        return self


class _Reader:
    """Reads one command."""

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
        written = words[-1:] if words[:1] and words[0] in _WRITERS else []
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
        return bool(_IN_GIT.search(path)) or (self._runs.finds_git and varies)

    def _named(self, program: str, arguments: list[str]) -> None:
        name = posixpath.basename(program)
        if "/" in program and not program.startswith(("/", "~")):
            return
        if program in self._functions and self._commands == 1:
            if program in _KNOWN - HARMLESS or _PYTHON.fullmatch(program):
                self._unfollowed()  # who calls it may mean the program
            return
        if name in ("eval", "trap") and arguments[:1] == ["--"]:
            arguments = arguments[1:]
        if name in _SHELLS:
            self._shell(arguments)
        elif name in (".", "source"):
            for file in arguments[:1]:
                if file not in ("git-sh-setup", "git-sh-i18n"):  # git's own, found by PATH
                    self._file(file)
        elif name in ("eval", "trap"):
            self._code(" ".join(arguments) if name == "eval" else "".join(arguments[:1]).strip("-"))
        elif _PYTHON.fullmatch(name):
            self._python(arguments)
        elif name in _INTERPRETERS:
            self._script(arguments)
        elif name in _AWK:
            if _AWK_RUNS.search("\n".join(arguments).replace("||", "")):
                self._unfollowed()
        elif name == "sed":
            self._sed(arguments)
        elif name == "find":
            self._find(arguments)
        elif name == "run-parts":
            self._directory(arguments[-1] if arguments else UNKNOWN)
        elif name == "git":
            self._git(arguments)
        elif name in _WRAPPERS:
            self._wrapped(name, arguments)
        elif name in _DECLARES:
            for word in arguments:
                assigned = _ASSIGNMENT.fullmatch(word)
                if assigned is not None:
                    self._assign(*assigned.groups())
                elif UNKNOWN in word:
                    self._unfollowed()
        elif name in RUNNERS:
            self._runs.tools.append(name)
        elif name not in HARMLESS:
            self._other(arguments)
        elif any(
            (word in SEARCHED and name not in ("unset", "echo"))  # read PATH, for PATH in
            or ((long := re.match(r"--(\w[\w-]*)", word)) and _begins(long[1], _STARTING))
            or _STARTING_SHORT.fullmatch(f"{name} {word}")
            or (name in _WRITERS and _IN_GIT.search(word))
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
            if is_path or _FILE_OPTION.fullmatch(before):
                self._runs.arguments.append(value)

    def _file(self, word: str, is_script: bool = True) -> None:
        """Add a file that is run."""
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
        """Add a directory of which files are run."""
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
        elif _OPTIONS.fullmatch(name):
            self._unfollowed()

    def _code(self, code: str) -> None:
        """Read text that a shell reads."""
        if UNKNOWN in code:
            self._unfollowed()
        else:
            self._runs.read(code, self._depth + 1)

    def _input(self, is_shell: bool = False) -> None:
        """Read the standard input of an interpreter."""
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
            elif not _SED_OPTION.fullmatch(word):
                return self._unfollowed()
        if not all(map(_SED.fullmatch, programs or others[:1])):
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
        flags = rf"\d.*|--?|--[\w-]+=.*|-[A-Za-z]\d+|-I\{{\}}|-[{_FLAGS.get(name, '-')}]+"
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
            and not (rest[0] in _KNOWN or rest[0] in self._functions or re.search(r"[/=]", rest[0]))
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
        starts = _STARTED_BY_GIT.get(name, _STARTED)
        longs = [long for long in _LONG if re.fullmatch(starts, long)]
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
            elif word.startswith("--") and _IN_GIT.search(word):
                self._unfollowed()

    def _setting(self, key: str, value: str) -> None:
        if UNKNOWN in key or UNKNOWN in value:
            self._unfollowed()
        self._runs.settings.append((key.lower(), value))


def _begins(text: str, names: Sequence[str]) -> bool:
    """Say whether one of the names begins so."""
    return any(name.startswith(text) for name in names)
