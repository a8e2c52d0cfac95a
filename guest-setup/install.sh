#!/usr/bin/env bash
# Installs gitguardfs for the whole system. Run it again after an update of the checkout.
set -euo pipefail
umask 022

# shellcheck source=common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# umount(8) looks for helpers in this directory alone.
SBIN=${SBIN:-/sbin}
PACKAGED=${PACKAGED:-/usr/bin/gitguardfs}

# Path, module and function of each program.
LAUNCHERS=(
    "$BIN/gitguardfs:gitguardfs.commands.gitguardfs:main"
    "$BIN/gitguard:gitguardfs.commands.gitguard:main"
    "$BIN/vm-mount:gitguardfs.commands.vm_mount:main"
    "$SBIN/umount.fuse.gitguardfs:gitguardfs.commands.umount:main"
)

RUNTIME_DEBIAN=(fuse3 python3 python3-pyfuse3 python3-trio python3-click)
BUILD_DEBIAN=(fuse3 libfuse3-dev gcc python3-dev python3-venv pkg-config)
BUILD_FEDORA=(fuse3 fuse3-devel gcc python3-devel pkgconf-pkg-config)
OLDEST_PYFUSE3=3.2
FROM_PYPI=("pyfuse3>=$OLDEST_PYFUSE3" trio click)

VENV=$PREFIX/venv
PACKAGE=$PREFIX/lib/gitguardfs
# Beside the package, as in a checkout: gitguard lima, krun and vm copy both to guests.
SCRIPTS=$PREFIX/lib/guest-setup
# Completion; symlinks in USR_SHARE lead here.
SHARED=$PREFIX/share

