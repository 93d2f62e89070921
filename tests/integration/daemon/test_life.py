# SPDX-License-Identifier: Apache-2.0
"""Pausing, suspending and stopping, with every part behind cspaced failing or cspaced itself killed in between. (With
real VMs: tests/integration/life.)"""

import pytest

from conftest import until

# verb: how to get to where it starts, what it needs, where it ends
VERBS = {
    'pause': ([], ['PAUSE'], 'paused'),
    'resume': (['pause'], ['RESUME'], 'running'),
    'suspend': ([], ['IMAGE_BEGIN', 'SAVE', 'IMAGE_COMMIT', 'REMOVE'], 'suspended'),
    'restore': (['suspend'], ['PLACE', 'IDENTIFY', 'IMAGE_REMOVE'], 'running'),
    'stop': ([], ['QUERY', 'STOP', 'IMAGE_COMMIT', 'REMOVE'], 'stopped'),
    'start': (['stop'], ['PLACE', 'IDENTIFY', 'IMAGE_REMOVE'], 'running'),
}
STEPS = [(verb, step) for verb, (_, steps, _) in VERBS.items() for step in steps]


def change(d, s, verb, wait=60):
    return d.post(f'/v1/sandboxes/{s}/{verb}?wait={wait}')


def made(d, verb):
    s = d.create()['id']
    for v in VERBS[verb][0]:
        assert change(d, s, v).status == 200
    return s


def images(d):
    return d.steer(state=True)['images']


def consistent(d, s):
    """Nothing under way; what is on the host is what the state says."""
    def check():
        if d.get('/v1/operations?state=running').json['operations']:
            return False
        state = d.sandbox(s)['state']
        want = {'running': (1, 0), 'paused': (1, 0), 'suspended': (0, 1), 'stopped': (0, 1), 'failed': (0, 1)}[state]
        return (len(d.placed()), len(images(d))) == want and state
    try:
        return until(check, 40, 'a settled state')
    except AssertionError:
        print(d.get(f'/v1/sandboxes/{s}').body, d.steer(state=True), d.get('/v1/operations').body)
        raise


@pytest.mark.parametrize('verb', VERBS)
def test_states(ready, verb):
    d = ready
    s = made(d, verb)
    for other in VERBS:
        if other != verb and d.sandbox(s)['state'] not in ('running',) and VERBS[other][0] != VERBS[verb][0]:
            state = d.sandbox(s)['state']
            r = change(d, s, other)
            if r.status == 200:  # suspend and stop of a paused one, stop of a suspended one
                assert (state == 'paused' and other in ('suspend', 'stop')) or (state == 'suspended' and other == 'stop')
                d.delete(f'/v1/sandboxes/{s}?wait=60')
                s = made(d, verb)
            else:
                assert r.status == 409 and r.code == 'conflict' and f'is {state}' in r.json['error']['message']
    r = change(d, s, verb)
    assert r.status == 200 and r.json['operation']['kind'] == verb and r.json['sandbox']['state'] == VERBS[verb][2]
    assert consistent(d, s) == VERBS[verb][2]


@pytest.mark.parametrize('verb,step', STEPS)
def test_killed_cspaced_goes_on(ready, verb, step):
    d = ready
    s = made(d, verb)
    d.fault(step, delay=0.7, times=1)
    r = change(d, s, verb, 0)
    assert r.status == 202, r
    op = r.json['operation']['id']
    until(lambda: step in d.steer(seen=True) and d.steer(seen=True)[-1] == step or d.op(op, 0)['state'] != 'running', what=step)
    d.kill()
    d.start()
    state = consistent(d, s)
    ended = d.op(op)
    assert ended['state'] == 'succeeded' and state == VERBS[verb][2], (ended, state)
    # and it can be used
    if state == 'running':
        assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    until(lambda: not d.placed() and not images(d), what='nothing')


@pytest.mark.parametrize('verb,step', [x for x in STEPS if x[1] not in ('REMOVE', 'IMAGE_REMOVE', 'QUERY', 'STOP')])
def test_a_step_fails(ready, verb, step):
    """The operation fails and says why, and the sandbox is what it was, or failed with its disk kept."""
    d = ready
    s = made(d, verb)
    before = d.sandbox(s)['state']
    d.fault(step, error=[28, 'no space left on the device'], times=1)
    r = change(d, s, verb)
    if verb == 'resume':
        assert r.status == 507 and d.sandbox(s)['state'] == 'running'
        return
    assert r.status in (500, 507) and 'no space left' in r.json['error']['message'], r
    state = consistent(d, s)
    assert state == ('failed' if verb == 'stop' else before)
    again = 'start' if verb == 'stop' else verb
    until(lambda: change(d, s, again).status == 200, what=again)  # a failed one's disk may just be being kept


