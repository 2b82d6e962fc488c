"""``MirroredStrategy``: synchronous data parallelism on the devices of one machine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from stratagem._src.collectives.cross_device_ops import CrossDeviceOps
from stratagem._src.collectives.hierarchical_copy_all_reduce import HierarchicalCopyAllReduce
from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.collectives.reduction_to_one_device import ReductionToOneDevice
from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError
from stratagem._src.core.types import PyTree
from stratagem._src.jax_compat.host_device import on_host
from stratagem._src.jax_compat.running_backends import running_backends
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.logical_devices import (
    PartitionedGroup,
    group_with_rules,
    num_logical_devices,
)
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.mesh.sharding_rules import LayoutMap, ShardingRules
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.logical_device_layouts import LogicalDeviceLayouts
from stratagem._src.strategies.rule_matches import RuleMatches
from stratagem._src.strategies.unsynchronized_workers import warn_if_unsynchronized
from stratagem._src.variables.fully_sharded import current_placement
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.initial_array import initial_array
from stratagem._src.variables.laid_out_variable import (
    LaidOutVariable,
    current_layout_source,
    layout_for,
)
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableSynchronization

__all__ = ["MirroredExtended", "MirroredStrategy", "checked_rules"]


_told: list[str] = []

_logger = logging.getLogger("stratagem")


class MirroredStrategy(LogicalDeviceLayouts):
    """Synchronous data parallelism on one machine: one replica per device, with mirrored variables.

    With ``devices_per_replica`` a replica has several devices, its logical devices, and the
    ``experimental_…_logical_device…`` methods define how values are laid out over them: model parallelism
    in addition to data parallelism.

    Args:
        devices: Names such as ``"GPU:0"``, ``jax.Device`` objects, or ``None`` for all accelerators, or
            all CPU devices if there are none. CPU devices that do not exist are created, if the JAX
            backend is not initialized yet.
        cross_device_ops: How values are reduced; default ``NcclAllReduce()``.
        devices_per_replica: Number of consecutive devices of each replica.
        sharding_rules: How variables are sharded over the devices of a replica: ``ShardingRules``, or a
            ``keras.distribution.LayoutMap``. Their axes give the number of devices of a replica.

    JAX equivalent: ``jax.shard_map`` over a mesh of the devices, with replicated parameters.

    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.num_replicas_in_sync
    2
    """

    def __init__(
        self,
        devices: Iterable[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        devices_per_replica: int = 1,
        sharding_rules: ShardingRules | LayoutMap | None = None,
    ) -> None:
        had_started = bool(running_backends())
        rules = checked_rules(sharding_rules)
        found = resolve_devices(devices)
        group = group_with_rules(found, devices_per_replica, rules)
        if devices is None:
            _tell_of_single_device(type(self).__name__, found, had_started=had_started)
        warn_if_unsynchronized(type(self).__name__)
        super().__init__(MirroredExtended(self, group, check_cross_device_ops(cross_device_ops)))
        _logger.info("Using %s with devices %s", type(self).__name__, group.device_names)


class MirroredExtended(StrategyExtended):
    """Puts a copy of every variable on every replica's device."""

    def __init__(
        self, container_strategy: Strategy, group: ReplicaGroup, cross_device_ops: CrossDeviceOps
    ) -> None:
        super().__init__(container_strategy, group, cross_device_ops)
        rules = group.rules if isinstance(group, PartitionedGroup) else None
        self._rule_matches = None if rules is None else RuleMatches(rules)

    def check_rules(self) -> None:
        """Checks that every sharding rule matches a variable, if there are rules and variables.

        Raises:
            InvalidArgumentError: If one does not.
        """
        if self._rule_matches is not None:
            self._rule_matches.check()

    @property
    def num_logical_devices(self) -> int:
        """Number of devices of each replica."""
        return num_logical_devices(self.replica_group)

    @property
    def shards_variables(self) -> bool:
        """Whether ``FullySharded`` has an effect: not with one replica."""
        return self._group.size > 1

    def make_variable(self, **options: PyTree) -> Variable:
        """Returns a mirrored variable; by sharding rules or ``FullySharded`` a sharded one."""
        options["synchronization"] = VariableSynchronization.ON_WRITE
        if self._rule_matches is not None:
            return self._make_by_rules(self._rule_matches, options)
        placement = current_placement()
        if placement is None or not self.shards_variables:
            return MirroredVariable(self._strategy, **options)
        with on_host():  # the full value may not fit into the memory of one accelerator
            value = initial_array(options["initial_value"], options["dtype"])
        options["initial_value"] = value
        if not value.ndim or value.size < placement.min_size:
            return MirroredVariable(self._strategy, **options)
        if options["trainable"] is not False:
            self._check_sends_own_dtype()
        return FullyShardedVariable(self._strategy, **options)

    def _make_by_rules(self, matches: RuleMatches, options: dict[str, Any]) -> Variable:
        with on_host():  # the full value may not fit into the memory of one accelerator
            value = initial_array(options["initial_value"], options["dtype"])
        options["initial_value"] = value
        source = current_layout_source()
        if source is None:
            layout = matches.layout_of(options["name"], value.shape)
        else:
            layout = layout_for(source, value.shape)
        if layout is None:
            return MirroredVariable(self._strategy, **options)
        return LaidOutVariable(self._strategy, layout, **options)

    def _check_sends_own_dtype(self) -> None:
        options = self.gradient_options
        if options is not None and options.dtype is not None:
            raise UnsupportedError(
                "Gradients of fully sharded variables are summed in their own dtype, got "
                f"CommunicationOptions(dtype={options.dtype!r}). Leave dtype out, or create the variable "
                "outside of FullySharded; Optimizer(shard_state=True) shards its state with either."
            )

    def check_can_shard_variables(self, what: str) -> None:
        """Checks that the cross-device ops are compatible with reduce-scatter.

        Raises:
            UnsupportedError: If not.
        """
        if self._rule_matches is not None:
            raise UnsupportedError(
                f"{what} shards variables or state over the replicas, but {type(self._strategy).__name__} "
                "was created with sharding_rules, which shard them over the devices of a replica. Leave "
                'one of them out; rules with an axis such as "fsdp" have the same effect within a replica.'
            )
        ops = type(self._cross_device_ops)
        if ops not in (NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice):
            raise UnsupportedError(
                f"{what} sums gradients with XLA's reduce-scatter, not with {ops.__name__}, with which "
                f"{type(self._strategy).__name__} was created. Use NcclAllReduce, "
                "HierarchicalCopyAllReduce or ReductionToOneDevice, or leave it out."
            )


