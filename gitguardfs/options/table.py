"""The table of all options of ``gitguardfs``: spellings, meanings and help texts.

The command line, ``-o`` and the reader of a running daemon's arguments use this table. Options of
bindfs keep its names; docs/bindfs.md compares what they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from gitguardfs.base.secret_names import HIDDEN_TEXT

GUARD, OWNERS, MODES, NEW, CHANGES, LINKS, MOUNT, IGNORED = SECTIONS = (
    "Guard",
    "Owners (as in bindfs, but for auto)",
    "Permissions, as in bindfs",
    "New files, as in bindfs",
    "What may be changed, as in bindfs",
    "Links, devices and rates, as in bindfs",
    "Mount",
    "Accepted from bindfs without effect",
)


@dataclass(frozen=True)
class Option:
    """One option: ``--name`` and, in ``-o``, ``name`` with ``-`` or ``_``."""

    name: str
    section: str
    help: str
    metavar: str = ""
    """The name of its value in --help; empty for a flag."""
    short: str = ""
    multiple: bool = False
    """Whether it can be repeated; otherwise the last value counts."""
    dest: str = ""
    """Name of the value that the option sets, which several flags can share; by default its own."""
    const: object = True
    """The value of a flag."""
    aliases: tuple[str, ...] = ()
    """Further names in ``-o``."""
    in_o_only: bool = False
    hidden: bool = False

    @property
    def key(self) -> str:
        """Key of the option's value in ``RawOptions``."""
        return (self.dest or self.name).replace("-", "_")


def _flags(section: str, dest: str, helps: dict[str, str]) -> tuple[Option, ...]:
    """Return flags that set the same key, such as --chown-normal and --chown-deny."""
    return tuple(
        Option(f"{dest}-{const}", section, text, dest=dest, const=const)
        for const, text in helps.items()
    )


