# SPDX-License-Identifier: Apache-2.0
"""Builds, and what becomes of their results."""
import errno
import json
import os
import shutil
import signal
import stat
import time

import pytest

import wire
from conftest import MB, new_id, until


class Build:
    def __init__(self, client, work='', source='packages', archive=None, timeout_s=60, **kw):
        self.client, self.id = client, kw.pop('id', None) or new_id()
        self.read, write = os.pipe()
        fds = [write] + ([archive] if archive is not None else [])
        self.seq = client.send('BUILD', fds=fds, id=self.id, source=source, packages=work, suite=kw.pop('suite', ''),
                               disk_bytes=kw.pop('disk_bytes', 1 << 30), timeout_s=timeout_s, **kw)
        os.close(write)

    def lines(self):
        with os.fdopen(self.read) as f:
            return [json.loads(line) for line in f]

    def first(self):
        return json.loads(os.read(self.read, 65536).decode().splitlines()[0])

    def result(self):
        return self.client.result(self.seq)


def test_builder_has_its_contract(rootd):
    rootd.start()
    c = rootd.client()
    b = Build(c, 'make', suite='bookworm', disk_bytes=123 * MB)
    b.result()
    said, made = b.lines()
    d = os.path.join(rootd.data, 'builds', b.id)
    assert said['args'] == {'--dir': d, '--source': 'packages', '--disk-bytes': str(123 * MB), '--suite': 'bookworm',
                            '--agent': rootd.libexec + '/cspace-agent', '--cache': rootd.data + '/cache/r0',
                            '--packages': 'make', '--timeout': '60'} or said['args']['--cache'].startswith(rootd.data + '/cache/r')
    assert said['uid'] == 0 and said['pid'] == 1 and said['groups'] == [] and said['oom'] == 500
    assert said['map'][0] == '0' and said['map'][2] == '65536' and int(said['map'][1]) >= 2080000000
    assert set(said['environ']) <= {'PATH', 'LC_CTYPE', 'http_proxy', 'https_proxy', 'no_proxy', 'HTTP_PROXY', 'HTTPS_PROXY',
                                    'NO_PROXY', 'ftp_proxy', 'all_proxy', 'ALL_PROXY'}
    assert said['fds'][:3] == [0, 1, 2] and len(said['fds']) == 4  # and the one that lists them
    base = int(said['map'][1])
    assert os.stat(d).st_uid == base and stat.S_IMODE(os.stat(d).st_mode) == 0o700
    assert os.stat(d + '/out/kernel').st_uid == base + 1000
    assert made['kept'] == 1
    again = Build(c, 'make', checkpoint_every_s=600, checkpoint_keep=3)
    again.result()
    said, made = again.lines()
    assert made['kept'] == 2  # the cache stays
    assert (said['args']['--checkpoint-every'], said['args']['--checkpoint-keep']) == ('600', '3')
    for x in (b, again):
        c.call('BUILD_REMOVE', id=x.id)
        c.call('BUILD_REMOVE', id=x.id)
    assert os.listdir(os.path.join(rootd.data, 'builds')) == []
    rootd.stop()
    rootd.host.assert_nothing()


def test_builder_sees_and_writes_only_its_own(rootd):
    rootd.start()
    c = rootd.client()
    b = Build(c, 'escape')
    b.result()
    said = b.lines()[1]
    inside = [d for d in said['writable'] if not d.startswith(('/tmp', '/var/tmp', '/run', '/dev/shm', rootd.data))]
    assert inside == []
    assert said['home'] == [] and said['root'] == []
    assert [n for n in said['run'] if n.endswith('.sock') or n == 'dbus'] == []
    assert said['data'] == ['builds', 'cache']
    assert said['umount_home'] == -1 and said['umount_run'] == -1
    assert said['remount'] == errno.EPERM
    assert said['proc'] == 0 and said['tmpfs'] == 0  # what it does need
    c.call('BUILD_REMOVE', id=b.id)


def test_archive_is_passed(rootd, tmp_path):
    (tmp_path / 'a.tar').write_text('an archive')
    rootd.start()
    c = rootd.client()
    with open(tmp_path / 'a.tar') as f:
        b = Build(c, source='tar', archive=f.fileno())
        b.result()
    assert b.lines()[1] == {'tar': 'an archive'}
    c.call('BUILD_REMOVE', id=b.id)


