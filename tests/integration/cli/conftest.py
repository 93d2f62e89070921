# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, '..', '..', 'lib')]
from standin import Standin  # noqa: E402

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError('did not happen')


@pytest.fixture(scope='session')
def cspace():
    path = os.path.join(os.environ.get('CSPACE_BUILD', os.path.join(TOP, 'build')), 'src', 'cli', 'cspace')
    if not os.access(path, os.X_OK):
        pytest.skip(f'{path} is not built (CSPACE_BUILD names the build folder)')
    return path


@pytest.fixture
def server(tmp_path_factory):
    s = Standin(str(tmp_path_factory.mktemp('cspaced')))
    yield s
    s.stop()


@pytest.fixture
def cli(cspace, server):
    """Runs cspace against the stand-in."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('CSPACE_')}
    env['CSPACE_API_URL'] = 'unix:' + server.path

    def run(*args, timeout=60, **kwargs):
        kwargs.setdefault('stdin', subprocess.DEVNULL if 'input' not in kwargs else None)
        if kwargs['stdin'] is None:
            del kwargs['stdin']
        return subprocess.run([cspace, *args], capture_output='stdout' not in kwargs, timeout=timeout, env=env, **kwargs)

    def start(*args, **kwargs):
        return subprocess.Popen([cspace, *args], env=env, **kwargs)

    run.start = start
    run.env = env
    run.exe = cspace
    return run


@pytest.fixture
def sandbox(cli):
    r = cli('create', '--quiet')
    assert r.returncode == 0, r.stderr
    return r.stdout.decode().strip()
