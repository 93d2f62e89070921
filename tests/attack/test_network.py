# SPDX-License-Identifier: Apache-2.0
"""Attempts by a guest that belong to no other place. Each asserts that it is blocked and, where there is something to be recorded, the
record with rule and destination. README.md beside this has where each row of the catalogues is asserted."""
import json
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

import gateway as gateway_module
import h2client
from lab import WEB, wait_for
from talk import answer, exchange, one_answer, read_all, tls

GAP_S = 65


def refused(gw, host, port):
    s = gw.lab.guest_socket()
    try:
        s.connect((host, port))
        s.sendall(b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
    except (ConnectionResetError, BrokenPipeError):
        return True
    out, reset = read_all(s)
    return reset and not out


def no_network_at_all(gw):
    assert gw.lab.guest('getent', 'ahostsv4', 'web.test').returncode != 0
    assert refused(gw, WEB, 80) and refused(gw, '198.18.0.1', 443)
    with gw.lab.inside('guest'):
        ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for s, to, data in ((ping, (WEB, 0), b'\x08\0\xf7\xff\0\0\0\0'), (udp, (WEB, 123), b'x')):
        s.settimeout(0.3)
        s.sendto(data, to)
        with pytest.raises(TimeoutError):
            s.recv(2000)
        s.close()


# ---- nothing allowed

@pytest.mark.parametrize('rules', [None, []])
def test_no_policy_is_no_network(raw_gateway, rules):
    """N01: ICMP, DNS, TCP and UDP, to anywhere."""
    raw_gateway.configure(rules)
    no_network_at_all(raw_gateway)
    why = raw_gateway.record(kind='dns', host='web.test')
    assert why['verdict'] == 'deny' and why['reason'] == 'no_policy' and why['rule'] == 'default'
    assert raw_gateway.record(kind='connect', host=WEB, port=80)['reason'] == 'no_policy'


# ---- metadata and inward names, in every spelling

@pytest.mark.parametrize('form', ['169.254.169.254', '2852039166', '0xA9FEA9FE', '0251.0376.0251.0376', '169.254.43518', '0xa9.254.169.0376'])
def test_metadata_spellings(gw, form):
    """XF01 to XF05: all become one target, which is refused and recorded as such."""
    status, _, _ = gw.curl('-o', '/dev/null', f'http://{form}/latest/meta-data/')
    assert status in (7, 52, 56)
    r = gw.record(kind='connect', host='169.254.169.254', port=80)
    assert r['verdict'] == 'deny' and r['reason'] == 'address_literal' and r['rule'] == 'default'


@pytest.mark.parametrize('form', ['[::ffff:169.254.169.254]', '[::ffff:a9fe:a9fe]', '[fd00:ec2::254]', '[64:ff9b::a9fe:a9fe]', '[fe80::1%25eth0]', '[::1]'])
def test_ipv6_leads_nowhere(gw, form):
    """XF06 to XF09, XF14, N10: there is no IPv6 to send by, and such an authority is none."""
    status = gw.curl('-m', '5', f'http://{form}/')[0]
    if 'ffff' in form and status != 7:  # the guest's kernel sends it by IPv4
        assert gw.record(kind='connect', host='169.254.169.254', port=80)['reason'] == 'address_literal'
    else:
        assert status in (3, 7, 28)
    out, _ = exchange(gw, 'web.test', 80, f'GET / HTTP/1.1\r\nHost: {form}\r\n\r\n'.encode())
    assert answer(out)[0] in (400, 403)
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] in ('bad_authority', 'host_mismatch', 'http_malformed')


@pytest.mark.parametrize('name', ['metadata.google.internal', 'instance-data', 'metadata', 'kubernetes.default.svc', 'host.docker.internal', 'localhost.',
                                  'gateway', 'cspaced', 'abcdefghijklmnopqrstuvwxyz', '3000-abcdefghijklmnopqrstuvwxyz.sandbox.localhost'])