def test_builds_end(rootd):
    rootd.start(conf='[build]\nparallel = 2\n')
    c = rootd.client()
    b = Build(c, 'fail')
    with pytest.raises(wire.RootdError) as e:
        b.result()
    assert e.value.code == errno.EIO and b.lines()[1]['code'] == 'package_not_found'
    # Two at one time, each with ids of its own, then no more.
    one, two = Build(c, 'hang'), Build(c, 'hang')
    assert one.first()['map'][1] != two.first()['map'][1]
    with pytest.raises(wire.RootdError) as e:
        Build(c, 'hang').result()
    assert e.value.code == errno.EAGAIN
    with pytest.raises(wire.RootdError) as e:
        Build(c, 'make', id=one.id).result()
    assert e.value.code == errno.EALREADY
    with pytest.raises(wire.RootdError) as e:
        c.call('TEMPLATE_COMMIT', id=one.id, digest='0' * 64)
    assert e.value.code == errno.EBUSY
    seqs = [c.send('BUILD_REMOVE', id=x.id) for x in (one, two, one)]
    for x in (one, two):
        with pytest.raises(wire.RootdError) as e:
            x.result()
        assert e.value.code == errno.ECANCELED
    for seq in seqs:
        c.result(seq)
    c.call('BUILD_REMOVE', id=b.id)
    rootd.stop()
    rootd.host.assert_nothing()


def test_builder_dies_with_rootd(rootd):
    rootd.start()
    b = Build(rootd.client(), 'hang')
    b.first()
    rootd.kill()
    until(lambda: not rootd.host.processes(), what='the end of the builder')
    rootd.start()
    rootd.client().call('BUILD_REMOVE', id=b.id)
    rootd.stop()
    rootd.host.assert_nothing()


@pytest.mark.parametrize('change', [
    {'id': '../x'}, {'source': 'git'}, {'work': '--option'}, {'work': 'a;b'}, {'work': 'a\nb'}, {'work': 'a -o x'},
    {'suite': '--x'}, {'suite': 'a b'}, {'disk_bytes': 1}, {'timeout_s': 1}, {'source': 'tar'}])
def test_bad_builds_are_refused(rootd, change):
    rootd.start()
    with pytest.raises(wire.RootdError) as e:
        Build(rootd.client(), **change).result()
    assert e.value.code in (errno.EINVAL, errno.EBADF)
    assert os.listdir(os.path.join(rootd.data, 'builds')) == []


def test_commit_makes_files_ours(rootd):
    rootd.start()
    c = rootd.client()
    ident, digest = rootd.make_build()
    c.call('TEMPLATE_COMMIT', id=ident, digest=digest)
    d = os.path.join(rootd.data, 'templates', digest)
    assert sorted(os.listdir(d)) == ['MANIFEST', 'disk.img', 'initrd', 'kernel', 'manifest.json', 'variants']
    for name in os.listdir(d):
        st = os.stat(os.path.join(d, name))
        assert st.st_uid == 0 and st.st_mode & 0o222 == (0o200 if name == 'variants' else 0)
    c.call('TEMPLATE_COMMIT', id=ident, digest=digest)
    c.call('TEMPLATE_COMMIT', id=new_id(), digest=digest)
    c.call('BUILD_REMOVE', id=ident)
    c.call('TEMPLATE_REMOVE', digest=digest)
    assert os.listdir(os.path.join(rootd.data, 'templates')) == []
    c.call('TEMPLATE_REMOVE', digest=digest)


def test_removal_of_one_that_is_just_being_stored(rootd):
    """For a cspaced that has ended meanwhile; the next one knows of no such template, and removes it."""
    rootd.start()
    first, second = rootd.client(), rootd.client()
    ident, digest = rootd.make_build()
    rootd.fault.arm('rootd', 'template:1', sig=signal.SIGSTOP)
    seq = first.send('TEMPLATE_COMMIT', id=ident, digest=digest)
    until(lambda: rootd.fault.met, what='the job')
    with pytest.raises(wire.RootdError) as e:
        second.call('TEMPLATE_REMOVE', digest=digest)
    assert e.value.code == errno.EBUSY
    os.kill(rootd.fault.disarm(), signal.SIGCONT)
    first.result(seq)
    second.call('TEMPLATE_REMOVE', digest=digest)
    assert os.listdir(os.path.join(rootd.data, 'templates')) == []


def damage(out, how):
    path = os.path.join(out, 'kernel')
    if how == 'changed':
        with open(path, 'a') as f:
            f.write('x')
    elif how == 'missing':
        os.unlink(path)
    elif how == 'symlink':
        os.rename(path, path + '2')
        os.symlink('kernel2', path)
    elif how == 'shadow':
        os.unlink(path)
        os.symlink('/etc/shadow', path)
    elif how == 'hardlink':
        os.link(path, os.path.join(out, 'second'))
    elif how == 'fifo':
        os.unlink(path)
        os.mkfifo(path)
    elif how == 'device':
        os.unlink(path)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    elif how == 'disk':
        with open(os.path.join(out, 'disk.img'), 'r+b') as f:
            f.seek(5 * MB)
            f.write(b'x')
    elif how == 'manifest':
        with open(os.path.join(out, 'MANIFEST'), 'a') as f:
            f.write('0' * 64 + '  extra\n')
    elif how == 'out-link':
        shutil.move(out, out + '2')
        os.symlink('out2', out)


