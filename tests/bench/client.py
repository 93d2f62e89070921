# SPDX-License-Identifier: Apache-2.0
"""A small client of the native API for benchmarks: one keep-alive connection, attach frames."""
import http.client
import json
import os
import socket
import struct

STDIN, STDIN_EOF, ACK = 0x01, 0x02, 0x05
STARTED, STDOUT, STDERR, EXIT, ERROR = 0x10, 0x11, 0x12, 0x16, 0x17


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__('localhost', timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class ApiError(Exception):
    pass


class Api:
    def __init__(self, path=None):
        self.path = path or os.environ.get('CSPACE_API_SOCKET', '/run/cspace/api.sock')
        self.conn = UnixConnection(self.path)

    def request(self, method, target, body=None, raw=False):
        data = None if body is None else body if raw else json.dumps(body)
        self.conn.request(method, target, data, {} if data is None else {'Content-Type': 'application/json'})
        r = self.conn.getresponse()
        text = r.read()
        if r.status >= 300:
            raise ApiError(f'{method} {target}: {r.status} {text.decode(errors="replace")[:300]}')
        return json.loads(text) if text else None

    def create(self, template='base', **kw):
        reply = self.request('POST', '/v1/sandboxes?wait=600', {'template': template, **kw})
        if reply['sandbox']['state'] != 'running':
            raise ApiError(f'create: {reply["operation"]}')
        return reply['sandbox']

    def delete(self, sandbox_id):
        self.request('DELETE', f'/v1/sandboxes/{sandbox_id}?wait=60')

    def attach(self, sandbox_id, cmd, args=(), stdin=False, **kw):
        """Starts a command and returns the socket that carries its frames."""
        s = self.request('POST', f'/v1/sandboxes/{sandbox_id}/commands',
                         {'cmd': cmd, 'args': list(args), 'stdin': stdin, **kw})
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(120)
        sock.connect(self.path)
        sock.sendall((f'GET {s["attach_url"]} HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n'
                      'Upgrade: cspace-attach\r\n\r\n').encode())
        head = b''
        while b'\r\n\r\n' not in head:
            piece = sock.recv(65536)
            if not piece:
                raise ApiError('attach: connection closed')
            head += piece
        head, _, rest = head.partition(b'\r\n\r\n')
        if b' 101 ' not in head.split(b'\r\n')[0] + b' ':
            raise ApiError('attach: ' + head.decode(errors='replace')[:200])
        return Frames(sock, rest)

    def run(self, sandbox_id, cmd, args=(), **kw):
        """Runs to the end. Returns (exit code, bytes of output)."""
        frames = self.attach(sandbox_id, cmd, args, **kw)
        total = 0
        for kind, payload in frames:
            if kind in (STDOUT, STDERR):
                total += len(payload) - 8
                frames.took(struct.unpack('>Q', payload[:8])[0] + len(payload) - 8)
            elif kind == EXIT:
                frames.close()
                return json.loads(payload)['exitCode'], total
            elif kind == ERROR:
                raise ApiError('command: ' + payload.decode(errors='replace'))
        raise ApiError('command: stream ended without an exit')


class Frames:
    ACK_EVERY = 256 * 1024

    def __init__(self, sock, rest):
        self.sock, self.data, self.acked = sock, bytearray(rest), 0

    def took(self, offset):
        if offset - self.acked >= self.ACK_EVERY:
            self.acked = offset
            self.sock.sendall(struct.pack('>BIQ', ACK, 8, offset))

    def __iter__(self):
        while True:
            while len(self.data) < 5 or len(self.data) < 5 + struct.unpack('>I', self.data[1:5])[0]:
                piece = self.sock.recv(1 << 20)
                if not piece:
                    return
                self.data += piece
            n = struct.unpack('>I', self.data[1:5])[0]
            kind, payload = self.data[0], bytes(self.data[5:5 + n])
            del self.data[:5 + n]
            yield kind, payload

    def close(self):
        self.sock.close()
