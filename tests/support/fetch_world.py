"""A human's repository and an agent's beside it, for tests of ``gitguard fetch``."""

import atexit
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from gitguardfs.base.installation import PACKAGE_PARENT

COMMAND = (sys.executable, "-c", "from gitguardfs.commands.gitguard import main; main()", "fetch")
BUNDLE = ".gitguard/agent.bundle"
AUTHOR = b"Agent <agent@example.org> 1700000000 +0000"
TYPES = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}


@dataclass(frozen=True)
class World:
    """``host`` is the human's checkout, ``agent`` the agent's repository; both share no file."""

    home: Path
    host: Path
    agent: Path

    @property
    def bundle(self) -> Path:
        return self.host / BUNDLE

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PYTHONPATH": PACKAGE_PARENT,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def git(self, place: Path, *words: str | Path, given: bytes = b"", check: bool = True) -> str:
        done = subprocess.run(
            ["git", "-C", place, *words], env=self.environment(), input=given,
            capture_output=True, timeout=120,
        )  # fmt: skip
        assert not check or done.returncode == 0, (words, done.stderr)
        return done.stdout.decode(errors="surrogateescape").rstrip("\n")

    def commit(
        self, files: Mapping[str, str], place: Path | None = None, message: str = "work"
    ) -> str:
        """Commit files in the agent's repository, or in ``place``."""
        place = place or self.agent
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        self.git(place, "add", "-f", "--", *files)
        self.git(place, "commit", "-q", "--allow-empty", "-m", message)
        return self.git(place, "rev-parse", "HEAD")

    def publish(self, host: Path | None = None) -> None:
        """Write the bundle as the agent's hook does."""
        self.git(
            self.agent, "bundle", "create", "-q", self.agent / ".git/new.bundle",
            "--branches", "--tags", "--not", "--remotes=host",
        )  # fmt: skip
        self.write((self.agent / ".git/new.bundle").read_bytes(), host)

    def write(self, content: bytes, host: Path | None = None) -> None:
        """Write these bytes as the bundle."""
        directory = (host or self.host) / ".gitguard"
        directory.mkdir(exist_ok=True)
        (directory / ".gitignore").write_text("*\n")
        (directory / "agent.bundle").write_bytes(content)

    def share_files(self) -> None:
        """Give the human's work tree the agent's files: with a guard they are the same."""
        for path in self.host.iterdir():
            if path.name not in (".git", ".gitguard"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.agent.iterdir():
            if path.name != ".git":
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, self.host / path.name)

    def fetch(
        self, *words: str | Path, at: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, words)], cwd=at or self.host, capture_output=True, text=True,
            env={**self.environment(), **more}, timeout=100,
        )  # fmt: skip

    def fetched(self, *words: str | Path, at: Path | None = None) -> dict[str, Any]:
        """Fetch, and return the report."""
        done = self.fetch(*words, "--json", at=at)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def state(self) -> dict[str, object]:
        """Record the human's refs, objects, index and files, and what is in TMPDIR."""
        files = {
            str(path.relative_to(self.host)): path.read_bytes()
            for path in self.host.rglob("*")
            if path.is_file() and path != self.bundle and "logs" not in path.parts
        }
        return {
            "refs": self.git(self.host, "for-each-ref"),
            "objects": self.git(
                self.host, "cat-file", "--batch-all-objects", "--batch-check", "--unordered"
            ),
            "count": self.git(self.host, "count-objects", "-v"),
            "files": files,
            "left": sorted(os.listdir(self.home / "tmp")),
        }

    def refused(self, *said: str, words: Sequence[str] = ()) -> str:
        """Assert that the bundle is refused, in one line, and that nothing is left of it."""
        before = self.state()
        done = self.fetch(*words)
        assert done.returncode == 3 and done.stdout == "", (done.stdout, done.stderr)
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
        assert done.stderr.rstrip("\n").isprintable()
        for one in said:
            assert one in done.stderr, done.stderr
        assert self.state() == before
        return done.stderr

    @contextmanager
    def is_real(self, *refspecs: str) -> Iterator[Path]:
        """Yield a copy of the human's repository that has fetched the bundle by git alone."""
        copy = self.home / "unguarded"
        shutil.copytree(self.host, copy)
        refs = refspecs or ("+refs/*:refs/agent/*",)
        self.git(copy, "fetch", "-q", BUNDLE, *refs)
        yield copy
        shutil.rmtree(copy)

    def put(self, kind: str, content: bytes) -> str:
        """Write an object of any content to the agent's repository."""
        words = ("hash-object", "--literally", "-t", kind, "-w", "--stdin")
        return self.git(self.agent, *words, given=content)

    def tree(self, *entries: tuple[str, bytes, str]) -> str:
        """Write a tree of (mode, name, object) as given."""
        return self.put("tree", b"".join(entry(*one) for one in entries))

    def commit_of(self, tree: str, message: bytes = b"work", parent: str = "") -> str:
        """Write a commit of a tree, with the host's branch as its parent unless one is given."""
        above = parent or self.git(self.agent, "rev-parse", "host/main")
        return self.put("commit", commit_text(tree, message, above))

    def write_objects(self, refs: Mapping[str, str], objects: Sequence[str]) -> None:
        """Write a bundle of these refs and of just these objects."""
        pack = subprocess.run(
            ["git", "-C", self.agent, "pack-objects", "--stdout", "-q"], env=self.environment(),
            input="\n".join(objects).encode(), capture_output=True, check=True,
        ).stdout  # fmt: skip
        base = self.git(self.agent, "rev-parse", "host/main")
        self.write(header(refs, [base]) + pack)

    def write_tree(self, *entries: tuple[str, bytes, str], more: Sequence[str] = ()) -> str:
        """Write a bundle whose branch has a commit of such a tree; return the commit."""
        blob = self.put("blob", b"content\n")
        tree = self.tree(*entries)
        commit = self.commit_of(tree)
        self.write_objects({"refs/heads/evil": commit}, [blob, tree, commit, *more])
        return commit


