"""Faults in open files, ids, links and the tables behind them."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

CONTENT = ("adapter/test_content.py", "adapter/test_create.py")
COUNTS = ("adapter/test_counts.py",)
ATTRIBUTES = ("adapter/test_attributes.py",)
DESCRIPTORS = ("unit/fs/test_descriptors.py",)
IDS = ("unit/options/test_idmap.py",)
LINKS = ("adapter/test_links.py",)
OWNERS = (
    "unit/options/test_idmap.py",
    "unit/options/test_change_policy.py",
    "adapter/test_attributes.py",
)
PERMS = ("unit/options/test_permissions.py",)
RENAME = ("adapter/test_rename.py",)
VIEW = ("adapter/test_attributes.py",)

MUTANTS = (
    # Ids, modes, attributes
    Mutant(
        "ids-twice-on-one-side",
        "two ids of the share may be mapped to one of the guest",
        "options/idmap.py",
        "if guest in back:",
        "if False:",
        IDS,
    ),
    Mutant(
        "ids-given-away-can-be-stored",
        "an id that nobody is shown as is stored as somebody else's",
        "options/idmap.py",
        "            raise _overflow()\n        return guest",
        "            pass\n        return guest",
        IDS,
    ),
    Mutant(
        "ids-out-of-range",
        'a map may use the number that means "leave as it is"',
        "options/idmap.py",
        "                if not 0 <= number <= MAX_ID:\n                    raise MapError",
        "                if number < 0:\n                    raise MapError",
        IDS,
    ),
    Mutant(
        "ids-not-mapped-back",
        "what a user of the guest makes belongs to the same number on the share",
        "options/idmap.py",
        "        if share is not None:\n            return share\n        if guest in self.out:",
        "        if guest in self.out:",
        OWNERS,
    ),
    Mutant(
        "ids-mapped-without-offset",
        "an offset is ignored where a rule's id is asked for",
        "options/idmap.py",
        "return self.back.get(guest - self.offset)",
        "return self.back.get(guest)",
        OWNERS,
    ),
    Mutant(
        "permissions-x-for-all",
        "X makes files executable that nobody could execute",
        "options/permissions.py",
        'elif is_directory or (operand == "X" and original & 0o111):',
        'elif is_directory or operand == "X":',
        PERMS,
    ),
    Mutant(
        "permissions-equals-adds",
        "= keeps the bits that it does not name",
        "options/permissions.py",
        "return mode & ~self.who | bits",
        "return mode | bits",
        PERMS,
    ),
    Mutant(
        "permissions-copy-of-the-wrong",
        "a copy of u, g or o takes the owner's bits for all",
        "options/permissions.py",
        '_SHIFT = {"u": 6, "g": 3, "o": 0}',
        '_SHIFT = {"u": 6, "g": 6, "o": 6}',
        PERMS,
    ),
    Mutant(
        "attributes-denied-shows-owner",
        "a denied object is shown with its owner, who passes its mode in a user namespace",
        "fs/attributes.py",
        "shown = shown._replace(mode=S_IFMT(st.st_mode), uid=0, gid=0)",
        "shown = shown._replace(mode=S_IFMT(st.st_mode))",
        ("adapter/test_attributes.py", "adapter/view/test_table.py"),
    ),
    Mutant(
        "attributes-shows-set-id",
        "set-id bits of files are shown",
        "fs/attributes.py",
        "            mode &= ~SET_ID_BITS\n        shown",
        "            pass\n        shown",
        VIEW,
    ),
    # Open files
    Mutant(
        "files-open-follows-symlinks",
        "a symlink that the host has put in the place of a file is followed",
        "fs/source.py",
        "flags |= os.O_NOFOLLOW | os.O_CLOEXEC | NO_BLOCKING",
        "flags |= os.O_CLOEXEC | NO_BLOCKING",
        (*CONTENT, *RENAME),
    ),
    Mutant(
        "files-write-keeps-reported",
        "after a write the kernel keeps pages that the host has changed",
        "fs/files.py",
        "node.reported = 0  # the kernel may discard attributes that it is sent during a write",
        "pass",
        CONTENT,
    ),
    Mutant(
        "files-append-as-mapped-page",
        "an append goes where the kernel takes the end to be, not behind what the host added",
        "fs/files.py",
        "any(handle.node is node and handle.mappable for handle in self.handles.files())",
        "True",
        CONTENT,
    ),
    Mutant(
        "files-dsync-not-synchronous",
        "writes with O_DSYNC are done on the event loop",
        "fs/handles.py",
        "bool(flags & (os.O_SYNC | os.O_DSYNC))",
        "flags & os.O_SYNC == os.O_SYNC",
        (*CONTENT, "adapter/test_blocking.py", "unit/fs/test_handles.py"),
    ),
    Mutant(
        "files-short-cached-read",
        "a read is cut where memory ends and the file does not",
        "fs/source.py",
        "if (end == known_end and end % PAGE) or end >= os.fstat(fd).st_size:",
        "if got or end >= os.fstat(fd).st_size:",
        (*CONTENT, "adapter/test_blocking.py"),
    ),
    # Tables
    Mutant(
        "nodes-unreported-stays-reported",
        "an entry that did not fit into a listing counts as reported",
        "fs/resolver.py",
        "        node.reported = 0\n        self.drop_unknown(node)",
        "        self.drop_unknown(node)",
        COUNTS,
    ),
    Mutant(
        "nodes-lost-name-takes-all",
        "when one name of a file goes, the place of another is forgotten",
        "fs/resolver.py",
        "if last or (node.parent is ref.parent and node.name == ref.name):",
        "if True:",
        RENAME,
    ),
    Mutant(
        "descriptors-first-in-first-out",
        "descriptors that are in use are closed before those that are not",
        "fs/descriptors.py",
        "            self._cached.move_to_end(node)",
        "            pass",
        DESCRIPTORS,
    ),
    Mutant(
        "descriptors-without-limit",
        "the cache of descriptors grows without bound",
        "fs/descriptors.py",
        "if len(self._cached) > self._limit:",
        "if False:",
        DESCRIPTORS,
    ),
    Mutant(
        "descriptors-not-compared",
        "what was put in the place of a node is used for it",
        "fs/descriptors.py",
        "if not step.is_found(os.fstat(fd)):",
        "if False:",
        DESCRIPTORS,
    ),
    # Resolved symlinks
    Mutant(
        "links-absolute-from-here",
        "an absolute link goes on from its own directory",
        "fs/symlinks.py",
        "                    del way[1:]\n",
        "",
        LINKS,
    ),
    Mutant(
        "links-way-not-held",
        "directories on the way of a link are forgotten, and what lies behind stays open",
        "fs/symlinks.py",
        "node.is_pinned = True",
        "pass",
        LINKS,
    ),
    Mutant(
        "nodes-not-shown-are-kept",
        "a node stays of what could not be shown",
        "fs/resolver.py",
        "        except BaseException:\n            self.drop_unknown(node)\n            raise\n",
        "        except BaseException:\n            raise\n",
        ("adapter/test_attributes.py::test_what_cannot_be_shown_is_not_kept",),
    ),
    Mutant(
        "descriptors-by-number",
        "a node whose number is another one's by now has no descriptor of its own",
        "fs/nodes.py",
        '    """One object of the source, in one of its variants."""\n',
        '    """One object of the source, in one of its variants."""\n'
        "    def __hash__(self): return hash(self.id)\n"
        "    def __eq__(self, other): return self.id == other.id\n",
        ("unit/fs/test_descriptors.py", "adapter/test_counts.py"),
    ),
    Mutant(
        "attributes-take-set-id",
        "set-id bits can be set on files of the share",
        "fs/attributes.py",
        "return mode & ~SET_ID_BITS",
        "return mode",
        ATTRIBUTES,
    ),
    Mutant(
        "attributes-keep-set-id",
        "a file of the share keeps its set-id bits when its content is changed",
        "fs/attributes.py",
        "        if mode & SET_ID_BITS and self.drops_setid(mode):\n            return self",
        "        if False:\n            return self",
        ATTRIBUTES,
    ),
)
