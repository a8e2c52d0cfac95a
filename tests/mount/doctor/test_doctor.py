"""gitguard doctor on real mounts: no finding where all is well, and one for each fault."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gitguardfs.base.errors import Exit, GitguardExit, UserError
from gitguardfs.base.findings import Result, Status
from gitguardfs.commands import doctor
from gitguardfs.doctor import attack_checks, attacks, policy_checks, privilege_checks, search
from gitguardfs.doctor.attack_checks import AttackRun, Outcome, OutcomeKind
from gitguardfs.doctor.attacks import Attack
from gitguardfs.doctor.context import CheckedSystem, find_user
from gitguardfs.doctor.search import SearchResult
from gitguardfs.linux import syscalls
from gitguardfs.linux.run_as import User
from gitguardfs.mounting import seal
from tests.support.mounting import REPOSITORY, Mounted, area, bindfs, gitguardfs, unmount, until
from tests.support.people import AGENT, as_user, make_dumpable
from tests.support.raw_calls import MNT_DETACH, MS_BIND, mount, umount
from tests.support.repos import (
    HOST_GID,
    HOST_UID,
    MAP,
    Recorded,
    check_git_works,
    copy_project,
    differences,
    make_project,
    metadata,
)

ANY_WARNING = (r"",)
COMMAND = (sys.executable, "-c", "from gitguardfs.commands.gitguard import main; main()", "doctor")
QUIET = CheckedSystem(search_path="/nonexistent", doas_files=())
"""A system without sudo, doas and other processes, whatever this one has."""
CLEAR = 'echo "User a is not allowed to run sudo on b."'


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with area() as path:
        (path / "hidden").mkdir(mode=0o700)
        os.chown(path / "hidden", HOST_UID, HOST_GID)
        make_project(path / "hidden/project")
        yield path


@pytest.fixture(scope="module")
def project(place: Path) -> Path:
    """A project with no further guard: of two guards on one source the doctor attacks both."""
    return copy_project(place / "hidden/project", place / "hidden/own")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attack for each threat, where a test is not about the attacks."""
    table = {attack.row: attack for attack in attack_checks.refused_by("deny")}
    monkeypatch.setattr(attacks, "TABLE", tuple(table.values()))


@pytest.fixture(scope="module")
def guarded(place: Path) -> Iterator[Mounted]:
    """A sound guard: its source lies below a directory that only its owner may enter."""
    with gitguardfs(place / "hidden/project", place / "view", "--map", MAP) as mounted:
        yield mounted


@pytest.fixture
def open_share() -> Iterator[Path]:
    """A directory that everybody can reach, with a project in it and room for a view."""
    with area() as path:
        (path / "raw").mkdir()
        make_project(path / "raw/share")
        try:
            yield path
        finally:
            unmount(path / "raw/share")


def examine(view: Path, system: CheckedSystem = QUIET, attack: bool = False) -> list[Result]:
    return doctor.examine(str(view), str(AGENT), None, system, attack)


def _rows(results: list[Result]) -> list[dict[str, object]]:
    """The exceptions that can leave a child process."""
    return [asdict(result) for result in results]


def findings(results: list[Result]) -> list[str]:
    print(*(result for result in results if result.status is Status.FINDING), sep="\n")
    return [result.id for result in results if result.status is Status.FINDING]


def left_in(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.startswith(search.SCRATCH)]


# -------------------------------------------------------------------------------- all is well


def test_a_sound_guard_gives_no_finding_and_is_left_as_it_was(guarded: Mounted) -> None:
    before = metadata(guarded.source)
    names = sorted(os.listdir(guarded.source))
    results = examine(guarded.path, attack=True)
    assert findings(results) == []
    assert [r for r in results if r.status is not Status.OK] == []
    rows = {f"attack.{row}" for row in (*attack_checks.TITLES, "G6")}
    assert rows | {"guard.links"} <= {r.id for r in results}
    assert [r for r in results if "not tried" in r.detail] == []
    assert metadata(guarded.source) == before
    assert sorted(os.listdir(guarded.source)) == names
    check_git_works(guarded.source)


def test_a_seal_over_an_open_share_gives_no_finding(open_share: Path) -> None:
    view = open_share / "view"
    with gitguardfs(open_share / "raw/share", view, "--map", MAP, "--seal"):
        assert findings(examine(view)) == []


