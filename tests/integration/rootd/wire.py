# SPDX-License-Identifier: Apache-2.0
"""The messages of src/lib/ipc/messages.h, read from its tables, and a client of rootd.sock."""
import array
import os
import re
import socket
import struct
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
REPLY, ERROR = 1, 2
PACKET_MAX = 192 * 1024


def _tables():
    with open(os.path.join(TOP, 'src/lib/ipc/messages.h'), encoding='utf-8') as f:
        text = re.sub(r'/\*.*?\*/', '', f.read(), flags=re.S).replace('\\\n', ' ')
    fields = {m[1]: re.findall(r'X\((\w+), (\w+),', m[2]) for m in re.finditer(r'#define IPC_(\w+)_FIELDS\(X\)(.*)', text)}
    rows = re.findall(r'M\((\d+), ([A-Z_]+), [a-z_]+\)', re.search(r'#define IPC_MESSAGES\(M\)(.*)', text)[1])
    return fields, {name: int(number) for number, name in rows}


FIELDS, TYPES = _tables()
NAMES = {v: k for k, v in TYPES.items()}


def encode(name, **values):
    out = b''
    for kind, field in FIELDS[name]:
        v = values.pop(field, '' if kind in ('STR', 'BLOB') else 0)
        if kind == 'U32':
            out += struct.pack('<I', v)
        elif kind == 'U64':
            out += struct.pack('<Q', v)
        else:
            v = v.encode(errors='surrogateescape') if isinstance(v, str) else v
            out += struct.pack('<I', len(v)) + v
    assert not values, f'{name} has no {list(values)}'
    return out


def decode(name, body):
    at, out = 0, {}
    for kind, field in FIELDS[name]:
        if kind in ('U32', 'U64'):
            fmt = '<I' if kind == 'U32' else '<Q'
            out[field] = struct.unpack_from(fmt, body, at)[0]
            at += struct.calcsize(fmt)
        else:
            n = struct.unpack_from('<I', body, at)[0]
            out[field] = body[at + 4:at + 4 + n].decode()
            at += 4 + n
    assert at == len(body), f'{name} is {len(body)} bytes, read {at}'
    return out


class RootdError(Exception):
    def __init__(self, code, message):
        super().__init__(f'[{code}] {message}')
        self.code, self.message = code, message


class Client:
    """One connection; events that come in between are kept in .events."""

    def __init__(self, path, hello=True, timeout=30):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.seq = 0
        self.events = []
        self.early = {}
        self.fds = []  # that came with answers and were not taken
        self.info = self.call('HELLO', 'HOST_INFO', version=1) if hello else None

    def raw(self, type_number, body=b'', flags=0, seq=None, fds=()):
        if seq is None:
            self.seq += 1
            seq = self.seq
        anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        self.sock.sendmsg([struct.pack('<HHI', type_number, flags, seq) + body], anc)
        return seq

    def send(self, name, fds=(), **values):
        return self.raw(TYPES[name], encode(name, **values), fds=fds)

    def _packet(self):
        data, fds, _, _ = socket.recv_fds(self.sock, PACKET_MAX, 8)
        self.fds += fds
        if not data:
            raise ConnectionResetError('rootd closed the connection')
        t, flags, seq = struct.unpack_from('<HHI', data)
        return t, flags, seq, data[8:]

    def answer(self, seq):
        """(type, flags, body) of the reply to seq."""
        while seq not in self.early:
            t, flags, got, body = self._packet()
            if got == 0:
                self.events.append((NAMES[t], decode(NAMES[t], body)))
            else:
                self.early[got] = (t, flags, body)
        return self.early.pop(seq)

    def result(self, seq, reply='OK'):
        _, flags, body = self.answer(seq)
        if flags & ERROR:
            e = decode('ERROR', body)
            raise RootdError(e['code'], e['message'])
        return decode(reply, body)

    def call(self, name, reply='OK', fds=(), **values):
        return self.result(self.send(name, fds=fds, **values), reply)

    def event(self, timeout=10):
        if self.events:
            return self.events.pop(0)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            t, _, got, body = self._packet()
            if got == 0:
                return NAMES[t], decode(NAMES[t], body)
        raise TimeoutError('no event')

    def close(self):
        self.sock.close()
