# SPDX-License-Identifier: Apache-2.0
"""HTTP, plain and inspected, by real clients and by bytes."""
import base64
import hashlib
import json
import os
import socket
import subprocess
import threading
import time

import pytest

import gateway as gateway_module
from lab import WEB
from talk import answer, exchange, one_answer, read_all, tls

RULES = [
    {'name': 'web', 'action': 'allow', 'hosts': ['web.test', '*.web.test']},
    {'name': 'read', 'action': 'allow', 'hosts': ['api.test'], 'methods': ['GET', 'HEAD'], 'paths': ['/say/**', '/app/']},
    {'name': 'odd', 'action': 'allow', 'hosts': ['web.test'], 'ports': ['7000-7010'], 'protocol': 'http'},
    {'name': 'tlsodd', 'action': 'allow', 'hosts': ['web.test'], 'ports': [7007], 'protocol': 'https'},
]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES)
    return raw_gateway


# ---- what is allowed


def test_plain(gw):
    status, body, err = gw.curl('http://web.test/say/a%2Fb%3Fc?q=1')
    assert (status, body) == (0, b'method=GET uri=/say/a%2Fb%3Fc?q=1 host=web.test sni=\n'), err
    r = gw.record(kind='request', host='web.test')
    assert r['verdict'] == 'allow' and r['rule'] == 'web' and r['status'] == 200 and r['method'] == 'GET'
    assert r['path'] == '/say/a%2Fb%3Fc' and r['address'] == WEB
    assert gw.record(kind='connect', host='web.test')['bytes_in'] > 50


def test_inspected(gw):
    status, body, err = gw.curl('https://www.web.test/say')
    assert (status, body) == (0, b'method=GET uri=/say host=www.web.test sni=www.web.test\n'), err
    assert gw.record(kind='request', host='www.web.test')['protocol'] == 'tls'


@pytest.mark.parametrize('name, detail', [('nosuch.web.test', 'there is no such name, or it has no IPv4 address'),
                                          ('refused.web.test', 'the name servers gave no answer that could be used')])
def test_a_name_without_an_address(gw, name, detail):
    """Told as such, and not in the words of a file that is missing."""
    status, body, err = gw.curl(f'https://{name}/')
    assert status == 0, err
    told = json.loads(body)['error']
    assert (told['code'], told['reason'], told['detail']) == ('upstream_failed', 'resolve_failed', detail), told
    r = gw.record(kind='request', host=name)
    assert (r['reason'], r['detail']) == ('resolve_failed', detail), r


@pytest.mark.parametrize('version', ['1.2', '1.3'])
def test_versions(gw, version):
    status, _, err = gw.curl(f'--tlsv{version}', '--tls-max', version, 'https://web.test/')
    assert status == 0, err
    assert gw.curl('--tlsv1.0', '--tls-max', '1.1', 'https://web.test/')[0] == 35


def test_large_body(gw):
    status, body, err = gw.curl('https://web.test/file')
    assert status == 0, err
    assert hashlib.sha256(body).hexdigest() == gw.lab.file_sha


def test_keepalive_and_requests(gw):
    code = '''
import requests, hashlib, json
s = requests.Session()
for i in range(50):
    assert s.get('https://web.test/say/%d' % i).text.startswith('method=GET uri=/say/%d ' % i)
def parts():
    for i in range(20):
        yield b'x' * 3000
a = s.post('https://web.test/app', data=parts()).json()
assert a['body'] == 60000 and a['sha256'] == hashlib.sha256(b'x' * 60000).hexdigest(), a
a = s.put('http://web.test/app', data=b'y' * 100000).json()
assert a['body'] == 100000
assert s.head('https://web.test/app').status_code == 200
assert s.options('https://web.test/app').status_code == 200
'''
    r = gw.lab.guest('/usr/bin/python3', '-c', code, env={**os.environ, 'REQUESTS_CA_BUNDLE': gw.ca})
    assert r.returncode == 0, r.stderr.decode()
    wait = [gw.record(kind='connect', host='web.test', protocol='tls')]
    assert wait[0]['bytes_out'] > 60000
    assert len([r for r in gw.records if r['kind'] == 'connect' and r['protocol'] == 'tls']) == 1  # one connection for all