def test_inward_names(gw, name):
    """XF10, XF16: metadata, this host and other sandboxes have no name here; nobody is asked for one."""
    with gw.lab.inside('guest'):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    q = b'\x12\x34\1\0\0\1\0\0\0\0\0\0' + b''.join(bytes([len(p)]) + p.encode() for p in name.rstrip('.').split('.')) + b'\0\0\1\0\1'
    s.sendto(q, ('10.200.0.1', 53))
    assert s.recv(512)[3] & 15 == 5  # REFUSED
    r = gw.record(kind='dns', host=name.rstrip('.'))
    assert r['verdict'] == 'deny' and r['reason'] == 'no_rule' and r['rule'] == 'default'


# ---- DNS by other ways, and answers that are meant to do harm

@pytest.mark.parametrize('server', ['8.8.8.8', '1.1.1.1'])
def test_dns_over_tls(gw, server):
    """XD05: DoT by TCP; DoQ has no UDP to use; the host of a DoH service is a host like another."""
    assert refused(gw, server, 853)
    r = gw.record(kind='connect', host=server, port=853)
    assert r['verdict'] == 'deny' and r['reason'] == 'address_literal'
    s = gw.lab.guest_socket(socket.SOCK_DGRAM)
    s.settimeout(0.3)
    s.sendto(b'x' * 1200, (server, 853))
    with pytest.raises(TimeoutError):
        s.recv(2000)
    assert gw.lab.guest('getent', 'ahostsv4', 'dns.google').returncode != 0
    assert gw.record(kind='dns', host='dns.google')['reason'] == 'no_rule'


@pytest.mark.parametrize('name', ['alias', 'chain', 'mixed', 'many'])
def test_answers_that_lead_inward(gw, name):
    """XD07, XD08, XD09: by an alias, by a chain of them, beside a good address, among thousands: one address that may not be
    dialled refuses the connection."""
    status, body, err = gw.curl('-w', '%{http_code}', f'http://{name}.strange.test/say')
    assert status == 0 and body[-3:] in (b'403', b'502'), err
    r = gw.record(kind='request', host=f'{name}.strange.test')
    if name == 'many' and r['reason'] == 'resolve_failed':
        return  # more than are taken from an answer
    assert r['verdict'] == 'deny' and r['rule'] == 'web' and r['reason'] == 'address_refused'


@pytest.mark.parametrize('name', ['zero', 'forever', 'negative', 'most', 'good'])
def test_answers_with_odd_numbers(gw, name):
    """XD09: times to live of 0 and of 68 years, thousands of addresses; capped, and nothing of it stays."""
    before = gw.private_kib()
    for _ in range(5):
        status, body, err = gw.curl('-w', '%{http_code}', f'http://{name}.strange.test/say')
        assert status == 0 and body[-3:] in (b'200', b'502'), err
        assert name == 'most' or body.endswith(b'200')
    assert gw.private_kib() < before + 1024


@pytest.mark.parametrize('name', ['circle', 'loop', 'short', 'empty', 'none'])
def test_answers_that_are_broken(gw, name):
    """XD11, from the other side: what the resolver says is not believed either."""
    status, body, _ = gw.curl('-w', '%{http_code}', f'http://{name}.strange.test/say', timeout=90)
    assert status == 0 and body.endswith(b'502')
    assert gw.record(kind='request', host=f'{name}.strange.test')['reason'] == 'resolve_failed'
    assert gw.curl('http://good.strange.test/say')[0] == 0


# ---- ways around

