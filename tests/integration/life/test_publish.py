# SPDX-License-Identifier: Apache-2.0
"""A sandbox becomes a template, with real VMs."""
import contextlib
import os
import shutil
import sqlite3
import subprocess

import pytest

from conftest import BUILD, until
from test_life import counting, counts, goes_on


def publish(h, s, **kw):
    r = h.post(f'/v1/sandboxes/{s}/publish?wait=300', {'name': 'mine', **kw})
    assert r.status == 201 and r.json['operation']['state'] == 'succeeded', r
    return r.json['operation']['result']['digest']


def secrets(h, s):
    """What only this sandbox and its gateway may know: access token and the authority's seed."""
    for suffix in ('', '-wal'):  # cspaced has the database to itself
        if os.path.exists(os.path.join(h.data, 'state.db' + suffix)):
            shutil.copy(os.path.join(h.data, 'state.db' + suffix), os.path.join(h.top, 'copy.db' + suffix))
    with contextlib.closing(sqlite3.connect(os.path.join(h.top, 'copy.db'))) as db:
        token, = db.execute('SELECT token FROM sandboxes WHERE id = ?', (s,)).fetchone()
        seed, = db.execute('SELECT ca_seed FROM egress WHERE sandbox_id = ?', (s,)).fetchone()
    return token, seed


def published_bytes(h, digest):
    """Everything of the template that is not a hole."""
    for top, _, files in os.walk(os.path.join(h.data, 'templates', digest)):
        for name in files:
            with open(os.path.join(top, name), 'rb') as f:
                at, size = 0, os.path.getsize(os.path.join(top, name))
                while at < size:
                    try:
                        at = os.lseek(f.fileno(), at, os.SEEK_DATA)
                    except OSError:
                        break
                    end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
                    f.seek(at)
                    yield name, f.read(end - at)
                    at = end


def holds(h, digest, text):
    forms = [text.encode()]
    with contextlib.suppress(ValueError):
        forms.append(bytes.fromhex(text))
    return [name for name, data in published_bytes(h, digest) for f in forms if f in data]


def identity(h, s):
    return h.sh(s, 'hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id').split()


@pytest.mark.parametrize('state', ['running', 'paused', 'suspended', 'stopped'])
def test_disk(host, state):
    h = host
    s = h.create(name='source', env={'SECRET': 'of the source'})
    h.sh(s, 'mkdir -p /srv/app && echo hello >/srv/app/file && { [ %s = running ] || sync; }' % state)
    who = identity(h, s)
    for verb in {'running': [], 'paused': ['pause'], 'suspended': ['suspend'], 'stopped': ['stop']}[state]:
        h.change(s, verb)
    token, seed = secrets(h, s)
    digest = publish(h, s)
    assert h.state(s) == state and secrets(h, s)[0] == token
    assert holds(h, digest, token) == [] and holds(h, digest, seed) == []
    assert holds(h, digest, 'of the source') == []
    a = h.create(template='mine')
    b = h.create(template='mine', memory_mb=192, name='b')
    for x in (a, b):
        assert h.sh(x, 'cat /srv/app/file; echo $SECRET').strip() == 'hello'
    ids = [who, identity(h, a), identity(h, b)]
    assert all(len({i[n] for i in ids}) == 3 for n in range(3)), ids
    assert 180 < int(h.sh(b, "sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")) / 1024 + 40 < 260
    h.change(a, 'stop')
    h.change(a, 'start')
    assert h.sh(a, 'cat /srv/app/file').strip() == 'hello'
    for x in (a, b, s):
        h.delete(x)
    assert h.request('DELETE', '/v1/templates/mine').status == 204
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')
    assert len(os.listdir(os.path.join(h.data, 'templates'))) == 1 and os.listdir(os.path.join(h.data, 'builds')) == []


