"""``jit_with_exchanges``: compiled functions whose exchanges belong to the workers of now.

Workers of an elastic job form again when one is lost or another comes. A program of before may still run
then, and come to its exchanges late: it must not take part in those of the workers of now. So every run
brings the number of the workers that it belongs to, as an argument and not as a constant: the compiled
program is the same for all of them, and is found in the compilation cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.collective_backends.shared_memory.workers import current_number, number_of_trace
from stratagem._src.collectives.collective_tokens import shares_memory
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = ["ExchangingJit", "jit_with_exchanges"]


def jit_with_exchanges(
    fn: Callable[..., Any],
    group: ReplicaGroup | None,
    *,
    donate_argnums: tuple[int, ...] = (),
    **options: Any,
) -> Any:
    """Returns ``jax.jit(fn)``, whose runs know to which workers they belong.

    Args:
        fn: What is compiled.
        group: The replicas between which it may exchange arrays.
        donate_argnums: As of ``jax.jit``.
        **options: Likewise.
    """
    if group is None or not shares_memory(group):
        return jax.jit(fn, donate_argnums=donate_argnums, **options)
    return ExchangingJit(fn, group, donate_argnums, options)


class ExchangingJit:
    """A compiled function that takes the number of the workers before its own arguments.

    Args:
        fn: What is compiled.
        group: The replicas between which it exchanges arrays.
        donate_argnums: As of ``jax.jit``, of ``fn``.
        options: Of ``jax.jit``.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        group: ReplicaGroup,
        donate_argnums: tuple[int, ...],
        options: dict[str, Any],
    ) -> None:
        def program(number: Any, *args: Any) -> Any:
            with number_of_trace(number):
                return fn(*args)

        donated = tuple(number + 1 for number in donate_argnums)
        self._jitted = jax.jit(program, donate_argnums=donated, **options)
        self._made_for = current_number()
        # On the devices, where it stays: each call would copy it there.
        self._placed = group.replicate(self._made_for)

    def __call__(self, *args: Any) -> Any:
        """Runs the program, for the workers of now."""
        return self._jitted(self._number(), *args)

    def lower(self, *args: Any) -> Any:
        """Returns what ``jax.jit`` lowers for arguments like these."""
        return self._jitted.lower(self._number(), *args)

    def _number(self) -> Any:
        # One that is kept for longer than its devices, and traced again for those of now.
        now = current_number()
        return self._placed if now == self._made_for else now
