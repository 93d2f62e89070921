#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests stage by stage and ends with one line, `N passed, N failed, N skipped`.

usage: tests/run.py [--list] [STAGE...]      (all stages when none is named)

A stage is a group of tests that share a preparation. Whatever a stage prints goes to
build/test-logs/<stage>.log; failures are shown. The exit code is 0 only when nothing failed.
"""
import argparse
import concurrent.futures
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(TOP, 'build', 'test')
LOGS = os.path.join(TOP, 'build', 'test-logs')
PYTHON = '/usr/bin/python3'
FUZZ_SECONDS = int(os.environ.get('CSPACE_FUZZ_SECONDS', '12'))
JOBS = str(os.cpu_count() or 2)
SANITIZED_TESTS = 'test_stop', 'test_restart', 'test_template', 'test_warm', 'test_history', 'test_audit', 'test_provider'


class Results:
    def __init__(self):
        self.passed, self.failed, self.skipped = [], [], []

    def add(self, name, outcome, why=''):
        getattr(self, outcome).append((name, why))
        if outcome != 'passed':
            print(f'  {outcome.upper():7} {name}' + (f': {why}' if why else ''), flush=True)


def run(stage, argv, timeout, env=None, cwd=TOP):
    """Runs argv with its output appended to the stage's log. Returns (exit code, output)."""
    log = os.path.join(LOGS, stage + '.log')
    with open(log, 'ab') as f:
        f.write(('\n$ ' + ' '.join(argv) + '\n').encode())
        f.flush()
        start = f.tell()
        try:
            code = subprocess.run(argv, cwd=cwd, stdout=f, stderr=subprocess.STDOUT, timeout=timeout,
                                  env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            f.write(f'\ntimed out after {timeout} s\n'.encode())
            code = 124
        except OSError as e:
            f.write(f'\n{e}\n'.encode())
            code = 127
    with open(log, 'rb') as f:
        f.seek(start)
        return code, f.read().decode(errors='replace')


def tail(text, n=15):
    return '\n'.join('    | ' + line for line in text.strip().splitlines()[-n:])


def one(results, stage, name, argv, timeout=300, env=None):
    """One command is one test: 0 passes, 77 skips with its last line as the reason."""
    code, out = run(stage, argv, timeout, env)
    if code == 0:
        results.add(name, 'passed')
        return True
    if code == 77:
        results.add(name, 'skipped', (out.strip().splitlines() or ['no reason given'])[-1])
        return False
    results.add(name, 'failed', f'exit code {code}')
    print(tail(out), flush=True)
    return False


def configure(stage, directory, cc, *options):
    argv = ['meson', 'setup', directory, TOP, *options]
    if os.path.exists(os.path.join(directory, 'build.ninja')):
        argv.insert(2, '--reconfigure')
    return run(stage, argv, 300, {'CC': cc})


def meson_tests(results, stage, directory, prefix, env=None):
    code, out = run(stage, ['meson', 'test', '-C', directory, '--suite', 'unit', '--no-rebuild', '--print-errorlogs'],
                    900, env)
    log = os.path.join(directory, 'meson-logs', 'testlog.json')
    n = 0
    if os.path.exists(log):
        with open(log, encoding='utf-8') as f:
            for line in f:
                t = json.loads(line)
                n += 1
                name = prefix + t['name'].split(' / ')[-1]
                if t['result'] == 'OK':
                    results.add(name, 'passed')
                elif t['result'] == 'SKIP':
                    results.add(name, 'skipped', (t.get('stdout') or 'no reason given').strip().splitlines()[-1])
                else:
                    results.add(name, 'failed', t['result'])
                    print(tail((t.get('stdout') or '') + (t.get('stderr') or ''), 30))
    if n == 0:
        results.add(prefix + 'unit tests', 'failed', f'none ran (exit code {code})')
        print(tail(out))


def stage_check(results):
    one(results, 'check', 'check/layers', [PYTHON, 'tests/check/layers.py'])
    for script in sorted(glob.glob(os.path.join(TOP, 'tests', 'check', 'check_*'))):
        one(results, 'check', 'check/' + os.path.basename(script), [script], 600)


def build(results, stage, directory, cc, name, *options):
    code, out = configure(stage, directory, cc, *options)
    if code == 0:
        code, out = run(stage, ['ninja', '-C', directory], 1800)
    if code:
        results.add(name, 'failed', f'exit code {code}')
        print(tail(out, 40))
        return False
    results.add(name, 'passed')
    return True


def build_gcc(results, stage):
    return build(results, stage, BUILD + '-gcc', 'gcc', stage + '/build with gcc -Werror', '--werror')


def build_asan(results, stage):
    """clang, its sanitizers and the fuzzers in one build: a build of its own for each would say no more."""
    return build(results, stage, BUILD + '-asan', 'clang-14', stage + '/build with clang -Werror', '--werror',
                 '-Db_sanitize=address,undefined', '-Db_lundef=false', '-Dfuzz=true')


def stage_unit(results):
    if build_gcc(results, 'unit'):
        meson_tests(results, 'unit', BUILD + '-gcc', 'unit/')


def stage_asan(results):
    if build_asan(results, 'asan'):
        meson_tests(results, 'asan', BUILD + '-asan', 'asan/',
                    {'ASAN_OPTIONS': 'detect_leaks=1:halt_on_error=1', 'UBSAN_OPTIONS': 'halt_on_error=1:print_stacktrace=1'})
        sanitized_daemon(results)


def sanitized_daemon(results):
    """cspaced as it starts, stops and is killed with much under way. Its own filter keeps a leak checker and a symbolizer
    from it: llvm-symbolizer --obj=build/test-asan/src/daemon/cspaced reads the offsets of a report."""
    reports = os.path.join(LOGS, 'asan-daemon-reports')
    os.makedirs(reports, exist_ok=True)
    options = f'symbolize=0:halt_on_error=1:log_path={reports}/report'
    pytest(results, 'asan-daemon', 'tests/integration/daemon', 900,
           {'CSPACE_BUILD': BUILD + '-asan', 'ASAN_OPTIONS': 'detect_leaks=0:' + options,
            'UBSAN_OPTIONS': 'print_stacktrace=1:' + options}, '-k', ' or '.join(SANITIZED_TESTS))
    found = sorted(os.listdir(reports))  # also of a test that passed the second time
    for name in found:
        results.add('asan-daemon/' + name, 'failed', 'a sanitizer has found something')
        with open(os.path.join(reports, name), errors='replace') as f:
            print(tail('\n'.join(f.read().splitlines()[:40]), 40), flush=True)
    if not found:
        results.add('asan-daemon/no report', 'passed')


def stage_fuzz(results):
    if not build_asan(results, 'fuzz'):
        return
    targets = sorted(p for p in glob.glob(os.path.join(BUILD + '-asan', 'tests', 'fuzz', 'fuzz_*'))
                     if os.access(p, os.X_OK) and os.path.isfile(p))
    if not targets:
        results.add('fuzz', 'failed', 'no targets were built')
    running = []
    for target in targets:
        name = os.path.basename(target)[len('fuzz_'):]
        corpus = os.path.join(TOP, 'tests', 'fuzz', 'corpus', name)
        found = os.path.join(BUILD + '-asan', 'corpus-' + name)
        os.makedirs(found, exist_ok=True)
        argv = [target, f'-max_total_time={FUZZ_SECONDS}', '-timeout=10', '-rss_limit_mb=2048', '-print_final_stats=1',
                f'-artifact_prefix={found}/crash-', found] + ([corpus] if os.path.isdir(corpus) else [])
        running.append((name, argv))
    while running:
        batch, running = running[:int(JOBS)], running[int(JOBS):]
        procs = [(n, subprocess.Popen(a, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)) for n, a in batch]
        for name, p in procs:
            out = p.communicate(timeout=FUZZ_SECONDS + 300)[0].decode(errors='replace')
            with open(os.path.join(LOGS, 'fuzz.log'), 'a', encoding='utf-8') as f:
                f.write(f'\n== {name}\n{out[-20000:]}')
            if p.returncode == 0:
                results.add('fuzz/' + name, 'passed')
            else:
                results.add('fuzz/' + name, 'failed', f'exit code {p.returncode}')
                print(tail(out, 30))


def pytest_once(stage, directory, timeout, env, *options):
    """Runs a folder. Returns ({test name: (outcome, why, text)}, output); no tests when pytest itself broke."""
    xml = os.path.join(LOGS, stage + '.xml')
    if os.path.exists(xml):
        os.unlink(xml)
    _, out = run(stage, [PYTHON, '-m', 'pytest', '-q', '-o', f'cache_dir={LOGS}/cache-{stage}', '--junit-xml', xml, '-o',
                         'junit_family=xunit2', *options, directory], timeout, env)
    cases = {}
    for case in ET.parse(xml).getroot().iter('testcase') if os.path.exists(xml) else ():
        name = f'{stage}/{case.get("classname", "").split(".")[-1]}/{case.get("name")}'
        failure = next((c for c in case if c.tag in ('failure', 'error')), None)
        skip = case.find('skipped')
        if failure is not None:
            cases[name] = ('failed', (failure.get('message') or '').split('\n')[0][:300], failure.text or '')
        elif skip is not None:
            cases[name] = ('skipped', skip.get('message') or 'no reason given', '')
        else:
            cases[name] = ('passed', '', '')
    return cases, out


def pytest(results, stage, directory, timeout, env=None, *options):
    """A test that fails is run once more, alone: what passes then is told as such, so that timing on a busy
    machine can be told from a fault without hiding either."""
    if not glob.glob(os.path.join(TOP, directory, '**', 'test_*.py'), recursive=True):
        return
    cases, out = pytest_once(stage, directory, timeout, env, *options)
    if not cases:  # not even a skipped one
        results.add(stage, 'failed', 'pytest ran no test')
        print(tail(out, 40))
        return
    if any(outcome == 'failed' for outcome, _, _ in cases.values()):
        again, _ = pytest_once(stage, directory, timeout, env, '--last-failed', *options)
        for name, case in again.items():
            if case[0] == 'passed' and cases.get(name, ('',))[0] == 'failed':
                print(f'  SECOND TRY passed: {name}: {cases[name][1]}', flush=True)
                cases[name] = case
    for name, (outcome, why, text) in cases.items():
        results.add(name, outcome, why)
        if outcome == 'failed':
            print(tail(text, 25))


def stage_integration(results):
    if not build_gcc(results, 'integration'):
        return
    env = {'CSPACE_BUILD': BUILD + '-gcc'}

    def one_folder(directory):
        name = os.path.basename(directory.rstrip('/'))
        began = time.monotonic()
        try:
            pytest(results, 'integration-' + name, os.path.relpath(directory, TOP), 1800, env)
        except Exception as e:  # as in main(): never silence
            results.add('integration-' + name, 'failed', f'{type(e).__name__}: {e}')
        print(f'   {name}: {time.monotonic() - began:.0f} s', flush=True)

    # Two at a time: much of them is waiting.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        folders = glob.glob(os.path.join(TOP, 'tests', 'integration', '*/')) + [os.path.join(TOP, 'tests', 'attack')]
        list(pool.map(one_folder, sorted(folders)))


def stage_quickstart(results):
    """The two commands of the README: the first installs and starts what the e2e tests use."""
    code, out = run('quickstart', ['./quickstart.sh'], 1800)
    ok = code == 0 and re.search(r'^\s*42\s*$', out, re.M)
    results.add('quickstart/first run', 'passed' if ok else 'failed', '' if ok else f'exit code {code}')
    if not ok:
        print(tail(out, 40))
        return
    began = time.monotonic()
    code, out = run('quickstart', ['./quickstart.sh'], 600)
    results.add('quickstart/second run', 'passed' if code == 0 else 'failed',
                f'exit code {code}' if code else f'{time.monotonic() - began:.1f} s')
    # `ninja uninstall` goes by this list.
    code, out = run('quickstart', ['meson', 'introspect', 'build', '--installed'], 60)
    with open(os.path.join(TOP, 'build', 'meson-logs', 'install-log.txt'), encoding='utf-8') as f:
        listed = set(f.read().splitlines())
    lost = set(json.loads(out).values()) - listed if code == 0 else {'all'}
    results.add('quickstart/uninstall knows every file', 'failed' if lost else 'passed', ' '.join(sorted(lost)))


@contextlib.contextmanager
def with_domain(stage):
    """The installed server answers to host names below a domain too, as it is then that all of the router is used."""
    conf = '/etc/cspace/cspace.conf'
    try:
        with open(conf, encoding='utf-8') as f:
            before = f.read()
    except FileNotFoundError:
        before = ''
    if re.search(r'^domain\b', before, re.M) or not before:
        yield
        return

    def put(text):
        with open(conf, 'w', encoding='utf-8') as f:
            f.write(text)
        run(stage, ['cspace', 'up'], 300)

    put(re.sub(r'^\[api\]$', '[api]\ndomain = sandboxes.test', before, count=1, flags=re.M))
    try:
        yield
    finally:
        put(before)


def node_tests(results, stage, directory, timeout):
    if not os.path.exists(os.path.join(TOP, directory, 'package.json')):
        return
    if not shutil.which('node') or not shutil.which('npm'):
        results.add(stage, 'skipped', 'node and npm are not installed')
        return
    code, out = run(stage, ['npm', 'ci', '--no-audit', '--no-fund'], 600, cwd=os.path.join(TOP, directory))
    if code:
        results.add(stage, 'skipped', 'npm could not install the packages: ' + (out.strip().splitlines() or [''])[-1])
        return
    with with_domain(stage):
        code, out = run(stage, ['node', '--test', '--test-reporter=tap', '--test-concurrency=1', '.'], timeout,
                        cwd=os.path.join(TOP, directory))
    n = 0
    lines = out.splitlines()
    for i, line in enumerate(lines):
        m = re.match(r'^(\s*)(not ok|ok) \d+ - (.*)$', line)
        if not m or any("type: 'suite'" in l for l in lines[i + 1:i + 5]):
            continue
        name, _, directive = m.group(3).partition(' # ')
        n += 1
        if directive.upper().startswith('SKIP'):
            results.add(f'{stage}/{name}', 'skipped', directive[5:])
        elif m.group(2) == 'ok':
            results.add(f'{stage}/{name}', 'passed')
        else:
            results.add(f'{stage}/{name}', 'failed')
            print(tail('\n'.join(lines[i:i + 25]), 25))
    if n == 0:
        results.add(stage, 'failed', f'no test ran (exit code {code})')
        print(tail(out, 30))


def stage_e2e(results):
    for directory in sorted(glob.glob(os.path.join(TOP, 'tests', 'e2e', '*/'))):
        name = os.path.basename(directory.rstrip('/'))
        pytest(results, 'e2e-' + name, os.path.relpath(directory, TOP), 2400)
        node_tests(results, 'e2e-' + name, os.path.relpath(directory, TOP), 1800)


def stage_kvm(results):
    script = os.path.join(TOP, 'tests', 'kvm', 'run')
    if os.path.exists(script):
        one(results, 'kvm', 'kvm/template, create, exec, files and delete on KVM in an emulated machine', [script], 1500)
        one(results, 'kvm', 'kvm/units of systemd after boot, kill, up and down', [script, '--systemd'], 1500)


STAGES = {
    'check': stage_check,
    'unit': stage_unit,
    'asan': stage_asan,
    'fuzz': stage_fuzz,
    'integration': stage_integration,
    'quickstart': stage_quickstart,
    'e2e': stage_e2e,
    'kvm': stage_kvm,
}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--list', action='store_true', help='print the names of the stages')
    ap.add_argument('stages', nargs='*', metavar='STAGE')
    args = ap.parse_args()
    if args.list:
        print('\n'.join(STAGES))
        return 0
    unknown = [s for s in args.stages if s not in STAGES]
    if unknown:
        ap.error(f'unknown stage {unknown[0]!r}; there are: {", ".join(STAGES)}')
    # Started in the background by a shell, this process ignores them, and so would every program under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup leaves it
    os.makedirs(LOGS, exist_ok=True)
    for log in glob.glob(os.path.join(LOGS, '*')):
        shutil.rmtree(log) if os.path.isdir(log) else os.unlink(log)
    results = Results()
    for name in args.stages or STAGES:
        before = len(results.passed)
        began = time.monotonic()
        print(f'== {name}', flush=True)
        try:
            STAGES[name](results)
        except Exception as e:  # a broken stage is a failure, never silence
            results.add(name, 'failed', f'{type(e).__name__}: {e}')
        print(f'   {len(results.passed) - before} passed in {time.monotonic() - began:.0f} s', flush=True)
    print(f'{len(results.passed)} passed, {len(results.failed)} failed, {len(results.skipped)} skipped')
    return 1 if results.failed or not results.passed else 0


if __name__ == '__main__':
    sys.exit(main())
