# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
import struct
import threading
import time

import pytest

from conftest import WebSocket, until

EXIT, ERROR, STDOUT, STARTED = 0x16, 0x17, 0x11, 0x10


@pytest.fixture
def box(ready):
    ready.box = ready.create()['id']
    return ready


def command(d, cmd, **kw):
    r = d.post(f'/v1/sandboxes/{d.box}/commands', {'cmd': cmd, **kw})
    assert r.status == 201, r
    return r.json


def test_sessions(box):
    d = box
    c = command(d, 'x', args=['1', 'é'], env={'A': 'b'}, cwd='/tmp', timeout_ms=1000, stdin=False)
    assert c['attach_url'] == f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}/attach'
    one = d.get(f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}').json
    assert one == {'process_id': c['process_id'], 'state': 'prepared', 'cmd': 'x', 'args': ['1', 'é'], 'user': 'root'}
    assert d.get(f'/v1/sandboxes/{d.box}/commands').json['commands'] == [one]
    assert d.post(f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}/signal', {'signal': 'SIGTERM'}).status == 204
    assert d.delete(f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}').status == 204
    for method, rest in (('GET', ''), ('DELETE', ''), ('GET', '/attach')):
        r = d.request(method, f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}{rest}',
                      headers={'Connection': 'Upgrade', 'Upgrade': 'cspace-attach'} if rest else None)
        assert (r.status, r.code) == (404, 'process_not_found')
    shell = d.post(f'/v1/sandboxes/{d.box}/commands', {'shell': 'echo $HOME', 'user': 'user'}).json['process_id']
    one = d.get(f'/v1/sandboxes/{d.box}/commands/{shell}').json
    assert one['args'] == ['-l', '-c', 'echo $HOME'] and one['user'] == 'user'


def test_bad_commands(box):
    d = box
    for body in ({}, {'cmd': ''}, {'cmd': 'a', 'shell': 'b'}, {'shell': 'a', 'args': []}, {'cmd': 'a', 'args': [1]},
                 {'cmd': 'a', 'args': ['a\u0000b']}, {'cmd': 'a', 'pty': {}}, {'cmd': 'a', 'pty': {'cols': 0, 'rows': 1}},
                 {'cmd': 'a', 'timeout_ms': 0}, {'cmd': 'a', 'timeout_ms': 1.5}, {'cmd': 'a', 'odd': 1}, {'cmd': 'a', 'env': {'A': 1}}):
        r = d.post(f'/v1/sandboxes/{d.box}/commands', body)
        assert r.status == 400, (body, r)
    r = d.post(f'/v1/sandboxes/{d.box}/commands', {'cmd': 'refused'})
    assert (r.status, r.code) == (400, 'invalid_argument') and 'does not exist' in r.json['error']['message']
    assert d.get(f'/v1/sandboxes/{d.box}/commands/xyz').code == 'process_not_found'
    assert d.post(f'/v1/sandboxes/{d.box}/commands/{"a" * 26}/signal', {'signal': []}).code == 'invalid_argument'
    assert d.get('/v1/sandboxes/nope/commands').code == 'sandbox_not_found'


def test_a_big_argument_list(box):
    assert command(box, 'x', args=['y' * 100000] * 100)['process_id']


def test_idempotent_commands(box):
    d, h = box, {'Idempotency-Key': 'c'}
    a = d.post(f'/v1/sandboxes/{d.box}/commands', {'cmd': 'x'}, headers=h)
    b = d.post(f'/v1/sandboxes/{d.box}/commands', {'cmd': 'x'}, headers=h)
    assert a.status == b.status == 201 and a.json == b.json
    assert len(d.get(f'/v1/sandboxes/{d.box}/commands').json['commands']) == 1


def test_attach(box):
    d = box
    a = d.attach(d.box, command(d, 'cat')['process_id'])
    assert a.status == 101 and a.frame()[0] == STARTED
    data = os.urandom(200000)
    a.send(0x01, data)
    a.send(0x01, b'end')
    a.send(0x06)
    assert a.frame() == (STDOUT, struct.pack('>Q', 0) + data)
    assert a.frame() == (STDOUT, struct.pack('>Q', len(data)) + b'end')
    assert a.frame() == (0x18, b'')
    a.send(0x02)
    rest = a.frames()
    assert rest[-1][0] == EXIT and json.loads(rest[-1][1])['exitCode'] == 3
    a.close()


