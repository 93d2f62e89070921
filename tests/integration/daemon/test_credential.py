# SPDX-License-Identifier: Apache-2.0
"""Credentials and bindings, with a stand-in for the gateway."""
import json
import os
import sqlite3
import stat

import pytest

from conftest import until
from test_egress import active, gateway

SECRET = 'tok-"é\\\t7f3a9c'
BIND = {'credential': 'token', 'hosts': ['api.example.com'], 'methods': ['GET'], 'env': 'API_TOKEN'}


def keep(d, name='token', secret=SECRET, **kw):
    r = d.request('PUT', f'/v1/credentials/{name}', {'secret': secret, **kw})
    assert r.status == 200, r
    return r.json


def last(d, ident):
    return gateway(d, ident)['configs'][-1]


def nowhere(d, secret):
    """Neither told nor written: not in the log, not in any file."""
    found = [secret.encode(), json.dumps(secret)[1:-1].encode(), json.dumps(secret, ensure_ascii=False)[1:-1].encode()]
    for folder, _, names in os.walk(d.top):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, 'rb') as f:
                    data = f.read()
                assert not any(s in data for s in found), path


def test_write_only(ready):
    made = keep(ready)
    assert made['name'] == 'token' and made['provider'] == 'static' and made['expires_at'] is None
    r = ready.get('/v1/credentials')
    assert [c['name'] for c in r.json['credentials']] == ['token'] and SECRET not in json.dumps(r.json, ensure_ascii=False)
    assert ready.get('/v1/credentials/token').status == 405
    path = os.path.join(ready.data, 'credential.key')
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.path.getsize(path) == 32
    nowhere(ready, SECRET)
    ready.kill()
    ready.start()
    assert [c['name'] for c in ready.get('/v1/credentials').json['credentials']] == ['token']
    assert ready.delete('/v1/credentials/token').status == 204
    assert ready.delete('/v1/credentials/token').code == 'credential_not_found'


@pytest.mark.parametrize('name, body', [
    ('token', {}), ('token', None), ('token', {'secret': 'short'}), ('token', {'secret': 'x' * 9000}), ('token', {'secret': 7}),
    ('token', {'secret': 'long enough', 'provider': 'magic'}), ('token', {'secret': 'long enough', 'expires_at': 'soon'}),
    ('token', {'secret': 'long enough', 'more': 1}), ('a%20b', {'secret': 'long enough'}), ('-x', {'secret': 'long enough'}),
    ('a%2fb', {'secret': 'long enough'}), ('n' * 65, {'secret': 'long enough'}),
])
def test_bad_credentials(daemon, name, body):
    r = daemon.request('PUT', f'/v1/credentials/{name}', body)
    assert r.status == 400, r
    assert daemon.get('/v1/credentials').json['credentials'] == []


def test_bound_at_creation(ready):
    keep(ready)
    s = ready.create(allow=['api.example.com'], bindings=[BIND], env={'OTHER': 'x'})
    active(ready, s['id'])
    b = ready.get(f"/v1/sandboxes/{s['id']}/bindings").json['bindings'][0]
    assert b['placeholder'] and b['inject'] == {'as': 'header', 'name': 'Authorization', 'template': 'Bearer {secret}'}
    c = last(ready, s['id'])
    assert c['secrets'] == {'token': {'secret': SECRET, 'expires_ms': 0}}
    assert c['bindings'] == [{k: v for k, v in b.items() if k != 'env'}]
    env = ready.placed()[s['id']]['identity']['env']
    assert env['API_TOKEN'] == b['placeholder'] and env['OTHER'] == 'x'
    nowhere(ready, SECRET)


def test_a_sandbox_without_has_no_secret(ready):
    keep(ready)
    s = ready.create(allow=['api.example.com'])
    active(ready, s['id'])
    assert 'secrets' not in last(ready, s['id']) and 'bindings' not in last(ready, s['id'])


def test_bind_and_unbind(ready):
    keep(ready)
    keep(ready, 'other', 'another secret')
    s = ready.create(allow=['api.example.com'])
    path = f"/v1/sandboxes/{s['id']}/bindings"
    r = ready.post(path, BIND)
    assert r.status == 201, r
    one = r.json
    assert last(ready, s['id'])['secrets'] == {'token': {'secret': SECRET, 'expires_ms': 0}}  # before the answer
    r = ready.post(path, {'id': 'two', 'credential': 'other', 'hosts': ['b.example.com'], 'inject': {'as': 'basic', 'user': 'git'},
                          'rate': {'per_minute': 60}, 'uses': 5, 'expires': '2030-01-01T00:00:00Z', 'paths': ['/x/']})
    assert r.status == 201, r
    assert set(last(ready, s['id'])['secrets']) == {'token', 'other'}
    assert ready.post(path, {**BIND, 'id': 'two'}).code == 'conflict'
    r = ready.delete('/v1/credentials/other')
    assert r.code == 'conflict' and s['id'] in r.json['error']['message'], r
    # A command that is started now finds the placeholder.
    p = ready.post(f"/v1/sandboxes/{s['id']}/commands", {'cmd': 'true', 'env': {'A': 'b'}})
    assert p.status == 201, p
    assert ready.delete(f'{path}/two').status == 204
    assert ready.delete(f'{path}/two').code == 'binding_not_found'
    assert set(last(ready, s['id'])['secrets']) == {'token'}
    assert ready.delete('/v1/credentials/other').status == 204
    ready.kill()
    ready.start()
    active(ready, s['id'])
    assert ready.get(path).json['bindings'] == [one]
    assert last(ready, s['id'])['secrets'] == {'token': {'secret': SECRET, 'expires_ms': 0}}