usage() {
    cat <<END
Usage: ${0##*/} [--dry-run] [--venv] [--uninstall] [--help]

Installs gitguardfs on Debian 12/13, Ubuntu 24.04+ or Fedora 41+:
the programs gitguardfs, gitguard and vm-mount in $BIN, their code below $PREFIX,
$SBIN/umount.fuse.gitguardfs, with which umount removes a view's seal too,
and completion for bash, zsh and fish in $USR_SHARE.
Run it again to upgrade. docs/guest.md says how to mount and guard a share then.

  sudo $0
  sudo $0 --uninstall

  --venv       build pyfuse3 in a virtual environment ($VENV)
               instead of using the distribution's packages (always so on Fedora)
  --uninstall  remove what this installed; the distribution's packages stay
  --dry-run    print the commands and change nothing; needs no root
  --help       print this
END
}

all_obtainable() {
    local package
    lists_present || return 0
    for package in "$@"; do
        if ! apt_policy_has '^ +Candidate: [^(]' "$package"; then
            echo "The distribution has no $package here: using a virtual environment instead."
            return 1
        fi
    done
}

distribution_has_packages() {
    find_missing debian "${RUNTIME_DEBIAN[@]}"
    if [[ ${#missing[@]} -gt 0 ]]; then
        refresh_lists debian
        all_obtainable "${missing[@]}" || return
    fi
    pyfuse3_is_new_enough
}

# Without package lists, as in a dry run, nothing is known of it.
pyfuse3_is_new_enough() {
    local version
    version=$(LC_ALL=C apt-cache policy python3-pyfuse3 2>/dev/null |
        sed -nE '/\(none\)/d; s/^ +(Installed|Candidate): //p')
    version=${version%%$'\n'*}
    [[ -n "$version" ]] || return 0
    dpkg --compare-versions "$version" ge "$OLDEST_PYFUSE3" && return
    echo "The distribution's python3-pyfuse3 is $version: building a newer one instead."
    return 1
}

# Tests imports, not files: a newer system Python does not find the packages of the old environment.
venv_works() {
    "$VENV/bin/python3" -I -c 'import pyfuse3, trio, click' 2>/dev/null
}

build_venv() {
    local family=$1
    case "$family" in
        debian) add_packages debian "${BUILD_DEBIAN[@]}" ;;
        fedora) add_packages fedora "${BUILD_FEDORA[@]}" ;;
    esac
    need_python
    interpreter=$VENV/bin/python3
    venv_works && return
    echo "Building pyfuse3 in $VENV; this takes a minute."
    run mkdir -p "$PREFIX"
    run "$SYSTEM_PYTHON" -I -m venv --clear "$VENV"
    if ! run "$interpreter" -I -m pip install --no-cache-dir --disable-pip-version-check -q \
        "${FROM_PYPI[@]}"; then
        warn "pyfuse3 could not be built: root's guards do without it, but a user's mount needs it"
        add_packages "$family" python3-click
        interpreter=$SYSTEM_PYTHON
        return
    fi
    run chown -R root:root "$VENV"
    run chmod -R go-w "$VENV"
}

prepare_python() {
    local family=$1 want_venv=$2
    if [[ "$want_venv" == no && "$family" == debian ]] && distribution_has_packages; then
        add_packages debian "${RUNTIME_DEBIAN[@]}"
        need_python
        interpreter=$SYSTEM_PYTHON
    else
        build_venv "$family"
    fi
}

# -L copies the target of a symlink: a symlink could lead to a file that another user can write.
stage_package() {
    run mkdir -p "$PREFIX/lib"
    run rm -rf "$PACKAGE.new" "$PACKAGE.old"
    run cp -RL "$CHECKOUT/gitguardfs" "$PACKAGE.new"
    run find "$PACKAGE.new" -depth -type d '(' -name __pycache__ -o -name tests ')' \
        -exec rm -rf '{}' ';'
    run chown -R root:root "$PACKAGE.new"
    # Symbolic modes: an octal one keeps the set-gid bit inherited from a /usr/local of staff.
    run chmod -R u=rwX,go=rX,ug-s "$PACKAGE.new"
    run chown root:root "$PREFIX" "$PREFIX/lib"
    run chmod u=rwx,go=rx,ug-s "$PREFIX" "$PREFIX/lib"
    run "$interpreter" -I -m compileall -q -s "$PACKAGE.new" -p "$PACKAGE" "$PACKAGE.new"
}

swap_package() {
    if [[ -e "$PACKAGE" ]]; then
        run mv -T "$PACKAGE" "$PACKAGE.old"
    fi
    run mv -T "$PACKAGE.new" "$PACKAGE"
    run rm -rf "$PACKAGE.old"
}

install_scripts() {
    [[ ! "$SETUP_DIR" -ef "$SCRIPTS" ]] || return 0
    run install -d -o root -g root -m 0755 "$SCRIPTS" "$SCRIPTS/agents"
    run install -o root -g root -m 0644 "$SETUP_DIR"/{common,steps}.sh "$SCRIPTS"
    run install -o root -g root -m 0755 "$SETUP_DIR"/{install,refuse-removal,vm-apps}.sh "$SCRIPTS"
    run install -o root -g root -m 0644 "$SETUP_DIR"/agents/*.toml "$SCRIPTS/agents"
}

# Completion comes from the programs themselves. Without it the guard works as well.
make_completion() {
    local program file variable
    for program in gitguard gitguardfs vm-mount; do
        variable=_${program^^}_COMPLETE
        for file in "bash:bash-completion/completions/$program" \
            "zsh:zsh/site-functions/_$program" "fish:fish/vendor_completions.d/$program.fish"; do
            env "${variable//-/_}=${file%%:*}_source" "$BIN/$program" |
                install -D -m 0644 /dev/stdin "$1/${file#*:}" || return
        done
    done
}

install_shared_files() {
    run rm -rf "$SHARED.new"
    if ! run make_completion "$SHARED.new"; then
        warn "there is no completion: it could not be made"
        return
    fi
    unlink_shared_files
    run rm -rf "$SHARED"
    run mv -T "$SHARED.new" "$SHARED"
    link_shared_files
}

shared_files() {
    [[ ! -d "$SHARED" ]] || find "$SHARED" -type f -printf '%P\n'
}

is_our_link() { [[ -L "$USR_SHARE/$1" && "$(readlink "$USR_SHARE/$1")" == "$SHARED/$1" ]]; }

link_shared_files() {
    local file
    while read -r file; do
        if [[ -e "$USR_SHARE/$file" || -L "$USR_SHARE/$file" ]] && ! is_our_link "$file"; then
            warn "$USR_SHARE/$file was not written by this script: it stays"
        else
            [[ -d "$USR_SHARE/${file%/*}" ]] || run mkdir -p "$USR_SHARE/${file%/*}"
            run ln -sfT "$SHARED/$file" "$USR_SHARE/$file"
        fi
    done < <(shared_files)
}

unlink_shared_files() {
    local file
    local -a ours=()
    while read -r file; do
        ! is_our_link "$file" || ours+=("$USR_SHARE/$file")
    done < <(shared_files)
    ((${#ours[@]} == 0)) || run rm -f "${ours[@]}"
}

launcher_text() {
    local module=$1 function=$2
    cat <<END
#!$interpreter -I
# -I keeps the caller's environment and working directory out of a program that root runs.
import sys

sys.path.insert(0, "$PREFIX/lib")

from $module import $function

sys.exit($function())
END
}

write_launchers() {
    local entry path new module function
    run mkdir -p "$BIN"
    for entry in "${LAUNCHERS[@]}"; do
        IFS=: read -r path module function <<<"$entry"
        new=${path%/*}/.${path##*/}.new
        run install -o root -g root -m 0755 /dev/stdin "$new" \
            <<<"$(launcher_text "$module" "$function")"
        run mv -fT "$new" "$path"
    done
}

# A user who may write to a directory on the path could redirect what root writes, and make root
# run other code. In a sticky directory (/tmp) others cannot replace root's own names.
STAFF=50 # Debian's group of users who may write to /usr/local
refuse_places_of_others() {
    local path
    [[ "$dry_run" == no ]] || return 0
    for path in "$PREFIX" "$BIN" "$SBIN" "$USR_SHARE"; do
        path=$(realpath -m -- "$path")
        while :; do
            if [[ -e "$path" && -n "$(find "$path" -maxdepth 0 '(' ! -uid 0 -o ! -perm -1000 \
                '(' -perm -002 -o -perm -020 ! -gid 0 ! -gid "$STAFF" ')' ')')" ]]; then
                die "$path can be changed by others than root: chown root $path; chmod go-w $path"
            fi
            [[ "$path" != / ]] || break
            path=$(dirname -- "$path")
        done
    done
}

# Both install the umount helper, and vm-mount could write a unit that overrides the package's.
refuse_beside_package() {
    [[ ! -e "$PACKAGED" ]] ||
        die "gitguardfs is installed as a package ($PACKAGED): remove that first" \
            "(vm-mount --remove for each share, then apt remove or dnf remove gitguardfs)"
}

refuse_foreign_launchers() {
    local entry path
    for entry in "${LAUNCHERS[@]}"; do
        path=${entry%%:*}
        if [[ -e "$path" || -L "$path" ]] && ! is_ours "$path"; then
            die "$path was not written by this script: move it away first"
        fi
    done
}

# A new file gets the SELinux label of its directory; restorecon sets the one for its path.
set_labels() {
    [[ "$dry_run" == no && -e /sys/fs/selinux/enforce ]] || return 0
    command -v restorecon >/dev/null || return 0
    restorecon -R "$PREFIX" "${LAUNCHERS[@]%%:*}" ||
        warn "restorecon failed: SELinux may keep other programs from what is installed"
}

drop_unused_venv() {
    if [[ "$interpreter" == "$SYSTEM_PYTHON" && -d "$VENV" ]]; then
        run rm -rf "$VENV"
    fi
}

check_fuse_device() {
    [[ ! -c /dev/fuse ]] || return 0
    run modprobe fuse 2>/dev/null || true
    [[ "$dry_run" == yes || -c /dev/fuse ]] ||
        warn "there is no /dev/fuse, so nothing can be mounted yet: load the kernel module" \
            "fuse, or give this container the device (--device /dev/fuse)"
}

# Mounts and unmounts an empty view in its own mount namespace: umount must remove the seal.
check_umount_helper() {
    [[ "$dry_run" == no && -c /dev/fuse ]] || return 0
    local place said
    place=$(mktemp -d "$PREFIX/check.XXXXXX")
    mkdir "$place/source" "$place/view"
    # shellcheck disable=SC2016
    unshare --mount --propagation private sh -c '
        mkdir -p /run/mount && mount -n -i -t tmpfs none /run/mount &&
            "$1" --seal "$2/source" "$2/view" && umount "$2/view" && ! mountpoint -q "$2/source"
    ' sh "$BIN/gitguardfs" "$place" >"$place/log" 2>&1 || {
        said=$(tail -n 1 "$place/log")
        warn "umount does not call $SBIN/umount.fuse.gitguardfs: a share stays sealed when its" \
            "view is unmounted, until its seal is, too${said:+ ($said)}"
    }
    rm -rf --one-file-system "$place"
}

