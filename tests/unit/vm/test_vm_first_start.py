"""A first start that fails: what it leaves, and what it takes back."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.base.errors import UserError
from gitguardfs.host.credentials import secrets
from gitguardfs.host.credentials.secrets import Kind, Place, Secret, new_placeholder
from gitguardfs.host.egress.files import allow, create_files
from gitguardfs.host.vm import first_start, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

SECRET = Secret("TOKEN", new_placeholder("TOKEN"), (Place("a.test", 443, Kind.BEARER, "Bearer"),))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 1000)
    (tmp_path / "p").mkdir()
    made = states.state_of(str(tmp_path / "p"))
    states.create(made)
    return made


def fail(state: State, *files: str, own: Settings | None = None) -> None:
    """Let a start fail once it has made its files, and these."""
    with pytest.raises(KeyboardInterrupt), first_start.undone_if_it_fails(state):
        settings.save(state, own or Settings(state.project))
        create_files(state.files.directory)
        settings.save_image(state, "/own.img")
        Path(state.path("keys")).mkdir(exist_ok=True)
        for name in ("disk.qcow2", "seed.iso", *files):
            Path(state.path(name)).touch()
        raise KeyboardInterrupt


def test_nothing_is_left_of_it(state: State) -> None:
    fail(state)
    assert os.listdir(os.path.dirname(state.directory)) == []


def test_its_logs_stay(state: State) -> None:
    fail(state, "console.log", "console.log.1", "qemu.log", "proxy.json")
    assert set(os.listdir(state.directory)) == {"console.log", "console.log.1", "qemu.log"}


@pytest.mark.parametrize(
    "choose",
    [
        lambda state: create_files(state.files.directory, ("npm",)),
        lambda state: (create_files(state.files.directory),
                       allow(state.files.directory, "GET https://a.test/")),
        lambda state: state.files.upstream_ca.touch(),
        lambda state: state.files.upstream_proxy.touch(),
        lambda state: secrets.save(state.files.directory, [SECRET]),
        lambda state: Path(state.path("secrets.json")).write_text("["),
    ],
    ids=["--allow", "vm allow", "authority", "proxy", "secret", "damaged"],
)  # fmt: skip
def test_what_the_user_has_chosen_stays(state: State, choose: Callable[[State], object]) -> None:
    """A start without it would share or allow more, or ask again."""
    choose(state)
    before = {path.name: path.read_bytes() for path in Path(state.directory).iterdir()}
    fail(state, "console.log")
    assert settings.load(state) == Settings(state.project)  # without the image
    for name, content in before.items():
        assert Path(state.path(name)).read_bytes() == content
    assert not {"disk.qcow2", "seed.iso", "keys"} & set(os.listdir(state.directory))


def test_a_setting_of_it_stays(state: State) -> None:
    own = Settings(state.project, hide=(".env",))
    fail(state, own=own)
    assert settings.load(state) == own and not state.has_disk


def test_what_gitguard_toml_and_git_said_is_no_choice(state: State) -> None:
    """They say it again at the next start, or no longer."""
    files = state.files.directory
    with pytest.raises(KeyboardInterrupt), first_start.undone_if_it_fails(state):
        own = Settings(state.project, hide=("a",), show=("tracked.env",))
        settings.save(state, own, Settings(state.project, show=own.show), ("hide", "allow"))
        create_files(files, of_config=("npm", "GET https://a.test/"))
        settings.save_image(state, "/own.img")
        raise KeyboardInterrupt
    assert not state.exists


def test_a_choice_that_stays_is_apart_from_what_gitguard_toml_said(state: State) -> None:
    own, remembered = Settings(state.project, hide=("a",)), Settings(state.project, git="deny")
    with pytest.raises(KeyboardInterrupt), first_start.undone_if_it_fails(state):
        settings.save(state, own, remembered, ("hide",))
        raise KeyboardInterrupt
    assert settings.load_saved(state) == settings.Saved(own, remembered, ("hide",))


@pytest.mark.parametrize("name", ["disk.qcow2", "ready"])
def test_a_vm_that_has_run_keeps_all(state: State, name: str) -> None:
    Path(state.path(name)).touch()
    fail(state)
    assert state.has_disk and settings.load(state).image == "/own.img"
    assert os.path.isdir(state.path("keys"))


def test_an_error_while_it_is_taken_back_hides_no_other(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: State) -> None:
        raise UserError("the keyring is locked")

    monkeypatch.setattr(first_start, "_has_choices", failing)
    fail(state)
    assert state.exists and not state.has_disk
