# SPDX-License-Identifier: Apache-2.0
"""Real cspaced, cspace-rootd and microVMs on folders of their own: a btrfs in a loop device, and the small template
of the warden's tests. Nothing of an installation is touched."""
import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'lib'))
from belongings import Belongings  # noqa: E402
from fault import Fault  # noqa: E402
from host import UnixHTTP, free_port, loop_btrfs, until  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build'))
CACHE = os.environ.get('CSPACE_TEST_CACHE', os.path.join(TOP, 'build', 'test-cache', 'warden'))
DIGEST = '5' * 64
MB = 1 << 20
POOL = 2


def load_assets():
    import importlib.util
    spec = importlib.util.spec_from_file_location('warden_assets', os.path.join(HERE, '..', 'warden', 'assets.py'))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


assets = load_assets()


@pytest.fixture(scope='session')
def btrfs():
    if os.geteuid() != 0:
        pytest.skip('needs root')
    with loop_btrfs(6 << 30) as mount:
        yield mount or pytest.skip('cannot mount a loop device')


@pytest.fixture(scope='session')
def libexec():
    """The programs of the build as they lie in an installation."""
    d = tempfile.mkdtemp(prefix='lx-')
    os.chmod(d, 0o755)
    for name in ('warden/cspace-warden', 'warden/ropen.so', 'thaw/cspace-thaw', 'agent/cspace-agent', 'daemon/cspaced', 'rootd/cspace-rootd',
                 'gateway/cspace-gateway', 'history/cspace-history', 'token/cspace-token'):
        path = os.path.join(BUILD, 'src', name)
        if not os.path.exists(path):
            pytest.skip(f'{path} is not built')
        shutil.copy(path, d)
    yield d
    shutil.rmtree(d)


class Reply:
    def __init__(self, status, body):
        self.status, self.body = status, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f'<{self.status} {self.body[:500]!r}>'


