# SPDX-License-Identifier: Apache-2.0
"""Connections that nobody looks into, addresses, and what happens to open ones when the policy changes."""
import os
import select
import socket
import threading
import time

import pytest

import gateway as gateway_module
from lab import PORTS, SANDBOX_IP, WEB, wait_for
from talk import exchange, one_answer, read_all, tls

RULES = [
    {'name': 'raw', 'action': 'allow', 'hosts': ['web.test'], 'ports': ['7000-7003'], 'protocol': 'tcp'},
    {'name': 'any', 'action': 'allow', 'hosts': ['api.test'], 'ports': [80, 443, '7000-7001'], 'protocol': 'any'},
    {'name': 'http', 'action': 'allow', 'hosts': ['web.test', 'loop.test', 'meta.test', 'private.test']},
    {'name': 'cidr', 'action': 'allow', 'cidr': ['93.184.216.35/32'], 'ports': [443], 'protocol': 'tls', 'inspect': False},
]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES)
    return raw_gateway


def test_echo(gw):
    s = gw.dial('web.test', 7000)
    blob = os.urandom(8 << 20)

    def send():
        s.sendall(blob)
        s.shutdown(socket.SHUT_WR)
    threading.Thread(target=send, daemon=True).start()
    back, reset = read_all(s)
    assert back == blob and not reset
    r = gw.record(kind='connect', host='web.test', port=7000)
    assert r['verdict'] == 'allow' and r['rule'] == 'raw' and r['protocol'] == 'tcp' and r['address'] == WEB
    assert r['bytes_out'] == r['bytes_in'] == len(blob)


def test_server_speaks_first(gw):
    """Where only bytes are allowed nobody waits for the guest's; where it could be anything, not for long."""
    s = gw.dial('web.test', 7001)
    began = time.monotonic()
    assert s.recv(100) == b'SSH-2.0-test\r\n'
    assert time.monotonic() - began < 0.25
    s = gw.dial('api.test', 7001)
    assert s.recv(100) == b'SSH-2.0-test\r\n'


def test_half_close(gw):
    s = gw.dial('web.test', 7002)
    s.sendall(b'x' * 100000)
    s.shutdown(socket.SHUT_WR)
    assert read_all(s) == (b'100000', False)


def test_reset_is_passed_on(gw):
    """What came before the reset arrives too (N23)."""
    s = gw.dial('web.test', 7003)
    s.sendall(b'x')
    out, reset = read_all(s)
    assert reset and b'x' in out and set(out) == set(b'x') and len(out) <= 1 << 20
    assert gw.record(kind='connect', port=7003)['bytes_in'] >= len(out)


def send_until_held(s, data):
    """Sends data again and again, until nothing was taken for a while: how many bytes were."""
    sent, last = 0, time.monotonic()
    s.setblocking(False)
    while time.monotonic() < last + 1:
        try:
            sent += s.send(data[sent % len(data):])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    s.setblocking(True)
    return sent


