"""Which parts may import which, and which modules may touch the source.

A part is a package of gitguardfs, or a module beside the packages.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs

PACKAGE = Path(gitguardfs.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
PARTS = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES}

LEAVES = {"__init__", "constants", "errors", "paths", "protocol", "signals"}
"""Import nothing of ours; everybody may import them."""
ALLOWED: dict[str, set[str]] = {
    "__main__": {"commands"},
    "accounts": {"linux"},  # inside a function: a home is walked by descriptors
    "findings": set(),
    "command_line": {"findings", "options"},
    "config_files": {"linux"},  # inside a function: a Mac has none of it
    "installation": set(),
    "questions": set(),
    "secret_names": set(),
    "spool": set(),
    "store_directory": set(),
    "guard": set(),
    "bindfs": set(),
    "linux": set(),
    "options": {"accounts", "guard", "bindfs"},
    "render": {"guard", "options"},
    "mounting": {
        "guard", "linux", "options",
    },
    "fs": {"guard", "bindfs", "linux", "options"},
    "serving": {"guard", "bindfs", "fs", "spool"},
    "sessions": {"serving"},
    "private": {"accounts", "command_line", "guard", "installation", "linux", "store_directory"},
    "local": {
        "audit", "command_line", "findings", "fs", "guard", "linux", "mounting", "options",
        "render", "serving", "store_directory",
    },
    "daemon": {
        "bindfs", "guard", "linux", "fs", "serving", "sessions", "options", "mounting", "local",
        "private", "spool",
    },
    # linux inside functions: gitguard audit runs on a Mac too, as does host
    "audit": {"accounts", "command_line", "findings", "guard", "linux", "render", "secret_names"},
    "credentials": {"config_files", "questions"},
    "egress": {"config_files", "credentials", "installation", "questions"},
    "fetch": {"audit", "command_line", "guard", "render"},
    "host": {
        "accounts", "audit", "command_line", "config_files", "guard", "installation", "linux",
        "options", "render",
    },
    "vm": {
        "audit", "command_line", "config_files", "credentials", "egress", "guard", "host",
        "installation", "render", "secret_names",
    },
    "vm_mount": {
        "accounts", "command_line", "config_files", "doctor", "findings", "guard", "installation",
        "linux", "mounting", "options", "render",
    },
    "doctor": {
        "accounts", "audit", "command_line", "findings", "guard", "linux", "local", "mounting",
        "private", "render",
    },
    "commands": {
        "command_line", "options", "linux", "mounting", "daemon", "sessions", "vm_mount",
    },
}  # fmt: skip
"""By part, which others it may import besides LEAVES; all else is forbidden."""
OF_LINUX = {"fs": {"linux.syscalls", "linux.reserved_blocks"}}
"""Parts that may import only some modules of ``linux``."""
ONLY_IN: dict[str, tuple[str, ...]] = {
    "pyfuse3": ("sessions/pyfuse3_session/",),
    "trio": ("sessions/pyfuse3_session/",),
    "click": (
        "command_line.py", "commands/", "host/", "audit/command.py", "doctor/command.py",
        "fetch/command.py", "local/command.py", "private/command.py", "vm/command.py",
        "vm/commands/", "vm/fetching.py", "vm_mount/command.py",
    ),
    "ctypes": ("linux/syscalls.py", "linux/reserved_blocks.py", "sessions/pyfuse3_session/",
               "egress/interfaces.py", "vm/die_with_parent.py"),
    "keyring": ("credentials/store.py",),
    "pwd": ("accounts.py",),
    "grp": ("accounts.py",),
    "mitmproxy": tuple(f"egress/{name}.py"
                       for name in ("addon", "faults", "http1", "proxy", "replies", "websocket")),
}  # fmt: skip
"""By imported package, where it may be imported: files, and directories with all in them."""

SERVERS = sorted(
    path for part in ("guard", "bindfs", "fs", "serving") for path in (PACKAGE / part).glob("*.py")
)
"""Modules that decide on requests and answer them."""
OPTIONS = sorted((PACKAGE / "options").glob("*.py"))
PURE = ("guard", "bindfs", "protocol", "render")
"""Parts that open no files, start no programs and look up no users."""
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
    code = f"import sys\n{statement}\nprint('\\n'.join(['', *sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return {name.partition(".")[0] for name in done.stdout.splitlines()}


def test_what_serves_requests_loads_no_session_and_no_command() -> None:
    files = [*SERVERS, *OPTIONS, *(PACKAGE / "linux").glob("*.py")]
    modules = ", ".join(
        f"gitguardfs.{path.parent.name}.{path.stem}" for path in files if path.stem != "__init__"
    )
    assert not loaded_after(f"import {modules}").intersection({"pyfuse3", "trio", "click"})


def test_a_start_loads_no_large_module_that_mounting_does_not_need() -> None:
    """After a crash the agent waits for it."""
    loaded = loaded_after("import gitguardfs.commands.gitguardfs, gitguardfs.daemon.run")
    assert not loaded.intersection({"difflib", "filecmp", "json", "pickle", "tarfile"})


def test_help_and_usage_errors_need_no_pyfuse3() -> None:
    for arguments in (["--help"], ["--version"], ["a", "b", "-o", "bogus"], []):
        statement = (
            f"sys.argv[1:] = {arguments!r}\n"
            "try:\n from gitguardfs.commands.gitguardfs import main\n main()\n"
            "except SystemExit: pass\n"
        )
        assert not loaded_after(statement).intersection({"pyfuse3", "trio"}), arguments


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            module = node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _ours(path: Path) -> set[str]:
    """Return what a file imports of this package, without the package's name."""
    return {
        name.removeprefix("gitguardfs.").replace("__version__", "__init__")
        for name in imports(path)
        if name.startswith("gitguardfs.")
    }


