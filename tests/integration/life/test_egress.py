# SPDX-License-Identifier: Apache-2.0
"""Egress and credentials with everything real: microVM, gateway, cspaced, cspace-rootd, cspace-token, servers in namespaces. The
guest has curl, and does nothing to trust anybody."""
import base64
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import sys

import pytest

from conftest import BUILD, CACHE, Host, assets, until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'token'))
import authority  # noqa: E402
from internet import MUTE_PORT  # noqa: E402

SECRET = 'tok-9f2e77c1d0aa4b53'
ALLOW = {'rules': [{'name': 'web', 'action': 'allow', 'hosts': ['api.test', 'other.test', 'meta.test', 'inward.test']}]}
BIND = {'id': 'api', 'credential': 'token', 'hosts': ['api.test'], 'env': 'API_TOKEN'}
SYSTEM_BUNDLE = b'# the certificates of the system\n'


@pytest.fixture(scope='module')
def online(btrfs, libexec, internet):
    """A host whose network is `internet`, with a template that has curl."""
    try:
        template = assets.make_template(CACHE, os.path.join(BUILD, 'src', 'agent', 'cspace-agent'))
        own = os.path.join(btrfs, 'curl-template')
        os.makedirs(own)
        for name in ('kernel', 'initrd'):
            shutil.copy(os.path.join(template, name), own)
        assets.make_disk(CACHE, os.path.join(own, 'disk.img'), ['/usr/bin/curl'], [('/etc/ssl/certs/ca-certificates.crt', SYSTEM_BUNDLE)])
    except assets.Unavailable as e:
        pytest.skip(str(e))
    h = Host(libexec, os.path.join(btrfs, 'online'), internet.prefix)
    h.start(internet.conf)
    h.add_template(own)
    yield h
    h.close()


class Guest:
    def __init__(self, host, net, **kw):
        self.host, self.net = host, net
        self.id = host.create(policy=ALLOW, memory_mb=128, **kw)
        assert self.gateway() == 'idle'  # what the test sends first has to start it

    def gateway(self):
        return self.host.get(f'/v1/sandboxes/{self.id}').json['egress']['state']

    def curl(self, *argv):
        """(status, headers and body)"""
        quoted = ' '.join("'" + a + "'" if not a.startswith('"') else a for a in argv)
        out = self.host.sh(self.id, f'curl -sS -i -m 60 {quoted} 2>&1 || echo "curl: $?"')
        m = re.match(r'HTTP/[0-9.]+ (\d+)', out)
        return (int(m[1]) if m else None), out

    def asked(self, *argv):
        """What the server saw of one request; None: nothing."""
        self.net.forget()
        self.answer = self.curl(*argv)
        seen = self.net.requests()
        assert len(seen) <= 1
        return seen[0] if seen else None

    def audit(self, **want):
        r = self.host.get(f'/v1/sandboxes/{self.id}/audit?limit=1000')
        return [x for x in r.json['records'] if all(x.get(k) == v for k, v in want.items())]

    def recorded(self, n, **want):
        """At least so many records; they come a moment after what they are of."""
        return until(lambda: len(self.audit(**want)) >= n and self.audit(**want), 20, f'{n} records of {want}')

    def path(self, tail):
        return f'/v1/sandboxes/{self.id}/{tail}'

    def close(self):
        if self.host.state(self.id):
            self.host.delete(self.id)


def keep(host, name='token', **kw):
    r = host.request('PUT', f'/v1/credentials/{name}', kw or {'secret': SECRET})
    assert r.status == 200, r
    return r.json


@pytest.fixture
def guest(online, internet):
    made = []

    def make(**kw):
        made.append(Guest(online, internet, **kw))
        return made[-1]
    yield make
    for g in made:
        g.close()
    for c in online.get('/v1/credentials').json['credentials']:
        assert online.request('DELETE', f"/v1/credentials/{c['name']}").status == 204


