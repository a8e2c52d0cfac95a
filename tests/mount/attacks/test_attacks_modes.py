"""The other verdicts: --git=readonly and hide, and --deny, --protect and --hide by name."""

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gitguardfs.doctor.attacks import ACTORS, READING_A_FILE
from tests.support.attacks import ALL
from tests.support.repos import REPOSITORIES, SECRET, as_host, metadata
from tests.support.siege import Siege, act

CHANGING = [attack for attack in ALL if not attack.reads and attack.row != "U3"]
# A hidden .git cannot be opened at all: no preparation of M2, nor of two links.
MISSING = [
    attack
    for attack in ALL
    if attack.row not in {"M2", "U2", "U3", "S1"}
    and (attack.row, attack.words[0][:5]) not in {("L1", "link-")}
]


def _git_log(directory: Path) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        ["git", "log", "--oneline"],
        cwd=directory,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


# ---------------------------------------------------------------------------- --git=readonly


def test_readonly_lets_the_agent_read(field: Siege) -> None:
    project = field.project()
    view = field.through_guard(project, "--git=readonly")
    before = metadata(project)
    assert "first" in act("agent", _git_log, view)
    assert "first" in act("agent", _git_log, view / "nested")
    assert "first" in act("agent", _git_log, view / "linked")
    assert SECRET.encode() in act("agent", (view / ".git/config").read_bytes)
    assert metadata(project) == before


@pytest.mark.parametrize("actor", ACTORS)
def test_readonly_lets_nothing_change(field: Siege, actor: str) -> None:
    """The agent owns what it sees here, so that the kernel refuses nothing on its own."""
    field.check_refused(CHANGING, actor, "--git=readonly")


# -------------------------------------------------------------------------------- --git=hide


@pytest.mark.parametrize("actor", ACTORS)
def test_hide_leaves_nothing_to_see(field: Siege, actor: str) -> None:
    project = field.project()
    view = field.through_guard(project, "--git=hide")
    for name in REPOSITORIES:
        assert ".git" not in act(actor, os.listdir, view / name)
        for path in (view / name / ".git", view / name / ".git/config"):
            with pytest.raises(FileNotFoundError):
                act(actor, os.lstat, path)


@pytest.mark.parametrize("actor", ACTORS)
def test_hide_refuses_what_deny_refuses(field: Siege, actor: str) -> None:
    field.check_refused(MISSING, actor, "--git=hide", also=(errno.ENOENT,))


