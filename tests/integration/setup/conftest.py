# SPDX-License-Identifier: Apache-2.0
"""`cspace up`, `down` and `doctor` with the real services, in folders of their own."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..', '..'))
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build', 'test-gcc'))
PROGRAMS = {'cspaced': 'daemon', 'cspace-rootd': 'rootd', 'cspace-warden': 'warden', 'ropen.so': 'warden', 'cspace-thaw': 'thaw',
            'cspace-builder': 'builder', 'cspace-history': 'history', 'cspace-token': 'token', 'cspace-agent': 'agent'}


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Host:
    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.libexec = self.path('libexec')
        os.mkdir(self.libexec)
        for program in PROGRAMS:
            self.install(program)
        self.configure()

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def install(self, program):
        """As an installation does: a new file takes the old one's place."""
        target = os.path.join(self.libexec, program)
        shutil.copy(os.path.join(BUILD, 'src', PROGRAMS[program], program), target + '.new')
        os.rename(target + '.new', target)

    def configure(self, extra='', storage='image_size = 4G', data=None):
        with open(self.path('c.conf'), 'w', encoding='ascii') as f:
            f.write(f'[paths]\ndata = {data or self.path("data")}\nrun = {self.path("run")}\nlog = {self.path("log")}\n'
                    f'libexec = {self.libexec}\n[api]\nlisten = 127.0.0.1:{self.port}\n[engine]\nengine = tcg\n'
                    f'[pool]\nnamespaces = 2\n[storage]\n{storage}\n{extra}')

    def start(self, *args, **kwargs):
        return subprocess.Popen([os.path.join(BUILD, 'src', 'cli', 'cspace'), '--config', self.path('c.conf'), *args], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **kwargs)

    def cspace(self, *args, **kwargs):
        p = self.start(*args, **kwargs)
        p.out, p.err = p.communicate(timeout=120)
        return p

    def up(self, *args):
        p = self.cspace('up', *args)
        assert p.returncode == 0, p.err
        return p.out

    def down(self, *args):
        p = self.cspace('down', *args)
        assert p.returncode == 0, p.err
        return p.out

    def api(self, *args):
        return self.cspace('--api', f'unix:{self.path("run", "api.sock")}', *args)

    def healthy(self):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            try:
                s.connect(self.path('run', 'api.sock'))
                s.sendall(b'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
                return s.recv(64).startswith(b'HTTP/1.1 204')
            except OSError:
                return False

    def doctor(self):
        p = self.cspace('--json', 'doctor')
        return p.returncode, {c['name']: c for c in json.loads(p.out)['checks']}

    def pid(self, service):
        with open(self.path('run', 'services', service + '.pid'), encoding='ascii') as f:
            return int(f.read().split()[0])

    def processes(self):
        """Everything that was started from our folder or works in it."""
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline', 'rb') as f:
                    line = f.read()
                if self.folder.encode() in line or os.readlink(f'/proc/{pid}/cwd').startswith(self.folder):
                    found.append((int(pid), line))
            except OSError:
                continue
        return found

    def mounts(self):
        with open('/proc/self/mountinfo', encoding='utf-8') as f:
            return [line.split()[4] for line in f if self.folder in line]

    def no_loops(self):
        """The kernel lets go of a loop device a moment after the unmount."""
        end = time.monotonic() + 10
        while self.loops() and time.monotonic() < end:
            time.sleep(0.02)
        return self.loops() == []

    def loops(self):
        return [line for line in subprocess.run(['losetup', '-a'], check=True, capture_output=True, text=True).stdout.splitlines()
                if self.folder in line]


@pytest.fixture
def host():
    if os.geteuid() != 0:
        pytest.skip('needs root')
    missing = [p for p, d in {**PROGRAMS, 'cspace': 'cli'}.items() if not os.path.exists(os.path.join(BUILD, 'src', d, p))]
    if missing:
        pytest.skip(f'not built: {", ".join(missing)}')
    folder = tempfile.mkdtemp(prefix='cspace-up-', dir='/var/tmp')
    os.chmod(folder, 0o755)
    h = Host(folder)
    yield h
    h.configure()
    h.cspace('down')
    for pid, _ in h.processes():
        os.kill(pid, signal.SIGKILL)
    for mount in h.mounts():
        subprocess.run(['umount', '-l', mount], check=False)
    shutil.rmtree(folder, ignore_errors=True)
