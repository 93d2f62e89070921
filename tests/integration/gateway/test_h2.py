# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 with guests that speak nothing else: each stream is judged as a request is."""
import hashlib
import json
import os
import re

import pytest

import h2client
from h2client import Client, frame, head, literal

RULES = [
    {'name': 'h2', 'action': 'allow', 'hosts': ['web.test'], 'ports': [443, '8443-8444'], 'protocol': 'https'},
    {'name': 'read', 'action': 'allow', 'hosts': ['api.test'], 'ports': [8443], 'protocol': 'https', 'methods': ['GET'], 'paths': ['/say/**']},
    {'name': 'bad', 'action': 'allow', 'hosts': ['expired.test', 'loop.test']},
]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES)
    return raw_gateway


def nghttp(gw, *argv, **kwargs):
    return gw.lab.guest('nghttp', *argv, env={**os.environ, 'SSL_CERT_FILE': gw.ca}, **kwargs)


def test_get(gw):
    r = nghttp(gw, '-v', 'https://web.test:8443/say/x')
    assert b'uri=/say/x host=web.test:8443 proto=HTTP/2.0' in r.stdout, r.stdout
    rec = gw.record(kind='request', path='/say/x')
    assert rec['verdict'] == 'allow' and rec['rule'] == 'h2' and rec['status'] == 200 and rec['method'] == 'GET'


def test_http1_is_preferred(gw):
    """Who can do without HTTP/2 gets HTTP/1.1, which every server has."""
    r = gw.lab.guest('curl', '-sS', '--cacert', gw.ca, '-w', '%{http_version}', 'https://web.test/say')
    assert r.stdout.endswith(b'1.1'), r.stderr


def test_many_streams(gw):
    """XE05: one connection, many streams; large bodies whole."""
    r = gw.lab.guest('h2load', '-n', '2000', '-c', '4', '-m', '32', 'https://web.test:8443/say')
    assert b'2000 succeeded' in r.stdout and b'2000 2xx' in r.stdout, r.stdout
    r = nghttp(gw, 'https://web.test:8443/file')
    assert hashlib.sha256(r.stdout).hexdigest() == gw.lab.file_sha
    r = nghttp(gw, '-m', '3', '-s', '-n', 'https://web.test:8443/big', timeout=120)
    assert r.returncode == 0 and r.stdout.count(b' 200 ') == 3, r.stdout


def test_upload_and_trailers(gw):
    """As gRPC does it: a body up, a body down, and trailers behind it."""
    path = gw.lab.path('upload')
    blob = os.urandom(5 << 20)
    with open(path, 'wb') as f:
        f.write(blob)
    before = gw.private_kib()
    r = nghttp(gw, '-d', path, '--trailer', 'x-sent: 1', 'https://web.test:8444/', timeout=120)
    assert r.stdout == blob, (len(r.stdout), r.stderr)
    r = nghttp(gw, '-v', '-n', '-d', path, 'https://web.test:8444/', timeout=120)
    assert b'x-end: yes' in re.sub(rb'\x1b\[[0-9;]*m', b'', r.stdout)
    assert gw.private_kib() < before + 6144
    rec = gw.record(kind='request', method='POST')
    assert rec['bytes_out'] > 5 << 20 and rec['bytes_in'] > 5 << 20


def test_denied(gw):
    c = Client(gw, 'api.test', 8443)
    for path, method in (('/other', 'GET'), ('/say/x', 'DELETE'), ('/say/../x', 'GET')):
        _, body, reset = c.answer(c.request(path=path, method=method, authority='api.test:8443'))
        assert reset is None and json.loads(body)['error']['code'] == 'egress_denied'
        assert gw.record(kind='request', path=path)['status'] == 403
    _, body, reset = c.answer(c.request(path='/say/ok', authority='api.test:8443'))
    assert reset is None and b'uri=/say/ok' in body


@pytest.mark.parametrize('fields', [
    {'authority': 'denied.test'}, {'authority': 'web.test'}, {'authority': 'web.test@denied.test:8443'}, {'authority': None},
    {'more': [('host', 'denied.test')]}, {'authority': None, 'more': [('host', 'denied.test')]}, {'scheme': 'http'},
    {'more': [('host', 'web.test:8443'), ('host', 'web.test:8443')]}, {'authority': 'web.test:8443', 'more': [('host', 'web.test')]}])
def test_authority(gw, fields):
    """XE05, XE06: :authority and Host are one, and the connection's."""
    c = Client(gw, 'web.test', 8443)
    _, body, reset = c.answer(c.request(**fields))
    assert reset is not None or b'"error"' in body
    assert b'method=' not in body
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] in ('host_mismatch', 'bad_authority', 'http_malformed')
    if reset is None:
        assert b'method=GET' in c.answer(c.request())[1]  # the connection goes on


def test_host_field_alone(gw):
    c = Client(gw, 'web.test', 8443)
    assert b'method=GET' in c.answer(c.request(authority=None, more=[('host', 'web.test:8443')]))[1]


