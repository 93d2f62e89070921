# SPDX-License-Identifier: Apache-2.0
"""A real cspace-rootd on folders of its own, with a stand-in for the warden (probe.py), and the means to
see everything it may leave behind on the host."""
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', '..', 'lib')]
import wire  # noqa: E402
from belongings import Belongings  # noqa: E402
from fault import Fault  # noqa: E402
from host import loop_btrfs, until  # noqa: E402

BUILD = os.environ.get('CSPACE_BUILD', os.path.join(wire.TOP, 'build'))
BINARY = os.path.join(BUILD, 'src', 'rootd', 'cspace-rootd')
MB = 1 << 20


def new_id():
    return ''.join(random.choices('abcdefghijklmnopqrstuvwxyz234567', k=26))


def sparse_hash(path):
    """The line of disk.img in a MANIFEST, by the description in manifest.h."""
    h = hashlib.sha256()
    size = os.path.getsize(path)
    with open(path, 'rb') as f:
        at = 0
        while block := f.read(65536):
            if block.strip(b'\0'):
                h.update(struct.pack('>QI', at, len(block)) + block)
            at += len(block)
    h.update(struct.pack('>QI', size, 0))
    return h.hexdigest()


def file_hash(path):
    with open(path, 'rb') as f:
        return hashlib.sha256(f.read()).hexdigest()


@pytest.fixture(scope='session')
def btrfs():
    """A btrfs of our own, as `cspace up` makes one."""
    if os.geteuid() != 0:
        pytest.skip('needs root')
    if not os.path.exists(BINARY):
        pytest.skip(f'{BINARY} is not built')
    with loop_btrfs(2 << 30) as mount:
        yield mount or pytest.skip('cannot mount a loop device')


class Host(Belongings):
    def assert_nothing(self):
        """No process, tap, namespace, cgroup, mount or file of a sandbox, a slot or a build."""
        until(lambda: not self.processes(), what='end of all processes')
        assert self.namespaces() == set()
        assert self.cgroups() == []
        assert self.mounts() == []
        assert self.files() == []


class Rootd:
    def __init__(self, data, top, libexec):
        self.data, self.top = data, top
        self.run = os.path.join(top, 'run')
        self.libexec = libexec
        self.proc = None
        self.host = Host(self)
        self.log = open(os.path.join(top, 'log'), 'ab')
        self.fault = Fault(os.path.join(top, 'fault'))

    @property
    def sock(self):
        return os.path.join(self.run, 'rootd.sock')

    def start(self, *args, env=None, pool=2, wait=True, conf='', prefix=()):
        path = os.path.join(self.top, 'conf')
        with open(path, 'w') as f:
            f.write(conf)
        self.proc = subprocess.Popen([*prefix, BINARY, '--config', path, '--run', self.run, '--data', self.data, '--libexec',
                                      self.libexec, '--user', 'nobody', '--pool', str(pool), '--log-level', 'debug', *args],
                                     stderr=self.log, stdout=self.log, stdin=subprocess.DEVNULL,
                                     env={**os.environ, **self.fault.env, 'CSPACE_LOG_FORMAT': 'text', **(env or {})})
        if wait:
            until(lambda: self.proc.poll() is not None or self.accepts(), what='rootd.sock')
            assert self.proc.poll() is None, self.text()
        return self

    def accepts(self):
        """Answers, that is: a child of a killed rootd may hold its socket for a moment."""
        try:
            self.client().close()
            return True
        except OSError:
            return False

    def client(self, **kw):
        return wire.Client(self.sock, **kw)

    def text(self):
        with open(os.path.join(self.top, 'log'), errors='replace') as f:
            return f.read()

    def kill(self):
        """As kill -9 does."""
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            assert self.proc.wait(15) == 0, self.text()
        self.proc = None

    # ---- fixtures made through rootd itself or beside it

    def make_build(self, disk_mb=8, content=b'root filesystem', disk=None):
        """What a builder leaves: builds/<id>/out. Returns (id, digest). disk: a file to take for it."""
        ident = new_id()
        out = os.path.join(self.data, 'builds', ident, 'out')
        os.makedirs(out)
        for name, data in (('kernel', b'kernel'), ('initrd', b'initrd'), ('manifest.json', b'{"format":1}')):
            with open(os.path.join(out, name), 'wb') as f:
                f.write(data)
        with open(os.path.join(out, 'disk.img'), 'wb') as f:
            if disk:
                with open(disk, 'rb') as image:
                    shutil.copyfileobj(image, f)
            else:
                f.write(content)
                f.seek(3 * MB)
                f.write(os.urandom(MB))
                f.truncate(disk_mb * MB)
        lines = [(sparse_hash if n == 'disk.img' else file_hash)(os.path.join(out, n)) + '  ' + n
                 for n in ('disk.img', 'initrd', 'kernel', 'manifest.json')]
        text = ''.join(line + '\n' for line in lines).encode()
        with open(os.path.join(out, 'MANIFEST'), 'wb') as f:
            f.write(text)
        for top, dirs, files in os.walk(os.path.join(self.data, 'builds', ident)):
            for n in dirs + files:
                os.chown(os.path.join(top, n), 2080000000, 2080000000)
        return ident, hashlib.sha256(text).hexdigest()

    def make_template(self, client, **kw):
        ident, digest = self.make_build(**kw)
        client.call('TEMPLATE_COMMIT', id=ident, digest=digest)
        client.call('BUILD_REMOVE', id=ident)
        return digest

    def make_variant(self, client, digest, memory_mb=128, cpus=1, engine='fake'):
        ident = new_id()
        client.call('PLACE', 'PLACED', id=ident, mode='boot', digest=digest, engine=engine, memory_mb=memory_mb, cpus=cpus)
        client.call('VARIANT_COMMIT', id=ident, digest=digest, variant=f'{engine}-{memory_mb}m-{cpus}c')
        client.call('REMOVE', id=ident)

    def warden(self, ident):
        return Warden(os.path.join(self.run, 'sandboxes', ident, 'ctl.sock'))


    def gateway(self, ident):
        return Warden(os.path.join(self.run, 'sandboxes', ident, 'gw.sock'))


