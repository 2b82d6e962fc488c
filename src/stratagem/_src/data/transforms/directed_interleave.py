"""``choose_from_datasets`` and ``sample_from_datasets``: a plan of choices selects the next dataset."""

from __future__ import annotations

import functools
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike
from stratagem._src.data.dataset_spec import common_spec
from stratagem._src.data.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream

__all__ = ["DirectedInterleave"]

_MAX_EXHAUSTED_CHOICES = 1 << 22


class DirectedInterleave(Node):
    """For each choice, the next element of the dataset with that index.

    Args:
        choices: A plan of indices of datasets.
        datasets: The plans to choose from.
        stop_on_empty_dataset: Whether to stop when an exhausted dataset is chosen; otherwise the choice is
            skipped.
        needed_by: The name of the method, for messages.
    """

    def __init__(
        self,
        choices: Node,
        datasets: list[Node],
        stop_on_empty_dataset: bool,
        needed_by: str,
    ) -> None:
        self.inputs = (choices, *datasets)
        self._stop_on_empty = bool(stop_on_empty_dataset)
        self._needed_by = needed_by

    def _compute_spec(self) -> Any:
        specs = [node.element_spec for node in self.inputs[1:]]
        return functools.reduce(lambda a, b: common_spec(a, b, self._needed_by), specs)

    def cardinality(self) -> int:
        """Returns unknown, unless it is known to be empty or infinite."""
        choices, *sizes = [node.cardinality() for node in self.inputs]
        if choices == 0 or not any(sizes):
            return 0
        endless = all if self._stop_on_empty else any
        if choices == INFINITE_CARDINALITY and endless(s == INFINITE_CARDINALITY for s in sizes):
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        choices, *datasets = [node.open(run, epoch) for node in self.inputs]
        return _DirectedStream(choices, datasets, self._stop_on_empty, self._needed_by)


class _DirectedStream(Stream):
    def __init__(
        self, choices: Stream, datasets: list[Stream], stop_on_empty: bool, needed_by: str
    ) -> None:
        self._choices = choices
        self._datasets: list[Stream | None] = list(datasets)
        self._stop_on_empty = stop_on_empty
        self._needed_by = needed_by

    def __next__(self) -> Any:
        for _ in range(_MAX_EXHAUSTED_CHOICES):
            if not any(stream is not None for stream in self._datasets):
                raise StopIteration
            index = self._index(next(self._choices))
            stream = self._datasets[index]
            if stream is None:
                continue
            try:
                return next(stream)
            except StopIteration:
                self._end(index)
                if self._stop_on_empty:
                    self._end_all()
        raise InvalidArgumentError(
            f"{self._needed_by} chose exhausted datasets {_MAX_EXHAUSTED_CHOICES} times in a row. "
            "Choose the others too, or set stop_on_empty_dataset=True."
        )

    def _index(self, choice: ArrayLike) -> int:
        if getattr(choice, "shape", None) != () or choice.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"choice_dataset must yield one integer at a time, got {choice!r}."
            )
        if not 0 <= choice < len(self._datasets):
            raise InvalidArgumentError(
                f"A choice must be in [0, {len(self._datasets)}), the number of datasets, "
                f"got {int(choice)}."
            )
        return int(choice)

    def _end(self, index: int) -> None:
        stream = self._datasets[index]
        if stream is not None:
            stream.close()
            self._datasets[index] = None

    def _end_all(self) -> None:
        for index in range(len(self._datasets)):
            self._end(index)

    def get_state(self) -> State:
        return {
            "choices": self._choices.get_state(),
            "datasets": [stream and stream.get_state() for stream in self._datasets],
            "open": [stream is not None for stream in self._datasets],
        }

    def set_state(self, state: State) -> None:
        self._choices.set_state(state["choices"])
        for index, is_open in enumerate(state["open"]):
            stream = self._datasets[index]
            if not is_open:
                self._end(index)
            elif stream is not None:
                stream.set_state(state["datasets"][index])

    def skip_past_error(self) -> None:
        self._choices.skip_past_error()
        for stream in self._datasets:
            if stream is not None:
                stream.skip_past_error()

    def close(self) -> None:
        self._choices.close()
        self._end_all()