class Host:
    """One cspace-rootd and one cspaced."""

    def __init__(self, libexec, data, prefix=()):
        self.libexec, self.data, self.prefix = libexec, data, list(prefix)
        self.top = tempfile.mkdtemp(prefix='lf-')
        os.chmod(self.top, 0o755)
        self.run = os.path.join(self.top, 'run')
        self.log = open(os.path.join(self.top, 'log'), 'ab')
        self.fault = Fault(os.path.join(self.top, 'fault'))
        self.rootd = self.cspaced = None
        self.port = free_port()

    # ---- processes

    def spawn(self, name, *args):
        return subprocess.Popen([*self.prefix, os.path.join(self.libexec, name), '--config', os.path.join(self.top, 'conf'), '--run', self.run,
                                 '--data', self.data, *args], stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                env={**os.environ, **self.fault.env, 'CSPACE_LOG_FORMAT': 'text'})

    def start_rootd(self):
        self.rootd = self.spawn('cspace-rootd', '--libexec', self.libexec, '--user', 'root', '--pool', str(POOL), '--log-level', 'info')
        until(lambda: self.rootd.poll() is not None or self.listens('rootd.sock'), what='rootd.sock')
        return self

    def listens(self, name):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            try:
                s.connect(os.path.join(self.run, name))
                return True
            except OSError:
                return False

    def start_cspaced(self, wait=True):
        self.cspaced = self.spawn('cspaced', '--listen', f'127.0.0.1:{self.port}', '--allow-root', '--log-level', 'debug')
        if wait:
            until(self.answers, what='api.sock')
            until(lambda: self.get('/v1/host').json['rootd'] == 'connected', what='the connection to rootd')
        return self

    def answers(self):
        assert self.cspaced.poll() is None, self.text()[-3000:]
        try:
            return self.get('/health').status == 204
        except OSError:
            return False

    def start(self, conf=''):
        with open(os.path.join(self.top, 'conf'), 'w') as f:
            f.write(conf)
        return self.start_rootd().start_cspaced()

    @staticmethod
    def end(proc, sig=signal.SIGKILL):
        if proc and proc.poll() is None:
            proc.send_signal(sig)
            proc.wait(30)

    def kill_cspaced(self):
        self.end(self.cspaced)

    def kill_rootd(self):
        self.end(self.rootd)

    def stop(self):
        self.end(self.cspaced, signal.SIGTERM)
        self.end(self.rootd, signal.SIGTERM)

    def text(self):
        with open(os.path.join(self.top, 'log'), errors='replace') as f:
            return f.read()

    def close(self):
        """Everything is removed, also after a test that left one of the two dead."""
        try:
            if not self.rootd or self.rootd.poll() is not None:
                self.start_rootd()
            if not self.cspaced or self.cspaced.poll() is not None:
                self.start_cspaced()
            for s in self.get('/v1/sandboxes?limit=1000').json['sandboxes']:
                self.delete(s['id'])
        finally:
            self.stop()
            self.log.close()
            if os.environ.get('CSPACE_TEST_LOG'):
                print(self.text())
            shutil.rmtree(self.top, ignore_errors=True)

    # ---- the template

    def add_template(self, template):
        """As a build would leave it, without building."""
        d = os.path.join(self.data, 'templates', DIGEST)
        os.makedirs(os.path.join(d, 'variants'))
        for name in ('disk.img', 'kernel', 'initrd'):
            shutil.copy(os.path.join(template, name), d)
            os.chmod(os.path.join(d, name), 0o444)
        self.stop()
        now = int(time.time() * 1000)
        with contextlib.closing(sqlite3.connect(os.path.join(self.data, 'state.db'))) as db, db:
            db.execute('INSERT INTO templates (digest, created_ms, disk_bytes, manifest) VALUES (?, ?, ?, ?)',
                       (DIGEST, now, os.path.getsize(os.path.join(d, 'disk.img')), '{}'))
            db.execute('INSERT INTO tags (ref, digest, updated_ms) VALUES (?, ?, ?)', ('base:latest', DIGEST, now))
        self.start_rootd().start_cspaced()

    # ---- requests

    def request(self, method, path, body=None, headers=None, timeout=300):
        conn = UnixHTTP(os.path.join(self.run, 'api.sock'), timeout)
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers['Content-Type'] = 'application/json'
        try:
            conn.request(method, path, body, headers)
            r = conn.getresponse()
            return Reply(r.status, r.read())
        finally:
            conn.close()

    def get(self, path, **kw):
        return self.request('GET', path, **kw)

    def post(self, path, body=None, **kw):
        return self.request('POST', path, body, **kw)

    def create(self, **kw):
        r = self.post('/v1/sandboxes?wait=300', {'template': 'base', 'memory_mb': 128, **kw})
        assert r.status == 201, (r, self.get("/v1/templates"))
        return r.json['sandbox']['id']

    def delete(self, ident):
        r = self.request('DELETE', f'/v1/sandboxes/{ident}?wait=60')
        assert r.status == 200 and r.json['operation']['state'] == 'succeeded', r

    def change(self, ident, verb, body=None):
        r = self.post(f'/v1/sandboxes/{ident}/{verb}?wait=120', body)
        assert r.status == 200 and r.json['operation']['state'] == 'succeeded', r
        return r.json

    def state(self, ident):
        r = self.get(f'/v1/sandboxes/{ident}')
        return r.json['state'] if r.status == 200 else None

    def settled(self, ident, *states, timeout=90):
        return until(lambda: self.state(ident) in states and self.state(ident), timeout, f'{states} of {ident}')

    # ---- in the sandbox

    def prepare(self, ident, cmd, args=(), **kw):
        r = self.post(f'/v1/sandboxes/{ident}/commands', {'cmd': cmd, 'args': list(args), 'user': 'root', **kw})
        assert r.status == 201, (r, self.get("/v1/templates"))
        return r.json

    def attach(self, session, offset=0):
        return Attach(self, session['attach_url'], offset)

    def sh(self, ident, script):
        """Output of a shell script; it must end with 0."""
        a = self.attach(self.prepare(ident, '/bin/sh', ['-c', script]))
        out, code = a.all()
        a.close()
        assert code == 0, (code, out)
        return out.decode()

    def background(self, ident, script):
        return self.prepare(ident, '/bin/sh', ['-c', script], start=True)

    # ---- what is on the host

    def left(self):
        """What there is of sandboxes: placements, disks, images."""
        return {'run': os.listdir(os.path.join(self.run, 'sandboxes')), 'disks': os.listdir(os.path.join(self.data, 'sandboxes')),
                'images': os.listdir(os.path.join(self.data, 'checkpoints'))}

    def settled_counts(self):
        """What belongs to cspace-rootd once its pool is full."""
        until(lambda: len(self.waiting()) == POOL, what='the pool')
        return Belongings(self).counts()

    def waiting(self):
        """Pids of the launchers that will be wardens: those that have entered namespaces of both kinds."""
        found = []
        for pid in Belongings(self).processes():
            with contextlib.suppress(OSError), open(f'/proc/{pid}/comm') as f:
                if f.read() == 'cspace-rootd\n' and all(os.readlink(f'/proc/{pid}/ns/{x}') != os.readlink(f'/proc/self/ns/{x}') for x in ('mnt', 'net')):
                    found.append(pid)
        return found

    def nothing_more_than(self, before, what):
        try:
            until(lambda: Belongings(self).counts() == before, what='the same as before')
        except AssertionError:
            raise AssertionError(f'{what}: there is {Belongings(self).counts()}, was {before}') from None

    def pids(self, ident):
        """(warden, vm)"""
        text = open(os.path.join(self.run, 'sandboxes', ident, 'placement')).read()
        record = dict(line.split('=', 1) for line in text.splitlines())
        return int(record['warden_pid']), int(record['vm_pid'])


