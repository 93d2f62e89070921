# SPDX-License-Identifier: Apache-2.0
"""What a sandbox may reach and what it reached: --allow, --policy, policy, audit."""
import json

import pytest

from test_commands import EVIL, complete, json_lines, no_controls

POLICY = {'rules': [{'action': 'allow', 'hosts': ['api.example.com', 'é.example']}]}


def record(n=0, **more):
    return {'time': f'2026-01-02T03:04:{n % 60:02}.000Z', 'kind': 'request', 'verdict': 'allow', 'rule': 'r', 'reason': 'rule',
            'sandbox': 'a' * 26, 'host': 'api.example.com', 'port': 443, 'protocol': 'tls', 'method': 'GET', 'path': f'/{n}',
            'status': 200, **more}


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / 'policy.json'
    path.write_text(json.dumps(POLICY))
    return str(path)


def spec(server, r):
    return server.sandboxes[r.stdout.decode().strip()]['spec']


def test_create_with_policy(cli, server, policy_file):
    r = cli('create', '-q', '--allow', '@packages', '--allow', '*.example.com')
    assert spec(server, r)['allow'] == ['@packages', '*.example.com'] and 'policy' not in spec(server, r)
    assert spec(server, cli('create', '-q', '--policy', policy_file))['policy'] == POLICY
    assert spec(server, cli('create', '-q', '--policy', '-', input=json.dumps(POLICY).encode()))['policy'] == POLICY
    assert spec(server, cli('create', '-q', '--policy', 'none'))['policy'] == 'none'
    assert spec(server, cli('create', '-q', '--policy', '@packages'))['policy'] == '@packages'
    r = cli('create', '-q')
    assert 'policy' not in spec(server, r) and 'allow' not in spec(server, r)


def test_run_with_policy(cli, server):
    assert cli('run', '--allow', 'api.example.com', '--', 'true').returncode == 0
    assert server.last_spec['allow'] == ['api.example.com']


@pytest.mark.parametrize('args, says', [
    (['--allow', 'x', '--policy', 'none'], 'cannot both'),
    (['--policy', '/nonexistent'], '/nonexistent'),
    (['--policy', '/etc/hostname'], '/etc/hostname'),
])
def test_bad_options(cli, server, sandbox, args, says):
    r = cli('create', *args)
    assert r.returncode == 2 and says in r.stderr.decode() and len(server.sandboxes) == 1


def test_get_set(cli, server, sandbox, policy_file):
    r = cli('policy', 'set', sandbox, policy_file)
    assert (r.returncode, r.stdout, r.stderr) == (0, b'', b'')
    assert server.sandboxes[sandbox]['policy'] == {'policy': POLICY}
    server.sandboxes[sandbox]['policy'] = POLICY
    r = cli('policy', 'get', sandbox)
    assert json.loads(r.stdout) == POLICY and r.stdout.isascii() and len(r.stdout.splitlines()) > 5
    assert json_lines(cli('policy', 'get', '--json', sandbox).stdout)[0]['egress']['state'] == 'active'
    assert cli('policy', 'set', sandbox, '-', input=r.stdout).returncode == 0
    assert server.sandboxes[sandbox]['policy'] == {'policy': POLICY}
    assert cli('policy', 'set', '--allow', 'a.example', sandbox).returncode == 0
    assert server.sandboxes[sandbox]['policy'] == {'allow': ['a.example']}
    assert cli('policy', 'set', sandbox, 'none').returncode == 0
    assert server.sandboxes[sandbox]['policy'] == {'policy': 'none'}
    server.egress = 'off'
    assert b'does not run' in cli('policy', 'set', sandbox, 'none').stderr


def test_set_refused(cli, server, sandbox, tmp_path):
    path = tmp_path / 'bad.json'
    path.write_text('{"rulez": []}')
    r = cli('policy', 'set', sandbox, str(path))
    assert r.returncode == 125 and b'rulez' in r.stderr
    path.write_text('{"rules": [')
    r = cli('policy', 'set', sandbox, str(path))
    assert r.returncode == 2 and b'bad.json' in r.stderr
    assert cli('policy', 'set', sandbox).returncode == 2
    assert cli('policy', 'set', '--allow', 'x', sandbox, str(path)).returncode == 2
    assert cli('policy', 'get', 'nobody').returncode == 125
    assert cli('policy').returncode == 2


def test_check(cli, sandbox):
    r = cli('policy', 'check', sandbox, 'https://api.example.com/')
    assert r.returncode == 0 and b'allow' in r.stdout and b'dns' in r.stdout
    r = cli('policy', 'check', '-X', 'POST', sandbox, 'https://evil.example/')
    assert r.returncode == 1 and b'deny' in r.stdout and b'POST' in r.stdout
    assert json_lines(cli('policy', 'check', '--json', sandbox, 'https://a/').stdout)[0]['verdict'] == 'allow'
    assert no_controls(cli('policy', 'check', sandbox, EVIL).stdout)


def test_warnings(cli, server, sandbox):
    """On stderr, by every command that sets or checks a policy; the answer and the exit code are as ever."""
    server.warnings = {'warnings': ['of a range less is reached\x1b[31m']}
    for argv in (['policy', 'set', '--allow', '10.0.0.0/7', sandbox], ['policy', 'check', sandbox, 'https://a/'], ['template', 'policy', '--allow', 'x', 'base'],
                 ['create', '-q', '--allow', '10.0.0.0/7'], ['run', '--allow', '10.0.0.0/7', '--', 'true'], ['fork', '--allow', '10.0.0.0/7', sandbox]):
        r = cli(*argv)
        assert r.returncode == 0 and b'cspace: warning: of a range less is reached' in r.stderr and b'\x1b' not in r.stderr and b'warning' not in r.stdout, (argv, r)
    assert server.sandboxes[sandbox]['forked']['allow'] == ['10.0.0.0/7']
    assert b'warning' not in cli('create', '-q').stderr + cli('policy', 'get', sandbox).stderr + cli('fork', sandbox).stderr
    r = cli('policy', 'set', '--json', '--allow', 'x', sandbox)
    assert r.stderr == b'' and json_lines(r.stdout)[0]['egress']['warnings'] == server.warnings['warnings']


