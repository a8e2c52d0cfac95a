"""Sets, changes and removes the secrets of a VM: the record, and the values in the store."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from gitguardfs.base.errors import Exit, UserError, shown
from gitguardfs.host.credentials import secrets, store
from gitguardfs.host.credentials.presets import PRESETS
from gitguardfs.host.credentials.secrets import Kind, Place, Secret
from gitguardfs.host.egress import requests, urls
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.egress.files import read_allowlist
from gitguardfs.host.egress.presets import PRESETS as ALLOWED
from gitguardfs.host.egress.urls import BadUrlError
from gitguardfs.host.vm import settings
from gitguardfs.host.vm.guest_files import environment
from gitguardfs.host.vm.state import State, create, take
from gitguardfs.options import config_files

LOCK = "secrets.lock"
"""Held while secrets are changed. It lies beside the states, so that a reset does not delete it."""
PATIENCE = store.WRITE_LIMIT + 10.0
"""Seconds to wait for another command, which may wait for the keyring."""
QUIET = 1.0
"""Seconds of that without a word."""
_RESERVED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|TERM|LANG|LANGUAGE|TZ|IFS|ENV|CDPATH|MAIL|EDITOR|PAGER"
    r"|DISPLAY|HOSTNAME|TMPDIR|NODE_OPTIONS|RUSTC_WRAPPER|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|CLASSPATH"
    r"|JAVA_TOOL_OPTIONS|RUSTFLAGS|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|GLOBIGNORE|(?:GNU)?MAKEFLAGS"
    r"|MFLAGS|MAKEFILES|GO(?:PROXY|FLAGS|ENV|ROOT|PATH|BIN|SUMDB|PRIVATE|TOOLCHAIN)"
    r"|(?:NO|ALL|FTP)_PROXY|(?:NPM_CONFIG|PIP)_.*"
    r"|GIT_(?:CONFIG|SSH|EXEC_PATH|DIR|WORK_TREE|ASKPASS|PROXY).*|(?:LD|LC|XDG|SSH|BASH|DBUS|DYLD)_.*"
    r"|PYTHON.*|PERL5?.*|RUBYOPT|RUBYLIB|BASH|PS[0-4]|BROWSER|LESS(?:OPEN|CLOSE)?"
    r"|(?:JAVA|CARGO|RUSTUP)_HOME|NODE_PATH|OPENSSL_CONF"
)
"""Variables of the system and of interpreters, whose programs a placeholder would break."""
_KEY = re.compile(
    r"gh[pousr]_|github_pat_|npm_[A-Za-z0-9]{16}|[spr]k[_-]|pypi-|glpat-|xox[a-z]-|AKIA|AIza|eyJ"
)
"""Beginnings of services' keys and tokens."""
_RESERVED_FIELDS = frozenset(
    (
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer",
        "expect", "keep-alive", "proxy-authorization", "proxy-connection", "cookie2",
        "content-encoding",
    )
)  # fmt: skip
_SENT = {
    Kind.BEARER: ("{} ", "Authorization:"), Kind.BASIC: ("Basic ", "{}:", "Authorization:"),
    Kind.HEADER: ("{}:",), Kind.QUERY: ("{}=",),
}  # fmt: skip
"""Texts before the value in a request. {} is the place's word."""
_ORDINARY = """
get post put patch delete head options http/1.1 host accept: */* accept-encoding: gzip, deflate, br
accept-language: en-us,en;q=0.9 application/json application/x-www-form-urlencoded text/html
application/octet-stream multipart/form-data; boundary=---------------------------- text/plain
text/event-stream charset=utf-8 authorization: bearer basic token connection: keep-alive upgrade
websocket cache-control: no-cache no-store max-age=0 content-length: content-type: transfer-encoding
chunked 100-continue user-agent: mozilla/5.0 python-requests/ python-urllib/ node-fetch curl/ git/
x-requested-with: xmlhttprequest if-none-match if-modified-since origin referer cookie
sec-websocket- sec-fetch-mode cors same-origin grant_type=client_credentials&password=
&username=&refresh_token= access_token client_id client_secret api_key api-key signature
"""
"""Words of ordinary requests, in lower case: a value among them would be found in each."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""The name of a header field (RFC 9110)."""


