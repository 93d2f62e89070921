# SPDX-License-Identifier: Apache-2.0
import contextlib
import hashlib
import json
import os
import subprocess
import sqlite3
import threading

from conftest import until


def test_state_while_it_is_built(daemon):
    d = daemon
    d.fault('VARIANT_COMMIT', delay=2, times=1)
    op = d.post('/v1/templates', {'name': 'base'}).json['operation']['id']
    until(lambda: d.get('/v1/templates').json['templates'], what='the template')
    assert [(t['names'], t['state']) for t in d.get('/v1/templates').json['templates']] == [([], 'building')]
    assert d.op(op)['state'] == 'succeeded'
    assert [(t['names'], t['state']) for t in d.get('/v1/templates').json['templates']] == [(['base:latest'], 'ready')]


def test_build_from_packages(daemon):
    d = daemon
    d.fault('BUILD_STEP', delay=0.2)
    r = d.post('/v1/templates', {'name': 'base', 'packages': ['git', 'curl'], 'suite': 'bookworm'})
    assert r.status == 202
    op = r.json['operation']
    assert op['kind'] == 'build' and op['subject'] == 'base:latest'
    seen = set()

    def progress():
        o = d.op(op['id'], 0)
        seen.add((o['progress']['step'], o['progress']['percent']))
        return o['state'] != 'running'
    until(progress, what='the build')
    o = d.op(op['id'])
    assert o['state'] == 'succeeded', o
    digest = hashlib.sha256(b'packagesgit curlbookworm').hexdigest()
    assert o['result'] == {'digest': digest, 'template': 'base:latest'} and o['progress']['percent'] == 100
    assert {s for s, _ in seen} & {'rootfs'} and any(s.startswith('preparing variant') for s, _ in seen)
    percents = [p for _, p in sorted(seen, key=lambda x: x[1] or 0)]
    assert percents == sorted(percents)
    log = d.get(f'/v1/operations/{op["id"]}/log').json
    assert 'rootfs: at 50' in log['text'] and log['next_offset'] == len(log['text']) and log['state'] == 'succeeded'
    assert d.get(f'/v1/operations/{op["id"]}/log?offset={log["next_offset"]}').json['text'] == ''
    t = d.get('/v1/templates/base').json
    assert t['digest'] == digest and t['names'] == ['base:latest'] and t['variants'][0]['name'] == 'fake-512m-1c'
    assert d.get('/v1/templates').json['templates'][0]['digest'] == digest
    until(lambda: d.steer(state=True)['builds'] == [] and d.placed() == {}, what='clean-up')


def test_build_from_archive(daemon):
    d = daemon
    data = os.urandom(10 << 20)
    r = d.post('/v1/templates/import?name=mine&tag=v1&wait=60', data, headers={'Content-Type': 'application/x-tar'})
    assert r.status == 201, r
    digest = hashlib.sha256(b'tar' + data).hexdigest()
    assert d.get('/v1/templates/mine:v1').json['digest'] == digest
    # chunked, as from a pipe
    r = subprocess.run(['curl', '-sS', '--unix-socket', os.path.join(d.run, 'api.sock'), '-T', '-', '-X', 'POST',
                        'http://x/v1/templates/import?name=other&wait=60'], input=data, capture_output=True, check=True)
    assert json.loads(r.stdout)['operation']['result']['digest'] == digest
    assert d.get(f'/v1/templates/{digest}').json['names'] == ['mine:v1', 'other:latest']
    assert d.post('/v1/templates/import?tag=x', b'').code == 'invalid_argument'
    assert d.post('/v1/templates/import?name=UP', b'').code == 'invalid_argument'


def test_bad_builds(daemon):
    for body in ({}, {'name': ''}, {'name': 'a:b'}, {'name': 'x', 'tag': 'A'}, {'name': 'x', 'packages': ['a b']},
                 {'name': 'x', 'packages': ['-o']}, {'name': 'x', 'packages': [1]}, {'name': 'x', 'source': 'tar'},
                 {'name': 'x', 'timeout_s': 1}, {'name': 'x', 'odd': 1}, {'name': 'x', 'packages': 'git'}):
        r = daemon.post('/v1/templates', body)
        assert r.code == 'invalid_argument', (body, r)
    assert daemon.get('/v1/operations').json['operations'] == []


