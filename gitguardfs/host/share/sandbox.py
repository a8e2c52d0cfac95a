"""Writes and reads a project's ``.agent-sandbox``, from which ``gitguard krun`` builds and runs.

The directory is in the user's own state directory, not in the project: the agent can write the
project, and these files decide what the next build runs on the host. Checksums of the written
files are kept, so that a file that the user has changed is overwritten only with --force.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict

from gitguardfs.base import installation, quote
from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.paths import checksum
from gitguardfs.host.share import agent_rules, state
from gitguardfs.host.share import krun_text as krun
from gitguardfs.host.share.krun_text import ContainerNetwork, KrunSpec
from gitguardfs.options import config_files
from gitguardfs.options.guarded_share import git_mode, local_globs

NAME = ".agent-sandbox"
SETTINGS = "settings.json"
SETUP = "setup"
"""The name of the copy of this gitguardfs that the image installs."""


def path_of(project: str) -> str:
    """Return the path of a project's directory; projects of the same name have different ones."""
    name = f"{os.path.basename(project)}-{checksum(project)}"
    return state.directory("krun", name, NAME)


def write(spec: KrunSpec, *, force: bool) -> tuple[str, list[str]]:
    """Write the directory; return its path and the names that were written.

    Raises UserError and writes nothing if a file in it was changed by hand, unless ``force`` is
    true. Raises OSError.
    """
    path = path_of(spec.project)
    state.check_apart(path, spec.project)
    state.make_directory(path)
    wanted = {
        "Dockerfile": installation.text("host/share/files/Dockerfile"),
        "entrypoint.sh": installation.text("host/share/files/entrypoint.sh"),
        "compose.yaml": krun.compose(spec),
        "AGENTS.md": agent_rules.text(git_mode(spec.options), local_globs(spec.options)),
    }
    checksums = _written(path)
    changes = {name: config_files.plan(os.path.join(path, name), wanted[name]) for name in wanted}
    for name, change in changes.items():
        before = change.before
        is_of_user = before is not None and _digest(before) != checksums.get(name)
        if change.is_needed and is_of_user and not force:
            raise UserError(f"{change.path} was changed by hand", "move it away, or --force")
    settings = {
        "spec": asdict(spec),
        "written": {name: _digest(text.encode()) for name, text in wanted.items()},
    }
    written = [name for name, change in changes.items() if change.is_needed]
    for change in changes.values():
        config_files.write(change)
    config_files.put(os.path.join(path, SETTINGS), json.dumps(settings, indent=2) + "\n", 0o644)
    if refresh(path):
        written.append(SETUP)
    return path, written


def refresh(path: str) -> bool:
    """Update the copy of gitguardfs; return whether that changed it. Raises UserError, OSError."""
    return installation.copy_to(os.path.join(path, SETUP))


def load(project: str) -> KrunSpec:
    """Return the microVM that a project's files describe. Raises UserError if they are missing."""
    path = path_of(project)
    state.check_apart(path, project)
    again = quote.shell(["gitguard", "krun", "init", "--project", project])
    content = config_files.read(os.path.join(path, SETTINGS))
    if content is None:
        raise UserError(f"there is no {NAME} for {project}", f"run {again}", Exit.SYSTEM)
    state.make_directory(path)
    try:
        spec = json.loads(content)["spec"]
        spec["network"] = ContainerNetwork(spec["network"])
        spec["options"] = tuple(spec["options"])
        found = KrunSpec(**spec)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}/{SETTINGS} cannot be read", f"{again} writes it again") from None
    if found.project != project:
        raise UserError(f"{path}/{SETTINGS} is of another project", f"{again} writes it again")
    return found


def _written(path: str) -> dict[str, str]:
    """Return the checksums of the files written before; none if they cannot be read."""
    try:
        found = json.loads(config_files.read(os.path.join(path, SETTINGS)) or b"{}")["written"]
        return {str(name): str(digest) for name, digest in found.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
