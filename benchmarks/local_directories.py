"""Times work in directories of the guest's own (``--local``), beside its disk and the share.

The same work is done in a directory of the guest's disk, on the raw share, through bindfs, and
through gitguardfs without and with ``--local deps``. On a host the raw share is a disk as well.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rounds import Say, drop_caches
from benchmarks.views import BINDFS, View, mounted

DISK, RAW, THEIRS, OURS = "disk", "raw share", "bindfs", "gitguardfs"
WITHOUT = "without"
VIEWS = (DISK, RAW, THEIRS, WITHOUT, OURS)
PACKAGES, IN_THE_GUEST = 250, 25
"""Packages in node_modules; few where a file takes the emulated guest a tenth of a second."""
LIBRARY = 10
"""Files in each package's lib, beside its package.json and index.js: 3,000 in all."""
REQUIRED = 3
"""Files of lib that index.js loads: a thousand modules in all."""
INSTALLED = 5
"""One package of so many is also installed by npm; the wheel for pip has ten modules for each."""
_TEXT = "exports.value = 'a line of a module';\n" * 20


def measure(
    gitguardfs: tuple[str, ...], work: Path, source: Path, packages: int, rounds: int, say: Say
) -> Mapping[str, Mapping[str, float]]:
    """Return the seconds of each kind of work by view; ``source`` is on the share."""
    for place in (work / DISK, source / "local"):
        place.mkdir()
    store = ("--local", "deps", "--local-store", str(work / "store"))
    views = (
        View(THEIRS, THEIRS, BINDFS),
        View(WITHOUT, WITHOUT, (*gitguardfs, "-f", "--no-seal")),
        View(OURS, OURS, (*gitguardfs, "-f", "--no-seal", *store)),
    )
    _make_archives(work / "given", packages // INSTALLED)
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        tops = {DISK: work / DISK, RAW: source / "local"}
        for view in views:
            daemon = mounted(view, source, work / view.key, work / f"{view.key}.log")
            tops[view.key] = stack.enter_context(daemon).path / "local"
        for number in range(rounds):
            for turn in range(len(VIEWS)):
                key = VIEWS[(number + turn) % len(VIEWS)]
                place = tops[key] / f"{key}-{number}"
                place.mkdir()
                for name, run in _work(place, work / "given", packages):
                    started = time.perf_counter()
                    run()
                    taken = time.perf_counter() - started
                    found.setdefault(name, {}).setdefault(key, []).append(taken)
                    say(f"round {number + 1} of {rounds}: {key:10} {name}: {taken:.2f} s")
    return {
        name: {key: statistics.median(times) for key, times in by_view.items()}
        for name, by_view in found.items()
    }


def _work(place: Path, given: Path, packages: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is done in a project, in this order."""
    modules = place / "node_modules"
    files, count = packages * (LIBRARY + 2), packages * (REQUIRED + 1)
    yield f"make {files:,} files", lambda: _fill(modules, packages)
    searches: list[tuple[str, Callable[[], object]]] = [
        (f"stat {files:,} files", lambda: _stat(modules, packages)),
        ("find", lambda: _run(place, "find", "node_modules", "-type", "f")),
        ("ripgrep", lambda: _run(place, "rg", "-uuu", "-c", "a line", "node_modules")),
    ]
    if shutil.which("node"):
        code = f"for (let i = 0; i < {packages}; i++) require('p' + i)"
        searches.append((f"require of {count:,} modules", lambda: _run(place, "node", "-e", code)))
    else:
        searches.append((f"read {count:,} modules, without node", lambda: _read(modules, packages)))
    for name, run in searches:
        drop_caches()
        yield f"{name}, first", run
        yield f"{name}, second", run
    yield "rm -r", lambda: _run(place, "rm", "-r", "node_modules")
    if shutil.which("npm"):
        shutil.copytree(given / "npm", place, dirs_exist_ok=True)
        quiet = ("--offline", "--silent", "--no-audit", "--no-fund")
        yield "npm ci", lambda: _run(place, "npm", "ci", *quiet)
    environment = place / ".venv"
    _run(place, sys.executable, "-m", "venv", "--without-pip", environment)
    if _has_pip():
        pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python")
        wheel = next(given.glob("*.whl"))
        install = (*pip, environment, "install", "--no-index", "--no-compile", wheel)
        yield "pip install", lambda: _run(place, *install)
    if shutil.which("cargo"):
        shutil.copytree(given / "cargo", place, dirs_exist_ok=True)
        yield "cargo build", lambda: _run(place, "cargo", "build", "--offline", "--quiet")


def _run(place: Path, *command: str | Path) -> None:
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)


def _has_pip() -> bool:
    asked = [sys.executable, "-m", "pip", "--version"]
    return subprocess.run(asked, check=False, capture_output=True).returncode == 0


def _fill(modules: Path, packages: int) -> None:
    for number in range(packages):
        package = modules / f"p{number}"
        (package / "lib").mkdir(parents=True)
        (package / "package.json").write_text(json.dumps({"name": f"p{number}"}))
        loads = "".join(f"require('./lib/{name}');\n" for name in range(REQUIRED))
        (package / "index.js").write_text(loads)
        for name in range(LIBRARY):
            (package / f"lib/{name}.js").write_text(_TEXT)


def _stat(modules: Path, packages: int) -> None:
    for number in range(packages):
        for name in ("package.json", "index.js", *(f"lib/{name}.js" for name in range(LIBRARY))):
            os.stat(f"{modules}/p{number}/{name}")


def _read(modules: Path, packages: int) -> None:
    for number in range(packages):
        for name in ("index.js", *(f"lib/{name}.js" for name in range(REQUIRED))):
            (modules / f"p{number}/{name}").read_bytes()


def _make_archives(given: Path, count: int) -> None:
    """Make what npm, pip and cargo install and build, so that they need no network."""
    cargo = given / "cargo/src"
    cargo.mkdir(parents=True)
    (given / "cargo/Cargo.toml").write_text(
        "[package]\nname = 'tiny'\nversion = '1.0.0'\nedition = '2021'\n"
    )
    modules = "".join(f"mod m{number};\n" for number in range(count))
    (cargo / "main.rs").write_text(f"#![allow(dead_code)]\n{modules}fn main() {{}}\n")
    for number in range(count):
        (cargo / f"m{number}.rs").write_text("pub fn value() -> u32 { 1 }\n")
    with zipfile.ZipFile(given / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        names = [f"tiny/m{number}.py" for number in range(10 * count)]
        for name in names:
            wheel.writestr(name, "value = 1\n" * 50)
        info = "tiny-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    if shutil.which("npm"):
        _make_npm_packages(given, count)


def _make_npm_packages(given: Path, count: int) -> None:
    here = given / "npm"
    (here / "cache").mkdir(parents=True)
    needed = {}
    for number in range(count):
        package = given / f"packages/p{number}"
        (package / "lib").mkdir(parents=True)
        (package / "package.json").write_text(
            json.dumps({"name": f"p{number}", "version": "1.0.0"})
        )
        for name in range(LIBRARY):
            (package / f"lib/{name}.js").write_text(_TEXT)
        with tarfile.open(here / f"cache/p{number}.tgz", "w:gz") as archive:
            archive.add(package, "package")
        needed[f"p{number}"] = f"file:cache/p{number}.tgz"
    whole = {"name": "app", "version": "1.0.0", "dependencies": needed}
    (here / "package.json").write_text(json.dumps(whole))
    quiet = ("--offline", "--silent", "--no-audit", "--no-fund")
    _run(here, "npm", "install", "--package-lock-only", *quiet)
