"""Agents: their files, what the guest and the allowlist get of them, and gitguard-agent itself."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gitguardfs.base import installation
from gitguardfs.base.errors import UserError
from gitguardfs.host.audit import trust
from gitguardfs.host.commands.vm import guest as guest_commands
from gitguardfs.host.commands.vm import up as up_command
from gitguardfs.host.credentials.presets import PRESETS as KEYS
from gitguardfs.host.credentials.secrets import Secret, new_placeholder
from gitguardfs.host.egress import files
from gitguardfs.host.egress.allowlist import CREATED_TEXT, Allowlist
from gitguardfs.host.egress.presets import PRESETS
from gitguardfs.host.vm import (
    agents,
    driver,
    forwarding,
    guest_files,
    keys,
    provision,
    ready,
    running,
    ssh,
)
from gitguardfs.host.vm import settings as vm_settings
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.agents import Agent
from gitguardfs.host.vm.ports import Port
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State

SETUP = Path(installation.script_directory())
PROGRAM = Path(agents.__file__).with_name("files") / "agent.py"
EACH = pytest.mark.parametrize("name", installation.AGENT_NAMES)


def of(name: str) -> Agent:
    found = agents.load(name, "/srv/project")
    assert found is not None
    return found


def hosts(text: str) -> set[str]:
    return {rule.host for rule in Allowlist.parse(text).rules}


# Files of ours


def test_each_agent_has_its_file() -> None:
    assert sorted(path.stem for path in (SETUP / "agents").iterdir()) == [*installation.AGENT_NAMES]


@EACH
def test_an_agent_reaches_its_model_and_can_have_a_key_for_it(name: str) -> None:
    agent = of(name)
    allowed = hosts("".join(PRESETS.get(one, one) for one in agent.allow))
    for key in agent.keys:
        assert {place.host for place in KEYS[key].places} <= allowed
    assert agent.keys


@EACH
def test_what_vm_apps_installs_it_from_is_allowed_while_it_is_set_up(name: str) -> None:
    install = of(name).install
    wanted = subprocess.run(
        [SETUP / "vm-apps.sh", "--hosts", "--only", install.needs, name],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert wanted
    assert set(wanted) <= hosts(CREATED_TEXT + "".join(PRESETS[one] for one in install.presets))


@EACH
def test_vm_apps_reads_a_file_as_we_do_and_what_a_guest_gets_of_it(
    name: str, tmp_path: Path
) -> None:
    install = of(name).install
    of_guest = tmp_path / f"{name}.toml"
    of_guest.write_text(install.text)
    for path in (SETUP / "agents" / f"{name}.toml", of_guest):
        script = (
            f". {SETUP}/vm-apps.sh; read_agent {path}; for key in about command needs packages"
            f' python; do echo "${{AGENT[{name}.$key]:-}}"; done'
        )
        said = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
        assert said.stdout.split("\n") == [
            install.about, install.command, install.needs, " ".join(install.packages),
            install.python, "",
        ]  # fmt: skip


# Files of the user's


def write(place: Path, text: str, name: str = "mine.toml") -> str:
    (place / name).write_text(text)
    return str(place / name)


OWN = """
command = "mine"
allow = ["anthropic", "POST https://Model.test/v1/*"]
rules = ".mine/AGENTS.md"
[environment]
MINE_URL = "https://model.test/v1"
"""


def test_a_user_can_write_one(tmp_path: Path) -> None:
    agent = agents.load(write(tmp_path, OWN), "/srv/project")
    assert agent is not None
    assert (agent.name, agent.install.about, agent.install.presets) == ("mine", "mine", ())
    assert agent.allow == ("anthropic", "POST https://model.test/v1/*")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no command"),
        ("command = 'a b'", "command cannot be 'a b'"),
        ("command = 1", "command must be a text"),
        ("comand = 'a'", r"unknown key 'comand' \(did you mean command\?\)"),
        ("command = 'a'\nneeds = 'ruby'", "needs cannot be 'ruby'"),
        ("command = 'a'\nneeds = 'node'", "needs and packages go together"),
        ("command = 'a'\npackages = ['a']", "needs and packages go together"),
        ("command = 'a'\nneeds = 'node'\npackages = ['--global']", "packages cannot be '--global'"),
        ("command = 'a'\nneeds = 'node'\npackages = ['a', 'git+ssh://x']", "packages cannot be"),
        ("command = 'a'\nneeds = 'node'\npackages = ['a']\npython = '3.12'", "goes with needs"),
        ("command = 'a'\nabout = 'a\"b'", "about cannot be"),
        ("command = 'a'\nallow = ['npn']", r"unknown preset 'npn' \(did you mean npm\?\)"),
        ("command = 'a'\nallow = ['GET x']", "not a line of an allowlist"),
        ("command = 'a'\nkeys = ['antropic']", r"unknown key 'antropic' \(did you mean anthropic"),
        ("command = 'a'\nlogin_port = '1'", "login_port must be a number"),
        ("command = 'a'\nlogin_port = 65536", "login_port must be a number"),
        ("command = 'a'\nrules = '/etc/x'", "'/etc/x' is no path below the home"),
        ("command = 'a'\n[files]\n'../x' = 'y'", "'../x' is no path below the home"),
        ("command = 'a'\n[files]\n'x' = 1", "files must be a table of texts"),
        ("command = 'a'\n[environment]\nPATH = '/tmp'", "environment 'PATH' cannot be"),
        ("command = 'a'\n[environment]\nhttp_proxy = 'x'", "environment 'http_proxy' cannot be"),
        ("command = 'a'\n[environment]\nA = 'x\"\\ny'", "cannot be there"),
        ("command = 'a'\n[environment]\nA = '$(id)'", "cannot be there"),
        ("command = 'a'\nx\n", r"Expected '=' .*line 2"),
        ("command = " + "[" * 9999, "maximum recursion depth"),
        ("command = " + "1" * 9999, "Exceeds the limit"),
    ],
)
def test_a_mistake_names_the_file_and_what_helps(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as error:
        agents.load(path, "/srv/project")
    assert str(error.value).startswith(f"{path}: ")
    assert re.search(said, str(error.value)), str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "[environment]\nANTHROPIC_API_KEY = 'x'",
        "[environment]\nMY_KEY = 'sk-ant-api03-abcdefghijk'",
        "[files]\n'.mine.json' = '{\"apiKey\":\"ghp_0123456789abcdef\"}'",
        "prepare = 'MINE=sk-0123456789 mine login'",
    ],
)
def test_no_key_gets_into_the_guest_by_such_a_file(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, f"command = 'a'\n{text}")
    with pytest.raises(UserError, match=r"goes into the guest.*vm secret set"):
        agents.load(path, "/srv/project")


def test_a_file_that_the_agent_could_change_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, OWN)
    link = tmp_path.parent / f"{tmp_path.name}.toml"
    link.symlink_to(path)
    for each in (path, str(link)):
        with pytest.raises(UserError, match="lies in the project, where the agent could change it"):
            agents.load(each, str(tmp_path))
    with pytest.raises(UserError, match="lies in the share"):
        agents.of(Settings("/srv/project", agent=path, share=(str(tmp_path),)))
    assert agents.of(Settings("/srv/project", agent=path, share=(f"{tmp_path}:ro",)))
    with pytest.raises(UserError, match="is gone"):
        agents.load(str(tmp_path / "none.toml"), "/srv/project")


def test_a_word_of_the_command_line_is_a_name_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert agents.resolved("none") == "none" and agents.resolved("codex") == "codex"
    assert agents.resolved("mine.toml" if write(tmp_path, OWN) else "") == str(
        tmp_path / "mine.toml"
    )
    with pytest.raises(UserError, match=r"unknown agent 'cluade' \(did you mean claude\?\)"):
        agents.resolved("cluade")


# The allowlist


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    (tmp_path / "project").mkdir()
    made = states.state_of(str(tmp_path / "project"))
    states.create(made)
    return made


def start(state: State, agent: str) -> set[str]:
    """Begin a start; return the lines that are allowed then."""
    driver._remember(state, driver.up_arguments(state, {"agent": agent}), None)
    return {rule.line for rule in Allowlist.parse(files.read_allowlist(state.files)).rules}


def lines(*presets: str) -> set[str]:
    return {rule.line for rule in Allowlist.parse("".join(PRESETS[p] for p in presets)).rules}


def test_an_agents_lines_come_and_go_with_it(
    state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    files.create_files(state.files.directory, ["go", "GET https://own.test/1"])
    own = start(state, "none")
    assert "no model" not in capsys.readouterr().err
    assert start(state, "claude") == own | lines("anthropic")
    assert start(state, "codex") == own | lines("openai")
    files.create_files(state.files.directory)  # as the proxy does
    files.allow(state.files.directory, "GET https://own.test/2")
    assert start(state, "none") == own | {"GET https://own.test/2"}
    assert vm_settings.load(state).agent == "none"


def test_the_lines_of_an_agent_are_no_choice_of_the_users(state: State) -> None:
    """Else a first start that fails would leave a VM for an agent that gitguard.toml names."""
    files.create_files(state.files.directory, (), ["go"], ["anthropic"])
    text = state.files.allowlist.read_text()
    assert len(text) > len(CREATED_TEXT) and files.without_blocks(text) == CREATED_TEXT


def test_a_vm_that_has_no_agent_yet_may_fetch_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new VM has it from its ready disk, and needs no registry for it."""
    npm = lines("npm", "node")
    assert not start(state, "claude") & npm
    Path(state.disk).touch()
    below = {"agent": of("codex").install.text}
    monkeypatch.setattr(ready, "_below", lambda _: type("Ready", (), below))
    assert npm <= start(state, "claude")
    assert not start(state, "codex") & npm


