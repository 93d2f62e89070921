# SPDX-License-Identifier: Apache-2.0
"""What changed on a disk, and files out of it, with real VMs, cspace-history and cspace(1)."""
import io
import json
import os
import subprocess
import tarfile

import pytest

from conftest import BUILD, until

CLI = os.path.join(BUILD, 'src', 'cli', 'cspace')
# What a guest does by itself: its folders get times, and booting writes.
OWN = {'/', '/root', '/etc', '/var', '/tmp', '/lost+found'}


@pytest.fixture
def cspace(host):
    if not os.path.exists(CLI):
        pytest.skip(f'{CLI} is not built')

    def run(*args, code=0):
        env = {**os.environ, 'CSPACE_API_URL': 'unix:' + os.path.join(host.run, 'api.sock')}
        r = subprocess.run([CLI, *args], env=env, capture_output=True, timeout=300, stdin=subprocess.DEVNULL, check=False)
        assert r.returncode == code, r
        return r.stdout if code == 0 else r.stderr.decode()
    return run


def changes(h, s, query=''):
    r = h.get(f'/v1/sandboxes/{s}/diff?prefix=/root{query}')
    assert r.status == 200, r
    return {(c['status'], c['path']) for c in r.json['changes']} - {('changed', '/root')}, r.json


def test_every_state(host):
    h = host
    s = h.create()
    assert changes(h, s)[0] == set()
    h.sh(s, 'mkdir /root/new && echo one >/root/new/a && echo two >/root/b')  # not synced: that is done before it is read
    want = {('added', '/root/new'), ('added', '/root/new/a'), ('added', '/root/b')}
    seen, page = changes(h, s)
    assert seen == want and page['synced'] is True and page['warnings'] is None
    h.sh(s, 'echo goes on >/root/b; cat /root/b')  # and it is not frozen
    for verb in ('pause', 'suspend', 'restore', 'suspend', 'restore', 'stop', 'start'):
        if h.state(s) == 'running':
            h.sh(s, f'echo {verb} >/root/{len(want)}')  # not synced either: who stops it sees to that
            want.add(('added', f'/root/{len(want)}'))
        r = h.change(s, verb)
        seen, page = changes(h, s)
        assert seen == want, verb
        if verb in ('pause', 'suspend'):
            assert r['operation']['result']['synced'] is True and page['synced'] is True, (r, page)
    assert h.get(f'/v1/sandboxes/{s}/history/file?path=/root/{len(want) - 1}').body.endswith(b'stop\n')
    h.delete(s)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_without_an_answer_of_the_guest(host):
    """Suspended all the same, soon, and it says that files may be missing; the memory has them."""
    h = host
    s = h.create()
    h.background(s, 'mkdir /sys/fs/cgroup/agent && echo 1 >/sys/fs/cgroup/agent/cgroup.procs && echo held >/root/held && '
                 'echo 1 >/sys/fs/cgroup/agent/cgroup.freeze; sleep 6; echo 0 >/sys/fs/cgroup/agent/cgroup.freeze')

    def silent():
        try:
            return not h.post(f'/v1/sandboxes/{s}/commands', {'cmd': '/bin/true'}, timeout=1)
        except TimeoutError:
            return True
    until(silent, what='an agent that does not answer')
    op = h.change(s, 'suspend')['operation']
    assert op['result']['synced'] is False, op
    assert b'did not write to its disk' in h.get(f'/v1/sandboxes/{s}/logs').body
    assert changes(h, s)[1]['synced'] is False
    h.change(s, 'restore')
    assert h.sh(s, 'cat /root/held').strip() == 'held'
    h.delete(s)


