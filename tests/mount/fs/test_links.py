"""Symlinks: as given in the view, and on the source below their work tree or leading nowhere."""

import errno
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.contained import as_given, leading_out, stored, told
from tests.support.mounting import Mounted, area, gitguardfs
from tests.support.people import as_user
from tests.support.raw_calls import RENAME_EXCHANGE, renameat2
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host, git

MANY = 4097
"""Directories in a tree that is too large to be walked."""


@dataclass(frozen=True)
class Share:
    """A share with a project ``p``, and the view of it."""

    place: Path
    mounted: Mounted

    @property
    def host(self) -> Path:
        return self.mounted.source

    @property
    def guest(self) -> Path:
        return self.mounted.path

    def out(self) -> list[str]:
        return leading_out(self.host, [self.host / "p/ext", self.host / "p/meta"])


def _make_share(place: Path) -> Path:
    """Projects ``p`` and, in it, ``p/vendor/inner``; a bare repository; two links of the host's."""
    share = place / "share"
    for path in (share, place / "outside"):
        path.mkdir()
        os.chown(path, HOST_UID, HOST_GID)
    with as_host():
        for name in ("p/a/b/c", "p/vendor/inner/src", "loose", "p/secret"):
            (share / name).mkdir(parents=True)
        (share / "p/file").write_text("text\n")
        (share / "p/ext").symlink_to(place / "outside")
        (share / "p/meta").symlink_to(".git")
    for name in ("p", "p/vendor/inner"):
        git(share / name, "init", "--quiet", "--template=")
    git(share / "p", "init", "--quiet", "--template=", "--bare", "store.git")
    return share


@pytest.fixture
def share() -> Iterator[Share]:
    with area() as place:
        source = _make_share(place)
        with gitguardfs(source, place / "view", "--map", MAP, "--deny", "secret") as mounted:
            yield Share(place, mounted)


# ------------------------------------------------------------------------ Texts that are made

CONTAINED: dict[str, tuple[str, ...]] = {
    "p": ("file", "a/b", "no/where", "./file", "a//b/", "..file", ".../x", "a/..b", ".gitignore",
        "vendor", "vendor/inner/src"),
    "p/a/b": ("..", ".", "c", "../../file", "./../.././file", "../../no/where"),
    "p/vendor/inner/src": ("../file",),
    "loose": ("file", "../other"),
    "": ("loose",),
}  # fmt: skip
"""By directory of the link, texts that lead strictly below its work tree."""

LEADING_OUT: dict[str, tuple[str, ...]] = {
    "p": ("/etc/passwd", "/", "//etc", "..", ".", "./", "../p/file", "../loose", "a/..",
        "a/../file", "./a/b/../../../../outside", ".git", ".git/hooks", ".GIT/hooks",
        "git~1/hooks", ".git./hooks", "a/.git", "no/where/.git/hooks", "meta", "meta/hooks",
        "meta/not there yet", "ext", "ext/not there yet", "store.git", "store.git/hooks",
        "store.git/not there yet", "secret", "secret/not there yet", "vendor/inner",
        "/.gitguardfs-guest/file", "../.gitguardfs-guest/file", "/.../....//..x/.x",
        "../...././..../..."),
    "p/a/b": ("../..", "../../", "../../../p", "../../../loose", "../../../../outside",
        "../../.git/config"),
    "p/vendor/inner/src": ("../../other",),
    "p/vendor/inner": ("../../file",),
    "loose": ("..", "../p", "../../outside"),
    "": ("p", "..", "../outside", "."),
}  # fmt: skip
"""By directory of the link, texts that may not stay as they are on the source."""


def _make_each(view: Path, texts: list[tuple[str, bytes]]) -> None:
    for number, (directory, text) in enumerate(texts):
        link = os.fsencode(view / directory / f"link{number}")
        os.symlink(text, link)
        assert os.readlink(link) == text
        assert os.lstat(link).st_size == len(text)