def test_attach_needs_a_right(box):
    d = box
    tcp = ('127.0.0.1', d.port)
    c, other = command(d, 'hang'), command(d, 'hang')
    for query in ('', '?token=', '?token=x', f'?token={other["token"]}', f'?token={c["token"][:-1]}0x'):
        a = d.attach(d.box, c['process_id'], query, conn=tcp)
        assert a.status == 401, query
    a = d.attach(d.box, c['process_id'], f'?token={c["token"]}', conn=tcp)
    assert a.status == 101
    a.close()
    key = d.post('/v1/keys', {}).json['key']
    a = d.attach(d.box, c['process_id'], '', headers={'X-API-KEY': key}, conn=tcp)
    assert a.status == 101
    a.close()
    a = d.attach(d.box, c['process_id'], f'?token={c["token"]}', headers={'X-API-KEY': 'wrong'}, conn=tcp)
    assert a.status == 401
    assert d.get(f'/v1/sandboxes/{d.box}/commands/{c["process_id"]}?token={c["token"]}', conn=d.tcp()).status == 401


def test_attach_needs_an_upgrade(box):
    c = command(box, 'cat')
    r = box.get(c['attach_url'])
    assert (r.status, r.code) == (426, 'upgrade_required')
    assert box.attach(box.box, c['process_id'], upgrade='odd').status == 426


@pytest.mark.parametrize('cmd', ['lose', 'end'])
def test_a_lost_stream_is_an_error(box, cmd):
    a = box.attach(box.box, command(box, cmd)['process_id'])
    frames = a.frames()
    assert frames[-1][0] == ERROR and json.loads(frames[-1][1])['code'] == 'stream_lost'
    assert EXIT not in [k for k, _ in frames]


def test_the_vm_ends_under_an_attach(box):
    a = box.attach(box.box, command(box, 'hang')['process_id'])
    assert a.frame()[0] == STARTED
    box.steer(vm_exit=box.box)
    frames = a.frames()
    assert [k for k, _ in frames] == [ERROR]


def test_the_sandbox_is_deleted_under_an_attach(box):
    a = box.attach(box.box, command(box, 'hang')['process_id'])
    assert a.frame()[0] == STARTED
    assert box.delete(f'/v1/sandboxes/{box.box}?wait=10').status == 200
    assert [k for k, _ in a.frames()] == [ERROR]


def test_odd_frames(box):
    a = box.attach(box.box, command(box, 'odd')['process_id'])
    assert [k for k, _ in a.frames()][-1] == ERROR
    for bad in (b'\x10\0\0\0\0', b'\x01\x7f\0\0\0'):
        a = box.attach(box.box, command(box, 'hang')['process_id'])
        a.sock.sendall(bad)
        frames = a.frames()
        assert EXIT not in [k for k, _ in frames]
        assert frames[-1][0] == ERROR and json.loads(frames[-1][1])['code'] == 'protocol_error'


def test_a_guest_that_hangs(box):
    """Told as what it is, before clients lose patience (30 s) and take cspaced for broken."""
    d = box
    assert d.sandbox(d.box)['responding'] is True
    d.steer(silent=d.box)
    assert d.sandbox(d.box)['responding'] is False
    answers, began = [], time.monotonic()
    asking = [threading.Thread(target=lambda r=r: answers.append(d.request(*r, timeout=60)))
              for r in (('POST', f'/v1/sandboxes/{d.box}/commands', {'cmd': 'x'}),
                        ('GET', f'/v1/sandboxes/{d.box}/files?path=/x'),
                        ('PUT', f'/v1/sandboxes/{d.box}/files?path=/x', b'y' * 100000))]
    for t in asking:
        t.start()
    for t in asking:
        t.join()
    assert 15 < time.monotonic() - began < 27
    for r in answers:
        assert (r.status, r.code) == (504, 'guest_timeout'), r
        assert 'the guest does not answer' in r.json['error']['message']
    d.steer(silent=None)
    until(lambda: d.post(f'/v1/sandboxes/{d.box}/commands', {'cmd': 'x'}).status == 201, what='an answer')
    assert d.sandbox(d.box)['responding'] is True


