# SPDX-License-Identifier: Apache-2.0
"""cspace(1) against a running installation, with real microVMs.

CSPACE_CLI      the program (/usr/local/bin/cspace)
CSPACE_API_URL  where cspaced listens, as for cspace itself (the local socket)
CSPACE_TEMPLATE the template to use (base)
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'lib'))
from terminal import Terminal  # noqa: E402

CLI = os.environ.get('CSPACE_CLI', '/usr/local/bin/cspace')
TEMPLATE = os.environ.get('CSPACE_TEMPLATE', 'base')


class Cli:
    def __init__(self, env):
        self.env = env

    def __call__(self, *args, timeout=300, **kwargs):
        if 'input' not in kwargs:
            kwargs.setdefault('stdin', subprocess.DEVNULL)
        if 'stdout' not in kwargs:
            kwargs['capture_output'] = True
        return subprocess.run([CLI, *args], env=self.env, timeout=timeout, check=False, **kwargs)

    def start(self, *args, **kwargs):
        return subprocess.Popen([CLI, *args], env=self.env, **kwargs)

    def out(self, *args, **kwargs):
        r = self(*args, **kwargs)
        assert r.returncode == 0, r.stderr
        return r.stdout.decode()

    def ids(self):
        return set(self.out('ls', '-q').split())

    def create(self, *args):
        return self.out('create', '-q', '--ttl', '1h', '-T', TEMPLATE, *args).strip()


@pytest.fixture(scope='session')
def cli():
    if not shutil.which(CLI):
        pytest.skip(f'{CLI} is not installed (CSPACE_CLI names another)')
    c = Cli(dict(os.environ))
    version = c('version', '--json')
    if version.returncode != 0 or not json.loads(version.stdout)['server']:
        pytest.skip('cspaced does not run (CSPACE_API_URL names another)')
    names = [n for t in json.loads(c.out('template', 'ls', '--json')) for n in t['names']]
    if not any(n == TEMPLATE or n.split(':')[0] == TEMPLATE for n in names):
        pytest.skip(f'there is no template "{TEMPLATE}" (CSPACE_TEMPLATE names another)')
    return c


@pytest.fixture(scope='module')
def sandbox(cli):
    id_ = cli.create()
    yield id_
    cli('rm', '-f', id_)


class Relay:
    """A socket in front of cspaced whose connections can be cut."""

    def __init__(self, path, target):
        self.target, self.pairs, self.refuse = target, [], False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.url = 'unix:' + path
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            if self.refuse:
                a.close()
                continue
            b = socket.socket(socket.AF_UNIX)
            b.connect(self.target)
            self.pairs.append((a, b))
            for x, y in [(a, b), (b, a)]:
                threading.Thread(target=self.pump, args=(x, y), daemon=True).start()

    @staticmethod
    def pump(x, y):
        try:
            while data := x.recv(65536):
                y.sendall(data)
            y.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        """Breaks off what is open; returns how many connections that were."""
        n = 0
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                    n += 1
                except OSError:
                    pass
                s.close()
        self.pairs = []
        return n // 2

    def close(self):
        self.listener.close()
        self.cut()


@pytest.fixture
def relay(cli, tmp_path):
    url = cli.env.get('CSPACE_API_URL', 'unix:/run/cspace/api.sock')
    if not url.startswith('unix:'):
        pytest.skip('needs the local socket')
    r = Relay(str(tmp_path / 'relay.sock'), url[5:])
    yield r
    r.close()


@pytest.fixture
def relayed(cli, relay):
    return Cli({**cli.env, 'CSPACE_API_URL': relay.url})


@pytest.fixture
def terminal(cli):
    made = []

    def make(*args, using=cli, **kwargs):
        made.append(Terminal(using, *args, **kwargs))
        return made[-1]
    yield make
    for t in made:
        t.close()
