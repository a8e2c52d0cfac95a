#!/bin/sh
# Written by gitguardfs: the alias `git sync`. Fetches what the human has committed. Moves the
# branch on to it if it has no commits of its own. No file of the work tree is changed.

git fetch --quiet host || exit
branch=$(git symbolic-ref --quiet --short HEAD) || {
    echo "sync: HEAD is detached: git switch BRANCH" >&2
    exit 1
}
theirs=refs/remotes/host/$branch
git rev-parse --quiet --verify "$theirs" >/dev/null || {
    echo "sync: the human has no branch $branch" >&2
    exit 1
}
if ! git rev-parse --quiet --verify HEAD >/dev/null || git merge-base --is-ancestor HEAD "$theirs"; then
    git reset --quiet --mixed "$theirs" && echo "sync: $branch is at host/$branch"
elif git merge-base --is-ancestor "$theirs" HEAD; then
    echo "sync: host/$branch has nothing new; your commits are on top of it"
else
    echo "sync: $branch and host/$branch both have commits of their own" >&2
    echo "sync: git rebase --autostash host/$branch puts yours on top" >&2
    exit 1
fi