def test_a_directory_inside_of_the_mount_stands_for_the_mount(guarded: Mounted) -> None:
    results = examine(guarded.path / "src")
    assert findings(results) == []
    assert any(result.id == "guard.mounted" for result in results)


def test_no_user_leads_the_doctor_to_another_guard(guarded: Mounted, place: Path) -> None:
    users = place / "users"
    users.mkdir()
    os.chown(users, AGENT, AGENT)
    as_user(os.symlink, guarded.path, users / "projects")
    as_user(os.symlink, place, users / "up")
    for path in (users / "projects", users / "projects/src", users / "up/view"):
        with pytest.raises(UserError, match="is a symlink that is not root's"):
            examine(path)
    (place / "roots").symlink_to(guarded.path)
    assert any(r.id == "guard.mounted" and r.status is Status.OK for r in examine(place / "roots"))


def rows_of(results: list[Result]) -> dict[str, Status]:
    return {result.id: result.status for result in results}


@pytest.mark.parametrize("writable", [True, False], ids=["rw", "ro"])
def test_the_agents_own_repository_is_no_hole_and_nothing_is_below_the_hosts(
    place: Path, project: Path, writable: bool
) -> None:
    before = metadata(project)
    options = ("--map", MAP, "--git=private", "--private-store", str(place / "store"))
    options = options if writable else (*options, "-r")
    with gitguardfs(project, place / "other", *options):
        for attack in (False, True):
            results = examine(place / "other", attack=attack)
            assert findings(results) == []
            policies = [result.detail for result in results if result.id == "guard.policy"]
            # A .git that is a symlink is denied, and the search may come by that one first.
            assert any("(--git=private)" in detail for detail in policies), policies
        assert not left_in(project)
    shown = {id for id, status in rows_of(results).items() if status is Status.OK}
    assert {"attack.M2", "attack.U1", "attack.U2", "attack.S1", "attack.P4"} <= shown
    if writable:
        assert {f"attack.{row}" for row in (*attack_checks.TITLES, "G6")} <= shown
        assert [r for r in results if "not tried" in r.detail] == []
    assert metadata(project) == before


def test_only_a_file_that_leads_out_of_the_view_to_the_users_own_directory_is_private(
    place: Path,
) -> None:
    tree = place / "planted"
    (tree / "inside").mkdir(parents=True)
    git, user = tree / ".git", find_user(str(AGENT))

    def policy() -> str:
        return policy_checks.policy_by_reading(user, SearchResult(file=str(git)))

    with tempfile.TemporaryDirectory(dir="/dev/shm") as outside:  # another device
        roots, own = (Path(outside) / name for name in ("roots", "own"))
        for path in (roots, own):
            path.mkdir()
        for path in (outside, tree / "inside", own):
            os.chown(path, AGENT, AGENT)
        for text, expected in [
            (f"gitdir: {own}\n", "private"),
            (f"gitdir: {tree}/inside\n", "readonly"),
            (f"gitdir: {roots}\n", "readonly"),
            (f"gitdir: {own}/absent\n", "readonly"),
            (f"gitdir: ../../../../../../..{own}\n", "readonly"),
            (f"x: {own}\n", "readonly"),
            ("gitdir: \0\n", "readonly"),
            ("", "readonly"),
        ]:
            git.write_text(text)
            git.chmod(0o444)
            assert policy() == expected, text
    git.chmod(0o666)
    assert policy() == "off"
    git.chmod(0)
    assert policy() == "deny"
    git.unlink()
    assert policy() == "unsure"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("option", ["--git=readonly", "--git=deny"])
def test_a_tree_whose_only_repository_is_a_worktree_tells_its_policy(
    place: Path, option: str
) -> None:
    tree = place / "hidden/worktree"
    tree.mkdir(exist_ok=True)
    (tree / ".git").write_text("gitdir: /nonexistent/.git/worktrees/x\n")
    for path in (tree, tree / ".git"):
        os.chown(path, HOST_UID, HOST_GID)
    with gitguardfs(tree, place / "other", "--map", MAP, option):
        for attack in (False, True):
            results = examine(place / "other", attack=attack)
            assert findings(results) == []
            is_read = rows_of(results)["guard.policy"] is Status.NOTE
            assert is_read == (option == "--git=readonly")


