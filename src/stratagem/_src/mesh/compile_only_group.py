"""``CompileOnlyGroup``: replicas on devices that this machine does not have.

XLA compiles for a TPU or GPU without one: ``jax.experimental.topologies`` describes the devices. Values of
such replicas are on as many virtual CPU devices, so that variables can be created and read as always.
Programs are traced and compiled for the described devices, and cannot run.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from stratagem._src.core.errors import DeviceError
from stratagem._src.mesh.logical_devices import PartitionedGroup, group_of_assignment
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup
from stratagem._src.mesh.sharding_rules import ShardingRules

__all__ = ["CompileOnlyGroup", "CompileOnlyPartitionedGroup", "detached_error"]


class CompileOnlyGroup(ReplicaGroup):
    """An ordered set of devices that programs are compiled for, but cannot run on.

    Args:
        described: The devices of a ``jax.experimental.topologies`` description, one for each replica.
    """

    attached = False

    def __init__(self, described: tuple[jax.Device, ...]) -> None:
        super().__init__(tuple(jax.local_devices(backend="cpu")[: len(described)]))
        self._described = described
        self.mesh = Mesh(np.array(described), (REPLICA_AXIS,))
        self.platform = described[0].platform
        self.on_cpu = self.serialize_programs = False
        self.local_device_names = self.device_names = tuple(map(str, described))

    @property
    def home(self) -> ReplicaGroup:
        """The replicas on the CPU devices."""
        return ReplicaGroup.of(self.devices)

    def program_sharding(self, sharding: NamedSharding) -> NamedSharding:
        """Returns the same sharding over the described devices."""
        return NamedSharding(self.mesh, sharding.spec)

    def described(self, array: Any) -> jax.ShapeDtypeStruct:
        """Returns what a program for the described devices takes in place of an array."""
        sharding = array.sharding if isinstance(array, jax.Array) else None
        if not isinstance(sharding, NamedSharding):
            sharding = self.replicated
        return jax.ShapeDtypeStruct(
            array.shape,
            jax.dtypes.canonicalize_dtype(array.dtype),
            sharding=self.program_sharding(sharding),
            weak_type=getattr(array, "weak_type", False),
        )


class CompileOnlyPartitionedGroup(CompileOnlyGroup, PartitionedGroup):
    """Replicas of several devices each that programs are compiled for, but cannot run on.

    Args:
        described: The devices of a ``jax.experimental.topologies`` description, for each replica.
        rules: The strategy's sharding rules.
    """

    def __init__(
        self, described: tuple[tuple[jax.Device, ...], ...], rules: ShardingRules | None
    ) -> None:
        count = len(described[0])
        cpus = jax.local_devices(backend="cpu")[: len(described) * count]
        self._on_cpus = tuple(
            tuple(cpus[i : i + count]) for i in range(0, len(described) * count, count)
        )
        PartitionedGroup.__init__(self, self._on_cpus, rules)
        self._use_mesh(self._mesh_of(described))
        self.platform = described[0][0].platform
        self.on_cpu = self.serialize_programs = self.widens_bfloat16 = False
        self.local_device_names = self.device_names = tuple(str(of[0]) for of in described)

    @property
    def home(self) -> ReplicaGroup:
        """The replicas on the CPU devices."""
        return group_of_assignment(self._on_cpus, self.rules)


def detached_error(group: ReplicaGroup) -> DeviceError:
    """Returns the error of a program that was to run on devices that are only described."""
    return DeviceError(
        "Programs for devices of a topology description can be compiled but not run, got "
        f"{group.device_names[0]} and {group.size - 1} more. Use function.lower(...).compile(), or create "
        "the strategy with the devices of this machine."
    )
