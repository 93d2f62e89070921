# SPDX-License-Identifier: Apache-2.0
"""Pause, suspend and stop, and the ways back, with real VMs."""
import http.client
import os
import subprocess
import time

import pytest

from conftest import BUILD, MB, until

COUNTER = 'i=0; while :; do i=$((i+1)); echo $i $(date +%s) >>/tmp/count; sleep 0.1; done'


def counts(h, s):
    return [tuple(map(int, line.split())) for line in h.sh(s, 'cat /tmp/count').splitlines() if len(line.split()) == 2]


def counting(h, **kw):
    s = h.create(**kw)
    h.background(s, COUNTER)
    until(lambda: int(h.sh(s, 'cat /tmp/count 2>/dev/null | wc -l')) > 3, what='the counter')
    return s


def goes_on(h, s, before):
    """The counter goes on from where it was, every number once."""
    c = until(lambda: (x := counts(h, s))[-1][0] > before[-1][0] + 3 and x, what='the counter')
    assert [x[0] for x in c] == list(range(1, len(c) + 1))
    assert abs(c[-1][1] - time.time()) <= 2
    return c


def test_pause_and_resume(host):
    h, s = host, None
    s = counting(h)
    before = counts(h, s)
    r = h.change(s, 'pause')
    assert r['sandbox']['state'] == 'paused' and r['operation']['kind'] == 'pause'
    assert 0 < r['operation']['result']['vm_us'] < 60_000_000
    r = h.post(f'/v1/sandboxes/{s}/pause')
    assert r.status == 409 and r.json['error']['code'] == 'conflict' and 'is paused' in r.json['error']['message']
    r = h.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'true'})
    assert r.status == 409 and 'is paused' in r.json['error']['message']
    assert h.post(f'/v1/sandboxes/{s}/restore').status == 409
    assert h.post(f'/v1/sandboxes/{s}/start').status == 409
    time.sleep(2)
    r = h.change(s, 'resume')
    assert r['sandbox']['state'] == 'running'
    goes_on(h, s, before)


def test_larger_disk_lasts(host):
    """What was asked for with --disk is there at once, and after each way of coming back."""
    h = host
    s = h.create(disk_mb=2048)

    def has():
        sectors, blocks, size = map(int, h.sh(s, 'cat /sys/block/vda/size; stat -f -c "%b %S" /').split())
        return sectors * 512 == 2048 * MB and blocks * size > 1900 * MB
    assert has()
    h.change(s, 'suspend')
    h.change(s, 'restore')
    assert has()
    h.change(s, 'stop')
    h.change(s, 'start')
    assert has()
    h.delete(s)


def test_suspend_and_restore(host):
    h = host
    s = counting(h, env={'A': 'b'}, name='one')
    h.sh(s, 'echo kept >/root/file')
    h.background(s, 'exec 3</root/file; sleep 3600 & echo $! >/tmp/pid; while :; do nc -l -p 4000 -e cat; done')
    until(lambda: h.sh(s, 'cat /tmp/pid 2>/dev/null || echo').strip(), what='the pid')
    pid = h.sh(s, 'cat /tmp/pid').strip()
    before = counts(h, s)
    op = h.change(s, 'suspend')['operation']
    assert op['result']['written_bytes'] <= 1.3 * op['result']['private_bytes']
    left = h.left()
    assert left['run'] == [] and left['disks'] == [] and left['images'] == [op['id']]
    assert sorted(os.listdir(os.path.join(h.data, 'checkpoints', op['id']))) == ['disk.img', 'mem', 'process', 'state']
    time.sleep(2)
    for verb in ('suspend', 'pause', 'resume', 'start'):
        r = h.post(f'/v1/sandboxes/{s}/{verb}')
        assert r.status == 409 and 'is suspended' in r.json['error']['message'], r
    h.change(s, 'restore')
    c = goes_on(h, s, before)
    assert max(b[1] - a[1] for a, b in zip(c, c[1:])) >= 2
    assert h.sh(s, f'cat /root/file; kill -0 {pid} && echo alive; echo $A; hostname').split() == ['kept', 'alive', 'b', 'one']
    until(lambda: h.left()['images'] == [], what='removal of the image')
    # And again: what was restored is the base of the next one.
    before = counts(h, s)
    h.change(s, 'suspend')
    h.change(s, 'wake')
    goes_on(h, s, before)
    h.delete(s)
    assert h.left() == {'run': [], 'disks': [], 'images': []}


