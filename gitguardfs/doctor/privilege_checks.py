"""Checks whether the user can become root: by sudo, doas or a group.

Polkit is not checked: what it grants depends on rules written in JavaScript.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from gitguardfs.base import quote
from gitguardfs.base.constants import AGENT
from gitguardfs.base.errors import os_error
from gitguardfs.base.findings import Result, Row, Status
from gitguardfs.doctor import writable_checks
from gitguardfs.doctor.context import CheckedSystem, Context
from gitguardfs.linux import run_as
from gitguardfs.linux.run_as import NoAnswer, User

ROOT_GROUPS = {
    "docker": "can start containers with access to the whole disk",
    "lxd": "can start containers with access to the whole disk",
    "incus": "can start containers",
    "incus-admin": "can start containers with access to the whole disk",
    "libvirt": "can start virtual machines with access to the whole disk",
    "libvirt-qemu": "owns the disks of virtual machines",
    "disk": "can read and write the disks",
    "kmem": "can read the memory of the system",
    "root": "can write what root's group can write",
    "shadow": "can read the hashes of passwords",
}
"""Groups whose members can become root, or nearly."""
ADMIN_GROUPS = frozenset({"sudo", "wheel", "admin"})
"""Groups that usually may use sudo with a password; ``judge_sudo`` finds use without one."""
OTHER_GROUPS = {
    "adm": "can read the system's logs",
    "systemd-journal": "can read the system's logs",
    "staff": "can write to /usr/local on Debian, where programs lie that root runs",
    "podman": "can use root's podman if its socket is open to this group",
}

SUDO = "rights.sudo"
SECONDS = 10
"""For sudo and doas, which may ask a server for the rules."""
_NO_RIGHTS = re.compile(r"may not run sudo|not allowed to run sudo|unknown user|passwd database")
"""Messages of ``sudo -l`` for a user without rights, or without an account."""


def check(context: Context) -> list[Result]:
    """Run all checks of privileges."""
    user = context.user
    if user is None:
        return []
    results = _rights(user, context.system, context.is_root)
    context.say("what root runs for the mount, file by file")
    return [
        *results,
        writable_checks.check(user, context.system, context.daemons),
        *check_lima(context),
    ]


def ways_to_root(user: User, system: CheckedSystem) -> list[Result]:
    """Return the rows that say how the user can become root, also with a password. Needs root."""
    try:
        rows = _rights(user, system, True)
    except run_as.SwitchUserFailed as error:
        return [_sudo_row(user.name).unknown(f"could not be checked: {error}", "gitguard doctor")]
    return [
        row
        for row in rows
        if row.status is Status.FINDING or (row.id == SUDO and row.status is Status.NOTE)
    ]


def _rights(user: User, system: CheckedSystem, is_root: bool) -> list[Result]:
    groups = [system.group_name(gid) for gid in user.groups]
    return [_sudo(user, system, is_root), _doas(user, system), judge_groups(user, groups)]


def _first(user: str, otherwise: str) -> str:
    """Return the hint for a user who can become root: first another user for the agent.

    What takes rights away comes second: this may be the only user who can become root.
    """
    if user == AGENT:
        return otherwise
    return (
        f"give the agent a user of its own: sudo useradd -m -s /bin/bash {AGENT}; then vm-mount"
        f" --remove, and vm-mount with a --map-mount below /home/{AGENT}; otherwise {otherwise}"
    )


# sudo


@dataclass(frozen=True)
class ProgramOutput:
    """A program's exit status and output."""

    code: int
    out: str = ""
    err: str = ""


def _output(*words: str, user: User | None = None) -> ProgramOutput:
    """Run a program as a user. Raises NoAnswer, OSError."""
    return ProgramOutput(*run_as.run_as(_run, words, user=user))


def _run(words: list[str]) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            words,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise os_error(errno.ETIMEDOUT) from None
    return done.returncode, done.stdout, done.stderr


def _sudo(user: User, system: CheckedSystem, is_root: bool) -> Result:
    program = shutil.which("sudo", path=system.search_path)
    if program is None:
        return _sudo_row(user.name).ok("sudo is not installed")
    try:
        # -k: ignore a password that sudo remembers.
        runs = _output(program, "-k", "-n", "true", user=user).code == 0
        lists = _output(program, "-n", "-l", user=user)
        if is_root and lists.code != 0:
            # Listing needs the user's password unless one rule has NOPASSWD (listpw); root needs
            # none.
            user_spec = user.name if user.has_account else f"#{user.uid}"
            lists = _output(program, "-n", "-l", "-U", user_spec)
    except (NoAnswer, OSError, TypeError) as error:
        hint = "sudo -k -n true as that user shows why"
        return _sudo_row(user.name).unknown(f"could not be checked: {error}", hint)
    return judge_sudo(user.name, runs, lists, is_root)


def _sudo_row(user: str) -> Row:
    return Row(
        SUDO, f"{user} has no sudo without a password", f"{user} has sudo without a password"
    )


def judge_sudo(user: str, runs: bool, lists: ProgramOutput, is_root: bool) -> Result:
    """Judge the answers of ``sudo -n true`` (``runs``) and ``sudo -n -l``."""
    row = _sudo_row(user)
    keeps = "once another user can become root,"
    hint = _first(user, f"{keeps} remove the NOPASSWD line in /etc/sudoers.d or by visudo")
    if runs:
        return row.finding("sudo -n true works", hint)
    if lists.code != 0 and not _NO_RIGHTS.search(lists.out + lists.err):
        why = (lists.err.strip().splitlines() or [f"it exits with {lists.code}"])[-1]
        detail = f"could not be checked: sudo does not list the user's rights: {why}"
        if not is_root:
            return row.note(detail, "run it with sudo")
        return row.unknown(detail, f"{quote.shell(['sudo', '-l', '-U', user])} shows why")
    free, asked = parse_sudo(lists.out)
    if free:
        return row.finding(f"without a password: {', '.join(free)}", hint)
    if asked:
        hint = _first(user, "do not give the agent this password")
        return row.note(", ".join(asked), hint, f"{user} has sudo with a password")
    return row.ok()


