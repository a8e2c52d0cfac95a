#!/usr/bin/env bash
# A small desktop for a virtual machine: Xorg, the Awesome window manager, a file manager, a terminal.
set -euo pipefail
umask 022

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=steps.sh
. "$SETUP_DIR/steps.sh"

STEPS=(basics xorg awesome files terminal login)
declare -A ABOUT=(
    [basics]="git and basic utilities"
    [xorg]="the X server, startx, and what a session needs to shut the machine down"
    [awesome]="the Awesome window manager and its configuration, in the user's ~/.config/awesome"
    [files]="Thunar, a file manager"
    [terminal]="a terminal"
    [login]="start the desktop when the user logs in on the first console"
)
# steps.sh reads it.
# shellcheck disable=SC2034
declare -A HOSTS=(
    [basics]=packages [xorg]=packages [awesome]=packages [files]=packages [terminal]=packages [login]=''
)

# shellcheck disable=SC2034
{
    BASICS_DEBIAN=(git ca-certificates curl less nano unzip xz-utils file procps ripgrep tmux htop
        bash-completion openssh-client)
    BASICS_FEDORA=(git ca-certificates curl less nano unzip xz file procps-ng ripgrep tmux htop
        bash-completion openssh-clients)
    XORG_DEBIAN=(xserver-xorg-core xserver-xorg-input-libinput xinit xauth x11-xserver-utils
        libpam-systemd dbus-user-session polkitd)
    XORG_FEDORA=(xorg-x11-server-Xorg xorg-x11-drv-libinput xorg-x11-xinit xorg-x11-xauth xrandr
        systemd-pam dbus-tools polkit)
    AWESOME_DEBIAN=(awesome fonts-dejavu-core adwaita-icon-theme librsvg2-common)
    AWESOME_FEDORA=(awesome dejavu-sans-fonts dejavu-sans-mono-fonts adwaita-icon-theme librsvg2)
    FILES_DEBIAN=(thunar)
    FILES_FEDORA=(Thunar)
    # xterm: GLib before 2.76 starts programs in xterm, and does not know the other terminal.
    TERMINAL_DEBIAN=(xfce4-terminal xterm)
    TERMINAL_FEDORA=(xfce4-terminal xterm)
}

PROFILE=/etc/profile.d/gitguardfs-desktop.sh
DISPLAY_MANAGER=/etc/systemd/system/display-manager.service

usage() {
    cat <<TEXT
Usage: sudo ${0##*/} [-y] [--user NAME] [--only STEP...] [--dry-run]
       ${0##*/} --list | --hosts [--only STEP...] | --help

Makes a small desktop on Debian 12/13, Ubuntu 24.04+ or Fedora 41+. Run it again at any time: what
is there already is left alone.

  -y             do not ask
  --user NAME    whose desktop it is; default: who called sudo
  --only STEP... only these steps
  --list         print the steps
  --hosts        print the hosts that must be reachable, one a line
  --dry-run      print what would be done; needs no root
  --help         print this

Steps:
$(list_steps)
TEXT
}

# install_list NAME: installs the packages of NAME_DEBIAN or NAME_FEDORA that are missing.
install_list() {
    local family
    family=$(os_family)
    local -n packages=${1}_${family^^}
    add_packages "$family" "${packages[@]}"
    [[ ${#missing[@]} -gt 0 ]] || echo "installed already"
}

step_basics() { install_list BASICS; }
step_xorg() { install_list XORG; }
step_files() { install_list FILES; }
step_terminal() { install_list TERMINAL; }

step_awesome() {
    local file
    install_list AWESOME
    for file in "$SETUP_DIR"/awesome/*.lua; do
        if [[ "$dry_run" == yes ]]; then
            echo "would write, as $user: $home/.config/awesome/${file##*/}"
        else
            as_user put_file "$home/.config/awesome/${file##*/}" <"$file"
        fi
    done
}

profile_text() {
    cat <<TEXT
# Written by vm-setup.sh: starts the desktop when its user logs in on the first console.
if [ "\$(id -u)" = $uid ] && [ "\${XDG_VTNR:-}" = 1 ] && [ -z "\${DISPLAY:-}" ]; then
    # If it fails, the shell stays, and the message can be read.
    if startx /usr/bin/awesome; then exit; fi
fi
TEXT
}

step_login() {
    if [[ -L "$DISPLAY_MANAGER" || -e "$DISPLAY_MANAGER" ]]; then
        echo "there is a graphical login already: choose the session awesome there"
    elif [[ "$(profile_text)" == "$(cat -- "$PROFILE" 2>/dev/null)" ]]; then
        echo "set up already"
    elif [[ -e "$PROFILE" ]] && ! grep -qs '^# Written by vm-setup.sh' -- "$PROFILE"; then
        die "$PROFILE was not written by this script: move it away first"
    else
        run install -o root -g root -m 0644 /dev/stdin "$PROFILE.new" <<<"$(profile_text)"
        run mv -fT "$PROFILE.new" "$PROFILE"
    fi
}

main() {
    parse_options "$@"
    os_family >/dev/null
    need_root
    find_user
    confirm
    run_steps
    [[ "$dry_run" == no ]] || return 0
    heading "The desktop is there."
    echo "Log in as $user on the machine's own screen, or run there: startx /usr/bin/awesome"
}

main "$@"
