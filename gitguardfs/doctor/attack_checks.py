"""Carry the attacks out, as the user, on the guard that is there.

They are made in a scratch directory inside the mount, which the user makes and removes: root
never touches what the user could bend. Those that need a repository get one that is there, by
operations that do no harm if they succeed (``on_repository``).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from gitguardfs.doctor import on_repository, planting, run_as, search
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.other_mounts import is_inside
from gitguardfs.doctor.policy_checks import policy_by_reading, report_policy
from gitguardfs.doctor.run_as import NoAnswer, SetupFailed, SwitchUserFailed, UndoFailed, User
from gitguardfs.doctor.search import SearchResult
from gitguardfs.findings import Result, Row

TITLES = {
    "R1": "rename .git and what is in it",
    "R2a": "exchange .git with something prepared",
    "R3a": "rename .git with flags",
    "R4": "move a .git file to another directory",
    "R5": "rename something prepared to .git",
    "R6": "rename something over .git",
    "R7": "move a repository's root directory",
    "C1": "create .git, as any type",
    "C2": "remove .git, or fill it",
    "C3": "link an unnamed file as .git",
    "L1": "hard-link what is in .git",
    "M1": "change attributes of .git",
    "M2": "read .git, by kept references too",
    "U1": "read .git as root of a user namespace",
    "U2": "bind mounts and overlays over .git",
    "S1": "reach .git through a symlink",
    "P1": "assemble a bare repository",
    "P2": "assemble a repository with commondir",
    "P4": "change a bare repository",
    "V4": "leave parts of a repository that git on the host could complete",
    "F1": "plant or alter a .git file",
    "N": "other spellings of .git",
}
"""The rows of the threats, in their order."""

MOVES = frozenset({"R1", "R2a", "R3a", "R4", "R6", "R7", "C2"})
"""Rows that rename or remove a name that is there."""
OUTSIDE = "/tmp"
"""Where symlinks and mounts are made when nothing may be made in the mount."""
STOPPING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
"""They wait while the scratch directory is made (before its name is known nobody removes it) and
while it is removed."""
NOTHING = "there is nothing in the tree to try them on"
UNTRIED = Row("attack.untried", "attacks that were not tried", "attacks that were not tried")
ON_REQUEST = "on request only (--attack): they write into the project"
RETRY = "see that there is room and that the mount answers, and run this again"
MEND = "do not let the agent in; gitguardfs --version, remount, and report it if it stays"
SWITCHED = {
    "P1": "mount it without --allow-bare, unless the project needs bare repositories",
    "P2": "mount it without --allow-bare, unless the project needs bare repositories",
    "P4": "mount it without --allow-bare, unless the project needs bare repositories",
    "V4": "mount it without --allow-bare, unless the project needs bare repositories",
}


class OutcomeKind(Enum):
    """How one attack ended."""

    REFUSED = "refused"
    PASSED = "passed"
    LEFT = "left"
    """It passed and could not be undone."""
    OTHER = "other"
    """An answer that is not the guard's: another errno, or none."""
    UNTRIED = "untried"


@dataclass(frozen=True)
class Outcome:
    """What came of one attack."""

    row: str
    name: str
    kind: OutcomeKind
    text: str = ""


@dataclass
class AttackRun:
    """Where the attacks are made."""

    user: User
    scratch: str
    found: SearchResult
    workdirs: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def next_workdir(self) -> str:
        """Where the next attack gets its own directory; the child makes it."""
        self.workdirs += 1
        return os.path.join(self.scratch, str(self.workdirs))


def check(context: Context) -> list[Result]:
    """All attacks, one result for each row of the threats."""
    user = context.user
    if user is None:
        return []
    row = scratch_row(context.mountpoint)
    try:
        found = SearchResult(
            **run_as.run_as(search.search, context.mountpoint, user=user, limit=30.0)
        )
    except PermissionError as error:
        return [row.note(f"{user.name} cannot look into it: {error.strerror}", title=row.failed)]
    except (NoAnswer, OSError, TypeError) as error:
        return [row.unknown(f"not tried: the search failed: {error}", RETRY)]
    everything = found.writable is not None

    def attack(scratch: str) -> list[Result]:
        run = AttackRun(user, scratch, found)
        return _all(context, run) if everything else _reading(context, run)

    try:
        return _in_scratch(user, found.writable or OUTSIDE, attack)
    except OSError as error:
        why = f"not tried: no directory can be made there: {error.strerror}"
        return [row.unknown(why, RETRY)]


