#!/usr/bin/env bash
# Try the commands of the README in a new Debian that has Python, make and git and nothing else: no compiler, no Qt
# libraries, no fonts.
#   fresh-machine.sh FOLDER [bookworm|trixie] [TARGET...]      as root
# bookworm has Python 3.11 (default), trixie 3.13; the targets are `run` and `test` unless others are named. FOLDER is made
# and kept, takes 9 GB, and holds the output of each target as TARGET.log. Package sources, certificates and settings of pip
# are those of this machine. Only what is committed is tried.
# Exit code: 0 all targets passed, 1 one failed, 3 no such machine can be made here.
set -euo pipefail

cannot() {
    echo "fresh-machine.sh: $1" >&2
    exit 3
}

[ $# -ge 1 ] || cannot "name a folder for the new machine: fresh-machine.sh FOLDER [bookworm|trixie] [TARGET...]"
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
suite=${2:-bookworm}
targets=("${@:3}")
[ ${#targets[@]} -gt 0 ] || targets=(run test)
root=$folder/$suite

[ "$(id -u)" -eq 0 ] || cannot "only root can make a new machine; call it with sudo"
command -v apt-get >/dev/null || cannot "debootstrap comes from Debian or Ubuntu, and this is neither"
command -v debootstrap >/dev/null || "$checkout/packaging/install-packages.sh" debootstrap || cannot "debootstrap could not be installed"
free_kib=$(df --output=avail "$folder" | tail -n 1)
[ -d "$root/home" ] || [ "$free_kib" -gt $((10 * 1024 * 1024)) ] || cannot "$folder has less than 10 GiB free"

# The first source of packages of this machine that is one of Debian itself; debootstrap knows the usual one.
mirror() {
    { grep -rhsE '^(URIs:|deb )' /etc/apt/sources.list /etc/apt/sources.list.d || true; } |
        sed -E 's/^URIs: *//; s/^deb (\[[^]]*\] )?//' | awk '{ print $1 }' | grep -m 1 -E '/debian/?$' || true
}

make_machine() {
    local source
    source=$(mirror)
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,make,git "$suite" "$root" $source \
        >"$folder/debootstrap.log" 2>&1 || cannot "debootstrap failed; its output is in $folder/debootstrap.log"
}

# How this machine reaches its packages: names of hosts, certificates, settings of apt and pip.
copy_settings() {
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
    rm -rf "$root/etc/ssl/certs"
    cp -rL /etc/ssl/certs "$root/etc/ssl/"
    mkdir -p "$root/root"
    local place
    for place in /etc/pip.conf "$HOME/.config/pip" "$HOME/.pip"; do
        [ ! -e "$place" ] || { mkdir -p "$root/$(dirname "${place/#$HOME/\/root}")"; cp -r "$place" "$root/${place/#$HOME/\/root}"; }
    done
}

# Folders that the settings of pip name as sources of packages.
local_packages() {
    { python3 -m pip config list; env | grep '^PIP_'; } 2>/dev/null | grep -oE "(file://)?/[A-Za-z0-9._/-]+" |
        sed -E 's#^file://##; s#/simple/?$##' | grep -v '^/etc' | sort -u || true
}

# In a mount namespace of its own, so that nothing stays mounted, however this ends.
make_target() {
    local binds settings
    binds=$(local_packages)
    settings=$(env | grep -E '^(PIP_|SSL_|REQUESTS_|CURL_CA|https?_proxy=|no_proxy=)' || true)
    unshare --mount --pid --fork --kill-child bash -s -- "$root" "$1" "$binds" "$settings" <<'INSIDE'
set -eu
root=$1 target=$2 binds=$3 settings=$4
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for place in $binds; do
    [ ! -d "$place" ] || { mkdir -p "$root$place"; mount --bind "$place" "$root$place"; }
done
# shellcheck disable=SC2086  # one word for each setting
exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 $settings \
    make --no-print-directory -C /root/project "$target" </dev/null
INSIDE
}

[ -d "$root/home" ] || make_machine
copy_settings
rm -rf "$root/root/project"
git clone -q "$checkout" "$root/root/project"
failed=0
for target in "${targets[@]}"; do
    log=$folder/$suite-$(basename "$target").log
    make_target "$target" >"$log" 2>&1 && status=0 || { status=$? failed=1; }
    grep -E '^(FAILED|ERROR)' "$log" | cut -c1-200 || true
    echo "$suite: make $target: exit code $status; $(grep -vE '^\s*$' "$log" | tail -n 1 | cut -c1-200)"
done
exit "$failed"
