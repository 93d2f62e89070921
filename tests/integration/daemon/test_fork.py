# SPDX-License-Identifier: Apache-2.0
"""Forks: all copies or none, whatever fails in between. (With real VMs: tests/integration/life/test_fork.py.)"""
import contextlib
import sqlite3
import threading

import pytest

from conftest import until

HOW = {'running': [], 'paused': ['pause'], 'suspended': ['suspend'], 'stopped': ['stop']}


def fork(d, s, wait=60, headers=None, **body):
    return d.post(f'/v1/sandboxes/{s}/fork?wait={wait}', body, headers=headers)


def made(d, state='running', **kw):
    s = d.create(**kw)['id']
    for verb in HOW[state]:
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
    return s


def ids(d):
    return {s['id'] for s in d.get('/v1/sandboxes').json['sandboxes']}


def host(d):
    st = d.steer(state=True)
    return set(st['placed']), set(st['images'])


def rows(d, query):
    """cspaced holds the database; it is restarted for this."""
    d.stop()
    with contextlib.closing(sqlite3.connect(f'{d.data}/state.db')) as c, c:
        found = c.execute(query).fetchall()
    d.start()
    return found


@pytest.mark.parametrize('state', HOW)
def test_fork(ready, state):
    d = ready
    s = d.create(name='one', env={'A': 'b'}, metadata={'k': 'v'})['id']
    token = d.placed()[s]['identity']['accessToken']
    for verb in HOW[state]:
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
    r = fork(d, s, n=3)
    assert r.status == 201, r
    op = r.json['operation']
    assert op['kind'] == 'fork' and op['state'] == 'succeeded' and op['sandbox_id'] == s
    copies = op['result']['sandboxes']
    assert [x['id'] for x in r.json['sandboxes']] == copies and len(set(copies + [s])) == 4
    assert d.sandbox(s)['state'] == state and 'forked_from' not in d.sandbox(s)
    placed = d.placed()
    for c in copies:
        x = d.sandbox(c)
        assert x['state'] == 'running' and x['forked_from'] == s and x['env'] == {'A': 'b'} and x['metadata'] == {'k': 'v'}
        assert x['name'] is None and x['digest'] == d.sandbox(s)['digest'] and x['started_at']
        identity = placed[c]['identity']
        assert identity['hostname'] == c and identity['sandboxId'] == c and identity['accessToken'] != token
        assert placed[c]['mode'] == ('start' if state == 'stopped' else 'restore')
        assert d.post(f'/v1/sandboxes/{c}/commands', {'cmd': 'x'}).status == 201
    assert len({placed[c]['identity']['accessToken'] for c in copies}) == 3
    own = {'suspended', 'stopped'} & {state}
    until(lambda: len(host(d)[1]) == len(own), what='removal of the image')
    assert host(d)[0] == set(copies) | ({s} if not own else set())
    assert rows(d, 'SELECT * FROM forks') == []
    # each has its own life
    assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    assert d.post(f'/v1/sandboxes/{copies[0]}/suspend?wait=60').status == 200
    assert d.post(f'/v1/sandboxes/{copies[0]}/wake?wait=60').status == 200
    d.kill()
    d.start()
    assert ids(d) == set(copies) and all(d.sandbox(c)['state'] == 'running' and d.sandbox(c)['forked_from'] == s for c in copies)


