# SPDX-License-Identifier: Apache-2.0
"""What a sandbox reaches, with real package managers and real registries: their hosts are those that the template
has learned. Where the host itself cannot reach them, the tests that need them are skipped."""
import ipaddress
import json
import os
import re
import shutil
import socket

import pytest

from conftest import TEMPLATE

CONF = os.environ.get('CSPACE_CONF', '/etc/cspace/cspace.conf')


def package_hosts(cli):
    template = json.loads(cli.out('template', 'ls', '--json'))
    digest = next(t['digest'] for t in template if any(n == TEMPLATE or n.split(':')[0] == TEMPLATE for n in t['names']))
    with open(f'/var/lib/cspace/templates/{digest}/manifest.json', encoding='utf-8') as f:
        return json.load(f)['config']['hosts']['packages']


@pytest.fixture(scope='module')
def packages(cli):
    """The hosts of @packages are in reach. A network in which they have private or reserved addresses has an operator who
    says so: [egress] open, for the time of the tests."""
    if os.geteuid() != 0:
        pytest.skip('needs root, to read the configuration')
    addresses = set()
    for entry in package_hosts(cli):
        host, _, port = entry.rpartition(':')
        try:
            with socket.create_connection((host, int(port)), 5) as s:
                addresses.add(s.getpeername()[0])
        except OSError as e:
            pytest.skip(f'a host of @packages is not in reach from here: {e}')
    reserved = [a for a in sorted(addresses) if not ipaddress.ip_address(a).is_global]
    if not reserved:
        yield
        return
    shutil.copy2(CONF, CONF + '.before-test')
    try:
        with open(CONF, encoding='utf-8') as f:
            text = re.sub(r'(?m)^open\s*=.*\n', '', f.read())
        with open(CONF, 'w', encoding='utf-8') as f:
            f.write(text + '\n[egress]\nopen = ' + ' '.join(reserved) + '\n')
        cli.out('up')
        yield
    finally:
        shutil.move(CONF + '.before-test', CONF)
        cli.out('up')


def audit(cli, id_, *args):
    return [json.loads(line) for line in cli.out('audit', '--json', *args, id_).splitlines()]


def test_the_first_thing_one_tries(cli, packages):
    r = cli('run', '--allow', '@packages', '--', 'sh', '-c', 'apt-get update && apt-get install -y jq && pip install six', timeout=900)
    assert r.returncode == 0, r.stderr
    assert b'Successfully installed six' in r.stdout and b'jq' in r.stdout, r.stdout


def test_packages_install(cli, packages):
    id_ = cli.create('--allow', '@packages', '-m', '512M')
    try:
        r = cli('exec', '-u', 'root', id_, '--', 'sh', '-ec', """
            apt-get -q update >/dev/null
            apt-get -q install -y --no-install-recommends tree >/dev/null
            tree --version | head -c 4
            pip install -q --break-system-packages --root-user-action ignore six
            python3 -c 'import six; print(six.__name__)'""", timeout=900)
        assert (r.returncode, r.stdout) == (0, b'treesix\n'), r.stderr
        records = audit(cli, id_)
        asked = {x['host'] for x in records if x['kind'] == 'request' and x['verdict'] == 'allow'}
        assert asked == {h.rpartition(':')[0] for h in package_hosts(cli)}
        assert all(x['rule'] == 'allow' for x in records if x['verdict'] == 'allow')
        # TLS was looked into: the records of the index say what was asked for
        assert any(x['kind'] == 'request' and x['protocol'] == 'tls' and '/six/' in x['path'] for x in records), records
    finally:
        cli('rm', id_)