def parse_sudo(listing: str) -> tuple[list[str], list[str]]:
    """Return the commands that ``sudo -l`` lists to run as root: without and with a password.

    A tag applies to the commands after it in the same rule (sudoers(5), "Tag_Spec"). A Defaults
    line above the rules may switch passwords off for all.
    """
    free: list[str] = []
    asked: list[str] = []
    rules = re.split(r"may run the following commands[^\n]*\n", listing, maxsplit=1)
    # Counts even for Defaults of some commands only: rather one finding too many.
    asks = re.search(r"(?<![\w!])!authenticate\b", rules[0]) is None
    for rule in re.findall(r"^ +(\(.*(?:\n {8,}[^ (].*)*)", "".join(rules[1:]), re.MULTILINE):
        match = re.match(r"\(([^)]*)\)\s*(.*)", rule, re.DOTALL)
        if match is None or not _as_root(match[1]):
            continue
        password = asks
        for part in re.split(r"(?<!\\),\s*", match[2]):
            command = " ".join(part.split())
            while tag := re.match(r"([A-Z_]+):\s*", command):
                password = {"NOPASSWD": False, "PASSWD": True}.get(tag[1], password)
                command = command[tag.end() :]
            if command and not command.startswith("!"):
                (asked if password else free).append(command)
    return free, asked


def _as_root(runas: str) -> bool:
    users = [word.strip() for word in runas.partition(":")[0].split(",")]
    return bool({"ALL", "root", "#0"} & set(users)) and "!root" not in users


# doas


def _doas(user: User, system: CheckedSystem) -> Result:
    program = shutil.which("doas", path=system.search_path)
    try:
        runs = program is not None and _output(program, "-n", "true", user=user).code == 0
    except (NoAnswer, OSError, TypeError) as error:
        hint = "doas -n true as that user shows why"
        return _doas_row(user.name).unknown(f"could not be checked: {error}", hint)
    return judge_doas(user.name, runs, _doubts_of_doas(system.doas_files))


def _doubts_of_doas(paths: tuple[str, ...]) -> list[str]:
    """Return why doas.conf may allow some commands without a password; it is not parsed."""
    found = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                if b"nopass" in file.read():
                    found.append(f"{path} has nopass")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found.append(f"{path} cannot be read: {error.strerror}")
    return found


def _doas_row(user: str) -> Row:
    return Row(
        "rights.doas",
        f"{user} has no doas without a password",
        f"{user} has doas without a password",
    )


def judge_doas(user: str, runs: bool, doubts: list[str]) -> Result:
    """Judge the answer of ``doas -n true``, and signs of rules for other commands (``doubts``)."""
    row = _doas_row(user)
    if runs:
        otherwise = "once another user can become root, remove nopass from doas.conf"
        return row.finding("doas -n true works", _first(user, otherwise))
    if doubts:
        detail = f"{'; '.join(doubts)}: single commands were not checked"
        hint = "check that no rule with nopass names the agent's user or one of their groups"
        return row.note(detail, hint, f"{user} cannot run all commands by doas without a password")
    return row.ok()


# Groups


def judge_groups(user: User, names: list[str]) -> Result:
    """Judge the names of the user's groups."""
    row = Row(
        "rights.groups",
        f"{user.name} is in no group whose members can become root",
        f"{user.name} is in a group whose members can become root",
    )
    rooted = [f"{name} ({ROOT_GROUPS[name]})" for name in names if name in ROOT_GROUPS]
    if rooted:
        group = next(name for name in names if name in ROOT_GROUPS)
        hint = _first(user.name, f"sudo gpasswd -d {user.name} {group}, then log out")
        return row.finding(", ".join(rooted), hint)
    admin = [name for name in names if name in ADMIN_GROUPS]
    if admin:
        return row.note(
            f"{', '.join(admin)}: can become root with a password",
            _first(user.name, "do not give the agent this password"),
        )
    other = [f"{name}: {OTHER_GROUPS[name]}" for name in names if name in OTHER_GROUPS]
    if other:
        return row.note(", ".join(other))
    return row.ok()


# Lima


def check_lima(context: Context) -> list[Result]:
    """Check that the user cannot connect to Lima's guest agent; [] if there is none."""
    user, path = context.user, context.system.lima_socket
    if user is None or not os.path.lexists(path):
        return []
    row = Row(
        "rights.lima",
        f"{user.name} cannot connect to Lima's guest agent",
        f"{user.name} can connect to Lima's guest agent, and become root by it",
    )
    try:
        # Connecting to a socket needs write permission on it (unix(7)).
        is_open = run_as.run_as(os.access, path, os.W_OK, user=user)
    except (NoAnswer, OSError) as error:
        return [
            row.unknown(
                f"could not be checked: {error}", f"ls -l {quote.shell([path])}: it must be root's"
            )
        ]
    if is_open:
        hint = "Lima 2.1.3 or later keeps it closed: update Lima, then restart the machine"
        return [row.finding(path, hint)]
    return [row.ok()]
