#!/bin/bash
# The first program in the microVM, as root: guards the project, then runs the agent's command as
# an unprivileged user. Unmounts at the end, and returns the command's status.
set -euo pipefail
umask 022

# Root's alone. What the agent has left in its volumes must not be found by name here.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# What the image has set; other places are for tests.
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

# Nothing else runs here yet; the seal goes over a directory that is no share's root, too.
guard() {
    local arguments=(--seal)
    [[ -z "$OPTIONS" ]] || arguments+=(-o "$OPTIONS")
    [[ -d "$SOURCE" ]] || die "the project is not mounted at $SOURCE"
    gitguardfs "${arguments[@]}" -- "$SOURCE" "$VIEW" || die "the project could not be guarded"
    is_guarded || die "nothing guards the project at $VIEW"
}

# What still uses the view keeps it from being unmounted: then it goes when its last user does.
unguard() {
    ! is_guarded || umount -- "$VIEW" 2>/dev/null || umount -l -- "$VIEW" || true
}

# Volumes come up as root's: their directories are to be the agent's.
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

# A terminal sends these to the command as well.
pass_on_from_elsewhere() {
    [[ -t 0 ]] || pass_on "$1"
}

# An & would close standard input and take SIGINT and SIGQUIT from the command.
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
        # A signal that was passed on ends wait, too; then the command is still there.
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
