"""``stratagem run`` with real processes, real failures and real kills."""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from processes import marked, poll

pytestmark = pytest.mark.timeout(120)


def test_every_task_gets_its_place_arguments_devices_and_the_same_secret(start, script):
    program = script(
        "print(kind, index, sys.argv[1:], os.environ['JAX_NUM_CPU_DEVICES'],"
        " os.environ['STRATAGEM_CLUSTER_SECRET'], sorted(config['cluster']), flush=True)\n"
        "say_ready()\n"
        "while kind == 'chief' and len(list(Path().glob('ready-worker-*'))) < 2:\n"
        "    time.sleep(0.01)  # the job is done, and workers are ended, when the chief is"
    )
    flags = ["--workers", 2, "--ps", 1, "--chief", "--evaluator", "--devices-per-worker", 4]
    job = start("run", *flags, program, "--lr", "0.1", "--workers", "9").finish()
    assert job.returncode == 0, job.stderr
    lines = [line for line in job.stdout.splitlines() if not line.startswith("[ps")]
    said = {line.split("]")[0] + "]": line.partition("] ")[2].split() for line in lines}
    assert sorted(said) == ["[chief 0]", "[evaluator 0]", "[worker 0]", "[worker 1]"]
    for prefix, words in said.items():
        assert prefix == f"[{words[0]} {words[1]}]"
        assert words[2:6] == ["['--lr',", "'0.1',", "'--workers',", "'9']"]
        assert words[6] == "4"
        assert words[8:] == ["['chief',", "'ps',", "'worker']"]
    [secret] = {words[7] for words in said.values()}
    assert re.fullmatch(r"[0-9a-f]{64}", secret)
    assert secret not in job.stderr


