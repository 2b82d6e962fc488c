"""``jit_with_collectives``: compiled functions whose collectives belong to one generation of workers.

Workers of an elastic job re-form when one is lost or another joins. A program of an earlier generation may
still be running and reach its collectives late; it must not take part in those of the current generation.
So every run passes the number of its generation. It is an argument and not a constant: the compiled program
is the same for all generations, and the compilation cache finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.collective_backends.shared_memory.ffi_collectives import (
    current_generation,
    trace_with_generation,
)
from stratagem._src.collectives.collective_tokens import shares_memory
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["CollectiveJit", "jit_with_collectives"]


def jit_with_collectives(
    fn: Callable[..., Any],
    group: ReplicaGroup | None,
    *,
    donate_argnums: tuple[int, ...] = (),
    **options: Any,
) -> Any:
    """Returns ``jax.jit(fn)``, whose runs know the generation of workers that they belong to.

    Args:
        fn: The function to compile.
        group: The replicas that its collectives are between.
        donate_argnums: As in ``jax.jit``.
        **options: Other options of ``jax.jit``.
    """
    if group is None or not shares_memory(group):
        return jax.jit(fn, donate_argnums=donate_argnums, **options)
    return CollectiveJit(fn, group, donate_argnums, options)


class CollectiveJit:
    """A compiled function that takes the generation of the workers before its own arguments.

    Args:
        fn: The function to compile.
        group: The replicas that its collectives are between.
        donate_argnums: As in ``jax.jit``, for the arguments of ``fn``.
        options: Other options of ``jax.jit``.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        group: ReplicaGroup,
        donate_argnums: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        def program(generation: Tensor, *args: PyTree) -> Any:
            with trace_with_generation(generation):
                return fn(*args)

        donated = tuple(number + 1 for number in donate_argnums)
        self._jitted = jax.jit(program, donate_argnums=donated, **options)
        self._made_for = current_generation()
        # Kept on the devices: otherwise every call copies it there.
        self._placed = group.replicate(self._made_for)

    def __call__(self, *args: PyTree) -> Any:
        """Runs the program for the current generation of workers."""
        return self._jitted(self._generation(), *args)

    def lower(self, *args: PyTree) -> Any:
        """Returns what ``jax.jit`` lowers for arguments like these."""
        return self._jitted.lower(self._generation(), *args)

    def _generation(self) -> Any:
        # A function may outlive its devices; JAX then traces it again for the current ones.
        now = current_generation()
        return self._placed if now == self._made_for else now