@pytest.mark.parametrize("option", ["--git=readonly", "--git=hide", "-r", "--xattr=rw"])
def test_guards_of_other_kinds_give_no_finding(place: Path, project: Path, option: str) -> None:
    with gitguardfs(project, place / "other", "--map", MAP, option):
        results = examine(place / "other", attack=True)
        assert findings(results) == []
        assert not left_in(project)
    noted = {result.id for result in results if result.status is Status.NOTE}
    expected = {
        "--git=readonly": {"guard.policy", "attack.U1", "attack.U2", "attack.S1"},
        "--git=hide": {"attack.untried"},
        "-r": {"attack.scratch"},
        "--xattr=rw": set(),
    }
    assert noted == expected[option]


@pytest.mark.usefixtures("few")
def test_a_tree_without_a_repository_is_noted(place: Path) -> None:
    (place / "empty").mkdir(exist_ok=True)
    os.chown(place / "empty", HOST_UID, HOST_GID)
    (place / "empty").chmod(0o700)
    with gitguardfs(place / "empty", place / "other", "--map", MAP):
        results = examine(place / "other", attack=True)
    assert findings(results) == []
    [noted] = [result for result in results if result.status is Status.NOTE]
    assert noted.id == "attack.untried" and "R1" in noted.detail and "C1" not in noted.detail


# ----------------------------------------------------------------------- each fault by its name


def test_a_guard_that_is_off_is_found(place: Path) -> None:
    before = metadata(place / "hidden/project")
    with gitguardfs(place / "hidden/project", place / "other", "--map", MAP, "--git=off"):
        for attack in (False, True):
            results = examine(place / "other", attack=attack)
            assert findings(results) == ["guard.policy"]
    assert metadata(place / "hidden/project") == before
    assert not left_in(place / "hidden/project")


def test_a_guard_without_the_rules_about_bare_repositories_is_found(
    place: Path, project: Path
) -> None:
    with gitguardfs(project, place / "other", "--map", MAP, "--allow-bare"):
        results = examine(place / "other", attack=True)
    assert findings(results) == [f"attack.{row}" for row in ("P1", "P2", "P4", "V4", "G4")]
    assert not left_in(project)
    check_git_works(project)


def test_a_guard_that_stores_symlinks_as_given_is_found(place: Path, project: Path) -> None:
    options = ("--map", MAP, "-o", "links=raw")
    with gitguardfs(project, place / "other", *options):
        assert findings(examine(place / "other")) == ["guard.links"]
        assert findings(examine(place / "other", attack=True)) == ["guard.links", "attack.G6"]
    assert not left_in(project)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("links", ["guarded", "raw"])
def test_where_symlinks_lead_below_a_seal_is_known_by_what_can_be_moved(
    open_share: Path, links: str
) -> None:
    view = open_share / "view"
    options = ("--map", MAP, "--seal", "--links", links)
    with gitguardfs(open_share / "raw/share", view, *options):
        results = examine(view, attack=True)
    assert findings(results) == (["guard.links", "attack.G6"] if links == "raw" else [])
    [said] = [result for result in results if result.id == "attack.G6"]
    assert ("the source is sealed" in said.detail) == (links == "guarded")


def test_a_full_share_on_which_nothing_can_be_proved_is_found(place: Path) -> None:
    source = place / "hidden/full"
    source.mkdir()
    mount("tmpfs", source, "tmpfs", data=f"nr_inodes=4,uid={HOST_UID},gid={HOST_GID}")
    try:
        with gitguardfs(source, place / "other", "--map", MAP):
            results = examine(place / "other", attack=True)
            assert not left_in(source)
    finally:
        umount(source, MNT_DETACH)
    assert findings(results) == ["attack.scratch"]
    assert "prove nothing" in next(r.detail for r in results if r.id == "attack.scratch")


def test_a_dead_guard_is_found(open_share: Path) -> None:
    view = open_share / "view"
    with pytest.raises(AssertionError, match=r"ended with -9"):
        with gitguardfs(open_share / "raw/share", view, "--map", MAP, "--seal") as mounted:
            mounted.process.send_signal(signal.SIGKILL)
            mounted.process.wait()
            assert findings(examine(view)) == ["guard.answers"]


def test_a_guard_that_came_back_after_a_crash_gives_no_finding(open_share: Path) -> None:
    share, view = open_share / "raw/share", open_share / "view"
    for name in ("tmp", "usr"):
        (share / name).mkdir()  # in the detached mount their links read /tmp and /usr
        os.chown(share / name, HOST_UID, HOST_GID)
    options = ("--map", MAP, "--seal")
    with pytest.raises(AssertionError, match=r"ended with -9"):
        with gitguardfs(share, view, *options) as mounted:
            mounted.process.send_signal(signal.SIGKILL)
            mounted.process.wait()
    with gitguardfs(share, view, *options):
        held = [os.open(view / name, os.O_RDONLY) for name in ("tmp", "usr")]
        try:
            results = examine(view)
        finally:
            for descriptor in held:
                os.close(descriptor)
    assert findings(results) == []
    tried = [result.title for result in results if result.id == "share.path"]
    assert tried == [f"the raw share {share} is out of reach"]


