"""Symlinks and secrets in the work tree, files that cannot be read; an audit runs nothing."""

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IFLNK
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base import walk
from gitguardfs.base.walk import TreeScan, Unread
from gitguardfs.host.audit import symlinks
from gitguardfs.host.audit.audit import Audit
from gitguardfs.host.audit.git_config import Git
from gitguardfs.host.audit.share import Share
from gitguardfs.names.rules import GuardRules, RuleSet
from tests.support import audit_world
from tests.support.audit_world import World, check_fixes

world = audit_world.fixture


# ------------------------------------------------------------ symlinks


def test_a_symlink_into_a_repository(world: World) -> None:
    (world.project / "link").symlink_to("sub/../.git/hooks")
    (world.project / "sub").mkdir()
    world.script(world.project / "link/post-commit")
    world.git("commit", "--allow-empty", "-qm", "x")
    assert world.has_run(), "what is written through it, git runs"
    check_fixes(world, "tree.symlink", "high", "project/link leads into a repository")
    assert (world.project / ".git/hooks/post-commit").exists()


def test_symlinks_out_of_the_share(world: World) -> None:
    (world.home / ".config").mkdir()
    (world.home / "notes").write_text("")
    (world.project / "dir").symlink_to(world.home / ".config")
    (world.project / "up").symlink_to("../../notes")
    (world.project / "later").symlink_to("/nowhere/at/all")
    (world.project / "dir/git").mkdir()
    (world.project / "dir/git/config").write_text("[core]\n\tpager = ./x\n")
    assert world.git("config", "core.pager").strip() == "./x", "git of the host obeys it"
    check_fixes(world, "tree.symlink", "medium", "project/dir leads out")
    check_fixes(world, "tree.symlink", "low", "project/up leads out")
    check_fixes(world, "tree.symlink", "low", "project/later leads out")


@pytest.mark.parametrize("where", ["home", "share"])
@pytest.mark.parametrize("form", ["directory", "bare", "missing"])
def test_a_symlink_into_a_repository_elsewhere(world: World, form: str, where: str) -> None:
    other = {"home": world.home, "share": world.share}[where] / "other"
    world.git("init", "-q", *(["--bare"] if form == "bare" else []), other)
    place = {"directory": ".git/hooks", "bare": "hooks", "missing": ".git/hooks/new/er"}[form]
    (world.project / "link").symlink_to(other / place)
    check_fixes(world, "tree.symlink", "high", f"into a repository, to {other / place}")


def test_symlinks_within_a_work_tree_are_free(world: World) -> None:
    (world.project / "a").symlink_to("file")
    (world.project / "b").symlink_to("../project/nothing")
    (world.project / "c").symlink_to(world.project)
    (world.project / "d").symlink_to("d")
    (world.project / "usr").symlink_to("/usr/bin/env")
    (world.share / "e").symlink_to("project/file")
    assert not [row for row in world.findings("tree.symlink") if "/usr/" not in row["detail"]]


@pytest.mark.parametrize("target", ["..", "../other", "../other/nothing", "sub/../../other"])
def test_a_symlink_to_a_sibling_is_free(world: World, target: str) -> None:
    world.git("init", "-q", "../other")
    (world.project / "sub").mkdir()
    (world.project / "link").symlink_to(target)
    assert not world.findings("tree.symlink")


def test_the_interpreter_of_a_virtual_environment_is_free(world: World) -> None:
    python = world.script(world.home / "uv/bin/python3.12")
    bin = world.project / ".venv/bin"
    bin.mkdir(parents=True)
    for name, text in (("python", python), ("python3", "python"), ("other", python)):
        (bin / name).symlink_to(text)
    assert len(world.findings("tree.symlink")) == 3, "nothing says that it is one"
    (world.project / ".venv/pyvenv.cfg").write_text("")
    (found,) = world.findings("tree.symlink")
    assert found["detail"].startswith(f"{bin}/other leads out of the share")
    python.unlink()
    python.mkdir()
    assert len(world.findings("tree.symlink")) == 3


def test_symlinks_that_were_made_through_a_view_lead_nowhere(world: World) -> None:
    for number, text in enumerate([str(world.home), "../../../..", "../.git/hooks"]):
        (world.project / f"neutral{number}").symlink_to(f"/.gitguardfs-guest/{text}")
    (world.project / "over").symlink_to("neutral0/x")
    (said,) = [row for row in world.audit() if row["id"] == "tree.symlink"]
    assert said["status"] == "note" and said["detail"].startswith("3 begin with")


