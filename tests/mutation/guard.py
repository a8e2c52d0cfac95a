"""Faults in the guard: names, rules, and the checks that every request passes."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

NAMES = ("unit/names/test_dotgit.py",)
REPOSITORY = ("unit/names/test_repository.py",)
RULES = ("unit/names/test_rules.py",)
ACCESS = ("adapter/view/test_table.py", "adapter/test_policies.py")
REVALIDATION = ("adapter/test_revalidation.py",)
LINKS = ("adapter/test_links.py",)
ERRORS = ("mount/fs/test_errors.py",)
UNDONE = ("mount/fs/test_undone.py",)
FOLDING = ("adapter/test_folding.py",)
MOVED = ("adapter/test_moved_by_host.py",)
PLACING = ("adapter/test_link_check.py",)
PAYLOAD = ("adapter/test_payload.py",)
DEPTH = ("adapter/test_depth.py",)
HELD = ("adapter/test_held_names.py",)
TEXTS = ("unit/names/test_links.py",)
NODES = ("unit/fs/test_nodes.py",)
WORK_TREE = ("unit/names/test_work_tree.py",)
RENAME = (*ACCESS, "adapter/test_rename.py")
LISTING = ("adapter/test_listing.py",)
BELOW = ("mount/fs/test_mounted_below.py",)

MUTANTS = (
    # Names
    Mutant(
        "names-case-matters",
        "only lower case is .git",
        "names/dotgit.py",
        r'return re.compile(rb"(?i)(?:^|\\)(?:"',
        r'return re.compile(rb"(?:^|\\)(?:"',
        NAMES,
    ),
    Mutant(
        "names-without-short-name",
        "GIT~1, the short name of .git on NTFS, is ordinary",
        "names/dotgit.py",
        r'_component(rb"\.git|git~1")',
        r'_component(rb"\.git")',
        NAMES,
    ),
    Mutant(
        "names-without-streams",
        ".git::$INDEX_ALLOCATION is ordinary",
        "names/dotgit.py",
        r'rb")[. ]*(?:\Z|[:\\/])"',
        r'rb")[. ]*(?:\Z|[\\/])"',
        NAMES,
    ),
    Mutant(
        "names-keep-ignorable",
        "code points that HFS+ drops make .git ordinary",
        "names/dotgit.py",
        'return _IGNORABLE.sub("", text)',
        "return text",
        NAMES,
    ),
    Mutant(
        "names-malformed-goes-on",
        "malformed UTF-8 does not end a name",
        "names/dotgit.py",
        "text = name[: error.start].decode()",
        'text = name.decode(errors="replace")',
        NAMES,
    ),
    Mutant(
        "names-tilde-is-portable",
        "a short name is not compared with .git",
        "names/dotgit.py",
        'rb"[A-Za-z0-9._-]+',
        'rb"[A-Za-z0-9._~-]+',
        NAMES,
    ),
    # Rules
    Mutant(
        "rules-last-wins",
        "a mild rule takes the place of a strict one",
        "names/rules.py",
        "if other > verdict and any(",
        "if any(",
        RULES,
    ),
    Mutant(
        "rules-case-matters",
        "--deny '*.pem' lets A.PEM through",
        "names/rules.py",
        ", re.IGNORECASE)",
        ")",
        RULES,
    ),
    Mutant(
        "rules-not-as-on-windows",
        "--deny .env lets '.env.' through, which NTFS and FAT take for it",
        "names/rules.py",
        "(text, *dotgit.as_on_windows(text))",
        "(text,)",
        RULES,
    ),
    Mutant(
        "rules-not-as-on-macos",
        "--deny 'é' lets the decomposed form through, which APFS and HFS+ take for it",
        "names/rules.py",
        "if name.isascii():",
        "if name:",
        (*RULES, "adapter/test_policies.py"),
    ),
    Mutant(
        "rules-only-as-given",
        "a decomposed --deny 'é' lets the composed form through",
        "names/rules.py",
        'else (given, _folded(given, "NFC"))',
        "else (given,)",
        (*RULES, "adapter/test_policies.py"),
    ),
    Mutant(
        "rules-make-wildcards",
        "--deny with a full-width asterisk refuses every name",
        "names/rules.py",
        '_folded(given, "NFC")',
        '_folded(given, "NFKC")',
        RULES,
    ),
    Mutant(
        "rules-allow-bare-ignored",
        "--allow-bare changes nothing",
        "names/rules.py",
        "self.checks_fake_repositories = self.guards_git and not rules.allow_bare",
        "self.checks_fake_repositories = self.guards_git",
        (*RULES, "adapter/test_policies.py"),
    ),
    # What makes a repository
    Mutant(
        "repository-without-commondir",
        "HEAD beside commondir is no repository",
        "names/repository.py",
        "return mode_of(REFS) is not None or mode_of(COMMONDIR) is not None",
        "return mode_of(REFS) is not None",
        REPOSITORY,
    ),
    Mutant(
        "repository-head-may-follow-refs",
        "HEAD can be made beside refs",
        "names/repository.py",
        "others = is_there(REFS) or is_there(COMMONDIR) or has_payload()",
        "others = is_there(COMMONDIR) or has_payload()",
        REPOSITORY,
    ),
    Mutant(
        "repository-head-directory-counts",
        "a directory called HEAD completes a repository",
        "names/repository.py",
        "return not is_directory and others",
        "return others",
        REPOSITORY,
    ),
    Mutant(
        "repository-config-may-follow-head",
        "config can be made beside HEAD, so that the host's git completes the rest",
        "names/repository.py",
        "    return is_file(HEAD) or is_there(REFS, OBJECTS)",
        "    return is_there(REFS, OBJECTS)",
        REPOSITORY,
    ),
    Mutant(
        "repository-commondir-file-is-free",
        "a commondir that is no directory can be made",
        "names/repository.py",
        "return not is_directory or is_file(HEAD)",
        "return is_file(HEAD)",
        REPOSITORY,
    ),
    Mutant(
        "repository-wide-letters-are-others",
        "a HEAD in wide letters, which ZFS may take for git's, can be removed unnoticed",
        "names/repository.py",
        "names = {name, _normalized(name)}",
        "names = {name}",
        (*REPOSITORY, *FOLDING),
    ),
    Mutant(
        "access-folded-parts-do-not-count",
        "HEAD can be made beside a name that the source folds to refs",
        "fs/new_name_check.py",
        "if not all(map(names.is_portable, listed)):",
        "if False:",
        FOLDING,
    ),
    Mutant(
        "access-a-new-part-is-not-recognized",
        "a name that the source folds to config completes a repository",
        "fs/new_name_check.py",
        "            if self._is_folded_to(part, ref):",
        "            if False:",
        FOLDING,
    ),
    # Checks of every request
    Mutant(
        "access-change-of-guarded-name",
        "a name that is guarded can be made, removed and moved",
        "fs/access.py",
        "if verdict is not ALLOW:\n                raise Refused(",
        "if False:\n                raise Refused(",
        ACCESS,
    ),
    Mutant(
        "access-denied-can-be-read",
        "a denied node is as open as a read-only one",
        "fs/access.py",
        "if node.verdict is not ALLOW and (change or node.verdict >= Verdict.DENY):",
        "if node.verdict is not ALLOW and change:",
        ACCESS,
    ),
    Mutant(
        "access-read-only-ignored",
        "-o ro is left to the kernel",
        "fs/access.py",
        "            if self._read_only:",
        "            if False:",
        ACCESS,
    ),
    Mutant(
        "access-below-guarded-is-open",
        "what lies below a guarded directory is classified by its own name alone",
        "fs/access.py",
        "if ref.parent.verdict > verdict:",
        "if False:",
        (*ACCESS, *REVALIDATION),
    ),
    Mutant(
        "access-second-name-of-git",
        "a hard link of a .git file is ordinary",
        "fs/access.py",
        "            if is_alias:",
        "            if False:",
        ACCESS,
    ),
    Mutant(
        "access-repository-is-ordinary",
        "a bare repository that is there already can be used",
        "fs/access.py",
        "if is_repository:",
        "if False:",
        ACCESS,
    ),
    Mutant(
        "access-repository-root-moves",
        "a directory that holds .git can be moved",
        "fs/access.py",
        "if not self._is_plain(name) and self._guard.is_dotgit(name):",
        "if False:",
        ACCESS,
    ),
    Mutant(
        "access-bare-parent-moves",
        "a directory that holds a bare repository can be moved",
        "fs/access.py",
        "if file_type == S_IFDIR and self._source.is_repository_at(fd, name):",
        "if False:",
        (
            *ACCESS,
            "mount/attacks/test_attacks.py::test_is_refused[R7-root]",
        ),
    ),
    Mutant(
        "access-classified-for-good",
        "a directory that somebody stays in is never classified again",
        "fs/access.py",
        "revalidation.clock() - directory.classified_at >= VERDICT_TTL",
        "not directory.classified_at",
        REVALIDATION,
    ),
    Mutant(
        "access-exchange-half-checked",
        "an exchange can bring refs beside HEAD at its other end",
        "fs/access.py",
        """\
        moved = self.old, self.new, self.moved
        if self.exchange and self.target is not None:""",
        """\
        moved = self.old, self.new, self.moved
        if False:""",
        (*ACCESS, "adapter/test_rename.py"),
    ),
    Mutant(
        "access-opened-not-compared",
        "a directory that was exchanged while it was classified passes as the one that was seen",
        "fs/access.py",
        "if made < 0 and not os.path.samestat(self._source.stat(own), st):",
        "if False:",
        (*ACCESS, *REVALIDATION),
    ),
    Mutant(
        "access-unknown-folding-not-compared",
        "a name that the source folds to .git in a way of its own is ordinary",
        "fs/access.py",
        "if is_directory or st.st_nlink > 1 or not (ref.is_plain or names.is_portable(ref.name)):",
        "if is_directory or st.st_nlink > 1:",
        (*ACCESS, "mount/fs/test_errors.py::test_a_git_file_in_such_a_spelling_is_one_too"),
    ),
    Mutant(
        "access-new-name-not-compared",
        "a new name is not compared with .git: what the source folds to .git can be made",
        "fs/new_name_check.py",
        "if self._is_folded_to(DOTGIT, ref):",
        "if False:",
        (*HELD, "mount/fs/test_undone.py::test_nothing_becomes_git_while_git_does_not_answer"),
    ),
    Mutant(
        "access-rename-to-folded-git-stays",
        "a rename that turned out to lead to .git is refused, but not undone",
        "fs/renaming.py",
        """\
            except BaseException:
                self._move_back(renaming, arrived)
