#!/bin/sh
# Run before a package is removed. Exits 1 while something would be left open without it: at the
# next boot the raw share would be mounted and nothing guard it, and a view that is up needs the
# umount helper, and a new daemon after a crash.
set -eu

fstab=${FSTAB:-/etc/fstab} units=${UNITS:-/etc/systemd/system}
mountinfo=${MOUNTINFO:-/proc/self/mountinfo}

at_boot() {
    # A line of ours, by its type or in the old spelling of FUSE's; a # within a line is no comment.
    grep -sE '^[[:space:]]*([^#[:space:]].*[[:space:]](fuse\.)?gitguardfs([[:space:]]|$)|gitguardfs#)' \
        "$fstab" || true
    for link in "$units"/*.wants/gitguardfs@*.service; do
        if [ -L "$link" ] || [ -e "$link" ]; then
            echo "$link"
        fi
    done
}

# Root's alone: any user can mount something that is called so.
mounted() {
    awk '{
        for (i = 7; $i != "-" && i < NF; i++);
        if ($(i + 1) == "fuse.gitguardfs" && ("," $(i + 3) ",") ~ /,user_id=0,/) print $5
    }' "$mountinfo"
}

found=$(at_boot)
if [ -n "$found" ]; then
    printf '%s\n' "$found" >&2
    echo "gitguardfs: at boot these guard shares, which would then be open to everybody:" \
        "vm-mount --remove first" >&2
    exit 1
fi
found=$(mounted)
if [ -n "$found" ]; then
    printf '%s\n' "$found" >&2
    echo "gitguardfs: these guarded views are mounted: umount them first" >&2
    exit 1
fi
