#!/usr/bin/env bash
# Runs pytest where a changed copy of the checkout stands in the checkout's place. Called by
# tests/mutation in mount and process namespaces, which end with it.
# Usage: inside.sh CHECKOUT TREE WORK PYTEST-ARGUMENTS...
set -euo pipefail

checkout=$1 tree=$2 work=$3
shift 3

mount -t tmpfs -o mode=755 copy "$work/copy"
cp -a "$tree/." "$work/changed/." "$work/copy"
mkdir "$work/copy/.venv"
mount --bind "$checkout/.venv" "$work/copy/.venv"
mount --rbind "$work/copy" "$checkout"
mount -t tmpfs -o mode=755 run /run # tests of vm-mount make files there

cd "$checkout"
exec .venv/bin/python -m pytest -q --basetemp="$work/pytest" "$@"
