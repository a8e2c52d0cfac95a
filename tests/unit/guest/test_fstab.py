"""The lines of fstab: how mount(8) and systemd read them; foreign lines stay as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.base import quote
from gitguardfs.base.errors import UserError
from gitguardfs.guest import fstab
from gitguardfs.options.guarded_share import GuardedShare
from gitguardfs.options.parsing import parse_o

GENERATOR = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
BINDFS_LINE = (
    "/mnt/projects /home/user/projects fuse.gitguardfs map=1000/1000:@1000/@1000,"
    "x-systemd.requires=/mnt/projects,_netdev,nofail,auto 0 0"
)
NASTY = " ,'\"%$\\#äé漢\u00a0\u2028a1-_.:=@*"
NAME = st.text(NASTY, min_size=1, max_size=10).filter(
    lambda t: t == t.strip() and not t.endswith("\\") and t not in (".", "..")
)
PATH = st.lists(NAME, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))
OPTION = st.text(NASTY.replace("\u2028", ""), max_size=8).map(lambda t: f"deny=x{t}")


def spec(**changed: Any) -> GuardedShare:
    given_ = {
        "tag": "projects", "transport": "9p", "mount": "/mnt/projects",
        "map_mount": "/home/user/projects", "map": "1000/1000:@1000/@1000",
    } | changed  # fmt: skip
    return GuardedShare(**given_)


def libmount_reads(text: str) -> list[dict[str, str]]:
    with tempfile.NamedTemporaryFile("w", suffix=".fstab") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            ["findmnt", "--json", "--list", "--nocanonicalize", "--tab-file", file.name,
             "-o", "SOURCE,TARGET,FSTYPE,OPTIONS"],
            capture_output=True, check=True,
        )  # fmt: skip
    found: list[dict[str, str]] = json.loads(done.stdout)["filesystems"]
    return found


def systemd_reads(text: str) -> dict[str, str]:
    """The units that systemd makes of an fstab, by their names."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "fstab").write_text(text)
        out = Path(directory, "out")
        out.mkdir()
        subprocess.run(
            [GENERATOR, out, out, out], env={"SYSTEMD_FSTAB": f"{directory}/fstab"}, check=True
        )
        wants = {p.name: str(p.parent.name) for p in out.rglob("*.wants/*")}
        return {
            p.name: p.read_text() + f"# in {wants.get(p.name, '')}\n" for p in out.glob("*.mount")
        }


@settings(max_examples=40, deadline=None)
@given(tag=NAME, mount=PATH, map_mount=PATH, option=OPTION)
def test_mount_reads_back_every_path_tag_and_option(
    tag: str, mount: str, map_mount: str, option: str
) -> None:
    try:
        wanted = spec(tag=tag, mount=mount, map_mount=map_mount, options=(option,))
    except UserError:
        return
    carried = f"{map_mount},{option}"
    if any(c in carried for c in '"\\') or "\\" in mount or re.search(r",(,|\Z)", carried):
        with pytest.raises(UserError, match="--style systemd"):
            fstab.render(wanted)
        return
    share, guard = libmount_reads(fstab.render(wanted))
    assert (share["source"], share["target"], share["fstype"]) == (tag, mount, "9p")
    assert (guard["source"], guard["target"]) == (mount, map_mount)
    found = parse_o([guard["options"]])
    assert found["deny"] == [option.removeprefix("deny=")]
    assert found["seal"] is True
    assert found["map"] == ["1000/1000:@1000/@1000"]
    assert found["mountpoint"] == map_mount


@pytest.mark.skipif(not os.path.exists(GENERATOR), reason="needs systemd-fstab-generator")
@settings(max_examples=40, deadline=None)
@given(mount=PATH, map_mount=PATH)
def test_systemd_mounts_the_share_first_and_starts_without_it(mount: str, map_mount: str) -> None:
    try:
        units = systemd_reads(fstab.render(spec(mount=mount, map_mount=map_mount)))
    except UserError:
        return
    share = f"{quote.systemd_unit_name(mount)}.mount"
    guard = units.pop(f"{quote.systemd_unit_name(map_mount)}.mount")
    assert list(units) == [share]
    assert f"Requires={share}\n" in guard
    assert f"After={share}\n" in guard
    assert "Before=" not in units[share]  # nofail: remote-fs.target does not wait
    # Users are let in after that target, by systemd-user-sessions.service and cron.
    assert re.findall("Before=.*", guard) == ["Before=remote-fs.target"]
    for unit in (guard, units[share]):
        assert "# in remote-fs.target.wants" in unit


def test_a_9p_share_is_for_root_alone_and_cached_no_longer_than_the_guard_knows() -> None:
    line = fstab.share_line(spec())
    assert "trans=virtio,version=9p2000.L,msize=262144,cache=none,access=0" in line
    assert "access" not in fstab.share_line(spec(transport="virtiofs"))


# ------------------------------------------------------------------ a file with foreign lines

