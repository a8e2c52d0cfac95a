"""Makes the two repositories of a work tree: the copy of the host's, and the agent's.

Each is built beside its place, brought to the disk and renamed into place: after a crash it is
whole or not there. Nobody but this process's user can have touched either before. The agent's is
written as plain files and then given to the agent: no git runs in it, and no process with the
agent's rights takes part that the agent could stop or trace.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress

from gitguardfs.base import store_directory
from gitguardfs.base.errors import os_error
from gitguardfs.names.local_names import LocalNames
from gitguardfs.private import agent_files, git, partial, reader, restart, sparse, store
from gitguardfs.private.git import SECONDS, GitFailed
from gitguardfs.private.host_repository import Config, Head, HostRepository, head_of, refs_in
from gitguardfs.private.reader import Source
from gitguardfs.private.share import Unusable

INDEX_SECONDS = 60.0
PACKS_BYTES = 2 << 30
"""Of a repository with larger packs the last commits are copied only."""
DEPTH = 200
MANY_PACKS = 30
"""Each fetch makes a pack; so many slow git down."""
NOTHING = Source(Head(b"refs/heads/empty-git-sync-says-why", b""), {}, b"sha1", b"", [])
"""The content of a repository that cannot be copied.

The branch has this name so that `git log` and `git status` tell an agent what to do.
"""
_FETCH = (
    # A pack each time: loose objects would stay loose, and become ever more.
    "-c", "fetch.unpackLimit=1",
    "fetch", "--quiet", "--prune", "--no-tags", "--no-auto-gc", "--no-recurse-submodules",
    "--no-write-fetch-head", "--update-shallow", f"../{reader.NAME}",
    "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", "+refs/detached/*:refs/detached/*",
)  # fmt: skip


def seed_host(
    directory: str, source: Source, name: bytes, state: bytes, others: Iterable[str]
) -> None:
    """Make the directory of a work tree, with a copy of the host's branches and tags in it.

    ``name`` is the content of ``host.path``; ``others`` are directories of the same agent. A
    directory that is there is replaced, unless the agent has something in it: EBUSY. Raises
    GitFailed, OSError.
    """
    new = f"{directory}.new"
    store_directory.remove_tree(new)
    os.mkdir(new, 0o700)
    try:
        _check_room(new, 0)
        if not (source.refs and any(_shares(new, source, state, other) for other in others)):
            _check_room(new, 0 if is_limited(source) else source.pack_bytes)
            _copy_whole(new, source, state)
        store.write(os.path.join(new, "host.path"), name, 0o600)
        store.sync_tree(new)
        if store.has_agent(directory) and not restart.is_unused(directory):
            raise os_error(errno.EBUSY)
        store_directory.remove_tree(directory)
        os.rename(new, directory)
        store.sync(os.path.dirname(directory))
    except BaseException:
        store_directory.remove_tree(new)
        raise


def _check_room(directory: str, size: int) -> None:
    """Check that more than ``size`` bytes are free, without what the disk reserves for root.

    The agent can let root make copies, by moving work trees. Raises OSError(ENOSPC).
    """
    disk = os.statvfs(directory)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize <= size:
        raise os_error(errno.ENOSPC)


def _shares(new: str, source: Source, state: bytes, other: str) -> bool:
    """Make a copy that shares the files of the one in ``other``, if they have a commit in common.

    A work tree that is moved gets another directory; so its objects take room once. git and we
    replace files, and change none.
    """
    former, copy = (os.path.join(one, store.HOST) for one in (other, new))
    try:
        with store.locked(other, 0.0):
            have = copied(other)
            has_some = not set(have.refs.values()).isdisjoint(source.all_refs.values())
            if not (has_some and is_same_kind(have, source)):
                return False
            without = shutil.ignore_patterns(store.REASON)
            shutil.copytree(former, copy, ignore=without, copy_function=os.link)
        refresh_host(new, source, state)
    except (GitFailed, Unusable, OSError):  # it is used, or was removed or damaged meanwhile
        store_directory.remove_tree(copy)
        return False
    return True


def _copy_whole(new: str, source: Source, state: bytes) -> None:
    copy = os.path.join(new, store.HOST)
    if source is NOTHING or source.is_partial:
        for name in ("", "refs", "refs/heads", "objects", "objects/info", "objects/pack"):
            store_directory.make_directory(os.path.join(copy, name), 0o755)
    else:
        _clone(new, source)
    config = reader.config_of(source.object_format, is_partial=source.is_partial)
    store.write(os.path.join(copy, "config"), config)
    store.write(os.path.join(copy, "HEAD"), reader.head_text(source.head))
    if source.is_partial:
        _copy_part(new, source)
    store.write(os.path.join(new, "host.state"), state, 0o600)


def _clone(new: str, source: Source) -> None:
    depth = (f"--depth={DEPTH}", "--no-single-branch") if is_limited(source) else ()
    with reader.made(new, source):
        git.run(
            (
                "-c", "core.fsync=none", "clone", "--quiet", "--bare", "--no-local", "--template=",
                *depth, reader.NAME, store.HOST,
            ),
            directory=new, limit=SECONDS, keep=source.descriptors,
        )  # fmt: skip


def _copy_part(directory: str, source: Source) -> None:
    """Copy the branches of a partial clone, as far as their objects are there (``partial``).

    git fetches no such repository: the objects are packed here, and the branches written.
    """
    copy = os.path.join(directory, store.HOST)
    words = ("cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    had = set(git.run(words, directory=copy, limit=SECONDS).split())
    with reader.made(directory, source) as path:
        chosen, lacks = partial.chosen(path, source, had)
        names = git.run(
            (
                "pack-objects", "--quiet", "--non-empty", "--delta-base-offset",
                f"../{store.HOST}/objects/pack/pack",
            ),
            directory=path, limit=SECONDS, keep=source.descriptors,
            content=b"".join(name + b"\n" for name in chosen.difference(had)),
        )  # fmt: skip
    for name in names.split():
        pack = os.path.join(copy, "objects/pack", f"pack-{name.decode()}")
        store.write(f"{pack}.promisor", b"")  # says that objects may be missing
    if source.shallow:
        store.write(os.path.join(copy, "shallow"), source.shallow)
    store.write(os.path.join(copy, "packed-refs"), reader.packed(source.all_refs))
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(copy, store.LACKS))
    if lacks:
        store.write(os.path.join(copy, store.LACKS), partial.COMMAND.encode() + b"\n")


def lacks_files(directory: str) -> bool:
    """Return whether the human's clone is partial, and lacks files."""
    return os.path.exists(os.path.join(directory, store.HOST, store.LACKS))


