# SPDX-License-Identifier: Apache-2.0
"""The template "base" from the real archive, twice: the same packages must give the same bytes."""
import os
import subprocess

import conftest
import pytest


def archive_answers(folder):
    """Whether apt gets a small package from this host's own sources."""
    p = subprocess.run(['apt-get', '-o', 'Acquire::http::Timeout=10', '-o', 'Acquire::Retries=0', 'download', 'base-files'],
                       check=False, capture_output=True, timeout=120, cwd=folder)
    return p.returncode == 0


@pytest.fixture(scope='module')
def builds(bench, tmp_path_factory):
    if not archive_answers(tmp_path_factory.mktemp('probe')):
        pytest.skip('the Debian archive cannot be reached')
    agent = os.path.join(conftest.BUILD, 'src', 'agent', 'cspace-agent')
    args = {'sources': False, 'disk': 8 << 30, 'agent': agent if os.path.exists(agent) else None}
    return [bench.build('--source', 'packages', **args) for _ in range(2)]


@pytest.mark.slow
def test_same_packages_same_digest(builds):
    a, b = builds
    assert a.code == 0, a.last
    assert b.code == 0, b.last
    assert a.last['digest'] == b.last['digest']


@pytest.mark.slow
def test_what_base_has(builds):
    r = builds[0]
    m = r.manifest()
    assert {'bash', 'coreutils', 'procps', 'ncurses-bin', 'sudo', 'git', 'curl', 'ca-certificates', 'python3', 'python3-pip',
            'python3-venv'} <= set(m['packages'])
    assert m['os']['id'] == 'debian'
    passwd = r.cat('/etc/passwd')
    assert 'user:x:1000:1000::/home/user:/bin/bash' in passwd
    assert 'NOPASSWD' in r.cat('/etc/sudoers.d/user')
    assert '.bashrc' in r.ls('/home/user')
    # One file: apt warns of each source that is configured in two.
    assert sorted(r.ls('/etc/apt/sources.list.d')) == ['.', '..', 'debian.sources'] and 'sources.list' not in r.ls('/etc/apt')
    assert r.cat('/etc/machine-id') == ''
    assert subprocess.run(['e2fsck', '-fn', r.path('out', 'disk.img')], check=False, capture_output=True).returncode == 0


@pytest.mark.slow
def test_initrd_has_its_modules(builds):
    with open(builds[0].path('out', 'initrd'), 'rb') as f:
        names = set(subprocess.run(['cpio', '-it', '--quiet'], stdin=f, check=True, capture_output=True, text=True).stdout.split())
    with open(builds[0].path('out', 'initrd'), 'rb') as f:
        wanted = subprocess.run(['cpio', '-i', '--quiet', '--to-stdout', 'modules.list'], stdin=f, check=True, capture_output=True,
                                text=True).stdout.split()
    assert wanted and all(w.startswith('/lib/modules/') and w[1:] in names for w in wanted)
    assert [w for w in wanted if w.endswith('/virtio_blk.ko')]
    order = [os.path.basename(w) for w in wanted]
    assert max(order.index('virtio.ko'), order.index('virtio_ring.ko')) < order.index('virtio_blk.ko')


@pytest.mark.slow
def test_small(builds):
    """A template is read into memory and copied: it must not grow unnoticed."""
    assert os.stat(builds[0].path('out', 'disk.img')).st_blocks * 512 < 450 << 20
    assert os.path.getsize(builds[0].path('out', 'initrd')) < 16 << 20
