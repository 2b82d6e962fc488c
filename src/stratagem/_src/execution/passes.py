"""The passes: everything that happens to a traced function until XLA sees it, in this order.

A pass is a function from a jaxpr and a context to a jaxpr. The context holds what the pass needs to know
besides the jaxpr, and takes what it finds out. There are three phases:

* ``LIFTS`` run when the trace ends. They turn markers in the trace into inputs and constants; before them
  the jaxpr cannot be evaluated. A step in a dataset loop is compared with earlier ones after them.
* ``REWRITES`` run once for each program. The jaxpr keeps its outputs, and is not differentiated any more.
* ``evaluate`` runs while ``jax.jit`` traces the program, with values instead of a jaxpr as its result: the
  collectives are traced again there, fused and in one order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import jax

from stratagem._src.collectives.shard_map_merging import evaluate_merged
from stratagem._src.core.types import Jaxpr, PyTreeDef
from stratagem._src.execution import callbacks, draws, variable_reads
from stratagem._src.execution.program import Program, ResultLeaf
from stratagem._src.execution.remote.reads import find_reads
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.jax_compat.primitives import PSUM, REDUCE_SCATTER
from stratagem._src.jaxpr.constant_hoisting import ConstantHoisting
from stratagem._src.jaxpr.convolutions import rewrite_convolutions
from stratagem._src.jaxpr.scanned_sums import sum_inside_scans
from stratagem._src.jaxpr.split_last_dims import merge_split_dims
from stratagem._src.jaxpr.transposed_dots import remove_transposed_dots
from stratagem._src.jaxpr.uniform_operands import sum_uniform_products
from stratagem._src.mesh.logical_devices import PartitionedGroup
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.variable import Variable

__all__ = [
    "LIFTS",
    "REWRITES",
    "REWRITES_VARIABLE",
    "LiftContext",
    "ProgramContext",
    "apply_passes",
    "evaluate",
    "rewrite_for_one_device",
    "rewrite_for_platform",
    "rewrites_are_on",
]

REWRITES_VARIABLE = "STRATAGEM_REWRITES"
"""The environment variable that turns rewrites for speed off, with the value ``0``."""


@dataclass(slots=True)
class LiftContext:
    """What the lifts need to know about a trace, and what they find in it.

    Attributes:
        drawn: The draws of the trace.
        iterators: The iterators in the call's arguments.
        hoisting: Which numbers to hoist; ``None`` outside of dataset loops.
        consts: The value of each constant of the jaxpr; ``None`` for those that each call draws.
        draws: Found: how the program draws elements.
        drawn_arrays: Found: the arrays of the traced call for the constants that are ``None``, in order.
        variables: Found: the variables that are the first inputs.
    """

    drawn: Sequence[draws.Draw]
    iterators: Sequence[draws.AnyIterator]
    hoisting: ConstantHoisting | None
    consts: list[Any]
    draws: list[draws.DrawSpec] = field(default_factory=list)
    drawn_arrays: list[Any] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)

    def traced_consts(self) -> list[Any]:
        """Returns the value of each constant in the traced call, with the elements that it drew."""
        drawn = iter(self.drawn_arrays)
        return [next(drawn) if const is None else const for const in self.consts]


@dataclass(slots=True)
class ProgramContext:
    """What the rewrites need to know about a traced function, and what they find out for its program.

    Attributes:
        traced: The traced function.
        results: How to build the leaves of the result from the outputs of the jaxpr.
        structure: The structure of the result.
        make: The constructor of the program.
        callback_errors: Found: where callbacks add their exceptions; ``None`` without callbacks.
    """

    traced: TracedFunction
    results: list[ResultLeaf]
    structure: PyTreeDef
    make: Callable[..., Program] = Program
    callback_errors: list[BaseException] | None = None

    @classmethod
    def of(cls, traced: TracedFunction) -> ProgramContext:
        """Returns the context of a function before its first rewrite."""
        return cls(traced, traced.results, traced.structure)


Context = TypeVar("Context", LiftContext, ProgramContext)
Pass: TypeAlias = Callable[[Jaxpr, Context], Jaxpr]


# --- lifts ----------------------------------------------------------------------------------------


def lift_drawn_elements(jaxpr: Jaxpr, context: LiftContext) -> Jaxpr:
    """Makes drawn elements constants without a value: each call brings its own."""
    lifted = draws.lift_draws(jaxpr, context.drawn, context.iterators)
    context.draws, context.drawn_arrays = lifted.specs, lifted.arrays
    context.consts = [*context.consts, *[None] * len(lifted.arrays)]
    return lifted.jaxpr


def lift_variables(jaxpr: Jaxpr, context: LiftContext) -> Jaxpr:
    """Makes variables inputs: only the finished trace shows which of them it uses."""
    context.variables, jaxpr = variable_reads.lift_reads(jaxpr)
    return jaxpr


def hoist_changed_numbers(jaxpr: Jaxpr, context: LiftContext) -> Jaxpr:
    """Makes Python numbers that changed in a loop inputs: each value would compile another program."""
    if context.hoisting is None:
        return jaxpr
    jaxpr, context.consts = context.hoisting.hoist(jaxpr, context.consts)
    return jaxpr


LIFTS: tuple[Pass[LiftContext], ...] = (
    lift_drawn_elements,
    lift_variables,
    hoist_changed_numbers,
)


# --- rewrites -------------------------------------------------------------------------------------


def split_remote_variables(jaxpr: Jaxpr, context: ProgramContext) -> Jaxpr:
    """Moves fetches and updates of variables on parameter servers out: XLA cannot send requests."""
    traced = context.traced
    reads_remotely = any(isinstance(v, BaseRemoteVariable) for v in traced.variables)
    if not (traced.remote.updates or reads_remotely or find_reads(jaxpr)):
        # The second child holds the operands of remote updates, of which there are none.
        context.structure = context.structure.children()[0]
        return jaxpr
    # Imported lazily, to keep `import stratagem` cheap.
    from stratagem._src.execution.remote.remote_program import split_remote_access

    context.results, context.structure, jaxpr, context.make = split_remote_access(
        jaxpr,
        traced.variables,
        traced.written,
        traced.remote,
        context.results,
        context.structure,
        traced.group,
    )
    return jaxpr


def guard_host_callbacks(jaxpr: Jaxpr, context: ProgramContext) -> Jaxpr:
    """Catches exceptions of host callbacks: other devices would wait for the failed one forever."""
    errors: list[BaseException] = []
    jaxpr, can_fail = callbacks.guard_callbacks(jaxpr, errors)
    context.callback_errors = errors if can_fail else None
    return jaxpr


def rewrite_for_devices(jaxpr: Jaxpr, context: ProgramContext) -> Jaxpr:
    """Writes operations in the form that XLA compiles to the fastest code on the program's devices."""
    platform = context.traced.platform
    jaxpr = rewrite_for_platform(jaxpr, platform)
    # The arrays of a replica of several devices are sharded over them.
    several = isinstance(context.traced.group, PartitionedGroup)
    return jaxpr if several else rewrite_for_one_device(jaxpr, platform)


