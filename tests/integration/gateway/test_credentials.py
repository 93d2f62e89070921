# SPDX-License-Identifier: Apache-2.0
"""Secrets that the sandbox never sees: added where a binding says, nowhere else, and not told back."""
import base64
import json
import secrets

import pytest

import gateway as gateway_module
from talk import answer, exchange, one_answer, tls

RULES = [{'name': 'all', 'action': 'allow', 'hosts': ['web.test', 'www.web.test', 'api.test', 'other.test', 'cdn-a.test', 'expired.test']},
         {'name': 'blind', 'action': 'allow', 'hosts': ['cdn-b.test'], 'inspect': False}]
PLACEHOLDER = 'cspaceplaceholderabcdefghijklmnopqrstuvwxyz'
SECRET = 'sk-live-0123456789abcdef'


def bindings():
    bearer = {'as': 'header', 'name': 'Authorization', 'template': 'Bearer {secret}'}
    return [
        {'id': 'bearer', 'credential': 'token', 'hosts': ['web.test', 'cdn-b.test'], 'methods': ['GET', 'POST'], 'inject': bearer,
         'placeholder': PLACEHOLDER},
        {'id': 'basic', 'credential': 'token', 'hosts': ['www.web.test'], 'inject': {'as': 'basic', 'user': 'git'}},
        {'id': 'query', 'credential': 'token', 'hosts': ['api.test'], 'inject': {'as': 'query', 'name': 'key'}},
        {'id': 'unset', 'credential': 'missing', 'hosts': ['cdn-a.test'], 'inject': {'as': 'header', 'name': 'X-Api-Key'}},
    ]


@pytest.fixture
def gw(raw_gateway):
    raw_gateway.configure(RULES, bindings=bindings(), secrets={'token': {'secret': SECRET}})
    return raw_gateway


def marker():
    return secrets.token_hex(8)


def test_header(gw):
    """XG04, XG05: what the guest sends in its place is left out, in whatever spelling."""
    m = marker()
    status, body, err = gw.curl('-H', f'Authorization: Bearer {PLACEHOLDER}', '-H', 'authorization: Basic Zm9v', '-H', 'AUTHORIZATION: x',
                                f'https://web.test/app/secret?{m}')
    assert status == 0, err
    assert f'auth="Bearer {SECRET}"' in gw.lab.requests(m)[0] and 'enc="identity"' in gw.lab.requests(m)[0]
    sent = [v for k, v in json.loads(body)['echo'] if k.lower() == 'authorization']
    assert sent == ['Bearer ' + '*' * len(SECRET)] or sent == ['*' * len(f'Bearer {SECRET}')]
    assert SECRET.encode() not in body
    r = gw.record(kind='request', host='web.test', path='/app/secret')
    assert r['binding'] == 'bearer' and r['verdict'] == 'allow'


def test_basic(gw):
    m = marker()
    status, body, _ = gw.curl('-u', 'mine:own', f'https://www.web.test/app/secret?{m}')
    coded = base64.b64encode(f'git:{SECRET}'.encode()).decode()
    assert status == 0 and f'auth="Basic {coded}"' in gw.lab.requests(m)[0]
    assert coded.encode() not in body and SECRET.encode() not in body


def test_query(gw):
    m = marker()
    status, body, _ = gw.curl(f'https://api.test/app/secret?key=mine&{m}&KEY=x')
    line = gw.lab.requests(m)[0]
    assert status == 0 and f'key={SECRET}' in line and 'key=mine' not in line
    assert SECRET.encode() not in body
    assert SECRET not in str(gw.record(kind='request', host='api.test'))


def test_every_request_of_a_connection(gw):
    s = tls(gw, 'web.test')
    for i in range(3):
        m = marker()
        s.sendall(f'GET /app/secret?{m} HTTP/1.1\r\nHost: web.test\r\n\r\n'.encode())
        assert one_answer(s)[0] == 200
        assert SECRET in gw.lab.requests(m)[0], i
    m = marker()
    s.sendall(f'PUT /app?{m} HTTP/1.1\r\nHost: web.test\r\nAuthorization: mine\r\nContent-Length: 2\r\n\r\nab'.encode())
    assert one_answer(s)[0] == 200
    assert 'auth="-"' in gw.lab.requests(m)[0]  # XG12: not this method, and not the guest's own either


