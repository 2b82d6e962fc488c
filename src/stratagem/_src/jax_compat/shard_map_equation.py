"""What JAX keeps of a ``jax.shard_map`` in a jaxpr."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax.sharding import Mesh, PartitionSpec

__all__ = ["MappedEquation", "mapped_equation"]


class MappedEquation(NamedTuple):
    """A function that is mapped over all axes of a mesh.

    Attributes:
        jaxpr: What one device computes.
        in_specs: How each operand is divided.
        out_specs: How each result is put together.
    """

    jaxpr: Any
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]


def mapped_equation(eqn: Any, mesh: Mesh) -> MappedEquation | None:
    """Returns what an equation maps over all axes of ``mesh``.

    ``None`` where it does something else: maps over another mesh, or leaves some axes to XLA, or lets
    JAX check and change what is equal on all devices; and where JAX does not say.
    """
    if eqn.primitive.name != "shard_map":
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