@pytest.mark.parametrize('how', ['changed', 'missing', 'symlink', 'shadow', 'hardlink', 'fifo', 'device', 'disk', 'manifest',
                                 'out-link'])
def test_what_is_not_the_digest_is_refused(rootd, how):
    rootd.start()
    c = rootd.client()
    ident, digest = rootd.make_build()
    shadow = os.stat('/etc/shadow')
    damage(os.path.join(rootd.data, 'builds', ident, 'out'), how)
    began = time.monotonic()
    with pytest.raises(wire.RootdError):
        c.call('TEMPLATE_COMMIT', id=ident, digest=digest)
    assert time.monotonic() - began < 10
    assert os.listdir(os.path.join(rootd.data, 'templates')) == []
    assert os.stat('/etc/shadow').st_mode == shadow.st_mode and os.stat('/etc/shadow').st_uid == shadow.st_uid
    c.call('BUILD_REMOVE', id=ident)
    rootd.stop()
    rootd.host.assert_nothing()


def test_remove_under_a_live_sandbox(placer):
    ident, _ = placer.place()
    placer.c.call('TEMPLATE_REMOVE', digest=placer.digest)
    w = placer.rootd.warden(ident)
    assert len(w('os.pread(8, 10, 0).decode()')) == 10  # it holds what it needs
    with pytest.raises(wire.RootdError) as e:
        placer.place()
    assert e.value.code == errno.ENOENT


def test_remove_a_variant_under_a_live_sandbox(placer):
    ident, _ = placer.place()
    variants = os.path.join(placer.rootd.data, 'templates', placer.digest, 'variants')
    name, = os.listdir(variants)
    other = os.path.join(variants, 'qemu-tcg-300m-1c-00000000')
    os.mkdir(other)
    for bad in '..', '.', '', '.new-x', 'a/b', '../../x', 'A', 'x' * 64:
        with pytest.raises((wire.RootdError, OSError, AssertionError, ValueError)):
            placer.c.call('VARIANT_REMOVE', digest=placer.digest, variant=bad)
    assert sorted(os.listdir(variants)) == sorted([name, os.path.basename(other)])
    placer.c.call('VARIANT_REMOVE', digest=placer.digest, variant=os.path.basename(other))
    assert os.listdir(variants) == [name]
    placer.c.call('VARIANT_REMOVE', digest=placer.digest, variant=name)
    assert os.listdir(variants) == []
    placer.c.call('VARIANT_REMOVE', digest=placer.digest, variant=name)  # missing is fine
    placer.c.call('VARIANT_REMOVE', digest='e' * 64, variant=name)
    w = placer.rootd.warden(ident)
    assert len(w('os.pread(8, 10, 0).decode()')) == 10  # it holds what it needs
    with pytest.raises(wire.RootdError) as e:
        placer.place()
    assert e.value.code == errno.ENOENT


# ---- publishing an image -----------------------------------------------------------------------------

def manifest_file(text=b'{"format":1,"source":{"kind":"sandbox"}}'):
    fd = os.memfd_create('manifest')
    os.write(fd, text)
    return fd


def make_image(rootd, full=False):
    """As IMAGE_COMMIT leaves it."""
    image = new_id()
    d = os.path.join(rootd.data, 'checkpoints', image)
    os.mkdir(d, 0o700)
    for name, size in [('disk.img', 8 * MB)] + ([('mem', 4 * MB), ('state', 3000)] if full else []):
        with open(os.path.join(d, name), 'wb') as f:
            f.write(os.urandom(2000))
            f.truncate(size)
        os.chmod(os.path.join(d, name), 0o400)
    return image


def publish(rootd, client, digest, image, full=False, ident=None):
    fd = manifest_file()
    try:
        return client.call('PUBLISH', 'PUBLISHED', fds=[fd], id=ident or new_id(), image=image, kind='full' if full else 'disk',
                           digest=digest)
    finally:
        os.close(fd)


