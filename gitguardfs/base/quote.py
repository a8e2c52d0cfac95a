"""One quoting function for each format that gitguardfs writes. Pure.

Each is the inverse of the format's reader, for every text that the format can carry. Texts that it
cannot carry (such as a mount tag with a newline) are refused where the value is validated.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex

from gitguardfs.base.errors import shown

# Not printable in YAML (its specification, 5.1), or a line break there.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def shell(words: list[str]) -> str:
    """Return a command line for a POSIX shell."""
    return shlex.join(words)


def shell_printable(words: list[str]) -> str:
    """Return a command line for bash, zsh or ksh that has printable characters alone.

    Control characters, runs of blanks, and bytes that are not UTF-8 become ``$'\\ooo'``, which fish
    refuses. Everything else is right for fish too.
    """
    return " ".join(_plain(word) if word == shown(word) else f"$'{_octal(word)}'" for word in words)


def _plain(word: str) -> str:
    """Return a quoted word with each backslash outside of quotes: fish reads it within as well."""
    return "\\\\".join(part and shlex.quote(part) for part in word.split("\\")) or "''"


def _octal(word: str) -> str:
    return "".join(
        c
        if c == shown(c) and c not in " '\\"
        else "".join(f"\\{byte:03o}" for byte in os.fsencode(c))
        for c in word
    )


def shell_lines(words: list[str], width: int = 90) -> str:
    """Return a command line for a POSIX shell, broken into lines of ``width`` characters.

    An option and its values stay on one line, even if they do not fit.
    """
    lines: list[str] = []
    for option in _options(words):
        if lines and len(lines[-1]) + 1 + len(option) <= width:
            lines[-1] += f" {option}"
        else:
            lines.append(f"  {option}" if lines else option)
    return " \\\n".join(lines)


def _options(words: list[str]) -> list[str]:
    """Return the quoted words, each option together with its values."""
    found: list[str] = []
    for word in words:
        if found and not word.startswith("-"):
            found[-1] += f" {shlex.quote(word)}"
        else:
            found.append(shlex.quote(word))
    return found


def qemu(value: str) -> str:
    """Return a value within a QEMU option: commas are doubled (qemu(1), "options")."""
    return value.replace(",", ",,")


def xml(value: str) -> str:
    """Return the value of an XML attribute, in its quotes."""
    # Not xml.sax.saxutils.quoteattr: it loads urllib.request.
    return f'"{html.escape(value)}"'


def yaml(value: str) -> str:
    """Return a YAML string in double quotes: JSON's escapes are valid YAML."""
    return _NOT_YAML.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(value, ensure_ascii=False))


def systemd(value: str) -> str:
    """Return a value of a unit file in which specifiers are expanded: ``%`` is doubled."""
    return value.replace("%", "%%")


def systemd_word(value: str) -> str:
    r"""Return one quoted word of a list in a unit file (systemd.syntax(7), "Quoting").

    Control characters become ``\x0a``. Environment= and ExecStart= decode that; lists of paths,
    such as RequiresMountsFor=, do not.
    """
    escaped = re.sub(r'["\\]', r"\\\g<0>", value)
    escaped = re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\x{ord(m[0]):02x}", escaped)
    return f'"{systemd(escaped)}"'


def systemd_argument(value: str) -> str:
    """Return one argument of ExecStart=, where ``$`` is expanded as well."""
    return systemd_word(value.replace("$", "$$"))


def systemd_unit_name(path: str) -> str:
    r"""Return a path as part of a unit's name, like ``systemd-escape -p``."""
    trimmed = re.sub(r"/+", "/", path).strip("/")
    if not trimmed:
        return "-"
    data = os.fsencode(trimmed)
    return "".join(
        "-"
        if b == 0x2F
        else chr(b)
        if chr(b).isascii() and (chr(b).isalnum() or chr(b) in ":_.") and not (i == 0 and b == 0x2E)
        else f"\\x{b:02x}"
        for i, b in enumerate(data)
    )


def file_context(path: str) -> str:
    r"""Return a path as a regular expression for semanage-fcontext(8); blanks are ``\s``."""
    return re.sub(
        r"[\s.^$?*+|\[\](){}\\]",
        lambda m: r"\s" if m[0].isspace() else f"\\{m[0]}",
        path,
        flags=re.ASCII,
    )
