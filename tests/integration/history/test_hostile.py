# SPDX-License-Identifier: Apache-2.0
"""Images that lie. Whatever they say, the process ends in bounded time by itself, with an answer or an error."""
import json
import os
import random
import resource
import shutil
import subprocess

import pytest
from conftest import Disk, HISTORY, diff, history, make_disk, run

SECONDS = 60


def ends_well(done):
    assert done.returncode in (0, 1), (done.returncode, done.stderr[-300:])
    assert done.stderr == b''
    if done.returncode == 1:
        last = done.stdout.rsplit(b'\n', 2)[-2]
        assert json.loads(last[last.find(b'{"error"'):])['code'] != 'io_error'


@pytest.fixture(scope='module')
def victim(tmp_path_factory):
    """A small image with a bit of everything and a journal that is to be replayed; without checksums, so that a wrong
    field is not simply refused."""
    top = str(tmp_path_factory.mktemp('victim'))
    disk = make_disk(top, size='8M', features='^metadata_csum,inline_data', options=['-b', '1024', '-N', '512'])
    with disk.mounted() as m:
        os.makedirs(f'{m}/a/b/c')
        for i in range(120):
            with open(f'{m}/a/file-with-a-name-{i:03d}', 'wb') as f:
                f.write(b'%d' % i * i * 10)
        os.symlink('a/b', f'{m}/link')
        os.symlink('x' * 200, f'{m}/slow')
        os.setxattr(f'{m}/a/file-with-a-name-007', 'user.x', b'y' * 300)
        with open(f'{m}/fragmented', 'wb') as f:
            for i in range(400):
                f.seek(i * 3000)
                f.write(b'z' * 1000)
    with open(f'{top}/block', 'wb') as f:
        f.write(b'J' * 1024)
    block = int(subprocess.run(['debugfs', '-R', 'blocks /a/file-with-a-name-099', disk.path], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, check=True).stdout.split()[0])
    disk.debugfs('jo', f'jw -b {block} {top}/block', 'jc')
    return disk.path


