"""``gitguard fetch`` on bundles that an agent made by hand: refused, and nothing is left behind.

Each attack is shown to be real first: git alone takes the same bundle.
"""

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gitguardfs.host.fetch import summary
from gitguardfs.host.fetch.quarantine import MAX_OBJECTS
from tests.support import fetch_world
from tests.support.fetch_world import (
    COMMAND,
    TYPES,
    World,
    commit_text,
    entry,
    header,
    object_id,
    pack_of,
    packed,
    packed_zeros,
)
from tests.support.mounting import until

world = fetch_world.fixture


def base(world: World) -> str:
    return world.git(world.host, "rev-parse", "main")


# Trees

NAMES = [
    b".git", b".GIT", b".gIt", b"git~1", b"GIT~1", b"..", b".", b"a/b", b".git/hooks",
    b".git ", b".git.", b".git...", b".git::$INDEX_ALLOCATION", b".g\xe2\x80\x8cit",
    b".git\xef\xbb\xbf", b"\xe2\x80\x8e.Git",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_tree_with_a_name_that_is_not_one(world: World, name: bytes) -> None:
    blob = world.put("blob", b"content\n")
    inner = world.tree(("100755", b"post-checkout", blob))
    world.write_tree(("40000", name, inner), more=[inner])
    with world.is_real() as copy:
        listed = world.git(copy, "ls-tree", "-z", "refs/agent/heads/evil")
        assert b"\t%s\0" % name in listed.encode(errors="surrogateescape")
    world.refused("is refused: git index-pack: ")


@pytest.mark.parametrize(
    "entries",
    [
        [("100644", b"a"), ("100644", b"a")],
        [("100644", b"b"), ("100644", b"a")],
        [("100644", b"a"), ("40000", b"a")],
        [("100666", b"a")],
        [("0100644", b"a")],
        [("120000", b".gitmodules")],
        [("120000", b".gitattributes")],
        [("120000", b".GITMODULES")],
        [("120000", b"gitmod~1")],
    ],
    ids=str,
)
def test_a_tree_that_git_would_not_write(world: World, entries: list[tuple[str, bytes]]) -> None:
    blob = world.put("blob", b"content\n")
    inner = world.tree(("100644", b"x", blob))
    world.write_tree(
        *((mode, name, inner if mode == "40000" else blob) for mode, name in entries), more=[inner]
    )
    with world.is_real() as copy:
        assert world.git(copy, "rev-parse", "refs/agent/heads/evil")
    world.refused("is refused: git index-pack: ")


def test_a_symlink_for_attributes_that_is_the_humans_own(world: World) -> None:
    (world.host / ".gitattributes").symlink_to("src/b.txt")
    world.commit({".gitattributes": "*.x text\n"}, world.host)
    world.git(world.agent, "pull", "-q", "host", "main")
    commit = world.commit({"a.txt": "changed\n"})
    world.publish()
    world.fetched("--merge", "main")
    assert world.git(world.host, "rev-parse", "HEAD") == commit
    blob = world.put("blob", b"content\n")
    world.write_tree(("120000", b".gitattributes", blob), ("100666", b"x", blob))
    world.refused("is refused: git index-pack: ", "Filemode")
    for name in (".gitattributes", ".GITATTRIBUTES", "gitatt~1", "src/.gitattributes"):
        world.git(world.agent, "reset", "-q", "--hard", commit)
        for text in ("/etc/passwd", "elsewhere"):  # in a commit that is not the last one, too
            (world.agent / name).unlink(missing_ok=True)
            (world.agent / name).symlink_to(text)
            world.git(world.agent, "add", "-A", "-f")
            world.git(world.agent, "commit", "-q", "-m", "link")
            world.publish()
            world.refused("is refused: git index-pack: ", "gitattributesSymlink")
        world.git(world.agent, "rm", "-q", name)
        world.git(world.agent, "commit", "-q", "-m", "no link")
        world.publish()
        world.refused("is refused: git index-pack: ", "gitattributesSymlink")


def test_a_symlink_for_attributes_on_another_branch_of_the_humans(world: World) -> None:
    world.git(world.host, "checkout", "-q", "-b", "other")
    (world.host / ".gitattributes").symlink_to("src/b.txt")
    world.commit({".gitattributes": "*.x text\n", "d.txt": "d"}, world.host)
    world.git(world.host, "checkout", "-q", "main")
    world.git(world.agent, "fetch", "-q", "host")
    world.git(world.agent, "checkout", "-q", "-b", "fix", "host/other")
    world.commit({"a.txt": "changed\n"})
    world.git(world.agent, "checkout", "-q", "-b", "merged", "host/main")
    world.commit({"c.txt": "c"})
    world.git(world.agent, "branch", "picked")
    world.git(world.agent, "merge", "-q", "-m", "merge", "host/other")
    world.git(world.agent, "checkout", "-q", "picked")
    world.git(world.agent, "cherry-pick", "host/other")
    world.publish()
    assert {one["name"] for one in world.fetched()["branches"]} == {"fix", "merged", "picked"}


@pytest.mark.parametrize(
    "lines",
    ["path = x\n\turl = -u./payload", "path = -x\n\turl = ./x",
     "path = x\n\turl = ./x\n\tupdate = !touch x"],
)  # fmt: skip
@pytest.mark.parametrize("at", ["root", "known"])
def test_a_gitmodules_that_runs_something(world: World, lines: str, at: str) -> None:
    text = f'[submodule "x"]\n\t{lines}\n'
    blob = world.put("blob", text.encode())
    if at == "known":  # the human has the blob, as another file
        world.commit({"fixture": text}, world.host)
        world.git(world.agent, "fetch", "-q", "host")
    world.write_tree(("100644", b".gitmodules", blob), more=[] if at == "known" else [blob])
    with world.is_real() as copy:
        assert lines.split("\n")[0] in world.git(copy, "show", "refs/agent/heads/evil:.gitmodules")
    world.refused("gitmodules")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..\\\\x"])
def test_a_submodule_whose_name_leads_out(world: World, name: str) -> None:
    blob = world.put("blob", f'[submodule "{name}"]\n\tpath = x\n\turl = ./x\n'.encode())
    world.write_tree(("100644", b".gitmodules", blob), more=[blob])
    world.refused("gitmodulesName")


def test_a_gitmodules_that_git_cannot_read(world: World) -> None:
    blob = world.put("blob", b'[submodule "x"]\n\turl = ./x\n[broken')
    world.write_tree(("100644", b".gitmodules", blob), more=[blob])
    with world.is_real():
        pass
    world.refused("gitmodulesParse")


# Refs


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("HEAD", "HEAD"),
        ("refs/heads/HEAD", "refs/agent/heads/HEAD"),
        ("refs/replace/BASE", "refs/agent/replace/BASE"),
        ("refs/remotes/host/main", "refs/agent/remotes/host/main"),
        ("refs/heads/a\u202eb", "refs/agent/heads/a\u202eb"),
        ("refs/heads/$(touch${IFS}x)", "refs/agent/heads/$(touch${IFS}x)"),
        ("refs/heads/-x", "refs/agent/heads/-x"),
        ("refs/heads/--upload-pack=touch-x", "refs/agent/heads/--upload-pack=touch-x"),
    ],
)
def test_a_ref_of_another_name(world: World, name: str, place: str) -> None:
    commit = world.commit({"x": "x"})
    name, place = (one.replace("BASE", base(world)) for one in (name, place))
    objects = world.git(
        world.agent, "rev-list", "--objects", "--no-object-names", "host/main..HEAD"
    )
    world.write_objects({"refs/heads/good": commit, name: commit}, objects.split())
    if name != "HEAD":
        with world.is_real() as copy:
            found = world.git(copy, "for-each-ref", "--format=%(refname)")
            assert place in found.split("\n")
    world.refused("it has a ref of the name")