@pytest.mark.parametrize('full', [False, True])
def test_publish(rootd, full):
    rootd.start()
    c = rootd.client()
    digest, image, ident = rootd.make_template(c), make_image(rootd, full), new_id()
    new = publish(rootd, c, digest, image, full, ident)
    assert new['disk_bytes'] == 8 * MB and new['digest'] != digest
    assert new['digest'] == publish(rootd, c, digest, image, full, ident)['digest']  # the same bytes
    templates = os.path.join(rootd.data, 'templates')
    assert os.listdir(templates) == [digest]  # not visible yet
    kind = {'engine': 'fake', 'memory_mb': 4, 'cpus': 1} if full else {}
    with pytest.raises(wire.RootdError):  # a memory is published as one, and only that
        c.call('TEMPLATE_COMMIT', id=ident, digest=new['digest'], **({} if full else {'engine': 'fake', 'memory_mb': 4, 'cpus': 1}))
    c.call('TEMPLATE_COMMIT', id=ident, digest=new['digest'], **kind)
    d = os.path.join(templates, new['digest'])

    def read(*path):
        with open(os.path.join(*path), 'rb') as f:
            return f.read()
    of = os.path.join(rootd.data, 'checkpoints', image)
    assert read(d, 'disk.img') == read(of, 'disk.img') and read(d, 'kernel') == b'kernel'
    assert read(d, 'manifest.json') == b'{"format":1,"source":{"kind":"sandbox"}}'
    assert [(stat.S_IMODE(os.stat(os.path.join(d, n)).st_mode), os.stat(os.path.join(d, n)).st_uid) for n in ('disk.img', 'kernel')] == \
        [(0o400, 0), (0o444, 0)]
    v = os.path.join(d, 'variants')
    assert os.listdir(v) == (['fake-4m-1c'] if full else [])
    if full:
        assert sorted(os.listdir(v + '/fake-4m-1c')) == ['disk.img', 'mem', 'state', 'variant.json']
        for n in ('disk.img', 'mem', 'state'):
            assert read(v, 'fake-4m-1c', n) == read(of, n) and stat.S_IMODE(os.stat(f'{v}/fake-4m-1c/{n}').st_mode) == 0o400
        assert json.loads(read(v, 'fake-4m-1c', 'variant.json'))['diskBytes'] == 8 * MB
    c.call('BUILD_REMOVE', id=ident)
    c.call('IMAGE_REMOVE', image=image)
    assert os.listdir(os.path.join(rootd.data, 'builds')) == []
    if not full:  # a sandbox can be made of it as of any other
        rootd.make_variant(c, new['digest'])
        s = new_id()
        c.call('PLACE', 'PLACED', id=s, mode='restore', digest=new['digest'], engine='fake', memory_mb=128, cpus=1)
        c.call('REMOVE', id=s)
    rootd.stop()
    rootd.host.assert_nothing()


def test_publish_is_checked(rootd):
    rootd.start()
    c = rootd.client()
    digest, image = rootd.make_template(c), make_image(rootd)
    for bad in ({'id': 'x'}, {'image': '../x'}, {'digest': 'y'}, {'kind': 'half'}, {'image': new_id()}, {'digest': 'f' * 64},
                {'kind': 'full'}):
        fd = manifest_file()
        ident = new_id()
        with pytest.raises(wire.RootdError):
            c.call('PUBLISH', 'PUBLISHED', fds=[fd], **{'id': ident, 'image': image, 'kind': 'disk', 'digest': digest, **bad})
        os.close(fd)
    for fds in ([], [manifest_file(b'')], [manifest_file(b' ' * (MB + 1))]):
        with pytest.raises(wire.RootdError):
            c.call('PUBLISH', 'PUBLISHED', fds=fds, id=new_id(), image=image, kind='disk', digest=digest)
    assert os.listdir(os.path.join(rootd.data, 'builds')) == []


def test_memory_of_a_build_is_refused(rootd):
    """What a builder leaves beside its result is nothing that a sandbox would be restored from."""
    rootd.start()
    c = rootd.client()
    ident, digest = rootd.make_build()
    out = os.path.join(rootd.data, 'builds', ident, 'out')
    for n in ('mem', 'state'):
        with open(os.path.join(out, n), 'wb') as f:
            f.write(b'x')
    with pytest.raises(wire.RootdError) as e:
        c.call('TEMPLATE_COMMIT', id=ident, digest=digest)
    assert 'memory' in e.value.message
    assert os.listdir(os.path.join(rootd.data, 'templates')) == []


def test_a_removal_waits_for_a_publish(rootd):
    """Else it could begin before the folder is made, and the folder stay."""
    rootd.start()
    c = rootd.client()
    digest, image, ident = rootd.make_template(c), make_image(rootd), new_id()
    fd = manifest_file()
    for _ in range(20):
        seq = c.send('PUBLISH', fds=[fd], id=ident, image=image, kind='disk', digest=digest)
        removal = c.send('BUILD_REMOVE', id=ident)
        try:
            c.result(removal)
        except wire.RootdError as e:
            assert e.code == errno.EBUSY
            c.result(seq, 'PUBLISHED')
            c.call('BUILD_REMOVE', id=ident)
        else:
            c.result(seq, 'PUBLISHED')  # it was over already
            continue
        assert os.listdir(os.path.join(rootd.data, 'builds')) == []
    os.close(fd)
