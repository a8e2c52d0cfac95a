"""Completes all commands in bash, zsh and fish: words, options and their values.

click finds the option or argument that is being typed; this module adds its values, which it
chooses by the metavar, such as FILE. The shell passes its line up to the cursor, not its words:
bash also splits words at = and :, and leaves quotes in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

from gitguardfs.commands.programs import PROGRAMS, completion_variable, load
from gitguardfs.options.parsing import respelled
from gitguardfs.options.table import OPTIONS, Option

_BASH = """\
# Completion of %(prog_name)s for bash.
%(complete_func)s() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            open) COMPREPLY+=("$value") && compopt -o nospace ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            user) mapfile -t COMPREPLY < <(compgen -P "${value%%%%|*}" -u -- "${value#*|}") ;;
            group) mapfile -t COMPREPLY < <(compgen -P "${value%%%%|*}" -g -- "${value#*|}") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORD="$2" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""
_ZSH = """\
#compdef %(prog_name)s
# Completion of %(prog_name)s for zsh.
%(complete_func)s() {
    local line kind value
    local -a plain open
    for line in ${(f)"$(COMP_LINE="${(j: :)words[1,CURRENT-1]} $IPREFIX$PREFIX" \\
        %(complete_var)s=zsh_complete $words[1] 2>/dev/null)"}; do
        kind=${line%%%%,*} value=${line#*,}
        case $kind in
            plain) plain+=("$value") ;;
            open) open+=("$value") ;;
            dir) compset -p ${#value}; _path_files -/ ;;
            file) compset -p ${#value}; _files ;;
            user) compset -p ${#value}; _users ;;
            group) compset -p ${#value}; _groups ;;
        esac
    done
    (( $#plain )) && compadd -V unsorted -a plain
    (( $#open )) && compadd -V unsorted -S '' -a open
}
# Called as a function of fpath, this completes; sourced, it registers itself.
if [[ $funcstack[1] == _%(prog_name)s ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""
_FISH = """\
# Completion of %(prog_name)s for fish.
function %(complete_func)s
    set -l line (commandline -cp | string collect)
    set -l token (commandline -ct | string collect)
    set -l unquoted (string unescape -- $token | string collect); and set token $unquoted
    for answer in (COMP_LINE=$line %(complete_var)s=fish_complete %(prog_name)s 2>/dev/null)
        set -l parts (string split -m 1 , -- $answer)
        set -l kept $parts[2]
        set -l rest (string sub -s (math (string length -- "$kept") + 1) -- $token)
        switch $parts[1]
            case plain open
                echo $kept
            case dir
                for found in (__fish_complete_directories "$rest"); echo $kept$found; end
            case file
                for found in (__fish_complete_path "$rest"); echo $kept$found; end
            case user
                for found in (__fish_complete_users); echo $kept$found; end
            case group
                for found in (__fish_complete_groups); echo $kept$found; end
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""
FILES = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}
"""Where each shell looks for a program's completion, below /usr/share or /usr/local/share."""


def write(directory: str) -> None:
    """Write the completion of every program for each shell below ``directory``. Raises OSError."""
    for shell, pattern in FILES.items():
        for program in PROGRAMS:
            path = os.path.join(directory, pattern.format(program))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(script(shell, program))


def script(shell: str, program: str) -> str:
    """Return the script that a shell sources to complete ``program``."""
    completion = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}[shell]
    return completion(load(program), {}, program, completion_variable(program)).source()


def register() -> None:
    """Register these classes with click, in place of its own for the same shells."""
    for completion in (_Bash, _Zsh, _Fish):
        add_completion_class(completion)


class _Completion(ShellComplete):
    """The part that all shells share: the words come from the line up to the cursor."""

    word = ""
    """The part of the word before the cursor, without its quotes."""

    def get_completion_args(self) -> tuple[list[str], str]:
        # The x keeps the last word from being empty, also after a space.
        *words, last = _split(os.environ.get("COMP_LINE", "") + "x")
        self.word = last[:-1]
        return words[1:], self.word

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        if self.prog_name != "gitguardfs":  # the other programs accept spellings such as -mm
            args = respelled(args)
        _prepare(self.cli, args)
        found = super().get_completions(args, incomplete)
        # The shell replaces the whole word, so a value comes with its option before it.
        before = ""
        if incomplete.startswith("--") and "=" in incomplete:
            before = incomplete.partition("=")[0] + "="
        for item in found:
            delegated = item.type not in ("plain", "open")
            item.value = before + ((item.held or "") if delegated else item.value)
        return found

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{item.value}"


class _Bash(_Completion):
    name = "bash"
    source_template = _BASH

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # bash replaces only what it takes for the word: usually the part after = or :.
        begin = len(self.word) - len(_split(os.environ.get("COMP_WORD", ""))[-1])
        value = item.value[begin:]
        if item.type in ("user", "group"):
            value = f"{value}|{self.word[len(item.value) :]}"
        return f"{item.type},{value}"