def copied(directory: str) -> Source:
    """Return the copy's branches; NOTHING without one. Raises GitFailed, Unusable, OSError."""
    copy = os.path.join(directory, store.HOST)
    if not os.path.isdir(copy):
        return NOTHING
    words = ("for-each-ref", "--format=%(objectname) %(refname)")
    refs = refs_in(git.run(words, directory=copy, limit=INDEX_SECONDS))
    head = head_of(store.read(os.path.join(copy, "HEAD")))
    config = store.read(os.path.join(copy, "config"))
    object_format = b"sha256" if b"objectFormat = sha256" in config else b"sha1"
    is_partial = b"partialClone" in config
    return Source(head, refs, object_format, b"", [], is_partial) if refs else NOTHING


def is_same_kind(one: Source, other: Source) -> bool:
    """Return whether git can fetch from one into a copy of the other."""
    return (one.object_format, one.is_partial) == (other.object_format, other.is_partial)


def is_limited(source: Source) -> bool:
    """Return whether only the last commits are copied."""
    return source.pack_bytes > PACKS_BYTES


def refresh_host(directory: str, source: Source, state: bytes) -> None:
    """Fetch what is new on the host into the copy. Raises GitFailed, OSError."""
    copy = os.path.join(directory, store.HOST)
    _clear(copy)
    if source.is_partial:
        _copy_part(directory, source)
    else:
        with reader.made(directory, source):
            git.run(_FETCH, directory=copy, limit=SECONDS, keep=source.descriptors)
    store.write(os.path.join(copy, "HEAD"), reader.head_text(source.head))
    store.write(os.path.join(directory, "host.state"), state, 0o600)
    if len(os.listdir(os.path.join(copy, "objects/pack"))) > 2 * MANY_PACKS:
        with suppress(GitFailed, OSError):  # nothing depends on it, and it keeps every object
            git.run(("repack", "-d", "--geometric=2", "--quiet"), directory=copy, limit=SECONDS)


def _clear(copy: str) -> None:
    """Remove the leftovers of a killed git: locks, and parts of packs of any size."""
    for directory, _, names in os.walk(copy):
        is_objects = os.path.relpath(directory, copy).split("/")[0] == "objects"
        for name in names:
            # A branch may be called tmp_x, but not x.lock.
            if (is_objects and name.startswith(("tmp_", ".tmp-"))) or name.endswith(".lock"):
                os.unlink(os.path.join(directory, name))


