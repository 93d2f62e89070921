# SPDX-License-Identifier: Apache-2.0
"""At boundaries of each operation (src/lib/base/fault.h), with real VMs: what of the data folder is on its disk is opened by fresh
daemons, as after a power cut, and then cspaced is killed where it stands. What was acknowledged holds, nothing is half made, nothing is left
over.

The data folder is on a filesystem in a file, and that file is what is copied: what was written and not synced is in the memory of the
filesystem, not in it. (It is XFS because that takes a second one with the same id beside the first.)"""
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import Host, until
from operations import OPERATIONS, check, clear, settled

# At so many boundaries of each operation; test_steps.py, without power cuts, looks at more. More takes ten minutes and more.
LOOKS = int(os.environ.get('CSPACE_POWER_LOOKS', '1'))


def children(pid):
    out = subprocess.run(['ps', '-o', 'pid=,comm=', '--ppid', str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in out.splitlines() if line.split()[1] == 'cspace-rootd']


class Disk:
    """A filesystem in a file which is on one with reflinks, so that a copy of the file is one of a moment."""

    def __init__(self, btrfs):
        self.top = os.path.join(btrfs, 'p' + os.urandom(4).hex())
        self.image, self.mount = os.path.join(self.top, 'image'), os.path.join(self.top, 'mount')
        os.makedirs(self.mount)
        with open(self.image, 'wb') as f:
            f.truncate(4 << 30)
        subprocess.run(['mkfs.xfs', '-q', '-m', 'reflink=1', self.image], check=True)
        subprocess.run(['mount', '-o', 'loop,noatime', self.image, self.mount], check=True)

    @contextlib.contextmanager
    def moment(self):
        """Where that is mounted which the disk has now."""
        image, mount = self.image + '-copy', self.mount + '-copy'
        subprocess.run(['cp', '--reflink=always', self.image, image], check=True)
        try:
            yield lambda: self.mounted(image, mount)
        finally:
            if os.path.isdir(mount):
                subprocess.run(['umount', '-l', mount], check=True)
                os.rmdir(mount)
            os.unlink(image)

    @staticmethod
    def mounted(image, mount):
        os.mkdir(mount)
        subprocess.run(['mount', '-o', 'loop,noatime,nouuid', image, mount], check=True)
        return mount

    def close(self):
        subprocess.run(['umount', '-l', self.mount], check=True)
        shutil.rmtree(self.top)


@pytest.fixture
def host(base, libexec, btrfs):
    if not shutil.which('mkfs.xfs') or subprocess.run(['grep', '-qw', 'xfs', '/proc/filesystems']).returncode and \
            subprocess.run(['modprobe', 'xfs'], stderr=subprocess.DEVNULL).returncode:
        pytest.skip('needs XFS')
    disk = Disk(btrfs)
    data = os.path.join(disk.mount, 'data')
    subprocess.run(['cp', '-a', base, data], check=True)
    subprocess.run(['sync', '-f', data], check=True)
    h = Host(libexec, data)
    h.disk = disk
    try:
        h.start()
        yield h
    finally:
        try:
            h.kill_cspaced()  # it may be stopped
            h.close()
        finally:
            disk.close()


def test_what_is_not_synced_is_lost(host):
    """Else none of this would say anything."""
    for name in ('synced', 'not'):
        with open(os.path.join(host.data, name), 'w') as f:
            f.write('x' * 100000)
            if name == 'synced':
                f.flush()
                os.fsync(f.fileno())
    with host.disk.moment() as mount:
        at = os.path.join(mount(), 'data')
        assert os.path.getsize(os.path.join(at, 'synced')) == 100000
        assert not os.path.exists(os.path.join(at, 'not')) or os.path.getsize(os.path.join(at, 'not')) == 0


def power_cut(h, op, s, acknowledged, what):
    """What the disk has at this moment, opened by fresh daemons."""
    held = [h.rootd.pid, *children(h.rootd.pid)]
    for pid in held:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    with h.disk.moment() as mount:
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        fresh = Host(h.libexec, os.path.join(mount(), 'data'))
        try:
            fresh.start()
            check(fresh, op, s, acknowledged, what + ', power cut', True)
        finally:
            fresh.close()


def run(h, op, at):
    """To that boundary, or to the end."""
    s = op.prepare(h)
    h.fault.arm('cspaced', at=at or 0, kind=op.kind, sig=signal.SIGSTOP)
    answer = []

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer.append(op.ask(h, s))
    thread = threading.Thread(target=ask)
    thread.start()

    def over():
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            return bool(answer) and h.get('/v1/operations?state=running', timeout=1).json['operations'] == []
    until(lambda: h.fault.met or over(), 120, f'{op.kind}, boundary {at}')
    h.fault.disarm()
    return s, answer, thread


@pytest.mark.parametrize('name', OPERATIONS)
def test_power_cut_and_kill(host, name):
    h, op = host, OPERATIONS[name]
    run(h, op, None)[2].join()
    settled(h, name)
    n = len(h.fault.points())
    clear(h)
    before, looked = h.settled_counts(), 0
    for at in sorted({1 + i * (n - 1) // max(LOOKS - 1, 1) for i in range(LOOKS)} if LOOKS > 1 else {(n + 1) // 2}):
        what = f'{name}, boundary {at} of {n}'
        s, answer, thread = run(h, op, at)
        if h.fault.met:
            known = answer[0].json['operation']['id'] if answer and answer[0].status in (200, 201, 202) else None
            power_cut(h, op, s, known, what)
            looked += 1
        h.kill_cspaced()
        thread.join()
        known = answer[0].json['operation']['id'] if answer and answer[0].status in (200, 201, 202) else None
        h.start_cspaced()
        check(h, op, s, known, what + ', kill', False)
        clear(h)
        h.nothing_more_than(before, what)
    assert looked >= max(LOOKS - 1, 1)
