# SPDX-License-Identifier: Apache-2.0
"""create, ls, info, rm, logs, template, key, and what they say of mistakes."""
import json
import os
import subprocess

import pytest

from conftest import Cli, TEMPLATE


def test_life_of_a_sandbox(cli):
    made = json.loads(cli.out('create', '--json', '-T', TEMPLATE, '--name', 'e2e-work', '--metadata', 'of=tests', '-e', 'A=b', '--ttl', '10m'))
    try:
        assert made['state'] == 'running' and made['name'] == 'e2e-work' and len(made['digest']) == 64
        assert made['id'] in cli.out('ls', '-q').split()
        assert [s['id'] for s in json.loads(cli.out('ls', '--json', '--metadata', 'of=tests'))] == [made['id']]
        assert cli.out('exec', 'e2e-work', '--', 'sh', '-c', 'echo $A') == 'b\n'
        info = json.loads(cli.out('info', 'e2e-work', '--json'))
        assert info['env'] == {'A': 'b'} and info['usage']['host']['processes'] > 0 and len(info['commands']) == 1
        lines = [json.loads(line) for line in cli.out('logs', '--json', 'e2e-work').splitlines()]
        assert any(line['event'] == 'running' for line in lines)
        r = cli('create', '-T', TEMPLATE, '--name', 'e2e-work')
        assert r.returncode == 125 and b'e2e-work' in r.stderr and b'another name' in r.stderr
    finally:
        assert cli.out('rm', 'e2e-work').strip() == 'e2e-work'
    r = cli('info', 'e2e-work')
    assert r.returncode == 125 and b'`cspace ls`' in r.stderr


def test_two_sandboxes_are_two_computers(cli):
    ids = [cli.create(), cli.create()]
    try:
        script = 'cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -x; python3 -c "import random; print(random.random())"; hostname'
        a, b = [cli.out('exec', i, '--', 'sh', '-c', script).splitlines() for i in ids]
        assert len(a) == len(b) == 4 and not any(x == y for x, y in zip(a, b))
        now = [int(cli.out('exec', i, '--', 'date', '+%s')) for i in ids]
        host = int(subprocess.run(['date', '+%s'], capture_output=True, check=True).stdout)
        assert all(abs(t - host) < 30 for t in now)
    finally:
        cli('rm', *ids)


def test_identity_files(cli):
    """They lie in memory, behind links that an editor may replace; what was replaced is kept up as well."""
    id_ = cli.create()
    try:
        out = cli.out('exec', '-u', 'root', id_, '--', 'sh', '-c', """
            for f in hostname hosts machine-id; do readlink /etc/$f; stat -Lc %a /etc/$f; done
            cat /etc/hostname; hostname; grep -c "$(hostname)" /etc/hosts; wc -c < /etc/machine-id
            echo 192.0.2.7 added >> /etc/hosts; sed -i s/added/edited/ /etc/hosts; getent hosts edited
            cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 /proc/sys/net/ipv6/conf/lo/disable_ipv6""").split()
        assert out[:6] == ['/run/cspace/hostname', '644', '/run/cspace/hosts', '644', '/run/cspace/machine-id', '644'], out
        assert out[6] == out[7] and out[8:10] == ['1', '33'], out
        assert out[10:12] == ['192.0.2.7', 'edited'] and out[12:] == ['1', '0'], out
    finally:
        cli('rm', id_)


def test_rm_of_several(cli):
    ids = [cli.create() for _ in range(3)]
    r = cli('rm', *ids, 'no-such')
    assert r.returncode == 125 and r.stdout.decode().split() == ids and b'no-such' in r.stderr
    assert not cli.ids() & set(ids)


def test_logs_follow_ends_with_the_sandbox(cli):
    id_ = cli.create()
    p = cli.start('logs', '-f', id_, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline()
    cli('rm', id_)
    _, err = p.communicate(timeout=60)
    assert (p.returncode, err) == (0, b'')


@pytest.mark.parametrize('options', [['-m', '1M'], ['-m', '1T'], ['-c', '1000'], ['--disk', '1M'], ['--name', 'Not A Name!'], ['--ttl', '100d'],
                                     ['-T', 'UPPER'], ['-T', ''], ['--metadata', '=x']])
def test_create_refuses(cli, options):
    before = cli.ids()
    r = cli('create', *options)
    assert r.returncode in (2, 125) and r.stderr.startswith(b'cspace: ') and cli.ids() <= before


def test_long_argument_list(cli, sandbox):
    r = cli('exec', sandbox, '--', 'sh', '-c', 'echo $#', 'sh', *['x' * 1000] * 100)
    assert (r.returncode, r.stdout) == (0, b'100\n')


def test_template_in_use_is_kept(cli):
    id_ = cli.create()
    try:
        digest = json.loads(cli.out('info', id_, '--json'))['digest']
        r = cli('template', 'rm', digest)
        assert r.returncode == 125 and b'sandboxes' in r.stderr
        assert any(t['digest'] == digest for t in json.loads(cli.out('template', 'ls', '--json')))
    finally:
        cli('rm', id_)


@pytest.mark.parametrize('args', [['-p', 'no-such-package-anywhere'], ['--tar', 'garbage']])
def test_template_build_that_fails(cli, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'garbage').write_bytes(os.urandom(100000))
    r = cli('template', 'build', 'e2e-broken', *args, timeout=900)
    assert r.returncode == 125 and b'cspace: ' in r.stderr and r.stdout == b''
    assert 'e2e-broken' not in cli.out('template', 'ls')


def test_keys_over_tcp(cli):
    with open('/proc/net/tcp', encoding='ascii') as f:
        if not any(line.split()[1].endswith(':1B9E') and line.split()[3] == '0A' for line in f.readlines()[1:]):
            pytest.skip('nothing listens on port 7070')
    key = cli.out('key', 'create', '-q', 'e2e').strip()
    id_ = next(k['id'] for k in json.loads(cli.out('key', 'ls', '--json')) if k['name'] == 'e2e')
    tcp = Cli({**cli.env, 'CSPACE_API_URL': 'http://127.0.0.1:7070'})
    try:
        r = tcp('ls')
        assert r.returncode == 125 and b'CSPACE_API_KEY' in r.stderr
        tcp.env['CSPACE_API_KEY'] = key
        assert tcp('ls').returncode == 0
        assert key not in cli.out('key', 'ls') + cli.out('key', 'ls', '--json')
        r = tcp('run', '-T', TEMPLATE, '--', 'cat', input=b'through TCP')
        assert (r.returncode, r.stdout) == (0, b'through TCP')
    finally:
        cli('key', 'rm', id_)
    r = tcp('ls')
    assert r.returncode == 125 and b'CSPACE_API_KEY' in r.stderr


def test_doctor(cli):
    r = cli('doctor', '--json')
    checks = {c['name']: c for c in json.loads(r.stdout)['checks']}
    assert checks['engine']['status'] == 'ok'
