# SPDX-License-Identifier: Apache-2.0
"""The audit log: what gateways send is stored, bounded, found again."""
import http.client
import json
import os
import threading
import time

import pytest

from conftest import until


def line(n=0, host='api.example.com', verdict='allow', kind='request', time='2026-01-02T03:04:05.000Z', sandbox=None, **more):
    r = {'time': time, 'kind': kind, 'verdict': verdict, 'rule': 'r', 'reason': 'rule' if verdict == 'allow' else 'no_rule',
         'host': host, 'port': 443, 'protocol': 'tls', 'path': f'/{n}', **more}
    if sandbox:
        r['sandbox'] = sandbox
    return json.dumps(r)


def send(d, ident, lines, **m):
    until(lambda: d.steer(gateway=ident)['peers'] > 0 and d.sandbox(ident)['egress']['state'] == 'active', what='a connection')
    return d.steer(gateway=ident, audit=lines, **m)['answer']


def audit(d, ident, query=''):
    r = d.get(f'/v1/sandboxes/{ident}/audit{query}')
    assert r.status == 200, r
    return r.json


def records(d, ident, query=''):
    return audit(d, ident, query)['records']


def folder(d, ident):
    return os.path.join(d.data, 'audit', ident)


def size(d, ident):
    return sum(os.path.getsize(os.path.join(folder(d, ident), n)) for n in os.listdir(folder(d, ident)))


class Follow:
    def __init__(self, d, ident, query=''):
        self.conn = d.unix(timeout=20)
        self.conn.request('GET', f'/v1/sandboxes/{ident}/audit?follow=1{query}')
        self.reply = self.conn.getresponse()

    def line(self):
        text = self.reply.readline()
        return json.loads(text) if text else None

    def close(self):
        self.reply.close()
        self.conn.close()


def test_stored_when_acknowledged(ready):
    s = ready.create()
    assert records(ready, s['id']) == []
    assert send(ready, s['id'], [line(1), line(2, verdict='deny')]) is None
    ready.kill()  # at once
    ready.start()
    r = records(ready, s['id'])
    assert [(x['path'], x['verdict'], x['sandbox']) for x in r] == [('/1', 'allow', s['id']), ('/2', 'deny', s['id'])]
    assert os.stat(os.path.join(ready.data, 'audit')).st_mode & 0o777 == 0o700
    assert audit(ready, s['id'])['next_cursor'] is None


def test_a_gateway_that_lies(ready):
    s = ready.create()
    other = ready.create()
    bad = ['', 'x', '{}', '[1]', line(1, sandbox=other['id']), line(2, kind='lies'), line(3, time='yesterday'),
           '{"a":' * 40 + '1' + '}' * 40, line(4, password='x'), line(5, path='/' + 'x' * 9000)]
    assert send(ready, s['id'], bad) is None
    assert records(ready, other['id']) == []
    got = records(ready, s['id'])
    assert all(r['sandbox'] == s['id'] and 'password' not in r for r in got)
    assert '/1' in [r['path'] for r in got] and '/2' not in [r['path'] for r in got]


def test_filters(ready):
    s = ready.create()
    lines = [line(0, host='a.example.com'), line(1, host='b.example.com', verdict='deny', time='2026-01-02T03:04:06.000Z'),
             line(2, host='example.com', kind='dns', time='2026-01-02T03:04:07.000Z', type='A'),
             line(3, host='notexample.com', kind='connect', time='2026-01-02T03:04:08.500Z')]
    assert send(ready, s['id'], lines) is None

    def paths(q):
        return [r['path'] for r in records(ready, s['id'], '?' + q)]
    assert paths('host=a.example.com') == ['/0']
    assert paths('host=*.example.com') == ['/0', '/1']
    assert paths('verdict=deny') == ['/1']
    assert paths('verdict=allow') == ['/0', '/2', '/3']
    assert paths('kind=dns') == ['/2']
    assert paths('since=2026-01-02T03:04:06Z') == ['/1', '/2', '/3']
    assert paths('since=2026-01-02T03:04:06Z&until=2026-01-02T03:04:08.5Z') == ['/1', '/2']
    assert paths('since=1h') == [] and len(paths('until=1h')) == 4
    assert paths('rule=r&host=example.com:443') == ['/2']
    assert paths('host=*.example.com&verdict=deny&kind=request') == ['/1']
    assert paths('host=nobody.example') == []


@pytest.mark.parametrize('query', ['verdict=maybe', 'kind=x', 'since=now', 'until=-1', 'host=a%20b', 'host=*.*', 'reason=x', 'limit=0',
                                   'limit=99999', 'cursor=x', 'cursor=1', 'cursor=1.x', 'cursor=1.99999999', 'follow=2'])
def test_bad_queries(ready, query):
    s = ready.create()
    assert send(ready, s['id'], [line()]) is None
    r = ready.get(f"/v1/sandboxes/{s['id']}/audit?{query}")
    assert r.status == 400, r


