# SPDX-License-Identifier: Apache-2.0
"""Servers that are up to something: strange.py KEY CERT CA. On 127.0.0.1:5360 a resolver, over UDP and TCP; on the web address
port 7100 HTTPS whose bodies grow (gzip of a gigabyte of zeros) and that can be told when to go on (/half sends half an answer, /late nothing
at all before a /go), port 7101 HTTPS that wants a client's certificate, port 7102 HTTP/2 of which every answer is such a half one, port 7103 HTTP/2 that tells how many
header blocks a request had, port 7104 HTTP/2 that reads nothing."""
import gzip
import http.server
import io
import os
import socket
import socketserver
import ssl
import struct
import sys
import threading

WEB = '93.184.216.34'
KEY, CERT, CA = sys.argv[1:4]


# ---- DNS

def name_of(query):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode('ascii', 'replace'))
        at += 1 + query[at]
    return '.'.join(labels).lower(), query[12:at + 5]


def wire_name(name):
    return b''.join(bytes([len(p)]) + p.encode() for p in name.split('.')) + b'\0'


def a(owner, address, ttl=60):
    return owner + struct.pack('>HHIH', 1, 1, ttl, 4) + socket.inet_aton(address)


def cname(owner, target, ttl=60):
    rdata = wire_name(target)
    return owner + struct.pack('>HHIH', 5, 1, ttl, len(rdata)) + rdata


HERE = b'\xc0\x0c'  # the name of the question


def records(name):
    first = name.split('.')[0]
    private = wire_name('private.inside')
    return {
        'alias': [cname(HERE, 'private.inside'), a(private, '10.1.2.3')],
        'chain': [cname(HERE, 'one.strange.test'), cname(wire_name('one.strange.test'), 'private.inside'), a(private, '169.254.169.254')],
        'many': [a(HERE, WEB)] + [a(HERE, f'10.{i >> 8 & 255}.{i & 255}.1') for i in range(4000)],
        'most': [a(HERE, WEB) for _ in range(4000)],
        'mixed': [a(HERE, WEB), a(HERE, '127.0.0.1')],
        'zero': [a(HERE, WEB, 0)],
        'forever': [a(HERE, WEB, 0x7fffffff)],
        'negative': [a(HERE, WEB, 0xffffffff)],
        'circle': [cname(HERE, 'circle.strange.test')],
        'loop': [b'\xc0\x1e' + a(b'', WEB)] * 3,   # compression pointers that lead to themselves
        'short': [HERE + struct.pack('>HHIH', 1, 1, 60, 400) + b'\1\2'],
        'empty': [],
        'good': [a(HERE, WEB)],
        'web': [a(HERE, WEB)], 'api': [a(HERE, WEB)], 'other': [a(HERE, WEB)],
    }.get(first)


def answer(query, tcp):
    name, question = name_of(query)
    found = records(name)
    ident = query[:2]
    if found is None:
        return ident + struct.pack('>HHHHH', 0x8183, 1, 0, 0, 0) + question
    body = b''.join(found)
    if not tcp and len(body) > 1000:
        return ident + struct.pack('>HHHHH', 0x8380, 1, 0, 0, 0) + question  # truncated: ask by TCP
    body = body[:60000]
    return ident + struct.pack('>HHHHH', 0x8180, 1, min(len(found), 65535), 0, 0) + question + body


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        data, s = self.request
        s.sendto(answer(data, False), self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        while head := self.rfile.read(2):
            out = answer(self.rfile.read(struct.unpack('>H', head)[0]), True)
            self.wfile.write(struct.pack('>H', len(out)) + out)


# ---- HTTPS

def bomb():
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode='wb', compresslevel=9) as z:
        zeros = bytes(1 << 20)
        for _ in range(1024):
            z.write(zeros)
    return out.getvalue()


BOMB = bomb()


GO = threading.Event()


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        """Tells how much came, in how many chunks."""
        n = chunks = 0
        while size := int(self.rfile.readline(), 16):
            n, chunks = n + len(self.rfile.read(size)), chunks + 1
            self.rfile.readline()
        self.rfile.readline()
        self.say(b'%d in %d' % (n, chunks))

    def say(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == '/go':
            GO.set()
        if self.path == '/late':
            GO.wait()
        if self.path == '/half':
            self.send_response(200)
            self.send_header('Content-Length', '9')
            self.end_headers()
            self.wfile.write(b'half')
            GO.wait()
            self.wfile.write(b' more')
            return
        body = BOMB if self.path == '/bomb' else b'hello'
        self.send_response(200)
        if self.path == '/bomb':
            self.send_header('Content-Encoding', 'gzip')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = allow_reuse_address = True

    def handle_error(self, request, client_address):
        pass


def web(port, client):
    server = Server((WEB, port), Web)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERT, KEY)
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CA)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # so that it is in the handshake
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


def http2(s, port):
    """To one client: an answer begins when its request has ended."""
    def take(n):
        out = b''
        while len(out) < n:
            data = s.recv(n - len(out))
            if not data:
                raise ConnectionResetError
            out += data
        return out

    def frame(kind, flags, stream, payload=b''):
        return struct.pack('>I', len(payload))[1:] + struct.pack('>BBI', kind, flags, stream) + payload
    take(24)
    s.sendall(frame(4, 0, 0))
    heads = {}
    while port != 7104:
        h = take(9)
        payload, (kind, flags, stream) = take(int.from_bytes(h[:3], 'big')), struct.unpack('>BBI', h[3:])
        if kind in (4, 6) and not flags & 1:
            s.sendall(frame(kind, 1, 0, payload if kind == 6 else b''))
        heads[stream] = heads.get(stream, 0) + (kind == 1)
        if port == 7103 and kind in (0, 1) and flags & 1:
            s.sendall(frame(1, 4, stream, b'\x88') + frame(0, 1, stream, b'%d' % heads[stream]))  # :status 200
        elif kind in (0, 1) and flags & 1:
            s.sendall(frame(1, 4, stream, b'\x88') + frame(0, 0, stream, b'half'))
            GO.wait()
            s.sendall(frame(0, 1, stream, b' more'))
    threading.Event().wait()


class Http2(socketserver.BaseRequestHandler):
    def handle(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERT, KEY)
        context.set_alpn_protocols(['h2'])
        try:
            with context.wrap_socket(self.request, server_side=True) as s:
                http2(s, self.server.server_address[1])
        except OSError:
            pass


class ThreadingTCP(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


for make in (lambda: socketserver.UDPServer(('127.0.0.1', 5360), Udp).serve_forever(),
             lambda: ThreadingTCP(('127.0.0.1', 5360), Tcp).serve_forever(),
             *[lambda p=p: ThreadingTCP((WEB, p), Http2).serve_forever() for p in (7102, 7103, 7104)],
             lambda: web(7100, False)):
    threading.Thread(target=make, daemon=True).start()
web(7101, True)
