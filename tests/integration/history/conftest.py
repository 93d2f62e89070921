# SPDX-License-Identifier: Apache-2.0
"""cspace-history on real images. The tests mount them (the product never does), change them through the kernel, and hold
the answers against a walk of both mounted trees."""
import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile

import pytest

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build'))
HISTORY = os.path.join(BUILD, 'src', 'history', 'cspace-history')
# As the builder makes them.
FEATURES = ('none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,'
            'dir_nlink,extra_isize,metadata_csum')
FS_OPTIONS = ['-b', '4096', '-I', '256', '-E', 'lazy_itable_init=1,lazy_journal_init=1,nodiscard']


def run(*argv, **kw):
    return subprocess.run(argv, check=True, **{'stdout': subprocess.DEVNULL, **kw})


def history(verb, *options, old, new=None, timeout=120):
    """The finished process; images are descriptors 3 and 4, as cspace-rootd hands them over."""
    def setup():
        os.dup2(a.fileno(), 3)
        if b:
            os.dup2(b.fileno(), 4)
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(open(old, 'rb'))
        b = stack.enter_context(open(new, 'rb')) if new else None
        # Out of the way of 3 and 4.
        a = stack.enter_context(os.fdopen(os.dup2(a.fileno(), 63), 'rb'))
        if b:
            b = stack.enter_context(os.fdopen(os.dup2(b.fileno(), 64), 'rb'))
        return subprocess.run([HISTORY, verb, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout,
                              stdin=subprocess.DEVNULL, preexec_fn=setup, pass_fds=(3, 4) if new else (3,), check=False)


def lines(done):
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr)
    return [json.loads(l) for l in done.stdout.decode().splitlines()]


def diff(old, new, *options):
    """(records, last line)"""
    out = lines(history('diff', *options, old=old, new=new))
    assert out[-1].get('end') is True and not any('end' in r for r in out[:-1])
    return out[:-1], out[-1]


def brief(records):
    """{(status, path)} or (status, from, path): enough for most tests."""
    return {(r['status'], r['from'], r['path']) if 'from' in r else (r['status'], r['path']) for r in records}


class Disk:
    """An image that can be mounted for a while."""

    def __init__(self, path):
        self.path = path

    @contextlib.contextmanager
    def mounted(self, options='loop'):
        where = tempfile.mkdtemp(prefix='cspace-history-')
        run('mount', '-t', 'ext4', '-o', options, self.path, where)
        try:
            yield where
        finally:
            run('umount', where)
            os.rmdir(where)

    def copy(self, name):
        to = Disk(os.path.join(os.path.dirname(self.path), name))
        run('cp', '--reflink=auto', '--sparse=always' if not shares(self.path) else '--sparse=auto', self.path, to.path)
        return to

    def debugfs(self, *commands):
        run('debugfs', '-w', '-f', '-', self.path, input='\n'.join(commands).encode(), stderr=subprocess.DEVNULL)


def shares(path):
    kind = subprocess.run(['stat', '-f', '-c', '%T', path], stdout=subprocess.PIPE, check=True).stdout
    return kind.strip() == b'btrfs'


def make_disk(folder, name='old', size='64M', options=(), features='', tree=None):
    path = os.path.join(folder, name)
    run('truncate', '-s', size, path)
    run('mke2fs', '-q', '-F', '-t', 'ext4', *FS_OPTIONS, '-O', ','.join(filter(None, (FEATURES, features))), *options, *(['-d', tree] if tree else []), path,
        env={**os.environ, 'MKE2FS_CONFIG': '/dev/null', 'PATH': '/usr/sbin:/sbin:/usr/bin:/bin'})
    return Disk(path)


