"""The sorted string table (SSTable) of LevelDB: the format of a TensorFlow checkpoint's ``.index`` file.

    data block … data block | meta index block | index block | footer (48 bytes)

Each block is followed by its compression (1 byte) and a masked CRC-32C (4 bytes) of both. The index block
has the offset and size of each data block. A key is stored as the number of bytes that it shares with the
previous key of its block, and the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from google_crc32c import value as crc32c

from stratagem._src.core.errors import DataLossError

__all__ = ["corrupt", "masked_checksum", "read_table", "varint"]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES, _TRAILER_BYTES = 48, 5
_UNCOMPRESSED, _SNAPPY = 0, 1
_MAX_VARINT_BYTES = 10
_MAX_BLOCK_BYTES = 1 << 30  # of a compressed block whose header claims more, nothing is allocated
_UINT32 = struct.Struct("<I")


def corrupt(path: Path, why: str) -> DataLossError:
    """Returns the error for a file that is not what was written."""
    return DataLossError(
        f"The file {path} of a TensorFlow checkpoint is corrupt: {why}. Copy the checkpoint again."
    )


def masked_checksum(checksum: int) -> int:
    """Returns a CRC-32C as it is stored: rotated, with an offset added.

    >>> hex(masked_checksum(0))
    '0xa282ead8'
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number that begins at a position, 7 bits in a byte, and the position after it.

    >>> varint(bytes([0x96, 0x01]), 0)
    (150, 2)

    Raises:
        IndexError: If the data end before the number does.
        ValueError: If it is longer than a number can be.
    """
    number = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = data[position + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, position + index + 1
    raise ValueError("a number has more than 10 bytes")


def read_table(path: Path) -> dict[bytes, bytes]:
    """Returns the contents of a table, when all checksums have been checked.

    Raises:
        DataLossError: If it cannot be read, is truncated, has a wrong checksum, or is not such a table.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise corrupt(path, f"it cannot be read ({error.strerror or error})") from error
    if len(data) < _FOOTER_BYTES:
        raise corrupt(path, f"it has {len(data)} bytes, which is less than a table's footer")
    if struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise corrupt(
            path, "it does not end as a table does: it is truncated or not a checkpoint's index"
        )
    try:
        footer = data[-_FOOTER_BYTES:]
        _, position = _handle(footer, 0)
        index, _ = _handle(footer, position)
        contents: dict[bytes, bytes] = {}
        for _, location in _entries(_block(data, *index)):
            handle, _ = _handle(location, 0)
            contents.update(_entries(_block(data, *handle)))
    except (IndexError, ValueError, struct.error) as error:
        raise corrupt(path, str(error) or "a block is malformed") from error
    return contents


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES + _FOOTER_BYTES > len(data):
        raise ValueError(
            f"it is truncated: a block ends at byte {end + _TRAILER_BYTES}, but the file has {len(data)}"
        )
    block, compression = data[offset:end], data[end]
    (stored,) = _UINT32.unpack_from(data, end + 1)
    if masked_checksum(crc32c(data[offset : end + 1])) != stored:
        raise ValueError(f"the checksum of the block at byte {offset} is wrong")
    if compression == _UNCOMPRESSED:
        return block
    if compression == _SNAPPY:
        return _decompress(block)
    raise ValueError(f"the block at byte {offset} has the unknown compression {compression}")


def _decompress(block: bytes) -> bytes:
    import pyarrow

    size, _ = varint(block, 0)
    if size > _MAX_BLOCK_BYTES:
        raise ValueError(f"a compressed block claims to have {size} bytes")
    try:
        return bytes(pyarrow.Codec("snappy").decompress(block, size, asbytes=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"a compressed block is malformed ({error})") from error


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (num_restarts,) = _UINT32.unpack_from(block, len(block) - 4)
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError("a block is shorter than its list of restarts")
    position, key = 0, b""
    while position < end:
        num_shared, position = varint(block, position)
        num_new, position = varint(block, position)
        num_value, position = varint(block, position)
        stop = position + num_new + num_value
        if num_shared > len(key) or stop > end:
            raise ValueError("an entry of a block is malformed")
        key = key[:num_shared] + block[position : position + num_new]
        yield key, block[position + num_new : stop]
        position = stop
