# SPDX-License-Identifier: Apache-2.0
"""Policies and the connection to the gateway, with a stand-in for the gateway."""
import base64
import json
import os
import sqlite3
import threading
import time

import pytest

from conftest import until

ALLOW = {'rules': [{'action': 'allow', 'hosts': ['api.example.com']}]}
OTHER = {'rules': [{'name': 'other', 'action': 'allow', 'hosts': ['other.example.com']},
                   {'name': 'never', 'action': 'deny', 'hosts': ['*']}]}


def gateway(d, ident, **m):
    return d.steer(gateway=ident, **m)


def active(d, ident, rules=None):
    def look():
        e = d.sandbox(ident)['egress']
        return e['state'] == 'active' and (rules is None or e['rules'] == rules)
    until(look, what='the gateway is configured')


def put(d, ident, policy, **kw):
    return d.request('PUT', f'/v1/sandboxes/{ident}/policy', policy, **kw)


def test_configured(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'], 1)
    configs = gateway(ready, s['id'])['configs']
    assert len(configs) == 1
    c = configs[0]
    assert c['policy'] == ALLOW
    assert len(base64.b64decode(c['ca_seed'])) == 32
    assert c['presets'] == {} and 'names' not in c
    assert '127.0.0.1' in c['own']
    assert ready.placed()[s['id']]['identity']['caCertificate'].startswith('-----BEGIN CERTIFICATE-----')
    # No secret in what is told, nor in the log.
    seed = c['ca_seed']
    assert seed not in ready.get(f"/v1/sandboxes/{s['id']}").body.decode() and seed not in ready.text()
    assert ready.get(f"/v1/sandboxes/{s['id']}/policy").json == {'policy': ALLOW, 'egress': {'state': 'active', 'rules': 1}}


def test_default_is_deny(ready):
    s = ready.create()
    active(ready, s['id'], 0)
    assert 'policy' not in gateway(ready, s['id'])['configs'][0]
    r = ready.post(f"/v1/sandboxes/{s['id']}/policy/check", {'url': 'https://api.example.com/'})
    assert r.json['verdict'] == 'deny' and r.json['reason'] == 'no_policy', r


def test_short_forms(ready):
    s = ready.create(allow=['api.example.com', '*.cdn.example.com', 'git.example.com:22', '8.8.8.0/24'])
    rules = ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy']['rules']
    assert [(r['name'], r.get('hosts'), r.get('cidr'), r.get('protocol')) for r in rules] == [
        ('allow', ['api.example.com', '*.cdn.example.com'], None, None), ('allow-ports', ['git.example.com:22'], None, 'any'),
        ('allow-addresses', None, ['8.8.8.0/24'], None)]

    def check(url, verdict):
        r = ready.post(f"/v1/sandboxes/{s['id']}/policy/check", {'url': url})
        assert r.status == 200 and r.json['verdict'] == verdict, r
    check('https://api.example.com/x', 'allow')
    check('tcp://git.example.com:22', 'allow')
    check('tcp://git.example.com:23', 'deny')
    check('https://evil.example.com/', 'deny')
    assert ready.get(f"/v1/sandboxes/{ready.create(policy='none')['id']}/policy").json['policy'] == {'rules': []}
    assert ready.get(f"/v1/sandboxes/{ready.create(allow=[])['id']}/policy").json['policy'] == {'rules': []}


@pytest.mark.parametrize('body, says', [
    ({'policy': {'rules': [{'action': 'allow', 'hosts': ['a b']}]}}, 'rules[0].hosts[0]'),
    ({'policy': {'rulez': []}}, 'rulez'),
    ({'policy': {'rules': [{'action': 'allow', 'hosts': ['*.co.uk']}]}}, 'co.uk'),
    ({'policy': '@nothing'}, '@nothing'),
    ({'policy': 7}, 'a policy is an object'),
    ({'policy': ALLOW, 'allow': ['x.example']}, 'cannot both'),
    ({'allow': 'x.example'}, 'allow'),
    ({'allow': ['@nothing']}, '@nothing'),
    ({'allow': ['']}, 'item 1'),
])
def test_bad_policy_makes_nothing(ready, body, says):
    r = ready.post('/v1/sandboxes', {'template': 'base', **body})
    assert r.status == 400 and r.code == 'invalid_argument' and says in r.json['error']['message'], r
    assert ready.get('/v1/sandboxes').json['sandboxes'] == []
    assert ready.placed() == {}


def test_warnings(ready):
    """A range in which not all is reached is said to be one, wherever the policy is told of."""
    def told(w):
        return len(w) == 1 and '"10.0.0.0/7" does not reach' in w[0] and '10.0.0.0/8 (private)' in w[0]
    s = ready.create(allow=['10.0.0.0/7', 'a.example'])
    path = f"/v1/sandboxes/{s['id']}"
    assert told(s['egress']['warnings']) and told(ready.get(path).json['egress']['warnings'])
    active(ready, s['id'], 2)
    assert told(put(ready, s['id'], {'allow': ['10.0.0.0/7']}).json['egress']['warnings'])
    assert told(ready.post(path + '/policy/check', {'url': 'http://10.0.0.1/'}).json['warnings'])
    assert 'warnings' not in ready.post(path + '/policy/check', {'url': 'http://10.0.0.1/', 'allow': ['8.0.0.0/8']}).json
    assert 'warnings' not in put(ready, s['id'], OTHER).json['egress']
    r = ready.request('PUT', '/v1/templates/base/policy', {'allow': ['10.0.0.0/7']})
    assert r.status == 200 and told(r.json['warnings'])


def test_live_update(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'], 1)
    r = put(ready, s['id'], OTHER)
    assert r.status == 200 and r.json == {'policy': OTHER, 'egress': {'state': 'active', 'rules': 2}}, r
    # Answered only when the gateway works by it.
    assert [c.get('policy') for c in gateway(ready, s['id'])['configs']] == [ALLOW, OTHER]
    # What GET gives can be sent back.
    assert put(ready, s['id'], ready.get(f"/v1/sandboxes/{s['id']}/policy").json).status == 200
    assert put(ready, s['id'], {'policy': 'none'}).json['policy'] == {'rules': []}
    assert put(ready, s['id'], {'allow': ['a.example']}).json['egress']['rules'] == 1
    r = put(ready, s['id'], {'rules': [{'action': 'maybe'}]})
    assert r.status == 400 and 'rules[0]' in r.json['error']['message'], r
    assert put(ready, s['id'], None).status == 400
    assert put(ready, s['id'], {'policy': None}).status == 400
    assert put(ready, 'nobody', OTHER).code == 'sandbox_not_found'


def test_update_waits_for_the_gateway(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'], 1)
    ready.fault('GW_CONFIG', delay=1, times=1)
    t = time.monotonic()
    assert put(ready, s['id'], OTHER).status == 200
    assert time.monotonic() - t >= 1
    # Several at once: each is answered, the last one holds.
    ready.fault('GW_CONFIG', delay=0.3, times=3)
    answers = []
    threads = [threading.Thread(target=lambda p=p: answers.append(put(ready, s['id'], p).status)) for p in (ALLOW, OTHER, ALLOW)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    assert answers == [200] * 3
    assert gateway(ready, s['id'])['configs'][-1]['policy'] == ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy']


def test_refused_update_leaves_the_old_one(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'], 1)
    ready.fault('GW_CONFIG', error=[22, 'rules[1]: I do not like it'], times=1)
    r = put(ready, s['id'], OTHER)
    assert r.status == 502 and r.code == 'gateway_refused' and 'do not like' in r.json['error']['message'], r
    active(ready, s['id'], 1)
    assert ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == ALLOW
    assert gateway(ready, s['id'])['configs'][-1]['policy'] == ALLOW
    ready.kill()
    ready.start()
    assert ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == ALLOW


def test_refused_from_the_start(ready):
    ready.fault('GW_CONFIG', error=[22, 'no such preset'])
    s = ready.create(policy=ALLOW)  # runs all the same: nothing is let through
    until(lambda: ready.sandbox(s['id'])['egress']['state'] == 'refused', what='it is told')
    e = ready.sandbox(s['id'])['egress']
    assert e['reason'] == 'no such preset' and s['state'] == 'running'
    assert put(ready, s['id'], OTHER).code == 'gateway_refused'
    ready.fault('GW_CONFIG')
    assert put(ready, s['id'], ALLOW).status == 200
    active(ready, s['id'], 1)


def test_running_does_not_wait(ready):
    ready.fault('GW_CONFIG', hang=True, times=1)
    t = time.monotonic()
    s = ready.create()
    assert s['state'] == 'running' and time.monotonic() - t < 5
    assert ready.sandbox(s['id'])['egress']['state'] == 'connecting'


def test_gateway_lost_and_back(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    first = gateway(ready, s['id'])['configs'][0]
    gateway(ready, s['id'], cut=True)
    until(lambda: len(gateway(ready, s['id'])['configs']) == 2, what='configured again')
    active(ready, s['id'], 1)
    assert gateway(ready, s['id'])['configs'][1] == first  # the same CA too
    # Away for good: told, and a change is kept for when it is back.
    gateway(ready, s['id'], close=True)
    until(lambda: ready.sandbox(s['id'])['egress']['state'] == 'away', what='told that it is away')
    assert ready.sandbox(s['id'])['state'] == 'running'
    assert ready.sandbox(s['id'])['egress']['reason']


def test_not_answering_is_told(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    ready.fault('GW_CONFIG', hang=True)
    r = put(ready, s['id'], OTHER)
    assert r.status == 504 and r.code == 'gateway_timeout', r
    assert ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == OTHER
    ready.fault('GW_CONFIG')
    active(ready, s['id'], 2)
    assert gateway(ready, s['id'])['configs'][-1]['policy'] == OTHER


def test_restart(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    first = gateway(ready, s['id'])['configs'][0]
    names = {'api.example.com': {'address': '198.18.0.1'}}
    assert gateway(ready, s['id'], names=names)['answer'] is None
    ready.kill()
    ready.start()
    active(ready, s['id'], 1)
    again = gateway(ready, s['id'])['configs'][-1]
    assert 'BEGIN CERTIFICATE' in ready.placed()[s['id']]['identity']['caCertificate']
    assert again == {**first, 'names': names}
    r = ready.get(f"/v1/sandboxes/{s['id']}/usage").json
    assert r['egress'] == {'connections': 2, 'requests': 3, 'bytes_out': 4, 'bytes_in': 5, 'names': 6, 'records_dropped': 7}


def test_names_that_are_none(ready):
    s = ready.create()
    active(ready, s['id'])
    assert gateway(ready, s['id'], names=[1])['answer']['code'] == 22
    assert gateway(ready, s['id'], names={'x' * (5 << 20): 1})['answer']['code'] == 22
    assert gateway(ready, s['id'], names={})['answer'] is None


def test_delete_leaves_nothing(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    assert ready.delete(f"/v1/sandboxes/{s['id']}?wait=30").status == 200
    ready.stop()
    with sqlite3.connect(os.path.join(ready.data, 'state.db')) as db:
        assert db.execute('SELECT COUNT(*) FROM egress').fetchone() == (0,)


def test_of_a_failed_sandbox(ready):
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    ready.steer(vm_exit=s['id'])
    until(lambda: ready.sandbox(s['id'])['state'] == 'failed', what='failed')
    assert ready.sandbox(s['id'])['egress']['state'] == 'off'
    t = time.monotonic()
    assert put(ready, s['id'], OTHER).status == 200  # nobody to wait for
    assert time.monotonic() - t < 5


def test_warm(bare):
    bare.start_standin()
    bare.start('[pool]\nwarm = base=1\n')
    bare.template()
    until(lambda: any(w['ready'] == 1 for w in bare.get('/v1/host').json['warm']), what='one is ready', timeout=30)
    s = bare.create(policy=ALLOW)
    assert s['timing']['warm'] is True
    active(bare, s['id'], 1)
    assert gateway(bare, s['id'])['configs'][0]['policy'] == ALLOW


# ---- no gateway until the first packet

@pytest.fixture
def quiet(ready):
    ready.steer(quiet=True)
    yield ready
    ready.steer(quiet=False)


def idle(d, ident, rules=None):
    e = d.sandbox(ident)['egress']
    return e['state'] == 'idle' and 'reason' not in e and rules in (None, e['rules'])


def test_first_packet(quiet):
    """The sandbox runs without one, is told so everywhere, and it gets all that it needs when it comes."""
    s = quiet.create(policy=ALLOW)
    path = f"/v1/sandboxes/{s['id']}"
    assert s['state'] == 'running' and idle(quiet, s['id'], 1)
    assert quiet.placed()[s['id']]['identity']['caCertificate'].startswith('-----BEGIN CERTIFICATE-----')
    assert quiet.get(path + '/usage').json['egress'] is None
    assert quiet.get(path + '/policy').json == {'policy': ALLOW, 'egress': {'state': 'idle', 'rules': 1}}
    assert 'cspace_gateways{state="idle"} 1\n' in quiet.get('/metrics').body.decode()
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    configs = gateway(quiet, s['id'])['configs']
    assert [c['policy'] for c in configs] == [ALLOW]
    assert quiet.get(path + '/usage').json['egress']['requests'] == 3
    assert 'cspace_gateways{state="idle"} 0\n' in quiet.get('/metrics').body.decode()


def test_changes_before_the_first_packet(quiet):
    """Answered at once, durable, and what the gateway gets is the last of them."""
    s = quiet.create(policy=ALLOW)
    quiet.fault('GW_CONFIG', hang=True)  # nobody is asked
    t = time.monotonic()
    r = put(quiet, s['id'], OTHER)
    assert r.status == 200 and r.json['egress'] == {'state': 'idle', 'rules': 2}, r
    assert quiet.request('PUT', '/v1/credentials/token', {'secret': 'secret-one'}).status == 200
    r = quiet.post(f"/v1/sandboxes/{s['id']}/bindings", {'id': 'b', 'credential': 'token', 'hosts': ['other.example.com']})
    assert r.status == 201, r
    assert quiet.post('/v1/credentials/token/rotate', {'secret': 'secret-two'}).status == 200
    assert put(quiet, s['id'], {'rules': [{'action': 'maybe'}]}).status == 400
    assert time.monotonic() - t < 8  # EGRESS_CONFIG_MS is 10
    quiet.fault('GW_CONFIG')
    quiet.kill()
    quiet.start()
    assert idle(quiet, s['id'], 2)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 2)
    c, = gateway(quiet, s['id'])['configs']
    assert c['policy'] == OTHER and c['secrets']['token']['secret'] == 'secret-two' and c['bindings'][0]['id'] == 'b'


def test_what_a_late_gateway_refuses_is_not_taken_back(quiet):
    """It was answered long ago. Nothing gets through, and it is told."""
    s = quiet.create(policy=ALLOW)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    quiet.steer(gateway_ends=s['id'])
    until(lambda: idle(quiet, s['id']), what='idle')
    assert put(quiet, s['id'], OTHER).status == 200
    quiet.fault('GW_CONFIG', error=[22, 'I do not like it'])
    quiet.steer(first_packet=s['id'])
    until(lambda: quiet.sandbox(s['id'])['egress']['state'] == 'refused', what='it is told')
    assert quiet.sandbox(s['id'])['egress']['reason'] == 'I do not like it'
    assert quiet.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == OTHER
    assert gateway(quiet, s['id'])['configs'] == []


def test_gateway_ended_and_the_next(quiet):
    s = quiet.create(policy=ALLOW)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    names = {'api.example.com': {'address': '198.18.0.1'}}
    assert gateway(quiet, s['id'], names=names)['answer'] is None
    first = gateway(quiet, s['id'])['configs'][0]
    quiet.steer(gateway_ends=s['id'])
    until(lambda: idle(quiet, s['id'], 1), what='none is there')
    t = time.monotonic()
    assert put(quiet, s['id'], OTHER).status == 200 and time.monotonic() - t < 5
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 2)
    assert gateway(quiet, s['id'])['configs'] == [{**first, 'policy': OTHER, 'names': names}]


def test_gateway_that_ends_before_it_is_configured(quiet):
    """Away, with why; a change that waits for it is answered, and the next one is used."""
    s = quiet.create(policy=ALLOW)
    quiet.fault('GW_CONFIG', hang=True)
    quiet.steer(first_packet=s['id'])
    until(lambda: quiet.sandbox(s['id'])['egress']['state'] == 'connecting', what='it is asked')
    answers = []
    th = threading.Thread(target=lambda: answers.append(put(quiet, s['id'], OTHER).status))
    th.start()
    until(lambda: quiet.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == OTHER, what='the change is there')
    quiet.steer(gateway_ends=s['id'])
    until(lambda: quiet.sandbox(s['id'])['egress']['state'] == 'away', what='told')
    assert 'before it had its policy' in quiet.sandbox(s['id'])['egress']['reason']
    th.join()
    assert answers == [200]
    quiet.fault('GW_CONFIG')
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 2)


def test_restarts_around_the_first_packet(quiet):
    """kill -9 of cspaced before it, while the gateway waits to be configured, and after; a gateway that ended meanwhile; and a
    connection to cspace-rootd that was lost for a while."""
    s = quiet.create(policy=ALLOW)
    quiet.kill()
    quiet.start()
    assert idle(quiet, s['id'], 1)
    quiet.kill()
    quiet.steer(first_packet=s['id'])  # nobody hears of it
    quiet.start()
    active(quiet, s['id'], 1)
    assert len(gateway(quiet, s['id'])['configs']) == 1
    quiet.kill()
    quiet.start()
    active(quiet, s['id'], 1)
    assert len(gateway(quiet, s['id'])['configs']) == 2
    quiet.kill()
    quiet.steer(gateway_ends=s['id'])
    quiet.start()
    assert idle(quiet, s['id'], 1)
    quiet.steer(drop=True)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)


def test_change_right_after_a_restart(quiet):
    """That a gateway runs is known at once: the change is answered when that works by it, not before."""
    s = quiet.create(policy=ALLOW)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    quiet.kill()
    quiet.fault('HELLO', delay=3, times=1)  # cspace-rootd takes its time to say so
    quiet.start()
    assert put(quiet, s['id'], OTHER).status == 200
    assert gateway(quiet, s['id'])['configs'][-1]['policy'] == OTHER


def test_change_before_anything_is_known(quiet):
    """A new cspaced that has not yet heard from cspace-rootd what there is finds the gateways by itself: what is taken back is taken
    back there when the answer comes."""
    s, other = quiet.create(policy=ALLOW), quiet.create(policy=ALLOW)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    quiet.kill()
    quiet.hold('LIST')
    quiet.start()
    quiet.held('LIST')
    assert put(quiet, s['id'], OTHER).status == 200
    assert gateway(quiet, s['id'])['configs'][-1]['policy'] == OTHER
    assert put(quiet, other['id'], OTHER).status == 200  # it has none
    quiet.release()
    active(quiet, s['id'], 2)
    assert idle(quiet, other['id'], 2)


def test_suspended_and_restored(quiet):
    """Another placement has no gateway until its own first packet."""
    s = quiet.create(policy=ALLOW)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)
    for verb, state in (('suspend', 'suspended'), ('restore', 'running')):
        assert quiet.post(f"/v1/sandboxes/{s['id']}/{verb}?wait=30").status == 200
        assert quiet.sandbox(s['id'])['state'] == state
    assert idle(quiet, s['id'], 1)
    quiet.steer(first_packet=s['id'])
    active(quiet, s['id'], 1)


def test_quiet_warm_one(bare):
    """One that began before anybody had it is told its policy when somebody has it."""
    bare.start_standin()
    bare.steer(quiet=True)
    bare.start('[pool]\nwarm = base=1\n')
    bare.template()
    until(lambda: any(w['ready'] == 1 for w in bare.get('/v1/host').json['warm']), what='one is ready', timeout=30)
    pooled, = bare.placed()
    bare.steer(first_packet=pooled)
    s = bare.create(policy=ALLOW)
    assert s['id'] == pooled and s['timing']['warm'] is True
    active(bare, s['id'], 1)
    assert gateway(bare, s['id'])['configs'][0]['policy'] == ALLOW


# ---- templates

def test_template_default(ready):
    r = ready.request('PUT', '/v1/templates/base/policy', {'allow': ['pkg.example.com']})
    assert r.status == 200 and r.json['template'] == 'base:latest', r
    default = r.json['policy']
    s = ready.create()
    assert ready.get(f"/v1/sandboxes/{s['id']}/policy").json['policy'] == default
    t = ready.create(policy=ALLOW)
    assert ready.get(f"/v1/sandboxes/{t['id']}/policy").json['policy'] == ALLOW
    assert ready.get(f"/v1/sandboxes/{ready.create(policy='none')['id']}/policy").json['policy'] == {'rules': []}
    ready.kill()
    ready.start()
    assert ready.get('/v1/templates/base/policy').json['policy'] == default
    assert ready.request('PUT', '/v1/templates/base/policy', {'rules': [1]}).code == 'invalid_argument'
    assert ready.request('PUT', '/v1/templates/nope/policy', {'rules': []}).code == 'template_not_found'
    assert ready.delete('/v1/templates/base/policy').status == 204
    assert ready.get('/v1/templates/base/policy').json['policy'] is None
    u = ready.create()
    active(ready, u['id'], 0)
    assert 'policy' not in gateway(ready, u['id'])['configs'][0]


def test_template_default_goes_with_the_name(ready):
    digest = ready.get('/v1/templates/base').json['digest']
    assert ready.post(f'/v1/templates/{digest}/tags', {'name': 'other'}).status == 200
    assert ready.request('PUT', '/v1/templates/other/policy', ALLOW).status == 200
    assert ready.get('/v1/templates/base/policy').json['policy'] is None
    assert ready.delete('/v1/templates/other').status == 204
    assert ready.post(f'/v1/templates/{digest}/tags', {'name': 'other'}).status == 200
    assert ready.get('/v1/templates/other/policy').json['policy'] is None


def test_presets(ready):
    ready.stop()
    with sqlite3.connect(os.path.join(ready.data, 'state.db')) as db:
        db.execute('UPDATE templates SET manifest = ?', ('{"config":{"hosts":{"packages":["deb.example:80","*.py.example"]}}}',))
    db.close()
    ready.start()
    r = ready.get('/v1/policies/presets?template=base').json['presets']
    assert [(p['name'], p['hosts']) for p in r] == [('none', []), ('@packages', ['deb.example:80', '*.py.example'])]
    assert ready.get('/v1/policies/presets').json['presets'][1]['template'] == 'base:latest'
    s = ready.create(allow=['@packages'])
    active(ready, s['id'], 1)
    c = gateway(ready, s['id'])['configs'][0]
    assert c['presets'] == {'@packages': ['deb.example:80', '*.py.example']}
    r = ready.post(f"/v1/sandboxes/{s['id']}/policy/check", {'url': 'http://deb.example/x', 'method': 'GET'})
    assert r.json['verdict'] == 'allow', r
    assert ready.create(policy='@packages')['state'] == 'running'


# ---- the E2B routes

def e2b(d, **kw):
    r = d.post('/v2/sandboxes', {'templateID': 'base', **kw})
    assert r.status == 201, r
    return r.json['sandboxID']


def rules(d, ident):
    return d.get(f'/v1/sandboxes/{ident}/policy').json['policy']['rules']


def test_e2b_lists(ready):
    assert rules(ready, e2b(ready)) == []
    assert rules(ready, e2b(ready, allow_internet_access=True)) == []
    ident = e2b(ready, allow_internet_access=False, network={'allowOut': ['a.example', '*.b.example', '8.8.8.0/24', '1.1.1.1'],
                                                             'denyOut': ['0.0.0.0/0']})
    assert rules(ready, ident) == [
        {'name': 'allow-out', 'action': 'allow', 'hosts': ['a.example', '*.b.example']},
        {'name': 'allow-out-addresses', 'action': 'allow', 'cidr': ['8.8.8.0/24', '1.1.1.1'], 'ports': ['1-65535'], 'protocol': 'any'}]
    everything = e2b(ready, network={'allowOut': ['0.0.0.0/0']})
    for url in ('https://any.example/', 'tcp://any.example:5432', 'tcp://8.8.8.8:53'):
        r = ready.post(f'/v1/sandboxes/{everything}/policy/check', {'url': url})
        assert r.json['verdict'] == 'allow', r
    r = ready.post(f'/v1/sandboxes/{everything}/policy/check', {'url': 'http://10.0.0.1/'})
    assert r.json['verdict'] == 'deny', r
    for bad in (['10.0.0.0/8'], ['a b'], ['*.com'], ['::1']):
        r = ready.post('/v2/sandboxes', {'templateID': 'base', 'network': {'allowOut': bad}})
        assert r.status == 400 and r.json['code'] == 400, r


def test_e2b_default_of_the_template(ready):
    assert ready.request('PUT', '/v1/templates/base/policy', ALLOW).status == 200
    assert rules(ready, e2b(ready, allow_internet_access=True)) == ALLOW['rules']
    assert rules(ready, e2b(ready, allow_internet_access=False)) == []
    assert rules(ready, e2b(ready, network={'allowOut': ['x.example']}))[0]['hosts'] == ['x.example']


def test_e2b_change(ready):
    ident = e2b(ready, network={'allowOut': ['a.example'], 'allowPublicTraffic': False})
    active(ready, ident, 1)
    path = f'/sandboxes/{ident}/network'
    assert ready.request('PUT', path, {'allowOut': ['b.example'], 'denyOut': ['9.9.9.9']}).status == 204
    assert gateway(ready, ident)['configs'][-1]['policy']['rules'][0]['hosts'] == ['b.example']
    shown = ready.get(f'/sandboxes/{ident}').json['network']
    assert shown == {'allowOut': ['b.example'], 'denyOut': ['9.9.9.9'], 'allowPublicTraffic': False}
    r = ready.request('PUT', path, {'allowOut': ['not a host']})
    assert r.status == 400, r
    assert rules(ready, ident)[0]['hosts'] == ['b.example']
    assert ready.request('PUT', path, {'rules': {'x.example': [{}]}}).status == 501
    assert ready.request('PUT', path, {}).status == 204  # omitted: none
    assert rules(ready, ident) == [] and 'allowOut' not in ready.get(f'/sandboxes/{ident}').json['network']
    assert ready.request('PUT', '/sandboxes/' + 'a' * 26 + '/network', {}).status == 404


def test_metrics(ready):
    def metrics():
        text = ready.get('/metrics').body.decode()
        return {k: float(v) for k, v in (line.rsplit(' ', 1) for line in text.splitlines() if line and line[0] != '#')}
    s = ready.create(policy=ALLOW)
    active(ready, s['id'])
    before = metrics()
    assert before['cspace_gateways{state="active"}'] == 1 and before['cspace_egress_denied_total{reason="no_rule"}'] == 0
    record = {'time': '2026-01-02T03:04:05.000Z', 'kind': 'connect', 'verdict': 'allow', 'rule': 'r', 'reason': 'rule', 'bytes_out': 10, 'bytes_in': 20}
    lines = [record, {**record, 'kind': 'request'}, {**record, 'kind': 'dns', 'verdict': 'deny', 'reason': 'no_rule', 'repeated': 4}, {'nonsense': 1}]
    assert gateway(ready, s['id'], audit=[json.dumps(x) for x in lines], dropped=3)['answer'] is None
    after = metrics()
    assert after['cspace_egress_total{kind="connect",verdict="allow"}'] == 1 and after['cspace_egress_total{kind="request",verdict="allow"}'] == 1
    assert after['cspace_egress_total{kind="dns",verdict="deny"}'] == 5 == after['cspace_egress_denied_total{reason="no_rule"}']
    assert after['cspace_egress_bytes_total{direction="out"}'] == 10 and after['cspace_egress_bytes_total{direction="in"}'] == 20
    assert (after['cspace_audit_records_total{result="refused"}'], after['cspace_audit_records_total{result="lost"}']) == (1, 3)
    gateway(ready, s['id'], close=True)
    until(lambda: metrics()['cspace_gateways{state="away"}'] == 1, what='away')