def test_suspend_of_a_paused_one(host):
    h = host
    s = counting(h)
    before = counts(h, s)
    h.change(s, 'pause')
    h.change(s, 'suspend')
    h.change(s, 'restore')
    goes_on(h, s, before)


def test_stop_and_start(host):
    h = host
    s = h.create(name='box', env={'A': 'b'})
    h.sh(s, 'echo kept >/root/file')
    h.change(s, 'stop')
    assert h.left()['run'] == [] and len(h.left()['images']) == 1
    h.change(s, 'start')
    assert h.sh(s, 'cat /root/file; echo $A; hostname').split() == ['kept', 'b', 'box']
    # One that was booted can be suspended: its memory is all its own.
    before = counting_in(h, s)
    r = h.change(s, 'suspend')['operation']['result']
    assert r['private_bytes'] < 100 * MB
    h.change(s, 'restore')
    goes_on(h, s, before)
    h.change(s, 'pause')
    h.change(s, 'stop')
    h.change(s, 'wake')
    h.change(s, 'suspend')
    h.change(s, 'stop')  # the memory is given up
    h.change(s, 'start')
    assert h.sh(s, 'cat /root/file').strip() == 'kept'


def counting_in(h, s):
    h.background(s, COUNTER)
    until(lambda: int(h.sh(s, 'cat /tmp/count 2>/dev/null | wc -l')) > 3, what='the counter')
    return counts(h, s)


def test_attached_over_a_suspend(host):
    """The stream is cut, not ended; attaching again from what was seen gives all that came meanwhile."""
    h = host
    s = h.create()
    p = h.prepare(s, '/bin/sh', ['-c', 'i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.1; done'])
    a = h.attach(p)
    got = b''
    while got.count(b'\n') < 5:
        kind, data = a.frame()
        got += data[8:] if kind == 0x11 else b''
    h.change(s, 'suspend')
    out, code = a.all()
    assert code is None and a.error
    got += out
    assert h.attach(p).status == 409
    h.change(s, 'restore')
    b = h.attach(p, len(got))
    assert b.status == 101
    rest, code = b.all()
    assert code == 0
    assert (got + rest).decode() == ''.join(f'line {i}\n' for i in range(1, 61))


