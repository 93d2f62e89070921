#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# PID 1 of the outer machine of tests/kvm/run: starts cspace there and uses it on KVM.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t tmpfs tmp /run
busybox mount -t tmpfs tmp /tmp
mkdir -p /dev/pts /dev/shm && busybox mount -t devpts pts /dev/pts
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
say() { echo "KVM: $*" >/dev/ttyS0; }
finish() {
        say "verdict $1"
        sync
        busybox poweroff -f
}
fail() {
        say "FAILED: $*"
        tail -n 30 /var/log/cspace/*.log >/dev/ttyS0 2>&1
        finish failed
}
now() { cut -d' ' -f1 /proc/uptime; }
# name, expected output, command...
expect() {
        name=$1 want=$2
        shift 2
        got=$("$@" 2>/tmp/err)
        code=$?
        [ $code -eq 0 ] || fail "$name: exit code $code: $(cat /tmp/err)"
        [ "$got" = "$want" ] || fail "$name: got \"$got\", expected \"$want\""
        say "ok $name ($(now))"
}

exec >/dev/ttyS0 2>&1 </dev/null
say "up ($(now))"
modprobe kvm_amd nested=0 || fail "no kvm_amd"
for m in tun loop btrfs nf_tables nft_counter veth; do modprobe $m 2>/dev/null; done
[ -c /dev/kvm ] || fail "no /dev/kvm"

# Kernel packages come from a folder: the outer machine has no network.
mkdir -p /etc/cspace
echo "deb [trusted=yes] file:/kvm/archive ./" >/etc/cspace/build.list
printf '[build]\nsources = /etc/cspace/build.list\n[sandbox]\nmemory_mb = 256\n' >/etc/cspace/cspace.conf
cspace up >/tmp/up.log 2>&1 || { cat /tmp/up.log; fail "cspace up"; }
say "ok up ($(now))"
cspace doctor
expect engine "ok   engine     qemu-kvm" sh -c "cspace doctor | sed -n 's/^\(.*engine *qemu-[a-z]*\):.*/\1/p'"

cspace template build mini --tar /kvm/guest.tar --disk 256M >/tmp/build.log 2>&1 ||
        { tail -n 20 /tmp/build.log; fail "template build"; }
say "ok template build ($(now))"

expect "run" 42 cspace run --template mini --memory 256M -- sh -c 'echo $((6*7))'
id=$(cspace create --template mini --memory 256M --quiet) || fail "create: $id"
say "ok create ($(now))"
expect "exec as root" 0 cspace exec --user root "$id" -- id -u
# Of all host processes of a sandbox that has run a command; docs/performance.md has the limit.
own=$(cspace info "$id" --json | grep -o '"memory_bytes":[0-9]*' | cut -d: -f2)
[ "${own:-0}" -gt 1048576 ] && [ "$own" -le 16777216 ] || fail "private memory: \"$own\" bytes, at most 16777216"
say "ok private memory: $own bytes ($(now))"
expect "clock source of KVM" kvm-clock cspace exec "$id" -- cat /sys/devices/system/clocksource/clocksource0/current_clocksource
head -c 1000000 /dev/urandom >/tmp/data
cspace cp /tmp/data "$id:/tmp/data" || fail "cp in"
expect "file in" "$(sha256sum </tmp/data)" cspace exec "$id" -- sh -c 'sha256sum </tmp/data'
cspace cp "$id:/tmp/data" /tmp/back || fail "cp out"
cmp /tmp/data /tmp/back || fail "the file came back changed"
say "ok files ($(now))"
cspace exec "$id" -- sh -c 'exit 7'
[ $? -eq 7 ] || fail "exit code"
cspace rm "$id" || fail "rm"
expect "nothing left" 0 sh -c 'pgrep -c qemu-system || true'
cspace down || fail "down"
finish passed
