"""``ReduceScatterAllGather``: an all-reduce in which each host reduces a shard and sends it to all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from stratagem._src.collective_backends.hosts.host_peers import HostPeers
from stratagem._src.collective_backends.hosts.round_robin_sender import FlatArray
from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp, combine
from stratagem._src.collective_backends.shared_memory.slots import split_evenly

__all__ = [
    "MAX_RECORD_BYTES",
    "Chunk",
    "OnChunk",
    "ReduceScatterAllGather",
    "chunk_bytes",
    "chunks",
]

_MAX_CHUNK_BYTES = 256 * 1024
_MIN_CHUNK_BYTES = 64 * 1024
MAX_RECORD_BYTES = 1024 * 1024
_CHUNKS_PER_PART = 4
_CHUNKS_AHEAD = 8
"""How many chunks of a fast host are received ahead of slower hosts: otherwise it stops sending."""


class Chunk(NamedTuple):
    """A slice of one of several arrays.

    Attributes:
        array: The index of the array.
        part: The slice of its elements.
    """

    array: int
    part: slice

    def of(self, arrays: Sequence[FlatArray]) -> FlatArray:
        """Returns this chunk of the arrays."""
        return arrays[self.array][self.part]


OnChunk: TypeAlias = Callable[[Chunk], None]


class ReduceScatterAllGather:
    """This host's side of one all-reduce.

    All addends are sent before any sum. The last addends arrive when half of all data is sent, so their
    sums are ready long before they are sent, and the network never waits for an addition.

    Args:
        host: The index of this host.
        peers: The peers on the other hosts.
        op: ``SUM``, ``MIN`` or ``MAX``.
        operands: The operands of this host.
        results: Arrays of the same sizes, in other memory.
        prepare: Fills a chunk of the operands, possibly in another thread; called once for each chunk.
        publish: Called when a chunk of the results is complete.
    """

    def __init__(
        self,
        host: int,
        peers: HostPeers,
        op: CollectiveOp,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        prepare: OnChunk,
        publish: OnChunk,
    ) -> None:
        self._host = host
        self._peers = peers
        self._combination = op
        self._operands, self._results = operands, results
        self._prepare, self._publish = prepare, publish
        num_hosts = len(peers) + 1
        part_bytes = sum(array.nbytes for array in operands) // num_hosts
        # With a single peer there is no round robin, so larger chunks do no harm.
        max_bytes = _MAX_CHUNK_BYTES if len(peers) > 1 else MAX_RECORD_BYTES
        self._chunk_bytes = chunk_bytes(part_bytes, max_bytes)
        parts = [split_evenly(array.size, num_hosts) for array in operands]
        # With arrays of 6 and 3 elements on 3 hosts, host 1 owns [2:4] of the first and [1:2] of the
        # second: all hosts cut the same chunks, so chunk n of an owner needs no name on the wire.
        self._owned = [
            list(chunks(operands, self._chunk_bytes, [of_array[owner] for of_array in parts]))
            for owner in range(num_hosts)
        ]
        self._own = self._owned[host]
        self._num_missing = [len(peers)] * len(self._own)

    @property
    def buffer_bytes(self) -> int:
        """The size of the receive buffer for the addends of one other host."""
        return _CHUNKS_AHEAD * self._chunk_bytes

    def queue(self, buffers: FlatArray) -> None:
        """Queues all sends and receives.

        Args:
            buffers: Receive buffers, ``buffer_bytes`` for each other host.
        """
        places = buffers[: len(self._peers) * self.buffer_bytes].reshape(len(self._peers), -1)
        self._places = dict(zip(self._peers, places, strict=True))
        for other in self._peers:
            for chunk in self._owned[other]:
                addend = chunk.of(self._operands)
                self._peers.send(other, addend, functools.partial(self._prepare, chunk))
            for number in range(min(_CHUNKS_AHEAD, len(self._own))):
                self._receive_addend(other, number)
            # A connection delivers in order: the sums of a peer follow all of its addends.
            if len(self._own) <= _CHUNKS_AHEAD:
                self._receive_sums(other)

    def _receive_addend(self, other: int, number: int) -> None:
        brought = self._brought(other, number)
        self._peers.receive(other, brought, functools.partial(self._arrived, number))

    def _receive_sums(self, other: int) -> None:
        for chunk in self._owned[other]:
            total = chunk.of(self._results)
            self._peers.receive(other, total, functools.partial(self._publish, chunk))

    def _arrived(self, number: int) -> None:
        self._num_missing[number] -= 1
        if self._num_missing[number]:
            return
        chunk = self._own[number]
        self._prepare(chunk)
        in_order = [
            chunk.of(self._operands) if host == self._host else self._brought(host, number)
            for host in range(len(self._peers) + 1)
        ]
        total = chunk.of(self._results)
        combine(self._combination, in_order, total)
        # The buffers of this chunk are free now: they receive the addends `_CHUNKS_AHEAD` chunks later.
        following, last = number + _CHUNKS_AHEAD, len(self._own) - 1
        for other in self._peers:
            self._peers.send(other, total)
            if following <= last:
                self._receive_addend(other, following)
            if following == last:
                self._receive_sums(other)
        self._publish(chunk)

    def _brought(self, other: int, number: int) -> FlatArray:
        own = self._own[number].of(self._operands)
        # A ring of buffers for each host: chunk 0 and chunk `_CHUNKS_AHEAD` use the same one.
        start = number % _CHUNKS_AHEAD * self._chunk_bytes
        return self._places[other][start : start + own.nbytes].view(own.dtype)


def chunk_bytes(part_bytes: int, max_bytes: int = _MAX_CHUNK_BYTES) -> int:
    """Returns the size of chunks, given the size of a shard.

    A shard has several chunks, so that the sums of one are sent while the addends of others arrive.
    """
    wanted = part_bytes // _CHUNKS_PER_PART // 64 * 64
    return min(max_bytes, max(_MIN_CHUNK_BYTES, wanted))


def chunks(
    arrays: Sequence[FlatArray],
    max_bytes: int = _MAX_CHUNK_BYTES,
    parts: Sequence[slice] | None = None,
) -> Iterator[Chunk]:
    """Yields chunks of at most ``max_bytes`` of arrays, or of one slice of each."""
    for number, array in enumerate(arrays):
        covered = slice(0, array.size) if parts is None else parts[number]
        step = max_bytes // array.dtype.itemsize
        for start in range(covered.start, covered.stop, step):
            yield Chunk(number, slice(start, min(start + step, covered.stop)))
