# SPDX-License-Identifier: Apache-2.0
"""A real VM under QEMU: boot, snapshot, restore, and everything that can go wrong between."""
import hashlib
import json
import os
import socket
import time

import pytest

import agent
import launcher
from launcher import IDENTITY, IpcError, proc_memory


def digest(path):
    h = hashlib.sha256()
    with open(path, 'rb') as f:
        while piece := f.read(1 << 20):
            h.update(piece)
    return h.hexdigest()


def test_variant_files(variant):
    mem = os.stat(variant + '/mem')
    assert mem.st_size == 256 << 20
    assert 10 << 20 < mem.st_blocks * 512 < 200 << 20
    assert 10000 < os.stat(variant + '/state').st_size < 1 << 20


def test_identity_reaches_the_guest(vms):
    p = vms.ready()
    assert p.times['spawn_us'] > 0 and p.times['load_us'] > 0 and p.times['link_us'] > 0
    before = time.time()
    r = agent.run(p, ['/bin/sh', '-c', 'echo $FROM_TEST $(hostname) $(date +%s)'])
    env, host, now = r.stdout.decode().split()
    assert (env, host) == ('yes', 'sandbox')
    assert int(before - 0.1) <= int(now) <= int(time.time() + 0.1)
    status, body, _ = agent.answer(agent.start(p, ['/bin/true'], token='wrong'))
    assert status == 401 or b'unauthenticated' in body, (status, body)


def test_commands_wait_for_the_identity(vms):
    p = vms.restore()
    c = p.ctl()
    c.wait_state('running')
    d = agent.start(p, ['/bin/echo', 'done'])
    d.sock.settimeout(1)
    with pytest.raises((TimeoutError, socket.timeout)):
        d.sock.recv(1)
    c.identify()
    d.sock.settimeout(60)
    status, body, proper = agent.answer(d)
    assert status == 200 and proper and b'"exited":true' in body


def test_clones_differ_and_leave_the_template_alone(vms, variant):
    before = {n: digest(f'{variant}/{n}') for n in ('mem', 'state', 'disk.img')}
    a, b = vms.ready(), vms.ready()
    secrets = []
    for p in (a, b):
        r = agent.run(p, ['/bin/sh', '-c', 'head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; '
                                           'echo mine >/root/file; sync'])
        secrets.append(r.stdout)
    assert len(set(secrets[0].split()) & set(secrets[1].split())) < 8
    assert secrets[0] != secrets[1]
    assert {n: digest(f'{variant}/{n}') for n in before} == before
    a.destroy()
    assert agent.run(b, ['/bin/cat', '/root/file']).stdout == b'mine\n'


def test_fork_bomb_leaves_room_for_a_command(vms):
    """A command may take a share of the processes, so another one can be started; and a kill ends all of it."""
    p = vms.ready()
    total = int(agent.run(p, ['/bin/cat', '/sys/fs/cgroup/cspace/pids.max']).stdout)
    share = int(agent.run(p, ['/bin/sh', '-c', 'cat /sys/fs/cgroup$(sed s/^0::// /proc/self/cgroup)/pids.max']).stdout)
    assert total / 4 < share <= total / 2
    # Its processes hold what they got: that is what keeps others out.
    script = 'b() { b & b & exec sleep 1000; }; b & while :; do sleep 100; done'
    d = agent.start(p, ['/bin/sh', '-c', script])
    end = time.monotonic() + 150
    while True:
        r = agent.run(p, ['/bin/sh', '-c', 'cat /sys/fs/cgroup/cspace/pids.current'])
        assert r.ok, r.stderr
        if int(r.stdout) > share - 5:
            break
        assert time.monotonic() < end, r.stdout
    assert int(r.stdout) < total
    assert agent.run(p, ['/bin/sh', '-c', 'for i in 1 2 3; do /bin/true || exit 1; done']).ok
    bomb = agent.pid_of(p, script)
    status, body, _ = agent.answer(agent.request(
        p, 'POST', '/process.Process/SendSignal',
        json.dumps({'process': {'pid': bomb}, 'signal': 'SIGNAL_SIGKILL'}).encode(),
        {'Content-Type': 'application/json', 'Connect-Protocol-Version': '1'}))
    assert status == 200, body
    d.close()
    end = time.monotonic() + 60
    while int(agent.run(p, ['/bin/cat', '/sys/fs/cgroup/cspace/pids.current']).stdout) > 20:
        assert time.monotonic() < end


