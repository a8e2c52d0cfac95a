"""Which rooms may import which, and which modules may touch the source.

A room is a package of gitguardfs, or a package of its ``host``.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import gitguardfs

PACKAGE = Path(gitguardfs.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

BELOW = {"base", "names", "linux", "options"}
"""Rooms that know of no request, no mount and no command."""
OF_HOST = {"base", "names", "options"}
"""Those of them that the host's tools may import: linux does not load on a Mac."""
CORE = {"fs", "view", "sessions", "private", "local"}
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "names": {"base"},
    "linux": {"base"},
    "options": {"base", "names", "linux"},
    "fs": {"base", "names", "linux", "options"},
    "view": {"base", "names", "fs"},
    "sessions": {"base", "linux", "fs", "view"},
    "live": {"base", "names", "linux", "fs", "view", "sessions"},
    "private": {"base", "names", "linux"},
    "local": {"base"},
    "mounting": BELOW | CORE | {"live"},
    "guest": BELOW | {"fs", "live", "local", "mounting"},
    "doctor": BELOW | {"private", "mounting", "guest", "sessions"},
    "host/audit": OF_HOST,
    "host/credentials": OF_HOST,
    "host/egress": OF_HOST | {"host/credentials"},
    "host/fetch": OF_HOST | {"host/audit"},
    "host/share": OF_HOST,
    "host/vm": OF_HOST | {"guest", "host/share", "host/credentials", "host/egress", "host/watch"},
    "host/watch": OF_HOST | {"linux"},
    "host/doctor_checks": OF_HOST | {"host/audit", "host/share"},
}  # fmt: skip
"""By room, which others it may import. The commands may import all."""
COMMANDS = {"__init__", "__main__", "commands", "host/commands", "host/__init__"}
OF_SOME_ROOMS: dict[str, set[str]] = {
    "options": {
        "linux.safe_open",
        "linux.mountinfo",
        "linux.processes",
        "names.local_names",
        "names.rules",
    },
    "fs": {"linux.file_locks", "linux.syscalls", "linux.reserved_blocks"},
    "sessions": {"linux.capabilities", "linux.shared_rows", "linux.syscalls"},
    "private": {"linux.syscalls"},
    "host/vm": {"guest.systemd"},  # the text of units
    "host/watch": {"linux.mountinfo"},
}
"""By room, the only modules that it may import of the rooms that are named here."""
ONLY_IN: dict[str, tuple[str, ...]] = {
    "pyfuse3": ("sessions/pyfuse3_session/",),
    "trio": ("sessions/pyfuse3_session/",),
    "click": ("commands/", "host/commands/", "host/vm/fetching.py"),
    "ctypes": ("linux/syscalls.py", "sessions/pyfuse3_session/", "host/egress/interfaces.py",
               "host/egress/die_with_parent.py"),
    "keyring": ("host/credentials/store.py",),
    "pwd": ("options/accounts.py",),
    "grp": ("options/accounts.py",),
    "mitmproxy": tuple(f"host/egress/{name}.py"
                       for name in ("addon", "closing", "connections", "http1", "proxy", "replies",
                                    "websocket")),
}  # fmt: skip
"""By imported package, where it may be imported: files, and directories with all in them."""

SERVERS = sorted(
    path for room in ("names", "fs", "view") for path in (PACKAGE / room).rglob("*.py")
)
"""Modules that decide on requests and answer them."""
OPTIONS = sorted((PACKAGE / "options").glob("*.py"))
PURE = ("names",)
"""Rooms that open no files, start no programs and look up no users."""
IMPURE_IMPORTS = {"subprocess", "shutil", "socket", "tempfile", "pathlib", "grp", "pwd"}

# Calls of os that take a path or act relative to a directory.
PATH_CALLS = {
    "open", "stat", "lstat", "listdir", "scandir", "walk", "fwalk", "mkdir", "makedirs", "mknod",
    "mkfifo", "symlink", "link", "readlink", "rename", "renames", "replace", "remove", "unlink",
    "rmdir", "removedirs", "chmod", "lchmod", "chown", "lchown", "truncate", "utime", "access",
    "getxattr", "setxattr", "listxattr", "removexattr", "statvfs", "chdir", "fchdir", "pathconf",
}  # fmt: skip
SYSTEM_CALLERS = {PACKAGE / "fs/source.py", PACKAGE / "fs/descriptors.py"}
SYSCALL_WRAPPERS = {
    "renameat2", "rename_path", "linkat_empty_path", "linkat_by_proc", "watch", "utimens", "mount",
    "umount",
}  # fmt: skip


