"""Quoting: the format's own reader gets the original text back from the quoted one."""

import ctypes
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gitguardfs.base import quote
from gitguardfs.options import fstab_entries
from gitguardfs.options.guarded_share import NONCHARACTERS
from gitguardfs.options.parsing import quote_o, split_o

TRICKY = " \t\n\r\\\"',;:%$#=~`!&|<>()[]{}*?^+-.@\x01\x7fé日\u00a0\u3000\u2028🙂aB1"
TEXT = st.text(st.sampled_from(TRICKY) | st.characters(codec="utf-8", exclude_characters="\0"))
BYTES = st.binary(max_size=20).filter(lambda raw: b"\0" not in raw).map(os.fsdecode)
LINE = TEXT.map(lambda text: re.sub(r"[\x00-\x1f\x7f-\x9f]", "", text))
"""Texts without control characters."""

started = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""Each example starts a program."""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


# Shell


def shell_reads(command: str) -> list[str]:
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    )
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@started
@given(st.lists(TEXT | BYTES, min_size=1))
@example(["", "a b", "it's", "$(id)", "`id`", "a\nb", "~", "*", "-n"])
def test_a_shell_reads_back_every_word(words: list[str]) -> None:
    assert shell_reads(quote.shell(words)) == words


@started
@given(st.lists(TEXT | BYTES | st.sampled_from(["-a", "--bc", "-d=e"]), min_size=1))
@example(["program", "-a", "it's \\", "b" * 100, "--", "\n", "-e"])
def test_a_shell_reads_back_a_command_over_several_lines(words: list[str]) -> None:
    assert shell_reads(quote.shell_lines(words)) == words


@pytest.mark.parametrize("program", ["sh", "bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "word", ["\\", "a\\", "\\'$(touch was-run)'\\", "\\'(touch was-run)'\\", ""]
)
def test_no_shell_runs_a_word_of_a_printable_command(
    tmp_path: Path, program: str, word: str
) -> None:
    """Fish alone reads a backslash within single quotes, and paths can be the agent's."""
    shell = shutil.which(program)
    if shell is None:
        pytest.skip(f"not installed: {program}")
    line = quote.shell_printable(["/usr/bin/printf", "%s|", word, "end"])
    done = subprocess.run([shell, "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, os.listdir(tmp_path)) == (f"{word}|end|", [])


def test_a_command_over_several_lines_keeps_options_and_values_together() -> None:
    assert quote.shell_lines(["run", "-a", "b c", "--long", "value", "-x"], width=16) == (
        "run -a 'b c' \\\n  --long value \\\n  -x"
    )


# QEMU


@needs("qemu-system-x86_64")
@started
@given(TEXT.filter(bool))
@example("a,b")
@example(",,")
@example("a=b,c=d")
@example(" ")
def test_qemu_reads_back_a_value(value: str) -> None:
    done = subprocess.run(
        ["qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none", "-S",
         "-qmp", "stdio", "-name", f"guest={quote.qemu(value)},debug-threads=off"],
        input=b'{"execute": "qmp_capabilities"} {"execute": "query-name"} {"execute": "quit"}',
        capture_output=True, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"name": value} in [answer.get("return") for answer in answers]


# fstab


def libmount_reads(path: Path) -> list[tuple[str, str, str]]:
    done = subprocess.run(
        ["findmnt", "--fstab", "--tab-file", str(path), "--json"], capture_output=True, check=True
    )
    entries = json.loads(done.stdout)["filesystems"]
    return [(e["source"], e["target"], e["options"]) for e in entries]


class Mntent(ctypes.Structure):
    """struct mntent (getmntent(3)), which systemd reads fstab with."""

    _fields_ = [(name, ctypes.c_char_p) for name in ("source", "target", "type", "options")]


def libc_reads(path: Path) -> list[tuple[str, str, str]]:
    libc = ctypes.CDLL(None)
    libc.setmntent.restype = ctypes.c_void_p
    libc.getmntent.restype = ctypes.POINTER(Mntent)
    file = ctypes.c_void_p(libc.setmntent(os.fsencode(path), b"r"))
    found = []
    while entry := libc.getmntent(file):
        e = entry.contents
        found.append((os.fsdecode(e.source), os.fsdecode(e.target), os.fsdecode(e.options)))
    libc.endmntent(file)
    return found


@needs("findmnt")
@started
@given(LINE, LINE, st.sampled_from(["", "\n", "\t", "a\tb\nc"]))
@example("a b", "c\\040d", "")
@example("a,b", "#c", "\n")
def test_libmount_and_libc_read_back_fields_of_fstab(
    tmp_path: Path, source: str, target: str, control: str
) -> None:
    fields = (f"s{source}", f"/t{control}{target}", f"map=1,x-name={source}")
    path = tmp_path / "fstab"
    s, t, o = map(fstab_entries.quote_field, fields)
    path.write_text(f"{s} {t} fuse.gitguardfs {o} 0 0\n")
    assert libc_reads(path) == [fields]
    assert libmount_reads(path) == [fields]


# Mount options


@given(st.lists((TEXT | BYTES).filter(bool)))
@example(["a,b", "\\", "a\\,b", ",", "\\\\"])
def test_our_own_o_reads_back_values(values: list[str]) -> None:
    assert split_o(",".join(map(quote_o, values))) == values


# XML, YAML


@given(LINE, st.text(st.characters(exclude_categories=("Cs",))))
@example("'\"<&>", "yes")
@example(""" "a' """, "\u2028\x85\x7f\ufeff{{.Home}}\n")
def test_parsers_read_back_xml_and_yaml(line: str, text: str) -> None:
    assert yaml.safe_load(f"a: {quote.yaml(text)}\n".encode()) == {"a": text}
    line = re.sub("[\ufffe\uffff]", "", line)
    assert ET.fromstring(f"<a b={quote.xml(line)} />").attrib == {"b": line}


# systemd


def _without(characters: str, text: str) -> str:
    return "".join(character for character in text if character not in characters)


@needs("systemd-analyze")
@started
@given(LINE)
@example("%h %% %")
def test_systemd_expands_no_specifier_of_a_value(value: str) -> None:
    path = f"/nowhere/{value[:50].strip().replace('/', '')}x"  # systemd takes 255 bytes
    done = subprocess.run(
        ["systemd-analyze", "condition", f"ConditionPathExists={quote.systemd(path)}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert f"ConditionPathExists={path} failed." in done.stderr


@needs("systemd-analyze")
@started
@given(
    st.lists(TEXT.map(lambda text: _without(f"={NONCHARACTERS}", text)), min_size=1, max_size=20)
)
@example(['a"b', "a\\b", "it's", "%h", "$c", "a\\x20b", " lead", "\\", "\n", "#", ";"])
def test_systemd_reads_back_words(tmp_path: Path, words: list[str]) -> None:
    unit = tmp_path / "quoted.service"
    lines = [f"Environment={quote.systemd_word(f'!{word}!')}" for word in words]
    unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines, ""]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, check=False
    )
    # A word without = is no assignment, and systemd says which word it was.
    prefix = rb"[^\n]*:\d+: Invalid environment assignment, ignoring: "
    found = re.split(rb"^" + prefix, done.stderr, flags=re.MULTILINE)[1:]
    # Its log writes each line of a word as a line.
    expected = [re.sub(r"[\r\n]+", "\n", f"!{word}!") for word in words]
    assert [os.fsdecode(text)[:-1] for text in found] == expected


@given(TEXT)
@example("$HOME ${X} $$")
def test_systemd_expands_no_variable_of_an_argument(value: str) -> None:
    quoted = quote.systemd_argument(value)
    assert re.fullmatch(r"([^$]|\$\$)*", quoted)
    assert quoted.replace("$$", "$") == quote.systemd_word(value)


@needs("systemd-escape")
@started
@given(st.lists(st.lists(TEXT | BYTES, max_size=4), min_size=1, max_size=10))
@example([["a b", "é.x"], [".a", "..b"], [], ["-", "_:", "a\\b"]])
def test_unit_names_are_those_of_systemd_escape(paths: list[list[str]]) -> None:
    normal = ["/" + "/".join(p.replace("/", "") for p in parts) for parts in paths]
    normal = [p for p in normal if not {".", ".."} & set(p.split("/"))]
    normal = [p for p in normal if all(len(os.fsencode(part)) < 256 for part in p.split("/"))]
    expected = subprocess.run(
        ["systemd-escape", "-p", "--", *normal, "/"], capture_output=True, check=True
    )
    assert [quote.systemd_unit_name(p) for p in [*normal, "/"]] == os.fsdecode(
        expected.stdout
    ).split()


# SELinux


@given(LINE, LINE)
@example("a.b", "axb")
@example("(", "")
@example("a b", "a\tb")
def test_a_file_context_is_that_of_its_path_only(path: str, other: str) -> None:
    def blank(text: str) -> str:
        return re.sub(r"\s", " ", text, flags=re.ASCII)

    pattern = quote.file_context(path)
    assert " " not in pattern
    matches = re.fullmatch(os.fsencode(pattern), os.fsencode(other)) is not None
    assert matches == (blank(path) == blank(other))
    assert re.fullmatch(os.fsencode(pattern), os.fsencode(path))


@needs("grep")
@started
@given(LINE.filter(bool))
@example("/home/me/a b[1](2){3}^$.*+?|\\é")
def test_pcre_matches_a_path_by_its_file_context(path: str) -> None:
    done = subprocess.run(
        ["grep", "-Pxc", "-e", quote.file_context(path)],
        input=f"{path}\n".encode(), capture_output=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.stdout == b"1\n", done.stderr
