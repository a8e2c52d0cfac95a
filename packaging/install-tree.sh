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

install -d "$destdir$modules/guest-setup"
cp -RL gitguardfs "$destdir$modules/"
find "$destdir$modules" -depth -type d -name __pycache__ -exec rm -rf '{}' ';'
chmod -R u=rwX,go=rX "$destdir$modules"
install -m 0644 guest-setup/{common,steps}.sh "$destdir$modules/guest-setup"
install -m 0755 guest-setup/{install,refuse-removal,vm-apps}.sh "$destdir$modules/guest-setup"

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

in_package -m gitguardfs.commands.shared_files "$destdir/usr/share"
if [[ "$zsh" != /usr/share/zsh/site-functions ]]; then
    install -d "$destdir$(dirname "$zsh")"
    mv -T "$destdir/usr/share/zsh/site-functions" "$destdir$zsh"
fi

unit=$(in_package -c 'from gitguardfs.guest.systemd import PACKAGED_COMMAND, template
print(template(PACKAGED_COMMAND), end="")' && echo .)
printf %s "${unit%.}" |
    install -D -m 0644 /dev/stdin "$destdir/usr/lib/systemd/system/gitguardfs@.service"
