"""The doctor's verdicts on what it has found: pure functions."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pyfuse3  # noqa: F401
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base import findings
from gitguardfs.base.findings import Result, Severity, Status
from gitguardfs.commands import doctor
from gitguardfs.doctor import (
    attack_checks,
    attacks,
    link_checks,
    mount_checks,
    other_mounts,
    privilege_checks,
    share_checks,
    writable_checks,
)
from gitguardfs.doctor.attack_checks import Outcome, OutcomeKind
from gitguardfs.doctor.context import CheckedSystem, Context, Table
from gitguardfs.doctor.privilege_checks import ProgramOutput
from gitguardfs.doctor.search import SearchResult
from gitguardfs.host import doctor_checks as host_checks
from gitguardfs.host.audit import trust
from gitguardfs.linux import mountinfo, run_as
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.run_as import NoAnswer, User
from gitguardfs.mounting import guards
from gitguardfs.mounting.guards import GuardDaemon
from gitguardfs.names import dotgit


def table(text: bytes) -> Table:
    return tuple(mountinfo.parse(text))


def _daemon(view: MountInfo, source: str = "/srv/x", pid: int = 7) -> GuardDaemon:
    return GuardDaemon(pid, view.identity, source, ())


AGENT = User(1000, 1000, (1000,), "agent")
TABLE = table(
    rb"""25 1 8:1 / / rw,relatime - ext4 /dev/vda rw
30 25 0:31 / /mnt/my\040share rw,relatime - 9p projects rw,access=client,trans=virtio
31 30 0:44 / /mnt/my\040share ro,nosuid,nodev - tmpfs gitguardfs-seal ro,mode=0
32 25 0:40 / /home/agent/projects rw,nosuid,nodev,relatime - fuse.gitguardfs /mnt/my\040share rw,user_id=0,group_id=0,default_permissions,allow_other
33 25 0:41 / /home/agent/other rw,nosuid,nodev - fuse.gitguardfs gitguardfs rw,user_id=1000,group_id=1000,default_permissions
34 25 0:45 / /srv/v rw - virtiofs code rw
"""  # noqa: E501
)
GUARD, OTHER = TABLE[3], TABLE[4]


def case(mountpoint: str, *daemons: GuardDaemon, is_root: bool = True) -> Context:
    return Context(mountpoint, AGENT, is_root, TABLE, daemons)


# -------------------------------------------------------------------------------- the mount


@pytest.mark.parametrize("option", sorted(mount_checks.WANTED))
def test_each_missing_mount_option_is_a_finding(option: str) -> None:
    assert mount_checks.check_options("/m", GUARD.all_options).status is Status.OK
    without = mount_checks.check_options("/m", GUARD.all_options - {option})
    assert without.status is Status.FINDING and option in without.detail


def test_a_daemon_that_is_not_roots_is_a_finding() -> None:
    daemon = _daemon(GUARD)
    assert mount_checks.check_daemon(case(GUARD.path, daemon)).status is Status.OK
    assert mount_checks.check_daemon(case(OTHER.path, daemon)).status is Status.FINDING
    assert mount_checks.check_daemon(case(GUARD.path)).status is Status.NOTE


@pytest.mark.parametrize(("release", "is_slow"), [("3.5.1", False), ("3.6.0", True)])
def test_a_release_of_pyfuse3_that_makes_a_view_slow_is_noted(
    monkeypatch: pytest.MonkeyPatch, release: str, is_slow: bool
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: release)
    served = case(GUARD.path, _daemon(GUARD, pid=os.getpid()))  # this process has pyfuse3
    assert [found.status for found in mount_checks.note_pyfuse3(served)] == [Status.NOTE] * is_slow
    assert not mount_checks.note_pyfuse3(case(GUARD.path, _daemon(GUARD, pid=1)))


@pytest.mark.parametrize(
    ("cgroups", "severity"),
    [
        (b"0::/system.slice/system-gitguardfs.slice/gitguardfs@home-me.service\n", None),
        (b"0::/init.scope\n1:cpu:/user.slice/user-0.slice\n", None),
        (b"0::/user.slice/user-1000.slice/session-3.scope\n", Severity.HIGH),
        (b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope\n", Severity.HIGH),
        (b"2:cpu:/\n1:name=systemd:/user.slice/user-7.slice/session-c2.scope\n", Severity.MEDIUM),
    ],
)
def test_a_daemon_that_a_session_would_take_along_is_a_finding(
    cgroups: bytes, severity: Severity | None
) -> None:
    found = mount_checks.check_session("/m", {5: mount_checks.parse_session(cgroups)}, AGENT)
    assert found.severity is severity
    assert ("process 5 is in /user.slice/" in found.detail) is (severity is not None)


# ------------------------------------------------------------------------- whom to become


def test_the_owner_of_the_view_is_the_agent_unless_no_user_has_that_number() -> None:
    def found(user: User, caller: str | None) -> list[Result]:
        return doctor.check_default_user(Context("/my view", user, True), caller)

    assert found(AGENT, "1000") == found(AGENT, "0") == found(AGENT, None) == []
    [said] = found(AGENT, "1001")
    assert said.status is Status.NOTE and "agent" in said.title
    assert "sudo gitguard doctor '/my view' --user NAME" in said.hint
    [said] = found(User(501, 501, (501,), "501", has_account=False), None)
    assert said.status is Status.FINDING and "no account" in said.detail


# --------------------------------------------------------------------- mounts beside the guard

WAYS = table(
    rb"""1 0 8:1 / / rw - ext4 /dev/vda rw
