// SPDX-License-Identifier: Apache-2.0

// A sandbox from create to kill, as the SDK sees it.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { api, port, request, sleep, template, until } from './helper.mjs'
import { AuthenticationError, NotFoundError, Sandbox } from 'e2b'

const MISSING = 'aaaaaaaaaaaaaaaaaaaaaaaaaa'

async function collect(paginator) {
  const pages = []
  while (paginator.hasNext) pages.push(await paginator.nextItems())
  return pages
}

describe('sandbox', () => {
  test('create, info, run, kill', async () => {
    const before = Date.now()
    const sandbox = await Sandbox.create(template, { metadata: { purpose: 'e2e' }, envs: { GREETING: 'hello' }, timeoutMs: 60_000 })
    try {
      assert.match(sandbox.sandboxId, /^[a-z0-9]+$/)
      assert.equal(await sandbox.isRunning(), true)

      const info = await sandbox.getInfo()
      assert.equal(info.sandboxId, sandbox.sandboxId)
      assert.equal(info.name, template)
      assert.equal(info.state, 'running')
      assert.deepEqual(info.metadata, { purpose: 'e2e' })
      assert.ok(info.cpuCount >= 1)
      assert.ok(info.memoryMB >= 128)
      assert.ok(info.startedAt.getTime() >= before - 1000 && info.startedAt.getTime() <= Date.now() + 1000)
      assert.ok(Math.abs(info.endAt.getTime() - info.startedAt.getTime() - 60_000) < 5000)
      assert.deepEqual(info.lifecycle, { onTimeout: 'kill', autoResume: false })

      const out = await sandbox.commands.run('echo "$GREETING $E2B_SANDBOX $E2B_SANDBOX_ID"')
      assert.equal(out.stdout, `hello true ${sandbox.sandboxId}\n`)
    } finally {
      assert.equal(await sandbox.kill(), true)
    }
    assert.equal(await sandbox.isRunning(), false)
    assert.equal(await sandbox.kill(), false)
    await assert.rejects(sandbox.getInfo(), NotFoundError)
    const health = await port(sandbox, 49983, 'GET', '/health')
    assert.equal(health.status, 502)
    assert.deepEqual(health.json, { sandboxId: sandbox.sandboxId, message: 'The sandbox was not found', code: 502 })
  })

  test('a template by its exact id', async () => {
    const first = await Sandbox.create(template, { timeoutMs: 30_000 })
    try {
      const { templateId } = await first.getInfo()
      const second = await Sandbox.create(templateId, { timeoutMs: 30_000 })
      try {
        assert.equal((await second.getInfo()).templateId, templateId)
      } finally {
        await second.kill()
      }
    } finally {
      await first.kill()
    }
  })

  test('list: metadata, state, paging, order', async () => {
    const mark = randomUUID()
    const odd = { mark, 'k 1': 'v&2=3 %41', 'schlüssel': '☃' }
    const made = []
    try {
      for (let i = 0; i < 3; i++) made.push(await Sandbox.create(template, { metadata: { ...odd, n: String(i) }, timeoutMs: 120_000 }))
      const ids = made.map((s) => s.sandboxId)

      const pages = await collect(Sandbox.list({ query: { metadata: odd }, limit: 2 }))
      assert.deepEqual(pages.map((p) => p.length), [2, 1])
      assert.deepEqual(pages.flat().map((s) => s.sandboxId), ids.toReversed(), 'newest first')
      assert.deepEqual(pages[0][0].metadata, { ...odd, n: '2' })

      const one = await collect(Sandbox.list({ query: { metadata: { mark, n: '1' }, state: ['running'] } }))
      assert.deepEqual(one.flat().map((s) => s.sandboxId), [ids[1]])
      assert.deepEqual((await collect(Sandbox.list({ query: { metadata: { mark, n: '7' } } }))).flat(), [])
      assert.deepEqual((await collect(Sandbox.list({ query: { metadata: { mark }, state: ['paused'] } }))).flat(), [])

      const filter = `metadata=${encodeURIComponent(encodeURIComponent(`mark=${mark}`))}`
      const asc = await api('GET', `/v2/sandboxes?order=asc&${filter}`)
      assert.deepEqual(asc.json.map((s) => s.sandboxID), ids)
      assert.equal(asc.headers['x-next-token'], undefined)
      assert.ok(Number(asc.headers['x-total-running']) >= 3)
      const v1 = await api('GET', `/sandboxes?${filter}`)
      assert.equal(v1.json.length, 3)

      const named = await api('GET', `/v2/sandboxes?template=${template}&${filter}`)
      assert.equal(named.json.length, 3)
      const other = await api('GET', `/v2/sandboxes?template=nosuch&${filter}`)
      assert.deepEqual(other.json, [])
      const later = await api('GET', `/v2/sandboxes?startedAfter=${encodeURIComponent(new Date(Date.now() + 60_000).toISOString())}&${filter}`)
      assert.deepEqual(later.json, [])
    } finally {
      await Promise.all(made.map((s) => s.kill()))
    }
  })

  test('list refuses what it does not understand', async () => {
    for (const query of ['limit=0', 'limit=101', 'limit=x', 'state=sleeping', 'order=up', 'startedAfter=yesterday', 'nextToken=%00', 'nextToken=zzz', 'metadata=a']) {
      const res = await api('GET', `/v2/sandboxes?${query}`)
      assert.equal(res.status, 400, query)
      assert.equal(res.json.code, 400, query)
      assert.equal(typeof res.json.message, 'string', query)
    }
  })

  test('the time limit ends it, within a second', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 60_000 })
    await sandbox.setTimeout(4000)
    const set = Date.now()
    await sleep(2500)
    assert.equal(await sandbox.isRunning(), true)
    // Asked of the control plane, which answers at once however busy the guest is.
    await until(async () => (await api('GET', `/sandboxes/${sandbox.sandboxId}`)).status === 404, { everyMs: 50 })
    const lived = Date.now() - set
    assert.ok(lived >= 3500 && lived < 5500, `${lived} ms`)
    assert.equal(await sandbox.isRunning(), false)
    await assert.rejects(sandbox.getInfo(), NotFoundError)
  })

  test('connect extends and never shortens', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 60_000 })
    try {
      const end = (await sandbox.getInfo()).endAt.getTime()
      const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
      assert.equal((await again.getInfo()).endAt.getTime(), end)
      await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 200_000 })
      assert.ok((await again.getInfo()).endAt.getTime() > end + 100_000)
      assert.equal((await again.commands.run('echo here')).stdout, 'here\n')
      await sandbox.setTimeout(30_000)
      assert.ok((await again.getInfo()).endAt.getTime() < end, 'setTimeout may shorten')

      // The routes and bodies of older clients.
      for (const [path, body] of [[`/sandboxes/${sandbox.sandboxId}/connect`, { timeout: 10 }], [`/v2/sandboxes/${sandbox.sandboxId}/connect`, undefined]]) {
        const res = await api('POST', path, body)
        assert.equal(res.status, 200, path)
        assert.equal(res.json.sandboxID, sandbox.sandboxId)
        assert.equal(res.json.envdAccessToken.length > 10, true)
      }
      assert.equal((await api('POST', `/sandboxes/${sandbox.sandboxId}/refreshes`, { duration: 60 })).status, 204)
      assert.equal((await api('POST', `/sandboxes/${sandbox.sandboxId}/resume`, { timeout: 60 })).json.code, 409)
    } finally {
      await sandbox.kill()
    }
  })

  test('an older client creates with v1', async () => {
    const res = await api('POST', '/sandboxes', { templateID: template, secure: true, timeout: 30, unknownMember: [1] })
    assert.equal(res.status, 201)
    assert.equal(res.json.clientID.length > 0, true)
    assert.match(res.json.envdVersion, /^\d+\.\d+\.\d+$/)
    const detail = await api('GET', `/sandboxes/${res.json.sandboxID}`)
    assert.equal(detail.json.state, 'running')
    assert.ok(detail.json.diskSizeMB > 0)
    assert.equal((await api('DELETE', `/sandboxes/${res.json.sandboxID}`)).status, 204)
    const gone = await api('DELETE', `/sandboxes/${res.json.sandboxID}`)
    assert.equal(gone.status, 404)
    assert.equal(gone.json.code, 404)
  })

  test('kill of a sandbox with a running command is an error there, not an end', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 60_000 })
    const running = await sandbox.commands.run('echo started; sleep 600', { background: true, timeoutMs: 0 })
    const outcome = running.wait().then((r) => ({ result: r }), (error) => ({ error }))
    await until(() => running.stdout.includes('started'))
    await sandbox.kill()
    const { result, error } = await outcome
    assert.equal(result, undefined)
    assert.equal(error.name, 'TimeoutError', `${error}`)
  })

  test('metrics', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 120_000 })
    try {
      const first = await sandbox.getMetrics()
      assert.ok(first.length >= 1)
      const m = first[0]
      assert.ok(m.cpuCount >= 1)
      assert.ok(m.cpuUsedPct >= 0)
      assert.ok(m.memTotal > 64 << 20 && m.memUsed > 0 && m.memUsed <= m.memTotal)
      assert.ok(m.diskTotal > 0 && m.diskUsed > 0 && m.diskUsed <= m.diskTotal)
      assert.ok(Math.abs(m.timestamp.getTime() - Date.now()) < 30_000)

      const more = await until(async () => {
        const list = await sandbox.getMetrics()
        return list.length >= 3 && list
      }, { timeoutMs: 30_000, everyMs: 500 })
      const times = more.map((x) => x.timestamp.getTime())
      assert.deepEqual(times, times.toSorted((a, b) => a - b))
      const start = new Date(Math.floor(times[1] / 1000) * 1000)
      const part = await sandbox.getMetrics({ start, end: start })
      assert.ok(part.length >= 1 && part.length < more.length)
      assert.deepEqual(await sandbox.getMetrics({ start: new Date(1000), end: new Date(2000) }), [])

      const all = await api('GET', `/sandboxes/metrics?sandbox_ids=${sandbox.sandboxId},${MISSING}`)
      assert.deepEqual(Object.keys(all.json.sandboxes), [sandbox.sandboxId])
    } finally {
      await sandbox.kill()
    }
  })

  test('logs are lines of JSON', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 60_000 })
    try {
      const res = await api('GET', `/sandboxes/${sandbox.sandboxId}/logs?start=0&limit=100`)
      assert.equal(res.status, 200)
      assert.ok(res.json.logs.length >= 1)
      for (const { timestamp, line } of res.json.logs) {
        assert.ok(!Number.isNaN(Date.parse(timestamp)))
        assert.ok(['debug', 'info', 'warn', 'error'].includes(JSON.parse(line).level))
        assert.equal(typeof JSON.parse(line).logger, 'string')
      }
      assert.equal(res.json.logEntries.length, res.json.logs.length)
      const v2 = await api('GET', `/v2/sandboxes/${sandbox.sandboxId}/logs?direction=backward&level=info`)
      assert.ok(v2.json.logs.length >= 1)
    } finally {
      await sandbox.kill()
    }
  })
})