OPTIONS = (
    Option(
        "git", GUARD, "How .git is guarded: closed, and in no listing (deny, the default), closed "
        "and listed, read-only, hidden, the agent's own repository in its place (private), or not "
        "at all. With off, xattr is rw and set-id bits stay, as in bindfs.",
        "deny|list|readonly|hide|private|off",
    ),
    Option("private-store", GUARD, "Keep the agent's repositories of --git=private below DIR, on a "
           "disk of the guest. The default for root is /var/lib/gitguardfs-git.", "DIR"),
    Option("repository", GUARD, "With --git=private: the git directory to which SOURCE's .git "
           "leads, if that is not in SOURCE. For a linked work tree, that of its main one.", "DIR"),
    Option("local", GUARD, "Keep directories whose names match GLOB on the guest's own disk, not "
           "on the share. deps stands for node_modules, .venv, target and others "
           "(docs/local-directories.md). Repeatable; needs root.", "GLOB", multiple=True),
    Option("local-store", GUARD, "Keep the directories of --local below DIR. The default is "
           "/var/lib/gitguardfs/local.", "DIR"),
    Option("deny", GUARD, "Deny names that match GLOB too: one path component, any case. "
           "Repeatable.", "GLOB", multiple=True),
    Option("protect", GUARD, "Let names that match GLOB be read, not changed. Repeatable.", "GLOB",
           multiple=True),
    Option("hide", GUARD, "Do not show names that match GLOB. Repeatable.", "GLOB", multiple=True),
    Option("hide-secrets", GUARD, f"Do not show {HIDDEN_TEXT} (docs/security.md)."),
    Option("show", GUARD, "Show names that match GLOB in spite of --hide-secrets. Repeatable.",
           "GLOB", multiple=True),
    Option("allow-bare", GUARD, "Let directories become, and be used as, bare repositories."),
    Option("links", GUARD, "How new symlinks are stored. guarded, the default: one that leads out "
           "of its work tree leads nowhere on the host; the view shows every text as given. "
           "raw: as given.", "guarded|raw"),
    Option("allow-suid", GUARD, "Keep set-user-id and set-group-id bits of files."),
    Option("audit-log", GUARD, "Append each request that the daemon refuses to FILE, as a line of "
           "JSON. It does not hold what the kernel refuses: most reading of .git.", "FILE"),
    Option("seal", GUARD, "Cover SOURCE while it is guarded, so that only the view can be used. "
           "The default when root mounts the root of a 9p or virtiofs share."),
    Option("allow-holders", GUARD, "Guard SOURCE even if processes hold files or directories of it "
           "from before the seal, or of an earlier view with other options. To these processes "
           "they stay open."),
    Option("no-seal", GUARD, "Do not seal SOURCE.", dest="seal", const=False, aliases=("noseal",)),

    Option("map", OWNERS, "HOST:GUEST (user and group), @HOST:@GUEST (group), u1/u2:@g1/@g2 (as "
           "in bindfs) or auto. Numbers or names; repeat it or put commas between several.",
           "MAP", multiple=True),
    Option("map-passwd", OWNERS, "Map users by name: FILE, like /etc/passwd, has the numbers on "
           "the share.", "FILE"),
    Option("map-group", OWNERS, "The same for groups, from a FILE like /etc/group.", "FILE"),
    Option("map-passwd-rev", OWNERS, "The other way round: users of this system are shown with "
           "the numbers in FILE.", "FILE"),
    Option("map-group-rev", OWNERS, "The same for groups.", "FILE"),
    Option("uid-offset", OWNERS, "Add N, which may be negative, to every user id.", "N"),
    Option("gid-offset", OWNERS, "Add N to every group id.", "N"),
    Option("force-user", OWNERS, "Show every file as USER's.", "USER", short="-u",
           aliases=("uid",)),
    Option("force-group", OWNERS, "Show every file as GROUP's.", "GROUP", short="-g",
           aliases=("gid",)),
    Option("user", OWNERS, "Old for --force-user.", "USER", dest="old-user", hidden=True),
    Option("owner", OWNERS, "Old for --force-user.", "USER", dest="old-user", hidden=True),
    Option("group", OWNERS, "Old for --force-group.", "GROUP", dest="old-group", hidden=True),
    Option("mirror", OWNERS, "To each of these users and members of @groups, show every file "
           "as their own; colons or commas between. SIGUSR1 rereads the members of groups.",
           "USER:@GROUP", short="-m"),
    Option("mirror-only", OWNERS, "Like --mirror, and deny everything to other users, except root.",
           "USER:@GROUP", short="-M"),

    Option("perms", MODES, "Change the permissions that are shown: octal or as in chmod, with d "
           "and f (for directories, files) before the sign, X and D behind it; colons or commas "
           "between several: 0644,a+X or og-rwx:gd=u.", "PERMS", short="-p"),
    Option("realistic-permissions", MODES, "Hide permissions that the mounting user lacks "
           "on the source."),

    Option("create-as-user", NEW, "New files belong to the user who makes them (root's default).",
           dest="create", const="user"),
    Option("create-as-mounter", NEW, "New files belong to the mounting user (the default if that "
           "is not root).",
           dest="create", const="mounter"),
    Option("create-for-user", NEW, "New files belong to USER on the source.", "USER"),
    Option("create-for-group", NEW, "New files have GROUP on the source.", "GROUP"),
    Option("create-with-perms", NEW, "Change the permissions of new files; see --perms.", "PERMS"),

    *_flags(CHANGES, "chown", {
        "normal": "chown changes the source (the default).",
        "ignore": "Accept chown and change nothing.",
        "deny": "chown fails with EPERM.",
    }),
    *_flags(CHANGES, "chgrp", {
        "normal": "chgrp changes the source (the default).",
        "ignore": "Accept chgrp and change nothing.",
        "deny": "chgrp fails with EPERM.",
    }),
    *_flags(CHANGES, "chmod", {
        "normal": "chmod changes the source (the default).",
        "ignore": "Accept chmod and change nothing.",
        "deny": "chmod fails with EPERM.",
    }),
    Option("chmod-filter", CHANGES, "Change what chmod asks for; see --perms.", "PERMS"),
    Option("chmod-allow-x", CHANGES, "Let chmod change x bits of files in spite of ignore or "
           "deny."),
    Option("xattr", CHANGES, "Extended attributes (user.* only); none is the default, since each "
           "write costs a second request with them.", "none|ro|rw"),
    *(
        Option(f"xattr-{const}", CHANGES, f"The same as --xattr {const}.", dest="xattr",
               const=const)
        for const in ("none", "ro", "rw")
    ),
    Option("delete-deny", CHANGES, "Removing fails with EPERM."),
    Option("rename-deny", CHANGES, "Renaming fails with EPERM."),

    Option("hide-hard-links", LINKS, "Show a link count of 1."),
    Option("resolve-symlinks", LINKS, "Show what symlinks lead to in their place. One that leads "
           "out of SOURCE, or to something guarded, is denied."),
    Option("resolved-symlink-deletion", LINKS, "What removing such a symlink removes; "
           "symlink-only is the default.", "deny|symlink-only|symlink-first|target-first"),
    Option("ctime-from-mtime", LINKS, "Show the time of the last change of content as ctime."),
    Option("block-devices-as-files", LINKS, "Show block devices as files of their size."),
    Option("enable-ioctl", LINKS, "Let chattr and lsattr work: ioctl for the flags of files and "
           "directories, and nothing else. It needs --session kernel, or auto where that is the "
           "same. Only root changes the flags a and i."),
    Option("enable-lock-forwarding", LINKS, "Take locks of files (fcntl, flock) on SOURCE too, so "
           "that its own programs see them; closing a file then costs a request. It needs the "
           "session kernel.", dest="lock-forwarding"),
    Option("read-rate", LINKS, "Read at most N bytes a second, all together; k, M, G or T may "
           "follow (powers of 1024).", "N"),
    Option("write-rate", LINKS, "Write at most N bytes a second.", "N"),
    Option("direct-io", LINKS, "Cache no data: each read(2) asks SOURCE."),
    Option("no-direct-io", LINKS, "Let the kernel cache data (the default).",
           dest="direct-io", const=False),

    Option("cache-timeout", MOUNT, "How long the kernel may cache names and attributes; 0 is "
           "not at all. 1 second is the default.", "SECONDS"),
    Option("session", MOUNT, "How requests come from the kernel: from /dev/fuse itself (kernel), "
           "which needs root and Linux 5.17, or through pyfuse3. The default, auto, is the first "
           "where it can serve. From Linux 6.9 on, the kernel then reads and writes open files by "
           "itself: faster, and who has such a file open keeps it when the view ends.",
           "auto|kernel|pyfuse3"),
    Option("no-allow-other", MOUNT, "Let only the mounting user use the mount.", short="-n"),
    Option("read-only", MOUNT, "Allow no changes at all.", short="-r", aliases=("ro",)),
    Option("rw", MOUNT, "", dest="read-only", const=False, in_o_only=True),
    Option("nonempty", MOUNT, "Mount over a directory that is not empty; its files are hidden "
           "meanwhile."),
    Option("source-owner", MOUNT, "SOURCE may be in a FUSE file system that USER has mounted "
           "(sshfs, gocryptfs). USER can unmount it, and with it a seal.", "USER"),
    Option("foreground", MOUNT, "Stay in the foreground; notify systemd (NOTIFY_SOCKET) when "
           "the view answers. A daemon that is killed is not started again.", short="-f"),
    Option("debug", MOUNT, "Stay in the foreground and log every request.", short="-d"),
    Option("fsname", MOUNT, "", "NAME", in_o_only=True),
    Option("mountpoint", MOUNT, "", "PATH", in_o_only=True),

    Option("multithreaded", IGNORED, "Requests that wait are served beside others anyway."),
    Option("disable-lock-forwarding", IGNORED, "The default.", dest="lock-forwarding",
           const=False),
    Option("forward-odirect", IGNORED, "SOURCE's own cache is used in any case.", "ALIGNMENT"),
    Option("single-threaded", IGNORED, "As it is in any case.", short="-s", hidden=True),
)  # fmt: skip

BY_NAME = {name: option for option in OPTIONS for name in (option.name, *option.aliases)}
