// SPDX-License-Identifier: Apache-2.0

// Forks and snapshots: copies that go on where a sandbox is.

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { template, until } from './helper.mjs'
import { Sandbox, SandboxNotFoundError } from 'e2b'

const MISSING = 'aaaaaaaaaaaaaaaaaaaaaaaaaa'

// A process that counts, and what it has counted to.
async function counting() {
  const sandbox = await Sandbox.create(template, { timeoutMs: 300_000, envs: { GREETING: 'hello' }, metadata: { purpose: 'e2e' } })
  await sandbox.files.write('/tmp/mark', 'kept')
  await sandbox.commands.run('i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.1; done', { background: true })
  await until(async () => (await counted(sandbox)) > 3)
  return sandbox
}

const counted = async (sandbox) => Number((await sandbox.commands.run('cat /tmp/count 2>/dev/null || echo 0')).stdout)

async function goesOn(sandbox, from) {
  const first = await until(async () => {
    const n = await counted(sandbox)
    return n >= from && n
  })
  await until(async () => (await counted(sandbox)) > first)
  assert.equal(await sandbox.files.read('/tmp/mark'), 'kept')
}

describe('fork', () => {
  test('copies go on, and so does the sandbox', async () => {
    const sandbox = await counting()
    let forks = []
    try {
      const from = await counted(sandbox)
      forks = await sandbox.fork({ count: 2, timeoutMs: 120_000 })
      assert.equal(forks.length, 2)
      for (const one of [sandbox, ...forks]) {
        assert.ok(one instanceof Sandbox)
        await goesOn(one, from)
      }
      const names = await Promise.all(forks.map(async (f) => (await f.commands.run('hostname; echo $GREETING')).stdout))
      assert.deepEqual(names, forks.map((f) => `${f.sandboxId}\nhello\n`))
      const info = await forks[0].getInfo()
      assert.equal(info.state, 'running')
      assert.deepEqual(info.metadata, { purpose: 'e2e' })
      await forks[0].files.write('/tmp/mark', 'other')
      assert.equal(await sandbox.files.read('/tmp/mark'), 'kept')
      assert.equal(await forks[1].files.read('/tmp/mark'), 'kept')
    } finally {
      for (const one of [sandbox, ...forks]) await one.kill()
    }
    await assert.rejects(Sandbox.fork(MISSING), SandboxNotFoundError)
  })
})

describe('snapshot', () => {
  test('outlives its sandbox', async () => {
    const sandbox = await counting()
    const made = []
    let snapshot
    try {
      const from = await counted(sandbox)
      snapshot = await sandbox.createSnapshot({ name: 'e2e-point' })
      assert.deepEqual(snapshot.names, ['e2e-point'])
      await goesOn(sandbox, from)
      assert.deepEqual(await Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId }).nextItems(), [snapshot])
      await sandbox.kill()
      for (const name of [snapshot.snapshotId, 'e2e-point']) {
        const one = await Sandbox.create(name, { timeoutMs: 120_000, envs: { OTHER: 'too' } })
        made.push(one)
        await goesOn(one, from)
        assert.equal((await one.commands.run('echo $GREETING $OTHER')).stdout, 'hello too\n')
      }
      assert.deepEqual(await Sandbox.listSnapshots({ name: 'e2e-point' }).nextItems(), [snapshot])
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
      await goesOn(made[0], from)
      await assert.rejects(Sandbox.create(snapshot.snapshotId), /404: /)
      assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
    } finally {
      for (const one of [sandbox, ...made]) await one.kill()
      if (snapshot) await Sandbox.deleteSnapshot(snapshot.snapshotId)
    }
    await assert.rejects(Sandbox.createSnapshot(MISSING), SandboxNotFoundError)
  })
})
