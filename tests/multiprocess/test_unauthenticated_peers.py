"""No peer can end a job or a listener by what it sends, or by how it leaves."""

import socket
import time

import psutil
import pytest
from processes import marked, poll
from unauthenticated_peers import Overhearing, Strangers

from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.core.errors import UnavailableError
from stratagem._src.transport import Credentials, Identity, Kind, Message, connect

pytestmark = pytest.mark.timeout(120)

MODULE = "stratagem._src.control_plane.membership_server"
SECRET = {"STRATAGEM_CLUSTER_SECRET": "a secret that both nodes know"}
TRAIN = """
if index == 0:
    Path("leader.new").write_text(config["cluster"]["worker"][0])
    Path("leader.new").rename("leader")
else:
    while not Path("way").exists(): time.sleep(0.01)
    config["cluster"]["worker"][0] = Path("way").read_text()
    os.environ["TF_CONFIG"] = json.dumps(config)
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


def meeting_process(mark):
    """Returns the process where the workers of the test meet."""
    [found] = [process for process in marked(mark) if MODULE in process.cmdline()]
    return found


def listening(process):
    found = process.net_connections("tcp")
    return [c.laddr.port for c in found if c.status == psutil.CONN_LISTEN]


def silent_visit(port):
    """Connects, says nothing and leaves; returns when that was, or nothing if nobody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return None
    return time.monotonic()


@pytest.mark.slow
def test_two_nodes_reach_their_end_among_strangers(start, script, ready, tmp_path):
    program = script("say_ready()\nwhile not Path('go').exists(): time.sleep(0.01)\nprint('right')")
    with ReservedPorts(1) as held, Overhearing(("127.0.0.1", *held)) as network:
        nodes = []
        for rank, port in enumerate((*held, network.port)):
            place = ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", f"127.0.0.1:{port}"]
            nodes.append(start("run", *place, program, env=SECRET))
        visited = poll(lambda: silent_visit(*held), 30)
        ready("worker-0", "worker-1")
        overheard = [bytes(heard) for heard in network.heard if heard]
        with Strangers([("127.0.0.1", *held)], overheard) as strangers:

            def is_over():
                # Who has not greeted is asked to leave after ten seconds, which may go wrong too.
                is_late = time.monotonic() > visited + 11
                ended = any(node.process.poll() is not None for node in nodes)
                return (strangers.rounds and is_late) or ended

            poll(is_over, 60)
            tmp_path.joinpath("go").touch()
            for node in nodes:
                node.finish()
                assert node.returncode == 0, node.stderr
                assert "right" in node.stdout
    assert overheard


def test_workers_in_step_reach_their_end_among_strangers(start, script, ready, tmp_path, mark):
    job = start("run", "--workers", 2, script(TRAIN))
    leader = poll(lambda: (path := tmp_path / "leader").exists() and path.read_text(), 30)
    host, port = leader.split(":")
    with Overhearing((host, int(port))) as network:
        tmp_path.joinpath("way.new").write_text(f"127.0.0.1:{network.port}")
        tmp_path.joinpath("way.new").rename(tmp_path / "way")
        workers = ready("worker-0", "worker-1")
        overheard = [bytes(heard) for heard in network.heard if heard]
        assert len(overheard) == 2  # the worker, and its way to JAX's service
        meeting = meeting_process(mark)
        # Where workers exchange gradients, XLA listens, and nothing of ours.
        assert [len(listening(psutil.Process(pid))) for pid in workers] == [1, 1]
        assert listening(meeting) == [int(port)]
        files, threads = meeting.num_fds(), meeting.num_threads()
        with Strangers([(host, int(port))], overheard) as strangers:
            poll(lambda: strangers.rounds or job.process.poll() is not None, 60)
        assert job.process.poll() is None, job.finish().stderr
        poll(lambda: meeting.num_fds() <= files and meeting.num_threads() <= threads + 1, 20)
        tmp_path.joinpath("go").touch()
        job.finish()
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("right") == 2


MALFORMED = [
    b"",
    b"[]",
    b"\xff",
    b'{"kind": 5}',
    b'{"kind": "NodeStopped", "node": 0}',
    b'{"kind": "NodeStopped", "node": "\\ud800"}',
    b'{"kind": "Interrupted", "signal": 4711}',
    b'{"kind": "TaskEnded", "ending": {"task": ["worker", 0], "returncode": 1, '
    b'"by_launcher": false, "output": ""}}',
    b'{"kind": "NodeJoined", "offer": {"node": 1, "host": "a", "ports": [], '
    b'"counts": {"workers": 100000000000}}}',
    b'{"kind": "NodeJoined", "offer": {"node": 1, "host": "a", "ports": [1' + b"0" * 5000 + b"], "
    b'"counts": {}}}',
    b"[" * 100_000,
]


def test_nodes_that_know_the_secret_and_talk_nonsense_are_dropped(start, script):
    program = script("print('right')")
    credentials = Credentials(secret=SECRET["STRATAGEM_CLUSTER_SECRET"])
    with ReservedPorts(1) as held:
        [port] = held
        place = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--node-rank"]
        first = start("run", *place, 0, program, env=SECRET)

        def connected():
            try:
                return connect(
                    f"127.0.0.1:{port}",
                    credentials,
                    own=Identity("node", 1),
                    wanted=Identity("rendezvous"),
                    deadline=time.monotonic() + 5,
                )
            except UnavailableError:
                return None

        def welcomed():
            impostor = poll(connected, 20)
            impostor.send(Kind.EVENT, "", Message(b'{"num_nodes": 2}'), None)
            if b"welcome" in impostor.receive(time.monotonic() + 10)[2].body:
                return impostor
            impostor.close()  # the one before has not been dropped yet
            return None

        for body in MALFORMED:
            impostor = poll(welcomed, 20)
            impostor.send(Kind.EVENT, "", Message(body), None)
            with pytest.raises(ConnectionError):
                impostor.receive(time.monotonic() + 10)
            impostor.close()
        second = start("run", *place, 1, program, env=SECRET)
        assert (first.finish().returncode, second.finish().returncode) == (0, 0), first.stderr
    assert "right" in first.stdout
    assert "right" in second.stdout