FOREIGN = st.sampled_from(
    [
        b"# /etc/fstab: static file system information.", b"", b"   ", b"# x-gitguardfs",
        b"UUID=ab-cd / ext4 errors=remount-ro 0 1", b"/swapfile none swap sw 0 0",
        b"tmpfs\t/tmp\ttmpfs\tmode=1777\t0\t0\r", b"/dev/sr0 /media/cd\\040rom auto noauto",
        b"\xff\xfe /x\xff auto noauto 0 0", b"broken",
        b"other /mnt/other 9p trans=virtio 0 0",
    ]
)  # fmt: skip
FOREIGN_TEXT = st.builds(
    lambda lines, end: b"\n".join(lines) + end,
    st.lists(FOREIGN, max_size=6),
    st.sampled_from([b"", b"\n"]),
)


@given(FOREIGN_TEXT, FOREIGN_TEXT)
def test_others_lines_stay_byte_for_byte(before: bytes, after: bytes) -> None:
    wanted = spec()
    once = fstab.install(before, wanted)
    assert once.startswith(before)
    assert fstab.install(once, wanted) == once
    text = once + after
    assert fstab.install(text, wanted) == text
    end = b"" if before.endswith(b"\n") or not before else b"\n"
    others = before + end + after
    assert fstab.remove(text, wanted.mount, (wanted.map_mount,)) == others
    other = spec(map="501/1000:@20/@1000", options=("git=readonly",))
    end = b"" if others.endswith(b"\n") or not others else b"\n"
    assert fstab.install(text, other) == others + end + fstab.render(other).encode()


def test_lines_in_the_wrong_order_are_put_right() -> None:
    wanted = spec()
    swapped = f"{fstab.guard_line(wanted)}\n# mine\n{fstab.share_line(wanted)}\n".encode()
    assert fstab.install(swapped, wanted) == b"# mine\n" + fstab.render(wanted).encode()


def test_a_share_that_somebody_mounts_just_there_stays_theirs() -> None:
    text = b"projects /mnt/projects 9p trans=virtio,nofail 0 0\n"
    assert fstab.install(text, spec()) == text + fstab.guard_line(spec()).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        "/dev/vdb /mnt/projects ext4 defaults 0 0",
        "/mnt/projects /home/user/projects/ fuse.bindfs map=1000/1000 0 0",
        BINDFS_LINE,
        "projects /elsewhere 9p trans=virtio 0 0",
    ],
)
def test_a_line_in_the_way_is_named_by_its_number(line: str) -> None:
    with pytest.raises(UserError, match="line 2 of fstab"):
        fstab.install(f"# comment\n{line}\n".encode(), spec())


def test_other_shares_of_ours_are_left() -> None:
    other = spec(tag="b", mount="/mnt/b", map_mount="/home/user/b")
    text = fstab.install(fstab.install(b"", other), spec())
    assert (
        fstab.remove(text, "/mnt/projects", ("/home/user/projects",))
        == fstab.render(other).encode()
    )


NOT_FOR_FSTAB = [
    'a"b', "a\\b", "a\\", "a\\,b", "a,", "a,,b", "a,x-foo", "a,X-foo=1", "a,comment=x",
    "a,ro", "a,user", "a,noauto", "a,nofail", "a,_netdev", "a,noexec", "a,nosuid", "a,setuid=1",
    "a,b,uhelper=x",
]  # fmt: skip
"""Values that mount(8), mount.fuse3 or systemd cut short or take for an option (measured)."""


@pytest.mark.parametrize("value", NOT_FOR_FSTAB)
def test_what_the_readers_of_fstab_would_cut_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="use --style systemd"):
        fstab.render(spec(options=(f"hide={value}",)))
    if not value.endswith("\\"):  # which no style can carry in a path
        with pytest.raises(UserError, match="use --style systemd"):
            fstab.render(spec(map_mount=f"/home/x/{value}"))


@pytest.mark.parametrize("value", ["a,b", "a b", "a'b", "a,rox", "a,b,c", "a=b", "a,nofails"])
def test_what_they_carry_is_not(value: str) -> None:
    text = fstab.render(spec(options=(f"hide={value}",), map_mount=f"/home/x/{value}"))
    (_, guard) = libmount_reads(text)
    found = parse_o([guard["options"]])
    assert (found["hide"], found["mountpoint"]) == ([value], f"/home/x/{value}")


def test_a_share_that_loses_its_guard_to_another_goes_with_it() -> None:
    old = spec(tag="old", mount="/mnt/old")
    text = fstab.install(b"# mine\n" + fstab.render(old).encode(), spec())
    assert text == b"# mine\n" + fstab.render(spec()).encode()
    assert fstab.remove(fstab.render(old).encode(), "/mnt/x", (old.map_mount,)) == b""


def test_a_share_that_another_view_needs_stays() -> None:
    old = spec(tag="old", mount="/mnt/old")
    second = fstab.guard_line(spec(tag="old", mount="/mnt/old", map_mount="/home/user/old"))
    text = fstab.install(f"{fstab.render(old)}{second}\n".encode(), spec())
    assert fstab.share_line(old).encode() in text
