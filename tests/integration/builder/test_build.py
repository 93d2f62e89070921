# SPDX-License-Identifier: Apache-2.0
"""What all builds share: arguments, isolation, time limits, being killed."""
import os
import subprocess
import time

import conftest
import pytest


def code(r):
    return r.last.get('code')


@pytest.mark.parametrize('packages', ['-y', 'a;b', 'foo-', '?essential', '$(id)'])
def test_packages_that_are_no_names(bench, packages):
    r = bench.build('--source', 'packages', '--packages', packages)
    assert (r.code, code(r)) == (1, 'bad_argument')


def test_suite_that_is_no_name(bench):
    r = bench.build('--source', 'packages', '--suite', '../x')
    assert (r.code, code(r)) == (1, 'bad_argument')


def test_package_that_does_not_exist(bench):
    r = bench.build('--source', 'packages', '--packages', 'cspace-no-such-package')
    assert (r.code, code(r)) == (1, 'package_not_found')


def test_archive_that_does_not_answer(bench):
    sources = os.path.join(bench.folder, 'no.sources')
    with open(sources, 'w', encoding='ascii') as f:
        f.write('Types: deb\nURIs: http://127.0.0.1:9/\nSuites: x\nComponents: main\nTrusted: yes\n')
    r = bench.build('--source', 'packages', '--sources', sources, sources=False)
    assert (r.code, code(r)) == (1, 'download_failed')
    assert '127.0.0.1' in r.last['error']


def test_agent_that_is_none(bench, tar):
    r = bench.tar(tar=tar().root().close(), agent='/nonexistent/agent')
    assert r.code == 1 and '/nonexistent/agent' in r.last['error']
    r = bench.tar(tar=tar('b.tar').root().close(), agent='/etc/passwd')
    assert r.code == 1 and 'not a program' in r.last['error']


def test_folder_in_use(bench, tar):
    path = tar().root().close()
    first = bench.tar(tar=path)
    again = bench.tar(tar=path, folder=first.folder)
    assert again.code == 1 and 'out' in again.last['error']


def test_refuses_the_hosts_uids(bench):
    p = subprocess.run([conftest.BUILDER, '--dir', bench.new_folder(), '--source', 'packages', '--disk-bytes', '67108864', '--agent', bench.agent],
                       check=False, capture_output=True, text=True)
    assert p.returncode == 1
    assert "refusing to run with the host's uids" in p.stdout


def test_wrong_arguments():
    for args in ([], ['--dir', 'relative'], ['--bogus'], ['--source', 'docker'], ['--timeout', '0']):
        p = subprocess.run([conftest.BUILDER, *args], check=False, capture_output=True, text=True)
        assert p.returncode == 1 and '"code":"bad_argument"' in p.stdout.replace(' ', '')


def test_files_belong_to_the_range(bench, tar):
    r = bench.tar(tar=tar().root().close())
    owners = {os.lstat(os.path.join(d, f)).st_uid for d, _, files in os.walk(r.folder) for f in files}
    assert owners == {conftest.UID_BASE}


def test_time_limit(bench, tar):
    fifo = os.path.join(bench.folder, 'never')
    os.mkfifo(fifo)
    keep = os.open(fifo, os.O_RDWR)  # a writer that never writes
    try:
        began = time.monotonic()
        r = bench.tar('--timeout', '8', tar=fifo)
        assert (r.code, code(r)) == (1, 'timeout')
        assert 'rootfs' in r.last['error']
        assert time.monotonic() - began < 30
    finally:
        os.close(keep)
        os.unlink(fifo)


def processes_of(base):
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/status', encoding='utf-8') as f:
                uid = next(int(line.split()[1]) for line in f if line.startswith('Uid:'))
        except (OSError, StopIteration):
            continue
        if base <= uid < base + 65536:
            found.append(pid)
    return found


@pytest.mark.parametrize('step', ['download', 'rootfs', 'configure', 'kernel', 'disk', 'finish'])
def test_killed_in_a_step(bench, tar, step):
    """Nothing is left but the folder: no process, no mount, no loop device."""
    def kill(process, line):
        if line.get('step') == step:
            process.kill()

    r = bench.tar(tar=tar().root().add('etc/x', bytes(1 << 20)).close(), on_line=kill)
    assert r.code != 0
    deadline = time.monotonic() + 10
    while processes_of(conftest.UID_BASE) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(conftest.UID_BASE) == []
    with open('/proc/self/mountinfo', encoding='utf-8') as f:  # of the build alone: other tests mount, too
        assert r.folder not in f.read()
    subprocess.run(['rm', '-rf', r.folder], check=True)


def test_cache_is_used(bench, tar):
    path = tar().root().close()
    bench.tar(tar=path)
    r = bench.tar(tar=path)
    with open(r.path('build.log'), encoding='utf-8') as f:
        assert '1 of 1 packages are in the cache' in f.read()


def test_damaged_cache_is_not_used(bench, tar):
    path = tar().root().close()
    good = bench.tar(tar=path)
    kernel = next(f for f in os.listdir(bench.cache) if f.startswith('linux-image-6'))
    with open(os.path.join(bench.cache, kernel), 'r+b') as f:
        f.seek(200)
        f.write(b'XXXX')
    r = bench.tar(tar=path)
    assert r.code == 0, r.last
    assert r.last['digest'] == good.last['digest']


def test_two_at_once(bench, tar):
    path = tar().root().close()
    out = os.open('/dev/null', os.O_WRONLY)
    running = [bench.start('--source', 'tar', tar=path, stdout=out) for _ in range(3)]
    os.close(out)
    assert [p.wait() for _, p in running] == [0, 0, 0]
    digests = set()
    for folder, _ in running:
        with open(os.path.join(folder, 'out', 'MANIFEST'), encoding='ascii') as f:
            digests.add(f.read())
    assert len(digests) == 1
