"""Strategies, batches and a model with which Keras in replicas is tested."""

import jax
import numpy as np

import stratagem as sg

keras = sg.keras

GLOBAL_BATCH = 8


def _tpu():
    tpu = sg.tpu.experimental
    assignment = tpu.DeviceAssignment.build(
        tpu.Topology(jax.devices("cpu")), computation_shape=[1, 1, 1, 2], num_replicas=2
    )
    return sg.distribute.TPUStrategy(experimental_device_assignment=assignment)


STRATEGIES = {
    "default": sg.distribute.get_strategy,
    "one_device": lambda: sg.distribute.OneDeviceStrategy("CPU:1"),
    "mirrored2": lambda: sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "mirrored2_one_device": lambda: sg.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=sg.distribute.ReductionToOneDevice("CPU:1")
    ),
    "central2": lambda: sg.distribute.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "central_apart": lambda: sg.distribute.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0"),
    "tpu2x2": _tpu,
}

MODES = {"eager": lambda fn: fn, "compiled": sg.function}


def data(steps=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, GLOBAL_BATCH, 5)).astype("float32")
    return x, (x.sum(2, keepdims=True) > 0).astype("float32")


def parts(strategy, batch):
    """Returns a global batch as a value of each replica."""
    size = GLOBAL_BATCH // strategy.num_replicas_in_sync
    return strategy.experimental_distribute_values_from_function(
        lambda c: batch[c.replica_id_in_sync_group * size :][:size]
    )


def small_model():
    seeded = keras.initializers.GlorotUniform(1)
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, kernel_initializer=seeded)])


def assert_no_tracers(*objects):
    for keras_object in objects:
        for variable in keras_object.variables:
            assert np.asarray(variable.value).shape == variable.shape
            assert not isinstance(variable.__dict__.get("_value"), jax.core.Tracer)
