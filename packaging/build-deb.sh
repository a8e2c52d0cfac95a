#!/usr/bin/env bash
# Builds the Debian package of this checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<END
Usage: packaging/${0##*/} [DIRECTORY]

Builds gitguardfs_VERSION_all.deb and leaves it in DIRECTORY, dist by default. It can be installed
on Debian 12 and 13 and Ubuntu 24.04 and later, whatever it was built on. Needs no root, and the
packages debhelper, dh-python, help2man and python3-click.
END
}

[[ "${1:-}" != -h && "${1:-}" != --help ]] || { usage && exit; }
if (($# > 1)) || [[ "${1:-}" == -* ]]; then
    usage >&2
    exit 2
fi
output=$(realpath -m -- "${1:-dist}")
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' gitguardfs/__init__.py)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/gitguardfs-$version
mkdir -p "$tree" "$output"
cp -R --parents gitguardfs guest-setup packaging docs benchmarks/results pyproject.toml \
    CHANGELOG.md CONTRIBUTING.md LICENSE README.md SECURITY.md "$tree"
mv "$tree/packaging/debian" "$tree/debian"
cat >"$tree/debian/changelog" <<END
gitguardfs ($version) unstable; urgency=medium

  * See /usr/share/doc/gitguardfs/changelog.gz.

 -- The gitguardfs developers <gitguardfs@example.org>  $(LC_ALL=C date -R -u -d "@$epoch")
END

# -I: nothing is compiled, so the packages of build-essential are not needed.
(cd "$tree" && dpkg-checkbuilddeps -I && dpkg-buildpackage --build=binary --no-sign -d)
mv "$work/gitguardfs_${version}_all.deb" "$output/"
echo "$output/gitguardfs_${version}_all.deb"
