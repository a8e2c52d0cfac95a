"""What all checks of ``gitguard`` have in common: --json, --fail-on and the exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from gitguardfs.errors import GitguardExit
from gitguardfs.findings import Result, Severity


def report_options(command: Any) -> Any:
    """Give a command the options ``as_json`` and ``fail_on``."""
    command = click.option(
        "--fail-on",
        type=click.Choice([severity.name.lower() for severity in Severity]),
        default="medium",
        show_default=True,
        help="Exit with 1 for findings of this severity and above.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")(command)


def exit_code(results: Iterable[Result], fail_on: str) -> GitguardExit:
    """Return what a command exits with that was to fail on this severity."""
    limit = Severity[fail_on.upper()]
    found = any(result.severity is not None and result.severity >= limit for result in results)
    return GitguardExit.FINDINGS if found else GitguardExit.OK
