# shellcheck shell=bash
# Functions that vm-setup.sh and vm-apps.sh share: the choice of steps, and work in a user's home,
# which is done as that user. Sourced after common.sh.
#
# The caller declares STEPS (names, in the order in which they run), ABOUT and HOSTS (by name) and a
# function step_NAME for each, or step_other for the rest. Without --only the steps of USUAL run, or all.

user='' uid='' gid='' home=''
assume_yes=no
wanted=()
# Variables that are passed to functions that run as the user.
FOR_USER=(home dry_run)

is_step() { [[ " ${STEPS[*]} " == *" $1 "* ]]; }

list_steps() {
    local step
    for step in "${STEPS[@]}"; do
        printf '%-9s %s\n' "$step" "${ABOUT[$step]}"
    done
}

# Prints the hosts that this system fetches packages from.
package_hosts() {
    if [[ "$(os_family)" == fedora ]]; then
        echo mirrors.fedoraproject.org
        warn "dnf also needs the mirror that mirrors.fedoraproject.org names"
    else
        # The placeholder is apt's.
        # shellcheck disable=SC2016
        apt-get indextargets --format '$(REPO_URI)' | sed -nE 's,^https?://([^/]+).*,\1,p'
    fi
}

# Prints the hosts that the chosen steps need, one a line.
list_hosts() {
    local step host
    for step in "${wanted[@]}"; do
        for host in ${HOSTS[$step]}; do
            if [[ "$host" == packages ]]; then
                package_hosts
            else
                printf '%s\n' "$host"
            fi
        done
    done | sort -u
}

add_wanted() {
    local step
    for step in ${1//,/ }; do
        is_step "$step" || wrong_usage "there is no step $step: --list names them"
        wanted+=("$step")
    done
}

# Parses the options; sets `wanted` to the steps in their order, each once.
parse_options() {
    local action='' asked step usual=" ${USUAL[*]-${STEPS[*]}} "
    while (($#)); do
        case "$1" in
            -y | --yes) assume_yes=yes ;;
            --dry-run) dry_run=yes ;;
            --list | --hosts) action=$1 ;;
            --user)
                (($# > 1)) || wrong_usage "--user needs a name"
                user=$2
                shift
                ;;
            --only)
                [[ $# -gt 1 && "$2" != -* ]] || wrong_usage "--only needs steps: --list names them"
                while [[ $# -gt 1 && "$2" != -* ]]; do
                    add_wanted "$2"
                    shift
                done
                ;;
            -h | --help) usage && exit ;;
            *) wrong_usage "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    asked=" ${wanted[*]-} "
    wanted=()
    for step in "${STEPS[@]}"; do
        [[ "$asked" == *[a-z]* ]] || asked=$usual
        [[ "$asked" == *" $step "* ]] && wanted+=("$step")
    done
    case "$action" in
        --list) list_steps && exit ;;
        --hosts) list_hosts && exit ;;
    esac
}

# Finds the account to set up; sets `user`, `uid`, `gid` and `home`.
find_user() {
    local entry
    if ((EUID != 0)); then
        user=${user:-$(id -un)}
        [[ "$dry_run" == yes || "$user" == "$(id -un)" ]] ||
            die "only root can do this for $user; run it with sudo: sudo $0 --user $user"
    fi
    user=${user:-${SUDO_USER:-}}
    [[ -n "$user" ]] || wrong_usage "for which user? Give --user NAME"
    entry=$(getent passwd "$user") ||
        wrong_usage "there is no user $user: useradd -m -s /bin/bash $user"
    IFS=: read -r user _ uid gid _ home _ <<<"$entry"
    ((uid != 0)) || wrong_usage "this is for an ordinary user, not for root: give --user NAME"
    [[ -d "$home" ]] || die "$user has no home: $home is missing"
}

confirm() {
    local answer
    [[ "$assume_yes" == no && "$dry_run" == no ]] || return 0
    [[ -t 0 ]] || die "cannot ask without a terminal: give -y to go on"
    printf 'For %s: %s. Go on? [y/N] ' "$user" "${wanted[*]}"
    read -r answer || true
    [[ "$answer" == [yY]* ]] || die "nothing was done"
}

# as_user FUNCTION [ARGUMENT...]: runs a function of the script as the user. Root never follows a
# path in a home: its owner could have put a symlink there. A session of its own keeps what runs
# there from root's terminal; it cannot gain rights, by sudo for one.
as_user() {
    local code name drop=(env)
    code="set -euo pipefail; umask 022; $(declare -p "${FOR_USER[@]}"); $(declare -f); \"\$@\""
    if ((EUID == 0)); then
        drop=(setsid --wait setpriv "--reuid=$uid" "--regid=$gid" --init-groups --no-new-privs
            --pdeathsig=TERM env -i USER="$user" LOGNAME="$user" LANG=C.UTF-8)
        for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
            [[ -z "${!name:-}" ]] || drop+=("$name=${!name}")
        done
    fi
    drop+=(HOME="$home" PATH="$home/.local/bin:$PATH")
    (cd / && exec "${drop[@]}" bash -c "$code" "${0##*/}" "$@")
}

# put_file PATH: writes standard input to PATH. If a different file was there, it is kept beside it
# under a numbered name, PATH.~1~. Runs as the user.
put_file() (
    path=$1
    mkdir -p -- "${path%/*}"
    new=$(mktemp -- "$path.XXXXXX")
    trap 'rm -f -- "$new"' EXIT
    cat >"$new"
    if [[ -f "$path" ]] && cmp -s -- "$new" "$path"; then
        echo "$path is up to date"
        exit
    fi
    if [[ -e "$path" || -L "$path" ]]; then
        echo "the old $path is kept as ${path##*/}.~1~, or with the next number"
    fi
    chmod 644 -- "$new"
    mv -T --backup=numbered -- "$new" "$path"
    echo "wrote $path"
)

run_steps() {
    local step
    for step in "${wanted[@]}"; do
        heading "$step: ${ABOUT[$step]}"
        if declare -F "step_$step" >/dev/null; then "step_$step"; else step_other "$step"; fi
    done
}