def entry(mode: str, name: bytes, value: str) -> bytes:
    return b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(value))


def commit_text(tree: str, message: bytes, parent: str = "") -> bytes:
    above = b"parent %s\n" % parent.encode() if parent else b""
    return b"tree %s\n%sauthor %s\ncommitter %s\n\n%s\n" % (
        tree.encode(), above, AUTHOR, AUTHOR, message
    )  # fmt: skip


def object_id(kind: str, content: bytes) -> str:
    return sha1(b"%s %d\0%s" % (kind.encode(), len(content), content)).hexdigest()


def header(refs: Mapping[str, str], prerequisites: Sequence[str] = ()) -> bytes:
    lines = [f"-{one} base" for one in prerequisites]
    lines += [f"{value} {name}" for name, value in refs.items()]
    return "".join(f"{line}\n" for line in ["# v2 git bundle", *lines, ""]).encode()


def pack_of(*packed: bytes) -> bytes:
    """Return a pack of objects that are packed already."""
    content = struct.pack(">4sII", b"PACK", 2, len(packed)) + b"".join(packed)
    return content + sha1(content).digest()


def packed(kind: int, size: int, content: bytes, before: bytes = b"") -> bytes:
    """Return an object as a pack holds it; ``before`` names the base of a delta."""
    return _packed_head(kind, size) + before + zlib.compress(content)


def packed_zeros(mebibytes: int) -> bytes:
    """Return a blob of zeros as a pack holds it, without compressing them all."""
    size = mebibytes << 20
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    one = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    sums = struct.pack(">HH", size % 65521, 1)  # Adler-32
    zeros = b"\x78\x9c" + one * mebibytes + b"\x03\x00" + sums
    return _packed_head(TYPES["blob"], size) + zeros


def _packed_head(kind: int, size: int) -> bytes:
    first, size = (kind << 4) | (size & 15), size >> 4
    head = bytearray()
    while size:
        head.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    head.append(first)
    return bytes(head)


@contextmanager
def world() -> Iterator[World]:
    """Yield a world in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir="/var/tmp") as directory:
        home = Path(directory).resolve() / "home"
        shutil.copytree(_original(), home)
        yield _at(home)


@pytest.fixture
def fixture() -> Iterator[World]:
    with world() as made:
        yield made


def _at(home: Path) -> World:
    return World(home, home / "host", home / "agent")


@cache
def _original() -> Path:
    """Make the world that the others are copies of."""
    home = Path(tempfile.mkdtemp(prefix="fetch-", dir="/var/tmp")).resolve()
    atexit.register(shutil.rmtree, home)
    (home / "tmp").mkdir()
    world = _at(home)
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Human\n\temail = human@example.org\n[init]\n\tdefaultBranch = main\n"
        "\ttemplateDir =\n[core]\n\tfsync = none\n"
    )
    world.git(home, "init", "-q", "host")
    lines = "".join(f"line {number}\n" for number in range(20))
    world.commit({"a.txt": lines, "src/b.txt": lines}, world.host, "first")
    world.commit({"a.txt": f"{lines}end\n"}, world.host, "second")
    world.git(home, "clone", "-q", "-o", "host", "host", "agent")
    for key, value in {"name": "Agent", "email": "agent@example.org"}.items():
        world.git(world.agent, "config", f"user.{key}", value)
    world.git(world.agent, "config", "remote.host.url", "../host")
    return home