def test_links_are_as_given_in_the_view_and_contained_on_the_source(share: Share) -> None:
    contained = [(place, text.encode()) for place, texts in CONTAINED.items() for text in texts]
    contained += [("p", b"\xff\xfe"), ("p", b"x" * 255), ("p", b"x/" * 2000)]
    out = [(place, text.encode()) for place, texts in LEADING_OUT.items() for text in texts]
    out += [("p", b"/\xff\xfe"), ("p", b"/" + b"x/" * 2000)]
    as_user(_make_each, share.guest, contained + out)
    found = [
        os.readlink(os.fsencode(share.host / directory / f"link{number}"))
        for number, (directory, _) in enumerate(contained + out)
    ]
    wanted = [text for _, text in contained] + [stored(text) for _, text in out]
    assert {t: s for (_, t), s in zip(contained + out, found, strict=True)} == dict(
        zip([t for _, t in contained + out], wanted, strict=True)
    )
    assert share.out() == []


def _read_through(view: Path) -> list[str]:
    (view / "p/out").symlink_to("/proc/self/status")
    (view / "p/a/climbing").symlink_to("../../loose/file")
    (view / "p/a/self").symlink_to("../../p/a")
    (view / "loose/file").write_text("loose\n")
    (view / "p/a/self/new").write_text("new\n")
    return [
        (view / "p/out").read_text().partition(":")[0],
        (view / "p/a/climbing").read_text(),
        (view / "p/a/self/self/self/new").read_text(),
        os.path.realpath(view / "p/a/self/self"),
    ]


def test_links_that_lead_out_work_in_the_guest(share: Share) -> None:
    assert as_user(_read_through, share.guest) == [
        "Name", "loose\n", "new\n", str(share.guest / "p/a"),
    ]  # fmt: skip
    assert share.out() == []


def test_links_of_the_host_s_are_shown_and_followed_as_they_are(share: Share) -> None:
    (share.place / "outside/file").write_text("outside\n")
    assert as_user(os.readlink, share.guest / "p/ext") == str(share.place / "outside")
    assert as_user((share.guest / "p/ext/file").read_text) == "outside\n"
    with pytest.raises(PermissionError):
        as_user(os.listdir, share.guest / "p/meta")


def test_a_person_on_the_host_sees_what_the_link_is(share: Share) -> None:
    as_user(os.symlink, "/usr/bin/python3", share.guest / "p/python")
    assert os.readlink(share.host / "p/python") == "/.gitguardfs-guest//usr/bin/python3"
    assert not os.path.exists(share.host / "p/python")


def test_links_are_as_given_when_the_view_comes_back() -> None:
    texts = ("/usr/bin/python3", "../../outside", "..", "file", ".git/hooks")
    with area() as place:
        source = _make_share(place)
        for number in range(2):
            with gitguardfs(source, place / "view", "--map", MAP) as mounted:
                if number == 0:
                    as_user(_make_each, mounted.path, [("p/a", text.encode()) for text in texts])
                view = mounted.path / "p/a"
                assert [os.readlink(view / f"link{n}") for n in range(len(texts))] == list(texts)
                told(mounted.path)
                moved = (view / f"link{number}", mounted.path / f"p/moved{number}")
                as_user(os.rename, *moved)  # both lead out wherever they are
                assert os.readlink(moved[1]) == texts[number]
                as_user(os.rename, *reversed(moved))
        assert leading_out(source, [source / "p/ext", source / "p/meta"]) == []


def test_raw_links_stay_as_they_are() -> None:
    with area() as place:
        source = _make_share(place)
        with gitguardfs(source, place / "view", "--map", MAP, "--links=raw") as mounted:
            as_user(os.symlink, "/usr/bin/python3", mounted.path / "p/python")
            as_user(os.rename, mounted.path / "p/ext", mounted.path / "p/a/ext")
            told(mounted.path)
        assert os.readlink(source / "p/python") == "/usr/bin/python3"
        assert os.readlink(source / "p/a/ext") == str(place / "outside")


def test_resolved_links_lead_where_their_texts_say() -> None:
    with area() as place:
        source = _make_share(place)
        with gitguardfs(source, place / "view", "--map", MAP) as mounted:
            as_user(os.symlink, "../../loose", mounted.path / "p/a/out")
        options = ("--map", MAP, "--resolve-symlinks")
        with gitguardfs(source, place / "view", *options) as mounted:
            as_user((mounted.path / "p/a/out/new").write_text, "text\n")
        assert (source / "loose/new").read_text() == "text\n"
        assert os.readlink(source / "p/a/out") == "/.gitguardfs-guest/.../.../loose"


# ------------------------------------------------------------------------ Links that are moved


