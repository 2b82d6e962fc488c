"""How arrays are divided into chunks, and which process writes which of them. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["chunk_boxes", "chunk_shape", "divide_rows", "num_chunks"]

_CHUNK_BYTES = 16 << 20


def chunk_shape(shape: Sequence[int], itemsize: int, chunk_bytes: int | None = None) -> list[int]:
    """Returns the shape of an array's chunks, which depends only on the array.

    A chunk is as many complete rows as fit into ``chunk_bytes``; larger rows are split.

    >>> chunk_shape((1000, 10), 4, chunk_bytes=400)
    [10, 10]
    >>> chunk_shape((2, 3, 1000), 4, chunk_bytes=400)
    [1, 1, 100]
    >>> chunk_shape((), 4), chunk_shape((0, 3), 4)
    ([], [1, 3])
    """
    chunk_bytes = _CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    chunk = [max(1, dim) for dim in shape]
    for axis in range(len(chunk)):
        inner = math.prod(chunk[axis + 1 :]) * itemsize
        chunk[axis] = min(chunk[axis], max(1, chunk_bytes // inner))
        if inner <= chunk_bytes:
            break
    return chunk


def chunk_boxes(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yields the slices of each chunk of an array.

    >>> list(chunk_boxes((5,), [3]))
    [(slice(0, 3, None),), (slice(3, 5, None),)]
    >>> list(chunk_boxes((), []))
    [()]
    """
    sides = [
        [slice(start, min(start + size, dim)) for start in range(0, dim, size)]
        for dim, size in zip(shape, chunk, strict=True)
    ]
    return itertools.product(*sides)


def num_chunks(shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Returns the number of chunks of an array.

    >>> num_chunks((1000, 10), [300, 10])
    4
    """
    return math.prod(-(-dim // size) for dim, size in zip(shape, chunk, strict=True))


def divide_rows(
    arrays: Mapping[str, tuple[Sequence[int], int]], num_writers: int
) -> list[dict[str, tuple[int, int]]]:
    """Returns which rows of which arrays each process writes, when all processes have all arrays.

    Arrays with at least as many chunk rows as processes are divided between all of them, at chunk
    boundaries. Each other array goes to the least loaded process.

    Args:
        arrays: Shape and bytes per element of each array.
        num_writers: Number of processes.

    >>> from stratagem._src.checkpoint.format import chunks
    >>> chunks.divide_rows({"a": ((3,), 4), "b": ((2, 2), 4), "c": ((), 4)}, 2)
    [{'b': (0, 2)}, {'a': (0, 3), 'c': (0, 1)}]
    """
    parts: list[dict[str, tuple[int, int]]] = [{} for _ in range(num_writers)]
    load = [0] * num_writers

    def give(writer: int, name: str, begin: int, end: int, num_bytes: int) -> None:
        parts[writer][name] = (begin, end)
        load[writer] += num_bytes

    def num_bytes(name: str) -> int:
        shape, itemsize = arrays[name]
        return math.prod(shape) * itemsize

    for name in sorted(arrays, key=lambda name: (-num_bytes(name), name)):
        shape, itemsize = arrays[name]
        rows = shape[0] if shape else 1
        step = chunk_shape(shape, itemsize)[0] if shape else 1
        blocks = -(-rows // step)
        if num_writers == 1 or blocks < num_writers:
            give(min(range(num_writers), key=load.__getitem__), name, 0, rows, num_bytes(name))
            continue
        for writer in range(num_writers):
            begin = min(rows, blocks * writer // num_writers * step)
            end = min(rows, blocks * (writer + 1) // num_writers * step)
            give(writer, name, begin, end, num_bytes(name) * (end - begin) // rows)
    return parts
