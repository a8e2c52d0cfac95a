"""The guarded directory answers as a disk does, over 9p and over virtiofs."""

from __future__ import annotations

import json

import pytest

from tests.conformance import all_checks
from tests.guest.machine import Machine
from tests.guest.setting_up import PYFUSE3, spare_view
from tests.guest.world import TESTS, TRANSPORTS, World, phase, spare

LIMIT = 1200.0

MODULES = ("opening", "times", "content", "memory", "between")
"""Checks that depend on the share. The mount tier has permissions, names and listings."""
MORE = (
    "renaming-save_by_rename", "renaming-replaced_open_file", "renaming-noreplace",
    "renaming-exchange", "links-names_of_one_object", "links-unlinked_open_file",
    "links-removed_directory_in_use", "links-one_of_two_names_goes", "making-group_of_new_objects",
    "links-name_looked_up_later_than_the_one_that_goes",
)  # fmt: skip
SLOW = (
    "between-callers_are_told_apart",
    "times-touched_file_is_not_newer_than_the_next", "opening-new_file_is_seen_at_once",
)  # fmt: skip
"""More than five seconds each under emulation."""

CHECKS = tuple(
    name
    for name in all_checks()
    if name not in SLOW and (name.partition("-")[0] in MODULES or name in MORE)
)

KNOWN = {
    ("9p", "links-removed_directory_in_use"): "QEMU's 9p finds what is not open by its path, and "
    "the daemon holds directories by O_PATH descriptors, which the server does not know of",
}
"""Checks that fail because of the share's own limits; each of these must fail."""

OTHER_SESSION = "virtiofs, pyfuse3"
WHERE = (*TRANSPORTS, OTHER_SESSION)
"""The views that answer; by default it is the kernel's session that serves them."""

BY_CLOCKS = {
    (where, "times-a_copied_time_is_exact"): "a time alone that is less than 100 ms old is "
    "taken for now: which one that is depends on how far the host's clock is from the guest's"
    for where in WHERE
}
"""Checks that may pass or fail (docs/internals.md): neither is an error."""

Outcome = dict[str, str]


@pytest.fixture(scope="session")
def outcomes(spares: World) -> dict[str, Outcome]:
    """Return the error of each check in each view; "" where it passed."""
    views = {transport: spare_view(transport, "--allow-suid") for transport in TRANSPORTS}
    views[OTHER_SESSION] = spare_view("virtiofs", *PYFUSE3)
    with phase(f"conformance: {len(CHECKS)} checks in {len(views)} views"):
        return _carry_out(spares.machine, views, dict.fromkeys(WHERE, CHECKS))


@pytest.fixture(scope="session")
def on_the_share(spares: World, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    """The same of the raw shares, for checks that failed on the guarded ones."""
    failed = {
        where: tuple(name for name, text in found.items() if text)
        for where, found in outcomes.items()
    }
    raw = {where: f"/srv/raw-{number}" for number, where in enumerate(WHERE)}
    for where, path in raw.items():
        source = f"/mnt/raw/{spare(where.partition(',')[0])}"
        spares.machine.sh(f"mkdir {path} && mount --bind {source} {path}")
    with phase(f"conformance: {sum(map(len, failed.values()))} checks on the raw shares"):
        found = _carry_out(spares.machine, raw, failed)
    spares.machine.sh("umount /srv/raw-*")
    return found


def _carry_out(
    machine: Machine, directories: dict[str, str], checks: dict[str, tuple[str, ...]]
) -> dict[str, Outcome]:
    """One after the other: changing between processes costs an emulated processor a third more."""
    found: dict[str, Outcome] = {name: {} for name in directories}
    for name, path in directories.items():
        if checks[name]:
            done = machine.run(
                ["python3", "-m", "tests.conformance", path, *checks[name]],
                cwd=TESTS, timeout=LIMIT, forked=True,
            )  # fmt: skip
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            found[name] = {row["name"]: row["failed"] for row in rows}
    return found


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("check", CHECKS)
def test_answers_as_a_file_system_does(
    outcomes: dict[str, Outcome],
    on_the_share: dict[str, Outcome],
    where: str,
    check: str,
) -> None:
    assert check in outcomes[where], "the guest did not get that far"
    failed = outcomes[where][check]
    if (where, check) in KNOWN:
        assert failed, f"{check} on {where} does not differ any more: {KNOWN[where, check]}"
    elif (where, check) in BY_CLOCKS:
        assert "got" in failed or not failed, f"{check} on {where} broke off: {failed}"
    elif failed:
        assert on_the_share[where][check], f"{check} on {where}: {failed}"


@pytest.mark.parametrize("where", WHERE)
def test_most_checks_pass(outcomes: dict[str, Outcome], where: str) -> None:
    """Over virtiofs nearly all, and over 9p more than half."""
    passed = [name for name, failed in outcomes[where].items() if not failed]
    assert len(passed) >= len(CHECKS) * (0.5 if where == "9p" else 0.9), sorted(
        set(CHECKS) - set(passed)
    )
