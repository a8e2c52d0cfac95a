"""Awesome's configuration under an X server: its menu, and what the entries do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.desktop.conftest import Desktop
from tests.desktop.root import HOME
from tests.desktop.session import STAND_INS, Session, started
from tests.support.mounting import until

APPLICATIONS = Path("usr/local/share/applications")
RECORDS = HOME / "records"
RECORD = f"""#!/bin/sh
printf '%s\\n' "$0" "$@" > /{RECORDS}/.new
mv /{RECORDS}/.new "/{RECORDS}/${{0##*/}}"
"""
"""A program that writes down its name and its arguments, a line each."""

WORD_JOINER = "\N{WORD JOINER}"
ENTRIES = {
    "plain": "Name=Plain\nExec=record-plain\nCategories=Utility;",
    "elsewhere": "Name=Elsewhere\nExec=record-plain\nCategories=None;",
    "nodisplay": "Name=Not displayed\nExec=record-plain\nNoDisplay=true",
    "hidden": "Name=Hidden\nExec=record-plain\nHidden=true",
    "kde": "Name=Of KDE\nExec=record-plain\nOnlyShowIn=KDE;",
    "ours": "Name=Of Awesome\nExec=record-plain\nOnlyShowIn=awesome;KDE;",
    "notours": "Name=Not in Awesome\nExec=record-plain\nNotShowIn=awesome;",
    "missing": "Name=Not installed\nExec=record-plain\nTryExec=/no/such/program",
    "noexec": "Name=No such program\nExec=/no/such/program",
    "link": "Type=Link\nName=A link\nURL=http://example.org",
    "quoted": 'Name=Quoted\nExec=record-quoted "two words" "a\\\\"b" plain %f %U %c %% "%%"',
    "shell": "Name=Shell\nExec=record-shell ; touch /tmp/pwned && $(touch /tmp/pwned)"
             " `touch /tmp/pwned` | > /tmp/pwned",
    "named": "Name=x $(touch /tmp/pwned); touch /tmp/pwned\nExec=record-named %c",
    "markup": "Name=<b>bold</b> A&B <span foreground='red'>\nExec=record-plain",
    "control": "Name=two\\nlines\\t\N{RIGHT-TO-LEFT OVERRIDE}txt.exe\a\nExec=record-plain",
    "long": f"Name={'long ' * 100}\nExec=record-plain",
    "path": "Name=Path\nExec=record-plain\nIcon=/usr/share/icons/hicolor/scalable/apps/htop.svg",
    "fifo": "Name=FIFO\nExec=record-plain\nIcon=a-fifo",
    "terminal": "Name=In a terminal\nExec=record-terminal inside\nTerminal=true",
}  # fmt: skip


@pytest.fixture(scope="module")
def session(desktop: Desktop) -> Iterator[Session]:
    root = desktop.system.root
    for name, text in ENTRIES.items():
        path = root / APPLICATIONS / f"test-{name}.desktop"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Desktop Entry]\nType=Application\n{text}\n".replace(
            "Type=Application\nType=Link", "Type=Link"))  # fmt: skip
    (root / RECORDS).mkdir()
    for directory in (RECORDS, RECORDS / ".."):
        (root / directory).chmod(0o777)
    os.mkfifo(root / "usr/share/icons/hicolor/scalable/apps/a-fifo.svg")
    (root / STAND_INS).mkdir(parents=True)
    for name in ("record-plain", "record-quoted", "record-shell", "record-named",
                 "record-terminal", "systemctl", "loginctl"):  # fmt: skip
        path = root / STAND_INS / name
        path.write_text(RECORD)
        path.chmod(0o755)
    work = desktop.upper.parent
    with started(desktop.system, work) as session:
        yield session


def recorded(session: Session, name: str) -> list[str]:
    """Wait for the stand-in to have been run, and return its arguments."""
    path = session.system.root / RECORDS / name
    until(path.exists, f"{name} runs")
    lines = path.read_text().splitlines()
    path.unlink()
    return lines[1:]


def harmless(session: Session) -> bool:
    return not (session.system.root / "tmp/pwned").exists()


def test_the_menu_has_applications_and_the_ways_to_end(session: Session) -> None:
    menu = session.menu()
    assert list(menu) == ["Applications", "Terminal", "Files", "Log out", "Restart", "Shut down"]
    for name in ("Log out", "Restart", "Shut down"):
        assert menu[name] == {f"{name} now": None}


def test_installed_applications_are_in_their_groups(session: Session) -> None:
    applications = session.applications()
    assert applications["Xfce Terminal"] == "System"
    assert applications["Thunar File Manager"] == "System"
    assert applications["Plain"] == "Accessories"
    assert applications["Elsewhere"] == "Other"


def test_what_is_not_to_be_shown_is_not(session: Session) -> None:
    applications = session.applications()
    assert "Of Awesome" in applications
    for name in ("Not displayed", "Hidden", "Of KDE", "Not in Awesome", "Not installed",
                 "No such program", "A link"):  # fmt: skip
        assert name not in applications


def test_names_are_shown_as_text_on_one_line(session: Session) -> None:
    applications = session.applications()
    assert f"<b>bold</b> A&{WORD_JOINER}B <span foreground='red'>" in applications
    assert [n for n in applications if "lines" in n or "txt" in n] == ["two lines  txt.exe"]
    (long,) = (name for name in applications if name.startswith("long "))
    assert len(long) == 48 and long.endswith("…")
    # Drawn, with all of its entries, markup would be an error.
    session.ask('require("menu").toggle() require("menu").hide()')
    session.ask("""
        local awful = require("awful")
        for _, group in ipairs(require("applications").entries()) do
            local menu = awful.menu(group[2])
            menu:show() menu:hide()
        end""")
    assert session.notifications() == []


def test_icons_are_ordinary_files_that_are_found_by_name(session: Session) -> None:
    """Awesome would wait for a FIFO, or read a device, for ever."""
    icons = session.ask("""
        local out = {}
        for _, group in ipairs(require("applications").entries()) do
            for _, entry in ipairs(group[2]) do
                table.insert(out, entry[1] .. "=" .. tostring(entry[3]))
            end
        end
        return table.concat(out, "\\n")""").splitlines()
    assert "Path=nil" in icons and "FIFO=nil" in icons
    assert "Xfce Terminal=/usr/share/icons/hicolor/scalable/apps/org.xfce.terminal.svg" in icons


@pytest.mark.parametrize(
    ("entry", "program", "arguments"),
    [
        ("Quoted", "record-quoted", ["two words", 'a"b', "plain", "Quoted", "%", "%"]),
        ("Shell", "record-shell",
         [";", "touch", "/tmp/pwned", "&&", "$(touch", "/tmp/pwned)", "`touch", "/tmp/pwned`", "|",
          ">", "/tmp/pwned"]),
        ("x $(touch /tmp/pwned); touch /tmp/pwned", "record-named",
         ["x $(touch /tmp/pwned); touch /tmp/pwned"]),
        ("In a terminal", "record-terminal", ["inside"]),
    ],
)  # fmt: skip
def test_a_program_gets_its_arguments_and_no_shell_reads_them(
    session: Session, entry: str, program: str, arguments: list[str]
) -> None:
    group = session.applications()[entry]
    name = entry.replace("/", "%2f")
    session.ask(f"""
        for _, group in ipairs(require("applications").entries()) do
            for _, entry in ipairs(group[2]) do
                if group[1] == "{group}" and entry[1] == ("{name}"):gsub("%%2f", "/") then
                    entry[2]()
                end
            end
        end""")
    assert recorded(session, program) == arguments
    assert harmless(session)


def test_a_program_that_went_meanwhile_is_complained_about(session: Session) -> None:
    program = session.system.root / STAND_INS / "record-gone"
    path = session.system.root / APPLICATIONS / "test-gone.desktop"
    program.write_text(RECORD)
    program.chmod(0o755)
    path.write_text(
        "[Desktop Entry]\nType=Application\nName=Gone <b>\nCategories=Utility;\nExec=record-gone\n"
    )
    until(lambda: "Gone <b>" in session.applications(), "it is in the menu")
    session.ask("""
        for _, group in ipairs(require("applications").entries()) do
            for _, entry in ipairs(group[2]) do
                if entry[1] == "Gone <b>" then start_gone = entry[2] end
            end
        end""")
    program.unlink()
    session.ask("start_gone()")
    (text,) = until(session.notifications, "a notification")
    assert "Cannot start Gone <b>" in text
    session.ask('require("naughty").destroy_all_notifications()')
    path.unlink()


@pytest.mark.parametrize(("entry", "verb"), [("Shut down", "poweroff"), ("Restart", "reboot")])
def test_the_machine_is_shut_down_by_systemd_as_the_user(
    session: Session, entry: str, verb: str
) -> None:
    session.choose(entry, f"{entry} now")
    assert recorded(session, "systemctl") == ["--no-ask-password", verb]


def test_a_refused_shutdown_is_said(session: Session) -> None:
    stand_in = session.system.root / STAND_INS / "systemctl"
    stand_in.write_text("#!/bin/sh\necho 'Access <denied>' >&2\nexit 1\n")
    session.choose("Shut down", "Shut down now")
    (text,) = until(session.notifications, "a notification")
    assert "systemctl --no-ask-password poweroff" in text and "Access <denied>" in text
    session.ask('require("naughty").destroy_all_notifications()')


def test_windows_have_a_desktop_with_a_panel(session: Session) -> None:
    session.ask("""
        local run = require("menu").run
        run({ "xfce4-terminal", "--disable-server", "--title", "Mine", "--geometry", "68x20" })
        run({ "thunar", os.getenv("HOME") })""")
    titles = "local t = {} for _, c in ipairs(client.get()) do table.insert(t, c.name) end "
    until(lambda: session.ask(f"{titles} return tostring(#t)") == "2", "two windows")
    assert "Mine" in session.ask(f'{titles} return table.concat(t, "|")')
    assert session.ask("return tostring(screen.primary.workarea.y > 0)") == "true"


def test_nothing_went_wrong_in_awesome(session: Session) -> None:
    lines = [line for line in session.log.read_text().splitlines() if " awesome: " in line]
    # The X server answers so when a window is gone before Awesome has drawn it.
    known = ("D-Bus system bus", "main loop iteration took", "xerror:")
    assert [line for line in lines if not any(text in line for text in known)] == []
    assert session.ask("return tostring(awesome.startup_errors)") == "nil"


def test_logging_out_ends_awesome(session: Session) -> None:
    session.choose("Log out", "Log out now")
    until(lambda: session.awesome.poll() is not None, "Awesome ends")
    assert session.awesome.returncode == 0
