# SPDX-License-Identifier: Apache-2.0
"""N15: clients that reach an inspected host without being told anything: they trust the sandbox's authority because the agent has seen to it.
The programs are this machine's own; what it does not have is skipped. Their installation is as Debian has it."""
import glob
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, CACHE, Host, assets, until

PYTHON = '/usr/bin/python3.11'
JAVA = '/usr/lib/jvm/java-17-openjdk-amd64'
CACERTS = '/etc/ssl/certs/java/cacerts'
GO = '/usr/local/go/bin/go' if os.path.exists('/usr/local/go/bin/go') else shutil.which('go')
DIST = '/usr/lib/python3/dist-packages/'
BUNDLE = '/etc/ssl/certs/ca-certificates.crt'

JAVA_CLIENT = """
import java.net.URI; import java.net.http.*;
public class Client {
    public static void main(String[] a) throws Exception {
        var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.body());
    }
}
"""
GO_CLIENT = """
package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
    r, err := http.Get(os.Args[1])
    if err != nil { fmt.Println(err); os.Exit(1) }
    b, _ := io.ReadAll(r.Body)
    fmt.Println(string(b))
}
"""
URL = 'https://api.test/from-%s'
CLIENTS = {
    'curl': 'curl -sS $URL',
    'wget': '/usr/bin/wget -q -O - $URL',
    'urllib': f"{PYTHON} -c 'import urllib.request as u; print(u.urlopen(\"$URL\").read().decode())'",
    'requests': f"{PYTHON} -c 'import requests; print(requests.get(\"$URL\").text)'",
    'node': "node -e 'fetch(\"$URL\").then(r => r.text()).then(console.log)'",
    'git': 'git clone -q https://api.test/repo.git /tmp/clone && cat /tmp/clone/file',
    'java': f'{JAVA}/bin/java -Xint -XX:TieredStopAtLevel=1 -cp /opt Client $URL',
    'go': '/opt/go-client $URL',
}


def programs(folder):
    """What make_disk() gets, and why some clients are not there."""
    have, trees, files, missing = ['/usr/bin/curl'], [], [(BUNDLE, open(BUNDLE, 'rb').read())], {}
    for name in ('wget', 'node', 'git'):
        if os.path.exists(f'/usr/bin/{name}'):
            have.append(f'/usr/bin/{name}')
        else:
            missing[name] = f'{name} is not installed on this machine'
    have += [p for p in glob.glob('/usr/lib/git-core/git-remote-http*') if 'git' not in missing]
    if os.path.exists(PYTHON):
        have.append(PYTHON)
        trees += ['/usr/lib/python3.11'] + [p for n in ('requests', 'urllib3', 'certifi', 'idna', 'chardet', 'charset_normalizer') if os.path.isdir(p := DIST + n)]
    if os.path.exists(DIST + 'six.py'):
        files.append((DIST + 'six.py', open(DIST + 'six.py', 'rb').read()))
    if not os.path.exists(PYTHON):
        missing['urllib'] = missing['requests'] = 'no Python of Debian on this machine'
    elif DIST + 'requests' not in trees:
        missing['requests'] = 'python3-requests is not installed on this machine'
    if not (os.path.exists(JAVA + '/bin/javac') and os.path.exists(CACERTS)):
        missing['java'] = 'no JDK of Debian on this machine'
    else:
        with open(os.path.join(folder, 'Client.java'), 'w') as f:
            f.write(JAVA_CLIENT)
        subprocess.run([JAVA + '/bin/javac', '-d', folder, os.path.join(folder, 'Client.java')], check=True)
        have.append(JAVA + '/bin/java')
        trees += [JAVA + '/lib', JAVA + '/conf', '/etc/java-17-openjdk']
        files += [(CACERTS, open(CACERTS, 'rb').read()), ('/opt/Client.class', open(os.path.join(folder, 'Client.class'), 'rb').read())]
    if not GO:
        missing['go'] = 'no Go on this machine'
    else:
        with open(os.path.join(folder, 'client.go'), 'w') as f:
            f.write(GO_CLIENT)
        env = {**os.environ, 'CGO_ENABLED': '0', 'GOFLAGS': '', 'GOCACHE': os.path.join(folder, 'go-cache'), 'HOME': folder, 'GOPROXY': 'off', 'GO111MODULE': 'off'}
        subprocess.run([GO, 'build', '-o', os.path.join(folder, 'go-client'), os.path.join(folder, 'client.go')], check=True, env=env)
        files.append(('/opt/go-client', open(os.path.join(folder, 'go-client'), 'rb').read()))
    return have, trees, files, missing


@pytest.fixture(scope='module')
def guest(btrfs, libexec, internet, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('clients'))
    have, trees, files, missing = programs(folder)
    try:
        template = assets.make_template(CACHE, os.path.join(BUILD, 'src', 'agent', 'cspace-agent'))
        own = os.path.join(btrfs, 'clients-template')
        os.makedirs(own)
        for name in ('kernel', 'initrd'):
            shutil.copy(os.path.join(template, name), own)
        assets.make_disk(CACHE, os.path.join(own, 'disk.img'), have, files, trees, mb=1024)
    except assets.Unavailable as e:
        pytest.skip(str(e))
    repository(internet)
    h = Host(libexec, os.path.join(btrfs, 'clients'), internet.prefix)
    h.start(internet.conf)
    h.add_template(own)
    ident = h.create(allow=['api.test'], memory_mb=1024)
    h.sh(ident, 'chmod 755 /opt/go-client 2>/dev/null || true')
    yield h, ident, missing
    h.close()


def repository(internet):
    work, bare = internet.path('work'), internet.path('repo.git')
    env = {**os.environ, 'GIT_CONFIG_GLOBAL': '/dev/null', **{f'GIT_{w}_{k}': v for w in ('AUTHOR', 'COMMITTER') for k, v in (('NAME', 'a'), ('EMAIL', 'a@b'))}}
    os.makedirs(work)
    with open(os.path.join(work, 'file'), 'w') as f:
        f.write('/from-git\n')
    for argv in (['init', '-q', work], ['-C', work, 'add', 'file'], ['-C', work, 'commit', '-q', '-m', 'x'], ['clone', '-q', '--bare', work, bare],
                 ['-C', bare, 'update-server-info']):
        subprocess.run(['git', *argv], check=True, env=env)


@pytest.mark.parametrize('client', CLIENTS)
def test_client(guest, client):
    host, ident, missing = guest
    if client in missing:
        pytest.skip(missing[client])
    out = host.sh(ident, f'export HOME=/root; URL={URL % client}; {CLIENTS[client].replace(chr(36) + "URL", URL % client)} 2>&1')
    assert f'/from-{client}' in out, out
    path = '/repo.git/info/refs' if client == 'git' else f'/from-{client}'

    def recorded():
        records = host.get(f'/v1/sandboxes/{ident}/audit?limit=1000').json['records']
        return [r for r in records if r['kind'] == 'request' and r.get('path') == path]
    record = until(recorded, what='the record')[0]
    assert record['protocol'] == 'tls' and record['verdict'] == 'allow' and record['host'] == 'api.test'  # it was looked into
