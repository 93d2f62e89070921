#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the tree against its own rules: layers, file and function length, SPDX lines.

Prints one line for each violation and exits 1 when there is any.
"""
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# A layer may include itself and what is listed. Programs may include every library and themselves.
LAYERS = {
    'base': set(),
    'wire': {'base'},
    'io': {'base', 'wire'},
    'conf': {'base'},
    'confine': {'base'},
    'link': {'base', 'wire', 'io'},
    'ipc': {'base', 'wire', 'io'},
    'procimage': {'base'},
    'manifest': {'base', 'procimage'},
    'policy': {'base', 'wire'},
    'dns': {'base', 'wire', 'policy'},
    'ca': {'base', 'wire', 'io'},
}
PROGRAMS = {'agent', 'warden', 'thaw', 'rootd', 'builder', 'history', 'token', 'daemon', 'cli', 'gateway'}
FILE_MAX = 1500
FUNCTION_MAX = 150

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
# A function body opens with a line that starts in column 0, ends in "{" and has a parameter list.
FUNCTION = re.compile(r'^[A-Za-z_].*\)\s*\{\s*$|^[A-Za-z_][^;={]*\([^;{]*$')


def tracked(*suffixes):
    out = subprocess.run(['git', 'ls-files', '-z'], cwd=TOP, check=True, capture_output=True).stdout
    return [p for p in out.decode().split('\0') if p.endswith(suffixes) and os.path.exists(os.path.join(TOP, p))]


def owner(path):
    parts = path.split('/')
    if parts[:2] == ['src', 'lib']:
        return parts[2]
    return parts[1] if parts[0] == 'src' and len(parts) > 2 else None


def check_includes(path, lines):
    me = owner(path)
    for number, line in enumerate(lines, 1):
        m = INCLUDE.match(line)
        if not m or not me:
            continue
        top = m.group(1).split('/')[0]
        if top in LAYERS and me in LAYERS and top != me and top not in LAYERS[me]:
            yield f'{path}:{number}: layer {me} may not include {m.group(1)}'
        if top in PROGRAMS and top != me:
            yield f'{path}:{number}: {me} includes a header of program {top}'
        if '..' in m.group(1).split('/'):
            yield f'{path}:{number}: include path with ".."'


def check_lengths(path, lines):
    if len(lines) > FILE_MAX:
        yield f'{path}: {len(lines)} lines; the limit is {FILE_MAX}'
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and FUNCTION.match(line):
            start = number
        elif line.startswith(';') or (start is not None and line.rstrip().endswith(';') and not line.startswith((' ', '\t', '}'))):
            start = None
        elif line.startswith('}') and start is not None:
            if number - start + 1 > FUNCTION_MAX:
                yield f'{path}:{start}: function of {number - start + 1} lines; the limit is {FUNCTION_MAX}'
            start = None


def check_spdx(path, lines):
    head = ''.join(lines[:3])
    if 'SPDX-License-Identifier: Apache-2.0' not in head:
        yield f'{path}: no SPDX line at the top'


def main():
    bad = []
    for path in tracked('.c', '.h'):
        with open(os.path.join(TOP, path), encoding='utf-8') as f:
            lines = f.readlines()
        bad += check_includes(path, lines)
        bad += check_lengths(path, lines)
        bad += check_spdx(path, lines)
    for path in tracked('.py', '.sh', 'meson.build'):
        with open(os.path.join(TOP, path), encoding='utf-8') as f:
            bad += check_spdx(path, f.readlines())
    for line in bad:
        print(line)
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
