#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cspace-history over 200,000 files of which 100 have changed, against walking the tree.

The rival is `find -newer` on the mounted image, on this machine and not in a VM: the least that a walk in a guest could cost.
It only looks at times; what cspace-history says does not depend on them.

usage: tests/bench/history.py [SAMPLES]      (alone; tests/bench/run has it as `history`)
"""
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS, PER_FOLDER, CHANGED = 2000, 100, 100
FEATURES = ('none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,'
            'dir_nlink,extra_isize,metadata_csum')


def program():
    for path in (os.path.join(os.environ.get('CSPACE_BUILD', ''), 'src/history/cspace-history'),
                 '/usr/local/libexec/cspace/cspace-history'):
        if os.path.exists(path):
            return path
    sys.exit('bench: cspace-history is neither built ($CSPACE_BUILD) nor installed')


def run(*argv):
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def path_of(mount, n):
    return f'{mount}/d{n // PER_FOLDER // 50}/s{n // PER_FOLDER}/file{n % PER_FOLDER:04d}.txt'


def changed_files():
    return random.Random(1).sample(range(FOLDERS * PER_FOLDER), CHANGED)


class Images:
    """Two reflinked images on a btrfs of our own."""

    def __init__(self):
        self.top = tempfile.mkdtemp(prefix='cspace-bench-', dir='/var/tmp')
        self.data, self.mount = f'{self.top}/data', f'{self.top}/mount'
        self.old, self.new = f'{self.data}/old', f'{self.data}/new'

    def __enter__(self):
        os.mkdir(self.data)
        os.mkdir(self.mount)
        run('truncate', '-s', '6G', f'{self.top}/btrfs')
        run('mkfs.btrfs', '-q', f'{self.top}/btrfs')
        run('mount', '-o', 'loop', f'{self.top}/btrfs', self.data)
        run('truncate', '-s', '4G', self.old)
        run('mke2fs', '-q', '-F', '-t', 'ext4', '-b', '4096', '-I', '256', '-N', '524288', '-J', 'size=32', '-O', FEATURES, '-E',
            'lazy_itable_init=1,lazy_journal_init=1,nodiscard,assume_storage_prezeroed=1', self.old)
        run('mount', '-o', 'loop', self.old, self.mount)
        for n in range(FOLDERS * PER_FOLDER):
            if n % PER_FOLDER == 0:
                os.makedirs(os.path.dirname(path_of(self.mount, n)))
            with open(path_of(self.mount, n), 'wb') as f:
                f.write(b'x' * (100 + n % PER_FOLDER))
        run('umount', self.mount)
        run('cp', '--reflink=always', self.old, self.new)
        run('mount', '-o', 'loop', self.new, self.mount)
        for n in changed_files():
            with open(path_of(self.mount, n), 'ab') as f:
                f.write(b'changed\n')
        run('umount', self.mount)
        run('sync', '-f', self.data)
        return self

    def __exit__(self, *_):
        subprocess.run(['umount', self.mount], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(['umount', '-l', self.data], check=False)
        shutil.rmtree(self.top)


def diff_once(images):
    argv = ['sh', '-c', 'exec "$0" diff 3<"$1" 4<"$2"', program(), images.old, images.new]
    began = time.perf_counter()
    out = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout
    took = (time.perf_counter() - began) * 1000
    end = json.loads(out.splitlines()[-1])
    assert end['changes'] == CHANGED and end['stats']['shared'], end
    return took


def walk_once(images):
    began = time.perf_counter()
    out = subprocess.run(['find', images.mount, '-newer', images.old, '-type', 'f'], stdout=subprocess.PIPE, check=True).stdout
    assert len(out.splitlines()) == CHANGED, len(out.splitlines())
    return (time.perf_counter() - began) * 1000


def drop_caches():
    with open('/proc/sys/vm/drop_caches', 'w', encoding='ascii') as f:
        f.write('3')


def cold(images, what):
    drop_caches()
    return what(images)


def measure(samples):
    """{name: milliseconds of each round}; the rivals take turns."""
    with Images() as images:
        run('mount', '-o', 'loop,ro', images.new, images.mount)
        # The first change came after the last file was made.
        first = min(os.stat(path_of(images.mount, n)).st_mtime_ns for n in changed_files())
        os.utime(images.old, ns=(first - 1,) * 2)
        for what in (diff_once, walk_once):  # fill the caches
            what(images)
        rows = {'history_diff': [], 'history_walk': [], 'history_diff_cold': [], 'history_walk_cold': []}
        for _ in range(samples):
            rows['history_diff'].append(diff_once(images))
            rows['history_walk'].append(walk_once(images))
        for _ in range(min(samples, 5)):
            rows['history_diff_cold'].append(cold(images, diff_once))
            rows['history_walk_cold'].append(cold(images, walk_once))
        return rows


def ratios(rows):
    mid = {k: statistics.median(v) for k, v in rows.items()}
    return {'history_diff': mid['history_walk'] / mid['history_diff'],
            'history_diff_cold': mid['history_walk_cold'] / mid['history_diff_cold']}


if __name__ == '__main__':
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    for name, values in found.items():
        more = f'  walk_ratio {ratios(found)[name]:.1f}' if name in ratios(found) else ''
        print(f'{name:20} median {statistics.median(values):8.1f} ms  min {min(values):8.1f}  n={len(values)}{more}')