def test_relay_in_the_guest(gw):
    """XE17: a proxy of the guest's own is the guest."""
    relay = """
import http.server, socket, threading
class P(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self):
        host, port = self.path.rsplit(':', 1)
        try:
            up = socket.create_connection((host, int(port)), 5)
        except OSError:
            self.send_error(502)
            return
        self.send_response(200); self.end_headers()
        def copy(a, b):
            try:
                while d := a.recv(65536): b.sendall(d)
            except OSError: pass
            for s in (a, b):
                try: s.shutdown(socket.SHUT_RDWR)
                except OSError: pass
        t = threading.Thread(target=copy, args=(up, self.connection)); t.start(); copy(self.connection, up); t.join()
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(('127.0.0.1', 3128), P); print('ready', flush=True); s.serve_forever()
"""
    p = subprocess.Popen(gw.lab.guest_argv('/usr/bin/python3', '-c', relay), stdout=subprocess.PIPE)
    try:
        gw.lab.ip('guest', 'link', 'set', 'lo', 'up')
        assert p.stdout.readline() == b'ready\n'
        proxy = ['-x', 'http://127.0.0.1:3128']
        assert gw.curl(*proxy, 'https://web.test/say')[0] == 0
        assert gw.record(kind='request', host='web.test')['verdict'] == 'allow'
        assert gw.curl(*proxy, 'https://denied.test/say')[0] != 0
        assert gw.record(kind='dns', host='denied.test')['reason'] == 'no_rule'
        assert gw.curl(*proxy, f'https://{WEB}/say')[0] != 0
        assert gw.record(kind='connect', host=WEB)['reason'] == 'address_literal'
    finally:
        p.kill()
        p.wait()


def test_redirect_is_judged_anew(gw):
    """XE29: the gateway follows nothing; the client's next hop is a request like another."""
    status, _, _ = gw.curl('-L', 'https://web.test/redirect')
    assert status != 0
    assert gw.record(kind='request', host='web.test', path='/redirect')['status'] == 302
    assert gw.record(kind='dns', host='denied.test')['reason'] == 'no_rule'


def test_another_tenant_of_an_allowed_host(gw):
    """XE35, XG12: of a host with many tenants only the named part, and only to be read."""
    assert b'uri=/say/acme/x' in gw.curl('https://other.test/say/acme/x')[1]
    for argv, reason in ((['https://other.test/say/evil/x'], 'path'), (['-X', 'PUT', '-d', 'x', 'https://other.test/say/acme/x'], 'method'),
                         (['--path-as-is', 'https://other.test/say/acme/../evil'], 'path_ambiguous'),
                         (['https://other.test/say/acme/%2e%2e%2fevil'], 'path_ambiguous'), (['https://other.test/say/acme'], 'path')):
        gw.forget()
        status, body, _ = gw.curl('-w', '%{http_code}', *argv)
        assert status == 0 and body.endswith(b'403')
        r = gw.record(kind='request', host='other.test', verdict='deny')
        assert r['reason'] in (reason, 'path') and r['rule'] in ('default', 'acme'), r


def test_client_certificates(gw):
    """XE10: inspected, the server's demand cannot be met and the client is told so; with "inspect": false it can."""
    status, body, err = gw.curl('-w', '%{http_code}', 'https://web.test:7101/')
    assert status == 0 and body.endswith(b'502'), err
    r = gw.record(kind='request', host='web.test', port=7101)
    assert r['reason'] in ('tls_upstream', 'connect_failed') and json.loads(body[:-3])['error']['reason'] == r['reason']
    p = gw.lab.path
    subprocess.run(['openssl', 'req', '-new', '-key', p('key.pem'), '-out', p('client.csr'), '-subj', '/CN=client'], check=True, capture_output=True)
    subprocess.run(['openssl', 'x509', '-req', '-in', p('client.csr'), '-CA', p('ca.crt'), '-CAkey', p('ca.key'), '-CAcreateserial', '-days', '2', '-out',
                    p('client.crt')], check=True, capture_output=True)
    r = gw.lab.guest('curl', '-sS', '-m', '20', '--cacert', p('ca.crt'), '--cert', p('client.crt'), '--key', p('key.pem'), 'https://api.test:7101/')
    assert r.stdout == b'hello', r.stderr
    assert gw.record(kind='connect', host='api.test', port=7101)['rule'] == 'blind'


# ---- one's own certificate authority

