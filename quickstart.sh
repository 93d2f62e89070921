#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a clone to Python in a microVM: installs what is missing from Debian's packages, builds, installs to
# /usr/local, starts the services, builds the template "base" and runs a first command. Run again it does only
# what is not done yet.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

say() {
        printf '\n== %s\n' "$*"
}
die() {
        printf 'quickstart.sh: %s\n' "$*" >&2
        exit 1
}

# ---- root -------------------------------------------------------------------------------------

if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1; then
                echo "quickstart.sh: setting up a host needs root; asking sudo"
                exec sudo -- "$here/quickstart.sh" "$@"
        fi
        echo "quickstart.sh: setting up a host needs root; asking for root's password (su)"
        # su passes one string to a shell: the path is quoted for it.
        quoted=$(printf '%s\n' "$here/quickstart.sh" | sed "s/'/'\\\\''/g")
        exec su -c "'$quoted'" root
fi
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

command -v apt-get >/dev/null 2>&1 || die "this script installs Debian packages, and there is no apt-get here"
[ "$(dpkg --print-architecture)" = amd64 ] || die "cspace runs on amd64, and this is $(dpkg --print-architecture)"

# ---- packages ---------------------------------------------------------------------------------

build_packages="gcc libc6-dev meson ninja-build pkg-config libuv1-dev libnghttp2-dev libssl-dev libjansson-dev
        libsqlite3-dev libseccomp-dev libcap-ng-dev libmnl-dev libinih-dev libarchive-dev zlib1g-dev
        libext2fs-dev libwslay-dev libpsl-dev libc-ares-dev libcurl4-openssl-dev"
run_packages="qemu-system-x86 mmdebstrap debian-archive-keyring e2fsprogs btrfs-progs nftables iproute2 kmod
        zstd xz-utils lz4 bzip2 procps ca-certificates"

missing=""
for package in $build_packages $run_packages; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
        say "installing Debian packages:$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        # shellcheck disable=SC2086 # one word a package
        apt-get install -y -q --no-install-recommends $missing
fi

# ---- build and install ------------------------------------------------------------------------

build=$here/build
log=$build/quickstart.log
run_logged() {
        "$@" >>"$log" 2>&1 || {
                tail -n 40 "$log" >&2
                die "failed: $* (all output: $log)"
        }
}

# The compiler's own lines go to the log; here stands how far it is: in a terminal always, elsewhere at every quarter.
run_shown() {
        failed=$(mktemp)
        { "$@" 2>&1 || echo "$?" >"$failed"; } | {
                told=0
                while IFS= read -r line; do
                        printf '%s\n' "$line" >>"$log"
                        step=${line#\[}
                        step=${step%%\]*}
                        case $line in
                        "[$step] "*) ;;
                        *) continue ;;
                        esac
                        case $step in
                        *[!0-9/]* | */*/* | /* | */ | */0*) continue ;;
                        */*) at=${step%/*} all=${step#*/} ;;
                        *) continue ;;
                        esac
                        if [ -t 1 ]; then
                                printf '\r%s of %s' "$at" "$all"
                        elif [ $((at * 4 / all)) -gt "$told" ]; then
                                told=$((at * 4 / all))
                                printf '%s of %s\n' "$at" "$all"
                        fi
                done
                [ ! -t 1 ] || printf '\r\033[K'
        }
        code=$(cat "$failed")
        rm -f "$failed"
        if [ -n "$code" ]; then
                tail -n 40 "$log" >&2
                die "failed: $* (all output: $log)"
        fi
}

say "building and installing to /usr/local (a minute or two, once)"
mkdir -p "$build"
: >"$log"
if [ ! -f "$build/build.ninja" ]; then
        # The unit tests need more packages; ./test.sh installs those and turns them on.
        run_logged meson setup "$build" "$here" -Dtests=false
fi
run_shown ninja -C "$build"
# What was installed before and is the same is a mere comment in Meson's list of this installation, by which `ninja
# uninstall` goes, and its folders are not in it: the list before knows them.
installed=$build/meson-logs/install-log.txt
before=$(mktemp)
trap 'rm -f "$before"' EXIT
cat "$installed" >"$before" 2>/dev/null || true
run_logged meson install -C "$build" --no-rebuild --only-changed
all=$(sed 's/^# Preserving old file //' "$installed" "$before" | awk '!seen[$0]++')
printf '%s\n' "$all" >"$installed"
rm -f "$before"
# Where a user cloned, what was built belongs to that user.
chown -R --reference="$here" "$build"

# ---- services and template --------------------------------------------------------------------

cspace=/usr/local/bin/cspace
say "starting the services"
"$cspace" up

if ! "$cspace" template ls --quiet | grep -Eqx 'base(:latest)?'; then
        say "building the template \"base\" (some minutes, once)"
        "$cspace" template build base
fi
# Tells of templates from before an upgrade.
"$cspace" template ls >/dev/null

# ---- the first sandbox ------------------------------------------------------------------------

say "cspace run -- python3 -c 'print(6*7)'"
timing=$(mktemp)
trap 'rm -f "$timing"' EXIT
output=$("$cspace" run --timing-file "$timing" -- python3 -c 'print(6*7)')
value() {
        sed -n "s/.*\"$1\": *\\([0-9]*\\).*/\\1/p" "$timing"
}

printf '%s\n\ncreate %s ms, command %s ms\n\nTry next:\n' "$output" "$(value create_ms)" "$(value command_ms)"
printf '  %s\n' \
        "cspace run -- sh -c 'id -un; uname -sr; date'" \
        'id=$(cspace create --quiet --ttl 1h) && cspace shell $id' \
        'cspace doctor'
