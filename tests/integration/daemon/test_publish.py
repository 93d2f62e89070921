# SPDX-License-Identifier: Apache-2.0
"""Publishing sandboxes as templates, with every part behind cspaced failing or cspaced itself killed in between. (With real
VMs: tests/integration/life.)"""
import json

import pytest

from conftest import until

STATES = {'running': [], 'paused': ['pause'], 'suspended': ['suspend'], 'stopped': ['stop']}
# What each needs, from a running sandbox on.
STEPS = {'disk': ['FSFREEZE', 'IMAGE_COMMIT', 'PUBLISH', 'TEMPLATE_COMMIT', 'SNAPSHOT', 'VARIANT_COMMIT', 'BUILD_REMOVE', 'IMAGE_REMOVE'],
         'full': ['IMAGE_BEGIN', 'SAVE', 'IMAGE_COMMIT', 'REMOVE', 'PUBLISH', 'PLACE', 'IDENTIFY', 'TEMPLATE_COMMIT', 'BUILD_REMOVE']}
WALK = [(kind, step) for kind, steps in STEPS.items() for step in steps]


def publish(d, s, wait=60, **kw):
    return d.post(f'/v1/sandboxes/{s}/publish?wait={wait}', {'name': 'mine', **kw})


def made(d, state, **kw):
    s = d.create(**kw)['id']
    for verb in STATES[state]:
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
    return s


def names(d):
    return {n for t in d.get('/v1/templates').json['templates'] for n in (x['name'] + ':' + x['tag'] if isinstance(x, dict) else x
                                                                         for x in t['names'])}


def token(d, s):
    return d.placed()[s]['identity']['accessToken']


def clean(d, sandboxes, templates, images=0):
    """Nothing is left but these."""
    def check():
        x = d.steer(state=True)
        return (sorted(x['placed']) == sorted(sandboxes) and len(x['templates']) == templates and x['builds'] == [] and
                len(x['images']) == images and not d.get('/v1/operations?state=running').json['operations'])
    try:
        until(check, 40, 'what is needed and no more')
    except AssertionError:
        print(d.steer(state=True), d.get('/v1/operations').body)
        raise


@pytest.mark.parametrize('state', STATES)
def test_disk(ready, state):
    d = ready
    s = made(d, state, checkpoint_every_s=600, checkpoint_keep=3)
    r = publish(d, s, tag='v1')
    assert r.status == 201, r
    op = r.json['operation']
    assert (op['kind'], op['state'], op['subject'], op['sandbox_id']) == ('publish', 'succeeded', 'mine:v1', s)
    assert op['result']['template'] == 'mine:v1' and r.json['sandbox']['state'] == state
    t = d.get('/v1/templates/mine:v1').json
    assert t['digest'] == op['result']['digest'] and len(t['variants']) == 1
    m = t['manifest']
    assert m['source'] == {'kind': 'sandbox', 'template': d.sandbox(s)['digest']} and 'packages' not in m and 'snapshot' not in m
    up = d.create(template='mine:v1', memory_mb=256)  # another size: a variant of its own
    assert up['digest'] == t['digest']
    assert (up['checkpoint_every_s'], up['checkpoint_keep']) == (600, 3)  # as the sandbox's rules were
    assert d.create(template='mine:v1', checkpoint_every_s=0)['checkpoint_every_s'] == 0
    for x in d.get('/v1/sandboxes').json['sandboxes']:
        d.delete(f'/v1/sandboxes/{x["id"]}?wait=60')
    assert d.delete('/v1/templates/mine:v1').status == 204
    clean(d, [], 1)


@pytest.mark.parametrize('state', STATES)
def test_full(ready, state):
    d = ready
    s = made(d, state)
    r = publish(d, s, kind='full')
    if state == 'stopped':
        assert r.status == 409 and 'no memory' in r.json['error']['message']
        return
    assert r.status == 201, r
    after = {'running': 'running', 'paused': 'suspended', 'suspended': 'suspended'}[state]
    until(lambda: d.sandbox(s)['state'] == after, what=after)
    t = d.get('/v1/templates/mine').json
    assert t['manifest']['snapshot'] == t['snapshot'] == {'memory_mb': 512, 'cpus': 1} and len(t['variants']) == 1
    assert [x.get('snapshot') for x in d.get('/v1/templates').json['templates'] if x['digest'] == t['digest']] == [t['snapshot']]
    # It is what it was, and in no other size.
    r = d.post('/v1/sandboxes', {'template': 'mine', 'memory_mb': 256})
    assert r.status == 400 and '512 MiB and 1 CPU' in r.json['error']['message']
    other = d.create(template='mine')
    assert (other['memory_mb'], other['cpus']) == (512, 1)
    assert d.steer(seen=True).count('SNAPSHOT') == 1  # that of "base" alone
    d.kill()
    d.start()
    d.create(template='mine')
    for x in d.get('/v1/sandboxes').json['sandboxes']:
        d.delete(f'/v1/sandboxes/{x["id"]}?wait=60')
    assert d.delete('/v1/templates/mine').status == 204
    clean(d, [], 1)


