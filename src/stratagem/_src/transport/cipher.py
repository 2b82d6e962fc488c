"""``Cipher``: authenticated encryption (AES-256-GCM) of one direction of a connection."""

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
# Far below the number of records for which AES-GCM is safe under one key.
_RECORDS_PER_KEY = 1 << 16
_TAMPERED = "the received data was modified in transit"


class TamperedError(ConnectionError):
    """The received data is not the next data that the peer sent."""


class Cipher:
    """Encrypts or decrypts records, in the order in which they are sent.

    The nonce is the sequence number of the record, which is not transmitted: a record that is modified,
    replayed, dropped, reordered, or from another connection or direction does not decrypt. The key is
    ratcheted after a fixed number of records: an old key cannot be derived from a newer one.

    >>> from stratagem._src.transport.cipher import Cipher
    >>> sender, receiver = Cipher(bytes(32)), Cipher(bytes(32))
    >>> sealed = sender.encrypt(b"hello")
    >>> receiver.decrypt(sealed)
    b'hello'
    >>> receiver.decrypt(sealed)
    Traceback (most recent call last):
    stratagem._src.transport.cipher.TamperedError: the received data was modified in transit

    Args:
        key: ``KEY_BYTES`` bytes that are used for nothing else.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)
        self._count = 0
        self._owner = ProcessOwner("a connection")

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Encrypts the next record."""
        cipher, nonce = self._next()
        return cipher.encrypt(nonce, data, None)

    def decrypt(self, sealed: bytes | memoryview) -> bytes:
        """Decrypts the next record.

        Raises:
            TamperedError: If it is not the next record of the sender.
        """
        cipher, nonce = self._next()
        try:
            return cipher.decrypt(nonce, sealed, None)
        except InvalidTag:
            raise TamperedError(_TAMPERED) from None

    def encrypt_into(self, data: bytes | memoryview, sealed: bytearray | memoryview) -> None:
        """Encrypts the next record into a buffer that is ``TAG_BYTES`` larger."""
        cipher, nonce = self._next()
        cipher.encrypt_into(nonce, data, None, sealed)

    def decrypt_into(self, sealed: bytearray | memoryview, data: bytearray | memoryview) -> None:
        """Decrypts the next record into a buffer that is ``TAG_BYTES`` smaller.

        Raises:
            TamperedError: If it is not the next record of the sender.
        """
        cipher, nonce = self._next()
        try:
            cipher.decrypt_into(nonce, sealed, None, data)
        except InvalidTag:
            raise TamperedError(_TAMPERED) from None

    def _next(self) -> tuple[AESGCM, bytes]:
        # A forked child has the same key and counter. Two records with one nonce would break AES-GCM.
        self._owner.check()
        if self._count == _RECORDS_PER_KEY:
            self._key = hmac.digest(self._key, b"stratagem next key", hashlib.sha256)
            self._cipher = AESGCM(self._key)
            self._count = 0
        nonce = self._count.to_bytes(_NONCE_BYTES, "little")
        self._count += 1
        return self._cipher, nonce
