# SPDX-License-Identifier: Apache-2.0
"""Forks, with real VMs."""
import contextlib
import os
import socket
import subprocess
import threading

import pytest

from conftest import until
from test_history import checkpoint
from test_life import counting, counts, goes_on

WHO = 'hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1'


def fork(h, s, **body):
    r = h.post(f'/v1/sandboxes/{s}/fork?wait=300', body)
    assert r.status == 201 and r.json['operation']['state'] == 'succeeded', r
    copies = r.json['operation']['result']['sandboxes']
    assert [h.state(c) for c in copies] == ['running'] * body.get('n', 1)
    return copies


def private_and_shared(pid, kind):
    """Bytes of the guest's memory that a VM has for itself, and that it maps with others."""
    anonymous = shared = 0
    inside = False
    for line in open(f'/proc/{pid}/smaps'):
        head = line.split()
        if not head[0].endswith(':'):
            inside = '/mem' in line
        elif inside and head[0] == 'Anonymous:':
            anonymous += int(head[1]) * 1024
        elif inside and head[0] in ('Shared_Clean:', 'Private_Clean:'):
            shared += int(head[1]) * 1024
    return anonymous, shared


def test_copies_of_a_running_one(host):
    h = host
    s = counting(h, env={'A': 'b'}, name='one')
    h.sh(s, 'echo kept >/root/file; echo mem >/dev/shm/file')
    h.background(s, 'sleep 3600 & echo $! >/tmp/pid; wait')
    pid = until(lambda: h.sh(s, 'cat /tmp/pid 2>/dev/null || echo').strip(), what='the pid')
    p = h.prepare(s, '/bin/sh', ['-c', 'while :; do read x; echo got $x; done'])
    before = counts(h, s)
    copies = fork(h, s, n=3)
    # the parent goes on, and so does what was in its memory, in each copy and under the same pid
    for c in [s, *copies]:
        x = goes_on(h, c, before)
        assert x[:len(before)] == before
        assert h.sh(c, f'cat /root/file /dev/shm/file; tr "\\0" " " </proc/{pid}/cmdline; echo; echo $A').split() == \
            ['kept', 'mem', 'sleep', '3600', 'b']
    told = {c: h.sh(c, WHO).split('\n') for c in [s, *copies]}
    assert told[s][0] == 'one' and [told[c][0] for c in copies] == copies
    for i in range(1, 5):
        assert len({t[i] for t in told.values()}) == 4, (i, told)
    # each has a disk and a memory of its own
    h.sh(copies[0], 'echo other >/root/file; echo other >/dev/shm/file')
    assert [h.sh(c, 'cat /root/file /dev/shm/file').split() for c in (copies[1], s)] == [['kept', 'mem']] * 2
    # what was prepared in the parent is there in each copy, with a token of the copy's own
    ours = h.get(f'/v1/sandboxes/{copies[0]}/commands').json
    assert p['process_id'] in str(ours)
    until(lambda: h.left()['images'] == [], what='removal of the image')
    h.delete(s)
    for c in copies:
        h.change(c, 'suspend')
        h.change(c, 'restore')
        assert h.sh(c, 'hostname').strip() == c
        h.delete(c)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_memory_is_shared(host):
    """What the parent had written is in the page cache once, and a copy has for itself what it writes alone."""
    h = host
    s = h.create()
    h.sh(s, 'dd if=/dev/urandom of=/dev/shm/big bs=1M count=24 2>/dev/null')
    copies = fork(h, s, n=3)
    sums = {h.sh(c, 'md5sum </dev/shm/big') for c in [s, *copies]}
    assert len(sums) == 1
    files = set()
    for c in copies:
        vm = h.pids(c)[1]
        anonymous, shared = private_and_shared(vm, 'mem')
        assert shared > 24 << 20 and anonymous < 24 << 20, (anonymous, shared)
        files |= {tuple(line.split()[3:5]) for line in open(f'/proc/{vm}/maps') if '/mem' in line}
    assert len(files) == 1, files


@pytest.mark.parametrize('state', ['paused', 'suspended', 'stopped'])
def test_copies_of_one_at_rest(host, state):
    h = host
    s = counting(h)
    h.sh(s, 'echo kept >/root/file; sync')
    before = counts(h, s)
    h.change(s, {'paused': 'pause', 'suspended': 'suspend', 'stopped': 'stop'}[state])
    images = h.left()['images']
    copies = fork(h, s, n=2)
    assert h.state(s) == state
    for c in copies:
        assert h.sh(c, 'cat /root/file; hostname').split() == ['kept', c]
        if state != 'stopped':
            goes_on(h, c, before)
    until(lambda: h.left()['images'] == images, what='removal of the image')
    h.change(s, 'wake')
    assert h.sh(s, 'cat /root/file').strip() == 'kept'
    if state != 'stopped':
        goes_on(h, s, before)


