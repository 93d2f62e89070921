// SPDX-License-Identifier: Apache-2.0

// Files: content of every kind and size, names, directories, upload, signed links, watching.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { port, request, sleep, template, until } from './helper.mjs'
import { FileNotFoundError, FileType, FilesystemEventType, InvalidArgumentError, NotFoundError, Sandbox } from 'e2b'

const sha = (data) => createHash('sha256').update(data).digest('hex')

describe('files', () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create(template, { timeoutMs: 900_000 }) })
  after(() => sandbox?.kill())

  const run = async (cmd, opts) => (await sandbox.commands.run(cmd, opts)).stdout

  test('text, written and read', async () => {
    const info = await sandbox.files.write('hello.txt', 'Hello, wörld\n')
    assert.equal(info.path, '/home/user/hello.txt')
    assert.equal(info.name, 'hello.txt')
    assert.equal(await sandbox.files.read('hello.txt'), 'Hello, wörld\n')
    assert.equal(await run('cat hello.txt; stat -c "%U %a" hello.txt'), 'Hello, wörld\nuser 644\n')
    await sandbox.files.write('hello.txt', 'short')
    assert.equal(await sandbox.files.read('hello.txt'), 'short')
  })

  test('an empty file', async () => {
    await sandbox.files.write('empty', '')
    assert.equal(await sandbox.files.read('empty'), '')
    assert.equal((await sandbox.files.read('empty', { format: 'bytes' })).length, 0)
    assert.equal((await sandbox.files.getInfo('empty')).size, 0)
  })

  test('every byte value, in every format', async () => {
    const data = Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, i) => i)), randomBytes(70_000)])
    await sandbox.files.write('bytes', data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
    assert.equal(sha(await sandbox.files.read('bytes', { format: 'bytes' })), sha(data))
    const blob = await sandbox.files.read('bytes', { format: 'blob' })
    assert.equal(sha(Buffer.from(await blob.arrayBuffer())), sha(data))
    const hash = createHash('sha256')
    for await (const chunk of await sandbox.files.read('bytes', { format: 'stream' })) hash.update(chunk)
    assert.equal(hash.digest('hex'), sha(data))
    assert.equal((await run('sha256sum bytes')).split(' ')[0], sha(data))
    await sandbox.files.write('blob', new Blob([data]))
    assert.equal((await run('sha256sum blob')).split(' ')[0], sha(data))
  })

  test('a stream, up', async () => {
    const piece = randomBytes(100_000)
    let left = 20
    const stream = new ReadableStream({
      pull(controller) {
        if (left-- > 0) controller.enqueue(new Uint8Array(piece))
        else controller.close()
      },
    })
    await sandbox.files.write('streamed', stream)
    assert.equal((await run('sha256sum streamed')).split(' ')[0], sha(Buffer.concat(Array(20).fill(piece))))
  })

  test('gzip both ways', async () => {
    const text = 'squeeze me '.repeat(20_000)
    await sandbox.files.write('zipped.txt', text, { gzip: true })
    assert.equal((await run('sha256sum zipped.txt')).split(' ')[0], sha(text))
    assert.equal(await sandbox.files.read('zipped.txt', { gzip: true }), text)

    const res = await port(sandbox, 49983, 'POST', '/files?path=/home/user/raw.gz.txt&username=user', {
      headers: { 'Content-Type': 'application/octet-stream', 'Content-Encoding': 'gzip', 'X-Access-Token': sandbox.envdAccessToken },
      body: gzipSync(text),
    })
    assert.equal(res.status, 200, res.text)
    assert.equal((await run('sha256sum raw.gz.txt')).split(' ')[0], sha(text))
  })

  test('sizes around the buffers', async () => {
    for (const size of [1, 4095, 4096, 18 * 1024, 65_536, 262_144, 1 << 20]) {
      const data = randomBytes(size)
      await sandbox.files.write(`size-${size}`, new Blob([data]))
      assert.equal(sha(await sandbox.files.read(`size-${size}`, { format: 'bytes' })), sha(data), `${size}`)
    }
  })

  test('100 MB up and down', async () => {
    const data = Buffer.alloc(100_000_000)
    for (let i = 0; i < data.length; i += 4096) data.writeUInt32LE(i, i)
    await sandbox.files.write('big', new Blob([data]), { requestTimeoutMs: 300_000 })
    const hash = createHash('sha256')
    for await (const chunk of await sandbox.files.read('big', { format: 'stream', requestTimeoutMs: 300_000 })) hash.update(chunk)
    assert.equal(hash.digest('hex'), sha(data))
    await sandbox.files.remove('big')
  })

  test('several at once, with directories made', async () => {
    const list = [
      { path: 'many/a.txt', data: 'A' },
      { path: 'many/deep/er/b.txt', data: 'B' },
      { path: '/tmp/many-c.bin', data: new Blob([Buffer.from([0, 255, 10])]) },
    ]
    const infos = await sandbox.files.write(list)
    assert.deepEqual(infos.map((i) => i.path), ['/home/user/many/a.txt', '/home/user/many/deep/er/b.txt', '/tmp/many-c.bin'])
    assert.equal(await sandbox.files.read('many/deep/er/b.txt'), 'B')
    assert.equal(await run('stat -c "%U %a" many/deep; od -An -tu1 /tmp/many-c.bin'), 'user 755\n   0 255  10\n')
    assert.deepEqual(await sandbox.files.write([]), [])
  })

  test('odd names', async () => {
    const names = ['with space', '..a', 'a+b', 'a%20b', 'q"uote', "apo's", '\u00e9', 'e\u0301', '🙂', '-dash', 'semi;colon', 'back\\slash', '#hash?query&x=1', 'n'.repeat(255)]
    for (const name of names) {
      await sandbox.files.write(`/tmp/odd/${name}`, `in ${name}`)
      assert.equal(await sandbox.files.read(`/tmp/odd/${name}`), `in ${name}`, name)
    }
    const listed = (await sandbox.files.list('/tmp/odd')).map((e) => e.name)
    assert.deepEqual(listed.toSorted(), names.toSorted())
    for (const name of names) await sandbox.files.remove(`/tmp/odd/${name}`)
    assert.deepEqual(await sandbox.files.list('/tmp/odd'), [])
  })

  test('as another user', async () => {
    await sandbox.files.write('/root/secret', 'root only', { user: 'root' })
    assert.equal(await sandbox.files.read('/root/secret', { user: 'root' }), 'root only')
    assert.equal(await run('stat -c %U /root/secret', { user: 'root' }), 'root\n')
    await assert.rejects(sandbox.files.read('x', { user: 'nobody-here' }))
  })

  test('list, with depth', async () => {
    await run('mkdir -p tree/one/two/three; touch tree/f tree/one/g tree/one/two/h; ln -s f tree/link')
    const one = await sandbox.files.list('tree')
    assert.deepEqual(one.map((e) => [e.name, e.type]), [['f', FileType.FILE], ['link', FileType.FILE], ['one', FileType.DIR]])
    assert.equal(one[1].symlinkTarget, '/home/user/tree/f')
    const two = await sandbox.files.list('tree', { depth: 2 })
    assert.deepEqual(two.map((e) => e.path.replace('/home/user/tree/', '')), ['f', 'link', 'one', 'one/g', 'one/two'])
    await assert.rejects(sandbox.files.list('tree', { depth: 0 }), InvalidArgumentError)
    await assert.rejects(sandbox.files.list('nowhere'), NotFoundError)
    await assert.rejects(sandbox.files.list('tree/f'), InvalidArgumentError)
  })

  test('info', async () => {
    await run('printf 12345 > five; chmod 640 five')
    const info = await sandbox.files.getInfo('five')
    assert.equal(info.size, 5)
    assert.equal(info.mode, 0o640)
    assert.equal(info.permissions, '-rw-r-----')
    assert.equal(info.owner, 'user')
    assert.equal(info.group, 'user')
    assert.equal(info.type, FileType.FILE)
    assert.ok(Math.abs(info.modifiedTime.getTime() - Date.now()) < 60_000)
    const dir = await sandbox.files.getInfo('/tmp')
    assert.equal(dir.type, FileType.DIR)
    await assert.rejects(sandbox.files.getInfo('missing'), NotFoundError)
  })

  test('exists, makeDir, rename, remove', async () => {
    assert.equal(await sandbox.files.exists('new/dir'), false)
    assert.equal(await sandbox.files.makeDir('new/dir'), true)
    assert.equal(await sandbox.files.makeDir('new/dir'), false)
    assert.equal(await sandbox.files.exists('new/dir'), true)
    await sandbox.files.write('new/dir/x', 'x')
    const moved = await sandbox.files.rename('new/dir/x', 'new/elsewhere/y')
    assert.equal(moved.path, '/home/user/new/elsewhere/y')
    assert.equal(await sandbox.files.exists('new/dir/x'), false)
    await assert.rejects(sandbox.files.rename('new/none', 'new/z'), NotFoundError)
    await sandbox.files.remove('new')
    assert.equal(await sandbox.files.exists('new'), false)
    await sandbox.files.remove('new')
    await sandbox.files.write('plain', '')
    await assert.rejects(sandbox.files.makeDir('plain'), InvalidArgumentError)
  })

  test('errors', async () => {
    await assert.rejects(sandbox.files.read('missing'), NotFoundError)
    await assert.rejects(sandbox.files.read('/tmp'), /directory/)
    await assert.rejects(sandbox.files.write('/tmp', 'x'), /directory/)
    assert.ok(FileNotFoundError)
  })

  test('metadata of files', async () => {
    await sandbox.files.write('tagged', 'x', { metadata: { owner: 'me', 'note-1': 'a b' } })
    assert.deepEqual((await sandbox.files.getInfo('tagged')).metadata, { owner: 'me', 'note-1': 'a b' })
    await sandbox.files.write('tagged', 'y')
    assert.equal((await sandbox.files.getInfo('tagged')).metadata, undefined)
  })

  test('signed links need no token and no key', async () => {
    await sandbox.files.write('signed.txt', 'signed content')
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
    const down = new URL(await sandbox.downloadUrl('signed.txt'))
    const got = await request('GET', down.pathname + down.search, { headers })
    assert.equal(got.status, 200, got.text)
    assert.equal(got.text, 'signed content')
    const unsigned = await request('GET', '/files?path=signed.txt', { headers })
    assert.equal(unsigned.status, 401)
    const forged = await request('GET', (down.pathname + down.search).replace('signed.txt', 'hello.txt'), { headers })
    assert.equal(forged.status, 401)

    const up = new URL(await sandbox.uploadUrl('via-link.txt'))
    const form = new FormData()
    form.append('file', new Blob(['uploaded by link']), 'ignored')
    const body = new Response(form)
    const put = await request('POST', up.pathname + up.search, {
      headers: { ...headers, 'Content-Type': body.headers.get('content-type') },
      body: Buffer.from(await body.arrayBuffer()),
    })
    assert.equal(put.status, 200, put.text)
    assert.equal(await sandbox.files.read('via-link.txt'), 'uploaded by link')
  })

  test('ranges and conditions', async () => {
    await sandbox.files.write('range.txt', '0123456789')
    const get = (headers, method = 'GET') => port(sandbox, 49983, method, '/files?path=range.txt', { headers: { 'X-Access-Token': sandbox.envdAccessToken, ...headers } })
    const part = await get({ Range: 'bytes=2-4' })
    assert.equal(part.status, 206)
    assert.equal(part.text, '234')
    assert.equal(part.headers['content-range'], 'bytes 2-4/10')
    const whole = await get({})
    assert.equal(whole.headers['content-length'], '10')
    const head = await get({}, 'HEAD')
    assert.equal(head.bytes.length, 0)
  })
})

