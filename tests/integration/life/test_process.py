# SPDX-License-Identifier: Apache-2.0
"""VMs that are started from the image of a process."""
import contextlib
import glob
import os
import shutil
import signal
import sqlite3
import struct
import subprocess

import pytest

from conftest import Host, until
from fault import state
from test_history import checkpoint, rollback
from test_life import counting, counts, goes_on

MAGIC = b'CSCIMG05'


def thawed(h, s):
    """Whether the VM of a sandbox is what cspace-thaw became."""
    return os.path.basename(os.readlink(f'/proc/{h.pids(s)[1]}/exe')) == 'cspace-thaw'


def heap(pid):
    """Where the kernel has the beginning of a process's heap (proc(5), stat)."""
    return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[44])


def shares_base(h, s):
    """Whether process and memory are those of its template's variant, with the differences copied over them."""
    mapped = open(f'/proc/{h.pids(s)[1]}/maps').read()
    return '/frozen/process' in mapped and '/frozen/mem' in mapped


def images(h):
    return glob.glob(os.path.join(h.data, 'checkpoints', '*', 'process'))


def test_a_variant_has_a_process(host):
    h = host
    found = glob.glob(os.path.join(h.data, 'templates', '*', 'variants', '*', 'frozen', 'process'))
    assert len(found) == 1
    with open(found[0], 'rb') as f:
        assert f.read(8) == MAGIC
    st = os.stat(found[0])
    assert (st.st_uid, st.st_mode & 0o777) == (0, 0o400)
    a, b = h.create(), h.create()
    assert thawed(h, a) and thawed(h, b)
    told = [h.sh(s, 'hostname; cat /etc/machine-id /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1').split('\n')
            for s in (a, b)]
    assert all(x != y for x, y in zip(told[0][:4], told[1][:4])), told


@pytest.mark.parametrize('step', [1, 4, 6])
def test_killed_while_freezing(base, libexec, btrfs, step):
    """The variant is there, with its process, and nothing half-made."""
    data = os.path.join(btrfs, f'freeze{step}')
    subprocess.run(['cp', '-a', '--reflink=always', base, data], check=True)
    variant, = glob.glob(os.path.join(data, 'templates', '*', 'variants', '*'))
    shutil.rmtree(variant)
    with contextlib.closing(sqlite3.connect(os.path.join(data, 'state.db'))) as db, db:
        db.execute('DELETE FROM variants')
    h = Host(libexec, data)
    try:
        with open(os.path.join(h.top, 'conf'), 'w') as f:
            f.write('')
        h.fault.arm('rootd', f'freeze:{step}')
        h.start_rootd().start_cspaced()
        r = h.post('/v1/sandboxes', {'template': 'base', 'memory_mb': 128})
        until(lambda: h.rootd.poll() is not None, 90, 'the end of cspace-rootd')
        h.start_rootd()
        s = r.json['sandbox']['id']
        assert h.settled(s, 'running', 'failed') == 'running'
        assert h.sh(s, 'echo $((6*7))').strip() == '42'
        assert os.path.exists(os.path.join(variant, 'frozen', 'process')) and thawed(h, s)
        assert not glob.glob(os.path.join(variant, '.*'))
    finally:
        h.close()
        shutil.rmtree(data, ignore_errors=True)


