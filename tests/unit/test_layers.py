"""Arrows point one way: what may import what, and who may touch the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gitguardfs

PACKAGE = Path(gitguardfs.__file__).parent
CORE = sorted(path for room in ("core", "fs", "guard") for path in (PACKAGE / room).glob("*.py"))
SOURCES = sorted(PACKAGE.rglob("*.py"))
LEAVES = {"constants", "errors", "findings", "protocol", "secret_names", "spool"}
"""Import nothing of ours; everybody may import them."""
ALLOWED: dict[str, set[str]] = {
    "commands": {"arguments", "core", "daemon", "fuse", "guest", "mounts", "table"},
    "mounting": {"core", "fuse", "linux", "mounts", "render"},
    "core": {"fs", "guard"},
    "fs": {"core", "guard"},
    "guard": {"core"},
    "serving": {"core"},
    "audit": {"commands", "core", "guard", "mounts", "render"},
    "linux": {"core", "mounts"},
    "sessions": {"core", "serving"},
    "daemon": set(),
    "egress": {"program", "writer"},
    "vm": {"egress", "host", "program", "render", "writer"},
}
"""By room, the other rooms that its modules may import."""
FORBIDDEN_IN_CORE = ("pyfuse3", "trio", "click")

# Calls of os that take a path or act relative to a directory.
PATH_CALLS = {
    "open", "stat", "lstat", "listdir", "scandir", "walk", "fwalk", "mkdir", "makedirs", "mknod",
    "mkfifo", "symlink", "link", "readlink", "rename", "renames", "replace", "remove", "unlink",
    "rmdir", "removedirs", "chmod", "lchmod", "chown", "lchown", "truncate", "utime", "access",
    "getxattr", "setxattr", "listxattr", "removexattr", "statvfs", "chdir", "fchdir", "pathconf",
}  # fmt: skip
SYSTEM_CALLERS = {"backing.py", "descriptors.py"}
SYSCALL_WRAPPERS = {"renameat2", "utimens", "mount", "umount"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(['', *sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return {name.partition(".")[0] for name in done.stdout.splitlines()}


def test_the_core_stands_alone() -> None:
    modules = ", ".join(
        f"gitguardfs.{path.parent.name}.{path.stem}" for path in CORE if path.stem != "__init__"
    )
    assert not loaded_after(f"import {modules}").intersection(FORBIDDEN_IN_CORE)


def test_help_and_usage_errors_need_no_pyfuse3() -> None:
    for arguments in (["--help"], ["--version"], ["a", "b", "-o", "bogus"], []):
        statement = (
            f"sys.argv[1:] = {arguments!r}\ntry:\n from gitguardfs.cli import main\n main()\n"
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


def _layer(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    found = imports(path)
    layer = _layer(path)
    tops = {name.partition(".")[0] for name in found}
    if layer != "fuse" and "pyfuse3_session" not in path.parts:
        assert not tops & {"pyfuse3", "trio"}
    if path in CORE:
        assert "click" not in tops
    if layer == "fuse":
        assert "click" not in tops
        assert "gitguardfs.cli" not in found
    if layer in ALLOWED:
        rooms = {name.split(".")[1] for name in found if name.startswith("gitguardfs.")}
        assert rooms <= ALLOWED[layer] | LEAVES | {layer}, rooms


def test_two_modules_know_mitmproxy() -> None:
    knowing = {path for path in SOURCES if any(n.startswith("mitmproxy") for n in imports(path))}
    assert knowing <= {PACKAGE / "egress/addon.py", PACKAGE / "egress/proxy.py"}
    modules = [f"gitguardfs.egress.{p.stem}" for p in (PACKAGE / "egress").glob("*.py")]
    others = ", ".join(name for name in modules if not name.endswith((".addon", ".__init__")))
    assert "mitmproxy" not in loaded_after(f"import {others}")


def test_what_decides_on_requests_is_pure() -> None:
    """No files, no network, no time: the decision depends on the request and the text alone."""
    allowed = {"__future__", "collections", "dataclasses", "enum", "gitguardfs", "ipaddress", "re",
               "typing"}  # fmt: skip
    for name in ("addresses", "allowlist", "presets", "requests", "urls"):
        found = imports(PACKAGE / f"egress/{name}.py")
        assert {module.partition(".")[0] for module in found} <= allowed, name


def calls_of(path: Path, module: str) -> list[tuple[int, str]]:
    return [
        (node.lineno, node.attr)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    ]


@pytest.mark.parametrize("path", CORE, ids=lambda p: p.name)
def test_only_two_modules_name_things_in_the_source(path: Path) -> None:
    if path.name in SYSTEM_CALLERS:
        return
    assert [call for call in calls_of(path, "os") if call[1] in PATH_CALLS] == []
    assert [call for call in calls_of(path, "syscalls") if call[1] in SYSCALL_WRAPPERS] == []
    assert not {name for name in imports(path) if name.startswith(("os.", "pathlib", "shutil"))}
    names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
    assert "open" not in names


def test_every_name_in_the_source_is_relative_and_never_followed() -> None:
    """In backing.py: a call that takes a name takes a directory, and follows no final symlink."""
    follows, pure = {"stat", "chown"}, {"fsencode", "fsdecode", "strerror"}
    for node in ast.walk(ast.parse((PACKAGE / "core/backing.py").read_text())):
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
        if "FUSEError" in path.read_text() and _layer(path) not in ("fuse", "sessions"):
            pytest.fail(f"{path} names FUSEError")


def test_nothing_below_the_command_reads_arguments_or_the_environment() -> None:
    for path in CORE:
        assert not {name for _, name in calls_of(path, "os")} & {"environ", "getenv"}
        assert not {name for _, name in calls_of(path, "sys")} & {"argv"}
