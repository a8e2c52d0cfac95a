#!/bin/bash
# Root runs this at each start of the machine: it installs gitguardfs, makes the agent's user and
# guards the project. It changes nothing that is already done.
set -euo pipefail
umask 022
#settings

# Before anything else, and before the agent's user exists: only root may enter the shares.
install -d -o root -g root -m 0700 "$HOLDER"

# shellcheck source=/dev/null
. "$SETUP/guest-setup/common.sh"

make_agent() {
    if [[ "$AGENT" == "${LIMA_CIDATA_USER:-}" ]]; then
        die "Lima's own user is called $AGENT and has sudo: set user.name in the instance's file"
    fi
    id -- "$AGENT" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash -- "$AGENT"
}

install_gitguardfs() {
    if same_as_checkout && is_ours "$BIN/gitguardfs" && "$BIN/gitguardfs" --version >/dev/null 2>&1; then
        return
    fi
    bash "$SETUP/guest-setup/install.sh"
}

# Lima chooses the mount tag. The topmost mount may be the seal, so its type is checked.
tag_of_share() {
    findmnt -rn -t 9p,virtiofs -o SOURCE --mountpoint "$SHARE" | tail -n 1 || true
}

guard_project() {
    local tag arguments
    tag=$(tag_of_share)
    [[ -n "$tag" ]] || die "the project is not mounted at $SHARE"
    arguments=(--tag "$tag" --mount "$SHARE" --map-mount "$VIEW" --user "$AGENT" --style systemd -y)
    [[ -z "$OPTIONS" ]] || arguments+=(-o "$OPTIONS")
    "$BIN/vm-mount" "${arguments[@]}"
}

make_agent
install_gitguardfs
guard_project