def test_over_a_restart_of_everything(host):
    """As after a restart of the host: no process is left, the files are."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.change(s, 'suspend')
    h.stop()
    h.start_rootd().start_cspaced()
    assert h.state(s) == 'suspended'
    h.change(s, 'restore')
    goes_on(h, s, before)


def test_paused_over_a_restart(host):
    h = host
    s = counting(h)
    before = counts(h, s)
    h.change(s, 'pause')
    h.kill_cspaced()
    h.kill_rootd()
    h.start_rootd().start_cspaced()
    h.settled(s, 'paused')  # its last row may have been lost with the kill: then it is paused once more
    os.kill(h.pids(s)[0], 9)
    h.change(s, 'resume')
    goes_on(h, s, before)


def test_vm_lost_and_started_again(host):
    h = host
    s = h.create()
    h.sh(s, 'echo kept >/root/file; sync')
    os.kill(h.pids(s)[1], 9)
    h.settled(s, 'failed')
    until(lambda: len(h.left()['images']) == 1 and h.left()['run'] == [], what='the disk as an image')
    h.change(s, 'start')
    assert h.sh(s, 'cat /root/file').strip() == 'kept'


@pytest.mark.parametrize('verbs', [(), ('pause',), ('suspend',), ('stop',), ('suspend', 'restore'), ('stop', 'start')])
def test_delete_in_every_state(host, verbs):
    h = host
    s = h.create()
    for v in verbs:
        h.change(s, v)
    began = time.monotonic()
    h.delete(s)
    assert time.monotonic() - began < 15
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


@pytest.mark.parametrize('verb,first', [('pause', ()), ('resume', ('pause',)), ('suspend', ()), ('restore', ('suspend',)),
                                        ('stop', ()), ('start', ('stop',))])
def test_delete_in_the_middle(host, verb, first):
    h = host
    s = h.create()
    for v in first:
        h.change(s, v)
    r = h.post(f'/v1/sandboxes/{s}/{verb}')
    assert r.status == 202 and r.json['sandbox']['state'].endswith('ing')
    h.delete(s)
    op = h.get(f'/v1/operations/{r.json["operation"]["id"]}').json
    assert op['state'] in ('failed', 'succeeded') and (op['state'] == 'succeeded' or op['error']['code'] == 'canceled')
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_idempotent(host):
    h = host
    s = h.create()
    key = {'Idempotency-Key': 'once'}
    a = h.post(f'/v1/sandboxes/{s}/pause?wait=60', headers=key)
    b = h.post(f'/v1/sandboxes/{s}/pause?wait=60', headers=key)
    assert a.status == b.status == 200 and a.json['operation']['id'] == b.json['operation']['id']


def test_exec_over_a_warden_that_crashes(host):
    """cspace-rootd starts another one; the command runs on, and the CLI shows all of it, once, and its exit code."""
    h = host
    s = h.create()
    cspace = os.path.join(BUILD, 'src', 'cli', 'cspace')
    script = 'i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 7'
    p = subprocess.Popen([cspace, '--api', 'unix:' + os.path.join(h.run, 'api.sock'), 'exec', s, '--', '/bin/sh', '-c', script],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    got = b''.join(p.stdout.readline() for _ in range(50))
    os.kill(h.pids(s)[0], 9)
    out, err = p.communicate(timeout=120)
    assert (got + out).decode() == ''.join(f'line {i}\n' for i in range(1, 301)), err
    assert p.returncode == 7, err
    h.delete(s)


def test_wake_by_the_cli(host):
    """Whoever wakes a sandbox wants it to run, which is no error where it does already."""
    h = host
    s = h.create(name='work')

    def wake(*args):
        p = subprocess.run([os.path.join(BUILD, 'src', 'cli', 'cspace'), '--api', 'unix:' + os.path.join(h.run, 'api.sock'), 'wake', *args],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        return p.returncode, p.stdout, p.stderr
    h.change(s, 'suspend')
    assert wake('work') == (0, 'work\n', '')
    assert wake('work') == (0, 'work\n', '') and h.state(s) == 'running'
    code, out, err = wake('work', 'nobody')
    assert (code, out) == (125, 'work\n') and 'nobody' in err


def test_ports_of_either_family(host):
    """N29: a server is reached by the name that is published for its port, whether it listens on IPv4, IPv6 or both, on loopback or all addresses."""
    h = host
    h.stop()
    h.start('[api]\ndomain = sandbox.localhost\n')
    s = h.create()
    for port, address in enumerate(('0.0.0.0', '[::]', '127.0.0.1', '[::1]'), 8081):
        h.background(s, f'mkdir -p /tmp/{port}; echo {address} >/tmp/{port}/where; httpd -f -p {address}:{port} -h /tmp/{port}')

        def answers(port=port):
            conn = http.client.HTTPConnection('127.0.0.1', h.port, timeout=30)
            try:
                conn.request('GET', '/where', headers={'Host': f'{port}-{s}.sandbox.localhost'})
                r = conn.getresponse()
                return r.read() if r.status == 200 else None
            finally:
                conn.close()
        assert until(answers, what=f'a server on {address}') == address.encode() + b'\n'
    h.delete(s)
