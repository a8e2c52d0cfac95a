#!/usr/bin/env bash
# Lays the files of a package out below a directory, for packaging/debian/rules and the spec file.
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    echo "Usage: ${0##*/} DESTDIR MODULES ZSH" >&2
    echo "MODULES is the directory for the Python package and guest-setup, ZSH that for" >&2
    echo "completion of zsh; both as they are in the installed system, such as /usr/share/..." >&2
    exit 2
}

(($# == 3)) || usage
destdir=$1 modules=$2 zsh=$3
python=${PYTHON:-/usr/bin/python3}
sbin=${SBIN:-/usr/sbin}

in_package() { PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 "$python" "$@"; }

# Name, module and function of each program, from pyproject.toml.
programs() {
    "$python" - <<'END'
import tomllib

with open("pyproject.toml", "rb") as file:
    scripts = tomllib.load(file)["project"]["scripts"]
for name, entry in scripts.items():
    print(name, *entry.split(":"))
END
}

# -I: programs that root runs ignore the caller's environment and working directory.
launcher() {
    cat <<END
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "$modules")

from $1 import $2

sys.exit($2())
END
}

install -d "$destdir$modules/guest-setup/agents"
cp -RL gitguardfs "$destdir$modules/"
find "$destdir$modules" -depth -type d -name __pycache__ -exec rm -rf '{}' ';'
chmod -R u=rwX,go=rX "$destdir$modules"
install -m 0644 guest-setup/{common,steps}.sh "$destdir$modules/guest-setup"
install -m 0755 guest-setup/{install,refuse-removal,vm-apps}.sh "$destdir$modules/guest-setup"
install -m 0644 guest-setup/agents/*.toml "$destdir$modules/guest-setup/agents"

# At the same places as in the repository, so that their links lead to each other.
documents=$destdir/usr/share/doc/gitguardfs
for file in README.md SECURITY.md CONTRIBUTING.md docs/* packaging/README.md \
    benchmarks/results/*.{md,svg}; do
    install -D -m 0644 "$file" "$documents/$file"
done

while read -r name module function; do
    directory=/usr/bin
    # umount(8) looks for helpers in /sbin alone, which is a symlink to this directory.
    [[ "$name" != umount.* ]] || directory=$sbin
    launcher "$module" "$function" | install -D -m 0755 /dev/stdin "$destdir$directory/$name"
done < <(programs)

# Completion and manual pages come from the programs themselves.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' gitguardfs/__init__.py)
date=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%F)

# pages WORD...: makes the page of a command and those of its subcommands.
pages() {
    local section=1 words="$*" help name
    [[ "$1" != vm-mount ]] || section=8
    help=$("$work/$1" "${@:2}" --help)
    name=$(sed -n '3,/^$/s/^  //p' <<<"$help" | paste -sd ' ')
    help2man --no-info --section="$section" --version-string="$version" --include=- \
        --name="${name%.*}" "$work/$words" <<<"[SEE ALSO]
gitguardfs(1), gitguard(1), vm-mount(8), umount.fuse.gitguardfs(8)" |
        sed "/^\.SH NAME/{n; s/^$words/${words// /-}/}" |
        install -D -m 0644 /dev/stdin "$man/man$section/${words// /-}.$section"
    while read -r name; do
        pages "$@" "$name"
    done < <(sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' <<<"$help")
}

man=$destdir/usr/share/man
while read -r name module function; do
    [[ "$name" != umount.* ]] || continue
    printf '#!/bin/sh\nPYTHONPATH=%q exec %q -B -c "from %s import %s; %s()" "$@"\n' \
        "$PWD" "$python" "$module" "$function" "$function" |
        install -m 0755 /dev/stdin "$work/$name"
    variable=_${name^^}_COMPLETE
    for file in bash:bash-completion/completions/$name "zsh:../..$zsh/_$name" \
        fish:fish/vendor_completions.d/$name.fish; do
        env "${variable//-/_}=${file%%:*}_source" "$work/$name" |
            install -D -m 0644 /dev/stdin "$destdir/usr/share/${file#*:}"
    done
    pages "$name"
done < <(programs)
sed "s/@DATE@/$date/; s/@VERSION@/$version/" packaging/umount.fuse.gitguardfs.8 |
    install -D -m 0644 /dev/stdin "$man/man8/umount.fuse.gitguardfs.8"

in_package -c 'from gitguardfs.guest.systemd import PACKAGED_COMMAND, changes_unit
print(changes_unit(PACKAGED_COMMAND), end="")' |
    install -D -m 0644 /dev/stdin "$destdir/usr/lib/systemd/system/gitguardfs-changes.service"
unit=$(in_package -c 'from gitguardfs.guest.systemd import PACKAGED_COMMAND, template
print(template(PACKAGED_COMMAND), end="")' && echo .)
printf %s "${unit%.}" |
    install -D -m 0644 /dev/stdin "$destdir/usr/lib/systemd/system/gitguardfs@.service"