# Tips and objects


def test_a_tip_that_is_no_commit(world: World) -> None:
    blob = world.put("blob", b"x")
    tree = world.tree(("100644", b"x", blob))
    commit = world.commit_of(tree)
    tag = world.put("tag", b"object %s\ntype blob\ntag x\ntagger %s\n\nx\n"
                    % (blob.encode(), fetch_world.AUTHOR))  # fmt: skip
    everything = [blob, tree, commit, tag]
    for name, value in {"heads/x": blob, "heads/y": tree, "tags/x": blob, "tags/y": tag,
                        "heads/z": tag}.items():  # fmt: skip
        world.write_objects({"refs/heads/good": commit, f"refs/{name}": value}, everything)
        world.refused(f"refs/{name} leads to no commit")


def test_a_tip_that_is_absent_and_a_commit_that_is_absent(world: World) -> None:
    commit = world.commit({"x": "x"})
    world.publish()
    good = world.bundle.read_bytes()
    world.write(good.replace(f"{commit} refs".encode(), b"%s refs" % (b"1" * 40)))
    world.refused("refs/heads/main leads to no commit (missing)")
    world.write(good.replace(f"-{base(world)}".encode(), b"-%s" % (b"1" * 40)))
    world.refused("builds on commit 111111111111, which this repository does not have")


