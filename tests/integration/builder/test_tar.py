# SPDX-License-Identifier: Apache-2.0
"""Templates from a root filesystem archive, the friendly and the hostile kind."""
import hashlib
import os
import subprocess
import tarfile

import conftest
import pytest


def test_result_is_complete(bench, tar):
    r = bench.tar(tar=tar().root().close())
    assert r.code == 0, r.last
    assert r.last['done'] is True
    assert sorted(os.listdir(r.path('out'))) == ['MANIFEST', 'disk.img', 'initrd', 'kernel', 'manifest.json']
    with open(r.path('out', 'MANIFEST'), 'rb') as f:
        assert hashlib.sha256(f.read()).hexdigest() == r.last['digest']
    with open(r.path('out', 'kernel'), 'rb') as f:
        assert f.read() == conftest.bzimage()[1]
    assert subprocess.run(['e2fsck', '-fn', r.path('out', 'disk.img')], check=False, capture_output=True).returncode == 0
    assert os.path.getsize(r.path('out', 'disk.img')) == 256 << 20
    # Only the result and the log are left.
    assert sorted(os.listdir(r.folder)) == ['build.log', 'out']


def test_initrd(bench, tar):
    r = bench.tar(tar=tar().root().close())
    with open(r.path('out', 'initrd'), 'rb') as f:
        listing = subprocess.run(['cpio', '-it', '--quiet'], stdin=f, check=True, capture_output=True, text=True).stdout.split()
    assert 'init' in listing and 'dev/console' in listing and 'modules.list' in listing


def test_manifest(bench, tar):
    t = tar().root().add('etc/os-release', b'ID=test\nVERSION_ID="9"\nPRETTY_NAME="Test \xe2\x9c\x93 9"\n')
    t.dir('var').dir('var/lib').dir('var/lib/dpkg')
    t.add('var/lib/dpkg/status', b'Package: foo\nStatus: install ok installed\nVersion: 1.2\n\n')
    m = bench.tar(tar=t.close()).manifest()
    assert m['format'] == 1
    assert m['arch'] == 'amd64'
    assert m['source']['kind'] == 'tar'
    assert m['os'] == {'id': 'test', 'version': '9', 'name': 'Test \u2713 9'}
    assert m['kernel'] == {'package': f'linux-image-{conftest.RELEASE}', 'version': '6.1-1', 'release': conftest.RELEASE}
    assert m['disk'] == {'bytes': 256 << 20, 'fs': 'ext4'}
    assert m['packages'] == {'foo': '1.2'}
    assert m['config']['user'] == 'user' and "workdir" not in m["config"]
    assert m['config']['warm']
    with open(bench.agent, 'rb') as f:
        assert m['agent'] == {'sha256': hashlib.sha256(f.read()).hexdigest()}


def test_manifest_has_the_rules(bench, tar):
    t = tar().root().close()
    assert 'rules' not in bench.tar(tar=t).manifest()['config']
    m = bench.tar('--checkpoint-every', '600', '--checkpoint-keep', '3', tar=tar().root().close()).manifest()
    assert m['config']['rules'] == {'checkpoint_every_s': 600, 'checkpoint_keep': 3}


def test_progress_is_honest(bench, tar):
    r = bench.tar(tar=tar().root().close())
    steps = [line for line in r.lines if 'step' in line]
    assert [s['index'] for s in steps] == sorted(s['index'] for s in steps)
    assert {s['step'] for s in steps} == {'download', 'rootfs', 'configure', 'kernel', 'disk', 'finish'}
    overall = [s['overall'] for s in steps]
    assert overall == sorted(overall) and overall[0] == 0 and overall[-1] == 100


def test_many_entries_show_progress(bench, tar):
    """More entries than there are between two reports: each report is a line, and the numbers grow."""
    t = tar().root()
    for i in range(1600):
        t.add(f'etc/{i}', bytes(2000))
    r = bench.tar(tar=t.close())
    assert r.code == 0, r.last
    percents = [line['percent'] for line in r.lines if line.get('message') == 'unpacking the archive']
    assert len(percents) >= 4 and percents == sorted(percents) and percents[0] == 0 and 20 < percents[1] < 50, percents
    assert '1599' in r.ls('/etc')


