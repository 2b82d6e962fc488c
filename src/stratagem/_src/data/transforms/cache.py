"""``cache``: elements cached in memory or in a file by the first pass.

A pass that does not reach the end caches nothing. The state of an iterator does not contain the cached
elements, only their provenance: the seeds and the epoch of the pass that computed them. An iterator that is
restored where there is no cache computes them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from stratagem._src.core.errors import DataLossError
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.random_access import Indices, RandomAccess
from stratagem._src.data.plan.run import Run
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.structure import flatten, map_structure
from stratagem._src.data.transforms.cache_store import IN_FILE, CacheStore, FileStore, MemoryStore

__all__ = ["Cache"]


class Cache(Node):
    """Repeats the elements of the first complete pass over the input."""

    derived_attributes = ("_store", "_table")

    def __init__(self, source: Node, filename: str) -> None:
        self.inputs = (source,)
        self._filename = filename
        self._store = self._new_store()
        self._table: _CachedAccess | None = None

    def _new_store(self) -> CacheStore:
        if not self._filename:
            return MemoryStore()
        return FileStore(self._filename, lambda: self.inputs[0].element_spec)

    def cardinality(self) -> int:
        """Returns the input's cardinality."""
        return self.inputs[0].cardinality()

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns an empty cache for other elements."""
        node = self.with_inputs(inputs)
        if node is not self:
            node._store = node._new_store()
            node._table = None
        return node

    def random_access(self) -> RandomAccess | None:
        """Returns a table that computes each row once, when it is first read."""
        below = None if self._filename else self.inputs[0].random_access()
        if below is None:
            return None
        if self._table is None:
            self._table = _CachedAccess(below)
        return self._table

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        source = self.inputs[0]

        def open_source(how: State) -> Stream:
            if how is None:
                return source.open(run, epoch)
            return source.open(Run(source, how["run"], run), tuple(how["epoch"]))

        mine = {"run": run.state_of(source), "epoch": list(epoch)}
        return _CacheStream(self._store, open_source, mine)


class _CachedAccess(RandomAccess):
    def __init__(self, below: RandomAccess) -> None:
        self._below = below
        self._made = np.zeros(len(below), bool)
        self._rows: Any = None
        self._lock = threading.Lock()
        self.read_ahead = below.read_ahead

    def __reduce__(self) -> Any:
        # Another process computes the rows itself.
        return type(self), (self._below,)

    def __len__(self) -> int:
        return len(self._below)

    def gather(self, indices: Indices) -> Any:
        with self._lock:
            missing = np.unique(indices[~self._made[indices]])
            if len(missing):
                self._make(missing)
        return map_structure(lambda leaf: leaf.take(indices, axis=0), self._rows)

    def _make(self, indices: Indices) -> None:
        made = self._below.gather(indices)
        if self._rows is None:
            self._rows = map_structure(
                lambda leaf: np.empty((len(self), *leaf.shape[1:]), leaf.dtype), made
            )
        for kept, leaf in zip(flatten(self._rows), flatten(made), strict=True):
            kept[indices] = leaf
        self._made[indices] = True


class _CacheStream(Stream):
    def __init__(
        self, store: CacheStore, open_source: Callable[[State], Stream], how: State
    ) -> None:
        self._store = store
        self._open_source = open_source
        self._how = how
        self._source: Stream | None = None
        self._position = 0

    def _start(self) -> Stream:
        if self._source is None:
            if self._store.provenance is not None:
                self._how = self._store.provenance
                self._source = self._store.read()
            else:
                self._source = self._store.record(self._open_source(self._how), self._how)
        return self._source

    def __next__(self) -> Any:
        element = next(self._start())
        self._position += 1
        return element

    def get_state(self) -> State:
        started = self._source is not None
        how = self._how if started else self._store.provenance or self._how
        return {"how": how, "position": self._position}

    def set_state(self, state: State) -> None:
        self._how = state["how"]
        if self._how == IN_FILE and self._store.provenance is None:
            raise DataLossError("The cache file that the saved iterator read from is gone.")
        if self._store.provenance not in (None, self._how):
            self._source = self._open_source(self._how)
        self._position = self._start().skip(state["position"])

    def skip_past_error(self) -> None:
        if self._source is not None:
            self._source.skip_past_error()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
