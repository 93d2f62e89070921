# SPDX-License-Identifier: Apache-2.0
"""The gateway of a placement: what starts it, what it holds, what its namespace lets through, and that it comes back. The
guest is played by raw frames on the VM's tap."""
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


def gateway_now(rootd, ident):
    """Its pid; 0: there is none."""
    pid = pid_of(rootd, ident, 'gateway')
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as f:
            return pid if b'cspace-gateway' in f.read() else 0
    except OSError:
        return 0


def runs(rootd, ident):
    """The pid of the gateway once it is one."""
    return until(lambda: gateway_now(rootd, ident), what='the gateway')


def started(placer, ident):
    """The same, started by a query, which is taken from it again."""
    Guest(placer, ident).send(ip(17, udp('192.0.2.53', 53, b'begin'), '192.0.2.53'))
    pid = runs(placer.rootd, ident)
    g = placer.rootd.gateway(ident)
    assert g('os.read(4, 100).decode()') == 'begin'
    g.close()
    return pid


def test_a_gateway_is_confined(placer):
    ident, placed = placer.place()
    pid = started(placer, ident)
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
    first = started(placer, ident)
    assert placer.c.event() == ('GATEWAY', {'id': ident})
    os.kill(first, signal.SIGKILL)
    assert placer.c.event() == ('EXITED', {'id': ident, 'what': 'gateway'})
    guest = Guest(placer, ident)
    asked_until_served(placer, guest)
    second = runs(placer.rootd, ident)
    assert second != first
    assert placer.rootd.gateway(ident)('1 + 1') == 2
    placer.rootd.kill()
    placer.rootd.start()
    assert runs(placer.rootd, ident) == second  # adopted
    placer.rootd.kill()
    os.kill(second, signal.SIGKILL)
    placer.rootd.start()
    asked_until_served(placer, guest)
    assert runs(placer.rootd, ident) != second  # the next rootd's
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


def handshake(guest, dst='93.184.216.34', port=443, sport=40000, data=b'hello'):
    """A connection with its first bytes; False: it was refused."""
    guest.send(ip(6, tcp(dst, port, 2, sport=sport), dst))
    while (got := guest.receive()) and (got[9] != 6 or got[22:24] != sport.to_bytes(2, 'big')):
        pass  # of another one
    if not got or got[33] & 4:
        return False
    ack = int.from_bytes(got[24:28], 'big') + 1
    guest.send(ip(6, tcp(dst, port, 0x18, seq=1001, ack=ack, data=data, sport=sport), dst))
    return True


def asked_until_served(placer, guest):
    """What a resolver does: asks again, until a gateway has the query."""
    def ask():
        guest.send(ip(17, udp('192.0.2.53', 53, b'again'), '192.0.2.53'))
        return gateway_now(placer.rootd, guest.ident)
    until(ask, what='a gateway')
    g = placer.rootd.gateway(guest.ident)
    assert g('os.read(4, 100).decode()') == 'again'
    g.close()


@pytest.fixture
def guest(placer):
    ident, _ = placer.place()
    started(placer, ident)
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


def packets_event(placer):
    while True:
        name, m = placer.c.event()
        if name == 'PACKETS':
            return m


def drop_some(guest, other_udp=1, spoofed=2):
    dst = '93.184.216.34'
    for _ in range(spoofed):
        guest.send(ip(6, tcp(dst, 80, 2, src='10.200.0.9'), dst, src='10.200.0.9'))
    for _ in range(other_udp):
        guest.send(ip(17, udp(dst, 123, b'x'), dst))


def test_what_is_dropped_is_told(placer):
    """Every [audit] packets, and before the end; each packet once, by whatever way the placement ends and whoever was there to be told."""
    placer.rootd.kill()
    placer.rootd.start(conf='[audit]\npackets = 1s\n')
    placer.c = placer.rootd.client()
    ident, _ = placer.place()
    guest = Guest(placer, ident)
    drop_some(guest)
    assert packets_event(placer) == {'id': ident, 'spoofed': 2, 'not_carried': 1, 'flooded': 0}
    drop_some(guest, other_udp=3, spoofed=0)
    assert packets_event(placer) == {'id': ident, 'spoofed': 0, 'not_carried': 3, 'flooded': 0}
    placer.rootd.kill()
    placer.rootd.start()  # every minute
    placer.c = placer.rootd.client()
    drop_some(guest, other_udp=0, spoofed=1)
    seq = placer.c.send('REMOVE', id=ident)
    placer.c.result(seq)
    assert [m for name, m in placer.c.events if name == 'PACKETS'] == [{'id': ident, 'spoofed': 1, 'not_carried': 0, 'flooded': 0}]


