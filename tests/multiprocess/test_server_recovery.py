"""Parameter servers that are killed, come back, and are restored while chief and workers go on."""

import gc
import logging
import signal
import threading
import time

import numpy as np
import optax
import pytest
from processes import poll
from server_cluster import ServerCluster

import stratagem as sg

ROWS = 10


@pytest.fixture
def cluster():
    cluster = ServerCluster(workers=2, ps=2)
    yield cluster
    gc.collect()  # a coordinator that nobody holds does not wait for the servers
    cluster.close()


class Job:
    """A table over both servers, a counter on one, and functions that update both."""

    def __init__(self, cluster, directory, patience=60.0, worker_timeout=30.0, **others):
        self.strategy = cluster.strategy(
            variable_partitioner=sg.distribute.partitioners.FixedShardsPartitioner(2)
        )
        self.coordinator = sg.distribute.coordinator.ClusterCoordinator(
            self.strategy, patience=patience, worker_timeout=worker_timeout
        )
        with self.strategy.scope():
            self.table = sg.Variable(np.zeros((ROWS, 2), np.float32), name="table")
            self.count = sg.Variable(0, name="count")
        self.optimizer = sg.train.Optimizer(optax.sgd(1.0, momentum=0.5))
        checkpoint = sg.train.Checkpoint(
            table=self.table, count=self.count, optimizer=self.optimizer, **others
        )
        self.manager = sg.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
        self.coordinator.recover_servers_from(self.manager)

    def train(self, steps, seconds=0.0):
        table, count, optimizer = self.table, self.count, self.optimizer

        def step():
            time.sleep(seconds)
            optimizer.apply_gradients([(-np.ones((ROWS, 2), np.float32), table)])
            count.assign_add(1)

        for _ in range(steps):
            self.coordinator.schedule(step)


def table_after(steps):
    """What every element of the table is after so many steps of the optimizer."""
    value = velocity = 0.0
    for _ in range(steps):
        velocity = 0.5 * velocity + 1.0
        value += velocity
    return value


@pytest.mark.parametrize(
    "lost", [*(pytest.param([n], marks=pytest.mark.slow) for n in (0, 1)), [0, 1]]
)
def test_lost_servers_come_back_with_the_last_checkpoint(cluster, tmp_path, lost, caplog):
    job = Job(cluster, tmp_path)
    job.train(3)
    job.coordinator.join()
    path = job.manager.save()
    job.manager.sync()
    job.train(4)
    job.coordinator.join()
    # Signs of life tell how many updates a server has carried out.
    restorer = job.coordinator._dispatcher.restorer
    poll(lambda: sum(restorer._num_updates) == 21)

    for server in lost:
        cluster.kill("ps", server)
    job.train(5)  # none of them can run before the servers are back
    for server in lost:
        cluster.start("ps", server)
    with caplog.at_level(logging.WARNING, "stratagem"):
        job.coordinator.join()

    (recovery,) = job.coordinator.recoveries
    assert recovery.servers == tuple(lost)
    assert recovery.checkpoint == path
    assert recovery.num_functions == 4
    # Functions that were interrupted may have updated a server that was not lost.
    assert 12 <= recovery.num_updates <= 12 + 5
    assert recovery.since <= recovery.lost_at
    # Exactly the checkpoint and what came after: variables, and the momentum beside each shard.
    assert int(job.count.numpy()) == 3 + 5
    np.testing.assert_allclose(job.table.numpy(), table_after(8), rtol=1e-6)
    assert f"4 functions with {recovery.num_updates} updates" in caplog.text


def test_functions_that_run_while_a_server_is_lost_run_again(cluster, tmp_path):
    job = Job(cluster, tmp_path)
    job.manager.save()
    job.manager.sync()
    job.train(12, seconds=0.3)
    poll(lambda: job.coordinator._dispatcher.state.num_returned >= 2)
    cluster.kill("ps", 1)
    cluster.start("ps", 1)
    job.coordinator.join()
    (recovery,) = job.coordinator.recoveries
    # All that had not returned ran afterwards; some of these may have run twice.
    assert int(job.count.numpy()) >= 12 - recovery.num_functions
    assert job.coordinator._dispatcher.state.num_returned == 12


