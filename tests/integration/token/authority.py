# SPDX-License-Identifier: Apache-2.0
"""A token endpoint as RFC 6749 has it for client credentials, over TLS, and what such a server may do wrong. Used in a process
of its own: authority.py IP PORT CERT KEY DIR. What it has to do is in DIR/mode, what it was asked in DIR/asked (JSON lines)."""
import base64
import http.server
import itertools
import json
import os
import socketserver
import ssl
import sys
import time
import urllib.parse

CLIENT, SECRET = 'client/1 ü', 'hush:hush&%7 secret'
COUNT = itertools.count(1)


def authenticated(headers, form):
    given = headers.get('Authorization', '')
    if given.startswith('Basic '):
        user, _, password = base64.b64decode(given[6:]).decode().partition(':')
        return (urllib.parse.unquote(user), urllib.parse.unquote(password)) == (CLIENT, SECRET)
    return (form.get('client_id'), form.get('client_secret')) == ([CLIENT], [SECRET])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def say(self, status, body, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in {'Content-Type': 'application/json', 'Cache-Control': 'no-store', **headers}.items():
            self.send_header(k.replace('_', '-'), v)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with open(os.path.join(self.server.dir, 'asked'), 'a') as f:
            f.write(json.dumps({'method': 'GET', 'path': self.path}) + '\n')
        self.say(200, {'access_token': 'never-by-get', 'token_type': 'Bearer'})

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers['Content-Length'])).decode())
        with open(os.path.join(self.server.dir, 'asked'), 'a') as f:
            f.write(json.dumps({'method': 'POST', 'path': self.path, 'form': form, 'headers': dict(self.headers)}) + '\n')
        with open(os.path.join(self.server.dir, 'mode')) as f:
            mode, _, argument = f.read().strip().partition(' ')
        if mode == 'hang':
            time.sleep(60)
        if mode == 'drip':
            self.wfile.write(b'HTTP/1.1 200 OK\r\n')
            while True:
                self.wfile.write(b'X-More: 1\r\n')
                self.wfile.flush()
                time.sleep(0.2)
        if mode == 'raw':
            self.say(200, argument.encode())
        elif mode == 'huge':
            self.say(200, b'{"access_token":"' + b'x' * 10_000_000 + b'"}')
        elif mode == 'headers':
            self.send_response(200)
            for i in range(4000):
                self.send_header(f'X-{i}', 'y' * 60)
            self.end_headers()
        elif mode == 'redirect':
            self.say(307, b'', Location=argument)
        elif mode == 'status':
            self.say(int(argument), {'error': 'server_error', 'error_description': SECRET})
        elif not authenticated(self.headers, form):
            self.say(401, {'error': 'invalid_client'}, WWW_Authenticate='Basic')
        elif form.get('grant_type') != ['client_credentials']:
            self.say(400, {'error': 'unsupported_grant_type'})
        else:
            self.say(200, {'access_token': f'tok-{os.getpid()}-{next(COUNT)}-abcdefgh', 'token_type': 'Bearer', 'expires_in': int(argument or 3600)})

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def main():
    ip, port, cert, key, where = sys.argv[1:6]
    server = Server((ip, int(port)), Handler)
    server.dir = where
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == '__main__':
    main()