def test_same_archive_same_digest(bench, tar):
    path = tar().root().add('etc/future', b'x', mtime=4000000000).add('etc/now', b'y').close()
    a, b = bench.tar(tar=path), bench.tar(tar=path)
    assert a.code == b.code == 0
    assert a.last['digest'] == b.last['digest']


@pytest.fixture
def btrfs(bench):
    image, where = os.path.join(bench.folder, 'fs.img'), os.path.join(bench.folder, 'fs')
    with open(image, 'wb') as f:
        f.truncate(1 << 30)
    os.mkdir(where)
    if subprocess.run(['mkfs.btrfs', '-q', image], check=False).returncode or \
            subprocess.run(['mount', '-o', 'loop', image, where], check=False).returncode:
        pytest.skip('no btrfs can be made and mounted here')
    yield where
    subprocess.run(['umount', where], check=True)
    os.unlink(image)


def test_same_digest_on_another_filesystem(bench, tar, btrfs):
    path = tar().root().add('etc/x', bytes(100000)).close()
    here = bench.tar(tar=path)
    folder = os.path.join(btrfs, 'b')
    os.mkdir(folder, 0o700)
    os.chown(folder, conftest.UID_BASE, conftest.UID_BASE)
    there = bench.tar(tar=path, folder=folder)
    assert there.code == 0, there.last
    assert 'modules.dep' in here.ls(f'/lib/modules/{conftest.RELEASE}')
    assert here.last['digest'] == there.last['digest']


def test_users(bench, tar):
    r = bench.tar(tar=tar().root().close())
    assert 'root:x:0:0:root:/root:/bin/sh\n' in r.cat('/etc/passwd')
    assert 'user:x:1000:1000::/home/user:/bin/sh\n' in r.cat('/etc/passwd')
    assert 'User:  1000' in r.stat('/home/user')
    assert r.cat('/etc/resolv.conf') == 'nameserver 10.200.0.1\n'
    assert 'Mode:  01777' in r.stat('/tmp')


def test_users_of_the_image_stay(bench, tar):
    t = tar().root().add('usr/bin/bash', conftest.shell(), mode=0o755)
    t.add('etc/passwd', b'root:x:0:0::/root:/bin/ash\nbob:x:1000:1000::/home/bob:/bin/ash')
    t.add('etc/group', b'root:x:0:\nbob:x:1000:\n').add('etc/shadow', b'root:*:18000:0:99999:7:::\n', mode=0o640, gid=42)
    t.add('etc/sudoers', b'@includedir /etc/sudoers.d\n', mode=0o440)
    r = bench.tar(tar=t.close())
    assert r.cat('/etc/passwd') == ('root:x:0:0::/root:/bin/ash\nbob:x:1000:1000::/home/bob:/bin/ash\n'
                                    'user:x:1001:1001::/home/user:/bin/bash\n')
    assert 'user:*:' in r.cat('/etc/shadow')
    assert 'Mode:  0640' in r.stat('/etc/shadow') and 'Group:    42' in r.stat('/etc/shadow')
    assert 'NOPASSWD' in r.cat('/etc/sudoers.d/user')
    assert 'Mode:  0440' in r.stat('/etc/sudoers.d/user')


@pytest.mark.parametrize('mode,kwargs', [('w:gz', {}), ('w:xz', {}), ('w:bz2', {}), ('w', {'format': tarfile.PAX_FORMAT}),
                                         ('w', {'format': tarfile.GNU_FORMAT}), ('w', {'format': tarfile.USTAR_FORMAT})])
def test_forms_of_tar(bench, tar, mode, kwargs):
    assert bench.tar(tar=tar(mode=mode, **kwargs).root().close()).code == 0


def test_zstd(bench, tar, tmp_path):
    path = tar().root().close()
    subprocess.run(['zstd', '-q', path], check=True)
    assert bench.tar(tar=path + '.zst').code == 0


