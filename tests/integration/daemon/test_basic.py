# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import resource
import socket
import subprocess

import pytest
import yaml

from conftest import BINARY, TOP, free_port


def spec():
    with open(os.path.join(TOP, 'api', 'openapi.yaml'), encoding='utf-8') as f:
        return yaml.safe_load(f)


def test_routes_are_described():
    if not os.path.exists(BINARY):
        pytest.skip(f'{BINARY} is not built')
    out = subprocess.run([BINARY, '--routes'], capture_output=True, text=True, check=True).stdout
    served = {tuple(line.split()) for line in out.splitlines()}
    native = {(m, p) for m, p in served if p.startswith('/v1/') or p in ('/health', '/health/', '/metrics', '/openapi.yaml')}
    described = {(m.upper(), p) for p, ops in spec()['paths'].items() for m in ops
                 if m in ('get', 'post', 'put', 'patch', 'delete')}
    assert native == described


def test_bodies_are_described():
    """JSON that goes in or comes out has a schema."""
    bare = []

    def look(where, node):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == 'application/json' and not (isinstance(value, dict) and value.get('schema')):
                bare.append(where)
            if isinstance(value, (dict, list)):
                look(where + (str(key),), value)
    look((), spec())
    assert bare == []


def test_codes_are_described():
    with open(os.path.join(TOP, 'src', 'daemon', 'api', 'api.h'), encoding='utf-8') as f:
        text = f.read().split('#define API_CODES(X)')[1].split('enum api_code')[0]
    import re
    codes = re.findall(r'X\(\w+, "(\w+)", \d+\)', text)
    assert codes == spec()['components']['schemas']['ErrorCode']['enum']


def test_public_routes(daemon):
    for path in ('/health', '/health/'):
        assert daemon.get(path, conn=daemon.tcp()).status == 204
    r = daemon.get('/openapi.yaml', conn=daemon.tcp())
    assert r.status == 200 and yaml.safe_load(r.body) == spec()
    assert daemon.get('/v1/version', conn=daemon.tcp()).json['api'] == 'v1'


def test_host_and_metrics(daemon):
    h = daemon.get('/v1/host').json
    assert h['engine'] == 'fake' and h['rootd'] == 'connected' and h['sandboxes']['running'] == 0
    m = daemon.get('/metrics')
    assert m.status == 200 and b'cspace_rootd_connected 1' in m.body


def test_errors_have_a_form(daemon):
    cases = [('GET', '/v1/nothing', None, 404, 'not_found'), ('POST', '/v1/host', None, 405, 'method_not_allowed'),
             ('GET', '/v1/sandboxes/nope', None, 404, 'sandbox_not_found'),
             ('GET', '/v1/operations/nope', None, 404, 'operation_not_found'),
             ('GET', '/v1/templates/nope', None, 404, 'template_not_found'),
             ('GET', '/v1/templates/-bad', None, 400, 'invalid_argument'),
             ('POST', '/v1/sandboxes', '{', 400, 'bad_request'), ('POST', '/v1/sandboxes', '[]', 400, 'bad_request'),
             ('POST', '/v1/sandboxes', None, 400, 'invalid_argument'),
             ('POST', '/v1/sandboxes', {'template': 'base', 'odd': 1}, 400, 'invalid_argument'),
             ('POST', '/v1/sandboxes?wait=601', {'template': 'base'}, 400, 'invalid_argument'),
             ('POST', '/v1/sandboxes?wait=-1', {'template': 'base'}, 400, 'invalid_argument'),
             ('POST', '/v1/sandboxes', {'template': 'base'}, 404, 'template_not_found'),
             ('GET', '/v1/sandboxes?cursor=x', None, 400, 'invalid_argument'),
             ('GET', '/v1/sandboxes?limit=0', None, 400, 'invalid_argument'),
             ('GET', '/v1/sandboxes?state=odd', None, 400, 'invalid_argument'),
             ('GET', '/v1/sandboxes/%zz', None, 400, 'bad_request')]
    for method, path, body, status, code in cases:
        r = daemon.request(method, path, body)
        assert (r.status, r.code) == (status, code), (method, path, r)
        assert r.json['error']['message']


