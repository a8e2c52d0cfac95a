#!/usr/bin/env bash
# Runs pytest where a changed copy of the checkout stands in the checkout's place. Called by
# tests/mutation as the first process of mount and PID namespaces, which end with it.
# Usage: inside.sh CHECKOUT TREE WORK PYTEST-ARGUMENTS...
set -euo pipefail
umask 022

checkout=$1 tree=$2 work=$3
shift 3

mount -t tmpfs -o mode=755 copy "$work/copy"
cp -a "$tree/." "$work/changed/." "$work/copy"
mkdir "$work/copy/.venv"
mount --bind "$checkout/.venv" "$work/copy/.venv"

# What tests leave in these when they are killed goes with the work directory. By descriptors: a
# mount over /var/tmp may hide the checkout and the work directory.
exec 3<"$work/copy" 4<"$work/tmp" 5<"$work/var-tmp"
mount -t tmpfs -o mode=755 run /run
mount --no-canonicalize --bind /proc/self/fd/4 /tmp
mount --no-canonicalize --bind /proc/self/fd/5 /var/tmp
mkdir -p "$checkout"
mount --no-canonicalize --rbind /proc/self/fd/3 "$checkout"
exec 3<&- 4<&- 5<&-

cd "$checkout"
.venv/bin/python -m pytest -q -x "$@"