def vm_has(host, ident, needle):
    """Whether the bytes are anywhere in the memory of the VM's process, the guest's memory included."""
    pid = host.pids(ident)[1]
    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb', 0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            if mode[0] != 'r' or '[v' in line:
                continue
            at, end = (int(x, 16) for x in span.split('-'))
            tail = b''
            while at < end:
                try:
                    mem.seek(at)
                    data = mem.read(min(end - at, 1 << 24))
                except (OSError, ValueError):
                    break
                if not data:
                    break
                if needle in tail + data:
                    return True
                tail = data[-len(needle):]
                at += len(data)
    return False


def files_have(folder, needle):
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) < 64 << 20:
                with open(path, 'rb') as f:
                    if needle in f.read():
                        return path
    return None


def test_secret_goes_upstream_and_nowhere_else(online, internet, guest):
    keep(online)
    g = guest(bindings=[BIND])
    env = online.sh(g.id, 'echo "$API_TOKEN"').strip()
    assert env and env != SECRET and env == online.get(g.path('bindings')).json['bindings'][0]['placeholder']
    seen = g.asked('-H', '"Authorization: Bearer $API_TOKEN"', 'https://api.test/echo?q=1')
    assert seen['headers']['authorization'] == f'Bearer {SECRET}' and seen['path'] == '/echo?q=1'
    status, text = g.answer
    assert status == 200 and SECRET not in text                       # the echo, in head and body
    assert text.count('*' * len(SECRET)) == 2
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'  # without anything of its own
    assert g.asked('-d', 'key=' + 'x' * 1000, 'https://api.test/')['body'] == 'key=' + 'x' * 1000
    # Other hosts get neither secret nor placeholder.
    assert 'authorization' not in g.asked('https://other.test/')['headers']
    assert g.asked('-H', '"Authorization: Bearer $API_TOKEN"', 'https://other.test/') is None
    assert g.answer[0] == 403 and '"reason":"placeholder"' in g.answer[1]
    assert g.asked('-L', 'https://api.test/redirect?to=https://denied.test/')['host'] == 'api.test'
    internet.forget()
    g.curl('-L', 'https://api.test/redirect?to=https://other.test/here')
    assert [('authorization' in r['headers'], r['host']) for r in internet.requests()] == [(True, 'api.test'), (False, 'other.test')]
    # Records say what was used, and nothing has the secret: not the guest's memory, no file of the host.
    used = g.recorded(5, kind='request', host='api.test', verdict='allow')
    assert all(x['binding'] == 'api' and x['rule'] == 'web' for x in used)
    denied, = g.recorded(1, kind='request', reason='placeholder')
    assert denied['verdict'] == 'deny' and denied['host'] == 'other.test' and 'binding' not in denied
    assert SECRET not in online.get(g.path('audit?limit=1000')).body.decode()
    assert not vm_has(online, g.id, SECRET.encode()) and vm_has(online, g.id, env.encode())
    for folder in (online.top, os.path.join(online.data, 'audit'), online.data):
        assert files_have(folder, SECRET.encode()) is None


def test_unbind_and_rotate_take_effect_at_once(online, internet, guest):
    keep(online)
    g = guest()
    assert 'authorization' not in g.asked('https://api.test/')['headers']
    assert online.post(g.path('bindings'), BIND).status == 201
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'
    r = online.post('/v1/credentials/token/rotate', {'secret': 'another-secret-55aa'})
    assert r.status == 200, r
    assert g.asked('https://api.test/')['headers']['authorization'] == 'Bearer another-secret-55aa'
    assert online.request('DELETE', g.path('bindings/api')).status == 204
    assert 'authorization' not in g.asked('https://api.test/')['headers']
    assert g.asked('-H', 'Authorization: mine', 'https://api.test/')['headers']['authorization'] == 'mine'


def test_unbind_on_an_open_connection(online, internet, guest):
    """One connection, three requests; what the second and third get is what holds then."""
    keep(online)
    g = guest(bindings=[BIND])
    internet.forget()
    a = online.background(g.id, 'for i in 1 2 3; do echo "url = https://api.test/$i"; [ $i = 3 ] || while [ ! -e /tmp/go$i ]; do sleep 0.1; done; done'
                          ' | curl -sS -m 120 -K - > /tmp/out 2>&1; echo done > /tmp/end')
    assert a
    # curl reads its whole configuration first: so each request is a process, but the gateway's own side is kept
    online.sh(g.id, 'touch /tmp/go1 /tmp/go2; while [ ! -e /tmp/end ]; do sleep 0.1; done')
    assert [r['headers'].get('authorization') for r in internet.requests()] == [f'Bearer {SECRET}'] * 3
    assert online.request('DELETE', g.path('bindings/api')).status == 204
    assert 'authorization' not in g.asked('https://api.test/4')['headers']