@pytest.mark.parametrize("left_out", ["blob", "tree", "parent"])
def test_an_object_that_is_left_out(world: World, left_out: str) -> None:
    blob = world.put("blob", b"secret")
    tree = world.tree(("100644", b"x", blob))
    first = world.commit_of(tree)
    second = world.commit_of(tree, b"more", parent=first)
    objects = {"blob": blob, "tree": tree, "parent": first}
    del objects[left_out]
    world.write_objects({"refs/heads/x": second}, [*objects.values(), second])
    world.refused("is refused: git ")


@pytest.mark.parametrize("length", [0.1, 0.5, 0.9, 0.999])
def test_a_bundle_that_ends_early(world: World, length: float) -> None:
    world.commit({"x": "x" * 1000})
    world.publish()
    content = world.bundle.read_bytes()
    world.write(content[: int(len(content) * length)])
    world.refused("is refused")


def test_a_bundle_with_a_flipped_bit(world: World) -> None:
    world.commit({"x": "x" * 1000})
    world.publish()
    content = bytearray(world.bundle.read_bytes())
    for place in range(content.index(b"PACK"), len(content), 41):
        changed = bytearray(content)
        changed[place] ^= 4
        world.write(bytes(changed))
        world.refused("is refused")


# Objects of the human's to which no branch leads


def forgotten(world: World, files: dict[str, str]) -> tuple[str, str]:
    """Commit as the human, and take it back; return the commit, and the blob of the first file."""
    commit = world.commit(files, world.host, "forgotten")
    blob = world.git(world.host, "rev-parse", f"HEAD:{next(iter(files))}")
    world.git(world.host, "reset", "-q", "--hard", "HEAD~")
    return commit, blob


SECRET = "secret\n" + "".join(f"{number}\n" for number in range(1000))


def test_a_tip_that_the_human_has_forgotten(world: World) -> None:
    commit, _ = forgotten(world, {"secret": SECRET})
    (world.host / "a.txt").write_text("x\n")
    world.git(world.host, "stash", "--quiet")
    stash = world.git(world.host, "rev-parse", "refs/stash")
    for one in (commit, stash):
        world.write_objects({"refs/heads/x": one}, [])
        with world.is_real() as copy:
            assert world.git(copy, "rev-parse", "refs/agent/heads/x") == one
        world.refused("of yours, to which no branch of yours leads now", "git sync")
    world.git(world.host, "tag", "-a", "-m", "secret", "v1", commit)
    tag = world.git(world.host, "rev-parse", "v1")
    world.git(world.host, "tag", "-d", "v1")
    world.write_objects({"refs/tags/v1": tag}, [])
    world.refused("to which no branch of yours leads now")


