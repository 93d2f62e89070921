# SPDX-License-Identifier: Apache-2.0
"""cp: the rules of cp(1), links, names, and archives that mean harm."""
import io
import os
import stat
import subprocess
import tarfile

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    d = tmp_path / 'here'
    d.mkdir()
    monkeypatch.chdir(d)
    return d


@pytest.fixture
def there(server):
    """The guest's root folder."""
    return server.files


def put(path, data=b'x', mode=None):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'wb') as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)


def get(path):
    with open(path, 'rb') as f:
        return f.read()


def make_tree(root):
    put(f'{root}/file', b'in a file', 0o640)
    put(f'{root}/sub/deep/tool', b'#!/bin/sh\n', 0o755)
    put(f'{root}/empty', b'')
    os.makedirs(f'{root}/nothing')
    os.symlink('file', f'{root}/relative')
    os.symlink('/etc/hostname', f'{root}/absolute')
    os.symlink('nowhere', f'{root}/dangling')
    os.symlink('sub', f'{root}/to-folder')
    os.link(f'{root}/file', f'{root}/hard')


def check_tree(root):
    assert get(f'{root}/file') == b'in a file'
    assert stat.S_IMODE(os.stat(f'{root}/file').st_mode) == 0o640
    assert stat.S_IMODE(os.stat(f'{root}/sub/deep/tool').st_mode) == 0o755
    assert get(f'{root}/empty') == b''
    assert os.listdir(f'{root}/nothing') == []
    assert os.readlink(f'{root}/relative') == 'file'
    assert os.readlink(f'{root}/absolute') == '/etc/hostname'
    assert os.readlink(f'{root}/dangling') == 'nowhere'
    assert os.readlink(f'{root}/to-folder') == 'sub'
    assert os.path.samefile(f'{root}/hard', f'{root}/file')


# --- the table: file, folder, folder/. onto a folder, a file, nothing ------------------------------

def both_ways(cli, sandbox, there, upload):
    """(source side, destination side, function that copies)"""
    remote = lambda p: f'{sandbox}:/{p}'  # noqa: E731
    if upload:
        return '.', there, lambda a, b, *o: cli('cp', *o, a, remote(b))
    return there, '.', lambda a, b, *o: cli('cp', *o, remote(a), b)


@pytest.fixture(params=['up', 'down'])
def sides(request, cli, sandbox, here, there):
    return both_ways(cli, sandbox, there, request.param == 'up')


def test_file_to_new_name(sides):
    src, dst, cp = sides
    put(f'{src}/a', b'one', 0o751)
    assert cp('a', 'b').returncode == 0
    assert get(f'{dst}/b') == b'one'
    assert stat.S_IMODE(os.stat(f'{dst}/b').st_mode) == 0o751


def test_file_into_folder(sides):
    src, dst, cp = sides
    put(f'{src}/a', b'one')
    os.mkdir(f'{dst}/d')
    for target in ['d', 'd/']:
        assert cp('a', target).returncode == 0
        assert get(f'{dst}/d/a') == b'one'


def test_file_onto_file_twice(sides):
    src, dst, cp = sides
    put(f'{dst}/b', b'something longer that was there', 0o600)
    for data in [b'first', b'second']:
        put(f'{src}/a', data, 0o644)
        assert cp('a', 'b').returncode == 0
        assert os.path.isfile(f'{dst}/b') and get(f'{dst}/b') == data
        assert stat.S_IMODE(os.stat(f'{dst}/b').st_mode) == 0o600  # a file that is there keeps its mode


def test_file_to_missing_folder(sides):
    src, dst, cp = sides
    put(f'{src}/a')
    for target in ['no/b', 'no/']:
        r = cp('a', target)
        assert r.returncode == 125
        assert b'no' in r.stderr and not os.path.exists(f'{dst}/no')


def test_folder_to_new_name(sides):
    src, dst, cp = sides
    make_tree(f'{src}/t')
    assert cp('t', 'new').returncode == 0
    check_tree(f'{dst}/new')


def test_folder_into_folder_and_again(sides):
    src, dst, cp = sides
    make_tree(f'{src}/t')
    os.mkdir(f'{dst}/d')
    for _ in range(2):
        assert cp('t/', 'd').returncode == 0
        check_tree(f'{dst}/d/t')
        assert os.listdir(f'{dst}/d') == ['t']


def test_contents_of_folder(sides):
    src, dst, cp = sides
    make_tree(f'{src}/t')
    os.mkdir(f'{dst}/d')
    assert cp('t/.', 'd').returncode == 0
    check_tree(f'{dst}/d')


def test_folder_onto_file(sides):
    src, dst, cp = sides
    make_tree(f'{src}/t')
    put(f'{dst}/b', b'stays')
    r = cp('t', 'b')
    assert r.returncode == 125 and b'"b"' in r.stderr.replace(b'/b', b'b')
    assert get(f'{dst}/b') == b'stays'


def test_file_where_a_folder_is(sides):
    src, dst, cp = sides
    put(f'{src}/a')
    os.makedirs(f'{dst}/d/a')
    assert cp('a', 'd').returncode == 125
    assert os.path.isdir(f'{dst}/d/a')


