"""Replicas of several devices under strategies other than TPUStrategy, which has tests of all layouts."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg

FullySharded = sg.distribute.experimental.FullySharded


def mirrored(num_devices, devices_per_replica):
    devices = [f"CPU:{i}" for i in range(num_devices)]
    return sg.distribute.MirroredStrategy(devices, devices_per_replica=devices_per_replica)


def test_replicas_have_consecutive_devices():
    strategy = mirrored(6, 3)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.num_logical_devices == 3
    names = [[device.id for device in of] for of in strategy.replica_group.logical_devices]
    assert names == [[0, 1, 2], [3, 4, 5]]
    assert (
        mirrored(2, 1).replica_group
        is sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).replica_group
    )
    alone = sg.distribute.MultiWorkerMirroredStrategy(devices_per_replica=2)
    assert alone.num_replicas_in_sync == len(jax.devices()) // 2


@pytest.mark.parametrize("count", [0, 3, 5])
def test_devices_that_do_not_divide(count):
    with pytest.raises(ValueError, match=f"divide the number of devices, got {count} for 4"):
        mirrored(4, count)


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ("variables", True),
        *(
            pytest.param(kind, compiled, marks=pytest.mark.slow)
            for kind in ("copies", "state", "variables")
            for compiled in (False, True)
            if (kind, compiled) != ("variables", True)
        ),
    ],
)
def test_training_with_a_split_layer(kind, compiled):
    """Layouts within a replica, and variables in parts between the replicas, do not change a number."""
    weights = []
    for strategy in (mirrored(2, 1), mirrored(4, 2)):
        block = FullySharded(min_size=1) if kind == "variables" else contextlib.nullcontext()
        random = np.random.RandomState(0)
        with strategy.scope(), block:
            first = sg.Variable(random.randn(6, 512).astype(np.float32))
            second = sg.Variable(random.randn(512, 3).astype(np.float32))
        optimizer = sg.train.Optimizer(optax.adam(0.1), shard_state=kind == "state")
        x = strategy.experimental_distribute_values_from_function(
            lambda context: jnp.full((4, 6), 0.1 + context.replica_id_in_sync_group)
        )
        layouts = []

        def replica(x, s=strategy, v=(first, second), optimizer=optimizer, layouts=layouts):
            def loss():
                split = len(s.replica_group.device_set) // 2
                columns = s.experimental_split_to_logical_devices(v[0], [1, split])
                hidden = jnp.tanh(x @ columns)
                if compiled:
                    jax.debug.inspect_array_sharding(hidden, callback=layouts.append)
                return jnp.mean((hidden @ v[1]) ** 2)

            value, gradients = sg.value_and_grad(loss, v)()
            optimizer.apply_gradients(zip(gradients, v, strict=True))
            return value

        def step(s=strategy, replica=replica, x=x):
            return s.run(replica, args=(x,))

        step = sg.function(step) if compiled else step
        step()
        step()
        weights.append([first.numpy(), second.numpy()])
    # A step that creates variables is compiled twice, without layouts at first.
    assert not compiled or layouts[-1].shard_shape((4, 512)) == (4, 256)
    for expected, got in zip(*weights, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