@pytest.mark.parametrize('raw', [
    literal(b':method', b'CONNECT') + literal(b':authority', b'denied.test:443'),
    literal(b':method', b'GET') + literal(b':path', b'/say'),
    head(more=[('connection', 'close')]), head(more=[('transfer-encoding', 'chunked')]), head(more=[('Upper', 'x')]),
    head(path='http://denied.test/'), head(path=''), head() + literal(b':path', b'/two'),
    head(more=[('x', 'a\r\nb: c')]), head(more=[('upgrade', 'websocket')]), head(more=[('content-length', '5')])])
def test_malformed(gw, raw):
    """Never let through; whatever of it is refused here or by the library."""
    c = Client(gw, 'web.test', 8443)
    _, body, reset = c.answer(c.request(raw=raw))
    assert reset is not None or b'"error"' in body
    assert b'method=' not in body
    assert gw.record(kind='request', verdict='deny')['reason'] in ('http_malformed', 'upgrade', 'bad_authority')


def test_large_head(gw):
    c = Client(gw, 'web.test', 8443)
    raw = head(more=[(f'x-{i}', 'a' * 100) for i in range(140)])
    stream = c.next
    c.next += 2
    c.s.sendall(frame(h2client.HEADERS, 1, stream, raw[:16000]) + frame(9, 4, stream, raw[16000:]))
    _, body, reset = c.answer(stream)
    assert reset is not None or b'http_malformed' in body
    assert gw.record(kind='request', host='web.test', verdict='deny')['reason'] == 'http_malformed'
    c = Client(gw, 'web.test', 8443)
    assert b'method=GET' in c.answer(c.request())[1]


def test_frame_floods(gw):
    """Pings, settings, resets and empty frames by the thousand: answered or cut, never remembered."""
    before = gw.private_kib()
    for flood in (frame(h2client.PING, 0, 0, b'12345678') * 20000, frame(h2client.SETTINGS, 0, 0) * 20000,
                  frame(h2client.WINDOW, 0, 0, b'\0\0\0\1') * 20000):
        c = Client(gw, 'web.test', 8443)
        try:
            c.s.sendall(flood)
        except OSError:
            pass
        c.s.close()
    c = Client(gw, 'web.test', 8443)  # rapid reset
    try:
        for i in range(3000):
            s = c.request()
            c.s.sendall(frame(h2client.RST, 0, s, b'\0\0\0\x08'))
    except OSError:
        pass
    c = Client(gw, 'web.test', 8443)
    assert b'method=GET' in c.answer(c.request())[1]
    assert gw.private_kib() < before + 8192


def test_byte_limit_of_heads(gw):
    gw.configure([{**RULES[0], 'limits': {'bytes_out': 10000}}])
    answered = [b'uri=/say' in nghttp(gw, '-v', '-H', 'x-much: ' + 'y' * 4000, 'https://web.test:8443/say').stdout for _ in range(4)]
    assert answered == [True, True, False, False]
    assert gw.record(verdict='deny')['reason'] == 'limit_bytes'


def test_server_without_http2(gw):
    r = nghttp(gw, '-v', 'https://web.test/say')
    assert b'does not speak HTTP/2' in r.stdout
    assert gw.record(kind='request', host='web.test', port=443)['reason'] == 'connect_failed'


@pytest.mark.parametrize('name,reason', [('expired.test', 'tls_upstream'), ('loop.test', 'address_refused')])
def test_upstream_refused(gw, name, reason):
    r = nghttp(gw, '-v', f'https://{name}/say')
    assert reason.encode() in r.stdout
    assert gw.record(kind='request', host=name)['reason'] == reason


def test_revocation(gw):
    c = Client(gw, 'web.test', 8443)
    assert b'method=GET' in c.answer(c.request())[1]
    gw.configure([{**RULES[0], 'methods': ['POST']}])
    _, body, _ = c.answer(c.request())
    assert json.loads(body)['error']['reason'] == 'method'
    gw.configure([RULES[1]])
    with pytest.raises(OSError):
        c.answer(c.request())


def test_credential(gw):
    secret = 'sk-live-0123456789abcdef'
    gw.configure(RULES, secrets={'t': {'secret': secret}}, bindings=[
        {'id': 'b', 'credential': 't', 'hosts': ['web.test:8444', 'web.test:8443'],
         'inject': {'as': 'header', 'name': 'Authorization', 'template': 'Bearer {secret}'}}])
    c = Client(gw, 'web.test', 8443)
    mark = os.urandom(6).hex()
    assert b'"error"' not in c.answer(c.request(path=f'/say?{mark}', more=[('authorization', 'mine')]))[1][:100]
    assert f'auth="Bearer {secret}"' in gw.lab.requests(mark)[0] and 'mine' not in gw.lab.requests(mark)[0]
    assert gw.record(kind='request', path='/say')['binding'] == 'b'
    c = Client(gw, 'web.test', 8444)  # echoes what is uploaded
    _, body, reset = c.answer(c.request(method='POST', path='/', authority='web.test:8444', body=b'x' * 50 + secret.encode() + b'y'))
    assert reset is None and body == b'x' * 50 + b'*' * len(secret) + b'y'
