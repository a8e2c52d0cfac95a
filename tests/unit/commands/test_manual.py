"""Manual pages: they name every option of every command, and groff and mandoc read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from gitguardfs.commands import manual, umount
from gitguardfs.commands.programs import NamedCommand, every_command
from gitguardfs.linux import syscalls

PAGES = manual.pages()
COMMANDS = list(every_command())
EACH = pytest.mark.parametrize("one", COMMANDS, ids=lambda one: " ".join(one.words))


def page_of(one: NamedCommand) -> str:
    return PAGES[f"{'-'.join(one.words)}.{manual.SECTIONS[one.words[0]]}"]


def plain(roff: str) -> str:
    """The text of a page as a reader sees it."""
    shown = re.sub(r"\\f[BIR]", "", roff)
    for escape, one in (("\\-", "-"), ("\\(aq", "'"), ("\\(ti", "~"), ("\\(ga", "`"),
                        ("\\(ha", "^"), ("\\&", ""), ("\\e", "\\")):  # fmt: skip
        shown = shown.replace(escape, one)
    return shown


def words_of(text: str) -> str:
    return " ".join(text.replace("`", " ").split())


def test_there_is_a_page_for_each_command_and_the_umount_helper() -> None:
    assert len(PAGES) == len(COMMANDS) + 1
    for name in ("gitguardfs.1", "gitguard.1", "gitguard-vm-up.1", "gitguard-share.1",
                 "vm-mount.8", "umount.fuse.gitguardfs.8"):  # fmt: skip
        assert name in PAGES


@EACH
def test_a_page_names_every_option_with_its_help(one: NamedCommand) -> None:
    terms = re.findall(r"(?m)^\.TP\n(.*)$", plain(page_of(one)))
    text = words_of(plain(page_of(one)))
    count = 0
    for param in one.command.get_params(one.context):
        if not isinstance(param, click.Option) or param.hidden:
            continue
        count += 1
        for spelling in (*param.opts, *param.secondary_opts):
            assert any(re.search(rf"(?<!\S){re.escape(spelling)}(?![\w-])", t) for t in terms)
        if param.metavar:
            assert any(param.opts[0] in t and param.metavar in t for t in terms)
        record = param.get_help_record(one.context)
        assert record is not None and words_of(record[1]) in text
    assert count > 0


@EACH
def test_a_page_says_what_the_help_says(one: NamedCommand) -> None:
    text = words_of(plain(page_of(one)))
    for said in (one.command.help, one.command.epilog):
        for line in (said or "").replace("\b", "").splitlines():
            line = re.sub(r"^(Examples|Exit codes[^:]*):", "", words_of(line))
            assert line.strip() in text


def test_names_for_o_alone_are_there() -> None:
    text = plain(PAGES["gitguardfs.1"])
    for names in ("In -o also noseal.", "In -o also uid.", "In -o also ro."):
        assert names in text


@EACH
def test_what_a_page_refers_to_is_there(one: NamedCommand) -> None:
    references = re.findall(r"\\fB(\S+)\\fR\(([18])\)", page_of(one))
    assert references
    for name, section in references:
        name = plain(name)
        if name.startswith(("git", "vm", "umount.")):
            assert f"{name}.{section}" in PAGES


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    "check",
    [["groff", "-ww", "-man", "-Tutf8", "-z"], ["mandoc", "-Tlint", "-Wwarning"]],
    ids=lambda check: str(check[0]),
)
def test_a_page_is_read_without_a_warning(name: str, check: list[str], tmp_path: Path) -> None:
    if shutil.which(check[0]) is None:
        pytest.skip(f"{check[0]} is not installed")
    path = tmp_path / name
    path.write_text(PAGES[name])
    done = subprocess.run([*check, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_umount_helpers_page_has_the_options_that_it_takes() -> None:
    page = PAGES[manual.HELPER_PAGE]
    assert set(re.findall(r"\\fB\\-(\w)\\fR", page)) == set("lfnrvNt")
    assert "@" not in page
    both = umount.parse(["/view", "-flnrv", "-N", "1", "-t", "fuse"])
    assert both == umount.UnmountRequest("/view", syscalls.MNT_DETACH | syscalls.MNT_FORCE)


def test_the_date_is_that_of_a_repeatable_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert all('"1970-01-02"' in page for page in manual.pages().values())


def test_a_line_of_text_is_never_a_request() -> None:
    text = "'quoted' and .dotted\n\n.git is closed; see \\fB and `--git=deny`, or ~/.config"
    lines = list(manual._text([text, "\b\n.first line\n  'second'\n\nthird"]))
    for line in lines:
        assert not line.startswith("'")
        assert not line.startswith(".") or line in (".PP", ".nf", ".fi", ".sp")
    assert plain("\n".join(lines)).count("\\fB") == 1
    assert "\\fB\\-\\-git=deny\\fR" in lines[0]


def test_pages_are_written_by_section(tmp_path: Path) -> None:
    manual.write(str(tmp_path), PAGES)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.[18]")}
    assert found == {f"man{name[-1]}/{name}" for name in PAGES}
