#!/usr/bin/env bash
# Tools for a developer or an agent, in the user's own account: Go, Node, the Claude CLI and others.
set -euo pipefail
umask 022

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=steps.sh
. "$SETUP_DIR/steps.sh"

STEPS=(go node claude ghostty lf fzf)
declare -A ABOUT=(
    [go]="Go's newest release, checked by the list of checksums at go.dev"
    [node]="nvm, pinned by its checksum, and Node's newest LTS, checked by nodejs.org's checksums"
    [claude]="the Claude CLI, from the npm registry, which gives npm its checksum"
    [ghostty]="Ghostty, a terminal, where the distribution has it"
    [lf]="lf, a file manager for the terminal: the distribution's, or built by Go, checked by sum.golang.org"
    [fzf]="fzf, a fuzzy finder: the distribution's"
)
# steps.sh reads it.
# shellcheck disable=SC2034
declare -A HOSTS=(
    [go]="go.dev dl.google.com" [node]="github.com codeload.github.com nodejs.org"
    [claude]=registry.npmjs.org [ghostty]=packages [lf]="packages proxy.golang.org sum.golang.org"
    [fzf]=packages
)

NVM_VERSION=0.40.6
NVM_SHA256=17302cad7feedb1ad33ba738f93d2176a90970724f22de119603624fcbdec1a2
CLAUDE_PACKAGE=@anthropic-ai/claude-code
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
FOR_USER+=(NVM_VERSION NVM_SHA256 CLAUDE_PACKAGE LF_VERSION GO_NEWEST)

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

Steps:
$(list_steps)
TEXT
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

# fetch URL FILE
fetch() {
    local quiet=(--silent --show-error)
    [[ ! -t 2 ]] || quiet=(--progress-bar)
    echo "fetching $1"
    # A transfer that stalls for a minute is aborted.
    curl "${quiet[@]}" --fail --location --proto '=https' --tlsv1.2 --retry 2 --connect-timeout 30 \
        --speed-limit 1 --speed-time 60 --output "$2" --url "$1" ||
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

install_claude() {
    local version
    if [[ -x "$home/.local/bin/claude" ]]; then
        echo "installed already; claude update brings it up to date"
        return
    fi
    command -v npm >/dev/null || die "the Claude CLI needs Node: --only node claude"
    npm install --global --prefix "$home/.local" --no-fund --no-audit --loglevel=warn \
        "$CLAUDE_PACKAGE" || die "npm could not install $CLAUDE_PACKAGE"
    version=$("$home/.local/bin/claude" --version) ||
        die "the installed command does not start: $home/.local/bin/claude --version"
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

step_claude() { user_step install_claude "npm install $CLAUDE_PACKAGE below $home/.local"; }

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
    [[ " ${wanted[*]} " == *\ go\ * || " ${wanted[*]} " == *\ node\ * ]] || return 0
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

main "$@"