def sizes(p):
    """Bytes of the disk and of the root filesystem, as the guest sees them."""
    r = agent.run(p, ['/bin/sh', '-c', 'cat /sys/block/vda/size; stat -f -c "%b %S" /'])
    sectors, blocks, size = map(int, r.stdout.split())
    return sectors * 512, blocks * size


def test_larger_disk_reaches_the_guest(vms):
    """The snapshot knows the template's disk; a clone that was given more has it, disk and filesystem."""
    disk, fs = sizes(vms.ready())
    assert disk == 192 << 20 and fs < 192 << 20
    p = vms.ready(disk_bytes=2 << 30)
    disk, fs = sizes(p)
    assert disk == 2 << 30 and 1900 << 20 < fs <= 2 << 30
    agent.run(p, ['/bin/sh', '-c', 'dd if=/dev/zero of=/root/big bs=1M count=300 2>/dev/null && sync'])
    assert agent.run(p, ['/bin/sh', '-c', 'stat -c %s /root/big']).stdout.strip() == b'314572800'
    p.kill('warden')
    p.adopt()
    p.ctl().wait_state('running')
    assert sizes(p)[0] == 2 << 30


def test_larger_disk_of_a_vm_that_was_taken_over(vms):
    """The warden is lost before the guest has its identity: the next one sees to the disk as well."""
    p = vms.restore(disk_bytes=1 << 30)
    p.ctl().wait_state('running')
    p.kill('warden')
    p.adopt()
    p.ctl().identify()
    disk, fs = sizes(p)
    assert disk == 1 << 30 and fs > 900 << 20


def test_files_of_the_vm_process(vms):
    """What the VM holds, and what it was left with to do harm."""
    p = vms.ready()
    fds = {}
    for fd in os.listdir(f'/proc/{p.stub}/fd'):
        with open(f'/proc/{p.stub}/fdinfo/{fd}') as f:
            flags = int(next(line.split()[1] for line in f if line.startswith('flags:')), 8)
        fds[int(fd)] = (os.readlink(f'/proc/{p.stub}/fd/{fd}'), flags & os.O_ACCMODE)
    mem = [v for v in fds.values() if v[0].endswith('/variant/mem')]
    assert mem and all(mode == os.O_RDONLY for _, mode in mem)
    writable = {path for path, mode in fds.values() if path.startswith('/') and mode != os.O_RDONLY}
    assert {w for w in writable if not w.startswith('/dev/')} == {p.disk}
    assert 5 not in fds or 'socket' not in fds[5][0]
    for pid in (p.stub, p.warden):
        status = open(f'/proc/{pid}/status').read()
        assert 'Seccomp:\t2' in status and 'NoNewPrivs:\t1' in status
    assert os.stat(f'/proc/{p.warden}/fd').st_uid == 0  # not dumpable: its own uid may not look
    assert not [fd for fd in os.listdir(f'/proc/{p.warden}/fd')
                if os.readlink(f'/proc/{p.warden}/fd/{fd}').startswith(vms.variant)]
    argv = open(f'/proc/{p.stub}/cmdline').read()
    assert IDENTITY['accessToken'] not in argv


def test_bulk_transfer(vms):
    p = vms.ready()
    blob = os.urandom(3 << 20)
    agent.put(p, '/tmp/blob', blob)
    assert hashlib.sha256(agent.get(p, '/tmp/blob')).digest() == hashlib.sha256(blob).digest()
    q = p.c.query()
    assert q['bytes_in'] > 3 << 20 and q['bytes_out'] > 3 << 20


def test_reader_that_stops(vms):
    """A command that prints without end is held back in the guest; the warden keeps nothing of it."""
    p = vms.ready()
    d = agent.start(p, ['/bin/sh', '-c', 'yes'])
    assert d.sock.recv(1000)
    time.sleep(2)
    before = p.c.query()['bytes_in']
    memory = proc_memory(p.warden)
    time.sleep(1)
    assert p.c.query()['bytes_in'] - before < 65536
    assert memory < 4096
    assert agent.run(p, ['/bin/true']).ok
    d.close()


def test_ports(vms):
    p = vms.ready()
    assert p.data(8080).line == '502 closed'
    d = agent.start(p, ['/bin/sh', '-c', 'echo ready; echo hello from the guest | nc -l -p 8080'])
    got = b''
    while b'cmVhZHkK' not in got:  # "ready\n"
        got += d.sock.recv(4096)
    end = time.monotonic() + 20
    while True:
        s = p.data(8080)
        if s.ok:
            break
        assert time.monotonic() < end
    got, proper = s.read_end()
    assert got == b'hello from the guest\n' and proper


