#!/bin/bash
# Node and npm, from the distribution.
set -euo pipefail
umask 022
#settings

# shellcheck source=/dev/null
. "$SETUP/guest-setup/common.sh"

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    add_packages "$(os_family)" nodejs npm
fi
