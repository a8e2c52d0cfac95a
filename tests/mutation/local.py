"""Faults in the directories of the guest's own (``--local``)."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

LOCAL = ("mount/view/test_local.py",)
COMMAND = "mount/view/test_local_command.py"
TREES = "view/own_directories.py"

MUTANTS = (
    Mutant(
        "local-tracked-marked",
        "a commit of the agent's deletes what the human has committed in node_modules",
        "private/sparse.py",
        "    if hidden:\n",
        "    if False:\n",
        LOCAL,
    ),
    Mutant(
        "local-tracked-patterns",
        "a switch to another commit writes over the guest's node_modules",
        "private/seeding.py",
        'if sparse.is_on(config) else b"", left_out',
        'if sparse.is_on(config) else b"", set()',
        LOCAL,
    ),
    Mutant(
        "local-tracked-present",
        "what is in the guest's node_modules counts as a change of the human's",
        "private/sparse.py",
        "expectFilesOutsideOfPatterns = true",
        "expectFilesOutsideOfPatterns = false",
        LOCAL,
    ),
    Mutant(
        "local-dotgit",
        "a pattern that matches .git makes it the guest's: it can be used in the view",
        "names/local_names.py",
        "if found is None or dotgit.is_dotgit(name)",
        "if found is None",
        LOCAL,
    ),
    Mutant(
        "local-first-names",
        "cargo and pytest cannot rename what they have made to target and .pytest_cache",
        "names/local_names.py",
        "if first.fullmatch(name) and self._marker(last) is not None:",
        "if False:",
        ("mount/view/test_programs_local.py::test_both_sides_work_at_once",),
    ),
    Mutant(
        "local-before-the-rules",
        "a name that --deny names can be made",
        "view/own_directories.py",
        "or not self._share.check.allows(ref.name)",
        "",
        LOCAL,
    ),
    Mutant(
        "local-below-a-guarded-directory",
        "directories can be made in .git, where the host has one that is only read",
        "view/own_directories.py",
        "is_guarded = ref.parent.verdict is not ALLOW or",
        "is_guarded =",
        LOCAL,
    ),
    Mutant(
        "local-shows-the-hosts",
        "the host's own node_modules is shown in listings",
        TREES,
        "                shown[name] = None\n",
        "                pass\n",
        LOCAL,
    ),
    Mutant(
        "local-hides-a-file",
        "a symlink of the host's that has such a name is not shown",
        "view/own_directories.py",
        "            if there is None or S_ISDIR(there):\n",
        "            if True:\n",
        LOCAL,
    ),
    Mutant(
        "local-link-crosses",
        "a file of the share gets a name among the guest's own",
        TREES,
        "if is_local(node_id) != is_local(parent_id):",
        "if False:",
        LOCAL,
    ),
    Mutant(
        "local-rename-crosses",
        "a directory of the share is renamed to a name that hides it",
        TREES,
        "if not moved.is_local or (there is not None and not is_directory):",
        "if there is not None and not is_directory:",
        LOCAL,
    ),
    Mutant(
        "local-exchange-crosses",
        "an exchange brings a directory of the share to a name that hides it",
        TREES,
        "            self._destination(*old, self._found(*new))\n",
        "            pass\n",
        LOCAL,
    ),
    Mutant(
        "local-left-behind",
        "a directory that the agent moves leaves the guest's own behind",
        "view/own_directories.py",
        """\
                    self._stand_ins.move(old, new, renaming.exchange and replaces)
""",
        """\
                    pass
""",
        LOCAL,
    ),
    Mutant(
        "local-lost-by-rmdir",
        "a directory that shows one of the guest's own can be removed",
        "view/own_directories.py",
        "if self._stand_in_of(parent, name) is not None and self._holds_own(",
        "if False and self._holds_own(",
        LOCAL,
    ),
    Mutant(
        "local-covered-by-rename",
        "a directory is moved over one that shows some of the guest's own",
        "view/own_directories.py",
        "if replaces and not renaming.exchange and",
        "if False and",
        LOCAL,
    ),
    Mutant(
        "local-former-place",
        "a shell in a directory that the host has moved takes those of another directory along",
        "view/own_directories.py",
        """\
        self._share.check.check_now(parent)
""",
        "",
        LOCAL,
    ),
    Mutant(
        "local-without-room",
        "a rename succeeds and leaves the guest's own behind, since the disk is full",
        "view/own_directories.py",
        """\
            self._stand_ins.check_room(new)
""",
        """\
            pass