def test_errors_name_the_value(ready):
    s = ready.create()['id']
    box = {'template': 'base'}
    cases = [('GET', '/v1/sandboxes?state=odd', None, '"odd"'), ('POST', '/v1/sandboxes', {**box, 'on_idle': 'sleep'}, '"sleep"'),
             ('POST', '/v1/sandboxes', {**box, 'on_expiry': 'sleep'}, '"sleep"'),
             ('POST', '/v1/sandboxes', {**box, 'checkpoint_every_s': 1}, '"checkpoint_every_s" is 1;'),
             ('POST', '/v1/sandboxes', {**box, 'disk_mb': 1}, 'and 1M were asked for'),
             ('POST', f'/v1/sandboxes/{s}/resume', None, f'"{s}" is running')]
    for method, path, body, words in cases:
        r = ready.request(method, path, body)
        assert r.status in (400, 409) and words in r.json['error']['message'], (path, body, r)


def test_too_large_a_body(daemon):
    r = daemon.post('/v1/sandboxes', b'{"template":"' + b'x' * (17 << 20) + b'"}')
    assert (r.status, r.code) == (413, 'body_too_large')


def test_keys(daemon):
    assert daemon.get('/v1/sandboxes', conn=daemon.tcp()).status == 401
    k = daemon.post('/v1/keys', {'name': 'ci'})
    assert k.status == 201
    text, ident = k.json['key'], k.json['id']
    assert len(text) == 44 and text.startswith('e2b_')
    for headers in ({'X-API-KEY': text}, {'Authorization': f'Bearer {text}'}, {'x-api-key': text}):
        assert daemon.get('/v1/sandboxes', conn=daemon.tcp(), headers=headers).status == 200
    for headers in ({'X-API-KEY': text[:-1] + 'g'}, {'X-API-KEY': text[:-1]}, {'Authorization': f'Basic {text}'}, {'X-API-KEY': ''}):
        r = daemon.get('/v1/sandboxes', conn=daemon.tcp(), headers=headers)
        assert (r.status, r.code) == (401, 'unauthenticated')
        assert text not in r.body.decode()
    listed = daemon.get('/v1/keys')
    assert text not in listed.body.decode() and listed.json['keys'][0]['prefix'] == text[:12]
    # a key holder does not manage keys
    r = daemon.post('/v1/keys', {}, conn=daemon.tcp(), headers={'X-API-KEY': text})
    assert (r.status, r.code) == (403, 'forbidden')
    # hashed at rest
    daemon.stop()
    for name in os.listdir(daemon.data):
        path = os.path.join(daemon.data, name)
        assert os.stat(path).st_mode & 0o077 == 0
        if os.path.isfile(path):
            with open(path, 'rb') as f:
                assert text.encode() not in f.read()
    daemon.start()
    # one that is in use does not look as if it never was
    used = daemon.get('/v1/keys').json['keys'][0]['last_used_at']
    assert used and k.json['created_at'] <= used <= listed.json['keys'][0]['last_used_at'], (used, listed.json)
    assert daemon.get('/v1/sandboxes', conn=daemon.tcp(), headers={'X-API-KEY': text}).status == 200
    # dead at once, also on a connection that is open
    conn = daemon.tcp()
    assert daemon.get('/v1/sandboxes', conn=conn, headers={'X-API-KEY': text}).status == 200
    assert daemon.delete(f'/v1/keys/{ident}').status == 204
    assert daemon.get('/v1/sandboxes', conn=conn, headers={'X-API-KEY': text}).status == 401
    assert daemon.delete(f'/v1/keys/{ident}').code == 'key_not_found'
    assert text not in daemon.text()


