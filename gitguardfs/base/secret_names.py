"""Recognises names of files that hold keys, passwords or tokens, ignoring case. Pure."""

from __future__ import annotations

import re

_EXAMPLE = re.compile(r".+\.(example|sample|template|dist|defaults?|pub)", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\.envrc|.*\.env(\..+)?", re.IGNORECASE)
_ALWAYS = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?|\.netrc|_netrc|\.git-credentials|\.pgpass|\.my\.cnf|\.htpasswd"
    r"|\.vault_pass(word)?|\.vault-token|.+\.(p12|pfx|jks|keystore|kdbx|ppk|tfstate)"
    r"|service[-_]account.*\.json|application_default_credentials\.json",
    re.IGNORECASE,
)
_USUALLY = re.compile(
    r".+\.(pem|key|p8)|\.npmrc|\.pypirc|credentials\.json|secrets?\.(ya?ml|json|toml)|.+\.tfvars"
    r"|.*token.*\.txt",
    re.IGNORECASE,
)
_SOMETIMES = re.compile(
    r".+\.asc|\.yarnrc(\.yml)?|pip\.conf|credentials(\.toml)?|config\.json|\.dockercfg|\.s3cfg"
    r"|settings\.local\.json",
    re.IGNORECASE,
)
_SETTINGS = re.compile(
    r".+\.(json|ya?ml|toml|ini|cfg|conf|config|properties)|\..+rc", re.IGNORECASE
)
_COPY = r"(\.(bak|backup|old|orig|save|sw[a-p]))?[~#]?"
"""The end of a copy that an editor or a user has made of a file."""
HIDDEN, EXAMPLES = rf"#?\.?({_ENVIRONMENT.pattern}|{_ALWAYS.pattern}){_COPY}", _EXAMPLE.pattern
"""Patterns of the names that ``is_hidden`` hides, and of those that it does not, in small letters.
They are extended regular expressions of a shell as well."""
_HIDDEN = re.compile(HIDDEN, re.IGNORECASE)
HIDDEN_TEXT = (
    "environment files and keys by their names: .env, .env.local, .envrc, id_rsa, *.p12 and"
    " others, but not .env.example or .env.template"
)
"""The names that ``is_hidden`` hides, for the help of options."""
DEPENDENCIES = frozenset({"node_modules", "site-packages", "dist-packages", ".venv", "vendor"})
"""Directories of published packages; the keys in their test data are no secrets."""


def holds_assignments(name: str) -> bool:
    """Return whether a file of this name sets variables (.env), whose values may be secrets."""
    return _matches(_ENVIRONMENT, name)


def is_secret(name: str) -> bool:
    """Return whether a file of this name is always a secret."""
    return _matches(_ALWAYS, name)


def is_hidden(name: str) -> bool:
    """Return whether ``--hide-secrets`` hides this name: of the two above, or of a copy of such."""
    return _matches(_HIDDEN, name)


def is_usually_secret(name: str) -> bool:
    """Return whether a file of this name usually holds a secret; includes the three above."""
    return is_hidden(name) or _matches(_USUALLY, name)


def may_hold_secret(name: str) -> bool:
    """Return whether a file of this name sometimes holds a secret; includes all of the above."""
    return is_usually_secret(name) or _matches(_SOMETIMES, name)


def is_settings(name: str) -> bool:
    """Return whether a file of this name holds settings of a program, perhaps with tokens."""
    return _matches(_SETTINGS, name)


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.fullmatch(name) is not None and not _EXAMPLE.fullmatch(name)
