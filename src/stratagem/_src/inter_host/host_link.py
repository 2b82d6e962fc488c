"""``HostLink``: what this process exchanges with those of its lane on other hosts.

Every host sends to every other host directly. For an all-reduce each host owns a part of the array: all
send it their addends of that part, it adds them in the order of the hosts, and sends the sum to all. That
moves as few bytes as a ring does, ``2 (N - 1) / N`` of the array, in 2 steps instead of ``2 (N - 1)``; the
sums of one chunk travel while the addends of the next ones still arrive. Small arrays are sent whole, in
one step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from stratagem._src.core.background import Background
from stratagem._src.inter_host.host_peer import FlatArray, HostPeer, PeerLost, as_bytes
from stratagem._src.shared_memory.combination import Combination, combine
from stratagem._src.shared_memory.exchanged_array import cut
from stratagem._src.shared_memory.local_group import DIFFERENT
from stratagem._src.transport import Connection

__all__ = ["CONNECTION_LOST", "HostLink"]

_MAX_CHUNK_BYTES = 1024 * 1024
_MIN_CHUNK_BYTES = 64 * 1024
_CHUNKS_PER_PART = 4
"""Of what a host owns of an array. Of 1 MB on three hosts at 1 Gbit/s, in three runs each, one chunk took
1.11, 1.19 and 1.24 of the time of Gloo's all-reduce, and four chunks 1.08, 1.00 and 1.03. On
a busy machine: more chunks, and four hosts, were measured once each, which decides nothing."""

_INLINE_BYTES = 32 * 1024
"""What the buffers of two sockets surely take: nobody has to receive while it is sent."""

_HEADER = struct.Struct("<QI")
CONNECTION_LOST = "The connection between two hosts was lost in an exchange of arrays"


class HostLink:
    """This process among those of its lane, one on each host, all at the same turn.

    Args:
        host: The number of this host.
        connections: To the peer on every other host, by host. The link closes them.
        names: What errors call the peers, by host.
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
        background = Background("the link between hosts")
        self._host = host
        self._num_hosts = len(connections) + 1
        self._turn = 0
        # In another order on each host: else all would send to the same one first.
        others = [(host + i) % self._num_hosts for i in range(1, self._num_hosts)]
        self._peers = {
            other: HostPeer(connections[other], names[other], background) for other in others
        }

    def unacknowledged_seconds(self) -> dict[int, float]:
        """Returns for how long each other host has acknowledged nothing of what it was sent."""
        return {host: peer.unacknowledged_seconds for host, peer in self._peers.items()}

    def interrupt(self) -> None:
        """Wakes what waits for other hosts, with an error; from any thread."""
        for peer in self._peers.values():
            peer.interrupt()

    def close(self) -> None:
        """Ends the connections."""
        for peer in self._peers.values():
            peer.close()
        self._when_closed()

    def all_reduce(
        self,
        combination: Combination,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        note: int,
    ) -> str | None:
        """Fills the results with the operands of all hosts combined.

        Args:
            combination: ``SUM``, ``MIN`` or ``MAX``.
            operands: What this host brings.
            results: As large, and other memory.
            note: Equal in processes that exchange the same.

        Returns:
            What went wrong, if anything; so does ``swap``.
        """
        if _num_bytes(operands) > _INLINE_BYTES:
            return self._take_turn(
                lambda: self._all_reduce_by_owners(combination, operands, results, note)
            )
        brought = {other: [np.empty_like(array) for array in operands] for other in self._peers}
        problem = self.swap(dict.fromkeys(self._peers, operands), brought, note)
        if problem is None:
            self.combine(combination, operands, brought, results)
        return problem

    def swap(
        self,
        outgoing: Mapping[int, Sequence[FlatArray]],
        incoming: Mapping[int, Sequence[FlatArray]],
        note: int,
    ) -> str | None:
        """Sends arrays to each other host, and fills arrays with what each sends.

        Args:
            outgoing: By host.
            incoming: By host.
            note: Equal in processes that exchange the same.
        """
        both = (*outgoing.values(), *incoming.values())
        is_small = all(_num_bytes(arrays) <= _INLINE_BYTES for arrays in both)
        swap = self._swap_inline if is_small else self._swap_in_chunks
        return self._take_turn(lambda: swap(outgoing, incoming, note))

    def combine(
        self,
        combination: Combination,
        own: Sequence[FlatArray],
        brought: Mapping[int, Sequence[FlatArray]],
        results: Sequence[FlatArray],
    ) -> None:
        """Fills the results with what all hosts have brought, combined in the order of the hosts."""
        for i, (array, result) in enumerate(zip(own, results, strict=True)):
            in_order = [
                array if host == self._host else brought[host][i] for host in range(self._num_hosts)
            ]
            combine(combination, in_order, result)

    def _take_turn(self, work: Callable[[], bool]) -> str | None:
        try:
            is_same = work()
        except PeerLost as error:
            self.interrupt()
            return f"{CONNECTION_LOST}, with {error}."
        if not is_same:
            self.interrupt()
            return DIFFERENT
        self._turn += 1
        return None

    def _swap_inline(
        self,
        outgoing: Mapping[int, Sequence[FlatArray]],
        incoming: Mapping[int, Sequence[FlatArray]],
        note: int,
    ) -> bool:
        header = _HEADER.pack(self._turn, note)
        for other, peer in self._peers.items():
            peer.send(b"".join([header, *map(as_bytes, outgoing[other])]))
        for other, peer in self._peers.items():
            record = peer.receive()
            if not record.startswith(header):
                return False
            start = len(header)
            for array in incoming[other]:
                as_bytes(array)[:] = record[start : start + array.nbytes]
                start += array.nbytes
        return True

    def _swap_in_chunks(
        self,
        outgoing: Mapping[int, Sequence[FlatArray]],
        incoming: Mapping[int, Sequence[FlatArray]],
        note: int,
    ) -> bool:
        self._put_headers(note)
        for other, peer in self._peers.items():
            for chunk in _chunks(outgoing[other], _MAX_CHUNK_BYTES):
                peer.put(chunk)
        if not self._headers_are_same(note):
            return False
        self._receive_in_turn(incoming)
        self._flush()
        return True

    def _all_reduce_by_owners(
        self,
        combination: Combination,
        operands: Sequence[FlatArray],
        results: Sequence[FlatArray],
        note: int,
    ) -> bool:
        parts = [cut(array.size, self._num_hosts) for array in operands]
        chunk_bytes = _chunk_bytes(_num_bytes(operands) // self._num_hosts)
        self._put_headers(note)
        for other, peer in self._peers.items():
            for chunk in _chunks(_part_of(operands, parts, other), chunk_bytes):
                peer.put(chunk)
        if not self._headers_are_same(note):
            return False
        own_operands = _chunks(_part_of(operands, parts, self._host), chunk_bytes)
        own_results = _chunks(_part_of(results, parts, self._host), chunk_bytes)
        buffers: dict[int, FlatArray] = {
            other: np.empty(chunk_bytes, np.uint8) for other in self._peers
        }
        for operand, result in zip(own_operands, own_results, strict=True):
            brought = {}
            for other, peer in self._peers.items():
                brought[other] = [buffers[other][: operand.nbytes].view(operand.dtype)]
                peer.receive_into(brought[other][0])
            self.combine(combination, [operand], brought, [result])
            for peer in self._peers.values():
                peer.put(result)
        sums = {other: _part_of(results, parts, other) for other in self._peers}
        self._receive_in_turn(sums, chunk_bytes)
        self._flush()
        return True

    def _receive_in_turn(
        self, incoming: Mapping[int, Sequence[FlatArray]], chunk_bytes: int = _MAX_CHUNK_BYTES
    ) -> None:
        """Receives a chunk of each host in turn: one from which nothing is taken stops sending."""
        arriving = {other: list(_chunks(incoming[other], chunk_bytes)) for other in self._peers}
        for position in range(max(map(len, arriving.values()))):
            for other, chunks in arriving.items():
                if position < len(chunks):
                    self._peers[other].receive_into(chunks[position])

    def _put_headers(self, note: int) -> None:
        for peer in self._peers.values():
            peer.put(np.frombuffer(_HEADER.pack(self._turn, note), np.uint8))

    def _headers_are_same(self, note: int) -> bool:
        header = _HEADER.pack(self._turn, note)
        received = np.empty(len(header), np.uint8)
        for peer in self._peers.values():
            peer.receive_into(received)
            if received.tobytes() != header:
                return False
        return True

    def _flush(self) -> None:
        # The memory of a program is not its own any more when its turn is over.
        for peer in self._peers.values():
            peer.flush()


def _num_bytes(arrays: Sequence[FlatArray]) -> int:
    return sum(array.nbytes for array in arrays)


def _part_of(
    arrays: Sequence[FlatArray], parts: Sequence[list[slice]], host: int
) -> list[FlatArray]:
    return [array[owned[host]] for array, owned in zip(arrays, parts, strict=True)]


def _chunk_bytes(part_bytes: int) -> int:
    """Returns how large chunks are, given what a host owns: the sums of one travel while others arrive."""
    wanted = part_bytes // _CHUNKS_PER_PART // 64 * 64
    return min(_MAX_CHUNK_BYTES, max(_MIN_CHUNK_BYTES, wanted))


def _chunks(arrays: Sequence[FlatArray], chunk_bytes: int) -> Iterator[FlatArray]:
    for array in arrays:
        step = chunk_bytes // array.dtype.itemsize
        for start in range(0, array.size, step):
            yield array[start : start + step]
