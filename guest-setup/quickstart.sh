#!/usr/bin/env bash
# Installs gitguardfs from a checkout, then shows a demonstration.
set -euo pipefail
umask 022
# The demonstration compares messages.
export LC_ALL=C

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

GITGUARDFS=$BIN/gitguardfs

# The owner that files on a share from a Mac usually have.
HOST_UID=501
HOST_GID=20

usage() {
    cat <<END
Usage: sudo ${0##*/}

Installs gitguardfs when it is missing or older than this checkout. Then shows on a small
project in a temporary directory what an agent can and cannot do, and cleans up.
docs/guest.md says how to mount and guard the share of a virtual machine.
END
}

# --- installing -------------------------------------------------------------------------

install_if_needed() {
    local arguments=()
    # If another program has this name, install.sh refuses.
    if same_as_checkout && is_ours "$GITGUARDFS" && "$GITGUARDFS" --version >/dev/null 2>&1; then
        return
    fi
    # An installation with a virtual environment keeps it.
    [[ ! -d "$PREFIX/venv" ]] || arguments+=(--venv)
    # Run by bash: a checkout on a share may be mounted noexec.
    bash "$SETUP_DIR/install.sh" ${arguments[@]+"${arguments[@]}"}
}

# --- the demonstration ------------------------------------------------------------------

demo=''
failures=0
step_failures=0

take_off() {
    umount "$1" 2>/dev/null || umount -l "$1" 2>/dev/null || true
}

remove_demo() {
    [[ -n "$demo" ]] || return 0
    # If the output is closed (| head), even cd fails; this function must still run to its end.
    set +e
    exec >/dev/null
    cd /
    take_off "$demo/projects"
    # Twice: a daemon that crashed leaves its seal on the share.
    take_off "$demo/share"
    take_off "$demo/share"
    # rm must not go through a mount that could not be unmounted.
    rm -rf --one-file-system -- "$demo"
}

choose_agent() {
    agent=$(getent passwd 1000 | cut -d: -f1 || true)
    agent=${agent:-nobody}
    agent_uid=$(id -u "$agent")
    agent_gid=$(id -g "$agent")
}

run_as() {
    local uid=$1 gid=$2 home=$3 directory=$4 command=$5
    cd "$directory" && setpriv --reuid="$uid" --regid="$gid" --clear-groups \
        env -i HOME="$home" PATH="$PATH" LC_ALL=C sh -c "$command" 2>&1 </dev/null
}

as() {
    case "$1" in
        root) (cd "$demo/projects/hello" && sh -c "$2" 2>&1 </dev/null) ;;
        agent) (run_as "$agent_uid" "$agent_gid" /nonexistent "$demo/projects/hello" "$2") ;;
        host) (run_as "$HOST_UID" "$HOST_GID" "$demo/host" "$demo/host/projects/hello" "$2") ;;
    esac
}

step() {
    heading "$*"
    step_failures=0
}

end_step() {
    if [[ "$step_failures" -eq 0 ]]; then
        good ok
    else
        bad FAILED
        failures=$((failures + 1))
    fi
}

unexpected() {
    bad "  expected: $1"
    step_failures=$((step_failures + 1))
}

