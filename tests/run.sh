#!/usr/bin/env bash
# Installs what the tests need and runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tiers=(guest lint unit adapter mount mount-pyfuse3 packaging quickstart desktop egress guest-old vm
    guest-selinux)
by_name=(vm-faults vm-docker)
quick=(lint unit adapter)

usage() {
    cat <<TEXT
Usage: sudo ./tests/run.sh [OPTION...] [TIER...] [-- PYTEST-OPTIONS]

Runs the tests of gitguardfs, by default all tiers but the last two. If tiers with virtual
machines are among them, several run at a time. The tiers:
  lint           ruff, mypy, shellcheck
  unit           pure parts, no mount
  adapter        request handlers, no mount
  mount          real mounts: conformance, attacks, faults, programs
  mount-pyfuse3  much of that again with --session pyfuse3
  packaging      the source distribution and its own tests, the wheel, the packages' files
  quickstart     guest-setup/quickstart.sh, with the distribution's own Python
  desktop        Debian 13: vm-setup.sh and its desktop under Xvfb; the Debian package
  egress         the allowlist proxy, before servers that record what they are sent
  guest          Debian 13 in a virtual machine with real 9p and virtiofs shares
  guest-old      Debian 12 in another one, the oldest system that is supported
  guest-selinux  Debian 13 with SELinux enforcing, in a third one
  vm             gitguard vm from nothing: the guard, the proxy, isolation; stop, up again, reset
  vm-faults      gitguard vm: what kill -9 leaves, a panic, the hardened VM, a control run of what
                 isolation is tried with; only by its name, since each boot takes minutes
  vm-docker      docker build in the guest of gitguard vm; only by its name, since it has an image
                 of its own

  --quick       lint, unit and adapter: for a quick check of a change
  --durations   print the 20 slowest tests at the end
  --no-install  install nothing
  --help        show this text
  -- OPTION...  options of pytest, for each tier that it runs: ./tests/run.sh mount -- -k seal -x

  sudo ./tests/run.sh --quick
  sudo ./tests/run.sh mount -- -k seal -x

All tiers take 30 to 60 minutes on two processors without hardware virtualisation, --quick 3
minutes. The first run installs packages of the distribution and a virtual environment in .venv,
and makes four images for the virtual machines (on Debian and Ubuntu only): 10 minutes more.
Needs root, for mounts and several users. Mounts and processes of the tests are invisible to
the rest of the machine and end with them, also when they are killed. CONTRIBUTING.md says more.

Tests whose program this machine lacks are skipped and named at the end; with CI=true a skip is
a failure. The exit status is 0 if all is well, 1 if a test failed or nothing could be run,
2 for a mistake in the options, 130 if the run was stopped.
TEXT
}

say() { printf '\n== %s\n' "$*"; }

not_installed() {
    printf 'tests/run.sh: not installed: %s\n' "$1" >&2
    echo "Is there a network? With what is there: $0 --no-install" >&2
    exit 1
}

