# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces: one in which a host (cspace-rootd, cspaced, gateways) lives, and one that is its internet, with a
resolver, an HTTPS server and a token endpoint. As a program: internet.py IP CERT KEY LOG, the server."""
import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
AUTHORITY = os.path.join(HERE, '..', 'token', 'authority.py')
WEB, AUTH, ROUTER, HOST = '93.184.216.34', '93.184.216.40', '192.0.2.1', '192.0.2.2'
MUTE_PORT = 9443  # of AUTH: connections are taken and never answered
NAMES = {'api.test': WEB, 'other.test': WEB, 'denied.test': WEB, 'auth.test': AUTH, 'meta.test': '169.254.169.254', 'inward.test': HOST}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        if self.path.startswith('/repo.git/'):
            self.say_file()
            return
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        seen = {'method': self.command, 'host': self.headers['Host'], 'path': self.path, 'headers': {k.lower(): v for k, v in self.headers.items()}, 'body': body.decode()}
        with self.server.lock, open(self.server.log, 'a') as f:
            f.write(json.dumps(seen) + '\n')
        url = urllib.parse.urlsplit(self.path)
        self.send_response(302 if url.path == '/redirect' else 200)
        if url.path == '/redirect':
            self.send_header('Location', urllib.parse.parse_qs(url.query)['to'][0])
        answer = json.dumps(seen).encode()
        self.send_header('X-Echo', self.headers.get('Authorization', '-'))
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def say_file(self):
        path = os.path.join(os.path.dirname(self.server.log), self.path.split('?')[0].lstrip('/'))
        found = '..' not in path and os.path.isfile(path)
        body = b''
        if found:
            with open(path, 'rb') as f:
                body = f.read()
        self.send_response(200 if found else 404)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def serve(ip, cert, key, log):
    server = Server((ip, 443), Handler)
    server.log, server.lock = log, threading.Lock()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


def run(*argv, **kw):
    return subprocess.run(argv, check=True, capture_output=True, **kw).stdout


class Internet:
    def __init__(self, directory):
        self.dir = str(directory)
        os.chmod(self.dir, 0o755)
        tag = f'net{os.getpid()}'
        self.host_ns, self.net_ns = tag + '-host', tag + '-net'
        self.procs = []
        try:
            for ns in (self.host_ns, self.net_ns):
                run('ip', 'netns', 'add', ns)
                run('ip', '-n', ns, 'link', 'set', 'lo', 'up')
            run('ip', 'link', 'add', 'eth0', 'netns', self.host_ns, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', self.net_ns)
            for ns, address in ((self.host_ns, HOST), (self.net_ns, ROUTER)):
                run('ip', '-n', ns, 'addr', 'add', address + '/24', 'dev', 'eth0')
                run('ip', '-n', ns, 'link', 'set', 'eth0', 'up')
            run('ip', '-n', self.host_ns, 'route', 'add', 'default', 'via', ROUTER)
            for a in (WEB, AUTH, '169.254.169.254'):
                run('ip', '-n', self.net_ns, 'addr', 'add', a + '/32', 'dev', 'lo')
            self.certificates()
            self.start()
        except BaseException:
            self.close()
            raise

    def path(self, name):
        return os.path.join(self.dir, name)

    @property
    def prefix(self):
        return ['nsenter', f'--net=/run/netns/{self.host_ns}']

    @property
    def conf(self):
        return f'[egress]\ntrust_store = {self.path("ca.crt")}\nresolv_conf = {self.path("resolv.conf")}\n'

    def certificates(self):
        p = self.path
        run('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', p('ca.key'), '-out',
            p('ca.crt'), '-days', '30', '-subj', '/CN=internet CA')
        run('openssl', 'ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out', p('key.pem'))
        run('openssl', 'req', '-new', '-key', p('key.pem'), '-out', p('csr.pem'), '-subj', '/CN=server')
        with open(p('ext'), 'w') as f:
            f.write('subjectAltName=' + ','.join(f'DNS:{n}' for n in NAMES) + '\n')
        run('openssl', 'x509', '-req', '-in', p('csr.pem'), '-CA', p('ca.crt'), '-CAkey', p('ca.key'), '-CAcreateserial', '-extfile', p('ext'),
            '-days', '30', '-out', p('good.crt'))
        os.chmod(p('ca.crt'), 0o644)

    def spawn(self, *argv):
        p = subprocess.Popen(['nsenter', f'--net=/run/netns/{self.net_ns}', *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.procs.append(p)

    def start(self):
        with open(self.path('hosts'), 'w') as f:
            f.writelines(f'{a} {n}\n' for n, a in NAMES.items())
        with open(self.path('resolv.conf'), 'w') as f:
            f.write(f'nameserver {ROUTER}\n')
        self.mode('ok')
        self.forget()
        self.spawn('dnsmasq', '-k', '-p', '53', f'--listen-address={ROUTER}', '--bind-interfaces', '--no-resolv', '--no-hosts', '-H', self.path('hosts'),
                   '--log-queries', f'--log-facility={self.path("dns.log")}', '-u', 'root', '-C', '/dev/null', f'--pid-file={self.path("dns.pid")}')
        self.spawn(sys.executable, os.path.join(HERE, 'internet.py'), WEB, self.path('good.crt'), self.path('key.pem'), self.path('web.log'))
        self.spawn(sys.executable, AUTHORITY, AUTH, '443', self.path('good.crt'), self.path('key.pem'), self.dir)
        self.spawn(sys.executable, '-c', f'import socket, time; s = socket.create_server(("{AUTH}", {MUTE_PORT}), backlog=64); time.sleep(1e6)')
        for ip, port in ((WEB, 443), (AUTH, 443), (AUTH, MUTE_PORT), (ROUTER, 53)):
            end = time.monotonic() + 20
            while subprocess.run(self.prefix + [sys.executable, '-c', f'import socket; socket.create_connection(("{ip}", {port}), 2)'],
                                 stderr=subprocess.DEVNULL).returncode:
                assert time.monotonic() < end, f'{ip}:{port} does not answer'

    def mode(self, text):
        """What the token endpoint does, see authority.py."""
        with open(self.path('mode'), 'w') as f:
            f.write(text)

    def forget(self):
        with open(self.path('web.log'), 'w'):
            pass

    def requests(self):
        with open(self.path('web.log')) as f:
            return [json.loads(line) for line in f]

    def queries(self):
        with open(self.path('dns.log')) as f:
            return f.read()

    def close(self):
        for p in self.procs:
            p.send_signal(signal.SIGKILL)
            p.wait()
        for ns in (self.host_ns, self.net_ns):
            subprocess.run(['ip', 'netns', 'del', ns], check=False, capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)


if __name__ == '__main__':
    serve(*sys.argv[1:5])
