# SPDX-License-Identifier: Apache-2.0
"""Questions about disk images: cspace-history as rootd starts it, what it is confined to, and that nothing stays."""
import errno
import glob
import json
import os
import shutil
import signal
import socket
import subprocess

import pytest

import wire
from conftest import BUILD, MB, new_id, until

PROGRAM = os.path.join(BUILD, 'src', 'history', 'cspace-history')
FIRST_UID = 2145600000
STAND_IN = '''#!/usr/bin/python3 -I
import json, os, socket, sys, time
def sockets():
    try:
        socket.create_connection(('127.0.0.1', 1))
    except OSError as e:
        return e.errno
def status():
    return dict(l.rstrip('\\n').split(':\\t', 1) for l in open('/proc/self/status') if ':\\t' in l)
def fds():
    out = {}
    for n in os.listdir('/proc/self/fd'):
        try:
            out[n] = os.readlink('/proc/self/fd/' + n)
        except OSError:
            pass
    return out
import fcntl, resource
print(json.dumps({'argv': sys.argv[1:], 'status': status(), 'fds': fds(), 'net': os.listdir('/proc/self/net') and
                  [l.split(':')[0].strip() for l in open('/proc/self/net/dev') if ':' in l], 'env': dict(os.environ),
                  'modes': [fcntl.fcntl(n, fcntl.F_GETFL) & os.O_ACCMODE for n in (3, 4)],
                  'root': sorted(os.listdir('/')), 'etc': os.listdir('/etc'), 'sizes': [os.fstat(n).st_size for n in (3, 4)],
                  'heads': [os.pread(n, 16, 0).hex() for n in (3, 4)], 'oom': open('/proc/self/oom_score_adj').read().strip(),
                  'fsize': resource.getrlimit(resource.RLIMIT_FSIZE), 'nofile': resource.getrlimit(resource.RLIMIT_NOFILE)}),
      flush=True)
if 'hold' in sys.argv[-1]:
    time.sleep(600)
'''


def disk(path, files, size=16):
    """An ext4 image with these files in it."""
    tree = path + '.d'
    for name, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
        with open(os.path.join(tree, name), 'wb') as f:
            f.write(data)
    with open(path, 'wb') as f:
        f.truncate(size * MB)
    subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-E', 'root_owner=0:0', '-d', tree, path], check=True)
    shutil.rmtree(tree)
    return path


