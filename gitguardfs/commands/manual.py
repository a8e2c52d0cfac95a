"""Makes the manual pages from the text of the commands' ``--help``.

click-man is not used, for two reasons. install.sh makes the pages too, on systems that have only
click. And click-man drops the sections of gitguardfs's options, and the lines of examples.
"""

from __future__ import annotations

import datetime
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping

import click

import gitguardfs
from gitguardfs.commands.programs import NamedCommand, every_command

SECTIONS = {"gitguardfs": 1, "gitguard": 1, "vm-mount": 8}
"""The section of the manual for each program and its subcommands."""
HELPER_PAGE = "umount.fuse.gitguardfs.8"
"""The page of the program without a click command: written by hand, in ``files``."""
SEE_ALSO = {
    "gitguardfs": ("gitguard(1)", "vm-mount(8)", "umount.fuse.gitguardfs(8)", "bindfs(1)",
                   "mount(8)", "fuse(4)"),
    "gitguard": ("gitguardfs(1)", "vm-mount(8)"),
    "vm-mount": ("gitguardfs(1)", "gitguard(1)", "gitguard-units(1)", "gitguard-doctor(1)",
                 "fstab(5)", "systemd.unit(5)"),
}  # fmt: skip
_ESCAPES = str.maketrans({"\\": r"\e", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})


def pages() -> dict[str, str]:
    """Return the text of every page by its file name, such as ``gitguard-vm-up.1``."""
    date = _date()
    commands = list(every_command())
    found = {_file_name(one.words): _page(one, commands, date) for one in commands}
    helper = os.path.join(os.path.dirname(__file__), "files", HELPER_PAGE)
    with open(helper, encoding="utf-8") as file:
        text = file.read().replace("@DATE@", date).replace("@VERSION@", gitguardfs.__version__)
    return {**found, HELPER_PAGE: text}


