"""The kinds of finding: an id, and a title for each outcome."""

from __future__ import annotations

from gitguardfs.base.findings import Row

_AGENTS = "what the agent can write"
SCOPE = Row("audit.scope", "this was audited", "nothing was audited")
CONFIG = Row(
    "git.config",
    f"no configuration makes git read or run {_AGENTS}",
    f"git reads or runs {_AGENTS}",
)
HOOK = Row("git.hook", "no hook runs files of the work tree", f"a hook runs {_AGENTS}")
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
_BORROWS = "takes objects from where the agent can write"
ALTERNATES = Row("git.alternates", f"no repository {_BORROWS}", f"a repository {_BORROWS}")
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
_CONFIGURES = "file of the work tree configures hooks"
TOOLS = Row("tree.hooks", f"no {_CONFIGURES}", f"a {_CONFIGURES}")
OTHERS = Row(
    "tree.other",
    "no repository of another program lies open",
    "a repository of another program can be written by the agent",
)
_SETS = "file of the work tree sets the addresses of submodules"
SUBMODULES = Row("tree.submodules", f"no {_SETS}", f"a {_SETS}")
_LEADS = "symlink leads into a repository or out of the share"
SYMLINK = Row("tree.symlink", f"no {_LEADS}", f"a {_LEADS}")
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
ALL = tuple(value for value in globals().values() if isinstance(value, Row))
"""All kinds, in the order in which they are printed."""
