"""Carries out the attacks on .git, as the agent's user, against the mounted guard.

They run in a scratch directory inside the view. A process of the user makes and removes it: root
never follows paths that the user could replace. Attacks on a repository use an existing one, and
only those are tried that do no harm if they succeed.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from gitguardfs.base.findings import Result, Row
from gitguardfs.base.paths import is_inside
from gitguardfs.doctor import attacks, link_checks, search
from gitguardfs.doctor.attacks import AGENT, EARLY, FAKE_ROOT, LACKING, Attack
from gitguardfs.doctor.context import Context
from gitguardfs.doctor.fake_root import run_as_user
from gitguardfs.doctor.policy_checks import policy_by_reading, report_policy
from gitguardfs.doctor.search import SearchResult
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, SetupFailed, SwitchUserFailed, UndoFailed, User

TITLES = {
    "R1": "rename .git and what is in it",
    "R2a": "exchange .git with a prepared file or directory",
    "R3a": "rename .git with flags",
    "R4": "move a .git file to another directory",
    "R5": "rename a prepared file or directory to .git",
    "R6": "rename a directory over .git",
    "R7": "move a repository's root directory",
    "C1": "create .git, as any type",
    "C2": "remove .git, or make files in it",
    "C3": "link an unnamed file as .git",
    "L1": "hard-link what is in .git",
    "M1": "change attributes of .git",
    "M2": "read .git, also by descriptors",
    "U1": "read .git as root of a user namespace",
    "U2": "read .git through bind mounts, overlays and chroot",
    "S1": "reach .git through a symlink",
    "P1": "assemble a bare repository",
    "P2": "assemble a repository with commondir",
    "P4": "change a bare repository",
    "V4": "leave parts of a repository that git on the host could complete",
    "G4": "put hooks or a configuration into most of a repository",
    "F1": "plant or alter a .git file",
    "N": "make other spellings of .git",
}
"""The titles of the threats by their ids, in the order of the report."""

MOVES = frozenset({"R1", "R2a", "R3a", "R4", "R6", "R7", "C2"})
"""Threats whose attacks rename or remove an existing name."""
OUTSIDE = "/tmp"
"""Where symlinks and mounts are made if the user may not write in the view."""
STOPPING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT})
"""Signals that are blocked while the scratch directory is made, since it cannot be removed before
its name is known, and while it is removed."""
NOTHING = "the tree has no object that they attack"
UNTRIED = Row("attack.untried", "attacks that were not tried", "attacks that were not tried")
ON_REQUEST = "all of them, since they write into the project; --attack carries them out"
RETRY = "check that the disk has room and the mount answers, then run this again"
MEND = "do not let the agent in; unmount the guard and mount it again. If this stays, report it"
SWITCHED = dict.fromkeys(
    ("P1", "P2", "P4", "V4", "G4"),
    "mount it without --allow-bare, unless the project needs bare repositories",
)
"""Remedies for threats that an option lets in."""


class OutcomeKind(Enum):
    """The kind of an attack's outcome."""

    REFUSED = auto()
    PASSED = auto()
    LEFT = auto()
    """It succeeded and could not be undone."""
    OTHER = auto()
    """An errno that the guard does not use, or no answer."""
    UNTRIED = auto()


@dataclass(frozen=True)
class Outcome:
    """One attack and its outcome."""

    row: str
    name: str
    kind: OutcomeKind
    text: str = ""


@dataclass
class AttackRun:
    """One run of the attacks: its user, its scratch directory, and the outcomes so far."""

    user: User
    scratch: str
    found: SearchResult
    workdirs: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def next_workdir(self) -> str:
        """Return the path of the next attack's own directory; the child process makes it."""
        self.workdirs += 1
        return os.path.join(self.scratch, str(self.workdirs))


def check(context: Context) -> list[Result]:
    """Carry out all attacks. Returns one result for each threat."""
    user = context.user
    if user is None:
        return []
    row = scratch_row(context.mountpoint)
    try:
        found = search.search_as(user, context.mountpoint)
    except PermissionError as error:
        return [row.note(f"{user.name} cannot list it: {error.strerror}", title=row.failed)]
    except NoAnswer as error:
        return [row.unknown(f"not tried: the search for repositories failed: {error}", RETRY)]
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
    """Return the row on whether the attacks can run."""
    return Row(
        "attack.scratch",
        f"attacks can be tried in {mountpoint}",
        f"not all attacks could be tried in {mountpoint}",
    )