def put(image, name, data):
    """Writes a file into an image that is nowhere mounted."""
    source = image + '.put'
    with open(source, 'wb') as f:
        f.write(data)
    subprocess.run(['debugfs', '-w', '-f', '-', image], input=f'rm {name}\nwrite {source} {name}\n'.encode(), check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.unlink(source)


class Histories:
    def __init__(self, rootd, program, tmp_path):
        self.rootd = rootd
        libexec = os.path.join(rootd.top, 'libexec')
        shutil.copytree(rootd.libexec, libexec)
        rootd.libexec = libexec
        self.program(program)
        rootd.start()
        self.c = rootd.client()
        self.digest = rootd.make_template(self.c, disk=disk(str(tmp_path / 'disk'), {'etc/motd': b'hello\n', 'a': b'1\n'}))
        rootd.make_variant(self.c, self.digest)
        self.id = new_id()
        self.c.call('PLACE', 'PLACED', id=self.id, mode='restore', digest=self.digest, engine='fake', memory_mb=128, cpus=1)

    def program(self, source):
        to = os.path.join(self.rootd.libexec, 'cspace-history')
        if source is None:
            with open(to, 'w') as f:
                f.write(STAND_IN)
        else:
            shutil.copy(source, to)
        os.chmod(to, 0o755)

    @property
    def disk(self):
        return os.path.join(self.rootd.data, 'sandboxes', self.id, 'disk.img')

    def ask(self, client=None, **kw):
        """The socket from which the answer comes."""
        c = client or self.c
        args = {'id': self.id, 'digest': self.digest, 'variant': 'fake-128m-1c', 'verb': 'diff', 'from': 'template',
                'to': 'now', 'path': '/', **kw}
        c.call('HISTORY', **args)
        s = socket.socket(fileno=c.fds.pop())
        s.settimeout(30)
        return s

    def read(self, **kw):
        with self.ask(**kw) as s:
            data = b''.join(iter(lambda: s.recv(65536), b''))
        return data

    def lines(self, **kw):
        return [json.loads(l) for l in self.read(**kw).splitlines()]

    def processes(self):
        found = []
        for d in glob.glob('/proc/[0-9]*'):
            try:
                with open(d + '/status') as f:
                    text = f.read()
            except OSError:
                continue
            uid = int(text.split('\nUid:\t')[1].split()[0])
            if 'State:\tZ' not in text and FIRST_UID <= uid < FIRST_UID + 4 * 4096:
                found.append(int(d[6:]))
        return found

    def cgroups(self):
        return [g for g in self.rootd.host.cgroups() if os.path.basename(g.rstrip('/')).startswith('h')]

    def nothing_left(self):
        until(lambda: not self.processes(), what='end of the processes')
        until(lambda: not self.cgroups(), what='end of the cgroups')
        assert sorted(os.listdir(os.path.join(self.rootd.data, 'sandboxes'))) == [self.id]
        assert os.listdir(os.path.join(self.rootd.data, 'sandboxes', self.id)) == ['disk.img']


@pytest.fixture
def real(rootd, tmp_path):
    if not os.path.exists(PROGRAM):
        pytest.skip(f'{PROGRAM} is not built')
    return Histories(rootd, PROGRAM, tmp_path)


@pytest.fixture
def fake(rootd, tmp_path):
    return Histories(rootd, None, tmp_path)


def code_of(fn, **kw):
    with pytest.raises(wire.RootdError) as e:
        fn(**kw)
    return e.value.code


def test_diff_of_a_running_sandbox(real):
    last = real.lines()[-1]
    assert last['end'] is True and last['changes'] == 0
    put(real.disk, 'b', b'new\n')
    put(real.disk, 'a', b'22\n')
    out = real.lines(patch=1)
    changes = {r['path']: r for r in out[:-1] if r['path'] in ('/a', '/b')}
    assert changes['/b']['status'] == 'added' and changes['/b']['new']['size'] == 4
    assert changes['/a']['status'] == 'changed' and '-1\n+22\n' in changes['/a']['patch']
    assert {r['path'] for r in out[:-1]} <= {'/', '/a', '/b'}
    some = real.lines(count=1)
    assert some[-1]['more'] is True
    rest = real.lines(cursor=some[-1]['cursor'])
    assert [r['path'] for r in some[:-1] + rest[:-1]] == [r['path'] for r in out[:-1]]
    assert [r['path'] for r in real.lines(path='/etc')[:-1]] == []
    real.nothing_left()


def test_files_of_each_image(real):
    put(real.disk, 'a', b'22\n')
    image = new_id()
    real.c.call('IMAGE_COMMIT', 'IMAGE_INFO', id=real.id, image=image, kind='disk')
    put(real.disk, 'a', b'333\n')

    def cat(image, path='/a'):
        head, _, data = real.read(verb='cat', to='', path=path, **{'from': image}).partition(b'\n')
        head = json.loads(head)
        assert head['size'] == len(data)
        return data
    assert (cat('template'), cat(image), cat('now')) == (b'1\n', b'22\n', b'333\n')
    assert cat('template', '/etc/motd') == b'hello\n'
    # Without its variant (a template that was made anew) the template's own disk serves.
    assert json.loads(real.read(verb='cat', to='', path='/a', variant='', **{'from': 'template'}).partition(b'\n')[0])['size'] == 2
    error = real.lines(verb='cat', to='', path='/none', **{'from': 'now'})[-1]
    assert error['code'] == 'not_found'
    limit = real.lines(verb='cat', to='', path='/a', max_bytes=2, **{'from': 'now'})[-1]
    assert limit['code'] == 'limit'
    assert {r['path'] for r in real.lines(**{'from': image, 'to': 'now'})[:-1]} <= {'/', '/a'}
    # A filesystem that is none is told as such, and costs nobody else anything.
    with open(real.disk, 'r+b') as f:
        f.write(b'\xff' * 65536)
    assert real.lines()[-1]['code'] in ('corrupt_filesystem', 'unsupported_filesystem')
    assert cat('template') == b'1\n'
    real.c.call('REMOVE', id=real.id)
    assert code_of(real.ask) == errno.ENOENT
    assert cat(image) == b'22\n'  # of a sandbox that is not placed


def test_what_cannot_be_asked(fake):
    for kw in ({'id': 'x'}, {'digest': 'x'}, {'variant': '../..'}, {'verb': 'extract'}, {'from': '../x'}, {'from': ''},
               {'to': ''}, {'to': 'x'}, {'path': 'etc'}, {'path': ''}, {'verb': 'cat'}):
        assert code_of(fake.ask, **kw) == errno.EINVAL, kw
    assert code_of(fake.ask, **{'from': new_id()}) == errno.ENOENT
    assert code_of(fake.ask, id=new_id()) == errno.ENOENT
    # Neither a link nor anything else that is no file is followed.
    os.rename(fake.disk, fake.disk + '.0')
    os.symlink(fake.disk + '.0', fake.disk)
    assert code_of(fake.ask) in (errno.ELOOP, errno.EXDEV)
    os.unlink(fake.disk)
    os.mkfifo(fake.disk)
    assert code_of(fake.ask) == errno.EBADMSG
    os.unlink(fake.disk)
    os.rename(fake.disk + '.0', fake.disk)
    fake.nothing_left()


def test_confined(fake):
    with open(fake.disk, 'r+b') as f:
        f.write(b'now')
    seen = fake.lines(count=7, patch=1, path='/x', cursor='abc')[0]
    assert seen['argv'] == ['diff', '--prefix', '/x', '--cursor', 'abc', '--limit', '7', '--patch']
    st = seen['status']
    uid = int(st['Uid'].split()[0])
    assert FIRST_UID <= uid and st['Uid'].split() == [str(uid)] * 4 and st['Gid'].split() == [str(uid)] * 4
    assert st['Groups'].split() == [] and st['NoNewPrivs'] == '1' and st['NSpid'].split()[-1] == '1'
    for caps in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
        assert int(st[caps], 16) == 0
    assert seen['env'] == {} or set(seen['env']) == {'LC_CTYPE'}  # python's own
    assert seen['modes'] == [os.O_RDONLY] * 2
    assert seen['sizes'] == [16 * MB] * 2
    assert bytes.fromhex(seen['heads'][1])[:3] == b'now' and bytes.fromhex(seen['heads'][0])[:3] == b'\0\0\0'
    assert {k for k, v in seen['fds'].items() if v and not v.startswith('/proc/')} == {'0', '1', '2', '3', '4'}
    assert '(deleted)' in seen['fds']['4'] or not seen['fds']['4'].endswith('disk.img')
    assert seen['net'] in ([], ['lo'])
    assert seen['etc'] == ['ld.so.cache'] and 'var' not in seen['root'] and 'home' not in seen['root']
    assert seen['oom'] == '600' and seen['fsize'] == [1, 1] and seen['nofile'][1] <= 16
    fake.nothing_left()


def test_one_a_sandbox_and_few_a_host(fake):
    first = fake.ask(path='/hold')
    assert code_of(fake.ask) == errno.EALREADY
    others = [fake.ask(id=new_id(), to='template', path='/hold') for _ in range(3)]
    assert code_of(fake.ask, id=new_id(), to='template') == errno.EAGAIN
    uids = set()
    for s in [first, *others]:
        uids.add(json.loads(s.makefile().readline())['status']['Uid'].split()[0])
    assert len(uids) == 4 == len(fake.processes())
    for s in [first, *others]:
        s.close()  # a reader that goes ends it
    fake.nothing_left()
    assert fake.lines()[0]['argv'] == ['diff', '--prefix', '/']
    fake.nothing_left()


def test_the_reader_is_told_of_an_end_that_came_early(fake):
    s = fake.ask(path='/hold')
    f = s.makefile()
    f.readline()
    os.kill(fake.processes()[0], signal.SIGKILL)
    assert f.readline() == ''
    fake.nothing_left()
    os.unlink(os.path.join(fake.rootd.libexec, 'cspace-history'))
    assert fake.lines()[-1]['code'] == 'io_error'
    fake.nothing_left()


@pytest.mark.parametrize('how', ['kill', 'stop'])
def test_ends_with_rootd(fake, how):
    s = fake.ask(path='/hold')
    f = s.makefile()
    f.readline()
    getattr(fake.rootd, how)()
    assert f.readline() == ''
    until(lambda: not fake.processes(), what='end of the processes')
    fake.rootd.start()
    fake.c = fake.rootd.client()
    fake.nothing_left()
    assert fake.lines()[0]['argv'] == ['diff', '--prefix', '/']
