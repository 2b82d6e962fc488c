"""``ProgramPlan``: what a program reads, writes, donates and returns.

The jaxpr of a traced function takes the values of all variables that the trace read, and returns all
results, then the new values of all variables that it wrote. Its program takes and returns less: an input
that nothing uses, a variable that is assigned its own value, and a result that a variable stores anyway
would only be copied.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem._src.core.types import Jaxpr
from stratagem._src.execution.program import ResultLeaf
from stratagem._src.execution.traced_function import TracedFunction
from stratagem._src.jax_compat.tracing import jax_core
from stratagem._src.jaxpr.walk import mentioned_variables
from stratagem._src.variables.variable import Variable

__all__ = ["NewValue", "Output", "ProgramPlan", "Read", "find_reads", "plan_program"]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A variable whose value the program takes.

    Attributes:
        variable: The variable.
        position: The position of its value among the inputs of the jaxpr.
    """

    variable: Variable
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class NewValue:
    """The new value of a variable.

    Attributes:
        variable: The variable.
        position: The position of the value among the outputs of the jaxpr.
        shared: Whether its array may have another owner, so that the next call must not donate it.
    """

    variable: Variable
    position: int
    shared: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A result that the program returns.

    Attributes:
        position: Its position among the outputs of the jaxpr.
        split: The dim that is sharded over the replicas; ``None`` if it is replicated.
    """

    position: int
    split: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ProgramPlan:
    """What a program reads, writes, donates and returns.

    Attributes:
        donated: The variables whose arrays are donated.
        kept: The other variables that are read.
        new_values: What is written. Values of donated variables are first, in the same order.
        outputs: The results that the program returns.
        leaves: How to build the leaves of the function's result from them.
    """

    donated: list[Read]
    kept: list[Read]
    new_values: list[NewValue]
    outputs: list[Output]
    leaves: list[ResultLeaf]

    def returned_positions(self) -> list[int]:
        """Returns the positions of all outputs, then all new values, among the outputs of the jaxpr."""
        return [
            *(output.position for output in self.outputs),
            *(new.position for new in self.new_values),
        ]


def find_reads(jaxpr: Jaxpr, variables: Sequence[Variable]) -> list[Read]:
    """Returns the variables that a jaxpr uses; they are its first inputs."""
    mentioned = mentioned_variables(jaxpr)
    return [
        Read(variable, position)
        for position, variable in enumerate(variables)
        if id(jaxpr.invars[position]) in mentioned
    ]


def plan_program(
    jaxpr: Jaxpr,
    traced: TracedFunction,
    results: Sequence[ResultLeaf],
    reads: Sequence[Read],
    *,
    may_donate: bool,
) -> ProgramPlan:
    """Plans a program.

    Args:
        jaxpr: The jaxpr of the program.
        traced: The function that it was traced from.
        results: How to build the leaves of the result from the outputs of the jaxpr.
        reads: The variables that the jaxpr uses.
        may_donate: Whether arrays may be donated; ``False`` if the program may fail after its launch.
    """
    new_values = _find_new_values(jaxpr, traced)
    outputs, leaves = _choose_outputs(jaxpr, traced, results, new_values)
    written = {id(new.variable) for new in new_values}
    is_donated = [may_donate and id(read.variable) in written for read in reads]
    donated = [read for read, donate in zip(reads, is_donated, strict=True) if donate]
    kept = [read for read, donate in zip(reads, is_donated, strict=True) if not donate]
    # `VariableBuffers` expects the donated variables first among the writes, in the same order.
    order = {id(read.variable): place for place, read in enumerate(donated)}
    new_values.sort(key=lambda new: order.get(id(new.variable), len(order)))
    return ProgramPlan(donated, kept, _mark_shared(jaxpr, outputs, new_values), outputs, leaves)


def _find_new_values(jaxpr: Jaxpr, traced: TracedFunction) -> list[NewValue]:
    """Returns what is written; a variable that is assigned its own unchanged value is not."""
    first = len(jaxpr.outvars) - len(traced.written)
    read_from = _variables_of_inputs(jaxpr, traced)
    return [
        NewValue(variable, position)
        for position, variable in enumerate(traced.written, first)
        if read_from.get(id(jaxpr.outvars[position])) is not variable
    ]


def _choose_outputs(
    jaxpr: Jaxpr,
    traced: TracedFunction,
    results: Sequence[ResultLeaf],
    new_values: Sequence[NewValue],
) -> tuple[list[Output], list[ResultLeaf]]:
    """Returns the outputs, and how to build the leaves of the result from them.

    A result that a variable stores after the call anyway is no output: it is taken from the variable.
    """
    # For `return counter.assign_add(1).value()` the result and the new value are one value of the jaxpr:
    # the program returns it once, and the result is read from the counter while the storage lock is still
    # held.
    written = {id(new.variable) for new in new_values}
    # By the id of a value in the jaxpr: the variable that stores it after the call.
    stored_in = {
        value: variable
        for value, variable in _variables_of_inputs(jaxpr, traced).items()
        if id(variable) not in written
    }
    # Reversed, so that of several variables with the same value the first one is taken.
    stored_in |= {id(jaxpr.outvars[new.position]): new.variable for new in reversed(new_values)}
    outputs: list[Output] = []
    leaves: list[ResultLeaf] = []
    for leaf in results:
        if leaf.output is None:
            leaves.append(leaf)
            continue
        source = None
        if leaf.group is None:
            source = stored_in.get(id(jaxpr.outvars[leaf.output]))
        if source is not None and source.stores_program_results(traced.group):
            leaves.append(dataclasses.replace(leaf, output=None, variable=weakref.ref(source)))
        else:
            leaves.append(dataclasses.replace(leaf, output=len(outputs)))
            outputs.append(Output(leaf.output, leaf.split))
    return outputs, leaves


def _mark_shared(
    jaxpr: Jaxpr, outputs: Sequence[Output], new_values: Sequence[NewValue]
) -> list[NewValue]:
    """Returns the new values, with those marked whose array may have another owner.

    That is an array which is also an input, which is returned twice, or a constant.
    """
    # A donated array is freed while its other owner still refers to it: XLA would reuse the buffer for the
    # next result, and a value that the caller holds would change.
    owners = Counter(map(id, jaxpr.invars))
    owners.update(id(jaxpr.outvars[output.position]) for output in outputs)
    owners.update(id(jaxpr.outvars[new.position]) for new in new_values)

    def is_shared(new: NewValue) -> bool:
        value = jaxpr.outvars[new.position]
        return isinstance(value, jax_core().Literal) or owners[id(value)] > 1

    return [dataclasses.replace(new, shared=is_shared(new)) for new in new_values]


def _variables_of_inputs(jaxpr: Jaxpr, traced: TracedFunction) -> dict[int, Variable]:
    """Returns the variable that each input is the value of, by the id of the input."""
    return {
        id(value): variable for variable, value in zip(traced.variables, jaxpr.invars, strict=False)
    }
