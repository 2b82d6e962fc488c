"""Elements in containers of the user's own, and places without an array."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Mapping

import numpy as np
import pytest

from stratagem.data import Dataset, InvalidArgumentError, TensorSpec


class Sub(dict):
    pass


class Other(Mapping):
    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Attrs:
    """What the attrs library makes: a class with a list of its attributes."""

    __attrs_attrs__ = (types.SimpleNamespace(name="a"), types.SimpleNamespace(name="b"))

    def __init__(self, a, b):
        self.a, self.b = a, b


@dataclasses.dataclass
class Data:
    a: object
    b: object


Named = collections.namedtuple("Named", "a b")
A, B = np.arange(6), np.arange(6) * 10

CONTAINERS = {
    "subclass": Sub(a=A, b=B),
    "ordered": collections.OrderedDict([("b", B), ("a", A)]),
    "default": collections.defaultdict(list, a=A, b=B),
    "mapping": Other({"a": A, "b": B}),
    "attrs": Attrs(A, B),
    "named": Named(A, B),
}


def get(element, name):
    return element[name] if isinstance(element, Mapping) else getattr(element, name)


@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_a_container_keeps_its_class(container):
    dataset = Dataset.from_tensor_slices(container)
    assert type(dataset.element_spec) is type(container)
    assert get(dataset.element_spec, "a") == TensorSpec((), "int64")
    pipelines = [
        dataset.batch(2),
        dataset.shuffle(6).cache().batch(2).prefetch(1),
        dataset.map(lambda x: x).batch(2).unbatch().batch(2),
        dataset.map(lambda x: x, num_parallel_calls=2).batch(2),
    ]
    for pipeline in pipelines:
        for batch in pipeline:
            assert type(batch) is type(container)
            assert (get(batch, "b") == get(batch, "a") * 10).all()
            assert get(batch, "a").shape == (2,)


@pytest.mark.parametrize("name", ["subclass", "mapping", "attrs"])
def test_a_function_of_a_container_runs_vectorised(name):
    calls = []

    def total(x):
        calls.append(None)
        return Sub(total=get(x, "a") + get(x, "b"))

    batches = list(Dataset.from_tensor_slices(CONTAINERS[name]).map(total).batch(1))
    assert [batch["total"].tolist() for batch in batches] == [[11 * i] for i in range(6)]
    assert {type(batch) for batch in batches} == {Sub}
    assert len(calls) < 6


def test_a_dataclass_is_refused():
    with pytest.raises(InvalidArgumentError, match="arrays, numbers and strings"):
        Dataset.from_tensor_slices(Data(A, B))


def test_none_is_a_place_without_an_array():
    dataset = Dataset.from_tensor_slices((A, None, {"b": B, "n": None}))
    spec = TensorSpec((), "int64")
    assert dataset.element_spec == (spec, None, {"b": spec, "n": None})
    batch = next(iter(dataset.shuffle(6, seed=1).map(lambda a, n, d: (a + 1, n, d)).batch(3)))
    assert batch[1] is None
    assert batch[2]["n"] is None
    assert (batch[2]["b"] == (batch[0] - 1) * 10).all()


def test_functions_get_and_return_none():
    dataset = Dataset.range(3).map(lambda x: (x, None)).map(lambda x, n: (int(x), n is None))
    assert [(int(x), bool(n)) for x, n in dataset] == [(0, True), (1, True), (2, True)]
    padded = next(iter(Dataset.range(3).map(lambda x: (x, None)).padded_batch(3)))
    assert padded[1] is None
    kept = list(Dataset.range(3).map(lambda x: (x, None)).filter(lambda x, n: x > 1))
    assert kept == [(2, None)]
    generated = Dataset.from_generator(
        lambda: iter([(1, None)]), output_signature=(TensorSpec((), "int32"), None)
    )
    assert list(generated) == [(1, None)]


def test_an_element_without_any_array_is_refused():
    for make in (Dataset.from_tensors, Dataset.from_tensor_slices):
        with pytest.raises(InvalidArgumentError, match="at least one component"):
            make(None)
    with pytest.raises(InvalidArgumentError, match="returned None"):
        list(Dataset.range(3).map(lambda x: None))


def test_structures_that_differ_are_told_apart():
    dataset = Dataset.from_generator(
        lambda: iter([(1, 2)]), output_signature=(TensorSpec((), "int32"), None)
    )
    with pytest.raises(InvalidArgumentError, match="must have the structure"):
        list(dataset)
