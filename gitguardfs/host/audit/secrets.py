"""Finds files in the share that hold keys, passwords or tokens, by name and content."""

from __future__ import annotations

import os
import re
from stat import S_IFREG, S_IROTH

from gitguardfs.base import secret_names
from gitguardfs.base.findings import Severity
from gitguardfs.base.walk import ScannedDirectory, Unread, read_file
from gitguardfs.host.audit import fixes, rows
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.config_check import TOKEN

READ = 1 << 16
"""Bytes of a file that are searched: files of keys and tokens are short."""
READ_OF_ANY = 1 << 12
"""The same for a file whose name says nothing: a key begins at the start of its file."""
# [ \t]* stays within a line: over n empty lines, \s* would take time in the order of n squared.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{1,40} )?PRIVATE KEY( BLOCK)?-----"
    r"(\\[rn]|\s){1,9}([\w-]{1,40}: [^\n]{0,200}\s{1,9}){0,5}[A-Za-z0-9+/=]{40}"
)
"""A private key with the begin of its body; in JSON, a newline is ``\\n``."""
_PASSWORD = re.compile(
    r"(_authToken|npmAuthToken|_password|\"auth\")[\"']?[ \t]*[=:][ \t]*[\"']?[\w+/=.-]{8,}"
    r"|^[ \t]*(password|aws_secret_access_key|secret_key)[ \t]*[=:][ \t]*\S{8,}",
    re.MULTILINE,
)
_ASSIGNED = re.compile(r"^[ \t]*(export[ \t]+)?\w+[ \t]*=[ \t]*[\"']?[^\s\"'#]", re.MULTILINE)


def check(audit: Audit, directory: ScannedDirectory) -> None:
    """Add findings for files that look like secrets and that no rule hides or denies."""
    inside = audit.share.parts(directory.path)
    if not secret_names.DEPENDENCIES.isdisjoint(inside):
        return
    for name, file_type in directory.entries.items():
        if file_type != S_IFREG:
            continue
        path = os.path.join(directory.path, name)
        try:
            if _holds_secret(directory, name) and not audit.share.is_unreadable(path):
                _note(audit, directory, name, path)
        except FileNotFoundError:
            continue
        except PermissionError:
            continue  # the user cannot read it, so it is not one of the user's secrets
        except (OSError, Unread) as error:
            audit.unread(path, error)


def _holds_secret(directory: ScannedDirectory, name: str) -> bool:
    if secret_names.is_secret(name):
        return True
    is_named = secret_names.may_hold_secret(name)
    is_read = is_named or secret_names.is_settings(name)
    limit = READ if is_read else READ_OF_ANY
    text = read_file(directory.fd, name, limit, whole=False).decode(errors="replace")
    if secret_names.holds_assignments(name):
        return _ASSIGNED.search(text) is not None
    patterns = [_PRIVATE_KEY] + is_read * [TOKEN] + is_named * [_PASSWORD]
    return any(pattern.search(text) for pattern in patterns)


def _note(audit: Audit, directory: ScannedDirectory, name: str, path: str) -> None:
    mode = os.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mode
    hide = fixes.rule("--hide", name)
    if mode & S_IROTH:
        fix = fixes.either(hide, fixes.command("chmod", "go-rwx", "--", path))
        detail = f"{path} can be read by everyone"
        audit.report(rows.SECRET, detail, fix, Severity.MEDIUM)
    else:
        audit.report(rows.SECRET, path, hide, Severity.LOW)