def used_blocks(data, size=1024):
    return [i for i in range(len(data) // size) if data[i * size:(i + 1) * size].strip(b'\0')]


@pytest.mark.parametrize('seed', range(60))
def test_random_damage(victim, tmp_path, seed):
    rng = random.Random(seed)
    with open(victim, 'rb') as f:
        data = bytearray(f.read())
    blocks = used_blocks(data)
    metadata = [b for b in blocks if b < 120]
    for _ in range(rng.choice([1, 3, 10, 100, 1000])):
        at = rng.choice(metadata if rng.random() < 0.7 else blocks) * 1024 + rng.randrange(1020)
        width = rng.choice([1, 2, 4])
        data[at:at + width] = rng.choice([rng.randbytes(width), b'\xff' * width, b'\0' * width])
    bad = tmp_path / 'bad'
    bad.write_bytes(data)
    ends_well(history('diff', '--patch', old=victim, new=str(bad), timeout=SECONDS))
    ends_well(history('diff', old=str(bad), new=victim, timeout=SECONDS))
    ends_well(history('extract', '--path', '/', old=str(bad), timeout=SECONDS))
    ends_well(history('cat', '--path', '/link/../file-with-a-name-099', old=str(bad), timeout=SECONDS))


@pytest.mark.parametrize('seed', range(20))
def test_random_damage_where_blocks_are_shared(victim, shared, seed):
    """The same with a reflink that is damaged in place, so that diff works from the blocks that are not shared."""
    rng = random.Random(1000 + seed)
    good, bad = os.path.join(shared, 'good'), os.path.join(shared, 'bad')
    run('cp', victim, good)
    run('sync', good)
    run('cp', '--reflink=always', good, bad)
    with open(bad, 'r+b') as f:
        blocks = used_blocks(f.read())
        for _ in range(rng.choice([1, 5, 30, 300])):
            f.seek(rng.choice(blocks if rng.random() < 0.5 else blocks[:100]) * 1024 + rng.randrange(1020))
            f.write(rng.choice([rng.randbytes(rng.randrange(1, 5)), b'\xff\xff', b'\0\0\0\0']))
    ends_well(history('diff', '--patch', old=good, new=bad, timeout=SECONDS))
    ends_well(history('diff', '--patch', old=bad, new=good, timeout=SECONDS))


def edit(victim, tmp_path, *commands):
    bad = Disk(str(tmp_path / 'bad'))
    run('cp', victim, bad.path)
    bad.debugfs(*commands)
    return bad.path


def test_a_folder_that_holds_itself(victim, tmp_path):
    bad = edit(victim, tmp_path, 'ln a/b a/b/c/up', 'ln a a/b/c/root')
    done = history('extract', '--path', '/', old=bad, timeout=SECONDS)
    assert done.returncode == 1 and b'corrupt_filesystem' in done.stdout
    ends_well(history('diff', old=victim, new=bad, timeout=SECONDS))


@pytest.mark.parametrize('name,depth', [('d', 300), ('d' * 200, 30)])
def test_what_lies_too_deep_is_told_of(victim, tmp_path, name, depth):
    """A guest can make folders so deep, step by step, and put something there: the answer says that it is not all."""
    _, end = diff(victim, edit(victim, tmp_path))
    assert 'warnings' not in end['old'] and 'warnings' not in end['new']
    deep = edit(victim, tmp_path, f'mkdir {name}', *[x for _ in range(depth) for x in (f'cd {name}', f'mkdir {name}')])
    records, end = diff(victim, deep)
    assert f'/{name}/{name}' in [r['path'] for r in records]
    assert end['new']['warnings'] == ['too_deep'] and 'warnings' not in end['old']
    _, end = diff(deep, victim)
    assert end['old']['warnings'] == ['too_deep'] and 'warnings' not in end['new']


def test_a_file_of_exabytes(victim, tmp_path):
    bad = edit(victim, tmp_path, 'sif fragmented size 0xfffffffffff')
    done = history('cat', '--path', '/fragmented', old=bad, timeout=SECONDS)
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'limit'
    records, _ = diff(victim, bad)
    assert [r['path'] for r in records] == ['/fragmented']


def test_two_files_on_the_same_blocks(victim, tmp_path):
    """The older image is honest; in the newer one a file claims another's blocks, and writes them."""
    bad = edit(victim, tmp_path, 'copy_inode a/file-with-a-name-100 a/file-with-a-name-101')
    records, _ = diff(victim, bad)
    assert '/a/file-with-a-name-101' in [r['path'] for r in records]


def test_hidden_inodes(victim, tmp_path):
    """Bitmaps and counters that say a file's inode and blocks are free do not hide it."""
    bad = edit(victim, tmp_path, 'freei a/file-with-a-name-050', 'set_bg 0 itable_unused 500', 'set_bg 0 free_inodes_count 500')
    with open(victim, 'rb') as f:
        at = f.read().find(b'50' * 400)
    assert at > 0
    with open(bad, 'r+b') as f:
        f.seek(at)
        f.write(b'!')
    records, _ = diff(victim, bad)
    assert [(r['path'], r.get('what')) for r in records] == [('/a/file-with-a-name-050', ['content'])]


def test_names_that_would_leave_the_tree(victim, tmp_path):
    bad = str(tmp_path / 'bad')
    run('cp', victim, bad)
    with open(bad, 'r+b') as f:
        data = f.read()
        for was, now in ((b'file-with-a-name-001', b'../../../etc/passwd1'), (b'file-with-a-name-002', b'file\0with-a-name-002')):
            at = -1
            while (at := data.find(was, at + 1)) >= 0:
                f.seek(at)
                f.write(now)
    done = history('extract', '--path', '/', old=bad)
    assert b'../etc' not in done.stdout and done.returncode == 0
    records, end = diff(victim, bad)
    assert end['stats']['bad_names'] >= 2
    assert all('..' not in r['path'] for r in records)


def test_confinement(victim):
    """After its start it holds no capability to open, and its limits are set; seen through /proc while it waits for a
    reader of its answer."""
    read_end, write_end = os.pipe()
    big = Disk(victim)
    with open(victim, 'rb') as f:
        fd = os.dup2(f.fileno(), 63)
        p = subprocess.Popen([HISTORY, 'extract', '--path', '/'], stdout=write_end, stdin=subprocess.DEVNULL, pass_fds=(3,),
                             preexec_fn=lambda: os.dup2(63, 3))
        os.close(write_end)
        try:
            first = os.read(read_end, 100)  # confined before the first byte of the image was read
            assert first.startswith(b'{"type"')
            status = dict(l.split(':\t', 1) for l in open(f'/proc/{p.pid}/status', encoding='utf-8').read().splitlines() if ':\t' in l)
            limits = {l[:26].strip(): l[26:].split()[:2] for l in open(f'/proc/{p.pid}/limits', encoding='utf-8')}
            assert status['Seccomp'] == '2' and status['NoNewPrivs'] == '1'
            assert limits['Max address space'] == [str(1 << 30)] * 2
            assert limits['Max core file size'] == ['0', '0'] and int(limits['Max cpu time'][0]) <= 120
        finally:
            os.close(fd)
            while os.read(read_end, 1 << 20):
                pass
            os.close(read_end)
            assert p.wait(30) == 0
    assert big


def test_needs_no_rights(victim, tmp_path):
    """As cspace-rootd starts it: a uid that could not open the images, no environment, nothing but three descriptors."""
    new = str(tmp_path / 'new')
    run('cp', victim, new)
    Disk(new).debugfs('rm /slow')
    for path in (victim, new):
        os.chmod(path, 0o600)

    def drop():
        os.dup2(a.fileno(), 3)
        os.dup2(b.fileno(), 4)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    program = os.path.join('/var/tmp', f'cspace-history-{os.getpid()}')  # the build may lie where nobody can go
    shutil.copy(HISTORY, program)
    try:
        with open(victim, 'rb') as f, open(new, 'rb') as g, os.fdopen(os.dup2(f.fileno(), 63), 'rb') as a, \
                os.fdopen(os.dup2(g.fileno(), 64), 'rb') as b:
            done = subprocess.run([program, 'diff'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, pass_fds=(3, 4), env={},
                                  preexec_fn=drop, cwd='/', check=False)
    finally:
        os.unlink(program)
    out = [json.loads(l) for l in done.stdout.splitlines()]
    assert done.returncode == 0 and [(r['status'], r['path']) for r in out[:-1]] == [('deleted', '/slow')]


def test_little_memory(victim, tmp_path):
    """Every allocation that fails is an error like any other. Below the first sizes the program cannot even be loaded."""
    new = str(tmp_path / 'new')
    run('cp', victim, new)
    Disk(new).debugfs('rm /slow', 'kill_file /fragmented', 'symlink /new target', 'mkdir /dir')
    codes = set()

    def setup():
        os.dup2(63, 3)
        os.dup2(64, 4)
    for kib in range(2000, 9000, 211):
        with open(victim, 'rb') as f, open(new, 'rb') as g, os.fdopen(os.dup2(f.fileno(), 63), 'rb'), \
                os.fdopen(os.dup2(g.fileno(), 64), 'rb'):
            done = subprocess.run(['sh', '-c', f'ulimit -v {kib}; exec "$0" diff --patch', HISTORY], check=False, preexec_fn=setup,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(3, 4))
        codes.add(done.returncode)
        if done.returncode == 1 and done.stdout:
            assert json.loads(done.stdout.splitlines()[-1])['code'] == 'limit'
    assert {0, 1} <= codes <= {0, 1, 127}, codes


def test_an_image_that_could_be_written_is_refused(victim):
    with open(victim, 'r+b') as f, os.fdopen(os.dup2(f.fileno(), 63), 'r+b'):
        done = subprocess.run([HISTORY, 'cat', '--path', '/'], stdout=subprocess.PIPE, pass_fds=(3,), check=False,
                              preexec_fn=lambda: os.dup2(63, 3))
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'bad_argument'


def test_limits_end_the_process(victim, tmp_path):
    """A parent's stricter limit stays: CPU time of one second against an image made to cost hours."""
    bad = str(tmp_path / 'bad')
    disk = make_disk(str(tmp_path), name='bad', size='64M')
    with disk.mounted() as m:
        with open(f'{m}/sparse', 'wb') as f:
            f.truncate(10 << 40)
    argv = [HISTORY, 'cat', '--path', '/sparse', '--max-bytes', str(1 << 40)]
    with open(bad, 'rb') as f:
        os.dup2(f.fileno(), 63)
        done = subprocess.run(argv, stdout=subprocess.PIPE, pass_fds=(3,), timeout=SECONDS, preexec_fn=lambda: os.dup2(63, 3), check=False)
        os.close(63)
    assert done.returncode == 1 and json.loads(done.stdout)['code'] == 'limit'  # said at once: nothing was read

    def strict():
        os.dup2(63, 3)
        resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
    with disk.mounted() as m:
        with open(f'{m}/sparse', 'r+b') as f:
            f.truncate(900 << 30)
    with open(bad, 'rb') as f, open('/dev/null', 'wb') as null:
        os.dup2(f.fileno(), 63)
        done = subprocess.run(argv, stdout=null, pass_fds=(3,), timeout=SECONDS, preexec_fn=strict, check=False)
        os.close(63)
    assert done.returncode in (-24, -9), done.returncode  # SIGXCPU
