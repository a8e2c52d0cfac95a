"""Package managers, builds and databases in directories of the guest's own (``--local deps``).

The host has its own directory at the same path, and both are in use at once.
"""

import io
import json
import os
import random
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from uv import find_uv_bin

from tests.mount.fs.test_programs import PATH, SQLITE_WRITER, TRANSACTIONS, Desk, needs, wheel
from tests.mount.fs.test_programs_links import (
    NPM,
    test_a_virtual_environment_is_made_and_moved,
    test_cargo_builds_and_runs_a_program,
    test_npm_installs_workspaces_and_local_packages,
    test_npm_links_a_package,
    test_pnpm_installs_workspaces_and_local_packages,
    test_uv_makes_a_virtual_environment,
    test_yarn_installs_workspaces_and_linked_packages,
)
from tests.mount.fs.test_programs_whole_tree import CHOKIDAR, running, tells_of_changes
from tests.support.mounting import LIMIT, Mounted, area, gitguardfs, until
from tests.support.people import AGENT, reachable_python
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host

# These run here again, in this module's view.
__all__ = [
    "test_a_virtual_environment_is_made_and_moved",
    "test_cargo_builds_and_runs_a_program",
    "test_npm_installs_workspaces_and_local_packages",
    "test_npm_links_a_package",
    "test_pnpm_installs_workspaces_and_local_packages",
    "test_uv_makes_a_virtual_environment",
    "test_yarn_installs_workspaces_and_linked_packages",
]

OWN = {"node_modules", ".venv", "target", ".pytest_cache", "__pycache__"}
PACKAGES = 15
CI = f"npm ci {' '.join(NPM)}"


def shown(place: Path) -> AbstractContextManager[Mounted]:
    """Show the share, with the directories that the guest has of its own."""
    options = ("--map", MAP, "--cache-timeout=0.2", "--local=deps")
    return gitguardfs(place / "share", place / "view", *options, f"--local-store={place}/store")


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A share, and the agent's view of it."""
    with area() as place:
        for name, uid, gid in (
            ("share", HOST_UID, HOST_GID), ("host's home", HOST_UID, HOST_GID),
            ("home", AGENT, AGENT), ("elsewhere", AGENT, AGENT),
        ):  # fmt: skip
            (place / name).mkdir()
            os.chown(place / name, uid, gid)
        with shown(place) as mounted:
            yield Desk(place, place / "share", mounted.path, mounted)


@pytest.fixture
def app(desk: Desk) -> Desk:
    """A project in it, without a repository, that both sides may rename."""
    with as_host():
        _make_project(desk.host / "app")
        wheel(desk.host / "app")
    until((desk.guest / "app/src/main.rs").exists, "the project is shown")
    _on_the_host(desk, f"{needs('npm')} install --package-lock-only {' '.join(NPM)}")
    return replace(desk, host=desk.host / "app", guest=desk.guest / "app")


def _make_project(place: Path) -> None:
    (place / "cache").mkdir(parents=True)
    dependencies = {}
    for number in range(PACKAGES):
        name = f"p{number}"
        _make_package(place / f"cache/{name}.tgz", name)
        dependencies[name] = f"file:cache/{name}.tgz"
    package = {"name": "app", "version": "1.0.0", "private": True, "dependencies": dependencies}
    files = {
        "package.json": json.dumps({**package, "workspaces": ["packages/*"]}),
        "one.test.js": "test('one', () => { expect(require('two')).toBe('two, one'); });\n",
        "pytest.ini": "",
        "test_one.py": "def test_one():\n    assert False\n",
        "Cargo.toml": "[package]\nname = 'tiny'\nversion = '1.0.0'\nedition = '2021'\n",
        "Cargo.lock": 'version = 3\n\n[[package]]\nname = "tiny"\nversion = "1.0.0"\n',
        "src/main.rs": 'fn main() { println!("built"); }\n',
    }
    for name, needed, text in (("one", {}, "'one'"), ("two", {"one": "*"}, "two, one")):
        where, text = f"packages/{name}", "'two, ' + require('one')" if needed else text
        package = {"name": name, "version": "1.0.0", "dependencies": needed}
        files |= {f"{where}/package.json": json.dumps(package)}
        files |= {f"{where}/index.js": f"module.exports = {text}\n"}
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "tools").symlink_to("node_modules/.bin")


