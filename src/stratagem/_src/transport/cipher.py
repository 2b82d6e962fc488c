"""``Cipher``: keeps one direction of a connection secret and whole."""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stratagem._src.process.fork import ProcessOwner

__all__ = ["KEY_BYTES", "TAG_BYTES", "Cipher", "TamperedError"]

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
# Far less under one key than AES-GCM is safe for.
_RECORDS_PER_KEY = 1 << 16
_TAMPERED = "what came is not what it sent"


class TamperedError(ConnectionError):
    """What arrived is not what the other end sent next."""


class Cipher:
    """Encrypts records, or decrypts them, in the order in which they are sent.

    Each record has a number that does not travel: one that is changed, repeated, left out, moved or of
    another connection or direction does not decrypt. The key is replaced from time to time by one from
    which it cannot be found.

    >>> from stratagem._src.transport.cipher import Cipher
    >>> sender, receiver = Cipher(bytes(32)), Cipher(bytes(32))
    >>> sealed = sender.encrypt(b"hello")
    >>> receiver.decrypt(sealed)
    b'hello'
    >>> receiver.decrypt(sealed)
    Traceback (most recent call last):
    stratagem._src.transport.cipher.TamperedError: what came is not what it sent

    Args:
        key: ``KEY_BYTES`` that serve nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)
        self._count = 0
        self._owner = ProcessOwner("a connection")

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Returns the next record encrypted."""
        cipher, number = self._next()
        return cipher.encrypt(number, data, None)

    def decrypt(self, sealed: bytes | memoryview) -> bytes:
        """Returns the next record decrypted.

        Raises:
            TamperedError: If it is not the one that was encrypted next.
        """
        cipher, number = self._next()
        try:
            return cipher.decrypt(number, sealed, None)
        except InvalidTag:
            raise TamperedError(_TAMPERED) from None

    def encrypt_into(self, data: bytes | memoryview, sealed: bytearray | memoryview) -> None:
        """Encrypts the next record into memory with ``TAG_BYTES`` more."""
        cipher, number = self._next()
        cipher.encrypt_into(number, data, None, sealed)

    def decrypt_into(self, sealed: bytearray | memoryview, data: bytearray | memoryview) -> None:
        """Decrypts the next record into memory with ``TAG_BYTES`` less.

        Raises:
            TamperedError: If it is not the one that was encrypted next.
        """
        cipher, number = self._next()
        try:
            cipher.decrypt_into(number, sealed, None, data)
        except InvalidTag:
            raise TamperedError(_TAMPERED) from None

    def _next(self) -> tuple[AESGCM, bytes]:
        # A forked child has the same key and count: two records under one number could both be read.
        self._owner.check()
        if self._count == _RECORDS_PER_KEY:
            self._key = hmac.digest(self._key, b"stratagem next key", hashlib.sha256)
            self._cipher = AESGCM(self._key)
            self._count = 0
        number = self._count.to_bytes(_NONCE_BYTES, "little")
        self._count += 1
        return self._cipher, number
