# SPDX-License-Identifier: Apache-2.0
"""At boundaries of each operation (src/daemon/store/fault.h), with real VMs: what of the data folder is on its disk is opened by fresh
daemons, as after a power cut, and then cspaced is killed where it stands. What was acknowledged holds, nothing is half made, nothing is left
over.

The data folder is on a filesystem in a file, and that file is what is copied: what was written and not synced is in the memory of the
filesystem, not in it. (It is XFS because that takes a second one with the same id beside the first.)"""
import contextlib
import http.client
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading

import pytest

from conftest import Host, until

# At so many boundaries of each operation; tests/integration/daemon/test_walk.py looks at all. More takes ten minutes and more.
LOOKS = int(os.environ.get('CSPACE_POWER_LOOKS', '1'))


class Operation:
    def __init__(self, kind, path, /, before=(), to='running', **body):
        self.kind, self.path, self.before, self.to, self.body = kind, path, before, to, body

    def ask(self, h, s):
        if self.kind == 'create':
            return h.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 128})
        if self.kind == 'delete':
            return h.request('DELETE', f'/v1/sandboxes/{s}')
        return h.post(f'/v1/sandboxes/{s}/{self.path}', self.body or None)


OPERATIONS = {
    'create': Operation('create', None),
    'delete': Operation('delete', None, to=None),
    'pause': Operation('pause', 'pause', to='paused'),
    'resume': Operation('resume', 'resume', ('pause',)),
    'suspend': Operation('suspend', 'suspend', to='suspended'),
    'restore': Operation('restore', 'restore', ('suspend',)),
    'stop': Operation('stop', 'stop', to='stopped'),
    'start': Operation('start', 'start', ('stop',)),
    'checkpoint': Operation('checkpoint', 'checkpoints'),
    'checkpoint-full': Operation('checkpoint', 'checkpoints', kind='full'),
    'rollback': Operation('rollback', 'rollback', checkpoint='back'),
    'fork': Operation('fork', 'fork', n=2),
    'publish': Operation('publish', 'publish', name='mine'),
    'publish-full': Operation('publish', 'publish', name='mine', kind='full'),
}
UNDONE = ('checkpoint', 'fork', 'publish')  # what a restart may end as "interrupted"


def rows(h, query):
    for suffix in ('', '-wal'):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(h.data, 'state.db' + suffix), os.path.join(h.top, 'copy.db' + suffix))
    with contextlib.closing(sqlite3.connect(os.path.join(h.top, 'copy.db'))) as db:
        return db.execute(query).fetchall()


def names(h, folder):
    return set(os.listdir(os.path.join(h.data, folder)))


def problems(h):
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


def check(h, op, s, acknowledged, what, cut):
    settled(h, what)
    now = {x['id']: x['state'] for x in h.get('/v1/sandboxes?limit=1000').json['sandboxes']}
    good = None
    if acknowledged:
        r = h.get(f'/v1/operations/{acknowledged}')
        assert r.status == 200, f'{what}: acknowledged, but there is no such operation'
        good = r.json['state'] == 'succeeded'
        # After a power cut a VM is gone, and what concerned it has failed; otherwise it is finished or was undone.
        assert good or cut or (op.kind in UNDONE and r.json['error']['code'] == 'interrupted'), f'{what}: {r}'
    if op.kind == 'delete':
        assert good is None or (s not in now) == good, f'{what}: {now}'
        if s not in now:
            return
    if op.kind == 'checkpoint' and good is not None:
        assert (len(h.get(f'/v1/sandboxes/{s}/checkpoints').json['checkpoints']) == 1) == good, what
    if op.kind == 'publish' and good is not None:
        assert (h.get('/v1/templates/mine').status == 200) == good, what
    if op.kind == 'fork' and good is not None and not cut:
        assert (len(now) == 3) == good, f'{what}: {now}'
    if op.kind == 'create':
        assert cut or good is None or list(now.values()) == ['running'], f'{what}: {now}'
        return
    # Whatever it is now, it goes on from its files.
    if now[s] != 'running':
        assert cut or now[s] in (op.to, *{'pause': ['paused'], 'suspend': ['suspended'], 'stop': ['stopped']}.get(''.join(op.before), [])), \
            f'{what}: {now[s]}'
        h.change(s, 'wake')
    assert h.sh(s, 'cat /root/file').strip() == 'kept', what


def clear(h):
    for x in h.get('/v1/sandboxes?limit=1000').json['sandboxes']:
        h.delete(x['id'])
    if h.get('/v1/templates/mine').status == 200:
        assert h.request('DELETE', '/v1/templates/mine').status == 204
    settled(h, 'afterwards')


