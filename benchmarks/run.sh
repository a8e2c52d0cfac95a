#!/usr/bin/env bash
# Installs what the benchmarks need and runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

install_packages() {
    if command -v apt-get >/dev/null; then
        local -a wanted=(bindfs fio ripgrep sqlite3 gcc git make tar fuse3 libfuse3-dev pkg-config
            python3-dev python3-venv strace util-linux) missing=()
        [[ " $* " != *" --guest "* ]] || wanted+=(qemu-system-x86 qemu-system-common qemu-utils
            mmdebstrap debian-archive-keyring e2fsprogs git)
        local package
        for package in "${wanted[@]}"; do
            [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
                missing+=("$package")
        done
        ((${#missing[@]})) || return 0
        echo "== installing ${missing[*]}" >&2
        apt-get update -q >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
            "${missing[@]}" >/dev/null
    elif command -v dnf >/dev/null; then
        dnf install -q -y bindfs fio ripgrep sqlite gcc git make tar fuse3 fuse3-devel \
            pkgconf-pkg-config python3-devel strace util-linux
    else
        echo "benchmarks/run.sh: neither apt-get nor dnf: install the programs yourself" >&2
    fi
}

install_python() {
    if [[ ! -x .venv/bin/python ]] || ! .venv/bin/python -c '' 2>/dev/null; then
        echo "== making .venv" >&2
        # The system's own, if it is new enough, as tests/run.sh does.
        local python=/usr/bin/python3
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || python=python3
        "$python" -m venv --clear .venv
    fi
    local stamp=.venv/requirements.sha256 now
    now=$(sha256sum pyproject.toml)
    [[ -f "$stamp" && "$(<"$stamp")" == "$now" ]] && return
    echo "== installing Python packages" >&2
    .venv/bin/pip install -q --disable-pip-version-check -e '.[test,vm]'
    printf '%s' "$now" >"$stamp"
}

if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
    exec python3 -B -m benchmarks --help # needs none of what is installed below
fi
((EUID == 0)) || { echo "benchmarks/run.sh: needs root: sudo $0" >&2 && exit 1; }
install_packages "$@"
install_python
exec .venv/bin/python -m benchmarks "$@"
