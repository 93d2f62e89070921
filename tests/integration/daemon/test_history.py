# SPDX-License-Identifier: Apache-2.0
"""What changed on a disk, and files out of it: what is asked, and what becomes of answers of every kind. (With real images:
tests/integration/rootd/test_history.py.)"""
import contextlib
import http.client
import io
import json
import os
import tarfile
import time

import pytest

from conftest import until

META = {'type': 'file', 'size': 5, 'mode': 0o644, 'uid': 0, 'gid': 0, 'modified_at': '2026-01-02T03:04:05.000Z', 'inode': 12,
        'links': 1}
IMAGE = {'journal_transactions': 0}
ADDED = {'status': 'added', 'path': '/a', 'new': META}
END = {'end': True, 'changes': 1, 'more': False, 'old': IMAGE, 'new': IMAGE, 'stats': {'no_host_map': False}}
FILE = {**META, 'kind': 'file', 'path': '/a', 'journal_transactions': 0}


def line(obj):
    return json.dumps(obj).encode() + b'\n'


def answer(d, data):
    with open(os.path.join(d.run, 'history'), 'wb') as f:
        f.write(data)


def asked(d):
    with open(os.path.join(d.run, 'history.asked')) as f:
        return json.loads(f.readlines()[-1])


def diff(d, s, query=''):
    return d.get(f'/v1/sandboxes/{s}/diff{query}')


def file(d, s, query='?path=/a'):
    return d.get(f'/v1/sandboxes/{s}/history/file{query}')


def test_diff(ready):
    d = ready
    sandbox = d.create(name='one')
    s = sandbox['id']
    answer(d, line(ADDED) + line(END))
    r = diff(d, 'one')
    assert r.status == 200, r
    assert r.json == {'changes': [ADDED], 'next_cursor': None, 'warnings': None, 'synced': True}
    q = asked(d)
    assert (q['id'], q['verb'], q['from'], q['to'], q['path'], q['count'], q['patch'], q['cursor']) == \
        (s, 'diff', 'template', 'now', '/', 1000, 0, '')
    assert q['digest'] == d.sandbox(s)['digest'] and q['variant'] == 'fake-512m-1c'
    seen = [x for x in d.steer(seen=True) if x in ('FSFREEZE', 'HISTORY')]
    assert seen == ['FSFREEZE', 'FSFREEZE', 'HISTORY']  # on and off again
    more = {**END, 'more': True, 'cursor': 'L2E=', 'new': {**IMAGE, 'warnings': ['journal_damaged']}}
    answer(d, line(more))
    r = diff(d, s, '?prefix=/x%20y&limit=7&patch=1&cursor=abc')
    assert r.json == {'changes': [], 'next_cursor': 'L2E=', 'warnings': ['journal_damaged'], 'synced': True}
    q = asked(d)
    assert (q['path'], q['count'], q['patch'], q['cursor']) == ('/x y', 7, 1, 'abc')


def test_guest_that_does_not_sync(ready):
    d = ready
    s = d.create()['id']
    answer(d, line(END))
    d.fault('FSFREEZE', hang=True, times=1)
    assert diff(d, s).json['synced'] is False
    d.fault('FSFREEZE', error=[5, 'no'], times=1)
    assert diff(d, s).json['synced'] is False


def test_which_image(ready):
    d = ready
    s = d.create()['id']
    answer(d, line(END))
    r = d.post(f'/v1/sandboxes/{s}/checkpoints?wait=60', {'name': 'before'})
    assert r.status == 200, r
    point = r.json['operation']['result']['checkpoint']
    assert diff(d, s, '?from=before').status == 200 and (asked(d)['from'], asked(d)['to']) == (point, 'now')
    assert diff(d, s, f'?from=template&to={point}').status == 200 and (asked(d)['from'], asked(d)['to']) == ('template', point)
    assert diff(d, s, '?from=other').code == 'checkpoint_not_found'
    assert diff(d, s, f'?to={s}').code == 'checkpoint_not_found'  # no id but those of its own checkpoints
    for verb, state, image in (('pause', 'paused', False), ('suspend', 'suspended', True), ('stop', 'stopped', True)):
        assert d.post(f'/v1/sandboxes/{s}/{verb}?wait=60').status == 200
        n = d.steer(seen=True).count('FSFREEZE')
        r = diff(d, s)
        assert r.status == 200 and r.json['synced'] is (verb != 'stop'), r  # whether all was written when it was to stand still
        assert d.sandbox(s)['state'] == state and (asked(d)['to'] in d.steer(state=True)['images']) is image
        assert d.steer(seen=True).count('FSFREEZE') == n  # there is nobody to ask