def test_every_part_is_in_the_table() -> None:
    assert set(ALLOWED) | LEAVES == PARTS
    assert not set(ALLOWED) & LEAVES
    assert set().union(*ALLOWED.values()) <= set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_are_those_of_the_table(path: Path) -> None:
    part, ours = _part(path), _ours(path)
    allowed = set() if part in LEAVES else ALLOWED[part] | LEAVES | {part}
    assert {name.partition(".")[0] for name in ours} <= allowed
    if part in OF_LINUX:
        of_linux = {".".join(name.split(".")[:2]) for name in ours if name.startswith("linux.")}
        assert of_linux <= OF_LINUX[part]


def test_every_import_of_the_table_is_used() -> None:
    used: dict[str, set[str]] = {part: set() for part in ALLOWED}
    for path in SOURCES:
        used.get(_part(path), set()).update(name.partition(".")[0] for name in _ours(path))
    assert {
        part: ALLOWED[part] - used[part] for part in ALLOWED if ALLOWED[part] - used[part]
    } == {}


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
    names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
    assert "open" not in names


def test_nobody_loads_mitmproxy_unasked() -> None:
    names = {path.stem for path in (PACKAGE / "egress").glob("*.py")}
    others = sorted(names - {"__init__", "addon", "faults", "http1", "replies", "websocket"})
    modules = ", ".join(f"gitguardfs.egress.{name}" for name in others)
    assert "mitmproxy" not in loaded_after(f"import {modules}")


def test_what_decides_on_requests_is_pure() -> None:
    """No files, no network, no time: the decision depends on the request and the text alone."""
    allowed = {"__future__", "base64", "binascii", "collections", "dataclasses", "enum",
               "gitguardfs", "ipaddress", "re", "typing", "unicodedata"}  # fmt: skip
    for name in ("addresses", "allowlist", "exchange", "presets", "requests", "urls"):
        found = imports(PACKAGE / f"egress/{name}.py")
        others = {module for module in found if not module.startswith("urllib.parse")}
        assert {module.partition(".")[0] for module in others} <= allowed, name


def calls_of(path: Path, module: str) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
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
    names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
    if path != PACKAGE / "serving/audit_log.py":  # reads the names of processes, in /proc
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


def test_the_adapter_is_the_only_one_that_knows_fuse_errors() -> None:
    for path in SOURCES:
        if "FUSEError" in path.read_text() and _part(path) != "sessions":
            pytest.fail(f"{path} names FUSEError")


def test_nothing_below_the_command_reads_arguments_or_the_environment() -> None:
    for path in [*SERVERS, *OPTIONS, PACKAGE / "linux/syscalls.py"]:
        assert not {name for _, name in calls_of(path, "os")} & {"environ", "getenv"}
        assert not {name for _, name in calls_of(path, "sys")} & {"argv"}