def _prepare(view: Path) -> None:
    (view / "p/a/b/c/up2").symlink_to("../../new")
    (view / "p/a/b/c/up3").symlink_to("../../../new")
    (view / "p/a/b/c/near").symlink_to("near by")
    (view / "p/a/b/c/absolute").symlink_to("/usr/bin/python3")
    (view / "p/deep/d/e").mkdir(parents=True)
    (view / "p/deep/d/e/up2").symlink_to("../../new")
    (view / "p/deep/out").symlink_to("../../loose")


def _link(old: Path, new: Path) -> None:
    os.link(old, new, follow_symlinks=False)


def _exchange(old: Path, new: Path) -> None:
    new.write_text("")
    renameat2(old, new, RENAME_EXCHANGE)


def _exchange_the_other_way(old: Path, new: Path) -> None:
    new.write_text("")
    renameat2(new, old, RENAME_EXCHANGE)


def _exchange_with_a_link(old: Path, new: Path) -> None:
    new.symlink_to("x")
    renameat2(old, new, RENAME_EXCHANGE)


def _exchange_with_a_directory(old: Path, new: Path) -> None:
    new.mkdir()
    renameat2(old, new, RENAME_EXCHANGE)


LINK_WAYS: tuple[Callable[[Path, Path], None], ...] = (
    os.rename,
    _link,
    _exchange,
    _exchange_the_other_way,
    _exchange_with_a_link,
    _exchange_with_a_directory,
)

LINK_MOVES: tuple[tuple[str, str, bool], ...] = (
    ("p/a/b/c/up2", "p/a/b/moved", True),
    ("p/a/b/c/up2", "p/a/moved", False),
    ("p/a/b/c/up2", "p/moved", False),
    ("p/a/b/c/up3", "p/a/b/moved", False),
    ("p/a/b/c/up3", "p/deep/d/moved", False),
    ("p/a/b/c/up3", "p/deep/d/e/moved", True),
    ("p/a/b/c/near", "p/moved", True),
    ("p/a/b/c/near", "loose/moved", True),
    ("p/a/b/c/up2", "p/vendor/inner/src/moved", False),
    ("p/a/b/c/up2", "loose/moved", False),
    ("p/a/b/c/absolute", "p/moved", True),
    ("p/a/b/c/absolute", "loose/moved", True),
    ("p/deep/out", "p/moved", True),
    ("p/ext", "p/moved", False),
    ("p/ext", "p/a/moved", False),
    ("p/meta", "p/a/moved", False),
)
"""Where a link is, where it goes, and whether it may."""