def packet(proto, payload, dst, src=GUEST, ttl=64, frag=0x4000, ident=7, options=b''):
    """As ip(), with what a header can have beside."""
    words = 5 + len(options) // 4
    head = struct.pack('!BBHHHBBH4s4s', 0x40 | words, 0, 4 * words + len(payload), ident, frag, ttl, proto, 0, socket.inet_aton(src), socket.inet_aton(dst)) + options
    return head[:10] + struct.pack('!H', checksum(head)) + head[12:] + payload


@pytest.mark.parametrize('proto', [1, 2, 4, 33, 41, 47, 50, 51, 112, 132, 136, 255])
def test_other_protocols_of_ip(placer, guest, proto):
    """XC09: ICMP, IGMP, IP in IP, DCCP, 6in4, GRE, ESP, AH, VRRP, SCTP, UDP-Lite: counted, and nothing comes back."""
    before = guest.counters()
    guest.send(packet(proto, bytes.fromhex('0800f7ff00000000') + b'data' * 20, '93.184.216.34'))
    assert guest.receive() is None
    after = guest.counters()
    assert after['not_carried'] - before['not_carried'] == 1 and after['forward_dropped'] == before['forward_dropped']


def test_source_ports_mean_nothing(placer, guest):
    """XC16."""
    before = guest.counters()
    guest.send(ip(17, udp('93.184.216.34', 123, b'x', sport=53), '93.184.216.34'))
    guest.send(ip(17, udp('93.184.216.34', 443, b'x', sport=443), '93.184.216.34'))
    assert guest.receive() is None
    assert guest.counters()['not_carried'] - before['not_carried'] == 2
    answer = ask_beside(placer, guest.ident, 'accept_one()')
    guest.send(ip(6, tcp('93.184.216.34', 25, 2, sport=53), '93.184.216.34'))
    got = guest.receive()
    ack = int.from_bytes(got[24:28], 'big') + 1
    guest.send(ip(6, tcp('93.184.216.34', 25, 0x18, seq=1001, ack=ack, data=b'x', sport=53), '93.184.216.34'))
    assert answer()[:2] == ['93.184.216.34', 25]  # the gateway's to judge


def test_fragments(placer, guest):
    """XC11: a header in two pieces is judged when it is whole; pieces that overlap, or of which one is missing, are no packet."""
    dst = '93.184.216.34'
    answer = ask_beside(placer, guest.ident, 'accept_one()')
    syn = tcp(dst, 443, 2)
    guest.send(packet(6, syn[:8], dst, frag=0x2000, ident=21))
    guest.send(packet(6, syn[8:], dst, frag=1, ident=21))
    got = guest.receive()
    assert got and got[33] == 0x12
    ack = int.from_bytes(got[24:28], 'big') + 1
    guest.send(ip(6, tcp(dst, 443, 0x18, seq=1001, ack=ack, data=b'whole'), dst))
    assert answer() == [dst, 443, GUEST, 'whole']
    before = guest.counters()
    syn = tcp(dst, 8443, 2, sport=40001)
    for offset, piece in ((0, syn[:16]), (1, tcp(dst, 22, 2, sport=40001)[8:])):
        guest.send(packet(6, piece, dst, frag=(0x2000 if offset == 0 else 0) | offset, ident=22))
    guest.send(packet(6, syn[:8], dst, frag=0x2000, ident=23))  # the rest never comes
    while (got := guest.receive()):
        assert got[22:24] == (40000).to_bytes(2, 'big')  # the end of the first connection, and no answer to those
    assert guest.counters()['forward_dropped'] == before['forward_dropped']


