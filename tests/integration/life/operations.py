# SPDX-License-Identifier: Apache-2.0
"""Operations of a sandbox, and what has to be true after one of them was disturbed."""
import contextlib
import os
import shutil
import sqlite3

from conftest import until


class Operation:
    def __init__(self, kind, path, /, before=(), to='running', memory=True, **body):
        self.kind = kind      # as the API has it
        self.path = path      # below the sandbox
        self.before = before  # verbs that lead to where it starts
        self.to = to          # its sandbox's state when it has succeeded
        self.memory = memory  # what was in its memory is there afterwards
        self.body = body

    def ask(self, h, s):
        if self.kind == 'create':
            return h.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 128})
        if self.kind == 'delete':
            return h.request('DELETE', f'/v1/sandboxes/{s}')
        return h.post(f'/v1/sandboxes/{s}/{self.path}', self.body or None)

    def prepare(self, h):
        """The sandbox it is for, with something on its disk and in its memory; None for a create."""
        if self.kind == 'create':
            return None
        s = h.create()
        h.sh(s, 'echo kept >/root/file; sync; echo kept >/dev/shm/file')
        if self.kind == 'rollback':
            body = {'name': 'back', 'kind': 'full' if self.memory else 'disk'}
            assert h.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', body).status == 200
            h.sh(s, 'echo other >/root/other; sync')
        for verb in self.before:
            h.change(s, verb)
        return s

    @property
    def state_before(self):
        return {'pause': 'paused', 'suspend': 'suspended', 'stop': 'stopped'}[self.before[-1]] if self.before else 'running'


OPERATIONS = {
    'create': Operation('create', None),
    'delete': Operation('delete', None, to=None),
    'delete-suspended': Operation('delete', None, ('suspend',), to=None),
    'pause': Operation('pause', 'pause', to='paused'),
    'resume': Operation('resume', 'resume', ('pause',)),
    'suspend': Operation('suspend', 'suspend', to='suspended'),
    'suspend-paused': Operation('suspend', 'suspend', ('pause',), to='suspended'),
    'restore': Operation('restore', 'restore', ('suspend',)),
    'stop': Operation('stop', 'stop', to='stopped', memory=False),
    'stop-suspended': Operation('stop', 'stop', ('suspend',), to='stopped', memory=False),
    'start': Operation('start', 'start', ('stop',), memory=False),
    'checkpoint': Operation('checkpoint', 'checkpoints'),
    'checkpoint-full': Operation('checkpoint', 'checkpoints', kind='full'),
    'rollback': Operation('rollback', 'rollback', memory=False, checkpoint='back'),
    'rollback-full': Operation('rollback', 'rollback', checkpoint='back'),
    'fork': Operation('fork', 'fork', n=2),
    'publish': Operation('publish', 'publish', name='mine'),
    'publish-full': Operation('publish', 'publish', name='mine', kind='full'),
}
# What may be undone, with nothing left of it, when cspaced or cspace-rootd ends meanwhile, and the errors that say so.
UNDONE = {'checkpoint': ('interrupted',), 'fork': ('interrupted',), 'publish': ('interrupted', 'unavailable', 'build_failed')}


def rows(h, query):
    for suffix in ('', '-wal'):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(h.data, 'state.db' + suffix), os.path.join(h.top, 'copy.db' + suffix))
    with contextlib.closing(sqlite3.connect(os.path.join(h.top, 'copy.db'))) as db:
        return db.execute(query).fetchall()


def names(h, folder):
    return set(os.listdir(os.path.join(h.data, folder)))