def _date() -> str:
    """Return the pages' date: today, or SOURCE_DATE_EPOCH, which makes a build reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.now(datetime.UTC)
    when = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch.isdecimal() else now
    return when.date().isoformat()


def _file_name(words: tuple[str, ...]) -> str:
    return f"{'-'.join(words)}.{SECTIONS[words[0]]}"


def _reference(words: tuple[str, ...]) -> str:
    return f"{'-'.join(words)}({SECTIONS[words[0]]})"


def _page(one: NamedCommand, commands: Iterable[NamedCommand], date: str) -> str:
    name = "-".join(one.words)
    title = f'.TH "{_code(name.upper())}" "{SECTIONS[one.words[0]]}" "{date}"'
    first, *description = _paragraphs(inspect.cleandoc(one.command.help or ""))
    lines = [
        f'.\\" Made from the options of {" ".join(one.words)}.',
        f'{title} "gitguardfs {gitguardfs.__version__}" "gitguardfs"',
        ".SH NAME",
        f"{_code(name)} \\- {_prose(first[:1].lower() + first[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_code(' '.join(one.words))}",
        *(_term(word) for word in one.command.collect_usage_pieces(one.context)),
        ".SH DESCRIPTION",
        *_text([first, *description]),
        *_options(one),
        *_subcommands(one, commands),
        *_epilog(one.command.epilog or ""),
        ".SH SEE ALSO",
        ",\n".join(_link(each) for each in _see_also(one, commands)),
    ]
    return "\n".join(lines) + "\n"


def _options(one: NamedCommand) -> Iterator[str]:
    sections: dict[str, list[str]] = {}
    for param in one.command.get_params(one.context):
        record = param.get_help_record(one.context) if isinstance(param, click.Option) else None
        if record is None:
            continue
        # gitguardfs has sections: its options are too many for one list.
        option = getattr(param, "option", None)
        lines = sections.setdefault(option.section if option else "", [])
        term, text = record
        lines += [".TP", _term(term), _prose(text)]
        if option is not None and option.aliases:
            names = " and ".join(f"\\fB{_code(name)}\\fR" for name in option.aliases)
            lines.append(f"In \\fB\\-o\\fR also {names}.")
    yield ".SH OPTIONS"
    general = sections.pop("", [])
    for title, lines in sections.items():
        yield from (f".SS {_prose(title)}", *lines)
    if sections:
        yield ".SS General"
    yield from general


def _subcommands(one: NamedCommand, commands: Iterable[NamedCommand]) -> Iterator[str]:
    below = [each for each in commands if each.words[:-1] == one.words]
    if below:
        yield ".SH COMMANDS"
    for each in below:
        first = _paragraphs(inspect.cleandoc(each.command.help or ""))[0]
        yield from (".TP", _link(_reference(each.words)), _prose(first))


def _epilog(epilog: str) -> Iterator[str]:
    for paragraph in _paragraphs(inspect.cleandoc(epilog)):
        heading, colon, rest = paragraph.removeprefix("\b").strip("\n").partition(":")
        if heading == "Examples" and colon:
            example = inspect.cleandoc(rest)
            yield from (".SH EXAMPLES", ".nf", *_lines(example), ".fi")
        elif heading.startswith("Exit codes") and colon:
            yield from (".SH EXIT STATUS", _prose(f"{heading}:{rest}"))
        else:
            yield from (".SH NOTES", *_text([paragraph]))


def _see_also(one: NamedCommand, commands: Iterable[NamedCommand]) -> list[str]:
    if len(one.words) == 1:
        return list(SEE_ALSO[one.words[0]])
    siblings = [each.words for each in commands if each.words[:-1] == one.words[:-1]]
    found = [one.words[:-1], *(words for words in siblings if words != one.words)]
    return [*map(_reference, found), "gitguardfs(1)"]


# Text to roff


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")) if part.strip()]


def _text(paragraphs: Iterable[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if number > 0:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *_lines(paragraph.removeprefix("\b").strip("\n")), ".fi")
        else:
            yield _prose(paragraph)


def _lines(text: str) -> Iterator[str]:
    yield from (_safe(_code(line)) if line else ".sp" for line in text.splitlines())


def _prose(text: str) -> str:
    """Return running text as one line; options and text in backquotes become bold."""
    parts = re.split(r"`+([^`]+)`+", " ".join(text.split()))
    return _safe(
        "".join(
            f"\\fB{_code(part)}\\fR" if number % 2 else _with_options(part)
            for number, part in enumerate(parts)
        )
    )


def _with_options(text: str) -> str:
    """Escape running text. Only a hyphen that begins an option is a minus sign, for copying."""
    found = re.split(r"(?<![\w-])(-{1,2}[a-zA-Z][\w-]*)", text)
    return "".join(
        f"\\fB{_code(part)}\\fR" if number % 2 else part.translate(_ESCAPES)
        for number, part in enumerate(found)
    )


def _term(text: str) -> str:
    """Format an option with its value, or part of a synopsis: names bold, values italic."""
    words = re.split(r"(--?[a-zA-Z][\w-]*|[A-Z][A-Z_:@]+|(?<=\[)[\w|-]+(?=\]))", text)
    shown = []
    for number, word in enumerate(words):
        font = "B" if word.startswith("-") else "I"
        shown.append(f"\\f{font}{_code(word)}\\fR" if number % 2 else _code(word))
    return _safe("".join(shown))


def _link(reference: str) -> str:
    name, _, rest = reference.partition("(")
    return f"\\fB{_code(name)}\\fR({rest}"


def _code(text: str) -> str:
    """Escape text that a reader types or copies as it is."""
    return text.translate(_ESCAPES).replace("-", r"\-")


def _safe(line: str) -> str:
    r"""Prevent a line's first character from starting a roff request."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def write(directory: str, found: Mapping[str, str]) -> None:
    """Write the pages below ``directory``, in a directory for each section. Raises OSError."""
    for name, text in found.items():
        section = os.path.join(directory, f"man{name[-1]}")
        os.makedirs(section, exist_ok=True)
        with open(os.path.join(section, name), "w", encoding="utf-8") as file:
            file.write(text)
