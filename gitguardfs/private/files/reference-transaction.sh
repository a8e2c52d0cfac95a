#!/bin/sh
# Written by gitguardfs. After a branch, a tag or HEAD has changed, writes the agent's commits to the
# file .gitguard/agent.bundle of the work tree, where the human finds them: gitguard fetch.
# `git sync` calls it with the word `publish`; then it also says that there are commits.

case $1 in
publish | leave-out) ;;
committed)
    # To rename a branch, git deletes it first, and makes the new one without a word. So what is
    # deleted stays in the file until something else changes.
    is_needed=
    while read -r _ value name; do
        case $value.$name in
        *[!0]*.HEAD | *[!0]*.refs/heads/* | *[!0]*.refs/tags/* | *[!0]*.refs/remotes/host/*)
            is_needed=1
            ;;
        esac
    done
    [ -n "$is_needed" ] || exit 0
    ;;
*) exit 0 ;;
esac

common=$(git rev-parse --git-common-dir) && common=$(cd "$common" && pwd -P) || exit 0
config() {
    git --git-dir="$common" config "$@"
}
# A human's clone that has become partial: git switch would take files away before it finds that an
# object is missing, unless it knows that objects may be.
if [ -e "${common%/*}/host.git/lacks-files" ] && ! config remote.host.promisor >/dev/null; then
    config core.repositoryFormatVersion 1
    config extensions.partialClone host
    config remote.host.promisor true
fi
# Below a directory of the guest's own the view shows nothing of the human's. What the human commits
# there is in no work tree of the agent's, as git has it for a sparse checkout.
left_out=${common%/*}/host.git/left-out
if [ -s "$left_out" ]; then
    sparse=$common/info/sparse-checkout
    [ -s "$sparse" ] || echo '/*' >"$sparse"
    if new=$(grep -vxFf "$sparse" "$left_out"); then
        # Patterns of a sparse checkout that was switched off would take files from the work tree.
        if [ "$(config --type=bool core.sparseCheckout)" != true ]; then
            echo '/*' >"$sparse"
            new=$(cat "$left_out")
        fi
        printf '%s\n' "$new" >>"$sparse"
        scope=--local
        [ "$(config --type=bool extensions.worktreeConfig)" != true ] || scope=--worktree
        config "$scope" core.sparseCheckout true
        config "$scope" core.sparseCheckoutCone false
        config "$scope" sparse.expectFilesOutsideOfPatterns true
    fi
fi
[ "$1" != leave-out ] || exit 0

# The first line of a file; without a process, since this runs often.
line() {
    line=
    { read -r line <"$1"; } 2>/dev/null
}
# One command of git may run this often, as a rebase does. What is wrong is said once.
say() {
    line "$common/gitguard-told"
    [ "$line" = "$PPID" ] || sed 's/^/gitguard: /' >&2
    echo "$PPID" >"$common/gitguard-told"
}

# Other work trees of this repository are the agent's own; the human sees the main one only. git
# runs a hook at the top of the work tree.
leads_here() {
    line "$1/.git" && [ "$line" = "gitdir: $common" ]
}
here=$(pwd -P)
line "$common/gitguard-work-tree"
top=$line
if leads_here "$here"; then
    [ "$top" = "$here" ] || printf '%s\n' "$here" >"$common/gitguard-work-tree"
    top=$here
elif ! leads_here "$top"; then
    top=
fi

# After a fetch a shallow repository of the human's has other ends, which git takes over from none:
# without them the agent's is damaged.
theirs=${common%/*}/host.git/shallow
if [ -s "$theirs" ]; then
    cat "$common/shallow" "$theirs" 2>/dev/null | sort -u >"$common/gitguard-shallow.$$" &&
        mv -f "$common/gitguard-shallow.$$" "$common/shallow"
fi
if [ -z "$top" ]; then
    echo "your commits are safe here, and not published: git sync in the project does it" | say
    exit 0
fi

# The environment is that of the git command that runs this.
# shellcheck disable=SC2046
unset $(git rev-parse --local-env-vars)
export GIT_DIR="$common" LC_ALL=C

# A commit to which only the HEAD of a work tree leads gets a branch, in the bundle alone.
detached() {
    for head in "$common/HEAD" "$common"/worktrees/*/HEAD; do
        line "$head"
        case $line in
        '' | ref:*) ;;
        *[!0]*)  # git begins a work tree with a HEAD of zeros; a damaged branch says nothing about this commit
            found=$(git rev-list --max-count=1 "$line" --not --branches --remotes=host) ||
                found=$(git rev-list --max-count=1 "$line")
            [ -z "$found" ] || printf '%s refs/heads/detached-%.10s\n' "$line" "$line"
            ;;
        esac
    done
}

list() {
    git for-each-ref --sort=-refname "$1" \
        --format='%(objectname) %(refname) %(objecttype)%(*objecttype)'
}

# Prints the branches, or the tags. git prints none if one is damaged: then each is asked for.
every() {
    list "refs/$1" >"$refs/$1" && cat "$refs/$1" && return
    for name in $(git for-each-ref --sort=-refname --format='%(refname)' "refs/$1"); do
        list "$name" 2>/dev/null || echo "$name is not published, since it is damaged: git fsck" >>"$left"
    done
}