def test_authority_of_another_sandbox(servers):
    """XE42: a leaf of one sandbox's authority is worth nothing in another."""
    pems = []
    for seed in (b'a' * 32, b'b' * 32):
        import base64
        g = gateway_module.Gateway(servers)
        try:
            g.configure([{'action': 'allow', 'hosts': ['web.test']}], ca_seed=base64.b64encode(seed).decode())
            with open(g.ca, 'rb') as f:
                pems.append(f.read())
            s = tls(g, 'web.test')
            leaf = ssl.DER_cert_to_PEM_cert(s.getpeercert(True))
            s.close()
        finally:
            g.close()
    for i, ok in ((0, False), (1, True)):  # leaf is the second one's
        with open(servers.path('one-ca.pem'), 'wb') as f:
            f.write(pems[i])
        with open(servers.path('leaf.pem'), 'w') as f:
            f.write(leaf)
        r = subprocess.run(['openssl', 'verify', '-CAfile', servers.path('one-ca.pem'), servers.path('leaf.pem')], capture_output=True)
        assert (r.returncode == 0) is ok, r


# ---- exhaustion

def test_decompression_bomb(gw):
    """XE31: what is compressed is passed on as it is, in constant memory."""
    assert gw.curl('https://web.test:7100/')[1] == b'hello'
    before = gw.private_kib()
    status, body, err = gw.curl('-H', 'Accept-Encoding: gzip', 'https://web.test:7100/bomb')
    assert status == 0 and 900_000 < len(body) < 2_000_000, err
    assert gw.private_kib() < before + 1024
    r = gw.record(kind='request', path='/bomb')
    assert r['verdict'] == 'allow' and r['bytes_in'] < 2_000_000


