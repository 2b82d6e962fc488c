"""``OwnedReduction``: an all-reduce in which each host reduces a part and sends it to all others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from stratagem._src.collective_backends.hosts.host_peers import HostPeers
from stratagem._src.collective_backends.hosts.turn_sender import FlatArray
from stratagem._src.collective_backends.shared_memory.combination import Combination, combine
from stratagem._src.collective_backends.shared_memory.exchanged_array import cut

__all__ = ["MAX_RECORD_BYTES", "Chunk", "OnChunk", "OwnedReduction", "chunk_bytes", "chunks"]

_MAX_CHUNK_BYTES = 256 * 1024
_MIN_CHUNK_BYTES = 64 * 1024
MAX_RECORD_BYTES = 1024 * 1024
_CHUNKS_PER_PART = 4
_CHUNKS_AHEAD = 8
"""How many chunks of a fast host are received before those of slower hosts: else it stops sending."""


class Chunk(NamedTuple):
    """A piece of one of several arrays.

    Attributes:
        array: Which one.
        part: Of its elements.
    """

    array: int
    part: slice

    def of(self, arrays: Sequence[FlatArray]) -> FlatArray:
        """Returns it of arrays like those."""
        return arrays[self.array][self.part]


OnChunk: TypeAlias = Callable[[Chunk], None]


class OwnedReduction:
    """The own side of one all-reduce.

    Addends go out before any sum: the last ones arrive when half of all is sent, so that their sums are
    there long before it is their turn, and the network never waits for an addition.

    Args:
        host: The number of this host.
        peers: Those of the other hosts.
        combination: ``SUM``, ``MIN`` or ``MAX``.
        operands: What this host brings.
        results: As large, and other memory.
        prepare: Fills a chunk of the operands, maybe in another thread; called once for each.
        publish: Called when a chunk of the results is there.
    """

    def __init__(
        self,
        host: int,
        peers: HostPeers,
        combination: Combination,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        prepare: OnChunk,
        publish: OnChunk,
    ) -> None:
        self._host = host
        self._peers = peers
        self._combination = combination
        self._operands, self._results = operands, results
        self._prepare, self._publish = prepare, publish
        num_hosts = len(peers) + 1
        part_bytes = sum(array.nbytes for array in operands) // num_hosts
        # A single peer takes no turns.
        most = _MAX_CHUNK_BYTES if len(peers) > 1 else MAX_RECORD_BYTES
        self._chunk_bytes = chunk_bytes(part_bytes, most)
        parts = [cut(array.size, num_hosts) for array in operands]
        self._owned = [
            list(chunks(operands, self._chunk_bytes, [of_array[owner] for of_array in parts]))
            for owner in range(num_hosts)
        ]
        self._own = self._owned[host]
        self._num_missing = [len(peers)] * len(self._own)

    @property
    def buffer_bytes(self) -> int:
        """How much memory the addends of another host take on the way."""
        return _CHUNKS_AHEAD * self._chunk_bytes

    def queue(self, buffers: FlatArray) -> None:
        """Queues all that is sent and received.

        Args:
            buffers: For what arrives: ``buffer_bytes`` for each other host.
        """
        places = buffers[: len(self._peers) * self.buffer_bytes].reshape(len(self._peers), -1)
        self._places = dict(zip(self._peers, places, strict=True))
        for other in self._peers:
            for chunk in self._owned[other]:
                addend = chunk.of(self._operands)
                self._peers.send(other, addend, functools.partial(self._prepare, chunk))
            for number in range(min(_CHUNKS_AHEAD, len(self._own))):
                self._receive_addend(other, number)
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
        start = number % _CHUNKS_AHEAD * self._chunk_bytes
        return self._places[other][start : start + own.nbytes].view(own.dtype)


def chunk_bytes(part_bytes: int, most: int = _MAX_CHUNK_BYTES) -> int:
    """Returns how large chunks are, given what a host owns: the sums of one travel while others arrive."""
    wanted = part_bytes // _CHUNKS_PER_PART // 64 * 64
    return min(most, max(_MIN_CHUNK_BYTES, wanted))


def chunks(
    arrays: Sequence[FlatArray],
    most_bytes: int = _MAX_CHUNK_BYTES,
    parts: Sequence[slice] | None = None,
) -> Iterator[Chunk]:
    """Returns arrays, or a part of each, in pieces of at most ``most_bytes``."""
    for number, array in enumerate(arrays):
        whole = slice(0, array.size) if parts is None else parts[number]
        step = most_bytes // array.dtype.itemsize
        for start in range(whole.start, whole.stop, step):
            yield Chunk(number, slice(start, min(start + step, whole.stop)))
