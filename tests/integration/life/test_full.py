# SPDX-License-Identifier: Apache-2.0
"""A host whose disk is full: what is asked for fails with that reason and leaves nothing, and what runs goes on."""
import contextlib
import os
import subprocess
import time

import pytest
from conftest import MB, Host, until


@pytest.fixture
def full(base, libexec, tmp_path):
    """A host on a small btrfs; fill() leaves it so many MiB, free() gives the rest back."""
    image, mount = str(tmp_path / 'image'), str(tmp_path / 'mnt')
    os.mkdir(mount)
    with open(image, 'wb') as f:
        f.truncate(2200 * MB)
    subprocess.run(['mkfs.btrfs', '-q', image], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(['mount', '-o', 'loop,noatime', image, mount], check=True)
    try:
        data, ballast = os.path.join(mount, 'data'), os.path.join(mount, 'ballast')
        subprocess.run(['cp', '-a', '--sparse=always', base, data], check=True)
        h = Host(libexec, data)
        h.start()

        def left():
            os.sync()
            s = os.statvfs(mount)
            return s.f_bavail * s.f_frsize

        def fill(mb):
            with open(ballast, 'ab') as f, contextlib.suppress(OSError):
                while left() > mb * MB:
                    f.write(os.urandom(min(8 * MB, max(MB, left() - mb * MB))))
                    f.flush()
                    os.fsync(f.fileno())

        h.fill, h.free = fill, lambda: os.unlink(ballast)
        yield h
        with contextlib.suppress(OSError):
            os.unlink(ballast)
        h.close()
    finally:
        subprocess.run(['umount', '-l', mount], check=True)


def fill_up(h):
    h.fill(0)
    with open(os.path.join(os.path.dirname(h.data), 'ballast'), 'ab', buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(os.urandom(4096))
            os.fsync(f.fileno())


def test_images_that_find_no_room(full):
    h = full
    a, b = h.create(), h.create()
    for x in (a, b):
        h.sh(x, 'head -c 40000000 /dev/urandom >/dev/shm/x; sync')
    was = {x: h.sh(x, 'sha256sum /dev/shm/x') for x in (a, b)}
    before = h.left()
    h.fill(4)
    for verb, body in (('suspend', None), ('checkpoints', {'kind': 'full'}), ('fork', {'n': 2}), ('publish', {'name': 'p', 'kind': 'full'}),
                       ('publish', {'name': 'p'})):
        r = h.post(f'/v1/sandboxes/{a}/{verb}?wait=120', body)
        assert (r.status, r.json['error']['code']) == (507, 'storage_full'), (verb, body, r)
        until(lambda: h.left() == before, what='nothing half made')
        assert h.state(a) == h.state(b) == 'running'
        assert {x: h.sh(x, 'sha256sum /dev/shm/x') for x in (a, b)} == was
    h.free()
    h.change(a, 'suspend')
    h.change(a, 'restore')
    assert h.sh(a, 'sha256sum /dev/shm/x') == was[a]
    assert h.post(f'/v1/sandboxes/{a}/publish?wait=120', {'name': 'p'}).status == 201


def test_no_block_is_left(full):
    """Nor for the few bytes of the devices' state, which QEMU writes itself and does not say why it cannot."""
    h = full
    a = h.create()
    h.sh(a, 'echo kept >/dev/shm/x; sync')
    before = h.left()
    fill_up(h)
    r = h.post(f'/v1/sandboxes/{a}/suspend?wait=120')
    assert (r.status, r.json['error']['code']) == (507, 'storage_full'), r
    h.free()
    until(lambda: h.left() == before, what='nothing half made')
    assert h.sh(a, 'cat /dev/shm/x') == 'kept\n'
    h.change(a, 'suspend')
    h.change(a, 'restore')
    assert h.sh(a, 'cat /dev/shm/x') == 'kept\n'


@pytest.mark.parametrize('meanwhile', ['nothing', 'pause', 'suspend', 'warden'])
def test_guest_that_writes_to_a_full_host(full, meanwhile):
    """It stands still and says why; when there is room it goes on with that very write, and has missed nothing."""
    h = full
    a, b = h.create(), h.create()
    h.fill(1)
    h.background(a, 'head -c 30000000 /dev/urandom >/root/big && sync && sha256sum </root/big >/root/sum && sync')
    reason = until(lambda: h.get(f'/v1/sandboxes/{a}').json.get('reason'), what='why it stands still')
    assert 'no room' in reason and h.state(a) == 'running'
    assert h.sh(b, 'echo fine') == 'fine\n'
    if meanwhile == 'warden':
        warden = h.pids(a)[0]
        os.kill(warden, 9)
        until(lambda: h.pids(a)[0] != warden and 'reason' in h.get(f'/v1/sandboxes/{a}').json, what='another warden, which knows it too')
        assert h.state(a) == 'running'
    h.free()
    if meanwhile == 'suspend':  # at once: most times it stands still as yet
        h.change(a, 'suspend')
        h.change(a, 'restore')
    elif meanwhile == 'pause':
        h.change(a, 'pause')
        assert 'reason' not in h.get(f'/v1/sandboxes/{a}').json
        h.change(a, 'resume')
    until(lambda: 'reason' not in h.get(f'/v1/sandboxes/{a}').json, what='the guest goes on')
    until(lambda: h.sh(a, 'cat /root/sum 2>/dev/null || true'), what='its command')
    assert h.sh(a, 'sha256sum </root/big; dmesg | grep -ci "i/o error" || true') == h.sh(a, 'cat /root/sum') + '0\n'


def stand(h, a):
    """a's guest writes to a full host, and stands still; its command goes on to tell the sum of what it has written."""
    h.fill(1)
    h.background(a, 'head -c 30000000 /dev/urandom >/root/big && sync && sha256sum </root/big >/root/sum && sync')
    assert 'no room' in until(lambda: h.get(f'/v1/sandboxes/{a}').json.get('reason'), what='why it stands still')


def all_written(h, a):
    until(lambda: 'reason' not in h.get(f'/v1/sandboxes/{a}').json, what='the guest goes on')
    until(lambda: h.sh(a, 'cat /root/sum 2>/dev/null || true'), what='its command')
    assert h.sh(a, 'sha256sum </root/big') == h.sh(a, 'cat /root/sum')


def cpu_us(h, a):
    return h.get(f'/v1/sandboxes/{a}/usage').json['host']['cpu_us']


def test_paused_one_stays_so_under_another_warden(full):
    """It stands still for two reasons. QEMU tells one of them, and a warden that takes the VM over must not take that for all."""
    h = full
    a = h.create()
    stand(h, a)
    h.change(a, 'pause')
    warden = h.pids(a)[0]
    os.kill(warden, 9)
    until(lambda: h.pids(a)[0] != warden, what='another warden')
    until(lambda: b'"warden_back"' in h.get(f'/v1/sandboxes/{a}/logs').body, what='cspaced, connected to it')
    h.free()
    time.sleep(3)  # what tries each second whether there is room would have
    before = cpu_us(h, a)
    time.sleep(2)
    assert cpu_us(h, a) - before < 100000 and h.state(a) == 'paused'
    h.change(a, 'resume')
    all_written(h, a)


def test_what_was_asked_of_one_that_stands_still(full):
    """A pause and a resume, and a checkpoint, while there is no room: that it is tried again does not end with them."""
    h = full
    a = h.create()
    stand(h, a)
    h.change(a, 'pause')
    r = h.post(f'/v1/sandboxes/{a}/resume?wait=60')
    assert r.status == 200 or (r.status == 504 and 'no room' in r.json['error']['message']), r  # the agent may be quicker than the write
    assert h.state(a) == 'running'
    until(lambda: 'no room' in h.get(f'/v1/sandboxes/{a}').json.get('reason', ''), what='why it stands still')
    h.post(f'/v1/sandboxes/{a}/checkpoints?wait=60', {'kind': 'disk'})
    assert 'no room' in h.get(f'/v1/sandboxes/{a}').json['reason']
    h.free()
    all_written(h, a)


def test_room_can_be_made(full):
    """Where nothing at all can be written any more, what is there can still be deleted."""
    h = full
    a, b, c = h.create(), h.create(), h.create()
    h.sh(a, 'head -c 20000000 /dev/urandom >/root/x; sync')
    cp = h.change(b, 'checkpoints', {'kind': 'disk'})['operation']['result']['checkpoint']
    h.change(c, 'suspend')
    fill_up(h)
    r = h.request('DELETE', f'/v1/sandboxes/{b}/checkpoints/{cp}')
    assert r.status in (200, 204), r
    for x in (c, a, b):
        h.delete(x)
    assert h.left() == {'run': [], 'disks': [], 'images': []}
    h.kill_cspaced()
    h.start_cspaced()
    assert h.get('/v1/sandboxes').json['sandboxes'] == []


def test_what_a_guest_deletes_is_room_for_others(full):
    h = full
    a = h.create()

    def room():
        os.sync()
        s = os.statvfs(h.data)
        return s.f_bavail * s.f_frsize / MB
    before = room()
    h.sh(a, 'head -c 60000000 /dev/urandom >/root/big; sync')
    assert before - room() > 50
    h.sh(a, 'rm /root/big; sync')
    until(lambda: room() > before - 10, what='the room')
