"""vm-mount's changes, from its options and the state of the machine; and reading that state."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import UserError
from gitguardfs.commands import vm_mount
from gitguardfs.guest import boot, facts, fstab, guard, mountpoint, raw_share, removal, systemd
from gitguardfs.guest.changes import Changes
from gitguardfs.guest.facts import Facts, SystemPaths, Tags
from gitguardfs.guest.mountpoint import Mountpoint
from gitguardfs.guest.request import MountRequest, default_mount, default_tag
from gitguardfs.linux import mountinfo
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.linux.safe_open import PathComponent
from gitguardfs.linux.selinux import Confined
from gitguardfs.mounting import guards, unmount
from gitguardfs.names.rules import GitMode
from gitguardfs.options import config_files
from gitguardfs.options.guarded_share import GuardedShare
from gitguardfs.options.table import OPTIONS

GUARD = "/usr/local/bin/gitguardfs"
SYSTEM = SystemPaths(guard=GUARD)
RAW = "/var/lib/gitguardfs/shares/projects"
VIEW = "/home/me/projects"
TAGS = Tags(p9=("projects",))


def way(path: str, *, exists: bool = False, users_from: int = 99, mode: int = 0o755) -> Mountpoint:
    """Return a path whose last directory may be missing; from a level on, user 1000 owns it."""
    parts = path.strip("/").split("/")
    paths = ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))]
    found = paths if exists else paths[:-1]
    steps = tuple(
        PathComponent(p, 1000 if level >= users_from else 0, mode) for level, p in enumerate(found)
    )
    return Mountpoint(path, steps, () if exists else (paths[-1],))


def request(**changed: Any) -> MountRequest:
    given: dict[str, Any] = {
        "tag": "projects", "mount": way(RAW, mode=0o700), "map_mount": way(VIEW, users_from=2),
        "user": (1000, 1000), "style": "fstab",
    } | changed  # fmt: skip
    return MountRequest(**given)


def mounted(fstype: str, path: str, source: str, minor: int = 40) -> MountInfo:
    escaped = path.replace(" ", "\\040")
    owner = ",user_id=0" if fstype.startswith("fuse") else ""
    line = f"36 35 0:{minor} / {escaped} rw - {fstype} {source} rw{owner}\n"
    return mountinfo.parse(line.encode())[0]


class Rehearsal(Changes):
    """Changes that are only noted; ``texts`` are those of the changes, without details."""

    def __init__(self) -> None:
        super().__init__(lambda text: None, is_rehearsal=True)
        self.texts: list[str] = []

    def make(self, text: str, *arguments: Any, **more: Any) -> None:
        self.texts.append(text)


def share_plan(look: Facts, asked: MountRequest) -> list[str]:
    rehearsal = Rehearsal()
    raw_share.mount(rehearsal, SYSTEM, look, asked)
    return rehearsal.texts


def spec_of(asked: MountRequest) -> GuardedShare:
    return replace(asked.guarded_share("9p", (501, 20)), map="501/1000:@20/@1000")


def guard_plan(look: Facts, asked: MountRequest) -> list[str]:
    rehearsal = Rehearsal()
    guard.guard(rehearsal, SYSTEM, look, asked, spec_of(asked))
    return rehearsal.texts


# -------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize(
    ("tags", "transports"),
    [
        (Tags(p9=("t",)), ["9p"]),
        (Tags(p9=("t",), virtiofs=()), ["9p"]),
        (Tags(p9=("t",), virtiofs=("t",)), ["virtiofs", "9p"]),
        (Tags(virtiofs=("t",)), ["virtiofs"]),
        (Tags(p9=("t",), virtiofs=None, has_virtiofs_device=True), ["virtiofs", "9p"]),
        (Tags(virtiofs=None, has_virtiofs_device=True), ["virtiofs"]),
    ],
)
def test_virtiofs_is_tried_first_where_it_may_be(tags: Tags, transports: Sequence[str]) -> None:
    assert list(tags.transports_of("t")) == list(transports)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (Tags(p9=("share",)), "share"),
        (Tags(virtiofs=("share",)), "share"),
        (Tags(p9=("share",), virtiofs=("share",)), "share"),
        (Tags(virtiofs=None, has_virtiofs_device=True), "share"),
        (Tags(p9=("share", "b")), None),
        (Tags(p9=("a",)), None),
        (Tags(), None),
    ],
)
def test_utms_label_is_the_default_only_if_it_is_the_only_one(
    tags: Tags, expected: str | None
) -> None:
    if expected is not None:
        assert default_tag(tags) == expected
        return
    with pytest.raises(UserError, match=re.escape(f"The kernel sees: {tags.listing()}")) as raised:
        default_tag(tags)
    assert ("--tag TAG" if tags.p9 else "gitguard share, on the host,") in raised.value.hint


def test_tags_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    nine = tmp_path / "bus/virtio/drivers/9pnet_virtio"
    for name, tag in (("virtio1", b"my share\0"), ("virtio0", b"projects\0")):
        (nine / name).mkdir(parents=True)
        (nine / name / "mount_tag").write_bytes(tag)
    assert facts.tags(str(tmp_path)) == Tags(("projects", "my share"), None, False)
    (tmp_path / "bus/virtio/drivers/virtiofs/virtio2").mkdir(parents=True)
    assert facts.tags(str(tmp_path)).has_virtiofs_device
    (tmp_path / "fs/virtiofs/0").mkdir(parents=True)
    (tmp_path / "fs/virtiofs/0/tag").write_bytes(b"src\n")
    assert facts.tags(str(tmp_path)).virtiofs == ("src",)


@pytest.mark.parametrize(
    ("tag", "name"),
    [("projects", "projects"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("é x", "%C3%A9%20x")],
)
def test_every_tag_has_a_directory_of_its_own(tag: str, name: str) -> None:
    assert default_mount(SYSTEM, tag) == f"/var/lib/gitguardfs/shares/{name}"


# ------------------------------------------------------------------------------------- share


@pytest.mark.parametrize(
    ("look", "asked", "fault"),
    [
        (Facts(mounts=(mounted("9p", RAW, "b"),)), {}, "shows the share b"),
        (Facts(mounts=(mounted("ext4", RAW, "/dev/vdb"),)), {}, "ext4 is mounted"),
        (Facts(mounts=(mounted("9p", "/mnt/x", "projects"),), tags=TAGS), {}, "mounted at /mnt/x"),
        (Facts(tags=Tags(p9=("b",))), {}, r"no share 'projects'.*b \(9p\)"),
        (Facts(tags=TAGS), {"transport": "virtiofs"}, r"of type virtiofs.*projects \(9p\)"),
        (Facts(tags=TAGS), {"mount": way("/home/me/raw", users_from=2)}, "others can change"),
        (Facts(tags=TAGS), {"mount": way("/tmp/raw", mode=0o1777)}, "others can change"),
        (Facts(tags=TAGS), {"mount": way("/mnt/raw", exists=True, users_from=2)}, "others can"),
        (Facts(tags=TAGS), {"mount": way("/mnt/raw"), "options": ("no-seal",)}, "without a seal"),
        (Facts(tags=TAGS), {"mount": way("/mnt/raw"), "options": ("noseal",)}, "without a seal"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_of_the_share_is_named(
    look: Facts, asked: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        share_plan(look, request(**asked))


@pytest.mark.parametrize(
    "option",
    ["fsname=x", "map=1:2", "gti=hide", "user", "debug", "deny=a/b", "deny=", "hide=/", "protect=",
     "cache-timeout=nan", "cache-timeout=-1", "cache-timeout=86401", "cache-timeout=x",
     "audit-log=log", "git=off-ish", "xattr=yes"],
)  # fmt: skip
def test_options_that_would_break_the_entry_are_refused_at_once(
    option: str,
) -> None:
    with pytest.raises(UserError):
        request(options=(option,))


@pytest.mark.parametrize(
    ("mode", "is_private"), [(0o700, True), (0o710, False), (0o701, False), (0o750, False)]
)
def test_a_parent_that_a_group_may_pass_is_not_private(mode: int, is_private: bool) -> None:
    asked = request(mount=way("/mnt/raw", mode=mode), options=("no-seal",))
    if is_private:
        assert share_plan(Facts(tags=TAGS), asked)
        return
    with pytest.raises(UserError, match=r"without a seal"):
        share_plan(Facts(tags=TAGS), asked)


# ------------------------------------------------------------------------------------ places

OF_THE_SYSTEM = [
    "/", "/etc", "/usr", "/home", "/root", "/var", "/boot", "/mnt", "/srv", "/projects",
    "/etc/x", "/usr/local/sbin", "/usr/x/y/z", "/bin/x", "/sbin/x", "/lib/x", "/lib64/x/y",
    "/etc/x\ny/z", "/libx32/x", "/boot/x", "/dev/shm/x", "/proc/x", "/sys/x", "/run/user/1000/x",
    "/var/lib", "/var/tmp",
]  # fmt: skip
HOMES = ["/home/me", "/var/home/me"]
FREE = [
    "/home/me/x", "/home/me/x/y", "/var/home/me/x", "/root/x", "/srv/x", "/mnt/x", "/media/x",
    "/opt/x/y", "/var/lib/x", "/data/x", "/usrx/y", "/etcetera/x",
]  # fmt: skip


@pytest.mark.parametrize("path", [*OF_THE_SYSTEM, *HOMES])
@pytest.mark.parametrize("options", [("nonempty",), ()])
def test_a_directory_of_the_system_is_never_covered(path: str, options: tuple[str, ...]) -> None:
    said = f"^{path} is a {'home directory' if path in HOMES else 'directory of the system'}"
    with pytest.raises(UserError, match=said):
        request(map_mount=way(path, exists=True), options=options)
    asked = request(mount=way(path, exists=True), options=options)
    with pytest.raises(UserError, match=said):
        share_plan(Facts(tags=TAGS), asked)


@pytest.mark.parametrize("path", FREE)
def test_directories_of_users_and_for_mounts_are_free(path: str) -> None:
    request(map_mount=way(path, exists=True))
    assert share_plan(Facts(tags=TAGS), request(mount=way(path)))


@pytest.mark.parametrize("options", [("git=off",), ("git=hide", "git=off")])
def test_to_guard_nothing_takes_a_flag_of_its_own(options: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"leaves .git open.*--git-off"):
        request(options=options)
    assert request(options=options, git_off=True).policy is GitMode.OFF
    with pytest.raises(UserError, match=r"--git-off and git=hide contradict"):
        request(options=("git=off", "git=hide"), git_off=True)


# ------------------------------------------------------------------------------------- guard


def test_a_mount_point_in_a_place_of_roots_is_made_by_root_and_given_away() -> None:
    asked = request(map_mount=way("/srv/work"))
    assert guard_plan(Facts(), asked)[0] == "mkdir -m 755 /srv/work and chown 1000"


@pytest.mark.parametrize(
    ("look", "asked", "fault"),
    [
        *(
            (Facts(fstab=f"# mine\n{line}\n".encode()), {"style": style}, "line 2 of fstab already")
            for style in ("fstab", "systemd")
            for line in (
                "projects /srv/raw 9p defaults",
                f"other {RAW} 9p",
                f"/dev/sdb1 {VIEW} ext4",
            )
        ),
        (Facts(mounts=(mounted("ext4", VIEW, "/dev/vdb"),)), {}, "ext4 is mounted"),
        (Facts(mounts=(mounted("fuse.gitguardfs", VIEW, "/other"),)), {}, "shows /other"),
        (Facts(mounts=(mounted("fuse.gitguardfs", "/v", RAW),)), {}, "guarded at /v already"),
        (Facts(), {"map_mount": replace(way(VIEW, exists=True), is_empty=False)}, "not empty"),
        (Facts(), {"user": (7, 7)}, "cannot be made for user 7: .* belongs to another user"),
        (Facts(units={"gitguardfs@.service": b"mine"}), {"style": "systemd"}, "not written by"),
    ],
)
def test_what_is_in_the_way_of_the_guard_is_named(
    look: Facts, asked: dict[str, Any], fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        guard_plan(look, request(**asked))


@pytest.mark.parametrize(
    ("has_systemd", "way_out"), [(True, "--style systemd"), (False, "--no-persist")]
)
def test_fstab_is_refused_where_selinux_would_keep_the_guard_from_coming_back(
    has_systemd: bool, way_out: str
) -> None:
    confined = Confined("mount_t", ("fowner", "sys_ptrace"))
    look = Facts(has_systemd=has_systemd, confined=confined)
    with pytest.raises(UserError, match="run it as mount_t, without fowner, sys_ptrace") as error:
        guard_plan(look, request(style="fstab"))
    assert error.value.hint == way_out
    assert guard_plan(look, request(style="none"))
    assert not has_systemd or guard_plan(look, request(style="systemd"))


def test_a_dead_guard_at_another_place_is_in_nobodys_way() -> None:
    elsewhere = mounted("fuse.gitguardfs", "/v", RAW)
    look = Facts(mounts=(mounted("9p", RAW, "projects"), elsewhere), dead=frozenset(["/v"]))
    assert guard_plan(look, request())
    with pytest.raises(UserError, match=r"guarded at /v already"):
        guard_plan(replace(look, dead=frozenset()), request())


def test_a_share_that_another_guard_needs_keeps_its_unit() -> None:
    spec = spec_of(request(style="systemd"))
    units: dict[str, bytes] = {}
    for one in (spec, replace(spec, map_mount="/home/me/other")):
        units |= {name: text.encode() for name, text in systemd.files(one).items()}
    names = boot.unit_names(Facts(units=units), "/mnt/new", (VIEW,))
    assert systemd.mount_name(RAW) not in names
    names = boot.unit_names(Facts(units=units), "/mnt/new", (VIEW, "/home/me/other"))
    assert systemd.mount_name(RAW) in names


def test_a_share_that_the_users_own_line_mounts_is_left_to_it() -> None:
    look = Facts(fstab=f"projects {RAW} 9p trans=virtio 0 0\n".encode(), has_systemd=True)
    assert not [step for step in guard_plan(look, request(style="systemd")) if ".mount" in step]


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_a_port_for_changes_is_taken_now_and_at_boot(style: Any) -> None:
    look = Facts(has_systemd=True, has_changes_port=True)
    plan = guard_plan(look, request(style=style))
    assert any(step.startswith(f"write /etc/systemd/system/{systemd.CHANGES}") for step in plan)
    assert f"systemctl enable --quiet --now {systemd.CHANGES}" in plan
    for without in (
        replace(look, has_changes_port=False),
        replace(look, has_systemd=False),
    ):
        if style == "fstab" or without.has_systemd:
            assert systemd.CHANGES not in "\n".join(guard_plan(without, request(style=style)))
    packaged = guard_plan(replace(look, has_packaged_template=True), request(style=style))
    assert not any(step.startswith("write") and systemd.CHANGES in step for step in packaged)
    assert any("enable" in step and systemd.CHANGES in step for step in packaged)


# ----------------------------------------------------------------------------------- removal


def installed(style: str, *options: str) -> Facts:
    spec = spec_of(request(options=options))
    found = Facts(
        mounts=(mounted("9p", RAW, "projects"), mounted("fuse.gitguardfs", VIEW, RAW)),
        has_systemd=style == "systemd",
    )
    if style == "fstab":
        return replace(found, fstab=b"# mine\n" + fstab.render(spec).encode())
    units = {name: text.encode() for name, text in systemd.files(spec).items()}
    return replace(found, units=units, enabled=frozenset([VIEW]), active=frozenset([VIEW]))


@pytest.mark.parametrize("style", ["fstab", "systemd"])
@pytest.mark.parametrize("key", ["projects", RAW, VIEW, None])
def test_a_share_is_found_by_any_of_its_names(style: str, key: str | None) -> None:
    where = {
        "tag": key if key == "projects" else None,
        "mount": key if key == RAW else None,
        "map_mount": key if key == VIEW else None,
    }
    found = removal.find(installed(style), **where)
    assert found == removal.InstalledShare("projects", RAW, (VIEW,))
    assert removal.find(installed(style), "other", None, None) is None


def test_removal_asks_if_there_are_several() -> None:
    look = installed("fstab")
    other = mounted("9p", "/mnt/b", "b"), mounted("fuse.gitguardfs", "/home/me/b", "/mnt/b")
    with pytest.raises(UserError, match=r"b at /mnt/b.*projects at"):
        removal.find(replace(look, mounts=(*look.mounts, *other)), None, None, None)


def removed(look: Facts) -> tuple[list[str], str | None]:
    """Return the changes that remove a share, and the reason if it stays."""
    found, rehearsal = removal.find(look, "projects", None, None), Rehearsal()
    assert found is not None
    reason = removal.remove(rehearsal, SYSTEM, look, found)
    return rehearsal.texts, reason


OWN = "/mnt/projects"
SEALED_AT_OWN = (
    mounted("9p", OWN, "projects"), mounted("ramfs", OWN, "gitguardfs-seal"),
    mounted("fuse.gitguardfs", VIEW, OWN),
)  # fmt: skip


@pytest.mark.parametrize(
    ("look", "who"),
    [
        (Facts(), "it was mounted by hand"),
        (Facts(fstab=f"# x\nprojects {OWN} 9p defaults".encode()), "line 2 of fstab mounts it"),
        (Facts(units={"mnt-projects.mount": b"[MountInfo]"}), "mnt-projects.mount mounts it"),
    ],
)
def test_a_share_that_is_not_ours_to_unmount_stays_and_only_its_seal_goes(
    look: Facts, who: str
) -> None:
    said, why = removed(replace(look, mounts=SEALED_AT_OWN))
    assert said == [f"umount {VIEW}", f"umount {OWN}  # the seal"]
    assert why == who


def test_a_share_with_an_entry_of_ours_is_unmounted_wherever_it_is() -> None:
    spec = spec_of(request(mount=way(OWN)))
    look = Facts(mounts=SEALED_AT_OWN, fstab=fstab.render(spec).encode())
    said, why = removed(look)
    assert said == [f"umount {VIEW}", f"umount -- {OWN}", "write /etc/fstab"]
    assert why is None


@pytest.mark.parametrize("mount", [OWN, RAW])
def test_a_guards_entry_that_is_left_alone_is_found_and_taken_out(mount: str) -> None:
    line = fstab.guard_line(spec_of(request(mount=way(mount))))
    look = Facts(fstab=f"{line}\n".encode())
    assert removed(look) == (["write /etc/fstab"], None)
    assert removal.find(look, "other", None, None) is None
    assert removal.find(look, None, None, VIEW) == removal.InstalledShare(None, mount, (VIEW,))


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_changes_are_taken_as_long_as_there_is_a_view(style: str) -> None:
    look = installed(style)
    text = systemd.changes_unit("/opt/x/gitguardfs")
    assert "ExecStart=/opt/x/gitguard changes-in --from" in text
    look = replace(
        look, units={**look.units, systemd.CHANGES: text.encode()}, has_systemd=True,
        takes_changes=True,
    )  # fmt: skip
    said = removed(look)[0]
    disabled = said.index(f"systemctl disable --quiet --now {systemd.CHANGES}")
    assert disabled < said.index(f"remove /etc/systemd/system/{systemd.CHANGES}")
    line = fstab.guard_line(spec_of(request(mount=way("/mnt/b"), map_mount=way("/home/me/other"))))
    with_other = replace(look, fstab=look.fstab + f"{line}\n".encode())
    assert systemd.CHANGES not in "\n".join(removed(with_other)[0])


TEMPLATE_PATH = f"/etc/systemd/system/{systemd.TEMPLATE}"
FOREIGN = b"[Service]\nExecStart=/bin/true\n"


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_somebodys_own_template_beside_a_packages_is_left_alone(style: str) -> None:
    look = replace(installed("systemd"), has_packaged_template=True)
    look.units[systemd.TEMPLATE] = FOREIGN
    assert not [step for step in guard_plan(look, request(style=style)) if TEMPLATE_PATH in step]
    assert not [text for text in removed(look)[0] if TEMPLATE_PATH in text]
    with pytest.raises(UserError, match="not written by gitguardfs"):
        guard_plan(replace(look, has_packaged_template=False), request(style=style))


# ----------------------------------------------------------------------------------- changes


def test_a_file_that_is_written_when_its_change_fails_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fstab"
    path.write_text("old\n")
    real = config_files._sync_directory
    failures = [OSError(5, "out of order")]

    def sync(directory: int) -> None:
        assert path.read_text() == ("new\n" if failures else "old\n")
        if failures:
            raise failures.pop()
        real(directory)

    monkeypatch.setattr(config_files, "_sync_directory", sync)
    with pytest.raises(OSError, match=r"out of order"), Changes(print) as changes:
        boot.write(changes, SYSTEM, Facts(), [config_files.plan(str(path), "new\n")])
    assert path.read_text() == "old\n"


def test_what_is_put_in_the_place_of_a_new_directory_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").mkdir()

    def call(command: Sequence[str], user: object, directory: int) -> None:
        if command[0] == "mkdir":
            os.symlink("victim", command[-1], dir_fd=directory)

    def chown(path: str, *owner: int) -> None:
        raise AssertionError(f"{path} is given away")

    monkeypatch.setattr(mountpoint, "call", call)
    monkeypatch.setattr(os, "chown", chown)
    fd = os.open(tmp_path, os.O_PATH)
    place = Mountpoint(f"{tmp_path}/a", (), (f"{tmp_path}/a",), fd=fd)
    with pytest.raises(OSError, match=r"Not a directory"), closing(place):
        mountpoint.make_missing(Changes(print), place, (1000, 1000))


def test_a_process_that_is_not_the_daemon_any_more_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        with pytest.raises(UserError, match=r"was replaced"):
            unmount._stop(other.pid, lambda: False)
        process = os.pidfd_open(other.pid)
        assert select.select([process], [], [], 0)[0] == []  # it goes on
        os.close(process)
        assert unmount._stop(other.pid, lambda: True)  # SIGUSR2 ends it
        assert other.wait() == -signal.SIGUSR2


# ------------------------------------------------------------------------------------ runner


class Log(list[str]):
    """What changes do, and what they report."""

    def change(self, changes: Changes, name: str, *, fails: bool = False, sticks: bool = False):
        def do() -> None:
            if fails:
                raise UserError("out of order")
            self.append(name)

        def undo() -> None:
            self.append(f"-{name}")
            if sticks:
                raise OSError(16, "busy")

        changes.make(name, do, undo)


def test_a_failure_undoes_everything_last_first_also_past_what_cannot_be_undone() -> None:
    log, reported = Log(), list[str]()
    with pytest.raises(UserError, match=r"out of order"), Changes(reported.append) as changes:
        log.change(changes, "a")
        log.change(changes, "b", sticks=True)
        log.change(changes, "c")
        log.change(changes, "d", fails=True)
    assert log == ["a", "b", "c", "-d", "-c", "-b", "-a"]
    assert reported[4:] == ["undone: c", "could not undo: b: [Errno 16] busy", "undone: a"]


@pytest.mark.one_thread
def test_a_signal_waits_for_the_change_and_then_undoes_it_too() -> None:
    log = Log()

    def leave(number: int, frame: object) -> None:
        log.append("left amid something")

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        log.append("a")

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(UserError, match=r"ended by SIGTERM"), Changes(log.append) as changes:
            changes.make("do a", interrupted, lambda: log.append("-a"))
            log.change(changes, "b")
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert log == ["do a", "a", "-a", "undone: do a"]


@pytest.mark.parametrize(
    ("environment", "redirection", "expected"),
    [
        ({"PYTHONIOENCODING": "latin-1"}, "", "\\u6f22\\xff\nend\n"),
        ({}, ">/dev/full", ""),
        ({}, ">&-", ""),
        ({}, "| true", ""),
    ],
)
def test_printing_progress_never_fails(
    environment: dict[str, str], redirection: str, expected: str
) -> None:
    code = (
        "import time; from gitguardfs.guest.report import say; time.sleep(0.3)\n"
        "for text in ('\\u6f22\\udcff', 'end'): say(text)"
    )
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$0" -c "$1" {redirection}', sys.executable, code],
        env=os.environ | environment, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


# ----------------------------------------------------------------------------------- command


def test_whoever_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = CliRunner().invoke(vm_mount.command, ["--remove"], standalone_mode=False)
    assert isinstance(result.exception, UserError)
    assert "sudo vm-mount" in str(result.exception)


def test_a_view_in_nobodys_home_needs_a_user() -> None:
    with pytest.raises(UserError, match=r"--user"):
        facts.owner_of_view("/srv/projects", None)
    assert facts.owner_of_view("/srv/projects", "501:20") == (501, 20)
    assert facts.owner_of_view("/srv/projects", "root") == (0, 0)
    with pytest.raises(UserError, match=r"no such user"):
        facts.owner_of_view("/srv/projects", "nobody-of-that-name")


def test_a_view_that_got_the_number_of_another_is_undone_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[MountInfo] = []
    other, ours = mounted("fuse.gitguardfs", "/v", "/other"), mounted("fuse.gitguardfs", VIEW, RAW)
    assert other.mnt_id == ours.mnt_id
    looks = iter([[other], [ours]])
    monkeypatch.setattr(guards, "guards", lambda: next(looks))
    monkeypatch.setattr(guards, "is_dead", lambda path: False)
    monkeypatch.setattr(guard, "stop_keeping_seal", lambda view, source: ended.append(view))
    with pytest.raises(ZeroDivisionError), Changes(print) as changes:
        guard._start(changes, ("true",), spec_of(request()))
        raise ZeroDivisionError
    assert ended == [ours]


# ----------------------------------------------------------------------------------- running

WANTED = ("map=501/1000:@20/@1000", "seal", "git=private")


def guarded(told: Sequence[str] | None, *, sealed: bool = True) -> Facts:
    """Return the facts when a guard runs whose daemon has these arguments."""
    found = [mounted("9p", RAW, "projects"), mounted("fuse.gitguardfs", VIEW, RAW)]
    if sealed:
        found.append(mounted("ramfs", RAW, "gitguardfs-seal"))
    return Facts(mounts=tuple(found), running={} if told is None else {VIEW: tuple(told)})


@pytest.mark.parametrize(
    "told",
    [
        WANTED,
        ("rw", *WANTED, "x-gitguardfs", "_netdev", f"mountpoint={VIEW}"),
        ("map=501/1000", "map=@20/@1000", "git=private", "cache_timeout=1", "foreground"),
    ],
)
def test_a_guard_that_does_what_is_asked_for_is_left_alone(told: Sequence[str]) -> None:
    assert guard_plan(guarded(told), request(style="none")) == []


@pytest.mark.parametrize(
    "look",
    [
        guarded(None),
        guarded(WANTED, sealed=False),
        guarded((*WANTED, "git=off")),
        guarded(WANTED[:2]),
        guarded((*WANTED, "deny=x")),
        guarded((*WANTED, "no-seal")),
        guarded((*WANTED[1:], "map=501/1000:@20/@1001")),
        guarded((*WANTED, "bogus")),
    ],
)
def test_a_guard_that_does_something_else_is_started_anew(look: Facts) -> None:
    stop, start = guard_plan(look, request(style="none"))
    assert stop == f"umount {VIEW}"
    assert start.startswith(GUARD)


def test_the_order_of_options_that_add_up_does_not_matter() -> None:
    for option in OPTIONS:
        if option.multiple and option.name != "map":
            one, other = f"{option.name}=x", f"{option.name}=y"
            assert guards.same_options((*WANTED, one, other), (*WANTED, other, one, one)), option
            assert guards.lost_options((*WANTED, one, other), (*WANTED, other)) == [one]


def test_a_stopped_guard_is_brought_back_as_it_was_and_never_by_mount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = guarded((*WANTED, "deny=a,b", "foreground"))
    look = replace(look, fstab=installed("fstab").fstab)
    calls: list[Sequence[str]] = []
    monkeypatch.setattr(guard, "stop_keeping_seal", lambda view, source: None)
    monkeypatch.setattr(guard, "call", calls.append)
    with pytest.raises(ZeroDivisionError), Changes(print) as changes:
        guard.stop(changes, SYSTEM, look, RAW, VIEW)
        raise ZeroDivisionError
    options = r"map=501/1000:@20/@1000,seal,git=private,deny=a\,b"
    assert calls == [(GUARD, "-o", options, "--", RAW, VIEW)]


@pytest.mark.parametrize(
    ("before", "options", "gone"),
    [
        ((*WANTED, "deny=.env", "git=hide"), (), "deny=.env,git=hide"),
        ((*WANTED, "deny=.env", "git=hide"), ("deny=.env", "git=readonly"), "git=hide"),
        ((*WANTED, "deny=.env"), ("deny=.env", "deny=x"), ""),
        (("map=1:2", "no-seal", "rw", "x-gitguardfs", "cache_timeout=1"), (), ""),
        ((*WANTED, "git=deny"), (), "git=deny"),
        ((*WANTED, "git=deny"), ("git=deny",), ""),
        (WANTED, ("git=deny",), ""),
        ((*WANTED, "audit-log=/a", "ro", "noatime"), (), "audit-log=/a,ro,noatime"),
    ],
)
def test_options_that_were_there_before_and_are_not_given_again_are_named(
    before: tuple[str, ...], options: tuple[str, ...], gone: str
) -> None:
    said = list(guard.lost_options(guarded(before), spec_of(request(options=options))))
    assert [line.partition(" -o ")[2] for line in said] == ([gone] if gone else [])


@pytest.mark.parametrize("style", ["fstab", "systemd"])
def test_options_that_were_only_written_down_are_named_too(style: str) -> None:
    old = spec_of(request(options=("deny=a,b'",)))
    units = {name: text.encode() for name, text in systemd.files(old).items()}
    look = Facts(fstab=fstab.render(old).encode()) if style == "fstab" else Facts(units=units)
    (said,) = guard.lost_options(look, spec_of(request()))
    assert said.endswith("""-o 'deny=a\\,b'"'"''""")


def test_what_a_user_mounted_by_the_name_of_a_guard_is_not_taken_for_one() -> None:
    fake = replace(mounted("fuse.gitguardfs", VIEW, RAW), super_options="rw,user_id=1000")
    look = replace(guarded(WANTED), mounts=(fake,))
    assert look.guards() == []
    found = removal.find(look, None, None, None)
    assert found is None
    with pytest.raises(UserError, match=r"not root's is mounted"):
        guard_plan(Facts(mounts=(fake,)), request())