STARTED, STDOUT, STDERR, EXIT, ERROR, GAP = 0x10, 0x11, 0x12, 0x16, 0x17, 0x15


class Attach:
    def __init__(self, host, url, offset=0):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(os.path.join(host.run, 'api.sock'))
        url += ('&' if '?' in url else '?') + f'offset={offset}'
        self.sock.sendall(f'GET {url} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: cspace-attach\r\n\r\n'.encode())
        self.file = self.sock.makefile('rb')
        self.status = int(self.file.readline().split()[1])
        while self.file.readline().strip():
            pass
        self.error = None

    def frame(self):
        head = self.file.read(5)
        if len(head) < 5:
            return None
        kind, n = struct.unpack('>BI', head)
        return kind, self.file.read(n)

    def all(self):
        """(output, exit code); the code is None when the stream was lost."""
        out = b''
        while (f := self.frame()):
            if f[0] in (STDOUT, STDERR):
                out += f[1][8:]
            elif f[0] == EXIT:
                return out, json.loads(f[1]).get('exitCode')
            elif f[0] == ERROR:
                self.error = f[1]
        return out, None

    def close(self):
        self.file.close()
        self.sock.close()


@pytest.fixture(scope='session')
def base(btrfs, libexec):
    """Data folder with the template and its variant, made once."""
    try:
        template = assets.make_template(CACHE, os.path.join(BUILD, 'src', 'agent', 'cspace-agent'))
    except assets.Unavailable as e:
        pytest.skip(str(e))
    data = os.path.join(btrfs, 'base')
    h = Host(libexec, data)
    try:
        h.start()
        h.add_template(template)
        h.delete(h.create())
    finally:
        h.close()
    return data


@pytest.fixture
def host(base, libexec, btrfs):
    """A host of its own, with the template of `base` (reflinked)."""
    data = os.path.join(btrfs, 'h' + os.urandom(4).hex())
    subprocess.run(['cp', '-a', '--reflink=always', base, data], check=True)
    h = Host(libexec, data)
    h.start()
    yield h
    h.close()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope='module')
def internet():
    import internet as module
    for tool in ('ip', 'dnsmasq', 'openssl', 'nsenter'):
        if not shutil.which(tool):
            pytest.skip(f'{tool} is not installed')
    n = module.Internet(tempfile.mkdtemp(prefix='inet-'))
    yield n
    n.close()