def test_pages(ready):
    s = ready.create()
    for k in range(5):
        assert send(ready, s['id'], [line(k * 10 + i, verdict='deny' if i == 5 else 'allow') for i in range(10)]) is None
    for query, want in (('limit=7', list(range(50))), ('limit=1&verdict=deny', [5, 15, 25, 35, 45])):
        got, cursor = [], ''
        while cursor is not None:
            page = audit(ready, s['id'], f'?{query}{cursor}')
            got += [int(r['path'][1:]) for r in page['records']]
            cursor = page['next_cursor'] and f"&cursor={page['next_cursor']}"
        assert got == want


def test_rotated_and_bounded(bare):
    bare.start_standin()
    bare.start('[audit]\nsandbox = 256K\ntotal = 1M\n')
    bare.template()
    s = bare.create()
    n = 0
    cursor = None
    for _ in range(20):
        assert send(bare, s['id'], [line(n + i, detail='d' * 100) for i in range(100)]) is None
        n += 100
        cursor = cursor or audit(bare, s['id'], '?limit=10')['next_cursor']
        assert size(bare, s['id']) <= 256 * 1024
    assert len(os.listdir(folder(bare, s['id']))) > 2
    got = [int(r['path'][1:]) for r in records(bare, s['id'], '?limit=10000')]
    assert got == list(range(n - len(got), n)) and 500 < len(got) < n  # the newest, all of them
    # A cursor of what is gone goes on with what is there.
    assert [int(r['path'][1:]) for r in records(bare, s['id'], f'?limit=10000&cursor={cursor}')] == got
    # The host's limit: who has most gives way, the small one stays.
    small = bare.create()
    assert send(bare, small['id'], [line(7)]) is None
    for _ in range(5):
        t = bare.create()
        for _ in range(8):
            assert send(bare, t['id'], [line(i, detail='d' * 100) for i in range(100)]) is None
    total = sum(size(bare, i) for i in os.listdir(os.path.join(bare.data, 'audit')))
    assert total <= 1 << 20
    assert [r['path'] for r in records(bare, small['id'])] == ['/7']
    # Also after a restart it knows what there is.
    bare.kill()
    bare.start('[audit]\nsandbox = 256K\ntotal = 1M\n')
    for _ in range(8):
        assert send(bare, t['id'], [line(i, detail='d' * 100) for i in range(100)]) is None
    assert size(bare, t['id']) <= 256 * 1024
    assert sum(size(bare, i) for i in os.listdir(os.path.join(bare.data, 'audit'))) <= 1 << 20


def test_torn_line(ready):
    s = ready.create()
    assert send(ready, s['id'], [line(1)]) is None
    ready.kill()
    path = os.path.join(folder(ready, s['id']), os.listdir(folder(ready, s['id']))[0])
    with open(path, 'a') as f:
        f.write('{"time":"2026')
    ready.start()
    assert [r['path'] for r in records(ready, s['id'])] == ['/1']
    assert send(ready, s['id'], [line(2)]) is None
    assert [r['path'] for r in records(ready, s['id'])] == ['/1', '/2']


def test_packets_that_are_dropped(ready):
    """A record for each reason, with how many; found by kind, reason and verdict; nothing for what nobody has."""
    s = ready.create()['id']
    ready.steer(packets={'id': s, 'spoofed': 2, 'not_carried': 1, 'flooded': 0})
    found = until(lambda: len(records(ready, s, '?kind=packets')) == 2 and records(ready, s, '?kind=packets'), what='two records')
    assert [{k: v for k, v in r.items() if k != 'time'} for r in found] == [
        {'kind': 'packets', 'verdict': 'deny', 'rule': 'default', 'reason': 'packet_spoofed', 'sandbox': s, 'repeated': 1},
        {'kind': 'packets', 'verdict': 'deny', 'rule': 'default', 'reason': 'packet_not_carried', 'sandbox': s}]
    ready.steer(packets={'id': s, 'spoofed': 0, 'not_carried': 0, 'flooded': 2 ** 63})
    r, = until(lambda: records(ready, s, '?reason=packet_flood&verdict=deny'), what='a record')
    assert r['repeated'] == 2 ** 63 - 1
    ready.steer(packets={'id': 'a' * 26, 'spoofed': 1, 'not_carried': 1, 'flooded': 1})
    ready.steer(packets={'id': s, 'spoofed': 0, 'not_carried': 0, 'flooded': 0})
    ready.steer(packets={'id': s, 'spoofed': 1, 'not_carried': 0, 'flooded': 0})
    until(lambda: len(records(ready, s)) == 4, what='the last one')
    assert not os.path.exists(folder(ready, 'a' * 26))
    assert 'cspace_egress_total{kind="packets",verdict="deny"}' in ready.get('/metrics').body.decode()


def test_gap_is_told(ready):
    s = ready.create()
    assert send(ready, s['id'], [line(1)], dropped=12) is None
    r = records(ready, s['id'], '?kind=lost')
    assert len(r) == 1 and r[0]['records'] == 12 and r[0]['sandbox'] == s['id']


