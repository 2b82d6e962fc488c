"""No peer can end a job or a listener by what it sends, or by how it leaves."""

import psutil
import pytest
from processes import marked, poll
from strangers import Overhearing, Strangers

from stratagem.cluster.launch.held_ports import HeldPorts

pytestmark = pytest.mark.timeout(120)

SECRET = {"STRATAGEM_CLUSTER_SECRET": "a secret that both nodes know"}
TRAIN = """
import jax.numpy as jnp
import numpy as np
import stratagem as sg

strategy = sg.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    variable = sg.Variable(0.0, aggregation=sg.VariableAggregation.SUM)

@sg.function
def step(go):
    strategy.run(lambda: variable.assign_add(jnp.ones(())))
    return strategy.reduce("SUM", go, axis=None)

steps = 0
while True:
    steps += 1
    if step(jnp.float32(Path("go").exists())) == 2:
        break
    if steps == 1:
        say_ready()
    time.sleep(0.01)
print("right" if float(variable) == 2 * steps and steps > 10 else f"wrong: {float(variable)}, {steps}")
"""


def listeners(mark):
    """Returns the addresses where processes of the test listen."""
    found = set()
    for process in marked(mark):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(("127.0.0.1", connection.laddr.port))
    return sorted(found)


def test_two_nodes_reach_their_end_among_strangers(start, script, ready, tmp_path):
    program = script("say_ready()\nwhile not Path('go').exists(): time.sleep(0.01)\nprint('right')")
    with HeldPorts(1) as held, Overhearing(("127.0.0.1", *held)) as network:
        nodes = []
        for rank, port in enumerate((*held, network.port)):
            place = ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", f"127.0.0.1:{port}"]
            nodes.append(start("run", *place, program, env=SECRET))
        ready("worker-0", "worker-1")
        overheard = [bytes(heard) for heard in network.heard if heard]
        with Strangers([("127.0.0.1", *held)], overheard) as strangers:
            poll(lambda: strangers.rounds or any(n.process.poll() is not None for n in nodes), 60)
            tmp_path.joinpath("go").touch()
            for node in nodes:
                node.finish()
                assert node.returncode == 0, node.stderr
                assert "right" in node.stdout
    assert overheard


def test_workers_in_step_reach_their_end_among_strangers(start, script, ready, tmp_path, mark):
    job = start("run", "--workers", 2, script(TRAIN))
    ready("worker-0", "worker-1")
    with Strangers(listeners(mark)) as strangers:
        poll(lambda: strangers.rounds or job.process.poll() is not None, 60)
        tmp_path.joinpath("go").touch()
        job.finish()
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("right") == 2
