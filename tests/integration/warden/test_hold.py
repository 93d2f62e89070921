# SPDX-License-Identifier: Apache-2.0
"""Pausing, resuming and saving a real VM."""
import os
import socket
import time

import pytest

import agent
import launcher
from launcher import IpcError, cpu_ticks

# Writes a line for each turn: a number that grows, and the clock.
MAGIC = b'\0\xffcspace-link\r\n\x1a'
KNOCK = MAGIC + b'\0\x01\x6b\x03' + b'x' * 12

COUNTER = 'i=0; while :; do i=$((i+1)); echo $i $(date +%s) >>/tmp/count; sleep 0.1; done'


def counts(p):
    return [tuple(map(int, line.split())) for line in agent.get(p, '/tmp/count').decode().splitlines()
            if len(line.split()) == 2]


def grows(p, beyond, timeout=20):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        c = counts(p)
        if c and c[-1][0] > beyond:
            return c
    raise AssertionError(f'the command does not go on: {c[-3:]}')


@pytest.fixture
def counting(vms):
    p = vms.ready()
    p.counter = agent.start(p, ['/bin/sh', '-c', COUNTER])
    assert p.counter.sock.recv(1)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if counts(p):
                break
        except AssertionError:
            pass
    return p


def test_qemu_tells_when_the_guest_has_closed_its_port(counting):
    """Of a port without an id it tells nothing, and every save would wait for as long as it may."""
    with open(f'/proc/{counting.stub}/cmdline', encoding='utf-8') as f:
        port = next(a for a in f.read().split('\0') if a.startswith('virtserialport,'))
    assert any(a.startswith('id=') for a in port.split(','))


def test_paused_and_resumed(counting):
    p = counting
    before = grows(p, 1)[-1]
    p.c.pause()
    assert p.c.query()['state'] == 'paused'
    p.c.pause()
    ticks = cpu_ticks(p.stub)
    time.sleep(3)
    assert cpu_ticks(p.stub) - ticks <= 1
    p.c.resume()
    assert p.c.query()['state'] == 'running'
    p.c.resume()
    now = time.time()
    after = [c for c in grows(p, before[0] + 2) if c[0] > before[0]]
    # No turn is lost or made twice, and none but the first few sees the time of before.
    assert [c[0] for c in after] == list(range(before[0] + 1, before[0] + 1 + len(after)))
    late = [c for c in after if c[1] >= before[1] + 2]
    assert after.index(late[0]) <= 3
    assert abs(after[-1][1] - now) <= 2
    # The stream that was open all the time is still open.
    p.counter.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while p.counter.sock.recv(65536):
            pass


def test_the_clock_is_right_before_the_commands_go_on(vms):
    """A command that does nothing but look at the clock never sees it as it was after the pause."""
    p = vms.ready()
    d = agent.start(p, ['/bin/sh', '-c', 'while :; do date +%s; done >/tmp/clock'])
    assert d.sock.recv(1)
    time.sleep(1)
    p.c.pause()
    stopped = time.time()
    time.sleep(6)
    p.c.resume()
    time.sleep(1)
    agent.run(p, ['/bin/kill', '-9', '-1'])
    seen = [int(x) for x in agent.get(p, '/tmp/clock').split() if len(x) == 10]
    assert seen[-1] > stopped + 5
    assert not [t for t in seen if stopped + 1 < t < stopped + 4], 'the commands went on with the clock of before'


def test_pause_without_an_agent(vms):
    """A guest whose agent does not answer is paused all the same, in bounded time."""
    p = vms.ready()
    p.c.pause()
    p.kill('warden')
    p.adopt()
    p.c = p.ctl()
    assert p.c.wait_state('paused', 20)['reason'] == ''
    p.c.resume()
    q = p.c.query()
    assert q['state'] == 'running' and q['identified'] == 1
    assert agent.run(p, ['/bin/true']).ok


def test_warden_killed_while_paused(counting):
    p = counting
    p.c.pause()
    for _ in range(2):
        p.kill('warden')
        p.adopt()
        p.c = p.ctl()
        p.c.wait_state('paused', 20)
    last = p.c.query()
    assert last['state'] == 'paused'
    p.c.resume()
    grows(p, counts(p)[-1][0])


@pytest.mark.parametrize('paused', [False, True])
def test_saved_and_restored(counting, vms, variant, room, paused):
    p = counting
    if paused:
        p.c.pause()
    before = time.time()
    p.c.save(f'{room}/saved.state')
    assert p.c.query()['state'] == 'paused'
    assert 10000 < os.stat(f'{room}/saved.state').st_size < 1 << 20
    took = time.time() - before
    pages = launcher.save_memory(p.stub, f'{variant}/mem', f'{room}/saved.mem')
    assert 100 < pages < (64 << 20) // 4096
    launcher.clone(p.disk, f'{room}/saved.disk')
    p.kill('warden')
    p.kill('stub')
    time.sleep(3)
    for n in range(2):  # what was saved is good for more than once
        q = launcher.Placement(vms.build, f'{room}/again{n}')
        q.disk = f'{room}/again{n}.img'
        vms.made.append(q)
        launcher.clone(f'{room}/saved.disk', q.disk)
        rw, ro = os.O_RDWR | os.O_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC
        q.launch('restore', launcher.open_files(disk=(q.disk, rw), mem=(f'{room}/saved.mem', ro),
                                                state=(f'{room}/saved.state', ro)))
        q.c = q.ctl()
        q.c.identify()
        c = grows(q, counts(q)[-1][0] + 3)
        assert [x[0] for x in c] == list(range(1, len(c) + 1))
        assert abs(c[-1][1] - time.time()) <= 2
        gaps = [b[1] - a[1] for a, b in zip(c, c[1:])]
        assert max(gaps) >= 2 and sum(g > 1 for g in gaps) <= 2, gaps
        q.c.pause()
        q.destroy()
    for name in ('state', 'mem', 'disk'):
        os.unlink(f'{room}/saved.{name}')
    print('saved in', took, pages)


