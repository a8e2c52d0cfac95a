"""Faults in the store of the agent's own repositories."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

ATTACKS = ("unit/test_private_attacks.py",)
REFRESHING = ("unit/test_private_refreshing.py",)
SEEDING = ("unit/test_private_seeding.py",)

MUTANTS = (
    # Reading the host's repository
    Mutant(
        "private-open-follows",
        "a symlink or .. in the host's repository leads root's git out of the share",
        "linux/syscalls.py",
        "resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS",
        "resolve = 0",
        ATTACKS,
    ),
    Mutant(
        "private-special-file-read",
        "root waits for a FIFO, or reads a device without end",
        "private/host_repository.py",
        """    if not S_ISREG(st.st_mode):
        raise Unusable(f"has at {_told(path)} something that is not a file")
    opened =""",
        """    if False:
        raise Unusable(f"has at {_told(path)} something that is not a file")
    opened =""",
        ATTACKS,
        survives="the descriptor is looked at again, once it is open",
    ),
    Mutant(
        "private-opened-special-file-read",
        "a file that becomes a FIFO or a device meanwhile is read",
        "private/host_repository.py",
        "        if not S_ISREG(os.fstat(opened).st_mode):",
        "        if False:",
        ATTACKS,
        survives="only a race reaches it: the name is looked at before",
    ),
    Mutant(
        "private-loose-fifo",
        "git waits for a FIFO among the host's objects",
        "private/host_repository.py",
        "if is_object and not entry.is_file(follow_symlinks=False):",
        "if False:",
        ATTACKS,
    ),
    Mutant(
        "private-pack-special",
        "git waits for a FIFO among the host's packs",
        "private/host_repository.py",
        """            if not S_ISREG(st.st_mode):
                raise Unusable("has a pack""",
        """            if False:
                raise Unusable("has a pack""",
        ATTACKS,
    ),
    Mutant(
        "private-moved-work-tree",
        "the way up from a work tree that the host moves ends outside of the share",
        "private/host_repository.py",
        "raise os_error(errno.ESTALE if error.errno in _OUT else error.errno or 0) from None",
        "back = os.dup(self._work_tree)",
        ATTACKS,
    ),
    Mutant(
        "private-host-path-followed",
        "an absolute path of the host's is opened in the guest",
        "private/host_repository.py",
        'if path.startswith(b"/") or',
        "if",
        ATTACKS,
        survives="open_beneath refuses it as well",
    ),
    Mutant(
        "private-worktree-unproved",
        "an absolute gitfile leads to whatever repository lies at the end of its path",
        "private/host_repository.py",
        'if _line(read(fd, b"gitdir") or b"") == back:',
        "if True:",
        ATTACKS,
    ),
    Mutant(
        "private-values-unchecked",
        "a value of the host's configuration of any form is taken over",
        "private/agent_files.py",
        "if key in host and form.fullmatch(host[key]):",
        "if key in host:",
        ATTACKS,
    ),
    Mutant(
        "private-values-unescaped",
        "a quote or backslash in a value ends it",
        "private/agent_files.py",
        r"""return value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')""",
        "return value",
        SEEDING,
    ),
    Mutant(
        "private-lfs-any-command",
        "a filter of the host's is the agent's",
        "private/agent_files.py",
        "if all(host.get(key) == value for key, value in _LFS.items()):",
        "if any(host.get(key) for key in _LFS):",
        ATTACKS,
    ),
    # What git of root's does
    Mutant(
        "private-git-without-limit",
        "root's git runs for as long as it likes",
        "private/git.py",
        "process.communicate(content, limit)",
        "process.communicate(content, 15)",
        ATTACKS,
    ),
    Mutant(
        "private-disk-full-unnoticed",
        "a full disk gives an empty repository for ever",
        "private/git.py",
        "        if text in said:",
        "        if False:",
        ATTACKS,
    ),
    Mutant(
        "private-copy-by-umask",
        "the agent cannot read the copy if the daemon's umask says so",
        "private/git.py",
        "umask=0o022,",
        "",
        SEEDING,
    ),
    Mutant(
        "private-old-commits-pruned",
        "a branch that is gone stays in the copy",
        "private/seeding.py",
        '"--prune", ',
        "",
        REFRESHING,
    ),
    # The store
    Mutant(
        "private-store-open",
        "a store that others can change is used",
        "private/store.py",
        "or st.st_mode & 0o022:",
        "or False:",
        SEEDING,
    ),
    Mutant(
        "private-ids-guessable",
        "another user of the guest can compute where the copy of a project's history lies",
        "private/store.py",
        "name = hmac.new(self._key, text",
        'name = hmac.new(b"", text',
        SEEDING,
    ),
    Mutant(
        "private-ids-for-all-users",
        "two agents get one repository",
        "private/store.py",
        'b"%d" % uid, path',
        'b"", path',
        SEEDING,
    ),
    Mutant(
        "private-not-locked",
        "callers at once build in one another's way",
        "private/store.py",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        SEEDING,
    ),
    Mutant(
        "private-not-given",
        "the agent's repository stays root's",
        "private/seeding.py",
        "    os.chown(new, *owner)",
        "    pass",
        SEEDING,
    ),
    Mutant(
        "private-built-in-place",
        "kill -9 leaves half a repository",
        "private/seeding.py",
        'new = os.path.join(directory, f"{store.AGENT}.new")',
        "new = os.path.join(directory, store.AGENT)",
        ATTACKS,
    ),
    Mutant(
        "private-index-as-new",
        "a change in the second of the host's last git add is not seen",
        "private/seeding.py",
        "                os.utime(index, ns=(changed, changed))\n                return",
        "                return",
        SEEDING,
    ),
    Mutant(
        "private-staged-kept",
        "the agent cannot commit what the human has staged: its objects are not there",
        "private/seeding.py",
        '"read-tree", "--reset", "HEAD"',
        '"ls-files"',
        SEEDING,
    ),
    Mutant(
        "private-news-not-seen",
        "what the host commits is never fetched",
        "private/repositories.py",
        "if state != read(seen):",
        "if False:",
        REFRESHING,
    ),
    Mutant(
        "private-always-fetched",
        "each look at the host fetches",
        "private/repositories.py",
        "if state != read(seen):",
        "if True:",
        REFRESHING,
    ),
)
