#!/bin/bash
# The part of gitguard vm that runs in the guest, as root. What it is given lies on the seed, an ISO
# image that the host writes for each start.
#   setup   once for a disk, by cloud-init: packages, gitguardfs, what a start needs
#   finish  after setup: takes out what belongs to this one guest, since VMs share the disk
#   start   early at each start: writes what this VM is given, if the last start had something else
#   guard   later at each start: the guarded directories; then the host is told
#   end     tells the host that the start has failed, if these have ended and could not say so
# Output goes to /var/log/gitguard-vm.log. Every step may be repeated.
set -Eeuo pipefail
umask 022

SEED=/run/gitguard-vm/seed
TOLD=/run/gitguard-vm.told # the host knows how this start has ended; the unit of "end" looks for it
FAILURE=/run/gitguard-vm.failure # why it has failed
STATE=/var/lib/gitguard-vm
MOUNTS=/proc/mounts
AGENT_PROGRAM=/usr/local/bin/gitguard-agent
ENVIRONMENT=/etc/environment
HOSTS=/etc/hosts
PREFIX=/usr/local/lib/gitguardfs
PACKAGES=(fuse3 python3 python3-pyfuse3 python3-trio python3-click ca-certificates curl git ripgrep
    iproute2)
PROXY_PATIENCE=120 # seconds: in a hardened VM the tunnel to the proxy starts after sshd
HOST_PATIENCE=30 # seconds
# They take time at each start, and are of no use without internet, console and other hardware.
UNUSED=(dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer man-db.timer
    systemd-timesyncd.service systemd-resolved.service systemd-networkd.service
    systemd-networkd.socket systemd-networkd-wait-online.service
    systemd-networkd-persistent-storage.service netplan-ovs-cleanup.service
    getty@tty1.service getty-static.service serial-getty@ttyS0.service serial-getty@ttyAMA0.service
    sshd-keygen.service systemd-random-seed.service systemd-pstore.service
    modprobe@drm.service modprobe@efi_pstore.service modprobe@configfs.service
    modprobe@9pnet_virtio.service modprobe@virtio_pci.service modprobe@fuse.service
    systemd-udev-load-credentials.service systemd-tmpfiles-setup-dev-early.service
    sys-kernel-config.mount sys-kernel-debug.mount sys-kernel-tracing.mount
    systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-pcrmachine.service
    systemd-tpm2-setup.service systemd-tpm2-setup-early.service systemd-update-utmp.service
    systemd-journal-flush.service systemd-hwdb-update.service ldconfig.service
    systemd-journal-catalog-update.service cloud-init-local.service cloud-init-main.service
    cloud-init-network.service cloud-init.service cloud-config.service cloud-final.service
    cloud-init-hotplugd.socket
    user@0.service) # a manager of units for each login of root's; that of the agent's user stays
UNUSED_GENERATORS=(cloud-init-generator netplan systemd-getty-generator systemd-ssh-generator
    systemd-hibernate-resume-generator systemd-rc-local-generator systemd-tpm2-generator)
# The same at each login. SSH has no way out, and there is no desktop.
UNUSED_OF_USERS=(user/ssh-agent.socket user-generators/systemd-xdg-autostart-generator)

say() { printf '%(%T)T %s\n' -1 "$*"; }

# Tells the host. The port belongs to root alone. Without a host, a write to it never ends.
tell() {
    local port line="${*//$'\n'/ }"
    for port in $(ports_to_host); do
        if ! timeout "$HOST_PATIENCE" tee "$port" <<<"$line" >/dev/null; then
            say "not told: $line"
        elif [[ "$line" != "step "* ]]; then
            : >"$TOLD"
        fi
    done
}

ports_to_host() {
    local port name
    for port in /sys/class/virtio-ports/*; do
        read -r name <"$port/name" || continue
        [[ "$name" != gitguard ]] || echo "/dev/${port##*/}"
    done
}

fail() {
    say "failed: $*"
    echo "$*" >"$FAILURE"
    tell "failed $*"
    rm -rf "$STATE/spare" || true # the next start may need it
    [[ ! -e "$SEED/is-shared" ]] || systemctl --no-block poweroff # the host may be gone
    exit 1
}

mount_seed() {
    mkdir -p "$SEED" "$STATE"
    [[ -e "$SEED/ca.pem" ]] || mount -t iso9660 -o ro "$(seed_disk)" "$SEED"
}

