# SPDX-License-Identifier: Apache-2.0
"""The gateway of a placement: what it holds, what its namespace lets through, and that it comes back. The guest
is played by raw frames on the VM's tap."""
import os
import re
import signal
import socket
import struct
import subprocess
import threading

import pytest

from conftest import until

GUEST_MAC, HOST_MAC = bytes.fromhex('026373000002'), bytes.fromhex('026373000001')
GUEST, HOST = '10.200.0.2', '10.200.0.1'


def pid_of(rootd, ident, what):
    with open(os.path.join(rootd.run, 'sandboxes', ident, 'placement')) as f:
        return int(re.search(rf'^{what}_pid=(\d+)', f.read(), re.M)[1])


def runs(rootd, ident):
    """The pid of the gateway once it is one."""
    def look():
        pid = pid_of(rootd, ident, 'gateway')
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as f:
                return pid if b'cspace-gateway' in f.read() else 0
        except OSError:
            return 0
    return until(look, what='the gateway')


def test_a_gateway_is_confined(placer):
    ident, placed = placer.place()
    pid = runs(placer.rootd, ident)
    g = placer.rootd.gateway(ident)
    st = g('status()')
    uid = placed['warden_uid'] + 2
    assert st['Uid'].split() == [str(uid)] * 4 and st['Gid'].split() == [str(uid)] * 4 and st['Groups'].split() == []
    for caps in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
        assert int(st[caps], 16) == 0, caps
    assert st['NoNewPrivs'] == '1' and st['NSpid'].split()[-1] == '1'
    assert g('limits()')['RLIMIT_CORE'] == [1, 1] and g('limits()')['RLIMIT_NOFILE'] == [8192, 8192]
    assert g('writable()') == [] and g('visible_pids()') == [pid]
    assert g('open("/proc/self/environ").read()') == 'CSPACE_LOG_FORMAT=text\0'
    for path in ('/etc/passwd', '/root', '/home', '/run', '/dev/net', '/dev/kvm'):
        assert g(f'os.path.exists({path!r})') is False, path
    held = g('fds()')
    assert {'0', '1', '2', '3', '4', '5', '6', '7'} <= set(held) and len(held) <= 9, held  # and its client
    assert [held[n][0] for n in '3456'] == ['socket'] * 4 and held['7'][:2] == ['file', 0]
    # it dials out from the host's namespace, and listens in the VM's
    assert os.readlink(f'/proc/{pid}/ns/net') == os.readlink('/proc/self/ns/net')
    assert g('socket.socket(fileno=os.dup(6)).getsockname()') == [HOST, 5301]
    assert g('socket.socket(fileno=os.dup(5)).getsockname()') == [HOST, 5300]


def test_it_comes_back_and_goes_with_the_sandbox(placer):
    ident, _ = placer.place()
    first = runs(placer.rootd, ident)
    os.kill(first, signal.SIGKILL)
    assert placer.c.event() == ('EXITED', {'id': ident, 'what': 'gateway'})
    second = until(lambda: (p := runs(placer.rootd, ident)) != first and p, what='another gateway')
    assert placer.rootd.gateway(ident)('1 + 1') == 2
    placer.rootd.kill()
    placer.rootd.start()
    assert runs(placer.rootd, ident) == second  # adopted
    placer.rootd.kill()
    os.kill(second, signal.SIGKILL)
    placer.rootd.start()
    until(lambda: runs(placer.rootd, ident) != second, what='a gateway made by the next rootd')
    c = placer.rootd.client()
    c.call('REMOVE', id=ident)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


# ---- packets ---------------------------------------------------------------------------------------

def checksum(data):
    data += b'\0' * (len(data) % 2)
    s = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while s >> 16:
        s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff


def ip(proto, payload, dst, src=GUEST, frag=0x4000):
    a, b = socket.inet_aton(src), socket.inet_aton(dst)
    head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(payload), 7, frag, 64, proto, 0, a, b)
    return head[:10] + struct.pack('!H', checksum(head)) + head[12:] + payload


def tcp(dst, dport, flags, seq=1000, ack=0, data=b'', sport=40000, src=GUEST):
    seg = struct.pack('!HHIIBBHHH', sport, dport, seq, ack, 0x50, flags, 8192, 0, 0) + data
    pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack('!BBH', 0, 6, len(seg))
    return seg[:16] + struct.pack('!H', checksum(pseudo + seg)) + seg[18:]


def udp(dst, dport, data, src=GUEST, sport=5555):
    d = struct.pack('!HHHH', sport, dport, 8 + len(data), 0) + data
    pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack('!BBH', 0, 17, len(d))
    return d[:6] + struct.pack('!H', checksum(pseudo + d) or 0xffff) + d[8:]


