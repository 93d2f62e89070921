# SPDX-License-Identifier: Apache-2.0
"""cspaced with the real cspace-gateway, whose sockets are on loopback; everything else is the stand-in."""
import fcntl
import os
import signal
import socket
import struct
import subprocess

import pytest

from conftest import BUILD, until
from test_egress import ALLOW, active, gateway

BINARY = os.path.join(BUILD, 'src', 'gateway', 'cspace-gateway')
TRUST = '/etc/ssl/certs/ca-certificates.crt'
UID = 61802


class Real:
    def __init__(self, d, ident):
        self.ident, self.log = ident, d.log
        self.path = os.path.join(d.run, 'sandboxes', ident, 'gw.sock')
        gateway(d, ident, close=True)
        self.ctl = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # kept listening, as cspace-rootd does
        self.ctl.bind(self.path)
        self.ctl.listen(8)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.dns, self.tcp = socket.socket(), socket.socket()
        for s in (self.udp, self.dns, self.tcp):
            s.bind(('127.0.0.1', 0))
        self.dns.listen(8)
        self.tcp.listen(8)
        self.start()

    def start(self):
        numbers = [s.fileno() for s in (self.ctl, self.udp, self.dns, self.tcp)]

        def prepare():
            for i, n in enumerate([fcntl.fcntl(n, fcntl.F_DUPFD, 20) for n in numbers]):
                os.dup2(n, 3 + i)
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        self.proc = subprocess.Popen([BINARY, '--id', self.ident, '--trust', TRUST, '--resolver', '127.0.0.1:9'], preexec_fn=prepare,
                                     pass_fds=(3, 4, 5, 6), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env={})

    def ask(self, name):
        """(rcode, address) of an A query."""
        query = struct.pack('>6H', 7, 0x0100, 1, 0, 0, 0)
        query += b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\0' + struct.pack('>2H', 1, 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(5)
            s.sendto(query, self.udp.getsockname())
            answer = s.recv(4096)
        rcode, answers = answer[3] & 15, struct.unpack('>H', answer[6:8])[0]
        if not answers:
            return rcode, None
        at = len(query)
        return rcode, socket.inet_ntoa(answer[at + 12:at + 16])

    def kill(self):
        self.proc.send_signal(signal.SIGKILL)
        self.proc.wait()

    def close(self):
        self.kill()
        for s in (self.ctl, self.udp, self.dns, self.tcp):
            s.close()
        if os.path.exists(self.path):
            os.unlink(self.path)


@pytest.fixture
def real(ready):
    if os.geteuid() != 0:
        pytest.skip('needs root')
    if not os.access(BINARY, os.X_OK) or not os.path.exists(TRUST):
        pytest.skip(f'{BINARY} is not built, or this machine trusts nobody')
    made = []

    def make(**kw):
        s = ready.create(**kw)
        active(ready, s['id'])
        g = Real(ready, s['id'])
        made.append(g)
        until(lambda: ready.sandbox(s['id'])['egress']['state'] == 'active' and ready.get(f"/v1/sandboxes/{s['id']}/usage").json['egress'],
              what='the real gateway is configured')
        return s['id'], g
    yield ready, make
    for g in made:
        g.close()


def denied(d, ident, host):
    return [r for r in d.get(f'/v1/sandboxes/{ident}/audit?host={host}&verdict=deny&kind=dns').json['records']]


def test_policy_records_and_change(real):
    d, make = real
    ident, g = make(policy=ALLOW)
    rcode, address = g.ask('api.example.com')
    assert rcode == 0 and address.startswith('198.18.')
    assert g.ask('evil.example.com')[0] == 5
    r = until(lambda: denied(d, ident, 'evil.example.com'), what='its record')[0]
    assert r['reason'] == 'no_rule' and r['sandbox'] == ident
    assert d.request('PUT', f'/v1/sandboxes/{ident}/policy', {'allow': ['evil.example.com']}).status == 200
    assert g.ask('evil.example.com')[0] == 0 and g.ask('api.example.com')[0] == 5  # by the answer it holds
    assert d.request('PUT', f'/v1/sandboxes/{ident}/policy', {'policy': 'none'}).status == 200
    assert g.ask('evil.example.com')[0] == 5


def test_killed_it_comes_back_as_it_was(real):
    d, make = real
    ident, g = make(policy=ALLOW)
    first = g.ask('api.example.com')
    until(lambda: d.get(f'/v1/sandboxes/{ident}/audit?kind=dns').json['records'], what='a record')
    until(lambda: g.ask('api.example.com') and d.get(f'/v1/sandboxes/{ident}/usage').json['egress']['names'] == 1, what='the name')
    stored = os.path.join(d.data, 'state.db-wal')
    until(lambda: b'198.18.' in open(stored, 'rb').read() or b'"api.example.com"' in open(stored, 'rb').read(), what='the table of names')
    g.kill()
    g.start()

    def same():
        try:
            return g.ask('api.example.com') == first
        except socket.timeout:
            return False
    until(same, what='the same address')
    assert g.ask('evil.example.com')[0] == 5
    until(lambda: d.sandbox(ident)['egress']['state'] == 'active', what='active')


def test_bindings_are_taken(real):
    d, make = real
    assert d.request('PUT', '/v1/credentials/token', {'secret': 'quo"te \\ and é'}).status == 200
    ident, g = make(policy=ALLOW)
    r = d.post(f'/v1/sandboxes/{ident}/bindings', {'credential': 'token', 'hosts': ['api.example.com'], 'methods': ['GET'], 'uses': 3,
                                                   'rate': {'per_minute': 6}, 'expires': '2030-01-01T00:00:00Z', 'env': 'TOKEN'})
    assert r.status == 201, r
    assert d.request('PUT', '/v1/credentials/token', {'secret': 'another one', 'expires_at': '2031-01-01T00:00:00Z'}).status == 200
    g.kill()
    g.start()
    until(lambda: d.get(f'/v1/sandboxes/{ident}/usage').json['egress'], what='configured again')
    assert d.delete(f"/v1/sandboxes/{ident}/bindings/{d.get(f'/v1/sandboxes/{ident}/bindings').json['bindings'][0]['id']}").status == 204
