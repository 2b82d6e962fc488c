"""Merges the ``jax.shard_map`` calls of a compiled function, so that their collectives can be fused.

``strategy.run`` and a ``strategy.reduce`` of its result are two ``shard_map`` equations in the traced
function. Equations that do not wait for anything computed outside between them become one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from stratagem._src.collective_backends.shared_memory.ffi_collectives import trace_body
from stratagem._src.collectives.all_gather import gather_spmd
from stratagem._src.collectives.collective_fusion import FusedProgram
from stratagem._src.collectives.collective_tokens import CollectiveTokens
from stratagem._src.core.types import ArraySpec, Jaxpr, Tensor
from stratagem._src.jax_compat.kept_results import keep_result
from stratagem._src.jax_compat.shard_map_equation import mapped_equation
from stratagem._src.jaxpr.dead_code import eliminate_dead_code
from stratagem._src.jaxpr.evaluate import evaluate, value_of
from stratagem._src.jaxpr.inline import Constant, FlatEquation, FlatJaxpr, Operand
from stratagem._src.jaxpr.replication_analysis import has_side_effects
from stratagem._src.jaxpr.walk import all_equations, inner_jaxprs, map_inner_jaxprs
from stratagem._src.mesh.replica_group import REPLICA_AXIS, ReplicaGroup

__all__ = ["evaluate_merged"]


def evaluate_merged(
    jaxpr: Jaxpr, consts: Sequence[Any], arrays: Sequence[Any], group: ReplicaGroup
) -> list[Any]:
    """Evaluates a traced function with merged ``shard_map`` calls and fused collectives.

    Args:
        jaxpr: The function. Its result must not be differentiated.
        consts: Its constants.
        arrays: Its inputs.
        group: The replicas.
    """
    flat = FlatJaxpr(lambda eqn: any(_maps(inner, group) for inner in inner_jaxprs(eqn)))
    inputs = [flat.new_value() for _ in arrays]
    outputs = flat.add(jaxpr, [*map(Constant, consts), *inputs])
    known = dict(zip(inputs, arrays, strict=True))
    stages = _Stages(group)
    for equation in eliminate_dead_code(flat.equations, outputs, has_side_effects):
        stages.add(equation)
    # The last token of one stage orders the collectives of the next.
    tokens: list[Any] = []
    for stage in stages.stages:
        tokens = stage.run_in_replicas(stages.used_outside(stage, outputs), known, group, tokens)
        evaluate([_with_merged_bodies(equation, group) for equation in stage.after], known)
    return [value_of(output, known) for output in outputs]


def _maps(jaxpr: Jaxpr, group: ReplicaGroup) -> bool:
    return any(mapped_equation(eqn, group.mesh) is not None for eqn in all_equations(jaxpr))


def _with_merged_bodies(equation: FlatEquation, group: ReplicaGroup) -> FlatEquation:
    if not any(_maps(inner, group) for inner in inner_jaxprs(equation.eqn)):
        return equation

    def change(param: str, position: int | None, body: Jaxpr) -> Any:
        if not _maps(body.jaxpr, group):
            return body

        def run(*arrays: Tensor) -> list[Any]:
            return evaluate_merged(body.jaxpr, body.consts, arrays, group)

        return trace_body(run, body.in_avals)

    return dataclasses.replace(equation, eqn=map_inner_jaxprs(equation.eqn, change))


@dataclass(slots=True, eq=False)
class _Stage:
    """Equations of one merged ``shard_map``, and those that run after it and before the next one."""

    mapped: list[FlatEquation] = field(default_factory=list)
    after: list[FlatEquation] = field(default_factory=list)

    def run_in_replicas(
        self, wanted: set[int], known: dict[int, Any], group: ReplicaGroup, tokens: list[Any]
    ) -> list[Any]:
        """Runs the merged ``shard_map``, and adds the wanted values to ``known``.

        Args:
            wanted: The numbers of the values that are used outside.
            known: Values by number.
            group: The replicas.
            tokens: The last token of the stages before; see ``CollectiveTokens.last``.

        Returns:
            The last token of this stage.
        """
        if not self.mapped:
            return tokens
        body = _MergedBody(group)
        for equation in self.mapped:
            body.add(equation)
        numbers = [number for number in body.results if number in wanted]
        outputs = [body.results[number] for number in numbers]

        # A program without results is run for its callbacks. It needs a result: without one XLA runs
        # the callbacks on one device only.
        signs = [] if outputs else [np.zeros((1,), np.bool_)]

        def run(blocks: list[Any], after: list[Any]) -> tuple[list[Any], ...]:
            tokens = CollectiveTokens(group, after=after)
            results = body.program.run([output for output, _ in outputs], blocks, tokens)
            return results, tokens.last, signs

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
    """Assigns the equations of a function to stages.

    Args:
        group: The replicas.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        # Equations that depend on no shard_map run after an empty first stage.
        self.stages = [_Stage()]
        self._stage_of: dict[Operand, int] = {}
        self._spec_of: dict[Operand, PartitionSpec] = {}
        self._last_effect = 0
        self._last_effect_after = 0

    def add(self, equation: FlatEquation) -> None:
        """Adds an equation to the earliest stage in which its operands are available."""
        mapped = mapped_equation(equation.eqn, self._group.mesh)
        has_effects = has_side_effects(equation.eqn)
        if mapped is None:
            stage = max((self._stage_of.get(o, 0) for o in equation.operands), default=0)
            if has_effects:
                stage = self._last_effect = self._last_effect_after = max(stage, self._last_effect)
            self.stages[stage].after.append(equation)
        else:
            specs = zip(equation.operands, mapped.in_specs, strict=True)
            stage = max((self._first_stage_with(*pair) for pair in specs), default=1)
            if has_effects:
                # In the shard_map of a stage after any effect outside of one: those of a stage run after
                # its shard_map.
                stage = max(stage, self._last_effect, self._last_effect_after + 1)
                self._last_effect = stage
            self.stages.extend(_Stage() for _ in range(stage + 1 - len(self.stages)))
            self.stages[stage].mapped.append(equation)
            self._spec_of.update(zip(equation.results, mapped.out_specs, strict=True))
        self._stage_of.update((number, stage) for number in equation.results)

    def _first_stage_with(self, operand: Operand, spec: PartitionSpec) -> int:
        """Returns the first stage whose ``shard_map`` can use a value with this spec."""
        made_in = self._stage_of.get(operand, 0)
        # A value with the same spec stays inside the merged shard_map; any other must leave it first.
        return made_in if self._spec_of.get(operand) == spec else made_in + 1

    def used_outside(self, stage: _Stage, outputs: Sequence[Operand]) -> set[int]:
        """Returns the numbers of values that are used outside the ``shard_map`` of a stage."""
        used = set(outputs)
        for other in self.stages:
            used.update(o for equation in other.after for o in equation.operands)
            if other is not stage:
                used.update(o for equation in other.mapped for o in equation.operands)
        return {operand for operand in used if isinstance(operand, int)}


