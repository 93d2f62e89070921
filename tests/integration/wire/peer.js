// SPDX-License-Identifier: Apache-2.0
// What Node's HTTP parser makes of the inputs: the other opinion for test_http1_differential.py.
// Lines of hex on stdin, one line of JSON for each, as http1_dump prints them.
'use strict';
const http = require('http');
const net = require('net');
const hex = s => Buffer.from(s, 'latin1').toString('hex');

let current = null;
const server = http.createServer({ keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0, requireHostHeader: true });
function begin(req) {
  const headers = [];
  for (let i = 0; i < req.rawHeaders.length; i += 2) headers.push([req.rawHeaders[i], hex(req.rawHeaders[i + 1])]);
  return { method: req.method, target: req.url, headers };
}
server.on('request', (req, res) => {
  const chunks = [];
  const mine = current;
  const m = begin(req);
  req.on('data', d => chunks.push(d));
  req.on('end', () => {
    m.body = Buffer.concat(chunks).toString('hex');
    mine.messages.push(m);
    res.end();
  });
  req.on('error', () => {});
});
server.on('checkContinue', (req, res) => server.emit('request', req, res));
server.on('checkExpectation', (req, res) => server.emit('request', req, res));
for (const name of ['upgrade', 'connect']) {
  server.on(name, (req, socket) => {
    current.messages.push({ ...begin(req), body: '' });
    socket.end();
  });
}
server.on('clientError', (e, socket) => {
  current.end = `error: ${e.code}`;
  socket.destroy();
});

function one(raw) {
  return new Promise(resolve => {
    current = { messages: [], end: 'ok' };
    const mine = current;
    const c = net.connect(server.address().port, '127.0.0.1', () => c.end(raw));
    c.on('data', d => { if (d.toString('latin1').includes('HTTP/1.1 400')) mine.end = 'error: answered 400'; });
    c.on('error', () => {});
    // The server's side may still deliver what it parsed.
    c.on('close', () => setImmediate(() => resolve(mine)));
  });
}

server.listen(0, '127.0.0.1', async () => {
  let text = '';
  for await (const d of process.stdin) text += d;
  for (const line of text.split('\n').filter(l => l)) console.log(JSON.stringify(await one(Buffer.from(line, 'hex'))));
  process.exit(0);
});