def test_odd_entries_survive(bench, tar):
    deep = '/'.join(['a' * 60] * 5)
    t = tar(format=tarfile.PAX_FORMAT).root()
    for i in range(1, 6):
        t.dir('/'.join(['a' * 60] * i))
    t.add(deep + '/long', b'long').add('etc/empty', b'').add('etc/\u00e9 \u2713', b'utf-8')
    t.link('etc/dangling', '/nowhere').link('etc/up', '../../../../etc/passwd')
    t.add('etc/setuid', b'x', mode=0o4755, uid=12, gid=34)
    t.add('etc/hard', kind=tarfile.LNKTYPE, link='etc/setuid')
    t.add('etc/fifo', kind=tarfile.FIFOTYPE)
    t.add('./etc/dotted', b'd').add('/etc/absolute', b'a')
    t.link('lib', 'usr/lib').dir('usr/lib').add('lib/through', b't')
    r = bench.tar(tar=t.close())
    assert r.code == 0, r.last
    assert r.cat(f'/{deep}/long') == 'long'
    assert {'empty', '\u00e9 \u2713', 'dangling', 'up', 'setuid', 'hard', 'fifo', 'dotted', 'absolute'} <= set(r.ls('/etc'))
    assert 'Mode:  04755' in r.stat('/etc/setuid') and 'User:    12' in r.stat('/etc/setuid')
    assert 'Links: 2' in r.stat('/etc/hard')
    assert r.cat('/usr/lib/through') == 't'


def test_secrets_and_traces_go(bench, tar):
    t = tar().root().dir('etc/ssh').add('etc/ssh/ssh_host_ed25519_key', b'secret').add('etc/machine-id', b'0123\n')
    t.dir('var').dir('var/log').add('var/log/syslog', b'log').dir('tmp').add('tmp/left', b'x')
    t.add('etc/shadow-', b'x').dir('root').add('root/.bash_history', b'x')
    r = bench.tar(tar=t.close())
    assert r.ls('/etc/ssh') == ['.', '..']
    assert r.cat('/etc/machine-id') == ''
    assert 'syslog' not in r.ls('/var/log') and 'left' not in r.ls('/tmp')
    assert 'shadow-' not in r.ls('/etc') and '.bash_history' not in r.ls('/root')


def test_devices_are_left_out(bench, tar):
    t = tar().root().dir('dev').add('dev/null', kind=tarfile.CHRTYPE).add('dev/file', b'x').add('etc/disk', kind=tarfile.BLKTYPE)
    r = bench.tar(tar=t.close())
    assert r.code == 0, r.last
    assert r.ls('/dev') == ['.', '..']
    assert 'disk' not in r.ls('/etc')


# ---- refusals ---------------------------------------------------------------------------------

def refused(r, code, word=''):
    assert r.code == 1
    assert r.last.get('code') == code, r.last
    assert word in r.last['error'], r.last
    assert not os.path.exists(r.path('out', 'MANIFEST'))


def test_no_shell(bench, tar):
    refused(bench.tar(tar=tar().dir('etc').dir('usr').close()), 'no_shell', '/bin/sh')


def test_shell_that_is_none(bench, tar):
    t = tar().dir('bin').dir('etc').add('bin/sh', b'#!/bin/sh\n' * 10, mode=0o755)
    refused(bench.tar(tar=t.close()), 'no_shell')
    t = tar('b.tar').dir('bin').dir('etc').add('bin/sh', kind=tarfile.FIFOTYPE, mode=0o755)
    refused(bench.tar(tar=t.close()), 'no_shell')
    t = tar('c.tar').dir('bin').dir('etc').link('bin/sh', '/nowhere')
    refused(bench.tar(tar=t.close()), 'no_shell')


def test_other_processor(bench, tar):
    t = tar().dir('bin').dir('etc').add('bin/sh', conftest.shell(183), mode=0o755)
    refused(bench.tar(tar=t.close()), 'wrong_architecture', '183')


def test_folder_of_a_root_filesystem(bench, tar):
    t = tar().dir('rootfs').dir('rootfs/bin').add('rootfs/bin/sh', conftest.shell(), mode=0o755)
    refused(bench.tar(tar=t.close()), 'not_a_root_filesystem')


