"""Finds files in the share that hold keys, passwords or tokens, by name and content."""

from __future__ import annotations

import os
import re
from stat import S_IFREG, S_IROTH

from gitguardfs import secret_names
from gitguardfs.audit import fixes, rows
from gitguardfs.audit.audit import Audit
from gitguardfs.audit.config_check import TOKEN
from gitguardfs.audit.walk import ScannedDirectory, Unread, read_file
from gitguardfs.findings import Severity

READ = 1 << 16
"""Bytes of a file that are searched: files of keys and tokens are short."""
# [ \t]* stays within a line: over n empty lines, \s* would take time in the order of n squared.
_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+ )?PRIVATE KEY( BLOCK)?-----"
    r"|(_authToken|npmAuthToken|_password|\"auth\")[\"']?[ \t]*[=:][ \t]*[\"']?[\w+/=.-]{8,}"
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
        if file_type != S_IFREG or not secret_names.may_hold_secret(name):
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
            continue  # the user cannot read it, so it is not one of the user's secrets
        except (OSError, Unread) as error:
            audit.unread(path, error)


def _holds_secret(directory: ScannedDirectory, name: str) -> bool:
    if secret_names.is_secret(name):
        return True
    text = read_file(directory.fd, name, READ, whole=False).decode(errors="replace")
    if secret_names.holds_assignments(name):
        return _ASSIGNED.search(text) is not None
    return _KEY.search(text) is not None or TOKEN.search(text) is not None


def _note(audit: Audit, directory: ScannedDirectory, name: str, path: str) -> None:
    mode = os.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mode
    hide = fixes.rule("--hide", name)
    if mode & S_IROTH:
        fix = fixes.either(hide, fixes.chmod("go-rwx", path))
        detail = f"{path} can be read by everyone"
        audit.results.append(rows.SECRET.finding(detail, fix, Severity.MEDIUM))
    else:
        audit.results.append(rows.SECRET.finding(path, hide, Severity.LOW))
