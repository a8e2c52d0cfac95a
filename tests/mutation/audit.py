"""Faults in ``gitguard audit``."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

CONFIG = ("unit/test_audit_config.py",)
HOOKS = ("unit/test_audit_hooks.py",)
REPOSITORIES = ("unit/test_audit_repositories.py",)
TREE = ("unit/test_audit_tree.py",)
SHELL = ("unit/test_audit_shell.py",)
COMMAND = ("unit/test_audit_command.py",)


def fault(name: str, breaks: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"audit-{name}", breaks, f"audit/{file}.py", old, new, tests)


MUTANTS = (
    fault("share-by-name-only", "what is a symlink into the share is not the agent's", "share",
          "(os.path.normpath(path), *trail(path))", "(os.path.normpath(path),)",
          (*CONFIG, *HOOKS)),
    fault("share-forgets-rules", "what a rule keeps is a finding all the same", "share",
          "return self.is_kept(self.parts(path)) or self.is_git(path)",
          "return self.is_git(path)", CONFIG),
    fault("share-forgets-bare", "a bare repository's own files count as the agent's", "share",
          "if looks_like_repository(directory) or dotgit", "if dotgit", REPOSITORIES),
    fault("config-no-includes", "what an included file says is not judged", "git_config",
          "                found += self.entries_of(read_path(path), named)\n",
          "                read_path(path)\n", CONFIG),
    fault("config-reads-agents", "a file of the agent's that is included is read", "git_config",
          "if path in read or is_agents(named):", "if path in read:", CONFIG),
    fault("config-follows-includes", "git follows includes by itself", "git_config",
          '"--show-origin", "--no-includes")', '"--show-origin", "--includes")', TREE),
    fault("config-traces", "git writes traces where the user's configuration says", "git_config",
          '    "GIT_TRACE2_EVENT": "0",\n', "", TREE),
    fault("config-unread", "a configuration that git cannot parse is passed over", "repository",
          """    except (OSError, Unread) as error:
        audit.unread(file, error)
        return []
    finally:""", """    except (OSError, Unread):
        return []
    finally:""", CONFIG),
    fault("config-worktree", "config.worktree is not read", "repository",
          'own = _entries(audit, fd, path, entries, "config.worktree")',
          "own: list[ConfigEntry] = []",
          CONFIG),
    fault("config-origins", "a configuration in the share is not named", "config_check",
          "for origin in audit.judge.origins(entries):", "for origin in ():", CONFIG),
    fault("config-shows-password", "the password of a URL is printed", "config_check",
          '{entry.key} = {hidden(value)} (in {entry.origin})"\n    fix',
          '{entry.key} = {value} (in {entry.origin})"\n    fix', CONFIG),
    fault("config-trust", "any value of safe.bareRepository counts as explicit", "search",
          "audit.trusts_bare = setting != EXPLICIT", 'audit.trusts_bare = setting == ""', CONFIG),
    fault("programs-relative", "a program by a relative path is free", "programs",
          '        if word.startswith(("./", "../")):\n'
          '            return not self.share.is_kept(word.split("/"))\n', "", CONFIG),
    fault("programs-hooks-path", "a core.hooksPath in the work tree is free", "programs",
          'DIRECTORIES = frozenset({"core.hookspath", "init.templatedir", "gitflow.path.hooks"})',
          'DIRECTORIES = frozenset({"init.templatedir", "gitflow.path.hooks"})', CONFIG),
    fault("hooks-symlink", "a hook that is a symlink into the work tree is free", "hooks",
          "if places := audit.share.agents_places(hook):", "if False:", HOOKS),
    fault("hooks-directory", "a directory of hooks that is a symlink is free", "hooks",
          "if places := audit.share.agents_places(hooks):", "if False:", HOOKS),
    fault("hooks-without-interpreter", "a hook without #! is free", "hooks",
          'if not text.startswith(b"#!") and b"\\0" in text:',
          'if not text.startswith(b"#!"):', HOOKS),
    fault("alternates-further", "alternates of alternates are not read", "repository",
          "places += [one for one in more if one not in places]", "pass", REPOSITORIES),
    fault("prepared-too-long", "a config too long to be read hides what it says", "bare",
          "except FileTooLong as error:", "except ZeroDivisionError as error:", REPOSITORIES),
    fault("hooks-not-executable", "hooks that git does not run are findings", "hooks",
          "return S_ISREG(st.st_mode) and st.st_mode & 0o111 != 0", "return S_ISREG(st.st_mode)",
          HOOKS),
    fault("hooks-users", "hooks of the user for every repository are not judged", "repository",
          "for entry in [*audit.user_entries, *entries]:", "for entry in entries:", HOOKS),
    fault("tools-installed", "a helper that has put hooks in counts as one that has not",
          "work_tree", "is_installed=TOOLS[name] in managers", "is_installed=False", HOOKS),
    fault("directory-agents", "a commondir of the agent's is free", "repository",
          "        if audit.share.is_agents(named):\n            detail",
          "        if False:\n            detail", REPOSITORIES),
    fault("directory-gone", "a repository that was moved away meanwhile is passed over",
          "repository", """    except (OSError, Unread) as error:
        audit.unread(place, error)
        return set()