def test_backpressure(box):
    """A client that does not read costs no memory; when it reads, all is there."""
    d = box
    before, most = d.resident(), d.most(24)
    a = d.attach(d.box, command(d, 'flood', args=['2000'])['process_id'])
    time.sleep(0.5)
    assert d.resident() - before < most
    total = sum(len(data) - 8 for k, data in a.frames() if k == STDOUT)
    assert total == 2000 * 65536 + 4
    b = d.attach(d.box, command(d, 'stuck')['process_id'])
    b.sock.settimeout(0.5)
    with pytest.raises(socket.timeout):
        while True:
            b.send(0x01, bytes(100000))
    assert d.resident() - before < most
    b.close()


def test_files(box):
    d = box
    data = os.urandom(1 << 20)
    assert d.request('PUT', f'/v1/sandboxes/{d.box}/files?path=/a%20b', data).status == 200
    assert d.get(f'/v1/sandboxes/{d.box}/files?path=/a%20b').body == data
    assert d.get(f'/v1/sandboxes/{d.box}/files?path=/a%20b&user=user').status == 404
    assert d.request('PUT', f'/v1/sandboxes/{d.box}/files?path=/c', iter([b'x' * 1000, b'y']), headers={}).status == 200
    assert d.get(f'/v1/sandboxes/{d.box}/files?path=/c').body == b'x' * 1000 + b'y'
    assert d.get('/v1/sandboxes/nope/files?path=/').code == 'sandbox_not_found'
    d.steer(vm_exit=d.box)
    until(lambda: d.sandbox(d.box)['state'] == 'failed', what='failed')
    assert d.get(f'/v1/sandboxes/{d.box}/files?path=/c').code == 'sandbox_not_running'


def test_websocket(box):
    d = box
    w = WebSocket(d, d.box, command(d, 'cat')['process_id'])
    assert w.status == 101 and w.headers['sec-websocket-accept'] == 's3pPLMBiTxaQ9kYGzzhZRbK+xOo='
    assert w.frame()[0] == STARTED
    data = os.urandom(200000)
    w.send(0x01, data)
    assert w.frame() == (STDOUT, struct.pack('>Q', 0) + data)
    w.raw(9, b'ping')
    assert w.message() == (10, b'ping')
    w.send(0x02)
    frames = w.frames()
    assert frames[-1][0] == EXIT and w.closed == 1000
    assert w.file.read() == b''


def test_websocket_lost(box):
    w = WebSocket(box, box.box, command(box, 'lose')['process_id'])
    frames = w.frames()
    assert frames[-1][0] == ERROR and EXIT not in [k for k, _ in frames] and w.closed == 1011


def test_websocket_misuse(box):
    d = box
    c = command(d, 'hang')
    for opcode, data in ((1, b'text'), (2, b''), (2, b'\x10')):
        w = WebSocket(d, d.box, c['process_id'])
        assert w.frame()[0] == STARTED
        w.raw(opcode, data)
        w.frames()
        assert w.closed in (1002, 1003, 1009)
    w = WebSocket(d, d.box, c['process_id'])
    with pytest.raises(OSError):
        while True:
            w.send(0x01, bytes(300000))
    assert WebSocket(d, d.box, c['process_id'], version='8').status in (400, 426)
    w = WebSocket(d, d.box, c['process_id'], f'?token={c["token"]}', ('127.0.0.1', d.port))
    assert w.status == 101
    assert WebSocket(d, d.box, c['process_id'], '', ('127.0.0.1', d.port)).status == 401


def test_websocket_backpressure(box):
    w = WebSocket(box, box.box, command(box, 'flood', args=['1000'])['process_id'])
    before = box.resident()
    time.sleep(0.5)
    assert box.resident() - before < 24
    assert sum(len(data) - 8 for k, data in w.frames() if k == STDOUT) == 1000 * 65536 + 4


def test_attached_while_cspaced_stops(box):
    a = box.attach(box.box, command(box, 'hang')['process_id'])
    assert a.frame()[0] == STARTED
    box.stop()
    assert [json.loads(x)['code'] for k, x in a.frames() if k == ERROR] == ['stopping']