def test_pipelining_each_judged(gw):
    """XE22: a denied request behind an allowed one."""
    out, reset = exchange(gw, 'api.test', 80, b''.join(
        b'%s %s HTTP/1.1\r\nHost: api.test\r\n\r\n' % p for p in
        [(b'GET', b'/say/1'), (b'DELETE', b'/say/2'), (b'GET', b'/say/3'), (b'GET', b'/other'), (b'GET', b'/say/5')]))
    assert not reset
    parts = out.split(b'HTTP/1.1 ')[1:]
    assert [p[:3] for p in parts] == [b'200', b'403', b'200', b'403', b'200']
    assert json.loads(parts[1].split(b'\r\n\r\n')[1])['error'] == {
        'code': 'egress_denied', 'reason': 'method', 'rule': 'default', 'host': 'api.test', 'port': 80,
        'message': 'the host is allowed, but not with this method'}
    assert gw.record(kind='request', path='/say/2')['reason'] == 'method'
    assert gw.record(kind='request', path='/other')['reason'] == 'path'


def test_denied_request_keeps_connection(gw):
    s = tls(gw, 'api.test')
    for _ in range(2):
        s.sendall(b'POST /say/x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\n\r\nhello')
        status, head, _ = one_answer(s)
        assert status == 403 and b'Connection: close' not in head
    s.sendall(b'GET /say/ok HTTP/1.1\r\nHost: api.test\r\n\r\n')
    assert one_answer(s)[0] == 200
    s.close()


def test_expect_continue(gw):
    s = tls(gw, 'web.test')
    s.sendall(b'POST /app/x HTTP/1.1\r\nHost: web.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n')
    assert one_answer(s)[0] == 100
    s.sendall(b'12345')
    assert json.loads(one_answer(s)[2])['body'] == 5


def test_expect_refused(gw):
    s = gw.dial('api.test', 80)
    s.sendall(b'POST /app/x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n')
    out, reset = read_all(s)
    assert answer(out)[0] == 403 and b'Connection: close' in out and not reset


def test_early_answer(gw):
    """A server that answers before it has read the body: the answer arrives, whatever becomes of the body."""
    s = gw.dial('web.test', 7005)
    s.sendall(b'POST /early HTTP/1.1\r\nHost: web.test:7005\r\nContent-Length: 100000000\r\n\r\n')
    s.sendall(b'x' * 100000)
    out, _ = read_all(s)
    assert answer(out)[0] == 413 and out.endswith(b'enough')


def test_events_are_not_buffered(gw):
    """Server-sent events come one by one: the second is only sent when the first has arrived."""
    s = tls(gw, 'web.test')
    s.sendall(b'GET /app/stream HTTP/1.1\r\nHost: web.test\r\n\r\n')
    seen = b''
    for i in range(3):
        while b'data: %d' % i not in seen:
            seen += s.recv(65536)
        if i < 2:
            assert gw.curl('https://web.test/app/step')[0] == 0
    s.close()


def test_websocket(gw):
    key = base64.b64encode(b'0123456789abcdef').decode()
    s = gw.dial('web.test', 7004)
    s.sendall(f'GET / HTTP/1.1\r\nHost: web.test:7004\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n'
              f'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\nearly'.encode())
    out = b''
    while not out.endswith(b'early'):
        out += s.recv(65536)
    status, head, body = answer(out)
    assert status == 101 and b'Sec-WebSocket-Accept: BACScCJPNqyz+UBoqMH89VmURoA=' in head and body == b'helloearly'
    blob = os.urandom(1 << 20)
    threading.Thread(target=lambda: (s.sendall(blob), s.shutdown(socket.SHUT_WR)), daemon=True).start()
    back, reset = read_all(s)
    assert back == blob and not reset
    r = gw.record(kind='request', port=7004)
    assert r['status'] == 101 and r['bytes_out'] > 1 << 20 and r['bytes_in'] > 1 << 20


@pytest.mark.parametrize('upgrade', ['h2c', 'TLS/1.0', 'websocket, h2c', 'cspace-attach'])
def test_other_upgrades(gw, upgrade):
    """N21, XE23."""
    out, _ = exchange(gw, 'web.test', 80, f'GET / HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade, HTTP2-Settings\r\n'
                      f'Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n'.encode())
    assert answer(out)[0] == 403
    assert gw.record(kind='request', reason='upgrade')['verdict'] == 'deny'


