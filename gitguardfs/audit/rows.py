"""The kinds of finding: an id, and a title for either outcome."""

from __future__ import annotations

from gitguardfs.findings import Row

CONFIG = Row(
    "git.config",
    "no configuration makes git read or run what the agent can write",
    "git reads or runs what the agent can write",
)
HOOK = Row(
    "git.hook",
    "no hook runs files of the work tree",
    "a hook runs what the agent can write",
)
DIRECTORY = Row(
    "git.directory",
    "every git directory is a .git, or outside of the share",
    "a git directory is where the agent may come to write",
)
ALTERNATES = Row(
    "git.alternates",
    "no repository takes objects from where the agent can write",
    "a repository takes objects from where the agent can write",
)
BARE = Row(
    "git.bare",
    "no bare repository is in the share",
    "a bare repository is in the share",
)
PREPARED = Row(
    "git.prepared",
    "no directory is prepared to become a repository",
    "what git runs waits for a directory to become a repository",
)
CREDENTIALS = Row(
    "git.credentials",
    "no configuration holds a password or token",
    "a password or token is in git's configuration",
)
OWNER = Row(
    "git.owner",
    "every repository belongs to the user",
    "a repository belongs to another user",
)
TRUST = Row(
    "host.bare",
    "git trusts no bare repository that it comes across",
    "git trusts bare repositories that it comes across in a project",
)
TOOLS = Row(
    "tree.hooks",
    "no file of the work tree says what hooks do",
    "a file of the work tree says what hooks do",
)
SUBMODULES = Row(
    "tree.submodules",
    "no file of the work tree says where submodules come from",
    "a file of the work tree says where submodules come from",
)
SYMLINK = Row(
    "tree.symlink",
    "no symlink leads into a repository or out of the share",
    "a symlink leads into a repository or out of the share",
)
SECRET = Row(
    "tree.secret",
    "no file looks like a secret",
    "a file that looks like a secret is in the share",
)
READ = Row(
    "audit.read",
    "everything could be looked at",
    "something could not be checked",
)
ALL = (
    *(CONFIG, HOOK, DIRECTORY, ALTERNATES, BARE, PREPARED, CREDENTIALS, OWNER, TRUST),
    *(TOOLS, SUBMODULES, SYMLINK, SECRET, READ),
)
"""All kinds, in the order in which they are printed."""