def test_missing_source(sides):
    _, _, cp = sides
    r = cp('absent', 'b')
    assert r.returncode == 125 and b'absent' in r.stderr


def test_link_that_is_named_is_followed(sides):
    src, dst, cp = sides
    put(f'{src}/a', b'real')
    os.symlink('a', f'{src}/l')
    assert cp('l', 'b').returncode == 0
    assert not os.path.islink(f'{dst}/b') and get(f'{dst}/b') == b'real'


@pytest.mark.parametrize('name', ['..a', 'a..', '%2F', 'a+b', 'a%20b', 'a b', '\u00e9', 'e\u0301', '\U0001f600', '-dash', 'back\\slash',
                                  'new\nline', 'quote"\'', '*', 'x' * 250])
def test_names(sides, name):
    src, dst, cp = sides
    put(f'{src}/{name}', name.encode())
    put(f'{src}/t/{name}', name.encode())
    os.mkdir(f'{dst}/d')
    assert cp(f'./{name}', 'd').returncode == 0
    assert get(f'{dst}/d/{name}') == name.encode()
    assert cp('t', 'd').returncode == 0
    assert get(f'{dst}/d/t/{name}') == name.encode()


def test_name_that_is_not_utf8(sides):
    src, dst, cp = sides
    put(os.fsencode(f'{src}/t/') + b'\xff\xfe', b'bytes')
    r = cp('t', 'd')
    assert r.returncode == 0, r.stderr
    assert get(os.fsencode(f'{dst}/d/') + b'\xff\xfe') == b'bytes'


def test_large_file_and_deep_names(sides):
    src, dst, cp = sides
    data = os.urandom(5 << 20)
    deep = '/'.join(['d' * 100] * 8)
    put(f'{src}/t/{deep}/big', data)
    put(f'{src}/big', data)
    assert cp('t', 'n').returncode == 0
    assert get(f'{dst}/n/{deep}/big') == data
    assert cp('big', 'n').returncode == 0
    assert get(f'{dst}/n/big') == data


def test_unwritable_folder(sides):
    src, dst, cp = sides
    put(f'{src}/t/sub/file', b'x')
    os.chmod(f'{src}/t/sub', 0o555)
    assert cp('t', 'n').returncode == 0
    assert get(f'{dst}/n/sub/file') == b'x'
    assert stat.S_IMODE(os.stat(f'{dst}/n/sub').st_mode) == 0o555


def test_several_sources(cli, sandbox, here, there):
    put('a', b'1')
    put('b', b'2')
    os.mkdir(f'{there}/d')
    assert cli('cp', 'a', 'b', f'{sandbox}:/d').returncode == 0
    assert get(f'{there}/d/a') == b'1' and get(f'{there}/d/b') == b'2'
    assert cli('cp', 'a', 'b', f'{sandbox}:/new').returncode == 125
    assert not os.path.exists(f'{there}/new')


def test_stdin_and_stdout(cli, sandbox, there):
    data = os.urandom(1 << 20)
    assert cli('cp', '-', f'{sandbox}:/f', input=data).returncode == 0
    assert get(f'{there}/f') == data
    assert cli('cp', f'{sandbox}:/f', '-').stdout == data


def test_archives_on_stdin_and_stdout(cli, sandbox, here, there):
    make_tree('t')
    os.mkdir(f'{there}/d')
    archive = subprocess.run(['tar', '-C', 't', '-c', '.'], capture_output=True, check=True).stdout
    assert cli('cp', '--tar', '-', f'{sandbox}:/d', input=archive).returncode == 0
    check_tree(f'{there}/d')
    out = cli('cp', '--tar', f'{sandbox}:/d', '-').stdout
    with tarfile.open(fileobj=io.BytesIO(out)) as t:
        assert 'sub/deep/tool' in [os.path.normpath(n) for n in t.getnames()]


@pytest.mark.parametrize('args', [['a', 'b'], ['{s}:/a', '{s}:/b'], ['-', '-'], ['a', '-', '{s}:/d'], ['--tar', 'a', '{s}:/b'], ['a', '{s}:/b', 'c'], ['a']])
def test_usage(cli, sandbox, here, args):
    r = cli('cp', *[a.format(s=sandbox) for a in args])
    assert r.returncode == 2 and r.stderr.startswith(b'cspace: cp: ')


def test_local_name_with_a_colon(cli, sandbox, here, there):
    put('a:b', b'c')
    assert cli('cp', './a:b', f'{sandbox}:/x').returncode == 0
    assert get(f'{there}/x') == b'c'


def test_special_files_are_left_out(cli, sandbox, here, there):
    put('t/file')
    os.mkfifo('t/pipe')
    r = cli('cp', 't', f'{sandbox}:/t')
    assert r.returncode == 125 and b't/pipe' in r.stderr
    assert os.path.exists(f'{there}/t/file') and not os.path.exists(f'{there}/t/pipe')


