"""Names of secrets that are hidden from the agent by default, and what the user is told of them."""

import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gitguardfs.base import git, secret_names
from gitguardfs.base.errors import UserError
from gitguardfs.host.audit import trust
from gitguardfs.host.commands.vm import up as up_command
from gitguardfs.host.vm import (
    driver,
    exposed_files,
    guest_files,
    settings,
    status_text,
    tracked_files,
)
from gitguardfs.host.vm import state as states
from gitguardfs.host.vm.driver import UpArguments
from gitguardfs.host.vm.settings import Settings
from gitguardfs.host.vm.state import State
from gitguardfs.host.vm.status import facts


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setattr(states, "SOCKET_PATH_BYTES", 200)
    (tmp_path / "project").mkdir()
    return states.state_of(str(tmp_path / "project"))


@pytest.fixture
def project(state: State) -> Path:
    return Path(state.project)


@pytest.fixture
def up(state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return a `vm up` that makes settings and disk of a VM, and what it says."""
    made: list[Settings] = []

    def start(state: State, arguments: UpArguments) -> int:
        states.create(state)
        settings.save(state, arguments.settings)
        Path(state.disk).touch()
        made.append(arguments.settings)
        return 0

    def run(*words: str) -> tuple[Settings, str]:
        words = ("--project", state.project, *words)
        done = CliRunner().invoke(up_command.up, words, standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return made[-1], done.stderr

    monkeypatch.setattr(trust, "line", lambda: None)
    monkeypatch.setattr(driver, "refuse_root", lambda: None)
    monkeypatch.setattr(driver, "up", start)
    yield run


def put(project: Path, *paths: str, tracked: bool = False) -> None:
    for path in paths:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).touch()
    if tracked:
        if not (project / ".git").exists():
            subprocess.run(["git", "init", "-q", project], check=True)
        subprocess.run(["git", "-C", project, "add", "-f", *paths], check=True)


def test_a_new_vm_hides_secrets_and_says_what_and_how_to_show_them(up, project: Path) -> None:
    put(project, ".env", "src/.ENV.local", "a/id_rsa", ".env.example", "cert.pem", "main.py")
    own, said = up()
    assert (own.hide_secrets, own.hide, own.show) == (True, (), ())
    hidden = said[said.index("hidden from the agent: environment files and keys") :]
    assert "\n  .env\n  a/id_rsa\n  src/.ENV.local\nto show a name" in hidden
    assert hidden.endswith("gitguard vm up --show .env\n")
    assert ".env.example" not in said
    # Others are warned of as ever.
    assert said.startswith("warning: the agent can read\n  cert.pem\nto hide them:\n")
    own, said = up("--hide", "*.pem")
    assert said == ""


def test_a_project_without_secrets_is_told_too(up) -> None:
    _, said = up()
    assert said.count("\n") == 2
    assert said.endswith("gitguard vm up --show .env\n")


def test_who_shows_a_name_is_not_told_how(up, project: Path) -> None:
    put(project, ".env")
    _, said = up("--show", ".env")
    assert "--show" not in said and "the agent can read" in said


def test_what_git_tracks_is_shown_and_warned_of(up, project: Path) -> None:
    """Otherwise the agent's git shows it as deleted, and `commit -a` deletes it."""
    put(project, "conf/dev.env", "x[1].env", tracked=True)
    put(project / "nested/repo", ".env.ci", tracked=True)
    put(project, ".env")
    own, said = up()
    assert own.hide_secrets
    assert own.show == (".env.ci", "dev.env", "x[[]1].env")
    warning, _, hidden = said.partition("hidden from the agent")
    assert "  conf/dev.env\n  nested/repo/.env.ci\n  x[1].env\ngit tracks some" in warning
    assert "--hide" in warning
    assert "\n  .env\nto show" in hidden
    assert not any(map(own.hides, ("dev.env", ".env.ci", "x[1].env")))
    assert own.hides("x1.env")
    again, said = up()
    assert again == own
    assert "hidden from the agent" not in said


def test_git_runs_no_program_of_a_repository(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does a git before 2.45, which fetches a missing object whatever it is told.

    A sparse index has it read a tree.
    """
    monkeypatch.delitem(git.ENVIRONMENT, "GIT_NO_LAZY_FETCH")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    program.chmod(0o755)
    put(project, "a/.env", "b/c", tracked=True)

    def of_git(*words: str) -> str:
        user = ("-c", "user.name=u", "-c", "user.email=u@h")
        return subprocess.check_output(["git", "-C", project, *user, *words], text=True)

    of_git("commit", "-q", "-m", "x")
    of_git("sparse-checkout", "init", "--cone", "--sparse-index")
    tree = of_git("rev-parse", "HEAD:b").strip()
    (project / ".git/objects" / tree[:2] / tree[2:]).unlink()
    for key, value in (
        ("core.repositoryFormatVersion", "1"), ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"), ("remote.origin.url", str(project)),
        ("remote.origin.uploadpack", str(program)), ("core.fsmonitor", str(program)),
    ):  # fmt: skip
        of_git("config", key, value)
    tracked_files.hidden(str(project), (), lambda name: name == ".env")
    assert not (tmp_path / "was-run").exists()


def test_a_git_that_waits_does_not_keep_the_start_waiting(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracked_files, "SECONDS", 0.3)
    monkeypatch.setattr(tracked_files, "MOST_SECONDS", 0.5)
    names = [str(project / f"{number}") for number in range(9)]
    for name in names:
        subprocess.run(["git", "init", "-q", name], check=True)
        os.mkfifo(f"{name}/.git/index")
    assert tracked_files.hidden(str(project), names, lambda _: True) == {}
    said = capsys.readouterr().err
    assert "Connection timed out" in said
    assert said.count("\n") <= 3


def test_a_project_inside_a_repository_has_its_tracked_names(up, project: Path) -> None:
    subprocess.run(["git", "init", "-q", project.parent], check=True)
    put(project, "dev.env")
    subprocess.run(["git", "-C", project, "add", "-f", "dev.env"], check=True)
    assert up()[0].show == ("dev.env",)


def test_what_the_user_hides_is_hidden_though_git_tracks_it(up, project: Path) -> None:
    put(project, ".env", tracked=True)
    own, said = up("--hide", ".env")
    assert (own.hide, own.show) == ((".env",), ())
    assert own.hides(".env")
    assert "warning" not in said


def test_later_the_user_alone_decides_what_is_shown(up, project: Path) -> None:
    """The agent's commits, which the user merges, can name any path."""
    put(project, ".env")
    up()
    put(project, "sub/.env", tracked=True)
    own, said = up()
    assert own.show == ()
    assert "takes these tracked files for deleted\n  sub/.env\nto show them:\n" in said
    assert said.endswith("gitguard vm up --show .env\n")
    own, said = up("--show", ".env")
    assert not own.hides(".env")
    assert "the agent can read\n  .env\n  sub/.env\ngit tracks some" in said


def test_git_that_fails_is_told_and_hides(up, project: Path) -> None:
    put(project, ".env", tracked=True)
    (project / ".git/index").write_bytes(b"damaged")
    own, said = up()
    assert own.show == ()
    assert "cannot ask git which files it tracks" in said


OF_OLDER_VERSIONS = {
    *("project", "image", "memory", "cpus", "guard", "git", "hide", "local", "hardened"),
    *("publish", "git_name", "git_email"),
}


def test_a_vm_that_exists_keeps_its_options_until_it_is_told(
    up, state: State, project: Path
) -> None:
    put(project, "dev.env", tracked=True)
    put(project, ".env")
    up()
    path = Path(state.path(settings.FILE))
    older = {name: value for name, value in json.loads(path.read_text()).items()
             if name in OF_OLDER_VERSIONS}  # fmt: skip
    path.write_text(json.dumps(older))
    own, said = up()
    assert (own.hide_secrets, own.show, own.share, own.agent) == (False, (), (), "none")
    assert own.package == ()
    assert not own.hides(".env")
    assert said.startswith("warning: the agent can read\n  .env\n  dev.env\n")
    assert "hidden from the agent" not in said
    own, said = up("--hide-secrets")
    assert (own.hide_secrets, own.show) == (True, ("dev.env",))
    assert "hidden from the agent" in said
    assert not up("--no-hide-secrets")[0].hides(".env")


def test_the_last_word_counts() -> None:
    old = Settings("/p", hide=("a.pem",), show=(".env",))
    new = settings.merged(old, {"hide": (".env",), "show": ("b.env", "a.pem")})
    assert (new.hide, new.show) == ((".env",), ("b.env", "a.pem"))
    assert settings.merged(new, {"show": ("",)}).show == ()
    with pytest.raises(UserError, match=r"--show a.env, but --hide hides that name: \*.env"):
        settings.merged(Settings("/p", hide=("*.env",)), {"show": ("a.env",)})
    with pytest.raises(UserError, match="--show"):
        settings.merged(old, {"hide": ("x",), "show": ("x",)})
    with pytest.raises(UserError, match="--show 'a/b'"):
        settings.merged(old, {"show": ("a/b",)})


def test_the_status_says_what_is_hidden(state: State) -> None:
    states.create(state)
    settings.save(state, Settings(state.project, show=("dev.env",)))
    said = status_text.text(facts(state), 1000)
    assert "environment files and keys hidden, but not dev.env" in said
    settings.save(state, Settings(state.project, hide_secrets=False))
    assert "environment files" not in status_text.text(facts(state), 1000)


def test_no_name_that_was_committed_acts_on_the_terminal() -> None:
    name = f".env.\x1b[2J{'x' * 200}"
    said = exposed_files.deleted_text({f"a/{name}": name})
    assert said.isascii() and "\x1b" not in said
    assert max(map(len, said.splitlines())) < 90


@pytest.mark.parametrize("name", [".env,x", ".env.\n", ".env.\udcff", "[a]*.env"])
def test_each_tracked_name_has_a_pattern_that_an_option_can_carry(name: str) -> None:
    pattern = exposed_files.exact(name)
    assert not Settings("/p", show=(pattern,)).hides(name)
    assert Settings("/p", show=(pattern,)).hides(".env")


# In the guest

EXPLAIN = """
set -o history
history() { printf '    7  %s\\n' "$LINE"; }
. "$SCRIPT"
(exit "$STATUS")
eval "$PROMPT_COMMAND"
echo "$?"
"""


def explained(own: Settings, view: Path, line: str, status: int = 1) -> str:
    (view.parent / "script").write_text(guest_files._hidden_names(own, str(view)))
    done = subprocess.run(
        ["bash", "-c", EXPLAIN],
        env={**os.environ, "LINE": line, "STATUS": str(status),
             "SCRIPT": str(view.parent / "script")},
        cwd=view, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"{status}\n"
    return done.stderr


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cp .env.example .env", ".env"),
        ("cp .env.example ./sub/.ENV.local", ".ENV.local"),
        ("cat >.env <<EOF", ".env"),
        ("cp 'x y' \"a.env\"; true", "a.env"),
        ("ssh-keygen -f id_rsa", "id_rsa"),
        ("cp a .env.example", ""),
        ("cp a shown.env", ""),
        ("cp a there.env", ""),
        ("cp a ../.env", ""),
        ("cp a nowhere/.env", ""),
        ("ls *", ""),
        ("", ""),
    ],
)
def test_a_shell_explains_why_a_hidden_name_cannot_be_made(
    project: Path, line: str, name: str
) -> None:
    put(project, "sub/x", "there.env")
    own = Settings(str(project), show=("shown.env",))
    said = explained(own, project, line)
    assert said.endswith(f"then: gitguard vm up --show {name}\n") if name else not said
    assert explained(own, project, line, status=0) == ""


def test_a_vm_without_hidden_secrets_explains_nothing(project: Path) -> None:
    own = Settings(str(project), hide_secrets=False)
    assert guest_files._hidden_names(own, "/v") == ""
    texts = {one.path: one.data.decode() for one in guest_files.files(own, {})}
    assert "--show" not in texts["/etc/gitguard-vm/AGENTS.md"]
    own = dataclasses.replace(own, hide_secrets=True)
    texts = {one.path: one.data.decode() for one in guest_files.files(own, {})}
    assert "gitguard vm up --show .env" in texts["/etc/gitguard-vm/AGENTS.md"]


def test_the_shell_reads_the_patterns_as_the_guard_does() -> None:
    names = (".env", ".env.example", "a.env.b", ".envrc", "id_ed25519_sk", "x.p12", "id_rsa.pub",
             "service-account-1.json", "env", ".netrc", "a.tfstate.dist", "token.txt")  # fmt: skip
    script = guest_files._hidden_names(Settings("/p"), "/p")
    test = f'{script}\nfor name in {shlex.join(names)}; do gitguard_hides "$name"; echo $?; done'
    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True)
    assert [one == "0" for one in done.stdout.split()] == list(map(secret_names.is_hidden, names))


def test_the_shells_part_passes_shellcheck(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("# shellcheck shell=bash\n" + guest_files._hidden_names(Settings("/p"), "/p"))
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert done.stdout == ""
