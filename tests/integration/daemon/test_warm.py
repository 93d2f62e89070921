# SPDX-License-Identifier: Apache-2.0
import concurrent.futures

import pytest

from conftest import until


def warm(d):
    return d.get('/v1/host').json['warm'][0]['ready']


@pytest.fixture
def pool(bare):
    bare.start_standin()
    bare.start(conf='[pool]\nwarm = base=3\n')
    bare.template()
    until(lambda: warm(bare) == 3, what='a full pool')
    return bare


def test_taken_and_filled_up(pool):
    d = pool
    assert d.get('/v1/sandboxes').json['sandboxes'] == [] and d.get('/v1/host').json['sandboxes']['running'] == 0
    before = set(d.placed())
    assert not any(p['identified'] for p in d.placed().values())
    s = d.create(env={'A': 'b'}, name='w')
    assert s['timing']['warm'] and s['id'] in before
    assert d.placed()[s['id']]['identity']['env'] == {'A': 'b'}
    until(lambda: warm(d) == 3, what='a full pool')
    assert not d.create(memory_mb=256)['timing']['warm']
    d.delete('/v1/sandboxes/w?wait=30')
    assert s['id'] not in d.placed()


def test_a_burst(pool):
    with concurrent.futures.ThreadPoolExecutor(6) as ex:
        made = list(ex.map(lambda _: pool.create(), range(6)))
    assert len({s['id'] for s in made}) == 6 and sum(s['timing']['warm'] for s in made) >= 3
    tokens = {pool.placed()[s['id']]['identity']['accessToken'] for s in made}
    assert len(tokens) == 6


def test_pooled_ones_are_hidden(pool):
    for ident in pool.placed():
        assert pool.get(f'/v1/sandboxes/{ident}').status == 404
        assert pool.delete(f'/v1/sandboxes/{ident}').status == 404


def test_one_is_lost(pool):
    lost = next(iter(pool.placed()))
    pool.steer(vm_exit=lost)
    until(lambda: lost not in pool.placed() and warm(pool) == 3, what='a full pool')


def test_restart(pool):
    before = set(pool.placed())
    assert pool.post('/v1/keys', {'name': 'later'}).status == 201  # durable, and so is what was written before: their rows
    pool.kill()
    pool.start(conf='[pool]\nwarm = base=3\n')
    until(lambda: warm(pool) == 3, what='a full pool')
    assert set(pool.placed()) == before
    assert pool.create()['id'] in before
    pool.stop()
    pool.start(conf='')
    until(lambda: len(pool.placed()) == 1, what='an empty pool')


def test_taken_and_killed(pool):
    """Given away, and cspaced dies before the create has ended: adopted with its new identity."""
    pool.fault('IDENTIFY', delay=1, times=1)
    r = pool.post('/v1/sandboxes', {'template': 'base', 'env': {'A': 'b'}})
    s = r.json['sandbox']['id']
    pool.kill()
    pool.start(conf='[pool]\nwarm = base=3\n')
    assert pool.op(r.json['operation']['id'])['state'] == 'succeeded'
    assert pool.placed()[s]['identity']['env'] == {'A': 'b'}


def test_the_name_moves(pool):
    before = set(pool.placed())
    assert pool.post('/v1/templates?wait=60', {'name': 'base', 'packages': ['git']}).status == 201
    until(lambda: warm(pool) == 3 and not before & set(pool.placed()), what='a pool of the new content')
    until(lambda: len(pool.get('/v1/templates').json['templates']) == 1, what='removal of the older content')
    assert pool.delete('/v1/templates/base').status == 204
    until(lambda: pool.placed() == {}, what='an empty pool')


def test_a_published_memory_of_another_size_is_in_nobodys_way(bare):
    bare.start_standin()
    d = bare.start()
    d.template()
    s = d.create(memory_mb=256)['id']
    assert d.post(f'/v1/sandboxes/{s}/publish?wait=60', {'name': 'odd', 'kind': 'full'}).status == 201
    d.stop()
    d.start(conf='[pool]\nwarm = odd=1 base=1\n')
    until(lambda: len(d.placed()) == 2, what='one of "base" that waits')
    assert d.create(template='odd')['memory_mb'] == 256