def test_http2_preface(gw):
    """XE23: prior knowledge."""
    out, _ = exchange(gw, 'web.test', 80, b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0')
    assert answer(out)[0] in (400, 505)
    assert gw.record(kind='request', reason='http_malformed')['verdict'] == 'deny'


# ---- which host


@pytest.mark.parametrize('host', ['other.test', 'denied.test', 'web.test:81', 'web.test.', 'web.test@denied.test', 'denied.test#web.test',
                                  'web.test:', '127.0.0.1', '[::1]', 'xn--', 'web%2etest', 'ｗeb.test', 'web.test\\@a', 'a b', ''])
def test_host_differs(gw, host):
    """XE01, XE14, XE15: the authority is the connection's own or the request is refused."""
    out, _ = exchange(gw, 'web.test', 80, b'GET /say HTTP/1.1\r\nHost: ' + host.encode() + b'\r\n\r\n')
    status, _, body = answer(out)
    if host == 'web.test.':  # one canonical form
        assert status == 200 and gw.record(kind='request', host='web.test')['verdict'] == 'allow'
        return
    assert status in (400, 403), out
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] in ('host_mismatch', 'bad_authority', 'http_malformed')
    assert b'method=' not in body


def test_host_case(gw):
    assert answer(exchange(gw, 'web.test', 80, b'GET /say HTTP/1.1\r\nHost: WEB.Test\r\n\r\n')[0])[0] == 200


def test_two_hosts(gw):
    out, _ = exchange(gw, 'web.test', 80, b'GET / HTTP/1.1\r\nHost: web.test\r\nHost: denied.test\r\n\r\n')
    assert answer(out)[0] == 400
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] == 'http_malformed'


@pytest.mark.parametrize('line,status', [
    (b'GET http://web.test/say HTTP/1.1', 200), (b'GET http://denied.test/say HTTP/1.1', 400),
    (b'GET https://web.test/say HTTP/1.1', 403), (b'CONNECT web.test:80 HTTP/1.1', 403),
    (b'CONNECT denied.test:22 HTTP/1.1', 403), (b'GET http://web.test@denied.test/ HTTP/1.1', 400),
    (b'GET http://web.test HTTP/1.1', 200), (b'GET http://web.test?x HTTP/1.1', 200)])
def test_absolute_form(gw, line, status):
    """XE13, XE14, N27: never another upstream than the connection's."""
    out, _ = exchange(gw, 'web.test', 80, line + b'\r\nHost: web.test\r\n\r\n')
    assert answer(out)[0] == status, out
    r = gw.record(kind='request', host='web.test', status=status)
    if status == 200:
        assert r['verdict'] == 'allow' and r['address'] == WEB
    else:
        want = 'upgrade' if line.startswith(b'CONNECT') else 'host_mismatch' if b'https:' in line else 'http_malformed'
        assert r['verdict'] == 'deny' and r['reason'] == want, r


def test_fronting(gw):
    """XE01 inside TLS: honest SNI, another Host; and one address with many names."""
    s = tls(gw, 'web.test')
    s.sendall(b'GET /say HTTP/1.1\r\nHost: denied.test\r\n\r\n')
    status, _, body = one_answer(s)
    assert status == 403 and json.loads(body)['error']['reason'] == 'host_mismatch'
    assert gw.record(kind='request', host='web.test', reason='host_mismatch')['verdict'] == 'deny'


def test_forged_identity_headers(gw):
    """XE39: they decide nothing here, and PROXY protocol is no request."""
    out, _ = exchange(gw, 'web.test', 80, b'PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert answer(out)[0] == 400
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] == 'http_malformed'
    out, _ = exchange(gw, 'api.test', 80, b'DELETE /say HTTP/1.1\r\nHost: api.test\r\nX-Sandbox-Id: other\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n')
    assert answer(out)[0] == 403
    r = gw.record(kind='request', host='api.test')
    assert (r['verdict'], r['reason'], r['sandbox']) == ('deny', 'method', gateway_module.ID)


# ---- framing