report() {
    local version
    if [[ "$dry_run" == yes ]]; then
        run "$BIN/gitguardfs" --version
        return
    fi
    version=$("$BIN/gitguardfs" --version) || die "the installed $BIN/gitguardfs does not start"
    good "$version is installed: $BIN/gitguardfs, code in $PACKAGE, run by $interpreter"
}

install_all() {
    local want_venv=$1 family
    [[ -f "$CHECKOUT/gitguardfs/__init__.py" ]] || die "there is no gitguardfs package in $CHECKOUT"
    family=$(os_family)
    refuse_places_of_others
    refuse_beside_package
    refuse_foreign_launchers
    prepare_python "$family" "$want_venv"
    stage_package
    swap_package
    install_scripts
    write_launchers
    install_shared_files
    set_labels
    drop_unused_venv
    check_fuse_device
    check_umount_helper
    report
}

# Of --local, if no view has kept any directory in it.
remove_empty_store() {
    local holder=/var/lib/gitguardfs
    [[ -d "$holder/local" ]] || return 0
    [[ -z "$(find "$holder/local" -mindepth 3 -print -quit)" ]] || return 0
    run rm -rf "$holder/local"
    run rmdir --ignore-fail-on-non-empty "$holder"
}

uninstall_all() {
    local entry path found=no
    sh "$SETUP_DIR/refuse-removal.sh" || exit 1
    for entry in "${LAUNCHERS[@]}"; do
        path=${entry%%:*}
        if is_ours "$path"; then
            found=yes
            run rm -f "$path"
        fi
    done
    if [[ -d "$PREFIX" ]]; then
        found=yes
        unlink_shared_files
        run rm -rf "$PACKAGE" "$PACKAGE.new" "$PACKAGE.old" "$SCRIPTS" "$VENV" \
            "$SHARED" "$SHARED.new"
        run find "$PREFIX" -depth -type d -empty -delete
        remove_empty_store
    fi
    if [[ "$found" == no ]]; then
        echo "gitguardfs is not installed here: nothing to remove."
    elif [[ "$dry_run" == no ]]; then
        echo "gitguardfs is removed."
        [[ ! -d /var/lib/gitguardfs-git ]] ||
            echo "What agents have committed stays in /var/lib/gitguardfs-git."
        [[ ! -d /var/lib/gitguardfs/local ]] ||
            echo "What agents have in directories of their own (--local) stays in /var/lib/gitguardfs/local."
    fi
}

main() {
    local uninstall=no want_venv=no
    while [[ $# -gt 0 ]]; do
        case "$1" in
            --dry-run) dry_run=yes ;;
            --uninstall) uninstall=yes ;;
            --venv) want_venv=yes ;;
            -h | --help) usage && exit ;;
            *) wrong_usage "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    need_root
    if [[ "$uninstall" == yes ]]; then
        uninstall_all
    else
        install_all "$want_venv"
    fi
}

main "$@"