@pytest.mark.parametrize('piece', [100, 65536])
def test_slow_reader(gw, piece):
    """A sender is held back by who does not read it, in pieces of any size; what is held back is all there in the end."""
    s = gw.dial('web.test', 7000)
    data, before = os.urandom(piece), gw.private_kib()
    sent = send_until_held(s, data)
    assert sent < 64 << 20
    assert gw.private_kib() < before + 512
    s.settimeout(30)
    s.shutdown(socket.SHUT_WR)
    back, reset = read_all(s)
    assert not reset and len(back) == sent and back == (data * (sent // piece + 1))[:sent]
    r = gw.record(kind='connect', host='web.test', port=7000)
    assert r['bytes_out'] == r['bytes_in'] == sent


def test_pieces_of_every_size(gw):
    """Between one reading and two, a copy and a pipe, no byte is lost or comes twice."""
    s = gw.dial('web.test', 7000)
    for n in (1, 100, 16383, 16384, 16385, 32768, 2, 65536, 65537, 300000, 1, 16384, 16384, 1000000, 7):
        blob = os.urandom(n)
        threading.Thread(target=s.sendall, args=(blob,), daemon=True).start()
        back = b''
        while len(back) < n:
            back += s.recv(n - len(back))
        assert back == blob, n


def test_protocol_any(gw):
    assert exchange(gw, 'api.test', 7000, b'\x01\x02\x03')[0] == b'\x01\x02\x03'
    assert gw.record(kind='connect', host='api.test')['protocol'] == 'tcp'
    assert b'host=api.test' in exchange(gw, 'api.test', 80, b'GET /say HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n')[0]
    assert gw.record(kind='request', host='api.test')['rule'] == 'any'
    s = tls(gw, 'api.test')
    s.sendall(b'GET /say HTTP/1.1\r\nHost: api.test\r\n\r\n')
    assert one_answer(s)[0] == 200


def is_reset(s):
    out, reset = read_all(s)
    return reset and not out


def refused(gw, host, port, data=b''):
    s = gw.lab.guest_socket()
    try:
        s.connect((host, port))
        if data:
            s.sendall(data)
    except ConnectionResetError:
        return True
    return is_reset(s)


@pytest.mark.parametrize('port', [22, 25, 6379, 8080])
def test_ports(gw, port):
    """XE13: the host is allowed, on its ports only. At once, not by a time-out."""
    began = time.monotonic()
    assert refused(gw, gw.address_of('web.test'), port)
    assert time.monotonic() - began < 1
    assert gw.record(kind='connect', port=port)['reason'] == 'port'


@pytest.mark.parametrize('ip', ['169.254.169.254', '127.0.0.1', '10.0.0.1', '172.16.0.1', '192.168.1.1', '100.100.100.200', '168.63.129.16',
                                '8.8.8.8', '198.18.77.77', '93.184.216.34', '192.0.0.192', '224.0.0.1'])
def test_literals(gw, ip):
    """XF01 to XF12, XC07, XC08, XD15."""
    s = gw.lab.guest_socket()
    s.settimeout(3)
    try:
        s.connect((ip, 80))
        assert is_reset(s)
    except ConnectionResetError:
        pass
    except (ConnectionRefusedError, OSError):
        assert ip.startswith(('127.', '224.'))  # it never leaves the guest
        return
    assert gw.record(kind='connect', host=ip)['reason'] in ('address_literal', 'address_unknown')


@pytest.mark.parametrize('name,cls', [('loop.test', 'loopback'), ('meta.test', 'metadata'), ('private.test', 'private')])
def test_rebinding(gw, name, cls):
    """XD07, N43: an allowed name that resolves to where nobody may go."""
    status, body, err = gw.curl('-w', '%{http_code}', f'http://{name}/')
    assert status == 0 and body.endswith(b'403'), err
    r = gw.record(kind='request', host=name)
    assert r['verdict'] == 'deny' and r['reason'] == 'address_refused' and r['class'] == cls


def test_own_ranges(gw):
    """XC07: the host's own addresses, public as they may be."""
    gw.configure(RULES, own=['93.184.216.0/24'])
    status, body, _ = gw.curl('-w', '%{http_code}', 'http://web.test/')
    assert status == 0 and body.endswith(b'403')
    assert gw.record(kind='request', host='web.test')['class'] == 'host'
    assert refused(gw, gw.address_of('web.test'), 7000)
    assert gw.record(kind='connect', port=7000)['reason'] == 'address_refused'


def test_cidr(gw):
    """A CIDR rule allows the literal; N26."""
    r = gw.lab.guest('curl', '-sk', '-m', '5', 'https://93.184.216.35/say')
    assert r.returncode == 0, r.stderr
    assert gw.record(kind='connect', host='93.184.216.35')['rule'] == 'cidr'


def test_gateway_itself(gw):
    """N37: its own sockets are no destination: refused at once and recorded, also where no redirecting is needed to get there."""
    for port in (PORTS['tcp'], PORTS['dns_tcp'], 80):
        assert refused(gw, SANDBOX_IP, port, b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
        r = gw.record(kind='connect', host=SANDBOX_IP, port=port)
        assert r['verdict'] == 'deny' and r['reason'] in ('loop', 'address_literal'), r


@pytest.mark.parametrize('proto', ['udp', 'icmp'])
def test_other_protocols(gw, proto):
    """XC09, XC17: nothing but TCP and DNS comes back."""
    if proto == 'udp':
        s = gw.lab.guest_socket(socket.SOCK_DGRAM)
        s.settimeout(0.5)
        for port in (443, 3478, 51820, 123):
            s.sendto(b'x' * 100, (WEB, port))
    else:
        with gw.lab.inside('guest'):
            s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        s.settimeout(0.5)
        s.sendto(b'\x08\0\xf7\xff\0\0\0\0', (WEB, 0))
    with pytest.raises(TimeoutError):
        s.recv(2000)


def test_spoofed_source(gw):
    """XC01: another source address gets no answer."""
    gw.lab.ip('guest', 'addr', 'add', '10.200.0.9/32', 'dev', 'eth0')
    try:
        s = gw.lab.guest_socket()
        s.bind(('10.200.0.9', 0))
        s.settimeout(0.5)
        with pytest.raises(OSError):
            s.connect((WEB, 443))
    finally:
        gw.lab.ip('guest', 'addr', 'del', '10.200.0.9/32', 'dev', 'eth0')


# ---- before and after a policy


def test_first_packets_wait_for_the_policy(raw_gateway):
    """What came before the first configuration is judged by it, and by nothing else."""
    question = bytes.fromhex('123401000001000000000000') + b'\3web\4test\0' + bytes.fromhex('00010001')
    udp, dns = raw_gateway.lab.guest_socket(socket.SOCK_DGRAM), raw_gateway.lab.guest_connect(('8.8.8.8', 53))
    udp.sendto(question, ('8.8.8.8', 53))
    dns.sendall(len(question).to_bytes(2, 'big') + question)
    tcp = raw_gateway.lab.guest_connect((WEB, 443))
    assert select.select([udp, dns, tcp], [], [], 0.3)[0] == []
    raw_gateway.configure(RULES)
    assert udp.recv(512)[3] & 15 == 0 and dns.recv(512)[5] & 15 == 0
    assert read_all(tcp) == (b'', True)
    assert raw_gateway.record(kind='connect', host=WEB)['reason'] == 'address_literal'


def test_unconfigured(raw_gateway):
    """XC20: nothing before the first configuration. It is waited for, but not for ever."""
    assert refused(raw_gateway, '198.18.1.0', 80)
    r = raw_gateway.lab.guest('getent', 'ahostsv4', 'web.test')
    assert r.returncode != 0
    raw_gateway.configure(RULES)
    assert raw_gateway.record(kind='connect', host='198.18.1.0')['reason'] == 'no_policy'
    assert raw_gateway.record(kind='dns', host='web.test')['verdict'] == 'deny'


def test_empty_policy(raw_gateway):
    raw_gateway.configure()
    assert raw_gateway.lab.guest('getent', 'ahostsv4', 'web.test').returncode != 0
    assert raw_gateway.record(kind='dns', host='web.test')['reason'] == 'no_policy'


def test_bad_configurations(gw):
    """Refused whole; the old one stays."""
    for bad in ([{'action': 'allow'}], [{'action': 'allow', 'hosts': ['*']}, {'action': 'allow', 'hosts': ['web.test'], 'color': 1}],
                [{'action': 'perhaps', 'hosts': ['web.test']}]):
        with pytest.raises(gateway_module.ConfigError):
            gw.configure(bad)
    with pytest.raises(gateway_module.ConfigError):
        gw.configure(RULES, own=['nonsense'])
    with pytest.raises(gateway_module.ConfigError):
        gw.configure(RULES, colour=1)
    with pytest.raises(gateway_module.ConfigError):
        gw.configure([{'action': 'allow', 'hosts': ['@missing']}])
    assert gw.query()['generation'] == 1
    assert gw.curl('http://web.test/say')[0] == 0
    assert gw.lab.guest('getent', 'ahostsv4', 'other.test').returncode != 0


def test_presets(gw):
    gw.configure([{'action': 'allow', 'hosts': ['@some']}], presets={'@some': ['other.test']}, generation=7)
    assert gw.curl('http://other.test/say')[0] == 0
    assert gw.query()['generation'] == 7


def test_revocation(gw):
    """XC21, N41: what is not allowed any more is cut; the rest does not notice."""
    kept = gw.dial('web.test', 7000)
    kept.sendall(b'a')
    assert kept.recv(1) == b'a'
    cut = gw.dial('api.test', 7000)
    cut.sendall(b'\x01')
    assert cut.recv(1) == b'\x01'
    web = tls(gw, 'web.test')
    web.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert one_answer(web)[0] == 200
    stream = gw.dial('web.test', 80)
    stream.sendall(b'GET /app/stream HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert stream.recv(10)
    gw.configure([RULES[0], {'name': 'http', 'action': 'allow', 'hosts': ['web.test'], 'methods': ['POST']}])
    assert is_reset(cut)
    assert gw.record(kind='connect', host='api.test')['reason'] == 'revoked'
    kept.sendall(b'b')
    assert kept.recv(1) == b'b'
    web.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')  # a kept connection, a new request
    assert one_answer(web)[0] == 403
    assert gw.record(kind='request', host='web.test', status=403)['reason'] == 'method'
    assert read_all(stream)[1]  # a request under way that would be refused now
    assert gw.record(kind='request', path='/app/stream')['reason'] == 'revoked'


def test_toggling(gw):
    """N31, XC19: connecting to a forbidden place while the policy changes never works."""
    addr = gw.address_of('private.test')
    web = gw.address_of('web.test')
    stop = threading.Event()
    got = []

    def attack():
        while not stop.is_set():
            for ip, port in ((addr, 80), (web, 7000)):
                try:
                    s = gw.lab.guest_connect((ip, port), 5)
                    s.sendall(b'GET /x HTTP/1.1\r\nHost: private.test\r\n\r\n')
                    out, _ = read_all(s)
                    if ip == addr and out and b' 403 ' not in out[:20]:
                        got.append(out)
                    s.close()
                except OSError:
                    pass
    threads = [threading.Thread(target=attack) for _ in range(2)]
    for t in threads:
        t.start()
    for i in range(1000):
        gw.configure(RULES if i % 2 else [], generation=i)
    stop.set()
    for t in threads:
        t.join()
    assert not got
    assert gw.proc.poll() is None


# ---- limits and records


def test_connection_limit(gw):
    gw.configure([{**RULES[0], 'limits': {'connections': 2}}])
    first = [gw.dial('web.test', 7000) for _ in range(2)]
    for s in first:
        s.sendall(b'x')
        assert s.recv(1) == b'x'
    assert refused(gw, gw.address_of('web.test'), 7000)
    assert gw.record(kind='connect', verdict='deny')['reason'] == 'limit_connections'
    first[0].close()
    gw.record(kind='connect', verdict='allow')
    s = gw.dial('web.test', 7000)
    s.sendall(b'x')
    assert s.recv(1) == b'x'


def test_byte_limit(gw):
    gw.configure([{**RULES[0], 'limits': {'bytes_out': 100000}}])
    s = gw.dial('web.test', 7000)
    with pytest.raises(OSError):
        for _ in range(1000):
            s.sendall(b'x' * 10000)
            s.recv(65536)
    assert gw.record(kind='connect', verdict='deny')['reason'] == 'limit_bytes'
    assert refused(gw, gw.address_of('web.test'), 7000)


@pytest.mark.parametrize('scheme', ['http', 'https'])
def test_byte_limit_of_heads(gw, scheme):
    """What a request's head carries out counts: a path or a field can hold as much as a body."""
    gw.configure([{'action': 'allow', 'hosts': ['web.test'], 'limits': {'bytes_out': 10000}}])
    codes = [gw.curl('-H', 'X-Much: ' + 'y' * 4000, '-o', '/dev/null', '-w', '%{http_code}', scheme + '://web.test/say')[1]
             for _ in range(4)]
    assert codes == [b'200'] * 2 + [b'000'] * 2
    assert gw.record(kind='request', verdict='deny')['reason'] == 'limit_bytes'


def test_request_limit(gw):
    gw.configure([{'action': 'allow', 'hosts': ['web.test'], 'limits': {'requests_per_minute': 3}}])
    codes = [gw.curl('-o', '/dev/null', '-w', '%{http_code}', 'http://web.test/say')[1] for _ in range(5)]
    assert codes == [b'200'] * 3 + [b'429'] * 2
    assert gw.record(kind='request', status=429)['reason'] == 'limit_requests'


def test_records_wait_for_cspaced(gw):
    """cspaced may be away: the records are there when it comes back, and the policy goes on."""
    gw.sock.close()
    assert gw.curl('http://web.test/say/away')[0] == 0
    gw.connect()
    gw.configure(RULES, generation=2)
    assert gw.record(kind='request', path='/say/away')['status'] == 200
    assert gw.dropped == 0


def test_no_secret_is_recorded(gw):
    """A canary in the query, in a header and in a body appears in no record."""
    canary = 'canary7f3a'
    gw.curl('-H', f'Authorization: Bearer {canary}', '-d', canary, f'http://web.test/app/x?token={canary}')
    gw.record(kind='request', path='/app/x')
    gw.record(kind='connect', host='web.test')
    assert canary not in str(gw.records)
    assert canary not in open(gw.log, encoding='utf-8').read()


def test_memory(lab):
    """With the host's own trust store: at most 3 MiB of its own."""
    trust = lab.path('all.crt')
    with open(trust, 'wb') as out:
        for name in ('/etc/ssl/certs/ca-certificates.crt', lab.path('ca.crt')):
            if os.path.exists(name):
                with open(name, 'rb') as f:
                    out.write(f.read())
    g = gateway_module.Gateway(lab, trust)
    try:
        g.configure(RULES)
        idle = g.private_kib()
        assert g.curl('https://web.test/say')[0] == 0
        used = g.private_kib()
        print(f'private memory of an idle gateway: {idle} KiB, after a request {used} KiB')
        assert used <= 3072
    finally:
        g.close()


def test_confinement(gw):
    """No capability, no new privileges, a filter, not dumpable."""
    with open(f'/proc/{gw.proc.pid}/status', encoding='ascii') as f:
        status = dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)
    assert status['NoNewPrivs'] == '1' and status['Seccomp'] == '2'
    assert all(int(status[k], 16) == 0 for k in ('CapEff', 'CapPrm', 'CapAmb'))
    assert set(status['Uid'].split()) == {str(gateway_module.UID)}
    assert os.stat(f'/proc/{gw.proc.pid}/mem').st_uid == 0
    assert len(os.listdir(f'/proc/{gw.proc.pid}/task')) == 1
    kinds = {os.readlink(f'/proc/{gw.proc.pid}/fd/{fd}').split(':')[0] for fd in os.listdir(f'/proc/{gw.proc.pid}/fd')}
    assert kinds <= {'socket', 'anon_inode', 'pipe', '/dev/null', gw.log}


def test_out_of_descriptors(lab):
    """N18: an accept that fails for want of descriptors ends nothing."""
    g = gateway_module.Gateway(lab, files=48)
    try:
        g.configure(RULES)
        addr = g.address_of('web.test')
        socks = []
        for _ in range(100):
            s = lab.guest_socket()
            s.setblocking(False)
            s.connect_ex((addr, 7000))
            socks.append(s)
        wait_for(lambda: len(os.listdir(f'/proc/{g.proc.pid}/fd')) >= 47, 'all descriptors in use')
        for s in socks:
            s.close()
        assert exchange(g, 'web.test', 7000, b'abc') == (b'abc', False)
        assert g.curl('http://web.test/say')[0] == 0
    finally:
        g.close()


def test_nothing_is_left(gw):
    """After connections of every kind and end no descriptor, connection or name in use stays behind."""
    def mess():
        exchange(gw, 'web.test', 7000, b'x' * 1000)
        exchange(gw, 'web.test', 80, b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
        exchange(gw, 'web.test', 80, b'GET /say HTTP/1.1\r\nHost: other.test\r\n\r\n')
        exchange(gw, 'web.test', 80, b'garbage\r\n\r\n')
        exchange(gw, 'web.test', 443, b'\x16\x03\x01\0\x05')
        exchange(gw, 'loop.test', 80, b'GET / HTTP/1.1\r\nHost: loop.test\r\n\r\n')
        refused(gw, WEB, 80)
        s = tls(gw, 'api.test')
        s.sendall(b'GET /big HTTP/1.1\r\nHost: api.test\r\n\r\n')
        s.recv(1000)
        s.close()
        s = gw.dial('web.test', 7003)
        s.sendall(b'x')
        read_all(s)
        gw.dial('web.test', 80).close()
        gw.dial('web.test', 7002).close()

    def count():
        return len(os.listdir(f'/proc/{gw.proc.pid}/fd'))
    mess()
    wait_for(lambda: gw.query()['connections'] == 0, 'no connection')
    before, memory = count(), gw.private_kib()
    for _ in range(10):
        mess()
    wait_for(lambda: gw.query()['connections'] == 0, 'no connection')
    assert count() <= before + 8  # pipes and upstream connections that are kept
    assert gw.private_kib() < memory + 1024