@pytest.mark.parametrize('body, code', [
    ({'credential': 'nope', 'hosts': ['a.example']}, 'credential_not_found'),
    ({'credential': 'token'}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': []}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['*']}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['@packages']}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'used': 3}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'placeholder': 'x' * 30}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'inject': {'as': 'magic'}}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'env': '1X'}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'env': 'A=B'}, 'invalid_argument'),
    ({'credential': 'token', 'hosts': ['a.example'], 'uses': 0}, 'invalid_argument'),
])
def test_bad_bindings(ready, body, code):
    keep(ready)
    s = ready.create()
    r = ready.post(f"/v1/sandboxes/{s['id']}/bindings", body)
    assert r.code == code, r
    assert ready.get(f"/v1/sandboxes/{s['id']}/bindings").json['bindings'] == []
    assert ready.post('/v1/sandboxes', {'template': 'base', 'bindings': [body]}).status in (400, 404)


def test_rotation(ready):
    keep(ready)
    ids = [ready.create(bindings=[BIND])['id'] for _ in range(3)]
    bystander = ready.create()['id']
    for i in (*ids, bystander):
        active(ready, i)
    n = len(gateway(ready, bystander)['configs'])
    keep(ready, secret='the new secret', expires_at='2030-01-01T00:00:00Z')
    for i in ids:
        assert last(ready, i)['secrets'] == {'token': {'secret': 'the new secret', 'expires_ms': 1893456000000}}
    assert len(gateway(ready, bystander)['configs']) == n
    nowhere(ready, SECRET)
    nowhere(ready, 'the new secret')


def test_secret_that_a_binding_cannot_use(ready):
    """It is refused before anything is stored: a gateway that refused it later would be one without any policy."""
    keep(ready)
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    r = ready.request('PUT', '/v1/credentials/token', {'secret': 'two\nlines of it'})
    assert r.status == 400 and 'two' not in r.json['error']['message'], r
    assert last(ready, s['id'])['secrets']['token']['secret'] == SECRET
    keep(ready, 'lines', 'two\nlines of it')
    r = ready.post(f"/v1/sandboxes/{s['id']}/bindings", {**BIND, 'credential': 'lines'})
    assert r.status == 400 and 'two' not in r.json['error']['message'], r
    r = ready.post(f"/v1/sandboxes/{s['id']}/bindings", {**BIND, 'credential': 'lines', 'inject': {'as': 'query', 'name': 'k'}})
    assert r.status == 201, r
    assert last(ready, s['id'])['secrets']['lines']['secret'] == 'two\nlines of it'


def test_refused_by_the_gateway(ready):
    keep(ready)
    s = ready.create()
    active(ready, s['id'])
    ready.fault('GW_CONFIG', error=[22, 'bindings: no'], times=1)
    r = ready.post(f"/v1/sandboxes/{s['id']}/bindings", BIND)
    assert r.code == 'gateway_refused', r
    assert ready.get(f"/v1/sandboxes/{s['id']}/bindings").json['bindings'] == []
    assert 'bindings' not in last(ready, s['id'])


def test_uses_are_counted(ready):
    keep(ready)
    s = ready.create(bindings=[{**BIND, 'id': 'b1', 'uses': 10}])
    active(ready, s['id'])
    record = {'time': '2026-01-02T03:04:05.000Z', 'kind': 'request', 'verdict': 'allow', 'rule': 'r', 'reason': 'rule', 'binding': 'b1'}
    lines = [record, {**record, 'repeated': 2}, {**record, 'verdict': 'deny', 'reason': 'binding_uses'}, {**record, 'binding': 'b2'}]
    assert gateway(ready, s['id'], audit=[json.dumps(x) for x in lines])['answer'] is None
    assert ready.get(f"/v1/sandboxes/{s['id']}/bindings").json['bindings'][0]['used'] == 4
    gateway(ready, s['id'], cut=True)  # another gateway does not begin anew
    until(lambda: last(ready, s['id'])['bindings'][0].get('used') == 4, what='told')
    ready.kill()
    ready.start()
    active(ready, s['id'])
    assert last(ready, s['id'])['bindings'][0]['used'] == 4


def test_another_key(ready):
    keep(ready)
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    ready.stop()
    os.unlink(os.path.join(ready.data, 'credential.key'))
    ready.start()
    active(ready, s['id'])
    assert last(ready, s['id'])['secrets'] == {}  # requests are refused, nothing else breaks
    assert SECRET not in ready.text()
    keep(ready)
    assert last(ready, s['id'])['secrets'] == {'token': {'secret': SECRET, 'expires_ms': 0}}


def test_moved_to_another_name(ready):
    keep(ready)
    keep(ready, 'other', 'another secret')
    ready.stop()
    with sqlite3.connect(os.path.join(ready.data, 'state.db')) as db:
        db.execute("UPDATE credentials SET sealed = (SELECT sealed FROM credentials WHERE name = 'token') WHERE name = 'other'")
    db.close()
    ready.start()
    s = ready.create(bindings=[{**BIND, 'credential': 'other'}])
    active(ready, s['id'])
    assert last(ready, s['id'])['secrets'] == {}


def test_damaged_key_is_told(ready):
    ready.stop()
    with open(os.path.join(ready.data, 'credential.key'), 'wb') as f:
        f.write(b'short')
    ready.start(wait=False)
    assert ready.proc.wait(15) == 1 and 'is not a key' in ready.text()
    ready.proc = None
