"""Real programs do their work on the mount, and git on the host sees it."""

import hashlib
import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.contained import NOWHERE
from tests.support.mounting import Mounted, area, gitguardfs, until
from tests.support.people import AGENT, as_user, reachable_python
from tests.support.repos import HOST_GID, HOST_UID, MAP, as_host, git

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
LIMIT = 120


def needs(program: str) -> str:
    """The program's path; a missing one skips the test, which fails the run in CI (conftest)."""
    found = shutil.which(program, path=PATH)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@dataclass(frozen=True)
class Desk:
    """A project as the host has it and as the guest's user works on it."""

    place: Path
    host: Path
    guest: Path
    mounted: Mounted

    def run(
        self, *arguments: str | Path, cwd: Path | None = None, ok: bool = True, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the guest's user."""
        done = subprocess.run(
            arguments,
            cwd=cwd or self.guest,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
            user=AGENT,
            group=AGENT,
            extra_groups=[],
        )
        if ok:
            assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(self.place / "home"), "LANG": "C.UTF-8", **more}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with area() as place:
        project = place / "project"
        project.mkdir()
        os.chown(project, HOST_UID, HOST_GID)
        git(project, "init", "--quiet", "--initial-branch=main")
        with as_host():
            (project / "README").write_text("first\n")
            (project / "src").mkdir()
            (project / "src/main.c").write_text("int main(void) { return 0; }\n")
        git(project, "add", ".")
        git(project, "commit", "--quiet", "--message=first")
        for name in ("home", "elsewhere"):
            (place / name).mkdir()
            os.chown(place / name, AGENT, AGENT)
        options = ("--map", MAP, "--cache-timeout", "0.2")
        with gitguardfs(project, place / "view", *options) as mounted:
            yield Desk(place, project, mounted.path, mounted)


def _tree(top: Path, stored: bytes = b"") -> dict[str, tuple[object, ...]]:
    """Return all that copies should keep: type, mode, time, content, and names of one file.

    ``stored``: what texts of links may begin with.
    """
    first: dict[tuple[int, int], str] = {}
    found: dict[str, tuple[object, ...]] = {}
    for directory, directories, files in os.walk(top):
        for name in sorted(directories + files):
            path = Path(directory) / name
            st = path.lstat()
            relative = str(path.relative_to(top))
            content: object = None
            if stat.S_ISLNK(st.st_mode):
                content = os.readlink(path).removeprefix(os.fsdecode(stored))
            elif stat.S_ISREG(st.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            shared = st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode)
            twin = first.setdefault((st.st_dev, st.st_ino), relative) if shared else None
            found[relative] = (stat.filemode(st.st_mode), st.st_mtime_ns, content, twin)
    return found


def _make_tree(top: str) -> None:
    """A tree with what archives have to keep."""
    place = Path(top)
    for d in range(5):
        directory = place / f"directory {d}/déep/deeper"
        directory.mkdir(parents=True)
        for f in range(20):
            file = directory / f"file{f}"
            file.write_bytes(os.urandom(f * 997))
            file.chmod((0o600, 0o644, 0o755, 0o444)[f % 4])
            os.utime(file, ns=(10**18 + f, 10**18 + f * 1_000_000_007))
        (directory / "link").symlink_to("file1")
        (directory / "dangling").symlink_to("/no/where")
        (directory / "hard").hardlink_to(directory / "file2")
        (place / f"directory {d}/far hard").hardlink_to(directory / "file3")
        os.mkfifo(directory / "fifo")
        (directory / "empty").mkdir(mode=0o750)
        with open(directory / "sparse", "wb") as sparse:
            sparse.truncate(1_000_000)
            sparse.seek(500_000)
            sparse.write(b"in the middle")
    for path in sorted(place.rglob("*"), reverse=True):
        # Long ago: rsync leaves a new link as it is when only fractions of a second differ.
        if path.is_symlink() or not path.is_file() or path.name == "sparse":
            os.utime(path, ns=(10**18, 10**18 + 123_456_789), follow_symlinks=False)


@pytest.fixture
def original(desk: Desk) -> Path:
    """A tree of the user's outside of the mount."""
    tree = desk.place / "elsewhere/tree"
    as_user(os.mkdir, str(tree))
    as_user(_make_tree, str(tree))
    return tree