""", """    except (OSError, Unread):
        return set()
""", REPOSITORIES),
    fault("directory-relative", "a relative way out of the share is free", "repository",
          'elif not is_link and not target.startswith("/"):', "elif False:", REPOSITORIES),
    fault("alternates", "objects of the agent's are free", "repository",
          'if audit.share.is_agents(place):', "if False:",
          REPOSITORIES),
    fault("bare-embedded", "a bare repository within a work tree is like any other", "bare",
          "severity = Severity.HIGH if embedded else Severity.MEDIUM",
          "severity = Severity.MEDIUM", REPOSITORIES),
    fault("prepared-hooks", "hooks that wait for a repository are free", "bare",
          "    file_type, path = directory.entries.get(\"hooks\")",
          "    return found\n    file_type, path = directory.entries.get(\"hooks\")", REPOSITORIES),
    fault("prepared-parts", "refs and a config wait among other files as if for nothing", "bare",
          'has_part = "refs" in entries or "objects" in entries', "has_part = False",
          REPOSITORIES),
    fault("symlink-repository", "a symlink into a repository is free", "work_tree",
          "if audit.share.is_git(target):", "if False:", TREE),
    fault("secret-protected", "a secret that may be read counts as hidden", "share",
          "return any(verdict >= Verdict.DENY for verdict in verdicts)",
          "return any(verdict >= Verdict.READONLY for verdict in verdicts)", TREE),
    fault("walk-follows", "a directory exchanged for a symlink is followed", "walk",
          "DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
          "DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC", TREE),
    fault("walk-silent", "what changed meanwhile is passed over", "search",
          'audit.unread(path, Unread("it was changed while it was read"))', "pass", TREE),
    fault("walk-holds-all", "a deep tree takes a descriptor for each level", "walk",
          "            if index >= MAX_HELD:", "            if False:", TREE),
    fault("file-follows", "a file exchanged for a symlink is read", "walk",
          "os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC", "os.O_PATH | os.O_CLOEXEC", TREE),
    fault("root-stays", "root does not become the owner of the directory", "command",
          "if os.geteuid() != 0 or st.st_uid == 0:", "if True:", COMMAND),
    fault("python-in-config", "a filter that starts python -m is free", "programs",
          'if imports_from_directory(command) and self._is_reached(".", worktree):', "if False:",
          CONFIG),
    fault("python-in-hooks", "a hook that starts python -m is free", "hooks",
          "if any(map(imports_from_directory, _lines(text)))", "if False", HOOKS),
    fault("python-isolated", "python -I -m is a finding", "programs",
          '([IPmc])", option)', '([mc])", option)', HOOKS),
    fault("hook-runs-what-is-there", "a file that the agent may yet make is free", "hooks",
          "        if ends is None:", "        if False:", HOOKS),
    fault("texts", "a word of a text is taken for a program", "hooks",
          "        if ends is None:", "        if True:", HOOKS),
    fault("printed", "a word that is printed is taken for a program", "hooks",
          'SEPARATOR.split(_PRINTED.sub("", command))', "SEPARATOR.split(command)", HOOKS),
    fault("hook-prints", "what follows echo in a line is not looked at", "hooks",
          "([^;|&`$]|\\$(?!\\())*$", "", HOOKS),
    fault("case-patterns", "a pattern of case is taken for a program", "hooks",
          '_CASE.sub("", line)', "line", HOOKS),
    fault("first-command-alone", "a kept program hides those behind it", "programs",
          'if not file.startswith(("/", "~", "$")) and not self.share.is_kept(file.split("/")):\n'
          "                return True\n",
          'if "/" in file.strip("/"):\n'
          '                return not self.share.is_kept(file.split("/"))\n', CONFIG),
    fault("arguments", "a configuration of ssh in the work tree is free", "programs",
          " or self._is_given(command, worktree))", ")", CONFIG),
    fault("nameless-driver", "a driver whose name is empty is free", "programs",
          r"filter\..*\.(clean", r"filter\..+\.(clean", CONFIG),
    fault("own-configuration", "where git looks for the user's own, the agent may make it",
          "config_check", "if audit.share.is_agents(path) and not _has_entries(audit, path):\n"
          '            detail = f"git reads',
          'if False:\n            detail = f"git reads', CONFIG),
    fault("searched", "git is looked for in the work tree", "config_check",
          "if audit.judge.is_searched(value):", "if False:", CONFIG),
    fault("programs-of-environment", "GIT_SSH_COMMAND names a program of the agent's",
          "config_check", "elif any(audit.judge", "elif False and any(audit.judge", CONFIG),
    fault("started-by-git", "an alias of difftool starts a program of the agent's", "programs",
          "any(self._runs(program, worktree) for program in started)\n            or ", "", CONFIG),
    fault("variables", "a file by a variable that holds the top of the work tree is free", "shell",
          '_TOP.sub("$GIT_WORK_TREE", line)', "line", SHELL),
    fault("pipes", "a file of the work tree that is piped to a shell is free", "shell",
          "return found + (self._printed(command.before) if command.before is not None else [])\n\n"
          "    def _printed", "return found\n\n    def _printed", SHELL),
    fault("unfollowed", "a script that runs a file of unknown name is free", "hooks",
          "    elif found.unfollowed:", "    elif False:", SHELL),
    fault("settings-of-hooks", "what a hook passes to git with -c is free", "hooks",
          "if found.key is not None:", "if False:", SHELL),
    fault("find-started", "find -exec sh {} is free", "shell",
          '                found += self._roots(arguments)\n', "                pass\n", SHELL),
    fault("cd", "a path after cd starts at the top", "shell",
          "return os.path.normpath(os.path.join(self.directory, path))",
          "return os.path.normpath(path)", SHELL),
    fault("signers", "who may sign is in the agent's hands", "programs",
          "if entry.key in TRUSTED:\n            return", "if False:\n            return", SHELL),
    fault("other-languages", "a script in another language is read as a shell's", "hooks",
          "if _OF_SHELL.match(text) else None", "if True else None", SHELL),
    fault("lefthooks-copy", "what lefthook falls back to is a finding", "hooks",
          'if managers and f"{path}/"', 'if False and f"{path}/"', SHELL),
    fault("quoting", "a rule for a name with brackets is for other names", "fixes",
          "glob.escape(name)", "name", CONFIG),
)  # fmt: skip
