"""The programs, options and variables that audit knows, by what they run."""

from __future__ import annotations

import re

from gitguardfs.host.audit.shell import UNKNOWN

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
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
PYTHON = re.compile(r"(python|pypy)[\d.]*")
INTERPRETERS = frozenset({"perl", "ruby", "node", "nodejs", "php", "lua", "luajit", "tsx", "java",
                           "ts-node", "osascript", "tclsh", "guile", "swift"})  # fmt: skip
AWK = frozenset({"awk", "gawk", "mawk", "nawk"})
AWK_RUNS = re.compile(
    r"(?m)system|getline|@|(?<!^-F)\|(?!\Z)|^(-[fEil]|--(file|exec|include|load))"
)
"""Where a program of awk can run others or comes from a file."""
SED = re.compile(
    r"(?:[\s;{}!$,~+\ddDpPnNgGhHxlqiIM=]|/(?:\\.|[^/\\])*/"
    r"|[sy]([^\w\s\\])(?:(?:\\.|(?!\1)[^\\])*\1){2})*",
    re.DOTALL,
)
"""A program of sed that runs and writes nothing."""
SED_OPTION = re.compile(r"-[nErsuz]*(i.*)?|--(quiet|silent|regexp-extended|null-data)")
WRAPPERS = frozenset(
    {"exec", "command", "builtin", "env", "time", "timeout", "nice", "ionice", "nohup", "setsid",
     "stdbuf", "xargs", "sudo", "doas", "flock", "unshare", "setarch", "fakeroot", "strace",
     "chronic", "caffeinate", "busybox", "xvfb-run"}
)  # fmt: skip
"""Commands after which another one follows."""
FLAGS = {
    "env": "iv0", "exec": "cl", "command": "p", "time": "pv", "timeout": "v", "xargs": "0rtpx",
    "sudo": "nEHSbkA", "setsid": "cfw", "flock": "sxneuo",
}  # fmt: skip
"""By wrapper, its options without a value."""
COMMANDS = HARMLESS | RUNNERS | SHELLS | INTERPRETERS | WRAPPERS | AWK | {
    ".", "source", "eval", "git", "find", "python", "python3", UNKNOWN
}  # fmt: skip
DECLARES = frozenset({"export", "local", "readonly", "declare", "typeset"})
OPTIONS = re.compile(
    r"(PERL5|RUBY|NODE_|_?JAVA_|JDK_JAVA_).*|GIT_CONFIG(_.*)?"
    r"|RIPGREP_CONFIG_PATH|WGETRC|ZIPOPT|LESSOPEN|LESSCLOSE|SUDO_ASKPASS|SHELL|BROWSER|PS4|PROMPT_COMMAND"
)
"""Variables that change what programs do in ways that are not followed."""
STARTED_BY_GIT = {
    "rebase": r"-\w*?x|--exec", "difftool": r"-x|--extcmd", "grep": r"-O|--open-files-in-pager",
    "clone": r"-u|--upload-pack", "push": r"--receive-pack|--exec",
    "send-email": r"--\w+-cmd|--smtp-server=(?=.*/)", "filter-branch": r"--\w+-filter",
    "bisect": "run", "submodule": "foreach",
}  # fmt: skip
"""By command of git, the words after which a command of a shell stands; others use these, too:"""
STARTED = r"--upload-pack|--receive-pack|--exec"
LONG = ("--exec", "--extcmd", "--open-files-in-pager", "--upload-pack", "--receive-pack",
         "--to-cmd", "--cc-cmd", "--header-cmd", "--sendmail-cmd")  # fmt: skip
"""Those of which git takes the beginning, too."""
FILE_OPTION = re.compile(r"-[FfSul]|--(config|rcfile|load|require|include)(=.*)?")
"""Options of many programs whose value is a file that says what to run."""
STARTING = (
    " compress-program filter pre use-askpass options homedir config-file unzip-command"
    " hostname-bin agent-program photo-viewer execute config-path"
)
STARTING_SHORT = re.compile(r"zip -\w*TT.*|curl -\w*K.*|wget -\w*e.*|mapfile -\w*C.*")
"""Options by which a harmless program starts another, or reads which one; each after a blank."""
IN_GIT = re.compile(r"\.git/|(^|/)hooks\b")
FINDS_GIT = re.compile(
    r"\$0(?![ :])|\$\{0|BASH_SOURCE|(?<!unset )GIT_DIR|--git-(dir|path|common-dir)|cd \S*\.git\b"
)
"""By what a hook finds its git directory."""
WRITERS = frozenset({"cp", "mv", "ln", "install", "tee", "unzip"})