class _Zsh(_Completion):
    name = "zsh"
    source_template = _ZSH


class _Fish(_Completion):
    name = "fish"
    source_template = _FISH


def _split(line: str) -> list[str]:
    """Split an unfinished line into words as a shell does; a quote may still be open."""
    words, word, quote, escaped, inside = [], "", "", False, False
    for one in line:
        if escaped:
            word, escaped = word + one, False
        elif one == "\\" and quote != "'":
            escaped = inside = True
        elif quote:
            quote, word = ("", word) if one == quote else (quote, word + one)
        elif one in "'\"":
            quote, inside = one, True
        elif one.isspace():
            words += [word] if inside else []
            word, inside = "", False
        else:
            word, inside = word + one, True
    return [*words, word]


# Values


class _Value(click.types.StringParamType):
    """A value that a shell or this module can complete."""

    def __init__(self, candidates: Callable[[str], list[CompletionItem[Any]]]) -> None:
        self.candidates = candidates

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[Any]]:
        return self.candidates(incomplete)


def _by_shell(kind: str) -> Callable[[str], list[CompletionItem[Any]]]:
    return lambda incomplete: [CompletionItem(incomplete, type=kind)]


def _one_of(*words: str) -> Callable[[str], list[CompletionItem[Any]]]:
    return lambda incomplete: [CompletionItem(w) for w in words if w.startswith(incomplete)]


def _members(incomplete: str) -> list[CompletionItem[Any]]:
    """Complete the last of a list of users and @groups, separated by colons or commas."""
    begin = max(incomplete.rfind(":"), incomplete.rfind(",")) + 1
    is_group = incomplete[begin:].startswith("@")
    held = incomplete[: begin + is_group]
    return [CompletionItem(incomplete, type="group" if is_group else "user", held=held)]


def _o_options(incomplete: str) -> list[CompletionItem[Any]]:
    """Complete the last of a list of ``-o`` options, or its value."""
    begin = incomplete.rfind(",") + 1
    before, typed = incomplete[:begin], incomplete[begin:]
    name, equals, value = typed.partition("=")
    if equals:
        return _o_value(name, f"{before}{name}=", value)
    return [
        CompletionItem(f"{before}{word}", type="open" if word.endswith("=") else "plain")
        for option in OPTIONS
        if not option.hidden
        for word in _spellings(option)
        if word.startswith(typed)
    ]


def _o_value(name: str, before: str, value: str) -> list[CompletionItem[Any]]:
    """Complete the value of the ``-o`` option called ``name``; ``before`` stands before it."""
    metavar = next((o.metavar for o in OPTIONS if name in (o.name, *o.aliases)), "")
    candidates = _candidates(metavar)
    return [
        CompletionItem(before + item.value, type=item.type, held=before + (item.held or ""))
        for item in (candidates(value) if candidates else ())
    ]


def _spellings(option: Option) -> list[str]:
    sign = "=" if option.metavar else ""
    return [f"{name}{sign}" for name in (option.name, *option.aliases)]


def _choices(metavar: str) -> tuple[str, ...]:
    return tuple(metavar.split("|")) if "|" in metavar else ()


VALUES: dict[str, Callable[[str], list[CompletionItem[Any]]]] = {
    **dict.fromkeys(("DIR", "DIRECTORY", "SOURCE", "MOUNTPOINT", "PATH", "REPO"), _by_shell("dir")),
    **dict.fromkeys(("PATH...", "FROM", "TO"), _by_shell("dir")),
    **dict.fromkeys(("FILE", "IMAGE"), _by_shell("file")),
    "USER": _by_shell("user"),
    "GROUP": _by_shell("group"),
    "USER:@GROUP": _members,
    "MAP": _one_of("auto"),
    "OPTS": _o_options,
}
"""The completion of a value, by the metavar of its option or argument."""


def _candidates(metavar: str) -> Callable[[str], list[CompletionItem[Any]]] | None:
    """Return what completes a value with this metavar; None if only the user knows it."""
    choices = _choices(metavar)
    return _one_of(*choices) if choices else VALUES.get(metavar)


def metavar_of(param: click.Parameter) -> str:
    """Return the metavar of an option or argument, without brackets."""
    return (param.metavar or (param.name or "").upper()).strip("[]")


def _prepare(command: click.Command, args: list[str]) -> None:
    """Give each option of a command, and of the subcommand in ``args``, the type for its values."""
    context = click.Context(command)
    for param in command.params:
        candidates = _candidates(metavar_of(param))
        if param.type is click.STRING and candidates:
            param.type = _Value(candidates)
    if isinstance(command, click.Group):
        names = set(command.list_commands(context))
        for number, word in enumerate(args):
            if word in names and (below := command.get_command(context, word)) is not None:
                _prepare(below, args[number + 1 :])
                return
