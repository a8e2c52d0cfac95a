"""Parses options of the command line and of ``-o`` into one dictionary.

``-o`` has our own options by their names, and those that mount(8), fstab and mount.fuse3 pass
(mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS"; systemd.mount(5), "FSTAB").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from gitguardfs.base.errors import UserError
from gitguardfs.options.table import BY_NAME, OPTIONS, Option

RawOptions = dict[str, object]
"""Values by ``Option.key``: a string, a list of strings where several add up, or the value of a
flag. ``kernel`` is the list of options that are only passed to the kernel."""

MAX_CACHE_TIMEOUT = 86400

_KERNEL = {"noatime", "sync", "dirsync", "noexec", "allow_other"}

# Ignored: always on, the default, or meant for other programs that read fstab.
_TOLERATED = {
    "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "group", "owner",
    "suid", "nosuid", "dev", "nodev", "exec", "async", "atime", "diratime", "nodiratime",
    "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime",
    "silent", "loud", "default_permissions", "nomand", "noiversion", "symfollow",
    "use_ino", "readdir_ino", "big_writes", "large_read", "hard_remove", "kernel_cache",
    "auto_cache", "async_read", "sync_read", "noforget", "intr", "splice_read", "splice_write",
    "splice_move", "no_splice_read", "no_splice_write", "no_splice_move",
}  # fmt: skip
_TOLERATED_PREFIXES = ("x-", "X-", "comment=", "subtype=", "setuid=", "max_read=", "max_write=",
                       "max_readahead=", "remember=")  # fmt: skip


_TIMEOUTS = ("attr_timeout=", "entry_timeout=", "negative_timeout=", "ac_attr_timeout=")
"""libfuse's options for ``cache-timeout``; the smallest value counts."""


_REFUSED = {
    "remount": ("remount is not supported", "unmount and mount again"),
    "umask": (
        "umask is not supported",
        "perms changes the permissions that are shown: perms=0755 does what umask=022 did",
    ),
    "allow_root": (
        "allow_root is not supported: the kernel lets in all users, or the mounting user only",
        "leave it out; no-allow-other is for the mounting user only",
    ),
    "auto_unmount": (
        "auto_unmount would leave the bare directory open after a crash",
        "leave it out: the next start replaces a dead mount",
    ),
    "writeback_cache": (
        "with writeback_cache the kernel would not see what the host changes", "leave it out"
    ),
    "modules": ("modules of libfuse would change names after the guard's check", "leave it out"),
}  # fmt: skip
"""By option of mount(8) and libfuse: why it is refused, and what to do."""


_SPELLINGS = {
    "-l": "--tag",
    "--label": "--tag",
    "--type": "--transport",
    "-mm": "--map-mount",
}
"""Old and short spellings that click does not know: --help shows one name for each option, and
click would read ``-mm`` as ``-m`` with the value ``m``."""


def respelled(words: Sequence[str]) -> list[str]:
    """Return a command line with each option of ``_SPELLINGS`` replaced by its present name."""
    end = words.index("--") if "--" in words else len(words)
    return [*map(_respelled, words[:end]), *words[end:]]


def _respelled(word: str) -> str:
    name, equals, value = word.partition("=")
    if name in _SPELLINGS:
        return f"{_SPELLINGS[name]}{equals}{value}"
    if word.startswith("-mm/"):  # glued to its value, as a letter may be
        return f"{_SPELLINGS['-mm']}={word[3:]}"
    if re.match("-l[^-=]", word):
        return f"{_SPELLINGS['-l']}={word[2:]}"
    return word


def add(given: RawOptions, option: Option, value: object) -> None:
    """Add an option to those that were given; ``value`` is None for a flag."""
    value = option.const if value is None else value
    if option.multiple:
        entries = given.setdefault(option.key, [])
        assert isinstance(entries, list)
        entries.append(value)
    else:
        if option.key == "seal" and given.get("seal", value) != value:
            raise UserError("seal and no-seal contradict one another")
        given[option.key] = value


def merge(weaker: RawOptions, stronger: RawOptions) -> RawOptions:
    """Return both merged: ``stronger`` takes precedence, lists are joined. Raises UserError."""
    if weaker.get("seal") is True and stronger.get("seal") is False:
        raise UserError("seal and no-seal contradict one another")
    merged = {**weaker, **stronger}
    for key, value in stronger.items():
        more = weaker.get(key)
        if isinstance(value, list) and isinstance(more, list):
            merged[key] = [*value, *more]
    return merged


