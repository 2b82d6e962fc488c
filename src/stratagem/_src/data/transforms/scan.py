"""``scan``: a function of every element and a carried state."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.owned_memory import share_memory
from stratagem._src.core.types import Element, PyTree
from stratagem._src.data.conversion import to_element
from stratagem._src.data.dataset_spec import any_size, spec_of
from stratagem._src.data.element_format import decode_leaves, encode_leaves
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.peek import first_element
from stratagem._src.data.plan.rows import copy_element
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream, UnaryStream
from stratagem._src.data.structure import (
    describe,
    flatten,
    map_structure,
    pack_like,
    same_structure,
)
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.data.transforms.element_function import ElementFunction

__all__ = ["Scan"]


class Scan(Node):
    """The outputs of ``state, output = scan_func(state, element)``.

    Args:
        source: The plan whose elements are scanned.
        initial_state: The first state, a nest of arrays.
        scan_func: Returns the next state and the output.
    """

    def __init__(self, source: Node, initial_state: PyTree, scan_func: Callable[..., Any]) -> None:
        self.inputs = (source,)
        self._initial_state = copy_element(to_element(initial_state))
        self._function = ElementFunction(scan_func, "scan_func")

    def _compute_spec(self) -> Any:
        element = first_element(self.inputs[0], "scan")
        specs = map_structure(spec_of, self.call(copy_element(self._initial_state), element)[1])
        return map_structure(any_size, specs)

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        return _ScanStream(self.inputs[0].open(run, epoch), self, copy_element(self._initial_state))

    def call(self, state: PyTree, element: Element) -> tuple[Any, Any]:
        """Returns the next state and the output."""
        result = self._function((state, element))
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidArgumentError(
                "scan_func must return a pair, the new state and the output, got "
                f"{describe(result)}."
            )
        new_state, output = result
        self._check(new_state)
        # A function may return its state as the output, and update it in place in the next call.
        states = [*flatten(state), *flatten(new_state)]
        return new_state, map_structure(
            lambda leaf: copy_element(leaf) if any(share_memory(leaf, s) for s in states) else leaf,
            output,
        )

    def _check(self, state: PyTree) -> None:
        initial = self._initial_state
        if not same_structure(initial, state):
            raise InvalidArgumentError(
                f"scan_func must return a state like the initial one, {describe(initial)}, got "
                f"{describe(state)}."
            )
        for before, now in zip(flatten(initial), flatten(state), strict=True):
            if TensorSpec.of(before).dtype != TensorSpec.of(now).dtype:
                raise InvalidArgumentError(
                    "scan_func must return a state of the types of the initial one, got "
                    f"{TensorSpec.of(now)} for {TensorSpec.of(before)}. Give initial_state that type, "
                    "such as np.int64(0), or cast in scan_func."
                )


class _ScanStream(UnaryStream):
    """Saves the carried state with its own: it could only be computed again from all elements before."""

    def __init__(self, source: Stream, node: Scan, initial_state: PyTree) -> None:
        super().__init__(source)
        self._node = node
        self._state = initial_state

    @property
    def uniform(self) -> bool:
        return False

    def __next__(self) -> Any:
        self._state, output = self._node.call(self._state, next(self._source))
        return output

    def get_state(self) -> State:
        own = base64.b64encode(encode_leaves(flatten(self._state))).decode()
        return {"own": own, "input": self._source.get_state()}

    def set_state(self, state: State) -> None:
        self._state = pack_like(self._state, decode_leaves(base64.b64decode(state["own"])))
        self._source.set_state(state["input"])
