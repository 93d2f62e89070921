# SPDX-License-Identifier: Apache-2.0
"""Nonsense from cspaced's side, and strangers."""
import errno
import os
import random
import socket
import struct
import subprocess

import pytest

import wire
from conftest import MB, new_id, until


def test_hello_comes_first(placer):
    c = placer.rootd.client(hello=False)
    with pytest.raises(wire.RootdError) as e:
        c.call('PLACE', 'PLACED', **placer.args())
    assert e.value.code == errno.EPROTO and 'hello' in e.value.message
    with pytest.raises(wire.RootdError) as e:
        c.call('HELLO', 'HOST_INFO', version=2)
    assert 'version 2' in e.value.message
    assert c.call('HELLO', 'HOST_INFO', version=1)['version'] == 1
    c.call('LIST', 'PLACEMENT_LIST')


def test_unknown_types_and_bodies(rootd):
    rootd.start()
    c = rootd.client()
    for t in (0, 24, 25, 99, 65535, wire.TYPES['OK'], wire.TYPES['QUERY'], wire.TYPES['EXITED'], wire.TYPES['PLACED']):
        with pytest.raises(wire.RootdError) as e:
            c.result(c.raw(t))
        assert e.value.code == errno.EOPNOTSUPP
    rng = random.Random(3)
    requests = ['HELLO', 'PLACE', 'REMOVE', 'USAGE', 'BUILD', 'BUILD_REMOVE', 'TEMPLATE_COMMIT', 'TEMPLATE_REMOVE', 'VARIANT_COMMIT']
    for name in requests:
        for body in (b'', b'\xff' * 4, b'\xff' * 1000, rng.randbytes(64), rng.randbytes(100000)):
            with pytest.raises(wire.RootdError) as e:
                c.result(c.raw(wire.TYPES[name], body))
            assert e.value.code in (errno.EPROTO, errno.EINVAL)
    # Every request cut short, and with a byte too many.
    whole = wire.encode('PLACE', id=new_id(), mode='restore', digest='0' * 64, engine='fake', memory_mb=128, cpus=1)
    for n in list(range(len(whole))) + [len(whole) + 1]:
        with pytest.raises(wire.RootdError) as e:
            c.result(c.raw(wire.TYPES['PLACE'], (whole + b'\0')[:n]))
        assert e.value.code == errno.EPROTO
    assert c.call('LIST', 'PLACEMENT_LIST')['ids'] == ''


def test_broken_packets_end_their_connection_alone(rootd):
    rootd.start()
    good = rootd.client()
    for data in (b'x', b'1234567', struct.pack('<HHI', 5, 0xfff0, 1), os.urandom(wire.PACKET_MAX + 1)):
        bad = rootd.client()
        bad.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        bad.sock.send(data)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            bad._packet()
        assert good.call('LIST', 'PLACEMENT_LIST') == {'ids': ''}


def test_descriptors_of_requests_are_closed(rootd):
    rootd.start()
    c = rootd.client()

    def count():
        return len(os.listdir(f'/proc/{rootd.proc.pid}/fd'))
    # The pool has descriptors of its own; it is settled when HELLO tells of both its slots.
    until(lambda: rootd.client().info['pool_ready'] == 2)
    c.call('LIST', 'PLACEMENT_LIST')
    before = count()
    with open('/dev/null') as f:
        for name in ('LIST', 'REMOVE', 'BUILD', 'PLACE', 'HELLO'):
            for n in (1, 2, 8):
                seq = c.raw(wire.TYPES[name], b'', fds=[f.fileno()] * n)
                try:
                    c.result(seq, 'PLACEMENT_LIST')
                except wire.RootdError:
                    pass
        seq = c.send('BUILD', fds=[f.fileno()] * 8, id='bad', source='tar', disk_bytes=MB, timeout_s=60)
        with pytest.raises(wire.RootdError):
            c.result(seq)
    assert count() == before


def as_user(uid, f):
    """Runs f in a child with that uid; its result as an exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            code = f()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_strangers_are_refused(rootd):
    rootd.start()
    st = os.stat(rootd.sock)
    assert (st.st_mode & 0o7777, st.st_uid) == (0o660, 0)
    os.chmod(rootd.sock, 0o666)  # as if the mode were not there: the peer's uid still is

    def hello():
        try:
            return 0 if rootd.client().info['version'] == 1 else 1
        except OSError:
            return 2
    nobody = 65534
    assert as_user(nobody, hello) == 0   # the user named by --user
    assert as_user(12345, hello) == 2
    assert as_user(nobody, hello) == 0


def test_connections_are_limited(rootd):
    rootd.start()
    held = [rootd.client() for _ in range(8)]
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        rootd.client()
    held.pop().close()
    until(rootd.accepts)


def test_an_answer_nobody_waits_for(placer):
    """cspaced goes away in the middle: what it asked for is done, and found by the next one."""
    ident = new_id()
    c = placer.rootd.client()
    c.send('PLACE', **placer.args(ident))
    c.close()
    until(lambda: ident in placer.c.call('LIST', 'PLACEMENT_LIST')['ids'])
    until(lambda: 'state=live' in open(os.path.join(placer.rootd.run, 'sandboxes', ident, 'placement')).read())
    placer.c.call('REMOVE', id=ident)


def test_many_requests_at_once(placer):
    ids = [new_id() for _ in range(30)]  # the pool has 2
    placer.c.sock.settimeout(120)
    seqs = [placer.c.send('PLACE', **placer.args(i)) for i in ids]
    for seq in seqs:
        placer.c.result(seq, 'PLACED')
    assert sorted(placer.c.call('LIST', 'PLACEMENT_LIST')['ids'].split()) == sorted(ids)
    seqs = [placer.c.send('REMOVE', id=i) for i in ids for _ in range(2)]
    for seq in seqs:
        placer.c.result(seq)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


def test_full_disk(btrfs, rootd):
    """ENOSPC is said, and nothing stays."""
    small = os.path.join(rootd.top, 'small')
    os.mkdir(small)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=20m,nr_inodes=200', 'tmpfs', small], check=True)
    try:
        rootd.data = small
        rootd.start(pool=1)
        c = rootd.client()
        assert c.info['reflink'] == 0 and c.info['data_fs'] == 'tmpfs'
        digest = rootd.make_template(c)
        args = {'mode': 'boot', 'digest': digest, 'engine': 'fake', 'memory_mb': 128, 'cpus': 1}
        ids = []
        with pytest.raises(wire.RootdError) as e:
            for _ in range(40):
                ids.append(new_id())
                c.call('PLACE', 'PLACED', id=ids[-1], **args)
        assert e.value.code == errno.ENOSPC and 'No space left' in e.value.message
        failed = ids.pop()
        assert len(ids) > 3
        assert failed not in c.call('LIST', 'PLACEMENT_LIST')['ids']
        assert not os.path.exists(os.path.join(small, 'sandboxes', failed))
        c.call('REMOVE', id=ids.pop())
        ident = new_id()
        c.call('PLACE', 'PLACED', id=ident, **args)  # and there is room again
        for i in ids + [ident]:
            c.call('REMOVE', id=i)
        rootd.stop()
        rootd.host.assert_nothing()
    finally:
        subprocess.run(['umount', '-l', small], check=True)
