"""Directories besides the project: which may be shared, and how the guest gets them."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import UserError
from gitguardfs.base.paths import checksum
from gitguardfs.guest import systemd
from gitguardfs.host.commands.vm import up as up_command
from gitguardfs.host.share import start_guard
from gitguardfs.host.vm import (
    config_file,
    driver,
    guest_files,
    host_guard,
    images,
    launch,
    provision,
    settings,
    shares,
    status_text,
    trusted_programs,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts

HOME = "/home/agent/projects"
CA = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project, and directories to share beside it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    for name in ("src/shop/sub", "src/lib", "other/lib", "data/big", ".local/state/gitguardfs"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def state(home: Path) -> State:
    return states.state_of(str(home / "src/shop"))


def check(home: Path, *values: str) -> None:
    own = Settings(str(home / "src/shop"), share=tuple(str(home / one) for one in values))
    shares.check(own.shares, states.own_directories())


# Values


@given(st.text(min_size=1).map("/{}".format), st.booleans())
def test_a_value_is_read_as_it_was_spelled(directory: str, is_writable: bool) -> None:
    assert shares.parsed(shares.spelled(directory, is_writable)) == (directory, is_writable)


def test_a_relative_path_begins_where_the_command_is_run(home: Path) -> None:
    assert shares.absolute("../lib:ro", "/srv/p") == "/srv/p/../lib:ro"
    assert shares.absolute("~/data:rw", "/srv/p") == str(home / "data")
    for value in (":ro", ":rw", "a\0b"):
        with pytest.raises(UserError, match="names no directory"):
            shares.absolute(value, "/srv/p")


def test_the_last_value_for_a_directory_counts() -> None:
    old = Settings("/srv/p", share=("/a:ro", "/b"))
    assert settings.merged(old, {"share": ("/c", "/a")}).share == ("/a", "/b", "/c")
    assert settings.merged(old, {"share": ("", "/c:ro")}).share == ("/c:ro",)
    assert settings.merged(old, {"share": None}).share == old.share
    with pytest.raises(UserError, match="at most 16 can"):
        settings.merged(old, {"share": tuple(f"/{n}" for n in range(15))})
    with pytest.raises(UserError, match="'lib' is no absolute path"):
        Settings("/srv/p", share=("lib:ro",))


def test_a_start_that_fails_leaves_no_more_shared() -> None:
    old = Settings("/srv/p", share=("/a", "/b:ro", "/c"))
    new = replace(old, share=("/a:ro", "/b", "/d"))
    assert settings.before_start(old, new).share == ("/a:ro", "/b:ro")


# Views and tags


def test_each_has_a_view_and_a_tag_of_its_own() -> None:
    values = ("/srv/shop", "/x/lib:ro", "/y/lib", "/z/lib")
    found = shares.of_vm("/src/shop", values)
    assert [one.view for one in found] == [
        f"{HOME}/shop", f"{HOME}/shop-{checksum('/srv/shop')}", f"{HOME}/lib",
        f"{HOME}/lib-{checksum('/y/lib')}", f"{HOME}/lib-{checksum('/z/lib')}",
    ]  # fmt: skip
    assert [one.is_writable for one in found] == [True, True, False, True, True]
    assert found[0].mount == "/var/lib/gitguardfs/shares/project"
    assert len({one.tag for one in found}) == len({one.mount for one in found}) == 5


def test_a_tag_stays_when_other_shares_come_and_go() -> None:
    """The guest keeps the agent's repositories by it."""
    tags = {one.directory: one.tag for one in shares.of_vm("/p", ("/x/lib", "/y/lib:ro"))}
    (_, alone) = shares.of_vm("/p", ("/y/lib",))
    assert alone.tag == tags["/y/lib"]


# What may be shared


