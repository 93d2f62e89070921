# SPDX-License-Identifier: Apache-2.0
"""A walk over all boundaries of all operations (src/lib/base/fault.h). At each cspaced is killed, or stopped while something else
ends; then, with all of it started again: what was acknowledged holds, nothing is half made, and nothing is left over. (With real VMs
and power cuts: tests/integration/life.)"""
import contextlib
import http.client
import os
import shutil
import signal
import sqlite3
import threading

import pytest

from conftest import until

BOUNDARIES_MAX = 80  # more than any has
EVENTUALLY = 40


class Operation:
    def __init__(self, kind, path, /, before=(), to=None, undone=False, **body):
        self.kind = kind      # as the API has it
        self.path = path      # below the sandbox
        self.before = before  # verbs that lead to where it starts
        self.to = to          # its sandbox's state when it has succeeded; None: the one of before
        self.undone = undone  # a restart of cspaced may end it as "interrupted"
        self.body = body

    def prepare(self, d):
        s = d.create()['id']
        for verb in self.before:
            assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
        return s

    def ask(self, d, s):
        if self.kind == 'delete':
            return d.delete(f'/v1/sandboxes/{s}')
        return d.post(f'/v1/sandboxes/{s}/{self.path}', self.body or None)


class Create(Operation):
    def prepare(self, d):
        return None

    def ask(self, d, s):
        return d.post('/v1/sandboxes', {'template': 'base', 'name': 'new'})


class Rollback(Operation):
    def prepare(self, d):
        s = super().prepare(d)
        assert d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'name': 'back', 'kind': self.path}).status == 200
        return s

    def ask(self, d, s):
        return d.post(f'/v1/sandboxes/{s}/rollback', {'checkpoint': 'back'})


OPERATIONS = {
    'create': Create('create', None, to='running'),
    'delete': Operation('delete', None),
    'delete-stopped': Operation('delete', None, ('stop',)),
    'pause': Operation('pause', 'pause', (), 'paused'),
    'resume': Operation('resume', 'resume', ('pause',), 'running'),
    'suspend': Operation('suspend', 'suspend', (), 'suspended'),
    'suspend-paused': Operation('suspend', 'suspend', ('pause',), 'suspended'),
    'restore': Operation('restore', 'restore', ('suspend',), 'running'),
    'stop': Operation('stop', 'stop', (), 'stopped'),
    'stop-suspended': Operation('stop', 'stop', ('suspend',), 'stopped'),
    'start': Operation('start', 'start', ('stop',), 'running'),
    'checkpoint': Operation('checkpoint', 'checkpoints', undone=True, name='one'),
    'checkpoint-full': Operation('checkpoint', 'checkpoints', undone=True, kind='full'),
    'checkpoint-stopped': Operation('checkpoint', 'checkpoints', ('stop',), undone=True, name='one'),
    'rollback': Rollback('rollback', 'disk', to='running'),
    'rollback-full': Rollback('rollback', 'full', ('suspend',), to='running'),
    'fork': Operation('fork', 'fork', undone=True, n=2),
    'publish': Operation('publish', 'publish', undone=True, name='mine'),
    'publish-full': Operation('publish', 'publish', undone=True, name='mine', kind='full'),
    'publish-stopped': Operation('publish', 'publish', ('stop',), undone=True, name='mine'),
}


def rows(d, query):
    """Of the database, while cspaced has it to itself."""
    for suffix in ('', '-wal'):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(d.data, 'state.db' + suffix), os.path.join(d.top, 'copy.db' + suffix))
    with contextlib.closing(sqlite3.connect(os.path.join(d.top, 'copy.db'))) as db:
        return db.execute(query).fetchall()


