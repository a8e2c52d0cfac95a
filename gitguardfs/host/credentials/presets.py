"""Presets: where services expect their keys, and the variables in which programs look. Pure.

The presets of ``gitguard vm up --allow`` are others: they allow the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gitguardfs.host.credentials.secrets import HTTPS_PORT, Kind, Place

GITHUB, NPM, PYPI = "github", "npm", "pypi"
GITHUB_HOST, GITHUB_USER = "github.com", "x-access-token"
NPM_HOST = "registry.npmjs.org"
PYPI_USER = "__token__"


class Preset(NamedTuple):
    """A service's usual variable, and the places of its key."""

    variable: str
    places: tuple[Place, ...]


def _places(host: str, *where: tuple[Kind, str]) -> tuple[Place, ...]:
    return tuple(Place(host, HTTPS_PORT, kind, word) for kind, word in where)


_BEARER = (Kind.BEARER, "Bearer")
_GITHUB_API = (_BEARER, (Kind.BEARER, "token"))

PRESETS: Mapping[str, Preset] = {
    "anthropic": Preset(
        "ANTHROPIC_API_KEY", _places("api.anthropic.com", (Kind.HEADER, "x-api-key"), _BEARER)
    ),
    "openai": Preset("OPENAI_API_KEY", _places("api.openai.com", _BEARER)),
    "google": Preset(
        "GEMINI_API_KEY",
        _places(
            "generativelanguage.googleapis.com",
            (Kind.HEADER, "x-goog-api-key"), (Kind.QUERY, "key"),
        ),
    ),
    GITHUB: Preset(
        "GITHUB_TOKEN",
        (
            *_places(GITHUB_HOST, (Kind.BASIC, GITHUB_USER)),
            *_places("api.github.com", *_GITHUB_API),
            *_places("uploads.github.com", *_GITHUB_API),
            *_places("raw.githubusercontent.com", *_GITHUB_API),
        ),
    ),
    NPM: Preset("NPM_TOKEN", _places(NPM_HOST, _BEARER)),
    PYPI: Preset("PYPI_TOKEN", _places("upload.pypi.org", (Kind.BASIC, PYPI_USER))),
}  # fmt: skip
"""The presets, by name."""