# What the guest gets


def guest(agent: str, *secrets: Secret) -> dict[str, str]:
    found = provision.guest_files(Settings("/srv/hello", agent=agent), CA, secrets)
    return {file.path: str(file.content) for file in found}


CA = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def test_the_guest_gets_settings_and_placeholders_and_no_key() -> None:
    preset = KEYS["anthropic"]
    secret = Secret(
        preset.variable, new_placeholder(preset.variable), preset.places, "", "anthropic"
    )
    found = guest("claude", secret)
    assert 'DISABLE_AUTOUPDATER="1"\n' in found["/etc/environment"]
    assert f'ANTHROPIC_API_KEY="{secret.placeholder}"\n' in found["/etc/environment"]
    config = json.loads(found[agents.CONFIG])
    assert config["steps"] == ["node", "claude"] and config["variables"] == [preset.variable]
    assert config["project"] == "/home/agent/projects/hello"
    assert "AGENT_PACKAGES=(libatomic1 xz-utils)\n" in found[guest_files.CONFIG]
    nobody = guest("none", secret)
    assert not {agents.CONFIG, agents.PROGRAM} & set(nobody)
    assert "AGENT_PACKAGES=()\n" in nobody[guest_files.CONFIG]


def test_a_ready_disk_is_another_for_what_is_installed_only(tmp_path: Path) -> None:
    packed = []
    for text in ("needs = 'node'\npackages = ['a']", "needs = 'node'\npackages = ['b']", ""):
        for url in ("1", "2"):
            own = OWN.replace("\nallow", f"\n{text}\nallow").replace("/v1", f"/{url}")
            agent = agents.load(write(tmp_path, own), "/srv/project")
            assert agent is not None
            packed.append(provision.shared_content(agent.for_ready_disk)["files"])
    assert packed[::2] == packed[1::2] and len({*packed}) == 3
    assert packed[-1] == provision.shared_content()["files"]
    assert not any(part in each for each in packed for part in (b"model.test", b"MINE_URL"))


