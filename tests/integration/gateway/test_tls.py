# SPDX-License-Identifier: Apache-2.0
"""Which TLS connections are let through, looked into, or refused."""
import json
import os
import socket
import ssl
import struct
import subprocess
import time

import pytest

from lab import WEB
from talk import answer, exchange, one_answer, read_all, tls

RULES = [
    {'name': 'web', 'action': 'allow', 'hosts': ['web.test', '*.web.test', 'selfsigned.test', 'expired.test', 'wrongname.test']},
    {'name': 'blind', 'action': 'allow', 'hosts': ['cdn-a.test'], 'inspect': False},
    {'name': 'plain', 'action': 'allow', 'hosts': ['api.test'], 'protocol': 'http', 'ports': [80, 443]},
    {'name': 'odd', 'action': 'allow', 'hosts': ['web.test'], 'ports': [7007], 'protocol': 'https'},
]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES)
    return raw_gateway


def hello(name, alpn=None):
    """A real ClientHello for name, as one record."""
    ctx = ssl.create_default_context()
    ctx.check_hostname, ctx.verify_mode = False, ssl.CERT_NONE
    if alpn:
        ctx.set_alpn_protocols(alpn)
    out = ssl.MemoryBIO()
    obj = ctx.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        obj.do_handshake()
    return out.read()


def with_extension(record, extension):
    body = record[9:]
    at = 34
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at:at + 2], 'big')
    at += 1 + body[at]
    ext = body[at + 2:] + extension
    body = body[:at] + len(ext).to_bytes(2, 'big') + ext
    message = b'\x01' + len(body).to_bytes(3, 'big') + body
    return b'\x16\x03\x01' + len(message).to_bytes(2, 'big') + message


def is_reset(gw, name, data, port=443):
    s = gw.dial(name, port)
    try:
        s.sendall(data)
    except ConnectionResetError:
        return True
    out, reset = read_all(s)
    s.close()
    return reset and out == b''


# ---- names


@pytest.mark.parametrize('sni', ['other.test', 'www.web.test', 'denied.test'])
def test_other_name(gw, sni):
    """XE02, and one address with many names: what is asked for is what the address stands for."""
    assert is_reset(gw, 'web.test', hello(sni))
    r = gw.record(kind='connect', host='web.test', reason='host_mismatch')
    assert r['verdict'] == 'deny' and r['detail'] == sni


def test_other_name_blind(gw):
    """The same where nobody looks inside (XE35's CDN): cdn-b.test is at the same address."""
    assert is_reset(gw, 'cdn-a.test', hello('cdn-b.test'))
    assert gw.record(kind='connect', host='cdn-a.test')['reason'] == 'host_mismatch'


def test_no_name(gw):
    """XE03."""
    assert is_reset(gw, 'web.test', hello(None))
    assert gw.record(kind='connect', host='web.test')['reason'] == 'tls_no_sni'


def test_upper_case_name(gw):
    s = tls(gw, 'web.test', sni='WEB.Test')
    s.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert one_answer(s)[0] == 200


@pytest.mark.parametrize('name', [b'web.test.', b'web.test\0.other.test', b'.web.test', b'web test'])
def test_odd_names(gw, name):
    whole = hello('x' * len(name))
    assert is_reset(gw, 'web.test', whole.replace(b'x' * len(name), name))
    assert gw.record(kind='connect', host='web.test')['reason'] == 'tls_malformed'


def test_encrypted_hello(gw):
    """XE07, N42: refused where it could hide a name; where TLS ends here it cannot, and Chromium sends it always."""
    ech = b'\xfe\x0d\0\4\0\1\2\3'
    assert is_reset(gw, 'cdn-a.test', with_extension(hello('cdn-a.test'), ech))
    assert gw.record(kind='connect', host='cdn-a.test')['reason'] == 'tls_ech'
    s = gw.dial('web.test', 443)
    s.sendall(with_extension(hello('web.test'), ech))
    assert s.recv(1) == b'\x16'  # a handshake goes on, with the certificate of the name outside
    s.close()


def test_two_server_names(gw):
    assert is_reset(gw, 'web.test', with_extension(hello('web.test'), b'\0\0\0\x10\0\x0e\0\0\x0bdenied.test'))
    assert gw.record(kind='connect', host='web.test')['reason'] == 'tls_malformed'