def test_ten_thousand_short_connections(gw):
    """N06: half closed from either side; the next one works, and nothing is kept of them."""
    address = gw.address_of('web.test')
    failed = []

    def some(n):
        for i in range(n):
            try:
                s = gw.lab.guest_connect((address, 7000))
                s.sendall(b'x')
                if i % 2:
                    s.shutdown(socket.SHUT_WR)
                    assert s.recv(10) == b'x' and s.recv(10) == b''
                else:
                    assert s.recv(10) == b'x'
                s.close()
            except (OSError, AssertionError) as e:
                failed.append(e)
    some(100)
    wait_for(lambda: gw.query()['connections'] == 0, 'no connection')
    fds, memory = len(os.listdir(f'/proc/{gw.proc.pid}/fd')), gw.private_kib()
    threads = [threading.Thread(target=some, args=(2500,)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[:3]
    assert exchange(gw, 'web.test', 7000, b'the next') == (b'the next', False)
    wait_for(lambda: gw.query()['connections'] == 0, 'no connection', 60)
    assert len(os.listdir(f'/proc/{gw.proc.pid}/fd')) <= fds + 8
    assert gw.private_kib() < memory + 2048


def test_resets_that_the_server_does_not_read(gw):
    """HTTP/2: requests that are reset at once pile up where the server takes nothing. Not many of them: then the connection ends."""
    c = h2client.Client(gw, 'web.test', 7104)
    before, sent = gw.private_kib(), 0
    raw = h2client.head(authority='web.test:7104', path='/pile', more=[('x-much', 'a' * 12000)])
    try:
        while sent < 5000:
            c.s.sendall(h2client.frame(h2client.RST, 0, c.request(raw=raw), b'\0\0\0\x08'))
            sent += 1
            assert gw.private_kib() < before + 16384
    except OSError:
        pass
    assert sent < 5000
    wait_for(lambda: gw.query()['connections'] == 0, 'the end of the connection')
    assert gw.record(kind='connect', host='web.test', port=7104)['rule'] == 'h2'


def test_resets_that_the_guest_does_not_read(gw):
    """HTTP/2: the same for what the gateway answers to requests that are none."""
    gw.keep_records = False
    c = h2client.Client(gw, 'web.test', 7103)
    before, sent, bad = gw.private_kib(), 0, h2client.literal(b':method', b'GET')
    try:
        while sent < 4000000:
            c.s.sendall(b''.join(h2client.frame(h2client.HEADERS, 5, c.next + 2 * i, bad) for i in range(2000)))
            c.next, sent = c.next + 4000, sent + 2000
            assert gw.private_kib() < before + 16384
    except OSError:
        pass
    assert sent < 4000000
    c = h2client.Client(gw, 'web.test', 7103)
    assert c.answer(c.request(authority='web.test:7103'))[1:] == (b'1', None)


def test_own_credential_in_trailers(gw):
    """XG04: a field that a binding fills is left out behind the body too; other trailers arrive."""
    gw.configure([{'name': 'h2', 'action': 'allow', 'hosts': ['web.test:7103'], 'protocol': 'https'}], generation=2, secrets={'t': {'secret': 'sk-0123456789'}},
                 bindings=[{'id': 'b', 'credential': 't', 'hosts': ['web.test:7103'], 'inject': {'as': 'header', 'name': 'X-Api-Key'}}])
    c = h2client.Client(gw, 'web.test', 7103)
    for trailers, heads in (((b'x-api-key', b'mine'),), b'1'), (((b'x-api-key', b'mine'), (b'grpc-status', b'0')), b'2'), (((b'x', b'y'),), b'2'):
        stream = c.request(method='POST', authority='web.test:7103', end=False)
        c.s.sendall(h2client.frame(h2client.DATA, 0, stream, b'body') +
                    h2client.frame(h2client.HEADERS, 5, stream, b''.join(h2client.literal(*t) for t in trailers)))
        assert c.answer(stream)[1:] == (heads, None), trailers
    assert gw.record(kind='request', host='web.test')['binding'] == 'b'


# ---- long gaps

def test_a_minute_without_a_byte(gw):
    """N22: answers, uploads, tunnels and bytes go on where they were after a gap that is longer than the usual limits of proxies (30 s, 60 s),
    in everything that the gateway speaks. Its own limits are an hour and more."""
    def ask(port, path, blind=False):
        if blind:
            s = ssl.create_default_context(cafile=gw.lab.path('ca.crt')).wrap_socket(gw.dial('api.test', port, 120), server_hostname='api.test')
        else:
            s = tls(gw, 'web.test', port)
            s.settimeout(120)
        s.sendall(f'GET {path} HTTP/1.1\r\nHost: web.test:{port}\r\n\r\n'.encode())
        return s
    half, blind = ask(7100, '/half'), ask(7100, '/half', True)
    for s in (half, blind):
        seen = b''
        while not seen.endswith(b'half'):
            seen += s.recv(1000)
        assert seen.startswith(b'HTTP/1.1 200')
    late = ask(7100, '/late')
    kept = ask(443, '/say')
    assert one_answer(kept)[0] == 200
    up = tls(gw, 'web.test', 7100)
    up.settimeout(120)
    up.sendall(b'POST / HTTP/1.1\r\nHost: web.test:7100\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n')
    raw = gw.dial('web.test', 7000, 120)
    raw.sendall(b'half')
    assert raw.recv(4) == b'half'
    tunnel = gw.dial('web.test', 7004, 120)
    tunnel.sendall(b'GET / HTTP/1.1\r\nHost: web.test:7004\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n'
                   b'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n')
    seen = b''
    while not seen.endswith(b'hello'):
        seen += tunnel.recv(1000)
    h2 = h2client.Client(gw, 'web.test', 7102)
    h2.s.settimeout(120)
    down = h2.request(authority='web.test:7102', path='/down')
    up2 = h2.request(method='POST', authority='web.test:7102', path='/up', end=False)
    h2.s.sendall(h2client.frame(h2client.DATA, 0, up2, b'half'))
    # What is not allowed yet has no such time: a head and a ClientHello that come byte by byte.
    slow = {443: gw.dial('web.test', 443), 80: gw.dial('web.test', 80)}
    dribble = {443: b'\x16\x03\x01\x01\0\x01\0\0\xfc\x03\x03' + bytes(60), 80: b'GET /' + b'a' * 60}
    ends = {}
    for i in range(GAP_S // 5):
        for port, d in slow.items():
            try:
                d.send(dribble[port][i:i + 1])
            except OSError:
                ends.setdefault(port, i * 5)
        time.sleep(5)
    assert set(ends) == {80, 443}, ends
    assert gw.record(kind='connect', host='web.test', port=443, verdict='deny')['reason'] == 'timeout'
    assert gw.curl('https://web.test:7100/go')[0] == 0
    for s in (half, blind):
        assert s.recv(5) == b' more'
    assert one_answer(late)[::2] == (200, b'hello')
    kept.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert one_answer(kept)[0] == 200
    up.sendall(b'5\r\n more\r\n0\r\n\r\n')
    assert one_answer(up)[::2] == (200, b'9 in 2')
    for s in (raw, tunnel):
        s.sendall(b'more')
        assert s.recv(4) == b'more'
        s.close()
    assert h2.answer(down)[1:] == (b'half more', None)
    h2.s.sendall(h2client.frame(h2client.DATA, 1, up2, b' more'))
    assert h2.answer(up2)[1:] == (b'half more', None)
    for path in ('/half', '/late', '/down', '/up'):
        r = gw.record(kind='request', path=path)
        assert r['verdict'] == 'allow' and r['status'] == 200 and r['duration_us'] > GAP_S * 1000000


# ---- one reason

def test_one_reason_everywhere(gw):
    """N25, N39: by DNS, TCP, HTTP and inspected TLS the guest is told, and the record says, the same."""
    gw.configure([{'name': 'not-this', 'action': 'deny', 'hosts': ['denied.test']}, {'name': 'not-there', 'action': 'deny', 'hosts': ['web.test'], 'paths': ['/private/']},
                  {'name': 'web', 'action': 'allow', 'hosts': ['web.test']}], generation=2)
    with gw.lab.inside('guest'):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.sendto(b'\x12\x34\1\0\0\1\0\0\0\0\0\1\6denied\4test\0\0\1\0\1' + b'\0\0)\4\xd0\0\0\0\0\0\0', ('10.200.0.1', 53))
    said = s.recv(1000)
    assert b'cspace rule not-this: rule' in said or (b'not-this' in said and b'rule' in said)
    r = gw.record(kind='dns', host='denied.test')
    assert (r['verdict'], r['rule'], r['reason']) == ('deny', 'not-this', 'rule')
    for scheme, port in (('http', 80), ('https', 443)):
        gw.forget()
        status, body, _ = gw.curl('-w', '%{http_code}', f'{scheme}://web.test/private/x')
        assert status == 0 and body.endswith(b'403')
        error = json.loads(body[:-3])['error']
        assert (error['rule'], error['reason'], error['host'], error['port']) == ('not-there', 'rule', 'web.test', port)
        r = gw.record(kind='request', host='web.test')
        assert (r['verdict'], r['rule'], r['reason'], r['port'], r['path']) == ('deny', 'not-there', 'rule', port, '/private/x')
    gw.forget()
    assert refused(gw, gw.address_of('web.test'), 25)
    r = gw.record(kind='connect', host='web.test', port=25)
    assert (r['verdict'], r['rule'], r['reason']) == ('deny', 'default', 'port')


def test_websocket_of_a_thousand_frames(gw):
    """N19: each arrives, in order, with its bytes; so does the close with its code."""
    gw.configure([{'name': 'ws', 'action': 'allow', 'hosts': ['web.test:7004'], 'protocol': 'http'}], generation=2)
    s = gw.dial('web.test', 7004)
    s.sendall(b'GET /ws HTTP/1.1\r\nHost: web.test:7004\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n'
              b'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
    assert one_answer(s)[0] == 101
    frames = b''.join(b'\x82\x84\0\0\0\0' + i.to_bytes(4, 'big') for i in range(1000)) + b'\x89\x80\0\0\0\0' + b'\x88\x82\0\0\0\0\x0f\xa1'
    threading.Thread(target=s.sendall, args=(frames,), daemon=True).start()
    want = b'hello' + frames
    got = b''
    while len(got) < len(want):
        data = s.recv(65536)
        assert data
        got += data
    assert got == want
    s.close()