@pytest.mark.parametrize('kind', ['disk', 'full'])
@pytest.mark.parametrize('state', HOW)
def test_from_a_checkpoint(ready, kind, state):
    d = ready
    s = d.create()['id']
    c = d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'kind': kind, 'name': 'then'}).json['operation']['id']
    for verb in HOW[state]:
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
    before = d.steer(seen=True).count('IMAGE_COMMIT')
    r = fork(d, s, n=2, checkpoint='then')
    assert r.status == 201 and all(x['state'] == 'running' for x in r.json['sandboxes']), r
    assert d.steer(seen=True).count('IMAGE_COMMIT') == before  # nothing is copied
    for x in r.json['sandboxes']:
        assert d.placed()[x['id']]['mode'] == ('restore' if kind == 'full' else 'start')
        assert d.get(f'/v1/sandboxes/{x["id"]}/checkpoints').json == {'checkpoints': [], 'head': None}
    assert c in host(d)[1] and d.sandbox(s)['state'] == state
    assert d.request('DELETE', f'/v1/sandboxes/{s}/checkpoints/then').status == 204
    until(lambda: c not in host(d)[1], what='removal of the image')


def test_image_is_kept_while_copies_need_it(ready):
    """Checkpoint, and the sandbox itself, go while the copies are being made."""
    d = ready
    s = made(d, 'suspended')
    d.fault('PLACE', delay=0.7)
    r = fork(d, s, 0, n=2)
    assert r.status == 202 and r.json['operation']['state'] == 'running', r
    n = d.steer(seen=True).count('IMAGE_REMOVE')
    assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    assert d.op(r.json['operation']['id'])['state'] == 'succeeded'
    until(lambda: not host(d)[1], what='removal of the image')
    assert n == 0


def test_names_policy_and_bindings(ready):
    d = ready
    policy = {'rules': [{'action': 'allow', 'hosts': ['api.example.com']}]}
    assert d.request('PUT', '/v1/credentials/tok', {'secret': 'x' * 20}).status in (200, 201)
    s = d.create(policy=policy, bindings=[{'credential': 'tok', 'hosts': ['api.example.com'], 'env': 'TOKEN'}])['id']
    until(lambda: d.sandbox(s)['egress']['state'] == 'active', what='gateway')
    d.steer(gateway=s, names={'next': 7, 'names': {'api.example.com': 5}})
    mine = until(lambda: d.steer(gateway=s)['configs'], what='configuration')[-1]

    def config(c):
        until(lambda: d.sandbox(c)['egress']['state'] == 'active', what='gateway')
        return d.steer(gateway=c)['configs'][-1]

    plain = fork(d, s).json['sandboxes'][0]['id']
    got = config(plain)
    assert got['policy'] == policy and got['names'] == {'next': 7, 'names': {'api.example.com': 5}}
    assert got['ca_seed'] == mine['ca_seed'] and not got.get('bindings') and 'x' * 20 not in str(got)
    assert 'TOKEN' not in d.placed()[plain]['identity']['env']
    closed = fork(d, s, policy='none', bindings='inherit').json['sandboxes'][0]['id']
    got = config(closed)
    assert not got['policy'].get('rules') and got['bindings'] == mine['bindings'] and got['names']
    assert d.placed()[closed]['identity']['env']['TOKEN'] == d.placed()[s]['identity']['env']['TOKEN']
    other = fork(d, s, allow=['other.example.com']).json['sandboxes'][0]['id']
    assert 'other.example.com' in str(config(other)['policy']) and 'api.example.com' not in str(config(other)['policy'])
    # what is changed in one is so in that one alone
    assert d.request('PUT', f'/v1/sandboxes/{plain}/policy', {'policy': 'none'}).status == 200
    assert d.get(f'/v1/sandboxes/{s}/policy').json['policy'] == policy


def test_what_is_asked_for(ready):
    d = ready
    s = d.create(env={'A': 'b', 'C': 'd'}, metadata={'k': 'v'}, ttl_s=100, idle_s=50, on_idle='stop')['id']
    x = fork(d, s, name='copy', env={'A': 'x'}, metadata={'l': 'w'}, ttl_s=200).json['sandboxes'][0]
    assert x['name'] == 'copy' and x['env'] == {'A': 'x', 'C': 'd'} and x['metadata'] == {'l': 'w'}
    assert (x['idle_s'], x['on_idle']) == (50, 'stop') and x['expires_at'] > d.sandbox(s)['expires_at']
    assert d.placed()[x['id']]['identity']['hostname'] == 'copy'
    y = fork(d, s, n=2, name='many').json['sandboxes']
    assert [c['name'] for c in y] == ['many-1', 'many-2'] and y[0]['expires_at'] >= d.sandbox(s)['expires_at']
    n = ids(d)
    assert fork(d, s, name='copy').code == 'name_taken'
    assert fork(d, s, n=3, name='many').code == 'name_taken'
    assert ids(d) == n