def test_audit(cli, server, sandbox):
    r = cli('audit', sandbox)
    assert (r.returncode, r.stdout) == (0, b'') and b'no records' in r.stderr
    assert b'no records of that kind' in cli('audit', '--verdict', 'deny', sandbox).stderr
    assert cli('audit', '--json', sandbox).stderr + cli('audit', '-f', sandbox).stderr == b''
    server.audit = [record(1), record(2, verdict='deny', reason='path'), record(3, kind='dns', type='A'),
                    {'time': '2026-01-02T03:04:04.000Z', 'kind': 'lost', 'sandbox': 'a' * 26, 'records': 12}, record(5)]
    lines = cli('audit', sandbox).stdout.decode().splitlines()
    assert len(lines) == 5  # of three pages
    assert 'GET https://api.example.com:443/1' in lines[0] and 'deny' in lines[1] and 'reason=path' in lines[1]
    assert 'A api.example.com' in lines[2] and '12 records' in lines[3]
    assert json_lines(cli('audit', '--json', sandbox).stdout) == server.audit
    assert cli('audit', '-f', sandbox).stdout.decode().splitlines() == lines
    assert json_lines(cli('audit', '-f', '--json', sandbox).stdout) == server.audit
    assert server.audit_query == {'follow': '1'}


def test_a_run_that_fails_names_what_was_refused(cli, server):
    def note(**more):
        server.audit = [record(n, verdict='deny', **more) for n in range(2)]
        return cli('run', '--', 'sh', '-c', 'exit 3')
    r = note(reason='no_rule')
    assert r.returncode == 3 and b'the sandbox was refused api.example.com: `cspace audit --verdict deny ' in r.stderr, r
    assert server.audit_query['verdict'] == 'deny'
    assert b'refused' not in note(kind='packets', host='').stderr
    server.audit = [record(n, verdict='deny', host=f'{"abcda"[n]}.example') for n in range(5)]
    assert b'refused a.example, b.example, c.example and others: ' in cli('run', '--', 'sh', '-c', 'exit 3').stderr
    assert cli('run', '--', 'true').stderr == b''


def test_audit_options(cli, server, sandbox):
    cli('audit', '--host', '*.a b', '--verdict', 'deny', '--since', '10m', '--until', '2026-01-02T03:04:05Z', '--kind', 'dns', '--rule',
        'r', '--reason', 'path', sandbox)
    q = server.audit_query
    assert {k: q[k] for k in q if k != 'limit'} == {
        'host': '*.a b', 'verdict': 'deny', 'since': '10m', 'until': '2026-01-02T03:04:05Z', 'kind': 'dns', 'rule': 'r', 'reason': 'path'}
    assert cli('audit', 'nobody').returncode == 125
    assert cli('audit').returncode == 2


def test_audit_of_something_odd(cli, server, sandbox):
    server.audit = [record(1, path='/' + EVIL, detail=EVIL), {'kind': 'new', 'time': EVIL}, {'kind': 'lost', 'time': EVIL}, record(2)]
    r = cli('audit', sandbox)
    assert no_controls(r.stdout) and '/2' in r.stdout.decode()
    assert no_controls(cli('audit', '-f', '--json', sandbox).stdout)


def test_info(cli, server, sandbox):
    server.sandboxes[sandbox]['egress'] = {'state': 'away', 'rules': 2, 'reason': EVIL}
    r = cli('info', sandbox)
    assert b'policy of 2 rules' in r.stdout and b'away' in r.stdout and no_controls(r.stdout)
    server.sandboxes[sandbox]['egress'] = {'state': 'active', 'rules': 0}
    assert 'nothing' in cli('info', sandbox).stdout.decode()


def test_completion(cli, sandbox):
    assert complete(cli, 'policy', '') == ['get', 'set', 'check']
    assert complete(cli, 'policy', 'get', '') == [sandbox]
    assert complete(cli, 'audit', '') == [sandbox]
    assert complete(cli, 'run', '--allow', '') == ['@packages']
    assert '--verdict' in complete(cli, 'audit', '--v')


def test_of_a_template(cli, server, tmp_path):
    r = cli('template', 'policy', 'base')
    assert (r.returncode, r.stdout) == (0, b'') and b'reach nothing' in r.stderr
    assert cli('template', 'policy', '--allow', '@packages', '--allow', 'a.example', 'base').returncode == 0
    assert server.template_policy == {'allow': ['@packages', 'a.example']}
    policy = {'rules': [{'action': 'allow', 'hosts': ['b.example']}]}
    path = tmp_path / 'policy.json'
    path.write_text(json.dumps(policy))
    assert cli('template', 'policy', 'base', str(path)).returncode == 0
    assert server.template_policy in (policy, {'policy': policy})
    server.template_policy = policy
    assert json.loads(cli('template', 'policy', 'base').stdout) == policy
    assert cli('template', 'policy', '--remove', 'base', str(path)).returncode == 2
    assert cli('template', 'policy', '--remove', 'base').returncode == 0 and server.template_policy is None
    assert cli('template', 'policy', 'nope').returncode == 125
