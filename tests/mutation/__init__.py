"""Small faults that are put into the code one at a time: the tests should notice (mutants.sh)."""

from __future__ import annotations

from tests.mutation import (
    audit,
    egress,
    fetch,
    files,
    guard,
    local,
    mount,
    private,
    running,
    tools,
    vm,
)
from tests.mutation.mutant import Mutant

AREAS: dict[str, tuple[Mutant, ...]] = {
    "guard": guard.MUTANTS,
    "files and tables": files.MUTANTS,
    "mount": mount.MUTANTS,
    "root's tools": tools.MUTANTS,
    "the agent's repositories": private.MUTANTS,
    "the guest's own directories": local.MUTANTS,
    "audit": audit.MUTANTS,
    "fetch": fetch.MUTANTS,
    "allowlist proxy": egress.MUTANTS,
    "sandbox VM": vm.MUTANTS,
    "running the tests": running.MUTANTS,
}

MUTANTS = tuple(mutant for mutants in AREAS.values() for mutant in mutants)
