# SPDX-License-Identifier: Apache-2.0
"""A real cspaced on folders of its own, with a stand-in for what is behind it (standin.py)."""
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', '..', 'lib'))
from fault import Fault  # noqa: E402
from host import UnixHTTP, free_port, until  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build'))
BINARY = os.path.join(BUILD, 'src', 'daemon', 'cspaced')


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json['error']['code']

    def __repr__(self):
        return f'<{self.status} {self.body[:500]!r}>'


class Daemon:
    def __init__(self, top):
        self.top = top
        self.run, self.data = os.path.join(top, 'run'), os.path.join(top, 'data')
        os.mkdir(self.run)
        os.mkdir(self.data)
        self.port = free_port()
        self.proc = self.standin = None
        self.log = open(os.path.join(top, 'log'), 'ab')
        self.own_fault = Fault(os.path.join(top, 'fault'))
        self.clock = {}  # environment of a cspaced whose wall clock set_clock() sets

    # ---- processes

    def start_standin(self):
        self.standin = subprocess.Popen([sys.executable, os.path.join(HERE, 'standin.py'), self.run, self.data],
                                        stdout=self.log, stderr=self.log)
        until(lambda: os.path.exists(os.path.join(self.run, 'rootd.sock')), what='rootd.sock')

    def start(self, conf='', args=(), wait=True, connected=True):
        path = os.path.join(self.top, 'conf')
        with open(path, 'w') as f:
            f.write(conf)
        argv = [BINARY, '--config', path, '--run', self.run, '--data', self.data, '--listen', f'127.0.0.1:{self.port}',
                '--allow-root', '--log-level', 'debug', *args]
        self.proc = subprocess.Popen(argv, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                     env={**os.environ, **self.own_fault.env, **self.clock, 'CSPACE_LOG_FORMAT': 'text'})
        if wait:
            until(self.answers, what='api.sock')
        if wait and connected and self.standin:
            until(lambda: self.get('/v1/host').json['rootd'] == 'connected', what='the connection to rootd')
        return self

    def set_clock(self, seconds):
        """By so many ahead of the real one, from the next start on."""
        path = os.path.join(self.top, 'clock')
        with open(path, 'r+b' if self.clock else 'wb') as f:
            f.write(struct.pack('@l', seconds))
        self.clock = {'CLOCKSHIFT': path, 'LD_PRELOAD': os.path.join(BUILD, 'tests', 'lib', 'clockshift.so')}

    def answers(self):
        assert self.proc.poll() is None, self.text()
        try:
            return self.get('/health').status == 204
        except OSError:
            return False

    def resident(self):
        """MiB."""
        with open(f'/proc/{self.proc.pid}/status') as f:
            return int(next(line for line in f if line.startswith('VmRSS')).split()[1]) // 1024

    def most(self, mb):
        """What it may hold more: with a sanitizer, which keeps freed memory back, there is only a coarse answer."""
        return 400 if 'asan' in os.environ.get('CSPACE_BUILD', '') else mb

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            assert self.proc.wait(15) == 0, self.text()
        self.proc = None

    def text(self):
        with open(os.path.join(self.top, 'log'), errors='replace') as f:
            return f.read()

    # ---- requests

    def unix(self, timeout=60):
        return UnixHTTP(os.path.join(self.run, 'api.sock'), timeout)

    def tcp(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)

    def request(self, method, path, body=None, headers=None, conn=None, timeout=60):
        own = conn is None
        conn = conn or self.unix(timeout)
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault('Content-Type', 'application/json')
        try:
            conn.request(method, path, body, headers)
            r = conn.getresponse()
            return Reply(r.status, dict(r.getheaders()), r.read())
        finally:
            if own:
                conn.close()

    def get(self, path, **kw):
        return self.request('GET', path, **kw)

    def post(self, path, body=None, **kw):
        return self.request('POST', path, body, **kw)

    def delete(self, path, **kw):
        return self.request('DELETE', path, **kw)

    # ---- steering of the stand-in

    def steer(self, **m):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(os.path.join(self.run, 'standin.sock'))
            s.sendall(json.dumps(m).encode() + b'\n')
            return json.loads(s.makefile('rb').readline())

    def fault(self, name, **f):
        self.steer(set={name: f})

    def hold(self, name):
        """The next such request is answered when release() says so: what a test does meanwhile is done in its midst."""
        self.fault(name, hold=True, times=1)

    def held(self, name):
        until(lambda: self.steer(held=name), what=name)

    def release(self):
        self.steer(release=True)

    def placed(self):
        return self.steer(state=True)['placed']

    # ---- shorthands

    def template(self, name='base', **kw):
        r = self.post('/v1/templates?wait=60', {'name': name, **kw})
        assert r.status == 201, r
        return r.json['operation']['result']['digest']

    def create(self, **kw):
        r = self.post('/v1/sandboxes?wait=60', {'template': 'base', **kw})
        assert r.status == 201, r
        return r.json['sandbox']

    def sandbox(self, ident):
        r = self.get(f'/v1/sandboxes/{ident}')
        return r.json if r.status == 200 else None

    def op(self, ident, wait=60):
        return self.get(f'/v1/operations/{ident}?wait={wait}').json

    def attach(self, ident, process, query='', upgrade='cspace-attach', headers=None, conn=None):
        return Attach(self, ident, process, query, upgrade, headers, conn)


