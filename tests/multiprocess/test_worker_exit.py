"""A worker that ends by ``sys.exit`` with an error: noticed at once, and its exit code is the job's."""

import pytest

START = """
import stratagem as sg
strategy = sg.distribute.MultiWorkerMirroredStrategy()
if index == 1:
    sys.exit({status!r})
"""

TRAIN = """
@sg.function
def step():
    return strategy.run(lambda: sg.distribute.get_replica_context().all_reduce("SUM", 1.0))

step()
"""


@pytest.mark.parametrize(
    ("status", "code"), [(7, 7), pytest.param("out of money", 1, marks=pytest.mark.slow)]
)
def test_the_others_are_told_the_exit_code(start, script, status, code):
    program = script(START.format(status=status) + TRAIN)
    job = start("run", "--workers", 2, program).finish(100)
    assert job.returncode == code, job.stderr
    assert f"stratagem: worker 1 failed with exit code {code}" in job.stderr
    # Unless the launcher has ended it before it could say so.
    told = f"has left: its program ended with exit code {code}"
    assert told in job.stdout + job.stderr or "worker 0 was stopped by the launcher" in job.stderr


def test_a_worker_that_fails_does_not_wait_for_one_in_its_own_code(start, script):
    program = script(START.format(status=7) + "hang()")
    job = start("run", "--workers", 2, program).finish(100)
    assert job.returncode == 7, job.stderr
    assert "worker 1 failed with exit code 7" in job.stderr
