# SPDX-License-Identifier: Apache-2.0
"""credential, bind, unbind with a real sandbox: what the guest sees of a secret, and what the records say. Whether it arrives
upstream is asserted where there is an upstream: tests/integration/life/test_egress.py."""
import json
import os
import time

import pytest

SECRET = 'e2e-secret-5b1f9c'


@pytest.fixture
def names(cli):
    """Names of credentials that are removed afterwards."""
    made = []

    def make(suffix):
        made.append(f'e2e-{os.getpid()}-{suffix}')
        return made[-1]
    yield make
    for name in made:
        cli('credential', 'rm', name)


def listed(cli, name):
    return next((c for c in json.loads(cli.out('credential', 'ls', '--json')) if c['name'] == name), None)


def test_life_of_a_credential(cli, names):
    token = names('token')
    cli.out('credential', 'add', token, input=SECRET.encode())
    id_ = cli.create('--allow', 'bound.example')
    try:
        binding = cli.out('bind', '--host', 'bound.example', '--env', 'E2E_TOKEN', id_, token).strip()
        seen = cli.out('exec', id_, '--', 'sh', '-c', 'echo "$E2E_TOKEN"').strip()
        assert len(seen) >= 24 and seen != SECRET
        r = cli('exec', id_, '--', 'curl', '-sS', '-m', '30', '-w', '%{http_code}', 'https://bound.example/')
        assert r.returncode == 0 and r.stdout.endswith(b'502')  # there is no such host; the gateway's certificate is trusted
        r = cli('exec', id_, '--', 'sh', '-c', 'curl -sS -m 30 -w "%{http_code}" -H "X-Other: $E2E_TOKEN" https://bound.example/')
        assert r.stdout.endswith(b'403') and b'"placeholder"' in r.stdout
        end = time.monotonic() + 20
        while True:  # a record comes a moment after what it is of
            records = [json.loads(line) for line in cli.out('audit', '--json', id_).splitlines()]
            if any(x['kind'] == 'request' and x['reason'] == 'placeholder' for x in records):
                break
            assert time.monotonic() < end, records
        assert any(x['kind'] == 'request' and x.get('binding') == binding for x in records), records
        assert SECRET not in json.dumps(records)
        assert cli('credential', 'rm', token).returncode != 0  # it is bound
        cli.out('credential', 'rotate', token, input=b'e2e-another-secret')
        cli.out('unbind', id_, binding)
        assert cli.out('bindings', '--json', id_).strip() in ('[]', '')
        cli.out('credential', 'rm', token)
        assert listed(cli, token) is None
    finally:
        cli('rm', '-f', id_)


def test_no_token_no_request(cli, names):
    """A command that the operator has not provided: told at once, and the request names the credential."""
    name = names('cmd')
    r = cli('credential', 'add', '--command', 'e2e-no-such-command', name)
    assert r.returncode == 0 and b'no token' in r.stderr
    assert listed(cli, name)['token']['state'] == 'failed'
    id_ = cli.create('--allow', 'bound.example')
    try:
        cli.out('bind', '--host', 'bound.example', id_, name)
        r = cli('exec', id_, '--', 'curl', '-sS', '-m', '30', '-w', '%{http_code}', 'https://bound.example/')
        assert r.stdout.endswith(b'503')
        error = json.loads(r.stdout[:-3])['error']
        assert error['code'] == 'credential_unavailable' and error['credential'] == name
    finally:
        cli('rm', '-f', id_)


def test_policy_of_a_template(cli):
    before = json.loads(cli.out('template', 'policy', '--json', 'base'))['policy']
    try:
        cli.out('template', 'policy', '--allow', 'one.example', 'base')
        id_ = cli.create()
        try:
            assert cli('exec', id_, '--', 'getent', 'hosts', 'one.example').returncode == 0
            assert cli('exec', id_, '--', 'getent', 'hosts', 'two.example').returncode == 2
        finally:
            cli('rm', '-f', id_)
    finally:
        if before is None:
            cli.out('template', 'policy', '--remove', 'base')
        else:
            cli.out('template', 'policy', 'base', '-', input=json.dumps(before).encode())