def test_what_is_not_allowed_fails_at_once_and_is_recorded(cli):
    id_ = cli.create('--allow', 'allowed.example', '--allow', '*.below.example:443')
    try:
        def curl(url):
            r = cli('exec', id_, '--', 'curl', '-sS', '-m', '20', '-o', '/dev/null', '-w', '%{http_code}', url)
            return r.returncode, r.stdout.decode(), r.stderr.decode()

        assert curl('https://denied.example/')[0] == 6          # no such name
        assert curl('https://below.example/')[0] == 6           # the suffix itself is not below itself
        reset = (7, 35, 55, 56)                                 # by when curl notices
        assert curl('http://192.0.2.1/')[0] in reset            # not 28, a time-out
        assert curl('https://198.51.100.7:8443/')[0] in reset
        assert curl('http://allowed.example:8080/')[0] in reset  # another port
        code, status, _ = curl('http://allowed.example/')       # allowed, and there is none such
        assert (code, status) == (0, '502'), (code, status)
        # resolvers of the guest's own choice are the gateway all the same
        r = cli('exec', id_, '--', 'python3', '-c', """
import socket
q = bytes.fromhex('123401000001000000000000') + b'\\x06denied\\x07example\\0' + bytes.fromhex('00010001')
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.sendto(q, ('192.0.2.53', 53)); print(s.recv(512)[3] & 15)""")
        assert r.stdout.strip() == b'5', r                       # REFUSED
        records = audit(cli, id_)
        denied = {(x['kind'], x.get('host') or x.get('address')) for x in records if x['verdict'] == 'deny'}
        for want in (('dns', 'denied.example'), ('dns', 'below.example'), ('connect', '192.0.2.1'), ('connect', '198.51.100.7'),
                     ('connect', 'allowed.example')):
            assert want in denied, (want, denied)
        assert all(x['reason'] and x['rule'] for x in records)
        human = cli.out('audit', '--verdict', 'deny', '--host', 'denied.example', id_)
        assert 'denied.example' in human and 'no_rule' in human
    finally:
        cli('rm', id_)


def test_policy_changes_at_once(cli):
    id_ = cli.create()
    try:
        def dns(name):
            return cli('exec', id_, '--', 'getent', 'hosts', name).returncode

        assert json.loads(cli.out('policy', 'get', id_)) == {'rules': []} or dns('one.example') == 2
        assert dns('one.example') == 2
        cli.out('policy', 'set', '--allow', 'one.example', id_)
        assert dns('one.example') == 0 and dns('two.example') == 2
        first = cli.out('exec', id_, '--', 'getent', 'hosts', 'one.example').split()[0]
        assert ipaddress.ip_address(first) in ipaddress.ip_network('198.18.0.0/15')
        bad = cli('policy', 'set', id_, '-', input=b'{"rules": [{"action": "allow", "hosts": ["*"], "surprise": 1}]}')
        assert bad.returncode != 0 and b'surprise' in bad.stderr
        assert dns('one.example') == 0  # the old one stays
        cli.out('policy', 'set', id_, 'none')
        assert dns('one.example') == 2
        assert cli('policy', 'check', id_, 'https://one.example/').returncode == 1
    finally:
        cli('rm', id_)


def test_gateway_comes_with_the_first_packet(cli):
    id_ = cli.create('--allow', 'one.example')
    try:
        def state():
            return re.search(r'Gateway: +(.*)', cli.out('info', id_))[1]

        assert cli('exec', id_, '--', 'true').returncode == 0
        assert state() == 'idle, starts with the first packet'
        cli.out('policy', 'set', '--allow', 'two.example', id_)
        assert cli('exec', id_, '--', 'getent', 'hosts', 'two.example').returncode == 0  # the first
        assert state() == 'active'
        assert cli('exec', id_, '--', 'getent', 'hosts', 'one.example').returncode == 2
    finally:
        cli('rm', id_)


def test_gateway_killed(cli):
    """Egress is lost, never gained, and comes back by itself."""
    if os.geteuid() != 0:
        pytest.skip('needs root')
    id_ = cli.create('--allow', 'one.example')
    try:
        def address():
            r = cli('exec', id_, '--', 'getent', 'hosts', 'one.example')
            return r.stdout.split()[0] if r.returncode == 0 else None

        before = address()
        assert before
        with open(f'/run/cspace/sandboxes/{id_}/placement', encoding='utf-8') as f:
            pid = int(re.search(r'^gateway_pid=([1-9]\d*)', f.read(), re.M)[1])
        os.kill(pid, 9)
        for _ in range(40):
            after = address()
            if after:
                break
        assert after == before  # the name keeps its address
        assert cli('exec', id_, '--', 'getent', 'hosts', 'two.example').returncode == 2
    finally:
        cli('rm', id_)
