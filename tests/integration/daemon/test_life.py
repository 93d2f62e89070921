# SPDX-License-Identifier: Apache-2.0
"""Pausing, suspending and stopping, with every part behind cspaced failing or cspaced itself killed in between. (With
real VMs: tests/integration/life.)"""

import json
import threading
import time

import pytest

from conftest import until

# verb: how to get to where it starts, what it needs, where it ends
VERBS = {
    'pause': ([], ['PAUSE'], 'paused'),
    'resume': (['pause'], ['RESUME'], 'running'),
    'suspend': ([], ['PAUSE', 'IMAGE_BEGIN', 'SAVE', 'IMAGE_COMMIT', 'REMOVE'], 'suspended'),
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
    d.hold(step)
    r = change(d, s, verb, 0)
    assert r.status == 202, r
    op = r.json['operation']['id']
    d.held(step)
    d.kill()
    d.start()
    d.release()
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
    assert change(d, s, again).status == 200  # a failed one's disk may just be being stored: that is waited for


@pytest.mark.parametrize('verb', ['pause', 'suspend', 'stop', 'restore', 'start', 'resume'])
@pytest.mark.parametrize('what', ['warden', 'rootd'])
def test_others_are_restarted_in_between(ready, verb, what):
    d = ready
    s = made(d, verb)
    step = VERBS[verb][1][0]
    d.hold(step)
    r = change(d, s, verb, 0)
    d.held(step)
    if what == 'rootd':
        d.steer(drop=True)
    elif s in d.placed():
        d.steer(warden_exit=s)
        d.steer(warden_start=s)
    d.release()
    op = d.op(r.json['operation']['id'])
    state = consistent(d, s)
    assert op['state'] == 'succeeded' and state == VERBS[verb][2], (op, state)


@pytest.mark.parametrize('verb,step', [x for x in STEPS if x[0] in ('pause', 'resume', 'suspend') and x[1] != 'REMOVE'])
def test_the_vm_ends_in_between(ready, verb, step):
    d = ready
    s = made(d, verb)
    d.hold(step)
    r = change(d, s, verb, 0)
    d.held(step)
    d.steer(vm_exit=s)
    d.release()
    op = d.op(r.json['operation']['id'])
    state = consistent(d, s)
    if op['state'] == 'succeeded':  # it was saved before
        assert verb == 'suspend' and state == 'suspended'
    else:
        assert state == 'failed'
        until(lambda: change(d, s, 'start').status == 200, what='start')


def test_the_vm_ends_while_a_suspend_is_undone(ready):
    """The image could not be stored, and the VM that was to go on has ended: an answer, and a sandbox that is told as failed."""
    d = ready
    s = made(d, 'suspend')
    d.fault('IMAGE_COMMIT', error=[28, 'no space left'], times=1)
    d.hold('RESUME')
    r = change(d, s, 'suspend', 0)
    d.held('RESUME')
    d.steer(vm_exit=s)
    d.release()
    op = d.op(r.json['operation']['id'], 20)
    assert op['state'] == 'failed', op
    assert consistent(d, s) == 'failed'


@pytest.mark.parametrize('verb,step', STEPS)
def test_deleted_in_between(ready, verb, step):
    d = ready
    s = made(d, verb)
    d.hold(step)
    r = change(d, s, verb, 0)
    d.held(step)
    deleted = d.delete(f'/v1/sandboxes/{s}').json['operation']['id']
    d.release()
    assert d.op(deleted)['state'] == 'succeeded'
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


def test_paused_for_a_cspaced_that_is_gone(ready):
    """Its fork had the warden pause the VM; that comes about when this cspaced has asked already how it is."""
    d = ready
    s = made(d, 'pause')
    d.fault('RESUME', error=[16, 'the VM is being saved'], times=1)
    d.steer(late_pause=s)
    until(lambda: not d.steer(paused=s), what='a VM that goes on')
    assert d.sandbox(s)['state'] == 'running'
    change(d, s, 'pause')
    d.steer(late_pause=s)
    d.steer(vm_exit=s)  # told after it
    assert consistent(d, s) == 'failed'
    assert d.steer(seen=True).count('RESUME') == 2


def test_one_whose_disk_is_being_stored_is_waited_for(ready):
    d = ready
    s = made(d, 'resume')
    d.hold('IMAGE_COMMIT')
    d.steer(vm_exit=s)
    d.held('IMAGE_COMMIT')
    answers = []
    t = threading.Thread(target=lambda: answers.append(change(d, s, 'start')))
    t.start()
    assert d.sandbox(s)['state'] == 'failed' and not answers
    d.release()
    t.join()
    assert answers[0].status == 200, answers


@pytest.mark.parametrize('what', ['create', 'restore', 'rollback', 'fork'])
def test_the_process_does_not_go_on(ready, what):
    """Its snapshot is tried then, once; when that does not go on either it is as ever."""
    d = ready
    s = made(d, 'restore')
    if what in ('rollback', 'fork'):
        assert change(d, s, 'restore').status == 200
        r = d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'kind': 'full', 'name': 'c'})
        assert r.status == 200

    def ask():
        if what == 'create':
            return d.post('/v1/sandboxes?wait=60', {'template': 'base'})
        return d.post(f'/v1/sandboxes/{s}/{what}?wait=60', {'rollback': {'checkpoint': 'c'}, 'fork': {'checkpoint': 'c'}}.get(what))
    d.fault('THAWED', error=[0, ''], times=1)
    d.fault('RESTORE', error=[5, 'x'], times=2)
    n = len(d.steer(seen=True))
    r = ask()
    assert r.status >= 500, r
    seen = d.steer(seen=True)[n:]
    assert seen.count('PLACE') == 2, seen
    d.fault('THAWED', error=[0, ''], times=1)
    d.fault('RESTORE', error=[5, 'x'], times=1)
    n = len(d.steer(seen=True))
    r = ask()
    if what == 'create':  # the variant has gone, and its making found nothing to freeze
        assert r.status == 201 and until(lambda: 'VARIANT_REMOVE' in d.steer(seen=True)[n:], what='its removal') is True, r
    else:
        assert r.status in (200, 201) and r.json['operation']['state'] == 'succeeded', r
        until(lambda: 'IMAGE_REMOVE' in d.steer(seen=True)[n:], what='removal of the process')
    assert d.steer(seen=True)[n:].count('PLACE') == 2
    if what == 'create':
        assert d.post('/v1/sandboxes?wait=60', {'template': 'base'}).status == 201


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


