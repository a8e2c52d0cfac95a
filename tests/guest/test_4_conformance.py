"""The guarded directory answers as a disk does, over 9p and over virtiofs.

What the raw share itself cannot do is not asked of its guard: QEMU's 9p makes no special files,
has no renames with flags and keeps whole seconds of the times that are set. The guest's clock is
not the host's either, which is on purpose: it is up to a second behind. So the same checks run on
each raw share, and on each guarded one, where those have to pass that pass on the raw share. On a
disk all of them pass: the mount tier runs them there.
"""

from __future__ import annotations

import json

import pytest

from tests.conformance import all_checks
from tests.guest.setting_up import spare_view
from tests.guest.world import TESTS, TRANSPORTS, World, phase, spare

LIMIT = 1200.0

MODULES = ("opening", "times", "content", "memory", "between")
"""Those that depend on the share. Permissions, names and listings are the mount tier's."""
MORE = (
    "renaming-save_by_rename", "renaming-replaced_open_file", "renaming-noreplace",
    "renaming-exchange", "links-names_of_one_object", "links-unlinked_open_file",
    "links-removed_directory_in_use", "links-one_of_two_names_goes", "making-group_of_new_objects",
)  # fmt: skip
SLOW = (
    "content-many_open_files", "between-callers_are_told_apart",
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
"""What the guard makes of a share's own weakness; each of these must really fail."""

BY_CLOCKS = {
    (transport, "times-a_copied_time_is_exact"): "a time alone that is less than 100 ms old is "
    "taken for now: which one that is depends on how far the host's clock is from the guest's"
    for transport in TRANSPORTS
}
"""What may differ and may not (docs/design.md), so that nothing can be said of it here."""

Outcome = dict[str, str]


@pytest.fixture(scope="session")
def outcomes(spares: World) -> dict[str, Outcome]:
    """What came of each check, by place; empty where all was as it should be."""
    machine = spares.machine
    directories = {}
    for transport in TRANSPORTS:
        raw = f"/srv/raw-{transport}"
        machine.sh(f"mkdir {raw} && mount --bind /mnt/raw/{spare(transport)} {raw}")
        directories[transport] = spare_view(transport, "--allow-suid")
        directories[f"raw {transport}"] = raw
    words = ["python3", "-m", "tests.guest.inside.conformance"]
    with phase(f"conformance: {len(CHECKS)} checks in {len(directories)} directories"):
        running = {
            name: machine.channel.start(
                [*words, path, *CHECKS], cwd=TESTS, timeout=LIMIT, forked=True
            )
            for name, path in directories.items()
        }
        done = {
            name: machine.channel.finish("conformance", answer, LIMIT)
            for name, answer in running.items()
        }
    machine.sh("umount /srv/raw-*")
    found: dict[str, Outcome] = {}
    for name, each in done.items():
        rows = [json.loads(line) for line in each.stdout.splitlines()]
        found[name] = {row["name"]: row["failed"] for row in rows}
    return found


@pytest.mark.parametrize("where", TRANSPORTS)
@pytest.mark.parametrize("check", CHECKS)
def test_answers_as_a_file_system_does(
    outcomes: dict[str, Outcome], where: str, check: str
) -> None:
    assert check in outcomes[where], "the guest did not get that far"
    failed = outcomes[where][check]
    if (where, check) in KNOWN:
        assert failed, f"{check} on {where} does not differ any more: {KNOWN[where, check]}"
    elif (where, check) in BY_CLOCKS:
        assert "got" in failed or not failed, f"{check} on {where} broke off: {failed}"
    elif outcomes[f"raw {where}"].get(check) == "":
        assert not failed, f"{check} on {where}: {failed}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_most_checks_mean_something_on_the_share(
    outcomes: dict[str, Outcome], transport: str
) -> None:
    """On the raw virtiofs share nearly all pass, and on 9p more than half."""
    passed = [name for name, failed in outcomes[f"raw {transport}"].items() if not failed]
    assert len(passed) >= len(CHECKS) * {"virtiofs": 0.9, "9p": 0.5}[transport], sorted(
        set(CHECKS) - set(passed)
    )
