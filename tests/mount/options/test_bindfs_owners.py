"""The owners that files show, as in bindfs: forced owners, mirrors, maps and offsets."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.likeness import (
    OTHER,
    OWNERS,
    Note,
    alike,
    listed,
    make_tree,
    read,
    seen,
    touch,
    write,
)  # fmt: skip
from tests.support.mounting import area, gitguardfs, until
from tests.support.people import AGENT, as_user

EVERYBODY = (0, AGENT, OTHER, 5, 501)


def owners(view: Path, source: Path, note: Note) -> None:
    """Note what each user sees, may read, and gets as the owner of new files."""
    _owners(view, source, note, EVERYBODY, ("", "setgid/"))


def _owners(
    view: Path, source: Path, note: Note, users: Iterable[int], places: Iterable[str]
) -> None:
    for uid in users:
        made = [f"{place}{kind}by-{uid}" for place in places for kind in ("", "dir-")]
        looks = [*(f"of-{name}" for name in OWNERS), "l-relative", ""]
        files = ("f0600", "f0640", "f0444", "f0000")
        calls = [
            *((f"{uid}: {name}", seen, view / name) for name in looks),
            *((f"{uid}: reads {name}", read, view / name) for name in files),
            *((f"{uid}: writes {name}", write, view / name, name) for name in files),
            (f"{uid}: lists d0700", listed, view / "d0700"),
            (f"{uid}: chmods", os.chmod, view / "f0600", 0o600),
            *((f"{uid}: makes {n}", os.mkdir if "dir-" in n else touch, view / n) for n in made),
            *((f"{uid}: sees {name}", seen, view / name) for name in made),
        ]
        note.by(calls, uid=uid)
        for name in made:
            note(f"{name} on the source", seen, source / name)


def giving(view: Path, source: Path, note: Note) -> None:
    """Owners are changed by root and by those who see themselves as the owner."""
    for uid in (0, AGENT, OTHER):
        for name in ("of-agent", "of-foreign", "dir-of-other"):
            for new in ((1000, 1000), (1001, -1), (-1, 1001), (77, 88), (0, 0)):
                what = f"{uid}: {name} to {new}"
                note(what, os.chown, view / name, *new, uid=uid)
                note.see(f"{what}, view", view / name)
                note.see(f"{what}, source", source / name)


FORCED = {
    "user": ("-u", "1000"),
    "group": ("-g", "1000"),
    "both": ("-u", "1001", "-g", "60"),
    "long": ("--force-user=1000", "--force-group=1001"),
    "names": ("--force-user=games", "--force-group=www-data"),
    "without an entry": ("--force-user=54321", "--force-group=54322"),
    "by -o": ("-o", "force-user=1001,force-group=1001"),
    "old": ("--user=1001", "--group=60"),
    "old owner": ("--owner=games",),
}


@pytest.mark.parametrize("options", FORCED.values(), ids=FORCED.keys())
def test_forced_owners(options: tuple[str, ...]) -> None:
    alike(owners, *options)


@pytest.mark.parametrize("options", [(), ("-u", "1000"), ("-g", "1000"), ("-u1001", "-g1001")])
def test_giving_away_what_is_shown_with_forced_owners(options: tuple[str, ...]) -> None:
    alike(giving, *options)


MIRRORS = {
    "users": ("-m", "1000:games"),
    "commas": ("--mirror=1000,1001",),
    "by -o": ("-o", "mirror=1000:1001"),
    "group": ("-m", "@games"),
    "user and group": ("-m", "1001:@games"),
    "only": ("-M", "1000"),
    "only, several": ("--mirror-only=1000:@games",),
    "with forced owners": ("-m", "1000", "-u", "1001", "-g", "1001"),
    "with permissions": ("-m", "1000", "-p", "0600,u+X"),
    "only, with permissions": ("-M", "1000", "-p", "0666,a+X"),
}


@pytest.mark.parametrize("options", MIRRORS.values(), ids=MIRRORS.keys())
def test_mirrors(options: tuple[str, ...]) -> None:
    alike(owners, *options)


@pytest.mark.parametrize("options", [("-m", "1000"), ("-M", "1000:1001")])
def test_giving_away_what_is_mirrored(options: tuple[str, ...]) -> None:
    alike(giving, *options)


@pytest.fixture
def private_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A place to mount in, and the /etc/group of the daemon that is started meanwhile."""
    with area() as here:
        group = here / "group"
        group.write_text(Path("/etc/group").read_text() + "mirrored:x:7777:\n")
        # The view is to be seen outside of the daemon's mount namespace, its /etc/group is not.
        wrapper = here / "python"
        wrapper.write_text(
            "#!/bin/sh\nexec unshare -m --propagation unchanged sh -c "
            f"'mount --make-private / && mount --bind {group} /etc/group && "
            f"""exec {sys.executable} "$@"' sh "$@"\n"""
        )
        wrapper.chmod(0o755)
        shared = here / "shared"
        shared.mkdir()
        subprocess.run(["mount", "--bind", shared, shared], check=True)
        try:
            subprocess.run(["mount", "--make-shared", shared], check=True)
            monkeypatch.setattr(sys, "executable", str(wrapper))
            yield shared, group
        finally:
            subprocess.run(["umount", shared], check=True)


