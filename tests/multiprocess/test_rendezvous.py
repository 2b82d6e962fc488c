"""``stratagem run`` on several nodes, which here are several launchers."""

import json
import re
import signal

import pytest

from stratagem._src.cluster.reserved_ports import ReservedPorts

pytestmark = pytest.mark.timeout(120)

SECRET = {"STRATAGEM_CLUSTER_SECRET": "a secret that both nodes know"}


@pytest.fixture
def node(start):
    """Starts the launcher of a node, all of them with the same endpoint."""
    with ReservedPorts(1) as held:
        [port] = held

        def node(rank, program, *flags, num_nodes=2, secret=SECRET):
            place = ["--nnodes", num_nodes, "--node-rank", rank]
            place += ["--rdzv-endpoint", f"127.0.0.1:{port}"]
            return start("run", *place, *flags, program, env=secret)

        node.port = port
        yield node


def test_two_nodes_are_one_cluster_with_one_secret(node, script):
    program = script(
        "print(kind, index, config['cluster'], os.environ['STRATAGEM_CLUSTER_SECRET'])"
    )
    other = node(1, program, "--workers", 1, "--ps", 1)
    first = node(0, program, "--workers", 2, "--rdzv-timeout", 20)
    first.finish()
    other.finish()
    assert (first.returncode, other.returncode) == (0, 0), first.stderr + other.stderr
    assert set(re.findall(r"^\[(.*?)\]", first.stdout, re.M)) == {"worker 0", "worker 1"}
    assert "[worker 2]" in other.stdout
    clusters = set(re.findall(r"\{.*\}", first.stdout + other.stdout))
    assert len(clusters) == 1
    cluster = json.loads(clusters.pop().replace("'", '"'))
    assert [len(cluster[job]) for job in ("worker", "ps")] == [3, 1]
    assert len(set(re.findall(r"[0-9a-f]{64}", first.stdout + other.stdout))) == 1
    assert SECRET["STRATAGEM_CLUSTER_SECRET"] not in first.stdout


def test_failure_on_one_node_ends_both_with_its_code_and_is_shown_on_both(node, script, ready):
    program = script("if index == 0: hang()\nprint('failing'); sys.exit(6)")
    first, other = node(0, program), node(1, program)
    for launcher in (first.finish(), other.finish()):
        assert launcher.returncode == 6
        assert "worker 1 failed with exit code 6. The end of its output:\n    failing" in (
            launcher.stderr
        )


def test_both_nodes_restart_together(node, script):
    program = script(
        "tries = Path(f'tries-{index}')\n"
        "with tries.open('a') as file: file.write('x')\n"
        "number = len(tries.read_text())\n"
        "print('try', number)\n"
        "while not (index == 0 or Path('ready-worker-0').exists()): time.sleep(0.01)\n"
        "if number == 1: sys.exit(1) if index else hang()"
    )
    first, other = node(0, program, "--max-restarts", 1), node(1, program)
    assert (first.finish().returncode, other.finish().returncode) == (0, 0)
    assert "[worker 0] try 2" in first.stdout
    assert "[worker 1] try 2" in other.stdout


def test_another_secret_is_refused_and_the_job_waits_for_the_right_one(node, script):
    program = script("print('hello')")
    first = node(0, program)
    wrong = node(1, program, secret={"STRATAGEM_CLUSTER_SECRET": "not the secret of the job"})
    wrong.finish()
    assert wrong.returncode == 1
    assert "Node 1 cannot join node 0" in wrong.stderr
    assert "does not know this task's cluster secret" in wrong.stderr
    right = node(1, program)
    assert (first.finish().returncode, right.finish().returncode) == (0, 0)
    assert "refused a connection from 127.0.0.1" in first.stderr
    assert "not the secret of the job" not in first.stderr


def test_missing_node_is_named(node, script):
    first = node(0, script(""), "--rdzv-timeout", "1.5", num_nodes=3)
    present = node(1, script(""), num_nodes=3)
    assert (first.finish().returncode, present.finish().returncode) == (1, 1)
    for launcher in (first, present):
        assert "all 3 nodes must join before the deadline, but node 2 did not" in (launcher.stderr)


def test_missing_node_0_is_named(node, script):
    other = node(1, script(""), "--rdzv-timeout", "0.5").finish()
    assert other.returncode == 1
    assert f"Node 1 waited 0.5 s for node 0 at 127.0.0.1:{node.port}" in other.stderr


def test_nodes_that_expect_another_number_are_refused(node, script):
    first = node(0, script(""), "--rdzv-timeout", 60)
    other = node(1, script(""), num_nodes=3).finish()
    assert other.returncode == 1
    assert "node 0 has --nnodes 2, this is node 1 of 3" in other.stderr
    first.process.send_signal(signal.SIGINT)
    assert first.finish().returncode == 130


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_launcher_of_one_node_ends_the_other(node, script, ready, killed):
    program = script("hang()")
    launchers = [node(0, program), node(1, program)]
    ready("worker-0", "worker-1")
    launchers[killed].process.kill()
    survivor = launchers[1 - killed].finish()
    assert survivor.returncode == 1
    assert re.search(rf"node {killed} .*is gone", survivor.stderr)


def test_ctrl_c_on_another_node_ends_both(node, script, ready):
    program = script("hang()")
    launchers = [node(0, program), node(1, program)]
    ready("worker-0", "worker-1")
    launchers[1].process.send_signal(signal.SIGINT)
    assert [launcher.finish().returncode for launcher in launchers] == [130, 130]
