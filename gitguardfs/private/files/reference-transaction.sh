#!/bin/sh
# Written by gitguardfs. After a branch or tag has changed, writes the agent's commits to the file
# .gitguard/agent.bundle of the work tree, where the human finds them: gitguard fetch.

[ "$1" = committed ] || exit 0
is_needed=
while read -r _ _ name; do
    case $name in
    refs/heads/* | refs/tags/* | refs/remotes/host/*) is_needed=1 ;;
    esac
done
[ -n "$is_needed" ] || exit 0

common=$(git rev-parse --git-common-dir) && common=$(cd "$common" && pwd -P) || exit 0
# Other work trees of this repository are the agent's own; the human sees the main one only. git
# runs a hook at the top of the work tree.
leads_here() {
    [ "$(head -n 1 "$1/.git" 2>/dev/null)" = "gitdir: $common" ]
}
top=$(pwd -P)
if leads_here "$top"; then
    if [ "$(cat "$common/gitguard-work-tree" 2>/dev/null)" != "$top" ]; then
        printf '%s\n' "$top" >"$common/gitguard-work-tree"
    fi
else
    top=$(cat "$common/gitguard-work-tree" 2>/dev/null)
    leads_here "$top" || exit 0
fi

# The environment is that of the git command that runs this.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
export GIT_DIR="$common"

publish() {
    mkdir -p "$top/.gitguard" || return
    place=$top/.gitguard/agent.bundle
    [ -e "$top/.gitguard/.gitignore" ] || echo '*' >"$top/.gitguard/.gitignore"
    rm -f "$place".new.*
    # Without what the human has now: the copy of the human's repository is beside this one.
    if git --git-dir="${common%/*}/host.git" for-each-ref --format='^%(objectname)' refs/heads refs/tags |
        git bundle create --quiet "$place.new.$$" --branches --tags --stdin 2>"$common/gitguard-said"; then
        mv -f "$place.new.$$" "$place"
    elif grep -q 'empty bundle' "$common/gitguard-said"; then
        rm -f "$place" "$place.new.$$"
    else
        rm -f "$place.new.$$"
        return 1
    fi
}

# One at a time; the kernel drops the lock of a process that is killed.
exec 9>"$common/gitguard-lock" && flock 9 2>/dev/null
publish || echo "gitguard: your commits are safe here, and not yet in .gitguard/agent.bundle" >&2
exit 0