def test_failed_build(daemon):
    d = daemon
    d.fault('BUILD_STEP', error=[2, 'package "nope" does not exist'])
    r = d.post('/v1/templates?wait=30', {'name': 'x', 'packages': ['nope']})
    assert r.code == 'build_failed' and 'package "nope" does not exist' in r.json['error']['message']
    op = r.json['error']['details']['operation_id']
    assert 'last line' in d.get(f'/v1/operations/{op}/log').json['text']
    assert d.get('/v1/templates').json['templates'] == []
    until(lambda: d.steer(state=True)['builds'] == [], what='clean-up')


def test_template_that_does_not_boot(daemon):
    """A hung boot is tried again; a template that never boots gets no name and leaves nothing."""
    d = daemon
    d.fault('RESTORE', error=[5, 'x'], times=1)
    assert d.post('/v1/templates?wait=60', {'name': 'x'}).status == 201
    d.fault('RESTORE', error=[5, 'x'])
    r = d.post('/v1/templates?wait=60', {'name': 'y', 'packages': ['z']})
    assert r.code == 'build_failed'
    assert d.get('/v1/templates/y').status == 404
    until(lambda: len(d.steer(state=True)['templates']) == 1 and d.placed() == {}, what='clean-up')
    assert [t['names'] for t in d.get('/v1/templates').json['templates']] == [['x:latest']]


def test_one_build_of_a_name(daemon):
    d = daemon
    d.fault('BUILD_STEP', delay=0.3)
    first = d.post('/v1/templates', {'name': 'x'}).json['operation']['id']
    r = d.post('/v1/templates', {'name': 'x', 'packages': ['git']})
    assert (r.status, r.code) == (409, 'build_running') and r.json['error']['details']['operation_id'] == first
    assert d.op(first)['state'] == 'succeeded'
    assert d.post('/v1/templates?wait=60', {'name': 'x', 'packages': ['git']}).status == 201
    # the name has moved on, nothing uses the older content: it is gone
    until(lambda: len(d.get('/v1/templates').json['templates']) == 1, what='removal of the older content')


def test_builds_wait_for_their_turn(bare):
    bare.start_standin()
    bare.start(conf='[build]\nparallel = 1\n')
    bare.fault('BUILD_STEP', delay=0.2)
    ops = [bare.post('/v1/templates', {'name': f'x{i}'}).json['operation']['id'] for i in range(3)]
    assert bare.op(ops[2], 0)['progress']['step'] == 'queued'
    assert [bare.op(o)['state'] for o in ops] == ['succeeded'] * 3


def test_names_and_removal(ready):
    d = ready
    digest = d.get('/v1/templates/base').json['digest']
    assert d.post('/v1/templates/base/tags', {'name': 'base', 'tag': 'v1'}).json['names'] == ['base:latest', 'base:v1']
    s = d.create(template='base:v1')
    assert s['digest'] == digest and s['template'] == 'base:v1'
    assert d.delete('/v1/templates/base:v1').status == 204
    assert d.post('/v1/sandboxes', {'template': 'base:v1'}).code == 'template_not_found'
    assert d.sandbox(s['id'])['template'] == 'base:v1'
    for ref in ('base', digest):
        r = d.delete(f'/v1/templates/{ref}')
        assert (r.status, r.code) == (409, 'template_in_use')
    # another content gets the name: the sandbox keeps its own until it is deleted
    assert d.post('/v1/templates?wait=60', {'name': 'base', 'packages': ['git']}).status == 201
    assert d.get(f'/v1/templates/{digest}').json['names'] == []
    assert d.sandbox(s['id'])['digest'] == digest
    assert d.create(template=digest)['template'] is None
    for x in d.get('/v1/sandboxes').json['sandboxes']:
        d.delete(f'/v1/sandboxes/{x["id"]}?wait=30')
    until(lambda: d.get(f'/v1/templates/{digest}').status == 404, what='removal')
    assert d.delete('/v1/templates/base').status == 204
    assert d.get('/v1/templates').json['templates'] == [] and d.steer(state=True)['templates'] == []
    assert d.delete('/v1/templates/base').code == 'template_not_found'


