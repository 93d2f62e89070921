# SPDX-License-Identifier: Apache-2.0
"""cat and extract."""
import io
import json
import os
import stat
import struct
import tarfile

import pytest
from conftest import history, make_disk

BIG = os.urandom(700_000)


@pytest.fixture(scope='module')
def disk(tmp_path_factory):
    top = tmp_path_factory.mktemp('tree')
    tree = top / 'tree'
    (tree / 'a' / 'b').mkdir(parents=True)
    (tree / 'etc').mkdir()
    (tree / 'a' / 'big').write_bytes(BIG)
    (tree / 'a' / 'b' / 'small').write_bytes(b'small\n')
    (tree / 'etc' / 'passwd').write_bytes(b'the image has this one\n')
    os.chmod(tree / 'etc' / 'passwd', 0o640)
    os.chown(tree / 'etc' / 'passwd', 70000, 70001)
    os.link(tree / 'a' / 'big', tree / 'a' / 'big2')
    os.symlink('/etc/passwd', tree / 'a' / 'absolute')
    os.symlink('../../../../../etc/passwd', tree / 'a' / 'relative')
    os.symlink('a', tree / 'dir')
    os.symlink('loop2', tree / 'loop1')
    os.symlink('loop1', tree / 'loop2')
    os.symlink('x' * 100, tree / 'slow')
    os.mkfifo(tree / 'fifo')
    with open(tree / 'sparse', 'wb') as f:
        f.truncate(3_000_000)
        f.seek(1_000_000)
        f.write(b'middle')
    (tree / 'empty').write_bytes(b'')
    return make_disk(str(top), name='disk', tree=str(tree)).path


def split(done):
    head, _, rest = done.stdout.partition(b'\n')
    return json.loads(head), rest


@pytest.mark.parametrize('path, resolved', [
    ('/etc/passwd', '/etc/passwd'), ('/a/absolute', '/etc/passwd'), ('/a/relative', '/etc/passwd'),
    ('/dir/absolute', '/etc/passwd'), ('//a/../a/./b/../../etc//passwd', '/etc/passwd'),
    ('/../../etc/passwd', '/etc/passwd'), ('/dir/../etc/passwd', '/etc/passwd')])
def test_paths_stay_in_the_image(disk, path, resolved):
    head, rest = split(history('cat', '--path', path, old=disk))
    assert rest == b'the image has this one\n'
    assert (head['kind'], head['path'], head['mode'], head['uid'], head['gid']) == ('file', resolved, 0o640, 70000, 70001)


@pytest.mark.parametrize('path, data', [('/a/big', BIG), ('/a/big2', BIG), ('/empty', b''),
                                        ('/sparse', bytes(1_000_000) + b'middle' + bytes(1_999_994))],
                         ids=['big', 'big2', 'empty', 'sparse'])  # a name of megabytes would not fit the environment
def test_cat(disk, path, data):
    head, rest = split(history('cat', '--path', path, old=disk))
    assert rest == data and head['size'] == len(data)


@pytest.mark.parametrize('verb, path, code', [
    ('cat', '/nothing', 'not_found'), ('cat', '/a', 'is_a_directory'), ('cat', '/fifo', 'bad_argument'),
    ('cat', '/etc/passwd/x', 'not_a_directory'), ('cat', '/etc/passwd/', 'ok'), ('cat', '/loop1', 'too_many_links'),
    ('cat', '/slow', 'not_found'), ('cat', '/' + 'n' * 300, 'path_too_long'), ('extract', '/x', 'not_found'),
    ('cat', 'relative', 'bad_argument'), ('extract', '/' + 'a/' * 3000, 'bad_argument')])
def test_errors(disk, verb, path, code):
    done = history(verb, '--path', path, old=disk)
    if code == 'ok':
        assert done.returncode == 0
        return
    assert done.returncode == 1
    error = json.loads(done.stdout)
    assert error['code'] == code and error['error'], error


def test_size_limit(disk):
    done = history('cat', '--path', '/a/big', '--max-bytes', '699999', old=disk)
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'limit'
    done = history('extract', '--path', '/a', '--max-bytes', '700003', old=disk)
    assert done.returncode == 1


def test_what_it_is(disk):
    """The first line tells what the answer is of."""
    def get(path, *more):
        return split(history('extract', '--path', path, *more, old=disk))[0]
    assert get('/')['type'] == 'directory' and get('/fifo')['type'] == 'fifo'
    assert get('/a/big')['links'] == 2
    assert get('/a/absolute')['type'] == 'file'
    link = get('/a/absolute', '--no-follow')
    assert (link['type'], link['link_target'], link['path']) == ('symlink', '/etc/passwd', '/a/absolute')
    assert get('/slow', '--no-follow')['link_target'] == 'x' * 100


