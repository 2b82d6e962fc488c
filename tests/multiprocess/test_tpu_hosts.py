"""A TPU of two hosts: real processes with virtual CPU devices as cores."""

import pytest

from stratagem.testing import run_cluster

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("mark")]


def train_on_all_hosts():
    import jax.numpy as jnp

    import stratagem as sg

    resolvers = sg.distribute.cluster_resolver
    sg.config.experimental_connect_to_cluster(resolvers.TFConfigClusterResolver())
    resolver = resolvers.TPUClusterResolver("local", platform="cpu")
    topology = sg.tpu.experimental.initialize_tpu_system(resolver)
    totals = []
    for cores, num_replicas in ((1, 4), (2, 2)):
        assignment = sg.tpu.experimental.DeviceAssignment.build(
            topology, computation_shape=[1, 1, 1, cores], num_replicas=num_replicas
        )
        strategy = sg.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)
        with strategy.scope():
            v = sg.Variable(jnp.zeros(4), aggregation=sg.VariableAggregation.SUM)

        def step(strategy=strategy, v=v, cores=cores):
            replica = sg.distribute.get_replica_context()
            x = jnp.ones(4) * (replica.replica_id_in_sync_group + 1)
            v.assign_add(strategy.experimental_split_to_logical_devices(x, [cores]))
            return x.sum()

        @sg.function
        def train(strategy=strategy, step=step):
            return strategy.reduce("SUM", strategy.run(step), axis=None)

        totals.append((float(train()), v.numpy().tolist(), strategy.extended.num_hosts))
    return topology.num_tasks, totals


def test_one_step_over_two_hosts():
    expected = (2, [(40.0, [10.0] * 4, 2), (12.0, [3.0] * 4, 2)])
    assert run_cluster(train_on_all_hosts, workers=2, devices_per_worker=2) == [expected] * 2
