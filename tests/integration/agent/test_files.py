# SPDX-License-Identifier: Apache-2.0
"""E2B's /files and the filesystem service."""
import base64
import gzip
import hashlib
import os
import random
import socket
import stat
import time
from urllib.parse import quote, urlencode

import pytest

from conftest import TOKEN, Stream, eventually, needs_root


def q(**kw):
    return '?' + urlencode(kw)


def get(agent, path, headers=(), **kw):
    return agent.http('GET', '/files' + q(path=path, **kw), None, headers)


def put(agent, path, data, headers=(), **kw):
    return agent.http('POST', '/files' + q(path=path, **kw), data, {'Content-Type': 'application/octet-stream', **dict(headers)})


def multipart(parts, boundary='----bOuNdArY'):
    """parts: (name, filename or None, bytes)."""
    out = b''
    for name, filename, data in parts:
        fn = '' if filename is None else '; filename="' + filename.replace('"', '%22') + '"'
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{fn}\r\n\r\n'.encode('utf-8', 'surrogateescape') + data + b'\r\n'
    return out + f'--{boundary}--\r\n'.encode(), {'Content-Type': f'multipart/form-data; boundary={boundary}'}


NAMES = ['plain', '..a', '%2F', 'a+b', 'a%20b', 'é', 'é', '😀', 'a b', '"quoted"', "it's", 'x' * 255, '\\back', '-rf', '#?&=;', '\t\n']


@pytest.mark.parametrize('size', [0, 1, 4095, 4096, 18 * 1024, 65536, 1 << 20, (5 << 20) + 1])
def test_sizes(agent, tmp_path, size):
    data = random.Random(size).randbytes(size)
    p = str(tmp_path / 'f')
    a = put(agent, p, data)
    assert a.status == 200 and a.json == [{'name': 'f', 'path': p, 'type': 'file'}]
    assert (tmp_path / 'f').read_bytes() == data
    a = get(agent, p)
    assert a.status == 200 and a.body == data
    assert a.headers['Content-Length'] == str(size)


@pytest.mark.parametrize('name', NAMES)
def test_names(agent, tmp_path, name):
    p = str(tmp_path / name)
    assert put(agent, p, b'1').json[0]['path'] == p
    assert (tmp_path / name).read_bytes() == b'1'
    if '\n' not in name and '\\' not in name:
        body, h = multipart([('file', p, b'22')])
        a = agent.http('POST', '/files', body, h)
        assert a.json[0]['path'] == p, a.body
        assert (tmp_path / name).read_bytes() == b'22'
        assert get(agent, p).body == b'22'
    entry = agent.fs('Stat', path=p).json['entry']
    assert entry['name'] == name and entry['path'] == p
    assert name in [e['name'] for e in agent.fs('ListDir', path=str(tmp_path)).json['entries']]
    assert agent.fs('Remove', path=p).json == {}
    assert not (tmp_path / name).exists()


def test_multipart(agent, tmp_path):
    a_path, b_path = str(tmp_path / 'new/dir/a'), str(tmp_path / 'b')
    body, h = multipart([('other', None, b'ignored'), ('file', a_path, b'A\r\n--x'), ('file', b_path, b'')])
    a = agent.http('POST', '/files', body, h)
    assert [f['path'] for f in a.json] == [a_path, b_path]
    assert open(a_path, 'rb').read() == b'A\r\n--x' and open(b_path, 'rb').read() == b''
    assert stat.S_IMODE(os.stat(tmp_path / 'new').st_mode) == 0o755
    # the path of the query counts more than the name of the part
    body, h = multipart([('file', 'elsewhere', b'Q')])
    assert agent.http('POST', '/files' + q(path=b_path), body, h).json[0]['path'] == b_path
    assert open(b_path, 'rb').read() == b'Q'
    # twice the same path
    body, h = multipart([('file', a_path, b'1'), ('file', str(tmp_path / 'new/../new/dir/a'), b'2')])
    assert agent.http('POST', '/files', body, h).status == 400
    # cut short, and not multipart at all
    body, h = multipart([('file', str(tmp_path / 'cut'), b'x' * 1000)])
    assert agent.http('POST', '/files', body[:-10], h).status == 400
    assert agent.http('POST', '/files', b'junk', h).status == 400
    assert agent.http('POST', '/files', body, {'Content-Type': 'multipart/form-data'}).status == 400
    assert agent.http('POST', '/files', body, {'Content-Type': 'text/plain'}).status == 400


