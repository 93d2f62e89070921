# SPDX-License-Identifier: Apache-2.0
"""cspace-token: the client credentials grant against a real server, and commands."""
import base64
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess

import pytest

import authority
from conftest import OTHER, PUBLIC, TOKEN, UID

OPEN = (f'{PUBLIC}/32', f'{OTHER}/32')  # addresses of this namespace's own: the host's own, to the program
REQUEST = {'token_url': 'https://auth.test/oauth/token', 'client_id': authority.CLIENT, 'secret': authority.SECRET, 'auth': 'basic'}


@pytest.fixture(scope='module')
def program():
    to = f'/var/tmp/cspace-token-test-{os.getpid()}'  # the build may lie where nobody can go
    shutil.copy(TOKEN, to)
    os.chmod(to, 0o755)
    yield to
    os.unlink(to)


def memfd(data):
    fd = os.memfd_create('x')
    os.write(fd, data)
    return fd


@pytest.fixture
def ask(world, program):
    def run(request=None, open_=OPEN, trust=None, timeout=5, args=None, **changes):
        request = {**REQUEST, **(request or {}), **changes}
        with open(trust or world.path('ca.crt'), 'rb') as f:
            fds = [memfd(json.dumps(request).encode()), memfd(f.read())]

        def prepare():
            high = [fcntl.fcntl(n, fcntl.F_DUPFD, 20) for n in fds]
            for i, n in enumerate(high):
                os.dup2(n, 3 + i)
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        argv = [program, '--timeout', str(timeout), '--resolver', '127.0.0.1', *(x for r in open_ for x in ('--open', r))]
        with world.inside():
            p = subprocess.Popen(args or argv, preexec_fn=prepare, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env={}, close_fds=False)
        for fd in fds:
            os.close(fd)
        out, err = p.communicate(timeout=60)
        assert err == b''
        assert authority.SECRET.encode() not in out
        return p.returncode, out.decode()
    return run


def token_of(answer):
    status, out = answer
    m = re.fullmatch(r'token (\d+) (\d+)\n(.*)\n', out)
    assert status == 0 and m and len(m[3]) == int(m[2]), answer
    return m[3], int(m[1])


def error_of(answer):
    status, out = answer
    assert status == 1 and out.startswith('error ') and out.endswith('\n') and out.count('\n') == 1, answer
    return out[6:-1]


def test_basic(world, ask):
    world.mode('ok 1234')
    token, seconds = token_of(ask(scope='read write', audience='https://api.test/'))
    assert token.startswith('tok-') and seconds == 1234
    asked, = world.asked()
    assert asked['path'] == '/oauth/token'
    assert asked['form'] == {'grant_type': ['client_credentials'], 'scope': ['read write'], 'audience': ['https://api.test/']}
    h = asked['headers']
    assert h['Accept'] == 'application/json' and h['Content-Type'] == 'application/x-www-form-urlencoded' and h['Host'] == 'auth.test'
    assert base64.b64decode(h['Authorization'].split()[1]) == b'client%2F1%20%C3%BC:hush%3Ahush%26%257%20secret'  # RFC 6749, 2.3.1


def test_secret_in_the_body(world, ask):
    world.mode('ok')
    token_of(ask(auth='body'))
    asked, = world.asked()
    assert asked['form'] == {'grant_type': ['client_credentials'], 'client_id': [authority.CLIENT], 'client_secret': [authority.SECRET]}
    assert 'Authorization' not in asked['headers']


def test_address_of_the_endpoint(world, ask):
    world.mode('ok')
    token_of(ask(token_url=f'https://{PUBLIC}/oauth/token'))


@pytest.mark.parametrize('mode, said', [
    ('status 500', 'answered 500: server_error'), ('status 404', 'answered 404'), ('raw not json', 'no JSON object'),
    ('raw {"access_token":"abcdefgh","token_type":"mac"}', 'not Bearer'), ('raw {"access_token":"x"}', '8 to 8192'),
    ('raw {"access_token":"two\\nlines"}', 'no token may have'), ('huge', 'longer than'), ('headers', 'longer than'),
    ('redirect https://other.test/', 'answered 307'), ('redirect http://127.0.0.1/', 'answered 307'),
])
def test_answers_that_are_none(world, ask, mode, said):
    world.mode(mode)
    assert said in error_of(ask())
    assert len(world.asked()) == 1  # nothing is followed


@pytest.mark.parametrize('mode', ['hang', 'drip'])
def test_time_limit(world, ask, mode):
    world.mode(mode)
    assert 'could not be asked' in error_of(ask(timeout=1))


def test_wrong_secret(world, ask):
    world.mode('ok')
    assert error_of(ask(secret='another')) == 'the token endpoint answered 401: invalid_client'


