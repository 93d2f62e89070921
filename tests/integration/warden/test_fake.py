# SPDX-License-Identifier: Apache-2.0
"""Control and data plane of a warden, with the fake engine behind it."""
import os
import socket
import struct
import time

import pytest

from launcher import IpcError, TYPES, Ctl, cpu_ticks, proc_memory


def test_life(fake):
    assert fake.c.query()['identified'] == 0
    times = fake.c.identify()
    assert times['identify_us'] > 0
    q = fake.c.query()
    assert (q['identified'], q['link_up'], q['state']) == (1, 1, 'running')
    assert q['bytes_in'] > 0 and q['bytes_out'] > 0
    with pytest.raises(IpcError, match='already'):
        fake.c.identify()
    fake.c.stop()
    assert fake.c.query() | {'bytes_in': 0, 'bytes_out': 0} == {
        'state': 'exited', 'reason': 'the guest powered off', 'identified': 1, 'link_up': 0, 'bytes_in': 0,
        'bytes_out': 0}
    fake.c.stop()  # of one that has ended: done


def test_several_controllers(fake):
    others = [fake.ctl() for _ in range(3)]
    assert all(o.query()['state'] == 'running' for o in others)
    others.pop().close()
    fake.c.close()
    others[0].identify()
    others[0].stop()
    q = others[1].wait_state('exited')
    assert q['reason'] == 'the guest powered off'
    assert ('exited', 'the guest powered off') in others[1].events


def test_limit_of_controllers(fake):
    more = [fake.ctl() for _ in range(7)]
    assert more[-1].query()['state'] == 'running'
    over = fake.ctl()
    with pytest.raises((ConnectionError, BrokenPipeError)):
        over.query()
    more.pop().close()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            assert fake.ctl().query()['state'] == 'running'
            break
        except ConnectionError:
            continue
    else:
        pytest.fail('a place that was left is not given to another')


@pytest.mark.parametrize('packet', [b'', b'x', b'\0' * 7, b'\xff' * 64, struct.pack('<HHI', 999, 0, 1),
                                    struct.pack('<HHI', TYPES['IDENTIFY'], 0, 1) + b'\xff\xff\xff\xff',
                                    struct.pack('<HHI', TYPES['STOP'], 0, 1),
                                    struct.pack('<HHI', TYPES['PLACE'], 0, 1)])
def test_malformed_requests(fake, packet):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(fake.ctl_path)
    s.send(packet)
    s.settimeout(5)
    try:
        s.recv(4096)  # an error or the end, either way
    except ConnectionError:
        pass
    assert fake.c.query()['state'] == 'running'


def test_identity_that_is_no_object(fake):
    for text in (b'', b'[]', b'{"a":1', b'{"a":1}x', b'\0', b'"x"'):
        with pytest.raises(IpcError):
            fake.c.call('IDENTIFY', struct.pack('<I', len(text)) + text)
    fake.c.identify()


def test_echo_and_half_close(fake):
    d = fake.data(7)
    assert d.ok
    blob = os.urandom(200000)
    d.sock.sendall(blob)
    d.end()
    got, proper = d.read_end()
    assert got == blob and proper


def test_line_and_bytes_in_one_packet(fake):
    s = socket.socket(socket.AF_UNIX)
    s.connect(fake.data_path)
    s.sendall(b'CONNECT 7\nearly')
    got = b''
    while len(got) < len(b'200 OK\nearly'):
        got += s.recv(100)
    assert got == b'200 OK\nearly'


def test_line_in_pieces(fake):
    s = socket.socket(socket.AF_UNIX)
    s.connect(fake.data_path)
    for c in b'CONNECT 13\n':
        s.sendall(bytes([c]))
        time.sleep(0.002)  # so that the pieces arrive as pieces
    got = b''
    while True:
        b = s.recv(100)
        if not b:
            break
        got += b
    assert got == b'200 OK\nfake\n'


def test_closed_port(fake):
    d = fake.data(1234)
    assert d.line == '502 closed'