def loaded_after(statement: str) -> set[str]:
    """Return the packages that are loaded then."""
    return {name.partition(".")[0] for name in modules_after(statement)}


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(['', *sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return set(done.stdout.splitlines())


def test_what_serves_requests_loads_no_session_and_no_command() -> None:
    files = [*SERVERS, *OPTIONS, *(PACKAGE / "linux").glob("*.py")]
    modules = ", ".join(
        ".".join(("gitguardfs", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in files
        if path.stem != "__init__"
    )
    assert not loaded_after(f"import {modules}").intersection({"pyfuse3", "trio", "click"})


def test_nothing_on_the_host_needs_pyfuse3_or_trio() -> None:
    """They are built with a compiler there, and a Mac has none of them."""
    hosts = [path for path in SOURCES if path.is_relative_to(PACKAGE / "host")]
    modules = sorted(
        ".".join(("gitguardfs", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in [*hosts, *(PACKAGE / "commands").glob("*.py")]
        if path.stem != "__init__"
    )
    absent = "sys.modules.update(pyfuse3=None, trio=None)"
    loaded = loaded_after(f"{absent}; import {', '.join(modules)}")
    assert {"click", "mitmproxy", "yaml"} <= loaded  # all was there but these two


def test_a_start_loads_no_large_module_that_mounting_does_not_need() -> None:
    """After a crash the agent waits for it."""
    loaded = loaded_after("import gitguardfs.commands.gitguardfs, gitguardfs.mounting.run")
    assert not loaded.intersection({"difflib", "filecmp", "json", "pickle", "tarfile"})


def test_the_doctor_loads_no_filesystem() -> None:
    """In an emulated guest each module takes it some hundredths of a second."""
    loaded = modules_after("import gitguardfs.commands.doctor")
    assert "gitguardfs.doctor.mount_checks" in loaded
    assert not loaded & {"gitguardfs.fs.tree", "gitguardfs.view", "importlib.metadata"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _room(name: str) -> str:
    """Return the room of a module, by its name relative to the package, such as "host.vm.state"."""
    words = name.split(".")
    return "/".join(words[: 2 if words[0] == "host" and len(words) > 1 else 1])


def _part(path: Path) -> str:
    return _room(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


def _ours(path: Path) -> set[str]:
    """Return what a file imports of this package, without the package's name."""
    return {
        name.removeprefix("gitguardfs.").replace("__version__", "__init__")
        for name in imports(path)
        if name.startswith("gitguardfs.") and name != "gitguardfs.host"
    }


def test_every_room_is_in_the_table() -> None:
    assert set(ALLOWED) | COMMANDS == {_part(path) for path in SOURCES}
    assert set().union(*ALLOWED.values()) <= set(ALLOWED) | COMMANDS


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_are_those_of_the_table(path: Path) -> None:
    room, ours = _part(path), _ours(path)
    if room in COMMANDS:
        return
    assert {_room(name) for name in ours} <= ALLOWED[room] | {room, "__init__"}
    allowed = OF_SOME_ROOMS.get(room, set())
    some = {_room(name) for name in allowed}
    modules = {".".join(name.split(".")[:2]) for name in ours if _room(name) in some}
    assert modules - some <= allowed


@pytest.mark.parametrize("package", ONLY_IN)
def test_packages_of_others_are_imported_only_where_allowed(package: str) -> None:
    importing = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if package in {name.partition(".")[0] for name in imports(path)}
    }
    assert {path for path in importing if not path.startswith(ONLY_IN[package])} == set()
    assert all(any(path.startswith(where) for path in importing) for where in ONLY_IN[package])


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if _part(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_pure_parts_have_no_files_programs_or_users_of_their_own(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imports(path)}
    assert not tops & IMPURE_IMPORTS
    assert [call for call in calls_of(path, "os") if call[1] in PATH_CALLS] == []
    names = {n.id for n in ast.walk(parsed(path)) if isinstance(n, ast.Name)}
    assert "open" not in names


def test_nobody_loads_mitmproxy_unasked() -> None:
    names = {path.stem for path in (PACKAGE / "host/egress").glob("*.py")}
    others = sorted(
        names - {"__init__", "addon", "closing", "connections", "http1", "replies", "websocket"}
    )
    modules = ", ".join(f"gitguardfs.host.egress.{name}" for name in others)
    assert "mitmproxy" not in loaded_after(f"import {modules}")


def test_what_decides_on_requests_is_pure() -> None:
    """No files, no network, no time: the decision depends on the request and the text alone."""
    allowed = {"__future__", "base64", "binascii", "collections", "dataclasses", "enum",
               "gitguardfs", "ipaddress", "re", "typing", "unicodedata"}  # fmt: skip
    for name in ("addresses", "allowlist", "exchange", "presets", "requests", "urls"):
        found = imports(PACKAGE / f"host/egress/{name}.py")
        others = {module for module in found if not module.startswith("urllib.parse")}
        assert {module.partition(".")[0] for module in others} <= allowed, name


def calls_of(path: Path, module: str) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.attr)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    ]


@pytest.mark.parametrize(
    "path", [*SERVERS, PACKAGE / "linux/syscalls.py"], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_only_two_modules_name_things_in_the_source(path: Path) -> None:
    if path in SYSTEM_CALLERS:
        return
    assert [call for call in calls_of(path, "os") if call[1] in PATH_CALLS] == []
    assert [call for call in calls_of(path, "syscalls") if call[1] in SYSCALL_WRAPPERS] == []
    assert not {name for name in imports(path) if name.startswith(("os.", "pathlib", "shutil"))}
    names = {n.id for n in ast.walk(parsed(path)) if isinstance(n, ast.Name)}
    if path != PACKAGE / "fs/audit_log.py":  # reads the names of processes, in /proc
        assert "open" not in names


def test_every_name_in_the_source_is_relative_and_never_followed() -> None:
    """In source.py: a call that takes a name takes a directory, and follows no final symlink."""
    follows, pure = {"stat", "chown"}, {"fsencode", "fsdecode", "strerror"}
    for node in ast.walk(ast.parse((PACKAGE / "fs/source.py").read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "os"):
            continue
        if node.func.attr in pure:
            continue
        first = node.args[0] if node.args else None
        keywords = {keyword.arg for keyword in node.keywords}
        if isinstance(first, ast.Name) and first.id in ("name", "old", "target"):
            assert {"dir_fd", "src_dir_fd"} & keywords, ast.unparse(node)
            if node.func.attr in follows:
                assert "follow_symlinks" in keywords, ast.unparse(node)


def test_nothing_below_the_command_reads_arguments_or_the_environment() -> None:
    for path in [*SERVERS, *OPTIONS, PACKAGE / "linux/syscalls.py"]:
        assert not {name for _, name in calls_of(path, "os")} & {"environ", "getenv"}
        assert not {name for _, name in calls_of(path, "sys")} & {"argv"}