2 1 8:2 /vol /data rw - ext4 /dev/vdb rw
3 1 8:2 /vol/raw/p /srv/bind rw - ext4 /dev/vdb rw
4 1 8:2 /vol/raw/p/src /home/view/in\040it rw - ext4 /dev/vdb rw
5 1 8:2 /vol/raw /srv/above rw - ext4 /dev/vdb rw
6 1 8:2 /vol/other /srv/other rw - ext4 /dev/vdb rw
7 1 8:2 / /srv/covered rw - ext4 /dev/vdb rw
8 7 0:9 / /srv/covered/vol rw - tmpfs none rw
9 2 0:8 / /data/raw/p ro - tmpfs gitguardfs-seal ro
10 1 0:7 / /srv/fuse rw - fuse /data/raw rw
11 1 0:6 / /home/view rw - fuse.gitguardfs x rw
12 1 0:5 / /home/second rw - fuse.gitguardfs x rw
"""
)


def test_each_mount_that_shows_the_guarded_directory_is_known() -> None:
    assert other_mounts.by_device(WAYS, "/data/raw/p") == {
        "/srv/bind",
        "/home/view/in it",
        "/srv/above/p",
    }
    by_mount = {10: ("/data/raw",), 12: ("/data/raw/p/src",), 7: ("/elsewhere",)}
    ways = other_mounts.by_fuse(WAYS, "/data/raw/p", by_mount)
    assert {path: seen.mnt_id for path, seen in ways.items()} == {
        "/srv/fuse/p": 10,
        "/home/second": 12,
    }


@pytest.mark.parametrize(
    ("path", "where"),
    [("/srv/view", "on"), ("/srv/view/a", "in"), ("/srv", "around"), ("/srv/view2", None),
     ("/mnt/share", "on"), ("/mnt/share/x", "in"), ("/mnt", "around"), ("/mnt/sharex", None)],
)  # fmt: skip
def test_a_fuse_mount_that_is_not_roots_is_found_wherever_it_can_bend_the_guard(
    path: str, where: str | None
) -> None:
    def line(number: int, path: str, kind: str, uid: int) -> str:
        return f"{number} 1 0:{number} / {path} rw - {kind} /mnt/share rw,user_id={uid}"

    lines = [line(20, path, "fuse.x", 1000), line(21, "/srv/view", "fuse.gitguardfs", 0),
             line(22, "/mnt/share", "fuse.gocryptfs", 0)]  # fmt: skip
    rows = table("\n".join(lines).encode())
    result = other_mounts.check_foreign(Context("/srv/view", AGENT, True, rows))
    assert result.status is (Status.OK if where is None else Status.FINDING)
    assert where is None or f"{path} is mounted by uid 1000 ({where} " in result.detail


@pytest.mark.parametrize(
    ("options", "expected"),
    [(("source-owner=1001",), Status.OK), (("map=a:b",), Status.FINDING), (None, Status.FINDING),
     (("source-owner=1000",), Status.FINDING), (("source-owner=nobody-here",), Status.FINDING)],
)  # fmt: skip
def test_a_source_of_anothers_that_was_asked_for_is_no_finding(
    options: tuple[str, ...] | None, expected: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "options_of", lambda _: options)
    uid = 1000 if options == ("source-owner=1000",) else 1001
    lines = f"""20 1 0:20 / /mnt/share rw - fuse.gocryptfs /mnt/share rw,user_id={uid}