def test_fragmented_hello(gw):
    """XE07: over many records, byte by byte; it is joined before it is judged."""
    message = hello('web.test')[5:]
    cut = b''.join(b'\x16\x03\x01' + len(message[i:i + 20]).to_bytes(2, 'big') + message[i:i + 20] for i in range(0, len(message), 20))
    s = gw.dial('web.test', 443)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(0, len(cut), 7):
        s.send(cut[i:i + 7])
    assert s.recv(3)[0] == 22  # a ServerHello
    other = hello('denied.test')[5:]
    cut = b''.join(b'\x16\x03\x01\0\x01' + other[i:i + 1] for i in range(60)) + b'\x16\x03\x01' + \
        (len(other) - 60).to_bytes(2, 'big') + other[60:]
    assert is_reset(gw, 'web.test', cut)
    assert gw.record(kind='connect', host='web.test', verdict='deny')['reason'] == 'host_mismatch'


@pytest.mark.parametrize('data', [b'\x16\x03\x01\x40\0\x01\0\xff\xff' + b'\0' * 16000, b'\x16\x03\x01\xff\xff', b'\x16\x03\x01\0\0',
                                  b'\x16\x03\x01\0\x05\x02\0\0\x01\0', b'\x16\x03\x01\0\x04\x01\0\0\0'])
def test_malformed_hello(gw, data):
    assert is_reset(gw, 'web.test', data)
    assert gw.record(kind='connect', host='web.test')['reason'] == 'tls_malformed'


def test_tls_where_only_http(gw):
    assert is_reset(gw, 'api.test', hello('api.test'))
    assert gw.record(kind='connect', host='api.test')['reason'] == 'protocol'


def test_http_on_the_tls_port(gw):
    out, _ = exchange(gw, 'cdn-a.test', 443, b'GET / HTTP/1.1\r\nHost: cdn-a.test\r\n\r\n')
    assert answer(out)[0] == 403  # "cdn-a.test" without a port is port 80
    assert gw.record(kind='request', host='cdn-a.test')['verdict'] == 'deny'


# ---- inside


def test_certificate(gw):
    """What the guest sees is the sandbox's authority, for exactly the name."""
    s = tls(gw, 'web.test')
    cert = s.getpeercert()
    assert cert['subjectAltName'] == (('DNS', 'web.test'),)
    assert dict(x[0] for x in cert['issuer'])['organizationName'] == 'cspace'
    assert s.selected_alpn_protocol() == 'http/1.1'
    r = gw.lab.guest('curl', '-sS', 'https://web.test/')  # without the authority
    assert r.returncode == 60
    assert 'tls_malformed' in gw.record(kind='connect', host='web.test', verdict='deny')['reason']


def test_alpn(gw):
    """XE09: something else than HTTP is not agreed to."""
    with pytest.raises(ssl.SSLError):
        tls(gw, 'web.test', alpn=['smtp'])
    r = gw.record(kind='connect', host='web.test', verdict='deny')
    assert r['reason'] == 'tls_malformed' and r['rule'] == 'web'
    assert tls(gw, 'web.test', alpn=['h2', 'http/1.1']).selected_alpn_protocol() in ('http/1.1', 'h2')
    ctx = ssl.create_default_context(cafile=gw.ca)
    s = ctx.wrap_socket(gw.dial('web.test', 443), server_hostname='web.test')
    assert s.selected_alpn_protocol() is None
    s.sendall(b'not HTTP at all\r\n\r\n')
    assert one_answer(s)[0] == 400
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] == 'http_malformed'


def test_openssl_client(gw):
    r = gw.lab.guest('openssl', 's_client', '-connect', 'web.test:443', '-servername', 'web.test', '-CAfile', gw.ca, '-verify_return_error',
                     '-verify_hostname', 'web.test', '-quiet', input=b'GET /say HTTP/1.0\r\nHost: web.test\r\n\r\n')
    assert b'method=GET' in r.stdout, r.stderr


@pytest.mark.parametrize('name,why', [('selfsigned.test', 'self'), ('expired.test', 'expired'), ('wrongname.test', 'ostname')])
def test_upstream_certificate(gw, name, why):
    """XE11: the gateway looks where the guest cannot any more."""
    status, body, err = gw.curl('-w', '%{http_code}', f'https://{name}/')
    assert status == 0 and body.endswith(b'502'), err
    error = json.loads(body[:-3])['error']
    assert error['reason'] == 'tls_upstream' and why in error['detail']
    r = gw.record(kind='request', host=name)
    assert r['verdict'] == 'deny' and r['reason'] == 'tls_upstream' and why in r['detail']


