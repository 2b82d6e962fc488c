"""``HostLink``: the collectives of this process with those of its lane on other hosts.

Every host sends to every other host directly. An all-reduce is a reduce-scatter and an all-gather: each
host owns a shard of the array; all others send it their addends of that shard; it adds them in the order of
the hosts, and sends the sum to all. That moves as few bytes as a ring, ``2 (N - 1) / N`` of the array, in 2
steps instead of ``2 (N - 1)``. The sums of one chunk are sent while the addends of the next chunks arrive.
Two hosts swap full arrays of up to 4 MB instead: the same number of bytes in one step. So do more hosts
with small arrays.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stratagem._src.collective_backends.hosts.host_peers import HostPeers
from stratagem._src.collective_backends.hosts.reduce_scatter_all_gather import (
    MAX_RECORD_BYTES,
    Chunk,
    OnChunk,
    ReduceScatterAllGather,
    chunks,
)
from stratagem._src.collective_backends.hosts.round_robin_sender import (
    FlatArray,
    PeerLost,
    as_bytes,
)
from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp, combine
from stratagem._src.collective_backends.shared_memory.local_group import DIFFERENT
from stratagem._src.transport import Connection

__all__ = ["CONNECTION_LOST", "HostLink"]

_SMALL_BYTES = 32 * 1024
"""Up to this size the latency of a second step costs more than sending full arrays."""

_MAX_SWAPPED_BYTES = 4 * 1024 * 1024
"""Between two hosts. Each then adds the full array instead of half of it, but one step less is faster."""

_HEADER = struct.Struct("<QI")
CONNECTION_LOST = "The connection between two hosts was lost during a collective"


class _DifferentArrays(Exception):
    """Another host is at another collective, or has other arrays."""


def _nothing(chunk: Chunk) -> None:
    """Does nothing with a chunk."""


class HostLink:
    """This process among those of its lane, one on each host. All run the same collectives in order.

    Args:
        host: The index of this host.
        connections: The connections to the peers on other hosts, by host. The link closes them.
        names: The names of the peers in errors, by host.
        when_closed: Called when the link is closed.
    """

    def __init__(
        self,
        host: int,
        connections: Mapping[int, Connection],
        names: Mapping[int, str],
        when_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._when_closed = when_closed
        self._host = host
        self._num_hosts = len(connections) + 1
        self._turn = 0
        self._buffers = np.empty(0, np.uint8)
        # In a different order on each host: otherwise all would send to the same host first.
        others = [(host + i) % self._num_hosts for i in range(1, self._num_hosts)]
        self._peers = HostPeers({other: connections[other] for other in others}, names)

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long each other host has not acknowledged sent data (TCP)."""
        return self._peers.unacknowledged_seconds()

    def interrupt(self) -> None:
        """Makes waits for other hosts fail with an error; from any thread."""
        self._peers.interrupt()

    def close(self) -> None:
        """Closes the connections."""
        self._peers.close()
        self._when_closed()

    def all_reduce(
        self,
        op: CollectiveOp,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        tag: int,
        prepare: OnChunk = _nothing,
        publish: OnChunk = _nothing,
    ) -> str | None:
        """Fills the results with the combined operands of all hosts.

        Args:
            op: ``SUM``, ``MIN`` or ``MAX``.
            operands: The operands of this host.
            results: Arrays of the same sizes, in other memory.
            tag: Equal in processes that run the same collective.
            prepare: Fills a chunk of the operands. Called shortly before the chunk is needed, possibly in
                two threads at once, and possibly more than once.
            publish: Called when a chunk of the results is complete.

        Returns:
            The error, if any, like ``swap``.
        """
        if _num_bytes(operands) <= _SMALL_BYTES:
            return self._all_reduce_small(op, operands, results, tag, prepare, publish)
        if self._num_hosts == 2 and _num_bytes(operands) <= _MAX_SWAPPED_BYTES:
            return self._run_queue(
                tag,
                _num_bytes(operands),
                lambda: self._queue_sum_of_two(op, operands, results, prepare, publish),
            )
        reduction = ReduceScatterAllGather(
            self._host, self._peers, op, operands, results, prepare, publish
        )
        num_bytes = len(self._peers) * reduction.buffer_bytes
        if len(self._buffers) < num_bytes:
            self._buffers = np.empty(num_bytes, np.uint8)
        return self._run_queue(tag, _num_bytes(operands), lambda: reduction.queue(self._buffers))

    def _all_reduce_small(
        self,
        op: CollectiveOp,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        tag: int,
        prepare: OnChunk,
        publish: OnChunk,
    ) -> str | None:
        all_chunks = list(chunks(operands, _SMALL_BYTES))
        for chunk in all_chunks:
            prepare(chunk)
        num_bytes = _num_bytes(operands)
        rooms = {other: np.empty(num_bytes, np.uint8) for other in self._peers}
        problem = self._swap_small(dict.fromkeys(self._peers, operands), rooms, tag)
        if problem is None:
            brought = {other: _split_like(operands, room) for other, room in rooms.items()}
            self.combine(op, operands, brought, results)
            for chunk in all_chunks:
                publish(chunk)
        return problem

    def _swap_small(
        self, outgoing: Mapping[int, Sequence[FlatArray]], rooms: Mapping[int, FlatArray], tag: int
    ) -> str | None:
        """Sends small arrays as one, and fills one array with what each host sends."""

        def exchange(header: FlatArray) -> None:
            for other, room in rooms.items():
                if room.size:
                    self._peers.receive(other, room)
            records = {
                other: [header, *(array for array in _together(outgoing[other]) if array.size)]
                for other in self._peers
            }
            self._peers.swap(records)

        return self._take_turn(tag, exchange)

    def swap(
        self,
        outgoing: Mapping[int, Sequence[FlatArray]],
        incoming: Mapping[int, Sequence[FlatArray]],
        tag: int,
    ) -> str | None:
        """Sends arrays to each other host, and fills arrays with what each sends.

        Args:
            outgoing: The arrays to send, by host.
            incoming: The arrays to fill, by host.
            tag: Equal in processes that run the same collective.
        """
        if all(map(_are_small, [*outgoing.values(), *incoming.values()])):
            rooms = {
                other: np.empty(_num_bytes(arrays), np.uint8) for other, arrays in incoming.items()
            }
            problem = self._swap_small(outgoing, rooms, tag)
            for other, room in rooms.items():
                for array, part in zip(
                    incoming[other], _split_like(incoming[other], room), strict=True
                ):
                    array[:] = part
            return problem

        def queue() -> None:
            for other in self._peers:
                for chunk in chunks(outgoing[other]):
                    self._peers.send(other, chunk.of(outgoing[other]))
                for chunk in chunks(incoming[other]):
                    self._peers.receive(other, chunk.of(incoming[other]))

        return self._run_queue(tag, sum(map(_num_bytes, incoming.values())), queue)

    def combine(
        self,
        op: CollectiveOp,
        own: Sequence[FlatArray],
        brought: Mapping[int, Sequence[FlatArray]],
        results: Sequence[FlatArray],
    ) -> None:
        """Fills the results with the operands of all hosts, combined in the order of the hosts."""
        for i, (array, result) in enumerate(zip(own, results, strict=True)):
            in_order = [
                array if host == self._host else brought[host][i] for host in range(self._num_hosts)
            ]
            combine(op, in_order, result)

    def _queue_sum_of_two(
        self,
        op: CollectiveOp,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        prepare: OnChunk,
        publish: OnChunk,
    ) -> None:
        """Queues a swap whose chunks are combined in place when they arrive."""
        [other] = self._peers

        def arrived(chunk: Chunk) -> None:
            prepare(chunk)
            operand, result = chunk.of(operands), chunk.of(results)
            # Both hosts add in the same order, so that both have the same bits.
            in_order = (operand, result) if self._host < other else (result, operand)
            combine(op, in_order, result)
            publish(chunk)

        for chunk in chunks(operands, MAX_RECORD_BYTES):
            self._peers.send(other, chunk.of(operands), functools.partial(prepare, chunk))
            self._peers.receive(other, chunk.of(results), functools.partial(arrived, chunk))

    def _run_queue(self, tag: int, num_bytes: int, queue: Callable[[], None]) -> str | None:
        """Sends and receives the ``num_bytes`` that ``queue`` queues, after the headers."""

        def exchange(header: FlatArray) -> None:
            for other in self._peers:
                self._peers.send(other, header)
            queue()
            self._peers.run(num_bytes)

        return self._take_turn(tag, exchange)

    def _take_turn(self, tag: int, exchange: Callable[[FlatArray], None]) -> str | None:
        """Calls ``exchange`` with the header to send, and checks the headers of other hosts.

        The headers show whether all hosts are at the same collective, before any data is used.
        """
        # The turn tells a repeated collective from the next one of the same arrays: the tag is equal for
        # both.
        packed = _HEADER.pack(self._turn, tag)

        def check(received: FlatArray) -> None:
            if received.tobytes() != packed:
                raise _DifferentArrays

        for other in self._peers:
            received = np.empty(_HEADER.size, np.uint8)
            self._peers.receive(other, received, functools.partial(check, received))
        try:
            exchange(np.frombuffer(packed, np.uint8))
        except PeerLost as error:
            self.interrupt()
            return f"{CONNECTION_LOST}, with {error}."
        except _DifferentArrays:
            self.interrupt()
            return DIFFERENT
        self._turn += 1
        return None


def _are_small(arrays: Sequence[FlatArray]) -> bool:
    return _num_bytes(arrays) <= _SMALL_BYTES


def _together(arrays: Sequence[FlatArray]) -> Sequence[FlatArray]:
    """Returns small arrays as one, to save system calls."""
    if len(arrays) == 1:
        return arrays
    return [np.frombuffer(b"".join(map(as_bytes, arrays)), np.uint8)]


def _split_like(arrays: Sequence[FlatArray], joined: FlatArray) -> list[FlatArray]:
    """Returns the parts of joined small arrays, as views."""
    parts, start = [], 0
    for array in arrays:
        parts.append(joined[start : start + array.nbytes].view(array.dtype))
        start += array.nbytes
    return parts


def _num_bytes(arrays: Sequence[FlatArray]) -> int:
    return sum(array.nbytes for array in arrays)
