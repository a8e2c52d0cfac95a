#!/usr/bin/env bash
# Puts small faults into copies of the code, and says which of them the tests do not notice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<TEXT
Usage: sudo ./tests/mutants.sh [NAME...]
       ./tests/mutants.sh --list

Applies one small fault at a time to a copy of this checkout, runs the tests that should know,
and says which faults survive: each is a test to write, or code to delete.

  NAME    only these faults; a shell pattern such as 'access-*' means all that match
  --list  the names, what each fault breaks, and the tests that should notice it

The faults are listed in tests/mutation/*.py as (name, what it breaks, file, old text, new text,
tests). To add one, write an entry and run it by its name. An entry whose old text does not stand
exactly once in its file is stale, which is an error and never a survivor.

First the tests are run without a fault: where one fails, nothing would follow from its failure, and
the faults that it should notice are left out as errors. Then come the faults, two at a time, each for ${limit} seconds at most (a test that hangs
has noticed). All of them take some minutes. Your working tree is not written to: every run has
mount and process namespaces of its own, where a copy stands in the place of the checkout, so
that nothing stays mounted or running whenever and however it is ended.

Needs root, and .venv as ./tests/run.sh makes it.

Exit status: 0 every fault was noticed, but for those that are listed with a reason (survives);
1 one survived; 2 something cannot be said: wrong usage, a stale entry, tests that fail without a
fault.
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
