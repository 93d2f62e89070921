# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import os
import time

import pytest

from conftest import until


def test_create_get_list_delete(ready):
    d = ready
    r = d.post('/v1/sandboxes?wait=30', {'template': 'base', 'env': {'A': 'b=c', 'E': 'é'}, 'metadata': {'k': 'v'}, 'name': 'one'})
    assert r.status == 201
    s, op = r.json['sandbox'], r.json['operation']
    assert s['state'] == 'running' and s['template'] == 'base:latest' and s['memory_mb'] == 512 and s['name'] == 'one'
    assert op['state'] == 'succeeded' and op['kind'] == 'create' and op['sandbox_id'] == s['id']
    assert s['timing']['total_us'] > 0 and s['timing']['identify_us'] == 4
    assert d.sandbox('one')['id'] == s['id'] and d.sandbox(s['id'])['env'] == {'A': 'b=c', 'E': 'é'}
    ident = d.placed()[s['id']]['identity']
    assert ident['env'] == {'A': 'b=c', 'E': 'é'} and ident['hostname'] == 'one' and len(ident['accessToken']) == 40
    assert ident['sandboxId'] == s['id']
    assert ident['accessToken'] not in r.body.decode() + d.get('/v1/sandboxes').body.decode()
    assert [x['id'] for x in d.get('/v1/sandboxes').json['sandboxes']] == [s['id']]
    r = d.delete('/v1/sandboxes/one?wait=30')
    assert r.status == 200 and r.json['operation']['state'] == 'succeeded'
    assert d.sandbox(s['id']) is None and d.placed() == {}
    again = d.delete(f'/v1/sandboxes/{s["id"]}')
    assert again.status == 200 and again.json['operation']['id'] == r.json['operation']['id']
    assert d.get('/v1/sandboxes').json == {'sandboxes': [], 'next_cursor': None}


def test_two_are_different(ready):
    a, b = ready.create(), ready.create()
    ia, ib = (ready.placed()[s['id']]['identity'] for s in (a, b))
    assert ia['accessToken'] != ib['accessToken'] and ia['hostname'] != ib['hostname']


def test_asynchronous_and_wait(ready):
    ready.fault('RESTORE', delay=0.5)
    r = ready.post('/v1/sandboxes', {'template': 'base'})
    assert r.status == 202 and r.json['sandbox']['state'] == 'creating' and r.json['operation']['state'] == 'running'
    op = r.json['operation']['id']
    assert ready.op(op, 0)['state'] == 'running'
    began = time.monotonic()
    assert ready.op(op)['state'] == 'succeeded'
    assert 0.1 < time.monotonic() - began < 5
    r = ready.post('/v1/sandboxes?wait=1', {'template': 'base'})
    assert r.status == 201
    ready.fault('RESTORE', delay=3)
    r = ready.post('/v1/sandboxes?wait=1', {'template': 'base'})
    assert r.status == 202


@pytest.mark.parametrize('body,code', [
    ({'memory_mb': 127}, 'invalid_argument'), ({'memory_mb': 65537}, 'invalid_argument'), ({'cpus': 0}, 'invalid_argument'),
    ({'cpus': 33}, 'invalid_argument'), ({'memory_mb': '512'}, 'invalid_argument'), ({'ttl_s': -1}, 'invalid_argument'),
    ({'ttl_s': 1e12}, 'invalid_argument'), ({'ttl_s': 1.5}, 'invalid_argument'), ({'ttl_s': 2592001}, 'invalid_argument'),
    ({'disk_mb': 1}, 'invalid_argument'), ({'name': 'UPPER'}, 'invalid_argument'), ({'name': ''}, 'invalid_argument'),
    ({'name': 'a' * 26}, 'invalid_argument'), ({'name': 'a' * 64}, 'invalid_argument'), ({'env': {'A=B': 'x'}}, 'invalid_argument'),
    ({'env': {'': 'x'}}, 'invalid_argument'), ({'env': {'A': 1}}, 'invalid_argument'), ({'env': []}, 'invalid_argument'),
    ({'env': {f'V{i}': '' for i in range(1025)}}, 'invalid_argument'),
    ({'env': {'A': 'x' * 131073}}, 'invalid_argument'), ({'env': {'A': 'x' * 100000, 'B': 'y' * 100000}}, 'invalid_argument'),
    ({'metadata': {f'k{i}': 'v' for i in range(65)}}, 'invalid_argument'), ({'template': ''}, 'invalid_argument'),
    ({'template': 'other'}, 'template_not_found'), ({'template': 'base:2'}, 'template_not_found'),
    ({'template': '0' * 64}, 'template_not_found'),
])
def test_bad_arguments(ready, body, code):
    r = ready.post('/v1/sandboxes', {'template': 'base', **body})
    assert r.code == code, r
    assert ready.get('/v1/operations?kind=create').json['operations'] == []