describe('watching', () => {
  let sandbox
  before(async () => { sandbox = await Sandbox.create(template, { timeoutMs: 300_000 }) })
  after(() => sandbox?.kill())

  test('events of one directory', async () => {
    await sandbox.files.makeDir('w')
    const events = []
    const handle = await sandbox.files.watchDir('w', (e) => { events.push(e) })
    const seen = (type, name) => until(() => events.some((e) => e.type === type && e.name === name))
    await sandbox.files.write('w/a', '1')
    await seen(FilesystemEventType.CREATE, 'a')
    await seen(FilesystemEventType.WRITE, 'a')
    await sandbox.commands.run('chmod 600 w/a')
    await seen(FilesystemEventType.CHMOD, 'a')
    await sandbox.files.rename('w/a', 'w/b')
    await seen(FilesystemEventType.RENAME, 'a')
    await seen(FilesystemEventType.CREATE, 'b')
    await sandbox.files.remove('w/b')
    await seen(FilesystemEventType.REMOVE, 'b')
    await sandbox.commands.run('mkdir w/sub; touch w/sub/not-seen; touch w/end')
    await seen(FilesystemEventType.CREATE, 'end')
    assert.equal(events.some((e) => e.name.includes('not-seen')), false)

    await handle.stop()
    const n = events.length
    await sandbox.files.write('w/after', '1')
    await sleep(500)
    assert.equal(events.length, n)
  })

  test('recursive, also into new directories', async () => {
    await sandbox.commands.run('mkdir -p r/x/y')
    const events = []
    const handle = await sandbox.files.watchDir('r', (e) => { events.push(e) }, { recursive: true })
    const seen = (name) => until(() => events.some((e) => e.type === FilesystemEventType.CREATE && e.name === name))
    await sandbox.files.write('r/x/y/deep', '1')
    await seen('x/y/deep')
    await sandbox.commands.run('mkdir r/new')
    await seen('new')
    await sandbox.commands.run('touch r/new/inside')
    await seen('new/inside')
    await handle.stop()
  })

  test('what cannot be watched', async () => {
    await assert.rejects(sandbox.files.watchDir('nowhere', () => {}), NotFoundError)
    await sandbox.files.write('plain', 'x')
    await assert.rejects(sandbox.files.watchDir('plain', () => {}), InvalidArgumentError)
  })
})
