"""``TracedFunction``: the result of tracing a function, from which its program is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import ArrayLike, Jaxpr, PyTreeDef
from stratagem._src.execution.call_signature import CallInputs
from stratagem._src.execution.draws import DrawSpec
from stratagem._src.execution.program import ResultLeaf
from stratagem._src.execution.remote.remote_access import RemoteAccess
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.host_arrays import own_host_array
from stratagem._src.variables.variable import Variable

__all__ = ["TracedFunction", "platform_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class TracedFunction:
    """The result of tracing a function, from which a program is built.

    Attributes:
        name: The name of the function.
        jaxpr: Takes values of variables, then arrays; returns results, then new values of variables.
        consts: The captured array for each constant of the jaxpr; ``None`` for those that are drawn.
        variables: The variables that are the first inputs.
        written: The variables that get new values.
        results: How to build the leaves of the result and, after them, the operands of remote updates.
        structure: The structure of the pair of both.
        group: The replicas, if the program uses several or particular devices.
        platform: The platform of the devices that the traced call runs on.
        inputs: The call that was traced, without its arrays.
        draws: How the program draws elements.
        remote: The updates of variables that other processes hold.
    """

    name: str
    jaxpr: Jaxpr
    consts: list[Any]
    variables: list[Variable]
    written: list[Variable]
    results: list[ResultLeaf]
    structure: PyTreeDef
    group: ReplicaGroup | None
    platform: str
    inputs: CallInputs
    draws: list[DrawSpec]
    remote: RemoteAccess

    def replace_jaxpr(self, jaxpr: Jaxpr) -> TracedFunction:
        """Returns a copy with another jaxpr, which has the same inputs and outputs."""
        return dataclasses.replace(self, jaxpr=jaxpr)

    def placed_consts(self) -> list[Any]:
        """Returns the constants on the devices of the program."""
        return [None if c is None else _constant(c, self.group) for c in self.consts]


def platform_of(group: ReplicaGroup | None, arrays: Sequence[ArrayLike]) -> str:
    """Returns the platform that a program runs on.

    Args:
        group: Its replicas, if it uses several or particular devices.
        arrays: Its inputs. Without a group JAX runs a program where committed arrays are.
    """
    if group is not None:
        return group.platform
    for array in arrays:
        if getattr(array, "committed", False):
            return str(next(iter(array.devices())).platform)
    config: Any = jax.config
    default = config.jax_default_device
    if default is None:
        return jax.default_backend()
    return default if isinstance(default, str) else str(default.platform)


def _constant(array: ArrayLike, group: ReplicaGroup | None) -> Any:
    """Returns a captured array on the devices of the program."""
    if not isinstance(array, jax.Array):
        # A copy: the program uses the value that the array had when the function was traced.
        array = jnp.asarray(own_host_array(array))
    if group is None or array.sharding == group.sharded:
        return array
    return group.replicate(array)
