# SPDX-License-Identifier: Apache-2.0
"""The native file API and tar streams."""
import io
import os
import stat
import subprocess
import tarfile
from urllib.parse import urlencode

import pytest
import yaml

from conftest import needs_root


def call(agent, method, route='', body=None, headers=(), **query):
    return agent.http(method, f'/cspace/v1/files{route}?' + urlencode(query), body, headers)


def code(a):
    return a.json['error']['code']


def test_raw(agent, tmp_path):
    p = str(tmp_path / 'f')
    a = call(agent, 'PUT', path=p, body=b'one')
    assert a.status == 201 and a.json == {'path': p, 'bytes': 3}
    assert call(agent, 'PUT', path=p, body=b'').status == 200
    assert call(agent, 'GET', path=p).headers['Content-Length'] == '0'
    assert call(agent, 'PUT', path=p, body=b'bytes \0\xff', mode='4750').status == 200
    assert call(agent, 'GET', path=p).body == b'bytes \0\xff'
    assert stat.S_IMODE(os.stat(p).st_mode) == 0o4750
    assert call(agent, 'GET', path=p, headers={'Range': 'bytes=0-4'}).body == b'bytes'
    assert call(agent, 'DELETE', path=p).status == 204
    assert code(call(agent, 'DELETE', path=p)) == 'not_found'
    assert code(call(agent, 'GET', path=p)) == 'not_found'
    assert code(call(agent, 'GET', path=str(tmp_path))) == 'is_a_directory'
    assert code(call(agent, 'PUT', path=str(tmp_path), body=b'x')) == 'is_a_directory'
    assert call(agent, 'PUT', path=str(tmp_path / 'new/dir/f'), body=b'x').status == 201
    assert code(call(agent, 'PUT', path=str(tmp_path / 'new/dir/f/g'), body=b'x')) == 'not_a_directory'
    assert code(call(agent, 'PUT', path=p, body=b'x', mode='9')) == 'invalid_argument'
    assert code(call(agent, 'GET')) == 'invalid_argument'
    assert code(call(agent, 'GET', path=p, user='nobody-here')) == 'user_not_found'
    assert call(agent, 'GET', '/nothing', path=p).status == 404


def test_stat_list_mkdir_move(agent, tmp_path):
    d = str(tmp_path / 'd')
    a = agent.native('POST', '/files/mkdir', {'path': d + '/e'})
    assert a.status == 200 and a.json['type'] == 'directory'
    (tmp_path / 'd/f').write_bytes(b'12')
    os.symlink('f', tmp_path / 'd/l')
    os.symlink('gone', tmp_path / 'd/x')
    e = call(agent, 'GET', '/list', path=d).json['entries']
    assert [(x['name'], x['type'], x['size'] if x['type'] == 'file' else None) for x in e] == [
        ('e', 'directory', None), ('f', 'file', 2), ('l', 'symlink', None), ('x', 'symlink', None)]
    s = call(agent, 'GET', '/stat', path=d + '/l').json
    assert s['link_target'] == d + '/f' and s['type'] == 'file' and s['mode'] == 0o644 and s['size'] == 2
    assert s['user'] and s['group'] and s['modified_at'].endswith('Z')
    with open(os.path.join(os.path.dirname(__file__), '..', '..', '..', 'api', 'openapi.yaml'), encoding='utf-8') as f:
        described = yaml.safe_load(f)['components']['schemas']['FileEntry']
    assert set(s) == set(described['properties']) and set(described['required']) <= set(e[1])
    assert agent.native('POST', '/files/move', {'source': d + '/f', 'destination': d + '/g'}).json['name'] == 'g'
    assert code(agent.native('POST', '/files/move', {'source': d + '/f', 'destination': d + '/g'})) == 'not_found'
    assert code(agent.native('POST', '/files/move', {'source': d})) == 'invalid_argument'
    assert code(call(agent, 'GET', '/list', path=d + '/g')) == 'not_a_directory'
    assert code(call(agent, 'GET', '/list', path=d, depth='x')) == 'invalid_argument'
    assert code(call(agent, 'GET', '/stat', path=d + '/none')) == 'not_found'
    assert call(agent, 'DELETE', path=d).status == 204 and not os.path.exists(d)