@pytest.mark.parametrize('option', ['83070493b8d82204', '890704c0a8010104', '0707040000000000', '4404050000000000'])
def test_options_of_ip(placer, guest, option):
    """XC12: loose and strict source routes, record route, time stamp: nothing is forwarded, and what is answered comes from the gateway."""
    before = guest.counters()
    dst = '93.184.216.34'
    guest.send(packet(6, tcp(dst, 443, 2), dst, options=bytes.fromhex(option)))
    got = guest.receive()
    assert got is None or (socket.inet_ntoa(got[12:16]) in (dst, HOST) and socket.inet_ntoa(got[16:20]) == GUEST)
    after = guest.counters()
    assert after['forward_dropped'] == before['forward_dropped'] and after['out_dropped'] == before['out_dropped']


def test_time_to_live(placer, guest):
    """XC13: whatever it is, the next hop is the end: there is nothing to be learnt."""
    dst = '93.184.216.34'
    for ttl, port in ((1, 41), (2, 42), (64, 43)):
        guest.send(packet(6, tcp(dst, port, 2, sport=42000 + ttl), dst, ttl=ttl))
        got = guest.receive()
        assert got and got[9] == 6 and got[33] == 0x12 and socket.inet_ntoa(got[12:16]) == dst


def other_guest(placer):
    ident, _ = placer.place()
    started(placer, ident)
    return Guest(placer, ident)


def test_neighbours_see_nothing(placer, guest):
    """XC03, XC04, XC05: ARP, IPv6 neighbours and routers, DHCP and scans of one guest are not heard by another, and change nothing for it."""
    other = other_guest(placer)
    everyone = b'\xff' * 6
    arp = b'\0\1\x08\0\6\4\0\2' + GUEST_MAC + socket.inet_aton(HOST) + everyone + socket.inet_aton(GUEST)

    def frame(to, kind, payload):
        raw = bytes(10) + to + GUEST_MAC + struct.pack('!H', kind) + payload
        guest.w(f'os.write(6, bytes.fromhex("{raw.hex()}"))')
    before = guest.counters()
    frame(everyone, 0x0806, arp)                                              # "I am the gateway"
    frame(HOST_MAC, 0x0806, arp[:14] + socket.inet_aton('10.200.0.9') + arp[18:])
    v6 = bytes.fromhex('6000000000203aff') + bytes.fromhex('fe80' + '00' * 13 + '02') + bytes.fromhex('ff02' + '00' * 13 + '01')
    for kind in (134, 136):                                                   # router and neighbour advertisements
        frame(bytes.fromhex('333300000001'), 0x86dd, v6 + bytes([kind, 0]) + bytes(30))
    dhcp = packet(17, udp('255.255.255.255', 68, b'\2' + bytes(240), sport=67), '255.255.255.255')
    frame(everyone, 0x0800, dhcp)
    for address in ('10.200.0.2', '10.200.0.3', '10.200.0.6', '10.200.1.2'):
        guest.send(ip(1, bytes.fromhex('0800f7ff00000000'), address))
    for tag in ('8100006408004500', '88a8006481000065'):                      # VLANs
        frame(HOST_MAC, int(tag[:4], 16), bytes.fromhex(tag[4:]) + bytes(60))
    assert other.receive() is None
    after = guest.counters()
    assert after['not_carried'] - before['not_carried'] >= 3 and after['forward_dropped'] == before['forward_dropped']
    for who in (guest, other):  # and both still have their gateway
        answer = ask_beside(placer, who.ident, 'accept_one()')
        who.send(ip(6, tcp('93.184.216.34', 443, 2, sport=43000), '93.184.216.34'))
        got = who.receive()
        assert got and got[33] == 0x12
        ack = int.from_bytes(got[24:28], 'big') + 1
        who.send(ip(6, tcp('93.184.216.34', 443, 0x18, seq=1001, ack=ack, data=b'x', sport=43000), '93.184.216.34'))
        assert answer()[:2] == ['93.184.216.34', 443]