@pytest.mark.parametrize("way", LINK_WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_link_goes_only_where_its_text_is_contained(
    share: Share, way: Callable[[Path, Path], None]
) -> None:
    as_user(_prepare, share.guest)
    for old, new, allowed in LINK_MOVES:
        before, text = told(share.guest), os.readlink(share.guest / old)
        try:
            as_user(way, share.guest / old, share.guest / new)
        except OSError as error:
            assert (error.errno, allowed) == (errno.EXDEV, False), f"{old} to {new}: {error}"
            assert before.items() <= told(share.guest).items()
        else:
            assert allowed, f"{old} to {new}"
            assert os.readlink(share.guest / new) == text
            if way is os.rename:
                as_user(os.rename, share.guest / new, share.guest / old)
            elif way is not _link:
                as_user(renameat2, share.guest / new, share.guest / old, RENAME_EXCHANGE)
        with suppress(FileNotFoundError):
            path = share.guest / new
            as_user(os.rmdir if path.is_dir() and not path.is_symlink() else os.unlink, path)
        assert os.readlink(share.guest / old) == text
        assert share.out() == []


DIRECTORY_MOVES: tuple[tuple[str, str, bool], ...] = (
    ("p/a/b/c", "p/a/moved", False),
    ("p/a/b/c", "p/moved", False),
    ("p/a/b/c", "p/a/b/moved", True),
    ("p/a/b/c", "p/deep/d/moved", True),
    ("p/a/b", "p/moved", False),
    ("p/a", "p/moved", True),
    ("p/a", "p/deep/moved", True),
    ("p/deep/d", "p/moved", True),
    ("p/deep/d/e", "p/moved", False),
    ("p/deep/d/e", "loose/moved", True),
    ("p/deep/d/e", "p/vendor/inner/src/moved", True),
    ("p/deep/d/e", "p/vendor/inner/moved", False),
    ("p/deep", "loose/moved", True),
)
"""The same for directories that hold links: each of these must be contained at its new place."""


def _exchange_directories_the_other_way(old: Path, new: Path) -> None:
    new.mkdir()
    renameat2(new, old, RENAME_EXCHANGE)


@pytest.mark.parametrize(
    "way",
    [os.rename, _exchange_with_a_directory, _exchange_directories_the_other_way],
    ids=lambda way: way.__name__.strip("_"),
)
def test_a_directory_goes_only_where_the_links_in_it_are_contained(
    share: Share, way: Callable[[Path, Path], None]
) -> None:
    as_user(_prepare, share.guest)
    texts = told(share.guest)
    for old, new, allowed in DIRECTORY_MOVES:
        try:
            as_user(way, share.guest / old, share.guest / new)
        except OSError as error:
            assert (error.errno, allowed) == (errno.EXDEV, False), f"{old} to {new}: {error}"
        else:
            assert allowed, f"{old} to {new}"
            assert share.out() == []
            if way is not os.rename:
                as_user(os.rmdir, share.guest / old)
            as_user(_mv, share.guest / new, share.guest / old)
        with suppress(FileNotFoundError):
            as_user(os.rmdir, share.guest / new)
        assert told(share.guest) == texts
    assert share.out() == []


def _mv(*arguments: str | Path) -> None:
    subprocess.run(["mv", *arguments], check=True)


def test_mv_moves_links_and_trees_anywhere_and_back(share: Share) -> None:
    as_user(_prepare, share.guest)
    texts = told(share.guest)
    for old, new, _ in (*LINK_MOVES, *DIRECTORY_MOVES):
        if old != "p/meta":  # mv cannot read where that leads
            as_user(_mv, share.guest / old, share.guest / new)
            there = {name.replace(old, new, 1) if name.startswith(old) else name for name in texts}
            assert told(share.guest).keys() == there
            assert share.out() == []
            as_user(_mv, share.guest / new, share.guest / old)
            assert told(share.guest) == texts
            assert share.out() == []


def _make_many(view: Path) -> None:
    for number in range(MANY):
        (view / f"p/a/b/c/{number}").mkdir()


def test_a_tree_that_is_too_large_to_be_walked_moves_down_only(share: Share) -> None:
    as_user(_make_many, share.guest)
    as_user(os.rename, share.guest / "p/a/b/c", share.guest / "p/a/b/d")
    as_user(os.mkdir, share.guest / "p/a/b/e")
    with pytest.raises(OSError) as refused:
        as_user(os.rename, share.guest / "p/a/b/d", share.guest / "p/d")
    assert refused.value.errno == errno.EXDEV
    as_user(os.rename, share.guest / "p/a/b/d", share.guest / "p/a/b/e/d")


# ---------------------------------------------------------------------- Whatever the agent does

COMPONENTS = ("a", "b", "p", "x", "vendor", "inner", "..", "..", "..", ".", ".git", "store.git", "")


def _act_at_random(view: Path, seed: int, steps: int) -> None:
    choose = random.Random(seed)

    def path() -> Path:
        return view.joinpath(*choose.choices(("a", "b", "p", "x", "vendor", "inner"), k=3))

    def text() -> str:
        start = choose.choice(("", "", "", "/"))
        return start + "/".join(choose.choices(COMPONENTS, k=choose.randrange(1, 5))) or "x"

    ways: tuple[Callable[[], object], ...] = (
        lambda: os.makedirs(path()),
        lambda: os.symlink(text(), path()),
        lambda: os.symlink(text(), path()),
        lambda: os.rename(path(), path()),
        lambda: os.rename(path(), path().parent),
        lambda: os.link(path(), path(), follow_symlinks=False),
        lambda: renameat2(path(), path(), RENAME_EXCHANGE),
        lambda: renameat2(path(), path().parent, RENAME_EXCHANGE),
        lambda: os.unlink(path()),
    )
    for _ in range(steps):
        with suppress(OSError):
            choose.choice(ways)()


@pytest.mark.parametrize("seed", range(4))
def test_no_link_of_the_agent_s_leads_out_of_its_work_tree(share: Share, seed: int) -> None:
    as_user(_act_at_random, share.guest, seed, 1500)
    assert share.out() == []
    texts = told(share.guest)
    assert len(texts) > 10
    assert texts == {
        name: os.fsdecode(as_given(os.readlink(os.fsencode(share.host / name)))) for name in texts
    }