def test_file(ready):
    d = ready
    s = d.create()['id']
    answer(d, line({**FILE, 'mode': 0o750}) + b'hello')
    r = file(d, s)
    assert (r.status, r.body) == (200, b'hello')
    assert r.headers['Content-Type'] == 'application/octet-stream' and r.headers['X-File-Mode'] == '0750'
    q = asked(d)
    assert (q['verb'], q['from'], q['to'], q['path']) == ('cat', 'now', '', '/a') and q['max_bytes'] == 4 << 30
    answer(d, line({**FILE, 'size': 0}))
    assert file(d, s, '?path=/a&at=template').body == b'' and asked(d)['from'] == 'template'
    big = os.urandom(12 << 20)
    answer(d, line({**FILE, 'size': len(big)}) + big)
    assert file(d, s).body == big


@pytest.mark.parametrize('data', [
    line(FILE) + b'hell',                                                       # cut off
    line(FILE) + b'hello!',                                                     # more than was said
    line({**FILE, 'size': 40}) + b'he' + line({'error': 'x', 'code': 'io_error'}),  # failed in its midst
    line({**FILE, 'size': 38}) + b'h' + line({'error': 'x', 'code': 'io_error'}),   # the same, and the line fills it
])
def test_file_that_is_cut_off_never_looks_complete(ready, data):
    d = ready
    s = d.create()['id']
    answer(d, data)
    with pytest.raises(Exception) as e:
        r = file(d, s)
        assert r.status >= 400, r
        raise ValueError  # told before anything was sent: as good
    assert type(e.value).__name__ in ('IncompleteRead', 'ConnectionResetError', 'ValueError', 'RemoteDisconnected')
    assert diff(d, s, '?limit=0').code == 'invalid_argument'  # and it lives


TREE = {**META, 'type': 'directory', 'kind': 'tar', 'path': '/a', 'journal_transactions': 0}