def test_flood_of_connections(placer, guest):
    """XC15: a limit of one sandbox; a neighbour does not notice."""
    other = other_guest(placer)
    frames = [bytes(10) + HOST_MAC + GUEST_MAC + b'\x08\0' + ip(6, tcp('93.184.216.34', 1 + i % 60000, 2, sport=1024 + i), '93.184.216.34') for i in range(6000)]
    for i in range(0, len(frames), 200):
        guest.w('[os.write(6, bytes.fromhex(x)) for x in "' + ' '.join(f.hex() for f in frames[i:i + 200]) + '".split()].clear()')
    assert guest.counters()['flooded'] > 0
    answer = ask_beside(placer, other.ident, 'accept_one()')
    other.send(ip(6, tcp('93.184.216.34', 443, 2), '93.184.216.34'))
    got = other.receive()
    assert got and got[33] == 0x12
    ack = int.from_bytes(got[24:28], 'big') + 1
    other.send(ip(6, tcp('93.184.216.34', 443, 0x18, seq=1001, ack=ack, data=b'x'), '93.184.216.34'))
    assert answer()[:2] == ['93.184.216.34', 443]


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


# ---- the first packet ------------------------------------------------------------------------------

def processes(placer, ident):
    return placer.c.call('USAGE', 'USAGE_INFO', id=ident)['processes']


@pytest.fixture
def quiet(placer):
    """A guest that has sent nothing yet."""
    ident, _ = placer.place()
    return Guest(placer, ident)


def test_no_gateway_until_the_first_packet(placer, quiet):
    """What nobody would hear, and half a connection, start none."""
    folder = os.path.join(placer.rootd.run, 'sandboxes', quiet.ident)
    dst = '93.184.216.34'
    quiet.send(ip(1, bytes.fromhex('0800f7ff00000000'), dst))
    quiet.send(ip(17, udp(dst, 123, b'x'), dst))
    quiet.send(ip(17, udp(HOST, 5300, b'x'), HOST))
    quiet.send(ip(17, udp(dst, 53, b'x', src='10.200.0.9'), dst, src='10.200.0.9'))
    quiet.send(ip(6, tcp(dst, 80, 2), dst))
    got = quiet.receive()
    assert got and got[33] == 0x12
    quiet.send(ip(6, tcp(dst, 80, 4, seq=1001), dst))
    assert quiet.receive() is None
    assert processes(placer, quiet.ident) == 2 and pid_of(placer.rootd, quiet.ident, 'gateway') == 0
    assert not os.path.exists(os.path.join(folder, 'gw.sock')) and placer.c.events == []
    asked_until_served(placer, quiet)
    assert placer.c.event() == ('GATEWAY', {'id': quiet.ident})
    assert processes(placer, quiet.ident) == 3


@pytest.mark.parametrize('port,fd', [(443, 6), (53, 5)])
def test_first_connection_is_served(placer, quiet, port, fd):
    assert handshake(quiet, port=port, data=b'first')
    runs(placer.rootd, quiet.ident)
    assert placer.rootd.gateway(quiet.ident)(f'accept_one({fd})') == ['93.184.216.34', port, GUEST, 'first']


def test_first_query_is_served(placer, quiet):
    quiet.send(ip(17, udp('8.8.4.4', 53, b'query'), '8.8.4.4'))
    runs(placer.rootd, quiet.ident)
    assert placer.rootd.gateway(quiet.ident)('dns_one()') == 'query'
    got = quiet.receive()
    assert socket.inet_ntoa(got[12:16]) == '8.8.4.4' and got[28:] == b'yreuq'


def test_one_gateway_for_many_first_packets(placer, quiet):
    """On all three sockets at once, and more while it starts."""
    for i in range(20):
        quiet.send(ip(17, udp('8.8.4.4', 53, b'%02d' % i), '8.8.4.4'))
        assert handshake(quiet, port=(443, 53)[i % 2], sport=41000 + i)
    runs(placer.rootd, quiet.ident)
    assert processes(placer, quiet.ident) == 3
    assert [e for e in placer.c.events if e[0] == 'GATEWAY'] == [('GATEWAY', {'id': quiet.ident})]
    g = placer.rootd.gateway(quiet.ident)
    assert [g('dns_one()') for _ in range(20)] == ['%02d' % i for i in range(20)]
    assert all(g(f'accept_one({fd})')[3] == 'hello' for fd in (5, 6) for _ in range(10))


