#!/bin/sh
# Make the virtual environment of a checkout with the first Python that is new enough.
#   make-environment.sh FOLDER       $PYTHON names another interpreter to use
set -eu
folder=$1

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

choose() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    found=$(${PYTHON:-python3} --version 2>&1 | tail -n 1) || found="no python3"
    echo "precgui needs Python 3.11, 3.12 or 3.13 and found $found; install one, or name it: make PYTHON=python3.12" >&2
    return 1
}

python=$(choose)
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "$python cannot make virtual environments; install its venv module (python3-venv or python3-pip)" >&2
        exit 1
    fi
    "$(dirname "$0")/install-packages.sh" "python$version-venv"
fi
"$python" -m venv --clear "$folder"
