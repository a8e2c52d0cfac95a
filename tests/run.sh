#!/usr/bin/env bash
# Installs what the tests need and runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tiers=(lint unit adapter mount quickstart guest)

usage() {
    cat <<TEXT
Usage: sudo ./tests/run.sh [--no-install] [TIER...] [-- PYTEST-OPTIONS]

Runs the tests of gitguardfs, by default all tiers:
  lint        ruff, mypy, shellcheck
  unit        pure parts, no mount
  adapter     request handlers, no mount
  mount       real mounts: conformance, attacks, faults, programs
  quickstart  guest-setup/quickstart.sh, on the distribution's own packages
  guest       a virtual machine with real 9p and virtiofs shares (Debian and Ubuntu hosts);
              nine minutes where there is no hardware virtualisation

Needs root, for mounts and several users. The first run installs Debian, Ubuntu or Fedora
packages and a virtual environment in .venv; --no-install leaves that out.
TEXT
}

say() { printf '\n== %s\n' "$*"; }

install_packages() {
    local -a wanted
    if command -v apt-get >/dev/null; then
        wanted=(fuse3 libfuse3-dev pkg-config gcc make git bindfs rsync sqlite3 ripgrep
            inotify-tools attr e2fsprogs shellcheck python3-dev python3-venv tar util-linux
            qemu-system-x86 qemu-system-common qemu-utils mmdebstrap debian-archive-keyring
            systemd libxml2-utils libvirt0)
        command -v npm >/dev/null || wanted+=(npm)
        # Newer releases have virtiofsd and the schemas of libvirt in packages of their own.
        local package
        for package in virtiofsd libvirt-common; do
            [[ "$(apt-cache policy "$package" 2>/dev/null)" != *'Candidate: '[0-9]* ]] ||
                wanted+=("$package")
        done
        local missing=()
        for package in "${wanted[@]}"; do
            [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
                missing+=("$package")
        done
        ((${#missing[@]})) || return 0
        say "installing ${missing[*]}"
        apt-get update -q >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
            "${missing[@]}" >/dev/null
    elif command -v dnf >/dev/null; then
        dnf install -q -y fuse3 fuse3-devel pkgconf-pkg-config gcc make git bindfs rsync sqlite \
            ripgrep inotify-tools attr e2fsprogs ShellCheck python3-devel npm tar util-linux
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
        "$python" -m venv --clear .venv
    fi
    local stamp=.venv/requirements.sha256 now
    now=$(sha256sum pyproject.toml)
    [[ -f "$stamp" && "$(<"$stamp")" == "$now" ]] && return
    say "installing Python packages"
    .venv/bin/pip install -q --disable-pip-version-check -e '.[test]'
    printf '%s' "$now" >"$stamp"
}

lint() {
    say lint
    # One chain: errexit is off in a function that is tested for failure.
    .venv/bin/ruff check . &&
        .venv/bin/ruff format --check . &&
        .venv/bin/mypy &&
        find . -name .venv -prune -o -name '*.sh' -print0 | xargs -0 shellcheck -x .ci/run
}

pytest_tier() {
    say "$1"
    .venv/bin/python -m pytest "tests/$1" "${options[@]}"
}

quickstart() {
    say quickstart
    ./guest-setup/quickstart.sh >"$log" 2>&1 || {
        cat "$log"
        return 1
    }
    grep -c '^ok$' "$log" | sed 's/$/ steps of the demonstration are ok/'
}

arguments=("$@") chosen=() options=() install=yes
while (($#)); do
    case "$1" in
        -h | --help) usage && exit ;;
        --no-install) install=no ;;
        --) shift && options=("$@") && break ;;
        *) [[ " ${tiers[*]} " == *" $1 "* ]] || { usage >&2 && exit 1; } && chosen+=("$1") ;;
    esac
    shift
done
((${#chosen[@]})) || chosen=("${tiers[@]}")
((EUID == 0)) || { echo "tests/run.sh: needs root: sudo $0" >&2 && exit 1; }

# Several tests run the checkout as ordinary users, who cannot enter somebody's private directory.
if ! setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$PWD/tests/run.sh"; then
    copy=$(mktemp -d /var/tmp/gitguardfs-checkout-XXXXXX)
    trap 'rm -rf "$copy"' EXIT
    say "ordinary users cannot reach $PWD: running in a copy, $copy"
    cp -a . "$copy"
    rm -rf "$copy/.venv"
    chmod 755 "$copy"
    "$copy/tests/run.sh" "${arguments[@]}"
    exit
fi

if [[ "$install" == yes ]]; then
    install_packages
    install_python
fi
log=$(mktemp) mount_log=$(mktemp)
mount_pid=
clean_up() {
    if [[ -n "$mount_pid" ]]; then
        kill -INT "$mount_pid" 2>/dev/null || true
        wait "$mount_pid" || true # it unmounts what it has mounted
    fi
    rm -f "$log" "$mount_log"
}
trap clean_up EXIT
failed=()

run_tier() {
    case "$1" in
        lint | quickstart) "$1" || failed+=("$1") ;;
        *) pytest_tier "$1" || failed+=("$1") ;;
    esac
}

# The tier that takes longest starts first; those that mount nothing do not disturb it.
if [[ " ${chosen[*]} " == *" mount "* && " ${chosen[*]} " == *" unit "* ]]; then
    (say mount && exec .venv/bin/python -m pytest tests/mount "${options[@]}") >"$mount_log" 2>&1 &
    mount_pid=$!
fi
for tier in "${chosen[@]}"; do
    if [[ "$tier" == mount && -n "$mount_pid" ]]; then
        tail -n +1 -f --pid="$mount_pid" "$mount_log"
        wait "$mount_pid" || failed+=(mount)
        mount_pid=
    else
        run_tier "$tier"
    fi
done
if ((${#failed[@]})); then
    say "FAILED: ${failed[*]}"
    exit 1
fi
say "all is well: ${chosen[*]}"
