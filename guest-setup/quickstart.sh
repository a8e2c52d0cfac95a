#!/usr/bin/env bash
# Shows on one screen what gitguardfs does. It runs a copy of the checkout, and installs none.
set -euo pipefail
umask 022
# The demonstration compares messages.
export LC_ALL=C

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# The owner that files on a share from a Mac usually have.
HOST_UID=501
HOST_GID=20

usage() {
    cat <<END
Usage: sudo ${0##*/}

Shows on a small project in a temporary directory how an agent works in it and commits, what is
refused to it, and how the host takes its commit. Nothing of it stays, and gitguardfs is not
installed: only the packages of the distribution that it needs, git and python3-click.
END
}

demo=''
failures=0
missing=()

# --- who runs what ------------------------------------------------------------------------

# Prints a shell function for a program of gitguardfs.
program() {
    printf '%s() { %s -I -c %q "$@"; }\n' "$1" "$SYSTEM_PYTHON" \
        "import sys; sys.path.insert(0, '$demo/lib'); from gitguardfs.commands.$2 import main; main()"
}

run_as() {
    local uid=$1 gid=$2 home=$3 directory=$4 command=$5
    cd "$directory" && setpriv --reuid="$uid" --regid="$gid" --clear-groups \
        env -i HOME="$home" PATH="$PATH" LC_ALL=C sh -c "$programs$command" 2>&1 </dev/null
}

as() {
    case "$1" in
        root) (cd "$demo" && sh -c "$programs$2" 2>&1 </dev/null) ;;
        agent) (run_as "$agent_uid" "$agent_gid" "$demo/agent" "$demo/projects/hello" "$2") ;;
        host) (run_as "$HOST_UID" "$HOST_GID" "$demo/host" "$demo/host/projects/hello" "$2") ;;
    esac
}

unexpected() {
    bad "  expected: $1"
    failures=$((failures + 1))
}

say() { printf '%s%s%s\n' "$bold" "$*" "$plain"; }

# Shows a command, runs it and shows its output; sets `status` and `output`.
show() {
    status=0
    printf '%-6s %s\n' "$1\$" "$2"
    output=$(as "$1" "$2" | sed '/^$/d') || status=$?
    [[ -z "$output" ]] || printf '%s\n' "$output"
}

# allowed WHO COMMAND [PATTERN...]: it succeeds, and its output matches every pattern.
allowed() {
    local pattern
    show "$1" "$2"
    [[ "$status" -eq 0 ]] || unexpected "success (it ended with status $status)"
    shift 2
    for pattern in "$@"; do
        grep -qE -- "$pattern" <<<"$output" || unexpected "output like $pattern"
    done
}

# refused WHO COMMANDS: each of them fails, and for no other reason than a refusal.
refused() {
    show "$1" "$2"
    if [[ "$status" -eq 0 ]] || grep -vq ': Permission denied$' <<<"$output"; then
        unexpected "Permission denied"
    fi
}

# --- the demonstration --------------------------------------------------------------------

remove_demo() {
    [[ -n "$demo" ]] || return 0
    # If the output is closed (| head), even cd fails; this function must still run to its end.
    set +e
    trap '' HUP INT PIPE TERM
    exec >/dev/null 2>&1
    cd /
    as root 'unmount projects'
    umount -l "$demo"
    rmdir "$demo"
}

