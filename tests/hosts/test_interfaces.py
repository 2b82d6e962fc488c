"""Nothing listens on an interface that it was not given: not on all of them, not on the second network."""

import json
import sys
from pathlib import Path

import pytest
from host_jobs import LOOPBACK, PORT, SECRET, STEPS, Job, listening, write_hosts_of_debian
from topology import poll

pytestmark = pytest.mark.slow

ELASTIC = Path(__file__).parents[1] / "multiprocess" / "elastic_worker.py"
SCHEDULED = Path(__file__).with_name("scheduled.py")


@pytest.fixture(params=["resolves", "is loopback"])
def both(request, hosts):
    """Returns two hosts, whose own names resolve to their addresses, or to 127.0.1.1."""
    two = hosts(2)
    if request.param == "is loopback":
        write_hosts_of_debian(two)
    return two


def check(hosts):
    for host in hosts:
        found = listening(host)
        assert found <= {*LOOPBACK, host.address}
        assert host.address in found


def test_elastic_workers(both, topology):
    folder = topology.shared[0]
    job = Job(both, [ELASTIC, folder, 1_000_000, 0.05], env={"STRATAGEM_MIN_WORKERS": "1"})
    notes = "worker-1-*.jsonl"
    poll(lambda: any('"step"' in file.read_text() for file in folder.glob(notes)), 120)
    check(both)
    (folder / "enough").touch()
    job.finish()


def test_launchers(both):
    started = []
    for rank, host in enumerate(both):
        flags = ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", "host1:29400"]
        watched = ["--dashboard", "--events", "/tmp/events"] if rank == 0 else []
        command = [sys.executable, "-m", "stratagem", "run", *flags, *watched, STEPS, 10000, 0.1]
        started.append(host.start(command, {"STRATAGEM_CLUSTER_SECRET": SECRET}))
    for each in started:
        each.wait_for("step 3 sum 3.0", 120)
    check(both)


def test_servers(both):
    cluster = {"chief": ["host1:4711"], "worker": ["host2:4711"], "ps": ["host2:4712"]}
    started = []
    for job, host in (("chief", both[0]), ("worker", both[1]), ("ps", both[1])):
        config = {"cluster": cluster, "task": {"type": job, "index": 0}}
        variables = {"TF_CONFIG": json.dumps(config), "STRATAGEM_CLUSTER_SECRET": SECRET}
        started.append(host.start([sys.executable, SCHEDULED, 100000, 10.0], variables))
    started[0].wait_for("count 5", 120)
    check(both[1:])


def test_a_server_of_islands(both):
    command = [sys.executable, "-m", "stratagem", "island-server", "--address", f"host1:{PORT}"]
    server = both[0].start([*command, "--islands", 2], {"STRATAGEM_CLUSTER_SECRET": SECRET})
    server.wait_for("host1", 60)
    check(both[:1])