def test_overwrite_keeps_the_file(agent, tmp_path):
    f = tmp_path / 'f'
    f.write_bytes(b'longer content')
    os.link(f, tmp_path / 'second')
    f.chmod(0o640)
    assert put(agent, str(f), b'new').status == 200
    assert (tmp_path / 'second').read_bytes() == b'new'
    assert stat.S_IMODE(f.stat().st_mode) == 0o640


def test_errors(agent, tmp_path):
    a = get(agent, str(tmp_path / 'none'))
    assert a.status == 404 and a.json == {'code': 404, 'message': f"path '{tmp_path}/none' does not exist"}
    assert get(agent, str(tmp_path)).status == 400
    assert put(agent, str(tmp_path), b'x').status == 400
    (tmp_path / 'f').write_bytes(b'')
    assert put(agent, str(tmp_path / 'f' / 'g'), b'x').status == 400
    assert get(agent, str(tmp_path / 'f' / 'g')).status == 404
    assert put(agent, '/' + 'x' * 300, b'x').status == 400
    assert get(agent, '/' + 'x/' * 3000).status == 400
    assert agent.http('POST', '/files', b'x', {'Content-Type': 'application/octet-stream'}).status == 400
    assert agent.http('PUT', '/files' + q(path='/tmp/x')).status == 405
    assert put(agent, '~nobody/x', b'').status == 400
    assert get(agent, str(tmp_path / 'f'), username='nobody-here').json['message'] == "invalid username: 'nobody-here'"


def test_special_files_never_block(agent, tmp_path):
    os.mkfifo(tmp_path / 'fifo')
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(tmp_path / 'sock'))
    for p in '/dev/zero', '/dev/tty', str(tmp_path / 'fifo'), str(tmp_path / 'sock'):
        assert get(agent, p).status == 400, p
    assert put(agent, str(tmp_path / 'fifo'), b'x').status == 400
    assert put(agent, '/dev/null', b'x').status == 400
    # files of /proc have no size, but content
    a = get(agent, '/proc/self/status')
    assert a.status == 200 and b'VmRSS' in a.body


def test_relative_and_home(agent):
    name = f'cspace-test-{os.getpid()}'
    try:
        assert put(agent, name, b'1').json[0]['path'] == f'/root/{name}'
        assert get(agent, f'~/{name}').body == b'1'
        assert get(agent, f'../root/./{name}').body == b'1'
    finally:
        os.unlink(f'/root/{name}')


def test_streamed_upload(agent, tmp_path):
    c = agent.connect()
    h = hashlib.sha256()

    def pieces():
        for i in range(200):
            b = bytes([i]) * 100000
            h.update(b)
            yield b
    c.request('POST', '/files' + q(path=str(tmp_path / 's')), pieces(),
              {'Content-Type': 'application/octet-stream', 'X-Access-Token': TOKEN}, encode_chunked=True)
    assert c.getresponse().status == 200
    assert hashlib.sha256((tmp_path / 's').read_bytes()).digest() == h.digest()


def test_aborted_upload_leaves_nothing_new(agent, tmp_path):
    s = socket.create_connection(('127.0.0.1', agent.port))
    s.sendall(f'POST /files?path={quote(str(tmp_path / "part"))} HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\n'
              'Content-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n'.encode() + b'x' * 300000)
    assert eventually(lambda: (tmp_path / 'part').exists())
    s.close()
    assert eventually(lambda: not (tmp_path / 'part').exists())


