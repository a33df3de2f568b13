#!/bin/sh
# Put precgui into the menu of the desktop of this user (Linux), or take it out again with --remove.
#   install-desktop.sh [--remove]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
share=${XDG_DATA_HOME:-$HOME/.local/share}
entry=$share/applications/precgui.desktop
icon=$share/icons/hicolor/scalable/apps/precgui.svg

if [ "${1:-}" = --remove ]; then
    rm -f "$entry" "$icon"
    exit
fi

if [ -x "$here/../.venv/bin/precgui" ]; then
    program=$(cd "$here/../.venv/bin" && pwd)/precgui
elif ! program=$(command -v precgui); then
    echo "precgui is not installed yet; run make run or pip install . first" >&2
    exit 1
fi
mkdir -p "$(dirname "$entry")" "$(dirname "$icon")"
sed "s|^Exec=precgui|Exec=\"$program\"|" "$here/precgui.desktop" >"$entry"
cp "$here/../resources/icons/app.svg" "$icon"
if command -v update-desktop-database >/dev/null 2>&1; then
    update-desktop-database -q "$(dirname "$entry")"
fi
