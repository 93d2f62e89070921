#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a C header with two small ext4 images, block by block: what fuzz_history damages.

usage: history_base.py OUTPUT
"""
import os
import subprocess
import sys
import tempfile

BLOCK = 1024
COMMON = 'none,has_journal,ext_attr,dir_index,filetype,sparse_super,large_file,huge_file,extra_isize'
VARIANTS = [COMMON + ',extent,64bit,flex_bg,inline_data', COMMON]
ENV = {**os.environ, 'MKE2FS_CONFIG': '/dev/null', 'E2FSPROGS_FAKE_TIME': '1700000000',
       'PATH': '/usr/sbin:/sbin:/usr/bin:/bin'}


def make_tree(top):
    os.makedirs(f'{top}/a/b/c')
    for i in range(24):
        with open(f'{top}/a/file-with-a-name-{i:03d}', 'wb') as f:
            f.write(b'line %d\n' % i * i * 9)
    for i in range(3):
        with open(f'{top}/a/b/{i}', 'wb') as f:
            f.write(b'tiny')
    with open(f'{top}/fragmented', 'wb') as f:
        f.write(b'z' * 60 * BLOCK)
    with open(f'{top}/sparse', 'wb') as f:
        f.seek(3_000_000)
        f.write(b'end')
    os.link(f'{top}/a/b/0', f'{top}/hard')
    os.symlink('a/b', f'{top}/link')
    os.symlink('/' + 'x' * 200, f'{top}/slow')
    os.mkfifo(f'{top}/fifo')


def debugfs(image, commands):
    subprocess.run(['debugfs', '-w', '-f', '-', image], input='\n'.join(commands).encode(), check=True, env=ENV,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_image(path, tree, features, work):
    with open(path, 'wb') as f:
        f.truncate(4 << 20)
    subprocess.run(['mke2fs', '-q', '-F', '-t', 'ext4', '-b', str(BLOCK), '-I', '256', '-N', '64', '-O', features, '-J', 'size=1',
                    '-E', 'lazy_itable_init=1,lazy_journal_init=1,nodiscard,hash_seed=63737061-6365-4000-8000-000000000002',
                    '-U', '63737061-6365-4000-8000-000000000001', '-d', tree, path],
                   check=True, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    blocks = subprocess.run(['debugfs', '-R', 'blocks /a/file-with-a-name-020', path], stdout=subprocess.PIPE, check=True, env=ENV,
                            stderr=subprocess.DEVNULL).stdout.split()
    with open(f'{work}/block', 'wb') as f:
        f.write(b'J' * BLOCK)
    debugfs(path, [f'punch /fragmented {i} {i}' for i in range(1, 60, 2)] +
            ['ea_set /a/file-with-a-name-010 user.note ' + 'v' * 200, 'ea_set /a/b user.x y'])
    debugfs(path, ['jo', f'jw -b {blocks[0].decode()} {work}/block', f'jw -r {blocks[1].decode()}', 'jc'])


def main():
    out = ['/* Made by history_base.py. */', 'struct base_block { unsigned n; const char *bytes; };']
    with tempfile.TemporaryDirectory() as work:
        make_tree(f'{work}/tree')
        for v, features in enumerate(VARIANTS):
            image = f'{work}/image'
            make_image(image, f'{work}/tree', features, work)
            with open(image, 'rb') as f:
                data = f.read()
            out.append(f'static const struct base_block base_{v}[] = {{')
            for n in range(len(data) // BLOCK):
                block = data[n * BLOCK:(n + 1) * BLOCK]
                if block.strip(b'\0'):
                    text = ''.join('\\%03o' % b for b in block)
                    out.append(f'{{ {n}, "{text}" }},')
            out.append('};')
    with open(sys.argv[1], 'w', encoding='ascii') as f:
        f.write('\n'.join(out) + '\n')


if __name__ == '__main__':
    main()