def test_bindfs_in_place_of_the_guard_is_found_and_not_attacked(place: Path) -> None:
    before = metadata(place / "hidden/project")
    with bindfs(place / "hidden/project", place / "plain", f"--map={MAP}"):
        assert findings(examine(place / "plain")) == ["guard.mounted"]
    assert metadata(place / "hidden/project") == before


def test_a_daemon_that_a_session_would_take_along_is_found(guarded: Mounted, place: Path) -> None:
    hierarchy = Path("/sys/fs/cgroup/systemd")
    hierarchy = hierarchy if hierarchy.is_dir() else hierarchy.parent
    made: list[Path] = []
    try:
        for name in ("user.slice", f"user-{AGENT}.slice", f"{place.name}.scope"):
            hierarchy = hierarchy / name
            if not hierarchy.exists():
                hierarchy.mkdir()
                made.append(hierarchy)
        (hierarchy / "cgroup.procs").write_text(str(guarded.process.pid))
    except OSError as error:
        pytest.skip(f"needs a control group: {error.strerror}")
    else:
        assert findings(examine(guarded.path)) == ["guard.session"]
        (hierarchy.parents[2] / "cgroup.procs").write_text(str(guarded.process.pid))
        assert findings(examine(guarded.path)) == []
    finally:
        for directory in reversed(made):
            directory.rmdir()


def test_a_guard_that_is_covered_is_found(guarded: Mounted) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "none", guarded.path], check=True)
    try:
        assert findings(examine(guarded.path)) == ["guard.mounted"]
    finally:
        subprocess.run(["umount", guarded.path], check=True)


def test_an_open_share_is_found(open_share: Path) -> None:
    view = open_share / "view"
    share = open_share / "raw/share"
    with gitguardfs(share, view, "--map", MAP, "--no-seal", expected=ANY_WARNING):
        assert findings(examine(view)) == ["share.path"]
        share.chmod(0o711)  # cannot be listed, can be entered
        assert findings(examine(view)) == ["share.path"]


def test_an_open_share_is_found_whatever_the_mount_calls_itself(open_share: Path) -> None:
    view = open_share / "view"
    share = open_share / "raw/share"
    options = ("--map", MAP, "--no-seal", "-o", "fsname=/root/x")
    with gitguardfs(share, view, *options, expected=ANY_WARNING):
        assert findings(examine(view)) == ["share.path"]
    options = ("--map", MAP, "--no-seal", "-o", "fsname=foo")
    with gitguardfs(Path("raw/share"), view, *options, cwd=open_share, expected=ANY_WARNING):
        assert findings(examine(view)) == ["share.path"]


def test_a_fuse_mount_of_the_agents_is_found_below_the_seal_and_in_the_view(
    open_share: Path,
) -> None:
    share, view = open_share / "raw/share", open_share / "view"
    share.chmod(0o777)
    options = ("--map", MAP, "--no-seal")
    with gitguardfs(share, view, *options, expected=ANY_WARNING):
        rows = as_user(_examine_beside_the_agents_mounts, share, view, uid=0)
    results = [Result(**row) for row in rows]
    assert findings(results) == ["guard.foreign"]
    [detail] = [r.detail for r in results if r.id == "guard.foreign"]
    assert f"{share} is mounted by uid {AGENT} (on {share})" in detail
    assert f"{view}/src is mounted by uid {AGENT} (in {view})" in detail


def _examine_beside_the_agents_mounts(share: Path, view: Path) -> list[dict[str, object]]:
    """Let the agent mount on the share, then seal that, and mount in the view."""
    _let_users_mount(view.parent)
    _mount_as_agent(share.parent, share)
    mount(seal.NAME, share, "ramfs", data="mode=000")
    _mount_as_agent(share.parent, view / "src")
    try:
        return _rows(examine(view))
    finally:
        unmount(view / "src")
        unmount(share)


def _mount_as_agent(source: Path, path: Path, options: str = "nonempty") -> None:
    command = ["bindfs", "--no-allow-other", "-o", options, source, path]
    subprocess.run(command, check=True, user=AGENT, group=AGENT, extra_groups=[])