def walk(top):
    """{path: what is compared}, by the kernel."""
    seen = {}

    def take(full, rel):
        st = os.lstat(full)
        kind = stat.S_IFMT(st.st_mode)
        entry = {'type': kind, 'mode': stat.S_IMODE(st.st_mode), 'owner': (st.st_uid, st.st_gid), 'ino': st.st_ino,
                 'content': None, 'target': None, 'device': None,
                 'xattr': {n: os.getxattr(full, n, follow_symlinks=False) for n in os.listxattr(full, follow_symlinks=False)}}
        if kind == stat.S_IFREG:
            with open(full, 'rb') as f:
                entry['content'] = (st.st_size, hashlib.file_digest(f, 'sha256').hexdigest())
        elif kind == stat.S_IFLNK:
            entry['target'] = os.readlink(full)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            entry['device'] = st.st_rdev
        seen[rel] = entry
        if kind == stat.S_IFDIR:
            for name in os.listdir(full):
                take(os.path.join(full, name), (rel if rel != b'/' else b'') + b'/' + name)
    take(os.fsencode(top), b'/')
    return seen


def path_of(record, key='path'):
    import base64
    return base64.b64decode(record[key + '_b64']) if key + '_b64' in record else os.fsencode(record[key])


def check_against(old, new, records):
    """Applies the records to the old tree: it must become the new one, and every file that differs must have a record that
    says in what; no record may say what is not so."""
    by_old, by_new, added = {}, {}, set()
    for r in records:
        status, path = r['status'], path_of(r)
        if status == 'added':
            assert path not in by_new, path
            added.add(path)
            by_new[path] = r
        elif status == 'deleted':
            assert path not in by_old, path
            by_old[path] = r
        else:
            assert status in ('changed', 'renamed'), r
            assert path not in by_new, path
            by_new[path] = r
            by_old[path_of(r, 'from') if 'from' in r else path] = r

    moved = {b'/': b'/'}
    for path in sorted(old):  # parents first
        if path == b'/':
            continue
        parent, _, name = path.rpartition(b'/')
        r = by_old.get(path)
        if r and r['status'] == 'deleted':
            continue
        if r:
            moved[path] = path_of(r)
            continue
        assert (parent or b'/') in moved, f'{path} stays, but its folder is gone'
        to = moved[parent or b'/']
        moved[path] = (b'' if to == b'/' else to) + b'/' + name
    predicted = sorted(list(moved.values()) + list(added))
    assert predicted == sorted(new), (set(predicted) ^ set(new))
    for was, now in moved.items():
        a, b = old[was], new[now]
        differ = {k for k in ('mode', 'owner', 'type', 'xattr') if a[k] != b[k]}
        if a['type'] == b['type']:
            differ |= {k for k in ('content', 'target', 'device') if a[k] != b[k]}
        r = by_new.get(now)
        told = set(r['what']) if r and r['status'] in ('changed', 'renamed') else set()
        assert told == differ, (was, now, told, differ)
        if r and r['status'] == 'changed':
            assert differ, r
    for path, r in list(by_new.items()) + [(p, r) for p, r in by_old.items() if r['status'] == 'deleted']:
        for side, tree in (('old', old), ('new', new)):
            if side not in r:
                continue
            e = tree[path_of(r, 'from') if side == 'old' and 'from' in r else path]
            m = r[side]
            assert (m['mode'], (m['uid'], m['gid']), m['inode']) == (e['mode'], e['owner'], e['ino']), r
            if e['content']:
                assert m['size'] == e['content'][0]


@pytest.fixture(scope='session')
def btrfs(tmp_path_factory):
    """A filesystem with reflinks."""
    if os.geteuid() != 0:
        pytest.skip('needs root')
    top = str(tmp_path_factory.mktemp('reflinks'))
    image, where = os.path.join(top, 'btrfs'), os.path.join(top, 'data')
    os.mkdir(where)
    run('truncate', '-s', '4G', image)
    run('mkfs.btrfs', '-q', image)
    if subprocess.run(['mount', '-o', 'loop', image, where], check=False).returncode:
        pytest.skip('cannot mount a loop device')
    yield where
    subprocess.run(['umount', '-l', where], check=True)


@pytest.fixture(params=['reflinks', 'copies'])
def folder(request, btrfs, tmp_path):
    """Where images lie: on a filesystem that shares blocks, and on one that does not (all is compared there)."""
    if request.param == 'copies':
        yield str(tmp_path)
        return
    where = tempfile.mkdtemp(dir=btrfs)
    yield where
    shutil.rmtree(where)


@pytest.fixture
def shared(btrfs):
    where = tempfile.mkdtemp(dir=btrfs)
    yield where
    shutil.rmtree(where)
