"""Looks for files in the share that hold keys, passwords or tokens, by name and content."""

from __future__ import annotations

import os
import re
from stat import S_IFREG, S_IROTH

from gitguardfs.audit import fixes, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.config_check import TOKEN
from gitguardfs.audit.walk import Directory, Unread, read_file
from gitguardfs.findings import Severity

READ = 1 << 16
"""Bytes of a file that are looked at: keys and tokens are short."""
_ENV = re.compile(r"\.envrc|\.env(\.(?!example|sample|template|dist|defaults?$).+)?", re.IGNORECASE)
_ALWAYS = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?|\.netrc|_netrc|\.git-credentials|\.pgpass|\.my\.cnf|\.htpasswd"
    r"|\.vault_pass(word)?|.+\.(p12|pfx|jks|keystore|kdbx|ppk)|terraform\.tfstate"
    r"|service[-_]account.*\.json|application_default_credentials\.json",
    re.IGNORECASE,
)
"""Names of files that are secrets whatever is in them."""
_BY_CONTENT = re.compile(
    r".+\.(pem|key|p8|asc)|\.npmrc|\.yarnrc(\.yml)?|\.pypirc|pip\.conf|credentials(\.json|\.toml)?"
    r"|config\.json|secrets?\.(ya?ml|json|toml)|\.dockercfg|\.s3cfg|.+\.tfvars|settings\.local\.json",
    re.IGNORECASE,
)
"""Names of files that may hold one."""
_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+ )?PRIVATE KEY( BLOCK)?-----"
    r"|(_authToken|npmAuthToken|_password|\"auth\")[\"']?\s*[=:]\s*[\"']?[\w+/=.-]{8,}"
    r"|^\s*(password|aws_secret_access_key|secret_key)\s*[=:]\s*\S{8,}",
    re.MULTILINE,
)
_ASSIGNED = re.compile(r"^\s*(export\s+)?\w+\s*=\s*[\"']?[^\s\"'#]", re.MULTILINE)
DEPENDENCIES = frozenset({"node_modules", "site-packages", "dist-packages", ".venv", "vendor"})
"""Directories of what others have published, whose test data holds keys that are no secret."""


def check(audit: Audit, directory: Directory) -> None:
    """Note the files in a directory that look like secrets and that no rule hides."""
    inside = audit.share.parts(directory.path)
    if not DEPENDENCIES.isdisjoint(inside):
        return
    for name, kind in directory.entries.items():
        if kind != S_IFREG or not _is_candidate(name):
            continue
        path = os.path.join(directory.path, name)
        if audit.share.is_unreadable(path):
            continue
        try:
            if _holds_secret(directory, name):
                _note(audit, directory, name, path)
        except FileNotFoundError:
            continue
        except PermissionError:
            continue  # the user cannot read it, so it is no secret of the user's
        except (OSError, Unread) as error:
            audit.unread(path, error)


def _is_candidate(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_ENV, _ALWAYS, _BY_CONTENT))


def _holds_secret(directory: Directory, name: str) -> bool:
    if _ALWAYS.fullmatch(name):
        return True
    text = read_file(directory.fd, name, READ, whole=False).decode(errors="replace")
    if _ENV.fullmatch(name):
        return _ASSIGNED.search(text) is not None
    return _KEY.search(text) is not None or TOKEN.search(text) is not None


def _note(audit: Audit, directory: Directory, name: str, path: str) -> None:
    mode = os.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mode
    hide = fixes.rule("--hide", name)
    if mode & S_IROTH:
        fix = fixes.either(hide, fixes.chmod("go-rwx", path))
        said = f"{path} can be read by everyone"
        audit.add(rows.SECRET.finding(said, fix, Severity.MEDIUM))
    else:
        audit.add(rows.SECRET.finding(path, hide, Severity.LOW))