class Attach:
    """A raw attach: frames after an upgrade."""

    def __init__(self, daemon, ident, process, query, upgrade, headers, path):
        self.sock = socket.socket(socket.AF_UNIX if path is None else socket.AF_INET)
        self.sock.settimeout(30)
        self.sock.connect(path or os.path.join(daemon.run, 'api.sock'))
        head = f'GET /v1/sandboxes/{ident}/commands/{process}/attach{query} HTTP/1.1\r\nHost: x\r\n'
        head += f'Connection: Upgrade\r\nUpgrade: {upgrade}\r\n'
        head += ''.join(f'{k}: {v}\r\n' for k, v in (headers or {}).items())
        self.sock.sendall(head.encode() + b'\r\n')
        self.file = self.sock.makefile('rb')
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while (line := self.file.readline().strip()):
            k, _, v = line.decode().partition(':')
            self.headers[k.lower()] = v.strip()
        if self.status != 101:
            self.body = json.loads(self.file.read(int(self.headers['content-length'])))

    def frame(self):
        head = self.file.read(5)
        if not head:
            return None
        assert len(head) == 5, 'half a frame'
        kind, n = struct.unpack('>BI', head)
        data = self.file.read(n)
        assert len(data) == n, 'half a frame'
        return kind, data

    def frames(self):
        out = []
        while (f := self.frame()):
            out.append(f)
        return out

    def send(self, kind, data=b''):
        self.sock.sendall(struct.pack('>BI', kind, len(data)) + data)

    def close(self):
        self.file.close()
        self.sock.close()


@pytest.fixture
def top():
    path = tempfile.mkdtemp(prefix='cspaced-', dir=os.environ.get('CSPACE_TEST_DIR'))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bare(top):
    """Not started."""
    if not os.path.exists(BINARY):
        pytest.skip(f'{BINARY} is not built')
    d = Daemon(top)
    yield d
    try:
        d.stop()
    finally:
        if d.proc and d.proc.poll() is None:
            d.kill()
        if d.standin:
            d.standin.kill()
            d.standin.wait()
        d.log.close()
        if os.environ.get('CSPACE_TEST_LOG'):
            print(d.text() if os.path.exists(os.path.join(top, 'log')) else '')


@pytest.fixture
def daemon(bare):
    bare.start_standin()
    return bare.start()


@pytest.fixture
def ready(daemon):
    """With a template "base"."""
    daemon.template()
    return daemon


class WebSocket(Attach):
    """An attach over WebSocket (RFC 6455), one frame per binary message."""

    def __init__(self, daemon, ident, process, query='', path=None, version='13'):
        super().__init__(daemon, ident, process, query, 'websocket',
                         {'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==', 'Sec-WebSocket-Version': version}, path)
        self.closed = None

    def message(self):
        """(opcode, data); None at the end of the stream."""
        head = self.file.read(2)
        if len(head) < 2:
            return None
        n = head[1] & 0x7f
        if n >= 126:
            n = int.from_bytes(self.file.read(2 if n == 126 else 8), 'big')
        return head[0] & 0x0f, self.file.read(n)

    def frame(self):
        while (m := self.message()):
            if m[0] == 2:
                return m[1][0], m[1][1:]
            if m[0] == 8:
                self.closed = int.from_bytes(m[1][:2], 'big')
                self.raw(8, m[1])
                return None
            assert m[0] in (9, 10)
        return None

    def raw(self, opcode, data):
        n = len(data)
        size = bytes([0x80 | n]) if n < 126 else bytes([0x80 | 126]) + n.to_bytes(2, 'big') if n < 65536 else \
            bytes([0x80 | 127]) + n.to_bytes(8, 'big')
        self.sock.sendall(bytes([0x80 | opcode]) + size + bytes(4) + data)

    def send(self, kind, data=b''):
        self.raw(2, bytes([kind]) + data)