def test_variant_that_nobody_waits_for(ready):
    """Its only sandbox is deleted while it is made: the boot ends and is not begun again."""
    d = ready
    d.fault('RESTORE', hang=True)  # the guest never comes up
    s = d.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 256}).json['sandbox']['id']
    until(lambda: [p for p in d.placed().values() if p['mode'] == 'boot'], what='the boot')
    assert d.delete(f'/v1/sandboxes/{s}?wait=30').status == 200
    until(lambda: d.placed() == {}, what='the end of the boot')
    d.fault('RESTORE')
    assert d.steer(state=True)['variants'] == ['fake-512m-1c']
    d.create(memory_mb=256)
    assert d.steer(state=True)['variants'] == ['fake-256m-1c', 'fake-512m-1c']


def test_variant_that_another_waits_for_goes_on(ready):
    d = ready
    d.fault('RESTORE', delay=1, times=1)
    gone, stays = (d.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 256}).json for _ in range(2))
    until(lambda: d.placed(), what='the boot')
    boot = set(d.placed())
    assert d.delete(f'/v1/sandboxes/{gone["sandbox"]["id"]}?wait=30').status == 200
    assert set(d.placed()) == boot
    assert d.op(stays['operation']['id'])['state'] == 'succeeded'


def test_variants_of_a_template_have_a_limit(ready):
    d = ready
    keep = d.create(memory_mb=129)['id']
    for mb in range(130, 140):
        s = d.create(memory_mb=mb)['id']
        assert d.delete(f'/v1/sandboxes/{s}?wait=30').status == 200
    names = sorted(v['name'] for v in d.get('/v1/templates/base').json['variants'])
    assert len(names) == 8 and 'fake-129m-1c' in names and 'fake-139m-1c' in names
    assert 'fake-512m-1c' not in names and 'fake-130m-1c' not in names  # unused, and for longest
    until(lambda: d.steer(state=True)['variants'] == names, what='the removal of the files')
    assert d.sandbox(keep)['state'] == 'running'
    for mb in range(133, 140):  # now all are in use
        d.create(memory_mb=mb)
    r = d.post('/v1/sandboxes?wait=30', {'template': 'base', 'memory_mb': 150})
    assert (r.status, r.code) == (429, 'too_many') and '8 sizes' in r.json['error']['message'], r


def test_outdated_variant_rows_go(ready):
    """Of another QEMU or build, or of a template that is not there: nobody can use them."""
    d = ready
    digest = d.get('/v1/templates/base').json['digest']
    d.stop()
    with sqlite3.connect(os.path.join(d.data, 'state.db')) as db:
        for dig, name, engine, mb in ((digest, 'qemu-tcg-300m-1c-00000000', 'qemu-tcg', 300), ('e' * 64, 'fake-512m-1c', 'fake', 512)):
            db.execute('INSERT INTO variants (digest, name, engine, memory_mb, cpus, created_ms) VALUES (?, ?, ?, ?, 1, 1)',
                       (dig, name, engine, mb))
    db.close()
    d.start()
    until(lambda: d.steer(seen=True).count('VARIANT_REMOVE') == 1, what='the removal of the files')
    assert d.create()
    d.stop()
    with sqlite3.connect(os.path.join(d.data, 'state.db')) as db:
        assert db.execute('SELECT digest, name FROM variants').fetchall() == [(digest, 'fake-512m-1c')]
    db.close()


def test_size_against_the_host(ready):
    d = ready
    cpus = os.cpu_count()
    total = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGESIZE') >> 20
    for path in '/v1/sandboxes', '/v1/templates':
        body = {'template': 'base'} if path.endswith('boxes') else {'name': 'big'}
        r = d.post(path, {**body, 'cpus': cpus + 1})
        assert (r.status, r.code) == (400, 'invalid_argument')
        assert f"more than this host's {cpus}" in r.json['error']['message']
        if total - 512 < 65536:
            r = d.post(path, {**body, 'memory_mb': total - 511})
            assert (r.status, r.code) == (400, 'invalid_argument')
            assert f'{total} MiB' in r.json['error']['message']
    d.stop()
    d.start(conf='[sandbox]\nmax_cpus = 32\nmax_memory_mb = 300\n')
    d.create(cpus=cpus + 1, memory_mb=300)
    r = d.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 301})
    assert r.status == 400 and '300 MiB that are allowed' in r.json['error']['message']


