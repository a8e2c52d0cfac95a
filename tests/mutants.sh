#!/usr/bin/env bash
# Puts small faults into copies of the code, and lists those that the tests do not notice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<TEXT
Usage: sudo ./tests/mutants.sh [NAME...]
       ./tests/mutants.sh --list

Puts one small fault at a time into a copy of this checkout, runs the tests that should notice it,
and lists the faults that survive. For each, write a test or delete code.

  NAME    only these faults; a shell pattern such as 'access-*' means all that match
  --list  the names, what each fault breaks, and the tests that should notice it

The faults are listed in tests/mutation/*.py as (name, what it breaks, file, old text, new text,
tests). To add one, write an entry and run it by its name. An entry is stale if its old text does
not occur exactly once in its file. That is an error, never a survivor.

First the tests are run without a fault. If one fails then, the faults that it should notice are
errors and are not tried. Then come the faults, two at a time, each for ${limit} seconds at most; a
test that hangs counts as noticing. All of them take about a quarter of an hour. Your working tree is
not written to: every run has mount and process namespaces of its own, in which a copy is mounted
over the checkout. However a run ends, nothing stays mounted or running.

  sudo ./tests/mutants.sh 'seal-*'

Needs root, and .venv as ./tests/run.sh makes it. CONTRIBUTING.md says more.

Exit status: 0 every fault was noticed, except those that are listed with a reason (survives);
1 one survived; 2 wrong usage, a stale entry, or tests that fail without a fault.
TEXT
}

die() {
    echo "tests/mutants.sh: $*" >&2
    exit 2
}

python=.venv/bin/python limit=300
case "${1-}" in -h | --help) usage && exit ;; esac
[[ -x "$python" ]] || die "there is no .venv: sudo ./tests/run.sh unit"
[[ "${1-}" == --list ]] && exec "$python" -m tests.mutation --list
((EUID == 0)) || die "needs root: sudo $0"
# Several tests run the code as ordinary users, who cannot enter somebody's private directory.
setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$PWD/tests/mutants.sh" ||
    die "ordinary users cannot reach $PWD: clone it below /var/tmp"
exec "$python" -m tests.mutation --limit "$limit" "$@"