""",
        """\
            except BaseException:
""",
        (
            *ACCESS,
            *PLACING,
            "mount/fs/test_undone.py::test_nothing_becomes_git_while_git_does_not_answer",
        ),
    ),
    Mutant(
        "access-component-ignores-directory",
        "a symlink may lead through a denied directory whose name is ordinary",
        "fs/access.py",
        "if directory.verdict >= verdict:",
        "if False:",
        LINKS,
    ),
    Mutant(
        "access-classified-since-now",
        "a look below puts off the next look at what is above",
        "fs/revalidation.py",
        "node.classified_at = since",
        "node.classified_at = now",
        REVALIDATION,
    ),
    Mutant(
        "access-unreadable-name-absent",
        "a name that cannot be looked at counts as not there",
        "fs/source.py",
        "except (FileNotFoundError, NotADirectoryError):\n            return None",
        "except OSError:\n            return None",
        ("mount/fs/test_errors.py", "mount/fs/test_undone.py"),
    ),
    Mutant(
        "access-moved-not-noticed",
        "a directory that the host has moved counts as being where it was seen",
        "fs/descriptors.py",
        """\
            if not node.matches(st):
                raise stale()""",
        """\
            if False:
                raise stale()""",
        DEPTH,
    ),
    Mutant(
        "access-moved-not-classified",
        "what the host has moved into .git stays open",
        "fs/revalidation.py",
        "if found > directory.verdict:",
        "if False:",
        REVALIDATION,
    ),
    Mutant(
        "access-root-classified-once",
        "a source that the host makes a repository stays open",
        "fs/revalidation.py",
        "if verdict is not node.verdict:",
        "if False:",
        REVALIDATION,
    ),
    Mutant(
        "access-unreadable-directory-open",
        "a directory that cannot be looked into is classified once and for all",
        "fs/resolver.py",
        "if not classified.is_open:",
        "if False:",
        ERRORS,
    ),
    Mutant(
        "access-new-name-not-looked-at-again",
        "two guards over one share make a repository between them",
        "fs/new_entries.py",
        "self.new_names.check_added(ref, S_ISDIR(mode))",
        "pass",
        UNDONE,
    ),
    Mutant(
        "access-rename-not-looked-at-again",
        "two guards over one share make a repository between them by a rename",
        "fs/renaming.py",
        "            self.new_names.check_added(ref, False)",
        "            pass",
        UNDONE,
    ),
    Mutant(
        "access-failed-call-not-looked-for",
        "a call that was done and answered with an error leaves what it made",
        "fs/new_entries.py",
        "            if was_free:",
        "            if False:",
        UNDONE,
    ),
    Mutant(
        "access-failed-chown-is-done",
        "a chown that fails by EIO leaves a file of root's",
        "fs/new_entries.py",
        "if error.errno in OWNS_ALL and st.st_uid",
        "if st.st_uid",
        UNDONE,
    ),
    Mutant(
        "access-listing-drops-names",
        "an entry whose lookup fails vanishes from a listing",
        "fs/directories.py",
        "if self.guard.is_listed(name):",
        "if False:",
        ERRORS,
    ),
    Mutant(
        "listing-shows-git",
        "watchers and archivers end at a .git that they find and cannot open",
        "fs/directories.py",
        "if node.verdict is not ALLOW and not self.guard.is_listed(name):",
        "if False:",
        LISTING,
    ),
    Mutant(
        "listing-counts-lookups-of-git",
        "each listing leaves a node of .git behind, which the kernel never forgets",
        "fs/directories.py",
        "                self.resolver.undo_lookup(node)\n                continue",
        "                continue",
        LISTING,
    ),
    Mutant(
        "descriptors-below-mounts-stay",
        "the host cannot unmount a file system below the source that nobody uses",
        "fs/descriptors.py",
        "            self.passing.append(node)",
        "            pass",
        BELOW,
    ),
    Mutant(
        "case-is-taken-to-matter",
        "a file made as Missing is not found as missing for a second, where these are one name",
        "fs/letter_case.py",
        "            return None\n        return None",
        "            return None\n        return True",
        FOLDING,
    ),
    Mutant(
        "case-is-never-asked-about",
        "the same in each directory",
        "fs/lookup.py",
        "self.is_exclusive or self.case.matters(ref.parent, ref.fd)",
        "True",
        FOLDING,
    ),
    Mutant(
        "links-target-rights-ignored",
        "a rename over a resolved symlink replaces a file in root's directory",
        "fs/symlinks.py",
        "if not may_remove((caller.uid, caller.gid), directory, entry):",
        "if False:",
        LINKS,
    ),
    Mutant(
        "links-sticky-ignored",
        "another's file in a sticky directory can be removed behind a symlink",
        "fs/symlinks.py",
        "return not mode & S_ISVTX or uid in (directory.uid, entry.uid)",
        "return True",
        LINKS,
    ),
    Mutant(
        "nodes-tighten-loosens",
        "what lies below a directory gets its verdict even where its own is stricter",
        "fs/nodes.py",
        "if above is not None and above.verdict > step.verdict:",
        "if above is not None:",
        (*NODES, *REVALIDATION),
    ),
    Mutant(
        "nodes-birth-not-compared",
        "a new object with a reused inode number is taken for the old one",
        "fs/nodes.py",
        "is_reused = btime_ns and node.btime_ns and btime_ns != node.btime_ns",
        "is_reused = False",
        (*NODES, "adapter/view/test_table.py"),
    ),
    Mutant(
        "nodes-reused-number-at-another-place-is-the-same-file",
        "a file is opened with the content of another one that got its former inode number",
        "fs/resolver.py",
        "return node.is_found(st) and self._is_where_it_was(node, st)",
        "return node.is_found(st)",
        ("mount/fs/test_coherence.py",),
    ),
    Mutant(
        "held-open-file-shows-its-number",
        "over 9p, what the host puts in the place of an open file is taken for that file, moved",
        "fs/ninep.py",
        """\
        if self._is_open(st):
            return self.number_listed(dir_fd, name) == st.st_ino
