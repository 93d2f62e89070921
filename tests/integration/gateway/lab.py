# SPDX-License-Identifier: Apache-2.0
"""Three network namespaces: a guest, its sandbox (what cspace-rootd makes around a tap, here around a veth), and
a world that stands for the host's network, with real servers. The gateway runs in the world and listens in
the sandbox."""
import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
CLONE_NEWNET = 0x40000000

GUEST_IP, SANDBOX_IP = '10.200.0.2', '10.200.0.1'
WEB, CDN, BAD = '93.184.216.34', '93.184.216.35', '93.184.216.36'
PORTS = {'dns_udp': 1053, 'dns_tcp': 1054, 'tcp': 1080}

# As cspace-rootd does it: nothing is forwarded, what is not the guest's is dropped, all TCP and DNS goes to
# the gateway's sockets and nothing else comes in.
RULES = '''
table inet cspace {
  chain spoof { type filter hook prerouting priority raw; policy accept;
    iifname "tap0" ip saddr != %(guest)s drop
    iifname "tap0" meta nfproto ipv6 drop;
  }
  chain nat { type nat hook prerouting priority dstnat; policy accept;
    iifname "tap0" udp dport 53 redirect to :%(dns_udp)d
    iifname "tap0" tcp dport 53 redirect to :%(dns_tcp)d
    iifname "tap0" meta l4proto tcp redirect to :%(tcp)d;
  }
  chain input { type filter hook input priority filter; policy drop; iifname "tap0" ct status dnat accept;
    iifname "tap0" tcp dport %(tcp)d accept; }
  chain forward { type filter hook forward priority filter; policy drop; }
  chain output { type filter hook output priority filter; policy drop; ct state established accept; }
}
''' % {**PORTS, 'guest': GUEST_IP}

HOSTS = {
    'web.test': WEB, 'www.web.test': WEB, 'other.test': WEB, 'denied.test': WEB, 'api.test': WEB,
    'cdn-a.test': CDN, 'cdn-b.test': CDN,
    'selfsigned.test': BAD, 'expired.test': BAD, 'wrongname.test': BAD,
    'loop.test': '127.0.0.1', 'meta.test': '169.254.169.254', 'private.test': '10.1.2.3',
}

NGINX = '''
worker_processes 1; daemon off; pid %(dir)s/nginx.pid; error_log %(dir)s/error.log; user root;
events { worker_connections 4096; }
http {
  log_format all '$host "$request" auth="$http_authorization" key="$http_x_api_key" enc="$http_accept_encoding"';
  access_log %(dir)s/access.log all; client_body_temp_path %(dir)s/body; proxy_temp_path %(dir)s/proxy;
  fastcgi_temp_path %(dir)s/f; uwsgi_temp_path %(dir)s/u; scgi_temp_path %(dir)s/s;
  client_max_body_size 0; keepalive_requests 1000000; default_type text/plain;
  server {
    listen %(web)s:80; listen %(web)s:443 ssl; listen %(cdn)s:443 ssl; server_name _;
    ssl_certificate %(dir)s/good.crt; ssl_certificate_key %(dir)s/key.pem;
    root %(dir)s/www;
    location = / { return 200 "host=$host uri=$request_uri proto=$server_protocol scheme=$scheme\\n"; }
    location /say { return 200 "method=$request_method uri=$request_uri host=$http_host sni=$ssl_server_name\\n"; }
    location /redirect { return 302 https://denied.test/; }
    location /app { proxy_http_version 1.1; proxy_request_buffering off; proxy_buffering off;
                    proxy_set_header Connection ""; proxy_pass http://127.0.0.1:9000; }
    location / { }
  }
  server { listen %(web)s:8443 ssl http2; server_name _; ssl_certificate %(dir)s/good.crt; ssl_certificate_key %(dir)s/key.pem;
           root %(dir)s/www; location /say { return 200 "method=$request_method uri=$request_uri host=$http_host proto=$server_protocol\n"; } }
  server { listen %(bad)s:443 ssl http2 default_server; server_name selfsigned.test; ssl_certificate %(dir)s/self.crt;
           ssl_certificate_key %(dir)s/key.pem; return 200 "bad\\n"; }
  server { listen %(bad)s:443 ssl; server_name expired.test; ssl_certificate %(dir)s/expired.crt;
           ssl_certificate_key %(dir)s/key.pem; return 200 "bad\\n"; }
  server { listen %(bad)s:443 ssl; server_name wrongname.test; ssl_certificate %(dir)s/good.crt;
           ssl_certificate_key %(dir)s/key.pem; return 200 "bad\\n"; }
}
'''