BAD_REQUESTS = {
    'cl_te': b'POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    'te_cl': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n',
    'te_te': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n',
    'te_xchunked': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
    'te_gzip': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n',
    'te_tab': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n',
    'te_space': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n',
    'cl_cl': b'POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd',
    'cl_list': b'POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 4, 4\r\n\r\nabcd',
    'cl_plus': b'POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: +4\r\n\r\nabcd',
    'cl_hex': b'POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 0x4\r\n\r\nabcd',
    'fold': b'GET / HTTP/1.1\r\nHost: web.test\r\nX: a\r\n b\r\n\r\n',
    'bare_cr': b'GET / HTTP/1.1\r\nHost: web.test\r\nX: a\rY: b\r\n\r\n',
    'bare_lf': b'GET / HTTP/1.1\nHost: web.test\n\n',
    'nul': b'GET / HTTP/1.1\r\nHost: web.test\r\nX: a\0b\r\n\r\n',
    'no_host': b'GET / HTTP/1.1\r\n\r\n',
    'chunk_size': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n',
    'chunk_long': b'POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloGET / HTTP/1.1\r\n',
    'space_target': b'GET /a b HTTP/1.1\r\nHost: web.test\r\n\r\n',
    'garbage': b'\x01\x02\x03\x04\r\n\r\n',
}


@pytest.mark.parametrize('kind', BAD_REQUESTS)
def test_ambiguous(gw, kind):
    """XE19, XE21: refused, closed, recorded; nothing reaches the server as a second request."""
    path = f'/say/smuggled-{kind}'
    out, _ = exchange(gw, 'web.test', 80, BAD_REQUESTS[kind] + f'GET {path} HTTP/1.1\r\nHost: web.test\r\n\r\n'.encode())
    assert out == b'' or answer(out)[0] in (400, 501), out
    assert b'smuggled' not in out
    r = gw.record(kind='request' if out else 'connect', host='web.test', verdict='deny')
    assert r['reason'] in ('http_malformed', 'protocol')
    assert gw.curl(f'http://web.test/say/after-{kind}')[0] == 0
    gw.lab.requests(f'/say/after-{kind} ')  # what came before it is in the server's log too
    with pytest.raises(TimeoutError):
        gw.lab.requests(path, timeout=0)