def test_checkpoints_and_commands(host, cspace):
    h = host
    s = h.create(name='files')
    h.sh(s, 'printf "a\\nb\\n" >/root/text; echo x >/root/gone; echo m >/root/mode; mkdir /root/dir; echo 1 >/root/dir/moved')
    cspace('checkpoint', '--name', 'before', s)
    h.sh(s, 'printf "a\\nc\\n" >/root/text; rm /root/gone; chmod 600 /root/mode; mv /root/dir/moved /root/moved; '
            'printf "\\033[31m\\n" >"/root/odd"; chmod 755 /root/text')
    want = {('changed', '/root/text'), ('deleted', '/root/gone'), ('changed', '/root/mode'), ('renamed', '/root/moved'),
            ('added', '/root/odd'), ('changed', '/root/dir')}
    assert changes(h, s, '&from=before')[0] | {('changed', '/root/dir')} == want
    out = cspace('diff', 'files', 'before', '--prefix', '/root', '--patch').decode()
    assert '~   text  4 B  content  mode 0644 -> 0755\n' in out and '-b\n+c\n' in out and '-   gone  2 B\n' in out, out
    assert '>   moved  2 B  from /root/dir/moved\n' in out and '\033' not in out, out
    document = json.loads(cspace('diff', '--json', 'files', 'before', 'now', '--prefix', '/root'))
    assert {(c['status'], c['path']) for c in document['changes']} | {('changed', '/root/dir')} == want
    assert cspace('diff', 'files', 'before', 'before') == b''
    assert 'checkpoint_not_found' in cspace('--json', 'diff', 'files', 'other', code=125)
    # Files as they were.
    assert cspace('cat', 'files@before:/root/text', f'{s}:/root/text') == b'a\nb\na\nc\n'
    assert 'not_found' in cspace('--json', 'cat', 'files@template:/root/text', code=125)
    assert 'invalid_argument' in cspace('--json', 'cat', 'files:/root', code=125)
    cspace('restore-file', 'files', 'before', '/root/gone')
    cspace('restore-file', 'files', 'before', '/root/text', '/root/dir')
    assert h.sh(s, 'cat /root/gone /root/dir/text; stat -c %a /root/dir/text') == 'x\na\nb\n644\n'
    h.change(s, 'suspend')
    assert cspace('cat', 'files@before:/root/gone') == b'x\n'
    h.delete(s)


LOOK = 'cd /root && find back \\( -type d -o -type f -o -type l \\) -exec stat -c "%n %F %a %u:%g %Y %N" {} + | sort; cat back/f back/sub/g; ls -i back/f back/h | cut -d" " -f1 | uniq | wc -l'


def test_a_folder_comes_back(host, cspace):
    """Owners, modes, times, links: as they were. What is there besides stays."""
    h = host
    s = h.create(name='files')
    h.sh(s, 'mkdir -p /root/back/sub/empty && cd /root/back && echo one >f && ln f h && echo two >sub/g && ln -s ../f sub/l && ln -s /none dangling && '
            'mkfifo pipe && chown 1234:77 f sub && chown -h 5:6 sub/l && chmod 4711 sub/g && chmod 1777 sub && chmod 700 . && '
            'touch -h -d "2020-01-02 03:04:05" f sub/g sub/l sub/empty sub . && sync')
    before = h.sh(s, LOOK)
    cspace('checkpoint', '--name', 'before', s)
    h.sh(s, 'cd /root/back && rm -r sub && echo changed >f && chown 0:0 f && chmod 644 f && rm h && mkdir -m 777 sub && ln -s /etc sub/empty && '
            'echo new >new && chmod 755 . && chown 9:9 .')
    cspace('restore-file', 'files', 'before', '/root/back')
    assert h.sh(s, 'cat /root/back/new; rm /root/back/new; touch -d "2020-01-02 03:04:05" /root/back; stat -c %F /root/back/pipe; stat -c "%u %a" /etc') == 'new\nfifo\n0 755\n'
    assert h.sh(s, LOOK) == before
    # Elsewhere, and one file, one link.
    h.sh(s, 'rm -r /root/back; mkdir /tmp/d')
    cspace('restore-file', 'files', 'before', '/root/back', '/tmp/d')
    cspace('restore-file', 'files', 'before', '/root/back', '/tmp/other')
    for d in ('/tmp/d', '/tmp'):
        got = h.sh(s, f'[ {d} = /tmp ] && mv /tmp/other /tmp/back; {LOOK.replace("/root", d)}')
        assert got == before, d
    cspace('restore-file', 'files', 'before', '/root/back/sub/g')
    cspace('restore-file', 'files', 'before', '/root/back/f', '/root/named')
    cspace('restore-file', 'files', 'before', '/root/back/sub/l', '/root')
    assert h.sh(s, 'cd /root; stat -c "%a %u %Y" back/sub/g named; readlink l') == \
        '4711 0 1577934245\n644 1234 1577934245\n../f\n'.replace('644', before.split('back/f regular file ')[1][:3])
    # What is something else by now: a folder that is not empty stays and is named, and the rest comes back.
    cspace('restore-file', 'files', 'before', '/root/back')
    h.sh(s, 'cd /root/back && rm -r f h sub/empty && mkdir -p f/mine h && echo 1 >sub/empty')
    out = cspace('restore-file', 'files', 'before', '/root/back', code=125)
    assert '"/root/back/f" did not come back' in out and '/root/back/h' in out, out
    assert h.sh(s, 'cd /root/back && ls f; stat -c %F sub/empty h; cat sub/g') == 'mine\ndirectory\ndirectory\ntwo\n'
    out = json.loads(cspace('--json', 'restore-file', 'files', 'before', '/root/back/sub'))
    assert out['path'] == '/root/back/sub' and out['entries'] == 4, out
    assert 'not_found' in cspace('--json', 'restore-file', 'files', 'before', '/root/none', code=125)
    r = h.get(f'/v1/sandboxes/{s}/history/tree?path=/root/back&at=before')
    assert r.status == 200
    with tarfile.open(fileobj=io.BytesIO(r.body)) as t:
        assert t.getmember('./sub/g').mode == 0o4711 and t.extractfile('./f').read() == b'one\n'
    h.delete(s)


