# SPDX-License-Identifier: Apache-2.0
"""The manual names every command, option and key that the programs have, and none that they have not."""
import glob
import os
import re
import shutil
import subprocess

import pytest

from conftest import TOP
from test_commands import commands

MAN = os.path.join(TOP, 'man')


def source(name):
    with open(os.path.join(MAN, name), encoding='utf-8') as f:
        return f.read()


def flags(text):
    """Options of a mdoc text: .Fl -name, .It Fl x , Fl -name."""
    return set(re.findall(r'Fl -([a-z][a-z-]*)', text))


def sections(text):
    return dict(re.findall(r'^\.Ss (.+?)\n(.*?)(?=^\.S[sh] )', text, re.M | re.S))


def help_options(cli, name):
    text = cli('help', *name.split()).stdout.decode()
    part = re.search(r'\nOptions:\n(.*?)\n\n', text, re.S)
    return set(re.findall(r'^ +(?:-., )?--([a-z-]+)', part.group(1), re.M)) if part else set()


def test_commands_and_their_options(cli):
    parts = sections(source('cspace.1'))
    assert set(parts) == set(commands(cli))
    shared = {'run': ['create', 'exec']}
    for name, text in parts.items():
        documented = flags(text)
        for other in shared.get(name, []):
            documented |= flags(parts[other])
        synopsis = text.split('.Pp')[0].splitlines()
        assert all(synopsis[i - 1] == '.br' for i, line in enumerate(synopsis) if i and line == '.Nm'), f'cspace {name}: two forms on a line'
        missing = help_options(cli, name) - documented
        assert not missing, f'cspace {name}: the manual does not have {missing}'
        if name not in shared and name != 'exec':
            # "json", "all" and the like may be mentioned of other commands.
            invented = set(re.findall(r'^\.It (?:Fl . , )?Fl -([a-z-]+)', text, re.M)) - help_options(cli, name)
            assert not invented, f'cspace {name}: the manual invents {invented}'


def test_configuration():
    with open(os.path.join(TOP, 'src/lib/conf/conf.c'), encoding='utf-8') as f:
        rows = re.findall(r'^ +\{ "([a-z]+)", "([a-z_]+)", KIND', f.read(), re.M)
    documented = []
    for section, text in sections(source('cspace.conf.5') + '\n.Sh ').items():
        if section.startswith('['):
            documented += [(section.strip('[]'), key) for key in re.findall(r'^\.It Ic ([a-z_]+)', text, re.M)]
    assert sorted(rows) == sorted(documented)


def test_configuration_that_is_installed():
    """It has every key, as a comment with its default, as it says."""
    with open(os.path.join(TOP, 'src/lib/conf/conf.c'), encoding='utf-8') as f:
        rows = re.findall(r'^ +\{ "([a-z]+)", "([a-z_]+)", KIND.*?, ("[^"]*"|CSPACE_LIBEXEC), (?:NULL|"[^"]*") \},$', f.read(), re.M)
    want = {(section, key): value.strip('"').replace('CSPACE_LIBEXEC', '/usr/local/libexec/cspace') for section, key, value in rows}
    with open(os.path.join(TOP, 'packaging/cspace.conf'), encoding='utf-8') as f:
        have = {(section, key): value for section, text in re.findall(r'^\[(\w+)\]\n(.*?)(?=^\[|\Z)', f.read(), re.M | re.S)
                for key, value in re.findall(r'^#(\w+) = ?(.*)$', text, re.M)}
    assert len(want) > 30 and have == want


@pytest.mark.parametrize('page,program', [('cspaced.8', 'src/daemon/cspaced'), ('cspace-rootd.8', 'src/rootd/cspace-rootd')])
def test_services(cspace, page, program):
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(cspace))), program)
    if not os.access(path, os.X_OK):
        pytest.skip(f'{path} is not built')
    text = subprocess.run([path, '--help'], capture_output=True, check=True).stdout.decode()
    options = set(re.findall(r'--([a-z][a-z-]*)', text))
    assert options <= flags(source(page)) | {'routes'}


@pytest.mark.parametrize('path', sorted(glob.glob(os.path.join(MAN, '*.[158]'))), ids=os.path.basename)
def test_pages_are_well_formed(path):
    if shutil.which('man') is None:
        pytest.skip('man is not installed')
    r = subprocess.run(['man', '--warnings', '-E', 'UTF-8', '-l', '-Tutf8', '-Z', path], capture_output=True, check=False,
                       env={**os.environ, 'LC_ALL': 'C.UTF-8', 'MANWIDTH': '80', 'MANROFFSEQ': ''})
    assert (r.returncode, r.stderr) == (0, b'')
    if shutil.which('mandoc'):
        assert subprocess.run(['mandoc', '-T', 'lint', '-W', 'warning', path], check=False).returncode == 0