def test_large_heads(gw):
    """XE30."""
    out, _ = exchange(gw, 'web.test', 80, b'GET /' + b'a' * 70000 + b' HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert answer(out)[0] == 414
    assert gw.record(kind='request', host='web.test', status=414)['reason'] == 'http_malformed'
    out, _ = exchange(gw, 'web.test', 80, b'GET / HTTP/1.1\r\nHost: web.test\r\n' + b'X: a\r\n' * 1000 + b'\r\n')
    assert answer(out)[0] == 431
    r = gw.record(kind='request', host='web.test', status=431)
    assert r['verdict'] == 'deny' and r['reason'] == 'http_malformed'


def test_override_headers(gw):
    """XE25."""
    out, _ = exchange(gw, 'api.test', 80, b'GET /say/a HTTP/1.1\r\nHost: api.test\r\nX-HTTP-Method-Override: DELETE\r\n\r\n')
    assert answer(out)[0] == 403
    assert gw.record(kind='request', reason='method_ambiguous')['verdict'] == 'deny'
    for method in (b'get', b'TRACE', b'FOO'):
        assert answer(exchange(gw, 'api.test', 80, method + b' /say/a HTTP/1.1\r\nHost: api.test\r\n\r\n')[0])[0] == 403
        r = gw.record(kind='request', method=method.decode())
        assert r['verdict'] == 'deny' and r['reason'] == ('method_ambiguous' if method == b'get' else 'method') and r['path'] == '/say/a', r


@pytest.mark.parametrize('path', ['/say/../other', '/say/%2e%2e/other', '/say//x', '/say%2fx', '/say/..%2fother', '/say/%252e%252e/x',
                                  '/say/..;/x', '/app/%00', '/say/x%', '/app/%c0%ae%c0%ae/'])
def test_path_tricks(gw, path):
    """XE26: one reading, or none."""
    out, _ = exchange(gw, 'api.test', 80, f'GET {path} HTTP/1.1\r\nHost: api.test\r\n\r\n'.encode())
    status, _, body = answer(out)
    if path in ('/say//x', '/say%2fx') and status == 200:
        assert b'uri=' + path.encode() in body  # unchanged
    else:
        assert status == 403, out
        r = gw.record(kind='request', host='api.test')
        assert r['verdict'] == 'deny' and r['reason'] in ('path_ambiguous', 'path') and r['rule'] in ('read', 'default'), r


def test_hop_by_hop(gw):
    """What belongs to the guest's connection stays on it; the rest arrives unchanged, in order."""
    out, _ = exchange(gw, 'web.test', 7006, b'GET /x HTTP/1.1\r\nHost: web.test:7006\r\nX-B: 2\r\nx-a: 1\r\nConnection: X-Hop, close\r\n'
                      b'X-Hop: secret\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\nCookie: a=b; c=d\r\n\r\n')
    assert answer(out)[2] == b'GET /x HTTP/1.1\r\nHost: web.test:7006\r\nX-B: 2\r\nx-a: 1\r\nCookie: a=b; c=d\r\n\r\n'


def test_chunks_end_to_end(gw):
    out, _ = exchange(gw, 'web.test', 7006, b'POST /x HTTP/1.1\r\nHost: web.test:7006\r\nTransfer-Encoding: chunked\r\n\r\n'
                      b'3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: x\r\n\r\n')
    assert answer(out)[2] == (b'POST /x HTTP/1.1\r\nHost: web.test:7006\r\nTransfer-Encoding: chunked\r\n\r\n'
                              b'3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n')


# ---- odd servers


@pytest.mark.parametrize('path,want', [('/both', 502), ('/two', 502), ('/huge', 502), ('/nothing', 502), ('/flood', 502),
                                       ('/switch', 502), ('/interim', 200), ('/surplus', 200), ('/altsvc', 200), ('/close', 200)])
def test_odd_responses(gw, path, want):
    """XE30, XE33."""
    out, reset = exchange(gw, 'web.test', 7005, f'GET {path} HTTP/1.1\r\nHost: web.test:7005\r\n\r\n'.encode())
    parts = out.split(b'HTTP/1.1 ')[1:]
    assert parts[-1].startswith(b'%d ' % want) and not reset, out
    r = gw.record(kind='request', path=path)
    assert r['status'] == want and r['rule'] == 'odd' and (want == 200 or r['reason'] == 'connect_failed'), r
    if path == '/interim':
        assert parts[0].startswith(b'103 ') and b'Link: </a>' in parts[0]
    if path == '/surplus':
        assert b'evil' not in out
    if path == '/altsvc':
        assert b'lt-Svc' not in out and b'X-Kept: yes' in out
    if path == '/close':
        assert out.endswith(b'\r\nuntil the end\r\n0\r\n\r\n')


def test_cut_response(gw):
    """A response that is cut short is never made to look complete."""
    out, reset = exchange(gw, 'web.test', 7005, b'GET /short HTTP/1.1\r\nHost: web.test:7005\r\n\r\n')
    assert out == b'' or out.endswith(b'short')
    assert reset
    assert gw.record(kind='request', path='/short')['reason'] == 'connect_failed'


def test_old_client(gw):
    out, reset = exchange(gw, 'web.test', 7005, b'GET /close HTTP/1.0\r\n\r\n')
    assert out.endswith(b'\r\n\r\nuntil the end') and b'chunked' not in out and not reset


# ---- much, slow, and broken


def test_upload_in_constant_memory(gw):
    before = peak = gw.private_kib()
    size, done = 512 << 20, []

    def upload():
        done.append(gw.lab.guest('sh', '-c', f'head -c {size} /dev/zero | curl -sS --cacert {gw.ca} -T - https://web.test/app/up', timeout=120))
    t = threading.Thread(target=upload)
    t.start()
    while t.is_alive():
        t.join(0.05)
        peak = max(peak, gw.private_kib())
    r, = done
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout)['body'] == size
    print(f'private memory: {before} KiB before, {peak} KiB at most while {size >> 20} MiB went up')
    assert peak < before + 4096