@needs_root()
def test_rights_are_the_users(agent, tmp_path):
    for p in [tmp_path, *list(tmp_path.parents)[:3]]:
        if str(p) != '/tmp':
            os.chmod(p, 0o755)
    secret = tmp_path / 'secret'
    secret.write_bytes(b's')
    secret.chmod(0o600)
    assert code(call(agent, 'GET', path=str(secret), user='nobody')) == 'permission_denied'
    assert code(call(agent, 'PUT', path=str(tmp_path / 'new'), user='nobody', body=b'x')) == 'permission_denied'
    assert code(call(agent, 'PUT', path=str(secret), user='nobody', body=b'x')) == 'permission_denied'
    assert secret.read_bytes() == b's'
    assert code(call(agent, 'DELETE', path=str(secret), user='nobody')) == 'permission_denied'
    assert code(call(agent, 'GET', '/list', path='/root', user='nobody')) == 'permission_denied'
    assert code(call(agent, 'GET', path='/root', user='nobody', tar=1)) == 'permission_denied'
    (tmp_path / 'open').mkdir()
    os.chmod(tmp_path / 'open', 0o777)
    p = tmp_path / 'open/mine'
    assert call(agent, 'PUT', path=str(p), user='nobody', body=b'x').status == 201
    assert p.stat().st_uid != 0
    assert call(agent, 'GET', path=str(secret)).body == b's'  # and the thread is root again
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w') as t:
        info = tarfile.TarInfo('sub/f')
        info.mode, info.uid, info.size = 0o6755, 0, 1
        t.addfile(info, io.BytesIO(b'x'))
    assert call(agent, 'PUT', path=str(tmp_path / 'open'), user='nobody', tar=1, body=data.getvalue()).status == 200
    st = (tmp_path / 'open/sub/f').stat()
    assert st.st_uid != 0 and stat.S_IMODE(st.st_mode) == 0o755


def make_tree(top):
    (top / 'sub/deep').mkdir(parents=True)
    (top / 'empty').mkdir()
    (top / 'f').write_bytes(os.urandom(70000))
    (top / 'zero').write_bytes(b'')
    (top / 'sub/exe').write_bytes(b'#!/bin/sh\n')
    (top / 'sub/exe').chmod(0o755)
    (top / 'sub/deep' / ('n' * 200)).write_bytes(b'long')
    (top / 'é\n"').write_bytes(b'odd')
    os.symlink('f', top / 'rel')
    os.symlink('/nowhere', top / 'dangling')
    os.link(top / 'f', top / 'hard')


def same(a, b):
    assert subprocess.run(['diff', '-r', '--no-dereference', str(a), str(b)], check=False).returncode == 0


def test_tar_by_other_tools(agent, tmp_path):
    src, out, back = tmp_path / 'src', tmp_path / 'out', tmp_path / 'back'
    src.mkdir()
    make_tree(src)
    a = call(agent, 'GET', path=str(src), tar=1)
    assert a.status == 200 and a.headers['Content-Type'] == 'application/x-tar'
    out.mkdir()
    subprocess.run(['tar', '-x', '-C', str(out)], input=a.body, check=True)
    same(src, out)
    assert (out / 'f').stat().st_ino == (out / 'hard').stat().st_ino
    for fmt in 'gnu', 'pax', 'ustar', 'v7':
        if fmt in ('ustar', 'v7') and (src / 'sub/deep').exists():
            (src / 'sub/deep' / ('n' * 200)).unlink()
            (src / 'sub/deep').rmdir()
        data = subprocess.run(['tar', '-c', f'--format={fmt}', '-C', str(src), '.'], capture_output=True, check=True).stdout
        dst = back / fmt
        r = call(agent, 'PUT', path=str(dst), tar=1, body=data)
        assert r.status == 200 and r.json['skipped'] == 0, r.body
        same(src, dst)
    r = call(agent, 'PUT', path=str(back / 'gz'), tar=1, body=__import__('gzip').compress(data), headers={'Content-Encoding': 'gzip'})
    assert r.status == 200
    same(src, back / 'gz')


def test_tar_of_one_file(agent, tmp_path):
    (tmp_path / 'f').write_bytes(b'x')
    with tarfile.open(fileobj=io.BytesIO(call(agent, 'GET', path=str(tmp_path / 'f'), tar=1).body)) as t:
        assert t.getnames() == ['f']


@pytest.mark.parametrize('name', ['../x', '/x', 'a/../../x'])
def test_tar_escape(agent, tmp_path, name):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w') as t:
        info = tarfile.TarInfo(name)
        info.size = 1
        t.addfile(info, io.BytesIO(b'x'))
    a = call(agent, 'PUT', path=str(tmp_path / 'dst'), tar=1, body=data.getvalue())
    assert a.status == 400 and code(a) == 'invalid_argument'
    assert not (tmp_path / 'x').exists()


def test_tar_bad_input(agent, tmp_path):
    dst = str(tmp_path / 'd')
    assert code(call(agent, 'PUT', path=dst, tar=1, body=b'junk' * 1000)) == 'invalid_data'
    assert code(call(agent, 'PUT', path=dst, tar=1, body=b'')) == 'invalid_data'
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w') as t:
        info = tarfile.TarInfo('f')
        info.size = 100000
        t.addfile(info, io.BytesIO(b'x' * 100000))
    a = call(agent, 'PUT', path=dst, tar=1, body=data.getvalue()[:50000])
    assert code(a) == 'invalid_data' and not os.path.exists(dst + '/f')
    assert code(call(agent, 'GET', path=dst + '/none', tar=1)) == 'not_found'
    (tmp_path / 'file').write_bytes(b'')
    assert code(call(agent, 'PUT', path=str(tmp_path / 'file'), tar=1, body=data.getvalue())) == 'not_a_directory'
