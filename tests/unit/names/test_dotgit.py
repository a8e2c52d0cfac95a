"""Names that are ``.git``: tables, properties, a slow reference and git itself as the oracle."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitguardfs.names import dotgit
from gitguardfs.names.repository import PARTS, parts

GUARDED = [
    b".git", b".GIT", b".Git", b".gIt", b".giT",
    b".git.", b".git..", b".git ", b".git . .", b".git. .. ", b".GIT .",
    b"git~1", b"GIT~1", b"Git~1", b"git~1.", b"git~1 ", b"GIT~1 . ",
    b".git:", b".git::$INDEX_ALLOCATION", b".git:stream", b".git .:x", b"git~1:x:$DATA",
    b".git\\", b".git\\config", b"git~1\\config", b".git. \\hooks",
    b"\xff\\.git", ".git\ufffe".encode(), ".git\uffffx".encode(),
    b"foo\\.git", b"foo\\.git\\x", b"a\\b\\GIT~1", b"\\.git", b"foo\\.git.", b"foo\\git~1:x",
    b".git\xff", b".git\xff\xfe", b".git\xc0\xaf", b".git\xe2\x80", b".git\xed\xa0\x80x",
    ".g\u200cit".encode(), "\u200c.git".encode(), ".git\u200d".encode(), ".gi\ufefft".encode(),
    ".\u202eG\u206aI\u206fT".encode(), ".g\u00adit".encode(), ".gi\u034ft".encode(),
    ".git\ufe0f".encode(), ".\U000e0001git".encode(), "g\u200cit~1".encode(),
    ".git\u200b. ".encode(), ".git\u2064:x".encode(), "foo\\.g\u200bit".encode(),
]  # fmt: skip

ORDINARY = [
    b".gitignore", b".gitattributes", b".gitmodules", b".gitkeep", b".gitconfig", b".github",
    b".gitlab-ci.yml", b".git2", b".git_", b".git-x", b".git~", b".git~1", b".git.x", b".git.bak",
    b".git x", b".gitt", b".gi", b"git", b"git.", b"git~0", b"git~2", b"git~10", b"git~1x",
    b"repo.git", b"..git", b"...git", b".gi t", b" .git", b".git\t", b"foo\\.gitx",
    ".g\u0131t".encode(), "\uff0e\uff47\uff49\uff54".encode(), ".\uff47it".encode(),
    b".git\n", b".git.\n", b"x.git:y", b"git~1\n", b"", b".", b"..", b"\xff", b"\xff.git",
    ".git\u00e9".encode(), "\u00e9.git".encode(),
]  # fmt: skip

# DerivedCoreProperties.txt of Unicode 15.1, Default_Ignorable_Code_Point.
IGNORABLE_RANGES = [
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180D), (0x180E, 0x180E), (0x180F, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E),
    (0x2060, 0x2064), (0x2065, 0x2065), (0x2066, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
]  # fmt: skip
IGNORABLE = [chr(c) for first, last in IGNORABLE_RANGES for c in range(first, last + 1)]


@pytest.mark.parametrize("name", GUARDED)
def test_guarded(name: bytes) -> None:
    assert dotgit.is_dotgit(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary(name: bytes) -> None:
    assert not dotgit.is_dotgit(name)


@pytest.mark.parametrize("stem", [".git", "git~1", "foo\\.GIT"])
def test_every_ignorable_character_is_dropped_at_every_position(stem: str) -> None:
    missed = [
        (hex(ord(character)), at)
        for character in IGNORABLE
        for at in range(len(stem) + 1)
        if not dotgit.is_dotgit((stem[:at] + character + stem[at:]).encode())
    ]
    assert not missed


def test_the_neighbours_of_the_ignorable_ranges_are_kept() -> None:
    for first, last in IGNORABLE_RANGES:
        for code in (first - 1, last + 1):
            if chr(code) not in IGNORABLE and not 0xD800 <= code < 0xE000:
                assert not dotgit.is_dotgit(f".g{chr(code)}it".encode()), hex(code)


def _any_case(stem: str) -> st.SearchStrategy[str]:
    return st.tuples(*(st.sampled_from([c.lower(), c.upper()]) for c in stem)).map("".join)


SPELLINGS = st.sampled_from([".git", "git~1"]).flatmap(_any_case)
RUNS = st.text(". ", max_size=6)


@given(SPELLINGS, RUNS, st.sampled_from(["", ":", "\\", "/"]), st.binary(max_size=8))
def test_case_then_dots_and_spaces_then_a_stream_or_a_path(
    spelling: str, run: str, end: str, rest: bytes
) -> None:
    name = (spelling + run + end).encode() + (rest if end else b"")
    assert dotgit.is_dotgit(name)


@given(st.binary(max_size=12), SPELLINGS, RUNS)
@example(b"\xff", ".git", "")
def test_after_a_backslash_it_counts_whatever_comes_before(
    before: bytes, spelling: str, run: str
) -> None:
    assert dotgit.is_dotgit(before + b"\\" + (spelling + run).encode())


NAME_LIKE = st.lists(
    st.sampled_from([*".giIt~1 :\\x", ".git", "git~1", "\u00e9", "head", "REFS"]), max_size=6
).map("".join)


@given(NAME_LIKE, st.data())
def test_inserting_ignorable_characters_changes_no_answer(name: str, data: st.DataObject) -> None:
    changed = name
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed)))
        changed = changed[:at] + data.draw(st.sampled_from(IGNORABLE)) + changed[at:]
    for ask in (dotgit.is_dotgit, parts):
        assert ask(changed.encode()) == ask(name.encode())


@given(_any_case(".git"), st.characters(categories=["L", "N"]))
def test_a_further_letter_makes_it_ordinary(spelling: str, letter: str) -> None:
    if letter not in IGNORABLE:
        assert not dotgit.is_dotgit((spelling + letter).encode())


@given(st.binary(max_size=300))
def test_no_bytes_raise(name: bytes) -> None:
    for ask in (dotgit.is_dotgit, dotgit.is_portable):
        assert ask(name) in (True, False)
    assert parts(name) <= PARTS


# The slow reference: git's rules in other words.

GIT_HFS_IGNORES = {
    chr(c)
    for first, last in [(0x200C, 0x200F), (0x202A, 0x202E), (0x206A, 0x206F), (0xFEFF, 0xFEFF)]
    for c in range(first, last + 1)
}
GIT_MALFORMED = ("\ufffe", "\uffff")
"""git's pick_one_utf8_char takes these two for malformed, Python does not."""