def test_plain_http(gw):
    """XG08."""
    m = marker()
    assert gw.curl('-H', 'Authorization: mine', f'http://web.test/say?{m}')[0] == 0
    assert 'auth="-"' in gw.lab.requests(m)[0]
    assert 'binding' not in gw.record(kind='request', host='web.test')


def test_another_port_and_the_address(gw):
    """XG09: the host, but not where the binding says it is."""
    gw.configure([{'name': 'odd', 'action': 'allow', 'hosts': ['web.test:8443'], 'protocol': 'https'},
                  {'name': 'address', 'action': 'allow', 'cidr': ['93.184.216.34'], 'ports': [443], 'protocol': 'https'}],
                 bindings=bindings(), generation=2)
    m = marker()
    assert gw.curl('-H', 'Authorization: mine', f'https://web.test:8443/say?{m}')[0] == 0
    assert 'auth="-"' in gw.lab.requests(m)[0]
    assert 'binding' not in gw.record(kind='request', port=8443)
    m = marker()
    assert gw.curl('-k', f'https://93.184.216.34/say?{m}')[0] == 0
    assert 'auth="-"' in gw.lab.requests(m)[0]
    r = gw.record(kind='request', host='93.184.216.34')
    assert r['verdict'] == 'allow' and 'binding' not in r


def test_other_hosts(gw):
    """XG01, XG02: a placeholder elsewhere is refused; other hosts keep their own authorisation."""
    m = marker()
    assert gw.curl('-H', 'Authorization: mine', f'https://other.test/say?{m}')[0] == 0
    assert 'auth="mine"' in gw.lab.requests(m)[0]
    for argv in (['-H', f'Authorization: {PLACEHOLDER}', 'https://other.test/say'], [f'https://other.test/say?x={PLACEHOLDER}'],
                 ['-H', f'Cookie: {PLACEHOLDER}', 'https://web.test/say'], ['-u', f'x:{PLACEHOLDER}', 'https://other.test/say']):
        gw.forget()
        status, body, err = gw.curl('-w', '%{http_code}', *argv)
        assert status == 0 and body.endswith(b'403'), err
        assert gw.record(kind='request', verdict='deny')['reason'] == 'placeholder'


def test_not_there(gw):
    """Fails closed."""
    status, body, _ = gw.curl('-w', '%{http_code}', 'https://cdn-a.test/say')
    assert status == 0 and body.endswith(b'503')
    error = json.loads(body[:-3])['error']
    assert (error['code'], error['reason'], error['credential']) == ('credential_unavailable', 'credential', 'missing')
    assert gw.record(kind='request', host='cdn-a.test')['reason'] == 'credential'


