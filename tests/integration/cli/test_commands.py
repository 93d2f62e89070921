# SPDX-License-Identifier: Apache-2.0
"""Everything that is neither a stream nor a copy: tables, JSON, errors, completion."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from conftest import wait_for
from standin import Refused

EVIL = 'a\x1b]0;owned\x07\x1b[2J\u202egpj\u009bm\u200bz'
SAFE = 'a\\x1b]0;owned\\x07\\x1b[2J\\u{202e}gpj\\u{9b}m\\u{200b}z'


def no_controls(data):
    text = data.decode()
    return not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]', text)


def json_lines(data):
    return [json.loads(line) for line in data.decode().splitlines()]


# --- tables and JSON ----------------------------------------------------------------------------------

def test_ls_pages_and_order(cli, server):
    ids = [cli('create', '-q').stdout.decode().strip() for _ in range(5)]
    for i, id_ in enumerate(ids):
        server.sandboxes[id_]['created_at'] = f'2026-01-0{i + 1}T00:00:00.000Z'
    assert cli('ls', '-q').stdout.decode().split() == ids[::-1]
    table = cli('ls').stdout.decode().splitlines()
    assert table[0].split() == ['ID', 'NAME', 'STATE', 'TEMPLATE', 'MEMORY', 'CPUS', 'CREATED', 'EXPIRES']
    assert len({line.index('base:latest') for line in table[1:]}) == 1  # aligned
    assert all(line == line.rstrip() for line in table)
    assert [s['id'] for s in json_lines(cli('--json', 'ls').stdout)[0]] == ids[::-1]
    assert cli('ls', '--json').stdout == cli('--json', 'ls').stdout


def test_ls_empty(cli):
    r = cli('ls')
    assert (r.returncode, r.stdout) == (0, b'') and b'cspace create' in r.stderr
    assert cli('ls', '--json').stdout == b'[]\n'


def test_no_colour_in_a_pipe(cli, sandbox):
    assert b'\x1b' not in cli('ls').stdout + cli('info', sandbox).stdout


def test_create_options(cli, server):
    r = cli('create', '--json', '-m', '1G', '-c', '2', '--disk', '4G', '--name', 'work', '--metadata', 'k=v=w', '--ttl', '2h', '-e', 'A=b')
    assert r.returncode == 0
    got = json_lines(r.stdout)[0]
    assert got['state'] == 'running' and got['name'] == 'work'
    assert server.sandboxes[got['id']]['spec'] == {
        'template': 'base', 'memory_mb': 1024, 'cpus': 2, 'disk_mb': 4096, 'name': 'work', 'metadata': {'k': 'v=w'}, 'ttl_s': 7200,
        'env': {'A': 'b'}}


def test_info(cli, server, sandbox):
    server.sandboxes[sandbox]['metadata'] = {EVIL: EVIL}
    cli('exec', '-d', sandbox, '--', 'sh', '-c', EVIL)
    r = cli('info', sandbox)
    assert r.returncode == 0 and no_controls(r.stdout)
    assert SAFE in r.stdout.decode() and sandbox in r.stdout.decode()
    j = json_lines(cli('info', sandbox, '--json').stdout)[0]
    assert j['metadata'] == {EVIL: EVIL} and j['usage']['host']['processes'] == 2 and len(j['commands']) == 1


def test_info_of_what_is_stored(cli, sandbox):
    """What a suspended sandbox takes is to be seen, and no zeros of what it has none of."""
    assert 'On the host: 34 MiB of memory, ' in cli('info', sandbox).stdout.decode()
    assert cli('suspend', sandbox).returncode == 0
    assert 'On the host: 3 MiB of disk\n' in cli('info', sandbox).stdout.decode()


def test_info_of_rules(cli, server, sandbox):
    assert 'Rules:       -\n' in cli('info', sandbox).stdout.decode()
    server.sandboxes[sandbox].update(expires_at='2030-01-02T03:04:05Z', on_expiry='stop', idle_s=90, on_idle='suspend', wake=True,
                                     checkpoint_every_s=600, checkpoint_keep=4)
    out = cli('info', sandbox).stdout.decode()
    rules = ['stop when it expires', 'suspend when nobody used it for 1 min 30 s', 'wake when it is used', 'checkpoint every 10 min, the newest 4 kept']
    assert 'Rules:       ' + ('\n' + ' ' * 13).join(rules) + '\n' in out
    server.sandboxes[sandbox].update(idle_s=2, forked_from='f' * 26)
    out = cli('info', sandbox).stdout.decode()
    assert 'nobody used it for 2 s\n' in out and f'Forked from: {"f" * 26}\n' in out


def test_rules(cli, server, sandbox):
    """Only what an option names is changed; without any nothing is."""
    r = cli('rules', sandbox)
    assert (r.returncode, r.stdout.decode(), r.stderr) == (0, 'Expires:     -\nRules:       -\n', b'') and 'patched' not in server.sandboxes[sandbox]
    r = cli('rules', '--idle', '2m', '--on-idle', 'pause', '--wake', '--checkpoint-every', '10m', '--checkpoint-keep', '4', sandbox)
    assert server.sandboxes[sandbox].pop('patched') == {'idle_s': 120, 'on_idle': 'pause', 'wake': True, 'checkpoint_every_s': 600, 'checkpoint_keep': 4}
    lines = ['pause when nobody used it for 2 min', 'wake when it is used', 'checkpoint every 10 min, the newest 4 kept']
    assert r.stdout.decode() == 'Expires:     -\nRules:       ' + ('\n' + ' ' * 13).join(lines) + '\n', r
    j = json.loads(cli('rules', '--json', '--no-wake', '--idle', '0', '--ttl', '1h', '--on-expiry', 'stop', sandbox).stdout)
    assert server.sandboxes[sandbox].pop('patched') == {'wake': False, 'idle_s': 0, 'ttl_s': 3600, 'on_expiry': 'stop'} and j['id'] == sandbox
    for args, words in [(['--wake', '--no-wake'], 'exclude each other'), (['--ttl', 'x'], '--ttl "x" is not a time')]:
        r = cli('rules', *args, sandbox)
        assert r.returncode == 2 and words in r.stderr.decode(), r
    r = cli('rules', '--idle', '1s', sandbox)
    assert r.returncode == 125 and '--idle (in seconds) is 1' in r.stderr.decode(), r
    r = cli('rules', '--on-idle', 'sleep', sandbox)
    assert r.returncode == 125 and '--on-idle is "sleep"; it must be one of' in r.stderr.decode(), r


def test_a_verb_that_does_not_apply(cli, sandbox):
    for verb in ('resume', 'restore', 'start'):  # there is nothing to wake
        r = cli(verb, sandbox)
        assert r.returncode == 125 and f'cspace: sandbox "{sandbox}" is running already\n' == r.stderr.decode(), r
    assert cli('pause', sandbox).returncode == 0
    assert b'already' in cli('pause', sandbox).stderr
    for verb in ('restore', 'start'):
        r = cli(verb, sandbox)
        assert r.returncode == 125 and f'it cannot {verb} now; `cspace wake {sandbox}` does what applies'.encode() in r.stderr


def test_changes_wait_for_what_is_starting(cli, server, sandbox):
    """cspaced or cspace-rootd was just started: who asks for a change waits, and is not told about it."""
    for verb in ('pause', 'wake'):
        server.refuse_changes = [Refused(503, 'unavailable', 'cspace-rootd is not reachable')] * 2
        r = cli(verb, sandbox)
        assert (r.returncode, r.stdout.decode().strip(), r.stderr) == (0, sandbox, b''), r
        assert not server.refuse_changes


def test_terminal_that_nobody_could_type_into(cli, server, sandbox):
    n = len(server.sandboxes)
    for args in (['exec', '-it', sandbox, '--', 'bash'], ['exec', '-t', sandbox, 'sh'], ['run', '-it', '--', 'bash']):
        r = cli(*args, timeout=20)
        assert r.returncode == 2 and b'stdin is not a terminal' in r.stderr and b'--no-stdin' in r.stderr
    assert len(server.sandboxes) == n
    assert cli('exec', '-d', '-t', sandbox, '--', 'true').returncode == 0  # to be attached to later


def test_limits_are_told_as_options(cli, server):
    for args, want in ((['-m', '64M'], '--memory "64M" is outside 128M to 64G'), (['-c', '99'], '--cpus "99" is outside 1 to 32'),
                       (['--ttl', '31d'], '--ttl "31d" is more than 30d'),
                       (['--disk', '900T'], '--disk "900T" is outside 1M to 16T'),
                       (['--disk', '1'], '--disk "1" is outside 1M to 16T')):
        r = cli('create', *args)
        assert r.returncode == 2 and want in r.stderr.decode(), r.stderr
    assert not server.sandboxes


def test_missing_operands_are_named(cli):
    for args, want in ((['exec'], 'SANDBOX is missing: cspace exec'), (['exec', 'foo'], 'COMMAND is missing: cspace exec'),
                       (['info'], 'SANDBOX is missing'), (['run'], 'COMMAND is missing'), (['kill', 'a'], 'PROCESS is missing'),
                       (['ttl', 'a'], 'TIME is missing'), (['template', 'build'], 'NAME is missing')):
        r = cli(*args)
        assert r.returncode == 2 and want in r.stderr.decode(), r.stderr


def test_preparation_of_a_size_is_announced(cli, server):
    server.create_delay = 0.3
    assert b'preparing' not in cli('create', '-m', '1G').stderr
    server.create_step = 'preparing variant: booting'
    r = cli('create', '-m', '1G', '-c', '2')
    assert r.stderr.count(b'cspace: preparing base:latest for 1024M/2: takes up to a minute, once') == 1
    assert b'preparing' not in cli('--json', 'create').stderr


def test_template_under_construction(cli, server):
    server.templates = [{'digest': 'b' * 64, 'names': [], 'state': 'building', 'disk_mb': 8192, 'sandboxes': 0, 'variants': []}]
    assert '(building)' in cli('template', 'ls').stdout.decode()


def test_what_templates_are_made_of(cli, server):
    """That of a sandbox which ran has its programs and its size: not to be taken for another."""
    one = {'digest': 'b' * 64, 'disk_mb': 8192, 'sandboxes': 0, 'variants': [{'memory_mb': 512, 'cpus': 1}]}
    server.templates = [{**one, 'names': ['a:latest'], 'source': {'kind': 'packages', 'requested': []}}, {**one, 'names': ['b:latest'], 'source': {'kind': 'sandbox'}},
                        {**one, 'names': ['c:latest'], 'source': {'kind': 'sandbox'}, 'snapshot': {'memory_mb': 512, 'cpus': 1}}, {**one, 'names': ['d:latest']}]
    rows = [re.split(r'  +', line) for line in cli('template', 'ls').stdout.decode().splitlines()]
    assert rows[0][4] == 'MADE OF' and [r[4] for r in rows[1:]] == ['packages', 'sandbox', 'sandbox, with memory', '-'], rows


def test_template_taken_for_a_command(cli):
    r = cli('run', 'base', 'python3')
    assert r.returncode == 127 and b'"base" is a template: cspace run --template base -- COMMAND' in r.stderr
    r = cli('run', 'no-such-thing')
    assert r.returncode == 127 and b'is a template' not in r.stderr


def test_detached_kill_and_attach(cli, sandbox):
    r = cli('exec', '-d', sandbox, '--', 'sh', '-c', 'echo out; exec sleep 600')
    process = r.stdout.decode().strip()
    assert f'cspace exec --attach {process} {sandbox}' in r.stderr.decode()
    p = cli.start('exec', '--attach', process, sandbox, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert p.stdout.readline() == b'out\n'
    assert cli('kill', sandbox, process, 'NOPE').returncode == 2
    assert cli('kill', sandbox, process, 'KILL').returncode == 0
    assert p.wait(20) == 137
    p.stdout.close()
    assert cli('kill', sandbox, 'no-such').returncode == 125


def test_ttl(cli, server, sandbox):
    assert cli('ttl', sandbox, '2h').returncode == 0
    assert server.sandboxes[sandbox]['ttl_s'] == 7200
    assert cli('ttl', sandbox, 'soon').returncode == 2 and cli('ttl', sandbox, '31d').returncode == 2


def test_info_of_a_timeout(cli, server, sandbox):
    cli('exec', '-d', sandbox, '--', 'sleep', '600')
    process = next(iter(server.processes.values()))
    process.exit = {'exitCode': 137, 'signalNumber': 9, 'reason': 'timeout'}
    out = cli('info', sandbox).stdout.decode()
    assert 'timed out' in out and 'exited 137' not in out


def test_groups_list_their_commands(cli):
    for group in ('template', 'key'):
        r = cli(group)
        assert r.returncode == 2 and f'{group} ls'.encode() in r.stderr and f'{group} rm'.encode() in r.stderr
    r = cli('template', 'list')
    assert r.returncode == 2 and b'did you mean "template ls"?' in r.stderr


def test_rm(cli, server):
    ids = [cli('create', '-q').stdout.decode().strip() for _ in range(3)]
    r = cli('rm', ids[0], 'no-such', ids[1])
    assert r.returncode == 125 and r.stdout.decode().split() == ids[:2]
    assert b'"no-such" does not exist' in r.stderr and b'`cspace ls`' in r.stderr
    assert cli('rm', '-f', 'no-such').returncode == 0
    assert cli('--json', 'rm', '--all').stdout == json.dumps([ids[2]]).encode() + b'\n'
    assert not server.sandboxes
    assert cli('rm').returncode == 2


def test_logs(cli, server, sandbox):
    server.logs = [{'time': '2026-01-02T03:04:05.678Z', 'level': 'info', 'event': 'created', 'message': EVIL, 'ms': 1767323045678}]
    r = cli('logs', sandbox)
    assert no_controls(r.stdout) and r.stdout.decode() == f'2026-01-02T03:04:05.678Z info  created: {SAFE}\n'
    assert json_lines(cli('logs', '--json', sandbox).stdout)[0]['message'] == EVIL
    assert cli('logs', '--since', '2026-01-02T03:04:06Z', sandbox).stdout == b''
    assert cli('logs', '--since', 'yesterday', sandbox).returncode == 2


def test_logs_follow(cli, server, sandbox):
    def line(ms, text):
        return {'time': f'2026-01-02T03:04:05.{ms:03d}Z', 'level': 'info', 'event': text, 'message': '', 'ms': 1767323045000 + ms}
    server.logs = [line(1, 'one')]
    p = cli.start('--json', 'logs', '-f', sandbox, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert json.loads(p.stdout.readline())['event'] == 'one'
    server.logs = server.logs + [line(1, 'same time'), line(2, 'two')]
    assert json.loads(p.stdout.readline())['event'] == 'same time'
    assert json.loads(p.stdout.readline())['event'] == 'two'
    server.sandboxes.clear()
    out, err = p.communicate(timeout=20)
    assert (p.returncode, err) == (0, b'') and [line['event'] for line in json_lines(out)] == ['deleted']


def test_templates(cli, server):
    server.templates = [{'digest': 'c' * 64, 'names': ['base:latest', EVIL], 'created_at': '2026-01-02T03:04:05Z', 'disk_mb': 8192,
                         'sandboxes': 3, 'variants': [{'memory_mb': 512, 'cpus': 1}]}]
    r = cli('template', 'ls')
    assert no_controls(r.stdout) and b'base:latest' in r.stdout and b'8 GiB' in r.stdout and b'512M/1' in r.stdout
    assert json_lines(cli('template', 'ls', '--json').stdout)[0] == server.templates


def test_template_build(cli, server):
    r = cli('template', 'build', 'data:v1', '-p', 'python3-numpy, python3-pandas', '--packages', 'jq', '--disk', '16G', '--suite', 'bookworm')
    assert (r.returncode, r.stdout) == (0, b'd' * 64 + b'\n')
    op = list(server.operations.values())[-1]
    assert op['body'] == {'name': 'data', 'tag': 'v1', 'packages': ['python3-numpy', 'python3-pandas', 'jq'], 'disk_mb': 16384, 'suite': 'bookworm'}


def test_a_name_that_is_given_away(cli, server, sandbox):
    """base:latest stands for another template: whoever builds or publishes under that name is told what it was."""
    moved = 'cspace: base:latest was ' + 'a' * 12 + ' until now; that template goes with its last sandbox'
    for argv in (['template', 'build', 'base'], ['template', 'publish', sandbox, 'base'], ['template', 'publish', sandbox, 'base:latest']):
        r = cli(*argv)
        assert (r.returncode, r.stdout) == (0, b'd' * 64 + b'\n') and moved in r.stderr.decode(), r
        r = cli(*argv[:2], '--quiet', *argv[2:])
        assert (r.returncode, r.stdout, r.stderr) == (0, b'd' * 64 + b'\n', b''), r
    r = cli('template', 'publish', sandbox, 'mine:v2')
    assert 'template mine:v2 is published, in ' in r.stderr.decode() and 'until now' not in r.stderr.decode(), r
    assert server.sandboxes[sandbox]['published'] == {'name': 'mine', 'tag': 'v2', 'kind': 'disk'}


def test_template_build_from_tar(cli, server, tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / 'root.tar').write_bytes(data)
    for args, kwargs in [([str(tmp_path / 'root.tar')], {}), (['-'], {'input': data})]:
        r = cli('template', 'build', 'mine', '--tar', *args, **kwargs)
        assert r.returncode == 0, r.stderr
        op = list(server.operations.values())[-1]
        assert op['body'] == data and op['query'] == {'name': 'mine'}
    assert cli('template', 'build', 'mine', '--tar', str(tmp_path)).returncode == 125
    assert cli('template', 'build', 'mine', '--tar', '/no/such').returncode == 125
    for bad in ['', 'Upper', '-x', 'a:', 'a:b:c', 'x' * 64]:
        assert cli('template', 'build', '--', bad).returncode == 2
    assert cli('template', 'build', 'mine', '--tar', 'x', '-p', 'y').returncode == 2


def test_template_build_that_fails(cli, server):
    server.build_fails = True
    server.build_log = ''.join(f'line {i}\n' for i in range(100)) + EVIL + '\n'
    r = cli('template', 'build', 'mine')
    assert (r.returncode, r.stdout) == (125, b'')
    lines = r.stderr.decode().splitlines()
    assert lines[-1] == 'cspace: no such package' and lines[-2] == '  | ' + SAFE and lines[-3] == '  | line 99' and 'line 50' not in r.stderr.decode()
    r = cli('template', 'build', 'mine', '--json')
    assert json.loads(r.stderr)['error']['code'] == 'build_failed'


def test_build_goes_on_without_us(cli, server):
    server.hold_builds = True
    p = cli.start('template', 'build', 'mine', stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: any(m == 'GET' and '/operations/' in t for m, t, _ in server.requests))
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=20)
    assert p.returncode == 130 and b'goes on' in err


def test_keys(cli, server):
    key = cli('key', 'create', '-q', 'laptop')
    assert key.stdout == b'e2b_' + b'0' * 40 + b'\n' and key.stderr == b''
    assert b'laptop' in cli('key', 'ls').stdout
    id_ = json_lines(cli('key', 'ls', '--json').stdout)[0][0]['id']
    assert cli('key', 'rm', id_).stdout.decode().strip() == id_
    r = cli('key', 'rm', id_)
    assert r.returncode == 125 and b'`cspace key ls`' in r.stderr


def test_version(cli):
    assert re.match(rb'cspace \S+\ncspaced 0.0-standin\n$', cli('version').stdout)
    assert set(json_lines(cli('version', '--json').stdout)[0]) == {'version', 'server'}
    cli.env['CSPACE_API_URL'] = 'unix:/no/such'
    assert cli('--version').returncode == 0


# --- errors ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize('args', [['ls'], ['create'], ['run', '--', 'true'], ['exec', 'x', '--', 'true'], ['info', 'x']])
def test_daemon_that_is_not_there(cli, args):
    for url, words in [('unix:/no/such/api.sock', [b'/no/such/api.sock', b'`cspace up`']), ('http://127.0.0.1:1', [b'http://127.0.0.1:1'])]:
        cli.env['CSPACE_API_URL'] = url
        began = time.monotonic()
        r = cli(*args)
        assert r.returncode == 125 and all(w in r.stderr for w in words)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize('url', ['ftp://x', 'http://', 'http://a:b', 'http://a:0', 'http://[::1', 'http://::1:7070', 'http://a/b', 'unix:relative',
                                 'unix:/' + 'x' * 200, 'https://a', 'http://user@host'])
def test_bad_addresses(cli, url):
    r = cli('--api', url, 'ls')
    assert r.returncode == 125 and url[:20].encode() in r.stderr


def test_sandbox_that_does_not_exist(cli):
    for args in [['info', 'nope'], ['exec', 'nope', '--', 'true'], ['cp', '/etc/hostname', 'nope:/x'], ['logs', 'nope']]:
        r = cli(*args)
        assert r.returncode == 125, args
        assert b'sandbox "nope" does not exist; `cspace ls` shows those that exist' in r.stderr, args
    e = json.loads(cli('--json', 'info', 'nope').stderr)
    assert e['error']['code'] == 'sandbox_not_found'


@pytest.mark.parametrize('name', ['../x', 'a/b', 'a?b', 'a#b', 'a b', '%2e', EVIL])
def test_odd_sandbox_names(cli, name):
    r = cli('info', '--', name)
    assert r.returncode == 125 and no_controls(r.stderr)


def test_template_that_does_not_exist(cli, server):
    r = cli('run', '-T', 'nope', '--', 'true')
    assert r.returncode == 125 and b'template "nope"' in r.stderr and b'`cspace template ls`' in r.stderr


@pytest.mark.parametrize('args,words', [
    ([], 'Usage'), (['nope'], '"nope"'), (['rnu'], 'did you mean "run"'), (['ps'], 'did you mean "ls"'), (['template'], 'template build'),
    (['template', 'nope'], '"template nope"'), (['run'], 'missing'), (['exec', 'x'], 'COMMAND is missing'), (['ls', 'x'], 'one too many'),
    (['run', '--nope', 'x'], '"--nope"'), (['run', '-Z', 'x'], '"-Z"'), (['run', '--memory'], 'needs a value'),
    (['run', '--memory', '12X', 'x'], '12X'), (['run', '--memory', '1000000000', 'x'], 'MiB'), (['run', '--memory', '1', 'x'], '128M to 64G'), (['run', '--cpus', 'two', 'x'], 'two'),
    (['run', '--timeout', '5y', 'x'], '5y'), (['run', '--keep=yes', 'x'], 'takes no value'), (['create', '--metadata', 'x'], 'KEY=VALUE'),
    (['create', '--ttl', 'soon'], 'soon'), (['exec', '-e', '=x', 'a', 'b'], 'no name'), (['help', 'nope'], 'nope'), (['help', 'chekpoint'], 'did you mean "checkpoint"?'),
    (['shell', 'x', '--escape', 'ab'], 'terminal'),
])
def test_usage_errors(cli, server, args, words):
    r = cli(*args)
    assert r.returncode == 2 and words in r.stderr.decode()
    if args and '--' not in args and args[0] not in ('run', 'exec'):
        r = cli(*args, '--json')
        assert r.returncode == 2 and json.loads(r.stderr)['error']['code'] == 'usage'
    assert not server.sandboxes


def test_hints(cli, server, tmp_path):
    """They can be typed as they stand: with the sandbox that was named, where it was one."""
    def hint(code, *argv):
        body = json.dumps({'error': {'code': code, 'message': 'no'}}).encode()
        server.raw_answer = b'HTTP/1.1 409 X\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body)
        return cli(*argv).stderr.decode()
    assert '; `cspace credential ls`' in hint('credential_not_found', 'info', 'x')
    for argv in [['info', 'box'], ['exec', '--attach', 'p', 'box'], ['history', 'box'], ['diff', 'box', 'c'], ['cat', 'box@c:/etc'],
                 ['cp', 'box:/etc', str(tmp_path)], ['checkpoint', 'rm', 'box', 'c', 'd'], ['suspend', 'box', 'box2'], ['logs', 'box']]:
        assert '; `cspace wake box` has it run again where it stands still, `cspace logs box` says' in hint('sandbox_not_running', *argv), argv
        assert '; `cspace history box` shows' in hint('checkpoint_not_found', *argv), argv
    assert '`cspace wake box2` has' in hint('sandbox_not_running', 'suspend', 'box', 'box2')
    assert '`cspace history SANDBOX`' in hint('checkpoint_not_found', 'template', 'rm', 'x')


@pytest.mark.parametrize('answer', [
    b'HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops', b'HTTP/1.1 200 X\r\nContent-Length: 4\r\n\r\noops', b'garbage\r\n\r\n',
    b'HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\n{"a":1', b'', b'HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n[]',
    b'HTTP/1.1 302 X\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n',
    b'HTTP/1.1 403 X\r\nContent-Length: 62\r\n\r\n{"error":{"code":"forbidden","message":"\\u001b[31mred\\u009b"}}  ',
])
def test_answers_that_are_none(cli, server, answer):
    server.raw_answer = answer
    for args in [['ls'], ['create'], ['run', 'true'], ['info', 'x'], ['exec', 'x', 'true'], ['cp', 'x:/a', '/tmp/none']]:
        r = cli(*args)
        assert r.returncode == 125 and r.stderr and r.stdout == b'', (args, r)
        assert no_controls(r.stderr)


def test_output_that_cannot_be_written(cli, sandbox):
    with open('/dev/full', 'wb') as full:
        r = cli('ls', stdout=full, stderr=subprocess.PIPE)
    assert r.returncode == 125 and b'No space left' in r.stderr


def test_closed_descriptors(cli, sandbox):
    r = subprocess.run(['sh', '-c', f'{cli.exe} exec {sandbox} -- echo x <&- >&-'], env=cli.env, stderr=subprocess.PIPE, timeout=20, check=False)
    assert r.returncode == 0 and r.stderr == b''


def test_nothing_is_left_in_the_working_folder(cli, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cli('run', '--', 'true')
    cli('ls')
    assert os.listdir(tmp_path) == []


def test_key_and_address_are_sent(cli, server):
    cli('--key', 'e2b_secret', 'ls')
    assert server.requests[-1][2]['x-api-key'] == 'e2b_secret'
    cli.env['CSPACE_API_KEY'] = 'e2b_env'
    cli('ls')
    assert server.requests[-1][2]['x-api-key'] == 'e2b_env'
    r = cli('--key', 'a\nb', 'ls')
    assert r.returncode == 125 and b'a\nb' not in r.stderr and b'secret' not in r.stderr


def test_interrupted_create_is_taken_back(cli, server):
    server.create_delay = 30
    p = cli.start('create', stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: server.sandboxes)
    p.send_signal(signal.SIGINT)
    out, _ = p.communicate(timeout=20)
    assert (p.returncode, out) == (130, b'') and not server.sandboxes


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_fork_goes_on_and_says_so(cli, server, sandbox, number):
    server.hold_builds = True
    n = len(server.requests)
    p = cli.start('fork', sandbox, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: any('/operations/' in r[1] for r in server.requests[n:]))
    p.send_signal(number)
    out, err = p.communicate(timeout=20)
    assert (p.returncode, out) == (128 + number, b'') and b'the copies are made all the same' in err


@pytest.mark.parametrize('argv, says', [
    (['pause', 'box', 'box2'], 'the pause goes on all the same; `cspace info box` shows its state'),
    (['suspend', 'box'], 'the suspend goes on all the same; `cspace info box` shows its state'),
    (['checkpoint', 'box'], 'it is taken all the same; `cspace history box` shows it'),
    (['rollback', 'box', 'before'], 'the rollback goes on all the same; `cspace info box` shows its state')])
def test_interrupted_change_goes_on_and_says_so(cli, server, sandbox, argv, says):
    server.sandboxes[sandbox]['name'] = 'box'
    other = cli('create', '--quiet', '--name', 'box2').stdout.decode().strip()
    server.sandboxes[other]['name'] = 'box2'
    server.hold_builds = True
    n = len(server.requests)
    p = cli.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: any('/operations/' in r[1] for r in server.requests[n:]))
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    assert (p.returncode, out, err.decode()) == (130, b'', f'cspace: {says}\n'), argv


# --- help, completion ---------------------------------------------------------------------------------

def commands(cli):
    return [line.split('  ')[1].strip() for line in cli('help').stdout.decode().split('Commands:\n')[1].split('\n\n')[0].splitlines()
            if re.match(r'  [a-z]', line)]


def test_help_of_every_command(cli):
    names = commands(cli)
    assert len(names) > 15
    for name in names:
        a, b = cli(*name.split(), '--help'), cli('help', *name.split())
        assert a.returncode == 0 and a.stdout == b.stdout and a.stdout.startswith(f'Usage: cspace {name}'.encode())
        lines = a.stdout.decode().splitlines()
        assert all(len(line) <= 80 for line in lines), name
        # Filled: no line ends although the first word of the next one had room.
        for line, below in zip(lines, lines[1:]):
            if re.match(r'\S.*\S', line) and re.match(r'\S', below):
                assert len(line) + 1 + len(below.split()[0]) > 79, (name, line, below)


def test_named_twice_is_taken_once(cli, server, sandbox):
    server.sandboxes[sandbox]['name'] = 'box'
    for verb, names in [('pause', [sandbox, sandbox]), ('resume', [sandbox, 'box']), ('suspend', ['box', sandbox, 'box']),
                        ('wake', [sandbox, sandbox])]:
        r = cli(verb, *names)
        assert (r.returncode, r.stdout.decode().split(), r.stderr) == (0, [names[0]], b''), (verb, r)
    # A second sandbox in the way of the same state is told of as ever.
    other = cli('create', '--quiet').stdout.decode().strip()
    cli('pause', other)
    r = cli('pause', sandbox, other, sandbox)
    assert r.returncode == 125 and r.stdout.decode().split() == [sandbox] and f'"{other}" is paused'.encode() in r.stderr, r
    r = cli('rm', 'box', other, 'box', sandbox, other)
    assert (r.returncode, r.stdout.decode().split(), r.stderr) == (0, ['box', other], b''), r
    server.keys.append({'id': 'k'})
    r = cli('key', 'rm', 'k', 'k')
    assert (r.returncode, r.stdout, r.stderr) == (0, b'k\n', b''), r


def complete(cli, *words):
    script = f'''
        source /usr/share/bash-completion/bash_completion
        source {os.path.join(os.path.dirname(__file__), "../../../packaging/bash-completion/cspace")}
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${{#COMP_LINE}}
        COMP_LINE="$*"; COMP_POINT=${{#COMP_LINE}}
        _cspace
        printf '%s\\n' "${{COMPREPLY[@]}}"'''
    r = subprocess.run(['bash', '-c', script, 'bash', cli.exe, *words], env=cli.env, capture_output=True, timeout=30, check=False)
    assert r.stderr == b''
    return r.stdout.decode().split()


def test_completion(cli, server, sandbox, tmp_path, monkeypatch):
    if not os.path.exists('/usr/share/bash-completion/bash_completion'):
        pytest.skip('bash-completion is not installed')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file.txt').touch()
    server.templates = [{'names': ['base:latest', 'data:v1']}]
    os.mkdir(f'{server.files}/srv')
    assert set(complete(cli, '')) == {n.split()[0] for n in commands(cli)}
    assert complete(cli, 'te') == ['template']
    assert complete(cli, 'template', '') == ['build', 'publish', 'ls', 'policy', 'rm']
    assert complete(cli, 'info', '') == [sandbox]
    assert complete(cli, 'exec', '-u', 'root', sandbox[:3]) == [sandbox]
    assert complete(cli, 'exec', sandbox, 'x') == []
    assert '--memory' in complete(cli, 'run', '--m')
    assert complete(cli, 'run', '--template', 'd') == ['data:v1']
    assert complete(cli, '--api', cli.env['CSPACE_API_URL'], 'rm', '') == [sandbox]
    assert set(complete(cli, 'cp', '')) == {'file.txt', sandbox + ':'}
    assert complete(cli, 'cp', 'file.txt', sandbox + ':/s') in ([sandbox + ':/srv/'], ['/srv/'])
    # Of few words; and a command's last operand is not what the first one was.
    for words, more in [(('rollback', sandbox), []), (('checkpoint', 'rm', sandbox), []), (('fork', sandbox, '--from'), []),
                        (('restore-file', sandbox), ['template']), (('diff', sandbox), ['template', 'now']),
                        (('diff', sandbox, 'before'), ['template', 'now'])]:
        assert complete(cli, *words, '')[1:] == ['before', *more], words
    assert complete(cli, 'create', '--on-expiry', '') == ['delete', 'suspend', 'stop']
    assert complete(cli, 'audit', '--verdict', 'd') == ['deny']
    process = cli('exec', '-d', sandbox, '--', 'sleep', '600').stdout.decode().strip()
    assert complete(cli, 'kill', sandbox, '') == [process]
    cli('bind', '--host', 'a.example', '--id', 'mine', sandbox, 'token')
    assert complete(cli, 'unbind', sandbox, 'm') == ['mine']
    for words in (['kill', sandbox, process, ''], ['ttl', sandbox, ''], ['policy', 'check', sandbox, ''], ['info', sandbox, '']):
        assert complete(cli, *words) == [], words
    cli.env['CSPACE_API_URL'] = 'unix:/no/such'
    assert complete(cli, 'info', '') == []


@pytest.mark.parametrize('argv', [('exec', '', '--', 'true'), ('info', ''), ('rm', ''), ('pause', ''), ('logs', ''), ('rm', 'SANDBOX', '')])
def test_empty_names(cli, server, sandbox, argv):
    """As from "$box" when the variable is not set."""
    before = len(server.requests)
    r = cli(*[sandbox if a == 'SANDBOX' else a for a in argv])
    assert r.returncode != 0 and b"the sandbox's name is empty" in r.stderr
    assert len(server.requests) == before and sandbox in server.sandboxes


def test_template_with_the_agent_of_another_cspace(cli, server, sandbox):
    one = {'state': 'ready', 'disk_mb': 8192, 'sandboxes': 0, 'variants': [], 'created_at': '2026-01-02T03:04:05Z'}
    server.templates = [
        {**one, 'digest': 'a' * 64, 'names': ['base:latest'], 'agent': 'installed', 'source': {'kind': 'packages', 'requested': []}},
        {**one, 'digest': 'b' * 64, 'names': ['data:v1'], 'agent': 'other', 'source': {'kind': 'packages', 'requested': ['git', EVIL]}},
        {**one, 'digest': 'c' * 64, 'names': [], 'agent': 'other', 'source': {'kind': 'tar', 'requested': []}},
        {**one, 'digest': 'd' * 64, 'names': ['mine:latest'], 'agent': 'other', 'source': {'kind': 'sandbox'}},
        {**one, 'digest': 'e' * 64, 'names': ['x:latest']}]
    said = cli('template', 'ls').stderr.decode().splitlines()
    assert len(said) == 3 and '\x1b' not in ''.join(said)
    assert 'data:v1' in said[0] and 'cspace template build --packages git,' in said[0] and said[0].endswith(' data:v1')
    assert 'c' * 64 in said[1] and said[1].endswith('cspace template build --tar FILE NAME')
    assert 'cspace template publish SANDBOX mine:latest' in said[2]
    assert not cli('template', 'ls', '--quiet').stderr
    server.templates = [{**server.templates[1], 'digest': server.sandboxes[sandbox]['digest']}]
    assert b'Agent:' in cli('info', sandbox).stdout
    server.templates[0]['agent'] = 'installed'
    assert b'Agent:' not in cli('info', sandbox).stdout