def _let_users_mount(place: Path) -> None:
    """Enter a mount namespace of our own, and let all users open the FUSE device there.

    Here only root may; a copy of it is open to all.
    """
    syscalls.unshare_mounts()
    os.mknod(place / "fuse", stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    (place / "fuse").chmod(0o666)
    mount(str(place / "fuse"), Path("/dev/fuse"), flags=MS_BIND)


def test_a_bind_mount_of_the_source_is_found(guarded: Mounted, place: Path) -> None:
    (place / "bound").mkdir(exist_ok=True)
    for source in (guarded.source, guarded.source / "src", guarded.source.parent):
        opened = source == guarded.source.parent
        mount(str(source), place / "bound", flags=MS_BIND)
        try:
            if opened:
                source.chmod(0o755)
            results = examine(guarded.path)
        finally:
            umount(place / "bound", MNT_DETACH)
            if opened:
                source.chmod(0o700)
        assert set(findings(results)) == {"share.path"}
        details = [r.title for r in results if r.status is Status.FINDING]
        assert any(str(place / "bound") in title for title in details)


def test_the_raw_tree_mounted_inside_of_the_view_is_found(guarded: Mounted) -> None:
    mount(str(guarded.source), guarded.path / "src", flags=MS_BIND)
    try:
        results = examine(guarded.path)
    finally:
        umount(guarded.path / "src", MNT_DETACH)
    assert findings(results) == ["share.path"]
    assert [r.id for r in results if r.status is Status.NOTE] == ["guard.within"]


def test_bindfs_beside_the_guard_is_found(guarded: Mounted, place: Path) -> None:
    for source in (guarded.source, guarded.source / "src"):
        with bindfs(source, place / "plain", f"--map={MAP}"):
            assert findings(examine(guarded.path)) == ["share.path"]


def test_a_second_guard_that_is_off_is_found(guarded: Mounted, place: Path) -> None:
    options = ("--map", MAP, "--git=off", "-o", "fsname=foo")
    with gitguardfs(guarded.source, place / "other", *options):
        assert findings(examine(guarded.path)) == ["guard.policy"]
    with gitguardfs(guarded.source, place / "other", "--map", MAP):
        assert findings(examine(guarded.path)) == []


def test_a_repository_in_a_sticky_directory_of_anothers_is_no_finding(place: Path) -> None:
    source = place / "hidden/sticky"
    (source / "shared").mkdir(parents=True)
    make_project(source / "shared/project")
    subprocess.run(["chown", "-R", "0:0", source], check=True)
    (source / "shared").chmod(0o1777)
    with gitguardfs(source, place / "other"):
        results = examine(place / "other", attack=True)
    assert findings(results) == []
    assert any(result.id == "attack.R7" for result in results)


def test_a_view_whose_owner_has_no_account_is_found(place: Path) -> None:
    (place / "hidden/unmapped").mkdir()
    os.chown(place / "hidden/unmapped", 54321, 54321)
    with gitguardfs(place / "hidden/unmapped", place / "other"):
        results = doctor.examine(str(place / "other"), None, str(AGENT), QUIET)
        assert "run.user" in findings(results)
        assert "run.user" not in findings(examine(place / "other"))


def test_a_seal_that_was_taken_off_is_found(open_share: Path) -> None:
    view = open_share / "view"
    with gitguardfs(open_share / "raw/share", view, "--map", MAP, "--seal", expected=ANY_WARNING):
        subprocess.run(["umount", "-l", open_share / "raw/share"], check=True)
        assert findings(examine(view)) == ["share.path"]


def test_a_mount_of_the_users_own_that_poses_as_a_guard_is_found(open_share: Path) -> None:
    (open_share / "view").mkdir()
    os.chown(open_share / "view", AGENT, AGENT)
    results = [Result(**row) for row in as_user(_examine_impostor, open_share, uid=0)]
    assert {"guard.daemon", "guard.options", "share.path"} <= set(findings(results))
    assert "user_id=1000" in next(r.detail for r in results if r.id == "guard.daemon")


def _examine_impostor(place: Path) -> list[dict[str, object]]:
    """Let the agent mount bindfs under our name, in a namespace of its own."""
    _let_users_mount(place)
    options = f"subtype=gitguardfs,fsname={place}/raw/share"
    _mount_as_agent(place / "raw/share", place / "view", options)
    try:
        return _rows(doctor.examine(str(place / "view"), None, None, QUIET))
    finally:
        umount(place / "view", MNT_DETACH)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 0", ["rights.sudo"]),
        ("exit 1", ["rights.sudo"]),  # nothing is known
        (f'case "$*" in *-l*) {CLEAR};; *) exit 1;; esac', []),
        (
            # With listpw=always only root is told without a password.
            'case "$*" in *"-l -U #1000"*|*"-l -U cloudsdk"*)'
            ' printf "User a may run the following commands on b:\\n'
            '    (root) NOPASSWD: /bin/x\\n";; *) exit 1;; esac',
            ["rights.sudo"],
        ),
        (
            'case "$*" in *-l*) printf "User a may run the following commands on b:\\n'
            '    (root) NOPASSWD: /bin/x\\n";; *) exit 1;; esac',
            ["rights.sudo"],
        ),
        ('[ "$(id -u)" = 0 ]', []),  # sudo has to be run as the user
    ],
)
def test_sudo_without_a_password_is_found(
    guarded: Mounted, place: Path, text: str, expected: list[str]
) -> None:
    directory = place / "bin"
    directory.mkdir(exist_ok=True)
    program(directory / "sudo", text)
    system = replace(QUIET, search_path=f"{directory}:/usr/bin:/bin", programs=())
    assert findings(examine(guarded.path, system)) == expected
    ways = privilege_checks.ways_to_root(find_user(str(AGENT)), system)
    assert [row.id for row in ways] == expected


