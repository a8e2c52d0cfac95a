#!/bin/bash
# Sets the guest up, at its first boot and after a change of its settings. cloud-init runs it as root;
# its output goes to /var/log/gitguard-vm.log. Every step may be repeated.
set -euo pipefail
umask 022
exec >>/var/log/gitguard-vm.log 2>&1

# shellcheck disable=SC1091
. /etc/gitguard-vm/config

STATE=/var/lib/gitguard-vm
PREFIX=/usr/local/lib/gitguardfs
PACKAGES=(fuse3 python3 python3-pyfuse3 python3-trio python3-click ca-certificates curl git ripgrep)
PROXY_PATIENCE=120 # seconds: in a hardened VM the tunnel to the proxy starts after sshd

say() { printf '%s %s\n' "$(date +%T)" "$*"; }

fail() {
    say "failed: $*"
    mkdir -p "$STATE"
    printf '%s\n' "$*" >"$STATE/failed"
    exit 1
}

trust_ca() {
    grep -qF "$(sed -n 2p "$CA_FILE")" "$BUNDLE" 2>/dev/null || cat "$CA_FILE" >>"$BUNDLE"
}

# The allowlist compares http:// and https:// exactly, and names the mirrors by https.
use_https_mirrors() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/* /etc/apt/mirrors/*; do
        [[ ! -f "$file" ]] || sed -Ei \
            's#http://((deb|security|ftp)\.debian\.org|(archive|security|ports)\.ubuntu\.com)#https://\1#g' "$file"
    done
}

await_proxy() {
    local end=$((SECONDS + PROXY_PATIENCE))
    until (: <"/dev/tcp/$PROXY_ADDRESS/$PROXY_PORT") 2>/dev/null; do
        ((SECONDS < end)) || fail "cannot reach the proxy within $PROXY_PATIENCE seconds"
        sleep 1
    done
}

install_packages() {
    local package missing=()
    for package in "${PACKAGES[@]}"; do
        [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    await_proxy
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q || fail "apt-get update failed; gitguard vm blocked may say why"
    apt-get install -y -q --no-install-recommends "${missing[@]}" || fail "apt-get install failed; gitguard vm blocked may say why"
}

install_gitguardfs() {
    local seed new=$PREFIX/lib.new
    seed=$(mktemp -d)
    mount -o ro LABEL=cidata "$seed"
    rm -rf "$new"
    mkdir -p "$new"
    tar -xf "$seed/gitguardfs.tar" -C "$new" --no-same-owner
    umount "$seed"
    rmdir "$seed"
    rm -rf "${PREFIX:?}/lib"
    mv -T "$new" "$PREFIX/lib"
    launcher /usr/local/bin/gitguardfs gitguardfs.commands.gitguardfs
    launcher /usr/local/bin/gitguard gitguardfs.commands.gitguard
    launcher /usr/local/bin/vm-mount gitguardfs.commands.vm_mount
    launcher /sbin/umount.fuse.gitguardfs gitguardfs.commands.umount
    printf '#!/bin/sh\nexec bash %s/lib/guest-setup/vm-apps.sh "$@"\n' "$PREFIX" >/usr/local/bin/vm-apps
    chmod 755 /usr/local/bin/vm-apps
    # Compile once, before the guard starts: an emulated guest takes long for that.
    /usr/bin/python3 -I -c "import sys; sys.path.insert(0, '$PREFIX/lib'); import gitguardfs.daemon.run"
}

launcher() {
    cat >"$1.new" <<END
#!/usr/bin/python3 -I
# -I keeps the caller's environment and working directory out of a program that root runs.
import sys

sys.path.insert(0, "$PREFIX/lib")

from $2 import main

sys.exit(main())
END
    chmod 755 "$1.new"
    mv -fT "$1.new" "$1"
}

# Agents look for rules in their own directory of the home. Existing files are left alone.
give_rules() {
    local home path
    home=$(getent passwd "$AGENT" | cut -d: -f6)
    for path in .codex/AGENTS.md .gemini/GEMINI.md .config/opencode/AGENTS.md; do
        # As the agent: root must not follow what the agent may have put there.
        # shellcheck disable=SC2016
        setpriv --reuid "$AGENT" --regid "$AGENT" --init-groups sh -c '
            mkdir -p "$(dirname "$1")" && { [ -e "$1" ] || ln -s /etc/gitguard-vm/AGENTS.md "$1"; }
        ' sh "$home/$path" || say "no rules at $path"
    done
}

guard_project() {
    local options=()
    [[ -z "$MOUNT_OPTIONS" ]] || options=(-o "$MOUNT_OPTIONS")
    /usr/local/bin/vm-mount --yes --tag project --transport 9p --style systemd --user "$AGENT" \
        --map-mount "$VIEW" "${options[@]}" || fail "vm-mount failed"
}

say "setting up"
rm -f "$STATE/failed" "$STATE/ready"
echo "$PANIC_TIMEOUT" >/proc/sys/kernel/panic # sysctl.d(5) is read at boot, before it was written
trust_ca
use_https_mirrors
install_packages
install_gitguardfs
systemctl daemon-reexec # the defaults in system.conf.d are read at the start
guard_project
give_rules
mkdir -p "$STATE"
touch "$STATE/ready"
say "ready"
