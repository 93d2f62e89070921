# SPDX-License-Identifier: Apache-2.0
"""Enough of a client of the agent to run commands and move files."""
import json

from launcher import IDENTITY


def request(p, method, path, body=b'', headers=None, token=IDENTITY['accessToken'], close=True):
    """Sends a request; returns the open data connection, the head's first line and what followed the head."""
    d = p.data(49983)
    assert d.ok, d.line
    lines = [f'{method} {path} HTTP/1.1', 'Host: sandbox', f'Content-Length: {len(body)}']
    if token:
        lines.append('X-Access-Token: ' + token)
    if close:
        lines.append('Connection: close')
    lines += [f'{k}: {v}' for k, v in (headers or {}).items()]
    d.sock.sendall('\r\n'.join(lines).encode() + b'\r\n\r\n' + body)
    return d


def answer(d):
    """(status, body) of a request whose connection closes after it."""
    got, proper = d.read_end()
    d.close()
    head, _, body = got.partition(b'\r\n\r\n')
    assert head, 'no answer'
    if b'transfer-encoding: chunked' in head.lower():
        body = unchunk(body)
    return int(head.split()[1]), body, proper


def unchunk(data):
    out = b''
    while data:
        size, _, data = data.partition(b'\r\n')
        n = int(size, 16)
        if n == 0:
            return out
        out, data = out + data[:n], data[n + 2:]
    raise AssertionError('a chunked body that does not end')


class Result:
    def __init__(self, stdout, stderr, end):
        self.stdout, self.stderr, self.end = stdout, stderr, end
        self.ok = bool(end) and (end.get('exitCode', 0) == 0) and end.get('exited', False)


def start(p, argv, token=IDENTITY['accessToken'], user=None):
    message = json.dumps({'process': {'cmd': argv[0], 'args': argv[1:]}}).encode()
    headers = {'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1'}
    body = b'\0' + len(message).to_bytes(4, 'big') + message
    return request(p, 'POST', '/process.Process/Start', body, headers, token)


def run(p, argv, **kw):
    """Runs a command to its end."""
    import base64
    status, body, proper = answer(start(p, argv, **kw))
    assert status == 200, (status, body)
    assert proper, 'the connection was cut'
    out, err, end = b'', b'', None
    while body:
        flags, n = body[0], int.from_bytes(body[1:5], 'big')
        message, body = json.loads(body[5:5 + n]), body[5 + n:]
        event = message.get('event', {})
        data = event.get('data', {})
        out += base64.b64decode(data.get('stdout', ''))
        err += base64.b64decode(data.get('stderr', ''))
        end = event.get('end', end)
        if flags & 2 and message.get('error'):
            raise AssertionError(message)
    return Result(out, err, end)


def pid_of(p, script):
    """The pid of the running command with that script."""
    status, body, _ = answer(request(p, 'POST', '/process.Process/List', b'{}',
                                     {'Content-Type': 'application/json', 'Connect-Protocol-Version': '1'}))
    assert status == 200, body
    return next(c['pid'] for c in json.loads(body)['processes'] if script in c['config'].get('args', []))


def put(p, path, data):
    status, body, _ = answer(request(p, 'PUT', '/cspace/v1/files?path=' + path, data))
    assert status in (200, 201, 204), (status, body)


def get(p, path):
    status, body, _ = answer(request(p, 'GET', '/cspace/v1/files?path=' + path))
    assert status == 200, (status, body)
    return body