def test_no_exposure_without_a_key(bare):
    bare.start_standin()

    def refused(conf, listen):
        bare.start(conf=conf, args=('--listen', listen), wait=False)
        assert bare.proc.wait(10) == 1
        return bare.text()

    assert 'refusing to listen' in refused('', f'0.0.0.0:{bare.port}')
    assert 'there is no API key' in refused('[api]\ninsecure_listen = yes\n', f'0.0.0.0:{bare.port}')
    bare.start()
    assert bare.post('/v1/keys', {}).status == 201
    bare.stop()
    bare.start(conf='[api]\ninsecure_listen = yes\n', args=('--listen', f'0.0.0.0:{bare.port}'))


def test_one_daemon_at_a_time(daemon):
    second = subprocess.run([BINARY, '--config', '/dev/null', '--run', daemon.run, '--data', daemon.data, '--allow-root', '--listen', '127.0.0.1:1'],
                            capture_output=True, text=True, timeout=20)
    assert second.returncode == 1
    assert daemon.get('/health').status == 204
    run2 = os.path.join(daemon.top, 'run2')
    os.mkdir(run2)
    third = subprocess.run([BINARY, '--config', '/dev/null', '--run', run2, '--data', daemon.data, '--allow-root', '--listen',
                            f'127.0.0.1:{free_port()}'],
                           capture_output=True, text=True, timeout=20)
    assert third.returncode == 1 and 'locked' in third.stderr


def status(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        return dict(line.rstrip('\n').split(':\t', 1) for line in f if ':\t' in line)


def test_rights(bare):
    """Started as root it becomes its user, with nothing left of root."""
    import grp
    import pwd
    try:
        user = pwd.getpwnam('nobody')
        grp.getgrgid(user.pw_gid)
    except KeyError:
        pytest.skip('there is no user nobody')
    if os.geteuid() != 0:
        pytest.skip('needs root')
    os.chmod(bare.top, 0o755)
    os.chown(bare.data, user.pw_uid, user.pw_gid)
    argv = [BINARY, '--run', bare.run, '--data', bare.data, '--listen', f'127.0.0.1:{bare.port}', '--user', 'nobody',
            '--config', '/dev/null']
    bare.proc = subprocess.Popen(argv, stdout=bare.log, stderr=bare.log)
    from conftest import until
    until(bare.answers, what='api.sock')
    s = status(bare.proc.pid)
    assert s['Uid'].split() == [str(user.pw_uid)] * 4 and s['Gid'].split() == [str(user.pw_gid)] * 4
    assert s['Groups'].split() == [str(user.pw_gid)]
    assert all(int(s[k], 16) == 0 for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'))
    assert s['NoNewPrivs'] == '1' and s['Seccomp'] == '2' and s['Umask'] == '0077'
    st = os.stat(os.path.join(bare.run, 'api.sock'))
    assert (st.st_uid, st.st_gid, st.st_mode & 0o777) == (user.pw_uid, user.pw_gid, 0o660)
    refused = subprocess.run([*argv[:-4], '--user', 'root'], capture_output=True, text=True, timeout=20)
    assert refused.returncode == 1 and 'is root' in refused.stderr


def test_strangers_lock_nobody_out(daemon):
    """Connections that ask for nothing make way for those that do, and are none of the Unix socket's business."""
    d = daemon
    key = d.post('/v1/keys', {}).json['key']
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    known = d.tcp()
    assert d.get('/v1/host', headers={'X-API-KEY': key}, conn=known).status == 200
    idle = [socket.create_connection(('127.0.0.1', d.port)) for _ in range(1100)]
    assert d.get('/v1/host').status == 200
    assert d.get('/v1/host', headers={'X-API-KEY': key}, conn=d.tcp()).status == 200
    assert d.get('/v1/host', headers={'X-API-KEY': key}, conn=known).status == 200
    idle[0].settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        assert idle[0].recv(1) == b''
    for s in idle:
        s.close()
