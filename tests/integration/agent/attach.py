# SPDX-License-Identifier: Apache-2.0
"""A client of native command sessions: the frames of src/lib/wire/attach.h."""
import json
import socket
import struct

from conftest import TOKEN

STDIN, STDIN_EOF, RESIZE, SIGNAL, ACK, PING = 1, 2, 3, 4, 5, 6
STARTED, STDOUT, STDERR, PTY, GAP, WINDOW, EXIT, ERROR, PONG = range(0x10, 0x19)


class Attach:
    def __init__(self, agent, pid, offset=None, sock=None):
        self.s = sock or socket.create_connection(('127.0.0.1', agent.port), timeout=30)
        query = '' if offset is None else f'?offset={offset}'
        self.s.sendall(f'GET /cspace/v1/processes/{pid}/attach{query} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n'
                       f'Upgrade: cspace-attach\r\nX-Access-Token: {TOKEN}\r\n\r\n'.encode())
        head = b''
        while b'\r\n\r\n' not in head:
            d = self.s.recv(4096)
            if not d:
                raise EOFError(head)
            head += d
        head, _, rest = head.partition(b'\r\n\r\n')
        self.buf = bytearray(rest)
        self.status = int(head.split()[1])
        self.out, self.err = bytearray(), bytearray()
        self.offset = offset or 0
        self.window = 0
        self.started = self.exit = self.error = None
        self.gaps = []

    def send(self, kind, payload=b''):
        self.s.sendall(struct.pack('>BI', kind, len(payload)) + payload)

    def ack(self):
        self.send(ACK, struct.pack('>Q', self.offset))

    def frame(self):
        """The next frame, taken note of: (type, payload); None at the end."""
        while len(self.buf) < 5 or len(self.buf) < 5 + struct.unpack('>I', self.buf[1:5])[0]:
            d = self.s.recv(1 << 20)
            if not d:
                return None
            self.buf += d
        kind, n = struct.unpack('>BI', self.buf[:5])
        p = bytes(self.buf[5:5 + n])
        del self.buf[:5 + n]
        if kind in (STDOUT, STDERR, PTY):
            off = struct.unpack('>Q', p[:8])[0]
            assert off == self.offset, (off, self.offset)
            self.offset += len(p) - 8
            if kind == STDERR:
                self.err += p[8:]
            else:
                self.out += p[8:]
        elif kind == STARTED:
            self.started = struct.unpack('>IQQ', p)
        elif kind == WINDOW:
            self.window = struct.unpack('>Q', p)[0]
        elif kind == GAP:
            self.gaps.append(struct.unpack('>QQ', p))
            self.offset = self.gaps[-1][1]
        elif kind == EXIT:
            self.exit = json.loads(p)
        elif kind == ERROR:
            self.error = json.loads(p)
        return kind, p

    def until(self, done, ack=False):
        while not done(self):
            f = self.frame()
            if f is None:
                raise EOFError((self.out[-100:], self.exit, self.error))
            if ack and f[0] in (STDOUT, STDERR, PTY):
                self.ack()
        return self

    def until_frame(self, kind):
        while True:
            f = self.frame()
            if f is None:
                raise EOFError
            if f[0] == kind:
                return f[1]

    def finish(self, ack=True):
        return self.until(lambda a: a.exit or a.error, ack)

    def write(self, data):
        """All of data, as the window allows; returns what was sent."""
        sent = self.sent = getattr(self, 'sent', 0)
        while sent < len(data):
            if self.window <= sent:
                self.until(lambda a: a.window > sent or a.exit)
                if self.exit or self.window == 2**64 - 1:
                    break
            n = min(len(data) - sent, self.window - sent, 65536)
            self.send(STDIN, data[sent:sent + n])
            sent += n
        self.sent = sent
        return sent

    def close(self):
        self.s.close()


def create(agent, cmd, *args, **more):
    a = agent.native('POST', '/processes', {'cmd': cmd, 'args': list(args), **more})
    assert a.status == 201, a.body
    return a.json['processId']


def run(agent, cmd, *args, **more):
    a = Attach(agent, create(agent, cmd, *args, **more))
    a.finish()
    a.close()
    return a