class Guest:
    """Frames on the tap (the warden's descriptor 6; a 10-byte virtio header goes before each)."""

    def __init__(self, placer, ident):
        self.w = placer.rootd.warden(ident)
        self.placer, self.ident = placer, ident

    def send(self, packet, mac=GUEST_MAC, kind=0x0800):
        frame = bytes(10) + HOST_MAC + mac + struct.pack('!H', kind) + packet
        self.w(f'os.write(6, bytes.fromhex("{frame.hex()}"))')

    def receive(self):
        """The next IPv4 packet for the guest, None when none comes."""
        for _ in range(20):
            got = self.w('(lambda s: os.read(6, 4096).hex() if s.select([6], [], [], 0.5)[0] else "")(__import__("select"))')
            if not got:
                return None
            frame = bytes.fromhex(got)[10:]
            if frame[12:14] == b'\x08\x06' and frame[20:22] == b'\0\1':  # who has the guest's address?
                reply = frame[14:20] + b'\0\2' + GUEST_MAC + socket.inet_aton(GUEST) + HOST_MAC + socket.inet_aton(HOST)
                self.send(reply, kind=0x0806)
            elif frame[12:14] == b'\x08\x00':
                return frame[14:]
        return None

    def counters(self):
        """Packets by the names of the namespace's counters."""
        pid = pid_of(self.placer.rootd, self.ident, 'vm')
        out = subprocess.run(['nsenter', '-n', '-t', str(pid), 'nft', 'list', 'counters'], capture_output=True, text=True, check=True).stdout
        return {m[1]: int(m[2]) for m in re.finditer(r'counter (\w+) \{\s*packets (\d+)', out)}


@pytest.fixture
def guest(placer):
    ident, _ = placer.place()
    runs(placer.rootd, ident)
    return Guest(placer, ident)


def ask_beside(placer, ident, expression):
    """Asks the gateway something that waits; join() gives the answer."""
    box = []
    g = placer.rootd.gateway(ident)
    g('1')  # it serves us
    t = threading.Thread(target=lambda: box.append(g(expression)))
    t.start()

    def join():
        t.join(20)
        return box[0]
    return join


@pytest.mark.parametrize('dst,port', [('93.184.216.34', 443), ('10.200.0.1', 80), ('127.0.0.1', 80), ('198.18.0.9', 22),
                                      ('10.200.0.1', 5300), ('10.200.0.1', 5301), ('93.184.216.34', 5301)])
def test_any_tcp_ends_at_the_gateway(placer, guest, dst, port):
    answer = ask_beside(placer, guest.ident, 'accept_one()')
    guest.send(ip(6, tcp(dst, port, 2), dst))
    got = guest.receive()
    assert got and got[9] == 6 and socket.inet_ntoa(got[12:16]) == dst and got[33] == 0x12  # SYN ACK, from where it was sent
    ack = int.from_bytes(got[24:28], 'big') + 1
    guest.send(ip(6, tcp(dst, port, 0x18, seq=1001, ack=ack, data=b'hello'), dst))
    assert answer() == [dst, port, GUEST, 'hello']


def test_dns_to_anywhere_ends_at_the_gateway(placer, guest):
    answer = ask_beside(placer, guest.ident, 'dns_one()')
    guest.send(ip(17, udp('8.8.4.4', 53, b'query'), '8.8.4.4'))
    assert answer() == 'query'
    got = guest.receive()
    assert socket.inet_ntoa(got[12:16]) == '8.8.4.4' and got[28:] == b'yreuq'


def test_what_is_dropped_is_counted(placer, guest):
    dst = '93.184.216.34'
    before = guest.counters()
    guest.send(ip(6, tcp(dst, 80, 2, src='10.200.0.9'), dst, src='10.200.0.9'))             # another address
    guest.send(ip(6, tcp(dst, 80, 2), dst), mac=bytes.fromhex('026373000077'))              # another MAC
    guest.send(ip(17, udp(dst, 123, b'x'), dst))                                            # other UDP
    guest.send(ip(1, bytes.fromhex('0800f7ff00000000'), dst))                               # ping
    guest.send(ip(17, udp('10.200.0.1', 5300, b'x'), '10.200.0.1'))                         # the gateway's own port
    assert guest.receive() is None
    after = guest.counters()
    assert after['spoofed'] - before['spoofed'] == 2, after
    assert after['not_carried'] - before['not_carried'] == 3, after
    assert after['in_dropped'] == before['in_dropped'], after
    assert after['forward_dropped'] == before['forward_dropped']


def test_without_a_gateway_connections_are_refused_at_once(placer, guest):
    pid = runs(placer.rootd, guest.ident)
    os.kill(pid, signal.SIGSTOP)  # so that nobody is told yet
    placer.rootd.proc.send_signal(signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not os.path.exists(f'/proc/{pid}/ns/net'), what='its end')
        guest.send(ip(6, tcp('93.184.216.34', 80, 2, sport=41000), '93.184.216.34'))
        got = guest.receive()
        assert got and got[33] & 4, 'a reset'
    finally:
        placer.rootd.proc.send_signal(signal.SIGCONT)
