"""What Keras calls for each step: ``train_function``, ``test_function`` and ``predict_function``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.integrations.keras.batch_placement import place_batch
from stratagem._src.integrations.keras.model_state import begin_step, end_step, give_back
from stratagem._src.integrations.keras.step_program import StepProgram
from stratagem._src.integrations.keras.trainer_internals import variables_of
from stratagem._src.strategies.base import Strategy
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.values.rows import num_local_rows

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
    """One part of the state, for Keras to hold: of a list it would make one that tracks changes."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        return self._arrays[index]


class StepFunction:
    """Takes batches from an iterator, and the state of a model through a step with each.

    Args:
        model: The Keras model.
        step: Its ``train_step``, ``test_step`` or ``predict_step``, which returns a result and the state.
        parts: What the state consists of, as the model calls it.
        strategy: Whose replicas share the work.
        returns_rows: Whether results are rows for each example, of which none may be left out.
    """

    def __init__(
        self,
        model: Any,
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
        self._variables = self._variables_now()
        self._program: StepProgram | None = None
        if not model.run_eagerly and model.jit_compile:
            self._program = StepProgram(
                step,
                strategy.replica_group,
                f"a step of Keras over {', '.join(parts)}",
                # Only a step of training gives all of its state a new value.
                gives_away=parts is TRAIN_PARTS,
            )

    def fits(self) -> bool:
        """Returns whether devices and variables are still those for which the step may be compiled."""
        if self._group is not self.strategy.replica_group:
            return False
        now = self._variables_now()
        return len(now) == len(self._variables) and all(map(operator.is_, now, self._variables))

    def _variables_now(self) -> list[Any]:
        """Returns the model's variables in the order of the state, and where parts end."""
        return [v for part in self._parts for v in (*variables_of(self._model, part), part)]

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        """Returns the result of the next ``steps_per_execution`` steps, and the state after them."""
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
            give_back(self._model, self.strategy.replica_group)
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

    def _run(self, state: Any, batch: Any) -> tuple[Any, Any]:
        # Step by step a program cannot be divided: every replica then computes all of it.
        batch = place_batch(batch, self.strategy, divide=self._program is not None)
        group = self.strategy.replica_group
        # No context manager: an interrupt between its beginning and the block would leave a step running
        # that nobody ends.
        try:
            for_good = self._parts is TRAIN_PARTS
            attempt, state = begin_step(self._model, self._parts, state, group, for_good=for_good)
            if self._program is None:
                # Each process on its own, with values that are the same in all.
                local = jax.tree.map(group.local_view, (state, batch))
                attempt.finished.append(self._step(*local))
            else:
                self._program.run(state, batch, attempt)
            outputs, state = attempt.result()
        finally:
            # Again, if an interrupt arrives meanwhile.
            try:
                end_step(self._model, group)
            except BaseException:
                end_step(self._model, group)
                raise
        if self._returns_rows:
            outputs = jax.tree.map(group.local_view, outputs)
        return outputs, state
