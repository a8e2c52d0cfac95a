#!/usr/bin/env bash
# Puts small faults into copies of the code, and lists those that the tests do not notice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    echo "tests/mutants.sh: $*" >&2
    exit 2
}

case "${1-}" in
    -*)
        cat <<TEXT
Usage: sudo ./tests/mutants.sh [NAME...]

Puts one small fault of tests/mutants.txt at a time into a copy of this checkout and runs the
tests that should notice it. For each fault that survives, write a test or delete code.
NAME may be a pattern such as 'seal-*'. Needs .venv, as ./tests/run.sh makes it.

Exit status: 0 every fault was noticed; 1 one survived; 2 a mistake, a stale fault, or tests that
fail without a fault.
TEXT
        exit ;;
esac
[[ -x .venv/bin/python ]] || die "there is no .venv: sudo ./tests/run.sh unit"
((EUID == 0)) || die "needs root: sudo $0"
# Several tests run the code as ordinary users, who cannot enter somebody's private directory.
setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$PWD/tests/mutants.sh" ||
    die "ordinary users cannot reach $PWD: clone it below /var/tmp"
umask 022 # ordinary users read the copies
exec .venv/bin/python -m tests.mutants "$@"
