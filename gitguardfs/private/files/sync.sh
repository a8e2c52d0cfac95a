#!/bin/sh
# Written by gitguardfs: the alias `git sync`. Publishes the agent's commits, and fetches what the
# human has committed. Moves the branch on to it if it has no commits of its own. No file of the
# work tree is changed.

common=$(git rev-parse --git-common-dir) || exit
sh "$common/hooks/reference-transaction" publish
if hooks=$(git config core.hooksPath); then
    echo "sync: core.hooksPath is $hooks: git sync publishes your commits, git commit does not"
fi
# Its own hook has nothing more to publish after that.
without_hooks() {
    git -c core.hooksPath=/dev/null "$@"
}

without_hooks fetch --quiet host || exit
reason=$(git config remote.host.url)/gitguard-reason
if [ -s "$reason" ]; then
    echo "sync: $(cat "$reason")" >&2
fi
sh "$common/hooks/reference-transaction" leave-out
lacks=${common%/*}/host.git/lacks-files
if [ -e "$lacks" ]; then
    echo "sync: the human's clone is partial: git refuses to switch to a commit that lacks files"
    echo "sync: (\"unable to read tree\", \"could not fetch\"); on the host: $(cat "$lacks")"
fi
branch=$(git symbolic-ref --quiet --short HEAD) || {
    echo "sync: HEAD is detached: git switch BRANCH" >&2
    exit 1
}
theirs=refs/remotes/host/$branch
git rev-parse --quiet --verify "$theirs" >/dev/null || {
    [ -s "$reason" ] || echo "sync: the human has no branch $branch" >&2
    exit 1
}
is_staged() {
    ! git diff --cached --quiet --ita-visible-in-index "$@"
}
if [ "$(git rev-parse --quiet --verify HEAD)" = "$(git rev-parse "$theirs")" ]; then
    echo "sync: $branch is at host/$branch"
elif ! git rev-parse --quiet --verify HEAD >/dev/null || git merge-base --is-ancestor HEAD "$theirs"; then
    if is_staged && is_staged "$theirs"; then
        echo "sync: changes are staged, and $branch stays where it is: git commit them, or git reset" >&2
        echo "sync: (the files stay as they are), and then git sync again" >&2
        exit 1
    fi
    kind=--mixed
    [ "$(git rev-parse --is-bare-repository)" = false ] || kind=--soft
    without_hooks reset --quiet "$kind" "$theirs" && echo "sync: $branch is at host/$branch"
elif git merge-base --is-ancestor "$theirs" HEAD; then
    echo "sync: host/$branch has nothing new; your commits are on top of it"
else
    echo "sync: $branch and host/$branch both have commits of their own" >&2
    echo "sync: git rebase --autostash host/$branch puts yours on top" >&2
    exit 1
fi
