# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and going back to them, with real VMs."""
import os

import pytest

from conftest import until
from test_life import counting, counts, goes_on


def checkpoint(h, s, **kw):
    r = h.post(f'/v1/sandboxes/{s}/checkpoints?wait=120', kw)
    assert r.status == 200 and r.json['operation']['state'] == 'succeeded', r
    return r.json['operation']['result']


def history(h, s):
    return h.get(f'/v1/sandboxes/{s}/checkpoints').json


def rollback(h, s, c):
    r = h.post(f'/v1/sandboxes/{s}/rollback?wait=300', {'checkpoint': c})
    assert r.status == 200 and r.json['sandbox']['state'] == 'running', r


def test_disk_checkpoint_and_rollback(host):
    h = host
    s = counting(h)
    h.sh(s, 'echo one >/root/file')
    a = checkpoint(h, s, name='one')
    assert h.state(s) == 'running' and a['written_bytes'] == 0 and a['freeze_us'] < 1000000
    h.sh(s, 'echo two >/root/file')
    b = checkpoint(h, s)
    x = history(h, s)
    assert [(c['id'], c['name'], c['kind'], c['parent']) for c in x['checkpoints']] == \
        [(a['checkpoint'], 'one', 'disk', None), (b['checkpoint'], None, 'disk', a['checkpoint'])]
    assert x['head'] == b['checkpoint']
    h.sh(s, 'echo three >/root/file')
    assert h.sh(s, 'echo still >/root/x; cat /root/x').strip() == 'still'  # not frozen any more
    r = h.post(f'/v1/sandboxes/{s}/checkpoints', {'name': 'one'})
    assert r.status == 409 and r.json['error']['code'] == 'name_taken'
    assert h.post(f'/v1/sandboxes/{s}/rollback', {'checkpoint': 'none'}).status == 404
    rollback(h, s, 'one')
    assert h.sh(s, 'cat /root/file; ls /root/x 2>/dev/null || true').strip() == 'one'
    assert history(h, s)['head'] == a['checkpoint']
    c = checkpoint(h, s, name='branch')
    assert history(h, s)['checkpoints'][-1]['parent'] == a['checkpoint']
    rollback(h, s, b['checkpoint'])
    assert h.sh(s, 'cat /root/file').strip() == 'two'
    assert h.request('DELETE', f'/v1/sandboxes/{s}/checkpoints/one').status == 204
    assert {x['id']: x['parent'] for x in history(h, s)['checkpoints']} == {b['checkpoint']: None, c['checkpoint']: None}
    until(lambda: sorted(h.left()['images']) == sorted([b['checkpoint'], c['checkpoint']]), what='removal of an image')
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_full_checkpoint_and_rollback(host):
    h = host
    s = counting(h)
    before = counts(h, s)
    c = checkpoint(h, s, kind='full', name='warm')
    assert 0 < c['written_bytes'] <= 1.3 * c['private_bytes']
    goes_on(h, s, before)
    h.sh(s, 'rm /tmp/count; echo x >/tmp/x; pkill -f count || true')
    for _ in range(2):
        rollback(h, s, 'warm')
        x = goes_on(h, s, before)
        assert len(x) < 10000
        assert h.sh(s, 'ls /tmp/x 2>/dev/null || echo none').strip() == 'none'
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_files_of_a_full_checkpoint_are_on_its_disk(host):
    """Its files are read, and a template made of it, without the memory that the guest held them in."""
    h = host
    s = counting(h)
    h.sh(s, 'echo kept >/root/held')  # not synced
    checkpoint(h, s, kind='full', name='warm')
    h.sh(s, 'echo changed >/root/held; cat /root/held')  # not frozen any more
    r = h.get(f'/v1/sandboxes/{s}/history/file?at=warm&path=/root/held')
    assert r.status == 200 and b'kept' in r.body, r
    x = h.get(f'/v1/sandboxes/{s}/diff?from=warm').json['changes']
    assert [c['status'] for c in x if c['path'] == '/root/held'] == ['changed'], x
    rollback(h, s, 'warm')
    assert h.sh(s, 'cat /root/held; echo more >/root/more; cat /root/more').split() == ['kept', 'more']
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