21 1 0:21 / /srv/view rw - fuse.gitguardfs /mnt/share rw,user_id=0"""
    case = Context("/srv/view", AGENT, True, table(lines.encode()))
    assert other_mounts.check_foreign(case).status is expected


def test_a_source_that_root_cannot_find_is_a_finding() -> None:
    def said(is_root: bool) -> list[Status]:
        results = share_checks.check(Context(OTHER.path, AGENT, is_root, (OTHER,)))
        return [r.status for r in results if "the guard's source is" in r.title]

    assert said(True) == [Status.FINDING] and said(False) == [Status.NOTE]


# -------------------------------------------------------------------------------- the share


@pytest.mark.parametrize("mountpoint", ["", OTHER.path])
def test_what_was_not_checked_for_lack_of_a_source_is_not_ok(mountpoint: str) -> None:
    table = tuple(seen for seen in (OTHER,) if seen.path == mountpoint)
    results = share_checks.check(Context(mountpoint, AGENT, True, table))
    said = {r.id: r for r in results}
    assert "share.path" in said
    assert Status.OK not in {r.status for r in results if r.id != "share.remount"}
    assert (said["share.path"].status is Status.FINDING) == (mountpoint != "")


# --------------------------------------------------------------------------------- the rights

SUDO = """Matching Defaults entries for agent on vm:
    env_reset, mail_badpass, secure_path=/usr/local/sbin\\:/usr/sbin

