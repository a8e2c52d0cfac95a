#!/bin/bash
# The first program in the microVM. As root it guards the project, then runs the agent's command as
# an unprivileged user. At the end it unmounts the view and returns the command's status.
set -euo pipefail
umask 022

# Only directories that root alone can write: no program from the agent's volumes is found.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# The paths of the image; tests set others.
SOURCE=${GITGUARD_SOURCE:-/var/lib/gitguardfs/shares/project}
VIEW=${GITGUARD_VIEW:-/home/agent/project}
OPTIONS=${GITGUARD_OPTIONS:-}
AGENT=${GITGUARD_AGENT:-agent}

child=''

die() {
    printf 'entrypoint: %s\n' "$*" >&2
    exit 125
}

is_guarded() {
    findmnt -rn -t fuse.gitguardfs --mountpoint "$VIEW" >/dev/null 2>&1
}

# --seal also seals a directory that is not the root of a share. Nothing else runs here yet.
guard() {
    local arguments=(--seal)
    [[ -z "$OPTIONS" ]] || arguments+=(-o "$OPTIONS")
    [[ -d "$SOURCE" ]] || die "the project is not mounted at $SOURCE"
    gitguardfs "${arguments[@]}" -- "$SOURCE" "$VIEW" || die "the project could not be guarded"
    is_guarded || die "nothing guards the project at $VIEW"
}

# If a process still uses the view, umount -l detaches it when the last such process has ended.
unguard() {
    ! is_guarded || umount -- "$VIEW" 2>/dev/null || umount -l -- "$VIEW" || true
}

# New volumes belong to root: give their directories to the agent.
own_volumes() {
    local directory
    for directory in "$home/.venv" "$home/.claude"; do
        if [[ -d "$directory" && ! -L "$directory" ]]; then
            chown -h -- "$uid:$gid" "$directory"
        fi
    done
}

pass_on() {
    [[ -z "$child" ]] || kill -s "$1" "$child" 2>/dev/null || true
}

# A terminal sends these signals to the command itself.
pass_on_from_elsewhere() {
    [[ -t 0 ]] || pass_on "$1"
}

# For a command with &, bash redirects standard input from /dev/null and ignores SIGINT and SIGQUIT:
# <&0 and --default-signal undo both.
run_as_agent() {
    local status=0
    cd -- "$VIEW"
    env -u GITGUARD_SOURCE -u GITGUARD_VIEW -u GITGUARD_OPTIONS -u GITGUARD_AGENT \
        HOME="$home" USER="$AGENT" LOGNAME="$AGENT" SHELL=/bin/bash \
        VIRTUAL_ENV="$home/.venv" UV_PROJECT_ENVIRONMENT="$home/.venv" \
        setpriv --reuid "$AGENT" --regid "$gid" --init-groups --inh-caps=-all --bounding-set=-all \
        --no-new-privs \
        -- env --default-signal=INT,QUIT PATH="$home/.venv/bin:$PATH" "$@" <&0 &
    child=$!
    cd /
    while :; do
        status=0
        wait "$child" || status=$?
        # A trapped signal also ends wait: then the command may still be running.
        kill -0 "$child" 2>/dev/null || break
    done
    return "$status"
}

[[ $# -gt 0 ]] || set -- /bin/bash -l
[[ "$EUID" -eq 0 ]] || die "this needs root: it mounts, and drops to $AGENT itself"
IFS=: read -r _ _ uid gid _ home _ < <(getent passwd -- "$AGENT") || die "there is no user $AGENT"
[[ "$uid" -ne 0 ]] || die "$AGENT is root"

trap unguard EXIT
trap 'pass_on TERM; stopped=143' TERM
trap 'pass_on HUP; stopped=129' HUP
trap 'pass_on_from_elsewhere INT' INT
trap 'pass_on_from_elsewhere QUIT' QUIT
stopped=''

guard
own_volumes
[[ -z "$stopped" ]] || exit "$stopped"
run_as_agent "$@"