def test_a_session_begins_with_the_agents_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = ssh.SshGuest(keys.Keys("/k"), 1, "/home/agent/projects/hello")
    monkeypatch.setattr(ssh, "path_of", lambda name: name)
    with_shell = ssh.session(reached, (), True, keys.AGENT, agents.HELLO)[-1]
    assert "; /usr/local/bin/gitguard-agent hello; cd " in with_shell
    assert "gitguard-agent" not in ssh.session(reached, (), True, keys.AGENT)[-1]


# gitguard vm run


def run(state: State, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Any, list[Any]]:
    seen: list[Any] = []
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(trust, "line", lambda: None)
    monkeypatch.setattr(driver, "up", lambda _, arguments: seen.append(arguments) or 7)
    monkeypatch.setattr(subprocess, "call", lambda command: seen.append(command[-1]) or 8)
    done = CliRunner().invoke(
        guest_commands.run, ["--project", state.project, *words], standalone_mode=False
    )
    return done, seen


def test_run_starts_a_vm_that_does_not_run(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    done, (arguments,) = run(state, monkeypatch, "claude", "--", "-p", "say hello")
    assert done.return_value == 7
    assert arguments.words == (agents.PROGRAM, "run", "-p", "say hello")
    assert arguments.settings == Settings(state.project, agent="claude")
    assert arguments.allow == () and arguments.upstream_proxy is None


def test_run_in_a_vm_that_runs_is_for_its_own_agent(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running, "is_running", lambda _: True)
    reached = ssh.SshGuest(keys.Keys("/k"), 1, "/home/agent/projects/hello")
    monkeypatch.setattr(running, "guest", lambda _: reached)
    monkeypatch.setattr(ssh, "path_of", lambda name: name)
    own = write(tmp_path, OWN)
    vm_settings.save(state, Settings(state.project, agent=own))
    for word in (own, "mine"):
        done, seen = run(state, monkeypatch, word, "it's")
        assert done.return_value == 8
        assert seen[0].endswith("""gitguard-agent run 'it'"'"'s'""")
    done, seen = run(state, monkeypatch, "claude")
    assert "the running VM has the agent" in str(done.exception) and seen == []
    done, _ = run(state, monkeypatch, "none")
    assert "name an agent" in str(done.exception)


def test_a_login_by_the_browser_has_its_port_unless_there_is_a_key(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "is_running", lambda _: True)
    reached = ssh.SshGuest(keys.Keys("/k"), 1, "/home/agent/projects/hello")
    monkeypatch.setattr(running, "guest", lambda _: reached)
    monkeypatch.setattr(ssh, "path_of", lambda name: name)
    opened: list[Any] = []

    @contextmanager
    def for_login(_: State, __: ssh.SshGuest, wanted: Any) -> Iterator[None]:
        opened.extend(wanted)
        yield

    monkeypatch.setattr(forwarding, "for_login", for_login)
    vm_settings.save(state, Settings(state.project, agent="codex"))
    done, _ = run(state, monkeypatch, "codex", "--", "login")
    assert (done.return_value, opened) == (8, [Port(1455, 1455)])
    assert of("codex").login_ports(["OPENAI_API_KEY"]) == ()
    assert of("codex").login_ports(["ANTHROPIC_API_KEY"]) == (Port(1455, 1455),)
    assert of("claude").login_ports([]) == ()
    assert agents.is_run(agents.run_words(("login",))) and not agents.is_run(("codex", "login"))


def test_up_takes_a_file_relative_to_where_it_is_run(
    state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, OWN)
    seen: list[driver.UpArguments] = []
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(trust, "line", lambda: None)
    monkeypatch.setattr(driver, "up", lambda _, arguments: seen.append(arguments) or 0)
    words = ["--project", state.project, "--agent", "mine.toml"]
    done = CliRunner().invoke(up_command.up, words, standalone_mode=False)
    assert done.exception is None, done.exception
    assert seen[0].settings.agent == str(tmp_path / "mine.toml")


# gitguard-agent, in the guest


class Guest:
    """A home, and the program with a configuration of an agent that ``mine`` stands for."""

    def __init__(self, place: Path) -> None:
        self.home, self.bin = place / "home", place / "bin"
        self.config = place / "agent.json"
        self.home.mkdir()
        self.bin.mkdir()
        self.program = place / "gitguard-agent"
        text = PROGRAM.read_text().replace(agents.CONFIG, str(self.config))
        self.program.write_text(text)
        self.add("vm-apps", 'echo "vm-apps $*"')

    def add(self, name: str, code: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{code}\n")
        (self.bin / name).chmod(0o755)

    def give(self, agent: Agent) -> None:
        text, _ = agent.guest_files("/home/agent/projects/hello")[agents.CONFIG]
        self.config.write_text(text)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        return subprocess.run(
            [sys.executable, "-I", self.program, *words], capture_output=True, text=True,
            env={"HOME": str(self.home), "PATH": path, **variables}, input="typed",
        )  # fmt: skip

    def read(self, path: str) -> Any:
        return json.loads((self.home / path).read_text())


@pytest.fixture
def inside(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


PLACEHOLDER = new_placeholder("ANTHROPIC_API_KEY")


def test_the_first_prompt_says_how_it_starts_and_about_its_key(inside: Guest) -> None:
    inside.give(of("claude"))
    inside.add("claude", "exit 1")
    said = inside.run("hello").stderr.splitlines()
    assert "claude starts Claude Code" in said[0] and "gitguard vm run claude" in said[0]
    assert "gitguard vm secret set --preset anthropic" in said[1] and "/login" in said[2]
    with_key = inside.run("hello", ANTHROPIC_API_KEY=PLACEHOLDER)
    assert "ANTHROPIC_API_KEY, is a placeholder" in with_key.stderr
    assert len(with_key.stderr.splitlines()) == 2
    assert all(len(line) <= 100 for line in (*said, *with_key.stderr.splitlines()))


@pytest.mark.parametrize("name", ["codex", "opencode", "aider"])
def test_the_command_for_the_key_can_be_pasted(inside: Guest, name: str) -> None:
    inside.give(of(name))
    inside.add(name, "exit 1")
    said = inside.run("hello").stderr.splitlines()
    words = shlex.split(said[1].partition("On your machine: ")[2])
    assert words[:5] == ["gitguard", "vm", "secret", "set", "--preset"] and len(words) == 6
    assert all(len(line) <= 100 for line in said), said


def test_what_is_not_there_is_installed_first(inside: Guest) -> None:
    inside.give(of("claude"))
    failed = inside.run("run", "-p")
    assert failed.returncode == 1 and failed.stdout == ""
    assert "vm-apps -y --only node claude\n" in failed.stderr
    there = inside.home / ".local/bin/claude"
    inside.add(
        "vm-apps",
        f"mkdir -p {there.parent}; printf '#!/bin/sh\\necho \"claude $*\"; cat\\n' >{there};"
        f" chmod 755 {there}; cat",
    )
    done = inside.run("run", "-p", "a b")
    assert (done.returncode, done.stdout) == (0, "claude -p a b\ntyped")  # not read by vm-apps
    assert "installed now" not in inside.run("run").stderr


def test_settings_are_defaults_that_a_user_can_change(inside: Guest) -> None:
    inside.give(of("claude"))
    inside.add("claude", "exit")
    (inside.home / ".claude").mkdir()
    theirs = {"permissions": {"defaultMode": "plan", "allow": ["x"]}, "model": "opus"}
    (inside.home / ".claude/settings.json").write_text(json.dumps(theirs))
    assert inside.run("prepare").stderr == ""
    assert inside.read(".claude/settings.json") == {
        **theirs, "skipDangerousModePermissionPrompt": True
    }  # fmt: skip
    first = inside.read(".claude.json")
    assert first["customApiKeyResponses"] == {"approved": []}
    assert first["projects"] == {"/home/agent/projects/hello": {"hasTrustDialogAccepted": True}}
    inside.run("prepare", ANTHROPIC_API_KEY=PLACEHOLDER)
    assert inside.read(".claude.json")["customApiKeyResponses"] == {"approved": [PLACEHOLDER[-20:]]}
    (inside.home / ".claude.json").write_text("not JSON")
    assert inside.run("prepare").stderr == ""
    assert (inside.home / ".claude.json").read_text() == "not JSON"


def test_settings_that_are_no_json_are_written_once(inside: Guest) -> None:
    inside.give(of("codex"))
    inside.add("codex", "exit")
    inside.run("prepare")
    path = inside.home / ".codex/config.toml"
    table = tomllib.loads(path.read_text())
    assert table["sandbox_mode"] == "danger-full-access"
    assert table["projects"] == {"/home/agent/projects/hello": {"trust_level": "trusted"}}
    path.write_text("approval_policy = 'on-request'\n")
    inside.run("prepare")
    assert path.read_text() == "approval_policy = 'on-request'\n"


def test_codex_gets_the_placeholder_and_keeps_a_login(inside: Guest) -> None:
    inside.give(of("codex"))
    auth = inside.home / ".codex/auth.json"
    inside.add("codex", f'[ "$*" = "login --with-api-key" ] && cat >{auth} && echo >>{auth}.times')
    one, other = (new_placeholder("OPENAI_API_KEY") for _ in range(2))
    inside.run("prepare")
    assert not auth.exists()
    for placeholder in (one, one, other):
        inside.run("prepare", OPENAI_API_KEY=placeholder)
        assert auth.read_text() == f"{placeholder}\n"
    assert auth.with_name("auth.json.times").read_text() == "\n\n"  # not for the same one again
    auth.write_text('{"tokens": {"refresh_token": "of an account"}}')
    inside.run("prepare", OPENAI_API_KEY=one)
    assert "of an account" in auth.read_text()


@EACH
def test_settings_of_ours_are_well_formed(name: str, inside: Guest) -> None:
    agent = of(name)
    inside.give(agent)
    inside.add(agent.install.command, "exit")
    done = inside.run("prepare")
    assert (done.returncode, done.stderr) == (0, "")
    for path, _ in agent.files:
        text = (inside.home / path).read_text()
        assert "@" not in text and not text.startswith("\n")
        if path.endswith(".json"):
            json.loads(text)


def test_rules_are_put_where_a_users_agent_reads_them(inside: Guest, tmp_path: Path) -> None:
    agent = agents.load(write(tmp_path, OWN), "/srv/project")
    assert agent is not None
    inside.give(agent)
    inside.add("mine", "exit")
    for _ in range(2):
        assert inside.run("prepare").returncode == 0
    assert os.readlink(inside.home / ".mine/AGENTS.md") == "/etc/gitguard-vm/AGENTS.md"
    (inside.bin / "mine").unlink()
    assert "mine is not installed, and its file names no packages" in inside.run("hello").stderr