def test_names_are_unique(ready):
    ready.create(name='x')
    r = ready.post('/v1/sandboxes', {'template': 'base', 'name': 'x'})
    assert (r.status, r.code) == (409, 'name_taken')
    ready.delete('/v1/sandboxes/x?wait=30')
    ready.create(name='x')


def test_limit_of_sandboxes(bare):
    bare.start_standin()
    bare.start(conf='[sandbox]\nmax = 2\n')
    bare.template()
    bare.create()
    s = bare.create()
    r = bare.post('/v1/sandboxes', {'template': 'base'})
    assert (r.status, r.code) == (429, 'too_many')
    bare.delete(f'/v1/sandboxes/{s["id"]}?wait=30')
    bare.create()


def test_pages_and_filters(ready):
    d = ready
    made = [d.create(metadata={'n': str(i), 'even': str(i % 2 == 0), 'a b&c': 'd=e'})['id'] for i in range(5)]

    def pages(query):
        out, cursor = [], ''
        while True:
            r = d.get(f'/v1/sandboxes?limit=2&cursor={cursor}{query}').json
            out += [s['id'] for s in r['sandboxes']]
            assert len(r['sandboxes']) <= 2
            cursor = r['next_cursor']
            if not cursor:
                return out

    assert pages('') == made[::-1] and pages('&order=oldest') == made
    assert pages('&metadata.even=True') == [made[4], made[2], made[0]]
    assert pages('&metadata.even=True&metadata.n=2') == [made[2]]
    assert pages('&metadata.a%20b%26c=d%3De') == made[::-1]
    assert pages('&metadata.none=1') == []
    assert pages('&state=failed') == [] and pages('&state=running,failed') == made[::-1]
    assert pages('&template=base') == made[::-1] and pages('&template=base:x') == []
    # a page's end may be deleted before the next page is asked for
    r = d.get('/v1/sandboxes?limit=2').json
    d.delete(f'/v1/sandboxes/{made[3]}?wait=30')
    assert [s['id'] for s in d.get(f'/v1/sandboxes?limit=2&cursor={r["next_cursor"]}').json['sandboxes']] == [made[2], made[1]]


def test_idempotency(ready):
    d, body = ready, {'template': 'base', 'metadata': {'a': '1'}}
    h = {'Idempotency-Key': 'key-1'}
    a = d.post('/v1/sandboxes?wait=30', body, headers=h)
    b = d.post('/v1/sandboxes?wait=30', body, headers=h)
    assert a.status == b.status == 201 and a.json['operation']['id'] == b.json['operation']['id']
    assert len(d.placed()) == 1
    r = d.post('/v1/sandboxes?wait=30', {'template': 'base'}, headers=h)
    assert (r.status, r.code) == (422, 'idempotency_mismatch')
    r = d.post('/v1/templates', {'name': 'x'}, headers=h)
    assert (r.status, r.code) == (422, 'idempotency_mismatch')
    # a request that was wrong does not use the key up
    h2 = {'Idempotency-Key': 'key-2'}
    assert d.post('/v1/sandboxes', {'template': 'nope'}, headers=h2).status == 404
    assert d.post('/v1/sandboxes?wait=30', body, headers=h2).status == 201
    for bad in ('', 'a b', 'x' * 256):
        assert d.post('/v1/sandboxes', body, headers={'Idempotency-Key': bad}).code in ('invalid_argument', 'bad_request')
    # durable
    d.kill()
    d.start()
    c = d.post('/v1/sandboxes?wait=30', body, headers=h)
    assert c.json['operation']['id'] == a.json['operation']['id'] and c.json['sandbox']['id'] == a.json['sandbox']['id']
    assert len(d.placed()) == 2


