"""What is compared of the data that several workers give Keras."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem._src.core.errors import ReplicaMismatchError
from stratagem._src.integrations.keras import data_consistency
from stratagem._src.integrations.keras.data_consistency import BatchComparison, check_equal_arrays


class Others:
    """Stands in for the watch over workers: the leader is another worker, which has other data."""

    def __init__(self, monkeypatch):
        self.leaders = None
        self.exchanged = []
        monkeypatch.setattr(data_consistency, "process_monitor", lambda: self)

    def all_gather_object(self, topic, value, what):
        value = json.loads(json.dumps(value))  # as it travels
        self.exchanged.append(value)
        return [value if self.leaders is None else self.leaders.pop(0), value]


@pytest.fixture
def others(monkeypatch):
    return Others(monkeypatch)


def leader_has(others, data):
    others.leaders = None
    check_equal_arrays(data)
    others.leaders = [others.exchanged.pop()]


ROWS = np.arange(6000, dtype=np.float32).reshape(1000, 6)


def moved(array, one, other):
    array = array.copy()
    array[[one, other]] = array[[other, one]]
    return array


def changed(array, *place):
    array = array.copy()
    array[place] += 1
    return array


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(changed(ROWS, 0, 0), id="the first value"),
        pytest.param(changed(ROWS, 999, 5), id="the last value"),
        pytest.param(moved(ROWS, 3, 4), id="neighbouring rows"),
        pytest.param(moved(ROWS, 0, 999), id="distant rows"),
        pytest.param(moved(ROWS.T, 1, 2).T, id="columns"),
        pytest.param(np.random.default_rng(0).permutation(ROWS), id="all rows"),
        pytest.param(ROWS.astype(np.float64), id="dtype"),
        pytest.param(ROWS[:-1], id="length"),
        pytest.param(ROWS.reshape(500, 12), id="shape"),
    ],
)
def test_values_and_their_order_count(others, array):
    leader_has(others, ROWS)
    with pytest.raises(ReplicaMismatchError, match="x of worker 1 has"):
        check_equal_arrays(array)


@pytest.mark.parametrize(
    "array", [np.asfortranarray(ROWS), jnp.asarray(ROWS), np.concatenate([ROWS, ROWS])[:1000]]
)
def test_memory_does_not_count(others, array):
    leader_has(others, ROWS)
    check_equal_arrays(array)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "complex64", "bfloat16", "U3", object])
def test_any_kind_of_element(others, dtype):
    data = np.arange(5000).astype("int8").astype(jnp.dtype(dtype) if dtype == "bfloat16" else dtype)
    leader_has(others, (data, np.zeros(0), 3))
    check_equal_arrays((data.copy(), np.zeros(0), 3))


def test_every_array_that_differs_is_named(others):
    x = {"image": np.zeros((4, 2)), "text": np.ones(4)}
    leader_has(others, (x, [np.zeros(4), np.ones(4)]))
    with pytest.raises(ReplicaMismatchError) as caught:
        check_equal_arrays((x | {"text": np.zeros(4)}, [np.zeros(4), np.zeros(4)], np.ones(4)))
    text = str(caught.value)
    assert "x['text'] of worker 1 has the leader's shape but different values" in text
    assert "y[1] of worker 1" in text
    assert "sample_weight of worker 1 exists only on this worker or only on the leader" in text
    assert "image" not in text
    assert "y[0]" not in text


def test_batches_are_compared_seldom_and_all_of_them(others):
    batches = [np.full((2, 2), number) for number in range(200)]
    comparison = BatchComparison()
    for batch in batches:
        comparison.add((batch, batch))
    comparison.finish()
    comparison.finish()
    counts = [len(sums) for sums in others.exchanged]
    assert counts == [1, 1, 2, 4, 8, 16, 32, 64, 64, 8]
    assert sum(counts) == 200
    others.leaders = others.exchanged.copy()
    batches[150] = batches[150] + 1
    comparison = BatchComparison()
    for number, batch in enumerate(batches[:191]):
        comparison.add((np.full((2, 2), number), batch))
    with pytest.raises(ReplicaMismatchError, match=r"batch 150 of worker 1 .* in y\."):
        comparison.add((batches[191], batches[191]))