def scratch_row(mountpoint: str) -> Row:
    """Return the row about where the attacks are tried."""
    return Row(
        "attack.scratch",
        f"attacks can be tried in {mountpoint}",
        f"not all attacks could be tried in {mountpoint}",
    )


def _in_scratch(user: User, directory: str, attack: Callable[[str], list[Result]]) -> list[Result]:
    """What ``attack`` finds in a new directory, which is removed whatever happens.

    No context manager: an exception of a signal's can come up between making one and its body.
    """
    scratch = ""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        try:
            scratch = str(run_as.run_as(search.make_scratch, directory, user=user))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        results = attack(scratch)
    finally:
        try:
            # What waits in the interpreter may be raised here, still before the removal.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        finally:
            removed = not scratch or _remove(scratch, user)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if not removed:
        hint = "remove it on the host, where nothing is guarded"
        row = Row("attack.scratch", "the scratch directory is removed", "something was left behind")
        results.append(row.finding(scratch, hint))
    return results


def _remove(scratch: str, user: User) -> bool:
    """Remove it in a child that inherits the blocked signals."""
    try:
        return bool(run_as.run_as(search.remove_scratch, scratch, user=user, limit=180.0))
    except (NoAnswer, SwitchUserFailed, OSError):
        return False


def _all(context: Context, run: AttackRun) -> list[Result]:
    controls = [_plant(run, plant) for plant in planting.CONTROLS]
    first = controls[0]
    if first.kind is not OutcomeKind.PASSED:
        why = f"not tried: ordinary work fails there ({first.text}), so refusals prove nothing"
        return [scratch_row(context.mountpoint).unknown(why, RETRY)]
    policy = find_policy(run)
    results = [report_policy(context.mountpoint, policy), _ordinary(controls[1:])]
    if policy == "off":
        return results
    for plant in planting.TABLE:
        run.outcomes.append(_plant(run, plant))
    for reach in on_repository.TABLE:
        if not (reach.reads and policy == "readonly"):
            run.outcomes.append(_reach(run, reach))
    return results + judge(run.outcomes, run.found, policy)


def _reading(context: Context, run: AttackRun) -> list[Result]:
    """Where the user may write nowhere, the least that he could do is read."""
    why = f"{run.user.name} may write nowhere in it: only reading was tried"
    row = scratch_row(context.mountpoint)
    said = row.note(why, title=row.failed)
    policy = policy_by_reading(run.user, run.found.directory)
    if policy == "deny":
        run.outcomes += [_reach(run, reach) for reach in on_repository.TABLE if reach.reads]
    return [said, report_policy(context.mountpoint, policy), *judge(run.outcomes, None, policy)]


# What is done with .git, by what happens


def find_policy(run: AttackRun) -> str:
    """Return off, readonly, unsure, or deny, which is also what ``hide`` looks like from here."""
    planted = _plant(
        run,
        planting.PlantingAttack("", "", planting.make_directory, frozenset({errno.EACCES})),
    )
    if planted.kind is not OutcomeKind.REFUSED:
        return "off" if planted.kind is OutcomeKind.PASSED else "unsure"
    by_reading = policy_by_reading(run.user, run.found.directory)
    return "readonly" if by_reading in ("off", "readonly") else "deny"


def _ordinary(outcomes: list[Outcome]) -> Result:
    row = Row(
        "guard.ordinary", "names like .gitignore stay usable", "names like .gitignore are refused"
    )
    refused = [outcome.name for outcome in outcomes if outcome.kind is not OutcomeKind.PASSED]
    if refused:
        return row.note(", ".join(refused), "see --deny, --protect and --hide", row.failed)
    return row.ok()


# One attack


def _plant(run: AttackRun, plant: planting.PlantingAttack) -> Outcome:
    return _attempt(plant.row, plant.name, plant.refused, plant.attempt, run)


def _reach(run: AttackRun, reach: on_repository.RepositoryAttack) -> Outcome:
    path = getattr(run.found, reach.on)
    if path is None or (reach.on == "root" and is_inside(run.scratch, path)):
        return Outcome(reach.row, reach.name, OutcomeKind.UNTRIED, "")
    attempt = partial(reach.attempt, path)
    refused = reach.refused
    if reach.row in MOVES and _is_kept(path, run.user):
        refused |= {errno.EPERM}
    return _attempt(reach.row, reach.name, refused, attempt, run, reach.fake_root)