# ----------------------------------------------------------------------- git on the host


def test_git_on_the_host_follows_what_the_guest_does(desk: Desk) -> None:
    assert git(desk.host, "status", "--porcelain") == ""
    desk.run("sh", "-c", "echo second >> README; mkdir docs; echo text > docs/new; rm src/main.c")
    status = git(desk.host, "status", "--porcelain", "--untracked-files=all")
    assert status.splitlines() == [" M README", " D src/main.c", "?? docs/new"]
    git(desk.host, "add", "--all")
    git(desk.host, "commit", "--quiet", "--message=the guest's work")
    assert git(desk.host, "status", "--porcelain") == ""
    git(desk.host, "fsck", "--strict")
    assert len(git(desk.host, "log", "--oneline").splitlines()) == 2
    assert git(desk.host, "show", "HEAD:docs/new") == "text\n"
    desk.run("mv", "docs/new", "docs/moved")
    assert "R  docs/new -> docs/moved" in _staged(desk)


def _staged(desk: Desk) -> str:
    git(desk.host, "add", "--all")
    return git(desk.host, "status", "--porcelain")


def test_the_guest_follows_a_checkout_on_the_host(desk: Desk) -> None:
    git(desk.host, "checkout", "--quiet", "-b", "other")
    with as_host():
        (desk.host / "README").write_text("other, and longer\n")
        (desk.host / "only-other").write_text("text\n")
        shutil.rmtree(desk.host / "src")
        (desk.host / "src").symlink_to("README")
    git(desk.host, "add", "--all")
    git(desk.host, "commit", "--quiet", "--message=other")
    for _ in range(3):
        git(desk.host, "checkout", "--quiet", "main")
        until((desk.guest / "src/main.c").exists, "the tree of main")
        until(lambda: not (desk.guest / "only-other").exists(), "without the other's file")
        assert desk.run("cat", "README").stdout == "first\n"
        git(desk.host, "checkout", "--quiet", "other")
        until((desk.guest / "src").is_symlink, "the tree of other")
        until((desk.guest / "only-other").exists, "with its file")
        assert desk.run("cat", "README").stdout == "other, and longer\n"
    git(desk.host, "checkout", "--quiet", "main")
    until((desk.guest / "src").is_dir, "the tree of main")
    desk.run("sh", "-c", "echo guest > src/guest.c")
    assert git(desk.host, "status", "--porcelain") == "?? src/guest.c\n"


def test_git_sees_an_edit_of_the_same_size(desk: Desk) -> None:
    for text in ("FIRST", "First", "first", "fIRST"):
        desk.run("sh", "-c", f"printf '{text}\\n' > README")
        wanted = "" if text == "first" else " M README\n"
        assert git(desk.host, "status", "--porcelain") == wanted


def test_git_in_the_guest_says_what_is_wrong_and_changes_nothing(desk: Desk) -> None:
    needs("git")
    done = desk.run("git", "status", ok=False)
    assert done.returncode != 0
    assert done.stderr
    done = desk.run("git", "init", "--quiet", "new", ok=False)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    assert not (desk.host / "new/.git").exists()


def test_a_listing_with_a_repository_complains_about_nothing(desk: Desk) -> None:
    """ls(1) asks for access lists, and the kernel asks the mount for them until it says ENOSYS."""
    assert desk.run("ls", "-l", "--directory", ".git").stderr == ""


def test_a_clone_inside_the_mount_fails_clearly_and_ends(desk: Desk) -> None:
    needs("git")
    seed = desk.place / "elsewhere/seed"
    desk.run("git", "init", "--quiet", "--bare", seed)
    done = desk.run("git", "clone", "--quiet", seed, "clone", ok=False)
    assert done.returncode != 0
    assert ".git: Permission denied" in done.stderr
    assert not (desk.host / "clone/.git").exists()
    git(desk.host, "fsck", "--strict")
    assert git(desk.host, "status", "--porcelain") == ""


# ---------------------------------------------------------------------- Archives and copies


