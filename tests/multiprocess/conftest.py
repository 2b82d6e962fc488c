"""Launchers in processes of their own, and a check that no test leaves a process behind."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from processes import MARK, marked, poll
from worker_processes import Workers

from belongings import Belongings, command_of
from stratagem._src.cluster.reserved_ports import ReservedPorts

FAULTY_WORKER = Path(__file__).with_name("faulty_worker.py")


class Launcher:
    """One ``stratagem`` command in the background."""

    def __init__(self, arguments, cwd, env):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stratagem", *map(str, arguments)],
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, timeout=60):
        """Waits until it has ended; keeps its output."""
        self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        self.returncode = self.process.returncode
        return self


@pytest.fixture(scope="session")
def kept_for_the_session():
    """Returns the servers of a cluster that the tests of a module share, and kill and start again."""

    def kept():
        servers = (p for p in Belongings.now().processes if "server_nursery.py" in command_of(p))
        return Belongings(processes=frozenset(servers))

    return kept


@pytest.fixture
def mark(monkeypatch):
    """Marks every process that the test starts, and fails the test if one is left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    yield mark
    try:
        poll(lambda: not marked(mark), 10.0)
    finally:
        for process in marked(mark):
            process.kill()


@pytest.fixture
def start(mark, tmp_path):
    """Starts ``stratagem`` with arguments; the last one or more may be Python source."""
    launchers = []

    def start(*arguments, env=None):
        launcher = Launcher(arguments, tmp_path, {**os.environ, **(env or {})})
        launchers.append(launcher)
        return launcher

    yield start
    for launcher in launchers:
        if launcher.process.poll() is None:
            launcher.process.send_signal(signal.SIGKILL)
        launcher.process.wait()
        launcher.process.stdout.close()
        launcher.process.stderr.close()


@pytest.fixture
def script(tmp_path):
    """Writes a script that knows its task, and can say that it runs."""

    def write(source):
        path = tmp_path / "train.py"
        path.write_text(
            "import json, os, signal, subprocess, sys, time\n"
            "from pathlib import Path\n"
            "config = json.loads(os.environ['TF_CONFIG'])\n"
            "kind, index = config['task']['type'], config['task']['index']\n"
            "def say_ready():\n"
            "    Path(f'ready-{kind}-{index}').write_text(str(os.getpid()))\n"
            "def hang():\n"
            "    say_ready()\n"
            "    while True: signal.pause()\n" + source
        )
        return path.name

    return write


@pytest.fixture
def ready(tmp_path):
    """Waits until tasks have said that they run, and returns their process ids."""

    def ready(*tasks):
        def pids():
            texts = [path.read_text() for path in map(tmp_path.joinpath, names) if path.exists()]
            return len(texts) == len(names) and all(texts) and [int(text) for text in texts]

        names = [f"ready-{task}" for task in tasks]
        return poll(pids)

    return ready


@pytest.fixture
def workers(mark):
    """Starts so many workers with a script and arguments, and ends those that are left."""
    started = []
    with ReservedPorts(3) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]

        def start(number, *arguments, script=FAULTY_WORKER, num_devices=1):
            started.append(Workers(addresses[:number], script, arguments, num_devices))
            return started[-1]

        yield start
        for some in started:
            for process in some.processes:
                process.kill()
                process.communicate()
