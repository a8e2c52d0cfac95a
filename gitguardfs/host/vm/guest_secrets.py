"""The guest's variables with placeholders of secrets, and settings of git and npm. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gitguardfs.host.credentials.presets import (
    GITHUB,
    GITHUB_HOST,
    GITHUB_USER,
    NPM,
    NPM_HOST,
    PYPI,
    PYPI_USER,
)
from gitguardfs.host.credentials.secrets import Secret

ENVIRONMENT, NPMRC, GITCONFIG = "/etc/environment", "/etc/npmrc", "/etc/gitconfig"
FILES = (ENVIRONMENT, NPMRC, GITCONFIG)
"""The guest's files that depend on secrets."""


def variables(secrets: Sequence[Secret]) -> dict[str, str]:
    """Return the variables of the agent's environment: placeholders, and what goes with them."""
    found: dict[str, str] = {}
    for secret in secrets:
        if secret.preset == PYPI:  # of twine, and of uv
            found |= {
                "TWINE_USERNAME": PYPI_USER,
                "TWINE_PASSWORD": secret.placeholder,
                "UV_PUBLISH_TOKEN": secret.placeholder,
            }
    return found | {secret.name: secret.placeholder for secret in secrets}


def environment(secrets: Sequence[Secret]) -> str:
    """Return lines for ENVIRONMENT."""
    return "".join(f'{name}="{value}"\n' for name, value in variables(secrets).items())


def npm(secrets: Sequence[Secret]) -> str:
    """Return lines for NPMRC."""
    names = [secret.name for secret in secrets if secret.preset == NPM]
    return "".join(f"//{NPM_HOST}/:_authToken=${{{name}}}\n" for name in names)


def git(secrets: Sequence[Secret]) -> str:
    """Return lines for GITCONFIG: git asks the helper when the server wants a password."""
    names = [secret.name for secret in secrets if secret.preset == GITHUB]
    return "".join(
        f'[credential "https://{GITHUB_HOST}"]\n'
        f'\thelper = "!f() {{ test \\"$1\\" != get || test -z \\"${name}\\" ||'
        f' printf \'username={GITHUB_USER}\\\\npassword=%s\\\\n\' \\"${name}\\"; }}; f"\n'
        for name in names
    )