@pytest.mark.parametrize('kind', ['disk', 'full'])
def test_copies_of_a_checkpoint(host, kind):
    h = host
    s = counting(h)
    h.sh(s, 'echo then >/root/file')
    before = counts(h, s)
    checkpoint(h, s, kind=kind, name='then')
    h.sh(s, 'echo now >/root/file; rm /tmp/count; pkill -f count || true')
    copies = fork(h, s, n=2, checkpoint='then')
    for c in copies:
        assert h.sh(c, 'cat /root/file').strip() == 'then'
        if kind == 'full':
            goes_on(h, c, before)
    assert h.sh(s, 'cat /root/file').strip() == 'now'
    # A copy of a copy, and the checkpoint may go meanwhile.
    again = fork(h, copies[0])[0]
    assert h.request('DELETE', f'/v1/sandboxes/{s}/checkpoints/then').status == 204
    h.delete(copies[0])
    assert h.sh(again, 'cat /root/file; hostname').split() == ['then', again]
    until(lambda: h.left()['images'] == [], what='removal of the image')


def test_attached_commands_of_the_parent_can_be_attached_to_again(host):
    h = host
    s = h.create()
    p = h.prepare(s, '/bin/sh', ['-c', 'i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.1; done'])
    a = h.attach(p)
    got = b''
    while got.count(b'\n') < 5:
        kind, data = a.frame()
        got += data[8:] if kind == 0x11 else b''
    fork(h, s)
    out, code = a.all()
    assert code is None  # cut, and not ended
    a.close()
    b = h.attach(p, len(got + out))
    rest, code = b.all()
    assert code == 0 and (got + out + rest).split(b'\n')[:-1] == [b'line %d' % i for i in range(1, 41)]


@pytest.mark.parametrize('who', ['cspaced', 'rootd'])
def test_killed_in_between(host, who):
    """Either all copies are there in the end or none, and nothing else is."""
    h = host
    s = counting(h)
    before = counts(h, s)
    op = h.post(f'/v1/sandboxes/{s}/fork', {'n': 3}).json['operation']['id']
    until(lambda: len(h.get('/v1/sandboxes').json['sandboxes']) == 4 or h.get(f'/v1/operations/{op}').json['state'] != 'running',
          what='the copies')
    if who == 'cspaced':
        h.kill_cspaced()
        h.start_cspaced()
    else:
        h.kill_rootd()
        h.start_rootd()
    ended = until(lambda: (o := h.get(f'/v1/operations/{op}?wait=60').json)['state'] != 'running' and o, 120, 'its end')
    copies = ended['result']['sandboxes'] if ended['state'] == 'succeeded' else []
    assert copies or who == 'rootd', ended
    until(lambda: sorted(x['id'] for x in h.get('/v1/sandboxes').json['sandboxes']) == sorted([s, *copies]), what='no other')
    until(lambda: sorted(h.left()['run']) == sorted([s, *copies]) and h.left()['images'] == [], what='nothing else')
    for c in [s, *copies]:
        goes_on(h, c, before)
    assert len(fork(h, s, n=2)) == 2


def test_a_copy_that_cannot_be_made_takes_all_with_it(host):
    h = host
    s = h.create()
    h.sh(s, 'echo x >/root/file')
    checkpoint(h, s, kind='full', name='c')
    image = h.left()['images'][0]
    for name in ('process', 'state'):  # without the one the other would do
        os.truncate(os.path.join(h.data, 'checkpoints', image, name), 40)
    r = h.post(f'/v1/sandboxes/{s}/fork?wait=200', {'n': 3, 'checkpoint': 'c'})
    assert r.status == 500 and r.json['error']['message'].startswith('copy '), r
    assert [x['id'] for x in h.get('/v1/sandboxes').json['sandboxes']] == [s]
    assert h.left()['run'] == [s] and h.sh(s, 'cat /root/file').strip() == 'x'


ECHO = '192.0.2.77'