@pytest.mark.parametrize(
    "values",
    [
        ["src/lib", "other/lib:ro"], ["src"], ["src:ro"], ["data:ro", "data/big"],
        ["src:ro", "src/lib", "other"],
    ],
)  # fmt: skip
def test_directories_beside_or_around_the_project_are_shared(home: Path, values: list[str]) -> None:
    check(home, *values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["src/shop"], "is the project"),
        (["src/shop:ro"], "is the project"),
        (["src/shop/sub:ro"], "lies in .*/src/shop, which is shared already, writable"),
        (["data", "data/big:ro"], "lies in .*/data, which is shared already, writable"),
        (["data", "data/big"], "lies in .*/data, which is shared already, writable"),
        (["data/big:ro", "data:ro"], "lies in .*/data, which is shared already, to read"),
        ([""], "is or holds a home directory"),
        (["..:ro"], "is or holds a home directory"),
        (["absent"], r"no such directory.*--share '' forgets"),
        ([".local/state/gitguardfs/vm"], "on which your VMs rely"),
        ([".local/state/gitguardfs:ro"], "on which your VMs rely"),
        ([".local/state"], "on which your VMs rely"),
        ([".cache"], "on which your VMs rely"),
        ([".config:ro"], "on which your VMs rely"),
        ([".local/share"], "on which your VMs rely"),
        ([".docker"], "would share your keys or passwords"),
        ([".ssh:ro"], "holds secrets"),
        ([".local/share/kwalletd:ro"], "holds secrets"),
        ([".mozilla/firefox:ro"], "holds secrets"),
        ([".claude:ro"], "would share your keys or passwords"),
        (["keys"], "would share your keys or passwords"),
        (["keys/gnupg/private:ro"], "would share your keys or passwords"),
    ],
)
def test_no_state_no_keyring_and_no_home_is_shared(
    home: Path, values: list[str], said: str
) -> None:
    for name in (".local/state/gitguardfs/vm", ".cache", ".config", ".local/share", ".docker",
                 ".ssh", "keys/gnupg/private", ".local/share/kwalletd", ".mozilla/firefox",
                 ".claude"):  # fmt: skip
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / ".gnupg").symlink_to("keys/gnupg")
    with pytest.raises(UserError, match=said):
        check(home, *(os.path.normpath(home / value) for value in values))


def test_the_root_and_the_system_are_not_shared(home: Path) -> None:
    for value in ("/", "/:ro", "/etc", "/usr:ro", "/home"):
        with pytest.raises(UserError, match=r"holds a home|belongs to this machine"):
            check(home, value)


def test_a_cache_on_another_disk_is_not_shared(home: Path) -> None:
    (home / ".cache/gitguardfs").mkdir(parents=True)
    (home / ".cache/gitguardfs/images").symlink_to(home / "data/big")
    for value in ("data", "data/big:ro"):
        with pytest.raises(UserError, match="on which your VMs rely"):
            check(home, value)


def test_what_the_user_names_is_resolved_once(home: Path, state: State) -> None:
    link = home / "link"
    link.symlink_to("data")
    given_values = {"share": (f"{home}/src/shop/../lib:ro", str(link))}
    arguments = driver.up_arguments(state, given_values)
    assert arguments.settings.share == (f"{home}/src/lib:ro", f"{home}/data")
    assert arguments.remembered and arguments.remembered.share == arguments.settings.share
    (home / "src/lib").rmdir()
    (home / "src/lib").symlink_to(home / "other")
    with pytest.raises(UserError, match=f"leads to {home}/other now"):
        shares.check(arguments.settings.shares, ())


def test_the_agent_leads_no_share_elsewhere(home: Path, state: State) -> None:
    (home / "src/shop/vendor").symlink_to(home / "data")
    with pytest.raises(UserError, match=r"leads through .*/shop, where the agent.*/data"):
        driver.up_arguments(state, {"share": (f"{state.project}/vendor:ro",)})


@pytest.mark.parametrize("way", ["together", "later", "by a link of the user's"])
def test_the_agent_leads_no_share_elsewhere_by_another(home: Path, state: State, way: str) -> None:
    (home / "data/lib").symlink_to(home / "other")
    (home / "link").symlink_to("data/lib")
    before, more = f"{home}/data", f"{home}/data/lib:ro"
    if way == "together":
        given_values = {"share": (before, more)}
    else:
        states.create(state)
        settings.save(state, Settings(state.project, share=(before,)))
        given_values = {"share": (more if way == "later" else f"{home}/link:ro",)}
    with pytest.raises(UserError, match=r"leads through .*/data, where the agent.*/other"):
        driver.up_arguments(state, given_values)