def problems(h):
    """What is not as it should be when nothing is under way."""
    if ops := h.get('/v1/operations?state=running').json['operations']:
        return [f'under way: {[(o["kind"], o["progress"]["step"]) for o in ops]}']
    listed = h.get('/v1/sandboxes?limit=1000').json['sandboxes']
    by_row = {i: (state, image) for i, state, image in rows(h, 'SELECT id, state, image FROM sandboxes')}
    found = []
    if (api := {s['id']: s['state'] for s in listed}) != (db := {i: x[0] for i, x in by_row.items()}):
        found.append(f'listed are {api}, the rows say {db}')
    live = {s['id'] for s in listed if s['state'] in ('running', 'paused')}
    images = {x[1] for x in by_row.values() if x[1]} | {c for c, in rows(h, 'SELECT id FROM checkpoints')}
    for folder, want in (('sandboxes', live), ('checkpoints', images), ('builds', set()),
                         ('templates', {t['digest'] for t in h.get('/v1/templates').json['templates']})):
        if (there := names(h, folder)) != want:
            found.append(f'{folder}: there are {there}, should be {want}')
    if (there := set(os.listdir(os.path.join(h.run, 'sandboxes')))) != live:
        found.append(f'placed are {there}, should be {live}')
    if moving := [s['state'] for s in listed if s['state'].endswith('ing') and s['state'] != 'running']:
        found.append(f'on the way: {moving}')
    for s in listed:
        if s['state'] in ('suspended', 'stopped') and not by_row[s['id']][1]:
            found.append(f'{s["id"]} is {s["state"]} without an image')
    for table in ('egress', 'checkpoints', 'events'):
        if orphans := {r for r, in rows(h, f'SELECT DISTINCT sandbox_id FROM {table}')} - set(by_row):
            found.append(f'{table} has rows of {orphans}')
    if forks := rows(h, 'SELECT op_id FROM forks'):
        found.append(f'forks: {forks}')
    if nameless := rows(h, 'SELECT digest FROM templates WHERE digest NOT IN (SELECT digest FROM tags)'):
        found.append(f'templates without a name: {nameless}')
    return found


def settled(h, what):
    last = []

    def check():
        last[:] = problems(h)
        return not last
    try:
        until(check, 60, 'order')
    except AssertionError:
        raise AssertionError(f'{what}: {last}\n{h.text()[-2000:]}') from None


def check(h, op, s, acknowledged, what, lost, others=()):
    """Once all is started again. lost: a VM that it concerns may be gone. others: sandboxes that have nothing to do with it."""
    settled(h, what)
    now = {x['id']: x['state'] for x in h.get('/v1/sandboxes?limit=1000').json['sandboxes'] if x['id'] not in others}
    good = None  # nothing was promised, and either is right if it is whole
    if acknowledged:
        r = h.get(f'/v1/operations/{acknowledged}')
        assert r.status == 200, f'{what}: acknowledged, but there is no such operation'
        good = r.json['state'] == 'succeeded'
        # Where its VM is gone, what concerned it has failed; otherwise it is finished or was undone.
        assert good or (lost and op.kind != 'delete') or r.json['error']['code'] in UNDONE.get(op.kind, ()), f'{what}: {r}'
    if op.kind == 'delete':
        assert good is None or s not in now, f'{what}: {now}'
        if s not in now:
            return
    if op.kind == 'checkpoint' and good is not None:
        assert (len(h.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints']) == 1) == good, what
    if op.kind == 'publish' and good is not None:
        assert (h.get('/v1/templates/mine').status == 200) == good, what
    if op.kind == 'fork':
        assert len(now) in (1, 3), f'{what}: {now}'
        assert good is None or lost or (len(now) == 3) == good, f'{what}: {now}'
    if op.kind == 'create':
        assert len(now) <= 1 and (not good or lost or list(now.values()) == ['running']), f'{what}: {now}'
        if not good:
            return
    # Whatever each is now, it goes on from its files, and from its memory if the VM was not lost.
    allowed = {op.to, op.state_before}
    if op.kind == 'rollback' and not good:
        allowed = {'suspended' if op.memory else 'stopped', 'running'}  # at the checkpoint; `wake` tries again
    for x, state in now.items():
        assert x != s or lost or state in allowed, f'{what}: {state}'
        if state != 'running':
            wake(h, x, lost)
        if op.kind != 'create':
            assert h.sh(x, 'cat /root/file').strip() == 'kept', what
            assert lost or not op.memory or h.sh(x, 'cat /dev/shm/file').strip() == 'kept', what
        else:
            assert h.sh(x, 'echo $((6 * 7))').strip() == '42', what


def wake(h, s, lost):
    """One whose VM was lost is stored first."""
    r = h.post(f'/v1/sandboxes/{s}/wake?wait=120')
    if lost and r.status == 409 and 'in a moment' in r.json['error']['message']:
        r = until(lambda: (r := h.post(f'/v1/sandboxes/{s}/wake?wait=120')).status != 409 and r, what='the disk as an image')
    assert r.status == 200 and r.json['operation']['state'] == 'succeeded', r


def clear(h, others=()):
    for x in h.get('/v1/sandboxes?limit=1000').json['sandboxes']:
        if x['id'] not in others:
            h.delete(x['id'])
    if h.get('/v1/templates/mine').status == 200:
        assert h.request('DELETE', '/v1/templates/mine').status == 204
    settled(h, 'afterwards')