def test_large_file_in_constant_memory(own_agent, tmp_path):
    a = own_agent()
    size = 300 << 20
    with open(tmp_path / 'big', 'wb') as f:
        f.truncate(size)
        f.seek(size - 3)
        f.write(b'end')
    c = a.connect()
    c.request('GET', '/files' + q(path=str(tmp_path / 'big')), None, {'X-Access-Token': TOKEN})
    r = c.getresponse()
    n, last = 0, b''
    while True:
        d = r.read(1 << 20)
        if not d:
            break
        n, last = n + len(d), d
    assert n == size and last.endswith(b'end')
    c = a.connect()
    with open(tmp_path / 'big', 'rb') as f:
        c.request('POST', '/files' + q(path=str(tmp_path / 'copy')), f,
                  {'X-Access-Token': TOKEN, 'Content-Type': 'application/octet-stream', 'Content-Length': str(size)})
        assert c.getresponse().status == 200
    assert os.stat(tmp_path / 'copy').st_size == size
    assert a.rss_kb() < 40 * 1024, a.rss_kb()


def test_ranges_and_conditions(agent, tmp_path):
    (tmp_path / 'f.txt').write_bytes(b'0123456789')
    p = str(tmp_path / 'f.txt')
    a = get(agent, p)
    etag, modified = a.headers['ETag'], a.headers['Last-Modified']
    assert a.headers['Content-Type'] == 'text/plain; charset=utf-8'
    assert a.headers['Content-Disposition'] == 'inline; filename="f.txt"'
    assert a.headers['Accept-Ranges'] == 'bytes'
    a = get(agent, p, {'Range': 'bytes=2-4'})
    assert a.status == 206 and a.body == b'234' and a.headers['Content-Range'] == 'bytes 2-4/10'
    assert get(agent, p, {'Range': 'bytes=-3'}).body == b'789'
    a = get(agent, p, {'Range': 'bytes=10-'})
    assert a.status == 416 and a.headers['Content-Range'] == 'bytes */10'
    assert get(agent, p, {'Range': 'bytes=0-1,3-4'}).status == 200
    assert get(agent, p, {'If-None-Match': etag}).status == 304
    assert get(agent, p, {'If-Modified-Since': modified}).status == 304
    assert get(agent, p, {'If-Match': '"other"'}).status == 412
    a = agent.http('HEAD', '/files' + q(path=p))
    assert a.status == 200 and a.body == b'' and a.headers['Content-Length'] == '10'
    (tmp_path / 'é"').write_bytes(b'')
    assert get(agent, str(tmp_path / 'é"')).headers['Content-Disposition'] == "inline; filename*=utf-8''%C3%A9%22"


def test_gzip(agent, tmp_path):
    data = b'compress me ' * 100000
    p = str(tmp_path / 'f')
    assert put(agent, p, gzip.compress(data), {'Content-Encoding': 'gzip'}).status == 200
    assert open(p, 'rb').read() == data
    two = gzip.compress(b'one') + gzip.compress(b'two')
    assert put(agent, p + '2', two, {'Content-Encoding': 'gzip'}).status == 200
    assert open(p + '2', 'rb').read() == b'onetwo'
    body, h = multipart([('file', p + '3', data)])
    assert agent.http('POST', '/files', gzip.compress(body), {**h, 'Content-Encoding': 'gzip'}).status == 200
    assert open(p + '3', 'rb').read() == data
    assert put(agent, p, gzip.compress(data)[:-20], {'Content-Encoding': 'gzip'}).status == 400
    assert put(agent, p, b'not gzip', {'Content-Encoding': 'gzip'}).status == 400
    assert put(agent, p, b'x', {'Content-Encoding': 'br'}).status == 415
    assert put(agent, p, data).status == 200
    a = get(agent, p, {'Accept-Encoding': 'gzip'})
    assert a.headers['Content-Encoding'] == 'gzip' and gzip.decompress(a.body) == data
    a = get(agent, p, {'Accept-Encoding': 'gzip, deflate'})
    assert 'Content-Encoding' not in a.headers and a.body == data
    assert get(agent, p, {'Accept-Encoding': 'identity;q=0, *;q=0'}).status == 406
    assert put(agent, p, b'').status == 200
    assert get(agent, p, {'Accept-Encoding': 'gzip'}).headers['Content-Length'] == '0'