def test_gateway_killed_and_suspended(online, internet, guest):
    """Another gateway, also that of a restored sandbox, has the secret before it lets anything through."""
    keep(online)
    g = guest(bindings=[BIND])
    assert g.asked('https://api.test/')
    with open(os.path.join(online.run, 'sandboxes', g.id, 'placement')) as f:
        pid = int(re.search(r'^gateway_pid=([1-9]\d*)', f.read(), re.M)[1])
    os.kill(pid, signal.SIGKILL)
    seen = until(lambda: g.asked('https://api.test/'), what='another gateway')
    assert seen['headers']['authorization'] == f'Bearer {SECRET}'
    online.change(g.id, 'suspend')
    assert files_have(os.path.join(online.data, 'checkpoints'), SECRET.encode()) is None
    online.change(g.id, 'restore')
    assert g.gateway() == 'idle'
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'  # the first packet's


def processes(g):
    return g.host.get(g.path('usage')).json['host']['processes']


def test_no_gateway_until_something_is_sent(online, internet, guest):
    """None for a sandbox that works and sends nothing; what it trusts and its placeholders are there all the same. Daemons that
    are killed before and after the first packet change nothing for it."""
    keep(online)
    g = guest(bindings=[BIND])
    assert 'BEGIN CERTIFICATE' in online.sh(g.id, 'cat /run/cspace/ca.crt; echo "$API_TOKEN" > /tmp/x; ip route')
    assert g.gateway() == 'idle' and processes(g) == 2
    online.kill_rootd()
    online.start_rootd()
    online.kill_cspaced()
    online.start_cspaced()
    until(lambda: g.gateway() == 'idle' and processes(g) == 2, what='the same as before')
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'
    assert g.gateway() == 'active' and processes(g) == 3
    online.kill_rootd()
    online.start_rootd()
    until(lambda: online.get('/v1/host').json['rootd'] == 'connected', what='the connection to rootd')
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'
    assert g.gateway() == 'active' and processes(g) == 3


def test_policy_of_before_the_first_packet(online, internet, guest):
    """One that was set while there was no gateway holds for the first connection, also where it forbids."""
    g = guest()
    assert online.request('PUT', g.path('policy'), {'policy': 'none'}).status == 200
    assert g.gateway() == 'idle'
    assert g.asked('https://api.test/') is None
    assert g.recorded(1, kind='dns', host='api.test')[0]['reason'] == 'no_policy'


def test_tokens_of_an_endpoint(online, internet, guest):
    """Got, renewed while the sandbox runs, missing, and back."""
    internet.mode('ok 3')
    made = keep(online, provider='oauth2', token_url='https://auth.test/token', client_id=authority.CLIENT, secret=authority.SECRET)
    assert made['token']['state'] == 'ready', made
    g = guest(bindings=[BIND])
    used = set()

    def renewed():
        seen = g.asked('https://api.test/')
        used.add(seen['headers']['authorization'] if seen else None)
        return len(used - {None}) >= 3
    until(renewed, 60, 'two more tokens')
    assert all(re.fullmatch(r'Bearer tok-\d+-\d+-abcdefgh', t) for t in used - {None})
    internet.mode('status 500')

    def refused():
        return g.asked('https://api.test/') is None
    until(refused, 30, 'the end of the last token')
    status, text = g.answer
    error = json.loads(text[text.index('{'):])['error']
    assert status == 503 and error['code'] == 'credential_unavailable' and error['reason'] == 'credential' and error['credential'] == 'token'
    record = g.recorded(1, kind='request', verdict='deny')[0]
    assert record['reason'] == 'credential' and record['binding'] == 'api' and record['status'] == 503
    token = online.get('/v1/credentials').json['credentials'][0]['token']
    assert token['state'] == 'failed' and token['reason'] == 'the token endpoint answered 500: server_error'
    internet.mode('ok 3600')
    seen = until(lambda: g.asked('https://api.test/'), 60, 'a token by itself')
    assert seen['headers']['authorization'] not in used
    for secret in (authority.SECRET, seen['headers']['authorization'].split()[1]):
        assert files_have(online.top, secret.encode()) is None and not vm_has(online, g.id, secret.encode())