def test_sudo_with_a_password_is_a_way_to_root_and_no_finding(
    guarded: Mounted, place: Path
) -> None:
    directory = place / "bin-asking"
    directory.mkdir()
    listing = "User a may run the following commands on b:\\n    (ALL) ALL\\n"
    program(directory / "sudo", f'case "$*" in *-l*) printf "{listing}";; *) exit 1;; esac')
    system = replace(QUIET, search_path=f"{directory}:/usr/bin:/bin", programs=())
    assert findings(examine(guarded.path, system)) == []
    [way] = privilege_checks.ways_to_root(find_user(str(AGENT)), system)
    assert way.title.endswith("has sudo with a password") and way.detail == "ALL"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('[ "$*" = "-n true" ]', Status.FINDING),
        ('[ "$(id -u)" != 0 ]', Status.FINDING),  # sudo is run as the user
        ("exit 1", Status.OK),
        ("kill -KILL $PPID", Status.FINDING),  # nothing is known
    ],
)
def test_doas_without_a_password_is_found(
    guarded: Mounted, place: Path, text: str, status: Status
) -> None:
    directory = place / "bin"
    directory.mkdir(exist_ok=True)
    program(directory / "doas", text)
    system = replace(QUIET, search_path=f"{directory}:/usr/bin:/bin", programs=())
    assert _of_doas(guarded, system).status is status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (None, Status.OK),
        ("permit persist agent\n", Status.OK),
        ("permit nopass agent cmd apt\n", Status.NOTE),
    ],
)
def test_a_doas_that_asks_no_password_for_single_commands_is_told(
    guarded: Mounted, tmp_path: Path, text: str | None, status: Status
) -> None:
    """That holds for a doas that is not in the search path, too."""
    if text is not None:
        (tmp_path / "doas.conf").write_text(text)
    system = replace(QUIET, doas_files=(str(tmp_path / "doas.conf"),))
    said = _of_doas(guarded, system)
    assert said.status is status
    assert ("single commands were not checked" in said.detail) == (status is Status.NOTE)


def test_a_configuration_of_doas_that_cannot_be_read_is_told(
    guarded: Mounted, tmp_path: Path
) -> None:
    (tmp_path / "doas.conf").mkdir()
    said = _of_doas(guarded, replace(QUIET, doas_files=(str(tmp_path / "doas.conf"),)))
    assert said.status is Status.NOTE and "cannot be read: Is a directory" in said.detail


def _of_doas(guarded: Mounted, system: CheckedSystem) -> Result:
    return next(r for r in examine(guarded.path, system) if r.id == "rights.doas")