def test_tar_unpacks_into_the_mount_and_packs_from_it(desk: Desk, original: Path) -> None:
    desk.run("tar", "-C", original, "-cf", desk.place / "elsewhere/a.tar", "--format=pax", ".")
    desk.run("mkdir", "tree")
    desk.run("tar", "-C", "tree", "-xpf", desk.place / "elsewhere/a.tar")
    assert _tree(desk.guest / "tree") == _tree(original)
    assert _tree(desk.host / "tree", NOWHERE) == _tree(original)
    owners = {(p.lstat().st_uid, p.lstat().st_gid) for p in (desk.host / "tree").rglob("*")}
    assert owners == {(HOST_UID, HOST_GID)}
    desk.run("tar", "-cf", desk.place / "elsewhere/b.tar", "--format=pax", "-C", "tree", ".")
    with tarfile.open(desk.place / "elsewhere/b.tar") as packed:
        kinds = {member.name: member.type for member in packed}
    assert len(kinds) == len(_tree(original)) + 1
    assert sum(kind == tarfile.LNKTYPE for kind in kinds.values()) == 10
    desk.run("tar", "--compare", "-f", desk.place / "elsewhere/b.tar", "-C", original)


def test_rsync_copies_in_and_finds_nothing_to_do_again(desk: Desk, original: Path) -> None:
    needs("rsync")
    desk.run("rsync", "-aH", f"{original}/", "tree/")
    assert _tree(desk.guest / "tree") == _tree(original)
    again = desk.run("rsync", "-aH", "--checksum", "--itemize-changes", f"{original}/", "tree/")
    assert again.stdout == ""
    desk.run("rsync", "-aH", "--delete", "--inplace", f"{desk.guest}/tree/", f"{original}-back/")
    assert _tree(Path(f"{original}-back")) == _tree(original)


@pytest.mark.parametrize("program", [("cp", "-p", "-r"), ("cp", "-a"), ("rsync", "-aA"), ("mv",)])
def test_a_tree_with_access_lists_is_copied_with_its_modes(
    desk: Desk, program: tuple[str, ...]
) -> None:
    """The lists themselves are not kept: they name users."""
    tree = desk.place / "home/tree"
    tree.mkdir()
    (tree / "file").write_text("text")
    tree.chmod(0o750)
    # The owner, the user 1234, the group, the mask, others: their rights (acl(5)).
    rights = ((1, 7, 0), (2, 7, 1234), (4, 5, 0), (16, 7, 0), (32, 0, 0))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in rights)
    for path, name in ((tree, "access"), (tree, "default"), (tree / "file", "access")):
        os.setxattr(path, f"system.posix_acl_{name}", value)
        os.chown(path, AGENT, AGENT)
    needs(program[0])
    desk.run(*program, str(tree), "copy" if program[0] == "mv" else ".")
    copy = desk.guest / ("copy" if program[0] == "mv" else "tree")
    for path in (copy, copy / "file"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert as_user((copy / "file").read_text) == "text"


def test_rm_rf_takes_all_but_a_repository(desk: Desk) -> None:
    inner = desk.host / "vendor/inner"
    with as_host():
        inner.mkdir(parents=True)
    git(inner, "init", "--quiet")
    with as_host():
        for d in range(3):
            (desk.host / f"vendor/other{d}/deep").mkdir(parents=True)
            (desk.host / f"vendor/other{d}/deep/file").touch()
        (inner / "work").mkdir()
        (inner / "work/file").write_text("text")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "--message=inner")
    until((desk.guest / "vendor").exists, "the host's new directory")
    done = desk.run("rm", "-rf", "vendor", ok=False)
    assert done.returncode == 1
    assert "'vendor/inner': Directory not empty" in done.stderr
    left = sorted(str(p.relative_to(desk.host)) for p in desk.host.glob("vendor/**/*"))
    assert [name for name in left if "/.git/" not in name] == ["vendor/inner", "vendor/inner/.git"]
    git(inner, "fsck", "--strict")
    git(inner, "checkout", "--quiet", "--", ".")
    assert (inner / "work/file").read_text() == "text"


# ------------------------------------------------------------------------------- Databases

TRANSACTIONS = 100

SQLITE_WRITER = f"""
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
connection.execute("pragma synchronous = normal")
for turn in range({TRANSACTIONS}):
    connection.execute("begin immediate")
    (total,) = connection.execute("select total from sums").fetchone()
    connection.execute("insert into lines values (?, ?)", (sys.argv[2], turn))
    connection.execute("update sums set total = ?", (total + 1,))
    connection.execute("commit")
"""