@pytest.mark.parametrize('verb', ['pause', 'suspend', 'stop'])
def test_checkpoint_of_one_that_does_not_run(host, verb):
    h = host
    s = counting(h)
    h.sh(s, 'echo one >/root/file; sync')
    h.change(s, verb)
    c = checkpoint(h, s)
    assert h.state(s) == {'pause': 'paused', 'suspend': 'suspended', 'stop': 'stopped'}[verb]
    r = h.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'kind': 'full'})
    assert r.status == (409 if verb == 'stop' else 200), r
    h.change(s, 'wake')
    h.sh(s, 'echo two >/root/file')
    rollback(h, s, c['checkpoint'])
    assert h.sh(s, 'cat /root/file').strip() == 'one'
    if verb != 'stop':
        rollback(h, s, history(h, s)['checkpoints'][1]['id'])
        assert len(counts(h, s)) > 3


def test_rollback_of_a_lost_one_and_over_a_restart(host):
    h = host
    s = h.create()
    h.sh(s, 'echo one >/root/file')
    c = checkpoint(h, s)['checkpoint']
    h.kill_cspaced()
    h.start_cspaced()
    assert [x['id'] for x in history(h, s)['checkpoints']] == [c]
    os.kill(h.pids(s)[1], 9)
    h.settled(s, 'failed')
    until(lambda: h.post(f'/v1/sandboxes/{s}/rollback?wait=100', {'checkpoint': c}).status == 200, what='rollback')
    assert h.sh(s, 'cat /root/file').strip() == 'one'


def test_writers_wait_and_go_on(host):
    """A program that writes all the time loses nothing over many checkpoints."""
    h = host
    s = h.create()
    h.background(s, 'i=0; while :; do i=$((i+1)); echo $i >>/root/log; done')
    for _ in range(5):
        c = checkpoint(h, s)
    assert all(x['consistent'] for x in history(h, s)['checkpoints'])
    lines = [int(x) for x in h.sh(s, 'cat /root/log').split()]
    assert lines == list(range(1, len(lines) + 1)) and len(lines) > 10
    rollback(h, s, c['checkpoint'])
    back = [int(x) for x in h.sh(s, 'cat /root/log').split()]
    assert back == list(range(1, len(back) + 1)) and len(back) <= len(lines) + 1000


def test_rolling_checkpoints(host):
    """A guest that writes gets them, the newest stay; an idle one, whose filesystem is frozen and thawed for each, does not
    get one after the other."""
    h = host
    s = h.create(checkpoint_every_s=2, checkpoint_keep=2)
    h.background(s, 'i=0; while [ ! -e /root/end ]; do i=$((i+1)); echo $i >/root/n; sync; sleep 0.2; done')
    seen = set()
    until(lambda: seen.update(c['id'] for c in history(h, s)['checkpoints']) or len(seen) >= 4, what='four of them')
    until(lambda: len(history(h, s)['checkpoints']) == 2, what='two of them')
    c = history(h, s)['checkpoints'][0]
    assert c['automatic'] and c['consistent'] and c['kind'] == 'disk'
    h.sh(s, 'touch /root/end; sync')
    quiet = until(lambda: (x := h.get(f'/v1/sandboxes/{s}/checkpoints').json['head']) and not quiet_changes(h, s, x) and x, timeout=90,
                  what='quiet')
    assert h.get(f'/v1/sandboxes/{s}/checkpoints').json['head'] == quiet
    rollback(h, s, quiet)
    assert int(h.sh(s, 'cat /root/n')) > 3
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def quiet_changes(h, s, head):
    """Whether another one comes in the time of three turns."""
    try:
        until(lambda: h.get(f'/v1/sandboxes/{s}/checkpoints').json['head'] != head, timeout=7)
        return True
    except AssertionError:
        return False
