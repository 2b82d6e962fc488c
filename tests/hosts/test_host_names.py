"""Jobs on several hosts start whatever names resolve to, and use the network that they were given."""

import sys

import pytest
from host_jobs import LOOPBACK, PORT, SECRET, STEPS, Job, listening, write_hosts_of_debian


def test_a_name_of_its_own_that_is_loopback(hosts):
    both = hosts(2)
    write_hosts_of_debian(both)
    job = Job(both, [STEPS, 20, 0.1])
    job.wait_for("step 1 sum 3.0")
    for host in both:
        # Not everywhere, and not on the second network.
        assert listening(host) <= {*LOOPBACK, host.address}
    job.finish()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["address", "address6", "second_address"])
def test_addresses(hosts, kind):
    both = hosts(2)
    addresses = [getattr(host, kind) for host in both]
    spelled = [f"[{address}]" if ":" in address else address for address in addresses]
    if kind == "second_address":
        for host in both:
            host.cut()  # of the first network, by which their names resolve
    job = Job(both, [STEPS, 20, 0.2], spelled)
    job.wait_for("step 1 sum 3.0")
    for host, address in zip(both, addresses, strict=True):
        assert listening(host) - LOOPBACK == {address}
    job.finish()


@pytest.mark.slow
def test_a_name_that_does_not_resolve(hosts):
    [host] = hosts(1)
    host.write_hosts("127.0.0.1 localhost\n")
    run = host.start([sys.executable, "-m", "stratagem", "run", "--workers", 2, STEPS, 2, 0])
    assert run.wait(90) == 0, run.output()
    assert "step 1 sum 3.0" in run.output()


@pytest.mark.slow
def test_a_job_of_one_host_listens_on_loopback_alone(hosts):
    [host] = hosts(1)
    command = [sys.executable, "-m", "stratagem", "run", "--workers", 2, STEPS, 1000, 0.05]
    run = host.start(command)
    run.wait_for("step 1 sum 3.0", 90)
    assert listening(host) <= LOOPBACK


@pytest.mark.slow
def test_variables_of_torchrun(hosts):
    # Only the leader's address is known, and by a name that is loopback at the leader.
    both = hosts(2)
    write_hosts_of_debian(both)
    commands = []
    for rank, host in enumerate(both):
        variables = {
            "MASTER_ADDR": both[0].name,
            "MASTER_PORT": str(PORT),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RUN_ID": "steps",
            "STRATAGEM_CLUSTER_SECRET": SECRET,
        }
        commands.append(host.start([sys.executable, STEPS, 2, 0], variables))
    for command in commands:
        assert command.wait(90) == 0, command.output()
        assert "step 1 sum 3.0" in command.output()


@pytest.mark.slow
def test_launchers_on_two_hosts(hosts):
    both = hosts(2)
    write_hosts_of_debian(both)
    endpoint = f"{both[0].name}:29400"
    commands = []
    for rank, host in enumerate(both):
        flags = ["--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", endpoint, "--workers", 2]
        command = [sys.executable, "-m", "stratagem", "run", *flags, STEPS, 2, 0]
        commands.append(host.start(command, {"STRATAGEM_CLUSTER_SECRET": SECRET}))
    for command in commands:
        assert command.wait(120) == 0, command.output()
        assert "step 1 sum 10.0" in command.output()
