"""Strategies under which nothing can be divided into parts, and what their refusals name."""

import jax.numpy as jnp
import pytest

import stratagem as sg


class Largest(sg.distribute.CrossDeviceOps):
    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        return jnp.stack(per_replica_value.values).max(axis=0)


_CPUS = ["CPU:0", "CPU:1"]

without_division = pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: sg.distribute.CentralStorageStrategy(_CPUS), "CentralStorageStrategy"),
        (
            lambda: sg.distribute.MirroredStrategy(_CPUS, cross_device_ops=Largest()),
            "not with Largest",
        ),
    ],
)
