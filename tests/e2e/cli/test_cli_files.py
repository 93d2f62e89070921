# SPDX-License-Identifier: Apache-2.0
"""cp with the real agent at the other end."""
import os
import stat
import subprocess

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def there(cli, sandbox, request):
    """A new folder in the sandbox."""
    path = f'/srv/{request.node.name.replace("/", "_")[:80]}'.encode('ascii', 'replace').decode().replace('?', '_')
    assert cli('exec', sandbox, '--', 'sh', '-c', 'rm -rf "$1" && mkdir "$1"', 'sh', path).returncode == 0
    return path


def put(path, data=b'x', mode=None):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'wb') as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)


def get(path):
    with open(path, 'rb') as f:
        return f.read()


def make_tree(root):
    put(f'{root}/file', b'in a file', 0o640)
    put(f'{root}/sub/deep/tool', b'#!/bin/sh\n', 0o755)
    put(f'{root}/empty', b'')
    put(f'{root}/locked/file', b'y')
    os.makedirs(f'{root}/nothing')
    os.symlink('file', f'{root}/relative')
    os.symlink('/etc/hostname', f'{root}/absolute')
    os.symlink('nowhere', f'{root}/dangling')
    os.symlink('sub', f'{root}/to-folder')
    os.link(f'{root}/file', f'{root}/hard')
    os.utime(f'{root}/file', (1000000000, 1000000000))
    os.chmod(f'{root}/locked', 0o555)


def listing(root):
    """Everything about a tree that must come along."""
    out = []
    for folder, dirs, files in os.walk(root):
        for name in dirs + files:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            kind = stat.S_IFMT(st.st_mode)
            out.append((os.path.relpath(path, root), kind, os.readlink(path) if stat.S_ISLNK(st.st_mode) else stat.S_IMODE(st.st_mode),
                        get(path) if stat.S_ISREG(st.st_mode) else b'', st.st_nlink if stat.S_ISREG(st.st_mode) else 0))
    return sorted(out)


LISTING = r'''
import os, stat, sys, hashlib
root = sys.argv[1]
for folder, dirs, files in os.walk(root):
    for name in dirs + files:
        p = os.path.join(folder, name)
        st = os.lstat(p)
        what = os.readlink(p) if stat.S_ISLNK(st.st_mode) else '%o' % stat.S_IMODE(st.st_mode)
        print(repr((os.path.relpath(p, root), stat.S_IFMT(st.st_mode), what, st.st_nlink if stat.S_ISREG(st.st_mode) else 0, st.st_uid)))
'''


def test_tree_there_and_back(cli, sandbox, here, there):
    make_tree('t')
    assert cli('cp', 't', f'{sandbox}:{there}').returncode == 0
    seen = cli.out('exec', sandbox, '--', 'python3', '-c', LISTING, f'{there}/t')
    assert "('relative', 40960, 'file', 0, 0)" in seen and "('absolute', 40960, '/etc/hostname', 0, 0)" in seen
    assert "('file', 32768, '640', 2, 0)" in seen and "('locked', 16384, '555', 0, 0)" in seen
    assert cli('cp', f'{sandbox}:{there}/t', 'back').returncode == 0
    assert listing('back') == listing('t')
    assert os.stat('back/file').st_mtime == 1000000000


def test_owner(cli, sandbox, here, there):
    make_tree('t')
    put('f')
    assert cli('exec', sandbox, '--', 'chown', 'user', there).returncode == 0
    assert cli('cp', '-u', 'user', 't', 'f', f'{sandbox}:{there}').returncode == 0
    assert cli.out('exec', sandbox, '--', 'sh', '-c', f'find {there} ! -user user') == ''
    assert cli('exec', sandbox, '--', 'sh', '-c', f'echo secret > {there}/root; chmod 600 {there}/root').returncode == 0
    r = cli('cp', '-u', 'user', f'{sandbox}:{there}/root', 'x')
    assert r.returncode == 125 and not os.path.exists('x')