@pytest.mark.parametrize("journal", ["delete", "wal", "truncate"])
@pytest.mark.every_processor
def test_sqlite_keeps_transactions_of_two_processes_apart(desk: Desk, journal: str) -> None:
    """WAL shares memory between the processes through a mapped file."""
    as_user(_make_database, str(desk.guest / "data.db"), journal)
    python = needs("python3")
    writers = [
        subprocess.Popen(
            [python, "-c", SQLITE_WRITER, desk.guest / "data.db", name],
            env=desk.environment(),
            user=AGENT,
            group=AGENT,
            extra_groups=[],
        )
        for name in ("one", "two")
    ]
    assert [writer.wait(LIMIT) for writer in writers] == [0, 0]
    for database in (desk.guest / "data.db", desk.host / "data.db"):
        connection = sqlite3.connect(database)
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        assert connection.execute("select total from sums").fetchone() == (2 * TRANSACTIONS,)
        assert connection.execute("select count(*) from lines").fetchone() == (2 * TRANSACTIONS,)
        connection.close()


def _make_database(path: str, journal: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute(f"pragma journal_mode = {journal}").fetchone() == (journal,)
    connection.execute("create table sums (total integer)")
    connection.execute("create table lines (who text, turn integer)")
    connection.execute("insert into sums values (0)")
    connection.commit()
    connection.close()


# ------------------------------------------------------------------------ Package managers


def wheel(directory: Path) -> Path:
    """A package with one module and one command, built by hand."""
    path = directory / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny/__init__.py": "def main():\n    print('tiny works')\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
    }
    record = "tiny-1.0.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{name},,\n" for name in (*files, record)))
    return path


def test_pip_installs_into_a_virtual_environment_in_the_mount(desk: Desk) -> None:
    python = needs("python3")
    if desk.run(python, "-c", "import venv, ensurepip", ok=False).returncode != 0:
        needs("the module ensurepip (python3-venv)")
    desk.run(python, "-m", "venv", ".venv")
    desk.run(
        ".venv/bin/python", "-m", "pip", "install", "--no-index", "--quiet",
        "--disable-pip-version-check", wheel(desk.place),
    )  # fmt: skip
    assert desk.run(desk.guest / ".venv/bin/tiny").stdout == "tiny works\n"
    desk.run(".venv/bin/python", "-m", "pip", "uninstall", "--yes", "--quiet", "tiny")
    assert not (desk.guest / ".venv/bin/tiny").exists()
    assert desk.run("rm", "-rf", ".venv").stderr == ""


# -------------------------------------------------------------------------------- Building

MAKEFILE = """\
all: program
program: main.o part.o
\tgcc -o $@ $^
%.o: %.c part.h
\tgcc -c -o $@ $<
\techo $@ >> built
"""


@pytest.mark.every_processor
def test_make_builds_what_changed_and_nothing_else(desk: Desk) -> None:
    needs("gcc")
    needs("make")
    work = desk.guest / "c"
    desk.run("mkdir", work)
    as_user(_make_c_program, str(work))
    desk.run("make", "-j2", cwd=work)
    assert desk.run("./program", cwd=work, ok=False).returncode == 3
    assert "up to date" in _make(desk, work) or "Nothing to be done" in _make(desk, work)
    built = work / "built"
    for changed, objects in (
        ("part.c", ["part.o"]), ("main.c", ["main.o"]), ("part.h", ["main.o", "part.o"]),
        ("part.c", ["part.o"]),
    ):  # fmt: skip
        as_user(built.unlink)
        desk.run("touch", changed, cwd=work)
        _make(desk, work)
        assert sorted(built.read_text().split()) == objects, f"after touch {changed}"
        assert "Nothing to be done" in _make(desk, work)
    # An edit on the host, of the same size.
    with as_host():
        (desk.host / "c/part.c").write_text('#include "part.h"\nint part(void) { return 5; }\n')
    until(lambda: "Nothing to be done" not in _make(desk, work), "make sees the host's edit")
    assert desk.run("./program", cwd=work, ok=False).returncode == 5


def _make(desk: Desk, work: Path) -> str:
    return desk.run("make", cwd=work).stdout