def _is_kept(path: str, user: User) -> bool:
    """Whether a sticky directory of another's keeps ``path`` from the user: EPERM, rename(2)."""
    try:
        return bool(run_as.run_as(search.is_kept, path, user.uid, user=user))
    except (NoAnswer, OSError):
        return False


def _attempt(
    row: str,
    name: str,
    refused: frozenset[int],
    attempt: Callable[[str], object],
    run: AttackRun,
    fake_root: bool = False,
) -> Outcome:
    workdir = run.next_workdir()
    try:
        run_as.run_as(_in_workdir, attempt, workdir, user=run.user, fake_root=fake_root)
    except SetupFailed as error:
        return Outcome(row, name, OutcomeKind.UNTRIED, str(error))
    except UndoFailed as error:
        return Outcome(row, name, OutcomeKind.LEFT, str(error))
    except NoAnswer as error:
        return Outcome(row, name, OutcomeKind.OTHER, str(error))
    except OSError as error:
        return outcome_of_errno(row, name, refused, error.errno or 0)
    return Outcome(row, name, OutcomeKind.PASSED)


def _in_workdir(attempt: Callable[[str], object], workdir: str) -> None:
    with run_as.preparing():
        os.mkdir(workdir, 0o755)
    attempt(workdir)  # what it returns stays in the child


def outcome_of_errno(row: str, name: str, refused: frozenset[int], number: int) -> Outcome:
    """What an errno says about an attack."""
    said = errno.errorcode.get(number, str(number))
    if number in refused:
        return Outcome(row, name, OutcomeKind.REFUSED, said)
    if number in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
        return Outcome(row, name, OutcomeKind.UNTRIED, said)  # gone meanwhile, or there is no room
    return Outcome(row, name, OutcomeKind.OTHER, said)


# What came of all


def judge(outcomes: list[Outcome], found: SearchResult | None, policy: str) -> list[Result]:
    """One result for each row; and, given what was found, a note of what was not tried."""
    results = []
    missing: dict[str, list[str]] = {}
    nothing = NOTHING
    if found is not None and not found.complete:
        nothing = f"nothing to try them on was found in the first {found.searched} names"
    for row, title in TITLES.items():
        own = [outcome for outcome in outcomes if outcome.row == row]
        result = judge_row(row, own)
        if result is not None:
            results.append(result)
        elif policy == "readonly" and row in ("U1", "U2", "S1"):
            results.append(
                attack_row(row).note("allowed by --git=readonly", title=f"allowed: {title}")
            )
        else:
            why = next((outcome.text for outcome in own if outcome.text), nothing)
            missing.setdefault(why, []).append(row)
    if missing and found is not None:
        said = "; ".join(f"{', '.join(rows)}: {why}" for why, rows in missing.items())
        results.append(UNTRIED.note(said))
    return results


def attack_row(row: str) -> Row:
    """Return the row of a report about one row of the threats."""
    return Row(f"attack.{row}", f"refused: {TITLES[row]}", f"not refused: {TITLES[row]}")


def judge_row(row: str, outcomes: list[Outcome]) -> Result | None:
    """What the attacks of a row come to; None if none was tried."""
    said_of = attack_row(row)
    left = [o for o in outcomes if o.kind is OutcomeKind.LEFT]
    if left:
        said = "; ".join(f"{o.name}: {o.text}" for o in left)
        return said_of.finding(f"not undone: {said}", MEND)
    passed = [o.name for o in outcomes if o.kind is OutcomeKind.PASSED]
    other = [f"{o.name}: {o.text}" for o in outcomes if o.kind is OutcomeKind.OTHER]
    if passed or other:
        said = "; ".join(
            part
            for part in (
                f"done: {', '.join(passed)}" if passed else "",
                f"no answer of the guard's: {', '.join(other)}" if other else "",
            )
            if part
        )
        return said_of.finding(said, SWITCHED.get(row, MEND))
    refused = sum(o.kind is OutcomeKind.REFUSED for o in outcomes)
    if not refused:
        return None
    untried = [f"{o.name} ({o.text})" for o in outcomes if o.kind is OutcomeKind.UNTRIED and o.text]
    detail = f"{refused} refused"
    if untried:
        detail += f"; not tried: {', '.join(untried)}"
    return said_of.ok(detail)