User agent may run the following commands on vm:
"""


@pytest.mark.parametrize(
    ("rules", "free", "asked"),
    [
        ("    (ALL : ALL) ALL\n", [], ["ALL"]),
        ("    (ALL : ALL) NOPASSWD: ALL\n", ["ALL"], []),
        ("    (ALL) NOPASSWD: ALL\n", ["ALL"], []),
        (
            "    (root) NOPASSWD: /bin/a, /bin/b x, PASSWD: /bin/c\n",
            ["/bin/a", "/bin/b x"],
            ["/bin/c"],
        ),
        ("    (root) SETENV: NOPASSWD: /bin/a\n", ["/bin/a"], []),
        ("    (root) NOPASSWD: /bin/a,\n        /bin/b\n", ["/bin/a", "/bin/b"], []),
        ("    (www-data) NOPASSWD: ALL\n", [], []),
        ("    (ALL, !root) NOPASSWD: ALL\n", [], []),
        ("    (root) /bin/a\n    (root) NOPASSWD: /bin/b\n", ["/bin/b"], ["/bin/a"]),
        ("    (root) NOPASSWD: !/bin/sh, /bin/a\\,b\n", ["/bin/a\\,b"], []),
        ("", [], []),
    ],
)
def test_sudo_rules_are_read_as_sudo_means_them(
    rules: str, free: list[str], asked: list[str]
) -> None:
    assert privilege_checks.parse_sudo(SUDO + rules) == (free, asked)


def test_defaults_that_ask_for_no_password_are_read() -> None:
    rules = "    (root) /bin/a, PASSWD: /bin/b\n"
    free = SUDO.replace("env_reset", "env_reset, !authenticate")
    assert privilege_checks.parse_sudo(free + rules) == (["/bin/a"], ["/bin/b"])
    kept = SUDO.replace("env_reset", "authenticate")
    assert privilege_checks.parse_sudo(kept + rules) == ([], ["/bin/a", "/bin/b"])


def test_sudo_that_does_not_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privilege_checks, "SECONDS", 0.1)
    with pytest.raises(TimeoutError):
        privilege_checks._run(["sleep", "5"])

    def lost(*_: object, **__: object) -> None:
        raise NoAnswer("no answer in time")

    monkeypatch.setattr(run_as, "run_as", lost)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/sudo")
    said = privilege_checks._sudo(AGENT, CheckedSystem(), True)
    assert said.status is Status.FINDING and "could not be checked" in said.detail
    said = writable_checks.check(AGENT, CheckedSystem(), ())
    assert said.status is Status.FINDING and "could not be checked" in said.detail


@pytest.mark.parametrize(
    "answer",
    [
        ProgramOutput(0, "User agent is not allowed to run sudo on vm.\n"),
        ProgramOutput(1, err="Sorry, user agent may not run sudo on vm.\n"),
        ProgramOutput(1, err="sudo: unknown user #4242\n"),
        ProgramOutput(1, err="sudo: you do not exist in the passwd database\n"),
    ],
)
def test_a_user_whom_sudo_gives_nothing_is_known_by_what_it_says(answer: ProgramOutput) -> None:
    assert privilege_checks.judge_sudo("agent", False, answer, True).status is Status.OK


@pytest.mark.parametrize("error", ["sudo: a password is required\n", ""])
def test_rights_that_sudo_does_not_list_are_not_taken_for_none(error: str) -> None:
    said = privilege_checks.judge_sudo("agent", False, ProgramOutput(1, err=error), True)
    assert said.status is Status.FINDING and "could not be checked" in said.detail
    assert "sudo -l -U agent" in said.hint
    own = privilege_checks.judge_sudo("agent", False, ProgramOutput(1, err=error), False)
    assert own.status is Status.NOTE and own.hint == "run it with sudo"


@given(st.text())
def test_no_listing_of_sudo_ends_the_doctor(text: str) -> None:
    privilege_checks.parse_sudo(SUDO + text)


@pytest.mark.parametrize("group", ["docker", "lxd", "incus", "libvirt", "disk", "kmem"])
def test_a_group_that_gives_root_is_a_finding(group: str) -> None:
    said = privilege_checks.judge_groups(AGENT, ["agent", group])
    assert said.status is Status.FINDING and group in said.detail and group in said.hint


def test_groups_that_give_nothing_are_not_findings() -> None:
    assert privilege_checks.judge_groups(AGENT, ["agent", "kvm", "audio"]).status is Status.OK
    for group in ("sudo", "wheel", "admin", "adm", "staff", "podman"):
        assert privilege_checks.judge_groups(AGENT, ["agent", group]).status is Status.NOTE


# -------------------------------------------------------------------------------- the attacks


def test_every_row_has_an_attack_and_every_attack_a_row() -> None:
    assert {a.row for a in attack_checks.refused_by("deny")} == set(attack_checks.TITLES)
    assert {a.row for a in attacks.TABLE} == set(attack_checks.TITLES)


@pytest.mark.parametrize("payload", ["config", "config.worktree", "hooks"])
def test_refs_and_objects_are_tried_with_every_payload(payload: str) -> None:
    parts = [a.words[5:] for a in attacks.TABLE if a.words[0] == "assemble"]
    assert {p[-1] for p in parts if {*p} == {"refs", "objects", payload}} == {
        "refs", "objects", payload,
    }  # fmt: skip


def test_the_spellings_are_those_that_the_guard_refuses_and_the_ordinary_are_not() -> None:
    for name in attacks.SPELLINGS:
        assert dotgit.is_dotgit(os.fsencode(name)), ascii(name)
    for name in attacks.ORDINARY:
        assert not dotgit.is_dotgit(os.fsencode(name)), name


def test_only_an_expected_errno_is_a_refusal() -> None:
    def kind(number: int) -> OutcomeKind:
        return attack_checks.judge_errno({errno.EACCES}, number)[0]

    assert kind(errno.EACCES) is OutcomeKind.REFUSED
    assert kind(errno.ENOTEMPTY) is OutcomeKind.OTHER
    assert kind(errno.EPERM) is OutcomeKind.OTHER
    assert kind(errno.EIO) is OutcomeKind.OTHER
    assert kind(errno.ENOSPC) is OutcomeKind.UNTRIED


REFUSED = Outcome("R1", "a", OutcomeKind.REFUSED, "EACCES")


@pytest.mark.parametrize(
    "kind", [OutcomeKind.PASSED, OutcomeKind.OTHER, OutcomeKind.LEFT], ids=lambda kind: kind.value
)
def test_one_attack_that_is_not_refused_makes_its_row_a_finding(kind: OutcomeKind) -> None:
    row = attack_checks.judge_row("R1", [REFUSED, Outcome("R1", "the bad", kind)])
    assert row is not None and row.status is Status.FINDING and "the bad" in row.detail
    assert row.title == "not refused: rename .git and what is in it"


def test_rows_that_nothing_was_there_for_are_a_note_and_never_ok() -> None:
    untried = [Outcome(row, "x", OutcomeKind.UNTRIED) for row in attack_checks.TITLES]
    results = attack_checks.judge(untried, SearchResult(), "deny")
    assert [(r.id, r.status) for r in results] == [("attack.untried", Status.NOTE)]
    assert "R1" in results[0].detail
    partly = attack_checks.judge(untried, SearchResult(searched=9, complete=False), "deny")
    assert "first 9 names" in partly[0].detail
    spaces = [*untried, Outcome("U1", "y", OutcomeKind.UNTRIED, "no namespaces")]
    assert "; U1: no namespaces" in attack_checks.judge(spaces, SearchResult(), "deny")[0].detail


# -------------------------------------------------------------------------------- symlinks


STORED = dict.fromkeys(link_checks.TEXTS, "/.gitguardfs-guest//etc")


def _links(
    monkeypatch: pytest.MonkeyPatch,
    source: Path,
    read: dict[str, str],
    is_root: bool = True,
    was_moved: bool = False,
) -> Result:
    monkeypatch.setattr(run_as, "run_as", lambda *_, **__: [was_moved, read])
    daemon = _daemon(GUARD, str(source))
    context = case(GUARD.path, daemon, is_root=is_root)
    return link_checks.check(context, AGENT, f"{GUARD.path}/scratch/1")


@pytest.mark.parametrize("name", [None, *link_checks.TEXTS])
def test_a_symlink_that_leads_out_is_seen_in_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    (tmp_path / "scratch/1").mkdir(parents=True)
    raw = {name: link_checks.TEXTS[name]} if name else {}
    for link, text in (STORED | raw).items():
        (tmp_path / "scratch/1" / link).symlink_to(text)
    said = _links(monkeypatch, tmp_path, link_checks.TEXTS)
    assert said.status is (Status.FINDING if name else Status.OK)
    assert said.detail.count("is stored as") == (name is not None)
    unseen = _links(monkeypatch, tmp_path, link_checks.TEXTS, is_root=False)
    assert unseen.status is Status.OK and "only root" in unseen.detail


def test_a_symlink_that_reads_otherwise_than_it_was_made_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _links(monkeypatch, tmp_path, STORED)
    assert said.severity is Severity.MEDIUM and "/etc reads as /.gitguardfs-guest//" in said.detail


def test_without_a_guard_a_symlink_can_be_moved_to_where_it_leads_out(tmp_path: Path) -> None:
    was_moved, texts = link_checks._make(str(tmp_path / "1"), 3)
    assert was_moved and texts == link_checks.TEXTS


# ----------------------------------------------------------------------------------- the host


def test_the_label_of_a_shared_directory_is_judged_only_with_selinux() -> None:
    judge = host_checks.judge_label
    assert judge("/p", None, "").status is Status.OK
    assert judge("/p", True, "u:object_r:svirt_home_t:s0").status is Status.OK
    wrong = judge("/p", True, "u:object_r:user_home_t:s0")
    assert wrong.status is Status.NOTE and "semanage" in wrong.hint


def test_a_git_that_trusts_bare_repositories_is_told() -> None:
    assert trust.judge("explicit").status is Status.OK
    for value in ("all", ""):
        assert trust.judge(value).severity is Severity.LOW


def test_the_users_own_environment_counts_as_git_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[safe]\n\tbareRepository = explicit\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    own = (None, os.geteuid(), lambda function, git: function(git))
    (result,) = host_checks.check(*own)
    assert result.status is Status.OK
    for name, value in (("COUNT", "1"), ("KEY_0", "safe.bareRepository"), ("VALUE_0", "all")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    (result,) = host_checks.check(*own)
    assert result.status is Status.FINDING
    monkeypatch.delenv("GIT_CONFIG_COUNT")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    (result,) = host_checks.check(*own)
    assert result.status is Status.FINDING


# ---------------------------------------------------------------------------------- the report


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_names_from_the_tree_cannot_write_to_the_terminal(text: str) -> None:
    shown = findings.as_text([Result("x", Status.FINDING, text, text, text)], sys.maxsize)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown.split("\n")) <= 4


def test_the_checks_that_take_long_say_what_they_are_at(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(share_checks, "_by_path", lambda *_: share_checks.NO_SHARE)
    monkeypatch.setattr(share_checks, "_in_namespace", lambda *_: share_checks.NO_SHARE)
    monkeypatch.setattr(privilege_checks, "_rights", lambda *_: [])
    monkeypatch.setattr(writable_checks, "writable_among", lambda *_: ([], []))
    monkeypatch.setattr(attack_checks, "_carry_out", lambda *_: Outcome("", "", OutcomeKind.PASSED))
    context = Context("", AGENT, False, (TABLE[1], TABLE[5]), say=said.append)
    share_checks.check(context)
    assert said == ["the raw share at /mnt/my share", "the raw share at /srv/v"]
    privilege_checks.check(context)
    assert said[2:] == ["what root runs for the mount, file by file"]
    run = attack_checks.AttackRun(AGENT, "/scratch", SearchResult())
    attack_checks._carry_out_all(context, run, list(attacks.TABLE), "deny")
    assert len(run.outcomes) == len(attacks.TABLE) == len(said[3:])
    assert said[-1].startswith(f"attack {len(attacks.TABLE)} of {len(attacks.TABLE)}: ")