class _MergedBody:
    """The body of a merged ``shard_map``, built from several ``shard_map`` equations.

    Attributes:
        program: The program of one replica.
        inputs: The operands of the merged equation; ``in_specs`` has the spec of each.
        results: By the number of a value outside: the value inside, and its spec.
    """

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self.program = FusedProgram(group)
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
        outputs = self.program.add(mapped.jaxpr, operands)
        for number, output, spec, aval in zip(
            equation.results, outputs, mapped.out_specs, mapped.jaxpr.out_avals, strict=True
        ):
            made = output if _is_sharded(spec) else self._replicated(output, aval)
            self.results[number] = (made, spec)

    def _operand(self, operand: Operand, spec: PartitionSpec) -> Operand:
        if isinstance(operand, int) and operand in self.results:
            made, made_as = self.results[operand]
            if made_as == spec:
                return made
        if (operand, spec) not in self._inside:
            # Processes may pass different arrays for a replicated input; nothing has compared them.
            varying = _is_sharded(spec) or self._group.spans_processes
            self._inside[operand, spec] = self.program.add_input(varying=varying)
            self.inputs.append(operand)
            self.in_specs.append(spec)
        return self._inside[operand, spec]

    def _replicated(self, output: Operand, aval: ArraySpec) -> Operand:
        """Returns a value that is declared replicated: that of the first replica if it may vary."""
        if self._group.spans_processes or not self.program.is_varying(output):
            return output
        first = jax.make_jaxpr(
            lambda x: gather_spmd(x[None], 0)[0], axis_env=[(REPLICA_AXIS, self._group.size)]
        )(aval)
        return self.program.add(first.jaxpr, [*map(Constant, first.consts), output])[0]


def _is_sharded(spec: PartitionSpec) -> bool:
    return any(REPLICA_AXIS in (axis if isinstance(axis, tuple) else (axis,)) for axis in spec)