""",
        LOCAL,
    ),
    Mutant(
        "local-without-room-back",
        "an exchange succeeds and leaves the guest's own behind, since the name is too long",
        "view/own_directories.py",
        """\
            self._stand_ins.check_room(old)
""",
        """\
            pass
""",
        LOCAL,
    ),
    Mutant(
        "local-one-mark",
        "a directory that is the guest's by a marker is taken for one that stands for the share's",
        "base/constants.py",
        'LOCAL_STAND_IN, LOCAL_OWN = b"+", b"="',
        'LOCAL_STAND_IN, LOCAL_OWN = b"=", b"="',
        LOCAL,
    ),
    Mutant(
        "local-numbers-alike",
        "a file of the guest's and one of the share have one inode number",
        "fs/nodes.py",
        "LOCAL_NUMBERS = Numbers(1 << TREE_BITS,",
        "LOCAL_NUMBERS = Numbers(0,",
        LOCAL,
    ),
    Mutant(
        "local-listing-numbers",
        "listings give other inode numbers than stat",
        "fs/directories.py",
        "if offset := self.nodes.offset:",
        "if offset := 0:",
        LOCAL,
    ),
    Mutant(
        "local-store-shared",
        "two views keep their directories in one place, and cache them for an hour",
        "local/store.py",
        "fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by a fork\n",
        "pass\n",
        LOCAL,
    ),
    Mutant(
        "local-ids-mapped",
        "the ids of the share are applied to the guest's own files",
        "mounting/build.py",
        "root_fd, IdMapSpec().resolve((0, 0), (0, 0)),",
        "root_fd, share.idmap,",
        LOCAL,
    ),
    Mutant(
        "local-guarded",
        "the guard's rules hold below the guest's own: a package cannot have a repository",
        "mounting/build.py",
        "rules = GuardRules(git=GitMode.OFF, links=LinkMode.RAW)",
        "rules = options.rules",
        LOCAL,
    ),
    Mutant(
        "local-for-users",
        "a user's daemon makes files that belong to the wrong user",
        "options/mount_options.py",
        '    if given.get("local"):\n        return "local"\n',
        "",
        LOCAL,
    ),
    # gitguard local, gitguard doctor
    Mutant(
        "local-prune-believes-the-question",
        "what the host has put back while prune asked is removed",
        "commands/local.py",
        "            if one.state in (_REMOVABLE if paths else (State.GONE,)):",
        "            if True:",
        (f"{COMMAND}::test_what_the_host_puts_back_during_the_question_stays",),
    ),
    Mutant(
        "local-any-view-is-asked",
        "a view that covers the right one says that all places are gone",
        "guest/local_listing.py",
        "    if daemon is None or daemon.pid != pid:\n",
        "    if daemon is None:\n",
        (f"{COMMAND}::test_another_view_over_it_is_not_asked",),
    ),
    Mutant(
        "local-empty-share-believed",
        "prune removes everything when the disk of the host is not there",
        "guest/local_listing.py",
        "    if State.GONE in found and _is_empty(top):",
        "    if False:",
        (f"{COMMAND}::test_a_share_that_shows_nothing_says_nothing",),
    ),
    Mutant(
        "local-hidden-is-gone",
        "prune removes what is below a directory that a rule hides",
        "guest/local_listing.py",
        "            is_away = state is State.GONE and is_closed\n",
        "            is_away = False\n",
        (f"{COMMAND}::test_what_an_option_covers_is_not_gone",),
    ),
    Mutant(
        "local-store-anybodys",
        "root works in a store that another user has made",
        "guest/local_listing.py",
        "    if st.st_uid != 0 or st.st_mode & 0o022:\n",
        "    if False:\n",
        (f"{COMMAND}::test_a_store_that_another_could_have_made_is_none",),
    ),
    Mutant(
        "local-moves-what-is-in-use",
        "move takes a directory away that the view shows",
        "commands/local.py",
        "    if one.state not in _MOVABLE:\n",
        "    if False:\n",
        (f"{COMMAND}::test_move_refuses",),
    ),
    Mutant(
        "local-deep-descriptor-hides-daemon",
        "a daemon with a descriptor deep in the tree is not found",
        "linux/processes.py",
        "        if error.errno == errno.ENAMETOOLONG:\n            return None\n",
        "",
        (f"{COMMAND}::test_a_place_of_any_depth_is_found",),
    ),
    Mutant(
        "local-doctor-takes-any-mode",
        "the doctor accepts a store that others can enter",
        "doctor/local_checks.py",
        "    if not _is_roots_alone(share.tree):\n",
        "    if False:\n",
        (f"{COMMAND}::test_the_doctor_finds_a_store_that_is_open",),
    ),
)  # fmt: skip
