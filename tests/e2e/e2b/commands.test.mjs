// SPDX-License-Identifier: Apache-2.0

// Commands: output, exit codes, input, background, limits, many at a time.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { port, sleep, template, until } from './helper.mjs'
import { CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } from 'e2b'

describe('commands', () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create(template, { timeoutMs: 600_000, envs: { FROM_SANDBOX: 'yes' } }) })
  after(() => sandbox?.kill())

  async function failure(promise) {
    try {
      await promise
    } catch (error) {
      return error
    }
    assert.fail('no error')
  }

  test('foreground', async () => {
    const r = await sandbox.commands.run('echo out; echo err >&2')
    assert.equal(r.exitCode, 0)
    assert.equal(r.stdout, 'out\n')
    assert.equal(r.stderr, 'err\n')
    assert.equal((await sandbox.commands.run("python3 -c 'print(6*7)'")).stdout, '42\n')
  })

  test('output is passed through as it is', async () => {
    assert.equal((await sandbox.commands.run("printf 'a\\n\\n\\nb\\n'")).stdout, 'a\n\n\nb\n')
    assert.equal((await sandbox.commands.run("printf 'žluťoučký 🐎'")).stdout, 'žluťoučký 🐎')
    assert.equal((await sandbox.commands.run('true')).stdout, '')
  })

  test('exit codes', async () => {
    for (const code of [1, 3, 42, 255]) {
      const error = await failure(sandbox.commands.run(`echo partial; exit ${code}`))
      assert.ok(error instanceof CommandExitError)
      assert.equal(error.exitCode, code)
      assert.equal(error.stdout, 'partial\n')
    }
    assert.equal((await failure(sandbox.commands.run('no-such-program-here'))).exitCode, 127)
    assert.equal((await failure(sandbox.commands.run('/etc/passwd'))).exitCode, 126)
  })

  test('killed by a signal is not an exit code', async () => {
    const error = await failure(sandbox.commands.run('exec sh -c "kill -9 \\$\\$"'))
    assert.equal(error.exitCode, -1)
    assert.equal(error.error, 'signal: killed')
  })

  test('streaming callbacks come while it runs', async () => {
    const seen = []
    const began = Date.now()
    const r = await sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.7; done; echo last >&2', {
      onStdout: (data) => seen.push([Date.now() - began, data]),
      onStderr: (data) => seen.push([Date.now() - began, data]),
    })
    assert.equal(r.stdout, '1\n2\n3\n')
    assert.deepEqual(seen.map((s) => s[1]), ['1\n', '2\n', '3\n', 'last\n'])
    assert.ok(seen[2][0] - seen[0][0] > 1000, 'the lines were not held back')
  })

  test('user, cwd, env', async () => {
    assert.equal((await sandbox.commands.run('id -un; pwd; echo $HOME')).stdout, 'user\n/home/user\n/home/user\n')
    assert.equal((await sandbox.commands.run('id -un; pwd; echo $HOME', { user: 'root' })).stdout, 'root\n/root\n/root\n')
    assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
    const r = await sandbox.commands.run('echo "$A|$FROM_SANDBOX"', { envs: { A: 'x "y" $z\n2' } })
    assert.equal(r.stdout, 'x "y" $z\n2|yes\n')
    assert.equal((await sandbox.commands.run('echo $FROM_SANDBOX', { envs: { FROM_SANDBOX: 'no' } })).stdout, 'no\n')
    assert.equal((await sandbox.commands.run('sudo id -u')).stdout, '0\n')
  })

  test('a missing directory and a missing user are said', async () => {
    const cwd = await failure(sandbox.commands.run('true', { cwd: '/no/such/dir' }))
    assert.ok(cwd instanceof InvalidArgumentError, `${cwd}`)
    assert.match(cwd.message, /cwd '\/no\/such\/dir' does not exist/)
    const user = await failure(sandbox.commands.run('true', { user: 'nobody-here' }))
    assert.match(user.message, /invalid username: 'nobody-here'/)
  })

  test('time limit', async () => {
    const began = Date.now()
    const error = await failure(sandbox.commands.run('echo early; sleep 30', { timeoutMs: 1000 }))
    assert.ok(error instanceof TimeoutError, `${error}`)
    assert.ok(Date.now() - began < 8000)
    const left = await until(async () => (await sandbox.commands.run('pgrep -cx sleep || true')).stdout.trim() === '0')
    assert.ok(left)
  })

  test('background, wait, kill', async () => {
    const cmd = await sandbox.commands.run('echo begin; sleep 1; echo end', { background: true })
    assert.ok(cmd.pid > 0)
    const r = await cmd.wait()
    assert.equal(r.stdout, 'begin\nend\n')

    const long = await sandbox.commands.run('sleep 300', { background: true })
    assert.ok((await sandbox.commands.list()).some((p) => p.pid === long.pid))
    assert.equal(await long.kill(), true)
    const error = await failure(long.wait())
    assert.equal(error.exitCode, -1)
    assert.equal(error.error, 'signal: killed')
    assert.equal(await sandbox.commands.kill(long.pid), false)
  })

  test('kill takes the whole tree', async () => {
    const cmd = await sandbox.commands.run('yes >/dev/null & yes >/dev/null & wait', { background: true })
    await until(async () => (await sandbox.commands.run('pgrep -cx yes || true')).stdout.trim() === '2')
    await cmd.kill()
    await until(async () => (await sandbox.commands.run('pgrep -cx yes || true')).stdout.trim() === '0')
    await cmd.wait().catch(() => {})
  })

  test('list tells what was started', async () => {
    const cmd = await sandbox.commands.run('sleep 60', { background: true, envs: { SOME: 'thing' }, cwd: '/tmp' })
    const p = (await sandbox.commands.list()).find((x) => x.pid === cmd.pid)
    assert.equal(p.cmd, '/bin/bash')
    assert.deepEqual(p.args, ['-l', '-c', 'sleep 60'])
    assert.equal(p.envs.SOME, 'thing')
    assert.equal(p.cwd, '/tmp')
    await cmd.kill()
    await cmd.wait().catch(() => {})
  })

  test('stdin', async () => {
    const cmd = await sandbox.commands.run('while read -r line; do echo "got $line"; done; echo over', { background: true, stdin: true })
    await sandbox.commands.sendStdin(cmd.pid, 'one\ntwo\n')
    await until(() => cmd.stdout.includes('got two'))
    await cmd.sendStdin('three\n')
    await cmd.closeStdin()
    assert.equal((await cmd.wait()).stdout, 'got one\ngot two\ngot three\nover\n')
  })

  test('much stdin', async () => {
    const cmd = await sandbox.commands.run('sha256sum', { background: true, stdin: true })
    const piece = 'x'.repeat(1 << 20)
    const hash = createHash('sha256')
    for (let i = 0; i < 8; i++) {
      hash.update(piece)
      await cmd.sendStdin(piece)
    }
    await cmd.closeStdin()
    assert.equal((await cmd.wait()).stdout.split(' ')[0], hash.digest('hex'))
  })

  test('without stdin a reader sees its end', async () => {
    assert.equal((await sandbox.commands.run('cat; echo done')).stdout, 'done\n')
  })

  test('big output, whole', async () => {
    const size = 16 << 20
    const hash = createHash('sha256')
    let n = 0
    const r = await sandbox.commands.run(`head -c ${size} /dev/zero | tr '\\0' 'z'`, {
      onStdout: (data) => { n += data.length; hash.update(data) },
      timeoutMs: 180_000,
    })
    assert.equal(n, size)
    assert.equal(r.stdout.length, size)
    assert.equal(hash.digest('hex'), createHash('sha256').update('z'.repeat(size)).digest('hex'))
  })

  test('disconnect does not kill, connect finds it again', async () => {
    const cmd = await sandbox.commands.run('for i in $(seq 100); do echo tick $i; sleep 0.2; done', { background: true })
    await until(() => cmd.stdout.includes('tick 1'))
    await cmd.disconnect()
    const again = await sandbox.commands.connect(cmd.pid)
    await until(() => again.stdout.includes('tick'))
    await again.kill()
    await again.wait().catch(() => {})
    await assert.rejects(sandbox.commands.connect(999_999), NotFoundError)
  })

  test('connect shortly after the end gives the end', async () => {
    const cmd = await sandbox.commands.run('sleep 0.3; exit 5', { background: true })
    await cmd.wait().catch(() => {})
    const again = await sandbox.commands.connect(cmd.pid)
    assert.equal((await failure(again.wait())).exitCode, 5)
  })

  test('a server in the background of a finished command goes on', async () => {
    const began = Date.now()
    const r = await sandbox.commands.run('python3 -m http.server 8123 >/dev/null 2>&1 & echo up')
    assert.equal(r.stdout, 'up\n')
    assert.ok(Date.now() - began < 20_000)
    const res = await until(async () => {
      const got = await port(sandbox, 8123, 'GET', '/')
      return got.status === 200 && got
    }, { timeoutMs: 60_000 })
    assert.match(res.text, /Directory listing/)
  })

  test('many at once', async () => {
    const n = 20
    const results = await Promise.all(Array.from({ length: n }, (_, i) => sandbox.commands.run(`echo ${i}; exit 0`, { timeoutMs: 180_000 })))
    assert.deepEqual(results.map((r) => r.stdout), Array.from({ length: n }, (_, i) => `${i}\n`))
  })

  test('an aborted start harms nobody', async () => {
    for (let i = 0; i < 10; i++) {
      const running = sandbox.commands.run('sleep 0.3', { requestTimeoutMs: 1 + i * 3 }).catch((error) => error)
      await running
    }
    assert.equal((await sandbox.commands.run('echo fine')).stdout, 'fine\n')
  })

  test('a large argument', async () => {
    const text = 'a'.repeat(100_000)
    assert.equal((await sandbox.commands.run(`printf %s '${text}' | wc -c`)).stdout.trim(), '100000')
  })
})