def test_idempotency_at_once(ready):
    """Many at one time: one sandbox, and each gets it or is told to come again."""
    h = {'Idempotency-Key': 'burst'}

    def one(_):
        while True:
            r = ready.post('/v1/sandboxes?wait=30', {'template': 'base'}, headers=h)
            if r.status != 409:
                return r.json['sandbox']['id']
            assert r.code == 'idempotency_in_progress'
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(one, range(16)))) == 1
    assert len(ready.placed()) == 1


def test_create_fails(ready):
    d = ready
    for fault, error, code in (('PLACE', [28, 'the disk is full'], 'storage_full'), ('PLACE', [5, 'no'], 'create_failed'),
                               ('IDENTIFY', [110, 'no answer'], 'guest_timeout'), ('IDENTIFY', [5, 'bad guest'], 'create_failed'),
                               ('RESTORE', [5, 'x'], 'create_failed')):
        d.fault(fault, error=error, times=1)
        r = d.post('/v1/sandboxes?wait=30', {'template': 'base'})
        assert r.code == code, (fault, r)
        details = r.json['error']['details']
        assert d.op(details['operation_id'])['error']['code'] == code
        s = d.sandbox(details['sandbox_id'])
        assert s['state'] == 'failed' and s['reason'] and s['expires_at']
        until(lambda: d.placed() == {}, what='removal')
        assert d.delete(f'/v1/sandboxes/{s["id"]}?wait=30').status == 200
    d.create()


def test_vm_ends(ready):
    d = ready
    a, b, c = d.create(), d.create(), d.create()
    d.steer(vm_exit=a['id'], reason='killed by the test')
    until(lambda: d.sandbox(a['id'])['state'] == 'failed', what='failed')
    assert 'killed by the test' in d.sandbox(a['id'])['reason']
    until(lambda: a['id'] not in d.placed(), what='removal')
    assert d.sandbox(b['id'])['state'] == 'running'
    events = [e['event'] for e in map(__import__('json').loads, d.get(f'/v1/sandboxes/{a["id"]}/logs').body.splitlines())]
    assert events == ['running', 'failed']
    # a lost warden alone is no lost VM
    d.steer(warden_exit=b['id'])
    d.steer(warden_start=b['id'])
    until(lambda: b'warden_back' in d.get(f'/v1/sandboxes/{b["id"]}/logs').body, what='the warden')
    assert d.sandbox(b['id'])['state'] == 'running'
    assert d.delete(f'/v1/sandboxes/{a["id"]}?wait=30').status == 200
    d.steer(warden_exit=c['id'])
    until(lambda: d.sandbox(c['id'])['state'] == 'failed', 40, 'the warden given up')


def test_what_a_guest_says_hides_nothing(ready):
    """Its agent's and console's words are quoted in errors, reasons and the log: none of these goes because of a byte in them."""
    d = ready
    s = d.create()['id']
    d.fault('FSFREEZE', error=[5, 'agent: \udcff\udcc3 said \x1b[2J\n'], times=1)
    assert d.post(f'/v1/sandboxes/{s}/checkpoints?wait=20', {}).status == 200
    d.fault('PAUSE', error=[5, 'agent: \udcff said'], times=1)
    r = d.post(f'/v1/sandboxes/{s}/pause?wait=20')
    assert 'agent: ? said' in r.json['error']['message'], r
    assert 'agent: ? said' in d.get(f'/v1/operations/{r.json["error"]["details"]["operation_id"]}').json['error']['message']
    d.steer(vm_exit=s, reason='console: \udce2\udc82 caf\u00e9')
    until(lambda: d.sandbox(s)['state'] == 'failed', what='failed')
    assert d.sandbox(s)['reason'] == 'console: ?? caf\u00e9'
    log = [json.loads(line) for line in d.get(f'/v1/sandboxes/{s}/logs').body.splitlines()]
    for event, text in (('checkpoint', 'agent: ?? said \x1b[2J'), ('change_failed', 'agent: ? said'), ('failed', 'console: ?? caf\u00e9')):
        assert any(e['event'] == event and text in e['message'] for e in log), (event, log)