def test_a_commit_of_the_agents_with_forgotten_objects(world: World) -> None:
    commit, blob = forgotten(world, {"secret": SECRET})
    listed = entry("100644", b"secret", blob)
    content = commit_text(object_id("tree", listed), b"mine", base(world))
    pack = pack_of(
        packed(TYPES["tree"], len(listed), listed), packed(TYPES["commit"], len(content), content)
    )
    world.write(header({"refs/heads/x": object_id("commit", content)}, [base(world)]) + pack)
    with world.is_real() as copy:
        assert world.git(copy, "show", "refs/agent/heads/x:secret").startswith("secret")
    world.refused(f"it uses object {blob[:12]} of yours")
    below = commit_text(world.git(world.agent, "rev-parse", "HEAD^{tree}"), b"mine", commit)
    pack = pack_of(packed(TYPES["commit"], len(below), below))
    refs = {"refs/heads/x": object_id("commit", below)}
    world.write(header(refs, [commit]) + pack)
    world.refused(f"it builds on commit {commit[:12]}, to which no branch of yours leads now")
    world.write(header(refs, [base(world)]) + pack)
    world.refused("of yours, to which no branch of yours leads now")


def test_a_delta_that_copies_a_forgotten_object(world: World) -> None:
    _, blob = forgotten(world, {"secret": SECRET})
    delta = copies(len(SECRET), 2)
    mine = object_id("blob", SECRET.encode() * 2)
    listed = entry("100644", b"mine", mine)
    content = commit_text(object_id("tree", listed), b"mine", base(world))
    pack = pack_of(
        packed(7, len(delta), delta, before=bytes.fromhex(blob)),
        packed(TYPES["tree"], len(listed), listed),
        packed(TYPES["commit"], len(content), content),
    )
    refs = {"refs/heads/x": object_id("commit", content)}
    world.write(header(refs, [base(world)]) + pack)
    with world.is_real() as copy:
        assert world.git(copy, "show", "refs/agent/heads/x:mine").count("secret") == 2
    world.refused(f"it uses object {blob[:12]} of yours")


def test_objects_of_the_humans_whole_history_may_be_used(world: World) -> None:
    """The agent brings a file of an older commit back, and sends none of it."""
    _, blob = forgotten(world, {"old": SECRET})
    world.commit({"old": SECRET}, world.host)
    world.git(world.host, "rm", "-q", "old")
    world.commit({}, world.host)
    world.git(world.agent, "fetch", "-q", "host")
    tree = world.tree(("100644", b"old", blob))
    commit = world.commit_of(tree)
    world.write_objects({"refs/heads/x": commit, "refs/heads/y": base(world)}, [tree, commit])
    assert {one["name"] for one in world.fetched()["branches"]} == {"x", "y"}
    # An amended commit, on which the agent builds, comes again with the agent's own.
    world.fetched("--drop")
    world.git(world.agent, "reset", "-q", "--hard", "host/main")
    mine = world.commit({"c": "c"})
    world.publish()
    world.git(world.host, "commit", "-q", "--amend", "-m", "rewritten")
    world.refused("it builds on commit")
    world.git(world.agent, "fetch", "-q", "host")
    world.publish()
    assert world.fetched()["branches"][0]["commit"] == mine


def test_more_objects_than_are_counted(world: World) -> None:
    commit = base(world)
    pack = struct.pack(">4sII", b"PACK", 2, MAX_OBJECTS + 1)
    world.write(header({"refs/heads/x": commit}, [commit]) + pack)
    world.refused("more than 1048576 objects")


def test_objects_of_another_format(world: World) -> None:
    other = world.home / "other"
    world.git(world.home, "init", "-q", "--object-format=sha256", "other")
    world.commit({"x": "x"}, other)
    world.git(other, "bundle", "create", "-q", "b", "--branches")
    world.write((other / "b").read_bytes())
    world.refused("its objects are sha256, not sha1")


# The file