# Prints the refs that gitguard fetch takes, and adds to the file `left` what the others need. The
# input is what the human has, each with a ^, and then the refs.
fit() {
    awk -v left="$left" '
    function leave(why, is_no_commit) {
        if (++count > 5) return
        split($2, kind, "/")
        name = substr($2, length("refs/" kind[2] "/") + 1)
        gsub("\047", "\047\"\047\"\047", name)
        name = "\047" name "\047"
        mend = "git branch -m -- " name " NEW && git sync"
        if (kind[2] == "tags") mend = "git tag NEW " name " && git tag -d " name
        if (is_no_commit) mend = "git tag -d " name
        print $2 " is not published, since " why ": " mend >> left
    }
    /^\^/ { known[substr($1, 2)]; next }
    $1 in known { next }
    $3 ~ "^(tag)?(tree|blob)$" { leave("it leads to no commit", 1); next }
    { folded = tolower($2) }
    length($2) > 200 || $2 !~ "^refs/[a-z]+/[A-Za-z0-9_][A-Za-z0-9._/+@#=-]*$" ||
    folded ~ "^refs/[a-z]+/head$" || folded ~ "[.]lock(/|$)" {
        leave("only ASCII letters, digits and ._/+@#=- are in a name for the human")
        next
    }
    (folded in taken) && taken[folded] == $2 { next }
    {
        twin = (folded in taken) ? taken[folded] : above[folded]
        for (part = folded; sub("/[^/]*$", "", part); ) if (part in taken) twin = taken[part]
        if (twin != "") { leave("some disks take it for " twin); next }
        if (++taking > 1000) { leave("there are 1000 others"); next }
        taken[folded] = $2
        for (part = folded; sub("/[^/]*$", "", part); ) above[part] = $2
        print $1, $2
    }
    END { if (count > 5) print "and " (count - 5) " more are not published" >> left }'
}

take() {
    git -c core.hooksPath=/dev/null fetch --quiet --no-write-fetch-head "$place" \
        "+refs/heads/*:refs/heads/$1/*" "+refs/tags/*:refs/tags/$1/*"
}

# The file is that of an earlier repository of the agent's: the human has moved the project, or root
# has reset it. What the human has not taken of it yet becomes branches of this one.
adopt() {
    former=former-$(date +%s)
    # A branch of the agent's may have the first name.
    take former 2>/dev/null || take "$former" 2>>"$left" && return
    # A disk that is full has room later; what the file builds on does not come back.
    if git bundle verify "$place" >/dev/null 2>&1; then
        echo "what an earlier repository has published cannot be taken over now; to go on without" \
            "it: mv .gitguard/agent.bundle .gitguard/$former.bundle"
        return 1
    fi >>"$left"
    mv -f "$place" "$top/.gitguard/$former.bundle" &&
        echo "what an earlier repository has published does not fit to this one: it is kept as" \
            ".gitguard/$former.bundle" >>"$left"
}

publish() {
    [ -d "$top/.gitguard" ] || mkdir "$top/.gitguard" || return
    place=$top/.gitguard/agent.bundle
    [ -e "$top/.gitguard/.gitignore" ] || echo '*' >"$top/.gitguard/.gitignore"
    rm -f "$place".new.*
    # git takes the refs of a bundle from a repository: one with just these, and the same objects.
    if ! [ -e "$refs/HEAD" ]; then
        [ ! -e "$place" ] || adopt || return
        mkdir -p "$refs/refs" || return
        for name in config objects shallow; do
            ln -sfn "../$name" "$refs/$name"
        done
        echo 'ref: refs/heads/main' >"$refs/HEAD"
    fi
    # Without what the human has now: the copy of the human's repository is beside this one.
    git --git-dir="${common%/*}/host.git" for-each-ref --format='^%(objectname)' \
        refs/heads refs/tags >"$refs/known" || return
    {
        cat "$refs/known" && every heads && every tags && detached
    } >"$refs/every" || return
    fit <"$refs/every" >"$refs/packed-refs" || return
    # It is written anew after each commit: quickly rather than short.
    # By its output: for a file, git makes NAME.lock first, and the user may protect *.lock.
    if GIT_DIR=$refs git -c pack.window=0 -c pack.compression=1 bundle create --quiet \
        - --branches --tags --stdin <"$refs/known" 2>"$refs/said" >"$place.new.$$"; then
        mv -f "$place.new.$$" "$place" || return
        [ "$1" != publish ] || echo "sync: your commits are in .gitguard/agent.bundle"
    elif grep -q 'empty bundle' "$refs/said" && [ ! -s "$said" ]; then
        # A bundle without branches says so: without a file nobody knows whether this has run.
        case $(git rev-parse --show-object-format) in
        sha256) printf '# v3 git bundle\n@object-format=sha256\n\n' ;;
        *) printf '# v2 git bundle\n\n' ;;
        esac >"$place.new.$$" && mv -f "$place.new.$$" "$place" && return
        rm -f "$place.new.$$"
        return 1
    else
        cat "$refs/said" >&2
        rm -f "$place.new.$$"
        return 1
    fi
}

refs=$common/gitguard-published
said=$common/gitguard-said
left=$common/gitguard-left
not_yet="your commits are safe here, and not yet in .gitguard/agent.bundle"
# One at a time; the kernel drops the lock of a process that is killed. One that is stopped has it.
exec 9>"$common/gitguard-lock"
flock -w 10 -E 99 9 2>/dev/null
if [ $? = 99 ]; then
    echo "$not_yet" | say
    exit 0
fi
: >"$left"
publish "$1" 2>"$said" && not_yet=
if [ -n "$not_yet" ] || [ -s "$said" ] || [ -s "$left" ]; then
    {
        cat "$left"
        tail -n 5 "$said"
        [ -z "$not_yet" ] || echo "$not_yet"
    } | say
fi
exit 0
