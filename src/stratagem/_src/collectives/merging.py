"""What a compiled function does in its replicas, as one program of them as far as that is possible.

``run`` and ``reduce`` of what it returns are two ``jax.shard_map`` in the traced function. Those that wait
for nothing else between them become one, so that their collectives can be joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from stratagem._src.collective_backends.shared_memory.workers import trace_body
from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.collectives.collective_fusion import JoinedProgram
from stratagem._src.collectives.collective_tokens import CollectiveOrder
from stratagem._src.jax_compat.kept_results import keep_result
from stratagem._src.jax_compat.shard_map_equation import mapped_equation
from stratagem._src.jax_compat.tracing import all_equations, inner_jaxprs
from stratagem._src.jaxpr.inline import (
    FlatEquation,
    FlatJaxpr,
    Operand,
    evaluate,
    needed,
    value_of,
    with_bodies,
)
from stratagem._src.jaxpr.replication_analysis import lasting_effects
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["evaluate_merged"]


def evaluate_merged(
    jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any], group: ReplicaGroup
) -> list[Any]:
    """Returns what a traced function computes, with the collectives of its replicas joined.

    Args:
        jaxpr: The function, which will not be differentiated any more.
        consts: Its constants.
        arrays: Its inputs.
        group: The replicas.
    """
    flat = FlatJaxpr(lambda eqn: any(_maps(inner, group) for inner in inner_jaxprs(eqn)))
    inputs = [flat.new_value() for _ in arrays]
    outputs = flat.add(jaxpr, consts, inputs)
    known = dict(zip(inputs, arrays, strict=True))
    stages = _Stages(group)
    for equation in needed(flat.equations, outputs, lasting_effects):
        stages.add(equation)
    tokens: list[Any] = []
    for stage in stages.stages:
        tokens = stage.run_in_replicas(stages.used_outside(stage, outputs), known, group, tokens)
        evaluate([_with_merged_bodies(equation, group) for equation in stage.after], known)
    return [value_of(output, known) for output in outputs]


def _maps(jaxpr: Any, group: ReplicaGroup) -> bool:
    return any(mapped_equation(eqn, group.mesh) is not None for eqn in all_equations(jaxpr))


def _with_merged_bodies(equation: FlatEquation, group: ReplicaGroup) -> FlatEquation:
    if not any(_maps(inner, group) for inner in inner_jaxprs(equation.eqn)):
        return equation

    def change(param: str, position: int | None, body: Any) -> Any:
        if not _maps(body.jaxpr, group):
            return body

        def run(*arrays: Any) -> list[Any]:
            return evaluate_merged(body.jaxpr, body.consts, arrays, group)

        return trace_body(run, body.in_avals)

    return dataclasses.replace(equation, eqn=with_bodies(equation.eqn, change))


@dataclass(slots=True, eq=False)
class _Stage:
    """Equations that replicas do in one program, and what comes after it and before the next one."""

    mapped: list[FlatEquation] = field(default_factory=list)
    after: list[FlatEquation] = field(default_factory=list)

    def run_in_replicas(
        self, wanted: set[int], known: dict[int, Any], group: ReplicaGroup, tokens: list[Any]
    ) -> list[Any]:
        """Adds to what is known what the replicas compute of the wanted values.

        Args:
            wanted: Numbers of values.
            known: Values by their numbers.
            group: The replicas.
            tokens: Of the collectives of the stages before; see ``CollectiveOrder``.

        Returns:
            The tokens of its own.
        """
        if not self.mapped:
            return tokens
        body = _MergedBody(group)
        for equation in self.mapped:
            body.add(equation)
        numbers = [number for number in body.results if number in wanted]
        outputs = [body.results[number] for number in numbers]

        # Whatever has no result is there for its callbacks, which XLA takes for those of one device.
        signs = [] if outputs else [np.zeros((1,), np.bool_)]

        def run(blocks: list[Any], tokens: list[Any]) -> tuple[list[Any], ...]:
            order = CollectiveOrder(group, after=tokens)
            results = body.program.run([output for output, _ in outputs], blocks, order)
            return results, order.tokens, signs

        mapped = jax.shard_map(
            run,
            mesh=group.mesh,
            in_specs=(list(body.in_specs), PartitionSpec(REPLICA_AXIS)),
            out_specs=([spec for _, spec in outputs], *[PartitionSpec(REPLICA_AXIS)] * 2),
            check_vma=False,
        )
        results, tokens, signs = mapped(
            [value_of(operand, known) for operand in body.inputs], tokens
        )
        for sign in signs:
            keep_result(sign, {e for equation in self.mapped for e in equation.eqn.effects})
        known.update(zip(numbers, results, strict=True))
        return tokens


class _Stages:
    """The stages of a function, found for one equation after the other.

    Args:
        group: The replicas.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        # What needs no replica at all comes after a stage in which replicas do nothing.
        self.stages = [_Stage()]
        self._stage_of: dict[Operand, int] = {}
        self._spec_of: dict[Operand, PartitionSpec] = {}
        self._last_effect = 0
        self._last_effect_after = 0

    def add(self, equation: FlatEquation) -> None:
        """Adds an equation to the first stage that it can be in."""
        mapped = mapped_equation(equation.eqn, self._group.mesh)
        has_effects = lasting_effects(equation.eqn)
        if mapped is None:
            stage = max((self._stage_of.get(o, 0) for o in equation.operands), default=0)
            if has_effects:
                stage = self._last_effect = self._last_effect_after = max(stage, self._last_effect)
            self.stages[stage].after.append(equation)
        else:
            specs = zip(equation.operands, mapped.in_specs, strict=True)
            stage = max((self._first_stage_with(*pair) for pair in specs), default=1)
            if has_effects:
                stage = max(stage, self._last_effect, self._last_effect_after + 1)
                self._last_effect = stage
            self.stages.extend(_Stage() for _ in range(stage + 1 - len(self.stages)))
            self.stages[stage].mapped.append(equation)
            self._spec_of.update(zip(equation.results, mapped.out_specs, strict=True))
        self._stage_of.update((number, stage) for number in equation.results)

    def _first_stage_with(self, operand: Operand, spec: PartitionSpec) -> int:
        """Returns the first stage in whose program of the replicas a value can be had."""
        made_in = self._stage_of.get(operand, 0)
        return made_in if self._spec_of.get(operand) == spec else made_in + 1

    def used_outside(self, stage: _Stage, outputs: Sequence[Operand]) -> set[int]:
        """Returns the numbers of values that are used elsewhere than in the replicas' program."""
        used = set(outputs)
        for other in self.stages:
            used.update(o for equation in other.after for o in equation.operands)
            if other is not stage:
                used.update(o for equation in other.mapped for o in equation.operands)
        return {operand for operand in used if isinstance(operand, int)}