def _make(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("actor", ["agent", "root"])
def test_hide_does_not_let_a_hidden_git_be_made_anew(field: Siege, actor: str) -> None:
    """It is there and cannot be seen: neither made again nor shown to exist."""
    project = field.project()
    view = field.through_guard(project, "--git=hide")
    for place in ("", "src"):
        with pytest.raises(OSError) as refused:
            act(actor, _make, view / place / ".git")
        assert refused.value.errno == errno.EACCES


# ------------------------------------------------------------------------------- --git=private


def _private(field: Siege) -> tuple[str, ...]:
    return "--git=private", f"--private-store={field.place}/store"


@pytest.mark.parametrize("actor", ACTORS)
def test_private_refuses_what_deny_refuses(field: Siege, actor: str) -> None:
    """A file in the place of .git: what is sought below it is not there."""
    attacks = [a for a in ALL if a.words not in READING_A_FILE and a.row != "U3"]
    also = (errno.ENOTDIR, errno.ENOENT, errno.EINVAL)  # EINVAL: readlink
    field.check_refused(attacks, actor, *_private(field), also=also)


@pytest.mark.parametrize("actor", ACTORS)
def test_private_shows_nothing_of_the_hosts(field: Siege, actor: str) -> None:
    view = field.through_guard(field.project(), *_private(field))
    for name in (".git", "split/.git"):
        text = act(actor, (view / name).read_bytes)
        assert text.startswith(b"gitdir: " + os.fsencode(field.place / "store")), text


# --------------------------------------------------------------- --deny, --protect and --hide

RULES = ("--deny=.env", "--deny=*.pem", "--protect=.husky", "--protect=Makefile", "--hide=secret*")


Steps = Callable[[Path], dict[str, Callable[[], object]]]


def _ruled_project(field: Siege) -> Path:
    project = field.project()
    with as_host():
        for name in ("src/.env", "key.PEM", "Makefile", "secrets.txt", ".husky/hook"):
            (project / name).parent.mkdir(exist_ok=True)
            (project / name).write_text(f"{SECRET}\n")
        (project / "src/secret.d").mkdir()
        (project / "src/secret.d/inner").write_text(f"{SECRET}\n")
    return project


def _steps(view: Path) -> dict[str, Callable[[], object]]:
    """Return all steps that the rules above have to refuse, by name."""

    def write(name: str) -> Callable[[], object]:
        return lambda: (view / name).write_text("x")

    def move(old: str, new: str) -> Callable[[], object]:
        return lambda: (view / old).rename(view / new)

    return {
        "read denied": (view / "src/.env").read_bytes,
        "read denied, other case": (view / "key.PEM").read_bytes,
        "write denied": write("src/.env"),
        "move denied": move("key.PEM", "key"),
        "become denied": move("README.md", "README.Pem"),
        "create denied": write("src/new.pem"),
        "create denied, other case": write(".ENV"),
        "remove denied": (view / "src/.env").unlink,
        "write protected": write("Makefile"),
        "write below protected": write(".husky/hook"),
        "create below protected": write(".husky/new"),
        "move protected": move("Makefile", "Makefile.old"),
        "move over protected": move("README.md", "Makefile"),
        "move into protected": move("README.md", ".husky/README.md"),
        "move out of protected": move(".husky/hook", "hook"),
        "move protected directory": move(".husky", "husky"),
        "remove protected": (view / "Makefile").unlink,
        "remove below protected": (view / ".husky/hook").unlink,
        "link protected": lambda: (view / "linked.mk").hardlink_to(view / "Makefile"),
        "create protected": write("src/makefile"),
        "become protected": move("README.md", "src/MakeFile"),
        "make protected directory": (view / "src/.Husky").mkdir,
        "create hidden": write("secret.new"),
        "create hidden, other case": write("SECRET"),
        "become hidden": move("README.md", "secretly"),
        "replace hidden": write("secrets.txt"),
    }


def _gone(view: Path) -> dict[str, Callable[[], object]]:
    return {
        "see hidden": lambda: os.lstat(view / "secrets.txt"),
        "read hidden": (view / "src/secret.d/inner").read_bytes,
        "list hidden": lambda: os.listdir(view / "src/secret.d"),
        "move hidden": lambda: (view / "secrets.txt").rename(view / "plain.txt"),
        "remove hidden": (view / "secrets.txt").unlink,
    }


def _outcomes(steps: Steps, view: Path) -> dict[str, int]:
    outcomes: dict[str, int] = {}
    for name, step in steps(view).items():
        try:
            step()
        except OSError as error:
            outcomes[name] = error.errno or 0
        else:
            outcomes[name] = 0
    return outcomes


def _tree(project: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(project)): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("actor", ACTORS)
def test_rules_by_name(field: Siege, actor: str) -> None:
    project = _ruled_project(field)
    before = _tree(project)
    view = field.through_guard(project, *RULES)
    outcomes = act(actor, _outcomes, _steps, view)
    assert {name: number for name, number in outcomes.items() if number != errno.EACCES} == {}
    outcomes = act(actor, _outcomes, _gone, view)
    assert {name: number for name, number in outcomes.items() if number != errno.ENOENT} == {}
    assert _tree(project) == before


def test_rules_by_name_are_real(field: Siege) -> None:
    """Without the rules all steps succeed, except for names that earlier steps removed."""
    project = _ruled_project(field)
    view = field.through_guard(project)
    for steps in (_steps, _gone):
        outcomes = act("agent", _outcomes, steps, view)
        assert set(outcomes.values()) <= {0, errno.ENOENT}


def test_rules_by_name_show_what_they_should(field: Siege) -> None:
    project = _ruled_project(field)
    view = field.through_guard(project, *RULES)
    for name in ("src/.env", "key.PEM"):
        state = os.lstat(view / name)
        assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (0, 0, 0)
        assert Path(name).name in os.listdir((view / name).parent)
    assert act("agent", (view / "Makefile").read_text) == f"{SECRET}\n"
    assert act("agent", (view / ".husky/hook").read_text) == f"{SECRET}\n"
    assert act("agent", os.listdir, view / ".husky") == ["hook"]
    assert not {"secrets.txt", "secret.d"} & {*os.listdir(view), *os.listdir(view / "src")}