def test_rootd_ends_while_none_runs(placer, quiet):
    """Refused while there is nobody to watch; what waited is not served by anybody else; the next one is served as the first."""
    placer.rootd.kill()
    assert not handshake(quiet)
    quiet.send(ip(17, udp('8.8.4.4', 53, b'lost'), '8.8.4.4'))
    placer.rootd.start()
    c = placer.rootd.client()
    assert c.event() == ('EXITED', {'id': quiet.ident, 'what': 'gateway'})
    assert c.call('USAGE', 'USAGE_INFO', id=quiet.ident)['processes'] == 2
    while quiet.receive():
        pass  # how the lost one was refused
    assert handshake(quiet, sport=40001, data=b'later')
    runs(placer.rootd, quiet.ident)
    assert placer.rootd.gateway(quiet.ident)('accept_one()')[3] == 'later'


@pytest.mark.parametrize('step', range(1, 5))
def test_rootd_ends_while_it_starts(placer, quiet, step):
    """kill -9 at each step: one gateway or none afterwards, and the guest's next try is served."""
    placer.rootd.fault.arm('rootd', f'gateway:{step}')
    quiet.send(ip(17, udp('8.8.4.4', 53, b'first'), '8.8.4.4'))
    until(lambda: placer.rootd.proc.poll() is not None, what='the end of rootd')
    placer.rootd.fault.disarm()
    placer.rootd.start()
    placer.c = placer.rootd.client()

    def ask():
        quiet.send(ip(17, udp('8.8.4.4', 53, b'again'), '8.8.4.4'))
        return gateway_now(placer.rootd, quiet.ident)
    until(ask, what='a gateway')
    g = placer.rootd.gateway(quiet.ident)
    assert g('os.read(4, 100).decode()') in ('first', 'again')
    assert processes(placer, quiet.ident) == 3
    g.close()
    placer.c.call('REMOVE', id=quiet.ident)
    placer.rootd.stop()
    placer.rootd.host.assert_nothing()


def test_one_that_runs_is_told_of(placer):
    ident, _ = placer.place()
    started(placer, ident)
    assert placer.rootd.client().event() == ('GATEWAY', {'id': ident})
    placer.rootd.kill()
    placer.rootd.start()
    assert placer.rootd.client().event() == ('GATEWAY', {'id': ident})


def failing(placer, conf='', libexec=None):
    placer.rootd.kill()
    if libexec:
        placer.rootd.libexec = libexec
    placer.rootd.start(conf=conf)
    placer.c = placer.rootd.client()


def refused_at_once(placer, guest, sport):
    """A connection that came to the queue is reset when no gateway comes for it; then, for a pause, the kernel refuses."""
    assert handshake(guest, sport=sport)
    while (got := guest.receive()):
        if got[9] == 6 and got[22:24] == sport.to_bytes(2, 'big') and got[33] & 4:
            break
    assert got, 'a reset'
    events = [placer.c.event(), placer.c.event()]
    assert events == [('GATEWAY', {'id': guest.ident}), ('EXITED', {'id': guest.ident, 'what': 'gateway'})]
    assert gateway_now(placer.rootd, guest.ident) == 0


def test_a_gateway_that_cannot_start_denies(placer, quiet):
    """No trust store: nothing is started, and nothing gets through. Mended, the next packet starts one."""
    failing(placer, conf='[egress]\ntrust_store = /nowhere/at/all.pem\n')
    assert placer.c.event() == ('EXITED', {'id': quiet.ident, 'what': 'gateway'})
    refused_at_once(placer, quiet, 40010)
    assert 'no gateway: cannot open [egress] trust_store' in placer.rootd.text()
    until(lambda: handshake(quiet, sport=40011), what='the end of the pause')  # lazily again
    failing(placer)
    asked_until_served(placer, quiet)


def test_a_gateway_that_ends_at_once_denies(placer, quiet, tmp_path):
    """And is not tried without a pause, which grows; with none the guest asks in vain."""
    broken = tmp_path / 'libexec'
    broken.mkdir()
    for name in os.listdir(placer.rootd.libexec):
        os.symlink(os.path.join(placer.rootd.libexec, name), broken / name)
    os.unlink(broken / 'cspace-gateway')
    with open(broken / 'cspace-gateway', 'w', encoding='utf-8') as f:
        f.write('#!/bin/false\n')
    os.chmod(broken / 'cspace-gateway', 0o755)
    good = placer.rootd.libexec
    failing(placer, libexec=str(broken))
    assert placer.c.event() == ('EXITED', {'id': quiet.ident, 'what': 'gateway'})
    for n in range(3):
        until(lambda: not handshake(quiet, sport=40020) or True, what='a packet')
        until(lambda: handshake(quiet, sport=40021 + n), what='sockets again')
        while placer.c.event()[0] != 'EXITED':
            pass
    assert gateway_now(placer.rootd, quiet.ident) == 0
    failing(placer, libexec=good)
    asked_until_served(placer, quiet)