def test_vm_is_killed(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/sleep', '1000'])
    assert d.sock.recv(1000)
    p.kill('stub')
    _, proper = d.read_end()
    assert not proper
    q = p.c.wait_state(('failed', 'exited'))
    assert q['state'] == 'failed' and 'QEMU' in q['reason']
    assert p.data(49983).line.startswith('503')
    with pytest.raises(IpcError):
        p.c.identify()


def test_stop(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/sh', '-c', 'trap "echo bye >/root/trapped; sync; exit 0" TERM; echo up; '
                                         'while :; do sleep 0.1; done'])
    assert d.sock.recv(1000)
    p.c.stop(10000)
    assert p.c.query()['state'] == 'exited'
    assert p.c.query()['reason'] == 'the guest powered off'
    p.wait_vm_end(10)


def test_guest_powers_off_by_itself(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/poweroff', '-f'])
    d.read_end()
    q = p.c.wait_state(('failed', 'exited'))
    assert (q['state'], q['reason']) == ('exited', 'the guest powered off')
    p.wait_vm_end(10)


def test_guest_reboots(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/reboot', '-f'])
    d.read_end()
    q = p.c.wait_state(('failed', 'exited'))
    assert (q['state'], q['reason']) == ('exited', 'the guest rebooted')
    p.wait_vm_end(10)


def test_kernel_panic(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/sh', '-c', 'echo c >/proc/sysrq-trigger'])
    _, proper = d.read_end()
    assert not proper
    assert p.c.wait_state(('failed', 'exited'))['state'] == 'exited'
    p.wait_vm_end(10)


def test_warden_dies_and_another_takes_over(vms):
    p = vms.ready()
    d = agent.start(p, ['/bin/sleep', '1000'])
    assert d.sock.recv(1000)
    assert agent.run(p, ['/bin/sh', '-c', 'echo kept >/tmp/memory']).ok
    p.kill('warden')
    _, proper = d.read_end()
    assert not proper
    assert p.vm_alive()
    for _ in range(3):
        p.adopt()
        p.c = p.ctl()
        q = p.c.wait_state('running', 30)
        assert q['identified'] == 1
        with pytest.raises(IpcError, match='already'):
            p.c.identify()
        assert agent.run(p, ['/bin/cat', '/tmp/memory']).stdout == b'kept\n'
        p.kill('warden')
    p.adopt()
    p.c = p.ctl()
    p.c.wait_state('running', 30)
    p.c.stop()
    p.wait_vm_end(10)


def test_takeover_before_the_identity(vms):
    p = vms.restore()
    p.ctl().wait_state('running')
    p.kill('warden')
    p.adopt()
    c = p.ctl()
    assert c.wait_state('running', 30)['identified'] == 0
    c.identify()
    assert agent.run(p, ['/bin/true']).ok


def test_takeover_while_loading(vms):
    """Killed at any time between the start and the first session: the VM is adopted or reported as lost."""
    for ms in (0, 5, 20, 40, 60, 90, 130, 200):
        p = vms.restore()
        time.sleep(ms / 1000)
        p.kill('warden')
        p.adopt()
        c = p.ctl()
        q = c.wait_state(('running', 'paused', 'failed', 'exited'), 60)
        if q['state'] in ('running', 'paused'):
            c.identify()
            assert agent.run(p, ['/bin/true']).ok
        else:
            assert q['reason']
        p.destroy()


def test_takeover_of_a_vm_that_is_gone(vms):
    p = vms.ready()
    p.kill('warden')
    p.kill('stub')
    p.adopt()
    assert p.ctl().wait_state('failed', 20)['reason']


def test_broken_state(vms, variant, room):
    bad = room + '/bad-state'
    data = open(variant + '/state', 'rb').read()
    for content in (b'', data[:100], data[:len(data) // 2], data[:200] + os.urandom(300) + data[500:], b'\0' * 5000):
        with open(bad, 'wb') as f:
            f.write(content)
        p = launcher.Placement(vms.build, room + '/broken')
        vms.made.append(p)
        p.disk = room + '/broken.img'
        files = launcher.restore_files(variant, p.disk)
        os.close(files[9])
        files[9] = os.open(bad, os.O_RDONLY)
        p.launch('restore', files)
        q = p.ctl().wait_state(('failed', 'exited', 'running'), 60)
        assert q['state'] == 'failed' and q['reason'], q
        p.destroy()


def test_wrong_memory_size(vms, variant, room):
    p = launcher.Placement(vms.build, room + '/wrong', memory=512)
    vms.made.append(p)
    p.disk = room + '/wrong.img'
    p.launch('restore', launcher.restore_files(variant, p.disk))
    q = p.ctl().wait_state(('failed', 'exited', 'running'), 60)
    assert q['state'] == 'failed' and q['reason'], q


def test_missing_descriptor(vms, variant, room):
    p = launcher.Placement(vms.build, room + '/missing')
    vms.made.append(p)
    p.disk = room + '/missing.img'
    files = launcher.restore_files(variant, p.disk)
    os.close(files.pop(9))
    p.launch('restore', files)
    q = p.ctl().wait_state(('failed', 'exited', 'running'), 20)
    assert q['state'] == 'failed' and 'descriptor' in q['reason']


def test_stub_that_cannot_exec(vms):
    p = vms.restore(stub_binary='/bin/false')
    q = p.ctl().wait_state(('failed', 'exited', 'running'), 20)
    assert q['state'] == 'failed' and q['reason']


def test_console_flood(vms):
    """XA15, L15: the serial console takes what it gets and keeps nothing."""
    p = vms.ready()
    d = agent.start(p, ['/bin/sh', '-c', 'yes floodfloodflood >/dev/ttyS0 & sleep 3; kill $!'])
    end = time.monotonic() + 30
    d.sock.settimeout(30)
    d.read_end()
    assert time.monotonic() < end
    assert agent.run(p, ['/bin/sh', '-c', 'echo alive >/dev/ttyS0']).ok
    assert proc_memory(p.warden) < 4096


def test_snapshot_while_the_console_is_written(build, template, room):
    """L15: booted again from a snapshot that was taken in the middle of a flood."""
    p = launcher.Placement(build, room + '/flood')
    out = room + '/flood-variant'
    p.launch('boot', launcher.boot_files(template, out))
    try:
        c = p.ctl()
        assert c.wait_state(('running', 'failed', 'exited'), 200)['state'] == 'running'
        c.identify()
        agent.start(p, ['/bin/sh', '-c', 'yes >/dev/ttyS0']).sock.recv(100)
        c.snapshot()
        p.wait_vm_end()
    finally:
        p.destroy()
    p = launcher.Placement(build, room + '/flood2')
    try:
        p.launch('restore', launcher.restore_files(out, room + '/flood2.img'))
        c = p.ctl()
        c.identify()
        assert agent.run(p, ['/bin/sh', '-c', 'echo alive >/dev/ttyS0']).ok
    finally:
        p.destroy()


def test_network_card(build, template, room):
    """The card is part of the snapshot; each clone has a tap of its own behind it."""
    tap = launcher.make_tap()
    if tap is None:
        pytest.skip('no tap can be made here')
    p = launcher.Placement(build, room + '/net')
    out = room + '/net-variant'
    files = launcher.boot_files(template, out)
    files[6] = tap
    p.launch('boot', files)
    try:
        c = p.ctl()
        assert c.wait_state(('running', 'failed', 'exited'), 200)['state'] == 'running'
        c.snapshot()
        p.wait_vm_end()
    finally:
        p.destroy()
    p = launcher.Placement(build, room + '/net2')
    try:
        files = launcher.restore_files(out, room + '/net2.img')
        files[6] = launcher.make_tap()
        p.launch('restore', files)
        p.ctl().identify()
        seen = agent.run(p, ['/bin/cat', '/sys/class/net/eth0/address']).stdout
        assert seen == b'02:63:73:00:00:02\n'
    finally:
        p.destroy()


def test_boot_that_hangs_is_reported(build, template, room):
    """A kernel that panics at once: an error with the console's words, no endless wait."""
    p = launcher.Placement(build, room + '/panic')
    out = room + '/panic-variant'
    files = launcher.boot_files(template, out)
    os.close(files[11])
    with open(room + '/empty-initrd', 'wb') as f:
        f.write(b'\0' * 512)
    files[11] = os.open(room + '/empty-initrd', os.O_RDONLY)
    p.launch('boot', files)
    try:
        q = p.ctl().wait_state(('running', 'failed', 'exited'), 100)
        assert q['state'] == 'failed' and 'Kernel panic' in q['reason'], q
    finally:
        p.destroy()


def test_idle_memory(vms):
    p = vms.ready()
    assert agent.run(p, ['/bin/true']).ok
    anonymous = proc_memory(p.stub) + proc_memory(p.warden)
    print('anonymous kB', proc_memory(p.stub), proc_memory(p.warden))
    assert anonymous < 40 * 1024
    assert proc_memory(p.warden) < 1536