def test_guest_cannot_hide(host):
    h = host
    s = h.create()
    # A mount of the guest's own covers what it wrote.
    h.sh(s, 'mkdir /root/h && echo secret >/root/h/hidden && mount -t tmpfs x /root/h && ls -A /root/h')
    assert ('added', '/root/h/hidden') in changes(h, s)[0]
    r = h.get(f'/v1/sandboxes/{s}/history/file?path=/root/h/hidden')
    assert (r.status, r.body) == (200, b'secret\n')
    h.delete(s)


def test_guest_that_corrupts_its_filesystem(host):
    h = host
    s, other = h.create(), h.create()
    h.sh(other, 'echo fine >/root/a')
    h.sh(s, 'echo x >/root/a; sync; (sleep 1; dd if=/dev/zero of=/dev/vda bs=1M count=16 conv=fsync) >/dev/null 2>&1 &')

    def refused():
        r = h.get(f'/v1/sandboxes/{s}/diff')
        return r.status == 422 and r.json['error']['code'] == 'filesystem_unreadable'
    until(refused, what='an error about it')
    assert changes(h, other)[0] == {('added', '/root/a')}
    h.delete(s)
    h.delete(other)
    until(lambda: h.left() == {'run': [], 'disks': [], 'images': []}, what='nothing')


def test_what_is_written_into_etc_hosts(host):
    """The file that says who a sandbox is lies in memory. What its user writes into it is a file of the disk like any other."""
    h = host
    s = h.create(name='named')

    def changed():
        return {c['path'] for c in h.get(f'/v1/sandboxes/{s}/diff?prefix=/etc').json['changes']}
    assert '/etc/hosts' not in changed()
    h.sh(s, 'echo "10.9.8.7 mine" >>/etc/hosts')
    assert '/etc/hosts' in changed()
    assert h.get(f'/v1/sandboxes/{s}/history/file?path=/etc/hosts').body.endswith(b'10.9.8.7 mine\n')
    assert h.sh(s, 'stat -c "%F %a" /etc/hosts; ls -a /etc | grep -c cspace || true') == 'regular file 644\n0\n'
    h.sh(s, 'echo "10.9.8.6 too" >>/etc/hosts')
    h.change(s, 'stop')
    h.change(s, 'start')
    own = h.sh(s, 'cat /etc/hosts; hostname')
    assert '10.9.8.7 mine\n' in own and '10.9.8.6 too\n' in own and f'127.0.1.1\t{own.split()[-1]}\n' in own, own
    # One that was not looked at before it stopped; and a copy, which has its memory and another name.
    b = h.create(name='other')
    h.sh(b, 'echo "10.9.8.5 stays" >>/etc/hosts')
    copy = h.post(f'/v1/sandboxes/{b}/fork?wait=120', {'n': 1, 'name': 'copy'}).json['sandboxes'][0]['id']
    h.change(b, 'stop')
    h.change(b, 'start')
    for x, name in ((b, 'other'), (copy, 'copy')):
        own = h.sh(x, 'cat /etc/hosts; hostname')
        assert '10.9.8.5 stays\n' in own and own.count('127.0.1.1') == 1 and f'127.0.1.1\t{own.split()[-1]}\n' in own, (name, own)
