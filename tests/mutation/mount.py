"""Faults in the mount's life: seal, places, requests, audit log."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

AUDIT = ("unit/test_audit.py",)
SEAL = ("unit/test_seal.py",)
SEALED = (
    "unit/test_seal.py",
    "mount/test_attacks_seal.py::test_s3_the_seal_closes_the_raw_share",
    "mount/test_attacks_seal.py::test_s3_the_seal_outlives_a_crash_and_a_restart_takes_it_over",
    "mount/test_lifecycle.py::test_a_guard_that_does_not_start_leaves_open_what_was_not_to_be_sealed",
    "mount/test_lifecycle.py::test_the_seal_covers_the_source_while_it_is_guarded",
)

MUTANTS = (
    Mutant(
        "audit-does-not-count",
        "refusals are not counted",
        "audit.py",
        "self.refused[refused.rule] += 1",
        "pass",
        AUDIT,
    ),
    Mutant(
        "audit-no-limit",
        "a flood of refusals is written line by line",
        "audit.py",
        "        if self._allowance < 1:\n            return False\n",
        "",
        AUDIT,
    ),
    Mutant(
        "audit-forgets-dropped",
        "how many lines were left out is not said",
        "audit.py",
        '            line["dropped"] = self._dropped',
        "            pass",
        AUDIT,
    ),
    Mutant(
        "audit-waits-for-a-reader",
        "a FIFO as the audit log holds up the start",
        "fuse/directories.py",
        "flags |= os.O_CLOEXEC | os.O_NONBLOCK",
        "flags |= os.O_CLOEXEC",
        AUDIT,
    ),
    Mutant(
        "audit-allowance-unbounded",
        "after a quiet hour 180,000 lines may be written at once",
        "audit.py",
        "        self._allowance = min(self._allowance, BURST)\n",
        "",
        AUDIT,
    ),
    Mutant(
        "seal-lock-ignored",
        "the seal of a daemon that lives counts as nobody's",
        "fuse/seal.py",
        "        if error.errno != errno.EWOULDBLOCK:\n            raise\n        raise UserError(",
        "        return\n        raise UserError(",
        SEAL,
    ),
    Mutant(
        "seal-lifts-anything",
        "whatever is mounted over the source is taken off as a stale seal",
        "fuse/seal.py",
        'return (mount.fstype, mount.source) == ("tmpfs", NAME)',
        "return True",
        SEAL,
    ),
    Mutant(
        "seal-group-is-nobody",
        "a parent that a group may pass counts as private",
        "fuse/seal.py",
        "        passable |= st.st_gid != 0 and uid == 0 and bool(st.st_mode & S_IXGRP)\n",
        "",
        SEAL,
    ),
    Mutant(
        "seal-readable",
        "everybody may list the seal",
        "fuse/seal.py",
        '"mode": "000"',
        '"mode": "755"',
        SEALED,
    ),
    Mutant(
        "seal-lifts-what-covers-it",
        "at the end what is mounted over the seal is unmounted in its place",
        "fuse/seal.py",
        "if _is_covered(mounts.number_of(self._lock)):",
        "if False:",
        (*SEALED, "mount/test_attacks_unmount.py"),
    ),
    Mutant(
        "seal-not-compared-with-lock",
        "a mount that came between the seal and the share is overlooked",
        "fuse/seal.py",
        "if _listed(number).parent != self.covers or _is_covered(number):",
        "if _is_covered(number):",
        (*SEALED, "mount/test_attacks_unmount.py::test_v1c_a_mount_that_came_between_undoes_all"),
    ),
    Mutant(
        "seal-although-refused",
        "a guard that does not start seals the source in spite of --no-seal",
        "fuse/seal.py",
        "if os.geteuid() != 0 or wanted is False:",
        "if os.geteuid() != 0:",
        SEALED,
    ),
    Mutant(
        "mount-place-not-checked-again",
        "the mount point is compared with the one written down only before it is resolved for good",
        "fuse/mount.py",
        "    preflight.check_is(places.mountpoint, intended)\n",
        "",
        (
            "unit/test_cli.py",
            "mount/test_places.py",
            "mount/test_vm_mount.py::test_what_mount_resolved_to_another_place_is_refused",
        ),
    ),
    Mutant(
        "requests-polled-once",
        "the descriptor of requests is looked at once before the loop goes to sleep",
        "fuse/turns.py",
        "for _ in range(self._looks):",
        "for _ in range(1):",
        ("adapter/test_turns.py",),
    ),
    Mutant(
        "requests-helper-keeps-process",
        "a thread that waits for a server that is gone keeps the process",
        "fuse/helper.py",
        'name="helper", daemon=True)',
        'name="helper", daemon=False)',
        ("adapter/test_helper.py",),
    ),
    Mutant(
        "requests-bug-ends-the-mount",
        "an exception of the tree leaves the error boundary",
        "sessions/pyfuse3_session/handler.py",
        "number = errno_of(error, name, lambda it: self.note_refusal(name, it, args))",
        "raise",
        ("adapter/test_boundary.py",),
    ),
)