@pytest.mark.parametrize('up', [True, False], ids=['up', 'down'])
def test_rules(cli, sandbox, here, there, up):
    """The table of cp(1): file, folder and contents onto a folder, a file, nothing."""
    def remote(script):
        return cli('exec', '-w', there, sandbox, '--', 'sh', '-c', script)

    def local(script):
        return subprocess.run(['sh', '-c', script], capture_output=True, check=False)

    source, target = (local, remote) if up else (remote, local)

    def cp(src, dst):
        return cli('cp', src, f'{sandbox}:{there}/{dst}') if up else cli('cp', f'{sandbox}:{there}/{src}', dst)

    assert source('mkdir -p t/sub; echo one > a; chmod 750 a; echo two > t/sub/b; ln -s a l').returncode == 0
    assert target('mkdir d e; echo old > f; chmod 600 f').returncode == 0

    def check(script):
        r = target(script)
        assert r.returncode == 0, (script, r.stdout, r.stderr)

    assert cp('a', 'new').returncode == 0
    check('test "$(cat new)" = one && test "$(stat -c %a new)" = 750')
    assert cp('a', 'd').returncode == 0 and cp('a', 'd/').returncode == 0
    check('test "$(cat d/a)" = one && test -f d/a')
    assert cp('a', 'f').returncode == 0 and cp('a', 'f').returncode == 0
    check('test "$(cat f)" = one && test "$(stat -c %a f)" = 600')
    assert cp('a', 'no/x').returncode == 125 and cp('a', 'no/').returncode == 125
    check('test ! -e no')
    assert cp('t', 'n').returncode == 0
    check('test "$(cat n/sub/b)" = two')
    for _ in range(2):
        assert cp('t', 'd').returncode == 0
    check('test "$(cat d/t/sub/b)" = two && test ! -e d/t/t')
    assert cp('t/.', 'e').returncode == 0
    check('test "$(cat e/sub/b)" = two')
    assert cp('t', 'f').returncode == 125
    check('test -f f')
    assert cp('l', 'm').returncode == 0
    check('test ! -L m && test "$(cat m)" = one')
    assert cp('absent', 'x').returncode == 125


NAMES = ['..a', 'a..', '%2F', 'a+b', 'a%20b', 'a b', '\u00e9', 'e\u0301', '\U0001f600', '-dash', 'back\\slash', 'new\nline', 'quote"\'', '*', 'x' * 255]


def test_names(cli, sandbox, here, there):
    for name in NAMES:
        put(f't/{name}', name.encode())
        assert cli('cp', f'./t/{name}', f'{sandbox}:{there}/').returncode == 0, name
    put(os.fsencode('t/') + b'\xff\xfe', b'bytes')
    assert cli('cp', 't', f'{sandbox}:{there}').returncode == 0
    seen = cli.out('exec', sandbox, '--', 'python3', '-c', 'import os, sys; print(ascii(sorted(map(os.fsencode, os.listdir(sys.argv[1])))))', f'{there}/t')
    assert seen.strip() == ascii(sorted([n.encode() for n in NAMES] + [b'\xff\xfe']))
    assert cli('cp', f'{sandbox}:{there}/t', 'back').returncode == 0
    assert sorted(os.listdir(b'back')) == sorted(os.listdir(b't'))
    for name in NAMES:
        assert get(f'back/{name}') == name.encode()
        assert cli('cp', f'{sandbox}:{there}/{name}', 'one').returncode == 0
        assert get('one') == name.encode(), name