def test_module(start, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(sys.argv[1:])")
    job = start("run", "-m", "package.train", "-m", "x").finish()
    assert (job.returncode, job.stdout) == (0, "[worker 0] ['-m', 'x']\n")


def test_secret_is_on_no_command_line(start, script, ready, mark):
    job = start("run", "--workers", 1, script("hang()"))
    [task] = ready("worker-0")
    secret = psutil.Process(task).environ()["STRATAGEM_CLUSTER_SECRET"]
    assert len(marked(mark)) == 3  # launcher, supervisor, task
    assert not any(secret in " ".join(process.cmdline()) for process in marked(mark))
    job.process.send_signal(signal.SIGTERM)
    job.finish()


def test_failure_ends_the_others_and_gives_its_exit_code(start, script, ready, tmp_path):
    program = script(
        "if index != 1: hang()\n"
        "while not Path('go').exists(): time.sleep(0.01)\n"
        "print('about to fail'); sys.exit(3)"
    )
    job = start("run", "--grace-seconds", 60, "--workers", 3, program)
    ready("worker-0", "worker-2")
    began = time.monotonic()
    (tmp_path / "go").touch()
    job.finish()
    assert time.monotonic() - began < 30
    assert job.returncode == 3
    message = "stratagem: worker 1 failed with exit code 3. The end of its output:"
    assert f"{message}\n    about to fail\n" in job.stderr
    for other in (0, 2):
        assert f"stratagem: worker {other} was stopped by the launcher\n" in job.stderr


@pytest.mark.slow
def test_task_that_ignores_sigterm_is_killed_after_the_grace(start, script):
    program = script(
        "if index == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN); hang()\n"
        "while not Path('ready-worker-0').exists(): time.sleep(0.01)\n"
        "raise ValueError('no')"
    )
    job = start("run", "--workers", 2, "--grace-seconds", "0.3", program).finish()
    assert job.returncode == 1
    assert "    ValueError: no\n" in job.stderr


def test_killed_worker_is_named_and_gives_128_and_the_signal(start, script, ready):
    job = start("run", "--workers", 2, script("hang()"))
    os.kill(ready("worker-0", "worker-1")[1], signal.SIGKILL)
    job.finish()
    assert job.returncode == 137
    assert "stratagem: worker 1 was killed by SIGKILL and printed nothing." in job.stderr


def test_killed_supervisor_takes_its_task_along(start, script, ready, mark):
    job = start("run", "--workers", 2, script("hang()"))
    task, _ = ready("worker-0", "worker-1")
    psutil.Process(task).parent().kill()
    poll(lambda: task not in [process.pid for process in marked(mark)])
    assert job.finish().returncode == 137


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher_ends_every_task(start, script, ready, number, code):
    program = script(
        "try: hang()\nexcept KeyboardInterrupt: print('interrupted', flush=True); raise"
    )
    job = start("run", "--workers", 2, program)
    ready("worker-0", "worker-1")
    job.process.send_signal(number)
    job.finish()
    assert job.returncode == code
    assert job.stdout.count("interrupted") == (2 if number == signal.SIGINT else 0)


def test_an_announced_end_reaches_the_tasks_which_go_on(start, script, ready, tmp_path):
    program = script(
        "def heed(*_):\n"
        "    Path(f'heeded-{index}').touch()\n"
        "    while not Path('go').exists(): time.sleep(0.01)\n"
        "    os._exit(42)\n"
        "signal.signal(signal.SIGUSR1, heed)\n"
        "hang()"
    )
    job = start("run", "--workers", 2, "--max-restarts", 3, program)
    ready("worker-0", "worker-1")
    job.process.send_signal(signal.SIGUSR1)
    poll(lambda: len(list(tmp_path.glob("heeded-*"))) == 2)
    assert job.process.poll() is None
    (tmp_path / "go").touch()
    job.finish()
    assert job.returncode == 42
    assert "restart" not in job.stderr


def test_second_ctrl_c_kills_at_once(start, script, ready, tmp_path):
    program = script(
        "def note(*_): Path('noted').touch()\nsignal.signal(signal.SIGINT, note)\nhang()"
    )
    job = start("run", "--grace-seconds", "60", program)
    ready("worker-0")
    job.process.send_signal(signal.SIGINT)
    poll((tmp_path / "noted").exists)
    job.process.send_signal(signal.SIGINT)
    assert job.finish(timeout=30).returncode == 130


# In the task's process group, in one of its own, and abandoned by its parent.
CHILDREN = """
sleep = [sys.executable, '-c', 'import signal; signal.signal(15, signal.SIG_IGN); signal.pause()']
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
shell = f'import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)'
subprocess.run([sys.executable, '-c', shell])
"""


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(False, marks=pytest.mark.slow, id="launcher"),
        pytest.param(True, id="its process group"),
    ],
)
def test_nothing_outlives_a_launcher_killed_with_9(start, script, ready, mark, group):
    job = start("run", "--workers", 2, script(CHILDREN + "hang()"))
    ready("worker-0", "worker-1")
    poll(lambda: len(marked(mark)) == 1 + 2 * (2 + 3))
    kill = os.killpg if group else os.kill
    kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    poll(lambda: not marked(mark), seconds=30)


def test_stopped_task_does_not_outlive_the_launcher(start, script, ready, mark):
    job = start("run", script("hang()"))
    os.kill(*ready("worker-0"), signal.SIGSTOP)
    job.process.kill()
    job.process.wait()
    poll(lambda: not marked(mark), seconds=30)


def test_nothing_outlives_a_task_that_finished(start, script, mark):
    job = start("run", script(CHILDREN)).finish()
    assert job.returncode == 0
    assert not marked(mark)