@pytest.mark.parametrize('state', ['running', 'paused', 'suspended'])
def test_the_token_in_a_published_memory_is_over(ready, state):
    d = ready
    s = d.create()['id']
    old = token(d, s)
    for verb in STATES[state]:
        d.post(f'/v1/sandboxes/{s}/{verb}?wait=60')
    assert publish(d, s, kind='full').status == 201
    until(lambda: d.sandbox(s)['state'] == ('running' if state == 'running' else 'suspended'), what='the state of after')
    if state != 'running':
        assert d.post(f'/v1/sandboxes/{s}/wake?wait=60').status == 200
    other = d.create(template='mine')['id']
    assert len({old, token(d, s), token(d, other)}) == 3
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    d.kill()
    d.start()
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    mine = [json.dumps(d.get(f'/v1/templates/{n}').json) for n in ('mine', 'base')]
    assert not any(t in m for t in (old, token(d, s)) for m in mine)


def test_from_a_checkpoint(ready):
    d = ready
    s = d.create()['id']
    c = d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'name': 'one', 'kind': 'full'}).json['operation']['id']
    d.fault('PUBLISH', delay=0.5, times=1)
    op = publish(d, s, 0, checkpoint='one').json['operation']['id']
    until(lambda: 'PUBLISH' in d.steer(seen=True), what='PUBLISH')
    assert d.delete(f'/v1/sandboxes/{s}/checkpoints/one').status == 204  # it is kept until it is not needed any more
    assert d.op(op)['state'] == 'succeeded'
    assert 'snapshot' not in d.get('/v1/templates/mine').json['manifest']
    clean(d, [s], 2)
    assert publish(d, s, checkpoint='none').status == 404
    assert c not in d.steer(state=True)['images']


def test_of_a_sandbox_that_is_deleted_meanwhile(ready):
    d = ready
    for state in ('running', 'stopped'):
        s = made(d, state)
        d.fault('PUBLISH', delay=0.5, times=1)
        n = len(d.steer(seen=True))
        op = publish(d, s, 0, tag=state).json['operation']['id']
        until(lambda: 'PUBLISH' in d.steer(seen=True)[n:], what='PUBLISH')
        assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
        assert d.op(op)['state'] == 'succeeded'
    clean(d, [], 3)


# A removal that fails is tried again until it works: there is no such end.
@pytest.mark.parametrize('how,kind,step', [(how, kind, step) for how in ('kill', 'error', 'rootd', 'delete') for kind, step in WALK
                                           if how != 'error' or step not in ('BUILD_REMOVE', 'IMAGE_REMOVE', 'REMOVE')])
def test_disturbed(ready, kind, step, how):
    """What was acknowledged as done is there, what was not is nowhere, and the sandbox goes on as it was."""
    d = ready
    s = d.create()['id']
    d.fault(step, **({'error': [28, 'no space left']} if how == 'error' else {'delay': 0.5}), times=1)
    n = len(d.steer(seen=True))
    op = publish(d, s, 0, kind=kind).json['operation']['id']
    if how != 'error':
        until(lambda: step in d.steer(seen=True)[n:], what=step)
    if how == 'kill':
        d.kill()
        d.start()
    elif how == 'rootd':
        d.steer(drop=True)
    elif how == 'delete':
        assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    ended = d.op(op)
    done = ended['state'] == 'succeeded'
    t = d.get('/v1/templates/mine')
    assert t.status == (200 if done else 404), (ended, t)
    if how == 'delete':
        clean(d, [], 2 if done else 1)
        return
    until(lambda: d.sandbox(s)['state'] == 'running', 30, 'running')
    clean(d, [s], 2 if done else 1)
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    if how == 'error':
        assert done == (step in ('FSFREEZE', 'PLACE', 'IDENTIFY')), ended
    # and once more, undisturbed
    r = publish(d, s, kind=kind, tag='again')
    assert r.status == 201, r
    assert d.create(template='mine:again')


def test_checks(ready):
    d = ready
    s = d.create()['id']
    for bad in ({'name': 'UP'}, {'name': 'a:b'}, {'tag': ''}, {'kind': 'half'}, {'other': 1}, {'name': 3}):
        assert publish(d, s, **bad).status == 400, bad
    assert d.post(f'/v1/sandboxes/{s}/publish').status == 400
    assert d.post('/v1/sandboxes/none/publish', {'name': 'x'}).status == 404
    d.fault('PUBLISH', delay=1)
    a = publish(d, s, 0)
    assert a.status == 202
    r = publish(d, s)
    assert r.status == 409 and r.code == 'build_running' and r.json['error']['details']['operation_id'] == a.json['operation']['id']
    r = d.post('/v1/templates', {'name': 'mine'})
    assert r.status == 409 and r.code == 'build_running'
    until(lambda: 'PUBLISH' in d.steer(seen=True), what='PUBLISH')
    assert d.post(f'/v1/sandboxes/{s}/pause?wait=60').status == 200  # it is the template's own business by now
    assert d.op(a.json['operation']['id'])['state'] == 'succeeded'
    key = {'Idempotency-Key': 'k'}
    x = d.post(f'/v1/sandboxes/{s}/publish?wait=60', {'name': 'two'}, headers=key)
    y = d.post(f'/v1/sandboxes/{s}/publish?wait=60', {'name': 'two'}, headers=key)
    assert x.status == y.status == 201 and x.json['operation']['id'] == y.json['operation']['id']


def test_the_memory_of_a_fork_is_not_published(ready):
    d = ready
    s = d.create()['id']
    r = d.post(f'/v1/sandboxes/{s}/fork?wait=60', {})
    copy = r.json['operation']['result']['sandboxes'][0]
    r = publish(d, copy, kind='full')
    assert r.status == 409 and 'is a fork' in r.json['error']['message']
    assert publish(d, copy).status == 201