# ---- rules ---------------------------------------------------------------------------------------

def test_rules_are_kept_and_checked(ready):
    d = ready
    s = d.create(on_expiry='suspend', idle_s=100, on_idle='pause', wake=True)
    assert (s['on_expiry'], s['idle_s'], s['on_idle'], s['wake']) == ('suspend', 100, 'pause', True)
    for bad in ({'on_expiry': 'pause'}, {'on_idle': 'x'}, {'idle_s': -1}, {'wake': 1}, {}, {'other': 1}):
        assert d.request('PATCH', f'/v1/sandboxes/{s["id"]}', bad).status == 400, bad
    r = d.request('PATCH', f'/v1/sandboxes/{s["id"]}', {'wake': False, 'ttl_s': 50})
    assert r.status == 200 and not r.json['wake'] and r.json['idle_s'] == 100 and r.json['expires_at']
    d.kill()
    d.start()
    t = d.sandbox(s['id'])
    assert (t['on_expiry'], t['idle_s'], t['on_idle'], t['wake']) == ('suspend', 100, 'pause', False)
    plain = d.create()
    assert (plain['on_expiry'], plain['idle_s'], plain['on_idle'], plain['wake']) == ('delete', 0, 'suspend', False)


@pytest.mark.parametrize('end,state', [('suspend', 'suspended'), ('stop', 'stopped'), ('delete', None)])
def test_expiry(ready, end, state):
    d = ready
    began = time.monotonic()
    s = d.create(ttl_s=2, on_expiry=end)['id']
    until(lambda: (d.sandbox(s) or {'state': None})['state'] == state, what=end)
    assert 1.5 < time.monotonic() - began < 3.5
    if state:
        assert change(d, s, 'wake').status == 200
        began = time.monotonic()
        until(lambda: d.sandbox(s)['state'] == state, what=end + ' again')
        assert 1.5 < time.monotonic() - began < 3.5


