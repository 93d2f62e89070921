# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import assets  # noqa: E402
import agent  # noqa: E402
import launcher  # noqa: E402

BUILD = os.environ.get('CSPACE_BUILD', os.path.join(launcher.TOP, 'build'))
CACHE = os.environ.get('CSPACE_TEST_CACHE', os.path.join(launcher.TOP, 'build', 'test-cache', 'warden'))


@pytest.fixture(scope='session')
def build():
    for name in ('src/warden/cspace-warden', 'src/warden/ropen.so', 'src/agent/cspace-agent'):
        if not os.path.exists(os.path.join(BUILD, name)):
            pytest.skip(f'{name} is not built in {BUILD} (CSPACE_BUILD names the build folder)')
    if os.getuid() != 0:
        pytest.skip('needs root: the warden and the VM run under uids of their own')
    return BUILD


@pytest.fixture(scope='session')
def template(build):
    if os.environ.get('CSPACE_TEST_TEMPLATE'):
        return os.environ['CSPACE_TEST_TEMPLATE']
    if not shutil.which('qemu-system-x86_64'):
        pytest.skip('qemu-system-x86_64 is not installed')
    try:
        return assets.make_template(CACHE, build + '/src/agent/cspace-agent')
    except assets.Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope='session')
def room(tmp_path_factory):
    """A folder that every uid can go through."""
    path = tmp_path_factory.mktemp('warden')
    for p in (path, *path.parents):
        try:
            os.chmod(p, os.stat(p).st_mode | 0o711)
        except PermissionError:
            pass
    return str(path)


@pytest.fixture(scope='session')
def variant(build, template, room):
    """A warmed snapshot of the template, made as cspaced makes it."""
    p = launcher.Placement(build, room + '/boot')
    out = room + '/variant'
    p.launch('boot', launcher.boot_files(template, out))
    try:
        ctl = p.ctl()
        q = ctl.wait_state(('running', 'failed', 'exited'), 200)
        assert q['state'] == 'running', q
        ctl.identify()
        for _ in range(2):
            assert agent.run(p, ['/bin/true']).ok
            assert agent.run(p, ['/bin/sh', '-c', 'date; id']).ok
        ctl.snapshot()
        p.wait_vm_end()
        assert ctl.query()['state'] == 'exited'
    finally:
        print(p.log())
        p.destroy()
    return out


class Vms:
    """Restored VMs of one test."""

    def __init__(self, build, room, variant):
        self.build, self.room, self.variant, self.n, self.made = build, room, variant, 0, []

    def restore(self, disk_bytes=0, **kw):
        self.n += 1
        p = launcher.Placement(self.build, f'{self.room}/vm{self.n}')
        p.disk = f'{self.room}/vm{self.n}.img'
        self.made.append(p)
        files = launcher.restore_files(self.variant, p.disk)
        if disk_bytes:
            p.disk_bytes = disk_bytes
            os.truncate(p.disk, disk_bytes)
        p.launch('restore', files, **kw)
        return p

    def ready(self, **kw):
        p = self.restore(**kw)
        p.c = p.ctl()
        p.times = p.c.identify()
        return p

    def clear(self):
        for p in self.made:
            print(p.log())
            p.destroy()
            if os.path.exists(p.disk):
                os.unlink(p.disk)


@pytest.fixture
def vms(build, room, variant):
    v = Vms(build, room, variant)
    yield v
    v.clear()


@pytest.fixture
def fake(build, room, request):
    """A warden with the fake engine, running."""
    mode = getattr(request, 'param', 'restore')
    p = launcher.Placement(build, room + '/fake', engine='fake')
    p.launch(mode, {})
    p.c = p.ctl()
    p.c.wait_state('running')
    yield p
    print(p.log())
    p.destroy()