@pytest.mark.parametrize('body', [
    {'n': 0}, {'n': 65}, {'n': -1}, {'n': 'x'}, {'n': 1.5}, {'what': 1}, {'policy': 'some'}, {'bindings': 'all'}, {'bindings': []},
    {'policy': {'rules': [{'action': 'eat'}]}}, {'policy': 'inherit', 'allow': ['a.example.com']}, {'name': 'No'}, {'name': ''},
    {'name': 'a' * 63, 'n': 2}, {'env': {'A=': 'x'}}, {'env': {'A': 1}}, {'ttl_s': -1}, {'checkpoint': 5}, {'metadata': []},
    {'env': {f'V{i}': 'x' * 30000 for i in range(20)}}])
def test_bad_input(ready, body):
    d = ready
    s = d.create()['id']
    r = d.post(f'/v1/sandboxes/{s}/fork', body)
    assert r.status == 400 and r.code == 'invalid_argument', r
    assert ids(d) == {s} and host(d)[0] == {s}


def test_limits_and_unknown_ones(bare):
    d = bare
    d.start_standin()
    d.start('[sandbox]\nmax = 4\n')
    d.template()
    s = d.create()['id']
    assert d.post('/v1/sandboxes/none/fork', {}).code == 'sandbox_not_found'
    assert fork(d, s, checkpoint='none').code == 'checkpoint_not_found'
    r = fork(d, s, n=4)
    assert r.status == 429 and '[sandbox] max' in r.json['error']['message']
    assert fork(d, s, n=3).status == 201
    assert fork(d, s).status == 429


def test_conflicts(ready):
    d = ready
    s = d.create()['id']
    d.fault('PAUSE', delay=0.5, times=1)
    assert d.post(f'/v1/sandboxes/{s}/pause').status == 202
    r = fork(d, s)
    assert r.status == 409 and r.code == 'conflict' and 'is pausing' in r.json['error']['message'], r
    until(lambda: d.sandbox(s)['state'] == 'paused', what='paused')
    d.fault('IMAGE_COMMIT', delay=0.5, times=1)
    first = fork(d, s, 0)
    assert first.status == 202
    for r in (fork(d, s), d.post(f'/v1/sandboxes/{s}/resume'), d.post(f'/v1/sandboxes/{s}/checkpoints', {})):
        assert r.status == 409 and 'being forked' in r.json['error']['message'], r
    op = d.op(first.json['operation']['id'])
    assert op['state'] == 'succeeded'
    # the copies are not to be touched before the end
    d.fault('IDENTIFY', delay=0.7, times=1)
    r = fork(d, s, 0, n=2)
    one = until(lambda: [x for x in d.get('/v1/sandboxes?state=running').json['sandboxes']
                         if x['id'] not in op['result']['sandboxes'] and x.get('forked_from')], what='the first copy')[0]['id']
    c = d.post(f'/v1/sandboxes/{one}/pause')
    if d.op(r.json['operation']['id'], 0)['state'] == 'running':
        assert c.status == 409 and 'fork has not ended' in c.json['error']['message'], c


def test_idempotent(ready):
    d = ready
    s = d.create()['id']
    h = {'Idempotency-Key': 'k1'}
    a, b = fork(d, s, headers=h, n=2), fork(d, s, headers=h, n=2)
    assert a.status == b.status == 201 and a.json['operation']['id'] == b.json['operation']['id']
    assert [x['id'] for x in a.json['sandboxes']] == [x['id'] for x in b.json['sandboxes']]
    assert len(ids(d)) == 3
    assert fork(d, s, headers=h, n=3).status == 422
    d.kill()
    d.start()
    assert fork(d, s, headers=h, n=2).json['operation']['id'] == a.json['operation']['id'] and len(ids(d)) == 3


