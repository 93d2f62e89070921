# SPDX-License-Identifier: Apache-2.0
"""A stand-in for cspaced that answers cspace's requests and runs "sandbox" commands as local processes.

It exists to misbehave on purpose: connections that break at a chosen byte, answers that are no
JSON, names with terminal escapes, archives that try to leave their folder. The real daemon does
none of that, and the CLI has to live with all of it.
"""
import asyncio
import fcntl
import io
import json
import os
import pty
import secrets
import signal
import struct
import tarfile
import termios
import threading
import time
import urllib.parse

STDIN, STDIN_EOF, RESIZE, SIGNAL, ACK, PING = 1, 2, 3, 4, 5, 6
STARTED, STDOUT, STDERR, PTY, GAP, WINDOW, EXIT, ERROR, PONG = range(0x10, 0x19)
AHEAD = 256 * 1024


def rfc3339(t):
    return time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(t)) + f'.{int(t * 1000) % 1000:03d}Z'


def new_id():
    return ''.join(secrets.choice('abcdefghijklmnopqrstuvwxyz234567') for _ in range(26))


CHANGES = {'pause': (['running'], 'paused'), 'resume': (['paused'], 'running'), 'suspend': (['running', 'paused'], 'suspended'),
           'restore': (['suspended'], 'running'), 'stop': (['running', 'paused'], 'stopped'), 'start': (['stopped'], 'running'),
           'wake': (['paused', 'suspended', 'stopped'], 'running')}


class Refused(Exception):
    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Process:
    """A local process with a journal of its output, as the agent keeps one."""

    def __init__(self, spec, cwd):
        self.id, self.spec, self.cwd = new_id(), spec, cwd
        self.journal = []  # (offset, frame type, bytes)
        self.end = 0
        self.base = 0      # what was dropped or acknowledged
        self.proc = self.master = self.failure = self.exit = None
        self.received = self.given = 0
        self.stdin_closed = False
        self.changed = asyncio.Condition()
        self.queue = asyncio.Queue()
        self.held = asyncio.Event()
        self.held.set()

    async def start(self):
        if self.proc or self.failure:
            return
        size = self.spec.get('pty')
        env = {'PATH': os.environ['PATH'], 'HOME': self.cwd, **self.spec.get('env', {})}
        argv = [self.spec['cmd'], *self.spec.get('args', [])]
        slave = None
        try:
            if size:
                self.master, slave = pty.openpty()
                self.resize(size['cols'], size['rows'])
            files = {'stdin': slave, 'stdout': slave, 'stderr': slave} if size else {
                'stdin': asyncio.subprocess.PIPE if self.spec.get('stdin', True) else asyncio.subprocess.DEVNULL,
                'stdout': asyncio.subprocess.PIPE, 'stderr': asyncio.subprocess.PIPE}
            self.proc = await asyncio.create_subprocess_exec(
                *argv, env=env, cwd=self.spec.get('cwd') or self.cwd, start_new_session=True,
                preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if size else None, **files)
        except FileNotFoundError:
            self.failure = ('command_not_found', f"command '{argv[0]}' does not exist")
        except OSError:
            self.failure = ('not_executable', f"'{argv[0]}' cannot be executed")
        finally:
            if slave is not None:
                os.close(slave)
        if self.proc:
            asyncio.ensure_future(self.run(size))

    async def run(self, size):
        feeding = asyncio.ensure_future(self.feed())
        if size:
            reading = [asyncio.ensure_future(self.drain_pty())]
        else:
            reading = [asyncio.ensure_future(self.drain(self.proc.stdout, STDOUT)),
                       asyncio.ensure_future(self.drain(self.proc.stderr, STDERR))]
        code = await self.proc.wait()
        await asyncio.gather(*reading)
        feeding.cancel()
        if code < 0:
            name = signal.Signals(-code).name
            self.exit = {'exitCode': 128 - code, 'signal': name, 'reason': 'signaled'}
        else:
            self.exit = {'exitCode': code, 'reason': 'exited'}
        await self.tell()

    async def tell(self):
        async with self.changed:
            self.changed.notify_all()

    async def put(self, kind, data):
        self.journal.append((self.end, kind, data))
        self.end += len(data)
        if self.end - self.base > 4 * 1024 * 1024:
            self.held.clear()
        await self.tell()
        await self.held.wait()

    def ack(self, offset):
        while self.journal and self.journal[0][0] + len(self.journal[0][2]) <= offset:
            first = self.journal.pop(0)
            self.base = first[0] + len(first[2])
        if self.end - self.base < 4 * 1024 * 1024:
            self.held.set()

    async def drain(self, stream, kind):
        while data := await stream.read(65536):
            await self.put(kind, data)

    async def drain_pty(self):
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await loop.run_in_executor(None, os.read, self.master, 16384)
            except OSError:
                return
            if not data:
                return
            await self.put(PTY, data)

    async def feed(self):
        while True:
            data = await self.queue.get()
            if data is None:
                if self.master is not None:
                    os.write(self.master, b'\x04')
                elif self.proc.stdin:
                    self.proc.stdin.close()
                continue
            if self.master is not None:
                await asyncio.get_running_loop().run_in_executor(None, os.write, self.master, data)
            elif self.proc.stdin:
                try:
                    self.proc.stdin.write(data)
                    await self.proc.stdin.drain()
                except (BrokenPipeError, ConnectionResetError):
                    self.stdin_closed = True
            self.given += len(data)
            await self.tell()

    def resize(self, cols, rows):
        if self.master is not None:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, cols, 0, 0))

    def signal(self, number):
        if self.proc and self.proc.returncode is None:
            try:
                os.killpg(self.proc.pid, number)
            except ProcessLookupError:
                pass


