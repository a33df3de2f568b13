#!/bin/sh
# Install the system libraries that Qt needs and that are missing; silent when all are there.
#   system-libraries.sh [offscreen] [x11] [wayland]
# offscreen is for the tests and the command line; x11 and wayland add what a window there needs.
set -eu
[ "$(uname -s)" = Linux ] || exit 0

# set, library, package of Debian and Ubuntu (newest name first), of Fedora, of Arch
table() {
    cat <<'TABLE'
offscreen libGL.so.1             libgl1                       mesa-libGL            libglvnd
offscreen libEGL.so.1            libegl1                      mesa-libEGL           libglvnd
offscreen libX11.so.6            libx11-6                     libX11                libx11
offscreen libxkbcommon.so.0      libxkbcommon0                libxkbcommon          libxkbcommon
offscreen libfontconfig.so.1     libfontconfig1               fontconfig            fontconfig
offscreen libfreetype.so.6       libfreetype6                 freetype              freetype2
offscreen libglib-2.0.so.0       libglib2.0-0t64|libglib2.0-0 glib2                 glib2
offscreen libdbus-1.so.3         libdbus-1-3                  dbus-libs             dbus
x11       libX11-xcb.so.1        libx11-xcb1                  libX11-xcb            libx11
x11       libxkbcommon-x11.so.0  libxkbcommon-x11-0           libxkbcommon-x11      libxkbcommon-x11
x11       libxcb-cursor.so.0     libxcb-cursor0               xcb-util-cursor       xcb-util-cursor
x11       libxcb-icccm.so.4      libxcb-icccm4                xcb-util-wm           xcb-util-wm
x11       libxcb-image.so.0      libxcb-image0                xcb-util-image        xcb-util-image
x11       libxcb-keysyms.so.1    libxcb-keysyms1              xcb-util-keysyms      xcb-util-keysyms
x11       libxcb-randr.so.0      libxcb-randr0                libxcb                libxcb
x11       libxcb-render-util.so.0 libxcb-render-util0         xcb-util-renderutil   xcb-util-renderutil
x11       libxcb-shape.so.0      libxcb-shape0                libxcb                libxcb
x11       libxcb-xkb.so.1        libxcb-xkb1                  libxcb                libxcb
wayland   libwayland-client.so.0 libwayland-client0           libwayland-client     wayland
wayland   libwayland-cursor.so.0 libwayland-cursor0           libwayland-cursor     wayland
wayland   libwayland-egl.so.1    libwayland-egl1              libwayland-egl        wayland
TABLE
}

font_is_there() {
    for folder in /usr/share/fonts /usr/local/share/fonts "${HOME:-/}/.local/share/fonts" "${HOME:-/}/.fonts"; do
        [ ! -d "$folder" ] || [ -z "$(find "$folder/" -name '*.[to]t[fc]' | head -n 1)" ] || return 0
    done
    return 1
}

# Prints the rows of the table whose library the dynamic linker does not know.
missing() {
    linked=$(PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null) || linked=""
    table | while read -r set library debian fedora arch; do
        case " $wanted " in *" $set "*) ;; *) continue ;; esac
        case "$linked" in *"$library "*) ;; *) echo "$library $debian $fedora $arch" ;; esac
    done
    font_is_there || echo "a-font fonts-dejavu-core dejavu-sans-fonts ttf-dejavu"
}

wanted="${*:-offscreen}"
rows=$(missing)
[ -n "$rows" ] || exit 0
packages() { echo "$rows" | awk -v column="$1" '!seen[$column]++ { printf "%s ", $column }'; }

if command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2046  # one word for each package
    exec "$(dirname "$0")/install-packages.sh" $(packages 2)
elif command -v dnf >/dev/null 2>&1; then
    echo "Qt needs libraries that are missing; install them with: dnf install $(packages 3)" >&2
elif command -v pacman >/dev/null 2>&1; then
    echo "Qt needs libraries that are missing; install them with: pacman -S $(packages 4)" >&2
else
    echo "Qt may not start, these libraries were not found: $(packages 1)" >&2
fi