seed_disk() {
    local disk serial
    for disk in /sys/block/vd*; do
        read -r serial <"$disk/serial" || true # there is no end of the line
        [[ "$serial" != gitguard-seed ]] || echo "/dev/${disk##*/}"
    done
}

# Whether the guest has that part of the seed already.
has() { [[ -e "$STATE/$1" && "$(<"$STATE/$1")" == "$(<"$SEED/$1.digest")" ]]; }

note() {
    cp "$SEED/$1.digest" "$STATE/$1.new"
    sync # what the note is about must be on the disk before it
    mv -f "$STATE/$1.new" "$STATE/$1"
}

# Once for a disk

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
    local package missing=() apt=(apt-get -q)
    # A disk that VMs are to share does not trust the authority of the guest that is set up.
    [[ ! -e "$SEED/ca.pem" ]] || apt+=(-o "Acquire::https::CAInfo=$SEED/ca.pem")
    for package; do
        [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
            missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    tell step packages
    await_proxy
    export DEBIAN_FRONTEND=noninteractive
    "${apt[@]}" update || fail "apt-get update failed, see mitmdump.log"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
        fail "apt-get install failed, see mitmdump.log"
}

install_gitguardfs() {
    local new=$PREFIX/lib.new
    rm -rf "$new"
    mkdir -p "$new"
    tar -xf "$SEED/gitguardfs.tar" -C "$new" --strip-components=1 --no-same-owner
    sync # see write_files
    rm -rf "${PREFIX:?}/lib"
    mv -T "$new" "$PREFIX/lib"
    launcher /usr/local/bin/gitguardfs gitguardfs.commands.gitguardfs
    launcher /usr/local/bin/gitguard gitguardfs.commands.gitguard
    launcher /usr/local/bin/vm-mount gitguardfs.commands.vm_mount
    launcher /sbin/umount.fuse.gitguardfs gitguardfs.commands.umount
    printf '#!/bin/sh\nexec bash %s/lib/guest-setup/vm-apps.sh "$@"\n' "$PREFIX" >/usr/local/bin/vm-apps
    chmod 755 /usr/local/bin/vm-apps
    # Compile once, before the guard starts: an emulated guest takes long for that.
    /usr/bin/python3 -I -m compileall -q "$PREFIX/lib/gitguardfs" || true
    note gitguardfs
}