def test_metadata(agent, tmp_path):
    p = str(tmp_path / 'm')
    a = put(agent, p, b'1', {'X-Metadata-Author': 'me', 'x-metadata-b': 'two words'})
    if a.status == 500 and b'metadata' in a.body:
        pytest.skip('this filesystem has no extended attributes')
    assert a.json[0]['metadata'] == {'author': 'me', 'b': 'two words'}
    assert agent.fs('Stat', path=p).json['entry']['metadata'] == {'author': 'me', 'b': 'two words'}
    assert 'metadata' not in put(agent, p, b'2').json[0]
    assert 'metadata' not in agent.fs('Stat', path=p).json['entry']
    assert put(agent, p, b'1', {'X-Metadata-A': 'é'}).status == 400
    assert put(agent, p, b'1', {'X-Metadata-' + 'a' * 247: 'x'}).status == 400
    assert put(agent, p, b'1', {'X-Metadata-A': 'x' * 4097}).status == 400


def signed(path, op, user='', token=TOKEN, expiration=None):
    text = f'{path}:{op}:{user}:{token}' + (f':{expiration}' if expiration else '')
    return 'v1_' + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')


def test_signatures(agent, tmp_path):
    p = str(tmp_path / 's')
    later, past = int(time.time()) + 100, int(time.time()) - 10

    def read(**kw):
        return agent.http('GET', '/files' + q(**kw), token=None).status
    put(agent, p, b'secret')
    assert read(path=p, signature=signed(p, 'read')) == 200
    assert read(path=p, username='root', signature=signed(p, 'read', 'root')) == 200
    assert read(path=p, signature_expiration=later, signature=signed(p, 'read', expiration=later)) == 200
    assert read(path=p) == 401
    assert read(path=p, signature='') == 401
    assert read(path=p, signature=signed(p, 'write')) == 401
    assert read(path=p, username='root', signature=signed(p, 'read')) == 401
    assert read(path=p + 'x', signature=signed(p, 'read')) == 401
    assert read(path=p, signature=signed(p, 'read', token='other')) == 401
    assert read(path=p, signature_expiration=past, signature=signed(p, 'read', expiration=past)) == 401
    assert read(path=p, signature_expiration=later + 1, signature=signed(p, 'read', expiration=later)) == 401
    assert read(path=p, signature_expiration='soon', signature=signed(p, 'read', expiration='soon')) == 401
    body, h = multipart([('file', p, b'up')])
    assert agent.http('POST', '/files' + q(signature=signed('', 'write')), body, h, token=None).status == 200
    assert agent.http('POST', '/files' + q(signature=signed('', 'read')), body, h, token=None).status == 401
    assert agent.http('GET', '/files' + q(path=p), None, {'X-Access-Token': 'wrong'}, token=None).status == 401


@needs_root()
def test_ownership(own_agent, tmp_path):
    tmp_path.chmod(0o755)
    a = own_agent('--user', 'nobody')
    p = str(tmp_path / 'a/b/f')
    assert put(a, p, b'1').status == 200
    nobody = os.stat(p).st_uid
    assert nobody != 0
    assert os.stat(tmp_path / 'a').st_uid == os.stat(tmp_path / 'a/b').st_uid == nobody
    e = a.fs('Stat', path=p).json['entry']
    assert e['owner'] == 'nobody' and e['permissions'] == '-rw-r--r--' and e['mode'] == 0o644 and e['size'] == '1'
    root = {'Authorization': 'Basic ' + base64.b64encode(b'root:').decode()}
    assert a.fs('MakeDir', root, path=str(tmp_path / 'r/s')).json['entry']['owner'] == 'root'
    assert a.fs('MakeDir', path=str(tmp_path / 'u/v')).json['entry']['owner'] == 'nobody'
    assert put(a, p, b'2', username='root').status == 200
    assert os.stat(p).st_uid == 0


def test_compose(agent, tmp_path):
    for i in range(3):
        (tmp_path / f'p{i}').write_bytes(bytes([65 + i]) * 100000)
    sources = [str(tmp_path / f'p{i}') for i in (2, 0, 1)]
    a = agent.http('POST', '/files/compose', '{"source_paths": %s, "destination": "%s/out/all"}' % (str(sources).replace("'", '"'), tmp_path))
    assert a.json == {'name': 'all', 'path': f'{tmp_path}/out/all', 'type': 'file'}
    assert (tmp_path / 'out/all').read_bytes() == b'C' * 100000 + b'A' * 100000 + b'B' * 100000
    assert sorted(os.listdir(tmp_path)) == ['out']
    a = agent.http('POST', '/files/compose', '{"source_paths": ["%s/none"], "destination": "%s/x"}' % (tmp_path, tmp_path))
    assert a.status == 404 and not (tmp_path / 'x').exists()
    for body in '{}', '{"source_paths": [], "destination": "/x"}', '{"source_paths": [1], "destination": "/x"}', '[]':
        assert agent.http('POST', '/files/compose', body).status == 400
    assert agent.http('POST', '/files/compose', '{}', token=None).status == 401