@pytest.mark.parametrize('verb', ['pause', 'suspend', 'stop', 'restore', 'start', 'resume'])
@pytest.mark.parametrize('what', ['warden', 'rootd'])
def test_others_are_restarted_in_between(ready, verb, what):
    d = ready
    s = made(d, verb)
    step = VERBS[verb][1][0]
    d.fault(step, delay=0.5, times=1)
    r = change(d, s, verb, 0)
    until(lambda: d.steer(seen=True)[-1] == step, what=step)
    if what == 'rootd':
        d.steer(drop=True)
    elif s in d.placed():
        d.steer(warden_exit=s)
        d.steer(warden_start=s)
    op = d.op(r.json['operation']['id'])
    state = consistent(d, s)
    if what == 'rootd' and step == 'PLACE':  # as with a create: back to where it was
        assert op['error']['code'] == 'unavailable' and state == VERBS[VERBS[verb][0][0]][2]
        assert change(d, s, verb).status == 200
    else:
        assert op['state'] == 'succeeded' and state == VERBS[verb][2], (op, state)


@pytest.mark.parametrize('verb,step', [x for x in STEPS if x[0] in ('pause', 'resume', 'suspend') and x[1] != 'REMOVE'])
def test_the_vm_ends_in_between(ready, verb, step):
    d = ready
    s = made(d, verb)
    d.fault(step, delay=0.5, times=1)
    r = change(d, s, verb, 0)
    until(lambda: d.steer(seen=True)[-1] == step, what=step)
    d.steer(vm_exit=s)
    op = d.op(r.json['operation']['id'])
    state = consistent(d, s)
    if op['state'] == 'succeeded':  # it was saved before
        assert verb == 'suspend' and state == 'suspended'
    else:
        assert state == 'failed'
        until(lambda: change(d, s, 'start').status == 200, what='start')


@pytest.mark.parametrize('verb,step', STEPS)
def test_deleted_in_between(ready, verb, step):
    d = ready
    s = made(d, verb)
    d.fault(step, delay=0.5, times=1)
    r = change(d, s, verb, 0)
    until(lambda: d.steer(seen=True)[-1] == step or d.op(r.json['operation']['id'], 0)['state'] != 'running', what=step)
    assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    assert d.op(r.json['operation']['id'])['state'] in ('failed', 'succeeded')
    until(lambda: not d.placed() and not images(d), what='nothing')


def test_one_wins(ready):
    d = ready
    s = d.create()['id']
    d.fault('PAUSE', delay=0.5)
    a = change(d, s, 'pause', 0)
    assert a.status == 202 and a.json['sandbox']['state'] == 'pausing'
    for verb in VERBS:
        r = change(d, s, verb)
        assert r.status == 409 and 'is pausing' in r.json['error']['message']


def test_lost_paused_one_fails(ready):
    d = ready
    s = made(d, 'resume')
    d.steer(vm_exit=s)
    assert consistent(d, s) == 'failed'
    until(lambda: change(d, s, 'wake').status == 200, what='wake')
    assert d.sandbox(s)['state'] == 'running'


def test_unknown_images_are_removed(ready):
    d = ready
    s = made(d, 'restore')
    d.steer(unknown_image='b' * 26)
    d.steer(drop=True)
    until(lambda: len(images(d)) == 1, what='removal')
    assert change(d, s, 'restore').status == 200


def test_e2b(ready):
    d = ready
    key = d.post('/v1/keys', {'name': 'k'}).json['key']
    h = {'X-API-KEY': key}
    s = d.post('/v2/sandboxes', {'templateID': 'base', 'timeout': 60}, headers=h).json['sandboxID']
    assert d.post(f'/sandboxes/{s}/pause', {}, headers=h).status == 204
    r = d.post(f'/sandboxes/{s}/pause', {}, headers=h)
    assert r.status == 409 and r.json['code'] == 409
    assert d.sandbox(s)['state'] == 'suspended'
    assert d.get(f'/sandboxes/{s}', headers=h).json['state'] == 'paused'
    assert [x['sandboxID'] for x in d.get('/v2/sandboxes?state=paused', headers=h).json] == [s]
    assert d.get('/v2/sandboxes?state=running', headers=h).json == []
    assert d.post(f'/v2/sandboxes/{s}/connect', {'timeout': 100}, headers=h).status == 201
    assert d.sandbox(s)['state'] == 'running'
    assert d.post(f'/v2/sandboxes/{s}/connect', {'timeout': 100}, headers=h).status == 200
    assert d.post(f'/sandboxes/{s}/pause', {'memory': False}, headers=h).status == 204
    assert d.sandbox(s)['state'] == 'stopped'
    assert d.post(f'/sandboxes/{s}/resume', {'timeout': 100}, headers=h).status == 201
    assert d.post(f'/sandboxes/{s}/resume', {'timeout': 100}, headers=h).status == 409
    assert d.request('DELETE', f'/sandboxes/{s}', headers=h).status == 204
    assert d.post(f'/sandboxes/{s}/pause', {}, headers=h).status == 404
