"""Arrays that nobody else can write to: what is copied, and what is not."""

from __future__ import annotations

import mmap

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from stratagem._src.core.owned_memory import OwnedResults, is_read_only, owned
from stratagem._src.data.structure import flatten, map_structure

BUFFER = np.zeros(4, np.float32)


class OldExporter:
    """Exports its array by the first version of DLPack, from which NumPy makes read-only arrays."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def read_only(array):
    array.flags.writeable = False
    return array


def test_read_only_memory_is_told_by_what_it_belongs_to(tmp_path):
    np.save(tmp_path / "rows.npy", BUFFER)
    for array in (
        read_only(np.zeros(3)),
        read_only(np.zeros(3))[1:],
        read_only(np.zeros(4).reshape(2, 2)),
        np.frombuffer(b"1234", np.uint8),
        np.asarray(jnp.zeros(3)),
        np.load(tmp_path / "rows.npy", mmap_mode="r"),
        np.frombuffer(mmap.mmap(-1, 64, access=mmap.ACCESS_READ), np.uint8),
    ):
        assert is_read_only(array)
        assert owned(array) is array
    for array in (
        np.zeros(3),
        read_only(BUFFER.view()),
        np.broadcast_to(BUFFER, (2, 4)),
        np.frombuffer(bytearray(4), np.uint8),
        np.frombuffer(memoryview(bytearray(4)).toreadonly(), np.uint8),
        np.load(tmp_path / "rows.npy", mmap_mode="r+"),
        np.from_dlpack(OldExporter(BUFFER)),
        pa.array(BUFFER).to_numpy(),
    ):
        assert not is_read_only(array)
        assert not np.shares_memory(owned(array), array)


HELD_TUPLE = (np.ones(2), np.ones(2))
HELD_DICT = {"x": np.ones(2)}


class Named(dict):
    """A mapping that is not a plain dict."""


FRESH = {
    "array": lambda: BUFFER + 1,
    "view of a new array": lambda: (BUFFER + 1)[1:],
    "tuple": lambda: (BUFFER + 1, (BUFFER + 2).reshape(2, 2)),
    "dict": lambda: {"x": BUFFER + 1, "y": (BUFFER + 1, {"z": BUFFER + 2})},
    "number": lambda: np.float32(3),
    "read-only": lambda: np.frombuffer(b"1234", np.uint8),
}
HELD = {
    "buffer": lambda: BUFFER,
    "view of a buffer": lambda: BUFFER[1:],
    "buffer in a tuple": lambda: (BUFFER + 1, BUFFER),
    "buffer in a dict": lambda: {"x": BUFFER},
    "held tuple": lambda: HELD_TUPLE,
    "held tuple in a tuple": lambda: (HELD_TUPLE,),
    "held dict": lambda: HELD_DICT,
    "other mapping": lambda: Named(x=BUFFER),
    "read-only view of a buffer": lambda: read_only(BUFFER.view()),
}


def num_copies(make, given=None):
    copies = []

    def copy(array):
        copies.append(array)
        return array.copy()

    # Often, as the interpreter may come to count references in another way when code is hot.
    for _ in range(100):
        OwnedResults(flatten, map_structure, copy).take(make, given)
    return len(copies)


@pytest.mark.parametrize("make", FRESH.values(), ids=FRESH)
def test_what_a_function_has_just_made_is_not_copied(make):
    assert num_copies(make) == 0


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_what_a_function_still_holds_is_copied(make):
    assert num_copies(make) >= 100


def test_what_a_function_was_given_is_not_copied():
    element = (np.ones(4), {"x": np.ones(4)})
    assert num_copies(lambda: element, element) == 0
    assert num_copies(lambda: (element[1]["x"][2:], element[0]), element) == 0
    assert num_copies(lambda: (BUFFER, element[0]), element) == 100


def test_a_generator_that_keeps_its_array_is_told_from_one_that_does_not():
    def keeps():
        while True:
            array = BUFFER + 1
            yield array

    def gives_away():
        while True:
            yield BUFFER + 1

    kept, given_away = keeps(), gives_away()
    assert num_copies(lambda: next(kept)) == 100
    assert num_copies(lambda: next(given_away)) == 0
