# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import tempfile

import pytest

import gateway as gateway_module
from lab import Lab


def missing():
    if os.geteuid() != 0:
        return 'needs root'
    for tool in ('nginx', 'dnsmasq', 'nft', 'ip', 'curl', 'openssl', 'nghttp', 'nghttpd'):
        if not shutil.which(tool):
            return f'{tool} is not installed'
    return None


@pytest.fixture(scope='session')
def lab():
    why = missing()
    if why:
        pytest.skip(why)
    made = Lab(tempfile.mkdtemp(prefix='cspace-gateway-'))
    yield made
    made.close()


@pytest.fixture
def raw_gateway(lab):
    """Started, not configured."""
    g = gateway_module.Gateway(lab)
    yield g
    g.close()


@pytest.fixture
def gw(raw_gateway):
    """With rules for most tests: raw_gateway.configure() gives others."""
    raw_gateway.configure([
        {'name': 'web', 'action': 'allow', 'hosts': ['web.test', '*.web.test']},
        {'name': 'cdn', 'action': 'allow', 'hosts': ['cdn-a.test']},
    ])
    return raw_gateway
