"""``BulkChannel``: non-blocking transfer of raw buffers, for threads that serve several connections."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from stratagem._src.transport.byte_stream import ByteStream
from stratagem._src.transport.cipher import TAG_BYTES, Cipher

__all__ = ["BulkChannel"]

OnFilled: TypeAlias = Callable[[], None]

_NOTHING = memoryview(b"")
_MAX_BUFFERS = 64
"""Buffers per ``sendmsg`` call; the system limit is 1,024."""


class BulkChannel:
    """Queues of buffers to send and of buffers to fill, processed in order without blocking.

    One thread may send while another receives.

    Only the bytes of the buffers are sent, without framing: both ends know what to expect. With a cipher
    each buffer is one record, so both ends must split the data alike.

    Args:
        stream: The byte stream.
        encrypting: Encrypts sent data; ``None`` for plaintext.
        decrypting: Decrypts received data.
    """

    def __init__(
        self, stream: ByteStream, encrypting: Cipher | None, decrypting: Cipher | None
    ) -> None:
        self._stream = stream
        self._encrypting = encrypting
        self._decrypting = decrypting
        self._to_encrypt: deque[memoryview] = deque()
        self._to_send: deque[memoryview] = deque()
        self._to_fill: deque[tuple[memoryview, OnFilled]] = deque()
        self._filling = _NOTHING
        self._sealed_out = memoryview(bytearray())
        self._sealed_in = memoryview(bytearray())
        self._is_drained = False

    def fileno(self) -> int:
        """Returns the file descriptor, for polling."""
        return self._stream.fileno()

    def put(self, buffer: memoryview) -> None:
        """Queues a non-empty buffer to send. It must not change before ``has_sent`` is true."""
        (self._to_send if self._encrypting is None else self._to_encrypt).append(buffer)

    @property
    def has_sent(self) -> bool:
        """Whether the kernel has accepted all queued data."""
        return not self._to_send and not self._to_encrypt

    def limit_unsent(self, num_bytes: int) -> None:
        """Limits the unsent bytes in the kernel's send buffer."""
        self._stream.limit_unsent(num_bytes)

    def expect(self, view: memoryview, on_filled: OnFilled) -> None:
        """Queues a non-empty buffer to fill, and a function to call then, which may queue more."""
        self._to_fill.append((view, on_filled))

    @property
    def has_filled(self) -> bool:
        """Whether all queued buffers are filled."""
        return not self._to_fill

    def send(self) -> bool:
        """Sends with one non-blocking system call; returns whether anything was sent.

        Raises:
            OSError: If the connection breaks.
        """
        buffers = self._to_send
        if not buffers:
            if not self._to_encrypt:
                return False
            assert self._encrypting is not None
            buffers.append(self._encrypt(self._to_encrypt.popleft(), self._encrypting))
        sent = self._stream.try_send(list(itertools.islice(buffers, _MAX_BUFFERS)))
        left = sent
        while buffers and left >= len(buffers[0]):
            left -= len(buffers.popleft())
        if left:
            buffers[0] = buffers[0][left:]
        return sent > 0

    def receive(self) -> bool:
        """Receives with one non-blocking system call; returns whether anything was received.

        Raises:
            TamperedError: If the data was modified in transit.
            OSError: If the connection breaks.
        """
        if self._is_drained or not self._to_fill:
            return False
        view, on_filled = self._to_fill[0]
        if not self._filling:
            self._filling = view if self._decrypting is None else self._room_for(len(view))
        received = self._stream.try_receive_into(self._filling)
        self._is_drained = received == 0 or (
            received < len(self._filling) and self._stream.supports_low_watermark
        )
        self._filling = self._filling[received:]
        if received and not self._filling:
            # Even an empty view exports its buffer, which then cannot be released or resized.
            self._filling = _NOTHING
            self._to_fill.popleft()
            if self._decrypting is not None:
                self._decrypting.decrypt_into(self._sealed_in[: len(view) + TAG_BYTES], view)
            on_filled()
        return received > 0

    def prepare_to_wait(self) -> None:
        """Sets the low watermark, so that not every packet wakes the thread. Call it before polling."""
        self._stream.set_low_watermark(self._missing())
        self._is_drained = False

    def _missing(self) -> int:
        if self._filling:
            return len(self._filling)
        tag_bytes = 0 if self._decrypting is None else TAG_BYTES
        return len(self._to_fill[0][0]) + tag_bytes

    def _encrypt(self, buffer: memoryview, cipher: Cipher) -> memoryview:
        size = len(buffer) + TAG_BYTES
        if len(self._sealed_out) < size:
            self._sealed_out = memoryview(bytearray(size))
        sealed = self._sealed_out[:size]
        cipher.encrypt_into(buffer, sealed)
        return sealed

    def _room_for(self, num_bytes: int) -> memoryview:
        size = num_bytes + TAG_BYTES
        if len(self._sealed_in) < size:
            self._sealed_in = memoryview(bytearray(size))
        return self._sealed_in[:size]
