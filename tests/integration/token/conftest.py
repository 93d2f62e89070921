# SPDX-License-Identifier: Apache-2.0
"""cspace-token in a network namespace of the test's own, with a resolver and a token endpoint."""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build'))
TOKEN = os.path.join(BUILD, 'src', 'token', 'cspace-token')
UID = 61803
PUBLIC, OTHER = '93.184.216.40', '93.184.216.41'
NAMES = {'auth.test': PUBLIC, 'other.test': OTHER, 'loop.test': '127.0.0.1', 'meta.test': '169.254.169.254', 'private.test': '10.1.2.3'}
libc = ctypes.CDLL(None, use_errno=True)


def until(condition, what, timeout=15):
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f'{what} did not come true'
        time.sleep(0.01)


class World:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix='tok-')
        os.chmod(self.dir, 0o755)
        self.name = f'tok{os.getpid()}'
        self.procs = []
        self.own = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        subprocess.run(['ip', 'netns', 'add', self.name], check=True)
        self.ns = os.open(f'/run/netns/{self.name}', os.O_RDONLY)
        try:
            self.ip('link', 'set', 'lo', 'up')
            for a in (PUBLIC, OTHER, '10.1.2.3', '169.254.169.254'):
                self.ip('addr', 'add', f'{a}/32', 'dev', 'lo')
            self.certificates()
            with open(self.path('hosts'), 'w') as f:
                f.writelines(f'{a} {n}\n' for n, a in NAMES.items())
            self.spawn('dnsmasq', '-k', '-p', '53', '--listen-address=127.0.0.1', '--bind-interfaces', '--no-resolv', '--no-hosts', '-H',
                       self.path('hosts'), '-u', 'root', '-C', '/dev/null', f'--pid-file={self.path("dns.pid")}')
            self.mode('ok')
            for ip, cert, port in ((PUBLIC, 'good', 443), (PUBLIC, 'self', 8443), (PUBLIC, 'expired', 8444), (OTHER, 'good', 443),
                                   ('127.0.0.1', 'good', 443), ('10.1.2.3', 'good', 443), ('169.254.169.254', 'good', 443)):
                self.spawn(sys.executable, os.path.join(HERE, 'authority.py'), ip, str(port), self.path(f'{cert}.crt'), self.path('key.pem'),
                           self.dir)
                until(lambda a=(ip, port): self.answers(*a), f'{ip}:{port}')
            until(lambda: self.answers('127.0.0.1', 53), 'dnsmasq')
        except BaseException:
            self.close()
            raise

    def path(self, name):
        return os.path.join(self.dir, name)

    def ip(self, *argv):
        subprocess.run(['ip', '-n', self.name, *argv], check=True)

    @contextlib.contextmanager
    def inside(self):
        assert libc.setns(self.ns, 0x40000000) == 0
        try:
            yield
        finally:
            assert libc.setns(self.own, 0x40000000) == 0

    def spawn(self, *argv, **kw):
        with self.inside():
            p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kw)
        self.procs.append(p)
        return p

    def answers(self, ip, port):
        with self.inside(), socket.socket() as s:
            return s.connect_ex((ip, port)) == 0

    def certificates(self):
        def run(*argv):
            subprocess.run(argv, check=True, capture_output=True)
        p = self.path
        run('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', p('ca.key'), '-out',
            p('ca.crt'), '-days', '30', '-subj', '/CN=token CA')
        run('openssl', 'ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out', p('key.pem'))
        run('openssl', 'req', '-new', '-key', p('key.pem'), '-out', p('csr.pem'), '-subj', '/CN=server')
        with open(p('ext'), 'w') as f:
            f.write('subjectAltName=' + ','.join(f'DNS:{n}' for n in NAMES if n != 'other.test') + f',IP:{PUBLIC}\n')
        sign = ('openssl', 'x509', '-req', '-in', p('csr.pem'), '-CA', p('ca.crt'), '-CAkey', p('ca.key'), '-CAcreateserial', '-extfile', p('ext'))
        run(*sign, '-days', '30', '-out', p('good.crt'))
        run(*sign, '-days', '-1', '-out', p('expired.crt'))
        run('openssl', 'req', '-x509', '-key', p('key.pem'), '-out', p('self.crt'), '-days', '30', '-subj', '/CN=auth.test', '-addext',
            'subjectAltName=DNS:auth.test')

    def mode(self, text):
        with open(self.path('mode'), 'w') as f:
            f.write(text)
        with open(self.path('asked'), 'w'):
            pass

    def asked(self):
        with open(self.path('asked')) as f:
            return [json.loads(line) for line in f]

    def close(self):
        for p in self.procs:
            p.send_signal(signal.SIGKILL)
            p.wait()
        os.close(self.ns)
        os.close(self.own)
        subprocess.run(['ip', 'netns', 'del', self.name], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture(scope='session')
def world():
    if os.geteuid() != 0:
        pytest.skip('needs root')
    for tool in ('ip', 'dnsmasq', 'openssl'):
        if not shutil.which(tool):
            pytest.skip(f'{tool} is not installed')
    w = World()
    yield w
    w.close()
