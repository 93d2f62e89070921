# SPDX-License-Identifier: Apache-2.0
"""Servers that no package has: 127.0.0.1:9000 tells what a request was (behind nginx); on the web address 7000
echoes, 7001 speaks first, 7002 takes everything in and tells how much it was, 7003 sends a MiB and resets, 7004
speaks WebSocket's handshake and echoes, 7005 answers 100 requests with odd responses (by path), 7006 is an HTTP
server that tells all of a request's bytes, 7007 the same under TLS."""
import base64
import hashlib
import http.server
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading

WEB = '93.184.216.34'


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def body(self):
        digest, n = hashlib.sha256(), 0
        if self.headers.get('Transfer-Encoding') == 'chunked':
            while True:
                size = int(self.rfile.readline(), 16)
                left = size
                while left:
                    data = self.rfile.read(min(left, 65536))
                    digest.update(data)
                    left -= len(data)
                n += size
                self.rfile.readline()
                if size == 0:
                    break
        else:
            left = int(self.headers.get('Content-Length', 0))
            while left:
                data = self.rfile.read(min(left, 65536))
                if not data:
                    break
                digest.update(data)
                n += len(data)
                left -= len(data)
        return n, digest.hexdigest()

    def handle_any(self):
        if self.headers.get('Expect') == '100-continue':
            if 'refuse' in self.path:
                self.send_response(413)
                self.send_header('Content-Length', '0')
                self.send_header('Connection', 'close')
                self.end_headers()
                self.close_connection = True
                return
        if 'mirror' in self.path:
            data = self.rfile.read(int(self.headers['Content-Length']))
            self.send_response(200)
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            for i in range(0, len(data), 1009):
                self.wfile.write(data[i:i + 1009])
            return
        n, digest = self.body()
        out = json.dumps({'method': self.command, 'path': self.path, 'headers': self.headers.items(), 'body': n,
                          'sha256': digest}).encode()
        if 'stream' in self.path:
            self.send_response(200)
            self.send_header('Content-Type', 'text/event-stream')
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for i in range(3):
                data = b'data: %d\n\n' % i
                self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
                self.wfile.flush()
                if i < 2:
                    self.server.step.acquire(timeout=20)
            self.wfile.write(b'0\r\n\r\n')
            return
        if 'step' in self.path:
            self.server.step.release()
        if 'secret' in self.path:
            out = json.dumps({'echo': self.headers.items(), 'path': self.path}).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(out)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(out)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = handle_any


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    step = threading.Semaphore(0)


class Raw(socketserver.BaseRequestHandler):
    def handle(self):
        getattr(self, f'port{self.server.server_address[1]}')(self.request)

    def port7000(self, s):
        while data := s.recv(65536):
            s.sendall(data)
        s.shutdown(socket.SHUT_WR)

    def port7001(self, s):
        s.sendall(b'SSH-2.0-test\r\n')
        self.port7000(s)

    def port7002(self, s):
        n = 0
        while data := s.recv(1 << 20):
            n += len(data)
        s.sendall(b'%d' % n)

    def port7003(self, s):
        s.recv(1)
        s.sendall(b'x' * (1 << 20))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        s.close()

    def port7004(self, s):
        head = b''
        while b'\r\n\r\n' not in head:
            head += s.recv(4096)
        key = next(l.split(b': ')[1] for l in head.split(b'\r\n') if l.lower().startswith(b'sec-websocket-key'))
        accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
        s.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: '
                  + accept + b'\r\n\r\nhello')
        self.port7000(s)

    ODD = {
        b'/both': b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc',
        b'/two': b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd',
        b'/early': b'HTTP/1.1 413 Too much\r\nContent-Length: 6\r\nConnection: close\r\n\r\nenough',
        b'/close': b'HTTP/1.1 200 OK\r\n\r\nuntil the end',
        b'/short': b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nshort',
        b'/nothing': b'',
        b'/huge': b'HTTP/1.1 200 OK\r\nX: ' + b'a' * 100000 + b'\r\n\r\n',
        b'/interim': b'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok',
        b'/flood': b'HTTP/1.1 102 Processing\r\n\r\n' * 100 + b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok',
        b'/surplus': b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil',
        b'/switch': b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n',
        b'/altsvc': b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nok',
    }

    def port7005(self, s):
        head = b''
        while b'\r\n\r\n' not in head:
            data = s.recv(4096)
            if not data:
                return
            head += data
        s.sendall(self.ODD[head.split(b' ')[1]])

    def port7006(self, s):
        s.settimeout(0.5)
        seen = b''
        try:
            while data := s.recv(65536):
                seen += data
                if b'\r\n\r\n' in seen and b'content-length' not in seen.lower() and b'chunked' not in seen.lower():
                    break
        except TimeoutError:
            pass
        s.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n' % len(seen) + seen)

    def port7007(self, s):
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(sys.argv[2], sys.argv[1])
        try:
            with ctx.wrap_socket(s, server_side=True) as t:
                self.port7006(t)
        except (ssl.SSLError, OSError):
            pass


class RawServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256


for port in range(7000, 7008):
    threading.Thread(target=RawServer((WEB, port), Raw).serve_forever, daemon=True).start()
Server(('127.0.0.1', 9000), App).serve_forever()