def seed_agent(
    directory: str, owner: tuple[int, int], host: HostRepository | None, source: Source, why: str,
    former: Sequence[str], local: LocalNames | None,
) -> None:  # fmt: skip
    """Make the agent's repository beside the copy. ``owner`` is the agent's uid and gid.

    ``why`` is the reason for an empty copy, or ""; ``former`` are the agent's directories for
    earlier projects at this path; ``local`` names the directories that the view does not show.
    Raises OSError.
    """
    new = os.path.join(directory, f"{store.AGENT}.new")
    copy = os.path.join(directory, store.HOST)
    store_directory.remove_tree(new)
    os.mkdir(new, 0o700)
    try:
        config, information = Config(), dict[str, bytes]()
        if host is not None:
            with suppress(Unusable):
                config = host.config()
            for name in ("exclude", "sparse-checkout"):
                with suppress(Unusable):
                    information[name] = host.information(name.encode()) or b""
        for name in ("refs", "refs/heads", "refs/tags", "objects", "objects/info", "objects/pack",
                     "info", "hooks"):  # fmt: skip
            store_directory.make_directory(os.path.join(new, name), 0o755)
        shallow = b""
        with suppress(FileNotFoundError):
            shallow = store.read(os.path.join(copy, "shallow"))
        limited = DEPTH if is_limited(source) else 0
        files = {
            "HEAD": reader.head_text(source.head),
            "config": agent_files.config(config, source, copy),
            "packed-refs": reader.packed(agent_files.refs(source)),
            "objects/info/alternates": os.fsencode(f"{copy}/objects\n"),
            "shallow": shallow,
            agent_files.NOTES: agent_files.notes(why, limited, former),
            agent_files.SYNC: agent_files.script(agent_files.SYNC),
        }
        exclude = information.get("exclude", b"")
        files["info/exclude"] = agent_files.exclude(exclude, local)
        patterns = information.get("sparse-checkout", b"")
        _make_index(new, copy, host, source)
        left_out = set[bytes]()
        if local is not None:
            left_out = sparse.leave_out(new, copy, local) | sparse.tracked(copy, local)
        if left_out:
            files["config"] += sparse.CONFIG
            patterns = sparse.patterns(patterns if sparse.is_on(config) else b"", left_out)
        files["info/sparse-checkout"] = patterns
        for name, content in files.items():
            if content:
                store.write(os.path.join(new, name), content)
        hook = agent_files.script(agent_files.HOOK)
        store.write(os.path.join(new, "hooks", agent_files.HOOK), hook, 0o755)
        restart.forget_unborn(directory)
        if not source.commit:
            restart.note_unborn(new)
        _give(new, owner)
        store.sync_tree(new)
        os.rename(new, os.path.join(directory, store.AGENT))
        store.sync(directory)
    except BaseException:
        store_directory.remove_tree(new)
        raise


def _make_index(new: str, copy: str, host: HostRepository | None, source: Source) -> None:
    """Make the agent's index: the files of HEAD, with the sizes and times of the host's index.

    So the first status reads no file. What the human has staged is left out: its objects are not
    in the copy. An index that is damaged or split is not used.
    """
    if not source.commit:
        return
    index = os.path.join(new, "index")
    empty = os.path.join(new, "empty")
    given = host.index() if host is not None else None
    os.mkdir(empty)
    # The host's list of untracked files holds for its work tree only: git would warn each time.
    without = ("-c", "core.untrackedCache=false")
    options = (f"--git-dir={copy}", f"--work-tree={empty}", *without)
    more = {"GIT_INDEX_FILE": index}
    try:
        if given is not None:
            content, changed = given
            store.write(index, content)
            os.utime(index, ns=(changed, changed))
            with suppress(GitFailed):
                git.run((*options, "read-tree", "--reset", "HEAD"), limit=INDEX_SECONDS, more=more)
                # A file that was changed later than the index, in the same second, is read anew.
                os.utime(index, ns=(changed, changed))
                return
            os.unlink(index)
        with suppress(GitFailed):
            git.run((*options, "read-tree", "HEAD"), limit=INDEX_SECONDS, more=more)
    finally:
        store_directory.remove_tree(empty)
        with suppress(FileNotFoundError):
            os.unlink(f"{index}.lock")


def _give(new: str, owner: tuple[int, int]) -> None:
    """Give a tree to the agent; the directory itself last, so that it is closed until then."""
    if os.geteuid() != 0:
        return
    for directory, names, files in os.walk(new, topdown=False):
        for name in (*names, *files):
            os.chown(os.path.join(directory, name), *owner, follow_symlinks=False)
    os.chown(new, *owner)