def listening(pid):
    """Inodes of the sockets in the network namespace of a process."""
    found = set()
    for name in ('tcp', 'udp'):
        with open(f'/proc/{pid}/net/{name}', encoding='ascii') as f:
            found |= {int(line.split()[9]) for line in f.readlines()[1:]}
    return found


def held(pid):
    found = set()
    for name in os.listdir(f'/proc/{pid}/fd'):
        try:
            m = re.match(r'socket:\[(\d+)]', os.readlink(f'/proc/{pid}/fd/{name}'))
        except OSError:
            continue
        found |= {int(m[1])} if m else set()
    return found


def test_sockets_go_with_the_vm(placer, quiet):
    """A namespace lives for as long as a socket of it is held: those of a VM that is gone are not, and a gateway has its own."""
    sockets = listening(pid_of(placer.rootd, quiet.ident, 'vm'))
    assert len(sockets) == 3 and sockets <= held(placer.rootd.proc.pid)
    quiet.w.sock.send(b'vm:os._exit(3)')
    while placer.c.event() != ('EXITED', {'id': quiet.ident, 'what': 'vm'}):
        pass
    assert not sockets & held(placer.rootd.proc.pid) and gateway_now(placer.rootd, quiet.ident) == 0
    ident, _ = placer.place()
    sockets = listening(pid_of(placer.rootd, ident, 'vm'))
    pid = started(placer, ident)
    assert not sockets & held(placer.rootd.proc.pid) and sockets <= held(pid)


def job_of(rootd):
    """A child of rootd's in its own pid namespace, with all of its descriptors."""
    for n in os.listdir('/proc'):
        if n.isdigit():
            try:
                with open(f'/proc/{n}/status', encoding='ascii') as f:
                    text = f.read()
            except OSError:
                continue
            if re.search(rf'^PPid:\t{rootd.proc.pid}$', text, re.M) and re.search(r'^NSpid:\t\d+$', text, re.M):
                return int(n)
    return 0


def test_a_job_keeps_no_sockets(placer, quiet):
    """While one works for long, a gateway that ends is refused for and comes back, and no namespace is kept."""
    ident, digest = placer.rootd.make_build(disk_mb=200, content=os.urandom(64 << 20))
    sockets = listening(pid_of(placer.rootd, quiet.ident, 'vm'))
    seq = placer.c.send('TEMPLATE_COMMIT', id=ident, digest=digest)
    job = until(lambda: job_of(placer.rootd), what='the job')
    until(lambda: not held(job) & sockets, what='the job has only what it needs')
    os.kill(job, signal.SIGSTOP)
    try:
        asked_until_served(placer, quiet)
        first = runs(placer.rootd, quiet.ident)
        os.kill(first, signal.SIGKILL)
        until(lambda: gateway_now(placer.rootd, quiet.ident) != first, what='its end')
        asked_until_served(placer, quiet)
    finally:
        os.kill(job, signal.SIGCONT)
    placer.c.result(seq)


def test_flood_before_the_start(placer, quiet):
    """The backlog is the guest's own; its neighbour's first packet is served meanwhile."""
    ident, _ = placer.place()
    other = Guest(placer, ident)
    frames = [bytes(10) + HOST_MAC + GUEST_MAC + b'\x08\0' + ip(6, tcp('93.184.216.34', 1 + i % 60000, 2, sport=1024 + i), '93.184.216.34') for i in range(6000)]
    for i in range(0, len(frames), 200):
        quiet.w('[os.write(6, bytes.fromhex(x)) for x in "' + ' '.join(f.hex() for f in frames[i:i + 200]) + '".split()].clear()')
    assert handshake(other, data=b'mine')
    runs(placer.rootd, ident)
    assert placer.rootd.gateway(ident)('accept_one()')[3] == 'mine'
