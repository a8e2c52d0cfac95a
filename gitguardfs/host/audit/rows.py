"""The kinds of finding: an id, and a title for each outcome."""

from __future__ import annotations

from gitguardfs.base.findings import Row

SCOPE = Row("audit.scope", "this was audited", "nothing was audited")
CONFIG = Row(
    "git.config",
    "no configuration makes git read or run what the agent can write",
    "git reads or runs what the agent can write",
)
HOOK = Row(
    "git.hook", "no hook runs files of the work tree", "a hook runs what the agent can write"
)
LINKED = Row(
    "git.linked",
    "no hook or configuration has a second name",
    "a hook or a configuration has another name, by a hard link",
)
DIRECTORY = Row(
    "git.directory",
    "every git directory is a .git, or outside of the share",
    "a git directory lies where the agent can write, or may later",
)
ALTERNATES = Row(
    "git.alternates",
    "no repository takes objects from where the agent can write",
    "a repository takes objects from where the agent can write",
)
BARE = Row("git.bare", "no bare repository is in the share", "a bare repository is in the share")
PREPARED = Row(
    "git.prepared",
    "no directory is prepared to become a repository",
    "a directory that may become a repository has hooks or a configuration",
)
CREDENTIALS = Row(
    "git.credentials",
    "no configuration holds a password or token",
    "a password or token is in git's configuration",
)
OWNER = Row(
    "git.owner", "every repository belongs to the user", "a repository belongs to another user"
)
TRUST = Row(
    "host.bare",
    "git uses no bare repository that it finds by itself",
    "git uses bare repositories that it finds in a project",
)
TOOLS = Row(
    "tree.hooks",
    "no file of the work tree configures hooks",
    "a file of the work tree configures hooks",
)
OTHERS = Row(
    "tree.other",
    "no repository of another program lies open",
    "a repository of another program can be written by the agent",
)
SUBMODULES = Row(
    "tree.submodules",
    "no file of the work tree sets the addresses of submodules",
    "a file of the work tree sets the addresses of submodules",
)
SYMLINK = Row(
    "tree.symlink",
    "no symlink leads into a repository or out of the share",
    "a symlink leads into a repository or out of the share",
)
SECRET = Row(
    "tree.secret", "no file looks like a secret", "a file that looks like a secret is in the share"
)
LOCAL = Row(
    "tree.local",
    "no node_modules, .venv or the like is in the share",
    "node_modules and the like in the share are the host's own, if the guest uses --local",
)
READ = Row("audit.read", "everything could be read", "something could not be read")
OF_REPOSITORIES = (HOOK, LINKED, DIRECTORY, ALTERNATES, OWNER)
"""Those that say nothing if there is no repository."""
ALL = (
    *(
        SCOPE,
        CONFIG,
        HOOK,
        LINKED,
        DIRECTORY,
        ALTERNATES,
        BARE,
        PREPARED,
        CREDENTIALS,
        OWNER,
        TRUST,
    ),
    *(TOOLS, OTHERS, SUBMODULES, SYMLINK, SECRET, LOCAL, READ),
)
"""All kinds, in the order in which they are printed."""