def test_a_file_of_another_kind(world: World) -> None:
    world.commit({"x": "x"})
    world.publish()
    content = world.bundle.read_bytes()
    elsewhere = world.home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "agent.bundle").write_bytes(content)

    def again() -> None:
        directory = world.host / ".gitguard"
        directory.unlink() if directory.is_symlink() else shutil.rmtree(directory)
        directory.mkdir()

    world.bundle.unlink()
    world.bundle.symlink_to(elsewhere / "agent.bundle")
    world.refused("cannot be opened")
    world.bundle.unlink()
    world.bundle.mkdir()
    world.refused("not a regular file")
    again()
    os.mkfifo(world.bundle)
    assert world.fetch().returncode == 3
    again()
    (world.host / ".gitguard").rmdir()
    (world.host / ".gitguard").symlink_to(elsewhere)
    assert "cannot be opened" in world.fetch().stderr
    (world.host / ".gitguard").unlink()
    os.mkfifo(world.host / ".gitguard")
    assert "cannot be opened" in world.fetch().stderr
    (world.host / ".gitguard").unlink()
    assert "there is no" in world.fetch().stderr
    assert (elsewhere / "agent.bundle").read_bytes() == content


def test_a_file_that_is_too_large(world: World) -> None:
    world.commit({"x": "x"})
    world.publish()
    with world.bundle.open("r+b") as file:
        file.truncate((1 << 20) + 1)
    world.refused("larger than 1 MiB", words=["--limit", "1M"])
    with world.bundle.open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    world.refused("larger than 512 MiB")


def test_a_bundle_that_is_replaced_while_it_is_read(world: World) -> None:
    """What is checked and what is taken are one copy, whatever is renamed over it meanwhile."""
    world.commit({"x": "x"})
    world.publish()
    good = world.bundle.read_bytes()
    world.write_tree(("100644", b".git", world.put("blob", b"content\n")))
    bad = world.bundle.read_bytes()
    swapping = f"""
import os, itertools
for number, content in enumerate(itertools.cycle([{good!r}, {bad!r}])):
    with open("new", "wb") as file: file.write(content)
    os.rename("new", "agent.bundle")
"""
    swapper = subprocess.Popen([sys.executable, "-c", swapping], cwd=world.bundle.parent)
    try:
        codes = {world.fetch().returncode for _ in range(8)}
    finally:
        swapper.kill()
        swapper.wait()
    assert codes <= {0, 3}
    for ref in world.git(world.host, "for-each-ref", "--format=%(objectname)").split():
        assert "\t.git" not in world.git(world.host, "ls-tree", ref)


# Time and memory


