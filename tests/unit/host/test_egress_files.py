"""The proxy's files: the allowlist as it is made and extended, and the log of blocked requests."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.host.egress import blocked, files, reports
from gitguardfs.host.egress.allowlist import CREATED_TEXT, Allowlist, BlockKind
from gitguardfs.host.egress.blocked import BlockedLog, BlockedRequest, grouped
from gitguardfs.host.egress.files import StateFiles, create_files
from gitguardfs.host.egress.presets import PRESETS
from tests.unit.host.test_egress_allowlist import TARGETS, request


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_the_allowlist_is_made_once_and_kept(state: Path) -> None:
    create_files(state)
    path = state / "allowlist.txt"
    assert path.read_text() == CREATED_TEXT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    path.write_text("GET https://a.test/x\n")
    create_files(state)
    assert path.read_text() == "GET https://a.test/x\n"


def test_a_preset_is_appended_once(state: Path) -> None:
    create_files(state, ["go", "npm"])
    once = (state / "allowlist.txt").read_text()
    for name in ("go", "npm"):
        assert once.count(f"# Preset: {name}\n{PRESETS[name]}") == 1
    create_files(state, ["npm", "go", "go"])
    assert (state / "allowlist.txt").read_text() == once
    (state / "allowlist.txt").write_text("GET https://a.test/x")
    create_files(state, ["go"])
    assert Allowlist.parse((state / "allowlist.txt").read_text()).errors == ()


def test_a_line_is_added_once_in_normal_form(state: Path) -> None:
    create_files(state)
    assert "was added" in files.allow(state, "  GET https://A.test:443/%7Ex  # why")
    assert "already" in files.allow(state, "GET https://a.test/~x")
    lines = (state / "allowlist.txt").read_text().splitlines()
    assert lines[-1] == "GET https://a.test/~x"
    assert lines.count(lines[-1]) == 1
    with pytest.raises(UserError, match="in the path only"):
        files.allow(state, "GET https://*/x")
    with pytest.raises(UserError, match="METHOD URL"):
        files.allow(state, "GET https://a.test/x\nGET https://b.test/x")


def test_lines_that_are_added_at_once_are_all_there(state: Path) -> None:
    create_files(state)
    lines = [f"GET https://a.test/{number}" for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        presets = pool.submit(create_files, state, ["npm"])
        for said in pool.map(lambda line: files.allow(state, line), lines):
            assert "was added" in said
        presets.result()
    text = (state / "allowlist.txt").read_text()
    assert set(lines) <= set(text.splitlines())
    assert PRESETS["npm"] in text


def test_a_line_is_added_after_one_that_has_no_end(state: Path) -> None:
    state.mkdir()
    path = state / "allowlist.txt"
    path.write_bytes(b"GET https://a.test/x\n\xff no text")
    files.allow(state, "GET https://b.test/x")
    assert path.read_bytes() == b"GET https://a.test/x\n\xff no text\nGET https://b.test/x\n"
    (error,) = Allowlist.parse(files.read_allowlist(StateFiles(state))).errors
    said = reports.ignored_text(str(path), *error)
    assert said.startswith(f"{path}:2: ignored: \\xff no text (")
    assert len(said.splitlines()) == 1


def entry(
    url: str, method: str = "GET", kind: BlockKind = BlockKind.RULE, time: str = "t"
) -> BlockedRequest:
    return BlockedRequest(time, method, url, "why", kind)


def test_requests_are_grouped_by_method_url_and_reason(state: Path) -> None:
    groups = grouped(
        [entry("https://a.test/x?q=1", time="1"), entry("https://a.test/y", time="2"),
         entry("https://a.test/x?q=2", time="3"), entry("https://a.test/x", time="4"),
         entry("https://a.test/x", "POST", time="5")]
    )  # fmt: skip
    assert [(g.last.method, g.last.url, g.count, g.line) for g in groups] == [
        ("GET", "https://a.test/y", 1, "GET https://a.test/y"),
        ("GET", "https://a.test/x?q=2", 2, "GET https://a.test/x?*"),
        ("GET", "https://a.test/x", 1, "GET https://a.test/x"),
        ("POST", "https://a.test/x", 1, "POST https://a.test/x"),
    ]
    assert groups[1].last.time == "3"


@pytest.mark.parametrize(
    ("what", "line", "why"),
    [
        (entry("https://a.test/x", kind=BlockKind.REQUEST), "", "no line can allow"),
        (entry("https://a.test/x", kind=BlockKind.FAULT), "", "no line can allow"),
        (entry("https://a.test/x", kind=BlockKind.ALLOWLIST), "", "correct the allowlist"),
        (
            entry("https://a.test/x", kind=BlockKind.ADDRESS),
            "GET https://a.test/x private-address",
            "",
        ),
        (
            entry("https://a.com/x", kind=BlockKind.MISLED),
            "GET https://a.com/x private-address",
            "",
        ),
        (entry("https://a.com/x", kind=BlockKind.SINKHOLE), "", "Unblock the name"),
        (entry("https://a.test/x", "PRI"), "", "the method must be"),
        (entry("a.test:443", "CONNECT", BlockKind.REQUEST), "", "no line can allow"),
        (entry("https://a.test/" + "a" * 9000), "", "no line can allow"),
    ],
)
def test_where_there_can_be_no_line_the_reason_is_given(
    what: BlockedRequest, line: str, why: str
) -> None:
    (group,) = grouped([what])
    assert group.line == line
    assert why in group.why_none


def test_a_query_that_no_line_can_spell_gets_the_line_that_spans_it() -> None:
    url = "https://a.test/search?q=100%"
    (group,) = grouped([entry(url)])
    assert (group.line, group.why_none) == ("GET https://a.test/search?*", "")
    (checked,) = [Allowlist().decide(request("https://a.test/", target=b"/search?q=100%")).checked]
    assert checked is not None
    assert checked.url == url
    assert Allowlist.parse(group.line).rule_for(checked)


@settings(deadline=None)
@given(st.lists(TARGETS, min_size=1, max_size=5))
def test_the_line_of_a_group_admits_its_requests(targets: list[str]) -> None:
    decisions = [
        Allowlist().decide(request("https://a.test/", target=target.encode())) for target in targets
    ]
    found = [d.checked for d in decisions if d.checked is not None]
    for group in grouped(entry(checked.url) for checked in found):
        if group.line:
            base, mark, _ = group.last.url.partition("?")
            rules = Allowlist.parse(group.line)
            members = [c for c in found if c.url.partition("?")[:2] == (base, mark)]
            assert len(members) == group.count
            assert all(rules.rule_for(member) for member in members)


def test_a_line_that_spans_any_query_says_so(state: Path) -> None:
    state.mkdir()
    log = BlockedLog(StateFiles(state).blocked)
    for kind in (BlockKind.RULE, BlockKind.ADDRESS):
        for query in "12":
            log.add("GET", f"https://a.test/{kind.value}?q={query}", "why", kind)
    log.add("GET", "https://a.test/once?q=1%2A", "why", BlockKind.RULE)
    lines = reports.blocked_text(state).splitlines()
    spans = [at for at, line in enumerate(lines) if "?*" in line]
    assert [at for at, line in enumerate(lines) if "allows any query" in line] == [
        at + 1 for at in spans
    ]
    assert len(spans) == 2
    assert lines[spans[1]].endswith("?* private-address'")
    assert "'GET https://a.test/once?q=1%2A'" in lines[-1]
    for line in ("GET https://a.test/*", "GET https://a.test/x?"):
        assert reports.line_note(line) == ""
    for line in ("GET https://a.test/x?a=*", "GET https://a.test/x?a=*&b=c"):
        assert "any text for the *" in reports.line_note(line)


def test_a_dns_block_is_told_before_a_line_is_named(state: Path) -> None:
    state.mkdir()
    log = BlockedLog(StateFiles(state).blocked)
    log.add("GET", "https://a.com/x", "why", BlockKind.MISLED)
    log.add("GET", "https://b.com/x", "why", BlockKind.SINKHOLE)
    misled, sinkhole = reports.blocked_text(state).split("\n\n")
    assert misled.index("sign-in") < misled.index("gitguard vm allow")
    assert "gitguard vm allow" not in sinkhole and "DNS filter" in sinkhole


def test_only_the_latest_groups_are_shown_and_the_number_of_the_others(state: Path) -> None:
    state.mkdir()
    log = BlockedLog(StateFiles(state).blocked)
    for number in range(reports.MAX_GROUPS + 7):
        log.add("GET", f"https://a.test/{number}", "why", BlockKind.RULE)
    *groups, rest = reports.blocked_text(state).split("\n\n")
    assert len(groups) == reports.MAX_GROUPS
    assert groups[0].startswith("GET https://a.test/7\n")
    assert rest == f"7 more, which are older, are in {state}/blocked.jsonl"


def test_what_the_guest_is_shown_is_short_printable_and_without_secrets(state: Path) -> None:
    create_files(state)
    long = "x" * blocked.MAX_URL
    log = BlockedLog(StateFiles(state).blocked)
    for number in range(blocked.MAX_RECENT + 1):
        log.add("GET", f"https://a.test/{number}", "why", BlockKind.RULE)
    assert len(log.recent) == blocked.MAX_RECENT
    log.add(f"\x1b{long}", f"https://u:SECRET@a.test/\u202e?SECRET{long}", long, BlockKind.REQUEST)
    log.add("CONNECT", "u:SECRET@a.test:443", "why", BlockKind.REQUEST)
    log.add("GET", "https://a.test/x#SECRET\n?SECRET", "why", BlockKind.REQUEST)
    log.add("GET", "https://a.test/@scope?q=SECRET", "why", BlockKind.ADDRESS)
    log.add("GET", "https://pypi.org/simple/*", "why", BlockKind.RULE)
    text = reports.recent_text(state, log.recent)
    assert len(text) < 4096
    assert text.replace("\n", "").isprintable()
    assert "SECRET" not in text
    assert "gitguard vm allow 'GET https://a.test/@scope?* private-address'\n" in text
    assert "allowed meanwhile" in text
    first = blocked.MAX_RECENT + 1 + 5 - reports.MAX_RECENT_GROUPS
    assert f"GET https://a.test/{first}\n" in text
    assert f"GET https://a.test/{first - 1}\n" not in text


def test_what_is_written_is_read_again_and_garbage_is_passed_over(state: Path) -> None:
    state.mkdir()
    path = StateFiles(state).blocked
    assert list(blocked.read(path)) == []
    assert reports.blocked_text(state) == "Nothing was blocked."
    log = BlockedLog(path)
    log.add("GET", "https://a.test/\x1b[31m\udcff", "why", BlockKind.RULE)
    with open(path, "ab") as file:
        file.write(b"\n{}\nnull\n[]\n\xff\xfe\n" + b"[" * 100_000 + b"\n")
        file.write(
            json.dumps({"time": 1, "method": "", "url": "", "reason": "", "kind": "rule"}).encode()
        )
        file.write(
            b"\n"
            + json.dumps({"time": "", "method": "", "url": "", "reason": "", "kind": "x"}).encode()
        )
        file.write(b"\n")
    log.add("GET", "https://a.test/y", "why", BlockKind.RULE)
    assert [found.url for found in blocked.read(path)] == [
        "https://a.test/\x1b[31m\udcff", "https://a.test/y",
    ]  # fmt: skip
    text = reports.blocked_text(state)
    assert "gitguard vm allow 'GET https://a.test/y'" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_the_log_of_blocked_requests_has_a_limit(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.mkdir()
    path = StateFiles(state).blocked
    monkeypatch.setattr(blocked, "MAX_BYTES", 1000)
    log = BlockedLog(path)
    for number in range(100):
        log.add("GET", f"https://a.test/{number}", "why", BlockKind.RULE)
    assert sum(part.stat().st_size for part in state.iterdir()) <= 2000
    assert {part.name for part in state.iterdir()} == {"blocked.jsonl", "blocked.jsonl.1"}
    found = [entry.url for entry in blocked.read(path)]
    assert found == [f"https://a.test/{n}" for n in range(100 - len(found), 100)]
    log.add("GET", "https://a.test/" + "x" * 100_000, "why", BlockKind.RULE)
    assert path.stat().st_size < 2 * blocked.MAX_URL