def test_cut_download_is_an_error(cli, server, sandbox, here, there):
    put(f'{there}/f', os.urandom(1 << 20))
    make_tree(f'{there}/t')
    server.cut_files = 5000
    for what in ['f', 't']:
        r = cli('cp', f'{sandbox}:/{what}', 'out-' + what)
        assert r.returncode == 125 and b'lost' in r.stderr


# --- archives that mean harm ------------------------------------------------------------------------

def member(name, kind=tarfile.REGTYPE, link='', data=b'evil', mode=0o644):
    m = tarfile.TarInfo(name)
    m.type, m.linkname, m.mode = kind, link, mode
    m.size = len(data) if kind == tarfile.REGTYPE else 0
    return m, data


def archive(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT) as t:
        for m, data in members:
            t.addfile(m, io.BytesIO(data) if m.isreg() else None)
    return out.getvalue()


ATTACKS = {
    'absolute': lambda out: [member(f'{out}/pwned')],
    'dotdot': lambda out: [member('../outside/pwned')],
    'dotdot inside': lambda out: [member('a/../../outside/pwned')],
    'dotdot folder': lambda out: [member('..', tarfile.DIRTYPE)],
    'through a link': lambda out: [member('l', tarfile.SYMTYPE, out), member('l/pwned')],
    'through a relative link': lambda out: [member('l', tarfile.SYMTYPE, '../outside'), member('l/pwned')],
    'folder through a link': lambda out: [member('l', tarfile.SYMTYPE, out), member('l/pwned', tarfile.DIRTYPE)],
    'link through a link': lambda out: [member('l', tarfile.SYMTYPE, out), member('l/pwned', tarfile.SYMTYPE, '/etc/passwd')],
    'hard link outside': lambda out: [member('h', tarfile.LNKTYPE, f'{out}/secret')],
    'hard link dotdot': lambda out: [member('h', tarfile.LNKTYPE, '../outside/secret')],
    'hard link through a link': lambda out: [member('l', tarfile.SYMTYPE, out), member('h', tarfile.LNKTYPE, 'l/secret')],
    'hard link to a link': lambda out: [member('l', tarfile.SYMTYPE, f'{out}/secret'), member('h', tarfile.LNKTYPE, 'l')],
    'link then hard link then write': lambda out: [member('l', tarfile.SYMTYPE, f'{out}/secret'), member('h', tarfile.LNKTYPE, 'l'), member('h')],
    'deep': lambda out: [member('/'.join(['d'] * 300))],
}


@pytest.mark.parametrize('name', ATTACKS)
def test_attack(cli, server, sandbox, here, there, name):
    outside = here / 'outside'
    put(str(outside / 'secret'), b'secret', 0o600)
    os.mkdir('d')
    os.mkdir(f'{there}/t')
    server.tar = archive(*ATTACKS[name](str(outside)))
    r = cli('cp', f'{sandbox}:/t/.', 'd')
    assert r.returncode == 125 and b'refused' in r.stderr, r.stderr
    assert os.listdir(outside) == ['secret'] and get(outside / 'secret') == b'secret'
    assert sorted(os.listdir('.')) == ['d', 'outside']
    assert not os.path.exists('d/h') or not os.path.samefile('d/h', outside / 'secret')


def test_write_onto_a_link_replaces_it(cli, server, sandbox, here, there):
    put('outside/secret', b'secret')
    os.mkdir(f'{there}/t')
    server.tar = archive(member('l', tarfile.SYMTYPE, '../outside/secret'), member('l', data=b'new'))
    assert cli('cp', f'{sandbox}:/t', 'd').returncode == 0
    assert get('outside/secret') == b'secret'
    assert get('d/l') == b'new' and not os.path.islink('d/l')


def test_devices_are_left_out_and_bits_are_dropped(cli, server, sandbox, here, there):
    os.mkdir(f'{there}/t')
    server.tar = archive(member('null', tarfile.CHRTYPE), member('sda', tarfile.BLKTYPE), member('pipe', tarfile.FIFOTYPE),
                         member('suid', mode=0o6755), member('dir', tarfile.DIRTYPE, mode=0o7777))
    r = cli('cp', f'{sandbox}:/t', 'd')
    assert r.returncode == 125 and b'3 entries' in r.stderr
    assert sorted(os.listdir('d')) == ['dir', 'suid']
    assert stat.S_IMODE(os.stat('d/suid').st_mode) & 0o7000 == 0
    assert stat.S_IMODE(os.stat('d/dir').st_mode) & 0o7000 == 0


def test_garbage_for_an_archive(cli, server, sandbox, here, there):
    os.mkdir(f'{there}/t')
    server.tar = b'this is no archive' * 1000
    r = cli('cp', f'{sandbox}:/t', 'd')
    assert r.returncode == 125 and b'archive' in r.stderr


def test_names_in_messages_are_made_safe(cli, server, sandbox, here, there):
    os.mkdir(f'{there}/t')
    server.tar = archive(member('/\x1b]0;title\x07x'))
    r = cli('cp', f'{sandbox}:/t', 'd')
    assert r.returncode == 125
    assert b'\x1b' not in r.stderr and b'\\x1b]0;title\\x07x' in r.stderr