# --- filesystem.Filesystem ---------------------------------------------------------------------------

def test_stat(agent, tmp_path):
    (tmp_path / 'f').write_bytes(b'12345')
    (tmp_path / 'f').chmod(0o751)
    os.utime(tmp_path / 'f', ns=(0, 1_700_000_000_123_456_789))
    e = agent.fs('Stat', path=str(tmp_path / 'f')).json['entry']
    assert e['type'] == 'FILE_TYPE_FILE' and e['size'] == '5' and e['mode'] == 0o751 and e['permissions'] == '-rwxr-x--x'
    assert e['modifiedTime'] == '2023-11-14T22:13:20.123456789Z'
    os.symlink('f', tmp_path / 'l')
    e = agent.fs('Stat', path=str(tmp_path / 'l')).json['entry']
    assert e['type'] == 'FILE_TYPE_FILE' and e['symlinkTarget'] == str(tmp_path / 'f') and e['permissions'].startswith('L')
    e = agent.fs('Stat', path=str(tmp_path)).json['entry']
    assert e['type'] == 'FILE_TYPE_DIRECTORY' and e['permissions'].startswith('d')
    assert agent.fs('Stat', path=str(tmp_path / 'none')).status == 404
    assert agent.fs('Stat', path=str(tmp_path / 'f/x')).json['code'] == 'not_found'
    os.symlink('/', tmp_path / 'root')
    assert agent.fs('Stat', path=str(tmp_path / 'root')).json['entry']['symlinkTarget'] == '/'


def test_make_dir(agent, tmp_path):
    p = str(tmp_path / 'a/b')
    assert agent.fs('MakeDir', path=p).json['entry']['path'] == p
    a = agent.fs('MakeDir', path=p)
    assert a.status == 409 and a.json['code'] == 'already_exists'
    (tmp_path / 'f').write_bytes(b'')
    assert agent.fs('MakeDir', path=str(tmp_path / 'f')).json['code'] == 'invalid_argument'
    assert agent.fs('MakeDir', path=str(tmp_path / 'f/x')).json['code'] == 'invalid_argument'


def test_move_and_remove(agent, tmp_path):
    (tmp_path / 'f').write_bytes(b'1')
    a = agent.fs('Move', source=str(tmp_path / 'f'), destination=str(tmp_path / 'x/y/g'))
    assert a.json['entry']['path'] == str(tmp_path / 'x/y/g') and not (tmp_path / 'f').exists()
    assert agent.fs('Move', source=str(tmp_path / 'f'), destination=str(tmp_path / 'h')).status == 404
    assert agent.fs('Move', source=str(tmp_path / 'x'), destination=str(tmp_path / 'x/z')).json['code'] == 'invalid_argument'
    assert agent.fs('Remove', path=str(tmp_path / 'x')).json == {}
    assert agent.fs('Remove', path=str(tmp_path / 'x')).json == {}
    assert agent.fs('Remove', path='/').status == 400
    os.symlink('/etc', tmp_path / 'l')
    assert agent.fs('Remove', path=str(tmp_path / 'l')).json == {} and os.path.exists('/etc/passwd')


def test_list(agent, tmp_path):
    for d in 'b/c/d', 'a':
        (tmp_path / d).mkdir(parents=True)
    (tmp_path / 'b/f').write_bytes(b'')
    os.symlink('/', tmp_path / 'link')

    def paths(path=tmp_path, **kw):
        return [e['path'].removeprefix(str(path) + '/') for e in agent.fs('ListDir', path=str(path), **kw).json.get('entries', [])]
    assert paths() == paths(depth=0) == paths(depth=1) == ['a', 'b', 'link']
    assert paths(depth=2) == ['a', 'b', 'b/c', 'b/f', 'link']
    assert paths(depth=9) == ['a', 'b', 'b/c', 'b/c/d', 'b/f', 'link']
    assert paths(tmp_path / 'a') == []
    assert agent.fs('ListDir', path=str(tmp_path / 'b/f')).json['code'] == 'invalid_argument'
    assert agent.fs('ListDir', path=str(tmp_path / 'none')).status == 404
    assert agent.fs('ListDir', {'Authorization': 'Basic bm9ib2R5LWhlcmU6'}, path='/').status == 401