REWRITES: tuple[Pass[ProgramContext], ...] = (
    split_remote_variables,
    guard_host_callbacks,
    rewrite_for_devices,
)


def rewrite_for_platform(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """Returns a jaxpr that computes the same faster on a platform, in its loops and ``shard_map`` too.

    A program that later runs on other devices stays right.
    """
    if platform == "cpu":
        jaxpr = sum_uniform_products(jaxpr)  # for right results, whatever the switch says
    if not rewrites_are_on():
        return jaxpr
    if platform == "cpu":
        # XLA's other compilers choose the layouts of products and of small dimensions themselves.
        return merge_split_dims(remove_transposed_dots(jaxpr))
    # XLA computes during the all-reduces of a loop on GPU. On TPU it waits for them there as it does behind
    # the loop, and the stack of sums takes more memory; a reduce-scatter takes less.
    return sum_inside_scans(
        jaxpr, [REDUCE_SCATTER] if platform == "tpu" else [PSUM, REDUCE_SCATTER]
    )


def rewrite_for_one_device(jaxpr: Jaxpr, platform: str) -> Jaxpr:
    """Returns a jaxpr that computes the same faster, in which each array is on one device, or replicated.

    The pieces of a convolution are slices of the batch, which would cut across a sharded one.
    """
    return rewrite_convolutions(jaxpr) if platform == "cpu" and rewrites_are_on() else jaxpr


def rewrites_are_on() -> bool:
    """Returns whether programs may be changed for speed."""
    return os.environ.get(REWRITES_VARIABLE) != "0"


def apply_passes(passes: Sequence[Pass[Context]], jaxpr: Jaxpr, context: Context) -> Jaxpr:
    """Returns what passes make of a jaxpr, one after the other."""
    for rewrite in passes:
        jaxpr = rewrite(jaxpr, context)
    return jaxpr


# --- while jax.jit traces the program -------------------------------------------------------------


def evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any], group: ReplicaGroup | None
) -> list[Any]:
    """Evaluates a program; with several replicas, merges their ``shard_map`` and fuses collectives."""
    if group is None or group.size == 1:
        return jax.core.eval_jaxpr(jaxpr, consts, *values)
    return evaluate_merged(jaxpr, consts, values, group)
