"""The header of a bundle: what is not as git writes it is refused, and shown escaped."""

import io
from pathlib import Path

import pytest

from gitguardfs.host.fetch import bundle
from gitguardfs.host.fetch.bundle import Refused

ID, OTHER = "1" * 40, "2" * 40


def text(*lines: str, signature: str = "# v2 git bundle") -> bytes:
    return "".join(f"{line}\n" for line in [signature, *lines, ""]).encode(errors="surrogateescape")


def refused(content: bytes) -> str:
    with pytest.raises(Refused) as caught:
        bundle.parse(io.BytesIO(content))
    assert str(caught.value).isascii() and str(caught.value).isprintable()
    return str(caught.value)


def test_an_ordinary_header() -> None:
    content = text(f"-{ID} first commit", f"{OTHER} refs/heads/a/b-c", f"{ID} refs/tags/v1.0")
    found = bundle.parse(io.BytesIO(content + b"PACK\n\nand more"))
    assert found.prerequisites == (ID,)
    assert found.named(bundle.HEADS) == {"a/b-c": OTHER}
    assert found.named(bundle.TAGS) == {"v1.0": ID}
    assert (found.object_format, found.length) == ("sha1", len(content))


@pytest.mark.parametrize(
    "name", ["main", "1", "_x", "feature/x#1", "a@b", "a+b=c", "x.y", "a" * 189]
)
def test_ordinary_names(name: str) -> None:
    content = text(f"{ID} refs/heads/{name}")
    assert bundle.parse(io.BytesIO(content)).named(bundle.HEADS) == {name: ID}


@pytest.mark.parametrize(
    "name",
    [
        "HEAD", "FETCH_HEAD", "refs/heads", "refs/heads/", "refs/heads/HEAD", "refs/heads/head",
        "refs/replace/" + ID, "refs/notes/x", "refs/stash", "refs/remotes/host/x", "refs/headsx/a",
        "refs/heads/-x", "refs/heads/--upload-pack=touch x", "refs/heads/.x", "refs/heads/a/.x",
        "refs/heads/../x", "refs/heads/a..b", "refs/heads/a//b", "refs/heads/a/", "refs/heads/a.",
        "refs/heads/a.lock", "refs/heads/a.LOCK/b", "refs/heads/a@{1}", "refs/heads/@",
        "refs/heads/a b",
        "refs/heads/a\tb", "refs/heads/a:b", "refs/heads/a?", "refs/heads/a*", "refs/heads/a[",
        "refs/heads/a\\b", "refs/heads/a^", "refs/heads/a~1", "refs/heads/$(id)", "refs/heads/a;b",
        "refs/heads/a\x1b[31m", "refs/heads/a\u202eb", "refs/heads/\u00e4", "refs/heads/a\0b",
        "refs/heads/a\r", "refs/heads/a\udcff", "refs/heads/\u0430", "refs/heads/a\u0661",
        f"refs/heads/{'a' * 200}", "",
    ],
)  # fmt: skip
def test_a_name_that_is_not_ordinary_refuses_the_whole(name: str) -> None:
    assert "of the name" in refused(text(f"{OTHER} refs/heads/good", f"{ID} {name}"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "refs/heads/a twice"),
        (["Main", "main"], "both refs/heads/Main and refs/heads/main"),
        (["a", "a/b"], "both refs/heads/a and refs/heads/a/b"),
        (["x/y/z", "X/Y"], "both refs/heads/X/Y and refs/heads/x/y/z"),
    ],
)
def test_names_that_a_disk_takes_for_one(names: list[str], said: str) -> None:
    assert said in refused(text(*(f"{ID} refs/heads/{name}" for name in names)))


def test_a_branch_and_a_tag_of_one_name_are_apart() -> None:
    content = text(f"{ID} refs/heads/v1", f"{ID} refs/tags/v1")
    assert len(bundle.parse(io.BytesIO(content)).refs) == 2


def test_two_thousand_refs_and_a_long_header() -> None:
    most = [f"{ID} refs/heads/b{number}" for number in range(bundle.MAX_REFS)]
    assert len(bundle.parse(io.BytesIO(text(*most))).refs) == bundle.MAX_REFS
    assert "more than 1000" in refused(text(*most, f"{ID} refs/heads/x"))
    assert "no header" in refused(text(f"{ID} refs/heads/{'a' * (50 << 20)}"))
    assert "no header" in refused(text(f"-{ID} {'a' * (1 << 20)}", f"{ID} refs/heads/a"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no header"),
        (b"# v2 git bundle\n", "no header"),
        (text() + b"PACK", "no branch"),
        (text(f"-{ID}"), "no branch"),
        (text(f"{ID} refs/heads/a", signature="# v1 git bundle"), "version"),
        (text(f"{ID} refs/heads/a", signature="# v4 git bundle"), "version"),
        (text(f"{ID} refs/heads/a", signature=" # v2 git bundle"), "version"),
        (text(f"{ID[1:]} refs/heads/a"), "object id"),
        (text(f"{ID}0 refs/heads/a"), "object id"),
        (text(f"{'0' * 40} refs/heads/a"), "object id"),
        (text(f"{'A' * 40} refs/heads/a"), "object id"),
        (text("-x", f"{ID} refs/heads/a"), "object id"),
        (text(f"{ID} refs/heads/a", f"-{OTHER}"), "of the name"),
        (text("@object-format=sha1", f"{ID} refs/heads/a"), "of the name"),
    ],
)
def test_a_header_of_another_form(content: bytes, said: str) -> None:
    assert said in refused(content)


def test_version_3_has_a_format_of_objects_and_nothing_else() -> None:
    long = "3" * 64
    v3 = "# v3 git bundle"
    content = text("@object-format=sha256", f"{long} refs/heads/a", signature=v3)
    assert bundle.parse(io.BytesIO(content)).object_format == "sha256"
    assert bundle.parse(io.BytesIO(text(f"{ID} refs/heads/a", signature=v3))).refs
    for line in ("@filter=blob:none", "@object-format=md5", "@object-format", "@x\x1b=1", "@"):
        assert "not supported" in refused(text(line, f"{ID} refs/heads/a", signature=v3))
    assert "object id" in refused(text("@object-format=sha256", f"{ID} refs/heads/a", signature=v3))


def test_a_bundle_that_was_written_meanwhile_is_not_removed(tmp_path: Path) -> None:
    place = tmp_path / ".gitguard/agent.bundle"
    place.parent.mkdir()
    place.write_bytes(b"old")
    written = bundle.copy(str(tmp_path), io.BytesIO(), 10)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").rename(place)
    assert not bundle.remove(str(tmp_path), written) and place.read_bytes() == b"new"
    written = bundle.copy(str(tmp_path), io.BytesIO(), 10)
    assert bundle.remove(str(tmp_path), written) and not place.exists()
    assert bundle.remove(str(tmp_path), written)
