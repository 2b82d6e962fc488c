"""Evaluates a replica's jaxpr, or some of its equations, in all replicas with ``jax.shard_map``."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import Atom, Equation, Jaxpr, PyTree
from stratagem._src.jax_compat.primitives import DEBUG_CALLBACKS
from stratagem._src.jaxpr.walk import mentioned_variables, rewrite_equations
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["MappedInput", "MappedJaxpr"]


@dataclass(frozen=True, slots=True, eq=False)
class MappedInput:
    """A variable of a replica's jaxpr, and its value for all replicas.

    Attributes:
        var: The variable.
        value: The global array.
        split: The dim along which the array is sharded; ``None`` if it is replicated.
    """

    var: Any
    value: Any
    split: int | None = None

    @property
    def sharded(self) -> bool:
        """Whether the array is sharded over the replicas."""
        return self.split is not None


class MappedJaxpr:
    """A jaxpr of one replica, for a group of them.

    Args:
        jaxpr: The program of one replica.
        group: The replicas.
        inputs: The values of those inputs and constants of the jaxpr that are used.
        manual_axes: The mesh axes that the jaxpr was traced over; XLA partitions over the others.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        group: ReplicaGroup,
        inputs: Sequence[MappedInput],
        *,
        manual_axes: Set[Any],
    ) -> None:
        self._manual_axes = manual_axes
        self._jaxpr = jaxpr
        self._group = group
        self._inputs = {id(item.var): item for item in inputs}

    def provide(self, item: MappedInput) -> None:
        """Adds the value of a variable that the jaxpr computes, for equations that are called later."""
        self._inputs[id(item.var)] = item

    def known(self, atom: Atom) -> MappedInput | None:
        """Returns the input for an atom, if it has been provided."""
        return self._inputs.get(id(atom))

    def call(
        self,
        equations: Sequence[Any],
        outvars: Sequence[Any],
        split: Sequence[int | None] | None = None,
    ) -> list[Any]:
        """Returns ``outvars`` for all replicas, given the equations that compute them.

        Args:
            equations: Some equations of the jaxpr, in order.
            outvars: The variables to compute.
            split: The dim along which each result is sharded; ``None`` for a replicated result. Default:
                the first dim of all results.
        """
        dims = [0] * len(outvars) if split is None else split
        part = self._jaxpr.replace(
            constvars=[],
            invars=[],
            outvars=list(outvars),
            eqns=list(equations),
            debug_info=self._jaxpr.debug_info.with_unknown_names(),
        )
        mentioned = mentioned_variables(part)
        inputs = [item for item in self._inputs.values() if id(item.var) in mentioned]
        part = part.replace(invars=[item.var for item in inputs])
        if self._manual_axes == set(self._group.mesh.axis_names):
            part = _on_first_logical_device(part, self._group)

        # A scalar has no dim along which replicas could be put together. Outside, the scalars of all
        # replicas are one array of shape (replicas,), of which each replica gets and returns a block of
        # shape (1,).
        def body(blocks: list[Any]) -> list[Any]:
            local = [
                block.reshape(item.var.aval.shape)
                for item, block in zip(inputs, blocks, strict=True)
            ]
            # `asarray`, because a constant that the replica returns is a literal, whose value is a number.
            results = map(jnp.asarray, jax.core.eval_jaxpr(part, (), *local))
            return [
                value.reshape((1,)) if dim is not None and value.ndim == 0 else value
                for value, dim in zip(results, dims, strict=True)
            ]

        mapped = jax.shard_map(
            body,
            mesh=self._group.mesh,
            in_specs=([self._group.named_sharding(item.split).spec for item in inputs],),
            out_specs=[self._group.named_sharding(dim).spec for dim in dims],
            axis_names=self._manual_axes,
            check_vma=False,
        )
        return list(mapped([item.value for item in inputs]))


def _on_first_logical_device(jaxpr: Jaxpr, group: ReplicaGroup) -> Any:
    """Returns a replica's jaxpr whose debug callbacks run on one device of each replica.

    Args:
        jaxpr: The jaxpr. All axes of the group's mesh must be manual where it is evaluated.
        group: The replicas.
    """
    # With two logical devices for each replica, both compute the replica's program: a `jax.debug.print` in
    # it would print everything twice.
    axes = {name: size for name, size in group.mesh.shape.items() if name != REPLICA_AXIS}
    if math.prod(axes.values()) == 1:
        return jaxpr
    return rewrite_equations(jaxpr, lambda eqn: _on_first(eqn, axes))


def _on_first(eqn: Equation, axes: dict[Any, int]) -> Equation | None:
    """Returns a debug callback behind a condition; ``None`` for any other equation."""
    if eqn.primitive.name not in DEBUG_CALLBACKS:
        return None

    def call(*args: PyTree) -> None:
        eqn.primitive.bind(*args, **eqn.params)

    @jax.jit  # so that the trace has one equation
    def call_on_first(*args: PyTree) -> None:
        is_first = jax.lax.axis_index(tuple(axes)) == 0
        jax.lax.cond(is_first, call, lambda *args: None, *args)

    avals = [atom.aval for atom in eqn.invars]
    traced = jax.make_jaxpr(call_on_first, axis_env=list(axes.items()))(*avals)
    return traced.jaxpr.eqns[0].replace(invars=eqn.invars)
