#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need from Debian's packages, runs every test, and ends with the line
# "N passed, N failed, N skipped". Arguments are names of stages (tests/run.py --list).
set -eu
cd "$(dirname "$0")"

if [ "$(id -u)" -ne 0 ]; then
        echo "test.sh: the tests make namespaces, mounts and users; run it as root" >&2
        exit 1
fi

needed="build-essential meson ninja-build pkg-config git ca-certificates
        libuv1-dev libnghttp2-dev libssl-dev libjansson-dev libsqlite3-dev libseccomp-dev libcap-ng-dev
        libmnl-dev libinih-dev libarchive-dev zlib1g-dev libext2fs-dev libcmocka-dev libwslay-dev libldns-dev libpsl-dev libc-ares-dev libcurl4-openssl-dev
        qemu-system-x86 mmdebstrap debian-archive-keyring e2fsprogs btrfs-progs xfsprogs nftables iproute2 cpio zstd xz-utils lz4 kmod procps
        clang-14 llvm-14 libclang-rt-14-dev cppcheck python3-pytest python3-yaml python3-jsonschema curl tmux strace man-db
        bash-completion apt-utils busybox-static mandoc nginx-light dnsmasq-base nghttp2-client nghttp2-server python3-requests"
missing=""
for package in $needed; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
command -v node >/dev/null && command -v npm >/dev/null || missing="$missing nodejs npm"
if [ -n "$missing" ]; then
        echo "== installing:$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q >/dev/null
        # shellcheck disable=SC2086 # one word a package
        apt-get install -y -q --no-install-recommends $missing >/dev/null
fi

exec /usr/bin/python3 tests/run.py "$@"