class Standin:
    def __init__(self, root):
        self.root = root
        self.path = os.path.join(root, 'api.sock')
        self.files = os.path.join(root, 'files')  # the guest's "/"
        os.makedirs(self.files, exist_ok=True)
        self.sandboxes, self.operations, self.processes = {}, {}, {}
        self.create_step = 'restoring'
        self.templates, self.keys, self.logs = [], [], []
        self.audit, self.audit_query, self.egress = [], None, 'active'
        self.credentials = {}
        self.template_policy = None
        self.warnings = {}
        self.requests = []          # (method, target, headers)
        self.idempotent = {}
        self.writers = set()
        # Faults.
        self.break_attach = []      # bytes after which each attach connection in turn is cut
        self.break_input = []       # bytes of received frames after which it is cut
        self.lose_attach = []       # bytes of output after which each is told that the stream was lost
        self.mute = False           # attach connections answer nothing more
        self.refuse_attach = None   # Refused for every attach
        self.refuse_changes = []    # Refused for each pause, wake, ... in turn
        self.refuse_next = None     # Refused for every attach but the first to a command
        self.create_delay = 0.0
        self.on_create = lambda spec: None
        self.ttl_max = None
        self.forgotten = 0          # so many bytes of a command's output are not kept
        self.hold_builds = self.build_fails = False
        self.build_log = ''
        self.create_fails = None    # error object of the create operation
        self.raw_answer = None      # bytes sent in answer to everything
        self.tar = None             # bytes sent for every GET ?tar=1
        self.cut_files = None       # a GET of a file ends after so many bytes, without a proper end
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.main, daemon=True)
        self.thread.start()
        assert self.ready.wait(10)

    # --- life

    def main(self):
        asyncio.set_event_loop(self.loop)
        watcher = asyncio.ThreadedChildWatcher()
        asyncio.set_child_watcher(watcher)
        self.server = self.loop.run_until_complete(asyncio.start_unix_server(self.serve, self.path))
        self.ready.set()
        self.loop.run_forever()

    def stop(self):
        def end():
            for p in self.processes.values():
                p.signal(signal.SIGKILL)
            self.server.close()
            for w in self.writers:
                w.transport.abort()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_later(0.05, self.loop.stop)
        self.loop.call_soon_threadsafe(end)
        self.thread.join(10)

    # --- HTTP

    def down(self):
        """The daemon is gone: nobody listens, every connection breaks; what it knows stays."""
        done = threading.Event()

        def end():
            self.server.close()
            os.unlink(self.path)
            for w in self.writers:
                w.transport.abort()
            done.set()
        self.loop.call_soon_threadsafe(end)
        assert done.wait(10)

    def up(self):
        async def begin():
            self.server = await asyncio.start_unix_server(self.serve, self.path)
        asyncio.run_coroutine_threadsafe(begin(), self.loop).result(10)

    def cut(self):
        """Breaks every connection off."""
        self.loop.call_soon_threadsafe(lambda: [w.transport.abort() for w in self.writers])

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            if not self.loop.is_closed():
                writer.close()

    async def one(self, reader, writer):
        line = await reader.readline()
        if not line:
            return False
        method, target, _ = line.decode().split()
        headers = {}
        while (line := (await reader.readline()).decode().rstrip('\r\n')):
            name, value = line.split(':', 1)
            headers[name.lower()] = value.strip()
        self.requests.append((method, target, headers))
        if self.raw_answer is not None:
            writer.write(self.raw_answer)
            await writer.drain()
            return False
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        parts = [urllib.parse.unquote(p) for p in url.path.split('/')[1:]]
        try:
            if 'upgrade' in headers:
                await self.attach(parts, query, reader, writer)
                return False
            body = await self.body(reader, headers)
            status, answer = await self.route(method, parts, query, body, headers)
        except Refused as e:
            status, answer = e.status, {'error': {'code': e.code, 'message': e.message}}
        await self.answer(writer, status, answer)
        return True

    async def body(self, reader, headers):
        if headers.get('transfer-encoding') == 'chunked':
            out = b''
            while (n := int(await reader.readline(), 16)):
                out += await reader.readexactly(n)
                await reader.readline()
            await reader.readline()
            return out
        return await reader.readexactly(int(headers.get('content-length', '0')))

    async def answer(self, writer, status, answer):
        kind = 'application/json'
        cut = None
        if isinstance(answer, bytes):
            kind, data, cut = 'application/octet-stream', answer, self.cut_files
        else:
            data = b'' if answer is None else json.dumps(answer).encode()
        writer.write(f'HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n'.encode())
        if cut is not None:
            writer.write(data[:cut])
            await writer.drain()
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()

    # --- routes

    async def route(self, method, parts, query, body, headers):
        if parts[:1] != ['v1']:
            raise Refused(404, 'not_found', 'no such route')
        name = f'{method} {parts[1]}'
        if name == 'GET version':
            return 200, {'version': '0.0-standin', 'api': 'v1'}
        if parts[1] == 'sandboxes':
            return await self.sandbox_route(method, parts[2:], query, body, headers)
        if name == 'GET operations':
            return await self.operation_route(parts[2:], query)
        if parts[1] == 'templates' and parts[3:] == ['policy']:
            if parts[2] not in ('base', 'base:latest'):
                raise Refused(404, 'template_not_found', f'template "{parts[2]}" does not exist')
            if method == 'PUT':
                self.template_policy = json.loads(body)
            elif method == 'DELETE':
                self.template_policy = None
                return 204, None
            return 200, {'template': 'base:latest', 'digest': 'a' * 64, 'policy': self.template_policy, **self.warnings}
        if name == 'GET templates' and parts[2:] and any(t.get('digest') == parts[2] for t in self.templates):
            return 200, next(t for t in self.templates if t['digest'] == parts[2])
        if name == 'GET templates' and parts[2:]:
            if parts[2] not in ('base', 'base:latest'):
                raise Refused(404, 'template_not_found', f'template "{parts[2]}" does not exist')
            return 200, {'digest': 'a' * 64, 'names': ['base:latest']}
        if name == 'GET templates':
            return 200, {'templates': self.templates}
        if name == 'POST templates':
            return 202, {'operation': self.bare(self.build(parts, query, body))}
        if name == 'GET credentials':
            def token(c):
                if c.get('provider', 'static') == 'static':
                    return {}
                return {'token': {'state': 'failed', 'expires_at': None, 'reason': 'the \x1b[2Jendpoint is away'}}
            return 200, {'credentials': [{'name': n, 'provider': c.get('provider', 'static'), 'created_at': rfc3339(0), 'updated_at': rfc3339(0),
                                          'expires_at': None, **token(c)} for n, c in sorted(self.credentials.items())]}
        if name == 'POST credentials' and parts[3:] == ['rotate']:
            if parts[2] not in self.credentials:
                raise Refused(404, 'credential_not_found', f'credential "{parts[2]}" does not exist')
            self.credentials[parts[2]]['rotated'] = json.loads(body)
            return 200, {'name': parts[2], 'provider': 'static'}
        if name == 'PUT credentials':
            self.credentials[parts[2]] = c = json.loads(body)
            answer = {'name': parts[2], 'provider': c.get('provider', 'static')}
            if c.get('provider') == 'command':
                answer['token'] = {'state': 'failed', 'expires_at': None, 'reason': 'there is no command "x"'}
            return 200, answer
        if name == 'DELETE credentials':
            if self.credentials.pop(parts[2], None) is None:
                raise Refused(404, 'credential_not_found', f'credential "{parts[2]}" does not exist')
            return 204, None
        if name == 'GET policies':
            return 200, {'presets': [{'name': 'none', 'hosts': []}, {'name': '@packages', 'hosts': ['a.example']}]}
        if name == 'GET keys':
            return 200, {'keys': self.keys}
        if name == 'POST keys':
            key = {'id': new_id(), 'name': json.loads(body or b'{}').get('name', ''), 'prefix': 'e2b_12345678',
                   'created_at': rfc3339(time.time()), 'last_used_at': None}
            self.keys.append(key)
            return 201, {**key, 'key': 'e2b_' + '0' * 40}
        if name == 'DELETE keys':
            if not any(k['id'] == parts[2] for k in self.keys):
                raise Refused(404, 'key_not_found', f'key "{parts[2]}" does not exist')
            self.keys = [k for k in self.keys if k['id'] != parts[2]]
            return 204, None
        raise Refused(404, 'not_found', 'no such route')

    def build(self, parts, query, body):
        op = self.operation('build', None)
        op['body'] = body if parts[2:] == ['import'] else json.loads(body)
        op['query'] = query
        op['result'] = {'digest': 'd' * 64}
        op['progress'] = {'step': 'rootfs', 'percent': 40, 'eta_s': 65}
        if self.build_fails:
            op['state'], op['error'] = 'failed', {'code': 'build_failed', 'message': 'no such package'}
        elif not self.hold_builds:
            op['state'] = 'succeeded'
        return op

    def operation(self, kind, sandbox):
        op = {'id': new_id(), 'kind': kind, 'state': 'running', 'sandbox_id': sandbox, 'subject': None,
              'created_at': rfc3339(time.time()), 'finished_at': None,
              'progress': {'step': self.create_step, 'percent': None, 'eta_s': None}, 'error': None, 'result': None}
        self.operations[op['id']] = op
        return op

    @staticmethod
    def bare(op):
        return {k: v for k, v in op.items() if k not in ('body', 'query')}

    async def operation_route(self, parts, query):
        if parts[1:] == ['log']:
            return 200, {'text': self.build_log, 'offset': 0, 'next_offset': len(self.build_log), 'state': 'failed'}
        op = self.operations.get(parts[0])
        if not op:
            raise Refused(404, 'operation_not_found', 'no such operation')
        until = time.monotonic() + float(query.get('wait', '0'))
        while op['state'] == 'running' and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return 200, self.bare(op)

    def find(self, ref):
        for s in self.sandboxes.values():
            if ref in (s['id'], s['name']):
                return s
        raise Refused(404, 'sandbox_not_found', f'sandbox "{ref}" does not exist')

    async def finish_create(self, sandbox, op):
        await asyncio.sleep(self.create_delay)
        if self.create_fails:
            op['state'], op['error'], sandbox['state'] = 'failed', self.create_fails, 'failed'
        elif sandbox['id'] in self.sandboxes:
            op['state'], sandbox['state'] = 'succeeded', 'running'
            sandbox['started_at'] = rfc3339(time.time())
        else:
            op['state'], op['error'] = 'failed', {'code': 'canceled', 'message': 'deleted'}

    def create(self, body, headers):
        key = headers.get('idempotency-key')
        if key in self.idempotent:
            return self.idempotent[key]
        spec = json.loads(body)
        self.on_create(spec)
        if self.ttl_max and spec.get('ttl_s', 0) > self.ttl_max:
            raise Refused(400, 'invalid_argument', f'"ttl_s" is more than {self.ttl_max}')
        if spec['template'] not in ('base', 'base:latest'):
            raise Refused(404, 'template_not_found', f'template "{spec["template"]}" does not exist')
        now = time.time()
        s = {'id': new_id(), 'name': spec.get('name'), 'state': 'creating', 'template': 'base:latest', 'digest': 'a' * 64,
             'memory_mb': spec.get('memory_mb', 512), 'cpus': spec.get('cpus', 1), 'disk_mb': spec.get('disk_mb', 0),
             'metadata': spec.get('metadata', {}), 'env': spec.get('env', {}), 'created_at': rfc3339(now),
             'started_at': None, 'expires_at': rfc3339(now + spec['ttl_s']) if spec.get('ttl_s') else None}
        s['spec'] = self.last_spec = spec
        self.sandboxes[s['id']] = s
        op = self.operation('create', s['id'])
        asyncio.ensure_future(self.finish_create(s, op))
        answer = {'sandbox': self.shown(s), 'operation': op}
        self.idempotent[key] = answer
        return answer

    def shown(self, s):
        return {**{k: v for k, v in s.items() if k != 'spec'}, **({'egress': {'state': 'active', 'rules': 1, **self.warnings}} if self.warnings else {})}

    async def sandbox_route(self, method, parts, query, body, headers):
        if not parts and method == 'POST':
            return 202, self.create(body, headers)
        if not parts:
            # Pages of two, so that the cursor matters.
            every = sorted(self.sandboxes.values(), key=lambda s: s['created_at'], reverse=True)
            start = int(query.get('cursor', '0'))
            more = str(start + 2) if start + 2 < len(every) else None
            return 200, {'sandboxes': [self.shown(s) for s in every[start:start + 2]], 'next_cursor': more}
        s = self.find(parts[0])
        rest = parts[1:]
        if not rest and method == 'GET':
            return 200, self.shown(s)
        if not rest and method == 'PATCH':
            s['patched'] = json.loads(body)
            if s['patched'].get('on_idle') == 'sleep':
                raise Refused(400, 'invalid_argument', '"on_idle" is "sleep"; it must be one of delete, pause, suspend, stop')
            if s['patched'].get('idle_s') == 1:
                raise Refused(400, 'invalid_argument', '"idle_s" is 1; that is too little')
            s.update(s['patched'])
            return 200, self.shown(s)
        if not rest and method == 'DELETE':
            del self.sandboxes[s['id']]
            op = self.operation('delete', s['id'])
            op['state'] = 'succeeded'
            for p in self.processes.values():
                if p.sandbox == s['id']:
                    p.signal(signal.SIGKILL)
            return 200 if 'wait' in query else 202, {'operation': op}
        if rest and rest[0] in CHANGES:
            if self.refuse_changes:
                raise self.refuse_changes.pop(0)
            if s['state'] not in CHANGES[rest[0]][0]:
                already = s['state'] == CHANGES[rest[0]][1]
                raise Refused(409, 'conflict', f'sandbox "{s["id"]}" is {s["state"]}' + (' already' if already else f': it cannot {rest[0]} now'))
            s['state'] = CHANGES[rest[0]][1]
            op = self.operation(rest[0], s['id'])
            if not self.hold_builds:
                op['state'] = 'succeeded'
            return 202, {'operation': op}
        if rest in (['checkpoints'], ['rollback']) and method == 'POST':
            op = self.operation(rest[0], s['id'])
            if not self.hold_builds:
                op['state'], op['result'] = 'succeeded', {'checkpoint': op['id']}
            return 202, {'operation': op}
        if rest == ['checkpoints']:
            return 200, {'checkpoints': [{'id': new_id(), 'name': 'before'}], 'head': None}
        if rest == ['publish']:
            op = self.operation('publish', s['id'])
            op['state'], op['result'] = 'succeeded', {'digest': 'd' * 64}
            s['published'] = json.loads(body)
            return 202, {'operation': op}
        if rest == ['fork']:
            s['forked'] = json.loads(body)
            op = self.operation('fork', s['id'])
            if not self.hold_builds:
                op['state'], op['result'] = 'succeeded', {'sandboxes': [s['id']]}
            return 202, {'operation': op}
        if rest == ['policy'] and method == 'GET':
            return 200, {'policy': s.get('policy', {'rules': []}), 'egress': {'state': 'active', 'rules': 1, **self.warnings}}
        if rest == ['policy'] and method == 'PUT':
            given = json.loads(body)
            if given.get('policy') == {'rulez': []}:
                raise Refused(400, 'invalid_argument', 'policy: "rulez" is not known')
            s['policy'] = given
            return 200, {'policy': given, 'egress': {'state': self.egress, 'rules': 1, **self.warnings}}
        if rest == ['policy', 'check']:
            given = json.loads(body)
            verdict = 'deny' if 'evil' in given['url'] else 'allow'
            return 200, {'url': given['url'], 'verdict': verdict, 'rule': 'r', 'reason': 'rule', 'message': given.get('method', 'none'), **self.warnings,
                         'inspect': True, 'stages': [{'stage': 'dns', 'verdict': verdict, 'rule': 'r', 'reason': 'rule'}]}
        if rest == ['bindings'] and method == 'POST':
            s.setdefault('bindings', []).append(json.loads(body))
            return 201, {'id': 'b1', **json.loads(body)}
        if rest == ['bindings']:
            return 200, {'bindings': [{'id': f'b{i}', 'used': 3, **b} for i, b in enumerate(s.get('bindings', []))]}
        if rest[:1] == ['bindings'] and method == 'DELETE':
            if rest[1] != 'b1':
                raise Refused(404, 'binding_not_found', 'none')
            s['bindings'].pop()
            return 204, None
        if rest == ['audit']:
            self.audit_query = query
            if 'follow' in query:
                return 200, ''.join(json.dumps(r) + '\n' for r in self.audit).encode()
            start = int(query.get('cursor', '0'))
            more = str(start + 2) if start + 2 < len(self.audit) else None
            return 200, {'records': self.audit[start:start + 2], 'next_cursor': more}
        if rest == ['usage']:
            if s['state'] in ('suspended', 'stopped'):
                return 200, {'host': {'cpu_us': 0, 'memory_bytes': 0, 'disk_bytes': 3 << 20, 'processes': 0}, 'guest': None}
            return 200, {'host': {'cpu_us': 1500000, 'memory_bytes': 34 << 20, 'disk_bytes': 1 << 20, 'processes': 2}, 'guest': None}
        if rest == ['logs']:
            lines = [e for e in self.logs if e['ms'] > int(query.get('since', '-1'))]
            return 200, ''.join(json.dumps({k: v for k, v in e.items() if k != 'ms'}) + '\n' for e in lines).encode()
        if rest[0] == 'commands':
            return await self.command_route(s, method, rest[1:], body)
        if rest[0] == 'files':
            return self.file_route(method, rest[1:], query, body)
        raise Refused(404, 'not_found', 'no such route')

    async def command_route(self, s, method, parts, body):
        if method == 'POST' and not parts:
            spec = json.loads(body)
            p = Process(spec, self.files)
            p.sandbox = s['id']
            self.processes[p.id] = p
            if spec.get('start'):
                await p.start()
            return 201, {'session_id': p.id, 'process_id': p.id, 'token': 't',
                         'attach_url': f'/v1/sandboxes/{s["id"]}/commands/{p.id}/attach'}
        if method == 'POST' and parts[1:] == ['signal']:
            if parts[0] not in self.processes:
                raise Refused(404, 'process_not_found', f'process "{parts[0]}" does not exist')
            self.processes[parts[0]].signal(json.loads(body)['signal'])
            return 204, None
        return 200, {'commands': [{'process_id': p.id, 'state': 'exited' if p.exit else 'running', 'pid': 1,
                                   'cmd': p.spec['cmd'], 'args': p.spec.get('args', []), 'exit': p.exit}
                                  for p in self.processes.values() if p.sandbox == s['id']]}

    # --- files

    def local(self, path):
        full = os.path.normpath(os.path.join(self.files, path.lstrip('/')))
        if not (full + '/').startswith(self.files + '/'):
            raise Refused(403, 'permission_denied', 'outside')
        return full

    def file_route(self, method, parts, query, body):
        path = self.local(query['path'])
        if parts == ['stat']:
            if not os.path.exists(path):
                raise Refused(404, 'not_found', f"path '{query['path']}' does not exist")
            st = os.stat(path)
            kind = 'directory' if os.path.isdir(path) else 'file' if os.path.isfile(path) else 'other'
            return 200, {'name': os.path.basename(path), 'path': path, 'type': kind, 'size': st.st_size, 'mode': st.st_mode & 0o777}
        if parts == ['list']:
            return 200, {'entries': [{'name': n, 'type': 'directory' if os.path.isdir(os.path.join(path, n)) else 'file'}
                                     for n in sorted(os.listdir(path))]}
        if method == 'GET' and 'tar' in query:
            if self.tar is not None:
                return 200, self.tar
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT) as t:
                t.add(path, arcname='.')
            return 200, out.getvalue()
        if method == 'GET':
            with open(path, 'rb') as f:
                return 200, f.read()
        if 'tar' in query:
            self.last_tar = body
            with tarfile.open(fileobj=io.BytesIO(body)) as t:
                t.extractall(path)
            return 200, {}
        if os.path.isdir(path):
            raise Refused(400, 'is_a_directory', f"path '{query['path']}' is a directory")
        with open(path, 'wb') as f:
            f.write(body)
        if 'mode' in query:
            os.chmod(path, int(query['mode'], 8))
        return 200, {}

    # --- attach

    async def attach(self, parts, query, reader, writer):
        self.find(parts[2])
        p = self.processes.get(parts[4])
        if self.refuse_attach:
            raise self.refuse_attach
        if self.refuse_next and p and p.proc:
            raise self.refuse_next
        if not p:
            raise Refused(404, 'process_not_found', f'process "{parts[4]}" does not exist')
        writer.write(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cspace-attach\r\n\r\n')
        await p.start()
        link = Link(self, p, reader, writer, int(query.get('offset', '0')))
        await link.run()


class Link:
    """One attach connection."""

    def __init__(self, server, process, reader, writer, offset):
        self.server, self.p, self.reader, self.writer, self.sent = server, process, reader, writer, offset
        self.budget = server.break_attach.pop(0) if server.break_attach else None
        self.input_budget = server.break_input.pop(0) if server.break_input else None
        self.lose_at = server.lose_attach.pop(0) if server.lose_attach else None

    async def frame(self, kind, data=b''):
        if self.server.mute:
            return
        raw = bytes([kind]) + struct.pack('>I', len(data)) + data
        if self.budget is not None and len(raw) >= self.budget:
            self.writer.write(raw[:self.budget])
            await self.writer.drain()
            self.writer.transport.abort()
            raise ConnectionResetError
        if self.budget is not None:
            self.budget -= len(raw)
        self.writer.write(raw)
        await self.writer.drain()

    async def run(self):
        reading = asyncio.ensure_future(self.read())
        writing = asyncio.ensure_future(self.write())
        done, _ = await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
        if writing in done and not writing.exception():
            await asyncio.wait([reading], timeout=5)
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)

    async def read(self):
        while True:
            head = await self.reader.readexactly(5)
            data = await self.reader.readexactly(struct.unpack('>I', head[1:])[0])
            kind = head[0]
            if self.input_budget is not None:
                self.input_budget -= 5 + len(data)
                if self.input_budget <= 0:
                    self.writer.transport.abort()  # the frame itself is lost
                    return
            if kind == STDIN:
                assert self.p.received + len(data) <= self.p.given + AHEAD or self.p.stdin_closed
                self.p.received += len(data)
                await self.p.queue.put(data)
            elif kind == STDIN_EOF:
                await self.p.queue.put(None)
            elif kind == RESIZE:
                self.p.resize(*struct.unpack('>HH', data))
            elif kind == SIGNAL:
                self.p.signal(data[0])
            elif kind == ACK:
                self.p.ack(struct.unpack('>Q', data)[0])
            elif kind == PING:
                await self.frame(PONG)

    async def write(self):
        p = self.p
        if p.failure:
            await self.frame(ERROR, json.dumps({'code': p.failure[0], 'message': p.failure[1]}).encode())
            return
        await self.frame(STARTED, struct.pack('>IQQ', p.proc.pid, self.sent, p.received))
        if self.sent < self.server.forgotten:
            await self.frame(GAP, struct.pack('>QQ', self.sent, self.server.forgotten))
            self.sent = self.server.forgotten
        window = None
        while True:
            now = 2 ** 64 - 1 if p.stdin_closed else p.given + AHEAD
            if now != window:
                window = now
                await self.frame(WINDOW, struct.pack('>Q', window))
            for offset, kind, data in list(p.journal):
                if offset + len(data) <= self.sent:
                    continue
                data = data[max(0, self.sent - offset):]
                await self.frame(kind, struct.pack('>Q', self.sent) + data)
                self.sent += len(data)
                if self.lose_at is not None and self.sent >= self.lose_at:
                    await self.frame(ERROR, b'{"code":"stream_lost","message":"the stream to the sandbox was lost"}')
                    return
            if p.exit and self.sent == p.end:
                await self.frame(EXIT, json.dumps(p.exit).encode())
                self.writer.write_eof()
                return
            async with p.changed:
                try:
                    await asyncio.wait_for(p.changed.wait(), 0.05)
                except asyncio.TimeoutError:
                    pass
