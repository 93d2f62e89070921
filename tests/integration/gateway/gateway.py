# SPDX-License-Identifier: Apache-2.0
"""Plays cspace-rootd and cspaced towards one gateway."""
import array
import base64
import fcntl
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time

import lab as lab_module

sys.path.insert(0, os.path.join(lab_module.TOP, 'tests', 'integration', 'rootd'))
import wire  # noqa: E402

ID = 'abcdefghijklmnopqrstuvwxyz'
SEED = base64.b64encode(bytes(range(32))).decode()
UID = 61801
BUILD = os.environ.get('CSPACE_BUILD', os.path.join(lab_module.TOP, 'build'))
BINARY = os.path.join(BUILD, 'src/gateway/cspace-gateway')
CA_PEM = os.path.join(BUILD, 'tests/integration/gateway/capem')


class ConfigError(Exception):
    pass


class Gateway:
    def __init__(self, lab, trust=None, files=16384, resolver='127.0.0.1:5353'):
        self.lab, self.records, self.names, self.resolver = lab, [], None, resolver
        self.dropped, self.files = 0, files
        self.keep_records = True
        self.changed = threading.Condition()
        self.ctl_path = lab.path(f'ctl-{time.monotonic_ns()}.sock')
        self.proc = self.start(trust or lab.path('ca.crt'))
        self.connect()

    # ---- as cspace-rootd

    def sockets(self):
        ctl = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.path.exists(self.ctl_path):
            os.unlink(self.ctl_path)
        ctl.bind(self.ctl_path)
        ctl.listen(4)
        with self.lab.inside('sandbox'):
            udp, dns, tcp = (socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_DGRAM, *[socket.SOCK_STREAM] * 2))
        for s, port in ((udp, 'dns_udp'), (dns, 'dns_tcp'), (tcp, 'tcp')):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((lab_module.SANDBOX_IP, lab_module.PORTS[port]))
        dns.listen(16)
        tcp.listen(511)
        return ctl, udp, dns, tcp

    def start(self, trust):
        socks = self.sockets()
        numbers = [s.fileno() for s in socks]

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

        def prepare():
            lab_module.set_ns(self.lab.fds['world'])
            high = [fcntl.fcntl(n, fcntl.F_DUPFD, 20) for n in numbers]
            for i, n in enumerate(high):
                os.dup2(n, 3 + i)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(self.files, hard), min(self.files, hard)))
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)

        self.log = self.lab.path('gateway.log')
        with open(self.log, 'ab') as log:
            p = subprocess.Popen([BINARY, '--id', ID, '--trust', trust, '--resolver', self.resolver], preexec_fn=prepare,
                                 pass_fds=(3, 4, 5, 6), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env={})
        for s in socks:
            s.close()
        return p

    def restart(self):
        """As cspace-rootd would after the gateway has ended."""
        self.proc.wait(10)
        self.proc = self.start(self.lab.path('ca.crt'))
        self.connect()

    # ---- as cspaced

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(self.ctl_path)
        self.replies, self.seq = {}, 0
        threading.Thread(target=self.listen, args=(self.sock,), daemon=True).start()

    def listen(self, sock):
        while True:
            try:
                packet, ancillary, _, _ = sock.recvmsg(256 * 1024, socket.CMSG_LEN(64))
            except OSError:
                packet = b''
            if not packet:
                with self.changed:
                    self.changed.notify_all()
                return
            fds = array.array('i')
            for _, _, data in ancillary:
                fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
            kind, flags, seq = struct.unpack_from('<HHI', packet)
            body, name = packet[8:], wire.NAMES[kind]
            with self.changed:
                if flags:
                    self.replies[seq] = (flags, name, body)
                elif name == 'GW_AUDIT':
                    m = wire.decode(name, body)
                    self.dropped += m['dropped']
                    if self.keep_records:
                        self.records += [json.loads(line) for line in m['lines'].splitlines()]
                elif name == 'GW_NAMES':
                    with os.fdopen(fds[0]) as f:
                        f.seek(0)
                        self.names = json.load(f)
                self.changed.notify_all()
            if not flags:
                try:
                    sock.send(struct.pack('<HHI', kind, wire.REPLY, seq))
                except OSError: # closed by the test
                    return

    def call(self, name, fds=(), timeout=20, **fields):
        self.seq += 1
        seq = self.seq
        anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        self.sock.sendmsg([struct.pack('<HHI', wire.TYPES[name], 0, seq) + wire.encode(name, **fields)], anc)
        with self.changed:
            if not self.changed.wait_for(lambda: seq in self.replies, timeout):
                raise TimeoutError(name)
            flags, _, body = self.replies.pop(seq)
        if flags & wire.ERROR:
            e = wire.decode('ERROR', body)
            raise ConfigError(e['message'])
        return body

    def configure(self, rules=None, generation=1, **more):
        config = {'ca_seed': SEED, **more}
        if rules is not None:
            config['policy'] = {'version': 1, 'rules': rules}
        fd = os.memfd_create('config')
        try:
            os.write(fd, json.dumps(config).encode())
            answer = wire.decode('GW_CONFIGURED', self.call('GW_CONFIG', [fd], generation=generation))
        finally:
            os.close(fd)
        self.ca = self.lab.path('sandbox-ca.crt')
        with open(self.ca, 'w', encoding='ascii') as f:
            subprocess.run([CA_PEM, config['ca_seed']], stdout=f, check=True)
        return answer

    def query(self):
        return wire.decode('GW_STATE', self.call('GW_QUERY'))

    def forget(self):
        with self.changed:
            self.records.clear()

    def record(self, timeout=10, **wanted):
        """The first record that has all these members."""
        def find():
            return next((r for r in self.records if all(r.get(k) == v for k, v in wanted.items())), None)
        with self.changed:
            if not self.changed.wait_for(find, timeout):
                raise AssertionError(f'no record with {wanted} in\n' + '\n'.join(map(str, self.records)))
            return find()

    # ---- the guest

    def curl(self, *argv, timeout=60):
        """(exit status, body, stderr)"""
        r = self.lab.guest('curl', '-sS', '--cacert', self.ca, '-m', '30', *argv, timeout=timeout)
        return r.returncode, r.stdout, r.stderr.decode()

    def address_of(self, name):
        """The synthetic address, as a guest learns it."""
        r = self.lab.guest('getent', 'ahostsv4', name)
        assert r.returncode == 0, f'{name}: {r.stderr}'
        return r.stdout.split()[0].decode()

    def dial(self, name, port, timeout=30):
        return self.lab.guest_connect((self.address_of(name), port), timeout)

    # ---- end

    def private_kib(self):
        with open(f'/proc/{self.proc.pid}/smaps_rollup', encoding='ascii') as f:
            return sum(int(line.split()[1]) for line in f if line.startswith(('Private_Dirty', 'Private_Clean')))

    def close(self):
        self.sock.close()
        self.proc.terminate()
        try:
            status = self.proc.wait(10)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise
        if os.path.exists(self.ctl_path):
            os.unlink(self.ctl_path)
        assert status == 0, f'the gateway ended with {status}: ' + open(self.log, encoding='utf-8').read()[-3000:]