def test_container_image(bench, tar):
    t = tar().add('manifest.json', b'[]').dir('blobs').add('oci-layout', b'{}')
    refused(bench.tar(tar=t.close()), 'not_a_root_filesystem', 'export')


@pytest.mark.parametrize('data', [b'', b'not an archive\n' * 100, b'\x1f\x8b\x08 broken'], ids=['empty', 'text', 'broken gzip'])
def test_no_archive(bench, tmp_path, data):
    path = tmp_path / 'x.tar'
    path.write_bytes(data)
    refused(bench.tar(tar=str(path)), 'archive_invalid')


def test_truncated(bench, tar):
    path = tar().root().add('etc/big', os.urandom(1 << 20)).close()
    os.truncate(path, 600000)
    refused(bench.tar(tar=path), 'archive_invalid')


def test_no_descriptor(bench):
    refused(bench.tar(), 'bad_argument', 'descriptor 3')


@pytest.mark.parametrize('name', ['../outside', 'etc/../../outside', '/../outside', 'a/..'])
def test_names_that_leave(bench, tar, name):
    refused(bench.tar(tar=tar().root().add(name, b'x').close()), 'archive_invalid', '..')


def test_hard_link_that_leaves(bench, tar):
    refused(bench.tar(tar=tar().root().add('etc/x', kind=tarfile.LNKTYPE, link='../../etc/passwd').close()), 'archive_invalid')


def test_links_end_inside(bench, tar):
    """A link to an absolute path, then a file through it: it lands in the image, not on the host."""
    name = f'cspace-escape-{os.getpid()}'
    t = tar().root().link('etc/out', '/var/tmp').dir('var').dir('var/tmp').add(f'etc/out/{name}', b'x')
    t.link('home', '../../../../../var').link('etc/resolv.conf', '/etc/passwd')
    r = bench.tar(tar=t.close())
    assert r.code == 0, r.last
    assert not os.path.exists(f'/var/tmp/{name}')
    assert 'Type: directory' in r.stat('/var/user')
    assert r.cat('/etc/resolv.conf') == 'nameserver 10.200.0.1\n'


def test_modules_folder_that_leaves(bench, tar, tmp_path):
    victim = tmp_path / 'victim'
    victim.mkdir(mode=0o777)
    os.chmod(victim, 0o777)
    t = tar().root().link('lib', f'../../../../../..{victim}')
    r = bench.tar(tar=t.close())
    assert r.code == 0, r.last
    assert os.listdir(victim) == []


def test_owners_outside_the_range(bench, tar):
    t = tar(format=tarfile.PAX_FORMAT).root().add('etc/x', b'', uid=70000)
    refused(bench.tar(tar=t.close()), 'archive_invalid', '65535')


def test_more_than_the_disk(bench, tar):
    t = tar().root()
    for i in range(80):
        t.add(f'etc/{i}', os.urandom(1 << 20))
    refused(bench.tar(tar=t.close(), disk=64 << 20), 'disk_too_small')


def test_bomb(bench, tar):
    """A gigabyte of zeros in a megabyte."""
    t = tar(mode='w:gz').root()
    block = bytes(64 << 20)
    for i in range(16):
        t.add(f'etc/{i}', block)
    refused(bench.tar(tar=t.close()), 'disk_too_small')


def test_sparse_giant(bench, tmp_path):
    """A terabyte that is one hole: it fits, and stays a hole."""
    root = tmp_path / 'root'
    for name in ('bin', 'etc'):
        (root / name).mkdir(parents=True)
    (root / 'bin' / 'sh').write_bytes(conftest.shell())
    (root / 'bin' / 'sh').chmod(0o755)
    with open(root / 'etc' / 'big', 'wb') as f:
        f.truncate(1 << 40)
    path = str(tmp_path / 'sparse.tar')
    subprocess.run(['tar', '-C', str(root), '--format=pax', '-cSf', path, '.'], check=True)
    r = bench.tar(tar=path)
    assert r.code == 0, r.last
    assert f'Size: {1 << 40}' in r.stat('/etc/big')
    assert os.stat(r.path('out', 'disk.img')).st_blocks * 512 < 64 << 20
