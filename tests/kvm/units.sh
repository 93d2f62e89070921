#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In the outer machine of tests/kvm/run --systemd, started by systemd when all else is up: the installed units.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
say() { echo "KVM: $*" >/dev/ttyS0; }
finish() {
        say "verdict $1"
        sync
        systemctl poweroff --force --force
}
fail() {
        say "FAILED: $*"
        systemctl status --no-pager -n 30 cspaced cspace-rootd >/dev/ttyS0 2>&1
        finish failed
        exit 1
}
now() { cut -d' ' -f1 /proc/uptime; }
pid() { systemctl show --property MainPID --value "$1"; }
# Awaits what a restart by systemd takes: the command succeeds, or a minute is over.
until_ok() {
        what=$1 i=0
        shift
        while ! "$@" >/dev/null 2>&1; do
                i=$((i + 1))
                [ $i -lt 120 ] || fail "$what"
                sleep 0.5
        done
        say "ok $what ($(now))"
}
another() { p=$(pid "$1"); [ "$p" != 0 ] && [ "$p" != "$2" ]; }
answers() { curl -sf --unix-socket /run/cspace/api.sock http://x/health; }

say "up ($(now))"
for unit in cspace-rootd cspaced; do
        [ "$(systemctl is-active $unit)" = active ] || fail "$unit is $(systemctl is-active $unit)"
done
say "ok both are active after boot ($(now))"
until_ok "the API answers" answers
[ "$(stat -c %U /proc/"$(pid cspaced)")" = cspace ] || fail "cspaced does not run as cspace"
cspace doctor >/tmp/doctor
grep -q '^ok *api' /tmp/doctor || { cat /tmp/doctor >/dev/ttyS0; fail "doctor: the API"; }
for unit in cspace-rootd cspaced; do
        grep -q "^ok *$unit *runs" /tmp/doctor || { cat /tmp/doctor >/dev/ttyS0; fail "doctor: $unit"; }
done
say "ok doctor ($(now))"
curl -sf --unix-socket /run/cspace/api.sock http://x/v1/host | grep -q '"rootd":"connected"' || fail "cspaced does not reach cspace-rootd"
say "ok cspaced reaches cspace-rootd ($(now))"

for unit in cspaced cspace-rootd; do
        was=$(pid $unit)
        kill -9 "$was"
        until_ok "$unit is started again after kill -9" another $unit "$was"
done
until_ok "the API answers again" answers

systemctl stop cspaced || fail "stop cspaced"
[ "$(pid cspaced)" = 0 ] || fail "cspaced runs on after stop"
cspace up >/tmp/up 2>&1 || { cat /tmp/up >/dev/ttyS0; fail "cspace up with systemd"; }
[ "$(systemctl is-active cspaced)" = active ] || fail "cspace up did not start the unit"
answers || fail "no answer after cspace up"
say "ok cspace up starts the unit ($(now))"
cspace down >/tmp/down 2>&1 || { cat /tmp/down >/dev/ttyS0; fail "cspace down with systemd"; }
for unit in cspace-rootd cspaced; do
        [ "$(systemctl is-active $unit)" = inactive ] || fail "$unit is $(systemctl is-active $unit) after cspace down"
done
say "ok cspace down stops both ($(now))"
systemctl start cspaced || fail "start cspaced"
until_ok "cspaced brings cspace-rootd with it" systemctl is-active --quiet cspace-rootd
until_ok "the API answers after start" answers
finish passed