def checked_rules(rules: ShardingRules | LayoutMap | None) -> ShardingRules | None:
    """Returns the sharding rules of a strategy, made from a Keras ``LayoutMap`` if it is one.

    Raises:
        InvalidArgumentError: If it is something else.
    """
    if rules is None or isinstance(rules, ShardingRules):
        return rules
    if hasattr(rules, "device_mesh") and hasattr(rules, "keys"):
        return ShardingRules.from_layout_map(rules)
    raise InvalidArgumentError(
        f"sharding_rules must be ShardingRules or a keras.distribution.LayoutMap, got {rules!r}. Use for "
        'example ShardingRules({"kernel": ("fsdp", "tensor")}, axes={"fsdp": 2, "tensor": 2}).'
    )


def check_cross_device_ops(ops: CrossDeviceOps | None) -> CrossDeviceOps:
    """Returns ``ops``, or the default if ``None``.

    Raises:
        ValueError: If it is something else.
    """
    if ops is None:
        return NcclAllReduce()
    if not isinstance(ops, CrossDeviceOps):
        raise ValueError(
            f"cross_device_ops must be a CrossDeviceOps object, got {ops!r}. Use for example "
            "stratagem.distribute.NcclAllReduce()."
        )
    return ops


def _tell_of_single_device(kind: str, devices: Sequence[jax.Device], *, had_started: bool) -> None:
    """Logs once that a strategy without a list of devices has one replica.

    Args:
        kind: The class name of the strategy.
        devices: The devices that it found.
        had_started: Whether the JAX backend was running before the strategy was created.
    """
    if _told or len(devices) != 1:
        return
    _told.append(kind)
    [device] = devices
    if device.platform != "cpu":
        _logger.warning(
            "%s found one device, %s, so it trains with one replica. To use more, make them visible to "
            "JAX (CUDA_VISIBLE_DEVICES and similar), or start one process per host.",
            kind,
            device,
        )
        return
    if had_started:
        what = (
            "JAX had started before with one CPU device, and its number of devices is fixed from then on. "
            "Restart the program, in a notebook the kernel, and create the strategy first"
        )
    else:
        what = "JAX found no accelerator. To try several replicas on the CPU, name virtual devices"
    _logger.warning(
        "%s found one device, %s, so it trains with one replica. %s: "
        'MirroredStrategy(["CPU:0", "CPU:1"]), or sg.config.set_num_cpu_devices(2) before anything '
        "uses JAX.",
        kind,
        device,
        what,
    )