def test_a_save_does_not_end_the_vm(counting, room):
    """As for a checkpoint: saved, then it goes on with a session of its own."""
    p = counting
    for n in range(3):
        last = counts(p)[-1][0]
        p.c.save(f'{room}/s{n}')
        os.unlink(f'{room}/s{n}')
        p.c.resume()
        grows(p, last + 2)
    assert agent.run(p, ['/bin/true']).ok


def test_parked_it_goes_on_with_an_identity(counting):
    """Kept, with its commands; quiesced, without them. Both are what a variant's VM goes through (daemon/template/variant.c)."""
    p = counting
    last = counts(p)[-1][0]
    p.c.park(keep=True)
    assert p.c.query()['state'] == 'paused'
    p.c.identify()
    assert p.c.query()['state'] == 'running'
    c = grows(p, last + 2)
    assert [x[0] for x in c] == list(range(1, len(c) + 1))
    p.c.park(keep=False)
    assert p.c.query()['state'] == 'paused'
    p.c.identify()
    last = counts(p)[-1][0]
    assert agent.run(p, ['/bin/sleep', '0.5']).ok
    assert counts(p)[-1][0] == last


CLOSED = 'its agent has not let go of the host; the port was closed'


def test_nothing_is_waited_for(counting, room):
    """Right after a command, again and again: the agent lets go of the host when it is asked, which QEMU tells of once a second."""
    p = counting
    for n in range(4):
        assert agent.run(p, ['/bin/true']).ok
        if n % 2:
            p.c.park(keep=True)
            p.c.identify()
        else:
            p.c.save(f'{room}/at-once')
            os.unlink(f'{room}/at-once')
            p.c.resume()
    grows(p, counts(p)[-1][0])
    assert CLOSED not in p.log()


def test_the_guest_misses_that_the_host_has_changed(counting, room):
    """It is stopped before it can see its port closed, and when it goes on the port is open: another host's first bytes tell."""
    p = counting
    for n in range(3):
        last = counts(p)[-1][0]
        p.c.save(f'{room}/missed')
        os.unlink(f'{room}/missed')
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(p.run + '/port.sock')
            other.sendall(KNOCK)
            going = p.c.send('RESUME')
            other.settimeout(60)
            got = b''
            while len(got) < len(KNOCK):
                got += other.recv(65536)
            assert got[:16] == MAGIC and got[18:20] == b'\x67\x01', got
        p.c.receive(going, 60)
        grows(p, last + 2)
    assert CLOSED not in p.log()


def test_a_deaf_agent_is_saved_all_the_same(counting, room):
    """Its port is closed, and when it hears again it finds that the host is another."""
    p = counting
    keep = agent.start(p, ['/bin/sh', '-c', 'mkdir /sys/fs/cgroup/agent && echo 1 >/sys/fs/cgroup/agent/cgroup.procs && '
                           'echo 1 >/sys/fs/cgroup/agent/cgroup.freeze; sleep 6; echo 0 >/sys/fs/cgroup/agent/cgroup.freeze'])
    deaf, end = False, time.monotonic() + 60
    while not deaf:
        assert time.monotonic() < end, keep.sock.recv(4096)
        d = agent.request(p, 'GET', '/health')
        d.sock.settimeout(1)
        try:
            d.read_end()
        except TimeoutError:
            deaf = True
        d.close()
    p.c.save(f'{room}/deaf')
    os.unlink(f'{room}/deaf')
    assert CLOSED in p.log()
    p.c.resume()
    assert agent.run(p, ['/bin/true']).ok


def test_save_fails_and_the_vm_goes_on(counting, room):
    p = counting
    with pytest.raises((IpcError, OSError)):
        fd = os.open('/dev/full', os.O_WRONLY)
        p.c.seq += 1
        launcher.socket.send_fds(p.c.sock, [launcher.struct.pack('<HHI', launcher.TYPES['SAVE'], 0, p.c.seq)], [fd])
        os.close(fd)
        p.c.receive(p.c.seq, 60)
    p.c = p.ctl()
    p.c.wait_state('running', 30)
    grows(p, counts(p)[-1][0])


@pytest.mark.parametrize('fake', ['restore'], indirect=True)
def test_fake(fake, room):
    fake.c.identify()
    fake.c.pause()
    assert fake.c.query()['state'] == 'paused'
    fake.c.save(f'{room}/fake.state')
    fake.c.resume()
    assert fake.c.query()['state'] == 'running'