def place(
    host: str, is_bearer: bool, user: str | None, field: str | None, parameter: str | None
) -> Place:
    """Return the place that the options name. Raises UserError."""
    for text in (host if "." not in host else "", user, field, parameter):
        _check_no_key(text or "")
    if "/" in host:
        raise UserError(f"--host {shown(host)}: not HOST or HOST:PORT", "leave out https:// and /")
    try:
        name, port = urls.split_authority(host)
        number = urls.normal_port(port, "https")
    except BadUrlError as error:
        raise UserError(f"--host {shown(host)}: {error}") from None
    if name == urls.OWN_HOST:
        raise UserError(f"--host {host}: the proxy answers it itself, and sends nothing there")
    given: dict[Kind, str | None] = {
        Kind.BEARER: "Bearer" if is_bearer else None,
        Kind.BASIC: user, Kind.HEADER: field, Kind.QUERY: parameter,
    }  # fmt: skip
    chosen = [(kind, word) for kind, word in given.items() if word is not None]
    if len(chosen) != 1:
        raise UserError(
            "say where the service expects the value",
            "give one of --bearer, --basic USER, --header NAME, --query NAME",
        )
    kind, word = chosen[0]
    if kind is Kind.BASIC and not re.fullmatch(r"[!-9;-~]*", word):
        raise UserError(f"--basic {shown(word)}: a colon, a blank or a character that is not ASCII")
    if kind is Kind.HEADER and (
        not _TOKEN.fullmatch(word)
        or word.lower() in _RESERVED_FIELDS
        or requests.is_instead_of_url(word.encode())
    ):
        raise UserError(f"--header {shown(word)}: not a field that can carry a secret")
    if kind is Kind.QUERY and not re.fullmatch(r"[A-Za-z0-9._~-]+", word):
        raise UserError(f"--query {shown(word)}: letters, digits and . _ ~ - are possible")
    return Place(name, number, kind, word)


def check_name(name: str) -> None:
    """Raise UserError if a secret cannot have this name: it is a variable in the guest."""
    _check_no_key(name)
    if not secrets.NAME.fullmatch(name):
        why = f"to set a preset's: --preset {name}" if name in PRESETS else (
            "it is a variable in the guest: letters, digits and _, such as EXAMPLE_TOKEN"
        )  # fmt: skip
        raise UserError(f"{shown(name)} cannot be the name of a secret", why)
    if is_reserved(name):
        raise UserError(
            f"{name} cannot be the name of a secret: programs in the guest need that variable",
            "choose another name",
        )


def is_reserved(name: str) -> bool:
    """Return whether the guest or its programs need this variable for themselves."""
    known = {variable.upper() for variable in environment()}
    return name.upper() in known or _RESERVED.fullmatch(name.upper()) is not None


def holds_key(text: str) -> bool:
    """Return whether a text has a word that begins like a key or token."""
    return re.search(rf"(?<![A-Za-z0-9_-])(?:{_KEY.pattern})", text) is not None


def _check_no_key(text: str) -> None:
    if _KEY.match(text):
        raise UserError(
            "an argument begins like a key or token, and is no name",
            "others may have seen it: replace it at its service; the value is asked for",
        )


def check_is_value(value: str, name: str, places: tuple[Place, ...]) -> None:
    """Raise UserError for a value that was given in a wrong place too, or with its word.

    Also for one that ordinary requests hold: the first of them would end its use.
    """
    if value in {name, *(place.word for place in places)}:
        raise UserError(
            "the value was an argument too, in place of a name",
            "others may have seen it: replace it at its service; nothing was kept",
        )
    ordinary = (_ORDINARY, secrets.new_placeholder(name), *(place.host for place in places))
    if any(value.lower() in text.lower() for text in ordinary):
        raise UserError(
            "the value is a word that ordinary requests hold",
            "take one that nobody can guess; nothing was kept",
        )
    for place in places:
        for before in _SENT[place.kind]:
            start = before.format(place.word)
            if value.lower().startswith(start.lower()):
                raise UserError(
                    f"the value begins with {start}, which programs in the guest send themselves",
                    "leave that out; nothing was kept",
                )


def named(state: State, name: str) -> Secret:
    """Return a secret of the VM. Raises UserError if there is none, OSError."""
    for secret in secrets.load(state.files.directory):
        if secret.name == name:
            return secret
    raise UserError(
        f"this VM has no secret {shown(name)}", "gitguard vm secret list names those that it has"
    )


def check_new(state: State, name: str) -> None:
    """Raise UserError if the VM has a secret of this name, OSError."""
    if any(secret.name == name for secret in secrets.load(state.files.directory)):
        raise UserError(
            f"this VM has a secret {name}",
            f"gitguard vm secret rotate {name} changes its value, remove {name} deletes it",
        )


