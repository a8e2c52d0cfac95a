"""The one normal form of hosts and of paths, for lines of the allowlist and for requests. Pure.

What a server might read in two ways has no normal form: it is refused, never interpreted.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_TARGET = 8192
"""Characters of a path with its query; servers refuse longer ones as well."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})", re.ASCII)
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_AMBIGUOUS_ESCAPE = re.compile(r"%(?:[01][0-9A-F]|7F|5C|25[0-9A-Fa-f]{2})", re.ASCII)
"""Control characters, a backslash, an escape that was escaped twice."""


class BadUrlError(ValueError):
    """A host, port or path that has no normal form; the text says why."""


def normal_host(text: str) -> str:
    """Return a host name or address in lower case and ASCII, IPv6 without brackets.

    Raises BadUrlError.
    """
    if not text.isascii():  # mitmproxy decodes xn-- of a request
        try:
            text = text.encode("idna").decode()
        except UnicodeError:
            raise BadUrlError("the host name cannot be written in ASCII") from None
    host = text.lower()
    if ":" in host:
        return _ipv6(host)
    if host.endswith("."):
        raise BadUrlError("the host name ends with a dot")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise BadUrlError("not a host name")
    last = host.rpartition(".")[2]
    if last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last, re.ASCII):
        try:  # what the C library takes for an address (127.1, 0x7f000001) must be one as it stands
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadUrlError("not an IPv4 address of four decimal numbers") from None
    return host


def _ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise BadUrlError("not an IPv6 address") from None
    if address.scope_id is not None:
        raise BadUrlError("an IPv6 address with a zone")
    return address.compressed


def normal_port(text: str, scheme: str) -> int:
    """Return the port that ``text`` names, the scheme's own if it is empty. Raises BadUrlError."""
    if not text:
        return DEFAULT_PORTS[scheme]
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text, re.ASCII) or int(text) > 65535:
        raise BadUrlError("not a port from 1 to 65535")
    return int(text)


def split_authority(text: str) -> tuple[str, str]:
    """Split ``HOST[:PORT]`` into the normal host and the text of the port. Raises BadUrlError."""
    if "@" in text:
        raise BadUrlError("a user name before the host")
    if not text.isascii():
        raise BadUrlError("the host is not ASCII; write the xn-- form")
    found = re.fullmatch(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^:\[\]]+))(?::([^:]*))?", text)
    if found is None:
        raise BadUrlError("not HOST or HOST:PORT")
    if found[3] == "":
        raise BadUrlError("a colon without a port")
    return normal_host(found[1] or found[2]), found[3] or ""


def authority(scheme: str, host: str, port: int) -> str:
    """Return ``host[:port]`` as it stands in a URL, the port only if it is not the scheme's."""
    shown = f"[{host}]" if ":" in host else host
    return shown if DEFAULT_PORTS.get(scheme) == port else f"{shown}:{port}"


def normal_target(text: str, *, is_pattern: bool = False) -> str:
    """Return a path and its query with unneeded escapes undone, the others in upper case.

    ``%2F`` stays apart from ``/``, and case matters. A query with a ``%`` that is no escape stays
    as it is; in a pattern there may be none, since a ``*`` could complete it. A ``*`` of a request
    stands for itself, as ``%2A``. Raises BadUrlError for what servers are known to read in another
    way: dot segments, backslashes, control characters, double escapes, a path that is not UTF-8.
    """
    if not text.startswith("/"):
        raise BadUrlError("the path does not begin with /")
    if text.startswith("//"):
        raise BadUrlError("the path begins with //")
    if len(text) > MAX_TARGET:
        raise BadUrlError(f"longer than {MAX_TARGET} characters")
    if not all("!" <= character <= "~" for character in text):
        raise BadUrlError("a blank, a control character, or one that is not ASCII, in the URL")
    if "\\" in text:
        raise BadUrlError("a backslash in the URL")
    if "#" in text:
        raise BadUrlError("a # in the URL")
    path, mark, query = text.partition("?")
    if _BROKEN_ESCAPE.search(text if is_pattern else path):
        raise BadUrlError("a % without two hexadecimal digits")
    if not is_pattern:  # so that no client can have a wildcard in the line that is offered for it
        path, query = path.replace("*", "%2A"), query.replace("*", "%2A")
    path = _ESCAPE.sub(_normal_escape, path)
    if found := _AMBIGUOUS_ESCAPE.search(path):
        raise BadUrlError(f"{found[0]} in the path, which servers read in different ways")
    if _has_dot_segment(path):
        raise BadUrlError("a . or .. in the path")
    if not _BROKEN_ESCAPE.search(query):  # else what is undone could complete another escape
        query = _ESCAPE.sub(_normal_escape, query)
    return path + mark + query


def _has_dot_segment(path: str) -> bool:
    """Return whether a server could find a ``.`` or ``..`` in a path, escaped or not.

    Servers cut a segment at ``;``, strip blanks, decode before they look for ``?`` and ``#``, or
    fold wide letters to plain ones. Raises BadUrlError if the path is not UTF-8: what decoders
    put in place of invalid bytes differs, and some read a ``.`` in too long a form.
    """
    try:
        decoded = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path).encode("latin-1").decode()
    except UnicodeDecodeError:
        raise BadUrlError("the path is not valid UTF-8") from None
    folded = unicodedata.normalize("NFKC", decoded)
    segments = re.split(r"[/\\]", folded)
    return any(re.split(r"[;?#\s]", part.lstrip())[0] in (".", "..") for part in segments)


def _normal_escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0].upper()
