#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for cspace-rootd, its wardens and the agents behind them, for tests of cspaced alone.

usage: standin.py RUN DATA

A test steers it by JSON lines on RUN/standin.sock:
  {"set": {"PLACE": {"error": [28, "disk full"], "delay": 0.1, "times": 1}}}   what a request does
      with "hold": true it waits, once it is there, until
  {"release": true}                    is said
  {"held": "PLACE"}                    whether such a request waits
  {"vm_exit": ID, "reason": "..."}     the VM ends: warden event, EXITED
  {"late_pause": ID}                   what a cspaced that is gone had asked for comes about: its VM is paused
  {"lost": ID}                         the host was started again: nothing of its VM is there, but its disk
  {"paused": ID}                       whether it is
  {"warden_exit": ID}                  the warden's sockets go away
  {"gateway": ID, ...}                 see standin_gateway.py
  {"quiet": true}                      what is placed from now on sends nothing: it has no gateway until
  {"first_packet": ID}                 something arrives for it, and one is started
  {"gateway_ends": ID}                 it ends, and cspace-rootd tells so
  {"silent": ID or null}               that sandbox's guest answers nothing more, or all do again
  {"written": N}                       when the disks were written to last, for USAGE
  {"drop": true}                       all connections from cspaced are cut
  {"packets": {"id": ID, "spoofed": N, "not_carried": N, "flooded": N}}   event: its namespace dropped them
  {"unknown": ID}                      makes a placement nobody asked for
  {"state": true}                      what there is, and the requests seen
  {"commits": true}                    the images that were asked for
