# SPDX-License-Identifier: Apache-2.0
"""Credentials whose tokens are got elsewhere: when they are asked for, renewed and handed on, and what happens when there is none. What
cspace-token would have said comes from the stand-in."""
import json
import os
import time

import pytest

from conftest import until
from test_credential import BIND, nowhere
from test_egress import active, gateway

CLIENT_SECRET = 'hush "é\\ 5d1b'
OAUTH2 = {'provider': 'oauth2', 'token_url': 'https://login.example.com/token', 'client_id': 'me', 'secret': CLIENT_SECRET}


class Source:
    def __init__(self, d):
        self.d = d
        self.good()

    def answer(self, data, name=None):
        path = os.path.join(self.d.run, f'token.{name}' if name else 'token')
        with open(path + '.new', 'w') as f:
            f.write(data)
        os.rename(path + '.new', path)

    def good(self, seconds=3600):
        self.answer(f'token {seconds} 10\nsecret%d\n')

    def asked(self):
        try:
            with open(os.path.join(self.d.run, 'token.asked')) as f:
                return [json.loads(line) for line in f]
        except FileNotFoundError:
            return []

    def left(self):
        """Of which the answer was not waited for."""
        try:
            with open(os.path.join(self.d.run, 'token.left')) as f:
                return f.read().split()
        except FileNotFoundError:
            return []

    def put(self, name='token', **body):
        r = self.d.request('PUT', f'/v1/credentials/{name}', {**OAUTH2, **body})
        assert r.status == 200, r
        return r.json

    def state(self, name='token'):
        return next(c for c in self.d.get('/v1/credentials').json['credentials'] if c['name'] == name)['token']

    def given(self, ident, name='token'):
        """What the gateway has now."""
        g = gateway(self.d, ident)
        return g['configs'][-1].get('secrets', {}).get(name, {}).get('secret'), [s[1] for s in g['secrets'] if s[0] == name]


@pytest.fixture
def source(ready):
    return Source(ready)


def test_stored(ready, source):
    made = source.put(scope='a b', audience='x', auth='body')
    assert {k: made[k] for k in ('provider', 'token_url', 'client_id', 'scope', 'audience', 'auth', 'expires_at')} == {
        'provider': 'oauth2', 'token_url': OAUTH2['token_url'], 'client_id': 'me', 'scope': 'a b', 'audience': 'x', 'auth': 'body', 'expires_at': None}
    assert made['token']['state'] == 'ready' and made['token']['expires_at'] and made['token']['reason'] is None
    asked, = source.asked()
    assert asked['request'] == {'token_url': OAUTH2['token_url'], 'client_id': 'me', 'secret': CLIENT_SECRET, 'scope': 'a b', 'audience': 'x',
                                'auth': 'body'}
    assert (asked['credential'], asked['provider'], asked['command']) == ('token', 'oauth2', '')
    os.unlink(os.path.join(ready.run, 'token.asked'))
    nowhere(ready, CLIENT_SECRET)
    ready.kill()
    ready.start()
    again = next(c for c in ready.get('/v1/credentials').json['credentials'])
    assert again == {**made, 'token': {'state': 'idle', 'expires_at': None, 'reason': None}}  # tokens are in memory alone
    assert source.asked() == []  # nobody needs one


def test_command(ready, source):
    r = ready.request('PUT', '/v1/credentials/token', {'provider': 'command', 'command': 'vault'})
    assert r.status == 200 and r.json['command'] == 'vault' and r.json['token']['state'] == 'ready', r
    assert source.asked() == [{'credential': 'token', 'provider': 'command', 'command': 'vault'}]


