# SPDX-License-Identifier: Apache-2.0
"""Runs the agent as an ordinary program on loopback."""
import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build'))
AGENT = os.path.join(BUILD, 'src', 'agent', 'cspace-agent')
LINKHOST = os.path.join(BUILD, 'tests', 'integration', 'agent', 'linkhost')
TOKEN = 'secret-token'
CONNECT = 'application/connect+json'


def eventually(check, seconds=10):
    """Waits until check() is true; its last value."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.01)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def cgroup_dir():
    """A cgroup2 folder in which folders can be made, or None."""
    for line in open('/proc/mounts', encoding='utf-8'):
        f = line.split()
        if f[2] == 'cgroup2' and os.access(f[1], os.W_OK):
            with contextlib.suppress(OSError):
                probe = os.path.join(f[1], f'cspace-probe-{os.getpid()}')
                os.mkdir(probe)
                os.rmdir(probe)
                return f[1]
    return None


class Answer:
    def __init__(self, r):
        self.status, self.headers, self.body = r.status, r.headers, r.read()

    @property
    def json(self):
        return json.loads(self.body)


class Stream:
    """A server stream of the Connect protocol."""

    def __init__(self, agent, path, message, headers=()):
        body = json.dumps(message).encode()
        self.conn = agent.connect()
        self.conn.request('POST', path, b'\0' + struct.pack('>I', len(body)) + body,
                          {'Content-Type': CONNECT, 'Connect-Protocol-Version': '1', 'X-Access-Token': TOKEN,
                           **dict(headers)})
        self.r = self.conn.getresponse()
        assert self.r.status == 200
        assert self.r.headers['Content-Type'] == CONNECT
        self.error = None
        self.ended = False

    def __iter__(self):
        return self

    def __next__(self):
        head = self.r.read(5)
        if len(head) < 5:
            raise EOFError('the stream was cut')
        flag, n = head[0], struct.unpack('>I', head[1:])[0]
        message = json.loads(self.r.read(n))
        if flag == 2:
            self.ended = True
            self.error = message.get('error')
            raise StopIteration
        return message

    def close(self):
        self.conn.close()


class Result:
    def __init__(self, stream):
        out = {'stdout': bytearray(), 'stderr': bytearray(), 'pty': bytearray()}
        self.pid = self.end = None
        self.keepalives = 0
        for m in stream:
            e = m['event']
            if 'start' in e:
                self.pid = e['start']['pid']
            elif 'data' in e:
                for k, v in e['data'].items():
                    out[k] += base64.b64decode(v)
            elif 'keepalive' in e:
                self.keepalives += 1
            else:
                self.end = e['end']
        self.error = stream.error
        self.stdout, self.stderr, self.pty = (bytes(out[k]) for k in ('stdout', 'stderr', 'pty'))

    @property
    def code(self):
        return self.end.get('exitCode', 0)


class Agent:
    def __init__(self, *args, ready=True, token=True, trust=True):
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix='cspace-agent-')
        self.control = os.path.join(self.dir, 'control.sock')
        argv = [AGENT, '--listen', f'127.0.0.1:{self.port}', '--control-socket', self.control, '--log-level', 'debug',
                *(['--trust-listen'] if trust else []), *(['--token', TOKEN] if token else []),
                *([] if '--user' in args else ['--user', 'root']), *args]
        cg = cgroup_dir()
        if cg and '--cgroup' not in args:
            argv += ['--cgroup', cg]
        self.log = open(os.path.join(self.dir, 'log'), 'wb')
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=self.log)
        assert eventually(lambda: os.path.exists(self.control) or self.proc.poll() is not None)
        assert self.proc.poll() is None, open(self.log.name).read()

    def connect(self, timeout=30):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)

    def http(self, method, path, body=None, headers=(), token=TOKEN):
        c = self.connect()
        h = dict(headers)
        if token:
            h['X-Access-Token'] = token
        c.request(method, path, body, h)
        a = Answer(c.getresponse())
        c.close()
        return a

    def control_call(self, method, path, body=None):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(30)
        s.connect(self.control)
        c = http.client.HTTPConnection('control')
        c.sock = s
        c.request(method, path, json.dumps(body) if body is not None else None)
        a = Answer(c.getresponse())
        c.close()
        return a

    def rpc(self, method, message, headers=()):
        return self.http('POST', f'/{method}', json.dumps(message), {'Content-Type': 'application/json', **dict(headers)})

    def fs(self, method, headers=(), **message):
        return self.rpc(f'filesystem.Filesystem/{method}', message, headers)

    def process(self, method, message):
        return self.rpc(f'process.Process/{method}', message)

    def start(self, message, headers=()):
        return Stream(self, '/process.Process/Start', message, headers)

    def sh(self, script, headers=(), **more):
        return Result(self.start({'process': {'cmd': '/bin/sh', 'args': ['-c', script]}, 'stdin': False, **more}, headers))

    def native(self, method, path, body=None):
        return self.http(method, '/cspace/v1' + path, json.dumps(body) if isinstance(body, dict) else body)

    def rss_kb(self):
        with open(f'/proc/{self.proc.pid}/status', encoding='utf-8') as f:
            return int(next(line for line in f if line.startswith('VmRSS')).split()[1])

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        try:
            code = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            code = 'killed'
        self.log.close()
        with open(self.log.name, encoding='utf-8', errors='replace') as f:
            log = f.read()
        shutil.rmtree(self.dir, ignore_errors=True)
        assert code == 0, log
        assert 'ERROR: ' not in log and 'runtime error' not in log, log


@pytest.fixture(scope='module')
def agent():
    a = Agent()
    yield a
    a.stop()


@pytest.fixture
def own_agent():
    """Makes agents of the test's own: own_agent('--wait-init')."""
    made = []

    def make(*args, **kw):
        made.append(Agent(*args, **kw))
        return made[-1]
    yield make
    for a in made:
        a.stop()


def needs_root():
    return pytest.mark.skipif(os.geteuid() != 0, reason='needs root')