def test_many_entries(agent, tmp_path):
    for i in range(3000):
        (tmp_path / f'{i:05}').touch()
    assert len(agent.fs('ListDir', path=str(tmp_path)).json['entries']) == 3000
    assert agent.fs('Remove', path=str(tmp_path)).json == {}


# --- watching ------------------------------------------------------------------------------------------

def test_watch_dir(agent, tmp_path):
    s = Stream(agent, '/filesystem.Filesystem/WatchDir', {'path': str(tmp_path), 'recursive': True, 'includeEntry': True},
               {'Keepalive-Ping-Interval': '1'})
    assert next(s) == {'start': {}}
    assert next(s) == {'keepalive': {}}
    (tmp_path / 'd/e').mkdir(parents=True)
    (tmp_path / 'd/e/f').write_bytes(b'xyz')
    seen = {}
    while ('d/e/f', 'EVENT_TYPE_WRITE') not in seen:
        m = next(s).get('filesystem')
        if m:
            seen[(m['name'], m['type'])] = m.get('entry')
    assert ('d', 'EVENT_TYPE_CREATE') in seen and ('d/e', 'EVENT_TYPE_CREATE') in seen
    assert seen[('d/e/f', 'EVENT_TYPE_WRITE')]['path'] == str(tmp_path / 'd/e/f')
    (tmp_path / 'd/e/f').unlink()
    while True:
        m = next(s).get('filesystem')
        if m and m['type'] == 'EVENT_TYPE_REMOVE':
            assert m['name'] == 'd/e/f' and 'entry' not in m
            break
    s.close()


def test_watch_errors(agent, tmp_path):
    def error(**kw):
        s = Stream(agent, '/filesystem.Filesystem/WatchDir', kw)
        assert list(s) == []
        return s.error['code']
    (tmp_path / 'f').write_bytes(b'')
    assert error(path=str(tmp_path / 'none')) == 'not_found'
    assert error(path=str(tmp_path / 'f')) == 'invalid_argument'
    assert error() == 'invalid_argument'
    s = Stream(agent, '/filesystem.Filesystem/WatchDir', {'path': str(tmp_path)}, {'Connect-Timeout-Ms': '300'})
    assert list(s) == [{'start': {}}] and s.error['code'] == 'deadline_exceeded'


def test_polled_watcher(agent, tmp_path):
    w = agent.fs('CreateWatcher', path=str(tmp_path)).json['watcherId']
    (tmp_path / 'f').write_bytes(b'1')
    got = []

    def created():
        got.extend((e['name'], e['type']) for e in agent.fs('GetWatcherEvents', watcherId=w).json.get('events', []))
        return ('f', 'EVENT_TYPE_CREATE') in got
    assert eventually(created)
    assert agent.rpc('filesystem.Filesystem/GetWatcherEvents', {'watcher_id': w}).json == {'events': []}
    assert agent.fs('RemoveWatcher', watcherId=w).json == {}
    assert agent.fs('RemoveWatcher', watcherId=w).status == 404
    assert agent.fs('GetWatcherEvents', watcherId='x').status == 404


def test_flood_of_events_is_told(own_agent, tmp_path):
    a = own_agent()
    w = a.fs('CreateWatcher', path=str(tmp_path)).json['watcherId']
    f = tmp_path / 'f'

    for _ in range(40000):
        f.touch()
        f.unlink()
    assert a.fs('GetWatcherEvents', watcherId=w).json['code'] == 'resource_exhausted'
    f.touch()  # told once, then it goes on
    assert eventually(lambda: a.fs('GetWatcherEvents', watcherId=w).json.get('events'))
    assert a.rss_kb() < 60 * 1024