def _ntfs_takes(rest: bytes) -> bool:
    for stem in (b".git", b"git~1"):
        if rest.lower().startswith(stem):
            tail = rest[len(stem) :].lstrip(b". ")
            return not tail or tail[:1] in (b":", b"\\", b"/")
    return False


def ntfs_says(name: bytes) -> bool:
    parts = name.split(b"\\")
    return any(_ntfs_takes(b"\\".join(parts[start:])) for start in range(len(parts)))


def _hfs_characters(name: bytes) -> list[str]:
    found: list[str] = []
    while name:
        for width in range(1, 5):
            try:
                character = name[:width].decode()
            except UnicodeDecodeError:
                continue
            break
        else:
            return found
        if character in GIT_MALFORMED:
            return found
        if character not in GIT_HFS_IGNORES:
            found.append(character)
        name = name[width:]
    return found


def hfs_says(name: bytes) -> bool:
    return [c.lower() if c.isascii() else c for c in _hfs_characters(name)] == list(".git")


def reference(name: bytes) -> bool:
    return name.lower() == b".git" or ntfs_says(name) or hfs_says(name)


PIECES = [
    b".", b"g", b"G", b"i", b"I", b"t", b"T", b"~", b"1", b" ", b":", b"\\", b"x", b"\n", b"\t",
    b".git", b"git~1", b"GIT~1", b"\xff", b"\xc0\x80", b"\xe2\x80", b"\xe2\x80\x8c",
    b"\xef\xbb\xbf", b"\xef\xbf\xbe", b"\xef\xbf\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    "\u00e9".encode(), "\u0131".encode(),
]  # fmt: skip
ADVERSARIAL = st.lists(st.sampled_from(PIECES), max_size=7).map(b"".join)


