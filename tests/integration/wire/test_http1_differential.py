# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 parser compared with Node's (llhttp), message by message.

Ours may refuse more. What both accept must be the same messages: a difference in where one ends
and the next begins is what request smuggling is made of.
"""
import glob
import json
import os
import random
import shutil
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
DUMP = os.path.join(os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build')), 'tests', 'unit', 'wire', 'http1_dump')
COUNT = 1500

pytestmark = [
    pytest.mark.skipif(not shutil.which('node'), reason='node is not installed'),
    pytest.mark.skipif(not os.access(DUMP, os.X_OK), reason=f'{DUMP} is not built'),
]

HOST = b'Host: a\r\n'
PIECES = [b'\r\n', b'\n', b'\r', b' ', b'\t', b'\0', b':', b',', b'0', b'5', b'\r\n\r\n', b'0\r\n\r\n', b'chunked',
          b'Transfer-Encoding: chunked\r\n', b'Transfer-Encoding: identity\r\n', b'Transfer-Encoding : chunked\r\n',
          b'Content-Length: 5\r\n', b'Content-Length: 0\r\n', b'Content-Length: +5\r\n', b'Content-Length: 5, 5\r\n',
          b'Connection: close\r\n', HOST, b'X: y\r\n z\r\n', b'\x80', b'GET / HTTP/1.1\r\nHost: a\r\n\r\n', b'HTTP/1.0', b';x=y']


def seeds():
    out = []
    for path in sorted(glob.glob(os.path.join(TOP, 'tests', 'fuzz', 'corpus', 'http1_requests', '*'))):
        with open(path, 'rb') as f:
            out.append(f.read())
    post = b'POST /p HTTP/1.1\r\n' + HOST
    out += [post + b'Content-Length: 5\r\n\r\nhello' + post + b'Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
            post + b'Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\nGET /n HTTP/1.1\r\n' + HOST + b'\r\n']
    return out


def mutants():
    rng = random.Random(7)
    base = seeds()
    yield from base
    for _ in range(COUNT):
        d = bytearray(rng.choice(base))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(d) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                d[at:at] = rng.choice(PIECES)
            elif kind == 1 and d:
                del d[at:at + rng.randint(1, 4)]
            elif kind == 2 and at < len(d):
                d[at] = rng.randrange(256)
            else:  # a piece instead of a line
                lines = bytes(d).split(b'\r\n')
                lines[rng.randrange(len(lines))] = rng.choice(PIECES)
                d = bytearray(b'\r\n'.join(lines))
        yield bytes(d)


def ask(argv, inputs):
    text = ''.join(i.hex() + '\n' for i in inputs)
    out = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=300, check=True).stdout.splitlines()
    assert len(out) == len(inputs)
    return [json.loads(line) for line in out]


def same(a, b):
    def fields(m):
        return [(n.lower(), bytes.fromhex(v).strip(b' \t')) for n, v in m['headers']]
    return (a['method'], a['target'], a['body'], fields(a)) == (b['method'], b['target'], b['body'], fields(b))


def upgrade_with_body(m):
    """Node takes the body of such a request for the other protocol's bytes; RFC 9110, 7.8 does not."""
    names = {n.lower() for n, _ in m['headers']}
    return 'upgrade' in names and names & {'content-length', 'transfer-encoding'}


def test_same_messages():
    inputs = [i for i in mutants() if i]
    ours, theirs = ask([DUMP], inputs), ask(['node', os.path.join(HERE, 'peer.js')], inputs)
    both = 0
    for raw, a, b in zip(inputs, ours, theirs):
        if any(upgrade_with_body(m) for m in b['messages']):
            continue
        for x, y in zip(a['messages'], b['messages']):
            assert same(x, y), f'{raw!r}\nours   {x}\ntheirs {y}'
            both += 1
        # A message that only one of them sees, although the other has not refused anything.
        if len(a['messages']) > len(b['messages']):
            closed = any(n.lower() == 'connection' and b'close' in bytes.fromhex(v).lower()
                         for m in b['messages'][-1:] for n, v in m['headers']) or b'HTTP/1.0' in raw
            assert b['end'].startswith('error') or closed, f'{raw!r}\nours   {a}\ntheirs {b}'
        if len(b['messages']) > len(a['messages']):
            assert a['end'].startswith('error'), f'{raw!r}\nours   {a}\ntheirs {b}'
    assert both > len(inputs) / 6  # the comparison is of something