def test_restarts_with_new_ports_and_a_new_secret_until_it_works(start, script):
    program = script(
        "print(config['cluster']['worker'], os.environ['STRATAGEM_CLUSTER_SECRET'])\n"
        "tries = Path(f'tries-{index}')\n"
        "with tries.open('a') as file: file.write('x')\n"
        "if index == 1 and len(tries.read_text()) < 3: sys.exit(4)\n"
        "others = Path('tries-1')\n"
        "while index == 0 and not (others.exists() and len(others.read_text()) == 3):\n"
        "    time.sleep(0.01)"
    )
    job = start("run", "--workers", 2, "--max-restarts", 2, "--log-dir", "logs", program).finish()
    assert job.returncode == 0
    assert "worker 1 failed with exit code 4; restart 1 of the job" in job.stderr
    assert "worker 1 failed with exit code 4; restart 2 of the job" in job.stderr
    lines = [line for line in job.stdout.splitlines() if line.startswith("[worker 1]")]
    assert len(set(lines)) == 3


def test_quiet_shows_the_leader_and_log_files_keep_everything(start, script, tmp_path):
    program = script("print('out', kind, index); print('err', kind, index, file=sys.stderr)")
    flags = ["--workers", 2, "--chief", "--quiet", "--log-dir", "a/logs"]
    job = start("run", *flags, program).finish()
    assert job.stdout == "[chief 0]  out chief 0\n"
    assert job.stderr == "[chief 0]  err chief 0\n"
    logs = {path.name: path.read_text() for path in (tmp_path / "a" / "logs").iterdir()}
    assert sorted(logs) == ["chief-0.log", "worker-0.log", "worker-1.log"]
    assert sorted(logs["worker-1.log"].splitlines()) == ["err worker 1", "out worker 1"]


@pytest.mark.slow
def test_quiet_still_shows_a_failure(start, script):
    program = script("if index == 1: raise KeyError('lost')\nhang()")
    job = start("run", "--workers", 2, "--quiet", program).finish()
    assert job.returncode == 1
    assert "    KeyError: 'lost'\n" in job.stderr


@pytest.mark.slow
def test_large_output_arrives_whole(start, script):
    program = script("for n in range(20000): print(index, n, 'x' * 50)\nsys.stdout.write('end')")
    job = start("run", "--workers", 2, program).finish()
    for index in (0, 1):
        prefix = f"[worker {index}] "
        lines = [line for line in job.stdout.splitlines() if line.startswith(prefix)]
        assert len(lines) == 20001
        assert lines[-2] == f"{prefix}{index} 19999 {'x' * 50}"
        assert lines[-1] == f"{prefix}end"


@pytest.mark.slow
def test_colours_on_a_terminal_only(start, script, mark, tmp_path):
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "stratagem", "run", script("print('hello')")]
    subprocess.run(command, cwd=tmp_path, env=env, stdout=slave, check=True, timeout=30)
    assert os.read(master, 1000).startswith(b"\x1b[36m[worker 0] \x1b[0mhello")
    os.close(master)
    os.close(slave)


