# SPDX-License-Identifier: Apache-2.0
"""A full disk under the database: nothing is promised that is not stored, and a delete still deletes."""
import os
import subprocess

import pytest

from conftest import until


@pytest.fixture
def small(bare):
    if os.geteuid() != 0 or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'cspaced-test', bare.data]).returncode:
        pytest.skip('cannot mount a tmpfs')
    bare.start_standin()
    bare.start()
    bare.template()
    yield bare
    bare.stop()
    subprocess.run(['umount', bare.data], check=True)


def fill(d):
    path = os.path.join(d.data, 'filler')
    with open(path, 'wb', buffering=0) as f:
        for size in (1 << 16, 4096, 1):
            try:
                while f.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    return path


def test_full(small):
    d = small
    s = d.create()
    filler = fill(d)

    def refused():
        # what fits into space that the log still has is stored as ever
        r = d.post('/v1/sandboxes?wait=30', {'template': 'base', 'metadata': {'k': 'x' * 4000}})
        assert r.status in (201, 507), r
        return r.status == 507 and r.code == 'storage_full'
    until(refused, what='a refusal')
    known = {x['id'] for x in d.get('/v1/sandboxes?limit=1000').json['sandboxes']}
    until(lambda: set(d.placed()) == known, what='the refused one to be gone')
    assert d.post('/v1/keys', {}).code == 'storage_full'
    r = d.delete(f'/v1/sandboxes/{s["id"]}?wait=30')
    assert r.status in (200, 507)
    until(lambda: s['id'] not in d.placed(), what='removal on a full disk')
    os.unlink(filler)
    until(lambda: d.sandbox(s['id']) is None, what='the row to go')
    d.create()
    d.kill()
    d.start()
    assert d.sandbox(s['id']) is None
    assert {x['state'] for x in d.get('/v1/sandboxes?limit=1000').json['sandboxes']} == {'running'}
