"""``StepFunction``: the ``train_function``, ``test_function`` and ``predict_function`` of a model."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.batch_placement import place_batch
from stratagem._src.integrations.keras.keras_internals import Argument, KerasModel
from stratagem._src.integrations.keras.model_state import (
    Attempt,
    begin_step,
    end_step,
    return_state,
)
from stratagem._src.integrations.keras.step_program import StepProgram
from stratagem._src.integrations.keras.trainer_internals import variables_of
from stratagem._src.strategies.base import Strategy
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.values.rows import num_local_rows
from stratagem._src.variables.random_state import RandomState
from stratagem._src.variables.step_keys import KeyedStep

__all__ = ["PREDICT_PARTS", "TEST_PARTS", "TRAIN_PARTS", "StepFunction"]

TRAIN_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)
TEST_PARTS = ("trainable_variables", "non_trainable_variables", "metrics_variables")
PREDICT_PARTS = ("trainable_variables", "non_trainable_variables")


class _Part(Sequence[Any]):
    """One part of the state, for Keras to hold. Keras would convert a list to a tracking list."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays)

    def __getitem__(self, index: Argument) -> Any:
        return self._arrays[index]


class StepFunction:
    """Runs steps of a model: draws batches from an iterator and updates the state.

    Args:
        model: The Keras model.
        step: Its ``train_step``, ``test_step`` or ``predict_step``, which returns a result and the state.
        parts: The parts of the state, by their attribute names in the model.
        strategy: The strategy whose replicas share the work.
        returns_rows: Whether results have a row for each example, so that all of them must be returned.
    """

    def __init__(
        self,
        model: KerasModel,
        step: Callable[..., Any],
        parts: tuple[str, ...],
        strategy: Strategy,
        *,
        returns_rows: bool = False,
    ) -> None:
        self._model = model
        self._step = step
        self._parts = parts
        self._returns_rows = returns_rows
        self.strategy = strategy
        self._group = strategy.replica_group
        strategy.extended.check_rules()
        self._variables = self._variables_now()
        self._keyed = KeyedStep(step)
        self._program: StepProgram | None = None
        if not model.run_eagerly and model.jit_compile:
            self._program = StepProgram(
                lambda state, batch: self._keyed.trace(state, *batch),
                strategy.replica_group,
                f"a step of Keras over {', '.join(parts)}",
                # Only a training step replaces all of its state.
                donate=parts is TRAIN_PARTS,
            )

    def fits(self) -> bool:
        """Returns whether devices and variables are still those of the compiled step."""
        if self._group is not self.strategy.replica_group:
            return False
        now = self._variables_now()
        return len(now) == len(self._variables) and all(map(operator.is_, now, self._variables))

    def _variables_now(self) -> list[Any]:
        """Returns the model's variables in the order of the state, with a marker after each part."""
        return [v for part in self._parts for v in (*variables_of(self._model, part), part)]

    def __call__(self, state: PyTree, iterator: Iterator[Any]) -> Any:
        """Runs the next ``steps_per_execution`` steps; returns the last result and the state."""
        state = tuple(list(part) for part in state)
        run, draw = self._run, functools.partial(next, iterator)
        observer = recorder()
        if observer is not None and self._parts is not PREDICT_PARTS:
            run = observer.as_step(run, self.strategy.replica_group.replicas_by_device)
            draw = functools.partial(observer.draw, draw, num_local_rows)
        try:
            results = [run(state, draw())]
            for _ in range(self._model.steps_per_execution - 1):
                try:
                    batch = draw()
                except StopIteration:
                    break
                results.append(run(results[-1][1], batch))
        except BaseException:
            return_state(self._model)
            raise
        outputs, state = results[-1]
        if observer is not None and isinstance(outputs, dict) and not self._returns_rows:
            prefix = "" if self._parts is TRAIN_PARTS else "val_"
            single = {name: v for name, v in outputs.items() if np.size(v) == 1}
            observer.report({f"{prefix}{name}": value for name, value in single.items()})
        if self._returns_rows and len(results) > 1:
            rows = [output for output, _ in results]
            outputs = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
        return outputs, tuple(map(_Part, state))

    def _run(self, state: PyTree, batch: PyTree) -> tuple[Any, Any]:
        # An eager step cannot be partitioned: every replica then computes the whole batch.
        batch = place_batch(batch, self.strategy, divide=self._program is not None)
        group = self.strategy.replica_group
        # Not a context manager: an interrupt between __enter__ and the block would leave a step running
        # that is never ended.
        try:
            donate = self._parts is TRAIN_PARTS
            attempt, state = begin_step(self._model, self._parts, state, group, donate=donate)
            if self._program is None:
                # Each process computes alone, with values that are the same in all of them.
                local = jax.tree.map(group.local_view, (state, batch))
                attempt.finished.append(self._step(*local))
            else:
                self._run_program(self._program, state, batch, attempt)
            outputs, state = attempt.result()
        finally:
            # Repeated if an interrupt arrives during the call; end_step is idempotent.
            try:
                end_step(self._model)
            except BaseException:
                end_step(self._model)
                raise
        if self._returns_rows:
            outputs = jax.tree.map(group.local_view, outputs)
        return outputs, state

    def _run_program(
        self, program: StepProgram, state: PyTree, batch: PyTree, attempt: Attempt
    ) -> None:
        group = self.strategy.replica_group

        def run(keys: list[Any]) -> None:
            program.run(state, (batch, [group.replicate(key) for key in keys]), attempt)

        self._keyed.run(run, self._share)

    def _share(self, states: Sequence[RandomState]) -> None:
        """Lets all workers draw from states that are equal, whatever their seeds."""
        if self._group.spans_processes:
            for state in states:
                value = self.strategy.extended.leader_value(np.asarray(state), state.name)
                state.assign(value)