@pytest.mark.parametrize('state', ['running', 'suspended'])
def test_full(host, state):
    """Programs go on in each sandbox that is made of it, under its own identity; those of the source do too."""
    h = host
    s = counting(h, name='source')
    h.background(s, 'exec 3</proc/self/status; while :; do nc -l -p 4000 -e cat; done')
    before, who = counts(h, s), identity(h, s)
    old, seed = secrets(h, s)
    if state == 'suspended':
        h.change(s, 'suspend')
    digest = publish(h, s, kind='full')
    new, _ = secrets(h, s)
    assert new != old
    assert holds(h, digest, new) == [] and holds(h, digest, seed) == []
    h.settled(s, state)
    if state == 'suspended':
        h.change(s, 'wake')
    goes_on(h, s, before)
    made = [h.create(template='mine', memory_mb=128), h.create(template='mine', name='other', env={'A': 'b'})]
    for x in made:
        goes_on(h, x, before)
        assert secrets(h, x)[0] not in (old, new)
        assert holds(h, digest, secrets(h, x)[0]) == []
    assert h.sh(made[1], 'echo $A').strip() == 'b'
    ids = [who] + [identity(h, x) for x in made]
    assert all(len({i[n] for i in ids}) == 3 for n in range(3)), ids
    assert identity(h, s) == who
    r = h.post('/v1/sandboxes', {'template': 'mine', 'memory_mb': 192})
    assert r.status == 400 and 'no other sizes' in r.json['error']['message']
    # As any other sandbox, and over a restart of everything.
    h.change(made[0], 'suspend')
    h.stop()
    h.start_rootd().start_cspaced()
    h.change(made[0], 'restore')
    goes_on(h, made[0], before)
    made.append(h.create(template='mine'))
    goes_on(h, made[-1], before)
    for x in made + [s]:
        h.delete(x)
    assert h.request('DELETE', '/v1/templates/mine').status == 204
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')
    assert len(os.listdir(os.path.join(h.data, 'templates'))) == 1 and os.listdir(os.path.join(h.data, 'builds')) == []


@pytest.mark.parametrize('full,fault', [(f, x) for f in (False, True) for x in ('publish:1', 'publish:3', 'publish:5', 'template:1',
                                                                             'template:3')] + [(True, 'publish:4')])
def test_rootd_ends_at_a_step(host, full, fault):
    """It is started again, and the publishing goes on."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.stop()
    h.fault.arm('rootd', fault)
    h.start_rootd().start_cspaced()
    r = h.post(f'/v1/sandboxes/{s}/publish', {'name': 'mine', 'kind': 'full' if full else 'disk'})
    op = r.json['operation']['id']
    until(lambda: h.rootd.poll() is not None, what='the end of cspace-rootd')
    assert h.get('/v1/templates/mine').status == 404
    h.start_rootd()
    o = h.get(f'/v1/operations/{op}?wait=300').json
    assert o['state'] == 'succeeded', o
    h.settled(s, 'running', 'suspended')
    if h.state(s) == 'suspended':  # its restore was what met the end
        h.change(s, 'wake')
    goes_on(h, s, before)
    x = h.create(template='mine')
    if full:
        goes_on(h, x, before)
    for y in (s, x):
        h.delete(y)
    assert h.request('DELETE', '/v1/templates/mine').status == 204
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []} and os.listdir(os.path.join(h.data, 'builds')) == [], what='nothing')
    assert len(os.listdir(os.path.join(h.data, 'templates'))) == 1


def test_twice_a_template(host):
    """A template of a template of a sandbox."""
    h = host
    s = counting(h)
    publish(h, s, kind='full')
    a = h.create(template='mine')
    h.sh(a, 'echo two >/root/two')
    before = counts(h, a)
    publish(h, a, name='second', kind='full')
    b = h.create(template='second')
    goes_on(h, b, before)
    publish(h, b, name='third')
    c = h.create(template='third')
    assert h.sh(c, 'cat /root/two').strip() == 'two'


def test_by_the_cli(host):
    h = host
    s = h.create(name='work')

    def cspace(*args, code=0):
        p = subprocess.run([os.path.join(BUILD, 'src', 'cli', 'cspace'), '--api', 'unix:' + os.path.join(h.run, 'api.sock'), *args],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert p.returncode == code, p
        return p
    h.sh(s, 'echo one >/root/file')
    c = cspace('checkpoint', '--name', 'point', 'work').stdout.strip()
    h.sh(s, 'echo two >/root/file')
    digest = cspace('template', 'publish', '-q', 'work', 'data:v2').stdout.strip()
    assert h.get('/v1/templates/data:v2').json['digest'] == digest
    for point in ('point', c):
        cspace('template', 'publish', '--checkpoint', point, 'work', 'old')
    assert cspace('run', '--template', 'data:v2', '--memory', '128M', '-u', 'root', '--', 'cat', '/root/file').stdout == 'two\n'
    assert cspace('run', '--template', 'old', '--memory', '128M', '-u', 'root', '--', 'cat', '/root/file').stdout == 'one\n'
    cspace('template', 'publish', '--full', '--json', 'work', 'whole')
    assert cspace('run', '--template', 'whole', '-u', 'root', '--', 'cat', '/root/file').stdout == 'two\n'
    assert 'no other sizes' in cspace('run', '--template', 'whole', '--memory', '256M', '--', 'true', code=125).stderr
    assert 'is no template name' in cspace('template', 'publish', 'work', 'NAME', code=2).stderr
    cspace('template', 'publish', '--full', '--checkpoint', 'point', 'work', 'x', code=2)
    assert 'does not exist' in cspace('template', 'publish', 'nobody', 'x', code=125).stderr