class _MergedBody:
    """One program of a replica, of several equations that are mapped over the replicas.

    Attributes:
        program: What it computes.
        inputs: What it is given, with ``in_specs``.
        results: By the number of a value outside, what it is inside, and how it is put together.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self.program = JoinedProgram(group)
        self._inside: dict[tuple[Operand, PartitionSpec], Operand] = {}
        self.inputs: list[Operand] = []
        self.in_specs: list[PartitionSpec] = []
        self.results: dict[int, tuple[Operand, PartitionSpec]] = {}

    def add(self, equation: FlatEquation) -> None:
        """Adds an equation."""
        mapped = mapped_equation(equation.eqn, self._group.mesh)
        assert mapped is not None
        pairs = zip(equation.operands, mapped.in_specs, strict=True)
        operands = [self._operand(operand, spec) for operand, spec in pairs]
        outputs = self.program.add(mapped.jaxpr, (), operands)
        for number, output, spec, aval in zip(
            equation.results, outputs, mapped.out_specs, mapped.jaxpr.out_avals, strict=True
        ):
            made = output if _is_divided(spec) else self._made_equal(output, aval)
            self.results[number] = (made, spec)

    def _operand(self, operand: Operand, spec: PartitionSpec) -> Operand:
        if isinstance(operand, int) and operand in self.results:
            made, made_as = self.results[operand]
            if made_as == spec:
                return made
        if (operand, spec) not in self._inside:
            # Processes may have been given different arrays, which no one has compared.
            differs = _is_divided(spec) or self._group.spans_processes
            self._inside[operand, spec] = self.program.add_input(differs=differs)
            self.inputs.append(operand)
            self.in_specs.append(spec)
        return self._inside[operand, spec]

    def _made_equal(self, output: Operand, aval: Any) -> Operand:
        """Returns what outside is taken for equal in all replicas, as the first one has it."""
        if self._group.spans_processes or not self.program.differs(output):
            return output
        first = jax.make_jaxpr(
            lambda x: gather_spmd(x[None], 0)[0], axis_env=[(REPLICA_AXIS, self._group.size)]
        )(aval)
        return self.program.add(first.jaxpr, first.consts, [output])[0]


def _is_divided(spec: PartitionSpec) -> bool:
    return any(REPLICA_AXIS in (axis if isinstance(axis, tuple) else (axis,)) for axis in spec)
