"""Files of a project that look like secrets, and how they are kept from the agent. Names only."""

from __future__ import annotations

import fnmatch
import os

from gitguardfs.errors import shown
from gitguardfs.render import quote

PATTERNS = (
    ".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", ".npmrc", ".pypirc",
    ".git-credentials", ".htpasswd", ".vault-token", "credentials.json", "secrets.json",
    "secrets.yml", "secrets.yaml", "service-account*.json", "*.tfstate", "*.tfvars", ".aws",
    ".ssh", ".gnupg", ".kube", "*token*.txt",
)  # fmt: skip
"""What programs call files with keys, tokens and passwords; matched without regard to case."""
EXAMPLES = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")
"""Files that only show what a secret would look like."""
PASSED_OVER = frozenset((".git", "node_modules", ".venv", "venv", "target", "__pycache__"))
MOST = 50_000
"""Entries that are looked at: a warning must not keep `vm up` waiting."""
SHOWN = 5
"""Files that the warning names."""


def found(project: str, hidden: tuple[str, ...] = ()) -> list[str]:
    """Return the paths, relative to ``project``, that look like secrets and are not hidden."""
    seen = 0
    paths = []
    for directory, below, files in os.walk(project):
        names = [*files, *below]
        seen += len(names)
        relative = os.path.relpath(directory, project)
        paths += [
            os.path.normpath(os.path.join(relative, name))
            for name in names
            if looks_secret(name) and not is_hidden(name, hidden)
        ]
        below[:] = [name for name in below if not (name in PASSED_OVER or is_hidden(name, hidden))]
        if seen > MOST:
            break
    return sorted(paths)


def looks_secret(name: str) -> bool:
    """Return whether a file of this name usually holds a secret."""
    return _matches(name, PATTERNS) and not _matches(name, EXAMPLES)


def is_hidden(name: str, hidden: tuple[str, ...]) -> bool:
    """Return whether ``--hide`` was given for this name."""
    return _matches(name, hidden)


def warning(paths: list[str]) -> str:
    """Return the lines that name the files and the options that keep them out."""
    names = sorted({os.path.basename(path) for path in paths})
    options = [word for name in names for word in ("--hide", name)]
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    listed = ", ".join(shown(path) for path in paths[:SHOWN])
    return (
        f"warning: the agent can read {listed}{more}; to keep them out:\n"
        f"  gitguard vm up {shown(quote.shell(options))}"
    )


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)