def test_job_goes_on_when_its_output_cannot_be_written(start, script, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").symlink_to("/dev/full")
    program = script(
        "print('x', flush=True)\n"
        "while not Path('closed').exists(): time.sleep(0.01)\n"
        "for i in range(1000): print('y' * 100)\n"
        "sys.stdout.flush()\n"
        "Path(f'well-{index}').touch()"
    )
    flags = ["--workers", 2, "--log-dir", "logs", "--events", "/dev/full"]
    job = start("run", *flags, program)
    assert job.process.stdout.readline().endswith(" x\n")
    job.process.stdout.close()
    (tmp_path / "closed").touch()
    assert job.process.wait(60) == 0
    messages = job.process.stderr.read()
    assert {path.name for path in tmp_path.glob("well-*")} == {"well-0", "well-1"}
    for words in (
        "The launcher's output is incomplete: Broken pipe",
        "The log files in logs are incomplete, because writing failed: No space left",
        "Stopped writing events: No space left",
    ):
        assert messages.count(words) == 1
    assert (tmp_path / "logs" / "worker-1.log").read_text().count("y") == 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "must be a Python script that exists, got 'nowhere.py'"),
        (["--workers", "-1", "train.py"], "workers must be an integer >= 0, got -1"),
        (["--devices-per-worker", "0", "train.py"], "at least 1, got 0"),
        (["--nnodes", "2", "train.py"], "needs --rdzv-endpoint"),
        (["--nnodes", "2", "--node-rank", "2", "train.py"], "--node-rank must be"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts must not be negative"),
        (["--nnodes", "1:2", "--workers", "1:2", "train.py"], "a single number of --workers"),
        (["--nnodes", "2", "--workers", "1:2", "train.py"], "--nnodes MIN:2"),
        (["--on", "ray", "--workers", "1:2", "train.py"], "must be left out with --on ray"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "localhost:1", "train.py"],
            "STRATAGEM_CLUSTER_SECRET must hold",
        ),
    ],
)
def test_wrong_use_is_explained(arguments, message, script, tmp_path, monkeypatch, capsys):
    from stratagem._src.cli import main

    script("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STRATAGEM_CLUSTER_SECRET", raising=False)
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_killed_worker_of_a_chief_is_started_again_with_the_same_place(
    start, script, ready, tmp_path
):
    program = script(
        "if kind == 'worker':\n"
        "    place = config['cluster'], os.environ['STRATAGEM_CLUSTER_SECRET']\n"
        "    with open('places', 'a') as places: places.write(repr(place) + '\\n')\n"
        "    print('a life'); sys.stdout.flush(); hang()\n"
        "if kind == 'ps': hang()\n"
        "while not Path('go').exists(): time.sleep(0.01)"
    )
    flags = ["--workers", 1, "--ps", 1, "--chief", "--log-dir", "logs"]
    job = start("run", *flags, program)
    for life in range(1, 4):
        [worker] = ready("worker-0")
        assert len((tmp_path / "places").read_text().splitlines()) == life
        (tmp_path / "ready-worker-0").unlink()
        if life < 3:
            os.kill(worker, signal.SIGKILL)
    (tmp_path / "go").touch()
    job.finish()
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("worker 0 was killed by SIGKILL; restarting it") == 2
    assert len(set((tmp_path / "places").read_text().splitlines())) == 1
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "a life\n" * 3


@pytest.mark.slow
def test_doctor_measures_an_all_reduce_between_all_workers(start):
    flags = ("--workers", 2, "--devices-per-worker", 2)
    launcher = start("run", *flags, "-m", "stratagem", "doctor").finish()
    assert launcher.returncode == 0
    for worker in range(2):
        said = [
            line for line in launcher.stdout.splitlines() if line.startswith(f"[worker {worker}]")
        ]
        assert any(
            re.search(r"all-reduce of 4 MB between all workers in [\d.]+ ms", x) for x in said
        )
        assert said[-1].endswith("verdict: all is well")
    assert "[Gloo]" not in launcher.stdout


@pytest.mark.slow
def test_two_workers_get_the_same_sum_to_the_bit(start, script):
    """Otherwise what they keep of it would drift apart."""
    program = script(
        "import hashlib\n"
        "import numpy as np, stratagem as sg\n"
        "strategy = sg.distribute.MultiWorkerMirroredStrategy()\n"
        "def numbers(seed):\n"
        "    part = lambda c: np.random.default_rng(seed + c.replica_id_in_sync_group).random(4096)\n"
        "    return strategy.experimental_distribute_values_from_function(\n"
        "        lambda c: part(c).astype(np.float32))\n"
        "def reduce(x, y):\n"
        "    context = sg.distribute.get_replica_context()\n"
        "    return context.all_reduce('SUM', x * y * 0.37)\n"
        "step = sg.function(lambda x, y: strategy.run(reduce, (x, y)))\n"
        "total = strategy.experimental_local_results(step(numbers(1), numbers(5)))[0]\n"
        "print('digest', hashlib.sha256(np.asarray(total).tobytes()).hexdigest())\n"
    )
    job = start("run", "--workers", 2, program).finish()
    assert job.returncode == 0, job.stderr
    digests = re.findall(r"digest (\w+)", job.stdout)
    assert len(digests) == 2
    assert len(set(digests)) == 1
