#!/bin/bash
# The .NET SDK: the newest long-term version that the distribution has.
set -euo pipefail
umask 022
#settings

# shellcheck source=/dev/null
. "$SETUP/guest-setup/common.sh"

VERSIONS=(dotnet-sdk-10.0 dotnet-sdk-8.0)

obtainable() {
    case "$1" in
        debian) apt-cache show "$2" >/dev/null 2>&1 ;;
        fedora) dnf -q info "$2" >/dev/null 2>&1 ;;
    esac
}

add_dotnet() {
    local family package
    family=$(os_family)
    refresh_lists "$family"
    for package in "${VERSIONS[@]}"; do
        if obtainable "$family" "$package"; then
            add_packages "$family" "$package"
            return
        fi
    done
    die "the distribution has none of ${VERSIONS[*]}"
}

command -v dotnet >/dev/null || add_dotnet