TAKING = ['IMAGE_BEGIN', 'SAVE', 'IMAGE_COMMIT', 'RESUME']
MAKING = ['PLACE', 'IDENTIFY']


@pytest.mark.parametrize('step', TAKING + MAKING)
def test_killed_cspaced(ready, step):
    """Before the copies have their rows nothing is forked, afterwards all are made."""
    d = ready
    s = d.create()['id']
    d.hold(step)
    op = fork(d, s, 0, n=3).json['operation']['id']
    d.held(step)
    d.kill()
    d.start()
    d.release()
    ended = d.op(op)
    if step in MAKING:
        assert ended['state'] == 'succeeded' and ids(d) == {s, *ended['result']['sandboxes']} and len(ids(d)) == 4
        assert all(d.sandbox(c)['state'] == 'running' for c in ids(d))
    else:
        assert ended['error']['code'] == 'interrupted' and ids(d) == {s}
    until(lambda: host(d) == (ids(d), set()), what='what is needed and no more')
    until(lambda: d.sandbox(s)['state'] == 'running', what='the sandbox')
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    assert rows(d, 'SELECT * FROM forks') == []


@pytest.mark.parametrize('checkpoint', [False, True])
def test_another_boot_of_the_host(ready, checkpoint):
    """What was written for the copies of a VM alone need not be on the disk after a power cut; a checkpoint is."""
    d = ready
    s = d.create()['id']
    body = {'n': 2}
    if checkpoint:
        assert d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'kind': 'full', 'name': 'c'}).status == 200
        body['checkpoint'] = 'c'
    commits = [m for m in d.steer(commits=True) if m['fleeting']]
    d.fault('IDENTIFY', delay=0.7, times=1)
    n = len(d.steer(seen=True))
    op = fork(d, s, 0, **body).json['operation']['id']
    until(lambda: 'IDENTIFY' in d.steer(seen=True)[n:], what='IDENTIFY')
    d.kill()
    assert len([m for m in d.steer(commits=True) if m['fleeting']]) == len(commits) + (not checkpoint)
    with contextlib.closing(sqlite3.connect(f'{d.data}/state.db')) as c, c:
        (boot,), = c.execute('SELECT boot FROM forks').fetchall()
        with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as f:
            assert boot == ('' if checkpoint else f.read().strip())
        c.execute("UPDATE forks SET boot = '01234567-89ab-cdef-0123-456789abcdef' WHERE boot <> ''")
    d.start()
    ended = d.op(op)
    if checkpoint:
        assert ended['state'] == 'succeeded' and len(ids(d)) == 3
    else:
        assert ended['error']['code'] == 'interrupted' and 'restarted' in ended['error']['message'], ended
        until(lambda: ids(d) == {s} and host(d) == ({s}, set()), what='nothing else')
    assert rows(d, 'SELECT * FROM forks') == []


@pytest.mark.parametrize('step,times', [(x, 1) for x in TAKING[:3]] + [(x, n) for x in MAKING for n in (1, 2)])
def test_a_step_fails(ready, step, times):
    d = ready
    s = d.create(name='one')['id']
    if step in MAKING:
        d.fault(step, error=[28, 'no space left on the device'], times=times)
    else:
        d.fault(step, error=[28, 'no space left on the device'], times=1)
    r = fork(d, s, n=3)
    assert r.status in (500, 507) and 'no space left' in r.json['error']['message'], r
    if step in MAKING:
        assert r.json['error']['message'].startswith('copy ')
    op = d.op(r.json['error']['details']['operation_id'])
    assert op['state'] == 'failed' and op['kind'] == 'fork'
    assert ids(d) == {s} and d.sandbox(s)['state'] == 'running'
    until(lambda: host(d) == ({s}, set()), what='nothing else')
    assert rows(d, 'SELECT * FROM forks') == [] and len(rows(d, 'SELECT * FROM egress')) == 1
    d.fault(step)
    assert fork(d, s, n=3).status == 201


