"""Parameter servers that are killed and started again, in processes of their own."""

import numpy as np
import optax
import pytest
from server_cluster import ServerCluster

import stratagem as sg

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture
def cluster():
    cluster = ServerCluster(workers=1, ps=2)
    yield cluster
    cluster.close()


def test_training_goes_on_from_a_checkpoint_when_a_server_was_killed(cluster, tmp_path):
    def set_up(num_shards):
        partitioner = sg.distribute.partitioners.FixedShardsPartitioner(num_shards)
        strategy = cluster.strategy(variable_partitioner=partitioner)
        with strategy.scope():
            table = sg.Variable(TABLE, name="table")
        optimizer = sg.train.Optimizer(optax.sgd(0.1, momentum=0.5))
        return table, optimizer, sg.train.Checkpoint(table=table, optimizer=optimizer)

    def step(optimizer, table):
        optimizer.apply_gradients([(np.ones_like(TABLE), table)])

    table, optimizer, checkpoint = set_up(2)
    step(optimizer, table)
    path = checkpoint.save(tmp_path / "ckpt")
    checkpoint.sync()

    cluster.kill("ps", 1)
    lost = rf"/job:ps/task:1 at {cluster.cluster['ps'][1]}"
    for use in (table.numpy, lambda: table.assign(TABLE), lambda: step(optimizer, table)):
        with pytest.raises(sg.errors.PSUnavailableError, match=lost):
            use()
    with pytest.raises(sg.errors.PSUnavailableError, match=lost):
        checkpoint.save(tmp_path / "ckpt")
    assert sg.train.latest_checkpoint(tmp_path) == path

    cluster.start("ps", 1)
    fresh, optimizer, checkpoint = set_up(3)
    with pytest.raises(sg.errors.PSUnavailableError, match=f"{lost}.*restarted"):
        table.variables[1].numpy()
    checkpoint.restore(path)
    step(optimizer, fresh)
    np.testing.assert_allclose(fresh.numpy(), TABLE - 0.1 - 0.15, rtol=1e-5)
