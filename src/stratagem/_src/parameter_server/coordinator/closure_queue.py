"""``ClosureQueue``: the closures that are ready to run, by priority and eligible workers."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator

from stratagem._src.parameter_server.coordinator.closure import Closure, Status

__all__ = ["ClosureQueue"]

_Heap = list[tuple[tuple[float, int], Closure]]


class ClosureQueue:
    """Closures by priority, then by age.

    An interrupt (Ctrl-C) leaves a closure in or out of it: the heaps are the only state, and single calls
    of C change them.

    A closure that is restricted to some workers waits for one of them. A closure whose argument is on a
    worker prefers that worker; the others run it only when they have nothing else to do.

    >>> queue = ClosureQueue()
    >>> queue.put(Closure(1)); queue.put(Closure(2, workers=frozenset({1, 2})))
    >>> queue.put(Closure(3, priority=5))
    >>> [queue.pop(worker).number for worker in (0, 0, 1)]
    [3, 1, 2]
    """

    def __init__(self) -> None:
        self._for_any: _Heap = []
        self._for_some: dict[frozenset[int], _Heap] = {}
        self._meant_for: defaultdict[int, list[_Heap]] = defaultdict(list)
        self._preferred: defaultdict[int, _Heap] = defaultdict(list)

    def __len__(self) -> int:
        # Four times for each closure: `sum` over `_heaps()` takes three times as long.
        length = len(self._for_any)
        for heap in self._for_some.values():
            length += len(heap)
        for heap in self._preferred.values():
            length += len(heap)
        return length

    def put(self, closure: Closure) -> None:
        """Adds a closure."""
        heapq.heappush(self._heap_of(closure), (closure.order, closure))

    def pop(self, worker: int) -> Closure | None:
        """Removes and returns the next closure for ``worker``, or ``None``."""
        heaps = [heap for heap in self._heaps_for(worker) if heap]
        if not heaps:
            heaps = [heap for heap in self._preferred.values() if heap]
        if not heaps:
            return None
        return heapq.heappop(min(heaps))[1]

    def has_work_for(self, worker: int) -> bool:
        """Returns whether ``pop`` would return a closure."""
        return any(self._heaps_for(worker)) or any(self._preferred.values())

    def meant_for(self) -> list[frozenset[int]]:
        """Returns the worker groups that queued closures are restricted to."""
        return [workers for workers, heap in self._for_some.items() if heap]

    def remove(self, closures: Collection[Closure]) -> None:
        """Removes closures that will not run."""
        for heap in self._heaps():
            heap[:] = sorted(item for item in heap if item[1] not in closures)  # sorted is a heap

    def clear(self) -> list[Closure]:
        """Removes and returns all closures, in order."""
        taken = sorted(item for heap in self._heaps() for item in heap)
        for heap in self._heaps():
            heap.clear()
        return [closure for _, closure in taken]

    def _heap_of(self, closure: Closure) -> _Heap:
        if closure.workers is not None:
            return self._heap_for_some(closure.workers)
        for needed in closure.needs:
            if needed.status is Status.HELD:
                assert needed.where is not None
                return self._preferred[needed.where]
        return self._for_any

    def _heap_for_some(self, workers: frozenset[int]) -> _Heap:
        if workers not in self._for_some:
            heap: _Heap = []
            for worker in workers:
                self._meant_for[worker].append(heap)
            # Last: an interrupt before leaves a heap that nothing is put into.
            self._for_some[workers] = heap
        return self._for_some[workers]

    def _heaps_for(self, worker: int) -> Iterator[_Heap]:
        yield self._for_any
        yield from self._meant_for.get(worker, ())
        if worker in self._preferred:
            yield self._preferred[worker]

    def _heaps(self) -> Iterator[_Heap]:
        yield self._for_any
        yield from self._for_some.values()
        yield from self._preferred.values()