def test_slow_reader(gw):
    """Whoever reads slowly holds the server back, not the gateway's memory."""
    s = tls(gw, 'web.test')
    s.sendall(b'GET /big HTTP/1.1\r\nHost: web.test\r\n\r\n')
    before = gw.private_kib()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert s.recv(1000)
        assert gw.private_kib() < before + 4096
        time.sleep(0.02)
    s.close()
    assert gw.record(kind='request', path='/big')['bytes_in'] < 64 << 20


@pytest.mark.parametrize('method,status', [('GET', b'200'), ('DELETE', b'403')])
def test_pipelining_without_reading(gw, method, status):
    """Whoever does not read its answers is held back; when it does, all of them are there."""
    s = gw.dial('api.test', 80)
    request = f'{method} /say/x HTTP/1.1\r\nHost: api.test\r\nX-Much: {"a" * 2000}\r\n\r\n'.encode()
    before, sent, last = gw.private_kib(), 0, time.monotonic()
    s.setblocking(False)
    while time.monotonic() < last + 1 and sent < 64 << 20:
        try:
            sent += s.send(request[sent % len(request):] + request * 100)
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    assert sent < 64 << 20
    assert gw.private_kib() < before + 8192  # records that wait to be taken, too
    s.setblocking(True)
    s.settimeout(60)
    n, seen, got = sent // len(request), b'', 0
    while got < n:
        data = s.recv(1 << 20)
        assert data
        seen += data
        got += seen.count(b'HTTP/1.1 ' + status)
        seen = seen[-11:]  # less than one
    s.close()


def test_many_connections(gw):
    """N18 and idle cost: what a thousand idle connections take."""
    before = gw.private_kib()
    addr = gw.address_of('web.test')
    socks = []
    for _ in range(1000):
        s = gw.lab.guest_socket()
        s.connect((addr, 80))
        s.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
        socks.append(s)
    for s in socks:
        assert s.recv(65536).startswith(b'HTTP/1.1 200')
    per = (gw.private_kib() - before) / 1000
    print(f'{per:.1f} KiB for each of 1000 idle connections')
    assert per < 40
    for s in socks:
        s.close()
    assert gw.curl('http://web.test/say')[0] == 0


def test_many_requests_on_one_connection(gw):
    s = tls(gw, 'web.test')
    request = b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n'
    n = 5000
    threading.Thread(target=lambda: s.sendall(request * n), daemon=True).start()
    seen, want = b'', 0
    while want < n:
        data = s.recv(65536)
        assert data
        seen += data
        want += seen.count(b'HTTP/1.1 200')
        seen = seen[-11:] if not seen.endswith(b'HTTP/1.1 200') else b''
    s.close()


def test_killed(gw):
    """XC23, N17: the sandbox loses egress and gets it back; the authority is the same."""
    ca = open(gw.ca, encoding='ascii').read()
    addr = gw.address_of('web.test')
    with gw.changed:
        assert gw.changed.wait_for(lambda: gw.names and any(n[0] == 'web.test' for n in gw.names['names']), 10)
    gw.proc.kill()
    gw.proc.wait()
    assert gw.lab.guest('curl', '-m', '3', f'http://{addr}/').returncode in (7, 28)
    gw.restart()
    assert gw.lab.guest('curl', '-m', '3', f'http://{addr}/').returncode in (7, 56)  # there, and nothing allowed yet
    gw.configure(RULES, names=gw.names)
    key = subprocess.run(['openssl', 'x509', '-noout', '-pubkey'], input=ca, text=True, capture_output=True, check=True).stdout
    again = subprocess.run(['openssl', 'x509', '-noout', '-pubkey', '-in', gw.ca], text=True, capture_output=True, check=True).stdout
    assert key == again
    assert gw.address_of('web.test') == addr
    with open(gw.ca, 'w', encoding='ascii') as f:
        f.write(ca)
    status, _, err = gw.curl('https://web.test/')
    assert status == 0, err


def test_server_that_closes(gw):
    """A server that ends each connection without saying so: the guest's goes on, and what can be sent again is."""
    s = gw.dial('web.test', 7005)
    for i in range(50):
        s.sendall(b'GET /altsvc HTTP/1.1\r\nHost: web.test:7005\r\n\r\n')
        assert one_answer(s)[0] == 200, i