def test_rotation(gw):
    """XG14: the old value is not used from the answer on; a connection that is kept gets the new one."""
    s = tls(gw, 'web.test')
    for value in (SECRET, 'another-secret-1', 'another-secret-2'):
        if value != SECRET:
            gw.call('GW_SECRET', credential='token', secret=value)
        m = marker()
        s.sendall(f'GET /app/secret?{m} HTTP/1.1\r\nHost: web.test\r\n\r\n'.encode())
        assert one_answer(s)[0] == 200
        assert f'"Bearer {value}"' in gw.lab.requests(m)[0]
    gw.call('GW_SECRET', credential='token', secret='')
    s.sendall(b'GET /app HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert one_answer(s)[0] == 503
    r = gw.record(kind='request', status=503)
    assert r['verdict'] == 'deny' and r['reason'] == 'credential' and r['binding'] == 'bearer'
    with pytest.raises(gateway_module.ConfigError):
        gw.call('GW_SECRET', credential='nobody', secret='0123456789')


def test_kept_over_a_configuration(gw):
    gw.configure(RULES, bindings=bindings(), generation=2)
    m = marker()
    assert gw.curl(f'https://web.test/say?{m}')[0] == 0
    assert SECRET in gw.lab.requests(m)[0]
    gw.configure(RULES, generation=3)
    m = marker()
    assert gw.curl(f'https://web.test/say?{m}')[0] == 0
    assert 'auth="-"' in gw.lab.requests(m)[0]


def test_bad_bindings(gw):
    for bad in ([{'id': 'x'}], [{**bindings()[0], 'hosts': ['*']}], [{**bindings()[0], 'color': 1}]):
        with pytest.raises(gateway_module.ConfigError):
            gw.configure(RULES, bindings=bad)
    with pytest.raises(gateway_module.ConfigError):
        gw.configure(RULES, bindings=bindings(), secrets={'token': {'secret': 'two\nlines-of-it'}})
    m = marker()
    assert gw.curl(f'https://web.test/say?{m}')[0] == 0
    assert SECRET in gw.lab.requests(m)[0]


def test_uses_and_rate(gw):
    few = [{**bindings()[0], 'uses': 2}]
    gw.configure(RULES, bindings=few)
    codes = [gw.curl('-o', '/dev/null', '-w', '%{http_code}', 'https://web.test/say')[1] for _ in range(3)]
    assert codes == [b'200', b'200', b'403']
    assert gw.record(kind='request', verdict='deny')['reason'] == 'binding_uses'
    gw.configure(RULES, bindings=[{**bindings()[0], 'id': 'slow', 'rate': {'per_minute': 1, 'burst': 1}}])
    codes = [gw.curl('-o', '/dev/null', '-w', '%{http_code}', 'https://web.test/say')[1] for _ in range(2)]
    assert codes == [b'200', b'429']
    assert gw.record(kind='request', status=429)['reason'] == 'binding_rate'
    gw.configure(RULES, bindings=[{**bindings()[0], 'id': 'old', 'expires': '2020-01-01T00:00:00Z'}])
    assert gw.curl('-o', '/dev/null', '-w', '%{http_code}', 'https://web.test/say')[1] == b'403'
    r = gw.record(kind='request', reason='binding_expired')
    assert r['verdict'] == 'deny' and r['binding'] == 'old'


def test_upstream_that_does_not_verify(gw):
    """No secret goes to a server that is not who it should be."""
    gw.configure(RULES, bindings=[{**bindings()[0], 'hosts': ['expired.test']}])
    m = marker()
    status, body, _ = gw.curl('-w', '%{http_code}', f'https://expired.test/say?{m}')
    assert status == 0 and body.endswith(b'502')
    assert gw.record(kind='request', host='expired.test')['reason'] == 'tls_upstream'
    with pytest.raises(TimeoutError):
        gw.lab.requests(m, timeout=0.3)


def test_echo_over_pieces(gw):
    """A body in which the secret comes in many small chunks, and a chunked one, are masked too."""
    out, _ = exchange(gw, 'web.test', 80, b'GET /say HTTP/1.1\r\nHost: web.test\r\n\r\n')
    assert answer(out)[0] == 200
    s = tls(gw, 'web.test')
    body = ('x' * 100 + SECRET) * 3000
    s.sendall(f'POST /app/mirror HTTP/1.1\r\nHost: web.test\r\nContent-Length: {len(body)}\r\n\r\n{body}'.encode())
    status, _, got = one_answer(s)
    assert status == 200 and len(got) == len(body)
    assert SECRET.encode() not in got and got.count(b'*' * len(SECRET)) == 3000


def test_never_told(gw):
    """A06: the secret is in no record and no log."""
    gw.curl('https://web.test/app/secret')
    gw.curl('https://api.test/app/secret?key=x')
    gw.record(kind='connect', host='api.test')
    assert SECRET not in str(gw.records)
    with open(gw.log, encoding='utf-8') as f:
        assert SECRET not in f.read()
