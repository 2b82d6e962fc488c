"""``BulkChannel``: both directions of a connection, for threads that serve several of them at once."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.cipher import TAG_BYTES, Cipher

__all__ = ["BulkChannel"]

WhenFilled: TypeAlias = Callable[[], None]

_NOTHING = memoryview(b"")
_MAX_PIECES = 64
"""Of one call of the system, which takes 1,024 at the most."""


class BulkChannel:
    """Memory that is sent and memory that is filled, in the order in which it is queued; never waits.

    One thread may send while another receives.

    Nothing but the memory itself travels: both ends know what comes. Where a cipher protects a direction,
    each piece of memory is a record, so that both ends have to cut alike.

    Args:
        stream: The bytes.
        encrypting: For what is sent; ``None`` sends it in the clear.
        decrypting: For what arrives.
    """

    def __init__(
        self, stream: ByteStream, encrypting: Cipher | None, decrypting: Cipher | None
    ) -> None:
        self._stream = stream
        self._encrypting = encrypting
        self._decrypting = decrypting
        self._to_encrypt: deque[memoryview] = deque()
        self._to_send: deque[memoryview] = deque()
        self._to_fill: deque[tuple[memoryview, WhenFilled]] = deque()
        self._filling = _NOTHING
        self._sealed_out = memoryview(bytearray())
        self._sealed_in = memoryview(bytearray())
        self._is_drained = False

    def fileno(self) -> int:
        """Returns the descriptor to poll."""
        return self._stream.fileno()

    def put(self, piece: memoryview) -> None:
        """Queues memory to send, at least a byte; it must not change before ``has_sent`` is true."""
        (self._to_send if self._encrypting is None else self._to_encrypt).append(piece)

    @property
    def has_sent(self) -> bool:
        """Whether the system has taken all that was queued."""
        return not self._to_send and not self._to_encrypt

    def limit_unsent(self, num_bytes: int) -> None:
        """Lets the system take no more than so many bytes that it cannot send yet."""
        self._stream.limit_unsent(num_bytes)

    def expect(self, view: memoryview, when_filled: WhenFilled) -> None:
        """Queues memory to fill, at least a byte, and what to call then: it may queue more."""
        self._to_fill.append((view, when_filled))

    @property
    def has_filled(self) -> bool:
        """Whether all memory that was queued is filled."""
        return not self._to_fill

    def send(self) -> bool:
        """Sends what one call of the system does without waiting, and returns whether it was something.

        Raises:
            OSError: If the connection breaks.
        """
        pieces = self._to_send
        if not pieces:
            if not self._to_encrypt:
                return False
            assert self._encrypting is not None
            pieces.append(self._encrypt(self._to_encrypt.popleft(), self._encrypting))
        sent = self._stream.try_send(list(itertools.islice(pieces, _MAX_PIECES)))
        left = sent
        while pieces and left >= len(pieces[0]):
            left -= len(pieces.popleft())
        if left:
            pieces[0] = pieces[0][left:]
        return sent > 0

    def receive(self) -> bool:
        """Receives what one call of the system does without waiting, and returns whether it was something.

        Raises:
            TamperedError: If what arrives is not what was sent.
            OSError: If the connection breaks.
        """
        if self._is_drained or not self._to_fill:
            return False
        view, when_filled = self._to_fill[0]
        if not self._filling:
            self._filling = view if self._decrypting is None else self._room_for(len(view))
        received = self._stream.try_receive_into(self._filling)
        self._is_drained = received == 0 or (
            received < len(self._filling) and self._stream.wakes_for_bulk
        )
        self._filling = self._filling[received:]
        if received and not self._filling:
            # Even an empty view keeps its memory from being given back, or from growing.
            self._filling = _NOTHING
            self._to_fill.popleft()
            if self._decrypting is not None:
                self._decrypting.decrypt_into(self._sealed_in[: len(view) + TAG_BYTES], view)
            when_filled()
        return received > 0

    def prepare_to_wait(self) -> None:
        """Asks the system not to wake for every packet. To be called before a poll for what arrives."""
        self._stream.wake_for(self._missing())
        self._is_drained = False

    def _missing(self) -> int:
        if self._filling:
            return len(self._filling)
        tag_bytes = 0 if self._decrypting is None else TAG_BYTES
        return len(self._to_fill[0][0]) + tag_bytes

    def _encrypt(self, piece: memoryview, cipher: Cipher) -> memoryview:
        size = len(piece) + TAG_BYTES
        if len(self._sealed_out) < size:
            self._sealed_out = memoryview(bytearray(size))
        sealed = self._sealed_out[:size]
        cipher.encrypt_into(piece, sealed)
        return sealed

    def _room_for(self, num_bytes: int) -> memoryview:
        size = num_bytes + TAG_BYTES
        if len(self._sealed_in) < size:
            self._sealed_in = memoryview(bytearray(size))
        return self._sealed_in[:size]