def test_follow(ready):
    s = ready.create()
    assert send(ready, s['id'], [line(1), line(2, verdict='deny')]) is None
    f, denied = Follow(ready, s['id']), Follow(ready, s['id'], '&verdict=deny')
    assert (f.line()['path'], f.line()['path'], denied.line()['path']) == ('/1', '/2', '/2')
    assert send(ready, s['id'], [line(3), line(4, verdict='deny')]) is None
    assert (f.line()['path'], f.line()['path'], denied.line()['path']) == ('/3', '/4', '/4')
    assert ready.delete(f"/v1/sandboxes/{s['id']}?wait=30").status == 200
    assert f.line() is None and denied.line() is None  # properly ended
    f.close()
    denied.close()


def test_follow_from_nothing_and_much(ready):
    s = ready.create()
    f = Follow(ready, s['id'])
    got = []
    t = threading.Thread(target=lambda: got.extend(f.line()['path'] for _ in range(3000)))
    t.start()
    for k in range(6):
        assert send(ready, s['id'], [line(k * 500 + i) for i in range(500)]) is None
    t.join(20)
    assert got == [f'/{i}' for i in range(3000)]
    f.close()


def test_slow_follower_holds_nobody_up(ready):
    s = ready.create()
    f = Follow(ready, s['id'])
    for k in range(30):
        assert send(ready, s['id'], [line(k, detail='d' * 150) for _ in range(300)]) is None
    assert ready.get('/health').status == 204
    n = 0
    while n < 9000:
        assert f.line()['path'] == f'/{n // 300}'
        n += 1
    f.close()


def test_followers_that_do_not_read(ready):
    """What they have not read is in the log, and not in cspaced's memory once for each of them."""
    s = ready.create()
    all_of = [Follow(ready, s['id']) for _ in range(24)]
    before, seen = ready.resident(), []
    for k in range(30):
        assert send(ready, s['id'], [line(k, detail='d' * 150) for _ in range(300)]) is None

    def still():
        seen.append(ready.resident())
        time.sleep(0.2)
        return len(seen) > 5 and max(seen[-5:]) == min(seen[-5:])
    until(still, what='a standstill')
    assert seen[-1] - before < ready.most(40), (before, seen)
    for f in (all_of[0], all_of[-1]):
        assert [f.line()['path'] for _ in range(9000)] == [f'/{n // 300}' for n in range(9000)]
    for f in all_of:
        f.close()


def test_followers_leave(ready):
    s = ready.create()
    for _ in range(300):
        Follow(ready, s['id']).close()
    until(lambda: Follow(ready, s['id']).reply.status == 200, what='room again')
    assert send(ready, s['id'], [line(1)]) is None


def test_kept_after_delete(bare):
    bare.start_standin()
    bare.start()
    bare.template()
    s = bare.create(name='box')
    assert send(bare, s['id'], [line(1)]) is None
    assert bare.delete(f"/v1/sandboxes/{s['id']}?wait=30").status == 200
    assert [r['path'] for r in records(bare, s['id'])] == ['/1']
    assert bare.get('/v1/sandboxes/box/audit').code == 'sandbox_not_found'
    assert bare.get(f"/v1/sandboxes/{s['id']}/audit?follow=1").code == 'sandbox_not_found'
    alive = bare.create()
    assert send(bare, alive['id'], [line(2)]) is None
    bare.stop()
    old = time.time() - 8 * 86400  # a week has passed
    for ident in (s['id'], alive['id']):
        for name in os.listdir(folder(bare, ident)):
            os.utime(os.path.join(folder(bare, ident), name), (old, old))
        os.utime(folder(bare, ident), (old, old))
    bare.start()
    until(lambda: not os.path.exists(folder(bare, s['id'])), what='the log is gone')
    assert bare.get(f"/v1/sandboxes/{s['id']}/audit").code == 'sandbox_not_found'
    assert [r['path'] for r in records(bare, alive['id'])] == ['/2']


def test_unknown(ready):
    for ident in ('nobody', 'a' * 26, '..%2f..', '.'):
        assert ready.get(f'/v1/sandboxes/{ident}/audit').code == 'sandbox_not_found'


def test_disk_that_does_not_take_it(ready):
    s = ready.create()
    assert send(ready, s['id'], [line(1)]) is None
    segments = os.listdir(folder(ready, s['id']))
    os.rename(folder(ready, s['id']), folder(ready, s['id']) + '.away')
    a = send(ready, s['id'], [line(2)])
    assert a and a['code'], a  # not acknowledged
    os.rename(folder(ready, s['id']) + '.away', folder(ready, s['id']))
    assert send(ready, s['id'], [line(2)]) is None
    assert [r['path'] for r in records(ready, s['id'])] == ['/1', '/2']
    assert segments == os.listdir(folder(ready, s['id']))


def test_reply_is_valid_http(ready):
    s = ready.create()
    conn = http.client.HTTPConnection('127.0.0.1', ready.port, timeout=20)
    conn.request('GET', f"/v1/sandboxes/{s['id']}/audit")
    assert conn.getresponse().status == 401
    conn.close()