@pytest.mark.parametrize('body', [
    {'secret': None}, {'secret': ''}, {'client_id': None}, {'client_id': ''}, {'client_id': 'a\nb'}, {'token_url': None}, {'token_url': 'http://a.example/'},
    {'token_url': 'https://u@a.example/'}, {'token_url': 'https://'}, {'token_url': 'https://[::1]/'}, {'token_url': 'https://a.example/#f'},
    {'auth': 'magic'}, {'scope': 'x' * 2000}, {'scope': 7}, {'expires_at': '2030-01-01T00:00:00Z'}, {'command': 'x'}, {'provider': 'magic'},
    {'provider': 'static'}, {'provider': 'command'}, {'provider': 'command', 'command': 'x'},
])
def test_bad(ready, source, body):
    body = {k: v for k, v in {**OAUTH2, **body}.items() if v is not None}
    r = ready.request('PUT', '/v1/credentials/token', body)
    assert r.code == 'invalid_argument' and CLIENT_SECRET not in r.body.decode(), r
    assert ready.get('/v1/credentials').json['credentials'] == [] and source.asked() == []


@pytest.mark.parametrize('command', ['', '../x', '/bin/sh', 'a b', '-x', '.x', 7, None])
def test_bad_commands(ready, source, command):
    assert ready.request('PUT', '/v1/credentials/token', {'provider': 'command', 'command': command}).code == 'invalid_argument'


def test_given_to_gateways(ready, source):
    source.put()
    ids = [ready.create(bindings=[BIND])['id'] for _ in range(2)]
    bystander = ready.create()['id']
    for i in (*ids, bystander):
        active(ready, i)
    assert all(source.given(i)[0] == 'secret0001' for i in ids)
    r = ready.post('/v1/credentials/token/rotate')
    assert r.status == 200 and r.json['token']['state'] == 'ready', r
    for i in ids:
        until(lambda i=i: source.given(i) == ('secret0001', ['secret0002']), what='given')
        assert len(gateway(ready, i)['configs']) == 1  # nothing else of it is touched
    assert gateway(ready, bystander)['secrets'] == []
    gateway(ready, ids[0], cut=True)
    until(lambda: source.given(ids[0])[0] == 'secret0002', what='another gateway has it')
    secret = source.asked()[-1]['request']['secret']
    assert secret == CLIENT_SECRET
    os.unlink(os.path.join(ready.run, 'token.asked'))
    for s in (CLIENT_SECRET, 'secret0001', 'secret0002'):
        nowhere(ready, s)


def test_got_when_it_is_needed(ready, source):
    source.put()
    ready.kill()
    ready.start()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])

    def given():  # with the configuration, if it came in time
        first, later = source.given(s['id'])
        return 'secret0002' in (first, *later)
    until(given, what='given')
    ready.kill()
    ready.start()
    until(lambda: len(source.asked()) == 3, what='asked after the start')


def test_renewed(ready, source):
    """At four fifths of its time, and for as long as somebody needs it."""
    source.good(seconds=2)
    source.put()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    given = until(lambda: len(source.given(s['id'])[1]) >= 2 and gateway(ready, s['id'])['secrets'], what='renewed')
    assert given[-1][2] > given[-2][2] > time.time() * 1000 - 60000
    assert ready.delete(f"/v1/sandboxes/{s['id']}?wait=30").status in (200, 202, 204)
    until(lambda: source.state()['state'] == 'idle', what='nobody renews it')


@pytest.mark.parametrize('data, reason', [
    ('error the token endpoint answered 401: invalid_client\n', 'invalid_client'), ('', 'without an answer'), ('token 60 10\nabc', 'cut off'),
    ('\x1b[2Jgarbage\n', 'cannot be read'), ('token 60 9\ntwo\nlines\n', 'cannot be read'), ('x' * 100000, 'too much'),
], ids=['error', 'nothing', 'cut', 'garbage', 'lines', 'much'])
def test_failure(ready, source, data, reason):
    source.answer(data)
    made = source.put()
    assert made['token']['state'] == 'failed' and reason in made['token']['reason']
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])  # its gateway works, and refuses what needs the token
    until(lambda: 'next try is in 2 s' in ready.text(), what='a growing pause')
    until(lambda: 'next try is in 4 s' in ready.text(), what='a growing pause')
    assert source.given(s['id']) == (None, [])
    log = ready.get(f"/v1/sandboxes/{s['id']}/logs").body.decode()
    assert reason in log or reason in made['token']['reason']
    source.good()
    r = ready.post('/v1/credentials/token/rotate')
    assert r.status == 200 and r.json['token']['state'] == 'ready'
    until(lambda: len(source.given(s['id'])[1]) == 1, what='given')