def test_endpoints_that_hang_hold_up_no_other(online, internet, guest):
    """More of them than there are places; another's token comes while all of them are still waited for."""
    internet.mode('ok 3600')
    mute = [f'mute{i:02}' for i in range(10)]

    def put(name, url):
        return keep(online, name, provider='oauth2', token_url=url, client_id=authority.CLIENT, secret=authority.SECRET)['token']

    def state(name):
        return next(c['token'] for c in online.get('/v1/credentials').json['credentials'] if c['name'] == name)
    with concurrent.futures.ThreadPoolExecutor(len(mute)) as pool:
        waiting = [pool.submit(put, name, f'https://auth.test:{MUTE_PORT}/token') for name in mute]
        until(lambda: len(online.get('/v1/credentials').json['credentials']) == len(mute), what='all are asked for')
        assert put('good', 'https://auth.test/token')['state'] == 'ready'
        assert [state(name)['state'] for name in mute] == ['asking'] * len(mute)
        for name in mute:
            assert online.request('DELETE', f'/v1/credentials/{name}').status == 204
        for w in waiting:
            assert isinstance(w.exception(), AssertionError)  # the credential is gone


def test_tokens_of_a_command(online, internet, guest):
    folder = os.path.join(online.top, 'commands')
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    with open(os.path.join(folder, 'vault'), 'w') as f:
        f.write('#!/bin/sh\necho "{\\"token\\":\\"by-command-$(id -u)\\",\\"expires_in\\":600}"\n')
    os.chmod(os.path.join(folder, 'vault'), 0o755)
    online.stop()
    online.start(internet.conf + f'[credentials]\ncommands = {folder}\n')
    made = keep(online, provider='command', command='vault')
    assert made['token']['state'] == 'ready', made
    g = guest(bindings=[BIND])
    seen = g.asked('https://api.test/')
    assert re.fullmatch(r'Bearer by-command-21456\d+', seen['headers']['authorization'])
    assert keep(online, 'none', provider='command', command='nothing')['token']['state'] == 'failed'


def test_names_that_lead_inward(online, internet, guest):
    """D07 and XF01: names that are allowed and lead to metadata or to the host itself are refused when dialled, and recorded."""
    g = guest()
    for host in ('meta.test', 'inward.test'):
        assert g.asked(f'https://{host}/') is None
        assert g.recorded(1, host=host, verdict='deny')[0]['reason'] == 'address_refused', g.answer


def test_dropped_packets_are_recorded(online, internet, guest):
    """ICMP, which nothing carries, and another source than the guest's: in the log when the sandbox has ended."""
    g = guest()
    online.sh(g.id, 'ping -c 3 -W 1 93.184.216.34; '
                    'ip addr add 10.200.0.9/30 dev eth0; ping -c 2 -W 1 -I 10.200.0.9 93.184.216.34; true')
    online.delete(g.id)
    found = until(lambda: g.audit(kind='packets', reason='packet_spoofed') and g.audit(kind='packets'), what='the records')
    assert all(r['verdict'] == 'deny' and r['rule'] == 'default' for r in found)
    n = {reason: sum(1 + r.get('repeated', 0) for r in found if r['reason'] == reason) for reason in ('packet_not_carried', 'packet_spoofed')}
    assert n['packet_not_carried'] >= 3 and n['packet_spoofed'] >= 2, found


def test_clock_that_lags(online, internet, guest):
    """N13: leaves are good for who thinks that it is yesterday; and the guest's clock is its own affair."""
    g = guest()
    online.sh(g.id, 'date -s "@$(($(date +%s) - 120))" >/dev/null')
    assert g.asked('https://api.test/')
    online.sh(g.id, 'date -s "@$(($(date +%s) - 80000))" >/dev/null')
    assert g.asked('https://api.test/')