def parse_o(values: Iterable[str]) -> RawOptions:
    """Parse the values of ``-o``. Raises UserError for an unknown option and for ``remount``."""
    given: RawOptions = {}
    kernel: list[str] = []
    timeouts: list[float] = []
    words = split_values(values)
    for word in words:
        name, has_value, value = word.partition("=")
        option = BY_NAME.get(name.replace("_", "-"))
        if word in _TOLERATED or word.startswith(_TOLERATED_PREFIXES):
            continue
        if word in _KERNEL:
            kernel.append(word)
        elif word.startswith(_TIMEOUTS):
            timeouts.append(seconds(value))
        elif name in _REFUSED:
            raise UserError(*_REFUSED[name])
        elif option is None:
            raise UserError(f"unknown option {word!r} in -o", "see gitguardfs --help")
        elif bool(has_value) != bool(option.metavar):
            needs = "takes no value" if has_value else "needs a value"
            raise UserError(f"option {name!r} in -o {needs}")
        else:
            add(given, option, value if has_value else None)
    if _wants_devices(words):
        kernel.append("dev")
    if kernel:
        given["kernel"] = kernel
    if timeouts:
        given.setdefault("cache_timeout", str(min(timeouts)))
    return given


def spelling_of(name: str) -> str | None:
    """Return how an option is written that the command line does not know as ``--name``.

    Returns None if ``-o`` does not know it either. Raises UserError for one that is refused there.
    """
    option = BY_NAME.get(name.replace("_", "-"))
    if option is not None and not option.in_o_only:
        return f"--{option.name}"
    if option is None and name not in {*_KERNEL, *_TOLERATED}:
        if name in _REFUSED:
            raise UserError(*_REFUSED[name])
        return None
    return f"-o {name}=..." if option is not None and option.metavar else f"-o {name}"


def _wants_devices(words: Sequence[str]) -> bool:
    # mount.fuse3 adds "dev,suid" to every line that does not say otherwise. So dev was written by
    # the administrator only where suid is missing.
    wanted = [word for word in words if word in ("dev", "nodev")][-1:] == ["dev"]
    return wanted and "suid" not in words


def spelled(given: RawOptions) -> tuple[str, ...]:
    """Return the options as in ``-o``, unquoted."""
    found: dict[str, list[str]] = {}
    for option in OPTIONS:
        value = given.get(option.key)
        if option.metavar and value is not None:
            values = value if isinstance(value, list) else [value]
            found[option.key] = [f"{option.name}={one}" for one in values]
        elif not option.metavar and value == option.const:
            found.setdefault(option.key, [option.name])
    kernel = given.get("kernel", [])
    assert isinstance(kernel, list)
    return (*chain(*found.values()), *kernel)


def seconds(text: str) -> float:
    """Parse ``--cache-timeout``, in seconds. Raises UserError if it is no number or too large."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"cache-timeout: {text!r} is not a number of seconds") from None
    if not 0 <= value <= MAX_CACHE_TIMEOUT:
        raise UserError(f"cache-timeout: {text} is not between 0 and {MAX_CACHE_TIMEOUT} seconds")
    return value


def split_o(text: str) -> list[str]:
    r"""Split at commas; ``\,`` is a comma and ``\\`` a backslash within a value."""
    parts = re.findall(r"(?s)((?:[^,\\]|\\.|\\\Z)*)(?:,|\Z)", text)
    return [re.sub(r"\\([,\\])", r"\1", part) for part in parts if part]


def split_values(values: Iterable[str]) -> tuple[str, ...]:
    """Return the options in all values of ``-o``."""
    return tuple(option for value in values for option in split_o(value))


def quote_o(value: str) -> str:
    r"""Return a value as ``split_o`` reads it back: ``\,`` for a comma, ``\\`` for a backslash."""
    return value.replace("\\", "\\\\").replace(",", "\\,")


def asks_for_seal(texts: Iterable[str], given: RawOptions) -> bool | None:
    """Return whether ``-o`` texts and options ask for a seal, even if they are invalid otherwise.

    Returns None if neither seal nor no-seal is among them, False if both are.
    """
    words = [word.replace("_", "-") for word in split_values(texts)]
    if given.get("seal") is False or "no-seal" in words or "noseal" in words:
        return False
    return True if given.get("seal") or "seal" in words else None


def check_glob(glob: str, option: str = "") -> None:
    """Raise UserError for a pattern that no name can match."""
    if not glob:
        raise UserError(f"{option}'' is an empty name, which no file has", "leave it out")
    if "/" in glob:
        raise UserError(
            f"{option}{glob!r} is not a pattern for one path component", "leave out the /"
        )
