"""Reads ``jax.shard_map`` equations of a jaxpr."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax.sharding import Mesh, PartitionSpec

from stratagem._src.core.types import Equation
from stratagem._src.jax_compat.primitives import SHARD_MAP

__all__ = ["MappedEquation", "mapped_equation"]


class MappedEquation(NamedTuple):
    """A function that is mapped over all axes of a mesh.

    Attributes:
        jaxpr: The program of one device.
        in_specs: How each operand is sharded.
        out_specs: How each result is sharded.
    """

    jaxpr: Any
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]


def mapped_equation(eqn: Equation, mesh: Mesh) -> MappedEquation | None:
    """Returns the function that an equation maps over all axes of ``mesh``.

    ``None`` for any other equation: one that maps over another mesh, leaves some axes to XLA, or lets JAX
    check replication (``check_vma``); and if JAX has changed.
    """
    if eqn.primitive.name != SHARD_MAP:
        return None
    params = eqn.params
    axes = params.get("newly_manual_axes", params.get("manual_axes"))
    found = MappedEquation(*(params.get(name) for name in MappedEquation._fields))
    if (
        None in found
        or params.get("mesh") != mesh
        or axes != frozenset(mesh.axis_names)
        or params.get("check_vma", True)
    ):
        return None
    return found
