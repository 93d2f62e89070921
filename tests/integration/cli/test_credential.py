# SPDX-License-Identifier: Apache-2.0
"""credential, bind, unbind, bindings."""
import os
import pty
import subprocess

import pytest

from test_commands import complete, json_lines, no_controls

SECRET = 'tok-é"\\7f3a'


def add(cli, name='token', secret=SECRET, *args):
    return cli('credential', 'add', *args, name, input=(secret + '\n').encode())


def test_add_ls_rm(cli, server, tmp_path):
    r = add(cli)
    assert (r.returncode, r.stdout, r.stderr) == (0, b'', b'')
    assert server.credentials == {'token': {'secret': SECRET}}
    path = tmp_path / 'secret'
    path.write_text('from a file\r\n')
    assert cli('credential', 'add', '--file', str(path), '--expires', '2030-01-01T00:00:00Z', 'other').returncode == 0
    assert server.credentials['other'] == {'secret': 'from a file', 'expires_at': '2030-01-01T00:00:00.000Z'}
    table = cli('credential', 'ls').stdout.decode()
    assert 'other' in table and 'token' in table and SECRET not in table and no_controls(table.encode())
    assert [c['name'] for c in json_lines(cli('credential', 'ls', '--json').stdout)[0]] == ['other', 'token']
    assert cli('credential', 'rm', 'other', 'token').stdout == b'other\ntoken\n'
    assert cli('credential', 'rm', 'token').returncode == 125
    assert b'credential add' in cli('credential', 'ls').stderr


def test_providers(cli, server):
    r = add(cli, 'crm', SECRET, '--oauth2', 'https://login.example.com/token', '--client-id', 'me', '--scope', 'a b', '--audience', 'x', '--client-auth', 'body')
    assert (r.returncode, r.stderr) == (0, b''), r
    assert server.credentials['crm'] == {'provider': 'oauth2', 'token_url': 'https://login.example.com/token', 'client_id': 'me', 'scope': 'a b',
                                         'audience': 'x', 'auth': 'body', 'secret': SECRET}
    r = cli('credential', 'add', '--command', 'vault', 'db')
    assert r.returncode == 0 and b'there is no command' in r.stderr  # stored all the same
    assert server.credentials['db'] == {'provider': 'command', 'command': 'vault'}
    table = cli('credential', 'ls').stdout
    assert b'oauth2' in table and b'failed: the ' in table and no_controls(table)
    n = len(server.credentials)
    for args in (['--oauth2', 'https://a.example/'], ['--client-id', 'x'], ['--scope', 'x'], ['--command', 'x', '--oauth2', 'https://a.example/'],
                 ['--command', 'x', '--expires', '2h'], ['--oauth2', 'https://a.example/', '--client-id', 'x', '--expires', '2h']):
        assert add(cli, 'bad', SECRET, *args).returncode == 2, args
    assert len(server.credentials) == n


def test_rotate(cli, server):
    r = cli('credential', 'rotate', 'token', input=b'long enough')
    assert r.returncode == 125 and b'does not exist' in r.stderr
    add(cli)
    assert cli('credential', 'rotate', '--expires', '2030-01-01T00:00:00Z', 'token', input=b'another one\n').returncode == 0
    assert server.credentials['token']['rotated'] == {'secret': 'another one', 'expires_at': '2030-01-01T00:00:00.000Z'}
    assert cli('credential', 'rotate', '--token', 'token').returncode == 0
    assert server.credentials['token']['rotated'] == {}
    assert cli('credential', 'rotate', '--token', '--expires', '2h', 'token').returncode == 2


def test_add_on_a_terminal(cli, server):
    ours, theirs = pty.openpty()
    p = cli.start('credential', 'add', 'token', stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    assert p.stderr.read(8) == b'Secret: '
    os.write(ours, b'typed secret\n')
    assert p.wait(20) == 0
    os.set_blocking(ours, False)
    try:
        shown = os.read(ours, 1000)
    except BlockingIOError:
        shown = b''
    assert b'typed' not in shown and server.credentials['token'] == {'secret': 'typed secret'}
    p.stderr.close()
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize('secret', [b'x' * 9000, b'a\0b', b'\xff\xfe\xff\xfe'])
def test_bad_secrets(cli, server, secret):
    assert cli('credential', 'add', 'token', input=secret).returncode == 2
    assert cli('credential', 'add', '--file', '/nonexistent', 'token').returncode == 2
    assert cli('credential', 'add', '--expires', 'soon', 'token', input=b'long enough').returncode == 2
    assert server.credentials == {}


def test_bind(cli, server, sandbox):
    r = cli('bindings', sandbox)
    assert (r.returncode, r.stdout) == (0, b'') and b'no bindings; `cspace bind' in r.stderr
    r = cli('bind', '--host', 'a.example', '--host', 'b.example:8443', '-X', 'GET', '--path', '/x/', '--header', 'X-Key=k {secret}', '--rate',
            '60', '--burst', '5', '--uses', '9', '--expires', '2030-01-01T00:00:00Z', '--env', 'KEY', '--id', 'mine', sandbox, 'token')
    assert (r.returncode, r.stdout) == (0, b'mine\n')
    assert server.sandboxes[sandbox]['bindings'] == [{
        'credential': 'token', 'hosts': ['a.example', 'b.example:8443'], 'methods': ['GET'], 'paths': ['/x/'], 'env': 'KEY', 'id': 'mine',
        'inject': {'as': 'header', 'name': 'X-Key', 'template': 'k {secret}'}, 'rate': {'per_minute': 60, 'burst': 5}, 'uses': 9,
        'expires': '2030-01-01T00:00:00.000Z'}]
    for option, inject in ((['--basic', 'git'], {'as': 'basic', 'user': 'git'}), (['--query', 'key'], {'as': 'query', 'name': 'key'}),
                           (['--header', 'X-Key'], {'as': 'header', 'name': 'X-Key'}), ([], None)):
        assert cli('bind', '--host', 'a', *option, sandbox, 'token').returncode == 0
        assert server.sandboxes[sandbox]['bindings'][-1].get('inject') == inject
    table = cli('bindings', sandbox).stdout.decode()
    assert 'a.example,b.example:8443' in table and '3 of 9' in table
    assert len(json_lines(cli('bindings', '--json', sandbox).stdout)[0]) == 5
    assert cli('unbind', sandbox, 'b1').stdout == b'b1\n'
    assert cli('unbind', sandbox, 'nope').returncode == 125


@pytest.mark.parametrize('args', [[], ['--host', 'a', '--basic', 'x', '--query', 'y'], ['--host', 'a', '--burst', '3'],
                                  ['--host', 'a', '--expires', 'soon'], ['--host', 'a', '--uses', '0']])
def test_bad_bind(cli, server, sandbox, args):
    assert cli('bind', *args, sandbox, 'token').returncode == 2
    assert 'bindings' not in server.sandboxes[sandbox]


def test_completion(cli, server, sandbox):
    server.credentials['token'] = {}
    assert complete(cli, 'credential', '') == ['add', 'rotate', 'ls', 'rm']
    assert complete(cli, 'credential', 'rm', '') == ['token']
    assert complete(cli, 'bind', '--host', 'a', '') == [sandbox]
    assert complete(cli, 'bind', '--host', 'a', sandbox, '') == ['token']