def test_server_sees_the_gateway(gw):
    """SNI goes on; what arrives inside is the request."""
    s = tls(gw, 'web.test', 7007)
    s.sendall(b'GET /x HTTP/1.1\r\nHost: web.test:7007\r\n\r\n')
    assert one_answer(s)[2] == b'GET /x HTTP/1.1\r\nHost: web.test:7007\r\n\r\n'


def test_blind(gw):
    """"inspect": false: the server's own certificate arrives."""
    s = tls_with(gw, gw.lab.path('ca.crt'), 'cdn-a.test')
    s.sendall(b'GET /say HTTP/1.1\r\nHost: cdn-b.test\r\n\r\n')  # what that gives up
    assert b'host=cdn-b.test' in one_answer(s)[2]
    s.close()
    r = gw.record(kind='connect', host='cdn-a.test')
    assert r['verdict'] == 'allow' and r['rule'] == 'blind' and r['bytes_in'] > 500


def tls_with(gw, ca, name):
    ctx = ssl.create_default_context(cafile=ca)
    return ctx.wrap_socket(gw.dial(name, 443), server_hostname=name)


def test_git_over_https(gw):
    """A real clone through an inspected connection, dumb protocol from static files."""
    lab = gw.lab
    repo = lab.path('repo')
    if not os.path.exists(repo):
        env = {**os.environ, 'GIT_CONFIG_GLOBAL': '/dev/null', 'GIT_AUTHOR_NAME': 'a', 'GIT_AUTHOR_EMAIL': 'a@b', 'GIT_COMMITTER_NAME': 'a',
               'GIT_COMMITTER_EMAIL': 'a@b'}
        for argv in (['git', 'init', '-q', repo], ['git', '-C', repo, 'commit', '-q', '--allow-empty', '-m', 'x'],
                     ['git', 'clone', '-q', '--bare', repo, lab.path('www/repo.git')],
                     ['git', '-C', lab.path('www/repo.git'), 'update-server-info']):
            subprocess.run(argv, check=True, env=env)
    r = lab.guest('git', 'clone', '-q', 'https://web.test/repo.git', lab.path(f'clone-{os.getpid()}'),
                  env={**os.environ, 'GIT_SSL_CAINFO': gw.ca})
    assert r.returncode == 0, r.stderr.decode()


def test_slow_handshake_where_bytes_are_allowed_too(gw):
    """Where a silent client is soon taken for one of bytes, one that has said that it speaks TLS has its time."""
    gw.configure([{'name': 'any', 'action': 'allow', 'hosts': ['web.test'], 'ports': [443], 'protocol': 'any'}], generation=2)
    ctx = ssl.create_default_context(cafile=gw.ca)
    in_, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    t = ctx.wrap_bio(in_, out, server_hostname='web.test')
    with pytest.raises(ssl.SSLWantReadError):
        t.do_handshake()
    s = gw.dial('web.test', 443)
    s.sendall(out.read())
    in_.write(s.recv(65536))
    time.sleep(1)  # more than CONN_DETECT_TCP_MS
    while True:
        try:
            t.do_handshake()
            break
        except ssl.SSLWantReadError:
            in_.write(s.recv(65536))
    t.write(b'GET /say HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n')
    s.sendall(out.read())
    in_.write(read_all(s)[0])
    assert t.read(1000).startswith(b'HTTP/1.1 200')


def test_session_reuse(gw):
    """A resumed session is judged like a first one."""
    ctx = ssl.create_default_context(cafile=gw.ca)
    ctx.check_hostname = False
    s = ctx.wrap_socket(gw.dial('web.test', 443), server_hostname='web.test')
    s.sendall(b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert one_answer(s)[0] == 200
    session = s.session
    s.close()
    assert session is not None
    with pytest.raises((ConnectionResetError, ssl.SSLError, ValueError)):
        ctx.wrap_socket(gw.dial('web.test', 443), server_hostname='denied.test', session=session)
    s = ctx.wrap_socket(gw.dial('web.test', 443), server_hostname='web.test', session=session)
    s.sendall(b'GET /say HTTP/1.1\r\nHost: denied.test\r\n\r\n')
    assert one_answer(s)[0] == 403


def test_address_literal(gw):
    s = gw.lab.guest_socket()
    with pytest.raises(ConnectionResetError):
        s.connect((WEB, 443))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 0, 0))
        s.sendall(b'x')
        s.recv(1)
        s.recv(1)
    assert gw.record(kind='connect', host=WEB)['reason'] == 'address_literal'