def test_sigusr1_rereads_who_is_in_a_group(private_groups: tuple[Path, Path]) -> None:
    """From the signal on, new members are mirrored and former members are not."""
    here, group = private_groups
    make_tree(here / "source")
    before = group.read_text()
    with gitguardfs(here / "source", here / "view", "--git=off", "-m", "@mirrored") as mounted:

        def shown() -> str:
            return str(as_user(seen, mounted.path / "of-agent", uid=5, gid=60)).split()[2]

        def told(text: str) -> None:
            group.write_text(text)
            assert shown() == was
            mounted.process.send_signal(signal.SIGUSR1)

        was = "1000:1000"
        assert shown() == was
        told(before.replace("7777:", "7777:games"))
        until(lambda: shown() == "5:1000", "games is mirrored")
        was = "5:1000"
        told(before)
        until(lambda: shown() == "1000:1000", "games is not mirrored any more")


MAPS = {
    "one": ("--map=501/1000:@20/@1000",),
    "users only": ("--map=501/1000:",),
    "groups only": ("--map=@20/@1000",),
    "by -o": ("-o", "map=501/1000:@20/@1000"),
    "swapped": ("--map=1000/1001:1001/1000:@1000/@1001:@1001/@1000",),
    "round": ("--map=1000/1001:1001/501:501/1000",),
    "names": ("--map=games/www-data:@games/@www-data",),
    "to root": ("--map=0/1000:@0/@1000",),
    "with forced user": ("--map=501/1000:@20/@1000", "-u", "1001"),
}
NO_PLACE = {"users only": {501}, "one": {501}, "by -o": {501}, "with forced user": {501},
            "names": {5}, "to root": {0}}  # fmt: skip
"""Users on the left of a map and not on its right: see below."""


@pytest.mark.parametrize("which", MAPS)
def test_maps(which: str) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        users = [uid for uid in EVERYBODY if uid not in NO_PLACE.get(which, ())]
        _owners(view, source, note, users, [""])

    alike(script, *MAPS[which])


@pytest.mark.parametrize("which", ["one", "users only", "groups only", "swapped", "round"])
def test_giving_away_what_is_mapped(which: str) -> None:
    alike(giving, *MAPS[which])


def test_a_mirror_over_a_map() -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        _owners(view, source, note, (0, AGENT, OTHER, 5), [""])

    alike(script, "-m", "1000", "--map=501/1001:@20/@1001")


SHOWN_AS_1000 = "stored as 501 it would be shown as 1000's: neither he nor root asked for that"


def test_an_id_that_the_map_has_given_away_is_refused() -> None:
    """bindfs makes the file all the same, and shows it as somebody else's."""

    def script(view: Path, source: Path, note: Note) -> None:
        note("501 makes a file", touch, view / "made", uid=501)
        note("501 makes a directory", os.mkdir, view / "dir", uid=501)
        note("given to 501", os.chown, view / "of-agent", 501, -1)
        note("given to group 20", os.chown, view / "of-agent", -1, 20)
        for name in ("made", "dir", "of-agent"):
            note.see(name, view / name)

    alike(script, *MAPS["one"], differs={
        "501 makes a file": (None, "EOVERFLOW", SHOWN_AS_1000),
        "501 makes a directory": (None, "EOVERFLOW", SHOWN_AS_1000),
        "given to 501": (None, "EOVERFLOW", SHOWN_AS_1000),
        "given to group 20": (None, "EOVERFLOW", SHOWN_AS_1000),
        "made looks": ("file 0644 1000:501 x1 0 bytes", "ENOENT", SHOWN_AS_1000),
        "dir looks": ("dir 0755 1000:501", "ENOENT", SHOWN_AS_1000),
    })  # fmt: skip


PASSWD = "# of the share\n\ngames:x:501:20::/:/bin/sh\nwww-data:x:1001:1001:::\n"
GROUP = "games:x:20:\nwww-data:x:1001:a,b\n"


@pytest.fixture
def files() -> Iterator[Path]:
    with area() as here:
        (here / "passwd").write_text(PASSWD.removeprefix("# of the share\n\n"))
        (here / "group").write_text(GROUP)
        (here / "odd").write_text(PASSWD)
        yield here


