"""Chiefs and parameter servers that ``stratagem run`` starts again, while the other tasks go on."""

import os
import signal

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
    assert "chief 0 was killed by SIGKILL; it is started again" in job.stderr
    assert len(list(tmp_path.glob("pid-*"))) == 2  # the same two workers all the time
