"""Chiefs and parameter servers that ``stratagem run`` starts again, while the other tasks go on."""

import os
import signal

import pytest

CLUSTER = """
import numpy as np
import stratagem as sg

resolver = sg.distribute.cluster_resolver.TFConfigClusterResolver()
if kind != "chief":
    sg.distribute.Server(resolver.cluster_spec(), kind, index).join()
"""


def test_a_killed_chief_goes_on_while_workers_and_servers_stay(start, script, ready, tmp_path):
    program = script(
        CLUSTER
        + """
strategy = sg.distribute.ParameterServerStrategy(resolver, resume=True)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    steps = sg.Variable(0, name="steps")

def step(worker):
    Path(f"pid-{worker}-{os.getpid()}").touch()
    steps.assign_add(1)

print("resumed", strategy.resumed, "at", int(steps.numpy()), flush=True)
while int(steps.numpy()) < 8:
    for worker in range(2):
        coordinator.schedule(step, args=(worker,), worker=worker)
    coordinator.join()
    if int(steps.numpy()) == 4:
        hang()
"""
    )
    job = start("run", "--workers", 2, "--ps", 1, "--chief", "--max-restarts", 1, program)
    (chief,) = ready("chief-0")
    os.kill(chief, signal.SIGKILL)
    job.finish(90)
    assert job.returncode == 0, job.stderr
    assert "resumed False at 0" in job.stdout
    assert "resumed True at 4" in job.stdout
    assert "chief 0 was killed by SIGKILL; restarting it" in job.stderr
    assert len(list(tmp_path.glob("pid-*"))) == 2  # the same two workers all the time


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_server_comes_back_with_the_last_checkpoint(start, script, tmp_path):
    program = script(
        'Path(f"pid-{kind}-{index}-{os.getpid()}").touch()\n'
        + CLUSTER
        + """
strategy = sg.distribute.ParameterServerStrategy(resolver)
coordinator = sg.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    steps = sg.Variable(0, name="steps")
manager = sg.train.CheckpointManager(sg.train.Checkpoint(steps=steps), "checkpoints", max_to_keep=1)
coordinator.recover_servers_from(manager)

def take(number):
    for _ in range(number):
        coordinator.schedule(lambda: steps.assign_add(1).numpy())
    coordinator.join()

take(3)
manager.save()
manager.sync()
take(2)
(server,) = Path().glob("pid-ps-0-*")
os.kill(int(server.name.split("-")[-1]), signal.SIGKILL)
take(4)
(recovery,) = coordinator.recoveries
print("steps and lost ones:", int(steps.numpy()) + recovery.num_functions, flush=True)
"""
    )
    job = start("run", "--workers", 2, "--ps", 1, "--chief", program).finish(250)
    assert job.returncode == 0, job.stderr
    assert "steps and lost ones: 9" in job.stdout
    assert "ps 0 was killed by SIGKILL; restarting it" in job.stderr
    count = {job: len(list(tmp_path.glob(f"pid-{job}-*"))) for job in ("chief", "worker", "ps")}
    assert count == {"chief": 1, "worker": 2, "ps": 2}
