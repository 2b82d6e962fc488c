"""Recognising a call like one before it without taking its arguments apart."""

from __future__ import annotations

import weakref
from typing import Any

import jax

from stratagem.core.context import Frame
from stratagem.core.jax_settings import DEBUG_INFS, DEBUG_NANS, DEFAULT_PRNG_IMPL
from stratagem.execution.program import Program
from stratagem.execution.signature import CallInputs
from stratagem.values.distributed_values import is_value_leaf

__all__ = ["RecentCall"]


class RecentCall:
    """A call that ran a program lately: another one like it can run the program at once.

    Everything here happens before every step, so it is written for speed.

    Args:
        program: The program, which draws no elements.
        inputs: The call's arguments, nothing but arrays.
        frame: The context of the call.
    """

    __slots__ = (
        "_cross_replica",
        "_flat",
        "_leaves",
        "_prng_impl",
        "_replicated",
        "_strategy",
        "_structure",
        "program",
    )

    def __init__(self, program: Program, inputs: CallInputs, frame: Frame) -> None:
        self.program = program
        self._strategy = weakref.ref(frame.strategy)
        self._cross_replica = frame.replica_context is None
        self._prng_impl = DEFAULT_PRNG_IMPL.value
        self._replicated = program.group and program.group.replicated
        self._structure: Any = inputs.structure
        self._flat = inputs.flat
        self._leaves = inputs.array_leaves()

    def arrays(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any] | None:
        """Returns the arrays of a call for the program; ``None`` if the call is of another kind."""
        if (
            frame.strategy is not self._strategy()
            or (frame.replica_context is None) is not self._cross_replica
            or DEBUG_NANS.value
            or DEBUG_INFS.value
            or DEFAULT_PRNG_IMPL.value != self._prng_impl
        ):
            return None
        leaves: Any = args
        if kwargs or not self._flat or len(args) != len(self._leaves):
            leaves, structure = jax.tree.flatten((args, kwargs), is_value_leaf)
            if structure != self._structure:
                return None
        arrays = []
        in_place = True
        replicated = self._replicated
        for leaf, (leaf_type, aval, group, scalar) in zip(leaves, self._leaves):  # noqa: B905  (slow)
            if type(leaf) is not leaf_type:
                return None
            array = leaf
            if group is not None:
                array = leaf._array
                if array is None or leaf._group is not group or leaf._scalar is not scalar:
                    return None
            elif replicated is not None and array.sharding is not replicated:
                in_place = False
            if array.aval != aval:
                return None
            arrays.append(array)
        if not in_place:
            self.program.place(arrays)
        return arrays