@pytest.mark.parametrize("by_name", [True, False])
def test_the_agent_leads_no_project_elsewhere(
    home: Path, state: State, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """It has exchanged a project in its share for a symlink, and waits for `vm up` there."""
    states.create(state)
    settings.save(state, Settings(state.project, share=(f"{home}/src",)))
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    (home / "src/lib").rmdir()
    (home / "src/lib").symlink_to(home / "other")
    (home / "own-link").symlink_to(home / "data")
    for name, is_led in (("src/lib", True), ("own-link", False)):
        monkeypatch.chdir(home / name)
        monkeypatch.setenv("PWD", str(home / name))
        words = ["--project", str(home / name)] if by_name else []
        done = CliRunner().invoke(up_command.up, [*words, "--memory", "1M"], standalone_mode=False)
        assert ("leads through" in str(done.exception)) == is_led


def test_one_that_is_gone_waits_until_it_is_back(
    home: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    states.create(state)
    own = Settings(state.project, share=(f"{home}/data", f"{home}/src/lib:ro"))
    settings.save(state, own)
    (home / "data").rename(home / "unplugged")
    arguments = driver.up_arguments(state, {})
    assert arguments.settings.share == (f"{home}/src/lib:ro",)
    assert f"{home}/data is gone" in capsys.readouterr().err
    settings.save(state, arguments.settings, arguments.remembered)
    (home / "unplugged").rename(home / "data")
    assert driver.up_arguments(state, {}).settings.share == own.share
    with pytest.raises(UserError, match="no such directory"):
        driver.up_arguments(state, {"share": (f"{home}/absent",)})
    (home / "src/lib").rmdir()
    (home / "src/lib").touch()
    with pytest.raises(UserError, match="is not a directory"):
        driver.up_arguments(state, {})


def test_up_looks_at_each_before_it_searches_them_or_starts_anything(
    home: Path, state: State
) -> None:
    with pytest.raises(UserError, match="is the project"):
        driver.up_arguments(state, {"share": (state.project,)})
    with pytest.raises(UserError, match="is or holds a home"):
        driver.up_arguments(state, {"share": (str(home),)})
    assert not state.exists


# Options and file


def up(home: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Settings | None, str]:
    """Run `vm up` but for the start; return its settings and what it says."""
    started: list[driver.UpArguments] = []
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(driver, "up", lambda _, arguments: started.append(arguments) or 0)
    monkeypatch.chdir(home / "src/shop")
    done = CliRunner().invoke(up_command.up, words)
    said = done.output + str(done.exception or "")
    return (started[0].settings if started else None), said


def test_the_option_is_repeatable_and_taken_from_the_current_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "data/.env").touch()
    own, said = up(home, "--share", "../lib:ro", "--share=~/data", monkeypatch=monkeypatch)
    assert own is not None, said
    assert own.share == (f"{home}/src/lib:ro", f"{home}/data")
    assert "/data/.env\n" in said  # hidden by default; a long path is cut at its beginning
    own, said = up(home, "--share", "", "--share", "../lib", monkeypatch=monkeypatch)
    assert own is not None and own.share == (f"{home}/src/lib",)
    (home / "src/shop/file").touch()
    own, said = up(home, "--share", "file", monkeypatch=monkeypatch)
    assert own is None and "is a file" in said


def write_config(state: State, text: str) -> None:
    path = Path(state.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_file_names_directories_and_its_errors_their_line(home: Path, state: State) -> None:
    write_config(state, 'cpus = 2\nshare = ["~/data:ro", "~/src/lib"]\n')
    shared = (f"{home}/data:ro", f"{home}/src/lib")
    assert config_file.read(state).values["share"] == shared
    assert driver.up_arguments(state, {}).settings.share == shared
    assert f'share = ["{home}/data:ro", "{home}/src/lib"]' in config_file.text(state)
    clearing = driver.up_arguments(state, {"share": ("", str(home / "other"))})
    assert clearing.settings.share == (f"{home}/other",)
    for value, said in (
        ("../lib", r":1: share '../lib' is no absolute path"),
        ("~/absent:ro", ":1: no such directory"),
        ("~", ":1: .* is or holds a home"),
    ):
        write_config(state, f'share = ["{value}"]')
        with pytest.raises(UserError, match=said):
            config_file.read(state)


def test_the_file_itself_lies_in_no_writable_share(home: Path, state: State) -> None:
    (home / "data/own.toml").write_text("cpus = 2\n")
    Path(state.config).parent.mkdir(parents=True)
    Path(state.config).symlink_to(home / "data/own.toml")
    with pytest.raises(UserError, match=r"gitguard.toml .* lies in the share"):
        driver.up_arguments(state, {"share": (f"{home}/data",)})
    assert driver.up_arguments(state, {"share": (f"{home}/data:ro",)}).settings.cpus == 2


# What runs on the host


def test_programs_lie_in_no_directory_where_the_agent_writes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home / "data/ssh-here"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}/data:{os.environ['PATH']}")
    project = str(home / "src/shop")
    for value, is_refused in ((f"{home}/data", True), (f"{home}/data:ro", False)):
        own = Settings(project, share=(value,))
        if is_refused:
            with pytest.raises(UserError, match=r"ssh-here lies in the share .*/data \("):
                trusted_programs.check(own, "ssh-here")
        else:
            trusted_programs.check(own, "ssh-here")


def test_no_directory_of_path_is_one_where_the_agent_writes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could put a program there under any name that the user types."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{home}/data/big")
    project = str(home / "src/shop")
    trusted_programs.check(Settings(project, share=(f"{home}/data:ro",)))
    with pytest.raises(UserError, match=r"PATH leads into the share .*/data \(.*/data/big\)"):
        trusted_programs.check(Settings(project, share=(f"{home}/data",)))