def test_a_launcher_that_the_user_can_write_is_found(guarded: Mounted, place: Path) -> None:
    (place / "sbin").mkdir(exist_ok=True)
    launcher = program(place / "sbin/gitguardfs", "exit 0")
    system = replace(QUIET, search_path=str(place / "sbin"))
    assert findings(examine(guarded.path, system)) == []
    launcher.chmod(0o777)
    assert findings(examine(guarded.path, system)) == ["rights.files"]
    launcher.chmod(0o755)
    (place / "sbin").chmod(0o777)  # then it can be replaced
    assert findings(examine(guarded.path, system)) == ["rights.files"]
    (place / "sbin").chmod(0o1777)  # not with the sticky bit
    assert findings(examine(guarded.path, system)) == []


# --------------------------------------------------------------------- what the attacks can tell


def outcomes(view: Path, user: User, source: Path | None = None) -> list[Outcome]:
    """Carry out all attacks in a directory as a user, and clean up."""
    found = search.SearchResult(**as_user(search.search, str(view), uid=user.uid, gid=user.gid))
    scratch = as_user(search.make_scratch, str(view), uid=user.uid, gid=user.gid)
    ground = AttackRun(user, scratch, found)
    try:
        return [attack_checks._carry_out(ground, one) for one in attack_checks.refused_by("deny")]
    finally:
        assert as_user(search.remove_scratch, scratch, uid=user.uid, gid=user.gid)


def lasting(recorded: dict[str, Recorded]) -> dict[str, Recorded]:
    """A record without the times that any touch moves."""
    return {name: replace(one, modified=0, changed=0) for name, one in recorded.items()}


def test_without_a_guard_every_attack_succeeds_and_does_no_harm(place: Path) -> None:
    project = copy_project(place / "hidden/project", place / "hidden/unguarded")
    before = metadata(project)
    host = User(HOST_UID, HOST_GID, (HOST_GID,), "host")
    told = outcomes(project, host)
    assert [o for o in told if o.kind is OutcomeKind.REFUSED] == []
    assert [o for o in told if o.kind in (OutcomeKind.UNTRIED, OutcomeKind.LEFT)] == []
    # Answers that no guard gives: they are findings as well.
    other = {o.text for o in told if o.kind is OutcomeKind.OTHER}
    assert other <= {"ENOTEMPTY", "ENODATA"}
    assert not differences(lasting(before), lasting(metadata(project)))
    check_git_works(project)