def _make_package(archive: Path, name: str) -> None:
    files = {f"package/lib/{number}.js": f"{number};\n" for number in range(10)}
    files["package/package.json"] = json.dumps({"name": name, "version": "1.0.0", "bin": "cli.js"})
    files["package/index.js"] = f"module.exports = '{name}'\n"
    files["package/cli.js"] = f"#!/usr/bin/env node\nconsole.log('{name} works')\n"
    with tarfile.open(archive, "w:gz") as packed:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(text), 0o755
            packed.addfile(member, io.BytesIO(text.encode()))


# ---------------------------------------------------------------------------- Both at once


def _start(desk: Desk, side: str, commands: str, **more: str) -> subprocess.Popen[str]:
    """Start commands of bash in the project, on the host or in the view."""
    is_host = side == "host"
    uid, gid = (HOST_UID, HOST_GID) if is_host else (AGENT, AGENT)
    home = desk.place / ("host's home" if is_host else "home")
    return subprocess.Popen(
        ["bash", "-exc", f"exec 2>&1; {dedent(commands)}"],
        cwd=desk.host if is_host else desk.guest,
        env={"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8", "SIDE": side, **more},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, user=uid, group=gid,
        extra_groups=[], start_new_session=True,
    )  # fmt: skip


def _finish(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=4 * LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, said
    return said


def _on_the_host(desk: Desk, commands: str) -> str:
    there = desk.host / "app"
    return _finish(_start(replace(desk, host=there), "host", commands))


def _names(top: Path) -> set[str]:
    """Return the names below a directory, without what the sides have of their own."""
    found = set()
    for directory, directories, files in os.walk(top):
        directories[:] = [name for name in directories if name not in OWN]
        found |= {str((Path(directory) / name).relative_to(top)) for name in directories + files}
    return found


class Work(NamedTuple):
    """What each side does, twice."""

    needs: str
    own: str
    """The directory that each has its own of."""
    commands: str
    says: str


WORK = {
    "npm": Work("npm", "node_modules", f"""
        {CI}
        npm ls {' '.join(NPM)}
        test $(readlink node_modules/two) = ../packages/two
        cd packages/two; node -p "require('two')"; cd ../..
        tools/p7
        """, "two, one\n.*p7 works\n"),
    "pnpm": Work("npm", "node_modules", """
        node "$MODULES/pnpm/bin/pnpm.cjs" install --offline --ignore-workspace \
            --no-lockfile --store-dir "$HOME/store"
        node -p "require('p3')"
        node_modules/.bin/p7
        """, "p3\n.*p7 works\n"),
    "yarn": Work("npm", "node_modules", """
        node "$MODULES/yarn/bin/yarn.js" install --offline --pure-lockfile --silent \
            --cache-folder "$HOME/cache"
        node -p "require('p3') + require('two')"
        """, "p3two, one\n"),
    "jest": Work("npm", "node_modules", f"""
        test -e node_modules || {CI}
        node "$MODULES/jest/bin/jest.js" --no-watchman --cacheDirectory "$HOME/jest"
        """, "1 passed"),
    "pip": Work("python3", ".venv", """
        test -e .venv || python3 -m venv .venv
        .venv/bin/python -m pip install --no-index --quiet --force-reinstall \
            --disable-pip-version-check ./*.whl
        test "$(.venv/bin/python -c 'import sys; print(sys.prefix)')" = "$PWD/.venv"
        .venv/bin/tiny
        """, "tiny works\n"),
    "uv": Work("python3", ".venv", """
        uv="$UV --quiet --offline --no-config"
        $uv venv --clear --python /usr/bin/python3 .venv
        $uv pip install --no-index --reinstall ./*.whl
        .venv/bin/tiny
        """, "tiny works\n"),
    "cargo": Work("cargo", "target", """
        cargo build --offline --quiet; target/debug/tiny
        CARGO_INCREMENTAL=1 cargo build --offline --quiet --release; target/release/tiny
        cargo build --offline 2>&1 | grep Finished
        """, "built\n.*built\n"),
    # The last name of its directory is not the first.
    "pytest": Work("python3", ".pytest_cache", """
        "$PYTHON" -m pytest -q -p no:trio test_one.py > "$HOME/said" || true
        cat "$HOME/said"
        ! grep -i warning "$HOME/said"
        "$PYTHON" -m pytest --cache-show | grep lastfailed
        """, "1 failed"),
    # WAL shares memory between the processes through a mapped file.
    "sqlite": Work("sqlite3", "node_modules", """
        mkdir -p node_modules/.cache; cd node_modules/.cache; rm -f data.db*
        sqlite3 data.db 'pragma journal_mode = wal; create table sums (total integer);
            create table lines (who text, turn integer); insert into sums values (0);'
        for name in one two three; do python3 -c "$WRITER" data.db $name & writers+=($!); done
        for writer in "${writers[@]}"; do wait $writer; done
        sqlite3 data.db 'pragma integrity_check; select total from sums'
        """, f"ok\n{3 * TRANSACTIONS}\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
@pytest.mark.every_processor
def test_both_sides_work_at_once(app: Desk, node_modules: Path, name: str) -> None:
    work = WORK[name]
    needs(work.needs)
    with reachable_python() as python:
        more = {"MODULES": str(node_modules), "WRITER": SQLITE_WRITER, "UV": str(_uv(app)),
                "PYTHON": python}  # fmt: skip
        _work_twice(app, work, **more)


def _work_twice(app: Desk, work: Work, **more: str) -> None:
    before = _names(app.host)
    commands = f"({dedent(work.commands)})\necho $SIDE > {work.own}/whose"
    for _ in range(2):
        for process in [_start(app, side, commands, **more) for side in ("host", "guest")]:
            said = _finish(process)
            assert all(word in said for word in work.says.split(".*")), said
    assert (app.host / work.own / "whose").read_text() == "host\n"
    assert (app.guest / work.own / "whose").read_text() == "guest\n"
    assert _names(app.host) == before
    app.run("rm", "-r", work.own)
    assert (app.host / work.own / "whose").read_text() == "host\n"
    assert not os.path.lexists(app.guest / work.own)


def _uv(desk: Desk) -> Path:
    """Return a uv that both sides can run."""
    uv = desk.place / "uv"
    uv.write_bytes(Path(find_uv_bin()).read_bytes())
    uv.chmod(0o755)
    return uv


@pytest.mark.parametrize("cache", [".uv_cache", ".uv-cache"])
def test_uv_keeps_its_cache_in_the_project(app: Desk, cache: str) -> None:
    """It makes a file ``.git`` there, so that git leaves the packages alone."""
    with as_host():
        (app.host / "uv.toml").write_text(f'cache-dir = "./{cache}"\n')
    until((app.guest / "uv.toml").exists, "it is shown")
    uv = f"{_uv(app)} --quiet --offline"
    app.run("sh", "-exc", f"{uv} venv --python /usr/bin/python3; {uv} pip install ./*.whl")
    assert "tiny works" in app.run(".venv/bin/tiny").stdout
    assert list((app.guest / cache).rglob(".git"))
    assert not (app.host / cache).exists()


def test_a_watcher_that_polls_sees_the_guest_s_own_and_not_the_host_s(
    app: Desk, node_modules: Path
) -> None:
    for place in (app.host, app.guest):
        side = "host" if place == app.host else "guest"
        _finish(_start(app, side, f"mkdir node_modules; echo > node_modules/of-the-{side}"))
    words = ("-e", CHOKIDAR, node_modules / "chokidar4")
    with running(app, needs("node"), *words, CHOKIDAR_USEPOLLING="1") as said:
        own = "node_modules/of-the-guest"
        tells_of_changes(app, said, f"changed {own}", by_host=False, name=own)
        with as_host():
            (app.host / "node_modules/of-the-host").write_text("changed\n")
        tells_of_changes(app, said, "changed package.json", by_host=True, name="package.json")
        assert "of-the-host" not in said.read_text()


# ---------------------------------------------------------------------------- Moves


def test_the_guest_renames_a_project_that_both_use(app: Desk) -> None:
    for side in ("host", "guest"):
        _finish(_start(app, side, f"{CI}; echo $SIDE > node_modules/whose"))
    with _using(app) as said:
        app.run("mv", "app", "moved", cwd=app.guest.parent)
        until(lambda: said.read_text().endswith("moved/node_modules/p0\n"), said.read_text())
    moved = _moved(app)
    assert (moved.guest / "node_modules/whose").read_text() == "guest\n"
    for side in ("host", "guest"):
        assert "p7 works" in _finish(_start(moved, side, "cat node_modules/whose; tools/p7"))
        _finish(_start(moved, side, CI))


def test_the_host_renames_a_project_while_the_guest_installs(app: Desk) -> None:
    """What the guest has is left behind, and there again when the host renames it back."""
    app.run("bash", "-c", f"{CI}; echo guest > node_modules/whose")
    before = _names(app.host)
    moved = _moved(app)
    installing = _start(app, "guest", f"while {CI}; do echo; done; true")
    time.sleep(random.random())
    with as_host():
        app.host.rename(moved.host)
    _finish(installing)
    until(moved.guest.exists, "it is shown where it is now")
    assert "node_modules" not in os.listdir(moved.guest)
    assert "p7 works" in _finish(_start(moved, "guest", f"{CI}; tools/p7"))
    assert _names(moved.host) == before
    assert "node_modules" not in os.listdir(moved.host)
    with as_host():
        moved.host.rename(app.host)
    until(app.guest.exists, "it is shown where it was")
    assert "p7 works" in _finish(_start(app, "guest", f"{CI}; tools/p7"))


def _moved(app: Desk) -> Desk:
    return replace(app, host=app.host.with_name("moved"), guest=app.guest.with_name("moved"))


@contextmanager
def _using(app: Desk) -> Iterator[Path]:
    """Run a program with its working directory in a package of the guest's."""
    within = replace(app, guest=app.guest / "node_modules/p0")
    script = "while pwd -P && test -e package.json; do sleep 0.1; done"
    with running(within, "bash", "-c", script) as said:
        until(lambda: said.read_text(), "it runs")
        yield said


# ---------------------------------------------------------------------------- Kills

TRIES = 3


def test_npm_ci_works_after_the_daemon_was_killed_while_it_ran(app: Desk) -> None:
    """At any moment; the share has nothing of it."""
    before = _names(app.host)
    started = time.monotonic()
    app.run("bash", "-c", CI)
    taken = time.monotonic() - started
    mounted = app.mounted
    with ExitStack() as stack:
        for _ in range(TRIES):
            installing = _start(app, "guest", CI)
            time.sleep(random.uniform(0, taken))
            _kill(mounted)
            installing.communicate(timeout=LIMIT)
            mounted = stack.enter_context(shown(app.place))
            assert "p7 works" in _finish(_start(app, "guest", f"{CI}; tools/p7"))
            assert _names(app.host) == before
            assert "node_modules" not in os.listdir(app.host)


def _kill(mounted: Mounted) -> None:
    mounted.process.send_signal(signal.SIGKILL)
    mounted.process.wait()
    subprocess.run(["umount", "-i", "-l", mounted.path], check=True)
    mounted.process.returncode = 0  # as it should be for those that nobody kills
