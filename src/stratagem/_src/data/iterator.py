"""``DatasetIterator``: one iteration over a dataset, which can be saved and restored."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any, Self

from stratagem._src.core.errors import ContextError, InvalidArgumentError, OutOfRangeError
from stratagem._src.data.plan.lower import lower
from stratagem._src.data.plan.node import Node, walk
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream
from stratagem._src.data.transforms.shard import ShardHint

__all__ = ["DatasetIterator", "refuse_hints"]


def refuse_hints(plan: Node) -> None:
    """Refuses a plan that says where it is to be sharded, and is not.

    Raises:
        ContextError: If it does.
    """
    if any(isinstance(node, ShardHint) for node in walk(plan)):
        raise ContextError(
            "A dataset with shard(SHARD_HINT, SHARD_HINT) can be read only after "
            "strategy.experimental_distribute_dataset() has replaced the hint, which it does with "
            "AutoShardPolicy.HINT. Set options.experimental_distribute.auto_shard_policy to it."
        )


class DatasetIterator:
    """An iteration over the elements of a dataset.

    Its threads and files end with it: when it is exhausted, closed or no longer referenced. A copy,
    or one that was pickled, goes on where the original stood, independently of it.

    >>> from stratagem.data import Dataset
    >>> dataset = Dataset.range(100).shuffle(100, seed=1).repeat().batch(8)
    >>> iterator = iter(dataset)
    >>> first = next(iterator)
    >>> state = iterator.get_state()
    >>> expected = next(iterator)
    >>> restored = iter(dataset)
    >>> restored.set_state(state)
    >>> bool((next(restored) == expected).all())
    True
    """

    def __init__(self, plan: Node) -> None:
        refuse_hints(plan)
        self._plan = plan
        self._lowered = lower(plan)
        self._start(Run(plan))

    @classmethod
    def _resumed(cls, plan: Node, state: Any, closed: bool) -> Self:
        iterator = cls.__new__(cls)
        iterator._plan = plan
        iterator._lowered = lower(plan)
        iterator._resume(state)
        if closed:
            iterator.close()
        return iterator

    def __reduce__(self) -> Any:
        return type(self)._resumed, (self._plan, self.get_state(), not self._finalizer.alive)

    def __copy__(self) -> Self:
        return self._resumed(self._plan, self.get_state(), not self._finalizer.alive)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def _start(self, run: Run) -> None:
        self._run = run
        self._stream: Stream = self._lowered.open(run, ())
        self._elements = self._elements_of(self._stream)
        self._finalizer = weakref.finalize(self, self._stream.close)

    def _elements_of(self, stream: Stream) -> Iterator[Any]:
        """Returns the elements as they are given out."""
        return stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._elements)
        except StopIteration:
            self.close()
            raise
        except BaseException:
            self._run.rest()
            raise

    def get_next(self) -> Any:
        """Returns the next element.

        Raises:
            OutOfRangeError: If there is none.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("End of the dataset.") from None

    @property
    def element_spec(self) -> Any:
        """The nest of ``TensorSpec`` of an element."""
        return self._plan.element_spec

    @functools.cached_property
    def _description(self) -> str:
        return self._plan.describe()

    def get_state(self) -> Any:
        """Returns a small JSON-able value from which ``set_state`` resumes exactly.

        Elements that were read ahead or wait in a shuffle buffer are not part of it; they are read
        again. A ``from_generator`` source is resumed by calling the generator and dropping the
        elements that were given, so it must give the same elements each time.
        """
        return {
            "plan": self._description,
            "run": self._run.get_state(),
            "stream": self._stream.get_state(),
        }

    def set_state(self, state: Any) -> None:
        """Goes on where the iterator stood from which the state was taken.

        Args:
            state: What ``get_state`` returned, of an iterator over the same pipeline.

        Raises:
            InvalidArgumentError: If the state belongs to another pipeline.
        """
        self.check_state(state)
        self.close()
        self._resume(state)

    def check_state(self, state: Any) -> None:
        """Checks that ``set_state`` can be called.

        Raises:
            InvalidArgumentError: If the state belongs to another pipeline.
        """
        if not isinstance(state, dict) or state.keys() != {"plan", "run", "stream"}:
            raise InvalidArgumentError(
                f"state must be what get_state of an iterator returned, got {state!r}."
            )
        if state["plan"] != self._description:
            raise InvalidArgumentError(
                f"The state belongs to another dataset: it was saved from {state['plan']}, this is "
                f"{self._description}. Build the same pipeline before set_state."
            )

    def _resume(self, state: Any) -> None:
        self._start(Run(self._plan, state["run"]))
        self._stream.set_state(state["stream"])

    def close(self) -> None:
        """Ends the threads and closes the files of this iteration."""
        self._elements = iter(())
        self._finalizer()