def test_large_file(cli, sandbox, here, there):
    size = int(os.environ.get('CSPACE_E2E_FILE', 100 << 20))
    block = os.urandom(1 << 20)
    with open('big', 'wb') as f:
        for _ in range(size >> 20):
            f.write(block)
    for what in ['up', 'down']:
        args = ['big', f'{sandbox}:{there}/big'] if what == 'up' else [f'{sandbox}:{there}/big', 'back']
        p = cli.start('cp', *args)
        peak = 0
        while p.poll() is None:
            try:
                with open(f'/proc/{p.pid}/status', encoding='ascii') as f:
                    peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith('VmHWM')])
                p.wait(0.2)
            except (subprocess.TimeoutExpired, FileNotFoundError, ProcessLookupError):
                pass
        assert p.returncode == 0 and peak < 96 * 1024
    assert subprocess.run(['cmp', 'big', 'back'], check=False).returncode == 0
    cli('exec', sandbox, '--', 'rm', '-rf', there)


def test_many_files(cli, sandbox, here, there):
    for i in range(2000):
        put(f't/{i % 50}/{i}', str(i).encode())
    assert cli('cp', 't', f'{sandbox}:{there}').returncode == 0
    assert cli.out('exec', sandbox, '--', 'sh', '-c', f'find {there}/t -type f | wc -l').strip() == '2000'
    assert cli('cp', f'{sandbox}:{there}/t', 'back').returncode == 0
    assert listing('back') == listing('t')


def test_pipes(cli, sandbox, here, there):
    data = os.urandom(1 << 20)
    assert cli('cp', '-', f'{sandbox}:{there}/f', input=data).returncode == 0
    assert cli('cp', f'{sandbox}:{there}/f', '-').stdout == data
    make_tree('t')
    archive = subprocess.run(['tar', '-C', 't', '-c', '.'], capture_output=True, check=True).stdout
    assert cli('cp', '--tar', '-', f'{sandbox}:{there}', input=archive).returncode == 0
    out = cli('cp', '--tar', f'{sandbox}:{there}', '-').stdout
    os.mkdir('back')
    subprocess.run(['tar', '-C', 'back', '-x'], input=out, check=True)
    os.unlink('back/f')
    assert listing('back') == listing('t')


def test_full_disk(cli, sandbox, here, there):
    r = cli('exec', sandbox, '--', 'sh', '-c', f'mkdir {there}/small && mount -t tmpfs -o size=1m none {there}/small')
    assert r.returncode == 0, r.stderr
    put('big', os.urandom(3 << 20))
    put('t/big', os.urandom(3 << 20))
    for what in ['big', 't']:
        r = cli('cp', what, f'{sandbox}:{there}/small/')
        assert r.returncode == 125 and b'space' in r.stderr.lower(), r.stderr
    assert cli('exec', sandbox, '--', 'umount', f'{there}/small').returncode == 0


def test_bad_paths(cli, sandbox, here, there):
    put('a')
    for args in [['a', f'{sandbox}:/no/such/folder/x'], [f'{sandbox}:/no/such', 'x'], ['a', f'{sandbox}:/etc/passwd/x'],
                 ['a', 'no-such-sandbox:/x'], [f'{sandbox}:/dev/null', 'x'], ['-u', 'nobody-here', 'a', f'{sandbox}:/tmp/a']]:
        r = cli('cp', *args)
        assert r.returncode == 125 and r.stderr.startswith(b'cspace: '), args
    assert os.listdir('.') == ['a']


def test_guest_cannot_write_outside(cli, sandbox, here, there):
    """Links in the sandbox that point out of the tree come as links; later contents do not go through them."""
    os.mkdir('out')
    script = f'mkdir {there}/t; ln -s {here}/out {there}/t/l; ln -s ../out {there}/t/r'
    assert cli('exec', sandbox, '--', 'sh', '-c', script).returncode == 0
    assert cli('cp', f'{sandbox}:{there}/t', 'got').returncode == 0
    assert os.readlink('got/l') == f'{here}/out'
    script = f'cd {there}/t; rm l r; mkdir l r; echo x > l/pwned; echo x > r/pwned'
    assert cli('exec', sandbox, '--', 'sh', '-c', script).returncode == 0
    assert cli('cp', f'{sandbox}:{there}/t/.', 'got').returncode == 125
    assert os.listdir('out') == []