@pytest.mark.slow
def test_what_the_chief_itself_does_raises_until_it_has_joined(cluster, tmp_path):
    job = Job(cluster, tmp_path)
    job.count.assign(7)
    job.manager.save()
    job.manager.sync()
    cluster.kill("ps", 0)
    with pytest.raises(sg.errors.PSUnavailableError, match="/job:ps/task:0"):
        job.table.numpy()
    assert not job.coordinator.done()
    cluster.start("ps", 0)
    job.coordinator.join()
    assert np.all(job.table.numpy() == 0)
    assert int(job.count.numpy()) == 7


@pytest.mark.slow
def test_a_server_that_was_stopped_and_goes_on_is_not_set_back(cluster, tmp_path):
    job = Job(cluster, tmp_path, worker_timeout=5.0)
    job.train(1)
    job.coordinator.join()
    job.manager.save()
    job.manager.sync()
    job.train(2)
    job.coordinator.join()
    restorer = job.coordinator._dispatcher.restorer
    cluster.signal("ps", 1, signal.SIGSTOP)
    poll(lambda: not job.coordinator.done(), 20.0)
    cluster.signal("ps", 1, signal.SIGCONT)
    job.coordinator.join()
    assert restorer.recoveries == []
    assert int(job.count.numpy()) == 3


@pytest.mark.slow
def test_a_server_that_does_not_come_back_is_waited_for_until_the_deadline(cluster, tmp_path):
    job = Job(cluster, tmp_path, patience=3.0)
    job.manager.save()
    job.manager.sync()
    job.train(1)
    job.coordinator.join()
    cluster.kill("ps", 1)
    job.train(1)
    begun = time.monotonic()
    with pytest.raises(
        sg.errors.PSUnavailableError, match=r"/job:ps/task:1.*did not come back within 3 s"
    ):
        job.coordinator.join()
    assert time.monotonic() - begun < 15


def test_there_must_be_a_checkpoint(cluster, tmp_path):
    job = Job(cluster, tmp_path)
    job.train(1)
    job.coordinator.join()
    cluster.kill("ps", 0)
    cluster.start("ps", 0)
    with pytest.raises(sg.errors.PSUnavailableError, match="no checkpoint to restore them from"):
        poll(job.coordinator.join, 20.0)


def test_variables_that_are_not_in_the_checkpoint_are_named(cluster, tmp_path):
    job = Job(cluster, tmp_path)
    with job.strategy.scope():
        forgotten = [sg.Variable(1.0, name=f"forgotten_{i}") for i in range(2)]
    job.manager.save()
    job.manager.sync()
    cluster.kill("ps", 1)
    cluster.start("ps", 1)
    with pytest.raises(sg.errors.PSUnavailableError, match=r"'forgotten_[01]'.*not in"):
        poll(job.coordinator.join, 20.0)
    lost = next(v for v in forgotten if v.device.endswith("task:1/device:CPU:0"))
    with pytest.raises(sg.errors.PSUnavailableError, match="is not restored"):
        lost.numpy()
    job.coordinator.join()  # it was looked into again, and nothing else is lost


def test_schedule_waits_while_a_server_is_away(cluster, tmp_path):
    job = Job(cluster, tmp_path)
    job.manager.save()
    job.manager.sync()
    cluster.kill("ps", 1)
    poll(lambda: not job.coordinator.done(), 20.0)
    scheduled = threading.Event()

    def schedule():
        job.train(600)  # more than the queue takes
        scheduled.set()

    thread = threading.Thread(target=schedule)
    thread.start()
    assert not scheduled.wait(0.5)
    cluster.start("ps", 1)
    assert scheduled.wait(60)
    thread.join()
    job.coordinator.join()
    assert int(job.count.numpy()) == 600
