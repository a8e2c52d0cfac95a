"""Faults in ``gitguard fetch``."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

HEADER = ("unit/test_fetch_header.py",)


def attacks(*names: str) -> tuple[str, ...]:
    return tuple(f"unit/test_fetch_attacks.py::test_{name}" for name in names)


def merges(*names: str) -> tuple[str, ...]:
    return tuple(f"unit/test_fetch_merge.py::test_{name}" for name in names)


def commands(*names: str) -> tuple[str, ...]:
    return tuple(f"unit/test_fetch_command.py::test_{name}" for name in names)


def fault(name: str, breaks: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(f"fetch-{name}", breaks, f"fetch/{file}.py", old, new, tests)


HOOK = "private/files/reference-transaction.sh"


def hook(name: str, breaks: str, old: str, new: str, *tests: str, file: str = HOOK) -> Mutant:
    found = tuple(f"unit/test_private_hook.py::test_{one}" for one in tests)
    return Mutant(f"publish-{name}", breaks, file, old, new, found)


KINDS = attacks("a_file_of_another_kind")
CONFIGURED = attacks("no_program_that_a_configuration_names_is_run")

MUTANTS = (
    fault("follows-a-link", "a symlink leads to any bundle of the human's", "bundle",
          "_FILE = os.O_RDONLY | os.O_NOFOLLOW |", "_FILE = os.O_RDONLY |", KINDS),
    fault("follows-a-directory", "a symlink .gitguard leads anywhere", "bundle",
          "_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW |",
          "_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY |", KINDS),
    fault("waits-at-a-fifo", "a FIFO holds the command up", "bundle",
          "os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY", "os.O_NOFOLLOW | os.O_NOCTTY", KINDS),
    fault("grows", "a file of any length is copied", "bundle",
          "if size > limit or st.st_size > limit:", "if False:",
          attacks("a_file_that_is_too_large")),
    fault("any-ref", "refs outside of branches and tags are taken", "bundle",
          "refs/(?:heads|tags)/[A-Za-z0-9_]", r"refs/\w+/[A-Za-z0-9_]", HEADER),
    fault("head", "a branch HEAD becomes what agent stands for", "bundle",
          '.casefold() == "head"', '.casefold() == "no"', HEADER),
    fault("twins", "two branches are one file on some disks", "bundle",
          "seen.setdefault(name.casefold(), name)", "seen.setdefault(name, name)", HEADER),
    fault("branch-as-directory", "a branch stands where others have a directory", "bundle",
          "            if one in seen:", "            if False:", HEADER),
    fault("capability", "a bundle with a filter counts as whole", "bundle",
          'if name != "@object-format" or object_format not in _ID:',
          'if name == "@object-format" and object_format not in _ID:',
          attacks("a_bundle_of_part_of_the_objects")),
    fault("many-refs", "any number of branches is taken", "bundle",
          "if len(lines) > MAX_REFS:", "if False:", HEADER),
    fault("drops-a-newer-one", "--drop removes commits that nobody has fetched", "bundle",
          "if only is not None and _identity(st) != only.identity:", "if False:", HEADER),
    fault("unchecked", "objects are not checked in the quarantine", "quarantine",
          '"--fix-thin", f"--strict={strict}",', '"--fix-thin",',
          attacks("a_tree_with_a_name_that_is_not_one", "a_gitmodules_that_runs_something")),
    fault("lenient", "a symlink stands for .gitattributes", "quarantine",
          '"badFilemode", "gitattributesSymlink",', '"badFilemode",',
          attacks("a_tree_that_git_would_not_write")),
    fault("tip-of-any-kind", "a branch leads to a blob", "quarantine",
          '        if kind != "commit":\n            raise Refused(f"{name} leads',
          '        if not kind:\n            raise Refused(f"{name} leads',
          attacks("a_tip_that_is_no_commit")),
    fault("bomb", "a small bundle fills the disk at checkout", "quarantine",
          "if sum(map(int, sizes.output.split())) > limit:", "if False:",
          attacks("zeros_without_end")),
    fault("forgotten", "a stash or a dropped commit comes back by its id", "quarantine",
          "(new - sent) | bases)", "bases)",
          attacks("a_tip_that_the_human_has_forgotten",
                  "a_commit_of_the_agents_with_forgotten_objects")),
    fault("copied", "a delta copies an object that the human has dropped", "quarantine",
          "(new - sent) | bases)", "new - sent)",
          attacks("a_delta_that_copies_a_forgotten_object")),
    fault("builds-on", "a bundle builds on a commit that the human has dropped", "quarantine",
          "    if header.prerequisites:", "    if False:",
          attacks("a_commit_of_the_agents_with_forgotten_objects")),
    fault("stashes-count", "what only a stash has counts as the human's history", "quarantine",
          'OWN = ("refs/heads",', 'OWN = ("refs/heads", "refs/stash",',
          attacks("a_tip_that_the_human_has_forgotten")),
    fault("prunes-named", "naming a branch removes the others", "quarantine",
          'wanted = [self.path, *(f"+{HEADS}{one}:{heads}{one}" for one in branches)]',
          'wanted = ["--prune", self.path, f"+{HEADS}*:{heads}*"]',
          commands("branches_and_tags_come_and_go", "only_branches_that_are_named")),
    fault("shallow", "a shallow clone takes nothing", "quarantine",
          "    if os.path.exists(shallow):", "    if False:", commands("a_shallow_clone")),
    fault("hooks", "hooks of the human's repository run", "git",
          '"core.hooksPath=/dev/null", ', "", CONFIGURED),
    fault("bare", "a repository that the agent made is used", "git",
          '"core.fsmonitor=false", "safe.bareRepository=explicit",', '"core.fsmonitor=false",',
          attacks("a_bare_repository_that_the_agent_made_is_not_used")),
    fault("replaced", "a replacement of an object hides what came", "git",
          '    "GIT_NO_REPLACE_OBJECTS": "1",\n', "",
          attacks("replacements_of_objects_do_not_count")),
    fault("memory", "a few trees take all memory", "git",
          "        wanted[resource.RLIMIT_DATA] = limits.memory\n", "        pass\n",
          attacks("a_few_trees_that_stand_for_a_billion_files")),
    fault("orphans", "git goes on after the end of the command", "git",
          "            except BaseException:\n                _end(process)\n",
          "            except BaseException:\n", attacks("ctrl_c_and_kill_leave_no_quarantine")),
    fault("raw-text", "escapes of the agent's reach the terminal", "summary",
          "safe = shown(text[: WIDTH * 4])", "safe = os.fsdecode(text[: WIDTH * 4])",
          attacks("escapes_and_lengths_in_messages_and_names")),
    fault("links-out", "a symlink that leads out is not named", "summary",
          'if steps is None or steps.up > entry.path.count(b"/"):', "if steps is None:",
          attacks("what_to_look_at")),
    fault("drivers", "a merge driver in the work tree runs", "merging",
          'f"GIT_CONFIG_VALUE_{number}": "false"', 'f"GIT_CONFIG_OTHER_{number}": "false"',
          CONFIGURED),
    fault("staged", "what is staged is lost", "merging", "    if staged.code:", "    if False:",
          merges("what_is_staged_is_refused")),
    fault("under-way", "a rebase is disturbed", "merging",
          "        if is_there or (name.isupper()", "        if False and (name.isupper()",
          merges("an_operation_under_way_is_refused")),
    fault("other-branch", "another branch moves, which is checked out meanwhile", "merging",
          "users.run(*words, ref, commit", 'users.run(*words, "HEAD", commit',
          merges("another_branch_is_checked_out_meanwhile")),
    fault("switched", "a branch moves that is not checked out any more", "merging",
          "        _check_on(repository, ref)\n", "",
          merges("another_branch_is_checked_out_meanwhile")),
    fault("half", "the index moves without the branch", "merging",
          "    except UserError:\n        now =", "    except ZeroDivisionError:\n        now =",
          merges("a_locked_branch_gives_the_index_back")),
    fault("expect", "commits are merged that nobody has looked at", "command",
          "if len(expect) < SHORT or not found[merge].startswith(expect.lower()):",
          "if len(expect) < SHORT:", merges("only_the_commit_that_was_looked_at")),
    fault("unmerged", "a branch that the human has not merged is removed", "command",
          "if value not in kept}", "}", commands("nothing_is_new")),
    Mutant("fetch-git-of-others", "a git that others can write is run", "audit/git_config.py",
           "st.st_uid in (0, os.geteuid()) and not st.st_mode & others", "True",
           commands("a_git_that_is_in_path_alone")),
    Mutant("fetch-git-of-a-group", "a git that a group can write is run", "audit/git_config.py",
           "0o002 if _is_alone_in(st.st_gid) else 0o022", "0o002",
           commands("a_git_that_is_in_path_alone")),
    Mutant("fetch-git-of-the-project", "a git in the project is run", "audit/git_config.py",
           "    trees = _work_trees(project)\n", "    trees: list[str] = []\n",
           commands("a_git_that_is_in_path_alone")),
    fault("remote", "branches of a remote called agent are overwritten", "command",
          'if any(key.rpartition(".")[0] ==', 'if any(key.rpartition(".")[2] ==',
          commands("a_remote_called_agent")),
    fault("work-trees", "work trees of one repository remove each other's branches", "git",
          'return f"agent-{name}" if above', 'return "agent" if above',
          commands("work_trees_of_one_repository_have_an_agent_each")),
    fault("taken", "a branch that is not merged counts as merged", "command",
          "if commit and head and merging.is_within(repository, commit, head):", "if commit:",
          commands("what_the_human_has_is_taken_again")),
    fault("tags", "a tag goes when the human takes its commit", "command",
          "    _keep_tags(repository, before)\n", "",
          commands("a_tag_stays_when_the_human_has_taken_its_commit")),
    fault("killed", "SIGTERM leaves the quarantine", "command",
          "            signal.signal(number, _interrupt)\n", "            pass\n",
          attacks("ctrl_c_and_kill_leave_no_quarantine")),
    fault("reset", "the command that is printed takes the human's commit off", "command",
          "    if branch.behind == 0:", "    if branch.behind is not None:",
          merges("git_reset_is_the_same_by_git_alone")),
    hook("replaces-an-earlier-one", "what was published before a project moved is lost",
         '[ ! -e "$place" ] || adopt', ":",
         "what_was_published_before_the_project_moved_stays_published",
         "a_file_that_cannot_be_taken_over_is_kept"),
    hook("any-name", "one name makes gitguard fetch refuse everything",
         '$2 !~ "^refs/[a-z]+/[A-Za-z0-9_][A-Za-z0-9._/+@#=-]*$" ||', "0 ||",
         "a_name_that_fetch_refuses_is_left_out_and_said", "what_is_published_is_what_fetch_takes"),
    hook("twins", "two names of one file make gitguard fetch refuse everything",
         'if (twin != "") {', "if (0) {", "what_is_published_is_what_fetch_takes"),
    hook("detached", "a commit on no branch is not published",
         '"$common/HEAD" "$common"/worktrees/*/HEAD', '"$common/none"',
         "a_commit_on_no_branch_has_one_in_the_bundle"),
    hook("renamed", "a branch that is renamed is gone from the bundle",
         "        *[!0]*.HEAD |", "        * |", "a_branch_that_is_renamed_stays_published"),
    hook("nothing-new", "that nothing is new looks like a hook that does not run",
         'esac >"$place.new.$$" && mv -f "$place.new.$$" "$place"',
         'esac >/dev/null; rm -f "$place"', "a_commit_on_no_branch_has_one_in_the_bundle"),
    hook("shallow", "a fetch damages a shallow repository", 'if [ -s "$theirs" ]; then',
         "if false; then", "a_shallow_repository_of_the_human_has_other_ends"),
    hook("no-commit", "a tag of a tree makes gitguard fetch refuse everything",
         '$3 ~ "^(tag)?(tree|blob)$"', "0", "what_leads_to_no_commit_is_left_out_and_said"),
    hook("quote", "what the hook tells to run does something else",
         'gsub("\\047", "\\047\\"\\047\\"\\047", name)', "",
         "a_name_that_fetch_refuses_is_left_out_and_said"),
    hook("told", "a rebase says the same for each commit", '[ "$line" = "$PPID" ] ||', "",
         "where_nothing_can_be_published_a_command_says_so_once"),
    hook("staged", "git sync loses what is staged", 'if is_staged && is_staged "$theirs"; then',
         "if false; then", "sync_does_not_lose_what_is_staged", file="private/files/sync.sh"),
)  # fmt: skip
