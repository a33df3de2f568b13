#!/bin/sh
# Install Debian or Ubuntu packages, or say in one sentence who can.
#   install-packages.sh PACKAGE...
# A name may list alternatives, newest first, joined by "|": libglib2.0-0t64|libglib2.0-0.
set -eu

if [ "$(id -u)" -eq 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1; then
    as_root="sudo"
else
    names=$(echo "$@" | sed 's/[^ ]*|//g')
    echo "precgui needs packages that only root may install; ask for: apt-get install $names" >&2
    exit 1
fi

# The names of the packages changed with Debian 13 and Ubuntu 24.04: take the first that apt knows.
known() {
    for name in $(echo "$1" | tr '|' ' '); do
        if [ -n "$(apt-cache show --no-all-versions "$name" 2>/dev/null)" ]; then
            echo "$name"
            return
        fi
    done
    echo "${1##*|}"
}

echo "Installing system packages: $(echo "$@" | sed 's/[^ ]*|//g')"
# An unreachable extra repository must not stop the installation from the others.
$as_root apt-get update -qq || true
packages=""
for wanted in "$@"; do
    packages="$packages $(known "$wanted")"
done
# shellcheck disable=SC2086  # word splitting is wanted: one word for each package
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $packages >/dev/null; then
    echo "The installation failed; read the lines above, then run: apt-get install$packages" >&2
    exit 1
fi
