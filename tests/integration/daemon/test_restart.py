# SPDX-License-Identifier: Apache-2.0
"""kill -9 of cspaced at every point: what was promised is there, what was not leaves nothing."""
import os
import random
import threading
import time

import pytest

from conftest import until


def settled(d):
    """Nothing is under way, and the stand-in has what the API says."""
    def check():
        ops = d.get('/v1/operations?state=running').json['operations']
        states = {s['id']: s['state'] for s in d.get('/v1/sandboxes?limit=1000').json['sandboxes']}
        alive = {i for i, s in states.items() if s == 'running'}
        return not ops and set(d.placed()) == alive and set(states.values()) <= {'running', 'failed'}
    try:
        until(check, 30, 'a settled state')
    except AssertionError:
        print(d.get('/v1/operations?state=running').body, d.get('/v1/sandboxes?limit=1000').body, d.placed(), sep='\n')
        raise


def can_be_steered(d):
    try:
        return d.placed() is not None
    except OSError:
        return False


def written(d):
    """That a sandbox runs is written beside the answer; when something later is durable, so is that."""
    assert d.post('/v1/keys', {'name': 'later'}).status == 201


def test_running_ones_are_adopted(ready):
    d = ready
    s = d.create(name='a', env={'A': '1'})
    process = d.post(f'/v1/sandboxes/{s["id"]}/commands', {'cmd': 'cat'}).json
    d.kill()
    d.start()
    settled(d)
    t = d.sandbox('a')
    assert t['state'] == 'running' and t['id'] == s['id'] and t['env'] == {'A': '1'} and t['created_at'] == s['created_at']
    # the session's token is still good
    a = d.attach(s['id'], process['process_id'], f'?token={process["token"]}', conn=('127.0.0.1', d.port))
    assert a.status == 101
    a.close()
    d.steer(vm_exit=s['id'])
    until(lambda: d.sandbox('a')['state'] == 'failed', what='failed')


def test_lost_ones_fail(ready):
    d = ready
    s = d.create()
    written(d)
    d.kill()
    d.standin.kill()
    d.standin.wait()
    d.start_standin()
    d.start()
    until(lambda: d.sandbox(s['id'])['state'] == 'failed', what='failed')
    assert 'not there any more' in d.sandbox(s['id'])['reason']
    assert d.delete(f'/v1/sandboxes/{s["id"]}?wait=30').status == 200


def test_states_are_not_told_before_they_are_true(ready):
    """The host was started again: what the rows call running is not there, and no answer says that it runs."""
    d = ready
    s = d.create()
    written(d)
    d.kill()
    d.standin.kill()
    d.standin.wait()
    os.unlink(os.path.join(d.run, 'standin.sock'))
    d.start_standin()
    until(lambda: can_be_steered(d), what='the stand-in')
    d.fault('LIST', delay=0.5, times=1)
    d.start(connected=False)
    listed = d.get('/v1/sandboxes').json['sandboxes']
    assert [(x['id'], x['state']) for x in listed] == [(s['id'], 'failed')]
    began = time.monotonic()
    assert d.sandbox(s['id'])['state'] == 'failed' and time.monotonic() - began < 2


def test_states_without_rootd(ready):
    """There is nobody to ask: the rows are told after a while, and a client that left is forgotten."""
    d = ready
    s = d.create()
    written(d)
    d.kill()
    d.standin.kill()
    d.standin.wait()
    d.start(connected=False)
    conn = d.unix()
    conn.request('GET', '/v1/sandboxes')
    conn.close()
    assert d.sandbox(s['id'])['state'] == 'running'
    assert d.get('/health').status == 204
    d.start_standin()
    until(lambda: d.sandbox(s['id'])['state'] == 'failed', what='failed')


@pytest.mark.parametrize('verb,body,kind', [('wake', None, 'wake'), ('start', None, 'start'), ('checkpoints', {'kind': 'disk'}, 'checkpoint'),
                                            ('fork', {'n': 1}, 'fork')])
def test_changes_right_after_the_start(ready, verb, body, kind):
    """The host was started again. What is asked for at once waits until it is known what the sandbox is, and until its disk is
    stored: it is not refused for a state that is not true any more, nor for one that passes."""
    d = ready
    s = d.create()['id']
    written(d)
    d.kill()
    d.steer(lost=s)
    d.hold('LIST')
    d.hold('IMAGE_COMMIT')
    d.start(connected=False)
    d.held('LIST')
    answers = []
    t = threading.Thread(target=lambda: answers.append(d.post(f'/v1/sandboxes/{s}/{verb}?wait=60', body)))
    t.start()
    # Another connection's answer says that the first one's request was read.
    until(lambda: d.get('/health').status == 204 and d.get('/health').status == 204, what='an answer')
    d.release()
    d.held('IMAGE_COMMIT')
    assert not answers and d.sandbox(s)['state'] == 'failed'
    d.release()
    t.join()
    assert answers[0].status in (200, 201) and answers[0].json['operation']['kind'] == kind, answers
    assert d.sandbox(s)['state'] == ('running' if verb in ('wake', 'start') else 'failed')


def test_changes_without_rootd(ready):
    """What the rows forbid may not be true: refused as what may be tried again, and not for the state."""
    d = ready
    s = d.create()['id']
    written(d)
    d.kill()
    d.standin.kill()
    d.standin.wait()
    d.start(connected=False)
    for verb in ('wake', 'start', 'restore', 'resume'):
        r = d.post(f'/v1/sandboxes/{s}/{verb}')
        assert (r.status, r.code) == (503, 'unavailable') and 'cspace-rootd is not reachable' in r.json['error']['message'], r