# Shows a command and runs it; sets `status` to its status and `output` to its output.
show() {
    status=0
    printf '$ %s\n' "$2"
    output=$(as "$1" "$2") || status=$?
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

# refused WHO COMMAND [PATTERN]: it fails, and for no other reason than a refusal.
refused() {
    local reason="${3:-}.*Permission denied"
    show "$1" "$2"
    if [[ "$status" -eq 0 ]] || ! grep -qE "$reason" <<<"$output"; then
        unexpected "Permission denied"
    fi
}

add_tools() {
    local family packages=() tool
    for tool in git gcc make; do
        command -v "$tool" >/dev/null || packages+=("$tool")
    done
    [[ ${#packages[@]} -gt 0 ]] || return 0
    family=$(os_family)
    # Debian's gcc only recommends the headers of the C library.
    if [[ "$family" == debian && " ${packages[*]} " == *" gcc "* ]]; then
        packages+=(libc6-dev)
    fi
    add_packages "$family" "${packages[@]}"
}

write_project() {
    cat >hello.c <<'END'
#include <stdio.h>

int main(void)
{
    puts("Hello from the host");
    return 0;
}
END
    printf 'CC = gcc\nhello: hello.c\n' >Makefile
    echo hello >.gitignore
    mkdir docs
    echo 'A small project.' >docs/README
}

# The host's side is a home that only its owner may enter: on a real host it would be out of reach.
# A bind mount of it stands for the share. It is private, or the seal over the share would appear on
# the host's side as well.
make_project() {
    demo=$(mktemp -d /var/tmp/gitguardfs-demo.XXXXXX)
    chmod 755 "$demo"
    mkdir -p "$demo/share" "$demo/projects" "$demo/host/projects/hello"
    (cd "$demo/host/projects/hello" && write_project)
    chown -R "$HOST_UID:$HOST_GID" "$demo/host"
    chmod 700 "$demo/host"
    mount --bind --make-private "$demo/host/projects" "$demo/share"
    as host 'git config --global user.name Host && git config --global user.email host@example.org &&
        git config --global init.defaultBranch main && git init -q && git add . &&
        git commit -q -m "A first version"'
}

step_prepare() {
    step "A project as the host has it (uid $HOST_UID, as on a Mac), shared with this machine"
    make_project
    allowed host 'git log --oneline' 'A first version'
    allowed host 'ls -lan' "$HOST_UID +$HOST_GID .* hello\.c"
    end_step
}

mount_demo() {
    # The agent's own ids are mapped back, or two ids of the share would be shown as one.
    local map="$HOST_UID/$agent_uid:@$HOST_GID/@$agent_gid"
    ((agent_uid == HOST_UID)) || map+=":$agent_uid/$HOST_UID"
    ((agent_gid == HOST_GID)) || map+=":@$agent_gid/@$HOST_GID"
    local command=("$GITGUARDFS" --seal --map "$map" "$demo/share" "$demo/projects")
    printf '$ %s\n' "$(quoted gitguardfs "${command[@]:1}")"
    "${command[@]}" || {
        bad FAILED
        exit 1
    }
}

step_mount() {
    step "1. Root mounts the guarded view: the files are $agent's, .git is closed"
    mount_demo
    allowed root 'ls -ld hello.c .git' "$agent .* hello\.c" '^d---------.* root +root .* \.git$'
    end_step
}

step_work() {
    step "2. The agent ($agent) works as usual"
    allowed agent "sed -i s/host/agent/ hello.c"
    allowed agent make
    allowed agent ./hello 'Hello from the agent'
    end_step
}

step_read() {
    step "3. It cannot read the repository"
    refused agent 'cat .git/config'
    refused agent 'ls .git'
    if as agent 'unshare -Ur true' >/dev/null; then
        refused agent 'unshare -Ur cat .git/config'
    else
        echo '(unshare -Ur: user namespaces are closed to users here)'
    fi
    refused agent "cat $demo/share/hello/.git/config"
    end_step
}

step_tamper() {
    step "4. It cannot change, move or remove it"
    refused agent 'echo evil > .git/hooks/pre-commit'
    refused agent 'mv .git x'
    refused agent 'rm -rf .git'
    end_step
}

step_plant() {
    step "5. It cannot plant one"
    refused agent 'mkdir docs/.git'
    refused agent 'mkdir prepared && mv prepared docs/.git' 'docs/\.git'
    refused agent 'ln -s ../prepared docs/.git'
    refused agent 'cd prepared && echo "ref: refs/heads/main" > HEAD && mkdir objects && mkdir refs' \
        'refs'
    allowed agent 'rm -r prepared'
    end_step
}

step_host() {
    step "6. The host reviews and commits the agent's work, on its own side"
    allowed host 'git status --short' '^ M hello\.c$'
    allowed host 'ls -ln hello.c' "$HOST_UID +$HOST_GID"
    allowed host 'git commit -a -m "Greet from the agent"' '1 file changed'
    allowed host 'git log --oneline' 'Greet from the agent' 'A first version'
    allowed host 'git fsck'
    end_step
}

step_unmount() {
    step "7. Root unmounts"
    printf '$ umount %s\n' "$demo/projects"
    umount "$demo/projects" || unexpected "success"
    [[ -z "$(ls -A "$demo/projects")" ]] || unexpected "an empty mount point"
    end_step
}

demonstrate() {
    add_tools
    choose_agent
    trap remove_demo EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 141' PIPE
    trap 'exit 143' TERM
    step_prepare
    step_mount
    step_work
    step_read
    step_tamper
    step_plant
    step_host
    step_unmount
    if [[ "$failures" -gt 0 ]]; then
        bad "Steps that did not go as they should: $failures"
        exit 1
    fi
    heading "Next, in a virtual machine with a share (docs/guest.md), its agent being USER:"
    echo "  sudo vm-mount --tag TAG --map-mount /home/USER/projects"
}

main() {
    case "$#:${1-}" in
        0:) ;;
        1:-h | 1:--help) usage && exit ;;
        *) wrong_usage "unknown argument $1 (see --help)" ;;
    esac
    need_root
    install_if_needed
    demonstrate
}

main "$@"