def test_users_and_groups_as_files_number_them(files: Path) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        _owners(view, source, note, (0, AGENT, 5, 33), [""])

    passwd, group = files / "passwd", files / "group"
    alike(script, f"--map-passwd={passwd}")
    alike(script, "-o", f"map-group={group}")

    def together(view: Path, source: Path, note: Note) -> None:
        for new in ((5, 60), (33, 33), (1002, 1002), (77, -1)):
            note(f"to {new}", os.chown, view / "of-mixed", *new)
            note.see(f"to {new}, view", view / "of-mixed")
            note.see(f"to {new}, source", source / "of-mixed")

    options = (f"--map-passwd={passwd}", f"--map-group={group}", "--map=1000/1002:@1000/@1002")
    alike(together, *options)


def test_the_other_way_round_users_of_here_have_the_numbers_of_the_file(files: Path) -> None:
    """bindfs 1.18 has this and 1.14.7 does not: compared with what it says it does."""
    with area() as here:
        make_tree(here / "source")
        options = (f"--map-passwd-rev={files / 'odd'}", f"--map-group-rev={files / 'group'}")
        with gitguardfs(here / "source", here / "view", "--git=off", *options) as mounted:
            assert seen(mounted.path / "of-games") == "file 0644 501:20 x1 8 bytes"
            as_user(touch, mounted.path / "made", uid=501, gid=20)
            assert seen(here / "source/made") == "file 0644 5:60 x1 0 bytes"
            os.chown(mounted.path / "of-agent", 1001, 1001)
            assert seen(here / "source/of-agent") == "file 0644 33:33 x1 8 bytes"


OFFSETS = [("--uid-offset=10",), ("--gid-offset=20",), ("-o", "uid-offset=10,gid-offset=20")]


@pytest.mark.parametrize("options", OFFSETS)
def test_offsets(options: tuple[str, ...]) -> None:
    def script(view: Path, source: Path, note: Note) -> None:
        _owners(view, source, note, (AGENT, OTHER, 501), ["", "setgid/"])

    alike(script, *options)
    alike(giving_ordinary, *options)


def giving_ordinary(view: Path, source: Path, note: Note) -> None:
    for new in ((1000, 1000), (77, 88), (-1, 1001), (1001, -1)):
        note(f"to {new}", os.chown, view / "of-agent", *new)
        note.see(f"to {new}, view", view / "of-agent")
        note.see(f"to {new}, source", source / "of-agent")


def test_an_offset_that_leaves_nothing_of_an_id() -> None:
    """Less the offset, user 5 would be -5: bindfs silently leaves the files to root."""

    def script(view: Path, source: Path, note: Note) -> None:
        note("5 makes a file", touch, view / "by-5", uid=5)
        note("by-5", seen, source / "by-5")
        note("root makes a file", touch, view / "by-0")
        note("by-0", seen, source / "by-0")
        note("root makes a directory", os.mkdir, view / "dir-by-0")
        note("dir-by-0", seen, source / "dir-by-0")

    alike(script, "--uid-offset=10", differs={
        "5 makes a file": (None, "EOVERFLOW", "he would not own what he made"),
        "by-5": ("file 0644 0:0 x1 0 bytes", "ENOENT", "he would not own what he made"),
        "root makes a directory": ("EIO", None, "bindfs makes it and reports a failure"),
    })  # fmt: skip


def test_negative_offsets() -> None:
    """bindfs 1.18 has them and 1.14.7 does not."""
    with area() as here:
        make_tree(here / "source")
        os.chown(here / "source", 1000, 1000)
        options = ("--uid-offset=-400", "-o", "gid-offset=-10")
        with gitguardfs(here / "source", here / "view", "--git=off", *options) as mounted:
            assert seen(mounted.path / "of-foreign") == "file 0644 101:10 x1 10 bytes"
            as_user(touch, mounted.path / "made", uid=1000)
            assert seen(here / "source/made") == "file 0644 1400:1010 x1 0 bytes"
            with pytest.raises(OSError, match="Input/output error"):
                seen(mounted.path / "of-games")
            assert "of-games" in listed(mounted.path)


def test_an_offset_that_leaves_nothing_of_the_source_s_owner() -> None:
    """It starts, as bindfs 1.18 does; objects that cannot be shown are errors until they can be."""
    with area() as here:
        make_tree(here / "source")
        os.chown(here / "source", 0, 0)
        options = ("--uid-offset=-2", "--gid-offset=-20", "--git=off")
        with gitguardfs(here / "source", here / "view", *options) as mounted:
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output error"):
                    mounted.path.stat()
            os.chown(here / "source", 5, 50)
            assert (mounted.path.stat().st_uid, mounted.path.stat().st_gid) == (3, 30)
            with pytest.raises(OSError, match="Value too large"):
                os.chown(mounted.path / "of-foreign", 2**32 - 2, -1)
