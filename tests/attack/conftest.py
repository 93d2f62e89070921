# SPDX-License-Identifier: Apache-2.0
"""The laboratory of the gateway's tests, and servers that are up to something."""
import importlib.util
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
GATEWAY = os.path.join(HERE, '..', 'integration', 'gateway')
sys.path.insert(0, GATEWAY)

spec = importlib.util.spec_from_file_location('gateway_conftest', os.path.join(GATEWAY, 'conftest.py'))
gateway_conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gateway_conftest)
import gateway as gateway_module  # noqa: E402
from lab import WEB, wait_for  # noqa: E402

lab, raw_gateway = gateway_conftest.lab, gateway_conftest.raw_gateway


@pytest.fixture(scope='session')
def servers(lab):
    """strange.py beside the servers of the laboratory."""
    lab.world(sys.executable, os.path.join(HERE, 'strange.py'), lab.path('key.pem'), lab.path('good.crt'), lab.path('ca.crt'))
    for ip, port in ((WEB, 7100), (WEB, 7101), (WEB, 7102), (WEB, 7103), (WEB, 7104), ('127.0.0.1', 5360)):
        wait_for(lambda a=(ip, port): lab.world_answers(*a), f'server {ip}:{port}')
    return lab


@pytest.fixture
def gw(servers):
    """Its resolver is the one of strange.py."""
    g = gateway_module.Gateway(servers, resolver='127.0.0.1:5360')
    g.configure([{'name': 'web', 'action': 'allow', 'hosts': ['web.test', '*.strange.test']},
                 {'name': 'odd', 'action': 'allow', 'hosts': ['web.test:7100', 'web.test:7101'], 'protocol': 'https'},
                 {'name': 'blind', 'action': 'allow', 'hosts': ['api.test:7101'], 'protocol': 'tls', 'inspect': False},
                 {'name': 'echo', 'action': 'allow', 'hosts': ['web.test:7000'], 'protocol': 'tcp'},
                 {'name': 'unseen', 'action': 'allow', 'hosts': ['api.test:7100'], 'protocol': 'tls', 'inspect': False},
                 {'name': 'frames', 'action': 'allow', 'hosts': ['web.test:7004'], 'protocol': 'http'},
                 {'name': 'h2', 'action': 'allow', 'hosts': [f'web.test:{p}' for p in (7102, 7103, 7104)], 'protocol': 'https'},
                 {'name': 'acme', 'action': 'allow', 'hosts': ['other.test'], 'methods': ['GET'], 'paths': ['/say/acme/']}])
    yield g
    g.close()