@pytest.fixture
def echo():
    """A server outside of the sandboxes, at an address that their gateways can reach."""
    subprocess.run(['ip', 'address', 'add', ECHO + '/32', 'dev', 'lo'], check=True)
    listener = socket.create_server((ECHO, 0))
    peers = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                c, _ = listener.accept()
                c.sendall(b'hello\n')
                peers.append(c)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], peers
    listener.close()
    for c in peers:
        c.close()
    subprocess.run(['ip', 'address', 'del', ECHO + '/32', 'dev', 'lo'], check=True)


def test_who_waits_for_an_answer_from_outside_is_told(host, echo):
    """In a copy, and after a restore, a connection is gone also for who only reads from it; in the parent it stays. What is
    connected within the sandbox stays everywhere."""
    h, (port, peers) = host, echo
    h.stop()
    h.start(f'[egress]\nopen = {ECHO}\n')
    rule = {'action': 'allow', 'cidr': [ECHO + '/32'], 'ports': [port], 'protocol': 'tcp', 'internal': True}
    s = h.create(policy={'rules': [rule]})
    h.background(s, f'mkfifo /tmp/f; exec 3<>/tmp/f; nc {ECHO} {port} <&3 >/tmp/out; echo ended >>/tmp/out')
    h.background(s, 'mkfifo /tmp/g /tmp/k; exec 3<>/tmp/g; exec 4<>/tmp/k; nc -l -p 4000 <&3 >/tmp/in & sleep 1; '
                    'nc 10.200.0.2 4000 <&4; echo ended >>/tmp/in')
    out = 'cat /tmp/out 2>/dev/null || true'
    until(lambda: h.sh(s, out).split() == ['hello'], what='a connection')
    until(lambda: h.sh(s, 'netstat -tn | grep -c ":4000.*ESTABLISHED" || true').strip() == '2', what='one within')
    copy = fork(h, s)[0]
    until(lambda: h.sh(copy, out).split() == ['hello', 'ended'], what='its end in the copy')
    h.sh(copy, 'echo within >/tmp/k')
    until(lambda: h.sh(copy, 'cat /tmp/in').split() == ['within'], what='the one within')
    peers[0].sendall(b'still\n')
    until(lambda: h.sh(s, out).split() == ['hello', 'still'], what='the one of the parent')
    h.change(s, 'suspend')
    h.change(s, 'restore')
    until(lambda: h.sh(s, out).split() == ['hello', 'still', 'ended'], what='its end after a restore')
    h.sh(s, 'echo within >/tmp/k')
    until(lambda: h.sh(s, 'cat /tmp/in').split() == ['within'], what='the one within')


@pytest.mark.parametrize('how', ['fork', 'suspend'])
def test_names_of_the_last_moment(host, how):
    """Addresses that names were given right before go on to the copies, or through a suspend: nothing is taken for another."""
    h = host
    s = h.create(allow=['*.names.example'])

    def resolved(c, *names):
        text = h.sh(c, '; '.join(f'nslookup {n}.names.example 10.200.0.1 | grep ^Address | tail -n 1' for n in names))
        found = [line.split()[-1] for line in text.splitlines()]
        assert len(found) == len(names), text
        return dict(zip(names, found))

    first = resolved(s, 'a', 'b')  # told to cspaced at once, the next ones would be so a second later
    first |= resolved(s, 'c', 'd', 'e')
    copy = s
    if how == 'fork':
        copy = fork(h, s)[0]
    else:
        h.change(s, 'suspend')
        h.change(s, 'restore')
    assert resolved(copy, 'z', 'e', 'd', 'c', 'b', 'a') == {'z': resolved(copy, 'z')['z'], **first}
    assert resolved(copy, 'z')['z'] not in first.values()


@pytest.mark.parametrize('step', [2, 4, 5, 6])
def test_cut_off_while_the_image_is_made(host, step):
    """cspace-rootd is killed and comes back: the image is begun anew, and nothing half made stays."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.fault.arm('rootd', f'image:{step}')
    op = h.post(f'/v1/sandboxes/{s}/fork', {'n': 2}).json['operation']['id']
    until(lambda: h.rootd.poll() is not None, what='its end')
    h.start_rootd()
    ended = until(lambda: (o := h.get(f'/v1/operations/{op}?wait=60').json)['state'] != 'running' and o, 120, 'the end of the fork')
    assert ended['state'] == 'succeeded', ended
    copies = ended['result']['sandboxes']
    for c in [s, *copies]:
        goes_on(h, c, before)
    until(lambda: sorted(h.left()['run']) == sorted([s, *copies]) and h.left()['images'] == [], what='nothing else')
