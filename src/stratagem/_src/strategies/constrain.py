"""``constrain``: gives an intermediate value of a step a layout by the names of axes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import Tensor
from stratagem._src.current_strategy import context
from stratagem._src.mesh.logical_devices import PartitionedGroup, whole_batch_group
from stratagem._src.mesh.sharding_rules import LayoutLike
from stratagem._src.values.array_operators import operand_of

__all__ = ["constrain", "layout_group"]


def constrain(x: Tensor, layout: LayoutLike | str) -> Any:
    """Returns ``x`` sharded over the devices of its replica; a layout never changes values.

    It works in the function of ``strategy.run`` and in Keras layers under a strategy with
    ``sharding_rules``. Eagerly it only checks the layout. Elsewhere it returns ``x`` unchanged, so that a
    model runs under every strategy.

    Args:
        x: An array.
        layout: For each dim the name of an axis, several names or ``None``; or the name of one of the
            ``activations`` of the rules. The axis of the replicas, ``"data"``, marks the dim of the batch:
            it is divided between the replicas in any case, and sharded over the ``batch`` axes of the rules
            if their sizes divide it.

    Raises:
        ValueError: If an axis or a name is unknown, or a dim is not divisible by the size of its axes.

    JAX equivalent: ``jax.lax.with_sharding_constraint``; ``with_logical_constraint`` in Flax.

    >>> import jax.numpy as jnp
    >>> import stratagem as sg
    >>> rules = sg.distribute.experimental.ShardingRules({}, axes={"tensor": 2})
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"], sharding_rules=rules)
    >>> @sg.function
    ... def step(x):
    ...     def replica(x):
    ...         return sg.distribute.experimental.constrain(x * 2, ("data", "tensor")).sum()
    ...     return strategy.run(replica, args=(x,))
    >>> float(step(jnp.ones((3, 4))))
    24.0
    """
    group = layout_group()
    if group is None or group.rules is None:
        return x
    rules = group.rules
    what = "the array passed to constrain()"
    if isinstance(layout, str):
        if layout not in rules.activations:
            raise InvalidArgumentError(
                f"constrain(x, name) needs the name of an activation of the sharding rules, "
                f"{sorted(rules.activations)}, got {layout!r}. Add it to "
                "ShardingRules(activations=...), or pass a layout such as "
                f"({rules.data!r}, None)."
            )
        what, checked = f"the activation {layout!r}", rules.activations[layout]
    else:
        checked = rules.layout(layout, what)
    return group.constrain_layout(jnp.asarray(operand_of(x)), checked, what)


def layout_group() -> PartitionedGroup | None:
    """Returns the replicas whose values code computes here, if their devices have layouts."""
    whole_batch = whole_batch_group()
    if whole_batch is not None:
        return whole_batch
    if not context.has_strategy():
        return None
    replica = context.get_replica_context()
    group = None if replica is None else replica.strategy.replica_group
    return group if isinstance(group, PartitionedGroup) else None
