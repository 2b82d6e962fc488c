"""Workers that end while XLA waits in one of their threads: with the code and the output of any other."""

import signal
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("stuck_worker.py")
ENDING = SCRIPT.with_name("ending_worker.py")
OUTPUT = [
    "written and not flushed",
    "registered after the library",
    "registered before the library",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("raise", 1, "KeyError: 'mine'"),
        pytest.param("exit", 3, "", marks=pytest.mark.slow),
        pytest.param("return", 0, "", marks=pytest.mark.slow),
        pytest.param("text", 1, "a last word", marks=pytest.mark.slow),
        pytest.param("interrupt", -signal.SIGINT, "KeyboardInterrupt", marks=pytest.mark.slow),
    ],
)
def test_a_stuck_worker_ends_like_any_other(workers, tmp_path, how, code, said):
    some = workers(2, how, tmp_path / "log", script=SCRIPT)
    printed, errors = some.processes[0].communicate(timeout=60)
    assert some.processes[0].returncode == code, errors
    assert some.processes[1].poll() is None  # the step is stuck still
    assert printed.splitlines()[-3:] == OUTPUT
    assert (tmp_path / "log").read_text() == "logged"
    assert errors.rstrip().endswith(said)
    assert "Fatal" not in errors


@pytest.mark.slow
def test_a_job_ends_with_the_code_of_its_stuck_worker(start, tmp_path):
    job = start("run", "--workers", 2, SCRIPT, "exit", tmp_path / "log").finish()
    assert job.returncode == 3, job.stderr
    assert "registered before the library" in job.stdout


def test_a_thread_that_trains_does_not_keep_or_abort_the_process(workers):
    some = workers(2, script=ENDING)
    for process in some.processes:
        printed, errors = process.communicate(timeout=60)
        # 1 if its last program is stuck: the other worker may have left before.
        assert process.returncode in (0, 1), errors
        assert "ends" in printed
        assert "Fatal" not in errors
