"""``with_options``: options attached to a plan."""

from __future__ import annotations

import copy

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.options import Options
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import Stream

__all__ = ["WithOptions"]


class WithOptions(Node):
    """The same elements; its options override those of the input."""

    batch_levels = 0

    def __init__(self, source: Node, options: Options) -> None:
        if not isinstance(options, Options):
            raise InvalidArgumentError(f"options must be an Options, got {options!r}.")
        self.inputs = (source,)
        self._options = copy.deepcopy(options)

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def options(self) -> Options:
        """Returns the options of the input, overridden by its own."""
        return super().options().merge(self._options)

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass over the input."""
        return self.inputs[0].open(run, epoch)