def members(done):
    head, rest = split(done)
    assert done.returncode == 0 and head['kind'] == 'tar'
    with tarfile.open(fileobj=io.BytesIO(rest)) as t:
        return {m.name: (m, t.extractfile(m).read() if m.isreg() else None) for m in t.getmembers()}


def test_extract_a_tree(disk):
    got = members(history('extract', '--path', '/', old=disk))
    assert got['./a/big'][1] == BIG or got['./a/big2'][1] == BIG
    links = [m for m, _ in got.values() if m.islnk()]
    assert [(m.name, m.linkname) for m in links] == [('./a/big2', './a/big')]
    assert got['./a/absolute'][0].linkname == '/etc/passwd' and got['./a/absolute'][0].issym()
    assert got['./fifo'][0].isfifo() and got['./slow'][0].linkname == 'x' * 100
    assert got['./sparse'][1] == bytes(1_000_000) + b'middle' + bytes(1_999_994)
    m = got['./etc/passwd'][0]
    assert (m.mode, m.uid, m.gid) == (0o640, 70000, 70001)
    assert set(got) >= {'.', './a', './a/b', './a/b/small', './empty', './loop1'}


def test_extract_one_file(disk):
    got = members(history('extract', '--path', '/dir/relative', old=disk))
    assert list(got) == ['passwd'] and got['passwd'][1] == b'the image has this one\n'


def test_extract_a_link_itself(disk):
    got = members(history('extract', '--path', '/dir/relative', '--no-follow', old=disk))
    assert [(m.name, m.linkname) for m, _ in got.values()] == [('relative', '../../../../../etc/passwd')]


def test_extract_with_extended_attributes(tmp_path):
    """Those that the agent takes, in the inode and in a block of their own, access lists as programs see them."""
    acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in ((1, 6, 2**32 - 1), (2, 4, 1234), (4, 4, 2**32 - 1), (0x10, 4, 2**32 - 1),
                                                                            (0x20, 0, 2**32 - 1)))
    want = {'d': {'user.d': b'D', 'system.posix_acl_default': acl}, 'f': {'user.note': b'=\n\x00\xff' * 200, 'system.posix_acl_access': acl,
                                                                     'security.capability': b'\x01\x00\x00\x02\x00\x04\x00\x00' + bytes(12)}, 'plain': {}}
    disk = make_disk(str(tmp_path), name='attributes')
    with disk.mounted() as m:
        os.mkdir(f'{m}/d')
        for name in ('f', 'plain'):
            with open(f'{m}/{name}', 'wb'):
                pass
        for name, attributes in want.items():
            for k, v in attributes.items():
                os.setxattr(f'{m}/{name}', k, v)
        os.setxattr(f'{m}/f', 'trusted.left.out', b'x')
        os.mknod(f'{m}/device', stat.S_IFCHR | 0o600, os.makedev(1, 3))
    got = members(history('extract', '--path', '/', old=disk.path))
    have = {n: {k[13:]: v.encode('utf-8', 'surrogateescape') for k, v in got[f'./{n}'][0].pax_headers.items() if k.startswith('SCHILY.xattr.')}
            for n in want}
    assert have == want
    assert got['./device'][0].ischr()  # told, for whoever unpacks it to say that it was left out


@pytest.mark.parametrize('argv', [
    [], ['nothing'], ['cat'], ['cat', '--path'], ['cat', '--prefix', '/'], ['diff', '--limit', '0'], ['diff', '--limit', 'x'],
    ['diff', '--limit', '999999999'], ['diff', '--prefix', 'x'], ['diff', '--prefix', '/a/../b'], ['diff', '--cursor', '!'],
    ['diff', '--cursor', 'YWJj'], ['diff', '--path', '/'], ['cat', '--path', '/', '--patch'], ['stat', '--path', '/'], ['cat', '--path', '/', '--no-follow']])
def test_arguments(disk, argv):
    done = history(*(argv or ['']), old=disk, new=disk)
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'bad_argument'


def test_what_is_no_image(tmp_path):
    for name, data in (('empty', b''), ('short', b'x' * 1500), ('zeros', bytes(1 << 20)), ('text', b'hello\n' * 10000)):
        (tmp_path / name).write_bytes(data)
        done = history('extract', '--path', '/', old=str(tmp_path / name))
        assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'corrupt_filesystem', (name, done.stdout)
    done = history('extract', '--path', '/', old='/dev/null')
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'bad_argument'


def test_a_file_in_a_cut_image(disk, tmp_path):
    """The superblock promises more than there is."""
    with open(disk, 'rb') as f:
        (tmp_path / 'cut').write_bytes(f.read(8 << 20))
    done = history('extract', '--path', '/', old=str(tmp_path / 'cut'))
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'corrupt_filesystem'