def test_client_of_a_waiting_change_leaves(ready):
    d = ready
    s = d.create()['id']
    written(d)
    d.kill()
    d.steer(lost=s)
    d.hold('IMAGE_COMMIT')
    d.start()
    d.held('IMAGE_COMMIT')
    for verb in ('wake', 'start'):
        conn = d.unix()
        conn.request('POST', f'/v1/sandboxes/{s}/{verb}')
        assert d.get('/health').status == 204
        conn.close()
    assert d.get('/health').status == 204
    deleted = d.delete(f'/v1/sandboxes/{s}').json['operation']['id']
    d.release()
    assert d.op(deleted)['state'] == 'succeeded'
    settled(d)


@pytest.mark.parametrize('verb', [None, 'restore', 'start'])
def test_rootd_is_lost_while_it_places(ready, verb):
    """What it has begun is removed, and placed anew once it is there again."""
    d = ready
    s = d.create()['id']
    if verb:
        assert d.post(f'/v1/sandboxes/{s}/{"suspend" if verb == "restore" else "stop"}?wait=60').status == 200
    d.hold('PLACE')
    r = d.post(f'/v1/sandboxes/{s}/{verb}') if verb else d.post('/v1/sandboxes', {'template': 'base'})
    assert r.status == 202, r
    d.held('PLACE')
    d.steer(drop=True)
    d.release()
    assert d.op(r.json['operation']['id'])['state'] == 'succeeded'
    settled(d)
    assert d.sandbox(r.json['sandbox']['id'])['state'] == 'running'


def test_unknown_ones_are_removed(ready):
    d = ready
    d.steer(unknown='a' * 26)
    d.steer(drop=True)
    until(lambda: d.placed() == {}, what='removal')


@pytest.mark.parametrize('point', ['PLACE', 'RESTORE', 'IDENTIFY'])
def test_create_under_way(ready, point):
    d = ready
    d.fault(point, delay=1, times=1)
    r = d.post('/v1/sandboxes', {'template': 'base', 'env': {'X': 'y'}})
    assert r.status == 202
    s, op = r.json['sandbox']['id'], r.json['operation']['id']
    d.kill()
    d.start()
    assert d.op(op)['state'] == 'succeeded'
    assert d.sandbox(s)['state'] == 'running'
    settled(d)
    assert d.placed()[s]['identity']['env'] == {'X': 'y'}
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201


def test_delete_under_way(ready):
    d = ready
    s = d.create()
    d.fault('REMOVE', delay=1, times=1)
    r = d.delete(f'/v1/sandboxes/{s["id"]}')
    assert r.status == 202
    d.kill()
    d.start()
    assert d.op(r.json['operation']['id'])['state'] == 'succeeded'
    settled(d)
    assert d.sandbox(s['id']) is None


def test_build_under_way(daemon):
    d = daemon
    d.fault('BUILD_STEP', delay=0.5)
    op = d.post('/v1/templates', {'name': 'x'}).json['operation']['id']
    until(lambda: d.steer(state=True)['builds'], what='the build')
    d.kill()
    d.start()
    o = d.op(op)
    assert o['state'] == 'failed' and o['error']['code'] == 'interrupted'
    until(lambda: d.steer(state=True)['builds'] == [], what='clean-up')
    assert d.get('/v1/templates').json['templates'] == []
    d.fault('BUILD_STEP')
    d.template('x')


def test_variant_under_way(daemon):
    d = daemon
    d.fault('RESTORE', delay=3, times=1)
    d.post('/v1/templates', {'name': 'x'})
    until(lambda: d.placed(), what='the boot')
    d.kill()
    d.start()
    until(lambda: d.placed() == {} and d.steer(state=True)['templates'] == [], what='clean-up')
    assert d.get('/v1/templates').json['templates'] == []


def test_build_goes_on_when_rootd_ends_while_its_variant_is_made(daemon):
    d = daemon
    d.hold('PLACE')
    op = d.post('/v1/templates', {'name': 'x'}).json['operation']['id']
    d.held('PLACE')
    d.steer(drop=True)
    d.release()
    until(lambda: d.op(op)['state'] != 'running', what='the end')
    assert d.op(op)['state'] == 'succeeded', d.op(op)
    assert d.get('/v1/templates/x').status == 200


def test_kill_at_random_points(ready):
    """A load of creates and deletes, and cspaced killed again and again."""
    d = ready
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    promised, stop = [], threading.Event()

    def load(n):
        while not stop.is_set():
            try:
                r = d.post('/v1/sandboxes?wait=5', {'template': 'base', 'name': f'n{n}-{rng.randrange(1 << 40)}'}, timeout=10)
                if r.status in (201, 202):
                    promised.append(r.json['operation']['id'])
                    if rng.random() < 0.7:
                        d.delete(f'/v1/sandboxes/{r.json["sandbox"]["id"]}?wait=5', timeout=10)
            except (OSError, __import__('http').client.HTTPException):
                time.sleep(0.02)
    threads = [threading.Thread(target=load, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(25):
            time.sleep(rng.uniform(0.02, 0.3))
            d.kill()
            d.start(connected=rng.random() < 0.5)
    finally:
        stop.set()
        for t in threads:
            t.join()
    settled(d)
    for op in promised:
        assert d.op(op)['state'] in ('succeeded', 'failed'), f'seed {seed}'
    for s in d.get('/v1/sandboxes?limit=1000').json['sandboxes']:
        assert d.delete(f'/v1/sandboxes/{s["id"]}?wait=30').status == 200
    settled(d)
    assert d.placed() == {}