@pytest.mark.parametrize('url', ['https://auth.test:8443/', 'https://auth.test:8444/', 'https://other.test/'])
def test_tls_is_verified(world, ask, url):
    """Self-signed, expired, another name: the secret is not sent."""
    world.mode('ok')
    assert 'certificate' in error_of(ask(token_url=url)).lower()
    assert world.asked() == []


def test_tls_by_the_trust_store(world, ask):
    world.mode('ok')
    assert 'certificate' in error_of(ask(trust=world.path('self.crt'))).lower()
    assert world.asked() == []


@pytest.mark.parametrize('host, kind', [('loop.test', 'host'), ('private.test', 'host'), ('meta.test', 'host'), ('127.0.0.1', 'host'),
                                        ('127.9.9.9', 'loopback'), ('10.9.9.9', 'private'), ('192.168.1.1', 'private'), ('auth.test', 'host')])
def test_inward_addresses(world, ask, host, kind):
    """Whoever may add a credential cannot make this host speak to itself or its neighbours."""
    world.mode('ok')
    assert f'not public ({kind})' in error_of(ask(token_url=f'https://{host}/', open_=()))
    assert world.asked() == []


def test_what_the_operator_opened(world, ask):
    world.mode('ok')
    token_of(ask(token_url='https://private.test/', open_=('10.1.0.0/16',)))
    assert 'not public' in error_of(ask(token_url='https://loop.test/', open_=('10.1.0.0/16',)))


@pytest.mark.parametrize('url', ['http://auth.test/', 'https://', 'https://user@auth.test/', 'https://auth.test@other.test/', 'ftp://auth.test/',
                                 'file:///etc/passwd', 'https://auth.test/#x', 'https://auth.test\\@other.test/', 'https://[::1]/', 'https://0x7f000001/',
                                 'https://auth.test:0/', 'https://auth .test/', 'https://2130706433/'])
def test_urls(world, ask, url):
    world.mode('ok')
    assert 'URL' in error_of(ask(token_url=url))
    assert world.asked() == []


def test_unknown_name(world, ask):
    assert 'cannot be resolved' in error_of(ask(token_url='https://nowhere.test/'))


def test_no_proxy_no_files(world, ask, program):
    """The environment of whoever starts it and files of the host change nothing."""
    world.mode('ok')
    argv = ['/usr/bin/env', 'https_proxy=http://127.0.0.1:1', 'ALL_PROXY=http://127.0.0.1:1', 'HOME=/nowhere', 'SSL_CERT_FILE=/nowhere', program,
            '--resolver', '127.0.0.1', '--open', OPEN[0]]
    token_of(ask(args=argv))


# ---- commands

@pytest.fixture
def command(tmp_path, program):
    os.chmod(tmp_path, 0o755)
    for p in (tmp_path.parent, tmp_path.parent.parent):
        os.chmod(p, stat.S_IMODE(os.stat(p).st_mode) | 0o011)
    path = tmp_path / 'get-token'

    def run(script, timeout=5):
        path.write_text(script if script.startswith('#!') else '#!/bin/sh\n' + script)
        path.chmod(0o755)
        p = subprocess.run(['unshare', '-p', '-f', '--kill-child', 'setpriv', f'--reuid={UID}', f'--regid={UID}', '--clear-groups', program, '--timeout',
                            str(timeout), '--command', str(path)], capture_output=True, stdin=subprocess.DEVNULL, timeout=60, env={'PATH': '/usr/bin:/bin'})
        return p.returncode, p.stdout.decode()
    return run


def test_command(command):
    assert token_of(command('''echo '{"token":"abcdefgh","expires_in":60}' ''')) == ('abcdefgh', 60)
    assert token_of(command('''[ $# = 0 ] && [ -z "$(cat)" ] && echo '{"token":"abcdefgh"}' ''')) == ('abcdefgh', 300)
    assert token_of(command('#!/usr/bin/python3 -I\nprint(\'{"token":"from-python"}\')'))[0] == 'from-python'


@pytest.mark.parametrize('script, said', [
    ('exit 3', 'status 3'), ('kill -9 $$', 'signal 9'), ('#!/no/such/program\n', 'status 127'), ('echo hello', 'no JSON object'),
    ('exec cat /dev/zero', 'more than'), ('sleep 60', 'in time'), ('trap "" TERM; while :; do :; done', 'in time'),
    ('echo \'{"token":"abcdefgh","expires_in":60}\'; exit 1', 'status 1'), ('exec >&-; sleep 60', 'in time'),
])
def test_command_that_fails(command, script, said):
    assert said in error_of(command(script, timeout=1))


def test_what_a_command_leaves_running_is_not_waited_for(command):
    """It keeps the pipe open, and would keep the token from being used."""
    assert token_of(command('sleep 300 & echo \'{"token":"abcdefgh","expires_in":60}\'', timeout=100))[0] == 'abcdefgh'
