#!/bin/sh
# Set up persistent-sessions for the user who runs this, or bring an installation up to date.
#
#   ./install.sh               install; a second run changes nothing and says so
#   ./install.sh --uninstall   take it away again; state and conversations stay
#
# It writes ~/.local/bin/{persistent-sessions,task-adopt}, ~/.local/lib/persistent-sessions/ and the
# units in ~/.config/systemd/user/.  Everything else is the work of `persistent-sessions install`.
# As root it also installs missing Debian packages, and says which.

set -eu
umask go-w # what the timer runs is nobody else's to write
unset CDPATH

say() { printf 'install.sh: %s\n' "$*"; }
warn() { say "$*" >&2; }
die() { warn "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

here=$(cd "$(dirname "$0")" && pwd -P)
[ -n "${HOME:-}" ] && [ -d "$HOME" ] || die "HOME: not a folder: ${HOME:-not set}"
case ${XDG_CONFIG_HOME:-} in
/*) config=$XDG_CONFIG_HOME ;;
*) config=$HOME/.config ;;
esac
bin=$HOME/.local/bin
lib=$HOME/.local/lib/persistent-sessions
units=$config/systemd/user
python=/usr/bin/python3 # the one that our first line names
program=$bin/persistent-sessions

temporary=
trap '[ -z "$temporary" ] || rm -f "$temporary"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---- Packages -------------------------------------------------------------

has_python() { [ -x "$python" ] && "$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 9))'; }

# Only a machine that systemd has booted has a use for a bus of each user.
lacks_bus() {
    [ -d /run/systemd/system ] && [ ! -e /usr/lib/systemd/user/dbus.socket ] &&
        [ ! -e /lib/systemd/user/dbus.socket ]
}

missing_packages() {
    set --
    [ -x "$python" ] || set -- "$@" python3
    have tmux || set -- "$@" tmux
    have git || set -- "$@" git
    ! lacks_bus || set -- "$@" dbus-user-session
    echo "$*"
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" </dev/null; }

install_packages() { # PACKAGE...
    say "installing packages: $*"
    apt install --no-install-recommends "$@" || { apt update && apt install --no-install-recommends "$@"; }
}

check_tmux() { # tmux 3.2 or newer; a version without a number is a build newer than any
    version=$(tmux -V | sed -n 's/^tmux [a-z-]*\([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p')
    case $version in
    [0-2].* | 3.[01]) die "tmux $version is too old: 3.2 or newer is needed" ;;
    esac
}

need_packages() {
    missing=$(missing_packages)
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && have apt-get; then
        # shellcheck disable=SC2086 # one word for each package
        install_packages $missing || warn "apt-get: could not install: $missing"
        missing=$(missing_packages)
    fi
    if [ -n "$missing" ]; then
        warn "missing packages: $missing"
        if have apt-get; then
            warn "hint: sudo apt-get install $missing"
        fi
    fi
    have tmux || die "nothing was installed: there is no tmux to hold a session"
    has_python || die "nothing was installed: $python is missing or older than 3.9"
    check_tmux
}

# ---- Files ----------------------------------------------------------------

# Replace TARGET by a copy of SOURCE at one blow: what runs at that moment has the old file or the
# new one.  A link is followed, so that a home kept by links keeps them; a unit that its user masked
# is a link to /dev/null, which root could replace.
put() { # SOURCE TARGET MODE
    target=$2
    [ ! -L "$target" ] || target=$(readlink -f "$target")
    if [ -e "$target" ] && [ ! -f "$target" ]; then
        warn "$target, where $2 is to be, is no file"
        [ "$target" != /dev/null ] || warn "hint: systemctl --user unmask ${2##*/}"
        exit 1
    fi
    if cmp -s "$1" "$target" && [ "$(stat -c %a "$target")" = "$3" ]; then
        say "unchanged $2"
        return
    fi
    mkdir -p "${target%/*}"
    temporary=$(mktemp "${target%/*}/.install.XXXXXX")
    cat "$1" >"$temporary"
    chmod "$3" "$temporary"
    sync "$temporary"
    mv -f "$temporary" "$target"
    temporary=
    say "installed $2"
}

link() { # TARGET LINK
    if [ "$(readlink -f "$2" || :)" = "$(readlink -f "$1")" ]; then
        say "unchanged $2"
        return
    fi
    mkdir -p "${2%/*}"
    ln -sfn "$1" "$2"
    say "installed $2"
}

put_files() {
    put "$here/persistent_sessions.py" "$program" 755
    put "$here/task_adopt.py" "$bin/task-adopt" 755
    link "$program" "$lib/persistent_sessions.py"
    link "$bin/task-adopt" "$lib/task_adopt.py"
    # Compiled here once, not at every start of a pane or hook.  Not an error: it only costs time.
    "$python" -IS -m compileall -q -l "$lib" || warn "could not compile $lib"
    for unit in "$here"/units/*; do
        put "$unit" "$units/${unit##*/}" 644
    done
}

drop() { # FILE...
    for path; do
        if [ -e "$path" ] || [ -L "$path" ]; then
            rm -f "$path"
            say "removed $path"
        fi
    done
}

drop_files() { # what `persistent-sessions uninstall` left, if it could not do its work
    drop "$program" "$lib/persistent_sessions.py"
    # A hook that stays in Claude's settings would fail at every start without its program.
    if [ ! -x "$bin/task-adopt" ] || "$bin/task-adopt" uninstall; then
        drop "$bin/task-adopt" "$lib/task_adopt.py"
    else
        warn "kept $bin/task-adopt: its hook is still in Claude's settings"
    fi
    rm -rf "$lib/__pycache__" "$lib/parts"
    drop "$units/persistent-sessions.service" "$units/default.target.wants/persistent-sessions.service"
    drop "$units/persistent-sessions.timer" "$units/timers.target.wants/persistent-sessions.timer"
    folder=$units/persistent-sessions.service.d
    drop "$folder/environment.conf" # other files in there are the user's
    for path in "$lib" "$folder"; do
        [ ! -d "$path" ] || rmdir "$path" 2>/dev/null || say "kept $path: it is not empty"
    done
}

# ---- Commands -------------------------------------------------------------

install() {
    owner=$(stat -Lc %u "$HOME") # the home may be a link that root made
    [ "$owner" = "$(id -u)" ] || die "HOME: $HOME belongs to another user: run this as that user"
    need_packages
    put_files
    status=0
    "$program" install || status=$?
    case :$PATH: in
    *:"$bin":*) ;;
    *) warn "$bin is not on PATH in this shell: log in again, or: PATH=\"$bin:\$PATH\"" ;;
    esac
    listed=0
    "$program" list || listed=$?
    # 1 says that a session needs a person, which is no fault of the installation.
    [ "$listed" -le 1 ] || status=$listed
    [ "$status" = 0 ] || warn "the installation is not complete, see above"
    return "$status"
}

uninstall() {
    status=0
    tool=$program
    [ -x "$tool" ] || tool=$here/persistent_sessions.py
    "$tool" uninstall || status=$?
    drop_files
    systemctl --user daemon-reload 2>/dev/null || : # no user manager: nothing to tell
    say "state and conversations were kept"
    return "$status"
}

usage() {
    warn "$1"
    warn "usage: ./install.sh [--uninstall]"
    exit 2
}

case $# in
0) install ;;
1)
    case $1 in
    --uninstall) uninstall ;;
    -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" ;;
    *) usage "unknown option: $1" ;;
    esac
    ;;
*) usage "too many arguments" ;;
esac