def test_size_variants_are_made_once(ready):
    d = ready
    d.fault('RESTORE', delay=0.5, times=1)
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(d.post('/v1/sandboxes?wait=60', {'template': 'base', 'memory_mb': 256})))
               for _ in range(4)]
    for t in threads:
        t.start()
    until(lambda: [s for s in d.get('/v1/operations?kind=create&state=running').json['operations']
                   if s['progress']['step'].startswith('preparing variant')], what='progress')
    for t in threads:
        t.join()
    assert [r.status for r in replies] == [201] * 4
    assert d.steer(state=True)['variants'] == ['fake-256m-1c', 'fake-512m-1c']
    d.create(memory_mb=256)
    # one that is gone from the host is made again
    assert d.steer(seen=True).count('SNAPSHOT') == 2
    d.stop()
    d.standin.kill()
    d.standin.wait()
    d.start_standin()
    d.start()
    d.create(memory_mb=256)


def test_rules_of_a_template(daemon):
    """What its sandboxes get that ask for nothing else."""
    d = daemon
    d.template('ruled', checkpoint_every_s=600, checkpoint_keep=4)
    s = d.create(template='ruled')
    assert (s['checkpoint_every_s'], s['checkpoint_keep']) == (600, 4)
    s = d.create(template='ruled', checkpoint_every_s=60)
    assert (s['checkpoint_every_s'], s['checkpoint_keep']) == (60, 6)
    assert d.create(template='ruled', checkpoint_every_s=0)['checkpoint_every_s'] == 0
    for bad in ({'checkpoint_every_s': 1}, {'checkpoint_keep': 0}, {'checkpoint_keep': 101}):
        assert d.post('/v1/templates', {'name': 'x', **bad}).status == 400, bad
    r = d.post('/v1/templates/import?wait=60&name=tar&checkpoint_every_s=90', b'archive', headers={'Content-Type': 'application/x-tar'})
    assert r.status == 201, r
    s = d.create(template='tar')
    assert (s['checkpoint_every_s'], s['checkpoint_keep']) == (90, 6)


def test_agent_of_another_cspace(daemon):
    """A template says whether its agent is the installed one, and notices an upgrade without a restart."""
    d = daemon
    libexec = os.path.join(d.top, 'libexec')
    os.mkdir(libexec)
    agent, mine = os.path.join(libexec, 'cspace-agent'), b'\x7fELF'.ljust(1000, b'.')
    with open(agent, 'wb') as f:
        f.write(mine)
    conf = f'[paths]\nlibexec = {libexec}\n'
    d.stop()
    d.start(conf)
    d.template('base')
    assert d.get('/v1/templates/base').json['agent'] == 'other'  # the stand-in's manifest says nothing of one
    digest = d.get('/v1/templates/base').json['digest']
    manifest = {'agent': {'sha256': hashlib.sha256(mine).hexdigest()}, 'source': {'kind': 'packages', 'requested': ['git']}}
    d.stop()
    with contextlib.closing(sqlite3.connect(os.path.join(d.data, 'state.db'))) as db, db:
        db.execute('UPDATE templates SET manifest = ? WHERE digest = ?', (json.dumps(manifest), digest))
    d.start(conf)
    t = d.get('/v1/templates').json['templates'][0]
    assert t['agent'] == 'installed' and t['source'] == manifest['source']
    with open(agent, 'wb') as f:
        f.write(mine + b'\0')
    until(lambda: d.get('/v1/templates/base').json['agent'] == 'other', what='the upgrade')
    os.unlink(agent)
    until(lambda: 'agent' not in d.get('/v1/templates/base').json, what='no agent')