def _make_c_program(path: str) -> None:
    work = Path(path)
    (work / "part.h").write_text("int part(void);\n")
    (work / "part.c").write_text('#include "part.h"\nint part(void) { return 3; }\n')
    (work / "main.c").write_text('#include "part.h"\nint main(void) { return part(); }\n')
    (work / "Makefile").write_text(MAKEFILE)


def test_python_compiles_and_tests_run_in_the_mount(desk: Desk) -> None:
    as_user(_make_python_package, str(desk.guest / "py"))
    with reachable_python() as python:
        desk.run(python, "-m", "compileall", "-q", "py")
        caches = list((desk.host / "py").rglob("*.pyc"))
        assert len(caches) == 2
        done = desk.run(python, "-m", "pytest", "-q", "py", "-p", "no:trio", "-p", "no:hypothesis")
        assert "3 passed" in done.stdout
        with as_host():
            (desk.host / "py/thing.py").write_text("def value():\n    return 40 + 3\n")
        done = desk.run(python, "-m", "pytest", "-q", "py", "-p", "no:trio", ok=False)
        assert "3 failed" in done.stdout, "the edit on the host counts, not the old bytecode"


def _make_python_package(path: str) -> None:
    package = Path(path)
    package.mkdir()
    (package / "thing.py").write_text("def value():\n    return 42\n")
    (package / "test_thing.py").write_text(
        textwrap.dedent("""\
            import pytest
            from thing import value

            @pytest.mark.parametrize("turn", range(3))
            def test_value(turn, tmp_path):
                assert value() == 42
        """)
    )


# ---------------------------------------------------------------------- Searching, editing


def test_ripgrep_searches_and_finds_nothing_of_git(desk: Desk, original: Path) -> None:
    needs("rg")
    desk.run("cp", "-a", original, "tree")
    desk.run("sh", "-c", "echo needle > 'tree/directory 3/déep/hay'")
    found = desk.run("rg", "--files-with-matches", "needle").stdout
    assert found == "tree/directory 3/déep/hay\n"
    done = desk.run("rg", "--hidden", "--no-ignore", "--files-with-matches", "refs/heads", ok=False)
    assert (done.stdout, done.stderr) == ("", "")


def test_vim_saves_in_either_way(desk: Desk) -> None:
    vim = needs("vim")
    for way in ("yes", "no", "auto"):
        script = (f"set backupcopy={way} backup", f"normal Go{way}", "wq")
        commands = [word for command in script for word in ("-c", command)]
        desk.run(vim, "-u", "NONE", "-N", "-es", *commands, "README", TERM="dumb")
        assert (desk.host / "README").read_text().endswith(f"{way}\n")
    assert (desk.host / "README").read_text() == "first\nyes\nno\nauto\n"


def test_a_shell_works_as_on_any_directory(desk: Desk) -> None:
    script = """
        set -eu
        mkdir -p a/b/c && cd a/b/c
        for n in 1 2 3 4 5; do echo $n >> numbers; done
        test "$(wc -l < numbers)" = 5
        sort -r numbers -o numbers && test "$(head -1 numbers)" = 5
        sed -i s/5/five/ numbers && grep -q five numbers
        ln -s numbers link && test "$(readlink link)" = numbers && cat link > /dev/null
        ln numbers hard && test "$(stat -c %h numbers)" = 2 && test numbers -ef hard
        test "$(stat -c %i numbers)" = "$(ls -i hard | cut -d' ' -f1)"
        find ../.. -name 'num*' | grep -q numbers
        touch -d '2001-02-03 04:05:06' numbers && test "$(stat -c %Y numbers)" = \
            "$(date -d '2001-02-03 04:05:06' +%s)"
        chmod 640 numbers && test "$(stat -c %a numbers)" = 640
        dd if=/dev/zero of=big bs=64k count=20 conv=fsync status=none
        truncate -s 100 big && test "$(stat -c %s big)" = 100
        flock big true
        mkfifo pipe && (echo through > pipe &) && test "$(cat pipe)" = through
        du -sh . > /dev/null && df . > /dev/null
        test "$(pwd -P)" = "$(readlink -f .)"
        cd ../../.. && rm -r a && test ! -e a
    """
    desk.run("bash", "-c", script)
    assert sorted(os.listdir(desk.host)) == [".git", "README", "src"]