def test_comes_back_by_itself(ready, source):
    source.answer('error no\n')
    source.put()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    source.good()
    until(lambda: len(source.given(s['id'])[1]) == 1, what='given')
    assert source.state()['state'] == 'ready' and source.state()['reason'] is None


def test_old_token_stays_while_there_is_no_new_one(ready, source):
    source.put()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    source.answer('error no\n')
    r = ready.post('/v1/credentials/token/rotate')
    assert r.status == 502 and r.code == 'credential_failed' and ': no' in r.json['error']['message'], r
    assert source.state()['state'] == 'ready' and source.state()['reason'] == 'no'
    assert source.given(s['id']) == ('secret0001', [])


def test_hang(ready, source):
    """Nothing else waits for it."""
    source.answer('token 60 10\nabc# hold')
    ready.request('PUT', '/v1/credentials/other', {'secret': 'a static one'})
    conn = ready.unix()
    conn.request('PUT', '/v1/credentials/token', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(source.asked()) == 1, what='asked')
    s = ready.create(bindings=[{**BIND, 'credential': 'other'}])
    active(ready, s['id'])
    assert source.state()['state'] == 'asking'
    source.good()
    assert ready.post('/v1/credentials/token/rotate').status == 200  # begins anew
    assert json.loads(conn.getresponse().read())['token']['state'] == 'ready'
    conn.close()


def test_away(ready, source):
    """Without cspace-rootd there are no tokens, and there are again when it is back."""
    source.put()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    ready.fault('TOKEN', error=[11, 'this host has its limit'], times=1)
    assert ready.post('/v1/credentials/token/rotate').status == 200  # it takes its turn
    assert source.state()['state'] == 'ready'


def test_settings_that_change_end_the_token(ready, source):
    source.put()
    s = ready.create(bindings=[BIND])
    active(ready, s['id'])
    source.answer('error no\n')
    assert source.put(client_id='another')['token']['state'] == 'failed'
    until(lambda: source.given(s['id'])[1] == [''], what='revoked')
    source.good()
    r = ready.request('PUT', '/v1/credentials/token', {'secret': 'a static secret'})
    assert r.status == 200 and r.json['provider'] == 'static' and 'token' not in r.json, r
    assert source.given(s['id'])[0] == 'a static secret'


def test_rotate(ready, source):
    assert ready.post('/v1/credentials/token/rotate', {'secret': 'long enough'}).code == 'credential_not_found'
    ready.request('PUT', '/v1/credentials/plain', {'secret': 'the old secret'})
    source.put()
    ready.request('PUT', '/v1/credentials/cmd', {'provider': 'command', 'command': 'vault'})
    s = ready.create(bindings=[BIND, {**BIND, 'credential': 'plain', 'hosts': ['b.example'], 'env': 'B'}])
    active(ready, s['id'])
    for name, body in (('plain', None), ('plain', {}), ('plain', {'secret': 'short'}), ('plain', {'secret': 'two\nlines of it'}), ('cmd', {'secret': 'long enough'}),
                       ('token', {'client_id': 'x'}), ('token', {'secret': ''})):
        assert ready.post(f'/v1/credentials/{name}/rotate', body).code == 'invalid_argument', (name, body)
    for body in (None, {}):
        assert '"plain" is a static one' in ready.post('/v1/credentials/plain/rotate', body).json['error']['message']
    r = ready.post('/v1/credentials/plain/rotate', {'secret': 'the new secret', 'expires_at': '2030-01-01T00:00:00Z'})
    assert r.status == 200, r
    assert source.given(s['id'], 'plain')[0] == 'the new secret'
    r = ready.post('/v1/credentials/token/rotate', {'secret': 'new client secret'})
    assert r.status == 200 and source.asked()[-1]['request']['secret'] == 'new client secret'
    n = len(source.asked())
    assert ready.post('/v1/credentials/cmd/rotate').status == 200
    assert source.asked()[n]['credential'] == 'cmd'
    ready.kill()
    ready.start()
    active(ready, s['id'])
    assert source.given(s['id'], 'plain')[0] == 'the new secret'
    until(lambda: source.asked()[-1].get('request', {}).get('secret') == 'new client secret', what='asked')