@pytest.mark.parametrize("number", [30, 300])
def test_many_symlinks_are_one_finding(world: World, number: int) -> None:
    for one in range(number):
        (world.project / f"it's {one}").symlink_to(world.home)
    (found,) = world.findings("tree.symlink")
    assert f"{number} symlinks lead out of the share" in found["detail"]
    assert len(found["hint"]) < 4096
    audit_world.carry_out(world, audit_world.ways(found)[0][0])
    left = len(list(world.project.glob("it's*")))
    assert left == 0 if number == 30 else 200 < left < 290


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by one name for each call that asks for an entry by its path."""
    calls: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            calls.append(name)
            return call(*arguments, **more)

        return counting

    for name in ("readlink", "lstat"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return calls


def test_symlinks_deep_in_a_tree_cost_no_walk_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = world.project.joinpath(*["d"] * 900)
    deep.mkdir(parents=True)
    up = "../" * 901
    with opened(deep) as fd:
        for number in range(100):
            os.symlink(f"{up}../x", f"out{number}", dir_fd=fd)
            os.symlink(f"{deep}/out{number}", f"absolute{number}", dir_fd=fd)
            os.symlink("../" * 899 + "d" * 9, f"inside{number}", dir_fd=fd)
    calls = count_calls(monkeypatch)
    (found,) = world.findings("tree.symlink")
    assert found["detail"].startswith("200 symlinks lead out of the share to what does not exist")
    assert len(calls) < 300 + 500, "one for each symlink, and those for the repository"


# ------------------------------------------------------------ secrets

TOKEN = "ghp_" + "a" * 36
BODY = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n"
KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BODY}"
RSA = f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-1\n\n{BODY}"
PGP = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{BODY}"
ACCOUNT = json.dumps({"type": "service_account", "private_key": KEY})


@pytest.mark.parametrize(
    ("name", "text"),
    [(".env", "A=b\n"), (".env.production", "export A='b'"), (".envrc", "A=b"), ("id_ed25519", ""),
     (".netrc", ""), ("x.pem", KEY), ("server.key", KEY), (".npmrc", f"//r/:_authToken={TOKEN}"),
     (".pypirc", "password = longpassword"), ("config.json", f'{{"t": "{TOKEN}"}}'),
     ("credentials", "aws_secret_access_key = AAAAAAAAAAA"), ("store.p12", ""), (".ENV", "A=b"),
     ("deploy_key", KEY), ("tls/server", RSA), ("backup.gpg.txt", f"\n{PGP}"), ("sa.json", ACCOUNT),
     ("settings.toml", f"token = '{TOKEN}'"), (".foorc", "sk-proj-" + "a1" * 20),
     ("app.yaml", "key: sk_live_" + "a1" * 12)],
)  # fmt: skip
def test_files_that_hold_secrets(world: World, name: str, text: str) -> None:
    path = world.project / "deep/er" / name
    path.parent.mkdir(parents=True)
    name = path.name
    path.write_text(text)
    path.chmod(0o644)
    (found,) = world.findings("tree.secret")
    assert found["severity"] == "medium" and TOKEN not in str(found)
    commands, rules = audit_world.ways(found)
    assert not world.findings("tree.secret", *audit_world.words(rules[0]))
    audit_world.carry_out(world, commands[0])
    assert path.stat().st_mode & 0o777 == 0o600
    assert [row["severity"] for row in world.findings("tree.secret")] == ["low"]
    assert not world.findings("tree.secret", "--deny", name)
    assert world.findings("tree.secret", "--protect", name), "the agent may still read it"


@pytest.mark.parametrize(
    ("name", "text"),
    [(".env.example", "A=b"), (".env", "# A=b\n"), ("ca.pem", "-----BEGIN CERTIFICATE-----\n"),
     ("x.key", "text"), (".npmrc", "registry=https://r/"), ("config.json", "{}"),
     ("id_rsa.pub", "x"), ("environment", "A=b"), ("node_modules/p/test/server.key", KEY),
     ("x.pem", "-----BEGIN PRIVATE KEY-----\n...\n"), ("README", "-----BEGIN RSA PRIVATE KEY-----"),
     ("deploy_key.pub", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"),
     ("package.json", '{"a": "task-list-item-1-a-b-c-d"}'),
     ("main.py", f"x = {TOKEN!r}"), ("late", " " * 5000 + KEY)],
)  # fmt: skip
def test_other_files_are_free(world: World, name: str, text: str) -> None:
    (world.project / name).parent.mkdir(parents=True, exist_ok=True)
    (world.project / name).write_text(text)
    assert not world.findings("tree.secret")


# ------------------------------------------------------------ what cannot be looked at


@pytest.mark.parametrize(
    "place",
    [".git/config", ".env", ".git/hooks/pre-commit", ".git/commondir", "package.json",
     ".git/objects/info/alternates", "sub/.git", ".git/config.worktree"],
)  # fmt: skip
def test_fifos_are_not_waited_for(world: World, place: str) -> None:
    path = world.project / place
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path, 0o755)
    world.audit()


def test_a_configuration_that_is_no_file_is_a_finding(world: World) -> None:
    (world.project / ".git/config").unlink()
    os.mkfifo(world.project / ".git/config")
    (found,) = world.findings("audit.read")
    assert found["detail"] == f"{world.project}/.git/config: it is not a regular file"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def walked(top: Path) -> tuple[Iterator[walk.ScannedDirectory], list[tuple[str, int | None]]]:
    failed: list[tuple[str, int | None]] = []

    def directories() -> Iterator[walk.ScannedDirectory]:
        with opened(top) as fd:
            found = TreeScan(fd, str(top), lambda path, error: failed.append((path, error.errno)))
            yield from found.directories()

    return directories(), failed


def test_a_tree_that_changes_meanwhile_leads_nowhere(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    for name in ("exchanged", "removed", "moved/deep", "file", "stays"):
        (top / name).mkdir(parents=True)
    (outside / "deep").mkdir(parents=True)
    (outside / "secret").write_text("")
    directories, failed = walked(top)
    seen = [next(directories).path]
    (top / "exchanged").rename(tmp_path / "kept")
    (top / "exchanged").symlink_to(outside)
    (top / "removed").rmdir()
    (top / "moved").rename(tmp_path / "elsewhere")
    (top / "moved").symlink_to(outside)
    (top / "file").rmdir()
    (top / "file").write_text("")
    seen += [directory.path for directory in directories]
    assert seen == [str(top), f"{top}/stays"]
    assert {path: code in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT) for path, code in failed} == {
        f"{top}/{name}": True for name in ("exchanged", "removed", "moved", "file")
    }


def test_what_changed_meanwhile_is_a_finding(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.share / "a/b").mkdir(parents=True)
    real = walk.list_directory

    def exchanging(fd: int) -> dict[str, int]:
        found = real(fd)
        if "b" in found:
            (world.share / "a/b").rename(world.home / "b")
            (world.share / "a/b").symlink_to("/etc")
        return found

    monkeypatch.setattr(walk, "list_directory", exchanging)
    (found,) = world.findings("audit.read")
    assert found["detail"] == f"{world.share}/a/b: it was changed while it was read"


def test_a_symlink_that_changed_meanwhile_hides_nothing_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.project / "link").symlink_to(world.home)
    (world.project / "id_rsa").write_text(KEY)
    real = symlinks.note

    def exchanging(audit: Audit, directory: walk.ScannedDirectory) -> None:
        if "link" in directory.entries:
            (world.project / "link").unlink()
        real(audit, directory)

    monkeypatch.setattr(symlinks, "note", exchanging)
    assert world.findings("tree.secret")
    (world.project / "link").symlink_to(world.home)
    (found,) = world.findings("audit.read")
    assert found["detail"] == f"{world.project}/link: it was changed while it was read"


def test_a_way_back_up_is_walked_once(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    directories, failed = walked(tmp_path)
    seen = []
    for directory in directories:
        seen.append(directory.path)
        if directory.path.endswith("/b"):
            directory.enter.append("../../a")  # as a bind mount would lead there
    assert seen == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"] and not failed


def test_a_tree_deeper_than_paths_and_descriptors_go(world: World) -> None:
    deep = 1500
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    fd = os.open(world.share, os.O_RDONLY)
    try:
        for level in range(deep):
            if level % 300 == 0:
                os.mkdir("side", dir_fd=fd)
            os.mkdir("dir", dir_fd=fd)
            inner = os.open("dir", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        secret = os.open("id_rsa", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)
        os.close(secret)
        held = len(os.listdir("/proc/self/fd"))
        (found,) = world.findings("tree.secret")
        assert found["detail"].count("/dir") == deep and not world.findings("audit.read")
        assert len(os.listdir("/proc/self/fd")) == held
    finally:
        os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        subprocess.run(["rm", "-rf", world.share], check=True)  # pytest's removal is recursive


def test_a_file_that_becomes_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("text")
    (tmp_path / "link").symlink_to("target")
    with opened(tmp_path) as fd:
        assert walk.list_directory(fd)["link"] == S_IFLNK
        assert walk.read_file(fd, "target") == b"text"
        assert walk.read_file(fd, "target", 2, whole=False) == b"te"
        with pytest.raises(OSError, match="symbolic links"):
            walk.read_file(fd, "link")
        with pytest.raises(Unread, match="longer than 3 bytes"):
            walk.read_file(fd, "target", 3)
        with pytest.raises(FileNotFoundError):
            walk.read_file(fd, "nothing")
    (tmp_path / "way").symlink_to(".")
    with pytest.raises(OSError):
        walk.open_directory(f"{tmp_path}/way")
    with pytest.raises(OSError):
        walk.read_path(f"{tmp_path}/way/target")
    assert walk.read_path(f"{tmp_path}/target") == b"text"


# ------------------------------------------------------------ nothing is run


KEYS = """
core.fsmonitor core.sshCommand core.editor core.pager core.askPass core.gitProxy
core.alternateRefsCommand sequence.editor pager.config pager.status interactive.diffFilter
diff.external diff.x.textconv diff.x.command merge.x.driver filter.x.clean filter.x.smudge
filter.x.process credential.helper gpg.program trailer.x.cmd hook.x.command
uploadpack.packObjectsHook browser.x.cmd man.x.cmd alias.config alias.rev-parse
"""


def test_nothing_of_a_repository_is_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = world.script(world.share / "evil")
    config = world.home / "all"
    keys = KEYS.split()
    for key in keys:
        world.git("config", "--file", config, key, f"!{evil}" if "alias" in key else str(evil))
    world.git("config", "--file", config, "core.hooksPath", world.share / "hooks")
    traces = [world.home / f"trace{number}" for number in range(6)]
    for target, name in zip(traces, ("normalTarget", "perfTarget", "eventTarget"), strict=False):
        world.git("config", "--file", config, f"trace2.{name}", target)
    (world.share / "inc").write_text(config.read_text())
    world.git("config", "--file", config, "include.path", world.share / "inc")
    for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change"):
        world.script(world.project / ".git/hooks" / hook)
        world.script(world.share / "hooks" / hook)
    world.git("init", "-q", "--bare", world.share / "bare")
    text = config.read_text()
    for place in (world.project / ".git/config", world.share / "bare/config"):
        place.write_text(place.read_text() + text)
    (world.home / ".gitconfig").write_text(text)
    (world.project / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    for name, target in zip(
        ("GIT_TRACE", "GIT_TRACE2", "GIT_TRACE_SETUP"), traces[3:], strict=True
    ):
        monkeypatch.setenv(name, str(target))
    for name in ("GIT_PAGER", "PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF"):
        monkeypatch.setenv(name, str(evil))
    monkeypatch.setenv("GIT_DIR", str(world.share / "bare"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.pager'='{evil}'")
    started: list[list[str]] = []
    watching = [True]

    def hook_of_python(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "subprocess.Popen":
            started.append(list(arguments[1]))  # type: ignore[call-overload]

    sys.addaudithook(hook_of_python)
    found = world.findings("git.config")
    watching.clear()
    assert {f["detail"].partition(" = ")[0] for f in found} >= {k.lower() for k in keys}
    assert not [path for path in traces if path.exists()]
    assert started and all(Path(c[7]).name == "git" and c[8] == "config" for c in started)
    assert all("--no-includes" in command for command in started)


# ----------------------------------------------------- trees that could keep an audit from ending


@pytest.mark.parametrize(
    "line", [b"\n", b" ", b"\t\n", b"password", b"_password ", b"export ", b"A=\n"]
)
def test_a_file_of_the_agents_takes_no_time_by_the_square(world: World, line: bytes) -> None:
    for name in (".env", "credentials"):
        (world.project / name).write_bytes(line * ((1 << 16) // len(line)))
    assert not world.findings("tree.secret")


@pytest.mark.parametrize("value", ["./" + "a" * 200_000, "./x " + "-c" * 100_000])
def test_a_planted_configuration_takes_no_time_by_the_square(world: World, value: str) -> None:
    bare = world.share / "bare"
    world.git("init", "-q", "--bare", bare)
    (bare / "config").write_text(f"[core]\n\tpager = {value}\n[alias]\n\tx = {value}\n")
    (found,) = world.findings("git.config")
    assert "core.pager = ./" in found["detail"]


def test_a_chain_of_symlinks_is_no_end(world: World) -> None:
    (world.project / "0").symlink_to(world.project / ".git")
    for number in range(1, 3000):
        (world.project / str(number)).symlink_to(str(number - 1))
    (found,) = world.findings("tree.symlink")
    assert f"{world.project}/0 to {world.project}/.git" in found["detail"]


@pytest.mark.parametrize("place", ["sub/.git", ".git/commondir", ".git/objects/info/alternates"])
def test_a_path_in_a_file_ends_where_git_ends_it(world: World, place: str) -> None:
    (world.project / "sub").mkdir()
    (world.share / "store").mkdir()
    start = "gitdir: " if place == "sub/.git" else ""
    (world.project / place).write_text(f"{start}{world.share}/store\0more\n")
    details = {row["detail"] for row in world.audit() if row["severity"]}
    assert any("store" in detail for detail in details) and "more" not in str(details)


def test_a_package_too_long_to_be_read_is_a_finding(world: World) -> None:
    (world.project / "package.json").write_text(
        '{"scripts": {"prepare": "husky"}}' + " " * walk.MAX_FILE
    )
    (found,) = world.findings("audit.read")
    assert "package.json: it is longer than" in found["detail"]


# ------------------------------------------------------------ where a path leads

WAYS = st.sampled_from(["a", "b", "c", ".", "..", "d/a", "b/../c", "//TOP/d/.", "nothing"])


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), WAYS), WAYS)
def test_a_path_leads_where_the_kernel_goes(links: dict[str, str], path: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory).resolve()
        (top / "d").mkdir()
        for name, target in links.items():
            (top / name).symlink_to(target.replace("/TOP", str(top)))
        way = f"{top}/{path.replace('//TOP', '')}"
        try:
            real = str(Path(way).resolve(strict=True))
        except (OSError, RuntimeError):
            return
        assert walk.resolved(way) == real
        texts = {f"{top}/{name}": os.readlink(top / name) for name in links}
        share = Share(str(top), RuleSet(GuardRules()))
        audit = Audit(share, Git("git", "/"), 0, symlinks={**texts, f"{top}/way": way})
        assert symlinks.SymlinkJudge(audit).target(f"{top}/way") == (real, None)
        for link in walk.trail(way)[:-1]:
            assert os.path.islink(link)


# ------------------------------------------------------------ dependencies


def test_one_note_tells_of_the_hosts_own_dependencies(world: World) -> None:
    app = world.project / "app"
    for name in ("node_modules/a/node_modules", "target", "venv", "lib/target", "lib/venv"):
        (app / name).mkdir(parents=True)
    (app / "Cargo.toml").touch()
    (app / "venv/pyvenv.cfg").touch()
    (world.project / "node_modules").mkdir()
    [row] = [row for row in world.audit("--protect", ".venv") if row["id"] == "tree.local"]
    assert row["status"] == "note" and row["severity"] is None
    assert row["detail"].startswith("4 ("), row
    for name in ("node_modules", "target", "venv"):
        assert name in row["detail"]
    assert "--local deps" in row["hint"]


@pytest.mark.parametrize("option", ["--protect", "--deny", "--hide"])
def test_what_a_rule_guards_is_not_told(world: World, option: str) -> None:
    (world.project / "node_modules").mkdir()
    [row] = [row for row in world.audit(option, "node_modules") if row["id"] == "tree.local"]
    assert row["status"] == "ok"