def children(pid):
    out = subprocess.run(['ps', '-o', 'pid=,comm=', '--ppid', str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in out.splitlines() if line.split()[1] == 'cspace-rootd']


class Disk:
    """A filesystem in a file which is on one with reflinks, so that a copy of the file is one of a moment."""

    def __init__(self, btrfs):
        self.top = os.path.join(btrfs, 'p' + os.urandom(4).hex())
        self.image, self.mount = os.path.join(self.top, 'image'), os.path.join(self.top, 'mount')
        os.makedirs(self.mount)
        with open(self.image, 'wb') as f:
            f.truncate(4 << 30)
        subprocess.run(['mkfs.xfs', '-q', '-m', 'reflink=1', self.image], check=True)
        subprocess.run(['mount', '-o', 'loop,noatime', self.image, self.mount], check=True)

    @contextlib.contextmanager
    def moment(self):
        """Where that is mounted which the disk has now."""
        image, mount = self.image + '-copy', self.mount + '-copy'
        subprocess.run(['cp', '--reflink=always', self.image, image], check=True)
        try:
            yield lambda: self.mounted(image, mount)
        finally:
            if os.path.isdir(mount):
                subprocess.run(['umount', '-l', mount], check=True)
                os.rmdir(mount)
            os.unlink(image)

    @staticmethod
    def mounted(image, mount):
        os.mkdir(mount)
        subprocess.run(['mount', '-o', 'loop,noatime,nouuid', image, mount], check=True)
        return mount

    def close(self):
        subprocess.run(['umount', '-l', self.mount], check=True)
        shutil.rmtree(self.top)


@pytest.fixture
def host(base, libexec, btrfs):
    if not shutil.which('mkfs.xfs') or subprocess.run(['grep', '-qw', 'xfs', '/proc/filesystems']).returncode and \
            subprocess.run(['modprobe', 'xfs'], stderr=subprocess.DEVNULL).returncode:
        pytest.skip('needs XFS')
    disk = Disk(btrfs)
    data = os.path.join(disk.mount, 'data')
    subprocess.run(['cp', '-a', base, data], check=True)
    subprocess.run(['sync', '-f', data], check=True)
    h = Host(libexec, data)
    h.disk = disk
    try:
        h.start()
        yield h
    finally:
        try:
            h.kill_cspaced()  # it may be stopped
            h.close()
        finally:
            disk.close()


def test_what_is_not_synced_is_lost(host):
    """Else none of this would say anything."""
    for name in ('synced', 'not'):
        with open(os.path.join(host.data, name), 'w') as f:
            f.write('x' * 100000)
            if name == 'synced':
                f.flush()
                os.fsync(f.fileno())
    with host.disk.moment() as mount:
        at = os.path.join(mount(), 'data')
        assert os.path.getsize(os.path.join(at, 'synced')) == 100000
        assert not os.path.exists(os.path.join(at, 'not')) or os.path.getsize(os.path.join(at, 'not')) == 0


def power_cut(h, op, s, acknowledged, what):
    """What the disk has at this moment, opened by fresh daemons."""
    held = [h.rootd.pid, *children(h.rootd.pid)]
    for pid in held:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    with h.disk.moment() as mount:
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        fresh = Host(h.libexec, os.path.join(mount(), 'data'))
        try:
            fresh.start()
            check(fresh, op, s, acknowledged, what + ', power cut', True)
        finally:
            fresh.close()


def prepare(h, op):
    if op.kind == 'create':
        return None
    s = h.create()
    h.sh(s, 'echo kept >/root/file; sync')
    if op.kind == 'rollback':
        assert h.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'name': 'back'}).status == 200
        h.sh(s, 'echo other >/root/other; sync')
    for verb in op.before:
        h.change(s, verb)
    return s


def stopped(h):
    with open(f'/proc/{h.cspaced.pid}/stat') as f:
        return f.read().rsplit(')', 1)[1].split()[0] == 'T'


def run(h, op, at):
    """To that boundary, or to the end."""
    s = prepare(h, op)
    h.end(h.cspaced, signal.SIGTERM)
    h.start_cspaced(fault=f'{op.kind}:{at or 9999}:stop')
    answer = []

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.append(op.ask(h, s))
    thread = threading.Thread(target=ask)
    thread.start()

    def over():
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            return bool(answer) and h.get('/v1/operations?state=running', timeout=1).json['operations'] == []
    until(lambda: stopped(h) or over() or stopped(h), 120, f'{op.kind}, boundary {at}')
    return s, answer, thread


@pytest.mark.parametrize('name', OPERATIONS)
def test_power_cut_and_kill(host, name):
    h, op = host, OPERATIONS[name]
    run(h, op, None)[2].join()
    settled(h, name)
    h.end(h.cspaced, signal.SIGTERM)
    n = int(re.findall(r'(\d+) boundaries of', h.text())[-1])
    h.start_cspaced()
    clear(h)
    processes, looked = descendants(h.rootd.pid), 0
    for at in sorted({1 + i * (n - 1) // max(LOOKS - 1, 1) for i in range(LOOKS)} if LOOKS > 1 else {(n + 1) // 2}):
        what = f'{name}, boundary {at} of {n}'
        s, answer, thread = run(h, op, at)
        if stopped(h):
            known = answer[0].json['operation']['id'] if answer and answer[0].status in (200, 201, 202) else None
            power_cut(h, op, s, known, what)
            looked += 1
        h.kill_cspaced()
        thread.join()
        known = answer[0].json['operation']['id'] if answer and answer[0].status in (200, 201, 202) else None
        h.start_cspaced()
        check(h, op, s, known, what + ', kill', False)
        clear(h)
        # Slots that wait are all there is of processes, and with them of namespaces and cgroups.
        until(lambda: descendants(h.rootd.pid) == processes, what=f'{what}: the processes of before')
    assert looked >= max(LOOKS - 1, 1)


def descendants(pid):
    """How many there are of each name."""
    out = subprocess.run(['ps', '-eo', 'pid=,ppid=,comm='], capture_output=True, text=True, check=True).stdout
    table, found, at = [line.split(None, 2) for line in out.splitlines()], {}, {str(pid)}
    while at:
        below = [x for x in table if x[1] in at]
        for x in below:
            found[x[2]] = found.get(x[2], 0) + 1
        at = {x[0] for x in below}
    return found