@given(ADVERSARIAL)
@example(b".git\xef\xbf\xbf")
@example(b"\xff\\.git")
def test_whatever_git_takes_is_guarded(name: bytes) -> None:
    assert dotgit.is_dotgit(name) or not reference(name)


@given(ADVERSARIAL.filter(bytes.isascii))
@example(b".git\n")
def test_ascii_names_are_exactly_git_s(name: bytes) -> None:
    assert dotgit.is_dotgit(name) == reference(name)


# git itself

EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    path = tmp_path_factory.mktemp("oracle")
    subprocess.run(["git", "init", "-q", str(path)], check=True, env=_clean_environment())
    return path


def _clean_environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git_refuses(repository: Path, name: bytes) -> bool:
    done = subprocess.run(
        [
            "git", "-c", "core.protectNTFS=true", "-c", "core.protectHFS=true",
            "update-index", "--add", "--cacheinfo", b"100644,%s,%s" % (EMPTY_BLOB.encode(), name),
        ],
        cwd=repository, env=_clean_environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or b"Invalid path" in done.stderr, done.stderr
    return done.returncode != 0


def _adversarial_sample(count: int) -> list[bytes]:
    choose = random.Random(20240501)
    found: set[bytes] = set()
    while len(found) < count:
        pieces = choose.choices(PIECES, k=choose.randint(0, 3))
        pieces.insert(choose.randint(0, len(pieces)), choose.choice([b".git", b"git~1"]))
        found.add(b"".join(pieces))
    return sorted(found)


def test_whatever_the_installed_git_refuses_is_guarded(repository: Path) -> None:
    candidates = {*GUARDED, *ORDINARY, *_adversarial_sample(150)} - {b"", b".", b".."}
    refused = [name for name in sorted(candidates) if git_refuses(repository, name)]
    assert b".git" in refused and b"git~1" in refused
    assert [name for name in refused if not dotgit.is_dotgit(name)] == []
    assert [name for name in refused if not reference(name)] == [], "the reference is wrong"


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        (b"main.c", True), (b"a-b_c.1", True), (b"git~1", False), (b"a\\b", False),
        (b"a b", False), ("\u00e9".encode(), False), (b"\xff", False), (b"a\n", False),
        (b"", False),
    ],
)  # fmt: skip
def test_only_plain_names_need_no_comparison_by_identity(name: bytes, portable: bool) -> None:
    assert dotgit.is_portable(name) == portable


@pytest.mark.parametrize(
    "name",
    [b"ENV~1", b"ENV~1.LOC", b"CREDEN~1.JSO", b"cr1f2a~3.k",
     "SCHL\u00dcS~1.\u00c4\u00d6\u00dc".encode()],
)  # fmt: skip
def test_a_short_name(name: bytes) -> None:
    assert dotgit.may_be_short_name(name)


@pytest.mark.parametrize(
    "name",
    [b".env", b"~1", b"x~", b"main.c.~1~", b"longname~1", b"a~1.json",
     "SCHL\u00dcSS~1".encode()],
)  # fmt: skip
def test_no_short_name(name: bytes) -> None:
    assert not dotgit.may_be_short_name(name)


ALIKE = [
    (b"d", b"D"), (b"d", b"d."), (b"d", b"d . "), (b"d", b"d:stream"), (b"d", b"D.:$DATA"),
    ("\u00e9".encode(), "e\u0301".encode()), ("\u00c9".encode(), "e\u0301".encode()),
    ("\uff44".encode(), b"d"), ("stra\u00dfe".encode(), b"STRASSE"), ("\ufb01".encode(), b"fi"),
]  # fmt: skip
UNLIKE = [(b"d", b"e"), (b"d", b"dd"), (b"d", b".d"), (b"d.e", b"d"), ("\u00e9".encode(), b"e")]


@pytest.mark.parametrize(("name", "other"), ALIKE)
def test_spellings_of_one_name(name: bytes, other: bytes) -> None:
    assert dotgit.any_spelling(name) == dotgit.any_spelling(other)


@pytest.mark.parametrize(("name", "other"), UNLIKE)
def test_other_names_are_no_spellings(name: bytes, other: bytes) -> None:
    assert dotgit.any_spelling(name) != dotgit.any_spelling(other)