def archive(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w') as t:
        for name, data in files.items():
            m = tarfile.TarInfo(name)
            m.size = len(data)
            t.addfile(m, io.BytesIO(data))
    return out.getvalue()


def test_tree(ready):
    d = ready
    s = d.create()['id']
    for data in (archive(), archive(a=b'x'), archive(a=os.urandom(9 << 20), b=b'\0' * 5000)):
        answer(d, line(TREE) + data)
        r = d.get(f'/v1/sandboxes/{s}/history/tree?path=/a')
        assert (r.status, r.body) == (200, data)
        assert r.headers['Content-Type'] == 'application/x-tar' and r.headers['X-File-Type'] == 'directory'
    q = asked(d)
    assert (q['verb'], q['from'], q['to'], q['path']) == ('extract', 'now', '', '/a') and q['max_bytes'] == 4 << 30
    answer(d, line({**TREE, 'type': 'x\r\ny: z'}) + archive())
    assert d.get(f'/v1/sandboxes/{s}/history/tree?path=/a').code == 'history_failed'
    answer(d, line({**TREE, 'type': 'wonder'}) + archive())
    r = d.get(f'/v1/sandboxes/{s}/history/tree?path=/a&at=template')
    assert r.headers['X-File-Type'] == 'other' and asked(d)['from'] == 'template'
    answer(d, line({'error': 'x', 'code': 'limit'}))
    assert d.get(f'/v1/sandboxes/{s}/history/tree?path=/a').code == 'history_limit'


@pytest.mark.parametrize('data', [
    b'', b'\0' * 1023, archive(a=b'x')[:512], archive(a=b'x')[:-1], archive(a=b'x') + b'\0', archive(a=b'x' * 9000)[:7000],
    archive(a=b'x' * 5000)[:2048] + line({'error': 'x', 'code': 'io_error'}), archive(a=b'x') + line({'error': 'x', 'code': 'io_error'})],
    ids=range(8))
def test_tree_that_is_cut_off_never_looks_complete(ready, data):
    d = ready
    s = d.create()['id']
    answer(d, line(TREE) + data)
    with pytest.raises((http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionResetError)):
        d.get(f'/v1/sandboxes/{s}/history/tree?path=/a')
    assert diff(d, s, '?limit=0').code == 'invalid_argument'  # and it lives


@pytest.mark.parametrize('code,status,name', [
    ('not_found', 404, 'not_found'), ('is_a_directory', 400, 'invalid_argument'), ('bad_argument', 400, 'invalid_argument'),
    ('corrupt_filesystem', 422, 'filesystem_unreadable'), ('unsupported_filesystem', 422, 'filesystem_unreadable'),
    ('limit', 422, 'history_limit'), ('io_error', 500, 'history_failed'), ('whatever', 500, 'history_failed')])
def test_failures_have_codes(ready, code, status, name):
    d = ready
    s = d.create()['id']
    answer(d, line({'error': 'it \x1b is so', 'code': code}))
    for r in (diff(d, s), file(d, s)):
        assert (r.status, r.code) == (status, name), r
        assert r.json['error']['message'] == 'it \x1b is so'


@pytest.mark.parametrize('data', [
    b'', line(ADDED), b'{', line(END)[:-1], line([]), line(FILE) + line(END), line(END) + line(ADDED), line(END) + b'x',
    line({**ADDED, 'status': 'eaten'}) + line(END), line({**ADDED, 'path': 'a'}) + line(END),
    line({**ADDED, 'new': {**META, 'size': -1}}) + line(END), line({**ADDED, 'new': {**META, 'size': '5'}}) + line(END),
    line({**ADDED, 'new': 1}) + line(END), line({**ADDED, 'what': ['<b>']}) + line(END),
    line({**ADDED, 'path_b64': '\n'}) + line(END), line({**END, 'more': True}), line({**END, 'cursor': 'x'}),
    b'{"status":"added","path":"/\xff"}\n' + line(END), b'\0\n' + line(END), b'[' * 1000 + b'\n', b'x' * (9 << 20),
    line({'error': 'x'}), line({'error': 'x' * 5000, 'code': 'limit'}), line({'error': 'x', 'code': 'A B'})],
    ids=lambda data: repr(data[:40]))
def test_answers_of_a_program_that_was_taken_over(ready, data):
    d = ready
    s = d.create()['id']
    answer(d, data)
    r = diff(d, s)
    assert (r.status, r.code) == (500, 'history_failed'), r
    answer(d, line({**ADDED, 'odd': 'x', 'new': {**META, 'odd': 'x'}}) + line({**END, 'odd': 'x'}))
    assert diff(d, s).json['changes'] == [ADDED]  # what has no name is left out


def test_answer_without_bounds(ready):
    d = ready
    s = d.create()['id']
    answer(d, line({**ADDED, 'patch': 'x' * 4000000}) * 20 + line(END))
    assert diff(d, s, '?patch=1').code == 'history_limit'


def test_client_that_does_not_read(ready):
    """It is waited for by the program that reads the image, and not with a file's bytes in cspaced's memory."""
    d = ready
    s = d.create()['id']
    data = os.urandom(32 << 20)
    answer(d, line({**FILE, 'size': len(data)}) + data)
    c = d.unix()
    c.request('GET', f'/v1/sandboxes/{s}/history/file?path=/a')
    r = c.getresponse()
    seen = [0]

    def sent():
        with contextlib.suppress(FileNotFoundError), open(os.path.join(d.run, 'history.sent')) as f:
            seen.append(int(f.read() or 0))
        time.sleep(0.1)
        return seen[-1] > 0 and len(seen) > 5 and seen[-1] == seen[-5]
    until(sent, what='a standstill')
    assert seen[-1] < 4 << 20
    assert r.read() == data


def test_client_that_leaves(ready):
    d = ready
    s = d.create()['id']
    for path, data in (('diff', line(ADDED)), ('history/file?path=/a', b''), ('history/file?path=/a', line(FILE) + b'he'),
                       ('history/tree?path=/a', line(TREE) + archive(a=b'x' * 5000))):
        answer(d, data + b'# hold')
        c = d.unix()
        c.request('GET', f'/v1/sandboxes/{s}/{path}')
        until(lambda: os.path.exists(os.path.join(d.run, 'history.asked')), what='the question')
        left = os.path.join(d.run, 'history.left')
        assert not os.path.exists(left)
        c.close()
        until(lambda: os.path.exists(left), what='the end of the reading')
        os.unlink(left)
        os.unlink(os.path.join(d.run, 'history.asked'))


def test_what_cannot_be_asked(ready):
    d = ready
    s = d.create()['id']
    answer(d, line(END))
    assert diff(d, 'nobody').code == 'sandbox_not_found' and file(d, 'nobody').code == 'sandbox_not_found'
    for query in ('?prefix=etc', '?limit=0', '?limit=10001', '?patch=2', '?cursor=' + 'x' * 6000, '?prefix=/' + 'x' * 5000):
        assert diff(d, s, query).code == 'invalid_argument', query
    for query in ('', '?path=', '?path=a'):
        assert file(d, s, query).code == 'invalid_argument', query
    d.fault('HISTORY', error=[11, 'too many'], times=1)
    assert diff(d, s).code == 'too_many'
    d.fault('HISTORY', error=[114, 'one is being answered'], times=1)
    assert diff(d, s).code == 'too_many'
    d.fault('HISTORY', error=[2, 'no such file'], times=1)
    assert diff(d, s).code == 'conflict'
    d.standin.kill()
    until(lambda: d.get('/v1/host').json['rootd'] != 'connected', what='the loss of rootd')
    assert diff(d, s).code == 'unavailable'
