# SPDX-License-Identifier: Apache-2.0
"""Just enough of an HTTP/2 client to say things that no library would."""
import ssl
import struct

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8


def frame(kind, flags, stream, payload=b''):
    return struct.pack('>I', len(payload))[1:] + struct.pack('>BBI', kind, flags, stream) + payload


def literal(name, value):
    """Without indexing and without Huffman coding."""
    def text(s):
        n = len(s)
        assert n < 16000
        if n < 127:
            return bytes([n]) + s
        n -= 127
        out = b'\x7f'
        while n >= 128:
            out += bytes([n % 128 + 128])
            n //= 128
        return out + bytes([n]) + s
    return b'\0' + text(name) + text(value)


def head(method='GET', path='/say', authority='web.test:8443', scheme='https', more=()):
    fields = [(':method', method), (':scheme', scheme), (':path', path)]
    if authority is not None:
        fields.append((':authority', authority))
    return b''.join(literal(k.encode(), v.encode()) for k, v in [*fields, *more] if v is not None)


class Client:
    def __init__(self, gw, name, port):
        ctx = ssl.create_default_context(cafile=gw.ca)
        ctx.set_alpn_protocols(['h2'])
        self.s = ctx.wrap_socket(gw.dial(name, port), server_hostname=name)
        assert self.s.selected_alpn_protocol() == 'h2'
        self.s.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.next = 1

    def request(self, body=None, raw=None, end=True, **fields):
        """end=False: a body is to come, by the caller."""
        stream, self.next = self.next, self.next + 2
        self.s.sendall(frame(HEADERS, 4 | (1 if body is None and end else 0), stream, raw if raw is not None else head(**fields)))
        if body is not None:
            self.s.sendall(frame(DATA, 1, stream, body))
        return stream

    def read_frame(self):
        def take(n):
            out = b''
            while len(out) < n:
                data = self.s.recv(n - len(out))
                if not data:
                    raise ConnectionResetError('the end')
                out += data
            return out
        h = take(9)
        n, (kind, flags, stream) = int.from_bytes(h[:3], 'big'), struct.unpack('>BBI', h[3:])
        return kind, flags, stream, take(n)

    def answer(self, stream):
        """(header block, body, error code of a reset or None)."""
        block, body = b'', b''
        while True:
            kind, flags, ident, payload = self.read_frame()
            if kind == GOAWAY and ident == 0 and int.from_bytes(payload[4:8], 'big') != 0:
                return None, body, ('goaway', int.from_bytes(payload[4:8], 'big'))
            if ident != stream:
                continue
            if kind == RST:
                return None, body, int.from_bytes(payload, 'big')
            if kind == HEADERS:
                block += payload
            elif kind == DATA:
                body += payload
            if kind in (HEADERS, DATA) and flags & 1:
                return block, body, None
