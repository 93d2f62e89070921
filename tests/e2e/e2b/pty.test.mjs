// SPDX-License-Identifier: Apache-2.0

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { template, until } from './helper.mjs'
import { Sandbox } from 'e2b'

describe('pty', () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create(template, { timeoutMs: 300_000 }) })
  after(() => sandbox?.kill())

  async function terminal(opts = {}) {
    const t = { text: '' }
    const decoder = new TextDecoder()
    t.handle = await sandbox.pty.create({
      cols: 80,
      rows: 24,
      timeoutMs: 0,
      onData: (data) => { t.text += decoder.decode(data, { stream: true }) },
      ...opts,
    })
    t.type = (text) => sandbox.pty.sendInput(t.handle.pid, new TextEncoder().encode(text))
    // The typed line is echoed, so what is waited for is never written as it will be shown.
    t.shows = (re) => until(() => re.test(t.text))
    return t
  }

  test('a shell with a terminal', async () => {
    const t = await terminal({ envs: { ABC: 'from-env' }, cwd: '/tmp' })
    await t.type('echo "$TERM:$ABC:$PWD:$((20+3))"; test -t 0 && echo is-a-"tty"\n')
    await t.shows(/xterm-256color:from-env:\/tmp:23/)
    await t.shows(/is-a-tty/)
    await t.type('stty size\n')
    await t.shows(/24 80/)
    await t.type('exit 3\n')
    const error = await t.handle.wait().then(() => undefined, (e) => e)
    assert.equal(error?.exitCode, 3)
  })

  test('resize reaches the right terminal', async () => {
    const one = await terminal()
    const two = await terminal({ cols: 100, rows: 30 })
    await sandbox.pty.resize(one.handle.pid, { cols: 133, rows: 41 })
    await one.type('stty size\n')
    await two.type('stty size\n')
    await one.shows(/41 133/)
    await two.shows(/30 100/)
    for (const t of [one, two]) {
      assert.equal(await sandbox.pty.kill(t.handle.pid), true)
      await t.handle.wait().catch(() => {})
      assert.equal(await sandbox.pty.kill(t.handle.pid), false)
    }
  })

  test('Ctrl-C interrupts', async () => {
    const t = await terminal()
    await t.type('sleep 500; echo code=$?\n')
    await until(async () => (await sandbox.commands.run('pgrep -x sleep || true')).stdout !== '')
    await t.type('\x03')
    await t.type('echo still-$((1+1))\n')
    await t.shows(/still-2/)
    await sandbox.pty.kill(t.handle.pid)
    await t.handle.wait().catch(() => {})
  })

  test('connect again', async () => {
    const t = await terminal()
    await t.type('export KEPT=kept\n')
    await t.handle.disconnect()
    let text = ''
    const again = await sandbox.pty.connect(t.handle.pid, { onData: (d) => { text += new TextDecoder().decode(d) }, timeoutMs: 0 })
    await t.type('echo is-$KEPT\n')
    await until(() => /is-kept/.test(text))
    await again.kill()
    await again.wait().catch(() => {})
  })
})
