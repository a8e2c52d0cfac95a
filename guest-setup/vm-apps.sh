#!/usr/bin/env bash
# Tools for a developer, and agents, in the user's own account. What an agent needs is in its file:
# agents/NAME.toml here, or one of the user's own that gitguard vm puts into /etc/gitguard-vm/agents.
set -euo pipefail
umask 022

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=steps.sh
. "$SETUP_DIR/steps.sh"

STEPS=(go node uv)
# steps.sh reads it.
# shellcheck disable=SC2034
USUAL=(go node claude ghostty lf fzf)
declare -A ABOUT=(
    [go]="Go's newest release, checked by the list of checksums at go.dev"
    [node]="nvm, pinned by its checksum, and Node's newest LTS, checked by nodejs.org's checksums"
    [uv]="uv, from PyPI, checked by its list of checksums"
    [ghostty]="Ghostty, a terminal, where the distribution has it"
    [lf]="lf, a file manager for the terminal: the distribution's, or built by Go, checked by sum.golang.org"
    [fzf]="fzf, a fuzzy finder: the distribution's"
)
# steps.sh reads it.
# shellcheck disable=SC2034
declare -A HOSTS=(
    [go]="go.dev dl.google.com" [node]="github.com codeload.github.com nodejs.org"
    [uv]="pypi.org files.pythonhosted.org" [ghostty]=packages
    [lf]="packages proxy.golang.org sum.golang.org" [fzf]=packages
)
# What an agent is installed from, by what it needs; uv fetches a Python if the system has another.
declare -A REGISTRY=(
    [node]=registry.npmjs.org
    [uv]="pypi.org files.pythonhosted.org releases.astral.sh github.com
        release-assets.githubusercontent.com"
)
declare -A AGENT=() # by NAME.KEY, what an agent's file says
AGENT_FILES=("$SETUP_DIR"/agents/*.toml /etc/gitguard-vm/agents/*.toml)

NVM_VERSION=0.40.6
NVM_SHA256=17302cad7feedb1ad33ba738f93d2176a90970724f22de119603624fcbdec1a2
LF_VERSION=r41

# Reads the list of releases; prints version and checksum of the newest stable one for Linux.
GO_NEWEST='
import json, re, sys

def newest(releases, arch):
    for release in releases:
        for file in release["files"] if release["stable"] else ():
            if (file["os"], file["arch"], file["kind"]) == ("linux", arch, "archive"):
                return file["version"], file["sha256"]
    raise ValueError

try:
    version, checksum = newest(json.load(sys.stdin), sys.argv[1])
    valid = re.fullmatch(r"go[0-9]+(\.[0-9]+)+", version) and re.fullmatch(r"[0-9a-f]{64}", checksum)
except (ValueError, KeyError, TypeError):
    valid = False
sys.exit(print(version, checksum) if valid else 1)
'

# Reads PyPI's list of uv's files; prints address and checksum of the newest one for this machine.
UV_NEWEST='
import json, re, sys

def newest(files, machine):
    found = []
    for file in files:
        name = re.fullmatch(r"uv-([0-9]+(?:\.[0-9]+)+)-py3-none-manylinux[a-z0-9_.]+\.whl", file["filename"])
        if name and f"_{machine}." in file["filename"] and not file["yanked"]:
            version = tuple(map(int, name[1].split(".")))
            found.append((version, file["url"], file["hashes"]["sha256"]))
    return max(found)[1:]

try:
    url, checksum = newest(json.load(sys.stdin)["files"], sys.argv[1])
    valid = re.fullmatch(r"https://files\.pythonhosted\.org/[A-Za-z0-9/_.+-]+", url)
    valid = valid and re.fullmatch(r"[0-9a-f]{64}", checksum)
except (ValueError, KeyError, TypeError):
    valid = False
sys.exit(print(url, checksum) if valid else 1)
'
FOR_USER+=(NVM_VERSION NVM_SHA256 LF_VERSION GO_NEWEST UV_NEWEST AGENT)

# shellcheck disable=SC2034
TOOLS_DEBIAN=(curl ca-certificates tar gzip xz-utils python3 libatomic1)
# shellcheck disable=SC2034
TOOLS_FEDORA=(curl ca-certificates tar gzip xz python3 libatomic)

usage() {
    cat <<TEXT
Usage: sudo ${0##*/} [-y] [--user NAME] [--only STEP...] [--dry-run]
       ${0##*/} [-y] --only STEP...                          as that user, without root
       ${0##*/} --list | --hosts [--only STEP...] | --help

Installs tools on Debian 12/13, Ubuntu 24.04+ or Fedora 41+. What does not come from the distribution
goes into the user's ~/.local and ~/.nvm, and is fetched, checked and installed as that user. Run it
again at any time: what is there already is left alone or brought up to date.

  -y             do not ask
  --user NAME    who gets the tools; default: who called sudo
  --only STEP... only these steps
  --list         print the steps
  --hosts        print the hosts that must be reachable, one a line, for a proxy with a list of them
  --dry-run      print what would be done; needs no root
  --help         print this

Behind a proxy: sudo https_proxy=http://HOST:PORT http_proxy=http://HOST:PORT $0

Steps; without --only: ${USUAL[*]}
$(list_steps)
TEXT
}

# Reads what is said before the tables of an agent's file: each line is KEY = "TEXT" or KEY = ["TEXT", ...].
read_agent() {
    local line name=${1##*/}
    name=${name%.toml}
    [[ "$name" =~ ^[a-z][a-z0-9-]*$ ]] || die "$1: an agent's name has small letters, digits and -"
    ! declare -F "step_$name" >/dev/null || die "$1: $name is the name of a tool"
    while IFS= read -r line && [[ "$line" != "["* ]]; do
        if [[ "$line" =~ ^([a-z]+)\ =\ \"([^\"]*)\"$ ]]; then
            AGENT[$name.${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
        elif [[ "$line" =~ ^([a-z]+)\ =\ \[(.*)\]$ ]]; then
            AGENT[$name.${BASH_REMATCH[1]}]=${BASH_REMATCH[2]//[\",]/}
        fi
    done <"$1"
    ABOUT[$name]=${AGENT[$name.about]:-an agent}
    # shellcheck disable=SC2034
    HOSTS[$name]=${REGISTRY[${AGENT[$name.needs]:-none}]:-}
    is_step "$name" || STEPS+=("$name")
}

# --- as the user --------------------------------------------------------------------------------

# A directory for downloads that are not verified yet; one run at a time.
open_work() {
    work=$home/.local/opt/.vm-apps
    mkdir -p -- "$home/.local/opt" "$home/.local/bin"
    exec 9>"$work.lock"
    flock -n 9 || die "another vm-apps.sh is running for this user"
    rm -rf -- "$work" # left by a run that was killed
    mkdir -- "$work"
    trap 'rm -rf -- "$work"' EXIT
}

# fetch URL FILE [OPTION of curl...]
fetch() {
    local quiet=(--silent --show-error)
    [[ ! -t 2 ]] || quiet=(--progress-bar)
    echo "fetching $1"
    # A transfer that stalls for a minute is aborted.
    curl "${quiet[@]}" --fail --location --proto '=https' --tlsv1.2 --retry 2 --connect-timeout 30 \
        --speed-limit 1 --speed-time 60 --output "$2" --url "$1" "${@:3}" ||
        die "cannot fetch $1: is its host allowed (--hosts)? Nothing was installed"
}

# verify FILE SHA256 URL
verify() {
    sha256sum --check --status <<<"$2  $1" ||
        die "the file from $3 does not have the checksum $2: nothing was installed"
}

# unpack ARCHIVE DIRECTORY: unpacks it, without the archive's top directory.
unpack() {
    mkdir -- "$2"
    tar -xzf "$1" -C "$2" --strip-components=1 --no-same-owner
}

# link_tool TARGET: makes it a command, by a symlink in ~/.local/bin. A file that was there is kept
# beside it under a numbered name.
link_tool() {
    local link=$home/.local/bin/${1##*/} keep=(--backup=numbered)
    case "$(readlink -- "$link")" in
        "$1") return ;;
        "$home/.local/opt/"* | "$home/.nvm/"*) keep=() ;;
    esac
    ln -s -- "$1" "$work/link"
    mv -T ${keep[@]+"${keep[@]}"} -- "$work/link" "$link"
}

install_go() {
    local arch newest version sum url place
    case "$(uname -m)" in
        x86_64) arch=amd64 ;;
        aarch64) arch=arm64 ;;
        *) die "there is no Go for $(uname -m) here" ;;
    esac
    open_work
    fetch 'https://go.dev/dl/?mode=json' "$work/list"
    newest=$(python3 -I -c "$GO_NEWEST" "$arch" <"$work/list") ||
        die "the list of releases at https://go.dev/dl/?mode=json is not as expected"
    read -r version sum <<<"$newest"
    place=$home/.local/opt/$version
    if [[ "$("$place/bin/go" version 2>/dev/null)" == "go version $version "* ]]; then
        echo "installed already: $version"
    else
        url=https://go.dev/dl/$version.linux-$arch.tar.gz
        fetch "$url" "$work/archive"
        verify "$work/archive" "$sum" "$url"
        unpack "$work/archive" "$work/go"
        mv -T --backup=numbered -- "$work/go" "$place"
        echo "$version is in $place"
    fi
    link_tool "$place/bin/go"
    link_tool "$place/bin/gofmt"
}

# Runs a function of nvm in a shell with the options that nvm expects.
with_nvm() (
    set +eu
    export NVM_DIR=$home/.nvm
    # shellcheck disable=SC1091
    . "$NVM_DIR/nvm.sh" --no-use
    "$@"
)

install_node() {
    local url=https://github.com/nvm-sh/nvm/archive/refs/tags/v$NVM_VERSION.tar.gz node tool
    open_work
    if [[ -e "$home/.nvm/nvm.sh" ]]; then
        echo "nvm is there already: $(with_nvm nvm --version)"
    else
        fetch "$url" "$work/archive"
        verify "$work/archive" "$NVM_SHA256" "$url"
        unpack "$work/archive" "$work/nvm"
        mv -T --backup=numbered -- "$work/nvm" "$home/.nvm"
    fi
    # nvm verifies its downloads by SHASUMS256.txt of nodejs.org.
    with_nvm nvm install --lts || die "nvm could not install Node"
    with_nvm nvm alias default 'lts/*' >/dev/null
    node=$(with_nvm nvm which 'lts/*')
    "$node" --version >/dev/null || die "$node does not start"
    for tool in node npm npx; do
        link_tool "${node%/*}/$tool"
    done
    if ! grep -qs 'nvm\.sh' -- "$home/.bashrc"; then
        {
            cat -- "$home/.bashrc" 2>/dev/null || true
            # shellcheck disable=SC2016
            printf '\n# Written by vm-apps.sh: the command nvm. Node itself is in ~/.local/bin.\n%s\n' \
                'export NVM_DIR=$HOME/.nvm; [ ! -s "$NVM_DIR/nvm.sh" ] || . "$NVM_DIR/nvm.sh"'
        } | put_file "$home/.bashrc"
    fi
}

install_uv() {
    local found url sum place
    open_work
    fetch https://pypi.org/simple/uv/ "$work/list" --header 'Accept: application/vnd.pypi.simple.v1+json'
    found=$(python3 -I -c "$UV_NEWEST" "$(uname -m)" <"$work/list") ||
        die "PyPI's list at https://pypi.org/simple/uv/ has no uv for $(uname -m), or is not as expected"
    read -r url sum <<<"$found"
    place=$home/.local/opt/uv-$sum
    if [[ -x "$place/uv" ]]; then
        echo "installed already: $("$place/uv" --version)"
    else
        fetch "$url" "$work/archive"
        verify "$work/archive" "$sum" "$url"
        python3 -I -m zipfile -e "$work/archive" "$work/wheel"
        mkdir -- "$work/uv"
        mv -- "$work"/wheel/uv-*.data/scripts/uv* "$work/uv"
        chmod 755 -- "$work/uv"/*
        "$work/uv/uv" --version || die "the uv from $url does not start"
        mv -T --backup=numbered -- "$work/uv" "$place"
    fi
    link_tool "$place/uv"
    [[ ! -e "$place/uvx" ]] || link_tool "$place/uvx"
}

# npm_words PACKAGE...: prints the words of npm's command that installs packages, one a line. From
# version 12 on, npm lets only packages that it is told set themselves up; older ones ignore that.
npm_words() {
    local package
    printf '%s\n' npm install --global --prefix "$home/.local"
    for package; do
        [[ "$package" != ?*@* ]] || package=${package%@*}
        echo "--allow-scripts=$package"
    done
    printf '%s\n' "$@"
}

# update_command AGENT: prints the command that brings an installed agent up to date.
update_command() {
    local words
    read -ra words <<<"${AGENT[$1.packages]}"
    if [[ "${AGENT[$1.needs]}" == node ]]; then
        npm_words "${words[@]}" | paste -sd ' '
    else
        echo "uv tool upgrade ${words[0]}"
    fi
}

# install_agent NAME: by npm or uv, as its file says.
install_agent() {
    local program=$home/.local/bin/${AGENT[$1.command]} package with=() npm=() words version
    read -ra words <<<"${AGENT[$1.packages]:-}"
    ((${#words[@]})) || die "the file of $1 names no packages: install ${AGENT[$1.command]} by hand"
    if [[ -x "$program" ]]; then
        echo "installed already; $(update_command "$1") brings it up to date"
        return
    fi
    if [[ "${AGENT[$1.needs]}" == node ]]; then
        command -v npm >/dev/null || die "$1 needs Node: --only node $1"
        mkdir -p -- "$home/.local/lib" # npm looks there when strict-allow-scripts is set
        mapfile -t npm < <(npm_words "${words[@]}")
        "${npm[@]}" --no-fund --no-audit --loglevel=warn || die "npm could not install ${words[*]}"
    else
        command -v uv >/dev/null || die "$1 needs uv: --only uv $1"
        for package in "${words[@]:1}"; do
            with+=(--with "$package")
        done
        [[ -z "${AGENT[$1.python]:-}" ]] || with+=(--python "${AGENT[$1.python]}")
        uv tool install ${with[@]+"${with[@]}"} "${words[0]}" || die "uv could not install ${words[*]}"
    fi
    version=$("$program" --version) || die "the installed command does not start: $program --version"
    echo "$version is in $home/.local/bin"
}

install_lf() {
    if [[ -x "$home/.local/bin/lf" ]]; then
        echo "installed already: lf $("$home/.local/bin/lf" -version)"
        return
    fi
    command -v go >/dev/null || die "this distribution has no lf, and building it needs Go: --only go lf"
    # Only from the module proxy: other sources would need further hosts.
    env GOBIN="$home/.local/bin" GOPROXY=https://proxy.golang.org GOSUMDB=sum.golang.org \
        GOTOOLCHAIN=local CGO_ENABLED=0 go install "github.com/gokcehan/lf@$LF_VERSION" ||
        die "lf could not be built"
}

# --- the steps ----------------------------------------------------------------------------------

# user_step FUNCTION WHAT
user_step() {
    if [[ "$dry_run" == yes ]]; then
        echo "would, as $user: $2"
    else
        as_user "$1"
    fi
}

step_go() {
    user_step install_go "fetch Go from go.dev, check it, unpack it below $home/.local/opt"
}

step_node() {
    user_step install_node "fetch nvm $NVM_VERSION, check it, unpack it as $home/.nvm; nvm install --lts"
}

step_uv() { user_step install_uv "fetch uv from PyPI, check it, unpack it below $home/.local/opt"; }

# An agent's.
step_other() {
    if [[ "$dry_run" == yes ]]; then
        echo "would, as $user: install ${AGENT[$1.packages]} by ${AGENT[$1.needs]} below $home/.local"
    else
        as_user install_agent "$1"
    fi
}

# To know this on Fedora, lists may have to be fetched; a dry run assumes that the package exists.
distribution_has() {
    case "$1" in
        debian)
            refresh_lists debian
            ! lists_present || apt_policy_has '^ +Candidate: [^(]' "$2"
            ;;
        fedora) [[ "$dry_run" == yes ]] || dnf -q list "$2" >/dev/null 2>&1 ;;
    esac
}

# Installs a package of the distribution; returns 1 if it has none of that name.
from_distribution() {
    local family
    family=$(os_family)
    if is_installed "$family" "$1"; then
        echo "installed already"
    elif [[ "$EUID" -ne 0 && "$dry_run" == no ]]; then
        die "$1 is a package of the distribution: run this with sudo, or leave it out (--only)"
    elif distribution_has "$family" "$1"; then
        add_packages "$family" "$1"
    else
        return 1
    fi
}

step_ghostty() {
    from_distribution ghostty ||
        echo "This distribution has no package of Ghostty: nothing was installed." \
            "Packages of others: https://ghostty.org/docs/install/binary"
}

step_lf() {
    from_distribution lf || user_step install_lf "go install github.com/gokcehan/lf@$LF_VERSION"
}

step_fzf() { from_distribution fzf || die "this distribution has no package fzf"; }

# Programs that are needed to fetch, unpack and start the tools.
add_needed() {
    local family tool
    [[ " ${wanted[*]} " =~ \ (go|node|uv)\  ]] || return 0
    if [[ "$EUID" -eq 0 || "$dry_run" == yes ]]; then
        family=$(os_family)
        local -n needed=TOOLS_${family^^}
        add_packages "$family" "${needed[@]}"
        return
    fi
    for tool in curl tar gzip python3; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [[ ${#missing[@]} -eq 0 ]] || die "not installed: ${missing[*]}; run this with sudo"
}

main() {
    local file
    for file in "${AGENT_FILES[@]}"; do
        [[ ! -e "$file" ]] || read_agent "$file"
    done
    STEPS+=(ghostty lf fzf)
    parse_options "$@"
    os_family >/dev/null
    find_user
    confirm
    add_needed
    run_steps
    [[ "$dry_run" == no ]] || return 0
    heading "Done."
    echo "$user finds the commands after the next login (~/.local/bin)."
}

[[ "$0" != "${BASH_SOURCE[0]}" ]] || main "$@" # sourced: only the functions