@pytest.mark.parametrize('times,state', [(1, 'running'), (3, 'running'), (4, 'failed')])
def test_its_warden_ends_while_it_is_created(ready, times, state):
    d = ready
    asked = d.steer(seen=True).count('IDENTIFY')
    d.fault('IDENTIFY', hold=True, times=times)
    r = d.post('/v1/sandboxes', {'template': 'base'})
    s, op = r.json['sandbox']['id'], r.json['operation']['id']
    for n in range(asked + 1, asked + times + 1):
        until(lambda n=n: d.steer(seen=True).count('IDENTIFY') == n, what='the next try')
        d.steer(warden_exit=s)
    d.release()
    until(lambda: d.op(op)['state'] != 'running', what='the end')
    assert d.op(op)['state'] == {'running': 'succeeded', 'failed': 'failed'}[state] and d.sandbox(s)['state'] == state
    assert state == 'running' or 'warden ended' in d.op(op)['error']['message']


@pytest.mark.parametrize('times,state', [(3, 'running'), (4, 'failed')])
def test_its_warden_ends_before_it_is_one(ready, times, state):
    d = ready
    d.fault('PLACE', error=[32, 'it was ended from outside'], times=times)
    r = d.post('/v1/sandboxes?wait=30', {'template': 'base'})
    assert r.status == (201 if state == 'running' else 500), r
    assert state == 'running' or 'ended from outside' in r.json['error']['message']


def test_delete_while_creating(ready):
    d = ready
    for fault in ('PLACE', 'RESTORE', 'IDENTIFY'):
        d.fault(fault, delay=0.5, times=1)
        r = d.post('/v1/sandboxes', {'template': 'base'})
        s, op = r.json['sandbox']['id'], r.json['operation']['id']
        r = d.delete(f'/v1/sandboxes/{s}?wait=30')
        assert r.status == 200
        o = d.op(op)
        assert o['state'] == 'failed' and o['error']['code'] == 'canceled'
        assert d.placed() == {} and d.sandbox(s) is None


def test_deleted_is_gone(ready):
    """What a sandbox's environment held, and its token, are in no file of the database once it is deleted and cspaced has ended."""
    d = ready
    canaries = [f'canary-{i}-' + 'x' * (3000 * i) + 'end' for i in range(4)]
    made = [d.create(env={'KEY': c}, metadata={'m': f'meta-{i}'})['id'] for i, c in enumerate(canaries)]
    kept = d.create(env={'KEY': 'canary-kept'})['id']
    tokens = [d.placed()[s]['identity']['accessToken'] for s in made]
    for s in made:
        assert d.delete(f'/v1/sandboxes/{s}?wait=30').status == 200
    d.stop()

    def files():
        return b''.join(open(os.path.join(d.data, n), 'rb').read() for n in os.listdir(d.data) if n.startswith('state.db'))
    found = files()
    assert b'canary-kept' in found
    assert not [x for x in (*canaries, *tokens, 'meta-1') if x[:40].encode() in found]
    d.start()
    assert d.sandbox(kept)['state'] == 'running'


def test_delete_is_one(ready):
    d = ready
    s = d.create()
    d.fault('REMOVE', delay=0.3)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: d.delete(f'/v1/sandboxes/{s["id"]}?wait=30'), range(4)))
    assert {r.status for r in replies} == {200} and len({r.json['operation']['id'] for r in replies}) == 1


def test_delete_never_gives_up(ready):
    d = ready
    s = d.create()
    d.fault('REMOVE', error=[16, 'busy'], times=3)
    assert d.delete(f'/v1/sandboxes/{s["id"]}?wait=30').status == 200
    assert d.placed() == {}


