"""The note of a view: which later views may find its files open."""

from pathlib import Path

import pytest

from gitguardfs.base.constants import FSTYPE
from gitguardfs.linux.mountinfo import MountInfo
from gitguardfs.mounting import old_views
from gitguardfs.mounting.old_views import Access

OLD = Access("8:2", "/home/shared/a", "/home/me/a", ("protect=x", "map=1:2", "hide=y\udcff"))


def _note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lends: bool = True) -> str:
    monkeypatch.setattr(old_views, "NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(old_views, "_views", lambda: ["77"])
    view = MountInfo(device="0:77", mount_point=b"/view", fstype=FSTYPE, source="s")
    old_views.note(view, OLD, lends)
    return (tmp_path / "notes/77").read_text(errors="surrogateescape")


@pytest.mark.parametrize(
    ("new", "may_differ"),
    [
        (OLD, False),
        (Access(OLD.root, OLD.source, OLD.mountpoint, OLD.options[::-1]), False),
        (
            Access(
                OLD.root, OLD.source, OLD.mountpoint,
                (*OLD.options, "cache-timeout=9", "session=pyfuse3", "no-seal", "noatime"),
            ),
            True,  # by noatime: other options for the kernel count
        ),
        (
            Access(
                OLD.root, OLD.source, OLD.mountpoint,
                (*OLD.options, "cache-timeout=9", "session=pyfuse3", "no-seal", "direct-io"),
            ),
            False,
        ),
        (Access(OLD.root, OLD.source, OLD.mountpoint, (*OLD.options, "read-only")), True),
        (Access(OLD.root, OLD.source, OLD.mountpoint, (*OLD.options, "deny=z")), True),
        (Access(OLD.root, OLD.source, OLD.mountpoint, OLD.options[1:]), True),
        (Access(OLD.root, OLD.source, "/home/you/a", OLD.options), True),
        (Access(OLD.root, "/mnt", OLD.mountpoint, OLD.options), True),
        (Access("8:3", OLD.source, OLD.mountpoint, OLD.options), True),
        (Access("8:3", "/home/shared", OLD.mountpoint, OLD.options), True),
        (Access("8:3", "/home/shared/a/b", OLD.mountpoint, OLD.options), True),
        (Access("8:3", "/home/shared/b", OLD.mountpoint, ("read-only",)), False),
    ],
)  # fmt: skip
def test_a_later_view_counts_files_of_its_source_that_were_opened_by_other_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: Access, may_differ: bool
) -> None:
    assert new.may_differ_from(_note(tmp_path, monkeypatch)) == may_differ
    assert not new.may_differ_from(_note(tmp_path, monkeypatch, lends=False))


def test_a_note_that_could_not_be_written_counts() -> None:
    assert OLD.may_differ_from("")