def test_guest_breaks_its_own_network(online, internet, guest):
    """N34, N09: the platform reaches a guest without an address, a route or a device, and there is no IPv6 to be half there."""
    g = guest()
    assert g.asked('https://api.test/')
    assert online.sh(g.id, 'grep -vc " lo$" /proc/net/if_inet6 2>/dev/null || true').strip() in ('', '0')
    online.sh(g.id, 'ip route flush table main; ip addr flush dev eth0; ip link set eth0 down; echo nameserver 192.0.2.77 > /etc/resolv.conf')
    assert online.sh(g.id, 'echo still here') == 'still here\n'
    assert online.get(g.path('')[:-1]).json['state'] == 'running'
    assert g.asked('https://api.test/') is None


def test_key_of_the_authority_is_not_in_the_guest(online, internet, guest):
    """XE41: neither the seed nor what is made of it, in memory or in a snapshot on disk; the certificate is."""
    g = guest()
    assert g.asked('https://api.test/')
    pem = online.sh(g.id, 'cat /run/cspace/ca.crt')
    assert 'BEGIN CERTIFICATE' in pem and 'PRIVATE' not in pem
    for name in ('state.db', 'state.db-wal'):  # cspaced holds it
        if os.path.exists(os.path.join(online.data, name)):
            shutil.copy(os.path.join(online.data, name), internet.dir)
    with contextlib.closing(sqlite3.connect(internet.path('state.db'))) as db:
        seed = db.execute('SELECT ca_seed FROM egress WHERE sandbox_id = ?', (g.id,)).fetchone()[0]
    assert len(base64.b64decode(seed)) == 32
    for needle in (base64.b64decode(seed), seed.encode()):
        assert not vm_has(online, g.id, needle)
    online.change(g.id, 'suspend')
    for needle in (base64.b64decode(seed), seed.encode()):
        assert files_have(os.path.join(online.data, 'checkpoints'), needle) is None
    online.change(g.id, 'restore')


def test_never_a_window(online, internet, guest):
    """XC19, XC20: what is forbidden stays so while the policy changes and the sandbox is paused, suspended, restored and forked."""
    g = guest()
    web = "93.184.216.34"
    online.background(g.id, f'''while :; do
        curl -sk -m 3 --resolve denied.test:443:{web} https://denied.test/window
        curl -sk -m 3 -H 'Host: denied.test' https://api.test/window
        curl -sk -m 3 https://{web}/window
        curl -sk -m 3 https://denied.test/window
    done >/dev/null 2>&1''')
    copies = []
    internet.forget()
    try:
        for _ in range(3):
            for policy in ('none', ALLOW):
                assert online.request('PUT', g.path('policy'), policy if isinstance(policy, dict) else {'policy': policy}).status == 200
            for verb in ('pause', 'resume'):
                online.change(g.id, verb)
        for verb in ('suspend', 'restore'):
            online.change(g.id, verb)
        r = online.post(g.path('fork') + '?wait=300', {'n': 1})
        assert r.status == 201, r
        copies = r.json['operation']['result']['sandboxes']
        for ident in (g.id, *copies):  # both went on trying
            until(lambda i=ident: online.get(f'/v1/sandboxes/{i}/audit?limit=1000&verdict=deny').json['records'], 60, f'an attempt of {ident}')
        assert [r for r in internet.requests() if 'window' in r['path']] == []
        assert {r['reason'] for r in g.audit(verdict='deny') if r['kind'] != 'packets'} <= {'address_literal', 'host_mismatch', 'no_rule', 'no_policy', 'revoked', 'address_unknown'}
    finally:
        for c in copies:
            online.delete(c)


def test_a_fork_has_no_credential_unless_it_is_said(online, internet, guest):
    """XG16: its placeholder is worth nothing; with "inherit" it is what the sandbox has."""
    keep(online)
    g = guest(bindings=[BIND])
    assert g.asked('https://api.test/')['headers']['authorization'] == f'Bearer {SECRET}'
    copies = []
    try:
        for how, want in (('none', None), ('inherit', f'Bearer {SECRET}')):
            r = online.post(g.path('fork') + '?wait=300', {'n': 1, 'bindings': how})
            assert r.status == 201, r
            copies += r.json['operation']['result']['sandboxes']
            internet.forget()
            online.sh(copies[-1], 'curl -sS -m 60 https://api.test/fork >/dev/null')
            seen, = internet.requests()
            assert seen['headers'].get('authorization') == want, how
            assert not vm_has(online, copies[-1], SECRET.encode())
    finally:
        for c in copies:
            online.delete(c)