def test_ttl(ready):
    d = ready
    began = time.time()
    s = d.create(ttl_s=2)
    assert s['expires_at']
    until(lambda: d.sandbox(s['id']) is None, what='expiry')
    assert 1.9 < time.time() - began < 3.2
    s = d.create(ttl_s=1)
    r = d.request('PATCH', f'/v1/sandboxes/{s["id"]}', {'ttl_s': 100})
    assert r.status == 200
    time.sleep(1.3)
    assert d.sandbox(s['id'])['state'] == 'running'
    for bad in ({}, {'ttl_s': -1}, {'ttl_s': 'x'}, {'ttl_s': 2592001}, {'x': 1}):
        assert d.request('PATCH', f'/v1/sandboxes/{s["id"]}', bad).code == 'invalid_argument'
    d.request('PATCH', f'/v1/sandboxes/{s["id"]}', {'ttl_s': 2})
    began = time.time()
    d.kill()
    d.start()
    until(lambda: d.sandbox(s['id']) is None, what='expiry after a restart')
    assert time.time() - began < 3.5
    until(lambda: d.placed() == {}, what='removal')


def test_ttl_of_the_host(bare):
    bare.start_standin()
    bare.start(conf='[sandbox]\nttl = 60\nttl_max = 120\n')
    bare.template()
    assert bare.create()['expires_at']
    assert bare.post('/v1/sandboxes', {'template': 'base', 'ttl_s': 0}).code == 'invalid_argument'
    assert bare.post('/v1/sandboxes', {'template': 'base', 'ttl_s': 121}).code == 'invalid_argument'


def test_usage(ready):
    s = ready.create()
    u = ready.get(f'/v1/sandboxes/{s["id"]}/usage').json
    assert u['host'] == {'cpu_us': 1, 'memory_bytes': 2, 'disk_bytes': 3, 'processes': 4} and u['guest']['cpu_count'] == 1
    stored = {'cpu_us': 0, 'memory_bytes': 0, 'disk_bytes': 4096, 'processes': 0}
    for verb in ('suspend', 'stop'):
        assert ready.post(f'/v1/sandboxes/{s["id"]}/{verb}?wait=60').status == 200
        assert ready.get(f'/v1/sandboxes/{s["id"]}/usage').json == {'host': stored, 'guest': None, 'egress': None}
    assert ready.post(f'/v1/sandboxes/{s["id"]}/wake?wait=60').status == 200
    assert ready.get(f'/v1/sandboxes/{s["id"]}/usage').json['host'] == u['host']
    ready.steer(vm_exit=s['id'])
    until(lambda: ready.sandbox(s['id'])['state'] == 'failed', what='failed')
    assert ready.get(f'/v1/sandboxes/{s["id"]}/usage').json['guest'] is None


def test_rootd_is_away(ready):
    d = ready
    s = d.create()
    d.steer(drop=True)
    until(lambda: d.get('/v1/host').json['rootd'] == 'connected', what='connected again')
    assert d.sandbox(s['id'])['state'] == 'running'
    d.standin.kill()
    d.standin.wait()
    until(lambda: d.get('/v1/host').json['rootd'] == 'unreachable', what='unreachable')
    r = d.post('/v1/sandboxes?wait=30', {'template': 'base'})
    assert (r.status, r.code) == (503, 'unavailable')
    assert d.delete(f'/v1/sandboxes/{s["id"]}?wait=1').status == 202
    d.start_standin()
    until(lambda: d.sandbox(s['id']) is None, what='deletion')
    # the variants went with the stand-in: made again, without a failure
    d.create()


def test_slow_ones_hold_nobody_up(ready):
    d = ready
    s = d.create()
    d.fault('IDENTIFY', hang=True, times=1)
    before = d.steer(seen=True).count('IDENTIFY')
    slow = d.post('/v1/sandboxes', {'template': 'base'}).json['sandbox']['id']
    # the answer comes when the rows are stored; the fault is for this one and not for the next
    until(lambda: d.steer(seen=True).count('IDENTIFY') > before, what='the IDENTIFY that hangs')
    began = time.monotonic()
    d.create()
    assert d.get(f'/v1/sandboxes/{s["id"]}/commands').status == 200
    assert time.monotonic() - began < 10
    assert d.sandbox(slow)['state'] == 'creating'
    assert d.delete(f'/v1/sandboxes/{slow}?wait=10').status == 200
