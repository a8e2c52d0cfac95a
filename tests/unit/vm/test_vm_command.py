"""The command group: help, what is missing, and the small parts around a VM."""

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.audit import trust
from gitguardfs.host.commands.vm import group as command
from gitguardfs.host.commands.vm import machine
from gitguardfs.host.commands.vm import up as up_command
from gitguardfs.host.egress import proxy
from gitguardfs.host.share import packages
from gitguardfs.host.vm import (
    boot,
    driver,
    exposed_files,
    images,
    keys,
    logs,
    phases,
    qemu_command,
    qmp,
    ready,
    settings,
    ssh,
    status_text,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.launch import Launch
from gitguardfs.host.vm.qemu_command import Machine
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.shares import Share
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts
from tests.support.boot_sector import BOOTS
from tests.support.mounting import until
from tests.support.trees import nested

# Started where the agent can write, as users will start it.
GITGUARD = "import sys; from gitguardfs.commands.gitguard import main; main()"
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="no qemu-system-x86_64"
)


def status(state: State) -> str:
    return status_text.text(facts(state), 1000)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    (tmp_path / "project").mkdir()
    (tmp_path / "disk.img").write_bytes(BOOTS)
    return tmp_path


def gitguard(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", GITGUARD, "vm", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


@pytest.mark.parametrize("line", ["git trusts (git config)", None])
def test_up_says_whether_git_trusts_bare_repositories(
    world: Path, monkeypatch: pytest.MonkeyPatch, line: str | None
) -> None:
    monkeypatch.setattr(trust, "line", lambda: line)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(driver, "up", lambda *_: 0)
    done = CliRunner().invoke(up_command.up, ["--project", str(world / "project")])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.endswith(f"gitguard vm up --show .env\n{line}\n" if line else ".env\n")


@pytest.mark.parametrize("words", [["ssh"], ["stop"], ["logs"], ["status"], ["proxy"],
                                   ["blocked"], ["watch"], ["status", "--json"],
                                   ["allow", "GET https://a/"], ["forward", "80"],
                                   ["ssh-config"]], ids=lambda words: words[0])  # fmt: skip
def test_without_a_vm_each_says_what_to_do(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:  # pytest's paths suit no socket
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        os.mkdir(f"{short}/project")
        done = gitguard(words[0], "--project", f"{short}/project", *words[1:])
        assert os.listdir(short) == ["project"]
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "has no VM (gitguard vm up" in done.stderr


def test_a_vm_that_was_reset_can_be_reset_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        os.mkdir(f"{short}/project")
        for made in (True, False):
            if made:
                states.create(states.state_of(f"{short}/project"))
            done = gitguard("reset", "-y", "--project", f"{short}/project")
            assert done.returncode == 0
            assert ("has no VM" in done.stderr) != made


def test_no_control_character_of_a_path_reaches_the_terminal_in_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="vm-") as short:
        monkeypatch.setenv("XDG_STATE_HOME", f"{short}/s")
        project = f"{short}/a\x1b]0;b\x07"
        os.mkdir(project)
        states.create(states.state_of(project))
        done = CliRunner().invoke(machine.reset, ["--project", project], input="n\n")
        assert "Delete the VM of" in done.stderr
        assert states.state_of(project).exists
    assert all(character.isprintable() or character == "\n" for character in done.output)


def test_root_is_refused(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match=r"does not run as root"):
        command.command(["up", "--project", str(world / "project")], standalone_mode=False)
    assert not states.state_of(str(world / "project")).exists


def test_all_programs_that_are_missing_are_named_at_once(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "family", lambda: packages.FEDORA)
    monkeypatch.setenv("PATH", str(world))
    state = states.state_of(str(world / "project"))
    with pytest.raises(UserError) as error:
        driver.up(state, driver.UpArguments(Settings(state.project, guard="host")))
    names = r"qemu-system-\w+, qemu-img, ssh, ssh-keygen and fusermount3 are not installed"
    hint = r"sudo dnf install qemu-system-\w+ qemu-img openssh-clients fuse3"
    assert re.fullmatch(rf"{names} \({hint}\)", str(error.value))
    assert not state.exists


def test_a_home_has_no_vm(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the state of all VMs, so it can have none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(world / "project/.local/state"))
    for words in (["status"], ["stop"], ["proxy"], ["status", "--project", "."]):
        done = gitguard(*words, cwd=world / "project")
        assert done.returncode == 3
        assert f"{world}/project has no VM (name the project: --project DIR)" in done.stderr


def test_up_keeps_what_is_local_or_changes_it(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    def up(where: State, arguments: driver.UpArguments) -> int:
        states.create(where)
        settings.save(where, arguments.settings)
        seen.append(arguments.settings.local)
        return 0

    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(driver, "up", up)
    for words in ((), ("--no-local",), (), ("--local", "deps", "--local", "dist"), ()):
        done = CliRunner().invoke(up_command.up, ["--project", str(world / "project"), *words])
        assert done.exit_code == 0, done.output
    assert seen == [("deps",), (), (), ("deps", "dist"), ("deps", "dist")]
    both = ["--project", str(world / "project"), "--local", "deps", "--no-local"]
    refused = CliRunner().invoke(up_command.up, both, standalone_mode=False)
    assert isinstance(refused.exception, UserError) and "contradict" in str(refused.exception)


@pytest.fixture
def no_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a boot fail at once: the command should have been refused."""

    def boot(*_: object) -> None:
        raise AssertionError("it was not refused")

    monkeypatch.setattr(driver, "boot", boot)


@needs_qemu
def test_up_takes_no_authority_from_the_project(world: Path, no_boot: None) -> None:
    """The agent could write a certificate authority there, and sign for every server."""
    state = states.state_of(str(world / "project"))
    image = world / "disk.img"
    authority = world / "project/ca.pem"
    authority.write_text("")
    (world / "ca.pem").symlink_to(authority)
    for path in (authority, world / "ca.pem"):
        arguments = driver.UpArguments(
            Settings(state.project, image=str(image)), upstream_ca=str(path)
        )
        with pytest.raises(UserError, match=r"the authority .* lies in the project"):
            driver.up(state, arguments)
    assert not os.path.exists(state.path("upstream-ca.pem"))


@needs_qemu
def test_up_takes_no_authority_that_holds_no_certificate(world: Path, no_boot: None) -> None:
    """The proxy would not start with it, now or later."""
    state = states.state_of(str(world / "project"))
    authority = world / "ca.pem"
    for text in ("", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n", "\N{SNOWMAN}"):
        authority.write_text(text)
        arguments = driver.UpArguments(Settings(state.project), upstream_ca=str(authority))
        with pytest.raises(UserError, match=r"ca.pem holds no certificate"):
            driver.up(state, arguments)
    assert not state.exists


@needs_qemu
def test_up_remembers_the_companys_proxy_and_starts_with_it(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = states.state_of(str(world / "project"))
    image = world / "disk.img"
    seen: list[str] = []

    def boot(_: object, start: Launch, __: object) -> None:
        assert start.proxy.port
        seen.extend(line for line in status(state).splitlines() if "running, " in line)
        raise UserError("far enough")

    def up(given: str | None) -> None:
        arguments = driver.UpArguments(
            Settings(state.project, image=str(image)), upstream_proxy=given
        )
        driver.up(state, arguments)

    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # what it installs ends with this test
    monkeypatch.setattr(driver, "boot", boot)
    monkeypatch.setattr(ready, "disk_for", lambda *_: images.Image(str(image)))
    with pytest.raises(UserError, match="with a password in it"):
        up("http://me:hunter@proxy.test")
    assert not state.exists
    for given in ("http://proxy.test:1", None, ""):
        with pytest.raises(UserError, match="far enough"):
            up(given)
    through = ", through http://proxy.test:1 (--upstream-proxy)"
    assert [through in line for line in seen] == [True, True, False]


def test_up_says_that_it_shares_a_directory_above(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "up", lambda *_: 0)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(trust, "line", lambda: None)
    state = states.state_of(str(world / "project"))
    states.create(state)
    Path(state.disk).touch()
    (world / "project/src").mkdir()
    line = f"sharing {state.project}, which has a VM\n"
    for where, said in (("project", ""), ("project/src", line)):
        monkeypatch.chdir(world / where)
        command.command(["up"], standalone_mode=False)
        assert capsys.readouterr().err == said


@needs_qemu
def test_a_start_that_fails_leaves_no_size_that_fails_the_next(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = states.state_of(str(world / "project"))
    image = world / "disk.img"

    def boot(*_: object) -> None:
        raise UserError("cannot set up guest memory")

    monkeypatch.setattr(driver, "boot", boot)
    monkeypatch.setattr(ready, "disk_for", lambda *_: images.Image(str(image)))
    given = Settings(
        state.project, image=str(image), memory=1 << 40, cpus=999, hide=(".env",), hardened=True
    )
    with pytest.raises(UserError, match=r"guest memory"):
        driver.up(state, driver.UpArguments(given))
    before = Settings(state.project)
    kept = settings.load(state)
    assert (kept.memory, kept.cpus) == (before.memory, before.cpus)
    assert (kept.hide, kept.hardened) == ((".env",), True)


@needs_qemu
@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("no packages")])
def test_a_start_that_ends_while_a_disk_is_made_forgets_no_protection(
    world: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | BaseException
) -> None:
    state = states.state_of(str(world / "project"))
    certificate = proxy.ca_certificate(world / "ca")
    (world / "ca.pem").write_text(certificate)
    asked: list[Settings] = []

    def disk_for(_: State, wanted: Settings, __: str) -> None:
        asked.append(wanted)
        raise error

    monkeypatch.setattr(ready, "disk_for", disk_for)
    given = Settings(
        state.project, image=str(world / "disk.img"), guard="host", git="deny", hide=(".env",),
        local=("vendor",), hardened=True,
    )  # fmt: skip
    raised = error if isinstance(error, type) else type(error)
    with pytest.raises(raised):
        driver.up(
            state, driver.UpArguments(given, allow=("npm",), upstream_ca=str(world / "ca.pem"))
        )
    kept = settings.load(state)
    assert kept == dataclasses.replace(given, image=Settings(state.project).image)
    with pytest.raises(raised):  # the next one, with nothing given
        driver.up(state, driver.UpArguments(settings.merged(kept, {})))
    assert asked[1] == kept
    assert Path(state.path("upstream-ca.pem")).read_text() == certificate
    assert "# Preset: npm\n" in Path(state.path("allowlist.txt")).read_text()


@needs_qemu
@pytest.mark.parametrize("where", ["/etc/passwd", "installer.iso"])
def test_an_image_that_is_no_disk_is_refused_at_once(
    world: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(states, "create", lambda _: pytest.fail("it was not refused"))
    Path("installer.iso").write_bytes(BOOTS[:32769] + b"CD001" + BOOTS)
    state = states.state_of(str(world / "project"))
    words = ["up", "--project", state.project, "--image", where]
    with pytest.raises(UserError, match=r"is no disk that can boot: .*--image FILE") as error:
        command.command(words, standalone_mode=False)
    assert error.value.code == Exit.USAGE
    assert not state.exists


@needs_qemu
def test_a_first_start_that_fails_leaves_no_vm(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = states.state_of(str(world / "project"))
    arguments = driver.UpArguments(Settings(state.project, image=str(world / "disk.img")))

    def no_disk(*_: object) -> None:
        raise UserError("no packages")

    monkeypatch.setattr(ready, "disk_for", no_disk)
    with pytest.raises(UserError, match=r"^no packages$"):
        driver.up(state, arguments)
    assert not state.exists

    def disk_for(*_: object) -> images.Image:
        Path(state.disk).touch()
        settings.save_image(state, arguments.settings.image)
        return images.Image(str(world / "disk.img"))

    def boot(*_: object) -> None:
        Path(state.console).write_text("Kernel panic")
        raise UserError("the guest's kernel panicked")

    monkeypatch.setattr(ready, "disk_for", disk_for)
    monkeypatch.setattr(driver, "boot", boot)
    with pytest.raises(UserError, match=r"panicked"):
        driver.up(state, arguments)
    assert "Kernel panic" in "\n".join(logs.lines(state))
    assert not [name for name in os.listdir(state.directory) if ".log" not in name]


@needs_qemu
@pytest.mark.parametrize("words", [[], ["--", "true"]], ids=["shell", "command"])
def test_a_first_start_fits_into_a_screen(
    world: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """All that it prints before the shell, with five files that are hidden."""
    for number in range(5):
        (world / f"project/{number}").mkdir()
        (world / f"project/{number}/.env").touch()

    def disk_for(state: State, *_: object) -> images.Image:
        for name in ("Guest image", "Guest setup"):
            with phases.Phase(name):
                pass
        Path(state.disk).touch()
        return images.Image(str(world / "disk.img"))

    monkeypatch.setattr(trust, "line", lambda: "g" * 140)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(ready, "disk_for", disk_for)
    monkeypatch.setattr(driver, "boot", lambda *_: (None, None))
    monkeypatch.setattr(ssh, "session", lambda *_: ["true"])
    given = ["--project", str(world / "project"), "--image", str(world / "disk.img"), *words]
    done = CliRunner().invoke(up_command.up, given)
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    beginnings = sum(line.endswith(" ...") for line in said)  # a terminal overwrites them
    rows = sum(-(-len(line) // 80) for line in said) - beginnings
    assert rows <= 20, done.stderr
    assert any(line.startswith("shared ") for line in said) == (not words)


# Keys


def test_keys_are_the_vms_own_and_made_once(world: Path) -> None:
    state = states.state_of(str(world / "project"))
    states.create(state)
    made = keys.ensure(state)
    before = made.private_text(keys.AGENT)
    assert keys.ensure(state).private_text(keys.AGENT) == before
    assert len({made.private_text(name) for name in (keys.AGENT, keys.ADMIN, keys.HOST)}) == 3
    for name in (keys.AGENT, keys.ADMIN, keys.HOST):
        assert os.stat(made.private(name)).st_mode & 0o777 == 0o600
    known = Path(made.known_hosts).read_text().split()
    assert known == [keys.HOST_ALIAS, *made.public_text(keys.HOST).split()[:2]]


def test_an_interrupted_making_of_keys_is_done_again(world: Path) -> None:
    state = states.state_of(str(world / "project"))
    states.create(state)
    half = Path(state.path(keys.DIRECTORY) + ".new")
    half.mkdir()
    (half / "agent").write_text("half")
    assert keys.ensure(state).public_text(keys.AGENT).startswith("ssh-ed25519 ")
    assert not half.exists()


# Secrets


def test_secrets_are_named_with_the_option_that_keeps_them_out(tmp_path: Path) -> None:
    for name in (".env", "src/.ENV.local", "certs/dev.key", ".env.example", "main.py", "key.py",
                 ".git/id_rsa", "node_modules/x/.env", "id_rsa.pub"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = exposed_files.found(str(tmp_path)).paths
    assert found == [".env", "certs/dev.key", "src/.ENV.local"]
    said = exposed_files.warning(found)
    assert "\n  .env\n  certs/dev.key\n  src/.ENV.local\n" in said
    assert said.endswith("gitguard vm up --hide '*.key' --hide .ENV.local --hide .env")
    assert all(
        map(Settings("/p", hide=(".env", "*.key", ".env.*")).hides, map(os.path.basename, found))
    )


def test_secrets_are_found_in_a_deep_tree(tmp_path: Path) -> None:
    with nested(tmp_path, 1_200) as fd:
        os.close(os.open(".env", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        assert exposed_files.found(str(tmp_path)).paths == ["d/" * 1_200 + ".env"]


def test_the_printed_options_are_ones_that_hide(tmp_path: Path) -> None:
    """The printed options can be pasted: a shell turns them into settings that hide all secrets."""
    import shlex

    for name in ("a b.pem", "x'y.key", "*.p12", "a token,\x1b  \\.txt", f"token{'x' * 200}.txt"):
        (tmp_path / name).touch()
    words = shlex.split(
        exposed_files.warning(exposed_files.found(str(tmp_path)).paths).partition("them:\n")[2]
    )
    hide = tuple(words[i + 1] for i, word in enumerate(words) if word == "--hide")
    assert exposed_files.found(str(tmp_path), Settings("/p", hide=hide).hides).paths == []


def test_a_name_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m.pem").touch()
    assert "\x1b" not in exposed_files.warning(exposed_files.found(str(tmp_path)).paths)


def test_no_name_makes_a_row_of_its_own_in_the_warning() -> None:
    false = "gitguard vm allow GET x"
    fillers = (" ", "\u2800", "\u6f22", ". ")
    names = [f".env.{n}{filler * 40}{false}" for n, filler in enumerate(fillers)]
    said = exposed_files.warning([f"{'d' * 30}/{name}" for name in names]).splitlines()
    assert max(map(len, said)) < 80
    assert all(line.isascii() and not line.lstrip().startswith(false) for line in said)


def test_the_warning_is_short_however_many_files_there_are() -> None:
    assert len(exposed_files.warning([f"{n}.pem" for n in range(200_000)])) < 300
    said = exposed_files.warning([f".env.{n}" for n in range(200_000)])
    assert len(said) < 500
    assert "and 199995 more" in said
    assert "to hide some of them" in said


# Logs


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State("/srv/p", str(tmp_path))


def test_logs_cannot_act_on_the_terminal(state: State) -> None:
    console = b"\x1b[32mOK\x1b[0m done\r\n\x1b]0;title\x07x\tz\nlast\x9b31m"
    Path(state.console).write_bytes(console)
    said = "\n".join(logs.lines(state))
    assert "OK done" in said
    assert "x z" in said
    assert "last" in said
    assert all(c.isprintable() or c == "\n" for c in said)


@pytest.mark.parametrize("filler", [" ", "\t", "\u2800", "\u6f22", ". ", "x"])
def test_no_row_of_a_log_is_the_guests_alone(state: State, filler: str) -> None:
    false = f"== {state.path('mitmdump.log')}"
    for path in (state.console, state.path("mitmdump.log")):
        Path(path).write_text(f"{false}\nx{filler * 100}{false}\n")
    for width in (None, 80):
        own = ("console: ", "mitmdump: ", "== ")
        rows = list(logs.lines(state, width))
        assert all(row.startswith(own) for row in rows)
        guests = [row for row in rows if not row.startswith("== ")]
        assert len(rows) - len(guests) == 3
        assert width is None or all(len(row) < width and row.isascii() for row in guests)


def test_a_console_that_grows_is_cut_and_its_end_kept(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_CONSOLE_BYTES", 1000)
    monkeypatch.setattr(logs, "KEPT_BYTES", 100)
    monkeypatch.setattr(logs, "_BOUND_EVERY", 0.01)
    console, before = Path(state.console), Path(f"{state.console}.1")
    before.write_text("the start before")
    with open(console, "ab", buffering=0) as qemu, logs.size_limited(state.console):
        qemu.write(b"x" * 900)
        logs.truncate(state.console)
        assert (console.stat().st_size, before.read_text()) == (900, "the start before")
        qemu.write(b"x" * 200 + b"y" * 100)
        until(lambda: console.stat().st_size == 0, "it is cut")
        assert before.read_bytes() == b"y" * 100
        qemu.write(b"new")
        assert console.read_bytes() == b"new"


@needs_qemu
def test_qemu_appends_to_its_console(state: State) -> None:
    """After the file was truncated, QEMU writes at its new end, without a hole."""
    machine = Machine(state, images.Image("/d"), (), Settings("/p"), "tcg", (), 7)
    words = qemu_command.command(machine)
    chardev = words[words.index("-chardev") + 1]
    qemu = ["qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none"]
    with subprocess.Popen([*qemu, "-chardev", chardev]) as process:
        try:
            until(lambda: os.path.exists(state.console), "QEMU has opened it")
            (fd,) = [
                fd
                for fd in Path(f"/proc/{process.pid}/fd").iterdir()
                if os.path.realpath(fd) == os.path.realpath(state.console)
            ]
            info = Path(f"/proc/{process.pid}/fdinfo/{fd.name}").read_text()
            assert int(info.split("flags:")[1].split()[0], 8) & os.O_APPEND
        finally:
            process.kill()


@needs_qemu
def test_qemu_shares_a_directory_by_its_descriptor(state: State, tmp_path: Path) -> None:
    """Whatever lies at its path by then. The machine does not run."""
    (tmp_path / "data").mkdir()
    fd = os.open(tmp_path / "data", os.O_RDONLY)
    share = Share(f"/proc/self/fd/{fd}", "data", "/view", is_writable=False)
    (tmp_path / "data").rename(tmp_path / "moved")
    machine = Machine(state, images.Image("/d"), (share,), Settings("/p"), "tcg", (), 7)
    words = qemu_command.command(machine)
    at = words.index("-virtfs")
    qemu = ["qemu-system-x86_64", "-S", "-nodefaults", "-display", "none", "-m", "16"]
    more = ["-sandbox", qemu_command.SANDBOX, *words[at : at + 2]]
    with subprocess.Popen([*qemu, *more], pass_fds=[fd]) as process:
        os.close(fd)
        places = Path(f"/proc/{process.pid}/fd")
        try:
            until(
                lambda: [os.path.realpath(place) for place in places.iterdir()].count(
                    f"{tmp_path}/moved"
                ) > 1,
                "QEMU has opened it",
            )  # fmt: skip
        finally:
            process.kill()


# Waiting for the guest


class Booting:
    """Makes boots whose guest has told something, and closed its end."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.channels: list[socket.socket] = []

    def __call__(self, qemu: subprocess.Popen[bytes], said: bytes = b"") -> boot.Boot:
        here, there = socket.socketpair()
        self.channels.append(here)
        there.sendall(said)
        there.close()
        return boot.Boot(self.state, qemu, phases.Phase("Boot"), here)

    def ended(self, code: int) -> boot.Boot:
        """Return a boot whose QEMU has ended."""
        qemu = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
        qemu.wait()
        return self(qemu)


@pytest.fixture
def booting(state: State) -> Iterator[Booting]:
    made = Booting(state)
    yield made
    for channel in made.channels:
        channel.close()


def test_a_qemu_that_ends_is_noticed_with_what_it_said(state: State, booting: Booting) -> None:
    Path(state.qemu_log).write_text("qemu: no such disk\n")
    with pytest.raises(boot.BootError, match=r"QEMU ended: qemu: no such disk") as error:
        booting.ended(1).await_monitor()
    assert not error.value.is_accelerator


def test_a_panic_ends_the_waiting(state: State, booting: Booting) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as qemu:
        Path(state.console).write_text("Kernel panic - not syncing: x\n")
        with pytest.raises(boot.BootError, match=r"panicked"):
            booting(qemu).await_monitor()
        qemu.kill()


@pytest.fixture
def qemu() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a running QEMU."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_guest_tells_that_it_is_ready(booting: Booting, qemu: subprocess.Popen[bytes]) -> None:
    booting(qemu, b"step the first\nunknown failed\nready\nfailed x\n").await_ready()


def test_a_setup_that_failed_is_one_line(booting: Booting, qemu: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UserError, match=r"failed: no \\x1b\[1mpackages") as error:
        booting(qemu, b"failed no \x1b[1mpackages\nready\n").await_ready()
    assert error.value.code == Exit.SYSTEM


def test_a_full_disk_ends_the_waiting_and_is_not_tried_again(
    booting: Booting, qemu: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qmp, "status", lambda _: qmp.IO_ERROR)
    monkeypatch.setattr(boot, "MONITOR_LIMIT", 0.1)
    waiting = booting(qemu)
    waiting.deadline = 0
    with pytest.raises(UserError, match=r"the host's disk is full.*make room"):
        waiting.await_ready()
    assert qemu.poll() is not None


def test_what_a_guest_says_without_end_is_not_kept(
    state: State, qemu: subprocess.Popen[bytes]
) -> None:
    here, there = socket.socketpair()
    waiting = boot.Boot(state, qemu, phases.Phase("Boot"), here)

    def tell() -> None:
        for _ in range(80):
            there.sendall(b"x" * 100_000)
        there.sendall(b"\nready\n")

    teller = threading.Thread(target=tell)
    tracemalloc.start()
    teller.start()
    try:
        waiting.await_ready()
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
        teller.join()
        here.close()
        there.close()


@pytest.mark.parametrize("speaks", ["never", "once", "by its console"])
def test_a_silent_console_is_told_once(
    state: State, qemu: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], speaks: str,
) -> None:  # fmt: skip
    """What has no boot sector, or no kernel, would be waited for for a quarter of an hour."""
    monkeypatch.setattr(boot, "SILENT_LIMIT", 0.2)
    monkeypatch.setattr(boot, "_LOOK_EVERY", 0.01)

    here, there = socket.socketpair()
    with here, there:
        waiting = boot.Boot(
            state, qemu, phases.Phase("Boot"), here, deadline=time.monotonic() + 1.0
        )
        if speaks == "once":
            there.sendall(b"step packages\n")
        Path(state.console).write_text("GRUB" if speaks == "by its console" else "")
        with pytest.raises(UserError, match=r"not ready within") as error:
            waiting.await_ready()
    assert ("its console was silent" in str(error.value)) == (speaks == "never")
    assert capsys.readouterr().err.count("has written nothing") == (speaks == "never")


def test_a_guest_that_never_is_ready_is_not_waited_for_forever(
    state: State, qemu: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor for another one after that."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"step the \x1b[1mfirst\nstep packages\nread")
        with pytest.raises(UserError, match=r"not ready within"):
            boot.Boot(state, qemu, phases.Phase("Boot"), here, deadline=0).await_ready()
    assert capsys.readouterr().err == ""  # no words of the guest's, whose project is shared


def test_the_steps_of_a_setup_are_the_hosts_words_and_come_once(
    state: State, qemu: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """A guest can tell what it likes, as often as it likes."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(
            b"step setup\nstep \x1b]0;x\x07\nstep packages\nstep setup\n" * 9 + b"ready\n"
        )
        phase = phases.Phase("Guest setup")
        boot.Boot(state, qemu, phase, here, steps=tuple(boot.STEPS)).await_ready()
    said = capsys.readouterr().err.splitlines()
    assert said == ["Guest setup: setting up ...", "Guest setup: packages ..."]