def spent(world: World, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Fetch; return the outcome and the most memory of git, in MiB."""
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=sys.stderr)\n"
        "sys.exit(done.returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMAND, *words], cwd=world.host, capture_output=True,
        text=True, env=world.environment(),
    )  # fmt: skip
    *_, last = done.stderr.split()
    return done, int(last)


def test_zeros_without_end(world: World) -> None:
    """200 MB of zeros: refused by --limit, harmless without."""
    blob = object_id("blob", bytes(200 << 20))
    entries = entry("100644", b"zeros", blob)
    tree = object_id("tree", entries)
    commit = commit_text(tree, b"work")
    pack = pack_of(
        packed_zeros(200),
        packed(TYPES["tree"], len(entries), entries),
        packed(TYPES["commit"], len(commit), commit),
    )
    world.write(header({"refs/heads/zeros": object_id("commit", commit)}) + pack)
    assert world.bundle.stat().st_size < 2 << 20
    world.refused("it unpacks to more than 160 MiB", words=["--limit", "20M"])
    done, memory = spent(world)
    assert done.returncode == 0 and "binary" in done.stdout, done.stderr
    assert memory < 750


def copies(base_size: int, count: int) -> bytes:
    """Return a delta that writes its base ``count`` times."""
    result = base_size * count

    def number(value: int) -> bytes:
        found = b""
        while value > 0x7F:
            found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
        return found + bytes([value])

    whole, rest = divmod(base_size, 0xFFFFFF)
    assert whole == 0 and rest
    copy = bytes([0x80 | 0x70]) + rest.to_bytes(3, "little")
    return number(base_size) + number(result) + copy * count


def test_deltas_that_stand_for_gigabytes(world: World) -> None:
    content = os.urandom(1 << 20)
    first = packed(TYPES["blob"], len(content), content)
    name = bytes.fromhex(object_id("blob", content))
    small = copies(len(content), 15)
    digest = hashlib.sha1(b"blob %d\0" % (15 << 20))
    for _ in range(15):
        digest.update(content)
    large = copies(15 << 20, 250)
    pack = pack_of(
        first,
        packed(7, len(small), small, before=name),
        packed(7, len(large), large, before=digest.digest()),
    )
    commit = base(world)
    world.write(header({"refs/heads/x": commit}, [commit]) + pack)
    before = world.state()
    done, memory = spent(world)
    assert done.returncode == 3 and "is refused: git index-pack" in done.stderr
    assert memory < 2500 and world.state() == before


def test_deltas_that_fill_the_disk_of_the_human(world: World) -> None:
    content = os.urandom(4 << 20)
    (world.host / "large").write_bytes(content)
    world.git(world.host, "add", "large")
    parent = world.commit({}, world.host)
    listed, objects = b"", []
    for count in (3, 2):
        delta = copies(len(content), count)
        listed += entry("100644", b"%d" % (9 - count), object_id("blob", content * count))
        known = bytes.fromhex(object_id("blob", content))
        objects.append(packed(7, len(delta), delta, before=known))
    text = commit_text(object_id("tree", listed), b"mine", parent)
    objects += [packed(TYPES["tree"], len(listed), listed)]
    objects += [packed(TYPES["commit"], len(text), text)]
    refs = {"refs/heads/x": object_id("commit", text)}
    world.write(header(refs, [parent]) + pack_of(*objects))
    assert world.bundle.stat().st_size < 2000
    world.refused("--limit SIZE allows more", words=["--limit", "8M"])
    assert world.fetched("--limit", "100M")["branches"][0]["name"] == "x"


def test_a_few_trees_that_stand_for_a_billion_files(world: World) -> None:
    value = world.put("blob", b"x")
    objects = [value]
    mode = "100644"
    for _ in range(9):
        value = world.tree(*((mode, b"%d" % number, value) for number in range(10)))
        objects.append(value)
        mode = "40000"
    commit = world.commit_of(value)
    world.write_objects({"refs/heads/bomb": commit}, [*objects, commit])
    assert world.bundle.stat().st_size < 2000
    done, memory = spent(world, "--json")
    assert done.returncode == 0, done.stderr
    (branch,) = json.loads(done.stdout)["branches"]
    assert "too large to summarise" in branch["left_out"] and branch["files"] == []
    assert memory < 1200


def processes() -> Iterator[bytes]:
    """Yield the environment of each process."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            yield file.read_bytes()


def test_ctrl_c_and_kill_leave_no_quarantine(world: World) -> None:
    pack = pack_of(packed_zeros(1500))
    commit = base(world)
    world.write(header({"refs/heads/x": commit}, [commit]) + pack)
    before = world.state()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = subprocess.Popen(
            COMMAND, cwd=world.host, env=world.environment(), stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while not list((world.home / "tmp").glob("*/quarantine.git/objects/pack/tmp_pack*")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert "aborted" in process.communicate(timeout=60)[1] and process.returncode == 3
        assert world.state() == before
        gone = f"git is gone after signal {number}"
        until(lambda: all(os.fsencode(world.home) not in one for one in processes()), gone)


# What is shown


def test_escapes_and_lengths_in_messages_and_names(world: World) -> None:
    evil = b"\x1b[2J\x1b]0;x\x07\xe2\x80\xaegit\r\n\nmore\xff"
    blob = world.put("blob", b"x\n")
    tree = world.tree(("100644", b"\x1b[31m\n\xe2\x80\xae" + b"n" * 5000, blob))
    commit = world.put("commit", commit_text(tree, evil + b"x" * 100_000, base(world)).replace(
        b"author Agent", b"author A\x1b[1m\xe2\x80\xae" + b"y" * 5000))  # fmt: skip
    world.write_objects({"refs/heads/x": commit}, [blob, tree, commit])
    done = world.fetch()
    assert done.returncode == 0, done.stderr
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    assert max(map(len, done.stdout.split("\n"))) < 2 * summary.WIDTH + 50
    assert "\\x1b[31m\\n\\u202e" in done.stdout
    (branch,) = world.fetched()["branches"]
    assert (
        branch["files"][0]["path"].isprintable() and branch["commits"][0]["subject"].isprintable()
    )


def test_an_encoding_of_the_agents_choice_is_not_converted(world: World) -> None:
    blob = world.put("blob", b"x\n")
    tree = world.tree(("100644", b"x", blob))
    text = commit_text(tree, b"\xe4", base(world))
    text = text.replace(b"\n\n", b"\nencoding ISO-8859-1\n\n", 1)
    commit = world.put("commit", text)
    world.write_objects({"refs/heads/x": commit}, [blob, tree, commit])
    (branch,) = world.fetched()["branches"]
    assert branch["commits"][0]["subject"] == "\\xe4"
    assert world.git(world.host, "log", "-1", "--format=%s", commit) == "ä"  # git does it


def test_what_to_look_at(world: World) -> None:
    world.git(world.host, "config", "core.hooksPath", "tools/hooks")
    (world.agent / "deep").mkdir()
    for name, text in {
        "deep/out": "../../x", "deep/in": "../a.txt", "abs": "/etc/passwd", "git": ".git/config",
        "deep/up": "..",
    }.items():  # fmt: skip
        (world.agent / name).symlink_to(text)
        world.git(world.agent, "add", name)
    world.commit({".github/workflows/x.yml": "x", "sub/.gitattributes": "x", "tools/hooks/x": "x",
                  ".husky/pre-commit": "x", "ordinary/.gitignore": "x"})  # fmt: skip
    world.git(world.agent, "update-index", "--add", "--cacheinfo", f"160000,{base(world)},module")
    world.commit({})
    world.publish()
    (branch,) = world.fetched()["branches"]
    found = {line.partition(":")[0]: line for line in branch["warnings"]}
    assert set(found) == {".github/workflows/x.yml", "sub/.gitattributes", "tools/hooks/x", "abs",
                          ".husky/pre-commit", "module"}  # fmt: skip
    assert "to /etc/passwd" in found["abs"] and "2 more" in found["abs"]  # deep/out and git


def test_nothing_to_look_at_is_hidden_by_anything_else(world: World) -> None:
    files = {f".0/{number}/.gitattributes": "x" for number in range(40)}
    world.commit({**files, ".husky/pre-commit": "x"})
    large = world.put("blob", b"x" * (17 << 20))
    world.git(world.agent, "update-index", "--add", "--cacheinfo", f"120000,{large},link")
    message = world.agent / ".git/message"
    message.write_text(f"Mend\n\n{'x' * (17 << 20)}")
    world.git(world.agent, "commit", "-q", "-F", str(message))
    world.publish()
    (branch,) = world.fetched()["branches"]
    said = "\n".join(branch["warnings"])
    assert ".husky/pre-commit: " in said and "39 more" in said and "1 symlink" in said
    assert branch["ahead"] == 2 and branch["changed"] == 42
    assert "too large to summarise" in branch["left_out"]
    assert "look at .husky/pre-commit" in world.fetch().stdout


# The human's configuration


def test_a_bare_repository_that_the_agent_made_is_not_used(world: World) -> None:
    world.commit({"x": "x"})
    world.publish()
    trap = world.host / "trap"
    world.git(world.host, "init", "-q", "--bare", "trap")
    world.git(trap, "config", "core.bare", "false")
    world.git(trap, "config", "core.worktree", str(trap))
    assert world.git(trap, "rev-parse", "--show-toplevel") == str(trap)
    done = world.fetch(at=trap)
    assert done.returncode == 3 and "bare" in done.stderr


def test_replacements_of_objects_do_not_count(world: World) -> None:
    commit = world.commit({"x": "x"})
    world.publish()
    world.git(world.host, "update-ref", f"refs/replace/{commit}", base(world))
    (branch,) = world.fetched("--merge", "main")["branches"]
    assert branch["ahead"] == 1 and branch["changed"] == 1
    assert world.git(world.host, "ls-files").split() == ["a.txt", "src/b.txt", "x"]
