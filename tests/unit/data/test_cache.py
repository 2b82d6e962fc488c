from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.data import DataLossError, Dataset, TensorSpec

from .pipelines import INT, contents, streamed


class Counted:
    """A generator of numbers that counts its runs."""

    def __init__(self, size):
        self.size = size
        self.runs = 0

    def __call__(self):
        self.runs += 1
        return iter(range(self.size))

    def dataset(self):
        return Dataset.from_generator(self, output_signature=INT)


@pytest.mark.parametrize("in_file", [False, True])
def test_elements_are_made_once(tmp_path, in_file):
    source = Counted(5)
    dataset = source.dataset().cache(str(tmp_path / "cache") if in_file else "")
    assert contents(dataset) == contents(dataset) == list(range(5))
    assert contents(dataset.repeat(2)) == [*range(5)] * 2
    assert source.runs == 1


@pytest.mark.parametrize("in_file", [False, True])
def test_an_incomplete_pass_caches_nothing(tmp_path, in_file):
    source = Counted(5)
    dataset = source.dataset().cache(str(tmp_path / "cache") if in_file else "")
    assert contents(dataset.take(2)) == [0, 1]
    assert list(tmp_path.iterdir()) == []
    assert contents(dataset) == list(range(5))
    assert source.runs == 2


def test_a_file_outlives_its_dataset(tmp_path):
    def build(numbers):
        spec = {"x": TensorSpec([2], np.float32), "s": TensorSpec((), "string"), "n": INT}
        rows = [{"x": [n, n / 3], "s": f"é{n}\0", "n": n} for n in numbers]
        generated = Dataset.from_generator(lambda: iter(rows), output_signature=spec)
        return generated.cache(str(tmp_path / "deep" / "cache"))

    first = contents(build(range(4)))
    assert first[2] == {"x": [2.0, float(np.float32(2 / 3))], "s": "é2\0".encode(), "n": 2}
    assert contents(build([])) == first
    assert next(iter(build([])))["x"].dtype == np.float32
    path = tmp_path / "deep" / "cache"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataLossError, match="record 3"):
        contents(build([]))


@pytest.mark.parametrize("dtype", ["bfloat16", ">i4", "bool", "datetime64[s]", "complex64"])
def test_a_file_keeps_types(tmp_path, dtype):
    kind = jnp.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    values = np.arange(3).astype(kind)
    for _ in range(2):
        cached = Dataset.from_tensor_slices(values).cache(str(tmp_path / "cache"))
        elements = list(cached)
        assert [element.dtype.name for element in elements] == [values.dtype.name] * 3
        assert elements == list(values)


def test_an_iterator_over_a_cache_file_that_is_gone(tmp_path):
    path = tmp_path / "cache"
    dataset = streamed(range(4)).cache(str(path))
    assert contents(dataset) == [0, 1, 2, 3]
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    restored = iter(streamed(range(4)).cache(str(path)))
    restored.set_state(state)
    assert contents(restored) == [1, 2, 3]
    path.unlink()
    with pytest.raises(DataLossError, match="is gone"):
        iter(streamed(range(4)).cache(str(path))).set_state(state)


def test_cached_functions_run_once_per_element():
    calls = []

    def slow(x):
        calls.append(int(x))
        return x * 2

    dataset = Dataset.range(6).map(slow).cache().shuffle(6).batch(4)
    for _ in range(3):
        assert sorted(np.concatenate(list(dataset)).tolist()) == [0, 2, 4, 6, 8, 10]
    assert sorted(calls) == list(range(6))


def test_cached_tables_are_made_once_per_row():
    counts = np.zeros(10, int)

    def traced(x):
        if isinstance(x, np.generic):
            counts[x] += 1
        return x * 2

    dataset = Dataset.range(10).map(traced).cache()
    for _ in range(3):
        assert sorted(contents(dataset.shuffle(10))) == list(range(0, 20, 2))
    assert counts.max() <= 2


def test_cached_arrays_are_read_only():
    dataset = streamed(range(3)).map(lambda x: [int(x)] * 2).cache()
    list(dataset)
    with pytest.raises(ValueError, match="read-only"):
        next(iter(dataset))[0] = 9


@pytest.mark.parametrize("seed", [None, 5])
def test_a_cache_above_a_shuffle_is_restored_in_its_order_elsewhere(seed):
    def build():
        return streamed(range(8)).shuffle(8, seed=seed).cache().repeat(3).batch(3)

    dataset = build()
    expected = contents(dataset)
    assert expected != contents(build()) or seed is not None
    for position in range(len(expected) + 1):
        iterator = iter(dataset)
        for _ in range(position):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        elsewhere = iter(build())
        elsewhere.set_state(state)
        assert contents(elsewhere) == expected[position:]