def test_killed_while_it_is_undone(ready):
    d = ready
    s = d.create()['id']
    d.fault('IDENTIFY', error=[5, 'broken'], times=1)
    d.hold('REMOVE')
    op = fork(d, s, 0, n=3).json['operation']['id']
    d.held('REMOVE')
    for copy in ids(d) - {s}:  # acknowledged when it is durable that they go; until then the next one makes them all
        assert d.delete(f'/v1/sandboxes/{copy}').status in (200, 202, 404)
    d.kill()
    d.start()
    d.release()
    assert d.op(op)['state'] == 'failed'
    until(lambda: ids(d) == {s} and host(d) == ({s}, set()), what='nothing else')
    assert rows(d, 'SELECT * FROM forks') == []


@pytest.mark.parametrize('step', ['IMAGE_COMMIT', 'PLACE', 'IDENTIFY'])
@pytest.mark.parametrize('what', ['rootd', 'vm', 'copy', 'delete'])
def test_disturbed(ready, step, what):
    d = ready
    s = d.create()['id']
    d.hold(step)
    op = fork(d, s, 0, n=3).json['operation']['id']
    d.held(step)
    deleted = None
    if what == 'rootd':
        d.steer(drop=True)
    elif what == 'vm':
        d.steer(vm_exit=s)
    elif what == 'delete':
        deleted = d.delete(f'/v1/sandboxes/{s}')
    elif what == 'copy':
        others = ids(d) - {s}
        if not others:
            d.release()
            return
        deleted = d.delete(f'/v1/sandboxes/{sorted(others)[1]}')
    d.release()
    assert not deleted or d.op(deleted.json['operation']['id'])['state'] == 'succeeded'
    ended = d.op(op)
    copies = set(ended['result']['sandboxes']) if ended['state'] == 'succeeded' else set()
    if what == 'copy':
        assert ended['error']['code'] == 'canceled'
    if what in ('vm', 'delete') and step in MAKING:
        assert copies
    of = set() if what == 'delete' else {s}
    until(lambda: ids(d) == copies | of, what='all or none')
    assert all(d.sandbox(c)['state'] == 'running' for c in copies)
    if what == 'vm':
        until(lambda: d.sandbox(s)['state'] == 'failed' and len(host(d)[1]) == 1, what='its disk is kept')
    else:
        until(lambda: host(d) == (copies | of, set()), what='what is needed and no more')


def test_full_database_makes_nothing(ready):
    """The rows of the copies cannot be written."""
    d = ready
    s = d.create()['id']
    c = d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'name': 'c'}).json['operation']['id']
    rows(d, "CREATE TRIGGER no BEFORE INSERT ON forks BEGIN SELECT RAISE(ABORT, 'no more'); END")
    for body in ({'n': 2}, {'n': 2, 'checkpoint': 'c'}):
        r = fork(d, s, **body)
        assert r.status >= 500 and ids(d) == {s} and d.sandbox(s)['state'] == 'running', r
        until(lambda: host(d) == ({s}, {c}), what='nothing else')
    rows(d, 'DROP TRIGGER no')
    assert fork(d, s, n=2).status == 201


def test_many(ready):
    d = ready
    s = d.create()['id']
    r = fork(d, s, n=64)
    assert r.status == 201 and len(r.json['sandboxes']) == 64, r
    assert len(host(d)[0]) == 65


# ---- as E2B clients know it ----------------------------------------------------------------------

@pytest.fixture
def e2b(ready):
    h = {'X-API-KEY': ready.post('/v1/keys', {'name': 'k'}).json['key']}

    def call(method, path, body=None):
        return ready.request(method, path, body, headers=h)

    call.d = ready
    return call


