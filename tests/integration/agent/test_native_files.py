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


def archive(*members):
    """Of (name, type, contents or target)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w') as t:
        for name, kind, what in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
            if kind == tarfile.REGTYPE:
                info.size = len(what)
            elif what:
                info.linkname = what
            t.addfile(info, io.BytesIO(what.encode()) if kind == tarfile.REGTYPE else None)
    return data.getvalue()


@needs_root()
def test_tar_that_brings_back_what_is_something_else_now(own_agent, tmp_path):
    """Files make way for folders, and folders for files where nothing is in them. Others stay, are named, and the rest goes on."""
    a, d = own_agent(), tmp_path / 'd'
    for sub in ('full/in', 'empty', 'full-link', 'first'):
        (d / sub).mkdir(parents=True)
    (d / 'full/in/x').write_text('mine')
    (d / 'full-link/x').write_text('mine')
    (d / 'first/x').write_text('mine')
    (d / 'folder').write_text('a file now')
    (d / 'linked').symlink_to('/etc')
    data = archive(('empty', tarfile.REGTYPE, 'E'), ('first', tarfile.REGTYPE, 'F'), ('folder', tarfile.DIRTYPE, None),
                   ('folder/in', tarfile.REGTYPE, 'I'), ('full', tarfile.DIRTYPE, None), ('full/in', tarfile.REGTYPE, 'N'),
                   ('full-link', tarfile.SYMTYPE, '/none'), ('linked', tarfile.DIRTYPE, None), ('second', tarfile.LNKTYPE, 'first'),
                   ('sparkle', tarfile.CHRTYPE, None), ('zlast', tarfile.REGTYPE, 'Z'))
    r = call(a, 'PUT', path=str(d), tar=1, owner=1, body=data)
    assert r.status == 200 and r.json['owner'] is True and r.json['skipped'] == 1, r.body
    assert r.json['kept'] == 4 and r.json['kept_paths'] == ['first', 'full/in', 'full-link', 'second']
    assert (d / 'empty').read_text() == 'E' and (d / 'folder/in').read_text() == 'I' and (d / 'zlast').read_text() == 'Z'
    assert (d / 'full/in/x').read_text() == (d / 'full-link/x').read_text() == (d / 'first/x').read_text() == 'mine'
    assert (d / 'linked').is_dir() and not (d / 'linked').is_symlink() and not os.path.lexists(d / 'second')
    # The folder itself; and one thing under a name.
    (d / 'zlast').unlink()
    (d / 'top').write_text('a file now')
    assert call(a, 'PUT', path=str(d / 'top'), tar=1, owner=1, body=archive(('./', tarfile.DIRTYPE, None), ('in', tarfile.REGTYPE, 'I'))).json['kept'] == 0
    assert (d / 'top/in').read_text() == 'I'
    r = call(a, 'PUT', path=str(d), tar=1, owner=1, body=archive(('x', tarfile.REGTYPE, 'X')), **{'as': 'full'})
    assert r.json['kept_paths'] == ['full'] and (d / 'full/in/x').exists()
    # More than are named.
    many = tmp_path / 'many'
    for i in range(150):
        (many / str(i) / 'x').mkdir(parents=True)
    r = call(a, 'PUT', path=str(many), tar=1, owner=1, body=archive(*[(str(i), tarfile.REGTYPE, '') for i in range(150)]))
    assert r.json['kept'] == 150 and len(r.json['kept_paths']) == 100
    # Without `owner` it is as tar does it: it ends there, and says where.
    r = call(a, 'PUT', path=str(d), tar=1, body=archive(('full', tarfile.REGTYPE, 'X'), ('zlast', tarfile.REGTYPE, 'Z')))
    assert r.status == 400 and "'full'" in r.json['error']['message'] and not (d / 'zlast').exists(), r.body


@needs_root()
def test_tar_that_breaks_off_says_what_is_there(own_agent, tmp_path):
    data = archive(('a', tarfile.REGTYPE, 'A'), ('b', tarfile.REGTYPE, 'B'), ('b/c', tarfile.REGTYPE, 'C'))
    r = call(own_agent(), 'PUT', path=str(tmp_path / 'd'), tar=1, owner=1, body=data)
    assert "'b'" in r.json['error']['message'] and '2 entries' in r.json['error']['message'], r.body


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


@needs_root()
def test_tar_with_extended_attributes(own_agent, tmp_path):
    """Set with `owner`, after the change of owner that would take a capability away; what cannot be set is counted."""
    a, d = own_agent(), tmp_path / 'd'
    capability = b'\x01\x00\x00\x02\x00\x04\x00\x00' + bytes(12)  # cap_net_bind_service=ep
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w', format=tarfile.PAX_FORMAT, encoding='utf-8', errors='surrogateescape') as t:
        for name, kind, attributes in (('./', tarfile.DIRTYPE, {'user.top': 'T'}), ('f', tarfile.REGTYPE, {'user.a': 'x=\n1', 'security.capability': capability.decode('latin-1')}),
                                       ('s', tarfile.DIRTYPE, {'user.d': 'D'}), ('s/g', tarfile.REGTYPE, {'trusted.no': 'N'}), ('none', tarfile.REGTYPE, {})):
            info = tarfile.TarInfo(name)
            info.type, info.uid, info.gid, info.mode = kind, 1234, 77, 0o755
            info.pax_headers = {'SCHILY.xattr.' + k: v for k, v in attributes.items()}
            t.addfile(info, io.BytesIO(b'') if kind == tarfile.REGTYPE else None)
    r = call(a, 'PUT', path=str(d), tar=1, owner=1, body=data.getvalue())
    assert r.status == 200 and r.json['xattrs_lost'] == 1, r.body
    have = {p: {n: os.getxattr(d / p, n) for n in os.listxattr(d / p)} for p in ('.', 'f', 's', 's/g', 'none')}
    assert have == {'.': {'user.top': b'T'}, 'f': {'user.a': b'x=\n1', 'security.capability': capability}, 's': {'user.d': b'D'}, 's/g': {}, 'none': {}}
    assert (os.stat(d / 'f').st_uid, os.stat(d / 'f').st_mode & 0o7777) == (1234, 0o755)
    # Without `owner` they are the sender's business.
    assert call(a, 'PUT', path=str(tmp_path / 'e'), tar=1, body=data.getvalue()).json['xattrs_lost'] == 0
    assert os.listxattr(tmp_path / 'e/f') == []