describe('errors of the control plane', () => {
  test('a wrong key', async () => {
    await assert.rejects(Sandbox.create(template, { apiKey: `e2b_${'0'.repeat(40)}` }), AuthenticationError)
  })

  test('no such template, sandbox, path', async () => {
    await assert.rejects(Sandbox.create('no-such-template'), /404/)
    await assert.rejects(Sandbox.connect(MISSING), NotFoundError)
    await assert.rejects(Sandbox.getInfo(MISSING), NotFoundError)
    assert.equal(await Sandbox.kill(MISSING), false)
    await assert.rejects(Sandbox.setTimeout(MISSING, 1000), NotFoundError)
    for (const [method, path] of [['GET', '/sandboxes/x/metrics'], ['GET', '/sandboxes/x/logs'], ['GET', '/nothing/here'], ['GET', '/templates/aliases/nosuch']]) {
      const res = await api(method, path)
      assert.equal(res.status, 404, path)
      assert.equal(res.json.code, 404, path)
      assert.equal(typeof res.json.message, 'string')
    }
  })

  test('bad bodies', async () => {
    const bad = [
      undefined, {}, { templateID: 7 }, { templateID: '' }, { templateID: template, timeout: 0 },
      { templateID: template, timeout: -1 }, { templateID: template, timeout: 1e12 }, { templateID: template, timeout: 'soon' },
      { templateID: template, metadata: { a: 1 } }, { templateID: template, envVars: ['A=1'] }, { templateID: template, envVars: { 'A=B': '1' } },
    ]
    for (const body of bad) {
      const res = await api('POST', '/v2/sandboxes', body)
      assert.equal(res.status, 400, JSON.stringify(body))
      assert.equal(res.json.code, 400)
    }
    for (const text of ['{', '[]', '"x"', '{"templateID":"a","templateID":"b"}', '\0']) {
      const res = await request('POST', '/v2/sandboxes', { headers: { 'X-API-KEY': process.env.E2B_API_KEY }, body: text })
      assert.equal(res.status, 400, text)
      assert.equal(res.json.code, 400)
    }
  })

  test('what is not there yet says so', async () => {
    for (const [method, path] of [['GET', '/volumes'], ['POST', '/v3/templates'], ['GET', '/secrets'], ['GET', '/templates/x/tags']]) {
      const res = await api(method, path)
      assert.equal(res.json.code, 501, path)
    }
  })

  test('pause, and connect again', async () => {
    const sandbox = await Sandbox.create(template, { timeoutMs: 300_000, lifecycle: { onTimeout: 'pause' } })
    try {
      const background = await sandbox.commands.run('echo $$ > /tmp/pid; exec sleep 1000', { background: true })
      await sandbox.commands.run('until [ -s /tmp/pid ]; do sleep 0.05; done; echo kept > /tmp/file')
      await sandbox.pause()
      await background.disconnect().catch(() => {})
      assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused')
      const again = await Sandbox.connect(sandbox.sandboxId)
      const result = await again.commands.run('cat /tmp/file; kill -0 $(cat /tmp/pid) && echo alive')
      assert.equal(result.stdout, 'kept\nalive\n')
      assert.equal((await again.getInfo()).state, 'running')
    } finally {
      await sandbox.kill()
    }
  })

  test('templates and teams', async () => {
    const list = await api('GET', '/templates')
    const base = list.json.find((t) => t.names.includes(template))
    assert.ok(base)
    assert.equal(base.buildStatus, 'ready')
    const alias = await api('GET', `/templates/aliases/${template}`)
    assert.equal(alias.json.templateID, base.templateID)
    const teams = await api('GET', '/teams', undefined, { Authorization: `Bearer ${process.env.E2B_API_KEY}` })
    assert.equal(teams.json.length, 1)
    assert.equal(teams.json[0].isDefault, true)
  })
})
