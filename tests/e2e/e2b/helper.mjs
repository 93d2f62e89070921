// SPDX-License-Identifier: Apache-2.0

// Where the tests find the server, and a key for it. Without E2B_API_KEY one is made over the local
// socket and revoked again at the end. All else is left to the SDK, which reads its own variables.

import http from 'node:http'
import { after } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

const url = process.env.E2B_API_URL ?? 'http://127.0.0.1:7070'
const socketPath = process.env.CSPACE_API_SOCKET ?? '/run/cspace/api.sock'

process.env.E2B_API_URL = url
process.env.E2B_SANDBOX_URL ??= url
delete process.env.E2B_DEBUG

export const listener = new URL(url)
export const template = process.env.E2B_TESTS_TEMPLATE ?? 'base'

// One request of our own, past the SDK. Resolves when the answer is complete.
export function request(method, path, { headers = {}, body, local = false, host = listener } = {}) {
  return new Promise((resolve, reject) => {
    const where = local ? { socketPath } : { host: host.hostname, port: host.port }
    const req = http.request({ ...where, method, path, headers, agent: false }, (res) => {
      const chunks = []
      res.on('data', (c) => chunks.push(c))
      res.on('error', reject)
      res.on('end', () => {
        const bytes = Buffer.concat(chunks)
        const text = bytes.toString()
        let json
        try {
          json = JSON.parse(text)
        } catch {
          json = undefined
        }
        resolve({ status: res.statusCode, headers: res.headers, bytes, text, json })
      })
    })
    req.on('error', reject)
    req.end(body)
  })
}

// The control plane with a key; body is JSON.
export function api(method, path, body, headers = {}) {
  return request(method, path, {
    headers: {
      'X-API-KEY': process.env.E2B_API_KEY,
      ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
}

// A port of a sandbox, by the routing fields.
export function port(sandbox, number, method, path, { headers = {}, body } = {}) {
  return request(method, path, {
    headers: { 'E2b-Sandbox-Id': sandbox.sandboxId ?? sandbox, 'E2b-Sandbox-Port': String(number), ...headers },
    body,
  })
}

async function makeKey() {
  const res = await request('POST', '/v1/keys', {
    local: true,
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ name: 'e2b client tests' }),
  })
  if (res.status !== 201) throw new Error(`cannot make an API key: ${res.status} ${res.text}`)
  after(() => request('DELETE', `/v1/keys/${res.json.id}`, { local: true }))
  return res.json.key
}

process.env.E2B_API_KEY ||= await makeKey()

// Asks until `ask` gives something true; its last value or error otherwise.
export async function until(ask, { timeoutMs = 15000, everyMs = 100 } = {}) {
  const deadline = Date.now() + timeoutMs
  for (;;) {
    const value = await ask()
    if (value) return value
    if (Date.now() > deadline) throw new Error(`not within ${timeoutMs} ms: ${ask}`)
    await sleep(everyMs)
  }
}

export { sleep }