def test_expiry_while_down(ready):
    d = ready
    s = d.create(ttl_s=1, on_expiry='suspend')['id']
    d.kill()
    time.sleep(1.2)
    d.start()
    until(lambda: d.sandbox(s)['state'] == 'suspended', what='suspended')
    d.kill()
    d.start()
    time.sleep(1)
    assert d.sandbox(s)['state'] == 'suspended'


def test_expiry_of_a_paused_one(ready):
    d = ready
    s = d.create(ttl_s=2, on_expiry='suspend')['id']
    change(d, s, 'pause')
    until(lambda: d.sandbox(s)['state'] == 'suspended', what='suspended')


def test_expiry_that_fails_is_tried_again_later(ready):
    d = ready
    d.fault('SAVE', error=[28, 'no space left'])
    s = d.create(ttl_s=1, on_expiry='suspend')['id']
    until(lambda: b'change_failed' in d.get(f'/v1/sandboxes/{s}/logs').body, what='a failure')
    time.sleep(1.5)
    assert d.sandbox(s)['state'] == 'running'
    assert d.steer(seen=True).count('SAVE') == 1


@pytest.mark.parametrize('end,state', [('suspend', 'suspended'), ('pause', 'paused'), ('stop', 'stopped'), ('delete', None)])
def test_idle(ready, end, state):
    d = ready
    s = d.create(idle_s=2, on_idle=end)['id']
    for _ in range(4):  # used again and again
        time.sleep(0.8)
        assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    used = time.monotonic()
    until(lambda: (d.sandbox(s) or {'state': None})['state'] == state, what=end)
    assert 1.5 < time.monotonic() - used < 3.5


def test_a_clock_that_is_set_back(ready):
    """By a day, for rules that count from a moment: they do not wait for that day to pass."""
    d = ready
    d.stop()
    d.set_clock(86400)
    d.start()
    b = d.create(checkpoint_every_s=2)['id']
    writes = Written(d)
    first = until(lambda: writes() and rolled(d, b), what='one of the day to come')
    a = d.create(idle_s=2, on_idle='suspend')['id']
    d.set_clock(0)
    until(lambda: d.sandbox(a)['state'] == 'suspended', what='suspended')
    second = until(lambda: writes() and len(now := rolled(d, b)) > len(first) and now, what='another')
    d.set_clock(-86400)
    d.stop()
    d.start()
    until(lambda: writes() and len(rolled(d, b)) > len(second), what='one after a restart')


def test_an_open_stream_is_not_idle(ready):
    d = ready
    s = d.create(idle_s=1)['id']
    p = d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'cat'}).json
    a = d.attach(s, p['process_id'])
    assert a.status == 101
    time.sleep(3)
    assert d.sandbox(s)['state'] == 'running'
    a.close()
    closed = time.monotonic()
    until(lambda: d.sandbox(s)['state'] == 'suspended', what='suspended')
    assert 0.5 < time.monotonic() - closed < 2.5


@pytest.mark.parametrize('down', ['pause', 'suspend', 'stop'])
def test_wake_on_request(ready, down):
    d = ready
    s = d.create(wake=True)['id']
    assert change(d, s, down).status == 200
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    assert d.sandbox(s)['state'] == 'running'
    assert change(d, s, down).status == 200
    assert d.request('PUT', f'/v1/sandboxes/{s}/files?path=/tmp/x', b'data' * 10000).status == 200
    assert change(d, s, down).status == 200
    r = d.get('/health', headers={'E2b-Sandbox-Id': s, 'E2b-Sandbox-Port': '49983', 'Host': 'localhost'}, conn=d.tcp())
    assert d.sandbox(s)['state'] == 'running', r
    # on the way down
    d.fault('SAVE', delay=0.5)
    d.fault('STOP', delay=0.5)
    d.fault('PAUSE', delay=0.5)
    assert change(d, s, down, 0).status == 202
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    other = d.create()['id']
    change(d, other, down)
    assert d.post(f'/v1/sandboxes/{other}/commands', {'cmd': 'x'}).status == 409


def test_wake_that_fails(ready):
    d = ready
    s = d.create(wake=True)['id']
    change(d, s, 'suspend')
    d.fault('PLACE', error=[28, 'no space left'])
    r = d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'})
    assert r.status == 507 and 'does not wake up' in r.json['error']['message']
    assert d.sandbox(s)['state'] == 'suspended'