def test_removed_while_it_is_asked_for(ready, source):
    source.answer('token 60 10\nabc# hold')
    conn = ready.unix()
    conn.request('PUT', '/v1/credentials/token', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(source.asked()) == 1, what='asked')
    assert ready.delete('/v1/credentials/token').status == 204
    assert conn.getresponse().status == 404
    conn.close()


def test_many_take_turns(ready, source):
    source.answer('token 60 10\nabc# hold')
    conns = []
    for i in range(10):
        conns.append(ready.unix())
        conns[-1].request('PUT', f'/v1/credentials/c{i}', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(ready.get('/v1/credentials').json['credentials']) == 10, what='stored')
    until(lambda: len(source.asked()) == 8, what='asked')
    source.good()
    for c in source.asked():  # begin anew, with an answer
        assert ready.post(f"/v1/credentials/{c['credential']}/rotate").status == 200
    for c in conns:
        assert json.loads(c.getresponse().read())['token'].get('reason') is None
        c.close()


def test_hanging_providers_hold_up_no_other(ready, source):
    """Twelve that never answer: each has its turn, then they share half of the places, and others have theirs at once."""
    conns, hanging = [], [f'hang{i:02}' for i in range(12)]
    for name in hanging:
        source.answer('# hold', name)
        conns.append(ready.unix())
        conns[-1].request('PUT', f'/v1/credentials/{name}', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(source.asked()) == 8, what='all places taken')
    assert source.put('good')['token']['state'] == 'ready'  # waits for turns of the others, not for their ends
    assert {c['credential'] for c in source.asked()} == {*hanging, 'good'}
    assert all(source.state(name) == {'state': 'asking', 'expires_at': None, 'reason': None} for name in hanging)
    left = source.left()
    n = len(source.asked())
    assert source.put('better')['token']['state'] == 'ready'
    assert [c['credential'] for c in source.asked()[n:]] == ['better'] and source.left() == left  # nobody had to make way for it
    source.good()
    for name in hanging:  # who is told to try at once does
        os.unlink(os.path.join(ready.run, f'token.{name}'))
        assert ready.post(f'/v1/credentials/{name}/rotate').json['token']['state'] == 'ready', name
    for c in conns:
        assert json.loads(c.getresponse().read())['token']['state'] == 'ready'
        c.close()


def test_slow_provider_is_waited_for(ready, source):
    """An answer that takes longer than a turn is as good as any."""
    source.answer('# hold')
    conns = []
    for i in range(5):
        conns.append(ready.unix())
        conns[-1].request('PUT', f'/v1/credentials/c{i}', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(source.asked()) == 5, what='asked')
    source.answer('token 60 10\nsecret%d\n', 'quick')
    assert source.put('quick')['token']['state'] == 'ready' and source.left() == []
    for c in conns:
        c.close()


def test_stop_while_it_is_asked_for(ready, source):
    source.answer('token 60 10\nabc# hold')
    conn = ready.unix()
    conn.request('PUT', '/v1/credentials/token', json.dumps(OAUTH2), {'Content-Type': 'application/json'})
    until(lambda: len(source.asked()) == 1, what='asked')
    ready.stop()
    conn.close()
    ready.start()
