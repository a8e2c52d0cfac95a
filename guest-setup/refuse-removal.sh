#!/bin/sh
# Runs before gitguardfs is removed: a package, or what install.sh installed. Exits 1 if that would
# leave a share open at the next boot, or a mounted view without the umount helper and, after a crash,
# without a new daemon.
set -eu

fstab=${FSTAB:-/etc/fstab} units=${UNITS:-/etc/systemd/system}
mountinfo=${MOUNTINFO:-/proc/self/mountinfo}

at_boot() {
    # A line that mounts gitguardfs, by type or in the old FUSE spelling; a # within is no comment.
    grep -sE '^[[:space:]]*([^#[:space:]].*[[:space:]](fuse\.)?gitguardfs([[:space:]]|$)|gitguardfs#)' \
        "$fstab" || true
    for link in "$units"/*.wants/gitguardfs@*.service; do
        if [ -L "$link" ] || [ -e "$link" ]; then
            echo "$link"
        fi
    done
}

# Only mounts by root count: any user can make a mount of this type.
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