def test_e2b_rules(ready):
    d = ready
    h = {'X-API-KEY': d.post('/v1/keys', {'name': 'k'}).json['key']}
    r = d.post('/v2/sandboxes', {'templateID': 'base', 'timeout': 2, 'autoPause': True, 'autoResume': {'enabled': True}}, headers=h)
    s = r.json['sandboxID']
    t = d.get(f'/sandboxes/{s}', headers=h).json
    assert t['lifecycle'] == {'onTimeout': 'pause', 'autoResume': True}
    until(lambda: d.get(f'/sandboxes/{s}', headers=h).json['state'] == 'paused', what='paused')
    until(lambda: d.sandbox(s)['state'] == 'suspended' and d.sandbox(s)['wake'], what='suspended')
    r = d.post('/v2/sandboxes', {'templateID': 'base', 'autoPauseMemory': False}, headers=h)
    assert r.status == 400


# ---- history -------------------------------------------------------------------------------------

def checkpoint(d, s, wait=60, **kw):
    return d.post(f'/v1/sandboxes/{s}/checkpoints?wait={wait}', kw)


def history(d, s):
    return [c['id'] for c in d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints']]


CHECKPOINT_STEPS = [('disk', 'FSFREEZE'), ('disk', 'IMAGE_COMMIT'), ('full', 'FSFREEZE'), ('full', 'IMAGE_BEGIN'), ('full', 'SAVE'),
                    ('full', 'IMAGE_COMMIT'), ('full', 'RESUME'), ('full', 'IMAGE_SEAL')]


@pytest.mark.parametrize('kind,step', CHECKPOINT_STEPS)
@pytest.mark.parametrize('how', ['kill', 'error', 'vm', 'delete', 'rootd'])
def test_checkpoint_disturbed(ready, kind, step, how):
    """What was acknowledged is in the history, what was not is nowhere, and the sandbox goes on."""
    d = ready
    s = d.create()['id']
    first = checkpoint(d, s, name='first').json['operation']['result']['checkpoint']
    until(lambda: d.steer(seen=True).count('FSFREEZE') == 2, what='its end')
    d.fault(step, **({'error': [28, 'no space left']} if how == 'error' else {'hold': True}), times=1)
    op = checkpoint(d, s, 0, kind=kind).json['operation']['id']
    if how != 'error':
        d.held(step)
    if how == 'kill':
        d.kill()
        d.start()
    elif how == 'vm':
        d.steer(vm_exit=s)
    elif how == 'rootd':
        d.steer(drop=True)
    elif how == 'delete':
        deleted = d.delete(f'/v1/sandboxes/{s}').json['operation']['id']
        d.release()
        assert d.op(deleted)['state'] == 'succeeded'
        until(lambda: not d.placed() and not images(d), what='nothing')
        return
    d.release()
    ended = d.op(op)
    done = [op] if ended['state'] == 'succeeded' else []
    assert history(d, s) == [first] + done
    state = 'failed' if how == 'vm' else 'running'
    until(lambda: d.sandbox(s)['state'] == state, what=state)
    until(lambda: set(images(d)) - {first, *done} == set() or how == 'vm', what='no other image')
    if how == 'kill':
        assert ended['state'] == 'failed' and ended['error']['code'] == 'interrupted'
    if how == 'error' and step in ('FSFREEZE', 'RESUME'):
        assert done and d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints'][1]['consistent'] == ((kind, step) != ('disk', 'FSFREEZE'))
    if how == 'rootd':
        assert done
    r = d.post(f'/v1/sandboxes/{s}/rollback?wait=60', {'checkpoint': 'first'})
    until(lambda: r.status == 200 or d.post(f'/v1/sandboxes/{s}/rollback?wait=60', {'checkpoint': 'first'}).status == 200, what='rollback')
    assert d.sandbox(s)['state'] == 'running'


def test_the_log_names_checkpoints(ready):
    """Which one was taken, and which one was gone back to."""
    d = ready
    s = d.create()['id']
    named = checkpoint(d, s, name='before').json['operation']['id']
    other = checkpoint(d, s, kind='full').json['operation']['id']
    for c in ('before', other):
        assert d.post(f'/v1/sandboxes/{s}/rollback?wait=60', {'checkpoint': c}).status == 200

    def events():
        lines = map(json.loads, d.get(f'/v1/sandboxes/{s}/logs').body.splitlines())
        return [(x['event'], x['message']) for x in lines if not x['message'].startswith('ready after')]
    expected = [('running', f'checkpoint before ({named})'), ('running', f'checkpoint {other}'),
                ('rollback', f'to checkpoint before ({named})'), ('rollback', f'to checkpoint {other}')]
    until(lambda: events() == expected, what=str(expected))


def test_what_is_so_already(ready):
    d = ready
    s = d.create()['id']
    for verb, state in [('resume', 'running'), ('pause', 'paused'), ('suspend', 'suspended'), ('stop', 'stopped')]:
        if state != 'running':
            assert change(d, s, verb).status == 200
        r = change(d, s, verb)
        assert r.status == 409 and r.json['error']['message'] == f'sandbox "{s}" is {state} already', r


@pytest.mark.parametrize('kind', ['disk', 'full'])
@pytest.mark.parametrize('step', ['REMOVE', 'PLACE', 'IDENTIFY'])
@pytest.mark.parametrize('before', ['running', 'paused', 'suspended', 'stopped'])
def test_rollback_disturbed(ready, kind, step, before):
    d = ready
    s = d.create()['id']
    c = checkpoint(d, s, kind=kind).json['operation']['id']
    if before != 'running':
        change(d, s, {'paused': 'pause', 'suspended': 'suspend', 'stopped': 'stop'}[before])
    d.hold(step)
    op = d.post(f'/v1/sandboxes/{s}/rollback', {'checkpoint': c}).json['operation']['id']
    d.held(step)
    d.kill()
    d.start()
    d.release()
    assert d.op(op)['state'] == 'succeeded'
    assert d.sandbox(s)['state'] == 'running'
    assert d.get(f'/v1/sandboxes/{s}/checkpoints').json['head'] == c
    until(lambda: list(images(d)) == [c] and list(d.placed()) == [s], what='what is needed and no more')
    d.fault('PLACE', error=[28, 'no space left'], times=1)
    r = d.post(f'/v1/sandboxes/{s}/rollback?wait=60', {'checkpoint': c})
    assert r.status == 507 and d.sandbox(s)['state'] == ('suspended' if kind == 'full' else 'stopped')
    assert list(images(d)) == [c]
    assert change(d, s, 'wake').status == 200
    assert list(images(d)) == [c]


def test_checkpoint_limits(ready):
    d = ready
    s = d.create()['id']
    for bad in ({'kind': 'x'}, {'name': 'UP'}, {'name': ''}, {'other': 1}):
        assert checkpoint(d, s, **bad).status == 400, bad
    a = checkpoint(d, s, name='a').json['operation']['id']
    assert checkpoint(d, s, name='a').status == 409
    # What diff and the like have a word for is no name.
    for name in ('template', 'now', 'A'):
        assert checkpoint(d, s, name=name).code == 'invalid_argument', name
    b = checkpoint(d, s).json['operation']['id']
    assert d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints'][0]['disk_bytes'] == 4096
    assert d.delete(f'/v1/sandboxes/{s}/checkpoints/x').status == 404
    assert d.delete(f'/v1/sandboxes/{s}/checkpoints/a').status == 204
    assert history(d, s) == [b]
    until(lambda: list(images(d)) == [b], what='removal')
    assert d.post(f'/v1/sandboxes/{s}/rollback', {'checkpoint': a}).status == 404


# ---- checkpoints that are taken by themselves -------------------------------------------------------

def rolled(d, s):
    """The automatic ones, oldest first."""
    return [c['id'] for c in d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints'] if c['automatic']]


class Written:
    """The guest writes all the time."""

    def __init__(self, d):
        self.d, self.n = d, 100

    def __call__(self):
        self.n += 1
        self.d.steer(written=self.n)
        return True


def test_rolling_checkpoints(ready):
    """The newest two stay; one with a name, one made by hand and the one that the sandbox goes on from do too, and the
    images go with the rows."""
    d = ready
    s = d.create(checkpoint_every_s=2, checkpoint_keep=2)['id']
    assert (d.sandbox(s)['checkpoint_every_s'], d.sandbox(s)['checkpoint_keep']) == (2, 2)
    writes = Written(d)
    first = until(lambda: writes() and rolled(d, s), what='the first')[0]
    named = checkpoint(d, s, name='mine').json['operation']['id']
    byhand = checkpoint(d, s, kind='full').json['operation']['id']
    until(lambda: writes() and first not in rolled(d, s), what='the first to be rolled away')
    until(lambda: writes() and len(rolled(d, s)) == 2, what='two')
    all_of = history(d, s)
    assert named in all_of and byhand in all_of and len(all_of) == 4, all_of
    assert d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints'][0]['parent'] is None  # its parent was rolled away
    until(lambda: sorted(images(d)) == sorted(history(d, s)), what='images of the history alone')
    # The one that it went back to is not rolled away while it is that.
    back = rolled(d, s)[0]
    assert d.post(f'/v1/sandboxes/{s}/rollback?wait=60', {'checkpoint': back}).status == 200
    assert d.request('PATCH', f'/v1/sandboxes/{s}', {'checkpoint_keep': 1}).status == 200
    until(lambda: rolled(d, s) == [back], what='one')
    until(lambda: writes() and rolled(d, s) and back not in rolled(d, s), what='another one')
    assert len(rolled(d, s)) == 1
    assert d.request('PATCH', f'/v1/sandboxes/{s}', {'checkpoint_every_s': 0}).status == 200
    last = rolled(d, s)
    n = d.steer(seen=True).count('FSFREEZE')
    writes()
    time.sleep(2.5)
    assert rolled(d, s) == last and d.steer(seen=True).count('FSFREEZE') == n
    assert d.delete(f'/v1/sandboxes/{s}?wait=60').status == 200
    until(lambda: not images(d), what='nothing')


def test_rolling_only_when_something_was_written(ready):
    d = ready
    s = d.create(checkpoint_every_s=2)['id']
    until(lambda: len(rolled(d, s)) == 1, what='the first')
    n = d.steer(seen=True).count('USAGE')
    until(lambda: d.steer(seen=True).count('USAGE') >= n + 3, what='turns')
    assert len(rolled(d, s)) == 1
    d.steer(written=77)
    until(lambda: len(rolled(d, s)) == 2, what='one of what was written')
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201
    until(lambda: len(rolled(d, s)) == 3, what='one after a use')
    # A sandbox that does not run has nothing new, and is left alone.
    assert change(d, s, 'suspend').status == 200
    d.steer(written=78)
    n = len(d.steer(seen=True))
    time.sleep(3)
    assert not {'IMAGE_COMMIT', 'USAGE'} & set(d.steer(seen=True)[n:])
    assert change(d, s, 'restore').status == 200
    until(lambda: len(rolled(d, s)) == 4, what='one after it was woken')


@pytest.mark.parametrize('step', ['FSFREEZE', 'IMAGE_COMMIT'])
def test_rolling_goes_on_over_a_restart(ready, step):
    d = ready
    s = d.create(checkpoint_every_s=2, checkpoint_keep=2)['id']
    writes = Written(d)
    until(lambda: writes() and len(rolled(d, s)) == 2, what='two')
    d.hold(step)
    until(lambda: writes() and d.steer(held=step), what=step)
    d.kill()
    d.start()
    d.release()
    assert (d.sandbox(s)['checkpoint_every_s'], d.sandbox(s)['checkpoint_keep']) == (2, 2)
    before = rolled(d, s)
    until(lambda: writes() and not set(rolled(d, s)) & set(before), what='new ones')
    until(lambda: writes() and len(rolled(d, s)) == 2 and sorted(images(d)) == sorted(history(d, s)), what='images of the history alone')


def test_rolling_that_fails_is_not_the_end(ready):
    d = ready
    d.fault('IMAGE_COMMIT', error=[28, 'no space left'], times=2)
    s = d.create(checkpoint_every_s=2)['id']
    writes = Written(d)
    until(lambda: writes() and rolled(d, s), what='one at last')
    assert d.steer(seen=True).count('IMAGE_COMMIT') == 3
    assert b'no space left' in d.get(f'/v1/sandboxes/{s}/logs').body
    assert list(images(d)) == rolled(d, s)