def problems(d):
    """What is not as it should be when nothing is under way. What is there of the host, by what the table of sandboxes says."""
    found = []
    if ops := d.get('/v1/operations?state=running').json['operations']:
        return [f'under way: {[(o["kind"], o["progress"]["step"]) for o in ops]}']
    host = d.steer(state=True)
    listed = d.get('/v1/sandboxes?limit=1000').json['sandboxes']
    images = {}
    for ident, state, image in rows(d, 'SELECT id, state, image FROM sandboxes'):
        images[ident] = image
        if (api := next((s['state'] for s in listed if s['id'] == ident), None)) != state:
            found.append(f'{ident} is {api}, its row says {state}')
    if lost := {s['id'] for s in listed} - set(images):
        found.append(f'no row: {lost}')
    if moving := [s['state'] for s in listed if s['state'].endswith('ing') and s['state'] != 'running']:
        found.append(f'on the way: {moving}')
    checkpoints = {c for c, in rows(d, 'SELECT id FROM checkpoints')}
    want = {
        'placed': {s['id'] for s in listed if s['state'] in ('running', 'paused')},
        'images': {i for i in images.values() if i} | checkpoints,
        'templates': {t['digest'] for t in d.get('/v1/templates').json['templates']},
        'builds': set(),
    }
    found += [f'{k}: there are {set(host[k])}, should be {v}' for k, v in want.items() if set(host[k]) != v]
    for s in listed:
        if s['state'] in ('suspended', 'stopped') and not images.get(s['id']):
            found.append(f'{s["id"]} is {s["state"]} without an image')
    for table in ('egress', 'checkpoints', 'events'):
        orphans = {r for r, in rows(d, f'SELECT DISTINCT sandbox_id FROM {table}')} - set(images)
        if orphans:
            found.append(f'{table} has rows of {orphans}')
    if forks := rows(d, 'SELECT op_id FROM forks'):
        found.append(f'forks: {forks}')
    if nameless := [t for t, in rows(d, 'SELECT digest FROM templates WHERE digest NOT IN (SELECT digest FROM tags)')]:
        found.append(f'templates without a name: {nameless}')
    return found


def settled(d, what):
    last = []

    def check():
        last[:] = problems(d)
        return not last
    try:
        until(check, EVENTUALLY, 'order')
    except AssertionError:
        raise AssertionError(f'{what}: {last}\n{d.get("/v1/operations?limit=5").body}') from None


def usable(d, s):
    """Whatever it is now, it can be made to run, and is asked for a command."""
    def runs():
        if d.sandbox(s)['state'] != 'running':
            d.post(f'/v1/sandboxes/{s}/wake?wait=60')
        return d.sandbox(s)['state'] == 'running'
    until(runs, EVENTUALLY, f'{s} runs')
    assert d.post(f'/v1/sandboxes/{s}/commands', {'cmd': 'x'}).status == 201