install_packages() {
    local -a wanted missing=()
    local package
    if command -v apt-get >/dev/null; then
        wanted=(fuse3 libfuse3-dev pkg-config gcc make git git-lfs bindfs rsync sqlite3 ripgrep
            inotify-tools attr e2fsprogs shellcheck python3-dev python3-venv tar util-linux
            qemu-system-x86 qemu-system-common qemu-utils mmdebstrap debian-archive-keyring iproute2
            systemd libxml2-utils libvirt0 xvfb curl openssl openssh-client zsh fish groff-base mandoc
            debhelper dh-python dpkg-dev help2man python3-click rpm cpio cargo ruby wget
            python3-pyfuse3)
        command -v npm >/dev/null || wanted+=(npm)
        command -v go >/dev/null || wanted+=(golang-go)
        command -v javac >/dev/null || wanted+=(default-jdk-headless)
        # Newer releases have virtiofsd and the schemas of libvirt in packages of their own.
        for package in virtiofsd libvirt-common; do
            [[ "$(apt-cache policy "$package" 2>/dev/null)" != *'Candidate: '[0-9]* ]] ||
                wanted+=("$package")
        done
        for package in "${wanted[@]}"; do
            [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
                missing+=("$package")
        done
        ((${#missing[@]})) || return 0
        say "installing ${missing[*]}"
        apt-get update -q >/dev/null || not_installed "${missing[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
            -o DPkg::Lock::Timeout=600 "${missing[@]}" >/dev/null || not_installed "${missing[*]}"
    elif command -v dnf >/dev/null; then
        wanted=(fuse3 fuse3-devel pkgconf-pkg-config gcc make git git-lfs bindfs rsync sqlite ripgrep
            inotify-tools attr e2fsprogs ShellCheck python3-devel npm tar util-linux iproute
            curl openssl zsh fish groff-base mandoc rpm-build cargo
            ruby rubygems wget golang java-devel)
        for package in "${wanted[@]}"; do
            rpm -q --quiet --whatprovides "$package" || missing+=("$package")
        done
        ((${#missing[@]})) || return 0
        say "installing ${missing[*]}"
        dnf install -q -y "${missing[@]}" || not_installed "${missing[*]}"
    else
        echo "tests/run.sh: neither apt-get nor dnf: install the needed programs yourself" >&2
    fi
}

install_python() {
    if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -c '' 2>/dev/null; then
        say "making .venv"
        # The system's own, if it is new enough: ordinary users can run it, which tests need.
        local python=/usr/bin/python3
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || python=python3
        "$python" -m venv --clear .venv || not_installed .venv
    fi
    local stamp=.venv/requirements.sha256 now
    now=$(sha256sum pyproject.toml)
    [[ -f "$stamp" && "$(<"$stamp")" == "$now" ]] && return
    say "installing Python packages in .venv"
    .venv/bin/pip install -q --disable-pip-version-check \
        -e '.[test,vm]' --config-settings editable_mode=compat 2>"$log" || {
        cat "$log" >&2
        not_installed "Python packages in .venv"
    }
    # Where setuptools finds it, it decides what a source distribution holds, this project's too.
    .venv/bin/pip install -q --disable-pip-version-check --upgrade --target .venv/apart \
        'setuptools-scm>=8' || not_installed setuptools-scm
    printf '%s' "$now" >"$stamp"
}

install_node() {
    local programs=(pnpm@9 yarn@1 yarn-berry@npm:@yarnpkg/cli-dist@4 chokidar3@npm:chokidar@3
        chokidar4@npm:chokidar@4 jest@29 isomorphic-git@1 husky@9)
    local stamp=.venv/node/programs
    [[ -f "$stamp" && "$(<"$stamp")" == "${programs[*]}" ]] && return
    say "installing ${programs[*]} in .venv"
    npm install --prefix .venv/node --silent --no-audit --no-fund "${programs[@]}" ||
        not_installed "${programs[*]}"
    printf '%s' "${programs[*]}" >"$stamp"
}

wrong() {
    printf 'tests/run.sh: %s; ./tests/run.sh --help lists options and tiers\n' "$1" >&2
    exit 2
}

is_tier() {
    local tier
    for tier in "${tiers[@]}" "${by_name[@]}"; do
        [[ "$1" != "$tier" ]] || return 0
    done
    return 1
}

arguments=("$@") chosen=() options=() install=yes pytest_options=()
while (($#)); do
    case "$1" in
        -h | --help) usage && exit ;;
        --no-install) install=no ;;
        --durations) options+=("$1") ;;
        --quick) chosen+=("${quick[@]}") ;;
        --) pytest_options=("$@") && break ;;
        -*) wrong "no such option: $1" ;;
        *) is_tier "$1" || wrong "no such tier: $1" && chosen+=("$1") ;;
    esac
    shift
done
((${#chosen[@]})) || chosen=("${tiers[@]}")
((EUID == 0)) || { echo "tests/run.sh: needs root: sudo $0 ${arguments[*]}" >&2 && exit 1; }

# Several tests run the checkout as ordinary users, who cannot enter somebody's private directory.
if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$PWD/tests/run.sh"; then
    if [[ "$install" == no ]]; then
        echo "tests/run.sh: ordinary users cannot reach $PWD, and a copy has no .venv:" \
            "run without --no-install, or clone below /var/tmp" >&2
        exit 1
    fi
    # What runs in the copy inherits the descriptor, so that it holds the copy if we are killed.
    for left in /var/tmp/gitguardfs-checkout-*; do
        [[ -d "$left" && ! -L "$left" && -O "$left" ]] || continue
        flock -n "$left" rm -rf "$left" || true
    done
    copy=$(mktemp -d /var/tmp/gitguardfs-checkout-XXXXXX)
    trap 'rm -rf "$copy"' EXIT
    exec {held}<"$copy"
    flock -s "$held"
    chmod 755 "$copy" # fails if another run has removed it before it was locked
    say "ordinary users cannot reach $PWD: running in a copy, $copy"
    cp -a . "$copy"
    rm -rf "$copy/.venv"
    chmod 755 "$copy"
    "$copy/tests/run.sh" "${arguments[@]}"
    exit
fi

if [[ "$install" == yes ]]; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    echo "Checking packages and .venv; a first run installs them, which takes some minutes."
    install_packages
    exec {turn}<tests/run.sh
    flock "$turn" # two runs do not make one .venv at a time
    install_python
    install_node
    exec {turn}<&-
    rm -f "$log"
fi
if [[ ! -x .venv/bin/python ]]; then
    echo "tests/run.sh: there is no .venv: run without --no-install" >&2
    exit 1
fi
unset PYTHONDONTWRITEBYTECODE # a thousand starts of Python would compile the same modules
exec .venv/bin/python tests/support/isolated.py .venv/bin/python -m tests.tiers \
    ${options[@]+"${options[@]}"} "${chosen[@]}" ${pytest_options[@]+"${pytest_options[@]}"}