def test_killed_while_the_vm_is_asked(host):
    """A thread of the VM is in the middle of what it was made to do when cspace-rootd is killed: it is put back all the same."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.fault.arm('rootd', 'stop:1', sig=signal.SIGSTOP)
    op = h.post(f'/v1/sandboxes/{s}/fork', {'n': 1}).json['operation']['id']
    job = until(lambda: h.fault.met, 60, 'the job that asks')
    h.kill_rootd()
    os.kill(job, signal.SIGCONT)
    until(lambda: state(job) in 'XZ', what='the end of the job')
    h.start_rootd()
    ended = until(lambda: (o := h.get(f'/v1/operations/{op}?wait=60').json)['state'] != 'running' and o, 120, 'the end of the fork')
    assert ended['state'] == 'succeeded', ended
    for x in (s, *ended['result']['sandboxes']):
        goes_on(h, x, before)


def test_it_has_not_more_rights_than_qemu(host):
    """What QEMU's own sandbox would have denied, and what a VM is confined to."""
    h = host
    s = h.create()
    status = dict(line.split(':\t', 1) for line in open(f'/proc/{h.pids(s)[1]}/status') if ':\t' in line)
    assert status['NoNewPrivs'].strip() == '1' and status['Seccomp'].strip() == '2'
    assert int(status['Seccomp_filters']) == 2
    assert {status[k].strip() for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')} == {'0' * 16}
    assert status['Uid'].split()[0] != '0'
    writable = [line for line in open(f'/proc/{h.pids(s)[1]}/maps') if 's' in line.split()[1]]
    assert not writable, writable


def test_the_heap_is_where_it_was(host):
    """brk(2) goes on with QEMU's, not with that of cspace-thaw, which would be in no image."""
    h = host
    a, b = h.create(), h.create()
    assert thawed(h, a) and heap(h.pids(a)[1]) == heap(h.pids(b)[1])
    before = heap(h.pids(a)[1])
    assert not 0x100000000000 <= before < 0x100080000000
    mapped = [tuple(int(x, 16) for x in line.split()[0].split('-')) for line in open(f'/proc/{h.pids(a)[1]}/maps')]
    assert any(start <= before < end for start, end in mapped)
    h.change(a, 'suspend')
    h.change(a, 'restore')
    assert thawed(h, a) and heap(h.pids(a)[1]) == before


def test_suspended_twice(host):
    """The second image is of a process that was thawed itself, and costs what has changed."""
    h = host
    s = counting(h)
    for _ in range(2):
        before = counts(h, s)
        result = h.change(s, 'suspend')['operation']['result']
        assert result['written_bytes'] <= 1.3 * result['private_bytes'], result
        assert len(images(h)) == 1
        h.change(s, 'restore')
        assert thawed(h, s) and shares_base(h, s)
        goes_on(h, s, before)


def test_without_its_base(host):
    """The files of an image are whole: the variant that its process began with may be gone, or be another."""
    h = host
    s = counting(h)
    h.sh(s, 'echo kept >/dev/shm/file')
    before = counts(h, s)
    h.change(s, 'suspend')
    memory, = glob.glob(os.path.join(h.data, 'templates', '*', 'variants', '*', 'frozen', 'mem'))
    os.utime(memory)
    h.change(s, 'restore')
    assert thawed(h, s) and not shares_base(h, s)
    goes_on(h, s, before)
    assert h.sh(s, 'cat /dev/shm/file').strip() == 'kept'
    before = counts(h, s)
    h.change(s, 'suspend')
    h.change(s, 'restore')
    assert thawed(h, s)
    goes_on(h, s, before)


def test_of_another_host(host):
    """An image that was made for another kernel or CPU is passed over; the devices' state is enough."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.change(s, 'suspend')
    image, = images(h)
    os.chmod(image, 0o600)
    with open(image, 'r+b') as f:
        f.seek(8)
        assert f.read(7) == b'kernel-'
        f.seek(8)
        f.write(b'Kernel-')
    h.change(s, 'restore')
    assert not thawed(h, s)
    goes_on(h, s, before)


def test_of_which_a_part_is_missing(host):
    """It is passed over as well."""
    h = host
    s = counting(h)
    before = counts(h, s)
    h.change(s, 'suspend')
    image, = images(h)
    os.truncate(image, os.path.getsize(image) - 4096)
    h.change(s, 'restore')
    assert not thawed(h, s)
    goes_on(h, s, before)


PAGES = 2 << 20     # PROCIMAGE_HEAD; what of struct procimage_head is where:
MAPS = 5984
REGISTERS = 661376  # of threads[0]; the 17th is where it goes on
VECTORS = REGISTERS + 256 + 160  # its xmm0


def code_of_main_thread(f):
    """Where in the file it is that the main thread goes on."""
    f.seek(REGISTERS + 16 * 8)
    rip, = struct.unpack('<Q', f.read(8))
    f.seek(MAPS)
    for start, end, offset, _, kind in struct.iter_unpack('<QQQII', f.read(4096 * 32)):
        if start <= rip < end and kind == 0:
            return offset + rip - start
    raise AssertionError('the code is not in the image')


def damage(path, where):
    """At its full length, so that nothing shows before it is tried."""
    os.chmod(path, 0o600)
    size = os.path.getsize(path)
    with open(path, 'r+b') as f:
        if where == 'unseen':  # what a process computes with, and would not end of
            f.seek(VECTORS)
            byte = f.read(1)[0]
            f.seek(VECTORS)
            f.write(bytes([byte ^ 1]))
            return
        at, data = {'header': lambda: (4096, b'\xff' * 200000), 'registers': lambda: (REGISTERS, b'\xff' * 18 * 8),
                    'memory': lambda: (PAGES, b'\xff' * (size - PAGES)),
                    'hang': lambda: (code_of_main_thread(f), b'\xeb\xfe')}[where]()
        f.seek(at)
        assert any(f.read(len(data))), 'there is something to damage'
        f.seek(at)
        f.write(data)


WHERE = ['header', 'registers', 'memory', 'unseen']


@pytest.mark.parametrize('where', WHERE)
def test_a_damaged_one_is_done_without(host, where):
    """What cspace-thaw cannot become, or what ends or hangs as what it became: the snapshot beside it is enough."""
    h = host
    s = counting(h)
    h.sh(s, 'echo kept >/dev/shm/file')
    c = checkpoint(h, s, kind='full')['checkpoint']
    before = counts(h, s)
    h.change(s, 'suspend')
    for image in images(h):
        damage(image, where)
    h.change(s, 'restore')
    assert not thawed(h, s)
    goes_on(h, s, before)
    assert h.sh(s, 'cat /dev/shm/file').strip() == 'kept'
    assert b'once more, from its snapshot' in h.get(f'/v1/sandboxes/{s}/logs').body
    # A checkpoint is gone back to more than once: what is damaged is tried only the first time.
    rollback(h, s, c)
    assert not thawed(h, s)
    until(lambda: images(h) == [], what='removal of the process')
    n = h.get(f'/v1/sandboxes/{s}/logs').body.count(b'once more')
    rollback(h, s, c)
    assert h.get(f'/v1/sandboxes/{s}/logs').body.count(b'once more') == n == 2
    assert h.sh(s, 'cat /dev/shm/file').strip() == 'kept'
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


@pytest.mark.parametrize('where', [*WHERE, 'hang'])
def test_a_damaged_variant_is_made_anew(host, where):
    h = host
    path, = glob.glob(os.path.join(h.data, 'templates', '*', 'variants', '*', 'frozen', 'process'))
    damage(path, where)
    s = h.create()
    assert not thawed(h, s) and h.sh(s, 'echo $((6*7))').strip() == '42'
    until(lambda: not os.path.exists(path), what='removal of the variant')
    t = h.create()
    assert thawed(h, t) and h.sh(t, 'echo $((6*7))').strip() == '42'
    assert h.sh(s, 'echo on >/root/x; cat /root/x').strip() == 'on'  # of what has gone


def test_damage_that_nothing_is_left_beside(host):
    """What cannot be brought back in either way is told, the sandbox is what it was, and nothing of the tries is left."""
    h = host
    s = counting(h)
    h.change(s, 'suspend')
    image, = images(h)
    damage(image, 'header')
    os.truncate(os.path.join(os.path.dirname(image), 'state'), 100)
    for _ in range(2):
        r = h.post(f'/v1/sandboxes/{s}/restore?wait=120')
        assert r.status == 500 and r.json['error']['code'] == 'change_failed', r
        assert h.state(s) == 'suspended'
        left = h.left()
        assert (left['run'], left['disks'], len(left['images'])) == ([], [], 1)


def test_a_full_checkpoint_goes_on(host):
    """The VM is let go of for the image, and taken hold of again."""
    h = host
    s = counting(h)
    before = counts(h, s)
    c = checkpoint(h, s, kind='full')['checkpoint']
    goes_on(h, s, before)
    assert len(images(h)) == 1
    rollback(h, s, c)
    assert thawed(h, s)
    goes_on(h, s, before)