def test_gitguard_itself_is_not_started_from_where_the_agent_writes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher of pipx is in ~/.local/bin, and all else elsewhere."""
    (home / "src/shop/bin").mkdir()
    launcher = home / "src/shop/bin/gitguard"
    launcher.touch()
    monkeypatch.setattr("sys.argv", [str(launcher), "vm", "up"])
    with pytest.raises(UserError, match=r"gitguard lies in the project"):
        trusted_programs.check(Settings(str(home / "src/shop")))
    trusted_programs.check(Settings(str(home / "src/lib")))


def test_an_image_lies_in_no_directory_where_the_agent_writes(home: Path) -> None:
    image = images.Image(str(home / "data/disk.img"))
    images.refuse_image_in_project(image, str(home / "src/shop"), str(home / "other"))
    with pytest.raises(UserError, match=r"the image .* lies in the share"):
        images.refuse_image_in_project(image, str(home / "src/shop"), str(home / "data"))


def launch_of(own: Settings) -> launch.Launch:
    nothing: Any = None
    return launch.Launch(nothing, own, images.Image("/d"), nothing, own.shares, 0, nothing)


def test_qemu_gets_the_directory_that_was_checked(home: Path) -> None:
    """The agent of another VM exchanges it for a symlink meanwhile."""
    (home / "data/big/mine").touch()
    (home / "other/lib/secret").touch()
    own = Settings(str(home / "src/shop"), share=(f"{home}/data/big",))
    with launch.opened(launch_of(own)) as ((_, share), fds):
        (home / "data/big").rename(home / "data/before")
        (home / "data/big").symlink_to(home / "other/lib")
        words = ["ls", f"{share.directory}/"]
        done = subprocess.run(words, pass_fds=fds, capture_output=True, text=True, check=True)
        assert done.stdout == "mine\n"
    with (
        pytest.raises(UserError, match=r"cannot share .*/data/big"),
        launch.opened(launch_of(own)),
    ):
        pass


# In the guest


OWN = Settings("/srv/p", hide=("*.pem",), share=("/srv/a b", "/x/p:ro"))


def guest_files_of(own: Settings) -> dict[str, str]:
    found = provision.guest_files(own, CA, owners=[(501, 20), (7, 7), (8, 8)])
    return {file.path: file.data.decode(errors="replace") for file in found}


def test_each_is_guarded_alike() -> None:
    found = guest_files_of(OWN)
    units = {
        path.removeprefix(f"{guest_files.UNITS}/"): text.encode() for path, text in found.items()
    }
    by_view = {share.view: share for share in OWN.shares}
    mounts, guards = systemd.shares(units), systemd.guards(units)
    assert mounts == {share.mount: share.tag for share in OWN.shares}
    assert guards == {view: share.mount for view, share in by_view.items()}
    options = systemd.options(units)
    for view, uid in zip(by_view, (501, 7, 8), strict=True):
        words = options[view].split(",")
        assert {"seal", "git=private", "hide=*.pem"} <= set(words)
        assert words[0].startswith(f"map={uid}")
        is_read_only = "read-only" in words
        assert is_read_only == (not by_view[view].is_writable) == ("local=deps" not in words)


def test_the_agent_is_told_of_them() -> None:
    rules = guest_files_of(OWN)["/etc/gitguard-vm/AGENTS.md"]
    assert f"  - `{HOME}/a b`\n  - `{HOME}/p-{checksum('/x/p')}`, which you can only read" in rules
    alone = guest_files_of(Settings("/srv/p"))["/etc/gitguard-vm/AGENTS.md"]
    assert "directories of the human's too" not in alone


def test_the_status_lists_them(state: State) -> None:
    states.create(state)
    settings.save(state, Settings(state.project, share=("/srv/data:ro",)))
    found = facts(state)
    first, second = found["border"]["shares"]
    assert (first["host"], first["writable"]) == (state.project, True)
    assert (second["host"], second["guest"]) == ("/srv/data", f"{HOME}/data")
    assert (second["writable"], second["local"]) == (False, ())
    rows = status_text.text(found, 200).splitlines()
    (row,) = [row for row in rows if "/srv/data <->" in row]
    assert row.startswith("share") and "read-only, guarded in the guest" in row


@pytest.fixture
def guards(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[str]]:
    """The guards that were started on the host, and the mount points that were unmounted."""
    started: list[Any] = []
    stopped: list[str] = []

    def start(spec: Any) -> None:
        started.append(spec)
        Path(spec.mountpoint).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(os.path.realpath(spec.directory), spec.mountpoint)

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        stopped.append(words[-1])
        os.unlink(words[-1])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{home}/run")
    monkeypatch.setattr(start_guard, "start", start)
    monkeypatch.setattr(trusted_programs, "check", lambda *_, **__: None)
    monkeypatch.setattr(trusted_programs, "path_of", str)
    monkeypatch.setattr(subprocess, "run", run)
    return started, stopped


def test_a_guard_on_the_host_shows_each_at_its_own_mount_point(
    home: Path, guards: tuple[list[Any], list[str]]
) -> None:
    """Two VMs that share a directory do not have the same one."""
    started, stopped = guards
    mountpoints = set()
    projects = f"{home}/src/shop", f"{home}/src/lib"
    for project in projects:
        own = Settings(project, guard="host", share=(f"{home}/data:ro",), hide=("*.pem",))
        with host_guard.exported(own, f"vm-{project[-1]}") as exported:
            assert [one.tag for one in exported] == [one.tag for one in own.shares]
            assert not exported[1].is_writable
            mountpoints |= {one.directory for one in exported}
    one, other = projects
    assert [spec.directory for spec in started] == [one, f"{home}/data", other, f"{home}/data"]
    # Root in the guest reaches its raw share: names are hidden before that.
    assert {spec.hiding for spec in started} == {("--hide=*.pem", "--hide-secrets")}
    assert len(mountpoints) == 4
    assert sorted(stopped) == sorted(mountpoints)


def test_a_guard_on_the_host_shows_the_directory_that_was_checked(
    home: Path, guards: tuple[list[Any], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, stopped = guards
    start = start_guard.start

    def exchanging(spec: Any) -> bool:
        (home / "src/lib").rename(home / "src/before")
        (home / "src/lib").symlink_to(home / "other")
        return start(spec)

    monkeypatch.setattr(start_guard, "start", exchanging)
    own = Settings(f"{home}/src/lib", guard="host")
    with pytest.raises(UserError, match="was exchanged"), host_guard.exported(own, "vm"):
        pass
    assert stopped == [started[0].mountpoint]
    with pytest.raises(UserError, match="cannot share"), host_guard.exported(own, "vm"):
        pass