"""
import array
import base64
import contextlib
import hashlib
import json
import os
import random
import socket
import struct
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'rootd'))
import wire  # noqa: E402
from standin_gateway import Gateway  # noqa: E402

RUN, DATA = sys.argv[1], sys.argv[2]
LOCK = threading.RLock()
FAULTS = {}   # request name -> {"error", "delay", "times", "hang", "hold"}
HELD = {}     # request name -> an event that lets it go on
SEEN = []     # names of requests
PLACED = {}   # id -> Sandbox
IMAGES = {}   # id -> kind, identity
HALF = {}     # the same, not visible yet
COMMITS = []  # how images were asked for
VARIANTS = set()
TEMPLATES = set()
BUILDS = {}
CLIENTS = []
LOST = set()  # ids
SILENT = set()
WRITTEN = [1]
QUIET = [False]  # sandboxes that are placed send nothing: no gateway is started
HOLD_MAX_S = 60 # a test that failed releases nothing
COMMITTING = set()  # images
PLACING = set()     # ids: there already, as far as LIST, PLACE and REMOVE are concerned
REMOVING = {}  # id -> a lock: a second removal joins the first


def new_id():
    return ''.join(random.choices('abcdefghijklmnopqrstuvwxyz234567', k=26))


def fault(name):
    """Applies what a test asked for; returns an error to answer, or None. Raises when it hangs."""
    with LOCK:
        if name != 'GW_QUERY':  # comes beside the steps of a flow
            SEEN.append(name)
        f = FAULTS.get(name)
        if f and 'times' in f:
            f['times'] -= 1
            if f['times'] <= 0:
                del FAULTS[name]
    if not f:
        return None
    if f.get('hold'):
        with LOCK:
            event = HELD.setdefault(name, threading.Event())
        event.wait(HOLD_MAX_S)
    time.sleep(f.get('delay', 0))
    if f.get('hang'):
        raise TimeoutError
    return f.get('error')


class Conn:
    """The serving end of a seqpacket connection."""

    def __init__(self, sock, handler):
        self.sock, self.handler, self.lock, self.dead = sock, handler, threading.Lock(), False

    def send(self, name, seq, flags, **values):
        with self.lock:
            try:
                self.sock.send(struct.pack('<HHI', wire.TYPES[name], flags, seq) + values.pop('raw', b''))
            except OSError:
                pass

    def reply(self, name, seq, body_name='OK', **values):
        self.send(name, seq, wire.REPLY, raw=wire.encode(body_name, **values))

    def reply_fd(self, name, seq, fd):
        with self.lock:
            socket.send_fds(self.sock, [struct.pack('<HHI', wire.TYPES[name], wire.REPLY, seq)], [fd])

    def error(self, name, seq, code, message):
        self.send(name, seq, wire.REPLY | wire.ERROR, raw=wire.encode('ERROR', code=code, message=message))

    def event(self, name, **values):
        self.send(name, 0, 0, raw=wire.encode(name, **values))

    def run(self):
        while True:
            try:
                data, anc, _, _ = self.sock.recvmsg(wire.PACKET_MAX, 4096)
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
            t, _, seq = struct.unpack_from('<HHI', data)
            name = wire.NAMES[t]
            threading.Thread(target=self.one, args=(name, seq, wire.decode(name, data[8:]), fds), daemon=True).start()

    def one(self, name, seq, m, fds):
        image = m.get('image')
        if name in ('IMAGE_COMMIT', 'IMAGE_REMOVE') and image in COMMITTING:
            self.error(name, seq, 16, 'the image is being made')
            return
        removing = REMOVING.setdefault(m['id'], threading.Lock()) if name == 'REMOVE' else contextlib.nullcontext()
        try:
            if name == 'IMAGE_COMMIT':
                COMMITTING.add(image)
            with removing:
                self.work(name, seq, m, fds)
        except (TimeoutError, ConnectionError):
            pass
        except Exception as e:  # else whoever asked waits for as long as it may
            traceback.print_exc()
            with contextlib.suppress(OSError):
                self.error(name, seq, 5, f'the stand-in: {e!r}')
        finally:
            if name == 'IMAGE_COMMIT':
                COMMITTING.discard(image)
            for fd in fds:
                os.close(fd)

    def work(self, name, seq, m, fds):
        if name != 'PLACE':
            self.do(name, seq, m, fds)
            return
        with LOCK:
            there = m['id'] in PLACED or m['id'] in PLACING
            if not there:
                PLACING.add(m['id'])
        if there:
            self.error(name, seq, 17, 'the sandbox is placed already')
            return
        try:
            self.do(name, seq, m, fds)
        finally:
            PLACING.discard(m['id'])

    def do(self, name, seq, m, fds):
        e = fault('IMAGE_SEAL' if name == 'IMAGE_COMMIT' and m['part'] == 2 else name)
        if self.dead:  # what was under way died with the program
            return
        if e:
            self.error(name, seq, e[0], e[1])
        else:
            self.handler(self, name, seq, m, fds)


def listen(path, kind):
    if os.path.exists(path):
        os.unlink(path)
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(path)
    s.listen(64)
    return s


# ---- agent ---------------------------------------------------------------------------------------

class Agent:
    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.processes = {}
        self.files = {}
        self.token = None
        self.conns = set()

    def serve(self, sock):
        with LOCK:
            self.conns.add(sock)
        f = sock.makefile('rb')
        try:
            while self.request(sock, f):
                pass
        except (OSError, ValueError):
            pass
        finally:
            with LOCK:
                self.conns.discard(sock)
            try:
                sock.close()
            except OSError:
                pass

    def request(self, sock, f):
        line = f.readline()
        if not line:
            return False
        method, target, _ = line.decode().split()
        headers = {}
        while (h := f.readline().strip()):
            k, _, v = h.decode().partition(':')
            headers[k.lower()] = v.strip()
        body = b''
        if headers.get('transfer-encoding') == 'chunked':
            while (n := int(f.readline().strip(), 16)):
                body += f.read(n)
                f.readline()
            f.readline()
        elif 'content-length' in headers:
            body = f.read(int(headers['content-length']))
        path = target.partition('?')[0]
        query = dict(p.partition('=')[::2] for p in target.partition('?')[2].split('&') if p)
        if path not in ('/health',) and headers.get('x-access-token') != self.token:
            self.answer(sock, 401, {'code': 401, 'message': 'bad token'})
            return True
        if 'upgrade' in headers:
            self.attach(sock, f, path, query)
            return False
        while self.sandbox.id in SILENT:
            time.sleep(0.01)
        status, reply = self.handle(method, path, query, body)
        self.answer(sock, status, reply)
        return True

    def answer(self, sock, status, reply):
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode() if reply is not None else b''
        sock.sendall(b'HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n' % (status, len(data)) + data)

    def handle(self, method, path, query, body):
        if path == '/health':
            return 204, None
        if path == '/metrics':
            return 200, {'cpu_count': 1, 'mem_total': 1}
        if path == '/process.Process/Start':
            end = json.dumps({'event': {'end': {'exitCode': 0, 'exited': True}}}).encode()
            return 200, struct.pack('>BI', 0, len(end)) + end + struct.pack('>BI', 2, 2) + b'{}'
        if path == '/cspace/v1/processes' and method == 'POST':
            spec = json.loads(body)
            if spec['cmd'] == 'refused':
                return 400, {'error': {'code': 'invalid_argument', 'message': 'cwd "/nope" does not exist'}}
            p = new_id()
            self.processes[p] = spec
            return 201, {'processId': p}
        if path == '/cspace/v1/processes':
            return 200, {'processes': [self.describe(p) for p in self.processes]}
        if path.startswith('/cspace/v1/processes/'):
            p = path.split('/')[4]
            if p not in self.processes:
                return 404, {'error': {'code': 'process_not_found', 'message': f'process "{p}" does not exist'}}
            if method == 'DELETE':
                del self.processes[p]
                return 204, None
            return 200, self.describe(p) if method == 'GET' else {}
        if path == '/cspace/v1/files':
            name = query['path'] + ' ' + query.get('user', '')
            if method == 'PUT':
                self.files[name] = body
                return 200, {}
            if name not in self.files:
                return 404, {'error': {'code': 'not_found', 'message': 'no such file'}}
            return 200, self.files[name]
        return 404, {'error': {'code': 'not_found', 'message': 'no such route'}}

    def describe(self, p):
        spec = self.processes[p]
        return {'processId': p, 'state': 'prepared', 'cmd': spec['cmd'], 'args': spec.get('args', []),
                'user': spec.get('user'), 'odd': 'not passed on'}

    def attach(self, sock, f, path, query):
        p = path.split('/')[4]
        if p not in self.processes:
            self.answer(sock, 404, {'error': {'code': 'process_not_found', 'message': 'no such process'}})
            return
        cmd = self.processes[p]['cmd']
        sock.sendall(b'HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: cspace-attach\r\n\r\n')

        def frame(kind, payload=b''):
            sock.sendall(struct.pack('>BI', kind, len(payload)) + payload)

        offset = int(query.get('offset', '0'))
        frame(0x10, struct.pack('>IQQ', 42, offset, 0))
        if cmd == 'lose':
            frame(0x11, struct.pack('>Q', 0) + b'partial')
            sock.sendall(b'\x11\x00\x00')  # and half a frame
            sock.shutdown(socket.SHUT_RDWR)
            return
        if cmd == 'end':  # a proper end of the stream, but none of the command
            sock.shutdown(socket.SHUT_WR)
            f.read()
            return
        if cmd == 'odd':
            frame(0x77, b'x')
        if cmd == 'flood':
            data = os.urandom(65536)
            for i in range(int(self.processes[p]['args'][0])):
                frame(0x11, struct.pack('>Q', i * len(data)) + data)
        at = 0
        while cmd == 'cat':
            head = f.read(5)
            if len(head) < 5:
                return
            kind, n = struct.unpack('>BI', head)
            data = f.read(n)
            if kind == 0x01:
                frame(0x11, struct.pack('>Q', at) + data)
                at += n
            elif kind == 0x02:
                break
            elif kind == 0x06:
                frame(0x18)
        if cmd == 'stuck':  # reads nothing
            threading.Event().wait(60)
            return
        if cmd == 'hang':
            f.read()
            return
        frame(0x11, struct.pack('>Q', at) + b'bye\n')
        frame(0x16, json.dumps({'exitCode': 3, 'reason': 'exited'}).encode())
        sock.shutdown(socket.SHUT_WR)
        f.read()


# ---- warden --------------------------------------------------------------------------------------

class Sandbox:
    def __init__(self, m):
        self.id, self.mode, self.digest = m['id'], m['mode'], m['digest']
        self.identity, self.identifying, self.link_up, self.ended, self.paused = None, False, False, None, False
        self.dir = os.path.join(RUN, 'sandboxes', self.id)
        os.makedirs(self.dir, exist_ok=True)
        self.agent = Agent(self)
        self.conns = []
        self.gateway_path = os.path.join(self.dir, 'gw.sock')
        self.gateway = Gateway(self.gateway_path, fault) if self.mode == 'restore' and not QUIET[0] else None
        self.open()

    def open(self):
        self.ctl = listen(os.path.join(self.dir, 'ctl.sock'), socket.SOCK_SEQPACKET)
        self.data = listen(os.path.join(self.dir, 'data.sock'), socket.SOCK_STREAM)
        threading.Thread(target=self.accept_ctl, args=(self.ctl,), daemon=True).start()
        threading.Thread(target=self.accept_data, args=(self.data,), daemon=True).start()
        threading.Thread(target=self.restore, daemon=True).start()

    def restore(self):
        try:
            if fault('RESTORE'):
                self.end('the restore failed')
                return
        except TimeoutError:
            return
        self.link_up = True

    def accept_ctl(self, listener):
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            c = Conn(s, self.request)
            self.conns.append(c)
            threading.Thread(target=c.run, daemon=True).start()

    def accept_data(self, listener):
        while True:
            try:
                s, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve_data, args=(s,), daemon=True).start()

    def serve_data(self, s):
        line = b''
        while not line.endswith(b'\n'):
            c = s.recv(1)
            if not c:
                s.close()
                return
            line += c
        if line == b'CONNECT 49983\n' and not self.ended:
            s.sendall(b'200 OK\n')
            self.agent.serve(s)
        else:
            s.sendall(b'502 closed\n')
            s.close()

    def request(self, conn, name, seq, m, fds):
        if name == 'IDENTIFY':
            if self.identity or self.identifying:
                conn.error(name, seq, 114 if self.identity else 16, 'has its identity already')
                return
            self.identifying = True
            while not self.link_up and not self.ended:
                time.sleep(0.005)
            if self.ended:
                conn.error(name, seq, 5, self.ended)
                return
            self.identity = json.loads(m['json'])
            self.agent.token = self.identity['accessToken']
            conn.reply(name, seq, 'READY', spawn_us=1, load_us=2, link_us=3, identify_us=4)
        elif name == 'QUERY':
            state = 'exited' if self.ended else 'paused' if self.paused else 'running' if self.identity else 'starting'
            conn.reply(name, seq, 'WARDEN_STATE', state=state, reason=self.ended or '', identified=int(bool(self.identity)),
                       link_up=int(self.link_up and self.id not in SILENT))
        elif name == 'SNAPSHOT':
            conn.reply(name, seq)
        elif name == 'FSFREEZE':
            conn.reply(name, seq)
        elif name in ('PAUSE', 'RESUME', 'SAVE'):
            assert len(fds) == (name == 'SAVE')
            self.paused = name != 'RESUME'
            if name == 'SAVE':
                conn.reply(name, seq)
            else:
                conn.reply(name, seq, 'HELD', vm_us=1, synced=int(name == 'PAUSE'))
        elif name == 'STOP':
            conn.reply(name, seq)
            self.end('the guest powered off')
        else:
            conn.error(name, seq, 22, 'not a request')

    def pause(self):
        self.paused = True
        for c in self.conns:
            c.event('WARDEN_EVENT', state='paused', reason='')

    def end(self, reason):
        self.ended = reason
        for c in self.conns:
            c.event('WARDEN_EVENT', state='exited', reason=reason)
        self.cut()
        for c in CLIENTS:
            c.event('EXITED', id=self.id, what='vm')

    def cut(self):
        with LOCK:
            conns = list(self.agent.conns)
        for s in conns:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        for s in (self.ctl, self.data):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for c in self.conns:
            try:
                c.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            c.sock.close()
        self.conns = []
        self.cut()


# ---- rootd ---------------------------------------------------------------------------------------

def history(conn, seq, m):
    """Answers with the bytes of RUN/history, and notes the question in RUN/history.asked. `# hold` in it: no end comes."""
    with open(os.path.join(RUN, 'history.asked'), 'a') as f:
        f.write(json.dumps(m) + '\n')
    with open(os.path.join(RUN, 'history'), 'rb') as f:
        data = f.read()
    ours, theirs = socket.socketpair()
    conn.reply_fd('HISTORY', seq, theirs.fileno())
    theirs.close()
    hold = data.endswith(b'# hold')
    try:
        data = data[:-6] if hold else data
        for at in range(0, len(data), 65536):
            ours.sendall(data[at:at + 65536])
            with open(os.path.join(RUN, 'history.sent'), 'w') as f:
                f.write(str(at + 65536))
        if hold:
            ours.recv(1)
            open(os.path.join(RUN, 'history.left'), 'w').close()
    except OSError:
        pass
    ours.close()


def token(conn, seq, m, fds):
    """Answers with the bytes of RUN/token.NAME or RUN/token (`# hold`: no end comes), `%d` in them being the number of the question, and
    notes the question in RUN/token.asked, and in RUN/token.left that an answer was not waited for."""
    if fds:
        m['request'] = json.loads(os.pread(fds[0], 65536, 0))
    with LOCK:
        with open(os.path.join(RUN, 'token.asked'), 'a') as f:
            f.write(json.dumps(m) + '\n')
        with open(os.path.join(RUN, 'token.asked')) as f:
            n = len(f.readlines())
    own = os.path.join(RUN, f"token.{m['credential']}")
    with open(own if os.path.exists(own) else os.path.join(RUN, 'token'), 'rb') as f:
        data = f.read().replace(b'%d', b'%04d' % n)
    ours, theirs = socket.socketpair()
    conn.reply_fd('TOKEN', seq, theirs.fileno())
    theirs.close()
    hold = data.endswith(b'# hold')
    try:
        ours.sendall(data[:-6] if hold else data)
        if hold:
            ours.recv(1)
            with LOCK, open(os.path.join(RUN, 'token.left'), 'a') as f:
                f.write(m['credential'] + '\n')
    except OSError:
        pass
    ours.close()


def build(conn, seq, m, fds):
    BUILDS[m['id']] = True
    out = os.fdopen(os.dup(fds[0]), 'w', buffering=1)
    tar = b''
    if m['source'] == 'tar':
        with os.fdopen(os.dup(fds[1]), 'rb') as f:
            tar = f.read()
    for percent in (10, 50, 90):
        out.write(json.dumps({'step': 'rootfs', 'index': 2, 'of': 6, 'percent': percent, 'overall': percent,
                              'message': f'at {percent}'}) + '\n')
        e = fault('BUILD_STEP')
        if e:
            out.write(json.dumps({'error': e[1], 'code': 'package_not_found', 'log': 'last line\n'}) + '\n')
            out.close()
            conn.error('BUILD', seq, e[0], 'the builder failed')
            return
    digest = hashlib.sha256((m['source'] + m['packages'] + m['suite']).encode() + tar).hexdigest()
    if m['checkpoint_every_s']:
        os.makedirs(os.path.join(DATA, 'templates', digest), exist_ok=True)
        with open(os.path.join(DATA, 'templates', digest, 'manifest.json'), 'w') as f:
            json.dump({'config': {'rules': {'checkpoint_every_s': m['checkpoint_every_s'], 'checkpoint_keep': m['checkpoint_keep']}}}, f)
    out.write(json.dumps({'done': True, 'digest': digest, 'overall': 100, 'message': 'complete'}) + '\n')
    out.close()
    conn.reply('BUILD', seq)


def tell_gateway(conn, s):
    if s.gateway:
        conn.event('GATEWAY', id=s.id)
    else:
        conn.event('EXITED', id=s.id, what='gateway')


def first_packet(s):
    """A gateway is started, as cspace-rootd does."""
    s.gateway = Gateway(s.gateway_path, fault)
    for c in CLIENTS:
        tell_gateway(c, s)
    return s.gateway.steer({})


def gateway_ends(s):
    s.gateway.close()
    s.gateway = None
    for c in CLIENTS:
        tell_gateway(c, s)


def rootd_request(conn, name, seq, m, fds):
    if name == 'HELLO':
        conn.reply(name, seq, 'HOST_INFO', version=1, engine='fake', engine_reason='a test', cgroup='none',
                   data_fs='none', reflink=0, pool_ready=0)
        for s in list(PLACED.values()):
            tell_gateway(conn, s)
    elif name == 'PLACE':
        if m['image'] and m['image'] not in IMAGES:
            conn.error(name, seq, 2, 'there is no such image')
            return
        if not m['image'] and m['mode'] == 'restore' and (m['digest'], f"{m['engine']}-{m['memory_mb']}m-{m['cpus']}c") not in VARIANTS:
            conn.error(name, seq, 2, 'there is no such variant')
            return
        with LOCK:
            LOST.discard(m['id'])
            removed = m['id'] not in PLACING
            if not removed:
                PLACED[m['id']] = Sandbox(m)
        if removed:
            conn.error(name, seq, 125, 'the sandbox was removed meanwhile')
            return
        conn.reply(name, seq, 'PLACED', warden_pid=1, warden_uid=2, vm_uid=3, place_us=5, thawed=int(not m['snapshot'] and fault('THAWED') is not None))
        if PLACED[m['id']].gateway:
            tell_gateway(conn, PLACED[m['id']])
    elif name == 'REMOVE':
        with LOCK:
            PLACING.discard(m['id'])
            s = PLACED.pop(m['id'], None)
        if s:
            s.close()
            if s.gateway:
                s.gateway.close()
            for n in ('ctl.sock', 'data.sock'):
                os.unlink(os.path.join(s.dir, n))
            os.rmdir(s.dir)
        conn.reply(name, seq)
    elif name == 'IMAGE_BEGIN':
        with open('/dev/null', 'wb') as f:
            conn.reply_fd(name, seq, f.fileno())
    elif name == 'IMAGE_COMMIT' and m['part'] == 2:
        half = HALF.pop(m['image'], None)
        if not half:
            conn.error(name, seq, 2, 'there is no such half image')
            return
        IMAGES[m['image']] = half
        conn.reply(name, seq, 'IMAGE_INFO', private_bytes=0, written_bytes=0, freeze_us=0, took_us=0)
    elif name == 'IMAGE_COMMIT':
        COMMITS.append({k: m[k] for k in ('image', 'kind', 'part', 'fleeting')})
        s = PLACED.get(m['id'])
        if m['from']:
            IMAGES[m['image']] = dict(IMAGES[m['from']], kind=m['kind'])
            conn.reply(name, seq, 'IMAGE_INFO', private_bytes=0, written_bytes=0, freeze_us=1, took_us=2)
            return
        if not s:
            conn.error(name, seq, 2, 'there is no such sandbox')
            return
        if m['halt']:
            s.close()
        (HALF if m['part'] else IMAGES)[m['image']] = {'kind': m['kind'], 'identity': s.identity}
        conn.reply(name, seq, 'IMAGE_INFO', private_bytes=4096, written_bytes=4096, freeze_us=1, took_us=2)
    elif name == 'IMAGE_REMOVE' and m['what'] == 'process':
        conn.reply(name, seq)
    elif name == 'IMAGE_REMOVE':
        HALF.pop(m['image'], None)
        IMAGES.pop(m['image'], None)
        conn.reply(name, seq)
    elif name == 'IMAGE_USAGE':
        conn.reply(name, seq, 'USAGE_INFO', cpu_us=0, memory_bytes=0, disk_bytes=4096, processes=0, written_ns=0)
    elif name == 'IMAGES':
        there = BUILDS if m['what'] == 'builds' else {*IMAGES, *COMMITTING}
        conn.reply(name, seq, 'PLACEMENT_LIST', ids='\n'.join(sorted(i for i in there if i > m['after'])))
    elif name == 'LIST':
        conn.reply(name, seq, 'PLACEMENT_LIST', ids='\n'.join({*PLACED, *PLACING} - LOST))
    elif name == 'VARIANT_COMMIT':
        VARIANTS.add((m['digest'], m['variant']))
        conn.reply(name, seq)
    elif name == 'VARIANT_REMOVE':
        VARIANTS.discard((m['digest'], m['variant']))
        conn.reply(name, seq)
    elif name == 'BUILD':
        build(conn, seq, m, fds)
    elif name == 'BUILD_REMOVE':
        BUILDS.pop(m['id'], None)
        conn.reply(name, seq)
    elif name == 'PUBLISH':
        manifest = json.loads(os.pread(fds[0], 1 << 20, 0))
        if m['image'] not in IMAGES or (m['kind'] == 'full' and IMAGES[m['image']]['kind'] != 'full'):
            conn.error(name, seq, 2, 'there is no such image')
            return
        digest = hashlib.sha256(json.dumps([m['image'], m['kind'], manifest]).encode()).hexdigest()
        BUILDS[m['id']] = digest
        os.makedirs(os.path.join(DATA, 'templates', digest), exist_ok=True)  # where cspaced reads it
        with open(os.path.join(DATA, 'templates', digest, 'manifest.json'), 'w') as f:
            json.dump(manifest, f)
        conn.reply(name, seq, 'PUBLISHED', digest=digest, disk_bytes=8 << 20)
    elif name == 'TEMPLATE_COMMIT':
        TEMPLATES.add(m['digest'])
        if m['engine']:
            VARIANTS.add((m['digest'], f"{m['engine']}-{m['memory_mb']}m-{m['cpus']}c"))
        conn.reply(name, seq)
    elif name == 'TEMPLATE_REMOVE':
        TEMPLATES.discard(m['digest'])
        for v in [v for v in VARIANTS if v[0] == m['digest']]:
            VARIANTS.discard(v)
        conn.reply(name, seq)
    elif name == 'HISTORY':
        history(conn, seq, m)
    elif name == 'TOKEN':
        token(conn, seq, m, fds)
    elif name == 'USAGE':
        conn.reply(name, seq, 'USAGE_INFO', cpu_us=1, memory_bytes=2, disk_bytes=3, processes=4, written_ns=WRITTEN[0])
    else:
        conn.error(name, seq, 22, 'not a request')


def steer(m):
    if 'set' in m:
        with LOCK:
            for k, v in m['set'].items():
                FAULTS.pop(k, None)
                if v:
                    FAULTS[k] = v
    elif 'held' in m:
        return m['held'] in HELD
    elif 'release' in m:
        with LOCK:
            for event in HELD.values():
                event.set()
            HELD.clear()
    elif 'silent' in m:
        SILENT.clear()
        SILENT.update([m['silent']] if m['silent'] else [])
    elif 'packets' in m:
        for c in CLIENTS:
            c.event('PACKETS', **m['packets'])
    elif 'vm_exit' in m:
        PLACED[m['vm_exit']].end(m.get('reason', 'the VM was killed'))
    elif 'late_pause' in m:
        PLACED[m['late_pause']].pause()
    elif 'paused' in m:
        return PLACED[m['paused']].paused
    elif 'lost' in m:
        LOST.add(m['lost'])
    elif 'warden_exit' in m:
        PLACED[m['warden_exit']].close()
    elif 'warden_start' in m:
        PLACED[m['warden_start']].open()
    elif 'quiet' in m:
        QUIET[0] = m['quiet']
    elif 'first_packet' in m:
        return first_packet(PLACED[m['first_packet']])
    elif 'gateway_ends' in m:
        gateway_ends(PLACED[m['gateway_ends']])
    elif 'gateway' in m:
        return PLACED[m['gateway']].gateway.steer(m)
    elif 'written' in m:
        WRITTEN[0] = m['written']
    elif 'drop' in m:
        for c in CLIENTS[:]:
            c.dead = True
            c.sock.shutdown(socket.SHUT_RDWR)
    elif 'unknown' in m:
        PLACED[m['unknown']] = Sandbox({'id': m['unknown'], 'mode': 'restore', 'digest': ''})
    elif 'unknown_image' in m:
        IMAGES[m['unknown_image']] = {'kind': 'disk', 'identity': None}
    elif 'commits' in m:
        return COMMITS
    elif 'seen' in m:
        return list(SEEN)
    return {'placed': {i: {'identified': s.identity is not None, 'mode': s.mode, 'identity': s.identity}
                       for i, s in list(PLACED.items())},
            'images': {i: v['kind'] for i, v in [*IMAGES.items(), *HALF.items()]}, 'variants': sorted(v[1] for v in VARIANTS), 'templates': sorted(TEMPLATES), 'builds': list(BUILDS)}


def serve_steering(listener):
    while True:
        s, _ = listener.accept()

        def one(s=s):
            for line in s.makefile('rb'):
                s.sendall(json.dumps(steer(json.loads(line))).encode() + b'\n')
        threading.Thread(target=one, daemon=True).start()


def serve_client(s):
    c = Conn(s, rootd_request)
    with LOCK:
        CLIENTS.append(c)
    c.run()
    with LOCK:
        CLIENTS.remove(c)


def main():
    os.makedirs(os.path.join(RUN, 'sandboxes'), exist_ok=True)
    steering = listen(os.path.join(RUN, 'standin.sock'), socket.SOCK_STREAM)
    threading.Thread(target=serve_steering, args=(steering,), daemon=True).start()
    rootd = listen(os.path.join(RUN, 'rootd.sock'), socket.SOCK_SEQPACKET)
    while True:
        s, _ = rootd.accept()
        threading.Thread(target=serve_client, args=(s,), daemon=True).start()


main()
