// SPDX-License-Identifier: Apache-2.0

// Requests to ports of a sandbox, past the SDK: routing, streaming, upgrades, and what must not be
// reachable.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import http from 'node:http'
import net from 'node:net'
import { after, before, describe, test } from 'node:test'
import { api, listener, port, request, template, until } from './helper.mjs'
import { Sandbox } from 'e2b'

const MISSING = 'aaaaaaaaaaaaaaaaaaaaaaaaaa'

// Echoes what it got and how; /stream sends a line every 0.3 s; /ws is a WebSocket echo; /cut
// promises more than it sends; the first line of /hello comes before any request.
const SERVER = String.raw`
import base64, hashlib, http.server, json, socket, socketserver, struct, threading, time

class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *a): pass
    def reply(self, data, kind='application/json', status=200):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)
    def body(self):
        if self.headers.get('Transfer-Encoding') == 'chunked':
            out = b''
            while True:
                n = int(self.rfile.readline().split(b';')[0], 16)
                out += self.rfile.read(n)
                self.rfile.readline()
                if n == 0: return out
        return self.rfile.read(int(self.headers.get('Content-Length') or 0))
    def do_GET(self):
        if self.path == '/stream':
            self.send_response(200)
            self.send_header('Transfer-Encoding', 'chunked')
            self.end_headers()
            for i in range(4):
                line = b'line %d\n' % i
                self.wfile.write(b'%x\r\n%s\r\n' % (len(line), line))
                self.wfile.flush()
                time.sleep(0.3)
            self.wfile.write(b'0\r\n\r\n')
        elif self.path == '/cut':
            self.send_response(200)
            self.send_header('Content-Length', '1000')
            self.end_headers()
            self.wfile.write(b'x' * 10)
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif self.path == '/big':
            self.send_response(200)
            self.send_header('Content-Length', str(16 << 20))
            self.end_headers()
            for i in range(16):
                self.wfile.write(bytes([i]) * (1 << 20))
        elif self.path == '/ws':
            key = self.headers['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
            self.send_response(101)
            self.send_header('Upgrade', 'websocket')
            self.send_header('Connection', 'Upgrade')
            self.send_header('Sec-WebSocket-Accept', base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            self.wfile.flush()
            self.websocket()
            self.close_connection = True
        else:
            self.do_POST()
    def websocket(self):
        while True:
            head = self.rfile.read(2)
            if len(head) < 2: return
            op, n = head[0] & 15, head[1] & 127
            if n == 126: n, = struct.unpack('>H', self.rfile.read(2))
            elif n == 127: n, = struct.unpack('>Q', self.rfile.read(8))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i & 3] for i, b in enumerate(self.rfile.read(n)))
            size = bytes([n]) if n < 126 else b'\x7e' + struct.pack('>H', n) if n < 65536 else b'\x7f' + struct.pack('>Q', n)
            self.wfile.write(bytes([0x80 | op]) + size + data)
            self.wfile.flush()
            if op == 8: return
    def do_POST(self):
        b = self.body()
        self.reply(json.dumps({'method': self.command, 'path': self.path, 'headers': dict(self.headers.items()),
                               'sha256': hashlib.sha256(b).hexdigest(), 'length': len(b)}).encode())
    do_PUT = do_DELETE = do_PATCH = do_HEAD = do_POST

class S(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    def server_bind(self):
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks for the name of the host

def speaks_first():
    s = socket.create_server(('127.0.0.1', 3001))
    while True:
        c, _ = s.accept()
        c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly')
        c.close()
threading.Thread(target=speaks_first, daemon=True).start()
S(('127.0.0.1', 3000), H).serve_forever()
`

