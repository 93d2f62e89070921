# SPDX-License-Identifier: Apache-2.0
"""What tests need of the host."""
import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time


def until(condition, timeout=30, what='condition'):
    """The first true value of it."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f'{what} did not come true in {timeout} s')
        time.sleep(0.01)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class UnixHTTP(http.client.HTTPConnection):
    def __init__(self, path, timeout=60):
        super().__init__('localhost', timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@contextlib.contextmanager
def loop_btrfs(size):
    """Where a btrfs of its own is mounted, as `cspace up` makes one; None where that cannot be."""
    top = tempfile.mkdtemp(prefix='btrfs-', dir=os.environ.get('CSPACE_TEST_DIR'))
    image, mount = os.path.join(top, 'image'), os.path.join(top, 'data')
    os.mkdir(mount)
    with open(image, 'wb') as f:
        f.truncate(size)
    subprocess.run(['mkfs.btrfs', '-q', image], check=True)
    mounted = subprocess.run(['mount', '-o', 'loop,noatime', image, mount]).returncode == 0
    try:
        yield mount if mounted else None
    finally:
        if mounted:
            subprocess.run(['umount', '-l', mount], check=True)
        shutil.rmtree(top)