""",
        "",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-directory-shows-its-number",
        "over 9p, a new directory is taken for the former one while anything below that is held",
        "fs/ninep.py",
        """\
        self._descriptors.close_unleased()
        return self._source.stat_at(""",
        "        return self._source.stat_at(",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-directory-gets-its-number-inside",
        "over 9p, a new directory is taken for the one that it is in, whose number it got",
        "fs/resolver.py",
        "if former.is_directory or not self._is_where_it_was",
        "if not self._is_where_it_was",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-part-shows-its-type",
        "over 9p, a repository is open whose HEAD was a directory that somebody holds",
        "fs/ninep.py",
        "if S_ISDIR(mode) and not self._is_listed_directory(dir_fd, name):",
        "if False:",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-entry-shows-its-type",
        "over 9p, a repository is moved that looks like the open file which it replaced",
        "fs/ninep.py",
        "if (S_ISDIR(st.st_mode) or self._is_open(st)) and self._is_disguised(dir_fd, name, st):",
        "if False:",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-directory-is-a-file",
        "over 9p, a directory is shown where the host has put a file or symlink in its place",
        "fs/ninep.py",
        """\
        except NotADirectoryError:  # something else is there now
            return super().entry(ref, self._unheld(ref), uid, dotgit)""",
        """\
        except NotADirectoryError:  # something else is there now
            raise""",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-file-is-changed",
        "over 9p, attributes of a repository are changed that looks like an open file",
        "fs/access.py",
        "            if node.open_fds and node.parent is not None:",
        "            if False:",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-file-is-not-closed",
        "over 9p, a file that the daemon has opened once keeps its type when it is replaced",
        "fs/ninep.py",
        """\
        self._close_file()
        if not node.is_directory:""",
        "        if not node.is_directory:",
        ("adapter/test_held_names.py", "adapter/test_numbers.py"),
    ),
    Mutant(
        "held-entry-below-a-moved-directory",
        "over 9p, a directory is moved with a repository in it that looks like an open file",
        "fs/ninep.py",
        """\
            if not S_ISDIR(self.stat(fd).st_mode):
                raise stale()  # what it holds cannot be seen
""",
        "",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-directory-is-folded-to-git",
        "over 9p, a held directory is moved to a name that the server takes for .git",
        "fs/ninep.py",
        """\
            return st is not None and found is not None
        return not any(""",
        """\
            return st is not None and found is not None
        return False and not any(""",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-name-is-not-made-again",
        "over 9p, nothing can be made where the host has removed what the daemon has opened",
        "fs/ninep.py",
        """\
        if self.find_at(dir_fd, name) is not None:
            return False
        self._descriptors.close_unleased()
        return True""",
        "        return False",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "held-name-of-nothing-is-missing",
        "over 9p, a file is missing under the name that it has left, and not looked up again",
        "fs/descriptors.py",
        "except (FileNotFoundError, NotADirectoryError):  # 9p opens",
        "except (ProcessLookupError,):  # 9p opens",
        ("adapter/test_held_names.py",),
    ),
    Mutant(
        "nodes-place-not-compared",
        "a node found at another name is taken for the same object without a question",
        "fs/nodes.py",
        "is_elsewhere = node.parent is not parent or node.name != name",
        "is_elsewhere = node.parent is not parent",
        (*NODES, "mount/fs/test_coherence.py"),
    ),
    Mutant(
        "nodes-last-of-several-names-not-doubted",
        "of two names, one is opened with a new file at the other that has the inode number",
        "fs/nodes.py",
        "if self.has_other_names and st.st_nlink == 1 and not self.open_fds:",
        "if False:",
        ("adapter/test_numbers.py", "mount/fs/test_coherence.py"),
    ),
    Mutant(
        "nodes-without-a-place-always-the-same-file",
        "after one of its names was removed, a file is opened with another one's content",
        "fs/resolver.py",
        "return (is_unchanged and node.is_found(st)) or (is_held and self._has_a_name(node))",
        "return True",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-replaced-node-not-restricted",
        "an open file that the host moved twice, to a guarded name in the end, can be opened again",
        "fs/nodes.py",
        "                self.retire(node)\n                node = None\n",
        "                self.unhash(node)\n                node = None\n",
        (*NODES, "adapter/test_numbers.py"),
    ),
    Mutant(
        "nodes-removed-name-not-compared",
        "a name is opened with a file that was removed here and got its former inode number",
        "fs/resolver.py",
        "is_same = (is_there and node.is_found(st)) or self._is_same(node, st)",
        "is_same = True",
        ("adapter/test_numbers.py", "mount/fs/test_coherence.py"),
    ),
    Mutant(
        "nodes-removed-name-not-doubted",
        "one of two names is opened with a file that was removed here at the other",
        "fs/resolver.py",
        "is_same = (is_there and node.is_found(st)) or self._is_same(node, st)",
        "is_same = is_there or self._is_same(node, st)",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-held-file-doubted",
        "fstat(2) of a file that the daemon holds is ESTALE once the host has removed another name",
        "fs/metadata.py",
        "if node.fd >= 0 or node.open_fds:",
        "if node.open_fds:",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-moved-while-open-not-doubted-later",
        "a former name is opened with a new file at the name that the file was moved to",
        "fs/resolver.py",
        "if node.parent is not None and not self._is_where_it_was(node, st):",
        "if False:",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-doubtful-name-kept-after-a-removal-here",
        "a name that was just looked up is ESTALE, which the process sees",
        "fs/resolver.py",
        "return (is_unchanged and node.is_found(st)) or (is_held and self._has_a_name(node))",
        "return is_unchanged or (is_held and self._has_a_name(node))",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-dead-descriptor-keeps-the-number",
        "on a share, a file without a name stands for a new one with its inode number",
        "fs/resolver.py",
        "return (is_unchanged and node.is_found(st)) or (is_held and self._has_a_name(node))",
        "return (is_unchanged and node.is_found(st)) or is_held",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-without-a-place-never-the-same-file",
        "on 9p, a file gets another inode number after one of its names was removed",
        "fs/resolver.py",
        "return (is_unchanged and node.is_found(st)) or (is_held and self._has_a_name(node))",
        "return is_held and self._has_a_name(node)",
        ("adapter/test_numbers.py", "adapter/test_rename.py"),
    ),
    Mutant(
        "nodes-last-name-doubted-after-a-removal-here",
        "what a program links into place gets another inode number",
        "fs/resolver.py",
        "if st.st_nlink == 2:",
        "if False:",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-last-name-not-doubted-after-any-removal-here",
        "of three names one was removed here: one of the others is opened with another file",
        "fs/resolver.py",
        "if st.st_nlink == 2:",
        "if True:",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-one-link-taken-for-several",
        "a file that is shown in two directories gets another inode number at each look",
        "fs/nodes.py",
        "if is_elsewhere and st.st_nlink > 1:",
        "if is_elsewhere:",
        ("adapter/test_numbers.py",),
    ),
    Mutant(
        "nodes-replaced-node-restricted-at-each-look",
        "each look at a guarded file makes all verdicts be asked for again",
        "fs/nodes.py",
        "if node is not None and node is not self.root and node.verdict < verdict:",
        "if node is not None and node is not self.root:",
        NODES,
    ),
    Mutant(
        "nodes-guarded-node-not-restricted",
        "a protected file that the host moves to a hidden name can be opened by its former node",
        "fs/nodes.py",
        "for node in (self.find(st), self.find(st, GUARDED), *others):",
        "for node in (self.find(st), *others):",
        (*NODES, "adapter/test_numbers.py"),
    ),
    Mutant(
        "nodes-restricted-node-not-restricted-again",
        "a file that the host moves to a protected name, and then to .git, can still be read",
        "fs/nodes.py",
        "                self.restrict_below(node, verdict, rule)\n"
        "                self.retire(node)\n",
        "                self.restrict_below(node, verdict, rule)\n",
        (*NODES, "adapter/test_numbers.py"),
    ),
    Mutant(
        "nodes-replaced-node-never-dropped",
        "the table keeps every node that was replaced by another one",
        "fs/nodes.py",
        "others = [n for n in self._other_nodes.pop((node.dev, node.ino), ()) if n is not node]",
        "others = self._other_nodes.get((node.dev, node.ino))",
        NODES,
    ),
    Mutant(
        "access-any-error-is-nothing",
        'any error of the source counts as "not there"',
        "fs/source.py",
        """\
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mode_at""",
        """\
        except OSError:
            return None

    def mode_at""",
        PAYLOAD,
    ),
    Mutant(
        "rules-forget-short-names",
        "what --deny names can be used by its 8.3 name",
        "fs/access.py",
        "        if guard.has_globs and names.may_be_short_name(ref.name):",
        "        if False:",
        ("adapter/test_folding.py::test_a_short_name_is_no_way_round_a_rule",),
    ),
    # What holds because git on the host may be at work
    Mutant(
        "special-files-are-free",
        "a FIFO gets a name that git opens",
        "fs/new_name_check.py",
        "if self._guard.guards_git and work_tree.stops_git(ref.name, file_type):",
        "if False:",
        ("mount/attacks/test_attacks_host_git.py::test_git_never_waits",),
    ),
    Mutant(
        "local-devices-blame-who-asks",
        "without descriptors left, a request fails with EMFILE",
        "linux/local_devices.py",
        "if error.errno not in (errno.EMFILE, errno.ENFILE):",
        "if True:",
        ("unit/linux/test_local_devices.py",),
    ),
    Mutant(
        "host-places-are-not-noted",
        "the tables do not follow a directory that the host has moved",
        "fs/revalidation.py",
        "self._note_path(directory, way)",
        "pass",
        MOVED,
    ),
    Mutant(
        "held-names-by-spelling",
        "dots, spaces and streams at the end of a name make it another one over 9p",
        "names/dotgit.py",
        'name.partition(b":")[0].rstrip(b". ").lower()',
        "name.lower()",
        NAMES,
    ),
    Mutant(
        "held-names-not-normalized",
        "another Unicode normalization of a name makes it another one over 9p",
        "names/dotgit.py",
        'unicodedata.normalize("NFKD", text.casefold()).encode()',
        "folded(name)",
        NAMES,
    ),
    # Half repositories (G4), symlinks (G6), leases, directories far down
    Mutant(
        "payload-of-half-a-repository-is-free",
        "the payload of half a repository can be made and removed",
        "fs/access.py",
        """\
            if self._guard.checks_fake_repositories:
                self.check_no_payload(parent, name)
""",
        "",
        PAYLOAD,
    ),
    Mutant(
        "payload-can-be-changed",
        "the payload of half a repository can be written and linked",
        "fs/access.py",
        """\
            if self._guard.checks_fake_repositories:
                self._check_no_payload(node)
""",
        "",
        PAYLOAD,
    ),
    Mutant(
        "payload-file-itself-is-free",
        "config of half a repository can be written",
        "fs/access.py",
        """\
            if repository.is_payload(node.name):
                self.check_no_payload(node.parent, node.name)
""",
        "",
        PAYLOAD,
    ),
    Mutant(
        "payload-below-hooks-is-free",
        "what is below the hooks of half a repository can be changed",
        "fs/access.py",
        """\
            if repository.is_hooks(step.name):
                self.check_no_payload(above, step.name)
""",
        "",
        PAYLOAD,
    ),
    Mutant(
        "payload-hooks-one-level-deep",
        "what is two levels below hooks can be changed",
        "fs/access.py",
        "        for _ in range(MAX_DEPTH):",
        "        for _ in range(1):",
        PAYLOAD,
    ),
    Mutant(
        "payload-hooks-in-one-spelling",
        "HOOKS and hooks. are other directories",
        "names/repository.py",
        "    return HOOKS in parts(name)",
        "    return name == HOOKS",
        PAYLOAD,
    ),
    Mutant(
        "payload-in-one-spelling",
        "CONFIG is another name than config",
        "names/repository.py",
        "return not parts(name).isdisjoint(PAYLOAD)",
        "return name in PAYLOAD",
        PAYLOAD,
    ),
    Mutant(
        "payload-without-commondir",
        "commondir is free beside refs and objects",
        "names/repository.py",
        "PAYLOAD = frozenset((CONFIG, CONFIG_WORKTREE, COMMONDIR, HOOKS))",
        "PAYLOAD = frozenset((CONFIG, CONFIG_WORKTREE, HOOKS))",
        PAYLOAD,
    ),
    Mutant(
        "payload-beside-a-directory-head",
        "a directory called HEAD counts as half of a repository",
        "names/repository.py",
        "found = head is not None and not S_ISDIR(head)",
        "found = head is not None",
        PAYLOAD,
    ),
    Mutant(
        "payload-objects-do-not-count",
        "HEAD and objects, or refs and objects, are ordinary",
        "names/repository.py",
        " + (mode_of(OBJECTS) is not None) >= 2",
        " >= 2",
        PAYLOAD,
    ),
    Mutant(
        "payload-one-part-is-half",
        "one part alone closes config",
        "names/repository.py",
        "(mode_of(OBJECTS) is not None) >= 2",
        "(mode_of(OBJECTS) is not None) >= 1",
        PAYLOAD,
    ),
    Mutant(
        "payload-is-a-plain-name",
        "no rule is asked about config and hooks",
        "names/rules.py",
        '_SPECIAL = {b".git", *map(bytes.lower, (*repository.PARTS, *work_tree.OPENED))}',
        '_SPECIAL = {b".git", *map(bytes.lower, (*repository.NEEDED, *work_tree.OPENED))}',
        PAYLOAD,
    ),
    Mutant(
        "placing-many-names",
        "a search of a moved tree has no limit for names",
        "fs/link_check.py",
        "if self._entries > MAX_ENTRIES:",
        "if False:",
        PLACING,
    ),
    Mutant(
        "placing-many-steps",
        "a text is followed through any number of directories",
        "fs/link_check.py",
        """\
                if steps_taken > MAX_STEPS:
                    return False
""",
        "",
        PLACING,
    ),
    Mutant(
        "links-absolute-stays",
        "an absolute text is contained",
        "names/links.py",
        """\
    if text.startswith(b"/"):
        return None
""",
        "",
        (*TEXTS, *PLACING),
    ),
    Mutant(
        "links-dotdot-anywhere",
        "a text may go back by .. after a name",
        "names/links.py",
        'if b".." in down or any(map(is_dotgit, down)):',
        "if any(map(is_dotgit, down)):",
        (*TEXTS, *PLACING),
    ),
    Mutant(
        "links-to-git",
        "a text may lead into .git",
        "names/links.py",
        'if b".." in down or any(map(is_dotgit, down)):',
        'if b".." in down:',
        (*TEXTS, *PLACING),
    ),
    Mutant(
        "links-dots-go-back",
        "a stored text leads out for programs that resolve paths as text",
        "names/links.py",
        r'return NEUTRAL + _DOTS.sub(rb"\g<0>.", text)',
        "return NEUTRAL + text",
        TEXTS,
    ),
    Mutant(
        "links-dots-are-shown",
        "the view shows ... for each .. of a symlink that leads nowhere",
        "names/links.py",
        "return _DOTS.sub(lambda dots: dots[0][:-1], stored[len(NEUTRAL) :])",
        "return stored[len(NEUTRAL) :]",
        (*TEXTS, *PLACING),
    ),
    Mutant(
        "links-neutral-by-part",
        "a text that only begins like a stored one is taken for one",
        "names/links.py",
        'NEUTRAL = b"/.gitguardfs-guest/"',
        'NEUTRAL = b"/.gitguardfs"',
        TEXTS,
    ),
    Mutant(
        "placing-stores-as-given",
        "a symlink leads out of its work tree",
        "fs/link_check.py",
        "        if not self._is_on or self._is_contained(ref.parent, text):",
        "        if True:",
        PLACING,
    ),
    Mutant(
        "placing-stores-nothing-as-given",
        "each symlink leads nowhere on the host",
        "fs/link_check.py",
        "        if not self._is_on or self._is_contained(ref.parent, text):",
        "        if not self._is_on:",
        PLACING,
    ),
    Mutant(
        "placing-raw-is-ignored",
        "--links=raw changes nothing",
        "names/rules.py",
        "self.contains_links = self.guards_git and rules.links is LinkMode.GUARDED",
        "self.contains_links = self.guards_git",
        PLACING,
    ),
    Mutant(
        "placing-link-is-free",
        "link(2) brings a symlink to where it leads out",
        "fs/new_entries.py",
        """\
            self.link_check.check_fits(ref, stored)
        make""",
        "        make",
        PLACING,
    ),
    Mutant(
        "placing-not-looked-at-again",
        "the host makes a repository while a symlink is made",
        "fs/new_entries.py",
        """\
            if stored is not None:
                self.link_check.check_fits(ref, stored)
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-rename-not-before",
        "a symlink is where it leads out until the rename is undone",
        "fs/renaming.py",
        """\
            if moves_links:
                self.link_check.check_rename(renaming)
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-rename-not-after",
        "the host makes a repository while a symlink is moved",
        "fs/renaming.py",
        """\
                if renaming.moves_links:
                    self.link_check.check_rename(renaming)
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-exchange-of-a-file",
        "an exchange with a file brings a symlink anywhere",
        "fs/renaming.py",
        "moves_links = exchange or S_ISLNK(moved.st_mode)",
        "moves_links = S_ISLNK(moved.st_mode)",
        PLACING,
    ),
    Mutant(
        "placing-neutral-stays",
        "a symlink that leads nowhere cannot be moved",
        "fs/link_check.py",
        """\
            and not links.is_neutral(stored)
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-directories-are-free",
        "a directory brings its symlinks to where they lead out",
        "fs/link_check.py",
        "elif S_ISDIR(st.st_mode) and self._may_lead_out(old.parent, new.parent):",
        "elif False:",
        PLACING,
    ),
    Mutant(
        "placing-directories-to-another-root",
        "a directory that stays as deep brings symlinks into another work tree",
        "fs/link_check.py",
        " or any(map(self._holds_dotgit, (*from_old, *from_new)))",
        "",
        PLACING,
    ),
    Mutant(
        "placing-directories-upwards",
        "a directory brings symlinks nearer to the root",
        "fs/link_check.py",
        "return len(from_old) > len(from_new) or any(",
        "return any(",
        PLACING,
    ),
    Mutant(
        "placing-tree-one-level",
        "symlinks further down in a moved directory are not seen",
        "fs/link_check.py",
        "                    fits = self._directory_fits(fd, name, depth + 1)",
        "                    fits = True",
        PLACING,
    ),
    Mutant(
        "placing-tree-leads-out-by-names",
        "a symlink that comes out of a moved directory may lead to the root, or to a guarded name",
        "fs/link_check.py",
        "return climbed < 0 or self._stays_below(to, links.Steps(climbed, steps.down))",
        "return climbed < 0 or climbed == 0",
        PLACING,
    ),
    Mutant(
        "placing-tree-never-leaves-the-directory",
        "a directory does not move up if a symlink leads out of it, to where it may",
        "fs/link_check.py",
        "return climbed < 0 or self._stays_below(to, links.Steps(climbed, steps.down))",
        "return climbed < 0",
        PLACING,
    ),
    Mutant(
        "placing-names-that-a-rule-guards",
        "a symlink leads to a name that a rule will guard once it is there",
        "fs/link_check.py",
        "        if not all(map(self._access.allows, steps.down)):\n            return False\n",
        "",
        PLACING,
    ),
    Mutant(
        "placing-renamed-directories-are-free",
        "a directory that moves to another one is not asked for its symlinks",
        "fs/renaming.py",
        "if S_ISDIR(moved.st_mode) and old.parent is not new.parent:",
        "if False:",
        PLACING,
    ),
    Mutant(
        "placing-tree-counts-from-the-top",
        "a symlink further down in a moved directory counts as one at its top",
        "fs/link_check.py",
        "self._fits(stored, depth)",
        "self._fits(stored, 0)",
        PLACING,
    ),
    Mutant(
        "placing-tree-without-end",
        "a directory of any size is searched",
        "fs/link_check.py",
        "        self._directories += 1\n",
        "",
        PLACING,
    ),
    Mutant(
        "placing-tree-of-any-depth",
        "a directory of any depth is searched",
        "fs/link_check.py",
        "if self._directories > MAX_DIRECTORIES or depth == MAX_DEPTH:",
        "if self._directories > MAX_DIRECTORIES:",
        PLACING,
    ),
    Mutant(
        "placing-tree-without-descriptors",
        "a move fails with ENFILE where a copy would do",
        "fs/link_check.py",
        "if error.errno not in (errno.EMFILE, errno.ENFILE):",
        "if error.errno != errno.EMFILE:",
        PLACING,
    ),
    Mutant(
        "placing-tree-directory-became-a-symlink",
        "a symlink that takes a directory's place during the search is not seen",
        "fs/link_check.py",
        "return not S_ISLNK(mode)",
        "return True",
        PLACING,
    ),
    Mutant(
        "placing-tree-fails-if-one-vanishes",
        "a move fails as the host removes something in the directory",
        "fs/link_check.py",
        """\
            except FileNotFoundError:  # the host has removed it since
                continue
""",
        """\
            except ZeroDivisionError:
                continue
""",
        PLACING,
    ),
    Mutant(
        "placing-climbs-out",
        "a text climbs above the root of its work tree",
        "fs/link_check.py",
        """\
        if self._is_at_root():
            return False
        if self._below:""",
        "        if self._below:",
        PLACING,
    ),
    Mutant(
        "placing-ends-at-the-root",
        "a text ends at the root of a work tree",
        "fs/link_check.py",
        "                return not self._is_at_root()",
        "                return True",
        PLACING,
    ),
    Mutant(
        "placing-root-of-the-share",
        "a text climbs above the share",
        "fs/link_check.py",
        """\
        if not self._below and self._base is self._rule._root:
            return True
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-guarded-target",
        "a symlink leads to what a rule guards",
        "fs/link_check.py",
        """\
                if self._access.verdict_of(ref, st)[0] is not ALLOW:
                    return False
""",
        "",
        PLACING,
    ),
    Mutant(
        "placing-over-symlinks",
        "what symlinks on the way lead to does not matter",
        "fs/link_check.py",
        """\
            if next_steps is None:
                return False
""",
        """\
            if next_steps is None:
                return True
""",
        PLACING,
    ),
    Mutant(
        "placing-one-symlink-is-followed",
        "a second symlink on the way may lead anywhere",
        "fs/link_check.py",
        "or followed > MAX_SYMLINKS:",
        "or followed > 1:",
        PLACING,
    ),
    Mutant(
        "placing-places-as-last-seen",
        "a text is counted from where the directory was before the host moved it",
        "fs/link_check.py",
        """\
        self._access.check_now(self._base, 0)  # the host may have moved it
""",
        "",
        MOVED,
    ),
    Mutant(
        "placing-moves-as-last-seen",
        "a move is judged by where the host had the directories before",
        "fs/link_check.py",
        """\
        for directory in (old, new):
            self._access.check_now(directory)
""",
        "",
        MOVED,
    ),
    Mutant(
        "placing-text-as-stored",
        "readlink shows the stored text",
        "fs/parts.py",
        "return links.shown(stored) if self.guard.contains_links else stored",
        "return stored",
        PLACING,
    ),
    Mutant(
        "placing-size-as-stored",
        "st_size is that of the stored text",
        "fs/attributes.py",
        "shown = shown._replace(size=len(self._shown_text(node)))",
        "pass",
        PLACING,
    ),
    Mutant(
        "placing-resolves-as-stored",
        "--resolve-symlinks sees the stored text",
        "fs/symlinks.py",
        "return links.shown(self._source.readlink_at(component.fd, component.name))",
        "return self._source.readlink_at(component.fd, component.name)",
        PLACING,
    ),
    Mutant(
        "descriptors-evicts-leased",
        "a descriptor that a request works with is closed",
        "fs/descriptors.py",
        """\
            if node.leased == self.request:
                self._cached[node] = None
            else:
                os.close(node.fd)
                node.fd = -1
""",
        """\
            os.close(node.fd)
            node.fd = -1
""",
        ("unit/fs/test_descriptors.py",),
    ),
    Mutant(
        "descriptors-lease-for-ever",
        "descriptors stay leased when their request is over",
        "view/view.py",
        """\
                descriptors.request += 1
""",
        "",
        ("adapter/test_counts.py", "adapter/test_moved_by_host.py", "adapter/test_revalidation.py"),
    ),
    Mutant(
        "depth-all-above-over-a-share",
        "a request far down asks a server about each directory above",
        "fs/revalidation.py",
        "is_whole = len(due) <= NEAREST + LONGEST_AGO or self._source.is_local(directory.dev)",
        "is_whole = True",
        DEPTH,
    ),
    Mutant(
        "depth-some-above-on-a-disk",
        "on a local source a directory above has to wait for its turn",
        "fs/revalidation.py",
        "is_whole = len(due) <= NEAREST + LONGEST_AGO or self._source.is_local(directory.dev)",
        "is_whole = len(due) <= NEAREST + LONGEST_AGO",
        DEPTH,
    ),
    Mutant(
        "depth-always-the-same",
        "some directories above never have their turn",
        "fs/revalidation.py",
        "further = sorted(due[NEAREST:], key=lambda node: node.looked_at)",
        "further = due[NEAREST:]",
        DEPTH,
    ),
    Mutant(
        "depth-nearest-wait-as-well",
        "the directory above waits for its turn",
        "fs/revalidation.py",
        "further = sorted(due[NEAREST:], key=lambda node: node.looked_at)",
        "further = sorted(due[1:], key=lambda node: node.looked_at)",
        DEPTH,
    ),
    Mutant(
        "ninep-nothing-is-let-go",
        "a directory that the host has replaced is seen as it was, since the daemon holds it",
        "fs/ninep.py",
        """\
            if node in self._cached:
                del self._cached[node]
                os.dup2(self._root_fd, node.fd, inheritable=False)
                self._numbers[node], node.fd = node.fd, -1
""",
        """\
            pass
""",
        HELD,
    ),
    Mutant(
        "ninep-another-is-found",
        "another directory in its place is taken for it",
        "fs/ninep.py",
        """\
                if not node.matches(os.fstat(fd)):
                    raise stale()
""",
        """\
                pass
""",
        ("adapter/test_held_names.py", "adapter/test_revalidation.py"),
    ),
    Mutant(
        "ninep-number-is-lost",
        "a leased descriptor leads to the root after its directory was found again",
        "fs/ninep.py",
        """\
        number = self._numbers.pop(node, -1)
""",
        """\
        number = -1
""",
        (
            "adapter/test_held_names.py",
            "adapter/test_revalidation.py",
            "adapter/test_link_check.py",
        ),
    ),
    Mutant(
        "names-dots-at-the-end-count",
        ".git. and '.git .', which NTFS takes for .git, are ordinary",
        "names/dotgit.py",
        r'rb")[. ]*(?:\Z|[:\\/])"',
        r'rb")(?:\Z|[:\\/])"',
        NAMES,
    ),
    Mutant(
        "names-backslash-is-a-letter",
        r"foo\.git, which Windows reads as a path, is ordinary",
        "names/dotgit.py",
        r'(?i)(?:^|\\)(?:"',
        '(?i)^(?:"',
        NAMES,
    ),
    Mutant(
        "names-that-begin-so",
        ".gitignore and .github are guarded as well",
        "names/dotgit.py",
        r'rb")[. ]*(?:\Z|[:\\/])"',
        'rb")"',
        NAMES,
    ),
    Mutant(
        "names-noncharacter-goes-on",
        "a noncharacter does not end a name, as it does for git",
        "names/dotgit.py",
        "    text = _ENDS_NAME.split(text, maxsplit=1)[0]\n",
        "",
        NAMES,
    ),
    Mutant(
        "names-ignorable-on-hfs-alone",
        "code points that only casefold directories drop make .git ordinary",
        "names/dotgit.py",
        r'"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f',
        r'"[\u200c-\u200f',
        NAMES,
    ),
    Mutant(
        "names-ignorable-of-one-plane",
        "code points above U+FFFF that are dropped make .git ordinary",
        "names/dotgit.py",
        r'"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"',
        '"]"',
        NAMES,
    ),
    Mutant(
        "names-malformed-on-hfs-alone",
        "a .git after malformed UTF-8 and a backslash is ordinary",
        "names/dotgit.py",
        "text is not name and pattern.search(name) is not None",
        "False",
        NAMES,
    ),
    Mutant(
        "repository-refs-may-follow-head",
        "refs can be made beside HEAD",
        "names/repository.py",
        "return is_file(HEAD) or (is_there(OBJECTS) and has_payload())",
        "return is_there(OBJECTS) and has_payload()",
        REPOSITORY,
    ),
    Mutant(
        "repository-refs-may-follow-objects",
        "refs can be made beside objects and a payload",
        "names/repository.py",
        "return is_file(HEAD) or (is_there(OBJECTS) and has_payload())",
        "return is_file(HEAD)",
        REPOSITORY,
    ),
    Mutant(
        "repository-objects-may-follow-refs",
        "objects can be made beside refs and a payload",
        "names/repository.py",
        "return (is_file(HEAD) or is_there(REFS)) and has_payload()",
        "return is_file(HEAD) and has_payload()",
        REPOSITORY,
    ),
    Mutant(
        "repository-config-may-follow-objects",
        "config can be made beside refs and objects",
        "names/repository.py",
        "    return is_file(HEAD) or is_there(REFS, OBJECTS)",
        "    return is_file(HEAD)",
        REPOSITORY,
    ),
    Mutant(
        "repository-config-worktree-is-no-payload",
        "HEAD can be made beside config.worktree",
        "names/repository.py",
        "is_file(CONFIG) or is_file(CONFIG_WORKTREE) or is_there(HOOKS)",
        "is_file(CONFIG) or is_there(HOOKS)",
        REPOSITORY,
    ),
    Mutant(
        "special-gitmodules-may-be-a-symlink",
        ".gitmodules can be a symlink, which git follows to a FIFO",
        "names/work_tree.py",
        "return _is_followed(name) if S_ISLNK(mode) else _is_opened(name)",
        "return not S_ISLNK(mode) and _is_opened(name)",
        WORK_TREE,
    ),
    Mutant(
        "special-mailmap-is-free",
        "a FIFO called .mailmap can be made",
        "names/work_tree.py",
        'b".gitattributes", b".mailmap", GITMODULES',
        'b".gitattributes", GITMODULES',
        WORK_TREE,
    ),
    Mutant(
        "access-last-spelling-decides",
        "a directory called head beside a file HEAD lets refs be made",
        "fs/new_name_check.py",
        "if mode is not None and S_ISDIR(found.get(part, S_IFDIR)):",
        "if mode is not None:",
        ("adapter/test_policies.py",),
    ),
    Mutant(
        "access-listed-part-is-missing",
        "what a kernel takes for missing for a second is no part",
        "fs/new_name_check.py",
        "if mode is None and entry not in looked_up:",
        "if False:",
        ("adapter/test_policies.py",),
    ),
    Mutant(
        "access-no-component-is-a-name",
        "a dot is a name like any other",
        "fs/access.py",
        '(name in NO_NAMES or b"/" in name',
        '(b"/" in name',
        ACCESS,
    ),
    Mutant(
        "access-links-what-may-be-read",
        "a file that may only be read gets another name",
        "fs/new_entries.py",
        "node = self.check.node(node_id, change=True)",
        "node = self.check.node(node_id)",
        ACCESS,
    ),
    Mutant(
        "access-changes-what-may-be-read",
        "attributes of what may only be read can be changed",
        "fs/metadata.py",
        """\
        node = self.check.node(node_id, change=True)
        fd = self.descriptors.of(node)
        uid, gid""",
        """\
        node = self.check.node(node_id)
        fd = self.descriptors.of(node)
        uid, gid""",
        ACCESS,
    ),
    Mutant(
        "access-xattrs-of-what-may-be-read",
        "extended attributes of what may only be read can be changed",
        "fs/metadata.py",
        """\
        node = self.check.node(node_id, change=True)
        if self.policy.xattr""",
        """\
        node = self.check.node(node_id)
        if self.policy.xattr""",
        ACCESS,
    ),
    Mutant(
        "access-writes-what-may-be-read",
        "what may only be read can be opened for writing",
        "fs/files.py",
        "change=writes or bool(flags & os.O_TRUNC)",
        "change=bool(flags & os.O_TRUNC)",
        ACCESS,
    ),
    Mutant(
        "access-truncates-what-may-be-read",
        "what may only be read can be opened with O_TRUNC",
        "fs/files.py",
        "change=writes or bool(flags & os.O_TRUNC)",
        "change=writes",
        ACCESS,
    ),
    Mutant(
        "access-promises-writing",
        "access(2) says that what may only be read can be written",
        "fs/metadata.py",
        "self.check.node(node_id, change=bool(mask & os.W_OK))",
        "self.check.node(node_id)",
        ACCESS,
    ),
    Mutant(
        "access-text-of-git",
        "readlink(2) of a .git symlink gives its text",
        "fs/metadata.py",
        "self.link_text(self.check.node(node_id))",
        "self.link_text(self.nodes.get(node_id))",
        ACCESS,
    ),
    Mutant(
        "access-xattrs-of-git",
        "extended attributes of .git can be read",
        "fs/metadata.py",
        "return self.check.node(node_id)",
        "return self.check._nodes.get(node_id)",
        ACCESS,
    ),
    Mutant(
        "access-opens-git-to-list-it",
        ".git can be opened to be listed",
        "fs/directories.py",
        "        node = self.check.node(node_id)\n        return self.handles",
        "        node = self.nodes.get(node_id)\n        return self.handles",
        ACCESS,
    ),
    Mutant(
        "access-lists-what-became-git",
        "a directory that was open before it became .git is listed",
        "fs/directories.py",
        "        self.check.node(handle.node.id)\n",
        "",
        ACCESS,
    ),
    Mutant(
        "access-unreadable-directory-moves",
        "a directory that cannot be looked into is moved",
        "fs/access.py",
        "            return Verdict.DENY, UNREADABLE\n",
        "            pass\n",
        ERRORS,
    ),
    Mutant(
        "access-moves-with-what-is-unreadable",
        "a directory is moved with one in it that cannot be looked into",
        "fs/access.py",
        "        except PermissionError:\n"
        "            raise self.refused(UNREADABLE, ref) from None\n",
        "        except PermissionError:\n            return\n",
        ERRORS,
    ),
    Mutant(
        "access-moves-with-what-fails",
        "a directory is moved with one in it that does not answer",
        "fs/source.py",
        "        except FileNotFoundError:\n"
        "            return False\n"
        "        try:\n"
        "            return self.holds",
        "        except OSError:\n"
        "            return False\n"
        "        try:\n"
        "            return self.holds",
        ERRORS,
    ),
    Mutant(
        "access-failed-look-keeps-descriptors",
        "each look that fails leaves a descriptor open",
        "fs/access.py",
        "            if own >= 0:\n"
        "                os.close(own)\n"
        "            raise\n"
        "        if is_repository",
        "            raise\n        if is_repository",
        ("mount/fs/test_errors.py::test_looks_that_fail_leave_no_descriptors",),
    ),
    Mutant(
        "access-unreadable-is-remembered",
        "what could not be looked into once is not looked up again",
        "fs/attributes.py",
        "            entry_timeout = 0.0  # the kernel",
        "            pass  # the kernel",
        ERRORS,
    ),
    Mutant(
        "access-lost-directory-is-ordinary",
        "a directory that the server has lost may be a repository, and is used",
        "fs/revalidation.py",
        "            self._classify_where_it_is(directory)\n",
        "",
        ("mount/fs/test_errors.py::test_a_server_that_does_not_know_a_directory_any_more",),
    ),
    Mutant(
        "access-lost-directory-of-a-share-is-ordinary",
        "over a share, what lies below a directory that the server has lost can be used",
        "fs/revalidation.py",
        "                raise\n            self._classify_where",
        "                return\n            self._classify_where",
        (*REVALIDATION, *DEPTH),
    ),
    Mutant(
        "rename-leaves-whiteouts",
        "a rename leaves a device behind",
        "fs/renaming.py",
        "if flags & ~RENAME_FLAGS:",
        "if False:",
        RENAME,
    ),
    Mutant(
        "rename-from-guarded-names",
        "what has a guarded name can be moved away",
        "fs/renaming.py",
        "old = self.check.name(*old_name, change=True)",
        "old = self.check.name(*old_name)",
        RENAME,
    ),
    Mutant(
        "rename-to-guarded-names",
        "something can be moved to a guarded name",
        "fs/renaming.py",
        "new = self.check.name(*new_name, change=True)",
        "new = self.check.name(*new_name)",
        RENAME,
    ),
    Mutant(
        "rename-of-guarded-objects",
        "a bare repository can be moved and replaced",
        "fs/renaming.py",
        "        self.check.check_unguarded(ref, st)\n",
        "",
        RENAME,
    ),
    Mutant(
        "rename-exchange-takes-a-root-away",
        "the other end of an exchange may hold a repository",
        "fs/renaming.py",
        "self._check_end(new, fds, moves=exchange)",
        "self._check_end(new, fds, moves=False)",
        RENAME,
    ),
    Mutant(
        "rename-completes-for-a-moment",
        "a directory moves to HEAD, which another guard exchanges for a file",
        "fs/renaming.py",
        "check_completes_no_repository(ref, False, leaving)",
        "check_completes_no_repository(ref, S_ISDIR(st.st_mode), leaving)",
        RENAME,
    ),
    Mutant(
        "removes-guarded-objects",
        "a second name of .git can be removed",
        "fs/removals.py",
        "            self.check.check_unguarded(ref, st)\n",
        "",
        ACCESS,
    ),
    Mutant(
        "links-target-may-be-guarded",
        "a resolved symlink removes what may only be read",
        "fs/symlinks.py",
        "        self._access.check_unguarded(ref, target.st)\n",
        "",
        LINKS,
    ),
    Mutant(
        "undone-once",
        "an undoing that fails is not tried again",
        "fs/parts.py",
        """\
        with suppress(OSError):
            undo()
            return
""",
        "",
        UNDONE,
    ),
    Mutant(
        "undone-failed-rename-stays",
        "a rename that was done and answered with an error stays",
        "fs/renaming.py",
        "if not (new.is_plain and (old.is_plain or not renaming.exchange)):",
        "if False:",
        UNDONE,
    ),
    Mutant(
        "undone-after-refusals-alone",
        "what was made stays if the second look at it fails",
        "fs/new_entries.py",
        "        except BaseException:\n            if is_ours:",
        "        except PermissionError:\n            if is_ours:",
        UNDONE,
    ),
)
