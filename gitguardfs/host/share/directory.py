"""Checks whether a directory may be shared: not one of git, of the system, or a home."""

from __future__ import annotations

import os
from functools import partial
from stat import S_ISDIR

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.paths import is_inside, mode_at
from gitguardfs.names import dotgit
from gitguardfs.names.repository import is_repository
from gitguardfs.options import accounts

SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr",
          "/Library", "/System", "/private/etc")  # fmt: skip
"""Directories of the system, which may not be shared, nor any directory in them."""
HOMES = ("/home", "/var/home", "/Users")
"""Directories that hold home directories."""

SECRETS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker/config.json", ".config/gcloud",
    ".config/gh", ".config/containers/auth.json", ".local/share/keyrings", ".password-store",
    ".netrc", ".git-credentials", ".pypirc", ".vault-token", "Library/Keychains",
    ".local/share/kwalletd", ".local/share/python_keyring", ".config/sops/age", ".config/op",
    ".config/rclone", ".cargo/credentials.toml", ".mozilla", ".thunderbird", ".config/chromium",
    ".config/google-chrome", ".claude/.credentials.json", ".codex/auth.json",
    ".gemini/oauth_creds.json", ".local/share/opencode/auth.json",
)  # fmt: skip
"""Where programs keep keys, tokens and passwords, relative to a home directory."""


def existing_directory(path: str, otherwise: str = "") -> str:
    """Return ``path`` resolved. Raises UserError if it is missing or must not be shared.

    ``otherwise`` is added to the hint for a missing directory.
    """
    if not path:
        raise UserError("the directory's name is empty")
    try:
        real = os.path.realpath(path, strict=True)
        is_directory = S_ISDIR(os.stat(real).st_mode)
    except FileNotFoundError:
        raise UserError(f"no such directory: {path}", f"create it first{otherwise}") from None
    except NotADirectoryError:
        raise UserError(f"{path} is not a directory") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", code=Exit.SYSTEM) from None
    if not is_directory:
        raise UserError(f"{path} is not a directory", "share the directory that holds it")
    _check_path(real)
    above = real
    while above != "/":
        _check_no_repository(above)
        above = os.path.dirname(above)
    return real


def directory_elsewhere(path: str) -> str:
    """Return ``path`` of another machine, normalised. Raises UserError if it must not be shared."""
    if not os.path.isabs(path):
        hint = "with --elsewhere, give the whole path"
        raise UserError(f"{path!r} is not an absolute path", hint)
    plain = os.path.normpath(path)
    _check_path(plain)
    return plain


def secrets_in(real: str) -> list[str]:
    """Return which of SECRETS the directory holds, including those that cannot be looked up."""
    return [name for name in SECRETS if _is_there(f"{real}/{name}")]


def _check_path(path: str) -> None:
    """Raise UserError if a resolved path alone shows that it must not be shared."""
    if any(dotgit.is_dotgit(os.fsencode(part)) for part in path.split("/")):
        raise UserError(f"{path} is a .git or lies below one", "share the directory that holds it")
    for name in SECRETS:
        if f"/{name}/" in f"{path}/":
            raise UserError(f"{path} holds secrets ({name})", "share a directory without them")
    further_down = "share a directory further down"
    if any(is_inside(path, directory) for directory in SYSTEM):
        raise UserError(f"{path} belongs to this machine's system", "share another directory")
    if os.path.dirname(path) in HOMES or any(is_inside(home, path) for home in _homes()):
        raise UserError(
            f"{path} is or holds a home directory, with keys and files that its owner's shell runs",
            further_down,
        )


def _homes() -> list[str]:
    """Return the homes of this user and of root, and the directories that hold all other homes."""
    found = [os.path.expanduser("~")]
    for uid in (os.geteuid(), 0):
        found.append(accounts.find(str(uid)).home)
    return [*HOMES, *(os.path.realpath(home) for home in found if home not in ("", "/"))]


def _check_no_repository(real: str) -> None:
    try:
        found = is_repository(partial(mode_at, real))
    except OSError as error:
        raise UserError(
            f"cannot tell whether {real} is a git repository: {error.strerror}", code=Exit.SYSTEM
        ) from None
    if found:
        raise UserError(
            f"{real} looks like a git repository itself (it holds HEAD and refs)",
            "share a directory above it",
        )


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
