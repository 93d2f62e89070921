# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the cspace-gateway of one sandbox: takes configurations, sends what a test says."""
import array
import json
import os
import queue
import socket
import struct
import threading

import wire

CA = '-----BEGIN CERTIFICATE-----\nc3RhbmQtaW4=\n-----END CERTIFICATE-----\n'


class Gateway:
    def __init__(self, path, fault):
        self.path, self.fault = path, fault
        self.configs = []   # all that was accepted, newest last
        self.secrets = []   # GW_SECRET, newest last
        self.refused = 0
        self.peers = []     # newest configured last
        self.lock = threading.Lock()
        self.answers = {}
        self.seq = 0
        if os.path.exists(path):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        with self.lock:
            self.peers.append(s)
        while True:
            try:
                data, anc, _, _ = s.recvmsg(wire.PACKET_MAX, 4096)
            except OSError:
                break
            if not data:
                break
            fds = []
            for level, kind, cdata in anc:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    a = array.array('i')
                    a.frombytes(cdata[:len(cdata) - len(cdata) % a.itemsize])
                    fds += a.tolist()
            t, flags, seq = struct.unpack_from('<HHI', data)
            if flags & wire.REPLY:
                error = wire.decode('ERROR', data[8:]) if flags & wire.ERROR else None
                self.answers.pop(seq).put(error)
            else:
                threading.Thread(target=self.request, args=(s, wire.NAMES[t], seq, data[8:], fds), daemon=True).start()
        with self.lock:
            if s in self.peers:
                self.peers.remove(s)
        s.close()

    def send(self, s, name, flags, seq, body, fds=()):
        anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        try:
            s.sendmsg([struct.pack('<HHI', wire.TYPES[name], flags, seq) + body], anc)
        except OSError:
            pass

    def request(self, s, name, seq, body, fds):
        try:
            e = self.fault(name)
        except TimeoutError:
            return
        if e:
            self.refused += 1
            self.send(s, name, wire.REPLY | wire.ERROR, seq, wire.encode('ERROR', code=e[0], message=e[1]))
        elif name == 'GW_CONFIG':
            m = wire.decode(name, body)
            with os.fdopen(fds[0], 'rb') as f:
                f.seek(0)
                config = json.loads(f.read())
            with self.lock:
                self.configs.append(config)
                self.peers.remove(s)
                self.peers.append(s)
            self.generation = m['generation']
            rules = len(config.get('policy', {}).get('rules', []))
            self.send(s, name, wire.REPLY, seq, wire.encode('GW_CONFIGURED', ca_pem=CA, rules=rules))
        elif name == 'GW_SECRET':
            m = wire.decode(name, body)
            secret = m['secret'] if isinstance(m['secret'], str) else m['secret'].decode()
            with self.lock:
                self.secrets.append([m['credential'], secret, m['expires_ms']])
            self.send(s, name, wire.REPLY, seq, b'')
        elif name == 'GW_QUERY':
            self.send(s, name, wire.REPLY, seq,
                      wire.encode('GW_STATE', configured=1, generation=self.generation, connections=2, requests=3, bytes_out=4,
                                  bytes_in=5, names=6, records_dropped=7))

    def call(self, name, body, fds=(), timeout=10):
        """Asks cspaced; None for OK, the error, or 'lost'."""
        with self.lock:
            if not self.peers:
                return 'nobody'
            self.seq += 1
            seq, s = self.seq, self.peers[-1]
            self.answers[seq] = q = queue.Queue()
        self.send(s, name, 0, seq, body, fds)
        try:
            return q.get(timeout=timeout)
        except queue.Empty:
            return 'lost'

    def audit(self, lines, dropped=0):
        return self.call('GW_AUDIT', wire.encode('GW_AUDIT', dropped=dropped, lines=''.join(line + '\n' for line in lines)))

    def names(self, table):
        fd = os.memfd_create('names')
        try:
            os.write(fd, json.dumps(table).encode())
            return self.call('GW_NAMES', wire.encode('GW_NAMES', version=1), [fd])
        finally:
            os.close(fd)

    def cut(self):
        """The process ends, the socket stays: cspace-rootd has it."""
        with self.lock:
            peers, self.peers = self.peers, []
        for s in peers:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        self.cut()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def steer(self, m):
        if 'audit' in m:
            return {'answer': self.audit(m['audit'], m.get('dropped', 0))}
        if 'names' in m:
            return {'answer': self.names(m['names'])}
        if m.get('cut'):
            self.cut()
        if m.get('close'):
            self.close()
        return {'configs': self.configs, 'secrets': self.secrets, 'refused': self.refused, 'peers': len(self.peers)}