def check(d, op, s, acknowledged, what, how):
    """After the end of the world, and its being put together again."""
    settled(d, what)
    now = {x['id']: x['state'] for x in d.get('/v1/sandboxes?limit=1000').json['sandboxes']}
    ended = d.get(f'/v1/operations/{acknowledged}') if acknowledged else None
    if acknowledged:
        assert ended.status == 200, f'{what}: acknowledged, but there is no such operation'
        ended = ended.json
        good = ended['state'] == 'succeeded'
        if how == 'kill':
            assert good or (op.undone and ended['error']['code'] == 'interrupted'), f'{what}: {ended}'
    else:
        good = None  # either is right, if it is whole
    if op.kind == 'delete':
        assert good is None or (s not in now) == good, f'{what}: {now}'
        return
    if op.kind == 'create':
        new = [x['id'] for x in d.get('/v1/sandboxes').json['sandboxes'] if x['name'] == 'new']
        assert (good is None and len(new) <= 1) or bool(new) == good or how != 'kill', f'{what}: {now}, {ended}'
        s = new[0] if new else None
        if s and how == 'kill':
            assert now[s] == 'running', what
        elif s and now[s] == 'failed':  # it never ran, and says why
            assert not good and d.sandbox(s)['reason'], what
            return
    elif how == 'kill':
        before = {'pause': 'paused', 'suspend': 'suspended', 'stop': 'stopped'}[op.before[-1]] if op.before else 'running'
        allowed = {op.to or before} if good else {op.to or before, before}
        assert now[s] in allowed, f'{what}: {now[s]}'
    if op.kind == 'checkpoint' and good is not None:
        assert (len(d.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints']) == 1) == good, what
    if op.kind == 'publish':
        assert good is None or (d.get('/v1/templates/mine').status == 200) == good, what
    if op.kind == 'fork':
        assert len(now) in (2, 4) and (good is None or (len(now) == 4) == good), f'{what}: {now}'
    if s:
        usable(d, s)


def clear(d, bystander):
    assert d.sandbox(bystander)['state'] == 'running'
    assert d.post(f'/v1/sandboxes/{bystander}/commands', {'cmd': 'x'}).status == 201
    for x in d.get('/v1/sandboxes?limit=1000').json['sandboxes']:
        if x['id'] != bystander:
            assert d.delete(f'/v1/sandboxes/{x["id"]}?wait=60').status == 200
    if d.get('/v1/templates/mine').status == 200:
        assert d.delete('/v1/templates/mine').status == 204
    settled(d, 'afterwards')


def over(d, answer):
    """Short of patience: it may be stopped at any time."""
    with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
        return bool(answer) and d.get('/v1/operations?state=running', timeout=1).json['operations'] == [] and 'over'


def run(d, op, at, how):
    """Asks for it and goes on to that boundary; the answer, and whether it was met."""
    s = op.prepare(d)
    d.own_fault.arm('cspaced', at=at or 0, kind=op.kind, sig=signal.SIGKILL if how == 'kill' else signal.SIGSTOP)
    answer = []

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.append(op.ask(d, s))
    thread = threading.Thread(target=ask)
    thread.start()

    until(lambda: d.own_fault.met or over(d, answer), EVENTUALLY, f'{op.kind}, boundary {at}')
    met = d.own_fault.disarm()
    if met:
        act(d, s, how)
    thread.join(60)
    acknowledged = answer[0].json['operation']['id'] if answer and answer[0].status in (200, 201, 202) else None
    assert met or acknowledged, answer
    return s, acknowledged, bool(met)


def act(d, s, how):
    if how == 'kill':
        d.proc.wait()
        d.start()
        return
    placed = d.placed()
    if how == 'rootd':
        d.steer(drop=True)
    elif how == 'warden' and s in placed:
        d.steer(warden_exit=s)
        d.steer(warden_start=s)
    elif how == 'vm' and s in placed:
        d.steer(vm_exit=s)
    d.proc.send_signal(signal.SIGCONT)


def boundaries(d, op, other):
    """How many it has when nothing disturbs it."""
    run(d, op, None, 'none')
    settled(d, op.kind)
    n = len(d.own_fault.points())
    clear(d, other)
    return n


@pytest.mark.parametrize('how', ['kill', 'rootd', 'warden', 'vm'])
@pytest.mark.parametrize('name', OPERATIONS)
def test_walk(ready, name, how):
    d, op = ready, OPERATIONS[name]
    other = d.create(name='other')['id']
    n = boundaries(d, op, other)
    assert 3 < n < BOUNDARIES_MAX
    # A request is seen before and after it is made, and what follows is much the same: all of them with CSPACE_WALK=all.
    step = 1 if os.environ.get('CSPACE_WALK') == 'all' else 2 if how == 'kill' else 6
    met = 0
    for at in range(1, n + 1, step):
        s, acknowledged, hit = run(d, op, at, how)
        met += hit
        check(d, op, s, acknowledged, f'{name}, boundary {at}, {how}', how if hit else 'none')
        clear(d, other)
    assert met > n / step / 2
