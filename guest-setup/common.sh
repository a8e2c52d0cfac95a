# shellcheck shell=bash
# Functions that the scripts of this directory share. Sourced, never run.

# The callers read these.
# shellcheck disable=SC2034
{
    PREFIX=/usr/local/lib/gitguardfs
    BIN=/usr/local/bin
    USR_SHARE=/usr/local/share
    SYSTEM_PYTHON=${SYSTEM_PYTHON:-/usr/bin/python3}
    SETUP_DIR=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
    CHECKOUT=$(dirname -- "$SETUP_DIR")
    dry_run=no
    missing=()
}

# `su` without a dash omits the directories of modprobe and other system programs.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
    bold='' green='' red='' plain=''
fi

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
good() { printf '%s%s%s\n' "$green" "$*" "$plain"; }
bad() { printf '%s%s%s\n' "$red" "$*" "$plain"; }
warn() { printf '%s: warning: %s\n' "${0##*/}" "$*" >&2; }
say_why() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    say_why "$@"
    exit 1
}
wrong_usage() {
    say_why "$@"
    exit 2
}

# Prints a command as a user would type it: quotes only where the shell needs them.
quoted() {
    local word line=''
    for word in "$@"; do
        [[ "$word" =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word=${word@Q}
        line+="${line:+ }$word"
    done
    printf '%s' "$line"
}

run() {
    if [[ "$dry_run" == yes ]]; then
        printf 'would run: %s\n' "$(quoted "$@")"
    else
        "$@"
    fi
}

need_root() {
    [[ "$dry_run" == yes || "$EUID" -eq 0 ]] || die "this needs root; run it with sudo: sudo $0"
}

need_python() {
    [[ "$dry_run" == no ]] || return 0
    "$SYSTEM_PYTHON" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "gitguardfs needs Python 3.11 or newer as $SYSTEM_PYTHON, which is" \
            "$("$SYSTEM_PYTHON" -I -V 2>&1 || true)"
}

os_field() {
    sed -n "s/^$1=//p" "${OS_RELEASE:-/etc/os-release}" 2>/dev/null | tr -d "\"'"
}

# Prints debian or fedora. ID_LIKE lets derivatives (Mint, Raspberry Pi OS) through.
os_family() {
    local word id
    id=$(os_field ID || true)
    for word in $id $(os_field ID_LIKE); do
        case "$word" in
            debian | ubuntu) echo debian && return ;;
            fedora) echo fedora && return ;;
        esac
    done
    die "${id:-this system} is not supported: use Debian 12/13, Ubuntu 24.04+ or Fedora 41+"
}

is_installed() {
    case "$1" in
        debian) [[ "$(dpkg-query -W -f='${db:Status-Status}' "$2" 2>/dev/null)" == installed ]] ;;
        fedora) rpm -q --quiet --whatprovides "$2" >/dev/null 2>&1 ;;
    esac
}

# find_missing FAMILY PACKAGE...: sets `missing` to the packages that are not installed.
find_missing() {
    local family=$1 package
    shift
    missing=()
    for package in "$@"; do
        is_installed "$family" "$package" || missing+=("$package")
    done
}

# The output of apt-cache goes to a string: with grep -q, apt-cache could end by SIGPIPE, a failure.
apt_policy_has() {
    local pattern=$1
    shift
    grep -qE "$pattern" <<<"$(LC_ALL=C apt-cache policy "$@" 2>/dev/null || true)"
}

# Without package lists apt knows no package, even if the distribution has it.
lists_present() {
    [[ "$dry_run" == no ]] || apt_policy_has '^ *-?[0-9]+ +[a-z+]+:'
}

lists_are_fresh=no
refresh_lists() {
    [[ "$1" == debian && "$lists_are_fresh" == no ]] || return 0
    # If one third-party source is unreachable, the others can still provide the packages.
    run apt-get update -q || warn "apt-get update failed; going on with the lists that are here"
    lists_are_fresh=yes
}

# add_packages FAMILY PACKAGE...: installs those that are missing.
add_packages() {
    local family=$1
    find_missing "$@"
    [[ ${#missing[@]} -gt 0 ]] || return 0
    refresh_lists "$family"
    case "$family" in
        # A machine that has just booted may be upgrading itself: wait for its lock.
        debian)
            run env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
                -o DPkg::Lock::Timeout=300 "${missing[@]}"
            ;;
        fedora) run dnf install -y "${missing[@]}" ;;
    esac
}

# Succeeds if install.sh wrote this launcher.
is_ours() {
    [[ ! -L "$1" ]] && grep -qsF "\"$PREFIX/lib\"" "$1"
}

# Succeeds if what is installed is this checkout's; a guest's provisioning asks at each start.
same_as_checkout() {
    diff -rq --exclude=__pycache__ --exclude=tests \
        "$CHECKOUT/gitguardfs" "$PREFIX/lib/gitguardfs" >/dev/null 2>&1
}