@contextmanager
def changing(state: State) -> Iterator[None]:
    """Let no other command change secrets meanwhile, of this VM or another. UserError, OSError.

    Each change is of a record and of a value, and a keyring may ask its user in between.
    """
    directory = state.files.directory.parent.parent
    config_files.make_private_directory(directory)
    path = str(directory / LOCK)
    fd = take(path, QUIET)
    if fd is None:
        print("waiting for another command that changes secrets", file=sys.stderr)
        fd = take(path, PATIENCE)
    if fd is None:
        raise UserError(
            "another gitguard vm command is changing secrets",
            "answer what the keyring asks there, or end that command", Exit.SYSTEM,
        )  # fmt: skip
    try:
        yield
    finally:
        os.close(fd)


def add(state: State, name: str, places: tuple[Place, ...], preset: str, value: str) -> Secret:
    """Keep the value of a new secret, and record the secret. Raises UserError, OSError.

    What a killed process has kept and not recorded is replaced, or removed with its name.
    """
    directory = state.files.directory
    with changing(state):
        check_new(state, name)
        is_first = not state.exists
        create(state)  # first: a reset deletes what a killed process has kept
        try:
            kept = store.write(secrets.key(directory, name), value)
            secret = Secret(name, secrets.new_placeholder(name), places, kept, preset)
            try:
                secrets.save(directory, [*secrets.load(directory), secret])
            except BaseException:
                store.delete(secrets.key(directory, name))
                raise
        except BaseException:
            if is_first:
                with suppress(OSError):  # another command has files in it
                    os.rmdir(directory)
            raise
        if is_first:
            settings.save(state, settings.load(state))  # vm list names the project
        return secret


def rotate(state: State, name: str, value: str) -> Secret:
    """Keep another value of a secret. Its placeholder stays. Raises UserError, OSError."""
    directory = state.files.directory
    with changing(state):
        secret = named(state, name)
        new = replace(secret, kept=store.write(secrets.key(directory, name), value))
        if new != secret:
            others = secrets.load(directory)
            secrets.save(directory, [new if one == secret else one for one in others])
        return new


def remove(state: State, name: str) -> str:
    """Remove a secret, and delete its value; return "", or a line about the value if it remains.

    Then it can be removed again, as can a value that is not recorded. Raises UserError, OSError.
    """
    directory = state.files.directory
    with changing(state):
        found = secrets.load(directory)
        if name not in _names_of_values(state):
            named(state, name)
        secrets.save(directory, [secret for secret in found if secret.name != name])
        return _delete_value(state, name)


def delete_values(state: State) -> list[str]:
    """Delete the values of all secrets; return a line for each that could not be deleted.

    The caller is ``changing`` them.
    """
    names: set[str] = set()
    left: list[str] = []
    for known in (_names_of_values, _names_in_record):
        try:
            names.update(known(state))
        except (UserError, OSError) as error:
            left.append(f"values of secrets may remain: {error}")
    return [*left, *filter(None, (_delete_value(state, name) for name in sorted(names)))]


def _names_in_record(state: State) -> list[str]:
    return [secret.name for secret in secrets.load(state.files.directory)]


def _names_of_values(state: State) -> list[str]:
    """Return the names of the values that the store has, also of those that no record names."""
    beginning = secrets.key(state.files.directory, "")
    return [key.removeprefix(beginning) for key in store.keys(beginning)]


def _delete_value(state: State, name: str) -> str:
    """Delete a value; return "", or a line about it if it was not deleted."""
    key = secrets.key(state.files.directory, name)
    what = f"the value of {name} (in a keyring: {shown(store.name_in_keyring(key))})"
    try:
        is_deleted = store.delete(key)
    except (UserError, OSError) as error:
        again = f"gitguard vm secret remove {shown(name)} tries again"
        return f"{what} was not deleted: {error}; {again}"
    return "" if is_deleted else f"{what} is not there, as far as this session can see"


def not_allowed(state: State, secret: Secret) -> list[str]:
    """Return a hint if the allowlist allows no request to a secret's hosts."""
    files = state.files
    try:
        rules = Allowlist.parse(read_allowlist(files)).rules if files.allowlist.exists() else ()
    except UserError:
        return []  # `vm status` says so
    hosts = {(place.host, place.port) for place in secret.places}
    if any(rule.scheme == "https" and (rule.host, rule.port) in hosts for rule in rules):
        return []
    preset = next((one for one in (secret.preset, f"{secret.preset}-read") if one in ALLOWED), "")
    how = f"gitguard vm up --allow {preset} adds some" if preset else "gitguard vm allow adds one"
    return [f"No line of the allowlist allows a request to these hosts yet: {how}."]