class Warden:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(20)
        self.sock.connect(path)

    def __call__(self, expression):
        self.sock.send(expression.encode())
        return json.loads(self.sock.recv(1 << 20))

    def vm(self, expression):
        return self('vm:' + expression)

    def close(self):
        self.sock.close()


@pytest.fixture(scope='session')
def libexec(tmp_path_factory):
    d = tmp_path_factory.mktemp('libexec', numbered=True)
    for top in [d, *d.parents][:3]:
        os.chmod(top, 0o755)
    for source, name in (('probe.py', 'cspace-warden'), ('probe.py', 'cspace-gateway'), ('builder.py', 'cspace-builder')):
        shutil.copy(os.path.join(HERE, source), d / name)
        os.chmod(d / name, 0o755)
    return str(d)


@pytest.fixture
def rootd(btrfs, libexec, tmp_path):
    os.chmod(tmp_path, 0o755)
    data = os.path.join(btrfs, new_id())
    top = tempfile.mkdtemp(prefix='rootd-')  # short: sockets lie below it
    os.chmod(top, 0o755)
    r = Rootd(data, top, libexec)
    yield r
    sandboxes = os.path.join(r.run, 'sandboxes')
    if os.path.isdir(sandboxes) and os.listdir(sandboxes) and (not r.proc or r.proc.poll() is not None):
        r.start(pool=0)  # a test that failed with rootd away must not leave its sandboxes running
    if r.proc and r.proc.poll() is None:
        for ident in os.listdir(sandboxes):
            try:
                r.client().call('REMOVE', id=ident)
            except (wire.RootdError, OSError):
                pass
        r.stop()
    r.log.close()
    if os.environ.get('CSPACE_TEST_LOGS'):
        print(r.text())
    shutil.rmtree(top, ignore_errors=True)
    shutil.rmtree(data, ignore_errors=True)


class Placer:
    """A rootd with one template and its variant, ready to place."""

    def __init__(self, rootd):
        self.rootd = rootd
        rootd.start()
        self.c = rootd.client()
        self.digest = rootd.make_template(self.c)
        rootd.make_variant(self.c, self.digest)

    def args(self, ident=None, **kw):
        return {'id': ident or new_id(), 'mode': 'restore', 'digest': self.digest, 'engine': 'fake', 'memory_mb': 128,
                'cpus': 1, **kw}

    def place(self, ident=None, **kw):
        ident = ident or new_id()
        return ident, self.c.call('PLACE', 'PLACED', **self.args(ident, **kw))


@pytest.fixture
def placer(rootd):
    return Placer(rootd)