def _in_scratch(user: User, directory: str, attack: Callable[[str], list[Result]]) -> list[Result]:
    """Run ``attack`` in a new directory and return its results. The directory is always removed.

    This is not a context manager: a signal's exception could be raised between its making and the
    body of the ``with`` statement.
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
            # A signal that Python has already noted may raise its exception here.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        finally:
            removed = not scratch or _remove(scratch, user)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if not removed:
        hint = "remove it on the host, where nothing is guarded"
        row = Row(
            "attack.scratch",
            "the scratch directory is removed",
            "the scratch directory is left behind",
        )
        results.append(row.finding(scratch, hint))
    return results


def _remove(scratch: str, user: User) -> bool:
    """Remove the directory in a child process, which inherits the blocked signals."""
    try:
        return bool(run_as.run_as(search.remove_scratch, scratch, user=user, limit=180.0))
    except (NoAnswer, SwitchUserFailed, OSError):
        return False


def _all(context: Context, run: AttackRun) -> list[Result]:
    work = _attempt(run, "", "ordinary work", do_ordinary_work)
    if work.kind is not OutcomeKind.PASSED:
        why = f"not tried: ordinary work fails there ({work.text}), so refusals prove nothing"
        return [scratch_row(context.mountpoint).unknown(why, RETRY)]
    policy = find_policy(run)
    results = [report_policy(context.mountpoint, policy), _ordinary(run)]
    if policy == "off":
        return results
    results.append(link_checks.check(context, run.user, run.next_workdir()))
    _carry_out_all(context, run, refused_by(policy), policy)
    return results + judge(run.outcomes, run.found, policy)


def _reading(context: Context, run: AttackRun) -> list[Result]:
    """Try only to read, since the user may write nowhere in the view."""
    why = f"{run.user.name} can write nowhere in it, so only reading was tried"
    row = scratch_row(context.mountpoint)
    result = row.note(why, title=row.failed)
    policy = policy_by_reading(run.user, run.found)
    if policy in ("deny", "private"):
        reading = [attack for attack in refused_by(policy) if attack.reads]
        _carry_out_all(context, run, reading, policy)
    return [result, report_policy(context.mountpoint, policy), *judge(run.outcomes, None, policy)]


def find_policy(run: AttackRun) -> str:
    """Return off, readonly, private, unsure or deny, which stands for ``hide`` too."""
    planted = _carry_out(run, Attack("", "nothing", ("mkdir", "{w}/.git")))
    if planted.kind is not OutcomeKind.REFUSED:
        return "off" if planted.kind is OutcomeKind.PASSED else "unsure"
    by_reading = policy_by_reading(run.user, run.found)
    if by_reading in ("off", "readonly"):
        return "readonly"
    return "private" if by_reading == "private" else "deny"


def do_ordinary_work(workdir: str) -> None:
    """Do ordinary work of a project. If it fails, refusals of attacks prove nothing."""
    os.makedirs(f"{workdir}/directory")
    with open(f"{workdir}/file", "x") as file:
        file.write("text\n")
    os.rename(f"{workdir}/file", f"{workdir}/directory/moved")
    os.symlink("moved", f"{workdir}/directory/symlink")
    os.link(f"{workdir}/directory/moved", f"{workdir}/directory/linked")
    os.rename(f"{workdir}/directory", f"{workdir}/other")


def _ordinary(run: AttackRun) -> Result:
    row = Row(
        "guard.ordinary", "names like .gitignore stay usable", "names like .gitignore are refused"
    )
    try:
        refused = run_as_user(refused_names, run.next_workdir(), user=run.user)
    except (NoAnswer, OSError) as error:
        return row.disturbed(error)
    if refused:
        return row.note(", ".join(refused), "see --deny, --protect and --hide", row.failed)
    return row.ok()


def refused_names(workdir: str) -> list[str]:
    """Return the ordinary names that cannot be made in the new directory ``workdir``."""
    os.mkdir(workdir)
    refused = []
    for name in attacks.ORDINARY:
        try:
            os.close(os.open(f"{workdir}/{name}", os.O_CREAT | os.O_EXCL, 0o644))
        except OSError:
            refused.append(name)
    return refused


# One attack


def refused_by(policy: str) -> list[Attack]:
    """Return the harmless attacks that a guard with a policy for ``.git`` has to refuse."""
    return [
        attack
        for attack in attacks.TABLE
        if not attack.harms
        and {AGENT, FAKE_ROOT} & {*attack.actors}
        and not (policy == "readonly" and attack.reads)
        # What the agent may do with the file that it is shown as .git.
        and not (policy == "private" and attack.words in attacks.READING_A_FILE)
    ]


def _carry_out_all(context: Context, run: AttackRun, wanted: list[Attack], policy: str) -> None:
    for number, attack in enumerate(wanted, 1):
        context.say(f"attack {number} of {len(wanted)}: {attack.name}")
        run.outcomes.append(_carry_out(run, attack, policy))


def _carry_out(run: AttackRun, attack: Attack, policy: str = "") -> Outcome:
    """Try one attack. Where --git=private shows a file, those on a directory are tried on that."""
    on_file = policy == "private" and attack.on == "directory"
    path = getattr(run.found, "file" if on_file else attack.on, "")
    if path is None or (attack.on == "root" and is_inside(run.scratch, path)):
        return Outcome(attack.row, attack.name, OutcomeKind.UNTRIED, "")
    verb = attack.words[0]
    refused = {errno.EACCES, errno.EROFS, *EARLY[verb], *LACKING[verb]}
    if on_file:
        refused.add(errno.ENOTDIR)
    if path and attack.row in MOVES and _is_kept(path, run.user):
        refused.add(errno.EPERM)
    attempt = partial(attack.carry_out, path)
    return _attempt(run, attack.row, attack.name, attempt, refused, AGENT not in attack.actors)


def _is_kept(path: str, user: User) -> bool:
    """Return whether a sticky directory keeps the user from renaming ``path`` (EPERM)."""
    try:
        return bool(run_as.run_as(search.is_kept, path, user.uid, user=user))
    except (NoAnswer, OSError):
        return False


def _attempt(
    run: AttackRun,
    row: str,
    name: str,
    attempt: Callable[[str], object],
    refused: Collection[int] = (),
    fake_root: bool = False,
) -> Outcome:
    outcome = partial(Outcome, row, name)
    try:
        run_as_user(attempt, run.next_workdir(), user=run.user, fake_root=fake_root)
    except SetupFailed as error:
        return outcome(OutcomeKind.UNTRIED, str(error))
    except UndoFailed as error:
        return outcome(OutcomeKind.LEFT, str(error))
    except NoAnswer as error:
        return outcome(OutcomeKind.OTHER, str(error))
    except OSError as error:
        return outcome(*judge_errno(refused, error.errno or 0))
    return outcome(OutcomeKind.PASSED)


def judge_errno(refused: Collection[int], number: int) -> tuple[OutcomeKind, str]:
    """Return the outcome of an attack that failed with the errno ``number``, and its name."""
    code = errno.errorcode.get(number, str(number))
    if number in refused:
        return OutcomeKind.REFUSED, code
    if number in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
        return OutcomeKind.UNTRIED, code  # the object is gone, or the disk full
    return OutcomeKind.OTHER, code


# The results


def judge(outcomes: list[Outcome], found: SearchResult | None, policy: str) -> list[Result]:
    """Return one result for each threat, and a note on untried ones if ``found`` is given."""
    results = []
    missing: dict[str, list[str]] = {}
    nothing = NOTHING
    if found is not None and not found.complete:
        nothing = f"the first {found.searched} names of the tree have no object that they attack"
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
        detail = "; ".join(f"{', '.join(rows)}: {why}" for why, rows in missing.items())
        results.append(UNTRIED.note(detail))
    return results


def attack_row(row: str) -> Row:
    """Return the row of the report for one threat."""
    return Row(f"attack.{row}", f"refused: {TITLES[row]}", f"not refused: {TITLES[row]}")


def judge_row(row: str, outcomes: list[Outcome]) -> Result | None:
    """Return the result of one threat's attacks; None if none was tried."""
    result_row = attack_row(row)
    by_kind: dict[OutcomeKind, list[Outcome]] = {kind: [] for kind in OutcomeKind}
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    if left := by_kind[OutcomeKind.LEFT]:
        return result_row.finding(f"not undone: {_with_texts(left)}", MEND)
    passed, other = by_kind[OutcomeKind.PASSED], by_kind[OutcomeKind.OTHER]
    details = [f"succeeded: {', '.join(o.name for o in passed)}"] if passed else []
    if other:
        details.append(f"neither succeeded nor refused by the guard: {_with_texts(other)}")
    if details:
        return result_row.finding("; ".join(details), SWITCHED.get(row, MEND))
    if not by_kind[OutcomeKind.REFUSED]:
        return None
    detail = f"{len(by_kind[OutcomeKind.REFUSED])} refused"
    untried = [f"{o.name} ({o.text})" for o in by_kind[OutcomeKind.UNTRIED] if o.text]
    return result_row.ok("; not tried: ".join([detail, *([", ".join(untried)] if untried else [])]))


def _with_texts(outcomes: list[Outcome]) -> str:
    return "; ".join(f"{outcome.name}: {outcome.text}" for outcome in outcomes)
