#!/bin/sh
# Runs before a package is installed. Exits 1 if install.sh has installed gitguardfs: both install
# the umount helper, and the programs in /usr/local/bin would be found before the package's.
set -e

installed=${INSTALLED:-/usr/local/lib/gitguardfs}

# What dpkg and what rpm say for a first installation; an upgrade has been through this.
case "$1" in
    install | 1) ;;
    *) exit 0 ;;
esac
if [ -d "$installed/lib/gitguardfs" ]; then
    echo "gitguardfs: it is installed from a checkout ($installed): remove that first" \
        "(vm-mount --remove for each share," \
        "then $installed/lib/guest-setup/install.sh --uninstall)" >&2
    exit 1
fi
