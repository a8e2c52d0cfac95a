"""The normal form of hosts, ports and paths, for allowlist lines and requests. Pure.

What servers could read in two ways has no normal form and raises BadUrlError.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_TARGET = 8192
"""Characters of a path with its query; servers refuse longer ones too."""
OWN_HOST = "gitguard.invalid"
"""The proxy's own name for its clients; no line can name it, so no request for it is sent on. By
RFC 6761 no host has a name below .invalid. Below .internal, a network may have some."""
BLOCKED_URL = f"http://{OWN_HOST}/blocked"
"""The URL of the proxy's one page of its own: the last blocked requests."""

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})", re.ASCII)
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_AMBIGUOUS_ESCAPE = re.compile(r"%(?:[01][0-9A-F]|7F|5C|25[0-9A-Fa-f]{2})", re.ASCII)
"""Escapes of control characters, of backslashes, and of escapes."""


class BadUrlError(ValueError):
    """A host, port or path that has no normal form; the text says why."""


def normal_host(text: str) -> str:
    """Return a host name or address in lower case and ASCII, IPv6 without brackets.

    Raises BadUrlError.
    """
    if not text.isascii():  # mitmproxy has decoded the xn-- form of a request
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
        try:  # the C library reads 127.1 and 0x7f000001 as addresses; only one form passes
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
    """Return the port in ``text``, the scheme's default if it is empty. Raises BadUrlError."""
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
    """Return ``host[:port]`` for a URL; the scheme's default port is left out."""
    shown = f"[{host}]" if ":" in host else host
    return shown if DEFAULT_PORTS.get(scheme) == port else f"{shown}:{port}"


def normal_target(text: str, *, is_pattern: bool = False) -> str:
    """Return a path and its query with unneeded escapes undone, the others in upper case.

    ``%2F`` stays different from ``/``, and case matters. A query with a ``%`` outside of an escape
    is not changed. A pattern must not have one, since a ``*`` could complete it. A ``*`` in a
    request becomes ``%2A``.

    Raises BadUrlError for what servers read in different ways: dot segments, backslashes, control
    characters, double escapes, and a path that is not UTF-8. This includes a pattern in which a
    ``*`` divides the escapes of one character.
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
    if not is_pattern:  # else a client could put a wildcard into the line that `vm blocked` offers
        path, query = path.replace("*", "%2A"), query.replace("*", "%2A")
    path = _ESCAPE.sub(_normal_escape, path)
    if found := _AMBIGUOUS_ESCAPE.search(path):
        raise BadUrlError(f"{found[0]} in the path, which servers read in different ways")
    if _has_dot_segment(path):
        raise BadUrlError("a . or .. in the path")
    if not _BROKEN_ESCAPE.search(query):  # else an undone escape could complete another one
        query = _ESCAPE.sub(_normal_escape, query)
    return path + mark + query


def _has_dot_segment(path: str) -> bool:
    """Return whether a server could find a ``.`` or ``..`` segment in a path, escaped or not.

    Some servers end a segment at ``;``, strip blanks, decode before looking for ``?`` and ``#``,
    or fold wide letters to plain ones. Raises BadUrlError if the path is not UTF-8: decoders
    replace invalid bytes in different ways, and some read an overlong form as a ``.``.
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
