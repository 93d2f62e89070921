# SPDX-License-Identifier: Apache-2.0
"""api/policy.schema.json against the parser of policies.

What the schema refuses, the parser refuses. What the parser refuses and the schema does not must be of a kind
that a schema cannot say; each kind is listed, with the parser's words. Every key of the schema is known to the
parser and the other way round.
"""
import copy
import glob
import json
import os
import random
import re
import subprocess

import pytest

jsonschema = pytest.importorskip('jsonschema')

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
DUMP = os.path.join(os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build')), 'tests', 'unit', 'policy', 'policy_dump')
COUNT = 6000

pytestmark = pytest.mark.skipif(not os.access(DUMP, os.X_OK), reason=f'{DUMP} is not built')

with open(os.path.join(TOP, 'api', 'policy.schema.json'), encoding='utf-8') as _f:
    SCHEMA = json.load(_f)

BEYOND = [
    r'is not a host: ', r'must be a number from 1 to 65535', r'is an address; addresses belong', r'top-level domain', r'anyone can register',
    r'there is no preset', r'contradict each other', r'must be an IPv4 range', r'is not public; it needs', r'must be a port or a range',
    r'"ports" is missing', r'is never reached', r'is the name of', r'paths\[\d+\]: ', r'more than \d+ hosts', r'bytes; the limit is', r'more than 256 bytes',
]

VALUES = {
    'name': ['a', 'A', '', 'default', 'x' * 64, 7, None],
    'action': ['allow', 'deny', 'drop', None, 1],
    'hosts': [['a.test'], ['*.a.test'], ['*'], ['a.test:8080'], ['@packages'], ['@none'], [], ['a b'], ['*.com'], ['*.github.io'], ['1.2.3.4'], 'a.test', [1],
              ['a.test:0'], ['-a.test'], ['a..test'], ['https://a.test'], ['b\u00fccher.test'], ['[::1]'], ['*a.test'], ['h%d.test' % i for i in range(1025)], None],
    'shared_suffix': [True, False, 1, None],
    'cidr': [['1.0.0.0/8'], ['10.0.0.0/8'], ['10.0.0.1/8'], ['1.2.3.4'], ['1.2.3.4/33'], ['::/0'], [], ['x'], [4], '1.2.3.4', None],
    'ports': [[443], ['8000-8080'], [0], [65536], ['9-8'], ['443'], [443.5], [], 443, [True], None],
    'protocol': ['web', 'http', 'https', 'tls', 'tcp', 'any', 'udp', '', 1, None],
    'methods': [['GET'], ['GET', 'PUT'], ['get'], [], ['A B'], 'GET', [1], ['X' * 33], None],
    'paths': [['/'], ['/a/*'], ['/**'], ['a'], ['/a?b'], ['/a/../b'], ['/a%2fb'], ['/a%61'], [], ['/' + 'a' * 256], '/', [1], ['/a//b'], None],
    'inspect': [True, False, 'yes', None],
    'internal': [True, False, 0, None],
    'limits': [{}, {'connections': 1}, {'bytes_out': 0}, {'bytes_in': 1 << 53}, {'bytes_in': (1 << 53) + 1}, {'x': 1}, {'names': '1'}, {'names': 8192}, {'names': 8193}, 1, None,
               {'requests_per_minute': 5, 'names': None}],
}
TOP_VALUES = {'version': [1, 2, '1', None], 'limits': VALUES['limits'], 'rules': [[], {}, None, [1], 'x'], 'rule': [[]]}


def parser(policies, *args):
    text = ''.join(json.dumps(p) + '\n' for p in policies)
    r = subprocess.run([DUMP, *args], input=text, capture_output=True, text=True, check=True, timeout=120)
    out = r.stdout.splitlines()
    assert len(out) == len(policies)
    return out


def corpus():
    for path in sorted(glob.glob(os.path.join(TOP, 'tests', 'fuzz', 'corpus', 'policy', '*'))):
        with open(path, encoding='utf-8', errors='replace') as f:
            text = f.read().split('\n', 2)[-1]
        try:
            yield json.loads(text)
        except ValueError:
            pass


def random_rule(rng):
    rule = {'action': rng.choice(['allow', 'deny']), 'hosts': rng.choice(VALUES['hosts'][:5])}
    for key in rng.sample(list(VALUES), rng.randrange(5)):
        rule[key] = rng.choice(VALUES[key])
    if rng.random() < 0.1:
        rule[rng.choice(['hosts', 'action', 'surprise'])] = rng.choice([1, None])
    if rng.random() < 0.1:
        rule.pop(rng.choice(['hosts', 'action']))
    return rule


def candidates():
    rng = random.Random(11)
    yield from ('none', '@packages', '@x', 'x', '', 1, None, [], {}, True)
    yield from corpus()
    for key, values in VALUES.items():
        for v in values:
            yield {'rules': [dict({'action': 'allow', 'hosts': ['a.test']}, **{key: v})]}
            yield {'rules': [dict({'action': 'deny', 'hosts': ['a.test']}, **{key: v})]}
    for key, values in TOP_VALUES.items():
        for v in values:
            yield {key: v}
    for _ in range(COUNT):
        policy = {'rules': [random_rule(rng) for _ in range(rng.randrange(3))]}
        if rng.random() < 0.2:
            key = rng.choice(list(TOP_VALUES))
            policy[key] = rng.choice(TOP_VALUES[key])
        yield policy


def test_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_same_verdicts():
    validator = jsonschema.Draft202012Validator(SCHEMA)
    policies = list(candidates())
    counts = {'both accept': 0, 'both refuse': 0, 'only the parser refuses': 0}
    wrong = []
    for policy, said in zip(policies, parser(policies)):
        valid = validator.is_valid(policy)
        if said == 'ok':
            counts['both accept'] += 1
            if not valid:
                wrong.append(f'only the schema refuses: {json.dumps(policy)[:300]}: {next(validator.iter_errors(policy)).message[:200]}')
        elif not valid:
            counts['both refuse'] += 1
        else:
            counts['only the parser refuses'] += 1
            if not any(re.search(b, said) for b in BEYOND):
                wrong.append(f'only the parser refuses: {json.dumps(policy)[:300]}: {said}')
    assert not wrong, f'{len(wrong)}\n' + '\n'.join(wrong[:10])
    # All three happen, or nothing was compared.
    assert min(counts.values()) > 50, counts


@pytest.mark.parametrize('where', ['policy', 'rule', 'limits'])
def test_keys_are_the_same(where):
    """Each key of the schema is one that the parser knows; a key of neither is refused by both."""
    keys = SCHEMA['$defs'][where]['properties']
    wrap = {'policy': lambda o: o, 'rule': lambda o: {'rules': [dict({'action': 'allow', 'hosts': ['a.test']}, **o)]}, 'limits': lambda o: {'limits': o}}[where]
    said = parser([wrap({k: copy.deepcopy('\u0001no such value')}) for k in keys] + [wrap({'surprise': 1})])
    for key, text in zip(keys, said):
        assert 'unknown' not in text and text != 'ok', (key, text)
    assert 'surprise' in said[-1]


def examples(page):
    with open(os.path.join(TOP, 'docs', page), encoding='utf-8') as f:
        return [json.loads(block) for block in re.findall(r'```json\n(.*?)```', f.read(), re.S)]


def test_examples_of_the_page():
    """What docs/egress.md shows is accepted by both."""
    found = examples('egress.md')
    assert len(found) >= 5
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for example, said in zip(found, parser(found)):
        assert said == 'ok', (said, example)
        validator.validate(example)


def test_examples_of_bindings():
    found = examples('credentials.md')
    assert found
    # Each way of injection that the page's table shows, too.
    with open(os.path.join(TOP, 'docs', 'credentials.md'), encoding='utf-8') as f:
        shown = [json.loads(i) for i in re.findall(r'^\| `(\{"as".*?\})` \|', f.read(), re.M)]
    assert len(shown) == 3
    found += [dict(found[0], inject=i) for i in shown]
    assert parser([[b] for b in found], 'bindings') == ['ok'] * len(found)


def test_page_is_complete():
    """docs/egress.md names each key of the language and each reason of a refusal, and no other reason."""
    with open(os.path.join(TOP, 'docs', 'egress.md'), encoding='utf-8') as f:
        page = f.read()
    for where in ('policy', 'rule', 'limits'):
        for key in SCHEMA['$defs'][where]['properties']:
            assert f'`{key}`' in page or f'"{key}"' in page, key
    with open(os.path.join(TOP, 'src', 'lib', 'policy', 'policy_reason.c'), encoding='utf-8') as f:
        reasons = set(re.findall(r'\[REASON_\w+\] = \{ "(\w+)"', f.read()))
    assert len(reasons) > 30
    table = page[page.index('| reason |'):page.index('`cspace policy check')]
    rows = [line.split('|')[1] for line in table.splitlines()[2:] if line.startswith('|')]
    assert set(re.findall(r'`(\w+)`', ' '.join(rows))) == reasons