@pytest.mark.parametrize('line', [b'CONNECT 0\n', b'CONNECT 65536\n', b'CONNECT -1\n', b'CONNECT 7 \n', b'GET / HTTP/1.1\n',
                                  b'\n', b'CONNECT\n', b'connect 7\n', b'CONNECT 0x7\n', b'A' * 100, b'CONNECT control\n',
                                  b'CONNECT 7\r\n'])
def test_bad_lines(fake, line):
    s = socket.socket(socket.AF_UNIX)
    s.connect(fake.data_path)
    s.sendall(line)
    s.settimeout(5)
    assert s.recv(100).startswith(b'400 ')


def test_reset_is_no_proper_end(fake):
    d = fake.data(19)
    d.sock.sendall(b'x')
    got, proper = d.read_end()
    assert got == b'' and not proper


def test_end_of_the_vm_cuts_streams(fake):
    reader, idle = fake.data(14), fake.data(7)
    assert reader.sock.recv(1000)
    killer = fake.data(99)
    killer.sock.sendall(b'crash')
    for d in (reader, idle, killer):
        _, proper = d.read_end()
        assert not proper
    q = fake.c.wait_state('failed')
    assert q['reason'] == 'the fake VM crashed' and q['link_up'] == 0
    assert fake.data(7).line.startswith('503 ')
    with pytest.raises(IpcError, match='crashed'):
        fake.c.identify()


def test_client_that_does_not_read(fake):
    """A guest that sends without end meets the client's pace, not the warden's memory."""
    before = proc_memory(fake.warden)
    lazy = [fake.data(14) for _ in range(20)]
    total = 0
    end = time.monotonic() + 2
    while time.monotonic() < end:
        other = fake.data(7)
        other.sock.sendall(b'x')
        assert other.sock.recv(1) == b'x'
        other.close()
        total += 1
    assert total > 20
    ticks = cpu_ticks(fake.warden)
    time.sleep(0.5)  # nothing may go on while everybody waits
    assert cpu_ticks(fake.warden) - ticks < 10
    assert proc_memory(fake.warden) - before < 20 * 1200
    for d in lazy:
        d.close()


def test_guest_that_does_not_read(fake):
    before = proc_memory(fake.warden)
    d = fake.data(13)  # never reads
    d.sock.setblocking(False)
    sent = 0
    end = time.monotonic() + 2
    block = b'x' * 65536
    while time.monotonic() < end:
        try:
            sent += d.sock.send(block)
        except BlockingIOError:
            time.sleep(0.01)
        except (BrokenPipeError, ConnectionResetError):
            break
    assert sent < 8 << 20 or proc_memory(fake.warden) - before < 4096


def test_many_connections(fake):
    conns = [fake.data(7) for _ in range(300)]
    for i, d in enumerate(conns):
        assert d.ok
        d.sock.sendall(b'%d' % i)
    for i, d in enumerate(conns):
        d.end()
        got, proper = d.read_end()
        assert got == b'%d' % i and proper
        d.close()
    with open(f'/proc/{fake.warden}/status') as f:
        assert 'Seccomp:\t2' in f.read()


def test_idle_warden_does_nothing(fake):
    fake.c.identify()
    ticks = cpu_ticks(fake.warden)
    time.sleep(2)
    assert cpu_ticks(fake.warden) - ticks <= 1


@pytest.mark.parametrize('fake', ['boot'], indirect=True)
def test_snapshot(fake):
    fake.c.identify()
    fake.c.snapshot()
    assert fake.c.query()['state'] == 'exited'
    assert fake.c.query()['reason'] == 'snapshotted'


def test_snapshot_of_a_restored_vm(fake):
    with pytest.raises(IpcError, match='booted for it'):
        fake.c.snapshot()


def test_restart_of_the_controller(fake):
    fake.c.send('QUERY')
    fake.c.close()
    again = Ctl(fake.ctl_path)
    assert again.identify()['identify_us'] > 0
