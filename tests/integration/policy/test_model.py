# SPDX-License-Identifier: Apache-2.0
"""Verdicts against a second reading of docs/egress.md, in Python and without a thought for speed.

Random policies, random questions. A request's verdict must be the same; the earlier stages must not cut off what a request
could be allowed, and TLS passes unseen only where no request could be refused.
"""
import ipaddress
import json
import os
import random
import re
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
DUMP = os.path.join(os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build')), 'tests', 'unit', 'policy', 'policy_dump')
COUNT = 8000

pytestmark = pytest.mark.skipif(not os.access(DUMP, os.X_OK), reason=f'{DUMP} is not built')

HOSTS = ['a.test', 'x.a.test', 'y.x.a.test', 'b.test', 'evila.test', '10.1.2.3', '192.0.2.9', '44.0.0.1']
PORTS = [80, 443, 22, 8080]
PROTOCOLS = ['http', 'tls', 'tcp']
METHODS = ['GET', 'PUT', 'POST', 'put']
TARGETS = ['/', '/x', '/x/', '/x/y', '/x/y/z?q=/../', '/y', '/%78/y', '/xy']
PATTERNS = ['/', '/x', '/x/', '/x/*', '/x/**', '/*', '/*/y', '/**y', '/x*']


def protocols(rule):
    default = 'any' if rule['action'] == 'deny' and not ({'methods', 'paths'} & set(rule)) else 'web'
    return {'web': {'http', 'tls'}, 'any': {'http', 'tls', 'tcp'}, 'http': {'http'}, 'https': {'tls'}, 'tls': {'tls'},
            'tcp': {'tcp'}}[rule.get('protocol', default)]


def port_fits(rule, port):
    if 'ports' not in rule:
        if rule['action'] == 'deny':
            return True
        return (port == 80 and 'http' in protocols(rule)) or (port == 443 and 'tls' in protocols(rule))
    for p in rule['ports']:
        first, last = (p, p) if isinstance(p, int) else map(int, p.split('-'))
        if first <= port <= last:
            return True
    return False


def destination_fits(rule, host, port):
    if re.fullmatch(r'[0-9.]+', host):
        return any(ipaddress.ip_address(host) in ipaddress.ip_network(c) for c in rule.get('cidr', [])) and port_fits(rule, port)
    for pattern in rule.get('hosts', []):
        name, _, own = pattern.partition(':')
        if name == '*' or name == host or (name.startswith('*.') and host.endswith(name[1:])):
            if int(own) == port if own else port_fits(rule, port):
                return True
    return False


def path_fits(pattern, target):
    path = target.split('?')[0].replace('%78', 'x')
    regex = ''.join('.*' if t == '**' else '[^/]*' if t == '*' else re.escape(t) for t in re.findall(r'\*\*|\*|[^*]', pattern))
    return re.fullmatch(regex + ('.*' if pattern.endswith('/') else ''), path) is not None


def judge(policy, q):
    """(verdict, rule) for a request, or for bytes when the protocol is tcp."""
    for i, rule in enumerate(policy['rules']):
        if not destination_fits(rule, q['host'], q['port']) or q['protocol'] not in protocols(rule):
            continue
        if 'methods' in rule:
            if q['method'] != q['method'].upper():
                return 'deny', rule.get('name', f'rules[{i}]')
            if q['method'] not in rule['methods']:
                continue
        if 'paths' in rule and not any(path_fits(p, q['target']) for p in rule['paths']):
            continue
        return rule['action'], rule.get('name', f'rules[{i}]')
    return 'deny', 'default'


def random_rule(rng, i):
    rule = {'action': rng.choice(['allow', 'allow', 'deny'])}
    if rng.random() < 0.8:
        rule['hosts'] = rng.sample(['a.test', '*.a.test', '*', 'b.test', '*.x.a.test'], rng.randint(1, 2))
    if rng.random() < 0.3 or 'hosts' not in rule:
        rule['cidr'] = rng.sample(['0.0.0.0/0', '44.0.0.0/8', '192.0.2.0/24', '10.1.2.3'], rng.randint(1, 2))
        if rule['action'] == 'allow':
            rule['internal'] = True
    if rng.random() < 0.4:
        rule['protocol'] = rng.choice(['web', 'http', 'https', 'tcp', 'any'])
    if rng.random() < 0.4 or (rule['action'] == 'allow' and rule.get('protocol') in ('tcp', 'any')):
        rule['ports'] = rng.sample([80, 443, 22, '8000-9000', '1-65535'], rng.randint(1, 2))
    elif 'hosts' in rule and rng.random() < 0.2:
        rule['hosts'].append('a.test:8080')
    if rule.get('protocol') not in ('tcp', 'any'):
        if rng.random() < 0.3:
            rule['methods'] = rng.sample(['GET', 'PUT', 'POST'], rng.randint(1, 2))
        if rng.random() < 0.3:
            rule['paths'] = rng.sample(PATTERNS, rng.randint(1, 2))
        if rule['action'] == 'allow' and not ({'methods', 'paths'} & set(rule)) and rule.get('protocol') != 'http' and rng.random() < 0.3:
            rule['inspect'] = False
    if rng.random() < 0.5:
        rule['name'] = f'r{i}'
    return rule


def questions():
    rng = random.Random(23)
    for _ in range(COUNT):
        policy = {'rules': [random_rule(rng, i) for i in range(rng.randint(1, 5))]}
        yield {'policy': policy, 'host': rng.choice(HOSTS), 'port': rng.choice(PORTS), 'protocol': rng.choice(PROTOCOLS),
               'method': rng.choice(METHODS), 'target': rng.choice(TARGETS)}


def every_request(q):
    for method in ['GET', 'PUT', 'POST', 'OTHER']:
        for target in TARGETS:
            yield dict(q, method=method, target=target)


def test_second_reading():
    asked = list(questions())
    r = subprocess.run([DUMP, 'judge'], input=''.join(json.dumps(q) + '\n' for q in asked), capture_output=True, text=True, check=True,
                       timeout=300)
    seen = {}
    for q, line in zip(asked, r.stdout.splitlines(), strict=True):
        if line.startswith('error: '):
            # The only thing that is wrong with these policies is that chance made two rules alike.
            assert 'never reached' in line, (line, q)
            continue
        dns, _, connect, connect_rule, request, request_rule = line.split()
        want = judge(q['policy'], q)
        what = (json.dumps(q), line, want)
        if q['protocol'] == 'tcp':
            assert (connect, connect_rule) == want, what
            could = {want[0]}
        else:
            assert (request, request_rule) == want, what
            could = {judge(q['policy'], x)[0] for x in every_request(q)}
            if connect == 'pass':
                assert could == {'allow'}, what
        if 'allow' in could:
            assert connect != 'deny', what
            assert dns == 'allow' or q['host'][0].isdigit(), what
        seen[(q['protocol'], connect, want[0])] = seen.get((q['protocol'], connect, want[0]), 0) + 1
    # Each combination that can be, often enough to have been tried.
    for key in [('tcp', 'allow', 'allow'), ('tcp', 'deny', 'deny'), ('tls', 'pass', 'allow'), ('tls', 'ask', 'allow'), ('tls', 'ask', 'deny'),
                ('tls', 'deny', 'deny'), ('http', 'ask', 'allow'), ('http', 'ask', 'deny'), ('http', 'deny', 'deny')]:
        assert seen.get(key, 0) > 20, (key, seen)