def e2b_create(e2b, **kw):
    r = e2b('POST', '/v2/sandboxes', {'templateID': 'base', 'timeout': 60, **kw})
    assert r.status == 201, r
    return r.json


def test_e2b_fork(e2b):
    d = e2b.d
    a = e2b_create(e2b, envVars={'A': 'b'}, network={'allowPublicTraffic': False, 'allowOut': ['api.example.com']})
    s = a['sandboxID']
    r = e2b('POST', f'/sandboxes/{s}/fork', {'count': 2, 'timeout': 100})
    assert r.status == 201 and len(r.json) == 2, r
    for x in (i['sandbox'] for i in r.json):
        assert x['envdAccessToken'] != a['envdAccessToken'] and x['trafficAccessToken'] not in (None, a['trafficAccessToken'])
        detail = e2b('GET', f'/sandboxes/{x["sandboxID"]}').json
        assert detail['state'] == 'running' and detail['network'] == e2b('GET', f'/sandboxes/{s}').json['network']
        assert d.get(f'/v1/sandboxes/{x["sandboxID"]}/policy').json['policy'] == d.get(f'/v1/sandboxes/{s}/policy').json['policy']
    assert e2b('POST', f'/sandboxes/{s}/fork').status == 201
    for bad in ({'count': 0}, {'count': 65}, {'timeout': 0}, {'count': 'x'}):
        assert e2b('POST', f'/sandboxes/{s}/fork', bad).status == 400, bad
    assert e2b('POST', '/sandboxes/none/fork').status == 404
    d.fault('PLACE', error=[28, 'no space left'], times=1)
    n = ids(d)
    r = e2b('POST', f'/sandboxes/{s}/fork', {'count': 2})
    assert r.status == 507 and r.json['code'] == 507 and ids(d) == n
    # one that is being made is not told of
    d.fault('IDENTIFY', delay=1, times=1)
    op = fork(d, s, 0).json['operation']['id']
    until(lambda: ids(d) != n, what='a copy')
    new = (ids(d) - n).pop()
    listed = {x['sandboxID'] for x in e2b('GET', '/v2/sandboxes').json}
    status = e2b('GET', f'/sandboxes/{new}').status
    if d.op(op, 0)['state'] == 'running':
        assert new not in listed and status == 404


