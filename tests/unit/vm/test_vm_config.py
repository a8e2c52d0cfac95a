"""gitguard.toml: its keys, its errors, what counts before what, and the commands for it."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.host.audit import trust
from gitguardfs.host.commands.vm import config, group
from gitguardfs.host.commands.vm import up as up_command
from gitguardfs.host.egress import files
from gitguardfs.host.egress.allowlist import Allowlist
from gitguardfs.host.vm import company_proxy, config_file, driver, settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.up_options import BY_KEY, UP_OPTIONS
from tests.support.boot_sector import BOOTS


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    (tmp_path / "project").mkdir()
    for name in ("lib", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "my.img").write_bytes(BOOTS)
    (tmp_path / "ca.pem").touch()
    return states.state_of(str(tmp_path / "project"))


def write(state: State, text: str | bytes) -> None:
    path = Path(state.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


EVERY_KEY = {
    "agent": ('"claude"', "claude"),
    "image": ('"~/my.img"', None),
    "memory": ('"4G"', 4096),
    "cpus": ("3", 3),
    "guard": ('"guest"', "guest"),
    "git": ('"readonly"', "readonly"),
    "share": ('["~/lib:ro"]', None),
    "package": ('["jq", "g++"]', ("jq", "g++")),
    "hide": ('["data", "*.pem"]', ("data", "*.pem")),
    "hide-secrets": ("true", True),
    "show": ('[".env.test"]', (".env.test",)),
    "local": ('["deps", ".cache"]', ("deps", ".cache")),
    "watch": ("false", False),
    "hardened": ("true", True),
    "publish": ('[3000, "8080:3000"]', ("3000", "8080:3000")),
    "allow": ('["npm", "GET https://A.test/x"]', ("npm", "GET https://a.test/x")),
    "upstream-ca": ('"~/ca.pem"', None),
    "upstream-proxy": ('"http://me@proxy.test"', "http://me@proxy.test:80"),
    "git-name": ('"A B"', "A B"),
    "git-email": ('"a@b.test"', "a@b.test"),
}


def test_every_option_has_its_key_and_every_key_its_option(state: State, tmp_path: Path) -> None:
    options = {word for param in up_command.up.params for word in param.opts if "--" in word}
    assert options - {"--project", "--no-local"} == {f"--{key}" for key in EVERY_KEY}
    negative = {word for param in up_command.up.params for word in param.secondary_opts}
    assert negative == {"--no-hardened", "--no-hide-secrets", "--no-watch"}
    fields = set(Settings.__dataclass_fields__) - {"project"}
    assert fields <= {option.name for option in UP_OPTIONS}
    write(state, "".join(f"{key} = {value}\n" for key, (value, _) in EVERY_KEY.items()))
    found = config_file.read(state)
    paths: dict[str, Any] = {
        "image": str(tmp_path / "my.img"), "upstream_ca": str(tmp_path / "ca.pem"),
        "share": (f"{tmp_path}/lib:ro",),
    }  # fmt: skip
    assert found.values == paths | {
        BY_KEY[key].name: value for key, (_, value) in EVERY_KEY.items() if value is not None
    }
    assert list(found.lines.values()) == list(range(1, len(EVERY_KEY) + 1))


def test_without_the_file_nothing_is_set(state: State) -> None:
    assert config_file.read(state).values == {}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("cpus = 2\n\ncpu = 3\n", 3, r"unknown key 'cpu' \(did you mean cpus\?\)"),
        ("git_name = 'x'", 1, r"unknown key 'git_name' \(did you mean git-name\?\)"),
        ("xyz = 1", 1, r"unknown key 'xyz' \(the keys are agent, image, .*git-email\)"),
        ("# x\n[vm]\ncpus = 2", 2, r"unknown key 'vm' \(the keys are"),
        ("cpus = '2'", 1, r"cpus must be a number \(for example cpus = 4\)"),
        ("cpus = true", 1, "cpus must be a number"),
        ("cpus = 0", 1, r"cpus 0 is too little \(give at least 1\)"),
        ("hardened = 1", 1, "hardened must be true or false"),
        ("package = ['jq; reboot']", 1, "package 'jq; reboot' is not the name of a package"),
        ("package = ['-o']", 1, "package '-o' is not the name of a package"),
        ("memory = 1.5", 1, r'memory must be a size \(for example memory = "8G"\)'),
        ("memory = '8 apples'", 1, "memory '8 apples' is not a size"),
        ("memory = '10M'", 1, r"memory 10M is too little"),
        ("guard = 'hots'", 1, r'guard must be "guest" or "host" \(did you mean host\?\)'),
        ("hide = '.env'", 1, r'hide must be a list of texts \(for example hide = \["'),
        ("hide = ['']", 1, "hide must be a list of texts"),
        ("git-name = ''", 1, "git-name must be a text"),
        ("hide = [\n  'a',\n  'b/c',\n]\n", 1, "hide 'b/c' is not the name of a file"),
        ("cpus = 1\ngit-name = '''\ncpu = 2'''\nhide = [\n'x']\nmem = 1", 6, "unknown key 'mem'"),
        ("git = 'private'\ncpus = 2\nguard = 'host'", 3, "guard host and git private exclude"),
        ("hide = ['*.env']\n\nshow = ['a.env']", 3, r"show a.env, but hide hides .*: \*.env \("),
        ("publish = ['x']", 1, "'x' is not a port"),
        ("allow = ['npn']", 1, r"unknown preset 'npn' \(did you mean npm\?\)"),
        ("\nallow = ['GET x']", 2, "not a line of an allowlist: GET x"),
        ("agent = 'cluade'", 1, "agent 'cluade' is no absolute path, and no name of one"),
        ("agent = '~/my.img'", 1, ".*/my.img: an agent's name has small letters"),
        ("image = 'my.img'", 1, "image 'my.img' is no absolute path, name or URL of one"),
        ("image = 'debain-13'", 1, r"image 'debain-13' is no .* \(did you mean debian-13\?\)"),
        ("cpus = 1\nimage = '/etc/passwd'", 2, "the image /etc/passwd is no disk that can boot"),
        ("upstream-ca = 'ca.pem'", 1, "upstream-ca 'ca.pem' is no absolute path"),
        ("upstream-ca = '/no/ca.pem'", 1, "upstream-ca '/no/ca.pem' does not exist"),
        ("upstream-proxy = 'http://a:b@c'", 1, "upstream-proxy has a password in it"),
        ("upstream-proxy = 'socks://c'", 1, "upstream-proxy: only a proxy with http://"),
        ("cpus = 1\ncpus = 2", 2, "Cannot overwrite a value"),
        ("cpus = 1\n\nmemory 8G\n", 3, "Expected '=' after a key"),
        ("cpus = 1\nhide = [\n\n'x',\n", 2, "value without end"),
        ("cpus = 1\nhide = " + "[" * 9999, 2, "maximum recursion depth"),
        ("\ncpus = " + "1" * 9999, 2, "Exceeds the limit"),
        (b"\n# \xff", 2, "not UTF-8"),
        (b"\xef\xbb\xbfcpus = 1\r\nhide = [\r\n]\r\ncpu = 2\r\n", 4, "unknown key 'cpu'"),
    ],
)
def test_an_error_names_the_line_and_what_to_do(
    state: State, text: str | bytes, line: int, said: str
) -> None:
    write(state, text)
    with pytest.raises(UserError) as error:
        config_file.read(state)
    assert re.match(rf"{re.escape(state.config)}:{line}: {said}", str(error.value)), error.value
    assert error.value.hint and error.value.code == Exit.USAGE


# What counts before what


def start(state: State, monkeypatch: pytest.MonkeyPatch, **given: Any) -> driver.UpArguments:
    """Begin a start, save what one that succeeds saves, and return its arguments."""
    arguments = driver.up_arguments(state, given)
    states.create(state)
    authority = driver._authority(arguments) if not arguments.upstream_ca else b"x"
    driver._remember(state, arguments, authority)
    company_proxy.prepare(state, arguments.upstream_proxy)
    settings.save(state, arguments.settings, arguments.remembered, arguments.file_keys)
    return arguments


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(company_proxy, "_use_for_downloads", lambda _: None)


def test_the_command_line_counts_before_the_file_and_that_before_what_is_remembered(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    start(state, monkeypatch, memory=1024, cpus=1)
    write(state, "memory = '2G'\ngit = 'readonly'")
    of_file = start(state, monkeypatch).settings
    assert (of_file.memory, of_file.cpus, of_file.git) == (2048, 1, "readonly")
    assert settings.load(state) == of_file  # what `vm status` shows
    assert start(state, monkeypatch, memory=3072).settings.memory == 3072
    assert start(state, monkeypatch).settings.memory == 2048
    write(state, "")
    without = start(state, monkeypatch).settings
    assert (without.memory, without.cpus, without.git) == (3072, 1, None)


def test_lists_add_up_and_a_name_that_leaves_the_file_is_gone(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    start(state, monkeypatch, hide=("a",), publish=("1",))
    write(state, "hide = ['b']\npublish = [2, '1:9']")
    both = start(state, monkeypatch, hide=("c",), publish=("2:7",)).settings
    assert (both.hide, both.publish) == (("a", "b", "c"), ("1:9", "2:7"))
    assert start(state, monkeypatch, hide=("", "d")).settings.hide == ("d",)
    assert start(state, monkeypatch).settings.hide == ("d", "b")
    write(state, "")
    assert start(state, monkeypatch).settings.hide == ("d",)


def test_a_contradiction_to_what_is_remembered_names_the_line(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    start(state, monkeypatch, hide=("*.env",), git="private")
    write(state, "cpus = 1\nguard = 'host'\n\nshow = ['a.env']")
    with pytest.raises(UserError, match=r"toml:2: guard host and git private exclude"):
        driver.up_arguments(state, {"hide": ("",)})
    with pytest.raises(UserError, match=r"toml:4: show a.env, .*; gitguard vm up --hide ''"):
        driver.up_arguments(state, {"git": "deny"})
    assert "toml:2: guard host and" in str(run(config.config, state, "show").exception)
    own = start(state, monkeypatch, hide=("",), git="deny").settings
    assert (own.hide, own.show, own.guard) == ((), ("a.env",), "host")


def test_a_name_to_hide_of_the_command_line_counts_before_one_to_show_of_the_file(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    start(state, monkeypatch, hide=("a.env",))
    write(state, "show = ['a.env', 'b.env']")
    own = start(state, monkeypatch).settings
    assert (own.hide, own.show) == ((), ("a.env", "b.env"))
    own = start(state, monkeypatch, hide=("b.env",)).settings
    assert (own.hide, own.show) == (("b.env",), ("a.env",))


def test_a_file_that_names_the_image_names_it_for_the_disk_that_was_made(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_proxy: None
) -> None:
    write(state, "image = '~/my.img'")
    arguments = driver.up_arguments(state, {})
    states.create(state)
    driver._remember(state, arguments, None)
    assert settings.load(state).image == "debian-13"  # not found yet
    settings.save_image(state, arguments.settings.image)
    write(state, "")
    assert driver.up_arguments(state, {}).settings.image == str(tmp_path / "my.img")


def test_a_start_that_fails_saves_what_protects_by_the_file_and_no_size(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(state, "memory = '900G'\nhide = ['.env']\npublish = [1]")
    states.create(state)
    driver._remember(state, driver.up_arguments(state, {}), None)
    saved = settings.load_saved(state)
    assert (saved.settings.memory, saved.settings.publish) == (8192, ())
    assert (saved.settings.hide, saved.remembered.hide) == ((".env",), ())


def allowed(state: State) -> set[str]:
    return {rule.line for rule in Allowlist.parse(files.read_allowlist(state.files)).rules}


def test_what_leaves_the_file_is_no_longer_allowed(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    start(state, monkeypatch, allow=("GET https://own.test/1", "go"))
    before, text = allowed(state), state.files.allowlist.read_text()
    write(state, "allow = ['npm', 'GET https://file.test/x', 'GET https://own.test/1']")
    start(state, monkeypatch)
    assert {"GET https://file.test/x", "GET https://registry.npmjs.org/*"} <= allowed(state)
    assert state.files.allowlist.read_text().startswith(text)
    files.allow(state.files.directory, "GET https://own.test/2")
    files.create_files(state.files.directory)  # as the proxy does
    start(state, monkeypatch)
    assert "GET https://file.test/x" in allowed(state)
    assert state.files.allowlist.read_text().count("https://file.test/x") == 1
    write(state, "")
    start(state, monkeypatch)
    assert allowed(state) == before | {"GET https://own.test/2"}


def test_a_block_without_its_end_takes_no_line_of_the_users(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    write(state, "allow = ['GET https://file.test/x']")
    start(state, monkeypatch)
    path = state.files.allowlist
    path.write_text(path.read_text().replace(files._CONFIG.end, "GET https://own.test/1"))
    for _ in range(2):
        start(state, monkeypatch)
    write(state, "")
    start(state, monkeypatch)
    assert {"GET https://own.test/1", "GET https://file.test/x"} <= allowed(state)
    assert "gitguard.toml" not in path.read_text()


def test_a_company_that_leaves_the_file_is_forgotten(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    proxy, authority = state.files.upstream_proxy, state.files.upstream_ca
    write(state, "upstream-proxy = 'proxy.test'\nupstream-ca = '~/ca.pem'")
    assert start(state, monkeypatch).upstream_proxy == "http://proxy.test:80"
    assert start(state, monkeypatch).upstream_proxy is None  # asks for no password again
    assert proxy.read_text() == "http://proxy.test:80\n" and authority.exists()
    write(state, "")
    start(state, monkeypatch)
    assert not proxy.exists() and not authority.exists()
    start(state, monkeypatch, upstream_proxy="http://own.test")
    start(state, monkeypatch)
    assert proxy.read_text() == "http://own.test:80\n"


# Never from the project


def test_no_file_is_read_or_edited_that_the_agent_can_write(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "project/gitguard.toml"
    own.write_text("cpus = 99")
    assert config_file.read(state).values == {}
    assert f"{own} is not read: the agent could change it" in config_file.not_read(state)
    Path(state.config).parent.mkdir(parents=True)
    Path(state.config).symlink_to(own)
    refused = "lies in the project, where the agent could change"
    with pytest.raises(UserError, match=refused):
        config_file.read(state)
    monkeypatch.setenv("EDITOR", f"touch {tmp_path}/ran")
    assert refused in str(run(config.config, state, "edit").exception)
    assert not (tmp_path / "ran").exists()


def test_no_project_holds_the_files_of_any_project(state: State, tmp_path: Path) -> None:
    for where in ("config", "config/gitguardfs/projects/x"):
        with pytest.raises(UserError, match=r"gitguard.toml would lie .* another XDG_CONFIG_HOME"):
            states.state_of(str(tmp_path / where))


# Commands


def run(command: click.Command, state: State, *words: str) -> Any:
    return CliRunner().invoke(command, [*words, "--project", state.project], standalone_mode=False)


def test_up_starts_with_the_file(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[driver.UpArguments] = []
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(trust, "line", lambda: None)
    monkeypatch.setattr(driver, "up", lambda _, arguments: seen.append(arguments) or 0)
    write(state, "cpus = 3\nlocal = []\nhide = ['b']\nallow = ['npm']\nhardened = true")
    words = ("--hide", "c", "--allow", "GET https://a.test/%7Ex", "--memory", "2G", "--no-hardened")
    for given in ((), words):
        assert run(up_command.up, state, *given).exception is None
    first, second = (arguments.settings for arguments in seen)
    assert (first.cpus, first.local, first.hide, first.hardened) == (3, (), ("b",), True)
    assert (second.memory, second.hide, second.hardened) == (2048, ("b", "c"), False)
    assert [arguments.allow for arguments in seen] == [(), ("GET https://a.test/~x",)]
    assert {arguments.file_allow for arguments in seen} == {("npm",)}
    assert run(up_command.up, state, "--upstream-proxy", "").exception is None
    assert seen[2].upstream_proxy == ""
    refused = run(up_command.up, state, "--allow", "npn").exception
    assert isinstance(refused, UserError) and "did you mean npm?" in str(refused)


def test_up_below_a_directory_with_a_file_shares_that_directory(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = Path(state.project) / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    assert states.find(None).project == str(below)
    write(state, "")
    assert states.find(None).project == state.project


def test_show_says_where_each_value_is_from(
    state: State, monkeypatch: pytest.MonkeyPatch, no_proxy: None
) -> None:
    nothing = run(config.config, state, "show").output
    assert f"{state.config} does not exist; gitguard vm config edit makes it" in nothing
    start(state, monkeypatch, memory=1536, hide=("a",), upstream_proxy="http://own.test")
    write(state, "cpus = 3\nhide = ['b \"']\nallow = ['npm']")
    said = run(config.config, state, "show").output
    rows = dict(re.findall(r"(?m)^(\S+) = .*  # (.*)$", said))
    assert rows == {
        **dict.fromkeys(("image", "guard", "git", "local", "hardened", "publish"), "default"),
        **dict.fromkeys(("git-name", "git-email", "hide-secrets", "show", "share"), "default"),
        "package": "default",
        "watch": "default",
        "agent": "default",
        "memory": "remembered", "cpus": "line 1", "hide": "line 2 and remembered",
        "allow": "line 3", "upstream-proxy": "remembered",
    }  # fmt: skip
    values = tomllib.loads(said)
    assert values["memory"] == "1536M" and values["hide"] == ["a", 'b "']
    write(state, said)  # it is what the file could have
    assert config_file.read(state).values["memory"] == 1536


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin/my editor"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\npwd >{tmp_path}/where\nprintf %s "$1" >>"$2"\n')
    path.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    return path


def test_edit_makes_the_file_and_checks_it(
    state: State, editor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(state.project)
    monkeypatch.setenv("EDITOR", f"'{editor}' 'cpus = 2'")
    assert run(config.config, state, "edit").exception is None
    text = Path(state.config).read_text()
    assert all(f"\n#{option.line}\n" in text for option in UP_OPTIONS)
    assert tomllib.loads(text) == {"cpus": 2}
    assert (tmp_path / "where").read_text().strip() == os.path.dirname(state.config)
    monkeypatch.setenv("VISUAL", f"'{editor}' '\nmem = 1'")
    error = run(config.config, state, "edit").exception
    assert f"{state.config}:{text.count(chr(10)) + 2}: unknown key 'mem'" in str(error)


def test_the_examples_of_a_new_file_can_be_used(state: State, tmp_path: Path) -> None:
    (tmp_path / "my-image.qcow2").write_bytes(BOOTS)
    (tmp_path / "company-ca.pem").touch()
    text = config_file.new_content(state)
    write(state, re.sub(r"(?m)^#(?! )", "", text))
    assert len(config_file.read(state).values) == len(UP_OPTIONS)


@pytest.mark.parametrize(
    ("value", "said"),
    [("{project}/vi", "lies in the project"), ("no-such-editor", "not installed"),
     ("'", r"\$EDITOR is not a command"), ("false", "false ended with status 1")],
)  # fmt: skip
def test_an_editor_that_cannot_be_run_is_said(
    state: State, editor: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    (Path(state.project) / "vi").symlink_to(editor)
    monkeypatch.setenv("EDITOR", value.format(project=state.project))
    error = run(config.config, state, "edit").exception
    assert isinstance(error, UserError) and re.search(said, str(error))


def test_reset_keeps_the_file(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    write(state, "cpus = 2")
    states.create(state)
    states.remove(state)
    assert Path(state.config).read_text() == "cpus = 2"
    assert "config" in group.command.commands