# As the agent's user: what registries have must not run as root. The authority of this one guest is
# nowhere in its own files.
install_agent() {
    local bundle=${SEED%/*}/bundle.pem
    [[ -e "$AGENT_PROGRAM" ]] || return 0
    say "installing the agent"
    tell step agent
    await_proxy
    # shellcheck disable=SC2153
    cat "$BUNDLE" "$SEED/ca.pem" >"$bundle"
    (
        set -a
        # shellcheck disable=SC1090
        . <(sed "s#$BUNDLE#$bundle#" "$ENVIRONMENT")
        HOME=$(getent passwd "$AGENT" | cut -d: -f6)
        export NPM_CONFIG_CAFILE=$bundle
        cd "$HOME"
        # shellcheck disable=SC2016
        setpriv --reuid "$AGENT" --regid "$AGENT" --init-groups --no-new-privs \
            sh -c '"$1" install && rm -rf ~/.npm/_cacache ~/.nvm/.cache ~/.cache' sh "$AGENT_PROGRAM"
    ) || fail "the agent could not be installed, see mitmdump.log"
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

# From here on the units of gitguard vm do at each start what cloud-init did.
retire_cloud_init() {
    local unit
    # First: a guest that is killed meanwhile must start by the one or the other.
    systemctl enable --quiet gitguard-vm-start.service gitguard-vm-guard.service
    mkdir -p /etc/systemd/system-generators
    for unit in "${UNUSED_GENERATORS[@]}"; do
        ln -sfT /dev/null "/etc/systemd/system-generators/$unit"
    done
    for unit in "${UNUSED[@]}"; do
        ln -sfT /dev/null "/etc/systemd/system/$unit"
    done
    mkdir -p /etc/systemd/user{,-generators}
    for unit in "${UNUSED_OF_USERS[@]}"; do
        ln -sfT /dev/null "/etc/systemd/$unit"
    done
    chmod -f a-x /etc/update-motd.d/* || true
    touch /etc/cloud/cloud-init.disabled
}

setup() {
    say "setting up"
    mount_seed
    tell step setup
    [[ "$(id -u "$AGENT"):$(id -g "$AGENT")" == 1000:1000 ]] ||
        fail "the ids of the user $AGENT are not 1000: the image has a user or group with that id"
    use_https_mirrors
    install_packages "${PACKAGES[@]}" "${AGENT_PACKAGES[@]}"
    tell step gitguardfs
    install_gitguardfs
    install_agent
    keep_spare
    note shared
    # cloud-init still writes when this program ends.
    systemd-run --quiet --no-block -p After=cloud-final.service \
        -p OnFailure=gitguard-vm-end.service "$0" finish
}

# No VM may find here what belongs to the guest that was set up: keys, identity, logs.
finish() {
    mount_seed
    tell step finish
    retire_cloud_init
    apt-get -q clean
    rm -rf /etc/gitguard-vm/keys /etc/ssh/ssh_host_* /var/lib/cloud /var/lib/apt/lists/* \
        /var/log/journal /var/log/cloud-init* /var/lib/systemd/random-seed /root/.cache
    : >/etc/machine-id
    umount "$SEED"
    fstrim / || true
    rm -f /var/log/gitguard-vm.log
    sync
    tell ready
    systemctl --no-block poweroff
}

# At each start

start() {
    say "starting"
    echo "$PANIC_TIMEOUT" >/proc/sys/kernel/panic
    take_new_seed
    name_itself
    begin_shares
    keep_spare
}

begin_shares() {
    local path
    for path in "$VIEW" "${MORE_VIEWS[@]}"; do make_view "$path"; done
    # None of these units is enabled: it still would be when its directory is no longer shared.
    # systemd may be executing itself anew and not answer. Then they begin with "guard".
    ((${#MORE_SERVICES[@]} == 0)) || systemctl --no-block start "${MORE_SERVICES[@]}" ||
        say "systemd does not answer"
}

take_new_seed() {
    local digest known=
    read -r -n 64 digest <"$(seed_disk)" # it stands before the file system
    [[ ! -s "$STATE/seed" ]] || read -r known <"$STATE/seed"
    [[ "$digest" != "$known" ]] || return 0
    rm -f "$STATE/seed"
    mount_seed
    take_seed
    umount "$SEED"
    hostname -F /etc/hostname
    echo "$digest" >"$STATE/seed"
}

# There is no name server: without a line, programs that look their own machine up fail.
name_itself() {
    local name
    read -r name </proc/sys/kernel/hostname
    grep -qE "^[^#]*[[:space:]]${name//./\\.}([[:space:]]|\$)" "$HOSTS" ||
        printf '\n127.0.1.1 %s\n' "$name" >>"$HOSTS" || say "no line for $name in $HOSTS"
}

# The agent can use up the disk's inodes. Unlike space, none are kept for root.
keep_spare() {
    [[ -e "$STATE/spare" ]] || { mkdir "$STATE/spare" && touch "$STATE/spare/"{1..1000}; } ||
        say "no spare"
}

take_seed() {
    local part
    for part in gitguardfs files shared; do
        has "$part" || rm -f "$STATE/$part" # what is half replaced must not count as what it was
    done
    has gitguardfs || install_gitguardfs
    if ! has files; then
        write_files
        note files
    fi
    if ! has shared; then # the units may be others, and the defaults in system.conf.d
        systemctl daemon-reexec
        note shared
    fi
}

# Before anything of the agent runs, and before the view is there: it gets the newest settings.
write_files() {
    local new=$STATE/files.new enabled
    say "writing files"
    rm -rf "$new"
    mkdir -p "$new${BUNDLE%/*}"
    tar -xf "$SEED/files.tar" -C "$new" --no-same-owner
    # shellcheck disable=SC1091
    . "$new/etc/gitguard-vm/config"
    grep -qF "$(sed -n 2p "$new$CA_FILE")" "$BUNDLE" || cat "$BUNDLE" "$new$CA_FILE" >"$new$BUNDLE"
    put_in_place "$new" /
    enabled=/etc/systemd/system/multi-user.target.wants/$SERVICE
    if [[ -L "$enabled" ]]; then
        systemctl daemon-reload # it has read the unit as it was
    else
        ln -sT /etc/systemd/system/gitguardfs@.service "$enabled"
    fi
    give_rules
}

# Gives files their places, where root alone writes. A guest that is killed meanwhile has the old or
# the new one at each: what they contain is on the disk before, and so is that the notes are gone.
put_in_place() {
    sync
    # As links, cp replaces a file atomically; another file system cannot have those.
    cp -rlfT "$1" "$2" 2>/dev/null || cp -rT --remove-destination "$1" "$2"
    rm -rf "$1"
}

# Root must not follow what the agent may have put into its home.
# Of a disk that the agent has filled, it gets what is kept for root.
as_agent() {
    setpriv --reuid "$AGENT" --regid "$AGENT" --init-groups \
        --inh-caps=+sys_resource --ambient-caps=+sys_resource "$@"
}

# The guard shows a share only in an empty directory whose path has no symlink of the agent's.
# What else the agent has put there is moved aside.
make_view() {
    local said
    # shellcheck disable=SC2016
    said=$(as_agent bash -euc '
        shopt -s nullglob dotglob
        move_aside() { mv -vT "$1" "$(mktemp -u "${1%/*}/moved-aside.XXXXXX")"; }
        for path in "${1%/*/*}" "${1%/*}" "$1"; do
            [[ -d "$path" || ! -e "$path" ]] && [[ ! -L "$path" ]] || move_aside "$path"
            [[ -d "$path" ]] || mkdir "$path"
            [[ "$path" == "$1" || ! -O "$path" || -w "$path" && -x "$path" ]] || chmod u+rwx "$path"
        done
        content=("$1"/*)
        [[ -r "$1" && -z "${content[*]}" ]] || {
            rmdir "$1" 2>/dev/null || move_aside "$1"
            mkdir "$1"
        }
    ' bash "$1" 2>&1) || fail "cannot make $1: $said"
    [[ -z "$said" ]] || say "$said"
}

# Agents look for rules in their own directory of the home. Existing files are left alone.
give_rules() {
    local home
    home=$(getent passwd "$AGENT" | cut -d: -f6)
    # shellcheck disable=SC2016
    as_agent sh -c '
        for path; do
            mkdir -p "$(dirname "$path")" && { [ -e "$path" ] || ln -s /etc/gitguard-vm/AGENTS.md "$path"; }
        done
    ' sh "$home"/{.codex/AGENTS.md,.gemini/GEMINI.md,.config/opencode/AGENTS.md} || say "no rules"
}

guard() {
    local n
    serve "$VIEW" "$SERVICE"
    for n in "${!MORE_VIEWS[@]}"; do serve "${MORE_VIEWS[n]}" "${MORE_SERVICES[n]}"; done
    install_more
    tell ready
    say "ready"
    [[ "$GIT" != private || -e "$STATE/has-git" ]] || make_repositories
}

# Installs what this VM is to have besides, if the last start had something else.
install_more() {
    local known=
    [[ ! -s "$STATE/packages" ]] || read -r known <"$STATE/packages"
    [[ "${MORE_PACKAGES[*]}" != "$known" ]] || return 0
    install_packages "${MORE_PACKAGES[@]}"
    echo "${MORE_PACKAGES[*]}" >"$STATE/packages"
}

# Whether a view is there and answers.
is_guarded() {
    local where type found=
    while read -r _ where type _; do
        [[ "$where" != "${1// /'\040'}" ]] || found=$type
    done <"$MOUNTS"
    [[ "$found" == fuse.gitguardfs && -d "$1" ]]
}

# Has the service $2 show a guarded share at $1. It has begun already, unless it is the first start
# of a project's, or "start" was that of an earlier version, which knew of one share only.
serve() {
    ! is_guarded "$1" || return 0
    [[ -d "$1" ]] || make_view "$1"
    systemctl start "$2" || fail "$1 is not guarded: $(journalctl -q -n 1 -o cat -u "$2")"
    is_guarded "$1" || fail "$1 is not guarded"
}

# Makes the agent's repositories, so that nobody meets a slow first use of git.
make_repositories() {
    touch "$STATE/has-git"
    as_agent nice find "$VIEW" "${MORE_VIEWS[@]}" -maxdepth 3 -name .git -type f -exec head -c 1 {} + >/dev/null || true
}

end() { [[ -e "$TOLD" ]] || fail "$(cat "$FAILURE" 2>/dev/null || echo it was ended early)"; }

[[ "$0" == "${BASH_SOURCE[0]}" ]] || return 0 # only the functions

exec >>/var/log/gitguard-vm.log 2>&1 || true # a disk with faults is read-only
trap 'fail "guest.sh, line $LINENO"' ERR
# shellcheck disable=SC1091
. /etc/gitguard-vm/config
"$1"