@pytest.mark.parametrize('state', ['running', 'suspended', 'stopped'])
def test_e2b_snapshot(e2b, state):
    d = e2b.d
    s = e2b_create(e2b, envVars={'A': 'b'}, metadata={'k': 'v'}, network={'allowOut': ['api.example.com']})['sandboxID']
    for verb in HOW[state]:
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
    before = d.get('/v1/sandboxes').json
    r = e2b('POST', f'/sandboxes/{s}/snapshots', {'name': 'point'})
    assert r.status == 201 and r.json['names'] == ['point'], r
    snapshot = r.json['snapshotID']
    assert d.get('/v1/sandboxes').json == before and d.get(f'/v1/sandboxes/{snapshot}').status == 404
    assert e2b('GET', f'/sandboxes/{snapshot}').status == 404 and e2b('POST', f'/sandboxes/{snapshot}/pause').status == 404
    assert fork(d, snapshot).status == 404
    bare = e2b('POST', f'/sandboxes/{s}/snapshots', {}).json
    assert bare['names'] == []
    assert e2b('DELETE', f'/sandboxes/{s}').status == 204
    d.kill()
    d.start()
    assert len(e2b('GET', '/snapshots').json) == 2
    assert e2b('GET', f'/snapshots?sandboxID={s}&name=point').json == [{'snapshotID': snapshot, 'names': ['point']}]
    assert e2b('GET', '/snapshots?sandboxID=other').json == []
    page = e2b('GET', '/snapshots?limit=1')
    rest = e2b('GET', f'/snapshots?limit=1&nextToken={page.headers["X-Next-Token"]}')
    assert {x['snapshotID'] for x in page.json + rest.json} == {snapshot, bare['snapshotID']} and 'X-Next-Token' not in rest.headers
    plain = d.get(f'/v1/sandboxes/{e2b_create(e2b)["sandboxID"]}/policy').json['policy']
    for name in (snapshot, 'point', 'point:default'):
        x = e2b_create(e2b, templateID=name, timeout=100, metadata={'l': 'w'}, envVars={'C': 'd'})
        t = d.sandbox(x['sandboxID'])
        assert t['state'] == 'running' and t['forked_from'] == s and t['env'] == {'A': 'b', 'C': 'd'} and t['metadata'] == {'l': 'w'}
        assert d.placed()[x['sandboxID']]['mode'] == ('start' if state == 'stopped' else 'restore')
        assert d.get(f'/v1/sandboxes/{x["sandboxID"]}/policy').json['policy'] == plain  # the request's
        assert e2b('GET', f'/sandboxes/{x["sandboxID"]}').json['metadata'] == {'l': 'w'}
    assert e2b('DELETE', f'/templates/{snapshot}').status == 204
    assert e2b('DELETE', f'/templates/{snapshot}').status == 404
    assert e2b('POST', '/v2/sandboxes', {'templateID': snapshot, 'timeout': 60}).status == 404
    assert e2b('DELETE', f'/templates/{bare["snapshotID"]}').status == 204
    until(lambda: not host(d)[1], what='no image')
    for bad in ({'name': 'No such'}, {'name': ''}, {'name': 5}, {'name': 'x' * 64}):
        assert e2b('POST', f'/sandboxes/{x["sandboxID"]}/snapshots', bad).status == 400, bad
    assert e2b('POST', '/sandboxes/none/snapshots', {}).status == 404


def test_e2b_snapshot_outlives_the_time_of_its_sandbox(e2b):
    d = e2b.d
    s = e2b_create(e2b, timeout=2)['sandboxID']
    snapshot = e2b('POST', f'/sandboxes/{s}/snapshots', {}).json['snapshotID']
    later = e2b_create(e2b, timeout=2)['sandboxID']  # whose time is over after that of one made when the snapshot was
    until(lambda: not {s, later} & ids(d), what='the end of both')
    assert [x['snapshotID'] for x in e2b('GET', '/snapshots').json] == [snapshot]
    r = d.delete('/v1/templates/base')
    assert r.code == 'template_in_use' and '0 sandboxes, 1 snapshot and' in r.json['error']['message'], r


@pytest.mark.parametrize('step', TAKING)
@pytest.mark.parametrize('how', ['kill', 'error'])
def test_e2b_snapshot_disturbed(e2b, step, how):
    """It is there, or nothing of it is."""
    d = e2b.d
    s = e2b_create(e2b)['sandboxID']
    d.fault(step, **({'error': [28, 'no space left']} if how == 'error' else {'delay': 0.7}), times=1)
    n = len(d.steer(seen=True))
    if how == 'error':
        r = e2b('POST', f'/sandboxes/{s}/snapshots', {})
        assert r.status == (201 if step == 'RESUME' else 507), r
    else:
        t = threading.Thread(target=lambda: pytest.raises(Exception, e2b, 'POST', f'/sandboxes/{s}/snapshots', {}))
        t.start()
        until(lambda: step in d.steer(seen=True)[n:], what=step)
        d.kill()
        t.join()
        d.start()
    there = [x['snapshotID'] for x in e2b('GET', '/snapshots').json]
    assert len(there) == (how == 'error' and step == 'RESUME')
    until(lambda: len(host(d)[1]) == len(there), what='no other image')
    until(lambda: d.sandbox(s)['state'] == 'running', what='the sandbox')
    assert e2b('POST', f'/sandboxes/{s}/snapshots', {}).status == 201