add_tools() {
    local family said
    family=$(os_family)
    [[ ! -x "$SYSTEM_PYTHON" ]] || need_python
    command -v git >/dev/null || missing+=(git)
    "$SYSTEM_PYTHON" -I -c 'import click' 2>/dev/null || missing+=(python3-click)
    [[ ${#missing[@]} -gt 0 ]] || return 0
    echo "Installing ${missing[*]} ..."
    said=$(add_packages "$family" "${missing[@]}" 2>&1) || die "$said"
}

# Everything is in a file system that this mount namespace alone has: no process could hold the share
# before it is sealed. The host's side is a home that only its owner may enter: on a real host it
# would be out of reach. A bind mount of it stands for the share.
prepare() {
    agent=$(getent passwd 1000 | cut -d: -f1 || true)
    agent=${agent:-nobody}
    agent_uid=$(id -u "$agent")
    agent_gid=$(id -g "$agent")
    demo=$(mktemp -d /run/gitguardfs-demo.XXXXXX)
    mount -n -i -t tmpfs -o mode=755 demonstration "$demo"
    programs=$(program gitguardfs gitguardfs && program gitguard gitguard && program unmount umount)
    programs+=$'\n'
    mkdir -p "$demo"/{lib,share,projects,repositories,agent,host/projects/hello/docs}
    cp -RL "$CHECKOUT/gitguardfs" "$demo/lib"
    chmod -R u=rwX,go=rX "$demo/lib"
    cd "$demo"
    echo 'Hello from the host' >host/projects/hello/hello.txt
    echo 'A small project.' >host/projects/hello/docs/README
    printf '[user]\nname = %s\nemail = %s@example.org\n[init]\ndefaultBranch = main\n' \
        You you >host/.gitconfig
    printf '[user]\nname = %s\nemail = %s@example.org\n' "$agent" agent >agent/.gitconfig
    chown -R "$agent_uid:$agent_gid" agent
    chown -R "$HOST_UID:$HOST_GID" host
    chmod 700 host
    mount -n --bind host/projects share
    as host 'git init -q && git add . && git commit -q -m "A first version"' || die "git failed"
}

demonstrate() {
    # The agent's own ids are mapped back, or two ids of the share would be shown as one.
    local map="$HOST_UID/$agent_uid:@$HOST_GID/@$agent_gid" said
    ((agent_uid == HOST_UID)) || map+=":$agent_uid/$HOST_UID"
    ((agent_gid == HOST_GID)) || map+=":@$agent_gid/@$HOST_GID"
    said=$(as root "gitguardfs --seal --git private --private-store repositories --map $map \
        share projects") || die "$said"
    say "Your project (uid $HOST_UID, as on a Mac), shared with this machine. Root guards it:"
    allowed agent 'ls -l .git hello.txt' "^-r--r--r-- .* $agent .* \.git" "$agent .* hello\.txt"
    say "The agent ($agent) edits, and commits to a repository of its own:"
    allowed agent "sed -i s/host/agent/ hello.txt && git commit -qam 'Greet from the agent'"
    say "It reaches yours neither here nor on the share, and cannot make one:"
    refused agent 'mv .git x; mkdir docs/.git'
    refused agent "cat $demo/share/hello/.git/config"
    say "You look at the commit, and take it:"
    allowed host 'gitguard fetch --merge main' 'Greet from the agent' 'main is agent/main now'
    as host 'git fsck && git diff --exit-code HEAD' >/dev/null || unexpected "a clean repository"
}

say_what_stays() {
    local manager=apt
    [[ "$(os_family)" != fedora ]] || manager=dnf
    ((${#missing[@]} == 0)) || echo "Packages were added: $manager remove ${missing[*]}"
    echo "Nothing of this stays, not even gitguardfs. Next: gitguard vm up (README.md)"
}

main() {
    case "$#:${1-}" in
        0: | 2:--in-namespace) ;;
        1:-h | 1:--help) usage && exit ;;
        *) wrong_usage "unknown argument $1 (see --help)" ;;
    esac
    need_root
    if (($# == 0)); then
        add_tools
        exec unshare --mount --propagation private bash "$SETUP_DIR/quickstart.sh" --in-namespace \
            "${missing[*]}"
    fi
    read -ra missing <<<"$2"
    trap remove_demo EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 141' PIPE
    trap 'exit 143' TERM
    prepare
    demonstrate
    if ((failures > 0)); then
        bad "What did not go as it should: $failures"
        exit 1
    fi
    say_what_stays
}

main "$@"
