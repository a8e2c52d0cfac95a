#!/bin/bash
# Python with pip and virtual environments.
set -euo pipefail
umask 022
#settings

# shellcheck source=/dev/null
. "$SETUP/guest-setup/common.sh"

family=$(os_family)
case "$family" in
    debian) add_packages debian python3 python3-pip python3-venv ;;
    fedora) add_packages fedora python3 python3-pip ;;
esac