describe('traffic', () => {
  let sandbox
  before(async () => {
    sandbox = await Sandbox.create(template, { timeoutMs: 600_000 })
    const script = Buffer.from(SERVER).toString('base64')
    await sandbox.commands.run(`echo ${script} | base64 -d > server.py; exec python3 server.py`, { background: true, timeoutMs: 0 })
    await until(async () => (await port(sandbox, 3000, 'GET', '/')).status === 200, { timeoutMs: 60_000 })
  })
  after(() => sandbox?.kill())

  test('fields of a request and of its answer', async () => {
    const res = await port(sandbox, 3000, 'GET', '/a%2Fb/../c?x=%20y&z', {
      headers: { Cookie: 'a=b', 'X-Own': 'mine', 'X-API-KEY': process.env.E2B_API_KEY, Authorization: `Bearer ${process.env.E2B_API_KEY}`, Connection: 'keep-alive, X-Hop', 'X-Hop': '1', TE: 'trailers' },
    })
    assert.equal(res.status, 200)
    const h = Object.fromEntries(Object.entries(res.json.headers).map(([k, v]) => [k.toLowerCase(), v]))
    assert.equal(res.json.path, '/a%2Fb/../c?x=%20y&z')
    assert.equal(h.cookie, 'a=b')
    assert.equal(h['x-own'], 'mine')
    assert.equal(h.host, listener.host)
    assert.equal(h['x-forwarded-host'], listener.host)
    assert.equal(h['x-forwarded-proto'], 'http')
    for (const gone of ['x-api-key', 'authorization', 'x-hop', 'te']) assert.equal(h[gone], undefined, gone)
    const basic = await port(sandbox, 3000, 'GET', '/', { headers: { Authorization: 'Basic dXNlcjo=' } })
    assert.equal(basic.json.headers.Authorization, 'Basic dXNlcjo=')
  })

  test('methods and bodies', async () => {
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) {
      const body = randomBytes(method === 'POST' ? 2_000_000 : 3000)
      const want = createHash('sha256').update(body).digest('hex')
      const sized = await port(sandbox, 3000, method, '/', { headers: { 'Content-Length': body.length }, body })
      assert.equal(sized.json.sha256, want, method)
      const chunked = await port(sandbox, 3000, method, '/', { headers: { 'Transfer-Encoding': 'chunked' }, body })
      assert.equal(chunked.json.sha256, want, method)
    }
    const head = await port(sandbox, 3000, 'HEAD', '/')
    assert.equal(head.status, 200)
    assert.ok(Number(head.headers['content-length']) > 0)
    assert.equal(head.bytes.length, 0)
  })

  test('expect: 100-continue', async () => {
    const answer = await new Promise((resolve, reject) => {
      const req = http.request({ host: listener.hostname, port: listener.port, method: 'POST', path: '/', agent: false, headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000', Expect: '100-continue', 'Content-Length': 5 } }, (res) => {
        let text = ''
        res.on('data', (d) => { text += d })
        res.on('end', () => resolve(JSON.parse(text)))
      })
      req.on('continue', () => req.end('hello'))
      req.on('error', reject)
      req.flushHeaders()
    })
    assert.equal(answer.length, 5)
  })

  test('an answer is passed on as it comes', async () => {
    const times = []
    await new Promise((resolve, reject) => {
      http.get({ host: listener.hostname, port: listener.port, path: '/stream', agent: false, headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000' } }, (res) => {
        res.on('data', () => times.push(Date.now()))
        res.on('end', resolve)
        res.on('error', reject)
      }).on('error', reject)
    })
    assert.ok(times.length > 1)
    assert.ok(times.at(-1) - times[0] > 500)
  })

  test('a big answer, slowly read', async () => {
    const hash = createHash('sha256')
    let n = 0
    await new Promise((resolve, reject) => {
      http.get({ host: listener.hostname, port: listener.port, path: '/big', agent: false, headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000' } }, (res) => {
        res.on('data', (d) => {
          n += d.length
          hash.update(d)
          if (n < 2 << 20) {
            res.pause()
            setTimeout(() => res.resume(), 20)
          }
        })
        res.on('end', resolve)
        res.on('error', reject)
      }).on('error', reject)
    })
    const want = createHash('sha256')
    for (let i = 0; i < 16; i++) want.update(Buffer.alloc(1 << 20, i))
    assert.equal(n, 16 << 20)
    assert.equal(hash.digest('hex'), want.digest('hex'))
  })

  test('half an answer is an error', async () => {
    await assert.rejects(port(sandbox, 3000, 'GET', '/cut'))
    assert.equal((await port(sandbox, 3000, 'GET', '/')).status, 200)
  })

  test('a server that speaks first', async () => {
    const res = await port(sandbox, 3001, 'GET', '/')
    assert.equal(res.text, 'early')
  })

  test('websocket', async () => {
    const messages = [Buffer.from('hello'), randomBytes(200), randomBytes(70_000), Buffer.alloc(0)]
    const frame = (op, data) => {
      const mask = randomBytes(4)
      const size = data.length < 126 ? Buffer.from([0x80 | data.length])
        : data.length < 65536 ? Buffer.from([0x80 | 126, data.length >> 8, data.length & 255])
          : Buffer.concat([Buffer.from([0x80 | 127, 0, 0, 0, 0]), Buffer.from([data.length >>> 24, (data.length >> 16) & 255, (data.length >> 8) & 255, data.length & 255])])
      return Buffer.concat([Buffer.from([0x80 | op]), size, mask, Buffer.from(data.map((b, i) => b ^ mask[i & 3]))])
    }
    const got = await new Promise((resolve, reject) => {
      const req = http.request({ host: listener.hostname, port: listener.port, path: '/ws', agent: false, headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000', Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13', 'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==' } })
      req.on('error', reject)
      req.on('response', (res) => reject(new Error(`status ${res.statusCode}`)))
      req.on('upgrade', (res, socket, first) => {
        assert.equal(res.headers['sec-websocket-accept'], 's3pPLMBiTxaQ9kYGzzhZRbK+xOo=')
        const chunks = [first]
        socket.on('data', (d) => chunks.push(d))
        socket.on('error', reject)
        socket.on('close', () => resolve(Buffer.concat(chunks)))
        for (const m of messages) socket.write(frame(2, m))
        socket.write(frame(8, Buffer.from([3, 232])))
      })
      req.end()
    })
    let at = 0
    const received = []
    while (at < got.length) {
      let n = got[at + 1] & 127
      const op = got[at] & 15
      at += 2
      if (n === 126) { n = got.readUInt16BE(at); at += 2 } else if (n === 127) { n = Number(got.readBigUInt64BE(at)); at += 8 }
      received.push([op, got.subarray(at, at + n)])
      at += n
    }
    assert.deepEqual(received.map((r) => r[0]), [2, 2, 2, 2, 8])
    messages.forEach((m, i) => assert.ok(received[i][1].equals(m)))
    assert.equal(received[4][1].readUInt16BE(0), 1000, 'the close code')
  })

  test('many connections at once', async () => {
    const all = await Promise.all(Array.from({ length: 40 }, (_, i) => port(sandbox, 3000, 'GET', `/${i}`)))
    assert.deepEqual(all.map((r) => r.json.path), Array.from({ length: 40 }, (_, i) => `/${i}`))
  })

  test('a closed port, no sandbox, half a route', async () => {
    const closed = await port(sandbox, 3999, 'GET', '/')
    assert.equal(closed.status, 502)
    assert.deepEqual(closed.json, { sandboxId: sandbox.sandboxId, message: 'The sandbox is running but port is not open', port: 3999, code: 502 })
    const none = await port(MISSING, 3000, 'GET', '/')
    assert.equal(none.status, 502)
    assert.deepEqual(none.json, { sandboxId: MISSING, message: 'The sandbox was not found', code: 502 })
    for (const headers of [{ 'E2b-Sandbox-Id': sandbox.sandboxId }, { 'E2b-Sandbox-Port': '80' }, { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '0' }, { 'E2b-Sandbox-Id': '../x', 'E2b-Sandbox-Port': '80' }]) {
      const res = await request('GET', '/', { headers })
      assert.equal(res.status, 400, JSON.stringify(headers))
      assert.equal(res.json.code, 400)
    }
  })

  test('the agent: its token, and nothing but its public paths', async () => {
    const token = { 'X-Access-Token': sandbox.envdAccessToken }
    assert.equal((await port(sandbox, 49983, 'GET', '/health')).status, 204)
    const list = { headers: { 'Content-Type': 'application/json', 'Connect-Protocol-Version': '1' }, body: '{}' }
    assert.equal((await port(sandbox, 49983, 'POST', '/process.Process/List', list)).status, 401)
    assert.equal((await port(sandbox, 49983, 'POST', '/process.Process/List', { ...list, headers: { ...list.headers, 'X-Access-Token': 'wrong' } })).status, 401)
    assert.equal((await port(sandbox, 49983, 'POST', '/process.Process/List', { ...list, headers: { ...list.headers, ...token } })).status, 200)
    for (const path of ['/init', '/control/init', '/control/stop', '/cspace/v1/processes', '/%63space/v1/processes', '//cspace/v1/processes', '/files/../cspace/v1/processes', '/health/../control/stats', '/freeze', '/']) {
      const res = await port(sandbox, 49983, 'POST', path, { headers: { ...token, 'Content-Type': 'application/json' }, body: '{}' })
      assert.equal(res.status, 404, path)
      assert.equal(res.json.code, 404, path)
    }
    assert.equal(await sandbox.isRunning(), true)
  })

  test('an upgrade of the agent is not passed on', async () => {
    const reply = await new Promise((resolve, reject) => {
      const s = net.connect(Number(listener.port), listener.hostname, () => {
        s.write(`GET /cspace/v1/processes/x/attach HTTP/1.1\r\nHost: ${listener.host}\r\nE2b-Sandbox-Id: ${sandbox.sandboxId}\r\nE2b-Sandbox-Port: 49983\r\nConnection: Upgrade\r\nUpgrade: cspace-attach\r\n\r\n`)
      })
      s.on('data', (d) => { resolve(d.toString()); s.destroy() })
      s.on('error', reject)
    })
    assert.match(reply, /^HTTP\/1\.1 404 /)
  })

  test('by host name', async (t) => {
    const { json } = await api('GET', `/sandboxes/${sandbox.sandboxId}`)
    if (!json.domain) return t.skip('no domain is set in cspace.conf')
    const get = (name, headers = {}) => request('GET', '/x', { headers: { Host: name, ...headers } })
    const found = await get(`3000-${sandbox.sandboxId}.${json.domain}`)
    assert.equal(found.json.path, '/x')
    assert.equal(found.json.headers.Host, `3000-${sandbox.sandboxId}.${json.domain}`)
    // The name decides, whatever fields say.
    assert.equal((await get(`3000-${sandbox.sandboxId}.${json.domain}`, { 'E2b-Sandbox-Id': MISSING, 'E2b-Sandbox-Port': '80' })).status, 200)
    assert.equal((await get(`3000-${MISSING}.${json.domain}`)).status, 502)
    assert.equal((await get(`${sandbox.sandboxId}-3000.${json.domain}`)).status, 400)
    assert.equal((await get(`3000-${sandbox.sandboxId}.x.${json.domain}`)).status, 400)
  })

  test('a sandbox without public traffic', async () => {
    const closed = await Sandbox.create(template, { network: { allowPublicTraffic: false }, timeoutMs: 60_000 })
    try {
      assert.ok(closed.trafficAccessToken)
      assert.equal((await port(closed, 3000, 'GET', '/')).status, 403)
      assert.equal((await port(closed, 3000, 'GET', '/', { headers: { 'e2b-traffic-access-token': 'wrong' } })).status, 403)
      const open = await port(closed, 3000, 'GET', '/', { headers: { 'e2b-traffic-access-token': closed.trafficAccessToken } })
      assert.equal(open.status, 502, 'let through to a closed port')
      assert.equal((await closed.commands.run('echo agent')).stdout, 'agent\n')
      const detail = await api('GET', `/sandboxes/${closed.sandboxId}`)
      assert.equal(detail.json.network.allowPublicTraffic, false)
    } finally {
      await closed.kill()
    }
  })
})
