# SPDX-License-Identifier: Apache-2.0
"""The DNS server, over both transports; what names and answers can and cannot do."""
import os
import random
import socket
import struct
import time

import pytest

from lab import SANDBOX_IP, wait_for

RULES = [{'name': 'web', 'action': 'allow', 'hosts': ['web.test', '*.web.test']}]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES)
    return raw_gateway


def query(name, qtype=1, ident=None, qclass=1):
    labels = b''.join(bytes([len(p)]) + p for p in name.encode().split(b'.') if p) + b'\0'
    ident = random.randrange(65536) if ident is None else ident
    return struct.pack('>HHHHHH', ident, 0x0100, 1, 0, 0, 0) + labels + struct.pack('>HH', qtype, qclass)


def udp(gw, data, server=SANDBOX_IP, timeout=3):
    s = gw.lab.guest_socket(socket.SOCK_DGRAM)
    s.settimeout(timeout)
    s.connect((server, 53))
    s.send(data)
    return s.recv(4096)


def rcode(data):
    return data[3] & 15


@pytest.mark.parametrize('server', [SANDBOX_IP, '8.8.8.8', '1.1.1.1'])
def test_any_server_is_ours(gw, server):
    """XD04: redirected with the policy, UDP and TCP."""
    a = udp(gw, query('web.test'), server)
    assert rcode(a) == 0 and a[-4:-2] in (b'\xc6\x12', b'\xc6\x13')
    assert rcode(udp(gw, query('denied.test'), server)) == 5
    r = gw.record(kind='dns', host='denied.test')
    assert r['verdict'] == 'deny' and r['rule'] == 'default' and r['reason'] == 'no_rule'
    s = gw.lab.guest_connect((server, 53), 5)
    for ident in (1, 2, 3):  # XD17: pipelined, each with its own id
        q = query('web.test', ident=ident)
        s.sendall(len(q).to_bytes(2, 'big') + q)
    for ident in (1, 2, 3):
        n = int.from_bytes(s.recv(2, socket.MSG_WAITALL), 'big')
        assert int.from_bytes(s.recv(n, socket.MSG_WAITALL)[:2], 'big') == ident


def test_tunnel(gw):
    """XD01: what is in the labels of a denied name leaves nothing on the host's side."""
    secret = 'c' * 60 + '.exfil.denied.test'
    assert rcode(udp(gw, query(secret))) == 5
    r = gw.record(kind='dns', host=secret)
    assert r['verdict'] == 'deny' and r['rule'] == 'default' and r['reason'] == 'no_rule'
    assert gw.curl('http://web.test/')[0] == 0  # what is asked for it is in the resolver's log, and so would be what came before
    wait_for(lambda: 'web.test' in gw.lab.dns_queries(), 'the query of an allowed name')
    assert 'exfil' not in gw.lab.dns_queries()
    for qtype, name in ((16, 'TXT'), (10, 'NULL'), (15, 'MX'), (33, 'SRV'), (255, 'ANY'), (252, 'AXFR'), (65, 'HTTPS'), (28, 'AAAA')):  # XD03, XD13
        a = udp(gw, query('web.test', qtype))
        assert struct.unpack_from('>H', a, 6)[0] == 0, qtype  # no answer section
        r = gw.record(kind='dns', host='web.test', type=name)
        assert 'address' not in r and r['rule'] == 'web', r  # of a name that is allowed: it is there, and has no such record
        assert (r['verdict'], r['reason']) == (('deny', 'dns_type') if name in ('NULL', 'ANY', 'AXFR') else ('allow', 'rule')), r


def test_stable(gw):
    first = gw.address_of('web.test')
    for _ in range(20):
        gw.address_of(f'h{random.randrange(10 ** 9)}.web.test')
    assert gw.address_of('web.test') == first


@pytest.mark.parametrize('data', [b'', b'x', b'\0' * 11, b'\0' * 12, os.urandom(50), query('web.test')[:-1], query('web.test') + b'junk',
                                  query('web.test')[:12] + b'\xc0\x0c\0\1\0\1', b'\xff' * 2000])
def test_junk(gw, data):
    """XD11: an error or nothing, and it goes on."""
    try:
        assert rcode(udp(gw, data, timeout=0.3)) != 0
    except TimeoutError:
        pass
    assert rcode(udp(gw, query('web.test'))) == 0
    s = gw.lab.guest_connect((SANDBOX_IP, 53), 5)
    s.sendall(b'\xff\xff' + data)
    s.close()
    assert rcode(udp(gw, query('web.test'))) == 0


def test_flood(gw):
    """XD16: more than allowed is refused, and the gateway does other things meanwhile."""
    s = gw.lab.guest_socket(socket.SOCK_DGRAM)
    s.connect((SANDBOX_IP, 53))
    for i in range(20000):
        s.send(query(f'n{i}.web.test'))
    time.sleep(1)
    assert gw.proc.poll() is None
    assert gw.query()['names'] < 5000
    gw.record(kind='dns', reason='limit_dns')


def test_too_many_tcp_clients(gw):
    socks, refused = [], 0
    for _ in range(40):
        try:
            s = gw.lab.guest_connect((SANDBOX_IP, 53), 5)
            q = query('web.test')
            s.sendall(len(q).to_bytes(2, 'big') + q)
            refused += s.recv(2) == b''
            socks.append(s)
        except ConnectionError:
            refused += 1
    assert refused == 8 and len(socks) == 32
    for s in socks:
        s.close()
    assert rcode(udp(gw, query('web.test'))) == 0