libc = ctypes.CDLL(None, use_errno=True)


def set_ns(fd):
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), 'setns')


def run(*argv, **kwargs):
    return subprocess.run(argv, check=True, capture_output=True, text=True, **kwargs).stdout


def wait_for(condition, what, timeout=20):
    end = time.monotonic() + timeout
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.01)


class Lab:
    def __init__(self, directory):
        self.dir = str(directory)
        tag = f'gwt{os.getpid()}'
        self.names = {k: f'{tag}-{k}' for k in ('guest', 'sandbox', 'world')}
        self.fds, self.procs = {}, []
        self.own = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        try:
            self.make_namespaces()
            self.make_certificates()
            self.start_servers()
        except BaseException:
            self.close()
            raise

    # ---- namespaces

    def ip(self, ns, *argv):
        run('ip', '-n', self.names[ns], *argv)

    def make_namespaces(self):
        for name in self.names.values():
            run('ip', 'netns', 'add', name)
        for k, name in self.names.items():
            self.fds[k] = os.open(f'/run/netns/{name}', os.O_RDONLY)
            self.ip(k, 'link', 'set', 'lo', 'up')
        run('ip', 'link', 'add', 'eth0', 'netns', self.names['guest'], 'type', 'veth', 'peer', 'name', 'tap0', 'netns',
            self.names['sandbox'])
        self.ip('guest', 'addr', 'add', f'{GUEST_IP}/30', 'dev', 'eth0')
        self.ip('guest', 'link', 'set', 'eth0', 'up')
        self.ip('guest', 'route', 'add', 'default', 'via', SANDBOX_IP)
        self.ip('sandbox', 'addr', 'add', f'{SANDBOX_IP}/30', 'dev', 'tap0')
        self.ip('sandbox', 'link', 'set', 'tap0', 'up')
        subprocess.run(['ip', 'netns', 'exec', self.names['sandbox'], 'nft', '-f', '-'], input=RULES, text=True, check=True)
        for address in (WEB, CDN, BAD):
            self.ip('world', 'addr', 'add', f'{address}/32', 'dev', 'lo')
        self.resolv = os.path.join(self.dir, 'resolv.conf')
        with open(self.resolv, 'w', encoding='ascii') as f:
            f.write(f'nameserver {SANDBOX_IP}\noptions timeout:2 attempts:1\n')

    @contextlib.contextmanager
    def inside(self, ns):
        """This thread is in the namespace; a socket made there stays there."""
        set_ns(self.fds[ns])
        try:
            yield
        finally:
            set_ns(self.own)

    # ---- certificates

    def path(self, name):
        return os.path.join(self.dir, name)

    def make_certificates(self):
        p = self.path
        run('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout',
            p('ca.key'), '-out', p('ca.crt'), '-days', '30', '-subj', '/CN=world CA')
        run('openssl', 'ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out', p('key.pem'))
        run('openssl', 'req', '-new', '-key', p('key.pem'), '-out', p('csr.pem'), '-subj', '/CN=server')
        names = [h for h in HOSTS if h not in ('selfsigned.test', 'expired.test', 'wrongname.test')]
        with open(p('ext'), 'w', encoding='ascii') as f:
            f.write('subjectAltName=' + ','.join(f'DNS:{n}' for n in names) + f',IP:{WEB}\n')
        with open(p('ext2'), 'w', encoding='ascii') as f:
            f.write('subjectAltName=DNS:expired.test\n')
        sign = ('openssl', 'x509', '-req', '-in', p('csr.pem'), '-CA', p('ca.crt'), '-CAkey', p('ca.key'), '-CAcreateserial')
        run(*sign, '-days', '30', '-extfile', p('ext'), '-out', p('good.crt'))
        run(*sign, '-days', '-1', '-extfile', p('ext2'), '-out', p('expired.crt'))
        run('openssl', 'req', '-x509', '-key', p('key.pem'), '-out', p('self.crt'), '-days', '30', '-subj',
            '/CN=selfsigned.test', '-addext', 'subjectAltName=DNS:selfsigned.test')

    # ---- servers

    def world(self, *argv, **kwargs):
        p = subprocess.Popen(argv, preexec_fn=lambda: set_ns(self.fds['world']), **kwargs)
        self.procs.append(p)
        return p

    def start_servers(self):
        for d in ('www', 'body'):
            os.mkdir(self.path(d))
        with open(self.path('www/big'), 'wb') as f:
            f.truncate(256 << 20)
        with open(self.path('www/file'), 'wb') as f:
            f.write(bytes(range(256)) * 4096)
        self.file_sha = hashlib.sha256(bytes(range(256)) * 4096).hexdigest()
        with open(self.path('nginx.conf'), 'w', encoding='ascii') as f:
            f.write(NGINX % {'dir': self.dir, 'web': WEB, 'cdn': CDN, 'bad': BAD})
        os.chmod(self.dir, 0o755)
        self.world('nginx', '-c', self.path('nginx.conf'), '-p', self.dir, stderr=subprocess.DEVNULL)
        with open(self.path('hosts'), 'w', encoding='ascii') as f:
            f.writelines(f'{ip} {name}\n' for name, ip in HOSTS.items())
        self.dns_log = self.path('dns.log')
        self.world('dnsmasq', '-k', '-p', '5353', '--listen-address=127.0.0.1', '--bind-interfaces', '--no-resolv', '--no-hosts',
                   '--local=/nosuch.web.test/', '-H', self.path('hosts'), '--log-queries', f'--log-facility={self.dns_log}', '-u', 'root', '-C', '/dev/null',
                   f'--pid-file={self.path("dns.pid")}')
        self.world('nghttpd', '-a', WEB, '--echo-upload', '--trailer', 'x-end: yes', '-d', self.path('www'), '8444', self.path('key.pem'),
                   self.path('good.crt'), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.world(sys.executable, os.path.join(HERE, 'world.py'), self.path('key.pem'), self.path('good.crt'))
        for ip, port in ((WEB, 80), (WEB, 443), ('127.0.0.1', 9000), ('127.0.0.1', 5353), (WEB, 7000), (WEB, 7007), (WEB, 8443), (WEB, 8444)):
            wait_for(lambda a=(ip, port): self.world_answers(*a), f'server {ip}:{port}')

    def world_answers(self, ip, port):
        with self.inside('world'), socket.socket() as s:
            return s.connect_ex((ip, port)) == 0

    def requests(self, marker, timeout=10):
        """What the server's log says of the requests that have the marker in it."""
        def find():
            with open(self.path('access.log'), encoding='utf-8') as f:
                return [line for line in f if marker in line]
        return wait_for(find, f'{marker} in the access log', timeout)

    def dns_queries(self):
        with open(self.dns_log, encoding='utf-8') as f:
            return f.read()

    # ---- the guest

    def guest_argv(self, *argv):
        return ['unshare', '-m', 'sh', '-c', 'mount --bind "$0" /etc/resolv.conf && ns=$1 && shift && exec nsenter --net=$ns "$@"',
                self.resolv, f'/run/netns/{self.names["guest"]}', *argv]

    def guest(self, *argv, timeout=60, **kwargs):
        return subprocess.run(self.guest_argv(*argv), capture_output=True, timeout=timeout, **kwargs)

    def guest_socket(self, kind=socket.SOCK_STREAM):
        with self.inside('guest'):
            s = socket.socket(socket.AF_INET, kind)
        s.settimeout(30)
        return s

    def guest_connect(self, address, timeout=30):
        s = self.guest_socket()
        s.settimeout(timeout)
        s.connect(address)
        return s

    # ---- end

    def close(self):
        for p in reversed(self.procs):
            p.send_signal(signal.SIGTERM)
        for p in self.procs:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        for fd in self.fds.values():
            os.close(fd)
        os.close(self.own)
        for name in self.names.values():
            subprocess.run(['ip', 'netns', 'del', name], check=False, capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)