@pytest.mark.usefixtures("few")
def test_the_scratch_directory_goes_whatever_happens(
    guarded: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> list[Result]:
        assert left_in(guarded.source)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(attack_checks, "judge", interrupt)
        with pytest.raises(KeyboardInterrupt):
            examine(guarded.path, attack=True)
    assert not left_in(guarded.source)

    with monkeypatch.context() as patch:
        patch.setitem(attacks.VERBS, "broken", lambda: 1 / 0)
        patch.setattr(attacks, "TABLE", (Attack("R5", "nothing", ("broken",)),))
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            examine(guarded.path, attack=True)
    assert not left_in(guarded.source)


@pytest.mark.every_processor
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_scratch_directory_goes_when_the_command_is_stopped(
    guarded: Mounted, number: signal.Signals
) -> None:
    before = lasting(metadata(guarded.source))
    codes: list[int] = []
    while not any(codes):  # on a busy machine the attacks can be over before the signal
        assert len(codes) < 5
        with subprocess.Popen(
            [*COMMAND, str(guarded.path), "--user", str(AGENT), "--attack"],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            until(lambda: left_in(guarded.source), "the attacks never began")
            process.send_signal(number)
            codes.append(process.wait(60))
    assert not left_in(guarded.source)
    assert lasting(metadata(guarded.source)) == before


@pytest.mark.every_processor
@pytest.mark.parametrize("gap", [0.003, 0.008])
@pytest.mark.parametrize("numbers", [(signal.SIGTERM,) * 2, (signal.SIGHUP, signal.SIGTERM)])
def test_the_scratch_directory_goes_however_often_the_command_is_stopped(
    guarded: Mounted, numbers: tuple[signal.Signals, ...], gap: float
) -> None:
    codes: list[int] = []
    while not any(codes):  # on a busy machine the attacks can be over before the first signal
        assert len(codes) < 5
        with subprocess.Popen(
            [*COMMAND, str(guarded.path), "--user", str(AGENT), "--attack"],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            until(lambda: left_in(guarded.source), "the attacks never began")
            time.sleep(0.1)
            for number in numbers:
                process.send_signal(number)
                time.sleep(gap)
            codes.append(process.wait(60))
        assert not left_in(guarded.source)
    assert codes[-1] == 128 + numbers[0]


@pytest.mark.usefixtures("few")
def test_a_hole_in_the_guard_is_found_by_its_row(
    guarded: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    hole = Attack("R5", "nothing", ("mkdir", "{w}/hole"))
    monkeypatch.setattr(attacks, "TABLE", (*attacks.TABLE, hole))
    results = examine(guarded.path, attack=True)
    assert findings(results) == ["attack.R5"]
    assert "mkdir DIR/hole" in next(r.detail for r in results if r.id == "attack.R5")


# ------------------------------------------------------------------------------- the command


def run(*arguments: str | Path, uid: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"]},
        user=uid,
        group=uid,
        extra_groups=[],
    )


def test_the_command_reports_as_text_and_json_and_by_its_exit_code(
    guarded: Mounted, place: Path
) -> None:
    said = run(guarded.path, "--json")
    rows = json.loads(said.stdout)
    assert list(rows[0]) == ["id", "status", "severity", "title", "detail", "hint"]
    by_id = {row["id"]: row["status"] for row in rows}
    assert by_id["guard.policy"] == by_id["share.path"] == "ok"
    assert by_id["attack.untried"] == "note" and "attack.R1" not in by_id
    assert said.returncode == ("finding" in by_id.values())
    with bindfs(place / "hidden/project", place / "plain", f"--map={MAP}"):
        said = run(place / "plain", "--user", str(AGENT))
        assert said.returncode == 1
        assert "finding  guard.mounted" in said.stdout
        assert said.stdout.splitlines()[-1] == "attacks not tried (--attack)"
    assert run("/nowhere/at/all").returncode == GitguardExit.USAGE
    refused = run(guarded.path, "--user", "root")
    assert refused.returncode == GitguardExit.USAGE and "by design" in refused.stderr


@pytest.mark.usefixtures("few")
def test_the_user_himself_checks_what_he_can_and_is_told(guarded: Mounted) -> None:
    results = [Result(**row) for row in as_user(_examine_as_dicts, str(guarded.path))]
    assert findings(results) == []
    assert results[0].id == "run.user" and results[0].status is Status.NOTE
    assert any(result.id == "attack.M2" and result.status is Status.OK for result in results)
    with pytest.raises(UserError) as refused:
        doctor.choose_user("1", None, None, False, QUIET)
    assert refused.value.code == Exit.SYSTEM


def _examine_as_dicts(view: str) -> list[dict[str, object]]:
    make_dumpable()  # as is a command that the user starts
    return _rows(doctor.examine(view, None, str(AGENT), QUIET, attack=True))


def test_where_nobody_can_be_become_nothing_counts_as_refused(guarded: Mounted) -> None:
    said = subprocess.run(
        ["unshare", "-Ur", *COMMAND, guarded.path, "--user", str(AGENT), "--json"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    rows = json.loads(said.stdout)
    assert said.returncode == 1
    assert [row["id"] for row in rows if row["status"] == "finding"] == ["run.user"]
    other = {"guard.foreign", "guard.links", "attack.untried"}
    assert {row["id"] for row in rows} == {"run.user", *other}
    assert "could not be checked" in rows[0]["detail"]


def test_a_number_of_nobody_is_a_mistake_in_one_line(guarded: Mounted) -> None:
    for arguments in ((guarded.path,), (guarded.source, "--host")):
        for number in ("9" * 23, "4294967295"):
            said = run(*arguments, "--user", number)
            assert said.returncode == GitguardExit.USAGE and len(said.stderr.splitlines()) == 1


def test_the_host_side_is_checked_with_the_owner_of_the_directory(place: Path) -> None:
    said = run("--host", place / "hidden/project", "--json")
    rows = {row["id"]: row for row in json.loads(said.stdout)}
    assert said.returncode == 0, "a finding of low severity does not count"
    assert "host.git" not in rows
    again = run("--host", place / "hidden/project", "--fail-on", "low")
    assert again.returncode == (rows["host.bare"]["status"] == "finding")
    assert rows.keys() == {"host.selinux", "host.bare"}
    assert again.stdout.splitlines()[-1] == f"next: gitguard audit {place / 'hidden/project'}"


def test_a_guarded_view_is_not_audited(guarded: Mounted) -> None:
    audit = [*COMMAND[:-1], "audit"]
    said = subprocess.run([*audit, guarded.path], capture_output=True, text=True, cwd=REPOSITORY)
    assert said.returncode == GitguardExit.FAILED
    assert said.stderr.startswith(f"gitguard: {guarded.path} is a guarded view of a directory (")
